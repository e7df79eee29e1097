#include <cstring>

#include "transform/lowrank_kernel.hpp"

#if DR_X86
DR_AVX2_BEGIN
#include "transform/lowrank_vectors.hpp"
namespace dr {
namespace {

struct vectors {
  using vector = __m256;
  static constexpr uint32_t lanes = 8;

  static vector all(float x) { return _mm256_set1_ps(x); }
  static vector load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, vector x) { _mm256_storeu_ps(to, x); }
  static vector add(vector x, vector y) { return _mm256_add_ps(x, y); }
  static vector sub(vector x, vector y) { return _mm256_sub_ps(x, y); }
  static vector mul(vector x, vector y) { return _mm256_mul_ps(x, y); }
};

}  // namespace

constinit const lowrank_kernels lowrank_avx2 = make_lowrank_kernels<vectors>();

}  // namespace dr
DR_ISA_END
#endif
