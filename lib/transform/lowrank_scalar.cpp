#include "primitive/float_vectors.hpp"
#include "transform/lowrank_kernel.hpp"
#include "transform/lowrank_vectors.hpp"

namespace dr {

namespace {
// Of this file: the compiler inlines more of what no other file can call.
struct vectors : floats_4 {};
}  // namespace

constinit const lowrank_kernels lowrank_scalar = make_lowrank_kernels<vectors>();

}  // namespace dr
