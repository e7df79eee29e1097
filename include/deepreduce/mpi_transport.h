/* DeepReduce: the four functions of a transport over MPI's point-to-point messages. A part of mpi.h. */
#ifndef DEEPREDUCE_MPI_TRANSPORT_H
#define DEEPREDUCE_MPI_TRANSPORT_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exchange.h"

#ifndef DR_MPI_ROUND
#define DR_MPI_ROUND (1u << 30) /* bytes of a message, 1 to 2^31 - 1: MPI 3 counts in int */
#endif

/* ---- Transport: names that end in _ are not for callers -------------------------------------------------- */

/* A receive, or a round of a send. */
typedef struct dr_mpi_slot_ {
  MPI_Request request; /* of the round under way */
  char *bytes;         /* receive: [capacity], of which `size` arrived */
  size_t capacity, size;
  uint64_t order; /* of posting */
  uint32_t peer, tag;
  uint32_t next; /* send: slot of the next round; free: of the next free one; or DR_MPI_NONE_ */
  uint32_t state;
  uint32_t cancelled; /* MPI_Cancel was called */
  dr_status status;   /* OVER: how it ended */
} dr_mpi_slot_;
#define DR_MPI_NONE_ UINT32_MAX
/* BEHIND: a receive that waits until an earlier one of the same peer and tag has received all its rounds. */
enum { DR_MPI_FREE_, DR_MPI_SEND_, DR_MPI_RECV_, DR_MPI_BEHIND_, DR_MPI_OVER_ };

typedef struct dr_mpi_transport {
  MPI_Comm comm; /* its own */
  int ranks, rank;
  int crowded;         /* this host has more ranks than cores */
  int held;            /* MPI still uses memory: the communicator is not freed */
  dr_mpi_slot_ *slots; /* [capacity], never fewer */
  uint32_t capacity, free;
  uint32_t long_receives; /* receives that are BEHIND, or of a whole round */
  uint64_t posted, ended;
  dr_error error; /* the first error of MPI; code DR_OK: none */
} dr_mpi_transport;

static inline dr_status dr_mpi_fail_(dr_error *error, dr_status code, uint64_t rank, const char *what, int mpi_code) {
  char reason[MPI_MAX_ERROR_STRING + 1] = "", who[32] = "";
  int length = 0;
  if (!error || error->struct_size < sizeof *error) return code;
  if (mpi_code != MPI_SUCCESS && MPI_Error_string(mpi_code, reason, &length) != MPI_SUCCESS) length = 0;
  reason[length] = '\0';
  if (rank != DR_NO_FRAME) snprintf(who, sizeof who, "rank %llu: ", (unsigned long long)rank);
  memset(error, 0, sizeof *error);
  error->struct_size = sizeof *error;
  error->code = code;
  error->tensor = DR_NO_TENSOR;
  error->frame = rank;
  snprintf(error->message, sizeof error->message, "%s%.120s%s%.90s", who, what, length ? ": " : "", reason);
  return code;
}

/* A slot for a request. Allocates only if more requests are under way than ever before. */
static inline dr_status dr_mpi_take_slot_(dr_mpi_transport *t, uint32_t peer, uint32_t tag, uint32_t state,
                                          uint32_t *at) {
  dr_mpi_slot_ *slot;
  if (peer >= (uint32_t)t->ranks) return dr_mpi_fail_(&t->error, DR_E_ARGUMENT, peer, "there is no such rank", 0);
  if (t->free == DR_MPI_NONE_) {
    const uint32_t first = t->capacity, end = first ? 2 * first : 64;
    dr_mpi_slot_ *slots = (dr_mpi_slot_ *)realloc(t->slots, end * sizeof *slots);
    if (!slots) return dr_mpi_fail_(&t->error, DR_E_MEMORY, DR_NO_FRAME, "no memory for requests", 0);
    for (uint32_t i = first; i < end; ++i) {
      slots[i].state = DR_MPI_FREE_;
      slots[i].next = i + 1 < end ? i + 1 : DR_MPI_NONE_;
    }
    t->slots = slots;
    t->free = first;
    t->capacity = end;
  }
  *at = t->free;
  slot = &t->slots[*at];
  t->free = slot->next;
  memset(slot, 0, sizeof *slot);
  slot->request = MPI_REQUEST_NULL;
  slot->order = t->posted++;
  slot->peer = peer;
  slot->tag = tag;
  slot->next = DR_MPI_NONE_;
  slot->state = state;
  return DR_OK;
}

