/* DeepReduce: a sender, one rank's side of the exchange of many named tensors over the collectives of a framework.
 *
 * A data-parallel training has hundreds of tensors with names. A sender decides which of them travel together and by
 * which plan; the rules are the same for all frameworks. It encodes and decodes the bytes. The framework sends them:
 *
 *   tensors of this rank ── encode ──► slot ── all-gather (the framework's) ──► slots of all ranks ── merge ──► means
 *
 * - A unit is a list of tensors that travel in one slot. Units are independent: encode each as soon as its tensors are
 *   ready, and let its collective run meanwhile.
 * - A slot consists of a header and one or more frames. The header holds the rank's step and the sizes of the frames.
 *   All ranks send slots of one size, `slot` of dr_unit_info. If that is too small for the frames of a rank, the header
 *   holds the size that is needed: merge then returns CAPACITY on all ranks, and all ranks send the rest.
 * - Slots of halves (DR_SENDER_HALVES) and of factors (transform=lowrank) are numbers, which an all-reduce adds up in
 *   place: encode, an all-reduce, merge. Factors need two rounds: after the first all-reduce dr_sender_sum reads the first
 *   factors and writes the second ones, for another all-reduce. The header of each rank is among the numbers.
 * - The number of sparse rows (DR_NAMED_ROWS) differs from rank to rank. dr_sender_place_rows sets where they are in a
 *   step, dr_sender_rows returns their mean. They travel as frames do.
 * - With `exchange=owner` in its plan a unit travels twice. Each rank encodes a frame for each owner of a range of the
 *   elements (encode, an all-to-all). The owner adds them up and encodes the sum (dr_sender_sum, an all-gather). The bytes
 *   that a rank sends do not grow with the number of ranks.
 * - The states of feedback are in the sender, by tensor, or in the caller's memory (DR_SENDER_CALLER_STATES).
 * - A rank that cannot encode sends a slot with the reason. Merge then fails on all ranks and names rank and tensor.
 * - If a step fails, dr_sender_take_back adds what was sent to the residuals again: nothing is lost.
 * - With a place on a device, units of frames, of owners and of a reduce-scatter run there, and no call waits. Tensors,
 *   outputs, states and slots are device memory; encode, sum and merge enqueue. The host does not know the sizes of frames, so
 *   all slots have `bound` or `sum_bound` bytes, and it learns of faults later: dr_sender_check returns the errors of a step, in
 *   the words of merge, before the first encode of the next one. What a unit that failed sent goes back to the residuals on
 *   the device (of owners and of a reduce-scatter in dr_sender_check, so their slots stay until then; the states of an owner's
 *   sums are as before the step), and the next step's heads count the failure. Other kinds of units are UNSUPPORTED there.
 *
 * Without a framework, and with one plan for all tensors, use dr_exchange, which drives the transport itself (exchange.h
 * compares the two).
 *
 * A sender belongs to a context, and one thread at a time calls it. Errors are in the context: `tensor` is the position of
 * the tensor at fault, `frame` that of the rank; the message names both.
 *
 * Rules. The first line of the book that matches the name of a tensor has its plan. A tensor without such a line is dense:
 * `bucket=flat index=all value=raw`. A tensor of fewer than `dense_below` elements is sent by dr_plan_exact of its plan.
 * The name of a tensor seeds its random numbers. The tensors of a unit have one type and together at most `unit_bytes`
 * bytes; a larger tensor is a unit by itself. The tensors of a flat plan are one frame; the others are one frame for each
 * kind of feedback (and each beta of feedback=residual). A mean is the sum of the frames, each times 1 / ranks, added in
 * the order of the ranks in f32 and rounded once; votes (merge=vote) are counted without that factor.
 * feedback=dgc(clip=…) bounds the norm of all tensors whose plan has a clip, together.
 */
#ifndef DEEPREDUCE_SENDER_H
#define DEEPREDUCE_SENDER_H

