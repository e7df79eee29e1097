/* DeepReduce: the interface of a codec. C11 and C++20; includes <stddef.h> and <stdint.h> only.
 *
 * A codec turns one stream of one sparse tensor into bytes and back. There are four roles:
 *   index   the support: r ascending indices below a universe          in: u32 list    out: bytes
 *   value   count * width numbers in the order of the support          in: f32/f16/bf16
 *   order   a permutation of 0..count-1                                in: u32 list
 *   bytes   any bytes, after another codec (written `+name`)           in: bytes
 * Every operation takes an array of jobs: the streams of all tensors of a batch that share codec, data
 * type and wire header. A CPU codec may loop over them; a CUDA codec covers up to 400 of them in at most
 * `launches` launches. No operation allocates, synchronises, prints, throws or aborts; an error in the data
 * becomes the fault of its job, and the other jobs continue.
 *
 * Version 2. Structs grow at their end only, and begin with their size, as compiled by their owner. So:
 * - The stride of an array of structs is the struct_size of its first element, not sizeof: dr_job_at and its
 *   siblings return element i. That holds for jobs and needs, and for a codec's parameters, values and fields.
 * - A reader reads no field that begins beyond struct_size; such a field counts as zero.
 * - The owner of a struct sets struct_size, for outputs too; the code that fills a struct does not change it.
 * Reserved fields are zero.
 */
#ifndef DEEPREDUCE_CODEC_H
#define DEEPREDUCE_CODEC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Named for the party that must act. */
typedef int32_t dr_status;
enum {
  DR_OK = 0,
  DR_E_ARGUMENT = 1,    /* the caller: an argument, a plan or an input value is wrong */
  DR_E_CAPACITY = 2,    /* the caller: a buffer is too small, or a limit too low */
  DR_E_CORRUPT = 3,     /* the bytes are not a frame, or are damaged */
  DR_E_UNSUPPORTED = 4, /* the bytes or the plan need a feature that this build lacks */
  DR_E_MEMORY = 5,      /* the allocator failed */
  DR_E_DEVICE = 6,      /* the device failed */
  DR_E_INTERNAL = 7,    /* a bug of this library or of a codec: please report it */
  DR_E_PEER = 8,        /* another rank could not encode; its frame has the reason */
  DR_E_TIMEOUT = 9,     /* a rank did not answer in time (exchange.h) */
  DR_PENDING = 10       /* no error: not done yet, call again (exchange.h) */
};

typedef uint32_t dr_dtype;
enum {
  DR_F32 = 1,
  DR_F16 = 2,
  DR_BF16 = 3,
  DR_U32 = 4, /* of values: raw words of 32 bits, in patches */
  DR_I32 = 5,
  DR_U64 = 6,
  DR_I64 = 7,
  DR_F64 = 8, /* in patches only, as the next two, raw words */
  DR_U8 = 9,
  DR_U16 = 10
};
#define DR_DTYPE_BIT(dtype) (1u << (dtype))

typedef uint32_t dr_role;
enum {
  DR_ROLE_INDEX = 1,
  DR_ROLE_VALUE = 2,
  DR_ROLE_ORDER = 3,
  DR_ROLE_BYTES = 4,
  DR_ROLE_PAIR = 5,     /* reserved: joint coding of indices and values */
  DR_ROLE_SPARSIFY = 7, /* listed like codecs, built in only; never in a frame */
  DR_ROLE_FEEDBACK = 8
};

/* The forms of a support that an index codec accepts. All accept lists. A codec with ALL sends the whole universe in
 * no bytes, for any input, and has no wire fields; the library makes a list for it, and calls it, only if a list is
 * needed. */
typedef uint32_t dr_form;
enum { DR_FORM_LIST = 1, DR_FORM_ALL = 3 };

