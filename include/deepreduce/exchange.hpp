// DeepReduce for C++20: exchange.h with destructors, spans and exceptions, as deepreduce.hpp is deepreduce.h. That header
// documents each function and its errors.
//
//   dr::exchange mean(context, plan, transport, tensors, outs);      once, on all ranks
//   mean.start();                                                    each step
//   while (!mean.advance()) …                                        throws the error of an exchange that failed
#ifndef DEEPREDUCE_EXCHANGE_HPP
#define DEEPREDUCE_EXCHANGE_HPP

#include "deepreduce.hpp"

#if __cplusplus >= 201709L  // (otherwise that header is the error)

#include "exchange.h"

// Until 0.4, so that sources of 0.3 and before compile: these were sections of this header.
#include "control.hpp"
#include "transform.hpp"

namespace dr {
inline namespace v1 {

// "encode", of DR_STEP_ENCODE.
inline std::string_view step_name(uint32_t step) { return dr_step_name(step); }

// ---- Exchange -----------------------------------------------------------------------------------------

// What tensors point to, the outputs themselves, the context and what the transport uses must outlive it.
class exchange {
 public:
  exchange(context& c, const plan& p, const dr_transport& transport, std::span<const dr_tensor> tensors,
           std::span<dr_tensor_out> outs, const dr_exchange_options* options = nullptr)
      : context_(c.get()) {
    match(tensors, outs);
    dr_exchange* made = nullptr;
    check(dr_exchange_create(context_, p.get(), &transport, options, tensors.data(), sizeof(dr_tensor), outs.data(),
                             sizeof(dr_tensor_out), tensors.size(), &made));
    handle.reset(made);
  }
  dr_exchange* get() const { return handle.get(); }

  void rebind(std::span<const dr_tensor> tensors, std::span<dr_tensor_out> outs) {
    match(tensors, outs);
    check(dr_exchange_rebind(get(), tensors.data(), sizeof(dr_tensor), outs.data(), sizeof(dr_tensor_out),
                             tensors.size()));
  }

  void start(const dr_call* call = nullptr) { check(dr_exchange_start(get(), call)); }
  // True: it has ended well. False: call it again.
  bool advance() {
    const dr_status status = dr_exchange_advance(get());
    if (status == DR_PENDING) return false;
    check(status);
    return true;
  }
  void cancel() { check(dr_exchange_cancel(get())); }

  // residual: of each element of the tensor. which: DR_RESIDUAL_*
  void read_residual(size_t tensor, std::span<float> residual, uint32_t which = DR_RESIDUAL_OWN) const {
    check(dr_exchange_read_residual(get(), which, tensor, residual.data(), residual.size()));
  }
  void write_residual(size_t tensor, std::span<const float> residual, uint32_t which = DR_RESIDUAL_OWN) {
    check(dr_exchange_write_residual(get(), which, tensor, residual.data(), residual.size()));
  }

  dr_exchange_info info() const {
    auto found = sized<dr_exchange_info>();
    detail::require([&](dr_error* e) { return dr_exchange_describe(get(), &found, e); });
    return found;
  }
  // Of the last exchange, as JSON; with DR_EXCHANGE_TRACE.
  std::string trace() const {
    return detail::read_text(context_, [&](char* json, size_t capacity, size_t* size) {
      return dr_exchange_trace(get(), json, capacity, size);
    });
  }

 private:
  static void match(std::span<const dr_tensor> tensors, std::span<dr_tensor_out> outs) {
    if (outs.size() != tensors.size())
      throw std::invalid_argument("exchange: " + std::to_string(outs.size()) + " outputs for " +
                                  std::to_string(tensors.size()) + " tensors");
  }
  void check(dr_status status) const { detail::check(context_, status); }
  struct destroy {
    void operator()(dr_exchange* x) const { dr_exchange_destroy(x); }
  };
  dr_context* context_;
  std::unique_ptr<dr_exchange, destroy> handle;
};

// ---- Loopback: all ranks in one thread, with a virtual clock ------------------------------------------

// Exchanges that use it are destroyed before.
class loopback {
 public:
  explicit loopback(uint32_t ranks) : loopback(of(ranks)) {}
  explicit loopback(const dr_loopback_options& options)
      : exchanges_(options.flags & DR_LOOPBACK_ALIKE ? 1 : options.ranks) {
    dr_loopback* made = nullptr;
    detail::require([&](dr_error* e) { return dr_loopback_create(&options, &made, e); });
    handle.reset(made);
  }
  dr_loopback* get() const { return handle.get(); }

  dr_transport transport(uint32_t rank) {
    auto made = sized<dr_transport>();
    const dr_status status = dr_loopback_transport(get(), rank, &made);
    if (status != DR_OK)
      throw std::invalid_argument("loopback: rank " + std::to_string(rank) + ": " + dr_status_name(status));
    return made;
  }
  // Until all have ended. Returns the first status that is not DR_OK: it throws nothing, for a rank's context has its
  // error. statuses: of every rank, or empty. nullptr: that rank is missing.
  dr_status run(std::span<dr_exchange* const> exchanges, std::span<dr_status> statuses = {}) {
    if (exchanges.size() != exchanges_ || (!statuses.empty() && statuses.size() != exchanges_))
      throw std::invalid_argument("loopback: " + std::to_string(exchanges.size()) + " exchanges and " +
                                  std::to_string(statuses.size()) + " statuses, of " + std::to_string(exchanges_));
    return dr_loopback_run(get(), exchanges.data(), statuses.empty() ? nullptr : statuses.data());
  }
  uint64_t now(uint32_t rank) const { return dr_loopback_now(get(), rank); }

 private:
  static dr_loopback_options of(uint32_t ranks) {
    auto options = sized<dr_loopback_options>();
    options.ranks = ranks;
    return options;
  }
  struct destroy {
    void operator()(dr_loopback* l) const { dr_loopback_destroy(l); }
  };
  size_t exchanges_;  // of a run
  std::unique_ptr<dr_loopback, destroy> handle;
};

}  // namespace v1
}  // namespace dr
#endif
#endif
