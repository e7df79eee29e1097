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
 * - Slots of halves (DR_SENDER_HALVES) and of factors (transform=lowrank) are numbers that an all-reduce adds up in place:
 *   encode, an all-reduce, merge; of factors between them dr_sender_sum, which reads the first and writes the second, and
 *   another all-reduce. The rank's head is among the numbers.
 * - Sparse rows (DR_NAMED_ROWS) differ in number from rank to rank: dr_sender_place_rows says in each step where they are,
 *   dr_sender_rows where their mean is. They travel as frames do.
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
  /* sparsify=visible: the weights that the tensor is to move, `elements` of its type, aligned; encode reads them. They stay
   * there as long as the sender. Otherwise not read, and may be NULL */
  const void *base;
} dr_named_tensor;

enum {
  DR_SENDER_SUM = 1u << 0,           /* merge gives the sum over ranks, not the mean */
  DR_SENDER_F32 = 1u << 1,           /* outputs are f32, whatever the type of the tensors */
  DR_SENDER_CALLER_STATES = 1u << 2, /* the caller has the states, where dr_sender_place says; but the
                                        sender has those of OWNER units, which are of ranges, and of FACTORS */
  DR_SENDER_SKIP = 1u << 3,          /* a step in which some rank's gradient is not finite is skipped on all ranks */
  DR_SENDER_SCATTER = 1u << 4, /* a reduce-scatter: `ranks` equal shards of each tensor; the output is this rank's */
  DR_SENDER_DRY = 1u << 5, /* for a look at its units and at the plans of tensors: it has no memory, sizes of slots and
                                  states are 0; encode, sum and merge are UNSUPPORTED */
  /* Tensors of a plan that sends all values as halves (index=all value=half, alone or with feedback=residual) are units
   * of kind DR_UNIT_HALVES: an all-reduce of that type, of n ranks 2 / n of the bytes of an all-gather of frames */
  DR_SENDER_HALVES = 1u << 6
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
  /* how errors number the ranks, [ranks]; NULL: by position */
  const uint32_t *numbers;
  uint64_t seed; /* of the first factors of transforms; the same on every rank */
} dr_sender_options;

/* book: NULL if each tensor has its plan. place: NULL, or the CPU (UNSUPPORTED elsewhere).
 * ARGUMENT (names that are not apart, a type that a plan does not take, several clips, a base that is not aligned),
 * UNSUPPORTED (exchange=ring and hierarchy, sparsify=changed, sparsify=visible without a base), MEMORY. */
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
  DR_UNIT_FACTORS = 3, /* encode, all-reduce, and if sum_slot is not 0: sum, all-reduce; merge */
  DR_UNIT_ROWS = 4,    /* place_rows, encode, all-gather, merge, rows; its plan is dr_plan_rows */
  DR_UNIT_HALVES = 5   /* encode, all-reduce, merge */
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
  dr_dtype numbers; /* HALVES, FACTORS: the type of a slot's numbers, for the all-reduce. Else 0 */
  uint32_t reserved;
} dr_unit_info;
DR_API dr_status dr_sender_unit(const dr_sender *sender, size_t unit, dr_unit_info *info, dr_error *error);

typedef struct dr_sent_tensor {
  size_t struct_size;
  uint32_t unit, position;   /* position: in `tensors` of the unit */
  const dr_plan *plan;       /* that it is sent by; the sender's */
  uint64_t key;              /* of its random numbers */
  uint64_t state, sum_state; /* bytes of its states (dr_sender_read_state) */
  uint64_t warm_state;       /* FACTORS: of its warm start; 0 of a tensor that is sent as it is */
} dr_sent_tensor;
DR_API dr_status dr_sender_tensor(const dr_sender *sender, size_t tensor, dr_sent_tensor *info, dr_error *error);

/* Where the tensors [first, first + n) are from now on: contiguous, in[i] read by encode, out[i] written by merge; they
 * may be the same. states[i]: dr_state_size bytes, aligned to 8, with DR_SENDER_CALLER_STATES only. An array that is
 * NULL leaves these as they were. ARGUMENT. */
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
/* ROWS: the rows of a tensor in this step; encode reads them. ARGUMENT. */
DR_API dr_status dr_sender_place_rows(dr_sender *sender, size_t tensor, const dr_sent_rows *rows);
/* ROWS: the mean's rows, the union of those of all ranks, with indices of DR_I64 and values of the type of an output; in the sender's
 * memory, until the next merge of the unit. After dr_sender_skip: a row of NaN. ARGUMENT: there was no merge. */
DR_API dr_status dr_sender_rows(dr_sender *sender, size_t tensor, dr_sent_rows *rows);
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
 * `sum_bound` bytes. What is wrong with them is not an error here but for CAPACITY: the slot says it to all ranks.
 * FACTORS: one slot, the sum of those of all ranks; the second factor goes to `slot`. What is wrong merge says. */
DR_API dr_status dr_sender_sum(dr_sender *sender, size_t unit, const dr_call *call, const dr_bytes *slots, size_t ranks,
                               void *slot, size_t capacity, dr_sent *result);
/* The slots of all ranks, in order, become the outputs. Those are untouched unless all is sound. HALVES, FACTORS: one slot,
 * the sum of those of all ranks, which must have the same bits on all; the tensors of FACTORS must be as they were when it
 * was encoded, and their outputs stay until the step ends.
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
  DR_STATE_SUM = 1, /* OWNER: of the part of sums that this rank did not send as their owner */
  DR_STATE_WARM = 2 /* FACTORS: Q of the next step, f32[rank of the factors][columns], the same on every rank;
                       zeros: as of a new sender */
};
/* The state of a tensor, in the order of its elements, whatever the number of ranks: `state`, `sum_state` or `warm_state`
 * bytes of dr_sent_tensor (dr_state_size of its plan, of FACTORS that of its feedback with frames). Of a sum it is of the elements that this rank owns. For checkpoints, by
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
