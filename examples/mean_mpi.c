/* The mean of all ranks' gradients over MPI, compressed: 2 % of the elements travel, the same bits arrive on every rank.
 * sgd_mpi.c trains a model this way.
 *
 *   mpicc mean_mpi.c $(pkg-config --cflags --libs deepreduce) -o mean_mpi && mpiexec -n 4 ./mean_mpi
 */
#include <deepreduce/mpi.h>

enum { d = 100000, steps = 3 };
static float gradient[d], mean[d];

int main(int argc, char **argv) {
  int rank;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);

  dr_error error = {.struct_size = sizeof error};
  dr_context *context = NULL;
  dr_plan *plan = NULL;
  dr_mpi *reduce = NULL;
  const dr_tensor in = {.struct_size = sizeof in, .dtype = DR_F32, .universe = d, .values = gradient};
  dr_tensor_out out = {.struct_size = sizeof out, .dtype = DR_F32, .universe = d, .values = mean};
  const char *text = "sparsify=topr(ratio=0.02) feedback=residual index=golomb value=raw exchange=owner";
  if (dr_context_create(NULL, &context, &error) != DR_OK || dr_plan_parse(text, &plan, &error) != DR_OK ||
      dr_mpi_create(context, plan, MPI_COMM_WORLD, NULL, &in, sizeof in, &out, sizeof out, 1, &reduce, &error) !=
          DR_OK) {
    fprintf(stderr, "rank %d: %s\n", rank, error.message);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }

  double checksum = 0, smallest, largest;
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < d; ++i) gradient[i] = (float)((i + rank) * 7919 % d) / d - 0.5f;
    if (dr_mpi_allreduce(reduce, NULL) != DR_OK) {
      fprintf(stderr, "rank %d: %s\n", rank, dr_mpi_last_error(reduce)->message);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (int i = 0; i < d; ++i) checksum += mean[i] * (i % 97 + 1);
  }
  dr_exchange_info info = {.struct_size = sizeof info};
  dr_exchange_describe(reduce->exchange, &info, &error);
  MPI_Allreduce(&checksum, &smallest, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(&checksum, &largest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0) printf("sent %llu bytes of %zu\n", (unsigned long long)info.sent, sizeof gradient);

  dr_mpi_destroy(reduce);
  dr_plan_destroy(plan);
  dr_context_destroy(context);
  MPI_Finalize();
  return smallest != largest; /* the replicas are the same, bit for bit */
}
