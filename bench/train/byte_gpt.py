"""The next byte of Python's own help texts (pydoc_data.topics, which every interpreter has): a small GPT."""

from typing import Tuple

from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F

from bench.train.task import Setting, Task, count_right

BATCH, LENGTH = 4, 64  # sequences a rank, bytes
HELD_OUT = 20  # of the text the last one of so many parts
JUDGED = 48  # sequences of it by which a loss is judged
Batch = Tuple[torch.Tensor, torch.Tensor]  # inputs, labels


class ByteGPT(nn.Module):
    """Radford et al. 2019 in small: bytes [n, length] to logits [n, length, 256]; by default 3,307,008 parameters in 53 tensors."""

    def __init__(self, width=256, layers=4, heads=4, length=LENGTH):
        super().__init__()
        self.token = nn.Embedding(256, width)
        self.place = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 256, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, text):
        return self.head(self.layers(self.token(text) + self.place, mask=self.mask, is_causal=True))


def split_text():
    """(the text, where its held-out part begins)"""
    text = torch.frombuffer(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8).long()
    return text, len(text) - len(text) // HELD_OUT


def spread(text: torch.Tensor, begin: int, count: int, length: int = LENGTH) -> torch.Tensor:
    """Sequences [count, length + 1] that lie evenly over the text from `begin` on."""
    return text[begin + torch.linspace(0, len(text) - begin - length - 1, count).long()[:, None] + torch.arange(length + 1)]


def held_out() -> Batch:
    text, cut = split_text()
    rows = spread(text, cut, JUDGED)
    return rows[:, :-1], rows[:, 1:]


def byte_gpt(seed):
    text, cut = split_text()
    judged = text[cut:][: (len(text) - cut) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)

    def batches(generator):
        while True:
            begin = torch.randint(cut - LENGTH - 1, (BATCH, 1), generator=generator)
            rows = text[begin + torch.arange(LENGTH + 1)]
            yield rows[:, :-1], rows[:, 1:]

    return Task(
        model=ByteGPT,
        optimizer=lambda module: torch.optim.AdamW(module.parameters(), lr=1e-3),
        batches=batches,
        loss=lambda module, batch: F.cross_entropy(module(batch[0]).flatten(0, 1), batch[1].flatten()),
        score=lambda module, rank, ranks: count_right(module, judged[:, :-1], judged[:, 1:], rank, ranks),
    )


SETTINGS = {
    "byte_gpt": Setting(
        byte_gpt, "GPT of 3.3 M, bytes", 3_307_008, "next byte", f"{BATCH} × {LENGTH} bytes", "AdamW 1e-3", 300, 0.125
    ),
}
