// A plan and its costs on the machine of a profile.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "deepreduce/deepreduce.hpp"
#include "exchange_model.hpp"
#include "profile.hpp"

namespace dr::predict {

// The exact plan: the DDP hook uses it for tensors without a plan and for small ones.
inline constexpr const char* exact_text = "index=all value=raw";

class plan_work {
 public:
  // Throws std::runtime_error if the profile lacks its costs; missing frame sizes are replaced by bounds. flops: operations
  // per second of a transform's products, if the profile lacks them; 0: unknown.
  plan_work(const profile& p, const std::string& text, note_list& notes, double flops = 0);
  // The exact plan: bytes are known; times are those of the profile, or 0.
  static plan_work exact(const profile& p, note_list& notes);

  const std::string& text() const { return text_; }          // canonical
  const std::string& stage() const { return stage_; }        // "exchange=…"; "": its default
  const std::string& schedule() const { return schedule_; }  // "owner", …; "": its default
  double encode_ns(double n) const { return n > 0 ? encode_(n) : 0; }
  // Merges `frames` frames into a tensor that is overwritten.
  double merge_ns(double n, double frames) const {
    if (n <= 0) return 0;
    return factor_rank_ ? first_(n) : first_(n) + (frames - 1) * merge_(n);
  }
  double add_ns(double n) const { return n > 0 ? add_(n) : 0; }  // of `exact`: adds a dense tensor to another
  double frame_bytes(double n) const;
  double bound_bytes(double n) const;     // of a frame
  double sum_growth(double ranks) const;  // frame of the ranks' sum / frame of one; at most the whole tensor
  bool feedback() const { return feedback_; }
  // transform=lowrank: ranks all-reduce two factors with this many columns instead of frames. encode: the products before
  // the first factor; merge, for any number of ranks: the products after the two. 0: not a transform.
  uint32_t factor_rank() const { return factor_rank_; }
  double factor_bytes(double elements) const { return 4 * size_factor_ * elements; }
  // Whether it consists of plain 16-bit values, which the DDP hook all-reduces.
  double half_bytes(double elements) const { return 2 * size_factor_ * elements; }
  // For a batch of `tensors` separate tensors with n elements in all.
  double batch_bytes(double n, double tensors) const;
  const std::shared_ptr<const plan>& method() const { return method_; }

  // For an exchange among `ranks`; adding a dense tensor costs as in `exact`.
  exchange_work as_exchange_work(double ranks, const plan_work& exact) const;

  // Scales the times by `time` and frames by `size`, for what-ifs.
  plan_work scaled(double time, double size) const;
  // Adds a note if tensors of low to high elements are outside the measured range.
  void note_range(double low, double high, note_list& notes) const;
  // Adds a note if frames of `ranks` ranks' sums are.
  void note_growth(double ranks, note_list& notes) const;

 private:
  plan_work() = default;
  std::string text_, stage_, schedule_;
  std::shared_ptr<const plan> method_;
  curve encode_, first_, merge_, frame_;
  curve add_;  // of `exact`
  bool knows_frame_ = false, feedback_ = false;
  uint32_t factor_rank_ = 0;
  bool keeps_count_ = false;  // sparsified to a fixed number of elements
  double size_factor_ = 1;
  std::vector<std::pair<double, double>> growth_;
  mutable std::unordered_map<double, double> bounds_;
};

}  // namespace dr::predict
