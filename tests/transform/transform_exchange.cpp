// Exchanges of factors: all ranks in one thread, over the loopback.
#include <deepreduce/exchange.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <tuple>

#include "transform/transform_world.hpp"

using namespace transforms;

namespace {

const std::string plan3 = "transform=lowrank(rank=3) feedback=residual";
const shapes of = {{40, 30}, {7, 1}, {2, 2}, {25, 90}};

// Messages between two ranks that drive themselves. One that rank 1 sends is damaged.
struct mail {
  struct receive {
    uint32_t rank, peer, tag;
    void* bytes;
    size_t capacity;
  };
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::deque<client::bytes>> under_way;  // from, to, tag
  std::map<uint64_t, receive> receives;
  uint64_t last = 0;
  int left = -1;  // messages of factors before the one
  bool hit = false;

  struct end {
    mail* all;
    uint32_t rank;
  } ends[2] = {{this, 0}, {this, 1}};

  dr_transport transport(uint32_t rank) {
    dr_transport t{};
    t.struct_size = sizeof t;
    t.user = &ends[rank];
    t.ranks = 2;
    t.rank = rank;
    t.send = [](void* user, uint32_t peer, uint32_t tag, const void* bytes, size_t size, uint64_t* request) {
      const end& e = *static_cast<end*>(user);
      const auto* const from = static_cast<const uint8_t*>(bytes);
      client::bytes copy(from, from + size);
      const bool factor = e.rank == 1 && tag != 0 && size;
      if (factor && e.all->left-- == 0) {
        copy[size - 3] ^= 4;
        e.all->hit = true;
      }
      e.all->under_way[{e.rank, peer, tag}].push_back(std::move(copy));
      *request = ++e.all->last;
      return dr_status{DR_OK};
    };
    t.recv = [](void* user, uint32_t peer, uint32_t tag, void* bytes, size_t capacity, uint64_t* request) {
      const end& e = *static_cast<end*>(user);
      *request = ++e.all->last;
      e.all->receives[*request] = {e.rank, peer, tag, bytes, capacity};
      return dr_status{DR_OK};
    };
    t.test = [](void* user, uint64_t request, size_t* size) {
      mail& m = *static_cast<end*>(user)->all;
      const auto found = m.receives.find(request);
      if (found == m.receives.end()) return dr_status{DR_OK};
      const receive r = found->second;
      auto& queue = m.under_way[{r.peer, r.rank, r.tag}];
      if (queue.empty()) return dr_status{DR_PENDING};
      *size = queue.front().size();
      if (*size) std::memcpy(r.bytes, queue.front().data(), std::min(*size, r.capacity));
      queue.pop_front();
      m.receives.erase(found);
      return dr_status{DR_OK};
    };
    t.cancel = [](void* user, uint64_t request) {
      static_cast<end*>(user)->all->receives.erase(request);
      return dr_status{DR_OK};
    };
    return t;
  }
};

struct group {
  dr_loopback* loopback = nullptr;
  std::vector<std::unique_ptr<rank>> ranks;  // (their transforms are not used; their tensors are)
  std::vector<dr_exchange*> exchanges;
  std::vector<dr_status> statuses;
  std::vector<dr_transport> transports;

  group(uint32_t n, const std::string& text, const shapes& shapes, uint32_t flags = 0) : statuses(n), transports(n) {
    dr_loopback_options net{};
    net.struct_size = sizeof net;
    net.ranks = n;
    net.latency_ns = 1000;
    net.seed = n;
    REQUIRE(dr_loopback_create(&net, &loopback, nullptr) == DR_OK);
    const client::plan plan(text);
    for (uint32_t i = 0; i < n; ++i) {
      ranks.push_back(std::make_unique<rank>(text, shapes));
      rank& r = *ranks.back();
      transports[i].struct_size = sizeof(dr_transport);
      REQUIRE(dr_loopback_transport(loopback, i, &transports[i]) == DR_OK);
      dr_exchange_options options{};
      options.struct_size = sizeof options;
      options.flags = flags;
      options.timeout_ns = 1'000'000;
      exchanges.push_back(nullptr);
      const dr_status s = dr_exchange_create(r.context.handle, plan.handle, &transports[i], &options, r.tensors.data(),
                                             sizeof(dr_tensor), r.outs.data(), sizeof(dr_tensor_out), r.tensors.size(),
                                             &exchanges.back());
      INFO(r.context.error());
      REQUIRE(s == DR_OK);
    }
  }
  ~group() {
    for (dr_exchange* x : exchanges) dr_exchange_destroy(x);
    ranks.clear();
    dr_loopback_destroy(loopback);
  }
  group(const group&) = delete;
  group& operator=(const group&) = delete;

