// What is shared by a CPU kernel and its CUDA twin is marked DR_HD.
#pragma once

#if defined(__CUDACC__)
#define DR_HD __host__ __device__
#else
#define DR_HD
#endif
