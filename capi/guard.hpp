// What stands between the ABI and the engine: no exception gets out, the caller's floating-point environment comes back.
#pragma once

#include <cfenv>
#include <exception>
#include <new>

#include "core/error.hpp"

namespace dr {

// Frameworks flush denormals and change rounding; bytes must not depend on it.
class default_environment {
 public:
  default_environment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~default_environment() { std::fesetenv(&saved_); }
  default_environment(const default_environment&) = delete;
  default_environment& operator=(const default_environment&) = delete;

 private:
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

}  // namespace dr