  void start() {
    for (dr_exchange* x : exchanges)
      if (x) REQUIRE(dr_exchange_start(x, nullptr) == DR_OK);
  }
  dr_status run() { return dr_loopback_run(loopback, exchanges.data(), statuses.data()); }
  void draw(uint64_t step) {
    for (size_t i = 0; i < ranks.size(); ++i) ranks[i]->draw(step * 100 + i);
  }
  floats residual(size_t i, size_t tensor, uint32_t which = DR_RESIDUAL_OWN) {
    floats out(ranks[i]->in[tensor].size());
    REQUIRE(dr_exchange_read_residual(exchanges[i], which, tensor, out.data(), out.size()) == DR_OK);
    return out;
  }
  // Of a checkpoint of another group.
  void copy(group& from, uint32_t which) {
    for (size_t i = 0; i < ranks.size(); ++i)
      for (size_t t = 0; t < ranks[i]->in.size(); ++t) {
        const floats kept = from.residual(i, t, which);
        REQUIRE(dr_exchange_write_residual(exchanges[i], which, t, kept.data(), kept.size()) == DR_OK);
      }
  }
  // Whether all ranks' outputs of a step have the bits of the other group's.
  bool same_step(group& other, uint64_t step) {
    bool same = true;
    for (group* g : {this, &other}) {
      g->draw(step);
      g->start();
      REQUIRE(g->run() == DR_OK);
    }
    for (size_t i = 0; i < ranks.size(); ++i)
      for (size_t t = 0; t < ranks[i]->out.size(); ++t)
        same = same && client::same_bits(ranks[i]->out[t], other.ranks[i]->out[t]);
    return same;
  }
  std::string error(size_t i) const { return ranks[i]->context.error(); }
};

}  // namespace

TEST_CASE("an exchange of factors is the transform with sums in rank order, bit for bit, on all ranks") {
  for (const uint32_t n : {1u, 2u, 3u, 5u}) {
    CAPTURE(n);
    group g(n, plan3, of);
    ranks by_hand = make(n, plan3, of);
    for (uint64_t step = 0; step < 4; ++step) {
      g.draw(step);
      for (size_t i = 0; i < n; ++i) by_hand[i]->draw(step * 100 + i);
      g.start();
      REQUIRE(g.run() == DR_OK);
      transforms::run(by_hand);
      for (size_t i = 0; i < n; ++i)
        for (size_t t = 0; t < of.size(); ++t) {
          CHECK(client::same_bits(g.ranks[i]->out[t], by_hand[0]->out[t]));
          CHECK(client::same_bits(g.residual(i, t), by_hand[i]->residual(t)));
        }
    }
    dr_exchange_info info{};
    info.struct_size = sizeof info;
    REQUIRE(dr_exchange_describe(g.exchanges[0], &info, nullptr) == DR_OK);
    CHECK(info.calls == 4);
    // Each rank sends its factors but for its own chunks, and the sums of those to all others; heads and verdicts.
    const dr_transform_info t = by_hand[0]->info();
    CHECK(info.sent <= 2 * 4 * (t.first + t.second) * (n - 1) / n + (n - 1) * (256 + 4 * 20) + 64);
  }
}

