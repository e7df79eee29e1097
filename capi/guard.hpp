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
