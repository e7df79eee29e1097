// States of feedback: sizes, residuals, copies.
#include "api/state.hpp"

#include "capi/handles.hpp"

using dr::fail;
using dr::reported;

namespace {

// A tensor, and the plan that it is encoded with.
struct planned_tensor {
  dr_tensor tensor;
  const dr::plan* method;
};
dr_status read_tensor(const dr_plan* plan, const dr_tensor* tensor, planned_tensor& out, dr_error& e) {
  if (!tensor) return fail(e, DR_E_ARGUMENT, "tensor is NULL");
  if (const dr_status s = dr::read_struct(tensor, "tensor", out.tensor, e)) return s;
  if (out.tensor.plan) plan = out.tensor.plan;
  if (!plan) return fail(e, DR_E_ARGUMENT, "plan and the plan of the tensor are NULL");
  out.method = plan->bound.get();
  return DR_OK;
}

}  // namespace

dr_status dr_state_size(const dr_plan* plan, const dr_tensor* tensor, size_t* bytes, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!bytes) return fail(e, DR_E_ARGUMENT, "bytes is NULL");
    planned_tensor t;
    if (const dr_status s = read_tensor(plan, tensor, t, e)) return s;
    return dr::state_size(*t.method, t.tensor, *bytes, e);
  });
}

dr_status dr_state_check(const dr_plan* plan, const dr_tensor* tensor, const void* state, size_t state_size,
                         dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    planned_tensor t;
    if (const dr_status s = read_tensor(plan, tensor, t, e)) return s;
    return dr::fits_state(*t.method, t.tensor, state, state_size, e);
  });
}

dr_status dr_state_residual(void* state, size_t state_size, float** residual, uint64_t* elements, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!residual || !elements) return fail(e, DR_E_ARGUMENT, "%s is NULL", residual ? "elements" : "residual");
    return dr::find_residual(state, state_size, *residual, *elements, e);
  });
}

dr_status dr_state_momentum(void* state, size_t state_size, float** momentum, uint64_t* elements, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!momentum || !elements) return fail(e, DR_E_ARGUMENT, "%s is NULL", momentum ? "elements" : "momentum");
    return dr::find_momentum(state, state_size, *momentum, *elements, e);
  });
}

dr_status dr_state_fill(const dr_plan* plan, const dr_tensor* tensor, const float* residual, void* state,
                        size_t state_size, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    planned_tensor t;
    if (const dr_status s = read_tensor(plan, tensor, t, e)) return s;
    return dr::fill_state(*t.method, t.tensor, residual, state, state_size, e);
  });
}

dr_status dr_state_copy(const void* from, size_t from_size, uint64_t first, void* to, size_t to_size, uint64_t at,
                        uint64_t elements, dr_error* error) {
  return reported(error, [&](dr_error& e) {
    return dr::copy_state({from, from_size, first}, to, to_size, at, elements, e);
  });
}

dr_status dr_state_scale(void* state, size_t state_size, double factor, dr_error* error) {
  return reported(error, [&](dr_error& e) { return dr::scale_state(state, state_size, factor, e); });
}

dr_status dr_state_norm(const void* state, size_t state_size, double* norm, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!norm) return fail(e, DR_E_ARGUMENT, "norm is NULL");
    return dr::state_norm(state, state_size, *norm, e);
  });
}
