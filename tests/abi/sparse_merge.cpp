// Sparse outputs of a merge: the union of the frames' supports, compared with a map from rows to sums.
#include <algorithm>
#include <map>

#include "abi/plain_types.hpp"
#include "abi/prepared.hpp"
#include "abi/segmented.hpp"
#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

constexpr dr_dtype value_types[] = {DR_F32, DR_F16, DR_BF16}, index_types[] = {DR_U32, DR_I32, DR_U64, DR_I64};

// A sparse output with room for so many rows, with canaries behind.
struct sparse_out {
  static constexpr uint64_t canary = 0x5a5a5a5a5a5a5a5a;
  abi::numbers values;
  std::vector<uint64_t> indices;
  dr_tensor_out out{};

  sparse_out(dr_dtype dtype, dr_dtype index, uint64_t universe, uint32_t width, uint64_t capacity)
      : values(dtype, capacity * width), indices(capacity + 1, canary) {
    out.struct_size = sizeof out;
    out.dtype = dtype;
    out.index_dtype = index;
    out.universe = universe;
    out.width = width;
    out.capacity = capacity;
  }
  dr_tensor_out& now() {
    out.values = values.bits.data();
    out.indices = indices.data();
    return out;
  }
  bool narrow() const { return out.index_dtype == DR_U32 || out.index_dtype == DR_I32; }
  uint64_t index(size_t i) const {
    uint64_t x = 0;
    std::memcpy(&x, reinterpret_cast<const char*>(indices.data()) + (narrow() ? 4 : 8) * i, narrow() ? 4 : 8);
    return x;
  }
};

using sums = std::map<uint64_t, floats>;

// Adds what a frame's tensors give to the sums.
void add_frame(client::context& c, const bytes& frame, const std::vector<dr_tensor>& shapes, float weight,
               std::vector<sums>& to) {
  std::vector<sparse_out> parts;
  std::vector<dr_tensor_out> outs;
  for (const dr_tensor& t : shapes)
    parts.emplace_back(dr_dtype{DR_F32}, dr_dtype{DR_U64}, t.universe, std::max(1u, t.width), t.universe);
  for (sparse_out& p : parts) outs.push_back(p.now());
  REQUIRE(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, outs.data(), sizeof(dr_tensor_out),
                    outs.size()) == DR_OK);
  for (size_t t = 0; t < outs.size(); ++t)
    for (size_t i = 0; i < outs[t].count; ++i) {
      const uint32_t width = outs[t].width;
      floats& sum = to[t].try_emplace(parts[t].index(i), floats(width)).first->second;
      for (uint32_t w = 0; w < width; ++w) {
        const float term = weight * std::bit_cast<float>(parts[t].values.at(i * width + w));
        sum[w] = sum[w] + term;
      }
    }
}

uint32_t rounded(dr_dtype dtype, float x) {
  return abi::from_float(dtype, std::isnan(x) ? std::bit_cast<float>(0x7fc00000u) : x);
}

void check_same(const sparse_out& got, const dr_tensor_out& told, const sums& wanted) {
  REQUIRE(told.count == wanted.size());
  size_t i = 0, wrong = 0;
  for (const auto& [row, sum] : wanted) {
    wrong += got.index(i) != row;
    for (uint32_t w = 0; w < told.width; ++w) wrong += got.values.at(i * told.width + w) != rounded(told.dtype, sum[w]);
    ++i;
  }
  CHECK(wrong == 0);
  // Nothing behind the count.
  if (told.count < told.capacity) CHECK((got.index(i) == (got.narrow() ? 0x5a5a5a5a : sparse_out::canary)));
}

dr_status merge(client::context& c, const std::vector<bytes>& frames, const float* weights,
                std::vector<dr_tensor_out>& outs, uint32_t flags = 0) {
  std::vector<dr_bytes> list;
  for (const bytes& f : frames) list.push_back({f.data(), f.size()});
  dr_decode_options options{};
  options.struct_size = sizeof options;
  options.flags = flags;
  return dr_merge(c.handle, nullptr, list.data(), weights, list.size(), &options, outs.data(), sizeof(dr_tensor_out),
                  outs.size());
}

struct shape {
  uint64_t universe;
  uint32_t width;
};

// Gradients of some shapes, and the tensors that they are.
struct gradients {
  std::vector<abi::numbers> values;
  std::vector<dr_tensor> tensors;

