"""deepreduce.torch: tensors that travel together, and how they do."""

from __future__ import annotations

import math
import re
import time
import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy
import torch

from ..batch import Batch
from ..bound import Bound
from ..errors import CorruptFrame, Error
from ..plan import Plan
from ..tensor import State
from ._engine import HOST, Engine, Step, is_finite
from ._heads import HEAD, NOT_FINITE, read_heads, write_head
from ._slots import Room, Slots, of_one_size, rounded

_SIZE = 8  # bytes that tell the size of a frame


class Item(NamedTuple):
    """A tensor of a unit: its name, shape and type, and what is done to it."""

    name: str
    elements: int
    dtype: torch.dtype
    plan: Plan
    rows: int = 1  # of its matrix, of a transform
    shape: Optional[torch.Size] = None  # of a tensor that is sparse

    @property
    def matrix(self) -> Tuple[int, int]:
        """Its shape as a matrix: of the first dimension by all others."""
        return self.rows, self.elements // max(1, self.rows)


class Part:
    """Tensors that are one frame: those of one plan if it is flat, else of all that are not.

    They may move from step to step (`place`); then the part is bound to them anew. Residuals are by name, in `states`,
    which outlives the part.
    """

    def __init__(self, items: Sequence[Item], engine: Engine, states: Dict[str, State]) -> None:
        self.items, self._engine, self._states = items, engine, states
        shapes = [torch.empty(each.elements, dtype=each.dtype) for each in items]
        self._flat = items[0].plan.info.flat
        try:
            self._batch = Batch(shapes, [each.plan for each in items], frames=engine.size)
            for item, shape in zip(items, shapes):
                if item.plan.info.feedback and item.name not in states:
                    states[item.name] = State(item.plan, shape)
        except Error as error:
            raise self.named(error) from None
        self.bound_size = self._batch.bound
        self._keys = [zlib.crc32(item.name.encode()) + 1 for item in items]
        # (Votes are counted as they are: a rounded mean could break a tie.)
        self._weights = [1.0 if items[0].plan.info.votes else 1 / engine.size] * engine.size
        self._tensors: List[Any] = [None] * len(items)
        self._copies: Optional[List[torch.Tensor]] = None  # on the CPU, of tensors elsewhere
        self._sums: Optional[List[torch.Tensor]] = None  # f32, of tensors of half types: they are rounded once
        if items[0].dtype != torch.float32:
            self._sums = [torch.empty(each.elements) for each in items]
        self._bound: Optional[Bound] = None
        self.returned: Any = None  # what the residuals took back of a step that others may have completed
        self._kept: Dict[str, Any] = {}  # states before this step, where it may be skipped
        self.sent = (0, 0)  # where in the slot this step's frame is; of no bytes: there is none, or it only says why

    def place(self, position: int, tensor: torch.Tensor) -> None:
        self._tensors[position] = tensor
        if tensor.device.type not in HOST and self._copies is None:
            self._copies = [torch.empty(each.elements, dtype=each.dtype) for each in self.items]
        self.release()

    def tensor(self, position: int) -> torch.Tensor:
        """The one of items[position], where it was placed."""
        return self._tensors[position]

    def release(self) -> None:
        """Others may use the states."""
        if self._bound is not None:
            self._bound.close()
            self._bound = None

    def _bind(self) -> Bound:
        states = [self._states.get(item.name) if item.plan.info.feedback else None for item in self.items]
        x = self._copies or self._tensors
        try:
            return self._batch.bind(x, self._sums or x, state=states, key=self._keys, frames=self._engine.size)
        except Error as error:
            raise self.named(error) from None

    def encode(self, slot: int, start: int, end: int, number: int, seed: int, tag: int, step: Step) -> int:
        """Into bytes [start, end) of the slot at that address; bytes of the frame."""
        if self._bound is None:
            self._bound = self._bind()
        if self._copies:
            torch._foreach_copy_(self._copies, self._tensors)
        bound, begin = self._bound, time.perf_counter()
        size = bound._encode_at(slot + start, end - start, number, seed, self._engine.rank, tag)
        step.encode += time.perf_counter() - begin
        self.sent = (start, start if bound.failed else start + size)
        step.frame += size
        step.kept += bound.kept
        return size

    def merge(self, places: Sequence[Tuple[int, int]], tag: int, step: Step) -> None:
        """places: address and bytes of each rank's frame"""
        begin = time.perf_counter()
        try:
            self._bound._merge_at(places, self._weights, tag)  # type: ignore[union-attr]
        except Error as error:
            raise self.named(error) from None
        step.merge += time.perf_counter() - begin
        sums = self._sums or self._copies
        if sums:
            torch._foreach_copy_(self._tensors, sums)

    @property
    def is_finite(self) -> bool:
        return all(map(is_finite, self._tensors))

    @property
    def failed(self) -> bool:
        """Whether the last encode could not be done."""
        return self._bound is not None and self._bound.failed

    def remember(self) -> None:
        """The states, for `skip`."""
        for item in self.items:
            if item.plan.info.feedback:
                memory = self._states[item.name].memory
                if item.name not in self._kept:
                    self._kept[item.name] = numpy.empty_like(memory)
                self._kept[item.name][:] = memory

    def skip(self) -> None:
        """States are as before the step, and tensors are NaN."""
        for name, memory in self._kept.items():
            self._states[name].memory[:] = memory
        for tensor in self._tensors:
            tensor.fill_(math.nan)
        self.sent = (0, 0)

    def take_back(self, slot: Any) -> None:
        """The frame in the slot never arrived: what it holds goes back to the residuals."""
        (start, end), self.sent = self.sent, (0, 0)
        if start < end and any(item.plan.info.residual for item in self.items):
            frame = slot[start:end]
            self._batch.merge([frame], [self._residual(item) for item in self.items], add=True)
            if self.returned is None:
                self.returned = frame.copy()

    def withdraw(self) -> None:
        """Others have completed the step whose frame was taken back: the residuals are as if this rank had, too. Since then
        a step has been encoded, and has failed on all ranks."""
        if self.returned is not None:
            sent = [numpy.zeros(item.elements, numpy.float32) for item in self.items]
            self._batch.merge([self.returned], sent, add=True)
            for item, values in zip(self.items, sent):
                if item.plan.info.residual:
                    self._residual(item)[:] -= numpy.float32(decay_of(item.plan)) * values
            self.returned = None

    def _residual(self, item: Item) -> Any:
        return (
            self._states[item.name].residual if item.plan.info.residual else numpy.empty(item.elements, numpy.float32)
        )

    def named(self, error: Error) -> Error:
        """The error with names: of the tensor beside its position, of the rank for the position of its frame."""
        self._engine.named(error)
        if not (self._flat and isinstance(error, CorruptFrame)):  # which speaks of the one tensor that is flat
            error.args = (re.sub(r"\b(?:tensor (\d+)|x\[(\d+)\])", self._with_name, str(error)),)
        return error

    def _with_name(self, match: re.Match[str]) -> str:
        position = int(match[1] or match[2])
        return f"{match[0]} ({self.items[position].name})" if position < len(self.items) else match[0]


