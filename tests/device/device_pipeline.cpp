// The whole pipeline of the GPU, on one that the CPU plays, against the CPU's own: same frames, same states, same outputs, same faults.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "../client.hpp"
#include "../fuzz/fix_check.hpp"

namespace {

using namespace client;

dr_place emulated(int32_t seed = 1, uint32_t flags = 0) {
  dr_place p{};
  p.struct_size = sizeof p;
  p.kind = DR_PLACE_EMULATED;
  p.device = seed;
  p.flags = flags;
  return p;
}

// A gradient of any type, in memory of its own.
struct gradient {
  dr_dtype dtype = DR_F32;
  uint64_t universe = 0;
  uint32_t width = 1;
  std::vector<uint32_t> words;
  std::vector<int64_t> indices;
  bool is_sparse = false;
  std::vector<uint64_t> state;
  const client::plan* own = nullptr;  // or the call's

  uint64_t value_size() const { return dtype == DR_F32 ? 4 : 2; }
  dr_tensor tensor() {
    dr_tensor t{};
    t.struct_size = sizeof t;
    t.dtype = dtype;
    t.universe = universe;
    t.width = width;
    t.values = words.data();
    if (own) t.plan = own->handle;
    if (is_sparse) {
      t.index_dtype = DR_I64;
      t.indices = indices.data();
      t.count = indices.size();
    }
    if (!state.empty()) {
      t.state = state.data();
      t.state_size = 8 * state.size();
    }
    return t;
  }
};

// bf16 and f16 by cutting: any bits will do.
uint16_t half_of(dr_dtype dtype, float v) {
  uint32_t b;
  std::memcpy(&b, &v, 4);
  if (dtype == DR_BF16) return static_cast<uint16_t>(b >> 16);
  const int e = static_cast<int>(b >> 23 & 0xff) - 112;
  const uint32_t sign = b >> 16 & 0x8000;
  if (e <= 0) return static_cast<uint16_t>(sign | (b >> 13 & 0x3ff));
  return static_cast<uint16_t>(sign | std::min(e, 30) << 10 | (b >> 13 & 0x3ff));
}

void set(gradient& g, uint64_t i, float v) {
  if (g.dtype == DR_F32)
    std::memcpy(&g.words[i], &v, 4);
  else
    reinterpret_cast<uint16_t*>(g.words.data())[i] = half_of(g.dtype, v);
}

gradient make(dr_dtype dtype, uint64_t universe, uint64_t seed, uint32_t width = 1, double zeros = 0) {
  gradient g;
  g.dtype = dtype;
  g.universe = universe;
  g.width = width;
  g.words.assign(universe * width + 1, 0);
  rng r{seed};
  for (uint64_t i = 0; i < universe; ++i) {
    if (r.uniform() < zeros) continue;
    for (uint32_t w = 0; w < width; ++w) set(g, i * width + w, r.laplace(1));
  }
  return g;
}

gradient make_sparse(dr_dtype dtype, uint64_t universe, uint64_t count, uint64_t seed, uint32_t width = 1) {
  gradient g = make(dtype, count, seed, width);
  g.is_sparse = true;
  g.universe = universe;
  rng r{seed + 1};
  for (uint64_t i = 0; i < count; ++i)
    g.indices.push_back(
        static_cast<int64_t>(i * universe / count + r.next() % std::max<uint64_t>(1, universe / count)));
  return g;
}

struct encoded {
  dr_status status = DR_OK;
  bytes frame;
  dr_result result{.struct_size = sizeof(dr_result)};
  std::string error;
};

encoded encode_at(const dr_place* place, const plan& p, std::vector<gradient>& gradients, dr_call call = {}) {
  context c;
  std::vector<dr_tensor> tensors;
  for (gradient& g : gradients) tensors.push_back(g.tensor());
  encoded e;
  size_t bound = 0;
  call.struct_size = sizeof call;
  e.status = dr_bound(c.handle, p.handle, &call, nullptr, tensors.data(), sizeof(dr_tensor), tensors.size(), &bound);
  INFO(c.error());
  REQUIRE(e.status == DR_OK);
  const size_t room = (bound + 15) / 16 * 16 + 64;
  std::vector<uint64_t> memory(room / 8 + 2, 0xcccccccccccccccc);
  auto* const frame =
      reinterpret_cast<uint8_t*>(memory.data()) + (reinterpret_cast<uintptr_t>(memory.data()) % 16 ? 8 : 0);
  e.result.struct_size = sizeof e.result;
  e.status = dr_encode(c.handle, p.handle, &call, place, tensors.data(), sizeof(dr_tensor), tensors.size(), frame,
                       bound, &e.result);
  if (e.status) e.error = c.error();
  for (size_t i = bound; i < room; ++i) CHECK(frame[i] == 0xcc);
  if (!e.status) e.status = e.result.status;
  e.frame.assign(frame, frame + e.result.size);
  return e;
}

// 16-byte aligned copy, as device memory would be.
struct aligned_bytes {
  std::vector<uint64_t> words;
  uint8_t* data;
  size_t size;
  explicit aligned_bytes(const bytes& from) : words(from.size() / 8 + 8), size(from.size()) {
    data = reinterpret_cast<uint8_t*>(words.data());
    if (reinterpret_cast<uintptr_t>(data) % 16) data += 8;
    if (size) std::memcpy(data, from.data(), size);
  }
};

struct decoded {
  dr_status status;
  std::vector<floats> values;
  std::string error;
};

decoded decode_at(const dr_place* place, const bytes& frame, const std::vector<gradient>& like) {
  context c;
  decoded d;
  std::vector<dr_tensor_out> outs;
  for (const gradient& g : like) d.values.emplace_back(g.universe * g.width, -77.0f);
  for (size_t i = 0; i < like.size(); ++i) outs.push_back(dense_out(d.values[i], like[i].width));
  const aligned_bytes f(frame);
  d.status = dr_decode(c.handle, place, f.data, f.size, nullptr, outs.data(), sizeof(dr_tensor_out), outs.size());
  if (d.status) d.error = c.error();
  return d;
}

const char* const plans[] = {"index=raw value=raw",
                             "index=golomb value=raw",
                             "index=rice value=qsgd",
                             "index=golomb value=qsgd(levels=7,bucket=100)",
                             "index=golomb value=log_quant",
                             "index=golomb value=uniform_quant(error=0.05)",
                             "index=rice value=half(type=bf16)",
                             "index=golomb value=sign(scale=mean)",
                             "index=rice value=sign(scale=means)",
                             "index=golomb value=ternary",
                             "index=golomb value=lloyd(price=0.35)",
                             "index=bloom(fpr=0.01) value=raw",
                             "index=bloom(policy=p0,fpr=0.02) value=qsgd",
                             "index=golomb value=fit_poly",
                             "index=raw value=fit_poly",
                             "index=bloom(policy=p0,fpr=0.01) value=fit_poly",
                             "index=bloom(policy=naive,fpr=0.05) value=raw",
                             "index=all value=raw",
                             "index=all value=uniform_quant(bits=8)",
                             "index=all value=qsgd",
                             "index=all value=half",
                             "index=all value=fit_poly"};
const char* const sparsifiers[] = {"sparsify=topr(ratio=0.01)", "sparsify=topr(ratio=0.2)",
                                   "sparsify=threshold(value=3)", "sparsify=threshold(value=1,max_ratio=0.3)",
                                   "sparsify=none"};

// Plans whose codecs are there: all of them, in a complete build.
std::vector<std::string> all_plans() {
  std::vector<std::string> out;
  for (const char* s : sparsifiers)
    for (const char* p : plans) out.push_back(std::string(s) + " " + p);
  return out;
}

void same_encode(const std::string& text, std::vector<gradient> a, const dr_call& call = {}, int seeds = 2) {
  INFO(text);
  const plan p(text);
  std::vector<gradient> b = a;
  const encoded want = encode_at(nullptr, p, a, call);
  for (int seed = 0; seed < seeds; ++seed) {
    std::vector<gradient> own = b;
    const dr_place place = emulated(seed);
    const encoded got = encode_at(&place, p, own, call);
    INFO("seed " << seed << ": " << got.error << " / " << want.error);
    REQUIRE(got.status == want.status);
    if (want.status) {
      CHECK(got.result.tensor == want.result.tensor);
      CHECK(got.result.stream == want.result.stream);
      CHECK(got.result.where == want.result.where);
      CHECK(got.result.what == want.result.what);
      continue;
    }
    REQUIRE(got.frame.size() == want.frame.size());
    const auto differs = std::mismatch(got.frame.begin(), got.frame.end(), want.frame.begin());
    INFO("first difference at " << differs.first - got.frame.begin());
    REQUIRE(got.frame == want.frame);
    for (size_t i = 0; i < a.size(); ++i) CHECK(own[i].state == a[i].state);
    const decoded x = decode_at(nullptr, want.frame, a), y = decode_at(&place, want.frame, a);
    INFO("decode: " << x.error << " / " << y.error);
    REQUIRE(x.status == DR_OK);
    REQUIRE(y.status == DR_OK);
    for (size_t i = 0; i < a.size(); ++i) CHECK(same_bits(x.values[i], y.values[i]));
  }
}

}  // namespace

TEST_CASE("a GPU makes the frame that the CPU makes, and reads it to the same values") {
  for (const std::string& text : all_plans()) {
    for (const dr_dtype dtype : {DR_F32, DR_F16, DR_BF16}) {
      same_encode(text, {make(dtype, 5000, 3)});
      same_encode(text, {make(dtype, 700, 4, 1, 0.9), make(dtype, 3, 5), make(dtype, 20000, 6)});
    }
  }
}

TEST_CASE("tensors without a value, without an element, of all zeros and of one element") {
  for (const std::string& text : all_plans()) {
    if (text.find("bloom(") != std::string::npos && text.find("none") != std::string::npos) continue;
    same_encode(text, {make(DR_F32, 1, 3)});
    same_encode(text, {make(DR_F32, 100, 3, 1, 1.0)});
    same_encode(text, {make(DR_F32, 100, 3, 1, 1.0), make(DR_F32, 1, 1), make(DR_F16, 64, 1)});
  }
  same_encode("sparsify=topr(ratio=0.5) index=golomb", {make(DR_F32, 0, 3), make(DR_F32, 40, 3)});
  same_encode("index=golomb", {});
}

TEST_CASE("rows of any width, dense and sparse, and sparse tensors of any index") {
  for (const char* p :
       {"index=raw value=raw", "index=golomb value=raw", "index=golomb value=qsgd", "index=bloom(fpr=0.01) value=raw"})
    for (const dr_dtype dtype : {DR_F32, DR_BF16}) {
      same_encode(p, {make(dtype, 900, 7, 5, 0.8)});
      same_encode(p, {make_sparse(dtype, 100000, 900, 7, 3), make_sparse(dtype, 50, 50, 8)});
      same_encode(p, {make_sparse(dtype, 3000000, 3000, 9)});
    }
  same_encode("index=golomb value=fit_poly", {make_sparse(DR_F32, 100000, 900, 7)});
  for (const char* p : {"index=all value=raw", "index=all value=qsgd", "index=all value=sign(scale=mean)"})
    for (const dr_dtype dtype : {DR_F32, DR_BF16}) {
      same_encode(p, {make(dtype, 900, 7, 5, 0.8), make(dtype, 3, 7, 3000, 0.5), make(dtype, 70, 7, 2, 1)});
      same_encode(p, {make_sparse(dtype, 5000, 90, 7, 3), make_sparse(dtype, 50, 50, 8)});
    }
}

