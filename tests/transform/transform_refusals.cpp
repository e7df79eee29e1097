// Bad input to transforms: a sentence that says what and where, and nothing has changed.
#include <functional>
#include <limits>

#include "transform/transform_world.hpp"

// So that sizes beyond memory are refused, and end nothing.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

using namespace transforms;

namespace {

const std::string plan2 = "transform=lowrank(rank=2) feedback=residual";
const shapes of = {{20, 30}, {5, 1}};

dr_status create(client::context& c, const char* plan, const std::vector<dr_tensor>& tensors,
                 const dr_transform_options* options = nullptr) {
  const client::plan p(plan);
  dr_transform* t = nullptr;
  const dr_status s =
      dr_transform_create(c.handle, p.handle, options, tensors.data(), sizeof(dr_tensor), tensors.size(), &t);
  CHECK((s == DR_OK) == (t != nullptr));
  dr_transform_destroy(t);
  return s;
}

}  // namespace

TEST_CASE("a gradient that is not finite is named, and the state is untouched") {
  rank r(plan2, of);
  r.draw(1);
  REQUIRE(r.begin() == DR_OK);
  while (dr_transform_next(r.handle, 1) == DR_PENDING) {
  }
  const client::bytes before = r.state();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()})
    for (const auto& [tensor, element] : {std::pair<size_t, size_t>{0, 0}, {0, 317}, {0, 599}, {1, 4}}) {
      r.draw(2);
      r.in[tensor][element] = bad;
      CHECK(r.begin() == DR_E_ARGUMENT);
      const dr_error& e = *dr_last_error(r.context.handle);
      CHECK(e.tensor == tensor);
      CHECK(e.where == element);
      CHECK(r.context.error().find("element " + std::to_string(element)) != std::string::npos);
      CHECK(r.info().busy == 0);
      CHECK(r.state() == before);
    }
  // All finite, but their sum with the signs of a start vector is not.
  r.draw(2);
  const std::vector<double> q = first_q(r, 30, 2);
  for (size_t i = 0; i < 600; ++i) r.in[0][i] = q[i % 30 * 2] < 0 ? -3e38f : 3e38f;
  CHECK(r.begin() == DR_E_ARGUMENT);
  CHECK(r.context.error().find("exceeds f32") != std::string::npos);
  CHECK(r.state() == before);
}

TEST_CASE("a factor that is received as NaN or infinity ends nothing and writes nothing") {
  for (const uint32_t phase : {0, 1}) {
    rank r(plan2, of);
    r.draw(1);
    const client::bytes before = r.state();
    REQUIRE(r.begin() == DR_OK);
    if (phase) REQUIRE(dr_transform_next(r.handle, 1) == DR_PENDING);
    const auto [at, n] = r.factor();
    at[n - 1] = std::numeric_limits<float>::quiet_NaN();
    CHECK(dr_transform_next(r.handle, 1) == DR_E_ARGUMENT);
    CHECK(r.context.error().find(phase ? "second factor: element " : "first factor: element ") == 0);
    CHECK(dr_last_error(r.context.handle)->where == n - 1);
    CHECK(r.info().busy == 1);
    CHECK(r.out[0] == floats(600, -7.0f));
    CHECK(dr_transform_cancel(r.handle, 0) == DR_OK);
    CHECK(r.state() == before);
  }
}

TEST_CASE("a mean that takes a factor out of f32 ends nothing and writes nothing") {
  for (const uint32_t phase : {0, 1}) {
    rank r(plan2, of);
    r.draw(1);
    const client::bytes before = r.state();
    REQUIRE(r.begin() == DR_OK);
    if (phase) REQUIRE(dr_transform_next(r.handle, 1) == DR_PENDING);
    r.factor().first[3] = 1000;
    CHECK(dr_transform_next(r.handle, 3e38f) == DR_E_ARGUMENT);
    INFO(r.context.error());
    CHECK(r.context.error().find("times the mean's 3e+38 exceeds f32") != std::string::npos);
    CHECK(r.info().busy == 1);
    CHECK(r.out[0] == floats(600, -7.0f));
    CHECK(dr_transform_cancel(r.handle, 0) == DR_OK);
    CHECK(r.state() == before);
  }
}

