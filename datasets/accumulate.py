"""Records what a sparsifier sees in training: the gradient plus what the steps before have not sent.

    python datasets/accumulate.py               # makes all bundled files (minutes on one core)
    python datasets/accumulate.py lstm_docs     # those of one model

Trains a model of bench/train on one rank. Each step sends the r largest magnitudes of all gradients joined,
their values exact, and updates the weights by those alone. Recorded is the vector that these are chosen from:

    residual  gradient + residual: what was not sent is added to the next step (Seide et al. 2014; Stich et al. 2018).
              The library's `feedback=residual`: State.residual before the step, plus the gradient.
    momentum  momentum-corrected (Deep Gradient Compression, Lin et al. 2018, sections 3.1 and 3.2):
              u = 0.9 u + g, v = v + u; chosen from v; u and v are cleared where they were sent.
              The optimizer's own momentum is off: SGD's is 0, Adam's first beta is 0.

A file is a numpy archive as capture.py's, but deflated, and its values have 8 significant bits (bf16's precision).
"""

import argparse
import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]  # for bench.train and for capture

from bench.train.task import Task, rate_factor, settings  # noqa: E402
from capture import add_to_manifest, write_npz  # noqa: E402


@dataclass(frozen=True)
class Run:
    """One training: the setting of bench/train, the memory, the share that is sent; steps that are looked at, and those
    of them that are bundled; how many steps there are (None: the setting's)."""

    setting: str
    memory: str
    ratio: float
    steps: Tuple[int, ...]
    bundled: Tuple[int, ...]
    length: Optional[int] = None


# Early, middle and last step. ResNet-20 takes three times the setting's steps: one rank sees few images in those.
# What is bundled is what 12 MB hold.
RECIPES: Dict[str, Tuple[Run, ...]] = {
    "resnet20_digits": (
        Run("resnet20", "residual", 0.01, (20, 225, 450), (20, 225, 450), 450),
        Run("resnet20", "residual", 0.1, (225,), (225,), 450),
        Run("resnet20", "momentum", 0.01, (225, 450), (225,), 450),
    ),
    "lstm_docs": (
        Run("lstm", "residual", 0.01, (20, 250, 500), (20, 250, 500)),
        Run("lstm", "residual", 0.1, (250,), ()),
        Run("lstm", "momentum", 0.01, (250, 500), (250,)),
    ),
    "neumf_names": (
        Run("neumf", "residual", 0.01, (20, 500, 1000), (20, 1000)),
        Run("neumf", "residual", 0.1, (500,), ()),
        Run("neumf", "momentum", 0.01, (500, 1000), (500,)),
    ),
    "transformer_docs": (
        Run("transformer", "residual", 0.01, (20, 200, 400), (20, 400)),
        Run("transformer", "residual", 0.1, (200,), ()),
        Run("transformer", "momentum", 0.01, (200, 400), (200,)),
    ),
}


# ---- memories ------------------------------------------------------------------------------------


class Residual:
    """What was not sent stays."""

    def __init__(self, elements: int) -> None:
        self.rest = np.zeros(elements, np.float32)

    def prepare(self, optimizer: torch.optim.Optimizer) -> None:
        pass

    def see(self, gradient: np.ndarray) -> np.ndarray:
        """What is chosen from: a copy."""
        self.rest += gradient
        return self.rest.copy()

    def clear(self, sent: np.ndarray) -> None:
        self.rest[sent] = 0


