"""Seven methods, each at its own rate, trained to the end: the CNN on Fashion-MNIST, 2 ranks over gloo. Makes bench/results/tuned.jsonl.

    python -m bench.train.tuned_rates              what is not in tuned.jsonl yet, then the page
    python -m bench.train.tuned_rates --list       what that is, and how long it takes
    python -m bench.train.tuned_rates --rehearsal --out FILE     all of it with a few steps, in any tree, to FILE only

The rate of each method is RATES times the task's, chosen by one epoch of a seed that no table has, which learns from 55,000 images and is judged by
the 5,000 others. If the best is at an end of RATES, one more is tried beyond it. Then three seeds of each method at its best rate, judged by the
10,000 test images: of one seed all methods have the same first weights and the same batches. A row is added as soon as it is there; what is there is
not run again. Refuses a tree with changes and a commit that main does not have. Exit 1 if a run fails or ranks end with other weights, 2 for a wrong argument.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence

from bench.train import train_results
from bench.train.rank_pool import RankError, RankPool
from bench.train.task import ROOT

OUT = ROOT / "bench" / "results" / "tuned.jsonl"
METHODS = ["dense", "bf16", "top1_log", "top1_warm", "blocks", "dgc", "powersgd1"]
RATES = [0.5, 1.0, 2.0]
SEEDS, TUNING_SEED = (1, 2, 3), 100
TIMEOUT = 900.0
STEP_MS = 25.0  # of a method that has no row yet, with its share of judging
Row = Dict[str, Any]


class Sizes(NamedTuple):
    """Steps of an epoch of all images, and of one without those that judge a rate; epochs of a training; images that judge."""

    epoch: int
    tuning_epoch: int
    epochs: int
    judge: int


FULL = Sizes(469, 430, 10, 10_000)
REHEARSAL = Sizes(8, 8, 2, 256)


class Run(NamedTuple):
    """rate: times the task's."""

    kind: str
    method: str
    rate: float
    seed: int
    steps: int


def tuned(rows: Sequence[Row], method: str) -> Dict[float, float]:
    """{rate: held-out loss after one epoch}, infinite where it diverged"""
    mine = [row for row in rows if row["kind"] == "tuning" and row["method"] == method]
    return {row["rate"]: float("inf") if "diverged" in row else row["curve"][-1][1] for row in mine}


def untried(found: Dict[float, float]) -> List[float]:
    """The rates that are left to try: those of RATES; then, if the best is at an end, one beyond it, once."""
    left = [rate for rate in RATES if rate not in found]
    if left or len(found) > len(RATES):
        return left
    best = best_rate(found)
    return [best / 2] if best == min(found) else [2 * best] if best == max(found) else []


def best_rate(found: Dict[float, float]) -> float:
    return min(found, key=lambda rate: (found[rate], rate))


def runs_left(rows: Sequence[Row], sizes: Sizes) -> List[Run]:
    """In their order. The rates of the final ones are known once no tuning is left; until then 1."""
    steps, found = sizes.epoch * sizes.epochs, {method: tuned(rows, method) for method in METHODS}
    tuning = [Run("tuning", m, rate, TUNING_SEED, sizes.tuning_epoch) for m in METHODS for rate in untried(found[m])]
    final = [Run("final", m, 1.0 if tuning else best_rate(found[m]), seed, steps) for seed in SEEDS for m in METHODS]
    there = {Run(*(row[name] for name in Run._fields)) for row in rows}
    return tuning + [run for run in final if run not in there]


def seconds_of(run: Run, rows: Sequence[Row]) -> float:
    known = [row["seconds"] / row["steps"] for row in rows if row["method"] == run.method and row["kind"] == run.kind]
    return run.steps * (sum(known) / len(known) if known else STEP_MS / 1e3)


def context() -> Row:
    model = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    return {**train_results.context(), "machine": model}


def trained(pool: RankPool, run: Run, sizes: Sizes) -> Row:
    """The row of a run. sent: bytes a step, of each rank. step_ms: wall clock, of the training alone; cpu_ms: of its busiest rank."""
    where, begin, tuning = context(), time.monotonic(), run.kind == "tuning"
    epoch = sizes.tuning_epoch if tuning else sizes.epoch
    answers = pool.run({**run._asdict(), "kind": "tuned", "epoch": epoch, "tuning": tuning, "judge": sizes.judge}, TIMEOUT)
    first, steps = answers[0], answers[0].get("diverged", run.steps)
    residuals = [answer["residual"] for answer in answers if "residual" in answer]
    return {
        **run._asdict(), "epoch": epoch, "curve": first["curve"], "sent": [round(answer["sent"] / steps) for answer in answers],
        "identical": len({answer["hash"] for answer in answers}) == 1, "hash": first["hash"][:16],
        **({"diverged": first["diverged"]} if "diverged" in first else {}),
        **({"residual": round(sum(residuals) / len(residuals), 4)} if residuals else {}),
        "seconds": round(time.monotonic() - begin, 1), "step_ms": round(1e3 * max(a["seconds"] for a in answers) / steps, 2),
        "cpu_ms": round(1e3 * max(a["cpu"] for a in answers) / steps, 2), **where,
    }  # fmt: skip


def run_all(out: Path, sizes: Sizes) -> int:
    """Returns how many runs ended with ranks that differ."""
    failed = 0
    with RankPool(2) as pool:
        while left := runs_left(rows := train_results.read(out), sizes):
            train_results.refuse_unrepeatable(out)
            row = trained(pool, left[0], sizes)
            train_results.add(out, row)
            failed += not row["identical"] and "diverged" not in row
            result = f"diverged at step {row['diverged']}" if "diverged" in row else "loss {1:.4f}, accuracy {2:.4f}".format(*row["curve"][-1])
            minutes = sum(seconds_of(run, [*rows, row]) for run in left[1:]) / 60
            print(f"{' '.join(map(str, left[0]))}: {result}, {row['sent'][0]:,} bytes a step, {row['step_ms']} ms ({row['cpu_ms']} of CPU); {minutes:.0f} minutes to go", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=FULL.epochs, help="of the final runs, the same for all; fewer where there is no time for 10, which the page states")
    given = train_results.arguments(parser, OUT)
    sizes = REHEARSAL if given.rehearsal else FULL._replace(epochs=given.epochs)
    if given.list:
        rows = train_results.read(given.out)
        left = runs_left(rows, sizes)
        print("\n".join([*(" ".join(map(str, run)) for run in left), f"{len(left)} runs, {sum(seconds_of(run, rows) for run in left) / 60:.0f} minutes"]))
        return 0
    try:
        failed = run_all(given.out, sizes)
    except RankError as error:
        print(f"{error}\nWhat is in {given.out} is not run again: start the same command once more", file=sys.stderr)
        return 1
    subprocess.run([sys.executable, str(OUT.with_name("tuned.py")), str(given.out)], check=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
