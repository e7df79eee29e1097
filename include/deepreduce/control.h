/* DeepReduce: control, which plan to send. C11 and C++20.
 *
 * Experimental, and not covered by the promises of ABI 1 (VERSIONING.md). The goal is a step of at most 1.15 times that
 * of the best fixed plan, on every link; real links miss it too often (docs/CONTROL.md). Until it is met, any release
 * may change or remove the functions, structs and numbers of this header, and change the laws, their options and
 * defaults.
 *
 * A controller chooses a rung of a ladder of plans, from the densest (0) to the smallest, by how long transfers take:
 * delay-aware control of compression, after the idea of DC2; the laws are ours (docs/CONTROL.md). It has no clock: the
 * caller reports the time of a step's transfers, exchanges a few words among ranks, and requests a decision. All ranks
 * decide from the same words, so they decide the same. The caller's duty is to copy the residual from rung to rung
 * (dr_exchange_read_residual, dr_exchange_write_residual). One call at a time.
 *
 *   dr_control_observe(c, sent, transfer_ns);                    after every step; and if step + 1 >= info.next_step:
 *   dr_control_report(c, own);                                   DR_CONTROL_WORDS words of this rank
 *   all-gather own -> all;                                       in any way, with its time: dr_control_observe(c, 0, ns)
 *   dr_control_decide(c, step + 1, all, ranks, &error);
 *   dr_control_describe(c, &info, &error);                       info.rung: of the next steps
 */
#ifndef DEEPREDUCE_CONTROL_H
#define DEEPREDUCE_CONTROL_H

#include "deepreduce.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dr_control dr_control;
enum { DR_CONTROL_WORDS = 4 };

/* The reason of a decision. */
enum {
  DR_CONTROL_START = 0,    /* nothing was decided yet */
  DR_CONTROL_NOTHING = 1,  /* stays: no rank measured a step */
  DR_CONTROL_IN_BAND = 2,  /* stays: the time is near the target */
  DR_CONTROL_SLOW = 3,     /* one rung smaller: too slow */
  DR_CONTROL_FAST = 4,     /* one rung denser: time to spare */
  DR_CONTROL_WAITS = 5,    /* stays: time to spare, but not yet often enough */
  DR_CONTROL_NO_ROOM = 6,  /* stays: time to spare, but not for a denser rung, by the budget or the fit */
  DR_CONTROL_CLOSED = 7,   /* stays: the denser rung was tried and was too slow */
  DR_CONTROL_DENSEST = 8,  /* stays: time to spare at the densest rung allowed */
  DR_CONTROL_SMALLEST = 9, /* stays: too slow at the smallest rung allowed: the target cannot be met */
  DR_CONTROL_SHARE = 10,   /* the smallest rung has used its share of the steps */
  DR_CONTROL_NO_LESS = 11, /* one rung denser: that sends no more, so the ladder is not in order */
  DR_CONTROL_PASSED = 12,  /* stays: too slow, and the smaller rungs send no less */
  DR_CONTROL_STEPS = 13,   /* the next rung: this one's steps are over */
  DR_CONTROL_LAST = 14     /* stays: the last rung, or its steps are not over */
};

typedef struct dr_control_info {
  size_t struct_size;
  uint32_t rungs, rung;  /* of the ladder; the one to send by */
  uint32_t from, reason; /* of the last decision: the rung before it, DR_CONTROL_* */
  uint64_t step;         /* of the last decision: the first step with its rung */
  uint64_t next_step;    /* the earliest step of the next decision */
  uint64_t decisions, changes;
  /* The agreed values: ns of a step's transfers, bytes per step, ns of an empty transfer (0: none was reported). */
  uint64_t transfer_ns, bytes, empty_ns;
  uint64_t median_ns;          /* of the last transfer_ns: the input of the law */
  double budget;               /* aimd: bytes per step */
  double base_ns, per_byte_ns; /* fit */
} dr_control_info;

/* options: `aimd(target_ms=20,…)`, `fit(target_ms=20,…)` or `steps(each=100)`, with or without `control=` before it. bytes [rungs], or
 * NULL: sent by a step of every rung, 0: not known. It is measured while a rung is in use. 1 to 64 rungs, those that
 * are known descending. ARGUMENT, MEMORY. */
DR_API dr_status dr_control_create(const char *options, const uint64_t *bytes, size_t rungs, dr_control **control,
                                   dr_error *error);
DR_API void dr_control_destroy(dr_control *control); /* NULL is fine */
/* A step of this rank: bytes that it sent, ns that it waited for transfers, without encode, decode and merge. 0 bytes:
 * an empty transfer, which measures the latency; sending the words is one. ARGUMENT: NULL. */
DR_API dr_status dr_control_observe(dr_control *control, uint64_t bytes, uint64_t transfer_ns);
/* words [DR_CONTROL_WORDS]: of this rank, for all ranks, as they are. ARGUMENT: NULL. */
DR_API dr_status dr_control_report(const dr_control *control, uint64_t *words);
/* words [ranks][DR_CONTROL_WORDS]: in rank order. step: the next one. ARGUMENT, and nothing changes: `step` is before
 * the one that is due, or ranks are not at the same decision; `frame` of the error is the rank. */
DR_API dr_status dr_control_decide(dr_control *control, uint64_t step, const uint64_t *words, size_t ranks,
                                   dr_error *error);
DR_API dr_status dr_control_describe(const dr_control *control, dr_control_info *info, dr_error *error);
/* The last decision, and why, as a line of JSON. Writes at most `capacity` bytes and no terminator; `size`: bytes
 * needed. CAPACITY, ARGUMENT. */
DR_API dr_status dr_control_log(const dr_control *control, char *json, size_t capacity, size_t *size);
DR_API const char *dr_control_reason(uint32_t reason); /* "too slow: one rung smaller"; "?" for an unknown one */

#ifdef __cplusplus
}
#endif
#endif
