// The readers of array files, one a target (DR_READER): any bytes give arrays that hold together, or an input_error with a sentence.
#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "fuzz/script.hpp"
#include "fuzz/zip_check.hpp"
#include "tool/read/npy.hpp"
#include "tool/read/npz.hpp"
#include "tool/read/number.hpp"
#include "tool/read/safetensors.hpp"
#include "tool/read/synth.hpp"

namespace {

using namespace dr::compare;
using fuzz::wrong;
using file_bytes = std::span<const std::byte>;

constexpr std::string_view where = "x";

// (Of these and synth one is the target's.)
[[maybe_unused]] std::vector<tensor> npy(file_bytes file, const reading& how) { return {parse_npy(file, where, how)}; }
[[maybe_unused]] std::vector<tensor> npz(file_bytes file, const reading& how) { return parse_npz(file, where, how); }
[[maybe_unused]] std::vector<tensor> safetensors(file_bytes file, const reading& how) {
  return parse_safetensors(file, where, how);
}
[[maybe_unused]] std::vector<tensor> raw(file_bytes file, const reading& how) { return {parse_raw(file, where, how)}; }

// A count as `synth:` writes it, 5161M or 1.5e6; what is none of them counts as 0, and is refused by the reader.
double count_of(const char* text) {
  char* end = nullptr;
  const double x = std::strtod(text, &end);
  return x * (*end == 'k' ? 1e3 : *end == 'M' ? 1e6 : *end == 'G' ? 1e9 : 1);
}

// Elements are made at once, so of what asks for many the text alone is of interest; a few sizes at the limits are refused by it.
[[maybe_unused]] std::vector<tensor> synth(file_bytes file, const reading&) {
  const std::string text(reinterpret_cast<const char*>(file.data()), file.size());
  double d = 0;
  bool told = false;
  for (const std::string_view before : {":d=", ",d="})
    for (size_t at = text.find(before); at != std::string::npos; at = text.find(before, at + 1)) {
      d = std::max(d, count_of(text.data() + at + before.size()));
      told = true;
    }
  if (!told) d = 1e6;
  return d > 2e4 && d <= 0x1p40 ? std::vector<tensor>{} : std::vector{make_synth(text)};
}

bool printed(std::string_view text) {
  return std::ranges::all_of(text, [](unsigned char c) { return c >= 32 && c < 127; });
}

void judge(const tensor& t, const reading& how) {
  uint64_t elements = 1;
  for (const uint64_t extent : t.shape) elements *= extent;
  if (elements != t.elements || t.data.size() != t.elements * size_of(t.type)) wrong("shape, count and bytes disagree");
  if (!printed(t.name)) wrong("a name that is not printable");
  if (how.cast && t.type != *how.cast && !t.input.starts_with(synth_prefix)) wrong("another type than the cast's");
}

void read(const fuzz::bytes& file, std::optional<dtype> cast) {
  const fuzz::block held(file, 1);
  std::vector<std::string> notes;
  const reading how(&notes, cast);
  try {
    for (const tensor& t : DR_READER({reinterpret_cast<const std::byte*>(held.data()), held.size()}, how))
      judge(t, how);
  } catch (const input_error& error) {
    const std::string_view sentence = error.what();
    if (sentence.size() < 10 || !printed(sentence)) wrong("no sentence for a terminal:", error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::bytes given(data, data + size);
  fuzz::bytes fixed(given);
  zip_check::fix(fixed.data(), fixed.size());
  read(given, {});
  if (fixed != given) read(fixed, {});
  read(fixed, dtype::bf16);  // integers and booleans, too
  return 0;
}
