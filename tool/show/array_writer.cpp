#include "array_writer.hpp"

#include <fmt/core.h>
#include <zlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace dr::compare {
namespace {

void put(std::string& out, uint64_t value, size_t size) {
  for (size_t i = 0; i < size; ++i) out += static_cast<char>(value >> 8 * i & 0xff);
}

uint32_t crc_of(const std::string& bytes) {
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

// Bit 11: the name is UTF-8. Readers take others for code page 437, in which any bytes are a name.
uint16_t flags_of(const std::string& name) {
  constexpr uint16_t utf8 = 1 << 11;
  if (std::ranges::all_of(name, [](char c) { return static_cast<unsigned char>(c) < 0x80; })) return 0;
  try {
    (void)nlohmann::json(name).dump();
    return utf8;
  } catch (const nlohmann::json::type_error&) {
    return 0;
  }
}

// What the local header and the directory's entry share (PKWARE APPNOTE 6.3, 4.3.7 and 4.3.12): version to a name's length.
std::string common_fields(const std::string& name, const std::string& bytes) {
  std::string fields;
  put(fields, 20, 2);  // version 2.0
  put(fields, flags_of(name), 2);
  put(fields, 0, 2);     // stored
  put(fields, 0, 2);     // 00:00:00
  put(fields, 0x21, 2);  // 1980-01-01
  put(fields, crc_of(bytes), 4);
  put(fields, bytes.size(), 4);
  put(fields, bytes.size(), 4);
  put(fields, name.size(), 2);
  put(fields, 0, 2);  // no extra field
  return fields;
}

}  // namespace

std::string npy_bytes(dr_dtype dtype, uint64_t rows, uint32_t width, std::span<const std::byte> data) {
  const uint64_t shape[] = {rows, width};
  return npy_bytes(dtype, std::span(shape).first(width == 1 ? 1 : 2), data);
}

std::string npy_bytes(dr_dtype dtype, std::span<const uint64_t> shape, std::span<const std::byte> data) {
  const char* const type = dtype == DR_F32 ? "<f4" : dtype == DR_F16 ? "<f2" : "<V2";
  std::string sides;  // (3,), (3, 4), ()
  for (const uint64_t side : shape) sides += fmt::format("{}{}", sides.empty() ? "" : " ", side) + ",";
  if (shape.size() > 1) sides.pop_back();
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", type, sides);
  if (header.size() > 60'000) throw std::length_error("an array of so many dimensions is unsupported");
  // Magic, version, length, header and its line end are a multiple of 64.
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  put(bytes, header.size(), 2);
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(data.data()), data.size());
  return bytes;
}

std::string npz_bytes(std::span<const std::pair<std::string, std::string>> members) {
  if (members.size() > 0xffff) throw std::length_error("an .npz of more than 65,535 arrays is unsupported");
  std::string file, directory;
  for (const auto& [name, npy] : members) {
    const std::string file_name = name + ".npy";
    if (file_name.size() > 0xffff)
      throw std::length_error(fmt::format("an .npz has names of at most 65,531 bytes; one has {}", name.size()));
    if (npy.size() + file.size() > 0xffff0000u) throw std::length_error("an .npz beyond 4 GiB is unsupported");
    const std::string fields = common_fields(file_name, npy);
    put(directory, 0x02014b50, 4);
    put(directory, 20, 2);  // made by version 2.0
    directory += fields;
    directory.append(10, '\0');  // comment, disk, attributes: 2 + 2 + 2 + 4
    put(directory, file.size(), 4);
    directory += file_name;
    put(file, 0x04034b50, 4);
    file += fields + file_name + npy;
  }
  const size_t begin = file.size();
  file += directory;
  put(file, 0x06054b50, 4);
  put(file, 0, 4);  // disks
  put(file, members.size(), 2);
  put(file, members.size(), 2);
  put(file, directory.size(), 4);
  put(file, begin, 4);
  put(file, 0, 2);  // comment
  return file;
}

}  // namespace dr::compare
