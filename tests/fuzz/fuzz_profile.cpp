// Files of `predict`: any bytes give a profile or a model whose numbers a model of time can use, or an error that names the file.
//
// Input: P or M, then the text of a profile or of a model.
#include <cmath>
#include <stdexcept>

#include "fuzz/script.hpp"
#include "tool/predict/profile.hpp"
#include "tool/predict/training_model.hpp"

namespace {

using namespace dr::predict;
using fuzz::wrong;

void judge(double x, const char* what) {
  if (!std::isfinite(x) || x < 0) wrong(what);
}

void judge(const std::optional<curve>& c) {
  for (const double x : {0.0, 1.0, 1000.0, 25e6, 1e15})
    if (c) judge((*c)(x), "a cost that is no time");
}

void read_profile_text(std::string_view text) {
  const profile p = parse_profile(parse_json(text, "x", "profile"), "x");
  judge(p.slowdown.value_or(1), "slowdown");
  judge(p.skew_ns, "skew");
  for (const double ranks : {2.0, 64.0, 65536.0})
    if (!(sharing(p, ranks) >= 1)) wrong("cores that are shared by less than one");
  for (const plan_profile& each : p.plans) {
    for (const auto* c : {&each.encode, &each.decode, &each.merge, &each.frame, &each.add}) judge(*c);
    if (find_plan(p, each.plan) != &each) wrong("a plan is not found by its own text");
  }
  for (const measured_link& l : p.links) {
    if (l.ranks < 2 || l.ranks > 65536 || l.ranks_per_host > 65536) wrong("ranks that no transport has");
    if (!(l.bits_per_second >= 1)) wrong("a link without a rate");
    judge(l.latency_ns, "latency");
    judge(l.allreduce);
    judge(l.allgather);
  }
}

void read_model_text(std::string_view text) {
  const training t = parse_training(parse_json(text, "x", "model"), "x");
  judge(t.elements(), "elements");
  judge(t.compute_ns(), "computing");
  if (t.tensors.empty()) wrong("a model without tensors");
  for (const tensor_spec& each : t.tensors) {
    judge(each.elements, "elements");
    judge(each.ready_ns, "ready");
    judge(each.rows, "rows");
    judge(each.energy, "energy");
    if (each.ready_ns > t.backward_ns) wrong("a gradient that is ready after all are");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  if (all.empty()) return 0;
  try {
    all[0] == 'M' ? read_model_text(all.substr(1)) : read_profile_text(all.substr(1));
  } catch (const std::runtime_error& e) {
    if (!std::string_view(e.what()).starts_with("x: ")) wrong("an error that does not name the file:", e.what());
  }
  return 0;
}