class Momentum(Residual):
    """Momentum-corrected, with both vectors cleared where they were sent (the paper's masking of momentum)."""

    FACTOR = np.float32(0.9)

    def __init__(self, elements: int) -> None:
        super().__init__(elements)
        self.velocity = np.zeros(elements, np.float32)

    def prepare(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            if "betas" in group:
                group["betas"] = (0.0, group["betas"][1])
            else:
                group["momentum"] = 0.0

    def see(self, gradient: np.ndarray) -> np.ndarray:
        self.velocity *= self.FACTOR
        self.velocity += gradient
        return super().see(self.velocity)

    def clear(self, sent: np.ndarray) -> None:
        super().clear(sent)
        self.velocity[sent] = 0


MEMORIES = {"residual": Residual, "momentum": Momentum}


# ---- training ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A step before its update. gradient, seen: f32 [d], all parameters joined; sent: ascending positions in them."""

    number: int
    loss: float
    gradient: np.ndarray
    seen: np.ndarray
    sent: np.ndarray
    task: Task
    module: torch.nn.Module


def top_r(x: np.ndarray, ratio: float) -> np.ndarray:
    """Ascending positions of the r largest magnitudes, no zeros; of equal ones the lower (codecs/sparsify/topr)."""
    r = max(1, int(ratio * x.size + 1e-9))
    size = np.abs(x)
    least = np.partition(size, x.size - r)[x.size - r]
    kept = size > least
    kept[np.flatnonzero(size == least)[: r - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept & (size > 0))


def train(run: Run, seed: int) -> Iterator[Step]:
    """As a run of bench/train with one rank: seeds, rates and batches are the same."""
    torch.set_num_threads(1)  # sums depend on it
    torch.use_deterministic_algorithms(True)
    setting = settings()[run.setting]
    length = run.length or setting.steps
    torch.manual_seed(seed)
    task = setting.build(seed)
    module = task.model()
    optimizer = task.optimizer(module)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, length))
    torch.manual_seed(1000 * seed)
    batches = task.batches(torch.Generator().manual_seed(1000 * seed))
    parameters = list(module.parameters())
    memory = MEMORIES[run.memory](sum(p.numel() for p in parameters))
    memory.prepare(optimizer)

    for number in range(1, length + 1):
        loss = task.loss(module, next(batches))
        optimizer.zero_grad()
        loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in parameters]).numpy()
        seen = memory.see(gradient)
        sent = top_r(seen, run.ratio)
        memory.clear(sent)
        yield Step(number, loss.item(), gradient, seen, sent, task, module)

        update = torch.zeros(len(seen))
        update[sent] = torch.from_numpy(seen)[sent]
        for parameter, part in zip(parameters, update.split([p.numel() for p in parameters])):
            parameter.grad.copy_(part.view_as(parameter))
        optimizer.step()
        schedule.step()


@torch.no_grad()
def score(step: Step) -> float:
    """Of the weights at which the gradient was taken, by the setting's metric, on held-out data."""
    step.module.eval()
    right, of = step.task.score(step.module, 0, 1)
    step.module.train()
    return round(right / of, 4)


# ---- files ---------------------------------------------------------------------------------------


def rounded(x: np.ndarray) -> np.ndarray:
    """f32 with 8 significant bits, to the nearest, ties to even: what bf16 holds. x is finite."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def by_parameter(module: torch.nn.Module, joined: np.ndarray) -> Dict[str, np.ndarray]:
    arrays, at = {}, 0
    for name, parameter in module.named_parameters():
        arrays[name] = joined[at : at + parameter.numel()].reshape(tuple(parameter.shape))
        at += parameter.numel()
    return arrays


def record(recipe: str, run: Run, step: Step, out: Path, seed: int) -> Dict[str, Any]:
    """Writes the file of a step and returns its entry of the manifest."""
    arrays = by_parameter(step.module, rounded(step.seen))
    path = out / f"{recipe}_{run.memory}_top{100 * run.ratio:g}_step{step.number:04d}.npz"
    out.mkdir(parents=True, exist_ok=True)
    write_npz(path, arrays, deflate=True)
    return {
        "file": f"{out.name}/{path.name}",
        "model": recipe,
        "memory": run.memory,
        "ratio": run.ratio,
        "step": step.number,
        "seed": seed,
        "parameters": len(step.seen),
        "metrics": {"loss": round(step.loss, 6), "score": score(step)},
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "torch": str(torch.__version__),
        "regenerate": f"python datasets/accumulate.py {recipe} --seed {seed}",
        "tensors": [{"name": name, "shape": list(array.shape)} for name, array in arrays.items()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Train models and record what a sparsifier sees.")
    parser.add_argument("recipe", nargs="?", choices=list(RECIPES), help="default: all")
    parser.add_argument("--out", type=Path, default=HERE / "accumulators", help="folder; the manifest lies above it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="also steps that are not bundled")
    arguments = parser.parse_args()
    for recipe in [arguments.recipe] if arguments.recipe else RECIPES:
        for run in RECIPES[recipe]:
            chosen = run.steps if arguments.all else run.bundled
            for step in train(run, arguments.seed) if chosen else ():
                if step.number in chosen:
                    entry = record(recipe, run, step, arguments.out, arguments.seed)
                    add_to_manifest(arguments.out.parent / "manifest.json", entry)
                    print(entry["file"], entry["metrics"], flush=True)
                if step.number == chosen[-1]:
                    break


if __name__ == "__main__":
    main()
