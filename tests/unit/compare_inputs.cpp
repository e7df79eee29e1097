// The readers of `deepreduce compare`: what is read, what is refused, and that no bytes crash them.
#include <doctest/doctest.h>
#include <zlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include "tool/read/npy.hpp"
#include "tool/read/npz.hpp"
#include "tool/read/safetensors.hpp"
#include "tool/read/synth.hpp"

using namespace dr::compare;
using namespace std::string_literals;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string little(uint64_t value, unsigned width) {
  std::string out;
  for (; width > 0; --width, value >>= 8) out += static_cast<char>(value & 0xff);
  return out;
}

std::string u16(uint64_t value) { return little(value, 2); }
std::string u32(uint64_t value) { return little(value, 4); }
std::string u64(uint64_t value) { return little(value, 8); }

std::string floats(const std::vector<float>& values) {
  std::string out;
  for (const float v : values) out += u32(std::bit_cast<uint32_t>(v));
  return out;
}

std::vector<float> values_of(const tensor& t) {
  REQUIRE(t.type == dtype::f32);
  REQUIRE(t.data.size() == t.elements * 4);
  std::vector<float> out(t.elements);
  for (size_t i = 0; i < out.size(); ++i) out[i] = load_le<float>(t.data, 4 * i);
  return out;
}

using parser = std::function<std::vector<tensor>(std::string_view)>;

const parser npy = [](std::string_view file) { return std::vector{parse_npy(bytes_of(file), "a.npy")}; };
const parser npz = [](std::string_view file) { return parse_npz(bytes_of(file), "a.npz"); };
const parser safetensors = [](std::string_view file) { return parse_safetensors(bytes_of(file), "a.safetensors"); };
const parser npz_as_f32 = [](std::string_view file) {
  return parse_npz(bytes_of(file), "a.npz", {nullptr, dtype::f32});
};
const parser argument = [](std::string_view text) { return read_input(std::string(text)); };

// What the refusal says; "" where there is none. The bytes are copied to a place of their own, so that the address
// sanitizer sees a read behind them.
std::string refusal(const parser& parse, const std::string& file) {
  const std::vector<char> exact(file.begin(), file.end());
  try {
    (void)parse({exact.data(), exact.size()});
  } catch (const input_error& error) {
    return error.what();
  }
  return "";
}

void check_refused(const parser& parse, const std::string& file, const std::string& says) {
  const std::string what = refusal(parse, file);
  INFO(what);
  CHECK(what.find(says) != std::string::npos);
}

void check_truncations_refused(const parser& parse, const std::string& file) {
  REQUIRE(refusal(parse, file) == "");
  for (size_t size = 0; size < file.size(); ++size) {
    INFO("cut off at ", size);
    CHECK(refusal(parse, file.substr(0, size)) != "");
  }
}

// Anything but input_error escapes and fails the test.
void check_changes_survived(const parser& parse, const std::string& file) {
  for (size_t at = 0; at < file.size(); ++at) {
    for (const int change : {0x01, 0x04, 0x10, 0x80, 0xff}) {
      std::string changed = file;
      changed[at] = static_cast<char>(changed[at] ^ change);
      CHECK_NOTHROW((void)refusal(parse, changed));
    }
  }
}

std::string npy_of_header(const std::string& header, const std::string& data, int major = 1) {
  return "\x93NUMPY" + std::string(1, static_cast<char>(major)) + '\0' + little(header.size(), major == 1 ? 2 : 4) +
         header + data;
}

std::string npy_of(const std::string& descr, const std::string& shape, const std::string& data, int major = 1) {
  return npy_of_header("{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }   \n", data,
                       major);
}

struct zip_member {
  std::string name, content;
  bool deflated = false, zip64 = false, streamed = false;  // streamed: sizes and CRC only after the data
};

std::string deflated(const std::string& content) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, content.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

struct zip_file {
  std::string members, directory;
  size_t count = 0;

  zip_file& add(const zip_member& m) {
    const std::string packed = m.deflated ? deflated(m.content) : m.content;
    const uint64_t offset = members.size();
    const auto crc = crc32(0, reinterpret_cast<const Bytef*>(m.content.data()), static_cast<uInt>(m.content.size()));
    const std::string method = u16(m.streamed ? 8 : 0) + u16(m.deflated ? 8 : 0) + u32(0);
    const std::string sums = u32(crc) + u32(packed.size()) + u32(m.content.size());
    const std::string wide = u16(1) + u16(16) + u64(m.content.size()) + u64(packed.size());
    const std::string wide_sums = u32(crc) + u32(0xffffffff) + u32(0xffffffff);
    // The directory's field also has the offset, behind a block that means nothing to us.
    const std::string widest = u16(0xcafe) + u16(1) + "x" + u16(1) + u16(24) + wide.substr(4) + u64(offset);

    members += "PK\3\4" + u16(45) + method +
               (m.streamed ? std::string(12, '\0')
                : m.zip64  ? wide_sums
                           : sums) +
               u16(m.name.size()) + u16(m.zip64 ? wide.size() : 0) + m.name + (m.zip64 ? wide : "") + packed +
               (m.streamed ? "PK\7\10" + sums : "");
    directory += "PK\1\2" + u16(45) + u16(45) + method + (m.zip64 ? wide_sums : sums) + u16(m.name.size()) +
                 u16(m.zip64 ? widest.size() : 0) + u16(0) + u16(0) + u16(0) + u32(0) +
                 u32(m.zip64 ? 0xffffffff : offset) + m.name + (m.zip64 ? widest : "");
    ++count;
    return *this;
  }

  std::string end(const std::string& comment = "") const {
    return members + directory + "PK\5\6" + u32(0) + u16(count) + u16(count) + u32(directory.size()) +
           u32(members.size()) + u16(comment.size()) + comment;
  }

  std::string end64() const {
    return members + directory + "PK\6\6" + u64(44) + u16(45) + u16(45) + u32(0) + u32(0) + u64(count) + u64(count) +
           u64(directory.size()) + u64(members.size()) + "PK\6\7" + u32(0) + u64(members.size() + directory.size()) +
           u32(1) + "PK\5\6" + u32(0) + u16(0xffff) + u16(0xffff) + u32(0xffffffff) + u32(0xffffffff) + u16(0);
  }
};

const std::string one_two = npy_of("<f4", "(2,)", floats({1, 2}));

// `field` bytes into the one entry of the directory, `value` instead; the same in the local header where it has the
// field as well.
std::string zip_with(const std::string& file, size_t field, const std::string& value, bool local_too) {
  std::string changed = file;
  const size_t entry = file.find("PK\1\2");
  changed.replace(entry + field, value.size(), value);
  if (local_too) changed.replace(field - 2, value.size(), value);
  return changed;
}

std::string safetensors_of(const std::string& header, const std::string& data) {
  return u64(header.size()) + header + data;
}