TEST_CASE("no second factor takes a residual out of f32: beyond 2^90 it is refused, up to there it is applied") {
  for (const float sent : {3e38f, std::nextafter(0x1p90f, 1e38f), -0x1p90f, 0x1p90f}) {
    rank r(plan2, of);
    r.draw(1);
    const client::bytes before = r.state();
    REQUIRE(r.begin() == DR_OK);
    REQUIRE(dr_transform_next(r.handle, 1) == DR_PENDING);
    const auto [at, n] = r.factor();
    std::fill_n(at, n, sent);
    const bool good = std::abs(sent) <= 0x1p90f;
    CHECK(dr_transform_next(r.handle, 1) == (good ? DR_OK : DR_E_ARGUMENT));
    if (!good) {
      INFO(r.context.error());
      CHECK(r.context.error().find("a residual could exceed f32") != std::string::npos);
      CHECK(r.out[0] == floats(600, -7.0f));
      CHECK(dr_transform_cancel(r.handle, 0) == DR_OK);
      CHECK(r.state() == before);
    }
    for (const float x : r.residual(0)) CHECK(std::isfinite(x));
  }
}

TEST_CASE("an output in the place of another tensor, which is still read, is refused") {
  rank r("transform=lowrank(rank=2) feedback=residual", {{20, 30}, {20, 30}});
  r.draw(1);
  const client::bytes before = r.state();
  std::vector<dr_tensor> tensors = {client::dense(r.in[0]), client::dense(r.in[1])};
  std::vector<dr_tensor_out> outs = {client::dense_out(r.in[1]), client::dense_out(r.in[0])};
  for (dr_tensor& t : tensors) t.universe = 20, t.width = 30;
  for (dr_tensor_out& o : outs) o.universe = 20, o.width = 30;
  const auto begin = [&] {
    return dr_transform_begin(r.handle, tensors.data(), sizeof(dr_tensor), outs.data(), sizeof(dr_tensor_out), 2);
  };
  CHECK(begin() == DR_E_ARGUMENT);
  CHECK(r.context.error().find("overlaps it") != std::string::npos);
  CHECK(r.info().busy == 0);
  CHECK(r.state() == before);
  std::swap(outs[0], outs[1]);  // each in its own place
  CHECK(begin() == DR_OK);
}

TEST_CASE("a transform refuses what it does not support") {
  client::context c;
  const floats x = normal(600, 1);
  dr_tensor good = client::dense(x), half = good, sparse = good, planned = good, kept = good, marked = good,
            huge = good;
  const client::plan other("index=raw");
  half.dtype = DR_F16;
  sparse.index_dtype = DR_U32;
  planned.plan = other.handle;
  kept.state_size = 8;
  marked.flags = DR_TENSOR_SUM_DUPLICATES;
  huge.universe = uint64_t{1} << 60;
  CHECK(create(c, plan2.c_str(), {good}) == DR_OK);
  CHECK(create(c, plan2.c_str(), {}) == DR_OK);
  CHECK(create(c, "index=raw", {good}) == DR_E_ARGUMENT);
  CHECK(c.error().find("has no transform=") != std::string::npos);
  CHECK(create(c, plan2.c_str(), {good, half}) == DR_E_UNSUPPORTED);
  CHECK(dr_last_error(c.handle)->tensor == 1);
  CHECK(create(c, plan2.c_str(), {sparse}) == DR_E_UNSUPPORTED);
  CHECK(create(c, plan2.c_str(), {planned}) == DR_E_ARGUMENT);
  CHECK(create(c, plan2.c_str(), {kept}) == DR_E_ARGUMENT);
  CHECK(create(c, plan2.c_str(), {marked}) == DR_E_ARGUMENT);
  CHECK(create(c, plan2.c_str(), {huge}) == DR_E_ARGUMENT);
  huge.universe = uint64_t{1} << 55;
  CHECK(create(c, plan2.c_str(), {huge, huge}) == DR_E_ARGUMENT);
  CHECK(create(c, plan2.c_str(), {huge}) == DR_E_MEMORY);
  huge.universe = uint64_t{1} << 27;
  huge.width = 1u << 27;
  CHECK(create(c, plan2.c_str(), {huge}) == DR_E_MEMORY);
  dr_transform_options options{};
  options.struct_size = sizeof options;
  options.flags = 2;
  CHECK(create(c, plan2.c_str(), {good}, &options) == DR_E_UNSUPPORTED);
}

