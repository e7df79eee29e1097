"""deepreduce.torch: which plan a tensor has, by its name."""

from __future__ import annotations

import warnings
from typing import Container, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from .._native._renamed import caller_level
from ..book import Book, as_book
from ..errors import ArgumentError
from ..plan import Plan, as_plan

OnePlan = Union[None, str, Plan]
Plans = Union[OnePlan, Mapping[str, OnePlan], Sequence[Tuple[str, OnePlan]]]

# Sends the whole tensor exactly. Such tensors of a unit are one row of its frame.
exact_plan = "bucket=flat index=all value=raw"


class Rules:
    """Plans by patterns of names; the first pattern that matches counts. A sender uses them."""

    def __init__(self, plan: Plans, flat: Optional[bool]) -> None:
        if isinstance(plan, str) and plan == "auto":
            raise ArgumentError("'auto' measures and chooses in training: only DDPHook accepts it, as its whole plan")
        pairs: Sequence[Tuple[str, OnePlan]]
        book = as_book(plan)
        plan = plan if book is None else book  # (one without lines is false)
        if plan is None or isinstance(plan, (str, Plan)):
            pairs = [("*", plan)]
        elif isinstance(plan, (Mapping, Iterable)):
            pairs = list(plan.items()) if isinstance(plan, Mapping) else list(plan)
        else:
            raise ArgumentError(f"plan is {plan!r}, not a plan, a book, or plans by pattern of name")
        for pair in pairs:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], str):
                raise ArgumentError(f"plans by name are pairs of a pattern and a plan, and {pair!r} is not such a pair")
            if isinstance(pair[1], str) and not pair[1].strip():
                raise ArgumentError(
                    "the plan is an empty text: name its stages, or a preset such as 'recommended' (deepreduce.presets());"
                    " None is dense"
                )
        self.dense, self.flat = as_plan(exact_plan), flat
        self.pairs = [(pattern, self.dense if one_plan is None else as_plan(one_plan)) for pattern, one_plan in pairs]
        self.book = Book(self.pairs)

    @property
    def lines(self) -> List[str]:
        return [f"{pattern!r}: {plan}" for pattern, plan in self.pairs]

    def __str__(self) -> str:
        return ", ".join(self.lines)

    def idle(self, names: Sequence[str]) -> List[str]:
        """Sentences about patterns that give no name its plan, and about an empty list of plans by name."""
        sentences = [] if self.pairs else ["plans by name: there is none, so all tensors are dense"]
        for (pattern, _), use in zip(self.pairs, self.book.uses(names)):
            if use == "unmatched":
                sentences.append(f"plans by name: pattern {pattern!r} matches no tensor")
            elif use == "unreached" and pattern != "*":
                sentences.append(f"plans by name: pattern {pattern!r} is never reached: those before it match its tensors")
        return sentences

    @property
    def keep(self) -> bool:
        return any(plan.info.feedback for _, plan in self.pairs)

    @property
    def keep_residuals(self) -> bool:
        return any(plan.info.residual for _, plan in self.pairs)

    @property
    def all_dense(self) -> bool:
        return all(sends_all(plan) and plan.with_stages("bucket=flat") == self.dense for _, plan in self.pairs)

    @property
    def sends_all(self) -> bool:
        return all(sends_all(plan) for _, plan in self.pairs)

    @property
    def weighs(self) -> bool:
        """Whether a plan compares tensors with the weights that they are to move."""
        return any(plan.name_of("sparsify") == "visible" for _, plan in self.pairs)

    @property
    def transforms(self) -> bool:
        return any(plan.info.transforms for _, plan in self.pairs)

    @property
    def of_matrices(self) -> bool:
        """Whether the shape of a tensor matters to a plan."""
        return any(plan.info.transforms or plan.info.coefficients for _, plan in self.pairs)


def sends_all(plan: Plan) -> bool:
    info = plan.info
    return not (info.sparsifies or info.lossy_values or info.transforms)


def warn_of_plans(
    rules: Sequence[Rules], plans: Mapping[str, Sequence[Plan]], sparse: Container[str], dense_below: Optional[int]
) -> None:
    """Warns, at the user's line, if nothing is compressed or a plan by name is used by no tensor.

    plans  of each tensor, one for each rung
    """
    dense = [found for name, found in plans.items() if name not in sparse]
    every = [plan for found in plans.values() for plan in found]
    if dense and all(map(sends_all, every)) and not all(rung_rules.sends_all for rung_rules in rules):
        limit = "`dense_below`" if dense_below is None else f"dense_below={dense_below}"
        words = f"fewer elements than {limit}, or a name that no pattern matches"
        warnings.warn(f"nothing is compressed: each of {len(dense)} tensors has {words}", stacklevel=caller_level())
    idle = [sentence for rung_rules in rules for sentence in rung_rules.idle(list(plans))]
    if plans and idle:
        warnings.warn("; ".join(dict.fromkeys(idle)), stacklevel=caller_level())
