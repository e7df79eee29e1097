// Prepared decode and merge on the CPU: what dr_decode and dr_merge give, in the caller's workspace, whatever the data were.
#include <algorithm>
#include <functional>

#include "abi/prepared.hpp"
#include "client.hpp"
#include "fuzz/fix_check.hpp"

namespace {

using abi::aligned_bytes;
using abi::batch;
using client::bytes;
using client::floats;

dr_decode_options options(uint32_t flags = 0) {
  dr_decode_options o{};
  o.struct_size = sizeof o;
  o.flags = flags;
  return o;
}

// Outputs of the tensors' shapes, each with memory of its own, dense or with room for all.
struct outputs {
  std::vector<bytes> values;
  std::vector<std::vector<uint64_t>> indices;
  std::vector<dr_tensor_out> list;

  outputs(const std::vector<dr_tensor>& tensors, bool sparse, uint8_t fill = 0x2b) {
    for (const dr_tensor& t : tensors) {
      const uint64_t row = std::max(1u, t.width) * (t.dtype == DR_F32 ? 4 : 2);
      values.emplace_back(t.universe * row, fill);
      indices.emplace_back(sparse ? t.universe : 0, fill);
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      dr_tensor_out o{};
      o.struct_size = sizeof o;
      o.dtype = tensors[i].dtype;
      o.universe = tensors[i].universe;
      o.width = tensors[i].width;
      o.values = values[i].data();
      if (sparse) {
        o.index_dtype = DR_U64;
        o.indices = indices[i].data();
        o.capacity = o.universe;
      }
      list.push_back(o);
    }
  }
  bool operator==(const outputs& other) const {
    return values == other.values && indices == other.indices &&
           std::equal(list.begin(), list.end(), other.list.begin(), other.list.end(),
                      [](const auto& a, const auto& b) { return a.count == b.count; });
  }
};

// Tensors whose values change from step to step: few, many, none, all.
struct workload {
  std::vector<floats> wide{floats(3000), floats(500)};
  std::vector<uint16_t> narrow = std::vector<uint16_t>(800);
  floats listed = floats(40);
  std::vector<uint32_t> places;
  std::vector<dr_tensor> tensors;

  explicit workload(const std::string& text) {
    for (floats& w : wide) tensors.push_back(client::dense(w));
    const bool flat = text.find("flat") != std::string::npos;
    if (!flat) {
      for (uint32_t i = 0; i < 40; ++i) places.push_back(7 * i % 271);
      tensors.push_back(client::sparse(places, listed, 300));
      if (text.find("half") == std::string::npos) {
        dr_tensor t{};
        t.struct_size = sizeof t;
        t.dtype = DR_BF16;
        t.universe = narrow.size();
        t.values = narrow.data();
        tensors.push_back(t);
      }
    }
    fill(0);
  }
  void fill(uint64_t step) {
    client::rng r{step + 1};
    const auto next = [&](size_t i) -> float {
      switch (step % 5) {
        case 0: return r.laplace(1e-3);
        case 1: return 0;
        case 2: return 1 + static_cast<float>(i % 3);
        case 3: return i < 30 ? r.laplace(1) : 0;
        default: return r.laplace(100);
      }
    };
    for (floats& w : wide)
      for (size_t i = 0; i < w.size(); ++i) w[i] = next(i);
    for (size_t i = 0; i < listed.size(); ++i) listed[i] = next(i);
    for (size_t i = 0; i < narrow.size(); ++i) {
      const float v = next(i);
      uint32_t word;
      std::memcpy(&word, &v, sizeof word);
      narrow[i] = static_cast<uint16_t>(word >> 16);
    }
  }
};

constexpr const char* plans[] = {
    "sparsify=topr(ratio=0.05) index=golomb value=fit_poly",
    "sparsify=topr(ratio=0.05) index=raw value=fit_poly",
    "index=raw value=raw",
    "index=golomb value=raw",
    "index=elias_fano value=uniform_quant",
    "sparsify=threshold(value=0.002,max_ratio=0.1) index=rice value=qsgd",
    "sparsify=topr(ratio=0.05) index=bloom(policy=p0,fpr=0.01) value=raw",
    "sparsify=topr(ratio=0.05) index=bloom(policy=p1,fpr=0.05) value=fit_poly",
    "sparsify=topr(ratio=0.3) index=bloom(policy=p2,fpr=0.3) value=raw",
    "sparsify=topr(ratio=0.3) index=bloom(policy=p0,fpr=0.9,max_ratio=0.01) value=fit_poly",  // keys go raw
    "sparsify=topr(ratio=0.1) index=auto value=auto(error=0.1)",
    "index=auto value=raw",
    "sparsify=topr(ratio=0.05) index=delta_varint+huffman+zstd value=raw+deflate",
    "sparsify=random(ratio=0.05) index=bitmap value=lloyd(levels=4)",
    "index=all value=qsgd",
    "index=all value=three_lc",
    "index=seeded(ratio=0.1) value=raw",
    "sparsify=topr(ratio=0.02) bucket=flat index=golomb value=qsgd",
    "bucket=flat index=raw value=raw+zstd",
};

void write_guard(aligned_bytes& workspace, size_t size) { std::memset(workspace.data + size, 0x5a, 64); }
bool guard_stands(const aligned_bytes& workspace, size_t size) {
  return std::all_of(workspace.data + size, workspace.data + size + 64, [](uint8_t b) { return b == 0x5a; });
}

}  // namespace

