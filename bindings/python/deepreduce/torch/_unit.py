"""deepreduce.torch: a unit of a sender, the tensors that travel in one slot, over the collectives of torch.distributed."""

from __future__ import annotations

import ctypes
import math
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ..errors import CapacityError
from ..plan import Plan
from ..sender import Sender, Sent
from ..tensor import State
from ._engine import HOST, Engine, Step
from ._slots import Slots


class Item(NamedTuple):
    """A tensor of a unit: its name, shape and type, and its plan."""

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


class SenderRoom:
    """How large the next slot is: the sender follows the sizes itself."""

    def __init__(self, sender: Sender, unit: int, field: str) -> None:
        self._sender, self._unit, self._field = sender, unit, field

    @property
    def size(self) -> int:
        return int(getattr(self._sender._refresh(self._unit), self._field))


class Unit:
    """Encode, one all-gather of slots, merge in rank order. With exchange=owner: encode, an all-to-all, the sum of this rank's
    range, an all-gather of sums, merge.

    A slot that is too short still says how long it is, to all ranks in the same step, and all send the rest.

    number  of the unit in the sender
    states  {name: what its feedback keeps}, where the caller has it
    """

    def __init__(self, sender: Sender, number: int, items: Sequence[Item], engine: Engine, states: Dict[str, State]) -> None:
        self.items, self.sender, self._number, self._engine = list(items), sender, number, engine
        self.arrived = 0  # tensors of this step that are where they were placed
        info = sender.unit(number)
        self.owns = info.kind == "owner"
        self._at = [sender._position(item.name) for item in self.items]
        self._bytes = info.bytes
        self._tensors: List[Any] = [None] * len(self.items)
        self._copies: List[Optional[torch.Tensor]] = [None] * len(self.items)  # on the CPU, of tensors elsewhere
        self._states = [states.get(item.name) for item in self.items]
        # Slots that are sent, [slots, bound], and those of sums.
        self._slots = torch.empty(info.slots, info.bound, dtype=torch.uint8)
        self._sums = torch.empty(1, info.sum_bound, dtype=torch.uint8)
        self.most = self._slots.numel() + self._sums.numel()  # bytes that a step sends to each rank, at most
        self._travel = Slots(engine, SenderRoom(sender, number, "slot"))
        self._travel_back = Slots(engine, SenderRoom(sender, number, "sum_slot")) if self.owns else self._travel
        self._device: Optional[torch.device] = None  # of the slots that travel, if it is not the CPU
        self._received: Any = None
        self._name, self._step = f"slot {info.tensors[0]} …", 0

    def place(self, position: int, tensor: torch.Tensor) -> None:
        """Of this step's tensors the one of items[position]: flat, contiguous, read and overwritten where it lies."""
        self._tensors[position] = tensor
        self._device = self._engine.slot_device(tensor.device)
        if tensor.device.type not in HOST:
            tensor = self._copies[position] = torch.empty(tensor.numel(), dtype=tensor.dtype)
        self._place(position, tensor.data_ptr())

    def _place(self, position: int, address: int) -> None:
        where, state = (ctypes.c_void_p * 1)(address), self._states[position]
        states = None if state is None else (ctypes.c_void_p * 1)(state.memory.ctypes.data)
        self.sender._place_at(self._at[position], 1, where, where, states)

    def fetch(self) -> None:
        """Copies tensors elsewhere to the CPU."""
        for copy, tensor in zip(self._copies, self._tensors):
            if copy is not None:
                copy.copy_(tensor)

    def start(self, number: int, step: Step) -> None:
        """Encodes the tensors and issues the collective. number: of the step."""
        begin, self._step = time.perf_counter(), number
        self.fetch()
        slots = self._slots
        sent = self.sender._encode_at(self._number, number, slots.data_ptr(), slots.numel(), self._engine.rank)
        step.encode += time.perf_counter() - begin
        step.frame += sent.frames
        step.kept += sent.kept
        step.dense += self._bytes
        self._travel.issue(f"step {number}, {self._name}", slots, self._device, step)

    def add_up(self, deadline: float, step: Step) -> None:
        """Of owners, between the two collectives: waits for the first, adds up, and issues the second."""
        received, sent = until_whole(
            self._travel,
            lambda slots: self.sender._sum_at(self._number, self._step, places(slots), self._sums.data_ptr(), self._sums.numel()),
            deadline,
            step,
        )
        self._received = received  # (a step that fails takes them back)
        step.frame += sent.frames
        self._travel_back.issue(f"step {self._step}, sums of {self._name}", self._sums, self._device, step)

    def finish(self, deadline: float, step: Step) -> bool:
        """Waits, and merges the mean of all ranks into the tensors, which are untouched if something is raised. True: a rank asks
        to skip the step, and they are untouched."""
        _, merged = until_whole(
            self._travel_back, lambda slots: self.sender._merge_at(self._number, self._step, places(slots)), deadline, step
        )
        if merged.skips:
            return True
        for copy, tensor in zip(self._copies, self._tensors):
            if copy is not None:
                tensor.copy_(copy)
        return False

    def skip(self) -> None:
        """The step is skipped: the sender has filled what is on the CPU with NaN."""
        for copy, tensor in zip(self._copies, self._tensors):
            if copy is not None:
                tensor.fill_(math.nan)

    def take_back(self) -> None:
        """The step has failed. The sender takes back all its units at once."""

    def withdraw(self) -> None:
        """Others have completed the step that was taken back. The sender knows."""


def places(received: Any) -> List[Tuple[int, int]]:
    """Address and bytes of each rank's slot."""
    at, size = received.ctypes.data, received.shape[1]
    return [(at + rank * size, size) for rank in range(received.shape[0])]


def until_whole(travel: Slots, use: Callable[[Any], Sent], deadline: float, step: Step) -> Tuple[Any, Sent]:
    """Waits for the slots, and uses them; fetches the rest of those that were too short."""
    received = travel.wait(deadline, step)
    needed = 1
    while needed:
        begin, needed = time.perf_counter(), 0
        try:
            made = use(received)
        except CapacityError as error:
            needed = error.needed or 0
        step.merge += time.perf_counter() - begin
        if needed:
            received = travel.rest(needed, deadline, step)
    travel.is_first = False
    return received, made
