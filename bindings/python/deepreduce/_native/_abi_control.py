"""control.h, line by line. tests/python/test_abi.py compares them."""

from ctypes import POINTER, Structure, c_char_p, c_double, c_size_t, c_uint32, c_uint64
from typing import Dict, List, Optional, Tuple

from ._abi import dr_error, dr_status


class dr_control(Structure):
    """Opaque."""


DR_CONTROL_WORDS = 4

DR_CONTROL_START = 0
DR_CONTROL_NOTHING = 1
DR_CONTROL_IN_BAND = 2
DR_CONTROL_SLOW = 3
DR_CONTROL_FAST = 4
DR_CONTROL_WAITS = 5
DR_CONTROL_NO_ROOM = 6
DR_CONTROL_CLOSED = 7
DR_CONTROL_DENSEST = 8
DR_CONTROL_SMALLEST = 9
DR_CONTROL_SHARE = 10
DR_CONTROL_NO_LESS = 11
DR_CONTROL_PASSED = 12
DR_CONTROL_STEPS = 13
DR_CONTROL_LAST = 14


class dr_control_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rungs", c_uint32),
        ("rung", c_uint32),
        ("from", c_uint32),
        ("reason", c_uint32),
        ("step", c_uint64),
        ("next_step", c_uint64),
        ("decisions", c_uint64),
        ("changes", c_uint64),
        ("transfer_ns", c_uint64),
        ("bytes", c_uint64),
        ("empty_ns", c_uint64),
        ("median_ns", c_uint64),
        ("budget", c_double),
        ("base_ns", c_double),
        ("per_byte_ns", c_double),
    ]


# ---- Functions: result, arguments ---------------------------------------------------------------

_CONTROL, _WORDS, _ERROR = POINTER(dr_control), POINTER(c_uint64), POINTER(dr_error)

FUNCTIONS: Dict[str, Tuple[Optional[type], List[type]]] = {
    "dr_control_create": (dr_status, [c_char_p, _WORDS, c_size_t, POINTER(_CONTROL), _ERROR]),
    "dr_control_destroy": (None, [_CONTROL]),
    "dr_control_observe": (dr_status, [_CONTROL, c_uint64, c_uint64]),
    "dr_control_report": (dr_status, [_CONTROL, _WORDS]),
    "dr_control_decide": (dr_status, [_CONTROL, c_uint64, _WORDS, c_size_t, _ERROR]),
    "dr_control_describe": (dr_status, [_CONTROL, POINTER(dr_control_info), _ERROR]),
    "dr_control_log": (dr_status, [_CONTROL, c_char_p, c_size_t, POINTER(c_size_t)]),
    "dr_control_reason": (c_char_p, [c_uint32]),
}
