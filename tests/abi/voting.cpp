// merge=vote, and DR_DECODE_VOTE: the sign of the sum over frames.
#include "client.hpp"
#include "prepared.hpp"

namespace {

using client::bytes;
using client::floats;

float sign_of(float sum) { return sum != sum ? sum : sum < 0 ? -1.0f : 1.0f; }

struct voters {
  client::context c;
  std::vector<bytes> frames;
  std::vector<dr_bytes> list;
  std::vector<floats> gradients;
  size_t elements = 0;

  voters(size_t n, size_t ranks, const std::string& plan, uint32_t threads = 1) : c(threads), elements(n) {
    for (size_t r = 0; r < ranks; ++r) {
      floats g = client::laplace(n, r + 1, 1);
      for (size_t i = 0; i < n; i += 3) g[i] = r % 2 ? -1.0f : 1.0f;  // ties of an even number of ranks
      if (n > 7) g[7] = -0.0f;
      gradients.push_back(g);
      frames.push_back(client::encode(c, plan, {client::dense(gradients.back())}));
    }
    for (const bytes& f : frames) list.push_back({f.data(), f.size()});
  }
  floats expected(const float* weights = nullptr) const {
    floats sum(elements);
    for (size_t r = 0; r < gradients.size(); ++r)
      for (size_t i = 0; i < elements; ++i) sum[i] += (weights ? weights[r] : 1) * gradients[r][i];
    for (float& x : sum) x = sign_of(x);
    return sum;
  }
};

dr_decode_options voting(uint32_t more = 0) {
  dr_decode_options o{};
  o.struct_size = sizeof o;
  o.flags = DR_DECODE_VOTE | more;
  return o;
}

}  // namespace

TEST_CASE("vote: the sign of the sum, +1 where that is 0, for any size, weights and number of threads") {
  CHECK((dr_feature(DR_FEATURE_DECODE_FLAGS) & DR_DECODE_VOTE) != 0);
  for (const uint32_t threads : {1, 3})
    for (const size_t n : {1, 7, 100, 5000, 3000000})  // (the last is written past the caches)
      for (const size_t ranks : {1, 2, 5}) {
        if (n > 5000 && (threads == 1 || ranks != 2)) continue;
        voters v(n, ranks, "index=all value=raw", threads);
        const float weights[] = {0.5f, 2, 1, -1, 0.25f};
        for (const float* w : {static_cast<const float*>(nullptr), weights}) {
          floats out(n, -77);
          dr_tensor_out o = client::dense_out(out);
          const dr_decode_options options = voting();
          REQUIRE(dr_merge(v.c.handle, nullptr, v.list.data(), w, ranks, &options, &o, sizeof o, 1) == DR_OK);
          CHECK(client::same_bits(out, v.expected(w)));
        }
      }
}

TEST_CASE("vote: NaN stays, halves vote in their own type, sparse outputs among what was sent") {
  client::context c;
  const floats g = {NAN, -1e-8f, 0, 3, -INFINITY};
  const bytes frame = client::encode(c, "index=all value=raw", {client::dense(g)});
  const dr_bytes list[] = {{frame.data(), frame.size()}};
  const dr_decode_options options = voting();
  for (const uint32_t dtype : {DR_F16, DR_BF16}) {
    std::vector<uint16_t> out(5);
    floats none(5);
    dr_tensor_out o = client::dense_out(none);
    o.dtype = dtype;
    o.values = out.data();
    REQUIRE(dr_merge(c.handle, nullptr, list, nullptr, 1, &options, &o, sizeof o, 1) == DR_OK);
    const uint16_t one = dtype == DR_F16 ? 0x3c00 : 0x3f80;
    CHECK((out[0] & 0x7fff) > (dtype == DR_F16 ? 0x7c00 : 0x7f80));
    // (-1e-8 is -0 in f16: a tie.)
    CHECK(out[1] == (dtype == DR_F16 ? one : one | 0x8000));
    CHECK(out[2] == one);
    CHECK(out[3] == one);
    CHECK(out[4] == (one | 0x8000));
  }
  const floats h = {0, -2, 0, 5, 0};
  const bytes some = client::encode(c, "index=golomb value=raw", {client::dense(h)});
  const dr_bytes sparse[] = {{some.data(), some.size()}};
  floats values(5);
  uint32_t indices[5] = {};
  dr_tensor_out o = client::dense_out(values);
  o.index_dtype = DR_U32;
  o.indices = indices;
  o.capacity = 5;
  REQUIRE(dr_merge(c.handle, nullptr, sparse, nullptr, 1, &options, &o, sizeof o, 1) == DR_OK);
  REQUIRE(o.count == 2);
  CHECK((indices[0] == 1 && indices[1] == 3));
  CHECK((values[0] == -1 && values[1] == 1));
}

