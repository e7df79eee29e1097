/* A client of version 1 of the C ABI. The program beside it, client_1.x86_64, was built from this when version 1 was made and is never
 * built again: it must run against every library whose soname is libdeepreduce.so.1 (VERSIONING.md). Exit 0: all is as it was.
 *
 *   cc -std=c11 -O1 -s -Iinclude tests/abi/kept/client_1.c -o tests/abi/kept/client_1.x86_64 -Lbuild/capi -l:libdeepreduce.so.1
 */
#include <deepreduce/deepreduce.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { d = 3000, few = 40 };
static float gradient[d], other[few], received[d], received_other[few], twice[d], twice_other[few];
static _Alignas(64) unsigned char frame[1 << 16], again[1 << 16], workspace[1 << 21];
static unsigned long long state[(4 * d + 4096) / 8];

#define WANT(what)                                                         \
  do {                                                                     \
    if (!(what)) {                                                         \
      fprintf(stderr, "client_1.c:%d: %s: %s\n", __LINE__, #what,          \
              context ? dr_last_error(context)->message : error.message); \
      return 1;                                                            \
    }                                                                      \
  } while (0)

static unsigned stages;
static void count_stage(void *user, const dr_trace *trace) {
  (void)user;
  if (trace->struct_size >= sizeof *trace && trace->stage && trace->end_ns >= trace->begin_ns) ++stages;
}

