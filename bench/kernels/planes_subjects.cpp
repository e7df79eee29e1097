// value=planes on normally distributed weights, 16 MiB, in the blocks of the codec, with every instruction set.
#include <cmath>
#include <memory>
#include <numbers>

#include "codecs/value/planes/planes_kernel.hpp"
#include "kernel_subjects.hpp"
#include "primitive/rng.hpp"
#include "primitive/value_type.hpp"

namespace dr::bench {
namespace {

template <class T>
std::vector<typename T::bits> normal_weights(uint64_t n) {
  std::vector<typename T::bits> all(n);
  for (uint64_t i = 0; i < n; ++i) {
    const double radius = std::sqrt(-2 * std::log(1 - unit_interval(draw(1, i))));
    all[i] = T::from_f64(0.02 * radius * std::cos(2 * std::numbers::pi * unit_interval(draw(2, i))));
  }
  return all;
}

template <class Bits>
struct planes_memory {
  std::vector<Bits> in, out;
  std::vector<std::byte> scratch;
  std::vector<uint8_t> coded;
  std::vector<uint64_t> ends;  // of blocks
};

template <class T>
void add(subjects& all, const char* type) {
  using bits = typename T::bits;
  using Word = planes_word<bits, true>;
  constexpr uint64_t n = (uint64_t{16} << 20) / sizeof(bits), blocks = n / planes_block;
  auto m = std::make_shared<planes_memory<bits>>();
  m->in = normal_weights<T>(n);
  m->out.resize(n);
  m->coded.resize(planes_bound(n, sizeof(bits)));
  m->ends.resize(blocks);
  m->scratch.resize(std::max(planes_scratch::encode_size(n, Word::size), planes_scratch::decode_size(n, Word::size)));
  const auto encode = [m](cpu_level level) {
    uint8_t* at = m->coded.data();
    for (uint64_t b = 0; b < blocks; ++b) {
      const auto room = planes_scratch::at(m->scratch.data(), n, Word::size);
      at = planes_encode<Word>(m->in.data() + b * planes_block, planes_block, room, at, true, level);
      m->ends[b] = static_cast<uint64_t>(at - m->coded.data());
    }
  };
  const auto decode = [m](cpu_level level) {
    const uint8_t* at = m->coded.data();
    for (uint64_t b = 0; b < blocks; b += 2) {
      const auto room = planes_scratch::at(m->scratch.data(), n, Word::size);
      const uint8_t *const middle = m->coded.data() + m->ends[b], *const end = m->coded.data() + m->ends[b + 1],
                           *const readable = m->coded.data() + m->ends.back();
      if (!planes_decode<Word>(at, middle, end, readable, 2 * planes_block, room, m->out.data() + b * planes_block,
                               true, level))
        return;
      at = end;
    }
  };
  encode(cpu_level::scalar);
  const auto size = static_cast<double>(m->ends.back()), raw = static_cast<double>(n * sizeof(bits));
  const std::string input = std::string(type) + " normal, " + std::to_string(size / raw).substr(0, 6) + " of the bytes";
  const std::vector<cpu_level> levels(std::begin(cpu_levels), std::end(cpu_levels));
  all.push_back({"planes encode", input, "value", static_cast<double>(n), raw + size, levels, encode,
                 [m] { return digest_of(m->coded.data(), m->ends.back()); }});
  all.push_back({"planes decode", input, "value", static_cast<double>(n), raw + size, levels, decode,
                 [m] { return digest_of(m->out.data(), n * sizeof(bits)) * (m->in == m->out); }});
}

}  // namespace

void add_planes(subjects& all) {
  add<bf16_type>(all, "bf16");
  add<f32_type>(all, "f32");
  add<f16_type>(all, "f16");
}

}  // namespace dr::bench
