#include "sender/factor_unit.hpp"

#include <algorithm>
#include <cstring>

#include "primitive/value_rows.hpp"

namespace dr {

dr_status factor_unit::create(const plan& method, uint64_t dense_below, uint64_t seed, uint32_t ranks, float scale,
                              std::span<const number_tensor> tensors) {
  lowrank_options how{
      .rank = method.transform.rank, .keeps = method.keeps_feedback(), .seed = seed, .dense_below = dense_below};
  if (how.keeps) {
    const feedback_weights weights = method.feedback_rule().weights();
    how.beta = weights.beta;
    how.gamma = weights.gamma;
  }
  std::vector<lowrank_shape> shapes;
  uint64_t elements = 0;
  for (const number_tensor& t : tensors) {
    tensors_.push_back(t);
    firsts_.push_back(elements);
    elements += t.elements;
    shapes.push_back({t.rows, t.elements / t.rows});
  }
  if (const dr_status s = state_.create(how, shapes, c_.workers->workers(), c_.error)) return s;
  first_ = state_.first_size();
  second_ = state_.second_size();
  mean_ = 1 / static_cast<float>(ranks);
  scale_ = scale;
  in_.resize(tensors.size());
  out_.resize(tensors.size());
  const bool copies = !tensors.empty() && tensors[0].dtype != DR_F32;
  const uint64_t own = round_up(state_.memory_size(), arena::alignment);
  if (const dr_status s = allocate(std::max<uint64_t>(1, own + (copies ? elements * sizeof(float) : 0)))) return s;
  state_.place(at());
  if (copies) copies_ = reinterpret_cast<float*>(at() + own);
  return DR_OK;
}

// Where the f32 output is.
float* factor_unit::out_of(const number_place& p, size_t tensor) const {
  return p.out_dtype == DR_F32 ? static_cast<float*>(p.out) : copies_ + firsts_[tensor];
}

dr_status factor_unit::begin(std::span<const number_place> tensors, void* numbers) {
  state_.cancel(false);
  done_ = false;
  for (size_t t = 0; t < tensors.size(); ++t) {
    in_[t] = static_cast<const float*>(tensors[t].in);
    if (copies_) {
      float* const copy = copies_ + firsts_[t];
      with_type(tensors_[t].dtype, [&](auto type) {
        using type_of = decltype(type);
        if constexpr (!std::is_same_v<type_of, f32_type>)
          widen_values<type_of>.best()(static_cast<const uint16_t*>(tensors[t].in), tensors_[t].elements,
                                       reinterpret_cast<uint32_t*>(copy));
      });
      in_[t] = copy;
    }
  }
  if (const dr_status s = state_.begin(in_, out_, *c_.workers, c_.error)) return s;
  std::memcpy(numbers, state_.factor().data(), first_ * sizeof(float));
  return DR_OK;
}

dr_status factor_unit::next(const void* sum, void* numbers) {
  std::memcpy(state_.factor().data(), sum, first_ * sizeof(float));
  const dr_status s = state_.advance(mean_, scale_, *c_.workers, c_.error);
  if (s != DR_PENDING) return s;
  std::memcpy(numbers, state_.factor().data(), second_ * sizeof(float));
  return DR_OK;
}

dr_status factor_unit::finish(std::span<const number_place> tensors, const void* sum) {
  for (size_t t = 0; t < tensors.size(); ++t) out_[t] = out_of(tensors[t], t);
  state_.set_outputs(out_);
  const std::span<float> factor = state_.factor();
  std::memcpy(factor.data(), sum, factor.size_bytes());
  if (const dr_status s = state_.advance(mean_, scale_, *c_.workers, c_.error)) return s;
  for (size_t t = 0; t < tensors.size(); ++t)
    if (tensors[t].out_dtype != DR_F32)
      with_type(tensors[t].out_dtype, [&](auto type) {
        auto* const to = static_cast<typename decltype(type)::bits*>(tensors[t].out);
        for (uint64_t i = 0; i < tensors_[t].elements; ++i) to[i] = decltype(type)::from_f32(out_[t][i]);
      });
  done_ = true;
  return DR_OK;
}

void factor_unit::remember() {
  state_.cancel(false);
  before_.resize(state_.state_size());
  state_.save(before_.data());
}

void factor_unit::restore() {
  state_.cancel(false);
  dr_error none = no_error();
  (void)state_.load(before_.data(), before_.size(), none);
  done_ = false;
}

// If the round has a result, that goes back: over all ranks it is the sum of what they sent. Otherwise the gradients do; of
// these others may have used the dense tensors, whole. (What they used of a matrix this rank does not know.)
void factor_unit::take_back(std::span<const number_place> tensors, const uint64_t* number) {
  const bool begun = state_.busy();
  state_.cancel(state_.keeps());
  const bool sent_whole = begun && std::ranges::any_of(state_.items(), [](const lowrank_item& i) { return i.dense; });
  float* const noted = state_.keeps() && (done_ || sent_whole) ? note(number, state_.elements()) : nullptr;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const std::span<float> residual = state_.residual(t);  // empty: none is kept
    const float* const out = out_of(tensors[t], t);
    for (size_t i = 0; i < residual.size() && done_; ++i) {
      const float back = out[i] / scale_;
      residual[i] += back;
      if (noted) noted[firsts_[t] + i] = back;
    }
    if (begun && noted && state_.items()[t].dense) std::ranges::copy(residual, noted + firsts_[t]);
  }
  done_ = false;
}

}  // namespace dr
