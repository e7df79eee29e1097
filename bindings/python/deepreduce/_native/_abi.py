"""version.h, codec.h (_abi_codec.py), deepreduce.h (and _abi_plan.py); exchange.h, transform.h, control.h: _abi_*.py. test_abi.py compares."""

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
    c_ubyte,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Dict, List, Optional, Tuple

# ruff: noqa: F403, F405 (deepreduce.h includes all of the others)
from ._abi_codec import *

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
DR_REASON_NONE = 0
DR_REASON_WRONG_BASE = 1
DR_REASON_OUT_OF_STEP = 2


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
        ("reason", c_uint32),
        ("reserved", c_uint32),
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
DR_PLAN_TRANSFORMS = 1 << 11
DR_PLAN_RESIDUAL = 1 << 12
DR_PLAN_VOTE = 1 << 13
DR_PLAN_PATCH = 1 << 14
DR_PLAN_COEFFICIENTS = 1 << 15


class dr_plan_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint32),
        ("dtypes", c_uint32),
    ]


class dr_preset(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("set", c_char_p),
        ("plan", c_char_p),
        ("note", c_char_p),
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
        ("base", c_void_p),
        ("sums", POINTER(c_uint64)),
        ("history", POINTER(c_ubyte)),
        ("rows", c_uint64),
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
DR_CALL_STEP_AT = 1 << 4


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
        ("segments", c_uint32),
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
        ("base", c_void_p),
        ("sums", POINTER(c_uint64)),
        ("history", POINTER(c_ubyte)),
    ]


DR_DECODE_ADD = 1 << 0
DR_DECODE_TAG = 1 << 1
DR_DECODE_VOTE = 1 << 2
DR_DECODE_APPLY = 1 << 3
DR_DECODE_COEFFICIENTS = 1 << 4


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
DR_FRAME_PATCH = 1 << 8


class dr_frame_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("version", c_uint32),
        ("flags", c_uint32),
        ("status", dr_status),
        ("tensors", c_uint32),
        ("segments", c_uint32),
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

_CONTEXT, _PLAN, _BATCH, _BINDING = map(POINTER, (dr_context, dr_plan, dr_batch, dr_binding))
_CALL, _PLACE, _OPTIONS, _RESULT, _ERROR = map(POINTER, (dr_call, dr_place, dr_decode_options, dr_result, dr_error))
# Groups of arguments: an array, its stride, its length; memory and its size; frames, weights, their number.
_TENSORS: List[type] = [POINTER(dr_tensor), c_size_t, c_size_t]
_OUTS: List[type] = [POINTER(dr_tensor_out), c_size_t, c_size_t]
_INFOS: List[type] = [POINTER(dr_frame_info), POINTER(dr_tensor_info), c_size_t, c_size_t]
_MEMORY: List[type] = [c_void_p, c_size_t]
_FRAMES: List[type] = [POINTER(dr_bytes), POINTER(c_float), c_size_t]

