#include "exchange_model.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "deepreduce/deepreduce.hpp"
#include "deepreduce/exchange.h"

namespace dr::predict {
namespace {

template <class T, void (*destroy)(T*)>
struct destroyer {
  void operator()(T* x) const { destroy(x); }
};
using loopback_handle = std::unique_ptr<dr_loopback, destroyer<dr_loopback, dr_loopback_destroy>>;
using exchange_handle = std::unique_ptr<dr_exchange, destroyer<dr_exchange, dr_exchange_destroy>>;

constexpr double exact_header = 64;  // of a dense frame, approximately

struct cost_model {
  const exchange_work* work;
  uint32_t inner = 1;                  // hierarchy: ranks of a host
  double message_ns = 0;               // half of it for the sender, half for the receiver
  double encode_ns = 0, merge_ns = 0;  // of rank 0
};

// Ports that admit a burst.
class port_model {
 public:
  port_model(const link& port, uint32_t ranks) : port_(port), buckets_(ranks, {port.burst_bytes, 0}) {}

  // Time of a message that `rank` starts to send at now_ns.
  double takes(uint32_t rank, double now_ns, double bytes) {
    const double rate = port_.bits_per_second / 8e9, fast = port_.burst_bits_per_second / 8e9;  // bytes / ns
    if (fast <= rate) return bytes / rate;
    bucket& b = buckets_[rank];
    const double filled = std::min(port_.burst_bytes, b.bytes + rate * std::max(0.0, now_ns - b.at_ns));
    // The bucket fills while it empties.
    const double quick = std::min(bytes, filled * fast / (fast - rate)), first = quick / fast;
    const double ns = first + (bytes - quick) / rate;
    b = {bytes > quick ? 0 : std::max(0.0, filled - quick + rate * first), now_ns + ns};
    return ns;
  }