static inline void dr_mpi_drop_(dr_mpi_transport *t, uint32_t at) {
  while (at != DR_MPI_NONE_) {
    const uint32_t next = t->slots[at].next;
    t->slots[at].state = DR_MPI_FREE_;
    t->slots[at].next = t->free;
    t->free = at;
    ++t->ended;
    at = next;
  }
}

static inline int dr_mpi_is_long_(const dr_mpi_slot_ *slot) {
  return slot->state == DR_MPI_BEHIND_ || (slot->state == DR_MPI_RECV_ && slot->capacity >= DR_MPI_ROUND);
}

/* Whether the messages of `late` arrive after those of `early`. */
static inline int dr_mpi_follows_(const dr_mpi_slot_ *late, const dr_mpi_slot_ *early) {
  return dr_mpi_is_long_(early) && early->peer == late->peer && early->tag == late->tag && early->order < late->order;
}

/* Ends a slot, with success or with MPI's error code. */
static inline void dr_mpi_end_(dr_mpi_transport *t, dr_mpi_slot_ *slot, int code) {
  const int sends = slot->state == DR_MPI_SEND_;
  int kind = MPI_SUCCESS;
  t->long_receives -= (uint32_t)dr_mpi_is_long_(slot);
  slot->state = DR_MPI_OVER_;
  if (code == MPI_SUCCESS) return;
  MPI_Error_class(code, &kind);
  slot->status = kind == MPI_ERR_TRUNCATE ? DR_E_CAPACITY : DR_E_PEER;
  if (t->error.code == DR_OK)
    dr_mpi_fail_(&t->error, slot->status, slot->peer, sends ? "cannot send to it" : "cannot receive from it", code);
}

static inline void dr_mpi_receive_round_(dr_mpi_transport *t, dr_mpi_slot_ *slot) {
  const size_t room = slot->capacity - slot->size;
  const int count = (int)(room < DR_MPI_ROUND ? room : DR_MPI_ROUND);
  const int code =
      MPI_Irecv(slot->bytes + slot->size, count, MPI_BYTE, (int)slot->peer, (int)slot->tag, t->comm, &slot->request);
  if (code != MPI_SUCCESS) dr_mpi_end_(t, slot, code);
}

/* Advances a slot as far as it can without waiting. */
static inline void dr_mpi_poll_(dr_mpi_transport *t, dr_mpi_slot_ *slot) {
  if (slot->state == DR_MPI_BEHIND_) {
    for (uint32_t i = 0; t->long_receives > 1 && i < t->capacity; ++i) {
      if (!dr_mpi_follows_(slot, &t->slots[i])) continue;
      dr_mpi_poll_(t, &t->slots[i]);
      if (dr_mpi_follows_(slot, &t->slots[i])) return;
    }
    slot->state = DR_MPI_RECV_;
    t->long_receives -= !dr_mpi_is_long_(slot);
    dr_mpi_receive_round_(t, slot);
  }
  while (slot->state == DR_MPI_SEND_ || slot->state == DR_MPI_RECV_) {
    MPI_Status status;
    int done = 0, was_cancelled = 0, count = 0;
    int code = MPI_Test(&slot->request, &done, &status);
    if (code == MPI_SUCCESS && !done) return;
    if (code == MPI_SUCCESS && slot->cancelled) code = MPI_Test_cancelled(&status, &was_cancelled);
    if (code == MPI_SUCCESS && slot->state == DR_MPI_RECV_ && !was_cancelled)
      code = MPI_Get_count(&status, MPI_BYTE, &count);
    slot->size += (size_t)count;
    if (code == MPI_SUCCESS && (unsigned)count == DR_MPI_ROUND && !slot->cancelled) {
      dr_mpi_receive_round_(t, slot);
    } else {
      dr_mpi_end_(t, slot, code);
    }
  }
}

