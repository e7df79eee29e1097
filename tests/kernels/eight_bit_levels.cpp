// natural, dynamic_tree and inceptionn.
#include <cmath>
#include <random>
#include <vector>

#include "codecs/value/dynamic_tree/dynamic_tree_kernel.hpp"
#include "codecs/value/inceptionn/inceptionn_kernel.hpp"
#include "codecs/value/natural/natural_kernel.hpp"
#include "levels.hpp"

namespace dr {
namespace {

using source = std::mt19937_64;
constexpr uint64_t counts[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100, 1023, 1024, 1025, 4095, 4097, 9000};

// Any finite number of the type.
template <class T>
typename T::bits any_number(source& s) {
  for (;;)
    if (const auto x = static_cast<typename T::bits>(s()); is_finite<T>(x)) return x;
}

// Kinds by turns: around 1e-3, of all sizes, subnormal, large, few apart from zeros of both signs, zeros, powers of
// two, multiples of 2^-10 about 0 and 1.
template <class T>
std::vector<typename T::bits> values_of(source& s, uint64_t n, int kind) {
  std::vector<typename T::bits> v(n);
  const auto sign = [&] { return s() & 1 ? 1.0 : -1.0; };
  for (auto& x : v) switch (kind) {
      case 0: x = T::from_f64(sign() * static_cast<double>(s() >> 11) * 0x1p-63); break;
      case 1: x = any_number<T>(s); break;
      case 2: x = any_number<T>(s) & static_cast<typename T::bits>(~T::infinity); break;
      case 3: x = T::from_f64(sign() * T::largest / static_cast<double>(1 + s() % 3)); break;
      case 4:
        x = s() % 300 ? static_cast<typename T::bits>((s() & 1) * (T::magnitude_mask + 1u)) : any_number<T>(s);
        break;
      case 5: x = 0; break;
      case 6: x = any_number<T>(s) & static_cast<typename T::bits>(T::infinity | (T::magnitude_mask + 1u)); break;
      default: x = T::from_f64(sign() * static_cast<double>(s() % 1100) * 0x1p-10);
    }
  return v;
}

template <class F>
void each_type(F&& f) {
  f(f32_type{});
  f(f16_type{});
  f(bf16_type{});
}
template <class T, class F>
void each_input(F&& f) {
  source s(4711);
  for (const uint64_t n : counts)
    for (int kind = 0; kind < 8; ++kind) {
      CAPTURE(n);
      CAPTURE(kind);
      f(values_of<T>(s, n, kind), s());
    }
}
// What `run` writes to `size` numbers is the same at every level as with scalar; and a number behind, which stays.
template <class B, class F>
std::vector<B> same_at_every_level(uint64_t size, F&& run) {
  std::vector<B> expected(size + 1, B{0x5a});
  run(cpu_level::scalar, expected.data());
  CHECK(expected.back() == 0x5a);
  each_fast_level([&](cpu_level level) {
    std::vector<B> found(size + 1, B{0x5a});
    run(level, found.data());
    const bool same = found == expected;
    CHECK(same);
  });
  expected.pop_back();
  return expected;
}

}  // namespace

TEST_CASE("natural: every level writes what scalar writes, and reads it back") {
  each_type([](auto type) {
    using T = decltype(type);
    using bits = typename T::bits;
    each_input<T>([](const std::vector<bits>& values, uint64_t key) {
      const uint64_t n = values.size();
      for (const natural_rounding rounding : {natural_stochastic, natural_nearest})
        same_at_every_level<uint8_t>(1 + n, [&](cpu_level level, uint8_t* out) {
          natural_encode<T>.at(level)(values.data(), n, rounding, key, out);
        });
    });
    std::vector<uint8_t> codes(2000);
    source s(7);
    for (auto& c : codes) c = static_cast<uint8_t>(s());
    for (uint32_t highest = natural_highest_least; highest <= natural_highest_most; ++highest)
      for (const uint64_t n : {uint64_t{1}, uint64_t{15}, 16 + s() % 16, uint64_t{2000}})
        same_at_every_level<bits>(
            n, [&](cpu_level level, bits* out) { natural_decode<T>.at(level)(codes.data(), n, highest, out); });
  });
}

TEST_CASE("dynamic_tree: every level writes what scalar writes, and reads it back") {
  each_type([](auto type) {
    using T = decltype(type);
    using bits = typename T::bits;
    each_input<T>([](const std::vector<bits>& values, uint64_t key) {
      const uint64_t n = values.size();
      const auto payload = same_at_every_level<uint8_t>(dynamic_tree_head + n, [&](cpu_level level, uint8_t* out) {
        dynamic_tree_encode<T>.at(level)(values.data(), n, out);
      });
      auto codes = payload;
      for (auto& c : codes) c = static_cast<uint8_t>(c ^ mix64(key++));
      for (const auto& in : {payload, codes})
        same_at_every_level<bits>(n, [&](cpu_level level, bits* out) {
          dynamic_tree_decode<T>.at(level)(in.data() + dynamic_tree_head, n, load<float>(payload.data()), out);
        });
    });
  });
}

// Around each threshold, where the search by buckets could be wrong: as a search through all of them says.
TEST_CASE("dynamic_tree: the code of every quotient near a threshold is the nearest entry's") {
  for (uint32_t c = 1; c < dynamic_tree_codes; ++c)
    for (int off = -3; off <= 3; ++off) {
      const float y = std::bit_cast<float>(dynamic_tree_least(c) + static_cast<uint32_t>(off));
      uint32_t nearest = 0;
      for (uint32_t k = 1; k < dynamic_tree_codes; ++k)
        if (double{y} >= (dynamic_tree_entries[k - 1] + dynamic_tree_entries[k]) / 2) nearest = k;
      CAPTURE(c);
      CHECK(dynamic_tree_code(y, 1) == nearest);
      CHECK(nearest == (off < 0 ? c - 1 : c));
    }
}

TEST_CASE("inceptionn: every level writes what scalar writes, reads it back and refuses alike") {
  size_t refused = 0;
  each_type([&](auto type) {
    using T = decltype(type);
    using bits = typename T::bits;
    each_input<T>([&](const std::vector<bits>& values, uint64_t key) {
      const uint64_t n = values.size(), most = inceptionn_tags_size(n) + n * sizeof(bits);
      const auto fraction = static_cast<uint32_t>(key % 4 ? 9 + key % 7 : key % (inceptionn_fraction_most + 1));
      const bool by_exponent = key % 8 == 7;
      const inceptionn_rule rule = by_exponent
                                       ? inceptionn_rule::by_exponent(std::ldexp(0.9, -int(key % 13)), sizeof(bits))
                                       : inceptionn_rule(fraction, sizeof(bits));
      const inceptionn_units unit(by_exponent ? inceptionn_by_exponent : fraction);
      uint64_t size = 0;
      auto payload = same_at_every_level<uint8_t>(most, [&](cpu_level level, uint8_t* out) {
        const uint64_t written = by_exponent ? inceptionn_encode_by_exponent<T>(values.data(), n, rule, out)
                                             : inceptionn_encode<T>.at(level)(values.data(), n, rule, out);
        if (level == cpu_level::scalar) size = written;
        CHECK(written == size);
      });
      payload.resize(size);
      auto flipped = payload;
      flipped[key % size] ^= static_cast<uint8_t>(1u << key / size % 8);
      for (const auto& in : {payload, flipped}) {
        std::vector<bits> expected(n), found(n);
        const inceptionn_verdict a = inceptionn_decode<T>.scalar(in.data(), in.size(), n, unit, expected.data());
        refused += a.what != nullptr;
        each_fast_level([&](cpu_level level) {
          const inceptionn_verdict b = inceptionn_decode<T>.at(level)(in.data(), in.size(), n, unit, found.data());
          const bool same = same_fault(a, b) && (a.what || expected == found);
          CHECK(same);
        });
      }
    });
  });
  CHECK(refused > 50);
}

}  // namespace dr
