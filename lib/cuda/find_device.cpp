#include "cuda/device.hpp"

#include <cstdio>

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

// Any driver of the same major version suffices, but 12.0: arguments of kernels above 4 KB need 12.1.
bool is_driver_of(int runtime, int driver) { return driver >= runtime / 1000 * 1000 + (runtime / 1000 == 12 ? 10 : 0); }

dr_status fail_without_device(int runtime, int driver, const char* why, dr_error& error) {
  if (is_driver_of(runtime, driver)) return fail(error, DR_E_DEVICE, "place: no CUDA device here (%s)", why);
  char found[40] = "there is none", linux_driver[40] = "";
  if (driver) std::snprintf(found, sizeof found, "it is of CUDA %d.%d", driver / 1000, driver % 1000 / 10);
  if (const int number = runtime / 1000 == 12 ? 530 : runtime / 1000 == 13 ? 580 : 0)
    std::snprintf(linux_driver, sizeof linux_driver, " (on Linux %d or newer)", number);
  return fail(error, DR_E_DEVICE, "place: this library needs a driver of CUDA %d.%d or newer%s; here %s",
              runtime / 1000, runtime / 1000 == 12, linux_driver, found);
}

}  // namespace dr
