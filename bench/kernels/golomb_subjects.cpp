// Split Golomb payloads of uniform index sets.
#include <algorithm>
#include <memory>

#include "codecs/family/golomb/golomb_payload.hpp"
#include "kernel_subjects.hpp"
#include "primitive/rng.hpp"

namespace dr::bench {
namespace {

struct index_set {
  uint64_t universe;
  std::vector<uint32_t> x;
  std::vector<uint8_t> payload;
  std::vector<uint32_t> decoded;
};

// clustered: runs of 65536 whose densities are 1 to 64 times one another's.
std::shared_ptr<index_set> made(uint64_t d, uint64_t r, divisor_rule rule, bool clustered) {
  auto set = std::make_shared<index_set>();
  set->universe = d;
  for (uint64_t i = 0; set->x.size() < r + r / 8; ++i) {
    const uint64_t x = mix64(i) % d;
    if (!clustered || mix64(~i) % 64 < uint64_t{1} << mix64(x / 65536) % 7) set->x.push_back(static_cast<uint32_t>(x));
  }
  std::sort(set->x.begin(), set->x.end());
  set->x.erase(std::unique(set->x.begin(), set->x.end()), set->x.end());
  while (set->x.size() > r) set->x.erase(set->x.begin() + static_cast<ptrdiff_t>(mix64(set->x.size()) % set->x.size()));
  set->payload.resize(golomb_bound(d, set->x.size(), golomb_block_log2));
  set->payload.resize(golomb_encode({set->x.size(), d, golomb_block_log2, rule, cpu_level::scalar}, set->x.data(),
                                    set->payload.data()));
  set->decoded.resize(set->x.size());
  return set;
}

}  // namespace

void add_golomb(subjects& all) {
  const struct {
    const char* name;
    uint64_t d, r;
  } sizes[] = {{"d=36864 r=368", 36864, 368},         {"d=25e6 r=25e3", 25000000, 25000},
               {"d=25e6 r=250e3", 25000000, 250000},  {"d=25e6 r=2.5e6", 25000000, 2500000},
               {"d=1e9 r=100e3", 1000000000, 100000}, {"d=1e6 r=300e3", 1000000, 300000}};
  for (const auto& [name, rule] : {std::pair{"golomb", golomb_rule}, {"golomb adaptive", adaptive_rule}})
    for (const auto& size : sizes) {
      const auto set = made(size.d, size.r, rule, rule.adaptive);
      const double items = static_cast<double>(set->x.size());
      const double bytes = 4 * items + static_cast<double>(set->payload.size());
      const std::vector<cpu_level> levels{cpu_level::scalar, cpu_level::avx2, cpu_level::avx512};
      auto out = std::make_shared<std::vector<uint8_t>>(golomb_bound(size.d, set->x.size(), golomb_block_log2));
      all.push_back(
          {std::string(name) + " encode", size.name, "index", items, bytes, levels,
           [=, rule = rule](cpu_level level) {
             golomb_encode({set->x.size(), set->universe, golomb_block_log2, rule, level}, set->x.data(), out->data());
           },
           [=] { return digest_of(out->data(), set->payload.size()); }});
      all.push_back({std::string(name) + " decode", size.name, "index", items, bytes, levels,
                     [=, rule = rule](cpu_level level) {
                       uint64_t where = 0;
                       golomb_decode({set->x.size(), set->universe, golomb_block_log2, rule, level},
                                     set->payload.data(), set->payload.size(), set->decoded.data(), &where);
                     },
                     [=] { return digest_of(set->decoded.data(), 4 * set->decoded.size()); }});
    }
}

}  // namespace dr::bench
