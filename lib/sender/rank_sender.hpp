// A sender: the units of one rank's named tensors, their states, and the slots that they write and read.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/arena.hpp"
#include "exchange/range_work.hpp"
#include "primitive/value_type.hpp"
#include "sender/device_unit.hpp"
#include "sender/factor_unit.hpp"
#include "sender/row_unit.hpp"
#include "sender/slot.hpp"
#include "sender/units.hpp"

namespace dr {

inline uint64_t align(uint64_t size) { return round_up(size, arena::alignment); }

struct sender_options {
  uint32_t ranks = 1, rank = 0, flags = 0;
  uint64_t seed = 0;  // of the first factors of transforms
  unit_rules rules;
  std::vector<uint32_t> numbers;
};

inline constexpr uint64_t sum_draws = 1;  // an owner's sum has other random numbers than its gradient

// Removes the number of the frame from an error of a merge: the rank is named instead.
void drop_frame_number(dr_error& error);

class sender {
 public:
  explicit sender(context& c, const target& where = {}) : c_(c) {
    if (where.where) side_ = std::make_unique<device_side>(c, where);
  }
  ~sender();
  sender(const sender&) = delete;
  sender& operator=(const sender&) = delete;

  dr_status create(std::vector<named_tensor> tensors, sender_options options);

  void place(size_t first, std::span<const void* const> in, std::span<void* const> out, std::span<void* const> states);
  dr_status check_place(size_t first, size_t n, const void* const* in, void* const* out, void* const* states);
  dr_status place_rows(size_t tensor, const dr_sent_rows& rows);
  dr_status rows_of(size_t tensor, dr_sent_rows& rows) const;
  dr_status clip();
  dr_status encode(size_t unit, const dr_call& call, void* slots, size_t capacity, dr_sent& result);
  dr_status sum(size_t unit, const dr_call& call, std::span<const dr_bytes> slots, void* slot, size_t capacity,
                dr_sent& result);
  dr_status merge(size_t unit, const dr_call& call, std::span<const dr_bytes> slots, dr_sent& result);
  dr_status take_back(uint64_t step);
  void skip(uint64_t step);
  // On a device: what became of the merges of a step.
  dr_status check(uint64_t step, dr_sent& result);
  dr_status use_stream(void* stream);

  dr_status read_state(size_t tensor, uint32_t which, void* state, size_t size);
  dr_status write_state(size_t tensor, uint32_t which, const void* state, size_t size);
  dr_status scale(double factor);
  dr_status resume(uint64_t failures, uint64_t failed);

  context& of() const { return c_; }
  dr_sender_info info() const;
  dr_unit_info unit_info(size_t unit) const;
  dr_sent_tensor tensor_info(size_t tensor) const;
  const plan_ptr& method_of(size_t tensor) const { return plans_.methods[tensor]; }
  std::span<const uint32_t> behind() const { return behind_; }
  size_t units() const { return units_.size(); }
  size_t tensors() const { return tensors_.size(); }

 private:
  // A frame of a unit's slot: its tensors, in one range or in one range for each owner.
  struct frame {
    std::vector<uint32_t> tensors;
    std::vector<range_work> ranges;
    bool votes = false;
  };
  // A frame that was taken back, of a step that others may have completed.
  struct returned_frame {
    uint64_t number;  // of the step: failures_ at that time
    range_work* range;
    residual_kind which;
    frame_kind kind;
    std::vector<std::byte> bytes;
    float weight;  // in the residual, which decays at each encode
  };
  struct unit {
    unit_list list;
    uint64_t bytes = 0;
    std::vector<frame> frames;
    std::vector<uint64_t> bounds, sum_bounds;  // of the frames
    slot_room room, sum_room;
    bool tensors_moved = true, outputs_moved = true;  // since they were bound
    // Of the step under way, until all ranks have merged it or it is taken back:
    uint64_t step = UINT64_MAX;
    std::vector<dr_bytes> sent;    // frames, slot by slot; 0 bytes: nothing to take back
    std::vector<dr_bytes> summed;  // frames of sums
    std::vector<dr_bytes> inputs;  // the frames that were added up, sum by sum
    bool refuses = false;          // the ranks were out of step when they sent to owners
    dr_error refusal;
    std::vector<std::vector<std::byte>> before;  // states before the step, if it may be skipped
    std::vector<returned_frame> returned;
    // Instead of frames: numbers that an all-reduce adds up, or rows.
    std::unique_ptr<number_unit> numbers;
    factor_unit* factors = nullptr;  // `numbers`, if they are factors
    std::unique_ptr<row_unit> rows;
    std::unique_ptr<device_unit> device;  // or frames on a device
    bool skips = false;                   // some rank asked for it in the sum of the first numbers
    std::string zeros_reason;             // why this rank's numbers are zeros
    std::vector<number_place> places;     // of this step
  };

