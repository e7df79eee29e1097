// A unit whose slots are numbers, which an all-reduce adds up, instead of frames.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "api/context.hpp"

namespace dr {

// Where a tensor of the unit is in this step. out has type out_dtype; state: that of its feedback, or nullptr.
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
  uint64_t second() const { return second_; }  // numbers of the second all-reduce; 0: there is none
  uint64_t memory() const { return memory_size_; }

  // Whether the round waits for the sum of the first numbers (1), or of the second (2).
  virtual bool waits_for(uint32_t) const { return true; }
  // Writes the first numbers. ARGUMENT: a value of the error's tensor is not finite; no state has changed.
  virtual dr_status begin(std::span<const number_place> tensors, void* numbers) = 0;
  // Reads their sum and writes the second numbers. ARGUMENT: the sum is not finite, on all ranks.
  virtual dr_status next(const void*, void*) { return DR_OK; }
  // Reads the last sum and writes the outputs. ARGUMENT: as for next; no output has changed.
  virtual dr_status finish(std::span<const number_place> tensors, const void* sum) = 0;

  // Saves what the unit holds besides states; restores it, and ends the round.
  virtual void remember() {}
  virtual void restore() = 0;
  // After a failed step: adds what was sent to the residuals. The outputs are those of finish, if it ran. number: by which
  // the step is noted, for withdraw; or nullptr.
  virtual void take_back(std::span<const number_place> tensors, const uint64_t* number) = 0;
  // Others completed a noted step: makes the residuals what they would be if this rank had completed it, too. Forgets all.
  void withdraw(std::span<const number_place> tensors, uint64_t number);
  template <class F>
  void forget(F&& is_over) {
    std::erase_if(returned_, is_over);
  }
  void forget() { returned_.clear(); }
  // The residuals were scaled, and with them what was taken back.
  void scale_returned(float factor) {
    for (returned& r : returned_)
      for (float& x : r.values) x *= factor;
  }

 protected:
  explicit number_unit(context& c) : c_(c) {}
  virtual std::span<float> residual_at(std::span<const number_place> tensors, size_t tensor) const = 0;
  // Memory for what goes back of a step, n values, tensor by tensor; or nullptr.
  float* note(const uint64_t* number, uint64_t n) {
    if (!number) return nullptr;
    returned_.push_back({*number, std::vector<float>(n)});
    return returned_.back().values.data();
  }
  // MEMORY.
  dr_status allocate(uint64_t bytes);
  std::byte* at() const { return memory_.get(); }

  context& c_;
  dr_dtype type_ = DR_F32;
  uint64_t first_ = 0, second_ = 0;

 private:
  struct returned {
    uint64_t number;
    std::vector<float> values;
  };
  std::vector<returned> returned_;
  struct give_back {
    context* c;
    uint64_t size;
    void operator()(std::byte* memory) const { c->release(memory, size); }
  };
  std::unique_ptr<std::byte, give_back> memory_{nullptr, give_back{}};
  uint64_t memory_size_ = 0;
};

// All values as halves. A rank sends its share of the mean, x / ranks, rounded once. With a residual, the error of the
// rounding is added in the next step.
class half_unit : public number_unit {
 public:
  explicit half_unit(context& c) : number_unit(c) {}
  // scale: a factor of the outputs, in addition to the mean.
  dr_status create(dr_dtype type, bool has_residual, uint32_t ranks, float scale,
                   std::span<const number_tensor> tensors);
  dr_status begin(std::span<const number_place> tensors, void* numbers) override;
  dr_status finish(std::span<const number_place> tensors, const void* sum) override;
  void restore() override { begun_ = false; }
  void take_back(std::span<const number_place> tensors, const uint64_t* number) override;

 private:
  std::span<float> residual_at(std::span<const number_place> tensors, size_t tensor) const override;
  template <class Type>
  dr_status send(std::span<const number_place> tensors, typename Type::bits* numbers);
  template <class Type>
  void write_shares(float* values, uint64_t n, typename Type::bits* numbers) const;
  float share(float x) const;

  std::vector<number_tensor> tensors_;
  bool has_residual_ = false, begun_ = false;
  float ranks_ = 1, scale_ = 1, largest_ = 0;  // largest_: of a share
  float* totals_ = nullptr;                    // of the step under way: gradients and residuals
};

}  // namespace dr
