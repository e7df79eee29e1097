// Codecs of other libraries for values, lossless and lossy.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "byte_peers.hpp"
#include "peer.hpp"
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif
#if defined(DR_PEER_ZFP)
#include <zfp.h>
#endif

// The compiler vectorises the loops below, for the best instruction set of the CPU.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DR_EACH_LEVEL __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4"), optimize("O3")))
#else
#define DR_EACH_LEVEL
#endif

namespace dr::bench {
namespace {

constexpr size_t bucket = 512;

struct value_buffers {
  std::vector<uint8_t> coded;
  uint64_t size = 0;
  std::vector<float> scales;
};

value_candidate made(const value_set& set, std::string name, std::string of, bool exact) {
  return {std::move(name),
          std::move(of),
          "",
          {},
          {},
          std::make_shared<std::vector<float>>(set.values.size()),
          {},
          {},
          exact};
}

value_candidate memcpy_row(const value_set& set) {
  auto c = made(set, "memcpy", reference, true);
  auto b = std::make_shared<value_buffers>();
  b->coded.resize(4 * set.values.size());
  c.encode = [b, &set] { return std::memcpy(b->coded.data(), set.values.data(), b->coded.size()), b->coded.size(); };
  c.decode = [b, out = c.out] { std::memcpy(out->data(), b->coded.data(), b->coded.size()); };
  return c;
}

// Round to nearest even, in the upper half of an f32. Finite values only.
DR_EACH_LEVEL void to_bf16(const float* in, uint16_t* out, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(in[i]);
    out[i] = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
}
DR_EACH_LEVEL void from_bf16(const uint16_t* in, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(static_cast<uint32_t>(in[i]) << 16);
}

value_candidate bf16_row(const value_set& set) {
  auto c = made(set, "bf16", reference, false);
  auto half = std::make_shared<std::vector<uint16_t>>(set.values.size());
  c.encode = [half, &set] { return to_bf16(set.values.data(), half->data(), half->size()), 2 * half->size(); };
  c.decode = [half, out = c.out] { from_bf16(half->data(), out->data(), out->size()); };
  return c;
}

#if defined(__x86_64__)
DR_EACH_LEVEL float largest(const float* x, size_t n) {
  uint32_t top = 0;  // order of magnitudes is order of bits
  for (size_t i = 0; i < n; ++i) top = std::max(top, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  return std::bit_cast<float>(top);
}

// n is a multiple of 8.
__attribute__((target("avx2,f16c"))) void to_fp16(const float* in, uint16_t* out, size_t n, float scale) {
  for (size_t i = 0; i < n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_mul_ps(_mm256_loadu_ps(in + i), _mm256_set1_ps(scale)), 0));
}
__attribute__((target("avx2,f16c"))) void from_fp16(const uint16_t* in, float* out, size_t n, float scale) {
  for (size_t i = 0; i < n; i += 8)
    _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))),
                                            _mm256_set1_ps(scale)));
}

// (The __builtin_cpu_supports of clang 16 does not know f16c.)
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & 1u << 29) && __builtin_cpu_supports("avx2");
}

// Scaled by a power of two so that the largest magnitude is near 2^15: unscaled gradients are often below the range of
// fp16.
value_candidate fp16_row(const value_set& set) {
  auto c = made(set, "fp16, scaled", reference, false);
  if (!has_f16c()) return c.missing = "no F16C here", c;
  const size_t n = set.values.size(), eights = n / 8 * 8;
  struct state {
    std::vector<uint16_t> half;
    float scale = 1, in[8] = {}, out[8] = {};  // for elements that do not fill a vector
  };
  auto s = std::make_shared<state>();
  s->half.resize(eights + 8);
  c.encode = [s, n, eights, &set] {
    int exponent;
    std::frexp(largest(set.values.data(), n), &exponent);
    s->scale = std::ldexp(1.0f, std::clamp(15 - exponent, -100, 100));
    to_fp16(set.values.data(), s->half.data(), eights, s->scale);
    std::copy(set.values.begin() + static_cast<ptrdiff_t>(eights), set.values.end(), s->in);
    to_fp16(s->in, s->half.data() + eights, 8, s->scale);
    return 2 * n + 4;
  };
  c.decode = [s, n, eights, out = c.out] {
    from_fp16(s->half.data(), out->data(), eights, 1 / s->scale);
    from_fp16(s->half.data() + eights, s->out, 8, 1 / s->scale);
    std::copy(s->out, s->out + (n - eights), out->data() + eights);
  };
  return c;
}
#else
value_candidate fp16_row(const value_set& set) {
  auto c = made(set, "fp16, scaled", reference, false);
  c.missing = "not x86-64";
  return c;
}
#endif

