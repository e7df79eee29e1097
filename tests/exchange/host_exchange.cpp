// exchange=hierarchy on devices, which the CPU plays, with an NCCL that is played, too (emulated_nccl.cpp): sums inside hosts,
// frames between them, and one outcome for all ranks.
#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <numeric>

#include "exchange/nccl.hpp"
#include "world.hpp"

using world::floats;
using world::group;

namespace {

constexpr uint32_t all_ranks = UINT32_MAX;

struct settings {
  const dr::emulator_control before = dr::emulator();
  ~settings() { dr::emulator() = before; }
};

template <class F>
F* function(const char* name) {
  void* const library = dlopen(DR_EMULATED_NCCL, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library);
  void* const found = dlsym(library, name);
  REQUIRE(found);
  return reinterpret_cast<F*>(found);
}

// Communicators of hosts of `inner` ranks.
struct hosts {
  std::vector<void*> ranks;

  hosts(uint32_t inner, uint32_t all) {
    REQUIRE(setenv("DEEPREDUCE_NCCL", DR_EMULATED_NCCL, 1) == 0);
    for (uint32_t h = 0; h < all / inner; ++h) {
      std::vector<void*> of(inner);
      REQUIRE(function<int(void**, int, const int*)>("ncclCommInitAll")(of.data(), static_cast<int>(inner), nullptr) ==
              0);
      ranks.insert(ranks.end(), of.begin(), of.end());
    }
  }
  ~hosts() {
    for (void* const c : ranks) function<int(void*)>("ncclCommAbort")(c);
  }
  void fail(uint32_t rank, long call, bool later) const {
    function<void(void*, long, int)>("emulated_nccl_fail")(ranks[rank], call, later);
  }
  long calls(uint32_t rank) const { return function<long(void*)>("emulated_nccl_calls")(ranks[rank]); }
};

const std::string topr = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw";

world::options made(const std::string& plan, uint32_t inner, uint32_t parts, const hosts& h,
                    std::vector<size_t> sizes) {
  world::options o;
  o.ranks = static_cast<uint32_t>(h.ranks.size());
  o.plan = plan + " exchange=hierarchy(inner=" + std::to_string(inner) + ",parts=" + std::to_string(parts) + ")";
  o.sizes = std::move(sizes);
  o.loopback.latency_ns = 1000;
  o.loopback.bytes_per_second = 1e9;
  o.on_device = all_ranks;
  o.device_order = static_cast<int32_t>(inner);
  o.nccl = h.ranks;
  o.exchange.timeout_ns = 100'000'000;
  return o;
}

floats residual_of(const world::rank& r, size_t tensor, size_t n) {
  floats out(n);
  REQUIRE(r.exchange->read_residual(DR_RESIDUAL_OWN, tensor, out.data(), n) == DR_OK);
  return out;
}

// What the ranks of each host would encode: an exchange of the sums of hosts, range by range, on the CPU.
struct by_hosts {
  struct part {
    std::unique_ptr<group> g;
    dr::piece_list pieces;
    uint32_t column;
  };
  std::vector<part> parts;
  uint32_t inner;

