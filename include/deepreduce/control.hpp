// DeepReduce for C++20: control.h with destructors, spans and exceptions. Experimental, as control.h is, which documents
// each function and its errors.
#ifndef DEEPREDUCE_CONTROL_HPP
#define DEEPREDUCE_CONTROL_HPP

#include "deepreduce.hpp"

#if __cplusplus >= 201709L  // (otherwise that header is the error)

#include <array>

#include "control.h"

namespace dr {
inline namespace v1 {

// Experimental, as dr_control is.
class control {
 public:
  using words = std::array<uint64_t, DR_CONTROL_WORDS>;

  // options: "fit(target_ms=20)", say. bytes: sent by a step of every rung, 0: not known.
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

}  // namespace v1
}  // namespace dr
#endif
#endif
