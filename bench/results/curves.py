"""Curves of losses, and tables of them: for pages that compare trainings. Wants no torch."""

from typing import Optional, Sequence, Tuple

Curve = Sequence[Tuple[float, float]]  # (step, loss)


def reached(curve: Curve, loss: float) -> Optional[float]:
    """The first step at which the curve is at the loss or below, on a line between its points; None: it is nowhere."""
    before: Optional[Tuple[float, float]] = None
    for step, now in curve:
        if now <= loss:
            return step if before is None else before[0] + (step - before[0]) * (before[1] - loss) / (before[1] - now)
        before = (step, now)
    return None


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = "|".join("---" if i == 0 else "---:" for i in range(len(head)))
    return "\n".join([f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(line)} |" for line in lines)])
