// Codecs of other libraries for sorted index sets.
#include <cstring>

#include "byte_peers.hpp"
#include "peer.hpp"
#include "streamvbyte_ssse3.hpp"
#if defined(DR_PEER_STREAMVBYTE)
#include <streamvbyte.h>
#include <streamvbytedelta.h>
#endif
#if defined(DR_PEER_ROARING)
#include <roaring/roaring.h>
#endif

namespace dr::bench {
namespace {

struct buffers {
  std::vector<uint8_t> coded;
  uint64_t size = 0;
  std::vector<uint32_t> words;  // gaps
  std::vector<uint8_t> bytes;   // of gaps
  size_t bytes_size = 0;
};

index_candidate made(const index_set& set, std::string name, std::string of) {
  return {std::move(name), std::move(of), "", {}, {}, std::make_shared<std::vector<uint32_t>>(set.indices.size())};
}

index_candidate memcpy_row(const index_set& set) {
  auto c = made(set, "memcpy", reference);
  auto b = std::make_shared<buffers>();
  b->coded.resize(4 * set.indices.size());
  c.encode = [b, &set] { return std::memcpy(b->coded.data(), set.indices.data(), b->coded.size()), b->coded.size(); };
  c.decode = [b, out = c.out] { std::memcpy(out->data(), b->coded.data(), b->coded.size()); };
  return c;
}

// d bits; decode finds the ones of a word by trailing zeros.
index_candidate bitmap_row(const index_set& set) {
  auto c = made(set, "bitmap", reference);
  if (set.d > 32 * set.indices.size()) return c.missing = "larger than the raw keys", c;
  auto words = std::make_shared<std::vector<uint64_t>>((set.d + 63) / 64);
  c.encode = [words, &set] {
    std::fill(words->begin(), words->end(), 0);
    for (const uint32_t i : set.indices) (*words)[i / 64] |= uint64_t{1} << (i % 64);
    return (set.d + 7) / 8;
  };
  c.decode = [words, out = c.out] {
    uint32_t* to = out->data();
    for (size_t w = 0; w < words->size(); ++w)
      for (uint64_t bits = (*words)[w]; bits; bits &= bits - 1)
        *to++ = static_cast<uint32_t>(64 * w + static_cast<unsigned>(__builtin_ctzll(bits)));
  };
  return c;
}

index_candidate streamvbyte_row(const index_set& set) {
#if defined(DR_PEER_STREAMVBYTE)
  auto c = made(set, "streamvbyte delta", "libstreamvbyte of Debian, without SSSE3");
  auto b = std::make_shared<buffers>();
  const auto n = static_cast<uint32_t>(set.indices.size());
  b->coded.resize(streamvbyte_max_compressedbytes(n) + 16);
  c.encode = [b, n, &set] { return b->size = streamvbyte_delta_encode(set.indices.data(), n, b->coded.data(), 0); };
  c.decode = [b, n, out = c.out] { streamvbyte_delta_decode(b->coded.data(), out->data(), n, 0); };
  return c;
#else
  auto c = made(set, "streamvbyte delta", "libstreamvbyte");
  c.missing = not_here("libstreamvbyte");
  return c;
#endif
}

index_candidate streamvbyte_ssse3_row(const index_set& set) {
  auto c = made(set, "streamvbyte delta, SSSE3", reference);
#if defined(__x86_64__)
  if (!streamvbyte::usable()) return c.missing = "no AVX2 here", c;
  auto b = std::make_shared<buffers>();
  const size_t n = set.indices.size();
  b->coded.resize((n + 3) / 4 + 4 * n + 32);
  c.encode = [b, n, &set] { return b->size = streamvbyte::encode(set.indices.data(), n, b->coded.data()); };
  c.decode = [b, n, out = c.out] { streamvbyte::decode(b->coded.data(), out->data(), n); };
#if defined(DR_PEER_STREAMVBYTE)
  std::vector<uint8_t> theirs(b->coded.size());
  const size_t size = streamvbyte_delta_encode(set.indices.data(), static_cast<uint32_t>(n), theirs.data(), 0);
  if (c.encode() != size || std::memcmp(theirs.data(), b->coded.data(), size) != 0)
    throw std::runtime_error("streamvbyte_ssse3.hpp writes other bytes than the library");
#endif
#else
  c.missing = "not x86-64";
#endif
  return c;
}

index_candidate roaring_row(const index_set& set) {
#if defined(DR_PEER_ROARING)
  auto c = made(set, "CRoaring, portable form", "CRoaring of Debian, without AVX2");
  auto b = std::make_shared<buffers>();
  c.encode = [b, &set] {
    roaring_bitmap_t* r = roaring_bitmap_of_ptr(set.indices.size(), set.indices.data());
    b->coded.resize(roaring_bitmap_portable_size_in_bytes(r));
    b->size = roaring_bitmap_portable_serialize(r, reinterpret_cast<char*>(b->coded.data()));
    roaring_bitmap_free(r);
    return b->size;
  };
  c.decode = [b, out = c.out] {
    roaring_bitmap_t* r =
        roaring_bitmap_portable_deserialize_safe(reinterpret_cast<const char*>(b->coded.data()), b->size);
    roaring_bitmap_to_uint32_array(r, out->data());
    roaring_bitmap_free(r);
  };
  return c;
#else
  auto c = made(set, "CRoaring, portable form", "CRoaring");
  c.missing = not_here("libroaring");
  return c;
#endif
}

size_t write_gaps(std::span<const uint32_t> x, uint8_t* to) {
  uint8_t* const begin = to;
  uint32_t before = 0;
  for (const uint32_t i : x) {
    uint32_t gap = i - before;
    before = i;
    for (; gap >= 128; gap >>= 7) *to++ = static_cast<uint8_t>(gap | 128);
    *to++ = static_cast<uint8_t>(gap);
  }
  return static_cast<size_t>(to - begin);
}

void read_gaps(const uint8_t* from, std::vector<uint32_t>& out) {
  uint32_t sum = 0;
  for (uint32_t& x : out) {
    uint32_t gap = 0, shift = 0;
    for (;; shift += 7) {
      gap |= static_cast<uint32_t>(*from & 127) << shift;
      if (!(*from++ & 128)) break;
    }
    x = sum += gap;
  }
}

index_candidate gaps_row(const index_set& set) {
  auto c = made(set, "LEB128 gaps", reference);
  auto b = std::make_shared<buffers>();
  b->coded.resize(5 * set.indices.size());
  c.encode = [b, &set] { return b->size = write_gaps(set.indices, b->coded.data()); };
  c.decode = [b, out = c.out] { read_gaps(b->coded.data(), *out); };
  return c;
}

index_candidate packed_gaps_row(const index_set& set, const byte_peer& p) {
  auto c = made(set, p.name + " of LEB128 gaps", p.of);
  if (!p.missing.empty()) return c.missing = p.missing, c;
  auto b = std::make_shared<buffers>();
  b->bytes.resize(5 * set.indices.size());
  b->coded.resize(p.bound(b->bytes.size()));
  c.encode = [b, p, &set] {
    b->bytes_size = write_gaps(set.indices, b->bytes.data());
    return b->size = p.pack(b->bytes.data(), b->bytes_size, b->coded);
  };
  c.decode = [b, p, out = c.out] {
    if (!p.expand(b->coded.data(), b->size, b->bytes.data(), b->bytes_size, p.state.get()))
      throw std::runtime_error(p.name + " failed");
    read_gaps(b->bytes.data(), *out);
  };
  return c;
}

// Uncoded keys or gaps of 32 bits.
index_candidate packed_words_row(const index_set& set, const byte_peer& p, bool gaps) {
  auto c = made(set, p.name + (gaps ? " of u32 gaps" : " of u32 keys"), p.of);
  if (!p.missing.empty()) return c.missing = p.missing, c;
  auto b = std::make_shared<buffers>();
  const size_t size = 4 * set.indices.size();
  b->words = set.indices;
  b->coded.resize(p.bound(size));
  c.encode = [b, p, size, gaps, &set] {
    uint32_t before = 0;
    if (gaps)
      for (size_t i = 0; i < set.indices.size(); ++i) b->words[i] = set.indices[i] - before, before = set.indices[i];
    return b->size = p.pack(b->words.data(), size, b->coded);
  };
  c.decode = [b, p, size, gaps, out = c.out] {
    if (!p.expand(b->coded.data(), b->size, out->data(), size, p.state.get()))
      throw std::runtime_error(p.name + " failed");
    uint32_t sum = 0;
    if (gaps)
      for (uint32_t& x : *out) x = sum += x;
  };
  return c;
}

}  // namespace

std::vector<index_candidate> index_peers(const index_set& set) {
  std::vector<index_candidate> all{memcpy_row(set),      bitmap_row(set), gaps_row(set), streamvbyte_ssse3_row(set),
                                   streamvbyte_row(set), roaring_row(set)};
  for (const byte_peer& p : byte_peers()) all.push_back(packed_gaps_row(set, p));
  all.push_back(packed_words_row(set, byte_peers().front(), false));
  for (const byte_peer& p : blosc_peers()) all.push_back(packed_words_row(set, p, true));
  return all;
}

}  // namespace dr::bench
