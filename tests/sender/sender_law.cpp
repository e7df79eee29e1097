// The law of a sender: plans, units, keys, weights; and what arrives.
#include "sender_world.hpp"

using namespace sending;

namespace {

std::string text_of(const world& w, size_t tensor) { return dr_plan_text(w.sent_tensor(tensor).plan); }

std::vector<float> ones(size_t n) { return std::vector<float>(n, 1.0f); }

std::string refusal(std::vector<tensor> tensors, settings how, dr_status expected = DR_E_ARGUMENT) {
  settings none = how;
  world w({}, {.ranks = 1});
  w.tensors = std::move(tensors);
  w.how = none;
  dr_status status = DR_OK;
  std::string error;
  const auto r = w.make(0, status, error);
  CHECK(status == expected);
  CHECK(r->sender == nullptr);
  return error;
}

}  // namespace

TEST_CASE("a tensor has the plan of the first line that matches its name, and is dense without one") {
  world w({{"a.weight", 5000}, {"a.bias", 5000}, {"b.weight", 5000}, {"c", 5000}},
          {.book = "a.*: index=all value=half\nb.*: sparsify=topr(ratio=0.01) index=golomb\na.bias: dense"});
  CHECK(text_of(w, 0).find("value=half") != std::string::npos);
  CHECK(text_of(w, 1).find("value=half") != std::string::npos);
  CHECK(text_of(w, 2).find("golomb") != std::string::npos);
  CHECK(text_of(w, 3).find("value=raw") != std::string::npos);
  w.set_random(1);
  REQUIRE(w.all_ok(0));
  CHECK(w.agree());
  const auto x = w.in(0, 3), y = w.in(1, 3), mean = w.out(0, 3);
  for (size_t i = 0; i < mean.size(); ++i) REQUIRE(mean[i] == 0.5f * x[i] + 0.5f * y[i]);
}

TEST_CASE("small tensors beside others have the same weight of the gradient") {
  world w(
      {{"large", 20000}, {"small", 10}},
      {.book = "*: sparsify=topr(ratio=0.01) feedback=residual(beta=0.5,gamma=0.5) index=golomb", .dense_below = 1000});
  for (size_t r = 0; r < 2; ++r) {
    w.set(r, 0, client::laplace(20000, r + 1));
    w.set(r, 1, ones(10));
  }
  REQUIRE(w.all_ok(0));
  for (const float x : w.out(0, 1)) CHECK(x == 0.5f);
}

TEST_CASE("tensors below dense_below travel exactly: by the plan none of a flat plan, else those of fewer than 1000") {
  const std::string topr = "*: sparsify=topr(ratio=0.01) index=golomb",
                    bits = "*: index=all value=uniform_quant(bits=4)";
  const std::vector<tensor> list{{"a", 999}, {"b", 1000}};
  const auto is_exact = [&](const settings& how, size_t i) {
    world w(list, how);
    const std::string text = text_of(w, i);
    return text.find("index=all") != std::string::npos && text.find("value=raw") != std::string::npos;
  };
  CHECK(!is_exact({.book = topr}, 0));
  CHECK(is_exact({.book = bits}, 0));
  CHECK(!is_exact({.book = bits}, 1));
  CHECK(is_exact({.book = topr, .dense_below = 1000}, 0));
  CHECK(!is_exact({.book = topr, .dense_below = 1000}, 1));
  CHECK(!is_exact({.book = bits, .dense_below = 0}, 0));
}

TEST_CASE("flat goes by the plan unless it is requested") {
  const auto is_flat = [](const std::string& plan, uint32_t flat) {
    world w({{"a", 5000}}, {.book = "*: " + plan, .flat = flat});
    return text_of(w, 0).find("bucket=flat") != std::string::npos;
  };
  const std::string topr = "sparsify=topr(ratio=0.01) index=golomb", bits = "index=all value=uniform_quant(bits=4)";
  CHECK(is_flat(topr, DR_FLAT_BY_PLAN));
  CHECK(is_flat("index=all value=half", DR_FLAT_BY_PLAN));
  CHECK(!is_flat(bits, DR_FLAT_BY_PLAN));
  CHECK(is_flat(bits, DR_FLAT));
  CHECK(!is_flat(topr, DR_NOT_FLAT));
}

TEST_CASE("random numbers go by names: the same tensor sends the same, at any position") {
  const std::string book = "*: index=all value=qsgd(levels=15)";
  world one({{"w", 3000}, {"v", 4000}}, {.book = book}),
      two({{"v", 4000}, {"w", 3000}}, {.book = book, .unit_bytes = 1});
  CHECK(one.sent_tensor(0).key == two.sent_tensor(1).key);
  CHECK(one.sent_tensor(0).key != one.sent_tensor(1).key);
  for (size_t r = 0; r < 2; ++r) {
    const auto w = client::laplace(3000, r + 1), v = client::laplace(4000, r + 5);
    one.set(r, 0, w), one.set(r, 1, v);
    two.set(r, 1, w), two.set(r, 0, v);
  }
  REQUIRE(one.all_ok(3));
  REQUIRE(two.all_ok(3));
  CHECK(one.out(0, 0) == two.out(0, 1));
  CHECK(one.out(0, 1) == two.out(0, 0));
}

