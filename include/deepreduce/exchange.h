/* DeepReduce: ranks. An exchange encodes this rank's tensors, sends frames to the other ranks, and merges theirs: an
 * all-reduce of compressed gradients over any transport. C11 and C++20.
 *
 *   sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw exchange=owner(parts=4)
 *
 * The stage `exchange` defines which rank sends to which. It is compiled for (ranks, rank, parts) into a program, a
 * list of steps in their final order; dr_exchange_advance runs steps until one has to wait. All ranks make the same
 * calls, with the same plan, shapes and options.
 *
 *   gather(parts=K)              the default: every rank sends its frames to all others and merges the frames of all in
 *                                rank order
 *   owner(parts=K)               a range of elements has an owner, a rank that merges the frames of all, encodes the
 *                                sum and sends it to all. What this second encode drops remains in a residual of the
 *                                owner
 *   ring(parts=K)                a range passes from rank to rank; each adds its own and encodes again; the last frame
 *                                is passed on to all
 *   hierarchy(inner=G,parts=K)   one of G consecutive ranks (of one host) sums their dense gradients, and these ranks
 *                                exchange by `gather`; on a device each of the G sums a share ("Several GPUs a host")
 *
 * parts: number of pieces of a rank's elements that are in progress at a time, 1 (the default) to 64.
 *
 * A plan with `transform=lowrank(rank=r)` sends no frames, but two factors (transform.h), each cut into a chunk
 * per rank, which sums the chunks of all ranks in rank order and sends the sum to all. Tensors and outputs: dense f32.
 *
 * An exchange or a sender (sender.h)? An exchange drives a transport: it says who sends what and when, has parts under way
 * side by side, ends by its timeout, and lets all ranks agree before any of them writes an output. For that it needs the
 * transport for itself, and its tensors have no names: a list by one plan. A sender has no transport. It makes and reads
 * bytes, which the collectives of a framework (gloo, NCCL, XLA, a server) carry between its calls; so it has names, units,
 * a book of plans and states by name, but only `gather`, `owner` and a reduce-scatter, and what fails on one rank alone
 * is found by all in the next step. Over MPI or sockets, and of one plan: an exchange. Under a framework, or of many
 * plans: a sender. An exchange cannot drive a sender: a unit is encoded whole, an exchange encodes by ranges. Small
 * tensors (dr_plan_exact), means, votes, clips and sums that are encoded again are the same in both. Where they differ,
 * an exchange has no names to go by, and asks its caller: random numbers are seeded by the position of a tensor,
 * `dense_below` is 0 unless it is given, and tensors are one where the plan has bucket=flat.
 *
 * Rules in addition to those of deepreduce.h:
 * - Every rank ends with the same bits: all apply the same frames in the same order.
 * - Before it writes an output, a rank sends its verdict to all others: that it has decoded all frames, or which rank
 *   is at fault. An output is untouched unless every rank has decoded all frames. With feedback the gradient of a
 *   failed step is then in the residual: it is not lost, and must not be passed again. (Exceptions: the residual of a
 *   range that this rank could not encode is unchanged; feedback=momentum has no residual; with `ring` and `hierarchy`
 *   the residual is computed as a difference, to the precision of f32 relative to the sum of other ranks, 0 where that
 *   is infinite.)
 * - Sums of f16 and bf16 tensors are rounded to that type before they are encoded again, to infinity beyond its range;
 *   no residual keeps the rounding. Outputs of these types are rounded at every frame that is added: f32 ones are not (a
 *   sender adds in f32, and rounds once).
 * - If a verdict is lost on its way to one rank, only that rank fails: its outputs differ from those of the others,
 *   and its residual contains what they applied. The next call fails on all ranks, names it, and in dr_error.what
 *   a rank that is not behind: copy that rank's parameters to it, and set its residual to zero. If several ranks are
 *   behind, a call names one of them.
 * - A transport serves one exchange object: otherwise late messages of another one could be mistaken for its own.
 * - All ranks make the same number of calls. A rank that skips one is a call behind from then on: every call ends with
 *   TIMEOUT on all ranks, and each names another. Create the exchange again, over a new transport.
 * - No call waits longer than `timeout_ns`. An error names the rank that caused it (dr_error.frame), the same on every
 *   rank. With several faults at once all ranks name the same one, unless a verdict is lost, or two ranks lose their
 *   connection while both continue.
 *
 * On a device (dr_exchange_options.place; plans of docs/GPU.md, and dense outputs; others are refused by name).
 * Tensors, outputs and residuals are there, and have the bits that an exchange on the CPU gives; ranks of either kind
 * go together (except by `hierarchy`). Frames are encoded on the place's stream, after what was enqueued there before;
 * a frame, not the tensor, is copied to pinned memory of the host as soon as it is encoded, and its transport carries
 * it from there. Frames that arrived are judged by the host, copied to the device and merged there in rank order. No
 * call waits for the device: dr_exchange_advance returns DR_PENDING (`waits` is 0: call again soon), and DR_OK when the
 * device is done, so that any stream may read the outputs, whose `count` is 0. The stream lives as long as the
 * exchange. A device that fails or does not finish in time is this rank's error, and its last exchange. One exception
 * more than on the CPU: the residual of a range that this rank could not encode has the gradient in it, with 0 where it
 * is not finite.
 *
 * Several GPUs a host (`hierarchy(inner=G)` with a place; a process, or a rank, for each GPU). Ranks G * h to G * h + G - 1
 * are host h's; there are whole hosts only. `nccl` of the options is an ncclComm_t of these G ranks, in their order: NCCL
 * sums their tensors in f32, a share to each (reduce-scatter). Each encodes its share; frames go between the ranks of one
 * place in their hosts by the transport, never a dense tensor; each decodes them, and NCCL gathers the shares of the
 * result (all-gather). Small tensors are not cut, so shares may differ. In addition to the above:
 * - All ranks end with the same bits. They are not those of the CPU: shares are encoded apart, the order of NCCL's sum is
 *   its own, and outputs of 16 bits are rounded once.
 * - The residual of a share is of the host's sum, and its rank has it: the others read zeros, and write zeros only.
 * - libnccl.so.2 is loaded by dr_exchange_create; the one that is loaded already, if there is. The environment variable
 *   DEEPREDUCE_NCCL names another file. UNSUPPORTED, with the loader's words: there is none.
 * - No call waits for NCCL, blocking communicators aside, whose first collective connects. A rank issues both collectives in
 *   each exchange, in one that has failed, too, for NCCL has no timeout. The communicator is the exchange's while one is
 *   under way: nothing else is issued to it. It is destroyed after the exchange.
 * - An error of NCCL is the rank's that saw it (DEVICE there, PEER on the others), with its function and words. A rank
 *   that is gone is named by all, if its verdict is missing. After either, and where a collective does not end in time,
 *   no rank of that host can start another exchange: they abort the communicator (ncclCommAbort), then destroy the
 *   exchange, and create both again. Memory that such a collective still uses is freed by a later dr_exchange_create,
 *   or never. Gradients of a step whose sum failed are in no residual.
 * - A value that is not finite is found by the rank that encodes it: that of the share, not the one that has it.
 */
