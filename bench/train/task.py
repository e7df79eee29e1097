"""What a run trains: a model, where its batches come from, and how it is judged.

Sizes: a batch is that of one rank, so more ranks see more of the data in a step.
"""

import functools
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Tuple

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "train"
WARM_UP = 20  # steps in which the rate grows to the full one; then it falls on a line to zero

# All that runs here imports this first, from a checkout too: `python -m bench.train…`.
sys.path[:0] = [str(ROOT / "datasets"), str(ROOT / "bindings" / "python")]


@dataclass(frozen=True)
class Task:
    """model() and optimizer(module) make what is trained; batches(generator) yields batches without end;
    loss(module, batch) is the mean of one; score(module, rank, ranks) counts on this rank's share of the held-out
    data: (right, of)."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    batches: Callable[[torch.Generator], Iterator[Any]]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    score: Callable[[nn.Module, int, int], Tuple[float, int]]


@dataclass(frozen=True)
class Setting:
    """build(seed) returns the task; steps are those of a quality run; seconds: of a dense step of 2 ranks on two cores,
    for the estimate before anything was measured."""

    build: Callable[[int], Task]
    title: str
    parameters: int
    metric: str
    batch: str
    optimizer: str
    steps: int
    seconds: float


def rate_factor(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / WARM_UP) * (1 - step / steps)


@functools.cache
def cached(name: str, make: Callable[[], Any]) -> Any:
    """The result of make(), with its tensors, saved in CACHE; the name holds all that it depends on."""
    path = CACHE / f"{name}.pt"
    if not path.exists():
        made = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Ranks may write at the same time; their random numbers are the same.
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as own:
            torch.save(made, own)
        os.replace(own.name, path)
    return torch.load(path)


def count_right(
    module: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, rank: int, ranks: int
) -> Tuple[float, int]:
    """The number of this rank's samples whose largest output is the label."""
    right = 0.0
    mine = slice(rank, None, ranks)
    for x, y in zip(inputs[mine].split(256), labels[mine].split(256)):
        right += (module(x).argmax(-1) == y).sum().item()
    return right, labels[mine].numel()


def settings() -> "dict[str, Setting]":
    from bench.train import byte_gpt, recommender_task, text_tasks, vision_tasks

    return {**vision_tasks.SETTINGS, **recommender_task.SETTINGS, **text_tasks.SETTINGS, **byte_gpt.SETTINGS}
