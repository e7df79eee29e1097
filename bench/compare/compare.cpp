#include "compare.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "histograms.hpp"
#include "kept.hpp"
#include "metrics.hpp"
#include "number.hpp"
#include "plan_text.hpp"
#include "verify.hpp"

namespace dr::compare {
namespace {

double now_ns() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct candidate {
  const plan* method;
  plan_reading reading;
  std::vector<uint64_t> left;    // feedback's state before the step; empty: the plan has none
  std::vector<uint64_t> state;   // what an encode of the step gets, a copy of it
  std::vector<std::byte> frame;  // as it was verified
  row facts;
  std::vector<double> sparsify_ns, encode_ns, decode_ns;
};

void add_sparsify(void* total_ns, const dr_trace* trace) {
  if (std::strcmp(trace->stage, "sparsify") == 0)
    *static_cast<double*>(total_ns) += static_cast<double>(trace->end_ns - trace->begin_ns);
}

class measurement {
 public:
  measurement(context& c, std::span<const tensor> gradients, const measure_settings& settings, console& console)
      : context_(c), gradients_(gradients), settings_(settings), console_(console), received_(g().data.size()) {}

  measured run(std::span<const plan> plans) {
    for (const plan& p : plans)
      attempt(p.text(), [&] {
        candidates_.push_back({&p, read_plan(p.text()), fresh_state(p), {}, {}, {}, {}, {}, {}});
      });
    for (; step_ < settings_.steps; ++step_) {
      if (settings_.each_step || step_ + 1 == settings_.steps) show_step();
      if (step_ + 1 == settings_.steps) break;
      progress(fmt::format("step {}", step_ + 1));
      each_candidate([&](candidate& x) { advance(x); });
    }
    return std::move(result_);
  }

 private:
  void show_step() {
    each_candidate([&](candidate& x) {
      progress(fmt::format("verifying {}", x.reading.text));
      check(x);
    });
    kept_.clear();
    known_ways_.clear();
    time_memcpy();
    each_candidate([&](candidate& x) { warm_up(x); });
    copy_ns_.clear();
    for (uint32_t round = 1; round <= settings_.repeat; ++round) {
      progress(fmt::format("round {} of {}", round, settings_.repeat));
      time_memcpy();
      for (candidate& x : candidates_) time_plan(x);
    }
    result_.rows.push_back(memcpy_row());
    copy_ns_.clear();
    for (candidate& x : candidates_) result_.rows.push_back(finished(x));
  }

  const tensor& g() const { return gradients_[step_ % gradients_.size()]; }
  std::string label() const { return g().input + (g().name.empty() ? "" : " ") + g().name; }
  void progress(const std::string& what) { console_.progress(what + ": " + label()); }

  // What a plan gets wrong is a line on the console, and the others go on.
  template <class F>
  bool attempt(std::string_view plan_text, F&& f) {
    try {
      f();
      return true;
    } catch (const std::runtime_error& e) {
      console_.line(fmt::format("{}: {}: {}", label(), plan_text, e.what()));
      ++result_.failures;
      return false;
    }
  }

  // Those with which f fails are out.
  template <class F>
  void each_candidate(F&& f) {
    std::erase_if(candidates_, [&](candidate& x) { return !attempt(x.reading.text, [&] { f(x); }); });
  }

  row tensor_row() const {
    row r;
    r.input = g().input;
    r.tensor = g().name;
    r.step = step_ + 1;
    r.dtype = name_of(g().type);
    r.d = g().elements;
    return r;
  }

  std::vector<uint64_t> fresh_state(const plan& method) const {
    return std::vector<uint64_t>((state_size(method, dense(abi_dtype(g().type), nullptr, g().elements)) + 7) / 8);
  }

  dr_tensor source(candidate& x) const {
    dr_tensor t = dense(abi_dtype(g().type), g().data.data(), g().elements);
    if (x.left.empty()) return t;
    x.state = x.left;
    t.state = x.state.data();
    t.state_size = 8 * x.state.size();
    return t;
  }
  dr_call call() const {
    auto call = sized<dr_call>();
    call.step = step_;
    call.seed = call.private_seed = settings_.seed;
    call.segment_rows = settings_.segment_rows;
    return call;
  }

  // By plans without feedback.
  const std::vector<uint64_t>& kept_of(const std::string& sparsify) {
    if (const auto known = kept_.find(sparsify); known != kept_.end()) return known->second;
    const dr_call now = call();
    const std::vector<uint64_t>& kept = kept_[sparsify] = kept_by(context_, sparsify, g(), &now);
    note_subject(sparsify, g(), kept);
    return kept;
  }

  // Once a step for each way to keep; with feedback as the first plan has it.
  void note_subject(const std::string& way, const tensor& seen, const std::vector<uint64_t>& kept) {
    if (!known_ways_.insert(way).second) return;
    nlohmann::ordered_json facts = subject_facts(seen, way, kept);
    facts["step"] = step_ + 1;
    result_.subjects.push_back(std::move(facts));
  }

  // What feedback makes of the gradient, and the sparsifier sees: a frame of all of it says that.
  tensor accumulated(candidate& x) {
    const dr_call now = call();
    const dr_tensor t = source(x);
    const plan all("sparsify=none " + x.reading.feedback + " index=all value=raw");
    tensor seen = g();
    context_.decode(context_.encode(all, {&t, 1}, &now),
                    dense_out(abi_dtype(g().type), seen.data.data(), g().elements));
    return seen;
  }

  size_t encode(candidate& x) {
    const dr_call now = call();
    const dr_tensor t = source(x);
    room_.resize(std::max(room_.size(), context_.bound(*x.method, {&t, 1}, &now)));
    return context_.encode_into(room_, *x.method, {&t, 1}, &now);
  }

