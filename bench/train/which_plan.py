"""What a plan costs in quality, and when it reaches a loss: a GPT of 13 MB by ten methods. Makes bench/results/which_plan.jsonl.

    python -m bench.train.which_plan              what is not in which_plan.jsonl yet, then the page
    python -m bench.train.which_plan --list       what that is
    python -m bench.train.which_plan --rehearsal --out FILE     a few steps of each, in any tree, to FILE only

Two ranks over gloo, 300 steps of AdamW, three seeds of each method, judged by held-out text every ten steps. Of one seed all methods have the same
first weights and the same batches. Nothing is timed: the page multiplies steps by the times of bench/train/hook_steps.py. A row is added as soon
as it is there; what is there is not run again. Refuses a tree with changes and a commit that main does not have. Exit 1 if a run fails or ranks
end with other weights, 2 for a wrong argument.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence

import torch
import torch.distributed as dist

from bench.train import byte_gpt, train_results
from bench.train.methods import METHODS as KNOWN
from bench.train.one_run import Trainee
from bench.train.rank_pool import RankError, RankPool
from bench.train.task import ROOT

MODEL = "byte_gpt"
OUT = ROOT / "bench" / "results" / "which_plan.jsonl"
METHODS = ["dense", "bits8", "bits4", "lowrank4", "lowrank1", "powersgd4", "top10_log", "top1_log", "blocks", "signs"]
SEEDS = (1, 2, 3)
EVERY = 10  # steps between two judgements
TIMEOUT = 900.0
Row = Dict[str, Any]


class Run(NamedTuple):
    method: str
    seed: int
    steps: int


def runs_left(rows: Sequence[Row], steps: int) -> List[Run]:
    there = {Run(*(row[name] for name in Run._fields)) for row in rows}
    return [run for seed in SEEDS for run in (Run(method, seed, steps) for method in METHODS) if run not in there]


@torch.no_grad()
def held_out_loss(trainee: Trainee, batch: byte_gpt.Batch) -> float:
    """Mean loss of a byte, all ranks together."""
    mine = tuple(part[trainee.rank :: trainee.ranks] for part in batch)
    sums = torch.tensor([float(trainee.task.loss(trainee.module.module, mine)) * mine[1].numel(), mine[1].numel()], dtype=torch.float64)
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])


def train(job: Dict[str, Any]) -> Dict[str, Any]:
    """What a rank does. job: method, seed, steps. Returns curve: [step, held-out loss]; sent: bytes of this rank in a step of
    the second half; hash."""
    trainee, batch = Trainee(MODEL, job["method"], job["seed"], job["steps"]), byte_gpt.held_out()
    curve = [[0, round(held_out_loss(trainee, batch), 5)]]
    before, half = 0.0, job["steps"] // 2
    for step in range(1, job["steps"] + 1):
        trainee.train()
        if step == half:
            before = trainee.sent
        if step % EVERY == 0 or step == job["steps"]:
            curve.append([step, round(held_out_loss(trainee, batch), 5)])
    return {"curve": curve, "sent": round((trainee.sent - before) / (job["steps"] - half)), "hash": trainee.hash()}


def run_all(out: Path, steps: int) -> int:
    """Returns how many runs ended with ranks that differ."""
    failed = 0
    with RankPool(2) as pool:
        while left := runs_left(train_results.read(out), steps):
            where, begin = train_results.context(), time.monotonic()
            train_results.refuse_unrepeatable(out)
            answers = pool.run({**left[0]._asdict(), "kind": "which"}, TIMEOUT)
            same = len({answer["hash"] for answer in answers}) == 1
            first = answers[0]
            row = {**left[0]._asdict(), "plan": KNOWN[left[0].method].plan, "curve": first["curve"], "sent": first["sent"], "identical": same, "hash": first["hash"][:16], **where}
            train_results.add(out, row)
            failed += not same
            print(f"{' '.join(map(str, left[0]))}: loss {first['curve'][-1][1]:.4f}, {first['sent']:,} bytes a step, {time.monotonic() - begin:.0f} s; {len(left) - 1} to go", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = train_results.arguments(parser, OUT)
    steps = 2 * EVERY if given.rehearsal else 300
    if given.list:
        print("\n".join(" ".join(map(str, run)) for run in runs_left(train_results.read(given.out), steps)))
        return 0
    try:
        failed = run_all(given.out, steps)
    except RankError as error:
        print(f"{error}\nWhat is in {given.out} is not run again: start the same command once more", file=sys.stderr)
        return 1
    if given.out.resolve() == OUT:
        subprocess.run([sys.executable, str(OUT.with_name("which_plan_page.py"))], check=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
