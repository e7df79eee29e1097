/* DeepReduce: sparse gradient compression behind a C ABI. C11 and C++20.
 *
 * A dense gradient is sparsified (or arrives sparse), split into indices and values, each stream is coded,
 * and the streams of a whole batch of tensors go into one frame: bytes that any rank can decode. What is
 * done is said by a plan, one line of text:
 *
 *   sparsify=topr(ratio=0.01) index=golomb value=qsgd(levels=127)
 *
 * Rules that hold everywhere:
 * - Memory is borrowed for the call, never kept and never freed. Nothing is written past its end.
 * - A function that can fail returns dr_status; the sentence is in the context (dr_last_error) or in the
 *   dr_error that was passed. Bytes off the wire may be hostile: they give an error, never a crash.
 * - A struct that may grow begins with struct_size = sizeof of the caller's version of it; arrays of such
 *   structs pass the stride between them. A field that the caller's version lacks has its zero value.
 * - A context serves one thread at a time. Plans and batches are immutable and serve any number.
 * - The same input, plan, seeds and step give the same frame, on every machine and for any thread count
 *   (but for Deflate, whose bytes depend on the version of zlib).
 */
#ifndef DEEPREDUCE_H
#define DEEPREDUCE_H

#include "codec.h"
#include "version.h"

#if defined(DEEPREDUCE_BUILD)
#define DR_API __attribute__((visibility("default")))
#else
#define DR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dr_context dr_context;
typedef struct dr_plan dr_plan;
typedef struct dr_batch dr_batch;

/* ---- Versions and errors ------------------------------------------------------------------------------ */

DR_API const char *dr_version(void);          /* "0.1.0" */
DR_API uint32_t dr_abi_version(void);         /* DR_ABI_VERSION of the library that was loaded */
DR_API const char *dr_status_name(dr_status); /* "CORRUPT"; "?" for a code it does not know */

#define DR_NO_TENSOR UINT64_MAX

/* Set struct_size, or zero the struct. `message` is one sentence: what, where, which value. */
typedef struct dr_error {
  size_t struct_size;
  dr_status code;
  uint32_t stream; /* DR_STREAM_* */
  uint64_t tensor; /* position in the batch, or DR_NO_TENSOR */
  uint64_t where;  /* element or byte */
  char message[256];
} dr_error;

/* ---- Context ------------------------------------------------------------------------------------------ */

typedef struct dr_context_options {
  size_t struct_size;
  /* Host memory: both or neither. Alignment is a power of two up to 64. May return NULL. */
  void *(*allocate)(void *user, size_t size, size_t alignment);
  void (*release)(void *user, void *memory, size_t size);
  void *user;
  uint32_t threads; /* 0 or 1: serial, no thread is started. At most 256 */
  uint32_t reserved;
} dr_context_options;

/* options: NULL for the defaults. ARGUMENT, MEMORY. */
DR_API dr_status dr_context_create(const dr_context_options *options, dr_context **context);
DR_API void dr_context_destroy(dr_context *context); /* NULL is fine */
/* What the last failing call on this context said; code DR_OK if none failed. Never NULL. */
DR_API const dr_error *dr_last_error(const dr_context *context);

/* ---- Plans -------------------------------------------------------------------------------------------- */

/* Parses and checks a plan. error may be NULL. ARGUMENT (syntax, unknown codec or parameter, a value out of
 * range, stages that do not fit together), MEMORY. */
DR_API dr_status dr_plan_parse(const char *text, dr_plan **plan, dr_error *error);
/* Canonical text: index and value and whatever else is not the default, in a fixed order; parameters that
 * differ from their default; shortest numbers.
 * Two plans do the same if and only if their texts are equal. Lives as long as the plan. */
DR_API const char *dr_plan_text(const dr_plan *plan);
DR_API void dr_plan_destroy(dr_plan *plan); /* NULL is fine */

/* ---- Codecs ------------------------------------------------------------------------------------------- */

/* Codecs, sparsifiers and feedback in order of registration: built-ins first. The list only grows. */
DR_API size_t dr_codec_count(void);
DR_API const dr_codec *dr_codec_at(size_t position); /* NULL past the end */
/* Adds a codec for the rest of the process. ARGUMENT: malformed, or its name or id is taken. */
DR_API dr_status dr_codec_register(const dr_codec *codec, dr_error *error);
/* Loads a plug-in (a shared object that exports DR_PLUGIN_SYMBOL) and registers its codecs, all or none.
 * UNSUPPORTED: cannot be loaded, or speaks another version. Loading the same codecs twice is fine. */
