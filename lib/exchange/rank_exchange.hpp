// An exchange: the program of a rank, and the interpreter that runs it, which is a program counter.
#pragma once

#include <vector>

#include "deepreduce/exchange.h"
#include "exchange/device_range.hpp"
#include "exchange/factor_work.hpp"
#include "exchange/program.hpp"
#include "exchange/range_work.hpp"
#include "exchange/verdict.hpp"

namespace dr {

// When a step of the last exchange began and ended, and the bytes of its frames.
struct step_time {
  uint64_t begin_ns = 0, end_ns = 0, bytes = 0;
};

struct exchange_request {
  std::shared_ptr<const plan> method;
  dr_transport transport;
  dr_exchange_options options;
  target where{};  // options.place
};

class exchange {
 public:
  explicit exchange(context& c) : c_(c) {}
  ~exchange();
  exchange(const exchange&) = delete;
  exchange& operator=(const exchange&) = delete;

  dr_status create(const exchange_request& request, std::vector<tensor_view> tensors, std::vector<tensor_out> outs);
  dr_status rebind(std::vector<tensor_view> tensors, std::vector<tensor_out> outs);

  dr_status start(const dr_call& call);
  // The first steps, right after start; `advance` reports their outcome. (The time of a model passes in its loopback.)
  void begin() {
    if (!dry()) (void)run_steps();
  }
  // DR_PENDING, or how it ended.
  dr_status advance();
  dr_status cancel();

  // residual [elements] to or from states.
  dr_status read_residual(uint32_t which, size_t tensor, float* residual, uint64_t elements);
  dr_status write_residual(uint32_t which, size_t tensor, const float* residual, uint64_t elements);

  bool busy() const { return busy_; }
  bool waits() const { return info_.waits; }  // rather than that its time was over
  const dr_exchange_info& info() const { return info_; }
  // Rows of the result, of each tensor, by the last merge.
  std::span<const uint64_t> count_rows();
  context& of() const { return c_; }

  const program& steps() const { return program_; }
  // Whether one rank's is a model of all.
  bool stands_for_all() const;
  bool is_on(const dr_transport& t) const { return transport_.user == t.user && transport_.send == t.send; }
  std::span<const step_time> times() const { return times_; }  // of the last exchange, if it traces
  uint64_t now() const;
  bool polls() const { return settling_; }  // its device
  // When the step that is pending gives up.
  uint64_t gives_up_at() const;

 private:
  struct request {
    uint64_t number = 0;
    uint32_t peer = 0;
    bool open = false, receives = false;
  };

  dr_status check_request(const exchange_request& request);
  dr_status make_plans(const exchange_request& request);
  dr_status prepare_ranges();
  dr_status prepare_factors();
  dr_status write_factor_residual(uint32_t which, size_t tensor, const float* residual, uint64_t elements);
  dr_status check_room(const std::vector<tensor_out>& outs);
  uint64_t fingerprint(const exchange_request& request) const;
  dr_status allocate_all();
  dr_status prepare_host(const exchange_request& request);
  dr_status prepare_device_ranges(const std::vector<range_uses>& uses, const tensor_plans& plans);
  dr_status allocate_on_device();
  dr_status bind_ranges();
  exchange_memory memory() const { return {tensors_, outs_}; }
  void make_room();
  // f(range, piece in it, state, its size, first element, elements) of each piece of a tensor.
  dr_status fetch_state(std::byte*& state, uint64_t size, std::vector<std::byte>& copy);
  template <class F>
  dr_status for_each_residual(uint32_t which, size_t tensor, const void* memory, uint64_t elements, F&& f);

  // Steps: DR_OK to continue, DR_PENDING to call again. An error becomes the verdict of this rank.
  dr_status run_steps();
  dr_status run(const step& s);
  dr_status run_guarded(const step& s);
  void encode(const step& s);
  bool finds_fault(const step& s);
  void fail_encode(const step& s, dr_status status, const dr_error& e);
  void encode_factor(const step& s);
  void sum_factor(const step& s);
  void merge_factor(const step& s);
  void send(const step& s);
  void recv(const step& s);
  dr_status wait(const step& s);
  void judge(const step& s, size_t size);
  void blame_maker(const step& s, dr_status status);
  void sum(const step& s);
  dr_status agree();
  void decode(const step& s);
  void merge(const step& s);
  dr_status drain();

  // The same steps on a device (exchange_on_device.cpp).
  dr_status encode_there(const step& s);
  void take_there(const step& s);
  dr_status decode_there(const step& s);
  void add_there(const step& s);
  dr_status merge_there(const step& s);
  // A collective of the ranks of this host (collect_in_host.cpp).
  dr_status collect_there(const step& s);
  bool is_hopeless(const step& s);
  void miss_host(const step& s);
  void poll_verdicts();
  void restore_there(const step& s, const dr_bytes& sent);
  // Whether the device has done what was enqueued; it has the time that frames have. After an error nothing more is
  // enqueued, and this exchange is the last.
  dr_status settle();
  dr_status drain_device();
  std::byte* frame_there(uint32_t slot) const { return device_frames_ + slot_at_[slot]; }
  dr_result* result_there(size_t i) const { return reinterpret_cast<dr_result*>(device_->memory()) + i; }
  const dr_result& result_here(size_t i) const { return reinterpret_cast<const dr_result*>(device_->host())[i]; }
  size_t result_of(const step& s) const {  // of encodes by slots, then of sums and of decodes by ranges
    if (s.what == DR_STEP_ENCODE || s.what == DR_STEP_ENCODE_SUM) return s.slot;
    return program_.slots.size() + 2 * s.range + (s.what == DR_STEP_DECODE);
  }
  dr_status copy_result(size_t i) {
    return device_->copy(device_->host() + i * sizeof(dr_result), result_there(i), sizeof(dr_result));
  }

