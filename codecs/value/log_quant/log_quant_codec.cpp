// value=log_quant (SPEC.md).
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/family/levels/quantised_codec.hpp"
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

// The kind: with Huffman, with a number of its own for level 0, bits.
constexpr unsigned huffman_bit = 2, low_bit = 4, bits_shift = 3;
constexpr uint64_t head_max = 13;

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  const uint64_t n = job.count_max * job.width;
  need.payload = head_max + ceil_div(n, 8) + table_coded_bound(n, table_levels_max);
  need.encode_scratch = n;
  return true;
}

// The mean magnitude at level 0: in eight lanes, i % 8 of a block.
template <class T>
float lowest_mean(const typename T::bits* values, uint64_t n, const uint8_t* levels) {
  double sums[8] = {};
  uint64_t count = 0;
  each_value_block<T>(values, n, [&](uint64_t first, size_t length, const uint32_t* v) {
    for (size_t i = 0; i < length; ++i) {
      const bool low = levels[first + i] == 0;
      sums[i % 8] += low ? double{f32_type::to_f32(v[i] & f32_type::magnitude_mask)} : 0.0;
      count += low;
    }
  });
  double sum = 0;
  for (const double s : sums) sum += s;
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
    // The smallest number of f32, where the quotient is below it.
    const auto floor =
        static_cast<float>(std::ldexp(double{high}, -static_cast<int>(param_value(p, range_param).number)));
    const float low = high > 0 ? std::max({least, floor, FLT_TRUE_MIN}) : 0;
    const log_levels l = log_levels_of(low, high, bits);
    const bool apart = least < low;
    const uint64_t head = 9 + 4 * apart;
    uint8_t* const signs = out + head;
    each_value_block<T>(values, n, [&](uint64_t first, size_t length, const uint32_t* v) {
      table_quantise.best()(v, length, l.bounds, levels + first, signs + first / 8);
    });
    const table_coding coding = table_coding_of(levels, n, l.table.count);
    out[0] = static_cast<uint8_t>(kind_levels | (coding.huffman ? huffman_bit : 0) | (apart ? low_bit : 0) |
                                  bits << bits_shift);
    store(out + 1, low);
    store(out + 5, high);
    if (apart) store(out + 9, lowest_mean<T>(values, n, levels));
    const uint8_t* const end = table_encode(levels, n, l.table.count, coding, signs + ceil_div(n, 8));
    const auto size = static_cast<uint64_t>(end - out);
    *job.out_size = size <= n * sizeof *values ? size : raw_payload<T>(values, n, out);
  });
}

template <class T>
bool decode_levels(const uint8_t* in, uint64_t size, uint64_t n, typename T::bits* values, uint64_t* where) {
  *where = 0;
  const unsigned kind = in[0], bits = kind >> bits_shift;
  const bool apart = kind & low_bit;
  const uint64_t head = 9 + 4 * apart, signs_size = ceil_div(n, 8);
  if (!(kind & kind_levels) || bits < 1 || bits > log_bits_max || size < head + signs_size) return false;
  const auto low = load<uint32_t>(in + 1), high = load<uint32_t>(in + 5), lowest = apart ? load<uint32_t>(in + 9) : 0;
  if (high >= f32_type::infinity || low > high || (low == 0 && high != 0) || lowest >= f32_type::infinity) return false;
  const uint8_t* const signs = in + head;
  *where = head;
  if (!padding_is_zero(signs, n)) return false;
  log_levels l = log_levels_of(std::bit_cast<float>(low), std::bit_cast<float>(high), bits);
  if (apart) l.table.of[0] = lowest;
  return table_decode(in, signs + signs_size, in + size, n, l.table.count, kind & huffman_bit, where,
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
    make_codec("log_quant", "levels on a logarithmic scale, entropy-coded", 10, DR_ROLE_VALUE,
               DR_NEEDS_FINITE | DR_HOST_ONLY, &operations, {.dtypes = all_value_dtypes, .params = params});
// Its relative error is about 0.4 / 2^bits on the tails that sparsifiers keep: the two around the error are tried.
constinit const codec_notes log_quant_notes = {.codec = &log_quant_codec, .tries = [](double error) {
                                                 std::vector<codec_argument> tries;
                                                 for (int bits = 2; bits <= 6; ++bits)
                                                   if (const double expected = 0.4 / (1 << bits);
                                                       expected <= 2 * error && expected > error / 2)
                                                     tries.push_back({"bits", double(bits)});
                                                 return tries;
                                               }};

}  // namespace dr
