"""version.h and codec.h, line by line; _abi.py has the rest.

Of codec.h only the parts that callers read: jobs, operations and plug-ins are for codecs written in C.
"""

from ctypes import POINTER, Structure, c_char_p, c_double, c_int32, c_size_t, c_uint32, c_uint64

# ==== version.h ==================================================================================

DR_VERSION_MAJOR = 0
DR_VERSION_MINOR = 3
DR_VERSION_PATCH = 0
DR_VERSION_STRING = "0.3.0"
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
DR_E_TIMEOUT = 9
DR_PENDING = 10

dr_dtype = c_uint32
DR_F32 = 1
DR_F16 = 2
DR_BF16 = 3
DR_U32 = 4
DR_I32 = 5
DR_U64 = 6
DR_I64 = 7
DR_F64 = 8
DR_U8 = 9
DR_U16 = 10

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
DR_PREFIX = 1 << 11
DR_NEEDS_BASE = 1 << 12
DR_NEEDS_HISTORY = 1 << 13

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
DR_KERNEL_WAITS = 1 << 0
