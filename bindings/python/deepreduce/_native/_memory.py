"""Borrows the memory of arrays: numpy, torch, and objects with DLPack, the buffer protocol or `__array__`.

With a place (_device.Place) the memory is a GPU's; otherwise it is the CPU's.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from typing import TYPE_CHECKING, Dict, NamedTuple, Optional, Tuple, Union

import numpy

from ..errors import ArgumentError, OutOfMemory
from . import _abi
from ._types import Array, DType, Tensor

if TYPE_CHECKING:
    from ._device import Place

NAMES = {
    _abi.DR_F32: "float32",
    _abi.DR_F16: "float16",
    _abi.DR_BF16: "bfloat16",
    _abi.DR_U32: "uint32",
    _abi.DR_I32: "int32",
    _abi.DR_U64: "uint64",
    _abi.DR_I64: "int64",
    _abi.DR_F64: "float64",  # this and the next two for patches only
    _abi.DR_U8: "uint8",
    _abi.DR_U16: "uint16",
}
CODES = {name: code for code, name in NAMES.items()}
_DTYPES = {code: numpy.dtype(name) for code, name in NAMES.items() if code != _abi.DR_BF16}
FLOATS = (_abi.DR_F32, _abi.DR_F16, _abi.DR_BF16)
INTEGERS = (_abi.DR_U32, _abi.DR_I32, _abi.DR_U64, _abi.DR_I64)

_DLPACK_CPU = 1


class Memory(NamedTuple):
    """Contiguous, aligned memory, on the CPU or on a GPU. It is valid as long as `owner` exists."""

    address: int
    dtype: int  # DR_*
    shape: Tuple[int, ...]
    owner: object

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class Bytes(NamedTuple):
    address: int
    size: int
    owner: object


@functools.cache
def bfloat16() -> Optional[DType]:
    """numpy's bfloat16, from ml_dtypes; None if that is not installed."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    narrow: DType = numpy.dtype(ml_dtypes.bfloat16)
    return narrow


def result_dtype(code: int) -> Tuple[DType, int]:
    """The numpy type that values of the frame's type are decoded to, and its DR_*."""
    if code == _abi.DR_BF16:
        narrow = bfloat16()
        return (narrow, code) if narrow is not None else (numpy.dtype(numpy.float32), _abi.DR_F32)
    return _DTYPES[code], code


def empty(shape: Tuple[int, ...], dtype: Union[str, DType, type]) -> Array:
    """numpy.empty, whose error names the shape and the type. numpy raises ValueError for sizes past the address space."""
    try:
        return numpy.empty(shape, dtype)
    except (MemoryError, ValueError) as error:
        raise OutOfMemory(f"no memory for {shape} elements of {numpy.dtype(dtype)}: {error}") from None


def zeros(shape: Tuple[int, ...], dtype: Union[str, DType, type]) -> Array:
    """numpy.zeros, with the error of `empty`."""
    try:
        return numpy.zeros(shape, dtype)
    except (MemoryError, ValueError) as error:
        raise OutOfMemory(f"no memory for {shape} elements of {numpy.dtype(dtype)}: {error}") from None


