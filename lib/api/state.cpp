#include "api/state.hpp"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstring>

#include "feedback/residual.hpp"
#include "feedback/velocity.hpp"

namespace dr {
namespace {

dr_status elements_of(const plan& method, const tensor_view& t, uint64_t& elements, dr_error& error) {
  if (method.transforms())
    return fail(error, DR_E_UNSUPPORTED,
                "plan: `%s` makes factors, not frames: its state is that of dr_transform_create", method.text.c_str());
  const uint64_t width = t.width ? t.width : 1;
  if (t.universe > (UINT64_MAX >> 8) / width) {
    fail(error, DR_E_ARGUMENT, "tensor: %" PRIu64 " rows of %" PRIu64 " values", t.universe, width);
    error.what = t.universe;
    return DR_E_ARGUMENT;
  }
  elements = t.universe * width;
  return DR_OK;
}

// ARGUMENT: [first, first + n) is not below `all`, whatever the sum is.
dr_status check_within(const char* which, uint64_t first, uint64_t n, uint64_t all, dr_error& error) {
  if (first <= all && n <= all - first) return DR_OK;
  fail(error, DR_E_ARGUMENT, "%s: %" PRIu64 " elements from element %" PRIu64 " exceed the %" PRIu64 " of the state",
       which, n, first, all);
  error.where = first;
  error.what = n;
  return DR_E_ARGUMENT;
}

dr_status no_residual(const feedback_kind& kind, dr_error& error) {
  return fail(error, DR_E_ARGUMENT, "state: of feedback=%s, which keeps no residual", kind.entry.name);
}

}  // namespace

void scale_residual(std::span<float> residual, double factor) {
  for (float& x : residual) {
    const auto product = static_cast<float>(double{x} * factor);
    x = is_finite_residual(product) ? product : 0;
  }
}

dr_status state_size(const plan& method, const tensor_view& tensor, size_t& bytes, dr_error& error) {
  uint64_t elements = 0;
  if (const dr_status s = elements_of(method, tensor, elements, error)) return s;
  bytes = method.keeps_feedback() ? state_size_of(method.feedback_rule().kind, elements) : 0;
  return DR_OK;
}

dr_status fits_state(const plan& method, const tensor_view& tensor, const void* state, size_t state_size,
                     dr_error& error) {
  uint64_t elements = 0;
  if (const dr_status s = elements_of(method, tensor, elements, error)) return s;
  if (method.keeps_feedback())
    return check_state(state, state_size, method.feedback_rule().kind, elements, false, error);
  return state && state_size ? fail(error, DR_E_ARGUMENT, "plan: no feedback, so there is no state") : DR_OK;
}

dr_status find_residual(void* state, size_t state_size, float*& residual, uint64_t& elements, dr_error& error) {
  residual_state head;
  if (const dr_status s = read_state(state, state_size, head, error)) return s;
  if (!head.magic) return fail(error, DR_E_ARGUMENT, "state: fresh, so it holds no residual yet");
  if (!kind_of(head).keeps_residual) return no_residual(kind_of(head), error);
  residual = residual_of(state);
  elements = head.elements;
  return DR_OK;
}

dr_status fill_state(const plan& method, const tensor_view& tensor, const float* residual, void* state,
                     size_t state_size, dr_error& error) {
  uint64_t elements = 0;
  if (const dr_status s = elements_of(method, tensor, elements, error)) return s;
  if (!method.keeps_feedback()) return fail(error, DR_E_ARGUMENT, "plan: no feedback, so there is no state to fill");
  // As on a device, the memory is not read: only its place and size count.
  const bound_feedback rule = method.feedback_rule();
  const feedback_kind& kind = rule.kind;
  if (const dr_status s = check_state(state, state_size, kind, elements, true, error)) return s;
  if (residual && !kind.keeps_residual) return no_residual(kind, error);
  if (residual)
    std::memmove(residual_of(state), residual, 4 * elements);
  else
    std::memset(residual_of(state), 0, 4 * elements);
  if (kind.keeps_momentum) std::memset(momentum_of(kind, state, elements), 0, 4 * elements);
  if (kind.rate) set_rate(state, elements, rule.rate());
  const residual_state head = head_of(kind, elements);
  std::memcpy(state, &head, sizeof head);
  return DR_OK;
}

dr_status find_momentum(void* state, size_t state_size, float*& momentum, uint64_t& elements, dr_error& error) {
  residual_state head;
  if (const dr_status s = read_state(state, state_size, head, error)) return s;
  if (!head.magic) return fail(error, DR_E_ARGUMENT, "state: fresh, so it holds no momentum yet");
  const feedback_kind& kind = kind_of(head);
  if (!kind.keeps_momentum)
    return fail(error, DR_E_ARGUMENT, "state: of feedback=%s, which has no momentum", kind.entry.name);
  momentum = momentum_of(kind, state, head.elements);
  elements = head.elements;
  return DR_OK;
}

dr_status write_state(const plan& method, const tensor_view& tensor, state_array which, const float* values,
                      void* state, size_t state_size, dr_error& error) {
  residual_state head;
  if (const dr_status s = read_state(state, state_size, head, error)) return s;
  if (!head.magic)
    if (const dr_status s = fill_state(method, tensor, nullptr, state, state_size, error)) return s;
  float* to = nullptr;
  uint64_t elements = 0;
  const auto find = which == state_array::residual ? find_residual : find_momentum;
  if (const dr_status s = find(state, state_size, to, elements, error)) return s;
  std::memcpy(to, values, 4 * elements);
  return DR_OK;
}

dr_status copy_state(const state_part& from, void* to, size_t to_size, uint64_t at, uint64_t elements,
                     dr_error& error) {
  residual_state source, target;
  if (read_state(from.state, from.size, source, error)) return prefix(error, "from: ");
  if (read_state(to, to_size, target, error)) return prefix(error, "to: ");
  if (!target.magic) return fail(error, DR_E_ARGUMENT, "to: the state is fresh (dr_state_fill makes one of zeros)");
  const feedback_kind& kind = kind_of(target);
  if (source.magic && source.kind != target.kind)
    return fail(error, DR_E_ARGUMENT, "from: of feedback=%s; to: of feedback=%s", kind_of(source).entry.name,
                kind.entry.name);
  const uint64_t fixed = state_size_of(kind, 0), per_element = state_size_of(kind, 1) - fixed;
  const uint64_t there = source.magic ? source.elements : (std::max<uint64_t>(from.size, fixed) - fixed) / per_element;
  if (const dr_status s = check_within("from", from.first, elements, there, error)) return s;
  if (const dr_status s = check_within("to", at, elements, target.elements, error)) return s;
  float* const out = residual_of(to) + at;
  const float* const in = residual_of(from.state) + from.first;
  if (elements && in < out + elements && out < in + elements)
    return fail(error, DR_E_ARGUMENT, "from, to: the %" PRIu64 " elements overlap", elements);
  const auto copy = [&](float* x, const float* y) {
    if (source.magic)
      std::memcpy(x, y, 4 * elements);
    else
      std::memset(x, 0, 4 * elements);
  };
  copy(out, in);
  if (kind.arrays() > 1) copy(out + target.elements, in + there);
  if (kind.rate && source.magic) {
    const double was = rate_of(from.state, there), is = rate_of(to, target.elements);
    if (was != is) scale_residual({out, elements}, was / is);
  }
  return DR_OK;
}

dr_status scale_state(void* state, size_t state_size, double factor, dr_error& error) {
  if (!std::isfinite(factor)) return fail(error, DR_E_ARGUMENT, "factor: %g is not finite", factor);
  residual_state head;
  if (const dr_status s = read_state(state, state_size, head, error)) return s;
  if (!head.magic) return DR_OK;
  if (!kind_of(head).keeps_residual) return no_residual(kind_of(head), error);
  scale_residual({residual_of(state), head.elements}, factor);
  return DR_OK;
}

dr_status state_norm(const void* state, size_t state_size, double& norm, dr_error& error) {
  residual_state head;
  if (const dr_status s = read_state(state, state_size, head, error)) return s;
  norm =
      head.magic && kind_of(head).keeps_residual ? std::sqrt(squares_of(DR_F32, residual_of(state), head.elements)) : 0;
  return DR_OK;
}

}  // namespace dr
