"""libzstd, in the caller's memory, one thread."""

import ctypes
import ctypes.util
from typing import Any

import numpy as np

_SIZE, _AT = ctypes.c_size_t, ctypes.c_void_p


def _library() -> Any:
    lib = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
    for name, result, arguments in [
        ("ZSTD_versionString", ctypes.c_char_p, []),
        ("ZSTD_compressBound", _SIZE, [_SIZE]),
        ("ZSTD_isError", ctypes.c_uint, [_SIZE]),
        ("ZSTD_createCCtx", _AT, []),
        ("ZSTD_createDCtx", _AT, []),
        ("ZSTD_compressCCtx", _SIZE, [_AT, _AT, _SIZE, _AT, _SIZE, ctypes.c_int]),
        ("ZSTD_decompressDCtx", _SIZE, [_AT, _AT, _SIZE, _AT, _SIZE]),
    ]:
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class Zstd:
    """Contexts that are made once, as a program that sends often has them."""

    def __init__(self) -> None:
        self.lib = _library()
        self.version = self.lib.ZSTD_versionString().decode()
        self.compressing, self.decompressing = self.lib.ZSTD_createCCtx(), self.lib.ZSTD_createDCtx()
        self.room: np.ndarray = np.empty(0, np.uint8)

    def compress(self, data: np.ndarray, level: int) -> bytes:
        bound = self.lib.ZSTD_compressBound(data.nbytes)
        if self.room.size < bound:
            self.room = np.zeros(bound, np.uint8)
        size = self.lib.ZSTD_compressCCtx(self.compressing, self.room.ctypes.data, bound, data.ctypes.data, data.nbytes, level)
        assert not self.lib.ZSTD_isError(size)
        return self.room[:size].tobytes()

    def decompress(self, data: bytes, out: np.ndarray) -> np.ndarray:
        size = self.lib.ZSTD_decompressDCtx(self.decompressing, out.ctypes.data, out.nbytes, data, len(data))
        assert size == out.nbytes, f"{size} bytes, not {out.nbytes}"
        return out
