"""Links whose rate changes: what bench/results/control_traces.py and its tests run exchanges over, in virtual time."""

import bisect
import random
from typing import Callable, Dict, List, Sequence, Tuple

FAST, SLOW = 12.5e6, 1.25e6  # bytes a second: 100 and 10 Mbit/s, so that 400 kB take 32 ms and 320 ms
LATENCY = 2e-4  # seconds
END = 60.0  # seconds that a run takes
Pieces = List[Tuple[float, float]]  # (from this second on, bytes a second)


class Link:
    """rate(seconds), and takes(seconds, bytes): how long the bytes take if they begin to leave then, whatever the rate does
    meanwhile. The last rate stays."""

    def __init__(self, pieces: Sequence[Tuple[float, float]]) -> None:
        self.begins, self.rates = [begin for begin, _ in pieces], [rate for _, rate in pieces]
        if not pieces or self.begins[0] != 0 or sorted(set(self.begins)) != self.begins or min(self.rates) <= 0:
            raise ValueError("a trace begins at 0, its times ascend and its rates are above 0")

    def rate(self, now: float) -> float:
        return self.rates[bisect.bisect_right(self.begins, now) - 1]

    def takes(self, now: float, size: float) -> float:
        at, i = now, bisect.bisect_right(self.begins, now) - 1
        while True:
            end = self.begins[i + 1] if i + 1 < len(self.begins) else float("inf")
            if at + size / self.rates[i] <= end:
                return at + size / self.rates[i] - now
            size -= (end - at) * self.rates[i]
            at, i = end, i + 1


def constant(rate: float) -> Pieces:
    return [(0.0, rate)]


def step() -> Pieces:
    """Fast, ten times slower for a third of the time, fast again."""
    return [(0.0, FAST), (END / 3, SLOW), (2 * END / 3, FAST)]


def sawtooth(period: float = 15.0, pieces: int = 60) -> Pieces:
    """Grows from slow to fast, and falls at once."""
    rise = lambda i: SLOW + (FAST - SLOW) * (i + 0.5) / pieces
    return [(k * period + i * period / pieces, rise(i)) for k in range(int(2 * END / period)) for i in range(pieces)]


def burst(period: float = 10.0, length: float = 1.5) -> Pieces:
    """Fast, and slow for 1.5 of every 10 seconds."""
    return [change for k in range(int(2 * END / period)) for change in ((k * period, FAST), ((k + 1) * period - length, SLOW))]


def neighbour(seed: int = 1, mean: float = 4.0) -> Pieces:
    """Another user comes and goes, for 4 seconds on average, and takes nothing, half or nine tenths of the link."""
    draw, now, pieces, share = random.Random(seed), 0.0, [], 0.0
    while now < 2 * END:
        pieces.append((now, FAST * (1 - share)))
        share = draw.choice([other for other in (0.0, 0.5, 0.9) if other != share])
        now += max(0.5, draw.expovariate(1 / mean))
    return pieces


TRACES: Dict[str, Callable[[], Pieces]] = {
    "constant, fast": lambda: constant(FAST),
    "constant, middle": lambda: constant(FAST / 3),
    "constant, slow": lambda: constant(SLOW),
    "step": step,
    "sawtooth": sawtooth,
    "burst": burst,
    "neighbour's load": neighbour,
}
