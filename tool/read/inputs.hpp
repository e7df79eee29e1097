// What `deepreduce compare` reads: gradients in .npy, .npz, .safetensors or raw files, or made on the spot.
//
// Files are taken as hostile: a size is checked against the bytes that are there before memory is asked for,
// products are checked, and whatever disagrees with itself is refused. Nothing is executed (no pickles).
// Large files are mapped, and elements that need no conversion stay where they are (file_bytes.hpp, tensor_bytes.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert.hpp"
#include "tensor_bytes.hpp"

namespace dr::compare {

struct tensor {
  std::string input;  // the argument it came from: a file's path or a `synth:` text
  std::string name;   // of the member, as printable() has it; "" where the file holds one array
  dtype type = dtype::f32;
  std::vector<uint64_t> shape;  // () is one element
  tensor_bytes data;            // little-endian, C order
  uint64_t elements = 0;
  bool sparse = false;  // the file holds it as a sparse tensor
  std::optional<conversion> converted = {};
  std::string raw_name = {};  // of the member, as the file has it
};

// "FILE: TENSOR: byte OFFSET: what is wrong, with the value; what to do", without OFFSET where it is no byte that is wrong. Offsets
// are those of the file, but inside an .npz they are those of the unpacked member once it has been opened.
struct input_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The array may be well-formed, but its elements are of no type that is read. An .npz and a directory skip it.
struct not_float : input_error {
  using input_error::input_error;
};

// How arrays are read. `cast`: all become elements of this type, integers and booleans, too; without it float64 becomes
// float32, other floats stay what they are, and the rest is not_float.
struct reading {
  reading(std::vector<std::string>* notes = nullptr, std::optional<dtype> cast = {}) : notes(notes), cast(cast) {}
  std::vector<std::string>* notes;  // gets a line for each array that is skipped; null: nobody listens
  std::optional<dtype> cast;
  std::shared_ptr<const void> owner;  // of the file's bytes: elements may stay there. Null: they are copied
};

// Whether files whose names end so (".npz") are read.
bool is_read(const std::string& extension);

// Reads one argument of the command line:
//   X.npy  X.npz  X.safetensors        float16, bfloat16, float32, float64; with a cast integers and booleans
//   X.npz of scipy.sparse.save_npz     a CSR, CSC or COO matrix; and sparse tensors in coordinates (sparse_npz.hpp)
//   X.bin  X.f32  X.raw                little-endian float32 from the first byte to the last
//   a directory                        every file of these names in it, by name; folders in it are not entered
//   synth:d=...,support=...            see synth.hpp
// `notes` also get a line for what was converted. Throws input_error.
std::vector<tensor> read_input(const std::string& argument, std::vector<std::string>* notes = nullptr,
                               std::optional<dtype> cast = {});

// ---- What the readers share -----------------------------------------------------------------------------------

// Throws input_error with the text described there. `where` names the file and, where there is one, the tensor.
[[noreturn]] inline void refuse(std::string_view where, std::string_view what) {
  throw input_error(std::string(where) + ": " + std::string(what));
}
template <class Error = input_error>
[[noreturn]] void refuse(std::string_view where, uint64_t offset, std::string_view what) {
  throw Error(std::string(where) + ": byte " + std::to_string(offset) + ": " + std::string(what));
}

// Text from a file, made fit for a terminal and for JSON: controls, quotes and all that is not ASCII are escaped.
std::string printable(std::string_view text);

inline void note(std::vector<std::string>* notes, std::string text) {
  if (notes != nullptr) notes->push_back(std::move(text));
}

constexpr std::optional<uint64_t> checked_multiply(uint64_t a, uint64_t b) {
  if (b != 0 && a > UINT64_MAX / b) return std::nullopt;
  return a * b;
}

// The product of the shape. Zeros do not hide an overflow: no order of multiplying the others wraps either.
uint64_t count_elements(std::span<const uint64_t> shape, std::string_view where, uint64_t offset);

// bytes[at, at + size), or an error that says that the file ends too early. `what` says what was to be read.
std::span<const std::byte> take(std::span<const std::byte> bytes, uint64_t at, uint64_t size, std::string_view where,
                                std::string_view what);

template <class T>
T load_le(std::span<const std::byte> bytes, size_t at) {
  assert(at <= bytes.size() && sizeof(T) <= bytes.size() - at);
  std::array<std::byte, sizeof(T)> raw;
  std::memcpy(raw.data(), bytes.data() + at, sizeof(T));
  if constexpr (std::endian::native == std::endian::big) std::reverse(raw.begin(), raw.end());
  return std::bit_cast<T>(raw);
}

template <class T>
void store_le(std::span<std::byte> bytes, size_t at, T value) {
  assert(at <= bytes.size() && sizeof(T) <= bytes.size() - at);
  auto raw = std::bit_cast<std::array<std::byte, sizeof(T)>>(value);
  if constexpr (std::endian::native == std::endian::big) std::reverse(raw.begin(), raw.end());
  std::memcpy(bytes.data() + at, raw.data(), sizeof(T));
}

// A tensor without its data, of an array of `size` bytes that begin at `offset`; `converted` is set if the elements have to be.
// Its `input` is `where`. Throws not_float for integers and booleans that `how` does not cast.
tensor unfilled_tensor(stored kind, std::vector<uint64_t> shape, uint64_t size, std::string_view where, uint64_t offset,
                       const reading& how);

// The array whose elements are exactly `bytes`, likewise.
tensor make_tensor(stored kind, std::vector<uint64_t> shape, std::span<const std::byte> bytes, std::string_view where,
                   uint64_t offset, const reading& how);

// A raw file: float32, one dimension.
tensor parse_raw(std::span<const std::byte> file, std::string_view where, const reading& how = {});

}  // namespace dr::compare