std::string entry_of(const std::string& name, const std::string& type, const std::string& shape,
                     const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::vector<size_t> support_of(const tensor& t) {
  const std::vector<float> v = values_of(t);
  std::vector<size_t> out;
  for (size_t i = 0; i < v.size(); ++i) {
    if (v[i] != 0) out.push_back(i);
  }
  return out;
}

std::string doubles(const std::vector<double>& values) {
  std::string out;
  for (const double v : values) out += u64(std::bit_cast<uint64_t>(v));
  return out;
}

std::string i32s(const std::vector<int32_t>& values) {
  std::string out;
  for (const int32_t v : values) out += u32(static_cast<uint32_t>(v));
  return out;
}

std::string i64s(const std::vector<int64_t>& values) {
  std::string out;
  for (const int64_t v : values) out += u64(static_cast<uint64_t>(v));
  return out;
}

std::string vector_of(const std::string& descr, size_t n, const std::string& data) {
  return npy_of(descr, "(" + std::to_string(n) + ",)", data);
}

// As scipy.sparse.save_npz writes it: CSR or CSC.
struct compressed {
  std::string format = "csr";
  std::vector<int64_t> shape = {3, 4};
  std::vector<int32_t> indptr = {0, 2, 2, 3}, indices = {3, 0, 1};
  std::vector<float> values = {4, 5, 6};

  std::string file(bool deflate = false) const {
    return zip_file()
        .add({"indices.npy", vector_of("<i4", indices.size(), i32s(indices)), deflate})
        .add({"indptr.npy", vector_of("<i4", indptr.size(), i32s(indptr)), deflate})
        .add({"format.npy", npy_of("|S" + std::to_string(format.size()), "()", format), deflate})
        .add({"shape.npy", vector_of("<i8", shape.size(), i64s(shape)), deflate})
        .add({"data.npy", vector_of("<f4", values.size(), floats(values)), deflate})
        .end();
  }
};

// A sparse tensor `name` in coordinates, and an array beside it.
std::string coordinates(const std::string& indices, const std::string& values, const std::string& shape) {
  return zip_file()
      .add({"w.npy", one_two})
      .add({"emb.indices.npy", indices})
      .add({"emb.values.npy", values})
      .add({"emb.shape.npy", shape})
      .end();
}

struct temporary_folder {
  std::filesystem::path path;
  temporary_folder() {
    path = std::filesystem::temp_directory_path() / ("deepreduce_inputs_" + std::to_string(std::random_device()()));
    std::filesystem::create_directory(path);
  }
  ~temporary_folder() { std::filesystem::remove_all(path); }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path / name, std::ios::binary) << content;
    return (path / name).string();
  }
};

}  // namespace

TEST_CASE("npy reads every format version and keeps the bytes of f4, f2 and bfloat16") {
  for (const int major : {1, 2, 3}) {
    const tensor t = npy(npy_of("<f4", "(2, 3)", floats({1, -2, 3, 4, 5, 6}), major))[0];
    CHECK(t.type == dtype::f32);
    CHECK(t.input == "a.npy");
    CHECK(t.name == "");
    CHECK(t.shape == std::vector<uint64_t>{2, 3});
    CHECK(t.elements == 6);
    CHECK(values_of(t) == std::vector<float>{1, -2, 3, 4, 5, 6});
  }
  for (const auto& [descr, type] :
       std::map<std::string, dtype>{{"<f2", dtype::f16}, {"<V2", dtype::bf16}, {"|V2", dtype::bf16}}) {
    const tensor t = npy(npy_of(descr, "(2,)", u16(0x3c00) + u16(0x8001)))[0];
    CHECK(t.type == type);
    CHECK(text_of(t.data) == u16(0x3c00) + u16(0x8001));
  }
}

TEST_CASE("npy turns float64 into float32 and what it cannot hold into infinity") {
  const auto f64 = [](double v) { return u64(std::bit_cast<uint64_t>(v)); };
  const tensor t = npy(npy_of("<f8", "(4,)", f64(0.1) + f64(-1e300) + f64(1e-300) + f64(std::nan(""))))[0];
  const std::vector<float> v = values_of(t);
  CHECK(v[0] == 0.1f);
  CHECK(v[1] == -std::numeric_limits<float>::infinity());
  CHECK(v[2] == 0);
  CHECK(std::isnan(v[3]));
}

TEST_CASE("npy reads a scalar, empty arrays, and a header in any order of keys") {
  CHECK(npy(npy_of("<f4", "()", floats({7})))[0].elements == 1);
  CHECK(npy(npy_of("<f4", "()", floats({7})))[0].shape.empty());
  CHECK(npy(npy_of("<f4", "(0,)", ""))[0].elements == 0);
  CHECK(npy(npy_of("<f4", "(3, 0, 2)", ""))[0].elements == 0);
  const std::string other = "{\"shape\":(2L,),'descr':'<f4','fortran_order':True}";  // Python 2's longs; one dimension
  CHECK(values_of(npy(npy_of_header(other, floats({1, 2})))[0]) == std::vector<float>{1, 2});
}

TEST_CASE("npy refuses what it does not read, and reports what to do") {
  const std::string four = floats({1});
  check_refused(npy, npy_of("<f16", "(1,)", four + four + four + four),
                "a.npy: byte 10: dtype '<f16' is not read; save x.astype('<f4')");
  check_refused(npy, npy_of(">V2", "(2,)", four), "dtype '>V2' is not a float");
  check_refused(npy, npy_of("<i4", "(1,)", four),
                "dtype '<i4' is not a float; save x.astype('<f4'), or give --cast f32");
  check_refused(npy, npy_of("<u2", "(2,)", four), "x.view('V2') if it is bfloat16");
  check_refused(npy, npy_of("|O", "(1,)", four), "pickle");
  check_refused(npy, npy_of_header("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1,)}", four),
                "structured");
  check_refused(npy, npy_of("<f4", "(1,)", four, 4), "format 4.0");
  check_refused(npy, "not an array", "does not begin with");
  CHECK_THROWS_AS(npy(npy_of("|u1", "(4,)", four)), not_float);
  CHECK_THROWS_AS(npy(npy_of("|O", "(1,)", four)), not_float);
}

TEST_CASE("npy reads big-endian elements and Fortran order, into memory of their own") {
  const auto header = [](const std::string& descr, const std::string& shape) {
    return "{'descr': '" + descr + "', 'fortran_order': True, 'shape': " + shape + "}";
  };
  CHECK(values_of(npy(npy_of(">f4", "(2,)", "\x3f\x80\0\0\xc0\0\0\0"s))[0]) == std::vector<float>{1, -2});
  CHECK(values_of(npy(npy_of_header(header("<f4", "(2, 3)"), floats({1, 4, 2, 5, 3, 6})))[0]) ==
        std::vector<float>{1, 2, 3, 4, 5, 6});
  const std::string wide = npy_of_header(header(">f8", "(1, 2)"), "\x3f\xf0\0\0\0\0\0\0\xc0\0\0\0\0\0\0\0"s);
  const tensor t = npy(wide)[0];
  CHECK(values_of(t) == std::vector<float>{1, -2});
  CHECK(t.converted);
  check_truncations_refused(npy, wide);
  check_changes_survived(npy, wide);
  check_refused(npy, npy_of_header(header("<f4", "(3, 0, 2)"), "x"), "do not make the 1 bytes");
  check_refused(npy, npy_of_header(header("<f4", "(4294967296, 4294967296)"), ""), "overflows");
  CHECK(npy(npy_of_header(header("<f4", "(4294967296, 0)"), ""))[0].elements == 0);
}

