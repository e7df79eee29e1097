// The factors of an all-reduce, and a state from a checkpoint, as a hostile rank or a damaged file would have them: a round ends in outputs or
// in an error after which all is as it was, the residual is finite, and a state that is refused changes nothing.
//
// Input: plan, options, shapes; then rounds: gradients, what becomes of each factor, how the round ends, and what becomes of the state.
#include <deepreduce/transform.h>

#include <cmath>
#include <string>

#include "fuzz/script.hpp"

namespace {

using fuzz::bytes;
using fuzz::script;
using fuzz::wrong;

constexpr float untouched = -7;
constexpr size_t rounds_most = 6;

constexpr const char* feedbacks[] = {"", " feedback=residual", " feedback=residual(beta=0.9)",
                                     " feedback=residual(beta=1,gamma=0.5)"};

// Any bits, or a value that a gradient has.
float value(script& from, size_t i) {
  const uint8_t what = from.byte();
  if (what % 16) return static_cast<float>(what) / 64 * (i % 3 ? 1 : -1);
  const auto bits = static_cast<uint32_t>(from.number(4));
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

struct one_round {
  dr_transform* t;
  std::vector<dr_tensor>& tensors;
  std::vector<dr_tensor_out>& outs;
  std::vector<std::vector<float>>&in, &out;

  void expect(dr_status s, const char* call) const {
    const char* const sentence = dr_last_error(fuzz::context())->message;
    if (s && s != DR_E_ARGUMENT) wrong(call, sentence);
    if (s && !sentence[0]) wrong("an error without a sentence", call);
  }

  dr_status run(script& from) {
    for (auto& values : in)
      for (size_t i = 0; i < values.size(); ++i) values[i] = value(from, i);
    for (auto& values : out) std::fill(values.begin(), values.end(), untouched);
    dr_status s =
        dr_transform_begin(t, tensors.data(), sizeof(dr_tensor), outs.data(), sizeof(dr_tensor_out), tensors.size());
    expect(s, "begin");
    if (s) return s;
    do {
      float* factor = nullptr;
      uint64_t count = 0;
      if (dr_transform_factor(t, &factor, &count)) wrong("a round without a factor");
      for (uint8_t n = from.byte() % 8; n > 0 && count; --n) factor[from.up_to(count - 1)] = value(from, n);
      const uint8_t end = from.byte();
      if (end % 32 == 1) {
        s = dr_transform_cancel(t, end & 128 ? DR_TRANSFORM_KEEP : 0);
        expect(s, "cancel");
        return DR_E_ARGUMENT;
      }
      s = dr_transform_next(t, end % 32 == 2 ? value(from, 0) : end % 2 ? 1.0f : 0.25f);
      if (s != DR_PENDING) expect(s, "next");
    } while (s == DR_PENDING);
    return s;
  }

  void judge(dr_status s) const {
    for (const auto& values : out)
      for (const float x : values) {
        if (s && x != untouched) wrong("a round without a result has written outputs");
        if (!s && !std::isfinite(x)) wrong("an output that is not finite");
      }
  }
};

bytes saved(dr_transform* t) {
  dr_transform_info info{};
  info.struct_size = sizeof info;
  if (dr_transform_describe(t, &info, nullptr)) wrong("a transform that cannot be described");
  const fuzz::block state(info.state_size);
  if (dr_transform_save(t, state.data(), state.size())) wrong("a state that cannot be saved");
  return state.copy(state.size());
}

void check_residual(dr_transform* t, size_t tensors) {
  for (size_t i = 0; i < tensors; ++i) {
    float* kept = nullptr;
    uint64_t n = 0;
    if (dr_transform_residual(t, i, &kept, &n)) return;  // none is kept
    for (uint64_t k = 0; k < n; ++k)
      if (!std::isfinite(kept[k])) wrong("a residual that is not finite");
  }
}

// What becomes of a state on its way; it is loaded, or refused and nothing has changed. (A warm start whose columns have
// another norm than 1 is made a basis, which a second load leaves as it is.)
void load(dr_transform* t, script& from) {
  const bytes before = saved(t);
  bytes given = before;
  const uint8_t what = from.byte();
  for (uint8_t n = what % 4; n > 0 && !given.empty(); --n) given[from.up_to(given.size() - 1)] ^= from.byte();
  if (what & 16) given.resize(from.up_to(2 * given.size()));
  const fuzz::block room(given);
  const dr_status s = dr_transform_load(t, room.data(), room.size());
  if (s && s != DR_E_ARGUMENT) wrong("load", dr_last_error(fuzz::context())->message);
  const bytes now = saved(t);
  if (s && now != before) wrong("a state that is refused has changed the transform");
  if (s) return;
  if (what % 4 == 0 && now != given) wrong("a state is not what was loaded");
  if (dr_transform_load(t, now.data(), now.size()) || saved(t) != now) wrong("a state that was loaded is not one");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  script from(data, size);
  const std::string text =
      "transform=lowrank(rank=" + std::to_string(1 + from.up_to(3)) + ")" + feedbacks[from.up_to(3)];
  dr_plan* plan = nullptr;
  if (dr_plan_parse(text.c_str(), &plan, nullptr)) wrong("no plan", text.c_str());
  dr_transform_options options{};
  options.struct_size = sizeof options;
  options.seed = from.byte();
  options.dense_below = from.byte() % 32;
  std::vector<dr_tensor> tensors;
  std::vector<dr_tensor_out> outs;
  std::vector<std::vector<float>> in, out;
  for (uint8_t n = from.byte() % 4; n > 0; --n) {
    dr_tensor t{};
    t.struct_size = sizeof t;
    t.dtype = DR_F32;
    t.universe = from.up_to(40);
    t.width = static_cast<uint32_t>(from.up_to(24));
    tensors.push_back(t);
    dr_tensor_out o{};
    o.struct_size = sizeof o;
    o.dtype = DR_F32;
    o.universe = t.universe;
    o.width = t.width;
    outs.push_back(o);
    in.emplace_back(t.universe * std::max(1u, t.width));
    out.emplace_back(in.back().size());
  }
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].values = in[i].data(), outs[i].values = out[i].data();
  dr_transform* t = nullptr;
  if (dr_transform_create(fuzz::context(), plan, &options, tensors.data(), sizeof(dr_tensor), tensors.size(), &t))
    wrong("no transform", dr_last_error(fuzz::context())->message);
  one_round r{t, tensors, outs, in, out};
  for (size_t i = 0; i < rounds_most && !from.empty(); ++i) {
    const dr_status s = r.run(from);
    r.judge(s);
    if (s && dr_transform_cancel(t, 0)) wrong("a round that cannot be cancelled");
    check_residual(t, tensors.size());
    load(t, from);
  }
  dr_transform_destroy(t);
  dr_plan_destroy(plan);
  return 0;
}
