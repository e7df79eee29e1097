// Exchanges of ranks whose tensors are at the place: over the loopback, beside ranks on the CPU.
#include <deepreduce/exchange.h>

#include "cuda/gpu_case.hpp"

namespace {

using namespace client;

// A rank of a loopback, at the place or on the CPU.
struct rank {
  context c;
  std::unique_ptr<place::stream> stream;
  std::vector<place::buffer> values, outs;
  std::vector<bytes> host_outs;
  std::vector<dr_tensor> tensors;
  std::vector<dr_tensor_out> told;
  dr_exchange* handle = nullptr;

  ~rank() { dr_exchange_destroy(handle); }

  void create(dr_loopback* net, uint32_t number, const plan& method, gradients& g, bool at_place, uint64_t timeout_ns) {
    dr_transport t{};
    t.struct_size = sizeof t;
    REQUIRE(dr_loopback_transport(net, number, &t) == DR_OK);
    dr_exchange_options o{};
    o.struct_size = sizeof o;
    o.timeout_ns = timeout_ns;
    dr_place at{};
    if (at_place) {
      stream = std::make_unique<place::stream>(static_cast<int32_t>(number + 1));
      at = stream->at();
      o.place = &at;
    }
    tensors = tensors_of(g);
    host_outs.resize(g.size());
    for (size_t i = 0; i < g.size(); ++i) {
      const size_t size = out_size(g[i], false);
      host_outs[i].assign(size, 0x5a);
      void* to = host_outs[i].data();
      if (at_place) {
        values.push_back(buffer_with(g[i].values.data(), g[i].values.size()));
        outs.push_back(buffer_with(host_outs[i].data(), size));
        tensors[i].values = values.back().at();
        to = outs.back().at();
      }
      told.push_back(out_for(g[i], false, to));
    }
    const dr_status s = dr_exchange_create(c.handle, method.handle, &t, &o, tensors.data(), sizeof(dr_tensor),
                                           told.data(), sizeof(dr_tensor_out), told.size(), &handle);
    INFO(c.error());
    REQUIRE(s == DR_OK);
  }
  void put(const gradients& g) {
    for (size_t i = 0; i < values.size(); ++i) values[i].put_bytes(g[i].values.data(), g[i].values.size());
  }
  bytes out(size_t i) const { return stream ? outs[i].bytes() : host_outs[i]; }
  floats residual(size_t i, uint32_t which) const {
    floats all(tensors[i].universe);
    REQUIRE(dr_exchange_read_residual(handle, which, i, all.data(), all.size()) == DR_OK);
    return all;
  }
  void check_guards() const {
    for (const place::buffer& b : values) CHECK(b.intact());
    for (const place::buffer& b : outs) CHECK(b.intact());
  }
};

gradients gradients_of(dr_dtype dtype, const std::vector<uint64_t>& sizes, uint64_t seed) {
  gradients all;
  for (size_t i = 0; i < sizes.size(); ++i) all.push_back(make(dtype, sizes[i], seed + i));
  return all;
}

// Ranks, of which those in `at_place` (a bit each) are there.
struct ranks {
  plan method;
  std::vector<uint64_t> sizes;
  dr_dtype dtype;
  dr_loopback* net = nullptr;
  std::vector<gradients> in;
  std::vector<std::unique_ptr<rank>> all;

  ranks(const std::string& text, uint32_t n, std::vector<uint64_t> d, dr_dtype type, uint32_t at_place,
        uint32_t present = UINT32_MAX, uint64_t timeout_ns = 0)
      : method(text), sizes(std::move(d)), dtype(type) {
    dr_loopback_options o{};
    o.struct_size = sizeof o;
    o.ranks = n;
    o.latency_ns = 1000;
    dr_error error{sizeof(dr_error)};
    REQUIRE(dr_loopback_create(&o, &net, &error) == DR_OK);
    in.resize(n);
    for (uint32_t i = 0; i < n; ++i) {
      in[i] = gradients_of(dtype, sizes, 1000 * i);
      if (i < present)
        all.emplace_back(std::make_unique<rank>())->create(net, i, method, in[i], at_place >> i & 1, timeout_ns);
    }
  }
  ~ranks() {
    all.clear();
    dr_loopback_destroy(net);
  }
  ranks(const ranks&) = delete;
  ranks& operator=(const ranks&) = delete;

