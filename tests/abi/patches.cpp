// Patches: the receiver's weights become the sender's, bit for bit, and both sides' sums follow.
#include "abi/prepared.hpp"
#include "abi/segmented.hpp"
#include "abi/weights.hpp"

namespace {

using abi::weights;
using client::bytes;

constexpr const char* usual = "sparsify=changed index=auto value=ulp";
// Of width 1, and of any.
constexpr const char* narrow_plans[] = {"sparsify=changed index=magnitude value=xor",
                                        "sparsify=changed index=magnitude+deflate value=ulp+deflate"};
constexpr const char* plans[] = {usual,
                                 "sparsify=changed index=auto value=auto(error=0)",
                                 "sparsify=changed index=golomb value=ulp",
                                 "sparsify=changed(max_ratio=0.1) index=golomb value=ulp",
                                 "sparsify=changed(max_ratio=0) index=auto value=auto(error=0)",
                                 "sparsify=changed index=raw value=raw",
                                 "sparsify=changed index=bitmap value=xor",
                                 "sparsify=changed index=all value=ulp",
                                 "sparsify=changed index=all value=raw",
                                 "sparsify=changed index=rice+deflate value=raw+deflate"};

dr_call in_segments(uint64_t rows) {
  dr_call call{};
  call.segment_rows = rows;
  return call;
}

void check_round_trip(client::context& c, const std::string& text, const weights& base, const weights& now) {
  INFO(text << ", " << base.kind.name << " " << base.rows() << " x " << base.width);
  const bytes frame = client::encode(c, text, {abi::patch_of(base, now)});
  const dr_tensor_info info = client::inspect(frame);
  const abi::word_pairs expected = abi::difference(base, now);
  CHECK(info.dtype == base.kind.dtype);
  CHECK(info.count == expected.indices.size());
  weights got = base;
  abi::applied(c, frame, got);
  REQUIRE(got.data == now.data);
  abi::word_pairs pairs = abi::pairs_of(c, frame, base);
  if (info.support == info.count) {
    REQUIRE(pairs == expected);
  } else {  // all rows were sent: dense, or index=all
    REQUIRE(pairs.indices.size() == base.rows());
    REQUIRE(pairs.values == now.data);
  }
}

}  // namespace

TEST_CASE("a patch takes a base to the sender's weights, bit for bit: of every type, width, share and plan") {
  client::context c;
  for (const abi::word_kind kind : abi::word_kinds)
    for (const uint32_t width : {1u, 3u})
      for (const uint64_t rows : {0, 1, 5, 4096, 9001}) {
        const weights base = abi::some_weights(kind, rows, width);
        for (const double share : {0.0, -1.0, 0.01, 0.3, 1.0}) {
          const weights now = share < 0 ? abi::one_changed(base) : abi::changed(base, share);
          for (const char* text : plans) check_round_trip(c, text, base, now);
          if (width == 1)
            for (const char* text : narrow_plans) check_round_trip(c, text, base, now);
        }
      }
}

TEST_CASE("a large tensor, of which a third changes, goes by a coded bitmap, and a hundredth by gaps") {
  client::context c;
  const weights base = abi::some_weights(abi::word_kinds[2], 300000);
  for (const double share : {0.3, 0.68, 0.01}) {
    const weights now = abi::changed(base, share);
    const bytes frame = client::encode(c, "sparsify=changed index=magnitude value=ulp", {abi::patch_of(base, now)});
    check_round_trip(c, "sparsify=changed index=magnitude value=ulp", base, now);
    CHECK(frame.size() < (share < 0.1 ? 0.015 : 0.25) * 2 * 300000);
  }
}

TEST_CASE("bits are compared, not numbers: -0 is not 0, and a NaN with its payload equals itself alone") {
  client::context c;
  const uint32_t was[] = {0, 0x80000000, 0x7fc00001, 0x7fc00001, 0xff800000, 0x7f800001},
                 is[] = {0x80000000, 0, 0x7fc00001, 0x7fc00002, 0x7f800000, 0x7fc00001};
  weights base{abi::word_kinds[0], 1, bytes(24)}, now = base;
  std::memcpy(base.data.data(), was, 24);
  std::memcpy(now.data.data(), is, 24);
  CHECK(abi::difference(base, now).indices == std::vector<uint64_t>{0, 1, 3, 4, 5});
  for (const char* text : narrow_plans) check_round_trip(c, text, base, now);
  for (const char* text : plans) check_round_trip(c, text, base, now);
}