TEST_CASE("tags, lists, seeds and steps are the caller's on a GPU, too") {
  dr_call call{};
  call.flags = DR_CALL_TAG | DR_CALL_LIST;
  call.tag = 0x1122334455667788;
  call.step = 9;
  call.seed = 8;
  call.private_seed = 7;
  same_encode("sparsify=topr(ratio=0.1) index=golomb value=qsgd", {make(DR_F32, 5000, 3)}, call);
  same_encode("sparsify=topr(ratio=0.1) index=golomb value=qsgd", {make(DR_F32, 5000, 3), make(DR_F32, 50, 3)}, call);
}

TEST_CASE("feedback keeps on a GPU what it keeps on the CPU, step after step") {
  for (const char* p :
       {"index=raw value=raw", "index=golomb value=qsgd", "index=golomb value=fit_poly", "index=raw value=fit_poly",
        "index=bloom(policy=p0,fpr=0.01) value=qsgd", "index=bloom(fpr=0.02) value=raw", "index=all value=raw",
        "index=all value=uniform_quant(bits=4)", "index=all value=fit_poly"})
    for (const char* s : {"sparsify=topr(ratio=0.05) feedback=residual(beta=0.9,gamma=0.5)",
                          "sparsify=threshold(value=2,max_ratio=0.2) feedback=residual",
                          "sparsify=none feedback=residual(beta=0.9,gamma=0.5)"}) {
      // (A filter has no rate for all elements.)
      if (std::strstr(p, "bloom") && std::strstr(s, "none")) continue;
      for (const dr_dtype dtype : {DR_F32, DR_F16}) {
        INFO(s << " " << p);
        const plan both(std::string(s) + " " + p);
        std::vector<gradient> a{make(dtype, 3000, 1), make(dtype, 400, 2)};
        for (gradient& g : a) g.state.assign((16 + 4 * g.universe + 7) / 8, 0);
        std::vector<gradient> b = a;
        for (uint64_t step = 0; step < 3; ++step) {
          for (size_t i = 0; i < a.size(); ++i) {
            const gradient fresh = make(dtype, a[i].universe, 10 * step + i);
            a[i].words = b[i].words = fresh.words;
          }
          dr_call call{};
          call.step = step;
          const dr_place place = emulated(static_cast<int32_t>(step));
          const encoded x = encode_at(nullptr, both, a, call), y = encode_at(&place, both, b, call);
          INFO("step " << step << " " << y.error);
          REQUIRE(y.status == DR_OK);
          REQUIRE(x.frame == y.frame);
          for (size_t i = 0; i < a.size(); ++i) REQUIRE(a[i].state == b[i].state);
        }
      }
    }
}

TEST_CASE("a value that is not finite is the same fault, of the same tensor and element") {
  for (const char* p : {"index=golomb value=qsgd", "index=bloom(fpr=0.01) value=qsgd", "index=golomb value=fit_poly"}) {
    std::vector<gradient> g{make(DR_F32, 500, 1), make(DR_F32, 5000, 2)};
    set(g[1], 4321, std::numeric_limits<float>::infinity());
    set(g[1], 17, std::numeric_limits<float>::quiet_NaN());
    same_encode(std::string("sparsify=topr(ratio=0.1) ") + p, g);
  }
  std::vector<gradient> raw{make(DR_F32, 500, 1)};
  set(raw[0], 3, std::numeric_limits<float>::quiet_NaN());
  same_encode("sparsify=topr(ratio=0.1) index=golomb value=raw", raw);
  same_encode("index=all value=raw", raw);
  for (const char* s : {"", "bucket=flat ", "sparsify=topr(ratio=0.1) "})
    for (const dr_dtype dtype : {DR_F32, DR_BF16}) {
      std::vector<gradient> g{make(dtype, 500, 1), make(dtype, 25000, 2), make(dtype, 30, 3)};
      set(g[1], 24321, std::numeric_limits<float>::infinity());
      set(g[1], 9017, std::numeric_limits<float>::quiet_NaN());
      set(g[2], 0, -std::numeric_limits<float>::infinity());
      same_encode(std::string(s) + "index=all value=uniform_quant(bits=4)", g);
    }
  std::vector<gradient> wide{make(DR_F32, 700, 1, 5)};
  set(wide[0], 3217, std::numeric_limits<float>::infinity());
  same_encode("index=all value=qsgd", wide);
}

TEST_CASE("indices that do not ascend, or are out of range, are refused by a GPU") {
  const plan p("index=golomb");
  for (const int64_t wrong : {int64_t{5}, int64_t{4}, int64_t{100000}, int64_t{-1}, int64_t{1} << 32}) {
    std::vector<gradient> g{make_sparse(DR_F32, 100000, 3, 1)};
    g[0].indices = {2, 5, wrong};
    const dr_place place = emulated(3);
    dr_call call{};
    call.flags = DR_CALL_STATUS_FRAME;
    const encoded e = encode_at(&place, p, g, call);
    CHECK(e.status == DR_E_ARGUMENT);
    CHECK(e.result.tensor == 0);
    // And its status frame says so, everywhere.
    for (const dr_place* at : {static_cast<const dr_place*>(nullptr), &place}) {
      const decoded d = decode_at(at, e.frame, g);
      CHECK(d.status == DR_E_PEER);
    }
  }
}

TEST_CASE("what has no path on a GPU is refused with its name, or takes the CPU's if the caller allows it") {
  std::vector<gradient> g{make(DR_F32, 5000, 1)};
  for (const char* name : {"blocks", "dgc"}) {
    const plan by_chance(std::string("sparsify=") + name + "(ratio=0.1) index=golomb");
    const dr_place strict = emulated(1), lenient = emulated(1, DR_PLACE_ALLOW_HOST);
    const encoded refused = encode_at(&strict, by_chance, g);
    CHECK(refused.status == DR_E_UNSUPPORTED);
    CHECK(refused.error.find(name) != std::string::npos);
    CHECK(encode_at(&lenient, by_chance, g).frame == encode_at(nullptr, by_chance, g).frame);
  }
  const std::pair<const char*, const char*> streams[] = {
      {"value=raw+deflate", "deflate runs on the CPU only"},
      {"value=natural", "natural runs on the CPU only"},
      {"value=fit_poly(knots=chord)", "fit_poly with these parameters runs on the CPU only"},
      {"value=fit_poly(sign=order)", "fit_poly with these parameters runs on the CPU only"}};
  for (const auto& [value, reason] : streams) {
    const plan p(std::string("sparsify=topr(ratio=0.1) index=golomb ") + value);
    const dr_place strict = emulated(1), lenient = emulated(1, DR_PLACE_ALLOW_HOST);
    const encoded refused = encode_at(&strict, p, g);
    CHECK(refused.status == DR_E_UNSUPPORTED);
    CHECK(refused.error.find(reason) != std::string::npos);
    const encoded want = encode_at(nullptr, p, g), got = encode_at(&lenient, p, g);
    CHECK(got.status == DR_OK);
    CHECK(got.frame == want.frame);
    CHECK(decode_at(&strict, want.frame, g).status == DR_E_UNSUPPORTED);
    const decoded x = decode_at(nullptr, want.frame, g), y = decode_at(&lenient, want.frame, g);
    REQUIRE(y.status == DR_OK);
    CHECK(same_bits(x.values[0], y.values[0]));
  }
}

TEST_CASE("a codec may have a path on a GPU for some parameters only: the others are refused, or take the CPU's") {
  std::vector<gradient> g{make(DR_F32, 5000, 1)};
  const dr_place strict = emulated(1), lenient = emulated(1, DR_PLACE_ALLOW_HOST);
  for (const char* parameters : {"policy=middle", "policy=rightmost", "policy=p1", "policy=p2", "layout=split_block",
                                 "policy=p0,layout=split_block"}) {
    INFO(parameters);
    const plan p("sparsify=topr(ratio=0.1) index=bloom(fpr=0.01," + std::string(parameters) + ")");
    const encoded refused = encode_at(&strict, p, g);
    CHECK(refused.status == DR_E_UNSUPPORTED);
    CHECK(refused.error.find("bloom with these parameters runs on the CPU only") != std::string::npos);
    const encoded want = encode_at(nullptr, p, g), got = encode_at(&lenient, p, g);
    CHECK(got.status == DR_OK);
    CHECK(got.frame == want.frame);
    const decoded none = decode_at(&strict, want.frame, g);
    CHECK(none.status == DR_E_UNSUPPORTED);
    CHECK(inspect(want.frame).host_only == 1);
    const decoded x = decode_at(nullptr, want.frame, g), y = decode_at(&lenient, want.frame, g);
    REQUIRE(y.status == DR_OK);
    CHECK(same_bits(x.values[0], y.values[0]));
  }
  for (const char* parameters : {"policy=leftmost", "policy=p0", "bits=9,policy=p0"}) {
    const plan p("sparsify=topr(ratio=0.1) index=bloom(" + std::string(parameters) + ")");
    const encoded want = encode_at(nullptr, p, g), got = encode_at(&strict, p, g);
    CHECK(got.status == DR_OK);
    CHECK(got.frame == want.frame);
    CHECK(inspect(want.frame).host_only == 0);
  }
}

// A prepared batch in the emulated place, with its workspace.
struct prepared {
  context c;
  dr_place place;
  dr_batch* batch = nullptr;
  dr_batch_info info{};
  std::vector<std::vector<uint64_t>> held;

  prepared(const plan& p, std::vector<gradient>& g, int32_t seed = 1) : place(emulated(seed)) {
    std::vector<dr_tensor> tensors;
    for (gradient& x : g) tensors.push_back(x.tensor());
    const dr_status s =
        dr_batch_create(c.handle, p.handle, &place, tensors.data(), sizeof(dr_tensor), tensors.size(), 0, &batch);
    INFO(c.error());
    REQUIRE(s == DR_OK);
    info.struct_size = sizeof info;
    REQUIRE(dr_batch_describe(batch, &info, nullptr) == DR_OK);
  }
  ~prepared() { dr_batch_destroy(batch); }
  prepared(const prepared&) = delete;
  prepared& operator=(const prepared&) = delete;

  // Poisoned memory aligned to 64, with a guard behind it.
  void* memory(uint64_t size) {
    held.emplace_back(size / 8 + 32, 0xa5a5a5a5a5a5a5a5);
    auto* at = reinterpret_cast<uint8_t*>(held.back().data());
    return at + (64 - reinterpret_cast<uintptr_t>(at) % 64) % 64;
  }

  encoded encode(std::vector<gradient>& g, dr_call call = {}, uint8_t* frame = nullptr) {
    std::vector<dr_tensor> tensors;
    for (gradient& x : g) tensors.push_back(x.tensor());
    encoded e;
    e.result.struct_size = sizeof e.result;
    call.struct_size = sizeof call;
    if (!frame) frame = static_cast<uint8_t*>(memory(info.bound + 64));
    auto* const workspace = static_cast<uint8_t*>(memory(info.workspace + 64));
    e.status = dr_batch_encode(c.handle, batch, &call, &place, tensors.data(), sizeof(dr_tensor), tensors.size(),
                               workspace, info.workspace, frame, info.bound, &e.result);
    INFO(c.error());
    REQUIRE(e.status == DR_OK);
    e.status = e.result.status;
    for (int i = 0; i < 64; ++i) {
      CHECK(workspace[info.workspace + i] == 0xa5);
      CHECK(frame[info.bound + i] == 0xa5);
    }
    e.frame.assign(frame, frame + e.result.size);
    return e;
  }