DR_API dr_status dr_plugin_load(const char *path, dr_error *error);

/* ---- Tensors ------------------------------------------------------------------------------------------ */

enum {
  DR_TENSOR_SUM_DUPLICATES = 1u << 0 /* sparse: add up the values of equal indices, in input order, in
                                        f32; otherwise a duplicate is refused */
};

/* A gradient, borrowed. Dense: values[universe * width], indices NULL, index_dtype 0. Sparse: `count`
 * indices in any order, each below universe, and values[count * width]. Row-major. Aligned to its dtype. */
typedef struct dr_tensor {
  size_t struct_size;
  dr_dtype dtype;       /* DR_F32, DR_F16, DR_BF16 */
  dr_dtype index_dtype; /* DR_U32, DR_I32, DR_U64, DR_I64; 0: dense */
  uint64_t universe;    /* rows of the dense tensor */
  uint32_t width;       /* values in a row; 0 means 1 */
  uint32_t flags;
  const void *values;
  const void *indices;
  uint64_t count;
  const dr_plan *plan; /* its own, or NULL for the call's */
  void *state;         /* for plans with feedback; dr_state_size bytes, 8-byte aligned; or NULL */
  uint64_t state_size;
  uint64_t key; /* names the tensor in random numbers; 0: its position in the batch */
} dr_tensor;

/* Where memory is: of tensors, states, frames, workspaces and results. NULL means the CPU. */
enum {
  DR_PLACE_CPU = 0,
  DR_PLACE_CUDA = 1,
  DR_PLACE_EMULATED =
      2 /* host memory, worked on by CUDA's kernels, block by block on the CPU: for tests without a GPU, slow */
};
enum {
  DR_PLACE_ALLOW_HOST = 1u << 0 /* a plan with a codec that has no CUDA operations (Deflate) is encoded and decoded on
                                   the CPU, with copies and a wait; otherwise it is refused */
};
typedef struct dr_place {
  size_t struct_size;
  uint32_t kind;
  int32_t device; /* CUDA's number; EMULATED: the seed of the order in which lanes and blocks run, 0: ascending */
  void *stream;   /* cudaStream_t */
  uint32_t flags; /* DR_PLACE_* */
  uint32_t reserved;
} dr_place;

/* ---- Encode ------------------------------------------------------------------------------------------- */

typedef struct dr_trace {
  size_t struct_size;
  const char *stage;         /* "sparsify" "index" "regather" "value" "order" "feedback" "container" "decode" "merge" */
  uint64_t begin_ns, end_ns; /* a monotonic clock */
  uint64_t bytes;            /* that the stage made */
} dr_trace;

enum {
  DR_CALL_TAG = 1u << 0,          /* put `tag` in the frame */
  DR_CALL_STATUS_FRAME = 1u << 1, /* if encode fails, write a frame that says why: it decodes to DR_E_PEER */
  DR_CALL_LIST = 1u << 2          /* mark the frame as a list, for wrappers that give structure back */
};

/* What changes from step to step. NULL means all zero. */
typedef struct dr_call {
  size_t struct_size;
  uint64_t step;
  uint64_t seed;         /* the same on every rank */
  uint64_t private_seed; /* different on every rank: the rank will do */
  uint32_t flags;
  float learning_rate;   /* for feedback that needs it; none does yet */
  uint64_t tag;          /* step and name hash, say: returned by dr_inspect */
  uint64_t segment_rows; /* cut tensors into segments of so many rows, each coded for itself (a Bloom filter each,
                            say); 0: 2^32 - 1, the most there is. dr_bound does not know it; dr_batch_describe does */
  void (*trace)(void *user, const dr_trace *);
  void *trace_user;
} dr_call;

/* What came of an encode; lives where the data lives. */
typedef struct dr_result {
  size_t struct_size;
  uint64_t size; /* bytes of the frame; of a status frame if there is one; else 0 */
  dr_status status;
  uint32_t reserved;
  uint64_t tensor; /* that failed */
  dr_fault fault;
} dr_result;

/* Bytes that suffice for any frame of such tensors (values, indices and state are not read; a sparse
 * tensor's count is a bound), a status frame included. ARGUMENT, UNSUPPORTED, MEMORY. */
DR_API dr_status dr_bound(dr_context *context, const dr_plan *plan, const dr_tensor *tensors, size_t stride, size_t n,
                          size_t *bytes);