def torch_tensor(x: object) -> bool:
    """Whether x is a torch tensor, without importing torch: before the first import there is none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, getattr(torch, "Tensor", ()))


def tensor_bytes(x: Tensor) -> Tensor:
    """The memory of a contiguous torch tensor, as a tensor [n] of bytes. (One of at most one element is contiguous by any strides,
    which `reshape` keeps and `view` refuses.)"""
    return x.as_strided((x.numel(),), (1,)).view(sys.modules["torch"].uint8)


def borrow(x: Tensor, what: str, allowed: Tuple[int, ...] = FLOATS, place: Optional[Place] = None) -> Memory:
    """The memory of an input of any shape, in row-major order. It is a copy only if x is on the CPU and not contiguous, not
    aligned or to be negated (torch's z.conj().imag).

    what     the name of x in errors
    allowed  types, DR_*

    Raises ArgumentError if x is not an array of one of these types in that place.
    """
    if place is not None:
        return place.borrow(x, what, allowed)
    if torch_tensor(x):
        if x.is_neg():
            x = x.resolve_neg()
        _require_cpu_tensor(x, what)
        if x.requires_grad or not x.is_contiguous():
            x = x.detach().contiguous()
        return _of_tensor(x if _aligned(x) else x.clone(), what, allowed)
    array = _host_array(x, what)
    if not (array.flags.c_contiguous and array.flags.aligned):
        array = numpy.require(array, requirements=["C_CONTIGUOUS", "ALIGNED"])
    return _of_array(array, what, allowed)


def borrow_finite(x: object, what: str, tensor: int) -> Array:
    """The memory of a float32 array on the CPU, as a numpy array of its shape. ArgumentError, with `tensor`, for other arrays,
    and if a value is not finite."""
    try:
        array = as_array(borrow(x, what, (_abi.DR_F32,)).owner, what)
    except ArgumentError as error:
        error.tensor = tensor
        raise
    finite = numpy.isfinite(array)
    if not finite.all():
        where = int(finite.argmin())
        value = array.reshape(-1)[where]
        raise ArgumentError(f"{what}: element {where} is {value}, not finite", tensor=tensor, where=where)
    return array


def borrow_output(x: Tensor, what: str, place: Optional[Place] = None) -> Memory:
    """The memory of an output, which must be writable, contiguous and aligned: a copy would be lost."""
    if place is not None:
        return place.borrow_output(x, what)
    if torch_tensor(x):
        _require_cpu_tensor(x, what)
        if x.requires_grad:
            raise ArgumentError(f"{what} requires grad; pass {what}.detach(), which shares its memory")
        if not x.is_contiguous():
            raise ArgumentError(f"{what} is not contiguous")
        if not _aligned(x):
            raise ArgumentError(f"{what} is not aligned to its type")
        return _of_tensor(x, what, FLOATS)
    array = _host_array(x, what)
    require_own_memory(array, x, what)
    if not array.flags.c_contiguous:
        raise ArgumentError(f"{what} is not contiguous (row-major)")
    if not array.flags.writeable:
        raise ArgumentError(f"{what} is read-only")
    if not array.flags.aligned:
        raise ArgumentError(f"{what} is not aligned to its type")
    return _of_array(array, what, FLOATS)


def is_in_place(x: Tensor) -> bool:
    """Whether `borrow` reads x, on the CPU, without a copy."""
    if torch_tensor(x):
        return x.is_contiguous() and _aligned(x) and not x.is_neg()
    if not isinstance(x, numpy.ndarray) and hasattr(x, "__array__") and not hasattr(x, "__array_interface__"):
        return hasattr(x, "__dlpack__")  # __array__ alone may make a new array
    flags = _host_array(x, "x").flags
    return bool(flags.c_contiguous and flags.aligned)


def of_new(array: object, place: Optional[Place] = None) -> Tuple[int, int]:
    """Address and DR_* of an array that this package has just made."""
    if place is not None:
        return place.borrow(array, "the output", FLOATS + INTEGERS)[:2]
    if isinstance(array, numpy.ndarray):
        code = _CODE_OF.get(array.dtype)
        if code is not None:
            return array_address(array), code
        return _of_array(array, "the output", FLOATS + INTEGERS)[:2]
    return _of_tensor(array, "the output", FLOATS + INTEGERS)[:2]


def describe(x: Tensor, what: str, place: Optional[Place] = None) -> Memory:
    """Shape and type of an array of any layout, for new arrays that are like it."""
    if torch_tensor(x):
        return Memory(0, code_of(str(x.dtype)[len("torch.") :], what, FLOATS), tuple(x.shape), x)
    if place is not None:
        return place.borrow(x, what, FLOATS)
    array = _host_array(x, what)
    return Memory(0, code_of(array.dtype.name, what, FLOATS), array.shape, x)


def borrow_room(out: Tensor, what: str = "out") -> Bytes:
    """Writable bytes: bytearray, memoryview, an array or a tensor of bytes."""
    if torch_tensor(out):
        _require_cpu_tensor(out, what)
        if out.element_size() != 1 or not out.is_contiguous():
            raise ArgumentError(f"{what} is not contiguous bytes (torch.uint8)")
        return Bytes(out.data_ptr(), out.numel(), out)
    try:
        given = memoryview(out)
        if "O" in given.format:  # references to objects: bytes in their place would crash the interpreter
            raise TypeError
        view = given.cast("B")
    except (TypeError, ValueError, BufferError):
        raise ArgumentError(f"{what} is not contiguous bytes") from None
    if view.readonly:
        raise ArgumentError(f"{what} is read-only")
    array = numpy.frombuffer(view, numpy.uint8)
    return Bytes(array_address(array), array.size, array)


def part_of_room(out: Tensor, size: int) -> Tensor:
    """The first bytes of an `out` that `borrow_room` accepted: a tensor of a tensor, an array of an array, else a memoryview."""
    if torch_tensor(out):
        return out.detach().view(-1)[:size]
    if isinstance(out, numpy.ndarray):
        return numpy.asarray(out).reshape(-1).view(numpy.uint8)[:size]  # (a numpy.matrix has no part of one dimension)
    return memoryview(out).cast("B")[:size]


def borrow_bytes(frame: Tensor, what: str = "frame") -> Bytes:
    """The bytes of a frame: bytes, bytearray, memoryview, or a one-byte array or tensor."""
    if type(frame) is bytes and frame:
        array = numpy.frombuffer(frame, numpy.uint8)
        return Bytes(array_address(array), len(frame), array)
    if torch_tensor(frame):
        _require_cpu_tensor(frame, what)
        frame = frame.detach().contiguous()
        if frame.element_size() != 1:
            raise ArgumentError(f"{what} is {frame.dtype}, not bytes")
        if not frame.numel():  # its address is 0, which is not a frame
            return borrow_bytes(b"", what)
        return Bytes(frame.data_ptr(), frame.numel(), frame)
    try:
        view = memoryview(frame)
    except (TypeError, ValueError, BufferError):  # ValueError: a numpy type that buffers cannot name
        raise ArgumentError(f"{what} is {_kind(frame)}, not bytes") from None
    if view.itemsize != 1 or not view.c_contiguous:
        raise ArgumentError(f"{what} is not contiguous bytes (items of {view.itemsize} bytes)")
    array = numpy.asarray(view)
    return Bytes(array_address(array), array.size, array)


def as_array(x: Tensor, what: str) -> Array:
    """x as a numpy array; torch's bfloat16 is widened to float32 if ml_dtypes is not installed."""
    if not torch_tensor(x):
        return _host_array(x, what)
    x = x.detach().resolve_neg()
    _require_cpu_tensor(x, what)
    if str(x.dtype) != "torch.bfloat16":
        return x.numpy()  # type: ignore[no-any-return]
    narrow = bfloat16()
    if narrow is None:
        return x.float().numpy()  # type: ignore[no-any-return]
    return x.contiguous().view(sys.modules["torch"].int16).numpy().view(narrow)  # type: ignore[no-any-return]


def _of_tensor(x: Tensor, what: str, allowed: Tuple[int, ...]) -> Memory:
    code = _CODE_OF.get(x.dtype, 0)
    if code not in allowed:
        code = _CODE_OF[x.dtype] = code_of(str(x.dtype)[len("torch.") :], what, allowed)
    return Memory(x.data_ptr(), code, tuple(x.shape), x)


def _of_array(array: Array, what: str, allowed: Tuple[int, ...]) -> Memory:
    code = _CODE_OF.get(array.dtype, 0)
    if code not in allowed:
        name = array.dtype.name if array.dtype.isnative else str(array.dtype)
        code = _CODE_OF[array.dtype] = code_of(name, what, allowed)
    return Memory(array_address(array), code, array.shape, array)


# Cache of the DR_* of dtypes, numpy's and torch's.
_CODE_OF: Dict[object, int] = {}


def array_address(array: Array) -> int:
    """The current address of an array: its owner may have moved it."""
    if array.size and array.flags.writeable:
        try:
            return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]  # in half of the time
        except (TypeError, ValueError):  # not contiguous, or of a type without buffers (bfloat16)
            pass
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]  # half the time of array.ctypes.data


