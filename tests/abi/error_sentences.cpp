// Errors are sentences: what, where, which value. And what a context tells besides: traces, tags, lists.
#include <functional>
#include <set>

#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a plan that does not parse reports which stage, name, value or column, and what there is instead") {
  const struct {
    const char* text;
    std::vector<std::string> parts;
  } cases[] = {
      {"index=gollumb", {"index", "gollumb", "is it 'golomb'?"}},
      {"sparsify=topr(ration=0.1)", {"topr", "ration", "is it 'ratio'?"}},
      {"sparsify=topr(ratio=1.5)", {"topr", "ratio=1.5", "0 … 1"}},
      {"sparsify=topr(ratio=ten)", {"ratio=ten", "not a number"}},
      {"sparsify=topr(ratio=0.1,count=5)", {"ratio= or count=, not both"}},
      {"sparsify=topr", {"ratio= or count=", "topr(ratio=0.01)"}},
      {"sparsify=threshold", {"threshold", "value"}},
      {"value=qsgd(levels=0)", {"levels=0", "1 … 32767"}},
      {"value=qsgd(levels=1.5)", {"levels=1.5", "integer"}},
      {"value=qsgd(levels=5,levels=6)", {"levels", "twice"}},
      {"index=bloom(policy=p7)", {"policy=p7", "leftmost|p0"}},
      {"index=raw index=raw", {"index", "twice"}},
      {"color=red", {"color", "sparsify, feedback, index"}},
      {"index", {"'index'", "'=' and a name"}},
      {"index=raw value", {"'='", "end"}},
      {"terngard", {"'terngard'", "is it 'terngrad'"}},
      {"index=raw;value=raw", {"column 10", "';'"}},
      {"index=raw(", {"key", "end"}},
      {"index=raw(x)", {"'x' at column 11", "key=value"}},
      {"index=raw+", {"name", "end"}},
      {"index=raw+golomb", {"bytes", "golomb", "is it 'index=golomb'?"}},
      {"index=raw\x01", {"column 10", "0x01"}},
      {"regather=perhaps", {"regather", "on, off"}},
      {"feedback=residual+residual", {"feedback", "one"}},
      {"index=raw+deflate+deflate+deflate+deflate+deflate", {"index", "6", "5"}},
  };
  for (const auto& k : cases) {
    dr_error error{sizeof(dr_error)};
    dr_plan* p = nullptr;
    CHECK(dr_plan_parse(k.text, &p, &error) == DR_E_ARGUMENT);
    INFO(std::string(k.text) << " | " << error.message);
    CHECK(error.code == DR_E_ARGUMENT);
    for (const auto& part : k.parts) CHECK(has(error.message, part));
    CHECK(p == nullptr);
  }
  CHECK(dr_plan_parse(std::string(5000, ' ').c_str(), nullptr, nullptr) == DR_E_ARGUMENT);
  dr_error error{sizeof(dr_error)};
  dr_plan* p = nullptr;
  CHECK(dr_plan_parse(std::string(5000, ' ').c_str(), &p, &error) == DR_E_ARGUMENT);
  CHECK(has(error.message, "5000"));
}

