#include "codecs/small_calls.hpp"

#include "cuda/fused.hpp"

namespace dr {

const fused_kernel& small_encode_kernel() { return fused_kernel::of<small_encode>(); }
const fused_kernel& small_decode_kernel() { return fused_kernel::of<small_decode>(); }

}  // namespace dr
