// Plans with transform=dct: frames of coefficients, residuals of coefficients, one inverse behind a merge.
#include <cmath>

#include "client.hpp"
#include "transform/normal_values.hpp"

namespace {

using client::bytes;
using client::floats;

constexpr const char* demo =
    "transform=dct sparsify=chunks(count=64) feedback=residual(beta=0.999) index=chunks value=raw";

dr_tensor matrix(const floats& x, uint64_t rows) {
  dr_tensor t = client::dense(x);
  t.rows = rows;
  return t;
}

double distance(const floats& a, const floats& b) {
  double sum = 0, all = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += std::pow(double{a[i]} - double{b[i]}, 2);
    all += double{b[i]} * double{b[i]};
  }
  return std::sqrt(sum / (all > 0 ? all : 1));
}

floats coefficients(client::context& c, const bytes& frame, size_t n) {
  floats out(n, -77);
  dr_tensor_out o = client::dense_out(out);
  dr_decode_options options{};
  options.struct_size = sizeof options;
  options.flags = DR_DECODE_COEFFICIENTS;
  REQUIRE(dr_decode(c.handle, nullptr, frame.data(), frame.size(), &options, &o, sizeof o, 1) == DR_OK);
  return out;
}

dr_status merge(client::context& c, const std::vector<bytes>& frames, const float* weights, uint32_t flags,
                dr_tensor_out& out) {
  std::vector<dr_bytes> list;
  for (const bytes& f : frames) list.push_back({f.data(), f.size()});
  dr_decode_options options{};
  options.struct_size = sizeof options;
  options.flags = flags;
  return dr_merge(c.handle, nullptr, list.data(), weights, list.size(), &options, &out, sizeof out, 1);
}

// A tensor with its state.
struct stateful {
  client::plan plan;
  floats x;
  uint64_t rows;
  std::vector<uint64_t> state;

  stateful(const char* text, size_t n, uint64_t rows_) : plan(text), x(n), rows(rows_) {
    dr_tensor t = matrix(x, rows);
    size_t size = 0;
    REQUIRE(dr_state_size(plan.handle, &t, &size, nullptr) == DR_OK);
    state.resize((size + 7) / 8);
  }
  bytes encode(client::context& c) {
    dr_tensor t = matrix(x, rows);
    t.state = state.data();
    t.state_size = 8 * state.size();
    return client::encode(c, text(), {t});
  }
  floats residual() const {
    floats out(x.size());
    std::memcpy(out.data(), state.data() + 2, 4 * out.size());
    return out;
  }
  std::string text() const { return dr_plan_text(plan.handle); }
};

std::string refusal(const char* text) {
  dr_plan* p = nullptr;
  dr_error error{sizeof(dr_error)};
  CHECK(dr_plan_parse(text, &p, &error) != DR_OK);
  dr_plan_destroy(p);
  return error.message;
}

}  // namespace

TEST_CASE("a frame of all coefficients decodes to the tensor within 1e-6") {
  client::context c, threads(3);
  for (const auto& [n, rows] : std::vector<std::pair<size_t, uint64_t>>{
           {1, 0}, {63, 1}, {5000, 0}, {64 * 64, 64}, {200 * 333, 200}, {333 * 200, 333}, {6, 3}, {1000, 1000}}) {
    CAPTURE(n);
    CAPTURE(rows);
    const floats x = normal(n, n);
    for (const char* plan :
         {"transform=dct index=all", "transform=dct(size=8) index=golomb", "transform=dct index=raw"}) {
      const bytes frame = client::encode(c, plan, {matrix(x, rows)});
      CHECK(client::encode(threads, plan, {matrix(x, rows)}) == frame);
      const floats back = client::decode(c, frame, n);
      CHECK(distance(back, x) <= 1e-6);
      CHECK(client::decode(threads, frame, n) == back);
    }
  }
}

TEST_CASE("segments do not change the coefficients, nor the tensor") {
  client::context c;
  const floats x = normal(64 * 100, 3);
  dr_call call{};
  call.segment_rows = 1000;
  const std::string plan = "transform=dct index=all";
  const bytes one = client::encode(c, plan, {matrix(x, 64)}), many = client::encode(c, plan, {matrix(x, 64)}, call);
  CHECK(client::inspect(many).segments == 7);
  CHECK(coefficients(c, many, x.size()) == coefficients(c, one, x.size()));
  CHECK(client::decode(c, many, x.size()) == client::decode(c, one, x.size()));
}