TEST_CASE("units have one type and so many bytes, or one tensor") {
  world w({{"a", 1000}, {"b", 1000, DR_BF16}, {"c", 1000}, {"d", 5000}, {"e", 10}}, {.unit_bytes = 8000});
  std::vector<std::vector<uint32_t>> found;
  for (size_t u = 0; u < world::units(*w.ranks[0]); ++u) {
    const dr_unit_info info = w.unit(u);
    found.emplace_back(info.tensors, info.tensors + info.count);
  }
  CHECK(found == std::vector<std::vector<uint32_t>>{{0, 2}, {3}, {4}, {1}});
  CHECK(w.unit(1).bytes == 20000);
}

TEST_CASE("a mean of half types is rounded once") {
  world w({{"x", 4000, DR_BF16}}, {.book = "*: dense", .ranks = 3});
  w.set_random(4);
  REQUIRE(w.all_ok(0));
  CHECK(w.agree());
  const auto a = w.in(0, 0), b = w.in(1, 0), c = w.in(2, 0), out = w.out(0, 0);
  const float third = 1.0f / 3;
  for (size_t i = 0; i < out.size(); ++i) {
    const float sum = third * a[i] + third * b[i] + third * c[i];
    const uint16_t h = to_bf16(sum);
    REQUIRE(out[i] == number(reinterpret_cast<const uint8_t*>(&h), DR_BF16));
  }
}

TEST_CASE("outputs are f32 where that is requested, and sums in the place of means") {
  world w({{"x", 300, DR_BF16}, {"y", 300}}, {.book = "*: dense", .flags = DR_SENDER_F32 | DR_SENDER_SUM});
  w.set_random(4);
  REQUIRE(w.all_ok(0));
  for (size_t t = 0; t < 2; ++t) {
    const auto a = w.in(0, t), b = w.in(1, t), out = w.out(0, t);
    for (size_t i = 0; i < out.size(); ++i) REQUIRE(out[i] == a[i] + b[i]);
  }
}

TEST_CASE("votes are counted, not averaged") {
  world w({{"x", 2000}}, {.book = "*: index=all value=sign merge=vote", .ranks = 3});
  w.set_random(2);
  REQUIRE(w.all_ok(0));
  const auto a = w.in(0, 0), b = w.in(1, 0), c = w.in(2, 0), out = w.out(1, 0);
  for (size_t i = 0; i < out.size(); ++i) {
    const int votes = (a[i] < 0 ? -1 : 1) + (b[i] < 0 ? -1 : 1) + (c[i] < 0 ? -1 : 1);
    REQUIRE(out[i] == (votes < 0 ? -1.0f : 1.0f));
  }
}

TEST_CASE("a clip is of the norm of all tensors, also of those in other units") {
  const std::string book = "*: sparsify=topr(ratio=1) feedback=dgc(clip=1,momentum=0) index=golomb";
  for (const uint64_t unit_bytes : {UINT64_MAX, uint64_t{1}}) {
    CAPTURE(unit_bytes);
    world w({{"a", 2000}, {"b", 3000}}, {.book = book, .ranks = 1, .unit_bytes = unit_bytes});
    w.set(0, 0, std::vector<float>(2000, 0.3f));
    w.set(0, 1, std::vector<float>(3000, -0.4f));
    const double norm = std::sqrt(2000 * 0.09 + 3000 * 0.16);
    REQUIRE(w.all_ok(0));
    for (const float x : w.out(0, 0)) REQUIRE(std::abs(x - 0.3 / norm) < 1e-6);
    for (const float x : w.out(0, 1)) REQUIRE(std::abs(x + 0.4 / norm) < 1e-6);
    CHECK(w.in(0, 0)[0] == 0.3f);  // the gradient is as it was
    // In the next step it is checked again, in place.
    w.set(0, 0, std::vector<float>(2000, 0.001f));
    w.set(0, 1, std::vector<float>(3000, 0.002f));
    REQUIRE(w.all_ok(1));
    for (const float x : w.out(0, 0)) REQUIRE(std::abs(x - 0.001f) < 1e-6);
  }
}

