// index=bloom: queries of all elements, insertion, and p2's choice among the positives.
#include <cmath>
#include <memory>
#include <numeric>
#include <random>

#include "codecs/index/bloom/bloom_policy_kernel.hpp"
#include "kernel_subjects.hpp"

namespace dr::bench {
namespace {

template <class Shape>
struct bloom_input {
  Shape shape;
  uint64_t universe;
  std::vector<uint32_t> support, positives, kept;
  std::vector<uint8_t> filter;
  std::vector<uint32_t> scores, work, highest;
  std::vector<uint16_t> sizes;

  bloom_input(const Shape& s, uint64_t d, uint64_t r) : shape(s), universe(d), kept(r), filter(s.size()) {
    std::mt19937_64 random(d);
    for (uint64_t i = 0; support.size() < r; ++i)
      if (random() % (d - i) < r - support.size()) support.push_back(static_cast<uint32_t>(i));
    insert(cpu());
    positives.resize(4 * r);
    ask(cpu());
    const size_t n = positives.size();
    scores.resize(n);
    work.resize(3 * n);
    highest.resize(8 * filter.size());
    sizes.resize(8 * filter.size());
  }
  void insert(cpu_level level) {
    std::fill(filter.begin(), filter.end(), uint8_t{0});
    bloom_insert(shape, level, filter.data(), support.data(), support.size());
  }
  template <class F>
  void each_part(F&& ask_part) {
    uint32_t found[bloom_part + bloom_slack];
    positives.clear();
    for (uint64_t i = 0; i < universe; i += bloom_part) {
      const auto n = static_cast<uint32_t>(std::min<uint64_t>(bloom_part, universe - i));
      positives.insert(positives.end(), found, found + ask_part(static_cast<uint32_t>(i), n, found));
    }
  }
  void ask(cpu_level level) {
    const auto f = bloom_ask_table(shape).at(level);
    each_part([&](uint32_t first, uint32_t n, uint32_t* found) { return f(shape, filter.data(), first, n, found); });
  }
  void ask_one_by_one() {
    each_part([&](uint32_t first, uint32_t n, uint32_t* found) {
      uint32_t kept_here = 0;
      for (uint32_t i = first; i < first + n; ++i)
        if (bloom_contains(shape, filter.data(), i)) found[kept_here++] = i;
      return kept_here;
    });
  }
  void choose(cpu_level level) {
    std::fill(sizes.begin(), sizes.end(), uint16_t{0});
    std::fill(highest.begin(), highest.end(), 0);
    const uint64_t n = positives.size(), r = support.size();
    bloom_scores(shape, level, positives.data(), n, {sizes.data(), highest.data()}, scores.data(), work.data());
    const bloom_cut cut = bloom_cut_of(scores.data(), n, r, work.data());
    const uint32_t salt = bloom_best_salt(positives.data(), scores.data(), n, cut, support.data(), r, work.data());
    bloom_keep(positives.data(), scores.data(), n, cut, salt, work.data(), kept.data());
  }
};

}  // namespace

void add_bloom(subjects& all) {
  const std::vector<cpu_level> every(std::begin(cpu_levels), std::end(cpu_levels));
  const auto digest = [](const auto& v) { return digest_of(v.data(), v.size() * sizeof v[0]); };
  const auto add = [&](const char* layout, const char* input, const auto& shape, uint64_t d, uint64_t r) {
    auto x = std::make_shared<bloom_input<std::remove_cvref_t<decltype(shape)>>>(shape, d, r);
    const std::string name = std::string("bloom ") + layout;
    const auto elements = static_cast<double>(d), indices = static_cast<double>(r);
    const double bytes = static_cast<double>(x->filter.size() + 4 * x->positives.size());
    all.push_back({name + " ask one by one",
                   input,
                   "element",
                   elements,
                   bytes,
                   {cpu_level::scalar},
                   [x](cpu_level) { x->ask_one_by_one(); },
                   [=] { return digest(x->positives); }});
    all.push_back({name + " ask", input, "element", elements, bytes, every, [x](cpu_level l) { x->ask(l); },
                   [=] { return digest(x->positives); }});
    all.push_back({name + " insert", input, "index", indices, 4 * indices + static_cast<double>(x->filter.size()),
                   every, [x](cpu_level l) { x->insert(l); }, [=] { return digest(x->filter); }});
    all.push_back({name + " p2", input, "index", indices, 4 * indices, every, [x](cpu_level l) { x->choose(l); },
                   [=] { return digest(x->kept); }});
  };
  const double bits = std::log2(1000.0) / std::log(2.0);
  const auto c = static_cast<uint64_t>(std::round(65536 * bits)), split_c = static_cast<uint64_t>(65536 * 16.9);
  for (const auto& [input, d, r] : {std::tuple{"d=36864 r=368", uint64_t{36864}, uint64_t{368}},
                                    {"d=2.36e6 r=23.6e3", uint64_t{2359296}, uint64_t{23592}},
                                    {"d=25e6 r=250e3", uint64_t{25'000'000}, uint64_t{250'000}}}) {
    add("standard", input, bloom_shape{divisor::of(static_cast<uint32_t>(bloom_bits(r, c))), 10, 1}, d, r);
    add("split", input, split_block_shape{static_cast<uint32_t>(split_blocks(r, split_c)), 1}, d, r);
  }
}

}  // namespace dr::bench
