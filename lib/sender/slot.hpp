// A slot: a header, the sizes of its frames, the frames. The headers travel in the collective that is needed anyway. They
// hold how long all slots are, the step of each rank, and the number of steps that it did not complete.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/error.hpp"
#include "sender/slot_kernel.hpp"

namespace dr {

constexpr uint64_t slot_alignment = 64;
constexpr uint64_t round_slot(uint64_t size) { return (size + slot_alignment - 1) / slot_alignment * slot_alignment; }

// Writes head and sizes to the beginning of a slot.
void write_prefix(slot_head head, std::span<const uint64_t> sizes, void* slot);

// The prefixes of the slots of all ranks.
struct slot_list {
  std::vector<slot_head> heads;
  std::vector<uint64_t> sizes;  // of all frames, rank by rank
  uint64_t longest = 0;
  bool skips = false;  // some rank asks for it
};
// The limits of a sound prefix.
struct slot_limits {
  std::span<const uint64_t> bounds;  // bytes of each frame
  size_t tensors = 0;
  bool of_sums = false, may_skip = false;
  size_t more_words = 0;  // behind the sizes
};
// CORRUPT: a prefix is damaged, or a field is out of its limits; UNSUPPORTED: of a newer version. The error's frame is the
// rank.
dr_status read_prefixes(std::span<const dr_bytes> slots, const slot_limits& limits, slot_list& out, dr_error& error);

// The heads of all ranks, behind the numbers of a slot that an all-reduce adds up. A head is numbers, which all types hold
// exactly; the other ranks add zeros to it.
constexpr uint64_t summed_head_size = 48;  // bytes of one rank
constexpr uint64_t summed_heads_size(size_t ranks) { return summed_head_size * ranks; }
// Writes this rank's head, and zeros for the others. type: that of the numbers, DR_F32, DR_F16 or DR_BF16. Sends only tag,
// failures, failed and tensor.
void write_summed_head(const slot_head& head, dr_dtype type, size_t ranks, size_t rank, void* at);
// CORRUPT: a head is damaged; the error's frame is the rank.
dr_status read_summed_heads(dr_dtype type, size_t ranks, const void* at, std::vector<slot_head>& out, dr_error& error);

// The numbers of ranks in errors.
struct rank_names {
  std::span<const uint32_t> numbers;  // empty: by position
  uint32_t operator[](size_t rank) const { return rank < numbers.size() ? numbers[rank] : static_cast<uint32_t>(rank); }
};

// ARGUMENT unless all ranks are at one step of the same tensors, and completed the same steps before. behind: the ranks
// that are, with reason OUT_OF_STEP.
dr_status compare_heads(std::span<const slot_head> heads, const rank_names& names, std::vector<uint32_t>& behind,
                        dr_error& error);

// The size of the next slot: that of the last frames, plus the largest growth seen lately. The same on all ranks.
//
// In 300 steps of a GPT of 13 MB (bench/train/byte_gpt.py, four units, two ranks) the slots had 1.044 times the bytes of
// the frames with Top-1 %, and 1.050 times with 8 bits; 26 and 30 of 1,200 frames did not fit. With a constant margin of 1/8
// the factors were 1.127 and 1.124. If the level or the margin falls faster, slots are 1 % smaller, and two to three times
// as many frames do not fit.
class slot_room {
 public:
  slot_room() = default;
  // fixed: all slots have `bound` bytes. Otherwise the first slot is the prefix alone, which has the sizes of the frames.
  slot_room(uint64_t bound, uint64_t prefix, bool fixed)
      : bound_(round_slot(bound)), size_(fixed ? bound_ : round_slot(prefix)), fixed_(fixed) {}

  uint64_t bound() const { return bound_; }
  uint64_t size() const { return size_; }
  // longest: bytes of the longest slot of a step, of all ranks.
  void observe(uint64_t longest);

 private:
  static constexpr double margin_max = 1.0 / 8, margin_min = 1.0 / 256;

  uint64_t bound_ = 0, size_ = 0;
  bool fixed_ = true;
  double level_ = 0;  // bytes that the frames need; it falls slowly
  double margin_ = margin_min;
};

}  // namespace dr
