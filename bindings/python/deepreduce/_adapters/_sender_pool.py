"""Rows: the slots of a Sender, padded to the same number of bytes at every step. deepreduce.jax and deepreduce.keras gather such
rows, since their shapes are static; deepreduce.flower sends slots without the padding."""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
import warnings
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy

from .._native._memory import borrow_bytes
from .._native._renamed import caller_level
from .._native._types import Array, DTypeLike, Options, Tensor
from ..book import Book, as_book
from ..bound import address_of
from ..errors import ArgumentError, CorruptFrame, Unsupported
from ..plan import Plan, as_plan
from ..sender import Sender
from ._losses import warn_of_losses

_ALIGNMENT = 8  # of states
_FACTORS = "produces factors for an all-reduce, not frames: use deepreduce.torch or deepreduce.transform"
_ENCODE = 0  # in the place of a number of ranks: senders that encode


def plan_of_frames(plan: Union[str, Plan]) -> Plan:
    """as_plan. Raises Unsupported if the plan produces no frames, or does not send them to all ranks."""
    found = as_plan(plan)
    if found.info.transforms:
        raise Unsupported(f"the plan `{found}` {_FACTORS}")
    if found.name_of("exchange") not in ("", "gather"):
        raise Unsupported(f"the plan `{found}` has {found.text_of('exchange')}, but here all ranks get all frames")
    return found


def method_of(plan: Union[str, Plan, Book]) -> Union[Plan, Book]:
    """plan_of_frames, or a book."""
    return as_book(plan) or plan_of_frames(plan)  # type: ignore[arg-type]