TEST_CASE("other tensors than it was made for, and outputs that overlap, are refused") {
  rank r(plan2, of);
  const client::bytes before = r.state();
  const auto refused = [&](const std::function<void()>& spoil, dr_status expected = DR_E_ARGUMENT) {
    const std::vector<dr_tensor> tensors = r.tensors;
    const std::vector<dr_tensor_out> outs = r.outs;
    spoil();
    const dr_status s = r.begin();
    r.tensors = tensors;
    r.outs = outs;
    return s == expected;
  };
  CHECK(refused([&] { r.tensors.pop_back(); }));
  CHECK(refused([&] { std::swap(r.tensors[0].universe, r.tensors[1].universe); }));
  CHECK(refused([&] { r.tensors[0].width = 20, r.tensors[0].universe = 30; }));
  CHECK(refused([&] { r.tensors[0].values = nullptr; }));
  CHECK(refused([&] { r.tensors[0].dtype = DR_BF16; }, DR_E_UNSUPPORTED));
  CHECK(refused([&] { r.tensors[1].struct_size = 0; }));
  CHECK(refused([&] { r.outs[1].values = nullptr; }));
  CHECK(refused([&] { r.outs[1].dtype = DR_F16; }));
  CHECK(refused([&] { r.outs[1].index_dtype = DR_U32; }));
  CHECK(refused([&] { r.outs[1].universe = 6; }));
  CHECK(refused([&] { r.outs[1].flags = 1; }, DR_E_UNSUPPORTED));
  CHECK(refused([&] { r.outs[1].values = r.out[0].data() + 3; }));
  CHECK(refused([&] { r.outs[0].values = r.in[0].data() + 1; }));
  CHECK(refused([&] { r.outs[0].values = reinterpret_cast<char*>(r.out[0].data()) + 1; }));
  CHECK(r.state() == before);
  CHECK(r.begin() == DR_OK);
}

