// dr_bound: enough for whatever a tensor of that shape holds, and, where a plan's size hardly depends on the data, little more than that.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <set>

#include "cases/case.hpp"
#include "client.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::properties {
namespace {

using client::bytes;
using client::floats;

struct sizes {
  size_t bound = 0, frame = 0;
  double ratio() const { return static_cast<double>(bound) / static_cast<double>(frame); }
};

// Into a buffer of exactly dr_bound bytes. 0, 0 if the plan does not take such data.
sizes encode_bounded(client::context& c, const std::string& text, dr_tensor t, uint64_t segment_rows = 0) {
  INFO(text << ", " << t.universe << " elements");
  const client::plan p(text);
  sizes s;
  size_t size = 0;
  REQUIRE(dr_state_size(p.handle, &t, &size, nullptr) == DR_OK);
  std::vector<uint64_t> state(size / 8 + 1);
  t.state = size ? state.data() : nullptr;
  t.state_size = size;
  dr_call call{};
  call.struct_size = sizeof call;
  call.segment_rows = segment_rows;
  call.flags = DR_CALL_TAG;
  dr_status status = dr_bound(c.handle, p.handle, &call, nullptr, &t, sizeof t, 1, &s.bound);
  if (status == DR_E_ARGUMENT) return {};  // (reordering values of several a row, say)
  INFO(c.error());
  REQUIRE(status == DR_OK);
  bytes frame(s.bound);
  dr_result result{};
  result.struct_size = sizeof result;
  status = dr_encode(c.handle, p.handle, &call, nullptr, &t, sizeof t, 1, frame.data(), frame.size(), &result);
  if (status == DR_E_ARGUMENT) return {};  // (not finite)
  INFO(c.error());
  REQUIRE(status == DR_OK);
  REQUIRE(result.size <= s.bound);
  s.frame = result.size;
  return s;
}

// ---- Close to what is sent -------------------------------------------------------------------------------

constexpr double close = 1.15;

struct usual {
  std::string plan;             // RATIO stands for it
  const char* loose = nullptr;  // why no bound can be close
};

// Every codec in its usual plans.
std::vector<usual> usual_plans() {
  constexpr const char *raw_keys = "the data may make the filter's positives too many, and then keys go raw",
                       *by_gaps = "a code by the gaps' widths, which for the same count may be wider",
                       *by_values = "the values decide how many bits they take",
                       *by_bytes = "a bytes codec may find nothing to shorten";
  const std::string topr = "sparsify=topr(ratio=RATIO) ";
  std::vector<usual> all;
  for (const char* value : {"raw", "qsgd", "half", "natural", "dynamic_tree"}) {
    const std::string with = std::string(" value=") + value;
    for (const char* index : {"raw", "golomb", "rice", "elias_fano"}) all.push_back({topr + "index=" + index + with});
    for (const char* index : {"golomb(adaptive=1)", "bitmap", "auto"}) all.push_back({topr + "index=" + index + with});
    for (const char* index : {"delta_varint", "delta_bitpack", "delta_pfor", "gap_huffman", "rle", "rle(code=gaps16)"})
      all.push_back({topr + "index=" + index + with, by_gaps});
    all.push_back({"sparsify=chunks(ratio=RATIO) index=chunks" + with, by_gaps});
    for (const char* index : {"bloom(fpr=0.001)", "bloom(policy=rightmost,fpr=0.001)"})
      all.push_back({topr + "index=" + index + with});
    for (const char* policy : {"p0", "middle", "p1", "p2"})
      all.push_back({topr + "index=bloom(policy=" + policy + ",fpr=0.001)" + with, raw_keys});
    all.push_back({"index=seeded(ratio=RATIO)" + with});
    all.push_back({"index=all" + with});
    all.push_back({"sparsify=random(ratio=RATIO) index=golomb" + with});
    all.push_back({topr + "feedback=residual index=golomb" + with});
    all.push_back(
        {"sparsify=dgc(ratio=RATIO) index=golomb" + with, "a threshold by chance keeps up to 1.3 times as many"});
    all.push_back({"sparsify=threshold(value=0.003) index=golomb" + with, "the data decide how many values reach it"});
    all.push_back({"sparsify=threshold(value=0.003,max_ratio=0.2) index=golomb" + with,
                   "the data decide whether too many values reach it, so that they go dense"});
  }
  for (const char* value : {"rank_fit", "fit_dexp", "fit_poly", "sketch"}) {
    const char* const why =
        value == std::string("fit_poly") ? "the values decide how many pieces their curve has" : nullptr;
    all.push_back({topr + "index=golomb value=" + value, why});
    all.push_back({topr + "index=raw value=" + value, why});
  }
  for (const std::string value : {"sign", "ternary"}) {
    all.push_back(
        {topr + "index=golomb value=" + value, "so few bits a value that the bound of the gaps is most of it"});
    for (const std::string& index : {topr + "index=raw", std::string("index=all")})
      all.push_back({index + " value=" + value});
  }
  for (const char* value : {"three_lc", "uniform_quant", "uniform_quant(bits=6)", "log_quant", "lloyd", "inceptionn",
                            "planes", "auto(error=0.01)", "auto(error=0)"}) {
    const char* const why = value == std::string("auto(error=0)") ? nullptr : by_values;
    all.push_back({topr + "index=golomb value=" + value, why});
    all.push_back({topr + "index=auto value=" + value, why});
    if (!std::string(value).starts_with("auto")) all.push_back({std::string("index=all value=") + value, why});
  }
  for (const char* codec : {"deflate", "zstd", "huffman"}) {
    all.push_back({topr + "index=golomb value=raw+" + codec, by_bytes});
    all.push_back({topr + "index=raw+" + codec + " value=qsgd", by_bytes});
    all.push_back({topr + "index=delta_varint+" + codec + " value=half", by_bytes});
  }
  return all;
}

std::string with_ratio(std::string plan, const std::string& ratio) {
  for (size_t at; (at = plan.find("RATIO")) != std::string::npos;) plan.replace(at, 5, ratio);
  return plan;
}

TEST_CASE("a plan of fixed or nearly fixed size is bounded by at most 1.15 of what it sends") {
  constexpr uint64_t d = 500000;
  const floats g = client::laplace(d, 7);
  client::context c;
  std::map<std::string, double> loosest;  // of those with a reason
  for (const usual& u : usual_plans())
    for (const char* ratio : {"0.1", "0.01", "0.001"}) {
      if (u.plan.find("RATIO") == std::string::npos && ratio != std::string("0.01")) continue;
      const std::string plan = with_ratio(u.plan, ratio);
      INFO(plan);
      const sizes s = encode_bounded(c, plan, client::dense(g));
      REQUIRE(s.frame > 0);
      std::printf("%-86s %9zu of %9zu  %5.3f  %s\n", plan.c_str(), s.frame, s.bound, s.ratio(), u.loose ? u.loose : "");
      if (!u.loose)
        CHECK(s.ratio() <= close);
      else
        loosest[u.loose] = std::max(loosest[u.loose], s.ratio());
    }
  for (const auto& [reason, ratio] : loosest) {
    INFO(reason);
    CHECK(ratio > close);  // else it is no reason
  }
}

// ---- Enough, whatever comes -----------------------------------------------------------------------------

// Supports that take as many bits as some code can be made to take.
std::vector<std::pair<std::string, std::function<bool(uint64_t)>>> hostile_supports(uint64_t d) {
  return {
      {"everything", [](uint64_t) { return true; }},
      {"nothing", [](uint64_t) { return false; }},
      {"the first", [](uint64_t i) { return i == 0; }},
      {"the last", [d](uint64_t i) { return i + 1 == d; }},
      {"a run at the begin", [d](uint64_t i) { return i < d / 20; }},
      {"a run at the end", [d](uint64_t i) { return i >= d - d / 20; }},
      {"every other", [](uint64_t i) { return i % 2 == 1; }},
      {"gaps that just need two bytes", [](uint64_t i) { return i % 129 == 128; }},
      {"gaps that just pass a power of two", [](uint64_t i) { return i % 66 == 64; }},
      {"runs of 127 and one far away", [](uint64_t i) { return i % 4096 < 127 || i % 4096 == 2175; }},
      {"runs of 31 and one away", [](uint64_t i) { return i % 1024 < 31 || i % 1024 == 1000; }},
      {"gaps of all widths", [](uint64_t i) { return (i & (i + 1)) == 0 || i % 1000 == 77; }},
      {"by chance", [](uint64_t i) { return client::rng{i}.next() % 37 == 0; }},
      {"by chance, half of them", [](uint64_t i) { return client::rng{i}.next() % 2 == 0; }},
  };
}

std::vector<std::pair<std::string, std::function<double(uint64_t)>>> hostile_values() {
  return {{"laplace", [](uint64_t i) { return double{client::rng{i}.laplace(1e-3)}; }},
          {"constant", [](uint64_t) { return 0.25; }},
          {"tiny", [](uint64_t i) { return 1e-38 * static_cast<double>(1 + i % 7); }},
          {"denormal", [](uint64_t i) { return 1e-44 * static_cast<double>(1 + i % 7); }},
          {"of any scale",
           [](uint64_t i) { return std::ldexp(1 + client::rng{i}.uniform(), static_cast<int>(i * 89 % 240) - 120); }},
          {"one huge", [](uint64_t i) { return i % 997 ? 1e-3 : 1e30; }},
          {"two, taking turns", [](uint64_t i) { return i % 2 ? 1e20 : -1e-20; }}};
}

TEST_CASE("dr_bound is enough for hostile gradients, in every plan") {
  client::context c;
  size_t encoded = 0;
  for (const usual& u : usual_plans())
    for (const uint64_t d : {uint64_t{1}, uint64_t{300}, uint64_t{20000}}) {
      const auto supports = hostile_supports(d);
      const auto values = hostile_values();
      // Every support with one kind of values, every kind of values with one support.
      for (size_t k = 0; k < supports.size() + values.size(); ++k) {
        const auto& [where, chosen] = supports[k < supports.size() ? k : 12];
        const auto& [what, value] = values[k < supports.size() ? 0 : k - supports.size()];
        INFO(where << ", " << what);
        floats g(d);
        for (uint64_t i = 0; i < d; ++i) g[i] = chosen(i) ? static_cast<float>(value(i)) : 0.0f;
        const std::string few = with_ratio(u.plan, "0.02");
        std::string all = with_ratio(u.plan, "1");
        encoded += encode_bounded(c, few, client::dense(g)).frame > 0;
        encoded += encode_bounded(c, few, client::dense(g), 777).frame > 0;
        if (all.find("bloom") == std::string::npos) encoded += encode_bounded(c, all, client::dense(g)).frame > 0;
        if (u.plan.starts_with("sparsify=topr") && u.plan.find("feedback") == std::string::npos) {
          all = u.plan.substr(u.plan.find("index="));
          encoded += encode_bounded(c, all, client::dense(g)).frame > 0;
        }
      }
    }
  CHECK(encoded > 10000);
}

bool of_patches(const cases::codec_case& described) {
  for (size_t i = 0; i < dr_codec_count(); ++i)
    if (dr_codec_at(i)->role == described.role && std::string(dr_codec_at(i)->name) == described.name)
      return dr_codec_at(i)->traits & DR_NEEDS_BASE;
  return false;
}
std::string patch_plan(const cases::codec_case& described, const std::string& plan) {
  return described.role == DR_ROLE_INDEX ? "sparsify=changed value=ulp index=" + plan
                                         : "sparsify=changed index=golomb value=" + plan;
}
// A tensor that differs from the base of a case's input as that says: at a support, or by its values. `now` is its memory.
dr_tensor patch_of(const cases::codec_case& described, const cases::input& in, bytes& now) {
  now = described.role == DR_ROLE_INDEX ? in.base : in.elements;
  if (described.role == DR_ROLE_INDEX)
    for (const uint32_t i : cases::words(in.elements)) now[i * cases::word_size(in.dtype)] ^= 1;
  dr_tensor t{};
  t.struct_size = sizeof t;
  t.dtype = in.dtype;
  t.width = in.width;
  t.universe = described.role == DR_ROLE_INDEX ? in.universe : in.count;
  t.values = now.data();
  t.base = in.base.data();
  return t;
}

TEST_CASE("dr_bound is enough for every input of every codec's case, in each of its plans") {
  client::context c;
  size_t encoded = 0;
  for (const cases::codec_case& described : cases::all())
    for (const char* plan : described.plans)
      for (const cases::input& in : described.inputs) {
        if (in.universe > 70000 || in.count > 70000) continue;
        INFO(in.name);
        const std::string name = plan;
        dr_tensor t{};
        t.struct_size = sizeof t;
        floats ones;
        std::vector<uint32_t> words;
        bytes now;
        if (of_patches(described)) {
          encoded += encode_bounded(c, patch_plan(described, plan), patch_of(described, in, now)).frame > 0;
        } else if (described.role == DR_ROLE_INDEX) {
          words = cases::words(in.elements);
          ones.assign(words.size(), 1);
          t = client::sparse(words, ones, in.universe);
          for (const char* value : {" value=raw", " value=qsgd", " value=fit_poly"})
            encoded += encode_bounded(c, "index=" + name + value, t).frame > 0;
        } else if (described.role == DR_ROLE_VALUE) {
          t.dtype = in.dtype;
          t.width = in.width;
          t.universe = in.count;
          t.values = in.elements.data();
          for (const char* index : {"all", "raw", "golomb", "bloom(fpr=0.01,policy=p0)", "seeded(ratio=0.5)"})
            encoded += encode_bounded(c, "index=" + std::string(index) + " value=" + name, t).frame > 0;
        } else if (described.role == DR_ROLE_BYTES && in.elements.size() % 4 == 0) {
          t.dtype = DR_F32;
          t.universe = in.elements.size() / 4;
          t.values = in.elements.data();
          encoded += encode_bounded(c, "index=all value=raw+" + name, t).frame > 0;
        }
      }
  CHECK(encoded > 2000);
}

TEST_CASE("dr_bound is enough for any change of any base, in each plan of a patch") {
  client::context c;
  size_t encoded = 0;
  for (const char* text : {"index=magnitude value=ulp", "index=magnitude value=xor", "index=golomb value=raw",
                           "index=auto value=ulp", "index=all value=ulp", "index=bitmap+deflate value=ulp+huffman"})
    for (const uint32_t dtype : {DR_F32, DR_BF16, DR_F64, DR_U8})
      for (const uint64_t d : {uint64_t{1}, uint64_t{300}, uint64_t{70000}})
        for (const auto& [where, chosen] : hostile_supports(d))
          for (const bool near : {true, false}) {
            INFO(where << ", dtype " << dtype << ", " << d);
            const unsigned size = cases::word_size(dtype);
            client::rng random{d};
            bytes base(d * size), now;
            for (uint8_t& b : base) b = static_cast<uint8_t>(random.next() % 4 ? 0x3c : random.next());
            now = base;
            for (uint64_t i = 0; i < d; ++i)
              for (unsigned k = 0; chosen(i) && k < (near ? 1 : size); ++k)
                now[i * size + k] ^= static_cast<uint8_t>(near ? 1 : 1 + random.next() % 255);
            dr_tensor t{};
            t.struct_size = sizeof t;
            t.dtype = dtype;
            t.universe = d;
            t.values = now.data();
            t.base = base.data();
            for (const uint64_t segment_rows : {uint64_t{0}, uint64_t{4096}})
              encoded += encode_bounded(c, "sparsify=changed " + std::string(text), t, segment_rows).frame > 0;
          }
  CHECK(encoded == 6 * 4 * 3 * 14 * 2 * 2);
}

TEST_CASE("every codec is among the usual plans") {
  std::string plans;
  for (const usual& u : usual_plans()) plans += u.plan + ' ';
  for (const cases::codec_case& described : cases::all()) {
    if (described.role == DR_ROLE_ORDER || of_patches(described)) continue;  // it comes by itself; patches are above
    INFO(std::string(described.name));
    const std::string lead = described.role == DR_ROLE_INDEX   ? "index="
                             : described.role == DR_ROLE_VALUE ? "value="
                                                               : "+";
    CHECK(plans.find(lead + described.name) != std::string::npos);
  }
}

}  // namespace
}  // namespace dr::properties
