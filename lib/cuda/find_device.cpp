#include "cuda/device.hpp"

namespace dr {

device* emulated(int32_t seed);                                             // emulator.cpp
dr_status find_cuda_device(int32_t number, device*& out, dr_error& error);  // device.cu

#if defined(DR_WITH_CUDA)
const bool built_with_cuda = true;
#else
const bool built_with_cuda = false;
#endif

dr_status find_device(const dr_place& place, device*& out, dr_error& error) {
  if (place.kind == DR_PLACE_EMULATED) {
    out = emulated(place.device);
    return DR_OK;
  }
  if (place.kind != DR_PLACE_CUDA) return fail(error, DR_E_ARGUMENT, "place: kind %u is unknown", place.kind);
#if defined(DR_WITH_CUDA)
  return find_cuda_device(place.device, out, error);
#else
  return fail(error, DR_E_UNSUPPORTED, "place: this library was built without CUDA");
#endif
}

}  // namespace dr
