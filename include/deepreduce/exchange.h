/* DeepReduce: ranks. An exchange encodes this rank's tensors, sends frames to the other ranks, and merges theirs: an
 * all-reduce of compressed gradients, over whatever carries bytes. C11 and C++20.
 *
 *   sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw exchange=owner(parts=4)
 *
 * The plan's last stage says who sends what to whom. It is compiled for (ranks, rank, parts) into a program, a list of steps in
 * their final order; dr_exchange_advance runs it as far as it gets without waiting. All ranks make the same calls, with the
 * same plan, shapes and options.
 *
 *   gather(parts=K)                each rank sends its frames to all others; merged in rank order. The default
 *   owner(parts=K)                 each range of elements has an owner, who merges what all send of it, encodes the sum and sends
 *                                  it to all. What the second encode drops stays in the owner's own residual
 *   ring(parts=K)                  a range goes from rank to rank, each adds its own and encodes anew; then the last frame goes round
 *   hierarchy(inner=G,parts=K)     of G ranks in a row (of one host) one sums up the dense gradients, and speaks for them: `gather`
 *                                  between those
 *
 * parts: how many pieces of a rank's elements are under way at a time, 1 (the default) to 64.
 *
 * Rules beside those of deepreduce.h:
 * - Every rank ends with the same bits: all apply the same frames in the same order.
 * - Ranks agree before an output is written: it is untouched unless all ranks have all they need. Of plans with feedback the
 *   gradient of a failed step is in the residual then: it is not lost, and must not be given again. (But for a range that this
 *   rank itself could not encode: of that the residual is as before.)
 * - One verdict can still be lost on its way to one rank, which then fails alone: its outputs are not those of the others, and it
 *   has taken back what they applied. The next call fails on all ranks and names it; then it wants their parameters, and a
 *   residual of zeros.
 * - A transport serves one exchange, ever: of another, late messages could be taken for this one's.
 * - Nothing waits longer than `timeout_ns`. An error names the guilty rank (dr_error.frame), and every rank names the same.
 */
#ifndef DEEPREDUCE_EXCHANGE_H
#define DEEPREDUCE_EXCHANGE_H

#include "deepreduce.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dr_exchange dr_exchange;

/* ---- Transport: what carries bytes ---------------------------------------------------------------------- */

/* Functions that never block. Messages from a rank to another with equal tags arrive in the order in which they were sent.
 * A request is a number of the transport's; it is over once `test` did not say DR_PENDING, or `cancel` said DR_OK. */
typedef struct dr_transport {
  size_t struct_size;
  void *user;
  uint32_t ranks, rank; /* 1 to 65536 ranks, this one's number */
  /* Starts to send `size` bytes (0 is a message, too) to another rank. They stay as they are until the request is over.
   * tag: below 2^28. */
  dr_status (*send)(void *user, uint32_t peer, uint32_t tag, const void *bytes, size_t size, uint64_t *request);
  /* Starts to receive at most `capacity` bytes from another rank. */
  dr_status (*recv)(void *user, uint32_t peer, uint32_t tag, void *bytes, size_t capacity, uint64_t *request);
  /* DR_OK: done, and of a receive `size` says how many bytes came (more than the capacity: CAPACITY). DR_PENDING: not yet. Any
   * other: it will never be done; the rank is taken to be lost. */
  dr_status (*test)(void *user, uint64_t request, size_t *size);
  /* Ends a request. DR_OK: its memory is free. DR_PENDING: the transport holds on to its memory. */
  dr_status (*cancel)(void *user, uint64_t request);
  /* A clock in ns that never goes back; NULL: the machine's. */
  uint64_t (*now)(void *user);
  /* NULL, or told of each step that computes, after it: where time is a model, the clock goes on by what such a step costs. */
  void (*spend)(void *user, uint32_t step, uint64_t elements, uint64_t bytes);
} dr_transport;

/* ---- Exchange ------------------------------------------------------------------------------------------- */

enum {
  DR_EXCHANGE_SUM = 1u << 0,   /* the sum over ranks; otherwise their mean */
  DR_EXCHANGE_TRACE = 1u << 1, /* remember when each step of the last exchange began and ended (dr_exchange_trace) */
  DR_EXCHANGE_DRY =
      1u << 2 /* a model: nothing is encoded, merged or written; messages have sizes but no bytes, for transports
                                  that are models, too. `frame_size` says how large a frame is */
};

