// Exchanges with every allocation failing, one after the other. What ranks hold is integers, so that nothing that gets lost is hidden by rounding.
#include "failing_new.hpp"

#include <deepreduce/exchange.h>
#include <deepreduce/transform.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "client.hpp"

namespace {

constexpr const char* schedules[] = {"gather",           "gather(parts=2)",    "owner",
                                     "ring(parts=2)",    "hierarchy(inner=2)", "gather(parts=2) on devices",
                                     "owner on devices", "ring on devices"};

class group {
 public:
  static constexpr uint32_t ranks = 3;
  static constexpr uint64_t elements = 40, timeout_ns = 1'000'000;
  static constexpr float untouched = -7;

  struct member {
    dr_context* context = nullptr;
    dr_exchange* exchange = nullptr;
    client::floats in, out = client::floats(elements);
    dr_tensor tensor{};
    dr_tensor_out told{};
    dr_transport transport{};
  };

  group(const char* schedule, const dr_context_options& options)
      : plan_(plan_of(schedule)), on_device_(std::string_view(schedule).ends_with("devices")) {
    net.struct_size = sizeof net;
    net.ranks = ranks;
    net.latency_ns = 1000;
    net.cost = [](void* user, uint32_t, uint32_t, uint64_t, uint64_t) { return *static_cast<const uint64_t*>(user); };
    net.cost_user = &pause_;
    error.struct_size = sizeof error;
    REQUIRE(dr_loopback_create(&net, &loopback, nullptr) == DR_OK);
    for (uint32_t i = 0; i < ranks; ++i) {
      member& m = all[i];
      REQUIRE(dr_context_create(&options, &m.context, nullptr) == DR_OK);
      m.transport.struct_size = sizeof m.transport;
      REQUIRE(dr_loopback_transport(loopback, i, &m.transport) == DR_OK);
      m.in.resize(elements);
    }
    draw(1);
  }
  ~group() {
    for (member& m : all) {
      dr_exchange_destroy(m.exchange);
      dr_context_destroy(m.context);
    }
    dr_loopback_destroy(loopback);
    dr_loopback_destroy(other);
  }
  group(const group&) = delete;
  group& operator=(const group&) = delete;

  dr_status create(uint32_t i) {
    member& m = all[i];
    dr_exchange_destroy(std::exchange(m.exchange, nullptr));
    dr_exchange_options o{};
    o.struct_size = sizeof o;
    o.flags = DR_EXCHANGE_SUM | DR_EXCHANGE_TRACE;
    o.timeout_ns = timeout_ns;
    const dr_place place{sizeof place, DR_PLACE_EMULATED, 1, nullptr, 0, 0};
    if (on_device_) o.place = &place;
    m.tensor = client::dense(m.in);
    m.told = client::dense_out(m.out);
    return dr_exchange_create(m.context, plan_.handle, &m.transport, &o, &m.tensor, sizeof m.tensor, &m.told,
                              sizeof m.told, 1, &m.exchange);
  }
  void create_all() {
    for (uint32_t i = 0; i < ranks; ++i) REQUIRE(create(i) == DR_OK);
  }
  dr_status rebind(uint32_t i) {
    member& m = all[i];
    return dr_exchange_rebind(m.exchange, &m.tensor, sizeof m.tensor, &m.told, sizeof m.told, 1);
  }

