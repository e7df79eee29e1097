// index=golomb: the host's side of its CUDA operations.
#include "codecs/family/golomb/golomb_device.hpp"
#include "codecs/builtin.hpp"

namespace dr {

constinit const dr_ops golomb_cuda = golomb_device<golomb_rule>::cuda;

}  // namespace dr
