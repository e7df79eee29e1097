"""Plans of this library as candidates: calls of the C ABI in memory that is there, one thread.

With `sums` both sides have the sums of the base (dr_base_sums) from the patch before, as a chain has them; without, the
check of the base reads it.
"""

import ctypes
import sys
from typing import Any, Dict

import numpy as np

from bench.patch.candidates import Candidate
from bench.patch.entropy import Shapes
from bench.patch.recordings import ROOT

sys.path[:0] = [str(ROOT / "bindings" / "python")]
from deepreduce import patch  # noqa: E402
from deepreduce._native import _abi, _call, _library  # noqa: E402

PLANS = {
    "ours: auto": "sparsify=changed index=auto value=ulp",
    "ours: golomb + ulp": "sparsify=changed index=golomb value=ulp",
    "ours: golomb + values": "sparsify=changed index=golomb value=raw",
}
CHUNK = 4096  # bytes that one sum is of


class Ours(Candidate):
    def __init__(self, name: str, plan: str, dtype: int, sums: bool = True) -> None:
        self.name, self.plan, self.dtype, self.with_sums = name, plan, dtype, sums
        self.library = _library.load()
        self.context = _call.Context(1)
        self.parsed = ctypes.POINTER(_abi.dr_plan)()
        error = _call.new(_abi.dr_error)
        _call.check(self.library.dr_plan_parse(plan.encode(), ctypes.byref(self.parsed), error), error)
        self.room: np.ndarray = np.empty(0, np.uint8)
        self.base_sums: np.ndarray = np.empty(0, np.uint64)

    def prepare(self, old: np.ndarray) -> None:
        """Once for a base."""
        chunks, error = -(-old.nbytes // CHUNK), _call.new(_abi.dr_error)
        self.base_sums, self.sums = np.empty(chunks, np.uint64), np.empty(chunks, np.uint64)
        at = ctypes.cast(self.base_sums.ctypes.data, ctypes.POINTER(ctypes.c_uint64))
        _call.check(self.library.dr_base_sums(old.ctypes.data, old.nbytes, at, chunks, error), error)

    def _tensor(self, kind: Any, words: np.ndarray) -> Any:
        tensor = _call.new(kind)
        tensor.dtype, tensor.universe, tensor.values = self.dtype, words.size, words.ctypes.data
        if self.with_sums:
            self.sums[:] = self.base_sums
            tensor.sums = ctypes.cast(self.sums.ctypes.data, ctypes.POINTER(ctypes.c_uint64))
        return tensor

    def _done(self, status: int) -> None:
        if status:
            _call.fail(status, self.context)

    def make(self, old: np.ndarray, new: np.ndarray) -> bytes:
        tensor, size, result = self._tensor(_abi.dr_tensor, new), ctypes.c_size_t(), _call.new(_abi.dr_result)
        tensor.base = old.ctypes.data
        tensors = (ctypes.byref(tensor), ctypes.sizeof(tensor), 1)
        if self.room.size == 0:
            self._done(self.library.dr_bound(self.context.handle, self.parsed, None, None, *tensors, ctypes.byref(size)))
            self.room = np.zeros(size.value, np.uint8)
        room = (self.room.ctypes.data, self.room.size)
        self._done(self.library.dr_encode(self.context.handle, self.parsed, None, None, *tensors, *room, result))
        return self.room[: result.size].tobytes()

    def apply(self, weights: np.ndarray, data: bytes) -> None:
        out, options = self._tensor(_abi.dr_tensor_out, weights), _call.new(_abi.dr_decode_options)
        options.flags = _abi.DR_DECODE_APPLY
        frame = np.frombuffer(data, np.uint8)
        outs = (ctypes.byref(out), ctypes.sizeof(out), 1)
        handle, memory = self.context.handle, (frame.ctypes.data, frame.size)
        self._done(self.library.dr_decode(handle, None, *memory, options, *outs))


class Public(Candidate):
    """deepreduce.patch, as a user calls it: a dict of tensors, without sums; a patch with its names, and Python's part."""

    name = "ours: deepreduce.patch"
    VIEWS = {"bf16": "V2", "f32": "<f4", "fp8": "u1", "int8": "u1"}

    def __init__(self, kind: str, tensors: Shapes) -> None:
        self.view, self.tensors = np.dtype(self.VIEWS[kind]), tensors

    def _dict(self, words: np.ndarray) -> Dict[str, np.ndarray]:
        made, at = {}, 0
        for name, shape in self.tensors:
            end = at + int(np.prod(shape))
            made[name] = words[at:end].view(self.view).reshape(shape)
            at = end
        return made or {"all": words.view(self.view)}

    def make(self, old: np.ndarray, new: np.ndarray) -> bytes:
        return patch.encode(self._dict(old), self._dict(new))

    def apply(self, weights: np.ndarray, data: bytes) -> None:
        patch.apply(self._dict(weights), data)


DTYPES = {"bf16": "DR_BF16", "f32": "DR_F32", "fp8": "DR_U8", "int8": "DR_U8"}


def ours(kind: str, tensors: Shapes = ()) -> Dict[str, Candidate]:
    """For words of this type, of a model of these tensors. `without sums`: of the first plan."""
    dtype = getattr(_abi, DTYPES[kind])
    made = [Ours(name, plan, dtype) for name, plan in PLANS.items()]
    first, plan = next(iter(PLANS.items()))
    return {rival.name: rival for rival in [*made, Ours(f"{first}, without sums", plan, dtype, sums=False), Public(kind, tensors)]}
