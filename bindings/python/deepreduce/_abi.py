"""version.h, codec.h and deepreduce.h, line by line. tests/python/test_abi.py compares this file with them.

Of codec.h only what a caller reads is here; jobs, operations and plug-ins concern who writes a codec in C.
"""

from ctypes import (
    CDLL,
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, Dict, List, Tuple

# ==== version.h ==================================================================================

DR_VERSION_MAJOR = 0
DR_VERSION_MINOR = 2
DR_VERSION_PATCH = 0
DR_VERSION_STRING = "0.2.0"
DR_ABI_VERSION = 1
DR_CODEC_ABI_VERSION = 2
DR_FORMAT_VERSION = 1

# ==== codec.h ====================================================================================

dr_status = c_int32
DR_OK = 0
DR_E_ARGUMENT = 1
DR_E_CAPACITY = 2
DR_E_CORRUPT = 3
DR_E_UNSUPPORTED = 4
DR_E_MEMORY = 5
DR_E_DEVICE = 6
DR_E_INTERNAL = 7
DR_E_PEER = 8

dr_dtype = c_uint32
DR_F32 = 1
DR_F16 = 2
DR_BF16 = 3
DR_U32 = 4
DR_I32 = 5
DR_U64 = 6
DR_I64 = 7

dr_role = c_uint32
DR_ROLE_INDEX = 1
DR_ROLE_VALUE = 2
DR_ROLE_ORDER = 3
DR_ROLE_BYTES = 4
DR_ROLE_PAIR = 5
DR_ROLE_SPARSIFY = 7
DR_ROLE_FEEDBACK = 8

dr_form = c_uint32
DR_FORM_LIST = 1
DR_FORM_ALL = 3

DR_EXACT = 1 << 0
DR_REPLACES_SUPPORT = 1 << 1
DR_REORDERS = 1 << 2
DR_CARRIES_ORDER = 1 << 3
DR_LINEAR = 1 << 4
DR_FIXED_SIZE = 1 << 5
DR_NEEDS_FINITE = 1 << 6
DR_SHARED_RANDOM = 1 << 7
DR_PRIVATE_RANDOM = 1 << 8
DR_HOST_ONLY = 1 << 9
DR_TOTAL = 1 << 10

DR_STREAM_NONE = 0
DR_STREAM_INDEX = 1
DR_STREAM_VALUE = 2
DR_STREAM_ORDER = 3


class dr_fault(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("code", dr_status),
        ("stream", c_uint32),
        ("where", c_uint64),
        ("what", c_uint64),
        ("message", c_char_p),
    ]


dr_param_type = c_uint32
DR_PARAM_INT = 1
DR_PARAM_REAL = 2
DR_PARAM_CHOICE = 3


class dr_param(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("summary", c_char_p),
        ("type", dr_param_type),
        ("required", c_uint32),
        ("minimum", c_double),
        ("maximum", c_double),
        ("fallback", c_double),
        ("choices", c_char_p),
    ]


DR_FIELDS_MAX = 8


class dr_field(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("minimum", c_uint64),
        ("maximum", c_uint64),
        ("fallback", c_uint64),
    ]


class dr_ops(Structure):
    """Opaque here."""


class dr_codec(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("summary", c_char_p),
        ("id", c_uint32),
        ("role", dr_role),
        ("traits", c_uint32),
        ("dtypes", c_uint32),
        ("forms", c_uint32),
        ("reserved", c_uint32),
        ("params", POINTER(dr_param)),
        ("param_count", c_size_t),
        ("fields", POINTER(dr_field)),
        ("field_count", c_size_t),
        ("cpu", POINTER(dr_ops)),
        ("cuda", POINTER(dr_ops)),
    ]


DR_PLUGIN_SYMBOL = "dr_plugin_v2"

# ==== deepreduce.h ===============================================================================


class dr_context(Structure):
    """Opaque."""


class dr_plan(Structure):
    """Opaque."""


class dr_batch(Structure):
    """Opaque."""


# ---- Versions and errors ------------------------------------------------------------------------

DR_FEATURE_CUDA = 1
DR_FEATURE_FORMAT = 2
DR_FEATURE_CODEC_ABI = 3
DR_FEATURE_CPU = 4
DR_FEATURE_CALL_FLAGS = 5
DR_FEATURE_DECODE_FLAGS = 6
DR_FEATURE_TENSOR_FLAGS = 7
DR_FEATURE_PLACE_FLAGS = 8

DR_NO_TENSOR = 2**64 - 1
DR_NO_FRAME = 2**64 - 1


class dr_error(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("code", dr_status),
        ("stream", c_uint32),
        ("tensor", c_uint64),
        ("where", c_uint64),
        ("what", c_uint64),
        ("frame", c_uint64),
        ("needed", c_uint64),
        ("message", c_char * 256),
    ]


# ---- Context ------------------------------------------------------------------------------------


class dr_context_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("allocate", CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_size_t)),
        ("release", CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)),
        ("user", c_void_p),
        ("threads", c_uint32),
        ("reserved", c_uint32),
    ]


