// Calls at their corners: merges of no frames, frames over the tensors that they are made of, capacities beyond the universe,
// limits on a device.
#include <cstring>
#include <random>

#include "client.hpp"

namespace {

dr_place place_of(uint32_t kind, uint32_t flags = 0) {
  dr_place p{};
  p.struct_size = sizeof p;
  p.kind = kind;
  p.flags = flags;
  return p;
}
const dr_place cpu = place_of(DR_PLACE_CPU), device = place_of(DR_PLACE_EMULATED),
               detour = place_of(DR_PLACE_EMULATED, DR_PLACE_ALLOW_HOST);

dr_decode_options flagged(uint32_t flags) {
  dr_decode_options o{};
  o.struct_size = sizeof o;
  o.flags = flags;
  return o;
}

dr_tensor_out words_out(client::bytes& memory, dr_dtype type, uint64_t n) {
  dr_tensor_out o{};
  o.struct_size = sizeof o;
  o.dtype = type;
  o.universe = n;
  o.values = memory.data();
  return o;
}

}  // namespace

TEST_CASE("a merge of no frames writes the types that a merge adds up, and refuses others before it writes") {
  client::context c;
  for (const auto& [type, size] :
       {std::pair<dr_dtype, size_t>{DR_F32, 4}, {DR_BF16, 2}, {DR_U8, 1}, {DR_U16, 2}, {DR_U32, 4}, {DR_F64, 8}})
    for (const uint32_t flags : {0u, uint32_t{DR_DECODE_VOTE}}) {
      CAPTURE(type);
      CAPTURE(flags);
      client::bytes memory(64 * size + 64, 0xab);
      const client::bytes before = memory;
      dr_tensor_out out = words_out(memory, type, 64);
      const dr_decode_options options = flagged(flags);
      const bool adds = type == DR_F32 || type == DR_BF16;
      CHECK(dr_merge(c.handle, &cpu, nullptr, nullptr, 0, &options, &out, sizeof out, 1) ==
            (adds ? dr_status{DR_OK} : dr_status{DR_E_ARGUMENT}));
      if (adds) CHECK(memory != before);
      if (!adds) CHECK(memory == before);
      client::bytes there(64 * size + 64, 0xab);
      dr_tensor_out on_device = words_out(there, type, 64);
      const dr_status s = dr_merge(c.handle, &device, nullptr, nullptr, 0, nullptr, &on_device, sizeof on_device, 1);
      CHECK(s == (adds ? dr_status{DR_OK} : dr_status{DR_E_ARGUMENT}));
      CHECK((there == before) == !adds);
      CHECK(std::equal(memory.end() - 64, memory.end(), before.end() - 64));
    }
}

TEST_CASE("a merge of no patches by their batch is refused, and the weights stay") {
  client::context c;
  const client::plan plan("sparsify=changed index=golomb value=raw");
  client::floats weights(64, 3), base(64, 3);
  dr_tensor t = client::dense(weights);
  t.base = base.data();
  dr_batch* batch = nullptr;
  REQUIRE(dr_batch_create(c.handle, plan.handle, &cpu, &t, sizeof t, 1, 0, &batch) == DR_OK);
  std::vector<uint64_t> memory(8192);
  auto* const workspace = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  dr_tensor_out out = client::dense_out(weights);
  CHECK(dr_batch_merge(c.handle, batch, &cpu, nullptr, nullptr, 0, nullptr, &out, sizeof out, 1, workspace, 60000,
                       nullptr) == DR_E_ARGUMENT);
  CHECK(c.error().find("is a patch of weights") != std::string::npos);
  CHECK(weights == base);
  dr_batch_destroy(batch);
}

TEST_CASE("a frame that is written over its tensor has the tensor's values, also if it is sent dense") {
  client::context c;
  std::mt19937 random(1);
  for (const char* const text : {"index=all value=planes", "index=all value=raw", "index=raw value=raw",
                                 "sparsify=threshold(value=0.0001,max_ratio=0.1) index=golomb value=raw"})
    for (const size_t at : {size_t{0}, size_t{64}, size_t{4000}}) {
      CAPTURE(text);
      CAPTURE(at);
      const client::plan plan(text);
      client::floats values(1000);
      for (float& x : values) {
        const uint32_t word = static_cast<uint32_t>(random()) & 0xbfffffff;
        std::memcpy(&x, &word, sizeof x);
      }
      std::vector<float> memory(10000);
      std::copy(values.begin(), values.end(), memory.begin() + 1000);
      const auto encode = [&](const float* from, uint8_t* to, size_t room) {
        dr_tensor t = client::dense(values);
        t.values = from;
        dr_result made{};
        made.struct_size = sizeof made;
        REQUIRE(dr_encode(c.handle, plan.handle, nullptr, nullptr, &t, sizeof t, 1, to, room, &made) == DR_OK);
        return static_cast<size_t>(made.size);
      };
      client::bytes apart(30000);
      apart.resize(encode(values.data(), apart.data(), apart.size()));
      auto* const over = reinterpret_cast<uint8_t*>(memory.data()) + at;
      const size_t size = encode(memory.data() + 1000, over, 30000);
      CHECK(client::bytes(over, over + size) == apart);
    }
}

