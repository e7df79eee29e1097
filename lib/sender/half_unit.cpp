// Halves that an all-reduce adds up.
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstring>
#include <utility>

#include "feedback/state_layout.hpp"
#include "primitive/value_rows.hpp"
#include "sender/finite.hpp"
#include "sender/number_unit.hpp"

namespace dr {
namespace {

constexpr uint64_t block = 4096;  // values that stay in the cache from one loop to the next

// Calls f(first, count) for each block.
template <class F>
void for_each_block(uint64_t n, F&& f) {
  for (uint64_t i = 0; i < n; i += block) f(i, std::min(block, n - i));
}

template <class Type>
void widen(const void* values, uint64_t first, uint64_t n, float* to) {
  const auto* const from = static_cast<const typename Type::bits*>(values) + first;
  if constexpr (std::is_same_v<Type, f32_type>)
    std::memcpy(to, from, n * sizeof(float));
  else
    widen_values<Type>.best()(from, n, reinterpret_cast<uint32_t*>(to));
}

}  // namespace

dr_status number_unit::allocate(uint64_t bytes) {
  memory_ = {static_cast<std::byte*>(c_.allocate(bytes)), {&c_, bytes}};
  if (!memory_) return fail(c_.error, DR_E_MEMORY, "sender: cannot allocate %" PRIu64 " bytes", bytes);
  memory_size_ = bytes;
  return DR_OK;
}

void number_unit::withdraw(std::span<const number_place> tensors, uint64_t number) {
  for (const returned& r : returned_) {
    if (r.number != number) continue;
    const float* values = r.values.data();
    for (size_t t = 0; t < tensors.size(); ++t)
      for (float& residual : residual_at(tensors, t)) residual -= *values++;
  }
  forget();
}

namespace {

// The largest number of the type that is a share of `ranks`: added up in the type, one after the other, they are finite.
template <class Type>
float largest_share(uint32_t ranks) {
  auto bits = Type::from_f32(static_cast<float>(Type::largest / ranks));
  for (;; --bits) {
    const float share = Type::to_f32(bits);
    float sum = share;
    for (uint32_t i = 1; i < ranks; ++i) sum = Type::to_f32(Type::from_f32(sum + share));
    if (std::isfinite(sum)) return share;
  }
}

}  // namespace

dr_status half_unit::create(dr_dtype type, bool has_residual, uint32_t ranks, float scale,
                            std::span<const number_tensor> tensors) {
  type_ = type;
  has_residual_ = has_residual;
  ranks_ = static_cast<float>(ranks);
  scale_ = scale;
  largest_ = type == DR_F16 ? largest_share<f16_type>(ranks) : largest_share<bf16_type>(ranks);
  tensors_.assign(tensors.begin(), tensors.end());
  for (const number_tensor& t : tensors_) first_ += t.elements;
  if (!has_residual_) return DR_OK;
  const dr_status s = allocate(std::max<uint64_t>(1, first_) * sizeof(float));
  totals_ = reinterpret_cast<float*>(at());
  return s;
}

// This rank's share of the mean. A value too large for the type becomes the largest of which all ranks' shares add up, or nearly
// its largest number, as in a frame.
float half_unit::share(float x) const { return std::min(std::max(x / ranks_, -largest_), largest_); }

dr_status half_unit::begin(std::span<const number_place> tensors, void* numbers) {
  begun_ = false;
  const dr_status s = type_ == DR_F16 ? send<f16_type>(tensors, static_cast<uint16_t*>(numbers))
                                      : send<bf16_type>(tensors, static_cast<uint16_t*>(numbers));
  begun_ = s == DR_OK;
  return s;
}

template <class Type>
void half_unit::write_shares(float* values, uint64_t n, typename Type::bits* numbers) const {
  for (uint64_t k = 0; k < n; ++k) values[k] = share(values[k]);
  round_values_at<Type>.best()(values, n, numbers);
}

// Writes the shares. Residuals must not change if a value is not finite: with residuals it checks all values first. The
// next residual is the error of the rounding.
template <class Type>
dr_status half_unit::send(std::span<const number_place> tensors, typename Type::bits* numbers) {
  float scratch[block];
  uint64_t at = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    bool finite = true;
    const float* const residual = has_residual_ ? residual_of(tensors[t].state) : nullptr;
    for_each_block(tensors_[t].elements, [&](uint64_t i, uint64_t m) {
      float* const to = has_residual_ ? totals_ + at + i : scratch;
      with_type(tensors_[t].dtype, [&](auto type) { widen<decltype(type)>(tensors[t].in, i, m, to); });
      for (uint64_t k = 0; residual && k < m; ++k) to[k] += residual[i + k];
      finite &= are_all_finite(DR_F32, to, m);
      if (!has_residual_) write_shares<Type>(to, m, numbers + at + i);
    });
    at += tensors_[t].elements;
    if (finite) continue;
    fail(c_.error, DR_E_ARGUMENT, "a value of the gradient%s is not finite (infinite or NaN)",
         has_residual_ ? ", with its residual," : "");
    c_.error.tensor = t;
    return DR_E_ARGUMENT;
  }
  if (!has_residual_) return DR_OK;
  const float* total = totals_;
  for (size_t t = 0; t < tensors.size(); ++t) {
    float* const residual = residual_of(tensors[t].state);
    for_each_block(tensors_[t].elements, [&](uint64_t i, uint64_t m) {
      std::memcpy(scratch, total + i, m * sizeof(float));
      write_shares<Type>(scratch, m, numbers + i);
      widen<Type>(numbers, i, m, scratch);
      for (uint64_t k = 0; k < m; ++k) residual[i + k] = total[i + k] - ranks_ * scratch[k];
    });
    numbers += tensors_[t].elements;
    total += tensors_[t].elements;
  }
  return DR_OK;
}

dr_status half_unit::finish(std::span<const number_place> tensors, const void* sum) {
  const auto* from = static_cast<const uint16_t*>(sum);
  for (size_t t = 0; t < tensors.size(); ++t) {
    const number_place& p = tensors[t];
    const uint64_t n = tensors_[t].elements;
    const auto deliver = [&](auto in) {
      with_type(p.out_dtype, [&](auto out) {
        using in_type = decltype(in);
        using out_type = decltype(out);
        auto* const to = static_cast<typename out_type::bits*>(p.out);
        if (scale_ != 1) {
          for (uint64_t i = 0; i < n; ++i) to[i] = out_type::from_f32(scale_ * in_type::to_f32(from[i]));
        } else if constexpr (std::is_same_v<out_type, f32_type>) {
          widen<in_type>(from, 0, n, static_cast<float*>(p.out));
        } else {
          for (uint64_t i = 0; i < n; ++i) to[i] = converted<in_type, out_type>(from[i]);
        }
      });
    };
    type_ == DR_F16 ? deliver(f16_type{}) : deliver(bf16_type{});
    from += n;
  }
  return DR_OK;
}

void half_unit::take_back(std::span<const number_place> tensors, const uint64_t* number) {
  if (!std::exchange(begun_, false) || !has_residual_) return;
  float* const noted = note(number, first_);
  uint64_t at = 0;
  for (size_t t = 0; t < tensors.size(); ++t)
    for (float& residual : residual_at(tensors, t)) {
      if (noted) noted[at] = totals_[at] - residual;
      residual = totals_[at++];
    }
}

std::span<float> half_unit::residual_at(std::span<const number_place> tensors, size_t tensor) const {
  return {residual_of(tensors[tensor].state), tensors_[tensor].elements};
}

}  // namespace dr
