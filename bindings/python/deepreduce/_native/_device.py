"""Arrays in the memory of a GPU: which GPU, the caller's stream on it, and new memory there.

torch and CuPy are used only if the caller has imported them. Only `to_host` and `put` copy, and wait for the stream.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import sys
from typing import Any, Iterable, List, NoReturn, Optional, Tuple

import numpy

from ..errors import ArgumentError, OutOfMemory
from . import _abi, _dlpack, _driver
from ._call import new
from ._memory import FLOATS, NAMES, Bytes, Memory, code_of, require_strided, tensor_bytes, torch_tensor
from ._types import Array, Tensor


class Framework:
    """The framework of arrays. A stream is a cudaStream_t: 0 and 1 the legacy default stream, 2 the thread's."""

    def has(self, x: object) -> bool:
        """Whether x is an array of this framework on a GPU."""
        raise NotImplementedError

    def number(self, x: object) -> int:
        raise NotImplementedError

    def stream(self, number: int) -> int:
        """The caller's current stream on device `number`."""
        raise NotImplementedError

    def view(self, x: object, what: str, stream: int) -> _dlpack.View:
        """Its memory, ready for work on `stream`."""
        raise NotImplementedError

    def empty(self, number: int, stream: int, shape: Tuple[int, ...], dtype: str) -> Tensor:
        raise NotImplementedError

    def fill(self, x: object, byte: int) -> None:
        """Sets all bytes of a contiguous array of bytes; does not wait."""
        raise NotImplementedError

    def part(self, x: object, begin: int, end: int, dtype: str = "uint8") -> Tensor:
        """A view of bytes [begin, end) of a contiguous array of bytes, as a 1-D array of another type."""
        raise NotImplementedError

    def to_host(self, x: object) -> bytes:
        """Bytes of a contiguous array; waits for the caller's current stream."""
        raise NotImplementedError

    def put(self, x: object, source: Bytes) -> None:
        """Copies to an array of the same number of bytes, and waits."""
        raise NotImplementedError

    def result(self, code: int) -> str:
        """The type that values of a frame's type are decoded to."""
        return NAMES[_abi.DR_F32 if code == _abi.DR_BF16 else code]


class Torch(Framework):
    def has(self, x: Tensor) -> bool:
        return torch_tensor(x) and bool(x.is_cuda)

    def number(self, x: Tensor) -> int:
        return int(x.device.index)

    def stream(self, number: int) -> int:
        return int(sys.modules["torch"].cuda.current_stream(number).cuda_stream)

    def device(self, number: int) -> Any:
        return sys.modules["torch"].device("cuda", number)

    def view(self, x: Tensor, what: str, stream: int) -> _dlpack.View:
        require_strided(x, what)
        self.hold(x)
        name = str(x.dtype)[len("torch.") :]
        return _dlpack.View(x.data_ptr(), name, x.element_size(), tuple(x.shape), x.stride(), not x.requires_grad, x)

    def hold(self, x: Tensor) -> None:
        """Until the caller's current stream has done what is enqueued there, torch's allocator does not lend the memory again:
        x may be of another stream, and freed as soon as the call returns."""
        x.record_stream(sys.modules["torch"].cuda.current_stream(x.device))

    def empty(self, number: int, stream: int, shape: Tuple[int, ...], dtype: str) -> Tensor:
        torch = sys.modules["torch"]
        try:
            return torch.empty(shape, dtype=getattr(torch, dtype), device=self.device(number))
        except torch.cuda.OutOfMemoryError as error:
            raise OutOfMemory(f"no memory for {shape} elements of {dtype} on cuda:{number}: {error}") from None

    def fill(self, x: Tensor, byte: int) -> None:
        x.fill_(byte)

    def part(self, x: Tensor, begin: int, end: int, dtype: str = "uint8") -> Tensor:
        torch = sys.modules["torch"]
        return tensor_bytes(x.detach())[begin:end].view(getattr(torch, dtype))

    def to_host(self, x: Tensor) -> bytes:
        return tensor_bytes(x.detach()).cpu().numpy().tobytes()  # type: ignore[no-any-return]

    def put(self, x: Tensor, source: Bytes) -> None:
        x.copy_(sys.modules["torch"].from_numpy(_host_array(source)))

    def result(self, code: int) -> str:
        return NAMES[code]


