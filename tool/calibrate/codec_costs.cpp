#include "codec_costs.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>

#include "tool/compare/factors.hpp"
#include "tool/compare/metrics.hpp"

namespace dr::calibrate {
namespace {

constexpr int min_rounds = 5, max_rounds = 200;

double now_ns() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

sample sample_of(uint64_t size, const std::vector<double>& values) {
  const compare::timing t = compare::summarize(values);
  return {size, t.median, t.spread};
}

dr_call call_of(uint64_t seed, uint64_t step) {
  auto call = sized<dr_call>();
  call.seed = call.private_seed = seed;
  call.step = step;
  return call;
}

// The plan bound to one tensor, its outputs and its state.
struct bench {
  bench(context& c, const plan& p, std::vector<float> values) : gradient(std::move(values)), out(gradient.size()) {
    dr_tensor t = dense(gradient);
    state.resize((state_size(p, t) + 7) / 8);
    if (!state.empty()) t.state = state.data(), t.state_size = 8 * state.size();
    outs = {dense_out(out)};
    bound.emplace(c, p, std::span(&t, 1), outs);
    room.resize(bound->bound());
  }
  std::span<const std::byte> encode(const dr_call& call) {
    return std::span<const std::byte>(room).first(bound->encode_into(room, &call));
  }
  void decode(std::span<const std::byte> frame) { bound->decode(frame); }
  void add(std::span<const std::byte> frame) {
    auto options = sized<dr_decode_options>();
    options.flags = DR_DECODE_ADD;
    const dr_bytes one = bytes_of(frame);
    bound->merge(std::span(&one, 1), {}, &options);
  }

