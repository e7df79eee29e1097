// Finds the tensors at fault, and reports them to the caller.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "core/versioned.hpp"
#include "pipeline/device_encode.hpp"
#include "pipeline/encoding.hpp"

namespace dr {
namespace {

// These are compared by their addresses.
constexpr char says_infinite[] = "the gradient is infinite; this codec requires finite values";
constexpr char says_nan[] = "the gradient is NaN; this codec requires finite values";
// Of finite gradients the sum may overflow. (Residuals are finite, so a NaN is the gradient's.)
constexpr char says_sum_infinite[] = "gradient + residual is infinite; this codec requires finite values";
// So may the transform.
constexpr char says_coefficient_infinite[] = "a coefficient is infinite; this codec requires finite values";
constexpr char says_coefficient_nan[] = "a coefficient is NaN; this codec requires finite values";

bool is_unfinite(const dr_fault& fault) {
  for (const char* const sentence :
       {says_nan, says_infinite, says_sum_infinite, says_coefficient_nan, says_coefficient_infinite})
    if (fault.message == sentence) return true;
  return false;
}

// Replaces the bits of a value that is not finite in the error's text by its name.
void name_value(dr_error& error, const dr_fault& fault, uint32_t dtype) {
  constexpr std::string_view before = ", value ";
  const size_t at = std::string_view(error.message).rfind(before);
  if (at == std::string_view::npos) return;
  const bool nan = fault.message == says_nan || fault.message == says_coefficient_nan,
             negative = fault.what >> (dtype == DR_F32 ? 31 : 15) & 1;
  const char* const name = nan ? "nan)" : negative ? "-inf)" : "inf)";
  std::snprintf(error.message + at + before.size(), sizeof error.message - at - before.size(), "%s", name);
}

// Finds the tensors of elements at fault. These ascend, also over the rows of a unit, so one walk over the tensors
// suffices.
class tensor_walk {
 public:
  explicit tensor_walk(const encoding& e) : e_(e) {}

  // The tensor with an element of a unit; `where` becomes the element's position in the tensor.
  uint32_t find(const unit& u, uint64_t& where) {
    if (unit_ != &u || where < before_) {
      unit_ = &u;
      tensor_ = u.first_tensor;
      before_ = 0;
    }
    while (tensor_ + 1 < u.first_tensor + u.tensors && where - before_ >= e_.b.shapes[tensor_].elements())
      before_ += e_.b.shapes[tensor_++].elements();
    where -= before_;
    return tensor_;
  }

