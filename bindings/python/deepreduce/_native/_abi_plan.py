"""Stages of plans and plan books of deepreduce.h, line by line. tests/python/test_abi.py compares them."""

from ctypes import POINTER, Structure, c_char_p, c_double, c_size_t, c_uint32, c_uint64
from typing import Dict, List, Optional, Tuple

from ._abi import dr_codec, dr_error, dr_param, dr_param_type, dr_plan, dr_status

# ---- Stages of a plan ---------------------------------------------------------------------------


class dr_stage_param(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("text", c_char_p),
        ("type", dr_param_type),
        ("is_default", c_uint32),
        ("number", c_double),
        ("declared", POINTER(dr_param)),
    ]


class dr_stage(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("role", c_char_p),
        ("name", c_char_p),
        ("text", c_char_p),
        ("position", c_uint32),
        ("is_default", c_uint32),
        ("codec", POINTER(dr_codec)),
        ("params", POINTER(dr_stage_param)),
        ("param_count", c_size_t),
    ]


class dr_stages(Structure):
    """Opaque."""


class dr_stage_word(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("role", c_char_p),
        ("name", c_char_p),
        ("summary", c_char_p),
        ("params", POINTER(dr_param)),
        ("param_count", c_size_t),
    ]


# ---- Plan books ---------------------------------------------------------------------------------


class dr_book(Structure):
    """Opaque."""


DR_NO_LINE = 2**64 - 1


class dr_book_line(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("position", c_uint64),
        ("number", c_uint64),
        ("pattern", c_char_p),
        ("plan", POINTER(dr_plan)),
    ]


DR_BOOK_NAME = 1 << 0

DR_LINE_USED = 0
DR_LINE_UNMATCHED = 1
DR_LINE_UNREACHED = 2

# ---- Functions: result, arguments ---------------------------------------------------------------

_PLAN, _STAGES, _BOOK = map(POINTER, (dr_plan, dr_stages, dr_book))
_STAGE, _LINE, _ERROR = map(POINTER, (dr_stage, dr_book_line, dr_error))

FUNCTIONS: Dict[str, Tuple[Optional[type], List[type]]] = {
    "dr_plan_stage_count": (c_size_t, [_PLAN]),
    "dr_plan_stage": (dr_status, [_PLAN, c_size_t, _STAGE, _ERROR]),
    "dr_plan_with": (dr_status, [_PLAN, c_char_p, POINTER(_PLAN), _ERROR]),
    "dr_stages_parse": (dr_status, [c_char_p, POINTER(_STAGES), _ERROR]),
    "dr_stages_destroy": (None, [_STAGES]),
    "dr_stages_count": (c_size_t, [_STAGES]),
    "dr_stages_at": (dr_status, [_STAGES, c_size_t, _STAGE, _ERROR]),
    "dr_stage_word_count": (c_size_t, []),
    "dr_stage_word_at": (POINTER(dr_stage_word), [c_size_t]),
    "dr_book_parse": (dr_status, [c_char_p, c_size_t, c_char_p, POINTER(_BOOK), _ERROR]),
    "dr_book_destroy": (None, [_BOOK]),
    "dr_book_add": (dr_status, [_BOOK, c_char_p, c_uint32, _PLAN, _ERROR]),
    "dr_book_line_count": (c_size_t, [_BOOK]),
    "dr_book_line_at": (dr_status, [_BOOK, c_size_t, _LINE, _ERROR]),
    "dr_book_match": (dr_status, [_BOOK, c_char_p, _LINE, _ERROR]),
    "dr_book_uses": (dr_status, [_BOOK, POINTER(c_char_p), c_size_t, POINTER(c_uint32), _ERROR]),
    "dr_book_text": (c_char_p, [_BOOK]),
}
