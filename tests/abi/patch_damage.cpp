// Patches that were cut off, damaged or made up: the base is as it was, or becomes what its sender had.
#include <array>
#include <cstdlib>

#include "abi/segmented.hpp"
#include "abi/weights.hpp"
#include "properties/forged_frame.hpp"

namespace {

using abi::weights;
using client::bytes;

constexpr const char* plans[] = {"sparsify=changed index=magnitude value=ulp",
                                 "sparsify=changed index=golomb value=xor", "sparsify=changed index=bitmap value=raw",
                                 "sparsify=changed index=all value=ulp",
                                 "sparsify=changed index=magnitude+deflate value=ulp+huffman"};

uint64_t check_of(const weights& w) {
  const auto sums = w.sums();
  return dr_base_check(sums.data(), sums.size());
}

const dr_codec* codec(dr_role role, const std::string& name) {
  for (size_t i = 0; i < dr_codec_count(); ++i)
    if (dr_codec_at(i)->role == role && dr_codec_at(i)->name == name) return dr_codec_at(i);
  FAIL("no codec " << name);
  return nullptr;
}
forged::entry plain_patch(dr_dtype dtype = DR_F32) {
  forged::entry e;
  e.dtype = dtype;
  e.value = {{codec(DR_ROLE_VALUE, "raw"), {}}};
  e.index = {{codec(DR_ROLE_INDEX, "raw"), {}}};
  e.patch = true;
  return e;
}

// Applies a forged frame, dense and as pairs: refused, with base and sums unchanged, or correct.
void check_forged(client::context& c, const bytes& frame, const weights& base, const weights& now) {
  weights got = base;
  std::vector<uint64_t> sums = base.sums(), kept = sums;
  for (std::vector<uint64_t>* own : {static_cast<std::vector<uint64_t>*>(nullptr), &sums}) {
    got = base;
    const dr_status s = abi::apply(c, frame, {got.out(own)});
    const bool right =
        s == DR_OK ? got.data == now.data && (!own || sums == now.sums()) : got.data == base.data && sums == kept;
    if (!right) FAIL_CHECK("status " << s << ": " << c.error());
    sums = kept;
  }
  bytes values(base.data.size());
  std::vector<uint64_t> indices(base.rows());
  dr_tensor_out o = got.out();
  o.index_dtype = DR_U64;
  o.values = values.data();
  o.indices = indices.data();
  o.capacity = base.rows();
  o.base = base.data.data();
  const dr_decode_options options = abi::applying();
  if (dr_decode(c.handle, nullptr, frame.data(), frame.size(), &options, &o, sizeof o, 1) != DR_OK) return;
  got = base;
  const size_t row = base.width * base.kind.size;
  for (uint64_t i = 0; i < o.count; ++i) {
    REQUIRE(indices[i] < base.rows());
    std::memcpy(&got.data[indices[i] * row], &values[i * row], row);
  }
  if (got.data != now.data) FAIL_CHECK("pairs make something else");
}

}  // namespace