TEST_CASE("a prepared decode or merge yields what dr_decode and dr_merge give, in the workspace that was asked for") {
  std::array<size_t, 3> seen{};  // rows in each mode
  for (const char* text : plans)
    for (const uint64_t segment_rows : {uint64_t{0}, uint64_t{700}})
      for (const uint32_t threads : {1u, 3u}) {
        INFO(text << ", segments of " << segment_rows << ", threads: " << threads);
        workload w(text);
        const size_t n = w.tensors.size();
        client::context maker(threads), c(threads == 1 ? 3 : threads);
        const client::plan p(text);
        batch b;
        REQUIRE(dr_batch_create(maker.handle, p.handle, nullptr, w.tensors.data(), sizeof(dr_tensor), n, segment_rows,
                                &b.handle) == DR_OK);
        const dr_batch_info info = abi::describe(b);
        aligned_bytes work(info.workspace);
        size_t room = 0;
        REQUIRE(dr_batch_merge_workspace(b.handle, 1, &room, nullptr) == DR_OK);
        aligned_bytes workspace(room + 64);
        write_guard(workspace, room);
        std::vector<bytes> frames;
        for (uint64_t step = 0; step < 10; ++step) {
          CAPTURE(step);
          w.fill(step);
          bytes frame(info.bound);
          dr_call call{};
          call.struct_size = sizeof call;
          call.step = step;
          call.segment_rows = segment_rows;
          call.flags = step < 5 ? 0 : DR_CALL_TAG;
          dr_result result{};
          result.struct_size = sizeof result;
          dr_status s = dr_batch_encode(maker.handle, b.handle, &call, nullptr, w.tensors.data(), sizeof(dr_tensor), n,
                                        work.data, info.workspace, frame.data(), frame.size(), &result);
          INFO(maker.error());
          REQUIRE(s == DR_OK);
          frame.resize(result.size);
          std::vector<dr_tensor_info> rows(n);
          for (dr_tensor_info& r : rows) r.struct_size = sizeof r;
          dr_frame_info head{};
          head.struct_size = sizeof head;
          REQUIRE(dr_inspect(frame.data(), frame.size(), &head, rows.data(), sizeof rows[0], n, nullptr) == DR_OK);
          for (uint32_t i = 0; i < head.tensors; ++i) ++seen[rows[i].fallback];

          bytes moved(frame.size() + 3);
          const size_t offset = step % 4;
          std::copy(frame.begin(), frame.end(), moved.begin() + static_cast<long>(offset));
          for (const bool sparse : {false, true}) {
            if (sparse && std::string(text).find("flat") != std::string::npos) continue;
            CAPTURE(sparse);
            outputs expected(w.tensors, sparse), got(w.tensors, sparse);
            REQUIRE(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, expected.list.data(),
                              sizeof(dr_tensor_out), n) == DR_OK);
            result = dr_result{};
            result.struct_size = sizeof result;
            result.status = 99;
            s = dr_batch_decode(c.handle, b.handle, nullptr, moved.data() + offset, frame.size(), nullptr,
                                got.list.data(), sizeof(dr_tensor_out), n, workspace.data, room, &result);
            INFO(c.error());
            REQUIRE(s == DR_OK);
            CHECK(got == expected);
            CHECK(result.status == DR_OK);
            CHECK(result.tensor == DR_NO_TENSOR);
          }
          frames.push_back(frame);
        }
        CHECK(guard_stands(workspace, room));

        std::vector<dr_bytes> list;
        std::vector<float> weights;
        for (const bytes& f : frames) {
          list.push_back({f.data(), f.size()});
          weights.push_back(0.5f + static_cast<float>(list.size()));
        }
        for (const size_t k : {size_t{0}, size_t{1}, list.size()})
          for (const uint32_t flags : {0u, uint32_t{DR_DECODE_ADD}}) {
            CAPTURE(k);
            REQUIRE(dr_batch_merge_workspace(b.handle, k, &room, nullptr) == DR_OK);
            aligned_bytes merging(room + 64);
            write_guard(merging, room);
            outputs expected(w.tensors, false, 0), got(w.tensors, false, 0);
            const dr_decode_options o = options(flags);
            REQUIRE(dr_merge(c.handle, nullptr, list.data(), weights.data(), k, &o, expected.list.data(),
                             sizeof(dr_tensor_out), n) == DR_OK);
            const dr_status s = dr_batch_merge(c.handle, b.handle, nullptr, list.data(), weights.data(), k, &o,
                                               got.list.data(), sizeof(dr_tensor_out), n, merging.data, room, nullptr);
            INFO(c.error());
            REQUIRE(s == DR_OK);
            CHECK(got == expected);
            CHECK(guard_stands(merging, room));
          }
      }
  CHECK(seen[DR_FALLBACK_NONE] > 100);
  CHECK(seen[DR_FALLBACK_RAW_INDEX] > 20);
  CHECK(seen[DR_FALLBACK_DENSE] > 20);
}

