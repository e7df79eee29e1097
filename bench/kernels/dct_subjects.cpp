// The cosine transform of tiles and runs, and its inverse, beside a pass that reads.
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "dct/dct.hpp"
#include "kernel_subjects.hpp"
#include "primitive/rng.hpp"
#include "sparsify/select.hpp"

namespace dr::bench {

void add_dct(subjects& all) {
  constexpr uint32_t side = 4096;
  constexpr uint64_t n = uint64_t{side} * side;
  struct work {
    std::vector<float> in = std::vector<float>(n), out = std::vector<float>(n);
    pool crew{1};
    uint32_t largest = 0;
  };
  auto w = std::make_shared<work>();
  for (uint64_t i = 0; i < n; ++i) w->in[i] = static_cast<float>(draw(1, i) >> 40) * 0x1p-24f - 0.5f;
  const std::vector<cpu_level> levels{cpu_level::scalar, cpu_level::avx2, cpu_level::avx512};
  const auto digest = [=] { return digest_of(w->out.data(), n * sizeof(float)); };
  const auto add = [&](const char* kernel, const char* input, double passes, auto&& run, auto&& of) {
    all.push_back(
        {kernel, input, "element", static_cast<double>(n), passes * 4 * static_cast<double>(n), levels, run, of});
  };
  add(
      "read", "n=4096x4096", 1,
      [=](cpu_level level) {
        w->largest = 0;
        (void)select_at(level, DR_F32).survey(w->in.data(), n, w->largest);
      },
      [=] { return uint64_t{w->largest}; });
  for (const uint32_t columns : {side, uint32_t{0}}) {
    const tile_form form{tile_kind::cosines, 6, columns};
    const char* const input = columns ? "n=4096x4096 tiles of 64x64" : "n=16777216 runs of 64";
    add(
        "dct forward", input, 2,
        [=](cpu_level level) { to_coefficients(form, w->in.data(), n, w->out.data(), w->crew, level); }, digest);
    add(
        "dct inverse", input, 2,
        [=](cpu_level level) {
          from_coefficients(
              form, w->in.data(), n, w->crew,
              [](void* to, uint64_t first, const float* values, uint32_t count) {
                std::memcpy(static_cast<float*>(to) + first, values, count * sizeof(float));
              },
              w->out.data(), level);
        },
        digest);
  }
}

}  // namespace dr::bench