# ---- Plans --------------------------------------------------------------------------------------

DR_PLAN_SPARSIFIES = 1 << 0
DR_PLAN_FEEDBACK = 1 << 1
DR_PLAN_LOSSY_VALUES = 1 << 2
DR_PLAN_LOSSY_SUPPORT = 1 << 3
DR_PLAN_FIXED_SIZE = 1 << 4
DR_PLAN_LINEAR = 1 << 5
DR_PLAN_SHARED_RANDOM = 1 << 6
DR_PLAN_PRIVATE_RANDOM = 1 << 7
DR_PLAN_CHOOSES = 1 << 8
DR_PLAN_HOST_ONLY = 1 << 9
DR_PLAN_FLAT = 1 << 10


class dr_plan_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint32),
        ("dtypes", c_uint32),
    ]


# ---- Tensors ------------------------------------------------------------------------------------

DR_TENSOR_SUM_DUPLICATES = 1 << 0


class dr_tensor(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dtype", dr_dtype),
        ("index_dtype", dr_dtype),
        ("universe", c_uint64),
        ("width", c_uint32),
        ("flags", c_uint32),
        ("values", c_void_p),
        ("indices", c_void_p),
        ("count", c_uint64),
        ("plan", POINTER(dr_plan)),
        ("state", c_void_p),
        ("state_size", c_uint64),
        ("key", c_uint64),
    ]


DR_PLACE_CPU = 0
DR_PLACE_CUDA = 1
DR_PLACE_EMULATED = 2
DR_PLACE_ALLOW_HOST = 1 << 0


class dr_place(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_uint32),
        ("device", c_int32),
        ("stream", c_void_p),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


# ---- Encode -------------------------------------------------------------------------------------


class dr_trace(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("stage", c_char_p),
        ("begin_ns", c_uint64),
        ("end_ns", c_uint64),
        ("bytes", c_uint64),
    ]


DR_CALL_TAG = 1 << 0
DR_CALL_STATUS_FRAME = 1 << 1
DR_CALL_LIST = 1 << 2
DR_CALL_FIT = 1 << 3


class dr_call(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("step", c_uint64),
        ("seed", c_uint64),
        ("private_seed", c_uint64),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("tag", c_uint64),
        ("segment_rows", c_uint64),
        ("trace", CFUNCTYPE(None, c_void_p, POINTER(dr_trace))),
        ("trace_user", c_void_p),
        ("faults", POINTER(dr_fault)),
        ("fault_stride", c_size_t),
    ]


class dr_result(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("size", c_uint64),
        ("status", dr_status),
        ("stream", c_uint32),
        ("tensor", c_uint64),
        ("where", c_uint64),
        ("what", c_uint64),
        ("frame", c_uint64),
        ("needed", c_uint64),
        ("kept", c_uint64),
    ]


# ---- Prepared encode ----------------------------------------------------------------------------


class dr_batch_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("bound", c_uint64),
        ("workspace", c_uint64),
        ("tensors", c_uint32),
        ("rows", c_uint32),
        ("launches", c_uint32),
        ("reserved", c_uint32),
    ]


# ---- Outputs ------------------------------------------------------------------------------------


class dr_tensor_out(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dtype", dr_dtype),
        ("index_dtype", dr_dtype),
        ("universe", c_uint64),
        ("width", c_uint32),
        ("flags", c_uint32),
        ("values", c_void_p),
        ("indices", c_void_p),
        ("capacity", c_uint64),
        ("count", c_uint64),
    ]


DR_DECODE_ADD = 1 << 0
DR_DECODE_TAG = 1 << 1


class dr_decode_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("max_elements", c_uint64),
        ("max_workspace", c_uint64),
        ("tag", c_uint64),
        ("first_tensor", c_uint64),
        ("tensors", c_uint64),
        ("trace", CFUNCTYPE(None, c_void_p, POINTER(dr_trace))),
        ("trace_user", c_void_p),
    ]


