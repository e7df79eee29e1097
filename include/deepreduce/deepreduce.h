/* DeepReduce: sparse gradient compression behind a C ABI. C11 and C++20.
 *
 * A dense gradient is sparsified, or is sparse already. Its indices and values are coded separately. The streams of a
 * batch of tensors become one frame: bytes that any rank can decode. A plan, one line of text, names the methods:
 *
 *   sparsify=topr(ratio=0.01) index=golomb value=qsgd(levels=127)
 *
 * Rules that hold everywhere:
 * - Memory is borrowed for the call and never freed. These keep pointers: a binding, an exchange and a sender until they
 *   are destroyed, a transform until its round ends, dr_codec_register as long as the process runs. Nothing is written
 *   past the end of memory.
 * - A function that can fail returns dr_status; the message is in the context (dr_last_error) or in the
 *   dr_error that was passed. Received bytes may be hostile: they cause an error, never a crash.
 * - A struct begins with struct_size, which the caller sets to sizeof, for outputs too; arrays of structs pass
 *   the stride between elements. A size below that of the first header of version 1 is ARGUMENT: no client has such a
 *   struct. (A dr_error and a dr_result on a GPU are written as far as they reach.) Fields that the caller's version
 *   lacks are zero. Fields that the library does not know, `reserved` and unknown flags must be zero, or the call is
 *   UNSUPPORTED (VERSIONING.md). Only dr_bytes has no size: it never grows.
 * - A context serves one call at a time, and so do its bindings, transforms, exchanges and senders together. A concurrent
 *   call of another thread, or of a callback, is ARGUMENT ("in use by another call") and changes nothing; the caller must
 *   not destroy an object during its call. Plans and batches are immutable and serve any number of calls.
 * - The same input, plan, seeds and step result in the same frame, on every machine and for any thread count
 *   (except with Deflate and Zstandard, whose bytes depend on the versions of zlib and libzstd).
 * - After fork() a context with threads is unusable in the child: calls return ARGUMENT; destroying it is allowed.
 *
 * Words: a row is the `width` values at one index; with width 1 it is one element. The support of a tensor is the set
 * of indices in its frame. A segment is a range of rows that is coded separately. (docs/GLOSSARY.md has all words.)
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

DR_API const char *dr_version(void);          /* "0.3.0" */
DR_API uint32_t dr_abi_version(void);         /* DR_ABI_VERSION of the library that was loaded */
DR_API const char *dr_status_name(dr_status); /* "CORRUPT"; "?" for an unknown code */

/* Capabilities of the loaded library. 0: absent, or the feature is unknown. */
enum {
  DR_FEATURE_CUDA = 1,         /* 1: compiled with CUDA (a device may still be missing) */
  DR_FEATURE_FORMAT = 2,       /* newest version of frames that it reads and writes */
  DR_FEATURE_CODEC_ABI = 3,    /* version of codec.h that plug-ins must have */
  DR_FEATURE_CPU = 4,          /* instruction set in use: 1 scalar, 2 AVX2, 3 AVX-512, 4 NEON */
  DR_FEATURE_CALL_FLAGS = 5,   /* supported DR_CALL_* */
  DR_FEATURE_DECODE_FLAGS = 6, /* DR_DECODE_* */
  DR_FEATURE_TENSOR_FLAGS = 7, /* DR_TENSOR_* */
  DR_FEATURE_PLACE_FLAGS = 8   /* supported flags of dr_place */
};
DR_API uint64_t dr_feature(uint32_t feature);

#define DR_NO_TENSOR UINT64_MAX
#define DR_NO_FRAME UINT64_MAX

/* The reason, for statuses with several reasons that a program may handle differently. The list only grows. */
enum {
  DR_REASON_NONE = 0,       /* another reason, which the message states */
  DR_REASON_WRONG_BASE = 1, /* ARGUMENT: a patch is for other weights than those of `tensor`, whose check is `what` */
  DR_REASON_OUT_OF_STEP = 2 /* ARGUMENT: ranks are at different steps, or some did not complete one that others did
                               (sender.h). `frame` is the first rank that is behind */
};

/* `message` is one sentence with the object, the position and the value. If struct_size is 0, nothing is set. */
typedef struct dr_error {
  size_t struct_size;
  dr_status code;
  uint32_t stream; /* DR_STREAM_* */
  uint64_t tensor; /* position in the batch, or DR_NO_TENSOR */
  uint64_t where;  /* element (of rows of several values: row) or byte */
  uint64_t what;   /* the value at fault, if there is one */
  uint64_t frame;  /* position among the frames of a merge, or DR_NO_FRAME */
  uint64_t needed; /* CAPACITY: sufficient bytes, rows or elements; 0: unknown */
  char message[256];
  uint32_t reason; /* DR_REASON_* */
  uint32_t reserved;
} dr_error;

/* ---- Context ------------------------------------------------------------------------------------------ */

typedef struct dr_context_options {
  size_t struct_size;
  /* Host memory for workspaces, which grow with the tensors: of calls (until dr_context_trim), bindings, transforms,
   * exchanges and senders. Handles, and lists that grow with the number of tensors, come from operator new; so do the
   * copies of DR_PLACE_ALLOW_HOST. Set both or neither. alignment is a power of two up to 64. allocate may return NULL. */
  void *(*allocate)(void *user, size_t size, size_t alignment);
  void (*release)(void *user, void *memory, size_t size);
  void *user;
  uint32_t threads; /* 0 or 1: no thread is started. At most 256 */
  uint32_t reserved;
} dr_context_options;