#include "deepreduce.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dr_sender dr_sender;

enum {
  DR_NAMED_ROWS = 1u << 0 /* the gradient is sparse rows: a unit by itself, of kind DR_UNIT_ROWS */
};
typedef struct dr_named_tensor {
  size_t struct_size;
  const char *name; /* UTF-8, unique */
  dr_dtype dtype;   /* DR_F32, DR_F16, DR_BF16 */
  uint32_t flags;   /* DR_NAMED_* */
  uint64_t rows;    /* of its matrix, for a transform: the first dimension. 0 means 1 */
  uint64_t elements;
  const dr_plan *plan; /* NULL: that of the book. May be destroyed after dr_sender_create */
  /* sparsify=visible: the weights that the tensor is to change, `elements` of its type, aligned. Encode reads them; they must
   * stay there as long as the sender exists. Other plans do not read it; it may be NULL */
  const void *base;
} dr_named_tensor;

enum {
  DR_SENDER_SUM = 1u << 0,           /* merge writes the sum over ranks, not the mean */
  DR_SENDER_F32 = 1u << 1,           /* outputs are f32, for tensors of any type */
  DR_SENDER_CALLER_STATES = 1u << 2, /* states are in the caller's memory (dr_sender_place), except those
                                        of OWNER and SCATTER units, which belong to ranges, and of FACTORS */
  DR_SENDER_SKIP = 1u << 3,          /* a step in which some rank's gradient is not finite is skipped on all
                                        ranks; other errors fail it */
  DR_SENDER_SCATTER = 1u << 4, /* a reduce-scatter: `ranks` equal shards of each tensor; the output is this rank's */
  DR_SENDER_DRY = 1u << 5,     /* only reports units and plans of tensors, without memory for them: sizes of slots and
                                  states are 0; encode, sum and merge return UNSUPPORTED */
  /* Tensors whose plan sends all values as halves (index=all value=half, alone or with feedback=residual) are units of
   * kind DR_UNIT_HALVES, for an all-reduce of that type: with n ranks 2 / n of the bytes of an all-gather of frames */
  DR_SENDER_HALVES = 1u << 6,
  /* On a device: the outputs of a unit that failed become 0, on all ranks, because an optimizer uses them before the host
   * knows of the failure. Without it they stay as they are */
  DR_SENDER_ZEROS = 1u << 7
};
enum { DR_FLAT_BY_PLAN = 0, DR_FLAT = 1, DR_NOT_FLAT = 2 };
#define DR_DENSE_BELOW_BY_PLAN UINT64_MAX

typedef struct dr_sender_options {
  size_t struct_size;
  uint32_t ranks, rank; /* ranks: 0 means 1 */
  uint32_t flags;       /* DR_SENDER_* */
  /* whether the tensors of a plan are encoded as one tensor (bucket=flat). BY_PLAN: yes if the plan sparsifies (it then
   * selects among the elements of all; not with transform=dct or sparsify=visible) or sends each value by itself; no if it
   * quantizes all elements, with levels for each tensor */
  uint32_t flat;
  uint64_t dense_below; /* elements; BY_PLAN: 0 for a flat plan, else 1000 */
  uint64_t unit_bytes;  /* 0: 4 MiB, for a transform 25 MiB; UINT64_MAX: tensors of one type are one unit */
  /* the numbers of the ranks in errors, [ranks]; NULL: their positions */
  const uint32_t *numbers;
  uint64_t seed; /* of the first factors of transforms; the same on every rank */
} dr_sender_options;

/* book: NULL if each tensor has its plan. place: NULL, the CPU, or a device with the stream of the first calls.
 * ARGUMENT (two tensors of one name, a type that a plan does not accept, several clips, a base that is not aligned),
 * UNSUPPORTED (exchange=ring and hierarchy, sparsify=changed, sparsify=visible without a base; on a device also DR_SENDER_SKIP
 * and a tensor whose plan or unit has no path there: the error names it and the reason), DEVICE, MEMORY. */
