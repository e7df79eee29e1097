// value=uniform_quant (SPEC.md).
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/family/levels/level_blocks.hpp"
#include "codecs/family/levels/quantised_codec.hpp"
#include "codecs/value/uniform_quant/uniform_quant_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

enum { error_param, bits_param };
constexpr dr_param params[] = {
    param_real("error", "bound of the relative L2 error", 1e-5, 1, 5e-3),
    param_int("bits", "instead of error: 2^bits levels between the smallest and the largest magnitude; 0: by error", 0,
              16, 0)};

constexpr uint64_t head_size = 9;  // kind, base, step

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  const uint64_t n = job.count_max * job.width;
  // Each block is sent raw where that is not longer, its signs twice then. (Of payloads longer than 1 + raw values,
  // those are sent.)
  need.payload = head_size + ceil_div(n, 8) + level_table_bound(n) + n * value_size(job.dtype);
  return true;
}

// ---- Decode ----------------------------------------------------------------------------------------------

template <class T>
bool restore_raw(const uint8_t* body, size_t n, const uint8_t* signs, typename T::bits* values) {
  for (size_t i = 0; i < n; ++i) {
    const auto m = load<typename T::bits>(body + i * sizeof(typename T::bits));
    if (m >= T::infinity) return false;
    values[i] = static_cast<typename T::bits>(m | (T::magnitude_mask + 1u) * (signs[i / 8] >> i % 8 & 1u));
  }
  return true;
}

// A payload with levels; false, and *where, if it is corrupt.
template <class T>
bool decode_levels(const uint8_t* in, uint64_t size, uint64_t n, typename T::bits* to, uint64_t* where) {
  *where = 0;
  const uint64_t signs_size = ceil_div(n, 8);
  if (size < head_size + signs_size) return false;
  const auto base = load<uint32_t>(in + 1), step = load<uint32_t>(in + 5);
  if (base >= f32_type::infinity || step >= f32_type::infinity) return false;
  const uint8_t* const signs = in + head_size;
  *where = head_size;
  if (!padding_is_zero(signs, n)) return false;
  level_reader reader(signs + signs_size, in + size, n);
  uint16_t levels[level_block + level_slack];
  for (uint64_t first = 0; first < n; first += level_block) {
    *where = static_cast<uint64_t>(reader.entry() - in);
    if (!reader.next()) return false;
    const auto length = static_cast<size_t>(std::min<uint64_t>(level_block, n - first));
    *where = static_cast<uint64_t>(reader.body() - in);
    typename T::bits* const out = to + first;
    if (reader.code() == raw_block) {
      if (reader.size() != length * sizeof(typename T::bits) ||
          !restore_raw<T>(reader.body(), length, signs + first / 8, out))
        return false;
    } else {
      if (!reader.levels(length, levels)) return false;
      restore_values<T>(length, out, [&](uint32_t* floats) {
        uniform_restore.best()(levels, length, signs + first / 8, std::bit_cast<float>(base),
                               std::bit_cast<float>(step), floats);
      });
    }
  }
  return reader.at_end();
}

void decode(const dr_params&, const dr_job& job, std::byte*) {
  decode_quantised(job, "uniform_quant: the payload is corrupt",
                   [](auto type, const uint8_t* in, uint64_t size, uint64_t n, auto* out, uint64_t* where) {
                     return in[0] == kind_levels && decode_levels<decltype(type)>(in, size, n, out, where);
                   });
}

// ---- Encode ----------------------------------------------------------------------------------------------

constexpr double sqrt_12 = 3.4641016151377544;
constexpr int attempts_max = 12;
// Exponents of the largest magnitude with which every number below is normal.
constexpr uint32_t exponent_min = 67, exponent_max = 227;

struct survey {
  float least, largest;
  double squares;  // Σ v²; of magnitudes whose exponents fit
  bool usual;      // they do
};
// A power of two that brings magnitudes of this exponent to 1 … 2.
float scale_of(uint32_t exponent) { return std::bit_cast<float>((254 - exponent) << 23); }

