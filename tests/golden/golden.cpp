// Frames made by the reference encoder (make.py): each decodes to the bits that the manifest says, or fails exactly as it says;
// and the library encodes what the reference encodes, byte for byte.
#include "fuzz/fix_check.hpp"
#include "golden/golden_tables.hpp"

namespace {

using namespace golden;

constexpr uint64_t workspace_max = 64 << 20, dense_max = 1 << 20;

struct room {
  bytes values;
  std::vector<uint64_t> indices;
};

// To outputs as large as inspect says, sparse or dense, in the frame's type. Empty if they would be too large.
dr_status decode(client::context& c, const bytes& frame, const inspected& seen, bool sparse, std::vector<room>& rooms) {
  rooms.assign(seen.tensors.size(), {});
  std::vector<dr_tensor_out> outs(seen.tensors.size());
  for (size_t i = 0; i < outs.size(); ++i) {
    const dr_tensor_info& t = seen.tensors[i];
    const uint64_t rows = sparse ? t.support : t.universe;
    if (rows > dense_max || t.width > dense_max) {
      CHECK((sparse && frame.size() < 200));  // a claim
      rooms[i].values.resize(4);
      rooms[i].indices.resize(1);
    } else {
      rooms[i].values.resize(rows * t.width * (t.dtype == DR_F32 ? 4 : 2) + 4, 0xcd);
      rooms[i].indices.resize(rows + 1, UINT64_MAX);
    }
    dr_tensor_out& o = outs[i];
    o = {};
    o.struct_size = sizeof o;
    o.dtype = t.dtype;
    o.index_dtype = sparse ? DR_U64 : 0;
    o.universe = t.universe;
    o.width = t.width;
    o.values = rooms[i].values.data();
    o.indices = rooms[i].indices.data();
    o.capacity = t.support;
  }
  dr_decode_options limits{};
  limits.struct_size = sizeof limits;
  limits.max_workspace = workspace_max;
  limits.flags = DR_DECODE_COEFFICIENTS;  // (of transforms; tests/reference compares their inverse)
  const bytes exact(frame);               // so that a sanitizer sees a byte read behind it
  const dr_status s = dr_decode(c.handle, nullptr, exact.data(), exact.size(), &limits, outs.data(),
                                sizeof(dr_tensor_out), outs.size());
  if (s == DR_OK && sparse)
    for (size_t i = 0; i < outs.size(); ++i) CHECK(outs[i].count == seen.tensors[i].support);
  return s;
}

void check_decodes(client::context& c, const bytes& frame, const std::string& tag, const std::string& expected) {
  const inspected seen(frame);
  INFO(seen.sentence);
  REQUIRE(seen.status == DR_OK);
  CHECK(seen.info.frame_size == frame.size());
  CHECK(((seen.info.flags & DR_FRAME_TAG) != 0) == (tag != "-"));
  if (tag != "-") CHECK(seen.info.tag == std::stoull(tag));
  std::vector<tensor> tensors;
  if (expected != "-")
    for (const auto& text : split(expected, " | ")) tensors.push_back(read_tensor(text));
  REQUIRE(seen.tensors.size() == tensors.size());
  uint64_t largest = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    CHECK(seen.tensors[i].universe == tensors[i].rows);
    CHECK(seen.tensors[i].width == tensors[i].width);
    CHECK(seen.tensors[i].dtype == tensors[i].dtype);
    REQUIRE(seen.tensors[i].support == tensors[i].indices.size());
    largest = std::max(largest, tensors[i].rows * tensors[i].width);
  }
  std::vector<room> rooms;
  REQUIRE(decode(c, frame, seen, true, rooms) == DR_OK);
  for (size_t i = 0; i < tensors.size(); ++i) {
    rooms[i].indices.pop_back();
    rooms[i].values.resize(rooms[i].values.size() - 4);
    CHECK(rooms[i].indices == tensors[i].indices);
    CHECK(rooms[i].values == tensors[i].packed());
  }
  if (largest > dense_max) return;
  REQUIRE(decode(c, frame, seen, false, rooms) == DR_OK);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const tensor& t = tensors[i];
    bytes dense(t.rows * t.width * t.value_size());
    const bytes packed = t.packed();
    const size_t row = t.width * t.value_size();
    for (size_t k = 0; k < t.indices.size(); ++k)
      std::memcpy(dense.data() + t.indices[k] * row, packed.data() + k * row, row);
    rooms[i].values.resize(rooms[i].values.size() - 4);
    CHECK(rooms[i].values == dense);
  }
}