namespace {

// A batch of two tensors, and frames for it.
struct two {
  client::context c;
  floats a = client::laplace(700, 1), b = client::laplace(90, 2);
  std::vector<dr_tensor> tensors = {client::dense(a), client::dense(b)};
  batch prepared;
  bytes frame;
  outputs outs{tensors, false};
  size_t room = 0;
  std::unique_ptr<aligned_bytes> workspace;
  dr_result result{};

  two() {
    const client::plan p("sparsify=topr(ratio=0.1) index=golomb value=qsgd");
    REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, tensors.data(), sizeof(dr_tensor), 2, 0, &prepared.handle) ==
            DR_OK);
    frame = client::encode(c, "sparsify=topr(ratio=0.1) index=golomb value=qsgd", tensors);
    REQUIRE(dr_batch_merge_workspace(prepared.handle, 3, &room, nullptr) == DR_OK);
    workspace = std::make_unique<aligned_bytes>(room);
  }
  dr_status decode(const bytes& f, const dr_decode_options* o = nullptr, void* memory = nullptr,
                   size_t size = SIZE_MAX) {
    result = dr_result{};
    result.struct_size = sizeof result;
    return dr_batch_decode(c.handle, prepared.handle, nullptr, f.data(), f.size(), o, outs.list.data(),
                           sizeof(dr_tensor_out), outs.list.size(), memory ? memory : workspace->data,
                           size == SIZE_MAX ? room : size, &result);
  }
  dr_status merge(const std::vector<bytes>& frames) {
    std::vector<dr_bytes> list;
    for (const bytes& f : frames) list.push_back({f.data(), f.size()});
    result = dr_result{};
    result.struct_size = sizeof result;
    return dr_batch_merge(c.handle, prepared.handle, nullptr, list.data(), nullptr, list.size(), nullptr,
                          outs.list.data(), sizeof(dr_tensor_out), outs.list.size(), workspace->data, room, &result);
  }
};

}  // namespace

