"""deepreduce.torch: DDPHook("auto"), which measures plans on the model's own gradients and link, and chooses one."""

from __future__ import annotations

import logging
import statistics
import time
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from .._native._types import Options
from ..errors import ArgumentError
from ._all_reduce import AllReduce
from ._engine import Engine, Step
from ._terms import gathered

# Candidates, from the most accurate to the least: the order in which trainings reached a loss (bench/results/train.md).
# Top-r is not among them: it reached a loss later than these at every rate.
CANDIDATES: Sequence[Tuple[str, Optional[str]]] = (
    ("dense", None),
    ("bf16", "index=all value=half(type=bf16)"),
    ("8 bits", "index=all value=uniform_quant(bits=8) feedback=residual"),
    ("4 bits", "index=all value=uniform_quant(bits=4) feedback=residual"),
    ("lowrank", "transform=lowrank(rank=4) feedback=residual"),
)
STEPS = 10  # dense ones, before the choice
_SKIPPED = 3  # of these: DDP rebuilds its buckets, caches fill
_ROUNDS = 3  # exchanges by each candidate that are timed
_MARGIN = 0.1  # a more accurate plan may take this share longer than the fastest one

log = logging.getLogger("deepreduce.torch")


class Choice(NamedTuple):
    """What was measured and chosen. Times are seconds per step, of the slowest rank.

    name, plan  of the candidate chosen; plan None: dense
    compute     seconds of a step without the exchange
    costs       of the exchange of each candidate, {name: seconds}
    bytes       that a rank sends in an exchange, {name: bytes}
    """

    name: str
    plan: Optional[str]
    compute: float
    costs: Dict[str, float]
    bytes: Dict[str, int]

    def __str__(self) -> str:
        costs = ", ".join(
            f"{name} {1e3 * cost:.1f} ms ({self.bytes[name] / 1e3:.4g} kB)" for name, cost in self.costs.items()
        )
        return (
            f"auto: {self.name} (plan {self.plan}); {1e3 * self.compute:.1f} ms of compute a step; exchanges: {costs}"
        )


def choice_of(saved: object) -> Choice:
    """The Choice of a state. Raises ArgumentError."""
    if not isinstance(saved, Mapping) or set(saved) != set(Choice._fields) or not isinstance(saved["plan"], (str, type(None))):
        raise ArgumentError(f"auto of the state is not a choice, which has {', '.join(Choice._fields)}")
    return Choice(**saved)


def choose(compute: float, costs: Mapping[str, float]) -> str:
    """The most accurate candidate whose step is at most 10 % longer than the fastest one's.

    compute  seconds of a step without the exchange
    costs    seconds of the exchange, {name: seconds}, from the most accurate candidate to the least
    """
    limit = (1 + _MARGIN) * (compute + min(costs.values()))
    return next(name for name, cost in costs.items() if compute + cost <= limit)


class Auto:
    """Watches the dense steps, then measures each candidate on that step's gradients, and chooses.

    In training an exchange overlaps with backward; the trial of a candidate does not. So its cost is an upper bound. The cost
    of dense is at most what the dense steps waited.
    """

    def __init__(self) -> None:
        self.choice: Optional[Choice] = None
        self._compute: List[float] = []
        self._exposed: List[float] = []
        self._ended: Optional[float] = None

    def observe(self, step: Step) -> None:
        """A dense step has ended."""
        now, exposed = time.monotonic(), step.wait
        if self._ended is not None:
            self._compute.append(max(now - self._ended - exposed, 0.0))
            self._exposed.append(exposed)
        self._ended = now

    def decide(
        self, gradients: Mapping[str, torch.Tensor], engine: Engine, options: Options
    ) -> Optional[Choice]:
        """Measures and chooses, the same on all ranks. None: a gradient is not finite, so this step cannot be measured.
        Collective.

        gradients  {name: the mean over the ranks}
        options    of the exchanges: AllReduce's
        """
        if not all(bool(gradient.isfinite().all()) for gradient in gradients.values()):
            return None
        copies = {name: torch.empty_like(gradient) for name, gradient in gradients.items()}
        costs: List[float] = []
        sizes: List[int] = []
        for _, plan in CANDIDATES:
            reduce = AllReduce(plan, start=0 if plan else 1 + _ROUNDS, group=engine.group, **options)
            took: List[float] = []
            for _ in range(1 + _ROUNDS):
                torch._foreach_copy_(list(copies.values()), list(gradients.values()))
                _wait_for(copies)
                begin = time.perf_counter()
                reduce(copies)
                _wait_for(copies)
                took.append(time.perf_counter() - begin)
            costs.append(statistics.median(took[1:]))
            sizes.append(reduce.stats().last.sent)
        seen = self._exposed[_SKIPPED:] or self._exposed
        if seen:
            costs[0] = min(costs[0], statistics.median(seen))
        compute = statistics.median(self._compute[_SKIPPED:] or self._compute or [0.0])
        slowest = _slowest([compute, *costs], engine, options["timeout"])
        names = [name for name, _ in CANDIDATES]
        measured = dict(zip(names, slowest[1:]))
        name = choose(slowest[0], measured)
        self.choice = Choice(name, dict(CANDIDATES)[name], slowest[0], measured, dict(zip(names, sizes)))
        if engine.rank == 0:
            log.info("%s", self.choice)
        return self.choice


def _wait_for(tensors: Mapping[str, torch.Tensor]) -> None:
    """On a GPU a step is only enqueued when it returns."""
    for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
        torch.cuda.synchronize(device)


def _slowest(seconds: Sequence[float], engine: Engine, timeout: float) -> List[float]:
    """The largest value of each figure over the ranks, in whole microseconds: the same on all."""
    words = gathered("auto", [round(1e6 * figure) for figure in seconds], engine, timeout)
    return [max(column) / 1e6 for column in zip(*words)]
