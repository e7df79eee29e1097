// Transforms with every allocation failing, one after the other: making one says MEMORY; a round allocates nothing.
#include <deepreduce/exchange.h>

#include "abi/failing_new.hpp"

#include <utility>

#include "transform/transform_world.hpp"

using namespace transforms;

namespace {

// Memory of a test that uses the contexts' allocator.
struct counted_rank {
  dr_context* context = nullptr;
  dr_transform* handle = nullptr;
  client::plan plan{"transform=lowrank(rank=3) feedback=residual"};
  floats in = normal(1200, 1), out = floats(1200), vector = normal(9, 2);
  dr_tensor tensors[2] = {client::dense(in), client::dense(vector)};
  dr_tensor_out outs[2] = {client::dense_out(out, 40), client::dense_out(vector)};
  client::bytes state = client::bytes(32 + 4 * (1209 + 120));
  float* at = nullptr;
  uint64_t n = 0;
  dr_transform_info info{};

  explicit counted_rank(uint32_t threads) {
    const dr_context_options options = counted(threads);
    REQUIRE(dr_context_create(&options, &context, nullptr) == DR_OK);
    tensors[0].universe = 30;
    tensors[0].width = 40;
    info.struct_size = sizeof info;
  }
  ~counted_rank() {
    dr_transform_destroy(handle);
    dr_context_destroy(context);
  }
  counted_rank(const counted_rank&) = delete;
  counted_rank& operator=(const counted_rank&) = delete;

  dr_status create() {
    dr_transform_destroy(std::exchange(handle, nullptr));
    return dr_transform_create(context, plan.handle, nullptr, tensors, sizeof(dr_tensor), 2, &handle);
  }
  dr_status begin() { return dr_transform_begin(handle, tensors, sizeof(dr_tensor), outs, sizeof(dr_tensor_out), 2); }
};

}  // namespace

TEST_CASE("making a transform reports MEMORY wherever it allocates, and works the next time") {
  for (const uint32_t threads : {1u, 2u})
    for (long k = 0; k < allocations_most; k = next_failure(k)) {
      CAPTURE(k);
      bool met = false;
      const long before = live;
      {
        counted_rank r(threads);
        const dr_status s = run(
            k, [&] { return r.create(); }, &met);
        REQUIRE(s == (met ? DR_E_MEMORY : DR_OK));
        CHECK((r.handle == nullptr) == met);
        if (met) REQUIRE(r.create() == DR_OK);
      }
      REQUIRE(live == before);
      if (!met) break;
    }
}

TEST_CASE("a transform gives memory back with the size that it was asked for, one of no tensors too") {
  for (const size_t n : {size_t{0}, size_t{2}}) {
    long balance = 0;
    dr_context_options options{};
    options.struct_size = sizeof options;
    options.user = &balance;
    options.allocate = [](void* user, size_t size, size_t alignment) {
      *static_cast<long*>(user) += static_cast<long>(size);
      return take(size, alignment);
    };
    options.release = [](void* user, void* memory, size_t size) {
      *static_cast<long*>(user) -= static_cast<long>(size);
      give(memory);
    };
    counted_rank r(1);
    dr_context* context = nullptr;
    REQUIRE(dr_context_create(&options, &context, nullptr) == DR_OK);
    dr_transform* t = nullptr;
    REQUIRE(dr_transform_create(context, r.plan.handle, nullptr, r.tensors, sizeof(dr_tensor), n, &t) == DR_OK);
    CHECK(balance > 0);
    dr_transform_destroy(t);
    dr_context_destroy(context);
    CHECK(balance == 0);
  }
}

