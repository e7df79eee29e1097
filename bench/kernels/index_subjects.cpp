// Bitmap, Elias-Fano and packed gaps of uniform supports, and Huffman codes of their gaps.
#include <memory>

#include "codecs/bytes/huffman/huffman_kernel.hpp"
#include "codecs/index/bitmap/bitmap_kernel.hpp"
#include "codecs/index/chunks/chunks_kernel.hpp"
#include "codecs/index/delta_bitpack/delta_bitpack_kernel.hpp"
#include "codecs/index/delta_pfor/delta_pfor_kernel.hpp"
#include "codecs/index/delta_varint/delta_varint_kernel.hpp"
#include "codecs/index/elias_fano/elias_fano_kernel.hpp"
#include "codecs/index/seeded/seeded_kernel.hpp"
#include "kernel_subjects.hpp"

namespace dr::bench {
namespace {

const std::vector<cpu_level> all_levels{cpu_level::scalar, cpu_level::avx2, cpu_level::avx512};

struct support {
  uint64_t universe;
  std::vector<uint32_t> x;
  uint64_t n() const { return x.size(); }
};
struct buffers {
  std::vector<uint8_t> payload, out;
  std::vector<uint32_t> x;
};

// Uniform without replacement.
std::shared_ptr<support> draw_support(uint64_t universe, uint64_t count) {
  auto s = std::make_shared<support>(support{universe, std::vector<uint32_t>(count)});
  std::vector<std::byte> scratch(seeded_scratch(universe));
  seeded_support(1, universe, count, cpu_level::scalar, scratch.data(), s->x.data());
  return s;
}

// encode(level, out) returns bytes; decode(level, payload, x).
template <class Encode, class Decode>
void add(subjects& all, const std::string& name, const std::string& input, std::shared_ptr<support> s, uint64_t bound,
         Encode encode, Decode decode) {
  auto m = std::make_shared<buffers>();
  m->out.resize(bound);
  m->x.resize(s->n());
  m->payload.resize(bound);
  m->payload.resize(encode(cpu_level::scalar, m->payload.data()));
  const double items = static_cast<double>(s->n()), bytes = 4 * items + static_cast<double>(m->payload.size());
  const std::string sized =
      input + ", " + std::to_string(8 * static_cast<double>(m->payload.size()) / items).substr(0, 6) + " bits";
  all.push_back({name + " encode", sized, "index", items, bytes, all_levels,
                 [=](cpu_level level) { encode(level, m->out.data()); },
                 [=] { return digest_of(m->out.data(), m->payload.size()); }});
  all.push_back({name + " decode", sized, "index", items, bytes, all_levels,
                 [=](cpu_level level) { decode(level, m->payload, m->x.data()); },
                 [=] { return digest_of(m->x.data(), 4 * m->x.size()); }});
}

void add_support(subjects& all, const std::string& input, uint64_t universe, uint64_t count) {
  const auto s = draw_support(universe, count);
  if (20 * count >= universe)
    add(
        all, "bitmap", input, s, ceil_div(universe, 8),
        [=](cpu_level level, uint8_t* out) {
          bitmap_encode(s->x.data(), s->n(), s->universe, level, out);
          return ceil_div(s->universe, 8);
        },
        [=](cpu_level level, const std::vector<uint8_t>& payload, uint32_t* x) {
          bitmap_decode(payload.data(), s->n(), s->universe, level, x);
        });
  add(
      all, "elias_fano", input, s, elias_fano_bound(universe, count),
      [=](cpu_level level, uint8_t* out) { return elias_fano_encode(s->x.data(), s->n(), s->universe, level, out); },
      [=](cpu_level level, const std::vector<uint8_t>& payload, uint32_t* x) {
        uint64_t where;
        elias_fano_decode(payload.data(), payload.size(), s->n(), s->universe, level, x, &where);
      });
  add(
      all, "delta_bitpack", input, s, delta_bitpack_bound(universe, count),
      [=](cpu_level level, uint8_t* out) { return delta_bitpack_encode(s->x.data(), s->n(), level, out); },
      [=](cpu_level level, const std::vector<uint8_t>& payload, uint32_t* x) {
        uint64_t where;
        delta_bitpack_decode(payload.data(), payload.size(), s->n(), s->universe, level, x, &where);
      });
  add(
      all, "delta_pfor", input, s, delta_pfor_bound(universe, count),
      [=](cpu_level level, uint8_t* out) { return delta_pfor_encode(s->x.data(), s->n(), level, out); },
      [=](cpu_level level, const std::vector<uint8_t>& payload, uint32_t* x) {
        uint64_t where;
        delta_pfor_decode(payload.data(), payload.size(), s->n(), s->universe, level, x, &where);
      });
}

// As many in every chunk of 4096.
void add_chunks(subjects& all, uint64_t chunks, uint64_t count) {
  auto s = std::make_shared<support>(support{4096 * chunks, std::vector<uint32_t>(count * chunks)});
  std::vector<std::byte> scratch(seeded_scratch(4096));
  for (uint64_t k = 0; k < chunks; ++k) {
    uint32_t* const x = s->x.data() + k * count;
    seeded_support(k, 4096, count, cpu_level::scalar, scratch.data(), x);
    for (uint64_t i = 0; i < count; ++i) x[i] += static_cast<uint32_t>(4096 * k);
  }
  const chunk_shape shape{s->universe, 4096};
  add(
      all, "chunks", std::to_string(count) + " of 4096", s, index_chunks_bound(shape, s->n()),
      [=](cpu_level, uint8_t* out) { return index_chunks_encode(s->x.data(), s->n(), shape, out); },
      [=](cpu_level, const std::vector<uint8_t>& payload, uint32_t* x) {
        uint64_t where;
        index_chunks_decode(payload.data(), payload.size(), s->n(), shape, x, &where);
      });
}

void add_draws(subjects& all, const std::string& input, uint64_t universe, uint64_t count) {
  struct memory {
    std::vector<std::byte> scratch;
    std::vector<uint32_t> x;
  };
  auto m =
      std::make_shared<memory>(memory{std::vector<std::byte>(seeded_scratch(universe)), std::vector<uint32_t>(count)});
  all.push_back({"seeded", input, "index", static_cast<double>(count), 4.0 * static_cast<double>(count), all_levels,
                 [=](cpu_level level) { seeded_support(1, universe, count, level, m->scratch.data(), m->x.data()); },
                 [=] { return digest_of(m->x.data(), 4 * m->x.size()); }});
}

void add_bytes(subjects& all, const std::string& input, std::vector<uint8_t> bytes) {
  auto m = std::make_shared<buffers>();
  auto in = std::make_shared<std::vector<uint8_t>>(std::move(bytes));
  const uint64_t n = in->size();
  m->out.resize(n);
  m->payload.resize(huffman_bound(n));
  m->payload.resize(huffman_encode(in->data(), n, m->payload.data()));
  auto coded = std::make_shared<std::vector<uint8_t>>(huffman_bound(n));
  const double items = static_cast<double>(n), moved = items + static_cast<double>(m->payload.size());
  const std::string sized =
      input + ", " + std::to_string(8 * static_cast<double>(m->payload.size()) / items).substr(0, 5) + " bits";
  all.push_back({"huffman encode",
                 sized,
                 "byte",
                 items,
                 moved,
                 {cpu_level::scalar},
                 [=](cpu_level) { huffman_encode(in->data(), n, coded->data()); },
                 [=] { return digest_of(coded->data(), m->payload.size()); }});
  all.push_back({"huffman decode",
                 sized,
                 "byte",
                 items,
                 moved,
                 {cpu_level::scalar},
                 [=](cpu_level) {
                   uint64_t size, where;
                   huffman_decode(m->payload.data(), m->payload.size(), m->out.data(), n, &size, &where);
                 },
                 [=] { return digest_of(m->out.data(), n); }});
}

}  // namespace

void add_index(subjects& all) {
  add_support(all, "d=25e6 r=25e3", 25000000, 25000);
  add_support(all, "d=25e6 r=250e3", 25000000, 250000);
  add_support(all, "d=25e6 r=2.5e6", 25000000, 2500000);
  add_support(all, "d=1e6 r=300e3", 1000000, 300000);
  add_support(all, "d=1e6 r=600e3", 1000000, 600000);
  add_support(all, "d=1e6 r=900e3", 1000000, 900000);
  add_chunks(all, 6000, 64);
  add_chunks(all, 24000, 4);
  add_draws(all, "d=25e6 r=250e3", 25000000, 250000);
  add_draws(all, "d=1e6 r=100e3", 1000000, 100000);
  for (const uint64_t count : {250000, 2500000}) {
    const auto s = draw_support(25000000, count);
    std::vector<uint8_t> gaps(delta_varint_bound(s->universe, count));
    gaps.resize(delta_varint_encode(s->x.data(), count, gaps.data()));
    add_bytes(all, "varints of r=" + std::to_string(count), std::move(gaps));
  }
  std::vector<uint8_t> skewed(1000000);
  for (uint64_t i = 0; i < skewed.size(); ++i) skewed[i] = static_cast<uint8_t>(__builtin_ctzll(draw(3, i) | 128));
  add_bytes(all, "1e6 that halve", std::move(skewed));
}

}  // namespace dr::bench
