// Tensors in segments (partitioned Bloom filters among them), beyond 2^32 rows, and many tensors as one.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "abi/segmented.hpp"
#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

dr_call in_segments(uint64_t rows) {
  dr_call call{};
  call.segment_rows = rows;
  return call;
}

// Ten rows around everything that is a power of two.
std::vector<uint64_t> far_apart(uint64_t universe) {
  std::vector<uint64_t> indices = {0, 1};
  for (unsigned bit = 8; bit < 40; ++bit)
    for (const uint64_t i : {(uint64_t{1} << bit) - 1, uint64_t{1} << bit})
      if (i < universe - 1 && i > indices.back()) indices.push_back(i);
  indices.push_back(universe - 1);
  return indices;
}

}  // namespace

TEST_CASE("segments of any size decode to what the whole decodes to, where codecs are exact") {
  const floats g = client::laplace(1000, 1);
  client::context c(2);
  for (const char* text : {"sparsify=topr(ratio=0.1) index=golomb value=raw",
                           "sparsify=threshold(value=0.001) index=rice+deflate value=raw+deflate",
                           "sparsify=random(ratio=0.1) index=golomb", "sparsify=dgc(ratio=0.1) index=golomb",
                           "index=raw value=raw", "index=all value=raw"}) {
    const floats whole = client::decode(c, client::encode(c, text, {client::dense(g)}), g.size());
    for (const uint64_t rows :
         {uint64_t{1}, uint64_t{7}, uint64_t{333}, uint64_t{999}, uint64_t{1000}, uint64_t{1001}, UINT64_MAX}) {
      CAPTURE(rows);
      const bytes frame = abi::encode_segmented(c, text, {client::dense(g)}, in_segments(rows));
      const dr_tensor_info info = client::inspect(frame);
      CHECK(info.segments == (rows > 1000 ? 1 : (1000 + rows - 1) / rows));
      CHECK(info.universe == 1000);
      REQUIRE(client::same_bits(client::decode(c, frame, g.size()), whole));
      const client::pairs p = client::decode_sparse(c, frame);
      floats again(g.size());
      for (size_t k = 0; k < p.indices.size(); ++k) {
        REQUIRE((k == 0 || p.indices[k] > p.indices[k - 1]));
        again[p.indices[k]] = p.values[k];
      }
      REQUIRE(client::same_bits(again, whole));
    }
  }
}

TEST_CASE("segments of lossy codecs cover the tensor: each part is what its codec makes of it") {
  const floats g = client::laplace(1000, 1);
  client::context c;
  for (const char* text : {"sparsify=topr(ratio=0.3) index=bloom(fpr=0.01,policy=p0) value=qsgd",
                           "sparsify=topr(ratio=0.3) index=golomb value=fit_poly"}) {
    const bytes frame = abi::encode_segmented(c, text, {client::dense(g)}, in_segments(300));
    const floats x = client::decode(c, frame, g.size());
    double error = 0, norm = 0;
    for (size_t i = 0; i < g.size(); ++i) {
      error += (x[i] - g[i]) * (x[i] - g[i]);
      norm += g[i] * g[i];
    }
    CHECK(error < 0.3 * norm);
    for (size_t part = 0; part < 4; ++part) {
      double sent = 0;
      for (size_t i = 300 * part; i < std::min<size_t>(1000, 300 * part + 300); ++i) sent += std::abs(x[i]);
      CHECK(sent > 0);
    }
  }
}

TEST_CASE("a universe beyond 2^32 goes in and comes out sparse, index by index") {
  client::context c;
  for (const uint64_t universe :
       {(uint64_t{1} << 32) - 1, uint64_t{1} << 32, (uint64_t{1} << 33) + 5, (uint64_t{1} << 39) + 12345}) {
    CAPTURE(universe);
    const std::vector<uint64_t> indices = far_apart(universe);
    const floats values = client::laplace(indices.size(), universe);
    for (const char* text : {"index=golomb value=raw", "index=raw value=raw", "index=rice+deflate value=raw"}) {
      const bytes frame = client::encode(c, text, {client::sparse(indices, values, universe)});
      CHECK(client::inspect(frame).segments == (universe + 0xfffffffe) / 0xffffffff);
      const client::pairs p = client::decode_sparse(c, frame);
      CHECK(p.indices == indices);
      CHECK(client::same_bits(p.values, values));
    }
  }
}