 private:
  struct bucket {
    double bytes, at_ns;
  };
  link port_;
  std::vector<bucket> buckets_;
};

uint64_t whole(double x) { return x > 0 ? static_cast<uint64_t>(std::llround(std::min(x, max_ns))) : 0; }

uint64_t takes(void* user, uint32_t rank, uint64_t now_ns, uint64_t bytes) {
  return whole(static_cast<port_model*>(user)->takes(rank, static_cast<double>(now_ns), static_cast<double>(bytes)));
}

uint64_t frame_size(void* user, uint64_t elements, uint32_t kind) {
  const exchange_work& w = *static_cast<cost_model*>(user)->work;
  const double n = static_cast<double>(elements), dense = w.dense_bytes * n + exact_header;
  if (kind == 2) return whole(dense);
  const double bytes = w.frame(n);
  return std::max<uint64_t>(1, whole(kind == 1 ? std::max(bytes, std::min(bytes * w.sum_growth, dense)) : bytes));
}

uint64_t cost(void* user, uint32_t rank, uint32_t step, uint64_t elements, uint64_t bytes) {
  cost_model& m = *static_cast<cost_model*>(user);
  const exchange_work& w = *m.work;
  const double n = static_cast<double>(elements);
  if (step == DR_STEP_SEND || step == DR_STEP_WAIT) return whole(m.message_ns / 2);
  if (elements == 0) return 0;
  const bool hosts = m.inner > 1, member = hosts && rank % m.inner != 0;
  double ns = 0;
  switch (step) {
    case DR_STEP_ENCODE: ns = member ? w.add(n) : w.encode(n); break;
    case DR_STEP_ENCODE_SUM: ns = w.encode(n); break;
    case DR_STEP_ADD: ns = w.add(n); break;
    case DR_STEP_SUM:
    case DR_STEP_MERGE: {
      // All frames have one size, so bytes imply their number. Frames that a host's leader sums are dense.
      const bool dense = hosts && step == DR_STEP_SUM;
      const double one = static_cast<double>(frame_size(user, elements, dense ? 2 : 0));
      const double count = std::max(1.0, static_cast<double>(bytes) / one);
      ns = dense ? count * w.add(n) : w.first(n) + (count - 1) * w.merge(n);
      break;
    }
    default: return 0;
  }
  if (rank == 0) (step == DR_STEP_ENCODE || step == DR_STEP_ENCODE_SUM ? m.encode_ns : m.merge_ns) += ns;
  return whole(ns);
}

[[noreturn]] void fail(dr_context* c, const char* what) {
  const dr_error* e = dr_last_error(c);
  throw std::runtime_error(fmt::format("{}: {}", what, e ? e->message : "no memory"));
}

std::vector<interval> intervals_of(dr_exchange* x) {
  size_t size = 0;
  (void)dr_exchange_trace(x, nullptr, 0, &size);
  std::string text(size, '\0');
  if (dr_exchange_trace(x, text.data(), text.size(), &size) != DR_OK) return {};
  std::vector<interval> list;
  const nlohmann::json events = nlohmann::json::parse(text);
  for (const nlohmann::json& e : events.is_array() ? events : events.at("traceEvents")) {
    if (!e.contains("ts") || !e.contains("dur")) continue;
    const std::string name = e.at("name");
    const double begin = 1e3 * e.at("ts").get<double>(), end = begin + 1e3 * e.at("dur").get<double>();
    if (end <= begin) continue;
    const bool computes =
        name.find("encode") == 0 || name.find("merge") == 0 || name.find("sum") == 0 || name.find("add") == 0;
    list.push_back({computes ? "compute" : "link", name.substr(0, name.find(' ')), name, begin, end});
  }
  return list;
}

}  // namespace

exchange_time model_exchange(const std::string& stage, double elements, const exchange_work& work, uint32_t ranks,
                             const link& port, bool traced) {
  if (ranks > max_ranks)
    throw unsupported_model(fmt::format("unsupported: an exchange among {} ranks; at most {}", ranks, max_ranks));
  // A dry run does not depend on the selected elements, so it uses the simplest plan.
  const plan method = plan("sparsify=topr(ratio=0.01) index=golomb value=raw").with(stage);
  const std::vector<dr_stage> stages = method.stages();
  const dr_stage_param* const inner = find_param(*find_stage(stages, "exchange"), "inner");
  const bool hosts = inner != nullptr;
  cost_model model{&work, hosts ? static_cast<uint32_t>(inner->number) : 1, port.message_ns};
  auto how = sized<dr_exchange_options>();
  how.flags = static_cast<uint32_t>(DR_EXCHANGE_DRY) | (traced ? static_cast<uint32_t>(DR_EXCHANGE_TRACE) : 0u);
  how.timeout_ns = whole(max_ns);
  how.frame_size = frame_size;
  how.frame_size_user = &model;
  auto options = sized<dr_loopback_options>();
  options.ranks = ranks;
  options.latency_ns = whole(port.latency_ns);
  options.bytes_per_second = port.bits_per_second / 8;
  options.cost = cost;
  options.cost_user = &model;
  float nothing = 0;  // a model's tensors have sizes only
  const dr_tensor in = dense(DR_F32, &nothing, std::max<uint64_t>(1, whole(elements)));
  const auto run = [&](bool alike) -> std::optional<exchange_time> {
    options.flags = alike ? static_cast<uint32_t>(DR_LOOPBACK_ALIKE) : 0u;
    port_model ports(port, ranks);
    if (port.burst_bytes > 0) options.takes = takes, options.takes_user = &ports;
    dr_loopback* made = nullptr;
    auto e = sized<dr_error>();
    if (dr_loopback_create(&options, &made, &e) != DR_OK)
      throw std::runtime_error(e.message);  // (The message names the loopback.)
    const loopback_handle net(made);
    const uint32_t present = alike ? 1 : ranks;
    std::vector<context> contexts(present);
    std::vector<dr_tensor_out> outs(present, dense_out(DR_F32, &nothing, in.universe));
    std::vector<exchange_handle> exchanges;
    std::vector<dr_exchange*> list;
    for (uint32_t i = 0; i < present; ++i) {
      auto transport = sized<dr_transport>();
      dr_exchange* x = nullptr;
      dr_context* const c = contexts[i].get();
      if (dr_loopback_transport(net.get(), i, &transport) != DR_OK ||
          dr_exchange_create(c, method.get(), &transport, &how, &in, sizeof in, &outs[i], sizeof outs[i], 1, &x) !=
              DR_OK)
        fail(c, "the model's exchange");
      exchanges.emplace_back(x);
      list.push_back(x);
      if (dr_exchange_start(x, nullptr) != DR_OK) fail(c, "the model's exchange");
    }
    const dr_status status = dr_loopback_run(net.get(), list.data(), nullptr);
    if (alike && status == DR_E_ARGUMENT) return {};
    if (status == DR_E_TIMEOUT)
      throw unsupported_model("unsupported: the exchange takes more than 31 years with these costs and this link");
    if (status != DR_OK) fail(contexts[0].get(), "the model's exchange");
    exchange_time t;
    for (uint32_t i = 0; i < present; ++i)
      t.total_ns = std::max(t.total_ns, static_cast<double>(dr_loopback_now(net.get(), i)));
    for (dr_exchange* const x : list) {
      auto info = sized<dr_exchange_info>();
      (void)dr_exchange_describe(x, &info, nullptr);
      t.bytes = std::max(t.bytes, static_cast<double>(info.sent));
    }
    t.encode_ns = model.encode_ns, t.merge_ns = model.merge_ns;
    if (traced) t.timeline = intervals_of(list[0]);
    return t;
  };
  if (!hosts)
    if (auto t = run(true)) return *t;
  if (ranks > max_unlike_ranks)
    throw unsupported_model(
        hosts
            ? fmt::format("unsupported: {} among {} ranks; schedules in which ranks differ are modelled for at most {}",
                          stage, ranks, max_unlike_ranks)
            : fmt::format("unsupported: {} of {:.0f} elements among {} ranks leaves ranks without elements",
                          stage.empty() ? "exchange=gather" : stage, elements, ranks));
  model.encode_ns = model.merge_ns = 0;
  return *run(false);
}

}  // namespace dr::predict