void check_refused(client::context& c, const bytes& frame, dr_status status, const std::string& noticed) {
  const inspected seen(frame);
  INFO(seen.sentence);
  if (noticed == "inspect") {
    CHECK(seen.status == status);
    CHECK(seen.sentence != "");
    dr_tensor_out none{};
    none.struct_size = sizeof none;
    CHECK(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, &none, sizeof none, 1) == status);
    return;
  }
  REQUIRE(seen.status == DR_OK);
  for (const bool sparse : {true, false}) {
    if (!sparse && seen.tensors[0].universe > dense_max) continue;
    std::vector<room> rooms;
    CHECK(decode(c, frame, seen, sparse, rooms) == status);
    CHECK(c.error() != "");
  }
}

}  // namespace

TEST_CASE("every golden frame decodes to its bits, or fails with its recorded status") {
  client::context c, threads(3);
  for (const char* table : {"manifest.tsv", "library.tsv"})
    for (const auto& row : read_table(table, 6)) {
      const std::string &name = row[0], &status = row[1], &noticed = row[2], &tag = row[3], &expected = row[4],
                        &why = row[5];
      INFO(name << ": " << why);
      const bytes frame = read_frame(name);
      if (status == "OK") {
        check_decodes(c, frame, tag, expected);
        check_decodes(threads, frame, tag, expected);
      } else if (status == "PEER") {
        const inspected seen(frame);
        CHECK(seen.status == DR_OK);
        CHECK(seen.info.status != DR_OK);
        CHECK(seen.info.message == expected);
        CHECK(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, nullptr, 0, 0) == DR_E_PEER);
      } else {
        check_refused(c, frame, status_of(status), noticed);
      }
    }
}

TEST_CASE("every golden frame that is cut off, anywhere, is CORRUPT") {
  for (const auto& row : read_table("manifest.tsv", 6)) {
    if (row[1] != "OK" && row[1] != "PEER") continue;
    INFO(row[0]);
    const bytes frame = read_frame(row[0]);
    for (size_t n = 1; n < frame.size(); ++n) {
      const bytes cut(frame.begin(), frame.begin() + static_cast<long>(n));
      REQUIRE(inspected(cut).status == DR_E_CORRUPT);
    }
  }
}