int main(void) {
  dr_context *context = NULL;
  dr_error error = {.struct_size = sizeof error};
  WANT(dr_abi_version() == 1);
  WANT(dr_feature(DR_FEATURE_FORMAT) >= 1 && dr_feature(DR_FEATURE_CPU) >= 1 && dr_feature(1u << 30) == 0);
  for (int i = 0; i < d; ++i) gradient[i] = (float)(i * 7919 % 3001 - 1500) / 64;
  for (int i = 0; i < few; ++i) other[i] = (float)(i - 20);

  dr_plan *plan = NULL, *lossless = NULL;
  WANT(dr_plan_parse("sparsify=topr(ratio=0.1) index=golomb value=qsgd(levels=127)", &plan, &error) == DR_OK);
  WANT(dr_plan_parse("sparsify=topr(count=30) feedback=residual index=golomb", &lossless, &error) == DR_OK);
  WANT(dr_plan_parse("index=never", &(dr_plan *){NULL}, &error) == DR_E_ARGUMENT && error.code == DR_E_ARGUMENT);
  WANT(strstr(error.message, "never") != NULL);
  dr_plan_info about = {.struct_size = sizeof about};
  WANT(dr_plan_describe(lossless, &about, &error) == DR_OK);
  WANT((about.flags & DR_PLAN_FEEDBACK) && !(about.flags & DR_PLAN_LOSSY_VALUES) && (about.dtypes & DR_DTYPE_BIT(DR_BF16)));

  dr_context_options options = {.struct_size = sizeof options, .threads = 2};
  WANT(dr_context_create(&options, &context, &error) == DR_OK);
  dr_tensor tensors[2] = {{.struct_size = sizeof *tensors, .dtype = DR_F32, .universe = d, .values = gradient},
                          {.struct_size = sizeof *tensors, .dtype = DR_F32, .universe = few, .values = other}};
  size_t bound = 0;
  WANT(dr_bound(context, plan, NULL, NULL, tensors, sizeof *tensors, 2, &bound) == DR_OK && bound <= sizeof frame);
  dr_call call = {.struct_size = sizeof call, .step = 3, .seed = 4, .flags = DR_CALL_TAG, .tag = 77, .trace = count_stage};
  dr_result result = {.struct_size = sizeof result};
  WANT(dr_encode(context, plan, &call, NULL, tensors, sizeof *tensors, 2, frame, bound, &result) == DR_OK);
  WANT(result.size && result.size <= bound && result.kept == 300 + 4 && stages >= 4);
  const size_t size = (size_t)result.size;

  size_t measured = 0;
  WANT(dr_frame_size(frame, sizeof frame, &measured, &error) == DR_OK && measured == size);
  dr_frame_info head = {.struct_size = sizeof head};
  dr_tensor_info infos[2] = {{.struct_size = sizeof *infos}, {.struct_size = sizeof *infos}};
  WANT(dr_inspect(frame, size, &head, infos, sizeof *infos, 2, &error) == DR_OK);
  WANT(head.tensors == 2 && head.tag == 77 && infos[0].support == 300 && infos[1].universe == few);

  dr_tensor_out outs[2] = {{.struct_size = sizeof *outs, .dtype = DR_F32, .universe = d, .values = received},
                           {.struct_size = sizeof *outs, .dtype = DR_F32, .universe = few, .values = received_other}};
  dr_decode_options how = {.struct_size = sizeof how, .flags = DR_DECODE_TAG, .tag = 77, .max_elements = 1 << 20};
  WANT(dr_decode(context, NULL, frame, size, &how, outs, sizeof *outs, 2) == DR_OK && outs[0].count == 300);
  how.tag = 78;
  WANT(dr_decode(context, NULL, frame, size, &how, outs, sizeof *outs, 2) == DR_E_ARGUMENT);
  frame[size / 2] ^= 1;
  WANT(dr_decode(context, NULL, frame, size, NULL, outs, sizeof *outs, 2) == DR_E_CORRUPT);
  frame[size / 2] ^= 1;

  dr_batch *batch = NULL;
  dr_batch_info info = {.struct_size = sizeof info};
  size_t room = 0;
  WANT(dr_batch_create(context, plan, NULL, tensors, sizeof *tensors, 2, 0, &batch) == DR_OK);
  WANT(dr_batch_describe(batch, &info, &error) == DR_OK && info.tensors == 2 && info.workspace <= sizeof workspace);
  call.trace = NULL;
  WANT(dr_batch_encode(context, batch, &call, NULL, tensors, sizeof *tensors, 2, workspace, sizeof workspace, again,
                       sizeof again, &result) == DR_OK);
  WANT(result.size == size && memcmp(frame, again, size) == 0);
  WANT(dr_batch_merge_workspace(batch, 2, &room, &error) == DR_OK && room <= sizeof workspace);

  const dr_bytes both[2] = {{frame, size}, {again, size}};
  const float weights[2] = {0.5f, 1.5f};
  dr_tensor_out sums[2] = {{.struct_size = sizeof *sums, .dtype = DR_F32, .universe = d, .values = twice},
                           {.struct_size = sizeof *sums, .dtype = DR_F32, .universe = few, .values = twice_other}};
  WANT(dr_merge(context, NULL, both, weights, 2, NULL, sums, sizeof *sums, 2) == DR_OK);
  for (int i = 0; i < d; ++i) WANT(twice[i] == 0.5f * received[i] + 1.5f * received[i]);
  WANT(dr_batch_merge(context, batch, NULL, both, weights, 2, NULL, sums, sizeof *sums, 2, workspace, sizeof workspace,
                      NULL) == DR_OK);
  for (int i = 0; i < d; ++i) WANT(twice[i] == 0.5f * received[i] + 1.5f * received[i]);

  dr_binding *binding = NULL;
  WANT(dr_binding_create(context, batch, NULL, tensors, sizeof *tensors, outs, sizeof *outs, 2, 2, &binding) == DR_OK);
  WANT(dr_binding_encode(binding, &call, again, sizeof again, &result) == DR_OK && memcmp(frame, again, size) == 0);
  memset(received, 0, sizeof received);
  WANT(dr_binding_merge(binding, both, weights, 2, NULL, NULL) == DR_OK && memcmp(received, twice, sizeof twice) == 0);
  WANT(dr_binding_decode(binding, frame, size, NULL, NULL) == DR_OK && outs[0].count == 300);
  dr_binding_destroy(binding);
  dr_batch_destroy(batch);

  /* Feedback: what was not sent is in the state, and comes out with the next step. */
  size_t state_size = 0;
  WANT(dr_state_size(lossless, &tensors[0], &state_size, &error) == DR_OK && state_size <= sizeof state);
  WANT(dr_state_fill(lossless, &tensors[0], NULL, state, state_size, &error) == DR_OK);
  tensors[0].state = state;
  tensors[0].state_size = state_size;
  WANT(dr_encode(context, lossless, NULL, NULL, tensors, sizeof *tensors, 1, frame, sizeof frame, &result) == DR_OK);
  WANT(dr_decode(context, NULL, frame, (size_t)result.size, NULL, outs, sizeof *outs, 1) == DR_OK && outs[0].count == 30);
  float *residual = NULL;
  uint64_t elements = 0;
  double norm = 0;
  WANT(dr_state_residual(state, state_size, &residual, &elements, &error) == DR_OK && elements == d);
  for (int i = 0; i < d; ++i) WANT(received[i] + residual[i] == gradient[i]);
  WANT(dr_state_norm(state, state_size, &norm, &error) == DR_OK && norm > 0);

  /* A frame that says why there is none. */
  gradient[5] = (float)(1e300 * 1e300);
  tensors[0].state = NULL;
  tensors[0].state_size = 0;
  call.flags = DR_CALL_STATUS_FRAME;
  WANT(dr_encode(context, plan, &call, NULL, tensors, sizeof *tensors, 1, frame, sizeof frame, &result) == DR_E_ARGUMENT);
  WANT(result.status == DR_E_ARGUMENT && result.tensor == 0 && result.where == 5 && result.size);
  WANT(dr_decode(context, NULL, frame, (size_t)result.size, NULL, outs, sizeof *outs, 1) == DR_E_PEER);

  WANT(dr_codec_count() > 20 && dr_codec_at(0)->struct_size >= sizeof(dr_codec) && dr_codec_at(0)->name[0]);
  WANT(dr_context_trim(context) == DR_OK);
  dr_context_destroy(context);
  dr_plan_destroy(lossless);
  dr_plan_destroy(plan);
  return 0;
}