TEST_CASE("an index type that cannot hold the universe is refused on the way out") {
  client::context c;
  const floats value = {1};
  const struct {
    uint64_t universe;
    bool u32, i32;
  } cases[] = {{uint64_t{1} << 31, true, true},
               {(uint64_t{1} << 31) + 1, true, false},
               {uint64_t{1} << 32, true, false},
               {(uint64_t{1} << 32) + 1, false, false}};
  for (const auto& k : cases) {
    CAPTURE(k.universe);
    const std::vector<uint64_t> last = {k.universe - 1};
    const bytes frame = client::encode(c, "index=raw", {client::sparse(last, value, k.universe)});
    const auto decode = [&](dr_dtype type, void* index) {
      float room = 0;
      dr_tensor_out out{};
      out.struct_size = sizeof out;
      out.dtype = DR_F32;
      out.index_dtype = type;
      out.universe = k.universe;
      out.values = &room;
      out.indices = index;
      out.capacity = 1;
      return dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, &out, sizeof out, 1);
    };
    uint32_t u32 = 0;
    int32_t i32 = 0;
    uint64_t u64 = 0;
    int64_t i64 = 0;
    CHECK(decode(DR_U32, &u32) == (k.u32 ? DR_OK : DR_E_ARGUMENT));
    CHECK(decode(DR_I32, &i32) == (k.i32 ? DR_OK : DR_E_ARGUMENT));
    CHECK(decode(DR_U64, &u64) == DR_OK);
    CHECK(decode(DR_I64, &i64) == DR_OK);
    if (k.u32) CHECK(u32 == k.universe - 1);
    if (k.i32) CHECK(static_cast<uint64_t>(i32) == k.universe - 1);
    CHECK(u64 == k.universe - 1);
    CHECK(static_cast<uint64_t>(i64) == k.universe - 1);
  }
}

TEST_CASE("bucket=flat: many dense tensors become one, and decode yields the parts or the whole") {
  const floats a = client::laplace(300, 1), b = client::laplace(1, 2), none, d = client::laplace(500, 3);
  client::context c;
  floats all(a);
  all.insert(all.end(), b.begin(), b.end());
  all.insert(all.end(), d.begin(), d.end());
  for (const uint64_t segment_rows : {uint64_t{0}, uint64_t{250}}) {
    const bytes frame = abi::encode_segmented(
        c, "sparsify=topr(ratio=0.1) index=golomb value=fit_poly bucket=flat",
        {client::dense(a), client::dense(b), client::dense(none), client::dense(d)}, in_segments(segment_rows));
    dr_frame_info head{};
    CHECK(client::inspect(frame, &head).universe == all.size());
    CHECK(head.tensors == 1);
    CHECK(client::inspect(frame).count == 80);  // a tenth of all together, in any tensor
    const floats whole = client::decode(c, frame, all.size());
    CHECK(client::same_bits(
        whole, client::decode(c,
                              abi::encode_segmented(c, "sparsify=topr(ratio=0.1) index=golomb value=fit_poly",
                                                    {client::dense(all)}, in_segments(segment_rows)),
                              all.size())));
    floats parts(all.size(), 9);
    dr_tensor_out outs[4] = {};
    const size_t sizes[] = {a.size(), b.size(), 0, d.size()};
    size_t at = 0;
    for (size_t i = 0; i < 4; ++i) {
      outs[i].struct_size = sizeof *outs;
      outs[i].dtype = DR_F32;
      outs[i].universe = sizes[i];
      outs[i].values = parts.data() + at;
      at += sizes[i];
    }
    REQUIRE(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, outs, sizeof *outs, 4) == DR_OK);
    CHECK(client::same_bits(parts, whole));
    CHECK(outs[0].count + outs[1].count + outs[2].count + outs[3].count == 80);
    const dr_bytes frames[] = {{frame.data(), frame.size()}, {frame.data(), frame.size()}};
    REQUIRE(dr_merge(c.handle, nullptr, frames, nullptr, 2, nullptr, outs, sizeof *outs, 4) == DR_OK);
    floats twice(whole);
    for (float& v : twice) v += v;
    CHECK(parts == twice);
    outs[3].universe -= 1;
    CHECK(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, outs, sizeof *outs, 4) == DR_E_ARGUMENT);
  }
}