/* options: NULL for the defaults. error may be NULL. ARGUMENT, MEMORY (also if a thread cannot be started). */
DR_API dr_status dr_context_create(const dr_context_options *options, dr_context **context, dr_error *error);
DR_API void dr_context_destroy(dr_context *context); /* NULL is fine */
/* Frees the memory that a context caches between calls: workspace, prepared batches, device memory. */
DR_API dr_status dr_context_trim(dr_context *context);
/* The error of the last call that failed on this context; code DR_OK if none failed. A thread whose call was refused
 * because the context was in use sees that error until another call of this thread fails. Never NULL.
 * Its struct_size is that of the first header of version 1, though all fields are there: a copy of it, size and all, fits
 * the dr_error of every header. Set the copy's struct_size to sizeof before it goes to a call. */
DR_API const dr_error *dr_last_error(const dr_context *context);

/* ---- Plans -------------------------------------------------------------------------------------------- */

/* Parses and checks a plan: stages, or the name of a preset, optionally followed by stages that replace its own ("dgc",
 * "BF-P0 sparsify=topr(ratio=0.1)"). error may be NULL. ARGUMENT (syntax, unknown preset, codec or parameter, a value
 * out of range, stages that cannot be combined), UNSUPPORTED (stages that this version does not combine), MEMORY. */
DR_API dr_status dr_plan_parse(const char *text, dr_plan **plan, dr_error *error);
/* Canonical text: index, value and every other stage that is not the default, in a fixed order; parameters that
 * differ from their default; shortest numbers. Two plans are equivalent if and only if their texts are equal.
 * Valid as long as the plan. */
DR_API const char *dr_plan_text(const dr_plan *plan);
DR_API void dr_plan_destroy(dr_plan *plan); /* NULL is fine */

/* Properties of a plan, so that no caller parses its text. With auto: properties of any of its choices. LINEAR holds
 * for dense tensors and equal seeds and steps: then all ranks send the same rows, with unchanged values. */
enum {
  DR_PLAN_SPARSIFIES = 1u << 0,     /* drops values other than zeros */
  DR_PLAN_FEEDBACK = 1u << 1,       /* needs a state (dr_state_size) */
  DR_PLAN_LOSSY_VALUES = 1u << 2,   /* decoded values differ from the selected ones */
  DR_PLAN_LOSSY_SUPPORT = 1u << 3,  /* the decoded support differs from the selected one: more rows, or others */
  DR_PLAN_FIXED_SIZE = 1u << 4,     /* frames of equal shapes and counts (of each segment) have equal sizes */
  DR_PLAN_LINEAR = 1u << 5,         /* payloads may be summed (all-reduce) */
  DR_PLAN_SHARED_RANDOM = 1u << 6,  /* may draw random numbers, the same on every rank */
  DR_PLAN_PRIVATE_RANDOM = 1u << 7, /* may draw random numbers for which private_seed must differ between ranks */
  DR_PLAN_CHOOSES = 1u << 8,        /* has auto: the codecs depend on the data */
  DR_PLAN_HOST_ONLY = 1u << 9,      /* a stage has no CUDA path at all */
  DR_PLAN_FLAT = 1u << 10,          /* bucket=flat: the batch is one tensor in the frame */
  DR_PLAN_TRANSFORMS = 1u << 11,    /* makes factors, not frames: exchange.h, transform.h */
  DR_PLAN_RESIDUAL = 1u << 12,      /* its state has a residual: an undelivered frame can be restored to it */
  DR_PLAN_VOTE = 1u << 13,          /* merge=vote: a merge is the sign of the sum */
  DR_PLAN_PATCH = 1u << 14,         /* sparsify=changed: tensors have a base, and decodes DR_DECODE_APPLY */
  DR_PLAN_COEFFICIENTS = 1u << 15   /* transform=dct: a frame has coefficients, and so has a residual */
};
typedef struct dr_plan_info {
  size_t struct_size;
  uint32_t flags;  /* DR_PLAN_* */
  uint32_t dtypes; /* DR_DTYPE_BIT set of supported tensors */
} dr_plan_info;
DR_API dr_status dr_plan_describe(const dr_plan *plan, dr_plan_info *info, dr_error *error);

/* Plans for tensors that are sent together with others of `plan`; to be destroyed like any plan. ARGUMENT, MEMORY.
 * dr_plan_exact: for a tensor that is too small for `plan` (`dense_below`, exchange.h): all of it, exactly. It has the
 *   feedback of `plan`, so that the gradient has the same weight (gamma) and the same momentum, which is not masked,
 *   because all is sent; and so that its residual can restore an undelivered frame. With merge=vote or
 *   transform=lowrank it is `plan` itself: means and signs have different scales. A transform=dct stays, and rounds.
 * dr_plan_rows: for a sparse tensor whose rows are selected already: the index, value and order codecs of `plan`,
 *   without sparsifier, feedback and transform. golomb replaces an index codec that would send other rows. With
 *   transform=lowrank: `index=golomb value=raw`. UNSUPPORTED: merge=vote, or a momentum, which concern all elements. */
DR_API dr_status dr_plan_exact(const dr_plan *plan, dr_plan **exact, dr_error *error);
DR_API dr_status dr_plan_rows(const dr_plan *plan, dr_plan **rows, dr_error *error);

/* A parameter of a stage. `text` is its value in the canonical text. */
typedef struct dr_stage_param {
  size_t struct_size;
  const char *name, *text;
  dr_param_type type;       /* 0: of dr_stages_parse, which looks up no names */
  uint32_t is_default;      /* 1: the canonical text omits it */
  double number;            /* the number or, for a choice, its position */
  const dr_param *declared; /* its range, choices and default; NULL where type is 0 */
} dr_stage_param;
/* A name of a stage, with all of its parameters. A stage `index=raw+huffman` is two of these: raw at position 0, and
 * the bytes codec after it at position 1. */
