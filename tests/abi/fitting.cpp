// Encode into a slot: what does not fit stays in feedback, to the last bit.
#include <algorithm>

#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

struct states {
  std::vector<std::vector<uint64_t>> memory;

  // Gives each tensor a fresh one.
  explicit states(std::vector<dr_tensor>& tensors) {
    for (dr_tensor& t : tensors) {
      auto& m = memory.emplace_back(2 + (t.universe * std::max(1u, t.width) + 1) / 2);
      t.state = m.data();
      t.state_size = 8 * m.size();
    }
  }
  floats residual(size_t i) {
    float* r = nullptr;
    uint64_t n = 0;
    REQUIRE(dr_state_residual(memory[i].data(), 8 * memory[i].size(), &r, &n, nullptr) == DR_OK);
    return floats(r, r + n);
  }
};

struct attempt {
  dr_status status;
  dr_result result{};
  bytes frame;
};

attempt encode(client::context& c, const client::plan& p, const std::vector<dr_tensor>& tensors, size_t capacity,
               dr_call call) {
  attempt a{};
  a.result.struct_size = sizeof a.result;
  call.struct_size = sizeof call;
  constexpr uint8_t untouched = 0xcc;
  a.frame.assign(capacity + 16, untouched);
  a.status = dr_encode(c.handle, p.handle, &call, nullptr, tensors.data(), sizeof(dr_tensor), tensors.size(),
                       a.frame.data(), capacity, &a.result);
  CHECK(std::all_of(a.frame.begin() + static_cast<long>(capacity), a.frame.end(),
                    [](uint8_t b) { return b == untouched; }));
  a.frame.resize(a.result.size);
  return a;
}

dr_call fitting(uint64_t step = 0, uint64_t segment_rows = 0) {
  dr_call call{};
  call.step = step;
  call.segment_rows = segment_rows;
  call.flags = DR_CALL_FIT;
  return call;
}

size_t bound_of(client::context& c, const client::plan& p, const std::vector<dr_tensor>& tensors, dr_call call) {
  size_t bytes = 0;
  call.struct_size = sizeof call;
  REQUIRE(dr_bound(c.handle, p.handle, &call, nullptr, tensors.data(), sizeof(dr_tensor), tensors.size(), &bytes) ==
          DR_OK);
  return bytes;
}

std::vector<floats> decode(client::context& c, const bytes& frame, const std::vector<dr_tensor>& tensors) {
  std::vector<floats> values;
  std::vector<dr_tensor_out> outs;
  for (const dr_tensor& t : tensors) {
    const uint32_t width = std::max(1u, t.width);
    outs.push_back(client::dense_out(values.emplace_back(t.universe * width), width));
  }
  for (size_t i = 0; i < outs.size(); ++i) outs[i].values = values[i].data();
  const dr_status s = dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, outs.data(),
                                sizeof(dr_tensor_out), outs.size());
  INFO(c.error());
  REQUIRE(s == DR_OK);
  return values;
}

std::vector<dr_tensor_info> inspect(const bytes& frame, size_t tensors, dr_frame_info* head = nullptr) {
  dr_frame_info own{};
  dr_frame_info& info = head ? *head : own;
  info.struct_size = sizeof info;
  std::vector<dr_tensor_info> infos(tensors);
  for (dr_tensor_info& t : infos) t.struct_size = sizeof t;
  REQUIRE(dr_inspect(frame.data(), frame.size(), &info, infos.data(), sizeof(dr_tensor_info), tensors, nullptr) ==
          DR_OK);
  return infos;
}

const char* const plans[] = {"sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw",
                             "sparsify=topr(ratio=0.1) feedback=residual index=rice value=qsgd",
                             "sparsify=topr(ratio=0.1) feedback=residual index=raw value=fit_poly",
                             "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=fit_poly",
                             "sparsify=random(ratio=0.1) feedback=residual index=golomb value=raw",
                             "sparsify=dgc(ratio=0.1,sample=1) feedback=residual index=golomb value=raw",
                             "sparsify=topr(ratio=0.1) feedback=residual index=bloom(fpr=0.05,policy=p0) value=raw",
                             "sparsify=topr(ratio=0.1) feedback=residual index=bloom(fpr=0.05) value=qsgd+deflate",
                             "sparsify=topr(ratio=0.1) feedback=residual index=seeded(ratio=0.05) value=raw",
                             "sparsify=threshold(value=0.0001) feedback=residual index=golomb value=raw",
                             "sparsify=threshold(value=0.0001,max_ratio=0.2) feedback=residual value=raw",  // dense
                             "sparsify=topr(ratio=0.1) feedback=residual index=auto value=auto(error=0.1)",
                             "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw bucket=flat",
                             "feedback=residual index=all value=qsgd",
                             "feedback=residual index=golomb value=qsgd(levels=3)"};