TEST_CASE("calls out of turn, and NULL, are ARGUMENT") {
  rank r(plan2, of), none("transform=lowrank(rank=2)", of);
  float* at = nullptr;
  uint64_t n = 0;
  client::bytes state(r.info().state_size), wrong = state;
  dr_transform_info info{};
  CHECK(dr_transform_factor(r.handle, &at, &n) == DR_E_ARGUMENT);
  CHECK(dr_transform_next(r.handle, 1) == DR_E_ARGUMENT);
  CHECK(dr_transform_cancel(r.handle, 0) == DR_OK);
  CHECK(dr_transform_cancel(r.handle, 2) == DR_E_UNSUPPORTED);
  CHECK(dr_transform_cancel(none.handle, DR_TRANSFORM_KEEP) == DR_E_ARGUMENT);
  CHECK(dr_transform_residual(none.handle, 0, &at, &n) == DR_E_ARGUMENT);
  CHECK(dr_transform_residual(r.handle, 2, &at, &n) == DR_E_ARGUMENT);
  CHECK(dr_transform_residual(r.handle, 0, nullptr, &n) == DR_E_ARGUMENT);
  CHECK(dr_transform_save(r.handle, state.data(), state.size() - 1) == DR_E_ARGUMENT);
  CHECK(dr_transform_save(r.handle, nullptr, state.size()) == DR_E_ARGUMENT);
  REQUIRE(r.begin() == DR_OK);
  CHECK(dr_transform_next(r.handle, std::numeric_limits<float>::infinity()) == DR_E_ARGUMENT);
  CHECK(dr_transform_residual(r.handle, 0, &at, &n) == DR_E_ARGUMENT);
  CHECK(dr_transform_save(r.handle, state.data(), state.size()) == DR_E_ARGUMENT);
  CHECK(dr_transform_load(r.handle, state.data(), state.size()) == DR_E_ARGUMENT);
  CHECK(dr_transform_factor(r.handle, nullptr, &n) == DR_E_ARGUMENT);
  CHECK(dr_transform_factor(r.handle, &at, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_transform_describe(nullptr, &info, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_transform_describe(r.handle, nullptr, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_transform_describe(r.handle, &info, nullptr) == DR_E_ARGUMENT);  // struct_size is 0
  CHECK(dr_transform_begin(nullptr, nullptr, 0, nullptr, 0, 0) == DR_E_ARGUMENT);
  CHECK(dr_transform_next(nullptr, 1) == DR_E_ARGUMENT);
  CHECK(dr_transform_cancel(nullptr, 0) == DR_E_ARGUMENT);
  CHECK(dr_transform_reset(nullptr) == DR_E_ARGUMENT);
  CHECK(dr_transform_begin(r.handle, nullptr, sizeof(dr_tensor), r.outs.data(), sizeof(dr_tensor_out), 2) ==
        DR_E_ARGUMENT);
  dr_transform_destroy(nullptr);
}

TEST_CASE("a state of something else is refused, and nothing has changed") {
  rank r(plan2, of), other("transform=lowrank(rank=3) feedback=residual", of), turned(plan2, shapes{{30, 20}, {5, 1}}),
      bare("transform=lowrank(rank=2)", of);
  r.draw(1);
  REQUIRE(r.begin() == DR_OK);
  while (dr_transform_next(r.handle, 1) == DR_PENDING) {
  }
  const client::bytes before = r.state();
  const auto refused = [&](const client::bytes& state) {
    const bool no = dr_transform_load(r.handle, state.data(), state.size()) == DR_E_ARGUMENT;
    return no && r.state() == before;
  };
  CHECK(refused(other.state()));
  CHECK(refused(turned.state()));
  CHECK(refused(bare.state()));
  CHECK(refused(client::bytes(before.size(), 0)));
  client::bytes nan = before;
  std::fill(nan.end() - 8, nan.end() - 4, 0xff);
  CHECK(refused(nan));
  CHECK(r.context.error().find("value ") != std::string::npos);
  client::bytes reserved = before;
  reserved[24] = 1;
  CHECK(refused(reserved));
}

TEST_CASE("a plan with a transform: what it may contain, and which calls accept it") {
  const struct {
    const char* text;
    dr_status status;
    const char* words;
  } cases[] = {{"transform=lowrank", DR_E_ARGUMENT, "needs rank="},
               {"transform=lowrank(rank=0)", DR_E_ARGUMENT, "lowrank(rank=0): not in 1 … 4096"},
               {"transform=lowrank(rank=1.5)", DR_E_ARGUMENT, "not an integer"},
               {"transform=lowrank(rank=5000)", DR_E_ARGUMENT, "not in 1 … 4096"},
               {"transform=lowrank(r=2)", DR_E_ARGUMENT, "no parameter 'r'"},
               {"transform=wavelet", DR_E_ARGUMENT, "no transform is called 'wavelet'; there are: none, lowrank"},
               {"transform=lowrank(rank=2)+zstd", DR_E_ARGUMENT, "requires one name"},
               {"transform=lowrank(rank=2) index=golomb", DR_E_UNSUPPORTED, "leave out index="},
               {"transform=lowrank(rank=2) exchange=owner", DR_E_UNSUPPORTED, "leave out exchange="}};
  for (const auto& c : cases) {
    CAPTURE(std::string(c.text));
    dr_plan* p = nullptr;
    dr_error e{};
    e.struct_size = sizeof e;
    CHECK(dr_plan_parse(c.text, &p, &e) == c.status);
    CHECK(std::string(e.message).find(c.words) != std::string::npos);
    dr_plan_destroy(p);
  }
  const client::plan p("feedback=residual transform=lowrank(rank=04)"), none("transform=none index=raw");
  CHECK(std::string(dr_plan_text(p.handle)) == "transform=lowrank(rank=4) feedback=residual");
  CHECK(std::string(dr_plan_text(none.handle)) == "index=raw value=raw");
  dr_plan_info info{};
  info.struct_size = sizeof info;
  REQUIRE(dr_plan_describe(p.handle, &info, nullptr) == DR_OK);
  CHECK((info.flags & DR_PLAN_TRANSFORMS));
  CHECK((info.flags & DR_PLAN_FEEDBACK));
  CHECK(info.dtypes == DR_DTYPE_BIT(DR_F32));
  client::context c;
  const floats x(40, 1.0f);
  client::bytes frame;
  CHECK(client::try_encode(c, dr_plan_text(p.handle), {client::dense(x)}, frame) == DR_E_UNSUPPORTED);
  CHECK(c.error().find("dr_transform_create") != std::string::npos);
  const dr_tensor t = client::dense(x);
  size_t bytes = 0;
  CHECK(dr_state_size(p.handle, &t, &bytes, nullptr) == DR_E_UNSUPPORTED);
}