class Unit:
    """Tensors that travel together: encode, one all-gather of slots of one size, merge in rank order.

    A slot is a head, the sizes of its frames (uint64), and the frames. All ranks have seen all slots, so they agree without
    asking how large the next are. In one that is too small the sizes still arrive, at all ranks in the same step, and all
    send the rest. The first has room for the sizes only, unless all frames are of one size.
    """

    def __init__(self, items: Sequence[Item], engine: Engine, states: Dict[str, State], seed: int) -> None:
        by_frame: Dict[Tuple[Optional[Plan], bool], List[Item]] = {}
        for item in items:
            key = (item.plan if item.plan.info.flat else None, item.plan.info.votes)
            by_frame.setdefault(key, []).append(item)
        # Frames of fixed size first: those behind them stay where they are.
        groups = sorted(by_frame.values(), key=lambda each: not each[0].plan.info.fixed_size)
        self.parts = [Part(each, engine, states) for each in groups]
        self.items = [item for part in self.parts for item in part.items]
        self.arrived = 0  # tensors of this step that are where they were placed
        self._where = [(part, i) for part in self.parts for i in range(len(part.items))]
        self._bytes = sum(item.elements * item.dtype.itemsize for item in self.items)
        self._engine, self._seed = engine, seed
        told = "\n".join(f"{each.name} {each.elements} {each.dtype} {each.plan}" for each in self.items)
        self._digest = zlib.crc32(told.encode())
        self._prefix = HEAD + _SIZE * len(self.parts)
        # Slots that are sent and received.
        self._send = torch.empty(rounded(self._prefix + sum(p.bound_size for p in self.parts)), dtype=torch.uint8)
        self.most = self._send.numel()  # bytes that a step sends to each rank
        self._memory, self._at = self._send.numpy(), self._send.data_ptr()
        self._sizes = self._memory[HEAD : self._prefix].view(numpy.uint64)
        fixed = all(of_one_size(item.plan) for item in self.items)
        self._slots = Slots(engine, Room(self._send.numel(), None if fixed else self._prefix))
        self._device: Optional[torch.device] = None  # of the slots that travel, if it is not the CPU
        self._tag = 0

    def place(self, position: int, tensor: torch.Tensor) -> None:
        """Of this step's tensors the one of items[position]: flat, contiguous, read and overwritten where it lies."""
        part, i = self._where[position]
        part.place(i, tensor)
        self._device = self._engine.slot_device(tensor.device)

    def start(self, number: int, step: Step) -> None:
        """Encodes the tensors and issues the collective. number: of the step."""
        self._tag = self._digest << 32 | number & 0xFFFFFFFF
        skips = self._engine.skips and not self._prepare_skip(step)
        end = self._prefix
        for part in self.parts:
            part.sent = (0, 0)
        for i, part in enumerate(self.parts):
            size = 0 if skips else part.encode(self._at, end, self._memory.size, number, self._seed, self._tag, step)
            skips = skips or (self._engine.skips and part.failed)
            self._sizes[i] = size
            end += size
        if skips:
            self._sizes[:] = 0
        write_head(self._memory[: self._prefix], self._engine, self._tag, NOT_FINITE if skips else 0)
        self._slots.issue(f"step {number}, slot {self._digest:08x}", self._send, self._device, step)
        step.dense += self._bytes

    def _prepare_skip(self, step: Step) -> bool:
        """Whether the tensors are finite; if so, the states are remembered: another rank's, or another unit, may not be."""
        begin = time.perf_counter()
        for part in self.parts:
            part.remember()
        finite = all(part.is_finite for part in self.parts)
        step.encode += time.perf_counter() - begin
        return finite

    def finish(self, deadline: float, step: Step) -> bool:
        """Waits, and merges the mean of all ranks into the tensors. Those of an unsound frame are untouched, and all if the
        ranks are out of step. True: a rank asks to skip the step, and they are untouched."""
        received = self._slots.wait(deadline, step)
        slots, longest, skips = self._read(received)
        for part in self.parts:
            part.returned = None  # ranks agree on all steps before
        if skips:
            return True
        if longest > received.shape[1]:
            received = self._slots.rest(longest, deadline, step)
        self._slots.took(longest)
        at, places = received.ctypes.data + self._prefix, []
        for sizes in slots:
            start = at
            for size in sizes:
                places.append((start, size))
                start += size
            at += received.shape[1]
        for i, part in enumerate(self.parts):
            part.merge(places[i :: len(self.parts)], self._tag, step)
        return False

    def _read(self, received: Any) -> Tuple[List[List[int]], int, bool]:
        """The sizes of the frames of each slot, the bytes of the longest slot, and whether a rank asks to skip the step.
        Raises OutOfStep, CorruptFrame."""
        prefixes = received[:, : self._prefix].copy()
        skips = read_heads(prefixes, self._engine)
        slots: List[List[int]] = prefixes[:, HEAD:].copy().view(numpy.uint64).tolist()
        for rank, sizes in enumerate(slots):
            for part, size in zip(self.parts, sizes):
                if size > part.bound_size:
                    words = f"a frame of {size} bytes, more than the {part.bound_size} of any"
                    raise part.named(CorruptFrame(words, frame=rank))
        return slots, self._prefix + max(map(sum, slots)), skips

    def skip(self) -> None:
        """The step is skipped: residuals are as before, tensors NaN."""
        for part in self.parts:
            part.skip()

    def take_back(self) -> None:
        """The step has failed: what was sent goes back to the residuals. Raises the first error, after all parts."""
        failed: Optional[Error] = None
        for part in self.parts:
            try:
                part.take_back(self._memory)
            except Error as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def withdraw(self) -> None:
        """Others have completed the step that was taken back last."""
        for part in self.parts:
            part.withdraw()


def decay_of(plan: Plan) -> float:
    """By what feedback multiplies a residual before it adds the next gradient."""
    return float(plan.stages["feedback"].parameters["beta"]) if plan.name_of("feedback") == "residual" else 1.0
