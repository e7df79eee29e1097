// PowerSGD (Vogels et al. 2019): a gradient matrix is sent as the product of two thin matrices, which ranks all-reduce.
//
//   begin     M = gamma · gradient + beta · residual;  P = M Q                     first factor: P of all, dense tensors
//   continue  P, now a mean of ranks, becomes orthonormal columns P̂;  Q = Mᵀ P̂     second factor: Q of all
//   continue  output = P̂ Qᵀ of the mean Q;  residual = M − P̂ Qᵀ;  Q starts the next round
//
// The residual is this rank's M minus the mean, as in the authors' code. The paper's algorithm 2 subtracts the product
// with this rank's own Q; the sum over ranks is the same, and so is the next mean.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "core/arena.hpp"
#include "core/error.hpp"
#include "core/pool.hpp"
#include "transform/lowrank_kernel.hpp"

namespace dr {

struct lowrank_options {
  uint32_t rank = 1;
  bool keeps = false;  // whether there is a residual
  float beta = 1, gamma = 1;
  uint64_t seed = 0;         // of the first Q, the same on every rank
  uint64_t dense_below = 0;  // tensors of fewer elements are sent dense
  bool marks = false;        // the last tensor is sent dense, without a residual, and is not saved in a state
};

// A tensor as a matrix of `rows` by `columns`. It is dense, and part of the first factor itself, unless two factors
// have fewer elements.
struct lowrank_shape {
  uint64_t rows, columns;
};

struct lowrank_item {
  uint64_t rows, columns;
  bool dense;
  uint64_t first;  // its first element among those of all tensors
  uint64_t p, q;   // the offsets of its P (or itself, if dense) in the first factor, of its Q in the second

  uint64_t elements() const { return rows * columns; }
};

class lowrank {
 public:
  // Computes the layout. CAPACITY: the elements exceed the address space.
  dr_status create(const lowrank_options& how, std::span<const lowrank_shape> shapes, uint32_t workers,
                   dr_error& error);
  uint64_t memory_size() const { return memory_size_; }
  // memory [memory_size()], aligned for an arena; it must outlive this object.
  void place(std::byte* memory);
  // Sets residuals to zero and Q to new values. Ends a round.
  void reset();

  // Begins a round, whose steps all read the gradients. ARGUMENT: a value is not finite; then no round is in progress,
  // and nothing has changed.
  dr_status begin(std::span<const float* const> gradients, std::span<float* const> outs, pool& workers,
                  dr_error& error);
  // Other outputs than those of begin, before the last advance writes them.
  void set_outputs(std::span<float* const> outs) { std::copy(outs.begin(), outs.end(), outs_.begin()); }
  bool busy() const { return phase_ != 0; }
  uint32_t phase() const { return phase_; }  // the number of the factor to be all-reduced; 0: none
  // The factor to be all-reduced now.
  std::span<float> factor() const { return phase_ == 1 ? first_ : phase_ == 2 ? second_ : std::span<float>(); }
  // Continues after the all-reduce; the factor times `mean` is the mean over ranks. PENDING: there is another factor;
  // OK: the outputs are written, times `scale`. ARGUMENT: a value of the factor, or its product with `mean`, is not
  // finite, or above 2^90 in the second factor; the round is still in progress.
  dr_status advance(float mean, float scale, pool& workers, dr_error& error);
  // Ends a round. keep: the gradients are added to the residual; otherwise the state is that before the round.
  void cancel(bool keep);

  std::span<const lowrank_item> items() const { return items_; }
  std::span<float> residual(size_t tensor) const;
  // Q of the next round, [rank][columns]; empty for a dense tensor.
  std::span<float> warm_start(size_t tensor) const;
  // After its Q was written: columns of zeros are drawn again, and columns of another norm than 1 are made orthonormal, for with
  // values of any size no later round might succeed. What a round wrote stays as it is, to the bit.
  void settle_warm_start(size_t tensor);
  bool keeps() const { return how_.keeps; }
  uint64_t elements() const { return elements_; }
  uint64_t first_size() const { return first_size_; }
  uint64_t second_size() const { return second_size_; }
  uint64_t rounds() const { return rounds_; }

  // State: residuals, Q, and a fingerprint of shapes and options, as of a transform without the marks. A state with
  // marks as an ordinary last tensor, of any number of elements, is accepted, too. ARGUMENT: other shapes, another rank
  // of the factors, or a value that is not finite; then nothing has changed.
  uint64_t state_size() const;
  void save(std::byte* state) const;
  dr_status load(const std::byte* state, uint64_t size, dr_error& error);

 private:
  struct task {
    uint32_t item;
    uint64_t first, last;  // rows or columns
  };
  template <class F>
  static void run(pool& workers, size_t n, F&& f);
  uint64_t lay_out(arena& memory);
  void list_tasks(uint32_t workers);
  // The number of tensors and elements in a state.
  size_t saved_items() const { return items_.size() - how_.marks; }
  uint64_t saved_elements() const { return elements_ - (how_.marks ? items_.back().elements() : 0); }
  uint64_t fingerprint(uint64_t marks) const;
  lowrank_matrix matrix(size_t item) const;
  void copy_input(size_t item, float* to) const;
  float value(size_t item, uint64_t element) const;
  void draw_column(size_t item, uint32_t column);
  void orthonormalise_q(size_t item, double* scratch);
  dr_status find_fault(size_t item, dr_error& error) const;
  dr_status check_factor(std::span<const float> factor, const char* name, float mean, float limit,
                         dr_error& error) const;
  dr_status finish(float mean, float scale, pool& workers, dr_error& error);

  lowrank_options how_;
  std::vector<lowrank_item> items_;
  std::vector<uint32_t> low_, dense_;  // the items of both kinds
  std::vector<task> row_tasks_, column_tasks_;
  uint64_t elements_ = 0, first_size_ = 0, second_size_ = 0, scratch_size_ = 0, memory_size_ = 0;
  uint32_t workers_ = 1;
  const lowrank_kernels* kernels_ = nullptr;

  float *residual_ = nullptr, *q_ = nullptr;
  std::span<float> first_, second_;
  double* scratch_ = nullptr;  // [workers][scratch_size_]
  std::vector<const float*> gradients_;
  std::vector<float*> outs_;
  uint32_t phase_ = 0;  // 1, 2: that factor is all-reduced
  float dense_mean_ = 1;
  uint64_t rounds_ = 0;
};

}  // namespace dr
