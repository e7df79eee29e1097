"""Evaluates the rows of control_live.py: which fixed plan was the best in hindsight, how far the laws are from it, and what a
step computes. Needs no torch: the page of bench/results/control_traces.py reads it, too."""

import statistics
from typing import Any, Dict, List, Optional, Sequence

from bench.train.control_ladder import LADDER

WITHIN = 1.15  # of the best fixed plan's step
MEETS = 0.9  # of the steps
LAWS = ("aimd", "fit")
Row = Dict[str, Any]


def by_name(rows: Sequence[Row], trace: str) -> Dict[str, List[Row]]:
    """Fixed plans from dense to small, then the laws; those that were run."""
    of = {name: [row for row in rows if row["trace"] == trace and row["name"] == name] for name in (*LADDER, *LAWS)}
    return {name: some for name, some in of.items() if some}


def mean(of: Dict[str, List[Row]], name: str, key: str) -> float:
    """Over the seeds."""
    return statistics.fmean(row[key] for row in of[name])


def best_fixed(of: Dict[str, List[Row]]) -> Optional[str]:
    """The densest of which nine of ten steps meet the target; if none does, the fastest. None: no fixed plan was run."""
    fixed = [name for name in of if name not in LAWS]
    meeting = (name for name in fixed if mean(of, name, "met") >= MEETS)
    return next(meeting, min(fixed, key=lambda name: mean(of, name, "step_ms"), default=None))


def verdicts(rows: Sequence[Row], fixed: Sequence[str] = tuple(LADDER)) -> List[str]:
    """A line a trace and law. fixed: the plans that were to be run; a trace without one of them is left out, since a run failed."""
    sentences = []
    for trace in dict.fromkeys(row["trace"] for row in rows):
        of = by_name(rows, trace)
        best = best_fixed(of)
        if best is None or not {*fixed, *LAWS} <= set(of):
            continue
        worst = max(fixed, key=lambda name: mean(of, name, "step_ms"))
        dense = f" and {mean(of, 'dense', 'score'):.4f} dense" if "dense" in of else ""
        for law in LAWS:
            ratio = mean(of, law, "step_ms") / mean(of, best, "step_ms")
            sentences.append(
                f"{trace}, {law}: step {ratio:.2f} x the best fixed plan's ({best}), "
                f"{mean(of, law, 'step_ms') / mean(of, worst, 'step_ms'):.2f} x the worst's ({worst}); "
                f"score {mean(of, law, 'score'):.4f} against {mean(of, best, 'score'):.4f}{dense}: {'good' if ratio <= WITHIN else 'MISSED'}"
            )
    return sentences


def compute_ms(rows: Sequence[Row]) -> float:
    """The compute time of a step. Rows from before it was measured warm have a time that is too long; theirs is what the smallest plan's steps
    leave beside their wait: median of its runs, with half a millisecond of encode and merge in it."""
    warm = [row["compute_ms"] for row in rows if row.get("warm")]
    smallest = [row for row in rows if row["name"] == list(LADDER)[-1]]
    return statistics.median(warm or [row["step_ms"] - row["wait_ms"] for row in smallest])


def runs(rows: Sequence[Row]) -> List[List[Row]]:
    """The rows of each model, target and commit, together."""
    keys = dict.fromkeys((row["model"], row["target_ms"], row["commit"], row["date"]) for row in rows)
    return [[row for row in rows if (row["model"], row["target_ms"], row["commit"], row["date"]) == key] for key in keys]
