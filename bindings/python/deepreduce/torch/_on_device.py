"""deepreduce.torch: units whose frames are made where the tensors are, on a GPU. No call of a step waits for it."""

from __future__ import annotations

import ctypes
import time
import warnings
from typing import Any, Optional, Set, Tuple

import torch

from .._native import _abi, _driver
from .._native._call import new
from .._native._renamed import caller_level
from ..sender import Sender
from ._engine import HOST, Engine, Step, all_gather, all_to_all
from ._unit import Unit


def home_of(devices: Set[torch.device], engine: Engine, emulated: Optional[int]) -> Tuple[Optional[torch.device], str]:
    """The device on which frames are made, or None and the reason, which is empty if the caller does not expect a device.

    emulated  for tests: the seed of an emulated device, whose memory is the CPU's
    """
    if emulated is not None:
        return torch.device("cpu"), ""
    away = {device for device in devices if device.type not in HOST}
    if not away:
        return None, ""
    if len(devices) > 1:
        return None, f"the tensors are on several devices: {', '.join(sorted(map(str, devices)))}"
    (home,) = devices
    if home.type != "cuda":
        return None, ""
    if not engine.gathers_on(home):
        return None, "the process group has no NCCL for it"
    return (home if home.index is not None else torch.device("cuda", torch.cuda.current_device())), ""


def warn_of_copies(engine: Engine, why: str) -> None:
    """Rank 0 warns, at the user's line, that gradients on a GPU are copied to the CPU and back."""
    if engine.rank == 0:
        words = f"frames are made on the CPU, with a copy of every gradient to it and back: {why}"
        warnings.warn(words, stacklevel=caller_level())


def place_name(home: Optional[torch.device], emulated: Optional[int]) -> str:
    return "cpu" if home is None else "cuda" if emulated is None else "emulated"


def place_of(home: torch.device, emulated: Optional[int]) -> _abi.dr_place:
    place = new(_abi.dr_place)
    if emulated is not None:
        place.kind, place.device = _abi.DR_PLACE_EMULATED, emulated
    else:
        place.kind, place.device = _driver.driver.kind, _driver.driver.number(home.index)
        place.stream = _stream_of(home)
    return place


class StreamFollower:
    """Lets a sender enqueue on the caller's current stream.

    memory  of torch's allocator, that the sender's work uses: it is not given to others before that work has ended, although
            it was allocated on another stream
    """

    def __init__(self, sender: Sender, home: torch.device, *memory: torch.Tensor) -> None:
        self._sender, self._home, self._memory = sender, home, memory
        self._last = _current_stream(home)

    def follow(self) -> None:
        stream = _current_stream(self._home)
        if stream is None:
            return
        self._sender._use_stream(int(stream.cuda_stream))
        if stream != self._last:
            for tensor in self._memory:
                tensor.record_stream(stream)
        self._last = stream


