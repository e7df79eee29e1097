// The handles of the C ABI, and the checks that every function of it begins with.
#pragma once

#include <cinttypes>
#include <cstdio>
#include <memory>
#include <vector>

#include "api/bound_batch.hpp"
#include "api/context.hpp"
#include "api/placed_batch.hpp"
#include "api/run_encode.hpp"
#include "capi/guard.hpp"
#include "core/versioned.hpp"
#include "deepreduce/deepreduce.h"
#include "pipeline/bind.hpp"

struct dr_plan {
  std::shared_ptr<const dr::plan> bound;
};
struct dr_batch : dr::placed_batch {};
struct dr_context : dr::context {};

namespace dr {

inline constexpr uint32_t threads_max = 256;
// The flags that calls accept.
inline constexpr uint32_t call_flags =
                              DR_CALL_TAG | DR_CALL_STATUS_FRAME | DR_CALL_LIST | DR_CALL_FIT | DR_CALL_STEP_AT,
                          decode_flags =
                              DR_DECODE_ADD | DR_DECODE_TAG | DR_DECODE_VOTE | DR_DECODE_APPLY | DR_DECODE_COEFFICIENTS,
                          place_flags = DR_PLACE_ALLOW_HOST;

// A call's turn on its context, which serves one call at a time. A call that is refused changes nothing in the context:
// the error there belongs to the call under way, so the refusal is stored for the thread (dr_last_error).
class turn {
 public:
  // (In a forked child no thread has the turn, even if in_use is set.)
  explicit turn(context& c) : c_(c), has_turn_(c.lost() || !c.in_use.exchange(true, std::memory_order_acquire)) {}
  ~turn() {
    if (has_turn_) c_.in_use.store(false, std::memory_order_release);
  }
  turn(const turn&) = delete;
  turn& operator=(const turn&) = delete;

  bool has_turn() const { return has_turn_; }
  // Where the error of this call is.
  dr_error& error() const;
  // ARGUMENT: another call has the context, or it was left behind by fork().
  dr_status check() const {
    if (!has_turn_) [[unlikely]]
      return refuse();
    return c_.lost() ? c_.fail_lost() : dr_status{DR_OK};
  }
  // Runs f() if this call has the turn. A failure replaces an earlier refusal.
  template <class F>
  dr_status run(F&& f) const noexcept {
    if (const dr_status s = check()) [[unlikely]]
      return s;
    return end(guarded(c_.error, f));
  }
  dr_status end(dr_status status) const {
    if (status && has_turn_) [[unlikely]]
      forget_refusal();
    return status;
  }
  // Of this thread's last call that failed on a context; nullptr: that was not refused.
  static const dr_error* refusal_of(const context& c);

 private:
  dr_status refuse() const;
  void forget_refusal() const;

  context& c_;
  const bool has_turn_;
};

// For functions with one: it remembers.
template <class Context, class F>
dr_status in_context(Context* context, F&& f) noexcept {
  if (!context) return DR_E_ARGUMENT;
  const turn mine(*context);
  return mine.run([&] { return f(*context); });
}

// ---- Structs ------------------------------------------------------------------------------------------

// An array of caller's structs, `stride` apart.
template <class T>
dr_status read_array(const void* from, size_t stride, size_t n, const char* what, std::vector<T>& out,
                     dr_error& error) {
  if (n == 0) {
    out.clear();
    return DR_OK;
  }
  if (!from) return fail(error, DR_E_ARGUMENT, "%s is NULL", what);
  if (stride < first_of<T>.size)
    return fail(error, DR_E_ARGUMENT, "%s: stride %zu is smaller than the %zu bytes of a %s", what, stride,
                first_of<T>.size, first_of<T>.name);
  out.resize(n);
  for (size_t i = 0; i < n; ++i)
    if (const void* const at = static_cast<const char*>(from) + i * stride;
        const dr_status s = read_struct(at, what, out[i], error, stride)) {
      char which[32];
      std::snprintf(which, sizeof which, "%s %zu", what, i);
      read_struct(at, which, out[i], error, stride);
      error.tensor = i;
      return s;
    }
  return DR_OK;
}

// The other way.
template <class T>
void write_array(const std::vector<T>& from, T* to, size_t stride) {
  for (size_t i = 0; i < from.size(); ++i) write_struct(from[i], reinterpret_cast<char*>(to) + i * stride);
}

// Where a call runs. DEVICE, UNSUPPORTED.
dr_status read_place(const dr_place* place, target& out, dr_error& error);
// Whether a place, though it may be refused, is the CPU: then frame and result are in host memory. False if the
// struct cannot be read: then its memory may be anywhere.
bool is_cpu(const dr_place* place);
// ARGUMENT: no batch, or one that was prepared for another place.
dr_status check_place(const dr_batch* batch, const target& t, dr_error& error);
dr_status read_tensors(const dr_tensor* from, size_t stride, size_t n, tensor_list& out, dr_error& error);
dr_status read_options(const dr_decode_options* from, dr_decode_options& out, dr_error& error);

inline std::shared_ptr<const plan> method_of(const dr_plan* plan) { return plan ? plan->bound : nullptr; }

// On the CPU: sets the caller's result, if its size is valid.
inline void set_result(dr_result* to, const dr_result& result) {
  if (to && size_of_struct(to) >= struct_size_min) write_struct(result, to);
}

// Runs a prepared decode or merge. On the CPU it sets the caller's result, however the call ends; on a device the
// kernels fill it, and an error before their launch is in the status alone.
template <class F>
dr_status with_result(context& c, bool on_cpu, dr_result* result, F&& decode) noexcept {
  const turn mine(c);
  const dr_status status = mine.run([&]() -> dr_status {
    if (dr_result checked; on_cpu)
      if (const dr_status s = read_struct(result, "result", checked, c.error)) return s;
    return decode();
  });
  if (on_cpu) set_result(result, result_of(status, {}, mine.error()));
  return status;
}

}  // namespace dr