  decoded decode(const bytes& frame, const std::vector<gradient>& like, dr_result* told = nullptr) {
    decoded d;
    std::vector<dr_tensor_out> outs;
    for (const gradient& g : like) d.values.emplace_back(g.universe * g.width, -77.0f);
    for (size_t i = 0; i < like.size(); ++i) outs.push_back(dense_out(d.values[i], like[i].width));
    size_t room = 0;
    REQUIRE(dr_batch_merge_workspace(batch, 1, &room, nullptr) == DR_OK);
    const aligned_bytes f(frame);
    auto* const workspace = static_cast<uint8_t*>(memory(room + 64));
    dr_result result{.struct_size = sizeof(dr_result)};
    d.status = dr_batch_decode(c.handle, batch, &place, f.data, f.size, nullptr, outs.data(), sizeof(dr_tensor_out),
                               outs.size(), workspace, room, &result);
    INFO(c.error());
    REQUIRE(d.status == DR_OK);
    for (int i = 0; i < 64; ++i) CHECK(workspace[room + i] == 0xa5);
    d.status = result.status;
    if (told) *told = result;
    held.clear();
    return d;
  }
};

TEST_CASE(
    "a prepared batch encodes and decodes, in the workspace that it reported, with the launches that it reported") {
  for (const std::string& text : all_plans()) {
    INFO(text);
    const plan p(text);
    std::vector<gradient> g{make(DR_F32, 5000, 3), make(DR_F32, 300, 4, 1, 0.5)};
    prepared b(p, g);
    const encoded want = encode_at(nullptr, p, g), got = b.encode(g);
    REQUIRE(got.status == DR_OK);
    CHECK(got.frame == want.frame);
    const decoded x = decode_at(nullptr, want.frame, g), y = b.decode(want.frame, g);
    REQUIRE(y.status == DR_OK);
    for (size_t i = 0; i < g.size(); ++i) CHECK(same_bits(x.values[i], y.values[i]));
  }
}

TEST_CASE(
    "any number of tensors takes as many launches as a large and a small one: at most 9 and a predicated one for "
    "Top-r, Golomb and a quantiser") {
  const plan p("sparsify=topr(ratio=0.01) index=golomb value=qsgd");
  // (Of more than 65536 values lloyd looks at a sample, and at all of them if that was not enough.)
  std::vector<gradient> large{make(DR_F32, 7000000, 1)};
  CHECK(prepared(plan("sparsify=topr(ratio=0.01) index=golomb value=lloyd"), large).info.launches == 15);
  for (const size_t n : {size_t{1}, size_t{41}, size_t{161}, size_t{400}}) {
    std::vector<gradient> g;
    for (size_t i = 0; i < n; ++i) g.push_back(make(DR_F32, i ? 10 + 19 * i : 70000, i));
    const uint32_t solve = n > 1;  // of the small ones, beside the read of the large one
    prepared b(p, g);
    CHECK(b.info.launches == 9 + solve);
    CHECK(prepared(plan("sparsify=topr(ratio=0.01) index=golomb value=log_quant"), g).info.launches == 11 + solve);
    CHECK(prepared(plan("sparsify=topr(ratio=0.01) index=golomb value=ternary"), g).info.launches == 11 + solve);
    CHECK(prepared(plan("sparsify=topr(ratio=0.01) index=golomb value=ternary(clip=0)"), g).info.launches ==
          10 + solve);
    CHECK(prepared(plan("sparsify=topr(ratio=0.01) index=golomb value=lloyd"), g).info.launches == 12 + solve);
    CHECK(prepared(plan("sparsify=topr(ratio=0.01) index=golomb value=sign(scale=means)"), g).info.launches ==
          9 + solve);
    CHECK(prepared(plan("sparsify=topr(ratio=0.01) index=golomb value=uniform_quant"), g).info.launches == 25 + solve);
    CHECK(prepared(plan("sparsify=topr(ratio=0.01) index=golomb value=uniform_quant(bits=4)"), g).info.launches ==
          13 + solve);
    // Of all elements: begin, survey, value and pack; raw values are packed from where they are.
    CHECK(prepared(plan("index=all value=raw"), g).info.launches == 3);
    CHECK(prepared(plan("index=all value=half"), g).info.launches == 4);
    CHECK(prepared(plan("index=all value=uniform_quant(bits=4)"), g).info.launches == 8);
    // Small tensors alone need no more than begin, solve, index, value and pack; and up to 65,536 elements are small there.
    std::vector<gradient> small(g.begin() + 1, g.end());
    if (n > 1 && n < 100) {
      CHECK(prepared(p, small).info.launches == 5);
      small.push_back(make(DR_F32, 65536, 1));
      CHECK(prepared(p, small).info.launches == 5);
    }
    const encoded got = b.encode(g), want = encode_at(nullptr, p, g);
    CHECK(got.frame == want.frame);
    const decoded x = decode_at(nullptr, want.frame, g), y = b.decode(want.frame, g);
    REQUIRE(y.status == DR_OK);
    for (size_t i = 0; i < n; ++i) CHECK(same_bits(x.values[i], y.values[i]));
  }
}

TEST_CASE("lists of a threshold have room for max_ratio of the elements, at the sender and at who merges") {
  const auto needs = [](const std::string& how, const std::string& streams) {
    const plan p("sparsify=threshold(value=1" + how + ") " + streams);
    context c;
    dr_tensor t{};
    t.struct_size = sizeof t;
    t.dtype = DR_F32;
    t.universe = 25600000;
    REQUIRE(dr_state_size(p.handle, &t, &t.state_size, nullptr) == DR_OK);
    const dr_place place = emulated(1);
    dr_batch* batch = nullptr;
    const dr_status s = dr_batch_create(c.handle, p.handle, &place, &t, sizeof t, 1, 0, &batch);
    INFO(c.error());
    REQUIRE(s == DR_OK);
    dr_batch_info info{};
    info.struct_size = sizeof info;
    size_t merge = 0;
    REQUIRE(dr_batch_describe(batch, &info, nullptr) == DR_OK);
    REQUIRE(dr_batch_merge_workspace(batch, 8, &merge, nullptr) == DR_OK);
    dr_batch_destroy(batch);
    return std::array<uint64_t, 3>{info.workspace, merge, info.bound};
  };
  for (const std::string streams :
       {"index=golomb value=raw", "index=raw value=fit_poly", "index=bloom(fpr=0.001) value=qsgd",
        "feedback=residual index=golomb value=ternary"}) {
    const auto all = needs("", streams), few = needs(",max_ratio=0.05", streams);
    MESSAGE(streams << ": encode " << all[0] << " bytes, with max_ratio=0.05 " << few[0] << "; merge of 8 frames "
                    << all[1] << ", " << few[1]);
    CHECK(few[0] < all[0] / 12);
    CHECK(few[1] < all[1] / 12);
    CHECK(few[2] >= 4 * 25600000);  // a dense row fits the frame
  }
}

TEST_CASE("a frame that lists more than max_ratio is sound, but not of a prepared batch") {
  const plan all("sparsify=threshold(value=0.3) index=golomb value=raw"),
      few("sparsify=threshold(value=0.3,max_ratio=0.05) index=golomb value=raw");
  std::vector<gradient> g{make(DR_F32, 5000, 3, 1, 0.8)};  // a share of some 0.15 is selected
  const encoded listed = encode_at(nullptr, all, g), dense = encode_at(nullptr, few, g);
  REQUIRE(listed.frame.size() < 5000);
  REQUIRE(dense.frame.size() > 20000);
  prepared b(few, g);
  CHECK(b.decode(dense.frame, g).status == DR_OK);
  CHECK(b.decode(listed.frame, g).status == DR_E_CORRUPT);
  const dr_place place = emulated(2);
  CHECK(decode_at(&place, listed.frame, g).status == DR_OK);
  CHECK(decode_at(nullptr, listed.frame, g).status == DR_OK);
}

TEST_CASE("the launches of a batch count what a sort launches, however many tensors there are") {
  const plan p("sparsify=topr(ratio=0.5) index=raw value=fit_poly");
  const auto launches = [&](size_t n, uint64_t d) {
    std::vector<gradient> g;
    for (size_t i = 0; i < n; ++i) g.push_back(make(DR_F32, d, i));
    return prepared(p, g).info.launches;
  };
  // Few values are sorted by the kernel that fits them.
  const uint32_t small = launches(1, 200), sorted = launches(1, 8000);
  CHECK(small <= 7);
  // 64 bits in passes of 8: a clear and a kernel each, behind two clears, a histogram and its sums.
  CHECK(sorted >= small + 4 + 2 * 8);
  CHECK(sorted <= small + 4 + 2 * 8 + 4);
  CHECK(launches(3, 8000) == sorted);
}

TEST_CASE("a damaged frame is refused by a GPU whenever the CPU refuses it, and leaves the outputs as they were") {
  for (const char* text :
       {"sparsify=topr(count=9) index=golomb value=raw", "sparsify=topr(count=9) index=raw value=fit_poly",
        "sparsify=topr(count=9) index=golomb value=fit_poly",
        "sparsify=topr(count=5) index=bloom(policy=p0,fpr=0.1) value=qsgd", "index=all value=uniform_quant(bits=4)",
        "index=all value=sign(scale=mean)"}) {
    INFO(text);
    const plan p(text);
    for (const bool many : {false, true}) {
      std::vector<gradient> g{make(DR_F32, 60, 3)};
      if (many) g.push_back(make(DR_F32, 40, 4));
      prepared b(p, g, 2);
      const encoded e = encode_at(nullptr, p, g);
      for (size_t bit = 0; bit < 8 * e.frame.size(); ++bit) {
        bytes damaged = e.frame;
        damaged[bit / 8] = static_cast<uint8_t>(damaged[bit / 8] ^ 1u << bit % 8);
        const decoded host = decode_at(nullptr, damaged, g), device = b.decode(damaged, g);
        if (host.status == DR_OK) continue;
        INFO("bit " << bit << ": " << host.error);
        REQUIRE(device.status != DR_OK);
        for (const floats& v : device.values)
          for (const float x : v) REQUIRE(x == -77.0f);
      }
      for (size_t size = 0; size < e.frame.size(); ++size) {
        const decoded device = b.decode(bytes(e.frame.begin(), e.frame.begin() + static_cast<ptrdiff_t>(size)), g);
        REQUIRE(device.status == DR_E_CORRUPT);
      }
    }
  }
}

TEST_CASE("frames merge on a GPU in the order of the frames, as on the CPU") {
  const plan p("sparsify=topr(ratio=0.1) index=golomb value=qsgd");
  for (const size_t k : {size_t{1}, size_t{2}, size_t{5}, size_t{9}})
    for (const bool adds : {false, true}) {
      std::vector<std::vector<gradient>> all;
      std::vector<encoded> frames;
      for (size_t i = 0; i < k; ++i) {
        all.push_back({make(DR_F32, 9000, i), make(DR_F32, 77, 100 + i)});
        frames.push_back(encode_at(nullptr, p, all.back()));
      }
      std::vector<aligned_bytes> copies;
      for (const encoded& e : frames) copies.emplace_back(e.frame);
      std::vector<dr_bytes> list;
      floats weights;
      for (const aligned_bytes& a : copies) {
        list.push_back({a.data, a.size});
        weights.push_back(1.0f / static_cast<float>(list.size()));
      }
      dr_decode_options options{};
      options.struct_size = sizeof options;
      options.flags = adds ? uint32_t{DR_DECODE_ADD} : 0u;
      const auto merged = [&](auto&& merge) {
        std::vector<floats> values{laplace(9000, 5), laplace(77, 6)};
        std::vector<dr_tensor_out> outs{dense_out(values[0]), dense_out(values[1])};
        merge(outs);
        return values;
      };
      const auto want = merged([&](std::vector<dr_tensor_out>& outs) {
        context c;
        REQUIRE(dr_merge(c.handle, nullptr, list.data(), weights.data(), k, &options, outs.data(), sizeof outs[0], 2) ==
                DR_OK);
      });
      const auto direct = merged([&](std::vector<dr_tensor_out>& outs) {
        context c;
        const dr_place place = emulated(4);
        const dr_status s =
            dr_merge(c.handle, &place, list.data(), weights.data(), k, &options, outs.data(), sizeof outs[0], 2);
        INFO(c.error());
        REQUIRE(s == DR_OK);
      });
      const auto batched = merged([&](std::vector<dr_tensor_out>& outs) {
        prepared b(p, all[0]);
        size_t room = 0;
        REQUIRE(dr_batch_merge_workspace(b.batch, k, &room, nullptr) == DR_OK);
        dr_result result{.struct_size = sizeof(dr_result)};
        const dr_status s = dr_batch_merge(b.c.handle, b.batch, &b.place, list.data(), weights.data(), k, &options,
                                           outs.data(), sizeof outs[0], 2, b.memory(room), room, &result);
        INFO(b.c.error());
        REQUIRE(s == DR_OK);
        REQUIRE(result.status == DR_OK);
      });
      for (size_t i = 0; i < 2; ++i) {
        CHECK(same_bits(want[i], direct[i]));
        CHECK(same_bits(want[i], batched[i]));
      }
    }
}