TEST_CASE("a patch that is cut off anywhere, or has any bit flipped, leaves the base as it was") {
  client::context c;
  for (const abi::word_kind kind : {abi::word_kinds[2], abi::word_kinds[3], abi::word_kinds[4]})
    for (const char* text : plans) {
      const weights base = abi::some_weights(kind, 200), now = abi::changed(base, 0.1);
      bytes frame = client::encode(c, text, {abi::patch_of(base, now)});
      weights got = base;
      for (size_t size = 0; size < frame.size(); ++size) {
        const bytes cut(frame.begin(), frame.begin() + static_cast<long>(size));
        const dr_decode_options options = abi::applying();
        dr_tensor_out o = got.out();
        CHECK(dr_decode(c.handle, nullptr, size ? cut.data() : frame.data(), size, &options, &o, sizeof o, 1) ==
              DR_E_CORRUPT);
      }
      for (size_t bit = 0; bit < 8 * frame.size(); ++bit) {
        frame[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
        const dr_status s = abi::apply(c, frame, {got.out()});
        if (s != DR_E_CORRUPT && s != DR_E_UNSUPPORTED) FAIL_CHECK("bit " << bit << ": " << s);
        frame[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
      }
      CHECK(got.data == base.data);
    }
}

TEST_CASE(
    "a patch with any bit flipped under a correct check leaves the base as it was, or makes what its sender had") {
  client::context c;
  for (const abi::word_kind kind : abi::word_kinds)
    for (const char* text : plans)
      for (const double share : {0.03, 0.5}) {
        const weights base = abi::some_weights(kind, 64), now = abi::changed(base, share);
        INFO(text << ", " << kind.name);
        bytes frame = client::encode(c, text, {abi::patch_of(base, now)});
        for (size_t bit = 96; bit < 8 * frame.size(); bit += share < 0.1 ? 1 : 5) {
          bytes forged = frame;
          forged[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
          (void)frame_check::fix(forged.data(), forged.size());
          INFO("bit " << bit);
          check_forged(c, forged, base, now);
        }
      }
}

// Of every type and plan, small and large; DEEPREDUCE_PATCH_ROUNDS=200000 makes two million of them.
TEST_CASE("a patch whose payload is any bytes under a correct check leaves the base as it was") {
  struct sample {
    weights base, now;
    bytes frame;
    uint64_t header;
  };
  client::context c;
  client::rng random{4};
  const char* const asked = std::getenv("DEEPREDUCE_PATCH_ROUNDS");
  const int rounds = asked ? std::atoi(asked) : 1000;
  size_t refused = 0, assigned = 0, others = 0;
  for (const char* text : plans)
    for (const bool large : {false, true}) {
      std::vector<sample> samples;
      for (int k = 0; k < (large ? 2 : 28); ++k) {
        const uint64_t rows = large ? 33000 : 1 + random.next() % 400;
        const weights base = abi::some_weights(abi::word_kinds[large ? 2 : k % 7], rows, 1, random.next()),
                      now = abi::changed(base, large ? 0.4 * k + 0.01 : random.uniform(), random.next());
        const bytes frame = client::encode(c, text, {abi::patch_of(base, now)});
        dr_frame_info head{};
        (void)client::inspect(frame, &head);
        samples.push_back({base, now, frame, head.header_size});
      }
      for (int round = 0; round < (large ? rounds / 20 : rounds); ++round) {
        const sample& s = samples[random.next() % samples.size()];
        bytes frame = s.frame;
        const uint64_t payload = s.header + 16, left = frame.size() - std::min<uint64_t>(payload, frame.size());
        for (uint64_t n = 1 + random.next() % 6; n-- > 0;) {
          // Most damage goes to the heads of sections, which say how long the rest is; some to the frame's own.
          const uint64_t kind = random.next() % 8;
          const uint64_t at = kind == 0 || !left
                                  ? 12 + random.next() % (frame.size() - 12)
                                  : payload + random.next() % (kind < 5 ? std::min<uint64_t>(left, 40) : left);
          frame[at] = static_cast<uint8_t>(random.next() & 1 ? random.next() : random.next() & 1 ? 0 : 0xff);
        }
        if (random.next() % 16 == 0) frame.resize(frame.size() - random.next() % (frame.size() - 11));
        if (random.next() % 8) (void)frame_check::fix(frame.data(), frame.size());
        INFO(text << ", round " << round);
        weights got = s.base;
        const dr_status status = abi::apply(c, frame, {got.out()});
        const bool other = status == DR_E_CORRUPT && c.error().find("other values") != std::string::npos;
        if (got.data != (status ? s.base : s.now).data) FAIL_CHECK("status " << status << ": " << c.error());
        (status ? refused : assigned) += 1;
        if (round % 64 == 0) check_forged(c, frame, s.base, s.now);
        // All is sound but what it becomes: under that check, too, it is what the base becomes.
        if (!other || frame.size() < payload) continue;
        const uint64_t becomes = dr_last_error(c.handle)->what;
        std::memcpy(&frame[s.header + 8], &becomes, 8);
        (void)frame_check::fix(frame.data(), frame.size());
        if (abi::apply(c, frame, {got.out()}) == DR_OK) {
          if (check_of(got) != becomes) FAIL_CHECK("a base became something else than was checked");
          ++others;
        } else if (got.data != s.base.data) {
          FAIL_CHECK("refused and applied: " << c.error());
        }
      }
    }
  MESSAGE(refused << " refused, " << assigned << " without effect, " << others
                  << " to other words under a right check");
  CHECK(refused + assigned >= std::size(plans) * static_cast<size_t>(rounds));
  CHECK(others > 0);
}

TEST_CASE("a result with another check is CORRUPT, and nothing is assigned") {
  client::context c;
  weights base = abi::some_weights(abi::word_kinds[0], 100);
  const weights now = abi::one_changed(base);
  forged::row r;
  r.universe = 100;
  r.count = r.support = 1;
  r.value = {now.data.begin() + 200, now.data.begin() + 204};
  r.index = {50, 0, 0, 0};
  for (const bool wrong : {true, false})
    for (const uint32_t at : {50, 51, 99, 100, 0x7fffffff}) {
      r.checks[0] = check_of(base);
      r.checks[1] = check_of(now) + wrong;
      std::memcpy(r.index.data(), &at, 4);
      const bytes frame = forged::frame_of({plain_patch()}, {r});
      weights got = base;
      CHECK(abi::apply(c, frame, {got.out()}) == (at == 50 && !wrong ? DR_OK : DR_E_CORRUPT));
      CHECK(got.data == (at == 50 && !wrong ? now : base).data);
    }
}

TEST_CASE("indices that do not ascend below the universe are refused before the base is read at them") {
  client::context c;
  const weights base = abi::some_weights(abi::word_kinds[0], 100);
  for (const auto& keys :
       {std::array<uint32_t, 3>{5, 4, 9}, {5, 5, 9}, {5, 9, 100}, {1u << 31, 4, 9}, {5, 9, UINT32_MAX}})
    for (const char* value : {"raw", "ulp", "xor"}) {
      forged::entry e = plain_patch();
      e.value[0].codec = codec(DR_ROLE_VALUE, value);
      forged::row r;
      r.universe = 100;
      r.count = r.support = 3;
      r.value = bytes(value[0] == 'r' ? 12 : 13);  // (of the others the words themselves)
      r.index.resize(12);
      std::memcpy(r.index.data(), keys.data(), 12);
      r.checks[0] = check_of(base);
      weights got = base;
      CHECK(abi::apply(c, forged::frame_of({e}, {r}), {got.out()}) == DR_E_CORRUPT);
      CHECK(got.data == base.data);
    }
}

TEST_CASE("a frame of patches and others, and segments at no multiple of 4096 rows, are CORRUPT") {
  client::context c;
  forged::entry patch = plain_patch(DR_F32), gradient = patch;
  gradient.patch = false;
  forged::row first, second;
  first.universe = second.universe = 4096;
  second.entry = 1;
  weights a = abi::some_weights(abi::word_kinds[0], 4096), b = a;
  const bytes before = a.data;
  for (const auto& entries : {std::vector<forged::entry>{patch, gradient}, {gradient, patch}}) {
    first.checks[0] = first.checks[1] = second.checks[0] = second.checks[1] = check_of(a);
    const bytes frame = forged::frame_of(entries, {first, second});
    for (const uint32_t flags : {uint32_t{0}, uint32_t{DR_DECODE_APPLY}}) {
      dr_decode_options options = abi::applying();
      options.flags = flags;
      CHECK(abi::apply(c, frame, {a.out(), b.out()}, options) == DR_E_CORRUPT);
    }
    CHECK(a.data == before);
    CHECK(b.data == before);
  }
  // Entries that no segment names are of no effect.
  second.entry = 0;
  CHECK(abi::apply(c, forged::frame_of({patch, gradient}, {first, second}), {a.out(), b.out()}) == DR_OK);
  second.continues = true;
  for (const uint64_t rows : {4096, 4095, 8192, 100}) {
    weights whole = abi::some_weights(abi::word_kinds[0], rows + 4096), part = whole;
    first.universe = rows;
    part.data.resize(4 * rows);
    first.checks[0] = first.checks[1] = check_of(part);
    part = whole;
    part.data.erase(part.data.begin(), part.data.begin() + static_cast<long>(4 * rows));
    second.checks[0] = second.checks[1] = check_of(part);
    CHECK(abi::apply(c, forged::frame_of({patch}, {first, second}), {whole.out()}) ==
          (rows % 4096 ? DR_E_CORRUPT : DR_OK));
  }
}

TEST_CASE("raw indices, blocks, lossy values and codecs that replace the support are CORRUPT in a patch") {
  client::context c;
  const weights base = abi::some_weights(abi::word_kinds[0], 100);
  const auto status_of = [&](const forged::entry& e, forged::row r) {
    r.universe = 100;
    r.checks[0] = r.checks[1] = check_of(base);
    weights got = base;
    dr_decode_options options = abi::applying();
    if (!e.patch) options.flags = 0;
    const dr_status s = abi::apply(c, forged::frame_of({e}, {r}), {got.out()}, options);
    CHECK((!e.patch || got.data == base.data));
    return s;
  };
  CHECK(status_of(plain_patch(), {}) == DR_OK);
  forged::row raw;
  raw.mode = 1;
  CHECK(status_of(plain_patch(), raw) == DR_E_CORRUPT);
  for (const char* value : {"half", "qsgd", "sign", "natural"}) {
    forged::entry e = plain_patch();
    e.value[0].codec = codec(DR_ROLE_VALUE, value);
    CHECK(status_of(e, {}) == DR_E_CORRUPT);
  }
  for (const char* index : {"bloom", "seeded"}) {
    forged::entry e = plain_patch();
    e.index[0].codec = codec(DR_ROLE_INDEX, index);
    CHECK(status_of(e, {}) == DR_E_CORRUPT);
  }
  forged::entry blocks = plain_patch();
  blocks.block = {{codec(DR_ROLE_INDEX, "block"), {3}}};
  CHECK(status_of(blocks, {}) == DR_E_CORRUPT);
  for (const char* name : {"ulp", "xor"}) {
    forged::entry e = plain_patch();
    e.value[0].codec = codec(DR_ROLE_VALUE, name);
    CHECK(status_of(e, {}) == DR_OK);
    e.patch = false;
    CHECK(status_of(e, {}) == DR_E_CORRUPT);
  }
  forged::entry magnitude = plain_patch();
  magnitude.index[0].codec = codec(DR_ROLE_INDEX, "magnitude");
  CHECK(status_of(magnitude, {}) == DR_OK);
  magnitude.patch = false;
  CHECK(status_of(magnitude, {}) == DR_E_CORRUPT);
  // Words are for patches.
  for (const dr_dtype dtype : {DR_U32, DR_F64, DR_U8, DR_U16}) {
    forged::entry e = plain_patch(dtype);
    e.patch = false;
    CHECK(status_of(e, {}) == DR_E_UNSUPPORTED);
  }
  forged::entry other = plain_patch(DR_I32);
  CHECK(status_of(other, {}) == DR_E_UNSUPPORTED);
}

TEST_CASE("limits hold for patches: elements, and a workspace that follows the base") {
  client::context c;
  const weights base = abi::some_weights(abi::word_kinds[2], 20000), now = abi::changed(base, 0.02);
  const bytes frame = client::encode(c, plans[0], {abi::patch_of(base, now)});
  weights got = base;
  dr_decode_options options = abi::applying();
  options.max_elements = 19999;
  CHECK(abi::apply(c, frame, {got.out()}, options) == DR_E_CAPACITY);
  options.max_elements = 20000;
  options.max_workspace = 1000;
  CHECK(abi::apply(c, frame, {got.out()}, options) == DR_E_CAPACITY);
  const uint64_t needed = dr_last_error(c.handle)->needed;
  CHECK(needed > 1000);
  CHECK(got.data == base.data);
  options.max_workspace = needed;
  CHECK(abi::apply(c, frame, {got.out()}, options) == DR_OK);
  CHECK(got.data == now.data);
}

TEST_CASE("a patch of rows that exceeds all memory is refused by its outputs, without a byte read") {
  client::context c;
  forged::entry e = plain_patch(DR_F64);
  e.width = UINT32_MAX;
  forged::row r;
  r.universe = UINT32_MAX;
  weights small = abi::some_weights(abi::word_kinds[3], 10);
  const bytes frame = forged::frame_of({e}, {r});
  CHECK(abi::apply(c, frame, {small.out()}) == DR_E_ARGUMENT);
}