typedef struct dr_stage {
  size_t struct_size;
  const char *role; /* "sparsify", "feedback", "index", "value", "order", "regather", "bucket", "merge", "exchange",
                       "transform" */
  const char *name; /* in a plan: "golomb", "plugin.zigzag", "auto", "owner"; "none", "gather", …: the default */
  const char *text; /* of the whole stage: "index=raw+huffman" */
  uint32_t position;
  uint32_t is_default;          /* 1: the canonical text omits the stage */
  const dr_codec *codec;        /* NULL: the name is not a codec's (dr_stage_word) */
  const dr_stage_param *params; /* param_count of them; their struct_size is the stride */
  size_t param_count;
} dr_stage;
/* The stages of a plan in the order of its canonical text, including those that the text omits; of a plan with
 * transform=lowrank only that and feedback. order= is included if values are reordered. `stage` is valid as long as the
 * plan. ARGUMENT: NULL, or past the end. */
DR_API size_t dr_plan_stage_count(const dr_plan *plan);
DR_API dr_status dr_plan_stage(const dr_plan *plan, size_t position, dr_stage *stage, dr_error *error);
static inline const dr_stage_param *dr_stage_param_at(const dr_stage *stage, size_t i) {
  return (const dr_stage_param *)((const char *)stage->params + i * stage->params->struct_size);
}
/* A plan in which `stages` replace those of `plan`, to be destroyed like any plan: "feedback=none",
 * "bucket=flat exchange=owner(parts=4)". ARGUMENT, UNSUPPORTED (the stages cannot be combined), MEMORY. */
DR_API dr_status dr_plan_with(const dr_plan *plan, const char *stages, dr_plan **made, dr_error *error);

/* The stages of a text without a lookup of its names: for plans of other builds, or with codecs of another program. The
 * list has only the stages, names and parameters of the text. ARGUMENT (syntax, NULL, past the end), MEMORY. */
typedef struct dr_stages dr_stages;
DR_API dr_status dr_stages_parse(const char *text, dr_stages **stages, dr_error *error);
DR_API void dr_stages_destroy(dr_stages *stages); /* NULL is fine */
DR_API size_t dr_stages_count(const dr_stages *stages);
DR_API dr_status dr_stages_at(const dr_stages *stages, size_t position, dr_stage *stage, dr_error *error);

/* The names in plans that are not codecs: `auto`, and those of regather=, bucket=, merge=, exchange= and transform=.
 * The first name of a role is the default. The list only grows. */
typedef struct dr_stage_word {
  size_t struct_size;
  const char *role, *name, *summary;
  const dr_param *params;
  size_t param_count;
} dr_stage_word;
DR_API size_t dr_stage_word_count(void);
DR_API const dr_stage_word *dr_stage_word_at(size_t position); /* NULL past the end */

/* Presets: plans by their names in the literature. The list only grows. */
typedef struct dr_preset {
  size_t struct_size;
  const char *name; /* "terngrad" */
  const char *set;  /* its source: "paper" (Xu et al. 2021), "grace" (Xu et al. 2021), … */
  const char *plan; /* without sparsify= and transform=: for any sparsifier, by default topr(ratio=0.01) */
  const char *note; /* differences from the method's paper; "": none */
} dr_preset;
DR_API size_t dr_preset_count(void);
DR_API const dr_preset *dr_preset_at(size_t position); /* NULL past the end */

/* ---- Plan books: which tensor has which plan, by its name ------------------------------------------------ */

/* A text in UTF-8 with lines `pattern: plan` or `pattern: dense` (docs/PLAN_BOOK.md). Patterns: * ? [abc] [a-c]
 * [!abc], as in Python's fnmatch.fnmatchcase. The first pattern that matches a name is used. */
typedef struct dr_book dr_book;
#define DR_NO_LINE UINT64_MAX
typedef struct dr_book_line {
  size_t struct_size;
  uint64_t position;   /* among the lines, or DR_NO_LINE */
  uint64_t number;     /* of the line in the text, from 1; 0: dr_book_add made it */
  const char *pattern; /* valid as long as no line is added; NULL without a line */
  const dr_plan *plan; /* the book's, valid as long as it; NULL: dense, as the tensor is */
} dr_book_line;

/* where: the name of the text in errors, for example its path; NULL: "book". Errors name the line (also in
 * error->where), the pattern and the fault of its plan: ARGUMENT, UNSUPPORTED. MEMORY. */
DR_API dr_status dr_book_parse(const char *text, size_t size, const char *where, dr_book **book, dr_error *error);
DR_API void dr_book_destroy(dr_book *book); /* NULL is fine */
enum {
  DR_BOOK_NAME = 1u << 0 /* the pattern is a name: its * ? [ stand for themselves */
};
/* Adds a line at the end (a book without lines: dr_book_parse of 0 bytes). plan: NULL is dense; it may be destroyed
 * afterwards. ARGUMENT: a pattern that cannot be written in a line (empty, a line's end, a blank at an end, " #", not
 * UTF-8). MEMORY. */
DR_API dr_status dr_book_add(dr_book *book, const char *pattern, uint32_t flags, const dr_plan *plan, dr_error *error);
DR_API size_t dr_book_line_count(const dr_book *book);
DR_API dr_status dr_book_line_at(const dr_book *book, size_t position, dr_book_line *line, dr_error *error);
/* The line of a tensor's name; without one position is DR_NO_LINE, and the tensor is dense. */
DR_API dr_status dr_book_match(const dr_book *book, const char *name, dr_book_line *line, dr_error *error);
enum {
  DR_LINE_USED = 0,
  DR_LINE_UNMATCHED = 1, /* its pattern matches none of the names */
  DR_LINE_UNREACHED = 2  /* earlier lines match all names that it matches */
};
/* The use of every line by n names: DR_LINE_*, dr_book_line_count of them. */
DR_API dr_status dr_book_uses(const dr_book *book, const char *const *names, size_t n, uint32_t *uses, dr_error *error);
/* The lines in the form that dr_book_parse reads, with canonical plans. Valid until a line is added. */
DR_API const char *dr_book_text(const dr_book *book);

/* ---- Codecs ------------------------------------------------------------------------------------------- */