/* Traits determine the order in which the pipeline runs the stages; every trait has a property test. */
enum {
  DR_EXACT = 1u << 0,            /* decode(encode(x)) is x, bit for bit */
  DR_REPLACES_SUPPORT = 1u << 1, /* index: the decoded support differs from the input */
  DR_REORDERS = 1u << 2,         /* value: decodes in another order, and reports it */
  DR_CARRIES_ORDER = 1u << 3,    /* index: accepts indices in any order and preserves it */
  DR_LINEAR = 1u << 4,           /* payloads may be summed (all-reduce) */
  DR_FIXED_SIZE = 1u << 5,       /* the payload size follows from header and count; it is not stored */
  DR_NEEDS_FINITE = 1u << 6,     /* value: NaN and infinities are an error before encode */
  DR_SHARED_RANDOM = 1u << 7,    /* draws from job.shared_key: the same on every rank */
  DR_PRIVATE_RANDOM = 1u << 8,   /* draws from job.private_key: independent between ranks */
  DR_HOST_ONLY = 1u << 9,        /* runs on the CPU only */
  DR_TOTAL = 1u << 10,           /* encode never fails, for any input: feedback needs no undo copy */
  /* index: precedes another index codec and expands its keys. It has no operations; plans cannot name it, and
   * plug-ins cannot have one */
  DR_PREFIX = 1u << 11,
  /* index, value: reads job.base, which decode has, too. In plans with sparsify=changed only;
   * plug-ins cannot have one */
  DR_NEEDS_BASE = 1u << 12,
  /* index, value: reads job.history, too; with DR_NEEDS_BASE */
  DR_NEEDS_HISTORY = 1u << 13
};

/* Streams of a tensor, in faults, traces and statistics. */
enum { DR_STREAM_NONE = 0, DR_STREAM_INDEX = 1, DR_STREAM_VALUE = 2, DR_STREAM_ORDER = 3 };

/* The first fault of a job; dr_job_fault and, in C++, dr::fault record it. `message` is a static string or NULL. */
typedef struct dr_fault {
  size_t struct_size;
  dr_status code;
  uint32_t stream; /* set by the library before a CPU operation, which leaves it; DR_STREAM_* set by a CUDA kernel */
  uint64_t where;  /* an element or, for bytes off the wire, a byte offset in the payload */
  uint64_t what;   /* the value at fault */
  const char *message;
} dr_fault;

/* ---- Parameters: declared by the codec, set in the plan's text, local to the encoder ------------------ */

typedef uint32_t dr_param_type;
enum { DR_PARAM_INT = 1, DR_PARAM_REAL = 2, DR_PARAM_CHOICE = 3 };

typedef struct dr_param {
  size_t struct_size;
  const char *name, *summary; /* no two parameters of a codec have the same name */
  dr_param_type type;
  uint32_t required;       /* 1: the plan must set it */
  double minimum, maximum; /* of the number, inclusive */
  double fallback;         /* the default, in the range (a choice: its position, from 0), unless required */
  const char *choices;     /* of a choice: "p0|leftmost" */
} dr_param;

typedef struct dr_value {
  size_t struct_size;
  uint32_t given; /* 1: the plan named it */
  uint32_t reserved;
  double number; /* the number or, for a choice, its position */
} dr_value;

/* ---- Wire fields: up to DR_FIELDS_MAX integers that decode needs and that do not depend on data ------- */

#define DR_FIELDS_MAX 8

typedef struct dr_field {
  size_t struct_size;
  const char *name;
  uint64_t minimum, maximum; /* inclusive; a frame with any other value is corrupt, and the codec is not called */
  uint64_t fallback;         /* the default; frames omit trailing fields that equal it */
} dr_field;

/* The arguments of an operation besides its jobs. `resolve`, `cost` and `encode` have values; decode has fields
 * only, and so has `need`, which is called before a decode, too: parameters that these two need are wire fields. */
