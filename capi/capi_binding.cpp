// A batch bound to its memory.
#include "capi/handles.hpp"

using dr::fail;
using dr::in_context;

struct dr_binding {
  dr_context* context;
};

dr_status dr_binding_create(dr_context* context, const dr_batch*, const dr_place*, const dr_tensor*, size_t,
                            dr_tensor_out*, size_t, size_t, size_t, dr_binding**) {
  return in_context(context,
                    [](dr_context& c) -> dr_status { return fail(c.error, DR_E_UNSUPPORTED, "binding: not yet"); });
}
void dr_binding_destroy(dr_binding* binding) { delete binding; }
dr_status dr_binding_encode(dr_binding*, const dr_call*, void*, size_t, dr_result*) { return DR_E_UNSUPPORTED; }
dr_status dr_binding_decode(dr_binding*, const void*, size_t, const dr_decode_options*, dr_result*) {
  return DR_E_UNSUPPORTED;
}
dr_status dr_binding_merge(dr_binding*, const dr_bytes*, const float*, size_t, const dr_decode_options*, dr_result*) {
  return DR_E_UNSUPPORTED;
}