TEST_CASE("what was sent and the residual add up to the coefficients of all gradients") {
  client::context c;
  stateful s("transform=dct sparsify=chunks(count=64) feedback=residual index=chunks value=lloyd(levels=4)", 200 * 333,
             200);
  floats sent(s.x.size()), all(s.x.size());
  for (uint64_t step = 0; step < 6; ++step) {
    s.x = normal(s.x.size(), step);
    for (size_t i = 0; i < all.size(); ++i) all[i] += s.x[i];
    const floats now = coefficients(c, s.encode(c), s.x.size());
    for (size_t i = 0; i < sent.size(); ++i) sent[i] += now[i];
  }
  const floats left = s.residual();
  for (size_t i = 0; i < sent.size(); ++i) sent[i] += left[i];
  const floats wanted = coefficients(c, client::encode(c, "transform=dct index=all", {matrix(all, 200)}), all.size());
  CHECK(distance(sent, wanted) <= 1e-6);
}

TEST_CASE("the residual is DeMo's momentum: decayed, less what was sent") {
  client::context c;
  stateful s(demo, 128 * 128, 128);
  floats momentum(s.x.size());  // of elements, as in the paper
  for (uint64_t step = 0; step < 5; ++step) {
    s.x = normal(s.x.size(), 10 + step);
    const floats sent = client::decode(c, s.encode(c), s.x.size());
    for (size_t i = 0; i < momentum.size(); ++i) momentum[i] = 0.999f * momentum[i] + s.x[i] - sent[i];
  }
  const floats theirs =
      coefficients(c, client::encode(c, "transform=dct index=all", {matrix(momentum, 128)}), momentum.size());
  CHECK(distance(s.residual(), theirs) <= 1e-5);
}

TEST_CASE("the coefficients of a smooth matrix are few: 64 of 4,096 hold what 64 elements do not") {
  client::context c;
  floats x(128 * 128);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = std::sin(0.03f * static_cast<float>(i / 128)) * std::cos(0.05f * static_cast<float>(i % 128));
  const char* plain = "sparsify=chunks(count=64) index=chunks";
  const auto loss = [&](const std::string& plan) {
    return distance(client::decode(c, client::encode(c, plan, {matrix(x, 128)}), x.size()), x);
  };
  CHECK(loss(plain) > 0.9);
  CHECK(loss(std::string("transform=dct ") + plain) < 0.02);
}

TEST_CASE("a merge of frames is the inverse of the sum of their coefficients") {
  client::context c, threads(3);
  const size_t n = 130 * 70;
  std::vector<bytes> frames;
  const float weights[] = {0.5f, 0.25f, 2, -1};
  floats sum(n), added(n, 3);
  for (uint64_t k = 0; k < 4; ++k) {
    const floats x = normal(n, k);
    frames.push_back(client::encode(c, "transform=dct sparsify=chunks(count=9) index=chunks", {matrix(x, 130)}));
    const floats one = client::decode(c, frames.back(), n);
    for (size_t i = 0; i < n; ++i) sum[i] += weights[k] * one[i];
  }
  floats merged(n, -5), again(n, 7);
  dr_tensor_out out = client::dense_out(merged), other = client::dense_out(again), more = client::dense_out(added);
  REQUIRE(merge(c, frames, weights, 0, out) == DR_OK);
  CHECK(distance(merged, sum) <= 1e-6);
  REQUIRE(merge(threads, frames, weights, 0, other) == DR_OK);
  CHECK(again == merged);
  // The same as the coefficients of the sum, sent as they are: one inverse.
  floats there(n);
  dr_tensor_out raw = client::dense_out(there);
  REQUIRE(merge(c, frames, weights, DR_DECODE_COEFFICIENTS, raw) == DR_OK);
  const bytes whole = client::encode(c, "transform=dct index=all", {matrix(merged, 130)});
  CHECK(distance(coefficients(c, whole, n), there) <= 1e-6);
  // Added to what is there, once.
  REQUIRE(merge(c, frames, weights, DR_DECODE_ADD, more) == DR_OK);
  for (size_t i = 0; i < n; ++i) REQUIRE(added[i] == 3 + merged[i]);
  // In a half type, rounded once.
  std::vector<uint16_t> halves(n), expected(n);
  dr_tensor_out half = client::dense_out(merged);
  half.dtype = DR_F16;
  half.values = halves.data();
  REQUIRE(merge(c, frames, weights, 0, half) == DR_OK);
  const bytes exact = client::encode(c, "index=all", {client::dense(merged)});
  dr_tensor_out rounded = half;
  rounded.values = expected.data();
  REQUIRE(dr_decode(c.handle, nullptr, exact.data(), exact.size(), nullptr, &rounded, sizeof rounded, 1) == DR_OK);
  CHECK(halves == expected);
}