typedef struct dr_exchange_options {
  size_t struct_size;
  uint32_t flags; /* DR_EXCHANGE_* */
  uint32_t reserved;
  uint64_t timeout_ns;  /* of one exchange; 0: 60 s */
  uint64_t dense_below; /* tensors of fewer elements go as they are, exact, beside the others; 0: none does */
  /* DRY: bytes of the frame of so many elements, at least 1; sum: of the sum that an owner encodes. */
  uint64_t (*frame_size)(void *user, uint64_t elements, uint32_t sum);
  void *frame_size_user;
} dr_exchange_options;

/* Prepares the exchange of n tensors, `outs` being where the result goes: dense, of the tensors' shapes, and perhaps
 * the tensors' own memory. The exchange keeps the states of feedback itself (so tensors have none) and allocates all that it
 * needs here. tensors, outs and the context (which serves it alone while an exchange is under way) must stay valid until it is
 * destroyed; transport and options are copied. Sparse tensors: with `gather` and `owner`.
 * Sparse outputs, of `gather`, have room for the union of as many rows as there can be. Memory of the CPU only.
 * ARGUMENT, CAPACITY (that room; `needed` says how much), UNSUPPORTED, MEMORY. */
DR_API dr_status dr_exchange_create(dr_context *context, const dr_plan *plan, const dr_transport *transport,
                                    const dr_exchange_options *options, const dr_tensor *tensors, size_t stride,
                                    dr_tensor_out *outs, size_t out_stride, size_t n, dr_exchange **exchange);
/* NULL is fine. An exchange under way is cancelled. What the transport holds on to is left to it, and never freed. */
DR_API void dr_exchange_destroy(dr_exchange *exchange);
/* Other memory for tensors and outs of the same shapes (a sparse count may be smaller). Not while an exchange is under way.
 * ARGUMENT. */
DR_API dr_status dr_exchange_rebind(dr_exchange *exchange, const dr_tensor *tensors, size_t stride, dr_tensor_out *outs,
                                    size_t out_stride, size_t n);

/* Begins an exchange of what the tensors hold now; they stay as they are until it ends. Of `call` step, seeds and trace count;
 * NULL: the step is the number of the call. The rank goes into private random numbers by itself. ARGUMENT: one is under way, or an
 * earlier one left memory with the transport: make a new exchange. */
DR_API dr_status dr_exchange_start(dr_exchange *exchange, const dr_call *call);
/* Goes on as far as it can. DR_PENDING: call again. DR_OK: the outputs hold the result. An error ends the exchange:
 * TIMEOUT (a rank is late or gone), PEER (a rank could not encode), CORRUPT (a frame came damaged), ARGUMENT (this rank's data,
 * or ranks that are out of step), …; dr_last_error has the rank in `frame`, and in `tensor` what it says of itself. */
DR_API dr_status dr_exchange_advance(dr_exchange *exchange);
/* Gives up an exchange under way: the others see this rank fail. The next dr_exchange_advance says how it ended. */
DR_API dr_status dr_exchange_cancel(dr_exchange *exchange);

/* What feedback keeps, in the order of the tensors' elements, whatever the ranks and parts: for a checkpoint. SUM: an owner's,
 * of what the second encode dropped, in units of the result (of means, unless DR_EXCHANGE_SUM); of ranges that this rank does not
 * own it reads zeros, and what is written there must be zero. */
enum { DR_RESIDUAL_OWN = 0, DR_RESIDUAL_SUM = 1 };
/* residual: f32[elements], elements = universe * width of the tensor. A plan without feedback reads zeros.
 * ARGUMENT (an exchange under way, too). */
DR_API dr_status dr_exchange_read_residual(dr_exchange *exchange, uint32_t which, size_t tensor, float *residual,
                                           uint64_t elements);
DR_API dr_status dr_exchange_write_residual(dr_exchange *exchange, uint32_t which, size_t tensor, const float *residual,
                                            uint64_t elements);

