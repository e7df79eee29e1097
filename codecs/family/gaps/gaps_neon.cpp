// Eight gaps at a time.
#include "codecs/family/gaps/gaps.hpp"
#include "primitive/packing_vectors.hpp"

#if DR_NEON
namespace dr {

unsigned gaps_neon(const uint32_t* x, size_t n, uint64_t next, uint32_t* gaps) {
  if (n == 0) return 0;
  gaps[0] = static_cast<uint32_t>(x[0] - next);
  uint32x4_t all = vdupq_n_u32(0);
  uint32_t rest = gaps[0];
  size_t i = 1;
  for (; i + 4 <= n; i += 4) {
    // now - before - 1 = now + ~before
    const uint32x4_t gap = vaddq_u32(vld1q_u32(x + i), vmvnq_u32(vld1q_u32(x + i - 1)));
    vst1q_u32(gaps + i, gap);
    all = vorrq_u32(all, gap);
  }
  for (; i < n; ++i) rest |= gaps[i] = x[i] - x[i - 1] - 1;
  return bit_width(rest | vmaxvq_u32(all));  // (the largest has the most bits)
}

uint64_t ungap_neon(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint64_t next, uint32_t* x,
                    uint32_t& all) {
  size_t i = 0;
  if (bits <= narrow_gap_bits) {
    const unpack_4_and_4 unpack(bits);
    const uint32x4_t one = vdupq_n_u32(1);
    uint32x4_t before = vdupq_n_u32(static_cast<uint32_t>(next - 1)), any = vdupq_n_u32(0);
    const auto four = [&](uint32x4_t gaps, uint32_t* to) {
      const uint32x4_t now = vaddq_u32(running_sums(vaddq_u32(gaps, one)), before);
      any = vorrq_u32(any, gaps);
      before = vdupq_laneq_u32(now, 3);
      vst1q_u32(to, now);
    };
    for (; i + 8 <= n && static_cast<size_t>(end - in) >= unpack_4_and_4::reach(bits); i += 8, in += bits) {
      four(unpack.first(in), x + i);
      four(unpack.second(in), x + i + 4);
    }
    any = vorrq_u32(any, vextq_u32(any, any, 2));
    all |= vgetq_lane_u32(any, 0) | vgetq_lane_u32(any, 1);
    next += vgetq_lane_u32(before, 0) - static_cast<uint32_t>(next - 1);  // of 32 bits: a block spans less
  }
  return ungap_scalar(in, end, n - i, bits, next, x + i, all);
}

}  // namespace dr
#endif
