// What an encode that fails says in numbers: which tensor, which stream, where, which value; and all tensors at fault, if asked.
#include <algorithm>
#include <functional>

#include "abi/client_struct.hpp"
#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

constexpr uint64_t universe = 200;

struct scene {
  client::context c;
  client::plan plain{"index=golomb value=qsgd"},
      with{"sparsify=topr(ratio=0.1) feedback=residual index=golomb value=qsgd"};
  floats g = client::laplace(universe, 1);
  std::vector<uint64_t> memory = std::vector<uint64_t>(2 + universe / 2), second = memory;
  bytes frame = bytes(1 << 14);

  dr_tensor dense() { return client::dense(g); }
  dr_tensor fed(std::vector<uint64_t>& state) {
    dr_tensor t = dense();
    t.plan = with.handle;
    t.state = state.data();
    t.state_size = 8 * state.size();
    return t;
  }
  dr_status encode(const std::vector<dr_tensor>& tensors, dr_result& result, dr_call call = {}) {
    call.struct_size = sizeof call;
    result = {};
    result.struct_size = sizeof result;
    return dr_encode(c.handle, plain.handle, &call, nullptr, tensors.data(), sizeof(dr_tensor), tensors.size(),
                     frame.data(), frame.size(), &result);
  }
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("whatever fails, result and error name the tensor, the stream, the place and the value alike") {
  scene s;
  const dr_tensor good = s.dense();
  floats nan(s.g), infinite(s.g);
  nan[41] = NAN;
  infinite[7] = -INFINITY;
  uint32_t nan_bits, infinite_bits;
  std::memcpy(&nan_bits, &nan[41], 4);
  std::memcpy(&infinite_bits, &infinite[7], 4);
  const std::vector<uint64_t> outside = {1, 2, 500, 3}, twice = {9, 4, 9};
  const std::vector<int32_t> negative = {1, -6};
  const auto changed = [&](auto change) {
    dr_tensor t = s.dense();
    change(t);
    return t;
  };
  const auto fed = [&](auto change) {
    dr_tensor t = s.fed(s.memory);
    change(t);
    return t;
  };
  std::vector<uint64_t> foreign = s.memory, other = s.memory;
  foreign[0] = 0x1234;
  other[0] = 0x52537244;
  other[1] = 77;
  const auto at = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  const auto* const odd = reinterpret_cast<const float*>(reinterpret_cast<const char*>(s.g.data()) + 2);
  void* const odd_state = reinterpret_cast<char*>(s.memory.data()) + 4;
  const struct {
    const char* name;
    dr_tensor bad;
    uint32_t stream;
    uint64_t where, what;
  } cases[] = {
      {"NaN", client::dense(nan), DR_STREAM_VALUE, 41, nan_bits},
      {"infinity", client::dense(infinite), DR_STREAM_VALUE, 7, infinite_bits},
      {"index outside", client::sparse(outside, s.g, universe), DR_STREAM_INDEX, 2, 500},
      {"index twice", client::sparse(twice, s.g, universe), DR_STREAM_INDEX, 2, 9},
      {"index below 0", client::sparse(negative, s.g, universe), DR_STREAM_INDEX, 1, static_cast<uint64_t>(-6)},
      {"dtype", changed([](dr_tensor& t) { t.dtype = 99; }), 0, 0, 99},
      {"index type", changed([](dr_tensor& t) { t.index_dtype = 98; }), 0, 0, 98},
      {"flags", changed([](dr_tensor& t) { t.flags = 64; }), 0, 0, 64},
      {"rows", changed([](dr_tensor& t) { t.universe = UINT64_MAX; }), 0, 0, UINT64_MAX},
      {"values", changed([](dr_tensor& t) { t.values = nullptr; }), DR_STREAM_VALUE, 0, 0},
      {"alignment", changed([&](dr_tensor& t) { t.values = odd; }), DR_STREAM_VALUE, 0, at(odd)},
      {"state too short", fed([](dr_tensor& t) { t.state_size = 100; }), 0, 0, 100},
      {"no state", fed([](dr_tensor& t) { t.state = nullptr; }), 0, 0, 0},
      {"state misaligned", fed([&](dr_tensor& t) { t.state = odd_state; }), 0, 0, at(odd_state)},
      {"not a state", fed([&](dr_tensor& t) { t.state = foreign.data(); }), 0, 0, 0x1234},
      {"state of another", fed([&](dr_tensor& t) { t.state = other.data(); }), 0, 0, 77},
      {"width", fed([](dr_tensor& t) { t.universe = universe / 4, t.width = 4; }), 0, 0, 4},
  };
  const auto before = s.memory;
  for (const auto& each : cases) {
    INFO(std::string(each.name));
    dr_result result;
    const dr_status wanted = each.bad.flags ? DR_E_UNSUPPORTED : DR_E_ARGUMENT;
    CHECK(s.encode({good, good, each.bad, good}, result) == wanted);
    INFO(s.c.error());
    const dr_error& e = *dr_last_error(s.c.handle);
    CHECK(e.code == wanted);
    CHECK(result.status == wanted);
    CHECK(result.tensor == 2);
    CHECK(result.stream == each.stream);
    CHECK(result.where == each.where);
    CHECK(result.what == each.what);
    CHECK(result.frame == DR_NO_FRAME);
    CHECK(result.size == 0);
    CHECK(result.needed == 0);
    CHECK(e.tensor == result.tensor);
    CHECK(e.stream == result.stream);
    CHECK(e.where == result.where);
    CHECK(e.what == result.what);
    CHECK(has(e.message, "tensor 2"));
  }
  CHECK(s.memory == before);
  dr_result result;
  CHECK(s.encode({good, s.fed(s.memory)}, result) == DR_OK);
  CHECK(result.tensor == DR_NO_TENSOR);
  CHECK(result.frame == DR_NO_FRAME);
  CHECK(result.kept == universe + universe / 10);
}

TEST_CASE("faults: all tensors that the failing stage found at fault say so, and only they") {
  scene s;
  floats nan(s.g), infinite(s.g);
  nan[41] = NAN;
  infinite[7] = INFINITY;
  const std::vector<uint64_t> outside = {1, 500}, twice = {9, 9};
  const std::vector<dr_tensor> values = {s.dense(), client::dense(nan), s.dense(), client::dense(infinite), s.dense()};
  const std::vector<dr_tensor> indices = {client::sparse(outside, s.g, universe), client::dense(nan), s.dense(),
                                          client::sparse(twice, s.g, universe), s.dense()};
  dr_fault fault{};
  fault.code = 77;  // whatever it held
  fault.where = 5;
  for (const size_t size : {sizeof(dr_fault), sizeof(dr_fault) + 24}) {
    abi::structs<dr_fault> faults(std::vector<dr_fault>(5, fault), size, 64);
    dr_call call{};
    call.faults = faults.data();
    call.fault_stride = faults.stride();
    dr_result result;
    CHECK(s.encode(values, result, call) == DR_E_ARGUMENT);
    CHECK(result.tensor == 1);
    CHECK(result.where == 41);
    for (size_t i = 0; i < 5; ++i) {
      CAPTURE(i);
      const dr_fault f = faults.read(i);
      const bool bad = i == 1 || i == 3;
      CHECK(f.code == (bad ? DR_E_ARGUMENT : DR_OK));
      CHECK(f.stream == (bad ? DR_STREAM_VALUE : DR_STREAM_NONE));
      CHECK(f.where == (i == 1 ? 41 : i == 3 ? 7 : 0));
      if (bad) CHECK(has(f.message, i == 1 ? "NaN" : "infinite"));
      if (!bad) CHECK(f.message == nullptr);
    }
    CHECK(faults.intact());
    // Indices are looked at before values, so the NaN is not found this time.
    CHECK(s.encode(indices, result, call) == DR_E_ARGUMENT);
    CHECK(result.tensor == 0);
    for (size_t i = 0; i < 5; ++i) {
      const dr_fault f = faults.read(i);
      CHECK(f.code == (i == 0 || i == 3 ? DR_E_ARGUMENT : DR_OK));
      CHECK(f.where == (i == 0 || i == 3 ? 1 : 0));
      CHECK(f.what == (i == 0 ? 500 : i == 3 ? 9 : 0));
    }
    CHECK(faults.intact());
    // One that is well leaves them all OK.
    CHECK(s.encode({s.dense(), s.dense(), s.dense(), s.dense(), s.dense()}, result, call) == DR_OK);
    for (size_t i = 0; i < 5; ++i) CHECK(faults.read(i).code == DR_OK);
    CHECK(faults.intact());
  }
}

TEST_CASE("finite gradients whose sum with the residual is infinite are not called infinite themselves") {
  scene s;
  const floats large(universe, 3e38f);
  floats infinite(s.g);
  infinite[7] = INFINITY;
  dr_tensor fed = s.fed(s.memory);
  fed.values = large.data();
  dr_result result;
  REQUIRE(s.encode({fed}, result) == DR_OK);
  dr_fault fault{};
  fault.struct_size = sizeof fault;
  dr_call call{};
  call.faults = &fault;
  call.fault_stride = sizeof fault;
  CHECK(s.encode({fed}, result, call) == DR_E_ARGUMENT);
  INFO(s.c.error());
  CHECK(has(s.c.error(), "gradient + residual is infinite"));
  CHECK(has(s.c.error(), "value inf)"));
  CHECK(has(fault.message, "gradient + residual is infinite"));
  CHECK(s.encode({client::dense(infinite)}, result) == DR_E_ARGUMENT);
  CHECK(has(s.c.error(), "the gradient is infinite"));
}

TEST_CASE("faults: of segments the first, of a bucket each tensor, at its own element") {
  scene s;
  floats one(s.g), two(s.g);
  one[150] = NAN;
  one[60] = NAN;
  two[3] = INFINITY;
  client::plan flat("index=golomb value=qsgd bucket=flat");
  std::vector<dr_tensor> tensors = {s.dense(), client::dense(one), s.dense(), client::dense(two)};
  for (const bool joined : {false, true})
    for (const uint64_t rows : {uint64_t{0}, uint64_t{50}, uint64_t{170}}) {
      CAPTURE(joined);
      CAPTURE(rows);
      for (dr_tensor& t : tensors) t.plan = joined ? flat.handle : nullptr;
      std::vector<dr_fault> faults(4);
      for (dr_fault& f : faults) f.struct_size = sizeof f;
      dr_call call{};
      call.segment_rows = rows;
      call.faults = faults.data();
      call.fault_stride = sizeof(dr_fault);
      dr_result result;
      CHECK(s.encode(tensors, result, call) == DR_E_ARGUMENT);
      INFO(s.c.error());
      CHECK(result.tensor == 1);
      CHECK(result.where == 60);
      CHECK(has(s.c.error(), "tensor 1"));
      CHECK(faults[0].code == DR_OK);
      CHECK(faults[1].code == DR_E_ARGUMENT);
      CHECK(faults[1].where == 60);
      CHECK(faults[2].code == DR_OK);
      CHECK(faults[3].code == DR_E_ARGUMENT);
      CHECK(faults[3].where == 3);
    }
}

TEST_CASE("faults whose size is not set, or above the stride, are refused") {
  scene s;
  std::vector<dr_fault> faults(2);
  faults[0].struct_size = sizeof(dr_fault);
  dr_call call{};
  call.faults = faults.data();
  call.fault_stride = sizeof(dr_fault);
  dr_result result;
  CHECK(s.encode({s.dense(), s.dense()}, result, call) == DR_E_ARGUMENT);
  CHECK(has(s.c.error(), "fault 1"));
  CHECK(result.tensor == 1);
  faults[1].struct_size = sizeof(dr_fault) + 8;
  CHECK(s.encode({s.dense(), s.dense()}, result, call) == DR_E_ARGUMENT);
  faults[1].struct_size = sizeof(dr_fault);
  CHECK(s.encode({s.dense(), s.dense()}, result, call) == DR_OK);
  call.fault_stride = 0;
  CHECK(s.encode({s.dense(), s.dense()}, result, call) == DR_E_ARGUMENT);
  CHECK(has(s.c.error(), "fault"));
}

TEST_CASE("two tensors of a call have no state in common, nor a part of one; one without feedback has none") {
  scene s;
  const floats& g = s.g;
  constexpr size_t n = 3000, words = 2 + universe / 2;
  std::vector<uint64_t> memory(n * words);
  std::vector<dr_tensor> tensors(n, client::dense(g));
  client::rng r{3};
  std::vector<size_t> places(n);
  for (size_t i = 0; i < n; ++i) places[i] = i;
  for (const bool shuffled : {false, true}) {
    if (shuffled)
      for (size_t i = n; i > 1; --i) std::swap(places[i - 1], places[r.next() % i]);
    for (size_t i = 0; i < n; ++i) {
      tensors[i].plan = s.with.handle;
      tensors[i].state = memory.data() + places[i] * words;
      tensors[i].state_size = 8 * words;
    }
    s.frame.resize(1 << 21);
    dr_result result;
    REQUIRE(s.encode(tensors, result) == DR_OK);  // side by side is fine
    const auto before = memory;
    const auto refused = [&](size_t i, void* state, size_t with) {
      std::vector<dr_tensor> bad = tensors;
      bad[i].state = state;
      CHECK(s.encode(bad, result) == DR_E_ARGUMENT);
      CHECK(result.tensor == std::max(i, with));
      CHECK(result.what == std::min(i, with));
      CHECK(has(s.c.error(), "state"));
      CHECK(memory == before);
    };
    refused(5, tensors[4].state, 4);
    refused(0, tensors[n - 1].state, n - 1);
    refused(n - 1, tensors[0].state, 0);
    // A part: at the end of one, or the middle.
    const auto neighbour = [&](size_t place) {
      return static_cast<size_t>(std::find(places.begin(), places.end(), place) - places.begin());
    };
    const size_t last = neighbour(n - 1), before_last = neighbour(n - 2);
    std::vector<dr_tensor> bad = tensors;
    bad[last].state = static_cast<uint64_t*>(tensors[last].state) - 1;
    std::vector<uint64_t> copy(memory);  // what is there is no state, so that only a fresh one is looked at
    std::memset(bad[last].state, 0, 16);
    CHECK(s.encode(bad, result) == DR_E_ARGUMENT);
    CHECK(result.tensor == std::max(last, before_last));
    memory = copy;
  }
  // A state beside a plan without feedback is a mistake; one of no bytes is none.
  dr_tensor t = s.dense();
  t.state = s.memory.data();
  t.state_size = 8 * s.memory.size();
  dr_result result;
  CHECK(s.encode({s.dense(), t}, result) == DR_E_ARGUMENT);
  CHECK(result.tensor == 1);
  CHECK(has(s.c.error(), "no feedback"));
  t.state_size = 0;
  CHECK(s.encode({s.dense(), t}, result) == DR_OK);
}

TEST_CASE("a prepared batch refuses plans and segments that it was not prepared for") {
  scene s;
  client::plan same("value=qsgd index=golomb"), another("index=rice value=qsgd");
  std::vector<dr_tensor> tensors = {s.dense(), s.fed(s.memory)};
  dr_batch* batch = nullptr;
  REQUIRE(dr_batch_create(s.c.handle, s.plain.handle, nullptr, tensors.data(), sizeof(dr_tensor), 2, 90, &batch) ==
          DR_OK);
  dr_batch_info info{};
  info.struct_size = sizeof info;
  REQUIRE(dr_batch_describe(batch, &info, nullptr) == DR_OK);
  std::vector<uint64_t> room(info.workspace / 8 + 8);
  void* const workspace = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(room.data()) + 63) / 64 * 64);
  dr_result result{};
  result.struct_size = sizeof result;
  const auto encode = [&](const dr_plan* first, const dr_plan* second, uint64_t segment_rows) {
    dr_call call{};
    call.struct_size = sizeof call;
    call.segment_rows = segment_rows;
    tensors[0].plan = first;
    tensors[1].plan = second;
    return dr_batch_encode(s.c.handle, batch, &call, nullptr, tensors.data(), sizeof(dr_tensor), 2, workspace,
                           info.workspace, s.frame.data(), s.frame.size(), &result);
  };
  CHECK(encode(nullptr, nullptr, 0) == DR_OK);
  CHECK(encode(s.plain.handle, s.with.handle, 90) == DR_OK);
  CHECK(encode(same.handle, nullptr, 0) == DR_OK);  // another handle of the same plan
  const auto before = s.memory;
  CHECK(encode(nullptr, nullptr, 91) == DR_E_ARGUMENT);
  CHECK(has(s.c.error(), "91"));
  CHECK(has(s.c.error(), "90"));
  CHECK(result.what == 91);
  CHECK(encode(another.handle, nullptr, 0) == DR_E_ARGUMENT);
  CHECK(result.tensor == 0);
  CHECK(has(s.c.error(), "index=rice"));
  CHECK(encode(nullptr, s.plain.handle, 0) == DR_E_ARGUMENT);
  CHECK(result.tensor == 1);
  CHECK(s.memory == before);
  CHECK(encode(nullptr, nullptr, 0) == DR_OK);
  dr_batch_destroy(batch);
}

