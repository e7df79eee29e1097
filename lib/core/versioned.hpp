// Structs of the ABI in the version of their owner (VERSIONING.md). A struct begins with its size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/error.hpp"
#include "core/first_sizes.hpp"

namespace dr {

inline size_t size_of_struct(const void* what) {
  size_t size;
  std::memcpy(&size, what, sizeof size);
  return size;
}

// Far above the size of every struct: a larger size is uninitialised memory.
inline constexpr size_t struct_size_max = 4096;

// The smallest size with a byte of a field: enough for structs that are written only as far as they reach.
inline constexpr size_t struct_size_min = sizeof(size_t) + 1;

// Checks that a struct has a size from `least` to `room` (an array's stride), and zeros after the bytes that this
// library knows. type: its name, for the error.
dr_status check_struct(const void* from, size_t least, size_t known, size_t room, const char* what, dr_error& error,
                       const char* type = nullptr);

// A caller's struct converted to this library's version: missing fields are zero. NULL: all zero.
template <class T>
dr_status read_struct(const void* from, const char* what, T& out, dr_error& error, size_t room = struct_size_max) {
  if (!from) {
    out = T{};
    return DR_OK;
  }
  if (const dr_status s = check_struct(from, first_of<T>.size, sizeof(T), room, what, error, first_of<T>.name))
    return s;
  const size_t size = size_of_struct(from);
  if (size < sizeof out) out = T{};
  std::memcpy(&out, from, size < sizeof out ? size : sizeof out);
  return DR_OK;
}

// Copies a struct to the caller's, as far as the caller's version reaches; its struct_size does not change.
template <class T>
void write_struct(const T& from, void* to) {
  size_t size = size_of_struct(to);
  if (size > sizeof from) size = sizeof from;
  if (size > sizeof size)
    std::memcpy(static_cast<char*>(to) + sizeof size, reinterpret_cast<const char*>(&from) + sizeof size,
                size - sizeof size);
}

}  // namespace dr
