/* A transport by itself, over MPI: what exchange.h asks of send, recv, test and cancel. Built with rounds of 64 bytes, and as it is.
 *   mpiexec -n N transport_ranks           exit 0: all held; 1: the sentence says what did not
 *   mpiexec -n N transport_ranks absent    rank 0 does not come; the others say TIMEOUT
 *   mpiexec -n 2 transport_ranks large     a message of 1 GiB and one byte: 2.3 GB of memory */
#include <deepreduce/mpi.h>

static int rank, ranks, wrong;
static dr_transport t;
static dr_mpi_transport *mpi;

#define EXPECT(what)                                                           \
  do {                                                                         \
    if (!(what) && wrong++ < 10) {                                             \
      printf("rank %d: %s:%d: not so: %s\n", rank, __FILE__, __LINE__, #what); \
      fflush(stdout);                                                          \
    }                                                                          \
  } while (0)

/* The request's end, within 20 s. */
static dr_status wait_for(uint64_t request, size_t *size) {
  const double deadline = MPI_Wtime() + 20;
  dr_mpi_pause_ pause = {0, 0, 0};
  dr_status status;
  while ((status = t.test(t.user, request, size)) == DR_PENDING && MPI_Wtime() < deadline)
    dr_mpi_rest_(mpi->crowded, mpi->ended, &pause);
  return status;
}

/* Every rank has come here. */
static void meet(void) {
  MPI_Request request;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  EXPECT(dr_mpi_until_(mpi, &request, MPI_Wtime() + 20, "MPI_Ibarrier", NULL) == DR_OK);
}

static const size_t sizes[] = {0, 1, 63, 64, 65, 128, 1000, 0, 64, 10007, 7};
enum { messages = sizeof sizes / sizeof *sizes, room = 10007 };

static unsigned char byte_of(int from, int to, int message, size_t i) {
  return (unsigned char)(from * 31 + to * 17 + message * 7 + (int)(i % 251));
}

/* All ranks to all others, every message with one tag; the receives are asked about in reverse. */
static void order_is_kept(uint32_t tag) {
  unsigned char *out = malloc((size_t)ranks * messages * room), *in = malloc((size_t)ranks * messages * room);
  uint64_t *sends = malloc((size_t)ranks * messages * sizeof *sends),
           *recvs = malloc((size_t)ranks * messages * sizeof *recvs);
  for (int peer = 0; peer < ranks; ++peer) {
    for (int m = 0; m < messages && peer != rank; ++m) {
      const size_t at = (size_t)(peer * messages + m);
      for (size_t i = 0; i < sizes[m]; ++i) out[at * room + i] = byte_of(rank, peer, m, i);
      EXPECT(t.send(t.user, (uint32_t)peer, tag, out + at * room, sizes[m], &sends[at]) == DR_OK);
      EXPECT(t.recv(t.user, (uint32_t)peer, tag, in + at * room, m % 2 ? room : sizes[m], &recvs[at]) == DR_OK);
    }
  }
  for (int peer = ranks - 1; peer >= 0; --peer) {
    for (int m = messages - 1; m >= 0 && peer != rank; --m) {
      const size_t at = (size_t)(peer * messages + m);
      size_t size = 99, good = 0;
      EXPECT(wait_for(recvs[at], &size) == DR_OK);
      EXPECT(size == sizes[m]);
      while (good < size && in[at * room + good] == byte_of(peer, rank, m, good)) ++good;
      EXPECT(good == size);
      EXPECT(wait_for(sends[at], NULL) == DR_OK);
    }
  }
  free(out), free(in), free(sends), free(recvs);
}

static void too_long_a_message_is_capacity(void) {
  char out[60] = "long", in[60];
  uint64_t send, recv;
  const uint32_t next = (uint32_t)((rank + 1) % ranks), before = (uint32_t)((rank + ranks - 1) % ranks);
  EXPECT(t.recv(t.user, before, 3, in, 10, &recv) == DR_OK);
  meet(); /* MPICH silently truncates a message that arrives before the receive, so the receive is first */
  EXPECT(t.send(t.user, next, 3, out, sizeof out, &send) == DR_OK);
  EXPECT(wait_for(recv, NULL) == DR_E_CAPACITY);
  EXPECT(mpi->error.code == DR_E_CAPACITY && mpi->error.frame == before && mpi->error.message[0]);
  EXPECT(wait_for(send, NULL) == DR_OK);
}

/* What is cancelled takes no message away from the receive after it. */
static void a_receive_can_be_cancelled(void) {
  char lost[200], in[200], out[200];
  uint64_t first, behind, second, send;
  size_t size = 0;
  const uint32_t next = (uint32_t)((rank + 1) % ranks), before = (uint32_t)((rank + ranks - 1) % ranks);
  memset(out, 'm', sizeof out);
  EXPECT(t.recv(t.user, before, 4, lost, sizeof lost, &first) == DR_OK);
  EXPECT(t.recv(t.user, before, 4, lost, sizeof lost, &behind) == DR_OK);
  EXPECT(t.cancel(t.user, behind) == DR_OK);
  EXPECT(t.cancel(t.user, first) == DR_OK);
  meet();
  EXPECT(t.recv(t.user, before, 4, in, sizeof in, &second) == DR_OK);
  EXPECT(t.send(t.user, next, 4, out, 150, &send) == DR_OK);
  EXPECT(wait_for(second, &size) == DR_OK);
  EXPECT(size == 150 && !memcmp(in, out, 150));
  EXPECT(wait_for(send, NULL) == DR_OK);
}

static void wrong_arguments(void) {
  char byte = 0;
  uint64_t request;
  dr_mpi_transport *none = NULL;
  dr_error error = {.struct_size = sizeof error};
  EXPECT(t.send(t.user, (uint32_t)ranks, 1, &byte, 1, &request) == DR_E_ARGUMENT);
  EXPECT(t.recv(t.user, UINT32_MAX, 1, &byte, 1, &request) == DR_E_ARGUMENT);
  EXPECT(t.test(t.user, 5, NULL) == DR_E_ARGUMENT); /* over long ago */
  EXPECT(t.cancel(t.user, UINT64_MAX) == DR_E_ARGUMENT);
  EXPECT(dr_mpi_transport_create(MPI_COMM_NULL, 0, &none, &error) == DR_E_ARGUMENT && !none);
  EXPECT(!strcmp(error.message, "comm is MPI_COMM_NULL"));
}

static int verdict(void) {
  if (!wrong) printf("rank %d: good\n", rank);
  fflush(stdout);
  return wrong > 0;
}

static int absent(void) {
  dr_error error = {.struct_size = sizeof error};
  if (rank) {
    const double begin = MPI_Wtime();
    EXPECT(dr_mpi_transport_create(MPI_COMM_WORLD, 500000000, &mpi, &error) == DR_E_TIMEOUT);
    EXPECT(MPI_Wtime() - begin < 5);
    EXPECT(strstr(error.message, "not all ranks take part"));
  } else {
    sleep(2);
  }
  verdict();
  sleep(10);        /* until run_ranks.py ends it: Open MPI's mpiexec ends all when one ends so */
  _exit(wrong > 0); /* MPI_Finalize would wait */
}

static void large(void) {
  const size_t size = ((size_t)1 << 30) + 1;
  char *bytes = malloc(size);
  uint64_t request;
  size_t came = 0;
  memset(bytes, rank ? 0 : 'x', size);
  EXPECT((rank ? t.recv(t.user, 0, 9, bytes, size, &request) : t.send(t.user, 1, 9, bytes, size, &request)) == DR_OK);
  EXPECT(wait_for(request, &came) == DR_OK);
  EXPECT(!rank || (came == size && bytes[0] == 'x' && bytes[size - 1] == 'x' && bytes[size - 2] == 'x'));
  free(bytes);
}

int main(int argc, char **argv) {
  dr_error error = {.struct_size = sizeof error};
  dr_mpi_transport *before = NULL;
  uint32_t capacity;
  if (dr_mpi_transport_create(MPI_COMM_WORLD, 0, &before, &error) != DR_E_ARGUMENT) return 1; /* not initialized */
  MPI_Init(&argc, &argv);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); /* MPICH 4.0 asks it about all requests */
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc > 1 && !strcmp(argv[1], "absent")) return absent();
  if (dr_mpi_transport_create(MPI_COMM_WORLD, 0, &mpi, &error) != DR_OK) {
    printf("rank %d: %s\n", rank, error.message);
    return 1;
  }
  t = dr_mpi_transport_of(mpi);
  EXPECT(t.ranks == (uint32_t)ranks && t.rank == (uint32_t)rank);
  if (argc > 1 && !strcmp(argv[1], "large")) {
    large();
  } else {
    order_is_kept(0);
    capacity = mpi->capacity;
    for (int i = 0; i < 5; ++i) order_is_kept((1u << 28) - 1);
    EXPECT(mpi->capacity == capacity); /* nothing is allocated once the table is large enough */
    if (ranks > 1) too_long_a_message_is_capacity();
    if (ranks > 1) a_receive_can_be_cancelled();
    wrong_arguments();
  }
  EXPECT(mpi->posted == mpi->ended && mpi->long_receives == 0);
  meet();
  dr_mpi_transport_destroy(mpi);
  MPI_Finalize();
  return verdict();
}
