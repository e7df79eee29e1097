"""Codes of a patch, ours and others': each makes bytes of base and result, and applies them to a copy of the base.

The formats of today's inference engines are written as they write them, in numpy. A code that is not available here has the reason.
"""

import importlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np

from bench.patch.zstd_calls import Zstd

SHARED_MEMORY = Path("/dev/shm")


class Candidate:
    """name: in tables. missing: why it cannot run, or None."""

    name: str
    missing: Optional[str] = None

    def prepare(self, old: np.ndarray) -> None:
        """Once for a base, not timed."""

    def make(self, old: np.ndarray, new: np.ndarray) -> bytes:
        """Flat words of one type, u8, u16 or u32."""
        raise NotImplementedError

    def apply(self, weights: np.ndarray, data: bytes) -> None:
        """Makes the base in `weights` the result."""
        raise NotImplementedError


# ---- what engines send: indices, gaps ------------------------------------------------------------------------------


class Int32AndValue(Candidate):
    """vLLM, verl, vime, prime-rl."""

    name = "int32 + value"

    def make(self, old: np.ndarray, new: np.ndarray) -> bytes:
        at = np.flatnonzero(old != new)
        return at.astype(np.int32).tobytes() + new[at].tobytes()

    def apply(self, weights: np.ndarray, data: bytes) -> None:
        r = len(data) // (4 + weights.itemsize)
        weights[np.frombuffer(data, np.int32, r)] = np.frombuffer(data, weights.dtype, r, 4 * r)


class Gaps(Candidate):
    """u16 gaps and values, or values xor the base; `level` of zstd, or 0 without. Where a gap passes 65535 a word that did not
    change goes along, so that one gap does not make all of them u32."""

    def __init__(self, zstd: Optional[Zstd], xor: bool, level: int, name: str) -> None:
        self.zstd, self.xor, self.level, self.name = zstd, xor, level, name

    def make(self, old: np.ndarray, new: np.ndarray) -> bytes:
        at = np.flatnonzero(old != new)
        gaps = np.diff(at, prepend=-1) - 1
        wide = np.flatnonzero(gaps > 65535)
        if wide.size:
            steps = [np.arange(at[i] - gaps[i] + 65535, at[i], 65536) for i in wide]
            at = np.sort(np.concatenate([at, *steps]))
            gaps = np.diff(at, prepend=-1) - 1
        values = old[at] ^ new[at] if self.xor else new[at]
        payload = np.concatenate([gaps.astype(np.uint16).view(np.uint8), values.view(np.uint8)])
        packed = self.zstd.compress(payload, self.level) if self.zstd else payload.tobytes()
        return len(at).to_bytes(4, "little") + packed

    def apply(self, weights: np.ndarray, data: bytes) -> None:
        r, payload = int.from_bytes(data[:4], "little"), np.frombuffer(data, np.uint8, offset=4)
        if self.zstd:
            payload = self.zstd.decompress(data[4:], np.empty(r * (2 + weights.itemsize), np.uint8))
        at = np.cumsum(payload[: 2 * r].view(np.uint16).astype(np.int64) + 1) - 1
        values = np.frombuffer(payload[2 * r :].tobytes(), weights.dtype)
        weights[at] = weights[at] ^ values if self.xor else values


class Xor(Candidate):
    """The exclusive or of all words, by zstd: slime, SkyRL (level 1)."""

    def __init__(self, zstd: Zstd, level: int) -> None:
        self.zstd, self.level, self.name = zstd, level, f"xor + zstd -{level}"
        self.room: np.ndarray = np.empty(0, np.uint8)

    def _room(self, like: np.ndarray) -> np.ndarray:
        if self.room.size != like.size or self.room.dtype != like.dtype:
            self.room = np.zeros_like(like)
        return self.room

    def make(self, old: np.ndarray, new: np.ndarray) -> bytes:
        return self.zstd.compress(np.bitwise_xor(old, new, out=self._room(old)), self.level)

    def apply(self, weights: np.ndarray, data: bytes) -> None:
        self.zstd.decompress(data, self._room(weights))
        np.bitwise_xor(weights, self.room, out=weights)


# ---- programs ----------------------------------------------------------------------------------------------------