TEST_CASE("a frame of other tensors than the batch's is ARGUMENT, and the sentence reports which") {
  two t;
  const auto refused = [&](const std::vector<dr_tensor>& tensors, const char* says) {
    const bytes other = client::encode(t.c, "sparsify=topr(ratio=0.1) index=golomb value=qsgd", tensors);
    CHECK(t.decode(other) == DR_E_ARGUMENT);
    INFO(t.c.error());
    CHECK(t.c.error().find(says) != std::string::npos);
    CHECK(t.result.status == DR_E_ARGUMENT);
    const outputs before = t.outs;
    CHECK(t.merge({t.frame, other}) == DR_E_ARGUMENT);
    CHECK(t.c.error().find("frame 1") != std::string::npos);
    CHECK(t.result.frame == 1);
    CHECK(t.outs == before);
  };
  const floats longer(91, 1);
  refused({t.tensors[0], client::dense(longer)}, "tensor 1 has 91 rows");
  refused({t.tensors[0]}, "1 tensors");
  refused({t.tensors[0], t.tensors[1], t.tensors[1]}, "3 tensors");
  const std::vector<uint16_t> halves(90, 0x3c00);
  dr_tensor half = t.tensors[1];
  half.dtype = DR_F16;
  half.values = halves.data();
  refused({t.tensors[0], half}, "f16");  // the outputs in f32 would take it
  // One tensor as long as both, which dr_decode would cut.
  const floats both(790, 1);
  refused({client::dense(both)}, "1 tensors");
}

TEST_CASE("outputs that are not shaped as the batch's tensors are ARGUMENT") {
  two t;
  const auto refused = [&](const std::function<void(std::vector<dr_tensor_out>&)>& change,
                           dr_status wanted = DR_E_ARGUMENT) {
    const outputs before = t.outs;
    change(t.outs.list);
    CHECK(t.decode(t.frame) == wanted);
    CHECK(t.merge({t.frame}) == wanted);
    CHECK(t.merge({}) == wanted);
    t.outs.list = before.list;
  };
  refused([](auto& o) { o.pop_back(); });
  refused([](auto& o) { o.push_back(o[0]); });
  refused([](auto& o) { o[0].universe = 699; });
  refused([](auto& o) { o[1].width = 2; });
  refused([](auto& o) { o[1].dtype = 77; });
  refused([](auto& o) { o[1].values = nullptr; });
  refused([](auto& o) { o[1].flags = 1; }, DR_E_UNSUPPORTED);
  refused([](auto& o) { o[0].struct_size = 0; });
  CHECK(t.decode(t.frame) == DR_OK);
}

TEST_CASE("outputs that share a bucket are dense, and the refusal of a sparse one names the way to one that is not") {
  client::context c;
  const char* const plan = "sparsify=topr(ratio=0.1) index=golomb value=raw bucket=flat";
  const client::plan p(plan);
  const floats x = client::laplace(700, 1), y = client::laplace(90, 2);
  const std::vector<dr_tensor> tensors = {client::dense(x), client::dense(y)};
  const bytes frame = client::encode(c, plan, tensors);
  batch b;
  REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, tensors.data(), sizeof(dr_tensor), 2, 0, &b.handle) == DR_OK);
  size_t size = 0;
  REQUIRE(dr_batch_merge_workspace(b.handle, 1, &size, nullptr) == DR_OK);
  const aligned_bytes workspace(size);
  outputs parts(tensors, true);
  const dr_bytes frames[] = {{frame.data(), frame.size()}};
  const std::string refusal = "output 0: is sparse, but several outputs share one tensor of the frame (bucket=flat)";
  CHECK(dr_batch_decode(c.handle, b.handle, nullptr, frame.data(), frame.size(), nullptr, parts.list.data(),
                        sizeof(dr_tensor_out), 2, workspace.data, size, nullptr) == DR_E_ARGUMENT);
  CHECK(c.error().substr(0, refusal.size()) == refusal);
  CHECK(dr_merge(c.handle, nullptr, frames, nullptr, 1, nullptr, parts.list.data(), sizeof(dr_tensor_out), 2) ==
        DR_E_ARGUMENT);
  CHECK(c.error().find(refusal) != std::string::npos);
  CHECK(c.error().find("dr_decode and dr_merge take one sparse output of all its rows") != std::string::npos);
  // They do.
  floats joined = x;
  joined.insert(joined.end(), y.begin(), y.end());
  outputs decoded({client::dense(joined)}, true), merged = decoded;
  merged.list[0].values = merged.values[0].data();
  merged.list[0].indices = merged.indices[0].data();
  CHECK(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, decoded.list.data(), sizeof(dr_tensor_out),
                  1) == DR_OK);
  CHECK(dr_merge(c.handle, nullptr, frames, nullptr, 1, nullptr, merged.list.data(), sizeof(dr_tensor_out), 1) ==
        DR_OK);
  CHECK(decoded.list[0].count == 79);
  CHECK(decoded == merged);
}

