// Versions, contexts, plans, codecs; and the structs that the other files of this folder read.
#include <algorithm>
#include <cstring>

#include "api/library.hpp"
#include "capi/handles.hpp"
#include "core/registry.hpp"
#include "plan/named_plans.hpp"

namespace dr {

dr_status read_place(const dr_place* place, target& out, dr_error& error) {
  out = {};
  dr_place p;
  if (const dr_status s = read_struct(place, "place", p, error)) return s;
  if ((p.flags & ~place_flags) || p.reserved)
    return fail(error, DR_E_UNSUPPORTED, "place: unknown flags 0x%x, or reserved is not 0", p.flags);
  if (!place || p.kind == DR_PLACE_CPU) return DR_OK;
  out.stream = p.stream;
  out.allows_host = p.flags & DR_PLACE_ALLOW_HOST;
  return find_device(p, out.where, error);
}

namespace {

struct refusal {
  uint64_t context;  // its number; 0: no refusal
  dr_error error;
};
constinit thread_local refusal refused{};

}  // namespace

dr_error& turn::error() const { return has_turn_ ? c_.error : refused.error; }
const dr_error* turn::refusal_of(const context& c) { return refused.context == c.number ? &refused.error : nullptr; }
void turn::forget_refusal() const {
  if (refused.context == c_.number) refused.context = 0;
}
dr_status turn::refuse() const {
  refused = {c_.number, no_error()};
  return fail(refused.error, DR_E_ARGUMENT, "context: in use by another call; it serves one at a time");
}

bool is_cpu(const dr_place* place) {
  if (!place) return true;
  dr_place p{};
  const size_t size = size_of_struct(place);
  if (size < first_of<dr_place>.size || size > struct_size_max) return false;
  std::memcpy(&p, place, std::min(size, sizeof p));
  return p.kind == DR_PLACE_CPU;
}

dr_status check_place(const dr_batch* batch, const target& t, dr_error& error) {
  if (!batch) return fail(error, DR_E_ARGUMENT, "batch is NULL");
  if (batch->where == t.where) return DR_OK;
  return fail(error, DR_E_ARGUMENT, "place: differs from the one that the batch was prepared for");
}

dr_status read_tensors(const dr_tensor* from, size_t stride, size_t n, tensor_list& out, dr_error& error) {
  out.plans.clear();
  if (const dr_status s = read_array(from, stride, n, "tensors", out.views, error)) return s;
  for (const dr_tensor& t : out.views) out.plans.push_back(method_of(t.plan));
  return DR_OK;
}

dr_status read_options(const dr_decode_options* from, dr_decode_options& out, dr_error& error) {
  if (const dr_status s = read_struct(from, "options", out, error)) return s;
  if ((out.flags & ~decode_flags) || out.reserved)
    return fail(error, DR_E_UNSUPPORTED, "options: unknown flags 0x%x, or reserved is not 0", out.flags);
  if ((out.flags & DR_DECODE_ADD) && (out.flags & DR_DECODE_VOTE))
    return fail(error, DR_E_ARGUMENT, "options: DR_DECODE_VOTE does not go with DR_DECODE_ADD");
  if ((out.flags & DR_DECODE_APPLY) && (out.flags & (DR_DECODE_ADD | DR_DECODE_VOTE)))
    return fail(error, DR_E_ARGUMENT, "options: DR_DECODE_APPLY assigns; it cannot be combined with ADD or VOTE");
  return DR_OK;
}

}  // namespace dr

using dr::fail;
using dr::in_context;
using dr::read_struct;
using dr::reported;

namespace {

// The plan that `bind(shared_ptr<const dr::plan>&)` makes; *out is NULL if that fails.
template <typename Bind>
dr_status new_plan(dr_plan** out, Bind bind) {
  *out = nullptr;
  auto p = std::make_unique<dr_plan>();
  if (const dr_status s = bind(p->bound)) return s;
  *out = p.release();
  return DR_OK;
}

}  // namespace

// ---- Versions, context ------------------------------------------------------------------------------------

const char* dr_version(void) { return DR_VERSION_STRING; }
uint32_t dr_abi_version(void) { return DR_ABI_VERSION; }
uint64_t dr_feature(uint32_t feature) {
  switch (feature) {
    case DR_FEATURE_CUDA: return dr::built_with_cuda;
    case DR_FEATURE_FORMAT: return DR_FORMAT_VERSION;
    case DR_FEATURE_CODEC_ABI: return DR_CODEC_ABI_VERSION;
    case DR_FEATURE_CPU: return dr::cpu_feature();
    case DR_FEATURE_CALL_FLAGS: return dr::call_flags;
    case DR_FEATURE_DECODE_FLAGS: return dr::decode_flags;
    case DR_FEATURE_TENSOR_FLAGS: return DR_TENSOR_SUM_DUPLICATES;
    case DR_FEATURE_PLACE_FLAGS: return dr::place_flags;
    default: return 0;
  }
}
const char* dr_status_name(dr_status status) { return dr::status_name(status); }

