#include "npy.hpp"

#include <fmt/core.h>
#include <iterator>
#include <utility>

#include "number.hpp"

namespace dr::compare {

namespace {

constexpr std::string_view magic = "\x93NUMPY";

struct header {
  std::string descr;
  bool fortran_order = false;
  std::vector<uint64_t> shape;
};

// The part of a Python literal that NumPy writes: one dict of a string, a bool and a tuple of integers.
class literal {
 public:
  literal(std::string_view text, uint64_t offset, std::string_view where)
      : text_(text), offset_(offset), where_(where) {}

  header read() {
    header result;
    bool have_descr = false, have_order = false, have_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr" && !std::exchange(have_descr, true)) {
        result.descr = descr();
      } else if (key == "fortran_order" && !std::exchange(have_order, true)) {
        result.fortran_order = boolean();
      } else if (key == "shape" && !std::exchange(have_shape, true)) {
        result.shape = tuple();
      } else {
        fail(fmt::format("key '{}' is unknown or duplicate", printable(key)));
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (!have_descr || !have_order || !have_shape) fail("the header lacks one of descr, fortran_order and shape");
    peek();
    if (at_ != text_.size()) fail("the header continues after its dict");
    return result;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    refuse(where_, offset_ + at_, fmt::format("{}; the file is damaged or was not written by NumPy", what));
  }

  // Skips spaces; '\0' at the end.
  char peek() {
    at_ = std::min(text_.find_first_not_of(" \t\n\r", at_), text_.size());
    return at_ == text_.size() ? '\0' : text_[at_];
  }

  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!accept(c)) fail(fmt::format("expected '{}', found '{}'", c, printable(text_.substr(at_, 1))));
  }

  std::string string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') expect('\'');
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail("a string does not end");
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    if (inside.find('\\') != std::string_view::npos) fail("a string with an escape");
    at_ = end + 1;
    return std::string(inside);
  }

  std::string descr() {
    if (peek() == '[' || peek() == '(') {
      refuse<not_float>(where_, offset_ + at_, "a structured dtype; save each field as an array of its own");
    }
    return string();
  }

  bool boolean() {
    peek();
    for (const std::string_view word : {"True", "False"}) {
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return word == "True";
      }
    }
    fail("expected True or False");
  }

  std::vector<uint64_t> tuple() {
    std::vector<uint64_t> values;
    expect('(');
    while (!accept(')')) {
      if (values.size() == dimensions_max) fail(fmt::format("more than {} dimensions", dimensions_max));
      values.push_back(integer());
      if (accept(',')) continue;
      if (values.size() == 1) fail("(n) is not a tuple");
      expect(')');
      break;
    }
    return values;
  }

  uint64_t integer() {
    peek();
    const size_t begin = at_;
    uint64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      const auto digit = static_cast<uint64_t>(text_[at_] - '0');
      const auto shifted = checked_multiply(value, 10);
      if (!shifted || *shifted > UINT64_MAX - digit) fail("an extent is beyond 64 bits");
      value = *shifted + digit;
    }
    if (at_ == begin) fail("expected an extent");
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2 wrote its long integers so
    return value;
  }

  std::string_view text_;
  size_t at_ = 0;
  uint64_t offset_;  // of the text in the file
  std::string_view where_;
};

constexpr std::pair<std::string_view, stored> descrs[] = {
    {"<f4", stored::f32},     {"<f2", stored::f16}, {"<f8", stored::f64}, {"<V2", stored::bf16}, {"|V2", stored::bf16},
    {"|b1", stored::boolean}, {"|i1", stored::i8},  {"|u1", stored::u8},  {"<i2", stored::i16},  {"<u2", stored::u16},
    {"<i4", stored::i32},     {"<u4", stored::u32}, {"<i8", stored::i64}, {"<u8", stored::u64}};

}  // namespace

stored stored_of(const npy_array& array, std::string_view where) {
  const std::string& descr = array.descr;
  const bool swapped = descr.starts_with('>') && descr != ">V2";
  const std::string little = swapped ? '<' + descr.substr(1) : descr;
  const auto* const found = std::ranges::find(descrs, little, &std::pair<std::string_view, stored>::first);
  if (found != std::end(descrs)) return found->second;
  if (descr.size() > 1 && descr[1] == 'f') {  // a long double
    refuse<not_float>(where, array.header_at,
                      fmt::format("dtype '{}' is not read; save x.astype('<f4')", printable(descr)));
  }
  if (descr.ends_with('O')) {
    refuse<not_float>(where, array.header_at, "dtype object is a pickle, which is never opened; save x.astype('<f4')");
  }
  refuse<not_float>(where, array.header_at,
                    fmt::format("dtype '{}' is not a float; save x.astype('<f4')", printable(descr)));
}

