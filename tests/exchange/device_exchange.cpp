// An exchange whose tensors are on a device, which the CPU plays: the same bits, verdicts and words as on the CPU, and no
// call waits.
#include <cmath>

#include "world.hpp"

using world::floats;
using world::group;

namespace {

constexpr uint32_t all_ranks = UINT32_MAX;

// After a test the emulator is as before.
struct settings {
  const dr::emulator_control before = dr::emulator();
  ~settings() { dr::emulator() = before; }
};

world::options made(const std::string& plan, uint32_t ranks, std::vector<size_t> sizes) {
  world::options o;
  o.ranks = ranks;
  o.plan = plan;
  o.sizes = std::move(sizes);
  o.loopback.latency_ns = 1000;
  o.loopback.bytes_per_second = 1e9;
  return o;
}

floats residual_of(const world::rank& r, uint32_t which, size_t tensor, size_t n) {
  floats out(n);
  REQUIRE(r.exchange->read_residual(which, tensor, out.data(), n) == DR_OK);
  return out;
}

bool same_bits(const floats& a, const floats& b) {
  return a.size() == b.size() && (a.empty() || !std::memcmp(a.data(), b.data(), 4 * a.size()));
}

// Outputs, residuals and what was sent.
void check_equal(group& cpu, group& device) {
  for (uint32_t i = 0; i < cpu.size(); ++i) {
    CAPTURE(i);
    for (size_t t = 0; t < cpu.how.sizes.size(); ++t) {
      CAPTURE(t);
      REQUIRE(same_bits(cpu.ranks[i]->out[t], device.ranks[i]->out[t]));
      for (const uint32_t which : {DR_RESIDUAL_OWN, DR_RESIDUAL_SUM, DR_RESIDUAL_MOMENTUM})
        REQUIRE(same_bits(residual_of(*cpu.ranks[i], which, t, cpu.how.sizes[t]),
                          residual_of(*device.ranks[i], which, t, cpu.how.sizes[t])));
    }
    const dr_exchange_info &a = cpu.ranks[i]->exchange->info(), &b = device.ranks[i]->exchange->info();
    REQUIRE(a.sent == b.sent);
    REQUIRE(a.received == b.received);
    REQUIRE(a.messages == b.messages);
    REQUIRE(a.kept == b.kept);
  }
}

void check_parity(world::options o, uint32_t on_device, uint64_t steps = 3) {
  CAPTURE(o.plan);
  CAPTURE(o.ranks);
  CAPTURE(o.dtype);
  group cpu(o);
  o.on_device = on_device;
  group device(o);
  for (uint64_t step = 0; step < steps; ++step) {
    CAPTURE(step);
    cpu.draw(step), device.draw(step);
    cpu.run_well(step), device.run_well(step);
    check_equal(cpu, device);
  }
}

const std::string topr = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw";

std::string refusal(const world::options& o, uint32_t index_dtype_of_output = 0) {
  dr_error error = dr::no_error();
  dr::loopback net;
  dr_loopback_options l{};
  l.ranks = o.ranks;
  REQUIRE(net.create(l, error) == DR_OK);
  world::rank r;
  REQUIRE(r.context.start(dr_context_options{}, error) == DR_OK);
  for (const size_t n : o.sizes) r.in.emplace_back(n), r.out.emplace_back(n);
  dr::exchange x(r.context);
  auto outs = group::outs(o, r);
  std::vector<uint32_t> keys(o.sizes.back());
  if (index_dtype_of_output) {
    outs.back().index_dtype = index_dtype_of_output;
    outs.back().indices = keys.data();
    outs.back().capacity = o.sizes.back();
  }
  const dr_status s = x.create({world::plan_of(o.plan), net.transport(0), o.exchange, world::place_of(o, 0)},
                               group::views(o, r), std::move(outs));
  CHECK(s == DR_E_UNSUPPORTED);
  return r.error();
}

}  // namespace

