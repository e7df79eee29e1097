/* DeepReduce: a sender, one rank's side of the exchange of many named tensors over the collectives of a framework.
 *
 * A data-parallel training has hundreds of tensors with names. A sender decides, by one law for all frameworks, which of
 * them travel together and by which plan, and it makes and reads the bytes. The framework carries them:
 *
 *   tensors of this rank ── encode ──► slot ── all-gather (the framework's) ──► slots of all ranks ── merge ──► means
 *
 * - A unit is a list of tensors that travel in one slot. Units are independent: encode each as soon as its tensors are
 *   ready, and let its collective run meanwhile.
 * - A slot has a header, which says at which step its sender is and how long its frames are, and one frame or several.
 *   All ranks send slots of one size, `slot` of dr_unit_info. One that is too short for its frames still says so: then
 *   merge is CAPACITY on all ranks, and all send the rest.
 * - With `exchange=owner` in its plan a unit travels twice: each rank encodes a frame for each owner of a range of the
 *   elements (encode, an all-to-all), the owner adds them up and encodes the sum (dr_sender_sum, an all-gather). What
 *   a rank sends does not grow with the number of ranks.
 * - Feedback keeps its states in the sender, by tensor; or where the caller wants them (DR_SENDER_CALLER_STATES).
 * - A rank that cannot encode sends a slot that says why; merge fails on all ranks, and names rank and tensor.
 * - If a step fails, dr_sender_take_back gives what it sent back to the residuals: nothing is lost.
 *
 * Where there is no framework, and one plan for all tensors, dr_exchange drives the transport itself; exchange.h says which
 * is for what.
 *
 * A sender belongs to a context, and one thread at a time calls it. Errors are in the context: `tensor` is the position of
 * the tensor at fault, `frame` that of the rank; the message names both.
 *
 * Law. The plan of a tensor is that of the first line of the book that matches its name; without a line it is dense:
 * `bucket=flat index=all value=raw`. A tensor of fewer than `dense_below` elements has dr_plan_exact of its plan. Random
 * numbers of a tensor are seeded by its name. Tensors of one unit have one type, and `unit_bytes` at most together unless
 * there is one only. Those of one flat plan are one frame; the others are one frame for each kind of feedback. A mean is
 * the sum of the frames in the order of the ranks, each times 1 / ranks, added in f32 and rounded once; votes
 * (merge=vote) are counted as they are. feedback=dgc(clip=…) is of the norm of all tensors whose plan has a clip.
 */
#ifndef DEEPREDUCE_SENDER_H
#define DEEPREDUCE_SENDER_H

#include "deepreduce.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dr_sender dr_sender;

enum {
  DR_NAMED_ROWS = 1u << 0 /* its gradient is sparse rows: a unit of its own of kind DR_UNIT_ROWS */
};
typedef struct dr_named_tensor {
  size_t struct_size;
  const char *name; /* UTF-8, unique */
  dr_dtype dtype;   /* DR_F32, DR_F16, DR_BF16 */
  uint32_t flags;   /* DR_NAMED_* */
  uint64_t rows;    /* of its matrix, for a transform: the first dimension. 0 means 1 */
  uint64_t elements;
  const dr_plan *plan; /* NULL: the book's. Not kept; may be destroyed */
} dr_named_tensor;

enum {
  DR_SENDER_SUM = 1u << 0,           /* merge gives the sum over ranks, not the mean */
  DR_SENDER_F32 = 1u << 1,           /* outputs are f32, whatever the type of the tensors */
  DR_SENDER_CALLER_STATES = 1u << 2, /* the caller has the states, where dr_sender_place says; but the
                                        sender has those of OWNER units, which are of ranges */
  DR_SENDER_SKIP = 1u << 3,          /* a step in which some rank's gradient is not finite is skipped on all ranks */
  DR_SENDER_SCATTER = 1u << 4, /* a reduce-scatter: `ranks` equal shards of each tensor; the output is this rank's */
  DR_SENDER_DRY = 1u << 5 /* for a look at its units and at the plans of tensors: it has no memory, sizes of slots and
                                  states are 0; encode, sum and merge are UNSUPPORTED */
};
enum { DR_FLAT_BY_PLAN = 0, DR_FLAT = 1, DR_NOT_FLAT = 2 };
#define DR_DENSE_BELOW_BY_PLAN UINT64_MAX

