// DeepReduce for C++20: exchange.h with destructors, spans and exceptions, as deepreduce.hpp is deepreduce.h. That header
// documents each function and its errors.
//
//   dr::exchange mean(context, plan, transport, tensors, outs);      once, on all ranks
//   mean.start();                                                    each step
//   while (!mean.advance()) …                                        throws the error of an exchange that failed
#ifndef DEEPREDUCE_EXCHANGE_HPP
#define DEEPREDUCE_EXCHANGE_HPP

#include "deepreduce.hpp"

#if __cplusplus >= 201709L  // (otherwise that header has said so)

#include <array>

#include "exchange.h"

namespace dr {
inline namespace v1 {

namespace detail {
// write(room, capacity, size), once for the size and once for the text. The context, or nullptr, has the error.
template <class F>
std::string read_text(const dr_context* c, F&& write) {
  size_t size = 0;
  dr_status status = write(nullptr, size_t{0}, &size);
  std::string text;
  if (status == DR_E_CAPACITY) {
    text.resize(size);
    status = write(text.data(), text.size(), &size);
  }
  if (status == DR_OK) return text;
  if (c) check(c, status);
  throw std::runtime_error(dr_status_name(status));
}
}  // namespace detail

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

// ---- Transform: an all-reduce of factors --------------------------------------------------------------

//   round.begin(tensors, outs);
//   do all_reduce(round.factor());
//   while (round.next(1.0f / ranks));
class transform {
 public:
  transform(context& c, const plan& p, std::span<const dr_tensor> tensors,
            const dr_transform_options* options = nullptr)
      : context_(c.get()) {
    dr_transform* made = nullptr;
    check(dr_transform_create(context_, p.get(), options, tensors.data(), sizeof(dr_tensor), tensors.size(), &made));
    handle.reset(made);
  }
  dr_transform* get() const { return handle.get(); }

  void begin(std::span<const dr_tensor> tensors, std::span<const dr_tensor_out> outs) {
    if (outs.size() != tensors.size())
      throw std::invalid_argument("transform: " + std::to_string(outs.size()) + " outputs for " +
                                  std::to_string(tensors.size()) + " tensors");
    check(dr_transform_begin(get(), tensors.data(), sizeof(dr_tensor), outs.data(), sizeof(dr_tensor_out),
                             tensors.size()));
  }
  std::span<float> factor() {
    float* values = nullptr;
    uint64_t n = 0;
    check(dr_transform_factor(get(), &values, &n));
    return {values, static_cast<size_t>(n)};
  }
  // True: there is another factor. False: the outputs are written.
  bool next(float mean) {
    const dr_status status = dr_transform_next(get(), mean);
    if (status == DR_PENDING) return true;
    check(status);
    return false;
  }
  void cancel(uint32_t flags = 0) { check(dr_transform_cancel(get(), flags)); }  // DR_TRANSFORM_KEEP

  std::span<float> residual(size_t tensor) {
    float* values = nullptr;
    uint64_t n = 0;
    check(dr_transform_residual(get(), tensor, &values, &n));
    return {values, static_cast<size_t>(n)};
  }
  std::vector<std::byte> save() {
    std::vector<std::byte> state(info().state_size);
    check(dr_transform_save(get(), state.data(), state.size()));
    return state;
  }
  void load(std::span<const std::byte> state) { check(dr_transform_load(get(), state.data(), state.size())); }
  void reset() { check(dr_transform_reset(get())); }
  dr_transform_info info() const {
    auto found = sized<dr_transform_info>();
    detail::require([&](dr_error* e) { return dr_transform_describe(get(), &found, e); });
    return found;
  }

 private:
  void check(dr_status status) const { detail::check(context_, status); }
  struct destroy {
    void operator()(dr_transform* t) const { dr_transform_destroy(t); }
  };
  dr_context* context_;
  std::unique_ptr<dr_transform, destroy> handle;
};

// ---- Control: which plan to send ----------------------------------------------------------------------

// Experimental, as dr_control is.
class control {
 public:
  using words = std::array<uint64_t, DR_CONTROL_WORDS>;

  // options: "fit(target_ms=20)", say. bytes: what a step of each rung sends, 0: not known.
  control(const std::string& options, std::span<const uint64_t> bytes) : control(options, bytes.data(), bytes.size()) {}
  control(const std::string& options, size_t rungs) : control(options, nullptr, rungs) {}
  dr_control* get() const { return handle.get(); }

  void observe(uint64_t bytes, uint64_t transfer_ns) { check(dr_control_observe(get(), bytes, transfer_ns)); }
  words report() const {
    words own{};
    check(dr_control_report(get(), own.data()));
    return own;
  }
  void decide(uint64_t step, std::span<const words> of_ranks) {
    detail::require([&](dr_error* e) {
      return dr_control_decide(get(), step, of_ranks.empty() ? nullptr : of_ranks[0].data(), of_ranks.size(), e);
    });
  }
  dr_control_info info() const {
    auto found = sized<dr_control_info>();
    detail::require([&](dr_error* e) { return dr_control_describe(get(), &found, e); });
    return found;
  }
  std::string log() const {
    return detail::read_text(nullptr, [&](char* json, size_t capacity, size_t* size) {
      return dr_control_log(get(), json, capacity, size);
    });
  }
  static std::string_view reason(uint32_t reason) { return dr_control_reason(reason); }

 private:
  control(const std::string& options, const uint64_t* bytes, size_t rungs) {
    dr_control* made = nullptr;
    detail::require([&](dr_error* e) { return dr_control_create(options.c_str(), bytes, rungs, &made, e); });
    handle.reset(made);
  }
  static void check(dr_status status) {  // (these have no sentence)
    if (status != DR_OK) throw std::invalid_argument(std::string("control: ") + dr_status_name(status));
  }
  struct destroy {
    void operator()(dr_control* c) const { dr_control_destroy(c); }
  };
  std::unique_ptr<dr_control, destroy> handle;
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
  // Until each has ended. Returns the first status that is not DR_OK: it throws nothing, for a rank's context has its
  // error. statuses: of each, or empty. nullptr: that rank is missing.
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