TEST_CASE("a patch in segments, which begin at multiples of 4096 rows, makes the same of a base") {
  client::context c;
  for (const auto& [kind, width] :
       {std::pair{abi::word_kinds[2], 1u}, {abi::word_kinds[3], 1u}, {abi::word_kinds[4], 3u}})
    for (const char* text : {"sparsify=changed index=auto value=ulp", "sparsify=changed index=golomb value=raw",
                             "sparsify=changed index=all value=xor"})
      for (const uint64_t rows : {1, 4096, 9000}) {
        const weights base = abi::some_weights(kind, 20001, width), now = abi::changed(base, 0.02);
        std::vector<uint64_t> ours = base.sums(), theirs = ours;
        const bytes frame = abi::encode_segmented(c, text, {abi::patch_of(base, now, &ours)}, in_segments(rows));
        INFO(text << ", segments of " << rows);
        CHECK(client::inspect(frame).segments == (rows == 9000 ? 3 : 5));
        CHECK(ours == now.sums());
        weights got = base, with_sums = base;
        abi::applied(c, frame, got);
        abi::applied(c, frame, with_sums, &theirs);
        CHECK(got.data == now.data);
        CHECK(with_sums.data == now.data);
        CHECK(theirs == ours);
        if (!std::strstr(text, "index=all")) CHECK(abi::pairs_of(c, frame, base) == abi::difference(base, now));
      }
}

TEST_CASE("tensors of several types go in one patch; a range of them is applied; threads change nothing") {
  client::context one, four(4);
  std::vector<weights> bases, nows;
  std::vector<dr_tensor> tensors;
  for (const uint64_t rows : {5000, 0, 70000})
    for (const abi::word_kind kind : abi::word_kinds) {
      bases.push_back(abi::some_weights(kind, rows, 1, rows + kind.dtype));
      nows.push_back(abi::changed(bases.back(), 0.05, kind.dtype));
    }
  for (size_t i = 0; i < bases.size(); ++i) tensors.push_back(abi::patch_of(bases[i], nows[i]));
  for (const char* text : {usual, "sparsify=changed index=golomb value=xor"}) {
    const bytes frame = client::encode(one, text, tensors);
    CHECK(frame == client::encode(four, text, tensors));
    CHECK(frame == client::encode(one, text, tensors));
    for (client::context* c : {&one, &four}) {
      std::vector<weights> got = bases;
      std::vector<dr_tensor_out> outs;
      for (weights& w : got) outs.push_back(w.out());
      REQUIRE(abi::apply(*c, frame, outs) == DR_OK);
      for (size_t i = 0; i < got.size(); ++i) CHECK(got[i].data == nows[i].data);
      for (size_t first = 0; first + 2 <= bases.size(); first += 3) {
        got = bases;
        dr_decode_options some = abi::applying();
        some.first_tensor = first;
        some.tensors = 2;
        REQUIRE(abi::apply(*c, frame, {got[first].out(), got[first + 1].out()}, some) == DR_OK);
        for (size_t i = 0; i < got.size(); ++i)
          CHECK(got[i].data == (i == first || i == first + 1 ? nows : bases)[i].data);
      }
    }
  }
}

TEST_CASE("sums follow a chain of twenty patches on both sides, equal to fresh ones, and so does the check") {
  client::context c;
  for (const abi::word_kind kind : abi::word_kinds)
    for (const uint32_t width : {1u, 5u}) {
      INFO(kind.name << " x " << width);
      weights sender = abi::some_weights(kind, 6007, width), receiver = sender;
      std::vector<uint64_t> ours = sender.sums(), theirs = ours;
      for (uint64_t step = 0; step < 20; ++step) {
        const weights before = sender;
        sender = abi::changed(before, step == 7 ? 0 : step == 9 ? 1 : 0.03, step);
        const char* const text =
            step % 3 == 0 ? "sparsify=changed index=all value=ulp" : "sparsify=changed index=golomb value=ulp";
        const bytes frame = client::encode(c, text, {abi::patch_of(before, sender, &ours)});
        if (step % 5 == 4) CHECK(abi::pairs_of(c, frame, receiver).indices.size() == client::inspect(frame).support);
        abi::applied(c, frame, receiver, &theirs);
        REQUIRE(receiver.data == sender.data);
        REQUIRE(ours == sender.sums());
        REQUIRE(theirs == ours);
        CHECK(dr_base_check(ours.data(), ours.size()) == dr_base_check(theirs.data(), theirs.size()));
      }
    }
}