  by_hosts(const world::options& o, const std::string& plan, uint32_t inner, uint32_t cuts) : inner(inner) {
    world::options each = o;
    each.plan = plan;
    each.ranks = o.ranks / inner;
    each.on_device = 0;
    each.nccl.clear();
    world::rank shapes;
    for (const size_t n : o.sizes) shapes.in.emplace_back(n);
    const auto views = group::views(o, shapes);
    const auto method = world::plan_of(plan);
    const std::vector<const dr::plan*> methods(views.size(), method.get());
    const auto lists = dr::cut(views, methods, inner * cuts);
    for (uint32_t j = 0; j < lists.size(); ++j) {
      each.sizes.clear();
      for (const dr::piece& p : lists[j]) each.sizes.push_back(p.rows);
      parts.push_back({std::make_unique<group>(each), lists[j], j / cuts});
    }
  }
  void run(group& like, uint64_t step) {
    for (part& p : parts) {
      for (uint32_t h = 0; h < p.g->size(); ++h)
        for (size_t i = 0; i < p.pieces.size(); ++i) {
          floats& sum = p.g->ranks[h]->in[i];
          std::fill(sum.begin(), sum.end(), 0.0f);
          for (uint32_t r = 0; r < inner; ++r)
            for (size_t k = 0; k < sum.size(); ++k)
              sum[k] += like.ranks[h * inner + r]->in[p.pieces[i].tensor][p.pieces[i].first + k];
        }
      p.g->run_well(step);
    }
  }
  void check(group& of) {
    for (const part& p : parts)
      for (size_t i = 0; i < p.pieces.size(); ++i) {
        const dr::piece& where = p.pieces[i];
        for (uint32_t r = 0; r < of.size(); ++r) {
          const floats& out = of.ranks[r]->out[where.tensor];
          const auto first = out.begin() + static_cast<ptrdiff_t>(where.first);
          REQUIRE(floats(first, first + static_cast<ptrdiff_t>(where.rows)) == p.g->ranks[0]->out[i]);
          const floats kept = residual_of(*of.ranks[r], where.tensor, out.size());
          const auto at = kept.begin() + static_cast<ptrdiff_t>(where.first);
          const floats expected =
              r % inner == p.column ? residual_of(*p.g->ranks[r / inner], i, where.rows) : floats(where.rows);
          REQUIRE(floats(at, at + static_cast<ptrdiff_t>(where.rows)) == expected);
        }
      }
  }
};

std::vector<dr_status> check_failed(group& g, uint64_t step, uint32_t culprit) {
  for (const auto& r : g.ranks)
    for (floats& out : r->out) std::fill(out.begin(), out.end(), -7.0f);
  const auto statuses = g.run(step);
  for (uint32_t i = 0; i < g.size(); ++i) {
    CAPTURE(i);
    INFO(g.ranks[i]->error());
    CHECK(statuses[i] != DR_OK);
    CHECK(g.ranks[i]->context.error.frame == culprit);
    for (const floats& out : g.ranks[i]->out) CHECK(out == floats(out.size(), -7.0f));
  }
  return statuses;
}

}  // namespace

// (First: a library that was found is never looked for again.)
TEST_CASE("NCCL that is not there is an error with the loader's words, and one that lacks a function is named") {
  const dr::nccl* found = nullptr;
  dr_error e = dr::no_error();
  REQUIRE(setenv("DEEPREDUCE_NCCL", "/none/libnccl.so.2", 1) == 0);
  CHECK(dr::load_nccl(found, e) == DR_E_UNSUPPORTED);
  CHECK(std::string(e.message).starts_with("nccl: cannot load /none/libnccl.so.2: /none/libnccl.so.2: "));
  CHECK(std::string(e.message).ends_with("(DEEPREDUCE_NCCL names another file, the one that made the communicator)"));
  REQUIRE(setenv("DEEPREDUCE_NCCL", "libm.so.6", 1) == 0);
  CHECK(dr::load_nccl(found, e) == DR_E_UNSUPPORTED);
  CHECK(std::string(e.message) == "nccl: libm.so.6 has no ncclGetErrorString; 2.4 or newer is needed");
  CHECK(!found);
}

TEST_CASE("several GPUs a host: outputs and residuals are those of an exchange of the hosts' sums") {
  for (const auto& [inner, ranks] : {std::pair{2u, 2u}, {2u, 4u}, {4u, 4u}, {3u, 9u}, {2u, 8u}})
    for (const uint32_t parts : {1u, 3u}) {
      CAPTURE(inner);
      CAPTURE(ranks);
      CAPTURE(parts);
      const hosts h(inner, ranks);
      world::options o = made(topr, inner, parts, h, {5000, 0, 1, 4099, 12001});
      o.exchange.flags = DR_EXCHANGE_SUM;  // (a mean is of all ranks, not of hosts)
      group device(o);
      by_hosts cpu(o, topr, inner, parts);
      for (uint64_t step = 0; step < 3; ++step) {
        device.draw(step);
        device.run_well(step);
        cpu.run(device, step);
        cpu.check(device);
      }
      for (uint32_t i = 0; i < ranks; ++i) CHECK(h.calls(i) == 6);  // one sum and one gather each
    }
}

