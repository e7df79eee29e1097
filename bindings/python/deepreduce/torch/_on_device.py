"""deepreduce.torch: units whose frames are made where the tensors are, on a GPU. No call of a step waits for it."""

from __future__ import annotations

import ctypes
import time
from typing import Any, Optional, Set, Tuple

import torch

from .._native import _abi, _driver
from .._native._call import new
from ._engine import HOST, Engine, Step, all_gather
from ._unit import Unit


def home_of(devices: Set[torch.device], engine: Engine, emulated: Optional[int]) -> Tuple[Optional[torch.device], str]:
    """The device on which frames are made, or None and the reason, which is empty if nobody expects it.

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


def place_of(home: torch.device, emulated: Optional[int]) -> _abi.dr_place:
    place = new(_abi.dr_place)
    if emulated is not None:
        place.kind, place.device = _abi.DR_PLACE_EMULATED, emulated
    else:
        place.kind, place.device = _driver.driver.kind, _driver.driver.number(home.index)
        place.stream = _stream_of(home)
    return place


class DeviceUnit(Unit):
    """Encode, an all-gather of slots, merge, all enqueued. The sender holds the states. Faults are read in the next step
    (Exchange._settle); the outputs of a unit that failed are 0 until then, on all ranks."""

    def _prepare(self, info: Any) -> None:
        self.holds_states = True
        self._states = [None] * len(self.items)
        self._slot = torch.empty(info.bound, dtype=torch.uint8, device=self._home)
        self._all = torch.empty(self._engine.size * info.bound, dtype=torch.uint8, device=self._home)  # of all ranks
        self._where_slots = [(slot.data_ptr(), slot.numel()) for slot in self._all.split(info.bound)]
        self._work: Any = None

    def place(self, position: int, tensor: torch.Tensor) -> None:
        self._tensors[position] = tensor
        where = (ctypes.c_void_p * 1)(tensor.data_ptr())
        self.sender._place_at(self._at[position], 1, where, where)

    def fetch(self) -> None:
        """Nothing is copied."""

    def start(self, number: int, step: Step) -> None:
        begin, self._step = time.perf_counter(), number
        self._follow()
        self.sender._encode_at(self._number, number, self._slot.data_ptr(), self._slot.numel(), self._engine.rank)
        step.encode += time.perf_counter() - begin
        begin, size = time.perf_counter(), self._slot.numel()
        # (NCCL waits for the current stream, and the current stream for NCCL in `finish`.)
        self._work = self._engine.issue(f"step {number}, {self._name}", all_gather, self._all, self._slot)
        step.dense += self._bytes
        step.sent += (self._engine.size - 1) * size
        step.received += (self._engine.size - 1) * size
        step.wait += time.perf_counter() - begin

    def finish(self, deadline: float, step: Step) -> bool:
        begin = time.perf_counter()
        if self._all.is_cuda:
            self._work.wait()  # of the stream: with a timeout, the host would wait
        else:
            self._engine.wait(f"step {self._step}, {self._name}", self._work, deadline)
        step.wait += time.perf_counter() - begin
        begin = time.perf_counter()
        self._follow()
        self.sender._merge_at(self._number, self._step, self._where_slots)
        step.merge += time.perf_counter() - begin
        return False

    def _follow(self) -> None:
        assert self._home is not None
        if self._home.type == "cuda":
            self.sender._use_stream(_stream_of(self._home))


def _stream_of(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)
