"""Momentum correction (Deep Gradient Compression, Lin et al. 2017) against a plain residual, on a small model.

    python -m bench.train.momentum_correction [--seeds N] [--steps N] [--out FILE]

Four ranks in one process, each with batches and a state of its own; their frames are merged, and SGD takes the mean.
Every method has the same batches, initial weights and choice of rates. Rows go to FILE (bench/results/momentum_correction.json),
and the table beside it (momentum_correction.md) is made from them. Deterministic: one thread, seeded. Nothing is timed.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy
import torch
from torch import nn
from torch.nn import functional as F

from bench.train import train_results
from bench.train.task import ROOT, rate_factor
import capture  # of datasets/, which the line above puts on the path

sys.path.insert(0, str(ROOT / "bindings" / "python"))
import deepreduce  # noqa: E402

RANKS, BATCH, MOMENTUM = 4, 16, 0.9
RATES = [0.02, 0.05, 0.1, 0.2, 0.5, 1.0]  # a method counts at its best rate
OUT = ROOT / "bench" / "results" / "momentum_correction.json"


class Method(NamedTuple):
    """momentum: the optimizer's; a memory with momentum needs none there."""

    name: str
    feedback: str
    momentum: float = 0.0


METHODS = [
    Method("residual, no momentum", "residual"),
    Method("residual, momentum on the merged gradient", "residual", MOMENTUM),
    Method("dgc without masking", f"dgc(momentum={MOMENTUM},masking=off)"),
    Method("dgc: momentum correction and masking", f"dgc(momentum={MOMENTUM})"),
]
RATIOS = [0.01, 0.001]
DENSE = Method("dense, momentum", "", MOMENTUM)


def plan_of(method: Method, ratio: float) -> str:
    return f"sparsify=topr(ratio={ratio}) feedback={method.feedback} index=golomb value=raw"


def perceptron() -> nn.Module:
    """Images [n, 64] to logits [n, 10]; 85,002 parameters."""
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def digits(seed: int) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """scikit-learn's digits, as bench/train has them, averaged to 8 x 8: 1,437 to learn from, 360 held out."""
    images, labels, test_images, test_labels = capture.load_digits(seed)
    small = [F.avg_pool2d(images_[:, :1], 4).flatten(1) for images_ in (images, test_images)]
    return small[0], labels, small[1], test_labels