/* Codecs, sparsifiers and feedback in order of registration: built-ins first. The list only grows. */
DR_API size_t dr_codec_count(void);
DR_API const dr_codec *dr_codec_at(size_t position); /* NULL past the end */
/* Adds a codec; its structs must exist until the process ends. ARGUMENT: it is malformed, or another codec has its
 * id, or another added codec its name. CAPACITY: the registry is full. A built-in codec of the same role may have
 * the same name: in plans `value=fp8` is then the built-in one, and `value=plugin.fp8` the added one; with DR_OK
 * error->message names it (otherwise error is not written). "plugin." may precede the name of any added codec, so a
 * plan with it has the same meaning in later releases with more built-ins. */
DR_API dr_status dr_codec_register(const dr_codec *codec, dr_error *error);
/* Loads a plug-in (a shared object that exports DR_PLUGIN_SYMBOL) and registers its codecs, all or none, with the
 * errors and names of dr_codec_register. UNSUPPORTED: cannot be loaded, or has another version of codec.h. Loading
 * the same codecs twice is allowed. */
DR_API dr_status dr_plugin_load(const char *path, dr_error *error);

/* ---- Tensors ------------------------------------------------------------------------------------------ */

enum {
  DR_TENSOR_SUM_DUPLICATES = 1u << 0 /* sparse: adds the values of equal indices, in input order, in f32.
                                        The sum is rounded to dtype, with feedback only where it is
                                        sent. Otherwise a duplicate is an error */
};

/* A gradient, borrowed. Dense: values[universe * width], indices NULL, index_dtype 0. Sparse: `count`
 * indices in any order, all below universe, and values[count * width]. Row-major. Aligned to its dtype.
 * A dense tensor's zeros of either sign are not sent: -0.0 may be decoded as +0.0. For bits that are not numbers (for
 * example an XOR of weights) use a sparse tensor with value=raw and no sparsifier, of which every value is sent. */
typedef struct dr_tensor {
  size_t struct_size;
  dr_dtype dtype;       /* DR_F32, DR_F16, DR_BF16; with sparsify=changed also DR_F64, DR_U8, DR_U16, DR_U32 */
  dr_dtype index_dtype; /* DR_U32, DR_I32, DR_U64, DR_I64; 0: dense */
  uint64_t universe;    /* rows of the dense tensor: with width 1 its length */
  uint32_t width;       /* values of a row; 0 means 1 */
  uint32_t flags;
  const void *values;
  const void *indices;
  uint64_t count;
  const dr_plan *plan; /* of this tensor; NULL: the plan of the call */
  void *state;         /* only with feedback: dr_state_size bytes, aligned to 8 */
  uint64_t state_size; /* 0: no state */
  uint64_t key;        /* seeds the random numbers of this tensor; 0: its position in the batch */
  /* sparsify=changed: the receiver's values, of the same type and shape; sparsify=visible: the weights that the tensor
   * is to move, likewise. Otherwise NULL */
  const void *base;
  /* NULL, or the sums of the base (dr_base_sums), which become those of `values` if the call succeeds, so that no
   * check is computed again. These and `history`: on the CPU */
  uint64_t *sums;
  /* sparsify=changed: NULL, or the history of the base, a byte per value of its universe * width: a summary of
   * earlier patches, which index=history and value=history read. All bytes are 0 before the first patch. It
   * becomes that of `values` if the call succeeds. The sender and every receiver have their own */
  uint8_t *history;
  /* transform=dct: the first dimension of the matrix, which divides `universe`; its tiles have two dimensions. 0 or 1: a
   * vector */
  uint64_t rows;
} dr_tensor;

/* Where tensors, states, frames, workspaces and results are. NULL means the CPU. */
enum {
  DR_PLACE_CPU = 0,
  DR_PLACE_CUDA = 1,
  DR_PLACE_EMULATED = 2 /* host memory; the CPU runs the CUDA kernels, block by block: slow, for tests without a GPU */
};
enum {
  /* a plan with a codec that has no CUDA operations (Deflate) runs on the CPU, with copies and a wait; otherwise it is
   * an error */
  DR_PLACE_ALLOW_HOST = 1u << 0
};
typedef struct dr_place {
  size_t struct_size;
  uint32_t kind;
  int32_t device; /* CUDA device number; EMULATED: seed of the order of lanes and blocks, 0: ascending */
  void *stream;   /* cudaStream_t */
  uint32_t flags; /* DR_PLACE_* */
  uint32_t reserved;
} dr_place;

/* ---- Encode ------------------------------------------------------------------------------------------- */

/* A stage that ended, on the CPU; kernels are not traced. */
typedef struct dr_trace {
  size_t struct_size;
  const char *stage;         /* encode: "sparsify" "choose" "index" "regather" "value" "order" "container" "feedback";
                                decode: "header" "decode" "deliver"; merge: "header" "decode" "merge" */
  uint64_t begin_ns, end_ns; /* a monotonic clock */
  uint64_t bytes;            /* written by the stage; "header": bytes of the frames that it read */
} dr_trace;

/* FIT: if the frame exceeds `capacity`, tensors (or segments) are sent empty until it fits: the smallest one that
 * suffices or, while none suffices, the largest. Their gradient stays in the residual. Every plan of the call must have
 * feedback, or it is ARGUMENT; CAPACITY only if a frame of empty tensors does not fit; UNSUPPORTED on a GPU. */
enum {
  DR_CALL_TAG = 1u << 0,          /* stores `tag` in the frame */
  DR_CALL_STATUS_FRAME = 1u << 1, /* if encode fails, writes a frame with the error: decoding it is DR_E_PEER. On a GPU
                                     if it fails there, or on the CPU for it (DR_PLACE_ALLOW_HOST) */
  DR_CALL_LIST = 1u << 2,         /* marks the frame as a list, for wrappers that restore structure */
  DR_CALL_FIT = 1u << 3,          /* sends less instead of failing with CAPACITY */
  /* `step` is the address of a uint64_t that holds the step, in memory of the place. It is read when the encode runs: a
   * CUDA graph repeats its arguments, so it would draw the same random numbers at every replay, but a kernel may count
   * there. With DR_CALL_TAG the frame's tag is `tag` plus that step. On a GPU it takes one launch more. ARGUMENT: the
   * address is NULL, or not aligned to 8. For dr_encode, dr_batch_encode and dr_binding_encode */
  DR_CALL_STEP_AT = 1u << 4
};

