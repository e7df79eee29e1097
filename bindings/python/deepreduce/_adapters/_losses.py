"""A warning of plans that drop values permanently, for what trains by them."""

from __future__ import annotations

import warnings
from typing import Iterable

from .._native._renamed import caller_level
from ..plan import Plan


def warn_of_losses(plans: Iterable[Plan]) -> None:
    """Warns (UserWarning), at the user's line, of the first plan that sparsifies without a feedback that sends the rest later."""
    lost = next((plan for plan in plans if plan.info.sparsifies and not plan.info.feedback), None)
    if lost is not None:
        words = f"the plan '{lost}' drops what it does not send: add feedback=residual, which sends it in later steps"
        warnings.warn(words, stacklevel=caller_level())
