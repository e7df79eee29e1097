// Where everything lies in the public structs, and what the public names are worth, on LP64. Compiled by a test. A struct may grow
// at its end (that is a line more here); a line that has to change is a new ABI: DR_ABI_VERSION, or DR_CODEC_ABI_VERSION for codec.h.
#include <deepreduce/control.h>
#include <deepreduce/exchange.h>
#include <deepreduce/sender.h>
#include <deepreduce/transform.h>

#define SIZE(type, bytes) static_assert(sizeof(type) == bytes, #type " has another size")
#define FIELD(type, name, at, bytes)                                                              \
  static_assert(offsetof(type, name) == at && sizeof(static_cast<type*>(nullptr)->name) == bytes, \
                #type "::" #name " has moved")
#define VALUE(name, number) static_assert(static_cast<long long>(name) == number, #name " means something else")

static_assert(sizeof(void*) == 8 && sizeof(long) == 8, "the numbers below are those of LP64");

SIZE(dr_fault, 40);
FIELD(dr_fault, struct_size, 0, 8);
FIELD(dr_fault, code, 8, 4);
FIELD(dr_fault, stream, 12, 4);
FIELD(dr_fault, where, 16, 8);
FIELD(dr_fault, what, 24, 8);
FIELD(dr_fault, message, 32, 8);

SIZE(dr_param, 64);
FIELD(dr_param, struct_size, 0, 8);
FIELD(dr_param, name, 8, 8);
FIELD(dr_param, summary, 16, 8);
FIELD(dr_param, type, 24, 4);
FIELD(dr_param, required, 28, 4);
FIELD(dr_param, minimum, 32, 8);
FIELD(dr_param, maximum, 40, 8);
FIELD(dr_param, fallback, 48, 8);
FIELD(dr_param, choices, 56, 8);

SIZE(dr_value, 24);
FIELD(dr_value, struct_size, 0, 8);
FIELD(dr_value, given, 8, 4);
FIELD(dr_value, reserved, 12, 4);
FIELD(dr_value, number, 16, 8);

SIZE(dr_field, 40);
FIELD(dr_field, struct_size, 0, 8);
FIELD(dr_field, name, 8, 8);
FIELD(dr_field, minimum, 16, 8);
FIELD(dr_field, maximum, 24, 8);
FIELD(dr_field, fallback, 32, 8);

SIZE(dr_params, 32);
FIELD(dr_params, struct_size, 0, 8);
FIELD(dr_params, values, 8, 8);
FIELD(dr_params, fields, 16, 8);
FIELD(dr_params, beside, 24, 4);
FIELD(dr_params, reserved, 28, 4);

SIZE(dr_job, 152);
FIELD(dr_job, struct_size, 0, 8);
FIELD(dr_job, universe, 8, 8);
FIELD(dr_job, count_max, 16, 8);
FIELD(dr_job, count, 24, 8);
FIELD(dr_job, dtype, 32, 4);
FIELD(dr_job, width, 36, 4);
FIELD(dr_job, in, 40, 8);
FIELD(dr_job, in_max, 48, 8);
FIELD(dr_job, in_size, 56, 8);
FIELD(dr_job, out, 64, 8);
FIELD(dr_job, out_capacity, 72, 8);
FIELD(dr_job, out_size, 80, 8);
FIELD(dr_job, tell, 88, 8);
FIELD(dr_job, tell_capacity, 96, 8);
FIELD(dr_job, tell_count, 104, 8);
FIELD(dr_job, shared_key, 112, 8);
FIELD(dr_job, private_key, 120, 8);
FIELD(dr_job, fault, 128, 8);
FIELD(dr_job, base, 136, 8);
FIELD(dr_job, history, 144, 8);

SIZE(dr_size_rule, 48);
FIELD(dr_size_rule, struct_size, 0, 8);
FIELD(dr_size_rule, rate, 8, 8);
FIELD(dr_size_rule, minimum, 16, 4);
FIELD(dr_size_rule, granule, 20, 4);
FIELD(dr_size_rule, bucket, 24, 4);
FIELD(dr_size_rule, row_values, 28, 4);
FIELD(dr_size_rule, logarithmic, 32, 4);
FIELD(dr_size_rule, reserved, 36, 4);
FIELD(dr_size_rule, bucket_bytes, 40, 4);
FIELD(dr_size_rule, beside, 44, 4);

SIZE(dr_need, 56);
FIELD(dr_need, struct_size, 0, 8);
FIELD(dr_need, payload, 8, 8);
FIELD(dr_need, tell, 16, 8);
FIELD(dr_need, encode_scratch, 24, 8);
FIELD(dr_need, decode_scratch, 32, 8);
FIELD(dr_need, rule, 40, 8);
FIELD(dr_need, tell_suffices, 48, 4);
FIELD(dr_need, reserved, 52, 4);

SIZE(dr_kernel, 56);
FIELD(dr_kernel, struct_size, 0, 8);
FIELD(dr_kernel, name, 8, 8);
FIELD(dr_kernel, lanes, 16, 4);
FIELD(dr_kernel, args_size, 20, 4);
FIELD(dr_kernel, shared_size, 24, 4);
FIELD(dr_kernel, grid_phases, 28, 4);
FIELD(dr_kernel, device, 32, 8);
FIELD(dr_kernel, host, 40, 8);
FIELD(dr_kernel, flags, 48, 4);
FIELD(dr_kernel, reserved, 52, 4);

SIZE(dr_sort, 72);
FIELD(dr_sort, struct_size, 0, 8);
FIELD(dr_sort, n, 8, 8);
FIELD(dr_sort, bits, 16, 4);
FIELD(dr_sort, reserved, 20, 4);
FIELD(dr_sort, keys, 24, 8);
FIELD(dr_sort, other_keys, 32, 8);
FIELD(dr_sort, values, 40, 8);
FIELD(dr_sort, other_values, 48, 8);
FIELD(dr_sort, temp, 56, 8);
FIELD(dr_sort, temp_size, 64, 8);

SIZE(dr_exec, 80);
FIELD(dr_exec, struct_size, 0, 8);
FIELD(dr_exec, scratch, 8, 8);
FIELD(dr_exec, scratch_size, 16, 8);
FIELD(dr_exec, stream, 24, 8);
FIELD(dr_exec, workers, 32, 4);
FIELD(dr_exec, reserved, 36, 4);
FIELD(dr_exec, pool, 40, 8);
FIELD(dr_exec, parallel, 48, 8);
FIELD(dr_exec, device, 56, 8);
FIELD(dr_exec, launch, 64, 8);
FIELD(dr_exec, sort, 72, 8);

SIZE(dr_ops, 56);
FIELD(dr_ops, struct_size, 0, 8);
FIELD(dr_ops, resolve, 8, 8);
FIELD(dr_ops, need, 16, 8);
FIELD(dr_ops, cost, 24, 8);
FIELD(dr_ops, encode, 32, 8);
FIELD(dr_ops, decode, 40, 8);
FIELD(dr_ops, launches, 48, 4);

SIZE(dr_codec, 96);
FIELD(dr_codec, struct_size, 0, 8);
FIELD(dr_codec, name, 8, 8);
FIELD(dr_codec, summary, 16, 8);
FIELD(dr_codec, id, 24, 4);
FIELD(dr_codec, role, 28, 4);
FIELD(dr_codec, traits, 32, 4);
FIELD(dr_codec, dtypes, 36, 4);
FIELD(dr_codec, forms, 40, 4);
FIELD(dr_codec, reserved, 44, 4);
FIELD(dr_codec, params, 48, 8);
FIELD(dr_codec, param_count, 56, 8);
FIELD(dr_codec, fields, 64, 8);
FIELD(dr_codec, field_count, 72, 8);
FIELD(dr_codec, cpu, 80, 8);
FIELD(dr_codec, cuda, 88, 8);

SIZE(dr_host, 16);
FIELD(dr_host, struct_size, 0, 8);
FIELD(dr_host, codec_abi, 8, 4);
FIELD(dr_host, reserved, 12, 4);

SIZE(dr_error, 320);
FIELD(dr_error, struct_size, 0, 8);
FIELD(dr_error, code, 8, 4);
FIELD(dr_error, stream, 12, 4);
FIELD(dr_error, tensor, 16, 8);
FIELD(dr_error, where, 24, 8);
FIELD(dr_error, what, 32, 8);
FIELD(dr_error, frame, 40, 8);
FIELD(dr_error, needed, 48, 8);
FIELD(dr_error, message, 56, 256);
FIELD(dr_error, reason, 312, 4);
FIELD(dr_error, reserved, 316, 4);

SIZE(dr_context_options, 40);
FIELD(dr_context_options, struct_size, 0, 8);
FIELD(dr_context_options, allocate, 8, 8);
FIELD(dr_context_options, release, 16, 8);
FIELD(dr_context_options, user, 24, 8);
FIELD(dr_context_options, threads, 32, 4);
FIELD(dr_context_options, reserved, 36, 4);

SIZE(dr_plan_info, 16);
FIELD(dr_plan_info, struct_size, 0, 8);
FIELD(dr_plan_info, flags, 8, 4);
FIELD(dr_plan_info, dtypes, 12, 4);

SIZE(dr_stage_param, 48);
FIELD(dr_stage_param, struct_size, 0, 8);
FIELD(dr_stage_param, name, 8, 8);
FIELD(dr_stage_param, text, 16, 8);
FIELD(dr_stage_param, type, 24, 4);
FIELD(dr_stage_param, is_default, 28, 4);
FIELD(dr_stage_param, number, 32, 8);
FIELD(dr_stage_param, declared, 40, 8);

SIZE(dr_stage, 64);
FIELD(dr_stage, struct_size, 0, 8);
FIELD(dr_stage, role, 8, 8);
FIELD(dr_stage, name, 16, 8);
FIELD(dr_stage, text, 24, 8);
FIELD(dr_stage, position, 32, 4);
FIELD(dr_stage, is_default, 36, 4);
FIELD(dr_stage, codec, 40, 8);
FIELD(dr_stage, params, 48, 8);
FIELD(dr_stage, param_count, 56, 8);

SIZE(dr_stage_word, 48);
FIELD(dr_stage_word, struct_size, 0, 8);
FIELD(dr_stage_word, role, 8, 8);
FIELD(dr_stage_word, name, 16, 8);
FIELD(dr_stage_word, summary, 24, 8);
FIELD(dr_stage_word, params, 32, 8);
FIELD(dr_stage_word, param_count, 40, 8);

SIZE(dr_book_line, 40);
FIELD(dr_book_line, struct_size, 0, 8);
FIELD(dr_book_line, position, 8, 8);
FIELD(dr_book_line, number, 16, 8);
FIELD(dr_book_line, pattern, 24, 8);
FIELD(dr_book_line, plan, 32, 8);

SIZE(dr_preset, 40);
FIELD(dr_preset, struct_size, 0, 8);
FIELD(dr_preset, name, 8, 8);
FIELD(dr_preset, set, 16, 8);
FIELD(dr_preset, plan, 24, 8);
FIELD(dr_preset, note, 32, 8);

SIZE(dr_tensor, 120);
FIELD(dr_tensor, struct_size, 0, 8);
FIELD(dr_tensor, dtype, 8, 4);
FIELD(dr_tensor, index_dtype, 12, 4);
FIELD(dr_tensor, universe, 16, 8);
FIELD(dr_tensor, width, 24, 4);
FIELD(dr_tensor, flags, 28, 4);
FIELD(dr_tensor, values, 32, 8);
FIELD(dr_tensor, indices, 40, 8);
FIELD(dr_tensor, count, 48, 8);
FIELD(dr_tensor, plan, 56, 8);
FIELD(dr_tensor, state, 64, 8);
FIELD(dr_tensor, state_size, 72, 8);
FIELD(dr_tensor, key, 80, 8);
FIELD(dr_tensor, base, 88, 8);
FIELD(dr_tensor, sums, 96, 8);
FIELD(dr_tensor, history, 104, 8);
FIELD(dr_tensor, rows, 112, 8);

SIZE(dr_place, 32);
FIELD(dr_place, struct_size, 0, 8);
FIELD(dr_place, kind, 8, 4);
FIELD(dr_place, device, 12, 4);
FIELD(dr_place, stream, 16, 8);
FIELD(dr_place, flags, 24, 4);
FIELD(dr_place, reserved, 28, 4);

SIZE(dr_trace, 40);
FIELD(dr_trace, struct_size, 0, 8);
FIELD(dr_trace, stage, 8, 8);
FIELD(dr_trace, begin_ns, 16, 8);
FIELD(dr_trace, end_ns, 24, 8);
FIELD(dr_trace, bytes, 32, 8);

SIZE(dr_call, 88);
FIELD(dr_call, struct_size, 0, 8);
FIELD(dr_call, step, 8, 8);
FIELD(dr_call, seed, 16, 8);
FIELD(dr_call, private_seed, 24, 8);
FIELD(dr_call, flags, 32, 4);
FIELD(dr_call, reserved, 36, 4);
FIELD(dr_call, tag, 40, 8);
FIELD(dr_call, segment_rows, 48, 8);
FIELD(dr_call, trace, 56, 8);
FIELD(dr_call, trace_user, 64, 8);
FIELD(dr_call, faults, 72, 8);
FIELD(dr_call, fault_stride, 80, 8);

SIZE(dr_result, 72);
FIELD(dr_result, struct_size, 0, 8);
FIELD(dr_result, size, 8, 8);
FIELD(dr_result, status, 16, 4);
FIELD(dr_result, stream, 20, 4);
FIELD(dr_result, tensor, 24, 8);
FIELD(dr_result, where, 32, 8);
FIELD(dr_result, what, 40, 8);
FIELD(dr_result, frame, 48, 8);
FIELD(dr_result, needed, 56, 8);
FIELD(dr_result, kept, 64, 8);

SIZE(dr_batch_info, 40);
FIELD(dr_batch_info, struct_size, 0, 8);
FIELD(dr_batch_info, bound, 8, 8);
FIELD(dr_batch_info, workspace, 16, 8);
FIELD(dr_batch_info, tensors, 24, 4);
FIELD(dr_batch_info, segments, 28, 4);
FIELD(dr_batch_info, launches, 32, 4);
FIELD(dr_batch_info, reserved, 36, 4);

SIZE(dr_tensor_out, 88);
FIELD(dr_tensor_out, struct_size, 0, 8);
FIELD(dr_tensor_out, dtype, 8, 4);
FIELD(dr_tensor_out, index_dtype, 12, 4);
FIELD(dr_tensor_out, universe, 16, 8);
FIELD(dr_tensor_out, width, 24, 4);
FIELD(dr_tensor_out, flags, 28, 4);
FIELD(dr_tensor_out, values, 32, 8);
FIELD(dr_tensor_out, indices, 40, 8);
FIELD(dr_tensor_out, capacity, 48, 8);
FIELD(dr_tensor_out, count, 56, 8);
FIELD(dr_tensor_out, base, 64, 8);
FIELD(dr_tensor_out, sums, 72, 8);
FIELD(dr_tensor_out, history, 80, 8);

SIZE(dr_decode_options, 72);
FIELD(dr_decode_options, struct_size, 0, 8);
FIELD(dr_decode_options, flags, 8, 4);
FIELD(dr_decode_options, reserved, 12, 4);
FIELD(dr_decode_options, max_elements, 16, 8);
FIELD(dr_decode_options, max_workspace, 24, 8);
FIELD(dr_decode_options, tag, 32, 8);
FIELD(dr_decode_options, first_tensor, 40, 8);
FIELD(dr_decode_options, tensors, 48, 8);
FIELD(dr_decode_options, trace, 56, 8);
FIELD(dr_decode_options, trace_user, 64, 8);

SIZE(dr_bytes, 16);
FIELD(dr_bytes, data, 0, 8);
FIELD(dr_bytes, size, 8, 8);

SIZE(dr_frame_info, 312);
FIELD(dr_frame_info, struct_size, 0, 8);
FIELD(dr_frame_info, version, 8, 4);
FIELD(dr_frame_info, flags, 12, 4);
FIELD(dr_frame_info, status, 16, 4);
FIELD(dr_frame_info, tensors, 20, 4);
FIELD(dr_frame_info, segments, 24, 4);
FIELD(dr_frame_info, plans, 28, 4);
FIELD(dr_frame_info, frame_size, 32, 8);
FIELD(dr_frame_info, header_size, 40, 8);
FIELD(dr_frame_info, tag, 48, 8);
FIELD(dr_frame_info, message, 56, 256);

SIZE(dr_tensor_info, 304);
FIELD(dr_tensor_info, struct_size, 0, 8);
FIELD(dr_tensor_info, universe, 8, 8);
FIELD(dr_tensor_info, width, 16, 4);
FIELD(dr_tensor_info, dtype, 20, 4);
FIELD(dr_tensor_info, count, 24, 8);
FIELD(dr_tensor_info, support, 32, 8);
FIELD(dr_tensor_info, segments, 40, 4);
FIELD(dr_tensor_info, fallback, 44, 4);
FIELD(dr_tensor_info, index_size, 48, 8);
FIELD(dr_tensor_info, value_size, 56, 8);
FIELD(dr_tensor_info, order_size, 64, 8);
FIELD(dr_tensor_info, plan, 72, 224);
FIELD(dr_tensor_info, host_only, 296, 4);
FIELD(dr_tensor_info, reserved, 300, 4);

VALUE(DR_OK, 0);
VALUE(DR_E_ARGUMENT, 1);
VALUE(DR_E_CAPACITY, 2);
VALUE(DR_E_CORRUPT, 3);
VALUE(DR_E_UNSUPPORTED, 4);
VALUE(DR_E_MEMORY, 5);
VALUE(DR_E_DEVICE, 6);
VALUE(DR_E_INTERNAL, 7);
VALUE(DR_E_PEER, 8);
VALUE(DR_E_TIMEOUT, 9);
VALUE(DR_PENDING, 10);

VALUE(DR_F32, 1);
VALUE(DR_F16, 2);
VALUE(DR_BF16, 3);
VALUE(DR_U32, 4);
VALUE(DR_I32, 5);
VALUE(DR_U64, 6);
VALUE(DR_I64, 7);
VALUE(DR_F64, 8);
VALUE(DR_U8, 9);
VALUE(DR_U16, 10);

VALUE(DR_ROLE_INDEX, 1);
VALUE(DR_ROLE_VALUE, 2);
VALUE(DR_ROLE_ORDER, 3);
VALUE(DR_ROLE_BYTES, 4);
VALUE(DR_ROLE_PAIR, 5);
VALUE(DR_ROLE_SPARSIFY, 7);
VALUE(DR_ROLE_FEEDBACK, 8);

VALUE(DR_FORM_LIST, 1);
VALUE(DR_FORM_ALL, 3);

VALUE(DR_EXACT, 1);
VALUE(DR_REPLACES_SUPPORT, 2);
VALUE(DR_REORDERS, 4);
VALUE(DR_CARRIES_ORDER, 8);
VALUE(DR_LINEAR, 16);
VALUE(DR_FIXED_SIZE, 32);
VALUE(DR_NEEDS_FINITE, 64);
VALUE(DR_SHARED_RANDOM, 128);
VALUE(DR_PRIVATE_RANDOM, 256);
VALUE(DR_HOST_ONLY, 512);
VALUE(DR_TOTAL, 1024);
VALUE(DR_PREFIX, 2048);
VALUE(DR_NEEDS_BASE, 4096);
VALUE(DR_NEEDS_HISTORY, 8192);

VALUE(DR_STREAM_NONE, 0);
VALUE(DR_STREAM_INDEX, 1);
VALUE(DR_STREAM_VALUE, 2);
VALUE(DR_STREAM_ORDER, 3);

VALUE(DR_PARAM_INT, 1);
VALUE(DR_PARAM_REAL, 2);
VALUE(DR_PARAM_CHOICE, 3);

VALUE(DR_TENSOR_SUM_DUPLICATES, 1);

VALUE(DR_PLACE_CPU, 0);
VALUE(DR_PLACE_CUDA, 1);
VALUE(DR_PLACE_EMULATED, 2);
VALUE(DR_PLACE_ALLOW_HOST, 1);

VALUE(DR_CALL_TAG, 1);
VALUE(DR_CALL_STATUS_FRAME, 2);
VALUE(DR_CALL_LIST, 4);
VALUE(DR_CALL_FIT, 8);
VALUE(DR_CALL_STEP_AT, 16);

VALUE(DR_FRAME_SHORT, 1);
VALUE(DR_FRAME_TAG, 2);
VALUE(DR_FRAME_LIST, 4);
VALUE(DR_FRAME_STATUS, 8);
VALUE(DR_FRAME_PATCH, 256);

VALUE(DR_FALLBACK_NONE, 0);
VALUE(DR_FALLBACK_RAW_INDEX, 1);
VALUE(DR_FALLBACK_DENSE, 2);

VALUE(DR_DECODE_ADD, 1);
VALUE(DR_DECODE_TAG, 2);
VALUE(DR_DECODE_VOTE, 4);
VALUE(DR_DECODE_APPLY, 8);
VALUE(DR_DECODE_COEFFICIENTS, 16);

VALUE(DR_PLAN_SPARSIFIES, 1);
VALUE(DR_PLAN_FEEDBACK, 2);
VALUE(DR_PLAN_LOSSY_VALUES, 4);
VALUE(DR_PLAN_LOSSY_SUPPORT, 8);
VALUE(DR_PLAN_FIXED_SIZE, 16);
VALUE(DR_PLAN_LINEAR, 32);
VALUE(DR_PLAN_SHARED_RANDOM, 64);
VALUE(DR_PLAN_PRIVATE_RANDOM, 128);
VALUE(DR_PLAN_CHOOSES, 256);
VALUE(DR_PLAN_HOST_ONLY, 512);
VALUE(DR_PLAN_FLAT, 1024);
VALUE(DR_PLAN_TRANSFORMS, 2048);
VALUE(DR_PLAN_RESIDUAL, 4096);
VALUE(DR_PLAN_VOTE, 8192);
VALUE(DR_PLAN_PATCH, 16384);
VALUE(DR_PLAN_COEFFICIENTS, 32768);
VALUE(DR_BOOK_NAME, 1);
VALUE(DR_LINE_USED, 0);
VALUE(DR_LINE_UNMATCHED, 1);
VALUE(DR_LINE_UNREACHED, 2);

VALUE(DR_REASON_NONE, 0);
VALUE(DR_REASON_WRONG_BASE, 1);
VALUE(DR_FEATURE_CUDA, 1);
VALUE(DR_FEATURE_FORMAT, 2);
VALUE(DR_FEATURE_CODEC_ABI, 3);
VALUE(DR_FEATURE_CPU, 4);
VALUE(DR_FEATURE_CALL_FLAGS, 5);
VALUE(DR_FEATURE_DECODE_FLAGS, 6);
VALUE(DR_FEATURE_TENSOR_FLAGS, 7);
VALUE(DR_FEATURE_PLACE_FLAGS, 8);

SIZE(dr_transport, 72);
FIELD(dr_transport, struct_size, 0, 8);
FIELD(dr_transport, user, 8, 8);
FIELD(dr_transport, ranks, 16, 4);
FIELD(dr_transport, rank, 20, 4);
FIELD(dr_transport, send, 24, 8);
FIELD(dr_transport, recv, 32, 8);
FIELD(dr_transport, test, 40, 8);
FIELD(dr_transport, cancel, 48, 8);
FIELD(dr_transport, now, 56, 8);
FIELD(dr_transport, spend, 64, 8);

SIZE(dr_exchange_options, 72);
FIELD(dr_exchange_options, struct_size, 0, 8);
FIELD(dr_exchange_options, flags, 8, 4);
FIELD(dr_exchange_options, reserved, 12, 4);
FIELD(dr_exchange_options, timeout_ns, 16, 8);
FIELD(dr_exchange_options, dense_below, 24, 8);
FIELD(dr_exchange_options, frame_size, 32, 8);
FIELD(dr_exchange_options, frame_size_user, 40, 8);
FIELD(dr_exchange_options, advance_ns, 48, 8);
FIELD(dr_exchange_options, place, 56, 8);
FIELD(dr_exchange_options, nccl, 64, 8);

SIZE(dr_exchange_info, 128);
FIELD(dr_exchange_info, struct_size, 0, 8);
FIELD(dr_exchange_info, ranks, 8, 4);
FIELD(dr_exchange_info, rank, 12, 4);
FIELD(dr_exchange_info, ranges, 16, 4);
FIELD(dr_exchange_info, steps, 20, 4);
FIELD(dr_exchange_info, memory, 24, 8);
FIELD(dr_exchange_info, sent_max, 32, 8);
FIELD(dr_exchange_info, calls, 40, 8);
FIELD(dr_exchange_info, failures, 48, 8);
FIELD(dr_exchange_info, sent, 56, 8);
FIELD(dr_exchange_info, received, 64, 8);
FIELD(dr_exchange_info, messages, 72, 8);
FIELD(dr_exchange_info, kept, 80, 8);
FIELD(dr_exchange_info, total_ns, 88, 8);
FIELD(dr_exchange_info, encode_ns, 96, 8);
FIELD(dr_exchange_info, wait_ns, 104, 8);
FIELD(dr_exchange_info, merge_ns, 112, 8);
FIELD(dr_exchange_info, waits, 120, 4);
FIELD(dr_exchange_info, reserved, 124, 4);

SIZE(dr_transform_options, 32);
FIELD(dr_transform_options, struct_size, 0, 8);
FIELD(dr_transform_options, seed, 8, 8);
FIELD(dr_transform_options, dense_below, 16, 8);
FIELD(dr_transform_options, flags, 24, 4);
FIELD(dr_transform_options, reserved, 28, 4);

SIZE(dr_transform_info, 80);
FIELD(dr_transform_info, struct_size, 0, 8);
FIELD(dr_transform_info, rank, 8, 4);
FIELD(dr_transform_info, busy, 12, 4);
FIELD(dr_transform_info, tensors, 16, 8);
FIELD(dr_transform_info, matrices, 24, 8);
FIELD(dr_transform_info, elements, 32, 8);
FIELD(dr_transform_info, first, 40, 8);
FIELD(dr_transform_info, second, 48, 8);
FIELD(dr_transform_info, rounds, 56, 8);
FIELD(dr_transform_info, memory, 64, 8);
FIELD(dr_transform_info, state_size, 72, 8);

SIZE(dr_loopback_options, 72);
FIELD(dr_loopback_options, struct_size, 0, 8);
FIELD(dr_loopback_options, ranks, 8, 4);
FIELD(dr_loopback_options, flags, 12, 4);
FIELD(dr_loopback_options, seed, 16, 8);
FIELD(dr_loopback_options, latency_ns, 24, 8);
FIELD(dr_loopback_options, bytes_per_second, 32, 8);
FIELD(dr_loopback_options, cost, 40, 8);
FIELD(dr_loopback_options, cost_user, 48, 8);
FIELD(dr_loopback_options, takes, 56, 8);
FIELD(dr_loopback_options, takes_user, 64, 8);

SIZE(dr_control_info, 112);
FIELD(dr_control_info, struct_size, 0, 8);
FIELD(dr_control_info, rungs, 8, 4);
FIELD(dr_control_info, rung, 12, 4);
FIELD(dr_control_info, from, 16, 4);
FIELD(dr_control_info, reason, 20, 4);
FIELD(dr_control_info, step, 24, 8);
FIELD(dr_control_info, next_step, 32, 8);
FIELD(dr_control_info, decisions, 40, 8);
FIELD(dr_control_info, changes, 48, 8);
FIELD(dr_control_info, transfer_ns, 56, 8);
FIELD(dr_control_info, bytes, 64, 8);
FIELD(dr_control_info, empty_ns, 72, 8);
FIELD(dr_control_info, median_ns, 80, 8);
FIELD(dr_control_info, budget, 88, 8);
FIELD(dr_control_info, base_ns, 96, 8);
FIELD(dr_control_info, per_byte_ns, 104, 8);

VALUE(DR_EXCHANGE_SUM, 1);
VALUE(DR_EXCHANGE_TRACE, 2);
VALUE(DR_EXCHANGE_DRY, 4);
VALUE(DR_TRANSFORM_KEEP, 1);
VALUE(DR_TRANSFORM_MARKS, 1);
VALUE(DR_LOOPBACK_ALIKE, 1);
VALUE(DR_CONTROL_WORDS, 4);
VALUE(DR_CONTROL_START, 0);
VALUE(DR_CONTROL_NOTHING, 1);
VALUE(DR_CONTROL_IN_BAND, 2);
VALUE(DR_CONTROL_SLOW, 3);
VALUE(DR_CONTROL_FAST, 4);
VALUE(DR_CONTROL_WAITS, 5);
VALUE(DR_CONTROL_NO_ROOM, 6);
VALUE(DR_CONTROL_CLOSED, 7);
VALUE(DR_CONTROL_DENSEST, 8);
VALUE(DR_CONTROL_SMALLEST, 9);
VALUE(DR_CONTROL_SHARE, 10);
VALUE(DR_CONTROL_NO_LESS, 11);
VALUE(DR_CONTROL_PASSED, 12);
VALUE(DR_CONTROL_STEPS, 13);
VALUE(DR_CONTROL_LAST, 14);
VALUE(DR_RESIDUAL_OWN, 0);
VALUE(DR_RESIDUAL_SUM, 1);
VALUE(DR_RESIDUAL_MOMENTUM, 2);
VALUE(DR_RESIDUAL_WARM_START, 3);
VALUE(DR_STEP_ENCODE, 1);
VALUE(DR_STEP_SEND, 2);
VALUE(DR_STEP_RECV, 3);
VALUE(DR_STEP_WAIT, 4);
VALUE(DR_STEP_SUM, 5);
VALUE(DR_STEP_ADD, 6);
VALUE(DR_STEP_ENCODE_SUM, 7);
VALUE(DR_STEP_AGREE, 8);
VALUE(DR_STEP_MERGE, 9);
VALUE(DR_STEP_DRAIN, 10);
VALUE(DR_STEP_DECODE, 11);
VALUE(DR_STEP_REDUCE, 12);
VALUE(DR_STEP_GATHER, 13);

VALUE(DR_FIELDS_MAX, 8);
VALUE(DR_CODEC_ABI_VERSION, 2);
VALUE(DR_FORMAT_VERSION, 1);
VALUE(DR_ABI_VERSION, 1);
VALUE(DR_DTYPE_BIT(DR_BF16), 8);

static_assert(DR_DTYPE_BIT(DR_F32) == 2);

SIZE(dr_named_tensor, 56);
FIELD(dr_named_tensor, struct_size, 0, 8);
FIELD(dr_named_tensor, name, 8, 8);
FIELD(dr_named_tensor, dtype, 16, 4);
FIELD(dr_named_tensor, flags, 20, 4);
FIELD(dr_named_tensor, rows, 24, 8);
FIELD(dr_named_tensor, elements, 32, 8);
FIELD(dr_named_tensor, plan, 40, 8);
FIELD(dr_named_tensor, base, 48, 8);

SIZE(dr_sender_options, 56);
FIELD(dr_sender_options, struct_size, 0, 8);
FIELD(dr_sender_options, ranks, 8, 4);
FIELD(dr_sender_options, rank, 12, 4);
FIELD(dr_sender_options, flags, 16, 4);
FIELD(dr_sender_options, flat, 20, 4);
FIELD(dr_sender_options, dense_below, 24, 8);
FIELD(dr_sender_options, unit_bytes, 32, 8);
FIELD(dr_sender_options, numbers, 40, 8);
FIELD(dr_sender_options, seed, 48, 8);

SIZE(dr_sender_info, 80);
FIELD(dr_sender_info, struct_size, 0, 8);
FIELD(dr_sender_info, ranks, 8, 4);
FIELD(dr_sender_info, rank, 12, 4);
FIELD(dr_sender_info, tensors, 16, 8);
FIELD(dr_sender_info, units, 24, 8);
FIELD(dr_sender_info, clips, 32, 4);
FIELD(dr_sender_info, reserved, 36, 4);
FIELD(dr_sender_info, states, 40, 8);
FIELD(dr_sender_info, memory, 48, 8);
FIELD(dr_sender_info, failures, 56, 8);
FIELD(dr_sender_info, failed, 64, 8);
FIELD(dr_sender_info, waits, 72, 8);

SIZE(dr_unit_info, 88);
FIELD(dr_unit_info, struct_size, 0, 8);
FIELD(dr_unit_info, kind, 8, 4);
FIELD(dr_unit_info, frames, 12, 4);
FIELD(dr_unit_info, tensors, 16, 8);
FIELD(dr_unit_info, count, 24, 8);
FIELD(dr_unit_info, bytes, 32, 8);
FIELD(dr_unit_info, bound, 40, 8);
FIELD(dr_unit_info, slot, 48, 8);
FIELD(dr_unit_info, slots, 56, 8);
FIELD(dr_unit_info, sum_bound, 64, 8);
FIELD(dr_unit_info, sum_slot, 72, 8);
FIELD(dr_unit_info, numbers, 80, 4);
FIELD(dr_unit_info, reserved, 84, 4);

SIZE(dr_sent_tensor, 56);
FIELD(dr_sent_tensor, struct_size, 0, 8);
FIELD(dr_sent_tensor, unit, 8, 4);
FIELD(dr_sent_tensor, position, 12, 4);
FIELD(dr_sent_tensor, plan, 16, 8);
FIELD(dr_sent_tensor, key, 24, 8);
FIELD(dr_sent_tensor, state, 32, 8);
FIELD(dr_sent_tensor, sum_state, 40, 8);
FIELD(dr_sent_tensor, warm_state, 48, 8);

SIZE(dr_sent_rows, 40);
FIELD(dr_sent_rows, struct_size, 0, 8);
FIELD(dr_sent_rows, count, 8, 8);
FIELD(dr_sent_rows, indices, 16, 8);
FIELD(dr_sent_rows, values, 24, 8);
FIELD(dr_sent_rows, index_dtype, 32, 4);
FIELD(dr_sent_rows, reserved, 36, 4);

SIZE(dr_sent, 48);
FIELD(dr_sent, struct_size, 0, 8);
FIELD(dr_sent, size, 8, 8);
FIELD(dr_sent, frames, 16, 8);
FIELD(dr_sent, kept, 24, 8);
FIELD(dr_sent, needed, 32, 8);
FIELD(dr_sent, fault, 40, 4);
FIELD(dr_sent, skips, 44, 4);

VALUE(DR_NAMED_ROWS, 1);
VALUE(DR_SENDER_SUM, 1);
VALUE(DR_SENDER_F32, 2);
VALUE(DR_SENDER_CALLER_STATES, 4);
VALUE(DR_SENDER_SKIP, 8);
VALUE(DR_SENDER_SCATTER, 16);
VALUE(DR_SENDER_DRY, 32);
VALUE(DR_SENDER_HALVES, 64);
VALUE(DR_SENDER_ZEROS, 128);
VALUE(DR_FLAT_BY_PLAN, 0);
VALUE(DR_FLAT, 1);
VALUE(DR_NOT_FLAT, 2);
VALUE(DR_UNIT_FRAMES, 0);
VALUE(DR_UNIT_OWNER, 1);
VALUE(DR_UNIT_SCATTER, 2);
VALUE(DR_UNIT_FACTORS, 3);
VALUE(DR_UNIT_ROWS, 4);
VALUE(DR_UNIT_HALVES, 5);
VALUE(DR_STATE_OWN, 0);
VALUE(DR_STATE_SUM, 1);
VALUE(DR_STATE_WARM, 2);
VALUE(DR_REASON_OUT_OF_STEP, 2);
