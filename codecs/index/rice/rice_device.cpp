// index=rice: the host's side of its CUDA operations.
#include "codecs/builtin.hpp"
#include "codecs/family/golomb/golomb_device.hpp"

namespace dr {

constinit const dr_ops rice_cuda = golomb_device<rice_rule>::cuda;

}  // namespace dr