TEST_CASE(
    "several GPUs a host: all ranks have the same bits, whatever the plan, and nothing of the gradients is lost") {
  const std::string plans[] = {
      topr,
      "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=qsgd(levels=7)",
      "sparsify=random(ratio=0.1) feedback=residual index=raw value=raw",
      "sparsify=topr(ratio=0.02) feedback=residual bucket=flat index=rice value=log_quant",
      "sparsify=topr(count=40) feedback=residual index=golomb value=raw",              // shares that differ
      "sparsify=topr(count=40) feedback=residual bucket=flat index=golomb value=raw",  // one rank has all
      "sparsify=none index=golomb value=raw",
  };
  for (const std::string& plan : plans)
    for (const bool uneven : {false, true}) {
      CAPTURE(plan);
      CAPTURE(uneven);
      const hosts h(3, 6);
      world::options o =
          made(plan, 3, 2, h, uneven ? std::vector<size_t>{70001} : std::vector<size_t>{900, 8000, 0, 33});
      o.exchange.flags = DR_EXCHANGE_SUM;
      if (plan.find("bucket=flat") == std::string::npos) o.exchange.dense_below = 950;  // some are exact
      group g(o);
      std::vector<std::vector<double>> owed(o.sizes.size());
      for (size_t t = 0; t < owed.size(); ++t) owed[t].resize(o.sizes[t]);
      for (uint64_t step = 0; step < 3; ++step) {
        g.draw(step);
        g.run_well(step);
        CHECK(g.all_alike());
        for (size_t t = 0; t < owed.size(); ++t) {
          const std::vector<double> in = g.total(t), kept = g.kept(t);
          for (size_t i = 0; i < in.size(); ++i) {
            owed[t][i] += in[i];
            const double out = static_cast<double>(g.ranks[0]->out[t][i]);
            if (plan.ends_with("value=raw")) REQUIRE(out + kept[i] == owed[t][i]);
            REQUIRE(std::abs(out + kept[i] - owed[t][i]) <= 1e-3 * (1 + std::abs(owed[t][i])));
            owed[t][i] = kept[i];
          }
        }
      }
    }
}

TEST_CASE("several GPUs a host: 16-bit tensors are summed in f32, rounded to be encoded, and once to the outputs") {
  for (const uint32_t dtype : {DR_F16, DR_BF16}) {
    CAPTURE(dtype);
    const hosts h(2, 4);
    world::options o = made("sparsify=none index=golomb value=raw", 2, 2, h, {3000, 5});
    o.exchange.flags = DR_EXCHANGE_SUM;
    o.dtype = dtype;
    group g(o);
    g.draw(3);
    g.run_well(3);
    CHECK(g.all_alike());
    const auto wide = [&](uint16_t bits) { return dtype == DR_F16 ? dr::f16_to_f32(bits) : dr::bf16_to_f32(bits); };
    const auto narrow = [&](double x) { return dtype == DR_F16 ? dr::f64_to_f16(x) : dr::f64_to_bf16(x); };
    size_t rounded = 0;
    for (size_t t = 0; t < 2; ++t)
      for (size_t k = 0; k < o.sizes[t]; ++k) {
        const auto at = [&](const floats& v) {
          uint16_t bits = 0;
          std::memcpy(&bits, reinterpret_cast<const char*>(v.data()) + 2 * k, sizeof bits);
          return bits;
        };
        double sum = 0;
        for (uint32_t host = 0; host < 2; ++host) {
          const double exact = static_cast<double>(wide(at(g.ranks[2 * host]->in[t]))) +
                               static_cast<double>(wide(at(g.ranks[2 * host + 1]->in[t])));
          const double sent = static_cast<double>(wide(narrow(exact)));
          rounded += sent != exact;
          sum += sent;
        }
        REQUIRE(at(g.ranks[1]->out[t]) == narrow(sum));
      }
    CHECK(rounded > 0);
  }
}

TEST_CASE("several GPUs a host: no call waits, for the device or for another rank") {
  const settings restored;
  size_t blocking = 0;  // (before the group, whose end is seen, too)
  const hosts h(2, 4);
  group g(made(topr, 2, 2, h, {9000, 40}));
  g.draw(0);
  g.run_well(0);
  g.draw(1);
  dr::emulator().stream_seen = [&](const char* what, void*, void*) {
    blocking += std::string(what).starts_with("wait");
  };
  std::vector<dr::exchange*> list;
  for (uint32_t i = 0; i < 4; ++i) {
    dr::exchange& x = *g.ranks[i]->exchange;
    dr_call call{};
    call.step = 1;
    REQUIRE(x.start(call) == DR_OK);
    x.begin();
    for (int k = 0; k < 3 && i % 2 == 0; ++k) {  // the first of its host, and the second has not started
      CHECK(x.advance() == DR_PENDING);
      CHECK(!x.waits());
      CHECK(x.info().messages == 0);
    }
    list.push_back(&x);
  }
  std::vector<dr_status> statuses(4);
  g.net.run(list, statuses);
  for (const dr_status s : statuses) CHECK(s == DR_OK);
  CHECK(blocking == 0);
  CHECK(g.all_alike());
}