#ifndef DEEPREDUCE_EXCHANGE_H
#define DEEPREDUCE_EXCHANGE_H

#include "deepreduce.h"

/* Until 0.4, so that sources of 0.3 and before compile: these were sections of this header. */
#include "control.h"
#include "transform.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dr_exchange dr_exchange;

/* ---- Transport: carries bytes --------------------------------------------------------------------------- */

/* Functions that never block. Messages from a rank to another with equal tags arrive in the order in which they were
 * sent. A request is a number that the transport chooses, and may use again when it has ended; it ends when `test`
 * returns other than DR_PENDING, or `cancel` DR_OK.
 *
 * A message may arrive whole steps before its receive is posted: a transport stores it until then, or leaves it with
 * its sender. One buffer may be sent to several ranks at once. At most info.steps + 2 * ranks requests
 * (dr_exchange_describe) are open at a time. Between two calls nothing runs: progress is made in these functions, or
 * by the transport's own threads. examples/unix_transport.h has one over sockets, in C. */
typedef struct dr_transport {
  size_t struct_size;
  void *user;
  uint32_t ranks, rank; /* 1 to 65536 ranks, this one's number */
  /* Starts to send `size` bytes (0 is a message, too) to another rank. They do not change until the request ends.
   * tag: below 2^28. */
  dr_status (*send)(void *user, uint32_t peer, uint32_t tag, const void *bytes, size_t size, uint64_t *request);
  /* Starts to receive at most `capacity` bytes from another rank. */
  dr_status (*recv)(void *user, uint32_t peer, uint32_t tag, void *bytes, size_t capacity, uint64_t *request);
  /* DR_OK: done; after a receive `size` is the size of the message (larger than the capacity: CAPACITY), after a
   * send it is not read. DR_PENDING: not yet. Any other, as from `send` and `recv`: it will never be done. The
   * exchange then fails at once: TIMEOUT becomes TIMEOUT, MEMORY this rank's error, and the rest PEER: the
   * connection to that rank is lost. */
  dr_status (*test)(void *user, uint64_t request, size_t *size);
  /* Ends a request. DR_OK: its memory is free. DR_PENDING: the transport still uses its memory. */
  dr_status (*cancel)(void *user, uint64_t request);
  /* A monotonic clock in ns; NULL: the machine's. */
  uint64_t (*now)(void *user);
  /* NULL, or called after every step that computes, before a message is sent (DR_STEP_SEND), after one has arrived
   * (DR_STEP_WAIT; 0 elements: a verdict): where time is modelled, it advances the clock by the cost. */
  void (*spend)(void *user, uint32_t step, uint64_t elements, uint64_t bytes);
} dr_transport;