// Sign-magnitude levels of the largest magnitude of 512, rounded to nearest.
DR_EACH_LEVEL void to_int8(const float* in, int8_t* out, float* scales, size_t n) {
  for (size_t b = 0; b < n; b += bucket) {
    const size_t size = std::min(bucket, n - b);
    uint32_t top = 0;  // order of magnitudes is order of bits
    for (size_t i = 0; i < size; ++i) top = std::max(top, std::bit_cast<uint32_t>(in[b + i]) & 0x7fffffffu);
    const auto m = std::bit_cast<float>(top);
    const float scale = m > 0 ? 127 / m : 0;
    scales[b / bucket] = m;
    for (size_t i = 0; i < size; ++i) {
      const float x = in[b + i] * scale;
      out[b + i] = static_cast<int8_t>(static_cast<int32_t>(x + (x < 0 ? -0.5f : 0.5f)));
    }
  }
}
DR_EACH_LEVEL void from_int8(const int8_t* in, const float* scales, float* out, size_t n) {
  for (size_t b = 0; b < n; b += bucket) {
    const float scale = scales[b / bucket] / 127;
    const size_t size = std::min(bucket, n - b);
    for (size_t i = 0; i < size; ++i) out[b + i] = static_cast<float>(in[b + i]) * scale;
  }
}

value_candidate int8_row(const value_set& set) {
  auto c = made(set, "int8, absmax of 512", reference, false);
  auto b = std::make_shared<value_buffers>();
  const size_t n = set.values.size();
  b->coded.resize(n);
  b->scales.resize((n + bucket - 1) / bucket);
  c.encode = [b, n, &set] {
    to_int8(set.values.data(), reinterpret_cast<int8_t*>(b->coded.data()), b->scales.data(), n);
    return n + 4 * b->scales.size();
  };
  c.decode = [b, n, out = c.out] {
    from_int8(reinterpret_cast<const int8_t*>(b->coded.data()), b->scales.data(), out->data(), n);
  };
  return c;
}

#if defined(DR_PEER_ZFP)
struct zfp_state {
  zfp_field* field;
  zfp_stream* zfp = zfp_stream_open(nullptr);
  bitstream* bits = nullptr;
  std::vector<uint8_t> coded;
  uint64_t size = 0;

  zfp_state(std::vector<float>& values, double rate)
      : field(zfp_field_1d(values.data(), zfp_type_float, values.size())) {
    zfp_stream_set_rate(zfp, rate, zfp_type_float, 1, 0);
    coded.resize(zfp_stream_maximum_size(zfp, field));
    bits = stream_open(coded.data(), coded.size());
    zfp_stream_set_bit_stream(zfp, bits);
  }
  zfp_state(const zfp_state&) = delete;
  ~zfp_state() { zfp_field_free(field), zfp_stream_close(zfp), stream_close(bits); }
};

value_candidate zfp_row(const value_set& set, int rate) {
  auto c = made(set, "zfp 1-D, rate " + std::to_string(rate), std::string("zfp ") + ZFP_VERSION_STRING, false);
  // zfp's fields are not const, though encode only reads.
  auto s = std::make_shared<zfp_state>(const_cast<std::vector<float>&>(set.values), rate);
  c.encode = [s, &set] {
    zfp_field_set_pointer(s->field, const_cast<float*>(set.values.data()));
    zfp_stream_rewind(s->zfp);
    return s->size = zfp_compress(s->zfp, s->field);
  };
  c.decode = [s, out = c.out] {
    zfp_field_set_pointer(s->field, out->data());
    zfp_stream_rewind(s->zfp);
    if (!zfp_decompress(s->zfp, s->field)) throw std::runtime_error("zfp failed");
  };
  return c;
}
#endif

value_candidate packed_row(const value_set& set, const byte_peer& p) {
  auto c = made(set, p.name, p.of, true);
  if (!p.missing.empty()) return c.missing = p.missing, c;
  auto b = std::make_shared<value_buffers>();
  const size_t size = 4 * set.values.size();
  b->coded.resize(p.bound(size));
  c.encode = [b, p, size, &set] { return b->size = p.pack(set.values.data(), size, b->coded); };
  c.decode = [b, p, size, out = c.out] {
    if (!p.expand(b->coded.data(), b->size, out->data(), size, p.state.get()))
      throw std::runtime_error(p.name + " failed");
  };
  return c;
}

}  // namespace

std::vector<value_candidate> value_peers(const value_set& set) {
  std::vector<value_candidate> all{memcpy_row(set), fp16_row(set), bf16_row(set), int8_row(set)};
#if defined(DR_PEER_ZFP)
  for (const int rate : {16, 12, 8, 6}) all.push_back(zfp_row(set, rate));
#else
  all.push_back(made(set, "zfp 1-D", "zfp", false));
  all.back().missing = not_here("libzfp");
#endif
  for (const byte_peer& p : byte_peers()) all.push_back(packed_row(set, p));
  for (const byte_peer& p : blosc_peers()) all.push_back(packed_row(set, p));
  return all;
}

}  // namespace dr::bench
