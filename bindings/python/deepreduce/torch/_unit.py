"""deepreduce.torch: a unit of a sender (the tensors sent in one slot), over the collectives of torch.distributed."""

from __future__ import annotations

import ctypes
import functools
import math
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist

from .._native import _abi
from ..errors import CapacityError
from ..plan import Plan
from ..sender import Sender, Sent
from ..tensor import State
from ._engine import HOST, Engine, Step, all_reduce
from ._slots import Slots


class Item(NamedTuple):
    """A tensor of a unit: its name, shape and type, and its plan."""

    name: str
    elements: int
    dtype: torch.dtype
    plan: Plan
    shape: Optional[torch.Size] = None  # of a tensor that is sparse


class SenderRoom:
    """The size of the next slot, which the sender adapts to the frames."""

    def __init__(self, sender: Sender, unit: int, field: str) -> None:
        self._sender, self._unit, self._field = sender, unit, field

    @property
    def size(self) -> int:
        return int(getattr(self._sender._refresh(self._unit), self._field))


class Unit:
    """Encode, one all-gather of slots, merge in rank order. With exchange=owner: encode, an all-to-all, the sum of this rank's
    range, an all-gather of sums, merge.

    If a slot is too short, its header still has its length. All ranks read it in the same step, and all send the rest.

    number  of the unit in the sender
    states  {name: the state of its feedback}, where the caller holds it
    """

    def __init__(
        self,
        sender: Sender,
        number: int,
        items: Sequence[Item],
        engine: Engine,
        states: Dict[str, State],
        home: Optional[torch.device] = None,
    ) -> None:
        self._home = home  # of DeviceUnit
        self.items, self.sender, self._number, self._engine = list(items), sender, number, engine
        self.arrived = 0  # tensors of this step that are ready
        info = sender.unit(number)
        self.kind, self.adds_up = info.kind, info.sum_bound > 0
        self.holds_states = info.kind in ("owner", "factors")  # the sender holds them, not `states`
        self._at = [sender._position(item.name) for item in self.items]
        self._bytes = info.bytes
        self._tensors: List[Any] = [None] * len(self.items)
        self._copies: List[Optional[torch.Tensor]] = [None] * len(self.items)  # on the CPU, of tensors elsewhere
        self._states = [None if self.holds_states else states.get(item.name) for item in self.items]
        self._device: Optional[torch.device] = None  # of what travels, if it is not the CPU
        self._name, self._step = f"slot {info.tensors[0]} …", 0
        self.max_bytes = info.slots * info.bound + info.sum_bound  # that a step sends to each rank
        self._prepare(info)

    def _prepare(self, info: Any) -> None:
        """Allocates the buffers that are exchanged."""
        # Slots that are sent, [slots, bound], and those of sums.
        self._slots = torch.empty(info.slots, info.bound, dtype=torch.uint8)
        self._sums = torch.empty(1, info.sum_bound, dtype=torch.uint8)
        room = functools.partial(SenderRoom, self.sender, self._number)
        self._travel = Slots(self._engine, room("slot"))
        self._travel_back = Slots(self._engine, room("sum_slot")) if self.adds_up else self._travel
        self._received: Any = None

    def place(self, position: int, tensor: torch.Tensor) -> None:
        """Places this step's tensor of items[position]: flat, contiguous, read and overwritten in place."""
        self._tensors[position], self._copies[position] = tensor, None
        self._device = self._engine.slot_device(tensor.device) or self._device
        if tensor.device.type not in HOST:
            tensor = self._copies[position] = torch.empty(tensor.numel(), dtype=tensor.dtype)
        self._place(position, tensor.data_ptr())

    def place_states(self) -> None:
        """The states of feedback that the caller holds: for a scale between steps, before the tensors have places."""
        for position, state in enumerate(self._states):
            if state is not None:
                self._place(position, None)

    def _place(self, position: int, address: Optional[int]) -> None:
        where = None if address is None else (ctypes.c_void_p * 1)(address)
        state = self._states[position]
        states = None if state is None else (ctypes.c_void_p * 1)(state.memory.ctypes.data)
        self.sender._place_at(self._at[position], 1, where, where, states)

    def fetch(self) -> None:
        """Copies tensors on other devices to the CPU."""
        for copy, tensor in zip(self._copies, self._tensors):
            if copy is not None:
                copy.copy_(tensor)

    def start(self, number: int, step: Step) -> None:
        """Encodes the tensors and issues the collective. number: the step's."""
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
        """With exchange=owner, between the two collectives: waits for the first, adds up, and issues the second."""
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
        """Waits, and writes the mean of all ranks to the tensors. True: a rank requests to skip the step. Then, and after an
        error, the tensors are unchanged."""
        _, merged = until_whole(
            self._travel_back, lambda slots: self.sender._merge_at(self._number, self._step, places(slots)), deadline, step
        )
        if merged.skips:
            return True
        self._put_back()
        return False

    def drop(self, deadline: float, step: Step) -> bool:
        """As `finish`, for a step that is taken back then. (The merge finds out whether frames have a rest.)"""
        return self.finish(deadline, step)

    def _put_back(self) -> None:
        for copy, tensor in zip(self._copies, self._tensors):
            if copy is not None:
                tensor.copy_(copy)

    def skip(self) -> None:
        """After a skipped step: fills tensors on other devices with NaN. (The sender has filled those on the CPU.)"""
        for copy, tensor in zip(self._copies, self._tensors):
            if copy is not None:
                tensor.fill_(math.nan)


