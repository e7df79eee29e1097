"""deepreduce.torch: tensors that travel as numbers of 16 bits, by an all-reduce."""

from __future__ import annotations

import math
import struct
import time
import zlib
from typing import Any, Dict, List, Optional, Sequence

import torch

from ..errors import PeerError
from ..plan import Plan
from ..tensor import State
from ._engine import Engine, Step, all_reduce
from ._heads import Head, compare
from ._unit import Item

_HALVES = {"f16": torch.float16, "bf16": torch.bfloat16}
_BESIDE = {"index=all", "feedback=residual", "bucket=flat"}
_AT_ONCE = 1 << 16  # elements
_WORDS = struct.Struct("=IIII")  # of each rank, behind the tensors: the words of its Head, and which tensor is not finite


def half_of(plan: Plan) -> Optional[torch.dtype]:
    """The type of a plan that sends all values in one, with or without a residual; None of another plan: its frames are
    gathered, which among n ranks sends n / 2 times as much."""
    if plan.name_of("value") != "half":
        return None
    value, *beside = (plan.stages[role] for role in ("value", *(role for role in plan.stages if role != "value")))
    plain = not value.behind and all(each.is_default or each.text in _BESIDE for each in beside)
    return _HALVES[str(value.parameters["type"])] if plain else None


