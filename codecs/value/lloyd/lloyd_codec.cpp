// value=lloyd (SPEC.md).
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/value/lloyd/lloyd_kernel.hpp"
#include "deepreduce/codec.hpp"
#include "primitive/quantised.hpp"

namespace dr {
namespace {

constexpr dr_param params[] = {param_int("levels", "levels of a magnitude, at most", 2, lloyd_levels_max, 4)};

// The kind: with Huffman, levels − 1.
constexpr unsigned huffman_bit = 2, count_shift = 2;

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  const uint64_t n = job.count_max * job.width;
  need.payload = 1 + 2 * lloyd_levels_max + ceil_div(n, 8) + table_coded_bound(n, lloyd_levels_max);
  need.encode_scratch = n;
  return true;
}

// Of many values one in eight, 64 together.
constexpr uint64_t all_looked_at = 65536, looked_at = 64, apart = 512;

void encode(const dr_params& p, const dr_job& job, std::byte* scratch) {
  const uint64_t n = job_count(job) * job.width;
  auto* out = job_out<uint8_t>(job);
  auto* levels = reinterpret_cast<uint8_t*>(scratch);
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* values = job_in<typename T::bits>(job);
    const magnitude_range range = range_of_values<T>(values, n);
    lloyd_histogram histogram(range.least, range.most);
    each_value_block<T>(values, n, [&](uint64_t, size_t length, const uint32_t* v) {
      for (size_t i = 0; i < length; i += n <= all_looked_at ? looked_at : apart)
        histogram.add(v + i, std::min<size_t>(looked_at, length - i));
    });
    const lloyd_levels l = lloyd_levels_of(histogram, static_cast<unsigned>(param_value(p, 0).number));
    uint8_t* const signs = out + 1 + 2 * l.count;
    std::memcpy(out + 1, l.numbers, 2 * l.count);
    each_value_block<T>(values, n, [&](uint64_t first, size_t length, const uint32_t* v) {
      table_quantise.best()(v, length, l.bounds, levels + first, signs + first / 8);
    });
    const table_coding coding = table_coding_of(levels, n, l.count);
    out[0] = static_cast<uint8_t>(kind_levels | (coding.huffman ? huffman_bit : 0) | (l.count - 1) << count_shift);
    const uint8_t* const end = table_encode(levels, n, l.count, coding, signs + ceil_div(n, 8));
    const auto size = static_cast<uint64_t>(end - out);
    *job.out_size = size <= n * sizeof *values ? size : raw_payload<T>(values, n, out);
  });
}

template <class T>
bool decode_levels(const uint8_t* in, uint64_t size, uint64_t n, typename T::bits* values, uint64_t* where) {
  *where = 0;
  const unsigned count = (in[0] >> count_shift) + 1;
  const uint64_t head = 1 + 2 * count, signs_size = ceil_div(n, 8);
  if (!(in[0] & kind_levels) || count > lloyd_levels_max || size < head + signs_size) return false;
  level_table table{{}, count};
  for (unsigned i = 0; i < count; ++i) {
    *where = 1 + 2 * i;
    const auto number = load<uint16_t>(in + *where);
    if (number >= bf16_type::infinity) return false;
    table.of[i] = uint32_t{number} << 16;
  }
  const uint8_t* const signs = in + head;
  *where = head;
  if (!padding_is_zero(signs, n)) return false;
  return table_decode(in, signs + signs_size, in + size, n, count, in[0] & huffman_bit, where,
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
    make_codec("lloyd", "a few levels that suit the values (Lloyd, Max), entropy-coded", 11, DR_ROLE_VALUE,
               DR_NEEDS_FINITE | DR_HOST_ONLY, &operations, {.dtypes = all_value_dtypes, .params = params});

}  // namespace dr
