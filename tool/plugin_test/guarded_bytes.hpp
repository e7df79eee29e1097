// Memory that faults on the first byte outside it, and recovery from the fault. For the property tests and for `deepreduce
// test-plugin`.
#pragma once

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dr::properties {

// Whether bytes end at the guard page after them, or start at the one before them.
enum class placement { back, front };

class guarded_bytes {
 public:
  guarded_bytes() = default;
  // `gap` bytes (more if alignment requires it) separate them from the guard page after them.
  explicit guarded_bytes(size_t size, size_t alignment = 1, size_t gap = 0, placement where = placement::back)
      : size_(size), alignment_(alignment), gap_(gap), where_(where) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    inside_ = (size + gap + alignment + page - 1) / page * page;
    mapped_ = inside_ + 2 * page;
    auto& spare = spares()[inside_];
    if (spare.empty()) {
      void* const all = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (all == MAP_FAILED) throw std::bad_alloc();
      first_ = static_cast<uint8_t*>(all) + page;
      if (mprotect(first_, inside_, PROT_READ | PROT_WRITE)) throw std::bad_alloc();
    } else {
      first_ = spare.back();
      spare.pop_back();
    }
    std::memset(first_, canary, inside_);
  }
  guarded_bytes(guarded_bytes&& other) noexcept { *this = std::move(other); }
  guarded_bytes& operator=(guarded_bytes&& other) noexcept {
    std::swap(first_, other.first_);
    std::swap(mapped_, other.mapped_);
    std::swap(inside_, other.inside_);
    std::swap(size_, other.size_);
    std::swap(alignment_, other.alignment_);
    std::swap(gap_, other.gap_);
    std::swap(where_, other.where_);
    return *this;
  }
  ~guarded_bytes() {
    if (!first_) return;
    if (auto& spare = spares()[inside_]; inside_ <= max_pooled)
      spare.push_back(first_);
    else
      munmap(first_ - (mapped_ - inside_) / 2, mapped_);
  }

  size_t size() const { return size_; }
  uint8_t* data() const {
    return where_ == placement::front ? first_ : first_ + (inside_ - gap_ - size_) / alignment_ * alignment_;
  }
  std::span<uint8_t> bytes() const { return {data(), size_}; }
  std::span<const uint8_t> first(size_t n) const { return {data(), n}; }
  void fill(uint8_t with) { std::memset(data(), with, size_); }
  void fill(std::span<const uint8_t> with) {
    if (!with.empty()) std::memcpy(data(), with.data(), with.size());
  }
  // Shrinks to fewer bytes, moved up to the guard page.
  void resize(size_t size) {
    fill(canary);
    size_ = size;
  }

  // Whether the padding, which the guard pages do not cover, is unchanged.
  bool intact() const { return clean(first_, data()) && clean(data() + size_, first_ + inside_); }

 private:
  static constexpr uint8_t canary = 0xc9;
  static constexpr size_t max_pooled = size_t{1} << 16;
  // For reuse: mapping memory costs more than coding a small stream.
  static std::unordered_map<size_t, std::vector<uint8_t*>>& spares() {
    static thread_local auto* const all = new std::unordered_map<size_t, std::vector<uint8_t*>>;  // outlives statics
    return *all;
  }
  static bool clean(const uint8_t* from, const uint8_t* to) {
    return from == to || (*from == canary && std::memcmp(from, from + 1, static_cast<size_t>(to - from) - 1) == 0);
  }

  uint8_t* first_ = nullptr;
  size_t mapped_ = 0, inside_ = 0, size_ = 0, alignment_ = 1, gap_ = 0;
  placement where_ = placement::back;
};

// Handles a fault first; returns true if handled. Called with nullptr at the end of stays_inside (changing_bytes.hpp).
inline bool (*fault_watcher)(siginfo_t* info, void* context) = nullptr;

// Runs f. Returns false if it touched a guard page, which aborts f.
template <class F>
bool stays_inside(F&& f) {
  static thread_local sigjmp_buf* landing = nullptr;
  struct trap {
    struct sigaction segv, bus;
    trap() {
      struct sigaction action {};
      action.sa_sigaction = [](int signal_number, siginfo_t* info, void* context) {
        if (fault_watcher && fault_watcher(info, context)) return;
        if (landing) siglongjmp(*landing, 1);
        signal(signal_number, SIG_DFL);  // another thread or another fault: crash
      };
      action.sa_flags = SA_ONSTACK | SA_NODEFER | SA_SIGINFO;  // so that there is no signal mask to save and restore
      sigaction(SIGSEGV, &action, &segv);
      sigaction(SIGBUS, &action, &bus);
    }
    ~trap() {
      landing = nullptr;
      if (fault_watcher) fault_watcher(nullptr, nullptr);
      sigaction(SIGSEGV, &segv, nullptr);
      sigaction(SIGBUS, &bus, nullptr);
    }
  } const caught;
  sigjmp_buf here;
  landing = &here;
  if (sigsetjmp(here, 0)) return false;
  f();
  return true;
}

}  // namespace dr::properties
