"""deepreduce.torch: the gradient clipping of feedback=dgc(clip=…), by the norm of the whole gradient."""

from __future__ import annotations

import math
from typing import Any, List, Sequence, Tuple

import torch

from ..errors import ArgumentError
from ..plan import Plan


def clip_of(plan: Plan) -> float:
    """The bound that a plan has for the L2 norm of the gradient; 0: none."""
    return float(plan.stages["feedback"].parameters.get("clip", 0.0))


def require_one_clip(plans: Sequence[Tuple[str, Plan]]) -> None:
    """ArgumentError if plans, each with its name's pattern, have several bounds."""
    bounds = {clip_of(plan): pattern for pattern, plan in plans if clip_of(plan)}
    if len(bounds) > 1:
        told = ", ".join(f"{pattern!r} has clip={bound:g}" for bound, pattern in bounds.items())
        raise ArgumentError(f"{told}: the norm is of the whole gradient, and has one bound")


class Clip:
    """The library clips a call by the norm of the call's tensors, which are a frame's. Where a gradient is several frames,
    this one clips it first; then no frame is above the bound.

    units  of an exchange; those without frames have no clip
    """

    def __init__(self, units: Sequence[Any]) -> None:
        self._parts: List[Tuple[Any, List[int]]] = []  # and which of a part's tensors count
        self._bound = 0.0
        for part in (part for unit in units for part in unit.parts):
            bounds = [clip_of(item.plan) for item in part.items]
            if any(bounds):
                self._parts.append((part, [i for i, bound in enumerate(bounds) if bound]))
                self._bound = max(bounds)

    @property
    def is_needed(self) -> bool:
        """Whether the gradient has several frames: its norm is known when all tensors are."""
        return len(self._parts) > 1

    def apply(self) -> None:
        """Scales the tensors that the units have now, in place, if their norm is above the bound."""
        tensors = [part.tensor(i) for part, chosen in self._parts for i in chosen]
        squares = [torch.linalg.vector_norm(each, dtype=torch.float64).square() for each in tensors]
        norm = math.sqrt(sum(each.item() for each in squares))
        if norm > self._bound and math.isfinite(norm):  # what is not finite, encode reports where it lies
            torch._foreach_mul_(tensors, self._bound / norm)
