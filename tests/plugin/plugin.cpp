// Plug-ins as a user meets them: loaded by path, listed, planned with, refused.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

dr_status load(const std::string& path, std::string& sentence) {
  dr_error error{sizeof(dr_error)};
  error.struct_size = sizeof error;
  const dr_status s = dr_plugin_load(path.c_str(), &error);
  sentence = error.message;
  return s;
}

void need_plugins() {
  std::string sentence;
  for (const char* path : {DR_ZIGZAG, DR_BYTE_GAPS}) {
    const dr_status s = load(path, sentence);
    INFO(std::string(path) << ": " << sentence);
    REQUIRE(s == DR_OK);
  }
}

const dr_codec* find(dr_role role, const std::string& name) {
  for (size_t i = 0; i < dr_codec_count(); ++i)
    if (dr_codec_at(i)->role == role && dr_codec_at(i)->name == name) return dr_codec_at(i);
  return nullptr;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string canonical(const std::string& text) { return dr_plan_text(client::plan(text).handle); }

dr_status parse(const std::string& text, std::string& sentence) {
  dr_error error{sizeof(dr_error)};
  error.struct_size = sizeof error;
  dr_plan* p = nullptr;
  const dr_status s = dr_plan_parse(text.c_str(), &p, &error);
  dr_plan_destroy(p);
  sentence = error.message;
  return s;
}

// Decodes one payload with a codec's own operation, without frame or pipeline.
struct decoded {
  dr_fault fault{.struct_size = sizeof(dr_fault)};
  uint64_t size = 0;
  std::vector<uint32_t> out;
};

decoded decode_payload(const dr_codec& codec, const bytes& payload, uint64_t universe, uint64_t count, uint32_t dtype,
                       uint64_t field) {
  decoded d;
  d.out.assign(count + 1, 0xeeeeeeee);  // the last word must stay
  const bytes exact(payload);           // so that a sanitizer sees a byte read behind it
  dr_job job{.struct_size = sizeof(dr_job)};
  job.universe = universe;
  job.count_max = count;
  job.dtype = dtype;
  job.width = 1;
  job.in = exact.data();
  job.in_max = exact.size();
  job.out = d.out.data();
  job.out_capacity = count * (dtype == DR_F32 || codec.role == DR_ROLE_INDEX ? 4 : 2);
  job.out_size = &d.size;
  job.fault = &d.fault;
  dr_params params{};
  params.struct_size = sizeof params;
  params.fields = &field;
  const auto serial = [](void*, size_t n, void (*f)(void*, size_t, size_t), void* arg) {
    for (size_t i = 0; i < n; ++i) f(arg, i, 0);
  };
  dr_exec exec{};
  exec.struct_size = sizeof exec;
  exec.workers = 1;
  exec.parallel = serial;
  CHECK(codec.cpu->decode(&exec, &params, &job, 1) == DR_OK);
  CHECK(d.out.back() == 0xeeeeeeee);
  return d;
}

}  // namespace

TEST_CASE("a plug-in loads by path and its codec is listed, with its parameters") {
  const size_t before = dr_codec_count();
  std::string sentence;
  REQUIRE(load(DR_ZIGZAG, sentence) == DR_OK);
  const dr_codec* zigzag = find(DR_ROLE_VALUE, "zigzag");
  REQUIRE(zigzag);
  CHECK(dr_codec_count() == before + 1);
  CHECK(dr_codec_at(before) == zigzag);  // behind those that were there
  CHECK(zigzag->id == dr_private_id("org.example.zigzag"));
  CHECK(zigzag->traits == DR_EXACT);
  REQUIRE(zigzag->param_count == 1);
  CHECK(zigzag->params[0].name == std::string("stride"));
  CHECK(zigzag->params[0].minimum == 1);
  CHECK(zigzag->params[0].maximum == 8);
  CHECK(zigzag->params[0].fallback == 1);
  CHECK(dr_codec_at(dr_codec_count()) == nullptr);
}

TEST_CASE("a plug-in in plain C loads, so the ABI is C") {
  need_plugins();
  const dr_codec* gaps = find(DR_ROLE_INDEX, "byte_gaps");
  REQUIRE(gaps);
  CHECK(gaps->id == dr_private_id("org.example.byte_gaps"));
}

TEST_CASE("loading a plug-in again is fine and adds nothing") {
  need_plugins();
  const size_t before = dr_codec_count();
  need_plugins();
  CHECK(dr_codec_count() == before);
}