DR_API dr_status dr_sender_create(dr_context *context, const dr_place *place, const dr_book *book,
                                  const dr_named_tensor *tensors, size_t stride, size_t n,
                                  const dr_sender_options *options, dr_sender **sender);
DR_API void dr_sender_destroy(dr_sender *sender); /* NULL is fine */

typedef struct dr_sender_info {
  size_t struct_size;
  uint32_t ranks, rank;
  uint64_t tensors, units;
  uint32_t clips; /* 1: call dr_sender_clip when all tensors are placed, before the first encode of a step */
  uint32_t reserved;
  uint64_t states; /* bytes of the states of feedback */
  uint64_t memory; /* bytes that the sender has from the context's allocator */
  /* the number of steps that this rank did not complete, and the last of them: for checkpoints (dr_sender_resume) */
  uint64_t failures, failed;
  /* on a device: calls that waited for it. Encode and merge never do; dr_sender_check does if the device has not come to the
   * end of that step; the calls for states do */
  uint64_t waits;
} dr_sender_info;
DR_API dr_status dr_sender_describe(const dr_sender *sender, dr_sender_info *info, dr_error *error);

enum {
  DR_UNIT_FRAMES = 0,  /* encode, all-gather, merge */
  DR_UNIT_OWNER = 1,   /* encode, all-to-all, sum, all-gather, merge */
  DR_UNIT_SCATTER = 2, /* encode, all-to-all, merge (DR_SENDER_SCATTER) */
  DR_UNIT_FACTORS = 3, /* encode, all-reduce, and if sum_slot is not 0: sum, all-reduce; merge */
  DR_UNIT_ROWS = 4,    /* place_rows, encode, all-gather, merge, rows; its plan is dr_plan_rows */
  DR_UNIT_HALVES = 5   /* encode, all-reduce, merge */
};
typedef struct dr_unit_info {
  size_t struct_size;
  uint32_t kind;           /* DR_UNIT_* */
  uint32_t frames;         /* of a slot */
  const uint32_t *tensors; /* their positions, [count], in the order of the slot; valid as long as the sender */
  size_t count;
  uint64_t bytes; /* of the tensors */
  /* Encode writes `slots` slots (1, or one for each rank), `bound` bytes from one to the next. The first `slot` bytes of
   * each are sent in the next step, the same number on every rank; if it is below `bound`, it follows what all ranks sent,
   * so after a damaged header (CORRUPT) on some ranks only (of OWNER the others then have PEER), all ranks create their
   * senders again. sum_…: of the slots of sums (OWNER, FACTORS) */
  uint64_t bound, slot;
  uint64_t slots;
  uint64_t sum_bound, sum_slot;
  dr_dtype numbers; /* HALVES, FACTORS: the type of a slot's numbers, for the all-reduce. Else 0 */
  uint32_t reserved;
} dr_unit_info;
DR_API dr_status dr_sender_unit(const dr_sender *sender, size_t unit, dr_unit_info *info, dr_error *error);

typedef struct dr_sent_tensor {
  size_t struct_size;
  uint32_t unit, position;   /* position: in `tensors` of the unit */
  const dr_plan *plan;       /* by which it is sent; valid as long as the sender */
  uint64_t key;              /* seed of its random numbers */
  uint64_t state, sum_state; /* bytes of its states (dr_sender_read_state) */
  uint64_t warm_state;       /* FACTORS: bytes of its warm start; 0 if the tensor is sent without factors */
} dr_sent_tensor;
DR_API dr_status dr_sender_tensor(const dr_sender *sender, size_t tensor, dr_sent_tensor *info, dr_error *error);

