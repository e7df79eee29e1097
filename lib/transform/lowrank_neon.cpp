#include <cstring>

#include "primitive/neon_vectors.hpp"
#include "transform/lowrank_kernel.hpp"

#if DR_NEON
#include "transform/lowrank_vectors.hpp"
namespace dr {

namespace {
// Of this file: the compiler inlines more of what no other file can call.
struct vectors : floats_neon {};
}  // namespace

constinit const lowrank_kernels lowrank_neon = make_lowrank_kernels<vectors>();

}  // namespace dr
#endif