template <class T>
survey survey_of(const typename T::bits* values, uint64_t n) {
  // One pass, while a block is in the cache, by the scale of the first block's largest magnitude.
  magnitude_range range;
  float guess = 0;
  double squares = 0;
  each_value_block<T>(values, n, [&](uint64_t first, size_t length, const uint32_t* v) {
    const magnitude_range r = range_of.best()(v, length);
    range = {std::min(range.least, r.least), std::max(range.largest, r.largest)};
    if (first == 0) guess = scale_of(std::clamp(r.largest >> 23, exponent_min, exponent_max));
    squares += uniform_squares.best()(v, length, guess);
  });
  const uint32_t exponent = range.largest >> 23;
  survey s{std::bit_cast<float>(range.least), std::bit_cast<float>(range.largest), 0,
           exponent >= exponent_min && exponent <= exponent_max};
  if (!s.usual) return s;
  // Where no square by either scale leaves the normal numbers, one sum is the other times a power of four.
  const float scale = scale_of(exponent);
  if (s.least * std::min(scale, guess) < 0x1p-60f || s.largest * guess > 0x1p60f) {
    squares = 0;
    guess = scale;
    each_value_block<T>(values, n, [&](uint64_t, size_t length, const uint32_t* v) {
      squares += uniform_squares.best()(v, length, scale);
    });
  }
  s.squares = squares / (double{guess} * double{guess});
  return s;
}

// The result of a step. `error`: a bound of the L2 error, not relative.
struct attempt {
  uint64_t size = 0;
  double error = 0;
  bool levels = false, raw = false;  // some block is not raw, some is
  double sum = 0;                    // Σ |v|, where none is
};

// Its size never passes need.payload.
template <class T>
attempt encode_with(const survey& of, float step, const typename T::bits* values, uint64_t n, uint8_t* out) {
  const uniform_step s{of.least, step, step > 0 ? 1 / step : 0};
  uint8_t* const signs = out + head_size;
  level_writer writer(signs + ceil_div(n, 8), n);
  uint16_t levels[level_block + level_slack] = {};
  double first = 0, second = 0;
  uint64_t counted = 0, units = 0;
  each_value_block<T>(values, n, [&](uint64_t at, size_t length, const uint32_t* v) {
    const uniform_sums sums = uniform_quantise.best()(v, length, s, levels, signs + at / 8);
    if (!sums.beyond && writer.make(levels, length, sums.levels) < length * sizeof(typename T::bits)) {
      writer.put();
      first += sums.first;
      second += sums.second;
      counted += length;
      units += sums.levels;
      return;
    }
    typename T::bits magnitudes[level_block];
    for (size_t i = 0; i < length; ++i) magnitudes[i] = static_cast<typename T::bits>(magnitude<T>(values[at + i]));
    writer.put(raw_block, magnitudes, length * sizeof *magnitudes);
  });
  const double mean = counted ? first / static_cast<double>(counted) : 0;
  out[0] = kind_levels;
  store(out + 1, static_cast<float>(of.least + double{step} * (0.5 + mean)));
  store(out + 5, step);
  // Σ (g − mean)², plus the bound of 256 roundings of sums of f32 below 1.
  const double spread = std::max(0.0, second - first * mean) + static_cast<double>(counted) * 0x1p-16;
  const double count = static_cast<double>(counted);
  return {static_cast<uint64_t>(writer.end() - out), step * std::sqrt(spread), counted > 0, counted < n,
          double{of.least} * count + step * (static_cast<double>(units) + first + 0.5 * count)};
}

// Of a payload with levels: the L2 error of the decoded values.
template <class T>
double error_of(const uint8_t* payload, uint64_t size, const typename T::bits* values, uint64_t n) {
  const uint8_t* const signs = payload + head_size;
  level_reader reader(signs + ceil_div(n, 8), payload + size, n);
  uint16_t levels[level_block + level_slack];
  uint32_t wide[level_block];
  typename T::bits got[level_block];
  double squares = 0;
  for (uint64_t first = 0; first < n; first += level_block) {
    reader.next();
    if (reader.code() == raw_block) continue;
    const auto length = static_cast<size_t>(std::min<uint64_t>(level_block, n - first));
    reader.levels(length, levels);
    uniform_restore.best()(levels, length, signs + first / 8, load<float>(payload + 1), load<float>(payload + 5), wide);
    narrow_values<T>(wide, length, got);
    widen_values<T>.best()(got, length, wide);
    each_value_block<T>(values + first, length, [&](uint64_t, size_t, const uint32_t* v) {
      for (size_t i = 0; i < length; ++i) {
        const double e = double{std::bit_cast<float>(wide[i])} - double{std::bit_cast<float>(v[i])};
        squares += e * e;
      }
    });
  }
  return std::sqrt(squares);
}