/* Arguments that change from step to step. NULL means all zero. */
typedef struct dr_call {
  size_t struct_size;
  uint64_t step;
  uint64_t seed;         /* the same on every rank */
  uint64_t private_seed; /* different on every rank, for example the rank */
  uint32_t flags;        /* DR_CALL_* */
  uint32_t reserved;
  uint64_t tag; /* any number, for example the step: returned by dr_inspect, compared by DR_DECODE_TAG */
  /* cuts tensors into segments of this many rows, each coded on its own (for example with its own Bloom filter), blocks
   * whole; 0: 2^32 - 1, the maximum. With a prepared batch: 0, or as prepared */
  uint64_t segment_rows;
  void (*trace)(void *user, const dr_trace *);
  void *trace_user;
  /* NULL, or a fault for each tensor, `fault_stride` apart, struct_size set. If an encode on the CPU fails because of
   * the data, it sets the fault of every tensor in which the failing stage found one; code DR_OK for the others. */
  dr_fault *faults;
  size_t fault_stride;
} dr_call;

/* Result of an encode, or of a prepared decode or merge, in the same place as the data. On the CPU it is always set,
 * as far as its struct_size reaches, unless the context or the binding is NULL. On a GPU an error before the launch
 * is only in the returned status; struct_size is read on the device, too, so it must be set before the call; if it
 * does not reach `status`, nothing is written. The result of a call with a refused place is in the place that it
 * names; if that cannot be read, nothing is written. */
typedef struct dr_result {
  size_t struct_size;
  uint64_t size; /* bytes of the frame, or of the status frame; else 0 */
  dr_status status;
  uint32_t stream; /* DR_STREAM_*; the next fields are as in dr_error */
  uint64_t tensor;
  uint64_t where, what;
  uint64_t frame;
  uint64_t needed; /* CAPACITY: sufficient bytes of frame; 0: unknown */
  uint64_t kept;   /* rows that the sparsifier selected (r), over all tensors */
} dr_result;

/* Bytes that suffice for any frame of such tensors, or a status frame. Values, indices and state are not read; the
 * count of a sparse tensor is a bound. `call` may be NULL; only its segment_rows is used. ARGUMENT, UNSUPPORTED (also if
 * the plan does not run in the place), MEMORY. */
DR_API dr_status dr_bound(dr_context *context, const dr_plan *plan, const dr_call *call, const dr_place *place,
                          const dr_tensor *tensors, size_t stride, size_t n, size_t *bytes);

/* Encodes n tensors into one frame. plan may be NULL if every tensor has its own; call, place and result
 * may be NULL. States must not overlap; nor must, on a GPU, the frame and the tensors; nor a patch and the values or the
 * base of a tensor with a history. If the call fails, states are unchanged, and the frame is untouched or a status
 * frame. Exception: a device adds the gradient to the state while it reads it; there, after a fault in the data, the
 * state holds that sum, with 0 where it is not finite.
 * ARGUMENT (a NaN where the codec is lossy, a duplicate index, an index out of range, …), CAPACITY (the frame exceeds
 * `capacity`; never with dr_bound bytes; `needed` is sufficient), UNSUPPORTED, MEMORY. */
DR_API dr_status dr_encode(dr_context *context, const dr_plan *plan, const dr_call *call, const dr_place *place,
                           const dr_tensor *tensors, size_t stride, size_t n, void *frame, size_t capacity,
                           dr_result *result);

/* ---- Prepared encode: bounds, layout and workspace computed once -------------------------------------- */

typedef struct dr_batch_info {
  size_t struct_size;
  uint64_t bound;     /* bytes of frame */
  uint64_t workspace; /* bytes, 64-byte aligned */
  uint32_t tensors;
  uint32_t segments; /* of all tensors */
  uint32_t launches; /* of an encode on a GPU, at most: kernels, clears, and the copies of a sort; 0 on the CPU */
  uint32_t reserved;
} dr_batch_info;

/* Prepares for tensors of these shapes, types, plans and place. segment_rows as in dr_call. */
DR_API dr_status dr_batch_create(dr_context *context, const dr_plan *plan, const dr_place *place,
                                 const dr_tensor *tensors, size_t stride, size_t n, uint64_t segment_rows,
                                 dr_batch **batch);
DR_API void dr_batch_destroy(dr_batch *batch);
DR_API dr_status dr_batch_describe(const dr_batch *batch, dr_batch_info *info, dr_error *error);
/* As dr_encode, without allocating: the caller passes the workspace, one per concurrent call. ARGUMENT unless shapes
 * (a sparse count may be smaller), plans (or NULL) and segment_rows (or 0) are the prepared ones. CAPACITY (of the
 * workspace or the frame; `needed` is sufficient). */
DR_API dr_status dr_batch_encode(dr_context *context, const dr_batch *batch, const dr_call *call, const dr_place *place,
                                 const dr_tensor *tensors, size_t stride, size_t n, void *workspace,
                                 size_t workspace_size, void *frame, size_t capacity, dr_result *result);

/* ---- Outputs ------------------------------------------------------------------------------------------ */

/* Memory for one decoded tensor. Dense: values[universe * width], all written. Sparse: indices[capacity]
 * ascending and values[capacity * width]; `count` of them are set. universe and width must equal the frame's.
 * ARGUMENT if an output overlaps a frame or another output. */