TEST_CASE("every refused plug-in reports why and registers none of its codecs") {
  need_plugins();
  const size_t before = dr_codec_count();
  std::string sentence;
  const auto refused = [&](const char* path, dr_status status, std::vector<std::string> parts) {
    sentence.clear();
    CHECK(load(path, sentence) == status);
    for (const auto& part : parts) {
      INFO(sentence << " | " << part);
      CHECK(contains(sentence, part));
    }
    CHECK(dr_codec_count() == before);
    CHECK(find(DR_ROLE_VALUE, "sound_but_unlucky") == nullptr);
  };
  refused(DR_CLASH_NAME, DR_E_ARGUMENT, {"zigzag", "name is used by a codec of another plug-in", "0xa7e1"});
  refused(DR_CLASH_ID, DR_E_ARGUMENT, {"zagzig", "used by zigzag", "0xa7e1"});
  refused(DR_CLASH_BUILTIN_ID, DR_E_ARGUMENT, {"intruder", "0x11", "private"});
  refused(DR_CLASH_VERSION, DR_E_UNSUPPORTED, {DR_CLASH_VERSION, "version 2"});
  refused(DR_CLASH_SYMBOL, DR_E_UNSUPPORTED, {DR_CLASH_SYMBOL, DR_PLUGIN_SYMBOL});
  refused("/nowhere/plugin.so", DR_E_UNSUPPORTED, {"/nowhere/plugin.so"});
  refused(__FILE__, DR_E_UNSUPPORTED, {"plugin.cpp"});  // there, but no shared object
  refused("", DR_E_UNSUPPORTED, {"plug-in"});
}

TEST_CASE("parameters of a plug-in are parsed, ranged and printed like those of a built-in") {
  need_plugins();
  CHECK(canonical("value=zigzag") == "index=raw value=zigzag");
  CHECK(canonical("value=zigzag(stride=1)") == "index=raw value=zigzag");
  CHECK(canonical(" value=zigzag( stride = 04 )  index=byte_gaps() ") == "index=byte_gaps value=zigzag(stride=4)");
  CHECK(canonical("value=zigzag(stride=8)+deflate(level=9)") == "index=raw value=zigzag(stride=8)+deflate(level=9)");
  std::string sentence;
  CHECK(parse("value=zigzag(stride=9)", sentence) == DR_E_ARGUMENT);
  CHECK(contains(sentence, "zigzag(stride=9)"));
  CHECK(contains(sentence, "1 … 8"));
  CHECK(parse("value=zigzag(stride=1.5)", sentence) == DR_E_ARGUMENT);
  CHECK(contains(sentence, "not an integer"));
  CHECK(parse("value=zigzag(pace=1)", sentence) == DR_E_ARGUMENT);
  CHECK(contains(sentence, "stride"));
  CHECK(parse("index=zigzag", sentence) == DR_E_ARGUMENT);  // of another role
  CHECK(parse("index=byte_gaps(stride=1)", sentence) == DR_E_ARGUMENT);
}

TEST_CASE("plug-ins and built-ins mix in a plan, and what decodes is bit-exact, dense and sparse") {
  need_plugins();
  floats gradient = client::laplace(5000, 11);
  for (size_t i = 0; i < gradient.size(); ++i)
    if (i % 4) gradient[i] = 0;  // few enough that no frame falls back to dense
  gradient[1] = -2e-45f;
  gradient[2] = INFINITY;
  gradient[4] = std::nanf("7");
  gradient[5] = 1e-42f;
  client::context c;
  for (const char* text : {"index=byte_gaps value=zigzag", "index=raw value=zigzag(stride=8)",
                           "index=golomb value=zigzag(stride=3)+deflate", "index=byte_gaps+deflate value=raw",
                           "index=byte_gaps value=zigzag+deflate+deflate"}) {
    INFO(std::string(text));
    const bytes frame = client::encode(c, text, {client::dense(gradient)});
    CHECK(client::same_bits(client::decode(c, frame, gradient.size()), gradient));
    const client::pairs p = client::decode_sparse(c, frame);
    floats again(gradient.size());
    for (size_t k = 0; k < p.indices.size(); ++k) again[p.indices[k]] = p.values[k];
    CHECK(client::same_bits(again, gradient));
    CHECK(p.indices.size() == gradient.size() / 4 + 3);  // 1, 2 and 5 beside every fourth
  }
}