TEST_CASE("npy refuses a shape that overflows, even where a zero follows") {
  check_refused(npy, npy_of("<f4", "(4294967296, 4294967296)", ""), "overflows");
  check_refused(npy, npy_of("<f4", "(4294967296, 4294967296, 0)", ""), "overflows");
  check_refused(npy, npy_of("<f4", "(0, 4294967296, 4294967296)", ""), "overflows");
  check_refused(npy, npy_of("<f4", "(4611686018427387905,)", floats({1})),
                "do not make the 4 bytes");  // * 4 wraps to 4
  check_refused(npy, npy_of("<f4", "(18446744073709551616,)", ""), "beyond 64 bits");
}

TEST_CASE("npy refuses a header that is not exactly one dict of three keys") {
  const std::string data = floats({1});
  for (const std::string header :
       {"", "{", "{}", "{'descr': '<f4', 'fortran_order': False}", "{'descr': '<f4', 'shape': (1,)}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': '1'}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} 1",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
        "{'descr': '<f\\x34', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}"}) {
    INFO(header);
    CHECK(refusal(npy, npy_of_header(header, data)) != "");
  }
  CHECK(refusal(npy, npy_of_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}\0x"s, data)) != "");
  std::string deep = "{'descr': '<f4', 'fortran_order': False, 'shape': (";
  for (int i = 0; i < 65; ++i) deep += "1,";
  check_refused(npy, npy_of_header(deep + ")}", data), "more than 64 dimensions");
}

TEST_CASE("npy refuses every truncation and bytes after the array, and survives every changed byte") {
  check_truncations_refused(npy, one_two);
  check_truncations_refused(npy, npy_of("<f8", "(1,)", u64(0), 3));
  check_refused(npy, one_two + "x", "do not make the 9 bytes");
  check_refused(npy, "\x93NUMPY\2"s + '\0' + u32(0xffffffff) + "{}", "a header of 4294967295 bytes");
  check_changes_survived(npy, one_two);
}

TEST_CASE("npz reads stored, deflated, zip64 and streamed members under their numpy names") {
  std::vector<std::string> notes;
  zip_file zip;
  zip.add({"b.npy", one_two}).add({"a/w.npy", one_two, true}).add({"z.npy", one_two, false, true});
  zip.add({"zd.npy", one_two, true, true}).add({"s.npy", one_two, true, false, true});
  for (const std::string& file : {zip.end(), zip.end("a comment"), zip.end64()}) {
    const std::vector<tensor> tensors = parse_npz(bytes_of(file), "a.npz", &notes);
    REQUIRE(tensors.size() == 5);
    CHECK(tensors[0].name == "b");
    CHECK(tensors[1].name == "a/w");
    CHECK(tensors[4].name == "s");
    for (const tensor& t : tensors) {
      CHECK(t.input == "a.npz");
      CHECK(values_of(t) == std::vector<float>{1, 2});
    }
  }
  CHECK(notes.empty());
  CHECK(npz(zip_file().end()).empty());
}

TEST_CASE("npz skips members that are not float arrays and reports it") {
  std::vector<std::string> notes;
  const std::string file =
      zip_file().add({"step.npy", npy_of("<i8", "()", u64(3))}).add({"README", "hello"}).add({"w.npy", one_two}).end();
  CHECK(parse_npz(bytes_of(file), "a.npz", &notes).size() == 1);
  REQUIRE(notes.size() == 2);
  CHECK(notes[0].find("a.npz: step.npy: byte 10: dtype '<i8' is not a float") != std::string::npos);
  CHECK(notes[1].find("README") != std::string::npos);
  CHECK(npz(file).size() == 1);  // the callback is optional
}

TEST_CASE("npz refuses every truncation and survives every changed byte") {
  for (const bool deflate : {false, true}) {
    const zip_file zip = zip_file().add({"w.npy", one_two, deflate}).add({"z.npy", one_two, deflate, true});
    check_truncations_refused(npz, zip.end());
    check_truncations_refused(npz, zip.end64());
    check_changes_survived(npz, zip.end64());
  }
}

TEST_CASE("npz refuses a wrong CRC, in the data or in the header") {
  for (const bool deflate : {false, true}) {
    const std::string file = zip_file().add({"w.npy", one_two, deflate}).end();
    check_refused(npz, zip_with(file, 16, u32(1), true), "a.npz: w.npy: byte 0: CRC-32 is");
    check_refused(npz, zip_with(file, 16, u32(1), false), "disagrees with the directory");
  }
  std::string file = zip_file().add({"w.npy", one_two}).end();
  const size_t value = file.find(floats({1, 2}));
  file[value] = static_cast<char>(file[value] ^ 1);
  check_refused(npz, file, "CRC-32");
}

TEST_CASE("npz refuses sizes that are not what was declared") {
  const uint64_t size = one_two.size();
  const std::string stored = zip_file().add({"w.npy", one_two}).end();
  const std::string packed = zip_file().add({"w.npy", one_two, true}).end();
  check_refused(npz, zip_with(stored, 24, u32(size - 4), true), "is stored in");
  check_refused(npz, zip_with(packed, 24, u32(size - 1), true), "bytes unpack to");
  check_refused(npz, zip_with(packed, 24, u32(size + 1), true), "bytes unpack to");
  check_refused(npz, zip_with(packed, 24, u32(0), true), "bytes unpack to");
  check_refused(npz, zip_with(packed, 24, u32(0xfffffffe), true), "cannot unpack to 4294967294");
  check_refused(npz, zip_with(packed, 24, u32(0xffffffff), true), "zip64 field of a size is missing");
  check_refused(npz, zip_with(packed, 20, u32(deflated(one_two).size() - 1), true), "bytes unpack to");
  check_refused(npz, zip_with(packed, 20, u32(deflated(one_two).size() + 1), true), "past");
  check_refused(npz, zip_with(stored, 24, u32(size - 4), false), "disagrees with the directory");
}

TEST_CASE("npz unpacks no more of a member than its header describes") {
  const std::string zeros(4 << 20, '\0');
  const auto zip_of = [](const std::string& npy) { return zip_file().add({"w.npy", npy, true}).end(); };
  const std::string sound = zip_of(npy_of("<f4", "(1048576,)", zeros));
  CHECK(refusal(npz, sound) == "");
  // Whoever unpacks all of it sees that its check is wrong.
  const auto damage = [](const std::string& zip) { return zip_with(zip, 16, u32(1), true); };
  check_refused(npz, damage(sound), "CRC-32 is");
  for (const char* shape : {"(10,)", "()", "(0, 5)", "(1048577,)", "(4611686018427387904, 4)"})
    for (const char* descr : {"<f4", ">f4", "<i8", "|b1"}) {
      INFO(shape << " of " << descr);
      const std::string zip = zip_of(npy_of(descr, shape, zeros));
      check_refused(npz, zip, "unpacks to 4194304 bytes of values, but its header describes");
      check_refused(npz, damage(zip), "unpacks to 4194304 bytes of values, but its header describes");
    }
  // An array of a type that is not read has no size here: it is checked to its end, and skipped.
  std::vector<std::string> notes;
  const std::string text = zip_of(npy_of("<U9", "(10,)", zeros));
  CHECK(parse_npz(bytes_of(text), "a.npz", &notes).empty());
  CHECK(notes.size() == 1);
  check_refused(npz, damage(text), "CRC-32 is");
}

TEST_CASE("npz unpacks members about as long as the longest header, and longer ones") {
  const size_t head = npy_of("<f2", "(12345,)", "").size();
  for (const size_t size : {npy_head_max - 2, npy_head_max, npy_head_max + 2, npy_head_max + 2 * npy_head_max}) {
    std::string data;
    while (head + data.size() < size) data += u16(data.size() % 20000);
    const std::string shape = "(" + std::to_string(data.size() / 2) + ",)";
    const std::string file = zip_file().add({"w.npy", npy_of("<f2", shape, data), true}).end();
    const std::vector<tensor> tensors = parse_npz(bytes_of(file), "a.npz");
    REQUIRE(tensors.size() == 1);
    CHECK(text_of(tensors[0].data) == data);
  }
}

TEST_CASE("npz refuses encrypted, foreign, repeated and overlapping members") {
  const std::string file = zip_file().add({"w.npy", one_two}).end();
  check_refused(npz, zip_with(file, 8, u16(1), true), "encrypted");
  check_refused(npz, zip_with(file, 10, u16(14), true), "method 14");
  check_refused(npz, zip_file().add({"w.npy", one_two}).add({"w.npy", one_two}).end(), "twice");

  // Both entries of the directory point at the one member, which has the name of both but for a letter.
  zip_file twice = zip_file().add({"w.npy", one_two});
  twice.directory += twice.directory;
  ++twice.count;
  twice.directory[twice.directory.rfind("w.npy")] = 'v';
  check_refused(npz, twice.end(), "disagrees with the directory");
  // A whole member within the data of another.
  const zip_file inner = zip_file().add({"i.npy", one_two});
  zip_file outer = zip_file().add({"o.npy", inner.members});
  std::string entry = inner.directory;
  entry.replace(42, 4, u32(35));
  outer.directory += entry;
  ++outer.count;
  check_refused(npz, outer.end(), "ends at");
}

TEST_CASE("npz refuses end records that disagree with the file") {
  zip_file zip = zip_file().add({"w.npy", one_two});
  const std::string file = zip.end();
  const size_t end = file.rfind("PK\5\6");
  const auto with = [&](size_t field, const std::string& value) {
    return std::string(file).replace(end + field, value.size(), value);
  };
  check_refused(npz, with(4, u16(1)), "split archive");
  check_refused(npz, with(8, u16(2)), "split archive");
  check_refused(npz, with(8, u16(2) + u16(2)), "1 entries where 2 are declared");
  check_refused(npz, with(16, u32(1)), "does not end at");
  check_refused(npz, with(12, u32(0xffffffff)), "does not end at");
  check_refused(npz, "PK" + file, "does not end at");
  std::string wide = zip.end64();
  wide.replace(wide.find("PK\6\6") + 4, 8, u64(45));
  check_refused(npz, wide, "wrong size");
  wide = zip.end64();
  wide.replace(wide.find("PK\6\7") + 8, 8, u64(UINT64_MAX - 3));
  check_refused(npz, wide, "the zip64 end record needs");
}

TEST_CASE("safetensors reads its float types in the order of the data and skips the others with a note") {
  std::vector<std::string> notes;
  const std::string data = u64(std::bit_cast<uint64_t>(0.5)) + floats({1, 2}) + u16(0x3f80) + u16(0x3c00) + u32(9);
  const std::string file =
      safetensors_of("{" + entry_of("h", "F16", "[]", "[18,20]") + "," + entry_of("f", "F32", "[2,1]", "[8,16]") + "," +
                         entry_of("d", "F64", "[1]", "[0,8]") + "," + entry_of("i", "I32", "[1]", "[20,24]") +
                         R"(,"__metadata__":{"format":"pt"},)" + entry_of("b", "BF16", "[1]", "[16,18]") + "," +
                         entry_of("none", "F32", "[0,3]", "[8,8]") + "}  ",
                     data);
  const std::vector<tensor> tensors = parse_safetensors(bytes_of(file), "a.safetensors", &notes);
  REQUIRE(tensors.size() == 5);
  CHECK(tensors[0].name == "d");
  CHECK(values_of(tensors[0]) == std::vector<float>{0.5});
  CHECK(tensors[1].name == "none");
  CHECK(tensors[1].shape == std::vector<uint64_t>{0, 3});
  CHECK(tensors[2].name == "f");
  CHECK(tensors[2].input == "a.safetensors");
  CHECK(values_of(tensors[2]) == std::vector<float>{1, 2});
  CHECK(tensors[3].type == dtype::bf16);
  CHECK(text_of(tensors[3].data) == u16(0x3f80));
  CHECK(tensors[4].type == dtype::f16);
  CHECK(tensors[4].elements == 1);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].find("a.safetensors: i: dtype I32") != std::string::npos);
}