def code_of(name: str, what: str, allowed: Tuple[int, ...]) -> int:
    code = CODES.get(name)
    if code not in allowed:
        names = [NAMES[dtype] for dtype in allowed]
        hint = ": convert it to float32" if name == "float64" and allowed == FLOATS else ""
        listed = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        raise ArgumentError(f"{what} is {name}, not {listed}{hint}")
    return code


def _host_array(x: Tensor, what: str) -> Array:
    """x as a numpy array that shares its memory. ArgumentError if x is not an array of some kind. Numbers and nested lists are
    not: they would become float64."""
    if isinstance(x, numpy.ndarray):
        return x
    if hasattr(x, "__dlpack__"):
        _require_cpu(x, what)
        try:
            return numpy.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, NotImplementedError):
            pass  # a type or a flag that numpy's DLPack does not support (bfloat16, read-only): try the next ways
    if hasattr(x, "__array__") or hasattr(x, "__array_interface__"):
        return numpy.asarray(x)
    try:
        return numpy.asarray(memoryview(x))
    except (TypeError, ValueError, BufferError):
        raise ArgumentError(f"{what} is {_kind(x)}, not an array") from None


def require_own_memory(array: Array, x: Tensor, what: str) -> None:
    """For an array that will be written: ArgumentError if x gave a copy of its memory, `array`."""
    if array is not x and array.size and array_address(array) != array_address(_host_array(x, what)):
        raise ArgumentError(f"{what} is {_kind(x)}, which gives copies of its memory: they would be lost")


def _require_cpu(x: object, what: str) -> None:
    device = getattr(x, "__dlpack_device__", None)
    if device is not None and int(device()[0]) != _DLPACK_CPU:
        raise ArgumentError(f"{what} is not in the memory of the CPU; copy it there first")


def _require_cpu_tensor(x: Tensor, what: str) -> None:
    if x.device.type != "cpu":
        raise ArgumentError(f"{what} is on {x.device}; copy it to the CPU first")
    require_strided(x, what)


def require_strided(x: Tensor, what: str) -> None:
    """ArgumentError for a torch tensor whose memory does not hold its values directly."""
    if str(x.layout) != "torch.strided":
        raise ArgumentError(f"{what} has layout {x.layout}; pass a Sparse of its indices and values")
    if x.is_neg():
        raise ArgumentError(f"{what} has the negated values of its memory; pass {what}.resolve_neg(), a copy")


def _aligned(x: Tensor) -> bool:
    return int(x.data_ptr()) % int(x.element_size()) == 0


def _kind(x: object) -> str:
    if x is None:
        return "None"
    name = type(x).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
