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
  // Throws std::runtime_error: the profile has no costs of it. Sizes that it has not come from frames' bounds.
  plan_work(const profile& p, const std::string& text, note_list& notes);
  // Exact: bytes are known, times are those of the profile, or 0.
  static plan_work exact(const profile& p, note_list& notes);

  const std::string& text() const { return text_; }    // canonical
  const std::string& stage() const { return stage_; }  // "exchange=…", ""
  double encode_ns(double n) const { return n > 0 ? encode_(n) : 0; }
  // Of so many frames into a tensor that is overwritten.
  double merge_ns(double n, double frames) const { return n > 0 ? first_(n) + (frames - 1) * merge_(n) : 0; }
  double frame_bytes(double n) const;
  double bound_bytes(double n) const;     // of a frame
  double sum_growth(double ranks) const;  // frame of the ranks' sum / frame of one; a frame has no more than the tensor
  bool feedback() const { return feedback_; }

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
  std::string text_, stage_;
  curve encode_, first_, merge_, frame_;
  curve add_;  // of `exact`: a dense tensor to another
  bool knows_frame_ = false, feedback_ = false;
  bool keeps_count_ = false;  // sparsified to as many elements, whatever the tensor
  double size_factor_ = 1;
  std::vector<std::pair<double, double>> growth_;
  mutable std::unordered_map<double, double> bounds_;
};

}  // namespace dr::predict