// Where a frame of one row has mode, count and support, all below 256.
struct row_fields {
  bool is_short, replaces;
  size_t mode_at = 3, count_at = 15, support_at = 0;
  uint64_t header;

  explicit row_fields(const bytes& frame) : is_short(frame[3] & 1) {
    dr_frame_info info{};
    (void)inspect(frame, &info);
    header = info.header_size;
    frame_check::reader in{frame.data(), 15u + (frame[3] & 64 ? 2u : 3u), frame.size()};
    if (!is_short) in.at = 24;
    replaces = frame_check::read_entry(in).replaces();
    support_at = in.at;
    if (is_short) return;
    const uint64_t widths = frame_check::number(&frame[20], 4);
    mode_at = in.at;
    count_at = mode_at + (widths & 15) + (widths >> 4 & 15);
    support_at = count_at + (widths >> 8 & 15);
  }
  // The frame with other fields, its check as it was.
  bytes told(bytes frame, unsigned mode, uint64_t count, uint64_t support) const {
    frame[mode_at] =
        static_cast<uint8_t>(is_short ? (frame[mode_at] & ~0x30u) | mode << 4 : (frame[mode_at] & ~3u) | mode);
    frame[count_at] = static_cast<uint8_t>(count);
    if (replaces) frame[support_at] = static_cast<uint8_t>(support);
    return frame;
  }
};

TEST_CASE("of rows that lie about mode, count and support CPU and GPU think the same") {
  size_t taken = 0, refused = 0, differ = 0;
  for (const char* index : {"raw", "golomb", "bloom(fpr=0.1)", "bloom(policy=p0,fpr=0.1,max_ratio=1)"})
    for (const char* value : {"raw", "qsgd", "fit_poly"}) {
      const std::string text = "sparsify=topr(count=8) index=" + std::string(index) + " value=" + value;
      const plan p(text);
      std::vector<gradient> g{make(DR_F32, 64, 5)};
      const encoded e = encode_at(nullptr, p, g);
      REQUIRE(e.status == DR_OK);
      const row_fields at(e.frame);
      prepared b(p, g);
      for (const unsigned mode : {0, 1, 3})
        for (uint64_t count = 0; count <= 8; ++count)
          for (uint64_t support = 0; support <= (at.replaces ? 12 : 0); ++support)
            for (const int fill : {-1, 0, 0xff}) {  // its own payload, zeros, ones
              const uint64_t told = support == 12 ? 64 : support;
              bytes frame = at.told(e.frame, mode, count, told);
              if (fill >= 0)
                std::fill(frame.begin() + static_cast<long>(at.header), frame.end(), static_cast<uint8_t>(fill));
              frame.resize(frame.size() + 400, static_cast<uint8_t>(std::max(fill, 0)));
              (void)frame_check::fix(frame.data(), frame.size());
              const decoded cpu = decode_at(nullptr, frame, g), gpu = b.decode(frame, g);
              const dr_place place = emulated(2);
              const decoded direct = decode_at(&place, frame, g);
              const bool same = gpu.status == cpu.status && direct.status == cpu.status &&
                                (cpu.status || (same_bits(gpu.values[0], cpu.values[0]) &&
                                                same_bits(direct.values[0], cpu.values[0])));
              ++(cpu.status ? refused : taken);
              if (!same && ++differ < 20)
                FAIL_CHECK(text << ", mode " << mode << ", count " << count << ", support " << told << ", fill " << fill
                                << ": CPU " << cpu.status << ", batch " << gpu.status << ", GPU " << direct.status);
            }
    }
  CHECK(differ == 0);
  CHECK(taken > 50);
  CHECK(refused > 1000);
}

TEST_CASE("of rows of all elements that lie about mode, count and support CPU and GPU think the same") {
  size_t taken = 0, refused = 0, keys = 0;
  for (const char* value : {"raw", "qsgd", "fit_poly"}) {
    const plan p(std::string("index=all value=") + value);
    std::vector<gradient> g{make(DR_F32, 64, 5)};
    const encoded e = encode_at(nullptr, p, g);
    REQUIRE(e.status == DR_OK);
    const row_fields at(e.frame);
    REQUIRE(at.replaces);
    prepared b(p, g);
    for (const unsigned mode : {0, 1, 3})
      for (const uint64_t count : {0, 1, 7, 63, 64, 65})
        for (const uint64_t support : {0, 1, 7, 63, 64, 65})
          for (const int fill : {-1, 0, 0xff}) {  // its own payload, zeros, ones
            bytes frame = at.told(e.frame, mode, count, support);
            if (fill >= 0)
              std::fill(frame.begin() + static_cast<long>(at.header), frame.end(), static_cast<uint8_t>(fill));
            frame.resize(frame.size() + 800, static_cast<uint8_t>(std::max(fill, 0)));
            (void)frame_check::fix(frame.data(), frame.size());
            const dr_place place = emulated(2);
            const decoded cpu = decode_at(nullptr, frame, g), gpu = b.decode(frame, g),
                          direct = decode_at(&place, frame, g);
            INFO(value << ", mode " << mode << ", count " << count << ", support " << support << ", fill " << fill
                       << ": " << cpu.error);
            REQUIRE(direct.status == cpu.status);
            // A batch whose encoder sends no keys has no room for any.
            const bool has_keys = mode == 1 && count != 0 && cpu.status == DR_OK;
            REQUIRE(gpu.status == (has_keys ? dr_status{DR_E_CORRUPT} : cpu.status));
            keys += has_keys;
            ++(cpu.status ? refused : taken);
            if (cpu.status) continue;
            REQUIRE(same_bits(direct.values[0], cpu.values[0]));
            if (!has_keys) REQUIRE(same_bits(gpu.values[0], cpu.values[0]));
          }
  }
  MESSAGE(taken << " taken, " << keys << " of them with keys, " << refused << " refused");
  CHECK(keys > 0);
  CHECK(taken > keys + 10);
  CHECK(refused > 500);
}

TEST_CASE("a dense tensor takes no memory for a support") {
  constexpr uint64_t d = 1 << 20;
  const auto measure = [&](const char* text, bool fed, size_t n, dr_dtype dtype, uint64_t& room) {
    const plan p(text);
    std::vector<gradient> g(n);
    for (gradient& x : g) {
      x.universe = d / n;
      x.dtype = dtype;
      if (fed) x.state.assign((16 + 4 * x.universe + 7) / 8, 0);
    }
    const prepared b(p, g);
    size_t decodes = 0;
    REQUIRE(dr_batch_merge_workspace(b.batch, 1, &decodes, nullptr) == DR_OK);
    room = decodes;
    return uint64_t{b.info.workspace};
  };
  constexpr uint64_t little = 64 << 10;  // descriptors, levels, sums of blocks
  uint64_t room = 0;
  // Raw values are their payload.
  CHECK(measure("index=all value=raw", false, 1, DR_F32, room) < little);
  CHECK(room < 4 * d + little);
  CHECK(measure("bucket=flat index=all value=raw", false, 16, DR_F32, room) < 4 * d + little);
  // The payload; to decode the payload, and the values.
  CHECK(measure("index=all value=half", false, 1, DR_F32, room) < 2 * d + little);
  CHECK(room < 6 * d + little);
  // With feedback the values as decoded, too; of 16 bits, or of several tensors, the sums.
  CHECK(measure("feedback=residual index=all value=half", true, 1, DR_F32, room) < 6 * d + little);
  CHECK(measure("feedback=residual index=all value=half(type=bf16)", true, 1, DR_BF16, room) < 6 * d + little);
  CHECK(measure("bucket=flat index=all value=half", false, 16, DR_F32, room) < 6 * d + little);
}

TEST_CASE("frames with rows of all elements beside sparse ones merge as on the CPU, however the sparse ones do") {
  const plan all("index=all value=uniform_quant(bits=8)"), exact("index=all value=raw"),
      sparse("sparsify=topr(ratio=0.001) index=golomb value=raw"), denser("sparsify=topr(ratio=0.02) index=golomb");
  for (const plan* large : {&sparse, &denser})
    for (const dr_dtype dtype : {DR_F32, DR_F16})
      for (const size_t k : {size_t{1}, size_t{3}, size_t{70}}) {
        const auto gradients_of = [&](uint64_t i) {
          std::vector<gradient> g{make(dtype, 500, 10 * i + 1, 1, i % 3 == 2 ? 1 : 0), make(dtype, 90000, 10 * i % 50),
                                  make(dtype, 40, 10 * i + 2, 3)};
          g[0].own = &all;
          g[1].own = large;
          g[2].own = &exact;
          return g;
        };
        std::vector<gradient> like = gradients_of(0);
        prepared b(exact, like);
        std::vector<aligned_bytes> frames;
        std::vector<dr_bytes> list;
        floats weights;
        for (size_t i = 0; i < k; ++i) {
          std::vector<gradient> g = gradients_of(i);
          frames.emplace_back(encode_at(nullptr, exact, g).frame);
        }
        for (const aligned_bytes& f : frames) {
          list.push_back({f.data, f.size});
          weights.push_back(0.5f + static_cast<float>(list.size()));
        }
        for (const bool adds : {false, true}) {
          INFO("k " << k << " adds " << adds << ", type " << dtype);
          dr_decode_options options{};
          options.struct_size = sizeof options;
          options.flags = adds ? uint32_t{DR_DECODE_ADD} : 0u;
          const auto merged = [&](int how) {
            std::vector<floats> values{laplace(500, 7), laplace(90000, 8), laplace(120, 9)};
            std::vector<dr_tensor_out> outs{dense_out(values[0]), dense_out(values[1]), dense_out(values[2], 3)};
            context c;
            const dr_place place = emulated(how);
            dr_result result{.struct_size = sizeof(dr_result)};
            dr_status s = DR_OK;
            if (how < 2) {
              s = dr_merge(c.handle, how ? &place : nullptr, list.data(), weights.data(), k, &options, outs.data(),
                           sizeof outs[0], 3);
            } else {
              size_t room = 0;
              REQUIRE(dr_batch_merge_workspace(b.batch, k, &room, nullptr) == DR_OK);
              s = dr_batch_merge(b.c.handle, b.batch, &b.place, list.data(), weights.data(), k, &options, outs.data(),
                                 sizeof outs[0], 3, b.memory(room), room, &result);
            }
            INFO(how << " " << c.error() << b.c.error());
            REQUIRE(s == DR_OK);
            REQUIRE(result.status == DR_OK);
            return values;
          };
          const auto want = merged(0), direct = merged(1), batched = merged(2);
          for (size_t i = 0; i < 3; ++i) {
            CHECK(same_bits(want[i], direct[i]));
            CHECK(same_bits(want[i], batched[i]));
          }
          b.held.clear();
        }
      }
}