TEST_CASE("bucket=flat keeps feedback a tensor, and takes neither sparse tensors nor rows nor two types") {
  const floats a = client::laplace(300, 1), b = client::laplace(200, 2);
  client::context c;
  std::vector<uint64_t> state_a(2 + 150), state_b(2 + 100);
  dr_tensor x = client::dense(a), y = client::dense(b);
  x.state = state_a.data();
  x.state_size = 8 * state_a.size();
  y.state = state_b.data();
  y.state_size = 8 * state_b.size();
  const bytes frame = client::encode(c, "sparsify=topr(ratio=0.1) feedback=residual index=golomb bucket=flat", {x, y});
  const floats sent = client::decode(c, frame, 500);
  float* r = nullptr;
  uint64_t n = 0;
  REQUIRE(dr_state_residual(state_b.data(), 8 * state_b.size(), &r, &n, nullptr) == DR_OK);
  REQUIRE(n == 200);
  size_t wrong = 0;
  for (size_t i = 0; i < 200; ++i) wrong += r[i] != b[i] - sent[300 + i];
  CHECK(wrong == 0);

  bytes none;
  dr_tensor half = client::dense(b), rows = client::dense(b);
  half.dtype = DR_BF16;
  half.universe = 100;
  rows.width = 2;
  rows.universe = 100;
  const std::vector<uint64_t> indices = {1};
  CHECK(client::try_encode(c, "bucket=flat", {client::dense(a), half}, none) == DR_E_ARGUMENT);
  CHECK(client::try_encode(c, "bucket=flat", {client::dense(a), rows}, none) == DR_E_ARGUMENT);
  CHECK(client::try_encode(c, "bucket=flat", {client::dense(a), client::sparse(indices, b, 200)}, none) ==
        DR_E_ARGUMENT);
}

// ---- Partitioned Bloom filters: a filter for each segment, sized by its own count ------------------------------

namespace {

// Of 64 segments of 1000 rows every eighth is full of large elements, the others have one or none.
struct clustered {
  static constexpr uint64_t rows = 1000, parts = 64;
  floats g = client::laplace(rows * parts, 5);
  std::vector<uint64_t> support, counts = std::vector<uint64_t>(parts);

  clustered() {
    for (float& x : g) x *= 1e-3f;
    for (uint64_t part = 0; part < parts; ++part)
      for (uint64_t k = 0; k < (part % 8 == 3 ? 400 : part % 3 == 0); ++k) {
        const uint64_t i = part * rows + (k * 7 + part) % rows;
        g[i] = (i % 2 ? 1.f : -1.f) * (2 + static_cast<float>(k) / 1000);
        support.push_back(i);
        ++counts[part];
      }
    std::ranges::sort(support);
  }
  std::string topr() const { return "sparsify=topr(count=" + std::to_string(support.size()) + ") "; }
  std::span<const float> part(uint64_t k) const { return std::span(g).subspan(k * rows, rows); }
};

}  // namespace

TEST_CASE("bloom in segments: each has a filter of its own, of the size that its own count needs") {
  const clustered c;
  client::context context;
  const std::string index = "index=bloom(fpr=0.01,policy=p0)";
  const bytes frame = abi::encode_segmented(context, c.topr() + index, {client::dense(c.g)}, in_segments(c.rows));
  const dr_tensor_info info = client::inspect(frame);
  CHECK(info.segments == c.parts);
  CHECK(info.count == c.support.size());
  // SPEC.md: m = max(32, (r · c) >> 16 rounded up to 32) bits of a segment; none where it is empty.
  const uint64_t per_index = static_cast<uint64_t>(std::lround(65536 * std::log2(1 / 0.01) / std::log(2.0)));
  uint64_t filters = 0;
  for (const uint64_t r : c.counts)
    if (r) filters += std::max<uint64_t>(4, ((r * per_index >> 16) + 31) / 32 * 4);
  CHECK(info.index_size == filters);
}

