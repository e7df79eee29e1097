"""deepreduce.torch: exchanges the slots of all ranks, by all-gathers and all-to-alls."""

from __future__ import annotations

import time
from typing import Any, List, Optional, Tuple

import torch

from ._engine import Engine, Step, all_gather, all_to_all

ALIGNMENT = 64  # of slots
# Maximum bytes of a slot in one collective of gloo. Its all-gather of one buffer of 8 MB takes
# 1.45 times its all-reduce, eight of 1 MB in flight 1.05 times (two ranks, 100 Mbit/s); below 2 MB it makes no difference.
PIECE = 2 << 20


class Slots:
    """One slot for each rank, all of one size. The header of a slot has the length of its frames. So all ranks know in the
    same step if the longest does not fit, and a second collective transfers the rest.

    room  its `size` is the bytes of the next slots, the same on all ranks
    """

    def __init__(self, engine: Engine, room: Any) -> None:
        self.room, self.is_first = room, True
        self._engine = engine
        self._what = ""
        self._sent: Any = None
        self._device: Optional[torch.device] = None
        self._size = 0  # of the slots of this step
        self._memory, self._spare = torch.empty(0, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8)
        self._pieces: List[Tuple[int, int, Any, Any]] = []  # under way: begin, end, where they are received, the Work

    def issue(self, what: str, sent: torch.Tensor, device: Optional[torch.device], step: Step) -> None:
        """Sends as much of this rank's slots as fits.

        what    their name in errors
        sent    [size] or [1, size]: the slot for all ranks, by all-gather; [ranks, size]: one for each rank, by all-to-all.
                Zeros follow its end
        device  where the engine requires them; None: the CPU
        """
        self._what, self._device = what, device
        self._sent = sent if sent.dim() > 1 else sent[None]
        if self._pieces:  # of an abandoned step: they may still be written to their memory
            self._pieces.clear()
            self._memory = torch.empty(0, dtype=torch.uint8)
        size = self.room.size
        self._memory = self._grown(self._memory, size)
        self._issue(0, size, step)

    def _grown(self, memory: torch.Tensor, size: int) -> torch.Tensor:
        n = self._engine.size
        return memory if memory.numel() >= n * size else torch.empty(n * size, dtype=torch.uint8)

    def _issue(self, begin: int, end: int, step: Step) -> None:
        start, n = time.perf_counter(), self._engine.size
        count = 1 if self._device is not None else -(-(end - begin) // PIECE)
        piece = rounded(-(-(end - begin) // count))
        for at in range(begin, end, piece):
            stop = min(at + piece, end)
            sent = self._sent[:, at:stop]
            if sent.shape[1] < stop - at:  # another rank's slot is longer
                sent = torch.nn.functional.pad(sent, (0, stop - at - sent.shape[1]))
            collective = all_gather if len(sent) == 1 else all_to_all
            sent = sent.reshape(-1) if self._device is None else sent.to(self._device).reshape(-1)
            whole = at == 0 and stop == end and self._device is None
            received = self._memory[: n * end] if whole else torch.empty(n * (stop - at), dtype=torch.uint8, device=sent.device)
            self._pieces.append((at, stop, received, self._engine.issue(self._what, collective, received, sent)))
        self._size = end
        step.sent += (n - 1) * (end - begin)
        step.received += (n - 1) * (end - begin)
        step.wait += time.perf_counter() - start

    def wait(self, deadline: float, step: Step) -> Any:
        """Waits for the slots. Returns [ranks, size] uint8."""
        start = time.perf_counter()
        slots = self._memory[: self._engine.size * self._size].view(-1, self._size)
        for begin, end, received, work in self._pieces:
            self._engine.wait(self._what, work, deadline)
            if received.data_ptr() != slots.data_ptr():
                slots[:, begin:end].copy_(received.view(-1, end - begin))
        self._pieces.clear()
        step.wait += time.perf_counter() - start
        return slots.numpy()

    def rest(self, longest: int, deadline: float, step: Step) -> Any:
        """As `wait`, with slots as long as the longest one."""
        before, size = self._size, rounded(longest)
        step.repeats += not self.is_first  # the first slots have no room for frames, by design
        self._spare = self._grown(self._spare, size)
        n = self._engine.size
        self._spare[: n * size].view(n, size)[:, :before] = self._memory[: n * before].view(n, before)
        self._memory, self._spare = self._spare, self._memory
        self._issue(before, size, step)
        return self.wait(deadline, step)


def rounded(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