TEST_CASE(
    "a binding looks at states once: one alone is fine, two of one memory are refused, plans and segments as ever") {
  scene s;
  const auto bind = [&](const std::vector<dr_tensor>& tensors, dr_batch*& batch, dr_binding*& binding) {
    REQUIRE(dr_batch_create(s.c.handle, s.plain.handle, nullptr, tensors.data(), sizeof(dr_tensor), tensors.size(), 90,
                            &batch) == DR_OK);
    return dr_binding_create(s.c.handle, batch, nullptr, tensors.data(), sizeof(dr_tensor), nullptr, 0, tensors.size(),
                             1, &binding);
  };
  for (const bool twice : {false, true}) {
    CAPTURE(twice);
    std::vector<dr_tensor> tensors = {s.dense(), s.fed(s.memory)};
    if (twice) tensors.push_back(s.fed(s.memory));
    dr_batch* batch = nullptr;
    dr_binding* binding = nullptr;
    const dr_status made = bind(tensors, batch, binding);
    INFO(s.c.error());
    CHECK(made == (twice ? DR_E_ARGUMENT : DR_OK));
    if (twice) CHECK(dr_last_error(s.c.handle)->tensor == 2);
    dr_call call{};
    call.struct_size = sizeof call;
    for (const uint64_t rows : {uint64_t{0}, uint64_t{90}, uint64_t{91}}) {
      if (!binding) break;
      call.segment_rows = rows;
      dr_result result{};
      result.struct_size = sizeof result;
      CHECK(dr_binding_encode(binding, &call, s.frame.data(), s.frame.size(), &result) ==
            (rows == 91 ? DR_E_ARGUMENT : DR_OK));
    }
    dr_binding_destroy(binding);
    dr_batch_destroy(batch);
  }
}

TEST_CASE("sign: a level belongs to scale=level; the default one is omitted, as in the canonical text") {
  client::context c;
  const floats x = {1, -2, 3};
  bytes frame, plain = client::encode(c, "index=all value=sign(scale=mean)", {client::dense(x)});
  CHECK(client::encode(c, "index=all value=sign(scale=mean,level=1)", {client::dense(x)}) == plain);
  CHECK(client::try_encode(c, "index=all value=sign(scale=mean,level=2)", {client::dense(x)}, frame) == DR_E_ARGUMENT);
  CHECK(c.error().find("sign(level) needs scale=level") != std::string::npos);
}
