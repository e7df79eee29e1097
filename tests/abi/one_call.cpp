// A context serves one call at a time: another one is refused, and the one under way notices nothing.
#include <atomic>
#include <functional>
#include <thread>

#include "abi/prepared.hpp"
#include "client.hpp"
#include "deepreduce/exchange.h"
#include "deepreduce/transform.h"

namespace {

using client::bytes;
using client::floats;

constexpr const char* text = "sparsify=topr(ratio=0.05) index=golomb value=qsgd";

// Everything that the calls on one context take.
struct fixture {
  client::context c;
  client::plan p{text}, lowrank{"transform=lowrank(rank=1)"};
  floats g = client::laplace(20000, 1), x = floats(20000);
  dr_tensor t = client::dense(g);
  dr_tensor_out out = client::dense_out(x);
  bytes frame = client::encode(c, text, {t});
  abi::batch prepared;
  dr_binding* bound = nullptr;
  dr_transform* transform = nullptr;
  size_t room = 0;
  std::unique_ptr<abi::aligned_bytes> workspace;

  fixture() {
    REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, &t, sizeof t, 1, 0, &prepared.handle) == DR_OK);
    REQUIRE(dr_binding_create(c.handle, prepared.handle, nullptr, &t, sizeof t, &out, sizeof out, 1, 1, &bound) ==
            DR_OK);
    REQUIRE(dr_transform_create(c.handle, lowrank.handle, nullptr, &t, sizeof t, 1, &transform) == DR_OK);
    REQUIRE(dr_batch_merge_workspace(prepared.handle, 1, &room, nullptr) == DR_OK);
    room = std::max<size_t>(room, abi::describe(prepared).workspace);
    workspace = std::make_unique<abi::aligned_bytes>(room);
  }
  ~fixture() {
    dr_transform_destroy(transform);
    dr_binding_destroy(bound);
  }

  // Each call, with memory of its own to write to.
  std::vector<std::pair<const char*, std::function<dr_status(bytes&, floats&, dr_result&)>>> calls() {
    const auto o = [](floats& y) { return client::dense_out(y); };
    const dr_bytes list{frame.data(), frame.size()};
    return {
        {"dr_bound",
         [this](bytes&, floats&, dr_result&) {
           size_t n = 0;
           return dr_bound(c.handle, p.handle, nullptr, nullptr, &t, sizeof t, 1, &n);
         }},
        {"dr_encode",
         [this](bytes& f, floats&, dr_result& r) {
           return dr_encode(c.handle, p.handle, nullptr, nullptr, &t, sizeof t, 1, f.data(), f.size(), &r);
         }},
        {"dr_batch_create",
         [this](bytes&, floats&, dr_result&) {
           abi::batch b;
           return dr_batch_create(c.handle, p.handle, nullptr, &t, sizeof t, 1, 0, &b.handle);
         }},
        {"dr_batch_encode",
         [this](bytes& f, floats&, dr_result& r) {
           return dr_batch_encode(c.handle, prepared.handle, nullptr, nullptr, &t, sizeof t, 1, workspace->data, room,
                                  f.data(), f.size(), &r);
         }},
        {"dr_decode",
         [this, o](bytes&, floats& y, dr_result&) {
           dr_tensor_out to = o(y);
           return dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, &to, sizeof to, 1);
         }},
        {"dr_merge",
         [this, o, list](bytes&, floats& y, dr_result&) {
           dr_tensor_out to = o(y);
           return dr_merge(c.handle, nullptr, &list, nullptr, 1, nullptr, &to, sizeof to, 1);
         }},
        {"dr_batch_decode",
         [this, o](bytes&, floats& y, dr_result& r) {
           dr_tensor_out to = o(y);
           return dr_batch_decode(c.handle, prepared.handle, nullptr, frame.data(), frame.size(), nullptr, &to,
                                  sizeof to, 1, workspace->data, room, &r);
         }},
        {"dr_binding_encode",
         [this](bytes& f, floats&, dr_result& r) { return dr_binding_encode(bound, nullptr, f.data(), f.size(), &r); }},
        {"dr_binding_decode",
         [this](bytes&, floats&, dr_result& r) {
           return dr_binding_decode(bound, frame.data(), frame.size(), nullptr, &r);
         }},
        {"dr_binding_rebind",
         [this](bytes&, floats&, dr_result&) { return dr_binding_rebind(bound, &t, sizeof t, &out, sizeof out, 1); }},
        {"dr_transform_reset", [this](bytes&, floats&, dr_result&) { return dr_transform_reset(transform); }},
        {"dr_context_trim", [this](bytes&, floats&, dr_result&) { return dr_context_trim(c.handle); }}};
  }
};

dr_result no_result() {
  dr_result r{};
  r.struct_size = sizeof r;
  return r;
}

}  // namespace

