// The checks of a frame, from FORMAT.md alone: puts those of changed bytes right, so that what lies behind them is reached.
// Only what a codec's fixed size is comes from the library (dr_codec_at), so plug-ins work too.
#pragma once

#include <deepreduce/deepreduce.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "little_endian.hpp"

namespace frame_check {

inline uint64_t mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9;
  x ^= x >> 27;
  x *= 0x94d049bb133111eb;
  return x ^ x >> 31;
}
inline uint64_t combine(uint64_t key, uint64_t part) { return mix64((key ^ part) + 0x9e3779b97f4a7c15); }

using little_endian::number;

inline void put(uint8_t* at, uint64_t x) { little_endian::put(at, x, 8); }

// Of a multiple of 4 bytes.
inline uint64_t check(const uint8_t* data, uint64_t size) {
  constexpr uint64_t phi = 0x9e3779b97f4a7c15;
  static const auto factors = [] {
    std::array<uint64_t, 1024> t{};
    for (uint64_t i = 0; i < t.size(); ++i) t[i] = mix64((i + 1) * phi) >> 32 | 1;
    return t;
  }();
  uint64_t total = 0;
  for (uint64_t begin = 0; begin < size; begin += 4096) {
    uint64_t d = 0;
    for (uint64_t i = begin; i < std::min(size, begin + 4096); i += 4)
      d += (number(data + i, 4) + 1) * factors[(i - begin) / 4];
    total += mix64(d + begin / 4096 * phi);
  }
  return total;
}

struct reader {
  const uint8_t* data;
  uint64_t at, end;
  bool good = true;

  uint64_t take(uint64_t bytes) {
    if (!good || bytes > end - at) {
      good = false;
      return 0;
    }
    at += bytes;
    return number(data + at - bytes, bytes);
  }
  uint64_t varint() {
    uint64_t x = 0;
    for (unsigned i = 0; i < 10; ++i) {
      const uint64_t byte = take(1);
      x |= (byte & 127) << 7 * i;
      if (byte < 128) return x;
    }
    good = false;
    return 0;
  }
};

enum { value = 0, order = 1, index = 2 };  // lists, as on the wire

struct list {
  uint64_t count = 0;
  uint64_t block = 1;
  const dr_codec* first = nullptr;
  std::array<uint64_t, DR_FIELDS_MAX> fields{};

  bool fixed() const { return count == 1 && (first->traits & DR_FIXED_SIZE); }
};

struct entry {
  uint32_t dtype = 0, width = 1;
  bool patch = false;
  std::array<list, 3> lists;

  uint64_t value_size() const {
    if (dtype == DR_F32 || dtype == DR_U32) return 4;
    return dtype == DR_F64 ? 8 : dtype == DR_U8 ? 1 : 2;
  }
  bool replaces() const { return lists[index].first->traits & DR_REPLACES_SUPPORT; }
};

struct row {
  uint64_t info = 0, universe = 0, count = 0, support = 0;
  std::array<uint64_t, 3> size{};
};

inline entry read_entry(reader& in) {
  entry e;
  const uint64_t counts = in.take(1), type = in.take(1);
  e.dtype = type & 15;
  e.patch = type & 64;
  if (type & 32) e.width = static_cast<uint32_t>(in.varint());
  if (type & 128) in.take(1), in.varint();  // a transform
  const uint64_t n[] = {counts & 7, counts >> 6, counts >> 3 & 7};
  constexpr dr_role role[] = {DR_ROLE_VALUE, DR_ROLE_ORDER, DR_ROLE_INDEX};
  for (unsigned l = 0; l < 3; ++l)
    for (uint64_t s = 0; s < n[l] && in.good; ++s) {
      const uint64_t head = in.varint();
      const uint64_t begin = in.at + (head & 1), length = head & 1 ? in.take(1) : 0;
      list& to = e.lists[l];
      if (to.count++ == 0) {
        for (size_t i = 0; i < dr_codec_count(); ++i)
          if (dr_codec_at(i)->role == role[l] && dr_codec_at(i)->id == head >> 1) to.first = dr_codec_at(i);
        if (!to.first) in.good = false;
        for (size_t f = 0; in.good && f < to.first->field_count; ++f)
          to.fields[f] = in.at < begin + length ? in.varint() : to.first->fields[f].fallback;
        if (to.first && to.first->traits & DR_PREFIX) {  // what matters is the codec behind it
          to.block = uint64_t{1} << (to.fields[0] & 31);
          to.count = 0;
          to.first = nullptr;
        }
      }
      in.good = in.good && begin + length <= in.end;
      in.at = begin + length;
    }
  in.good = in.good && e.lists[value].first && e.lists[index].first;
  return e;
}

