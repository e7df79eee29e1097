#include <algorithm>
#include <cmath>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

struct bit_list {
  std::vector<uint8_t> bytes;
  uint64_t n = 0;

  void put(uint64_t value, unsigned bits) {
    for (unsigned b = 0; b < bits; ++b, ++n) {
      if (n % 8 == 0) bytes.push_back(0);
      bytes.back() = static_cast<uint8_t>(bytes.back() | (value >> b & 1) << n % 8);
    }
  }
};

void put_varint(std::vector<uint8_t>& out, uint64_t x) {
  for (; x >= 128; x /= 128) out.push_back(static_cast<uint8_t>(x % 128 + 128));
  out.push_back(static_cast<uint8_t>(x));
}

void put_gap(bit_list& out, uint64_t m, uint64_t r, uint64_t gap) {
  if (r == m) return;
  uint64_t by = m, q = 0;
  if (r > 1) {
    by =
        std::max<uint64_t>(1, ((2 * (m - r) + r + 1) * (65536 * uint64_t{22713} / (r + 1)) + 0x80000000) / 0x100000000);
    q = gap / by;
    out.put(0, static_cast<unsigned>(std::min<uint64_t>(q, 24)));
    if (q >= 24) return out.put(gap, 15);
    out.put(1, 1);
  }
  unsigned b = 0;
  while (uint64_t{1} << b < by) ++b;
  const uint64_t t = (uint64_t{1} << b) - by, x = gap % by;
  if (b == 0) return;
  out.put(x < t ? x : (x + t) / 2, b - 1);
  if (x >= t) out.put((x + t) % 2, 1);
}

// The count of whole chunks is the encoder's choice; the rest follows.
std::string judge(const observation& o) {
  const auto indices = words(o.in.elements);
  const uint64_t size = o.fields[0], universe = o.in.universe;
  uint64_t c = 0;
  for (size_t i = 0, shift = 0; universe > size && i < o.payload.size(); ++i, shift += 7) {
    c |= uint64_t{o.payload[i] & 127u} << shift;
    if (o.payload[i] < 128) break;
  }
  bit_list bits;
  std::vector<uint8_t> names, expected;
  uint64_t named = 0, behind = 0;
  const auto name = [&](uint64_t chunk, uint64_t k) {
    const uint64_t n = std::min(size, universe - chunk * size);
    if (k == (c ? std::max<uint64_t>(1, c * n / size) : 0)) return;
    ++named;
    put_varint(names, chunk - behind);
    put_varint(names, k);
    behind = chunk + 1;
  };
  uint64_t chunk = 0;
  for (size_t i = 0; i < indices.size();) {
    for (; indices[i] / size > chunk; ++chunk) {
      if (c == 0)
        chunk = indices[i] / size - 1;
      else
        name(chunk, 0);
    }
    size_t end = i;
    while (end < indices.size() && indices[end] / size == chunk) ++end;
    name(chunk, end - i);
    uint64_t left = std::min(size, universe - chunk * size), next = chunk * size;
    for (; i < end; ++i) {
      put_gap(bits, left, end - i, indices[i] - next);
      left -= indices[i] - next + 1;
      next = uint64_t{indices[i]} + 1;
    }
    ++chunk;
  }
  for (; c && chunk * size < universe; ++chunk) name(chunk, 0);
  if (universe > size) {
    put_varint(expected, c);
    put_varint(expected, named);
    expected.insert(expected.end(), names.begin(), names.end());
  }
  expected.insert(expected.end(), bits.bytes.begin(), bits.bytes.end());
  if (!std::ranges::equal(o.payload, expected)) return "not the payload that SPEC.md gives";
  if (o.in.name == "chunks of 64" && 8 * static_cast<double>(o.payload.size()) > 7.45 * static_cast<double>(o.in.count))
    return "64 of 4096 cost more than 7.45 bits an index";
  if (o.in.name == "chunks of 4" && 8 * static_cast<double>(o.payload.size()) > 11 * static_cast<double>(o.in.count))
    return "4 of 4096 cost more than 11 bits an index";
  return "";
}

std::vector<input> inputs() {
  std::vector<input> all = supports("chunks");
  random_source random("chunks of known counts");
  for (const uint64_t count : {uint64_t{4}, uint64_t{64}, uint64_t{4095}, uint64_t{4096}}) {
    std::vector<uint32_t> indices;
    const uint32_t chunks = count > 64 ? 16 : 40;  // (What is nearly all of a wide universe goes dense.)
    for (uint32_t chunk = 0; chunk < chunks; ++chunk)
      for (const uint32_t x : random.subset(4096, count)) indices.push_back(4096 * chunk + x);
    const std::string name = "chunks of " + std::to_string(count);
    all.push_back(support(name, chunks * 4096 + 1000, indices));
    // One with fewer, and one with none.
    std::erase_if(indices, [](uint32_t i) { return i / 4096 == 5 || (i / 4096 == 7 && i % 2); });
    all.push_back(support(name + ", but for two", chunks * 4096, indices));
  }
  return all;
}

}  // namespace

codec_case index_chunks() {
  return {
      DR_ROLE_INDEX, "chunks", {"chunks", "chunks(size=1)", "chunks(size=100)", "chunks(size=32768)"}, inputs(), judge};
}

}  // namespace dr::cases