TEST_CASE("a patch that would be written over the weights of its history is refused") {
  client::context c;
  const client::plan plan("sparsify=changed index=all value=raw");
  std::vector<uint32_t> memory(3000);
  client::bytes history(1000);
  for (const size_t at : {size_t{0}, size_t{1500}, size_t{2900}}) {
    dr_tensor t{};
    t.struct_size = sizeof t;
    t.dtype = DR_U32;
    t.universe = 1000;
    t.values = memory.data();
    t.base = memory.data() + 2000;
    t.history = history.data();
    const dr_status s =
        dr_encode(c.handle, plan.handle, nullptr, nullptr, &t, sizeof t, 1, memory.data() + at, 400, nullptr);
    CHECK(s == (at == 1500 ? dr_status{DR_OK} : dr_status{DR_E_ARGUMENT}));
    if (s) CHECK(c.error().find("by which its history is advanced") != std::string::npos);
  }
}

TEST_CASE("a sparse output may say that it has more room than its universe, also where the CPU decodes for a device") {
  client::context c;
  client::floats values(4096);
  for (size_t i = 0; i < values.size(); i += 7) values[i] = 1;
  const client::bytes frame = client::encode(c, "index=bitmap value=raw", {client::dense(values)});
  for (const uint64_t capacity : {uint64_t{4096}, uint64_t{1} << 40, uint64_t{1} << 62, UINT64_MAX})
    for (const dr_place* const place : {&cpu, &detour}) {
      CAPTURE(capacity);
      std::vector<uint32_t> indices(4096);
      client::floats pairs(4096);
      dr_tensor_out out{};
      out.struct_size = sizeof out;
      out.dtype = DR_F32;
      out.index_dtype = DR_U32;
      out.universe = 4096;
      out.values = pairs.data();
      out.indices = indices.data();
      out.capacity = capacity;
      CHECK(dr_decode(c.handle, place, frame.data(), frame.size(), nullptr, &out, sizeof out, 1) == DR_OK);
      CHECK(out.count == 586);
      CHECK(indices[585] == 4095);
    }
}

TEST_CASE("a decode on a device of few pairs of a huge universe needs little memory, and keeps its limit") {
  client::context c;
  const std::vector<uint32_t> at{5, 77, 0x7fffffff};
  const client::floats values(3 * 64, 1);
  const dr_tensor t = client::sparse(at, values, uint64_t{1} << 31, 64);
  const client::bytes frame = client::encode(c, "index=golomb value=raw", {t});
  for (const uint64_t limit : {uint64_t{200000}, uint64_t{1000}}) {
    std::vector<uint32_t> indices(3);
    client::floats pairs(3 * 64);
    dr_tensor_out out{};
    out.struct_size = sizeof out;
    out.dtype = DR_F32;
    out.index_dtype = DR_U32;
    out.universe = t.universe;
    out.width = 64;
    out.values = pairs.data();
    out.indices = indices.data();
    out.capacity = 3;
    dr_decode_options options = flagged(0);
    options.max_workspace = limit;
    const dr_status s = dr_decode(c.handle, &device, frame.data(), frame.size(), &options, &out, sizeof out, 1);
    INFO(c.error());
    CHECK(s == (limit == 1000 ? dr_status{DR_E_CAPACITY} : dr_status{DR_OK}));
    if (!s) CHECK(indices == at);
  }
}

TEST_CASE("what an inspection calls host_only is what a device refuses, of each segment and of patches") {
  client::context c;
  client::floats values(8192);  // few, then half of them
  values[5] = values[70] = values[300] = 1;
  std::mt19937 random(1);
  for (size_t i = 4096; i < values.size(); ++i) values[i] = static_cast<float>(random() % 2);
  dr_call call{};
  call.segment_rows = 4096;
  const client::bytes frame = client::encode(c, "index=auto value=raw", {client::dense(values)}, call);
  client::floats decoded(8192);
  dr_tensor_out out = client::dense_out(decoded);
  CHECK(dr_decode(c.handle, &device, frame.data(), frame.size(), nullptr, &out, sizeof out, 1) == DR_E_UNSUPPORTED);
  CHECK(client::inspect(frame).host_only == 1);
  std::vector<uint32_t> base(100), weights(100);
  weights[5] = 7;
  dr_tensor words{};
  words.struct_size = sizeof words;
  words.dtype = DR_U32;
  words.universe = 100;
  words.values = weights.data();
  words.base = base.data();
  CHECK(client::inspect(client::encode(c, "sparsify=changed index=golomb value=raw", {words})).host_only == 1);
}

TEST_CASE("a list that no memory holds is a lack of memory") {
  client::context c;
  dr_tensor_out out{};
  out.struct_size = sizeof out;
  CHECK(dr_merge(c.handle, &cpu, reinterpret_cast<const dr_bytes*>(&out), nullptr, size_t{1} << 60, nullptr, &out,
                 sizeof out, 1) != DR_E_INTERNAL);
}
