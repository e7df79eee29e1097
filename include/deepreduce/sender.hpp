// DeepReduce for C++20: sender.h with destructors, spans and exceptions, as deepreduce.hpp is deepreduce.h. That header
// documents each function and its errors.
//
//   dr::sender mine(context, book, tensors, options);          once
//   mine.place(0, in, out);
//   const auto sent = mine.encode(unit, call, slots);          each step, each unit
//   … the all-gather of the first mine.unit(unit).slot bytes …
//   mine.merge(unit, call, all_slots);
#ifndef DEEPREDUCE_SENDER_HPP
#define DEEPREDUCE_SENDER_HPP

#include "deepreduce.hpp"

#if __cplusplus >= 201709L  // (otherwise that header is the error)

#include "sender.h"

namespace dr {
inline namespace v1 {

// The context must outlive it, and so must what is placed.
class sender {
 public:
  // place: of a device; nullptr: the CPU
  sender(context& c, const dr_book* book, std::span<const dr_named_tensor> tensors, const dr_sender_options& options,
         const dr_place* place = nullptr)
      : context_(c.get()) {
    dr_sender* made = nullptr;
    check(dr_sender_create(context_, place, book, tensors.data(), sizeof(dr_named_tensor), tensors.size(), &options,
                           &made));
    handle.reset(made);
  }
  dr_sender* get() const { return handle.get(); }

  dr_sender_info info() const {
    auto found = sized<dr_sender_info>();
    detail::require([&](dr_error* e) { return dr_sender_describe(get(), &found, e); });
    return found;
  }
  dr_unit_info unit(size_t position) const {
    auto found = sized<dr_unit_info>();
    detail::require([&](dr_error* e) { return dr_sender_unit(get(), position, &found, e); });
    return found;
  }
  dr_sent_tensor tensor(size_t position) const {
    auto found = sized<dr_sent_tensor>();
    detail::require([&](dr_error* e) { return dr_sender_tensor(get(), position, &found, e); });
    return found;
  }

  // For the tensors from `first` on. out: empty, or as many.
  void place(size_t first, std::span<const void* const> in, std::span<void* const> out = {}) {
    check(dr_sender_place(get(), first, in.size(), in.data(), out.empty() ? nullptr : out.data(), nullptr));
  }
  void place_rows(size_t position, const dr_sent_rows& rows) { check(dr_sender_place_rows(get(), position, &rows)); }
  dr_sent_rows rows(size_t position) const {
    auto found = sized<dr_sent_rows>();
    check(dr_sender_rows(get(), position, &found));
    return found;
  }
  void clip() { check(dr_sender_clip(get())); }
  dr_sent encode(size_t unit, const dr_call& call, std::span<std::byte> slots) {
    auto result = sized<dr_sent>();
    check(dr_sender_encode(get(), unit, &call, slots.data(), slots.size(), &result));
    return result;
  }
  // False: each slot has `result.needed` bytes; call again with all of them.
  bool sum(size_t unit, const dr_call& call, std::span<const dr_bytes> slots, std::span<std::byte> slot,
           dr_sent& result) {
    result.struct_size = sizeof result;
    return is_whole(dr_sender_sum(get(), unit, &call, slots.data(), slots.size(), slot.data(), slot.size(), &result));
  }
  bool merge(size_t unit, const dr_call& call, std::span<const dr_bytes> slots, dr_sent& result) {
    result.struct_size = sizeof result;
    return is_whole(dr_sender_merge(get(), unit, &call, slots.data(), slots.size(), &result));
  }
  // On a device, before the first encode of the next step: throws the error of a step.
  dr_sent check_step(uint64_t step) {
    auto result = sized<dr_sent>();
    check(dr_sender_check(get(), step, &result));
    return result;
  }
  void use_stream(void* stream) { check(dr_sender_use_stream(get(), stream)); }
  void take_back(uint64_t step) { check(dr_sender_take_back(get(), step)); }
  void skip(uint64_t step) { check(dr_sender_skip(get(), step)); }
  // The positions of the ranks that are behind, after an error of DR_REASON_OUT_OF_STEP.
  std::vector<uint32_t> behind() const {
    std::vector<uint32_t> ranks(dr_sender_behind(get(), nullptr, 0));
    dr_sender_behind(get(), ranks.data(), ranks.size());
    return ranks;
  }

  // which: DR_STATE_*
  std::vector<std::byte> read_state(size_t position, uint32_t which = DR_STATE_OWN) const {
    const dr_sent_tensor t = tensor(position);
    const uint64_t size = which == DR_STATE_WARM ? t.warm_state : which == DR_STATE_SUM ? t.sum_state : t.state;
    std::vector<std::byte> state(static_cast<size_t>(size));
    check(dr_sender_read_state(get(), position, which, state.data(), state.size()));
    return state;
  }
  void write_state(size_t position, std::span<const std::byte> state, uint32_t which = DR_STATE_OWN) {
    check(dr_sender_write_state(get(), position, which, state.data(), state.size()));
  }
  void scale(double factor) { check(dr_sender_scale(get(), factor)); }
  void resume(uint64_t failures, uint64_t failed) { check(dr_sender_resume(get(), failures, failed)); }

 private:
  void check(dr_status status) const { detail::check(context_, status); }
  bool is_whole(dr_status status) const {
    if (status == DR_E_CAPACITY) return false;
    check(status);
    return true;
  }
  struct destroy {
    void operator()(dr_sender* s) const { dr_sender_destroy(s); }
  };
  dr_context* context_;
  std::unique_ptr<dr_sender, destroy> handle;
};

}  // namespace v1
}  // namespace dr
#endif
#endif
