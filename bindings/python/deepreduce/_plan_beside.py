"""What adapters decide beside a plan: which tensors are one, which go as they are, and with which plan."""

from __future__ import annotations

from typing import Optional

from .plan import Plan, as_plan


def dense_beside(plan: Plan, exact: Plan) -> Plan:
    """The plan of a tensor that goes as it is, where others have `plan`: with the same momentum, if that has one."""
    feedback = next((each for each in str(plan).split() if each.startswith("feedback=")), "")
    if feedback.startswith("feedback=momentum"):
        return _one(f"{exact} {feedback}")
    if not feedback.startswith("feedback=dgc"):
        return exact
    given = feedback.removeprefix("feedback=dgc").strip("()").split(",")
    kept = [each for each in given if each and not each.startswith("masking=")]
    return _one(f"{exact} feedback=dgc({','.join([*kept, 'masking=off'])})")  # all is sent: masked, u would stay 0


def rows_beside(plan: Plan) -> Plan:
    """The plan of rows that are selected already, where others have `plan`: its index and value codecs. An index codec
    that sends all rows, or others than were selected, gives way to golomb. Nothing of the rows is kept: no feedback."""
    stages = {} if plan.info.transforms else {each.partition("=")[0]: each for each in str(plan).split()}
    index = stages.get("index", "index=raw" if stages else "index=golomb")
    if plan.info.lossy_support or index.startswith(("index=all", "index=seeded")):
        index = "index=golomb"
    return _one(" ".join([index, *(stages[role] for role in ("value", "order") if role in stages)]))


def flat_or_not(plan: Plan, flat: Optional[bool]) -> Plan:
    """The plan, with bucket=flat if its tensors are one. flat: None leaves it to the plan.

    A sparsifier chooses best among all elements. Levels are best of one tensor each: of a transformer one tensor has 98 %
    of the gradient's square, and 4 bits reach a loss of 2.095 apart, 2.360 as one tensor (bench/results/train.md). What
    keeps each value by itself takes no more than fewer headers.
    """
    if flat is None:
        info = plan.info
        flat = info.sparsifies or not info.lossy_values or " value=half" in f" {plan}"
    makes = flat and not plan.info.flat and not plan.info.transforms
    return _one(f"{plan} bucket=flat") if makes else _one(str(plan))


def bypass_of(plan: Plan, bypass: Optional[int]) -> int:
    """Tensors of fewer elements travel exactly. None: of one flat tensor none, for small ones cost it nothing: in half of
    the bytes of a Top-1 % frame 0.3 % of the elements were exact, and training lost nothing without. Of tensors apart
    those below 1000: a row of the header and levels of its own buy little, and they are 1 to 3 % of the bytes."""
    if bypass is not None:
        return bypass
    return 0 if plan.info.flat else 1000


def _one(text: str) -> Plan:
    """The plan of all equal texts: tensors of a flat batch have the same object."""
    return as_plan(str(as_plan(text)))
