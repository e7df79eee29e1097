#include <random>
#include <vector>

#include "codecs/value/qsgd/qsgd_payload_kernel.hpp"
#include "levels.hpp"
#include "sweep.hpp"

namespace dr {
namespace {

using source = std::mt19937_64;
constexpr uint64_t level_counts[] = {1, 2, 3, 5, 63, 100, 127, 255, 1000, 32767};
constexpr uint64_t buckets[] = {1, 3, 15, 16, 17, 100, 512, 1000, 1024, 1025, 3000};
constexpr uint64_t counts[] = {1, 2, 7, 8, 9, 15, 16, 17, 33, 511, 512, 513, 2047, 2048, 2049, 5000};

// Any finite number of the type; a small exponent is likely where `exponents` is small.
template <class T>
typename T::bits any_number(source& s, uint32_t exponents) {
  const uint32_t fraction = sizeof(typename T::bits) == 4 ? 23 : T::infinity == 0x7c00 ? 10 : 7;
  const auto sign = static_cast<uint32_t>(s() & 1) * (T::magnitude_mask + 1u);
  const uint32_t most = (T::infinity >> fraction) - 1, mantissa = s() & ((1u << fraction) - 1);
  const auto exponent = static_cast<uint32_t>(s() % (std::min(exponents, most) + 1));
  return static_cast<typename T::bits>(sign | exponent << fraction | mantissa);
}

// Kinds by turns: alike, of all sizes, subnormal, the largest, few apart from zeros of both signs, of one size (so that levels are
// whole before they are rounded by chance), only zeros.
template <class T>
std::vector<typename T::bits> values_of(source& s, uint64_t n, int kind) {
  std::vector<typename T::bits> v(n);
  for (auto& x : v) switch (kind) {
      case 0: x = T::from_f64((static_cast<double>(s() >> 11) * 0x1p-53 - 0.5) * 1e-3); break;
      case 1: x = any_number<T>(s, ~0u); break;
      case 2: x = any_number<T>(s, 0); break;
      case 3: x = T::from_f64(s() & 1 ? T::largest : -T::largest); break;
      case 4:
        x = s() % 300 ? static_cast<typename T::bits>((s() & 1) * (T::magnitude_mask + 1u)) : any_number<T>(s, ~0u);
        break;
      case 5: x = T::from_f64(s() & 1 ? 0x1p-6 : -0x1p-6); break;
      default: x = 0;
    }
  return v;
}

template <class T>
bool same_verdict(cpu_level level, const std::vector<uint8_t>& payload, const qsgd_layout& l) {
  std::vector<typename T::bits> expected(l.n + 1, 77), found = expected;
  const qsgd_verdict a = qsgd_decode_scalar<T>(payload.data(), l, expected.data());
  const qsgd_verdict b = qsgd_decode_at<T>.at(level)(payload.data(), l, found.data());
  return same_fault(a, b) && (a.what || expected == found);
}

template <class T>
void compare() {
  source s(4711);
  size_t refused = 0, combination = 0;
  for (const uint64_t levels : level_counts)
    for (const uint64_t bucket : buckets)
      for (const uint64_t n : counts)
        for (int kind = 0; kind < 7; ++kind) {
          if (!whole_sweep && combination++ % 5) continue;  // 5 divides neither the 7 kinds nor the 16 counts
          CAPTURE(levels);
          CAPTURE(bucket);
          CAPTURE(n);
          CAPTURE(kind);
          const qsgd_layout l(levels, bucket, n);
          const auto values = values_of<T>(s, n, kind);
          const uint64_t key = s();
          std::vector<uint8_t> expected(l.size + 1, 0xee);
          qsgd_encode_scalar<T>(values.data(), l, key, expected.data());
          // Of what no encoder writes: any codes and norms, and one bit of what one wrote.
          std::vector<uint8_t> any(l.size), flipped(expected.begin(), expected.end() - 1);
          for (auto& x : any) x = static_cast<uint8_t>(s());
          if (l.n * l.code_bits % 8) any.back() &= static_cast<uint8_t>((1u << (l.n * l.code_bits % 8)) - 1);
          for (uint64_t b = 0; b < l.buckets; ++b)
            store(any.data() + 4 * b, any_number<f32_type>(s, kind == 2 ? 0 : ~0u) & f32_type::magnitude_mask);
          flipped[s() % l.size] ^= static_cast<uint8_t>(1u << s() % 8);
          std::vector<typename T::bits> out(n);
          refused += qsgd_decode_scalar<T>(flipped.data(), l, out.data()).what != nullptr;
          each_fast_level([&](cpu_level level) {
            std::vector<uint8_t> found(l.size + 1, 0xee);
            qsgd_encode_at<T>.at(level)(values.data(), l, key, found.data());
            const bool same = found == expected;
            CHECK(same);
            CHECK(same_verdict<T>(level, expected, l));
            CHECK(same_verdict<T>(level, any, l));
            CHECK(same_verdict<T>(level, flipped, l));
          });
        }
  CHECK(refused > 100);
}

}  // namespace

TEST_CASE("qsgd: every level writes what scalar writes, reads it back and refuses alike") {
  compare<f32_type>();
  compare<f16_type>();
  compare<bf16_type>();
}

// Codes of a byte: all, of norms that the number of levels divides (whose values lie between two f32 at times), of those
// beside the smallest that f32's arithmetic takes, and of others.
TEST_CASE("qsgd: every code of a byte has scalar's value") {
  source s(4713);
  for (uint32_t levels = 64; levels < 128; ++levels) {
    constexpr uint64_t buckets_of_levels = 24;
    const uint64_t codes = 2 * levels + 2;
    const qsgd_layout l(levels, codes, codes * buckets_of_levels);
    REQUIRE(l.code_bits == 8);
    std::vector<uint8_t> payload(l.size);
    for (const bool tiny : {false, true}) {
      for (uint64_t b = 0; b < l.buckets; ++b) {
        const auto divided = static_cast<float>(levels * (s() % ((uint64_t{1} << 24) / levels)));
        const uint32_t any = any_number<f32_type>(s, ~0u) & f32_type::magnitude_mask;
        const auto beside = static_cast<uint32_t>(qsgd_least_norm + s() % 5 - (tiny ? 2 : 0));
        store(payload.data() + 4 * b, b % 3 == 0   ? std::bit_cast<uint32_t>(divided * 0x1p-10f)
                                      : b % 3 == 1 ? beside
                                      : tiny       ? any
                                                   : (any & 0x3fffffff) + 0x22000000);
        for (uint64_t c = 0; c < codes; ++c) payload[l.norms_size + b * codes + c] = static_cast<uint8_t>(c);
      }
      each_fast_level([&](cpu_level level) {
        CAPTURE(levels);
        CHECK(same_verdict<f32_type>(level, payload, l));
      });
    }
  }
}

// What tests alone call at a level.
template <class T>
constexpr cpu_table<decltype(&qsgd_values_avx2<T>)> values_at{
    nullptr, on_x86(qsgd_values_avx2<T>), on_x86(qsgd_values_avx512<T>), on_arm(qsgd_values_neon<T>)};

// Of every level of every divisor some norms: quotients without a division are rounded as with one.
TEST_CASE("qsgd: every level of every number of levels has scalar's value") {
  source s(4712);
  std::vector<uint32_t> codes, out;
  std::vector<uint16_t> small;
  for (uint32_t levels = 1; levels < 32768; levels += levels < 300 ? 1 : 1 + static_cast<uint32_t>(s() % 200)) {
    codes.clear();
    for (uint32_t i = 0; i <= levels; ++i) codes.push_back(2 * i + (s() & 1));
    out.resize(codes.size());
    small.resize(codes.size());
    const float norm = std::bit_cast<float>(any_number<f32_type>(s, ~0u) & f32_type::magnitude_mask);
    const float less = std::bit_cast<float>((static_cast<uint32_t>(s()) & 0x0fffffff) + 0x30000000);  // of f16's size
    const auto agree = [&](auto type, auto restore, float of, auto& to) {
      using T = decltype(type);
      restore(codes.data(), codes.size(), of, levels, to.data());
      size_t wrong = 0;
      for (size_t i = 0; i < codes.size(); ++i) wrong += to[i] != T::from_f64(qsgd_value(codes[i], of, levels));
      CAPTURE(levels);
      CAPTURE(of);
      CHECK(wrong == 0);
    };
    each_fast_level([&](cpu_level l) {
      agree(f32_type{}, values_at<f32_type>.at(l), norm, out);
      agree(f16_type{}, values_at<f16_type>.at(l), less, small);
      agree(bf16_type{}, values_at<bf16_type>.at(l), norm, small);
    });
  }
}

}  // namespace dr
