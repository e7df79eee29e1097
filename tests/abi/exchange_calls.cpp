// Exchanges as a client of the C ABI sees them.
#include <deepreduce/exchange.h>

#include <limits>

#include "client.hpp"

namespace {

struct net {
  dr_loopback* handle = nullptr;
  explicit net(uint32_t ranks) {
    dr_loopback_options o{};
    o.struct_size = sizeof o;
    o.ranks = ranks;
    o.latency_ns = 1000;
    dr_error error{sizeof(dr_error)};
    REQUIRE(dr_loopback_create(&o, &handle, &error) == DR_OK);
  }
  ~net() { dr_loopback_destroy(handle); }
  net(const net&) = delete;
  net& operator=(const net&) = delete;
  dr_transport transport(uint32_t rank) const {
    dr_transport t{};
    t.struct_size = sizeof t;
    REQUIRE(dr_loopback_transport(handle, rank, &t) == DR_OK);
    return t;
  }
};

// A rank with one dense tensor.
struct rank {
  client::context context;
  client::floats in, out;
  uint64_t rows = 0;
  dr_exchange* handle = nullptr;
  dr_tensor_out told{};
  ~rank() { dr_exchange_destroy(handle); }

  dr_status create(const net& n, uint32_t number, const std::string& text, uint32_t flags = 0,
                   const dr_place* place = nullptr) {
    const client::plan plan(text);
    const dr_transport t = n.transport(number);
    dr_exchange_options o{};
    o.struct_size = sizeof o;
    o.flags = flags;
    o.place = place;
    dr_tensor tensor = client::dense(in);
    tensor.rows = rows;
    told = client::dense_out(out);
    return dr_exchange_create(context.handle, plan.handle, &t, &o, &tensor, sizeof tensor, &told, sizeof told, 1,
                              &handle);
  }
};

const std::string topr = "sparsify=topr(count=2) feedback=residual index=golomb value=raw";

}  // namespace

TEST_CASE("ranks exchange, and the outputs say how many rows were added") {
  const net n(2);
  rank ranks[2];
  dr_exchange* list[2];
  for (uint32_t i = 0; i < 2; ++i) {
    ranks[i].in = {1.0f + static_cast<float>(i), -3, 0, 8};
    ranks[i].out.resize(4);
    REQUIRE(ranks[i].create(n, i, topr, DR_EXCHANGE_TRACE) == DR_OK);
    REQUIRE(dr_exchange_start(ranks[i].handle, nullptr) == DR_OK);
    list[i] = ranks[i].handle;
  }
  CHECK(dr_exchange_start(ranks[0].handle, nullptr) == DR_E_ARGUMENT);
  CHECK(ranks[0].context.error() == "exchange: already under way");
  CHECK(dr_exchange_advance(ranks[0].handle) == DR_PENDING);
  dr_status statuses[2];
  REQUIRE(dr_loopback_run(n.handle, list, statuses) == DR_OK);
  for (const rank& r : ranks) {
    CHECK(r.out == client::floats{0, -3, 0, 8});
    CHECK(r.told.count == 4);
  }
  float residual[4];
  REQUIRE(dr_exchange_read_residual(ranks[1].handle, DR_RESIDUAL_OWN, 0, residual, 4) == DR_OK);
  CHECK(client::floats(residual, residual + 4) == client::floats{2, 0, 0, 0});

  dr_exchange_info info{};
  info.struct_size = sizeof info;
  REQUIRE(dr_exchange_describe(ranks[0].handle, &info, nullptr) == DR_OK);
  CHECK(info.ranks == 2);
  CHECK(info.calls == 1);
  CHECK(info.failures == 0);
  CHECK(info.kept == 2);
  CHECK(info.messages == 2);
  CHECK(info.sent == info.received);
  CHECK(info.sent <= info.sent_max);

  size_t size = 0;
  CHECK(dr_exchange_trace(ranks[0].handle, nullptr, 0, &size) == DR_E_CAPACITY);
  std::string json(size, ' ');
  REQUIRE(dr_exchange_trace(ranks[0].handle, json.data(), json.size(), &size) == DR_OK);
  CHECK(json.find("\"name\":\"merge\"") != std::string::npos);
  CHECK(json.substr(json.size() - 2) == "]}");
}

