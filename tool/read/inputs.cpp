#include "inputs.hpp"

#include <fmt/core.h>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>

#include "file_bytes.hpp"
#include "npy.hpp"
#include "npz.hpp"
#include "safetensors.hpp"
#include "synth.hpp"

namespace dr::compare {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view what_is_read =
    "give a .npy, .npz, .safetensors, .bin, .f32 or .raw file, a directory of them, or synth:d=1000000";

template <tensor (*parse)(std::span<const std::byte>, std::string_view, const reading&)>
std::vector<tensor> parse_one(std::span<const std::byte> file, std::string_view where, const reading& how) {
  return {parse(file, where, how)};
}

struct format {
  std::string_view extension;
  std::vector<tensor> (*parse)(std::span<const std::byte>, std::string_view, const reading&);
};

constexpr format formats[] = {
    {".npy", parse_one<parse_npy>},      {".npz", parse_npz},
    {".safetensors", parse_safetensors}, {".bin", parse_one<parse_raw>},
    {".f32", parse_one<parse_raw>},      {".raw", parse_one<parse_raw>},
};

const format* format_of(const fs::path& path) {
  const std::string extension = path.extension().string();
  const auto* found = std::ranges::find(formats, extension, &format::extension);
  return found == std::end(formats) ? nullptr : found;
}

std::vector<tensor> read_file(const fs::path& path, const format& format, reading how) {
  const std::string where = path.string();
  try {
    const file_bytes file = open_file(where);
    how.owner = file.owner;
    return format.parse(file.bytes, where, how);
  } catch (const std::bad_alloc&) {
    refuse(where, "needs more memory than available; split it");
  }
}

std::vector<tensor> read_directory(const std::string& argument, const reading& how) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator entry(argument, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::error_code ignored;  // an unreadable entry is not a regular file
    if (format_of(entry->path()) != nullptr && entry->is_regular_file(ignored)) paths.push_back(entry->path());
  }
  if (error) refuse(argument, fmt::format("cannot be listed ({}); check that it may be read", error.message()));
  std::ranges::sort(paths);
  std::vector<tensor> all;
  for (const fs::path& path : paths) try {
      std::ranges::move(read_file(path, *format_of(path), how), std::back_inserter(all));
    } catch (const not_float& error) {
      note(how.notes, fmt::format("skipped: {}", error.what()));
    }
  return all;
}

// `name`: receives the user's name of a file.
std::vector<tensor> read_path(const std::string& argument, reading how, std::string& name) {
  std::error_code error;
  const fs::file_status status = fs::status(argument, error);
  if (fs::is_directory(status)) return read_directory(argument, how);
  if (!fs::exists(status)) refuse(argument, fmt::format("{}; {}", error.message(), what_is_read));
  if (!fs::is_regular_file(status)) refuse(argument, fmt::format("is not a regular file; {}", what_is_read));
  const fs::path extension = fs::path(argument).extension();
  if (extension == ".pt" || extension == ".pth")
    refuse(argument,
           "holds pickles, which this program never opens; `python -m deepreduce convert FILE.pt --output "
           "FILE.safetensors` reads it safely");
  const format* format = format_of(argument);
  if (format == nullptr) refuse(argument, fmt::format("its extension is not known; {}", what_is_read));
  how.made_of = &name;
  return read_file(argument, *format, how);
}

}  // namespace

bool is_read(const std::string& extension) { return format_of("x" + extension) != nullptr; }