TEST_CASE("a workspace that is too small is CAPACITY and reports what would do; one that is not aligned is ARGUMENT") {
  two t;
  // Of another sender: all there is, by a plan that needs more.
  const bytes large = client::encode(t.c, "index=delta_varint+huffman value=fit_poly", t.tensors);
  REQUIRE(dr_batch_merge_workspace(t.prepared.handle, 1, &t.room, nullptr) == DR_OK);
  for (const bytes* frame : {static_cast<const bytes*>(&t.frame), &large}) {
    REQUIRE(t.decode(*frame, nullptr, nullptr, 0) == DR_E_CAPACITY);
    const uint64_t needed = t.result.needed;
    CHECK(needed == dr_last_error(t.c.handle)->needed);
    CHECK((needed > t.room) == (frame == &large));
    aligned_bytes enough(needed + 64);
    write_guard(enough, needed);
    CHECK(t.decode(*frame, nullptr, enough.data, needed) == DR_OK);
    CHECK(guard_stands(enough, needed));
    CHECK(t.decode(*frame, nullptr, enough.data, needed - 1) == DR_E_CAPACITY);
    CHECK(t.result.status == DR_E_CAPACITY);
    CHECK(t.result.needed == needed);
    CHECK(t.c.error().find(std::to_string(needed)) != std::string::npos);
    CHECK(t.decode(*frame, nullptr, enough.data + 8, needed) == DR_E_ARGUMENT);
  }
  CHECK(dr_batch_decode(t.c.handle, t.prepared.handle, nullptr, t.frame.data(), t.frame.size(), nullptr,
                        t.outs.list.data(), sizeof(dr_tensor_out), 2, nullptr, t.room, nullptr) == DR_E_ARGUMENT);
}

TEST_CASE("limits of a prepared decode: elements, and workspace that it takes") {
  two t;
  dr_decode_options o = options();
  o.max_elements = 790;
  CHECK(t.decode(t.frame, &o) == DR_OK);
  o.max_elements = 789;
  CHECK(t.decode(t.frame, &o) == DR_E_CAPACITY);
  REQUIRE(t.decode(t.frame, nullptr, nullptr, 0) == DR_E_CAPACITY);
  const uint64_t needed = t.result.needed;
  o = options();
  o.max_workspace = needed + 8192;  // (beside it what the header takes)
  CHECK(t.decode(t.frame, &o) == DR_OK);
  o.max_workspace = needed - 1;
  CHECK(t.decode(t.frame, &o) == DR_E_CAPACITY);
  CHECK(t.result.status == DR_E_CAPACITY);
  o = options();
  o.tensors = 1;
  CHECK(t.decode(t.frame, &o) == DR_E_UNSUPPORTED);
  o = options(1u << 31);
  CHECK(t.decode(t.frame, &o) == DR_E_UNSUPPORTED);
}

