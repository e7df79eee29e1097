"""Which rows the proof has: what is trained or exchanged, by what plan, among how many ranks, over which link."""

from dataclasses import dataclass
from typing import Any, List, Optional, Sequence

import numpy

from bench.train.methods import METHODS
from bench.train.shaped_links import RATES
from bench.train.task import settings

LINKS = ("unshaped", "1gbit", "100mbit")
RANKS = (2, 4)
MODELS = ("lstm_large", "resnet20", "transformer")
# Steps of DDP: torch's own ways and the hook of the library. `local` exchanges nothing: it is measured, but no row.
HOOKED = ("local", "dense", "bf16", "top1", "top1_log", "top1_auto", "top10_log", "p0_qsgd", "book")
BOOK = "book"  # of a condition, as `deepreduce plan` makes it of the condition's profile and model
DENSE = {"dense": "dense f32", "bf16": "dense bf16"}  # their names in a prediction
# Exchanges over MPI, with nothing beside them.
ELEMENTS = (262_144, 4_194_304)
EXCHANGED = ("top1", "top10_log")
SCHEDULES = ("gather", "owner", "owner(parts=4)", "ring")
WARM_UP, STEPS = 4, 3  # steps: before the first round, in a round
EVICTED = 64  # MiB: models' activations, and bench/comm's candidates in turn, leave nothing in the last cache
SIZES = tuple(1 << power for power in range(10, 23, 2))
# Messages; over 100 Mbit/s larger ones take seconds and show nothing new.
BYTES = {link: tuple(1 << power for power in range(10, 23 if link == "100mbit" else 25, 2)) for link in LINKS}


@dataclass(frozen=True)
class Condition:
    """One measurement. kind: "steps" of a model, or "exchanges" of tensors."""

    kind: str
    what: str  # the model, or the elements
    ranks: int
    link: str


def conditions(
    models: Optional[Sequence[str]], ranks: Optional[Sequence[int]], links: Optional[Sequence[str]], kinds: Sequence[str]
) -> List[Condition]:
    """The conditions that the filters leave; those of one link are together, because it is calibrated first."""
    return [
        Condition(kind, what, n, link)
        for link in links or LINKS
        for n in ranks or RANKS
        for kind, all_of in (("steps", models or MODELS), ("exchanges", tuple(map(str, ELEMENTS))))
        if kind in kinds
        for what in all_of
    ]


def local_plan(method: str) -> str:
    plan = METHODS[method].plan
    assert plan is not None
    return plan


def calibrated_plans() -> List[str]:
    """The plans of all rows, and the one of tensors that are sent exactly beside them."""
    methods = dict.fromkeys([m for m in HOOKED if m != BOOK and METHODS[m].plan] + list(EXCHANGED))
    return [*(local_plan(m) for m in methods), "index=all value=raw"]


def exchange_plans() -> List[str]:
    return [f"{local_plan(m)} exchange={schedule}" for m in EXCHANGED for schedule in SCHEDULES]


def exchanged_gradient(elements: int, rank: int) -> "numpy.ndarray[Any, Any]":
    """[elements] f32, distributed as bench/comm's are (mpi_bench.hpp): costs and frames depend on it."""
    draw = numpy.random.default_rng(1 + rank)
    sign, width = draw.uniform(-1, 1, elements), draw.uniform(0, 1, elements)
    return numpy.asarray(1e-3 * sign / (1e-3 + width), numpy.float32)


def rounds_of(condition: Condition, quick: bool) -> int:
    slow = condition.link == "100mbit"
    if condition.kind == "steps":
        return 2 if quick else 4 if slow else 8
    return 5 if quick else 12 if slow else 30


def seconds_of(condition: Condition, quick: bool) -> float:
    """About, on a quiet machine of two cores, without what calibrating_seconds has."""
    n, rate, rounds = condition.ranks, RATES[condition.link], rounds_of(condition, quick)
    if condition.kind == "exchanges":
        dense = 4e-9 * int(condition.what) * n + (wire_seconds(int(condition.what), n, rate))
        return 5 + (rounds + 2) * 3 * dense
    setting = settings()[condition.what]
    steps = WARM_UP + rounds * STEPS
    compute = len(HOOKED) * steps * setting.seconds * n / 2
    return 15 + compute + 1.6 * steps * wire_seconds(setting.parameters, n, rate)


def calibrating_seconds(link: str, quick: bool) -> float:
    """The seconds of calibrating one transport and number of ranks."""
    return 5 if quick else 80 if link == "100mbit" else 35


def wire_seconds(elements: int, ranks: int, rate: float) -> float:
    """The seconds of a dense all-reduce on the wire."""
    return 32 * elements * 2 * (ranks - 1) / ranks / rate if rate else 0.0
