// gap_huffman payloads of uniform supports, clustered ones, and one whose gaps are distributed as a gradient's.
#include <algorithm>
#include <memory>
#include <string>

#include "codecs/index/gap_huffman/gap_huffman_kernel.hpp"
#include "kernel_subjects.hpp"
#include "primitive/rng.hpp"

namespace dr::bench {
namespace {

struct gap_set {
  uint64_t universe;
  std::vector<uint32_t> x, decoded;
  std::vector<uint8_t> payload, out;
};

void add(subjects& all, const std::string& input, uint64_t universe, std::vector<uint32_t> x) {
  auto s = std::make_shared<gap_set>();
  s->universe = universe;
  s->x = std::move(x);
  s->decoded.resize(s->x.size());
  s->out.resize(gap_huffman_bound(universe, s->x.size()));
  s->payload.resize(s->out.size());
  s->payload.resize(gap_payload{s->x.size(), universe, cpu_level::scalar}.encode(s->x.data(), s->payload.data()));
  const double items = static_cast<double>(s->x.size()), bytes = 4 * items + static_cast<double>(s->payload.size());
  const std::vector<cpu_level> levels{cpu_level::scalar, cpu_level::avx2, cpu_level::avx512};
  const std::string sized =
      input + ", " + std::to_string(8 * static_cast<double>(s->payload.size()) / items).substr(0, 5) + " bits";
  const auto coded = [s](cpu_level level) { return gap_payload{s->x.size(), s->universe, level}; };
  all.push_back({"gap_huffman encode", sized, "index", items, bytes, levels,
                 [=](cpu_level level) { coded(level).encode(s->x.data(), s->out.data()); },
                 [=] { return digest_of(s->out.data(), s->payload.size()); }});
  all.push_back({"gap_huffman cost", sized, "index", items, 4 * items, levels,
                 [=](cpu_level level) { store(s->out.data(), coded(level).size(s->x.data())); },
                 [=] { return digest_of(s->out.data(), 8); }});
  all.push_back({"gap_huffman decode", sized, "index", items, bytes, levels,
                 [=](cpu_level level) {
                   uint64_t where;
                   const gap_payload p = coded(level);
                   p.get(s->payload.data(), s->payload.size(), 0, p.blocks(), s->decoded.data(), &where);
                 },
                 [=] { return digest_of(s->decoded.data(), 4 * s->decoded.size()); }});
}

// gap(draw) of 64 random bits and the number of the index.
template <class Gap>
void add_gaps(subjects& all, const std::string& input, uint64_t n, Gap gap) {
  std::vector<uint32_t> x(n);
  uint64_t next = 0;
  for (uint64_t i = 0; i < n; ++i) {
    next += gap(mix64(i), i);
    x[i] = static_cast<uint32_t>(next++);
  }
  add(all, input + " r=" + std::to_string(n), next, std::move(x));
}

}  // namespace

void add_gap_huffman(subjects& all) {
  for (const auto& [name, d, r] :
       {std::tuple{"uniform 1%", 36864, 368}, {"uniform 1%", 25000000, 250000}, {"uniform 10%", 5000000, 500000}}) {
    std::vector<uint32_t> x;
    for (uint64_t i = 0; i < static_cast<uint64_t>(d); ++i)
      if (mix64(i) % static_cast<uint64_t>(d) < static_cast<uint64_t>(r)) x.push_back(static_cast<uint32_t>(i));
    const std::string input = std::string(name) + " r=" + std::to_string(x.size());
    add(all, input, static_cast<uint64_t>(d), std::move(x));
  }
  // Gaps of 0 to 14 bits, the fewer the more often: within what gradients' supports take at 1 % (1.5 to 5.4 bits).
  const auto captured = [](uint64_t draw, uint64_t) {
    return draw >> 32 & low_mask(static_cast<unsigned>((draw & 15) * (draw >> 4 & 15) / 16));
  };
  add_gaps(all, "as captured", 2697, captured);
  add_gaps(all, "as captured", 300000, captured);
  // Rows of other densities, of a block or two, so that usually a block has codes of its own.
  add_gaps(all, "clustered", 300000,
           [](uint64_t draw, uint64_t i) { return draw >> 20 & low_mask(mix64(i / 6000) % 9); });
}

}  // namespace dr::bench
