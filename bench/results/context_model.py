"""Bits that an exact index code could take if it learned from the steps before: a yardstick, no codec.

Both sides know which elements every earlier step sent, and the elements of this step before the current one. By that each element falls into a
context; a context's probability comes from decayed counts of earlier steps; a support costs -log2 of its probability, element by
element, as an ideal arithmetic coder would pay. `uniform` knows r alone; `near` is the only one that looks at the step itself.
"""

from typing import Dict, Sequence

import numpy as np

ROW_DECAY, RATE_DECAY, COUNT_DECAY = 0.95, 0.98, 0.95  # a step; of a row's and an element's sends, and of contexts' counts
ROW_BINS = 48  # thirds of an octave of a row's rate, relative to r / d, up to 2^8 times
AGES = 2048  # steps; older counts as so old
PRIOR = 2.0  # sends that a context starts with, at the rate r / d
NEAR = 32  # elements before this one, of which those that are sent are counted
CONTEXTS = ("layer", "row", "age", "near", "row + age", "row + rate + age", "row + rate + age + near")


def age_bin(age: np.ndarray) -> np.ndarray:
    """0: in the step before; then in half octaves."""
    return np.minimum(2 * np.log2(np.maximum(age, 1)), 22).astype(np.int64)


class ContextModel:
    """shapes: of the tensors that are joined, in their order. A row is all that shares the first index; a vector is one."""

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        sizes = [int(np.prod(shape)) for shape in shapes]
        rows = [shape[0] if len(shape) > 1 else 1 for shape in shapes]
        self.elements = sum(sizes)
        self.layer = np.repeat(np.arange(len(sizes)), sizes)
        lengths = np.concatenate([np.full(n, size // n) for n, size in zip(rows, sizes)])
        self.row = np.repeat(np.arange(len(lengths)), lengths)
        self.row_layer = np.repeat(np.arange(len(rows)), rows)
        self.row_length = lengths
        self.row_sends = np.zeros(len(lengths))
        self.trials = 0.0  # of an element, decayed as the rows' sends are
        self.age = np.full(self.elements, AGES)  # steps since it was last sent
        self.age_table = age_bin(np.arange(AGES + 1))
        self.rate = np.zeros(self.elements, np.float32)  # decayed sends of an element
        self.counts: Dict[str, np.ndarray] = {}  # [2, contexts]: sends, elements

    def _rows_bin(self, p: float) -> np.ndarray:
        """The rate of each row in earlier steps, drawn to that of its layer if it has few samples."""
        weight = np.bincount(self.row_layer, self.row_length) * self.trials
        layer = (np.bincount(self.row_layer, self.row_sends) + PRIOR) / (weight + PRIOR / p)
        of_layer = layer[self.row_layer]
        rate = (self.row_sends + 0.5) / (self.row_length * self.trials + 0.5 / of_layer)
        return np.clip(3 * np.log2(rate / p) + ROW_BINS // 2, 0, ROW_BINS - 1).astype(np.int64)

    def step(self, support: np.ndarray) -> Dict[str, float]:
        """support: ascending positions that this step sends, at least one. Bits an index by each kind of context; then learns it."""
        r, p = len(support), len(support) / self.elements
        row = self._rows_bin(p)[self.row]
        age = self.age_table[self.age]
        ages = int(self.age_table[-1]) + 1
        rate = (self.rate > 0.3).astype(np.int64) + (self.rate > 1.2) + (self.rate > 2.5) + (self.rate > 5)
        near = np.minimum(self._near(support), 7)
        element = (row * 5 + rate) * ages + age
        number = {
            "layer": self.layer,
            "row": row,
            "age": age,
            "near": near,
            "row + age": row * ages + age,
            "row + rate + age": element,
            "row + rate + age + near": element * 8 + near,
        }
        bits = {"uniform": (log2_factorial(self.elements) - log2_factorial(r) - log2_factorial(self.elements - r)) / r}
        for name in CONTEXTS:
            bits[name] = self._cost(name, number[name], support, p) / r
        self._learn(support)
        return bits

    def _near(self, support: np.ndarray) -> np.ndarray:
        """For each element the number of sent ones among the NEAR before it."""
        before = np.zeros(self.elements + 1, np.int64)
        before[support + 1] = 1
        before = np.cumsum(before)
        return before[:-1] - before[np.maximum(np.arange(self.elements) - NEAR, 0)]

    def _cost(self, name: str, context: np.ndarray, support: np.ndarray, p: float) -> float:
        now = np.stack([np.bincount(context[support], minlength=int(context.max()) + 1), np.bincount(context)]).astype(float)
        known = self.counts.get(name, np.zeros((2, 0)))
        width = max(now.shape[1], known.shape[1])
        now, known = (np.pad(x, ((0, 0), (0, width - x.shape[1]))) for x in (now, known))
        chance = (known[0] + PRIOR) / (known[1] + PRIOR / p)
        sent, seen = now
        self.counts[name] = COUNT_DECAY * known + now
        return float(-(sent @ np.log2(chance) + (seen - sent) @ np.log2(1 - chance)))

    def _learn(self, support: np.ndarray) -> None:
        self.row_sends *= ROW_DECAY
        self.row_sends += np.bincount(self.row[support], minlength=len(self.row_sends))
        self.trials = ROW_DECAY * self.trials + 1
        self.age = np.minimum(self.age + 1, AGES)
        self.age[support] = 1
        self.rate *= np.float32(RATE_DECAY)
        self.rate[support] += 1


def log2_factorial(n: int) -> float:
    """Stirling's series; its error is below 1e-9 from n = 10 on."""
    if n < 10:
        return float(np.log2(np.arange(1, n + 1)).sum())
    return float((n * np.log(n) - n + 0.5 * np.log(2 * np.pi * n) + 1 / (12 * n) - 1 / (360 * n**3)) / np.log(2))