TEST_CASE("on a device: outputs and residuals have the CPU's bits, for any number of ranks and type") {
  const std::string plans[] = {
      topr,
      "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=qsgd(levels=7)",
      "sparsify=random(ratio=0.1) feedback=residual index=raw value=uniform_quant(bits=4)",
      "sparsify=topr(ratio=0.02) feedback=residual bucket=flat index=rice value=log_quant",
      "sparsify=threshold(value=1000) index=bloom(policy=p0,fpr=0.01) value=half",
      "sparsify=blocks(ratio=0.1,block=8) feedback=residual index=golomb value=qsgd(levels=127)",
      "index=all value=uniform_quant(bits=8) feedback=residual",
  };
  for (const std::string& plan : plans)
    for (const uint32_t ranks : {1u, 2u, 3u, 8u})
      for (const uint32_t dtype : {DR_F32, DR_F16, DR_BF16}) {
        if (dtype != DR_F32 && plan.ends_with("half")) continue;
        for (const char* schedule : {"gather", "gather(parts=3)", "owner", "owner(parts=2)", "ring", "ring(parts=2)"}) {
          if (ranks != 3 && std::string_view(schedule).ends_with(")")) continue;
          world::options o = made(plan + " exchange=" + schedule, ranks, {5000, 0, 1, 4099});
          o.dtype = dtype;
          o.device_order = static_cast<int32_t>(ranks);
          check_parity(o, all_ranks);
        }
      }
}

TEST_CASE("on a device: sums are sums, and values that are all sent leave no residual") {
  for (const char* schedule : {"gather", "gather(parts=4)", "owner(parts=2)", "ring"}) {
    world::options o = made("sparsify=none feedback=residual index=golomb value=raw exchange=" + std::string(schedule),
                            3, {100, 20000, 999, 1000});
    o.exchange.flags = DR_EXCHANGE_SUM;
    check_parity(o, all_ranks);
  }
}

TEST_CASE("on a device: small tensors go exactly beside the others, or all do") {
  for (const char* plan : {topr.c_str(), "sparsify=topr(ratio=0.1) index=rice value=qsgd(levels=7)",
                           "index=all value=uniform_quant(bits=4) feedback=residual",
                           "sparsify=topr(ratio=0.1) feedback=residual index=all value=sign(scale=mean)",
                           "index=all value=raw bucket=flat"})
    for (const char* schedule : {"gather", "gather(parts=3)", "owner", "owner(parts=2)", "ring", "ring(parts=2)"})
      for (const uint32_t dtype : {DR_F32, DR_F16}) {
        world::options o = made(std::string(plan) + " exchange=" + schedule, 3, {100, 9000, 999, 1000, 0, 1});
        o.dtype = dtype;
        const bool flat = o.plan.find("flat") != std::string::npos;
        for (const uint64_t below : {1000u, 100000u}) {
          if (flat && below > 1000) continue;
          o.exchange.dense_below = flat ? 0 : below;
          CAPTURE(o.exchange.dense_below);
          check_parity(o, all_ranks);
          if (dtype == DR_F32) check_parity(o, 0b010);  // beside ranks on CPUs
        }
      }
}

TEST_CASE("on a device: of small tensors that go exactly nothing is lost in an exchange that failed") {
  for (const char* schedule : {"gather", "owner(parts=2)", "ring"}) {
    CAPTURE(schedule);
    world::options o = made(topr + " exchange=" + schedule, 3, {4100, 60, 800});
    o.exchange.dense_below = 1000;
    o.present = 2;
    o.exchange.timeout_ns = 1'000'000;
    group cpu(o);
    o.on_device = all_ranks;
    group device(o);
    for (group* const g : {&cpu, &device}) {
      g->draw(0);
      for (const dr_status s : g->run(0)) CHECK(s == DR_E_TIMEOUT);
      for (const auto& r : g->ranks)
        for (const floats& out : r->out) CHECK(out == floats(out.size(), -1.0f));
    }
    check_equal(cpu, device);
    for (uint32_t i = 0; i < 2; ++i)
      for (const size_t small : {1, 2})
        CHECK(residual_of(*device.ranks[i], DR_RESIDUAL_OWN, small, o.sizes[small]) == device.ranks[i]->in[small]);
  }
}

TEST_CASE("ranks on devices and ranks on CPUs go together") {
  for (const char* schedule : {"gather(parts=2)", "owner(parts=2)", "ring", "hierarchy(inner=1,parts=2)"})
    for (const uint32_t on_device : {0b0010u, 0b1101u})
      check_parity(made(topr + " exchange=" + schedule, 4, {6000, 300}), on_device);
}

