#include "api/state.hpp"

#include <cinttypes>
#include <cstring>

#include "feedback/residual.hpp"

namespace dr {
namespace {

dr_status elements_of(const tensor_view& t, uint64_t& elements, dr_error& error) {
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

}  // namespace

dr_status state_size(const plan& method, const tensor_view& tensor, size_t& bytes, dr_error& error) {
  uint64_t elements = 0;
  if (const dr_status s = elements_of(tensor, elements, error)) return s;
  bytes = method.keeps_feedback() ? residual_size(elements) : 0;
  return DR_OK;
}

dr_status find_residual(void* state, size_t state_size, float*& residual, uint64_t& elements, dr_error& error) {
  residual_state head;
  if (const dr_status s = read_state(state, state_size, head, error)) return s;
  if (!head.magic) return fail(error, DR_E_ARGUMENT, "state: fresh, so it holds no residual yet");
  residual = residual_of(state);
  elements = head.elements;
  return DR_OK;
}

dr_status fill_state(const plan& method, const tensor_view& tensor, const float* residual, void* state,
                     size_t state_size, dr_error& error) {
  uint64_t elements = 0;
  if (const dr_status s = elements_of(tensor, elements, error)) return s;
  if (!method.keeps_feedback()) return fail(error, DR_E_ARGUMENT, "plan: no feedback, so there is no state to fill");
  // As on a device, the memory is not read: only its place and size count.
  if (const dr_status s = check_residual(state, state_size, elements, true, error)) return s;
  if (residual)
    std::memmove(residual_of(state), residual, 4 * elements);
  else
    std::memset(residual_of(state), 0, 4 * elements);
  const residual_state head{residual_state::magic_value, residual_state::version_value, elements};
  std::memcpy(state, &head, sizeof head);
  return DR_OK;
}

dr_status copy_state(const state_part& from, void* to, size_t to_size, uint64_t at, uint64_t elements,
                     dr_error& error) {
  residual_state source, target;
  if (read_state(from.state, from.size, source, error)) return prefix(error, "from: ");
  if (read_state(to, to_size, target, error)) return prefix(error, "to: ");
  if (!target.magic) return fail(error, DR_E_ARGUMENT, "to: the state is fresh (dr_state_fill makes one of zeros)");
  const uint64_t there = source.magic ? source.elements : (from.size - sizeof source) / 4;
  if (const dr_status s = check_within("from", from.first, elements, there, error)) return s;
  if (const dr_status s = check_within("to", at, elements, target.elements, error)) return s;
  float* const out = residual_of(to) + at;
  const float* const in = residual_of(from.state) + from.first;
  if (elements && in < out + elements && out < in + elements)
    return fail(error, DR_E_ARGUMENT, "from, to: the %" PRIu64 " elements overlap", elements);
  if (source.magic)
    std::memcpy(out, in, 4 * elements);
  else
    std::memset(out, 0, 4 * elements);
  return DR_OK;
}

dr_status state_norm(const void* state, size_t state_size, double& norm, dr_error& error) {
  residual_state head;
  if (const dr_status s = read_state(state, state_size, head, error)) return s;
  norm = residual_norm(residual_of(state), head.elements);
  return DR_OK;
}

}  // namespace dr
