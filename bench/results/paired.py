"""The mean of differences by seed, and how sure it is: for pages that compare trainings."""

import math
import statistics
from typing import Dict, NamedTuple, Sequence

STUDENT = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}  # of so many seeds: 97.5 % quantile


class Interval(NamedTuple):
    """The mean of paired differences, its standard error, and half of its 95 % interval (Student's t)."""

    mean: float
    error: float
    half: float

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    @property
    def is_clear(self) -> bool:
        """Whether 0 is outside of it."""
        return abs(self.mean) > self.half


def interval_of(differences: Sequence[float]) -> Interval:
    """Of at least two differences, and no more than STUDENT has."""
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return Interval(statistics.fmean(differences), error, STUDENT[len(differences)] * error)


def paired(ours: Dict[int, float], base: Dict[int, float]) -> Interval:
    """Of ours − base by seed: of the seeds that both have, at least two."""
    return interval_of([ours[seed] - base[seed] for seed in sorted(ours) if seed in base])
