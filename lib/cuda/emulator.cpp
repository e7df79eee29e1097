// A GPU emulated on the CPU: blocks in shuffled order, lanes in shuffled order, shared memory poisoned before each
// block. It tests all that does not depend on timing or warps: barriers, bounds, counts of launches, and all bytes.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/device.hpp"
#include "cuda/strands.hpp"
#include "primitive/block.hpp"
#include "primitive/rng.hpp"

namespace dr {
namespace {

// 0 … n-1, shuffled (Fisher, Yates) unless seed is 0.
void set_order(std::vector<uint32_t>& order, uint32_t n, uint64_t seed) {
  order.resize(n);
  std::iota(order.begin(), order.end(), 0u);
  if (seed)
    for (uint32_t i = n; i > 1; --i) std::swap(order[i - 1], order[draw(seed, i) % i]);
}

// The memory of a thread's launches. It is there from its first launch on and reused, because tests count allocations, and a
// GPU allocates nothing.
struct launch_memory {
  std::vector<uint32_t> blocks, lanes, descending, dealt;
  std::vector<std::byte> shared;

  launch_memory() : shared(1 << 16) {
    blocks.reserve(1 << 14);
    for (std::vector<uint32_t>* const of_lanes : {&lanes, &descending, &dealt}) of_lanes->reserve(1024);
  }

  static launch_memory& own() {
    static thread_local launch_memory room;
    return room;
  }
};

thread_local const char* last = "";

// Up to 63 microseconds, mostly none.
void nap(uint64_t key) {
  if (key % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(key >> 58));
}

// As on a small GPU. More blocks run at once, as on a real one.
constexpr uint32_t emulated_processors = 3;

class emulated_device final : public device {
 public:
  explicit emulated_device(uint64_t seed) : seed_(seed) {}

  dr_status launch(void* stream, const dr_kernel& kernel, uint32_t blocks, const void* args, bool beside) override {
    if (!emulator().swaps) return run(stream, kernel, blocks, args);
    if (!beside)
      if (const dr_status status = run_held()) return status;
    const auto* const bytes = static_cast<const std::byte*>(args);
    held_.push_back({stream, &kernel, blocks, {bytes, bytes + kernel.args_size}});
    return DR_OK;
  }

  dr_status run(void* stream, const dr_kernel& kernel, uint32_t blocks, const void* args) {
    const emulator_control& control = emulator();
    last = "unknown kernel, or diverged lanes, on the emulated device";
    if (!kernel.host) return DR_E_UNSUPPORTED;
    if (control.refused_kernel && std::strcmp(control.refused_kernel, kernel.name) == 0) {
      last = "refused, on the emulated device";
      return DR_E_DEVICE;
    }
    if (control.stream_seen) control.stream_seen("launch", stream, nullptr);
    if (control.only_counts) {
      if (control.seen) control.seen(kernel, blocks);
      return DR_OK;
    }
    const uint64_t key = seed_ ? combine(seed_, launches_++) : 0;
    launch_memory& room = launch_memory::own();
    const auto &order = room.blocks, &lanes = room.lanes, &descending = room.descending;
    set_order(room.blocks, blocks, key);
    set_order(room.lanes, kernel.lanes, seed_ % 3 == 2 ? 0 : key);
    room.descending.assign(lanes.rbegin(), lanes.rend());
    // As on a GPU, blocks of one launch may run concurrently; look-back only requires that they begin in ticket order.
    const uint32_t threads = std::max(1u, std::min(control.threads, blocks));
    std::atomic<bool> parted{false};
    for (uint32_t phase = 0; phase < std::max(1u, kernel.grid_phases); ++phase) {
      std::atomic<uint32_t> next{0};
      const auto work = [&] {
        launch_memory& own = launch_memory::own();
        own.shared.resize(std::max<size_t>(own.shared.size(), kernel.shared_size + 16));
        // At the end of the memory, so that a sanitizer reports accesses past it.
        std::byte* const at = own.shared.data() + own.shared.size() - kernel.shared_size;
        const std::span shared{at - reinterpret_cast<uintptr_t>(at) % 16, kernel.shared_size};
        strands split(kernel, std::min(control.strands, kernel.lanes));
        for (uint32_t i = next++; i < blocks; i = next++) {
          if (control.jitter && threads > 1) nap(combine(control.jitter, combine(key, i)));
          std::memset(shared.data(), 0xa5, shared.size());
          emulated_grid grid;
          grid.blocks = blocks;
          grid.shared = shared;
          if (control.strands) {
            set_order(own.dealt, kernel.lanes, combine(seed_ + 1, i));
            const uint64_t jitter = control.jitter ? combine(control.jitter, combine(key, i)) : 0;
            if (parted || !split.run(grid, own.dealt, order[i], phase, args, jitter)) parted = true;
          } else {
            if (seed_) grid.lane_order = i % 2 ? lanes : descending;
            kernel.host(&grid, order[i], phase, args);
          }
        }
      };
      std::vector<std::thread> others;
      for (uint32_t t = 1; t < threads; ++t) others.emplace_back(work);
      work();
      for (std::thread& t : others) t.join();
    }
    if (control.seen) control.seen(kernel, blocks);
    return parted ? DR_E_INTERNAL : DR_OK;
  }