TEST_CASE("what a sender does not support is refused, by name") {
  CHECK(refusal({{"w", 10}, {"w", 20}}, {}).find("'w' is another tensor's, too") != std::string::npos);
  CHECK(refusal({{"", 10}}, {}).find("tensor 0: has no name") != std::string::npos);
  CHECK(refusal({{"w", 10}}, {.book = "*: index=all value=raw exchange=ring"}, DR_E_UNSUPPORTED)
            .find("w: exchange=ring: ") == 0);
  CHECK(refusal({{"w", 10}}, {.book = "*: sparsify=changed value=planes"}, DR_E_UNSUPPORTED).find("makes patches") !=
        std::string::npos);
  CHECK(refusal({{"w", 10}}, {.book = "*: sparsify=visible"}, DR_E_UNSUPPORTED)
            .find("compares with the weights that the tensor is to move, and the sender has none") !=
        std::string::npos);
  const tensor weighed{.name = "w", .elements = 10, .base = ones(10)};
  CHECK(refusal({weighed}, {.book = "*: sparsify=visible", .flat = DR_FLAT}, DR_E_UNSUPPORTED)
            .find("takes no bucket=flat: each tensor has its own base") != std::string::npos);
  CHECK(refusal({{.name = "w", .elements = 10, .dtype = DR_F32, .base = ones(10), .base_shift = 1}}, {})
            .find("w: base is not aligned to its type") != std::string::npos);
  CHECK(refusal({{"a", 10}, {"b", 10}}, {.book = "a: sparsify=topr(ratio=0.1) feedback=dgc(clip=1)\nb: "
                                                 "sparsify=topr(ratio=0.1) feedback=dgc(clip=2)"})
            .find("a has clip=1, b clip=2") != std::string::npos);
  CHECK(refusal({{"w", 10}}, {.ranks = 3, .flags = DR_SENDER_SCATTER})
            .find("w: 10 elements are not shards for 3 ranks") != std::string::npos);
  CHECK(refusal({{"w", 10}}, {.flags = 1u << 20}, DR_E_UNSUPPORTED).find("unknown flags") != std::string::npos);
}

TEST_CASE("sparsify=visible sends what moves the weights in bf16, and its residual keeps the rest") {
  constexpr size_t n = 6000;
  std::vector<float> weights = client::laplace(n, 9), small = ones(10);
  for (const uint32_t flags : {0u, uint32_t{DR_SENDER_SCATTER}}) {
    // The base is read at each encode, and of shards at its own place. Small tensors travel exactly.
    world w({{.name = "w", .elements = n, .base = weights}, {.name = "small", .elements = 10, .base = small}},
            {.book = "*: sparsify=visible feedback=residual index=golomb(adaptive=1) value=raw", .flags = flags});
    std::vector<std::vector<float>> kept(2, std::vector<float>(n));
    for (uint64_t step = 0; step < 3; ++step) {
      std::vector<float> mean(n);
      size_t sent = 0;
      for (size_t r = 0; r < 2; ++r) {
        std::vector<float> move = client::laplace(n, 10 * step + r);
        for (float& x : move) x *= 0.003f;
        w.set(r, 0, move);
        w.set(r, 1, ones(10));
        for (size_t i = 0; i < n; ++i) {
          const float total = kept[r][i] + move[i], before = w.tensors[0].base[i];
          const bool seen = to_bf16(before - total) != to_bf16(before);
          sent += seen;
          mean[i] += 0.5f * (seen ? total : 0.0f);
          kept[r][i] = seen ? 0.0f : total;
        }
      }
      CHECK(sent > n / 4);
      CHECK(sent < 2 * n - n / 4);
      REQUIRE(w.all_ok(step));
      for (size_t r = 0; r < 2; ++r) {
        const size_t shard = flags ? n / 2 : n, first = flags ? r * shard : 0;
        CHECK(w.out(r, 0) == std::vector<float>(mean.begin() + static_cast<std::ptrdiff_t>(first),
                                                mean.begin() + static_cast<std::ptrdiff_t>(first + shard)));
        CHECK(w.residual(r, 0) == kept[r]);
        CHECK(w.out(r, 1) == std::vector<float>(flags ? 5 : 10, 1.0f));
      }
      for (size_t i = 0; i < n; ++i) w.tensors[0].base[i] -= mean[i];  // (all ranks have this base)
    }
  }
}

TEST_CASE("encode refuses a unit that the sender does not have") {
  world w({{"m", 5000}, {"x", 5000}}, {.book = "m: index=all value=half\n*: dense", .ranks = 1});
  client::bytes room(1 << 20);
  const dr_call c = world::call(0, 0);
  CHECK(dr_sender_encode(w.ranks[0]->sender, 0, &c, room.data(), room.size(), nullptr) == DR_OK);
  CHECK(dr_sender_encode(w.ranks[0]->sender, 1, &c, room.data(), room.size(), nullptr) == DR_E_ARGUMENT);
}

TEST_CASE("a slot of frames whose size is known has that size from the first step on") {
  world fixed({{"a", 5000}}, {.book = "*: index=all value=half"}), grows({{"a", 5000}}, {});
  CHECK(fixed.unit(0).slot == fixed.unit(0).bound);
  CHECK(grows.unit(0).slot == 64);
  for (uint64_t step = 0; step < 20; ++step) {
    fixed.set_random(step);
    grows.set_random(step);
    REQUIRE(fixed.all_ok(step));
    REQUIRE(grows.all_ok(step));
  }
  CHECK(fixed.rests == 0);
  CHECK(grows.rests >= 2);
  CHECK(grows.rests <= 12);
  CHECK(grows.unit(0).slot < grows.unit(0).bound);
}