typedef struct dr_tensor_out {
  size_t struct_size;
  dr_dtype dtype;       /* DR_F32, DR_F16 or DR_BF16, independent of the frame's; rounded to nearest, ties to even */
  dr_dtype index_dtype; /* 0: dense */
  uint64_t universe;
  uint32_t width; /* 0 means 1 */
  uint32_t flags; /* 0 */
  void *values;
  void *indices;
  uint64_t capacity; /* sparse: rows that fit */
  uint64_t count;    /* output. decode: rows of the support, of a patch rows assigned. merge, sparse: rows of the union;
                        merge, dense: rows added, over all frames. 0 on a GPU for the parts of bucket=flat */
  /* Of a sparse output of a patch: the receiver's values. Otherwise NULL: a dense output is its own base */
  const void *base;
  uint64_t *sums; /* of a patch: as in dr_tensor, of the base, which is not read for its check then */
  /* Of a patch: NULL, or the history of the base, as in dr_tensor. CORRUPT: the patch uses a history, and this one
   * differs from the sender's; NULL is a history of zeros */
  uint8_t *history;
} dr_tensor_out;

/* The sums of `bytes` bytes of weights, one for every 4096 bytes, the last of which may be fewer. They determine the
 * check by which a patch identifies its base, and a patch updates them without reading the weights again. ARGUMENT:
 * NULL, or `capacity` is too small. */
DR_API dr_status dr_base_sums(const void *values, uint64_t bytes, uint64_t *sums, size_t capacity, dr_error *error);
/* The check of such sums: for weights of less than 2^32 - 4096 rows, the check of a base or a result in a patch. */
DR_API uint64_t dr_base_check(const uint64_t *sums, size_t n);

enum {
  DR_DECODE_ADD = 1u << 0,   /* dense outputs (a sparse one: ARGUMENT): adds to their contents; otherwise a merge starts
                              from zero, and a decode overwrites. A decode that adds is a merge of its one frame, with
                              weight 1: rounded as there, and outputs are untouched unless the frame is sound */
  DR_DECODE_TAG = 1u << 1,   /* ARGUMENT unless every frame has the tag `tag`: ranks are out of step */
  DR_DECODE_VOTE = 1u << 2,  /* merge: the sign of the sum, +1 where that is 0 (majority vote, Bernstein et al. 2018). A
                              NaN is not changed. A prepared batch whose plan has merge=vote votes without the flag, unless it
                              adds. ARGUMENT with ADD, and for a decode; on the CPU. UNSUPPORTED: more than 256 frames
                              into bf16, 2048 into f16, whose sums would be rounded */
  DR_DECODE_APPLY = 1u << 3, /* decode: the frame is a patch (sparsify=changed), and the outputs hold its base, to which
                               the changes are assigned: all of them, or on any error none. ARGUMENT: the base is
                               another one; in a dr_result of a GPU `what` is its check, `where` the one of the patch */
  DR_DECODE_COEFFICIENTS = 1u << 4 /* frames of transform=dct: outputs become the coefficients that were sent, not the
                                      tensor, and may be sparse. With ADD this returns an undelivered frame to its
                                      residual. Other frames: no effect */
};

/* How to decode or merge. NULL means all zero.
 *
 * Bounds of decode and merge. Let B be the bytes of the frames plus, once for each frame, the bytes that are written to
 * the outputs: universe * width values of a dense one, the pairs of the support of a sparse one, at most its capacity,
 * and of a patch its base.
 * For any frame, if no limit is set,
 * - memory is at most 256 * B + 1 MiB for each thread of the context (headers and workspace, without the context's
 *   own),
 * - time is bounded by memory and, with an index codec that scans the whole universe (bloom, seeded), by 512 hashes for
 *   each element of it; for sparse outputs such a codec scans at most 4096 * B + 2^20 elements.
 * A frame that needs more is CAPACITY before anything is allocated. A limit that is set replaces its default;
 * UINT64_MAX: unlimited. */
typedef struct dr_decode_options {
  size_t struct_size;
  uint32_t flags; /* DR_DECODE_* */
  uint32_t reserved;
  uint64_t max_elements;  /* universe * width, summed over a frame; 0: unlimited, for sparse outputs as above */
  uint64_t max_workspace; /* bytes of workspace and headers, also on a device; 0: as above */
  uint64_t tag;
  uint64_t first_tensor, tensors; /* range of the frame's tensors to decode, one for each output;
                                     tensors = 0: all, and first_tensor must be 0. Of the others only the check is verified.
                                     With bucket=flat a frame has one tensor, for one output then. On the CPU only */
  void (*trace)(void *user, const dr_trace *);
  void *trace_user;
} dr_decode_options;

/* Borrowed bytes. Never grows. */
typedef struct dr_bytes {
  const void *data;
  size_t size;
} dr_bytes;

/* ---- Prepared decode and merge ------------------------------------------------------------------------ */

/* Decodes a frame whose sender prepared its batch from the same plans, shapes and types (and a sparse count that is no
 * larger), without allocating; on a GPU without waiting. Outputs have the shapes of the batch's tensors; dense, or
 * sparse on the CPU, where they are not parts of bucket=flat. Workspace: dr_batch_merge_workspace bytes, aligned to 64,
 * in the batch's place. That suffices for any frame of such a sender; a frame of another sender may need more, which is
 * CAPACITY. Options: first_tensor and tensors must be 0. On the CPU: as dr_decode, frame at any address; result may be
 * NULL.
 * On a GPU sparse counts equal the batch's, and the frame of one tensor with a header of the short form has no tag;
 * `size` bytes are readable from `frame`, which is aligned to 16; the frame states its own size. Its faults are reported
 * in `result`, in device memory, and then the outputs are unchanged. Counts are not set. Options: ADD, APPLY and limits
 * only. A frame must not overlap an output within the batch's bound.
 * ARGUMENT (also if the frame's tensors are not the batch's), CAPACITY (workspace; `needed` is sufficient), CORRUPT,
 * UNSUPPORTED, PEER, DEVICE. */