TEST_CASE("a header alone reports how long its frame is; cut off, damaged or beside others") {
  bytes slots;
  std::vector<size_t> ends;
  for (const auto& row : read_table("manifest.tsv", 6)) {
    INFO(row[0]);
    const bytes frame = read_frame(row[0]);
    size_t size = 99;
    dr_error error{};
    error.struct_size = sizeof error;
    const dr_status s = dr_frame_size(frame.data(), frame.size(), &size, &error);
    CHECK(error.code == s);
    if (row[1] != "OK" && row[1] != "PEER") {
      CHECK((s == DR_OK || s == status_of(row[1])));
      CHECK((s == DR_OK ? size >= 20 && size <= frame.size() : size == 0));
      continue;
    }
    REQUIRE(s == DR_OK);
    CHECK(size == frame.size());
    for (size_t n = 0; n < frame.size(); ++n) {
      const bytes cut(frame.begin(), frame.begin() + static_cast<long>(n));
      REQUIRE(dr_frame_size(n ? cut.data() : frame.data(), n, &size, nullptr) == DR_E_CORRUPT);
      REQUIRE(size == 0);
    }
    // The check is not verified here.
    const inspected seen(frame);
    bytes damaged(frame);
    damaged[5] ^= 1;
    for (size_t i = seen.info.header_size; i < frame.size(); ++i) damaged[i] ^= 0x81;
    CHECK(inspected(damaged).status == DR_E_CORRUPT);
    CHECK(dr_frame_size(damaged.data(), damaged.size(), &size, nullptr) == DR_OK);
    CHECK(size == frame.size());
    // dr_frame_header tells what dr_inspect does, of the header's bytes alone, and of no fewer.
    const size_t head_size = seen.info.header_size;
    for (size_t n = 0; n <= head_size; ++n) {
      const bytes head(frame.begin(), frame.begin() + static_cast<long>(n));
      dr_frame_info info{};
      info.struct_size = sizeof info;
      std::vector<dr_tensor_info> told(seen.tensors.size());
      for (dr_tensor_info& each : told) each.struct_size = sizeof each;
      const dr_status read = dr_frame_header(n ? head.data() : frame.data(), n, frame.size(), &info, told.data(),
                                             sizeof(dr_tensor_info), told.size(), nullptr);
      REQUIRE(read == (n < head_size ? DR_E_CORRUPT : DR_OK));
      if (n < head_size) continue;
      CHECK(std::memcmp(&info, &seen.info, sizeof info) == 0);
      for (size_t i = 0; i < told.size(); ++i) CHECK(std::memcmp(&told[i], &seen.tensors[i], sizeof told[i]) == 0);
    }
    slots.insert(slots.end(), frame.begin(), frame.end());
    ends.push_back(slots.size());
  }
  CHECK(ends.size() > 80);
  std::vector<size_t> found;
  for (size_t at = 0, size; at < slots.size(); found.push_back(at += size))
    REQUIRE(dr_frame_size(slots.data() + at, slots.size() - at, &size, nullptr) == DR_OK);
  CHECK(found == ends);
  size_t size;
  CHECK(dr_frame_size(nullptr, 100, &size, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_frame_size(slots.data(), slots.size(), nullptr, nullptr) == DR_E_ARGUMENT);
}

TEST_CASE("a prepared decode accepts rows in every mode, in the workspace of its batch") {
  client::context c;
  const std::vector<uint64_t> indices = {5, 17, 40};
  const client::floats values = {1, 2, 0.5f};
  const client::plan p("index=bloom(fpr=0.3) value=raw");
  for (const std::string name : {"raw_index_mode", "three_modes"}) {
    INFO(name);
    const bytes frame = read_frame(name);
    const inspected seen(frame);
    CHECK(seen.tensors[0].fallback == (name == "three_modes" ? DR_FALLBACK_NONE : DR_FALLBACK_RAW_INDEX));
    const std::vector<dr_tensor> tensors(seen.tensors.size(), client::sparse(indices, values, 64));
    dr_batch* batch = nullptr;
    REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, tensors.data(), sizeof tensors[0], tensors.size(), 0,
                            &batch) == DR_OK);
    size_t size = 0;
    REQUIRE(dr_batch_merge_workspace(batch, 1, &size, nullptr) == DR_OK);
    std::vector<client::floats> got(tensors.size(), client::floats(64)), expected = got;
    std::vector<dr_tensor_out> outs, others;
    for (size_t i = 0; i < got.size(); ++i) {
      outs.push_back(client::dense_out(got[i]));
      others.push_back(client::dense_out(expected[i]));
    }
    std::vector<uint64_t> room(size / 8 + 8);
    void* const aligned = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(room.data()) + 63) / 64 * 64);
    const dr_status s = dr_batch_decode(c.handle, batch, nullptr, frame.data(), frame.size(), nullptr, outs.data(),
                                        sizeof outs[0], outs.size(), aligned, size, nullptr);
    INFO(c.error());
    CHECK(s == DR_OK);
    REQUIRE(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, others.data(), sizeof others[0],
                      others.size()) == DR_OK);
    CHECK(got == expected);
    dr_batch_destroy(batch);
  }
}

