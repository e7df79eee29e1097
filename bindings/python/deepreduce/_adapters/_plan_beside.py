"""What adapters decide beside a plan: which tensors are one, which go as they are, and with which plan."""

from __future__ import annotations

from typing import Optional

from ..plan import Plan


def exact_beside(plan: Plan) -> Plan:
    """Plan.exact, flat: such tensors of a unit or a row are one. Votes and factors have none."""
    exact = plan.exact
    return exact if exact.info.votes or exact.info.transforms else flat_or_not(exact, True)


def flat_or_not(plan: Plan, flat: Optional[bool]) -> Plan:
    """The plan, with bucket=flat if its tensors are one. flat: None leaves it to the plan.

    A sparsifier chooses best among all elements. Levels are best of one tensor each: of a transformer one tensor has 98 %
    of the gradient's square, and 4 bits reach a loss of 2.095 apart, 2.360 as one tensor (bench/results/train.md). What
    keeps each value by itself takes no more than fewer headers.
    """
    if flat is None:
        info = plan.info
        flat = info.sparsifies or not info.lossy_values or plan.name_of("value") == "half"
    # (Tensors of a flat batch have the same object.)
    return plan.with_stages("bucket=flat" if flat and not plan.info.transforms else "")


def bypass_of(plan: Plan, bypass: Optional[int]) -> int:
    """Tensors of fewer elements travel exactly. None: of one flat tensor none, for small ones cost it nothing: in half of
    the bytes of a Top-1 % frame 0.3 % of the elements were exact, and training lost nothing without. Of tensors apart
    those below 1000: a row of the header and levels of its own buy little, and they are 1 to 3 % of the bytes."""
    if bypass is not None:
        return bypass
    return 0 if plan.info.flat else 1000