  gradients(const std::vector<shape>& shapes, dr_dtype dtype, client::rng& random, double density) {
    for (const shape& s : shapes) {
      abi::numbers& v = values.emplace_back(dtype, s.universe * s.width);
      for (uint64_t row = 0; row < s.universe; ++row) {
        const bool zero = random.uniform() >= density;
        for (uint32_t w = 0; w < s.width; ++w) v.set(row * s.width + w, zero ? 0.0f : random.laplace(1));
      }
    }
    for (size_t i = 0; i < shapes.size(); ++i) {
      dr_tensor t{};
      t.struct_size = sizeof t;
      t.dtype = dtype;
      t.universe = shapes[i].universe;
      t.width = shapes[i].width;
      t.values = values[i].bits.data();
      tensors.push_back(t);
    }
  }
};

}  // namespace

TEST_CASE(
    "a sparse merge gives the union of supports and the sums of a map, over codecs, types, widths, k and segments") {
  // Density, and what it is sent by. Of many rows in a tile, of few, of none.
  const struct {
    const char* text;
    double density;
  } plans[] = {
      {"index=raw value=raw", 0.02},          {"index=golomb value=qsgd", 0.1}, {"index=bloom(fpr=0.05)", 0.05},
      {"index=elias_fano value=half", 0.001}, {"index=golomb value=raw", 1},  // dense rows
      {"index=all value=raw", 0.5},                                           // supports that are not there
  };
  client::rng random{7};
  client::context serial, threads(3);
  const std::vector<shape> kinds[] = {
      {{100000, 1}, {1, 1}, {700, 1}}, {{3000, 3}, {50, 1}}, {{3, 70000}}, {{0, 1}, {40, 5}}};
  size_t rows = 0;
  for (size_t k = 0; k < 10; ++k)
    for (const auto& shapes : kinds) {
      const dr_dtype frame_type = value_types[k % 3];
      const auto& first_plan = plans[(k + shapes.size()) % std::size(plans)];
      CAPTURE(k);
      CAPTURE(first_plan.text);
      std::vector<bytes> frames;
      floats weights;
      std::vector<sums> wanted(shapes.size());
      std::vector<dr_tensor> tensors;
      for (size_t f = 0; f < k; ++f) {
        const auto& plan = f ? plans[random.next() % std::size(plans)] : first_plan;
        const bool is_wide = shapes[0].width > 1 && std::string(plan.text).find("half") != std::string::npos;
        const gradients g(shapes, f % 2 ? frame_type : dr_dtype{DR_F32}, random, plan.density);
        dr_call call{};
        call.segment_rows = f % 3 == 1 ? 200 + random.next() % 5000 : 0;
        const bool half = std::string(plan.text).find("half") != std::string::npos && g.tensors[0].dtype != DR_F32;
        frames.push_back(
            abi::encode_segmented(serial, half || is_wide ? "index=elias_fano value=raw" : plan.text, g.tensors, call));
        weights.push_back(k % 2 ? random.laplace(2) : 1);
        add_frame(serial, frames.back(), g.tensors, weights.back(), wanted);
      }
      for (client::context* c : {&serial, &threads}) {
        std::vector<sparse_out> rooms;
        std::vector<dr_tensor_out> outs;
        for (size_t t = 0; t < shapes.size(); ++t)
          rooms.emplace_back(value_types[(k / 3 + t) % 3], index_types[(k + t) % 4], shapes[t].universe,
                             shapes[t].width, wanted[t].size() + (k % 2 && shapes[t].universe ? 1 : 0));
        for (sparse_out& r : rooms) outs.push_back(r.now());
        REQUIRE_MESSAGE(merge(*c, frames, k % 2 ? weights.data() : nullptr, outs) == DR_OK, c->error());
        for (size_t t = 0; t < shapes.size(); ++t) {
          check_same(rooms[t], outs[t], wanted[t]);
          rows += outs[t].count;
        }
      }
    }
  CHECK(rows > 100000);
}

