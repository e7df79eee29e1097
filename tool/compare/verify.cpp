#include "verify.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tool/read/number.hpp"

namespace dr::compare {
namespace {

template <class... Args>
void demand(bool holds, fmt::format_string<Args...> text, Args&&... args) {
  if (!holds) throw verify_error(fmt::format(text, std::forward<Args>(args)...));
}

// The sparse form of a frame. `values` has the tensor's type.
struct sparse_form {
  std::vector<uint64_t> support;
  std::vector<std::byte> values;
};

// One tensor of a frame, in the domain of what was selected.
dr_decode_options only(uint64_t position, const plan_reading& plan) {
  dr_decode_options options = as_selected(plan);
  options.first_tensor = position;
  options.tensors = 1;
  return options;
}

sparse_form decode_sparse(context& c, const tensor& g, std::span<const std::byte> frame, const dr_tensor_info& info,
                          const dr_decode_options& options) {
  demand(info.support <= g.elements, "the header says support {}, but d = {}", info.support, g.elements);
  sparse_form s;
  s.support.resize(info.support);
  s.values.resize(info.support * size_of(g.type));
  const uint64_t count = c.decode(
      frame, sparse_out(abi_dtype(g.type), s.values.data(), DR_U64, s.support.data(), info.support, g.elements),
      &options);
  demand(count == info.support, "decode returns {} elements, the header says {}", count, info.support);
  for (size_t i = 0; i < s.support.size(); ++i) {
    demand(s.support[i] < g.elements, "decoded index {} is not below d = {}", s.support[i], g.elements);
    demand(i == 0 || s.support[i - 1] < s.support[i], "decoded indices do not ascend: {} after {}", s.support[i],
           i ? s.support[i - 1] : 0);
  }
  return s;
}

void compare_header(const tensor& g, const dr_tensor_info& info) {
  demand(info.universe == g.elements && info.width == 1 && info.dtype == abi_dtype(g.type),
         "the header says {} rows of {} of type {}, but it is {} of 1 of type {}", info.universe, info.width,
         info.dtype, g.elements, abi_dtype(g.type));
}

void compare_dense_and_sparse(const tensor& g, std::span<const std::byte> dense, const sparse_form& s) {
  size_t next = 0;
  for (uint64_t i = 0; i < g.elements; ++i) {
    const bool there = next < s.support.size() && s.support[next] == i;
    const uint32_t expected = there ? bits_at(g.type, s.values, next++) : 0, found = bits_at(g.type, dense, i);
    demand(found == expected, "element {}: dense decode returns bits {:#x}, sparse decode {:#x}", i, found, expected);
  }
}

void compare_support(std::span<const uint64_t> selected, std::span<const uint64_t> support) {
  const auto [a, b] = std::mismatch(selected.begin(), selected.end(), support.begin(), support.end());
  if (a == selected.end() && b == support.end()) return;
  const auto name = [](auto at, auto end) { return at == end ? std::string("none") : std::to_string(*at); };
  throw verify_error(fmt::format("support: position {} is index {}, but the sparsifier selects {} (sizes {} and {})",
                                 a - selected.begin(), name(b, support.end()), name(a, selected.end()), support.size(),
                                 selected.size()));
}

// The values sent for the support: g at its positions, or without regather those at `selected`, then zeros.
void compare_values(const tensor& g, std::span<const uint64_t> selected, bool regathered, const sparse_form& s) {
  for (size_t i = 0; i < s.support.size(); ++i) {
    uint32_t sent = 0;
    if (regathered)
      sent = bits_at(g.type, g.data, s.support[i]);
    else if (i < selected.size())
      sent = bits_at(g.type, g.data, selected[i]);
    const uint32_t found = bits_at(g.type, s.values, i);
    demand(found == sent, "element {}: decoded bits {:#x}, sent {:#x}, and the value codec is exact", s.support[i],
           found, sent);
  }
}

// All elements were sent: g at the selected positions, else zero.
void compare_dense_fallback(const tensor& g, std::span<const uint64_t> selected, std::span<const std::byte> dense) {
  auto next = selected.begin();
  for (uint64_t i = 0; i < g.elements; ++i) {
    const bool is_selected = next != selected.end() && *next == i;
    next += is_selected;
    const uint32_t sent = is_selected ? bits_at(g.type, g.data, i) : 0, found = bits_at(g.type, dense, i);
    demand(found == sent, "element {}: decoded bits {:#x}, sent dense {:#x}", i, found, sent);
  }
}

}  // namespace

dr_decode_options as_selected(const plan_reading& plan) {
  auto options = sized<dr_decode_options>();
  if (plan.coefficients) options.flags = DR_DECODE_COEFFICIENTS;
  return options;
}

dr_tensor source_of(const tensor& t, const void* values) {
  dr_tensor source = dense(abi_dtype(t.type), values, t.elements);
  if (t.shape.size() > 1 && t.elements) source.rows = t.shape[0];
  return source;
}

dr_dtype abi_dtype(dtype type) { return type == dtype::f32 ? DR_F32 : type == dtype::f16 ? DR_F16 : DR_BF16; }

decoded_tensor verify(context& c, const tensor& g, const plan_reading& plan, std::span<const uint64_t> selected,
                      std::span<const std::byte> frame, const dr_tensor_info& info, uint64_t position) {
  compare_header(g, info);
  const dr_decode_options options = only(position, plan);
  sparse_form s = decode_sparse(c, g, frame, info, options);
  decoded_tensor decoded;
  decoded.dense.assign(g.data.size(), std::byte{0xa5});  // decode must overwrite all of it
  c.decode(frame, dense_out(abi_dtype(g.type), decoded.dense.data(), g.elements), &options);
  compare_dense_and_sparse(g, decoded.dense, s);
  demand(info.count == selected.size(), "the header says r = {}, but the sparsifier selects {}", info.count,
         selected.size());
  const bool same_support = plan.exact_index || info.fallback == DR_FALLBACK_RAW_INDEX;
  if (info.segments > 1) {
    // info has the largest fallback of all segments, and values without regather restart in every segment.
    if (plan.exact_index) compare_support(selected, s.support);
    if (plan.exact_value && plan.regather) compare_values(g, selected, true, s);
  } else if (info.fallback == DR_FALLBACK_DENSE) {
    compare_dense_fallback(g, selected, decoded.dense);
  } else {
    if (same_support) compare_support(selected, s.support);
    if (plan.exact_value) compare_values(g, selected, plan.regather || same_support, s);
  }
  decoded.support = std::move(s.support);
  return decoded;
}

void verify_merge(context& c, const plan_reading& plan, std::span<const uint64_t> elements,
                  std::span<const std::byte> a, std::span<const std::byte> b) {
  const dr_decode_options options = as_selected(plan);
  const uint64_t d = std::accumulate(elements.begin(), elements.end(), uint64_t{0});
  std::vector<float> sum(d), other(d);
  const auto outs_at = [&](std::vector<float>& values) {
    std::vector<dr_tensor_out> outs;
    uint64_t first = 0;
    for (const uint64_t n : elements) outs.push_back(dense_out(std::span(values).subspan(first, n))), first += n;
    return outs;
  };
  std::vector<dr_tensor_out> into_sum = outs_at(sum), into_other = outs_at(other);
  c.decode(a, into_sum, &options);
  c.decode(b, into_other, &options);
  for (uint64_t i = 0; i < d; ++i) sum[i] += other[i];
  const dr_bytes frames[] = {bytes_of(a), bytes_of(b)};
  c.merge(frames, {}, into_other, &options);
  for (uint64_t i = 0; i < d; ++i)
    demand(other[i] == sum[i] || (std::isnan(other[i]) && std::isnan(sum[i])),
           "element {}: merging two frames returns {}, but their decoded values add up to {}", i, other[i], sum[i]);
}

}  // namespace dr::compare
