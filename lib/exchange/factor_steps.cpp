// The steps of an exchange of factors: those that compute. An error becomes this rank's verdict.
#include "exchange/rank_exchange.hpp"

namespace dr {

void exchange::encode_factor(const step& s) {
  slot_size_[s.slot] = 0;
  const bool begun = factors_->begun();
  if (const dr_status e = factors_->reach(s.range / program_.ranks, failed(), memory())) {
    if (begun)  // the sum at fault is on all ranks: all name the rank that computed it
      poison(e, factors_->owner_of(0, c_.error.where), 0, "%.160s", c_.error.message);
    else
      fail_encode(s, e, c_.error);
  }
  if (failed() || skips(s.range)) return;
  factors_->write(s.range, frame_tag(program_.slots[s.slot]), frame_of(s.slot));
  slot_size_[s.slot] = factors_->room(s.range);
  spend(s, slot_size_[s.slot]);
}

void exchange::sum_factor(const step& s) {
  slot_size_[s.slot] = 0;
  if (failed() || skips(s.range)) return;
  factors_->sum(s.range, frame_tag(program_.slots[s.slot]), gather_frames(s), frame_of(s.slot));
  slot_size_[s.slot] = factors_->room(s.range);
  spend(s, slot_size_[s.slot]);
}

// Stores the sums of a range. After the last range the outputs are written: all ranks have agreed by then.
void exchange::merge_factor(const step& s) {
  if (failed()) return;
  const uint32_t slot = program_.inputs[s.first];
  factors_->store_sum(s.range, frame_of(slot));
  spend(s, slot_size_[slot]);
  if (s.range + 1 < program_.ranges) return;
  if (const dr_status e = factors_->finish(options_.flags & DR_EXCHANGE_SUM)) {
    // (All ranks have the same sums, so all fail here and name the rank that computed the sum.)
    fail_alone(blame(factors_->owner_of(factors_->phases() - 1, c_.error.where), e, "%.160s", c_.error.message));
  }
}

}  // namespace dr
