/* DeepReduce: ranks over MPI. Inline functions, which your mpicc compiles, so that any MPI works. C11 and C++20, MPI
 * 3.1.
 *
 *   dr_mpi *mean = NULL;                 // once, by all ranks
 *   dr_mpi_create(context, plan, MPI_COMM_WORLD, NULL, &gradient, sizeof gradient, &out, sizeof out, 1, &mean, &error);
 *   dr_mpi_allreduce(mean, NULL);        // each step; or dr_mpi_iallreduce, and dr_mpi_test, _wait, _waitany or _waitall
 *   dr_mpi_destroy(mean);                // before MPI_Finalize
 *
 * - The caller owns MPI_Init and MPI_Finalize. One thread at a time makes calls; if it is not always the same thread, MPI
 *   needs MPI_THREAD_SERIALIZED.
 * - Frames are sent point to point, on a duplicate of the caller's communicator, with MPI_ERRORS_RETURN.
 *   MPICH 4.0 uses MPI_COMM_WORLD's error handler for requests: set that to MPI_ERRORS_RETURN, too. Otherwise a message
 *   that is too long aborts.
 * - No call blocks in MPI: it polls, and sleeps in between, until the deadline (dr_exchange_options.timeout_ns).
 * - Messages of more than DR_MPI_ROUND bytes are sent in rounds of that size, because MPI 3 counts in int. Compile all ranks
 *   with the same DR_MPI_ROUND.
 * - A failed exchange may leave sends that MPI cannot cancel. Their memory and the communicator are then never freed,
 *   and MPI_Finalize may wait for the lost rank: call MPI_Abort or _exit.
 * - All other ranks name a rank that stops or is late. They name a killed rank if mpiexec leaves them alive and MPI
 *   survives it: Open MPI --with-ft ulfm, MPICH in shared memory, MPICH 4.0. MPICH 5.0 over TCP does not: MPI_Isend to
 *   that rank crashes (ucx) or never returns (ofi). By default mpiexec ends all ranks when one is killed.
 */
#ifndef DEEPREDUCE_MPI_H
#define DEEPREDUCE_MPI_H

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <unistd.h>

#include "mpi_transport.h"

/* ---- Waiting -------------------------------------------------------------------------------------------- */

/* Between two polls: nothing for the first 64, then sched_yield for 1 ms, then a sleep of 50 us. If a host has more ranks
 * than cores, the sleep follows the first 64 at once (4 ranks on 2 cores, 4 MiB: 13 ms against 18). */
typedef struct dr_mpi_pause_ {
  uint64_t ended; /* requests that had ended */
  uint32_t polls;
  double since;
} dr_mpi_pause_;

/* ended: requests that have ended so far, of all transports that the caller waits for. */
static inline void dr_mpi_rest_(int crowded, uint64_t ended, dr_mpi_pause_ *pause) {
  if (pause->ended != ended) pause->polls = 0; /* there was something to do */
  pause->ended = ended;
  if (++pause->polls <= 64) return;
  if (pause->polls == 65) pause->since = MPI_Wtime();
  if (!crowded && MPI_Wtime() - pause->since < 1e-3) {
    sched_yield();
  } else {
    struct timeval rest;
    rest.tv_sec = 0;
    rest.tv_usec = 50;
    select(0, NULL, NULL, NULL, &rest);
  }
}

static inline dr_status dr_mpi_until_(const dr_mpi_transport *t, MPI_Request *request, double deadline,
                                      const char *what, dr_error *error) {
  dr_mpi_pause_ pause = {0, 0, 0};
  for (int done = 0;;) {
    const int code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) return dr_mpi_fail_(error, DR_E_PEER, DR_NO_FRAME, what, code);
    if (done) return DR_OK;
    if (MPI_Wtime() > deadline) {
      char late[96];
      snprintf(late, sizeof late, "%s did not end in time: not all ranks take part", what);
      return dr_mpi_fail_(error, DR_E_TIMEOUT, DR_NO_FRAME, late, MPI_SUCCESS);
    }
    dr_mpi_rest_(t->crowded, t->ended, &pause);
  }
}

