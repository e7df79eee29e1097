"""A training over links whose rate changes on the way: what a rank does, and the traces, by step.

The rank itself shapes what it sends, in its own namespace, so all plans see the same rate at the same step.
"""

import random
import statistics
import subprocess
from typing import Any, Callable, Dict, List, Tuple

import torch.distributed as dist

from bench.train import methods
from bench.train.control_ladder import LADDER
from bench.train.methods import Method
from bench.train.one_run import PARTS, Trainee, curve

FAST, SLOW = 1000, 100  # Mbit/s
Phases = List[Tuple[int, int]]  # (from this step on, Mbit/s)


def step(steps: int) -> Phases:
    return [(0, FAST), (steps // 3, SLOW), (2 * steps // 3, FAST)]


def sawtooth(steps: int) -> Phases:
    levels = [100, 200, 400, 600, 800, 1000]
    return [(tooth * steps // 3 + i * steps // 18, rate) for tooth in range(3) for i, rate in enumerate(levels)]


def burst(steps: int) -> Phases:
    return [
        change
        for k in range(4)
        for change in ((k * steps // 4, FAST), (k * steps // 4 + steps // 5, SLOW))
    ]


def neighbour(steps: int) -> Phases:
    """Another user takes nothing, half or nine tenths of the link."""
    draw, phases, now, rate = random.Random(1), [], 0, FAST
    while now < steps:
        phases.append((now, rate))
        rate = draw.choice([other for other in (FAST, FAST // 2, SLOW) if other != rate])
        now += max(5, round(draw.expovariate(12 / steps)))
    return phases


def constant(rate: int) -> Callable[[int], Phases]:
    return lambda steps: [(0, rate)]


CHANGING: Dict[str, Callable[[int], Phases]] = {
    "step": step, "sawtooth": sawtooth, "burst": burst, "neighbour": neighbour,
}  # fmt: skip
VARYING = f"delay {SLOW}"  # over DelayedLinks
TRACES = {**CHANGING, **{f"constant {rate}": constant(rate) for rate in (FAST, SLOW)}, VARYING: constant(SLOW)}  # Mbit/s


def shape(rate: int) -> None:
    """What this namespace sends from now on: Mbit/s."""
    burst_of = "32kb" if rate <= 200 else "128kb"
    words = ["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", f"{rate}mbit", "burst", burst_of, "latency", "50ms"]
    subprocess.run(words, check=True, capture_output=True)


def one_run(job: Dict[str, Any]) -> Dict[str, Any]:
    """Trains job["steps"] steps by a rung of LADDER or, with job["control"], by all of them; phases may be empty."""
    name, steps, phases = job["name"], job["steps"], dict(job["phases"])
    method = methods.METHODS["local"] if name == "local" else Method(name, "ours", LADDER.get(name))
    if job["control"]:
        method = Method(name, "ours", control=job["control"], ladder=tuple(LADDER.values()))
    elif name == "dense":  # as the densest rung does it
        method = Method(name, "ours", control="fit(target_ms=1000000)", ladder=(None,))
    methods.METHODS["of this run"] = method
    trainee = Trainee(job["model"], "of this run", job["seed"], steps)
    losses, seconds, waits, sent, rungs = [], [], [], [], []
    for number in range(steps):
        if number in phases:
            dist.barrier()
            shape(phases[number])
            dist.barrier()
        control = trainee.hook.control if trainee.hook is not None else None
        rungs.append(control.rung if control and job["control"] else -1)
        loss, took = trainee.train()
        losses.append(loss)
        seconds.append(took)
        last = trainee.hook.stats().last if trainee.hook is not None else None
        waits.append(last.wait if last else 0.0)
        sent.append(last.sent if last else 0)
    right, of = trainee.score()
    parts = trainee.hook.stats().total if trainee.hook is not None else None
    return {
        "hash": trainee.hash(), "right": right, "of": of, "loss": curve(losses), "seconds": seconds, "waits": waits, "sent": sent,
        "rungs": rungs, "parts": {part: getattr(parts, part) for part in PARTS} if parts else {},
    }  # fmt: skip


def row_of(job: Dict[str, Any], reports: List[Dict[str, Any]], target_ms: float) -> Dict[str, Any]:
    """A step is over when its slowest rank is done; its wait is that of the last rank, as in control."""
    steps = [1e3 * max(seconds) for seconds in zip(*(t["seconds"] for t in reports))]
    waits = [1e3 * min(seconds) for seconds in zip(*(t["waits"] for t in reports))]
    rungs = reports[0]["rungs"]
    first = min(4, len(steps) - 1)  # memory is set up
    return {
        "kind": "control", **{key: job[key] for key in ("model", "trace", "name", "control", "seed", "steps")}, "target_ms": target_ms,
        "step_ms": round(statistics.fmean(steps[first:]), 2), "median_ms": round(statistics.median(steps[first:]), 2),
        "total_s": round(sum(steps) / 1e3, 2), "wait_ms": round(statistics.fmean(waits[first:]), 2),
        "met": round(statistics.fmean(wait <= 1.2 * target_ms for wait in waits[first:]), 4),
        "bytes": round(statistics.fmean(reports[0]["sent"])), "score": round(sum(t["right"] for t in reports) / sum(t["of"] for t in reports), 5),
        "loss": reports[0]["loss"][-1][1], "identical": job["name"] == "local" or len({t["hash"] for t in reports}) == 1 and all(t["rungs"] == rungs for t in reports),
        "changes": [[i, rung] for i, rung in enumerate(rungs) if i == 0 or rung != rungs[i - 1]], "parts": reports[0]["parts"],
    }  # fmt: skip