  // New gradients; outputs of a pattern.
  void draw(uint64_t step) {
    for (uint32_t i = 0; i < ranks; ++i)
      for (uint64_t e = 0; e < elements; ++e) {
        all[i].in[e] = static_cast<float>((step * 31 + i * 17 + e * e * 7) % 61) - 30;
        all[i].out[e] = untouched;
        given[e] += static_cast<double>(all[i].in[e]);
      }
  }
  // One exchange on all ranks; rank 1 is first. A call that returned MEMORY before any effect is repeated by the next
  // of these.
  dr_status begin() {
    for (uint32_t i = 0; i < ranks; ++i) {
      if (started[i]) continue;
      if (const dr_status s = dr_exchange_start(all[i].exchange, nullptr)) return s;
      started[i] = true;
      statuses[i] = DR_PENDING;
    }
    return DR_OK;
  }
  dr_status drive() {
    if (const dr_status s = begin()) return s;
    if (statuses[1] == DR_PENDING) statuses[1] = dr_exchange_advance(all[1].exchange);
    dr_exchange* list[ranks];
    dr_status told[ranks] = {};  // (It may fail before it writes them.)
    for (uint32_t i = 0; i < ranks; ++i) list[i] = all[i].exchange;
    if (const dr_status s = dr_loopback_run(loopback, list, told);
        s == DR_E_MEMORY && std::count(told, told + ranks, s) == 0)
      return s;
    for (uint32_t i = 0; i < ranks; ++i)
      if (statuses[i] == DR_PENDING) statuses[i] = told[i];
    for (bool& s : started) s = false;
    return DR_OK;
  }
  // Checks the end of an exchange: no rank has half of a result, and all results are equal.
  void judge() const {
    const member* first = nullptr;
    for (uint32_t i = 0; i < ranks; ++i) {
      const member& m = all[i];
      INFO("rank " << i << ": " << dr_last_error(m.context)->message);
      if (statuses[i] == DR_OK) {
        if (!first) first = &m;
        REQUIRE(client::same_bits(m.out, first->out));
      } else {
        REQUIRE((statuses[i] == DR_E_MEMORY || statuses[i] == DR_E_PEER || statuses[i] == DR_E_TIMEOUT));
        REQUIRE(m.out == client::floats(elements, untouched));
      }
    }
  }
  // All clocks go to the last one's time, as after a barrier: who waited in vain is ahead of the others.
  void meet() {
    uint64_t last = 0;
    for (uint32_t i = 0; i < ranks; ++i) last = std::max(last, dr_loopback_now(loopback, i));
    for (uint32_t i = 0; i < ranks; ++i) {
      pause_ = last - dr_loopback_now(loopback, i);
      all[i].transport.spend(all[i].transport.user, DR_STEP_WAIT, 0, 0);
    }
    pause_ = 0;
  }
  std::string sentences() const {
    std::string text;
    for (const member& m : all) text += std::string(dr_last_error(m.context)->message) + "; ";
    return text;
  }
  bool all_ended(dr_status how) const {
    return std::all_of(std::begin(statuses), std::end(statuses),
                       [&](dr_status s) { return (s == DR_OK) == (how == DR_OK); });
  }
  void take_result() {
    for (uint64_t e = 0; e < elements; ++e) given[e] -= static_cast<double>(all[0].out[e]);
  }
  // What was given and has not come out is in the residuals.
  void check_balance() {
    double kept[elements] = {};
    client::floats residual(elements);
    for (member& m : all)
      for (const uint32_t which : {DR_RESIDUAL_OWN, DR_RESIDUAL_SUM}) {
        REQUIRE(dr_exchange_read_residual(m.exchange, which, 0, residual.data(), elements) == DR_OK);
        for (uint64_t e = 0; e < elements; ++e) kept[e] += static_cast<double>(residual[e]);
      }
    for (uint64_t e = 0; e < elements; ++e) REQUIRE(kept[e] == given[e]);
  }

  dr_loopback_options net{};
  dr_loopback *loopback = nullptr, *other = nullptr;
  dr_error error{};
  member all[ranks];
  dr_status statuses[ranks] = {};
  bool started[ranks] = {};
  double given[elements] = {};  // Σ of inputs over ranks and steps, minus the outputs

 private:
  static const client::plan& plan_of(const char* schedule) {
    static std::map<std::string, std::unique_ptr<client::plan>> plans;
    auto& p = plans[schedule];
    if (!p)
      p = std::make_unique<client::plan>(
          std::string("sparsify=topr(ratio=0.2) feedback=residual index=golomb value=raw exchange=") +
          std::string(schedule, std::strcspn(schedule, " ")));
    return *p;
  }

  const client::plan& plan_;
  const bool on_device_;
  uint64_t pause_ = 0;  // that a step of a rank costs
};

// The CPU that plays a device allocates at its first launches; a device does not.
void warm_up_emulator(const char* schedule, const dr_context_options& options) {
  group g(schedule, options);
  g.create_all();
  REQUIRE(g.drive() == DR_OK);
}

}  // namespace