TEST_CASE("sparse outputs of a GPU are the CPU's, of a tensor in segments, too") {
  for (const uint64_t segment_rows : {0, 640, 32})
    for (const char* text :
         {"sparsify=topr(ratio=0.1) index=golomb", "sparsify=topr(ratio=0.1) index=raw value=fit_poly",
          "index=all value=raw", "sparsify=threshold(value=0.1,max_ratio=0.5) index=golomb"}) {
      INFO(text << ", segments of " << segment_rows);
      const plan p(text);
      std::vector<gradient> g{make(DR_F32, 3000, 3)};
      dr_call call{};
      call.segment_rows = segment_rows;
      const encoded e = encode_at(nullptr, p, g, call);
      context c;
      const pairs want = decode_sparse(c, e.frame);
      std::vector<int64_t> indices(want.indices.size());
      floats values(want.values.size());
      dr_tensor_out out{};
      out.struct_size = sizeof out;
      out.dtype = DR_F32;
      out.index_dtype = DR_I64;
      out.universe = 3000;
      out.values = values.data();
      out.indices = indices.data();
      out.capacity = indices.size();
      const dr_place place = emulated(1);
      const aligned_bytes f(e.frame);
      const dr_status s = dr_decode(c.handle, &place, f.data, f.size, nullptr, &out, sizeof out, 1);
      INFO(c.error());
      REQUIRE(s == DR_OK);
      CHECK(out.count == indices.size());
      CHECK(std::equal(indices.begin(), indices.end(), want.indices.begin(),
                       [](int64_t a, uint64_t b) { return static_cast<uint64_t>(a) == b; }));
      CHECK(same_bits(values, want.values));
      out.capacity -= 1;
      CHECK(dr_decode(c.handle, &place, f.data, f.size, nullptr, &out, sizeof out, 1) == DR_E_CAPACITY);
      CHECK(c.error() == "output 0: capacity is smaller than the support (output " + std::to_string(out.capacity) +
                             ", frame " + std::to_string(want.indices.size()) + ")");
    }
}

TEST_CASE("a union of supports from a device is the CPU's, if the caller allows it; otherwise it is refused by name") {
  std::vector<bytes> frames;
  for (const uint64_t segment_rows : {0, 0, 640}) {
    const plan p(frames.size() == 1 ? "sparsify=topr(ratio=0.05) index=rice value=qsgd"
                                    : "sparsify=topr(ratio=0.1) index=golomb");
    std::vector<gradient> g{make(DR_F32, 3000, frames.size()), make(DR_F32, 500, 9)};
    dr_call call{};
    call.segment_rows = segment_rows;
    frames.push_back(encode_at(nullptr, p, g, call).frame);
  }
  std::vector<aligned_bytes> copies(frames.begin(), frames.end());
  std::vector<dr_bytes> list;
  for (const aligned_bytes& a : copies) list.push_back({a.data, a.size});
  const floats weights{1, -0.5f, 0.25f};
  struct sums {
    dr_status status = DR_OK;
    std::string error;
    uint64_t count = 0;
    std::vector<int64_t> indices;
    floats values, dense;
    bool operator==(const sums&) const = default;
  };
  // One output sparse, one dense.
  const auto merged = [&](const dr_place* place, uint64_t capacity, uint32_t flags = 0) {
    context c;
    sums s{.indices = std::vector<int64_t>(capacity, -7), .values = floats(capacity, 7), .dense = floats(500, 7)};
    dr_tensor_out outs[2] = {dense_out(s.values), dense_out(s.dense)};
    outs[0].universe = 3000;
    outs[0].index_dtype = DR_I64;
    outs[0].indices = s.indices.data();
    outs[0].capacity = capacity;
    dr_decode_options options{};
    options.struct_size = sizeof options;
    options.flags = flags;
    s.status = dr_merge(c.handle, place, list.data(), weights.data(), list.size(), &options, outs, sizeof outs[0], 2);
    if (s.status) s.error = c.error();
    s.count = outs[0].count;
    return s;
  };
  const dr_place strict = emulated(1), lenient = emulated(1, DR_PLACE_ALLOW_HOST);
  const sums want = merged(nullptr, 800);
  REQUIRE(want.status == DR_OK);
  CHECK(want.count > 300);
  CHECK(merged(&lenient, 800) == want);
  const sums refused = merged(&strict, 800), small = merged(&lenient, want.count - 1);
  CHECK(refused.status == DR_E_UNSUPPORTED);
  CHECK(refused.error ==
        "output 0: is sparse; a union of supports is made on the CPU only; DR_PLACE_ALLOW_HOST makes it "
        "there, with copies and a wait");
  CHECK(small.status == DR_E_CAPACITY);
  CHECK(small.error == merged(nullptr, want.count - 1).error);
  for (const sums* s : {&refused, &small}) {
    CHECK(s->indices == std::vector<int64_t>(s->indices.size(), -7));
    CHECK(s->values == floats(s->values.size(), 7));
    CHECK(s->dense == floats(500, 7));
  }
  for (const dr_place* place : {&strict, &lenient}) CHECK(merged(place, 800, DR_DECODE_ADD).status == DR_E_ARGUMENT);
}

TEST_CASE("segments of one tensor for several outputs are refused by name, or take the CPU") {
  const plan p("bucket=flat sparsify=topr(ratio=0.1) index=golomb");
  std::vector<gradient> g{make(DR_F32, 3000, 3), make(DR_F32, 500, 4)};
  dr_call call{};
  call.segment_rows = 992;
  const dr_place strict = emulated(1), lenient = emulated(1, DR_PLACE_ALLOW_HOST);
  const encoded e = encode_at(nullptr, p, g, call);
  REQUIRE(e.status == DR_OK);
  const decoded refused = decode_at(&strict, e.frame, g);
  CHECK(refused.status == DR_E_UNSUPPORTED);
  CHECK(refused.error ==
        "frame: segments of one tensor for several outputs (bucket=flat) run on the CPU only; "
        "DR_PLACE_ALLOW_HOST decodes them there, with copies and a wait");
  const decoded want = decode_at(nullptr, e.frame, g), got = decode_at(&lenient, e.frame, g);
  REQUIRE(got.status == DR_OK);
  for (size_t i = 0; i < g.size(); ++i) CHECK(same_bits(got.values[i], want.values[i]));
}

TEST_CASE("memory of a device that is misaligned or too small is refused before anything runs") {
  const plan p("sparsify=topr(ratio=0.1) index=golomb");
  std::vector<gradient> g{make(DR_F32, 3000, 3)};
  prepared b(p, g);
  std::vector<dr_tensor> tensors{g[0].tensor()};
  auto* const frame = static_cast<uint8_t*>(b.memory(b.info.bound + 64));
  auto* const workspace = static_cast<uint8_t*>(b.memory(b.info.workspace + 64));
  dr_call call{};
  call.struct_size = sizeof call;
  const auto run = [&](void* w, size_t ws, void* f, size_t fs) {
    return dr_batch_encode(b.c.handle, b.batch, &call, &b.place, tensors.data(), sizeof(dr_tensor), 1, w, ws, f, fs,
                           nullptr);
  };
  CHECK(run(workspace, b.info.workspace, frame, b.info.bound) == DR_OK);
  CHECK(run(workspace, b.info.workspace - 1, frame, b.info.bound) == DR_E_CAPACITY);
  CHECK(run(workspace + 32, b.info.workspace, frame, b.info.bound) == DR_E_ARGUMENT);
  CHECK(run(workspace, b.info.workspace, frame + 4, b.info.bound) == DR_E_ARGUMENT);
  CHECK(run(workspace, b.info.workspace, frame, 20) == DR_E_CAPACITY);
  CHECK(run(nullptr, b.info.workspace, frame, b.info.bound) == DR_E_ARGUMENT);
  CHECK(run(workspace, b.info.workspace, nullptr, b.info.bound) == DR_E_ARGUMENT);
}

TEST_CASE("a frame that is longer than its buffer is a fault of capacity, and stays inside") {
  const plan p("sparsify=topr(ratio=0.1) index=golomb");
  std::vector<gradient> g{make(DR_F32, 30000, 3)};
  prepared b(p, g);
  b.info.bound = 1000;
  const encoded e = b.encode(g);
  CHECK(e.status == DR_E_CAPACITY);
  CHECK(e.result.what == 1000);
  CHECK(e.result.needed > 1000);
}

TEST_CASE("what a later version may have is UNSUPPORTED for a GPU, too, before any check is verified") {
  for (const size_t tensors : {1, 2})
    for (const bool tagged : {false, true}) {
      if (tagged && tensors == 1) continue;  // has no short header, which the batch's frames have
      const plan p("sparsify=topr(count=8) index=golomb value=qsgd");
      std::vector<gradient> g;
      for (size_t i = 0; i < tensors; ++i) g.push_back(make(DR_F32, 64, 5 + i));
      dr_call call{};
      call.struct_size = sizeof call;
      call.flags = tagged ? uint32_t{DR_CALL_TAG} : 0;
      const encoded e = encode_at(nullptr, p, g, call);
      REQUIRE(e.status == DR_OK);
      prepared b(p, g);
      const size_t entry = e.frame[3] & 1 ? 15 + (e.frame[3] & 64 ? 2 : 3) : tagged ? 32 : 24;
      REQUIRE(e.frame[entry + 1] == DR_F32);
      const struct {
        size_t at;
        uint8_t byte;
      } cases[] = {{entry, 8},     {entry, 1},      {entry, 6 | 8},  {entry, 1 | 56},
                   {entry + 1, 4}, {entry + 1, 15}, {entry + 1, 69}, {entry + 1, 129}};
      for (const auto& each : cases) {
        bytes frame = e.frame;
        frame[each.at] = each.byte;
        const dr_place place = emulated(2);
        INFO(tensors << " tensors, tag " << tagged << ", byte " << each.at - entry << " is " << int{each.byte});
        CHECK(decode_at(nullptr, frame, g).status == DR_E_UNSUPPORTED);
        CHECK(decode_at(&place, frame, g).status == DR_E_UNSUPPORTED);
        CHECK(b.decode(frame, g).status == DR_E_UNSUPPORTED);
      }
      // Mode 3; in a short header all behind it is unknown then.
      const bool is_short = e.frame[3] & 1;
      const size_t table = e.frame[18] | e.frame[19] << 8, mode = is_short ? 3 : entry + table + 8 * tensors;
      bytes frame = e.frame;
      frame[mode] |= is_short ? 0x30 : 3;
      if (is_short) std::fill(frame.begin() + 12, frame.end(), 0xff);
      const dr_place place = emulated(2);
      CHECK(decode_at(nullptr, frame, g).status == DR_E_UNSUPPORTED);
      CHECK(decode_at(&place, frame, g).status == DR_E_UNSUPPORTED);
      CHECK(b.decode(frame, g).status == DR_E_UNSUPPORTED);
      frame = e.frame;
      frame[entry + 1] = DR_F16;  // a type that there is: not the batch's
      CHECK(b.decode(frame, g).status == DR_E_CORRUPT);
    }
}

