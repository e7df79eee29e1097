// States of feedback: sizes, residuals, copies.
#include <algorithm>

#include "capi/handles.hpp"
#include "feedback/residual.hpp"

using dr::fail;
using dr::read_struct;
using dr::reported;

namespace {

// Elements of a tensor's residual, and whether its plan keeps one.
struct kept_elements {
  uint64_t elements = 0;
  bool kept = false;
};
dr_status elements_of(const dr_plan* plan, const dr_tensor* tensor, kept_elements& out, dr_error& e) {
  if (!tensor) return fail(e, DR_E_ARGUMENT, "tensor is NULL");
  dr_tensor t;
  if (const dr_status s = read_struct(tensor, "tensor", t, e)) return s;
  if (!plan && !t.plan) return fail(e, DR_E_ARGUMENT, "plan is NULL, and the tensor has none");
  const uint64_t width = t.width ? t.width : 1;
  if (t.universe > (UINT64_MAX >> 8) / width) {
    fail(e, DR_E_ARGUMENT, "tensor: %" PRIu64 " rows of %" PRIu64 " values", t.universe, width);
    e.what = t.universe;
    return DR_E_ARGUMENT;
  }
  out = {t.universe * width, (t.plan ? t.plan : plan)->bound->keeps_feedback()};
  return DR_OK;
}

// Whether [first, first + n) lies below `elements`, whatever the sum is.
bool within(uint64_t first, uint64_t n, uint64_t elements) { return first <= elements && n <= elements - first; }

}  // namespace

dr_status dr_state_size(const dr_plan* plan, const dr_tensor* tensor, size_t* bytes, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!bytes) return fail(e, DR_E_ARGUMENT, "bytes is NULL");
    kept_elements of;
    if (const dr_status s = elements_of(plan, tensor, of, e)) return s;
    *bytes = of.kept ? dr::residual_size(of.elements) : 0;
    return DR_OK;
  });
}

dr_status dr_state_residual(void* state, size_t state_size, float** residual, uint64_t* elements, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!residual || !elements) return fail(e, DR_E_ARGUMENT, "%s is NULL", residual ? "elements" : "residual");
    dr::residual_state head;
    if (const dr_status s = dr::read_state(state, state_size, head, e)) return s;
    if (!head.magic) return fail(e, DR_E_ARGUMENT, "state: it is fresh and holds no residual yet");
    *residual = dr::residual_of(state);
    *elements = head.elements;
    return DR_OK;
  });
}

dr_status dr_state_fill(const dr_plan* plan, const dr_tensor* tensor, const float* residual, void* state,
                        size_t state_size, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    kept_elements of;
    if (const dr_status s = elements_of(plan, tensor, of, e)) return s;
    if (!of.kept) return fail(e, DR_E_ARGUMENT, "plan: it keeps no feedback, so there is no state to fill");
    // Whatever the memory held: only its place and size count.
    if (const dr_status s = dr::check_residual(state, state_size, of.elements, true, e)) return s;
    // (It may be the state's own residual.)
    if (residual)
      std::memmove(dr::residual_of(state), residual, 4 * of.elements);
    else
      std::memset(dr::residual_of(state), 0, 4 * of.elements);
    const dr::residual_state head{dr::residual_state::magic_value, dr::residual_state::version_value, of.elements};
    std::memcpy(state, &head, sizeof head);
    return DR_OK;
  });
}

dr_status dr_state_copy(const void* from, size_t from_size, uint64_t first, void* to, size_t to_size, uint64_t at,
                        uint64_t elements, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    dr::residual_state source, target;
    if (dr::read_state(from, from_size, source, e)) return dr::prefix(e, "from: ");
    if (dr::read_state(to, to_size, target, e)) return dr::prefix(e, "to: ");
    if (!target.magic) return fail(e, DR_E_ARGUMENT, "to: the state is fresh (dr_state_fill makes one of zeros)");
    const uint64_t there = source.magic ? source.elements : (from_size - sizeof source) / 4;
    const auto outside = [&](const char* which, uint64_t begin, uint64_t of) {
      fail(e, DR_E_ARGUMENT, "%s: %" PRIu64 " elements from %" PRIu64 " on are not within the %" PRIu64 " of the state",
           which, elements, begin, of);
      e.where = begin;
      e.what = elements;
      return DR_E_ARGUMENT;
    };
    if (!within(first, elements, there)) return outside("from", first, there);
    if (!within(at, elements, target.elements)) return outside("to", at, target.elements);
    float* const out = dr::residual_of(to) + at;
    const float* const in = dr::residual_of(from) + first;
    if (elements && in < out + elements && out < in + elements)
      return fail(e, DR_E_ARGUMENT, "from, to: the %" PRIu64 " elements overlap", elements);
    if (source.magic)
      std::memcpy(out, in, 4 * elements);
    else
      std::memset(out, 0, 4 * elements);
    return DR_OK;
  });
}

dr_status dr_state_norm(const void* state, size_t state_size, double* norm, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!norm) return fail(e, DR_E_ARGUMENT, "norm is NULL");
    dr::residual_state head;
    if (const dr_status s = dr::read_state(state, state_size, head, e)) return s;
    *norm = dr::residual_norm(dr::residual_of(state), head.elements);
    return DR_OK;
  });
}
