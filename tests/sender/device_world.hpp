// What tests of senders on a device share.
#pragma once

#include <string>
#include <vector>

#include "cuda/device.hpp"
#include "sender_world.hpp"

namespace sending {

inline void spoil(world& w, size_t rank, size_t tensor, size_t element) {
  auto x = w.in(rank, tensor);
  x[element] = std::nanf("");
  w.set(rank, tensor, x);
}

inline bool same_residuals(const world& x, const world& y, size_t rank) {
  for (size_t t = 0; t < x.tensors.size(); ++t)
    if (x.residual(rank, t) != y.residual(rank, t)) return false;
  return true;
}

inline uint64_t waits_of(const rank& r) {
  dr_sender_info info{};
  info.struct_size = sizeof info;
  REQUIRE(dr_sender_describe(r.sender, &info, nullptr) == DR_OK);
  return info.waits;
}

// What is given and not yet got is in the residuals: of all tensors.
struct balance {
  double given = 0, got = 0;

  static double sum(const std::vector<float>& x) {
    double all = 0;
    for (const float v : x) all += v;
    return all;
  }
  void add_gradients(const world& w, size_t except = SIZE_MAX) {
    for (size_t t = 0; t < w.tensors.size(); ++t)
      for (size_t r = 0; r < w.ranks.size(); ++r)
        if (r != except) given += sum(w.in(r, t)) / static_cast<double>(w.ranks.size());
  }
  void add_means(const world& w) {
    for (size_t t = 0; t < w.tensors.size(); ++t) got += sum(w.out(0, t));
  }
  double gap(const world& w) const {
    double left = given - got;
    for (size_t t = 0; t < w.tensors.size(); ++t)
      for (size_t r = 0; r < w.ranks.size(); ++r) left -= sum(w.residual(r, t)) / static_cast<double>(w.ranks.size());
    return std::abs(left);
  }
};

// Counts what the emulated device is told, while it lives.
struct device_listener {
  size_t waits = 0, launches = 0;
  device_listener() {
    dr::emulator().stream_seen = [this](const char* what, void*, void*) {
      waits += std::string(what).starts_with("wait");
      launches += std::string(what) == "launch";
    };
  }
  ~device_listener() { dr::emulator().stream_seen = nullptr; }
  device_listener(const device_listener&) = delete;
  device_listener& operator=(const device_listener&) = delete;
};

}  // namespace sending
