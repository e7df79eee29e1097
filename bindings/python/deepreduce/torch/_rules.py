"""deepreduce.torch: which plan a tensor has, by its name."""

from __future__ import annotations

import warnings
from typing import Any, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from .._adapters._plan_beside import bypass_of, exact_beside, flat_or_not
from ..book import Book, as_book
from ..errors import ArgumentError, Unsupported
from ..plan import Plan, as_plan
from ._clip import require_one_clip

OnePlan = Union[None, str, Plan]
Plans = Union[OnePlan, Mapping[str, OnePlan], Sequence[Tuple[str, OnePlan]]]

# All of a tensor, exactly. Those of a unit are one row of its frame.
exact_plan = "bucket=flat index=all value=raw"


class Rules:
    """Which plan a parameter has: the first whose pattern (of fnmatch) its name matches, unless it is small."""

    def __init__(self, plan: Plans, bypass: Optional[int], flat: Optional[bool]) -> None:
        if isinstance(plan, str) and plan == "auto":
            raise ArgumentError("'auto' measures and chooses in training: DDPHook takes it, as its whole plan")
        pairs: Sequence[Tuple[str, OnePlan]]
        book = as_book(plan)
        plan = plan if book is None else book  # (one without lines is false)
        if plan is None or isinstance(plan, (str, Plan)):
            pairs = [("*", plan)]
        else:
            pairs = list(plan.items()) if isinstance(plan, Mapping) else list(plan)
        for pair in pairs:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], str):
                raise ArgumentError(f"plans by name are pairs of a pattern and a plan, and {pair!r} is none")
            if isinstance(pair[1], str) and not pair[1].strip():
                raise ArgumentError(
                    "the plan is an empty text: name its stages, or a preset such as 'recommended' (deepreduce.presets());"
                    " None is dense"
                )
        self.dense, self._bypass = as_plan(exact_plan), bypass
        self.pairs = [
            (pattern, self.dense if each is None else flat_or_not(as_plan(each), flat)) for pattern, each in pairs
        ]
        self._book = Book(self.pairs)
        require_one_clip(self.pairs)

    @property
    def lines(self) -> List[str]:
        return [f"{pattern!r}: {plan}" for pattern, plan in self.pairs]

    def __str__(self) -> str:
        return ", ".join(self.lines)

    def idle(self, names: Sequence[str]) -> List[str]:
        """Sentences about patterns that no name has its plan from, and about plans by name that are none."""
        told = [] if self.pairs else ["plans by name: there is none, so all tensors are dense"]
        for (pattern, _), use in zip(self.pairs, self._book.uses(names)):
            if use == "unmatched":
                told.append(f"plans by name: pattern {pattern!r} matches no tensor")
            elif use == "unreached" and pattern != "*":
                told.append(f"plans by name: pattern {pattern!r} is never reached: those before it match its tensors")
        return told

    @property
    def keep(self) -> bool:
        return any(plan.info.feedback for _, plan in self.pairs)

    @property
    def keep_residuals(self) -> bool:
        return any(plan.info.residual for _, plan in self.pairs)

    @property
    def loses(self) -> List[Plan]:
        """Those that drop values for good: they sparsify, and no feedback sends the rest later."""
        return [plan for _, plan in self.pairs if plan.info.sparsifies and not plan.info.feedback]

    @property
    def all_dense(self) -> bool:
        return all(plan == self.dense for _, plan in self.pairs)

    @property
    def sends_all(self) -> bool:
        return all(sends_all(plan) for _, plan in self.pairs)

    @property
    def transforms(self) -> bool:
        return any(plan.info.transforms for _, plan in self.pairs)

    def plan_of(self, name: str, elements: int, dtype: torch.dtype) -> Plan:
        found = self._found(name)
        if elements < bypass_of(found, self._bypass):
            found = exact_beside(found)
        # (A transform's unit computes with copies in float32.)
        _require_type(name, dtype, found, self.dense if found.info.transforms else found)
        return found

    def plan_of_rows(self, name: str, dtype: torch.dtype) -> Plan:
        """Of a tensor that is sparse: its rows are selected already, however few elements they have."""
        found = self._found(name)
        try:
            rows = found.rows
        except Unsupported as error:
            raise Unsupported(
                f"{name}: its gradient is sparse; {error}; give it a plan without: {{{name!r}: None, '*': …}} sends its rows exactly"
            ) from None
        _require_type(name, dtype, found, rows)
        return rows

    def _found(self, name: str) -> Plan:
        found = self._book.find(name)
        return self.dense if found is None else self.pairs[found][1]


def _require_type(name: str, dtype: torch.dtype, plan: Plan, used: Plan) -> None:
    kind = str(dtype).rpartition(".")[2]
    if kind not in used.info.dtypes:
        raise ArgumentError(f"{name} is {kind}; the plan `{plan}` takes {', '.join(used.info.dtypes)}")


def sends_all(plan: Plan) -> bool:
    info = plan.info
    return not (info.sparsifies or info.lossy_values or info.transforms)


def warn_of_plans(rules: Sequence[Rules], names: Sequence[str], every: Sequence[Sequence[Any]], bypass: Optional[int]) -> None:
    """Warnings of the user's line: nothing is compressed, or plans by name that no tensor has. every: of each tensor its items,
    of each rung."""
    dense = [rungs for rungs in every if rungs[0].shape is None]
    if dense and all(sends_all(item.plan) for rungs in every for item in rungs) and not all(each.sends_all for each in rules):
        limit = "`bypass`" if bypass is None else f"bypass={bypass}"
        words = f"fewer elements than {limit}, or a name that no pattern matches"
        warnings.warn(f"nothing is compressed: each of {len(dense)} tensors has {words}", stacklevel=4)
    idle = [sentence for each in rules for sentence in each.idle(names)]
    if names and idle:
        warnings.warn("; ".join(dict.fromkeys(idle)), stacklevel=4)