/* ---- Exchange ------------------------------------------------------------------------------------------- */

enum {
  DR_EXCHANGE_SUM = 1u << 0,   /* the sum over ranks; otherwise their mean */
  DR_EXCHANGE_TRACE = 1u << 1, /* records when the steps of the last exchange began and ended (dr_exchange_trace) */
  /* A model: nothing is encoded, merged or written. Messages have sizes but no bytes, for transports that are models,
   * too; `frame_size` returns the size of a frame. */
  DR_EXCHANGE_DRY = 1u << 2
};

typedef struct dr_exchange_options {
  size_t struct_size;
  uint32_t flags; /* DR_EXCHANGE_* */
  uint32_t reserved;
  uint64_t timeout_ns;  /* of one exchange; 0: 60 s */
  uint64_t dense_below; /* tensors of fewer elements are sent dense and exact, with the others; 0: none */
  /* DRY: bytes of a frame of `elements` elements, at least 1. sum is 1: of a sum that an owner encodes; 2: dense and
   * exact, from a host's ranks to the one that sums theirs (hierarchy). */
  uint64_t (*frame_size)(void *user, uint64_t elements, uint32_t sum);
  void *frame_size_user;
  /* dr_exchange_advance returns after the step that ends at least so many ns after the call began (by the
   * transport's clock); 0: it runs all steps that need not wait. A step encodes or merges one range, so parts= makes
   * it shorter; only the gradient of a failed exchange is restored to the residual in one step. */
  uint64_t advance_ns;
  /* Where tensors and outputs are; NULL: the CPU. Read by dr_exchange_create only. See "On a device". */
  const dr_place *place;
  /* An ncclComm_t of the ranks of this host, for exchange=hierarchy with a place; otherwise NULL. See "Several GPUs a
   * host". */
  void *nccl;
} dr_exchange_options;

/* Prepares the exchange of n tensors. `outs` receive the result: dense, of the tensors' shapes; they may be the
 * tensors' own memory. The exchange allocates all of its memory here, the states of feedback, too: `state` and
 * `plan` of a tensor must be NULL, and state_size 0. tensors, outs and the context must stay valid until it is
 * destroyed; transport and options are copied.
 * Sparse tensors: with `gather` and `owner`. Their `count` is here the largest number of rows, the same on all ranks
 * (a rank with another is named by the first exchange); dr_exchange_rebind sets the rows of a step. Sparse outputs,
 * with `gather` of tensors that parts= does not cut, need capacity for the largest possible union. ARGUMENT,
 * CAPACITY (of such an output; `needed` is sufficient), UNSUPPORTED, MEMORY. */
DR_API dr_status dr_exchange_create(dr_context *context, const dr_plan *plan, const dr_transport *transport,
                                    const dr_exchange_options *options, const dr_tensor *tensors, size_t stride,
                                    dr_tensor_out *outs, size_t out_stride, size_t n, dr_exchange **exchange);