/* Encodes n tensors into one frame. plan may be NULL if every tensor has its own; call, place and result
 * may be NULL. If it fails, states are as they were and the frame is untouched (or a status frame). A device adds the gradient
 * to its state while it reads it: there, if the data are at fault, the state keeps that sum, but 0 where it is not finite.
 * ARGUMENT (a NaN where the codec is lossy, an index twice or out of range, …), CAPACITY (the frame needs
 * more than `capacity`; with dr_bound bytes, or dr_batch_info's bound if there is
 * segment_rows, it never does), UNSUPPORTED, MEMORY. */
DR_API dr_status dr_encode(dr_context *context, const dr_plan *plan, const dr_call *call, const dr_place *place,
                           const dr_tensor *tensors, size_t stride, size_t n, void *frame, size_t capacity,
                           dr_result *result);

/* ---- Prepared encode: bounds, layout and workspace worked out once ------------------------------------ */

typedef struct dr_batch_info {
  size_t struct_size;
  uint64_t bound;     /* bytes of frame */
  uint64_t workspace; /* bytes, 64-byte aligned */
  uint32_t tensors, rows;
  uint32_t launches; /* on a GPU, at most; 0 on the CPU */
  uint32_t reserved;
} dr_batch_info;

/* Prepares for tensors of these shapes, types, plans and place. segment_rows as in dr_call. */
DR_API dr_status dr_batch_create(dr_context *context, const dr_plan *plan, const dr_place *place,
                                 const dr_tensor *tensors, size_t stride, size_t n, uint64_t segment_rows,
                                 dr_batch **batch);
DR_API void dr_batch_destroy(dr_batch *batch);
DR_API dr_status dr_batch_describe(const dr_batch *batch, dr_batch_info *info);
/* As dr_encode, without allocating: the workspace is the caller's, one for each call under way. The shapes
 * must be the prepared ones (a sparse count may be smaller). ARGUMENT if they are not. */
DR_API dr_status dr_batch_encode(dr_context *context, const dr_batch *batch, const dr_call *call, const dr_place *place,
                                 const dr_tensor *tensors, size_t stride, size_t n, void *workspace,
                                 size_t workspace_size, void *frame, size_t capacity, dr_result *result);

/* ---- Outputs --------------------------------------------------------------------------------------- */

/* Room for one tensor. Dense: values[universe * width], all of it is written. Sparse: indices[capacity]
 * ascending and values[capacity * width]; `count` says how many. universe and width must be the frame's. */
typedef struct dr_tensor_out {
  size_t struct_size;
  dr_dtype dtype;       /* the frame's, or DR_F32 */
  dr_dtype index_dtype; /* 0: dense */
  uint64_t universe;
  uint32_t width; /* 0 means 1 */
  uint32_t flags; /* 0 */
  void *values;
  void *indices;
  uint64_t capacity; /* sparse: rows there is room for */
  uint64_t count;    /* set: rows of the support */
} dr_tensor_out;

/* What decode and merge may take. Let B be the bytes of the frames and, once for each frame, of what is written to the
 * outputs: universe * width values of a dense one, the pairs of the support of a sparse one. Whatever a frame says, without limits
 *   memory is at most 256 * B and 1 MiB for each thread of the context (headers and workspace; a context keeps its own),
 *   time is bounded by memory and, where an index codec finds its support among all of the universe (bloom, seeded),
 *   by 512 hashes for each element of it: dense outputs have those elements; for sparse ones, which do not, such a codec goes
 *   through at most 4096 * B + 2^20 of them.
 * What would take more is CAPACITY before any of it is allocated. A limit that is set takes the place of the one without:
 * UINT64_MAX is none. */
typedef struct dr_limits {
  size_t struct_size;
  uint64_t max_elements;  /* universe * width, summed over a frame; 0: any number, but as above for sparse outputs */
  uint64_t max_workspace; /* bytes, those of headers included; 0: as above */
} dr_limits;

typedef struct dr_bytes {
  const void *data;
  size_t size;
} dr_bytes;

enum { DR_MERGE_ADD = 1u << 0 /* add to what the outputs hold; otherwise they start from zero */ };

typedef struct dr_merge_options {
  size_t struct_size;
  uint32_t flags, reserved;
  dr_limits limits;
} dr_merge_options;

/* ---- Prepared decode, on a GPU ---------------------------------------------------------------------------- */

/* Frames of a batch that was prepared for a device, decoded there without a wait: the sender's batch must have been prepared from the same
 * plans, shapes and types (a sparse count: as large a bound). frames[i].size: bytes that are readable from frames[i].data, which is aligned to
 * 16; a frame tells its own end. Outputs are dense and shaped as the batch's tensors (the frame's type, or f32). Whatever is wrong with a
 * frame is in `result`, in device memory (reserved: which frame; tensor, fault as in dr_encode), and then the outputs
 * are as they were. ARGUMENT, UNSUPPORTED (a batch for the CPU: dr_decode needs no preparation there), DEVICE. */
