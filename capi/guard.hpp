// The boundary between the ABI and the engine: no exception gets out, the caller's floating-point environment comes
// back.
#pragma once

#include <cfenv>
#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/error.hpp"

namespace dr {

// Frameworks flush denormals and change rounding; bytes must not depend on it. If only exception flags differ from the
// default, the environment stays (loading all of it costs more than a small call), and the flags are restored at the
// end.
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
  } catch (const std::length_error&) {  // of a list that no memory holds
    return fail(error, DR_E_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    return fail(error, DR_E_INTERNAL, "unexpected: %s", e.what());
  } catch (...) {
    return fail(error, DR_E_INTERNAL, "unexpected exception");
  }
}

// For functions that have no context: the error goes to the caller's dr_error, and so does a note of what went well.
template <class F>
dr_status reported(dr_error* out, F&& f) noexcept {
  dr_error error = no_error();
  const dr_status status = guarded(error, [&] { return f(error); });
  const bool note = error.code == DR_OK && *error.message;
  if (status || note) hand_over(error, out);
  return status;
}

}  // namespace dr
