// Gradients of any type through the C ABI, and what plain code expects of them.
#pragma once

#include <algorithm>
#include <deque>
#include <numeric>

#include "cases/case.hpp"
#include "client.hpp"
#include "sweep.hpp"
#include "tool/plugin_test/guarded_bytes.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::properties {

using client::bytes;

// A tensor with its memory. Sparse if it has indices or says so.
struct gradient {
  uint64_t universe;
  bytes values;
  uint32_t dtype = DR_F32, width = 1;
  std::vector<uint32_t> indices;
  bool sparse = false;

  uint64_t row_size() const { return uint64_t{width} * cases::format_of(dtype).bytes; }
  dr_tensor view() const {
    dr_tensor t{};
    t.struct_size = sizeof t;
    t.dtype = dtype;
    t.index_dtype = sparse ? DR_U32 : 0;
    t.universe = universe;
    t.width = width;
    t.values = values.data();
    t.indices = indices.data();
    t.count = indices.size();
    return t;
  }
};

inline std::vector<dr_tensor> views(std::span<const gradient> batch) {
  std::vector<dr_tensor> out;
  for (const gradient& g : batch) out.push_back(g.view());
  return out;
}

inline bytes laplace(cases::random_source& random, uint32_t dtype, uint64_t n) {
  std::vector<uint32_t> bits(n);
  for (uint32_t& b : bits) b = cases::bits_of(dtype, 0.001 * random.laplace());
  return cases::bytes_of(bits, cases::format_of(dtype).bytes);
}
inline gradient dense(cases::random_source& random, uint64_t universe, uint32_t dtype = DR_F32) {
  return {universe, laplace(random, dtype, universe), dtype, 1, {}, false};
}
inline gradient sparse(cases::random_source& random, uint64_t universe, std::vector<uint32_t> indices,
                       uint32_t width = 1) {
  const uint64_t n = indices.size();
  return {universe, laplace(random, DR_F32, n * width), DR_F32, width, std::move(indices), true};
}
inline gradient without_rows() { return {0, {}, DR_F32, 1, {}, false}; }

// Rows in ascending order, and their values.
struct rows {
  std::vector<uint32_t> indices;
  bytes values;

  bool operator==(const rows&) const = default;
  bytes scattered(const gradient& like) const {
    bytes out(like.universe * like.row_size());
    for (size_t i = 0; i < indices.size(); ++i)
      std::copy_n(values.begin() + static_cast<ptrdiff_t>(i * like.row_size()), like.row_size(),
                  out.begin() + static_cast<ptrdiff_t>(indices[i] * like.row_size()));
    return out;
  }
};

// Of a dense gradient of width 1 the `target` largest in magnitude that are not zero, ties to the lower index.
inline rows largest(const gradient& g, uint64_t target) {
  const auto v = cases::numbers(g.dtype, g.values);
  std::vector<uint32_t> order(v.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return std::fabs(v[a]) > std::fabs(v[b]); });
  order.resize(std::min<uint64_t>(target, order.size()));
  std::erase_if(order, [&](uint32_t i) { return v[i] == 0; });
  std::ranges::sort(order);
  rows out{order, {}};
  for (const uint32_t i : order)
    out.values.insert(out.values.end(), &g.values[i * g.row_size()], &g.values[i * g.row_size()] + g.row_size());
  return out;
}

// The first codec of a list such as "bloom(policy=p0)+deflate".
inline const dr_codec& codec_of(dr_role role, const std::string& list) {
  const std::string name = list.substr(0, list.find_first_of("(+"));
  for (size_t i = 0; i < dr_codec_count(); ++i)
    if (const dr_codec* c = dr_codec_at(i); c->role == role && c->name == name) return *c;
  FAIL("no codec " << name);
  return *dr_codec_at(0);
}

inline bool needs_base(const cases::codec_case& c) { return codec_of(c.role, c.name).traits & DR_NEEDS_BASE; }

// What the cases of a role put into a plan, each alone and with a bytes stage behind it. (Codecs of patches: patch_pairs.cpp.)
inline std::vector<std::string> lists(dr_role role, bool of_patches = false) {
  std::vector<std::string> out;
  for (const cases::codec_case& c : cases::all())
    for (const char* text : c.plans) {
      if (c.role != role || (needs_base(c) && !of_patches)) continue;
      out.push_back(text);
      out.push_back(out.back() + "+deflate");
    }
  return out;
}

struct pair_plan {
  std::string index, value;
  bool regather = true;