DR_API dr_status dr_batch_decode(dr_context *context, const dr_batch *batch, const dr_place *place, const void *frame,
                                 size_t size, dr_tensor_out *outs, size_t stride, size_t n, void *workspace,
                                 size_t workspace_size, dr_result *result);
/* As dr_merge: weights are host memory, read during the call. */
DR_API dr_status dr_batch_merge(dr_context *context, const dr_batch *batch, const dr_place *place,
                                const dr_bytes *frames, const float *weights, size_t k, const dr_merge_options *options,
                                dr_tensor_out *outs, size_t stride, size_t n, void *workspace, size_t workspace_size,
                                dr_result *result);
/* Workspace, in device memory aligned to 64 bytes, for k frames at a time. */
DR_API dr_status dr_batch_merge_workspace(const dr_batch *batch, size_t k, size_t *bytes);

/* ---- State of feedback: the caller's memory ----------------------------------------------------------- */

/* Bytes of state that `plan` wants for such a tensor; 0 if it keeps none. Zeroed memory is a fresh state.
 * The bytes may be saved, and loaded on any machine; another plan with the same feedback may go on with them. */
DR_API dr_status dr_state_size(const dr_plan *plan, const dr_tensor *tensor, size_t *bytes, dr_error *error);
/* The residual inside a state: f32[universe * width]. To take back a frame that never arrived, merge it
 * into this with DR_MERGE_ADD. ARGUMENT if the state is fresh or not one. */
DR_API dr_status dr_state_residual(void *state, size_t state_size, float **residual, uint64_t *elements);

/* ---- Inspect ------------------------------------------------------------------------------------------ */

enum { DR_FRAME_SHORT = 1u << 0, DR_FRAME_TAG = 1u << 1, DR_FRAME_LIST = 1u << 2, DR_FRAME_STATUS = 1u << 3 };

typedef struct dr_frame_info {
  size_t struct_size;
  uint32_t version, flags; /* DR_FRAME_* */
  dr_status status;        /* of a status frame: why the peer could not encode */
  uint32_t tensors, rows, plans;
  uint64_t frame_size, header_size, tag;
  char message[256]; /* of a status frame */
} dr_frame_info;

enum { DR_FALLBACK_NONE = 0, DR_FALLBACK_RAW_INDEX = 1, DR_FALLBACK_DENSE = 2 };

typedef struct dr_tensor_info {
  size_t struct_size;
  uint64_t universe;
  uint32_t width;
  dr_dtype dtype;
  uint64_t count;   /* rows that went in (r) */
  uint64_t support; /* rows that decode gives */
  uint32_t segments;
  uint32_t fallback;                           /* the largest DR_FALLBACK_* of its segments */
  uint64_t index_size, value_size, order_size; /* bytes */
  char plan[224];                              /* stages with their wire fields, cut off if longer */
  uint32_t host_only; /* 1: some codec of it has no CUDA path, or none for its fields: decoded on the CPU */
  uint32_t reserved;
} dr_tensor_info;

/* Reads headers and verifies every check; decodes nothing. A frame may lie at any address. infos may be NULL; at most `capacity` are
 * written. size may exceed the frame. CORRUPT, UNSUPPORTED (a codec that is not loaded). A status frame
 * is no error here. */
DR_API dr_status dr_inspect(const void *frame, size_t size, dr_frame_info *info, dr_tensor_info *infos, size_t stride,
                            size_t capacity, dr_error *error);

/* ---- Decode and merge --------------------------------------------------------------------------------- */

/* Decodes a frame of n tensors. If it fails, what the outputs hold is unspecified but for dr_merge.
 * ARGUMENT (an output does not fit the frame), CAPACITY, CORRUPT, UNSUPPORTED, MEMORY, PEER. */
DR_API dr_status dr_decode(dr_context *context, const dr_place *place, const void *frame, size_t size,
                           const dr_limits *limits, dr_tensor_out *outs, size_t stride, size_t n);

/* Sum of k frames, weights[i] * frame i, into dense outputs, added in the order of the frames, in f32 and
 * rounded to the output's type after each. weights NULL: all 1. Outputs are untouched unless every frame
 * is sound; the error then names the frame. Errors as for dr_decode. */
DR_API dr_status dr_merge(dr_context *context, const dr_place *place, const dr_bytes *frames, const float *weights,
                          size_t k, const dr_merge_options *options, dr_tensor_out *outs, size_t stride, size_t n);

#ifdef __cplusplus
}
#endif
#endif
