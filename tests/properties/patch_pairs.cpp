// Every index codec with every value codec that a patch takes, through the C ABI: of each the receiver has the sender's words.
#include "cases/based_inputs.hpp"
#include "properties/coupling.hpp"

namespace dr::properties {
namespace {

bool takes_index(const std::string& list) {
  const dr_codec& c = codec_of(DR_ROLE_INDEX, list);
  return !(c.traits & DR_REPLACES_SUPPORT) || list == "all";
}
bool takes_value(const std::string& list) {
  const dr_codec& c = codec_of(DR_ROLE_VALUE, list);
  return (c.traits & DR_EXACT) && !(c.traits & DR_REORDERS);
}

// Applied between guard pages. history: what sender and receiver have, and advance alike; none: they have none.
void check_patch(client::context& c, const std::string& text, dr_tensor t, const bytes& base, const bytes& now,
                 const bytes& history = {}) {
  INFO(text << ", dtype " << t.dtype << ", " << t.universe << " x " << t.width);
  bytes sent(history);
  if (!history.empty()) t.history = sent.data();
  const bytes frame = client::encode(c, text, {t});
  guarded_bytes received(history.size());
  received.fill(history);
  guarded_bytes got(base.size(), cases::word_size(t.dtype)), arrived(frame.size());
  got.fill(base);
  arrived.fill(frame);
  dr_tensor_out out{};
  out.struct_size = sizeof out;
  out.dtype = t.dtype;
  out.universe = t.universe;
  out.width = t.width;
  out.values = got.data();
  if (!history.empty()) out.history = received.data();
  dr_decode_options options{};
  options.struct_size = sizeof options;
  options.flags = DR_DECODE_APPLY;
  dr_status s = DR_OK;
  const bool inside = stays_inside(
      [&] { s = dr_decode(c.handle, nullptr, arrived.data(), arrived.size(), &options, &out, sizeof out, 1); });
  CHECK(inside);
  INFO(c.error());
  REQUIRE(s == DR_OK);
  const bool same = std::ranges::equal(got.bytes(), now) && got.intact();
  CHECK(same);
  const bool alike = std::ranges::equal(received.bytes(), sent) && received.intact();
  CHECK(alike);
}

TEST_CASE("every pair of a patch's codecs takes a base to the sender's words") {
  client::context c;
  cases::random_source random("patches");
  size_t pairs = 0;
  for (const std::string& index : lists(DR_ROLE_INDEX, true))
    for (const std::string& value : lists(DR_ROLE_VALUE, true)) {
      if (!takes_index(index) || !takes_value(value)) continue;
      ++pairs;
      for (const uint32_t dtype : {DR_F32, DR_F16, DR_BF16, DR_F64, DR_U8, DR_U16, DR_U32})
        for (const uint32_t width : {1u, 4u}) {
          if (width > 1 && (index.starts_with("magnitude") || index.starts_with("history"))) continue;
          constexpr uint64_t rows = 5000;
          const unsigned size = cases::word_size(dtype);
          bytes base(rows * width * size);
          for (uint64_t i = 0; i < rows * width; ++i)
            cases::put_word(base, size, i, cases::word_about(random, dtype, random.below(12)));
          bytes now = base;
          for (const uint32_t i : random.subset(rows * width, 300))
            cases::put_word(now, size, i, cases::word_of(base, size, i) + 1 + random.below(3));
          dr_tensor t{};
          t.struct_size = sizeof t;
          t.dtype = dtype;
          t.universe = rows;
          t.width = width;
          t.values = now.data();
          t.base = base.data();
          check_patch(c, "sparsify=changed index=" + index + " value=" + value, t, base, now);
        }
    }
  CHECK(pairs > 60);
}

TEST_CASE("every input of the codecs of patches goes through a frame") {
  client::context c;
  for (const cases::codec_case& described : cases::all()) {
    if (!needs_base(described)) continue;
    for (const cases::input& in : described.inputs) {
      const bool is_index = described.role == DR_ROLE_INDEX;
      const unsigned size = cases::word_size(in.dtype);
      bytes now = is_index ? in.base : in.elements;
      if (is_index)
        for (const uint32_t i : cases::words(in.elements))
          cases::put_word(now, size, i, cases::word_of(now, size, i) ^ 1);
      dr_tensor t{};
      t.struct_size = sizeof t;
      t.dtype = in.dtype;
      t.universe = is_index ? in.universe : in.count;
      t.width = in.width;
      t.values = now.data();
      t.base = in.base.data();
      INFO(std::string(described.name) << ": " << in.name);
      check_patch(c,
                  is_index ? "sparsify=changed value=ulp index=" + std::string(described.name)
                           : "sparsify=changed index=golomb value=" + std::string(described.name),
                  t, in.base, now, in.history);
    }
  }
}

}  // namespace
}  // namespace dr::properties