TEST_CASE("a failing call leaves one sentence in the context: what, where, which value; a good one leaves the last") {
  client::context c;
  const floats g = client::laplace(100, 1);
  floats nan(g), infinite(g);
  nan[41] = NAN;
  infinite[7] = -INFINITY;
  const std::vector<uint64_t> three = {1, 200, 3};
  const std::vector<uint64_t> few = {1, 2, 3};
  bytes frame;
  const struct {
    std::string what;
    std::function<dr_status()> call;
    dr_status status;
    std::vector<std::string> parts;
  } cases[] = {
      {"NaN",
       [&] {
         return client::try_encode(c, "value=qsgd", {client::dense(g), client::dense(nan)}, frame);
       },
       DR_E_ARGUMENT,
       {"tensor 1", "value", "qsgd", "NaN", "41"}},
      {"infinity",
       [&] { return client::try_encode(c, "value=fit_poly", {client::dense(infinite)}, frame); },
       DR_E_ARGUMENT,
       {"tensor 0", "fit_poly", "infinite", "at 7"}},
      {"index",
       [&] { return client::try_encode(c, "index=raw", {client::sparse(three, g, 100)}, frame); },
       DR_E_ARGUMENT,
       {"tensor 0", "index 1", "200", "100"}},
      {"width",
       [&] { return client::try_encode(c, "value=fit_poly", {client::sparse(few, g, 10, 4)}, frame); },
       DR_E_ARGUMENT,
       {"fit_poly", "width", "4"}},
      {"width of topr",
       [&] { return client::try_encode(c, "sparsify=topr(ratio=0.1)", {client::sparse(few, g, 10, 4)}, frame); },
       DR_E_ARGUMENT,
       {"topr", "4"}},
      {"bloom without fpr",
       [&] { return client::try_encode(c, "index=bloom", {client::dense(g)}, frame); },
       DR_E_ARGUMENT,
       {"bloom", "fpr"}},
      {"a parameter of another form",
       [&] { return client::try_encode(c, "value=fit_poly(segments=3)", {client::dense(g)}, frame); },
       DR_E_ARGUMENT,
       {"fit_poly", "segments", "knots=chord"}},
      {"segments",
       [&] { return client::try_encode(c, "index=raw", {client::sparse(few, g, uint64_t{1} << 55)}, frame); },
       DR_E_UNSUPPORTED,
       {"tensor 0", std::to_string(uint64_t{1} << 55)}},
      {"elements",
       [&] { return client::try_encode(c, "index=raw", {client::sparse(few, g, UINT64_MAX)}, frame); },
       DR_E_ARGUMENT,
       {"tensor 0", "18446744073709551615"}},
  };
  for (const auto& k : cases) {
    INFO(k.what);
    CHECK(k.call() == k.status);
    const dr_error& e = *dr_last_error(c.handle);
    INFO(std::string(e.message));
    CHECK(e.code == k.status);
    for (const auto& part : k.parts) CHECK(has(e.message, part));
    const std::string said = e.message;
    CHECK(client::try_encode(c, "index=raw", {client::dense(g)}, frame) == DR_OK);
    CHECK(c.error() == said);
  }
}

TEST_CASE("an error names the damage of a frame") {
  client::context c;
  const floats g = client::laplace(100, 1);
  const bytes good = client::encode(c, "index=golomb value=qsgd", {client::dense(g)});
  const auto said = [&](bytes frame, dr_status status) {
    dr_frame_info info{};
    info.struct_size = sizeof info;
    dr_error error{sizeof(dr_error)};
    CHECK(dr_inspect(frame.data(), frame.size(), &info, nullptr, 0, 0, &error) == status);
    CHECK(error.code == status);
    return std::string(error.message);
  };
  bytes bad(good);
  bad[0] = 'X';
  CHECK(has(said(bad, DR_E_CORRUPT), "DR"));
  bad = good;
  bad[2] = 9;
  CHECK(has(said(bad, DR_E_UNSUPPORTED), "version 9"));
  bad = good;
  bad[bad.size() / 2] ^= 1;
  CHECK(has(said(bad, DR_E_CORRUPT), "check"));
  bad = good;
  bad.resize(40);
  CHECK(has(said(bad, DR_E_CORRUPT), "40 bytes"));
}

