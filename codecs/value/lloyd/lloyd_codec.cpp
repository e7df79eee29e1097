// value=lloyd (SPEC.md).
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/family/levels/quantised_codec.hpp"
#include "codecs/value/lloyd/lloyd_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

enum { levels_param, price_param };
constexpr dr_param params[] = {
    param_int("levels", "maximum number of levels of a magnitude", 2, lloyd_levels_max, 4),
    param_real("price",
               "Lagrange weight of the rate: mean squares of the values for one bit a value; 0: that of fine levels", 0,
               1, 0)};

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  const uint64_t n = job.count_max * job.width;
  need.payload = 1 + 4 * lloyd_levels_max + ceil_div(n, 8) + table_coded_bound(n, lloyd_levels_max);
  need.encode_scratch = ceil_div(n, 4) * 4;
  return true;
}

template <class T>
bool has_few_magnitudes(const typename T::bits* values, uint64_t n, unsigned requested, lloyd_levels& l) {
  lloyd_few few{requested};
  for (uint64_t first = 0; first < n; first += lloyd_group) {
    uint32_t wide[lloyd_group];
    const auto length = static_cast<size_t>(std::min(lloyd_group, n - first));
    for (size_t i = 0; i < length; ++i) wide[i] = std::bit_cast<uint32_t>(T::to_f32(values[first + i]));
    if (!few.add(wide, length)) return false;
  }
  few.tell(l);
  return true;
}

// largest: the largest magnitude per block; NULL: scan all values. Else of many one in eight, and all that are above
// those.
template <class T>
void find_levels(const typename T::bits* values, uint64_t n, const magnitude_range& range, const uint32_t* largest,
                 unsigned requested, double price, lloyd_levels& l) {
  lloyd_histogram histogram(range.least, range.largest, n);
  uint32_t top = lloyd_bins;
  each_value_block<T>(values, n, [&](uint64_t, size_t length, const uint32_t* v) {
    for (size_t i = 0; i < length; i += largest ? lloyd_apart : lloyd_group)
      histogram.add(v + i, std::min<size_t>(lloyd_group, length - i));
  });
  if (largest) {
    top = histogram.top();
    for (uint64_t first = 0; first < n; first += level_block)
      if (histogram.bins.bin_of(largest[first / level_block]) > top)
        each_value_block<T>(values + first, std::min<uint64_t>(level_block, n - first),
                            [&](uint64_t, size_t length, const uint32_t* v) { histogram.add_above(v, length, top); });
  }
  lloyd_fit fit;
  histogram.tell(top, largest ? double{lloyd_apart} / lloyd_group : 1, fit.points);
  lloyd_levels_of(fit, requested, price, l);
}

level_bounds bounds_of(const lloyd_levels& l) {
  level_bounds bounds;
  bounds.count = static_cast<unsigned>(bit_ceil(l.count < 2 ? 2 : l.count));
  for (uint32_t& bound : bounds.of) bound = ~0u;
  for (unsigned j = 1; j < l.count; ++j) bounds.of[j - 1] = l.least[j];
  return bounds;
}

