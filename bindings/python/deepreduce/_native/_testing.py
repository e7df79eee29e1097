"""An emulated GPU for tests: the library's emulated place, and memory of the CPU as if it were a GPU's."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy

from . import _abi, _dlpack, _driver


class _Emulation(_driver.Cuda):
    """Memory of the CPU instead of libcuda's. Uninitialised memory is poisoned."""

    kind = _abi.DR_PLACE_EMULATED

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._held: Dict[int, object] = {}

    def number(self, device: int) -> int:
        return self._seed

    def device_of(self, address: int) -> int:
        return 0

    def allocate(self, device: int, size: int) -> int:
        memory = numpy.full(size + 256, 0xA5, numpy.uint8)
        address: int = memory.ctypes.data + -memory.ctypes.data % 256
        self._held[address] = memory
        return address

    def release(self, device: int, address: int) -> None:
        del self._held[address]

    def fill(self, device: int, stream: int, address: int, byte: int, size: int) -> None:
        ctypes.memset(address, byte, size)

    def to_host(self, device: int, stream: int, to: int, address: int, size: int) -> None:
        ctypes.memmove(to, address, size)

    def from_host(self, device: int, stream: int, address: int, source: int, size: int) -> None:
        ctypes.memmove(address, source, size)


@contextlib.contextmanager
def emulated(seed: int = 1) -> Iterator[None]:
    """In its `with`, calls with arrays that report a GPU run on the emulated one (DR_PLACE_EMULATED, which shuffles by `seed`);
    the arrays may be in memory of the CPU. It affects the whole process, so use it in one thread."""
    before, _driver.driver = _driver.driver, _Emulation(seed)
    try:
        yield
    finally:
        _driver.driver = before


class Emulated:
    """A numpy array whose DLPack device is a GPU. `streams`: the streams of all requests"""

    def __init__(self, array: object, device: int = 0) -> None:
        self.array, self.device = numpy.asarray(array), device
        self.streams: List[Optional[int]] = []
        self._exported: List[object] = []

    @property
    def shape(self) -> Tuple[int, ...]:
        return self.array.shape

    def __dlpack_device__(self) -> Tuple[int, int]:
        return _dlpack.CUDA[0], self.device

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: object = None) -> Any:
        self.streams.append(stream)
        versioned = _dlpack.Versioned(major=1, flags=0 if self.array.flags.writeable else _dlpack.READ_ONLY)
        tensor = versioned.tensor
        tensor.data, tensor.device_type, tensor.device_id = self.array.ctypes.data, _dlpack.CUDA[0], self.device
        narrow = self.array.dtype.name == "bfloat16"
        tensor.code = 4 if narrow else {"i": 0, "u": 1, "f": 2, "c": 5}[self.array.dtype.kind]
        tensor.bits, tensor.lanes, tensor.ndim = 8 * self.array.itemsize, 1, self.array.ndim
        tensor.shape = (ctypes.c_int64 * self.array.ndim)(*self.array.shape)
        tensor.strides = (ctypes.c_int64 * self.array.ndim)(*(s // self.array.itemsize for s in self.array.strides))
        self._exported.append(versioned)  # valid as long as this array exists
        return self._capsule(versioned)

    @staticmethod
    def _capsule(versioned: _dlpack.Versioned) -> Any:
        return _new_capsule(ctypes.addressof(versioned), b"dltensor_versioned", None)


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
