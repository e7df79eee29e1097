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
 * - A struct begins with struct_size, which the caller sets to sizeof, of outputs too; arrays of structs pass
 *   the stride between them. A size of 0 is refused. Fields that the caller's version lacks are zero; fields
 *   that the library does not know must be zero, or the call is UNSUPPORTED; `reserved` and unknown flags
 *   likewise (VERSIONING.md). Only dr_bytes has no size: it never grows.
 * - A context serves one thread at a time. Plans and batches are immutable and serve any number.
 * - The same input, plan, seeds and step give the same frame, on every machine and for any thread count
 *   (but for Deflate and Zstandard, whose bytes depend on the versions of zlib and libzstd).
 * - A context with threads is of no use in a forked child: calls on it there are ARGUMENT, and destroying it is fine.
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

DR_API const char *dr_version(void);          /* "0.2.0" */
DR_API uint32_t dr_abi_version(void);         /* DR_ABI_VERSION of the library that was loaded */
DR_API const char *dr_status_name(dr_status); /* "CORRUPT"; "?" for a code it does not know */

/* What the library that was loaded can do. 0 for what it has not, or does not know. */
enum {
  DR_FEATURE_CUDA = 1,         /* 1: CUDA is compiled in (a device may still be missing) */
  DR_FEATURE_FORMAT = 2,       /* the newest version of frames that it reads and writes */
  DR_FEATURE_CODEC_ABI = 3,    /* what plug-ins must speak */
  DR_FEATURE_CPU = 4,          /* instructions in use: 1 scalar, 2 AVX2, 3 AVX-512 */
  DR_FEATURE_CALL_FLAGS = 5,   /* DR_CALL_* that it takes */
  DR_FEATURE_DECODE_FLAGS = 6, /* DR_DECODE_* */
  DR_FEATURE_TENSOR_FLAGS = 7, /* DR_TENSOR_* */
  DR_FEATURE_PLACE_FLAGS = 8   /* DR_PLACE_ALLOW_HOST and the like */
};
DR_API uint64_t dr_feature(uint32_t feature);

#define DR_NO_TENSOR UINT64_MAX
#define DR_NO_FRAME UINT64_MAX

