// What frameworks hand over as sparse: four index types, any order, duplicates, and mistakes.
#include <algorithm>
#include <limits>

#include "client.hpp"
#include "kept_memory.hpp"

namespace {

using client::bytes;
using client::floats;

}  // namespace

TEST_CASE_TEMPLATE("sparse input in any order yields the frame of the sorted one", I, uint32_t, int32_t, uint64_t,
                   int64_t) {
  const std::vector<I> indices = {90, 3, 17, 0, 99};
  const std::vector<I> sorted = {0, 3, 17, 90, 99};
  const floats values = {1, 2, 3, 4, 5}, sorted_values = {4, 2, 3, 1, 5};
  client::context c;
  for (const char* text : {"index=golomb value=raw", "index=bloom(fpr=0.1,policy=p0) value=qsgd",
                           "sparsify=topr(count=3) index=rice value=fit_poly"}) {
    const bytes frame = client::encode(c, text, {client::sparse(indices, values, 100)});
    CHECK(frame == client::encode(c, text, {client::sparse(sorted, sorted_values, 100)}));
    CHECK(frame ==
          client::encode(c, text, {client::sparse(std::vector<uint64_t>{0, 3, 17, 90, 99}, sorted_values, 100)}));
  }
  const client::pairs p =
      client::decode_sparse(c, client::encode(c, "index=golomb", {client::sparse(indices, values, 100)}));
  CHECK(p.indices == std::vector<uint64_t>{0, 3, 17, 90, 99});
  CHECK(p.values == sorted_values);
}

TEST_CASE_TEMPLATE("a duplicate is refused, and the sentence names it and both places", I, uint32_t, int32_t, uint64_t,
                   int64_t) {
  const std::vector<I> indices = {50, 7, 12, 7};
  const floats values = {1, 2, 3, 4};
  client::context c;
  bytes frame;
  CHECK(client::try_encode(c, "index=golomb", {client::sparse(indices, values, 100)}, frame) == DR_E_ARGUMENT);
  INFO(c.error());
  CHECK(c.error().find("tensor 0") != std::string::npos);
  CHECK(c.error().find("index 7 occurs twice, at 1 and at 3") != std::string::npos);
  CHECK(dr_last_error(c.handle)->where == 3);
  CHECK(dr_last_error(c.handle)->tensor == 0);
}

TEST_CASE_TEMPLATE("DR_TENSOR_SUM_DUPLICATES adds them up in input order, in f32", I, uint32_t, int32_t, uint64_t,
                   int64_t) {
  const std::vector<I> indices = {7, 3, 7, 7, 3, 9};
  const floats values = {1e30f, 1, 5, -1e30f, 0.1f, 8};  // (1e30 + 5) - 1e30 = 0 in f32, 5 in any other order
  dr_tensor t = client::sparse(indices, values, 10);
  t.flags = DR_TENSOR_SUM_DUPLICATES;
  client::context c;
  const client::pairs p = client::decode_sparse(c, client::encode(c, "index=raw", {t}));
  CHECK(p.indices == std::vector<uint64_t>{3, 7, 9});
  CHECK(p.values == floats{1 + 0.1f, 0, 8});
}

TEST_CASE("with feedback a sum of duplicates is f32: what its type cannot hold remains in the residual") {
  const std::vector<uint32_t> twice = {3, 3};
  const auto sent_and_left = [&](uint32_t dtype, std::vector<uint16_t> values, int steps) {
    dr_tensor t{};
    t.struct_size = sizeof t;
    t.dtype = dtype;
    t.index_dtype = DR_U32;
    t.universe = 10;
    t.width = 1;
    t.count = 2;
    t.indices = twice.data();
    t.values = values.data();
    t.flags = DR_TENSOR_SUM_DUPLICATES;
    client::context c;
    abi::memory m("feedback=residual", t);
    m.give_to(t);
    double sent = 0;
    for (int step = 0; step < steps; ++step)
      sent += client::decode(c, client::encode(c, "index=raw feedback=residual", {t}), 10)[3];
    return std::pair{sent, double{m.residual()[3]}};
  };
  CHECK(sent_and_left(DR_F16, {0x7b53, 0x7b53}, 1) == std::pair{65504.0, 120000.0 - 65504});  // 60000 + 60000
  const auto [sent, left] = sent_and_left(DR_BF16, {0x4380, 0x3f80}, 10);                     // 256 + 1
  CHECK(sent + left == 2570);
}