std::string printable(std::string_view text) {
  // JSON's escapes are what both readers of the result need; the quotes around are not.
  const std::string quoted = nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

uint64_t count_elements(std::span<const uint64_t> shape, std::string_view where, uint64_t offset) {
  uint64_t product = 1;
  for (const uint64_t extent : shape) {
    const auto next = checked_multiply(product, std::max<uint64_t>(extent, 1));
    if (!next) {
      refuse(where, offset,
             fmt::format("the product of the shape overflows at extent {}; the file is damaged", extent));
    }
    product = *next;
  }
  return std::ranges::count(shape, 0u) > 0 ? 0 : product;
}

std::span<const std::byte> take(std::span<const std::byte> bytes, uint64_t at, uint64_t size, std::string_view where,
                                std::string_view what) {
  if (at > bytes.size() || size > bytes.size() - at) {
    refuse(where, at,
           fmt::format("{} needs {} bytes here and the end is at {}; the file is cut off or damaged", what, size,
                       bytes.size()));
  }
  return bytes.subspan(at, size);
}

tensor unfilled_tensor(stored kind, std::vector<uint64_t> shape, uint64_t size, std::string_view where, uint64_t offset,
                       const reading& how) {
  const uint64_t elements = count_elements(shape, where, offset);
  if (checked_multiply(elements, width_of(kind)) != size) {
    refuse(where, offset,
           fmt::format("{} elements of {} bytes do not make the {} bytes that are here; the file is cut off or "
                       "damaged",
                       elements, width_of(kind), size));
  }
  const std::optional<dtype> type = how.cast ? how.cast : type_of(kind);
  if (!type)
    refuse<not_float>(where, offset, fmt::format("{} is not a float; --cast f32 converts it", long_name(kind)));
  tensor result{std::string(where), "", *type, std::move(shape), {}, elements};
  if (kind == stored::f64 || type != type_of(kind)) result.converted = conversion{kind};
  return result;
}

tensor make_tensor(stored kind, std::vector<uint64_t> shape, std::span<const std::byte> bytes, std::string_view where,
                   uint64_t offset, const reading& how) {
  tensor result = unfilled_tensor(kind, std::move(shape), bytes.size(), where, offset, how);
  if (result.converted) {
    result.data = convert(bytes, result.type, *result.converted);
  } else if (how.owner && reinterpret_cast<uintptr_t>(bytes.data()) % width_of(kind) == 0) {
    result.data = tensor_bytes(bytes, how.owner);
  } else {
    result.data = tensor_bytes::copy_of(bytes);
  }
  return result;
}

tensor parse_raw(std::span<const std::byte> file, std::string_view where, const reading& how) {
  if (file.size() % sizeof(float) != 0) {
    refuse(where, file.size(),
           fmt::format("{} bytes are not a whole number of float32; a raw file holds little-endian "
                       "float32 and nothing else",
                       file.size()));
  }
  return make_tensor(stored::f32, {file.size() / sizeof(float)}, file, where, 0, how);
}

namespace {

// A line for each file and type that was converted, whose tensors may be many.
void note_conversions(const std::vector<tensor>& tensors, std::vector<std::string>* notes) {
  struct sum {
    const tensor* first;
    conversion total;
    uint64_t tensors;
  };
  std::vector<sum> sums;
  for (const tensor& t : tensors) {
    if (!t.converted) continue;
    const auto same = std::ranges::find_if(sums, [&](const sum& s) {
      return s.first->input == t.input && s.total.from == t.converted->from && s.first->type == t.type;
    });
    if (same == sums.end()) {
      sums.push_back({&t, *t.converted, 1});
      continue;
    }
    same->total.largest_change = std::max(same->total.largest_change, t.converted->largest_change);
    same->total.infinite += t.converted->infinite;
    same->total.vanished += t.converted->vanished;
    ++same->tensors;
  }
  for (const sum& s : sums) {
    const std::string which =
        s.tensors > 1 ? fmt::format("{} tensors of ", s.tensors) : s.first->name + (s.first->name.empty() ? "" : ": ");
    note(notes, fmt::format("{}: {}{}", s.first->input, which, describe(s.total, s.first->type)));
  }
}

}  // namespace

std::vector<tensor> read_input(const std::string& argument, std::vector<std::string>* notes,
                               std::optional<dtype> cast) {
  if (argument.empty()) refuse("input ''", fmt::format("is empty; {}", what_is_read));
  std::vector<std::string> skipped;
  std::vector<tensor> tensors;
  std::string name = argument;
  if (argument.starts_with(synth_prefix)) {
    tensors = {make_synth(argument)};
    if (cast && *cast != tensors[0].type) {
      conversion c{stored::f32};
      tensors[0].data = convert(tensors[0].data, *cast, c);
      tensors[0].type = *cast, tensors[0].converted = c;
    }
  } else {
    tensors = read_path(argument, {&skipped, cast}, name);
  }
  if (tensors.empty()) {
    if (skipped.empty()) refuse(name, fmt::format("holds no array; {}", what_is_read));
    const std::string more = skipped.size() > 1 ? fmt::format(" (and {} more)", skipped.size() - 1) : "";
    refuse(name, fmt::format("holds no float array; {}{}", skipped.front(), more));
  }
  for (std::string& text : skipped) note(notes, std::move(text));
  note_conversions(tensors, notes);
  return tensors;
}

}  // namespace dr::compare