  std::vector<float> gradient, out;
  std::vector<uint64_t> state;
  std::vector<dr_tensor_out> outs;
  std::vector<std::byte> room;
  std::optional<binding> bound;
};

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

void verify(bench& b, const plan& p, const dr_call& call) {
  const std::span<const std::byte> frame = b.encode(call);
  b.decode(frame);
  const std::vector<float> decoded = b.out;
  std::vector<float> expected(decoded.size(), 1.0F);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += decoded[i];
  std::ranges::fill(b.out, 1.0F);
  b.add(frame);
  if (!same_bits(b.out, expected))
    throw std::runtime_error(fmt::format("{}: merge adds something else than decode yields", p.text()));
  auto info = sized<dr_plan_info>();
  auto e = sized<dr_error>();
  if (dr_plan_describe(p.get(), &info, &e) != DR_OK) throw error(e);
  const uint32_t lossy = DR_PLAN_SPARSIFIES | DR_PLAN_LOSSY_VALUES | DR_PLAN_LOSSY_SUPPORT | DR_PLAN_FEEDBACK;
  const auto equal = [](float x, float y) { return x == y; };  // (a zero may lose its sign)
  if ((info.flags & lossy) == 0 && !std::ranges::equal(decoded, b.gradient, equal))
    throw std::runtime_error(fmt::format("{}: the plan is exact, but decode yields another tensor", p.text()));
}

// Evicts the caches. Writing as much as the last cache holds would cause write-backs while a plan is timed, so only the near
// caches are filled by writes.
void evict(uint64_t size) {
  constexpr uint64_t line = 64, near_caches = uint64_t{8} << 20;
  static std::vector<unsigned char> memory;
  if (memory.size() != size) memory.assign(size, 1);
  static unsigned char value = 0;
  const uint64_t written = std::min(size, near_caches);
  unsigned read = 0;
  for (uint64_t i = 0; i < size - written; i += line) read += memory[i];
  std::memset(memory.data() + (size - written), ++value, written);
  asm volatile("" : : "r"(memory.data()), "r"(read) : "memory");
}

}  // namespace

std::vector<float> gradient_pool::cut(uint64_t begin, uint64_t elements) const {
  std::vector<float> part(elements);
  for (uint64_t at = 0, from = begin % values.size(); at < elements; from = 0) {
    const uint64_t n = std::min<uint64_t>(elements - at, values.size() - from);
    std::copy_n(values.begin() + static_cast<ptrdiff_t>(from), n, part.begin() + static_cast<ptrdiff_t>(at));
    at += n;
  }
  return part;
}

sample measure_add(const gradient_pool& data, uint64_t elements, const timing_settings& settings) {
  const std::vector<float> gradient = data.cut(0, elements);
  std::vector<float> sum(elements, 1.0F);
  std::vector<double> times;
  const double end = now_ns() + 1e9 * settings.seconds / 3;
  for (int round = 0; round < min_rounds || (round < max_rounds && now_ns() < end); ++round) {
    evict(settings.evicted_bytes);
    const double begin = now_ns();
    for (uint64_t i = 0; i < elements; ++i) sum[i] += gradient[i];
    asm volatile("" : : "r"(sum.data()) : "memory");
    times.push_back(now_ns() - begin);
  }
  return sample_of(elements, times);
}

costs_at measure_at(context& c, const plan& p, const gradient_pool& data, uint64_t elements,
                    const timing_settings& settings) {
  bench b(c, p, data.cut(0, elements));
  verify(b, p, call_of(settings.seed, 0));
  std::vector<double> encode, merge, decode, bytes;
  const auto timed = [&](std::vector<double>& into, auto&& work) {
    evict(settings.evicted_bytes);
    const double begin = now_ns();
    work();
    into.push_back(now_ns() - begin);
  };
  const double end = now_ns() + 1e9 * settings.seconds;
  for (int round = 0; round < min_rounds || (round < max_rounds && now_ns() < end); ++round) {
    const dr_call call = call_of(settings.seed, static_cast<uint64_t>(round) + 1);
    std::span<const std::byte> frame;
    timed(encode, [&] { frame = b.encode(call); });
    timed(decode, [&] { b.decode(frame); });
    timed(merge, [&] { b.add(frame); });
    bytes.push_back(static_cast<double>(frame.size()));
  }
  return {sample_of(elements, encode), sample_of(elements, merge), sample_of(elements, decode),
          sample_of(elements, bytes)};
}

costs_at measure_factors_at(context& c, const plan& p, const gradient_pool& data, uint64_t elements,
                            const timing_settings& settings) {
  const auto rows = static_cast<uint64_t>(std::sqrt(static_cast<double>(elements))), width = elements / rows;
  compare::tensor t;
  t.shape = {rows, width}, t.elements = rows * width;
  const std::vector<float> values = data.cut(0, t.elements);
  t.data = compare::tensor_bytes(4 * t.elements);
  std::memcpy(t.data.writable().data(), values.data(), 4 * t.elements);
  const std::span<const compare::tensor> one(&t, 1);
  compare::factors factors(c, p, one, settings.seed);
  std::vector<float> out(t.elements);
  std::vector<double> begin, rest;
  const double end = now_ns() + 1e9 * settings.seconds;
  for (int round = 0; round < min_rounds || (round < max_rounds && now_ns() < end); ++round) {
    evict(settings.evicted_bytes);
    const compare::factors::times took = factors.round(one, out);
    begin.push_back(took.begin_ns), rest.push_back(took.rest_ns);
  }
  const sample behind = sample_of(elements, rest);
  return {sample_of(elements, begin), behind, behind, {}};
}

double error_of(context& c, const plan& p, std::span<const compare::tensor> tensors, uint64_t seed) {
  const bool transforms = compare::is_transform(std::string(p.text()));
  double squares = 0, all = 0;
  for (const compare::tensor& t : tensors) {
    if (transforms && t.shape.size() < 2) continue;
    std::vector<float> g(t.elements), arrived(t.elements);
    std::memcpy(g.data(), t.data.data(), 4 * t.elements);
    if (transforms) {
      compare::factors(c, p, std::span(&t, 1), seed).round(std::span(&t, 1), arrived);
    } else {
      bench b(c, p, g);
      b.decode(b.encode(call_of(seed, 0)));
      arrived = b.out;
    }
    double lost = 0, energy = 0;
    for (size_t i = 0; i < g.size(); ++i) {
      if (std::bit_cast<uint32_t>(g[i]) != std::bit_cast<uint32_t>(arrived[i]))  // (a NaN that is sent is not lost)
        lost += std::pow(static_cast<double>(g[i]) - static_cast<double>(arrived[i]), 2);
      energy += std::pow(static_cast<double>(g[i]), 2);
    }
    const auto n = static_cast<double>(t.elements);
    if (lost != 0 && energy != 0) squares += n * compare::quotient(lost, energy);
    all += n;
  }
  return all > 0 ? std::sqrt(squares / all) : std::numeric_limits<double>::quiet_NaN();
}

std::vector<std::pair<uint32_t, double>> sum_growth(context& c, const plan& p, const gradient_pool& data,
                                                    std::span<const std::vector<float>> ranks, uint64_t elements,
                                                    uint64_t seed) {
  const auto gradient = [&](uint32_t rank) {
    return ranks.empty() ? data.cut(rank * elements, elements) : ranks[rank];
  };
  const auto frame_of = [&](std::vector<float> values, uint32_t rank) {
    bench b(c, p, std::move(values));
    dr_call call = call_of(seed, 0);
    call.private_seed = seed + rank;
    const std::span<const std::byte> frame = b.encode(call);
    return std::vector<std::byte>(frame.begin(), frame.end());
  };
  std::vector<std::pair<uint32_t, double>> growth;
  if (elements == 0) return growth;
  std::vector<float> sum;
  double own = 0;
  for (uint32_t rank = 0; rank < 8 && (ranks.empty() || rank < ranks.size()); ++rank) {
    const std::vector<float> values = gradient(rank);
    const std::vector<std::byte> frame = frame_of(values, rank);
    own += static_cast<double>(frame.size());
    sum.resize(values.size());
    std::vector<dr_tensor_out> outs{dense_out(sum)};
    auto options = sized<dr_decode_options>();
    options.flags = DR_DECODE_ADD;
    const dr_bytes one = bytes_of(frame);
    c.merge(std::span(&one, 1), {}, outs, &options);
    const uint32_t n = rank + 1;
    if (n == 2 || n == 4 || n == 8) growth.emplace_back(n, static_cast<double>(frame_of(sum, 0).size()) * n / own);
  }
  return growth;
}

}  // namespace dr::calibrate