TEST_CASE("rows that come twice are added up value by value") {
  const std::vector<int64_t> indices = {4, 1, 4};
  const floats values = {1, 2, 3, 4, 50, 60};
  dr_tensor t = client::sparse(indices, values, 5, 2);
  t.flags = DR_TENSOR_SUM_DUPLICATES;
  client::context c;
  const client::pairs p = client::decode_sparse(c, client::encode(c, "index=golomb", {t}));
  CHECK(p.indices == std::vector<uint64_t>{1, 4});
  CHECK(p.values == floats{3, 4, 51, 62});
}

TEST_CASE_TEMPLATE("an index that is not below the universe is refused by place and value", I, uint32_t, int32_t,
                   uint64_t, int64_t) {
  for (const I wrong : {I{100}, std::numeric_limits<I>::max()}) {
    const std::vector<I> indices = {5, 6, wrong, 7};
    client::context c;
    bytes frame;
    const floats values(4, 1);
    CHECK(client::try_encode(c, "index=golomb", {client::dense(values), client::sparse(indices, values, 100)}, frame) ==
          DR_E_ARGUMENT);
    INFO(c.error());
    CHECK(c.error().find("tensor 1: index 2: " + std::to_string(wrong) + " is not below") != std::string::npos);
    CHECK(c.error().find("100") != std::string::npos);
    CHECK(dr_last_error(c.handle)->where == 2);
    CHECK(dr_last_error(c.handle)->tensor == 1);
  }
}

TEST_CASE_TEMPLATE("a negative index is refused by place and value", I, int32_t, int64_t) {
  for (const I wrong : {I{-1}, std::numeric_limits<I>::min()}) {
    const std::vector<I> indices = {5, wrong};
    client::context c;
    bytes frame;
    const floats values(2, 1);
    CHECK(client::try_encode(c, "index=raw", {client::sparse(indices, values, 100)}, frame) == DR_E_ARGUMENT);
    CHECK(c.error().find("index 1: " + std::to_string(wrong) + " is negative") != std::string::npos);
    CHECK(dr_last_error(c.handle)->where == 1);
  }
}

TEST_CASE("no nonzero at all, and all of them, are sparse tensors like others") {
  client::context c;
  const floats none;
  const client::pairs p = client::decode_sparse(
      c, client::encode(c, "index=golomb value=qsgd", {client::sparse(std::vector<int64_t>{}, none, 1000)}));
  CHECK(p.indices.empty());
  std::vector<int64_t> all(50);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(49 - i);
  const floats values = client::laplace(50, 1);
  const floats back = client::decode(c, client::encode(c, "index=golomb", {client::sparse(all, values, 50)}), 50);
  CHECK(floats(back.rbegin(), back.rend()) == values);
}