TEST_CASE("an undelivered frame returns to the residual as coefficients") {
  client::context c;
  stateful s("transform=dct sparsify=chunks(count=64) feedback=residual index=chunks value=raw", 100 * 100, 100);
  s.x = normal(s.x.size(), 1);
  const bytes lost = s.encode(c);
  floats residual = s.residual();
  dr_tensor_out out = client::dense_out(residual);
  REQUIRE(merge(c, {lost}, nullptr, DR_DECODE_ADD | DR_DECODE_COEFFICIENTS, out) == DR_OK);
  CHECK(residual == coefficients(c, client::encode(c, "transform=dct index=all", {matrix(s.x, 100)}), s.x.size()));
}

TEST_CASE("a batch is prepared for tiles: other rows, and frames of other tiles, are refused") {
  client::context c;
  const client::plan p("transform=dct sparsify=chunks(count=64) index=chunks");
  const floats x = normal(64 * 100, 1);
  dr_tensor t = matrix(x, 64);
  dr_batch* batch = nullptr;
  REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, &t, sizeof t, 1, 0, &batch) == DR_OK);
  dr_batch_info info{};
  info.struct_size = sizeof info;
  REQUIRE(dr_batch_describe(batch, &info, nullptr) == DR_OK);
  std::vector<uint8_t> room(info.workspace + 64), frame(info.bound);
  void* const aligned = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(room.data()) + 63) / 64 * 64);
  const auto encode = [&](dr_result& made) {
    made.struct_size = sizeof made;
    return dr_batch_encode(c.handle, batch, nullptr, nullptr, &t, sizeof t, 1, aligned, info.workspace, frame.data(),
                           frame.size(), &made);
  };
  dr_result made{};
  REQUIRE(encode(made) == DR_OK);
  CHECK(bytes(frame.data(), frame.data() + made.size) ==
        client::encode(c, "transform=dct sparsify=chunks(count=64) index=chunks", {t}));
  t.rows = 100;
  CHECK(encode(made) == DR_E_ARGUMENT);
  size_t needed = 0;
  REQUIRE(dr_batch_merge_workspace(batch, 2, &needed, nullptr) == DR_OK);
  std::vector<uint8_t> decode_room(needed + 64);
  void* const there = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(decode_room.data()) + 63) / 64 * 64);
  floats back(x.size());
  dr_tensor_out out = client::dense_out(back);
  const auto decode = [&](const bytes& of) {
    return dr_batch_decode(c.handle, batch, nullptr, of.data(), of.size(), nullptr, &out, sizeof out, 1, there, needed,
                           nullptr);
  };
  const std::string text = "sparsify=chunks(count=64) index=chunks";
  CHECK(decode(client::encode(c, "transform=dct " + text, {matrix(x, 64)})) == DR_OK);
  CHECK(decode(client::encode(c, "transform=dct " + text, {matrix(x, 100)})) == DR_E_ARGUMENT);
  CHECK(decode(client::encode(c, "transform=dct(size=32) " + text, {matrix(x, 64)})) == DR_E_ARGUMENT);
  CHECK(decode(client::encode(c, text, {matrix(x, 64)})) == DR_E_ARGUMENT);
  dr_batch_destroy(batch);
}

TEST_CASE("what has no coefficients, or no inverse, is refused by name") {
  client::context c;
  CHECK(refusal("transform=dct(size=48)").find("size = 48 is not a power of two") != std::string::npos);
  for (const char* odd : {"transform=dct(size=3)", "transform=dct(size=63)"})
    CHECK(refusal(odd).find("is not a power of two") != std::string::npos);
  CHECK(refusal("transform=dct bucket=flat").find("bucket=flat") != std::string::npos);
  CHECK(refusal("transform=dct index=all value=sign merge=vote").find("merge=vote") != std::string::npos);
  CHECK(refusal("transform=dct exchange=owner").find("exchange=") != std::string::npos);
  CHECK(refusal("transform=dct exchange=gather(parts=2)").find("exchange=") != std::string::npos);
  CHECK(refusal("transform=dct sparsify=visible").find("sparsify=visible") != std::string::npos);
  CHECK(refusal("transform=dct sparsify=changed index=all").find("sparsify=changed") != std::string::npos);

  const floats x = normal(100, 1);
  bytes frame;
  CHECK(client::try_encode(c, "transform=dct", {matrix(x, 7)}, frame) == DR_E_ARGUMENT);
  CHECK(c.error().find("universe 100 is not a multiple of its rows, 7") != std::string::npos);
  const std::vector<uint16_t> halves(100);
  dr_tensor half = client::dense(x);
  half.dtype = DR_BF16;
  half.values = halves.data();
  CHECK(client::try_encode(c, "transform=dct", {half}, frame) == DR_E_UNSUPPORTED);
  const std::vector<uint32_t> indices{1, 5};
  const floats two{1, 2};
  CHECK(client::try_encode(c, "transform=dct", {client::sparse(indices, two, 100)}, frame) == DR_E_UNSUPPORTED);

  const bytes of_ten = client::encode(c, "transform=dct", {matrix(x, 10)}),
              of_five = client::encode(c, "transform=dct", {matrix(x, 5)}),
              plain = client::encode(c, "index=all", {matrix(x, 5)});
  floats y(100), values(100);
  dr_tensor_out out = client::dense_out(y);
  CHECK(merge(c, {of_ten, of_five}, nullptr, 0, out) == DR_E_ARGUMENT);
  CHECK(c.error().find("frame 1: output 0: is of other tiles") != std::string::npos);
  CHECK(merge(c, {of_ten, plain}, nullptr, 0, out) == DR_E_ARGUMENT);
  CHECK(merge(c, {of_ten}, nullptr, DR_DECODE_VOTE, out) == DR_E_UNSUPPORTED);
  std::vector<uint64_t> places(100);
  dr_tensor_out pairs = client::dense_out(values);
  pairs.index_dtype = DR_U64;
  pairs.indices = places.data();
  pairs.capacity = 100;
  CHECK(dr_decode(c.handle, nullptr, of_ten.data(), of_ten.size(), nullptr, &pairs, sizeof pairs, 1) ==
        DR_E_UNSUPPORTED);
  CHECK(c.error().find("DR_DECODE_COEFFICIENTS") != std::string::npos);
}

