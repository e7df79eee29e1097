// A unit whose slots are numbers that an all-reduce adds up, in the place of frames.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "api/context.hpp"

namespace dr {

// Where a tensor of the unit is in this step. out: of type out_dtype; state: of its feedback, or nullptr.
struct number_place {
  const void* in;
  void* out;
  dr_dtype out_dtype;
  std::byte* state;
};

struct number_tensor {
  dr_dtype dtype;
  uint64_t rows, elements;
};

class number_unit {
 public:
  virtual ~number_unit() = default;
  number_unit(const number_unit&) = delete;
  number_unit& operator=(const number_unit&) = delete;

  dr_dtype type() const { return type_; }
  uint64_t first() const { return first_; }    // numbers that encode sends
  uint64_t second() const { return second_; }  // numbers that follow when the first are added up
  uint64_t memory() const { return memory_size_; }

  // Writes the first numbers. ARGUMENT: a value is not finite, the error's tensor is its position; no state has changed.
  virtual dr_status begin(std::span<const number_place> tensors, void* numbers) = 0;
  // Takes their sum, and writes the second ones. ARGUMENT: it is not finite, on all ranks.
  virtual dr_status next(const void*, void*) { return DR_OK; }
  // Takes the last sum and writes the outputs. ARGUMENT: as next; they are untouched.
  virtual dr_status finish(std::span<const number_place> tensors, const void* sum) = 0;

  // What the unit keeps apart from states: as it is now; and as it was then, the round having ended.
  virtual void remember() {}
  virtual void restore() = 0;
  // The step has failed: what was sent goes back to the residuals. The outputs are those of finish, if it ran.
  virtual void take_back(std::span<const number_place> tensors) = 0;
  // Others have completed the step that was taken back first since forget: the residuals are as if this rank had, too.
  virtual void withdraw(std::span<const number_place> tensors) = 0;
  virtual void forget() = 0;

 protected:
  explicit number_unit(context& c) : c_(c) {}
  // MEMORY.
  dr_status allocate(uint64_t bytes);
  std::byte* at() const { return memory_.get(); }

  context& c_;
  dr_dtype type_ = DR_F32;
  uint64_t first_ = 0, second_ = 0;

 private:
  struct give_back {
    context* c;
    uint64_t size;
    void operator()(std::byte* memory) const { c->release(memory, size); }
  };
  std::unique_ptr<std::byte, give_back> memory_{nullptr, give_back{}};
  uint64_t memory_size_ = 0;
};

// All values as halves: each rank sends its share of the mean, x / ranks, rounded once; with a residual, what the rounding
// lost is added to the next step's.
class half_unit : public number_unit {
 public:
  explicit half_unit(context& c) : number_unit(c) {}
  // keeps: a residual. scale: of the outputs, beside the mean.
  dr_status create(dr_dtype type, bool keeps, uint32_t ranks, float scale, std::span<const number_tensor> tensors);
  dr_status begin(std::span<const number_place> tensors, void* numbers) override;
  dr_status finish(std::span<const number_place> tensors, const void* sum) override;
  void restore() override { begun_ = false; }
  void take_back(std::span<const number_place> tensors) override;
  void withdraw(std::span<const number_place> tensors) override;
  void forget() override { returned_.clear(); }

 private:
  template <class Type>
  dr_status send(std::span<const number_place> tensors, typename Type::bits* numbers);
  template <class Type>
  void write_shares(float* values, uint64_t n, typename Type::bits* numbers) const;
  float share(float x) const;

  std::vector<number_tensor> tensors_;
  bool keeps_ = false, begun_ = false;
  float ranks_ = 1, scale_ = 1, largest_ = 0;
  float* totals_ = nullptr;  // of the step under way: gradients and residuals
  std::vector<float> returned_;
};

}  // namespace dr
