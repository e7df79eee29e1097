// dr_plan_describe against what encode and decode of samples show: a flag that is missing is never seen to be broken, and one that is
// there is seen to be needed, by a codec's usual plan.
#include <algorithm>
#include <map>
#include <set>

#include "cases/case.hpp"
#include "client.hpp"

namespace dr::properties {
namespace {

using client::bytes;
using client::floats;

constexpr uint64_t elements = 6000, kept = 300;

uint32_t flags_of(const std::string& text) {
  client::plan p(text);
  dr_plan_info info{};
  info.struct_size = sizeof info;
  REQUIRE(dr_plan_describe(p.handle, &info, nullptr) == DR_OK);
  return info.flags;
}

// Equal numbers of selected values, of distributions that codecs treat differently.
std::vector<floats> samples() {
  std::vector<floats> all;
  for (uint64_t seed = 1; seed <= 4; ++seed) all.push_back(client::laplace(elements, seed));
  floats clustered = client::laplace(elements, 5, 1e-6);
  for (uint64_t i = 1000; i < 1000 + kept; ++i) clustered[i] = 1 + static_cast<float>(i % 7);
  all.push_back(clustered);
  floats heavy(elements);
  client::rng r{6};
  for (float& v : heavy) v = std::ldexp(r.laplace(1), static_cast<int>(r.next() % 40) - 20);
  all.push_back(heavy);
  return all;
}

std::vector<uint64_t> largest(const floats& g) {
  std::vector<uint64_t> order(g.size());
  for (uint64_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](uint64_t a, uint64_t b) { return std::abs(g[a]) > std::abs(g[b]); });
  order.resize(kept);
  std::sort(order.begin(), order.end());
  return order;
}

struct seen {
  bool lossy_values = false, lossy_support = false, dropped = false, by_shared = false, by_private = false;
  std::set<size_t> sizes, value_sizes;
  std::set<std::vector<uint64_t>> supports;
};

seen look_at(const std::string& text, bool selects) {
  seen s;
  client::context c;
  for (const floats& g : samples()) {
    const std::vector<uint64_t> expected = largest(g);
    const dr_tensor t = client::dense(g);
    dr_call call{};
    const bytes frame = client::encode(c, text, {t}, call);
    const dr_tensor_info info = client::inspect(frame);
    const client::pairs got = client::decode_sparse(c, frame);
    s.sizes.insert(frame.size());
    s.value_sizes.insert(info.value_size);
    s.supports.insert(got.indices);
    std::map<uint64_t, float> decoded;
    for (size_t k = 0; k < got.indices.size(); ++k) decoded[got.indices[k]] = got.values[k];
    if (selects && info.fallback == DR_FALLBACK_NONE) {
      s.lossy_support |= got.indices != expected;
      for (const uint64_t i : expected)
        if (decoded.count(i)) s.lossy_values |= std::memcmp(&decoded[i], &g[i], 4) != 0;
    }
    for (uint64_t i = 0; i < g.size(); ++i) s.dropped |= g[i] != 0 && !decoded.count(i);
    call.seed = 5;
    s.by_shared |= client::encode(c, text, {t}, call) != frame;
    call = {};
    call.private_seed = 5;
    s.by_private |= client::encode(c, text, {t}, call) != frame;
  }
  return s;
}

uint32_t traits_of(const cases::codec_case& k) {
  for (size_t i = 0; i < dr_codec_count(); ++i)
    if (dr_codec_at(i)->role == k.role && std::string(dr_codec_at(i)->name) == k.name) return dr_codec_at(i)->traits;
  return 0;
}

struct described {
  std::string text;
  bool usual;
};
std::vector<described> plans() {
  std::vector<described> all;
  const std::string front = "sparsify=topr(count=" + std::to_string(kept) + ") ";
  for (const cases::codec_case& k : cases::all())
    for (const char* plan : k.plans) {
      if (traits_of(k) & DR_NEEDS_BASE) continue;  // (below)
      const std::string p = plan;
      const bool usual = plan == k.plans[0];
      const auto add = [&](const std::string& text) { all.push_back({front + text, usual}); };
      if (k.role == DR_ROLE_INDEX) add("index=" + p + " value=raw");
      if (k.role == DR_ROLE_VALUE) add("index=raw value=" + p), add("index=golomb value=" + p);
      if (k.role == DR_ROLE_ORDER) add("index=golomb value=fit_poly order=" + p);
      if (k.role == DR_ROLE_BYTES) add("index=golomb value=raw+" + p), add("index=raw+" + p + " value=raw");
    }
  for (const char* more :
       {"index=auto", "index=auto value=auto(error=0.1)", "value=auto(error=0)", "value=auto(error=0.5)",
        "index=bloom(policy=naive) value=raw", "index=golomb value=raw bucket=flat"})
    all.push_back({front + more, true});
  return all;
}

bool has(uint32_t flags, uint32_t flag) { return flags & flag; }

TEST_CASE("plan info: of every codec the flags are what samples show") {
  size_t fixed = 0, random = 0;
  for (const described& d : plans()) {
    INFO(d.text);
    const uint32_t flags = flags_of(d.text);
    client::plan p(d.text);
    {  // a plan that these samples do not suit shows nothing
      client::context c;
      const floats g = client::laplace(elements, 1);
      bytes frame;
      if (client::try_encode(c, d.text, {client::dense(g)}, frame) != DR_OK) {
        CHECK(!d.usual);
        continue;
      }
    }
    const seen s = look_at(d.text, true);
    CHECK(has(flags, DR_PLAN_SPARSIFIES));
    if (!has(flags, DR_PLAN_LOSSY_VALUES)) CHECK(!s.lossy_values);
    if (!has(flags, DR_PLAN_LOSSY_SUPPORT)) CHECK(!s.lossy_support);
    // (What a rank draws for itself depends on the shared seed, too.)
    if (!has(flags, DR_PLAN_SHARED_RANDOM | DR_PLAN_PRIVATE_RANDOM)) CHECK(!s.by_shared);
    if (!has(flags, DR_PLAN_PRIVATE_RANDOM)) CHECK(!s.by_private);
    if (has(flags, DR_PLAN_FIXED_SIZE)) CHECK(s.sizes.size() == 1);
    if (has(flags, DR_PLAN_LINEAR)) {
      CHECK(s.supports.size() == 1);
      CHECK(s.value_sizes.size() == 1);
      CHECK(!s.lossy_values);
    }
    if (d.usual) {
      CHECK(has(flags, DR_PLAN_LOSSY_VALUES) == s.lossy_values);
      CHECK(has(flags, DR_PLAN_LOSSY_SUPPORT) == s.lossy_support);
      CHECK(has(flags, DR_PLAN_PRIVATE_RANDOM) == s.by_private);
    }
    fixed += has(flags, DR_PLAN_FIXED_SIZE);
    random += s.by_shared;
    CHECK(has(flags, DR_PLAN_CHOOSES) == (d.text.find("=auto") != std::string::npos));
    CHECK(has(flags, DR_PLAN_FLAT) == (d.text.find("=flat") != std::string::npos));
    CHECK(!has(flags, DR_PLAN_FEEDBACK));
  }
  CHECK(fixed > 10);
  CHECK(random > 0);
}

TEST_CASE("plan info: HOST_ONLY is what no place but the CPU takes, and its absence what one does") {
  client::context c;
  const floats g = client::laplace(elements, 1);
  dr_place place{};
  place.struct_size = sizeof place;
  place.kind = DR_PLACE_EMULATED;
  const dr_tensor t = client::dense(g);
  for (const described& d : plans()) {
    INFO(d.text);
    client::plan p(d.text);
    size_t size = 0;
    const dr_status s = dr_bound(c.handle, p.handle, nullptr, &place, &t, sizeof t, 1, &size);
    INFO(c.error());
    if (has(flags_of(d.text), DR_PLAN_HOST_ONLY)) CHECK(s == DR_E_UNSUPPORTED);
    // (A bytes codec that has a path alone may have none behind another.)
    else if (d.usual && d.text.find('+') == std::string::npos)
      CHECK(s == DR_OK);
  }
}

TEST_CASE("plan info: sparsifiers, feedback and what may be added up") {
  const struct {
    const char* text;
    uint32_t set, clear;
  } plans[] = {
      {"index=golomb", 0,
       DR_PLAN_SPARSIFIES | DR_PLAN_LOSSY_VALUES | DR_PLAN_LOSSY_SUPPORT | DR_PLAN_FIXED_SIZE | DR_PLAN_LINEAR},
      {"index=raw", DR_PLAN_FIXED_SIZE, DR_PLAN_SPARSIFIES | DR_PLAN_LINEAR | DR_PLAN_HOST_ONLY},
      {"index=raw value=raw+huffman", 0, DR_PLAN_FIXED_SIZE | DR_PLAN_LOSSY_VALUES},
      {"sparsify=topr(ratio=1)", 0, DR_PLAN_SPARSIFIES},
      {"sparsify=topr(ratio=0.99)", DR_PLAN_SPARSIFIES, DR_PLAN_HOST_ONLY | DR_PLAN_SHARED_RANDOM | DR_PLAN_LINEAR},
      {"sparsify=topr(count=1)", DR_PLAN_SPARSIFIES, 0},
      {"sparsify=threshold(value=0)", 0, DR_PLAN_SPARSIFIES},
      {"sparsify=threshold(value=1e-5)", DR_PLAN_SPARSIFIES, 0},
      {"sparsify=dgc(ratio=0.1)", DR_PLAN_SPARSIFIES | DR_PLAN_SHARED_RANDOM | DR_PLAN_HOST_ONLY, DR_PLAN_LINEAR},
      {"sparsify=random(ratio=0.1)", DR_PLAN_SPARSIFIES | DR_PLAN_SHARED_RANDOM | DR_PLAN_LINEAR | DR_PLAN_FIXED_SIZE,
       DR_PLAN_HOST_ONLY},
      {"sparsify=random(ratio=0.1) index=golomb", DR_PLAN_LINEAR, DR_PLAN_FIXED_SIZE},
      {"sparsify=random(ratio=0.1) value=qsgd", DR_PLAN_PRIVATE_RANDOM, DR_PLAN_LINEAR},
      {"sparsify=random(ratio=0.1) value=raw+deflate", DR_PLAN_HOST_ONLY, DR_PLAN_LINEAR | DR_PLAN_FIXED_SIZE},
      {"index=all value=raw", DR_PLAN_LINEAR | DR_PLAN_FIXED_SIZE | DR_PLAN_LOSSY_SUPPORT,
       DR_PLAN_LOSSY_VALUES | DR_PLAN_HOST_ONLY},
      {"index=all value=qsgd", DR_PLAN_FIXED_SIZE | DR_PLAN_LOSSY_VALUES, DR_PLAN_LINEAR},
      {"index=seeded value=raw", DR_PLAN_LINEAR | DR_PLAN_FIXED_SIZE | DR_PLAN_SHARED_RANDOM, DR_PLAN_LOSSY_VALUES},
      {"index=bloom(fpr=0.01) value=raw", DR_PLAN_LOSSY_SUPPORT, DR_PLAN_LINEAR | DR_PLAN_FIXED_SIZE},
      {"index=bloom(fpr=0.01,policy=naive) value=raw", DR_PLAN_LOSSY_SUPPORT | DR_PLAN_LOSSY_VALUES, 0},
      {"value=fit_poly", DR_PLAN_LOSSY_VALUES, DR_PLAN_FIXED_SIZE},
      {"value=fit_dexp", DR_PLAN_LOSSY_VALUES | DR_PLAN_FIXED_SIZE, DR_PLAN_LINEAR},
      {"feedback=residual", DR_PLAN_FEEDBACK | DR_PLAN_RESIDUAL, DR_PLAN_SPARSIFIES | DR_PLAN_HOST_ONLY},
      {"feedback=efsignsgd", DR_PLAN_FEEDBACK | DR_PLAN_RESIDUAL | DR_PLAN_HOST_ONLY, DR_PLAN_VOTE},
      {"feedback=dgc", DR_PLAN_FEEDBACK | DR_PLAN_RESIDUAL | DR_PLAN_HOST_ONLY, DR_PLAN_VOTE},
      {"feedback=momentum", DR_PLAN_FEEDBACK | DR_PLAN_HOST_ONLY, DR_PLAN_RESIDUAL},
      {"index=all merge=vote", DR_PLAN_VOTE | DR_PLAN_HOST_ONLY, DR_PLAN_FEEDBACK | DR_PLAN_LINEAR},
      {"index=all merge=mean", DR_PLAN_LINEAR, DR_PLAN_VOTE},
      {"feedback=residual(beta=0.5)", DR_PLAN_FEEDBACK, 0},
      {"value=auto(error=0)", DR_PLAN_CHOOSES | DR_PLAN_HOST_ONLY | DR_PLAN_FIXED_SIZE, DR_PLAN_LOSSY_VALUES},
      {"value=auto(error=0.1)", DR_PLAN_CHOOSES | DR_PLAN_HOST_ONLY | DR_PLAN_LOSSY_VALUES, DR_PLAN_FIXED_SIZE},
      {"index=auto", DR_PLAN_CHOOSES | DR_PLAN_HOST_ONLY, DR_PLAN_FIXED_SIZE | DR_PLAN_LOSSY_SUPPORT},
      {"bucket=flat", DR_PLAN_FLAT, DR_PLAN_CHOOSES | DR_PLAN_PATCH | DR_PLAN_HOST_ONLY},
      {"sparsify=changed index=magnitude value=ulp", DR_PLAN_PATCH | DR_PLAN_HOST_ONLY,
       DR_PLAN_LOSSY_VALUES | DR_PLAN_LOSSY_SUPPORT | DR_PLAN_FEEDBACK | DR_PLAN_CHOOSES | DR_PLAN_LINEAR |
           DR_PLAN_FIXED_SIZE},
      {"sparsify=changed index=auto value=xor", DR_PLAN_PATCH | DR_PLAN_CHOOSES, DR_PLAN_LOSSY_VALUES},
      {"sparsify=changed index=all value=raw", DR_PLAN_PATCH | DR_PLAN_HOST_ONLY, DR_PLAN_LOSSY_VALUES},
      {"sparsify=changed index=golomb value=raw", DR_PLAN_PATCH, DR_PLAN_LOSSY_VALUES | DR_PLAN_HOST_ONLY},
  };
  for (const auto& each : plans) {
    INFO(std::string(each.text));
    const uint32_t flags = flags_of(each.text);
    CHECK((flags & each.set) == each.set);
    CHECK((flags & each.clear) == 0);
    // A plan with feedback is one with a state.
    client::plan p(each.text);
    const floats g(10);
    const dr_tensor t = client::dense(g);
    size_t size = 0;
    CHECK(dr_state_size(p.handle, &t, &size, nullptr) == DR_OK);
    CHECK((size > 0) == has(flags, DR_PLAN_FEEDBACK));
  }
  // What is LINEAR can be added up: the sum of two ranks' decoded frames is the decoded sum, where it was sent.
  for (const char* text :
       {"index=all value=raw", "index=seeded(ratio=0.1) value=raw", "sparsify=random(ratio=0.1) index=golomb"}) {
    INFO(std::string(text));
    CHECK(!look_at(text, false).supports.empty());
    CHECK(look_at(text, false).supports.size() == 1);
    CHECK(look_at(text, false).value_sizes.size() == 1);
  }
  CHECK(look_at("sparsify=random(ratio=0.1) index=golomb", false).dropped);
  CHECK(!look_at("sparsify=threshold(value=0) index=golomb", false).dropped);
  CHECK(!look_at("sparsify=topr(ratio=1) index=golomb", false).dropped);
}

TEST_CASE("plan info: dtypes are those that dr_bound takes") {
  client::context c;
  const floats g = client::laplace(elements, 1);
  for (const described& d : plans()) {
    INFO(d.text);
    client::plan p(d.text);
    dr_plan_info info{};
    info.struct_size = sizeof info;
    REQUIRE(dr_plan_describe(p.handle, &info, nullptr) == DR_OK);
    CHECK(info.dtypes != 0);
    for (const dr_dtype dtype : {DR_F32, DR_F16, DR_BF16, DR_U32, DR_I64}) {
      dr_tensor t = client::dense(g);
      t.dtype = dtype;
      size_t size = 0;
      const dr_status s = dr_bound(c.handle, p.handle, nullptr, nullptr, &t, sizeof t, 1, &size);
      if (s && d.usual) CHECK(s == DR_E_ARGUMENT);
      if (!(info.dtypes & DR_DTYPE_BIT(dtype))) CHECK(s == DR_E_ARGUMENT);
      if (info.dtypes & DR_DTYPE_BIT(dtype) && d.usual) CHECK(s == DR_OK);
    }
  }
}

TEST_CASE("plan info: a patch accepts words of seven types") {
  client::plan p("sparsify=changed index=auto value=ulp");
  dr_plan_info info{};
  info.struct_size = sizeof info;
  REQUIRE(dr_plan_describe(p.handle, &info, nullptr) == DR_OK);
  uint32_t expected = 0;
  for (const dr_dtype dtype : {DR_F32, DR_F16, DR_BF16, DR_F64, DR_U8, DR_U16, DR_U32}) expected |= DR_DTYPE_BIT(dtype);
  CHECK(info.dtypes == expected);
}

TEST_CASE("plan info: NULL and sizes that are not set are refused; shorter and longer structs are served") {
  client::plan p("sparsify=topr(ratio=0.1) feedback=residual");
  dr_plan_info info{};
  dr_error error{};
  error.struct_size = sizeof error;
  CHECK(dr_plan_describe(p.handle, &info, &error) == DR_E_ARGUMENT);
  CHECK(error.message[0]);
  info.struct_size = sizeof info;
  CHECK(dr_plan_describe(nullptr, &info, &error) == DR_E_ARGUMENT);
  CHECK(dr_plan_describe(p.handle, nullptr, &error) == DR_E_ARGUMENT);
  for (const size_t size : {sizeof(dr_plan_info), sizeof(dr_plan_info) + 16}) {
    std::vector<uint64_t> memory(16);
    memory[0] = size;
    auto* const other = reinterpret_cast<dr_plan_info*>(memory.data());
    CHECK(dr_plan_describe(p.handle, other, nullptr) == DR_OK);
    CHECK(other->flags == flags_of("sparsify=topr(ratio=0.1) feedback=residual"));
    CHECK(other->dtypes != 0);
    for (size_t i = 2; i < 16; ++i) CHECK(memory[i] == 0);
  }
}

}  // namespace
}  // namespace dr::properties