/* Sets where the tensors [first, first + n) are from now on. Encode reads in[i], merge writes out[i]; both are contiguous
 * and may be the same. states[i]: dr_state_size bytes, aligned to 8, with DR_SENDER_CALLER_STATES only. A NULL array
 * changes nothing. ARGUMENT. */
DR_API dr_status dr_sender_place(dr_sender *sender, size_t first, size_t n, const void *const *in, void *const *out,
                                 void *const *states);
/* Rows of a tensor: indices[count], ascending and below its rows, and values[count][elements / rows] of its type. */
typedef struct dr_sent_rows {
  size_t struct_size;
  uint64_t count;
  const void *indices, *values;
  dr_dtype index_dtype; /* DR_U32, DR_I32, DR_U64, DR_I64 */
  uint32_t reserved;
} dr_sent_rows;
/* ROWS: sets the rows of a tensor in this step, which encode reads. ARGUMENT. */
DR_API dr_status dr_sender_place_rows(dr_sender *sender, size_t tensor, const dr_sent_rows *rows);
/* ROWS: returns the rows of the mean, the union of those of all ranks, with indices of DR_I64 and values of the output's
 * type. They are in the sender's memory until the next merge of the unit. After dr_sender_skip: a row of NaN. ARGUMENT:
 * there was no merge. */
DR_API dr_status dr_sender_rows(dr_sender *sender, size_t tensor, dr_sent_rows *rows);
/* For senders whose dr_sender_info.clips is 1. Computes the norm of the tensors that have a clip. If it is above the
 * bound, encode sends them scaled, until dr_sender_place or the end of the step. The tensors do not change.
 * ARGUMENT: one of them was not placed. MEMORY. */
DR_API dr_status dr_sender_clip(dr_sender *sender);

/* result may be NULL. It is set whether or not the call succeeds. */
typedef struct dr_sent {
  size_t struct_size;
  uint64_t size;   /* encode, sum: bytes of the longest slot that was written; merge: of the longest slot of any rank */
  uint64_t frames; /* encode, sum: bytes of all frames in these slots */
  uint64_t kept;   /* encode: rows that were selected */
  uint64_t needed; /* merge, sum, CAPACITY: bytes of the longest slot of any rank */
  dr_status fault; /* encode, sum: why the unit could not be encoded, as the slot reports it; or DR_OK */
  uint32_t skips;  /* merge: 1 if some rank's gradient is not finite: nothing was written; call dr_sender_skip */
} dr_sent;

/* Encodes a unit. call: step and seed (the same on every rank), private_seed (different on every rank), trace; the rest
 * must be 0. slots: `slots` times `bound` bytes. Data that cannot be encoded (a NaN, for example) are not an error here:
 * the slot reports them to all ranks. The slots, and those that sum reads, must not change until the step ends.
 * ARGUMENT, CAPACITY (of slots). */
DR_API dr_status dr_sender_encode(dr_sender *sender, size_t unit, const dr_call *call, void *slots, size_t capacity,
                                  dr_sent *result);
/* OWNER: adds up the slots that the ranks sent to this one, in order, and encodes the sum into `slot`, of `sum_bound`
 * bytes. A faulty slot is not an error here, except CAPACITY: `slot` reports it to all ranks.
 * FACTORS: reads one slot, the sum of those of all ranks, and writes the second factors to `slot`. Merge reports faults. */
DR_API dr_status dr_sender_sum(dr_sender *sender, size_t unit, const dr_call *call, const dr_bytes *slots, size_t ranks,
                               void *slot, size_t capacity, dr_sent *result);
/* Merges the slots of all ranks, in order, into the outputs. If it fails, it has written no output. HALVES, FACTORS: one
 * slot, the sum of those of all ranks, with the same bits on every rank. Between encode and merge the tensors of FACTORS
 * must not change, nor may their outputs until the step ends. On a device the slots that sum and merge read are aligned to
 * 16 bytes, in order and equally spaced, `bound` (of sums `sum_bound`) bytes or more from one to the next.
 * CAPACITY: each slot has `needed` bytes; call merge again with all of them. CORRUPT, PEER (a rank could not encode; of
 * OWNER also: an owner got a damaged slot, or found the ranks out of step), ARGUMENT (a rank sends other tensors; with
 * reason DR_REASON_OUT_OF_STEP: a rank is at another step, or did not complete a step that others completed). */