/* NULL is fine. An exchange under way is cancelled. Memory that the transport still uses is never freed. */
DR_API void dr_exchange_destroy(dr_exchange *exchange);
/* Sets other memory for tensors and outs of the same shapes (and `rows`), and the counts of sparse tensors, up to those
 * that the exchange was created with. Not while an exchange is under way. ARGUMENT, CAPACITY, UNSUPPORTED, MEMORY: it is
 * bound as before. */
DR_API dr_status dr_exchange_rebind(dr_exchange *exchange, const dr_tensor *tensors, size_t stride, dr_tensor_out *outs,
                                    size_t out_stride, size_t n);

/* Starts an exchange of the contents of the tensors, which must not change until it ends, and runs it as
 * dr_exchange_advance does: on return the first frames have been sent. (DRY: not before dr_exchange_advance.) Its
 * outcome, even of these steps, is what dr_exchange_advance returns. `call`: only step, seeds and trace may be set;
 * NULL: the step is the number of the call. The exchange mixes the rank into private random numbers. An error:
 * nothing is started. ARGUMENT: one is under way, or the transport still uses memory of an earlier one: create a new
 * exchange. UNSUPPORTED: another field of `call` is set. */
DR_API dr_status dr_exchange_start(dr_exchange *exchange, const dr_call *call);
/* Runs steps until one has to wait, or for `advance_ns`. DR_PENDING: call again. DR_OK: the outputs hold the result.
 * An error ends the exchange: PEER (a rank could not encode, or a transport reports it as gone), TIMEOUT (a rank is
 * late, or gone without such a report), CORRUPT (a frame is damaged), ARGUMENT (this rank's data, or ranks that are
 * out of step), …; dr_last_error has the rank in `frame`, and that rank's tensor in `tensor`. */
DR_API dr_status dr_exchange_advance(dr_exchange *exchange);
/* Cancels an exchange under way. Advance it until it ends: the outcome is PEER and names this rank, on all ranks,
 * unless they had agreed already. */
DR_API dr_status dr_exchange_cancel(dr_exchange *exchange);

/* Residuals, in the order of the tensors' elements, for any number of ranks and parts: for a checkpoint. SUM: the
 * residual of an owner, dropped by the second encode, in units of the result (of means, unless DR_EXCHANGE_SUM); ranges
 * of other owners read as zeros and must be written as zeros. MOMENTUM: this rank's u of feedback=dgc, or m of
 * feedback=momentum; zeros with any other. WARM_START: Q of transform=lowrank, the same on all ranks, which is
 * f32[rank][width], then zeros; all zeros for a tensor that is sent dense; with columns of another norm than 1 it is made
 * orthonormal. To continue as before, write all. */
enum { DR_RESIDUAL_OWN = 0, DR_RESIDUAL_SUM = 1, DR_RESIDUAL_MOMENTUM = 2, DR_RESIDUAL_WARM_START = 3 };
/* residual: f32[elements], elements = universe * width of the tensor. Zeros for a plan without such a state.
 * ARGUMENT (also while an exchange is under way, and for a value that is not finite). */
DR_API dr_status dr_exchange_read_residual(dr_exchange *exchange, uint32_t which, size_t tensor, float *residual,
                                           uint64_t elements);
DR_API dr_status dr_exchange_write_residual(dr_exchange *exchange, uint32_t which, size_t tensor, const float *residual,
                                            uint64_t elements);

typedef struct dr_exchange_info {
  size_t struct_size;
  uint32_t ranks, rank, ranges, steps; /* ranges that elements are cut into; steps of the program */
  uint64_t memory;                     /* bytes that the exchange allocated */
  uint64_t sent_max;                   /* bound of the bytes that this rank sends in an exchange */
  uint64_t calls, failures;            /* exchanges that ended, and those that failed */
  /* Of the last exchange. Times are the transport's, in ns. */
  uint64_t sent, received, messages; /* bytes of frames and verdicts; messages that were sent */
  uint64_t kept;                     /* rows of this rank's frames */
  uint64_t total_ns, encode_ns, wait_ns, merge_ns;
  /* After a dr_exchange_advance that returned DR_PENDING. 1: it has to wait for messages. 0: its advance_ns have
   * passed, and there are steps that can run; or its device is at work. */
  uint32_t waits;
  uint32_t reserved; /* 0 */
} dr_exchange_info;
DR_API dr_status dr_exchange_describe(const dr_exchange *exchange, dr_exchange_info *info, dr_error *error);

