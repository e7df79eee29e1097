/* Error feedback: elements that a step does not send are added to the next one. Twenty steps of one gradient, 1 % sent in each;
 * the sum of the received gradients approaches the sum of the sent ones.
 *
 *   cc feedback.c $(pkg-config --cflags --libs deepreduce) -lm -o feedback && ./feedback
 */
#include <deepreduce/deepreduce.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { d = 20000, steps = 20 };
static float gradient[d], received[d];
static double sum[d];

static int fail(const char *call, const dr_error *error) {
  fprintf(stderr, "%s: %s\n", call, error->message);
  return 1;
}

int main(void) {
  double norm = 0;
  for (int i = 0; i < d; ++i) gradient[i] = powf(2.0f * (float)(i * 7919 % d) / d - 1, 41); /* few are large */
  for (int i = 0; i < d; ++i) norm += (double)gradient[i] * gradient[i];

  dr_error error = {.struct_size = sizeof error};
  dr_plan *plan = NULL;
  dr_context *context = NULL;
  const char *text = "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=log_quant";
  if (dr_plan_parse(text, &plan, &error) != DR_OK || dr_context_create(NULL, &context, &error) != DR_OK)
    return fail("begin", &error);

  dr_tensor in = {.struct_size = sizeof in, .dtype = DR_F32, .universe = d, .values = gradient};
  dr_tensor_out out = {.struct_size = sizeof out, .dtype = DR_F32, .universe = d, .values = received};
  size_t state_size = 0, bound = 0;
  if (dr_state_size(plan, &in, &state_size, &error) != DR_OK) return fail("dr_state_size", &error);
  in.state = calloc(1, state_size); /* zeroed: a fresh state */
  in.state_size = state_size;
  if (dr_bound(context, plan, NULL, NULL, &in, sizeof in, 1, &bound) != DR_OK)
    return fail("dr_bound", dr_last_error(context));
  void *frame = malloc(bound);
  if (!in.state || !frame) return 1;

  double left = 0;
  for (int step = 0; step < steps; ++step) {
    const dr_call call = {.struct_size = sizeof call, .step = (uint64_t)step};
    dr_result result = {.struct_size = sizeof result};
    if (dr_encode(context, plan, &call, NULL, &in, sizeof in, 1, frame, bound, &result) != DR_OK ||
        dr_decode(context, NULL, frame, result.size, NULL, &out, sizeof out, 1) != DR_OK)
      return fail("step", dr_last_error(context));
    left = 0;
    for (int i = 0; i < d; ++i) sum[i] += received[i];
    for (int i = 0; i < d; ++i) left += pow(sum[i] / (step + 1) - gradient[i], 2);
    printf("step %d: %llu bytes, ", step, (unsigned long long)result.size);
    printf("error of the mean so far %.3f\n", sqrt(left / norm));
  }
  free(frame);
  free(in.state);
  dr_context_destroy(context);
  dr_plan_destroy(plan);
  return sqrt(left / norm) > 0.2;
}