/* `message` is one sentence: what, where, which value. If struct_size is not set, nothing is written. */
typedef struct dr_error {
  size_t struct_size;
  dr_status code;
  uint32_t stream; /* DR_STREAM_* */
  uint64_t tensor; /* position in the batch, or DR_NO_TENSOR */
  uint64_t where;  /* element or byte */
  uint64_t what;   /* the offending value, where there is one */
  uint64_t frame;  /* position among the frames of a merge, or DR_NO_FRAME */
  uint64_t needed; /* CAPACITY: the bytes, rows or elements that would do; 0: not known */
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

/* options: NULL for the defaults. error may be NULL. ARGUMENT, MEMORY (no thread can be started, either). */
DR_API dr_status dr_context_create(const dr_context_options *options, dr_context **context, dr_error *error);
DR_API void dr_context_destroy(dr_context *context); /* NULL is fine */
/* Gives back the memory that calls have left for the next: workspace, prepared batches, device memory. */
DR_API dr_status dr_context_trim(dr_context *context);
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

/* What a plan does, so that nobody parses its text. Of auto: what any of its choices may do. LINEAR holds for dense tensors
 * and equal seeds and steps: then every rank sends the same rows, and their values as they are. */
enum {
  DR_PLAN_SPARSIFIES = 1u << 0,     /* it drops values, more than zeros */
  DR_PLAN_FEEDBACK = 1u << 1,       /* it keeps a state (dr_state_size) */
  DR_PLAN_LOSSY_VALUES = 1u << 2,   /* what is kept is not decoded bit for bit */
  DR_PLAN_LOSSY_SUPPORT = 1u << 3,  /* decode gives another support than the sparsifier kept: more rows, or others */
  DR_PLAN_FIXED_SIZE = 1u << 4,     /* frames of equal shapes and counts (of each segment) have equal sizes */
  DR_PLAN_LINEAR = 1u << 5,         /* payloads may be added up (all-reduce) */
  DR_PLAN_SHARED_RANDOM = 1u << 6,  /* it may draw: the same on every rank */
  DR_PLAN_PRIVATE_RANDOM = 1u << 7, /* it may draw: private_seed must differ between ranks */
  DR_PLAN_CHOOSES = 1u << 8,        /* auto: the codecs depend on the data */
  DR_PLAN_HOST_ONLY = 1u << 9,      /* some stage has no CUDA path at all */
  DR_PLAN_FLAT = 1u << 10           /* bucket=flat: the batch is one tensor in the frame */
};
typedef struct dr_plan_info {
  size_t struct_size;
  uint32_t flags;  /* DR_PLAN_* */
  uint32_t dtypes; /* DR_DTYPE_BIT set of tensors that it takes */
} dr_plan_info;
DR_API dr_status dr_plan_describe(const dr_plan *plan, dr_plan_info *info, dr_error *error);

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
  void *state;         /* for plans with feedback, and only for those: dr_state_size bytes, 8-byte aligned */
  uint64_t state_size; /* 0: no state */
  uint64_t key;        /* names the tensor in random numbers; 0: its position in the batch */
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

/* A stage that has ended. Of what the CPU does, so not of kernels. */
typedef struct dr_trace {
  size_t struct_size;
  const char *stage;         /* encode: "sparsify" "choose" "index" "regather" "value" "order" "container" "feedback";
                                decode: "header" "decode" "deliver"; merge: "header" "decode" "merge" */
  uint64_t begin_ns, end_ns; /* a monotonic clock */
  uint64_t bytes;            /* that the stage made; "header": of the frames that it read */
} dr_trace;

/* FIT: if the frame is larger than `capacity`, tensors (or segments of them) are sent empty until it fits: the smallest that
 * will do or, as long as none does, the largest. All of their gradient stays in feedback. Every plan of the call must have
 * it, or it is ARGUMENT; CAPACITY only if a frame of empty tensors does not fit; UNSUPPORTED on a GPU. */
enum {
  DR_CALL_TAG = 1u << 0,          /* put `tag` in the frame */
  DR_CALL_STATUS_FRAME = 1u << 1, /* if encode fails, write a frame that says why: it decodes to DR_E_PEER */
  DR_CALL_LIST = 1u << 2,         /* mark the frame as a list, for wrappers that give structure back */
  DR_CALL_FIT = 1u << 3           /* send less, rather than fail for want of room */
};

/* What changes from step to step. NULL means all zero. */
typedef struct dr_call {
  size_t struct_size;
  uint64_t step;
  uint64_t seed;         /* the same on every rank */
  uint64_t private_seed; /* different on every rank: the rank will do */
  uint32_t flags;        /* DR_CALL_* */
  uint32_t reserved;
  uint64_t tag;          /* step and name hash, say: returned by dr_inspect, compared by DR_DECODE_TAG */
  uint64_t segment_rows; /* cut tensors into segments of so many rows, each coded for itself (a Bloom filter each,
                            say), blocks whole; 0: 2^32 - 1, the most. Of a prepared batch: 0, or as it was prepared */
  void (*trace)(void *user, const dr_trace *);
  void *trace_user;
  /* NULL, or a fault for each tensor, `fault_stride` apart, struct_size set: of an encode on the CPU that fails in
   * the tensors' data, every tensor that the failing stage found at fault; code DR_OK for the others. */
  dr_fault *faults;
  size_t fault_stride;
} dr_call;

/* What came of an encode, or of a prepared decode or merge; lives where the data lives. On a GPU, too, struct_size is
 * read there, so it must be set before the call; of a struct that has no room for `status` nothing is set. */
typedef struct dr_result {
  size_t struct_size;
  uint64_t size; /* bytes of the frame; of a status frame if there is one; else 0 */
  dr_status status;
  uint32_t stream; /* DR_STREAM_*; these four say what failed, as in dr_error */
  uint64_t tensor;
  uint64_t where, what;
  uint64_t frame;
  uint64_t needed; /* CAPACITY: bytes of frame that would do; 0: not known */
  uint64_t kept;   /* rows that went in, over all tensors (the sparsifier's r) */
} dr_result;

/* Bytes that suffice for any frame of such tensors (values, indices and state are not read; a sparse
 * tensor's count is a bound), a status frame included. Of the call (or NULL) segment_rows counts, of the place
 * whether the plan runs there. ARGUMENT, UNSUPPORTED, MEMORY. */
DR_API dr_status dr_bound(dr_context *context, const dr_plan *plan, const dr_call *call, const dr_place *place,
                          const dr_tensor *tensors, size_t stride, size_t n, size_t *bytes);

/* Encodes n tensors into one frame. plan may be NULL if every tensor has its own; call, place and result
 * may be NULL. States do not overlap. If it fails, they are as they were and the frame is untouched (or a status
 * frame). A device adds the gradient to its state while it reads it: there, if the data are at fault, the state
 * keeps that sum, but 0 where it is not finite.
 * ARGUMENT (a NaN where the codec is lossy, an index twice or out of range, …), CAPACITY (the frame needs
 * more than `capacity`; with dr_bound bytes it never does; `needed` says how many would do), UNSUPPORTED, MEMORY. */
DR_API dr_status dr_encode(dr_context *context, const dr_plan *plan, const dr_call *call, const dr_place *place,
                           const dr_tensor *tensors, size_t stride, size_t n, void *frame, size_t capacity,
                           dr_result *result);

/* ---- Prepared encode: bounds, layout and workspace worked out once ------------------------------------ */

typedef struct dr_batch_info {
  size_t struct_size;
  uint64_t bound;     /* bytes of frame */
  uint64_t workspace; /* bytes, 64-byte aligned */
  uint32_t tensors, rows;
  uint32_t launches; /* of an encode on a GPU, at most: kernels, and those, clears and copies of a sort; 0 on the CPU */
  uint32_t reserved;
} dr_batch_info;

/* Prepares for tensors of these shapes, types, plans and place. segment_rows as in dr_call. */
DR_API dr_status dr_batch_create(dr_context *context, const dr_plan *plan, const dr_place *place,
                                 const dr_tensor *tensors, size_t stride, size_t n, uint64_t segment_rows,
                                 dr_batch **batch);
DR_API void dr_batch_destroy(dr_batch *batch);
DR_API dr_status dr_batch_describe(const dr_batch *batch, dr_batch_info *info, dr_error *error);
/* As dr_encode, without allocating: the workspace is the caller's, one for each call under way. The shapes
 * must be the prepared ones (a sparse count may be smaller); plans and segment_rows, too, or NULL and 0. ARGUMENT if
 * they are not. */
DR_API dr_status dr_batch_encode(dr_context *context, const dr_batch *batch, const dr_call *call, const dr_place *place,
                                 const dr_tensor *tensors, size_t stride, size_t n, void *workspace,
                                 size_t workspace_size, void *frame, size_t capacity, dr_result *result);

/* ---- Outputs ------------------------------------------------------------------------------------------ */

/* Room for one tensor. Dense: values[universe * width], all of it is written. Sparse: indices[capacity]
 * ascending and values[capacity * width]; `count` says how many. universe and width must be the frame's.
 * Outputs overlap neither a frame nor one another: ARGUMENT. */
typedef struct dr_tensor_out {
  size_t struct_size;
  dr_dtype dtype;       /* DR_F32, DR_F16 or DR_BF16, whatever the frame's; rounded to nearest, ties to even */
  dr_dtype index_dtype; /* 0: dense */
  uint64_t universe;
  uint32_t width; /* 0 means 1 */
  uint32_t flags; /* 0 */
  void *values;
  void *indices;
  uint64_t capacity; /* sparse: rows there is room for */
  uint64_t count;    /* set. decode: rows of the support. merge: sparse, rows of the union; dense, rows that were added,
                        over all frames */
} dr_tensor_out;

enum {
  DR_DECODE_ADD = 1u << 0, /* merge: add to what the outputs hold (dense ones); otherwise they start from zero */
  DR_DECODE_TAG = 1u << 1  /* every frame must have the tag `tag`, or it is ARGUMENT: ranks are out of step */
};

/* How to decode or merge. NULL means all zero.
 *
 * What decode and merge may take: let B be the bytes of the frames and, once for each frame, of what is written to the
 * outputs: universe * width values of a dense one, the pairs of the support of a sparse one. Whatever a frame says, without limits
 * - memory is at most 256 * B and 1 MiB for each thread of the context (headers and workspace; a context keeps its own),
 * - time is bounded by memory and, where an index codec finds its support among all of the universe (bloom, seeded),
 *   by 512 hashes for each element of it: dense outputs have those elements; for sparse ones, which do not, such a codec goes
 *   through at most 4096 * B + 2^20 of them.
 * What would take more is CAPACITY before any of it is allocated. A limit that is set takes the place of the one without:
 * UINT64_MAX is none. */
typedef struct dr_decode_options {
  size_t struct_size;
  uint32_t flags; /* DR_DECODE_* */
  uint32_t reserved;
  uint64_t max_elements;  /* universe * width, summed over a frame; 0: any number, but as above for sparse outputs */
  uint64_t max_workspace; /* bytes of workspace and headers; 0: as above */
  uint64_t tag;
  uint64_t first_tensor, tensors; /* only these of the frame's tensors are decoded, and there are so many outputs;
                                     tensors = 0: all, and first_tensor is 0. The rest is verified by its check only. With
                                     bucket=flat a frame has one tensor, which goes to one output then. On the CPU only */
  void (*trace)(void *user, const dr_trace *);
  void *trace_user;
} dr_decode_options;

/* Borrowed bytes. Never grows. */
typedef struct dr_bytes {
  const void *data;
  size_t size;
} dr_bytes;

/* ---- Prepared decode and merge ------------------------------------------------------------------------ */

/* Decodes a frame whose sender's batch was prepared from the same plans, shapes and types (a sparse count: as large a
 * bound), without allocating; on a GPU without a wait. Outputs are shaped as the batch's tensors, dense (on the CPU: or sparse).
 * Workspace: dr_batch_merge_workspace bytes, aligned to 64, of the batch's place. They suffice for any frame of such a sender,
 * whatever the data; what another sender made of such tensors may need more, which is CAPACITY. Options: all tensors,
 * so first_tensor and tensors are 0.
 * On the CPU: as dr_decode, frame at any address; result may be NULL.
 * On a GPU: `size` bytes are readable from `frame`, which is aligned to 16; a frame tells its own end. What is wrong with
 * it is in `result`, in device memory, and then the outputs are as they were. Counts are not set. Options: ADD and
 * limits only. A frame that overlaps an output is refused as far as the batch's bound.
 * ARGUMENT (other tensors than the batch's, too), CAPACITY (workspace; `needed` says how much would do), CORRUPT, UNSUPPORTED,
 * PEER, DEVICE. */
DR_API dr_status dr_batch_decode(dr_context *context, const dr_batch *batch, const dr_place *place, const void *frame,
                                 size_t size, const dr_decode_options *options, dr_tensor_out *outs, size_t stride,
                                 size_t n, void *workspace, size_t workspace_size, dr_result *result);
/* As dr_merge: weights are host memory, read during the call. */
DR_API dr_status dr_batch_merge(dr_context *context, const dr_batch *batch, const dr_place *place,
                                const dr_bytes *frames, const float *weights, size_t k,
                                const dr_decode_options *options, dr_tensor_out *outs, size_t stride, size_t n,
                                void *workspace, size_t workspace_size, dr_result *result);
/* Workspace for a decode (k = 1) or a merge of k frames. ARGUMENT (NULL, or k beyond 2^20), MEMORY (it would not
 * fit an address). */
DR_API dr_status dr_batch_merge_workspace(const dr_batch *batch, size_t k, size_t *bytes, dr_error *error);

/* ---- A batch bound to its memory: what a training loop calls each step ------------------------------------ */

/* Tensors, outputs and workspace of a batch, read and checked once: a call looks at none of the structs again. What those of
 * `tensors` say is taken over (a sparse count, too); the memory that they point to, and `outs`, must stay valid, and the
 * context and the batch alive, until it is destroyed; on a GPU that is when its calls are through. Errors are in the context,
 * which it shares, and whose allocator gives the workspace. tensors may be NULL if it only decodes, outs if it only encodes.
 * `frames`: how many a merge takes at most (1 for decode). ARGUMENT, UNSUPPORTED, MEMORY. */
typedef struct dr_binding dr_binding;
DR_API dr_status dr_binding_create(dr_context *context, const dr_batch *batch, const dr_place *place,
                                   const dr_tensor *tensors, size_t stride, dr_tensor_out *outs, size_t out_stride,
                                   size_t n, size_t frames, dr_binding **binding);
DR_API void dr_binding_destroy(dr_binding *binding); /* NULL is fine */
/* As dr_batch_encode, dr_batch_decode and dr_batch_merge. The outputs' counts go where dr_binding_create was given them.
 * A state may be zeroed or filled anew between calls. ARGUMENT: more frames, or what the binding was not made for, too. */
DR_API dr_status dr_binding_encode(dr_binding *binding, const dr_call *call, void *frame, size_t capacity,
                                   dr_result *result);
DR_API dr_status dr_binding_decode(dr_binding *binding, const void *frame, size_t size,
                                   const dr_decode_options *options, dr_result *result);
DR_API dr_status dr_binding_merge(dr_binding *binding, const dr_bytes *frames, const float *weights, size_t k,
                                  const dr_decode_options *options, dr_result *result);

/* ---- State of feedback: the caller's memory ----------------------------------------------------------- */

/* Bytes of state that `plan` wants for such a tensor; 0 if it keeps none. Zeroed memory is a fresh state.
 * The bytes may be saved, and loaded on any machine; another plan with the same feedback may go on with them. */
DR_API dr_status dr_state_size(const dr_plan *plan, const dr_tensor *tensor, size_t *bytes, dr_error *error);
/* The residual inside a state: f32[universe * width]. To take back a frame that never arrived, merge it
 * into this with DR_DECODE_ADD. ARGUMENT if the state is fresh or not one. */
DR_API dr_status dr_state_residual(void *state, size_t state_size, float **residual, uint64_t *elements,
                                   dr_error *error);
/* Makes a state of a residual, f32[universe * width] (NULL: of zeros), for dr_state_size bytes. */
DR_API dr_status dr_state_fill(const dr_plan *plan, const dr_tensor *tensor, const float *residual, void *state,
                               size_t state_size, dr_error *error);
/* Copies `elements` of one residual, from element `first` on, to element `at` of another state's (which may be
 * fresh only if it was made by dr_state_fill): for tensors that are cut anew, or ranks that come and go. A fresh `from`
 * counts as zeros. The states may be the same, the ranges may not overlap. ARGUMENT. */
DR_API dr_status dr_state_copy(const void *from, size_t from_size, uint64_t first, void *to, size_t to_size,
                               uint64_t at, uint64_t elements, dr_error *error);
/* The residual's L2 norm, summed up in f64; 0 of a fresh state. ARGUMENT if it is not a state. */
DR_API dr_status dr_state_norm(const void *state, size_t state_size, double *norm, dr_error *error);

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

/* Bytes of the frame that begins here, of `size` that are readable; reads its header only and verifies no check. For
 * frames that lie one behind the other, or in slots. CORRUPT (no frame, or longer than size), UNSUPPORTED. */
DR_API dr_status dr_frame_size(const void *frame, size_t size, size_t *frame_size, dr_error *error);

/* Reads headers and verifies every check; decodes nothing. A frame may lie at any address. infos may be NULL; at most `capacity` are
 * written. size may exceed the frame. CORRUPT, UNSUPPORTED (a codec that is not loaded). A status frame
 * is no error here. */
DR_API dr_status dr_inspect(const void *frame, size_t size, dr_frame_info *info, dr_tensor_info *infos, size_t stride,
                            size_t capacity, dr_error *error);

/* As dr_inspect, of the header alone, and verifies no check: for a decode that follows, which verifies them, or of a frame on
 * a device, of which the first `available` bytes were copied. `size`: bytes that the whole frame has at most. CORRUPT, if the
 * header is longer than `available`, too. */
DR_API dr_status dr_frame_header(const void *frame, size_t available, size_t size, dr_frame_info *info,
                                 dr_tensor_info *infos, size_t stride, size_t capacity, dr_error *error);

/* ---- Decode and merge --------------------------------------------------------------------------------- */

/* Decodes a frame of n tensors. If it fails, what the outputs hold is unspecified but for dr_merge.
 * ARGUMENT (an output does not fit the frame), CAPACITY, CORRUPT, UNSUPPORTED, MEMORY, PEER. */
DR_API dr_status dr_decode(dr_context *context, const dr_place *place, const void *frame, size_t size,
                           const dr_decode_options *options, dr_tensor_out *outs, size_t stride, size_t n);

/* Sum of k frames, weights[i] * frame i, added in the order of the frames, in f32 and rounded to the output's
 * type after each; a sum that is NaN is the positive quiet one without payload, on every place. weights NULL: all 1;
 * a weight that is not finite is ARGUMENT. Outputs are dense or, on the CPU, sparse: the union of the supports, from zero
 * (with ADD: ARGUMENT), summed in f32 and rounded once (CAPACITY if there is too little room; `needed` says how much would do).
 * A dense row, or an index codec that tells all of the universe, has all rows of it in its support.
 * Outputs are untouched unless every frame is sound; the error then names the frame. Errors as for dr_decode. */
DR_API dr_status dr_merge(dr_context *context, const dr_place *place, const dr_bytes *frames, const float *weights,
                          size_t k, const dr_decode_options *options, dr_tensor_out *outs, size_t stride, size_t n);

#ifdef __cplusplus
}
#endif
#endif