TEST_CASE("with sums a base is not read for its check: neither here nor there") {
  client::context c;
  const weights base = abi::some_weights(abi::word_kinds[2], 20000);
  weights now = base;
  now.set(3, now.word(3) ^ 1);
  const char* const text = "sparsify=changed index=golomb value=raw";
  std::vector<uint64_t> sums = base.sums(), wrong = sums;
  ++wrong[2];
  const bytes frame = client::encode(c, text, {abi::patch_of(base, now)});
  // A receiver whose memory went bad elsewhere is believed what its sums say, and is caught without them.
  weights bad = base;
  bad.set(19999, bad.word(19999) ^ 1);
  weights trusted = bad;
  abi::applied(c, frame, trusted, &sums);
  CHECK(trusted.word(3) == now.word(3));
  CHECK(abi::apply(c, frame, {bad.out()}) == DR_E_ARGUMENT);
  CHECK(abi::apply(c, frame, {bad.out(&wrong)}) == DR_E_ARGUMENT);
  // And a sender's sums are what its patch says of the base.
  weights receiver = base;
  CHECK(abi::apply(c, client::encode(c, text, {abi::patch_of(base, now, &wrong)}), {receiver.out()}) == DR_E_ARGUMENT);
}

TEST_CASE("a prepared batch, and a binding, make and apply patches, also of other memory of the same shapes") {
  client::context c;
  const weights base = abi::some_weights(abi::word_kinds[2], 9000), now = abi::changed(base, 0.02),
                later = abi::changed(now, 0.4, 9);
  for (const char* text :
       {usual, "sparsify=changed index=all value=xor", "sparsify=changed index=golomb+deflate value=raw"}) {
    INFO(text);
    const client::plan p(text);
    dr_tensor t = abi::patch_of(base, now);
    abi::batch b;
    REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, &t, sizeof t, 1, 0, &b.handle) == DR_OK);
    const dr_batch_info info = abi::describe(b);
    abi::aligned_bytes workspace(info.workspace), frame(info.bound);
    dr_result result{};
    result.struct_size = sizeof result;
    REQUIRE(dr_batch_encode(c.handle, b.handle, nullptr, nullptr, &t, sizeof t, 1, workspace.data, info.workspace,
                            frame.data, info.bound, &result) == DR_OK);
    const bytes made(frame.data, frame.data + result.size);
    CHECK(made == client::encode(c, text, {t}));
    size_t room = 0;
    REQUIRE(dr_batch_merge_workspace(b.handle, 1, &room, nullptr) == DR_OK);
    abi::aligned_bytes to_decode(room);
    weights got = base;
    dr_tensor_out out = got.out();
    const dr_decode_options options = abi::applying();
    REQUIRE(dr_batch_decode(c.handle, b.handle, nullptr, made.data(), made.size(), &options, &out, sizeof out, 1,
                            to_decode.data, room, &result) == DR_OK);
    CHECK(got.data == now.data);

    got = base;
    out = got.out();
    dr_binding* bound = nullptr;
    REQUIRE(dr_binding_create(c.handle, b.handle, nullptr, &t, sizeof t, &out, sizeof out, 1, 1, &bound) == DR_OK);
    REQUIRE(dr_binding_encode(bound, nullptr, frame.data, info.bound, &result) == DR_OK);
    CHECK(bytes(frame.data, frame.data + result.size) == made);
    REQUIRE(dr_binding_decode(bound, frame.data, result.size, &options, &result) == DR_OK);
    CHECK(got.data == now.data);
    weights other = now;
    dr_tensor_out out_of_other = other.out();
    dr_tensor second = abi::patch_of(now, later);
    REQUIRE(dr_binding_rebind(bound, &second, sizeof second, &out_of_other, sizeof out_of_other, 1) == DR_OK);
    REQUIRE(dr_binding_encode(bound, nullptr, frame.data, info.bound, &result) == DR_OK);
    REQUIRE(dr_binding_decode(bound, frame.data, result.size, &options, &result) == DR_OK);
    CHECK(other.data == later.data);
    dr_binding_destroy(bound);
  }
}

TEST_CASE("pairs of a small patch of a large base are within the default limits") {
  client::context c;
  const weights base = abi::some_weights(abi::word_kinds[2], 3000000), now = abi::one_changed(base);
  for (const char* text : {usual, "sparsify=changed index=golomb value=raw"}) {
    const bytes frame = client::encode(c, text, {abi::patch_of(base, now)});
    CHECK(frame.size() < 100);
    CHECK(abi::pairs_of(c, frame, base) == abi::difference(base, now));
  }
}