TEST_CASE("a trace names the stages, on a clock that runs forward, and the bytes they made") {
  client::context c;
  const floats g = client::laplace(3000, 1);
  std::vector<uint64_t> state(2 + 1500);
  dr_tensor t = client::dense(g);
  t.state = state.data();
  t.state_size = 8 * state.size();
  std::vector<dr_trace> seen;
  dr_call call{};
  call.trace = [](void* user, const dr_trace* trace) { static_cast<std::vector<dr_trace>*>(user)->push_back(*trace); };
  call.trace_user = &seen;
  const bytes frame =
      client::encode(c, "sparsify=topr(ratio=0.1) feedback=residual index=bloom value=fit_poly", {t}, call);
  const std::set<std::string> known = {"sparsify", "index",     "regather", "value", "order",
                                       "feedback", "container", "decode",   "merge"};
  std::set<std::string> stages;
  uint64_t last = 0;
  for (const dr_trace& trace : seen) {
    CHECK(trace.struct_size == sizeof trace);
    CHECK(known.count(trace.stage) == 1);
    CHECK(trace.begin_ns <= trace.end_ns);
    CHECK(trace.begin_ns >= last);
    last = trace.begin_ns;
    stages.insert(trace.stage);
    if (std::string(trace.stage) == "container") CHECK(trace.bytes == frame.size());
  }
  CHECK(stages == std::set<std::string>{"sparsify", "index", "regather", "value", "order", "feedback", "container"});
}

TEST_CASE("tag and list are sent; unknown flags are refused") {
  client::context c;
  const floats g = client::laplace(100, 1);
  for (const uint32_t flags :
       {0u, uint32_t{DR_CALL_TAG}, uint32_t{DR_CALL_LIST}, uint32_t{DR_CALL_TAG | DR_CALL_LIST}}) {
    dr_call call{};
    call.flags = flags;
    call.tag = UINT64_MAX;
    dr_frame_info info{};
    client::inspect(client::encode(c, "index=golomb", {client::dense(g)}, call), &info);
    CHECK(((info.flags & DR_FRAME_TAG) != 0) == ((flags & DR_CALL_TAG) != 0));
    CHECK(((info.flags & DR_FRAME_LIST) != 0) == ((flags & DR_CALL_LIST) != 0));
    CHECK(info.tag == (flags & DR_CALL_TAG ? UINT64_MAX : 0));
  }
  client::plan p("index=raw");
  const dr_tensor t = client::dense(g);
  bytes frame(4096);
  dr_call call{};
  call.struct_size = sizeof call;
  call.flags = 1u << 20;
  CHECK(dr_encode(c.handle, p.handle, &call, nullptr, &t, sizeof t, 1, frame.data(), frame.size(), nullptr) ==
        DR_E_UNSUPPORTED);
  CHECK(has(c.error(), "0x100000"));
}

