// Plans: any text parses or says why not; the canonical text parses to itself; and what a plan makes of values decodes.
// Input: the text, then, behind a zero byte, f32 values of a dense tensor.
#include <deepreduce/deepreduce.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

[[noreturn]] void wrong(const char* what, const char* sentence) {
  std::fprintf(stderr, "wrong: %s: %s\n", what, sentence);
  std::abort();
}

dr_plan* parse(const std::string& text, dr_error& error) {
  error = {.struct_size = sizeof error};
  dr_plan* p = nullptr;
  const dr_status s = dr_plan_parse(text.c_str(), &p, &error);
  if (s == DR_OK) return p;
  if (p) wrong("a plan in spite of an error", text.c_str());
  if (s != DR_E_ARGUMENT && s != DR_E_UNSUPPORTED) wrong(dr_status_name(s), text.c_str());
  if (!error.message[0]) wrong("an error without a sentence", text.c_str());
  return nullptr;
}

void use(const dr_plan* plan, const std::vector<float>& values) {
  static dr_context* context = nullptr;
  if (!context && dr_context_create(nullptr, &context, nullptr) != DR_OK) wrong("no context", "");
  dr_tensor t{};
  t.struct_size = sizeof t;
  t.dtype = DR_F32;
  t.universe = values.size();
  t.values = values.data();
  dr_plan_info info{};
  info.struct_size = sizeof info;
  if (dr_plan_describe(plan, &info, nullptr)) wrong("a plan that cannot be described", dr_plan_text(plan));
  const std::vector<float> zeros(values.size());
  const bool patch = info.flags & DR_PLAN_PATCH;
  if (patch || std::strstr(dr_plan_text(plan), "sparsify=visible")) t.base = zeros.data();
  size_t bytes = 0;
  if (const dr_status s = dr_state_size(plan, &t, &bytes, nullptr); s == DR_E_UNSUPPORTED)
    bytes = 0;  // a transform, which keeps its own and makes no frame
  else if (s != DR_OK)
    wrong("no state size", dr_plan_text(plan));
  std::vector<uint64_t> state(bytes / 8 + 1);
  if (bytes) {
    t.state = state.data();
    t.state_size = 8 * state.size();
  }
  for (int step = 0; step < 2; ++step) {
    if (const dr_status s = dr_bound(context, plan, nullptr, nullptr, &t, sizeof t, 1, &bytes); s != DR_OK) {
      if (s != DR_E_ARGUMENT && s != DR_E_UNSUPPORTED) wrong(dr_status_name(s), dr_last_error(context)->message);
      return;
    }
    std::vector<uint8_t> frame(bytes);
    dr_result result{.struct_size = sizeof(dr_result)};
    const dr_status s =
        dr_encode(context, plan, nullptr, nullptr, &t, sizeof t, 1, frame.data(), frame.size(), &result);
    if (s == DR_E_ARGUMENT) return;  // a NaN, say
    if (s != DR_OK) wrong(dr_status_name(s), dr_last_error(context)->message);
    frame.resize(result.size);
    std::vector<float> out(values.size());
    dr_tensor_out o{};
    o.struct_size = sizeof o;
    o.dtype = DR_F32;
    o.universe = out.size();
    o.values = out.data();
    dr_decode_options options{};
    options.struct_size = sizeof options;
    options.flags = patch ? DR_DECODE_APPLY : 0;
    if (dr_decode(context, nullptr, frame.data(), frame.size(), &options, &o, sizeof o, 1) != DR_OK)
      wrong(dr_plan_text(plan), dr_last_error(context)->message);
    if (patch && !values.empty() && std::memcmp(out.data(), values.data(), 4 * out.size()))
      wrong("a patch makes something else", dr_plan_text(plan));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const uint8_t* const end = std::find(data, data + size, 0);
  const std::string text(data, end);
  dr_error error{.struct_size = sizeof(dr_error)};
  dr_plan* const first = parse(text, error);
  if (!first) return 0;
  const std::string canonical = dr_plan_text(first);
  dr_plan* const second = parse(canonical, error);
  if (!second) wrong("the canonical text does not parse", canonical.c_str());
  if (canonical != dr_plan_text(second))
    wrong("the canonical text of the canonical text differs", dr_plan_text(second));
  const uint8_t* const at = end == data + size ? end : end + 1;
  std::vector<float> values(std::min<size_t>(static_cast<size_t>(data + size - at) / 4, 2048));
  if (!values.empty()) std::memcpy(values.data(), at, 4 * values.size());
  use(first, values);
  dr_plan_destroy(first);
  dr_plan_destroy(second);
  return 0;
}