DR_API dr_status dr_batch_decode(dr_context *context, const dr_batch *batch, const dr_place *place, const void *frame,
                                 size_t size, const dr_decode_options *options, dr_tensor_out *outs, size_t stride,
                                 size_t n, void *workspace, size_t workspace_size, dr_result *result);
/* As dr_merge: weights are host memory, read during the call. */
DR_API dr_status dr_batch_merge(dr_context *context, const dr_batch *batch, const dr_place *place,
                                const dr_bytes *frames, const float *weights, size_t k,
                                const dr_decode_options *options, dr_tensor_out *outs, size_t stride, size_t n,
                                void *workspace, size_t workspace_size, dr_result *result);
/* Workspace for a decode (k = 1) or a merge of k frames. ARGUMENT (NULL, or k beyond 2^20), MEMORY (exceeds
 * the address space). */
DR_API dr_status dr_batch_merge_workspace(const dr_batch *batch, size_t k, size_t *bytes, dr_error *error);

/* ---- A batch bound to its memory: the calls of a training loop --------------------------------------------- */

/* Tensors, outputs and workspace of a batch, read and checked once; later calls do not read the structs again. The
 * fields of `tensors` are copied (a sparse count, too). The memory that they point to, `outs`, the context and the
 * batch must stay valid until the binding is destroyed or rebound; on a GPU, until its calls have ended. Errors are
 * in the context; its allocator provides the workspace. tensors may be NULL if the binding only decodes, outs if it
 * only encodes. `frames`: the largest number in a merge (1 for decode). ARGUMENT, UNSUPPORTED, MEMORY. */
typedef struct dr_binding dr_binding;
DR_API dr_status dr_binding_create(dr_context *context, const dr_batch *batch, const dr_place *place,
                                   const dr_tensor *tensors, size_t stride, dr_tensor_out *outs, size_t out_stride,
                                   size_t n, size_t frames, dr_binding **binding);
DR_API void dr_binding_destroy(dr_binding *binding); /* NULL is fine */
/* Other memory for a binding: tensors and outputs of the batch, as in dr_binding_create; a sparse count may be any
 * up to the batch's, an output dense or sparse as in dr_batch_decode. tensors or outs NULL: these do not change.
 * Allocates only the first time. If it fails, the binding does not change. ARGUMENT (also tensors or outs that the
 * binding was created without), UNSUPPORTED, MEMORY. */
DR_API dr_status dr_binding_rebind(dr_binding *binding, const dr_tensor *tensors, size_t stride, dr_tensor_out *outs,
                                   size_t out_stride, size_t n);
/* As dr_batch_encode, dr_batch_decode and dr_batch_merge. The counts are set in the `outs` that are bound.
 * A state may be zeroed or refilled between calls. ARGUMENT also for more frames than bound, or a direction that is not
 * bound. */
DR_API dr_status dr_binding_encode(dr_binding *binding, const dr_call *call, void *frame, size_t capacity,
                                   dr_result *result);
DR_API dr_status dr_binding_decode(dr_binding *binding, const void *frame, size_t size,
                                   const dr_decode_options *options, dr_result *result);
DR_API dr_status dr_binding_merge(dr_binding *binding, const dr_bytes *frames, const float *weights, size_t k,
                                  const dr_decode_options *options, dr_result *result);

/* ---- State of feedback, in the caller's memory --------------------------------------------------------- */

/* Bytes of state that `plan` needs for such a tensor; 0 without feedback. Zeroed memory is a fresh state.
 * The bytes may be saved and loaded on any machine; another plan with the same feedback can continue from them (with
 * transform=dct: of the same transform and rows, which a state does not name), one with another feedback is ARGUMENT.
 *
 *   residual   m: the part of the gradient that was not sent (Seide et al. 2014; Stich et al. 2018)
 *   efsignsgd  m, and the learning rate of its step: the next step adds m · (last rate / rate), because the update is
 *              the rate times what is sent (Karimireddy et al. 2019; Zheng et al. 2019). At a constant rate: residual
 *   dgc        u = momentum · u + g, v += u; v is the residual, from which values are selected and sent. At the support
 *              that the receiver decodes u becomes 0, and the decoded value is subtracted from v, which becomes 0 with
 *              value=raw (Lin et al. 2017). In a segment that is sent dense: at the selected elements
 *   momentum   m = (1 - beta) · g + beta · m is sent, and nothing is subtracted: there is no residual (Signum,
 *              Bernstein et al. 2018) */
DR_API dr_status dr_state_size(const dr_plan *plan, const dr_tensor *tensor, size_t *bytes, dr_error *error);
/* Checks that a saved state is valid for an encode of such a tensor: fresh, or of the plan's feedback and the tensor's
 * size. ARGUMENT. */
DR_API dr_status dr_state_check(const dr_plan *plan, const dr_tensor *tensor, const void *state, size_t state_size,
                                dr_error *error);
/* The residual in a state: f32[universe * width]. To restore an undelivered frame, merge it into the residual with
 * DR_DECODE_ADD, and DR_DECODE_COEFFICIENTS. With dgc that restores v; u remains 0 where it was sent: its momentum begins
 * again. ARGUMENT if the state is fresh or invalid, or has none (momentum). */
DR_API dr_status dr_state_residual(void *state, size_t state_size, float **residual, uint64_t *elements,
                                   dr_error *error);
/* The momentum in a state: u of dgc, m of momentum. ARGUMENT if the state is fresh or invalid, or has none. */
DR_API dr_status dr_state_momentum(void *state, size_t state_size, float **momentum, uint64_t *elements,
                                   dr_error *error);
/* Writes a state of dr_state_size bytes with a residual, f32[universe * width] (NULL: zeros); u of dgc and m of
 * momentum are zeros, and the learning rate of efsignsgd is the plan's. ARGUMENT: a residual for momentum. */
DR_API dr_status dr_state_fill(const dr_plan *plan, const dr_tensor *tensor, const float *residual, void *state,
                               size_t state_size, dr_error *error);
