"""Runs the operations of a codec, built in or of a plug-in, as the library does: for payloads without a frame around them."""

from __future__ import annotations

import ctypes
import time
from ctypes import POINTER, c_char_p, c_double, c_int32, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, List, Optional, Tuple

import numpy

from deepreduce._native import _abi, _library

F32, F16, BF16 = 1, 2, 3


class Fault(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("code", c_int32), ("stream", c_uint32), ("where", c_uint64), ("what", c_uint64), ("message", c_char_p)]


class Value(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("given", c_uint32), ("reserved", c_uint32), ("number", c_double)]


class Params(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("values", c_void_p), ("fields", c_void_p), ("beside", c_uint32), ("reserved", c_uint32)]


class Job(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("universe", c_uint64), ("count_max", c_uint64), ("count", c_void_p), ("dtype", c_uint32),
        ("width", c_uint32), ("data", c_void_p), ("in_max", c_uint64), ("in_size", c_void_p), ("out", c_void_p),
        ("out_capacity", c_uint64), ("out_size", c_void_p), ("tell", c_void_p), ("tell_capacity", c_uint64), ("tell_count", c_void_p),
        ("shared_key", c_uint64), ("private_key", c_uint64), ("fault", POINTER(Fault)), ("base", c_void_p), ("history", c_void_p),
    ]  # fmt: skip


class Need(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("payload", c_uint64), ("tell", c_uint64), ("encode_scratch", c_uint64), ("decode_scratch", c_uint64),
        ("rule", c_void_p), ("tell_suffices", c_uint32), ("reserved", c_uint32),
    ]  # fmt: skip


_Task = ctypes.CFUNCTYPE(None, c_void_p, c_size_t, c_size_t)
_Parallel = ctypes.CFUNCTYPE(None, c_void_p, c_size_t, _Task, c_void_p)


class Exec(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("scratch", c_void_p), ("scratch_size", c_uint64), ("stream", c_void_p), ("workers", c_uint32),
        ("reserved", c_uint32), ("pool", c_void_p), ("parallel", _Parallel), ("device", c_void_p), ("launch", c_void_p), ("sort", c_void_p),
    ]  # fmt: skip


_Resolve = ctypes.CFUNCTYPE(c_int32, POINTER(Params), POINTER(Job), POINTER(c_uint64), POINTER(Fault))
_Bounds = ctypes.CFUNCTYPE(c_int32, POINTER(Params), POINTER(Job), c_size_t, POINTER(Need))
_Run = ctypes.CFUNCTYPE(c_int32, POINTER(Exec), POINTER(Params), POINTER(Job), c_size_t)


class Ops(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("resolve", _Resolve), ("need", _Bounds), ("cost", c_void_p), ("encode", _Run), ("decode", _Run),
        ("launches", c_uint16 * 2),
    ]  # fmt: skip


def _one_after_the_other(pool: Any, n: int, task: Any, arg: Any) -> None:
    for i in range(n):
        task(arg, i, 0)


_PARALLEL = _Parallel(_one_after_the_other)


class Failed(Exception):
    """A fault of a job: its code, and its message."""


