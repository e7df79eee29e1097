"""What a rank sends of a list of tensors: frames in a row of bytes, which is as long at every step. deepreduce.jax and
deepreduce.keras gather such rows, since their shapes are static; deepreduce.flower sends the frames without the room
between them."""

from __future__ import annotations

import contextlib
import math
import re
import threading
import warnings
import zlib
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy

from ..batch import Batch
from ..errors import ArgumentError, CorruptFrame, Error, PeerError, Unsupported
from ..header import frame_size
from ..plan import Plan, as_plan
from ..tensor import State
from ._plan_beside import bypass_of, exact_beside, flat_or_not

Array = numpy.ndarray[Any, Any]

_ALIGNMENT = 8  # of states, and of frames in a row


def plan_of_frames(plan: Union[str, Plan]) -> Plan:
    """as_plan; Unsupported if it makes no frames."""
    found = as_plan(plan)
    if found.info.transforms:
        raise Unsupported(
            f"the plan `{found}` makes factors for an all-reduce, not frames: deepreduce.torch and deepreduce.transform take it"
        )
    return found


class Part(NamedTuple):
    """Tensors of one type and plan, which are one frame."""

    plan: Plan
    positions: List[int]
    begin: int  # of the frame's room in a row
    end: int
    states: List[Optional[Tuple[int, int]]]  # where each tensor's state begins and ends


