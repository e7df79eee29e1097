// Frames that were cut off, damaged or made up: refused, or decoded to something in range; nothing outside is touched.
#include "properties/coupling.hpp"

namespace dr::properties {
namespace {

// The check of FORMAT.md, of up to one chunk, with its own field (bytes 4 to 11) read as 0.
uint64_t plain_check(std::span<const uint8_t> frame) {
  const auto mix = [](uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  };
  constexpr uint64_t phi = 0x9e3779b97f4a7c15, words_in_a_chunk = 1024;
  REQUIRE(frame.size() <= 4 * words_in_a_chunk);
  uint64_t sum = 0;
  for (uint64_t i = 0; i < frame.size() / 4; ++i) {
    const uint64_t word = i == 1 || i == 2 ? 0 : cases::element(frame, 4, i);
    sum += (word + 1) * (mix((i + 1) * phi) >> 32 | 1);
  }
  return mix(sum);
}
void correct(std::span<uint8_t> frame) {
  const uint64_t check = plain_check(frame);
  std::memcpy(&frame[4], &check, 8);
}

struct sample {
  std::string text;
  std::vector<gradient> batch;
  bytes frame;
};

// Frames of every shape that their header has: short, general, several rows, fall-backs, an order, keys that carry one.
const std::vector<sample>& samples() {
  static const std::vector<sample> all = [] {
    client::context c;
    cases::random_source random("frames");
    std::vector<sample> out;
    const auto add = [&](std::string text, std::vector<gradient> batch, uint32_t flags = 0) {
      dr_call call{};
      call.flags = flags;
      call.tag = 0x123456789abcdef;
      const bytes frame = client::encode(c, text, views(batch), call);
      out.push_back({std::move(text), std::move(batch), frame});
    };
    const gradient figure = dense(random, 36864), small = dense(random, 60), half = dense(random, 50, DR_F16);
    add("sparsify=topr(count=368) index=golomb value=qsgd", {figure});
    for (const char* index : {"raw", "golomb(block=9)", "rice+deflate", "bloom(seed=7)", "bloom(policy=p0,fpr=0.2)",
                              "bloom(policy=naive,fpr=0.3)+deflate"})
      for (const char* value : {"raw", "raw+deflate", "qsgd(levels=7,bucket=4)", "fit_poly(degree=2)",
                                "fit_poly+deflate order=bitpack+deflate"})
        add("sparsify=topr(count=9) index=" + std::string(index) + " value=" + value, {index[0] == 'r' ? half : small});
    add("sparsify=topr(count=9) index=bloom(policy=p0,fpr=0.3,max_ratio=1e-5) value=fit_poly", {small});
    add("index=golomb", {half});  // dense
    add("sparsify=topr(count=9) index=golomb", {small}, DR_CALL_TAG | DR_CALL_LIST);
    add("index=golomb value=qsgd", {sparse(random, 40, {1, 5, 6}), without_rows(), sparse(random, 90, {2, 3, 80}, 4)});
    add("index=bloom(fpr=0.1)", {sparse(random, 40, {1, 5, 6}), sparse(random, 41, {}), sparse(random, 90, {80})});
    add("index=golomb", {without_rows()});
    add("index=golomb", {});
    return out;
  }();
  return all;
}

// One row: its check covers all of the frame.
bool is_one_row(const sample& s) { return s.batch.size() == 1; }

bool is_refusal(dr_status status) { return status == DR_E_CORRUPT || status == DR_E_UNSUPPORTED; }

dr_status inspect_status(std::span<const uint8_t> frame) {
  dr_frame_info info{};
  info.struct_size = sizeof info;
  dr_status status = DR_OK;
  const bool inside =
      stays_inside([&] { status = dr_inspect(frame.data(), frame.size(), &info, nullptr, 0, 0, nullptr); });
  REQUIRE(inside);
  return status;
}

TEST_CASE("the check of a frame is the one that FORMAT.md describes") {
  for (const sample& s : samples()) {
    if (!is_one_row(s)) continue;
    bytes again = s.frame;
    correct(again);
    INFO(s.text);
    CHECK(again == s.frame);
  }
}

TEST_CASE("a frame may lie at any address, and bytes may follow it") {
  client::context c;
  for (const sample& s : samples()) {
    receiver expected(s.batch), got(s.batch);
    REQUIRE(expected.decode(c, s.frame, DR_U32) == DR_OK);
    bytes longer = s.frame;
    longer.resize(longer.size() + 9, 0xff);
    for (const size_t gap : {0, 1, 2, 3}) {
      guarded_bytes memory(s.frame.size(), 1, gap), behind(longer.size(), 1, gap);
      memory.fill(s.frame);
      behind.fill(longer);
      for (const auto frame : {memory.bytes(), behind.bytes()}) {
        INFO(s.text << ", " << gap << " before the page ends");
        REQUIRE(got.decode(c, frame, DR_U32) == DR_OK);
        for (size_t i = 0; i < s.batch.size(); ++i) {
          const bool same = got.sparse(i) == expected.sparse(i);
          CHECK(same);
        }
      }
    }
  }
}

TEST_CASE("a frame that ends too early is refused, wherever it ends") {
  client::context c;
  for (const sample& s : samples()) {
    receiver out(s.batch);
    for (size_t size = 0; size < s.frame.size(); ++size) {
      guarded_bytes memory(size);
      memory.fill(std::span(s.frame).first(size));
      INFO(s.text << ": " << size << " of " << s.frame.size() << " bytes");
      CHECK(inspect_status(memory.bytes()) == DR_E_CORRUPT);
      CHECK(out.decode(c, memory.bytes(), DR_U32) == DR_E_CORRUPT);
    }
  }
}

TEST_CASE("a frame with any one bit flipped is refused") {
  client::context c;
  for (const sample& s : samples()) {
    receiver out(s.batch);
    guarded_bytes memory(s.frame.size());
    memory.fill(s.frame);
    for (size_t bit = 0; bit < 8 * s.frame.size(); ++bit) {
      uint8_t& byte = memory.data()[bit / 8];
      byte ^= static_cast<uint8_t>(1u << bit % 8);
      const dr_status inspected = inspect_status(memory.bytes()), decoded = out.decode(c, memory.bytes(), DR_U32);
      if (!is_refusal(inspected) || !is_refusal(decoded))
        FAIL_CHECK(s.text << ": bit " << bit << ": inspect " << inspected << ", decode " << decoded);
      byte ^= static_cast<uint8_t>(1u << bit % 8);
    }
  }
}

TEST_CASE("a status frame that was cut off or damaged is refused") {
  client::context c;
  cases::random_source random("status");
  gradient g = dense(random, 20);
  const uint32_t nan = 0x7fc00001;
  std::memcpy(g.values.data(), &nan, 4);
  dr_call call{};
  call.flags = DR_CALL_STATUS_FRAME | DR_CALL_TAG;
  bytes frame;
  REQUIRE(client::try_encode(c, "index=golomb value=qsgd", {g.view()}, frame, call) == DR_E_ARGUMENT);
  receiver out({&g, 1});
  REQUIRE(out.decode(c, frame, 0) == DR_E_PEER);
  for (size_t size = 0; size < frame.size(); ++size)
    CHECK(out.decode(c, std::span(frame).first(size), 0) == DR_E_CORRUPT);
  for (size_t bit = 0; bit < 8 * frame.size(); ++bit) {
    frame[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    CHECK(is_refusal(out.decode(c, frame, 0)));
    frame[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
  }
}

// ---- Forged frames: the check is right, the rest need not be ----------------------------------------------

// The bytes may say that they are of another shape (ARGUMENT, CAPACITY), or of a peer's failure.
void check_forged(client::context& c, receiver& out, std::span<const uint8_t> frame) {
  for (const dr_dtype index_dtype : {dr_dtype{DR_U32}, dr_dtype{0}}) {
    const dr_status status = out.decode(c, frame, index_dtype);
    const bool sound = status != DR_OK || index_dtype == 0 || out.in_range();
    const bool expected = is_refusal(status) || status == DR_OK || status == DR_E_ARGUMENT || status == DR_E_CAPACITY ||
                          status == DR_E_PEER;
    if (!sound || !expected) FAIL_CHECK("status " << status << ": " << c.error());
  }
}

TEST_CASE("a payload with any bit flipped under a correct check is refused or in range") {
  client::context c;
  for (const sample& s : samples()) {
    if (!is_one_row(s)) continue;
    INFO(s.text);
    receiver out(s.batch);
    bytes frame = s.frame;
    for (size_t bit = 8 * inspect(frame, 1).head.header_size; bit < 8 * frame.size(); ++bit) {
      frame[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
      correct(frame);
      INFO("bit " << bit);
      check_forged(c, out, frame);
      frame[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    }
  }
}

// ---- Headers that no encoder writes -----------------------------------------------------------------------

void append(bytes& out, uint64_t x, size_t size) {
  for (size_t i = 0; i < size; ++i) out.push_back(static_cast<uint8_t>(x >> 8 * i));
}

// Headers of 1000 elements and a count of 5, without a right check, and what is behind their first fields.
bytes short_header(uint8_t mode, const bytes& behind) {
  bytes out = {'D', 'R', 1, static_cast<uint8_t>(DR_FRAME_SHORT | mode << 4 | 1 << 6)};
  append(out, 0, 8);
  append(out, 1000, 3);
  append(out, 5, 2);
  out.insert(out.end(), behind.begin(), behind.end());
  return out;
}
bytes general_header(uint32_t rows, uint64_t table, uint32_t widths, const bytes& behind, uint8_t status = 0) {
  bytes out = {'D', 'R', 1, static_cast<uint8_t>(status ? DR_FRAME_STATUS : 0)};
  append(out, 0, 8);
  append(out, rows, 4);
  append(out, status, 2);
  append(out, table, 2);
  append(out, widths, 4);
  out.insert(out.end(), behind.begin(), behind.end());
  return out;
}
constexpr uint32_t one_byte_columns = 0x1111111;

// So the rest of the header is unknown: neither its form nor a check is looked at.
TEST_CASE("what FORMAT.md reserves for later is unsupported, whatever follows") {
  cases::random_source random("reserved");
  const auto with_garbage = [&](bytes frame, size_t n) {
    while (n--) frame.push_back(static_cast<uint8_t>(1 + random.below(255)));
    return frame;
  };
  const auto is_unsupported = [](const bytes& frame) { CHECK(inspect_status(frame) == DR_E_UNSUPPORTED); };
  const std::pair<const char*, bytes> entries[] = {
      {"no value codec", {0x08, 0x01}},
      {"6 value codecs", {0x0e, 0x01}},
      {"no index codec", {0x01, 0x01}},
      {"7 index codecs", {0x39, 0x01}},
      {"type 4", {0x09, 0x04}},
      {"type 15", {0x09, 0x0f}},
      {"type 5 of a patch", {0x09, 0x45}},
      {"type bits 6 and 7", {0x09, 0xc1}},
      {"a transform of p = 0", {0x09, 0x81, 0x10}},
      {"a transform of p = 7", {0x09, 0x81, 0x17}},
      {"another transform", {0x09, 0x81, 0x26}},
      {"another type with a transform", {0x09, 0x84}},
      {"a value codec", {0x09, 0x01, 0x50}},
      {"a codec behind raw", {0x0a, 0x01, 0x02, 0x50}},
      {"an index codec", {0x09, 0x01, 0x02, 0x50}},
  };
  for (int round = 0; round < 20; ++round) {
    for (const auto& [what, entry] : entries) {
      INFO(std::string(what));
      is_unsupported(with_garbage(short_header(0, entry), 60));
      for (const size_t more : {0, 20})
        is_unsupported(with_garbage(general_header(1, entry.size() + more, one_byte_columns, entry), 200));
    }
    INFO("mode 3");
    is_unsupported(with_garbage(short_header(3, {}), random.below(60)));
    const bytes table = with_garbage({}, random.below(20));
    for (const uint32_t rows : {1, 2, 3}) {
      bytes behind = with_garbage(table, rows == 1 ? 0 : 8 * rows);
      for (uint32_t i = 1; i < rows; ++i) append(behind, random.below(64) << 2, 1);
      append(behind, 3 | random.below(64) << 2, 1);
      is_unsupported(with_garbage(general_header(rows, table.size(), one_byte_columns, behind), random.below(60)));
    }
  }
}

TEST_CASE("the error of a header names what is wrong") {
  client::context c;
  receiver out(samples()[0].batch);
  const auto refused = [&](const bytes& frame, const std::string& words) {
    CHECK(out.decode(c, frame, 0) == DR_E_CORRUPT);
    INFO(c.error());
    CHECK(std::string(c.error()).find(words) != std::string::npos);
  };
  const std::string superfluous = "a varint with superfluous groups, or not below 2^64, in ";
  refused(short_header(0, {0x09, 0x21, 0x82, 0x00, 0x02, 0x02}), superfluous + "a width");
  refused(short_header(0, {0x09, 0x01, 0x82, 0x00, 0x02, 0x02}), superfluous + "a codec id");
  refused(short_header(0, {0x09, 0x01, 0x02, 0x05, 0x02, 0x89, 0x00}), superfluous + "a codec's fields");
  refused(short_header(0, {0x09, 0x81, 0x16, 0x85, 0x00, 0x02, 0x02}), superfluous + "the columns of a transform");
  refused(short_header(0, {0x09, 0x01, 0x82}), "truncated plan table in a codec id");
  // (Also of an entry that no segment uses, and of a count of 0, for which no codec is called.)
  for (const uint8_t index : {15 << 1, 16 << 1})
    refused(short_header(0, {0x09, 0x61, 0x02, 0x02, index, 0, 0}),
            "an index codec of patches is of rows of one value (value 2)");
  refused(general_header(1, 0, 0, {}, DR_E_CORRUPT), "a status frame has segments (value 1)");
  refused(general_header(0, 0, one_byte_columns, {}, DR_E_CORRUPT), "a status frame has column widths");
  refused(general_header(0, 256, 0, bytes(256, 'x'), DR_E_CORRUPT), "longer than 255 bytes (value 256)");
}

// Other codecs, fields, types, modes, counts, sizes: whatever a header byte can say, of a frame of any length.
TEST_CASE("a header with any byte replaced under a correct check is refused or in range") {
  client::context c;
  for (const sample& s : samples()) {
    if (!is_one_row(s) || s.frame.size() > 200) continue;
    INFO(s.text);
    receiver out(s.batch);
    bytes frame = s.frame;
    for (int i = 0; i < 32; ++i) frame.push_back(static_cast<uint8_t>(i % 3));
    guarded_bytes memory(frame.size());
    const uint64_t header = inspect(s.frame, 1).head.header_size;
    for (size_t at = 0; at < header; at = at == 3 ? 12 : at + 1) {
      const uint8_t was = frame[at];
      for (unsigned byte = 0; byte < 256; ++byte) {
        frame[at] = static_cast<uint8_t>(byte);
        // The length that the header now gives is not known here: all are tried.
        for (size_t size = header / 4 * 4; size <= frame.size(); size += 4) {
          const auto forged = memory.bytes().last(size);
          std::copy_n(frame.begin(), size, forged.begin());
          correct(forged);
          if (inspect_status(forged) != DR_OK) continue;
          INFO("byte " << at << " = " << byte << ", " << size << " bytes");
          check_forged(c, out, forged);
          break;
        }
      }
      frame[at] = was;
    }
  }
}

}  // namespace
}  // namespace dr::properties
