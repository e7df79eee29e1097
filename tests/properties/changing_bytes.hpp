// Bytes that change from one read of them to the next, as a frame in shared memory may.
#pragma once

#include "tool/plugin_test/guarded_bytes.hpp"

#if defined(__x86_64__) && defined(__linux__)
#define DR_CHANGING_BYTES 1
#include <ucontext.h>
#endif

#include <functional>

namespace dr::properties {

// Within the next stays_inside each instruction that touches the bytes has `change` called before: their pages cannot be touched, the fault opens
// them for a single step, and the trap behind it closes them. At most `most` times; then they stay open.
class changing_bytes {
 public:
  changing_bytes(const guarded_bytes& bytes, size_t most, std::function<void()> change);
  ~changing_bytes();
  changing_bytes(const changing_bytes&) = delete;
  changing_bytes& operator=(const changing_bytes&) = delete;

  size_t reads() const { return reads_; }

 private:
#if defined(DR_CHANGING_BYTES)
  static changing_bytes*& now() {
    static changing_bytes* one = nullptr;
    return one;
  }
  void open(bool open) { mprotect(first_, size_, open ? PROT_READ | PROT_WRITE : PROT_NONE); }
  bool fault(const siginfo_t* info, void* context) {
    if (!info) return open(true), true;
    const auto* const at = static_cast<const uint8_t*>(info->si_addr);
    if (at < first_ || at >= first_ + size_) return false;
    open(true);
    if (reads_ == most_) return true;
    ++reads_;
    change_();
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] |= trap_flag;
    return true;
  }
  static constexpr greg_t trap_flag = 0x100;

  struct sigaction before_ {};
  uint8_t* first_ = nullptr;
  size_t size_ = 0, most_ = 0;
  std::function<void()> change_;
#endif
  size_t reads_ = 0;
};

#if defined(DR_CHANGING_BYTES)
inline changing_bytes::changing_bytes(const guarded_bytes& bytes, size_t most, std::function<void()> change)
    : most_(most), change_(std::move(change)) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<uintptr_t>(bytes.data());
  first_ = reinterpret_cast<uint8_t*>(begin / page * page);
  size_ = (begin + bytes.size() + page - 1) / page * page - begin / page * page;
  now() = this;
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  action.sa_sigaction = [](int, siginfo_t*, void* context) {
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~trap_flag;
    if (now()) now()->open(false);
  };
  sigaction(SIGTRAP, &action, &before_);
  fault_watcher = [](siginfo_t* info, void* context) { return now() && now()->fault(info, context); };
  open(false);
}
inline changing_bytes::~changing_bytes() {
  fault_watcher = nullptr;
  now() = nullptr;
  open(true);
  sigaction(SIGTRAP, &before_, nullptr);
}
#else
inline changing_bytes::changing_bytes(const guarded_bytes&, size_t, std::function<void()>) {}
inline changing_bytes::~changing_bytes() = default;
#endif

}  // namespace dr::properties