typedef struct dr_params {
  size_t struct_size;
  const dr_value *values; /* one for each declared param; NULL in decode and in the `need` before it */
  const uint64_t *fields; /* one for each declared field; in `resolve` not yet set */
  uint32_t beside; /* resolve of a value codec: traits of the index codec, of which DR_REPLACES_SUPPORT says that values
                             come which were not selected; else 0 */
  uint32_t reserved;
} dr_params;

/* ---- Jobs --------------------------------------------------------------------------------------------- */

/* One stream of one tensor. The array is in host memory, read during the call only. A number that depends on data is
 * a pointer to memory in the place of the data, with an upper bound in host memory.
 *
 * In CUDA operations all pointers but the array point to device memory; count, in_size, out_size, tell_count and
 * fault are never NULL where they have a meaning. Encode: `in` is aligned to its elements, `out` to 16, with space
 * for need.payload rounded up to 16. Decode: `in` and `out` are aligned to 16; the payload is followed by zeros up
 * to a multiple of 16 and by 16 more. For an index codec that replaces the support, tell_count is, on decode, the
 * size of the support in the frame. If the count on the device is 0 the row does not use the codec, which sets
 * out_size to 0 for any payload (raw keys, for example). A fault on a device has no message, and its struct_size is
 * 0: fields of version 2 are written. Bytes, reported supports and orders, and statuses equal those of the CPU
 * operations. */
typedef struct dr_job {
  size_t struct_size;
  uint64_t universe;                /* index: indices are below it (< 2^32); value, order: the same, for scale */
  uint64_t count_max;               /* in host memory: determines grid, scratch and bounds */
  const uint64_t *count;            /* elements (rows of `width` for values), at least 1; NULL: count_max */
  uint32_t dtype, width;            /* of the values; index and order streams are u32 of width 1 */
  const void *in;                   /* encode: the elements; decode: the payload, perhaps unaligned */
  uint64_t in_max;                  /* bytes */
  const uint64_t *in_size;          /* bytes; NULL: in_max */
  void *out;                        /* encode: the payload; decode: the elements. 16-byte aligned */
  uint64_t out_capacity;            /* bytes; encode: at least need.payload. Never write past it */
  uint64_t *out_size;               /* bytes written; for an index decode, 4 * size of the support */
  void *tell;                       /* encode. index: the support that decode will return (u32, ascending), never empty;
                              value that REORDERS: order[j], u32: the position in `in` of the value that
                              decode returns at position j. NULL if not requested */
  uint64_t tell_capacity;           /* elements. An index codec with a larger support sets the fault DR_E_CAPACITY, and
                              the pipeline sends the keys of this tensor raw */
  uint64_t *tell_count;             /* elements */
  uint64_t shared_key, private_key; /* randomness: draw i depends on (key, i) only */
  dr_fault *fault;                  /* code != DR_OK on entry: skip the job */
  /* For a codec with DR_NEEDS_BASE, aligned to its elements. index: the receiver's `universe` rows, of `dtype` and
   * `width`; value: those at the support, `count` rows. Otherwise NULL. */
  const void *base;
  /* For a codec with DR_NEEDS_HISTORY: the history of these words, a byte per word (dr_tensor.history). NULL: all are 0 */
  const uint8_t *history;
} dr_job;

/* The payload size of a codec of fixed size, in closed form, so that a GPU can validate a frame without the host:
 * `beside` bytes; for each `bucket` values (rows · row_values of them; 0: none) `bucket_bytes` bytes (0: 4); and for the
 * rows (rows · rate) >> 16 bits, of which at least `minimum`, rounded up to whole granules; if `logarithmic`, rate is
 * 65536 · ⌈log2 rows⌉ instead. (A library before 0.3 has a rule without the last two fields: its struct_size is 40.) */
typedef struct dr_size_rule {
  size_t struct_size;
  uint64_t rate;
  uint32_t minimum, granule; /* bits; granule: a multiple of 8 */
  uint32_t bucket, row_values;
  uint32_t logarithmic, reserved;
  uint32_t bucket_bytes, beside;
} dr_size_rule;