// The size of the coded payload, or of a single magnitude instead, if that has less error. a.error: as the type has it.
template <class T>
uint64_t no_worse_than_one(const survey& of, const attempt& a, const typename T::bits* values, uint64_t n,
                           uint8_t* out) {
  // Sums of f32 are right to 2^-16 of them.
  const double error = a.error + std::sqrt(of.squares) * 0x1p-20,
               around = of.squares * (1 - 0x1p-12) - a.sum * (a.sum / static_cast<double>(n));
  if (!a.raw && error * error < around) return a.size;
  const one_magnitude one = one_magnitude_of<T>(values, n);
  const double exact = error_of<T>(out, a.size, values, n);
  if (exact * exact <= one.error) return a.size;
  survey flat = of;
  flat.least = one.number;
  return encode_with<T>(flat, 0, values, n, out).size;
}

// 0 if the values are to be sent raw.
template <class T>
uint64_t encode_levels(const dr_params& p, const typename T::bits* values, uint64_t n, uint8_t* out) {
  const survey of = survey_of<T>(values, n);
  if (of.least == of.largest) return encode_with<T>(of, 0, values, n, out).size;
  if (!of.usual) return 0;
  const auto bits = static_cast<int>(param_value(p, bits_param).number);
  if (bits) {
    // Rounded up, so that the largest magnitude has the highest level.
    const double step = (double{of.largest} - of.least) * std::ldexp(1 + 0x1p-20, -bits);
    attempt a = encode_with<T>(of, static_cast<float>(step), values, n, out);
    if (!a.levels) return 0;
    if (!std::is_same_v<T, f32_type>) a.error = error_of<T>(out, a.size, values, n);
    return no_worse_than_one<T>(of, a, values, n, out);
  }
  const double norm = std::sqrt(of.squares), relative = param_value(p, error_param).number;
  // f32's roundings of x and of the value: 6 half units of the last place of a value. Those of the sums of squares:
  // 128.
  const double allowed = norm * (1 - 0x1p-16) * (relative - (std::is_same_v<T, f32_type> ? 0x1p-20 : 0));
  // If an error is uniform in ± step / 2 its squares' mean is step² / 12. Three standard deviations of that mean below,
  // where a second attempt costs more than it brings.
  const double count = static_cast<double>(n), margin = n > 32768 ? 1.34 / std::sqrt(count) + 4e-4 : 0;
  double step = relative * sqrt_12 * norm / std::sqrt(count) * (1 - margin);
  double good_step = 0;  // a step that holds the promise
  for (int i = 0; i < attempts_max; ++i) {
    attempt a = encode_with<T>(of, static_cast<float>(step), values, n, out);
    if (!a.levels) return 0;
    if (!std::is_same_v<T, f32_type>) a.error = error_of<T>(out, a.size, values, n);
    if (a.error <= allowed) {
      // If steps are so coarse that values crowd at a step's lower end, a larger step holds the promise, too.
      if (a.error > 0.97 * allowed || i >= 4) return no_worse_than_one<T>(of, a, values, n, out);
      good_step = step;
      step *= std::min(0.995 * allowed / a.error, 1.5);
    } else if (good_step > 0) {
      a = encode_with<T>(of, static_cast<float>(good_step), values, n, out);
      if (!std::is_same_v<T, f32_type>) a.error = error_of<T>(out, a.size, values, n);
      return no_worse_than_one<T>(of, a, values, n, out);
    } else {
      step *= std::min(0.999 * allowed / a.error, i < attempts_max / 2 ? 1.0 : 0.5);
    }
  }
  return 0;
}

void encode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job) * job.width;
  auto* out = job_out<uint8_t>(job);
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* values = job_in<typename T::bits>(job);
    uint64_t size = encode_levels<T>(p, values, n, out);
    if (size == 0 || size > 1 + n * sizeof *values) size = raw_payload<T>(values, n, out);
    *job.out_size = size;
  });
}

constexpr dr_ops operations = cpu_ops<need, encode, decode>();

}  // namespace

constinit const dr_codec uniform_quant_codec = make_codec(
    "uniform_quant", "uniform levels above the least magnitude, Golomb-coded; bounds the relative L2 error", 9,
    DR_ROLE_VALUE, DR_NEEDS_FINITE | DR_HOST_ONLY, &operations, {.dtypes = all_value_dtypes, .params = params});
constinit const codec_notes uniform_quant_notes = {
    .codec = &uniform_quant_codec, .tries = [](double error) {
      return error >= 1e-5 ? std::vector<codec_argument>{{"error", error}} : std::vector<codec_argument>{};
    }};

}  // namespace dr
