"""One GPU, one training: a GPT of 14 M parameters over Python's sources, by seven ways to send its gradients. Makes bench/results/device_gpt.jsonl.

    python -m bench.train.device_gpt              what is not in device_gpt.jsonl yet; 20 minutes of an H200 are meant to be enough
    python -m bench.train.device_gpt --list       what that is
    python -m bench.train.device_gpt --rehearsal --out FILE     a small model for a few steps, on the CPU too, to FILE only
    python -m bench.train.device_gpt --verdicts   of what is there

Two ranks take turns on the one GPU: each has batches and a residual of its own, and gradients travel as they would between two, encoded and merged
on the GPU: bytes and losses are those of two ranks, and nothing is timed. A plan that sparsifies takes the whole model as one tensor, where a hook
takes units of 4 MiB. The rate of each method is the best of RATES times 6e-4, by a tenth of the steps with a seed that no other run has; then three
seeds. Of one seed all methods have the same first weights and batches.
Refuses a tree with changes and a commit that main does not have.

Claims, before any run, of methods that send at most 2 % of dense's bytes, paired by seed:
1. Held-out loss ends at most 1 % above dense's, and by no more than two standard errors.
2. Top-1 % with a warm-up of the ratio ends with less loss than without (95 %).
3. A check: 16 bits and dense do not differ (95 %).
"""

import argparse
import math
import platform
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import torch
from torch import nn
from torch.nn import functional as F

from bench.train import train_results
from bench.train.byte_gpt import ByteGPT, spread
from bench.train.methods import TOP
from bench.train.task import ROOT, rate_factor
from bench.train.tuned_rates import RATES, SEEDS, TUNING_SEED, Run, best_rate, tuned

import deepreduce  # behind bench.train.task, which puts it on the path

OUT = ROOT / "bench" / "results" / "device_gpt.jsonl"
RANKS, BASE_RATE = 2, 6e-4  # (the rate of a Run is times the latter)
TOP_LOG = "feedback=residual index=golomb value=log_quant"
WARM_UP = (0.25, 0.0625, 0.015625)  # ratios, each for a thirtieth of the steps (Lin et al. 2017), then 0.01
# None: all as f32; "bf16": torch's own rounding. A list is a warm-up.
METHODS: Dict[str, Any] = {
    "dense": None,
    "bf16": "bf16",
    "bits4": "index=all value=uniform_quant(bits=4) feedback=residual",
    "top1": TOP.format(ratio=0.01) + TOP_LOG,
    "top1_warm": [TOP.format(ratio=ratio) + TOP_LOG for ratio in (*WARM_UP, 0.01)],
    "top01": TOP.format(ratio=0.001) + TOP_LOG,
    "blocks": "sparsify=blocks(ratio=0.08,block=16) feedback=residual index=golomb value=lloyd(price=0.35)",
}
EXACT, SMALL = "index=all value=raw feedback=residual", 1000  # elements
Row = Dict[str, Any]


class Sizes(NamedTuple):
    width: int
    layers: int
    heads: int
    length: int  # bytes of a sequence
    batch: int  # sequences of a rank
    steps: int
    judge: int  # held-out sequences


FULL = Sizes(384, 8, 6, 256, 32, 2000, 512)
REHEARSAL = Sizes(32, 2, 2, 32, 4, 30, 16)