TEST_CASE("bloom in segments: every policy keeps its promise in each, and decode yields what encode reported") {
  const clustered c;
  client::context context;
  for (const char* policy : {"leftmost", "rightmost", "middle", "p0", "p1", "p2", "naive"})
    for (const char* rate : {"fpr=0.02", "bits=8"}) {
      const std::string index = std::string("index=bloom(") + rate + ",policy=" + policy + ")";
      CAPTURE(index);
      const bytes frame = abi::encode_segmented(context, c.topr() + index, {client::dense(c.g)}, in_segments(c.rows));
      const dr_tensor_info info = client::inspect(frame);
      const client::pairs p = client::decode_sparse(context, frame);
      CHECK(info.support == p.indices.size());  // the support that encode reported
      const bool p0 = index.ends_with("p0)"), naive = index.ends_with("naive)");
      CHECK(info.support >= c.support.size());
      if (!p0) CHECK(info.support == c.support.size());
      size_t recovered = 0;
      std::vector<uint64_t> counts(c.parts);
      for (size_t k = 0; k < p.indices.size(); ++k) {
        REQUIRE((k == 0 || p.indices[k] > p.indices[k - 1]));
        ++counts[p.indices[k] / c.rows];
        recovered += std::ranges::binary_search(c.support, p.indices[k]);
        if (!naive) CHECK(p.values[k] == c.g[p.indices[k]]);  // re-gathered for what decode will give
      }
      for (uint64_t part = 0; part < c.parts; ++part) {
        if (p0)
          CHECK(counts[part] >= c.counts[part]);
        else
          CHECK(counts[part] == c.counts[part]);
        if (!c.counts[part]) CHECK(counts[part] == 0);  // an empty segment has no filter, and no false positives
      }
      if (p0) CHECK(recovered == c.support.size());
      if (index.ends_with("p2)")) CHECK(recovered > c.support.size() * 97 / 100);
      const floats dense = client::decode(context, frame, c.g.size());
      floats again(c.g.size());
      for (size_t k = 0; k < p.indices.size(); ++k) again[p.indices[k]] = p.values[k];
      CHECK(client::same_bits(dense, again));
    }
}

TEST_CASE("bloom in segments: a segment is coded as a tensor of its rows is") {
  const clustered c;
  client::context context;
  for (const char* policy : {"leftmost", "middle", "rightmost", "p0", "p2"}) {  // p1 draws from a key of the segment
    const std::string index = std::string("index=bloom(fpr=0.02,policy=") + policy + ")";
    CAPTURE(index);
    const floats whole = client::decode(
        context, abi::encode_segmented(context, c.topr() + index, {client::dense(c.g)}, in_segments(c.rows)),
        c.g.size());
    for (uint64_t k = 0; k < c.parts; ++k) {
      if (!c.counts[k]) continue;
      const floats part(c.part(k).begin(), c.part(k).end());
      const std::string text = "sparsify=topr(count=" + std::to_string(c.counts[k]) + ") " + index;
      const floats alone = client::decode(context, client::encode(context, text, {client::dense(part)}), c.rows);
      CHECK(client::same_bits(alone, floats(whole.begin() + static_cast<ptrdiff_t>(k * c.rows),
                                            whole.begin() + static_cast<ptrdiff_t>((k + 1) * c.rows))));
    }
  }
}

TEST_CASE("bloom in segments: the default rate is a tenth of the tensor's density, whatever a segment may hold") {
  const clustered c;  // 3200 and some are more than the 1000 rows of a segment
  client::context context;
  const std::string plan = c.topr() + "index=bloom(policy=p0)";
  const bytes whole = client::encode(context, plan, {client::dense(c.g)});
  const bytes parts = abi::encode_segmented(context, plan, {client::dense(c.g)}, in_segments(c.rows));
  const auto field = [](const bytes& frame, const char* name) {
    const std::string text = client::inspect(frame).plan;
    return std::stod(text.substr(text.find(name) + std::strlen(name)));
  };
  CHECK(field(whole, "k=") == field(parts, "k="));
  CHECK(field(whole, "c=") == doctest::Approx(field(parts, "c=")).epsilon(0.005));  // a segment's share is rounded up
}