def train(method: Method, ratio: float, rate: float, seed: int, steps: int) -> Tuple[float, Optional[float], float]:
    """(held-out accuracy in %, mean loss of the last tenth of the steps, bytes a rank sends in a step); loss None: diverged"""
    torch.manual_seed(seed)
    images, labels, test_images, test_labels = digits(seed)
    model = perceptron()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=rate, momentum=method.momentum)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, steps))
    draws = [torch.Generator().manual_seed(1000 * seed + rank) for rank in range(RANKS)]
    elements = sum(p.numel() for p in parameters)
    dense = ratio == 1
    plan = plan_of(method, ratio)
    states = [] if dense else [deepreduce.State(numpy.empty(elements, numpy.float32), plan) for _ in range(RANKS)]
    losses, sent = [], 0
    for step in range(steps):
        frames, mean, loss_sum = [], torch.zeros(elements), 0.0
        for rank in range(RANKS):
            chosen = torch.randint(len(labels), (BATCH,), generator=draws[rank])
            error = F.cross_entropy(model(images[chosen]), labels[chosen])
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(error, parameters)])
            loss_sum += error.item() / RANKS
            if dense:
                mean += gradient / RANKS
            else:
                frames.append(deepreduce.encode(gradient.numpy(), plan, state=states[rank], step=step))
        losses.append(loss_sum)
        sent += sum(map(len, frames)) if frames else RANKS * 4 * elements
        if frames:
            mean = torch.from_numpy(deepreduce.merge(frames, weights=[1 / RANKS] * RANKS))
        for p, g in zip(parameters, mean.split([p.numel() for p in parameters])):
            p.grad = g.view_as(p)
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        right = float((model(test_images).argmax(1) == test_labels).float().mean())
    loss = statistics.mean(losses[-max(1, steps // 10) :])
    return 100 * right, loss if math.isfinite(loss) else None, sent / RANKS / steps


def _mean_loss(rows: List[Dict[str, Any]]) -> float:
    """Infinite if one diverged."""
    return math.inf if any(row["loss"] is None for row in rows) else statistics.mean(row["loss"] for row in rows)


def verdict(ratio: float, best: Dict[Tuple[float, str], List[Dict[str, Any]]]) -> str:
    """Whether momentum correction has less loss than each plain residual, by more than the standard error of the difference."""

    def loss_of(method: Method) -> Tuple[float, float]:
        """(mean, squared standard error) of the losses"""
        losses = [math.inf if row["loss"] is None else row["loss"] for row in best[ratio, method.name]]
        return statistics.mean(losses), statistics.variance(losses) / len(losses) if len(losses) > 1 else math.inf

    plain, merged, _, corrected = METHODS
    mine, my_error = loss_of(corrected)
    words = []
    for other in (merged, plain):
        loss, error = loss_of(other)
        clear = abs(mine - loss) > math.sqrt(my_error + error)
        words.append(
            f"{'less' if mine < loss else 'more'} loss than *{other.name}* ({mine:.3f}, {loss:.3f})"
            + ("" if clear else ", within the spread of the seeds")
        )
    return f"- **{100 * ratio:g} % kept**: *{corrected.name}* has {words[0]}, and {words[1]}."


def page(made: Dict[str, Any]) -> str:
    """made: what is kept."""
    rows = made["rows"]
    lines = [
        "# Momentum correction against a plain residual",
        "",
        f"A perceptron of 85,002 parameters on scikit-learn's digits; {RANKS} ranks of {BATCH} images, "
        f"{rows[0]['steps']} steps, {len({row['seed'] for row in rows})} seeds. Top-r of the whole gradient, exact values, "
        f"no warm-up of the ratio. Each method at the rate, of {RATES}, with the least loss. Mean ± standard deviation "
        "over seeds; loss: of the last tenth of the training, on training data. The rate was chosen by that loss, on the same seeds. "
        f"There is no row of dense without momentum. *Within the spread*: the means differ by less than the standard error of their difference; of three seeds a 95 % interval is 2.8 to 4.3 times as wide. Commit {made['commit']} ({made['date']}); nothing is timed.",
        "",
        "| kept | method | rate | accuracy, % | loss | bytes a step |",
        "|---|---|---|---|---|---|",
    ]
    seen: Dict[Tuple[float, str], Dict[float, List[Dict[str, Any]]]] = {}
    for row in rows:
        seen.setdefault((row["ratio"], row["method"]), {}).setdefault(row["rate"], []).append(row)
    for (ratio, method), by_rate in seen.items():
        rate, some = min(by_rate.items(), key=lambda item: _mean_loss(item[1]))
        accuracy, loss = ([row[key] for row in some] for key in ("accuracy", "loss"))
        spread = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in (accuracy, loss)]
        lines.append(
            f"| {100 * ratio:g} % | {method} | {rate:g} | {statistics.mean(accuracy):.1f} ± {spread[0]:.1f} "
            f"| {statistics.mean(loss):.3f} ± {spread[1]:.3f} | {statistics.mean(row['bytes'] for row in some):,.0f} |"
        )
    best = {(ratio, method): min(by_rate.values(), key=_mean_loss) for (ratio, method), by_rate in seen.items()}
    lines += ["", *(verdict(ratio, best) for ratio in sorted({key[0] for key in best if key[0] < 1}, reverse=True))]
    edge = sorted({f"*{method}* at {100 * ratio:g} %" for (ratio, method), by_rate in seen.items() if min(by_rate, key=lambda rate: _mean_loss(by_rate[rate])) == max(by_rate)})
    if edge:
        lines.append(f"- The best rate is the largest that was tried, so a larger one may be better: {', '.join(edge)}.")
    lines.append("- The accuracies do not differ beyond the spread of the seeds.")
    return "\n".join(lines) + "\n\nRepeat: `python3 -m bench.train.momentum_correction`\n"


def remade() -> str:
    """momentum_correction.md, of what is kept."""
    return page(json.loads(OUT.read_text("utf-8")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    train_results.refuse_unrepeatable(given.out)
    torch.set_num_threads(1)
    where, rows = train_results.context(), []
    for ratio in [1.0, *RATIOS]:
        for method in [DENSE] if ratio == 1 else METHODS:
            for rate, seed in itertools.product(RATES, range(given.seeds)):
                accuracy, loss, size = train(method, ratio, rate, seed, given.steps)
                rows.append(
                    {"method": method.name, "plan": plan_of(method, ratio) if ratio < 1 else "dense", "ratio": ratio,
                     "rate": rate, "seed": seed, "steps": given.steps, "accuracy": accuracy, "loss": loss, "bytes": size}
                )  # fmt: skip
                print(f"{ratio:g} {method.name}, rate {rate}, seed {seed}: {accuracy:.1f} %, loss {loss}", flush=True)
    made = {**where, "rows": rows}
    sys.path.insert(0, str(OUT.parent))
    from runs import text_of

    given.out.write_text(text_of(made))
    given.out.with_suffix(".md").write_text(page(made))


if __name__ == "__main__":
    main()