TEST_CASE("an exchange at a place has the CPU's result, and counts no rows") {
  const net n(2);
  rank ranks[2];
  dr_exchange* list[2];
  for (uint32_t i = 0; i < 2; ++i) {
    ranks[i].in = {1.0f + static_cast<float>(i), -3, 0, 8};
    ranks[i].out.resize(4);
    dr_place place{sizeof place, DR_PLACE_EMULATED, 1, nullptr, DR_PLACE_ALLOW_HOST, 0};
    CHECK(ranks[i].create(n, i, topr, 0, &place) == DR_E_UNSUPPORTED);
    CHECK(ranks[i].context.error() == "place: an exchange does not fall back to the CPU (DR_PLACE_ALLOW_HOST)");
    place.flags = 2;
    CHECK(ranks[i].create(n, i, topr, 0, &place) == DR_E_UNSUPPORTED);
    place.flags = 0, place.kind = 77;
    CHECK(ranks[i].create(n, i, topr, 0, &place) == DR_E_ARGUMENT);
    place.kind = DR_PLACE_EMULATED;
    REQUIRE(ranks[i].create(n, i, topr, 0, &place) == DR_OK);
    place = {};  // it was read
    REQUIRE(dr_exchange_start(ranks[i].handle, nullptr) == DR_OK);
    list[i] = ranks[i].handle;
  }
  REQUIRE(dr_loopback_run(n.handle, list, nullptr) == DR_OK);
  for (const rank& r : ranks) {
    CHECK(r.out == client::floats{0, -3, 0, 8});
    CHECK(r.told.count == 0);
  }
  float residual[4];
  REQUIRE(dr_exchange_read_residual(ranks[1].handle, DR_RESIDUAL_OWN, 0, residual, 4) == DR_OK);
  CHECK(client::floats(residual, residual + 4) == client::floats{2, 0, 0, 0});
}