TEST_CASE("a codec that is malformed is not registered, and the sentence reports where") {
  const size_t before = dr_codec_count();
  static dr_ops ops;
  ops.struct_size = sizeof ops;
  ops.need = [](const dr_params*, const dr_job*, size_t, dr_need*) -> dr_status { return DR_OK; };
  ops.encode = ops.decode = [](const dr_exec*, const dr_params*, const dr_job*, size_t) -> dr_status { return DR_OK; };
  dr_codec good{};
  good.struct_size = sizeof good;
  good.name = "never_there";
  good.summary = "";
  good.id = 0x8123;
  good.role = DR_ROLE_VALUE;
  good.dtypes = DR_DTYPE_BIT(DR_F32);
  good.cpu = &ops;
  const auto refused = [&](auto change, dr_status status, const char* part) {
    dr_codec bad = good;
    dr_ops bad_ops = ops;
    bad.cpu = &bad_ops;
    change(bad, bad_ops);
    dr_error error{sizeof(dr_error)};
    CHECK(dr_codec_register(&bad, &error) == status);
    INFO(std::string(error.message));
    CHECK(has(error.message, part));
    CHECK(dr_codec_count() == before);
  };
  static const dr_param upside_down[] = {{sizeof(dr_param), "x", "", DR_PARAM_INT, 0, 5, 1, 3, nullptr}};
  static const dr_param shouting[] = {{sizeof(dr_param), "X", "", DR_PARAM_INT, 0, 1, 5, 3, nullptr}};
  static const dr_field outside[] = {{sizeof(dr_field), "x", 1, 5, 9}};
  refused([](dr_codec& c, dr_ops&) { c.struct_size = 8; }, DR_E_ARGUMENT, "struct_size");
  refused([](dr_codec& c, dr_ops&) { c.name = nullptr; }, DR_E_ARGUMENT, "name");
  refused([](dr_codec& c, dr_ops&) { c.name = ""; }, DR_E_ARGUMENT, "name");
  refused([](dr_codec& c, dr_ops&) { c.name = "Upper"; }, DR_E_ARGUMENT, "name");
  refused([](dr_codec& c, dr_ops&) { c.name = "9lives"; }, DR_E_ARGUMENT, "name");
  refused([](dr_codec& c, dr_ops&) { c.name = "with space"; }, DR_E_ARGUMENT, "name");
  refused([](dr_codec& c, dr_ops&) { c.id = 5; }, DR_E_ARGUMENT, "private");
  refused([](dr_codec& c, dr_ops&) { c.id = 0x10000; }, DR_E_ARGUMENT, "private");
  refused([](dr_codec& c, dr_ops&) { c.role = DR_ROLE_PAIR; }, DR_E_UNSUPPORTED, "role");
  refused([](dr_codec& c, dr_ops&) { c.role = DR_ROLE_SPARSIFY; }, DR_E_UNSUPPORTED, "role");
  refused([](dr_codec& c, dr_ops&) { c.role = 0; }, DR_E_UNSUPPORTED, "role");
  refused([](dr_codec& c, dr_ops&) { c.forms = 1u << DR_FORM_ALL; }, DR_E_ARGUMENT, "DR_FORM_ALL requires");
  refused([](dr_codec& c, dr_ops&) { c.cpu = nullptr; }, DR_E_ARGUMENT, "CPU");
  refused([](dr_codec&, dr_ops& o) { o.struct_size = 8; }, DR_E_ARGUMENT, "operations");
  refused([](dr_codec&, dr_ops& o) { o.need = nullptr; }, DR_E_ARGUMENT, "need");
  refused([](dr_codec&, dr_ops& o) { o.encode = nullptr; }, DR_E_ARGUMENT, "encode");
  refused([](dr_codec&, dr_ops& o) { o.decode = nullptr; }, DR_E_ARGUMENT, "decode");
  refused([](dr_codec& c, dr_ops&) { c.params = upside_down, c.param_count = 1; }, DR_E_ARGUMENT, "parameter 0");
  refused([](dr_codec& c, dr_ops&) { c.params = shouting, c.param_count = 1; }, DR_E_ARGUMENT, "parameter 0");
  refused([](dr_codec& c, dr_ops&) { c.params = shouting, c.param_count = 1000; }, DR_E_ARGUMENT, "1000");
  refused([](dr_codec& c, dr_ops&) { c.fields = outside, c.field_count = 9; }, DR_E_ARGUMENT, "9 wire fields");
  refused([](dr_codec& c, dr_ops&) { c.field_count = 1; }, DR_E_ARGUMENT, "fields is NULL");
  refused([](dr_codec& c, dr_ops&) { c.param_count = 1; }, DR_E_ARGUMENT, "params is NULL");
  refused(
      [](dr_codec& c, dr_ops& o) {
        c.fields = outside, c.field_count = 1,
        o.resolve = [](const dr_params*, const dr_job*, uint64_t*, dr_fault*) -> dr_status { return DR_OK; };
      },
      DR_E_ARGUMENT, "wire field 0");
  // (A name that a built-in has is no fault: tests/plugin/plugin_names.cpp.)
}

TEST_CASE("adaq numbers the values of a tensor in 32 bits, and refuses one of more") {
  client::context c;
  const client::plan p("sparsify=adaq(ratio=0.001)");
  const float none = 0;
  dr_tensor t{};
  t.struct_size = sizeof t;
  t.dtype = DR_F32;
  t.values = &none;  // not read
  size_t bound = 0;
  for (const uint64_t universe : {uint64_t{UINT32_MAX}, uint64_t{UINT32_MAX} + 1}) {
    t.universe = universe;
    CHECK(dr_bound(c.handle, p.handle, nullptr, nullptr, &t, sizeof t, 1, &bound) ==
          (universe > UINT32_MAX ? DR_E_UNSUPPORTED : DR_OK));
  }
  CHECK(c.error() == "tensor 0: adaq supports at most 4294967295 values of a tensor, not 4294967296");
}