class DeviceUnit(Unit):
    """As Unit, all enqueued. The sender holds the states. Faults are read in the next step (Exchange._settle); the outputs of a
    unit that failed are 0 until then, on all ranks."""

    def _prepare(self, info: Any) -> None:
        assert self._home is not None
        self.holds_states = True
        self._states = [None] * len(self.items)
        self._info = info
        self._renew()

    def _renew(self) -> None:
        """New memory for slots."""
        n, device, info = self._engine.size, self._home, self._info
        self._slots = torch.empty(info.slots * info.bound, dtype=torch.uint8, device=device)
        self._sums = torch.empty(info.sum_bound, dtype=torch.uint8, device=device)
        # Of all ranks.
        self._all_slots, self._all_sums = (torch.empty(n * size, dtype=torch.uint8, device=device) for size in (info.bound, info.sum_bound))
        self._where_slots, self._where_sums = (
            [(all_of.data_ptr() + rank * size, size) for rank in range(n)]
            for all_of, size in ((self._all_slots, info.bound), (self._all_sums, info.sum_bound))
        )
        self._stream = StreamFollower(self.sender, device, self._slots, self._sums, self._all_slots, self._all_sums)
        self._received, self._work = self._all_slots, None  # of the collective that was not waited for

    def place(self, position: int, tensor: torch.Tensor) -> None:
        self._tensors[position] = tensor
        where = (ctypes.c_void_p * 1)(tensor.data_ptr())
        self.sender._place_at(self._at[position], 1, where, where)

    def fetch(self) -> None:
        """Nothing is copied."""

    def start(self, number: int, step: Step) -> None:
        begin, self._step = time.perf_counter(), number
        if self._work is not None:  # of an abandoned step: it may still read and write slots
            self._renew()
        self._stream.follow()
        self.sender._encode_at(self._number, number, self._slots.data_ptr(), self._slots.numel(), self._engine.rank)
        step.encode += time.perf_counter() - begin
        step.dense += self._bytes
        self._issue(all_to_all if self.adds_up else all_gather, self._all_slots, self._slots, step)

    def _issue(self, collective: Any, received: torch.Tensor, sent: torch.Tensor, step: Step) -> None:
        begin, size, n = time.perf_counter(), received.numel(), self._engine.size
        # (NCCL waits for the current stream, and the current stream for NCCL in `_arrived`.)
        self._received, self._work = received, self._engine.issue(f"step {self._step}, {self._name}", collective, received, sent)
        step.sent += (n - 1) * size // n
        step.received += (n - 1) * size // n
        step.wait += time.perf_counter() - begin

    def _arrived(self, deadline: float, step: Step) -> None:
        begin = time.perf_counter()
        wait_for(self._engine, f"step {self._step}, {self._name}", self._work, self._received, deadline)
        self._work = None
        step.wait += time.perf_counter() - begin
        self._stream.follow()

    def add_up(self, deadline: float, step: Step) -> None:
        self._arrived(deadline, step)
        begin = time.perf_counter()
        self.sender._sum_at(self._number, self._step, self._where_slots, self._sums.data_ptr(), self._sums.numel())
        step.merge += time.perf_counter() - begin
        self._issue(all_gather, self._all_sums, self._sums, step)

    def finish(self, deadline: float, step: Step) -> bool:
        self._arrived(deadline, step)
        begin = time.perf_counter()
        self.sender._merge_at(self._number, self._step, self._where_sums if self.adds_up else self._where_slots)
        step.merge += time.perf_counter() - begin
        return False

    def drop(self, deadline: float, step: Step) -> bool:
        self._arrived(deadline, step)
        return False


class DeviceShards:
    """The unit of a ReduceScatter: encode, an all-to-all of slots, merge, all enqueued on the caller's current stream. Faults
    are read in the next call; the shard of a call that failed is 0 until then."""

    def __init__(self, sender: Sender, engine: Engine, home: torch.device) -> None:
        info = sender.unit(0)
        self._sender, self._engine, self.max_bytes = sender, engine, info.bound
        self._slots = torch.empty(info.slots * info.bound, dtype=torch.uint8, device=home)
        self._all = torch.empty_like(self._slots)  # that arrived
        self._where_slots = [(slot.data_ptr(), slot.numel()) for slot in self._all.split(info.bound)]
        self._stream = StreamFollower(sender, home, self._slots, self._all)

    def exchange(self, what: str, number: int, output: torch.Tensor, whole: torch.Tensor, deadline: float, step: Step) -> None:
        begin, sender, engine, place = time.perf_counter(), self._sender, self._engine, ctypes.c_void_p * 1
        self._stream.follow()
        sender._place_at(0, 1, place(whole.data_ptr()), place(output.data_ptr()))
        sender._encode_at(0, number, self._slots.data_ptr(), self._slots.numel(), engine.rank)
        step.encode += time.perf_counter() - begin
        begin = time.perf_counter()
        work = engine.issue(what, all_to_all, self._all, self._slots)
        wait_for(engine, what, work, self._all, deadline)
        step.dense += whole.numel() * whole.element_size()
        step.sent += (engine.size - 1) * self.max_bytes
        step.received += (engine.size - 1) * self.max_bytes
        step.wait += time.perf_counter() - begin
        begin = time.perf_counter()
        sender._merge_at(0, number, self._where_slots)
        step.merge += time.perf_counter() - begin


def wait_for(engine: Engine, what: str, work: Any, received: torch.Tensor, deadline: float) -> None:
    """The current stream waits for a collective; on an emulated device, this process."""
    if received.is_cuda:
        work.wait()  # (with a timeout, the host would wait)
    else:
        engine.wait(what, work, deadline)


def _current_stream(device: torch.device) -> Optional[torch.cuda.Stream]:
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def _stream_of(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)
