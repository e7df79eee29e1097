// The factors of a transform that an all-reduce adds up (transform/lowrank.hpp).
#pragma once

#include "pipeline/bind.hpp"
#include "sender/number_unit.hpp"
#include "transform/lowrank.hpp"

namespace dr {

class factor_unit : public number_unit {
 public:
  explicit factor_unit(context& c) : number_unit(c) {}
  // seed: of the first Q, the same on every rank. scale: a factor of the outputs, in addition to the mean.
  dr_status create(const plan& method, uint64_t dense_below, uint64_t seed, uint32_t ranks, float scale,
                   std::span<const number_tensor> tensors);
  dr_status begin(std::span<const number_place> tensors, void* numbers) override;
  dr_status next(const void* sum, void* numbers) override;
  dr_status finish(std::span<const number_place> tensors, const void* sum) override;
  void remember() override;
  bool waits_for(uint32_t factor) const override { return state_.phase() == factor; }
  void restore() override;
  void take_back(std::span<const number_place> tensors, const uint64_t* number) override;

  // Residuals and warm starts, between rounds; empty if the tensor has none.
  std::span<float> residual(size_t tensor) const { return state_.residual(tensor); }
  std::span<float> warm_start(size_t tensor) const { return state_.warm_start(tensor); }
  void settle_warm_start(size_t tensor) { state_.settle_warm_start(tensor); }

 private:
  std::span<float> residual_at(std::span<const number_place>, size_t tensor) const override { return residual(tensor); }
  float* out_of(const number_place& p, size_t tensor) const;

  lowrank state_;
  std::vector<number_tensor> tensors_;
  std::vector<uint64_t> firsts_;  // of each tensor among all elements
  float mean_ = 1, scale_ = 1;
  float* copies_ = nullptr;  // f32 copies of tensors of another type
  bool done_ = false;        // the outputs have the result of this round
  std::vector<const float*> in_;
  std::vector<float*> out_;
  std::vector<std::byte> before_;
};

}  // namespace dr
