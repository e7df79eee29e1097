// A rank that sends what its plan does not make, with every check right: all ranks see it before an output is written, and name that rank.
#include <cmath>
#include <functional>
#include <set>

#include "core/registry.hpp"
#include "fuzz/fix_check.hpp"
#include "world.hpp"

// fix_check.hpp asks the C ABI, which is not in a program of the engine.
size_t dr_codec_count(void) { return dr::codec_count(); }
const dr_codec* dr_codec_at(size_t position) { return dr::codec_at(position); }

namespace {

using bytes = std::vector<uint8_t>;

// The transport of a rank, which changes what it sends. Memory of what it sent stays.
struct liar {
  dr_transport inner;
  std::function<bool(uint32_t tag, bytes& message)> change;
  std::vector<std::unique_ptr<bytes>> sent;

  dr_transport transport() {
    dr_transport t = inner;
    t.user = this;
    t.send = [](void* user, uint32_t peer, uint32_t tag, const void* data, size_t size, uint64_t* request) {
      liar& l = *static_cast<liar*>(user);
      const auto* const from = static_cast<const uint8_t*>(data);
      bytes& message = *l.sent.emplace_back(std::make_unique<bytes>(from, from + size));
      if (size) l.change(tag, message);
      return l.inner.send(l.inner.user, peer, tag, message.data(), message.size(), request);
    };
    t.recv = [](void* user, uint32_t peer, uint32_t tag, void* data, size_t capacity, uint64_t* request) {
      const liar& l = *static_cast<liar*>(user);
      return l.inner.recv(l.inner.user, peer, tag, data, capacity, request);
    };
    t.test = [](void* user, uint64_t request, size_t* size) {
      const liar& l = *static_cast<liar*>(user);
      return l.inner.test(l.inner.user, request, size);
    };
    t.cancel = [](void* user, uint64_t request) {
      const liar& l = *static_cast<liar*>(user);
      return l.inner.cancel(l.inner.user, request);
    };
    if (t.now)
      t.now = [](void* user) { return static_cast<liar*>(user)->inner.now(static_cast<liar*>(user)->inner.user); };
    t.spend = nullptr;
    return t;
  }
};

// Ranks of which one, mostly 1 of three, lies in each exchange.
struct lied_to : world::group {
  liar one;

  explicit lied_to(const world::options& o, std::function<bool(uint32_t, bytes&)> change, uint32_t which = 1)
      : group(o), one{net.transport(which), std::move(change), {}} {
    world::rank& r = *ranks[which];
    r.exchange = std::make_unique<dr::exchange>(r.context);
    REQUIRE(r.exchange->create({world::plan_of(o.plan), one.transport(), o.exchange}, views(o, r), outs(o, r)) ==
            DR_OK);
  }

  // What ranks 0 and 2 say; their outputs are untouched.
  std::vector<dr_status> fail() {
    draw(0);
    const std::vector<dr_status> statuses = run(0);
    for (const uint32_t i : {0u, 2u}) {
      CAPTURE(i);
      INFO(ranks[i]->error());
      CHECK(statuses[i] != DR_OK);
      CHECK(ranks[i]->context.error.frame == 1);
      for (const world::floats& out : ranks[i]->out) CHECK(out == world::floats(out.size(), -1.0f));
    }
    return statuses;
  }
};

world::options three(const std::string& plan, std::vector<size_t> sizes) {
  world::options o;
  o.ranks = 3;
  o.plan = plan;
  o.sizes = std::move(sizes);
  return o;
}

// A frame of other codecs of the same tensors, with the tag of the one that it takes the place of.
bytes other_frame(const bytes& honest, const std::string& plan, const std::vector<size_t>& sizes,
                  uint64_t segment_rows) {
  dr::context c;
  dr_error error = dr::no_error();
  REQUIRE(c.start(dr_context_options{}, error) == DR_OK);
  dr::frame_view view;
  REQUIRE(dr::read_frame(honest.data(), honest.size(), view, error, UINT64_MAX) == DR_OK);
  std::vector<world::floats> values;
  dr::tensor_list list;
  for (const size_t n : sizes) {
    values.push_back(world::integers(n, n));
    dr::tensor_view v{};
    v.struct_size = sizeof v;
    v.dtype = DR_F32;
    v.universe = n;
    v.width = 1;
    v.values = values.back().data();
    list.views.push_back(v);
    list.plans.push_back(world::plan_of(plan));
  }
  dr::placed_batch batch;
  REQUIRE(batch.place(c.request_for(nullptr, segment_rows), list, dr::target{}, error) == DR_OK);
  dr::bound_batch bound(c, batch);
  bound.tensors = list.views;
  REQUIRE(bound.bind_tensors() == DR_OK);
  REQUIRE(bound.allocate_workspace() == DR_OK);
  bytes frame(batch.bound());
  dr::encode_request request;
  request.call.flags = DR_CALL_TAG;
  request.call.tag = view.tag;
  request.frame = frame.data();
  request.capacity = frame.size();
  dr::encode_result made;
  REQUIRE(bound.encode(request, made) == DR_OK);
  frame.resize(made.size);
  return frame;
}

}  // namespace

