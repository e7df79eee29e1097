// Every index codec with every value codec, through the C ABI: no codec knows its sibling, and the receiver sees one tensor.
#include "properties/coupling.hpp"

namespace dr::properties {
namespace {

// The values for a support: of the gradient there, or (without re-gathering) the selected ones in order, then zeros.
bytes sent(const gradient& g, const rows& kept, const std::vector<uint32_t>& support, bool regather) {
  bytes out(support.size() * g.row_size());
  if (!regather) {
    std::copy_n(kept.values.begin(), std::min(kept.values.size(), out.size()), out.begin());
    return out;
  }
  const bytes all = g.sparse ? kept.scattered(g) : g.values;
  for (size_t i = 0; i < support.size(); ++i)
    std::copy_n(&all[support[i] * g.row_size()], g.row_size(), &out[i * g.row_size()]);
  return out;
}

void check_tensor(const pair_plan& plan, const gradient& g, const rows& kept, const dr_tensor_info& info,
                  const bytes& dense, const rows& got) {
  const bool same = dense == got.scattered(g);
  CHECK(same);
  CHECK(info.count == kept.indices.size());
  CHECK(info.support == got.indices.size());
  if (info.fallback == DR_FALLBACK_DENSE) {
    const bool exact = dense == kept.scattered(g);
    CHECK(exact);
    return;
  }
  const bool replaced = plan.index_has(DR_REPLACES_SUPPORT) && info.fallback == DR_FALLBACK_NONE;
  const bool same_support = got.indices == kept.indices;
  if (!replaced) CHECK(same_support);
  const bytes expected = sent(g, kept, got.indices, plan.regather || !replaced);
  const bool same_values = got.values == expected;
  if (plan.value_has(DR_EXACT)) CHECK(same_values);
  // A lossy codec at its defaults: near, so each value is with its index.
  // (But for sign, which sends no magnitude, and ternary, which draws; their cases judge them.)
  const bool by_default = plan.value.find('(') == std::string::npos && !plan.value.starts_with("sign") &&
                          !plan.value.starts_with("ternary");
  // Three levels, powers of two by chance, an absolute error, and equally full buckets of a support that most values of
  // are small, are coarse: better than nothing.
  const bool coarse = plan.value.starts_with("three_lc") || plan.value.starts_with("natural") ||
                      plan.value.starts_with("inceptionn") ||
                      (plan.value.starts_with("sketch") && plan.index_has(DR_REPLACES_SUPPORT));
  const auto wanted = cases::numbers(g.dtype, expected), seen = cases::numbers(g.dtype, got.values);
  const bool something = std::any_of(wanted.begin(), wanted.end(), [](double v) { return v != 0; });
  if (by_default && something && info.count >= 100) CHECK(cases::squared_error(wanted, seen) < (coarse ? 1 : 0.1));
}

void check_batch(client::context& c, const pair_plan& plan, const std::string& sparsify,
                 std::span<const gradient> batch, std::span<const rows> kept) {
  INFO(plan.text(sparsify));
  const bytes frame = client::encode(c, plan.text(sparsify), views(batch));
  const frame_facts facts = inspect(frame, batch.size());
  receiver as_dense(batch), as_sparse(batch);
  REQUIRE(as_dense.decode(c, frame, 0) == DR_OK);
  REQUIRE(as_sparse.decode(c, frame, DR_U32) == DR_OK);
  CHECK(as_sparse.in_range());
  for (size_t i = 0; i < batch.size(); ++i) {
    INFO("tensor " << i);
    check_tensor(plan, batch[i], kept[i], facts.tensors[i], as_dense.dense(i), as_sparse.sparse(i));
  }
}

TEST_CASE("every pair decodes to one tensor, dense or sparse, with the values that the plan sends") {
  client::context c;
  cases::random_source random("pairs");
  for (const uint64_t universe : {36864, 1000, 64}) {
    const gradient g = dense(random, universe, universe == 36864 ? DR_F32 : universe == 1000 ? DR_BF16 : DR_F16);
    const uint64_t count = universe == 36864 ? 368 : universe / 7;
    const rows kept = largest(g, count);
    for (const pair_plan& plan : pair_plans())
      check_batch(c, plan, "topr(count=" + std::to_string(count) + ")", {&g, 1}, {&kept, 1});
  }
}

// Three of the kinds that there are: one of the usual, one without rows, one whose rows are four values wide.
std::vector<gradient> three(cases::random_source& random) {
  return {sparse(random, 36864, random.subset(36864, 368)), without_rows(),
          sparse(random, 5000, random.subset(5000, 40), 4)};
}
std::vector<rows> kept_of(std::span<const gradient> batch) {
  std::vector<rows> out;
  for (const gradient& g : batch) out.push_back({g.indices, g.values});
  return out;
}

TEST_CASE("every pair takes a batch with an empty tensor and one of width 4, unless it reorders") {
  client::context c;
  cases::random_source random("batch");
  const auto batch = three(random);
  for (const pair_plan& plan : pair_plans()) {
    if (!plan.value_has(DR_REORDERS)) {
      check_batch(c, plan, "none", batch, kept_of(batch));
      continue;
    }
    bytes frame;
    CHECK(client::try_encode(c, plan.text(), views(batch), frame) == DR_E_ARGUMENT);
    check_batch(c, plan, "none", std::span(batch).first(2), kept_of(std::span(batch).first(2)));
  }
}

TEST_CASE("every support of the cases goes through in one batch") {
  client::context c;
  cases::random_source random("supports");
  for (const cases::codec_case& described : cases::all()) {
    if (described.role != DR_ROLE_INDEX || needs_base(described)) continue;
    std::vector<gradient> batch;
    for (const cases::input& in : described.inputs)
      if (in.count < in.universe && in.universe <= 70000)
        batch.push_back(sparse(random, in.universe, cases::words(in.elements)));
    for (const char* value : {"raw", "qsgd", "fit_poly"})
      check_batch(c, {described.name, value}, "none", batch, kept_of(batch));
  }
}

TEST_CASE("supports of the widest universes go through") {
  client::context c;
  cases::random_source random("wide supports");
  for (const cases::codec_case& described : cases::all())
    for (const cases::input& in : described.inputs) {
      if (described.role != DR_ROLE_INDEX || needs_base(described) || in.universe <= 70000) continue;
      INFO(std::string(described.name) << ": " << in.name);
      const gradient g = sparse(random, in.universe, cases::words(in.elements));
      const bytes frame = client::encode(c, "index=" + std::string(described.name), {g.view()});
      const client::pairs got = client::decode_sparse(c, frame);
      CHECK(std::ranges::equal(got.indices, g.indices));
      const bool same = std::memcmp(got.values.data(), g.values.data(), g.values.size()) == 0;
      CHECK(same);
    }
}

TEST_CASE(
    "seeded is Random-k: ranks of one seed and step send the same elements, of other steps others, each its own "
    "values") {
  client::context c;
  cases::random_source random("random-k");
  const gradient ranks[] = {dense(random, 36864), dense(random, 36864)};
  const auto support = [&](const gradient& g, uint64_t step, uint64_t private_seed) {
    dr_call call{};
    call.struct_size = sizeof call;
    call.step = step;
    call.private_seed = private_seed;
    const bytes frame = client::encode(c, "index=seeded(ratio=0.01) value=raw", views({&g, 1}), call);
    CHECK(frame.size() == 368 * 4 + 8 + inspect(frame, 1).overhead());
    receiver got({&g, 1});
    REQUIRE(got.decode(c, frame, DR_U32) == DR_OK);
    const rows sent = got.sparse(0);
    CHECK(sent.indices.size() == 368);
    for (size_t i = 0; i < sent.indices.size(); ++i)
      CHECK(cases::element(sent.values, 4, i) == cases::element(g.values, 4, sent.indices[i]));
    return sent.indices;
  };
  const auto first = support(ranks[0], 1, 1);
  CHECK(first == support(ranks[1], 1, 2));
  CHECK(first != support(ranks[0], 2, 1));
}

TEST_CASE("all sends a dense tensor: nothing for its indices, a code for each value") {
  client::context c;
  cases::random_source random("dense");
  const gradient g = dense(random, 36864);
  for (const char* sparsify : {"none", "topr(ratio=0.01)"}) {
    const bytes frame = client::encode(c, pair_plan{"all", "qsgd"}.text(sparsify), views({&g, 1}));
    const frame_facts facts = inspect(frame, 1);
    CHECK(facts.tensors[0].index_size == 0);
    CHECK(facts.tensors[0].support == 36864);
    CHECK(facts.tensors[0].value_size == 36864 + 4 * 36864 / 512);
    receiver got({&g, 1});
    REQUIRE(got.decode(c, frame, 0) == DR_OK);
    CHECK(cases::squared_error(cases::numbers(DR_F32, g.values), cases::numbers(DR_F32, got.dense(0))) < 0.01);
  }
}

TEST_CASE("naive keeps the values and shifts them to the filter's first positives") {
  client::context c;
  cases::random_source random("naive");
  const gradient g = dense(random, 36864);
  const rows kept = largest(g, 368);
  receiver out({&g, 1});
  REQUIRE(out.decode(c, client::encode(c, "sparsify=topr(count=368) index=bloom(policy=naive,fpr=0.01)", {g.view()}),
                     DR_U32) == DR_OK);
  const rows got = out.sparse(0);
  CHECK(got.values == kept.values);
  CHECK(got.indices.size() == kept.indices.size());
  CHECK(got.indices != kept.indices);  // 1 % of 36864 is as many again
}

TEST_CASE("a filter with more positives than max_ratio allows gives way to raw keys") {
  client::context c;
  cases::random_source random("raw fall-back");
  const gradient g = dense(random, 36864);
  const rows kept = largest(g, 368);
  for (const std::string& value : lists(DR_ROLE_VALUE))
    for (const bool regather : {true, false}) {
      const pair_plan plan{"bloom(policy=p0,fpr=0.3,max_ratio=1e-5)", value, regather};
      const bytes frame = client::encode(c, plan.text("topr(count=368)"), {g.view()});
      INFO(plan.text());
      CHECK(inspect(frame, 1).tensors[0].fallback == DR_FALLBACK_RAW_INDEX);
      CHECK(inspect(frame, 1).tensors[0].index_size == 4 * 368);
      check_batch(c, plan, "topr(count=368)", {&g, 1}, {&kept, 1});
    }
}

TEST_CASE("a tensor that would cost more than dense goes dense, bit for bit") {
  client::context c;
  cases::random_source random("dense fall-back");
  for (const uint32_t dtype : {DR_F32, DR_F16, DR_BF16}) {
    gradient g = dense(random, 777, dtype);
    g.values[g.row_size() * 5 - 1] = 0x80;  // a negative zero, or nearly
    for (const std::string& index :
         {std::string("raw"), std::string("golomb"), std::string("rice"), std::string("bloom(fpr=0.01)")}) {
      const bytes frame = client::encode(c, "index=" + index, {g.view()});
      CHECK(inspect(frame, 1).tensors[0].fallback == DR_FALLBACK_DENSE);
      receiver out({&g, 1});
      REQUIRE(out.decode(c, frame, 0) == DR_OK);
      const bool same = out.dense(0) == g.values;
      CHECK(same);
    }
  }
}

TEST_CASE("what lossy values cannot hold is refused, and reported to the ranks that wait") {
  client::context c;
  cases::random_source random("NaN");
  const auto finite = dense(random, 300);
  for (const uint32_t bad : {0x7fc00000u, 0x7f800000u, 0xff800000u})
    for (const std::string& value : lists(DR_ROLE_VALUE)) {
      gradient g = finite;
      std::memcpy(&g.values[4 * 123], &bad, 4);
      const pair_plan plan{"golomb", value};
      dr_call call{};
      call.flags = DR_CALL_STATUS_FRAME;
      bytes frame;
      INFO(plan.text());
      const bool lossy = plan.value_has(DR_NEEDS_FINITE);
      CHECK(client::try_encode(c, plan.text("topr(count=10)"), {g.view()}, frame, call) ==
            (lossy ? DR_E_ARGUMENT : DR_OK));
      receiver out({&g, 1});
      CHECK(out.decode(c, frame, 0) == (lossy ? DR_E_PEER : DR_OK));
    }
}

TEST_CASE("one thread and four yield the same frame") {
  client::context serial, four(4);
  cases::random_source random("threads");
  std::vector<gradient> batch;
  for (uint64_t i = 0; i < 7; ++i) batch.push_back(sparse(random, 3000 + i, random.subset(3000 + i, 10 + 107 * i)));
  for (const pair_plan& plan : pair_plans()) {
    const bytes one = client::encode(serial, plan.text(), views(batch));
    INFO(plan.text());
    const bool same = one == client::encode(four, plan.text(), views(batch)) &&
                      one == client::encode(serial, plan.text(), views(batch));
    CHECK(same);
    receiver a(batch), b(batch);
    REQUIRE(a.decode(serial, one, 0) == DR_OK);
    REQUIRE(b.decode(four, one, 0) == DR_OK);
    bool same_tensors = true;
    for (size_t i = 0; i < batch.size(); ++i) same_tensors = same_tensors && a.dense(i) == b.dense(i);
    CHECK(same_tensors);
  }
}

// ---- What a frame costs beside its payloads (FORMAT.md) --------------------------------------------------

TEST_CASE("a frame of one tensor costs at most 64 bytes beside the payload, and 32 for golomb with raw or qsgd") {
  client::context c;
  cases::random_source random("overhead");
  for (const uint64_t universe : {1, 64, 36864, 16777215}) {
    const gradient g = sparse(random, universe, random.subset(universe, std::min<uint64_t>(universe / 2 + 1, 368)));
    for (const pair_plan& plan : pair_plans()) {
      if (plan.index_has(DR_REPLACES_SUPPORT) && (universe > 36864 || universe == 1))
        continue;  // it asks every element
      const frame_facts facts = inspect(client::encode(c, plan.text(), {g.view()}), 1);
      INFO(plan.text() << ", universe " << universe);
      const bool short_form = plan.index == "golomb" && (plan.value == "raw" || plan.value == "qsgd");
      // (A filter has six wire fields, of up to five bytes each.)
      CHECK(facts.overhead() <= (short_form ? 32 : plan.index.starts_with("bloom") ? 72 : 64));
      CHECK((!short_form || facts.head.flags & DR_FRAME_SHORT));
    }
  }
}

TEST_CASE("each further tensor of a batch costs at most 24 bytes beside its payload") {
  client::context c;
  cases::random_source random("overhead of batches");
  for (const uint64_t universe : {64, 36864, 16777215})
    for (const std::string value : {"raw", "qsgd"}) {
      std::vector<gradient> batch;
      uint64_t before = 0;
      for (uint64_t n = 1; n <= 40; ++n) {
        batch.push_back(sparse(random, universe, random.subset(universe, std::min<uint64_t>(universe / 2, 100 * n))));
        const frame_facts facts = inspect(client::encode(c, "index=golomb value=" + value, views(batch)), n);
        INFO(n << " tensors of " << universe << ", " << value);
        CHECK(facts.overhead() <= 64 + 24 * (n - 1));
        if (n > 2) CHECK(facts.overhead() <= before + 24);
        before = facts.overhead();
      }
    }
}

}  // namespace
}  // namespace dr::properties
