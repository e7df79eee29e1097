// Gradients that are made against the sample of `topr`: whoever knows where it looks lets it see what is not so.
#include <doctest/doctest.h>

#include <algorithm>

#include "client.hpp"

namespace {

constexpr uint64_t elements = 1 << 18;

// Whether the sample reads the element, or may: it reads a cache line a stretch (keep.cpp), of which there are `lines`.
std::vector<bool> sampled(uint64_t n, uint64_t lines) {
  std::vector<bool> out(n);
  constexpr uint64_t line = 16;
  const uint64_t stretch = n / lines;
  for (uint64_t k = 0; k < lines; ++k) {
    const uint64_t at = k * stretch + client::rng{k + n * 0x9e3779b97f4a7c15}.next() % (stretch - line + 1);
    for (uint64_t i = at < line ? 0 : at - line; i < std::min(n, at + 2 * line); ++i) out[i] = true;
  }
  return out;
}

// seen: what the sample sees is larger than all else, or smaller; the rest rises, so that a threshold that was raised is soon too low again.
client::floats gradient(const std::vector<bool>& seen, uint64_t block, bool larger) {
  client::floats values(seen.size() * block);
  for (uint64_t i = 0; i < values.size(); ++i) {
    const auto x = static_cast<float>(i + 1) / static_cast<float>(values.size());
    values[i] = (i % 2 ? -1.0f : 1.0f) * (seen[i / block] == larger ? 1 + x : x / 1024);
  }
  return values;
}

}  // namespace

TEST_CASE("of a gradient that misleads the sample the largest are kept all the same, and the rest is the residual") {
  client::context c;
  for (const uint32_t block : {1u, 4u})
    for (const bool larger : {false, true})
      for (const char* const feedback : {"", " feedback=residual"}) {
        CAPTURE(block);
        CAPTURE(larger);
        CAPTURE(feedback);
        const client::floats given =
            gradient(sampled(elements / block, block == 1 ? 4096 / 16 : 3 * 4096 / 16), block, larger);
        const std::string text =
            (block == 1 ? std::string("sparsify=topr(ratio=0.01)") : "sparsify=blocks(ratio=0.01,block=4)") + feedback +
            " index=raw value=raw";
        std::vector<uint64_t> state(elements);
        auto t = client::dense(given);
        if (*feedback) t.state = state.data(), t.state_size = state.size() * sizeof state[0];
        const client::floats sent = client::decode(c, client::encode(c, text, {t}), elements);
        // The energy that is sent is that of the largest: of elements, or of blocks.
        std::vector<double> energies(elements / block), kept;
        for (uint64_t i = 0; i < elements; ++i) {
          energies[i / block] += double{given[i]} * given[i];
          if (i % block == 0) kept.push_back(0);
          kept.back() += double{sent[i]} * sent[i];
          if (sent[i] != 0) REQUIRE(sent[i] == given[i]);
        }
        std::vector<double> best = energies;
        const auto count = static_cast<std::ptrdiff_t>(0.01 * static_cast<double>(elements) / block);
        std::nth_element(best.begin(), best.begin() + count - 1, best.end(), std::greater<>());
        CHECK(std::count_if(kept.begin(), kept.end(), [](double e) { return e > 0; }) == count);
        for (uint64_t b = 0; b < kept.size(); ++b)
          if (kept[b] > 0) REQUIRE(energies[b] >= best[static_cast<size_t>(count) - 1] * (1 - 1e-6));
        if (!*feedback) continue;
        float* residual = nullptr;
        uint64_t n = 0;
        REQUIRE(dr_state_residual(state.data(), t.state_size, &residual, &n, nullptr) == DR_OK);
        for (uint64_t i = 0; i < elements; ++i) REQUIRE(residual[i] == given[i] - sent[i]);
      }
}