TEST_CASE("for any frame with a right check, a GPU that knows its batch accepts nothing that the CPU refuses") {
  size_t taken = 0;
  for (const char* text :
       {"sparsify=topr(count=9) index=golomb value=raw", "sparsify=topr(count=9) index=raw value=fit_poly",
        "sparsify=topr(count=9) index=golomb value=fit_poly", "sparsify=topr(count=9) index=bloom(fpr=0.1) value=qsgd",
        "sparsify=topr(count=5) index=bloom(policy=p0,fpr=0.1) value=fit_poly", "index=raw value=raw"}) {
    INFO(text);
    const plan p(text), other("sparsify=topr(count=4) index=bloom(policy=p0,fpr=0.1) value=raw");
    for (const int kind : {0, 1, 2}) {
      std::vector<gradient> g{make(DR_F32, 60, 3)};
      // Beside another plan, too: one that replaces the support, so that the column is there.
      if (kind == 1) g.push_back(make(DR_F16, 41, 4));
      if (kind == 2) g.push_back(make(DR_F32, 40, 4)), g.back().own = &other;
      prepared b(p, g, 2);
      const encoded e = encode_at(nullptr, p, g);
      const dr_place place = emulated(1);
      for (size_t at = 0; at < e.frame.size(); ++at)
        for (const int change : {0x01, 0x02, 0x80, 0x100, 0x1ff}) {
          bytes forged = e.frame;
          forged[at] = static_cast<uint8_t>(change < 0x100 ? forged[at] ^ change : change);
          frame_check::fix(forged.data(), forged.size());
          const decoded host = decode_at(nullptr, forged, g), device = decode_at(&place, forged, g),
                        known = b.decode(forged, g);
          INFO("byte " << at << " " << change << ": " << host.error << " / " << device.error);
          REQUIRE(device.status == host.status);
          if (host.status) REQUIRE(known.status != DR_OK);
          taken += known.status == DR_OK;
          for (size_t i = 0; i < g.size(); ++i) {
            if (host.status == DR_OK) CHECK(same_bits(host.values[i], device.values[i]));
            if (known.status == DR_OK) CHECK(same_bits(host.values[i], known.values[i]));
          }
        }
    }
  }
  CHECK(taken > 1000);
}

// The layout of a workspace is kept from call to call.
TEST_CASE("batches and numbers of frames may take turns in one context and one workspace") {
  const plan sparse("sparsify=topr(ratio=0.1) index=golomb value=qsgd"), all("index=all value=half");
  const context c;
  const dr_place place = emulated(1);
  struct kind {
    const plan& p;
    std::vector<gradient> g;
    dr_batch* batch = nullptr;
    bytes frame;
    floats once, twice;
  };
  kind kinds[] = {{sparse, {make(DR_F32, 3000, 1)}}, {all, {make(DR_F32, 700, 2)}}, {sparse, {make(DR_F32, 3000, 3)}}};
  size_t largest = 0;
  for (kind& k : kinds) {
    const dr_tensor t = k.g[0].tensor();
    REQUIRE(dr_batch_create(c.handle, k.p.handle, &place, &t, sizeof t, 1, 0, &k.batch) == DR_OK);
    k.frame = encode_at(nullptr, k.p, k.g).frame;
    k.once = decode_at(nullptr, k.frame, k.g).values[0];
    for (const float x : k.once) k.twice.push_back(x + x);
    size_t size = 0;
    REQUIRE(dr_batch_merge_workspace(k.batch, 2, &size, nullptr) == DR_OK);
    largest = std::max(largest, size);
  }
  std::vector<uint64_t> memory(largest / 8 + 16);
  auto* const workspace =
      reinterpret_cast<uint8_t*>(memory.data()) + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
  for (int turn = 0; turn < 40; ++turn) {
    kind& k = kinds[turn % 7 % 3];
    const size_t n = 1 + turn % 5 % 2;
    INFO("turn " << turn << ", batch " << turn % 7 % 3 << ", " << n << " frames");
    const std::vector<dr_bytes> frames(n, {k.frame.data(), k.frame.size()});
    floats values(k.once.size(), -77);
    dr_tensor_out out = client::dense_out(values);
    dr_result result{};
    result.struct_size = sizeof result;
    REQUIRE(dr_batch_merge(c.handle, k.batch, &place, frames.data(), nullptr, n, nullptr, &out, sizeof out, 1,
                           workspace, 8 * memory.size() - 64, &result) == DR_OK);
    CHECK(result.status == DR_OK);
    CHECK(values == (n == 1 ? k.once : k.twice));
  }
  for (const kind& k : kinds) dr_batch_destroy(k.batch);
}

// Golomb's bound has no room for them, so the launch has fewer blocks than the row has chunks.
TEST_CASE("of a row of raw keys that is longer than any its encoder makes a GPU that knows its batch reads all") {
  constexpr size_t d = 100000, n = 3000;
  const plan p("sparsify=topr(count=3000) index=golomb value=raw");
  std::vector<gradient> g{make(DR_F32, d, 3)};
  prepared b(p, g);
  const encoded e = encode_at(nullptr, p, g);
  const unsigned width = e.frame[3] & 64 ? 2 : 3;  // of counts and sizes
  size_t at = 20, header = 0;                      // of the index section's size
  for (; at < 40; ++at) {
    const size_t size = e.frame[at] | e.frame[at + 1] << 8 | (width > 2 ? e.frame[at + 2] << 16 : 0);
    header = (at + width + 3) / 4 * 4;
    if (header + (4 * n + size + 3) / 4 * 4 == e.frame.size()) break;
  }
  REQUIRE(at < 40);
  const auto forge = [&](const std::vector<uint32_t>& keys) {
    bytes frame(e.frame.begin(), e.frame.begin() + static_cast<ptrdiff_t>(header + 4 * n));
    frame[3] |= 1 << 4;                                      // raw keys,
    for (unsigned i = 0; i < width; ++i) frame[at + i] = 0;  // whose size follows from the count
    for (const uint32_t k : keys)
      for (unsigned i = 0; i < 4; ++i) frame.push_back(static_cast<uint8_t>(k >> 8 * i));
    frame_check::fix(frame.data(), frame.size());
    return frame;
  };
  std::vector<uint32_t> keys(n);
  for (uint32_t i = 0; i < n; ++i) keys[i] = 33 * i;
  bytes frame = forge(keys);
  const decoded host = decode_at(nullptr, frame, g), known = b.decode(frame, g);
  REQUIRE(host.status == DR_OK);
  CHECK(known.status == DR_OK);
  CHECK(same_bits(host.values[0], known.values[0]));
  frame.back() ^= 1;
  CHECK(b.decode(frame, g).status == DR_E_CORRUPT);
  for (const size_t i : {size_t{0}, n / 2, n - 1})
    for (const uint32_t wrong : {uint32_t{d}, i ? keys[i - 1] : keys[1]}) {
      std::vector<uint32_t> bad = keys;
      bad[i] = wrong;
      INFO("key " << i << " is " << wrong);
      CHECK(decode_at(nullptr, forge(bad), g).status == DR_E_CORRUPT);
      CHECK(b.decode(forge(bad), g).status == DR_E_CORRUPT);
    }
}

TEST_CASE("a status frame is judged by a GPU before it is believed") {
  const plan p("sparsify=topr(count=9) index=golomb value=qsgd");
  for (const bool many : {false, true})
    for (const uint32_t tag : {0u, uint32_t{DR_CALL_TAG}}) {
      std::vector<gradient> g{make(DR_F32, 60, 3)};
      if (many) g.push_back(make(DR_F32, 41, 4));
      std::vector<gradient> broken = g;
      set(broken[0], 7, std::numeric_limits<float>::quiet_NaN());
      prepared b(p, g);
      dr_call call{};
      call.flags = DR_CALL_STATUS_FRAME | tag;
      call.tag = 99;
      const dr_place place = emulated(1);
      for (const dr_place* at : {static_cast<const dr_place*>(nullptr), &place}) {
        const bytes frame = encode_at(at, p, broken, call).frame;
        REQUIRE(b.decode(frame, g).status == DR_E_PEER);
        for (size_t bit = 0; bit < 8 * frame.size(); ++bit)
          for (const bool fixes : {false, true}) {
            bytes damaged = frame;
            damaged[bit / 8] = static_cast<uint8_t>(damaged[bit / 8] ^ 1u << bit % 8);
            if (fixes) frame_check::fix(damaged.data(), damaged.size());
            const decoded host = decode_at(nullptr, damaged, g);
            INFO("bit " << bit << ": " << host.error);
            REQUIRE(decode_at(&place, damaged, g).status == host.status);
            const dr_status known = b.decode(damaged, g).status;
            REQUIRE((host.status == DR_E_PEER ? known == DR_E_PEER : known != DR_E_PEER && known != DR_OK));
          }
        for (size_t size = 0; size < frame.size(); ++size)
          REQUIRE(b.decode(bytes(frame.begin(), frame.begin() + static_cast<ptrdiff_t>(size)), g).status ==
                  DR_E_CORRUPT);
      }
    }
}

TEST_CASE("a frame of no tensors is judged by a GPU, too") {
  const plan p("index=golomb");
  std::vector<gradient> none;
  prepared b(p, none);
  const encoded e = b.encode(none);
  REQUIRE(e.status == DR_OK);
  CHECK(e.frame == encode_at(nullptr, p, none).frame);
  const dr_place place = emulated(1);
  dr_result told{.struct_size = sizeof(dr_result)};
  CHECK(b.decode(e.frame, none, &told).status == DR_OK);
  for (size_t bit = 0; bit < 8 * e.frame.size(); ++bit) {
    bytes damaged = e.frame;
    damaged[bit / 8] = static_cast<uint8_t>(damaged[bit / 8] ^ 1u << bit % 8);
    INFO("bit " << bit);
    REQUIRE(b.decode(damaged, none, &told).status != DR_OK);
    CHECK(told.tensor == DR_NO_TENSOR);
    REQUIRE(decode_at(&place, damaged, none).status == decode_at(nullptr, damaged, none).status);
  }
}

TEST_CASE("of many values that are not finite the lowest is the fault, whichever block meets which first") {
  for (const char* p : {"index=golomb value=qsgd", "index=bloom(policy=p0,fpr=0.05) value=qsgd",
                        "index=bloom(fpr=0.05) value=qsgd", "index=raw value=fit_poly"}) {
    std::vector<gradient> g{make(DR_F32, 50000, 1)};
    for (const uint64_t at : {49000, 31000, 17000, 8000, 123}) set(g[0], at, std::numeric_limits<float>::infinity());
    same_encode(std::string("sparsify=threshold(value=0.1) ") + p, g, {}, 6);
  }
}

TEST_CASE("a threshold of 0 goes dense above its share on a GPU, too, and lists no more than that") {
  for (const char* p : {"index=all value=raw", "index=all value=half", "index=all value=sign"})
    for (const char* how : {"", "bucket=flat ", "feedback=residual ", "bucket=flat feedback=residual "})
      for (const dr_dtype dtype : {DR_F32, DR_F16})
        for (const uint64_t nonzeros : {uint64_t{30}, uint64_t{4096}}) {
          std::vector<gradient> g{make(dtype, 4096, 1), make(dtype, 300, 2)};
          for (uint64_t i = nonzeros; i < 4096; ++i) set(g[0], i, 0);
          if (std::strstr(how, "feedback"))
            for (gradient& each : g) each.state.assign((16 + 4 * each.universe + 7) / 8, 0);
          same_encode(std::string("sparsify=threshold(value=0,max_ratio=0.1) ") + how + p, g);
        }
}

TEST_CASE("a dense row is a dense row, whatever its codecs would say of its count") {
  // A filter of c = 2^32 - 1 for 70000 keys would have more than 2^32 bits, but it is never requested.
  constexpr uint64_t universe = 70000;
  bytes f{'D', 'R', DR_FORMAT_VERSION, 1 | 2 << 4, 0, 0, 0, 0, 0, 0, 0, 0};
  for (int i = 0; i < 2; ++i)
    for (const unsigned shift : {0u, 8u, 16u}) f.push_back(static_cast<uint8_t>(universe >> shift));
  f.insert(f.end(), {0x09, 0x01, 0x02, 0x09, 7, 1, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0});
  f.resize((f.size() + 3) / 4 * 4);
  std::vector<gradient> g{make(DR_F32, universe, 1)};
  const auto* const values = reinterpret_cast<const uint8_t*>(g[0].words.data());
  f.insert(f.end(), values, values + 4 * universe);
  frame_check::seal(f.data(), f.size(), f.size());
  const dr_place place = emulated(0);
  const decoded x = decode_at(nullptr, f, g), y = decode_at(&place, f, g);
  INFO(x.error << " / " << y.error);
  REQUIRE(x.status == DR_OK);
  REQUIRE(y.status == DR_OK);
  CHECK(same_bits(x.values[0], y.values[0]));
}

