"""What a Bound calls, and the memory that it passes. Nothing here is public."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy

from ._native import _abi, _memory
from .errors import ArgumentError
from .tensor import Sparse


class Slot(ctypes.Structure):
    """dr_bytes, whose `data` takes bytes as they are."""

    _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_size_t)]


class Calls:
    """The functions that a Bound calls, with arguments that take the least of ctypes' time: addresses are numbers."""

    def __init__(self, library: ctypes.CDLL) -> None:
        address, size = ctypes.c_void_p, ctypes.c_size_t
        self.encode = self._function(library, "encode", address, address, size, address)
        self.decode = self._function(library, "decode", address, size, address, address)
        self.merge = self._function(library, "merge", address, address, size, address, address)

    @staticmethod
    def _function(library: ctypes.CDLL, name: str, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(_abi.dr_status, ctypes.c_void_p, *arguments)((f"dr_binding_{name}", library))


def address_of(flat: Any) -> int:
    """Where the bytes of a flat array or tensor are now: a framework may have moved them."""
    if isinstance(flat, numpy.ndarray):
        return flat.__array_interface__["data"][0]  # type: ignore[no-any-return]
    return flat.data_ptr()  # type: ignore[no-any-return]


def require_in_place(x: Any) -> None:
    """ArgumentError for what encode would copy first: the copy would not change with it."""
    for i, item in enumerate(x if isinstance(x, (list, tuple)) else [x]):
        for each in (item.indices, item.values) if isinstance(item, Sparse) else (item,):
            if not _memory.is_in_place(each):
                what = f"x[{i}]" if isinstance(x, (list, tuple)) else "x"
                raise ArgumentError(
                    f"{what} is not contiguous and aligned; a bound tensor is read where it lies", tensor=i
                )
