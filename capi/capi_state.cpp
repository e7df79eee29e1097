// States of feedback: sizes, residuals, copies.
#include <algorithm>

#include "capi/handles.hpp"
#include "feedback/residual.hpp"

using dr::fail;
using dr::read_struct;
using dr::reported;

dr_status dr_state_size(const dr_plan* plan, const dr_tensor* tensor, size_t* bytes, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!tensor || !bytes || (!plan && !tensor->plan)) return fail(e, DR_E_ARGUMENT, "plan, tensor or bytes is NULL");
    dr_tensor t;
    if (const dr_status s = read_struct(tensor, "tensor", t, e)) return s;
    const uint64_t width = t.width ? t.width : 1;
    if (t.universe > (UINT64_MAX >> 8) / width)
      return fail(e, DR_E_ARGUMENT, "tensor: %" PRIu64 " rows of %" PRIu64 " values", t.universe, width);
    const dr::plan& p = *(t.plan ? t.plan : plan)->bound;
    *bytes = p.keeps_feedback() ? dr::residual_size(t.universe * width) : 0;
    return DR_OK;
  });
}

dr_status dr_state_residual(void* state, size_t state_size, float** residual, uint64_t* elements, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!state || !residual || !elements) return fail(e, DR_E_ARGUMENT, "state, residual or elements is NULL");
    if (state_size < sizeof(dr::residual_state))
      return fail(e, DR_E_ARGUMENT, "state: %zu bytes are less than its head of %zu", state_size,
                  sizeof(dr::residual_state));
    dr::residual_state head;
    std::memcpy(&head, state, sizeof head);
    if (head.magic == 0) return fail(e, DR_E_ARGUMENT, "state: it is fresh and holds no residual yet");
    if (head.elements > (state_size - sizeof head) / 4)
      return fail(e, DR_E_ARGUMENT, "state: %zu bytes cannot hold the %" PRIu64 " elements that it states", state_size,
                  head.elements);
    if (const dr_status s = dr::check_residual(state, state_size, head.elements, false, e)) return s;
    *residual = dr::residual_of(state);
    *elements = head.elements;
    return DR_OK;
  });
}

dr_status dr_state_fill(const dr_plan*, const dr_tensor*, const float*, void*, size_t, dr_error* error) {
  return reported(error, [](dr_error& e) -> dr_status { return fail(e, DR_E_UNSUPPORTED, "state fill: not yet"); });
}
dr_status dr_state_copy(const void*, size_t, uint64_t, void*, size_t, uint64_t, uint64_t, dr_error* error) {
  return reported(error, [](dr_error& e) -> dr_status { return fail(e, DR_E_UNSUPPORTED, "state copy: not yet"); });
}
dr_status dr_state_norm(const void*, size_t, double*, dr_error* error) {
  return reported(error, [](dr_error& e) -> dr_status { return fail(e, DR_E_UNSUPPORTED, "state norm: not yet"); });
}