DR_API dr_status dr_sender_merge(dr_sender *sender, size_t unit, const dr_call *call, const dr_bytes *slots,
                                 size_t ranks, dr_sent *result);

/* On a device, after the merges of a step and before the first encode of the next: returns their first error, as
 * dr_sender_merge does on the CPU; waits if the device has not ended them. `size` and `frames` of the result are those of all
 * units of the step; `frames` of this rank. A unit that failed was taken back already, and the others were merged: go on,
 * without dr_sender_take_back. On the CPU it returns DR_OK. */
DR_API dr_status dr_sender_check(dr_sender *sender, uint64_t step, dr_sent *result);
/* On a device: later calls enqueue on this stream (cudaStream_t), after what was enqueued before. A stream ends its work before
 * it is destroyed: a new one may have its handle. ARGUMENT: on the CPU. */
DR_API dr_status dr_sender_use_stream(dr_sender *sender, void *stream);

/* Ends a step that failed: adds what was encoded in it to the residuals again; slots report the failure from now on. On a
 * device it enqueues, for a step that the host gives up: also the units whose merges succeeded are taken back. An
 * error names the tensors whose part is lost; those of the others are restored all the same. */
DR_API dr_status dr_sender_take_back(dr_sender *sender, uint64_t step);
/* Ends a step that some rank asks to skip: restores the states from before it and fills outputs with NaN. */
DR_API dr_status dr_sender_skip(dr_sender *sender, uint64_t step);
/* After DR_REASON_OUT_OF_STEP: writes the positions of the ranks that are behind, at most `capacity`, and returns how many
 * there are. `what` of the error is a rank that is not behind; `where` is the step that they did not complete, or
 * UINT64_MAX if they are at another step. */
DR_API size_t dr_sender_behind(const dr_sender *sender, uint32_t *ranks, size_t capacity);

enum {
  DR_STATE_OWN = 0, /* the part of its gradient that this rank did not send */
  DR_STATE_SUM = 1, /* OWNER: the part of its sums that this rank, their owner, did not send */
  DR_STATE_WARM = 2 /* FACTORS: Q of the next step, f32[rank of the factors][columns], the same on every rank;
                       zeros: as in a new sender; columns of another norm than 1: it is made
                       orthonormal */
};
/* The state of a tensor, in the order of its elements, for any number of ranks: `state`, `sum_state` or `warm_state` bytes
 * of dr_sent_tensor (dr_state_size of its plan; of FACTORS: of a plan of frames with the same feedback). DR_STATE_SUM has
 * values for the elements that this rank owns. For checkpoints, by name. ARGUMENT: also a state with a value that is not
 * finite, which no step makes. */
DR_API dr_status dr_sender_read_state(dr_sender *sender, size_t tensor, uint32_t which, void *state, size_t size);
DR_API dr_status dr_sender_write_state(dr_sender *sender, size_t tensor, uint32_t which, const void *state,
                                       size_t size);
/* dr_state_scale on all residuals, and on what a rank that is behind will withdraw from them; with DR_SENDER_CALLER_STATES on
 * the states that were placed last. Between steps. */
DR_API dr_status dr_sender_scale(dr_sender *sender, double factor);
/* Continues from a checkpoint with failures and failed of dr_sender_info. Between steps: after it no rank is behind, and
 * dr_sender_take_back has nothing of a step before it. */
DR_API dr_status dr_sender_resume(dr_sender *sender, uint64_t failures, uint64_t failed);

#ifdef __cplusplus
}
#endif

#endif
