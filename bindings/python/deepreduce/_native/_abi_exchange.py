"""exchange.h, line by line. tests/python/test_abi.py compares them."""

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Dict, List, Optional, Tuple

from ._abi import dr_call, dr_context, dr_error, dr_place, dr_plan, dr_status, dr_tensor, dr_tensor_out


class dr_exchange(Structure):
    """Opaque."""


# ---- Transport ----------------------------------------------------------------------------------


class dr_transport(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("user", c_void_p),
        ("ranks", c_uint32),
        ("rank", c_uint32),
        ("send", CFUNCTYPE(dr_status, c_void_p, c_uint32, c_uint32, c_void_p, c_size_t, POINTER(c_uint64))),
        ("recv", CFUNCTYPE(dr_status, c_void_p, c_uint32, c_uint32, c_void_p, c_size_t, POINTER(c_uint64))),
        ("test", CFUNCTYPE(dr_status, c_void_p, c_uint64, POINTER(c_size_t))),
        ("cancel", CFUNCTYPE(dr_status, c_void_p, c_uint64)),
        ("now", CFUNCTYPE(c_uint64, c_void_p)),
        ("spend", CFUNCTYPE(None, c_void_p, c_uint32, c_uint64, c_uint64)),
    ]


# ---- Exchange -----------------------------------------------------------------------------------

DR_EXCHANGE_SUM = 1 << 0
DR_EXCHANGE_TRACE = 1 << 1
DR_EXCHANGE_DRY = 1 << 2


class dr_exchange_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("timeout_ns", c_uint64),
        ("dense_below", c_uint64),
        ("frame_size", CFUNCTYPE(c_uint64, c_void_p, c_uint64, c_uint32)),
        ("frame_size_user", c_void_p),
        ("advance_ns", c_uint64),
        ("place", POINTER(dr_place)),
        ("nccl", c_void_p),
    ]


DR_RESIDUAL_OWN = 0
DR_RESIDUAL_SUM = 1
DR_RESIDUAL_MOMENTUM = 2
DR_RESIDUAL_WARM_START = 3


class dr_exchange_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("ranks", c_uint32),
        ("rank", c_uint32),
        ("ranges", c_uint32),
        ("steps", c_uint32),
        ("memory", c_uint64),
        ("sent_max", c_uint64),
        ("calls", c_uint64),
        ("failures", c_uint64),
        ("sent", c_uint64),
        ("received", c_uint64),
        ("messages", c_uint64),
        ("kept", c_uint64),
        ("total_ns", c_uint64),
        ("encode_ns", c_uint64),
        ("wait_ns", c_uint64),
        ("merge_ns", c_uint64),
        ("waits", c_uint32),
        ("reserved", c_uint32),
    ]


DR_STEP_ENCODE = 1
DR_STEP_SEND = 2
DR_STEP_RECV = 3
DR_STEP_WAIT = 4
DR_STEP_SUM = 5
DR_STEP_ADD = 6
DR_STEP_ENCODE_SUM = 7
DR_STEP_AGREE = 8
DR_STEP_MERGE = 9
DR_STEP_DRAIN = 10
DR_STEP_DECODE = 11
DR_STEP_REDUCE = 12
DR_STEP_GATHER = 13

# ---- Loopback -----------------------------------------------------------------------------------


class dr_loopback(Structure):
    """Opaque."""


DR_LOOPBACK_ALIKE = 1 << 0


class dr_loopback_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("ranks", c_uint32),
        ("flags", c_uint32),
        ("seed", c_uint64),
        ("latency_ns", c_uint64),
        ("bytes_per_second", c_double),
        ("cost", CFUNCTYPE(c_uint64, c_void_p, c_uint32, c_uint32, c_uint64, c_uint64)),
        ("cost_user", c_void_p),
        ("takes", CFUNCTYPE(c_uint64, c_void_p, c_uint32, c_uint64, c_uint64)),
        ("takes_user", c_void_p),
    ]


# ---- Functions: result, arguments ---------------------------------------------------------------

_EXCHANGE, _LOOPBACK, _ERROR = POINTER(dr_exchange), POINTER(dr_loopback), POINTER(dr_error)
_TENSORS: List[type] = [POINTER(dr_tensor), c_size_t, POINTER(dr_tensor_out), c_size_t, c_size_t]
_RESIDUAL: List[type] = [c_uint32, c_size_t, POINTER(c_float), c_uint64]
_HOW: List[type] = [POINTER(dr_context), POINTER(dr_plan), POINTER(dr_transport), POINTER(dr_exchange_options)]

FUNCTIONS: Dict[str, Tuple[Optional[type], List[type]]] = {
    "dr_exchange_create": (dr_status, [*_HOW, *_TENSORS, POINTER(_EXCHANGE)]),
    "dr_exchange_destroy": (None, [_EXCHANGE]),
    "dr_exchange_rebind": (dr_status, [_EXCHANGE, *_TENSORS]),
    "dr_exchange_start": (dr_status, [_EXCHANGE, POINTER(dr_call)]),
    "dr_exchange_advance": (dr_status, [_EXCHANGE]),
    "dr_exchange_cancel": (dr_status, [_EXCHANGE]),
    "dr_exchange_read_residual": (dr_status, [_EXCHANGE, *_RESIDUAL]),
    "dr_exchange_write_residual": (dr_status, [_EXCHANGE, *_RESIDUAL]),
    "dr_exchange_describe": (dr_status, [_EXCHANGE, POINTER(dr_exchange_info), _ERROR]),
    "dr_step_name": (c_char_p, [c_uint32]),
    "dr_exchange_trace": (dr_status, [_EXCHANGE, c_char_p, c_size_t, POINTER(c_size_t)]),
    "dr_loopback_create": (dr_status, [POINTER(dr_loopback_options), POINTER(_LOOPBACK), _ERROR]),
    "dr_loopback_destroy": (None, [_LOOPBACK]),
    "dr_loopback_transport": (dr_status, [_LOOPBACK, c_uint32, POINTER(dr_transport)]),
    "dr_loopback_run": (dr_status, [_LOOPBACK, POINTER(_EXCHANGE), POINTER(dr_status)]),
    "dr_loopback_now": (c_uint64, [_LOOPBACK, c_uint32]),
}
