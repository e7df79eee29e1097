// The verdicts that ranks exchange before any of them writes an output: this rank has all frames, or a rank is at fault.
#pragma once

#include <cstdarg>
#include <cstring>
#include <span>

#include "core/error.hpp"
#include "primitive/rng.hpp"

namespace dr {

// A message, as it lies in memory: the ranks of an exchange run on one kind of machine, as those of MPI
// usually do; `magic` detects another byte order.
struct verdict {
  static constexpr uint32_t magic_value = 0x56586472;  // "rdXV"
  uint32_t magic = magic_value, sequence = 0;          // the number of the call
  uint64_t commits = 0;                                // exchanges that this rank completed before
  uint64_t step = 0;                                   // the caller's
  uint64_t fingerprint = 0;                            // of plan, options and shapes, which are those of all
  int32_t code = DR_OK;                                // of the error, or DR_OK
  uint32_t culprit = 0, depth = 0;                     // the rank at fault, and how early in the program it was seen
  uint32_t stream = 0;
  uint64_t tensor = 0, where = 0, what = 0;
  uint64_t check = 0;
  char message[176] = {};  // a sentence, ends with 0

  static constexpr uint32_t behind = UINT32_MAX;  // depth, of the outcome that names a rank which is
  // Added to the depth by a rank that only saw another give up and does not know the reason. It counts after all that do.
  static constexpr uint32_t hearsay = 1u << 31;

  uint64_t computed_check() const;
  void seal() { check = computed_check(); }
  // Of one that arrived: its check holds, and its fields are valid with so many ranks.
  bool sound(uint32_t ranks) const;
};
static_assert(sizeof(verdict) == 256);

// A rank at fault, and why; of no tensor.
[[gnu::format(printf, 3, 4)]] verdict blame(uint32_t culprit, dr_status code, const char* format, ...);
[[gnu::format(printf, 3, 0)]] verdict blame_with(uint32_t culprit, dr_status code, const char* format,
                                                 va_list arguments);

// The state of a rank's verdict. lost: the transport reported that it will never arrive; no_memory: for want of memory
// here. late: it is sound, but another verdict reports that the rank was late.
enum class arrival : uint8_t { missing, sound, damaged, lost, no_memory, late };

// The rank at fault and its error, from the verdicts of all ranks; verdicts[i] is rank i's. Ranks with the same verdicts
// have the same result. Marks the arrivals that are late.
verdict conclude(std::span<const verdict> verdicts, std::span<arrival> arrivals);

}  // namespace dr