TEST_CASE("merge=vote: a prepared merge votes by its plans, tensor by tensor, and one that adds does not") {
  const std::string text = "index=all value=raw merge=vote";
  voters v(1000, 3, text);
  client::plan votes(text), adds("index=all value=raw");
  CHECK(std::string(dr_plan_text(votes.handle)) == "index=all value=raw merge=vote");
  CHECK(std::string(dr_plan_text(client::plan("index=all value=raw merge=mean").handle)) == "index=all value=raw");
  std::vector<dr_tensor> two = {client::dense(v.gradients[0]), client::dense(v.gradients[1])};
  two[1].plan = adds.handle;
  dr_batch* batch = nullptr;
  REQUIRE(dr_batch_create(v.c.handle, votes.handle, nullptr, two.data(), sizeof two[0], 2, 0, &batch) == DR_OK);
  size_t room = 0;
  REQUIRE(dr_batch_merge_workspace(batch, 2, &room, nullptr) == DR_OK);
  std::vector<uint64_t> memory(room / 8 + 16);
  void* const workspace = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  const bytes frame = [&] {
    bytes f(8000 + 10000);
    dr_result result{.struct_size = sizeof(dr_result)};
    dr_batch_info info{};
    info.struct_size = sizeof info;
    REQUIRE(dr_batch_describe(batch, &info, nullptr) == DR_OK);
    std::vector<uint64_t> own(info.workspace / 8 + 16);
    void* const at = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(own.data()) + 63) / 64 * 64);
    REQUIRE(dr_batch_encode(v.c.handle, batch, nullptr, nullptr, two.data(), sizeof two[0], 2, at, info.workspace,
                            f.data(), f.size(), &result) == DR_OK);
    f.resize(result.size);
    return f;
  }();
  const dr_bytes list[] = {{frame.data(), frame.size()}, {frame.data(), frame.size()}};
  const auto merge = [&](uint32_t flags, floats& x, floats& y) {
    dr_tensor_out outs[] = {client::dense_out(x), client::dense_out(y)};
    dr_decode_options o{};
    o.struct_size = sizeof o;
    o.flags = flags;
    return dr_batch_merge(v.c.handle, batch, nullptr, list, nullptr, 2, &o, outs, sizeof outs[0], 2, workspace, room,
                          nullptr);
  };
  floats x(1000, 5), y(1000, 5);
  REQUIRE(merge(0, x, y) == DR_OK);
  for (size_t i = 0; i < 1000; ++i) REQUIRE((x[i] == sign_of(v.gradients[0][i]) && y[i] == 2 * v.gradients[1][i]));
  REQUIRE(merge(DR_DECODE_VOTE, x, y) == DR_OK);
  for (size_t i = 0; i < 1000; ++i) REQUIRE(y[i] == sign_of(v.gradients[1][i]));
  x.assign(1000, 0), y.assign(1000, 0);
  REQUIRE(merge(DR_DECODE_ADD, x, y) == DR_OK);
  for (size_t i = 0; i < 1000; ++i) REQUIRE(x[i] == 2 * v.gradients[0][i]);
  CHECK(merge(DR_DECODE_ADD | DR_DECODE_VOTE, x, y) == DR_E_ARGUMENT);
  CHECK(v.c.error().find("DR_DECODE_VOTE does not go with DR_DECODE_ADD") != std::string::npos);
  dr_batch_destroy(batch);
}

