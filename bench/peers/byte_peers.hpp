// General compressors with one interface: bytes to bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace dr::bench {

struct byte_peer {
  std::string name, of;  // "zstd -1", "Zstandard 1.5.4"
  std::string missing;
  size_t (*bound)(size_t size) = nullptr;
  size_t (*compress)(const void* src, size_t size, void* dst, size_t capacity, void* state) = nullptr;  // 0: failed
  bool (*expand)(const void* src, size_t size, void* dst, size_t expected, void* state) = nullptr;
  std::shared_ptr<void> state{};

  size_t pack(const void* src, size_t size, std::vector<uint8_t>& to) const {
    const size_t made = compress(src, size, to.data(), to.size(), state.get());
    if (made == 0) throw std::runtime_error(name + " failed");
    return made;
  }
};

// zstd -1, libdeflate -1, zlib -6 and lz4.
std::vector<byte_peer> byte_peers();

// Blosc shuffles elements of 4 bytes itself.
std::vector<byte_peer> blosc_peers();

}  // namespace dr::bench