/* The last round of a message is not full; it may be empty. */
static inline dr_status dr_mpi_send_(void *user, uint32_t peer, uint32_t tag, const void *bytes, size_t size,
                                     uint64_t *request) {
  dr_mpi_transport *t = (dr_mpi_transport *)user;
  const char *from = (const char *)bytes;
  uint32_t first = DR_MPI_NONE_, at = 0;
  for (size_t round = 0; round <= size / DR_MPI_ROUND; ++round) {
    const dr_status status = dr_mpi_take_slot_(t, peer, tag, DR_MPI_SEND_, &at);
    if (status != DR_OK) {
      dr_mpi_drop_(t, first);
      return status;
    }
    t->slots[at].next = first;
    first = at;
  }
  for (at = first; at != DR_MPI_NONE_; at = t->slots[at].next) {
    const size_t part = size < DR_MPI_ROUND ? size : DR_MPI_ROUND;
    dr_mpi_slot_ *slot = &t->slots[at];
    const int code = MPI_Isend(from, (int)part, MPI_BYTE, (int)peer, (int)tag, t->comm, &slot->request);
    if (code != MPI_SUCCESS) dr_mpi_end_(t, slot, code);
    from += part;
    size -= part;
  }
  *request = first;
  return DR_OK;
}

static inline dr_status dr_mpi_recv_(void *user, uint32_t peer, uint32_t tag, void *bytes, size_t capacity,
                                     uint64_t *request) {
  dr_mpi_transport *t = (dr_mpi_transport *)user;
  dr_mpi_slot_ *slot;
  uint32_t at = 0;
  const dr_status status = dr_mpi_take_slot_(t, peer, tag, DR_MPI_BEHIND_, &at);
  if (status != DR_OK) return status;
  *request = at;
  slot = &t->slots[at];
  slot->bytes = (char *)bytes;
  slot->capacity = capacity;
  ++t->long_receives;
  dr_mpi_poll_(t, slot);
  return DR_OK;
}

static inline dr_status dr_mpi_test_(void *user, uint64_t request, size_t *size) {
  dr_mpi_transport *t = (dr_mpi_transport *)user;
  dr_status status = DR_OK;
  if (request >= t->capacity || t->slots[request].state == DR_MPI_FREE_) return DR_E_ARGUMENT;
  for (uint32_t at = (uint32_t)request; at != DR_MPI_NONE_; at = t->slots[at].next) {
    dr_mpi_poll_(t, &t->slots[at]);
    if (t->slots[at].state != DR_MPI_OVER_) return DR_PENDING;
    if (status == DR_OK) status = t->slots[at].status;
  }
  if (size) *size = t->slots[request].size;
  dr_mpi_drop_(t, (uint32_t)request);
  return status;
}

/* A receive can be cancelled. A send cannot (MPI 4 deprecates it): it has ended, or MPI still uses its memory. */
static inline dr_status dr_mpi_cancel_(void *user, uint64_t request) {
  dr_mpi_transport *t = (dr_mpi_transport *)user;
  dr_mpi_slot_ *slot;
  if (request >= t->capacity || t->slots[request].state == DR_MPI_FREE_) return DR_E_ARGUMENT;
  slot = &t->slots[request];
  if (slot->state == DR_MPI_BEHIND_) {
    dr_mpi_end_(t, slot, MPI_SUCCESS);
  } else if (slot->state == DR_MPI_RECV_ && !slot->cancelled) {
    MPI_Cancel(&slot->request);
    slot->cancelled = 1;
  }
  /* MPI may need a few polls to notice the cancellation. A poll can take ms if there are more ranks than cores. */
  for (double begin = MPI_Wtime(), polls = 0; polls < 4 || MPI_Wtime() - begin < 1e-3; ++polls) {
    if (dr_mpi_test_(t, request, NULL) != DR_PENDING) return DR_OK;
  }
  return DR_PENDING;
}

#endif
