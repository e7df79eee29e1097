// A subject of bench/peers: a codec of index sets or values, with its decoder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace dr::bench {

inline constexpr const char* reference = "reference";  // plain code of this benchmark

template <class T>
struct candidate {
  std::string name;                  // "golomb(block=9)", "zstd -1 of LEB128 gaps"
  std::string of;                    // "deepreduce", `reference`, or a library and its version
  std::string missing;               // not empty: the reason why it cannot be measured
  std::function<uint64_t()> encode;  // bytes
  std::function<void()> decode;      // decodes the output of encode to `out`
  std::shared_ptr<std::vector<T>> out{};
  std::shared_ptr<std::vector<T>>
      expected{};  // what decode has to give, if that is not the input: a codec that tells another support
  std::shared_ptr<std::vector<uint32_t>> order{};  // out[j] is element order[j] of the input
  bool exact = true;                               // index sets always are
};

using index_candidate = candidate<uint32_t>;
using value_candidate = candidate<float>;

// A sorted index set below d.
struct index_set {
  std::string name;
  uint64_t d;
  std::vector<uint32_t> indices;
  double local_entropy = 0;  // bits an index where the local density is known; 0: it is not
};

struct value_set {
  std::string name;
  uint64_t d;
  std::vector<float> values;
};

inline std::string not_here(const char* library) { return std::string("built without ") + library; }

// Peers and plain reference code; a missing library has a row that states it.
std::vector<index_candidate> index_peers(const index_set& set);
std::vector<value_candidate> value_peers(const value_set& set);

// Every codec in the library's list with its defaults, and `settings` ("golomb(block=9)", "delta_varint+huffman").
std::vector<index_candidate> registered_index_codecs(const index_set& set, std::span<const std::string> settings);
std::vector<value_candidate> registered_value_codecs(const value_set& set, std::span<const std::string> settings);

}  // namespace dr::bench
