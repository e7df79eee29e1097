// The tables beside the golden frames, and what they say of tensors.
#pragma once

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include "client.hpp"

namespace golden {

using client::bytes;

inline const std::string folder = DR_GOLDEN;

inline bytes read_frame(const std::string& name) {
  std::ifstream file(folder + "/frames/" + name + ".frame", std::ios::binary);
  INFO(name);
  REQUIRE(file.good());
  return bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

inline std::vector<std::string> split(const std::string& text, const std::string& by) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(by, begin)) != std::string::npos; begin = end + by.size())
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  return parts;
}

inline std::vector<std::vector<std::string>> read_table(const std::string& name, size_t columns) {
  std::ifstream file(folder + '/' + name);
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    rows.push_back(split(line, "\t"));
    INFO(line);
    REQUIRE(rows.back().size() == columns);
  }
  REQUIRE(!rows.empty());
  return rows;
}

// `type ROWSxWIDTH [key=K] index:value,value …`
struct tensor {
  dr_dtype dtype = 0;
  uint64_t rows = 0, key = 0;
  uint32_t width = 1;
  std::vector<uint64_t> indices;
  std::vector<uint64_t> values;  // bit patterns

  size_t value_size() const {
    if (dtype == DR_F32 || dtype == DR_U32) return 4;
    return dtype == DR_F64 ? 8 : dtype == DR_U8 ? 1 : 2;
  }
  bytes packed() const {
    bytes out(values.size() * value_size());
    for (size_t i = 0; i < values.size(); ++i) std::memcpy(out.data() + i * value_size(), &values[i], value_size());
    return out;
  }
};

inline tensor read_tensor(const std::string& text) {
  std::istringstream in(text);
  std::string type, shape, cell;
  in >> type >> shape;
  tensor t;
  static const std::map<std::string, dr_dtype> types = {{"f32", DR_F32}, {"f16", DR_F16}, {"bf16", DR_BF16},
                                                        {"u32", DR_U32}, {"f64", DR_F64}, {"u8", DR_U8},
                                                        {"u16", DR_U16}};
  t.dtype = types.at(type);
  const auto sides = split(shape, "x");
  t.rows = std::stoull(sides[0]);
  t.width = static_cast<uint32_t>(std::stoul(sides[1]));
  while (in >> cell) {
    if (cell.rfind("key=", 0) == 0) {
      t.key = std::stoull(cell.substr(4));
      continue;
    }
    const auto parts = split(cell, ":");
    const auto run = split(parts[0], "+");
    for (uint64_t k = 0; k < (run.size() > 1 ? std::stoull(run[1]) : 1); ++k) {
      t.indices.push_back(std::stoull(run[0]) + k);
      for (const auto& v : split(parts[1], ",")) t.values.push_back(std::stoull(v, nullptr, 16));
    }
  }
  REQUIRE(t.values.size() == t.indices.size() * t.width);
  return t;
}

inline dr_status status_of(const std::string& name) {
  for (dr_status s = 0; s < 20; ++s)
    if (name == dr_status_name(s)) return s;
  FAIL("no status is called " << name);
  return -1;
}

struct inspected {
  dr_status status;
  dr_frame_info info{};
  std::vector<dr_tensor_info> tensors;
  std::string sentence;

  explicit inspected(const bytes& frame) {
    dr_error error{sizeof(dr_error)};
    info.struct_size = sizeof info;
    status = dr_inspect(frame.data(), frame.size(), &info, nullptr, 0, 0, &error);
    sentence = error.message;
    if (status || info.tensors == 0) return;
    dr_tensor_info empty{};
    empty.struct_size = sizeof empty;
    tensors.assign(info.tensors, empty);
    CHECK(dr_inspect(frame.data(), frame.size(), &info, tensors.data(), sizeof empty, tensors.size(), nullptr) ==
          DR_OK);
  }
};

}  // namespace golden