  bool makes_frames(const unit& u) const { return u.list.kind <= DR_UNIT_SCATTER; }
  bool is_dry() const { return options_.flags & DR_SENDER_DRY; }
  // Whether all ranks skip the step if frames cannot be encoded: for values that are not finite (ARGUMENT). What else is wrong
  // would recur unnoticed.
  bool skips_for(dr_status fault) const { return (options_.flags & DR_SENDER_SKIP) && fault == DR_E_ARGUMENT; }
  // The states of ranges and of factors are always the sender's.
  bool borrows_states(const unit& u) const {
    return (options_.flags & DR_SENDER_CALLER_STATES) && !has_owners(u) && !u.factors;
  }
  bool borrows_state(size_t tensor) const {
    return plans_.methods[tensor]->keeps_feedback() && borrows_states(units_[unit_of_[tensor]]);
  }
  // Each rank has a range of it, if there is one rank, too.
  static bool has_owners(const unit& u) { return u.list.kind == DR_UNIT_OWNER || u.list.kind == DR_UNIT_SCATTER; }
  size_t slots_of(const unit& u) const { return has_owners(u) ? options_.ranks : 1; }
  // On a device: whether a merge that fails gives this rank's frames back to the residuals, being among those it decodes.
  static bool returns_at_once(const unit& u) { return u.list.kind == DR_UNIT_FRAMES; }
  uint64_t elements_out(const unit& u, uint32_t tensor) const {
    return tensors_[tensor].elements / (u.list.kind == DR_UNIT_SCATTER ? options_.ranks : 1);
  }
  bool is_mean(const frame& f) const { return !f.votes && !(options_.flags & DR_SENDER_SUM); }
  float weight_of(const frame& f) const { return is_mean(f) ? 1.0f / static_cast<float>(options_.ranks) : 1.0f; }
  uint64_t tag_of(const unit& u, uint64_t step) const {
    return uint64_t{u.list.digest} << 32 | static_cast<uint32_t>(step);
  }
  bool is_rounded(uint32_t tensor) const {  // as an output
    return tensors_[tensor].dtype != DR_F32 && !(options_.flags & DR_SENDER_F32);
  }
  // Bytes of the slot of encode, if it has numbers for an all-reduce.
  uint64_t first_size(const unit& u) const {
    return u.numbers->first() * value_size(u.numbers->type()) + summed_heads_size(options_.ranks);
  }
  float output_scale() const { return options_.flags & DR_SENDER_SUM ? static_cast<float>(options_.ranks) : 1.0f; }
  exchange_memory memory() const { return {views_, outs_}; }

