// Every stage that deepreduce.h lists is traced by some call, and no other stage.
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>

#include "abi/prepared.hpp"
#include "client.hpp"

namespace {

using client::bytes;
using client::floats;
using stages = std::set<std::string>;

// From the comment on dr_trace: `encode: "sparsify" "choose" …; decode: "header" …; merge: …`.
std::map<std::string, stages> listed() {
  std::ifstream file(DR_HEADER);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t begin = text.find("typedef struct dr_trace {"), end = text.find("} dr_trace;");
  REQUIRE(begin < end);
  std::string comment = text.substr(begin, end - begin);
  comment = comment.substr(0, comment.find("begin_ns"));
  std::map<std::string, stages> all;
  std::string call;
  const std::regex word("(encode|decode|merge):|\"([a-z]+)\"");
  for (std::sregex_iterator i(comment.begin(), comment.end(), word), none; i != none; ++i)
    if ((*i)[1].matched)
      call = (*i)[1];
    else
      all[call].insert((*i)[2]);
  return all;
}

struct heard {
  std::vector<dr_trace> list;
  stages names;

  static void listen(void* user, const dr_trace* trace) {
    auto& h = *static_cast<heard*>(user);
    CHECK(trace->struct_size == sizeof *trace);
    CHECK(trace->begin_ns <= trace->end_ns);
    if (!h.list.empty()) CHECK(trace->begin_ns >= h.list.back().begin_ns);
    h.list.push_back(*trace);
    h.names.insert(trace->stage);
  }
  uint64_t bytes(const std::string& stage) const {
    for (const dr_trace& t : list)
      if (t.stage == stage) return t.bytes;
    FAIL("no stage " << stage);
    return 0;
  }
};

}  // namespace

TEST_CASE("every stage that the header lists is reported by some call, and no other") {
  const auto known = listed();
  CHECK(known.at("decode").size() == 3);
  client::context c;
  const floats g = client::laplace(3000, 1);
  heard encode;
  std::vector<bytes> frames;
  for (const char* text : {"sparsify=topr(ratio=0.1) feedback=residual index=bloom value=fit_poly",
                           "sparsify=topr(ratio=0.1) index=auto value=auto(error=0.1)"}) {
    std::vector<uint64_t> state(2 + 1500);
    dr_tensor t = client::dense(g);
    if (std::string(text).find("feedback") != std::string::npos) {
      t.state = state.data();
      t.state_size = 8 * state.size();
    }
    dr_call call{};
    call.trace = heard::listen;
    call.trace_user = &encode;
    encode.list.clear();
    frames.push_back(client::encode(c, text, {t}, call));
    CHECK(encode.bytes("container") == frames.back().size());
  }
  CHECK(encode.names == known.at("encode"));

  const client::plan p("sparsify=topr(ratio=0.1) index=bloom value=fit_poly");
  const dr_tensor t = client::dense(g);
  abi::batch batch;
  REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, &t, sizeof t, 1, 0, &batch.handle) == DR_OK);
  size_t room = 0;
  REQUIRE(dr_batch_merge_workspace(batch.handle, 2, &room, nullptr) == DR_OK);
  room += 1 << 20;  // for the frame of auto, which is not this batch's
  abi::aligned_bytes workspace(room);
  floats x(3000);
  dr_tensor_out out = client::dense_out(x);
  dr_binding* bound = nullptr;
  REQUIRE(dr_binding_create(c.handle, batch.handle, nullptr, &t, sizeof t, &out, sizeof out, 1, 2, &bound) == DR_OK);
  const bytes& f = frames[0];
  const dr_bytes list[] = {{f.data(), f.size()}, {frames[1].data(), frames[1].size()}};
  const uint64_t support = client::inspect(f).support, both = support + client::inspect(frames[1]).support;
  for (const int way : {0, 1, 2}) {
    CAPTURE(way);
    heard decode, merge;
    dr_decode_options options{};
    options.struct_size = sizeof options;
    options.trace = heard::listen;
    options.trace_user = &decode;
    REQUIRE((way == 0   ? dr_decode(c.handle, nullptr, f.data(), f.size(), &options, &out, sizeof out, 1)
             : way == 1 ? dr_batch_decode(c.handle, batch.handle, nullptr, f.data(), f.size(), &options, &out,
                                          sizeof out, 1, workspace.data, room, nullptr)
                        : dr_binding_decode(bound, f.data(), f.size(), &options, nullptr)) == DR_OK);
    CHECK(decode.names == known.at("decode"));
    CHECK(decode.list.size() == 3);
    CHECK(decode.bytes("header") == f.size());
    CHECK(decode.bytes("decode") == 8 * support);
    CHECK(decode.bytes("deliver") == 12000);
    options.trace_user = &merge;
    const size_t k = way == 2 ? 1 : 2;  // (a binding's workspace is for frames of its batch)
    REQUIRE((way == 0   ? dr_merge(c.handle, nullptr, list, nullptr, k, &options, &out, sizeof out, 1)
             : way == 1 ? dr_batch_merge(c.handle, batch.handle, nullptr, list, nullptr, k, &options, &out, sizeof out,
                                         1, workspace.data, room, nullptr)
                        : dr_binding_merge(bound, list, nullptr, k, &options, nullptr)) == DR_OK);
    CHECK(merge.names == known.at("merge"));
    CHECK(merge.list.size() == 3);
    CHECK(merge.bytes("header") == f.size() + (k - 1) * frames[1].size());
    CHECK(merge.bytes("decode") == 8 * (k == 1 ? support : both));
    CHECK(merge.bytes("merge") == 12000);
  }
  dr_binding_destroy(bound);
}

TEST_CASE("a sparse output counts the pairs that were delivered") {
  client::context c;
  const floats g = client::laplace(300, 1);
  const bytes f = client::encode(c, "sparsify=topr(count=20) index=golomb value=raw", {client::dense(g)});
  floats values(20);
  std::vector<uint64_t> indices(20);
  dr_tensor_out out = client::dense_out(values);
  out.universe = 300;
  out.index_dtype = DR_U64;
  out.indices = indices.data();
  out.capacity = 20;
  heard decode;
  dr_decode_options options{};
  options.struct_size = sizeof options;
  options.trace = heard::listen;
  options.trace_user = &decode;
  REQUIRE(dr_decode(c.handle, nullptr, f.data(), f.size(), &options, &out, sizeof out, 1) == DR_OK);
  CHECK(decode.bytes("deliver") == 20 * 12);
}

TEST_CASE("a stage that fails is reported too, and later ones are not") {
  client::context c;
  const floats g = client::laplace(300, 1);
  bytes f = client::encode(c, "sparsify=topr(count=20) index=golomb value=raw", {client::dense(g)});
  f.back() ^= 1;
  floats x(300);
  dr_tensor_out out = client::dense_out(x);
  heard decode;
  dr_decode_options options{};
  options.struct_size = sizeof options;
  options.trace = heard::listen;
  options.trace_user = &decode;
  REQUIRE(dr_decode(c.handle, nullptr, f.data(), f.size(), &options, &out, sizeof out, 1) == DR_E_CORRUPT);
  CHECK(decode.names == stages{"header"});
}
