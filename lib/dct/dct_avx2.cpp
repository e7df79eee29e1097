#include <cstring>

#include "dct/dct_kernel.hpp"
#include "primitive/float_vectors.hpp"

#if DR_X86
DR_AVX2_BEGIN
#include "dct/dct_vectors.hpp"
namespace dr {

namespace {
// Of this file: the compiler inlines more of what no other file can call.
struct vectors : floats_8 {};
}  // namespace

constinit const dct_kernels dct_avx2 = make_dct_kernels<vectors>();

}  // namespace dr
DR_ISA_END
#endif