/* Closed-form bounds of one job, from universe, count_max, width, dtype, in_max and fields alone. On entry all fields
 * but struct_size and rule are 0. Payload and scratch never decrease when count_max or in_max grows. With DR_FIXED_SIZE
 * `payload` is exact if count_max is the count. The `need` of CUDA operations returns the payload and tell of the
 * CPU's, and its own scratch. */
typedef struct dr_need {
  size_t struct_size;
  uint64_t payload; /* bytes that encode may write */
  uint64_t tell;    /* bound of the support (index codecs that replace it), in elements */
  /* Bytes of one job. A CPU call receives, for every worker, those of its largest job. A CUDA call receives a piece
   * per job, in the order of the jobs, rounded up to 64 bytes and filled with zeros by the caller. */
  uint64_t encode_scratch, decode_scratch;
  dr_size_rule *rule; /* CUDA operations: to be filled by a codec with DR_FIXED_SIZE, unless NULL */
  /* Index codecs that replace the support, 1: for any data the support has at most `tell` elements; so keys are never
   * sent raw, and the bound of a frame does not include them. */
  uint32_t tell_suffices, reserved;
} dr_need;

/* Element i of an array, for any version of the struct. */
static inline const dr_job *dr_job_at(const dr_job *jobs, size_t i) {
  return (const dr_job *)((const char *)jobs + i * jobs->struct_size);
}
static inline dr_need *dr_need_at(dr_need *needs, size_t i) {
  return (dr_need *)((char *)needs + i * needs->struct_size);
}
static inline const dr_value *dr_value_at(const dr_value *values, size_t i) {
  return (const dr_value *)((const char *)values + i * values->struct_size);
}
static inline const dr_param *dr_param_at(const dr_param *params, size_t i) {
  return (const dr_param *)((const char *)params + i * params->struct_size);
}
static inline const dr_field *dr_field_at(const dr_field *fields, size_t i) {
  return (const dr_field *)((const char *)fields + i * fields->struct_size);
}

/* Elements of a job, and bytes of its `in`. On the CPU only: in CUDA operations the numbers are in device memory. */
static inline uint64_t dr_job_count(const dr_job *job) { return job->count ? *job->count : job->count_max; }
static inline uint64_t dr_job_in_size(const dr_job *job) { return job->in_size ? *job->in_size : job->in_max; }

/* Records the fault of a job, unless it has one: the first is reported. `message`: a static string. */
static inline void dr_job_fault(const dr_job *job, dr_status code, uint64_t where, uint64_t what, const char *message) {
  if (job->fault->code != DR_OK) return;
  job->fault->code = code;
  job->fault->where = where;
  job->fault->what = what;
  job->fault->message = message;
}

/* ---- Kernels: how a codec's `cuda` operations run on the GPU -------------------------------------------- */

/* A kernel has one argument by value, with the jobs: the host copies what a kernel needs of a job (pointers, bounds,
 * the number of its first block) to the argument, for up to 400 jobs of 80 bytes, and a block finds its job by its
 * block number. More jobs are more launches. `device` returns its __global__ function; `host` runs block `block` of
 * a grid on the CPU, so that machines without a GPU can test whole pipelines (the library's own kernels are
 * templates over both, lib/primitive/block.hpp). */
