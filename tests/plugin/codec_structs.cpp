// Codecs whose structs are of another version than the library's, longer or shorter; and those that are malformed.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

const dr_codec* load_wider() {
  dr_error error{};
  error.struct_size = sizeof error;
  const dr_status s = dr_plugin_load(DR_WIDER, &error);
  INFO(std::string(error.message));
  REQUIRE(s == DR_OK);
  for (size_t i = 0; i < dr_codec_count(); ++i)
    if (dr_codec_at(i)->name == std::string("wider")) return dr_codec_at(i);
  FAIL("not listed");
  return nullptr;
}

// A struct with bytes behind it that this version does not know.
template <class T>
struct longer {
  T known{};
  unsigned char later[24] = {};
};

dr_status nothing_to_resolve(const dr_params*, const dr_job*, uint64_t*, dr_fault*) { return DR_OK; }
dr_status nothing_needed(const dr_params*, const dr_job*, size_t, dr_need*) { return DR_OK; }
dr_status nothing_done(const dr_exec*, const dr_params*, const dr_job*, size_t) { return DR_OK; }

// A codec that could be registered; what each test changes is why it is not.
struct candidate {
  longer<dr_codec> codec;
  longer<dr_ops> ops;
  longer<dr_param> params[2];
  longer<dr_field> fields[2];

  candidate() {
    ops.known.struct_size = sizeof(dr_ops);
    ops.known.resolve = nothing_to_resolve;
    ops.known.need = nothing_needed;
    ops.known.encode = ops.known.decode = nothing_done;
    const char* const names[] = {"x", "y"};
    for (size_t i = 0; i < 2; ++i) {
      params[i].known.struct_size = sizeof params[i];
      params[i].known.name = names[i];
      params[i].known.summary = "";
      params[i].known.type = DR_PARAM_INT;
      params[i].known.maximum = 5;
      fields[i].known.struct_size = sizeof fields[i];
      fields[i].known.name = names[i];
      fields[i].known.maximum = 5;
    }
    dr_codec& c = codec.known;
    c.struct_size = sizeof(dr_codec);
    c.name = "never_registered";
    c.summary = "";
    c.id = dr_private_id("org.example.never_registered");
    c.role = DR_ROLE_VALUE;
    c.dtypes = DR_DTYPE_BIT(DR_F32);
    c.params = &params[0].known;
    c.param_count = 2;
    c.fields = &fields[0].known;
    c.field_count = 2;
    c.cpu = &ops.known;
  }
};

}  // namespace

TEST_CASE("a plug-in whose structs are 16 bytes longer lists all its parameters and fields") {
  const dr_codec* const wider = load_wider();
  CHECK(wider->struct_size == sizeof(dr_codec) + 16);
  REQUIRE(wider->param_count == 2);
  CHECK(wider->params->struct_size == sizeof(dr_param) + 16);
  CHECK(dr_param_at(wider->params, 1)->name == std::string("step"));
  CHECK(dr_param_at(wider->params, 1)->fallback == 5);
  CHECK(dr_field_at(wider->fields, 1)->name == std::string("step"));
  CHECK(dr_plan_text(client::plan("value=wider(step=9,mask=3)").handle) ==
        std::string("index=raw value=wider(step=9)"));
  CHECK(dr_plan_text(client::plan("value=wider(step=5,mask=7)").handle) ==
        std::string("index=raw value=wider(mask=7)"));
  dr_plan* p = nullptr;
  CHECK(dr_plan_parse("value=wider(step=10)", &p, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_plan_parse("value=wider(mask=256)", &p, nullptr) == DR_E_ARGUMENT);
}

TEST_CASE("every job of a longer plug-in is the right one: in a batch, in segments, before a bytes codec") {
  load_wider();
  client::context c;
  std::vector<floats> g;
  std::vector<dr_tensor> tensors;
  for (uint64_t i = 0; i < 5; ++i) g.push_back(client::laplace(500 + 100 * i, i));
  for (const floats& v : g) tensors.push_back(client::dense(v));
  for (const char* text :
       {"index=golomb value=wider", "index=golomb value=wider(mask=200,step=9)",
        "index=golomb value=wider(step=2)+deflate", "sparsify=topr(ratio=0.2) index=raw value=wider"})
    for (const uint64_t rows : {uint64_t{0}, uint64_t{130}}) {
      INFO(std::string(text));
      dr_call call{};
      call.struct_size = sizeof call;
      call.segment_rows = rows;
      const client::plan p(text);
      dr_result result{};
      result.struct_size = sizeof result;
      bytes frame(1 << 16);
      const dr_status s = dr_encode(c.handle, p.handle, &call, nullptr, tensors.data(), sizeof(dr_tensor),
                                    tensors.size(), frame.data(), frame.size(), &result);
      INFO(c.error());
      REQUIRE(s == DR_OK);
      frame.resize(result.size);
      std::vector<floats> got;
      std::vector<dr_tensor_out> outs;
      for (const floats& v : g) got.emplace_back(v.size());
      for (floats& v : got) outs.push_back(client::dense_out(v));
      REQUIRE(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, outs.data(), sizeof outs[0],
                        outs.size()) == DR_OK);
      for (size_t i = 0; i < g.size(); ++i) {
        size_t wrong = 0, sent = 0;
        for (size_t k = 0; k < g[i].size(); ++k) {
          sent += got[i][k] != 0;
          wrong += got[i][k] != 0 && got[i][k] != g[i][k];
        }
        CHECK(wrong == 0);
        CHECK(sent == (std::string(text).starts_with("sparsify") ? g[i].size() / 5 : g[i].size()));
      }
    }
}