// Gradients of a step, in tensors of several sizes, of which none is like another.
struct gradients {
  std::vector<floats> values;
  std::vector<dr_tensor> tensors;

  explicit gradients(std::vector<uint64_t> sizes) {
    for (const uint64_t n : sizes) values.emplace_back(n);
    for (const floats& v : values) tensors.push_back(client::dense(v));
  }
  void fill(uint64_t step) {
    for (size_t i = 0; i < values.size(); ++i) {
      const floats fresh = client::laplace(values[i].size(), 100 * step + i, 1e-3 * static_cast<double>(i + 1));
      std::copy(fresh.begin(), fresh.end(), values[i].begin());
    }
  }
};

}  // namespace

TEST_CASE("nothing is lost in slots that are too small: what was not sent is in the residual, bit for bit") {
  for (const char* text : plans)
    for (const uint64_t segment_rows : {uint64_t{0}, uint64_t{400}}) {
      INFO(std::string(text));
      CAPTURE(segment_rows);
      client::context c;
      client::plan p(text);
      gradients g({1500, 0, 400, 90, 1500});
      states s(g.tensors);
      std::vector<floats> residual;
      for (const floats& v : g.values) residual.emplace_back(v.size());
      const size_t bound = bound_of(c, p, g.tensors, fitting(0, segment_rows));
      size_t full = bound, sends = 0, less = 0;
      uint64_t most = 0;  // rows that go in where there is room
      for (uint64_t step = 0; step < 12; ++step) {
        g.fill(step);
        // The whole, then ever less of it, to the header alone, and the whole again.
        const size_t capacity = step % 6 == 0 ? bound : full * (6 - step % 6) / 6;
        attempt a = encode(c, p, g.tensors, capacity, fitting(step, segment_rows));
        if (a.status == DR_E_CAPACITY) a = encode(c, p, g.tensors, a.result.needed, fitting(step, segment_rows));
        INFO(c.error());
        REQUIRE(a.status == DR_OK);
        if (step % 6 == 0) full = a.frame.size();
        const std::vector<floats> sent = decode(c, a.frame, g.tensors);
        for (size_t i = 0; i < sent.size(); ++i) {
          for (size_t k = 0; k < sent[i].size(); ++k) {
            residual[i][k] = g.values[i][k] + residual[i][k];
            residual[i][k] -= sent[i][k];
          }
          CAPTURE(step);
          CAPTURE(i);
          REQUIRE(client::same_bits(s.residual(i), residual[i]));
        }
        uint64_t kept = 0;
        for (const dr_tensor_info& t : inspect(a.frame, g.tensors.size())) {
          kept += t.count;
          sends += t.count > 0;
        }
        CHECK(a.result.kept == kept);
        most = step % 6 == 0 ? kept : most;
        less += 2 * kept < most;
      }
      CHECK(less > 0);
      CHECK(sends > 0);
    }
}