typedef struct dr_kernel {
  size_t struct_size;
  const char *name;
  uint32_t lanes;       /* threads of a block */
  uint32_t args_size;   /* bytes of the argument, at most 32764 */
  uint32_t shared_size; /* bytes of static shared memory that `host` needs */
  uint32_t
      grid_phases; /* above 1: a cooperative launch; no block begins a phase before all have ended the one before */
  const void *(*device)(void);                                                     /* NULL: not compiled for a GPU */
  void (*host)(void *grid, uint32_t block, uint32_t grid_phase, const void *args); /* NULL: not emulated */
  uint32_t flags, reserved; /* DR_KERNEL_* bits. Without any it is launched when all before it have ended */
} dr_kernel;
/* The kernel may be launched while the one before it runs (programmatic launch). It has a second argument, uint32_t
 * beside. If that is 0, it executes griddepcontrol.wait before it reads or writes memory, then
 * griddepcontrol.launch_dependents; otherwise it needs nothing of the kernel before it, nor of one
 * beside which that one stands (which may set the fault of its job meanwhile), and executes launch_dependents at its begin, and
 * wait at its end. */
#define DR_KERNEL_WAITS (1u << 0)

/* A stable sort of n pairs by bits [0, bits) of their keys, ascending. Inputs are overwritten. All in device memory. */
typedef struct dr_sort {
  size_t struct_size;
  uint64_t n;
  uint32_t bits, reserved;
  uint64_t *keys, *other_keys; /* the result is in keys and values; both buffers of either are written */
  uint32_t *values, *other_values;
  void *temp;
  uint64_t temp_size; /* at least dr_sort_temp(n) */
} dr_sort;
/* Bytes of temp for dr_sort of n pairs: 256 counters of 4 bytes for every tile of at least 2048 keys, so n / 2, and
 * 32768 for histograms. For several sorts at once: with the sum of their n. */
static inline uint64_t dr_sort_temp(uint64_t n) { return n / 2 + 32768; }

/* Where an operation runs. `parallel` calls f(arg, item, worker) for every item below n, worker < workers;
 * scratch of worker w begins at scratch + w * scratch_size and is 64-byte aligned. */
typedef struct dr_exec {
  size_t struct_size;
  void *scratch;
  uint64_t scratch_size;
  void *stream; /* cudaStream_t, or NULL on the CPU and on an emulated GPU */
  uint32_t workers, reserved;
  void *pool;
  void (*parallel)(void *pool, size_t n, void (*f)(void *arg, size_t item, size_t worker), void *arg);
  /* CUDA operations only: enqueue on the call's stream, in the order of these calls. They may be held back until others
   * follow, so an operation enqueues by nothing else. DEVICE, UNSUPPORTED (no kernel for this place). */
  void *device;
  dr_status (*launch)(void *device, const dr_kernel *, uint32_t blocks, const void *args);
  dr_status (*sort)(void *device, const dr_sort *);
} dr_exec;

typedef struct dr_ops {
  size_t struct_size;
  /* Computes wire fields from parameters, on the host, from the bounds of a job alone. NULL: no fields. A status
   * other than DR_OK refuses the plan for this job; the fault may state the reason. */
  dr_status (*resolve)(const dr_params *, const dr_job *, uint64_t *fields, dr_fault *);
  /* Bounds of each job; DR_E_CORRUPT if the wire fields do not fit a job. The `need` of CUDA operations is first called
   * with n = 0: DR_E_UNSUPPORTED means that these fields have no CUDA path. */
  dr_status (*need)(const dr_params *, const dr_job *, size_t n, dr_need *);
  /* Optional: exact payload bytes of each job, without writing them. CPU. */
  dr_status (*cost)(const dr_exec *, const dr_params *, const dr_job *, size_t n, uint64_t *bytes);
  /* On the CPU encode and decode return DR_OK: what is wrong with a job is its fault (dr_job_fault), with a DR_E_*. Encode
   * writes at most the `need`.payload of its job, with DR_FIXED_SIZE exactly that of the job's actual count. */
  dr_status (*encode)(const dr_exec *, const dr_params *, const dr_job *, size_t n);
  /* The payload is hostile and may end anywhere. A payload that is too short or too long is DR_E_CORRUPT (a bytes
   * codec, which has no count, may decode it to other bytes); any other payload that encode would not write is
   * DR_E_CORRUPT, too, or decodes to elements in range. params->values is NULL. */
  dr_status (*decode)(const dr_exec *, const dr_params *, const dr_job *, size_t n);
  uint16_t launches[2]; /* encode, decode: at most, for each 400 jobs; a sort is one */
} dr_ops;