TEST_CASE("without matrices there is one factor, which is exact; SUM is the sum") {
  group g(3, plan3, {{5, 1}, {2, 2}}, DR_EXCHANGE_SUM);
  for (size_t i = 0; i < 3; ++i)
    for (floats& x : g.ranks[i]->in)
      for (size_t k = 0; k < x.size(); ++k) x[k] = static_cast<float>(3 * (k + i));
  g.start();
  REQUIRE(g.run() == DR_OK);
  for (size_t k = 0; k < 5; ++k) CHECK(g.ranks[1]->out[0][k] == doctest::Approx(9 * static_cast<double>(k) + 9));
}

TEST_CASE("a NaN of one rank fails all of them, by its name, and no gradient is lost") {
  group g(3, plan3, of);
  g.draw(1);
  g.start();
  REQUIRE(g.run() == DR_OK);
  std::vector<floats> before;
  for (size_t i = 0; i < 3; ++i) before.push_back(g.residual(i, 3));
  const std::vector<floats> outs = g.ranks[0]->out;
  g.draw(2);
  g.ranks[1]->in[3][77] = std::numeric_limits<float>::quiet_NaN();
  g.start();
  CHECK(g.run() != DR_OK);
  CHECK(g.statuses[1] == DR_E_ARGUMENT);
  CHECK(g.error(1).find("tensor 3: element 77") != std::string::npos);
  for (const size_t i : {0u, 2u}) {
    CHECK(g.statuses[i] == DR_E_PEER);
    CHECK(g.error(i).find("rank 1: ") != std::string::npos);
    CHECK(dr_last_error(g.ranks[i]->context.handle)->frame == 1);
    CHECK(dr_last_error(g.ranks[i]->context.handle)->tensor == 3);
    const floats now = g.residual(i, 3);
    for (size_t k = 0; k < now.size(); ++k) CHECK(now[k] == before[i][k] + g.ranks[i]->in[3][k]);
    CHECK(client::same_bits(g.ranks[i]->out[3], outs[3]));
  }
  CHECK(client::same_bits(g.residual(1, 3), before[1]));
  g.draw(3);
  g.start();
  CHECK(g.run() == DR_OK);
  CHECK(client::same_bits(g.ranks[0]->out[3], g.ranks[2]->out[3]));
}

TEST_CASE("a rank that cancels, or is not there, fails all; the gradients are in the residuals") {
  for (const bool absent : {false, true}) {
    CAPTURE(absent);
    group g(3, plan3, of);
    g.draw(1);
    if (absent) {
      dr_exchange_destroy(g.exchanges[2]);
      g.exchanges[2] = nullptr;
    }
    g.start();
    if (!absent) REQUIRE(dr_exchange_cancel(g.exchanges[2]) == DR_OK);
    CHECK(g.run() != DR_OK);
    for (const size_t i : {0u, 1u}) {
      CHECK(g.statuses[i] == (absent ? DR_E_TIMEOUT : DR_E_PEER));
      CHECK(dr_last_error(g.ranks[i]->context.handle)->frame == 2);
      for (size_t t = 0; t < of.size(); ++t) {
        CHECK(client::same_bits(g.residual(i, t), g.ranks[i]->in[t]));
        CHECK(g.ranks[i]->out[t] == floats(g.ranks[i]->out[t].size(), -7.0f));
      }
    }
  }
}

TEST_CASE("a message that is damaged on its way is seen, and whose it was") {
  const client::plan plan(plan3);
  for (int message = 0; message < 6; ++message) {
    CAPTURE(message);
    mail m;
    m.left = message;
    ranks all = make(2, plan3, of);
    dr_exchange* exchanges[2] = {};
    dr_status ended[2] = {DR_PENDING, DR_PENDING};
    for (uint32_t i = 0; i < 2; ++i) {
      rank& r = *all[i];
      const dr_transport transport = m.transport(i);
      REQUIRE(dr_exchange_create(r.context.handle, plan.handle, &transport, nullptr, r.tensors.data(),
                                 sizeof(dr_tensor), r.outs.data(), sizeof(dr_tensor_out), of.size(),
                                 &exchanges[i]) == DR_OK);
      r.draw(i);
      REQUIRE(dr_exchange_start(exchanges[i], nullptr) == DR_OK);
    }
    for (int turn = 0; turn < 1000; ++turn)
      for (int i = 0; i < 2; ++i)
        if (ended[i] == DR_PENDING) ended[i] = dr_exchange_advance(exchanges[i]);
    // Of each of the two factors a part and a sum.
    CHECK(m.hit == (message < 4));
    for (int i = 0; i < 2; ++i) {
      CHECK(ended[i] == (m.hit ? DR_E_CORRUPT : DR_OK));
      if (!m.hit) continue;
      CHECK(all[i]->context.error().find("the check does not fit") != std::string::npos);
      CHECK(dr_last_error(all[i]->context.handle)->frame == 1);
      floats residual(all[i]->in[3].size());
      REQUIRE(dr_exchange_read_residual(exchanges[i], DR_RESIDUAL_OWN, 3, residual.data(), residual.size()) == DR_OK);
      CHECK(client::same_bits(residual, all[i]->in[3]));
    }
    for (dr_exchange* x : exchanges) dr_exchange_destroy(x);
  }
}