TEST_CASE(
    "an exchange: making it, binding it anew, its residuals and its trace say MEMORY, and it works the next time") {
  struct call {
    const char* name;
    bool allocates;
    dr_status (*f)(group& g);
  };
  static constexpr uint64_t n = group::elements;
  static client::floats residual(n);
  const call calls[] = {
      {"dr_loopback_create", true,
       [](group& g) {
         dr_loopback_destroy(std::exchange(g.other, nullptr));
         return dr_loopback_create(&g.net, &g.other, &g.error);
       }},
      {"dr_loopback_destroy", false,
       [](group& g) -> dr_status { return dr_loopback_destroy(std::exchange(g.other, nullptr)), DR_OK; }},
      {"dr_loopback_transport", false,
       [](group& g) { return dr_loopback_transport(g.loopback, 1, &g.all[1].transport); }},
      {"dr_loopback_now", false, [](group& g) { return dr_status{dr_loopback_now(g.loopback, 0) != 0}; }},
      {"dr_step_name", false, [](group&) { return dr_status{dr_step_name(DR_STEP_SUM) == nullptr}; }},
      {"dr_exchange_create", true, [](group& g) { return g.create(0); }},
      {"dr_exchange_destroy", false,
       [](group& g) -> dr_status { return dr_exchange_destroy(std::exchange(g.all[0].exchange, nullptr)), DR_OK; }},
      {"dr_exchange_rebind", true, [](group& g) { return g.rebind(0); }},
      {"dr_exchange_describe", false,
       [](group& g) {
         dr_exchange_info info{};
         info.struct_size = sizeof info;
         return dr_exchange_describe(g.all[0].exchange, &info, &g.error);
       }},
      {"dr_exchange_read_residual", true,
       [](group& g) { return dr_exchange_read_residual(g.all[0].exchange, DR_RESIDUAL_OWN, 0, residual.data(), n); }},
      {"dr_exchange_write_residual", true,
       [](group& g) { return dr_exchange_write_residual(g.all[0].exchange, DR_RESIDUAL_OWN, 0, residual.data(), n); }},
      {"dr_exchange_trace", true,
       [](group& g) {
         static char json[1 << 16];
         size_t size = 0;
         return dr_exchange_trace(g.all[0].exchange, json, sizeof json, &size);
       }},
      {"dr_exchange_cancel", false,
       [](group& g) -> dr_status {
         return dr_exchange_cancel(g.all[0].exchange) == DR_E_ARGUMENT ? DR_OK : DR_E_INTERNAL;
       }},
  };
  const dr_context_options options = counted(1);
  for (const char* const schedule : schedules) warm_up_emulator(schedule, options);
  for (const char* const schedule : schedules)
    for (const call& c : calls) {
      INFO(std::string(schedule) << ": " << std::string(c.name));
      for (long k = 0; k < allocations_most; k = next_failure(k)) {
        CAPTURE(k);
        bool met = false;
        const long before = live;
        {
          group g(schedule, options);
          std::fill(residual.begin(), residual.end(), 0.0f);
          g.create_all();
          const dr_status s = run(
              k, [&] { return c.f(g); }, &met);
          INFO(dr_last_error(g.all[0].context)->message << g.error.message);
          REQUIRE(s == (met ? DR_E_MEMORY : DR_OK));
          if (met) REQUIRE(c.f(g) == DR_OK);
        }
        REQUIRE(live == before);
        if (!c.allocates) REQUIRE(!met);
        if (!met) break;
      }
    }
}

TEST_CASE("a controller: making it reports MEMORY and works the next time; nothing else allocates") {
  dr_error error{};
  error.struct_size = sizeof error;
  dr_control* control = nullptr;
  for (long k = 0; k < allocations_most; k = next_failure(k)) {
    CAPTURE(k);
    bool met = false;
    const long before = live;
    const dr_status s = run(
        k, [&] { return dr_control_create("fit(target_ms=1,interval=1)", nullptr, 3, &control, &error); }, &met);
    REQUIRE(s == (met ? DR_E_MEMORY : DR_OK));
    if (!met) break;
    REQUIRE(control == nullptr);
    REQUIRE(live == before);
  }
  bool met = false;
  uint64_t words[DR_CONTROL_WORDS];
  char line[1024];
  size_t size = 0;
  dr_control_info info{};
  info.struct_size = sizeof info;
  const dr_status s = run(
      0,
      [&]() -> dr_status {
        for (uint64_t step = 1; step < 20; ++step) {
          if (const dr_status a = dr_control_observe(control, 1000 >> info.rung, 5'000'000)) return a;
          if (const dr_status a = dr_control_observe(control, 0, 1000)) return a;
          if (const dr_status a = dr_control_report(control, words)) return a;
          if (const dr_status a = dr_control_decide(control, step, words, 1, &error)) return a;
          if (const dr_status a = dr_control_describe(control, &info, &error)) return a;
          if (const dr_status a = dr_control_log(control, line, sizeof line, &size)) return a;
        }
        dr_control_destroy(control);
        return dr_control_reason(info.reason) ? DR_OK : DR_E_INTERNAL;
      },
      &met);
  CHECK(s == DR_OK);
  CHECK(!met);
  CHECK(info.rung == 2);
}

TEST_CASE("an exchange under way: wherever an allocation fails it ends, loses nothing, and the next one works") {
  const dr_context_options options = counted(1);
  for (const char* const schedule : schedules) {
    INFO(std::string(schedule));
    warm_up_emulator(schedule, options);
    size_t failed = 0, next_ones = 0;
    for (long k = 0; k < allocations_most; k = next_failure(k)) {
      CAPTURE(k);
      bool met = false;
      const long before = live;
      {
        group g(schedule, options);
        g.create_all();
        dr_status s = run(
            k, [&] { return g.drive(); }, &met);
        if (s) {
          REQUIRE(s == DR_E_MEMORY);
          s = g.drive();
        }
        REQUIRE(s == DR_OK);
        g.judge();
        const std::string said = g.sentences();
        INFO("first: " << said);
        const bool fails = !g.all_ended(DR_OK);
        failed += fails;
        if (!fails) g.take_result();
        if (g.all_ended(DR_OK) || g.all_ended(DR_E_MEMORY)) {
          g.check_balance();
          g.meet();
          g.draw(2);
          REQUIRE(g.drive() == DR_OK);
          g.judge();
          INFO("next: " << g.sentences());
          REQUIRE(g.all_ended(DR_OK));
          g.take_result();
          g.check_balance();
          next_ones += fails;
        }
      }
      REQUIRE(live == before);
      if (!met) break;
    }
    CHECK(failed > 0);
    CHECK(next_ones > failed / 2);
  }
}