TEST_CASE("safetensors refuses repeated keys") {
  const std::string w = entry_of("w", "F32", "[1]", "[0,4]");
  check_refused(safetensors, safetensors_of("{" + w + "," + w + "}", floats({1})), "key 'w' occurs twice");
  check_refused(safetensors, safetensors_of("{" + w + R"(,"\u0077":1})", floats({1})), "key 'w' occurs twice");
  check_refused(safetensors,
                safetensors_of(R"({"w":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}})", floats({1})),
                "a.safetensors: w: byte 8: key 'shape' occurs twice");
  check_refused(safetensors, safetensors_of(R"({"__metadata__":{"a":"","a":""}})", ""), "key 'a' occurs twice");
}

TEST_CASE("safetensors refuses data that overlap, leave gaps, or are not what the shape says") {
  const auto two = [](const std::string& first, const std::string& second) {
    return safetensors_of("{" + entry_of("v", "F32", "[1]", first) + "," + entry_of("w", "F32", "[1]", second) + "}",
                          floats({1, 2}));
  };
  CHECK(refusal(safetensors, two("[4,8]", "[0,4]")) == "");
  check_refused(safetensors, two("[0,4]", "[0,4]"), "should begin at 4");
  check_refused(safetensors, two("[0,4]", "[2,6]"), "should begin at 4");
  check_refused(safetensors, two("[0,4]", "[5,9]"), "should begin at 4");
  check_refused(safetensors, two("[0,4]", "[4,12]"), "end by 8");
  check_refused(safetensors, two("[0,4]", "[4,3]"), "[4, 3)");
  check_refused(safetensors, two("[0,4]", "[4,18446744073709551615]"), "end by 8");

  const auto one = [](const std::string& type, const std::string& shape, const std::string& offsets) {
    return safetensors_of("{" + entry_of("w", type, shape, offsets) + "}", floats({1, 2}));
  };
  CHECK(refusal(safetensors, one("F32", "[2]", "[0,8]")) == "");
  check_refused(safetensors, safetensors_of("{" + entry_of("w", "F32", "[2]", "[0,7]") + "}", "1234567"),
                "not the 7 bytes");
  check_refused(safetensors, one("F32", "[1]", "[0,4]"), "4 bytes after the last tensor");
  check_refused(safetensors, one("F32", "[3]", "[0,8]"), "not the 8 bytes");
  check_refused(safetensors, one("I32", "[3]", "[0,8]"), "not the 8 bytes");
  check_refused(safetensors, one("F32", "[4294967296,4294967296]", "[0,8]"), "overflows");
  check_refused(safetensors, one("F32", "[4611686018427387906]", "[0,8]"), "not the 8 bytes");  // * 32 bits wraps
  CHECK(refusal(safetensors, one("F4", "[16]", "[0,8]")) == "");
  check_refused(safetensors, one("F4", "[15]", "[0,8]"), "not the 8 bytes");
}

