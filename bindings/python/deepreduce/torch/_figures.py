"""deepreduce.torch: the figures of an exchange, as text and as metrics for a logger."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Dict, Iterable, Sequence

from .._native._sizes import bytes_text, count_text
from ..tensor import State
from ._engine import Stats
from ._rules import sends_all

if TYPE_CHECKING:
    from ._unit import Unit

def metrics_of(stats: Stats, states: Iterable[State]) -> Dict[str, float]:
    """A flat dict, for log_dict and the like. states: those that hold residuals"""
    last, norms = stats.last, [state.norm() for state in states]
    return {
        "steps": float(stats.steps),
        "skipped": float(stats.total.skipped),
        "bytes_sent": float(last.sent),
        "bytes_received": float(last.received),
        "bytes_dense": float(last.dense),
        "ratio": last.dense / last.frame if last.frame else 1.0,
        "repeats": float(last.repeats),
        "encode_ms": 1e3 * last.encode,
        "wait_ms": 1e3 * last.wait,
        "merge_ms": 1e3 * last.merge,
        "own_ms": 1e3 * last.own,
        "residual_norm": math.hypot(*norms),
        "residual_bytes": float(stats.memory),
    }


def words_of(plans: Sequence[object], units: Sequence[Unit], stats: Stats, start: int) -> str:
    """The plan, the numbers of tensors and units, and the bytes per step."""
    plan = "; ".join(map(str, plans))
    if not units:
        return f"{plan}; no tensors yet"
    items = [item for unit in units for item in unit.items]
    dense = sum(sends_all(item.plan) for item in items)
    size = sum(item.elements * item.dtype.itemsize for item in items)
    words = f"{count_text(len(items), 'tensor')} of {bytes_text(size)} in {count_text(len(units), 'unit')}, {len(items) - dense} compressed and {dense} dense"
    limit = sum(unit.max_bytes for unit in units)
    if stats.last.frame:
        words += f"; {bytes_text(stats.last.frame)} in the last step"
    elif limit < size:
        words += f"; at most {bytes_text(limit)} a step"
    if stats.steps < start:
        words += f" after {start} dense steps"
    return f"{plan}; {words}"
