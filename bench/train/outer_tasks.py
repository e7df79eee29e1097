"""What outer loops train: a GPT over bytes and a perceptron over images, of about 1 M parameters each, and small batches, so that a
training of some hundred steps takes seconds.

Sizes: a batch is that of one worker.
"""

import functools
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Tuple

import torch
from pydoc_data.topics import topics
from torch import nn
from torch.nn import functional as F

from bench.train.byte_gpt import LENGTH, ByteGPT, spread
from bench.train.vision_tasks import fashion, shuffled

TEXT_HELD_OUT = 48  # sequences, spread evenly over the part of the text that is held out
END_BYTES = 24_000  # of the text: what the training to the end has, a fifth of it held out


@dataclass(frozen=True)
class OuterTask:
    """model() is trained with optimizer(module) on batches(generator): (inputs, labels) without end. held_out: the same pair, to judge
    by. tokens: of a batch; images count as one."""

    model: Callable[[], nn.Module]
    rate: float
    batches: Callable[[torch.Generator], Iterator[Tuple[torch.Tensor, torch.Tensor]]]
    held_out: Tuple[torch.Tensor, torch.Tensor]
    tokens: int

    def optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(module.parameters(), lr=self.rate, weight_decay=0.01, fused=True)

    def loss(self, module: nn.Module, batch: Tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        inputs, labels = batch
        return F.cross_entropy(module(inputs).flatten(0, -2), labels.flatten())


def gpt() -> nn.Module:
    """bench/train/byte_gpt.py with two layers of width 192: 1,000,704 parameters in 29 tensors."""
    return ByteGPT(width=192, layers=2, heads=4)


def mlp() -> nn.Module:
    """Images [n, 1, 28, 28] to logits [n, 10]; 995,978 parameters in 8 tensors."""
    sizes = (784, 640, 640, 128)
    hidden = [layer for n, m in zip(sizes, sizes[1:]) for layer in (nn.Linear(n, m), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(128, 10))


def text(size: int, held_out: int, judged: int) -> OuterTask:
    """The first `size` bytes of Python's help texts, of which the last one of `held_out` parts is held out."""
    whole = torch.frombuffer(bytearray("\n".join(topics.values()).encode()[:size]), dtype=torch.uint8).long()
    cut = len(whole) - len(whole) // held_out
    last = spread(whole, cut, judged)

    def batches(generator: torch.Generator) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
        while True:
            begin = torch.randint(cut - LENGTH - 1, (1, 1), generator=generator)
            rows = whole[begin + torch.arange(LENGTH + 1)]
            yield rows[:, :-1], rows[:, 1:]

    return OuterTask(gpt, 2e-3, batches, (last[:, :-1], last[:, 1:]), LENGTH)


def vision() -> OuterTask:
    images, labels, test_images, test_labels = fashion()
    batches: Callable[[torch.Generator], Any] = lambda generator: shuffled(images, labels, 32, generator)
    return OuterTask(mlp, 1e-3, batches, (test_images[:2000], test_labels[:2000]), 32)


# Text, vision, and the text of the training to the end.
TASKS = {
    "text": functools.cache(lambda: text(1 << 30, 20, TEXT_HELD_OUT)),
    "vision": functools.cache(vision),
    "end": functools.cache(lambda: text(END_BYTES, 5, 72)),
}
