/* DeepReduce: transforms, an all-reduce of factors. C11 and C++20.
 *
 * PowerSGD (Vogels et al. 2019), the plan `transform=lowrank(rank=r) feedback=residual`: a gradient matrix [n, m] is
 * sent as the product of two factors, r (n + m) numbers that ranks sum by an all-reduce of f32, and not as a frame. A
 * transform is a state machine that leaves the all-reduce to the caller:
 *
 *   dr_transform_begin(t, tensors, sizeof *tensors, outs, sizeof *outs, n);
 *   do {
 *     dr_transform_factor(t, &factor, &count);
 *     all-reduce factor, f32[count], in place: the sum over ranks, or the mean;
 *   } while ((status = dr_transform_next(t, mean)) == DR_PENDING);     mean: 1 / ranks for a sum, 1 for a mean
 *
 * The first factor has P = M Q of all matrices, M being the sum of gradient and residual, and the tensors that are sent
 * dense: vectors, and matrices with r (n + m) >= n m. The second factor has Q = M^T P, for the mean P with
 * orthonormal columns. The outputs are P Q^T of the mean Q, the residual is M - P Q^T. Q starts the next round (warm
 * start); the first Q is drawn from the seed.
 *
 * All ranks make the same calls. If all ranks have the same bits after the all-reduce, all have the same outputs. */
#ifndef DEEPREDUCE_TRANSFORM_H
#define DEEPREDUCE_TRANSFORM_H

#include "deepreduce.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dr_transform dr_transform;

typedef struct dr_transform_options {
  size_t struct_size;
  uint64_t seed;        /* of the first Q; the same on every rank */
  uint64_t dense_below; /* tensors of fewer elements are sent dense; 0: only those above */
  uint32_t flags;       /* of dr_transform_flags */
  uint32_t reserved;
} dr_transform_options;
enum dr_transform_flags {
  /* The last tensor is the caller's own, for example with an element per rank: it is sent dense, has no residual,
   * and is not in a saved state, which therefore fits any number of ranks. */
  DR_TRANSFORM_MARKS = 1u << 0
};

/* The matrix of a tensor is universe rows of width values, so a tensor of shape [n, a, b] is n rows of width a b. Dense
 * f32 tensors in CPU memory; their values are not read here. options: NULL for the defaults. All memory is allocated
 * here; the context must stay valid, and serves one call at a time. ARGUMENT, UNSUPPORTED, MEMORY. */
DR_API dr_status dr_transform_create(dr_context *context, const dr_plan *plan, const dr_transform_options *options,
                                     const dr_tensor *tensors, size_t stride, size_t n, dr_transform **transform);
DR_API void dr_transform_destroy(dr_transform *transform); /* NULL is fine */

/* Begins a round, after it has cancelled one in progress. The values of the tensors must not change until it ends;
 * `outs`, of the same shapes, are written at its end and not before. An output is its own tensor's memory, or overlaps
 * no tensor. ARGUMENT (also a NaN or infinity: `tensor` and `where` name it), UNSUPPORTED: no round is in progress,
 * nothing has changed. */
DR_API dr_status dr_transform_begin(dr_transform *transform, const dr_tensor *tensors, size_t stride,
                                    const dr_tensor_out *outs, size_t out_stride, size_t n);
/* The factor to be all-reduced now: f32[count], valid until the next call of another function. ARGUMENT: no round. */
DR_API dr_status dr_transform_factor(dr_transform *transform, float **factor, uint64_t *count);
/* Reads the all-reduced factor, which times `mean` is the mean over ranks. DR_PENDING: there is another one. DR_OK:
 * the outputs are written, and the round has ended. ARGUMENT (no round; `mean` is not finite; a value of the factor
 * is not, or its mean exceeds 2^90 in the second factor, by which a residual could exceed f32: all ranks see that):
 * cancel the round. */
DR_API dr_status dr_transform_next(dr_transform *transform, float mean);
enum {
  DR_TRANSFORM_KEEP =
      1u << 0 /* adds the gradients to the residual, as a failed exchange does: do not pass these again */
};
/* Ends a round without a result: the state is that before the round, or with KEEP the gradients are in the residual.
 * Does nothing without a round. ARGUMENT (KEEP without feedback), UNSUPPORTED (flags). */
DR_API dr_status dr_transform_cancel(dr_transform *transform, uint32_t flags);

/* The residual of a tensor: f32[elements], which may be changed between rounds. ARGUMENT (no feedback, a round is in
 * progress). */
DR_API dr_status dr_transform_residual(dr_transform *transform, size_t tensor, float **residual, uint64_t *elements);
/* Writes, or reads, the state between rounds: residuals of this rank, and Q. `size` is state_size of
 * dr_transform_describe. The bytes may be loaded on any machine, by a transform of the same shapes and rank; one with
 * MARKS accepts states with marks, too, of any number of ranks if they have residuals. ARGUMENT (a
 * round is in progress, another size, other shapes, a value that is not finite): nothing has changed. */
DR_API dr_status dr_transform_save(dr_transform *transform, void *state, size_t size);
DR_API dr_status dr_transform_load(dr_transform *transform, const void *state, size_t size);
/* Resets it to the state of a new one. Cancels a round. */
DR_API dr_status dr_transform_reset(dr_transform *transform);

typedef struct dr_transform_info {
  size_t struct_size;
  uint32_t rank;          /* of the factors */
  uint32_t busy;          /* 1: a round is in progress */
  uint64_t tensors;       /* all */
  uint64_t matrices;      /* those that are sent as factors */
  uint64_t elements;      /* of all tensors */
  uint64_t first, second; /* elements of the factors; second is 0 without matrices: there is one factor then */
  uint64_t rounds;        /* rounds with a result, since its creation */
  uint64_t memory;        /* bytes that it allocated */
  uint64_t state_size;    /* bytes */
} dr_transform_info;
DR_API dr_status dr_transform_describe(const dr_transform *transform, dr_transform_info *info, dr_error *error);

#ifdef __cplusplus
}
#endif
#endif
