#include "inputs.hpp"

#include <fmt/format.h>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>

#include "npy.hpp"
#include "npz.hpp"
#include "safetensors.hpp"
#include "synth.hpp"

namespace dr::compare {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view what_is_read =
    "give a .npy, .npz, .safetensors, .bin, .f32 or .raw file, a directory of them, or synth:d=1000000";

template <tensor (*parse)(std::span<const std::byte>, std::string_view)>
std::vector<tensor> parse_one(std::span<const std::byte> file, std::string_view where, std::vector<std::string>*) {
  std::vector<tensor> tensors;
  tensors.push_back(parse(file, where));
  return tensors;
}

struct format {
  std::string_view extension;
  std::vector<tensor> (*parse)(std::span<const std::byte>, std::string_view, std::vector<std::string>*);
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

std::vector<std::byte> read_bytes(const std::string& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) refuse(path, "cannot be opened; check that it may be read");
  if (size > static_cast<uint64_t>(std::numeric_limits<std::streamsize>::max())) {
    refuse(path, fmt::format("{} bytes are more than can be read; cut it up", size));
  }
  std::vector<std::byte> bytes(size);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
  const auto got = static_cast<uint64_t>(file.gcount());
  if (got != size || file.peek() != std::ifstream::traits_type::eof()) {
    refuse(path, got, fmt::format("is not the {} bytes that it was when opened; wait until it is written", size));
  }
  return bytes;
}

std::vector<tensor> read_file(const fs::path& path, const format& format, std::vector<std::string>* notes) {
  const std::string where = path.string();
  try {
    return format.parse(read_bytes(where), where, notes);
  } catch (const std::bad_alloc&) {
    refuse(where, "needs more memory than there is; cut it up");
  }
}

std::vector<tensor> read_directory(const std::string& argument, std::vector<std::string>* notes) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator entry(argument, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::error_code ignored;  // an entry that cannot be looked at is no regular file
    if (format_of(entry->path()) != nullptr && entry->is_regular_file(ignored)) paths.push_back(entry->path());
  }
  if (error) refuse(argument, fmt::format("cannot be listed ({}); check that it may be read", error.message()));
  std::ranges::sort(paths);
  std::vector<tensor> all;
  for (const fs::path& path : paths) {
    std::ranges::move(read_file(path, *format_of(path), notes), std::back_inserter(all));
  }
  return all;
}

std::vector<tensor> read_path(const std::string& argument, std::vector<std::string>* notes) {
  std::error_code error;
  const fs::file_status status = fs::status(argument, error);
  if (fs::is_directory(status)) return read_directory(argument, notes);
  if (!fs::exists(status)) refuse(argument, fmt::format("{}; {}", error.message(), what_is_read));
  if (!fs::is_regular_file(status)) refuse(argument, fmt::format("is not a regular file; {}", what_is_read));
  const format* format = format_of(argument);
  if (format == nullptr) refuse(argument, fmt::format("its extension is not known; {}", what_is_read));
  return read_file(argument, *format, notes);
}

}  // namespace

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

tensor make_tensor(element stored, std::vector<uint64_t> shape, std::span<const std::byte> bytes,
                   std::string_view where, uint64_t offset) {
  const uint64_t elements = count_elements(shape, where, offset);
  if (checked_multiply(elements, stored.width) != bytes.size()) {
    refuse(where, offset,
           fmt::format("{} elements of {} bytes do not make the {} bytes that are here; the file is cut off or "
                       "damaged",
                       elements, stored.width, bytes.size()));
  }
  tensor result{std::string(where), "", stored.type, std::move(shape), {}, elements};
  if (stored.width != sizeof(double)) {
    result.data.assign(bytes.begin(), bytes.end());
    return result;
  }
  // Without IEC 559 a double beyond the range of float would be undefined here instead of infinite.
  static_assert(std::numeric_limits<float>::is_iec559 && std::numeric_limits<double>::is_iec559);
  result.data.resize(elements * sizeof(float));
  for (size_t i = 0; i < elements; ++i) {
    store_le(result.data, i * sizeof(float), static_cast<float>(load_le<double>(bytes, i * sizeof(double))));
  }
  return result;
}

tensor parse_raw(std::span<const std::byte> file, std::string_view where) {
  if (file.size() % sizeof(float) != 0) {
    refuse(where, file.size(),
           fmt::format("{} bytes are no whole number of float32; a raw file holds little-endian "
                       "float32 and nothing else",
                       file.size()));
  }
  return make_tensor({dtype::f32, sizeof(float)}, {file.size() / sizeof(float)}, file, where, 0);
}

std::vector<tensor> read_input(const std::string& argument, std::vector<std::string>* notes) {
  if (argument.empty()) refuse("input ''", fmt::format("is empty; {}", what_is_read));
  if (argument.starts_with(synth_prefix)) return {make_synth(argument)};
  std::vector<std::string> skipped;
  std::vector<tensor> tensors = read_path(argument, &skipped);
  if (tensors.empty()) {
    if (skipped.empty()) refuse(argument, fmt::format("holds no array; {}", what_is_read));
    const std::string more = skipped.size() > 1 ? fmt::format(" (and {} more)", skipped.size() - 1) : "";
    refuse(argument, fmt::format("holds no float array; {}{}", skipped.front(), more));
  }
  for (std::string& text : skipped) note(notes, std::move(text));
  return tensors;
}

}  // namespace dr::compare