TEST_CASE("residuals of an exchange of factors are read and written; what it does not support is refused") {
  group g(2, plan3, of);
  g.draw(1);
  floats given = normal(2250, 5);
  REQUIRE(dr_exchange_write_residual(g.exchanges[0], DR_RESIDUAL_OWN, 3, given.data(), given.size()) == DR_OK);
  CHECK(client::same_bits(g.residual(0, 3), given));
  CHECK(dr_exchange_write_residual(g.exchanges[0], DR_RESIDUAL_SUM, 3, given.data(), given.size()) == DR_E_ARGUMENT);
  CHECK(dr_exchange_read_residual(g.exchanges[0], DR_RESIDUAL_SUM, 3, given.data(), given.size()) == DR_OK);
  CHECK(given == floats(2250, 0.0f));
  CHECK(dr_exchange_write_residual(g.exchanges[0], DR_RESIDUAL_SUM, 3, given.data(), given.size()) == DR_OK);
  rank& r = *g.ranks[0];
  dr_transport transport = g.transports[0];
  const client::plan plan(plan3);
  const auto create = [&](dr_tensor t, dr_tensor_out o, uint32_t flags) {
    dr_exchange_options options{};
    options.struct_size = sizeof options;
    options.flags = flags;
    options.frame_size = [](void*, uint64_t, uint32_t) -> uint64_t { return 1; };
    dr_exchange* made = nullptr;
    const dr_status s =
        dr_exchange_create(r.context.handle, plan.handle, &transport, &options, &t, sizeof t, &o, sizeof o, 1, &made);
    dr_exchange_destroy(made);
    return s;
  };
  dr_tensor half = r.tensors[0];
  half.dtype = DR_F16;
  dr_tensor_out narrow = r.outs[0];
  narrow.dtype = DR_BF16;
  CHECK(create(r.tensors[0], r.outs[0], 0) == DR_OK);
  CHECK(create(half, r.outs[0], 0) == DR_E_UNSUPPORTED);
  CHECK(create(r.tensors[0], narrow, 0) == DR_E_UNSUPPORTED);
  CHECK(create(r.tensors[0], r.outs[0], DR_EXCHANGE_DRY) == DR_E_UNSUPPORTED);
}

TEST_CASE("residuals and the warm start are all of a checkpoint: the exchange continues bit for bit") {
  group whole(2, plan3, of), resumed(2, plan3, of), cold(2, plan3, of);
  for (uint64_t step = 0; step < 3; ++step) {
    whole.draw(step);
    whole.start();
    REQUIRE(whole.run() == DR_OK);
  }
  resumed.copy(whole, DR_RESIDUAL_OWN);
  resumed.copy(whole, DR_RESIDUAL_WARM_START);
  resumed.copy(whole, DR_RESIDUAL_MOMENTUM);  // zeros
  for (uint64_t step = 3; step < 6; ++step) CHECK(whole.same_step(resumed, step));
  cold.copy(whole, DR_RESIDUAL_OWN);
  CHECK_FALSE(whole.same_step(cold, 6));
}