TEST_CASE("other inputs than dense f32 are left out without loss, too") {
  client::context c;
  // bf16; rows of three; pairs. The residual is what a plain sum says.
  floats g = client::laplace(900, 8);
  std::vector<uint16_t> halves(g.size());
  for (size_t i = 0; i < g.size(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, &g[i], 4);
    bits &= 0xffff0000;
    halves[i] = static_cast<uint16_t>(bits >> 16);
    std::memcpy(&g[i], &bits, 4);
  }
  const std::vector<uint64_t> indices = {500, 3, 77, 800};
  const floats few = {1, -2, 3, -4};
  dr_tensor bf16 = client::dense(g), rows = client::dense(g), pairs = client::sparse(indices, few, 900);
  bf16.dtype = DR_BF16;
  bf16.values = halves.data();
  rows.universe = 300;
  rows.width = 3;
  floats scattered(900);
  for (size_t k = 0; k < few.size(); ++k) scattered[indices[k]] = few[k];
  const struct {
    dr_tensor tensor;
    const char* text;
    const floats& dense;
  } cases[] = {{bf16, "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw", g},
               {rows, "feedback=residual index=golomb value=raw", g},
               {pairs, "sparsify=topr(count=2) feedback=residual index=golomb value=raw", scattered}};
  for (const auto& each : cases) {
    INFO(std::string(each.text));
    client::plan p(each.text);
    std::vector<dr_tensor> tensors = {each.tensor};
    states s(tensors);
    floats residual(900);
    for (uint64_t step = 0; step < 4; ++step) {
      attempt a = encode(c, p, tensors, 20, fitting(step));
      if (a.status == DR_E_CAPACITY) a = encode(c, p, tensors, a.result.needed, fitting(step));
      REQUIRE(a.status == DR_OK);
      CHECK(a.result.kept == 0);
      for (size_t i = 0; i < residual.size(); ++i) residual[i] += each.dense[i];
      REQUIRE(client::same_bits(s.residual(0), residual));
    }
    // And leaves it once there is room.
    const attempt a = encode(c, p, tensors, bound_of(c, p, tensors, fitting()), fitting(9));
    REQUIRE(a.status == DR_OK);
    CHECK(a.result.kept > 0);
    const floats sent = decode(c, a.frame, tensors)[0];
    for (size_t i = 0; i < residual.size(); ++i) residual[i] = residual[i] + each.dense[i] - sent[i];
    CHECK(client::same_bits(s.residual(0), residual));
  }
}

TEST_CASE("a large tensor that several threads select from is restored completely") {
  const char* text = "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw";
  client::plan p(text);
  for (const uint32_t threads : {1u, 4u}) {
    client::context c(threads);
    gradients g({400000});
    states s(g.tensors);
    g.fill(1);
    g.values[0][5] = -0.0f;
    g.values[0][6] = 1e-42f;
    REQUIRE(encode(c, p, g.tensors, 200, fitting(0)).status == DR_OK);
    CHECK(client::same_bits(s.residual(0), [&] {
      floats sum(g.values[0]);
      for (float& v : sum) v = v + 0.0f;
      return sum;
    }()));
    const floats before = s.residual(0);
    g.fill(2);
    REQUIRE(encode(c, p, g.tensors, 200, fitting(1)).status == DR_OK);
    floats sum(before);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = g.values[0][i] + before[i];
    CHECK(client::same_bits(s.residual(0), sum));
  }
}

TEST_CASE("left out are the fewest bytes that a greedy choice finds, and what fits is the frame of any other call") {
  client::context c;
  client::plan p("sparsify=topr(ratio=0.1) feedback=residual index=golomb value=qsgd");
  const auto fresh = [&](gradients& g) {
    g.fill(3);
    return states(g.tensors);
  };
  gradients g({700, 3000, 90, 1500, 3000, 20});
  states first = fresh(g);
  dr_call plain{};
  const attempt whole = encode(c, p, g.tensors, bound_of(c, p, g.tensors, plain), plain);
  REQUIRE(whole.status == DR_OK);
  dr_frame_info head{};
  std::vector<uint64_t> sizes;
  for (const dr_tensor_info& t : inspect(whole.frame, g.tensors.size(), &head))
    sizes.push_back((t.index_size + t.value_size + t.order_size + 3) / 4 * 4);
  for (size_t capacity = head.header_size; capacity <= whole.frame.size(); capacity += 7) {
    CAPTURE(capacity);
    std::vector<bool> out(sizes.size());
    for (uint64_t excess = whole.frame.size() - capacity; excess;) {
      size_t best = sizes.size();
      for (size_t i = 0; i < sizes.size(); ++i)
        if (!out[i] && sizes[i] >= excess && (best == sizes.size() || sizes[i] < sizes[best])) best = i;
      if (best == sizes.size())
        for (size_t i = 0; i < sizes.size(); ++i)
          if (!out[i] && (best == sizes.size() || sizes[i] >= sizes[best])) best = i;
      REQUIRE(best < sizes.size());
      out[best] = true;
      excess -= std::min(excess, sizes[best]);
    }
    states s = fresh(g);
    const attempt a = encode(c, p, g.tensors, capacity, fitting());
    REQUIRE(a.status == DR_OK);
    CHECK(a.frame.size() <= capacity);
    const auto infos = inspect(a.frame, g.tensors.size());
    for (size_t i = 0; i < infos.size(); ++i) CHECK((infos[i].count == 0) == out[i]);
  }
  states s = fresh(g);
  const attempt fits = encode(c, p, g.tensors, whole.frame.size(), fitting());
  CHECK(fits.status == DR_OK);
  CHECK(fits.frame == whole.frame);
  CHECK(s.memory == first.memory);
}