TEST_CASE("headers of one row that is not short: too large a universe, too long a plan entry, a tag") {
  dr_call tagged{};
  tagged.flags = DR_CALL_TAG;
  tagged.tag = 0x8877665544332211;
  const char* const longest = "index=bloom(policy=p0,fpr=0.013,seed=4294967295) value=qsgd(levels=100,bucket=1000)";
  for (const dr_call& call : {dr_call{}, tagged}) {
    same_encode("index=golomb value=raw", {make_sparse(DR_F16, (1 << 24) + 5, 3000, 1)}, call, 1);
    same_encode(longest, {make_sparse(DR_F32, 60000, 900, 2)}, call);
    for (const char* p : {"index=raw value=raw", "index=rice value=fit_poly", "index=bloom(fpr=0.01) value=raw"})
      same_encode(std::string("sparsify=topr(ratio=0.3) ") + p, {make(DR_BF16, 5000, 3)}, call);
  }
}

TEST_CASE("more rows than a launch covers, some of them empty, under a header of several chunks") {
  for (const char* p :
       {"index=raw value=raw", "index=golomb value=qsgd", "index=bloom(policy=p0,fpr=0.1) value=fit_poly",
        "index=rice value=fit_poly", "index=raw value=fit_poly"}) {
    std::vector<gradient> g;
    for (uint64_t i = 0; i < 411; ++i)
      g.push_back(make(i % 3 ? DR_F32 : DR_F16, i % 7 == 2 ? 0 : 1 + i % 40, i, 1, i % 5 == 1 ? 1.0 : 0.3));
    for (const uint32_t tag : {0u, uint32_t{DR_CALL_TAG}}) {
      dr_call call{};
      call.flags = tag;
      same_encode(std::string("sparsify=topr(ratio=0.5) ") + p, g, call, 1);
    }
  }
}

TEST_CASE("a plan of its own for every tensor") {
  std::vector<std::unique_ptr<plan>> plans;
  std::vector<gradient> g;
  for (unsigned i = 0; i < 45; ++i) {
    const char* const index[] = {"golomb", "raw", "bloom(fpr=0.1)", "bloom(policy=p0,fpr=0.2)"};
    plans.push_back(std::make_unique<plan>("sparsify=topr(ratio=0.1) index=" + std::string(index[i % 4]) +
                                           " value=qsgd(bucket=" + std::to_string(16 + i) + ")"));
    g.push_back(make(i % 2 ? DR_F32 : DR_BF16, 100 + 9 * i, i));
    g.back().own = plans.back().get();
  }
  same_encode("index=raw value=fit_poly", g);
  g.push_back(make(DR_F32, 3000, 1));
  same_encode("index=raw value=fit_poly", g, {}, 6);
}

TEST_CASE("rows that go dense or whose keys go raw, of any type, length and width, beside rows that do not") {
  const plan beside("sparsify=topr(ratio=0.1) index=bloom(fpr=0.01) value=raw");
  for (const dr_dtype dtype : {DR_F32, DR_F16, DR_BF16})
    for (const uint64_t d : {1, 2, 3, 1023, 2047, 2049, 6001})
      for (const char* p :
           {"index=raw value=raw", "index=bloom(policy=p0,fpr=0.9,max_ratio=0.01) value=raw",
            "sparsify=topr(ratio=0.3) index=bloom(policy=p0,fpr=0.9,max_ratio=0.01) value=qsgd",
            "sparsify=topr(ratio=0.3) index=bloom(policy=p0,fpr=0.9,max_ratio=0.01) value=fit_poly",
            "sparsify=topr(ratio=0.3) index=bloom(policy=p0,fpr=0.9,max_ratio=0.01) value=raw regather=off",
            "sparsify=threshold(value=0.5,max_ratio=0) index=golomb value=fit_poly"}) {
        std::vector<gradient> g{make(dtype, d, d)};
        same_encode(p, g);
        g.push_back(make(dtype, 300, 1)), g.back().own = &beside;
        g.push_back(make(dtype, d, 2, 1, 0.9));
        same_encode(p, g);
      }
  for (const uint32_t width : {2u, 3u, 7u})
    same_encode("index=raw value=raw", {make(DR_F16, 333, 3, width), make(DR_BF16, 77, 4, width, 0.95)});
}

TEST_CASE("feedback of rows that go dense or raw, of many tensors, and of plans side by side") {
  const plan other("sparsify=topr(ratio=0.3) feedback=residual(beta=0.5) index=raw value=fit_poly"),
      none("sparsify=topr(ratio=0.3) index=golomb value=qsgd");
  for (const char* text :
       {"sparsify=threshold(value=0.5,max_ratio=0) feedback=residual index=golomb value=qsgd",
        "sparsify=topr(ratio=0.3) feedback=residual index=bloom(policy=p0,fpr=0.9,max_ratio=0.01) value=fit_poly",
        "sparsify=topr(ratio=0.3) feedback=residual index=bloom(policy=p0,fpr=0.2) value=raw",
        "feedback=residual index=raw value=qsgd"})
    for (const size_t n : {size_t{1}, size_t{43}, size_t{405}}) {
      INFO(text << " " << n);
      const plan p(text);
      std::vector<gradient> a;
      for (size_t i = 0; i < n; ++i) {
        a.push_back(make(DR_F32, n == 1 ? 20001 : i % 60, i));
        if (i % 3 == 1) a.back().own = i % 2 ? &other : &none;
        if (a.back().own != &none) a.back().state.assign((16 + 4 * a.back().universe + 7) / 8, 0);
      }
      std::vector<gradient> b = a;
      for (uint64_t step = 0; step < 2; ++step) {
        for (size_t i = 0; i < n; ++i) a[i].words = b[i].words = make(DR_F32, a[i].universe, 1000 * step + i).words;
        const dr_place place = emulated(static_cast<int32_t>(step));
        const encoded x = encode_at(nullptr, p, a), y = encode_at(&place, p, b);
        INFO("step " << step << " " << y.error);
        REQUIRE(y.status == DR_OK);
        REQUIRE(x.frame == y.frame);
        for (size_t i = 0; i < n; ++i) REQUIRE(a[i].state == b[i].state);
      }
    }
}

TEST_CASE("rows of every mode merge, in few frames and in more than a block has lanes, into outputs of any type") {
  const plan p("sparsify=threshold(value=3,max_ratio=0.5) index=bloom(policy=p0,fpr=0.3,max_ratio=0.02) value=raw"),
      sparse("sparsify=topr(count=3) index=raw value=fit_poly");
  for (const dr_dtype dtype : {DR_F32, DR_F16})
    for (const size_t k : {size_t{1}, size_t{3}, size_t{300}}) {
      std::vector<gradient> like{make(dtype, 500, 1), make(dtype, 40, 2), make(dtype, 90000, 3)};
      like[2].own = &sparse;
      prepared b(p, like);
      std::vector<aligned_bytes> frames;
      for (size_t i = 0; i < k; ++i) {
        std::vector<gradient> g{make(dtype, 500, 10 * i + 1, 1, i % 3 ? 0.95 : 0), make(dtype, 40, 10 * i + 2),
                                make(dtype, 90000, 10 * i % 50)};
        // More than half of it is above the threshold in some frames, so it goes dense there.
        if (i % 2 == 0)
          for (uint64_t e = 0; e < 40; ++e) set(g[1], e, 3.5f + static_cast<float>(e));
        g[2].own = &sparse;
        frames.emplace_back(encode_at(nullptr, p, g).frame);
      }
      std::vector<dr_bytes> list;
      floats weights;
      for (const aligned_bytes& f : frames) {
        list.push_back({f.data, f.size});
        weights.push_back(0.5f + static_cast<float>(list.size()));
      }
      for (const bool adds : {false, true})
        for (const dr_dtype to : {dr_dtype{DR_F32}, dtype}) {
          INFO("k " << k << " adds " << adds << " to " << to);
          dr_decode_options options{};
          options.struct_size = sizeof options;
          options.flags = adds ? uint32_t{DR_DECODE_ADD} : 0u;
          const auto merged = [&](int how) {
            std::vector<gradient> held{make(to, 500, 7), make(to, 40, 8), make(to, 90000, 9)};
            std::vector<dr_tensor_out> outs(3);
            for (size_t i = 0; i < 3; ++i) {
              outs[i].struct_size = sizeof outs[i];
              outs[i].dtype = to;
              outs[i].universe = held[i].universe;
              outs[i].values = held[i].words.data();
            }
            context c;
            const dr_place place = emulated(how);
            dr_result result{.struct_size = sizeof(dr_result)};
            dr_status s = DR_OK;
            if (how < 2)
              s = dr_merge(c.handle, how ? &place : nullptr, list.data(), weights.data(), k, &options, outs.data(),
                           sizeof outs[0], 3);
            else {
              size_t room = 0;
              REQUIRE(dr_batch_merge_workspace(b.batch, k, &room, nullptr) == DR_OK);
              s = dr_batch_merge(b.c.handle, b.batch, &b.place, list.data(), weights.data(), k, &options, outs.data(),
                                 sizeof outs[0], 3, b.memory(room), room, &result);
            }
            INFO(how << " " << c.error() << b.c.error());
            REQUIRE(s == DR_OK);
            REQUIRE(result.status == DR_OK);
            std::vector<std::vector<uint32_t>> words;
            for (const gradient& g : held) words.push_back(g.words);
            return words;
          };
          const auto want = merged(0);
          CHECK(want == merged(1));
          CHECK(want == merged(2));
          b.held.clear();
        }
    }
}

TEST_CASE("an encode that fails on a GPU leaves the frame alone, and in the states nothing that is not finite") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* text :
       {"sparsify=topr(ratio=0.1) feedback=residual(beta=0.5,gamma=2) index=golomb value=qsgd",
        "sparsify=threshold(value=1) feedback=residual(beta=0.5,gamma=2) index=raw value=fit_poly"}) {
    INFO(text);
    const plan p(text);
    std::vector<gradient> g{make(DR_F32, 400, 1), make(DR_F32, 30000, 2), make(DR_F32, 400, 3)};
    for (gradient& x : g) x.state.assign((16 + 4 * x.universe + 7) / 8, 0);
    const auto residual = [](gradient& x) { return reinterpret_cast<float*>(x.state.data() + 2); };
    prepared b(p, g);
    REQUIRE(b.encode(g).status == DR_OK);
    for (gradient& x : g) x.words = make(DR_F32, x.universe, 9).words;
    set(g[1], 29999, nan);
    set(g[1], 7, -nan);
    g[2].state[0] ^= 1;  // not a state
    const std::vector<gradient> before = g;
    auto* const frame = static_cast<uint8_t*>(b.memory(b.info.bound));
    const encoded e = b.encode(g, {}, frame);
    CHECK(e.status == DR_E_ARGUMENT);
    CHECK(e.result.tensor == 1);
    CHECK(e.result.size == 0);
    for (uint64_t i = 0; i < b.info.bound; ++i) REQUIRE(frame[i] == 0xa5);
    CHECK(g[2].state == before[2].state);
    for (size_t t = 0; t < 2; ++t)
      for (uint64_t i = 0; i < g[t].universe; ++i) {
        gradient old = before[t];
        float v;
        std::memcpy(&v, &g[t].words[i], 4);
        const float sum = 2 * v + 0.5f * residual(old)[i];
        REQUIRE(residual(g[t])[i] == (std::isfinite(sum) ? sum : 0));
      }
  }
  // No room either.
  const plan p("sparsify=topr(ratio=0.1) index=golomb");
  std::vector<gradient> g{make(DR_F32, 30000, 3), make(DR_F32, 300, 4)};
  prepared b(p, g);
  b.info.bound = 1000;
  auto* const frame = static_cast<uint8_t*>(b.memory(1000));
  CHECK(b.encode(g, {}, frame).status == DR_E_CAPACITY);
  for (int i = 0; i < 1000; ++i) REQUIRE(frame[i] == 0xa5);
}

