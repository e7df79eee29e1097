"""Reads the memory layout of arrays on a GPU from DLPack capsules and __cuda_array_interface__. Copies nothing."""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple, Optional, Tuple

from ..errors import ArgumentError

CPU = 1
CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged

_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
READ_ONLY, IS_COPY = 1, 2


class View(NamedTuple):
    """The memory of an array. Strides are in elements; None: row-major."""

    address: int
    dtype: str
    itemsize: int
    shape: Tuple[int, ...]
    strides: Optional[Tuple[int, ...]]
    writable: bool
    owner: object

    @property
    def contiguous(self) -> bool:
        if self.strides is None or math.prod(self.shape) == 0:
            return True
        step = 1
        for length, stride in zip(reversed(self.shape), reversed(self.strides)):
            if length != 1 and stride != step:
                return False
            step *= length
        return True


class Tensor(ctypes.Structure):  # DLTensor
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Versioned(ctypes.Structure):  # DLManagedTensorVersioned
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def from_dlpack(x: Any, what: str, stream: int) -> View:
    """The memory of x, ready for work on `stream` (DLPack's numbers: 1 is the legacy default stream).

    The capsule is not consumed: it owns the memory, and releases it at its end.
    """
    try:
        try:
            capsule = x.__dlpack__(stream=stream, max_version=(1, 0))
        except TypeError:  # of a version before DLPack 1
            capsule = x.__dlpack__(stream=stream)
    except (BufferError, RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        raise ArgumentError(f"{what} cannot be read by DLPack: {error}") from error
    flags = 0
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise ArgumentError(f"{what} has DLPack {versioned.major}.{versioned.minor}; 1.x is supported")
        tensor, flags = versioned.tensor, versioned.flags
    elif _is_valid(capsule, b"dltensor"):
        tensor = Tensor.from_address(_pointer(capsule, b"dltensor"))
    else:
        raise ArgumentError(f"{what}.__dlpack__ returns no DLPack capsule")
    if tensor.lanes != 1:
        raise ArgumentError(f"{what} has elements of {tensor.lanes} lanes")
    return View(
        address=(tensor.data or 0) + tensor.byte_offset,
        dtype=f"{_KINDS.get(tensor.code, 'type')}{tensor.bits}",
        itemsize=tensor.bits // 8,
        shape=tuple(tensor.shape[: tensor.ndim]),
        strides=tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None,
        writable=not flags & (READ_ONLY | IS_COPY),
        owner=capsule,
    )


def from_cuda_array_interface(x: Any, what: str) -> View:
    """The memory of x by its __cuda_array_interface__; the caller handles its stream."""
    interface = x.__cuda_array_interface__
    typestr: str = interface["typestr"]
    kind, itemsize = {"f": "float", "i": "int", "u": "uint"}.get(typestr[1], typestr[1]), int(typestr[2:])
    if interface.get("mask") is not None:
        raise ArgumentError(f"{what} has a mask")
    if typestr[0] == ">":
        raise ArgumentError(f"{what} is big-endian")
    strides = interface.get("strides")
    if strides is not None and any(stride % itemsize for stride in strides):
        raise ArgumentError(f"{what} has strides of parts of an element")
    address, read_only = interface["data"]
    return View(
        address=address or 0,
        dtype=f"{kind}{8 * itemsize}",
        itemsize=itemsize,
        shape=tuple(interface["shape"]),
        strides=None if strides is None else tuple(stride // itemsize for stride in strides),
        writable=not read_only,
        owner=x,
    )