TEST_CASE("a start encodes and sends; what goes wrong then is what the first advance returns") {
  const net n(2);
  rank two[2];
  for (uint32_t i = 0; i < 2; ++i) {
    two[i].in = {1, 2, 3, 4};
    two[i].out.resize(4);
    REQUIRE(two[i].create(n, i, "sparsify=topr(ratio=0.5) index=raw value=qsgd") == DR_OK);
  }
  dr_exchange_info info{};
  info.struct_size = sizeof info;
  REQUIRE(dr_exchange_start(two[0].handle, nullptr) == DR_OK);
  REQUIRE(dr_exchange_describe(two[0].handle, &info, nullptr) == DR_OK);
  CHECK(info.messages == 1);
  CHECK(info.kept == 2);
  CHECK(info.waits == 1);
  two[1].in[2] = std::numeric_limits<float>::quiet_NaN();
  REQUIRE(dr_exchange_start(two[1].handle, nullptr) == DR_OK);
  dr_exchange* const list[2] = {two[0].handle, two[1].handle};
  dr_status statuses[2];
  CHECK(dr_loopback_run(n.handle, list, statuses) == DR_E_PEER);
  CHECK(statuses[1] == DR_E_ARGUMENT);

  const net one(1);
  rank alone;
  alone.in = {1, 2, 3, 4};
  alone.out.resize(4);
  REQUIRE(alone.create(one, 0, "index=all value=qsgd") == DR_OK);
  alone.in[0] = std::numeric_limits<float>::infinity();
  float kept[4];
  REQUIRE(dr_exchange_start(alone.handle, nullptr) == DR_OK);
  CHECK(dr_exchange_start(alone.handle, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_exchange_read_residual(alone.handle, DR_RESIDUAL_OWN, 0, kept, 4) == DR_E_ARGUMENT);  // under way
  CHECK(dr_exchange_advance(alone.handle) == DR_E_ARGUMENT);
  CHECK(alone.context.error().find("infinite") != std::string::npos);
  alone.in[0] = 1;
  REQUIRE(dr_exchange_start(alone.handle, nullptr) == DR_OK);
  CHECK(dr_exchange_advance(alone.handle) == DR_OK);
  CHECK(alone.told.count == 4);
  CHECK(dr_exchange_advance(alone.handle) == DR_E_ARGUMENT);
}

TEST_CASE("sparse tensors and sparse outputs go by gather") {
  const net n(2);
  client::context contexts[2];
  const std::vector<uint32_t> indices[2] = {{7, 2}, {2, 900}};
  const client::floats values[2] = {{1, 4}, {2, 8}};
  std::vector<uint32_t> got_indices[2];
  client::floats got[2];
  dr_exchange* list[2];
  dr_tensor_out outs[2];
  const client::plan plan("index=golomb value=raw exchange=gather");
  for (uint32_t i = 0; i < 2; ++i) {
    const dr_tensor tensor = client::sparse(indices[i], values[i], 1000);
    got_indices[i].resize(4), got[i].resize(4);
    outs[i] = {};
    outs[i].struct_size = sizeof outs[i];
    outs[i].dtype = DR_F32;
    outs[i].index_dtype = DR_U32;
    outs[i].universe = 1000;
    outs[i].values = got[i].data();
    outs[i].indices = got_indices[i].data();
    outs[i].capacity = 4;
    const dr_transport t = n.transport(i);
    dr_exchange_options o{};
    o.struct_size = sizeof o;
    o.flags = DR_EXCHANGE_SUM;
    REQUIRE(dr_exchange_create(contexts[i].handle, plan.handle, &t, &o, &tensor, sizeof tensor, &outs[i],
                               sizeof outs[i], 1, &list[i]) == DR_OK);
    REQUIRE(dr_exchange_start(list[i], nullptr) == DR_OK);
  }
  REQUIRE(dr_loopback_run(n.handle, list, nullptr) == DR_OK);
  for (uint32_t i = 0; i < 2; ++i) {
    CHECK(outs[i].count == 3);
    got_indices[i].resize(3), got[i].resize(3);
    CHECK(got_indices[i] == std::vector<uint32_t>{2, 7, 900});
    CHECK(got[i] == client::floats{6, 1, 8});
    dr_exchange_destroy(list[i]);
  }
}

TEST_CASE("sparse tensors go by owner, to dense outputs") {
  const net n(2);
  client::context contexts[2];
  const std::vector<uint32_t> indices[2] = {{7, 2}, {2, 900}};
  const client::floats values[2] = {{1, 4}, {2, 8}};
  const client::plan plan("index=golomb value=raw exchange=owner");
  client::floats got[2];
  dr_exchange* list[2];
  dr_tensor_out outs[2];
  for (uint32_t i = 0; i < 2; ++i) {
    const dr_tensor tensor = client::sparse(indices[i], values[i], 1000);
    got[i].assign(1000, -1);
    outs[i] = client::dense_out(got[i]);
    const dr_transport t = n.transport(i);
    REQUIRE(dr_exchange_create(contexts[i].handle, plan.handle, &t, nullptr, &tensor, sizeof tensor, &outs[i],
                               sizeof outs[i], 1, &list[i]) == DR_OK);
    REQUIRE(dr_exchange_start(list[i], nullptr) == DR_OK);
  }
  REQUIRE(dr_loopback_run(n.handle, list, nullptr) == DR_OK);
  client::floats wanted(1000);
  wanted[2] = 3, wanted[7] = 0.5, wanted[900] = 4;
  for (uint32_t i = 0; i < 2; ++i) {
    CHECK(got[i] == wanted);
    dr_exchange_destroy(list[i]);
  }
}

TEST_CASE("a sparse output without room for any union is refused when the exchange is made") {
  const net n(2);
  client::context c;
  const std::vector<uint32_t> indices = {7, 2};
  std::vector<uint32_t> to(3);
  const client::floats values = {1, 4};
  client::floats got(3);
  const client::plan plan("index=golomb value=raw");
  const dr_tensor tensor = client::sparse(indices, values, 1000);
  dr_tensor_out out = client::dense_out(got);
  out.index_dtype = DR_U32, out.indices = to.data(), out.universe = 1000, out.capacity = 3;
  const dr_transport t = n.transport(0);
  dr_exchange* x = nullptr;
  CHECK(dr_exchange_create(c.handle, plan.handle, &t, nullptr, &tensor, sizeof tensor, &out, sizeof out, 1, &x) ==
        DR_E_CAPACITY);
  CHECK(c.error() == "tensor 0: output capacity 3; the union of the supports may have 4 rows");
  CHECK(dr_last_error(c.handle)->needed == 4);
}

TEST_CASE("a dry exchange moves sizes only") {
  const net n(2);
  rank ranks[2];
  dr_exchange* list[2];
  const client::plan plan("sparsify=topr(ratio=0.1) exchange=owner");
  for (uint32_t i = 0; i < 2; ++i) {
    dr_tensor tensor{};
    tensor.struct_size = sizeof tensor, tensor.dtype = DR_F32, tensor.universe = 1000000;
    ranks[i].told.struct_size = sizeof(dr_tensor_out);
    ranks[i].told.dtype = DR_F32, ranks[i].told.universe = 1000000;
    dr_exchange_options o{};
    o.struct_size = sizeof o;
    o.flags = DR_EXCHANGE_DRY;
    o.frame_size = [](void*, uint64_t elements, uint32_t) { return elements / 2; };
    const dr_transport t = n.transport(i);
    REQUIRE(dr_exchange_create(ranks[i].context.handle, plan.handle, &t, &o, &tensor, sizeof tensor, &ranks[i].told,
                               sizeof(dr_tensor_out), 1, &ranks[i].handle) == DR_OK);
    REQUIRE(dr_exchange_start(ranks[i].handle, nullptr) == DR_OK);
    list[i] = ranks[i].handle;
  }
  REQUIRE(dr_loopback_run(n.handle, list, nullptr) == DR_OK);
  dr_exchange_info info{};
  info.struct_size = sizeof info;
  REQUIRE(dr_exchange_describe(list[0], &info, nullptr) == DR_OK);
  CHECK(info.sent == 2 * 250000 + 256);
  CHECK(info.memory < 10000);
}

TEST_CASE("an exchange under way may be destroyed") {
  const net n(2);
  rank r;
  r.in = r.out = {1, 2, 3};
  REQUIRE(r.create(n, 0, topr) == DR_OK);
  REQUIRE(dr_exchange_start(r.handle, nullptr) == DR_OK);
  REQUIRE(dr_exchange_advance(r.handle) == DR_PENDING);
}

TEST_CASE("an exchange refuses what it cannot do, and reports why") {
  const net n(2);
  const auto said = [&](const std::string& plan, uint32_t flags = 0) {
    rank r;
    r.in = r.out = {1, 2, 3};
    CHECK(r.create(n, 0, plan, flags) != DR_OK);
    return r.context.error();
  };
  CHECK(said(topr, 64) == "options: unknown flags 0x40, or reserved is not 0");
  CHECK(said(topr, DR_EXCHANGE_DRY) == "options: DR_EXCHANGE_DRY requires frame_size");
  CHECK(said("sparsify=changed") == "plan: sparsify=changed makes patches; an exchange merges gradients");
  rank r;
  r.in = r.out = {1, 2, 3};
  REQUIRE(r.create(n, 0, topr) == DR_OK);
  CHECK(dr_exchange_advance(r.handle) == DR_E_ARGUMENT);
  CHECK(dr_exchange_cancel(r.handle) == DR_E_ARGUMENT);
  dr_call call{};
  call.struct_size = sizeof call;
  call.segment_rows = 5;
  CHECK(dr_exchange_start(r.handle, &call) == DR_E_UNSUPPORTED);
  size_t size = 0;
  CHECK(dr_exchange_trace(r.handle, nullptr, 0, &size) == DR_E_ARGUMENT);
  CHECK(dr_exchange_rebind(r.handle, nullptr, 0, nullptr, 0, 0) == DR_E_ARGUMENT);
}

TEST_CASE("an exchange continues at other memory") {
  const net n(1);
  rank r;
  r.in = {1, 2, 3};
  r.out.resize(3);
  REQUIRE(r.create(n, 0, "index=golomb value=raw") == DR_OK);
  const client::floats other = {4, 5, 6};
  client::floats result(3);
  const dr_tensor tensor = client::dense(other);
  dr_tensor_out out = client::dense_out(result);
  REQUIRE(dr_exchange_rebind(r.handle, &tensor, sizeof tensor, &out, sizeof out, 1) == DR_OK);
  REQUIRE(dr_exchange_start(r.handle, nullptr) == DR_OK);
  REQUIRE(dr_exchange_advance(r.handle) == DR_OK);
  CHECK(result == other);
  CHECK(r.out == client::floats{0, 0, 0});
}

TEST_CASE("an exchange does not continue with a matrix of other rows") {
  const net n(1);
  rank r;
  r.in = r.out = client::floats(1000, 1);
  r.rows = 10;
  REQUIRE(r.create(n, 0, "transform=dct sparsify=topr(ratio=0.1) index=golomb value=raw") == DR_OK);
  dr_tensor tensor = client::dense(r.in);
  const auto rebind = [&](uint64_t rows) {
    tensor.rows = rows;
    return dr_exchange_rebind(r.handle, &tensor, sizeof tensor, &r.told, sizeof r.told, 1);
  };
  for (const uint64_t rows : {0, 1, 20}) CHECK(rebind(rows) == DR_E_ARGUMENT);
  CHECK(r.context.error() == "tensor 0: differs from the one that the exchange was created for");
  CHECK(rebind(10) == DR_OK);
}

TEST_CASE("exchanges that a loopback does not run are named in the contexts of all") {
  const net n(2);
  rank ranks[2];
  dr_exchange* swapped[2];
  for (uint32_t i = 0; i < 2; ++i) {
    ranks[i].in = ranks[i].out = {1, 2, 3};
    REQUIRE(ranks[i].create(n, i, "index=golomb value=raw") == DR_OK);
    swapped[1 - i] = ranks[i].handle;
  }
  CHECK(dr_loopback_run(n.handle, swapped, nullptr) == DR_E_ARGUMENT);
  for (const rank& r : ranks) {
    CHECK(dr_last_error(r.context.handle)->code == DR_E_ARGUMENT);
    CHECK(r.context.error() == "exchanges: the one at 0 is not rank 0 of this loopback");
  }
}

TEST_CASE("NULL where something is needed is ARGUMENT") {
  CHECK(dr_exchange_create(nullptr, nullptr, nullptr, nullptr, nullptr, 0, nullptr, 0, 0, nullptr) == DR_E_ARGUMENT);
  client::context c;
  dr_exchange* x = nullptr;
  CHECK(dr_exchange_create(c.handle, nullptr, nullptr, nullptr, nullptr, 0, nullptr, 0, 0, &x) == DR_E_ARGUMENT);
  CHECK(c.error() == "transport is NULL");
  dr_exchange_destroy(nullptr);
  CHECK(dr_exchange_start(nullptr, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_exchange_advance(nullptr) == DR_E_ARGUMENT);
  CHECK(dr_exchange_cancel(nullptr) == DR_E_ARGUMENT);
  CHECK(dr_exchange_describe(nullptr, nullptr, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_exchange_trace(nullptr, nullptr, 0, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_exchange_rebind(nullptr, nullptr, 0, nullptr, 0, 0) == DR_E_ARGUMENT);
  CHECK(dr_exchange_read_residual(nullptr, 0, 0, nullptr, 0) == DR_E_ARGUMENT);
  CHECK(dr_exchange_write_residual(nullptr, 0, 0, nullptr, 0) == DR_E_ARGUMENT);
  CHECK(dr_loopback_create(nullptr, nullptr, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_loopback_transport(nullptr, 0, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_loopback_run(nullptr, nullptr, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_loopback_now(nullptr, 0) == 0);
  dr_loopback_destroy(nullptr);
  CHECK(std::string(dr_step_name(DR_STEP_ENCODE_SUM)) == "encode_sum");
  CHECK(std::string(dr_step_name(0)) == "?");
  CHECK(std::string(dr_step_name(DR_STEP_GATHER)) == "gather");
  CHECK(std::string(dr_step_name(DR_STEP_GATHER + 1)) == "?");
}

TEST_CASE("a plan states its exchange, and refuses another") {
  const auto text = [](const std::string& plan) {
    const client::plan p(plan);
    return std::string(dr_plan_text(p.handle));
  };
  CHECK(text("index=golomb exchange=gather") == "index=golomb value=raw");
  CHECK(text("exchange=owner(parts=4) index=golomb") == "index=golomb value=raw exchange=owner(parts=4)");
  CHECK(text("exchange=hierarchy(parts=1,inner=8)") == "index=raw value=raw exchange=hierarchy(inner=8)");
  const auto said = [](const char* plan) {
    dr_plan* p = nullptr;
    dr_error error{sizeof(dr_error)};
    CHECK(dr_plan_parse(plan, &p, &error) == DR_E_ARGUMENT);
    return std::string(error.message);
  };
  CHECK(said("exchange=tree") == "plan: no exchange is called 'tree'; there are: gather, owner, ring, hierarchy");
  CHECK(said("exchange=owner(parts=65)") == "plan: owner(parts=65): not in 1 … 64");
  CHECK(said("exchange=owner(parts=1.5)") == "plan: owner(parts=1.5): not an integer");
  CHECK(said("exchange=ring(inner=2)") == "plan: ring has no parameter 'inner'; it has: parts");
  CHECK(said("exchange=hierarchy") == "plan: hierarchy needs inner=…, ranks of a host");
}