  dr_status check_options();
  dr_status prepare(unit& u);
  dr_status prepare_halves(unit& u);
  dr_status prepare_factors(unit& u);
  dr_status prepare_rows(unit& u);
  dr_status prepare_device(unit& u);
  dr_status prepare_part(device_part& p, const device_part* like);
  dr_status take_device_memory();
  dr_status lay_out_device(unit& u, std::byte* state, std::byte* output, uint64_t& kept, uint64_t& lent);
  dr_status measure_device(const unit& u, uint64_t& workspace);
  dr_result* results_at(uint64_t at) const { return reinterpret_cast<dr_result*>(side_->memory() + at); }
  void bind_device(const unit& u, device_part& p);
  dr_status encode_device(unit& u, const dr_call& call, void* slots, dr_sent& result);
  dr_status encode_part(const unit& u, const device_part& p, encode_request& r);
  dr_status check_device_slots(const unit& u, const slot_room& room, std::span<const dr_bytes> slots, uint64_t step,
                               uint64_t& stride);
  void request_parts(const unit& u, size_t range, std::span<const dr_bytes> slots);
  dr_status judge_device(const unit& u, size_t range, dr_result* results, slot_gate* gates, uint32_t& count);
  dr_status judge_part(const device_part& p, const decode_request& request, judged_frames& judged, dr_result* result);
  static slot_gate gate_of(const device_part& p, const judged_frames& judged, uint64_t at);
  dr_status deliver_part(const device_part& p, const decode_request& request, const judged_frames& judged);
  dr_status deliver_device(const unit& u, size_t range);
  settle_slots::args settle_args(const unit& u, const dr_call& call, std::span<const dr_bytes> slots, uint64_t stride,
                                 uint64_t report_at, size_t checks, uint64_t bounds_at) const;
  dr_status merge_device(unit& u, const dr_call& call, std::span<const dr_bytes> slots, dr_sent& result);
  dr_status finish_merge(unit& u, uint64_t step, uint64_t size, dr_sent& result);
  dr_status finish_values(uint64_t report_at, bool zeros);
  dr_status sum_device(unit& u, const dr_call& call, std::span<const dr_bytes> slots, void* slot, dr_sent& result);
  dr_status encode_sums(unit& u, const dr_call& call, void* slot);
  dr_status merge_sums(unit& u, const dr_call& call, std::span<const dr_bytes> slots, dr_sent& result);
  void bind_sum_outputs(device_part& p);
  dr_status return_sums(unit& u);
  dr_status take_back_device(unit& u);
  dr_status return_late(unit& u);
  dr_status take_back_on_device(uint64_t step);
  dr_status scale_on_device(double factor);
  dr_status set_device_counts(const set_counts::args& args);
  slot_report report_of(const unit& u) const;
  dr_status read_report(unit& u, uint64_t step, dr_sent& result);
  struct report_view;
  report_view view_of(const unit& u, uint64_t report_at, size_t checks) const;
  dr_status compare_on_device(const unit& u, uint64_t step);
  dr_status explain_frames(const unit& u, const report_view& view, size_t f);
  dr_status explain_sums(const unit& u, const report_view& view, size_t f);
  static dr_result result_of(const slot_reason& why);
  dr_status explain(const device_part& p, const dr_result& r, size_t rank);
  dr_status explain_peer(const unit& u, const device_parts& parts, size_t rank, const slot_reason& why);
  dr_status cut(frame& f, const unit& u, std::vector<piece_list>& ranges);
  dr_status take_memory();
  dr_status check_unit(size_t unit, bool sums, dr_error& error) const;
  dr_status check_call(const dr_call& call);
  dr_status bind_tensors(unit& u);
  dr_status bind_outputs(unit& u);
  bool are_finite(const unit& u) const;
  void remember(unit& u);
  template <class F>
  void for_each_state(const unit& u, F&& f);

  dr_status check_room(const void* slots, size_t capacity, uint64_t needed);
  dr_status check_placed(const unit& u, bool outputs);
  dr_status encode_numbers(unit& u, const dr_call& call, void* slot, dr_sent& result);
  dr_status sum_numbers(unit& u, const dr_call& call, std::span<const dr_bytes> slots, void* slot, dr_sent& result);
  dr_status merge_numbers(unit& u, const dr_call& call, std::span<const dr_bytes> slots, dr_sent& result);
  dr_status read_numbers(unit& u, const dr_call& call, const dr_bytes& slot);
  dr_status check_sum(const unit& u, std::span<const dr_bytes> slots, uint64_t size);
  dr_status check_step(const unit& u, const dr_call& call);
  std::byte* state_at(unit& u, uint32_t tensor);
  dr_status encode_rows(unit& u, const dr_call& call, void* slot, dr_sent& result);
  dr_status merge_rows(unit& u, const dr_call& call, std::span<const dr_bytes> slots, dr_sent& result);