  // To the next step, without a look at this one.
  void advance(candidate& x) {
    if (x.left.empty()) return;
    encode(x);
    x.left.swap(x.state);
  }

  void check(candidate& x) {
    const size_t size = encode(x);
    x.facts = tensor_row();
    x.frame.assign(room_.begin(), room_.begin() + static_cast<ptrdiff_t>(size));
    if (x.left.empty()) return describe(x, g(), kept_of(x.reading.sparsify));
    const tensor seen = accumulated(x);
    const dr_call now = call();
    const std::vector<uint64_t> kept = kept_by(context_, x.reading.sparsify, seen, &now);
    note_subject(x.reading.sparsify + ' ' + x.reading.feedback, seen, kept);
    describe(x, seen, kept);
  }

  // seen: of which the sparsifier has kept `kept`.
  void describe(candidate& x, const tensor& seen, const std::vector<uint64_t>& kept) {
    const dr_tensor_info info = inspect(x.frame).tensors.at(0);
    const decoded_tensor decoded = verify(context_, seen, x.reading, kept, x.frame, info);
    describe_sizes(x, info);
    const distortion d = measure_distortion(seen, kept, decoded.dense, decoded.support);
    x.facts.index_recall = d.index_recall;
    x.facts.missed = d.missed;
    x.facts.false_positives = d.false_positives;
    x.facts.relative_l2_error = d.relative_l2_error;
    x.facts.max_relative_error = d.max_relative_error;
    x.facts.cosine_similarity = d.cosine_similarity;
    x.facts.contraction = d.contraction;
  }

  void describe_sizes(candidate& x, const dr_tensor_info& info) const {
    constexpr const char* fallbacks[] = {"none", "raw_index", "dense"};
    row& f = x.facts;
    const auto d = static_cast<double>(f.d), r = static_cast<double>(info.count);
    f.r = info.count;
    f.support = info.support;
    f.plan = x.reading.text;
    f.fallback = info.fallback < std::size(fallbacks) ? fallbacks[info.fallback] : "?";
    f.bytes = x.frame.size();
    f.index_bytes = info.index_size;
    f.value_bytes = info.value_size;
    f.order_bytes = info.order_size;
    f.header_bytes = f.bytes - info.index_size - info.value_size - info.order_size;
    f.relative_volume = static_cast<double>(f.bytes) / (4 * d);
    f.index_bits_per_nonzero = quotient(8 * static_cast<double>(info.index_size), r);
    f.value_bits_per_nonzero = quotient(8 * static_cast<double>(info.value_size), r);
    f.index_bound_bits_per_nonzero = index_bound_bits(f.d, info.count);
  }

  // Encodes into room_ and decodes that. The trace costs a few clock readings a stage; sparsify is known from
  // nothing else.
  size_t time_plan(candidate& x) {
    double sparsify = 0;
    dr_call now = call();
    now.trace = add_sparsify;
    now.trace_user = &sparsify;
    const dr_tensor t = source(x);
    const dr_tensor_out out = dense_out(abi_dtype(g().type), received_.data(), g().elements);
    const double begin = now_ns();
    const size_t size = context_.encode_into(room_, *x.method, {&t, 1}, &now);
    const double encoded = now_ns();
    context_.decode(std::span(room_).first(size), out);
    x.decode_ns.push_back(now_ns() - encoded);
    x.encode_ns.push_back(std::max(0.0, encoded - begin - sparsify));
    x.sparsify_ns.push_back(sparsify);
    return size;
  }

  // Not counted, but it shows whether encode repeats itself.
  void warm_up(candidate& x) {
    const size_t size = time_plan(x);
    if (!std::ranges::equal(x.frame, std::span(room_).first(size)))
      throw verify_error("the same input gave another frame the second time");
    x.sparsify_ns.clear();
    x.encode_ns.clear();
    x.decode_ns.clear();
  }

  void time_memcpy() {
    const double begin = now_ns();
    std::memcpy(received_.data(), g().data.data(), g().data.size());
    copy_ns_.push_back(now_ns() - begin);
  }

  row memcpy_row() const {
    row r = tensor_row();
    r.plan = "memcpy";
    r.bytes = g().data.size();
    r.relative_volume = static_cast<double>(r.bytes) / (4 * static_cast<double>(r.d));
    const timing copy = summarize(copy_ns_);
    r.encode_ns = r.decode_ns = copy.median;
    r.encode_ns_spread = r.decode_ns_spread = copy.spread;
    return r;
  }

  static row finished(candidate& x) {
    row r = std::move(x.facts);
    const timing encode = summarize(std::exchange(x.encode_ns, {})), decode = summarize(std::exchange(x.decode_ns, {}));
    r.sparsify_ns = summarize(std::exchange(x.sparsify_ns, {})).median;
    r.encode_ns = encode.median;
    r.encode_ns_spread = encode.spread;
    r.decode_ns = decode.median;
    r.decode_ns_spread = decode.spread;
    return r;
  }

  context& context_;
  std::span<const tensor> gradients_;
  measure_settings settings_;
  uint32_t step_ = 0;
  console& console_;
  std::vector<std::byte> received_, room_;
  std::map<std::string, std::vector<uint64_t>> kept_;
  std::set<std::string> known_ways_;  // of which `subjects` has the facts of this step
  std::vector<candidate> candidates_;
  std::vector<double> copy_ns_;
  measured result_;
};

}  // namespace

measured compare_plans(context& c, std::span<const tensor> gradients, std::span<const plan> plans,
                       const measure_settings& settings, console& console) {
  return measurement(c, gradients, settings, console).run(plans);
}

}  // namespace dr::compare