typedef struct dr_sender_options {
  size_t struct_size;
  uint32_t ranks, rank; /* ranks: 0 means 1 */
  uint32_t flags;       /* DR_SENDER_* */
  /* whether the tensors of one plan are one tensor (bucket=flat). BY_PLAN: those of a plan that sparsifies, which then
   * selects among all, or that sends each value by itself; a plan that quantizes all elements has levels for each tensor */
  uint32_t flat;
  uint64_t dense_below; /* elements; BY_PLAN: 0 of a flat plan, else 1000 */
  uint64_t unit_bytes;  /* 0: 4 MiB, of a transform 25 MiB; UINT64_MAX: tensors of one type are one unit */
  /* plans whose tensors the caller sends itself (an all-reduce of halves, for example): units of kind DR_UNIT_APART */
  const dr_plan *const *apart;
  size_t apart_count;
  /* how errors number the ranks, [ranks]; NULL: by position */
  const uint32_t *numbers;
} dr_sender_options;

/* book: NULL if each tensor has its plan. place: NULL, or the CPU (UNSUPPORTED elsewhere).
 * ARGUMENT (names that are not apart, a type that a plan does not take, several clips), UNSUPPORTED (exchange=ring and
 * hierarchy, sparsify=changed), MEMORY. */
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
  uint64_t states; /* bytes that feedback keeps */
  uint64_t memory; /* bytes of the context's allocator that the sender has */
  /* steps that this rank did not complete, and the last of them: for checkpoints (dr_sender_resume) */
  uint64_t failures, failed;
} dr_sender_info;
DR_API dr_status dr_sender_describe(const dr_sender *sender, dr_sender_info *info, dr_error *error);

enum {
  DR_UNIT_FRAMES = 0,  /* encode, all-gather, merge */
  DR_UNIT_OWNER = 1,   /* encode, all-to-all, sum, all-gather, merge */
  DR_UNIT_SCATTER = 2, /* encode, all-to-all, merge (DR_SENDER_SCATTER) */
  DR_UNIT_FACTORS = 3, /* the caller's: dr_transform */
  DR_UNIT_APART = 4,   /* the caller's: `apart` of the options */
  DR_UNIT_ROWS = 5     /* the caller's: its plan is dr_plan_rows */
};
typedef struct dr_unit_info {
  size_t struct_size;
  uint32_t kind;           /* DR_UNIT_* */
  uint32_t frames;         /* of a slot */
  const uint32_t *tensors; /* their positions, [count], as they lie in the slot; valid as long as the sender */
  size_t count;
  uint64_t bytes; /* of the tensors */
  /* Encode writes `slots` slots (1, or one for each rank), each with room for `bound` bytes, one behind the other; of
   * these the first `slot` bytes travel in the next step, the same on every rank. Of the slots of sums (OWNER): sum_… */
  uint64_t bound, slot;
  uint64_t slots;
  uint64_t sum_bound, sum_slot;
} dr_unit_info;
DR_API dr_status dr_sender_unit(const dr_sender *sender, size_t unit, dr_unit_info *info, dr_error *error);

typedef struct dr_sent_tensor {
  size_t struct_size;
  uint32_t unit, position;   /* position: in `tensors` of the unit */
  const dr_plan *plan;       /* that it is sent by; the sender's */
  uint64_t key;              /* of its random numbers */
  uint64_t state, sum_state; /* bytes of its states (dr_sender_read_state) */
} dr_sent_tensor;
DR_API dr_status dr_sender_tensor(const dr_sender *sender, size_t tensor, dr_sent_tensor *info, dr_error *error);

/* Where the tensors [first, first + n) are from now on: contiguous, in[i] read by encode, out[i] written by merge; they
 * may be the same. states[i]: dr_state_size bytes, aligned to 8, with DR_SENDER_CALLER_STATES only. An array that is
 * NULL leaves these as they were. ARGUMENT. */
DR_API dr_status dr_sender_place(dr_sender *sender, size_t first, size_t n, const void *const *in, void *const *out,
                                 void *const *states);
