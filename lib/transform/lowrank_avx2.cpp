#include <cstring>

#include "primitive/float_vectors.hpp"
#include "transform/lowrank_kernel.hpp"

#if DR_X86
DR_AVX2_BEGIN
#include "transform/lowrank_vectors.hpp"
namespace dr {

namespace {
// Of this file: the compiler inlines more of what no other file can call.
struct vectors : floats_8 {};
}  // namespace

constinit const lowrank_kernels lowrank_avx2 = make_lowrank_kernels<vectors>();

}  // namespace dr
DR_ISA_END
#endif
