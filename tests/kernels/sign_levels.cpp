#include <random>
#include <vector>

#include "codecs/value/sign/sign_kernel.hpp"
#include "levels.hpp"

namespace dr {
namespace {

constexpr uint64_t counts[] = {1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 1000, 1023, 1024, 1025, 2048, 5000};

// Both zeros, subnormals, the largest, and any finite number beside them.
template <class T>
std::vector<typename T::bits> values_of(std::mt19937_64& s, uint64_t n) {
  std::vector<typename T::bits> v(n);
  const typename T::bits rare[] = {0, 1, T::infinity - 1};
  for (auto& x : v) {
    const uint32_t any = static_cast<uint32_t>(s() % T::infinity), sign = s() & 1 ? minus_zero<T> : 0;
    x = static_cast<typename T::bits>((s() % 3 ? any : rare[s() % 3]) | sign);
  }
  return v;
}

template <class T>
void compare() {
  std::mt19937_64 s(4711);
  for (const uint64_t n : counts) {
    CAPTURE(n);
    const auto values = values_of<T>(s, n);
    std::vector<uint8_t> bits((n + 7) / 8 + 1, 0xee);
    sign_pack_scalar<T>(values.data(), n, bits.data());
    const sign_sums sums = sign_sums_scalar<T>(values.data(), n);
    std::vector<typename T::bits> numbers(n + 1, 77);
    sign_unpack_scalar<T>(bits.data(), n, 3, 5, numbers.data());
    for (uint64_t i = 0; i < n; ++i) REQUIRE(numbers[i] == (T::to_f32(values[i]) < 0 ? 3 : 5));
    REQUIRE(bits.back() == 0xee);
    each_fast_level([&](cpu_level level) {
      std::vector<uint8_t> found_bits((n + 7) / 8 + 1, 0xee);
      sign_pack<T>.at(level)(values.data(), n, found_bits.data());
      std::vector<typename T::bits> found(n + 1, 77);
      sign_unpack<T>.at(level)(bits.data(), n, 3, 5, found.data());
      const sign_sums found_sums = sign_sums_of<T>.at(level)(values.data(), n);
      const bool same = found_bits == bits && found == numbers;
      CHECK(same);
      CHECK(found_sums.below == sums.below);
      CHECK(found_sums.other == sums.other);
    });
  }
}

}  // namespace

TEST_CASE("sign: every level packs, sums and unpacks as scalar does, zeros of both signs among them") {
  compare<f32_type>();
  compare<f16_type>();
  compare<bf16_type>();
}

}  // namespace dr