class dr_bytes(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("size", c_size_t),
    ]


# ---- A batch bound to its memory ----------------------------------------------------------------


class dr_binding(Structure):
    """Opaque."""


# ---- Inspect ------------------------------------------------------------------------------------

DR_FRAME_SHORT = 1 << 0
DR_FRAME_TAG = 1 << 1
DR_FRAME_LIST = 1 << 2
DR_FRAME_STATUS = 1 << 3


class dr_frame_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("version", c_uint32),
        ("flags", c_uint32),
        ("status", dr_status),
        ("tensors", c_uint32),
        ("rows", c_uint32),
        ("plans", c_uint32),
        ("frame_size", c_uint64),
        ("header_size", c_uint64),
        ("tag", c_uint64),
        ("message", c_char * 256),
    ]


DR_FALLBACK_NONE = 0
DR_FALLBACK_RAW_INDEX = 1
DR_FALLBACK_DENSE = 2


class dr_tensor_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("universe", c_uint64),
        ("width", c_uint32),
        ("dtype", dr_dtype),
        ("count", c_uint64),
        ("support", c_uint64),
        ("segments", c_uint32),
        ("fallback", c_uint32),
        ("index_size", c_uint64),
        ("value_size", c_uint64),
        ("order_size", c_uint64),
        ("plan", c_char * 224),
        ("host_only", c_uint32),
        ("reserved", c_uint32),
    ]


# ---- Functions: result, arguments ---------------------------------------------------------------

FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "dr_version": (c_char_p, []),
    "dr_abi_version": (c_uint32, []),
    "dr_status_name": (c_char_p, [dr_status]),
    "dr_feature": (c_uint64, [c_uint32]),
    "dr_context_create": (dr_status, [POINTER(dr_context_options), POINTER(POINTER(dr_context)), POINTER(dr_error)]),
    "dr_context_destroy": (None, [POINTER(dr_context)]),
    "dr_context_trim": (dr_status, [POINTER(dr_context)]),
    "dr_last_error": (POINTER(dr_error), [POINTER(dr_context)]),
    "dr_plan_parse": (dr_status, [c_char_p, POINTER(POINTER(dr_plan)), POINTER(dr_error)]),
    "dr_plan_text": (c_char_p, [POINTER(dr_plan)]),
    "dr_plan_destroy": (None, [POINTER(dr_plan)]),
    "dr_plan_describe": (dr_status, [POINTER(dr_plan), POINTER(dr_plan_info), POINTER(dr_error)]),
    "dr_codec_count": (c_size_t, []),
    "dr_codec_at": (POINTER(dr_codec), [c_size_t]),
    "dr_codec_register": (dr_status, [POINTER(dr_codec), POINTER(dr_error)]),
    "dr_plugin_load": (dr_status, [c_char_p, POINTER(dr_error)]),
    "dr_bound": (
        dr_status,
        [
            POINTER(dr_context),
            POINTER(dr_plan),
            POINTER(dr_call),
            POINTER(dr_place),
            POINTER(dr_tensor),
            c_size_t,
            c_size_t,
            POINTER(c_size_t),
        ],
    ),
    "dr_encode": (
        dr_status,
        [
            POINTER(dr_context),
            POINTER(dr_plan),
            POINTER(dr_call),
            POINTER(dr_place),
            POINTER(dr_tensor),
            c_size_t,
            c_size_t,
            c_void_p,
            c_size_t,
            POINTER(dr_result),
        ],
    ),
    "dr_batch_create": (
        dr_status,
        [
            POINTER(dr_context),
            POINTER(dr_plan),
            POINTER(dr_place),
            POINTER(dr_tensor),
            c_size_t,
            c_size_t,
            c_uint64,
            POINTER(POINTER(dr_batch)),
        ],
    ),
    "dr_batch_destroy": (None, [POINTER(dr_batch)]),
    "dr_batch_describe": (dr_status, [POINTER(dr_batch), POINTER(dr_batch_info), POINTER(dr_error)]),
    "dr_batch_encode": (
        dr_status,
        [
            POINTER(dr_context),
            POINTER(dr_batch),
            POINTER(dr_call),
            POINTER(dr_place),
            POINTER(dr_tensor),
            c_size_t,
            c_size_t,
            c_void_p,
            c_size_t,
            c_void_p,
            c_size_t,
            POINTER(dr_result),
        ],
    ),
    "dr_batch_decode": (
        dr_status,
        [
            POINTER(dr_context),
            POINTER(dr_batch),
            POINTER(dr_place),
            c_void_p,
            c_size_t,
            POINTER(dr_decode_options),
            POINTER(dr_tensor_out),
            c_size_t,
            c_size_t,
            c_void_p,
            c_size_t,
            POINTER(dr_result),
        ],
    ),
    "dr_batch_merge": (
        dr_status,
        [
            POINTER(dr_context),
            POINTER(dr_batch),
            POINTER(dr_place),
            POINTER(dr_bytes),
            POINTER(c_float),
            c_size_t,
            POINTER(dr_decode_options),
            POINTER(dr_tensor_out),
            c_size_t,
            c_size_t,
            c_void_p,
            c_size_t,
            POINTER(dr_result),
        ],
    ),
    "dr_batch_merge_workspace": (dr_status, [POINTER(dr_batch), c_size_t, POINTER(c_size_t), POINTER(dr_error)]),
    "dr_binding_create": (
        dr_status,
        [
            POINTER(dr_context),
            POINTER(dr_batch),
            POINTER(dr_place),
            POINTER(dr_tensor),
            c_size_t,
            POINTER(dr_tensor_out),
            c_size_t,
            c_size_t,
            c_size_t,
            POINTER(POINTER(dr_binding)),
        ],
    ),
    "dr_binding_destroy": (None, [POINTER(dr_binding)]),
    "dr_binding_encode": (dr_status, [POINTER(dr_binding), POINTER(dr_call), c_void_p, c_size_t, POINTER(dr_result)]),
    "dr_binding_decode": (
        dr_status,
        [POINTER(dr_binding), c_void_p, c_size_t, POINTER(dr_decode_options), POINTER(dr_result)],
    ),
    "dr_binding_merge": (
        dr_status,
        [
            POINTER(dr_binding),
            POINTER(dr_bytes),
            POINTER(c_float),
            c_size_t,
            POINTER(dr_decode_options),
            POINTER(dr_result),
        ],
    ),
    "dr_state_size": (dr_status, [POINTER(dr_plan), POINTER(dr_tensor), POINTER(c_size_t), POINTER(dr_error)]),
    "dr_state_residual": (
        dr_status,
        [c_void_p, c_size_t, POINTER(POINTER(c_float)), POINTER(c_uint64), POINTER(dr_error)],
    ),
    "dr_state_fill": (
        dr_status,
        [POINTER(dr_plan), POINTER(dr_tensor), POINTER(c_float), c_void_p, c_size_t, POINTER(dr_error)],
    ),
    "dr_state_copy": (
        dr_status,
        [c_void_p, c_size_t, c_uint64, c_void_p, c_size_t, c_uint64, c_uint64, POINTER(dr_error)],
    ),
    "dr_state_norm": (dr_status, [c_void_p, c_size_t, POINTER(c_double), POINTER(dr_error)]),
    "dr_frame_size": (dr_status, [c_void_p, c_size_t, POINTER(c_size_t), POINTER(dr_error)]),
    "dr_inspect": (
        dr_status,
        [c_void_p, c_size_t, POINTER(dr_frame_info), POINTER(dr_tensor_info), c_size_t, c_size_t, POINTER(dr_error)],
    ),
    "dr_frame_header": (
        dr_status,
        [
            c_void_p,
            c_size_t,
            c_size_t,
            POINTER(dr_frame_info),
            POINTER(dr_tensor_info),
            c_size_t,
            c_size_t,
            POINTER(dr_error),
        ],
    ),
    "dr_decode": (
        dr_status,
        [
            POINTER(dr_context),
            POINTER(dr_place),
            c_void_p,
            c_size_t,
            POINTER(dr_decode_options),
            POINTER(dr_tensor_out),
            c_size_t,
            c_size_t,
        ],
    ),
    "dr_merge": (
        dr_status,
        [
            POINTER(dr_context),
            POINTER(dr_place),
            POINTER(dr_bytes),
            POINTER(c_float),
            c_size_t,
            POINTER(dr_decode_options),
            POINTER(dr_tensor_out),
            c_size_t,
            c_size_t,
        ],
    ),
}


def declare(library: CDLL) -> None:
    """Gives every function its prototype. AttributeError if the library lacks one."""
    for name, (restype, argtypes) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = restype
        function.argtypes = argtypes