TEST_CASE("index=all sends every element, of any input, in no bytes") {
  client::context c;
  const std::vector<uint64_t> indices = {7, 2, 5};
  const floats values = {1, 2, 3}, rows = {1, 2, 3, 4, 5, 6};
  for (const char* more : {"", " regather=off"}) {
    const bytes frame =
        client::encode(c, std::string("index=all value=raw+deflate") + more, {client::sparse(indices, values, 10)});
    CHECK(client::inspect(frame).support == 10);
    CHECK(client::inspect(frame).index_size == 0);
    CHECK(client::decode_sparse(c, frame).indices == std::vector<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  }
  CHECK(client::decode(c, client::encode(c, "index=all value=raw+deflate", {client::sparse(indices, values, 10)}),
                       10) == floats{0, 0, 2, 0, 0, 3, 0, 1, 0, 0});
  CHECK(client::decode(c, client::encode(c, "index=all value=raw+deflate", {client::sparse(indices, rows, 8, 2)}), 8,
                       2) == floats{0, 0, 0, 0, 3, 4, 0, 0, 0, 0, 5, 6, 0, 0, 1, 2});
  // Dropped values are sent, too; values of a codec that reorders are at their indices; the error names the NaN itself.
  floats g = client::laplace(3000, 1);
  CHECK(client::same_bits(
      client::decode(c, client::encode(c, "sparsify=topr(ratio=0.1) index=all value=raw+deflate", {client::dense(g)}),
                     g.size()),
      g));
  const floats fitted = client::decode(c, client::encode(c, "index=all value=fit_poly", {client::dense(g)}), g.size());
  double rest = 0, norm = 0;
  for (size_t i = 0; i < g.size(); ++i) rest += (g[i] - fitted[i]) * (g[i] - fitted[i]), norm += g[i] * g[i];
  CHECK(rest < 0.01 * norm);
  g[1234] = NAN;
  bytes frame;
  CHECK(client::try_encode(c, "index=all value=qsgd", {client::dense(g)}, frame) == DR_E_ARGUMENT);
  CHECK(c.error().find("at 1234") != std::string::npos);
}

TEST_CASE("explicit zeros of a sparse tensor are kept by sparsify=none and dropped by topr") {
  const std::vector<uint64_t> indices = {1, 2, 3};
  const floats values = {0, 5, -0.0f};
  client::context c;
  CHECK(client::decode_sparse(c, client::encode(c, "index=raw", {client::sparse(indices, values, 10)})).indices ==
        indices);
  CHECK(client::decode_sparse(
            c, client::encode(c, "sparsify=topr(count=3) index=raw", {client::sparse(indices, values, 10)}))
            .indices == std::vector<uint64_t>{2});
}

TEST_CASE(
    "random keeps the same positions on every rank, others at another step, and zeros; of a sparse tensor what it has "
    "of them") {
  client::context c;
  const std::string text = "sparsify=random(count=100) index=raw";
  const auto kept = [&](const floats& values, uint64_t step, uint64_t private_seed) {
    dr_call call{};
    call.step = step;
    call.private_seed = private_seed;
    return client::decode_sparse(c, client::encode(c, text, {client::dense(values)}, call));
  };
  floats g = client::laplace(1000, 1);
  std::fill(g.begin(), g.begin() + 500, 0.0f);
  const client::pairs one = kept(g, 3, 1), other = kept(client::laplace(1000, 2), 3, 2);
  CHECK(one.indices.size() == 100);
  CHECK(one.indices == other.indices);
  CHECK(one.indices != kept(g, 4, 1).indices);
  CHECK(std::count(one.values.begin(), one.values.end(), 0.0f) > 20);
  for (size_t k = 0; k < 100; ++k) CHECK(one.values[k] == g[one.indices[k]]);

  std::vector<uint64_t> present, expected;
  floats values;
  for (uint64_t i = 0; i < 1000; i += 3) {
    present.push_back(i);
    values.push_back(static_cast<float>(i));
    if (std::binary_search(one.indices.begin(), one.indices.end(), i)) expected.push_back(i);
  }
  dr_call call{};
  call.step = 3;
  const client::pairs sparse =
      client::decode_sparse(c, client::encode(c, text, {client::sparse(present, values, 1000)}, call));
  CHECK(sparse.indices == expected);
  for (size_t k = 0; k < expected.size(); ++k) CHECK(sparse.values[k] == static_cast<float>(expected[k]));
}

TEST_CASE("random and dgc: what a tensor of any size keeps, in the bound's room") {
  client::context c(2);
  for (const char* text :
       {"sparsify=random(ratio=0.01) index=golomb value=qsgd", "sparsify=random(ratio=0.9) index=rice",
        "sparsify=random(count=5000) index=golomb", "sparsify=dgc(ratio=0.01) index=golomb value=qsgd",
        "sparsify=dgc(ratio=0.9) index=golomb", "sparsify=dgc(ratio=1) index=golomb"})
    for (const uint64_t d : {0, 1, 2, 63, 64, 65, 1000, 5000, 100000}) {
      const floats g = client::laplace(d, d);
      const bytes frame = client::encode(c, text, {client::dense(g)});
      const uint64_t count = client::inspect(frame).count;
      CAPTURE(std::string(text));
      CAPTURE(d);
      CHECK(count <= d);
      CHECK((d == 0 || count > 0));
      CHECK(client::decode(c, frame, d).size() == d);
    }
}

TEST_CASE("unaligned memory and unknown types and flags are refused in words") {
  client::context c;
  alignas(8) unsigned char memory[64] = {};
  const floats values(4, 1);
  const std::vector<uint64_t> indices = {1, 2, 3, 4};
  const auto refused = [&](auto change, const char* word) {
    dr_tensor t = client::sparse(indices, values, 10);
    change(t);
    bytes frame(1000);
    client::plan p("index=raw");
    CHECK(dr_encode(c.handle, p.handle, nullptr, nullptr, &t, sizeof t, 1, frame.data(), frame.size(), nullptr) ==
          (t.flags ? DR_E_UNSUPPORTED : DR_E_ARGUMENT));
    INFO(c.error());
    CHECK(c.error().find(word) != std::string::npos);
  };
  refused([&](dr_tensor& t) { t.values = memory + 2; }, "align");
  refused([&](dr_tensor& t) { t.indices = memory + 4; }, "align");
  refused([](dr_tensor& t) { t.dtype = DR_I32; }, "dtype 5");
  refused([](dr_tensor& t) { t.dtype = 0; }, "dtype 0");
  refused([](dr_tensor& t) { t.index_dtype = DR_F16; }, "index_dtype 2");
  refused([](dr_tensor& t) { t.index_dtype = 99; }, "index_dtype 99");
  refused([](dr_tensor& t) { t.index_dtype = 0; }, "has indices, but index_dtype is 0 (dense)");
  refused([](dr_tensor& t) { t.flags = 6; }, "0x6");
}