def sources(sizes: Sizes, device: torch.device) -> Tuple[torch.Tensor, torch.Tensor]:
    """(bytes to learn from, held-out sequences) of the files of Python's standard library, in the order of their names."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = torch.frombuffer(bytearray(b"\n".join(file.read_bytes() for file in files)), dtype=torch.uint8)
    cut = len(text) - len(text) // 20
    return text[:cut].to(device), spread(text, cut, sizes.judge, sizes.length).long().to(device)


class Wire:
    """What the ranks' gradients become: their mean, through frames. gradients: a flat tensor of each rank."""

    def __init__(self, method: str, shapes: Sequence[torch.Size], device: torch.device, steps: int) -> None:
        self.method, self.steps, self.bytes = METHODS[method], steps, 0.0
        sizes = [shape.numel() for shape in shapes]
        self.gradients = [torch.zeros(sum(sizes), device=device) for _ in range(RANKS)]
        self.mean = torch.zeros(sum(sizes), device=device)
        self.plans: List[str] = [] if self.method in (None, "bf16") else self.method if isinstance(self.method, list) else [self.method]
        if self.plans:
            # As the hooks: a plan that sparsifies takes tensors as one, one that quantises has levels for each, and sends small ones exactly.
            joined = "sparsify" in self.plans[0]
            self.parts = [[flat] if joined else list(flat.split(sizes)) for flat in (*self.gradients, self.mean)]
            plans_of = lambda plan: plan if joined else [plan if size >= SMALL else EXACT for size in sizes]
            self.batches = [deepreduce.Batch(self.parts[0], plans_of(plan), frames=RANKS) for plan in self.plans]
            self.states = [deepreduce.State.of(parts, plans_of(self.plans[-1])) for parts in self.parts[:RANKS]]

    def reduce(self, step: int) -> torch.Tensor:
        """The mean; `bytes` are those of rank 0's frame."""
        if not self.plans:
            sent = [flat.bfloat16() if self.method == "bf16" else flat for flat in self.gradients]
            self.bytes = sent[0].numel() * sent[0].element_size()
            torch.mean(torch.stack([flat.float() for flat in sent]), 0, out=self.mean)
            return self.mean
        batch = self.batches[min(len(self.batches) - 1, step * 30 // self.steps)]
        on_gpu = self.mean.is_cuda
        frames: List[Any] = []
        for rank in range(RANKS):
            frame = batch.frame() if on_gpu else bytearray(batch.bound)
            made = batch.encode(self.parts[rank], frame, step=step, private_seed=rank, state=self.states[rank])
            frames.append(frame if on_gpu else made)
        sizes = [frame.size() if on_gpu else len(frame) for frame in frames]  # (each raises the errors of its encode)
        self.bytes = sizes[0]
        batch.merge(frames, self.parts[RANKS], [1 / RANKS] * RANKS, add=False)
        batch.check()
        return self.mean


@torch.no_grad()
def judged(model: nn.Module, held_out: torch.Tensor) -> float:
    """Mean loss of a held-out byte."""
    losses = [F.cross_entropy(model(rows[:, :-1]).float().flatten(0, 1), rows[:, 1:].flatten(), reduction="sum") for rows in held_out.split(64)]
    return float(sum(losses)) / held_out[:, 1:].numel()


def batches(text: torch.Tensor, sizes: Sizes, seed: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        begin = torch.randint(len(text) - sizes.length - 1, (sizes.batch, 1), generator=generator)
        yield text[(begin + torch.arange(sizes.length + 1)).to(text.device)].long()


def train(run: Run, sizes: Sizes, device: torch.device) -> Row:
    """curve: [step, held-out loss]; sent: bytes of a frame, the mean of the second half; diverged: where, or nothing."""
    torch.manual_seed(run.seed)
    model = ByteGPT(sizes.width, sizes.layers, sizes.heads, sizes.length).to(device)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=BASE_RATE * run.rate, weight_decay=0.1, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, run.steps))
    wire = Wire(run.method, [p.shape for p in parameters], device, run.steps)
    text, held_out = sources(sizes, device)
    streams = [batches(text, sizes, 1000 * run.seed + rank) for rank in range(RANKS)]
    for p, mean in zip(parameters, wire.mean.split([p.numel() for p in parameters])):
        p.grad = mean.view_as(p)
    row: Row = {**run._asdict(), "parameters": sum(p.numel() for p in parameters), "curve": [[0, judged(model, held_out)]]}
    sent, begin = 0.0, time.perf_counter()
    for step in range(run.steps):
        for flat, stream in zip(wire.gradients, streams):
            rows = next(stream)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
            torch.cat([g.float().flatten() for g in torch.autograd.grad(loss, parameters)], out=flat)
        try:
            wire.reduce(step)
        except deepreduce.ArgumentError:  # a gradient that is not finite
            row["diverged"] = step
            break
        optimizer.step()
        schedule.step()
        sent += wire.bytes if step >= run.steps // 2 else 0
        if (step + 1) % max(1, run.steps // 40) == 0 or step + 1 == run.steps:
            row["curve"].append([step + 1, round(judged(model, held_out), 6)])
            if not math.isfinite(row["curve"][-1][1]):
                row["diverged"] = step
                break
    return {**row, "sent": round(sent / (run.steps - run.steps // 2)), "seconds": round(time.perf_counter() - begin, 1)}


def runs_left(rows: Sequence[Row], sizes: Sizes) -> List[Run]:
    """All tunings come first: only then the rates are known."""
    there = {Run(*(row[name] for name in Run._fields)) for row in rows}
    tuning = [Run("tuning", m, rate, TUNING_SEED, max(2, sizes.steps // 10)) for m in METHODS for rate in RATES]
    if left := [run for run in tuning if run not in there]:
        return left
    best = {m: best_rate(tuned(rows, m)) for m in METHODS}
    return [run for seed in SEEDS for run in (Run("final", m, best[m], seed, sizes.steps) for m in METHODS) if run not in there]


def verdicts(rows: Sequence[Row]) -> List[str]:
    sys.path.insert(0, str(OUT.parent))
    from paired import paired

    last = {m: {row["seed"]: row["curve"][-1][1] for row in rows if row["kind"] == "final" and row["method"] == m and "diverged" not in row} for m in METHODS}
    sent = {m: max((row["sent"] for row in rows if row["kind"] == "final" and row["method"] == m), default=0) for m in METHODS}
    diverged = sorted({row["method"] for row in rows if row["kind"] == "final" and "diverged" in row})
    missing = [m for m, losses in last.items() if len(losses) < len(SEEDS) and m not in diverged]
    if missing or "dense" in diverged:
        return [f"not all seeds of {', '.join(missing or ['dense'])}: no verdict"]
    dense, lines = sum(last["dense"].values()) / len(SEEDS), [f"{m}: diverged: did not hold" for m in diverged]
    for m in [m for m in METHODS if m not in diverged]:
        share, apart = sent[m] / sent["dense"], paired(last[m], last["dense"])
        claim = "" if not 0 < share <= 0.02 else ": held" if apart.mean <= min(0.01 * dense, 2 * apart.error) else ": did not hold"
        lines.append(f"{m}: {100 * share:.2f} % of dense's bytes, loss {sum(last[m].values()) / len(SEEDS):.4f}, {apart.mean:+.4f} [{apart.low:+.4f}, {apart.high:+.4f}]{claim}")
    if not {"top1", "top1_warm"} & set(diverged):
        warm = paired(last["top1_warm"], last["top1"])
        lines.append(f"warm-up: {warm.mean:+.4f} [{warm.low:+.4f}, {warm.high:+.4f}]: {'held' if warm.high < 0 else 'did not hold'}")
    if "bf16" not in diverged:
        lines.append(f"check: {'did not hold' if paired(last['bf16'], last['dense']).is_clear else 'held'}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verdicts", action="store_true")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begins no run after so many")
    given = train_results.arguments(parser, OUT)
    sizes = REHEARSAL if given.rehearsal else FULL
    if given.list or given.verdicts:
        rows = train_results.read(given.out)
        print("\n".join(verdicts(rows) if given.verdicts else [" ".join(map(str, run)) for run in runs_left(rows, sizes)]))
        return 0
    if not given.rehearsal and not torch.cuda.is_available():
        print("no GPU here: a step of this model takes seconds on a CPU (--rehearsal --out FILE)", file=sys.stderr)
        return 77
    device, begin = torch.device("cuda" if torch.cuda.is_available() else "cpu"), time.monotonic()
    # The text is that of this Python; bits are those of this device and torch.
    where = {"device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU", "torch": torch.__version__, "python": platform.python_version()}
    if any(row[name] != value for row in train_results.read(given.out) for name, value in where.items()):
        print(f"{given.out} has rows of another device, torch or Python than {', '.join(where.values())}: give --out another file", file=sys.stderr)
        return 2
    while (left := runs_left(train_results.read(given.out), sizes)) and time.monotonic() - begin < given.seconds:
        train_results.refuse_unrepeatable(given.out)
        now = train_results.context()
        row = {**train(left[0], sizes, device), **where, **now}
        train_results.add(given.out, row)
        result = f"diverged at step {row['diverged']}" if "diverged" in row else f"loss {row['curve'][-1][1]:.4f}"
        print(f"{' '.join(map(str, left[0]))}: {result}, {row['sent']:,} bytes a frame, {row['seconds']} s", flush=True)
    print("\n".join(verdicts(train_results.read(given.out))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