TEST_CASE("several GPUs a host: a rank that cannot encode its share is named by all, and the next exchange goes on") {
  const hosts h(2, 4);
  world::options o =
      made("sparsify=topr(ratio=0.1) feedback=residual index=golomb value=qsgd(levels=127)", 2, 2, h, {9000});
  group g(o);
  g.draw(0);
  g.run_well(0);
  g.draw(1);
  g.ranks[2]->in[0][8999] = NAN;  // its share is that of rank 3
  const auto statuses = check_failed(g, 1, 3);
  for (uint32_t i = 0; i < 4; ++i) {
    CHECK(statuses[i] == (i == 3 ? DR_E_ARGUMENT : DR_E_PEER));
    CHECK(g.ranks[i]->context.error.tensor == 0);
    CHECK(g.ranks[i]->context.error.where == 8999);
  }
  g.draw(2);
  g.run_well(2);
  CHECK(g.all_alike());
}

TEST_CASE("several GPUs a host: an exchange that is cancelled, or cannot launch, leaves NCCL as it was") {
  const settings restored;
  const hosts h(2, 4);
  group g(made(topr, 2, 1, h, {150000}));
  for (const bool cancels : {true, false}) {
    CAPTURE(cancels);
    g.draw(0);
    std::vector<dr::exchange*> list;
    for (const auto& r : g.ranks) {
      REQUIRE(r->exchange->start(dr_call{}) == DR_OK);
      list.push_back(r->exchange.get());
    }
    if (cancels)
      REQUIRE(g.ranks[2]->exchange->cancel() == DR_OK);
    else
      dr::emulator().refused_kernel = "select_compact";
    std::vector<dr_status> statuses(4);
    g.net.run(list, statuses);
    dr::emulator().refused_kernel = nullptr;
    for (uint32_t i = 0; i < 4; ++i) {
      INFO(g.ranks[i]->error());
      if (cancels) CHECK(g.ranks[i]->context.error.frame == 2);
      CHECK(statuses[i] == (!cancels && g.ranks[i]->context.error.frame == i ? DR_E_DEVICE : DR_E_PEER));
    }
    g.draw(1);
    g.run_well(1);
    CHECK(g.all_alike());
  }
  // What a rank of a host could not send is in the residuals of the host.
  g.draw(2);
  std::vector<double> before = g.kept(0);
  dr::emulator().refused_kernel = nullptr;
  REQUIRE(g.ranks[1]->exchange->start(dr_call{}) == DR_OK);
  REQUIRE(g.ranks[1]->exchange->cancel() == DR_OK);
  std::vector<dr::exchange*> list;
  for (uint32_t i = 0; i < 4; ++i) {
    if (i != 1) REQUIRE(g.ranks[i]->exchange->start(dr_call{}) == DR_OK);
    list.push_back(g.ranks[i]->exchange.get());
  }
  std::vector<dr_status> statuses(4);
  g.net.run(list, statuses);
  for (const dr_status s : statuses) CHECK(s == DR_E_PEER);
  const std::vector<double> in = g.total(0), after = g.kept(0);
  for (size_t i = 0; i < in.size(); ++i) REQUIRE(after[i] == before[i] + in[i]);
}

TEST_CASE("several GPUs a host: an error of NCCL, at once or later, is its rank's, and outputs are untouched") {
  for (const bool later : {false, true})
    for (const bool gathers : {false, true})
      for (const uint32_t culprit : {0u, 3u}) {
        CAPTURE(later);
        CAPTURE(gathers);
        CAPTURE(culprit);
        const hosts h(2, 4);
        world::options o = made(topr, 2, 1, h, {9000});
        o.exchange.timeout_ns = 1'000'000;
        group g(o);
        g.draw(0);
        g.run_well(0);
        h.fail(culprit, gathers, later);
        g.draw(1);
        const auto statuses = check_failed(g, 1, culprit);
        for (uint32_t i = 0; i < 4; ++i) {
          INFO(g.ranks[i]->error());
          CHECK(statuses[i] == (i == culprit ? DR_E_DEVICE : DR_E_PEER));
          const std::string said = std::string(gathers ? "the result of its host: " : "the sum of its host: ") +
                                   (later     ? "NCCL"
                                    : gathers ? "ncclAllGather"
                                              : "ncclReduceScatter") +
                                   ": internal error - please report";
          CHECK(g.ranks[i]->error().find(said) != std::string::npos);
          // The other host goes on, once the first is there again.
          const bool near = i / 2 == culprit / 2;
          CHECK(g.ranks[i]->exchange->start(dr_call{}) == (near ? DR_E_ARGUMENT : DR_OK));
          if (near)
            CHECK(
                g.ranks[i]->error() ==
                "exchange: the device failed, or did not finish, in an earlier exchange; create a new exchange, with a "
                "new communicator on every rank of the host");
        }
      }
}

