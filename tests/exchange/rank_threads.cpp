// Each rank in a thread of its own, as a program that drives several GPUs has them, with a context of several threads and
// with one plan for all. Under ThreadSanitizer (`./dev test --all`) this is what says that ranks share nothing that changes.
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include <deepreduce/exchange.h>

#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

// Messages between threads, in memory.
struct mail {
  std::mutex lock;
  std::condition_variable arrived;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::deque<bytes>> messages;  // by sender, receiver and tag
  uint64_t count = 0;
};

// A rank's end of it. Only its own thread uses what is not in `mail`.
struct port {
  struct receive {
    uint32_t from, tag;
    void* to;
    size_t capacity;
  };
  mail& all;
  uint32_t rank;
  std::vector<receive> receives = {};
  static constexpr uint64_t sent = UINT64_MAX;  // the request of every send: its bytes are copied at once

  dr_transport transport(uint32_t ranks) {
    dr_transport t{};
    t.struct_size = sizeof t;
    t.user = this;
    t.ranks = ranks;
    t.rank = rank;
    t.send = [](void* user, uint32_t peer, uint32_t tag, const void* from, size_t size, uint64_t* request) {
      port& p = *static_cast<port*>(user);
      const auto* first = static_cast<const uint8_t*>(from);
      {
        const std::lock_guard held(p.all.lock);
        p.all.messages[{p.rank, peer, tag}].emplace_back(first, first + size);
        ++p.all.count;
      }
      p.all.arrived.notify_all();
      *request = sent;
      return dr_status{DR_OK};
    };
    t.recv = [](void* user, uint32_t peer, uint32_t tag, void* to, size_t capacity, uint64_t* request) {
      port& p = *static_cast<port*>(user);
      *request = p.receives.size();
      p.receives.push_back({peer, tag, to, capacity});
      return dr_status{DR_OK};
    };
    t.test = [](void* user, uint64_t request, size_t* size) {
      if (request == sent) return dr_status{DR_OK};
      port& p = *static_cast<port*>(user);
      const receive& r = p.receives[request];
      const std::lock_guard held(p.all.lock);
      auto& queue = p.all.messages[{r.from, p.rank, r.tag}];
      if (queue.empty()) return dr_status{DR_PENDING};
      *size = queue.front().size();
      std::copy_n(queue.front().begin(), std::min(*size, r.capacity), static_cast<uint8_t*>(r.to));
      queue.pop_front();
      return dr_status{DR_OK};
    };
    t.cancel = [](void*, uint64_t) { return dr_status{DR_OK}; };
    return t;
  }
};

// What a rank ends with: its outputs of each step, and what failed ("": nothing).
struct outcome {
  std::vector<floats> outputs;
  std::string fault;
};

constexpr uint64_t steps = 3;
const std::vector<size_t> sizes = {40000, 300, 9000};

floats gradient(uint32_t rank, uint64_t step, size_t tensor) {
  return client::laplace(sizes[tensor], 1000 * step + 10 * rank + tensor + 1);
}

struct member {
  client::context context;
  std::vector<floats> in, out;
  std::vector<dr_tensor> tensors;
  std::vector<dr_tensor_out> outs;
  dr_exchange* exchange = nullptr;
  dr_status created = DR_OK;

  member(uint32_t threads, const dr_plan* plan, const dr_transport& transport) : context(threads) {
    for (const size_t n : sizes) in.emplace_back(n), out.emplace_back(n);
    for (size_t i = 0; i < sizes.size(); ++i) {
      tensors.push_back(client::dense(in[i]));
      outs.push_back(client::dense_out(out[i]));
    }
    dr_exchange_options options{};
    options.struct_size = sizeof options;
    options.timeout_ns = 20'000'000'000;  // of a rank whose peer could not be created
    created = dr_exchange_create(context.handle, plan, &transport, &options, tensors.data(), sizeof(dr_tensor),
                                 outs.data(), sizeof(dr_tensor_out), sizes.size(), &exchange);
  }
  ~member() { dr_exchange_destroy(exchange); }
  member(const member&) = delete;
  member& operator=(const member&) = delete;

  void draw(uint32_t rank, uint64_t step) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const floats drawn = gradient(rank, step, i);
      std::copy(drawn.begin(), drawn.end(), in[i].begin());
    }
  }
};

