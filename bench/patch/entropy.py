"""What a patch could cost: entropies of which words change and by how much, given what a receiver knows.

    python -m bench.patch.entropy      # further context on the chains that record.py makes; into bench/results/patch.json

A context is a number for each word, which both sides can compute. In a context with n words of which r change, the index
costs n·log2 n − r·log2 r − (n − r)·log2(n − r) bits, plus half the logarithm of n for r. The distances of its changed
words cost their entropy, plus half a logarithm for each count (the two-part codes of Rissanen 1978). So contexts that are
cut too finely do not look good.
"""

import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "patch.json"
sys.path[:0] = [str(ROOT), str(ROOT / "bench" / "results")]

from bench.patch.recordings import f32_of, load_all  # noqa: E402
from runs import text_of  # noqa: E402

SYMBOLS = 24  # distances −12 … 11 by themselves
Shapes = Sequence[Tuple[str, Tuple[int, ...]]]


def order(words: np.ndarray) -> np.ndarray:
    """Places in the order of a floating-point type's numbers, as signed numbers."""
    bits = 8 * words.itemsize
    x = words.astype(np.int64)
    low = x & ((1 << bits - 1) - 1)
    return np.where(x >> bits - 1, -1 - low, low)


def distances(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Signed, in units in the last place."""
    return order(new) - order(old)


def exponents(words: np.ndarray) -> np.ndarray:
    """A class of magnitude for each word: the exponent of f32 and bf16, 7 bits of a u8."""
    if words.itemsize == 4:
        return (words >> 23 & 0xFF).astype(np.int64)
    return (words >> 7 & 0xFF if words.itemsize == 2 else words & 0x7F).astype(np.int64)


def xlogx(n: np.ndarray) -> np.ndarray:
    n = np.asarray(n, np.float64)
    return n * np.log2(np.maximum(n, 1))


def half_log(n: np.ndarray) -> float:
    return 0.5 * float(np.log2(np.maximum(n, 1)).sum())


def dense(context: np.ndarray) -> np.ndarray:
    """Numbers from 0 without gaps."""
    return np.unique(context, return_inverse=True)[1]


def index_bits(context: np.ndarray, changed: np.ndarray) -> float:
    context = dense(context)
    n = np.bincount(context)
    r = np.bincount(context, changed, len(n))
    return float((xlogx(n) - xlogx(r) - xlogx(n - r)).sum()) + half_log(n)


def symbols(d: np.ndarray) -> Tuple[np.ndarray, int]:
    """A symbol below SYMBOLS + 128 for each distance that is not 0, and the number of separate bits of all of them. A small distance is a
    symbol; the symbol of a large one is its sign and bit length."""
    size = np.abs(d)
    length = np.frexp(size.astype(np.float64))[1]
    small = size <= SYMBOLS // 2
    symbol = np.where(small, d + SYMBOLS // 2, SYMBOLS + 2 + 2 * length + (d < 0))
    return dense(symbol), int((length[~small] - 1).sum())


def value_bits(context: np.ndarray, d: np.ndarray) -> float:
    """The bits of the distances of changed words, by their contexts."""
    if not d.size:
        return 0.0
    symbol, apart = symbols(d)
    count = np.bincount(dense(context) * (symbol.max() + 1) + symbol)
    count = np.pad(count, (0, -len(count) % (symbol.max() + 1))).reshape(-1, symbol.max() + 1)
    return float(xlogx(count.sum(1)).sum() - xlogx(count).sum()) + half_log(count) + apart


def cost(contexts: np.ndarray, old: np.ndarray, new: np.ndarray, of_values: Optional[np.ndarray] = None) -> Dict[str, float]:
    """Bits a changed word: of the index, and of distances."""
    changed = old != new
    r = max(1, int(changed.sum()))
    at = contexts if of_values is None else of_values
    return {
        "index": index_bits(contexts, changed) / r,
        "value": value_bits(at[changed], distances(old[changed], new[changed])) / r,
    }


def bounds(old: np.ndarray, new: np.ndarray) -> Dict[str, Dict[str, float]]:
    """Uniform: one context. By exponent: the base's."""
    none = np.zeros(old.size, np.int64)
    return {"uniform": cost(none, old, new), "exponent": cost(exponents(old), old, new)}


# ---- further context -----------------------------------------------------------------------------------------------


def positions(tensors: Shapes) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tensor, row and column of each word, numbered over the whole model."""
    tensor: List[np.ndarray] = []
    row: List[np.ndarray] = []
    column: List[np.ndarray] = []
    rows = columns = 0
    for i, (_, shape) in enumerate(tensors):
        n, m = (int(shape[0]), int(np.prod(shape[1:]))) if len(shape) > 1 else (1, int(shape[0]) if shape else 1)
        tensor.append(np.full(n * m, i))
        row.append(rows + np.repeat(np.arange(n), m))
        column.append(columns + np.tile(np.arange(m), n))
        rows, columns = rows + n, columns + m
    return np.concatenate(tensor), np.concatenate(row), np.concatenate(column)


def rate_class(group: np.ndarray, changed: np.ndarray, expected: np.ndarray, classes: int = 8) -> np.ndarray:
    """A class of each word by how often the words of its group changed, against what their exponents let expect."""
    seen, needed = np.bincount(group, changed), np.bincount(group, expected)
    ratio = (seen + 1) / (needed + 1)
    return np.digitize(ratio, np.quantile(ratio, np.linspace(0, 1, classes + 1)[1:-1]))[group]


def rms_class(group: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The binary logarithm of the root mean square of a word's group, in halves."""
    mean = np.bincount(group, weights.astype(np.float64) ** 2) / np.maximum(np.bincount(group), 1)
    return np.round(np.log2(np.maximum(mean, 1e-30))).astype(np.int64)[group]


class History:
    """What both sides know of a word from earlier patches of a chain: when it changed last, and in which direction."""

    AGES = np.array([1, 2, 3, 5, 9, 17, 33])  # of which the classes begin

    def __init__(self, words: int) -> None:
        self.age = np.full(words, 255)
        self.sign = np.zeros(words, np.int64)
        self.changes = np.zeros(words, np.int64)

    def see(self, old: np.ndarray, new: np.ndarray) -> None:
        d = distances(old, new)
        self.age = np.where(d != 0, 1, np.minimum(self.age + 1, 255))
        self.sign = np.where(d != 0, np.sign(d), self.sign)
        self.changes += d != 0

    def ages(self) -> np.ndarray:
        return np.digitize(self.age, self.AGES)


def contexts(old: np.ndarray, f32: np.ndarray, tensors: Shapes, history: History) -> Dict[str, Tuple[np.ndarray, np.ndarray]]:
    """name: (contexts of the index, of the distances)."""
    tensor, row, column = positions(tensors)
    exponent = exponents(old)
    rate = np.bincount(exponent, history.changes) / np.maximum(np.bincount(exponent), 1)
    expected = rate[exponent]
    both = lambda *parts: np.ravel_multi_index(tuple(dense(p) for p in parts), tuple(int(dense(p).max()) + 1 for p in parts))
    age, way = history.ages(), history.sign + 1
    rows, columns = rate_class(row, history.changes, expected), rate_class(column, history.changes, expected)
    made = {
        "exponent": both(exponent),
        "exponent, top bit of the mantissa": both(exponent, old >> 6 & 1),
        "exponent, tensor": both(exponent, tensor),
        "exponent, row's size": both(exponent, rms_class(row, f32)),
        "exponent, row's past": both(exponent, rows),
        "exponent, row's and column's past": both(exponent, rows, columns),
        "exponent, age": both(exponent, age),
        "exponent, age, row's past": both(exponent, age, rows),
    }
    named = {name: (context, context) for name, context in made.items()}
    # The direction of the last change predicts the sign of the next: for distances only, and for both.
    named["exponent, age, direction"] = (both(exponent, age, way), both(exponent, age, way))
    named["exponent, age, direction, row's and column's past"] = (both(exponent, age, rows, columns), both(exponent, age, way))
    return named


LAST = 8  # steps of a chain over which is averaged: the history has settled
MIN_STEPS = 16  # steps of a chain


def chains(recording: Any) -> Dict[Tuple[str, float], List[str]]:
    """(regime, rate): base and the snapshots of consecutive steps."""
    found: Dict[Tuple[str, float], List[str]] = {}
    for name, facts in recording.snapshots.items():
        found.setdefault((facts["regime"], facts["rate"]), ["base"]).append(name)
    steps = lambda names: [recording.snapshots[name]["steps"] for name in names[1:]]
    return {key: names for key, names in found.items() if len(names) > MIN_STEPS and steps(names) == list(range(1, len(names)))}


def of_chain(recording: Any, names: Sequence[str]) -> Dict[str, Any]:
    """Mean bits of the last patches, by context."""
    history = History(recording.words["base"].size)
    totals: Dict[str, List[float]] = {}
    changed = []
    for i, (before, after) in enumerate(zip(names, names[1:])):
        old, new = recording.words[before], recording.words[after]
        if i >= len(names) - 1 - LAST:
            changed.append(float(np.mean(old != new)))
            for name, (index, value) in contexts(old, f32_of(old), recording.tensors, history).items():
                found = cost(index, old, new, value)
                totals.setdefault(name, []).append(found["index"] + found["value"])
        history.see(old, new)
    bits = {name: round(sum(of) / len(of), 3) for name, of in totals.items()}
    return {"changed": round(sum(changed) / len(changed), 5), "bits": bits}


def context_rows(recordings: Sequence[Any]) -> List[Dict[str, Any]]:
    rows = []
    for recording in recordings:
        for (regime, rate), names in chains(recording).items():
            rows.append({"data": f"{recording.model}, {regime}, {rate:g}", "steps": len(names) - 1, **of_chain(recording, names)})
    return rows


def main() -> None:
    rows = context_rows(load_all())
    for row in rows:
        print(row["data"], f"{100 * row['changed']:.2f} % changed", row["bits"])
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(text_of({**saved, "contexts": rows}))


if __name__ == "__main__":
    main()
