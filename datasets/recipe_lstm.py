"""A small language model: an LSTM that predicts the next word of PyTorch's own documentation.

The shape is that of the StackOverflow benchmark of federated learning (Reddi et al. 2021): embedding, LSTM, a dense
layer back to the embedding's width, and the vocabulary; with a smaller vocabulary and fewer units.
"""

import ast
import re
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

FOLDERS = ["distributions", "nn", "optim"]  # of the package torch
FILES = ["_tensor_docs.py", "_torch_docs.py"]
VOCABULARY = 4000  # with one for what is none of them
BATCH = 32  # sequences
LENGTH = 24  # words
HELD_OUT = 10  # one word in so many, at the end of the text


class WordLSTM(nn.Module):
    def __init__(self, vocabulary=VOCABULARY, width=48, units=128):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, units, batch_first=True)
        self.dense = nn.Linear(units, width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, words):
        hidden, _ = self.lstm(self.embedding(words))
        return self.out(self.dense(hidden))


def documentation_files():
    """(file's path in the package, its strings of several words) of the chosen files, in the order of files and lines."""
    root = Path(torch.__file__).parent
    paths = [root / name for name in FILES]
    paths += sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    for path in paths:
        strings = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        ordered = sorted(strings, key=lambda n: (n.lineno, n.col_offset))
        yield str(path.relative_to(root)), [n.value for n in ordered if n.value.count(" ") >= 8]


def documentation():
    """All of these strings."""
    for _, strings in documentation_files():
        yield from strings


def words_of(text):
    """Words and marks, in lower case."""
    return re.findall(r"[a-z]+|[^a-z\s]", text.lower())


def read_words(vocabulary=VOCABULARY):
    """The text as numbers below `vocabulary`, the most frequent word first; 0 is any other word."""
    words = [word for text in documentation() for word in words_of(text)]
    counts = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
    number = {word: i for i, (word, _) in enumerate(counts[: vocabulary - 1], start=1)}
    return torch.tensor([number.get(word, 0) for word in words])


@torch.no_grad()
def accuracy(model, words):
    """Share of words in the held-out text that were predicted rightly."""
    rows = words[: len(words) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)[:400]
    return round((model(rows[:, :-1]).argmax(-1) == rows[:, 1:]).double().mean().item(), 4)


def train(steps, seed, start):
    """start(model, name, steps) -> Capture. Records an early and the last step."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)

    words = read_words()
    cut = len(words) - len(words) // HELD_OUT
    learned, held_out = words[:cut], words[cut:]
    model = WordLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    capture = start(model, "lstm_docs", [20, steps])
    print(f"{len(words)} words, {(words == 0).double().mean().item():.3f} of them out of the vocabulary")
    for step in range(1, steps + 1):
        begin = torch.randint(cut - LENGTH - 1, (BATCH, 1))
        rows = learned[begin + torch.arange(LENGTH + 1)]
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if step in capture.steps:
            metrics = {"loss": round(loss.item(), 6), "test_accuracy": accuracy(model, held_out)}
            print(f"step {step}: {metrics} -> {capture.record(step, **metrics)}", flush=True)
        optimizer.step()
    print(f"after {steps} steps: accuracy {accuracy(model, held_out)}")
