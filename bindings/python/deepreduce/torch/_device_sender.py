"""deepreduce.torch: a sender of tensors on a GPU, some of which go as numbers that an all-reduce adds up."""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping, Tuple, Union

import torch

from .._native import _abi
from .._native._types import Array, Options
from ..errors import Error, Unsupported
from ..plan import Plan
from ..sender import Plans, Sender, SenderInfo, Sent, SentTensor, TensorSpec
from ..sender import Unit as UnitInfo
from ._device_factors import Factors
from ._device_halves import Halves
from ._device_numbers import NumberItem, Numbers
from ._engine import Engine
from ._number_heads import Counts

AnySender = Union[Sender, "DeviceSender"]
_NUMBERS = ("halves", "factors")
_NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}


def device_sender(
    specs: Mapping[str, TensorSpec], plan: Plans, place: Callable[[], _abi.dr_place], home: torch.device, engine: Engine, options: Options
) -> AnySender:
    """A Sender on the device, or where it has no path for some tensors, and torch has, a DeviceSender. Raises Unsupported, with the
    tensor's name, if neither has.

    place    returns that of frames
    options  of Sender
    """
    law = Sender(specs, plan, _dry=True, **options)
    if not any(unit.kind in _NUMBERS for unit in law.units):
        return Sender(specs, plan, _place=place(), **options)
    if options["skip_nonfinite"]:
        raise Unsupported("DR_SENDER_SKIP runs on the CPU only: no rank knows ahead whether values on a device are finite")
    return DeviceSender(law, specs, plan, place, home, engine, options)


class DeviceSender:
    """The calls of a Sender. Its law has the units; a Sender on the device makes frames; Numbers make halves and factors."""

    def __init__(
        self, law: Sender, specs: Mapping[str, TensorSpec], plan: Plans, place: Callable[[], _abi.dr_place], home: torch.device, engine: Engine, options: Options
    ) -> None:
        self._law, self.counts = law, Counts()
        names = {name for unit in law.units if unit.kind not in _NUMBERS for name in unit.tensors}
        framed = {name: spec for name, spec in specs.items() if name in names}
        self._frames = Sender(framed, plan, _place=place(), **options) if framed else None
        self._numbers: Dict[int, Numbers] = {}  # by the law's number of the unit
        self._of: Dict[str, Numbers] = {}
        self._parts: List[int] = []  # of a unit of frames, its number in their sender
        for i, unit in enumerate(law.units):
            self._parts.append(i - len(self._numbers))
            if unit.kind not in _NUMBERS:
                continue
            items = [NumberItem(name, tuple(specs[name].shape), specs[name].dtype, law.plan_of(name)) for name in unit.tensors]
            made: Numbers
            if unit.kind == "halves":
                made = Halves(items, engine, home)
            else:
                made = Factors(items, options["seed"], options["dense_below"], engine, home)
            self._numbers[i] = made
            self._of.update((item.name, made) for item in items)

    def part(self, number: int) -> Tuple[AnySender, int]:
        """The sender that makes a unit, and the unit's number there."""
        if number in self._numbers or self._frames is None:
            return self, number
        return self._frames, self._parts[number]

    def numbers_of(self, unit: int) -> Numbers:
        return self._numbers[unit]

    @property
    def has_factors(self) -> bool:
        return any(isinstance(made, Factors) for made in self._numbers.values())

    # ---- Properties ----

    @property
    def info(self) -> SenderInfo:
        """As Sender.info."""
        info = self._law.info if self._frames is None else self._frames.info
        states = sum(made.size(name, "states") for name, made in self._of.items())
        waits = sum(made.waits for made in self._numbers.values())
        tensors, units = len(self._law.names), len(self._law.units)
        return info._replace(
            tensors=tensors, units=units, states=info.states + states, failures=self.counts.failures, failed=self.counts.failed, waits=info.waits + waits
        )

    @property
    def names(self) -> List[str]:
        return self._law.names

    @property
    def units(self) -> List[UnitInfo]:
        return [self.unit(i) for i in range(len(self._parts))]

    def unit(self, unit: int) -> UnitInfo:
        sender, number = self.part(unit)
        if isinstance(sender, Sender):
            return sender.unit(number)
        made = self._numbers[unit]
        first, second = made.sums.nbytes, made.second.nbytes
        numbers = _NAMES[made.sums.dtype]
        return self._law.unit(unit)._replace(bound=first, slot=first, slots=1, sum_bound=second, sum_slot=second, numbers=numbers)

    def tensor(self, name: str) -> SentTensor:
        law, made = self._law.tensor(name), self._of.get(name)
        if made is not None:
            return law._replace(state=made.size(name, "states"), warm_state=made.size(name, "warm"))
        assert self._frames is not None
        of_frames = self._frames.tensor(name)
        return law._replace(state=of_frames.state, sum_state=of_frames.sum_state)

    def plan_of(self, name: str) -> Plan:
        return self._law.plan_of(name)

    def _position(self, name: str) -> int:
        return self._law._position(name)

    # ---- Steps ----

    def clip(self) -> None:
        if self._frames is not None:
            self._frames.clip()

    def skip(self, step: int) -> None:
        """No rank asks for it."""

    def take_back(self, step: int) -> None:
        self.counts = Counts(self.counts.failures + 1, step)
        for made in self._numbers.values():
            made.take_back()
        if self._frames is not None:
            self._frames.take_back(step)

    def _check_step(self, step: int) -> Sent:
        """As Sender._check_step. Where one part of a step failed, all count it as failed."""
        sent, error, counts = Sent(0, 0, 0, 0, 0, False), None, self.counts
        if self._frames is not None:
            try:
                sent = self._frames._check_step(step)
            except Error as of_frames:
                error, info = of_frames, self._frames.info
                counts = Counts(info.failures, info.failed)
        for made in self._numbers.values():
            fault = made.settle(step)
            if fault is not None:
                error = error or fault.error
                counts = Counts((fault.adopted or self.counts).failures + 1, step)
        if error is not None:
            self.resume(*counts)
            raise error
        return sent

    def resume(self, failures: int, failed: int) -> None:
        self.counts = Counts(failures, failed)
        if self._frames is not None:
            self._frames.resume(failures, failed)

    # ---- States ----

    def read_state(self, name: str, field: str = "states") -> Array:
        made = self._of.get(name)
        if made is not None:
            return made.read(name, field)
        assert self._frames is not None
        return self._frames.read_state(name, field)

    def write_state(self, name: str, field: str, state: Array) -> None:
        made = self._of.get(name)
        if made is not None:
            made.write(name, field, state)
        elif self._frames is not None:
            self._frames.write_state(name, field, state)
