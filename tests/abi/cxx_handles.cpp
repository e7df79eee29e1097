// deepreduce.hpp and exchange.hpp: every handle does what the C functions do.
#include <deepreduce/exchange.hpp>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "client.hpp"

namespace {

using client::floats;

struct aligned {
  explicit aligned(size_t size)
      : bytes(static_cast<std::byte*>(std::aligned_alloc(64, (size + 64) / 64 * 64))), size(size) {}
  std::span<std::byte> span() const { return {bytes.get(), size}; }

 private:
  struct release {
    void operator()(std::byte* b) const { std::free(b); }
  };
  std::unique_ptr<std::byte, release> bytes;
  size_t size;
};

// Of a call that must fail.
template <class F>
dr_status thrown(F&& call) {
  try {
    call();
  } catch (const dr::error& e) {
    CHECK(std::string(e.what()).find(dr_status_name(e.code())) == 0);
    return e.code();
  }
  return DR_OK;
}

}  // namespace

TEST_CASE("C++: versions, plans and codecs") {
  CHECK(dr::version() == DR_VERSION_STRING);
  CHECK(dr::abi_version() == DR_ABI_VERSION);
  CHECK(dr::feature(DR_FEATURE_FORMAT) == DR_FORMAT_VERSION);
  CHECK((dr::plan("index=golomb feedback=residual").info().flags & DR_PLAN_FEEDBACK) != 0);
  CHECK(thrown([] { dr::plan("index=no_such"); }) == DR_E_ARGUMENT);
  CHECK(thrown([] { dr::register_codec(dr::sized<dr_codec>()); }) == DR_E_ARGUMENT);
  CHECK(thrown([] { dr::load_plugin("/no/such/file.so"); }) == DR_E_UNSUPPORTED);
  CHECK(dr::step_name(DR_STEP_DECODE) == "decode");
}

TEST_CASE("C++: a state is filled, read, copied and scaled") {
  const dr::plan plan("sparsify=topr(ratio=0.1) feedback=dgc index=raw value=raw");
  floats values(100), residual(100);
  for (size_t i = 0; i < residual.size(); ++i) residual[i] = static_cast<float>(i);
  const dr_tensor tensor = dr::dense(values);
  std::vector<std::byte> state(dr::state_size(plan, tensor)), other = state;
  dr::fill_state(plan, tensor, residual, state);
  dr::fill_state(plan, tensor, {}, other);
  dr::check_state(plan, tensor, state);
  CHECK(std::ranges::equal(dr::residual_of(state), residual));
  CHECK(dr::momentum_of(state).size() == 100);
  dr::copy_state(state, 10, other, 20, 5);
  CHECK(dr::residual_of(other)[22] == 12);
  dr::scale_state(other, 2);
  CHECK(dr::residual_of(other)[22] == 24);
  CHECK(dr::norm_of_state(other) == doctest::Approx(2 * std::sqrt(10. * 10 + 11 * 11 + 12 * 12 + 13 * 13 + 14 * 14)));
  CHECK_THROWS_AS(dr::fill_state(plan, tensor, std::span(residual).first(99), state), std::invalid_argument);
  CHECK(thrown([&] { dr::check_state(plan, tensor, std::span(state).first(8)); }) == DR_E_ARGUMENT);
}

