// What stands between the ABI and the engine: no exception gets out, the caller's floating-point environment comes back.
#pragma once

#include <cfenv>
#include <cstdint>
#include <exception>
#include <new>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/error.hpp"

namespace dr {

// Frameworks flush denormals and change rounding; bytes must not depend on it. Where the environment is the default one but for flags,
// as mostly, it stays: loading it whole takes longer than a small call does. The flags that were raised go with us.
class default_environment {
 public:
  default_environment() {
#if defined(__x86_64__)
    flags_ = _mm_getcsr();
    uint16_t x87;
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    is_default_ = (flags_ & ~0x3fu) == 0x1f80 && x87 == 0x037f;
#endif
    if (is_default_) return;
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~default_environment() {
    if (!is_default_) std::fesetenv(&saved_);
#if defined(__x86_64__)
    // (No code of ours is x87's, so its flags are as they were.)
    else if (_mm_getcsr() != flags_)
      _mm_setcsr(flags_);
#endif
  }
  default_environment(const default_environment&) = delete;
  default_environment& operator=(const default_environment&) = delete;

 private:
  bool is_default_ = false;
#if defined(__x86_64__)
  uint32_t flags_;
#endif
  std::fenv_t saved_;
};

template <class F>
dr_status guarded(dr_error& error, F&& f) noexcept {
  try {
    default_environment environment;
    return f();
  } catch (const std::bad_alloc&) {
    return fail(error, DR_E_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    return fail(error, DR_E_INTERNAL, "unexpected: %s", e.what());
  } catch (...) {
    return fail(error, DR_E_INTERNAL, "unexpected exception");
  }
}

// A struct of the caller's version as one of ours: what it lacks is zero.
template <class T>
T read_struct(const void* from) {
  T out{};
  if (!from) return out;
  size_t size;
  std::memcpy(&size, from, sizeof size);
  std::memcpy(&out, from, size < sizeof out ? size : sizeof out);
  return out;
}

// Whether a caller's struct says how large it is.
inline bool has_size(const void* what) {
  size_t size;
  std::memcpy(&size, what, sizeof size);
  return size > sizeof size;
}

// The other way, as much as the caller's version has room for; its struct_size stays.
template <class T>
void write_struct(const T& from, void* to) {
  size_t size;
  std::memcpy(&size, to, sizeof size);
  if (size > sizeof from) size = sizeof from;
  if (size > sizeof size)
    std::memcpy(static_cast<char*>(to) + sizeof size, reinterpret_cast<const char*>(&from) + sizeof size,
                size - sizeof size);
}

}  // namespace dr
