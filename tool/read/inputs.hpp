// The inputs of `deepreduce compare`: gradients in .npy, .npz, .safetensors or raw files, or synthetic ones.
//
// Files are treated as hostile: sizes are checked against the file before memory is allocated, products are checked, and
// inconsistent files are rejected. Nothing is executed (no pickles).
// Large files are mapped, and elements that need no conversion are not copied (file_bytes.hpp, tensor_bytes.hpp).
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

// Of an array in a file. NumPy's own limit: 32, and 64 since 2.0.
constexpr size_t dimensions_max = 64;

struct tensor {
  std::string input;  // the argument: a file's path or a `synth:` text
  std::string name;   // of the member, by printable(); "" if the file holds one array
  dtype type = dtype::f32;
  std::vector<uint64_t> shape;  // () is one element
  tensor_bytes data;            // little-endian, C order
  uint64_t elements = 0;
  bool sparse = false;  // the file holds it as a sparse tensor
  std::optional<conversion> converted = {};
  std::string raw_name = {};                       // of the member, as in the file
  std::vector<std::vector<uint64_t>> joined = {};  // shapes of the tensors that this one joins
};

// "FILE: TENSOR: byte OFFSET: the error, with the value; what to do", without OFFSET if no single byte is wrong. Offsets
// are those of the file, or of the unpacked member inside an .npz.
struct input_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The array's element type is unsupported. An .npz and a directory skip it.
struct not_float : input_error {
  using input_error::input_error;
};

// How arrays are read. `cast`: the type of all elements, integers and booleans included; without it float64 becomes
// float32, other floats are unchanged, and other types throw not_float.
struct reading {
  reading(std::vector<std::string>* notes = nullptr, std::optional<dtype> cast = {}) : notes(notes), cast(cast) {}
  std::vector<std::string>* notes;  // receives a line per skipped array; may be null
  std::optional<dtype> cast;
  std::shared_ptr<const void> owner;  // of the file's bytes, which elements may share. Null: they are copied
  std::string* made_of = nullptr;     // receives the file of which an archive was made; may be null
};

// Whether files with this suffix (".npz") are read.
bool is_read(const std::string& extension);

// Reads one argument of the command line:
//   X.npy  X.npz  X.safetensors        float16, bfloat16, float32, float64; with a cast integers and booleans
//   X.npz of scipy.sparse.save_npz     a CSR, CSC or COO matrix; and sparse tensors in coordinates (sparse_npz.hpp)
//   X.bin  X.f32  X.raw                little-endian float32 from the first byte to the last
//   a directory                        every file of these names in it, by name; folders in it are not entered
//   synth:d=...,support=...            see synth.hpp
// `notes` also receive a line per conversion. Throws input_error.
std::vector<tensor> read_input(const std::string& argument, std::vector<std::string>* notes = nullptr,
                               std::optional<dtype> cast = {});

// ---- Shared by the readers -----------------------------------------------------------------------------------

// Throws input_error with the text described there. `where` names the file and, if there is one, the tensor.
[[noreturn]] inline void refuse(std::string_view where, std::string_view what) {
  throw input_error(std::string(where) + ": " + std::string(what));
}
template <class Error = input_error>
[[noreturn]] void refuse(std::string_view where, uint64_t offset, std::string_view what) {
  throw Error(std::string(where) + ": byte " + std::to_string(offset) + ": " + std::string(what));
}

// Text from a file, safe for a terminal and for JSON: control characters, quotes and non-ASCII are escaped.
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

// bytes[at, at + size), or the error that the file ends too early. `what` names what was read.
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

// A tensor without its data, for an array of `size` bytes at `offset`; sets `converted` if elements need conversion.
// Its `input` is `where`. Throws not_float for integers and booleans that `how` does not cast.
tensor unfilled_tensor(stored kind, std::vector<uint64_t> shape, uint64_t size, std::string_view where, uint64_t offset,
                       const reading& how);

// The array whose elements are exactly `bytes`.
tensor make_tensor(stored kind, std::vector<uint64_t> shape, std::span<const std::byte> bytes, std::string_view where,
                   uint64_t offset, const reading& how);

// A raw file: float32, one dimension.
tensor parse_raw(std::span<const std::byte> file, std::string_view where, const reading& how = {});

}  // namespace dr::compare