TEST_CASE("several GPUs a host: a rank that is gone is named by all, and what waits for it is left behind") {
  const hosts h(2, 4);
  world::options o = made(topr, 2, 2, h, {9000});
  o.present = 3;
  o.exchange.timeout_ns = 1'000'000;
  group g(o);
  g.draw(0);
  const auto statuses = check_failed(g, 0, 3);
  for (uint32_t i = 0; i < 3; ++i) CHECK(statuses[i] == DR_E_TIMEOUT);
  CHECK(g.ranks[2]->exchange->start(dr_call{}) == DR_E_ARGUMENT);
  floats kept(9000);
  CHECK(g.ranks[2]->exchange->read_residual(DR_RESIDUAL_OWN, 0, kept.data(), kept.size()) == DR_E_DEVICE);
  CHECK(g.ranks[2]->error() == "exchange: a collective of an earlier exchange is not done; abort its communicator");
  // Of the other host nothing is lost.
  const std::vector<uint32_t> well = {0, 1};
  floats sum(9000), rest(9000);
  for (const uint32_t i : well) {
    const floats r = residual_of(*g.ranks[i], 0, 9000);
    for (size_t k = 0; k < 9000; ++k) sum[k] += r[k], rest[k] += g.ranks[i]->in[0][k];
  }
  CHECK(sum == rest);
  CHECK(g.ranks[0]->exchange->start(dr_call{}) == DR_OK);
}

TEST_CASE(
    "several GPUs a host: memory of a collective that does not end is kept until it has, and nothing waits for it") {
  const settings restored;
  const hosts h(2, 2);
  world::options o = made(topr, 2, 1, h, {9000});
  o.exchange.timeout_ns = 1'000'000;
  size_t blocking = 0;
  {
    group g(o);
    g.draw(0);
    g.run_well(0);
    g.draw(1);
    dr::emulator().lags = true;
    for (const dr_status s : g.run(1)) CHECK(s == DR_E_TIMEOUT);
    dr::emulator().stream_seen = [&](const char* what, void*, void*) {
      blocking += std::string(what).starts_with("wait");
    };
  }
  dr::emulator() = restored.before;
  CHECK(blocking == 0);
  const hosts again(2, 2);
  o.nccl = again.ranks;
  group g(o);
  g.draw(2);
  g.run_well(2);
}

TEST_CASE("several GPUs a host: a rank that comes too late is named by all") {
  for (const auto& [inner, late] : {std::pair{2u, 1u}, {2u, 2u}, {3u, 2u}, {3u, 3u}, {6u, 4u}}) {
    CAPTURE(inner);
    CAPTURE(late);
    const hosts h(inner, 6);
    world::options o = made(topr, inner, 1, h, {20000});
    o.exchange.timeout_ns = 1'000'000;
    group g(o);
    g.draw(0);
    g.net.pass(late, 3'000'000);
    for (const dr_status s : check_failed(g, 0, late)) CHECK(s == DR_E_TIMEOUT);
  }
}