  bool index_has(uint32_t trait) const { return codec_of(DR_ROLE_INDEX, index).traits & trait; }
  bool value_has(uint32_t trait) const { return codec_of(DR_ROLE_VALUE, value).traits & trait; }
  std::string text(const std::string& sparsify = "none") const {
    return "sparsify=" + sparsify + " index=" + index + " value=" + value +
           (value_has(DR_REORDERS) && value.ends_with("deflate") ? " order=bitpack+deflate" : "") +
           (regather ? "" : " regather=off");
  }
};
// Pairs with a codec of which tests are asked for (bytes and order codecs are in every pair).
inline bool is_asked_for(const std::string& index, const std::string& value) {
  const auto of_either = [](dr_role role) {
    return std::ranges::any_of(
        cases::all(), [&](const cases::codec_case& c) { return c.role == role && cases::is_asked_for(role, c.name); });
  };
  static const bool any = of_either(DR_ROLE_BYTES) || of_either(DR_ROLE_ORDER);
  return any || cases::is_asked_for(DR_ROLE_INDEX, codec_of(DR_ROLE_INDEX, index).name) ||
         cases::is_asked_for(DR_ROLE_VALUE, codec_of(DR_ROLE_VALUE, value).name);
}
// Every pair of an index and a value list; with re-gathering on and off where that means something. In a part of the sweep each list
// meets each codec of the other role, at its defaults; under sanitizers a third of them.
inline std::vector<pair_plan> pair_plans() {
  std::vector<pair_plan> out;
  const auto is_default = [](const std::string& list) {
    return std::ranges::any_of(cases::all(), [&](const cases::codec_case& c) { return list == c.plans[0]; });
  };
  size_t combination = 0;
  for (const std::string& index : lists(DR_ROLE_INDEX))
    for (const std::string& value : lists(DR_ROLE_VALUE)) {
      if (!whole_sweep && !is_default(index) && !is_default(value)) continue;
      if (!is_asked_for(index, value)) continue;
      if (sanitized && combination++ % 3) continue;
      out.push_back({index, value});
      if (out.back().index_has(DR_REPLACES_SUPPORT)) out.push_back({index, value, false});
    }
  return out;
}

// Outputs for a batch, in memory that faults on the first byte outside.
class receiver {
 public:
  explicit receiver(std::span<const gradient> like) {
    for (const gradient& g : like) {
      values_.emplace_back(g.universe * g.row_size(), 4);
      indices_.emplace_back(4 * g.universe, 4);
      dr_tensor_out& out = outs_.emplace_back();
      out.struct_size = sizeof out;
      out.dtype = g.dtype;
      out.universe = g.universe;
      out.width = g.width;
      out.values = values_.back().data();
      out.indices = indices_.back().data();
      out.capacity = g.universe;
    }
  }
  dr_status decode(client::context& c, std::span<const uint8_t> frame, dr_dtype index_dtype) {
    for (dr_tensor_out& out : outs_) out.index_dtype = index_dtype;
    for (guarded_bytes& v : values_) v.fill(0xee);
    dr_status status = DR_OK;
    const bool inside = stays_inside([&] {
      status = dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, outs_.data(), sizeof(dr_tensor_out),
                         outs_.size());
    });
    REQUIRE(inside);
    for (const auto* all : {&values_, &indices_})
      for (const guarded_bytes& b : *all) {
        const bool intact = b.intact();
        REQUIRE(intact);
      }
    return status;
  }
  bytes dense(size_t i) const { return {values_[i].bytes().begin(), values_[i].bytes().end()}; }
  rows sparse(size_t i) const {
    const uint64_t row = outs_[i].universe ? values_[i].size() / outs_[i].universe : 0;
    const auto v = values_[i].first(outs_[i].count * row);
    return {cases::words(indices_[i].first(4 * outs_[i].count)), {v.begin(), v.end()}};
  }
  bool in_range() const {
    for (size_t i = 0; i < outs_.size(); ++i) {
      const auto support = sparse(i).indices;
      if (std::ranges::adjacent_find(support, std::greater_equal()) != support.end()) return false;
      if (!support.empty() && support.back() >= outs_[i].universe) return false;
    }
    return true;
  }

 private:
  std::deque<guarded_bytes> values_, indices_;
  std::vector<dr_tensor_out> outs_;
};

struct frame_facts {
  dr_frame_info head{};
  std::vector<dr_tensor_info> tensors;

  // What is not payload: headers, checks, padding.
  uint64_t overhead() const {
    uint64_t size = head.frame_size;
    for (const dr_tensor_info& t : tensors) size -= t.index_size + t.value_size + t.order_size;
    return size;
  }
};
inline frame_facts inspect(const bytes& frame, size_t tensors) {
  frame_facts out;
  out.head.struct_size = sizeof out.head;
  out.tensors.resize(tensors);
  for (dr_tensor_info& t : out.tensors) t.struct_size = sizeof t;
  dr_error error{sizeof(dr_error)};
  const dr_status status =
      dr_inspect(frame.data(), frame.size(), &out.head, out.tensors.data(), sizeof(dr_tensor_info), tensors, &error);
  INFO(std::string(error.message));
  REQUIRE(status == DR_OK);
  REQUIRE(out.head.tensors == tensors);
  return out;
}

}  // namespace dr::properties
