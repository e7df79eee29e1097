// Versions, contexts, plans, codecs; and what the other files of this folder begin with.
#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>

#include "capi/handles.hpp"
#include "core/registry.hpp"
#include "primitive/cpu.hpp"

namespace dr {
namespace {

void* default_allocate(void*, size_t size, size_t alignment) {
  // Large workspaces in large pages, where the system has them: a page of 4 KiB for every few kept values is many.
  constexpr size_t large_page = size_t{2} << 20;
  if (size >= 2 * large_page) alignment = large_page;
  const size_t whole = (size + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, whole);
#ifdef MADV_HUGEPAGE
  if (memory && alignment == large_page) madvise(memory, whole, MADV_HUGEPAGE);
#endif
  return memory;
}
void default_release(void*, void* memory, size_t) { std::free(memory); }

}  // namespace

dr_status find_target(const dr_place* place, target& out, dr_error& error) {
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

dr_status tensors::read(const dr_tensor* from, size_t stride, size_t n, dr_error& error) {
  plans.clear();
  if (const dr_status s = read_array(from, stride, n, "tensors", views, error)) return s;
  for (const dr_tensor& t : views) plans.push_back(t.plan ? t.plan->bound : nullptr);
  return DR_OK;
}

dr_status prepare_batch(dr_context& context, const dr_plan* plan, const tensors& t, uint64_t segment_rows, batch& out) {
  const batch_request request{plan ? plan->bound : nullptr, segment_rows, context.workers->workers()};
  return prepare(request, t.views, t.plans, out, context.error);
}

}  // namespace dr

using dr::fail;
using dr::in_context;
using dr::read_struct;
using dr::reported;

// ---- Versions, context ------------------------------------------------------------------------------------

const char* dr_version(void) { return DR_VERSION_STRING; }
uint32_t dr_abi_version(void) { return DR_ABI_VERSION; }
uint64_t dr_feature(uint32_t feature) {
  switch (feature) {
    case DR_FEATURE_CUDA: return dr::built_with_cuda;
    case DR_FEATURE_FORMAT: return DR_FORMAT_VERSION;
    case DR_FEATURE_CODEC_ABI: return DR_CODEC_ABI_VERSION;
    case DR_FEATURE_CPU: return static_cast<uint64_t>(dr::cpu()) + 1;
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
    auto c = std::make_unique<dr_context>();
    if (const dr_status s = read_struct(options, "options", c->options, e)) return s;
    if (!c->options.allocate != !c->options.release)
      return fail(e, DR_E_ARGUMENT, "options: %s is NULL; give both allocate and release, or neither",
                  c->options.allocate ? "release" : "allocate");
    if (c->options.threads > dr::threads_max)
      return fail(e, DR_E_ARGUMENT, "options: %u threads; at most %u", c->options.threads, dr::threads_max);
    if (c->options.reserved) return fail(e, DR_E_UNSUPPORTED, "options: reserved is %u, not 0", c->options.reserved);
    if (!c->options.allocate) {
      c->options.allocate = dr::default_allocate;
      c->options.release = dr::default_release;
    }
    try {
      c->workers = std::make_unique<dr::pool>(std::max(1u, c->options.threads));
    } catch (const std::system_error& failure) {
      return fail(e, DR_E_MEMORY, "context: no %u threads can be started: %s", c->options.threads, failure.what());
    }
    *context = c.release();
    return DR_OK;
  });
}

void dr_context_destroy(dr_context* context) { delete context; }

dr_status dr_context_trim(dr_context* context) {
  return in_context(context, [](dr_context& c) { return c.trim(); });
}

const dr_error* dr_last_error(const dr_context* context) {
  static constexpr dr_error none{sizeof(dr_error), DR_E_ARGUMENT, 0, DR_NO_TENSOR, 0, 0, DR_NO_FRAME, 0,
                                 "context is NULL"};
  return context ? &context->error : &none;
}

// ---- Plans, codecs ----------------------------------------------------------------------------------------

dr_status dr_plan_parse(const char* text, dr_plan** plan, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!text || !plan) return fail(e, DR_E_ARGUMENT, "%s is NULL", text ? "plan" : "text");
    *plan = nullptr;
    auto p = std::make_unique<dr_plan>();
    if (const dr_status s = dr::bind_plan(text, p->bound, e)) return s;
    *plan = p.release();
    return DR_OK;
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

size_t dr_codec_count(void) { return dr::codec_count(); }
const dr_codec* dr_codec_at(size_t position) { return dr::codec_at(position); }

dr_status dr_codec_register(const dr_codec* codec, dr_error* error) {
  return reported(error, [&](dr_error& e) { return dr::register_codecs(&codec, 1, e); });
}

dr_status dr_plugin_load(const char* path, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!path) return fail(e, DR_E_ARGUMENT, "path is NULL");
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
      return fail(e, DR_E_UNSUPPORTED, "plug-in: %s%s", dlerror(),
                  std::strchr(path, '/') ? "" : " (without a slash it is looked for where the system's libraries are)");
    void* const symbol = dlsym(library, DR_PLUGIN_SYMBOL);
    if (!symbol)
      return fail(e, DR_E_UNSUPPORTED, "plug-in %s: it does not export %s%s", path, DR_PLUGIN_SYMBOL,
                  dlsym(library, "dr_plugin_v1") ? "; it speaks version 1 of codec.h, this library version 2" : "");
    static constexpr dr_host host{sizeof(dr_host), DR_CODEC_ABI_VERSION, 0};
    size_t n = 0;
    const dr_codec* const* const codecs = reinterpret_cast<dr_plugin_fn>(symbol)(&host, &n);
    if (!codecs || !n)
      return fail(e, DR_E_UNSUPPORTED, "plug-in %s: it offers no codec to version %d", path, DR_CODEC_ABI_VERSION);
    return dr::register_codecs(codecs, n, e);
  });
}