// Bytes of a row's payload, padding included. False if it is beyond sense.
inline bool payload_size(const entry& e, const row& r, uint64_t& bytes) {
  const uint64_t mode = r.info & 3;
  bytes = 0;
  if (mode == 2) {
    bytes = r.universe * e.width * e.value_size();
  } else if (r.count) {
    for (unsigned l = 0; l < 3; ++l) {
      if (l == index && mode == 1) {
        bytes += 4 * r.count;
      } else if (e.lists[l].count && e.lists[l].fixed()) {
        for (size_t f = 0; f < e.lists[l].first->field_count; ++f)
          if (e.lists[l].fields[f] < e.lists[l].first->fields[f].minimum ||
              e.lists[l].fields[f] > e.lists[l].first->fields[f].maximum)
            return false;
        dr_job job{.struct_size = sizeof(dr_job)};
        const uint64_t block = e.lists[l].block, count = l == index ? r.count : r.support;
        job.universe = (r.universe + block - 1) / block;
        job.count_max = (count + block - 1) / block;
        job.dtype = e.dtype;
        job.width = e.width;
        dr_params params{};
        params.struct_size = sizeof params;
        params.fields = e.lists[l].fields.data();
        dr_need need{.struct_size = sizeof(dr_need)};
        need.struct_size = sizeof need;
        if (e.lists[l].first->cpu->need(&params, &job, 1, &need)) return false;
        bytes += need.payload;
      } else {
        bytes += r.size[l];
      }
      if (bytes >> 40) return false;
    }
  }
  bytes = (bytes + (e.patch ? 16 : 0) + 3) / 4 * 4;
  return bytes >> 40 == 0;
}

inline bool seal(uint8_t* frame, uint64_t covered, uint64_t size) {
  if (covered > size || covered < 12) return false;
  put(frame + 4, 0);
  put(frame + 4, check(frame, covered));
  return true;
}

// Puts the checks of a frame right. False if it is too far from a frame for that (the header's check is put right as well as can be).
// each(entry, row, payload) is called before, for every row that is all there, and may write to its payload.
template <class F>
bool fix(uint8_t* frame, uint64_t size, F&& each) {
  const auto guess = [&] {
    seal(frame, size / 4 * 4, size);
    return false;
  };
  if (size < 16) return false;
  reader in{frame, 12, size};
  const uint64_t flags = frame[3];
  if (flags & 1) {
    const uint64_t width = flags & 64 ? 2 : 3;
    row r;
    r.info = flags >> 4 & 3;
    r.universe = in.take(3);
    r.support = r.count = in.take(width);
    const entry e = read_entry(in);
    if (!in.good) return guess();
    if (e.replaces()) r.support = in.take(width);
    for (unsigned l = 0; l < 3; ++l)
      if (e.lists[l].count && !e.lists[l].fixed()) r.size[l] = in.take(width);
    uint64_t payload;
    if (!in.good || !payload_size(e, r, payload)) return guess();
    const uint64_t at = (in.at + 3) / 4 * 4;
    if (at <= size && payload <= size - at) each(e, r, frame + at);
    return seal(frame, at + payload, size) || guess();
  }
  const uint64_t rows = in.take(4);
  const bool status = in.take(1) != 0;
  in.take(1);
  const uint64_t table = in.take(2), widths = in.take(4);
  if (flags & 2) in.take(8);
  if (!in.good || table > size - in.at) return guess();
  if (status || (flags & 8)) return seal(frame, (in.at + table + 3) / 4 * 4, size) || guess();
  std::vector<entry> entries;
  const uint64_t table_end = in.at + table;
  while (in.at < table_end && in.good) entries.push_back(read_entry(in));
  if (!in.good || in.at != table_end) return guess();
  uint8_t* const checks = frame + in.at;
  if (rows != 1) {
    if (rows > (size - in.at) / 8) return guess();
    in.at += 8 * rows;
  }
  std::vector<row> all(rows);
  const auto column = [&](unsigned c, auto&& set) {
    const uint64_t width = widths >> 4 * c & 15;
    for (row& r : all)
      if (in.good && width <= 8) set(r, in.take(width), width);
  };
  column(0, [](row& r, uint64_t x, uint64_t) { r.info = x; });
  column(1, [](row& r, uint64_t x, uint64_t) { r.universe = x; });
  column(2, [](row& r, uint64_t x, uint64_t) { r.support = r.count = x; });
  column(3, [](row& r, uint64_t x, uint64_t width) { r.support = width ? x : r.support; });
  for (unsigned l = 0; l < 3; ++l) column(4 + l, [l](row& r, uint64_t x, uint64_t) { r.size[l] = x; });
  if (!in.good) return guess();
  const uint64_t header = (in.at + 3) / 4 * 4;
  uint64_t at = header;
  for (uint64_t i = 0; i < rows; ++i) {
    uint64_t payload;
    if (all[i].info >> 3 >= entries.size() || !payload_size(entries[all[i].info >> 3], all[i], payload) ||
        payload > size - std::min(at, size))
      return guess();
    each(entries[all[i].info >> 3], all[i], frame + at);
    if (rows != 1) put(checks + 8 * i, check(frame + at, payload));
    at += payload;
  }
  return seal(frame, rows == 1 ? at : header, size) || guess();
}
inline bool fix(uint8_t* frame, uint64_t size) {
  return fix(frame, size, [](const entry&, const row&, uint8_t*) {});
}

}  // namespace frame_check