  std::vector<dr_status> run(uint64_t step) {
    std::vector<dr_exchange*> list(in.size());
    for (uint32_t i = 0; i < all.size(); ++i) {
      const gradients drawn = gradients_of(dtype, sizes, 1000 * i + 100 * step);
      for (size_t t = 0; t < drawn.size(); ++t)  // (where they are)
        std::copy(drawn[t].values.begin(), drawn[t].values.end(), in[i][t].values.begin());
      all[i]->put(in[i]);
      dr_call call{};
      call.struct_size = sizeof call;
      call.step = step;
      REQUIRE(dr_exchange_start(all[i]->handle, &call) == DR_OK);
      list[i] = all[i]->handle;
    }
    std::vector<dr_status> statuses(in.size());
    (void)dr_loopback_run(net, list.data(), statuses.data());
    return statuses;
  }
};

void check_equal(ranks& cpu, ranks& there) {
  for (size_t i = 0; i < cpu.all.size(); ++i)
    for (size_t t = 0; t < cpu.sizes.size(); ++t) {
      INFO("rank " << i << ", tensor " << t);
      REQUIRE(cpu.all[i]->out(t) == there.all[i]->out(t));
      for (const uint32_t which : {DR_RESIDUAL_OWN, DR_RESIDUAL_SUM}) {
        const floats a = cpu.all[i]->residual(t, which), b = there.all[i]->residual(t, which);
        REQUIRE((a.empty() || !std::memcmp(a.data(), b.data(), 4 * a.size())));
      }
      there.all[i]->check_guards();
    }
}

std::vector<uint64_t> some_sizes() {
  return only_small() ? std::vector<uint64_t>{5000, 0, 3, 9001} : std::vector<uint64_t>{500000, 0, 3, 1000001};
}

TEST_CASE("an exchange at the place has the CPU's bits, whoever is beside it") {
  for (const std::string schedule : {"gather", "gather(parts=3)", "owner", "owner(parts=2)", "ring"})
    for (const dr_dtype dtype : {DR_F32, DR_F16, DR_BF16})
      for (const uint32_t at_place : {0b111u, 0b010u}) {
        const std::string text =
            "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=qsgd exchange=" + schedule;
        INFO(text << ", type " << dtype);
        ranks cpu(text, 3, some_sizes(), dtype, 0), there(text, 3, some_sizes(), dtype, at_place);
        for (uint64_t step = 0; step < 3; ++step) {
          for (const dr_status s : cpu.run(step)) REQUIRE(s == DR_OK);
          for (const dr_status s : there.run(step)) REQUIRE(s == DR_OK);
          check_equal(cpu, there);
        }
      }
  require_no_trouble();
}

TEST_CASE("an exchange at the place that fails gives back what it took") {
  for (const std::string schedule : {"gather", "owner(parts=2)"}) {
    const std::string text = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=raw exchange=" + schedule;
    INFO(text);
    constexpr uint64_t timeout_ns = 50'000'000;
    ranks cpu(text, 3, some_sizes(), DR_F32, 0, 2, timeout_ns),
        there(text, 3, some_sizes(), DR_F32, 0b11, 2, timeout_ns);
    for (ranks* const r : {&cpu, &there}) {
      const std::vector<dr_status> statuses = r->run(1);
      for (size_t i = 0; i < r->all.size(); ++i) {
        CHECK(statuses[i] == DR_E_TIMEOUT);
        for (size_t t = 0; t < r->sizes.size(); ++t) CHECK(r->all[i]->out(t) == bytes(4 * r->sizes[t], uint8_t{0x5a}));
      }
    }
    check_equal(cpu, there);
    CHECK(cpu.all[0]->c.error() == there.all[0]->c.error());
  }
  require_no_trouble();
}

}  // namespace
