/* An all-reduce over a transport of one's own: ranks are processes, joined by the sockets of unix_transport.h.
 *
 *   cc unix_mean.c $(pkg-config --cflags --libs deepreduce) -lm -o unix_mean
 *   ./unix_mean [RANKS [PLAN]]
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, where the compiler is told a standard (-std=c11) */
#include <math.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "unix_transport.h"

enum { d = 100000, steps = 5 };
static float gradient[d], mean[d];

static int fail(uint32_t rank, const char *what, const char *why) {
  fprintf(stderr, "rank %u: %s: %s\n", (unsigned)rank, what, why);
  return 1;
}

/* All steps of a rank; checksums [steps] of its means. */
static int run(uint32_t ranks, uint32_t rank, const int *fds, const char *text, double *checksums) {
  dr_error error;
  memset(&error, 0, sizeof error);
  error.struct_size = sizeof error;
  dr_plan *plan = NULL;
  if (dr_plan_parse(text, &plan, &error) != DR_OK) return fail(rank, "plan", error.message);
  dr_context *context = NULL;
  if (dr_context_create(NULL, &context, &error) != DR_OK) return fail(rank, "context", error.message);

  dr_tensor in = {.struct_size = sizeof in, .dtype = DR_F32, .universe = d, .values = gradient};
  dr_tensor_out out = {.struct_size = sizeof out, .dtype = DR_F32, .universe = d, .values = mean};
  unix_transport *sockets = unix_transport_create(ranks, rank, fds);
  if (!sockets) return fail(rank, "sockets", "no memory, or too many ranks");
  const dr_transport transport = unix_transport_of(sockets);
  dr_exchange *exchange = NULL;
  if (dr_exchange_create(context, plan, &transport, NULL, &in, sizeof in, &out, sizeof out, 1, &exchange) != DR_OK)
    return fail(rank, "exchange", dr_last_error(context)->message);

  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < d; ++i) gradient[i] = sinf((float)(i * (int)(rank + 1) + step));
    dr_status status = dr_exchange_start(exchange, NULL);
    if (status == DR_OK) status = unix_finish(sockets, exchange);
    if (status != DR_OK) return fail(rank, dr_status_name(status), dr_last_error(context)->message);
    for (int i = 0; i < d; ++i) checksums[step] += mean[i] * cos(i);
  }
  dr_exchange_info info = {.struct_size = sizeof info};
  if (rank == 0 && dr_exchange_describe(exchange, &info, &error) == DR_OK)
    printf("rank 0: %u steps, %llu bytes sent a step; %zu as f32\n", (unsigned)steps, (unsigned long long)info.sent,
           sizeof gradient);

  dr_exchange_destroy(exchange); /* before its transport */
  unix_transport_destroy(sockets);
  dr_context_destroy(context);
  dr_plan_destroy(plan);
  return 0;
}

int main(int argc, char **argv) {
  const int ranks = argc > 1 ? atoi(argv[1]) : 4;
  const char *plan =
      argc > 2 ? argv[2] : "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw exchange=owner(parts=2)";
  if (ranks < 1 || ranks > UNIX_RANKS_MAX) return fail(0, "ranks", "1 to 64");
  static int fds[UNIX_RANKS_MAX][UNIX_RANKS_MAX]; /* [rank][peer] */
  for (int i = 0; i < ranks; ++i)
    for (int k = 0; k < i; ++k) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return fail(0, "socketpair", strerror(errno));
      fds[i][k] = pair[0];
      fds[k][i] = pair[1];
    }
  double(*const checksums)[steps] = (double(*)[steps])mmap(NULL, sizeof(double[UNIX_RANKS_MAX][steps]),
                                                           PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (checksums == MAP_FAILED) return fail(0, "mmap", strerror(errno));

  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) return fail(0, "fork", strerror(errno));
    if (child) continue;
    for (int i = 0; i < ranks; ++i) /* the sockets of the others: a peer's end is seen when nobody has the other side */
      for (int k = 0; k < ranks; ++k)
        if (i != rank && i != k) close(fds[i][k]);
    const int status = run((uint32_t)ranks, (uint32_t)rank, fds[rank], plan, checksums[rank]);
    fflush(stdout);
    _exit(status);
  }
  for (int i = 0; i < ranks; ++i)
    for (int k = 0; k < ranks; ++k)
      if (i != k) close(fds[i][k]);

  int bad = 0, status = 0;
  while (wait(&status) > 0) bad |= status;
  for (int rank = 1; rank < ranks && !bad; ++rank)
    if (memcmp(checksums[rank], checksums[0], sizeof checksums[0]))
      bad = fail((uint32_t)rank, "mean", "differs from rank 0's");
  if (!bad) printf("%d ranks have the same mean\n", ranks);
  return bad != 0;
}