TEST_CASE("C++: a prepared batch makes a context's frames, and their header reports what inspect does") {
  const dr::plan plan("sparsify=topr(ratio=0.1) index=golomb value=raw");
  const floats a = client::laplace(3000, 1), b = client::laplace(70, 2);
  const dr_tensor tensors[] = {dr::dense(a), dr::dense(b)};
  dr::context context;
  const std::vector<std::byte> frame = context.encode(plan, tensors);
  context.trim();

  const dr::batch batch(context, plan, tensors);
  std::vector<std::byte> made(batch.info().bound);
  const aligned workspace(std::max(batch.info().workspace, batch.merge_workspace(2)));
  made.resize(batch.encode_into(made, context, tensors, workspace.span()));
  CHECK(made == frame);
  floats x(a.size()), y(b.size()), u(a.size()), v(b.size());
  dr_tensor_out once[] = {dr::dense_out(x), dr::dense_out(y)}, twice[] = {dr::dense_out(u), dr::dense_out(v)};
  batch.decode(context, frame, once, workspace.span());
  const dr_bytes both[] = {dr::bytes_of(frame), dr::bytes_of(frame)};
  batch.merge(context, both, {}, twice, workspace.span());
  for (float& each : x) each *= 2;
  CHECK(x == u);
  CHECK_THROWS_AS(batch.merge(context, both, std::span(x).first(1), twice, workspace.span()), std::invalid_argument);

  std::vector<std::byte> behind = frame;
  behind.resize(frame.size() + 100);
  CHECK(dr::frame_size(behind) == frame.size());
  const dr::frame whole = dr::inspect(frame);
  const dr::frame header = dr::read_header(std::span(behind).first(whole.info.header_size), behind.size());
  REQUIRE(header.tensors.size() == 2);
  CHECK(header.info.frame_size == whole.info.frame_size);
  CHECK(header.tensors[1].support == whole.tensors[1].support);
}

TEST_CASE("C++: an exchange over the loopback") {
  const dr::plan plan("sparsify=topr(ratio=0.25) feedback=residual index=raw value=raw exchange=gather(parts=2)");
  constexpr uint32_t n = 3;
  dr::loopback net(n);
  auto options = dr::sized<dr_exchange_options>();
  options.flags = DR_EXCHANGE_SUM | DR_EXCHANGE_TRACE;
  std::vector<dr::context> contexts(n);
  std::vector<floats> in(n, floats(400)), out(n, floats(400));
  std::vector<dr_tensor> tensors;
  std::vector<dr_tensor_out> outs;
  for (uint32_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < 400; ++k) in[i][k] = static_cast<float>((k * 37 + i) % 101);
    tensors.push_back(dr::dense(in[i]));
    outs.push_back(dr::dense_out(out[i]));
  }
  std::vector<dr::exchange> list;
  std::vector<dr_exchange*> all;
  for (uint32_t i = 0; i < n; ++i) {
    list.emplace_back(contexts[i], plan, net.transport(i), std::span(&tensors[i], 1), std::span(&outs[i], 1), &options);
    all.push_back(list.back().get());
  }
  for (dr::exchange& x : list) x.start();
  std::vector<dr_status> statuses(n, DR_E_INTERNAL);
  REQUIRE(net.run(all, statuses) == DR_OK);
  CHECK(statuses == std::vector<dr_status>(n, DR_OK));
  CHECK(out[1] == out[0]);
  CHECK(list[0].trace().find("\"agree\"") != std::string::npos);
  CHECK(list[0].info().calls == 1);
  floats total(400), kept(400);
  for (uint32_t i = 0; i < n; ++i) {
    list[i].read_residual(0, kept);
    for (size_t k = 0; k < 400; ++k) total[k] += in[i][k] - kept[k];
  }
  CHECK(total == out[0]);
  list[0].write_residual(0, kept);
  CHECK(thrown([&] { list[0].write_residual(1, kept); }) == DR_E_ARGUMENT);
  CHECK(thrown([&] { list[0].advance(); }) == DR_E_ARGUMENT);  // none is under way

  floats moved = out[2];
  dr_tensor_out to[] = {dr::dense_out(moved)};
  list[2].rebind(std::span(&tensors[2], 1), to);
  for (dr::exchange& x : list) x.start();
  list[1].cancel();
  CHECK(net.run(all, statuses) == DR_E_PEER);
  CHECK(dr_last_error(contexts[0].get())->frame == 1);
  CHECK(moved == out[0]);  // untouched
  CHECK_THROWS_AS(net.run(std::span(all).first(2)), std::invalid_argument);
  CHECK_THROWS_AS(net.transport(n), std::invalid_argument);
  CHECK(net.now(0) == 0);  // links without a limit

  dr::loopback alone(1);
  dr::exchange one(contexts[0], plan, alone.transport(0), std::span(&tensors[0], 1), std::span(&outs[0], 1));
  one.start();
  CHECK(one.advance());
  CHECK(thrown([&] { one.trace(); }) == DR_E_ARGUMENT);
}