TEST_CASE("several GPUs a host: state of a run that was saved continues bit for bit, and belongs to its rank") {
  const hosts h(2, 4), other(2, 4);
  world::options o = made(topr, 2, 1, h, {9000, 70});
  group one(o);
  o.nccl = other.ranks;
  group two(o);
  for (uint64_t step = 0; step < 2; ++step) one.draw(step), one.run_well(step);
  for (uint32_t i = 0; i < 4; ++i)
    for (size_t t = 0; t < 2; ++t) {
      const floats kept = residual_of(*one.ranks[i], t, o.sizes[t]);
      REQUIRE(two.ranks[i]->exchange->write_residual(DR_RESIDUAL_OWN, t, kept.data(), kept.size()) == DR_OK);
    }
  floats ones(9000, 1.0f);
  CHECK(two.ranks[1]->exchange->write_residual(DR_RESIDUAL_OWN, 0, ones.data(), ones.size()) == DR_E_ARGUMENT);
  CHECK(two.ranks[1]->error() == "residual: element 0 is 1; must be 0 where another rank is the owner");
  for (group* const g : {&one, &two}) g->draw(2), g->run_well(2);
  for (uint32_t i = 0; i < 4; ++i)
    for (size_t t = 0; t < 2; ++t) CHECK(one.ranks[i]->out[t] == two.ranks[i]->out[t]);
}

TEST_CASE("several GPUs a host: outputs may be the tensors, and an exchange goes on with other memory") {
  const hosts h(2, 4);
  world::options o = made(topr, 2, 2, h, {6000, 50});
  o.exchange.flags = DR_EXCHANGE_SUM;
  group g(o);
  by_hosts cpu(o, topr, 2, 2);
  for (const auto& r : g.ranks) {
    auto outs = group::outs(o, *r);
    for (size_t t = 0; t < outs.size(); ++t) outs[t].values = r->in[t].data();
    REQUIRE(r->exchange->rebind(group::views(o, *r), outs) == DR_OK);
  }
  g.draw(0);
  cpu.run(g, 0);
  g.run_well(0);
  for (const auto& r : g.ranks) r->out = r->in;
  cpu.check(g);
  auto outs = group::outs(o, *g.ranks[0]);
  outs[1].values = nullptr;
  CHECK(g.ranks[0]->exchange->rebind(group::views(o, *g.ranks[0]), outs) == DR_E_ARGUMENT);
  CHECK(g.ranks[0]->error() == "tensor 1: its output's values is NULL");
  CHECK(g.ranks[0]->context.error.tensor == 1);
  for (const auto& r : g.ranks) r->out = {floats(6000), floats(50)};
  g.draw(1);
  cpu.run(g, 1);
  g.run_well(1);
  for (const auto& r : g.ranks) r->out = r->in;
  cpu.check(g);
}

TEST_CASE("several GPUs a host: what does not fit together is refused, with the numbers") {
  const hosts h(2, 4), three(3, 3);
  const auto said = [](const std::string& schedule, uint32_t ranks, uint32_t rank, void* nccl, bool on_device = true) {
    world::options o;
    o.ranks = ranks;
    o.sizes = {500};
    o.on_device = on_device ? all_ranks : 0;
    dr_error error = dr::no_error();
    dr::loopback net;
    dr_loopback_options l{};
    l.ranks = ranks;
    REQUIRE(net.create(l, error) == DR_OK);
    world::rank r;
    REQUIRE(r.context.start(dr_context_options{}, error) == DR_OK);
    r.in.emplace_back(500), r.out.emplace_back(500);
    dr::exchange x(r.context);
    o.exchange.nccl = nccl;
    const dr_status s = x.create(
        {world::plan_of(topr + " exchange=" + schedule), net.transport(rank), o.exchange, world::place_of(o, rank)},
        group::views(o, r), group::outs(o, r));
    CHECK(s == DR_E_ARGUMENT);
    return r.error();
  };
  CHECK(said("hierarchy(inner=2)", 3, 0, h.ranks[0]) ==
        "plan: exchange=hierarchy(inner=2) on a device requires whole hosts; 3 ranks are not a multiple");
  CHECK(said("hierarchy(inner=2)", 4, 0, three.ranks[0]) ==
        "options: nccl is a communicator of 3 ranks; the plan has inner=2");
  CHECK(said("hierarchy(inner=2)", 4, 3, h.ranks[2]) ==
        "options: this rank is rank 0 of nccl; it must be 1, its rank in the exchange modulo inner=2");
  CHECK(said("hierarchy(inner=2)", 4, 0, nullptr) ==
        "options: exchange=hierarchy(inner=2) on a device requires nccl, a communicator of the 2 ranks of this host");
  CHECK(said("gather", 4, 0, h.ranks[0]) == "options: nccl is for exchange=hierarchy with a place on a device");
  CHECK(said("hierarchy(inner=2)", 4, 0, h.ranks[0], false) ==
        "options: nccl is for exchange=hierarchy with a place on a device");
}