TEST_CASE("vote: what makes no sense is refused with a sentence") {
  const struct {
    const char *plan, *word;
    dr_status status;
  } plans[] = {{"sparsify=topr(ratio=0.1) index=golomb merge=vote", "requires index=all", DR_E_ARGUMENT},
               {"index=auto merge=vote", "requires index=all", DR_E_ARGUMENT},
               {"index=all merge=vote exchange=ring", "exchange=ring", DR_E_UNSUPPORTED},
               {"index=all merge=vote exchange=hierarchy(inner=2)", "exchange=hierarchy", DR_E_UNSUPPORTED},
               {"index=all merge=most", "no merge is called 'most'; there are: mean, vote", DR_E_ARGUMENT}};
  for (const auto& each : plans) {
    dr_plan* p = nullptr;
    dr_error error{};
    error.struct_size = sizeof error;
    CHECK(dr_plan_parse(each.plan, &p, &error) == each.status);
    CHECK(std::string(error.message).find(each.word) != std::string::npos);
  }
  voters v(100, 2, "index=all value=raw");
  floats out(100);
  dr_tensor_out o = client::dense_out(out);
  dr_place place{};
  place.struct_size = sizeof place;
  place.kind = DR_PLACE_EMULATED;
  const dr_decode_options options = voting();
  std::vector<std::vector<uint64_t>> aligned;
  std::vector<dr_bytes> list;
  for (const bytes& f : v.frames) {
    auto& words = aligned.emplace_back(f.size() / 8 + 3);
    auto* const at = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(words.data()) + 15) / 16 * 16);
    std::memcpy(at, f.data(), f.size());
    list.push_back({at, f.size()});
  }
  CHECK(dr_merge(v.c.handle, &place, list.data(), nullptr, 2, &options, &o, sizeof o, 1) == DR_E_UNSUPPORTED);
  CHECK(v.c.error().find("DR_DECODE_VOTE runs on the CPU only") != std::string::npos);
  place.flags = DR_PLACE_ALLOW_HOST;
  REQUIRE(dr_merge(v.c.handle, &place, list.data(), nullptr, 2, &options, &o, sizeof o, 1) == DR_OK);
  CHECK(client::same_bits(out, v.expected()));
}

TEST_CASE("vote: counts that the output's type would round are refused, and f32 has them exactly") {
  // In bf16 the sum stops at 256, and 290 votes against win over 300.
  client::context c;
  const floats yes = {1, 1, 1}, no = {-1, -1, -1};
  const bytes frames[] = {client::encode(c, "index=all value=sign", {client::dense(yes)}),
                          client::encode(c, "index=all value=sign", {client::dense(no)})};
  std::vector<dr_bytes> list;
  for (size_t i = 0; i < 590; ++i) list.push_back({frames[i >= 300].data(), frames[i >= 300].size()});
  const dr_decode_options options = voting();
  floats out(3);
  dr_tensor_out o = client::dense_out(out);
  REQUIRE(dr_merge(c.handle, nullptr, list.data(), nullptr, list.size(), &options, &o, sizeof o, 1) == DR_OK);
  CHECK(out == yes);
  out = {5, 5, 5};
  o.dtype = DR_BF16;
  CHECK(dr_merge(c.handle, nullptr, list.data(), nullptr, list.size(), &options, &o, sizeof o, 1) == DR_E_UNSUPPORTED);
  CHECK(c.error().find("590 votes exceed the 256") != std::string::npos);
  CHECK(out == floats{5, 5, 5});
  CHECK(dr_merge(c.handle, nullptr, list.data(), nullptr, 256, &options, &o, sizeof o, 1) == DR_OK);
}
