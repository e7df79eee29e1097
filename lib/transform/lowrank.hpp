// PowerSGD (Vogels et al. 2019): a gradient matrix is sent as the product of two thin ones, which ranks all-reduce.
//
//   begin     M = gamma · gradient + beta · residual;  P = M Q                     first factor: P of all, dense tensors
//   continue  P, now a mean of ranks, becomes orthonormal columns P̂;  Q = Mᵀ P̂     second factor: Q of all
//   continue  output = P̂ Qᵀ of the mean Q;  residual = M − P̂ Qᵀ;  Q starts the next round
//
// The residual is what the mean leaves of this rank's M, as in the authors' code. The paper's algorithm 2 subtracts the
// product of this rank's own Q; the sum over ranks is the same, and so is the next mean.
#pragma once

#include <span>
#include <vector>

#include "core/arena.hpp"
#include "core/error.hpp"
#include "core/pool.hpp"
#include "transform/lowrank_kernel.hpp"

namespace dr {

struct lowrank_options {
  uint32_t rank = 1;
  bool keeps = false;  // a residual
  float beta = 1, gamma = 1;
  uint64_t seed = 0;         // of the first Q, the same on every rank
  uint64_t dense_below = 0;  // tensors of fewer elements travel dense
  bool marks = false;        // the last tensor is sent dense, has no residual and is not in a saved state
};

// A tensor as a matrix of `rows` by `columns`. It is dense, and in the first factor as it is, if two factors would have
// no fewer elements.
struct lowrank_shape {
  uint64_t rows, columns;
};

struct lowrank_item {
  uint64_t rows, columns;
  bool dense;
  uint64_t first;  // of its elements among those of all tensors
  uint64_t p, q;   // where its P (or itself, dense) is in the first factor, its Q in the second

  uint64_t elements() const { return rows * columns; }
};

class lowrank {
 public:
  // Lays itself out. CAPACITY: more elements than there are addresses.
  dr_status create(const lowrank_options& how, std::span<const lowrank_shape> shapes, uint32_t workers,
                   dr_error& error);
  uint64_t memory_size() const { return memory_size_; }
  // memory [memory_size()], aligned for an arena, which outlives this.
  void place(std::byte* memory);
  // Residuals of zero, a new Q. Ends a round.
  void reset();

  // Begins a round, which reads the gradients in each of its steps. ARGUMENT: a value is not finite; then no round is
  // under way, and nothing has changed.
  dr_status begin(std::span<const float* const> gradients, std::span<float* const> outs, pool& workers,
                  dr_error& error);
  bool busy() const { return phase_ != 0; }
  uint32_t phase() const { return phase_; }  // the number of the factor that travels; 0: none
  // What is to be all-reduced now.
  std::span<float> factor() const { return phase_ == 1 ? first_ : phase_ == 2 ? second_ : std::span<float>(); }
  // Takes the factor, which times `mean` is the mean over ranks. PENDING: there is another; OK: the outputs are written,
  // times `scale`. ARGUMENT: a value of the factor, or it times `mean`, is not finite, or beyond 2^90 in the second; the
  // round is still under way.
  dr_status advance(float mean, float scale, pool& workers, dr_error& error);
  // Ends a round. keep: the gradients go to the residual; otherwise all is as before it.
  void cancel(bool keep);

  std::span<const lowrank_item> items() const { return items_; }
  std::span<float> residual(size_t tensor) const;
  // Q of the next round, [rank][columns]; none of a dense tensor.
  std::span<float> warm_start(size_t tensor) const;
  bool keeps() const { return how_.keeps; }
  uint64_t elements() const { return elements_; }
  uint64_t first_size() const { return first_size_; }
  uint64_t second_size() const { return second_size_; }
  uint64_t rounds() const { return rounds_; }

  // State: residuals, Q, and what they belong to, but for the marks: as of a transform without them. One that has them as
  // an ordinary last tensor, of any number of elements, is taken, too. ARGUMENT: not of these shapes and this rank, or a
  // value that is not finite; then nothing has changed.
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
  // Tensors and elements of a state.
  size_t saved_items() const { return items_.size() - how_.marks; }
  uint64_t saved_elements() const { return elements_ - (how_.marks ? items_.back().elements() : 0); }
  uint64_t fingerprint(uint64_t marks) const;
  lowrank_matrix matrix(size_t item) const;
  void copy_input(size_t item, float* to) const;
  float value(size_t item, uint64_t element) const;
  void draw_column(size_t item, uint32_t column);
  void orthonormalise_q(size_t item, double* room);
  dr_status find_fault(size_t item, dr_error& error) const;
  dr_status check_factor(std::span<const float> factor, const char* name, float mean, float limit,
                         dr_error& error) const;
  dr_status finish(float mean, float scale, pool& workers, dr_error& error);

  lowrank_options how_;
  std::vector<lowrank_item> items_;
  std::vector<uint32_t> low_, dense_;  // items of either kind
  std::vector<task> row_tasks_, column_tasks_;
  uint64_t elements_ = 0, first_size_ = 0, second_size_ = 0, room_ = 0, memory_size_ = 0;
  uint32_t workers_ = 1;
  const lowrank_kernels* kernels_ = nullptr;

  float *residual_ = nullptr, *q_ = nullptr;
  std::span<float> first_, second_;
  double* rooms_ = nullptr;  // [workers][room_]
  std::vector<const float*> gradients_;
  std::vector<float*> outs_;
  uint32_t phase_ = 0;  // 1, 2: that factor travels
  float dense_mean_ = 1;
  uint64_t rounds_ = 0;
};

}  // namespace dr