TEST_CASE("plug-ins accept sparse input, rows of any width, halves and segments") {
  need_plugins();
  client::context c;
  std::vector<uint16_t> halves(4 * 300);
  std::vector<uint64_t> rows(300);
  client::rng r{5};
  for (auto& h : halves) h = static_cast<uint16_t>(r.next());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = 17 * i + r.next() % 17;
  for (const dr_dtype dtype : {DR_F16, DR_BF16}) {
    dr_tensor t{};
    t.struct_size = sizeof t;
    t.dtype = dtype;
    t.index_dtype = DR_U64;
    t.universe = 5100;
    t.width = 4;
    t.values = halves.data();
    t.indices = rows.data();
    t.count = rows.size();
    dr_call call{};
    call.segment_rows = 1000;
    const bytes frame = client::encode(c, "index=byte_gaps value=zigzag(stride=4)", {t}, call);
    CHECK(client::inspect(frame).segments == 6);
    std::vector<uint16_t> values(halves.size());
    std::vector<uint32_t> indices(rows.size());
    dr_tensor_out out{};
    out.struct_size = sizeof out;
    out.dtype = dtype;
    out.index_dtype = DR_U32;
    out.universe = 5100;
    out.width = 4;
    out.values = values.data();
    out.indices = indices.data();
    out.capacity = indices.size();
    REQUIRE(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, &out, sizeof out, 1) == DR_OK);
    CHECK(out.count == rows.size());
    CHECK(values == halves);
    CHECK(std::equal(rows.begin(), rows.end(), indices.begin()));
  }
}

TEST_CASE("a frame reports which fields its plug-in codec had, and takes no more than its bound") {
  need_plugins();
  client::context c;
  floats worst(1000);  // alternating signs and far exponents: long varints
  for (size_t i = 0; i < worst.size(); ++i) worst[i] = i % 2 ? 3e38f : -1e-38f;
  const bytes frame = client::encode(c, "index=byte_gaps value=zigzag(stride=7)", {client::dense(worst)});
  CHECK(contains(client::inspect(frame).plan, "zigzag(stride=7)"));
  CHECK(client::same_bits(client::decode(c, frame, worst.size()), worst));
  CHECK(frame.size() <= 4 * worst.size() + 64);  // dense is the fall-back
}

TEST_CASE("zigzag: payloads worked by hand decode to their values, and every truncation and addition is refused") {
  need_plugins();
  const dr_codec& zigzag = *find(DR_ROLE_VALUE, "zigzag");
  // 1.0 = 3f800000 rotates to 7f000000, doubled fe000000; -1.0 = bf800000 to 7f000001: one more.
  const bytes two{0x80, 0x80, 0x80, 0xf0, 0x0f, 0x02};
  decoded d = decode_payload(zigzag, two, 9, 2, DR_F32, 1);
  CHECK(d.fault.code == DR_OK);
  CHECK(d.size == 8);
  CHECK(d.out[0] == 0x3f800000);
  CHECK(d.out[1] == 0xbf800000);
  for (size_t n = 0; n < two.size(); ++n)
    CHECK(decode_payload(zigzag, bytes(two.begin(), two.begin() + static_cast<long>(n)), 9, 2, DR_F32, 1).fault.code ==
          DR_E_CORRUPT);
  for (const uint8_t behind : {0x00, 0x01, 0x80}) {
    bytes longer(two);
    longer.push_back(behind);
    CHECK(decode_payload(zigzag, longer, 9, 2, DR_F32, 1).fault.code == DR_E_CORRUPT);
  }
  // A stride of 2: the second value is compared with nothing.
  d = decode_payload(zigzag, {0x02, 0x02, 0x01}, 9, 3, DR_F32, 2);
  CHECK(d.fault.code == DR_OK);
  CHECK(d.out[0] == 0x80000000);
  CHECK(d.out[1] == 0x80000000);
  CHECK(d.out[2] == 0);
}

