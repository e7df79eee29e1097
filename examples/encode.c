#include <deepreduce/deepreduce.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
  enum { d = 10000 };
  static float gradient[d], received[d];
  for (int i = 0; i < d; ++i) gradient[i] = (float)(i * 7919 % d) / d - 0.5f;

  dr_error error = {.struct_size = sizeof error};
  dr_plan *plan = NULL;
  if (dr_plan_parse("sparsify=topr(ratio=0.01) index=golomb value=qsgd(levels=127)", &plan, &error) != DR_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  dr_context *context = NULL;
  if (dr_context_create(NULL, &context, &error) != DR_OK) return 1;

  dr_tensor in = {.struct_size = sizeof in, .dtype = DR_F32, .universe = d, .values = gradient};
  dr_tensor_out out = {.struct_size = sizeof out, .dtype = DR_F32, .universe = d, .values = received};
  dr_result result = {.struct_size = sizeof result};
  size_t bound = 0;
  void *frame = NULL;
  dr_status status = dr_bound(context, plan, NULL, NULL, &in, sizeof in, 1, &bound);
  if (status == DR_OK && !(frame = malloc(bound))) return 1;
  if (status == DR_OK) status = dr_encode(context, plan, NULL, NULL, &in, sizeof in, 1, frame, bound, &result);
  if (status == DR_OK) status = dr_decode(context, NULL, frame, result.size, NULL, &out, sizeof out, 1);
  if (status == DR_OK) printf("%zu bytes became %llu\n", sizeof gradient, (unsigned long long)result.size);
  if (status != DR_OK) fprintf(stderr, "%s\n", dr_last_error(context)->message);

  free(frame);
  dr_context_destroy(context);
  dr_plan_destroy(plan);
  return status != DR_OK;
}