// A thread's work.
void work(mail& all, const dr_plan* plan, uint32_t ranks, uint32_t rank, outcome& result) {
  port own{all, rank};
  member me(3, plan, own.transport(ranks));
  dr_status s = me.created;
  for (uint64_t step = 0; step < steps && s == DR_OK; ++step) {
    me.draw(rank, step);
    dr_call call{};
    call.struct_size = sizeof call;
    call.step = step;
    s = dr_exchange_start(me.exchange, &call);
    while (s == DR_OK) {
      std::unique_lock held(all.lock);
      const uint64_t before = all.count;
      held.unlock();
      s = dr_exchange_advance(me.exchange);
      if (s != DR_PENDING) break;
      s = DR_OK;
      held.lock();
      all.arrived.wait_for(held, std::chrono::milliseconds(20), [&] { return all.count != before; });
    }
    result.outputs.insert(result.outputs.end(), me.out.begin(), me.out.end());
  }
  if (s) result.fault = me.context.error();
}

// The same ranks in one thread.
std::vector<outcome> one_thread(const dr_plan* plan, uint32_t ranks) {
  dr_loopback_options options{};
  options.struct_size = sizeof options;
  options.ranks = ranks;
  dr_loopback* loopback = nullptr;
  REQUIRE(dr_loopback_create(&options, &loopback, nullptr) == DR_OK);
  std::vector<outcome> results(ranks);
  {
    std::vector<std::unique_ptr<member>> members;
    std::vector<dr_exchange*> exchanges;
    for (uint32_t i = 0; i < ranks; ++i) {
      dr_transport t{};
      t.struct_size = sizeof t;
      REQUIRE(dr_loopback_transport(loopback, i, &t) == DR_OK);
      members.push_back(std::make_unique<member>(1, plan, t));
      INFO(members[i]->context.error());
      REQUIRE(members[i]->created == DR_OK);
      exchanges.push_back(members[i]->exchange);
    }
    for (uint64_t step = 0; step < steps; ++step) {
      dr_call call{};
      call.struct_size = sizeof call;
      call.step = step;
      for (uint32_t i = 0; i < ranks; ++i) {
        members[i]->draw(i, step);
        REQUIRE(dr_exchange_start(exchanges[i], &call) == DR_OK);
      }
      REQUIRE(dr_loopback_run(loopback, exchanges.data(), nullptr) == DR_OK);
      for (uint32_t i = 0; i < ranks; ++i)
        results[i].outputs.insert(results[i].outputs.end(), members[i]->out.begin(), members[i]->out.end());
    }
  }
  dr_loopback_destroy(loopback);
  return results;
}

}  // namespace

TEST_CASE("ranks in threads of their own, which share a plan, have the bits of ranks in one thread") {
  const std::string top = "sparsify=topr(ratio=0.05) feedback=residual ";
  for (const auto& [text, ranks] :
       {std::pair<std::string, uint32_t>{top + "index=golomb value=log_quant exchange=gather(parts=3)", 3},
        {top + "index=auto value=auto(error=0.05) exchange=owner(parts=2)", 4},
        {top + "index=bloom(policy=p0,fpr=0.01) value=raw+deflate exchange=ring", 3},
        {"index=all value=uniform_quant(bits=4)+huffman feedback=residual exchange=hierarchy(inner=2)", 4},
        {"sparsify=random(ratio=0.05) feedback=residual index=rice value=qsgd+zstd", 2},
        {"transform=lowrank(rank=2) feedback=residual", 3}}) {
    CAPTURE(text);
    const client::plan plan(text);
    mail all;
    std::vector<outcome> apart(ranks);
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < ranks; ++i)
      threads.emplace_back(work, std::ref(all), plan.handle, ranks, i, std::ref(apart[i]));
    for (std::thread& each : threads) each.join();
    const std::vector<outcome> together = one_thread(plan.handle, ranks);
    for (uint32_t i = 0; i < ranks; ++i) {
      CAPTURE(i);
      CHECK(apart[i].fault == "");
      CHECK(apart[i].outputs == together[i].outputs);
    }
    CHECK(together[0].outputs.size() == steps * sizes.size());
  }
}
