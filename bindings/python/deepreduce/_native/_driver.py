"""Memory of a GPU from the CUDA driver, for arrays of frameworks other than torch and CuPy."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
from typing import Any, Dict, Iterator, Optional, Tuple, Union

from ..errors import ArgumentError, DeviceError, OutOfMemory
from . import _abi
from ._call import Uncopied

LEGACY_STREAM = 1  # cudaStreamLegacy, also in DLPack and the array interface

SIZES = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8}
_TYPES = {"uint8": "|u1", "float16": "<f2", "float32": "<f4", "int64": "<i8"}

_OUT_OF_MEMORY = 2  # CUresult
_DEVICE_ORDINAL = 9  # CUpointer_attribute


class Cuda:
    """Calls of libcuda.so.1, in the primary context, which the CUDA runtime uses, too."""

    kind = _abi.DR_PLACE_CUDA

    def __init__(self) -> None:
        self._contexts: Dict[int, ctypes.c_void_p] = {}

    def number(self, device: int) -> int:
        """dr_place.device of a device."""
        return device

    def device_of(self, address: int) -> int:
        """The number of the device with the memory."""
        number = ctypes.c_int()
        self._call("cuPointerGetAttribute", ctypes.byref(number), _DEVICE_ORDINAL, ctypes.c_uint64(address))
        return number.value

    def allocate(self, device: int, size: int) -> int:
        address = ctypes.c_uint64()
        with self._on(device):
            self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def release(self, device: int, address: int) -> None:
        with self._on(device):  # waits for work on the memory
            self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def fill(self, device: int, stream: int, address: int, byte: int, size: int) -> None:
        with self._on(device):
            self._call(
                "cuMemsetD8Async",
                ctypes.c_uint64(address),
                ctypes.c_ubyte(byte),
                ctypes.c_size_t(size),
                ctypes.c_void_p(stream),
            )

    def to_host(self, device: int, stream: int, to: int, address: int, size: int) -> None:
        """Copies, and waits for the stream."""
        with self._on(device):
            self._call(
                "cuMemcpyDtoHAsync_v2",
                ctypes.c_void_p(to),
                ctypes.c_uint64(address),
                ctypes.c_size_t(size),
                ctypes.c_void_p(stream),
            )
            self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def from_host(self, device: int, stream: int, address: int, source: int, size: int) -> None:
        """Copies, and waits for the stream."""
        with self._on(device):
            self._call(
                "cuMemcpyHtoDAsync_v2",
                ctypes.c_uint64(address),
                ctypes.c_void_p(source),
                ctypes.c_size_t(size),
                ctypes.c_void_p(stream),
            )
            self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    @functools.cached_property
    def _library(self) -> Any:
        try:
            library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DeviceError(f"no CUDA driver here: {error}") from None
        status = library.cuInit(0)
        if status:
            raise DeviceError(f"no CUDA device here: cuInit returns {status}")
        return library

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status == 0:
            return
        message = ctypes.c_char_p()
        self._library.cuGetErrorString(status, ctypes.byref(message))
        kind = OutOfMemory if status == _OUT_OF_MEMORY else DeviceError
        raise kind(f"{name}: {(message.value or b'?').decode()} ({status})")

    @contextlib.contextmanager
    def _on(self, device: int) -> Iterator[None]:
        if device not in self._contexts:
            number, context = ctypes.c_int(), ctypes.c_void_p()
            self._call("cuDeviceGet", ctypes.byref(number), ctypes.c_int(device))
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
            self._contexts[device] = context
        self._call("cuCtxPushCurrent_v2", self._contexts[device])
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


driver: Cuda = Cuda()  # _testing replaces it


class _Owned(Uncopied):
    """Memory that is released with the last reference."""

    def __init__(self, device: int, size: int) -> None:
        self._driver, self._device = driver, device
        self.address = self._driver.allocate(device, max(1, size))

    def __del__(self) -> None:
        if hasattr(self, "address"):
            with contextlib.suppress(DeviceError):  # at the end of the process the driver may end first
                self._driver.release(self._device, self.address)


class DeviceArray:
    """A row-major array in the memory of a GPU, which other frameworks read by its __cuda_array_interface__.

    shape   of the array
    dtype   "float32", …
    device  number of the GPU

    encode, decode and State return it for arrays that are neither torch's nor CuPy's. Freed with the last reference.
    """

    __slots__ = ("address", "device", "dtype", "shape", "stream", "_owner")

    def __init__(
        self,
        device: int,
        stream: int,
        shape: Tuple[int, ...],
        dtype: str,
        address: Optional[int] = None,
        owner: Any = None,
    ) -> None:
        """New memory; or the memory at `address`, which is valid as long as `owner` exists."""
        self.device, self.stream, self.shape, self.dtype = device, stream, shape, dtype
        self._owner = _Owned(device, self.nbytes) if address is None else owner
        self.address: int = self._owner.address if address is None else address

    def part(self, begin: int, shape: Tuple[int, ...], dtype: str) -> DeviceArray:
        """A view of the memory from byte `begin` on, as another array."""
        return DeviceArray(self.device, self.stream, shape, dtype, self.address + begin, self._owner)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * SIZES[self.dtype]

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": _TYPES[self.dtype],
            "data": (self.address, False),
            "strides": None,
            "stream": self.stream or LEGACY_STREAM,
        }

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Union[int, slice]) -> DeviceArray:
        """A view of rows [begin, end); only slices without a step."""
        begin, end, step = rows.indices(len(self)) if isinstance(rows, slice) else (0, 0, 0)
        if step != 1:
            raise ArgumentError("a DeviceArray accepts only slices without a step")
        row = math.prod(self.shape[1:]) * SIZES[self.dtype]
        return self.part(begin * row, (max(0, end - begin),) + self.shape[1:], self.dtype)

    def to_host(self) -> bytes:
        """The bytes; waits for the stream."""
        to = ctypes.create_string_buffer(max(1, self.nbytes))
        driver.to_host(self.device, self.stream, ctypes.addressof(to), self.address, self.nbytes)
        return to.raw[: self.nbytes]

    def __repr__(self) -> str:
        return f"<DeviceArray of {self.dtype}{list(self.shape)} on cuda:{self.device}>"