class CuPy(Framework):
    def has(self, x: object) -> bool:
        cupy = sys.modules.get("cupy")
        return cupy is not None and isinstance(x, getattr(cupy, "ndarray", ()))

    def number(self, x: Tensor) -> int:
        return int(x.device.id)

    def stream(self, number: int) -> int:
        with sys.modules["cupy"].cuda.Device(number):
            return int(sys.modules["cupy"].cuda.get_current_stream().ptr)

    def view(self, x: Tensor, what: str, stream: int) -> _dlpack.View:
        strides = tuple(stride // x.dtype.itemsize for stride in x.strides)
        return _dlpack.View(int(x.data.ptr), x.dtype.name, x.dtype.itemsize, x.shape, strides, True, x)

    def empty(self, number: int, stream: int, shape: Tuple[int, ...], dtype: str) -> Tensor:
        cupy = sys.modules["cupy"]
        try:
            with cupy.cuda.Device(number):
                return cupy.empty(shape, dtype)
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise OutOfMemory(f"no memory for {shape} elements of {dtype} on cuda:{number}: {error}") from None

    def fill(self, x: Tensor, byte: int) -> None:
        with x.device:
            x.fill(byte)

    def part(self, x: Tensor, begin: int, end: int, dtype: str = "uint8") -> Tensor:
        return x.reshape(-1).view("uint8")[begin:end].view(dtype)

    def to_host(self, x: Tensor) -> bytes:
        with x.device:
            return x.get().tobytes()  # type: ignore[no-any-return]

    def put(self, x: Tensor, source: Bytes) -> None:
        with x.device:
            x.set(_host_array(source))
            sys.modules["cupy"].cuda.get_current_stream().synchronize()


class Bare(Framework):
    """Arrays of other libraries, with DLPack or a __cuda_array_interface__, and our DeviceArrays."""

    def has(self, x: object) -> bool:
        return not torch_tensor(x) and (_is_foreign(x) or hasattr(x, "__cuda_array_interface__"))

    def number(self, x: Tensor) -> int:
        if isinstance(x, _driver.DeviceArray):
            return x.device
        if _is_foreign(x):
            return int(x.__dlpack_device__()[1])
        address = x.__cuda_array_interface__["data"][0]
        return _driver.driver.device_of(address) if address else 0

    def stream(self, number: int) -> int:
        return _driver.LEGACY_STREAM

    def view(self, x: object, what: str, stream: int) -> _dlpack.View:
        if _is_foreign(x):
            return _dlpack.from_dlpack(x, what, stream or _driver.LEGACY_STREAM)
        return _dlpack.from_cuda_array_interface(x, what)

    def empty(self, number: int, stream: int, shape: Tuple[int, ...], dtype: str) -> Tensor:
        return _driver.DeviceArray(number, stream, shape, dtype)

    def fill(self, x: object, byte: int) -> None:
        x = self._as_device_array(x)
        _driver.driver.fill(x.device, x.stream, x.address, byte, x.nbytes)

    def part(self, x: object, begin: int, end: int, dtype: str = "uint8") -> Tensor:
        return self._as_device_array(x).part(begin, ((end - begin) // _driver.SIZES[dtype],), dtype)

    def to_host(self, x: object) -> bytes:
        return self._as_device_array(x).to_host()

    def put(self, x: object, source: Bytes) -> None:
        x = self._as_device_array(x)
        _driver.driver.from_host(x.device, x.stream, x.address, source.address, source.size)

    def _as_device_array(self, x: Tensor) -> _driver.DeviceArray:
        """A DeviceArray of the memory of a contiguous array."""
        if isinstance(x, _driver.DeviceArray):
            return x
        stream = _driver.LEGACY_STREAM if _is_foreign(x) else x.__cuda_array_interface__.get("stream")
        view = self.view(x, "the array", stream or _driver.LEGACY_STREAM)
        return _driver.DeviceArray(
            self.number(x), stream or _driver.LEGACY_STREAM, view.shape, view.dtype, view.address, view.owner
        )


# In the order of the search: the first framework that has an array is its framework.
frameworks: List[Framework] = [Torch(), CuPy(), Bare()]


def _is_foreign(x: object) -> bool:
    device = getattr(x, "__dlpack_device__", None)
    return device is not None and int(device()[0]) in _dlpack.CUDA


def _find_framework(x: object) -> Optional[Framework]:
    if x is None or isinstance(x, (numpy.ndarray, bytes, bytearray, memoryview)):
        return None
    return next((framework for framework in frameworks if framework.has(x)), None)


def framework_of(x: object) -> Framework:
    """The framework of an array on a GPU."""
    framework = _find_framework(x)
    assert framework is not None
    return framework


def _host_array(source: Bytes) -> Array:
    array = numpy.empty(source.size, numpy.uint8)
    ctypes.memmove(array.ctypes.data, source.address, source.size)
    return array


# ---- Places -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Place:
    """A GPU, the caller's stream on it, and the framework that allocates memory."""

    number: int
    stream: int
    framework: Framework

    def __str__(self) -> str:
        return f"cuda:{self.number}"

    def struct(self, allow_host: bool = False) -> _abi.dr_place:
        place = new(_abi.dr_place)
        place.kind, place.device = _driver.driver.kind, _driver.driver.number(self.number)
        place.stream = self.stream
        place.flags = _abi.DR_PLACE_ALLOW_HOST if allow_host else 0
        return place

    def borrow(self, x: object, what: str, allowed: Tuple[int, ...] = FLOATS) -> Memory:
        """The memory of an input. ArgumentError if it is not contiguous or not of one of the types `allowed`."""
        view = self._view(x, what)
        return Memory(view.address, code_of(view.dtype, what, allowed), view.shape, view.owner)

    def borrow_output(self, x: object, what: str) -> Memory:
        """The memory of an output, which must be writable, too."""
        view = self._view(x, what)
        if not view.writable:
            if torch_tensor(x):
                raise ArgumentError(f"{what} requires grad; pass {what}.detach(), which shares its memory")
            raise ArgumentError(f"{what} is read-only")
        return Memory(view.address, code_of(view.dtype, what, FLOATS), view.shape, view.owner)

    def borrow_bytes(self, x: object, what: str) -> Bytes:
        view = self._view(x, what)
        if view.itemsize != 1:
            raise ArgumentError(f"{what} is {view.dtype}, not bytes")
        return Bytes(view.address, math.prod(view.shape), view.owner)

    def _view(self, x: object, what: str) -> _dlpack.View:
        framework = _find_framework(x)
        if framework is None:  # `find` excludes it
            raise ArgumentError(f"{what} is not on {self}")
        view = framework.view(x, what, self.stream)
        if not view.contiguous:
            raise ArgumentError(f"{what} is not contiguous (row-major); on a GPU it is not copied")
        if view.address % max(1, view.itemsize):
            raise ArgumentError(f"{what} is not aligned to its type")
        return view

    def empty(self, shape: Tuple[int, ...], dtype: str = "uint8") -> Tensor:
        return self.framework.empty(self.number, self.stream, shape, dtype)

    def zeros(self, size: int) -> Tensor:
        x = self.empty((size,))
        self.framework.fill(x, 0)
        return x


def find(named: Iterable[Tuple[str, Tensor]]) -> Optional[Place]:
    """The GPU that has all of these arrays, and the caller's stream on it; None if all are on the CPU.

    Raises ArgumentError if they are in different places, or ready on different streams.
    """
    own: Optional[Framework] = None
    first: Optional[Tuple[str, Optional[int]]] = None
    streams: List[Tuple[str, int]] = []
    for what, x in named:
        framework = _find_framework(x)
        number = None if framework is None else framework.number(x)
        if first is None:
            first = what, number
        elif first[1] != number:
            _differ(what, number, *first)
        if framework is None or number is None:
            continue
        if own is None or isinstance(own, Bare):
            own = framework
        if framework is not own and not isinstance(framework, Bare):
            streams.append((what, framework.stream(number)))
        if isinstance(framework, Bare) and not _is_foreign(x):
            ready = x.__cuda_array_interface__.get("stream")
            if ready is not None:
                streams.append((what, ready))
    if own is None or first is None or first[1] is None:
        return None
    stream = own.stream(first[1])
    if streams and isinstance(own, Bare):
        stream = streams[0][1]
    for what, ready in streams:
        if (ready or _driver.LEGACY_STREAM) != (stream or _driver.LEGACY_STREAM):
            raise ArgumentError(f"{what} is ready on stream {ready:#x}, but the call works on stream {stream:#x}")
    return Place(first[1], stream, own)


def _differ(what: str, number: Optional[int], first: str, other: Optional[int]) -> NoReturn:
    where, there = ("in the memory of the CPU" if device is None else f"on cuda:{device}" for device in (number, other))
    raise ArgumentError(f"{what} is {where}, {first} {there}: all arrays of a call must be in one place")