TEST_CASE("an element that is not finite is named itself, not a coefficient of its tile; else the coefficient is") {
  client::context c;
  constexpr uint64_t rows = 100, columns = 130, at = 70 * columns + 90;
  const std::string rest = " index=golomb value=half transform=dct";
  for (const std::string text : {"sparsify=topr(ratio=0.5)", "sparsify=topr(ratio=0.5) feedback=residual"})
    for (const uint64_t segment : {0, 4096})
      for (const float bad : {NAN, INFINITY, -INFINITY}) {
        const client::plan plan(text + rest);
        floats x(rows * columns, 0.5f);
        std::vector<uint64_t> state(2 + x.size() / 2);
        dr_tensor t = matrix(x, rows);
        t.plan = plan.handle;
        if (text.find("feedback") != text.npos) {
          t.state = state.data();
          t.state_size = 8 * state.size();
        }
        dr_call call{};
        call.struct_size = sizeof call;
        call.segment_rows = segment;
        bytes frame(1 << 18);
        const auto encode = [&] {
          return dr_encode(c.handle, nullptr, &call, nullptr, &t, sizeof t, 1, frame.data(), frame.size(), nullptr);
        };
        x[at] = bad;
        CHECK(encode() == DR_E_ARGUMENT);
        const dr_error& e = *dr_last_error(c.handle);
        INFO(std::string(e.message));
        CHECK(e.where == at);
        CHECK(c.error().find(std::isnan(bad) ? "the gradient is NaN" : "the gradient is infinite") !=
              std::string::npos);
        CHECK(c.error().find(std::isnan(bad) ? "nan)" : bad < 0 ? "-inf)" : " inf)") != std::string::npos);
        x.assign(x.size(), 1e37f);  // 64 of them are the first coefficient of a tile
        CHECK(encode() == DR_E_ARGUMENT);
        CHECK(c.error().find("a coefficient is") != std::string::npos);
      }
}

TEST_CASE("a merge refuses a frame that is cut over its outputs beside coefficients, whichever frame it is") {
  client::context c;
  const floats x = normal(6, 1), half(x.begin(), x.begin() + 3);
  const bytes of_two = client::encode(c, "transform=dct(size=2)", {client::dense(half), client::dense(half)});
  for (const char* text : {"transform=dct(size=2)", "index=all"}) {
    const bytes cut = client::encode(c, text, {client::dense(x)});
    floats a(3), b(3);
    dr_tensor_out outs[] = {client::dense_out(a), client::dense_out(b)};
    for (const bool first : {false, true}) {
      const dr_bytes frames[] = {{(first ? cut : of_two).data(), (first ? cut : of_two).size()},
                                 {(first ? of_two : cut).data(), (first ? of_two : cut).size()}};
      CHECK(dr_merge(c.handle, nullptr, frames, nullptr, 2, nullptr, outs, sizeof outs[0], 2) == DR_E_ARGUMENT);
      CHECK(a == floats(3));
    }
  }
}

TEST_CASE("inspect names the transform, and that the frame is for the CPU") {
  client::context c;
  const bytes frame = client::encode(c, "transform=dct(size=4) index=golomb value=raw", {client::dense(normal(64, 1))});
  dr_tensor_info tensor{sizeof tensor};
  dr_frame_info info{sizeof info};
  REQUIRE(dr_inspect(frame.data(), frame.size(), &info, &tensor, sizeof tensor, 1, nullptr) == DR_OK);
  CHECK(std::string(tensor.plan).ends_with(" value=raw transform=dct(size=4)"));
  CHECK(tensor.host_only == 1);
}
