// The bytes of a file, which large files do not copy: they are mapped.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace dr::compare {

struct file_bytes {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;  // keeps the bytes at their address
};

// All of a regular file. Throws input_error if it cannot be read, std::bad_alloc if it does not fit in memory.
// If another program truncates a mapped file later, the process reports it and exits with status 2.
file_bytes open_file(const std::string& path);

}  // namespace dr::compare