class ReducedUnit:
    """Tensors that travel together, as the type of their plan. Each rank sends its share of the mean, x / n, rounded once;
    with a residual, what the rounding lost is added to the next step's. The engine sums in that type, and gives all ranks
    the same bits.

    Behind the tensors are bytes as numbers, which a sum with zeros leaves as they are: each rank's Head, and the number of a
    tensor that is not finite, for which it sends zeros. All ranks see them, and raise together.
    """

    parts: Sequence[Any] = ()  # of frames

    def __init__(self, items: Sequence[Item], engine: Engine, states: Dict[str, State]) -> None:
        self.items = list(items)
        self.arrived = 0  # tensors of this step that are where they were placed
        self._engine, self._states = engine, states
        half = half_of(items[0].plan)
        assert half is not None
        self._half, self._keeps = half, items[0].plan.info.residual
        for item in items:
            if self._keeps and item.name not in states:
                states[item.name] = State(torch.empty(item.elements, dtype=item.dtype), item.plan)
        told = "\n".join(f"{each.name} {each.elements} {each.dtype} {each.plan}" for each in self.items)
        self._digest = zlib.crc32(told.encode())
        self._bytes = sum(item.elements * item.dtype.itemsize for item in self.items)
        self._elements = [item.elements for item in self.items]
        self._marks = _WORDS.size * engine.size
        self.most = half.itemsize * (sum(self._elements) + self._marks)
        self._tensors: List[Any] = [None] * len(self.items)
        self._totals: Any = None  # f32: the gradients and the residuals, if those are kept
        self._sent: Any = None  # of the half type: shares, and marks; then their sum
        self._scratch: Any = None  # f32, and the half type
        self._device: Optional[torch.device] = None  # where the engine wants it, if it is not the CPU
        self._far: Any = None
        self._what, self._work, self._begun = "", None, False
        self._kept: Any = None  # residuals before this step, where it may be skipped
        self._returned: Any = None  # shares that went back to the residuals, of a step that others may have completed

    def place(self, position: int, tensor: torch.Tensor) -> None:
        """Of this step's tensors the one of items[position]: flat, contiguous, read and overwritten where it lies."""
        self._tensors[position] = tensor
        self._device = self._engine.slot_device(tensor.device)
        # (Residuals are on the CPU.)
        home = torch.device("cpu") if self._keeps or self._device is None else self._device
        if self._sent is None or self._sent.device != home:
            total = sum(self._elements)
            self._totals = torch.empty(total if self._keeps else 0, device=home)
            self._sent = torch.empty(total + self._marks, dtype=self._half, device=home)
            at_once = min(max(self._elements), _AT_ONCE) if home.type == "cpu" else max(self._elements)
            self._scratch = [torch.empty(at_once, dtype=kind, device=home) for kind in (torch.float32, self._half)]

    def start(self, number: int, step: Step) -> None:
        """Rounds the tensors and issues the all-reduce. number: of the step."""
        begin = time.perf_counter()
        self._what, self._number = f"step {number}, halves {self._digest:08x}", number
        sums: Sequence[Any] = self._tensors
        if self._keeps:
            residuals, sums = self._residuals(), self._totals.split(self._elements)
            self._kept = [each.clone() for each in residuals] if self._engine.skips else None
            for total, tensor, residual in zip(sums, self._tensors, residuals):
                torch.add(tensor.to(total.device), residual, out=total)
        shares = self._sent[: -self._marks]
        bad = None
        if not math.isfinite(self._round(sums, shares)):  # (a sum of 1e38 and the like is looked at again)
            bad = next((i for i, each in enumerate(sums) if not bool(each.isfinite().all())), None)
        self._begun = bad is None
        if bad is not None:
            shares.zero_()
        words = number, self._engine.failures, self._engine.failed, 0 if bad is None else 1 + bad
        own = _WORDS.pack(*(word & 0xFFFFFFFF for word in words))
        marks = self._sent[-self._marks :].view(self._engine.size, -1)
        marks.zero_()
        marks[self._engine.rank] = torch.tensor(list(own), dtype=self._half)
        step.encode += time.perf_counter() - begin
        step.dense += self._bytes
        step.kept += sum(self._elements) if self._begun else 0
        self._issue(step)
        if self._keeps and self._begun:  # while it travels
            begin = time.perf_counter()
            self._leave_rest(sums, residuals)
            step.encode += time.perf_counter() - begin

    def _share(self, part: torch.Tensor) -> torch.Tensor:
        """Of the mean, in scratch. What is too large for the type is its largest number, as in a frame."""
        largest, share = torch.finfo(self._half).max, self._scratch[0][: part.numel()]
        return share.copy_(part).clamp_(-largest, largest).div_(self._engine.size)

    def _round(self, sums: Sequence[torch.Tensor], shares: torch.Tensor) -> float:
        """Shares of sums; returns their sum. A part that fits the cache at a time, here and below: memory is read once."""
        total = torch.zeros((), device=sums[0].device)
        for each, out in zip(sums, shares.split(self._elements)):
            for part, rounded in zip(self._parts_of(each), self._parts_of(out)):
                total += part.sum(dtype=torch.float32)
                rounded.copy_(self._share(part))
        return float(total)

    def _leave_rest(self, sums: Sequence[torch.Tensor], residuals: Sequence[torch.Tensor]) -> None:
        """What rounding loses is the next residual."""
        for each, residual in zip(sums, residuals):
            for part, rest in zip(self._parts_of(each), self._parts_of(residual)):
                share, rounded = self._share(part), self._scratch[1][: part.numel()]
                torch.sub(part, share.copy_(rounded.copy_(share)), alpha=self._engine.size, out=rest)

    def _parts_of(self, tensor: torch.Tensor) -> Sequence[Any]:
        parts: Sequence[Any] = tensor.split(self._scratch[0].numel())
        return parts

    def _residuals(self) -> List[torch.Tensor]:
        for item in self.items:
            state = self._states[item.name]
            if not state.memory[:8].any():  # a fresh one has none
                state.memory[:] = State.from_residual(torch.empty(item.elements, dtype=item.dtype), item.plan).memory
        return [torch.from_numpy(self._states[item.name].residual) for item in self.items]

    def _issue(self, step: Step) -> None:
        begin, size, n = time.perf_counter(), self._sent.nbytes, self._engine.size
        self._far = None if self._device in (None, self._sent.device) else self._sent.to(self._device)
        self._work = self._engine.issue(self._what, all_reduce, self._sent if self._far is None else self._far)
        step.frame += size
        step.sent += 2 * (n - 1) * size // n
        step.received += 2 * (n - 1) * size // n
        step.wait += time.perf_counter() - begin

    def finish(self, deadline: float, step: Step) -> bool:
        """Waits; the tensors become the mean over ranks. They are untouched if something is raised. True: a rank asks to
        skip the step, and they are untouched."""
        begin = time.perf_counter()
        self._engine.wait(self._what, self._work, deadline)
        if self._far is not None:
            self._sent.copy_(self._far)
        step.wait += time.perf_counter() - begin
        if self._skips():
            return True
        begin = time.perf_counter()
        torch._foreach_copy_(self._tensors, self._sent[: -self._marks].split(self._elements))
        step.merge += time.perf_counter() - begin
        return False

    def _skips(self) -> bool:
        """Whether a rank asks to skip the step. Raises OutOfStep, and PeerError, the same on all ranks."""
        marks = self._sent[-self._marks :].view(self._engine.size, -1)
        words = [_WORDS.unpack(bytes(int(each) for each in row)) for row in marks.tolist()]
        compare([Head(self._digest << 32 | number, failures, failed) for number, failures, failed, _ in words], self._engine)
        self._returned = None
        for rank, (*_, bad) in enumerate(words):
            if bad and self._engine.skips:
                return True
            if bad:
                name = self.items[bad - 1].name
                raise self._engine.named(PeerError(f"{name}: the gradient, with its residual, is not finite", frame=rank))
        return False

    def skip(self) -> None:
        """The step is skipped: residuals are as before, tensors NaN."""
        if self._kept is not None:
            torch._foreach_copy_(self._residuals(), self._kept)
        for tensor in self._tensors:
            tensor.fill_(math.nan)
        self._begun = False

    def take_back(self) -> None:
        """The step has failed: what was sent goes back to the residuals."""
        if self._begun and self._keeps:
            sums, residuals = self._totals.split(self._elements), self._residuals()
            self._leave_rest(sums, residuals)
            if self._returned is None:
                self._returned = [total - residual for total, residual in zip(sums, residuals)]
            torch._foreach_copy_(residuals, sums)
        self._begun = False

    def withdraw(self) -> None:
        """Others have completed the step that was taken back: the residuals are as if this rank had, too."""
        if self._returned is not None:
            torch._foreach_sub_(self._residuals(), self._returned)
        self._returned = None