/* Copies `elements` elements of one state, residual and momentum, from element `first`, to element `at` of another of
 * the same feedback, for tensors that are cut differently, or ranks that come and go. A fresh `from` counts as zeros;
 * `to` must not be fresh (see dr_state_fill). The states may be the same if the ranges do not overlap. Between learning
 * rates of efsignsgd the residual is scaled. ARGUMENT. */
DR_API dr_status dr_state_copy(const void *from, size_t from_size, uint64_t first, void *to, size_t to_size,
                               uint64_t at, uint64_t elements, dr_error *error);
/* Multiplies the residual by a finite factor in f64, and rounds to f32 (0 where it is not finite). With the ratio of
 * the last learning rate to the next one, under a schedule, residual and dgc are scaled as efsignsgd is. A fresh
 * state stays fresh. ARGUMENT if the state is invalid, or has no residual. */
DR_API dr_status dr_state_scale(void *state, size_t state_size, double factor, dr_error *error);
/* L2 norm of the residual, summed in f64; 0 for a fresh state, and of momentum. ARGUMENT if the state is invalid. */
DR_API dr_status dr_state_norm(const void *state, size_t state_size, double *norm, dr_error *error);

/* ---- Inspect ------------------------------------------------------------------------------------------ */

enum {
  DR_FRAME_SHORT = 1u << 0,
  DR_FRAME_TAG = 1u << 1,
  DR_FRAME_LIST = 1u << 2,
  DR_FRAME_STATUS = 1u << 3,
  DR_FRAME_PATCH = 1u << 8 /* its tensors are patches: decode with DR_DECODE_APPLY. (Not a flag on the wire) */
};

typedef struct dr_frame_info {
  size_t struct_size;
  uint32_t version, flags; /* DR_FRAME_* */
  dr_status status;        /* of a status frame: the error of the sender */
  uint32_t tensors;
  uint32_t segments; /* of all tensors */
  uint32_t plans;    /* entries of the plan table */
  uint64_t frame_size, header_size, tag;
  char message[256]; /* of a status frame; '?' for its control characters */
} dr_frame_info;

enum { DR_FALLBACK_NONE = 0, DR_FALLBACK_RAW_INDEX = 1, DR_FALLBACK_DENSE = 2 };

typedef struct dr_tensor_info {
  size_t struct_size;
  uint64_t universe;
  uint32_t width;
  dr_dtype dtype;
  uint64_t count;   /* rows that were encoded (r) */
  uint64_t support; /* rows that decode returns */
  uint32_t segments;
  uint32_t fallback;                           /* the largest DR_FALLBACK_* of its segments */
  uint64_t index_size, value_size, order_size; /* bytes */
  char plan[224];                              /* stages with their wire fields, truncated if longer */
  uint32_t host_only; /* 1: of some segment a codec has no CUDA path for its wire fields, or it is a patch that a GPU
                         does not apply: decoded on the CPU */
  uint32_t reserved;
} dr_tensor_info;

/* Size of the frame at `frame`, of which `size` bytes are readable; reads the header only and verifies no check. For
 * consecutive frames, or frames in slots. CORRUPT (not a frame, or longer than size), UNSUPPORTED. */
DR_API dr_status dr_frame_size(const void *frame, size_t size, size_t *frame_size, dr_error *error);

/* Reads the header and verifies every check; decodes nothing. Any alignment. infos may be NULL; at most `capacity` are
 * written. size may exceed the frame. CORRUPT, UNSUPPORTED (a codec that is not loaded). A status frame
 * is not an error here. */
DR_API dr_status dr_inspect(const void *frame, size_t size, dr_frame_info *info, dr_tensor_info *infos, size_t stride,
                            size_t capacity, dr_error *error);

/* As dr_inspect, but reads the header only and verifies no check: before a decode, which verifies them, or for a frame
 * on a device of which the first `available` bytes were copied. `size`: bound of the whole frame. CORRUPT also if the
 * header is longer than `available`. */
DR_API dr_status dr_frame_header(const void *frame, size_t available, size_t size, dr_frame_info *info,
                                 dr_tensor_info *infos, size_t stride, size_t capacity, dr_error *error);

/* ---- Decode and merge --------------------------------------------------------------------------------- */

/* Decodes a frame of n tensors, or of one (bucket=flat) into n dense parts. If it fails, the contents of the outputs are
 * unspecified (unlike dr_merge, and unlike a decode with DR_DECODE_ADD).
 * ARGUMENT (an output does not fit the frame), CAPACITY, CORRUPT, UNSUPPORTED, MEMORY, PEER. */
DR_API dr_status dr_decode(dr_context *context, const dr_place *place, const void *frame, size_t size,
                           const dr_decode_options *options, dr_tensor_out *outs, size_t stride, size_t n);

/* Sum of k frames, weights[i] * frame i, added in the order of the frames, in f32 and rounded to the output's
 * type after each; a NaN sum is the positive quiet NaN without payload, in every place. weights NULL: all 1;
 * a weight that is not finite is ARGUMENT. Outputs are dense or, on the CPU, sparse: the union of the supports, from
 * zero (with ADD: ARGUMENT), summed in f32 and rounded once (CAPACITY if the union is larger; `needed` is sufficient).
 * Several outputs of one tensor (bucket=flat) are dense.
 * The support of a segment that is sent dense, or by an index codec that sends all elements, is its universe.
 * k may be 0: outputs, of f32, f16 or bf16, become 0 (with ADD they stay).
 * If a frame is not sound, the outputs are untouched and the error names the frame. Errors as for dr_decode. */
DR_API dr_status dr_merge(dr_context *context, const dr_place *place, const dr_bytes *frames, const float *weights,
                          size_t k, const dr_decode_options *options, dr_tensor_out *outs, size_t stride, size_t n);

#ifdef __cplusplus
}
#endif
#endif
