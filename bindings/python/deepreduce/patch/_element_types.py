"""Tensors as words of bits: the element types of model files, and the memory of arrays as words."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Dict, NamedTuple, Optional, Sequence, Tuple, Union

import numpy

from .._native import _abi, _device, _memory
from .._native._types import Array, DType, Tensor
from ..errors import ArgumentError, Unsupported
from ._device_words import DevicePart, DeviceWords

if TYPE_CHECKING:
    import torch


class ElementType(NamedTuple):
    bits: int
    code: int  # DR_* of its words in a patch


# By the names of .safetensors files. A type that the library lacks is coded as words of its size. For 8 bytes that is DR_F64,
# because for bits any order of numbers will do.
ELEMENT_TYPES: Dict[str, ElementType] = {
    "F32": ElementType(32, _abi.DR_F32),
    "F16": ElementType(16, _abi.DR_F16),
    "BF16": ElementType(16, _abi.DR_BF16),
    "F64": ElementType(64, _abi.DR_F64),
    **dict.fromkeys(("I64", "U64", "C64"), ElementType(64, _abi.DR_F64)),
    **dict.fromkeys(("I32", "U32"), ElementType(32, _abi.DR_U32)),
    **dict.fromkeys(("I16", "U16"), ElementType(16, _abi.DR_U16)),
    **dict.fromkeys(("I8", "U8", "BOOL"), ElementType(8, _abi.DR_U8)),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), ElementType(8, _abi.DR_U8)),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), ElementType(6, _abi.DR_U8)),
    "F4": ElementType(4, _abi.DR_U8),
}
# Their names in numpy and torch. numpy has the narrow floats through ml_dtypes; without it bfloat16 is a void of two bytes.
_NAMES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "void16": "BF16",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
    "complex64": "C64",
    "int32": "I32",
    "uint32": "U32",
    "int16": "I16",
    "uint16": "U16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
_WORDS: Dict[int, DType] = {
    _abi.DR_U8: numpy.dtype("u1"),
    _abi.DR_U16: numpy.dtype("<u2"),
    _abi.DR_F16: numpy.dtype("<u2"),
    _abi.DR_BF16: numpy.dtype("<u2"),
    _abi.DR_U32: numpy.dtype("<u4"),
    _abi.DR_F32: numpy.dtype("<u4"),
    _abi.DR_F64: numpy.dtype("<u8"),
}


def word_type(dtype: str) -> DType:
    """The numpy dtype of the words of an element type."""
    return _WORDS[ELEMENT_TYPES[dtype].code]


def size_of(dtype: str, shape: Sequence[int]) -> Optional[int]:
    """Bytes of a tensor; None if its bits do not fill whole bytes."""
    bits = math.prod(shape) * ELEMENT_TYPES[dtype].bits
    return None if bits % 8 else bits // 8


class Words(NamedTuple):
    """A tensor in memory, as words."""

    dtype: str  # of ELEMENT_TYPES
    shape: Tuple[int, ...]
    words: Array  # [n] of word_type(dtype)
    owner: object  # the array whose memory it is

    @property
    def length(self) -> int:
        return self.words.size

    def part(self, first: int, count: int, _room: str) -> Array:
        return self.words[first : first + count]


def words_of(x: object, what: str, written: bool = False) -> Union[Words, DeviceWords]:
    """The memory of an array as words, in row-major order.

    An array on the CPU that is not contiguous or not aligned is copied, or refused if it is `written`. Raises ArgumentError, which
    calls x `what`, for any object that is not such an array; Unsupported for types that have no patches on a GPU.
    """
    place = _device.find([(what, x)])
    if place is not None:
        return _on_device(x, what, written, place)
    if _memory.torch_tensor(x):
        return _of_tensor(x, what, written)
    array = _memory._host_array(x, what)
    if not array.dtype.isnative:
        raise ArgumentError(f"{what} is {array.dtype}, whose bytes are in another order than this machine's")
    dtype = _name(array.dtype.name, what)
    if not (array.flags.c_contiguous and array.flags.aligned):
        _refuse_copy(what, written, "contiguous (row-major) and aligned")
        array = numpy.require(array, requirements=["C_CONTIGUOUS", "ALIGNED"])
    if written:
        _memory.require_own_memory(array, x, what)
        if not array.flags.writeable:
            raise ArgumentError(f"{what} is read-only")
    return Words(dtype, array.shape, array.reshape(-1).view(word_type(dtype)), x)


def _of_tensor(x: torch.Tensor, what: str, written: bool) -> Words:
    torch = sys.modules["torch"]
    if not written:
        x = x.resolve_neg().resolve_conj()
    elif x.is_conj():
        raise ArgumentError(f"{what} is a conjugate view: it cannot be patched in place")
    _memory._require_cpu_tensor(x, what)
    dtype = _name(str(x.dtype)[len("torch.") :], what)
    flat = x.detach()
    if not flat.is_contiguous() or not _memory._aligned(flat):
        _refuse_copy(what, written, "contiguous and aligned")
        flat = flat.clone(memory_format=torch.contiguous_format)
    return Words(dtype, tuple(x.shape), _memory.tensor_bytes(flat).numpy().view(word_type(dtype)), x)


def _on_device(x: Tensor, what: str, written: bool, place: _device.Place) -> DeviceWords:
    view = place._view(x, what)
    dtype = _name(view.dtype, what)
    if ELEMENT_TYPES[dtype].code not in _memory.FLOATS:
        raise Unsupported(f"{what} is {view.dtype} on {place}: patches there are of float32, float16 or bfloat16; copy it to the CPU")
    memory = place.borrow_output(x, what) if written else place.borrow(x, what)
    part = DevicePart(memory.address, memory.elements, view.itemsize, place, memory.owner)
    return DeviceWords(dtype, tuple(view.shape), part, x)


def _name(name: str, what: str) -> str:
    if name not in _NAMES:
        raise ArgumentError(f"{what} is {name}; patches accept {', '.join(n for n in _NAMES if n != 'void16')}")
    return _NAMES[name]


def _refuse_copy(what: str, written: bool, must: str) -> None:
    if written:
        raise ArgumentError(f"{what} is not {must}: it cannot be patched in place")


def array_of(words: Array, dtype: str, shape: Tuple[int, ...], what: str) -> Array:
    """The same memory as a numpy array. Raises ArgumentError if numpy lacks the type."""
    name = next((alias for alias, known in _NAMES.items() if known == dtype), None)
    if name is None:
        raise ArgumentError(f"{what} is {dtype}, which numpy has no type for")
    try:
        made = numpy.dtype(name)
    except TypeError:
        try:
            import ml_dtypes
        except ImportError:
            raise ArgumentError(f"{what} is {name}, which numpy has only with ml_dtypes: pip install ml_dtypes") from None
        made = numpy.dtype(getattr(ml_dtypes, name))
    return words.view(made).reshape(shape)


def like(words: Array, x: Tensor) -> Tensor:
    """Some words of x as an array [n] of the kind and type of x."""
    if _memory.torch_tensor(x):
        return sys.modules["torch"].from_numpy(words.view(numpy.uint8)).view(x.dtype)
    return words.view(_memory._host_array(x, "x").dtype)