namespace {

// Every other turn of a rank finds its device at work; or all of them do, and time passes.
struct lagging : dr::message_faults {
  group* of = nullptr;
  bool stuck = false;
  uint32_t which = UINT32_MAX;  // the only rank whose device lags
  size_t turns = 0;
  std::vector<size_t> turns_of;

  explicit lagging(group& g) : of(&g), turns_of(g.size()) { g.net.faults = this; }
  ~lagging() override {
    of->net.faults = nullptr;
    dr::emulator().lags = false;
  }
  dr::message_fate fate_of(uint32_t, uint32_t, uint32_t, size_t) override { return {}; }
  bool lives(uint32_t rank, uint64_t) override {
    REQUIRE(++turns < 100000);
    const bool even = turns_of[rank]++ % 2 == 0;
    dr::emulator().lags = (which == UINT32_MAX || which == rank) && (stuck || even);
    if (dr::emulator().lags && stuck && even) of->net.pass(rank, 10000);
    return true;
  }
};

}  // namespace

TEST_CASE("on a device: no call waits, and while the device is at work an advance returns at once") {
  const settings restored;
  for (const char* schedule : {"gather", "gather(parts=3)", "owner", "owner(parts=2)", "ring", "ring(parts=2)"}) {
    CAPTURE(schedule);
    world::options o = made(topr + " exchange=" + schedule, 3, {9000, 40});
    group cpu(o);
    o.on_device = all_ranks;
    group device(o);
    const lagging late(device);
    size_t blocking = 0, copies = 0;
    for (uint64_t step = 0; step < 3; ++step) {
      cpu.draw(step), device.draw(step);
      cpu.run_well(step);
      dr::emulator().stream_seen = [&](const char* what, void*, void*) {
        blocking += std::string(what).starts_with("wait");
        copies += std::string(what) == "copy";
      };
      dr::emulator().lags = true;
      for (const auto& r : device.ranks) {
        dr_call call{};
        call.step = step;
        dr::exchange& x = *r->exchange;
        REQUIRE(x.start(call) == DR_OK);
        x.begin();
        for (int i = 0; i < 3; ++i) {
          CHECK(x.advance() == DR_PENDING);
          CHECK(!x.waits());
          CHECK(x.info().messages == 0);  // not even the first frame is there
        }
      }
      std::vector<dr::exchange*> list;
      for (const auto& r : device.ranks) list.push_back(r->exchange.get());
      std::vector<dr_status> statuses(device.size());
      device.net.run(list, statuses);
      dr::emulator().stream_seen = nullptr;
      for (const dr_status s : statuses) REQUIRE(s == DR_OK);
      check_equal(cpu, device);
    }
    CHECK(blocking == 0);
    CHECK(copies > 0);
    CHECK(late.turns > 3 * 3 * 6);
  }
}

TEST_CASE("on a device: a rank whose device does not finish is named by all, and its exchange is the last") {
  const settings restored;
  world::options o = made(topr, 3, {9000});
  o.exchange.timeout_ns = 10'000'000;
  o.on_device = all_ranks;
  group g(o);
  g.draw(0);
  g.run_well(0);
  for (const auto& r : g.ranks) std::fill(r->out[0].begin(), r->out[0].end(), -7.0f);
  g.draw(1);
  {
    lagging late(g);
    late.stuck = true;
    late.which = 1;
    const auto statuses = g.run(1);
    for (uint32_t i = 0; i < 3; ++i) {
      INFO(g.ranks[i]->error());
      CHECK(statuses[i] == (i == 1 ? DR_E_TIMEOUT : DR_E_PEER));
      CHECK(g.ranks[i]->context.error.frame == 1);
      CHECK(g.ranks[i]->error().find("what was enqueued is not done in time") != std::string::npos);
      CHECK(g.ranks[i]->out[0] == floats(9000, -7.0f));
    }
  }
  CHECK(g.ranks[1]->exchange->start(dr_call{}) == DR_E_ARGUMENT);
  CHECK(g.ranks[1]->error() ==
        "exchange: the device failed, or did not finish, in an earlier exchange; create a new exchange");
}