FUNCTIONS: Dict[str, Tuple[Optional[type], List[type]]] = {
    "dr_version": (c_char_p, []),
    "dr_abi_version": (c_uint32, []),
    "dr_status_name": (c_char_p, [dr_status]),
    "dr_feature": (c_uint64, [c_uint32]),
    "dr_context_create": (dr_status, [POINTER(dr_context_options), POINTER(_CONTEXT), _ERROR]),
    "dr_context_destroy": (None, [_CONTEXT]),
    "dr_context_trim": (dr_status, [_CONTEXT]),
    "dr_last_error": (_ERROR, [_CONTEXT]),
    "dr_plan_parse": (dr_status, [c_char_p, POINTER(_PLAN), _ERROR]),
    "dr_plan_text": (c_char_p, [_PLAN]),
    "dr_plan_destroy": (None, [_PLAN]),
    "dr_plan_describe": (dr_status, [_PLAN, POINTER(dr_plan_info), _ERROR]),
    "dr_plan_exact": (dr_status, [_PLAN, POINTER(_PLAN), _ERROR]),
    "dr_plan_rows": (dr_status, [_PLAN, POINTER(_PLAN), _ERROR]),
    "dr_preset_count": (c_size_t, []),
    "dr_preset_at": (POINTER(dr_preset), [c_size_t]),
    "dr_codec_count": (c_size_t, []),
    "dr_codec_at": (POINTER(dr_codec), [c_size_t]),
    "dr_codec_register": (dr_status, [POINTER(dr_codec), _ERROR]),
    "dr_plugin_load": (dr_status, [c_char_p, _ERROR]),
    "dr_bound": (dr_status, [_CONTEXT, _PLAN, _CALL, _PLACE, *_TENSORS, POINTER(c_size_t)]),
    "dr_encode": (dr_status, [_CONTEXT, _PLAN, _CALL, _PLACE, *_TENSORS, *_MEMORY, _RESULT]),
    "dr_batch_create": (dr_status, [_CONTEXT, _PLAN, _PLACE, *_TENSORS, c_uint64, POINTER(_BATCH)]),
    "dr_batch_destroy": (None, [_BATCH]),
    "dr_batch_describe": (dr_status, [_BATCH, POINTER(dr_batch_info), _ERROR]),
    "dr_batch_encode": (dr_status, [_CONTEXT, _BATCH, _CALL, _PLACE, *_TENSORS, *_MEMORY, *_MEMORY, _RESULT]),
    "dr_batch_decode": (dr_status, [_CONTEXT, _BATCH, _PLACE, *_MEMORY, _OPTIONS, *_OUTS, *_MEMORY, _RESULT]),
    "dr_batch_merge": (dr_status, [_CONTEXT, _BATCH, _PLACE, *_FRAMES, _OPTIONS, *_OUTS, *_MEMORY, _RESULT]),
    "dr_batch_merge_workspace": (dr_status, [_BATCH, c_size_t, POINTER(c_size_t), _ERROR]),
    "dr_binding_create": (dr_status, [_CONTEXT, _BATCH, _PLACE, *_TENSORS[:2], *_OUTS, c_size_t, POINTER(_BINDING)]),
    "dr_binding_destroy": (None, [_BINDING]),
    "dr_binding_rebind": (dr_status, [_BINDING, *_TENSORS[:2], *_OUTS]),
    "dr_binding_encode": (dr_status, [_BINDING, _CALL, *_MEMORY, _RESULT]),
    "dr_binding_decode": (dr_status, [_BINDING, *_MEMORY, _OPTIONS, _RESULT]),
    "dr_binding_merge": (dr_status, [_BINDING, *_FRAMES, _OPTIONS, _RESULT]),
    "dr_state_size": (dr_status, [_PLAN, POINTER(dr_tensor), POINTER(c_size_t), _ERROR]),
    "dr_state_check": (dr_status, [_PLAN, POINTER(dr_tensor), *_MEMORY, _ERROR]),
    "dr_state_residual": (dr_status, [*_MEMORY, POINTER(POINTER(c_float)), POINTER(c_uint64), _ERROR]),
    "dr_state_momentum": (dr_status, [*_MEMORY, POINTER(POINTER(c_float)), POINTER(c_uint64), _ERROR]),
    "dr_state_fill": (dr_status, [_PLAN, POINTER(dr_tensor), POINTER(c_float), *_MEMORY, _ERROR]),
    "dr_state_copy": (dr_status, [*_MEMORY, c_uint64, *_MEMORY, c_uint64, c_uint64, _ERROR]),
    "dr_state_scale": (dr_status, [*_MEMORY, c_double, _ERROR]),
    "dr_state_norm": (dr_status, [*_MEMORY, POINTER(c_double), _ERROR]),
    "dr_base_sums": (dr_status, [c_void_p, c_uint64, POINTER(c_uint64), c_size_t, _ERROR]),
    "dr_base_check": (c_uint64, [POINTER(c_uint64), c_size_t]),
    "dr_frame_size": (dr_status, [*_MEMORY, POINTER(c_size_t), _ERROR]),
    "dr_inspect": (dr_status, [*_MEMORY, *_INFOS, _ERROR]),
    "dr_frame_header": (dr_status, [*_MEMORY, c_size_t, *_INFOS, _ERROR]),
    "dr_decode": (dr_status, [_CONTEXT, _PLACE, *_MEMORY, _OPTIONS, *_OUTS]),
    "dr_merge": (dr_status, [_CONTEXT, _PLACE, *_FRAMES, _OPTIONS, *_OUTS]),
}


def declare(library: CDLL, functions: Dict[str, Tuple[Optional[type], List[type]]] = FUNCTIONS) -> None:
    """Declares result and arguments of every function. AttributeError if the library does not have one."""
    for name, (restype, argtypes) in functions.items():
        function = getattr(library, name)
        function.restype = restype
        function.argtypes = argtypes