class Rows:
    """How tensors of these shapes become rows, and rows their sum. It keeps nothing from call to call: the states of
    feedback are bytes that the caller holds. Any number of threads may call it.

    tensors  [(shape, dtype)] in order; float32, float16 or bfloat16
    plan     a plan or its text, the same for all of them
    bypass   tensors of fewer elements travel exactly (Plan.exact). None: of a plan that is flat none, of others those below
             1000
    flat     the tensors of the plan are one tensor (bucket=flat). None: of a plan that sparsifies, or keeps each value by
             itself; one that quantises all elements has levels for each tensor
    seed     of random numbers; the same on every rank

    size, state_size  bytes of a row, and of the states
    """

    def __init__(
        self,
        tensors: Sequence[Tuple[Tuple[int, ...], Any]],
        plan: Union[str, Plan],
        bypass: Optional[int],
        flat: Optional[bool],
        seed: int,
    ) -> None:
        if not tensors:
            raise ArgumentError("there are no tensors to send")
        self.shapes = [(tuple(map(int, shape)), numpy.dtype(dtype)) for shape, dtype in tensors]
        self.elements = [math.prod(shape) for shape, _ in self.shapes]
        self._plan, self._seed, self._lock = plan_of_frames(plan), seed, threading.Lock()
        self._idle: List[List[Batch]] = []
        by_plan: Dict[Tuple[str, str], List[int]] = {}
        coded = flat_or_not(self._plan, flat)
        small = exact_beside(coded)
        limit = bypass_of(coded, bypass)
        for i, ((_, dtype), elements) in enumerate(zip(self.shapes, self.elements)):
            kind = str(coded if elements >= limit else small)
            by_plan.setdefault((kind, dtype.name), []).append(i)
        self.size = self.state_size = 0
        self.parts: List[Part] = []
        batches: List[Batch] = []
        for (text, dtype_name), positions in by_plan.items():
            chosen = as_plan(text)
            if dtype_name not in chosen.info.dtypes:
                raise ArgumentError(
                    f"tensor {positions[0]} is {dtype_name}; the plan `{chosen}` takes {', '.join(chosen.info.dtypes)}"
                )
            batches.append(self._batch(chosen, positions))
            states = [self._place_state(chosen, i) for i in positions]
            begin, self.size = self.size, _aligned(self.size + batches[-1].bound)
            self.parts.append(Part(chosen, positions, begin, self.size, states))
        self._idle.append(batches)
        told = "\n".join(f"{shape} {dtype}" for shape, dtype in self.shapes)
        self._digest = zlib.crc32(f"{told}\n{self.parts}".encode())

    def warn_if_dense(self) -> None:
        """A UserWarning if a lossy plan's rows are no smaller than the tensors: then nothing is gained."""
        dense = sum(n * dtype.itemsize for n, (_, dtype) in zip(self.elements, self.shapes))
        if self.size < dense or not (self._plan.info.sparsifies or self._plan.info.lossy_values):
            return
        coded = any(part.plan.info.sparsifies or part.plan.info.lossy_values for part in self.parts)
        why = "whose frames may be of any size" if coded else f"and each of {len(self.shapes)} tensors has fewer elements than `bypass`"
        warnings.warn(f"a row is {self.size} bytes, the tensors are {dense}: `{self._plan}`, {why}, saves nothing here", stacklevel=4)

    def _batch(self, plan: Plan, positions: Sequence[int]) -> Batch:
        return Batch([numpy.empty(*self.shapes[i]) for i in positions], plan)

    def _place_state(self, plan: Plan, i: int) -> Optional[Tuple[int, int]]:
        size = State(plan, numpy.empty(*self.shapes[i])).size if plan.info.feedback else 0
        if not size:
            return None
        begin, self.state_size = self.state_size, _aligned(self.state_size + size)
        return begin, begin + size

    @contextlib.contextmanager
    def _batches(self) -> Iterator[List[Batch]]:
        """A batch of each part, which nobody else has meanwhile."""
        with self._lock:
            taken = self._idle.pop() if self._idle else None
        if taken is None:
            taken = [self._batch(part.plan, part.positions) for part in self.parts]
        try:
            yield taken
        finally:
            with self._lock:
                self._idle.append(taken)

    def encode(self, tensors: Sequence[Any], row: Array, states: Array, step: int, rank: int) -> int:
        """Writes a row, changes the states, and returns how many bytes the frames are.

        tensors  arrays of the shapes; only their number of elements counts
        row      [size] uint8
        states   [state_size] uint8, aligned to 8; zeros at first
        step     the same on every rank, below 2^32
        rank     another on every rank

        What cannot be encoded (a NaN, say) makes a frame that says so, which sum raises, on every rank.
        """
        used = 0
        with self._batches() as batches:
            for part, batch in zip(self.parts, batches):
                room = row[part.begin : part.end]
                frame = batch.encode(
                    [tensors[i] for i in part.positions],
                    room,
                    step=step,
                    seed=self._seed,
                    private_seed=rank,
                    state=[None if at is None else _state_in(states[at[0] : at[1]]) for at in part.states],
                    key=[i + 1 for i in part.positions],
                    tag=self._tag(step),
                    status_frame=True,
                )
                used += len(frame)
                room[len(frame) :] = 0
        return used

    def sum(
        self, rows: Sequence[Any], step: int, weight: float = 1.0, out: Optional[Sequence[Array]] = None
    ) -> Sequence[Array]:
        """The sum of the ranks' rows times a weight, as float32 arrays of the shapes (`out`, or new ones); added in
        this order. Of votes it is what the majority says, whatever the weight.

        Raises PeerError (a rank could not encode), CorruptFrame, ArgumentError (a row of another step or of other
        tensors); `rank` is the row's position.
        """
        frames = [[row[part.begin : part.end] for row in rows] for part in self.parts]
        return self._merge(frames, step, weight, out)

    def pack(self, tensors: Sequence[Any], states: Array, step: int, rank: int) -> bytes:
        """As encode, without the room between the frames."""
        row = numpy.empty(self.size, numpy.uint8)
        self.encode(tensors, row, states, step, rank)
        return b"".join(
            row[part.begin : part.begin + frame_size(row[part.begin : part.end])].tobytes() for part in self.parts
        )

    def unpack(self, data: Any, step: int) -> Sequence[Array]:
        """The tensors of what pack gave, as new float32 arrays. Raises as sum does."""
        left, frames = memoryview(data), []
        for _ in self.parts:
            size = frame_size(left)
            frames.append([left[:size]])
            left = left[size:]
        if len(left):
            raise CorruptFrame(f"{len(left)} bytes follow the last of {len(self.parts)} frames")
        return self._merge(frames, step, 1.0, None)

    def _merge(
        self, frames: Sequence[Sequence[Any]], step: int, weight: float, out: Optional[Sequence[Array]]
    ) -> Sequence[Array]:
        found = [numpy.empty(shape, numpy.float32) for shape, _ in self.shapes] if out is None else out
        with self._batches() as batches:
            for part, batch, each in zip(self.parts, batches, frames):
                there = [found[i] for i in part.positions]
                # (Votes are counted as they are: a rounded mean could break a tie.)
                weights = [1.0 if part.plan.info.votes else weight] * len(each)
                try:
                    batch.merge(each, there, weights, add=False, tag=self._tag(step))
                except Error as error:
                    raise _named(error, part) from None
        return found

    def _tag(self, step: int) -> int:
        return self._digest << 32 | step & 0xFFFFFFFF


def _aligned(size: int) -> int:
    return (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def _state_in(memory: Array) -> State:
    """A State whose bytes are the caller's."""
    state = State.__new__(State)
    state._allocate(0, None)
    state.size, state.memory = memory.size, memory
    return state


def _named(error: Error, part: Part) -> Error:
    """With the rank in words, and as `rank`; with positions among all tensors."""
    words = str(error)
    if isinstance(error, PeerError):
        words = re.sub(r"\btensor (\d+)", lambda match: f"tensor {part.positions[int(match[1])]}", words)
    if error.frame is not None:
        error.rank = error.frame
        words = f"rank {error.rank}: " + re.sub(r"^frame \d+: ", "", words)
    if isinstance(error, ArgumentError) and " tag" in words:
        words += "; steps, tensors or plans of the ranks differ"
    error.args = (words,)
    return error