TEST_CASE("safetensors refuses a header that is not an object of tensors") {
  for (const std::string header : {"",
                                   " {}",
                                   "[]",
                                   "5",
                                   "{",
                                   "{} x",
                                   "{}{}",
                                   R"({"w":5})",
                                   R"({"w":[]})",
                                   R"({"w":{}})",
                                   R"({"w":null})",
                                   R"({"w":{"dtype":"F32","shape":[]}})",
                                   R"({"w":{"dtype":"F32","shape":[0],"data_offsets":[0]}})",
                                   R"({"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0,0]}})",
                                   R"({"w":{"dtype":5,"shape":[0],"data_offsets":[0,0]}})",
                                   R"({"w":{"dtype":"F32","shape":0,"data_offsets":[0,0]}})",
                                   R"({"w":{"dtype":"F32","shape":"0","data_offsets":[0,0]}})",
                                   R"({"w":{"dtype":"F32","shape":[0.0],"data_offsets":[0,0]}})",
                                   R"({"w":{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}})",
                                   R"({"w":{"dtype":"F32","shape":[18446744073709551616,0],"data_offsets":[0,0]}})",
                                   R"({"w":{"dtype":"F32","shape":[1e999],"data_offsets":[0,0]}})",
                                   R"({"w":{"dtype":"F32","shape":[[0]],"data_offsets":[0,0]}})",
                                   R"({"w":{"dtype":"F32","shape":[0],"data_offsets":{"0":0}}})",
                                   R"({"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"more":""}})",
                                   R"({"__metadata__":{"a":1}})",
                                   R"({"__metadata__":{"a":["b"]}})",
                                   R"({"__metadata__":{"a":{}}})",
                                   "{\"\xff\":{}}",
                                   "{\"w\0\":{}}"}) {
    INFO(header);
    CHECK(refusal(safetensors, safetensors_of(header, "")) != "");
  }
  CHECK(refusal(safetensors, safetensors_of("{" + std::string(1 << 20, '['), "")) != "");
  std::string nested = "{";
  for (int i = 0; i < 100000; ++i) nested += "\"a\":{";
  check_refused(safetensors, safetensors_of(nested, ""), "key 'a' is not known");
  std::string longest = entry_of("w", "F32", "[0", "[0,0]");
  for (int i = 0; i < 64; ++i) longest.insert(longest.find("[0") + 2, ",1");
  check_refused(safetensors, safetensors_of("{" + longest, ""), "longer than 64");
}

TEST_CASE("safetensors refuses every truncation and a header beyond the limit, and survives every changed byte") {
  const std::string file = safetensors_of("{" + entry_of("w", "F32", "[1,2]", "[0,8]") + "}", floats({1, 2}));
  check_truncations_refused(safetensors, file);
  check_changes_survived(safetensors, file);
  check_refused(safetensors, u64(100'000'001) + "{}", "above 100000000");
  check_refused(safetensors, u64(UINT64_MAX) + "{}", "above 100000000");
  check_refused(safetensors, u64(3) + "{}", "the header needs 3 bytes");
}

TEST_CASE("names from a file cannot steer the terminal") {
  const std::string header = "{" + entry_of(R"(\u001b[31m\u009b)", "F32", "[]", "[0,4]") + "}";
  CHECK(safetensors(safetensors_of(header, floats({1})))[0].name == R"(\u001b[31m\u009b)");
  CHECK(npz(zip_file().add({"\x1b\xff\n.npy", one_two}).end())[0].name == R"(\u001b\ufffd\n)");
}

TEST_CASE("read_input chooses the reader by extension and names the file in errors") {
  const temporary_folder folder;
  CHECK(read_input(folder.write("a.npy", one_two))[0].elements == 2);
  CHECK(read_input(folder.write("b.npz", zip_file().add({"w.npy", one_two}).end()))[0].name == "w");
  CHECK(read_input(folder.write("c.safetensors",
                                safetensors_of("{" + entry_of("t", "F32", "[1]", "[0,4]") + "}", floats({1}))))[0]
            .name == "t");
  for (const char* raw : {"d.bin", "e.f32", "f.raw"}) {
    const std::string path = folder.write(raw, floats({1, 2, 3}));
    const std::vector<tensor> tensors = read_input(path);
    REQUIRE(tensors.size() == 1);
    CHECK(tensors[0].input == path);
    CHECK(tensors[0].shape == std::vector<uint64_t>{3});
    CHECK(values_of(tensors[0]) == std::vector<float>{1, 2, 3});
  }
  const std::string odd = folder.write("odd.raw", "12345");
  check_refused(argument, odd, odd + ": byte 5: 5 bytes are not a whole number of float32");
  check_refused(argument, folder.write("x.txt", "1"), "give a .npy");
  check_refused(argument, (folder.path / "none.npy").string(), "No such file or directory; give a .npy");
  check_refused(argument, "", "is empty");
  check_refused(argument, folder.write("i.npz", zip_file().add({"i.npy", npy_of("<i8", "()", u64(0))}).end()),
                "holds no float array");
}

TEST_CASE("read_input reads a folder by name, not what is in its folders") {
  const temporary_folder folder;
  std::vector<std::string> notes;
  folder.write("b.f32", floats({2}));
  folder.write("a.npy", one_two);
  folder.write("c.npz", zip_file().add({"i.npy", npy_of("<i8", "()", u64(0))}).end());
  folder.write("notes.txt", "ignored");
  std::filesystem::create_directory(folder.path / "deeper.npy");
  const std::vector<tensor> tensors = read_input(folder.path.string(), &notes);
  REQUIRE(tensors.size() == 2);
  CHECK(tensors[0].input == (folder.path / "a.npy").string());
  CHECK(tensors[1].input == (folder.path / "b.f32").string());
  CHECK(notes.size() == 1);
  folder.write("d.npy", "broken");
  CHECK(refusal(argument, folder.path.string()).find("d.npy") != std::string::npos);
}