TEST_CASE("less than an empty frame is CAPACITY; `needed` reports how much would do, and states stay") {
  for (const char* text : plans) {
    INFO(std::string(text));
    client::context c;
    client::plan p(text);
    gradients g({1500, 400});
    g.fill(1);
    states s(g.tensors);
    const auto before = s.memory;
    const attempt none = encode(c, p, g.tensors, 8, fitting());
    CHECK(none.status == DR_E_CAPACITY);
    CHECK(none.result.size == 0);
    CHECK(none.result.kept == 0);
    CHECK(dr_last_error(c.handle)->needed == none.result.needed);
    CHECK(s.memory == before);
    const size_t needed = none.result.needed;
    CHECK(needed > 8);
    CHECK(encode(c, p, g.tensors, needed - 1, fitting()).status == DR_E_CAPACITY);
    CHECK(s.memory == before);
    const attempt empty = encode(c, p, g.tensors, needed, fitting());
    CHECK(empty.status == DR_OK);
    CHECK(empty.frame.size() == needed);
    CHECK(empty.result.kept == 0);
    CHECK(empty.result.needed == 0);
    // Without the flag it says how many bytes of this frame would have done.
    states again(g.tensors);
    const attempt small = encode(c, p, g.tensors, needed, dr_call{});
    CHECK(small.status == DR_E_CAPACITY);
    CHECK(encode(c, p, g.tensors, small.result.needed - 1, dr_call{}).status == DR_E_CAPACITY);
    const attempt whole = encode(c, p, g.tensors, small.result.needed, dr_call{});
    CHECK(whole.status == DR_OK);
    CHECK(whole.frame.size() == small.result.needed);
  }
}

TEST_CASE("fitting is for plans with feedback, and not for GPUs") {
  client::context c;
  client::plan with("sparsify=topr(ratio=0.1) feedback=residual index=golomb"), without("sparsify=topr(ratio=0.1)");
  gradients g({1500, 400});
  g.fill(1);
  states s(g.tensors);
  const auto before = s.memory;
  std::vector<dr_tensor> mixed = g.tensors;
  mixed[1].plan = without.handle;
  mixed[1].state = nullptr;
  mixed[1].state_size = 0;
  const attempt a = encode(c, with, mixed, bound_of(c, with, mixed, fitting()), fitting());
  CHECK(a.status == DR_E_ARGUMENT);
  CHECK(a.result.tensor == 1);
  CHECK(c.error().find("tensor 1") != std::string::npos);
  CHECK(s.memory == before);

  dr_place place{};
  place.struct_size = sizeof place;
  place.kind = DR_PLACE_EMULATED;
  dr_call call = fitting();
  call.struct_size = sizeof call;
  alignas(16) static uint8_t frame[1 << 16];
  CHECK(dr_encode(c.handle, with.handle, &call, &place, g.tensors.data(), sizeof(dr_tensor), 2, frame, sizeof frame,
                  nullptr) == DR_E_UNSUPPORTED);
  CHECK(c.error().find("FIT") != std::string::npos);
  CHECK(s.memory == before);
  CHECK((dr_feature(DR_FEATURE_CALL_FLAGS) & DR_CALL_FIT) != 0);
}

TEST_CASE("an infinity that does not fit leaves the residual all the same") {
  client::context c;
  client::plan p("sparsify=topr(count=10) feedback=residual index=raw value=raw");
  gradients g({100});
  g.fill(1);
  g.values[0][3] = INFINITY;
  states s(g.tensors);
  REQUIRE(encode(c, p, g.tensors, 40, fitting()).result.kept == 0);
  CHECK(s.residual(0)[3] == 0);
  CHECK(s.residual(0)[4] == g.values[0][4]);
  g.fill(2);
  REQUIRE(encode(c, p, g.tensors, 4096, fitting(1)).result.kept == 10);
  for (const float v : s.residual(0)) REQUIRE(std::isfinite(v));
}
