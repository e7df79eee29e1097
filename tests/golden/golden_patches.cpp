// Patches made by the reference encoder (make.py): each takes its base to what the table says, or fails as it says and leaves the base as
// it was; and the library encodes what the reference encodes, byte for byte.
#include <map>

#include "fuzz/fix_check.hpp"
#include "golden/golden_tables.hpp"

namespace {

using namespace golden;

// A golden patch and what its receiver has.
struct patch {
  std::string name, plan;
  dr_status status;
  bool by_inspect;
  bytes frame;
  std::vector<tensor> bases, pairs;
  bytes history = {};  // of its one tensor; none: it has none

  bytes becomes(size_t i) const {
    bytes out = bases[i].packed();
    const bytes values = pairs[i].packed();
    const size_t row = pairs[i].width * pairs[i].value_size();
    for (size_t k = 0; k < pairs[i].indices.size(); ++k)
      std::memcpy(out.data() + pairs[i].indices[k] * row, values.data() + k * row, row);
    return out;
  }
};

std::vector<patch> patches() {
  std::vector<patch> all;
  std::map<std::string, bytes> histories;
  for (const auto& row : read_table("patch_histories.tsv", 2))
    for (size_t i = 0; i < row[1].size(); i += 2)
      histories[row[0]].push_back(static_cast<uint8_t>(std::stoul(row[1].substr(i, 2), nullptr, 16)));
  for (const auto& row : read_table("patches.tsv", 7)) {
    patch p{row[0], row[5], status_of(row[1]), row[2] == "inspect", read_frame(row[0]), {}, {}};
    for (const auto& text : split(row[3], " | ")) p.bases.push_back(read_tensor(text));
    if (row[4] != "-")
      for (const auto& text : split(row[4], " | ")) p.pairs.push_back(read_tensor(text));
    p.history = histories[p.name];
    all.push_back(std::move(p));
  }
  return all;
}

dr_tensor_out out_of(const tensor& t, bytes& values, bytes& history) {
  dr_tensor_out o{};
  o.struct_size = sizeof o;
  o.dtype = t.dtype;
  o.universe = t.rows;
  o.width = t.width;
  o.values = values.data();
  if (!history.empty()) o.history = history.data();
  return o;
}

dr_status apply(client::context& c, const bytes& frame, std::vector<dr_tensor_out>& outs) {
  dr_decode_options options{};
  options.struct_size = sizeof options;
  options.flags = DR_DECODE_APPLY;
  const bytes exact(frame);
  return dr_decode(c.handle, nullptr, exact.data(), exact.size(), &options, outs.data(), sizeof(dr_tensor_out),
                   outs.size());
}

}  // namespace

TEST_CASE("every golden patch takes its base to its bits, or fails with its status and leaves the base") {
  client::context one, threads(3);
  size_t applied = 0, refused = 0;
  for (const patch& p : patches())
    for (client::context* c : {&one, &threads}) {
      INFO(p.name);
      bytes history = p.history;
      std::vector<bytes> values;
      std::vector<dr_tensor_out> outs;
      for (const tensor& t : p.bases) values.push_back(t.packed());
      for (size_t i = 0; i < values.size(); ++i) outs.push_back(out_of(p.bases[i], values[i], history));
      dr_frame_info info{};
      info.struct_size = sizeof info;
      const dr_status inspected = dr_inspect(p.frame.data(), p.frame.size(), &info, nullptr, 0, 0, nullptr);
      CHECK(inspected == (p.by_inspect ? p.status : dr_status{DR_OK}));
      CHECK(apply(*c, p.frame, outs) == p.status);
      INFO(c->error());
      for (size_t i = 0; i < values.size(); ++i) CHECK(values[i] == (p.status ? p.bases[i].packed() : p.becomes(i)));
      CHECK((history == p.history) == (p.status != DR_OK || history.empty()));
      (p.status ? refused : applied) += 1;
      if (p.status) continue;
      history = p.history;
      for (size_t i = 0; i < outs.size(); ++i) CHECK(outs[i].count == p.pairs[i].indices.size());
      // As pairs.
      std::vector<std::vector<uint64_t>> indices;
      for (size_t i = 0; i < outs.size(); ++i) {
        indices.emplace_back(p.pairs[i].indices.size());
        const bytes base = p.bases[i].packed();
        values.push_back(base);
      }
      for (size_t i = 0; i < outs.size(); ++i) {
        values[i].assign(p.pairs[i].packed().size(), 0xcd);
        outs[i].index_dtype = DR_U64;
        outs[i].indices = indices[i].data();
        outs[i].values = values[i].data();
        outs[i].capacity = indices[i].size();
        outs[i].base = values[outs.size() + i].data();
      }
      REQUIRE(apply(*c, p.frame, outs) == DR_OK);
      for (size_t i = 0; i < outs.size(); ++i) {
        CHECK(indices[i] == p.pairs[i].indices);
        CHECK(values[i] == p.pairs[i].packed());
      }
    }
  CHECK(applied > 60);
  CHECK(refused > 60);
}

TEST_CASE("every golden patch that is cut off or damaged is refused, and the base stays") {
  client::context c;
  for (const patch& p : patches()) {
    if (p.status) continue;
    INFO(p.name);
    bytes history = p.history;
    std::vector<bytes> values;
    std::vector<dr_tensor_out> outs;
    for (const tensor& t : p.bases) values.push_back(t.packed());
    for (size_t i = 0; i < values.size(); ++i) outs.push_back(out_of(p.bases[i], values[i], history));
    for (size_t n = 1; n < p.frame.size(); ++n)
      REQUIRE(apply(c, bytes(p.frame.begin(), p.frame.begin() + static_cast<long>(n)), outs) == DR_E_CORRUPT);
    bytes flipped(p.frame);
    for (size_t bit = 0; bit < 8 * flipped.size(); ++bit) {
      flipped[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      REQUIRE(apply(c, flipped, outs) != DR_OK);
      flipped[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    }
    for (size_t i = 0; i < values.size(); ++i) CHECK(values[i] == p.bases[i].packed());
    CHECK(history == p.history);
    bytes fixed(p.frame);
    for (size_t i = 4; i < 12; ++i) fixed[i] = 0;
    CHECK(frame_check::fix(fixed.data(), fixed.size()));
    CHECK(fixed == p.frame);
  }
}

TEST_CASE("the library makes the patches of the reference encoder") {
  client::context c;
  size_t made = 0;
  for (const patch& p : patches()) {
    if (p.plan == "-") continue;
    INFO(p.name << ": " << p.plan);
    std::vector<bytes> bases, nows;
    std::vector<dr_tensor> tensors;
    for (size_t i = 0; i < p.bases.size(); ++i) {
      bases.push_back(p.bases[i].packed());
      nows.push_back(p.becomes(i));
    }
    for (size_t i = 0; i < p.bases.size(); ++i) {
      dr_tensor t{};
      t.struct_size = sizeof t;
      t.dtype = p.bases[i].dtype;
      t.universe = p.bases[i].rows;
      t.width = p.bases[i].width;
      t.values = nows[i].data();
      t.base = bases[i].data();
      tensors.push_back(t);
    }
    CHECK(client::encode(c, p.plan, tensors) == p.frame);
    ++made;
  }
  CHECK(made >= 10);
}