TEST_CASE("C++: a transform, by hand on two ranks") {
  const dr::plan plan("transform=lowrank(rank=2) feedback=residual");
  floats in[2] = {client::laplace(600, 1), client::laplace(600, 2)}, out[2] = {floats(600), floats(600)};
  std::vector<dr::context> contexts(2);
  std::vector<dr::transform> list;
  for (uint32_t i = 0; i < 2; ++i) {
    const dr_tensor tensor = dr::dense(DR_F32, in[i].data(), 30, 20);
    list.emplace_back(contexts[i], plan, std::span(&tensor, 1));
  }
  const std::vector<std::byte> fresh = list[0].save();
  const auto round = [&] {
    for (uint32_t i = 0; i < 2; ++i) {
      const dr_tensor tensor = dr::dense(DR_F32, in[i].data(), 30, 20);
      const dr_tensor_out to = dr::dense_out(DR_F32, out[i].data(), 30, 20);
      list[i].begin(std::span(&tensor, 1), std::span(&to, 1));
    }
    bool more = true;
    while (more) {
      const std::span<float> a = list[0].factor(), b = list[1].factor();
      for (size_t k = 0; k < a.size(); ++k) a[k] = b[k] = a[k] + b[k];
      more = list[0].next(0.5f);
      CHECK(list[1].next(0.5f) == more);
    }
  };
  round();
  const floats first = out[0];
  CHECK(out[1] == first);
  CHECK(list[0].residual(0).size() == 600);
  CHECK(list[0].info().rounds == 1);
  round();
  CHECK(out[0] != first);
  list[0].load(fresh);
  list[1].reset();
  round();
  CHECK(out[0] == first);
  list[0].cancel();
  CHECK(thrown([&] { list[0].factor(); }) == DR_E_ARGUMENT);
}

TEST_CASE("C++: a controller on two ranks") {
  const uint64_t bytes[] = {1'000'000, 100'000};
  dr::control a("aimd(target_ms=1)", bytes), b("aimd(target_ms=1)", bytes);
  for (uint64_t step = 0; a.info().rung == 0 && step < 1000; ++step) {
    a.observe(1'000'000, 50'000'000);
    b.observe(1'000'000, 40'000'000);
    if (step + 1 < a.info().next_step) continue;
    const dr::control::words all[] = {a.report(), b.report()};
    a.decide(step + 1, all);
    b.decide(step + 1, all);
  }
  CHECK(a.info().rung == 1);
  CHECK(b.info().rung == 1);
  CHECK(dr::control::reason(a.info().reason) == "too slow: one rung smaller");
  CHECK(a.log() == b.log());
  CHECK(a.log().front() == '{');
  CHECK(thrown([] { dr::control("no_such(target_ms=1)", 2); }) == DR_E_ARGUMENT);
  CHECK(thrown([&] { a.decide(0, {}); }) == DR_E_ARGUMENT);
}

TEST_CASE("C++: sums of weights, and the check that a patch knows its base by") {
  std::vector<std::byte> weights(5000, std::byte{7});
  const std::vector<uint64_t> sums = dr::base_sums(weights);
  CHECK(sums.size() == 2);
  const uint64_t check = dr::base_check(sums);
  weights[4999] = std::byte{8};
  CHECK(dr::base_check(dr::base_sums(weights)) != check);
}