  // This rank has failed, or has seen another fail: later sends are empty, waits and sums are skipped.
  void poison(const verdict& why);
  [[gnu::format(printf, 5, 6)]] void poison(dr_status code, uint32_t culprit, uint32_t depth, const char* format, ...);
  // The transport reported an error for a message to or from `peer`.
  void lose(dr_status reported, uint32_t peer, uint32_t depth, const char* what);
  // The status of this rank's own error, unless there was another before.
  void blame_own(dr_status status);
  void fail_alone(const verdict& why);
  bool failed() const { return failed_; }
  verdict& own() { return verdicts_[program_.rank]; }
  const verdict& own() const { return verdicts_[program_.rank]; }
  void poll_verdict(const step& awaited);
  void report_missing(const step& awaited);
  void send_verdict();
  // Tests the receive of a verdict; true if its outcome is known.
  bool has_verdict_of(uint32_t rank);
  // Whether it will never arrive: then this rank has failed.
  bool loses_verdict_of(uint32_t rank);
  void conclude_all();
  void restore_residuals();
  dr_status finish();

  // Whether a range has no elements, so that nothing is sent of it.
  bool skips(uint32_t range) const { return factors_ ? factors_->elements(range) == 0 : ranges_[range].empty(); }
  bool dry() const { return options_.flags & DR_EXCHANGE_DRY; }
  uint32_t wire_tag(uint32_t tag) const;
  uint64_t frame_tag(const frame_slot& s) const;
  uint64_t deadline(uint32_t tenths) const { return begin_ns_ + options_.timeout_ns / 10 * tenths; }
  dr_status start_request(uint32_t message, bool receives, uint32_t peer, uint32_t tag, void* bytes, size_t size);
  dr_status test(request& r, size_t& size);
  void spend(const step& s, uint64_t bytes);
  void spend_on_verdict(uint32_t what);
  uint32_t verdict_message(uint32_t rank, bool receives) const { return program_.messages + 2 * rank + receives; }
  std::byte* frame_of(uint32_t slot) const { return frames_ + slot_at_[slot]; }
  // Where frames are encoded and decoded.
  std::byte* worked_frame(uint32_t slot) const { return device_ ? frame_there(slot) : frame_of(slot); }
  std::span<const dr_bytes> gather_frames(const step& s);
  // Of the workspace, what decoded frames do not lie in.
  arena spare_workspace() const {
    return {static_cast<std::byte*>(workspace_) + decoded_size_, workspace_size_ - decoded_size_};
  }
  const float* weights(const step& s, float factor);
  encode_request request_for(const step& s);
  void finish_encode(const step& s, dr_status status, const encode_result& made);

  context& c_;
  exchange_plans plans_;
  dr_transport transport_{};
  dr_exchange_options options_{};
  std::vector<tensor_view> tensors_;
  std::vector<tensor_out> outs_;
  program program_;
  std::vector<range_work> ranges_;
  std::unique_ptr<device_stream> device_;                     // nullptr: on the CPU
  std::unique_ptr<host_sum> host_;                            // nullptr: this rank is alone, or the CPU sums
  std::vector<std::unique_ptr<device_range>> device_ranges_;  // nullptr: of an empty range, or of other ranks
  std::byte* device_frames_ = nullptr;
  std::unique_ptr<factor_work> factors_;  // in their place, of a transform
  std::byte *block_ = nullptr, *frames_ = nullptr;
  void* workspace_ = nullptr;
  size_t block_size_ = 0, workspace_size_ = 0;
  size_t decoded_size_ =
      0;  // of the workspace: frames that wait until the ranks agree. No encode or sum comes after them
  std::vector<uint64_t> counts_;  // of sparse tensors, as prepared for
  std::vector<uint64_t> rows_;    // of the result
  uint64_t fingerprint_ = 0;
  std::vector<uint64_t> slot_at_, slot_room_;

  // Of the exchange under way.
  size_t pc_ = SIZE_MAX, cursor_ = 0;  // cursor_: position of AGREE and DRAIN
  bool busy_ = false;                  // until `advance` has returned the outcome
  uint32_t sequence_ = 0;
  uint64_t begin_ns_ = 0, last_ns_ = 0, commits_ = 0;
  dr_call call_{};
  std::vector<request> requests_;  // of the program's messages, then two verdicts a rank
  std::vector<uint64_t> slot_size_;
  std::vector<uint8_t> done_;    // steps whose encode has changed a residual
  std::span<verdict> verdicts_;  // of all ranks, in the block
  std::vector<arrival> arrivals_;
  std::vector<uint8_t> summed_;  // ranges
  uint32_t polled_ = 0;
  dr_status own_status_ = DR_OK;  // of an encode that failed here
  bool failed_ = false, verdict_sent_ = false, broken_ = false;
  bool settling_ = false, stuck_ = false;  // the device is at work; it failed, or did not finish
  bool collects_ = false;                  // a collective was issued, and no mark is behind it
  verdict outcome_;
  frame_view view_;
  std::vector<dr_bytes> merged_;
  std::vector<float> weights_;
  std::vector<step_time> times_;
  dr_exchange_info info_{};
};

}  // namespace dr