TEST_CASE("a cast accepts integers and booleans and reports what it changed; without one only float64 is converted") {
  const auto cast = [](const std::string& file, std::optional<dtype> type) {
    return parse_npy(bytes_of(file), "a.npy", {nullptr, type});
  };
  const tensor wide = cast(npy_of("<f8", "(3,)", doubles({0.1, 1e300, 1e-300})), {});
  REQUIRE(wide.converted);
  CHECK(wide.converted->infinite == 1);
  CHECK(wide.converted->vanished == 1);
  CHECK(wide.converted->largest_change == doctest::Approx(std::fabs(0.1 - double(0.1f)) / 0.1));
  CHECK(describe(*wide.converted, wide.type) ==
        "float64, converted to float32: 1 value too large: became infinite; 1 value too small: became 0; largest "
        "relative change of the others 1e-08");
  CHECK(!cast(one_two, {}).converted);
  CHECK(values_of(cast(npy_of("<i2", "(2,)", u16(0xffff) + u16(7)), dtype::f32)) == std::vector<float>{-1, 7});
  CHECK(values_of(cast(npy_of("|b1", "(2,)", "\1\0"s), dtype::f32)) == std::vector<float>{1, 0});
  CHECK(values_of(cast(npy_of("<u8", "(1,)", u64(UINT64_MAX)), dtype::f32)) == std::vector<float>{0x1p64f});
  const tensor odd = cast(npy_of("<i8", "(1,)", u64((uint64_t{1} << 24) + 1)), dtype::f32);
  CHECK(odd.converted->largest_change == doctest::Approx(1.0 / ((1 << 24) + 1)));
  CHECK_THROWS_AS((void)cast(npy_of("|O", "(1,)", u64(0)), dtype::f32), not_float);
  const std::string ints = safetensors_of("{" + entry_of("i", "I32", "[2]", "[0,8]") + "}", u32(3) + u32(0xffffffff));
  CHECK(values_of(parse_safetensors(bytes_of(ints), "a", {nullptr, dtype::f32})[0]) == std::vector<float>{3, -1});
  CHECK(values_of(read_input("synth:d=5", nullptr, dtype::f32)[0]).size() == 5);
  CHECK(read_input("synth:d=5", nullptr, dtype::bf16)[0].data.size() == 10);
}

// Expected bits are those of IEEE 754's tables, and of rounding by hand.
TEST_CASE("a cast to 16 bits rounds to nearest even, to subnormals, to infinity") {
  const auto bits = [](double v, dtype to) {
    conversion c{stored::f64};
    return load_le<uint16_t>(convert(bytes_of(doubles({v})), to, c), 0);
  };
  const std::vector<std::pair<double, uint16_t>> halves = {
      {1, 0x3c00},           {-2, 0xc000},          {65504, 0x7bff},     {65519.9, 0x7bff},   {65520, 0x7c00},
      {0x1p-14, 0x0400},     {0x1p-24, 0x0001},     {0x1p-25, 0x0000},   {0x1.8p-25, 0x0001}, {0x1.8p-24, 0x0002},
      {1 + 0x1p-11, 0x3c00}, {1 + 0x3p-11, 0x3c02}, {0x1.ffcp0, 0x3fff}, {-0.0, 0x8000},      {1e300, 0x7c00},
      {0x1.ff8p-15, 0x03ff}, {0x1.ffep-15, 0x0400}, {-INFINITY, 0xfc00}, {1e-300, 0}};
  for (const auto& [value, expected] : halves) {
    INFO(value);
    CHECK(bits(value, dtype::f16) == expected);
  }
  const std::vector<std::pair<double, uint16_t>> brains = {
      {1, 0x3f80},          {-1.5, 0xbfc0},       {1 + 0x1p-8, 0x3f80}, {1 + 0x3p-8, 0x3f82},
      {0x1.fep127, 0x7f7f}, {0x1.ffp127, 0x7f80}, {0x1p-126, 0x0080},   {0x1p-133, 0x0001},
      {0x1p-134, 0},        {INFINITY, 0x7f80},   {1e300, 0x7f80}};
  for (const auto& [value, expected] : brains) {
    INFO(value);
    CHECK(bits(value, dtype::bf16) == expected);
  }
  CHECK((bits(std::nan(""), dtype::f16) & 0x7fff) > 0x7c00);
  CHECK((bits(std::nan(""), dtype::bf16) & 0x7fff) > 0x7f80);
}

TEST_CASE("npz reads scipy's CSR, CSC and COO as the matrix that they are") {
  const std::vector<float> matrix = {5, 0, 0, 4, 0, 0, 0, 0, 0, 6, 0, 0};
  for (const bool deflate : {false, true}) {
    const tensor t = npz(compressed().file(deflate))[0];
    CHECK(t.shape == std::vector<uint64_t>{3, 4});
    CHECK(t.sparse);
    CHECK(t.name == "");
    CHECK(t.input == "a.npz");
    CHECK(values_of(t) == matrix);
  }
  const compressed by_column{"csc", {3, 4}, {0, 1, 2, 2, 3}, {0, 2, 0}, {5, 6, 4}};
  CHECK(values_of(npz(by_column.file())[0]) == matrix);
  zip_file coo;
  coo.add({"row.npy", vector_of("<i8", 4, i64s({2, 0, 0, 2}))})
      .add({"col.npy", vector_of("<i8", 4, i64s({1, 3, 0, 1}))});
  coo.add({"format.npy", npy_of("|S3", "()", "coo")}).add({"shape.npy", vector_of("<i8", 2, i64s({3, 4}))});
  coo.add({"data.npy", vector_of("<f8", 4, doubles({2, 4, 5, 4}))}).add({"_is_array.npy", npy_of("|b1", "()", "\1")});
  std::vector<std::string> notes;
  const tensor t = parse_npz(bytes_of(coo.end()), "a.npz", &notes)[0];
  CHECK(values_of(t) == matrix);  // two entries are at (2, 1)
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].find("1 entries at positions that come again") != std::string::npos);
  CHECK(t.converted);
  // SciPy reads no further than the last offset.
  CHECK(values_of(npz(compressed{"csr", {3, 4}, {0, 2, 2, 3}, {3, 0, 1, 2, 2}, {4, 5, 6, 9, 9}}.file())[0]) == matrix);
  const compressed none{"csr", {0, 4}, {0}, {}, {}};
  CHECK(npz(none.file())[0].elements == 0);
}

TEST_CASE("npz refuses a sparse matrix whose arrays disagree, and one that is too large as a dense one") {
  const auto refused = [](const compressed& c, const std::string& says) {
    check_refused(npz, c.file(), says);
    check_refused(npz, c.file(true), says);
  };
  refused({"bsr", {3, 4}, {0, 2, 2, 3}, {3, 0, 1}, {4, 5, 6}}, "format 'bsr' is not read; save x.tocsr()");
  refused({"csr", {3, 4}, {0, 2, 2}, {3, 0, 1}, {4, 5, 6}}, "3 offsets should begin at 0 and be 4");
  refused({"csr", {3, 4}, {1, 2, 2, 3}, {3, 0, 1}, {4, 5, 6}}, "should begin at 0");
  refused({"csr", {3, 4}, {0, 2, 1, 3}, {3, 0, 1}, {4, 5, 6}}, "do not ascend");
  refused({"csr", {3, 4}, {0, 2, 2, 4}, {3, 0, 1}, {4, 5, 6}}, "pass 3 entries");
  refused({"csr", {3, 4}, {0, 2, 2, 3}, {3, 0, 4}, {4, 5, 6}}, "index 4 of entry 2 is not below 4");
  refused({"csr", {3, 4}, {0, 2, 2, 3}, {3, -1, 1}, {4, 5, 6}}, "the indices [1] is -1");
  refused({"csr", {3, 4}, {0, 2, 2, 3}, {3, 0, 1}, {4, 5}}, "2 values for 3 entries");
  refused({"csr", {-3, 4}, {0, 2, 2, 3}, {3, 0, 1}, {4, 5, 6}}, "the extents [0] is -3");
  refused({"csr", {3, int64_t{1} << 62}, {0, 2, 2, 3}, {3, 0, 1}, {4, 5, 6}}, "elements");
  refused({"csr", {3, int64_t{1} << 40}, {0, 2, 2, 3}, {3, 0, 1}, {4, 5, 6}}, "of at most 1073741824");
  refused({"csr", {3, 4, 5}, {0, 2, 2, 3}, {3, 0, 1}, {4, 5, 6}}, "3 dimensions");
  check_truncations_refused(npz, compressed().file());
  check_changes_survived(npz, compressed().file());
  check_changes_survived(npz_as_f32, compressed().file());
}