npy_array read_npy(std::span<const std::byte> file, std::string_view where) {
  const auto start = take(file, 0, magic.size() + 2, where, "the magic and version of .npy");
  if (std::memcmp(start.data(), magic.data(), magic.size()) != 0) {
    refuse(where, 0, "does not begin with \\x93NUMPY; is it an .npy file?");
  }
  const auto major = load_le<uint8_t>(start, magic.size()), minor = load_le<uint8_t>(start, magic.size() + 1);
  if (major < 1 || major > 3 || minor != 0) {
    refuse(where, magic.size(), fmt::format("format {}.{} is not 1.0, 2.0 or 3.0; save it again", major, minor));
  }
  const uint64_t size_at = start.size(), size_width = major == 1 ? 2 : 4, header_at = size_at + size_width;
  const auto size_field = take(file, size_at, size_width, where, "the size of the header");
  const uint64_t header_size = major == 1 ? load_le<uint16_t>(size_field, 0) : load_le<uint32_t>(size_field, 0);
  if (header_size > npy_header_max) {
    refuse(where, size_at,
           fmt::format("a header of {} bytes, above {}; the file is damaged", header_size, npy_header_max));
  }
  const auto text = take(file, header_at, header_size, where, "the header");
  header head = literal({reinterpret_cast<const char*>(text.data()), text.size()}, header_at, where).read();

  const uint64_t data_at = header_at + header_size;
  const bool fortran_order = head.fortran_order && head.shape.size() > 1;
  return {std::move(head.descr), std::move(head.shape), file.subspan(data_at), header_at, data_at, fortran_order};
}

void in_c_order(const npy_array& array, unsigned width, const std::function<void(std::span<const std::byte>)>& f) {
  constexpr size_t block_size = 1 << 20;
  struct dimension {
    uint64_t extent, step, at;  // bytes from an index to the next, and the index
  };
  std::vector<dimension> dimensions;  // the innermost first, without those of one index
  uint64_t step = width;
  const auto add = [&](uint64_t extent) {
    if (extent > 1) dimensions.push_back({extent, step, 0});
    step *= extent;
  };
  if (array.bytes.empty()) return;
  if (array.fortran_order) {
    std::ranges::for_each(array.shape, add);
    std::ranges::reverse(dimensions);
  } else {
    for (size_t k = array.shape.size(); k-- > 0;) add(array.shape[k]);
  }
  const bool swap = array.descr.starts_with('>');
  std::vector<std::byte> block(std::min(array.bytes.size(), block_size));
  const std::byte* const bytes = array.bytes.data();
  uint64_t from = 0;
  for (size_t done = 0, filled = 0; done < array.bytes.size(); done += width) {
    if (swap)
      std::reverse_copy(bytes + from, bytes + from + width, block.data() + filled);
    else
      std::memcpy(block.data() + filled, bytes + from, width);
    filled += width;
    if (filled == block.size() || done + width == array.bytes.size()) f({block.data(), std::exchange(filled, 0)});
    for (dimension& d : dimensions) {
      from += d.step;
      if (++d.at < d.extent) break;
      from -= d.step * std::exchange(d.at, 0);
    }
  }
}

tensor parse_npy(std::span<const std::byte> file, std::string_view where, const reading& how) {
  npy_array array = read_npy(file, where);
  const stored kind = stored_of(array, where);
  if (!how.cast && !type_of(kind)) {
    refuse<not_float>(where, array.header_at,
                      fmt::format("dtype '{}' is not a float; save x.astype('<f4'){}, or give --cast f32", array.descr,
                                  kind == stored::u16 ? ", or x.view('V2') if it is bfloat16" : ""));
  }
  if (array.in_order()) return make_tensor(kind, std::move(array.shape), array.bytes, where, array.data_at, how);
  tensor result = unfilled_tensor(kind, array.shape, array.bytes.size(), where, array.data_at, how);
  result.data = tensor_bytes(result.elements * size_of(result.type));
  std::byte* to = result.data.writable().data();
  in_c_order(array, width_of(kind), [&](std::span<const std::byte> block) {
    if (result.converted)
      to = std::ranges::copy(convert(block, result.type, *result.converted), to).out;
    else
      to = std::ranges::copy(block, to).out;
  });
  return result;
}

}  // namespace dr::compare
