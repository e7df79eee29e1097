#include <cstring>

#include "dct/dct_kernel.hpp"
#include "primitive/neon_vectors.hpp"

#if DR_NEON
#include "dct/dct_vectors.hpp"
namespace dr {

namespace {
// Of this file: the compiler inlines more of what no other file can call.
struct vectors : floats_neon {};
}  // namespace

constinit const dct_kernels dct_neon = make_dct_kernels<vectors>();

}  // namespace dr
#endif