TEST_CASE("npz reads sparse tensors in coordinates, beside others") {
  const std::string shape = vector_of("<i8", 2, i64s({3, 2}));
  const std::string rows = npy_of("<i8", "(1, 2)", i64s({2, 0})),
                    row_values = npy_of("<f4", "(2, 2)", floats({1, 2, 3, 4}));
  std::vector<tensor> tensors = npz(coordinates(rows, row_values, shape));
  REQUIRE(tensors.size() == 2);
  CHECK(tensors[0].name == "w");
  CHECK(!tensors[0].sparse);
  CHECK(tensors[1].name == "emb");
  CHECK(tensors[1].sparse);
  CHECK(values_of(tensors[1]) == std::vector<float>{3, 4, 0, 0, 1, 2});
  const std::string points = npy_of("<i8", "(2, 3)", i64s({2, 0, 2, 1, 0, 1}));
  CHECK(values_of(npz(coordinates(points, vector_of("<f4", 3, floats({1, 2, 3})), shape))[1]) ==
        std::vector<float>{2, 0, 0, 0, 0, 4});
  check_refused(npz, coordinates(rows, vector_of("<f4", 2, floats({1, 2})), shape),
                "do not go with a tensor of shape (3, 2)");
  check_refused(npz, coordinates(npy_of("<i8", "(1, 2)", i64s({3, 0})), row_values, shape), "index 3 of entry 0");
  check_refused(npz, coordinates(npy_of("<i8", "(3, 0)", ""), row_values, shape), "3 dimensions in a tensor of 2");
  check_refused(npz, coordinates(vector_of("<f4", 1, floats({0})), row_values, shape),
                "are float32, not int32 or int64");
  std::vector<std::string> notes;  // of integers there is nothing to compare
  const std::string ints = coordinates(rows, npy_of("<i4", "(2, 2)", i32s({1, 2, 3, 4})), shape);
  CHECK(parse_npz(bytes_of(ints), "a.npz", &notes).size() == 1);
  CHECK(notes.size() == 1);
  CHECK(npz_as_f32(ints).size() == 2);
  check_changes_survived(npz, coordinates(rows, row_values, shape));
}

TEST_CASE("an archive may name its source") {
  const std::string file = zip_file().add({"w.npy", one_two}).end("deepreduce:input=g\x1b.pt");
  CHECK(npz(file)[0].input == "g\\u001b.pt");
  CHECK(npz(zip_file().add({"w.npy", one_two}).end("input=g.pt"))[0].input == "a.npz");
  const temporary_folder folder;
  const std::string ints = zip_file().add({"i.npy", npy_of("<i8", "()", u64(0))}).end("deepreduce:input=g.pt");
  check_refused(argument, folder.write("0.npz", ints), "g.pt: holds no float array");
  check_refused(argument, folder.write("1.npz", zip_file().end("deepreduce:input=g.pt")), "g.pt: holds no array");
}

TEST_CASE("elements of a file are not copied where they are aligned, and a change of a copy is invisible") {
  const std::string file =
      safetensors_of("{" + entry_of("a", "F32", "[2]", "[0,8]") + "," + entry_of("b", "F32", "[1]", "[8,12]") + "}  ",
                     floats({1, 2, 3}));
  const tensor_bytes memory = tensor_bytes::copy_of(bytes_of(file));
  reading how;
  how.owner = memory.owner();
  std::vector<tensor> tensors = parse_safetensors(memory, "a", how);
  REQUIRE(tensors.size() == 2);
  const bool aligned = (file.size() - 12) % 4 == 0;
  CHECK((tensors[0].data.data() == memory.data() + file.size() - 12) == aligned);
  tensor copy = tensors[0];
  store_le<float>(copy.data.writable(), 0, 9);
  CHECK(values_of(tensors[0]) == std::vector<float>{1, 2});
  CHECK(values_of(copy) == std::vector<float>{9, 2});
  tensor_bytes both = tensors[0].data;
  CHECK(both.extend(tensors[1].data) == aligned);
  CHECK(!both.extend(copy.data));
}

TEST_CASE("a folder skips an array of integers with a note, a file of one array refuses it") {
  const temporary_folder folder;
  folder.write("a.npy", one_two);
  const std::string ints = folder.write("b.npy", npy_of("<i8", "(1,)", u64(3)));
  std::vector<std::string> notes;
  CHECK(read_input(folder.path.string(), &notes).size() == 1);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].find("b.npy") != std::string::npos);
  check_refused(argument, ints, "--cast f32");
  CHECK(read_input(folder.path.string(), &notes, dtype::f32).size() == 2);
}

TEST_CASE("a pickle is not opened, and the error reports what reads it") {
  const temporary_folder folder;
  check_refused(argument, folder.write("g.pt", "x"), "`python -m deepreduce convert ");
  check_refused(argument, folder.write("g.pth", "x"), "`python -m deepreduce convert ");
}

TEST_CASE("a large file is mapped and yields what a small one does") {
  const temporary_folder folder;
  const uint64_t n = 5'000'000;  // 20 MB: above 16 MiB
  std::vector<float> values(n);
  for (uint64_t i = 0; i < n; ++i) values[i] = static_cast<float>(i);
  const std::string path = folder.write("a.npy", npy_of("<f4", "(5000000,)  ", floats(values)));
  const tensor t = read_input(path)[0];
  CHECK(load_le<float>(t.data, 4 * (n - 1)) == static_cast<float>(n - 1));
  CHECK(t.data.size() == 4 * n);
}

TEST_CASE("synth accepts d in thousands, millions and with an exponent, whole numbers only") {
  const auto d_of = [](const std::string& d) { return make_synth("synth:density=1e-9,d=" + d).elements; };
  CHECK(d_of("1k") == 1000);
  CHECK(d_of("1.5M") == 1'500'000);
  CHECK(d_of("1e6") == 1'000'000);
  CHECK(d_of("2.50e3") == 2500);
  for (const char* bad :
       {"1.5", "1.2345k", "1m", "1e", "1e-3", "M", ".5M", "1.M", "1kM", "1e99", "1.5.5M", "0k", "2000G"}) {
    INFO(bad);
    check_refused(argument, std::string("synth:d=") + bad, "also 1M, 1e6");
  }
}

