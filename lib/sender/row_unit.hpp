// A sparse gradient that is a unit by itself: its rows in a frame, and their mean over ranks. The number of rows differs
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

  // For a tensor [rows, width]. method: from dr_plan_rows. UNSUPPORTED: the plan cannot send rows.
  dr_status create(std::shared_ptr<const plan> method, uint64_t key, dr_dtype dtype, dr_dtype out_dtype, uint64_t rows,
                   uint64_t width);
  uint64_t bound() const { return bound_; }  // of a frame

  // ARGUMENT.
  dr_status place(const dr_sent_rows& rows);
  bool is_placed() const { return view_.index_dtype != 0; }
  bool is_finite() const;
  dr_status encode(encode_request& request, encode_result& made);
  // Checks a received frame, as range_work::judge does.
  dr_status judge(const dr_bytes& frame, uint64_t tag, frame_view& view) const;
  // Adds up frames that were judged, each times its weight.
  dr_status merge(std::span<const dr_bytes> frames, const float* weights, uint64_t tag);
  void merge_nan();  // writes a row of NaN instead
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
  std::vector<uint16_t> rounded_;  // the values, if the output has a type of 16 bits
};

}  // namespace dr