TEST_CASE("on a device: of an exchange that failed the outputs are untouched, and residuals have all of the gradient") {
  for (const char* schedule : {"gather", "gather(parts=3)", "owner", "owner(parts=2)", "ring", "ring(parts=2)"}) {
    CAPTURE(schedule);
    world::options o = made("sparsify=topr(ratio=0.1) feedback=residual index=golomb value=qsgd(levels=127) exchange=" +
                                std::string(schedule),
                            3, {4100, 60});
    o.present = 2;
    o.exchange.timeout_ns = 1'000'000;
    group cpu(o);
    o.on_device = all_ranks;
    group device(o);
    for (group* const g : {&cpu, &device}) {
      g->draw(0);
      for (const dr_status s : g->run(0)) CHECK(s == DR_E_TIMEOUT);
      for (const auto& r : g->ranks) {
        CHECK(r->context.error.frame == 2);
        for (const floats& out : r->out) CHECK(out == floats(out.size(), -1.0f));
      }
    }
    check_equal(cpu, device);
    for (uint32_t i = 0; i < 2; ++i) {
      CHECK(cpu.ranks[i]->error() == device.ranks[i]->error());
      const floats kept = residual_of(*device.ranks[i], DR_RESIDUAL_OWN, 0, 4100);
      for (size_t k = 0; k < kept.size(); ++k)
        REQUIRE(std::abs(kept[k] - device.ranks[i]->in[0][k]) <= 1e-3f * std::abs(kept[k]));
    }
  }
}

TEST_CASE("on a device: a rank that cannot encode is named by all, in the words of the CPU") {
  for (const char* schedule : {"gather", "gather(parts=2)", "owner", "ring"}) {
    CAPTURE(schedule);
    world::options o = made("sparsify=topr(ratio=0.1) feedback=residual index=golomb value=qsgd(levels=127) exchange=" +
                                std::string(schedule),
                            4, {3000, 5000});
    group cpu(o);
    o.on_device = all_ranks;
    group device(o);
    for (group* const g : {&cpu, &device}) {
      g->draw(0);
      g->run_well(0);
      g->draw(1);
      g->ranks[2]->in[1][4999] = NAN;
      const auto statuses = g->run(1);
      for (uint32_t i = 0; i < 4; ++i) {
        INFO(g->ranks[i]->error());
        CHECK(statuses[i] == (i == 2 ? DR_E_ARGUMENT : DR_E_PEER));
        CHECK(g->ranks[i]->error() == cpu.ranks[i]->error());
        CHECK(g->ranks[i]->context.error.frame == 2);
        CHECK(g->ranks[i]->context.error.tensor == 1);
        CHECK(g->ranks[i]->context.error.where == 4999);
      }
    }
    // The gradient of the rank at fault is in its residual: its later steps need not repeat it.
    const floats kept = residual_of(*device.ranks[2], DR_RESIDUAL_OWN, 1, 5000);
    CHECK(std::all_of(kept.begin(), kept.end(), [](float x) { return std::isfinite(x); }));
    const bool of_sum = std::string(schedule) == "ring";  // as on the CPU
    CHECK((of_sum || kept[4999] == 0));
    CHECK((kept == residual_of(*cpu.ranks[2], DR_RESIDUAL_OWN, 1, 5000)) == of_sum);
    for (uint32_t i = 0; i < 4; ++i)
      if (i != 2)
        for (size_t t = 0; t < 2; ++t)
          REQUIRE(same_bits(residual_of(*cpu.ranks[i], DR_RESIDUAL_OWN, t, o.sizes[t]),
                            residual_of(*device.ranks[i], DR_RESIDUAL_OWN, t, o.sizes[t])));
    device.draw(2);
    device.run_well(2);
    CHECK(device.all_alike());
  }
}

