"""sender.h, line by line. tests/python/test_abi.py compares them."""

from ctypes import POINTER, Structure, c_char_p, c_double, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Dict, List, Optional, Tuple

from ._abi import dr_bytes, dr_call, dr_context, dr_dtype, dr_error, dr_place, dr_plan, dr_status
from ._abi_plan import dr_book
from ._types import CType


class dr_sender(Structure):
    """Opaque."""


DR_NAMED_ROWS = 1 << 0


class dr_named_tensor(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("dtype", dr_dtype),
        ("flags", c_uint32),
        ("rows", c_uint64),
        ("elements", c_uint64),
        ("plan", POINTER(dr_plan)),
        ("base", c_void_p),
    ]


DR_SENDER_SUM = 1 << 0
DR_SENDER_F32 = 1 << 1
DR_SENDER_CALLER_STATES = 1 << 2
DR_SENDER_SKIP = 1 << 3
DR_SENDER_SCATTER = 1 << 4
DR_SENDER_DRY = 1 << 5
DR_SENDER_HALVES = 1 << 6
DR_SENDER_ZEROS = 1 << 7

DR_FLAT_BY_PLAN = 0
DR_FLAT = 1
DR_NOT_FLAT = 2
DR_DENSE_BELOW_BY_PLAN = 2**64 - 1


class dr_sender_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("ranks", c_uint32),
        ("rank", c_uint32),
        ("flags", c_uint32),
        ("flat", c_uint32),
        ("dense_below", c_uint64),
        ("unit_bytes", c_uint64),
        ("numbers", POINTER(c_uint32)),
        ("seed", c_uint64),
    ]


class dr_sender_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("ranks", c_uint32),
        ("rank", c_uint32),
        ("tensors", c_uint64),
        ("units", c_uint64),
        ("clips", c_uint32),
        ("reserved", c_uint32),
        ("states", c_uint64),
        ("memory", c_uint64),
        ("failures", c_uint64),
        ("failed", c_uint64),
        ("waits", c_uint64),
    ]


DR_UNIT_FRAMES = 0
DR_UNIT_OWNER = 1
DR_UNIT_SCATTER = 2
DR_UNIT_FACTORS = 3
DR_UNIT_ROWS = 4
DR_UNIT_HALVES = 5


class dr_unit_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_uint32),
        ("frames", c_uint32),
        ("tensors", POINTER(c_uint32)),
        ("count", c_size_t),
        ("bytes", c_uint64),
        ("bound", c_uint64),
        ("slot", c_uint64),
        ("slots", c_uint64),
        ("sum_bound", c_uint64),
        ("sum_slot", c_uint64),
        ("numbers", dr_dtype),
        ("reserved", c_uint32),
    ]


class dr_sent_tensor(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("unit", c_uint32),
        ("position", c_uint32),
        ("plan", POINTER(dr_plan)),
        ("key", c_uint64),
        ("state", c_uint64),
        ("sum_state", c_uint64),
        ("warm_state", c_uint64),
    ]


class dr_sent_rows(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("count", c_uint64),
        ("indices", c_void_p),
        ("values", c_void_p),
        ("index_dtype", dr_dtype),
        ("reserved", c_uint32),
    ]


class dr_sent(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("size", c_uint64),
        ("frames", c_uint64),
        ("kept", c_uint64),
        ("needed", c_uint64),
        ("fault", dr_status),
        ("skips", c_uint32),
    ]


DR_STATE_OWN = 0
DR_STATE_SUM = 1
DR_STATE_WARM = 2

# ---- Functions: result, arguments ---------------------------------------------------------------

_SENDER, _ERROR, _SLOTS = POINTER(dr_sender), POINTER(dr_error), [POINTER(dr_bytes), c_size_t]
_STEP: List[CType] = [_SENDER, c_size_t, POINTER(dr_call)]
_MEMORY: List[CType] = [c_void_p, c_size_t]
_STATE: List[CType] = [_SENDER, c_size_t, c_uint32, *_MEMORY]
_POINTERS = POINTER(c_void_p)

FUNCTIONS: Dict[str, Tuple[Optional[CType], List[CType]]] = {
    "dr_sender_create": (
        dr_status,
        [
            POINTER(dr_context),
            POINTER(dr_place),
            POINTER(dr_book),
            POINTER(dr_named_tensor),
            c_size_t,
            c_size_t,
            POINTER(dr_sender_options),
            POINTER(_SENDER),
        ],
    ),
    "dr_sender_destroy": (None, [_SENDER]),
    "dr_sender_describe": (dr_status, [_SENDER, POINTER(dr_sender_info), _ERROR]),
    "dr_sender_unit": (dr_status, [_SENDER, c_size_t, POINTER(dr_unit_info), _ERROR]),
    "dr_sender_tensor": (dr_status, [_SENDER, c_size_t, POINTER(dr_sent_tensor), _ERROR]),
    "dr_sender_place": (dr_status, [_SENDER, c_size_t, c_size_t, _POINTERS, _POINTERS, _POINTERS]),
    "dr_sender_place_rows": (dr_status, [_SENDER, c_size_t, POINTER(dr_sent_rows)]),
    "dr_sender_rows": (dr_status, [_SENDER, c_size_t, POINTER(dr_sent_rows)]),
    "dr_sender_clip": (dr_status, [_SENDER]),
    "dr_sender_encode": (dr_status, [*_STEP, *_MEMORY, POINTER(dr_sent)]),
    "dr_sender_sum": (dr_status, [*_STEP, *_SLOTS, *_MEMORY, POINTER(dr_sent)]),
    "dr_sender_merge": (dr_status, [*_STEP, *_SLOTS, POINTER(dr_sent)]),
    "dr_sender_check": (dr_status, [_SENDER, c_uint64, POINTER(dr_sent)]),
    "dr_sender_use_stream": (dr_status, [_SENDER, c_void_p]),
    "dr_sender_take_back": (dr_status, [_SENDER, c_uint64]),
    "dr_sender_skip": (dr_status, [_SENDER, c_uint64]),
    "dr_sender_behind": (c_size_t, [_SENDER, POINTER(c_uint32), c_size_t]),
    "dr_sender_read_state": (dr_status, _STATE),
    "dr_sender_write_state": (dr_status, _STATE),
    "dr_sender_scale": (dr_status, [_SENDER, c_double]),
    "dr_sender_resume": (dr_status, [_SENDER, c_uint64, c_uint64]),
}