  slot_head head_of(const unit& u, uint64_t step) const;
  void decay_returned(unit& u, const range_work& range, frame_kind kind);
  dr_status encode_frame(unit& u, size_t f, size_t range, frame_kind kind, const dr_call& call, void* at,
                         uint64_t& size, dr_sent& result);
  dr_status read_slots(unit& u, const dr_call& call, std::span<const dr_bytes> slots, bool of_sums, dr_sent& result);
  // Whether all ranks are at this step of this unit (slots_.heads).
  dr_status compare(const unit& u, const dr_call& call);
  void settle();
  uint64_t completed_by_others() const;
  dr_status judge(const unit& u, size_t f, size_t range, frame_kind kind, uint64_t step,
                  std::span<const dr_bytes> frames);
  void withdraw(unit& u, uint64_t number);
  void round_outputs(const unit& u);
  uint32_t tensor_at_fault() const {  // as of slot_head
    return c_.error.tensor < tensors_.size() ? static_cast<uint32_t>(c_.error.tensor) + 1 : 0;
  }
  dr_status name_rank(size_t rank);
  void name_tensor(uint32_t tensor, uint64_t first = 0);
  void name_tensor(const piece_list& pieces);
  void name_tensor(const frame& f, size_t range) { name_tensor(f.ranges[range].pieces()); }
  // The memory of a state of factors: a residual or a warm start.
  std::span<float> factor_state(size_t tensor, uint32_t which) const;
  dr_status read_factor_state(size_t tensor, uint32_t which, void* state, size_t size) const;
  dr_status write_factor_state(size_t tensor, uint32_t which, const void* state, size_t size);
  // ARGUMENT: the sender has no such state, or it is of another size.
  dr_status check_state_call(size_t tensor, uint32_t which, const void* state, size_t size) const;
  // ARGUMENT: a value of a state [n], f32 at any address, is not finite. (No step makes one, and none could go on from it.)
  dr_status check_finite(size_t tensor, const std::byte* values, size_t n) const;
  // A part of a tensor's state, in memory of the host.
  struct state_piece {
    const piece& of;
    const tensor_view& view;
    std::byte* at;
    uint64_t size;
  };
  // Calls f(state_piece) for each part of a state. writes: all of it, else it only reads.
  template <class F>
  dr_status for_each_piece(size_t tensor, uint32_t which, bool writes, F&& f);

  context& c_;
  std::unique_ptr<device_side> side_;  // nullptr: on the CPU
  sender_options options_;
  std::vector<named_tensor> tensors_;
  unit_plan plans_;
  std::vector<plan_ptr> sum_plans_;
  std::vector<uint32_t> unit_of_, position_of_;
  std::vector<unit> units_;
  std::vector<tensor_view> views_;  // where the tensors are
  std::vector<tensor_out> outs_;  // where merge writes: the caller's output, or f32 values that are then rounded to it
  std::vector<const void*> given_;  // tensors, where the caller placed them
  std::vector<void*> given_outs_;
  std::vector<uint32_t> clipped_;  // tensors whose plan has a clip
  double clip_ = 0;                // 0: no call of clip is needed
  std::vector<std::byte> scaled_;  // gradients that were clipped
  std::byte* block_ = nullptr;     // states, sums, f32 outputs, workspace
  size_t block_size_ = 0, workspace_size_ = 0;
  std::byte* workspace_ = nullptr;
  uint64_t failures_ = 0, failed_ = 0;
  bool is_behind_ = false;
  // The counts of the ranks that are not behind: from the end of the step on this rank's, too.
  uint64_t others_failures_ = 0, others_failed_ = 0;
  // The steps that this rank took back since all ranks agreed. Others may have completed one of them: units hold what went
  // back of the last two, which were failed_before_ and failed_.
  uint64_t returned_ = 0, failed_before_ = 0;
  std::vector<uint32_t> behind_;
  // Of the call under way.
  slot_list slots_;
  std::vector<dr_bytes> frames_;
  std::vector<float> weights_;
  frame_view view_;
  std::vector<decode_request> requests_;
  std::vector<judged_frames> judged_;
  std::vector<output_job> outputs_;
  std::vector<state_job> state_jobs_;
};

}  // namespace dr
