// sparsify=blocks: an index stands for a block of contiguous elements, with every codec, in every form of input and output.
#include <algorithm>
#include <map>
#include <set>

#include "client.hpp"
#include "prepared.hpp"

namespace {

using client::bytes;
using client::floats;

const char* const exact_indices[] = {
    "raw",         "golomb",        "golomb(adaptive=1)", "golomb(block=9)", "rice",
    "bitmap",      "rle",           "rle(code=packed)",   "elias_fano",      "delta_varint",
    "gap_huffman", "delta_bitpack", "delta_pfor",         "golomb+huffman",  "raw+deflate+zstd"};
const char* const replacing_indices[] = {
    "bloom(fpr=0.05)",          "bloom(policy=p0,fpr=0.02)", "bloom(policy=middle,fpr=0.1)", "bloom(policy=p1,fpr=0.1)",
    "bloom(policy=p2,fpr=0.1)", "seeded(ratio=0.1)",         "bloom(policy=p0,fpr=0.1)+zstd"};
const char* const values[] = {"raw",       "raw+huffman",     "qsgd",     "half",   "uniform_quant(error=0.05)",
                              "log_quant", "lloyd(levels=4)", "three_lc", "sketch", "rank_fit",
                              "fit_poly",  "fit_dexp"};
const uint32_t sizes[] = {2, 4, 8, 16, 32};

std::string size_text(uint32_t block) { return "block=" + (block ? std::to_string(block) : "auto"); }
std::string keep(const std::string& what, uint32_t block) {
  return "sparsify=blocks(" + what + ',' + size_text(block) + ')';
}

// The definition: energies in f32, halves added until one is left; the largest blocks, ties by lower index, none of energy 0.
std::vector<uint64_t> kept_of(const floats& g, uint32_t block, uint64_t target) {
  std::vector<std::pair<float, uint64_t>> energies;
  for (uint64_t first = 0; first < g.size(); first += block) {
    std::vector<float> t(block);
    for (uint64_t i = first; i < std::min<uint64_t>(g.size(), first + block); ++i) t[i - first] = g[i] * g[i];
    for (uint32_t half = block / 2; half; half /= 2)
      for (uint32_t i = 0; i < half; ++i) t[i] = t[i] + t[i + half];
    if (t[0] > 0) energies.emplace_back(t[0], first);
  }
  std::stable_sort(energies.begin(), energies.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  energies.resize(std::min<uint64_t>(energies.size(), target));
  std::vector<uint64_t> out;
  for (const auto& [energy, first] : energies)
    for (uint64_t i = first; i < std::min<uint64_t>(g.size(), first + block); ++i) out.push_back(i);
  std::sort(out.begin(), out.end());
  return out;
}

uint64_t target_of(uint64_t d, double ratio, uint32_t block) {
  return std::min((d + block - 1) / block,
                  std::max<uint64_t>(1, static_cast<uint64_t>(ratio * static_cast<double>(d) / block + 1e-9)));
}

floats at(const floats& g, const std::vector<uint64_t>& positions) {
  floats out;
  for (const uint64_t i : positions) out.push_back(g[i]);
  return out;
}

floats scattered(const client::pairs& p, size_t d) {
  floats out(d);
  for (size_t i = 0; i < p.indices.size(); ++i) out[p.indices[i]] = p.values[i];
  return out;
}

bool whole_blocks(const std::vector<uint64_t>& support, uint64_t d, uint32_t block) {
  for (size_t i = 0; i < support.size();) {
    const uint64_t n = std::min<uint64_t>(block, d - support[i]);
    if (support[i] % block || i + n > support.size() || support[i + n - 1] != support[i] + n - 1) return false;
    i += n;
  }
  return true;
}

// The size of blocks that a frame has.
uint32_t block_of(const bytes& frame) {
  const std::string plan = client::inspect(frame).plan, word = "block(log2_size=";
  const size_t at = plan.find(word);
  return at == std::string::npos ? 1 : 1u << (plan[at + word.size()] - '0');
}

}  // namespace

TEST_CASE("blocks of every size go with every index and every value codec, the last one short or not") {
  client::context c;
  const std::set<std::string> exact{"raw", "raw+huffman"};
  for (const uint64_t d : {4096, 1003, 33, 5})
    for (const uint32_t block : sizes) {
      floats g = client::laplace(d, d + block);
      g.back() = 0.5f;  // so that the last block is selected
      const auto kept = kept_of(g, block, target_of(d, 0.2, block));
      std::map<std::string, floats> first;  // of a value codec, whatever the index codec
      for (const char* index : exact_indices)
        for (const std::string value : values) {
          const std::string text = keep("ratio=0.2", block) + " index=" + index + " value=" + value;
          INFO(text << ", " << d << " elements");
          const bytes frame = client::encode(c, text, {client::dense(g)});
          const dr_tensor_info info = client::inspect(frame);
          CHECK(info.count == kept.size());
          const client::pairs got = client::decode_sparse(c, frame);
          if (info.fallback != DR_FALLBACK_DENSE) {
            CHECK(block_of(frame) == block);
            CHECK(got.indices == kept);
          }
          CHECK(client::same_bits(client::decode(c, frame, d), scattered(got, d)));
          if (exact.count(value) && info.fallback != DR_FALLBACK_DENSE)
            CHECK(client::same_bits(got.values, at(g, kept)));
          if (info.fallback == DR_FALLBACK_DENSE) continue;
          const auto [same, fresh] = first.emplace(value, got.values);
          if (!fresh) CHECK(client::same_bits(same->second, got.values));
        }
    }
}

TEST_CASE("an index codec that replaces the support replaces blocks, and values are those at their elements") {
  client::context c;
  for (const uint64_t d : {20000, 5003})
    for (const uint32_t block : {2u, 8u, 32u, 0u}) {
      const floats g = client::laplace(d, d);
      for (const char* index : replacing_indices)
        for (const char* value : {"raw", "qsgd", "fit_poly"}) {
          const std::string text = keep("ratio=0.05", block) + " index=" + index + " value=" + value;
          INFO(text << ", " << d << " elements");
          const bytes frame = client::encode(c, text, {client::dense(g)});
          const dr_tensor_info info = client::inspect(frame);
          REQUIRE(info.fallback == DR_FALLBACK_NONE);
          const client::pairs got = client::decode_sparse(c, frame);
          CHECK(whole_blocks(got.indices, d, block_of(frame)));
          CHECK(client::same_bits(client::decode(c, frame, d), scattered(got, d)));
          if (std::string(value) == "raw") CHECK(client::same_bits(got.values, at(g, got.indices)));
          const std::string name = index;
          if (block && name.starts_with("bloom(policy=p0")) {  // all blocks that went in are there
            const auto kept = kept_of(g, block, target_of(d, 0.05, block));
            CHECK(std::includes(got.indices.begin(), got.indices.end(), kept.begin(), kept.end()));
          }
        }
    }
  // More positives than there is room for: the elements themselves.
  const floats g = client::laplace(20000, 1);
  const bytes frame =
      client::encode(c, keep("ratio=0.05", 8) + " index=bloom(policy=p0,fpr=0.3,max_ratio=1e-5)", {client::dense(g)});
  CHECK(client::inspect(frame).fallback == DR_FALLBACK_RAW_INDEX);
  CHECK(client::decode_sparse(c, frame).indices == kept_of(g, 8, 125));
}

TEST_CASE("index=all sends everything, whatever blocks were selected") {
  client::context c;
  const floats g = client::laplace(1003, 4);
  for (const uint32_t block : {8u, 0u}) {
    const bytes frame = client::encode(c, keep("ratio=0.1", block) + " index=all value=raw", {client::dense(g)});
    CHECK(block_of(frame) == 1);
    CHECK(client::same_bits(client::decode(c, frame, g.size()), g));
  }
}

TEST_CASE(
    "blocks are those of the tensor however it is cut into segments, and of a bucket those of the joined tensors") {
  client::context c, four(4);
  const floats g = client::laplace(70001, 5);
  for (const uint32_t block : {4u, 32u, 0u})
    for (const char* rest :
         {" index=golomb value=raw", " index=auto value=auto(error=0.1)", " index=bloom(fpr=0.01) value=log_quant"}) {
      const std::string text = keep("ratio=0.02", block) + rest;
      if (!block && text.find("bloom") != std::string::npos) continue;  // fields are of a segment
      INFO(text);
      const auto whole = client::decode_sparse(c, client::encode(c, text, {client::dense(g)}));
      for (const uint64_t rows : {1, 100, 777, 4096}) {
        dr_call call{};
        call.segment_rows = rows;
        if (rows < 100 && text.find("golomb") == std::string::npos) continue;
        const bytes frame = client::encode(c, text, {client::dense(g)}, call);
        CHECK(frame == client::encode(four, text, {client::dense(g)}, call));
        const auto got = client::decode_sparse(c, frame);
        if (text.find("bloom") == std::string::npos) CHECK(got.indices == whole.indices);
        if (text.find("value=raw") != std::string::npos) CHECK(client::same_bits(got.values, whole.values));
        CHECK(client::same_bits(client::decode(four, frame, g.size()), scattered(got, g.size())));
      }
    }
  // Tensors of 1, 0, 30, 2999 … elements: blocks lie across them.
  std::vector<floats> parts;
  for (size_t first = 0, n = 1; first < g.size(); first += n, n = (n * 31 + 7) % 3001)
    parts.emplace_back(g.begin() + static_cast<ptrdiff_t>(first),
                       g.begin() + static_cast<ptrdiff_t>(std::min(g.size(), first + n)));
  std::vector<dr_tensor> tensors;
  for (const floats& part : parts) tensors.push_back(client::dense(part));
  for (const uint32_t block : {8u, 32u}) {
    const std::string text = keep("ratio=0.02", block) + " index=golomb value=raw";
    const bytes flat = client::encode(c, text + " bucket=flat", tensors);
    CHECK(client::same_bits(client::decode(c, flat, g.size()),
                            client::decode(c, client::encode(c, text, {client::dense(g)}), g.size())));
    std::vector<floats> back;
    std::vector<dr_tensor_out> outs;
    for (const floats& part : parts) back.emplace_back(part.size(), -1.0f);
    for (floats& part : back) outs.push_back(client::dense_out(part));
    REQUIRE(dr_decode(c.handle, nullptr, flat.data(), flat.size(), nullptr, outs.data(), sizeof outs[0], outs.size()) ==
            DR_OK);
    floats joined;
    for (const floats& part : back) joined.insert(joined.end(), part.begin(), part.end());
    CHECK(client::same_bits(joined, client::decode(c, flat, g.size())));
  }
}

TEST_CASE("with feedback what was sent and what stays are what there was") {
  client::context c;
  for (const uint32_t block : {2u, 8u, 32u, 0u})
    for (const char* rest :
         {" index=golomb value=raw", " index=bitmap value=log_quant", " index=golomb value=fit_poly",
          " index=bloom(fpr=0.02) value=raw", " index=auto value=auto(error=0.05)", " index=all value=qsgd"})
      for (const bool flat : {false, true}) {
        const std::string text = keep("ratio=0.05", block) + " feedback=residual" + rest + (flat ? " bucket=flat" : "");
        INFO(text);
        const uint64_t d = 9003;
        floats want(d);  // gradients so far, less what was sent
        std::vector<uint64_t> state(d / 2 + 4);
        for (uint64_t step = 0; step < 4; ++step) {
          const floats g = client::laplace(d, 100 + step);
          dr_tensor t = client::dense(g);
          t.state = state.data();
          REQUIRE(dr_state_size(client::plan(text).handle, &t, &t.state_size, nullptr) == DR_OK);
          const floats sent = client::decode(c, client::encode(c, text, {t}), d);
          const auto* const rest_of = reinterpret_cast<const float*>(state.data()) + t.state_size / 4 - d;
          bool same = true;
          for (size_t i = 0; i < d; ++i) {
            want[i] = want[i] + g[i] - sent[i];
            same = same && rest_of[i] == want[i];
          }
          CHECK(same);
        }
      }
}

TEST_CASE("frames of blocks of different sizes are merged, dense and as a union") {
  client::context c;
  const uint64_t d = 3003;
  std::vector<bytes> frames;
  std::vector<double> sum(d);
  std::set<uint64_t> support;
  for (const uint32_t block : {1u, 2u, 8u, 32u, 0u}) {
    floats g = client::laplace(d, block + 7);
    for (float& x : g) x = std::round(x * 4096);  // integers: sums are exact
    frames.push_back(client::encode(c, keep("ratio=0.1", block) + " index=golomb value=raw", {client::dense(g)}));
    const auto got = client::decode_sparse(c, frames.back());
    for (size_t i = 0; i < got.indices.size(); ++i) sum[got.indices[i]] += double{got.values[i]};
    support.insert(got.indices.begin(), got.indices.end());
  }
  std::vector<dr_bytes> list;
  for (const bytes& frame : frames) list.push_back({frame.data(), frame.size()});
  floats dense(d, -1);
  dr_tensor_out out = client::dense_out(dense);
  REQUIRE(dr_merge(c.handle, nullptr, list.data(), nullptr, list.size(), nullptr, &out, sizeof out, 1) == DR_OK);
  for (size_t i = 0; i < d; ++i) REQUIRE(double{dense[i]} == sum[i]);
  std::vector<uint32_t> indices(d);
  floats merged(d);
  out = client::dense_out(merged);
  out.index_dtype = DR_U32;
  out.indices = indices.data();
  out.capacity = d;
  REQUIRE(dr_merge(c.handle, nullptr, list.data(), nullptr, list.size(), nullptr, &out, sizeof out, 1) == DR_OK);
  indices.resize(out.count);
  CHECK(std::equal(indices.begin(), indices.end(), support.begin(), support.end()));
  for (size_t i = 0; i < indices.size(); ++i) REQUIRE(double{merged[i]} == sum[indices[i]]);
}

TEST_CASE("block=auto takes the size that the data suit, tensor by tensor, and auto chooses codecs beside it") {
  client::context c;
  const uint64_t d = 64000;
  floats strewn(d), rows(d);
  for (uint64_t i = 0; i < d; ++i) {
    client::rng r{i};
    strewn[i] = r.uniform() < 0.02 ? r.laplace(1) : r.laplace(1e-6);
    rows[i] = client::rng{i / 32 * 977}.uniform() < 0.02 ? r.laplace(1) : r.laplace(1e-6);
  }
  const std::string text = "sparsify=blocks(ratio=0.01) index=auto value=auto(error=0.1)";
  const bytes of_strewn = client::encode(c, text, {client::dense(strewn)}),
              of_rows = client::encode(c, text, {client::dense(rows)});
  CHECK(block_of(of_strewn) == 1);
  CHECK(block_of(of_rows) == 32);
  const bytes both = client::encode(c, text, {client::dense(strewn), client::dense(rows)});
  std::vector<floats> back{floats(d), floats(d)};
  dr_tensor_out outs[] = {client::dense_out(back[0]), client::dense_out(back[1])};
  REQUIRE(dr_decode(c.handle, nullptr, both.data(), both.size(), nullptr, outs, sizeof outs[0], 2) == DR_OK);
  CHECK(client::same_bits(back[0], client::decode(c, of_strewn, d)));
  CHECK(client::same_bits(back[1], client::decode(c, of_rows, d)));
  // index=auto writes the shortest of its codecs' frames.
  for (const uint32_t block : sizes) {
    const std::string plan = keep("ratio=0.03", block) + " value=raw index=";
    size_t least = ~size_t{0};
    for (const char* index : {"golomb", "golomb(adaptive=1)", "bitmap", "rle", "gap_huffman"})
      least = std::min(least, client::encode(c, plan + index, {client::dense(rows)}).size());
    CHECK(client::encode(c, plan + "auto", {client::dense(rows)}).size() == least);
  }
}

TEST_CASE("blocks of f16 and bf16 are those of the numbers") {
  client::context c;
  for (const uint32_t dtype : {DR_F16, DR_BF16})
    for (const uint32_t block : {4u, 32u, 0u}) {
      std::vector<uint16_t> bits(5003);
      floats numbers;
      client::rng r{dtype};
      for (uint16_t& b : bits) {
        // Of one exponent of f16 or bf16 or another near it, any mantissa.
        b = static_cast<uint16_t>(dtype == DR_F16 ? (r.next() & 0x8fff) | 0x3000 : (r.next() & 0x83ff) | 0x3c00);
        const int exponent = dtype == DR_F16 ? (b >> 10 & 31) - 15 - 10 : (b >> 7 & 255) - 127 - 7;
        const int mantissa = dtype == DR_F16 ? (b & 1023) | 1024 : (b & 127) | 128;
        numbers.push_back((b >> 15 ? -1.0f : 1.0f) * std::ldexp(static_cast<float>(mantissa), exponent));
      }
      dr_tensor t = client::dense(numbers);
      t.dtype = dtype;
      t.values = bits.data();
      const bytes frame = client::encode(c, keep("ratio=0.1", block) + " index=golomb value=raw", {t});
      const auto got = client::decode_sparse(c, frame);  // as f32
      CHECK(client::same_bits(got.values, at(numbers, got.indices)));
      CHECK(whole_blocks(got.indices, bits.size(), block_of(frame)));
      if (block) CHECK(got.indices == kept_of(numbers, block, target_of(bits.size(), 0.1, block)));
    }
}

TEST_CASE("a frame of blocks fits its bound, and a prepared batch decodes it in its workspace") {
  client::context c;
  for (const uint32_t block : {2u, 32u, 0u})
    for (const char* rest : {"golomb value=raw", "auto value=auto(error=0.01)", "raw value=fit_poly",
                             "bloom(policy=p0,fpr=0.01) value=qsgd", "gap_huffman+zstd value=raw"})
      for (const uint64_t d : {1, 31, 5003, 60000}) {
        const std::string text = keep("ratio=0.3", block) + " index=" + rest;
        INFO(text << ", " << d << " elements");
        const floats g = client::laplace(d, d);
        const dr_tensor t = client::dense(g);
        const client::plan plan(text);
        abi::batch batch;
        const dr_status made = dr_batch_create(c.handle, plan.handle, nullptr, &t, sizeof t, 1, 0, &batch.handle);
        INFO(c.error());
        if (made == DR_E_ARGUMENT && text.find("bloom") != std::string::npos) continue;
        REQUIRE(made == DR_OK);
        const dr_batch_info info = abi::describe(batch);
        const abi::aligned_bytes frame(info.bound), room(info.workspace);
        dr_result result{.struct_size = sizeof(dr_result)};
        REQUIRE(dr_batch_encode(c.handle, batch.handle, nullptr, nullptr, &t, sizeof t, 1, room.data, info.workspace,
                                frame.data, info.bound, &result) == DR_OK);
        const bytes copy(frame.data, frame.data + result.size);
        CHECK(copy == client::encode(c, text, {t}));
      }
}

TEST_CASE("blocks refuse what they are not for, in words") {
  client::context c;
  const auto refused = [](const std::string& text) {
    dr_plan* plan = nullptr;
    dr_error error{sizeof(dr_error)};
    CHECK(dr_plan_parse(text.c_str(), &plan, &error) == DR_E_ARGUMENT);
    return std::string(error.message);
  };
  CHECK(refused("index=block") == "plan: block cannot be named: a sparsifier of blocks adds it");
  CHECK(refused("index=nothing").find(" block") == std::string::npos);
  CHECK(refused("sparsify=blocks(ratio=0.1) index=golomb+zstd+zstd+zstd+zstd") ==
        "plan: index= has 5 codecs; with blocks at most 4");
  CHECK(refused("sparsify=blocks(ratio=0.1,block=3)") == "plan: blocks(block=3): not one of 1|2|4|8|16|32|auto");
  const std::vector<uint32_t> indices{3, 4, 5};
  const floats g(3, 1.0f), d = client::laplace(1000, 1);
  bytes frame;
  CHECK(client::try_encode(c, keep("ratio=0.1", 8), {client::sparse(indices, g, 100)}, frame) == DR_E_UNSUPPORTED);
  CHECK(c.error() == "tensor 0: blocks requires dense tensors: a sparse tensor has no blocks");
  // With feedback it is dense.
  std::vector<uint64_t> state(60);
  dr_tensor t = client::sparse(indices, g, 100);
  t.state = state.data();
  t.state_size = 16 + 400;
  frame = client::encode(c, keep("ratio=0.1", 8) + " feedback=residual index=golomb", {t});
  CHECK(client::decode_sparse(c, frame).indices == std::vector<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7});
  // A GPU leaves them to the CPU, if it may.
  dr_place place{};
  place.struct_size = sizeof place;
  place.kind = DR_PLACE_EMULATED;
  const client::plan plan("sparsify=blocks(ratio=0.1) index=golomb"), sized(keep("ratio=0.1", 8) + " index=golomb");
  const dr_tensor dense = client::dense(d);
  size_t bound = 0;
  CHECK(dr_bound(c.handle, plan.handle, nullptr, &place, &dense, sizeof dense, 1, &bound) == DR_E_UNSUPPORTED);
  CHECK(c.error() ==
        "tensor 0: blocks(block=auto) runs on the CPU only, block=1 to 32 on CUDA, too; DR_PLACE_ALLOW_HOST "
        "runs it there, with copies and a wait");
  CHECK(dr_bound(c.handle, sized.handle, nullptr, &place, &dense, sizeof dense, 1, &bound) == DR_OK);
  frame = client::encode(c, keep("ratio=0.1", 8) + " index=bloom(fpr=0.01)", {dense});
  floats back(d.size());
  dr_tensor_out out = client::dense_out(back);
  CHECK(dr_decode(c.handle, &place, frame.data(), frame.size(), nullptr, &out, sizeof out, 1) == DR_E_UNSUPPORTED);
  CHECK(c.error() ==
        "frame: bloom of blocks runs on the CPU only; DR_PLACE_ALLOW_HOST decodes it there, with copies and a wait");
  place.flags = DR_PLACE_ALLOW_HOST;
  const dr_status s = dr_decode(c.handle, &place, frame.data(), frame.size(), nullptr, &out, sizeof out, 1);
  INFO(c.error());
  CHECK(s == DR_OK);
  CHECK(client::same_bits(back, client::decode(c, frame, d.size())));
  CHECK(client::inspect(frame).host_only);
}