class Codec:
    """A value codec by its name; `plugin.NAME` is the last of that name."""

    def __init__(self, name: str, **given: float) -> None:
        library = _library.load()
        own = name.startswith("plugin.")
        found = None
        for i in range(library.dr_codec_count()):
            codec = library.dr_codec_at(i).contents
            if codec.role == 2 and codec.name.decode() == name.split(".")[-1] and (codec.id >= 0x8000) == own:
                found = codec
        assert found is not None, name
        self.codec = found
        self.ops = ctypes.cast(found.cpu, POINTER(Ops)).contents
        stride = ctypes.sizeof(_abi.dr_param)
        params = [_abi.dr_param.from_address(ctypes.addressof(found.params.contents) + stride * i) for i in range(found.param_count)]
        values = (Value * max(1, len(params)))()
        for value, param in zip(values, params):
            name_of = param.name.decode()
            value.struct_size, value.given = ctypes.sizeof(Value), name_of in given
            x: Any = given.get(name_of, param.fallback)
            value.number = param.choices.decode().split("|").index(x) if isinstance(x, str) else x
        self.values, self.fields = values, (c_uint64 * 8)()

    def params(self, encode: bool) -> Params:
        return Params(ctypes.sizeof(Params), ctypes.addressof(self.values) if encode else None, ctypes.addressof(self.fields), 0, 0)

    def job(self, n: int, dtype: int) -> Tuple[Job, Fault, c_uint64]:
        fault, size = Fault(struct_size=ctypes.sizeof(Fault)), c_uint64()
        job = Job(struct_size=ctypes.sizeof(Job), universe=n, count_max=n, dtype=dtype, width=1)
        job.out_size, job.shared_key, job.private_key = ctypes.addressof(size), 11, 0x123456789ABCDEF
        job.fault = ctypes.pointer(fault)
        return job, fault, size

    def run(self, operation: Any, job: Job, fault: Fault, scratch_size: int, encode: bool, rounds: int) -> float:
        scratch = numpy.zeros(scratch_size + 64, "u1")
        at = (scratch.ctypes.data + 63) & ~63
        execution = Exec(ctypes.sizeof(Exec), at, scratch_size, None, 1, 0, None, _PARALLEL, None, None, None)
        best = float("inf")
        for _ in range(rounds):
            begin = time.perf_counter()
            status = operation(execution, self.params(encode), job, 1)
            best = min(best, time.perf_counter() - begin)
            assert status == 0
            if fault.code:
                raise Failed(f"{fault.code} {(fault.message or b'').decode()}")
        self.seconds = best
        return best

    def encode(self, values: Any, dtype: int = F32, rounds: int = 1) -> Any:
        """The payload of an array: f32, or 16 bits a value."""
        job, fault, size = self.job(len(values), dtype)
        if self.ops.resolve:
            assert self.ops.resolve(self.params(True), job, self.fields, fault) == 0
        need = Need(struct_size=ctypes.sizeof(Need))
        assert self.ops.need(self.params(False), job, 1, need) == 0
        out = numpy.full(need.payload + 64, 0xA5, "u1")
        at = (out.ctypes.data + 15) & ~15
        job.data, job.in_max, job.out, job.out_capacity = values.ctypes.data, values.nbytes, at, need.payload
        self.run(self.ops.encode, job, fault, need.encode_scratch, True, rounds)
        first = at - out.ctypes.data
        assert size.value <= need.payload and (out[first + need.payload :] == 0xA5).all()
        return out[first : first + size.value].copy()

    def decode(self, payload: Any, n: int, dtype: int = F32, rounds: int = 1) -> Any:
        """The values of a payload, as bits."""
        job, fault, size = self.job(n, dtype)
        need = Need(struct_size=ctypes.sizeof(Need))
        assert self.ops.need(self.params(False), job, 1, need) == 0
        bits = "u4" if dtype == F32 else "u2"
        out = numpy.zeros(n + 64, bits)
        at = (out.ctypes.data + 15) & ~15
        job.data, job.in_max = payload.ctypes.data, payload.nbytes
        job.out, job.out_capacity = at, n * out.itemsize
        self.run(self.ops.decode, job, fault, need.decode_scratch, False, rounds)
        first = (at - out.ctypes.data) // out.itemsize
        assert size.value == n * out.itemsize
        return out[first : first + n].copy()


def compare(first: Codec, second: Codec, values: Any, dtype: int = F32) -> Optional[str]:
    """How the payloads of two codecs, or what each decodes of the other's, differ; None if they do not."""
    payloads = [c.encode(values, dtype) for c in (first, second)]
    if payloads[0].tobytes() != payloads[1].tobytes():
        return f"payloads of {len(payloads[0])} and {len(payloads[1])} bytes"
    decoded = [c.decode(payloads[0], len(values), dtype) for c in (first, second)]
    different = numpy.flatnonzero(decoded[0] != decoded[1])
    return f"value {different[0]}: {decoded[0][different[0]]:#x}, {decoded[1][different[0]]:#x}" if len(different) else None


def speeds(codecs: Dict[str, Codec], values: Any, rounds: int = 9) -> Dict[str, List[List[float]]]:
    """GB of f32 values a second, encode and decode, of each round; codecs in turns."""
    found: Dict[str, List[List[float]]] = {name: [[], []] for name in codecs}
    for _ in range(rounds):
        for name, codec in codecs.items():
            payload = codec.encode(values)
            found[name][0].append(values.nbytes / codec.seconds / 1e9)
            codec.decode(payload, len(values))
            found[name][1].append(values.nbytes / codec.seconds / 1e9)
    return found
