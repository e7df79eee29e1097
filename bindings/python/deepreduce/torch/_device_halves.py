"""deepreduce.torch: all values as halves, on a GPU; as lib/sender/half_unit.cpp, and with its bits."""

from __future__ import annotations

from typing import Sequence

import torch

from ._device_numbers import NumberItem, Numbers
from ._engine import Engine


class Halves(Numbers):
    """A rank sends its share of the mean, x / ranks, rounded once. With a residual, the error of the rounding is added in the next
    step. Nothing but the tensors and the residuals is held from one call to the next: sums are computed again."""

    def __init__(self, items: Sequence[NumberItem], engine: Engine, home: torch.device) -> None:
        kind = {"f16": torch.float16, "bf16": torch.bfloat16}[str(items[0].plan.stages["value"].parameters["type"])]
        super().__init__(items, kind, sum(item.elements for item in items), 0, engine, home)
        self._ends = torch.tensor([part.stop for part in self._parts], device=home)
        # (A number of the host would be a factor, 1 / ranks, on CUDA: another rounding.)
        self._ranks = torch.full((), float(engine.size), device=home)
        self._largest = float(torch.finfo(kind).max)
        self._leave()

    def _encode(self) -> None:
        gathered = self._gathered()
        self._find_fault(gathered, self._ends)
        self.sums[: self._first].copy_(self._shares(gathered))

    def _shares(self, gathered: torch.Tensor) -> torch.Tensor:
        """A value too large for the type becomes its largest number, as in a frame."""
        return gathered.clamp(-self._largest, self._largest).div_(self._ranks).to(self._kind)

    def _merge(self, sound: torch.Tensor) -> None:
        if self._keeps:
            gathered = self._gathered()
            sent = self._shares(gathered).float().mul_(self._ranks)
            self._keep(gathered)
            self._residual.sub_(sent.masked_fill_(~sound, 0))
        self._deliver(self.sums[: self._first].masked_fill_(~sound, 0))