class NumberUnit(Unit):
    """Encode, an all-reduce of numbers, merge. For halves that is all. For factors the sender reads the sum of the first
    factors and writes the second (`add_up`), which another all-reduce sums. The collective must return the same bits on all
    ranks."""

    def _prepare(self, info: Any) -> None:
        kind = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}[info.numbers]
        self._first, self._second = (torch.empty(size // kind.itemsize, dtype=kind) for size in (info.bound, info.sum_bound))
        self._work: Optional[dist.Work] = None
        self._far = torch.empty(0)

    def start(self, number: int, step: Step) -> None:
        begin, self._step = time.perf_counter(), number
        if self._work is not None:  # of an abandoned step: it may still write to the numbers
            self._first, self._second = torch.empty_like(self._first), torch.empty_like(self._second)
        self.fetch()
        sent = self.sender._encode_at(self._number, number, *_place_of(self._first), self._engine.rank)
        step.encode += time.perf_counter() - begin
        step.kept += sent.kept
        step.dense += self._bytes
        self._issue(self._first, step)

    def _issue(self, numbers: torch.Tensor, step: Step) -> None:
        begin, size, n = time.perf_counter(), numbers.nbytes, self._engine.size
        self._far = numbers if self._device is None else numbers.to(self._device)
        self._work = self._engine.issue(f"step {self._step}, {self._name}", all_reduce, self._far)
        step.frame += size
        step.sent += 2 * (n - 1) * size // n
        step.received += 2 * (n - 1) * size // n
        step.wait += time.perf_counter() - begin

    def _wait(self, numbers: torch.Tensor, deadline: float, step: Step) -> List[Tuple[int, int]]:
        """Waits for the sum. Returns its address and size, as the sender expects them."""
        begin = time.perf_counter()
        self._engine.wait(f"step {self._step}, {self._name}", self._work, deadline)
        self._work = None
        if self._far is not numbers:
            numbers.copy_(self._far)
        step.wait += time.perf_counter() - begin
        return [_place_of(numbers)]

    def add_up(self, deadline: float, step: Step) -> None:
        """For factors, between the two all-reduces."""
        summed, begin = self._wait(self._first, deadline, step), time.perf_counter()
        self.sender._sum_at(self._number, self._step, summed, *_place_of(self._second))
        step.merge += time.perf_counter() - begin
        self._issue(self._second, step)

    def finish(self, deadline: float, step: Step) -> bool:
        summed = self._wait(self._second if self.adds_up else self._first, deadline, step)
        begin = time.perf_counter()
        merged = self.sender._merge_at(self._number, self._step, summed)
        if not merged.skips:
            self._put_back()
        step.merge += time.perf_counter() - begin
        return merged.skips


class RowsUnit(Unit):
    """A tensor of torch.sparse_coo. Its rows are sent as the frames of a Unit. The mean, with the union of all ranks' rows,
    replaces it."""

    def place(self, position: int, tensor: torch.Tensor) -> None:
        self._tensors[position] = tensor
        self._device = self._engine.slot_device(tensor.device) or self._device

    def fetch(self) -> None:
        given = self._tensors[0].detach().coalesce()
        rows, values = given.indices()[0].cpu().contiguous(), given.values().cpu().contiguous()
        self._bytes, self._alive = bytes_of(given), (rows, values)
        self.sender._place_rows_at(self._at[0], rows.numel(), rows.data_ptr(), values.data_ptr(), _abi.DR_I64)

    def _put_back(self) -> None:
        item, found = self.items[0], self.sender._rows_at(self._at[0])
        assert item.shape is not None
        count, width = int(found.count), item.shape[1:].numel()
        indices, values = _copy_of(found.indices, count, torch.int64), _copy_of(found.values, count * width, item.dtype)
        made = torch.sparse_coo_tensor(
            indices[None], values.view(count, *item.shape[1:]), item.shape, is_coalesced=True, check_invariants=False
        )
        with torch.no_grad():
            self._tensors[0].copy_(made.to(self._tensors[0].device))

    def skip(self) -> None:
        """After a skipped step: the sender returns a row of NaN."""
        self._put_back()


def sparse_parameters(module: Any) -> Set[int]:
    """Ids of the parameters whose gradients DistributedDataParallel expects to be sparse."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    found = [embedding for embedding in module.modules() if isinstance(embedding, kinds) and embedding.sparse]
    return {id(parameter) for embedding in found for parameter in embedding.parameters(recurse=False)}


def bytes_of(tensor: torch.Tensor) -> int:
    """Bytes of a sparse tensor's indices and values."""
    return int(tensor._indices().nbytes + tensor._values().nbytes)


def _place_of(numbers: torch.Tensor) -> Tuple[int, int]:
    return numbers.data_ptr(), numbers.nbytes


def _copy_of(address: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
    if not elements:
        return torch.empty(0, dtype=dtype)
    memory = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).clone()


def places(received: Any) -> List[Tuple[int, int]]:
    """Address and bytes of each rank's slot."""
    at, size = received.ctypes.data, received.shape[1]
    return [(at + rank * size, size) for rank in range(received.shape[0])]


def until_whole(travel: Slots, use: Callable[[Any], Sent], deadline: float, step: Step) -> Tuple[Any, Sent]:
    """Waits for the slots and passes them to `use`; if some were too short, receives the rest first."""
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
