// State of an exchange for checkpoints: residuals in the order of a tensor's elements, and a transform's Q.
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstring>

#include "api/state.hpp"
#include "exchange/rank_exchange.hpp"

namespace dr {
namespace {

residual_kind kind_of(uint32_t which) { return which == DR_RESIDUAL_SUM ? residual_kind::sum : residual_kind::own; }
state_array array_of(uint32_t which) {
  return which == DR_RESIDUAL_MOMENTUM ? state_array::momentum : state_array::residual;
}
// Whether the states of a plan have the array.
bool has(const plan& p, uint32_t which) {
  if (which == DR_RESIDUAL_WARM_START) return false;
  return which == DR_RESIDUAL_MOMENTUM ? p.keeps_momentum() : p.keeps_residual();
}

// ARGUMENT: an element of a residual must be something else.
dr_status refuse(const float* residual, uint64_t at, const char* must_be, dr_error& error) {
  fail(error, DR_E_ARGUMENT, "residual: element %" PRIu64 " is %g; must be %s", at, static_cast<double>(residual[at]),
       must_be);
  error.where = at;
  return DR_E_ARGUMENT;
}

}  // namespace

template <class F>
dr_status exchange::for_each_residual(uint32_t which, size_t tensor, const void* memory, uint64_t elements, F&& f) {
  if (busy()) return fail(c_.error, DR_E_ARGUMENT, "exchange: already under way");
  if (which > DR_RESIDUAL_WARM_START)
    return fail(c_.error, DR_E_ARGUMENT, "which: %u is not one of DR_RESIDUAL_OWN, _SUM, _MOMENTUM and _WARM_START",
                which);
  if (tensor >= tensors_.size())
    return fail(c_.error, DR_E_ARGUMENT, "tensor %zu: not below the %zu of the exchange", tensor, tensors_.size());
  const tensor_view& t = tensors_[tensor];
  const uint64_t width = std::max(1u, t.width);
  if (elements != t.universe * width)
    return fail(c_.error, DR_E_ARGUMENT, "residual: %" PRIu64 " elements; the tensor has %" PRIu64, elements,
                t.universe * width);
  if (!memory && elements) return fail(c_.error, DR_E_ARGUMENT, "residual is NULL");
  for (range_work& r : ranges_) {
    const auto before = [&](const piece& p) { return p.tensor < tensor; };
    const auto first = std::ranges::partition_point(r.pieces(), before);
    for (auto at = first; at != r.pieces().end() && at->tensor == tensor && !dry(); ++at) {
      const piece& p = *at;
      const auto i = static_cast<size_t>(at - r.pieces().begin());
      uint64_t size = 0;
      std::byte* state = r.state_of(kind_of(which), i, size);
      if (device_) {
        const device_range* const there = device_ranges_[static_cast<size_t>(&r - ranges_.data())].get();
        state = there ? there->state_of(kind_of(which), i) : nullptr;
        size = state ? r.state_bytes(kind_of(which), i) : 0;
      }
      if (state && !has(r.plan_of(kind_of(which), i), which)) state = nullptr;
      if (const dr_status s = f(r, i, state, size, p.first * width, p.rows * width)) return s;
    }
  }
  return DR_OK;
}

// Of a device: the state becomes its copy, on the host.
dr_status exchange::fetch_state(std::byte*& state, uint64_t size, std::vector<std::byte>& copy) {
  if (!device_ || !state) return DR_OK;
  if (host_ && stuck_ && (collects_ || !device_->is_done()))  // a copy would wait for a rank that is gone
    return fail(c_.error, DR_E_DEVICE,
                "exchange: a collective of an earlier exchange is not done; abort its communicator");
  copy.resize(size);
  const dr_status s = device_->copy_now(copy.data(), state, size);
  state = copy.data();
  return s;
}

dr_status exchange::read_residual(uint32_t which, size_t tensor, float* residual, uint64_t elements) {
  const auto nothing = [](auto&&...) { return DR_OK; };
  if (const dr_status s = for_each_residual(which, tensor, residual, elements, nothing)) return s;
  std::fill_n(residual, elements, 0.0f);
  if (factors_) {
    std::ranges::copy(factors_->saved_values(which, tensor), residual);
    return DR_OK;
  }
  return for_each_residual(
      which, tensor, residual, elements,
      [&](range_work&, size_t, std::byte* state, uint64_t size, uint64_t first, uint64_t n) -> dr_status {
        std::vector<std::byte> copy;
        if (const dr_status s = fetch_state(state, size, copy)) return s;
        float* from = nullptr;
        uint64_t there = 0;
        dr_error ignored = no_error();  // (a fresh state is zeros)
        const auto find = array_of(which) == state_array::residual ? find_residual : find_momentum;
        if (state && n && !find(state, size, from, there, ignored)) std::memcpy(residual + first, from, 4 * n);
        return DR_OK;
      });
}

dr_status exchange::write_factor_residual(uint32_t which, size_t tensor, const float* residual, uint64_t elements) {
  const std::span<float> stored = factors_->saved_values(which, tensor);
  for (uint64_t i = 0; i < elements; ++i) {
    const bool is_stored = i < stored.size();
    if (is_stored ? std::isfinite(residual[i]) : residual[i] == 0) continue;
    return refuse(residual, i, is_stored ? "finite" : "0 where the state has none", c_.error);
  }
  std::copy_n(residual, stored.size(), stored.begin());
  if (which == DR_RESIDUAL_WARM_START) factors_->settle_warm_start(tensor);
  return DR_OK;
}

dr_status exchange::write_residual(uint32_t which, size_t tensor, const float* residual, uint64_t elements) {
  // Nothing is written unless all can be.
  const char* const nothing_here = which == DR_RESIDUAL_SUM || (host_ && plans_.method->keeps_residual())
                                       ? "0 where another rank is the owner"
                                       : "0 where the plan keeps none";
  const auto check = [&](range_work&, size_t, std::byte* state, uint64_t, uint64_t first, uint64_t n) -> dr_status {
    const auto is_wrong = [&](float x) { return state ? !std::isfinite(x) : x != 0; };
    const auto* const at = std::find_if(residual + first, residual + first + n, is_wrong);
    if (at == residual + first + n) return DR_OK;
    return refuse(residual, static_cast<uint64_t>(at - residual), state ? "finite" : nothing_here, c_.error);
  };
  const dr_status fits = for_each_residual(which, tensor, residual, elements, check);
  if (fits) return fits;
  if (factors_) return write_factor_residual(which, tensor, residual, elements);
  return for_each_residual(
      which, tensor, residual, elements,
      [&](range_work& r, size_t i, std::byte* state, uint64_t size, uint64_t first, uint64_t) -> dr_status {
        if (!state) return DR_OK;
        std::byte* const there = state;
        std::vector<std::byte> copy;
        if (const dr_status s = fetch_state(state, size, copy)) return s;
        const dr_status s = write_state(r.plan_of(kind_of(which), i), r.view_of(i), array_of(which), residual + first,
                                        state, size, c_.error);
        return s || !device_ ? s : device_->copy_now(there, state, size);
      });
}

}  // namespace dr
