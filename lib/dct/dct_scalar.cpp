#include "dct/dct_kernel.hpp"
#include "dct/dct_vectors.hpp"
#include "primitive/float_vectors.hpp"

namespace dr {

namespace {
// Of this file: the compiler inlines more of what no other file can call.
struct vectors : floats_4 {};
}  // namespace

constinit const dct_kernels dct_scalar = make_dct_kernels<vectors>();

}  // namespace dr