  dr_status sort(void* stream, const dr_sort& s) override {
    touch("sort", stream);
    if (const dr_status status = load_sort(s)) return status;
    if (s.n > 0x7fffffff) return DR_E_UNSUPPORTED;
    if (emulator().only_counts) return DR_OK;
    // Made stable by the position, in the other buffer: std::stable_sort would allocate.
    uint32_t* const order = s.other_values;
    std::iota(order, order + s.n, 0u);
    const uint64_t mask = s.bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << s.bits) - 1;
    std::sort(order, order + s.n, [&](uint32_t a, uint32_t b) {
      const uint64_t x = s.keys[a] & mask, y = s.keys[b] & mask;
      return x != y ? x < y : a < b;
    });
    for (uint64_t i = 0; i < s.n; ++i) s.other_keys[i] = s.keys[order[i]];
    for (uint64_t i = 0; i < s.n; ++i) s.keys[i] = s.values[order[i]];
    for (uint64_t i = 0; i < s.n; ++i) s.values[i] = static_cast<uint32_t>(s.keys[i]);
    std::copy(s.other_keys, s.other_keys + s.n, s.keys);
    std::memset(s.temp, 0xa5, s.temp_size);
    std::memset(s.other_values, 0xa5, 4 * s.n);
    return DR_OK;
  }

  dr_status clear(void* stream, void* to, uint64_t size) override {
    touch("clear", stream);
    if (size && !emulator().only_counts) std::memset(to, 0, size);
    return DR_OK;
  }
  dr_status copy(void* stream, void* to, const void* from, uint64_t size) override {
    touch("copy", stream);
    if (size && !emulator().only_counts) std::memmove(to, from, size);
    return DR_OK;
  }
  // Enqueued work is done at once, so an event is only an address.
  dr_status record(void* event, void* stream) override {
    touch("record", stream, event);
    return DR_OK;
  }
  dr_status follow(void* stream, void* event) override {
    touch("follow", stream, event);
    return DR_OK;
  }
  dr_status wait(void* stream) override {
    touch("wait", stream);
    return DR_OK;
  }
  dr_status wait_event(void* event) override {
    touch("wait_event", nullptr, event);
    return DR_OK;
  }
  void* make_event() override { return new char; }
  void drop_event(void* event) override { delete static_cast<char*>(event); }
  void* allocate(uint64_t size) override {
    void* const memory = size > SIZE_MAX / 2 ? nullptr : std::aligned_alloc(256, (size + 255) / 256 * 256);
    if (memory) std::memset(memory, 0xa5, (size + 255) / 256 * 256);
    return memory;
  }
  void release(void* memory) override { std::free(memory); }
  void* allocate_host(uint64_t size) override { return allocate(size); }
  void release_host(void* memory) override { std::free(memory); }
  bool is_done(void*) override { return !emulator().lags; }
  void load(const dr_kernel&) override {}
  uint32_t processors() const override { return emulated_processors; }
  dr_status load_sort(const dr_sort& s) override {
    const uint64_t asked = emulator().sort_temp ? emulator().sort_temp(s.n) : dr_sort_temp(s.n);
    if (asked <= s.temp_size) return DR_OK;
    last = "a sort asks for more memory than dr_sort_temp";
    return DR_E_UNSUPPORTED;
  }
  const char* reason() const override { return last; }

 private:
  void touch(const char* what, void* stream, void* event = nullptr) {
    (void)run_held();
    if (emulator().stream_seen) emulator().stream_seen(what, stream, event);
  }
  dr_status run_held() {
    dr_status status = DR_OK;
    for (; !held_.empty(); held_.pop_back()) {
      const held& last = held_.back();
      if (!status) status = run(last.stream, *last.kernel, last.blocks, last.args.data());
    }
    return status;
  }

  // With emulator_control::swaps the last launch, and those beside it. (Of one thread.)
  struct held {
    void* stream;
    const dr_kernel* kernel;
    uint32_t blocks;
    std::vector<std::byte> args;
  };
  std::vector<held> held_;
  const uint64_t seed_;
  std::atomic<uint64_t> launches_{0};
};

}  // namespace

emulator_control& emulator() {
  static emulator_control control;
  return control;
}

// One device per seed, until the process ends.
device* emulated(int32_t seed) {
  static std::mutex mutex;
  static auto& all = *new std::unordered_map<int32_t, std::unique_ptr<device>>;  // contexts may end after main
  std::lock_guard lock(mutex);
  auto& d = all[seed];
  if (!d) d = std::make_unique<emulated_device>(static_cast<uint64_t>(static_cast<uint32_t>(seed)));
  return d.get();
}

}  // namespace dr
