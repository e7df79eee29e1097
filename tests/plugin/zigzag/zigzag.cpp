// A plug-in codec to copy: value `zigzag`, which writes the differences of the values' bit patterns as varints.
// Exact. Small where neighbours share sign and exponent; at worst 5 bytes for a 4-byte value.
//
// Payload. The B-bit patterns (B = 32 or 16) are rotated left by one, so that the sign is the lowest bit: p_0 … p_{N-1}.
// With p_i = 0 for i < 0, the difference d_i = p_i - p_{i - stride} mod 2^B, taken as a signed number of B bits, goes out
// as z_i = 2·d_i for d_i >= 0 and -2·d_i - 1 below, in LEB128 (7 bits a byte, low first, top bit: another follows).
// Refuse: a varint that breaks off, has a superfluous zero group or does not fit B bits; bytes behind the last one.
//
// | wire field, parameter | range | default |
// | `stride`              | 1–8   | 1       |      the width of a row, say, so that columns are compared with themselves
#include <deepreduce/version.h>
#include <deepreduce/codec.hpp>

#include <bit>

namespace {

constexpr uint64_t stride_max = 8;

// ⌈B / 7⌉: z is below 2^B, so no varint of ours is longer, and a longer one is corrupt.
template <class Bits>
constexpr uint64_t bytes_max = (8 * sizeof(Bits) + 6) / 7;

template <class Bits>
uint64_t encode_values(const Bits* values, uint64_t n, uint64_t stride, uint8_t* out) {
  uint8_t* at = out;
  for (uint64_t i = 0; i < n; ++i) {
    const Bits before = i < stride ? Bits{0} : std::rotl(values[i - stride], 1);
    const auto d = static_cast<Bits>(std::rotl(values[i], 1) - before);
    const bool negative = d >> (8 * sizeof(Bits) - 1);
    uint64_t z = static_cast<Bits>(negative ? ~(d << 1) : d << 1);
    for (; z >= 0x80; z >>= 7) *at++ = static_cast<uint8_t>(z | 0x80);
    *at++ = static_cast<uint8_t>(z);
  }
  return static_cast<uint64_t>(at - out);
}

// One varint of at most B bits; false if there is none.
template <class Bits>
bool read(const uint8_t*& at, const uint8_t* end, Bits& z) {
  uint64_t x = 0;
  for (unsigned shift = 0; shift < 7 * bytes_max<Bits> && at < end; shift += 7) {
    const uint64_t byte = *at++;
    x |= (byte & 0x7f) << shift;  // < 2^35: no overflow
    if (byte >= 0x80) continue;
    z = static_cast<Bits>(x);
    return z == x && (byte != 0 || shift == 0);
  }
  return false;
}

template <class Bits>
bool decode_values(const dr_job& job, uint64_t n, uint64_t stride) {
  const auto* const in = dr::job_in<uint8_t>(job);
  const uint8_t* at = in;
  const uint8_t* const end = in + dr::job_in_size(job);
  auto* const values = dr::job_out<Bits>(job);
  const auto where = [&] { return static_cast<uint64_t>(at - in); };
  for (uint64_t i = 0; i < n; ++i) {
    Bits z;
    if (!read(at, end, z)) return dr::fault(job, DR_E_CORRUPT, where(), i, "zigzag: not a varint that fits a value");
    const auto d = static_cast<Bits>(z & 1 ? ~(z >> 1) : z >> 1);
    const Bits before = i < stride ? Bits{0} : std::rotl(values[i - stride], 1);
    values[i] = std::rotr(static_cast<Bits>(before + d), 1);
  }
  if (at != end)
    return dr::fault(job, DR_E_CORRUPT, where(), static_cast<uint64_t>(end - at),
                     "zigzag: bytes behind the last value");
  *job.out_size = n * sizeof(Bits);
  return true;
}

uint64_t values_of(const dr_job& job) { return dr::job_count(job) * job.width; }

// Every one of count_max · width values is one varint of 1 … bytes_max bytes. count_max and width are below 2^32, so their
// product does not overflow; five times it would, and is refused.
bool need(const dr_params&, const dr_job& job, dr_need& need) {
  const uint64_t n = job.count_max * job.width;
  if (n > UINT64_MAX / bytes_max<uint32_t>) return false;
  need.payload = n * (job.dtype == DR_F32 ? bytes_max<uint32_t> : bytes_max<uint16_t>);
  return true;
}

void encode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t n = values_of(job), stride = p.fields[0];
  auto* const out = dr::job_out<uint8_t>(job);
  *job.out_size = job.dtype == DR_F32 ? encode_values(dr::job_in<uint32_t>(job), n, stride, out)
                                      : encode_values(dr::job_in<uint16_t>(job), n, stride, out);
}

void decode(const dr_params& p, const dr_job& job, std::byte*) {
  if (job.dtype == DR_F32)
    decode_values<uint32_t>(job, values_of(job), p.fields[0]);
  else
    decode_values<uint16_t>(job, values_of(job), p.fields[0]);
}

constexpr dr_param params[] = {
    dr::param_int("stride", "values from one to the one it is compared with", 1, stride_max, 1)};
constexpr dr_field fields[] = {dr::wire_field("stride", 1, stride_max, 1)};
constexpr dr_ops cpu{.struct_size = sizeof(dr_ops),
                     .resolve = dr::fields_are_params<1>,
                     .need = dr::each_need<need>,
                     .cost = nullptr,
                     .encode = dr::each_job<encode>,
                     .decode = dr::each_job<decode>,
                     .launches = {}};

}  // namespace

extern "C" __attribute__((visibility("default"))) const dr_codec* const* dr_plugin_v2(const dr_host* host,
                                                                                      size_t* count) {
  static const dr_codec zigzag = [] {
    dr_codec c{};
    c.struct_size = sizeof c;
    c.name = "zigzag";
    c.summary = "differences of the values' bit patterns as varints";
    c.id = dr_private_id("org.example.zigzag");
    c.role = DR_ROLE_VALUE;
    c.traits = DR_EXACT;
    c.dtypes = dr::all_value_dtypes;
    c.params = params;
    c.param_count = std::size(params);
    c.fields = fields;
    c.field_count = std::size(fields);
    c.cpu = &cpu;
    return c;
  }();
  static const dr_codec* const all[] = {&zigzag};
  if (host->codec_abi != DR_CODEC_ABI_VERSION) return nullptr;
  *count = std::size(all);
  return all;
}
