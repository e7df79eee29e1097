"""deepreduce.torch: tensors that travel as factors (transform=lowrank)."""

from __future__ import annotations

import math
import re
import time
import zlib
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy
import torch

from ..errors import ArgumentError, Error, OutOfStep, PeerError
from ..tensor import State
from ..transform import Transform
from ._engine import HOST, Engine, Step, all_reduce
from ._heads import Head, compare
from ._ladder import keeper_of
from ._unit import Item

_MARKS = 1 << 22  # marks are less: a float32 has them exactly


class TransformUnit:
    """Tensors of one transform, which travel together: a round is an all-reduce for each of its two factors. The second
    is issued when the first has come, at the end of the step.

    The last tensor of the transform is of the unit's own, three elements for each rank, in which its sum has what the rank
    put there: one more than its step, negative if it cannot begin its round, for a NaN, and sends zeros; and the other
    words of a Head. All ranks see them, and raise together.
    """

    parts: Sequence[Any] = ()  # of frames

    def __init__(self, items: Sequence[Item], engine: Engine, seed: int, dense_below: int) -> None:
        self.items = list(items)
        self.arrived = 0  # tensors of this step that are where they were placed
        self._engine = engine
        shapes = [item.matrix for item in self.items]
        self._marks = torch.zeros(3, engine.size)
        try:
            self.transform = Transform([*shapes, (3 * engine.size,)], items[0].plan, seed=seed, dense_below=dense_below, marks=True)
        except Error as error:
            raise self._named(error) from None
        self.most = 4 * (self.transform.info.first + self.transform.info.second)  # bytes of the factors
        told = "\n".join(f"{each.name} {each.matrix} {each.plan}" for each in self.items)
        self._digest = zlib.crc32(told.encode())
        self._bytes = sum(item.elements * item.dtype.itemsize for item in self.items)
        self._keeps = items[0].plan.info.feedback
        self._tensors: List[Any] = [None] * len(self.items)
        self._copies: Optional[List[torch.Tensor]] = None  # f32 on the CPU, of tensors elsewhere or of another type
        self._device: Optional[torch.device] = None  # of the factors that travel, if it is not the CPU
        self._what, self._work, self._factor, self._far = "", None, torch.empty(0), None
        self._failed: Optional[Error] = None  # why this rank's round did not begin
        self._done = False  # the tensors have this step's result
        self._kept: Any = None  # its state before this step, where it may be skipped
        self._returned: Optional[List[Any]] = None  # results that went back to the residuals, of a step that others may have completed

    @property
    def key(self) -> str:
        """Of the unit's state in a checkpoint."""
        return f"{self.items[0].name} … {self.items[-1].name}"

    def place(self, position: int, tensor: torch.Tensor) -> None:
        """Of this step's tensors the one of items[position]: flat, contiguous, read and overwritten where it lies."""
        self._tensors[position] = tensor.view(self.items[position].matrix)
        self._device = self._engine.slot_device(tensor.device)
        if self._copies is None and (tensor.device.type not in HOST or tensor.dtype != torch.float32):
            self._copies = [torch.empty(each.matrix) for each in self.items]

    def start(self, number: int, step: Step) -> None:
        """Computes the first factor and issues its all-reduce. number: of the step."""
        begin = time.perf_counter()
        self._what, self._failed, self._done = f"step {number}, factors {self._digest:08x}", None, False
        if self._copies:
            torch._foreach_copy_(self._copies, self._tensors)
        self._mark(number)
        if self._engine.skips:
            self._kept = self.transform._state()
        x = [*(self._copies or self._tensors), self._marks.view(-1)]
        try:
            self.transform.begin(x, x)
            self._factor = torch.from_numpy(self.transform.factor())
        except ArgumentError as error:
            self._failed = self._named(error)
            self._factor = torch.zeros(self.transform.info.first)
            self._marks[0] *= -1
            self._factor[-self._marks.numel() :] = self._marks.view(-1)
        step.encode += time.perf_counter() - begin
        step.dense += self._bytes
        self._issue(step)

    def _mark(self, number: int) -> None:
        words = number, self._engine.failures, self._engine.failed
        self._marks.zero_()
        self._marks[:, self._engine.rank] = torch.tensor([word % _MARKS for word in words])
        self._marks[0, self._engine.rank] += 1

    def _issue(self, step: Step) -> None:
        begin, size = time.perf_counter(), self._factor.numel() * 4
        self._far = None if self._device is None else self._factor.to(self._device)
        sent = self._factor if self._far is None else self._far
        self._work = self._engine.issue(self._what, all_reduce, sent)
        moved = 2 * (self._engine.size - 1) * size // self._engine.size
        step.frame += size
        step.sent += moved
        step.received += moved
        step.wait += time.perf_counter() - begin

    def _wait(self, deadline: float, step: Step) -> None:
        begin = time.perf_counter()
        self._engine.wait(self._what, self._work, deadline)
        if self._far is not None:
            self._factor.copy_(self._far)
        step.wait += time.perf_counter() - begin

    def finish(self, deadline: float, step: Step) -> bool:
        """Waits for both factors; the tensors become the mean over ranks. They are untouched if something is raised. True:
        the step is to be skipped, as all ranks see, and they are untouched."""
        self._wait(deadline, step)
        try:
            self._raise_failure()
            self._complete(deadline, step)
        except OutOfStep:
            raise
        except (ArgumentError, PeerError):  # a value that is not finite, or a mean that is too large
            if not self._engine.skips:
                raise
            return True
        return False

    def _complete(self, deadline: float, step: Step) -> None:
        while not self._next(step):
            self._factor = torch.from_numpy(self.transform.factor())
            self._issue(step)
            self._wait(deadline, step)
        if self._copies:
            torch._foreach_copy_(self._tensors, self._copies)
        self._done = True

    def _next(self, step: Step) -> bool:
        begin = time.perf_counter()
        try:
            return self.transform.next(1 / self._engine.size)
        except Error as error:
            raise self._named(error) from None
        finally:
            step.merge += time.perf_counter() - begin

    def _raise_failure(self) -> None:
        """The same error on all ranks, if one of them did not begin."""
        steps, failures, failed = self._factor[-self._marks.numel() :].view(3, -1).tolist()
        if all(map(math.isfinite, (*steps, *failures, *failed))):  # else `next` says so
            heads = [Head(int(abs(each)) - 1, int(n), int(last)) for each, n, last in zip(steps, failures, failed)]
            compare(heads, self._engine)
            self._returned = None
        if self._failed is not None:
            raise self._failed
        rank = next((i for i, each in enumerate(steps) if each < 0), None)
        if rank is not None:
            rank = self._engine.global_rank(rank)
            error = PeerError(f"rank {rank}: it could not begin the round of {self.key}")
            error.rank = rank
            raise error

    def skip(self) -> None:
        """The step is skipped: residuals and warm start are as before, tensors NaN."""
        self.transform.cancel()
        self.transform._load(self._kept)
        for tensor in self._tensors:
            tensor.fill_(math.nan)
        self._done = False

    def take_back(self) -> None:
        """The step has failed: the gradients go to the residual, if the plan keeps one. Of a round that gave its result
        that goes back: over all ranks it is what they gave."""
        if self._done and self._keeps:
            results = [each.numpy() for each in self._copies or self._tensors]
            for i, each in enumerate(results):
                self.transform.set_residual(self.transform.residual(i) + each, i)
            if self._returned is None:
                self._returned = [each.copy() for each in results]
        self.transform.cancel(keep=self._keeps)
        self._done = False

    def withdraw(self) -> None:
        """Others have completed the step that was taken back: the residuals are as if this rank had, too."""
        for i, each in enumerate(self._returned or []):
            self.transform.set_residual(self.transform.residual(i) - each, i)
        self._returned = None

    def scale(self, factor: float) -> None:
        """Multiplies the residuals."""
        if self._keeps:
            for i in range(len(self.items)):
                self.transform.set_residual(numpy.float32(factor) * self.transform.residual(i), i)

    def _named(self, error: Error) -> Error:
        """The error with the tensor's name beside its position."""
        error.args = (re.sub(r"\btensor (\d+)", self._with_name, str(error)),)
        return error

    def _with_name(self, match: re.Match[str]) -> str:
        position = int(match[1])
        return f"{match[0]} ({self.items[position].name})" if position < len(self.items) else match[0]