/* words [ranks] <- each rank's word. After TIMEOUT MPI still uses the memory, which is never freed. */
static inline dr_status dr_mpi_gather_(dr_mpi_transport *t, uint64_t word, uint64_t **words, double deadline,
                                       dr_error *error) {
  MPI_Request request;
  dr_status status;
  int code;
  *words = (uint64_t *)malloc(((size_t)t->ranks + 1) * sizeof **words);
  if (!*words) return dr_mpi_fail_(error, DR_E_MEMORY, DR_NO_FRAME, "no memory for ranks", MPI_SUCCESS);
  (*words)[t->ranks] = word;
  code = MPI_Iallgather(*words + t->ranks, 8, MPI_BYTE, *words, 8, MPI_BYTE, t->comm, &request);
  if (code != MPI_SUCCESS) return dr_mpi_fail_(error, DR_E_PEER, DR_NO_FRAME, "MPI_Iallgather", code);
  status = dr_mpi_until_(t, &request, deadline, "MPI_Iallgather", error);
  if (status != DR_OK) t->held = 1;
  return status;
}

/* ---- A transport by itself, for dr_exchange_create ------------------------------------------------------- */

/* All ranks call it (MPI_Comm_free). Memory that MPI still uses is not freed, nor is the communicator then. NULL is
 * fine. */
static inline void dr_mpi_transport_destroy(dr_mpi_transport *t) {
  int finalized = 0;
  if (!t) return;
  for (uint32_t i = 0; i < t->capacity; ++i) t->held |= t->slots[i].state != DR_MPI_FREE_;
  MPI_Finalized(&finalized);
  if (!t->held && !finalized && t->comm != MPI_COMM_NULL) MPI_Comm_free(&t->comm);
  free(t->slots);
  free(t);
}

/* All ranks of `comm` call it, within timeout_ns (0: 60 s) of one another. error may be NULL.
 * ARGUMENT (MPI is not initialized, or `comm` is MPI_COMM_NULL), UNSUPPORTED (tags below 2^28, 65536 ranks), TIMEOUT, PEER,
 * MEMORY. */
static inline dr_status dr_mpi_transport_create(MPI_Comm comm, uint64_t timeout_ns, dr_mpi_transport **transport,
                                                dr_error *error) {
  int initialized = 0, finalized = 0, inter = 0, found = 0, length = 0, code, together = 0, *tag_max = NULL;
  char host[MPI_MAX_PROCESSOR_NAME + 1] = "", what[96];
  uint64_t name = 14695981039346656037u, *names = NULL; /* FNV-1a */
  dr_status status;
  double deadline;
  dr_mpi_transport *t;
  MPI_Request request;

  *transport = NULL;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (!initialized || finalized)
    return dr_mpi_fail_(error, DR_E_ARGUMENT, DR_NO_FRAME, finalized ? "MPI is finalized" : "MPI is not initialized",
                        0);
  if (comm == MPI_COMM_NULL) return dr_mpi_fail_(error, DR_E_ARGUMENT, DR_NO_FRAME, "comm is MPI_COMM_NULL", 0);
  MPI_Comm_test_inter(comm, &inter);
  if (inter) return dr_mpi_fail_(error, DR_E_ARGUMENT, DR_NO_FRAME, "comm is an intercommunicator", 0);
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag_max, &found);
  if (!found || *tag_max < (1 << 28) - 1) {
    snprintf(what, sizeof what, "MPI_TAG_UB is %d, and exchanges need 2^28 - 1", found ? *tag_max : 0);
    return dr_mpi_fail_(error, DR_E_UNSUPPORTED, DR_NO_FRAME, what, 0);
  }
  t = (dr_mpi_transport *)calloc(1, sizeof *t);
  if (!t) return dr_mpi_fail_(error, DR_E_MEMORY, DR_NO_FRAME, "no memory for a transport", 0);
  t->comm = MPI_COMM_NULL;
  t->free = DR_MPI_NONE_;
  t->crowded = 1; /* until the ranks of this host are counted */
  t->error.struct_size = sizeof t->error;
  MPI_Comm_size(comm, &t->ranks);
  MPI_Comm_rank(comm, &t->rank);
  if (t->ranks > 65536) {
    snprintf(what, sizeof what, "%d ranks; at most 65536", t->ranks);
    dr_mpi_transport_destroy(t);
    return dr_mpi_fail_(error, DR_E_UNSUPPORTED, DR_NO_FRAME, what, 0);
  }

  deadline = MPI_Wtime() + (timeout_ns ? (double)timeout_ns * 1e-9 : 60);
  code = MPI_Comm_idup(comm, &t->comm, &request);
  status = code == MPI_SUCCESS ? dr_mpi_until_(t, &request, deadline, "MPI_Comm_idup", error)
                               : dr_mpi_fail_(error, DR_E_PEER, DR_NO_FRAME, "MPI_Comm_idup", code);
  if (status != DR_OK) return status; /* MPI may still write to *t */
  MPI_Comm_set_errhandler(t->comm, MPI_ERRORS_RETURN);
  /* Compares names of hosts, because MPI_Comm_split_type would wait for all ranks, and obeys MPICH's NOLOCAL. */
  MPI_Get_processor_name(host, &length);
  for (int i = 0; i < length; ++i) name = (name ^ (unsigned char)host[i]) * 1099511628211u;
  status = dr_mpi_gather_(t, name, &names, deadline, error);
  if (status == DR_OK) {
    for (int i = 0; i < t->ranks; ++i) together += names[i] == name;
    t->crowded = together > sysconf(_SC_NPROCESSORS_ONLN);
    *transport = t;
  } else {
    dr_mpi_transport_destroy(t);
  }
  if (status != DR_E_TIMEOUT) free(names);
  return status;
}