/* Where clips of dr_sender_info is 1. Reads the norm of the tensors that have a clip; if it is above the bound, encode
 * sends them scaled, until dr_sender_place or the end of the step. The tensors are not changed. MEMORY. */
DR_API dr_status dr_sender_clip(dr_sender *sender);

/* On every call: result may be NULL. It is set however the call ends. */
typedef struct dr_sent {
  size_t struct_size;
  uint64_t size;   /* encode, sum: bytes of the longest slot that was written; merge: of the longest of any rank */
  uint64_t frames; /* encode, sum: bytes of the frames in all of them */
  uint64_t kept;   /* encode: rows that were selected */
  uint64_t needed; /* merge, sum, CAPACITY: bytes of the longest slot of any rank */
  dr_status fault; /* encode, sum: why the slot says that it could not be encoded; or DR_OK */
  uint32_t skips;  /* merge: 1: some rank's gradient is not finite; nothing was written. Call dr_sender_skip */
} dr_sent;

/* Encodes a unit. call: step (the same on every rank), seed (the same), private_seed (another on every rank), trace; the
 * rest must be 0. slots: `slots` times `bound` bytes. What the data do not allow (a NaN, say) is not an error here: the
 * slot says it. The slots, and those that sum gets, must stay as they are until the step ends. ARGUMENT. */
DR_API dr_status dr_sender_encode(dr_sender *sender, size_t unit, const dr_call *call, void *slots, size_t capacity,
                                  dr_sent *result);
/* OWNER: the slots that the ranks sent to this one, in order, become its sum, which is encoded into `slot`, of
 * `sum_bound` bytes. What is wrong with them is not an error here but for CAPACITY: the slot says it to all ranks. */
DR_API dr_status dr_sender_sum(dr_sender *sender, size_t unit, const dr_call *call, const dr_bytes *slots, size_t ranks,
                               void *slot, size_t capacity, dr_sent *result);
/* The slots of all ranks, in order, become the outputs. Those are untouched unless all is sound.
 * CAPACITY: `needed` bytes of each slot are to come, with which it is called again. CORRUPT, PEER (a rank could not
 * encode), ARGUMENT (a rank sends other tensors; reason DR_REASON_OUT_OF_STEP: is at another step, or did not complete one
 * that others did). */
DR_API dr_status dr_sender_merge(dr_sender *sender, size_t unit, const dr_call *call, const dr_bytes *slots,
                                 size_t ranks, dr_sent *result);

/* Ends a step that failed: what was encoded since the last step's end goes back to the residuals, and slots count the
 * failure from now on. Errors are of what is lost; the rest is done. */
DR_API dr_status dr_sender_take_back(dr_sender *sender, uint64_t step);
/* Ends a step that some rank asked to skip: states are as before it, outputs are NaN. */
DR_API dr_status dr_sender_skip(dr_sender *sender, uint64_t step);
/* After DR_REASON_OUT_OF_STEP: the positions of the ranks that are behind, as many as there is room for, and how many
 * there are. `what` of the error is a rank that is not, `where` the step that they did not complete, or UINT64_MAX where
 * they are at another step. */
DR_API size_t dr_sender_behind(const dr_sender *sender, uint32_t *ranks, size_t capacity);

enum {
  DR_STATE_OWN = 0, /* of the part that this rank did not send */
  DR_STATE_SUM = 1  /* OWNER: of the part of sums that this rank did not send as their owner */
};
/* The state of a tensor, in the order of its elements, whatever the number of ranks: `state` or `sum_state` bytes of
 * dr_sent_tensor (dr_state_size of its plan). Of a sum it is of the elements that this rank owns. For checkpoints, by
 * name. ARGUMENT. */
DR_API dr_status dr_sender_read_state(dr_sender *sender, size_t tensor, uint32_t which, void *state, size_t size);
DR_API dr_status dr_sender_write_state(dr_sender *sender, size_t tensor, uint32_t which, const void *state,
                                       size_t size);
/* dr_state_scale of all residuals. */
DR_API dr_status dr_sender_scale(dr_sender *sender, double factor);
/* Goes on from a checkpoint: failures and failed of dr_sender_info. */
DR_API dr_status dr_sender_resume(dr_sender *sender, uint64_t failures, uint64_t failed);

#ifdef __cplusplus
}
#endif

#endif