TEST_CASE("on a device: a sum that cannot be encoded leaves its residual as it was, and the parts go back") {
  for (const uint32_t dtype : {DR_F16, DR_F32}) {
    CAPTURE(dtype);
    world::options o = made(
        "sparsify=topr(ratio=0.5) feedback=residual index=golomb value=qsgd(levels=127) exchange=owner", 3, {3000});
    o.exchange.flags = DR_EXCHANGE_SUM;
    o.dtype = dtype;
    group cpu(o);
    o.on_device = all_ranks;
    group device(o);
    for (group* const g : {&cpu, &device}) {
      g->draw(0);
      g->run_well(0);
      g->draw(1);
      for (const auto& r : g->ranks) {  // finite, and their sum is not
        const uint16_t large = 0x7b00;
        const float larger = 3e38f;
        if (dtype == DR_F16)
          std::memcpy(reinterpret_cast<char*>(r->in[0].data()) + 2 * 1500, &large, sizeof large);
        else
          r->in[0][1500] = larger;
        std::fill(r->out[0].begin(), r->out[0].end(), -7.0f);
      }
      const auto statuses = g->run(1);
      for (uint32_t i = 0; i < 3; ++i) {
        INFO(g->ranks[i]->error());
        CHECK(statuses[i] == (i == 1 ? DR_E_ARGUMENT : DR_E_PEER));
        CHECK(g->ranks[i]->context.error.frame == 1);
        CHECK(g->ranks[i]->error() == cpu.ranks[i]->error());
      }
    }
    check_equal(cpu, device);
    // (The gradients are in the residuals, so the sum is infinite again.)
    cpu.draw(2), device.draw(2);
    CHECK(cpu.run(2) == device.run(2));
    check_equal(cpu, device);
  }
}

TEST_CASE("on a device: values that are not finite stay out of residuals, after a failure, too") {
  world::options o = made(topr, 2, {2000});
  o.present = 1;
  o.exchange.timeout_ns = 1'000'000;
  group cpu(o);
  o.on_device = all_ranks;
  group device(o);
  for (group* const g : {&cpu, &device}) {
    g->draw(0);
    g->ranks[0]->in[0][7] = INFINITY;
    CHECK(g->run(0)[0] == DR_E_TIMEOUT);
  }
  check_equal(cpu, device);
  CHECK(residual_of(*device.ranks[0], DR_RESIDUAL_OWN, 0, 2000)[7] == 0);
}

TEST_CASE("on a device: a launch that fails is this rank's error, and the next exchange goes on") {
  const settings restored;
  world::options o = made(topr, 2, {150000});
  o.on_device = 0b10;
  group g(o);
  g.draw(0);
  dr::emulator().refused_kernel = "select_compact";
  const auto statuses = g.run(0);
  dr::emulator().refused_kernel = nullptr;
  CHECK(statuses[0] == DR_E_PEER);
  CHECK(statuses[1] == DR_E_DEVICE);
  for (const auto& r : g.ranks) {
    CHECK(r->context.error.frame == 1);
    CHECK(r->error().find("refused, on the emulated device") != std::string::npos);
    CHECK(r->out[0] == floats(150000, -1.0f));
  }
  g.draw(1);
  g.run_well(1);
  CHECK(g.all_alike());
}

TEST_CASE("on a device: outputs may be the tensors, and an exchange goes on with other memory") {
  world::options o = made(topr + " exchange=gather(parts=2)", 2, {6000, 50});
  group cpu(o);
  o.on_device = all_ranks;
  group device(o);
  const auto in_place = [](group& g) {
    for (const auto& r : g.ranks) {
      auto outs = group::outs(g.how, *r);
      for (size_t t = 0; t < outs.size(); ++t) outs[t].values = r->in[t].data();
      REQUIRE(r->exchange->rebind(group::views(g.how, *r), outs) == DR_OK);
    }
  };
  for (group* const g : {&cpu, &device}) {
    g->draw(0);
    g->run_well(0);
    in_place(*g);
    g->draw(1);
    g->run_well(1);
  }
  for (uint32_t i = 0; i < 2; ++i)
    for (size_t t = 0; t < 2; ++t) REQUIRE(same_bits(cpu.ranks[i]->in[t], device.ranks[i]->in[t]));
  check_equal(cpu, device);
  // One that cannot be bound leaves it bound as before.
  auto outs = group::outs(o, *device.ranks[0]);
  outs[1].values = nullptr;
  CHECK(device.ranks[0]->exchange->rebind(group::views(o, *device.ranks[0]), outs) == DR_E_ARGUMENT);
  CHECK(device.ranks[0]->context.error.tensor == 1);
  for (group* const g : {&cpu, &device}) g->draw(2), g->run_well(2);
  for (uint32_t i = 0; i < 2; ++i) REQUIRE(same_bits(cpu.ranks[i]->in[0], device.ranks[i]->in[0]));
}

