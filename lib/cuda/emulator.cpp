// A GPU that the CPU plays: blocks in shuffled order, lanes in shuffled order, shared memory poisoned before each block. It proves
// what does not depend on time or on a warp: barriers, bounds, counts of launches, and every byte.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cuda/device.hpp"
#include "primitive/block.hpp"
#include "primitive/rng.hpp"

namespace dr {
namespace {

// 0 … n-1, shuffled (Fisher, Yates) unless seed is 0.
std::vector<uint32_t> order_of(uint32_t n, uint64_t seed) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  if (seed)
    for (uint32_t i = n; i > 1; --i) std::swap(order[i - 1], order[draw(seed, i) % i]);
  return order;
}

class emulated_device final : public device {
 public:
  explicit emulated_device(uint64_t seed) : seed_(seed) {}

  dr_status launch(void*, const dr_kernel& kernel, uint32_t blocks, const void* args) override {
    if (!kernel.host) return DR_E_UNSUPPORTED;
    const emulator_control& control = emulator();
    const uint64_t key = seed_ ? combine(seed_, launches_++) : 0;
    const std::vector<uint32_t> order = order_of(blocks, key);
    const auto lanes = order_of(kernel.lanes, seed_ % 3 == 2 ? 0 : key);
    std::vector<uint32_t> descending(lanes.rbegin(), lanes.rend());
    // As on a GPU, blocks of one launch may run at the same time; look-back needs no more than that they begin in ticket order.
    const uint32_t threads = std::max(1u, std::min(control.threads, blocks));
    std::atomic<uint32_t> phases{0};
    for (uint32_t phase = 0; phase < std::max(1u, kernel.grid_phases); ++phase) {
      std::atomic<uint32_t> next{0};
      const auto work = [&] {
        std::vector<std::byte> room(kernel.shared_size + 16);
        const std::span shared{room.data() + (16 - reinterpret_cast<uintptr_t>(room.data()) % 16) % 16,
                               kernel.shared_size};
        for (uint32_t i = next++; i < blocks; i = next++) {
          std::memset(shared.data(), 0xa5, shared.size());
          emulated_grid grid;
          grid.blocks = blocks;
          if (seed_) grid.lane_order = i % 2 ? lanes : descending;
          grid.shared = shared;
          if (control.planted_kernel && std::strcmp(control.planted_kernel, kernel.name) == 0)
            grid.no_barrier = control.planted_phase;
          kernel.host(&grid, order[i], phase, args);
          uint32_t most = phases.load();
          while (grid.phases_seen > most && !phases.compare_exchange_weak(most, grid.phases_seen)) {
          }
        }
      };
      std::vector<std::thread> others;
      for (uint32_t t = 1; t < threads; ++t) others.emplace_back(work);
      work();
      for (std::thread& t : others) t.join();
    }
    if (control.seen) control.seen(kernel, blocks, phases);
    return DR_OK;
  }

  dr_status sort(void*, const dr_sort& s) override {
    if (s.temp_size < dr_sort_temp(s.n)) return DR_E_INTERNAL;
    std::vector<uint64_t> order(s.n);
    std::iota(order.begin(), order.end(), uint64_t{0});
    const uint64_t mask = s.bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << s.bits) - 1;
    std::stable_sort(order.begin(), order.end(),
                     [&](uint64_t a, uint64_t b) { return (s.keys[a] & mask) < (s.keys[b] & mask); });
    for (uint64_t i = 0; i < s.n; ++i) {
      s.other_keys[i] = s.keys[order[i]];
      s.other_values[i] = s.values[order[i]];
    }
    std::copy(s.other_keys, s.other_keys + s.n, s.keys);
    std::copy(s.other_values, s.other_values + s.n, s.values);
    std::memset(s.temp, 0xa5, s.temp_size);
    return DR_OK;
  }

  dr_status clear(void*, void* to, uint64_t size) override {
    if (size) std::memset(to, 0, size);
    return DR_OK;
  }
  dr_status copy(void*, void* to, const void* from, uint64_t size) override {
    if (size) std::memmove(to, from, size);
    return DR_OK;
  }
  dr_status wait(void*) override { return DR_OK; }
  void* allocate(uint64_t size) override {
    void* const memory = size > SIZE_MAX / 2 ? nullptr : std::aligned_alloc(256, (size + 255) / 256 * 256);
    if (memory) std::memset(memory, 0xa5, (size + 255) / 256 * 256);
    return memory;
  }
  void release(void* memory) override { std::free(memory); }
  uint32_t resident_blocks(const dr_kernel&) override { return 5; }
  const char* reason() const override { return "the emulated device has no such kernel"; }

 private:
  const uint64_t seed_;
  std::atomic<uint64_t> launches_{0};
};

}  // namespace

emulator_control& emulator() {
  static emulator_control control;
  return control;
}

// One a seed, for as long as the process lives.
device* emulated(int32_t seed) {
  static std::mutex mutex;
  static std::unordered_map<int32_t, std::unique_ptr<device>> all;
  std::lock_guard lock(mutex);
  auto& d = all[seed];
  if (!d) d = std::make_unique<emulated_device>(static_cast<uint64_t>(static_cast<uint32_t>(seed)));
  return d.get();
}

}  // namespace dr