TEST_CASE("a fault of a longer plug-in arrives whole, of the right tensor") {
  load_wider();
  client::context c;
  floats g = client::laplace(300, 1), bad(g);
  const uint32_t ones = 0xffffffff;
  std::memcpy(&bad[77], &ones, 4);
  bytes frame;
  CHECK(client::try_encode(c, "index=golomb value=wider", {client::dense(g), client::dense(bad), client::dense(g)},
                           frame) == DR_E_ARGUMENT);
  CHECK(dr_last_error(c.handle)->tensor == 1);
  CHECK(dr_last_error(c.handle)->where == 77);
  CHECK(dr_last_error(c.handle)->what == 0xffffffff);
  CHECK(c.error().find("all ones") != std::string::npos);
}

TEST_CASE(
    "structs that are too short, of an absurd size, or with bytes that nobody knows are refused; nothing is read past "
    "them") {
  const size_t before = dr_codec_count();
  const auto refused = [&](auto change, dr_status status, const char* part) {
    candidate k;
    change(k);
    dr_error error{};
    error.struct_size = sizeof error;
    CHECK(dr_codec_register(&k.codec.known, &error) == status);
    INFO(std::string(error.message) << " | " << part);
    CHECK(std::string(error.message).find(part) != std::string::npos);
    CHECK(dr_codec_count() == before);
  };
  using k = candidate&;
  for (const size_t size : {size_t{0}, size_t{8}, sizeof(dr_codec) - 8, size_t{1} << 40, SIZE_MAX})
    refused([&](k c) { c.codec.known.struct_size = size; }, DR_E_ARGUMENT, "struct_size");
  for (const size_t size : {size_t{0}, sizeof(dr_ops) - 8, size_t{1} << 40})
    refused([&](k c) { c.ops.known.struct_size = size; }, DR_E_ARGUMENT, "struct_size");
  for (const size_t size : {size_t{0}, sizeof(dr_param) - 8, size_t{1} << 40, SIZE_MAX})
    refused([&](k c) { c.params[0].known.struct_size = size; }, DR_E_ARGUMENT, "struct_size");
  for (const size_t size : {size_t{0}, sizeof(dr_field) - 8, size_t{1} << 40, SIZE_MAX})
    refused([&](k c) { c.fields[0].known.struct_size = size; }, DR_E_ARGUMENT, "struct_size");
  // The second of an array is as long as the first at most, for that is how far apart they are.
  refused([](k c) { c.params[1].known.struct_size = sizeof c.params[1] + 8; }, DR_E_ARGUMENT, "struct_size");
  refused([](k c) { c.fields[1].known.struct_size = 0; }, DR_E_ARGUMENT, "struct_size");
  // Traits and types that nobody knows, or that are of another role.
  refused([](k c) { c.codec.known.traits = 1u << 25; }, DR_E_UNSUPPORTED, "unknown traits 0x2000000");
  refused([](k c) { c.codec.known.dtypes |= 1u << 20; }, DR_E_UNSUPPORTED, "unknown dtypes 0x100002");
  refused([](k c) { c.codec.known.dtypes = 0; }, DR_E_ARGUMENT, "dtypes is 0");
  refused([](k c) { c.codec.known.traits = DR_REPLACES_SUPPORT; }, DR_E_ARGUMENT,
          "trait 0x2 is of index codecs, and its role is value");
  refused([](k c) { c.codec.known.role = DR_ROLE_BYTES, c.codec.known.traits = DR_NEEDS_FINITE; }, DR_E_ARGUMENT,
          "trait 0x40 is of value codecs, and its role is bytes");
  refused([](k c) { c.codec.known.name = "Bad"; }, DR_E_ARGUMENT, "codec 0x");
  // What this version does not know must be zero.
  refused([](k c) { c.codec.known.struct_size = sizeof c.codec, c.codec.later[3] = 1; }, DR_E_UNSUPPORTED, "not zero");
  refused([](k c) { c.ops.known.struct_size = sizeof c.ops, c.ops.later[23] = 1; }, DR_E_UNSUPPORTED, "not zero");
  refused([](k c) { c.params[1].later[0] = 1; }, DR_E_UNSUPPORTED, "not zero");
  refused([](k c) { c.fields[1].later[0] = 1; }, DR_E_UNSUPPORTED, "not zero");
  refused([](k c) { c.codec.known.reserved = 1; }, DR_E_UNSUPPORTED, "reserved");
  refused([](k c) { c.codec.known.traits |= DR_NEEDS_BASE; }, DR_E_UNSUPPORTED, "base");
  // Counts without arrays.
  refused([](k c) { c.codec.known.params = nullptr; }, DR_E_ARGUMENT, "params is NULL");
  refused([](k c) { c.codec.known.fields = nullptr; }, DR_E_ARGUMENT, "fields is NULL");
  refused([](k c) { c.codec.known.param_count = 33; }, DR_E_ARGUMENT, "33");
  refused([](k c) { c.codec.known.params = nullptr, c.codec.known.param_count = SIZE_MAX; }, DR_E_ARGUMENT, "params");
}