TEST_CASE("dense and sparse outputs of one merge") {
  client::context c;
  client::rng random{9};
  const std::vector<shape> shapes = {{5000, 1}, {900, 2}, {4000, 1}};
  std::vector<bytes> frames;
  std::vector<sums> wanted(3);
  uint64_t added = 0;
  for (int f = 0; f < 4; ++f) {
    const gradients g(shapes, DR_F32, random, 0.05);
    frames.push_back(client::encode(c, "index=golomb", g.tensors));
    std::vector<sums> alone(3);
    add_frame(c, frames.back(), g.tensors, 1, wanted);
    add_frame(c, frames.back(), g.tensors, 1, alone);
    added += alone[1].size();
  }
  sparse_out first(DR_F32, DR_U32, 5000, 1, 5000), last(DR_BF16, DR_I64, 4000, 1, 4000);
  floats middle(1800, 7);
  std::vector<dr_tensor_out> outs = {first.now(), client::dense_out(middle, 2), last.now()};
  REQUIRE(merge(c, frames, nullptr, outs) == DR_OK);
  check_same(first, outs[0], wanted[0]);
  check_same(last, outs[2], wanted[2]);
  CHECK(outs[1].count == added);  // of all frames, equal rows again
  CHECK(added > wanted[1].size());
  for (uint64_t row = 0; row < 900; ++row)
    for (uint32_t w = 0; w < 2; ++w) CHECK(middle[2 * row + w] == (wanted[1].count(row) ? wanted[1][row][w] : 0.0f));
}

TEST_CASE("a union that has no room is CAPACITY, reports how many rows would do, and no output is touched") {
  client::context c;
  client::rng random{3};
  const std::vector<shape> shapes = {{3000, 1}, {3000, 1}};
  std::vector<bytes> frames;
  std::vector<sums> wanted(2);
  for (int f = 0; f < 3; ++f) {
    const gradients g(shapes, DR_F32, random, 0.1);
    frames.push_back(client::encode(c, "index=golomb", g.tensors));
    add_frame(c, frames.back(), g.tensors, 1, wanted);
  }
  const uint64_t rows = wanted[1].size();
  for (const uint64_t capacity : {uint64_t{0}, uint64_t{5}, rows - 1}) {
    sparse_out first(DR_F32, DR_U32, 3000, 1, 3000), second(DR_F32, DR_U64, 3000, 1, capacity);
    const auto before = first.values.bits;
    std::vector<dr_tensor_out> outs = {first.now(), second.now()};
    REQUIRE(merge(c, frames, nullptr, outs) == DR_E_CAPACITY);
    const dr_error& e = *dr_last_error(c.handle);
    CHECK(e.tensor == 1);
    CHECK(e.needed == rows);
    CHECK(c.error().find(std::to_string(capacity)) != std::string::npos);
    CHECK(first.values.bits == before);
    CHECK(first.index(0) == 0x5a5a5a5a);
    CHECK(outs[0].count == 0);
  }
  sparse_out first(DR_F32, DR_U32, 3000, 1, 3000), second(DR_F32, DR_U64, 3000, 1, rows);
  std::vector<dr_tensor_out> outs = {first.now(), second.now()};
  CHECK(merge(c, frames, nullptr, outs) == DR_OK);
  CHECK(outs[1].count == rows);
}

TEST_CASE("sparse outputs that cannot be: nothing is added to them, indices are there and aligned") {
  client::context c;
  const bytes frame = client::encode(c, "index=raw", {client::dense(client::laplace(50, 1))});
  sparse_out room(DR_F32, DR_U64, 50, 1, 50);
  const auto status = [&](uint32_t flags, auto change) {
    std::vector<dr_tensor_out> outs = {room.now()};
    change(outs[0]);
    return merge(c, {frame}, nullptr, outs, flags);
  };
  CHECK(status(0, [](auto&) {}) == DR_OK);
  CHECK(status(DR_DECODE_ADD, [](auto&) {}) == DR_E_ARGUMENT);
  CHECK(dr_last_error(c.handle)->tensor == 0);
  CHECK(status(0, [](auto& o) { o.indices = nullptr; }) == DR_E_ARGUMENT);
  CHECK(status(0, [](auto& o) { o.indices = static_cast<char*>(o.indices) + 4; }) == DR_E_ARGUMENT);
  CHECK(status(0, [](auto& o) { o.values = nullptr; }) == DR_E_ARGUMENT);
  // No frames: an empty union.
  std::vector<dr_tensor_out> outs = {room.now()};
  outs[0].count = 9;
  REQUIRE(merge(c, {}, nullptr, outs) == DR_OK);
  CHECK(outs[0].count == 0);
}

