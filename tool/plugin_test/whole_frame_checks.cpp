// Whole frames through the C ABI: a codec in an all-reduce.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "codec_checks.hpp"
#include "deepreduce/deepreduce.hpp"

namespace dr::plugin_test {
namespace {

constexpr uint64_t sizes[] = {1, 2, 3, 1001, 70001};
constexpr const char* ratios[] = {"0.001", "0.05", "0.5"};

// Plans with the codec: alone, and with an order codec if necessary.
std::string plan_of(const subject& s, const std::string& sparsify) {
  const char* const before = s.is(DR_ROLE_INDEX)   ? "value=raw index="
                             : s.is(DR_ROLE_VALUE) ? "index=golomb value="
                             : s.is(DR_ROLE_ORDER) ? "index=raw value=fit_poly order="
                                                   : "index=golomb value=raw+";
  return sparsify + ' ' + before + s.call;
}

std::vector<dr_dtype> dtypes_of(const subject& s) {
  std::vector<dr_dtype> list;
  for (const dr_dtype type : {DR_F32, DR_F16, DR_BF16})
    if (!s.is(DR_ROLE_VALUE) || (s.codec->dtypes & DR_DTYPE_BIT(type))) list.push_back(type);
  return list;
}

struct gradient {
  input values;  // of one row each
  dr_tensor tensor() const { return dense(values.dtype, values.elements.data(), values.count); }
};

gradient laplace(cases::random_source& random, dr_dtype type, uint64_t count) {
  return {cases::values("laplace", type, 1, count, [&](uint64_t) { return 0.01 * random.laplace(); })};
}

std::vector<std::byte> encode_frame(context& c, const plan& p, std::span<const dr_tensor> tensors,
                                    const dr_call* call = nullptr) {
  note("dr_encode");
  std::vector<std::byte> frame = c.encode(p, tensors, call);
  return frame;
}

// As f32, whatever the frame's type.
std::vector<std::vector<float>> decode_frame(context& c, std::span<const std::byte> frame,
                                             std::span<const uint64_t> counts) {
  std::vector<std::vector<float>> values;
  std::vector<dr_tensor_out> outs;
  for (const uint64_t n : counts) values.emplace_back(n, NAN);
  for (auto& v : values) outs.push_back(dense_out(DR_F32, v.data(), v.size()));
  note("dr_decode");
  c.decode(frame, outs);
  return values;
}

bool same(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
}

// An error of the library is a failure with its message.
template <class F>
auto sentence(const std::string& what, F&& f) {
  about(what);
  try {
    return f();
  } catch (const error& e) {
    throw failure(what + ": " + e.what());
  }
}

// The decoded tensor equals the selected values if the plan is exact.
void check_exact(const subject& s, const gradient& g, std::span<const float> decoded, const std::string& what) {
  if (!s.has(DR_EXACT) || s.is(DR_ROLE_ORDER)) return;
  const std::vector<double> given = cases::numbers(g.values.dtype, g.values.elements);
  for (size_t i = 0; i < given.size(); ++i)
    if (decoded[i] != 0 && static_cast<double>(decoded[i]) != given[i])
      throw failure(fmt::format("{}: element {} comes back as {}, not {}", what, i, decoded[i], given[i]));
}

uint64_t frames(const subject& s) {
  context one(1), four(4);
  cases::random_source random("frames");
  uint64_t n = 0;
  for (const dr_dtype type : dtypes_of(s))
    for (const uint64_t count : sizes)
      for (const char* ratio : ratios) {
        const gradient g = laplace(random, type, count);
        const dr_tensor tensor = g.tensor();
        const std::string text = plan_of(s, fmt::format("sparsify=topr(ratio={})", ratio));
        const std::string what = fmt::format("'{}', {}", g.values.name, text);
        n += sentence(what, [&]() -> uint64_t {
          const plan p = plan(text);
          auto call = sized<dr_call>();
          call.segment_rows = count > 1000 ? 1000 : 0;
          const std::vector<std::byte> frame = encode_frame(one, p, {&tensor, 1}, &call);
          if (frame != encode_frame(four, p, {&tensor, 1}, &call))
            throw failure(what + ": 4 threads make another frame than one");
          const auto decoded = decode_frame(one, frame, {&count, 1})[0];
          if (!same(decoded, decode_frame(four, frame, {&count, 1})[0]))
            throw failure(what + ": 4 threads decode something else than one");
          check_exact(s, g, decoded, what);
          // Two ranks send the same: the sum is twice that.
          std::vector<float> sum(count);
          dr_tensor_out out = dense_out(DR_F32, sum.data(), count);
          const dr_bytes both[] = {{frame.data(), frame.size()}, {frame.data(), frame.size()}};
          note("dr_merge");
          one.merge(both, {}, {&out, 1});
          for (size_t i = 0; i < count; ++i)
            if (sum[i] != decoded[i] + decoded[i])
              throw failure(fmt::format("{}: element {} of a merge is {}, not {}", what, i, sum[i], 2 * decoded[i]));
          return 1;
        });
      }
  return n;
}

// Tensors without a nonzero, and without an element, among others: streams that are empty.
uint64_t empty(const subject& s) {
  context c(1);
  cases::random_source random("empty");
  for (const dr_dtype type : dtypes_of(s)) {
    const gradient some = laplace(random, type, 100),
                   zeros{cases::values("zeros", type, 1, 100, [](uint64_t) { return 0.0; })},
                   none{cases::values("none", type, 1, 0, [](uint64_t) { return 0.0; })};
    const std::string text = plan_of(s, "sparsify=topr(ratio=0.1)");
    sentence("tensors of 100, 100 zeros, 0 and 100 elements, " + text, [&] {
      const plan p = plan(text);
      const dr_tensor tensors[] = {some.tensor(), zeros.tensor(), none.tensor(), some.tensor()};
      const uint64_t counts[] = {100, 100, 0, 100};
      const auto decoded = decode_frame(c, encode_frame(c, p, tensors), counts);
      if (std::ranges::any_of(decoded[1], [](float v) { return v != 0; }))
        throw failure("a tensor of zeros comes back with something else among tensors that have values, " + text);
      return 0;
    });
  }
  return 4 * dtypes_of(s).size();
}

// Over several steps, sent values plus residual equal the gradients.
uint64_t feedback(const subject& s) {
  if (s.is(DR_ROLE_VALUE) && !(s.codec->dtypes & DR_DTYPE_BIT(DR_F32))) return 0;
  constexpr uint64_t count = 3000, steps = 8;
  context c(1);
  cases::random_source random("feedback");
  const std::string text = plan_of(s, "sparsify=topr(ratio=0.05) feedback=residual");
  return sentence(text, [&]() -> uint64_t {
    const plan p = plan(text);
    std::vector<uint64_t> state;
    std::vector<double> left(count), residual_before(count);
    for (uint64_t step = 0; step < steps; ++step) {
      const gradient g = laplace(random, DR_F32, count);
      dr_tensor tensor = g.tensor();
      if (state.empty()) state.resize((state_size(p, tensor) + 7) / 8);
      tensor.state = state.data();
      tensor.state_size = 8 * state.size();
      auto call = sized<dr_call>();
      call.step = step;
      const auto sent = decode_frame(c, encode_frame(c, p, {&tensor, 1}, &call), {&count, 1})[0];
      float* residual = nullptr;
      uint64_t elements = 0;
      if (dr_state_residual(state.data(), 8 * state.size(), &residual, &elements, nullptr) != DR_OK ||
          elements != count)
        throw failure(text + ": the state has no residual");
      const std::vector<double> given = cases::numbers(DR_F32, g.values.elements);
      for (size_t i = 0; i < count; ++i) {
        const double expected = residual_before[i] + given[i], total = static_cast<double>(sent[i]) + residual[i];
        const double scale = std::abs(expected) + std::abs(static_cast<double>(sent[i]));
        if (!(std::abs(total - expected) <= 1e-6 * scale))
          throw failure(fmt::format("{}, step {}: element {}: {} was sent and the residual is {}, of {}", text, step, i,
                                    sent[i], residual[i], expected));
        residual_before[i] = residual[i];
      }
    }
    return steps;
  });
}

constexpr check frame_list[] = {
    {"frames", "frames of any density decode alike and merge, by any number of threads", frames},
    {"empty", "tensors without a nonzero or an element go along", empty},
    {"feedback", "with feedback=residual, sent values and residuals add up to the gradients", feedback},
};

}  // namespace

std::span<const check> frame_checks() { return frame_list; }

}  // namespace dr::plugin_test