class Program(Candidate):
    """A program that takes files, in shared memory; `{old}`, `{new}`, `{patch}` in its words."""

    def __init__(self, name: str, make: List[str], apply: List[str]) -> None:
        self.name, self.words = name, (make, apply)
        self.missing = None if shutil.which(make[0]) else f"{make[0]} is not installed"

    def _run(self, words: List[str], folder: str) -> None:
        paths = {name: f"{folder}/{name}" for name in ("old", "new", "patch")}
        subprocess.run([word.format(**paths) for word in words], check=True, capture_output=True)

    def make(self, old: np.ndarray, new: np.ndarray) -> bytes:
        with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
            old.tofile(f"{folder}/old")
            new.tofile(f"{folder}/new")
            self._run(self.words[0], folder)
            return Path(folder, "patch").read_bytes()

    def apply(self, weights: np.ndarray, data: bytes) -> None:
        with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
            weights.tofile(f"{folder}/old")
            Path(folder, "patch").write_bytes(data)
            self._run(self.words[1], folder)
            weights[:] = np.fromfile(f"{folder}/new", weights.dtype)


# ---- Python packages -----------------------------------------------------------------------------------------------


class ZipNN(Candidate):
    """Its delta mode: bytes of the result against bytes of the base; one thread."""

    name = "zipnn, delta"

    def __init__(self) -> None:
        try:
            self.zipnn: Any = importlib.import_module("zipnn")
        except ImportError as error:
            self.missing = f"pip install zipnn: {error}"

    def _of(self, dtype: np.dtype) -> Any:
        kind = {1: "float32", 2: "bfloat16", 4: "float32"}[dtype.itemsize]
        return self.zipnn.ZipNN(bytearray_dtype=kind, delta_compressed_type="byte", threads=1)

    def _padded(self, words: np.ndarray) -> bytearray:
        """Whole elements: of others version 0.5.4 corrupts its heap."""
        return bytearray(words.tobytes() + bytes(-words.nbytes % 4))

    def make(self, old: np.ndarray, new: np.ndarray) -> bytes:
        return bytes(self._of(old.dtype).compress(self._padded(new), delta_second_data=self._padded(old)))

    def apply(self, weights: np.ndarray, data: bytes) -> None:
        made = self._of(weights.dtype).decompress(bytearray(data), delta_second_data=self._padded(weights))
        weights[:] = np.frombuffer(made, weights.dtype, weights.size)


class OpenZL(Candidate):
    """It has no mode for a base: its generic numeric compressor gets the exclusive or."""

    name = "xor + openzl"

    def __init__(self) -> None:
        try:
            self.zl: Any = importlib.import_module("openzl.ext")
        except ImportError as error:
            self.missing = f"pip install openzl: {error}"
            return
        self.compressor = self.zl.Compressor()
        self.compressor.select_starting_graph(self.zl.graphs.Compress()(self.compressor))

    def make(self, old: np.ndarray, new: np.ndarray) -> bytes:
        context = self.zl.CCtx()
        context.ref_compressor(self.compressor)
        context.set_parameter(self.zl.CParam.FormatVersion, self.zl.MAX_FORMAT_VERSION)
        data = old ^ new  # (Input borrows it)
        return bytes(context.compress([self.zl.Input(self.zl.Type.Numeric, data)]))

    def apply(self, weights: np.ndarray, data: bytes) -> None:
        made = self.zl.DCtx().decompress(data)[0]
        np.bitwise_xor(weights, np.asarray(made.content.as_nparray()).view(weights.dtype), out=weights)


# ---- all -----------------------------------------------------------------------------------------------------------


def others() -> "Dict[str, Candidate]":
    zstd = Zstd()
    long_range = ["zstd", "-q", "-f", "--single-thread"]
    made = [
        Int32AndValue(),
        Gaps(None, False, 0, "u16 gaps + value"),
        Gaps(zstd, False, 1, "u16 gaps + value + zstd -1"),
        Gaps(zstd, True, 1, "u16 gaps + xor + zstd -1"),
        *(Xor(zstd, level) for level in (1, 3, 19)),
        Program(
            "zstd --patch-from",
            [*long_range, "--patch-from={old}", "{new}", "-o", "{patch}"],
            [*long_range, "-d", "--long=31", "--patch-from={old}", "{patch}", "-o", "{new}"],
        ),
        Program("xdelta3", ["xdelta3", "-f", "-e", "-s", "{old}", "{new}", "{patch}"],
                ["xdelta3", "-f", "-d", "-s", "{old}", "{patch}", "{new}"]),
        Program("xdelta3 -9", ["xdelta3", "-9", "-f", "-e", "-s", "{old}", "{new}", "{patch}"],
                ["xdelta3", "-f", "-d", "-s", "{old}", "{patch}", "{new}"]),
        ZipNN(),
        OpenZL(),
    ]  # fmt: skip
    return {candidate.name: candidate for candidate in made}