TEST_CASE("on a device: a run that was saved and loaded continues bit for bit, on the CPU, too") {
  world::options o =
      made("sparsify=random(ratio=0.1) feedback=residual index=golomb value=qsgd(levels=7) exchange=gather(parts=2)", 3,
           {5000, 40});
  o.on_device = all_ranks;
  group one(o), two(o);
  o.on_device = 0;
  group cpu(o);
  for (uint64_t step = 0; step < 3; ++step) one.draw(step), one.run_well(step);
  for (uint32_t i = 0; i < 3; ++i)
    for (size_t t = 0; t < 2; ++t) {
      const floats kept = residual_of(*one.ranks[i], DR_RESIDUAL_OWN, t, o.sizes[t]);
      for (group* const g : {&two, &cpu})
        REQUIRE(g->ranks[i]->exchange->write_residual(DR_RESIDUAL_OWN, t, kept.data(), kept.size()) == DR_OK);
    }
  for (uint64_t step = 3; step < 5; ++step)
    for (group* const g : {&one, &two, &cpu}) {
      g->draw(step);
      g->run_well(step);
      for (size_t t = 0; t < 2; ++t) REQUIRE(same_bits(g->ranks[0]->out[t], one.ranks[0]->out[t]));
    }
}

TEST_CASE("on a device: an exchange that is cancelled fails on all ranks") {
  const settings restored;
  world::options o = made(topr, 3, {4000});
  o.on_device = all_ranks;
  group g(o);
  g.draw(0);
  std::vector<dr::exchange*> list;
  dr::emulator().lags = true;
  for (const auto& r : g.ranks) {
    REQUIRE(r->exchange->start(dr_call{}) == DR_OK);
    r->exchange->begin();
    list.push_back(r->exchange.get());
  }
  REQUIRE(g.ranks[2]->exchange->cancel() == DR_OK);
  dr::emulator().lags = false;
  std::vector<dr_status> statuses(3);
  g.net.run(list, statuses);
  for (uint32_t i = 0; i < 3; ++i) {
    CHECK(statuses[i] == DR_E_PEER);
    CHECK(g.ranks[i]->context.error.frame == 2);
    // Nothing of the gradient is lost.
    CHECK(residual_of(*g.ranks[i], DR_RESIDUAL_OWN, 0, 4000) == g.ranks[i]->in[0]);
  }
  g.draw(1);
  g.run_well(1);
  CHECK(g.all_alike());
}

TEST_CASE("on a device: what has no path there is refused by its name") {
  const auto said = [](const std::string& plan, uint32_t index_dtype = 0, uint32_t flags = 0) {
    world::options o = made(plan, 2, {5000, 70});
    o.on_device = all_ranks;
    o.exchange.flags = flags;
    if (flags & DR_EXCHANGE_DRY) o.exchange.frame_size = [](void*, uint64_t n, uint32_t) { return n; };
    return refusal(o, index_dtype);
  };
  CHECK(said("transform=lowrank(rank=2) feedback=residual")
            .starts_with("plan: an exchange of factors (`transform=lowrank("));
  CHECK(said("sparsify=topr(ratio=0.1) index=gap_huffman value=raw") == "tensor 0: gap_huffman runs on the CPU only");
  CHECK(said("sparsify=blocks(ratio=0.1) index=golomb value=raw exchange=gather(parts=2)") ==
        "tensor 0: blocks(block=auto) runs on the CPU only, block=1 to 32 on CUDA, too");
  CHECK(said("transform=dct sparsify=topr(ratio=0.1) index=golomb value=raw").find("transform=dct") !=
        std::string::npos);
  CHECK(said("index=all value=sign merge=vote").find("merge=vote") != std::string::npos);
  CHECK(said("sparsify=topr(ratio=0.1) index=golomb value=raw", DR_U32) ==
        "tensor 1: its output is sparse, which has no path on a device");
  CHECK(said(topr, 0, DR_EXCHANGE_DRY) == "options: DR_EXCHANGE_DRY computes nothing, on no device");
}