TEST_CASE("zigzag: overlong and oversized varints are refused") {
  need_plugins();
  const dr_codec& zigzag = *find(DR_ROLE_VALUE, "zigzag");
  const auto code = [&](const bytes& payload, uint32_t dtype) {
    return decode_payload(zigzag, payload, 9, 1, dtype, 1).fault.code;
  };
  CHECK(code({0x00}, DR_F32) == DR_OK);
  CHECK(code({0x80, 0x00}, DR_F32) == DR_E_CORRUPT);                          // superfluous zero group
  CHECK(code({0xff, 0xff, 0xff, 0xff, 0x0f}, DR_F32) == DR_OK);               // 2^32 - 1
  CHECK(code({0xff, 0xff, 0xff, 0xff, 0x10}, DR_F32) == DR_E_CORRUPT);        // 33 bits
  CHECK(code({0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, DR_F32) == DR_E_CORRUPT);  // 6 bytes
  CHECK(code({0xff, 0xff, 0x03}, DR_F16) == DR_OK);                           // 2^16 - 1
  CHECK(code({0xff, 0xff, 0x04}, DR_F16) == DR_E_CORRUPT);                    // 17 bits
  CHECK(code({0xff, 0xff, 0xff, 0x00}, DR_BF16) == DR_E_CORRUPT);             // 4 bytes
}

TEST_CASE("byte_gaps: a payload worked by hand decodes, and hostile ones are refused") {
  need_plugins();
  const dr_codec& gaps = *find(DR_ROLE_INDEX, "byte_gaps");
  const bytes three{0x03, 0x00, 0xd6, 0x07};  // 3, 4, and 982 more: 987
  const decoded d = decode_payload(gaps, three, 988, 3, DR_F32, 0);
  CHECK(d.fault.code == DR_OK);
  CHECK(d.size == 12);
  CHECK(d.out[0] == 3);
  CHECK(d.out[1] == 4);
  CHECK(d.out[2] == 987);
  const auto code = [&](const bytes& payload, uint64_t universe, uint64_t n) {
    return decode_payload(gaps, payload, universe, n, DR_F32, 0).fault.code;
  };
  for (size_t n = 0; n < three.size(); ++n)
    CHECK(code(bytes(three.begin(), three.begin() + static_cast<long>(n)), 988, 3) == DR_E_CORRUPT);
  CHECK(code({0x03, 0x00, 0xd6, 0x07, 0x00}, 988, 3) == DR_E_CORRUPT);               // a byte behind
  CHECK(code(three, 987, 3) == DR_E_CORRUPT);                                        // 987 is not below 987
  CHECK(code({0x80, 0x00}, 988, 1) == DR_E_CORRUPT);                                 // superfluous zero group
  CHECK(code({0xff, 0xff, 0xff, 0xff, 0x7f}, 0xffffffff, 1) == DR_E_CORRUPT);        // 35 bits
  CHECK(code({0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, 0xffffffff, 1) == DR_E_CORRUPT);  // 6 bytes
  CHECK(code({0xfe, 0xff, 0xff, 0xff, 0x0f}, 0xffffffff, 1) == DR_OK);               // the largest index there is
  CHECK(code({0xfe, 0xff, 0xff, 0xff, 0x0f, 0x00}, 0xffffffff, 2) == DR_E_CORRUPT);  // and one behind it
}

TEST_CASE("feedback, batches and merge work with plug-in codecs") {
  need_plugins();
  const floats a = client::laplace(800, 1), b = client::laplace(300, 2);
  client::context c(2);
  std::vector<uint64_t> state(2 + 400);
  dr_tensor first = client::dense(a);
  first.state = state.data();
  first.state_size = 8 * state.size();
  const std::string text = "sparsify=topr(ratio=0.1) feedback=residual index=byte_gaps value=zigzag";
  const bytes frame = client::encode(c, text, {first});
  float* residual = nullptr;
  uint64_t elements = 0;
  REQUIRE(dr_state_residual(state.data(), 8 * state.size(), &residual, &elements, nullptr) == DR_OK);
  const floats sent = client::decode(c, frame, a.size());
  size_t wrong = 0;
  for (size_t i = 0; i < a.size(); ++i) wrong += residual[i] != a[i] - sent[i];
  CHECK(wrong == 0);

  const bytes both = client::encode(c, "index=byte_gaps value=zigzag", {client::dense(a), client::dense(b)});
  floats sum_a(a.size()), sum_b(b.size());
  dr_tensor_out outs[2] = {};
  for (auto& o : outs) {
    o.struct_size = sizeof o;
    o.dtype = DR_F32;
  }
  outs[0].universe = a.size();
  outs[0].values = sum_a.data();
  outs[1].universe = b.size();
  outs[1].values = sum_b.data();
  const dr_bytes twice[] = {{both.data(), both.size()}, {both.data(), both.size()}};
  REQUIRE(dr_merge(c.handle, nullptr, twice, nullptr, 2, nullptr, outs, sizeof *outs, 2) == DR_OK);
  for (size_t i = 0; i < a.size(); ++i) wrong += sum_a[i] != a[i] + a[i];
  for (size_t i = 0; i < b.size(); ++i) wrong += sum_b[i] != b[i] + b[i];
  CHECK(wrong == 0);
}

TEST_CASE("an operation of a plug-in that fails, or claims a wrong size, is an error, and the next call works") {
  std::string sentence;
  REQUIRE(load(DR_FAILING, sentence) == DR_OK);
  floats gradient = client::laplace(500, 5);
  for (size_t i = 0; i < gradient.size(); ++i)
    if (i % 4) gradient[i] = 0;  // few enough that no frame falls back to dense
  client::context c;
  const auto plan_of = [](int where, const char* more) {
    return "index=golomb value=failing(where=" + std::to_string(where) + ")" + more;
  };
  for (const char* const more : {"", "+deflate"}) {
    const auto tensor = client::dense(gradient);
    for (const int where : {1, 2}) {
      CAPTURE(where);
      bytes frame;
      CHECK(client::try_encode(c, plan_of(where, more), {tensor}, frame) == DR_E_INTERNAL);
      CHECK(contains(c.error(), where == 1 ? "failing broke its contract while encoding: it returned MEMORY, not OK"
                                           : "failing broke its contract while encoding: it wrote 2001 bytes; its "
                                             "`need` says at most 2000"));
    }
    for (const auto& [where, status] : {std::pair(3, DR_E_INTERNAL), {4, DR_E_CORRUPT}}) {
      CAPTURE(where);
      const bytes frame = client::encode(c, plan_of(where, more), {tensor});
      floats values(gradient.size(), -7);
      dr_tensor_out out{};
      out.struct_size = sizeof out;
      out.dtype = DR_F32;
      out.universe = values.size();
      out.values = values.data();
      CHECK(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, &out, sizeof out, 1) == status);
      CHECK(contains(c.error(), where == 3 ? "failing broke its contract while decoding" : "a size other than"));
    }
    CHECK(
        client::same_bits(client::decode(c, client::encode(c, plan_of(0, more), {tensor}), gradient.size()), gradient));
  }
}

TEST_CASE("what a plug-in reports is checked before it is used: sizes, supports, codes of faults") {
  std::string sentence;
  REQUIRE(load(DR_FAILING, sentence) == DR_OK);
  const floats gradient = client::laplace(500, 5);
  client::context c;
  const auto refused = [&](const std::string& plan, const char* part) {
    bytes frame;
    CHECK(client::try_encode(c, "sparsify=topr(ratio=0.05) " + plan, {client::dense(gradient)}, frame) ==
          DR_E_INTERNAL);
    INFO(c.error());
    CHECK(contains(c.error(), part));
  };
  refused("index=golomb value=failing_fixed(where=5)",
          "failing_fixed broke its contract while encoding: it wrote 2 bytes; its `need` says 100");
  refused("index=golomb value=failing(where=6)",
          "value stream (failing): the code of the fault is not an error (at 5, value 10)");
  refused("index=golomb value=failing(where=7)",
          "value stream (failing): the code of the fault is not an error (at 5, value 77)");
  refused("index=failing_support(where=1) value=raw",
          "failing_support broke its contract while encoding: it reports a support of 1000000");
  refused("index=failing_support(where=2) value=raw",
          "failing_support broke its contract while encoding: index 24 of the support that it reports is 500, not "
          "above the "
          "one before it and below 500");
  refused("index=failing_support(where=3) value=raw", "index 1 of the support that it reports");
  for (const char* const sound : {"index=golomb value=failing_fixed", "index=failing_support value=raw"}) {
    const bytes frame = client::encode(c, std::string("sparsify=topr(ratio=0.05) ") + sound, {client::dense(gradient)});
    size_t sent = 0;
    for (const float x : client::decode(c, frame, gradient.size())) sent += x != 0;
    CHECK(sent == 25);
  }
}

TEST_CASE("a process without the plug-in calls its frames UNSUPPORTED and names the codec") {
  need_plugins();
  client::context c;
  const bytes frame = client::encode(c, "index=raw value=zigzag(stride=2)", {client::dense(client::laplace(100, 3))});
  std::string path = "/tmp/deepreduce-plugin-XXXXXX";
  const int file = mkstemp(path.data());
  REQUIRE(file >= 0);
  REQUIRE(write(file, frame.data(), frame.size()) == static_cast<ssize_t>(frame.size()));
  close(file);
  std::string said;
  FILE* const stranger = popen((std::string(DR_STRANGER) + ' ' + path).c_str(), "r");
  REQUIRE(stranger);
  std::array<char, 512> line;
  while (fgets(line.data(), line.size(), stranger)) said += line.data();
  CHECK(pclose(stranger) == 0);
  unlink(path.c_str());
  INFO(said);
  CHECK(contains(said, "inspect UNSUPPORTED"));
  CHECK(contains(said, "decode UNSUPPORTED"));
  CHECK(contains(said, "0xa7e1"));
  CHECK(contains(said, "plug-in"));
}
