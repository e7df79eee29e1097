"""deepreduce.torch: PowerSGD's factors (Vogels et al. 2019) on a GPU, as lib/transform/lowrank.cpp computes them: up to the order of
sums in its products, which are the GPU's."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

import numpy
import torch

from .._native._types import Array
from ..errors import ArgumentError, Error
from ._device_numbers import NumberItem, Numbers, first_of
from ._engine import Engine
from ._number_heads import combine, draw
from ._orthonormal import orthonormalise

# P's row has a norm of at most 1: below this limit neither an output nor a residual overflows (lib/transform/lowrank.cpp).
_SECOND_MAX = 2.0**90
_SMALL = 1000  # elements; below, tensors are sent as they are (lib/sender/units.cpp)


class Group:
    """Matrices of one shape, side by side in the unit's arrays.

    at, first, second  where they begin among the elements, in the first numbers and in the second
    """

    def __init__(self, rows: int, columns: int, count: int, rank: int, at: int, first: int, second: int) -> None:
        self.elements, self.p, self.q = (
            slice(begin, begin + count * size) for begin, size in ((at, rows * columns), (first, rows * rank), (second, rank * columns))
        )
        self.matrix, self.left, self.right = (count, rows, columns), (count, rows, rank), (count, rank, columns)


class Factors(Numbers):
    """M = gamma · gradient + beta · residual is computed where it is read. P = M Q and the small tensors are the first numbers; Q = Mᵀ P
    with orthonormal P the second; outputs are P Qᵀ, and the residual M − P Qᵀ.

    seed, dense_below  of the sender
    """

    def __init__(self, items: Sequence[NumberItem], seed: int, dense_below: Optional[int], engine: Engine, home: torch.device) -> None:
        plan = items[0].plan
        rank = self._rank = int(plan.stages["transform"].parameters["rank"])
        limit = _SMALL if dense_below is None else dense_below
        shapes: Dict[Tuple[int, int], List[int]] = {}
        dense: List[int] = []
        for i, item in enumerate(items):
            rows = item.shape[0] if item.shape else 1
            columns = item.elements // rows if rows else 0
            is_dense = item.elements < limit or min(rows, columns) <= rank or rank * (rows + columns) >= item.elements
            (dense if is_dense else shapes.setdefault((rows, columns), [])).append(i)
        order = [i for members in shapes.values() for i in members] + dense
        self._groups: List[Group] = []
        at = first = second = 0
        ends: List[int] = []
        for (rows, columns), members in shapes.items():
            self._groups.append(Group(rows, columns, len(members), rank, at, first, second))
            ends += [first + (k + 1) * rows * rank for k in range(len(members))]
            at, first, second = (group_end.stop for group_end in (self._groups[-1].elements, self._groups[-1].p, self._groups[-1].q))
        self._dense, self._dense_first = at, first
        for i in dense:
            first += items[i].elements
            ends.append(first)
        super().__init__([items[i] for i in order], torch.float32, first, second, engine, home)
        self._ends = torch.tensor(ends, device=home)
        weights = plan.stages["feedback"].parameters
        self._beta, self._gamma = float(weights.get("beta", 1)), float(weights.get("gamma", 1))
        self._mean = float(numpy.float32(1) / numpy.float32(engine.size))
        self._drawn = torch.empty(second, device=home)  # a column of zeros would stay zero for ever
        self._warm = torch.zeros(second, device=home)
        self._basis: List[torch.Tensor] = []  # orthonormal, of this step: Pᵀ
        self._put(self._drawn, numpy.concatenate([_columns(seed, order[k], rank, n) for k, n in enumerate(self._columns())] or [numpy.zeros(0)]))
        self._warm.copy_(self._started(self._warm))
        self._leave()

    def _memory(self) -> List[torch.Tensor]:
        return [*super()._memory(), *self._basis]

    def _columns(self) -> List[int]:
        return [group.matrix[2] for group in self._groups for _ in range(group.matrix[0])]

    # ---- A step ----

    def _gathered(self) -> torch.Tensor:
        found = torch.empty(self._elements, device=self._home)
        torch._foreach_copy_([found[part] for part in self._parts], self._tensors)
        if not self._keeps:
            return found
        return (found if self._gamma == 1 else found.mul_(self._gamma)).add_(self._residual, alpha=self._beta)

    def _encode(self) -> None:
        gathered = self._gathered()
        for group in self._groups:
            right = self._warm[group.q].view(group.right)
            torch.bmm(gathered[group.elements].view(group.matrix), right.mT, out=self.sums[group.p].view(group.left))
        self.sums[self._dense_first : self._first].copy_(gathered[self._dense :])
        # A value that is not finite makes its row's sums not finite, because all its products are.
        self._find_fault(self.sums[: self._first], self._ends)

    def _check_first(self, sound: torch.Tensor) -> torch.Tensor:
        first = self.sums[: self._first]
        at = first_of(first.sub(first))
        self._note(0, at, first)
        return sound & (at == self._first)

    def _advance(self, sound: torch.Tensor) -> None:
        self._usable = self._check_first(sound)
        self._basis = orthonormalise([self.sums[group.p].view(group.left).mT for group in self._groups])
        gathered = self._gathered()
        for group, basis in zip(self._groups, self._basis):
            matrix = gathered[group.elements].view(group.matrix)
            torch.bmm(basis, matrix, out=self.second[group.q].view(group.right))
        self.second.masked_fill_(~self._usable, 0)

    def _merge(self, sound: torch.Tensor) -> None:
        usable = self._check_second() if self._groups else self._check_first(sound)
        outputs = torch.empty(self._elements, device=self._home)
        for group, basis in zip(self._groups, self._basis):
            right = self.second[group.q].view(group.right)
            torch.bmm(basis.mT, right, out=outputs[group.elements].view(group.matrix))
        torch.mul(self.sums[self._dense_first : self._first], self._mean, out=outputs[self._dense :])
        outputs.masked_fill_(~usable, 0)
        if self._keeps:
            self._keep(self._gathered())
            self._residual[: self._dense].sub_(outputs[: self._dense])
            self._residual[self._dense :].masked_fill_(usable, 0)  # (these were sent completely)
        torch.where(usable, self._started(self.second), self._warm, out=self._warm)
        self._deliver(outputs)
        self._basis = []

    def _check_second(self) -> torch.Tensor:
        """Takes the mean. It is finite on all ranks, or on none."""
        at = first_of(self.second.mul(self._mean).abs_().le_(_SECOND_MAX).ne_(1))
        self._note(1, at, self.second)
        self.second.mul_(self._mean)
        return self._usable & (at == self.second.numel())

    def _started(self, second: torch.Tensor) -> torch.Tensor:
        """Q of the next step: orthonormal, so that it neither underflows nor loses the small directions to the large ones."""
        found = torch.empty_like(second)
        given = []
        for group in self._groups:
            right = second[group.q].view(group.right)
            is_zero = (right == 0).all(2, keepdim=True)
            given.append(torch.where(is_zero, self._drawn[group.q].view(group.right), right))
        for group, made in zip(self._groups, orthonormalise(given)):
            found[group.q].view(group.right).copy_(made)
        return found

    def _refusal(self) -> Optional[Error]:
        at, found = self._noted(0)
        if at < self._first:
            return _beyond("first", at, found)
        at, found = self._noted(1)
        return _beyond("second", at, found) if self._groups and at < self.second.numel() else None

    # ---- States ----

    def _right(self, name: str) -> Optional[slice]:
        """Where the warm start of a tensor is."""
        position = self._at[name]
        for group in self._groups:
            count, rank, columns = group.right
            if position < count:
                begin = group.q.start + position * rank * columns
                return slice(begin, begin + rank * columns)
            position -= count
        return None

    def size(self, name: str, field: str) -> int:
        if field != "warm":
            return super().size(name, field)
        place = self._right(name)
        return 0 if place is None else 4 * (place.stop - place.start)

    def read(self, name: str, field: str) -> Array:
        place = self._right(name) if field == "warm" else None
        if place is not None:
            return self._host(self._warm[place]).view(numpy.uint8)
        found = super().read(name, field)
        # (Without a residual it is a fresh state, as of a plan that sends frames.)
        return found if found[16:].any() else numpy.zeros_like(found)

    def write(self, name: str, field: str, memory: Array) -> None:
        place = self._right(name) if field == "warm" else None
        if place is None:
            return super().write(name, field, memory)
        size = self.size(name, field)
        if memory.size != size:
            raise ArgumentError(f"{name}: its state has {size} bytes, not {memory.size}")
        values = memory.copy().view(numpy.float32)
        if not numpy.isfinite(values).all():
            at = int(numpy.flatnonzero(~numpy.isfinite(values))[0])
            raise ArgumentError(f"{name}: value {at} of its state is not finite")
        largest = float(numpy.abs(values).max(initial=0))
        squares = numpy.square(values.astype(numpy.float64).reshape(-1, values.size // self._rank)).sum(1)
        # With columns of another norm than 1 no later round might succeed; what a round wrote stays as it is.
        is_basis = bool((numpy.abs(squares - 1) < 1e-3).all())
        self._put(self._warm[place], values if largest <= 1 else values / numpy.float32(largest))
        if not is_basis:
            with torch.no_grad():
                self._warm[place].copy_(self._started(self._warm)[place])
        return None


def products_on(home: torch.device) -> str:
    """What the bits of a product depend on, besides the matrices: all ranks must compute the same P Qᵀ."""
    name = torch.cuda.get_device_name(home) if home.type == "cuda" else home.type
    return f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.get_float32_matmul_precision()} precision"


def _columns(seed: int, item: int, rank: int, n: int) -> Array:
    """[rank * n] approximately normal numbers, sums of four uniform integers: those of the CPU."""
    start = numpy.array([seed % 2**64], numpy.uint64)
    keys = combine(combine(start, numpy.array([item], numpy.uint64)), numpy.arange(rank, dtype=numpy.uint64))
    drawn = draw(keys[:, None], numpy.arange(n, dtype=numpy.uint64)[None])
    total = numpy.full((rank, n), -2 * 65535, numpy.int64)
    for k in range(4):
        total += (drawn >> numpy.uint64(16 * k) & numpy.uint64(65535)).astype(numpy.int64)
    found: Array = total.astype(numpy.float32).reshape(-1)
    return found


def _beyond(name: str, at: int, found: float) -> ArgumentError:
    """Why a sum that all ranks have cannot be used."""
    words = f"{name} factor: element {at} is {found:g} after the all-reduce"
    if numpy.isfinite(found):
        words += f"; its mean is above {_SECOND_MAX:g}, and a residual could exceed f32"
    else:
        words += "; a rank sent it, or the sum exceeds f32"
    error = ArgumentError(words)
    error.where = at
    return error