TEST_CASE("each call of a transform: the first begin may say MEMORY, nothing else allocates") {
  const struct {
    const char* name;
    bool allocates;
    dr_status (*call)(counted_rank& r);
  } calls[] = {
      {"dr_transform_begin", true, [](counted_rank& r) { return r.begin(); }},
      {"dr_transform_factor", false, [](counted_rank& r) { return dr_transform_factor(r.handle, &r.at, &r.n); }},
      {"dr_transform_cancel", false, [](counted_rank& r) { return dr_transform_cancel(r.handle, DR_TRANSFORM_KEEP); }},
      {"a second round", false,
       [](counted_rank& r) {
         dr_status s = r.begin();
         while (!s && (s = dr_transform_next(r.handle, 1)) == DR_PENDING) s = DR_OK;
         return s;
       }},
      {"dr_transform_residual", false, [](counted_rank& r) { return dr_transform_residual(r.handle, 0, &r.at, &r.n); }},
      {"dr_transform_describe", false,
       [](counted_rank& r) { return dr_transform_describe(r.handle, &r.info, nullptr); }},
      {"dr_transform_save", false,
       [](counted_rank& r) { return dr_transform_save(r.handle, r.state.data(), r.state.size()); }},
      {"dr_transform_load", false,
       [](counted_rank& r) { return dr_transform_load(r.handle, r.state.data(), r.state.size()); }},
      {"dr_transform_reset", false, [](counted_rank& r) { return dr_transform_reset(r.handle); }},
      {"dr_transform_destroy", false,
       [](counted_rank& r) -> dr_status { return dr_transform_destroy(std::exchange(r.handle, nullptr)), DR_OK; }}};
  for (const uint32_t threads : {1u, 2u}) {
    counted_rank r(threads);
    REQUIRE(r.create() == DR_OK);
    for (const auto& c : calls) {
      INFO(std::string(c.name));
      for (long k = 0; k < allocations_most; k = next_failure(k)) {
        bool met = false;
        const dr_status s = run(
            k, [&] { return c.call(r); }, &met);
        INFO(dr_last_error(r.context)->message);
        REQUIRE(s == (met ? DR_E_MEMORY : DR_OK));
        if (!c.allocates) REQUIRE(!met);
        if (!met) break;
        CHECK(dr_transform_describe(r.handle, &r.info, nullptr) == DR_OK);
        CHECK(r.info.busy == 0);
      }
    }
  }
}

TEST_CASE("an exchange of factors: making it reports MEMORY wherever it allocates; the second one allocates nothing") {
  dr_loopback_options net{};
  net.struct_size = sizeof net;
  net.ranks = 1;
  for (long k = 0; k < allocations_most; k = next_failure(k)) {
    CAPTURE(k);
    bool met = false;
    const long before = live;
    {
      counted_rank r(1);
      dr_loopback* loopback = nullptr;
      dr_transport transport{};
      transport.struct_size = sizeof transport;
      REQUIRE(dr_loopback_create(&net, &loopback, nullptr) == DR_OK);
      REQUIRE(dr_loopback_transport(loopback, 0, &transport) == DR_OK);
      dr_exchange* x = nullptr;
      const auto create = [&] {
        return dr_exchange_create(r.context, r.plan.handle, &transport, nullptr, r.tensors, sizeof(dr_tensor), r.outs,
                                  sizeof(dr_tensor_out), 2, &x);
      };
      const dr_status s = run(k, create, &met);
      REQUIRE(s == (met ? DR_E_MEMORY : DR_OK));
      CHECK((x == nullptr) == met);
      if (met) REQUIRE(create() == DR_OK);
      for (int step = 0; step < 2; ++step) {
        bool again = false;
        const dr_status ended = run(
            step ? 0 : -1,
            [&] {
              const dr_status started = dr_exchange_start(x, nullptr);
              return started ? started : dr_exchange_advance(x);
            },
            &again);
        CHECK(ended == DR_OK);
        CHECK(!again);
      }
      dr_exchange_destroy(x);
      dr_loopback_destroy(loopback);
    }
    REQUIRE(live == before);
    if (!met) break;
  }
}

TEST_CASE(
    "coefficients: where an allocation fails, encode and merge say MEMORY; from the second call on nothing allocates") {
  const client::plan plan("transform=dct sparsify=chunks(count=64) feedback=residual index=chunks value=half");
  const floats x = normal(200 * 70, 5);
  for (const uint32_t threads : {1u, 2u})
    for (long k = 0; k < allocations_most; k = next_failure(k)) {
      CAPTURE(k);
      const dr_context_options options = counted(threads);
      dr_context* context = nullptr;
      REQUIRE(dr_context_create(&options, &context, nullptr) == DR_OK);
      dr_tensor t = client::dense(x);
      t.rows = 200;
      std::vector<uint64_t> state(8 * 1024);
      t.state = state.data();
      t.state_size = 16 + 4 * x.size();
      client::bytes frame(1 << 17);
      floats out(x.size(), 3);
      dr_tensor_out to = client::dense_out(out);
      const auto both = [&] {
        dr_result made{.struct_size = sizeof(dr_result)};
        if (const dr_status s =
                dr_encode(context, plan.handle, nullptr, nullptr, &t, sizeof t, 1, frame.data(), frame.size(), &made))
          return s;
        const dr_bytes one{frame.data(), made.size};
        const dr_bytes frames[] = {one, one, one};
        return dr_merge(context, nullptr, frames, nullptr, 3, nullptr, &to, sizeof to, 1);
      };
      bool met = false, again = false;
      const dr_status s = run(k, both, &met);
      INFO(dr_last_error(context)->message);
      REQUIRE(s == (met ? DR_E_MEMORY : DR_OK));
      if (met) CHECK(out == floats(x.size(), 3));
      REQUIRE(both() == DR_OK);
      REQUIRE(run(0, both, &again) == DR_OK);
      CHECK(!again);
      dr_context_destroy(context);
      if (!met) break;
    }
}
