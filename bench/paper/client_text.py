"""Clients whose texts differ: pieces of PyTorch's documentation, a file or a part of one each (datasets/recipe_lstm.py).

Words are not dealt out at random: a client has the words of one subject, so distributions differ.
"""

from collections import Counter
from typing import List, Tuple

import torch

from bench.paper.fedavg import Federation
from bench.train.task import cached
import recipe_lstm  # of datasets/, which task.py puts on the path

LENGTH = recipe_lstm.LENGTH  # words of a sequence
VOCABULARY, WIDTH, UNITS = 1500, 48, 64
MAX_WORDS, MIN_WORDS = 2000, 1000  # words of a client
HELD_OUT = recipe_lstm.HELD_OUT  # one word in so many, at the end of each client's text
JUDGED = 400  # held-out sequences


def pieces(max_words: int, min_words: int) -> List[List[str]]:
    """The words of each file, cut after `most`; what is shorter than `least` is left out."""
    made = []
    for _, strings in recipe_lstm.documentation_files():
        words = [word for text in strings for word in recipe_lstm.words_of(text)]
        made += [words[i : i + max_words] for i in range(0, len(words), max_words)]
    return [piece for piece in made if len(piece) >= min_words]


def numbered(texts: List[List[str]], vocabulary: int) -> List[torch.Tensor]:
    """Words as numbers below `vocabulary`, the most frequent first; 0 is any other word."""
    counts = sorted(Counter(word for text in texts for word in text).items(), key=lambda item: (-item[1], item[0]))
    number = {word: i for i, (word, _) in enumerate(counts[: vocabulary - 1], start=1)}
    return [torch.tensor([number.get(word, 0) for word in text]) for text in texts]


def rows_of(words: torch.Tensor) -> torch.Tensor:
    """[n, LENGTH + 1]; what does not fill a row is left out."""
    return words[: len(words) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)


def client_texts() -> List[torch.Tensor]:
    name = f"clients_{VOCABULARY}_{MAX_WORDS}_{MIN_WORDS}_{torch.__version__}"
    return list(cached(name, lambda: numbered(pieces(MAX_WORDS, MIN_WORDS), VOCABULARY)))


def distance(texts: List[torch.Tensor], vocabulary: int = VOCABULARY) -> float:
    """How far clients are from one another: the total variation distance of a client's words from all words, the mean."""
    counts = torch.stack([torch.bincount(text, minlength=vocabulary).double() for text in texts])
    shares = counts / counts.sum(1, keepdim=True)
    return float((shares - counts.sum(0) / counts.sum()).abs().sum(1).mean() / 2)


def split(texts: List[torch.Tensor]) -> Tuple[List[torch.Tensor], torch.Tensor]:
    """(rows of each client, held-out rows of all)"""
    cuts = [len(text) - len(text) // HELD_OUT for text in texts]
    held_out = torch.cat([rows_of(text[cut:]) for text, cut in zip(texts, cuts)])
    every = max(1, len(held_out) // JUDGED)
    return [rows_of(text[:cut]) for text, cut in zip(texts, cuts)], held_out[::every][:JUDGED]


def federation() -> Federation:
    clients, held_out = split(client_texts())
    return Federation(clients, held_out, lambda: recipe_lstm.WordLSTM(VOCABULARY, WIDTH, UNITS))
