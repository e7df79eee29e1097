#include "safetensors.hpp"

#include <fmt/core.h>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

namespace dr::compare {

namespace {

using nlohmann::json;

constexpr uint64_t header_size_max = 100'000'000;      // the limit of the format's own reader
constexpr std::string_view metadata = "__metadata__";  // the one key that names no tensor, but strings
constexpr uint64_t header_at = 8;

struct stored_type {
  std::string_view name;
  unsigned bits;
  std::optional<stored> kind;  // none: not read
};

constexpr stored_type stored_types[] = {
    {"F32", 32, stored::f32},     {"F16", 16, stored::f16}, {"BF16", 16, stored::bf16},
    {"F64", 64, stored::f64},     {"U8", 8, stored::u8},    {"I8", 8, stored::i8},
    {"BOOL", 8, stored::boolean}, {"U16", 16, stored::u16}, {"I16", 16, stored::i16},
    {"U32", 32, stored::u32},     {"I32", 32, stored::i32}, {"U64", 64, stored::u64},
    {"I64", 64, stored::i64},     {"C64", 64, {}},          {"F4", 4, {}},
    {"F6_E2M3", 6, {}},           {"F6_E3M2", 6, {}},       {"F8_E5M2", 8, {}},
    {"F8_E4M3", 8, {}},           {"F8_E8M0", 8, {}},       {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
};

struct entry {
  std::string name, type;
  std::vector<uint64_t> shape;
  uint64_t begin, end;  // in the data
};

// Judges the header while it is parsed and drops each tensor once it has its entry, so that no header makes the parser
// nest or build more than a tensor needs. The depth of an event, as nlohmann::json counts, is the number of containers
// around it: the header is at 0, a tensor at 1, its dtype and its arrays at 2.
class header_reader {
 public:
  explicit header_reader(std::string_view where) : where_(where) {}

  bool operator()(int depth, json::parse_event_t event, const json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
        if (depth > 1) fail("holds an object");
        keys_.clear();
        return true;
      case json::parse_event_t::array_start:
        if (depth != 2 || name_ == metadata) fail("has an array where none may be");
        length_ = 0;
        return true;
      case json::parse_event_t::key: key(depth, parsed.get_ref<const std::string&>()); return true;
      case json::parse_event_t::value:
        if (depth == 1) fail("is not an object");
        if (depth == 2 ? !parsed.is_string() : !parsed.is_number_unsigned()) {
          fail(fmt::format("{} holds {}", printable(key_), parsed.dump(-1, ' ', true)));
        }
        if (depth == 3 && ++length_ > dimensions_max) fail(fmt::format("{} is longer than {}", key_, dimensions_max));
        return true;
      case json::parse_event_t::object_end:
        if (depth == 1 && name_ != metadata) add(parsed);
        return depth == 0;  // false drops what was read
      case json::parse_event_t::array_end: return true;
    }
    return true;
  }

  std::vector<entry> entries;

 private:
  [[noreturn]] void fail(std::string_view what) const {
    const std::string tensor = name_.empty() ? "" : ": " + printable(name_);
    refuse(std::string(where_) + tensor, header_at, fmt::format("{}; the header is damaged", what));
  }

  void key(int depth, const std::string& text) {
    (depth == 1 ? name_ : key_) = text;
    if (!(depth == 1 ? names_ : keys_).insert(text).second) fail(fmt::format("key '{}' occurs twice", printable(text)));
    if (depth == 2 && name_ != metadata && text != "dtype" && text != "shape" && text != "data_offsets") {
      fail(fmt::format("key '{}' is not known", printable(text)));
    }
  }

  void add(const json& object) {
    if (object.size() != 3) fail("lacks one of dtype, shape and data_offsets");
    const json &type = object["dtype"], &shape = object["shape"], &offsets = object["data_offsets"];
    if (!type.is_string() || !shape.is_array() || !offsets.is_array() || offsets.size() != 2) {
      fail("needs a string as dtype, an array as shape and two numbers as data_offsets");
    }
    entries.push_back({name_, type.get<std::string>(), shape.get<std::vector<uint64_t>>(), offsets[0], offsets[1]});
  }

  std::string_view where_;
  std::string name_, key_;       // of the tensor that is being read, and its last key
  size_t length_ = 0;            // of the array that is being read
  std::set<std::string> names_;  // of tensors
  std::set<std::string> keys_;   // of the tensor that is being read
};

std::vector<entry> read_header(std::span<const std::byte> text, std::string_view where) {
  // The format requires a brace as the first byte; JSON would accept spaces before it.
  if (text.empty() || text[0] != std::byte{'{'}) refuse(where, header_at, "no JSON object; is it a .safetensors file?");
  header_reader reader(where);
  const auto* begin = reinterpret_cast<const char*>(text.data());
  try {
    // A reference, since the parser copies its argument.
    [[maybe_unused]] const json rest = json::parse(begin, begin + text.size(), std::ref(reader));
  } catch (const json::exception& error) {
    const auto* parse_error = dynamic_cast<const json::parse_error*>(&error);
    const uint64_t at = parse_error != nullptr && parse_error->byte > 0 ? parse_error->byte - 1 : 0;
    refuse(where, header_at + at,
           fmt::format("the header is not JSON ({}); the file is damaged",
                       printable(std::string_view(error.what()).substr(0, 200))));
  }
  return std::move(reader.entries);
}

// Each byte of the data belongs to exactly one tensor: nothing overlaps and nothing is hidden between.
void require_cover(std::span<const entry> by_offset, uint64_t data_at, uint64_t data_size, std::string_view where) {
  uint64_t end = 0;
  for (const entry& e : by_offset) {
    if (e.begin != end || e.end < e.begin || e.end > data_size) {
      refuse(fmt::format("{}: {}", where, printable(e.name)), data_at + end,
             fmt::format("data_offsets [{}, {}) should begin at {} and end by {}; the file is cut off or damaged",
                         e.begin, e.end, end, data_size));
    }
    end = e.end;
  }
  if (end != data_size) {
    refuse(where, data_at + end, fmt::format("{} bytes after the last tensor; the file is damaged", data_size - end));
  }
}

}  // namespace

std::vector<tensor> parse_safetensors(std::span<const std::byte> file, std::string_view where, const reading& how) {
  const auto header_size = load_le<uint64_t>(take(file, 0, header_at, where, "the size of the header"), 0);
  if (header_size > header_size_max) {
    refuse(where, 0,
           fmt::format("a header of {} bytes, above {}; is it a .safetensors file?", header_size, header_size_max));
  }
  std::vector<entry> entries = read_header(take(file, header_at, header_size, where, "the header"), where);
  std::ranges::sort(entries, {}, [](const entry& e) { return std::pair(e.begin, e.end); });
  const uint64_t data_at = header_at + header_size;
  const auto data = file.subspan(data_at);
  require_cover(entries, data_at, data.size(), where);

  std::vector<tensor> tensors;
  for (entry& e : entries) {
    const std::string name = printable(e.name), tensor_where = fmt::format("{}: {}", where, name);
    const auto bytes = data.subspan(e.begin, e.end - e.begin);
    const uint64_t elements = count_elements(e.shape, tensor_where, header_at);
    const auto* found = std::ranges::find(stored_types, e.type, &stored_type::name);
    const bool known = found != std::end(stored_types);
    const auto bits = checked_multiply(elements, known ? found->bits : 0);
    if (known && (!bits || *bits % 8 != 0 || *bits / 8 != bytes.size())) {
      refuse(tensor_where, data_at + e.begin,
             fmt::format("{} elements of {} are not the {} bytes of its data_offsets; the file is damaged", elements,
                         e.type, bytes.size()));
    }
    if (!known || !found->kind || !(how.cast || type_of(*found->kind))) {
      note(how.notes, fmt::format("skipped: {}: dtype {} is not F32, F16, BF16 or F64{}", tensor_where,
                                  printable(e.type), known && found->kind ? "; --cast f32 converts it" : ""));
      continue;
    }
    tensors.push_back(make_tensor(*found->kind, std::move(e.shape), bytes, tensor_where, data_at + e.begin, how));
    tensors.back().input = where;
    tensors.back().name = name;
    tensors.back().raw_name = e.name;
  }
  return tensors;
}

namespace {

// JSON is UTF-8. A name in an .npz may be any bytes; invalid UTF-8 is escaped.
const std::string& written_name(const tensor& t) {
  try {
    (void)json(t.raw_name).dump();
    return t.raw_name;
  } catch (const json::type_error&) {
    return t.name;
  }
}

}  // namespace

std::string safetensors_of(std::span<const tensor> tensors) {
  auto header = nlohmann::ordered_json::object();  // (which looks for a name in all of them)
  std::set<std::string_view> names;
  uint64_t end = 0;
  for (const tensor& t : tensors) {
    const std::string& name = written_name(t);
    if (name == metadata)
      refuse(t.input, "a tensor is called '__metadata__', a reserved name in .safetensors; rename it");
    if (!names.insert(name).second) {
      refuse(
          t.input,
          fmt::format("two tensors are called '{}', which no .safetensors can hold; give one input at a time", t.name));
    }
    const char* const type = t.type == dtype::f32 ? "F32" : t.type == dtype::f16 ? "F16" : "BF16";
    header.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(
        name,
        nlohmann::ordered_json{{"dtype", type}, {"shape", t.shape}, {"data_offsets", {end, end + t.data.size()}}});
    end += t.data.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that data begin at a multiple of 8
  std::string file(header_at, '\0');
  store_le<uint64_t>(std::as_writable_bytes(std::span(file)), 0, text.size());
  file.reserve(file.size() + text.size() + end);
  file += text;
  for (const tensor& t : tensors) file.append(reinterpret_cast<const char*>(t.data.data()), t.data.size());
  return file;
}

}  // namespace dr::compare