/* The argument of dr_exchange_create. Valid as long as the transport. */
static inline dr_transport dr_mpi_transport_of(dr_mpi_transport *t) {
  dr_transport transport;
  memset(&transport, 0, sizeof transport);
  transport.struct_size = sizeof transport;
  transport.user = t;
  transport.ranks = (uint32_t)t->ranks;
  transport.rank = (uint32_t)t->rank;
  transport.send = dr_mpi_send_;
  transport.recv = dr_mpi_recv_;
  transport.test = dr_mpi_test_;
  transport.cancel = dr_mpi_cancel_;
  return transport;
}

/* ---- All-reduce ----------------------------------------------------------------------------------------- */

typedef struct dr_mpi {
  dr_exchange *exchange; /* for dr_exchange_describe, _trace, _read_residual, … */
  dr_mpi_transport *transport;
  dr_context *context;
  dr_status last; /* of the last exchange; DR_PENDING: under way */
  dr_error error;
} dr_mpi;

/* The context's error, as far as a program with this header has it: the library's may be longer. */
static inline void dr_mpi_copy_error_(const dr_context *context, dr_error *error) {
  *error = *dr_last_error(context);
  error->struct_size = sizeof *error;
}

/* All ranks call it, before MPI_Finalize. After an exchange that failed it waits for no rank. NULL is fine. */
static inline void dr_mpi_destroy(dr_mpi *m) {
  if (!m) return;
  if (m->last != DR_OK) m->transport->held = 1; /* a rank may be gone */
  dr_exchange_destroy(m->exchange);
  dr_mpi_transport_destroy(m->transport);
  free(m);
}

/* As dr_exchange_create, by all ranks of `comm` within options->timeout_ns of one another. If it fails on a rank, it
 * fails on all. error may be NULL. Statuses of dr_exchange_create and dr_mpi_transport_create, and PEER: `frame` is the
 * rank that failed. */
static inline dr_status dr_mpi_create(dr_context *context, const dr_plan *plan, MPI_Comm comm,
                                      const dr_exchange_options *options, const dr_tensor *tensors, size_t stride,
                                      dr_tensor_out *outs, size_t out_stride, size_t n, dr_mpi **made,
                                      dr_error *error) {
  const uint64_t timeout_ns = options ? options->timeout_ns : 0;
  uint64_t *statuses = NULL;
  dr_transport transport;
  dr_status status, agreed;
  dr_mpi *m;

  *made = NULL;
  m = (dr_mpi *)calloc(1, sizeof *m);
  if (!m) return dr_mpi_fail_(error, DR_E_MEMORY, DR_NO_FRAME, "no memory for an exchange", 0);
  m->context = context;
  m->error.struct_size = sizeof m->error;
  status = dr_mpi_transport_create(comm, timeout_ns, &m->transport, error);
  if (status != DR_OK) {
    free(m);
    return status;
  }
  transport = dr_mpi_transport_of(m->transport);
  status = dr_exchange_create(context, plan, &transport, options, tensors, stride, outs, out_stride, n, &m->exchange);
  agreed = dr_mpi_gather_(m->transport, (uint64_t)status, &statuses,
                          MPI_Wtime() + (timeout_ns ? (double)timeout_ns * 1e-9 : 60), error);
  for (int i = 0; i < m->transport->ranks && agreed == DR_OK; ++i) {
    if (statuses[i] == DR_OK) continue;
    agreed = dr_mpi_fail_(error, DR_E_PEER, (uint64_t)i, "it cannot prepare the exchange", 0);
  }
  if (agreed != DR_E_TIMEOUT) free(statuses);
  if (status != DR_OK) { /* this rank's own error is more precise */
    if (error && error->struct_size >= sizeof *error) dr_mpi_copy_error_(context, error);
  } else {
    status = agreed;
  }
  if (status == DR_OK) {
    *made = m;
  } else {
    dr_mpi_destroy(m);
  }
  return status;
}

