/* Data-parallel SGD over MPI: logistic regression on made data. Each rank has samples of its own; of each gradient 1 % travels.
 *
 *   mpicc sgd_mpi.c $(pkg-config --cflags --libs deepreduce) -lm -o sgd_mpi && mpiexec -n 4 ./sgd_mpi
 *
 * Exit status 0 if the model got it: 85 % of samples that no rank trained on. */
#include <deepreduce/mpi.h>
#include <math.h>

enum { features = 4000, active = 40, batch = 32, steps = 600, test_samples = 2000 };

static const char *const plan_text =
    "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=log_quant exchange=owner";

/* A sample has `active` features of value 1 or -1, and a label that a hidden model gives it. */
typedef struct sample {
  int at[active];
  float value[active];
  float label; /* 0 or 1 */
} sample;

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static float hidden_weight(int feature) {
  uint64_t state = (uint64_t)feature;
  const float u = (float)(next_random(&state) >> 40) * 0x1p-23f - 1; /* -1 to 1 */
  return 4 * u * u * u;                                              /* few features count much */
}

static float dot(const sample *s, const float *model) {
  float sum = 0;
  for (int k = 0; k < active; ++k) sum += s->value[k] * model[s->at[k]];
  return sum;
}

static void draw(sample *s, const float *hidden, uint64_t *state) {
  for (int k = 0; k < active; ++k) {
    const uint64_t r = next_random(state);
    const float u = (float)(r >> 40) * 0x1p-24f;
    s->at[k] = (int)(u * u * u * features); /* some features come often */
    s->value[k] = r & 1 ? 1.f : -1.f;
  }
  s->label = dot(s, hidden) > 0;
}

/* The mean over the batch of (prediction - label) * sample; returns the mean loss. */
static double compute_gradient(const float *model, const float *hidden, uint64_t *state, float *gradient) {
  double loss = 0;
  memset(gradient, 0, features * sizeof *gradient);
  for (int i = 0; i < batch; ++i) {
    sample s;
    draw(&s, hidden, state);
    const float z = dot(&s, model), prediction = 1 / (1 + expf(-z));
    loss += fmax(z, 0) - z * s.label + log1p(exp(-fabs(z)));
    for (int k = 0; k < active; ++k) gradient[s.at[k]] += (prediction - s.label) * s.value[k] / batch;
  }
  return loss / batch;
}

static int fail(int rank, const char *what, const dr_error *error) {
  fprintf(stderr, "rank %d: %s: %s\n", rank, what, error->message);
  fflush(stderr);
  MPI_Abort(MPI_COMM_WORLD, 1); /* MPI_Finalize might wait for a rank that is gone */
  return 1;
}

int main(int argc, char **argv) {
  static float model[features], hidden[features], gradient[features], mean[features];
  dr_error error = {.struct_size = sizeof error};
  dr_context *context = NULL;
  dr_plan *plan = NULL;
  dr_mpi *reduce = NULL;
  int rank, ranks, right = 0;

  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int i = 0; i < features; ++i) hidden[i] = hidden_weight(i);

  dr_tensor in = {.struct_size = sizeof in, .dtype = DR_F32, .universe = features, .values = gradient};
  dr_tensor_out out = {.struct_size = sizeof out, .dtype = DR_F32, .universe = features, .values = mean};
  dr_exchange_options options = {.struct_size = sizeof options, .timeout_ns = 20000000000u};
  if (dr_context_create(NULL, &context, &error) != DR_OK || dr_plan_parse(plan_text, &plan, &error) != DR_OK ||
      dr_mpi_create(context, plan, MPI_COMM_WORLD, &options, &in, sizeof in, &out, sizeof out, 1, &reduce, &error) !=
          DR_OK)
    return fail(rank, "cannot begin", &error);

  uint64_t samples = 1000 + (uint64_t)rank, sent = 0; /* each rank draws its own */
  for (int step = 0; step < steps; ++step) {
    const double loss = compute_gradient(model, hidden, &samples, gradient);
    const dr_call call = {.struct_size = sizeof call, .step = (uint64_t)step};
    if (dr_mpi_allreduce(reduce, &call) != DR_OK) return fail(rank, "all-reduce", dr_mpi_last_error(reduce));
    for (int i = 0; i < features; ++i) model[i] -= 2 * mean[i];

    dr_exchange_info info = {.struct_size = sizeof info};
    if (dr_exchange_describe(reduce->exchange, &info, &error) == DR_OK) sent += info.sent;
    if (rank == 0 && step % 100 == 0) printf("step %d: loss %.3f\n", step, loss);
  }

  samples = 7;
  for (int i = 0; i < test_samples; ++i) {
    sample s;
    draw(&s, hidden, &samples);
    right += (dot(&s, model) > 0) == (s.label > 0);
  }
  if (rank == 0) {
    printf("accuracy %.3f; %.0f bytes a step and rank, a dense ring takes %.0f\n", (double)right / test_samples,
           (double)sent / steps, 8.0 * features * (ranks - 1) / ranks);
  }
  dr_mpi_destroy(reduce);
  dr_plan_destroy(plan);
  dr_context_destroy(context);
  MPI_Finalize();
  return right < test_samples * 85 / 100;
}
