// Every sparsifier that there is keeps what its case says: in any type, cut into segments or joined in a bucket, dense or sparse, summed
// with a residual, on one thread or several.
#include <cstring>
#include <set>

#include "cases/sparsifier_case.hpp"
#include "client.hpp"

namespace dr::properties {
namespace {

using cases::kept_input;
using cases::positions;
using client::bytes;

constexpr uint64_t seed = 11, step = 3, tensor_key = 99;

kept_input dense(uint32_t dtype, uint64_t n, uint32_t (*bits)(cases::random_source&, uint32_t dtype, uint64_t i)) {
  cases::random_source random("sparsifiers");
  kept_input in{dtype, std::vector<uint32_t>(n), n, {}, 0};
  for (uint64_t i = 0; i < n; ++i) in.bits[i] = bits(random, dtype, i);
  in.shared = cases::combined(cases::combined(cases::combined(0, seed), step), tensor_key);
  return in;
}

uint32_t laplace(cases::random_source& random, uint32_t dtype, uint64_t) {
  return cases::bits_of(dtype, 0.001 * random.laplace());
}
uint32_t mostly_zero(cases::random_source& random, uint32_t dtype, uint64_t i) {
  const uint32_t bits = laplace(random, dtype, i);
  return i % 300 ? bits & cases::format_of(dtype).sign() : bits;
}
uint32_t constant(cases::random_source&, uint32_t dtype, uint64_t i) {
  return cases::bits_of(dtype, i % 2 ? 0.25 : -0.25);
}
uint32_t anything(cases::random_source& random, uint32_t dtype, uint64_t) {  // NaN and infinities, too
  return static_cast<uint32_t>(random.below(uint64_t{1} << 8 * cases::format_of(dtype).bytes));
}

struct call_of {
  uint32_t threads = 1;
  uint64_t segment_rows = 0;
  const char* more = "";  // of the plan
};

// Encodes parts of the values, each a tensor; returns all of them decoded.
std::vector<uint32_t> decoded(const kept_input& in, const cases::sparsifier_plan& plan, const call_of& how,
                              std::span<const uint64_t> parts, uint64_t& count) {
  const unsigned width = cases::format_of(in.dtype).bytes;
  const bytes values = cases::bytes_of(in.bits, width);
  std::vector<uint32_t> weights;
  for (uint64_t i = 0; i < in.bits.size(); ++i)
    weights.push_back(plan.weighs ? cases::bits_of(in.dtype, cases::weight_at(i)) : 0);
  const bytes base = cases::bytes_of(weights, width);
  const std::string text = std::string("sparsify=") + plan.text + " index=raw value=raw" + how.more;
  std::vector<dr_tensor> tensors;
  std::vector<std::vector<uint64_t>> states;
  uint64_t at = 0;
  for (const uint64_t n : parts) {
    dr_tensor t{};
    t.struct_size = sizeof t;
    t.dtype = in.dtype;
    t.universe = in.indices.empty() ? n : in.universe;
    t.values = values.data() + at * width;
    t.key = tensor_key;
    if (plan.of_base || plan.weighs) t.base = base.data() + at * width;
    if (!in.indices.empty()) {
      t.index_dtype = DR_U64;
      t.indices = in.indices.data();
      t.count = n;
    }
    if (std::strstr(how.more, "feedback")) {
      t.state_size = 16 + 4 * n;
      t.state = states.emplace_back(t.state_size / 8 + 1).data();
    }
    tensors.push_back(t);
    at += n;
  }
  client::context context(how.threads);
  dr_call call{};
  call.seed = seed;
  call.step = step;
  call.segment_rows = how.segment_rows;
  const bytes frame = client::encode(context, text, tensors, call);
  if (how.threads > 1) {
    client::context alone;
    for (auto& s : states) std::fill(s.begin(), s.end(), 0);
    const bool same = client::encode(alone, text, tensors, call) == frame;
    CHECK(same);
  }
  std::vector<bytes> got;
  std::vector<dr_tensor_out> outs;
  for (const dr_tensor& t : tensors) {
    dr_tensor_out o{};
    o.struct_size = sizeof o;
    o.dtype = in.dtype;
    o.universe = t.universe;
    o.width = 1;
    o.values = got.emplace_back(t.universe * width + 1).data();
    outs.push_back(o);
  }
  dr_decode_options options{};
  options.struct_size = sizeof options;
  options.flags = plan.of_base ? DR_DECODE_APPLY : 0;
  const dr_status s = dr_decode(context.handle, nullptr, frame.data(), frame.size(), &options, outs.data(),
                                sizeof outs[0], outs.size());
  INFO(context.error());
  REQUIRE(s == DR_OK);
  dr_frame_info info{};
  info.struct_size = sizeof info;
  std::vector<dr_tensor_info> of_tensors(parts.size());
  for (dr_tensor_info& t : of_tensors) t.struct_size = sizeof t;
  REQUIRE(dr_inspect(frame.data(), frame.size(), &info, of_tensors.data(), sizeof of_tensors[0], of_tensors.size(),
                     nullptr) == DR_OK);
  count = 0;
  for (uint32_t i = 0; i < info.tensors; ++i) count += of_tensors[i].count;
  std::vector<uint32_t> all;
  for (size_t i = 0; i < outs.size(); ++i)
    for (uint64_t k = 0; k < tensors[i].universe; ++k) all.push_back(cases::element(got[i], width, k));
  return all;
}

void check(const kept_input& in, const cases::sparsifier_plan& plan, call_of how, std::span<const uint64_t> parts) {
  how.segment_rows -= how.segment_rows % plan.whole;
  INFO(std::string(plan.text) << std::string(how.more) << ", dtype " << in.dtype << ", " << in.bits.size() << " of "
                              << in.universe << ", segments of " << how.segment_rows << ", " << how.threads
                              << " threads, " << parts.size() << " tensors");
  kept_input seen = in;
  seen.segment = how.segment_rows;
  const positions kept = plan.keeps(seen);
  std::vector<uint32_t> expected(in.universe);
  for (const uint64_t i : kept) expected[in.indices.empty() ? i : in.indices[i]] = in.bits[i];
  uint64_t count = 0;
  const bool same = decoded(in, plan, how, parts, count) == expected;
  CHECK(same);
  CHECK(count == kept.size());
}

template <class F>
void each_plan(F&& f, bool sparse = false) {
  for (const cases::sparsifier_case& c : cases::sparsifiers())
    for (const cases::sparsifier_plan& plan : c.plans)
      if (!sparse || !c.dense_only) f(plan);
}

}  // namespace

TEST_CASE("every sparsifier of the library has a case") {
  std::set<std::string> known, listed;
  for (const cases::sparsifier_case& c : cases::sparsifiers()) known.insert(c.name);
  for (size_t i = 0; i < dr_codec_count(); ++i)
    if (dr_codec_at(i)->role == DR_ROLE_SPARSIFY) listed.insert(dr_codec_at(i)->name);
  CHECK(known == listed);
}

TEST_CASE("a sparsifier keeps what its SPEC.md states, of any values of any type, in any segments") {
  for (const uint32_t dtype : {DR_F32, DR_F16, DR_BF16})
    for (const auto bits : {laplace, mostly_zero, constant, anything})
      for (const uint64_t n : {0, 1, 64, 1000, 4000}) {
        const kept_input in = dense(dtype, n, bits);
        each_plan([&](const auto& plan) {
          check(in, plan, {}, {{n}});
          check(in, plan, {1, 777}, {{n}});
        });
      }
}

TEST_CASE("a sparsifier keeps the same on several threads, and frames are the same bytes") {
  constexpr uint64_t n = 300000;
  for (const auto bits : {laplace, constant}) {
    const kept_input in = dense(DR_F32, n, bits);
    each_plan([&](const auto& plan) {
      check(in, plan, {3}, {{n}});
      check(in, plan, {3, 70000}, {{n}});
      if (!plan.of_base) check(in, plan, {3, 0, " feedback=residual"}, {{n}});
    });
  }
}

TEST_CASE("a sparsifier accepts a bucket as one tensor") {
  for (const uint32_t dtype : {DR_F32, DR_BF16}) {
    const kept_input in = dense(dtype, 6000, laplace);
    const uint64_t parts[] = {1, 2500, 0, 3499};
    each_plan([&](const auto& plan) {
      if (plan.of_base || plan.weighs) return;  // (each tensor has its own)
      check(in, plan, {1, 0, " bucket=flat"}, parts);
      check(in, plan, {2, 1000, " bucket=flat"}, parts);
      check(in, plan, {1, 0, " feedback=residual bucket=flat"}, parts);
    });
  }
}

TEST_CASE("of a tensor that arrives sparse a sparsifier keeps a part") {
  cases::random_source random("sparse tensors");
  for (const auto& [universe, n] : {std::pair{9000, 2000}, {5, 5}, {1 << 20, 900}}) {
    kept_input in = dense(DR_F32, static_cast<uint64_t>(n), laplace);
    in.universe = static_cast<uint64_t>(universe);
    for (const uint32_t x : random.subset(in.universe, in.bits.size())) in.indices.push_back(x);
    const uint64_t parts[] = {in.bits.size()};
    each_plan(
        [&](const auto& plan) {
          check(in, plan, {}, parts);
          check(in, plan, {1, 3000}, parts);
        },
        true);
  }
}

TEST_CASE("a sparsifier of blocks, or of a base, refuses a tensor that arrives sparse") {
  for (const cases::sparsifier_case& c : cases::sparsifiers()) {
    if (!c.dense_only) continue;
    const client::context context;
    const client::plan plan(std::string("sparsify=") + c.plans[0].text);
    const uint32_t at[] = {3, 5};
    const float values[] = {1, 2};
    dr_tensor t{};
    t.struct_size = sizeof t;
    t.dtype = DR_F32;
    t.index_dtype = DR_U32;
    t.universe = 10;
    t.values = values;
    t.indices = at;
    t.count = 2;
    size_t bound = 0;
    CHECK(dr_bound(context.handle, plan.handle, nullptr, nullptr, &t, sizeof t, 1, &bound) == DR_E_UNSUPPORTED);
    const std::string error = context.error();
    CHECK(error.find(std::string(c.name) + " requires dense tensors") != std::string::npos);
  }
}

}  // namespace dr::properties
