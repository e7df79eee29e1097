// tests/cuda/place.hpp where the CPU plays the GPU: the same names, over plain memory.
#pragma once

#include <deepreduce/deepreduce.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

namespace place {

inline constexpr bool on_cuda = false;

inline std::string absent() { return ""; }
inline std::string describe() { return "a device that the CPU plays"; }

inline void* allocate(size_t size) { return std::aligned_alloc(256, (size + 255) / 256 * 256 + 256); }
inline void release(void* memory) { std::free(memory); }
inline void put(void* to, const void* from, size_t size) {
  if (size) std::memcpy(to, from, size);
}
inline void get(void* to, const void* from, size_t size) { put(to, from, size); }
inline void fill(void* to, uint8_t byte, size_t size) { std::memset(to, byte, size); }
inline std::string trouble() { return ""; }
inline void start_profile() {}
inline void stop_profile() {}

class stream {
 public:
  explicit stream(int32_t seed = 1) : seed_(seed) {}
  dr_place at(uint32_t flags = 0) const { return {sizeof(dr_place), DR_PLACE_EMULATED, seed_, nullptr, flags, 0}; }
  void wait() const {}

 private:
  int32_t seed_;
};

// Nothing is recorded: a replay calls again.
class graph {
 public:
  template <class F>
  graph(const stream&, F&& calls) : calls_(std::forward<F>(calls)) {}
  void launch(const stream&) const { calls_(); }
  size_t kernels() const { return 0; }

 private:
  std::function<void()> calls_;
};

// Time on a stream between two marks.
class stopwatch {
 public:
  void start(const stream&) { begin_ = clock::now(); }
  void stop(const stream&) { end_ = clock::now(); }
  double microseconds() const { return std::chrono::duration<double, std::micro>(end_ - begin_).count(); }

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point begin_, end_;
};

}  // namespace place