dr_status dr_context_create(const dr_context_options* options, dr_context** context, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!context) return fail(e, DR_E_ARGUMENT, "context is NULL");
    *context = nullptr;
    dr_context_options o;
    if (const dr_status s = read_struct(options, "options", o, e)) return s;
    if (!o.allocate != !o.release)
      return fail(e, DR_E_ARGUMENT, "options: %s is NULL; set both allocate and release, or neither",
                  o.allocate ? "release" : "allocate");
    if (o.threads > dr::threads_max)
      return fail(e, DR_E_ARGUMENT, "options: %u threads; at most %u", o.threads, dr::threads_max);
    if (o.reserved) return fail(e, DR_E_UNSUPPORTED, "options: reserved is %u, not 0", o.reserved);
    auto c = std::make_unique<dr_context>();
    if (const dr_status s = c->start(o, e)) return s;
    *context = c.release();
    return DR_OK;
  });
}

void dr_context_destroy(dr_context* context) { delete context; }

dr_status dr_context_trim(dr_context* context) {
  return in_context(context, [](dr_context& c) { return c.trim(); });
}

const dr_error* dr_last_error(const dr_context* context) {
  static constexpr dr_error none{dr::no_error().struct_size, DR_E_ARGUMENT,  0, DR_NO_TENSOR, 0, 0, DR_NO_FRAME, 0,
                                 "context is NULL",          DR_REASON_NONE, 0};
  if (!context) return &none;
  const dr_error* const refusal = dr::turn::refusal_of(*context);
  return refusal ? refusal : &context->error;
}

// ---- Plans, codecs ----------------------------------------------------------------------------------------

dr_status dr_plan_parse(const char* text, dr_plan** plan, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!text || !plan) return fail(e, DR_E_ARGUMENT, "%s is NULL", text ? "plan" : "text");
    return new_plan(plan, [&](auto& bound) { return dr::bind_plan(text, bound, e); });
  });
}

dr_status dr_plan_exact(const dr_plan* plan, dr_plan** exact, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!plan || !exact) return fail(e, DR_E_ARGUMENT, "%s is NULL", plan ? "exact" : "plan");
    return new_plan(exact, [&](auto& bound) { return dr::bind_exact(plan->bound, bound, e); });
  });
}

dr_status dr_plan_rows(const dr_plan* plan, dr_plan** rows, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!plan || !rows) return fail(e, DR_E_ARGUMENT, "%s is NULL", plan ? "rows" : "plan");
    return new_plan(rows, [&](auto& bound) { return dr::bind_rows(*plan->bound, bound, e); });
  });
}

dr_status dr_plan_with(const dr_plan* plan, const char* stages, dr_plan** made, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!plan || !stages || !made)
      return fail(e, DR_E_ARGUMENT, "%s is NULL", !plan ? "plan" : stages ? "made" : "stages");
    return new_plan(made, [&](auto& bound) { return dr::bind_with(*plan->bound, stages, bound, e); });
  });
}

const char* dr_plan_text(const dr_plan* plan) { return plan ? plan->bound->text.c_str() : ""; }
void dr_plan_destroy(dr_plan* plan) { delete plan; }
dr_status dr_plan_describe(const dr_plan* plan, dr_plan_info* info, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!plan || !info) return fail(e, DR_E_ARGUMENT, "%s is NULL", plan ? "info" : "plan");
    dr_plan_info i;
    if (const dr_status s = read_struct(info, "info", i, e)) return s;
    const dr::plan_traits traits = dr::traits_of(*plan->bound);
    i.flags = traits.flags;
    i.dtypes = traits.dtypes;
    dr::write_struct(i, info);
    return DR_OK;
  });
}

size_t dr_preset_count(void) { return dr::preset_list().size(); }
const dr_preset* dr_preset_at(size_t position) {
  return position < dr::preset_list().size() ? &dr::preset_list()[position] : nullptr;
}

size_t dr_codec_count(void) { return dr::codec_count(); }
const dr_codec* dr_codec_at(size_t position) { return dr::codec_at(position); }

dr_status dr_codec_register(const dr_codec* codec, dr_error* error) {
  return reported(error, [&](dr_error& e) { return dr::register_codecs(&codec, 1, e); });
}

dr_status dr_plugin_load(const char* path, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!path) return fail(e, DR_E_ARGUMENT, "path is NULL");
    return dr::load_plugin(path, e);
  });
}
