// A plan with what it costs on the machine of a profile.
#pragma once

#include <string>
#include <unordered_map>

#include "deepreduce/deepreduce.hpp"
#include "exchange_model.hpp"
#include "profile.hpp"

namespace dr::predict {

// Every tensor exactly: what the DDP hook sends of tensors without a plan, beside the others, and of small ones.
inline constexpr const char* exact_text = "index=all value=raw";

class plan_work {
 public:
  // Throws std::runtime_error: the profile has no costs of it. Sizes that it has not come from frames' bounds. flops: a
  // second, of the products of a transform that the profile does not have; 0: not known.
  plan_work(const profile& p, const std::string& text, note_list& notes, double flops = 0);
  // Exact: bytes are known, times are those of the profile, or 0.
  static plan_work exact(const profile& p, note_list& notes);

  const std::string& text() const { return text_; }          // canonical
  const std::string& stage() const { return stage_; }        // "exchange=…"; "": its default
  const std::string& schedule() const { return schedule_; }  // "owner", …; "" likewise
  double encode_ns(double n) const { return n > 0 ? encode_(n) : 0; }
  // Of so many frames into a tensor that is overwritten.
  double merge_ns(double n, double frames) const {
    if (n <= 0) return 0;
    return factor_rank_ ? first_(n) : first_(n) + (frames - 1) * merge_(n);
  }
  double frame_bytes(double n) const;
  double bound_bytes(double n) const;     // of a frame
  double sum_growth(double ranks) const;  // frame of the ranks' sum / frame of one; a frame has no more than the tensor
  bool feedback() const { return feedback_; }
  // Of transform=lowrank: ranks all-reduce two factors of so many columns, in place of frames. encode: the products before
  // the first; merge, of however many ranks: those behind each of the two. 0: it makes frames.
  uint32_t factor_rank() const { return factor_rank_; }
  double factor_bytes(double elements) const { return 4 * size_factor_ * elements; }
  // Of values of 16 bits by themselves: the DDP hook all-reduces them, as such.
  bool is_half() const { return half_; }
  double half_bytes(double elements) const { return 2 * size_factor_ * elements; }
  // The DDP hook makes its tensors one: a sparsifier, or a codec of each value by itself. Else each has levels of its own.
  bool is_flat() const { return flat_; }
  // Of tensors of one batch that are apart: `tensors` of n elements in all.
  double batch_bytes(double n, double tensors) const;

  // For an exchange among so many ranks; a dense tensor is added at the cost of `exact`.
  exchange_work as_exchange_work(double ranks, const plan_work& exact) const;

  // Encoding and merging take `time` times as long, frames are `size` times as large: for what-ifs.
  plan_work scaled(double time, double size) const;
  // Notes that costs of tensors of n elements are beyond what was measured.
  void note_range(double least, double most, note_list& notes) const;
  // Notes that frames of so many ranks' sums are.
  void note_growth(double ranks, note_list& notes) const;

 private:
  plan_work() = default;
  std::string text_, stage_, schedule_;
  curve encode_, first_, merge_, frame_;
  curve add_;  // of `exact`: a dense tensor to another
  bool knows_frame_ = false, feedback_ = false, flat_ = true, half_ = false;
  uint32_t factor_rank_ = 0;
  bool keeps_count_ = false;  // sparsified to as many elements, whatever the tensor
  double size_factor_ = 1;
  std::vector<std::pair<double, double>> growth_;
  mutable std::unordered_map<double, double> bounds_;
};

}  // namespace dr::predict
