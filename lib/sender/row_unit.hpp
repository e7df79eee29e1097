// A sparse gradient that is a unit by itself: its rows in a frame, and their mean over ranks. How many rows there are differs
// between ranks and steps.
#pragma once

#include <vector>

#include "api/context.hpp"
#include "deepreduce/sender.h"

namespace dr {

struct encode_request;

class row_unit {
 public:
  explicit row_unit(context& c) : c_(c) {}

  // Of a tensor [rows, width]. The plan is that of dr_plan_rows. UNSUPPORTED: it does not go with rows.
  dr_status create(std::shared_ptr<const plan> method, uint64_t key, dr_dtype dtype, dr_dtype out_dtype, uint64_t rows,
                   uint64_t width);
  uint64_t bound() const { return bound_; }  // of a frame

  // ARGUMENT.
  dr_status place(const dr_sent_rows& rows);
  bool is_placed() const { return view_.index_dtype != 0; }
  bool is_finite() const;
  dr_status encode(encode_request& request, encode_result& made);
  // A frame that came. As range_work::judge.
  dr_status judge(const dr_bytes& frame, uint64_t tag, frame_view& view) const;
  // The sum of frames that were judged, each times its weight.
  dr_status merge(std::span<const dr_bytes> frames, const float* weights, uint64_t tag);
  void merge_nan();  // instead: a row of NaN
  bool is_merged() const { return merged_; }
  dr_sent_rows result() const;

 private:
  void round_values();

  context& c_;
  std::shared_ptr<const plan> method_;
  dr_tensor view_{};
  dr_dtype out_dtype_ = DR_F32;
  uint64_t bound_ = 0;
  bool merged_ = false;
  std::vector<int64_t> indices_;
  std::vector<float> values_;
  std::vector<uint16_t> rounded_;  // values, of an output of a type of 16 bits
};

}  // namespace dr