/* Starts an exchange, as dr_exchange_start does: encodes, and sends the first frames. */
static inline dr_status dr_mpi_iallreduce(dr_mpi *m, const dr_call *call) {
  dr_status status;
  m->transport->error.code = DR_OK;
  status = dr_exchange_start(m->exchange, call);
  if (status == DR_OK) m->last = DR_PENDING;
  return status;
}

/* Continues it, as dr_exchange_advance does: DR_PENDING, DR_OK, or the error. MPI makes progress only during calls: call
 * it about once per ms, between the caller's own work or from a thread. */
static inline dr_status dr_mpi_test(dr_mpi *m) {
  const dr_status status = dr_exchange_advance(m->exchange);
  if (m->last == DR_PENDING) m->last = status; /* (otherwise none is under way, and `last` stays) */
  return status;
}

/* Continues it until it ends: DR_OK, or the error. */
static inline dr_status dr_mpi_wait(dr_mpi *m) {
  dr_mpi_pause_ pause = {0, 0, 0};
  for (;;) {
    const dr_status status = dr_mpi_test(m);
    if (status != DR_PENDING) return status;
    dr_mpi_rest_(m->transport->crowded, m->transport->ended, &pause);
  }
}

/* Several exchanges at a time, of buckets for example; each object has a context of its own. The next two functions
 * continue all that are under way, and skip a NULL and one that is not under way. */

/* Waits until one has ended, writes its position in `list` to `which` and returns its status. If none is under way:
 * `which` is n, and DR_OK. */
static inline dr_status dr_mpi_waitany(dr_mpi *const *list, size_t n, size_t *which) {
  dr_mpi_pause_ pause = {0, 0, 0};
  for (;;) {
    uint64_t ended = 0;
    int crowded = 0, waits = 0;
    for (size_t i = 0; i < n; ++i) {
      dr_mpi *m = list[i];
      if (!m || m->last != DR_PENDING) continue;
      *which = i;
      if (dr_mpi_test(m) != DR_PENDING) return m->last;
      waits = 1;
      crowded |= m->transport->crowded;
      ended += m->transport->ended;
    }
    *which = n;
    if (!waits) return DR_OK;
    dr_mpi_rest_(crowded, ended, &pause);
  }
}

/* Waits until all have ended. statuses [n], or NULL: the status of the last exchange of each, DR_OK for a NULL. Returns the
 * first in the list that is not DR_OK; dr_mpi_last_error of that object has the reason. */
static inline dr_status dr_mpi_waitall(dr_mpi *const *list, size_t n, dr_status *statuses) {
  dr_status first = DR_OK;
  size_t which;
  do dr_mpi_waitany(list, n, &which);
  while (which < n);
  for (size_t i = 0; i < n; ++i) {
    const dr_status last = list[i] ? list[i]->last : DR_OK;
    if (statuses) statuses[i] = last;
    if (first == DR_OK) first = last;
  }
  return first;
}

/* The sum or mean of all ranks' tensors into every rank's outs. All ranks call it. */
static inline dr_status dr_mpi_allreduce(dr_mpi *m, const dr_call *call) {
  const dr_status status = dr_mpi_iallreduce(m, call);
  return status == DR_OK ? dr_mpi_wait(m) : status;
}

/* The error of the last failed call, with the rank that caused it in `frame`, and MPI's message if there is one. */
static inline const dr_error *dr_mpi_last_error(dr_mpi *m) {
  dr_mpi_copy_error_(m->context, &m->error);
  if (m->error.code != DR_OK && m->transport->error.code != DR_OK) {
    const size_t length = strlen(m->error.message);
    snprintf(m->error.message + length, sizeof m->error.message - length, " (%s)", m->transport->error.message);
  }
  return &m->error;
}

#endif
