"""Encodes the tensors of a fragment to the slots of a contribution, and merges slots."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy
import torch

from .._adapters._sender_pool import plan_of_frames
from .._native._types import Array, SavedState
from ..errors import ArgumentError, Error
from ..sender import Sender, TensorSpec
from ..torch._rules import Rules

_MERGERS_MAX = 4  # cached senders that merge, each for another number of workers


def require_frames(rules: Rules) -> None:
    """Raises Unsupported for a plan that produces no frames, or frames that are not for all."""
    for _, plan in rules.pairs:
        plan_of_frames(plan)


class FragmentCoder:
    """One Sender that encodes, with the residuals of this worker, and Senders that merge, one for each number of contributions.

    weights  that plans with sparsify=visible compare with: on the CPU, at fixed places
    """

    def __init__(
        self, shapes: Mapping[str, Tuple[int, ...]], plan: Any, options: Mapping[str, Any], weights: Mapping[str, torch.Tensor] = {}
    ) -> None:
        self._specs = {name: TensorSpec(shape, "float32", weights=weights.get(name)) for name, shape in shapes.items()}
        self._plan, self._options = plan, {**options, "unit_bytes": math.inf}
        self._mergers: Dict[int, Sender] = {}
        self.sender = Sender(self._specs, plan, **self._options)
        for unit in self.sender.units:
            if unit.kind != "frames":
                name = unit.tensors[0]
                raise ArgumentError(f"{name}: the plan `{self.sender.plan_of(name)}` produces no frames")
        self.max_bytes = sum(unit.bound for unit in self.sender.units)
        self.units = len(self.sender.units)
        self._slots = [numpy.empty(unit.bound, numpy.uint8) for unit in self.sender.units]
        self.outputs: Dict[str, Array] = {name: numpy.empty(shape, numpy.float32) for name, shape in shapes.items()}
        plans = [self.sender.plan_of(name) for name in shapes]
        self._votes = {name for name, plan in zip(shapes, plans) if plan.name_of("merge") == "vote"}
        self._adds_up = not self._votes and not any(plan.info.sparsifies for plan in plans)
        self._adds, self._unit = self._adds_up, 1.0
        self._sums: Dict[str, Array] = {}
        self._added = 0

    def encode(self, tensors: Mapping[str, torch.Tensor], number: int, private_seed: int) -> List[Array]:
        """The slots, valid until the next call. Raises ArgumentError: a tensor with its residual is not what the plan encodes."""
        self.sender.place({name: tensor.numpy() for name, tensor in tensors.items()})
        if self.sender.info.clips:
            self.sender.clip()
        found = []
        for i, slot in enumerate(self._slots):
            sent = self.sender.encode(i, number, slot, private_seed=private_seed)
            if sent.fault:
                raise self._fault(i, number, slot[: sent.size])
            found.append(slot[: sent.size])
        return found

    def _fault(self, unit: int, number: int, slot: Array) -> ArgumentError:
        """Why a unit could not be encoded. Its slot says so to those that merge it."""
        name, why = self.sender.unit(unit).tensors[0], "could not encode"
        try:
            self._merger(1).merge(unit, number, [slot])
        except Error as error:
            name = error.tensor if isinstance(error.tensor, str) else name
            why = str(error).removeprefix("rank 0: ")  # (of the one slot; its worker's name is not known here)
        return ArgumentError(f"the plan `{self.sender.plan_of(name)}` {why}", tensor=name)

    def saved(self, state: Optional[SavedState] = None) -> SavedState:
        """The sender's state_dict, or `state` that it returned before, with tensors in place of arrays, for torch.save."""
        state = self.sender.state_dict() if state is None else state
        return {key: {name: torch.from_numpy(array) for name, array in value.items()} if isinstance(value, dict) else value for key, value in state.items()}

    def take_back(self, number: int) -> None:
        self.sender.take_back(number)
        self.sender.resume(0, 0)  # (workers of a folder do not compare failures)

    def merge(self, slots: Sequence[Sequence[Any]], number: int) -> Dict[str, Array]:
        """The mean of the contributions' slots, valid until the next call. Raises Error: slots of other tensors, or damaged."""
        merger = self._merger(len(slots))
        for i in range(self.units):
            longest = max(len(worker_slots[i]) for worker_slots in slots)  # (a merge requires slots of one length)
            merger.merge(i, number, [bytes(worker_slots[i]).ljust(longest, b"\0") for worker_slots in slots])
        return self.outputs

    def _merger(self, k: int) -> Sender:
        merger = self._mergers.pop(k, None) or Sender(self._specs, self._plan, ranks=k, caller_states=True, **self._options)
        self._mergers[k] = merger
        if len(self._mergers) > _MERGERS_MAX:
            del self._mergers[next(iter(self._mergers))]
        merger.place(out=self.outputs)
        return merger

    # A worker decodes each contribution to judge it, before it knows the mean's. Decoding a sparse one again, at the mean, costs
    # less than keeping it: of 4.2 M weights by `sparseloco` 0.7 ms, adding its decoded elements 1.5 ms (and a copy 16 MB); of
    # 8-bit ones it costs 12 ms. So dense ones are added up as they are decoded; and all that have other factors than the rest,
    # since a merge has none.

    def begin_sum(self, factors: Sequence[float]) -> None:
        """factors: of all contributions that will be added."""
        self._added, self._unit = 0, max(factors, default=1.0)
        self._adds = self._adds_up or len(set(factors)) > 1

    def add(self, factor: float) -> None:
        """Adds what the last merge, of one contribution, returned, times `factor`."""
        if self._adds:
            for name, array in self.outputs.items():
                part = array if factor == self._unit else array * numpy.float32(factor / self._unit)
                if self._added:
                    self._sums[name] += part
                else:
                    numpy.copyto(self._sums.setdefault(name, numpy.empty_like(array)), part)
            self._added += 1

    def mean(self, slots: Sequence[Sequence[Any]], number: int, factors: Sequence[float], total: float) -> Dict[str, Array]:
        """The sum of the contributions times their factors, over `total`; in votes each has one. Of contributions that were added
        since begin_sum, or of some of them. Valid until the next call."""
        scale, found = self._unit / total, self._sums
        if self._added != len(slots) and len(set(factors)) == 1:
            scale, found = len(slots) * factors[0] / total, self.merge(slots, number)
        else:
            if self._added != len(slots):
                self.begin_sum(factors)
                scale = self._unit / total
                for one, factor in zip(slots, factors):
                    self.merge([one], number)
                    self.add(factor)
            if self._votes:
                merged = self.merge(slots, number)
                found = {name: merged[name] if name in self._votes else array for name, array in found.items()}
        self._added = 0
        for name, array in found.items():
            if scale != 1 and name not in self._votes:
                array *= numpy.float32(scale)
        return found