def carry_residuals(before: Sequence[Any], after: Sequence[Any], states: Mapping[str, State]) -> None:
    """From rung to rung of a ladder: what transforms of the one before keep goes to `states`, which frames keep, and from
    there to transforms of the one after. A residual is in one place."""
    for unit in before:
        for i, item in enumerate(unit.items if isinstance(unit, TransformUnit) and unit.transform.keeps else ()):
            residual = unit.transform.residual(i)
            like = torch.empty(item.elements, dtype=item.dtype)
            states[item.name].memory[:] = State.from_residual(like, keeper_of([item.plan]), residual).memory
            unit.transform.set_residual(numpy.zeros_like(residual), i)
    for unit in after:
        for i, item in enumerate(unit.items if isinstance(unit, TransformUnit) and unit.transform.keeps else ()):
            state = states[item.name]
            if state.memory.any():  # (a fresh one has no residual)
                unit.transform.set_residual(state.residual.reshape(item.matrix), i)
                state.memory[:] = 0


def states_of(units: Sequence[Any]) -> Dict[str, Any]:
    """Of a checkpoint: {"transforms": {unit: its state}}, or nothing without such units."""
    found = {each.key: torch.from_numpy(each.transform._state()) for each in units if isinstance(each, TransformUnit)}
    return {"transforms": found} if found else {}


def load_states(units: Sequence[Any], loaded: Mapping[str, Any], more: Sequence[Mapping[str, Any]]) -> None:
    """Takes what `states_of` gave, and adds the residuals of what it gave on other ranks. ArgumentError, and nothing has
    changed."""
    here = {each.key: each.transform for each in units if isinstance(each, TransformUnit)}
    for part in (loaded, *more):
        if set(part.get("transforms", {})) != set(here):
            names = ", ".join(sorted(set(part.get("transforms", {})) ^ set(here)))
            raise ArgumentError(f"the factors of {names}: the state has other tensors than there are here")
    before = {key: transform._state() for key, transform in here.items()}
    try:
        for key, transform in here.items():
            _load_sum(transform, [part["transforms"][key].cpu().numpy() for part in (*more, loaded)])
    except ArgumentError as error:
        for key_here, state in before.items():
            here[key_here]._load(state)
        raise ArgumentError(f"the factors of {key}: {error}") from None


def _load_sum(transform: Transform, states: Sequence[Any]) -> None:
    """The last of the states, with the residuals of all."""
    total: List[Any] = []
    for state in states:
        transform._load(state)
        if len(states) > 1 and transform.keeps:
            found = [transform.residual(i) for i in range(len(transform.shapes) - 1)]  # (of the marks there is none)
            total = [a + b for a, b in zip(total, found)] if total else found
    for i, residual in enumerate(total):
        transform.set_residual(residual, i)