TEST_CASE("sums that are not numbers: infinity less infinity, and sums beyond the largest of 16 bits") {
  client::context c;
  const std::vector<uint32_t> rows = {2, 5, 7};
  const bytes a = client::encode(c, "index=raw", {client::sparse(rows, {INFINITY, 60000, 1e-30f}, 9)}),
              b = client::encode(c, "index=raw", {client::sparse(rows, {-INFINITY, 60000, -1e-30f}, 9)});
  for (const dr_dtype type : value_types) {
    sparse_out room(type, DR_U32, 9, 1, 3);
    std::vector<dr_tensor_out> outs = {room.now()};
    REQUIRE(merge(c, {a, b}, nullptr, outs) == DR_OK);
    CHECK(room.values.at(0) == abi::from_float(type, std::bit_cast<float>(0x7fc00000u)));
    CHECK(room.values.at(1) == abi::from_float(type, 120000));
    CHECK(room.values.at(2) == 0);
  }
}

TEST_CASE("a row of 2^40 elements away costs no more than one near") {
  client::context c;
  const std::vector<uint64_t> rows = {0, (uint64_t{1} << 33) + 5, uint64_t{1} << 39}, others = {1, uint64_t{1} << 39};
  const uint64_t universe = uint64_t{1} << 40;
  dr_call call{};
  const bytes a = client::encode(c, "index=golomb", {client::sparse(rows, {1, 2, 3}, universe)}, call),
              b = client::encode(c, "index=raw", {client::sparse(others, {10, 20}, universe)}, call);
  sparse_out room(DR_F32, DR_I64, universe, 1, 4);
  std::vector<dr_tensor_out> outs = {room.now()};
  REQUIRE_MESSAGE(merge(c, {a, b}, nullptr, outs) == DR_OK, c.error());
  REQUIRE(outs[0].count == 4);
  const uint64_t wanted[] = {0, 1, rows[1], rows[2]};
  const float sum[] = {1, 10, 2, 23};
  for (size_t i = 0; i < 4; ++i) {
    CHECK(room.index(i) == wanted[i]);
    CHECK(room.values.at(i) == std::bit_cast<uint32_t>(sum[i]));
  }
}

TEST_CASE("prepared merges and bindings give sparse outputs, too, in the workspace that was asked for") {
  for (const uint32_t workers : {1u, 3u}) {
    client::context c(workers);
    client::rng random{5};
    const std::vector<shape> shapes = {{20000, 1}, {300, 4}};
    const gradients typical(shapes, DR_F32, random, 1);
    client::plan p("index=golomb value=qsgd");
    abi::batch prepared;
    REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, typical.tensors.data(), sizeof(dr_tensor), 2, 0,
                            &prepared.handle) == DR_OK);
    std::vector<bytes> frames;
    std::vector<sums> wanted(2);
    const floats weights = {1, -2, 0.5f, 3, 0.25f};
    for (size_t f = 0; f < 5; ++f) {
      const gradients g(shapes, DR_F32, random, 0.05);
      frames.push_back(client::encode(c, "index=golomb value=qsgd", g.tensors));
      add_frame(c, frames.back(), g.tensors, weights[f], wanted);
    }
    std::vector<dr_bytes> list;
    for (const bytes& f : frames) list.push_back({f.data(), f.size()});
    size_t room = 0;
    REQUIRE(dr_batch_merge_workspace(prepared.handle, 5, &room, nullptr) == DR_OK);
    abi::aligned_bytes workspace(room);
    sparse_out first(DR_F32, DR_U32, 20000, 1, 20000), second(DR_F16, DR_I64, 300, 4, 300);
    std::vector<dr_tensor_out> outs = {first.now(), second.now()};
    REQUIRE_MESSAGE(dr_batch_merge(c.handle, prepared.handle, nullptr, list.data(), weights.data(), 5, nullptr,
                                   outs.data(), sizeof(dr_tensor_out), 2, workspace.data, room, nullptr) == DR_OK,
                    c.error());
    check_same(first, outs[0], wanted[0]);
    check_same(second, outs[1], wanted[1]);
    sparse_out third(DR_BF16, DR_I32, 20000, 1, 20000), fourth(DR_F32, DR_U64, 300, 4, 300);
    outs = {third.now(), fourth.now()};
    dr_binding* binding = nullptr;
    REQUIRE(dr_binding_create(c.handle, prepared.handle, nullptr, nullptr, 0, outs.data(), sizeof(dr_tensor_out), 2, 5,
                              &binding) == DR_OK);
    for (int step = 0; step < 2; ++step) {
      outs[0].count = outs[1].count = 1;
      CHECK(dr_binding_merge(binding, list.data(), weights.data(), 5, nullptr, nullptr) == DR_OK);
      check_same(third, outs[0], wanted[0]);
      check_same(fourth, outs[1], wanted[1]);
    }
    dr_binding_destroy(binding);
  }
}
