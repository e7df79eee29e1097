// value=uniform_quant (SPEC.md).
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/family/levels/level_blocks.hpp"
#include "codecs/family/levels/quantised_codec.hpp"
#include "codecs/value/uniform_quant/uniform_quant_kernel.hpp"
#include "codecs/value/uniform_quant/uniform_quant_search_kernel.hpp"
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

template <class T>
uniform_survey survey_of(const typename T::bits* values, uint64_t n) {
  // One pass, while a block is in the cache, by the scale of the first block's largest magnitude.
  magnitude_range range;
  float guess = 0;
  double squares = 0;
  each_value_block<T>(values, n, [&](uint64_t first, size_t length, const uint32_t* v) {
    const magnitude_range r = range_of.best()(v, length);
    range = {std::min(range.least, r.least), std::max(range.largest, r.largest)};
    if (first == 0) guess = uniform_scale_of(std::clamp(r.largest >> 23, uniform_exponent_min, uniform_exponent_max));
    squares += uniform_squares.best()(v, length, guess);
  });
  const uint32_t exponent = range.largest >> 23;
  uniform_survey s{std::bit_cast<float>(range.least), std::bit_cast<float>(range.largest), 0,
                   exponent >= uniform_exponent_min && exponent <= uniform_exponent_max};
  if (!s.usual) return s;
  // Where no square by either scale leaves the normal numbers, one sum is the other times a power of four.
  const float scale = uniform_scale_of(exponent);
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

struct attempt : uniform_attempt {
  uint64_t size = 0;
};

// Its size never passes need.payload.
template <class T>
attempt encode_with(float least, float step, const typename T::bits* values, uint64_t n, uint8_t* out) {
  const uniform_step s{least, step, step > 0 ? 1 / step : 0};
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
  const auto result = uniform_attempt::of(least, step, first, second, counted, units, n);
  out[0] = kind_levels;
  store(out + 1, result.base);
  store(out + 5, step);
  return {result, static_cast<uint64_t>(writer.end() - out)};
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
      for (size_t at = 0; at < length; at += sum_tile)
        squares += tree_sum(std::min(sum_tile, length - at), [&](uint64_t i) {
          const double e = double{std::bit_cast<float>(wide[at + i])} - double{std::bit_cast<float>(v[at + i])};
          return e * e;
        });
    });
  }
  return std::sqrt(squares);
}

// The size of the coded payload, or of a single magnitude instead, if that has less error.
template <class T>
uint64_t no_worse_than_one(const uniform_survey& of, const attempt& a, const typename T::bits* values, uint64_t n,
                           uint8_t* out) {
  if (uniform_surely_better(of, a, n)) return a.size;
  const one_magnitude one = one_magnitude_of<T>(values, n);
  const double exact = error_of<T>(out, a.size, values, n);
  return exact * exact <= one.error ? a.size : encode_with<T>(one.number, 0, values, n, out).size;
}

// 0 if the values are to be sent raw.
template <class T>
uint64_t encode_levels(const dr_params& p, const typename T::bits* values, uint64_t n, uint8_t* out) {
  constexpr bool is_f32 = std::is_same_v<T, f32_type>;
  const uniform_survey of = survey_of<T>(values, n);
  auto search = uniform_search::of(of, n, is_f32, param_value(p, error_param).number,
                                   static_cast<unsigned>(param_value(p, bits_param).number));
  attempt a{};
  while (search.then == uniform_search::tries) {
    a = encode_with<T>(of.least, static_cast<float>(search.step), values, n, out);
    if (a.levels && !is_f32) a.error = error_of<T>(out, a.size, values, n);
    search.judge(a);
  }
  if (search.then == uniform_search::sends_raw) return 0;
  if (search.then == uniform_search::sends) return encode_with<T>(of.least, 0, values, n, out).size;
  return no_worse_than_one<T>(of, a, values, n, out);
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

constinit const dr_codec uniform_quant_codec =
    make_codec("uniform_quant", "uniform levels above the least magnitude, Golomb-coded; bounds the relative L2 error",
               9, DR_ROLE_VALUE, DR_NEEDS_FINITE, &operations,
               {.dtypes = all_value_dtypes, .params = params, .cuda = &uniform_quant_cuda});
constinit const codec_notes uniform_quant_notes = {
    .codec = &uniform_quant_codec,
    .tries =
        [](double error) {
          return error >= 1e-5 ? std::vector<codec_argument>{{"error", error}} : std::vector<codec_argument>{};
        },
    .reads_frames = true};

}  // namespace dr