TEST_CASE("a warm start has the rank's columns of a matrix and zeros behind; what is not finite is refused") {
  group g(2, plan3, {{40, 30}, {7, 1}});
  floats q = g.residual(0, 0, DR_RESIDUAL_WARM_START);
  for (size_t i = 0; i < 3; ++i)
    for (size_t k = 0; k <= i; ++k) {
      double dot = 0;
      for (size_t j = 0; j < 30; ++j) dot += static_cast<double>(q[30 * i + j]) * static_cast<double>(q[30 * k + j]);
      CHECK(dot == doctest::Approx(i == k ? 1 : 0).epsilon(1e-5));
    }
  CHECK(std::all_of(q.begin() + 90, q.end(), [](float x) { return x == 0; }));
  CHECK(g.residual(0, 1, DR_RESIDUAL_WARM_START) == floats(7, 0.0f));  // sent as it is
  const auto write = [&](size_t at, float x) {
    floats changed = q;
    changed[at] = x;
    return dr_exchange_write_residual(g.exchanges[0], DR_RESIDUAL_WARM_START, 0, changed.data(), changed.size());
  };
  CHECK(write(89, std::nanf("")) == DR_E_ARGUMENT);
  CHECK(g.error(0).find("element 89 is nan; must be finite") != std::string::npos);
  CHECK(write(90, 1) == DR_E_ARGUMENT);
  CHECK(g.error(0).find("element 90 is 1; must be 0") != std::string::npos);
  CHECK(client::same_bits(g.residual(0, 0, DR_RESIDUAL_WARM_START), q));
}

TEST_CASE("sums that exceed f32 fail all ranks, who name the same one; an output that is NULL fails its rank") {
  group g(3, plan3, {{40, 30}, {7, 1}});
  g.draw(1);
  for (size_t i = 0; i < 3; ++i) g.ranks[i]->in[1][6] = 3e38f;
  g.start();
  CHECK(g.run() != DR_OK);
  const uint64_t named = dr_last_error(g.ranks[0]->context.handle)->frame;
  CHECK(named == 2);  // whose chunk it is: element 126 of 127
  for (size_t i = 0; i < 3; ++i) {
    CHECK(g.statuses[i] != DR_OK);
    CHECK(dr_last_error(g.ranks[i]->context.handle)->frame == named);
    CHECK(g.error(i).find("first factor: element ") != std::string::npos);
    CHECK(client::same_bits(g.residual(i, 1), g.ranks[i]->in[1]));
  }
  group without(2, plan3, {{7, 1}});  // whose only factor is checked after the ranks have agreed
  for (size_t i = 0; i < 2; ++i) without.ranks[i]->in[0][6] = 3e38f;
  without.start();
  CHECK(without.run() == DR_E_ARGUMENT);
  for (size_t i = 0; i < 2; ++i) CHECK(dr_last_error(without.ranks[i]->context.handle)->frame == 1);
  rank& r = *g.ranks[1];
  r.outs[0].values = nullptr;
  REQUIRE(dr_exchange_rebind(g.exchanges[1], r.tensors.data(), sizeof(dr_tensor), r.outs.data(), sizeof(dr_tensor_out),
                             2) == DR_OK);
  g.draw(2);
  g.start();
  CHECK(g.run() != DR_OK);
  CHECK(g.error(1).find("output is NULL") != std::string::npos);
}

TEST_CASE("an output in the place of another tensor is refused by an exchange of factors, too") {
  group g(2, plan3, {{40, 30}, {40, 30}});
  rank& r = *g.ranks[0];
  const auto rebind = [&](floats& first, floats& second) {
    r.outs[0].values = first.data(), r.outs[1].values = second.data();
    return dr_exchange_rebind(g.exchanges[0], r.tensors.data(), sizeof(dr_tensor), r.outs.data(), sizeof(dr_tensor_out),
                              2);
  };
  CHECK(rebind(r.out[1], r.out[0]) == DR_OK);
  CHECK(rebind(r.in[1], r.in[0]) == DR_E_ARGUMENT);
  CHECK(g.error(0).find("output 1 overlaps it") != std::string::npos);
  CHECK(rebind(r.in[0], r.in[1]) == DR_OK);
}
