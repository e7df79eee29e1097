"""transform.h, line by line. tests/python/test_abi.py compares them."""

from ctypes import POINTER, Structure, c_float, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Dict, List, Optional, Tuple

from ._abi import dr_context, dr_error, dr_plan, dr_status, dr_tensor, dr_tensor_out


class dr_transform(Structure):
    """Opaque."""


DR_TRANSFORM_KEEP = 1 << 0
DR_TRANSFORM_MARKS = 1 << 0


class dr_transform_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("seed", c_uint64),
        ("dense_below", c_uint64),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


class dr_transform_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_uint32),
        ("busy", c_uint32),
        ("tensors", c_uint64),
        ("matrices", c_uint64),
        ("elements", c_uint64),
        ("first", c_uint64),
        ("second", c_uint64),
        ("rounds", c_uint64),
        ("memory", c_uint64),
        ("state_size", c_uint64),
    ]


# ---- Functions: result, arguments ---------------------------------------------------------------

_TRANSFORM, _FLOATS = POINTER(dr_transform), POINTER(POINTER(c_float))
_TENSORS: List[type] = [POINTER(dr_tensor), c_size_t, POINTER(dr_tensor_out), c_size_t, c_size_t]

FUNCTIONS: Dict[str, Tuple[Optional[type], List[type]]] = {
    "dr_transform_create": (
        dr_status,
        [
            POINTER(dr_context),
            POINTER(dr_plan),
            POINTER(dr_transform_options),
            POINTER(dr_tensor),
            c_size_t,
            c_size_t,
            POINTER(_TRANSFORM),
        ],
    ),
    "dr_transform_destroy": (None, [_TRANSFORM]),
    "dr_transform_begin": (dr_status, [_TRANSFORM, *_TENSORS]),
    "dr_transform_factor": (dr_status, [_TRANSFORM, _FLOATS, POINTER(c_uint64)]),
    "dr_transform_next": (dr_status, [_TRANSFORM, c_float]),
    "dr_transform_cancel": (dr_status, [_TRANSFORM, c_uint32]),
    "dr_transform_residual": (dr_status, [_TRANSFORM, c_size_t, _FLOATS, POINTER(c_uint64)]),
    "dr_transform_save": (dr_status, [_TRANSFORM, c_void_p, c_size_t]),
    "dr_transform_load": (dr_status, [_TRANSFORM, c_void_p, c_size_t]),
    "dr_transform_reset": (dr_status, [_TRANSFORM]),
    "dr_transform_describe": (dr_status, [_TRANSFORM, POINTER(dr_transform_info), POINTER(dr_error)]),
}