TEST_CASE("feedback of rows of several values is the CPU's") {
  const plan p("feedback=residual value=qsgd");
  std::vector<gradient> g{make(DR_F32, 100, 1, 3)};
  g[0].state.assign(2 + 150, 0);
  const dr_place strict = emulated(1);
  const encoded e = encode_at(&strict, p, g);
  CHECK(e.status == DR_E_UNSUPPORTED);
  CHECK(e.error.find("several values") != std::string::npos);
}

TEST_CASE("the CPU's detour accepts a batch of fewer workers, and reports why there is no frame") {
  const plan p("sparsify=topr(ratio=0.1) index=golomb value=qsgd+deflate");
  std::vector<gradient> g;
  for (uint64_t i = 0; i < 64; ++i) g.push_back(make(DR_F32, 3000, i));
  const dr_place place = emulated(1, DR_PLACE_ALLOW_HOST);
  std::vector<dr_tensor> tensors;
  for (gradient& x : g) tensors.push_back(x.tensor());
  context one, many(8);
  dr_batch* batch = nullptr;
  REQUIRE(dr_batch_create(one.handle, p.handle, &place, tensors.data(), sizeof(dr_tensor), g.size(), 0, &batch) ==
          DR_OK);
  bytes room(1 << 20);
  dr_call call{};
  call.struct_size = sizeof call;
  call.flags = DR_CALL_STATUS_FRAME;
  dr_result result{.struct_size = sizeof(dr_result)};
  const auto encode = [&] {
    return dr_batch_encode(many.handle, batch, &call, &place, tensors.data(), sizeof(dr_tensor), g.size(), nullptr, 0,
                           room.data(), room.size(), &result);
  };
  REQUIRE(encode() == DR_OK);
  CHECK(bytes(room.begin(), room.begin() + static_cast<ptrdiff_t>(result.size)) == encode_at(nullptr, p, g).frame);
  set(g[5], 3, std::numeric_limits<float>::infinity());
  CHECK(encode() == DR_E_ARGUMENT);
  CHECK(result.status == DR_E_ARGUMENT);
  CHECK(result.tensor == 5);
  const decoded d = decode_at(nullptr, bytes(room.begin(), room.begin() + static_cast<ptrdiff_t>(result.size)), g);
  CHECK(d.status == DR_E_PEER);
  dr_batch_destroy(batch);
}

TEST_CASE(
    "a plan of Top-r, Golomb and a quantiser takes at most 22 r + d/16 bytes of workspace, and its bound is at most "
    "1.11 of what it sends") {
  struct {
    uint64_t d;
    double ratio;
    double index_bits;  // log2 C(d, r) / r + 0.04: what uniform supports take
    double most;        // of the typical frame
  } const cases[] = {{25600000, 0.01, 8.118, 1.11},
                     {100000000, 0.01, 8.118, 1.11},
                     {25600000, 0.1, 4.738, 1.11},
                     {1000000000, 0.001, 11.452, 1.11}};
  for (const auto& k : cases) {
    INFO(k.d << " at " << k.ratio);
    const plan p("sparsify=topr(ratio=" + std::to_string(k.ratio) + ") index=golomb value=qsgd");
    std::vector<gradient> g(1);
    g[0].universe = k.d;
    const prepared b(p, g);
    const double r = std::floor(k.ratio * static_cast<double>(k.d)), typical = r * (k.index_bits + 8 + 32.0 / 512) / 8;
    MESSAGE(k.d << " at " << k.ratio << ": workspace "
                << static_cast<double>(b.info.workspace) / (22 * r + static_cast<double>(k.d) / 16)
                << " of the limit, bound " << static_cast<double>(b.info.bound) / typical << " of the typical frame");
    CHECK(static_cast<double>(b.info.workspace) <= 22 * r + static_cast<double>(k.d) / 16);
    CHECK(static_cast<double>(b.info.bound) <= k.most * typical);
  }
}

TEST_CASE("a GPU writes of a result what the caller's version of the struct has room for, and nothing behind it") {
  const plan p("sparsify=topr(ratio=0.1) index=golomb value=qsgd");
  const plan by_host("sparsify=topr(ratio=0.1) index=golomb value=qsgd+deflate");
  std::vector<gradient> g{make(DR_F32, 3000, 3)}, bad = g;
  set(bad[0], 17, std::numeric_limits<float>::infinity());
  const bytes frame = encode_at(nullptr, p, g).frame;
  prepared b(p, g);
  dr_batch* detour = nullptr;
  const dr_place lenient = emulated(1, DR_PLACE_ALLOW_HOST);
  const dr_tensor like = g[0].tensor();
  REQUIRE(dr_batch_create(b.c.handle, by_host.handle, &lenient, &like, sizeof like, 1, 0, &detour) == DR_OK);
  size_t room = 0;
  REQUIRE(dr_batch_merge_workspace(b.batch, 1, &room, nullptr) == DR_OK);
  const auto workspace = b.memory(std::max<uint64_t>(room, b.info.workspace) + 64);
  auto* const out = static_cast<uint8_t*>(b.memory(1 << 17));
  const aligned_bytes sound(frame), damaged([&] {
    bytes d = frame;
    d.back() ^= 1;
    return d;
  }());
  constexpr size_t status_end = offsetof(dr_result, status) + sizeof(dr_status);
  // Each as a caller would see it who gives all of the struct.
  const auto call = [&](int which, dr_result* result) {
    if (which < 4) {
      const bool device = which < 2;
      const dr_tensor t = (which % 2 ? bad : g)[0].tensor();
      return dr_batch_encode(b.c.handle, device ? b.batch : detour, nullptr, device ? &b.place : &lenient, &t, sizeof t,
                             1, workspace, b.info.workspace, out, device ? b.info.bound : 1 << 17, result);
    }
    floats values(3000);
    dr_tensor_out o = dense_out(values);
    const aligned_bytes& f = which == 4 ? sound : damaged;
    return dr_batch_decode(b.c.handle, b.batch, &b.place, f.data, f.size, nullptr, &o, sizeof o, 1, workspace, room,
                           result);
  };
  for (int which = 0; which < 6; ++which) {
    dr_result whole{sizeof whole};
    const dr_status status = call(which, &whole);
    CHECK(whole.status == (which % 2 == 0 ? DR_OK : which == 5 ? DR_E_CORRUPT : DR_E_ARGUMENT));
    if (which < 4) CHECK((whole.size != 0) == (which % 2 == 0));
    for (size_t size = 0; size <= sizeof(dr_result) + 24; ++size) {
      INFO("call " << which << ", struct_size " << size);
      alignas(8) uint8_t held[sizeof(dr_result) + 64];
      std::memset(held, 0xa5, sizeof held);
      std::memcpy(held, &size, sizeof size);
      CHECK(call(which, reinterpret_cast<dr_result*>(held)) == status);
      size_t told = 0;
      std::memcpy(&told, held, sizeof told);
      CHECK(told == size);
      const size_t end = size < status_end ? sizeof size : std::min(size, sizeof(dr_result)) / 4 * 4;
      CHECK(std::memcmp(held + sizeof size, reinterpret_cast<const uint8_t*>(&whole) + sizeof size,
                        end - sizeof size) == 0);
      CHECK(std::all_of(held + end, held + sizeof held, [](uint8_t x) { return x == 0xa5; }));
    }
  }
  dr_batch_destroy(detour);
}

TEST_CASE(
    "a NaN that arithmetic makes is the same on a GPU: of feedback, and of sums; one that is copied keeps its bits") {
  constexpr uint32_t odd[] = {0x7fffffff, 0xffc00000, 0x7f800001, 0xff812345, 0xffffffff, 0x7f800000, 0xff800000};
  const auto spoil = [&](gradient& g, uint64_t seed) {
    rng r{seed};
    for (uint64_t i = 0; i < g.universe; i += 1 + r.next() % 40) {
      const uint32_t bits = odd[r.next() % std::size(odd)];
      if (g.dtype == DR_F32)
        g.words[i] = bits;
      else
        reinterpret_cast<uint16_t*>(g.words.data())[i] = static_cast<uint16_t>(
            g.dtype == DR_BF16 ? bits >> 16 | (bits & 0xffff ? 1 : 0)
                               : (bits >> 16 & 0x8000) | 0x7c00 | (bits & 0x7fffff ? bits % 1023 + 1 : 0));
    }
  };
  for (const dr_dtype dtype : {DR_F32, DR_F16, DR_BF16})
    for (const char* index : {"index=golomb", "index=bloom(policy=p0,fpr=0.02)"})
      for (const double ratio : {0.01, 0.2}) {
        const std::string codecs = " " + std::string(index) + " value=raw";
        const std::string sparsify = "sparsify=topr(ratio=" + std::to_string(ratio) + ")";
        INFO(sparsify << codecs << ", type " << dtype);
        std::vector<gradient> g{make(dtype, 20000, 1), make(dtype, 700, 2)};
        for (gradient& x : g) spoil(x, x.universe);
        same_encode(sparsify + codecs, g);
        // Feedback, from a state that has some, too.
        std::vector<gradient> kept = g;
        for (gradient& x : kept) {
          x.state.assign((16 + 4 * x.universe + 7) / 8, 0);
          x.state[0] = 0x52537244;
          x.state[1] = x.universe;
          gradient m = make(DR_F32, x.universe, 5);
          spoil(m, 6);
          std::memcpy(x.state.data() + 2, m.words.data(), 4 * x.universe);
        }
        same_encode(sparsify + " feedback=residual(beta=0.5,gamma=-1)" + codecs, kept);
        const plan p(sparsify + " feedback=residual" + codecs);
        const bytes frame = encode_at(nullptr, p, kept).frame;
        const decoded d = decode_at(nullptr, frame, g);
        for (const float v : d.values[0])
          if (std::isnan(v)) {
            uint32_t bits;
            std::memcpy(&bits, &v, 4);
            REQUIRE(bits == 0x7fc00000);
          }
        // Sums, into what has some.
        const bytes plain = encode_at(nullptr, plan(sparsify + codecs), g).frame;
        const aligned_bytes a(frame), b(plain);
        const dr_bytes list[] = {{a.data, a.size}, {b.data, b.size}, {b.data, b.size}};
        const float weights[] = {1, -0.5f, 0};
        dr_decode_options options{};
        options.struct_size = sizeof options;
        options.flags = DR_DECODE_ADD;
        for (const dr_dtype to : {dtype, dr_dtype{DR_F32}}) {
          const auto merged = [&](const dr_place* place, size_t k) {
            std::vector<gradient> held{make(to, 20000, 7), make(to, 700, 8)};
            for (gradient& x : held) spoil(x, 9);
            std::vector<dr_tensor_out> outs(2);
            for (size_t i = 0; i < 2; ++i) {
              outs[i].struct_size = sizeof outs[i];
              outs[i].dtype = to;
              outs[i].universe = held[i].universe;
              outs[i].values = held[i].words.data();
            }
            context c;
            const dr_status s =
                dr_merge(c.handle, place, list, weights, k, &options, outs.data(), sizeof outs[0], outs.size());
            INFO(c.error());
            REQUIRE(s == DR_OK);
            return std::pair(held[0].words, held[1].words);
          };
          // By pairs where they are few, by tiles where not.
          for (const size_t k : {1, 3}) {
            const dr_place place = emulated(static_cast<int32_t>(k));
            CHECK(merged(nullptr, k) == merged(&place, k));
          }
        }
      }
}
