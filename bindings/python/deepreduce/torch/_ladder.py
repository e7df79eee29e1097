"""deepreduce.torch: which of several plans a step sends (deepreduce.control)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from .._native._abi_control import DR_CONTROL_WORDS
from ..control import Controller, check_order
from ..errors import ArgumentError
from ..plan import Plan, as_plan
from ._engine import Engine, Step
from ._terms import gathered, signed

if TYPE_CHECKING:
    from ._device_sender import AnySender
    from ._unit import Unit


class Rung(NamedTuple):
    """The sender of a rung's plans, and its units. where: {name of a tensor: (unit, position in it)}"""

    sender: AnySender
    units: List[Unit]
    where: Dict[str, Tuple[Unit, int]]

    @classmethod
    def of(cls, sender: AnySender, units: List[Unit]) -> Rung:
        return cls(sender, units, {item.name: (unit, i) for unit in units for i, item in enumerate(unit.items)})


class Ladder:
    """The rungs of an exchange, and the controller that chooses among them.

    A rung is created when it is first used, on all ranks at the same step.

    dense  for each rung, whether it changes no tensor. Its steps are plain all-reduces, except the first one, which
           sends the residuals
    """

    def __init__(self, options: str, dense: Sequence[bool]) -> None:
        check_order(dense)
        self.control = Controller(options, len(dense))
        self._dense = list(dense)
        self.rungs: List[Optional[Rung]] = [None] * len(dense)
        self.clean = True  # residuals are zero
        self._measures = False  # whether the current step is measured

    @property
    def is_plain(self) -> bool:
        return self._dense[self.control.rung] and self.clean

    def restart(self, clean: bool, control: Optional[Controller] = None) -> None:
        """Starts again, or continues from the decisions of `control`. Rungs are created again, since a new rank has no factors
        of rungs other than the current one."""
        log = self.control.log
        self.rungs = [None] * len(self.rungs)
        self.control = control or Controller(self.control.options, len(self.rungs))
        self.control.log = log
        self.clean, self._measures = clean, False

    def replayed(self, trace: Optional[torch.Tensor]) -> Controller:
        """A controller that has made the decisions of `trace`; None: no decisions. Raises ArgumentError."""
        control = Controller(self.control.options, len(self.rungs))
        control.load_state_dict({"trace": [] if trace is None else [word % 2**64 for word in trace.tolist()]})
        return control

    def trace(self) -> torch.Tensor:
        return torch.tensor([signed(word) for word in self.control.state_dict()["trace"]], dtype=torch.int64)

    def end_step(self, number: int, step: Step, engine: Engine, timeout: float) -> bool:
        """After the collectives of a step: measures it and, if it is time, lets the ranks decide. True: the rung has changed.

        The first step of a rung is not measured: the sizes of slots are found, and residuals are sent.
        """
        plain = self.is_plain
        if (self._measures or plain) and not step.repeats:
            self.control.observe(step.sent, step.wait)
        self._measures = True
        if not step.skipped:
            self.clean = self._dense[self.control.rung]
        if not self.control.due(number + 1):
            return False
        before, begin = self.control.rung, time.perf_counter()
        words = gathered(f"step {number}, control", self.control.report(), engine, timeout)
        took = time.perf_counter() - begin
        self.control.observe(0, took)
        step.wait += took
        step.sent += (engine.size - 1) * 8 * DR_CONTROL_WORDS
        step.received += (engine.size - 1) * 8 * DR_CONTROL_WORDS
        try:
            self.control.decide(number + 1, words)
        except ArgumentError as error:
            raise engine.named(error) from None
        self._measures = self.control.rung == before
        return not self._measures


def keeper_of(plans: Sequence[Plan]) -> Plan:
    """A plan that produces frames, with the feedback of the first of these that has one. It defines how the residual is stored."""
    plan = next((candidate for candidate in plans if candidate.info.feedback), plans[0])
    return as_plan(f"{plan.text_of('feedback')} index=all value=raw") if plan.info.transforms else plan


def plans_of(name: str, found: Sequence[Plan], exact: Plan) -> List[Plan]:
    """The plans of a tensor, one for each rung. A rung that sends it exactly also sends its residual.

    found  the plans of the rungs; `exact` where the tensor is sent exactly
    """
    feedbacks = {plan.stages["feedback"] for plan in found if plan.info.feedback}
    if not feedbacks:
        return list(found)
    feedback = feedbacks.pop()
    if feedbacks:
        raise ArgumentError(f"{name}: rungs have {feedback} and {feedbacks.pop()}; they share one residual")
    if feedback.name in ("dgc", "momentum"):
        raise ArgumentError(f"{name}: {feedback} has momentum, which a step without a plan would lose: it cannot be in a ladder")
    for rung, plan in enumerate(found):
        if plan != exact and not plan.info.feedback:
            raise ArgumentError(f"{name}: rung {rung}, `{plan}`, keeps no residual, and another rung has {feedback}")
    if any(plan.info.coefficients for plan in found) and len({str(plan.stages["transform"]) for plan in found}) > 1:
        raise ArgumentError(f"{name}: a rung has transform=dct, and another rung has not, or of another size; they share one residual")
    dense = as_plan(f"{exact} {feedback}")
    return [dense if plan == exact else plan for plan in found]
