// value=log_quant (SPEC.md).
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/family/levels/quantised_codec.hpp"
#include "codecs/family/levels/table_levels.hpp"
#include "codecs/value/log_quant/log_quant_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

enum { bits_param, range_param };
constexpr dr_param params[] = {
    param_int("bits", "2^bits levels on a logarithmic scale", 1, log_bits_max, 4),
    param_int("range",
              "maximum number of octaves below the largest magnitude that levels cover; smaller values share one level",
              1, 64, 8)};

constexpr uint64_t head_max = log_head + 4;

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  const uint64_t n = job.count_max * job.width;
  need.payload = head_max + ceil_div(n, 8) + table_coded_bound(n, table_levels_max);
  need.encode_scratch = n;
  return true;
}

struct log_levels {
  level_bounds bounds;
  level_table table;
};

// 2^bits levels from `low` to `high`, 0 < low <= high, or both 0.
log_levels log_levels_of(float low, float high, unsigned bits) {
  log_levels l;
  l.table.count = l.bounds.count = 1u << bits;
  each_log_level(low, high, bits, [&](unsigned i, float number, float bound) {
    l.table.of[i] = std::bit_cast<uint32_t>(number);
    l.bounds.of[i] = std::bit_cast<uint32_t>(bound);
  });
  for (unsigned i = l.table.count - 1; i < table_levels_max; ++i) l.bounds.of[i] = ~0u;
  return l;
}

// The mean magnitude at level 0, of those below `bound`.
template <class T>
float lowest_mean(const typename T::bits* values, uint64_t n, uint32_t bound) {
  uint64_t count = 0;
  const double sum = sum_of_values<T>(values, n, [&](uint64_t, uint32_t v) {
    const uint32_t m = v & f32_type::magnitude_mask;
    count += m < bound;
    return m < bound ? double{f32_type::to_f32(m)} : 0.0;
  });
  return count ? static_cast<float>(sum / static_cast<double>(count)) : 0;
}

void encode(const dr_params& p, const dr_job& job, std::byte* scratch) {
  const uint64_t n = job_count(job) * job.width;
  auto* out = job_out<uint8_t>(job);
  auto* levels = reinterpret_cast<uint8_t*>(scratch);
  const auto bits = static_cast<unsigned>(param_value(p, bits_param).number);
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* values = job_in<typename T::bits>(job);
    const magnitude_range range = range_of_values<T>(values, n);
    const auto least = std::bit_cast<float>(range.least), high = std::bit_cast<float>(range.largest);
    const float low = log_quant_low(least, high, static_cast<unsigned>(param_value(p, range_param).number));
    const log_levels l = log_levels_of(low, high, bits);
    const bool apart = least < low;
    const uint64_t head = log_head + 4 * apart;
    uint8_t* const signs = out + head;
    each_value_block<T>(values, n, [&](uint64_t first, size_t length, const uint32_t* v) {
      table_quantise.best()(v, length, l.bounds, levels + first, signs + first / 8);
    });
    const table_coding coding = table_coding_of(levels, n, l.table.count);
    out[0] = static_cast<uint8_t>(kind_levels | (coding.huffman ? log_huffman_bit : 0) | (apart ? log_lowest_bit : 0) |
                                  bits << log_bits_shift);
    store(out + 1, low);
    store(out + 5, high);
    if (apart) store(out + 9, lowest_mean<T>(values, n, l.bounds.of[0]));
    const uint8_t* const end = table_encode(levels, n, l.table.count, coding, signs + ceil_div(n, 8));
    const auto size = static_cast<uint64_t>(end - out);
    *job.out_size = size <= n * sizeof *values ? size : raw_payload<T>(values, n, out);
  });
}

template <class T>
bool decode_levels(const uint8_t* in, uint64_t size, uint64_t n, typename T::bits* values, uint64_t* where) {
  *where = 0;
  const unsigned kind = in[0], bits = kind >> log_bits_shift;
  const bool apart = kind & log_lowest_bit;
  const uint64_t head = 9 + 4 * apart, signs_size = ceil_div(n, 8);
  if (!(kind & kind_levels) || bits < 1 || bits > log_bits_max || size < head + signs_size) return false;
  const auto low = load<uint32_t>(in + 1), high = load<uint32_t>(in + 5), lowest = apart ? load<uint32_t>(in + 9) : 0;
  if (high >= f32_type::infinity || low > high || (low == 0 && high != 0) || lowest >= f32_type::infinity) return false;
  const uint8_t* const signs = in + head;
  *where = head;
  if (!padding_is_zero(signs, n)) return false;
  log_levels l = log_levels_of(std::bit_cast<float>(low), std::bit_cast<float>(high), bits);
  if (apart) l.table.of[0] = lowest;
  return table_decode(in, signs + signs_size, in + size, n, l.table.count, kind & log_huffman_bit, where,
                      [&](uint64_t first, size_t length, const uint8_t* levels) {
                        restore_values<T>(length, values + first, [&](uint32_t* floats) {
                          table_restore.best()(levels, length, signs + first / 8, l.table, floats);
                        });
                      });
}

void decode(const dr_params&, const dr_job& job, std::byte*) {
  decode_quantised(job, "log_quant: the payload is corrupt",
                   [](auto type, auto... rest) { return decode_levels<decltype(type)>(rest...); });
}

constexpr dr_ops operations = cpu_ops<need, encode, decode>();

}  // namespace

constinit const dr_codec log_quant_codec =
    make_codec("log_quant", "levels on a logarithmic scale, entropy-coded", 10, DR_ROLE_VALUE, DR_NEEDS_FINITE,
               &operations, {.dtypes = all_value_dtypes, .params = params, .cuda = &log_quant_cuda});
// Its relative error is about 0.4 / 2^bits on the tails that sparsifiers keep: the two around the error are tried, 2 bits of any larger error.
constinit const codec_notes log_quant_notes = {.codec = &log_quant_codec,
                                               .tries =
                                                   [](double error) {
                                                     std::vector<codec_argument> tries;
                                                     for (int bits = 2; bits <= 6; ++bits)
                                                       if (const double expected = 0.4 / (1 << bits);
                                                           expected <= 2 * error && (expected > error / 2 || bits == 2))
                                                         tries.push_back({"bits", double(bits)});
                                                     return tries;
                                                   },
                                               .reads_frames = true};

}  // namespace dr