TEST_CASE("a codec that is called auto, or whose parameters contradict themselves, is refused by name and value") {
  const size_t before = dr_codec_count();
  const auto refused = [&](auto change, const std::vector<std::string>& parts) {
    candidate k;
    change(k);
    dr_error error{};
    error.struct_size = sizeof error;
    CHECK(dr_codec_register(&k.codec.known, &error) == DR_E_ARGUMENT);
    INFO(std::string(error.message));
    for (const std::string& part : parts) {
      CAPTURE(part);
      CHECK(std::string(error.message).find(part) != std::string::npos);
    }
    CHECK(dr_codec_count() == before);
  };
  using k = candidate&;
  for (const dr_role role : {DR_ROLE_INDEX, DR_ROLE_VALUE, DR_ROLE_ORDER, DR_ROLE_BYTES})
    refused(
        [&](k c) {
          c.codec.known.name = "auto";
          c.codec.known.role = role;
          c.codec.known.forms = 1u << DR_FORM_LIST;
        },
        {"codec auto", "reserved"});
  refused([](k c) { c.params[1].known.name = "x"; }, {"codec never_registered", "parameters 0 and 1", "called x"});
  // Of the first and of the second: they are apart by the struct_size of the first.
  for (size_t i : {0u, 1u}) {
    const std::string name = i ? "parameter y" : "parameter x";
    const auto choice = [&](k c, double position) {
      c.params[i].known.type = DR_PARAM_CHOICE;
      c.params[i].known.choices = "p0|leftmost";
      c.params[i].known.fallback = position;
    };
    for (const auto& [position, said] : {std::pair{2.0, "default 2"},
                                         {-1.0, "default -1"},
                                         {0.5, "default 0.5"},
                                         {static_cast<double>(NAN), "nan"},
                                         {1e300, "1e+300"}})
      refused([&](k c) { choice(c, position); }, {"codec never_registered", name, said, "p0|leftmost"});
    for (const auto& [number, said] : {std::pair{2.5, "default 2.5 is not an integer"},
                                       {4.9999999999999991, "default 4.999999999999999 is not an integer"},
                                       {6.0, "default 6 is not in 0 … 5"},
                                       {static_cast<double>(NAN), "nan"}})
      refused([&](k c) { c.params[i].known.fallback = number; }, {"codec never_registered", name, said});
  }
}

TEST_CASE("what is refused of a plug-in's parameters holds of those that the library lists") {
  load_wider();
  for (size_t i = 0; i < dr_codec_count(); ++i) {
    const dr_codec& c = *dr_codec_at(i);
    INFO(std::string(c.name));
    CHECK(c.name != std::string("auto"));
    for (size_t j = 0; j < c.param_count; ++j) {
      const dr_param& p = *dr_param_at(c.params, j);
      INFO(std::string(p.name));
      for (size_t m = 0; m < j; ++m) CHECK(dr_param_at(c.params, m)->name != std::string(p.name));
      if (p.required) continue;
      if (p.type != DR_PARAM_REAL) CHECK(p.fallback == std::floor(p.fallback));
      const std::string choices = p.type == DR_PARAM_CHOICE ? p.choices : "";
      const auto bars = static_cast<double>(std::count(choices.begin(), choices.end(), '|'));
      CHECK(p.fallback >= (choices.empty() ? p.minimum : 0));
      CHECK(p.fallback <= (choices.empty() ? p.maximum : bars));
    }
  }
}

TEST_CASE("a required parameter has no default, so any number may be there") {
  load_wider();
  candidate k;
  k.params[0].known.required = 1;
  k.params[0].known.fallback = 2.5;
  k.params[1].known.required = 1;
  k.params[1].known.type = DR_PARAM_CHOICE;
  k.params[1].known.choices = "p0|leftmost";
  k.params[1].known.fallback = -1;
  k.codec.known.id = dr_private_id("org.example.wider");  // refused for this alone, and last
  dr_error error{};
  error.struct_size = sizeof error;
  CHECK(dr_codec_register(&k.codec.known, &error) == DR_E_ARGUMENT);
  CHECK(std::string(error.message).find("is used by") != std::string::npos);
}
