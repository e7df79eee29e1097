/* Ranks that continue without a dead one: after a failed exchange the others copy their residuals to a new exchange of
 * fewer ranks. What they had not sent, the failed step's gradient with it, is sent then. Over the sockets of
 * unix_transport.h; with MPI or a network of your own only the making of the second transport differs.
 *
 *   cc elastic_ranks.c $(pkg-config --cflags --libs deepreduce) -lm -o elastic_ranks && ./elastic_ranks
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, where the compiler is told a standard (-std=c11) */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "unix_transport.h"

enum { ranks = 4, dies = 2, dies_at = 3, steps = 8, d = 20000 };
static float gradient[d], sum[d], residual[d];
/* Of all ranks: sockets of two meshes, and the reports that the parent compares. A cluster would connect again. */
static int fds[2][ranks][ranks];
typedef struct report {
  double produced, applied, left; /* sums: of this rank's gradients, of the means of all ranks, of its last residual */
  double checksum;                /* of its replica */
} report;

static int fail(uint32_t rank, const char *what, const char *why) {
  fprintf(stderr, "rank %u: %s: %s\n", (unsigned)rank, what, why);
  return 1;
}

/* What depends on the set of ranks: the sockets to them and the exchange. */
typedef struct group {
  uint32_t count, place; /* ranks, and this one's number among them */
  unix_transport *sockets;
  dr_exchange *exchange;
} group;

static dr_status join(dr_context *context, const dr_plan *plan, int mesh, uint32_t rank, const int *alive, group *g) {
  static dr_tensor in = {.struct_size = sizeof in, .dtype = DR_F32, .universe = d, .values = gradient};
  static dr_tensor_out out = {.struct_size = sizeof out, .dtype = DR_F32, .universe = d, .values = sum};
  int to[ranks];
  g->count = 0;
  for (uint32_t i = 0; i < ranks; ++i) {
    if (i == rank) g->place = g->count;
    if (alive[i]) to[g->count++] = fds[mesh][rank][i];
  }
  g->sockets = unix_transport_create(g->count, g->place, to);
  if (!g->sockets) return DR_E_MEMORY;
  const dr_transport transport = unix_transport_of(g->sockets);
  dr_exchange_options options = {.struct_size = sizeof options, .flags = DR_EXCHANGE_SUM, .timeout_ns = 5000000000};
  return dr_exchange_create(context, plan, &transport, &options, &in, sizeof in, &out, sizeof out, 1, &g->exchange);
}

static int run(uint32_t rank, report *own) {
  dr_error error;
  memset(&error, 0, sizeof error);
  error.struct_size = sizeof error;
  dr_plan *plan = NULL;
  dr_context *context = NULL;
  if (dr_plan_parse("sparsify=topr(ratio=0.05) feedback=residual index=golomb value=raw", &plan, &error) != DR_OK)
    return fail(rank, "plan", error.message);
  if (dr_context_create(NULL, &context, &error) != DR_OK) return fail(rank, "context", error.message);
  int alive[ranks] = {1, 1, 1, 1};
  group g;
  if (join(context, plan, 0, rank, alive, &g) != DR_OK) return fail(rank, "join", dr_last_error(context)->message);

  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < d; ++i) {
      /* Integers, whose sums are exact; and none of the rank that dies: what it had not sent is lost, of all others nothing. */
      gradient[i] = rank == dies ? 0 : (float)((i * 7919 + (int)rank * 104729 + step * 1299709) % 2001 - 1000);
      own->produced += gradient[i];
    }
    if (rank == dies && step == dies_at) raise(SIGKILL);
    dr_call call = {.struct_size = sizeof call, .step = (uint64_t)step};
    dr_status status = dr_exchange_start(g.exchange, &call);
    if (status == DR_OK) status = unix_finish(g.sockets, g.exchange);
    if (status == DR_E_PEER || status == DR_E_TIMEOUT) {
      /* All that are left name the same rank; their outputs are untouched, and this step's gradient is in their residuals:
       * it is not passed again. */
      const uint64_t gone = dr_last_error(context)->frame;
      if (rank == 0) printf("step %d: %s\n", step, dr_last_error(context)->message);
      alive[gone] = 0;
      /* (With exchange=owner there is DR_RESIDUAL_SUM, too: added to OWN, for the ranges have other owners now. It is in
       * units of the result: of means, times the new number of ranks. With a momentum, DR_RESIDUAL_MOMENTUM.) */
      status = dr_exchange_read_residual(g.exchange, DR_RESIDUAL_OWN, 0, residual, d);
      dr_exchange_destroy(g.exchange);
      unix_transport_destroy(g.sockets);
      if (status == DR_OK) status = join(context, plan, 1, rank, alive, &g);
      if (status == DR_OK) status = dr_exchange_write_residual(g.exchange, DR_RESIDUAL_OWN, 0, residual, d);
      if (status == DR_OK) continue;
    }
    if (status != DR_OK) return fail(rank, dr_status_name(status), dr_last_error(context)->message);
    for (int i = 0; i < d; ++i) {
      own->applied += sum[i];
      own->checksum += sum[i] * cos(i + step);
    }
  }
  if (dr_exchange_read_residual(g.exchange, DR_RESIDUAL_OWN, 0, residual, d) != DR_OK)
    return fail(rank, "residual", dr_last_error(context)->message);
  for (int i = 0; i < d; ++i) own->left += residual[i];
  dr_exchange_destroy(g.exchange);
  unix_transport_destroy(g.sockets);
  dr_context_destroy(context);
  dr_plan_destroy(plan);
  return 0;
}

int main(void) {
  report *const reports =
      (report *)mmap(NULL, ranks * sizeof *reports, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (reports == MAP_FAILED) return fail(0, "mmap", strerror(errno));
  for (int mesh = 0; mesh < 2; ++mesh)
    for (int i = 0; i < ranks; ++i)
      for (int k = 0; k < i; ++k) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return fail(0, "socketpair", strerror(errno));
        fds[mesh][i][k] = pair[0];
        fds[mesh][k][i] = pair[1];
      }
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) return fail(0, "fork", strerror(errno));
    if (child) continue;
    for (int mesh = 0; mesh < 2; ++mesh)
      for (uint32_t i = 0; i < ranks; ++i)
        for (uint32_t k = 0; k < ranks; ++k)
          if (i != rank && i != k) close(fds[mesh][i][k]);
    const int status = run(rank, &reports[rank]);
    fflush(stdout);
    _exit(status);
  }
  for (int mesh = 0; mesh < 2; ++mesh)
    for (int i = 0; i < ranks; ++i)
      for (int k = 0; k < ranks; ++k)
        if (i != k) close(fds[mesh][i][k]);

  int status = 0, bad = 0, killed = 0;
  while (wait(&status) > 0) {
    killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    bad |= WIFEXITED(status) && WEXITSTATUS(status);
  }
  if (killed != 1) bad = fail(dies, "was not killed", "");
  double produced = 0, left = 0;
  for (int i = 0; i < ranks; ++i) {
    produced += reports[i].produced;
    left += reports[i].left;
    if (i != dies && reports[i].checksum != reports[0].checksum)
      bad = fail((uint32_t)i, "sum", "differs from rank 0's");
  }
  if (produced != reports[0].applied + left) bad = fail(0, "sum", "a part of the gradients is lost");
  if (!bad) printf("%d ranks continued to step %d with equal replicas; nothing is lost\n", ranks - 1, steps);
  return bad;
}
