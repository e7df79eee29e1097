// The head of a slot and its check, for host and device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "primitive/device_row.hpp"
#include "primitive/rng.hpp"

namespace dr {

// As it lies in memory, at any address. The sizes of frames follow, u64.
struct slot_head {
  uint64_t tag = 0;       // of the frames: a digest of the unit, times 2^32, plus the step
  uint64_t longest = 0;   // bytes of the rank's longest slot of this unit in this step
  uint32_t failures = 0;  // steps that the rank did not complete; others may have
  uint32_t failed = 0;    // the last of them
  uint32_t flags = 0;
  uint32_t tensor = 0;  // 1 and the position of the tensor at fault; 0: none
  uint32_t reserved = 0;
  uint32_t check = 0;  // of head and sizes

  static constexpr uint32_t not_finite = 1;  // the rank asks all to skip the step and sends no frame
  // Of a sum: the owner found the ranks out of step; or, with a culprit, it owns nothing and found that one's slot unsound.
  static constexpr uint32_t refused = 2;
  static constexpr uint32_t culprit_shift = 8;  // of a sum, the bits above: 1 and the rank at fault; 0: none

  DR_HD uint32_t culprit() const { return flags >> culprit_shift; }
};
static_assert(sizeof(slot_head) == 40);

// words: the sizes of the frames, and what else stands between them and the frames.
DR_HD constexpr size_t prefix_size(size_t words) { return sizeof(slot_head) + sizeof(uint64_t) * words; }

// words: at any address
DR_HD inline uint32_t check_of(const slot_head& head, const void* words, size_t n) {
  uint64_t sum = combine(combine(head.tag, head.longest), uint64_t{head.failures} << 32 | head.failed);
  sum = combine(combine(sum, uint64_t{head.tensor} << 32 | head.flags), head.reserved);
  for (size_t i = 0; i < n; ++i) {
    uint64_t word;
    std::memcpy(&word, static_cast<const char*>(words) + i * sizeof word, sizeof word);
    sum = combine(sum, word);
  }
  return static_cast<uint32_t>(sum >> 32);
}

// A slot on a device. Its frames lie at places that do not depend on their sizes, which the host does not know. Behind the
// sizes there are four words for each frame, with the reason if it could not be encoded: status, stream, frame and range;
// tensor of the frame, where, what (as in dr_result).
inline constexpr size_t words_a_frame = 5;
enum class fault_kind : uint32_t {
  encode,  // this rank could not encode; of a sum, its owner
  peer,    // of a sum: the culprit could not encode
  frame,   // of a sum: the culprit's frame is refused
  slot     // of a sum: the culprit's slot is damaged, or of other tensors
};
struct slot_reason {
  uint32_t status;
  fault_kind kind;
  uint32_t stream, range, frame;  // those at fault, which may be of another slot
  uint64_t tensor, where, what;
};
DR_HD inline bool has_reason(const uint64_t* words) { return static_cast<uint32_t>(words[0]) != DR_OK; }
DR_HD inline void write_reason(const dr_result& r, uint32_t range, uint32_t frame, uint64_t* words,
                               fault_kind kind = fault_kind::encode) {
  words[0] = (static_cast<uint32_t>(r.status) & 0xffff) | static_cast<uint32_t>(kind) << 16 |
             uint64_t{r.stream & 0xff} << 32 | uint64_t{frame & 0xff} << 40 | uint64_t{range & 0xffff} << 48;
  words[1] = r.tensor;
  words[2] = r.where;
  words[3] = r.what;
}
DR_HD inline slot_reason read_reason(const uint64_t* words) {
  const auto bits = [&](unsigned at, unsigned n) { return static_cast<uint32_t>(words[0] >> at & ((1u << n) - 1)); };
  return {bits(0, 16), static_cast<fault_kind>(bits(16, 8)), bits(32, 8), bits(48, 16), bits(40, 8), words[1], words[2],
          words[3]};
}
// Where the reason of a frame is behind the sizes.
DR_HD constexpr uint64_t reason_word(size_t frames, size_t f) { return frames + (words_a_frame - 1) * f; }
DR_HD constexpr uint64_t aligned_to_16(uint64_t size) { return (size + 15) / 16 * 16; }
// Whether head and words are as a device seals them, and as the host will accept them (read_prefixes).
//   bounds  of the frames
DR_HD inline bool is_sealed(const slot_head& head, const uint64_t* words, size_t frames, const uint64_t* bounds) {
  uint64_t size = prefix_size(words_a_frame * frames), most = size;
  for (size_t f = 0; f < frames; ++f) {
    if (words[f] > bounds[f]) return false;
    size += words[f];
    most += bounds[f];
  }
  return head.check == check_of(head, words, words_a_frame * frames) && head.longest >= size && head.longest <= most &&
         !head.flags && !head.tensor && !head.reserved;
}
DR_HD constexpr uint64_t device_prefix(size_t frames) { return aligned_to_16(prefix_size(words_a_frame * frames)); }

}  // namespace dr