typedef struct dr_exchange_info {
  size_t struct_size;
  uint32_t ranks, rank, ranges, steps; /* ranges that elements are cut into; steps of the program */
  uint64_t memory;                     /* bytes that the exchange allocated */
  uint64_t sent_max;                   /* bytes that this rank sends at most in an exchange */
  uint64_t calls, failures;            /* exchanges that ended, and of those with an error */
  /* Of the last exchange. Times are the transport's, in ns. */
  uint64_t sent, received, messages; /* bytes of frames and verdicts; messages that were sent */
  uint64_t kept;                     /* rows of this rank's frames */
  uint64_t total_ns, encode_ns, wait_ns, merge_ns;
} dr_exchange_info;
DR_API dr_status dr_exchange_describe(const dr_exchange *exchange, dr_exchange_info *info, dr_error *error);

/* Steps of a program: what `spend`, traces and dr_exchange_step_at tell. */
enum {
  DR_STEP_ENCODE = 1, /* a range of the gradient */
  DR_STEP_SEND = 2,
  DR_STEP_RECV = 3, /* makes room for a frame */
  DR_STEP_WAIT = 4, /* until a frame is there; checks it */
  DR_STEP_SUM = 5,  /* merges frames of a range, in rank order, beside the outputs */
  DR_STEP_ADD = 6,  /* adds the gradient to that sum */
  DR_STEP_ENCODE_SUM = 7,
  DR_STEP_AGREE = 8, /* all ranks tell one another whether they have all they need */
  DR_STEP_MERGE = 9, /* merges frames of a range, in rank order, into the outputs */
  DR_STEP_DRAIN = 10 /* until everything is sent */
};
DR_API const char *dr_step_name(uint32_t step); /* "encode"; "?" for one it does not know */

/* The last exchange of an exchange with DR_EXCHANGE_TRACE as Chrome's trace event JSON: an event a step, process = rank. Writes at
 * most `capacity` bytes and no end mark; `size`: what it takes. CAPACITY, ARGUMENT (no trace). */
DR_API dr_status dr_exchange_trace(dr_exchange *exchange, char *json, size_t capacity, size_t *size);

/* ---- Loopback: all ranks in one thread, with a virtual clock --------------------------------------------- */

/* For tests of an integration, and for models of a network: each rank has a clock of its own and one port; a message leaves
 * when the port is free, takes size / bytes_per_second and arrives latency_ns later; the receiver's port takes as long. */
typedef struct dr_loopback dr_loopback;
enum {
  /* A model of rank 0 alone: every other rank does what it does, at the same time, moved on by their numbers. So a model of many ranks takes
   * the time and memory of one. For DRY exchanges of `gather`, `owner` and `ring`, whose ranks are alike; another is ARGUMENT */
  DR_LOOPBACK_ALIKE = 1u << 0
};
typedef struct dr_loopback_options {
  size_t struct_size;
  uint32_t ranks;
  uint32_t flags; /* DR_LOOPBACK_* */
  uint64_t seed; /* of the order in which ranks of equal time get their turn */
  uint64_t latency_ns;
  double bytes_per_second; /* 0: no limit */
  /* What a step costs, in ns; NULL: nothing. */
  uint64_t (*cost)(void *user, uint32_t rank, uint32_t step, uint64_t elements, uint64_t bytes);
  void *cost_user;
} dr_loopback_options;

/* ARGUMENT, MEMORY. */
DR_API dr_status dr_loopback_create(const dr_loopback_options *options, dr_loopback **loopback, dr_error *error);
DR_API void dr_loopback_destroy(dr_loopback *loopback); /* NULL is fine; exchanges that use it are destroyed before */
/* Fills a rank's transport, which is valid as long as the loopback. ARGUMENT. */
DR_API dr_status dr_loopback_transport(dr_loopback *loopback, uint32_t rank, dr_transport *transport);
/* Advances all ranks' exchanges, which have been started, until each of them has ended; statuses [ranks], or NULL: how. A NULL
 * among the exchanges is a rank that is not there; of ALIKE there is rank 0 only, and one exchange and one status. ARGUMENT: another's place. Returns the first of the statuses that is not DR_OK. */
DR_API dr_status dr_loopback_run(dr_loopback *loopback, dr_exchange *const *exchanges, dr_status *statuses);
/* A rank's clock, in ns since the loopback was made. */
DR_API uint64_t dr_loopback_now(const dr_loopback *loopback, uint32_t rank);

#ifdef __cplusplus
}
#endif
#endif