TEST_CASE("every bit of a golden frame counts: flipped, it is noticed") {
  for (const char* name : {"worked_example", "short_plain", "three_plans", "segments", "tagged", "bloom_p0",
                           "status_tagged", "empty_batch", "deflate_fixed"}) {
    INFO(std::string(name));
    const bytes frame = read_frame(name);
    for (size_t bit = 0; bit < 8 * frame.size(); ++bit) {
      bytes flipped(frame);
      flipped[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      REQUIRE(inspected(flipped).status != DR_OK);
    }
  }
}

TEST_CASE("the checks of every sound golden frame are those that FORMAT.md states, worked out a third time") {
  for (const auto& row : read_table("manifest.tsv", 6)) {
    if (row[1] != "OK" && row[1] != "PEER") continue;
    INFO(row[0]);
    bytes frame = read_frame(row[0]);
    const bytes before(frame);
    CHECK(frame_check::fix(frame.data(), frame.size()));
    CHECK(frame == before);
    for (size_t i = 4; i < 12; ++i) frame[i] = 0;
    CHECK(frame_check::fix(frame.data(), frame.size()));
    CHECK(frame == before);
  }
}

TEST_CASE("the library encodes to the bytes of the reference encoder") {
  client::context c, threads(3);
  for (const auto& row : read_table("encode.tsv", 4)) {
    INFO(row[0] << ": " << row[1]);
    dr_call call{};
    call.struct_size = sizeof call;
    if (row[2] != "-")
      for (const auto& word : split(row[2], " ")) {
        const auto sides = split(word, "=");
        const uint64_t number = std::stoull(sides[1]);
        if (sides[0] == "seed")
          call.seed = number;
        else if (sides[0] == "step")
          call.step = number;
        else if (sides[0] == "private_seed")
          call.private_seed = number;
        else if (sides[0] == "segment_rows")
          call.segment_rows = number;
        else if (sides[0] == "tag")
          call.tag = number, call.flags |= DR_CALL_TAG;
        else if (sides[0] == "list")
          call.flags |= number ? uint32_t{DR_CALL_LIST} : 0u;
        else
          FAIL("what is " << word);
      }
    std::vector<tensor> inputs;
    std::vector<bytes> memory;
    std::vector<dr_tensor> tensors;
    for (const auto& text : split(row[3], " | ")) inputs.push_back(read_tensor(text.substr(text.find(' ') + 1)));
    const auto texts = split(row[3], " | ");
    for (size_t i = 0; i < inputs.size(); ++i) {
      const tensor& t = inputs[i];
      const bool sparse = texts[i].rfind("sparse", 0) == 0;
      bytes values = t.packed();
      if (!sparse) {
        const size_t row_size = t.width * t.value_size();
        bytes all(t.rows * row_size);
        for (size_t k = 0; k < t.indices.size(); ++k)
          std::memcpy(all.data() + t.indices[k] * row_size, values.data() + k * row_size, row_size);
        values = all;
      }
      memory.push_back(values);
      dr_tensor in{};
      in.struct_size = sizeof in;
      in.dtype = t.dtype;
      in.universe = t.rows;
      in.width = t.width;
      in.key = t.key;
      if (sparse) {
        in.index_dtype = DR_U64;
        in.indices = t.indices.data();
        in.count = t.indices.size();
      }
      tensors.push_back(in);
    }
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].values = memory[i].data();
    const client::plan p(row[1]);
    const bytes expected = read_frame(row[0]);
    for (client::context* where : {&c, &threads}) {
      bytes frame(1 << 17);
      dr_result result{.struct_size = sizeof(dr_result)};
      const dr_status s = dr_encode(where->handle, p.handle, &call, nullptr, tensors.data(), sizeof(dr_tensor),
                                    tensors.size(), frame.data(), frame.size(), &result);
      INFO(where->error());
      REQUIRE(s == DR_OK);
      frame.resize(result.size);
      CHECK(frame.size() == expected.size());
      const auto differ = std::mismatch(frame.begin(), frame.end(), expected.begin(), expected.end());
      CAPTURE(differ.first - frame.begin());
      CHECK(frame == expected);
    }
  }
}