/* Steps of a program, for `spend` and traces. */
enum {
  DR_STEP_ENCODE = 1, /* a range of the gradient */
  DR_STEP_SEND = 2,
  DR_STEP_RECV = 3, /* posts the receive of a frame */
  DR_STEP_WAIT = 4, /* until a frame has arrived; validates it */
  DR_STEP_SUM = 5,  /* merges frames of a range, in rank order, to memory of its own */
  DR_STEP_ADD = 6,  /* adds the gradient to that sum */
  DR_STEP_ENCODE_SUM = 7,
  DR_STEP_AGREE = 8,   /* all ranks exchange verdicts */
  DR_STEP_MERGE = 9,   /* adds up the frames of a range, in rank order, into the outputs */
  DR_STEP_DRAIN = 10,  /* until everything is sent */
  DR_STEP_DECODE = 11, /* decodes the frames of a range before the ranks agree; MERGE spends for both */
  DR_STEP_REDUCE = 12, /* NCCL: the sum of a host, a share to each rank */
  DR_STEP_GATHER = 13  /* NCCL: the shares of the result, in memory of its own; MERGE writes the outputs */
};
DR_API const char *dr_step_name(uint32_t step); /* "encode"; "?" for an unknown one */

/* The last exchange of an object with DR_EXCHANGE_TRACE as Chrome's trace event JSON: an event a step, process = rank.
 * Writes at most `capacity` bytes and no terminator; `size`: bytes needed. CAPACITY, ARGUMENT (no trace). */
DR_API dr_status dr_exchange_trace(dr_exchange *exchange, char *json, size_t capacity, size_t *size);

/* ---- Loopback: all ranks in one thread, with a virtual clock --------------------------------------------- */

/* For tests of an integration, and for models of a network: a rank has a clock and one port. A message leaves when
 * the port is free, occupies it for size / bytes_per_second and arrives latency_ns later; the port of the receiver
 * is busy for the same time. */
typedef struct dr_loopback dr_loopback;
enum {
  /* Only rank 0 exists; it stands for all ranks, which do the same at the same time. A model of many ranks takes the
   * time and memory of one. For DRY exchanges by `gather`, `owner` and `ring` in which every rank has elements;
   * otherwise dr_loopback_run returns ARGUMENT. */
  DR_LOOPBACK_ALIKE = 1u << 0
};
typedef struct dr_loopback_options {
  size_t struct_size;
  uint32_t ranks;
  uint32_t flags; /* DR_LOOPBACK_* */
  uint64_t seed;  /* of the order in which ranks of equal time run */
  uint64_t latency_ns;
  double bytes_per_second; /* 0: no limit */
  /* Cost of a step in ns; NULL: 0. */
  uint64_t (*cost)(void *user, uint32_t rank, uint32_t step, uint64_t elements, uint64_t bytes);
  void *cost_user;
  /* NULL, or in place of bytes_per_second: ns that a message of so many bytes needs on a port if it begins to leave
   * `rank` at now_ns. For links whose rate changes. */
  uint64_t (*takes)(void *user, uint32_t rank, uint64_t now_ns, uint64_t bytes);
  void *takes_user;
} dr_loopback_options;

/* ARGUMENT, MEMORY. */
DR_API dr_status dr_loopback_create(const dr_loopback_options *options, dr_loopback **loopback, dr_error *error);
DR_API void dr_loopback_destroy(dr_loopback *loopback); /* NULL is fine; exchanges that use it are destroyed before */
/* Fills a rank's transport, which is valid as long as the loopback. ARGUMENT. */
DR_API dr_status dr_loopback_transport(dr_loopback *loopback, uint32_t rank, dr_transport *transport);
/* Advances the started exchanges of all ranks until all have ended; statuses [ranks], or NULL: their outcomes. A NULL
 * among the exchanges is a missing rank; one that is not started has ended, with DR_OK. With DR_LOOPBACK_ALIKE: one
 * exchange, rank 0's, and one status. ARGUMENT: an exchange of another rank or loopback; the contexts of all then have
 * the sentence. Returns the first status that is not DR_OK. */
DR_API dr_status dr_loopback_run(dr_loopback *loopback, dr_exchange *const *exchanges, dr_status *statuses);
/* A rank's clock, in ns since the loopback was made. */
DR_API uint64_t dr_loopback_now(const dr_loopback *loopback, uint32_t rank);

#ifdef __cplusplus
}
#endif
#endif