TEST_CASE("every call on a context in use is ARGUMENT, in words, and writes nothing; the call under way continues") {
  struct world {
    fixture f;
    std::vector<std::string> wrong;
    bool asked = false;
    void ask() {
      for (auto& [name, call] : f.calls()) {
        bytes frame(1 << 16, 0x55);
        floats y(f.g.size(), 3);
        dr_result result = no_result();
        if (call(frame, y, result) != DR_E_ARGUMENT) wrong.push_back(std::string(name) + " was not refused");
        const dr_error& e = *dr_last_error(f.c.handle);
        if (e.code != DR_E_ARGUMENT || !std::strstr(e.message, "in use by another call"))
          wrong.push_back(std::string(name) + ": " + e.message);
        if (result.status && result.status != DR_E_ARGUMENT) wrong.push_back(std::string(name) + ": its result");
        if (frame != bytes(1 << 16, 0x55) || y != floats(f.g.size(), 3)) wrong.push_back(std::string(name) + " wrote");
      }
    }
  } w;
  dr_call call{};
  call.struct_size = sizeof call;
  call.trace_user = &w;
  call.trace = [](void* user, const dr_trace*) {
    auto& w = *static_cast<world*>(user);
    if (w.asked) return;
    w.asked = true;
    w.ask();  // a callback of the call itself
    std::thread([&] { w.ask(); }).join();
  };
  // A failure from before: what the others meet does not take its place.
  dr_tensor bad = w.f.t;
  bad.dtype = 77;
  size_t bound = 0;
  REQUIRE(dr_bound(w.f.c.handle, w.f.p.handle, nullptr, nullptr, &bad, sizeof bad, 1, &bound) == DR_E_ARGUMENT);
  const std::string before = w.f.c.error();
  bytes frame(1 << 16);
  dr_result result = no_result();
  REQUIRE(dr_encode(w.f.c.handle, w.f.p.handle, &call, nullptr, &w.f.t, sizeof w.f.t, 1, frame.data(), frame.size(),
                    &result) == DR_OK);
  CHECK(w.asked);
  for (const std::string& each : w.wrong) FAIL_CHECK(each);
  frame.resize(result.size);
  CHECK(frame == w.f.frame);
  std::string other;
  std::thread([&] { other = w.f.c.error(); }).join();  // (a thread that was never refused)
  CHECK(other == before);
  // This thread was refused last, in its callback; then it fails.
  CHECK(w.f.c.error().find("in use") != std::string::npos);
  CHECK(dr_bound(w.f.c.handle, w.f.p.handle, nullptr, nullptr, &bad, sizeof bad, 1, &bound) == DR_E_ARGUMENT);
  CHECK(w.f.c.error() == before);
  // All of them have their turn now.
  for (auto& [name, each] : w.f.calls()) {
    INFO(std::string(name));
    bytes room(1 << 16);
    floats y(w.f.g.size());
    CHECK(each(room, y, result) == DR_OK);
  }
}

TEST_CASE("two threads on one context: each frame is right or refused, never wrong") {
  fixture f;
  std::atomic<uint64_t> refused = 0, wrong = 0, made = 0;
  std::atomic<bool> ends = false;
  const auto work = [&](bool decodes) {
    floats expected(f.g.size()), y(f.g.size());
    for (uint64_t round = 0; !ends; ++round) {
      bytes frame(1 << 16);
      dr_result result = no_result();
      dr_status s;
      bool right;
      if (decodes && round % 2) {
        dr_tensor_out to = client::dense_out(y);
        s = dr_decode(f.c.handle, nullptr, f.frame.data(), f.frame.size(), nullptr, &to, sizeof to, 1);
        right = to.count > 0;
      } else {
        s = dr_encode(f.c.handle, f.p.handle, nullptr, nullptr, &f.t, sizeof f.t, 1, frame.data(), frame.size(),
                      &result);
        right = result.status == s && result.size == f.frame.size() &&
                std::equal(f.frame.begin(), f.frame.end(), frame.begin());
      }
      if (s == DR_OK)
        ++(right ? made : wrong);
      else if (s == DR_E_ARGUMENT && std::strstr(dr_last_error(f.c.handle)->message, "in use by another call"))
        ++refused;
      else
        ++wrong;
      // Enough, and both have met. (20,000,000 rounds are minutes.)
      if ((made > 4000 && refused > 20) || made + refused > 20000000) ends = true;
    }
  };
  std::thread a(work, false), b(work, true);
  a.join();
  b.join();
  CHECK(wrong == 0);
  CHECK(made > 4000);
  CHECK(refused > 20);
}

TEST_CASE("exchanges of the loopback wait for no call: a context in use is refused there, too") {
  fixture f;
  dr_loopback_options options{};
  options.struct_size = sizeof options;
  options.ranks = 1;
  dr_loopback* loopback = nullptr;
  REQUIRE(dr_loopback_create(&options, &loopback, nullptr) == DR_OK);
  dr_transport transport{};
  transport.struct_size = sizeof transport;
  REQUIRE(dr_loopback_transport(loopback, 0, &transport) == DR_OK);
  dr_exchange* x = nullptr;
  const dr_status created =
      dr_exchange_create(f.c.handle, f.p.handle, &transport, nullptr, &f.t, sizeof f.t, &f.out, sizeof f.out, 1, &x);
  INFO(f.c.error());
  REQUIRE(created == DR_OK);
  struct both {
    dr_loopback* loopback;
    dr_exchange* x;
    dr_status said = DR_OK;
  } b{loopback, x};
  dr_call call{};
  call.struct_size = sizeof call;
  call.trace_user = &b;
  call.trace = [](void* user, const dr_trace*) {
    auto& b = *static_cast<both*>(user);
    std::thread([&] { b.said = dr_loopback_run(b.loopback, &b.x, nullptr); }).join();
  };
  bytes frame(1 << 16);
  REQUIRE(dr_encode(f.c.handle, f.p.handle, &call, nullptr, &f.t, sizeof f.t, 1, frame.data(), frame.size(), nullptr) ==
          DR_OK);
  CHECK(b.said == DR_E_ARGUMENT);
  REQUIRE(dr_exchange_start(x, nullptr) == DR_OK);
  CHECK(dr_loopback_run(loopback, &x, nullptr) == DR_OK);
  dr_exchange_destroy(x);
  dr_loopback_destroy(loopback);
}