 private:
  const encoding& e_;
  const unit* unit_ = nullptr;
  uint32_t tensor_ = 0;
  uint64_t before_ = 0;  // elements of the unit's tensors before this one
};

void report(const encoding& e, uint32_t tensor, dr_fault fault) {
  auto* const to = reinterpret_cast<char*>(e.call.faults) + tensor * e.call.fault_stride;
  dr_fault was = no_fault();
  const size_t size = std::min(size_of_struct(to), sizeof was);
  std::memcpy(&was, to, size);
  if (!was.code) write_struct(fault, to);  // with several segments at fault the first is reported
}

// Reports every tensor of a bucket with values that are not finite.
void report_unfinite(const encoding& e, size_t i, tensor_walk& tensors) {
  const unit& u = e.unit_of(i);
  with_value_type(e.plan_of(i).dtype, [&](auto type) {
    using T = decltype(type);
    const auto* v = static_cast<const typename T::bits*>(e.sent(i));
    for (uint64_t k = 0; k < e.w.coded.rows[i].count; ++k) {
      if (magnitude<T>(v[k]) < T::infinity) continue;
      uint64_t where = e.b.rows[i].first + (e.support(i) ? e.support(i)[k] : k);
      const uint32_t tensor = tensors.find(u, where);
      report(e, tensor, unfinite(*u.method, where, v[k], magnitude<T>(v[k]) == T::infinity));
    }
  });
}

}  // namespace

dr_fault unfinite(const plan& method, uint64_t where, uint64_t value, bool infinite) {
  const char* const sentence = !infinite ? says_nan : method.keeps_residual() ? says_sum_infinite : says_infinite;
  return {sizeof(dr_fault), DR_E_ARGUMENT, DR_STREAM_VALUE, where, value, sentence};
}

dr_fault unfinite_coefficient(const tensor_view& gradient, uint64_t where, uint32_t value) {
  const auto* const g = static_cast<const uint32_t*>(gradient.values);
  const auto fault = [](uint64_t at, uint32_t bits, const char* nan, const char* infinite) -> dr_fault {
    const bool is_infinite = magnitude<f32_type>(bits) == f32_type::infinity;
    return {sizeof(dr_fault), DR_E_ARGUMENT, DR_STREAM_VALUE, at, bits, is_infinite ? infinite : nan};
  };
  for (uint64_t k = 0; k < gradient.universe; ++k)
    if (!is_finite<f32_type>(g[k])) return fault(k, g[k], says_nan, says_infinite);
  return fault(where, value, says_coefficient_nan, says_coefficient_infinite);
}

dr_status fail_as_device(const batch& b, const dr_result& r, dr_error& error) {
  dr_fault fault{sizeof(dr_fault), r.status, r.stream, r.where, r.what, nullptr};
  const auto tensor = static_cast<uint32_t>(r.tensor);
  const auto of = std::ranges::find_if(b.units, [&](const unit& u) { return tensor - u.first_tensor < u.tensors; });
  if (of == b.units.end()) return fail(error, fault, tensor, nullptr);
  const auto row = std::ranges::find(b.rows, static_cast<uint32_t>(of - b.units.begin()), &batch_row::unit);
  const char* codec = nullptr;
  if (row != b.rows.end()) {
    const uint32_t section = r.stream == DR_STREAM_INDEX   ? section_index
                             : r.stream == DR_STREAM_ORDER ? section_order
                                                           : section_value;
    const stage_list& list = b.wire[row->plan].lists[section];
    if (list.count && r.stream != DR_STREAM_NONE) codec = list.front().codec->name;
  }
  if (r.status == DR_E_ARGUMENT && r.stream == DR_STREAM_VALUE)
    with_value_type(of->dtype, [&](auto type) {
      using T = decltype(type);
      const auto bits = static_cast<typename T::bits>(r.what);
      if (magnitude<T>(bits) >= T::infinity)
        fault = unfinite(*of->method, r.where, bits, magnitude<T>(bits) == T::infinity);
    });
  fail(error, fault, tensor, codec);
  if (is_unfinite(fault)) name_value(error, fault, of->dtype);
  return error.code;
}

dr_status first_fault(const encoding& e) {
  dr_status first = DR_OK;
  tensor_walk tensors(e);
  for (size_t i = 0; i < e.b.rows.size(); ++i) {
    if (!e.w.coded.rows[i].fault.code) continue;
    dr_fault fault = e.w.coded.rows[i].fault;
    const uint32_t section = fault.stream == DR_STREAM_INDEX   ? section_index
                             : fault.stream == DR_STREAM_ORDER ? section_order
                                                               : section_value;
    const stage_list& list = e.plan_of(i).lists[section];
    const bool of_values = is_unfinite(fault);
    const uint32_t tensor = of_values ? tensors.find(e.unit_of(i), fault.where) : e.unit_of(i).first_tensor;
    if (!first) {
      first = fail(e.error, fault, tensor, list.count ? list.front().codec->name : nullptr);
      if (of_values) name_value(e.error, fault, e.plan_of(i).dtype);
    }
    if (!e.call.faults) return first;
    if (of_values && e.unit_of(i).tensors > 1)
      report_unfinite(e, i, tensors);
    else
      report(e, tensor, fault);
  }
  return first;
}

dr_status first_unsound(const encoding& e) {
  dr_status first = DR_OK;
  for (size_t i = 0; i < e.b.units.size(); ++i) {
    const dr_error& found = e.w.selected.unsound[i];
    if (!found.code) continue;
    if (!first) e.error = found;
    first = e.error.code;
    if (!e.call.faults) break;
    report(e, e.b.units[i].first_tensor,
           {sizeof(dr_fault), found.code, found.stream, found.where, found.what,
            "an index is negative, not below the universe, or occurs twice"});
  }
  return first;
}

}  // namespace dr