TEST_CASE("a frame of more than the plan makes is refused before ranks agree, and its sender is named") {
  const std::vector<size_t> sizes = {40'000, 300};
  for (const auto& [plan, segment_rows] : {std::pair<const char*, uint64_t>{"index=all value=sign", 0},
                                           {"sparsify=topr(ratio=0.1) index=golomb value=raw", 64},
                                           {"sparsify=topr(ratio=0.2) index=delta_pfor value=sign", 0}})
    for (const char* schedule : {"gather", "owner"}) {
      CAPTURE(plan);
      CAPTURE(schedule);
      const std::string honest = std::string("sparsify=topr(ratio=0.1) index=raw value=raw exchange=") + schedule;
      bool lied = false;
      lied_to g(three(honest, {40'000, 300}), [&](uint32_t tag, bytes& message) {
        if (tag == 0 || message.size() < 1000) return false;
        dr_error error = dr::no_error();
        dr::frame_view view;
        if (dr::read_frame(message.data(), message.size(), view, error, UINT64_MAX) || view.tensors == 0) return false;
        std::vector<size_t> rows;
        for (const dr::wire_row& row : view.rows) rows.push_back(row.universe);
        const bytes other = other_frame(message, plan, rows, segment_rows);
        if (other.size() > message.size()) return false;
        lied = true;
        message = other;
        return true;
      });
      const std::vector<dr_status> statuses = g.fail();
      CHECK(lied);
      CHECK(statuses[0] == DR_E_CORRUPT);
    }
}

TEST_CASE("a sum that does not decode is its owner's fault, on every rank") {
  lied_to g(three("sparsify=topr(ratio=0.1) index=raw value=raw exchange=owner", {3000}),
            [](uint32_t tag, bytes& message) {
              if (tag < 4) return false;  // of the sums only: ranges of parts are 1 to 3
              for (size_t i = message.size() - 4; i < message.size(); ++i) message[i] = 0xff;  // the last index
              frame_check::fix(message.data(), message.size());
              return true;
            });
  g.draw(0);
  const std::vector<dr_status> statuses = g.run(0);
  for (const uint32_t i : {0u, 2u}) {
    INFO(g.ranks[i]->error());
    CHECK(statuses[i] == DR_E_CORRUPT);
    CHECK(g.ranks[i]->context.error.frame == 1);
  }
}

TEST_CASE("a payload that does not decode leaves all outputs as they were, in whichever range it is") {
  std::vector<std::pair<std::string, uint32_t>> cases;
  for (const std::string& schedule : world::schedules) cases.emplace_back(schedule, 0);
  for (const char* schedule : {"gather", "gather(parts=3)", "owner", "ring(parts=2)"})
    cases.emplace_back(schedule, UINT32_MAX);
  for (const auto& [schedule, on_device] : cases)
    for (const uint32_t who : {0u, 3u})  // (the first of their hosts, where there are any: others send values only)
      for (const bool to_all : {true, false}) {
        world::options o =
            three("sparsify=topr(ratio=0.2) feedback=residual index=raw value=raw exchange=" + schedule, {12'000, 300});
        o.on_device = on_device;
        o.ranks = schedule == "hierarchy(inner=2)" ? 6 : 4;
        const uint32_t liar = o.ranks == 6 && who ? 4 : who;
        std::set<uint32_t> tags = {0};  // of the frames that it sends
        for (uint32_t forged = 0; forged <= *tags.rbegin(); ++forged) {
          bool done = false;
          lied_to g(
              o,
              [&](uint32_t tag, bytes& message) {
                tags.insert(tag);
                if (tag == 0 || tag != forged || (done && !to_all)) return false;
                for (size_t i = message.size() - 4; i < message.size(); ++i) message[i] = 0xff;  // the last index
                frame_check::fix(message.data(), message.size());
                return done = true;
              },
              liar);
          g.draw(0);
          const std::vector<dr_status> statuses = g.run(0);
          if (!done) continue;
          INFO(schedule << (on_device ? " on devices" : "") << ": rank " << liar << " forges its frame of tag "
                        << forged << std::string(to_all ? "" : " to one rank"));
          const uint64_t culprit = g.ranks[liar ? 0 : 1]->context.error.frame;
          for (uint32_t i = 0; i < o.ranks; ++i) {
            if (i == liar) continue;
            world::rank& r = *g.ranks[i];
            INFO("rank " << i << ": " << r.error());
            CHECK(statuses[i] == DR_E_CORRUPT);
            CHECK(r.context.error.frame == culprit);
            for (size_t t = 0; t < o.sizes.size(); ++t) {
              CHECK(r.out[t] == world::floats(o.sizes[t], -1.0f));
              world::floats kept(o.sizes[t]);
              REQUIRE(r.exchange->read_residual(DR_RESIDUAL_OWN, t, kept.data(), kept.size()) == DR_OK);
              CHECK(kept == r.in[t]);
              REQUIRE(r.exchange->read_residual(DR_RESIDUAL_SUM, t, kept.data(), kept.size()) == DR_OK);
              CHECK(kept == world::floats(o.sizes[t]));
            }
          }
        }
        CHECK(tags.size() > 1);
      }
}

namespace {

// A lie in a verdict, which is sealed again.
template <class F>
auto in_verdict(F change) {
  return [change](uint32_t tag, bytes& message) {
    if (tag || message.size() != sizeof(dr::verdict)) return false;
    dr::verdict v;
    std::memcpy(&v, message.data(), sizeof v);
    change(v);
    v.seal();
    std::memcpy(message.data(), &v, sizeof v);
    return true;
  };
}

}  // namespace

TEST_CASE("a rank that claims more exchanges than there were is not believed") {
  lied_to g(three("index=raw value=raw", {3000}), in_verdict([](dr::verdict& v) { v.commits = UINT64_MAX; }));
  const std::vector<dr_status> statuses = g.fail();
  CHECK(statuses[0] == DR_E_CORRUPT);
  CHECK(g.ranks[0]->error().find("its verdict is damaged") != std::string::npos);
}

TEST_CASE("control characters in a verdict do not reach terminals and logs") {
  lied_to g(three("index=raw value=raw", {3000}), in_verdict([](dr::verdict& v) {
              v.code = DR_E_PEER;
              v.culprit = 1;
              std::snprintf(v.message, sizeof v.message, "\x1b[2J\xc2\x9b gone \xc3\xa9");
            }));
  CHECK(g.fail()[0] == DR_E_PEER);
  CHECK(g.ranks[0]->error().find(": ?[2J?? gone \xc3\xa9") != std::string::npos);
}

TEST_CASE("a verdict with a status that no exchange ends with, or with an error and no sentence, counts as damaged") {
  for (const int32_t code : {int32_t{DR_E_DEVICE}, int32_t{DR_E_INTERNAL}, int32_t{DR_E_PEER}}) {
    CAPTURE(code);
    lied_to g(three("index=raw value=raw", {3000}), in_verdict([code](dr::verdict& v) {
                v.code = code;
                v.culprit = 2;
              }));
    CHECK(g.fail()[0] == DR_E_CORRUPT);
  }
}

TEST_CASE("a tensor without values is refused by its number, by each schedule, at a rebind, too") {
  for (const std::string& schedule : world::schedules) {
    CAPTURE(schedule);
    const world::options how{
        .ranks = 4, .plan = "index=all value=raw feedback=residual exchange=" + schedule, .sizes = {100, 90, 80, 70}};
    world::group g(how);
    world::rank& r = *g.ranks[0];
    auto none = world::group::views(how, r), odd = none;
    none[3].values = nullptr;
    odd[2].values = reinterpret_cast<const std::byte*>(odd[2].values) + 1;
    const auto refused = [&](const std::vector<dr::tensor_view>& given, size_t tensor, const char* why) {
      dr::exchange fresh(r.context);
      for (const bool again : {false, true}) {
        CAPTURE(again);
        CHECK((again ? r.exchange->rebind(given, world::group::outs(how, r))
                     : fresh.create({world::plan_of(how.plan), g.net.transport(0), {}}, given,
                                    world::group::outs(how, r))) == DR_E_ARGUMENT);
        CHECK(r.error() == "tensor " + std::to_string(tensor) + ": " + why);
        CHECK(r.context.error.tensor == tensor);
      }
    };
    refused(none, 3, "values is NULL");
    refused(odd, 2, "values are not aligned to their dtype");
    auto wide = world::group::views(how, r);
    auto outs = world::group::outs(how, r);
    wide[3].width = outs[3].width = 2, wide[3].universe = outs[3].universe = 35;
    dr::exchange fresh(r.context);
    CHECK(fresh.create({world::plan_of("sparsify=topr(ratio=0.1) index=raw value=raw exchange=" + schedule),
                        g.net.transport(0),
                        {}},
                       wide, outs) == DR_E_ARGUMENT);
    CHECK(r.error().starts_with("tensor 3"));
    CHECK(r.context.error.tensor == 3);
    g.draw(1);
    g.run_well(1);
  }
}

TEST_CASE(
    "hierarchy: each rank may send a NaN where the plan of its tensor accepts one; otherwise all name that rank") {
  const std::string hosts = " exchange=hierarchy(inner=2)";
  const struct {
    const char* plan;
    size_t tensor;
    bool passes;
  } cases[] = {{"sparsify=topr(ratio=0.1) index=golomb value=qsgd(levels=127)", 1, true},  // goes exactly
               {"sparsify=topr(ratio=0.1) index=golomb value=qsgd(levels=127)", 0, false},
               {"sparsify=topr(ratio=0.1) index=golomb value=auto(error=0.1)", 0, true}};
  for (const auto& c : cases)
    for (const size_t victim : {0u, 1u}) {
      CAPTURE(c.plan);
      CAPTURE(victim);
      world::options how{.ranks = 2, .plan = c.plan + hosts, .sizes = {4096, 100}};
      how.exchange.dense_below = 1000;
      world::group g(how);
      g.draw(1);
      g.ranks[victim]->in[c.tensor][7] = std::nanf("");
      const auto status = g.run(1);
      for (uint32_t i = 0; i < 2; ++i) {
        INFO(g.ranks[i]->error());
        CHECK((status[i] == DR_OK) == c.passes);
        if (c.passes) CHECK(std::isnan(g.ranks[i]->out[c.tensor][7]));
        if (!c.passes) CHECK(g.ranks[i]->context.error.frame == victim);
      }
    }
}

TEST_CASE("what no exchange can deliver is refused when it is made") {
  dr::loopback net;
  dr_loopback_options l{};
  l.ranks = 257;
  dr_error error = dr::no_error();
  REQUIRE(net.create(l, error) == DR_OK);
  dr::context c;
  REQUIRE(c.start(dr_context_options{}, error) == DR_OK);
  world::floats in(5000), out(5000);
  std::vector<uint32_t> keys(5000);
  const auto create = [&](const char* plan, auto&& set) {
    dr::tensor_view t{};
    t.struct_size = sizeof t;
    t.dtype = DR_F32;
    t.universe = 5000;
    t.values = in.data();
    dr::tensor_out o{};
    o.struct_size = sizeof o;
    o.dtype = DR_F32;
    o.universe = 5000;
    o.values = out.data();
    set(o);
    dr::exchange x(c);
    return x.create({world::plan_of(plan), net.transport(0), {}}, {t}, {o});
  };
  const auto votes_into = [&](uint32_t dtype) {
    return create("index=all value=sign merge=vote", [&](dr::tensor_out& o) { o.dtype = dtype; });
  };
  CHECK(votes_into(DR_F32) == DR_OK);
  CHECK(votes_into(DR_F16) == DR_OK);
  CHECK(votes_into(DR_BF16) == DR_E_ARGUMENT);  // 256 + 1 is 256
  const auto sparse = [&](const char* plan) {
    return create(plan, [&](dr::tensor_out& o) { o.index_dtype = DR_U32, o.indices = keys.data(), o.capacity = 5000; });
  };
  CHECK(sparse("sparsify=topr(ratio=0.001) index=raw value=raw exchange=gather") == DR_OK);
  CHECK(sparse("sparsify=topr(ratio=0.001) index=raw value=raw exchange=gather(parts=2)") == DR_E_UNSUPPORTED);
  CHECK(std::string(c.error.message).find("its output is sparse, and the exchange cuts it") != std::string::npos);
}