TEST_CASE("the result of a prepared decode reports what its context reports") {
  two t;
  const auto same = [&](dr_status s) {
    const dr_error& e = *dr_last_error(t.c.handle);
    INFO(e.message);
    CHECK(t.result.status == s);
    CHECK(e.code == s);
    CHECK(t.result.tensor == e.tensor);
    CHECK(t.result.stream == e.stream);
    CHECK(t.result.where == e.where);
    CHECK(t.result.what == e.what);
    CHECK(t.result.frame == e.frame);
    CHECK(t.result.size == 0);
  };
  bytes bad = t.frame;
  bad.back() ^= 1;
  CHECK(t.decode(bad) == DR_E_CORRUPT);
  same(DR_E_CORRUPT);
  // What only the codec can judge: the norm of qsgd is a NaN.
  bad = t.frame;
  dr_frame_info info{};
  client::inspect(bad, &info);
  bad[info.header_size + 3] = 0x7f;
  bad[info.header_size + 2] = 0xc0;
  REQUIRE(frame_check::fix(bad.data(), bad.size()));
  CHECK(t.decode(bad) == DR_E_CORRUPT);
  same(DR_E_CORRUPT);
  CHECK(t.result.tensor == 0);
  CHECK(t.result.stream == DR_STREAM_VALUE);
  CHECK(t.merge({t.frame, t.frame, bad}) == DR_E_CORRUPT);
  same(DR_E_CORRUPT);
  CHECK(t.result.frame == 2);
  // What another rank says of itself.
  dr_call call{};
  call.flags = DR_CALL_STATUS_FRAME;
  floats nan = t.a;
  nan[3] = NAN;
  bytes said;
  CHECK(client::try_encode(t.c, "index=golomb value=qsgd", {client::dense(nan), t.tensors[1]}, said, call) ==
        DR_E_ARGUMENT);
  CHECK(t.decode(said) == DR_E_PEER);
  same(DR_E_PEER);
  CHECK(dr_batch_decode(t.c.handle, t.prepared.handle, nullptr, nullptr, 5, nullptr, t.outs.list.data(),
                        sizeof(dr_tensor_out), 2, t.workspace->data, t.room, &t.result) == DR_E_ARGUMENT);
  same(DR_E_ARGUMENT);
  // A result of a size that no version had gets what it has room for, but it is refused; one without a size is, too.
  t.result.struct_size = offsetof(dr_result, tensor);
  t.result.tensor = 12345;
  CHECK(dr_batch_decode(t.c.handle, t.prepared.handle, nullptr, t.frame.data(), t.frame.size(), nullptr,
                        t.outs.list.data(), sizeof(dr_tensor_out), 2, t.workspace->data, t.room,
                        &t.result) == DR_E_ARGUMENT);
  CHECK(t.result.status == DR_E_ARGUMENT);
  CHECK(t.result.tensor == 12345);
  t.result.struct_size = 0;
  CHECK(dr_batch_decode(t.c.handle, t.prepared.handle, nullptr, t.frame.data(), t.frame.size(), nullptr,
                        t.outs.list.data(), sizeof(dr_tensor_out), 2, t.workspace->data, t.room,
                        &t.result) == DR_E_ARGUMENT);
}

TEST_CASE("workspace for a merge: more frames need more, and what cannot be is refused") {
  two t;
  size_t before = 0;
  for (const size_t k : {0, 1, 2, 3, 100, 1 << 20}) {
    size_t bytes = 0;
    REQUIRE(dr_batch_merge_workspace(t.prepared.handle, k, &bytes, nullptr) == DR_OK);
    CHECK(bytes > before);
    before = bytes;
  }
  dr_error error{};
  error.struct_size = sizeof error;
  CHECK(dr_batch_merge_workspace(t.prepared.handle, (1 << 20) + 1, &before, &error) == DR_E_ARGUMENT);
  CHECK(dr_batch_merge_workspace(nullptr, 1, &before, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_batch_merge_workspace(t.prepared.handle, 1, nullptr, nullptr) == DR_E_ARGUMENT);
  // 2^32 rows of 2^18 values, 2^20 times.
  dr_tensor huge = t.tensors[0];
  huge.universe = uint64_t{1} << 32;
  huge.width = 1 << 18;
  const client::plan p("index=raw value=raw");
  batch b;
  REQUIRE(dr_batch_create(t.c.handle, p.handle, nullptr, &huge, sizeof huge, 1, 0, &b.handle) == DR_OK);
  CHECK(dr_batch_merge_workspace(b.handle, 1 << 20, &before, &error) == DR_E_MEMORY);
  CHECK(error.code == DR_E_MEMORY);
}

TEST_CASE("a batch that the CPU does for a device has no prepared decode") {
  client::context c;
  const floats g = client::laplace(100, 1);
  const dr_tensor t = client::dense(g);
  const client::plan p("index=golomb value=raw+deflate");
  dr_place place{};
  place.struct_size = sizeof place;
  place.kind = DR_PLACE_EMULATED;
  place.flags = DR_PLACE_ALLOW_HOST;
  batch b;
  REQUIRE(dr_batch_create(c.handle, p.handle, &place, &t, sizeof t, 1, 0, &b.handle) == DR_OK);
  size_t room = 0;
  dr_error error{};
  error.struct_size = sizeof error;
  CHECK(dr_batch_merge_workspace(b.handle, 1, &room, &error) == DR_E_UNSUPPORTED);
  CHECK(error.code == DR_E_UNSUPPORTED);
  floats x(100);
  dr_tensor_out out = client::dense_out(x);
  aligned_bytes workspace(1 << 16), frame(64);
  CHECK(dr_batch_decode(c.handle, b.handle, &place, frame.data, 64, nullptr, &out, sizeof out, 1, workspace.data,
                        1 << 16, nullptr) == DR_E_UNSUPPORTED);
}