class SenderPool:
    """Senders of one list of tensors, one for each concurrent call: any number of threads may call it. It stores nothing
    between calls: the states of feedback are bytes that the caller holds.

    tensors  {name: (shape, dtype)}
    plan, dense_below, flat, seed, sum  as of Sender

    size, state_size  bytes of a row, and of the states
    dense             bytes of the tensors
    """

    def __init__(
        self,
        tensors: Mapping[str, Tuple[Tuple[int, ...], DTypeLike]],
        plan: Union[Plan, Book],
        *,
        dense_below: Optional[int] = None,
        flat: Optional[bool] = None,
        seed: int = 0,
        sum: bool = False,
    ) -> None:
        if not tensors:
            raise ArgumentError("there are no tensors to send")
        self._tensors, self._plan = dict(tensors), plan
        self._options: Options = {"dense_below": dense_below, "flat": flat, "seed": seed, "sum": sum}
        self._options |= {"unit_bytes": math.inf, "float32": True, "caller_states": True}
        self.names = list(tensors)
        self.shapes = [(tuple(map(int, shape)), numpy.dtype(dtype)) for shape, dtype in tensors.values()]
        self._counts = [(math.prod(shape), dtype) for shape, dtype in self.shapes]
        self._lock = threading.Lock()
        self._idle: Dict[int, List[_Member]] = {}
        first = self._make(_ENCODE)
        sender, units = first.sender, first.sender.units
        for unit in units:
            if unit.kind != "frames":
                raise Unsupported(f"{unit.tensors[0]}: the plan `{sender.plan_of(unit.tensors[0])}` {_FACTORS}")
        self._idle[_ENCODE] = [first]
        self.size = self.dense = self.state_size = 0
        self._slots: List[Tuple[int, int]] = []  # offset and capacity of each
        for unit in units:
            self._slots.append((self.size, unit.bound))
            self.size += unit.bound
            self.dense += unit.bytes
        self._states: List[Optional[int]] = []  # the offset of each; None: no state
        for size in (sender.tensor(name).state for name in sender.names):
            self._states.append(self.state_size if size else None)
            self.state_size += (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        self._used = list(dict.fromkeys(sender.plan_of(name) for name in sender.names))

    def _make(self, ranks: int) -> _Member:
        """A sender that merges the rows of `ranks` ranks, or one that encodes for the rank of each call."""
        return _Member(Sender(self._tensors, self._plan, ranks=max(1, ranks), **self._options))

    @contextlib.contextmanager
    def _borrowed(self, ranks: int) -> Iterator[_Member]:
        """A sender for exclusive use."""
        with self._lock:
            idle = self._idle.setdefault(ranks, [])
            taken = idle.pop() if idle else None
        member = taken or self._make(ranks)
        try:
            yield member
        finally:
            with self._lock:
                idle.append(member)

    def warn(self) -> None:
        """Warns (UserWarning) of a plan that drops values permanently, and of a lossy plan whose rows are not smaller than the tensors."""
        warn_of_losses(self._used)
        coded = any(_is_lossy(plan) for plan in self._used)
        if self.size < self.dense or not (coded or _is_lossy(self._plan)):
            return
        why = "whose frames may be of any size" if coded else f"and each of {len(self.shapes)} tensors has fewer elements than `dense_below`"
        words = f"a row is {self.size} bytes, the tensors are {self.dense}: `{self._plan}`, {why}, saves nothing here"
        warnings.warn(words, stacklevel=caller_level())

    def encode(self, tensors: Sequence[Array], row: Array, states: Array, step: int, rank: int) -> List[int]:
        """Writes a row, and changes the states. Returns the bytes used in each slot of the row; the rest is zero.

        tensors  contiguous arrays of the types and numbers of elements; shapes may differ
        row      [size] uint8, contiguous
        states   [state_size] uint8, contiguous, aligned to 8; zeros at first
        step     the same on every rank, below 2^32
        rank     unique for each rank

        If a value cannot be encoded (for example a NaN), the slot reports it, and merge raises it on every rank.
        """
        sizes = []
        with self._borrowed(_ENCODE) as member:
            sender = member.sender
            if len(tensors) != len(self._counts):
                raise ArgumentError(f"{len(tensors)} tensors; there were {len(self._counts)} in the first step")
            for i, (tensor, kind) in enumerate(zip(tensors, self._counts)):
                if (tensor.size, tensor.dtype) != kind or not tensor.flags.c_contiguous:
                    raise ArgumentError(f"{sender.names[i]}: {tensor.dtype}{list(tensor.shape)} is not {kind[0]} contiguous {kind[1]}")
                member.inputs[i] = address_of(tensor)
            if self.state_size:
                begin = address_of(states)
                for i, at in enumerate(self._states):
                    member.states[i] = None if at is None else begin + at
            sender._place_at(0, len(self._counts), member.inputs, None, member.states if self.state_size else None)
            if member.clips:
                sender.clip()
            start = address_of(row)
            for unit, (at, bound) in enumerate(self._slots):
                sizes.append(sender._encode_at(unit, step, start + at, bound, rank).size)
                row[at + sizes[-1] : at + bound] = 0
        return sizes

    def merge(self, rows: Sequence[Array], step: int, out: Optional[Sequence[Array]] = None) -> Sequence[Array]:
        """The mean of the ranks' rows, or their sum, as float32 arrays of the shapes (`out`, or new ones), added in their order.

        Raises PeerError (a rank could not encode), CorruptFrame, OutOfStep, ArgumentError (a row of another step or of other
        tensors); `rank` is the row's position.
        """
        found = [numpy.empty(shape, numpy.float32) for shape, _ in self.shapes] if out is None else out
        starts = [address_of(row) for row in rows]
        with self._borrowed(len(rows)) as member:
            member.place_outputs(found)
            for unit, (at, bound) in enumerate(self._slots):
                member.sender._merge_at(unit, step, [(start + at, bound) for start in starts])
        return found

    def pack(self, tensors: Sequence[Array], states: Array, step: int, rank: int) -> bytes:
        """As encode, without the unused bytes of the slots."""
        row = numpy.empty(self.size, numpy.uint8)
        sizes = self.encode(tensors, row, states, step, rank)
        return b"".join(row[at : at + size].tobytes() for (at, _), size in zip(self._slots, sizes))

    def unpack(self, data: Tensor, step: int) -> Sequence[Array]:
        """Decodes what pack returned to new float32 arrays. Raises as merge does."""
        found = [numpy.empty(shape, numpy.float32) for shape, _ in self.shapes]
        left = borrow_bytes(data)
        start, size = left.address, left.size
        with self._borrowed(1) as member:
            member.place_outputs(found)
            for unit in range(len(self._slots)):
                used = member.sender._merge_at(unit, step, [(start, size)]).size
                start, size = start + used, size - used
        if size:
            raise CorruptFrame(f"{size} bytes follow the last of {len(self._slots)} slots")
        return found


def _is_lossy(plan: Union[Plan, Book]) -> bool:
    return isinstance(plan, Plan) and (plan.info.sparsifies or plan.info.lossy_values)


class _Member:
    """A sender, and the addresses of the arrays of a call."""

    def __init__(self, sender: Sender) -> None:
        self.sender, self.clips = sender, sender.info.clips
        pointers = ctypes.c_void_p * len(sender.names)
        self.inputs, self.outputs, self.states = pointers(), pointers(), pointers()

    def place_outputs(self, arrays: Sequence[Array]) -> None:
        for i, array in enumerate(arrays):
            self.outputs[i] = address_of(array)
        self.sender._place_at(0, len(arrays), None, self.outputs)