typedef struct dr_codec {
  size_t struct_size;
  /* name: [a-z][a-z0-9_]*; "auto" is reserved. In plans "plugin.name" is a codec that is not built in; the prefix is
   * required if a built-in of this role has the same name, which a later release may add */
  const char *name, *summary;
  uint32_t id; /* built in: below 0x8000; private: dr_private_id of a reverse-DNS name */
  dr_role role;
  uint32_t traits;
  uint32_t dtypes; /* DR_DTYPE_BIT set of the values it accepts; 0 where that has no meaning */
  uint32_t forms;  /* index: bit set of 1 << DR_FORM_* */
  uint32_t reserved;
  const dr_param *params;
  size_t param_count;
  const dr_field *fields;
  size_t field_count;
  const dr_ops *cpu, *cuda; /* both read and write the same bytes; NULL: missing */
} dr_codec;

/* Bytes of a payload of `rows` rows by a rule; saturates below 2^61. (Marked for CUDA compilers.) */
#if defined(__CUDACC__)
__host__ __device__
#endif
    static inline uint64_t
    dr_rule_size(const dr_size_rule *r, uint64_t rows) {
  const uint64_t most = (uint64_t)1 << 60; /* of each of two parts */
  uint64_t rate = r->rate, bits, bucket_bytes = 4, beside = 0, buckets = 0;
  if (r->struct_size >= sizeof *r) {
    if (r->bucket_bytes) bucket_bytes = r->bucket_bytes;
    beside = r->beside;
  }
  if (r->logarithmic) {
    rate = 0;
    while (rows > (uint64_t)1 << (rate >> 16)) rate += 65536;
  }
  /* rows < 2^32, rate < 2^64: in two halves, so that nothing overflows unnoticed */
  if (rows && rate / 65536 > most / rows) return most;
  bits = rate / 65536 * rows + ((rate % 65536 * rows) >> 16);
  if (bits < r->minimum) bits = r->minimum;
  bits = (bits + r->granule - 1) / r->granule * r->granule;
  if (r->bucket) buckets = rows * r->row_values / r->bucket + (rows * r->row_values % r->bucket != 0);
  if (buckets > most / bucket_bytes) return most;
  return bits / 8 + bucket_bytes * buckets + beside;
}

/* ---- Plug-ins ----------------------------------------------------------------------------------------- */

/* The properties of the library for a plug-in. */
typedef struct dr_host {
  size_t struct_size;
  uint32_t codec_abi; /* DR_CODEC_ABI_VERSION of the library */
  uint32_t reserved;
} dr_host;

/* A plug-in exports this one symbol. It returns `*count` codecs that exist until the process ends, or NULL
 * if it cannot work with this library. It is never unloaded. */
typedef const dr_codec *const *(*dr_plugin_fn)(const dr_host *, size_t *count);
#define DR_PLUGIN_SYMBOL "dr_plugin_v2"

/* The id of a private codec: FNV-1a of its reverse-DNS name ("org.example.zigzag"), folded to 15 bits, with the top
 * bit set. Frames store it, and no built-in ever has it. It is an error if codecs of one role in two loaded plug-ins
 * have the same id or the same name. It is not a constant in C: the entry point sets the id of the codec's static
 * struct before it returns it. */
static inline uint32_t dr_private_id(const char *name) {
  uint32_t hash = 2166136261u;
  while (*name) hash = (hash ^ (uint8_t)*name++) * 16777619u;
  return 0x8000u | ((hash ^ (hash >> 15)) & 0x7fffu);
}

#ifdef __cplusplus
}
#endif
#endif
