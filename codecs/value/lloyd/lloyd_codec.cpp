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

// The kind: with Huffman, levels − 1, magnitudes in the row's type.
constexpr unsigned huffman_bit = 2, count_shift = 2, own_type_bit = 64, kind_end = 128;

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  const uint64_t n = job.count_max * job.width;
  need.payload = 1 + 4 * lloyd_levels_max + ceil_div(n, 8) + table_coded_bound(n, lloyd_levels_max);
  need.encode_scratch = ceil_div(n, 4) * 4;
  return true;
}

// Of many values one in eight, 64 together, and all that are above those.
constexpr uint64_t all_looked_at = 65536, looked_at = 64, apart = 512;

template <class T>
bool has_few_magnitudes(const typename T::bits* values, uint64_t n, unsigned requested, lloyd_levels& l) {
  lloyd_few few{requested};
  for (uint64_t first = 0; first < n; first += looked_at) {
    uint32_t wide[looked_at];
    const auto length = static_cast<size_t>(std::min(looked_at, n - first));
    for (size_t i = 0; i < length; ++i) wide[i] = std::bit_cast<uint32_t>(T::to_f32(values[first + i]));
    if (!few.add(wide, length)) return false;
  }
  few.tell(l);
  return true;
}

// largest: the largest magnitude per block; NULL: scan all values.
template <class T>
void find_levels(const typename T::bits* values, uint64_t n, const magnitude_range& range, const uint32_t* largest,
                 unsigned requested, double price, lloyd_levels& l) {
  lloyd_histogram histogram(range.least, range.largest, n);
  uint32_t top = lloyd_bins;
  each_value_block<T>(values, n, [&](uint64_t, size_t length, const uint32_t* v) {
    for (size_t i = 0; i < length; i += largest ? apart : looked_at)
      histogram.add(v + i, std::min<size_t>(looked_at, length - i));
  });
  if (largest) {
    top = histogram.top();
    for (uint64_t first = 0; first < n; first += level_block)
      if (histogram.bin_of(largest[first / level_block]) > top)
        each_value_block<T>(values + first, std::min<uint64_t>(level_block, n - first),
                            [&](uint64_t, size_t length, const uint32_t* v) { histogram.add_above(v, length, top); });
  }
  lloyd_points points(histogram, top, largest ? double{apart} / looked_at : 1);
  lloyd_levels_of(points, requested, price, l);
}

// Levels as they travel: in bf16, or in the row's type where that rounds too coarsely.
struct lloyd_table {
  unsigned number_size = 2;
  bool own_type = false;
  uint8_t numbers[4 * lloyd_levels_max];
  level_table table;  // as in decode
};
template <class T>
lloyd_table table_of(const lloyd_levels& l) {
  lloyd_table t;
  double rounding = 0;
  for (unsigned j = 0; j < l.count; ++j) {
    const double off = bf16_to_f32(f64_to_bf16(saturate<bf16_type>(l.numbers[j]))) - l.numbers[j];
    rounding += l.weights[j] * (off * off);
  }
  t.own_type = rounding > l.rounding && !std::is_same_v<T, bf16_type>;
  t.number_size = t.own_type ? sizeof(typename T::bits) : 2;
  t.table.count = l.count;
  const auto put = [&](auto type, unsigned j) {
    using N = decltype(type);
    const typename N::bits number = N::from_f64(saturate<N>(l.numbers[j]));
    store(t.numbers + j * sizeof number, number);
    t.table.of[j] = std::bit_cast<uint32_t>(T::to_f32(T::from_f64(saturate<T>(N::to_f32(number)))));
  };
  for (unsigned j = 0; j < l.count; ++j) {
    if (t.own_type)
      put(T{}, j);
    else
      put(bf16_type{}, j);
  }
  return t;
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
      t = table_of<T>(l);
      signs = out + 1 + l.count * t.number_size;
      std::memcpy(out + 1, t.numbers, l.count * t.number_size);
      each_value_block<T>(values, n, [&](uint64_t first, size_t length, const uint32_t* v) {
        table_quantise.best()(v, length, l.bounds, levels + first, signs + first / 8);
        if (!sums) return;
        uint32_t got[level_block];
        table_restore.best()(levels + first, length, signs + first / 8, t.table, got);
        lloyd_check.best()(v, got, length, *sums);
      });
    };
    if (has_few_magnitudes<T>(values, n, requested, l)) {
      quantise(nullptr);
    } else {
      const bool sampled = n > all_looked_at;
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
    out[0] = static_cast<uint8_t>(kind_levels | (coding.huffman ? huffman_bit : 0) | (l.count - 1) << count_shift |
                                  (t.own_type ? own_type_bit : 0));
    const uint8_t* const end = table_encode(levels, n, l.count, coding, signs + ceil_div(n, 8));
    const auto size = static_cast<uint64_t>(end - out);
    *job.out_size = size <= n * sizeof *values ? size : raw_payload<T>(values, n, out);
  });
}

template <class T>
bool decode_levels(const uint8_t* in, uint64_t size, uint64_t n, typename T::bits* values, uint64_t* where) {
  *where = 0;
  const unsigned kind = in[0], count = (kind % own_type_bit >> count_shift) + 1;
  const bool own_type = kind & own_type_bit;
  const unsigned number_size = own_type ? sizeof(typename T::bits) : 2;
  const uint64_t head = 1 + count * number_size, signs_size = ceil_div(n, 8);
  if (!(kind & kind_levels) || kind >= kind_end || size < head + signs_size) return false;
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
  return table_decode(in, signs + signs_size, in + size, n, count, kind & huffman_bit, where,
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
               DR_NEEDS_FINITE | DR_HOST_ONLY, &operations, {.dtypes = all_value_dtypes, .params = params});

}  // namespace dr