void encode(const dr_params& p, const dr_job& job, std::byte* scratch) {
  const uint64_t n = job_count(job) * job.width;
  auto* out = job_out<uint8_t>(job);
  auto* levels = reinterpret_cast<uint8_t*>(scratch);
  const auto requested = static_cast<unsigned>(param_value(p, levels_param).number);
  const double price = param_value(p, price_param).number;
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* values = job_in<typename T::bits>(job);
    lloyd_levels l;
    lloyd_table t;
    uint8_t* signs = nullptr;
    const auto quantise = [&](lloyd_sums* sums) {
      lloyd_put_table<T>(l, t);
      const unsigned numbers = l.count * t.number_size;
      for (unsigned i = 0; i < numbers; ++i) out[1 + i] = t.byte(i);
      signs = out + 1 + numbers;
      const level_bounds bounds = bounds_of(l);
      level_table table;
      table.count = l.count;
      std::copy_n(t.of, l.count, table.of);
      each_value_block<T>(values, n, [&](uint64_t first, size_t length, const uint32_t* v) {
        table_quantise.best()(v, length, bounds, levels + first, signs + first / 8);
        if (!sums) return;
        uint32_t got[level_block];
        table_restore.best()(levels + first, length, signs + first / 8, table, got);
        lloyd_check.best()(v, got, length, *sums);
      });
    };
    if (has_few_magnitudes<T>(values, n, requested, l)) {
      quantise(nullptr);
    } else {
      const bool sampled = n > lloyd_all;
      auto* const largest = reinterpret_cast<uint32_t*>(scratch);  // until there are levels
      magnitude_range range;
      each_value_block<T>(values, n, [&](uint64_t first, size_t length, const uint32_t* v) {
        const magnitude_range r = range_of.best()(v, length);
        range = {std::min(range.least, r.least), std::max(range.largest, r.largest)};
        if (sampled) largest[first / level_block] = r.largest;
      });
      find_levels<T>(values, n, range, sampled ? largest : nullptr, requested, price, l);
      if (!sampled) {
        quantise(nullptr);
      } else {
        // Values that are not looked at may be others than those that are.
        lloyd_sums sums(range.largest, l.numbers[0]);
        quantise(&sums);
        if (!sums.surely_better_than_one(n)) {
          find_levels<T>(values, n, range, nullptr, requested, price, l);
          quantise(nullptr);
        }
      }
    }
    const table_coding coding = table_coding_of(levels, n, l.count);
    out[0] = static_cast<uint8_t>(kind_levels | (coding.huffman ? lloyd_huffman_bit : 0) |
                                  (l.count - 1) << lloyd_count_shift | (t.own_type ? lloyd_own_type_bit : 0));
    const uint8_t* const end = table_encode(levels, n, l.count, coding, signs + ceil_div(n, 8));
    const auto size = static_cast<uint64_t>(end - out);
    *job.out_size = size <= n * sizeof *values ? size : raw_payload<T>(values, n, out);
  });
}

template <class T>
bool decode_levels(const uint8_t* in, uint64_t size, uint64_t n, typename T::bits* values, uint64_t* where) {
  *where = 0;
  const unsigned kind = in[0], count = (kind % lloyd_own_type_bit >> lloyd_count_shift) + 1;
  const bool own_type = kind & lloyd_own_type_bit;
  const unsigned number_size = own_type ? sizeof(typename T::bits) : 2;
  const uint64_t head = 1 + count * number_size, signs_size = ceil_div(n, 8);
  if (!(kind & kind_levels) || kind >= lloyd_kind_end || size < head + signs_size) return false;
  level_table table{{}, count};
  const auto number = [&](auto type, unsigned i) {
    using N = decltype(type);
    *where = 1 + i * sizeof(typename N::bits);
    const auto bits = load<typename N::bits>(in + *where);
    table.of[i] = std::bit_cast<uint32_t>(N::to_f32(bits));
    return bits < N::infinity;
  };
  for (unsigned i = 0; i < count; ++i)
    if (!(own_type ? number(T{}, i) : number(bf16_type{}, i))) return false;
  const uint8_t* const signs = in + head;
  *where = head;
  if (!padding_is_zero(signs, n)) return false;
  return table_decode(in, signs + signs_size, in + size, n, count, kind & lloyd_huffman_bit, where,
                      [&](uint64_t first, size_t length, const uint8_t* levels) {
                        restore_values<T>(length, values + first, [&](uint32_t* floats) {
                          table_restore.best()(levels, length, signs + first / 8, table, floats);
                        });
                      });
}

void decode(const dr_params&, const dr_job& job, std::byte*) {
  decode_quantised(job, "lloyd: the payload is corrupt",
                   [](auto type, auto... rest) { return decode_levels<decltype(type)>(rest...); });
}

constexpr dr_ops operations = cpu_ops<need, encode, decode>();

}  // namespace

constinit const dr_codec lloyd_codec =
    make_codec("lloyd", "a few levels fitted to the values (Lloyd, Max), entropy-coded", 11, DR_ROLE_VALUE,
               DR_NEEDS_FINITE, &operations, {.dtypes = all_value_dtypes, .params = params, .cuda = &lloyd_cuda});
constinit const codec_notes lloyd_notes = {.codec = &lloyd_codec, .reads_frames = true};

}  // namespace dr
