"""The next word of PyTorch's documentation (datasets/recipe_lstm.py): two LSTMs and a transformer."""

import torch
from torch import nn
from torch.nn import functional as F

from bench.train.task import Setting, Task, cached, count_right
import recipe_lstm  # of datasets/, which the line above puts on the path

BATCH = 16  # sequences a rank
LENGTH = recipe_lstm.LENGTH  # words
LARGE_VOCABULARY = 8000


class WordTransformer(nn.Module):
    """Vaswani et al. 2017, the decoder's half: layers that normalise first, one table for words in and out.

    words [n, LENGTH] to logits [n, LENGTH, vocabulary]; 610,176 parameters.
    """

    def __init__(self, vocabulary=recipe_lstm.VOCABULARY, width=96, layers=2, heads=4):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.zeros(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.embedding.weight, std=0.05)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, words):
        hidden = self.layers(self.embedding(words) + self.place, mask=self.mask, is_causal=True)
        return F.linear(self.norm(hidden), self.embedding.weight)


def text_task(vocabulary, model, rate):
    words = cached(f"words_{vocabulary}_{torch.__version__}", lambda: recipe_lstm.read_words(vocabulary))
    cut = len(words) - len(words) // recipe_lstm.HELD_OUT
    held_out = words[cut:][: (len(words) - cut) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)[:800]

    def batches(generator):
        while True:
            begin = torch.randint(cut - LENGTH - 1, (BATCH, 1), generator=generator)
            rows = words[begin + torch.arange(LENGTH + 1)]
            yield rows[:, :-1], rows[:, 1:]

    return Task(
        model=model,
        optimizer=lambda module: torch.optim.Adam(module.parameters(), lr=rate),
        batches=batches,
        loss=lambda module, batch: F.cross_entropy(module(batch[0]).flatten(0, 1), batch[1].flatten()),
        score=lambda module, rank, ranks: count_right(module, held_out[:, :-1], held_out[:, 1:], rank, ranks),
    )


def lstm(seed):
    return text_task(recipe_lstm.VOCABULARY, recipe_lstm.WordLSTM, 8e-3)


def transformer(seed):
    return text_task(recipe_lstm.VOCABULARY, WordTransformer, 2e-3)


def lstm_large(seed):
    return text_task(LARGE_VOCABULARY, lambda: recipe_lstm.WordLSTM(LARGE_VOCABULARY, width=256, units=512), 2e-3)


_BATCH = f"{BATCH} × {LENGTH} words"
SETTINGS = {
    "lstm": Setting(lstm, "LSTM, PyTorch's documentation", 485_328, "next word", _BATCH, "Adam 8e-3", 500, 0.025),
    "transformer": Setting(
        transformer, "transformer, the same text", 610_176, "next word", _BATCH, "Adam 2e-3", 400, 0.045
    ),
    "lstm_large": Setting(
        lstm_large, "LSTM of 5.8 M, the same text", 5_812_288, "next word", _BATCH, "Adam 2e-3", 150, 0.18
    ),
}