TEST_CASE("synth has defaults, takes its keys in any order, and refuses all else with a list of them") {
  const tensor t = read_input("synth:")[0];
  CHECK(t.input == "synth:");
  CHECK(t.shape == std::vector<uint64_t>{1000000});
  CHECK(t.data == make_synth("synth:seed=1,density=1,values=laplace,support=uniform,d=1000000").data);
  CHECK(t.data != make_synth("synth:seed=2").data);
  for (const char* bad : {"synth:d=0",
                          "synth:d=-1",
                          "synth:d=1.5",
                          "synth:d=",
                          "synth:d",
                          "synth:=1",
                          "synth:d=1,",
                          "synth:,d=1",
                          "synth:d=1,d=1",
                          "synth:d=1099511627777",
                          "synth:d=99999999999999999999",
                          "synth:density=0",
                          "synth:density=1.01",
                          "synth:density=nan",
                          "synth:density=-0.1",
                          "synth:density=1e-400",
                          "synth:support=none",
                          "synth:values=",
                          "synth:seed=x",
                          "synth:sed=1",
                          "synth: d=1"}) {
    INFO(bad);
    check_refused(argument, bad, "support=uniform|clustered|powerlaw");
  }
  check_refused(argument, "synth:d=5,sed=1", "synth:d=5,sed=1: byte 10: 'sed=1'");
}

TEST_CASE("synth has exactly the nonzeros that were asked for, at least one") {
  for (const std::string support : {"uniform", "clustered", "powerlaw"}) {
    for (const uint64_t d : {1u, 2u, 3u, 4095u, 4096u, 4097u, 50000u}) {
      for (const char* density : {"1e-9", "0.001", "0.1", "0.5", "0.97", "1"}) {
        const std::string text = "synth:d=" + std::to_string(d) + ",density=" + density + ",support=" + support;
        INFO(text);
        const double asked = std::stod(density) * static_cast<double>(d);
        CHECK(support_of(make_synth(text)).size() == std::max<size_t>(1, static_cast<size_t>(std::round(asked))));
      }
    }
  }
}

// The share of draws beyond x is what the law says, to within 5 standard deviations. Expected values are the
// textbook's distribution functions: exp, erfc, and for Student's t the arctangent.
TEST_CASE("synth draws its values from the law, and with density < 1 from its tail") {
  const std::map<std::string, double (*)(double)> laws = {
      {"laplace", [](double x) { return std::exp(-x); }},
      {"gauss", [](double x) { return std::erfc(x / std::sqrt(2)); }},
      {"student3", [](double x) {
         const double t = x / std::sqrt(3);
         return 1 - 2 / std::acos(-1.0) * (std::atan(t) + t / (1 + t * t));
       }}};
  for (const auto& [name, exceeded] : laws) {
    for (const double density : {1.0, 0.25, 0.01}) {
      const std::string text = "synth:d=" + std::to_string(static_cast<int>(2e5 / density)) + ",values=" + name +
                               ",density=" + std::to_string(density);
      INFO(text);
      std::vector<double> magnitudes;
      double negative = 0;
      for (const float v : values_of(make_synth(text))) {
        if (v != 0) magnitudes.push_back(std::fabs(v) * 1e3);
        negative += v < 0;
      }
      const auto n = static_cast<double>(magnitudes.size());
      CHECK(n == 200000);
      CHECK(std::fabs(negative / n - 0.5) < 5 * 0.5 / std::sqrt(n));
      // Nothing lies below the threshold; beyond x there is exceeded(x) / density of what is left.
      CHECK(exceeded(*std::ranges::min_element(magnitudes)) <= density * (1 + 1e-6));
      for (const double x : {0.01, 0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 12.0}) {
        const double expected = std::min(1.0, exceeded(x) / density);
        const auto beyond = static_cast<double>(std::ranges::count_if(magnitudes, [&](double m) { return m > x; }));
        CHECK(std::fabs(beyond / n - expected) <= 5 * std::sqrt(expected * (1 - expected) / n) + 1e-5);
      }
    }
  }
}

TEST_CASE("synth's supports are uniform, lognormal by block, and by 1 / rank") {
  const uint64_t d = 4096 * 500;
  const auto blocks = [&](const std::string& support) {
    std::vector<double> counts(d / 4096);
    for (const size_t i : support_of(make_synth("synth:d=" + std::to_string(d) + ",density=0.05,support=" + support))) {
      ++counts[i / 4096];
    }
    return counts;
  };
  const auto spread = [](const std::vector<double>& x) {
    double sum = 0, squares = 0;
    for (const double v : x) sum += v, squares += v * v;
    const auto n = static_cast<double>(x.size());
    return std::sqrt(squares / n - sum / n * (sum / n));
  };
  // 4096 * 0.05 * 0.95 = 13.9^2 for a draw without replacement; the ranks are strewn, so blocks do not see them.
  CHECK(std::fabs(spread(blocks("uniform")) - 13.9) < 2.5);
  CHECK(std::fabs(spread(blocks("powerlaw")) - 13.9) < 2.5);
  std::vector<double> logarithms;
  for (const double count : blocks("clustered")) {
    if (count > 0) logarithms.push_back(std::log(count));
  }
  CHECK(std::fabs(spread(logarithms) - 1) < 0.15);

  // The seed decides which elements rank first, so a small support lies largely within a larger one. The probabilities
  // of being kept are min(1, 9.83 / rank) and min(1, 2045 / rank), which add up to 100 and 10000; their products add up
  // to 71. Uniform supports would share 10.
  const std::vector<size_t> few = support_of(make_synth("synth:d=100000,density=0.001,support=powerlaw"));
  const std::vector<size_t> many = support_of(make_synth("synth:d=100000,density=0.1,support=powerlaw"));
  size_t shared = 0;
  for (const size_t i : few) shared += static_cast<size_t>(std::ranges::binary_search(many, i));
  CHECK(shared >= 55);
  CHECK(shared <= 87);
}

// FNV-1a over the bytes, taken down from the first implementation: other machines and compilers must give the same.
TEST_CASE("synth yields the same bytes everywhere") {
  const auto digest = [](const std::string& text) {
    uint64_t h = 0xcbf29ce484222325;
    for (const std::byte b : make_synth(text).data) h = (h ^ static_cast<uint64_t>(b)) * 0x100000001b3;
    return h;
  };
  CHECK(digest("synth:d=100000") == 0x17830094cd91e5aa);
  CHECK(digest("synth:d=100000,values=gauss") == 0x59bdc15cb8f7d77b);
  CHECK(digest("synth:d=100000,values=student3") == 0x3ba4b75e9a43f1a9);
  CHECK(digest("synth:d=1000000,density=0.01") == 0x81c8946dc79b2310);
  CHECK(digest("synth:d=1000000,density=0.01,support=clustered,values=gauss") == 0x05cd383b959dc2e9);
  CHECK(digest("synth:d=1000000,density=0.01,support=powerlaw,values=student3") == 0x1ea7d99219dc99e6);
}
