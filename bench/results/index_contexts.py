"""What tables for contexts would save of an index stream: computed of the bundled accumulators, so it is the same on any machine.

    python3 bench/results/index_contexts.py        # writes index_contexts.md

A gap between indices is a symbol (its length in bits, and its next two bits) and raw bits. A table of Huffman codes for the symbols of a
context costs TABLE bits a symbol that occurs; codes are taken as ideal ones. Contexts are what a decoder knows before a gap. Counts that
adapt send no table: encoder and decoder count what was coded so far.
"""

import collections
import json
import pathlib
import sys
from typing import Dict, Hashable, Iterator, List, NamedTuple, Tuple

import numpy as np

here = pathlib.Path(__file__).resolve().parent
data = here.parents[1] / "datasets"
RATIO = 0.01
TABLE = 5  # bits of a code's length
PRIOR = 32  # of counts that adapt: a context begins with so many symbols, which are as those of all contexts
SYMBOLS = 40  # that there are about: each begins with half a count
WAYS = ("one table", "by the mean gap", "gaps by their mean", "the row above")
Coded = Tuple[Hashable, Hashable, int]  # the context, the symbol, raw bits behind it


def symbol(gap: int, shift: int = 0) -> "tuple[Hashable, int]":
    """Of a gap, or of its size beside 2^shift."""
    length = gap.bit_length()
    if length <= 3:
        return (gap, shift), 0
    return (length - shift, gap >> (length - 3) & 3), length - 3


def bits(coded: List[Coded], table: int) -> float:
    """Bits a gap."""
    counts: Dict[Hashable, collections.Counter[Hashable]] = collections.defaultdict(collections.Counter)
    for context, what, _ in coded:
        counts[context][what] += 1
    total = float(sum(raw for _, _, raw in coded))
    for of in counts.values():
        every = sum(of.values())
        total += sum(n * np.log2(every / n) for n in of.values()) + table * len(of)
    return total


def adaptive_bits(coded: List[Coded]) -> float:
    """Bits a gap, of an arithmetic code by counts that adapt."""
    of_all: Dict[Hashable, int] = collections.defaultdict(int)
    of_pair: Dict[Hashable, int] = collections.defaultdict(int)
    of_context: Dict[Hashable, int] = collections.defaultdict(int)
    total = 0.0
    for before, (context, what, raw) in enumerate(coded):
        likely = (of_all[what] + 0.5) / (before + 0.5 * SYMBOLS)
        total += raw - float(np.log2((of_pair[context, what] + PRIOR * likely) / (of_context[context] + PRIOR)))
        of_all[what] += 1
        of_pair[context, what] += 1
        of_context[context] += 1
    return total


def contexts(arrays: List[np.ndarray], ratio: float = RATIO) -> Dict[str, List[Coded]]:
    """The gaps of the largest elements of tensors that are joined, each way. A row is all that shares a tensor's first index."""
    flat = np.concatenate([np.abs(a.astype(np.float32)).ravel() for a in arrays])
    count = int(len(flat) * ratio)
    sent = flat >= np.partition(flat, -count)[-count]
    at = np.flatnonzero(sent)
    following = np.append(np.minimum.accumulate(np.where(sent, np.arange(len(sent)), 2 * len(sent))[::-1])[::-1], 2 * len(sent))
    width = np.repeat([int(np.prod(a.shape[1:])) if a.ndim > 1 else a.size for a in arrays], [a.size for a in arrays])
    begin = np.repeat(np.cumsum([0, *(a.size for a in arrays)])[:-1], [a.size for a in arrays])
    out: Dict[str, List[Coded]] = {way: [] for way in WAYS}
    mean, last = 1 / ratio, -1
    for place in at:
        gap, first = int(place - last), int(last + 1)
        what, raw = symbol(gap)
        out["one table"].append((0, what, raw))
        of_mean = min(int(2 * np.log2(max(mean, 1))), 15)
        out["by the mean gap"].append((of_mean, what, raw))
        out["gaps by their mean"].append((0, *symbol(gap, round(float(np.log2(max(mean, 1)))))))
        above = first - int(width[first])
        guess = int(following[above]) - above + 1 if above >= begin[first] else 4096
        out["the row above"].append((("hit", min(guess.bit_length(), 12)), guess == gap, 0))
        if guess != gap:
            out["the row above"].append((of_mean, what, raw))
        mean, last = mean * 7 / 8 + gap / 8, int(place)
    return out


class Row(NamedTuple):
    """Bits an index of an accumulator."""

    name: str
    indices: int
    with_tables: Dict[str, float]  # by way
    free_tables: Dict[str, float]
    adaptive: float  # by the mean gap

    def saved(self, bits: float) -> float:
        """Of one table's bits, in percent."""
        return 100 * (1 - bits / self.with_tables["one table"])


def rows() -> Iterator[Row]:
    for capture in json.loads((data / "manifest.json").read_text("utf-8"))["captures"]:
        name = capture["file"].removesuffix(".npz")
        if not name.startswith("accumulators/") or capture["ratio"] != RATIO:
            continue
        with np.load(data / capture["file"]) as loaded:
            made = contexts([loaded[key] for key in loaded.files])
        gaps = len(made["one table"])
        with_tables, free_tables = ({way: bits(coded, table) / gaps for way, coded in made.items()} for table in (TABLE, 0))
        yield Row(name.removeprefix("accumulators/"), gaps, with_tables, free_tables, adaptive_bits(made["by the mean gap"]) / gaps)


def saves(shares: List[float]) -> str:
    low, high = round(min(shares)), round(max(shares))
    return f"save {low} to {high} %" if low >= 0 else f"cost up to {-low} % or save up to {high} %"


def remade() -> str:
    found = list(rows())
    lines = [
        f"| {row.name} | {row.indices:,} | " + " | ".join(f"{x:.2f}" for x in (*row.with_tables.values(), row.adaptive, *row.free_tables.values())) + " |"
        for row in found
    ]
    text_models = [row for row in found if row.name.startswith(("lstm", "transformer"))]
    others = [row for row in found if row not in text_models]
    tables = lambda some: saves([row.saved(row.with_tables["by the mean gap"]) for row in some])
    counts = lambda some: saves([row.saved(row.adaptive) for row in some])
    half = sum(row.saved(row.adaptive) >= 4 for row in found)
    return f"""# Contexts for gaps between indices

Made by `index_contexts.py` of the bundled accumulators, Top-1 % with all that tie with the last one: bits an index. The question: does a codec pay that looks at what the decoder knows of this step, as boosted trees do, which save 8 to 16 % ([RESULTS](../../docs/RESULTS.md#a-residual-flattens-the-index-stream))? Asked: half of that, 4 to 8 %, at 0.3 G indices a second; 15 % of the index are 10 to 12 % of a frame of `auto(error=0.07)`. Codes are ideal ones; tables take {TABLE} bits
a symbol. *One table* is `gap_huffman`. *By the mean gap*: sixteen tables, by the mean of the gaps before (each new one an eighth). *Gaps by their mean*: one table, of gaps in units of that mean. *The row above*: a flag says that the next index stands under one of the row above; else as by the mean gap.
*Adaptive*: by the mean gap, no tables; an arithmetic code by counts of what was coded so far, which begin as those of all contexts ({PRIOR} symbols of them).

| accumulator | indices | {" | ".join(WAYS)} | adaptive | {" | ".join("free tables: " + way if i == 0 else way for i, way in enumerate(WAYS))} |
|---|---|---|{"---|" * 2 * len(WAYS)}
""" + "\n".join(lines) + f"""

**No codec came of it.** Beside one table, sixteen {tables(text_models)} of the index on the LSTM and the transformer, and {tables(others)} on ResNet-20 and the recommender: a table pays back after some thousand indices. If tables were free, as of tensors with a hundred times as many indices,
they would {saves([100 * (1 - row.free_tables["by the mean gap"] / row.free_tables["one table"]) for row in found])}. Counts that adapt {counts(text_models)} on the former, and {counts(others)} on the latter: at least 4 % on {half} of the {len(found)} accumulators. One table of gaps in units of their mean does not hold it, for the shapes differ. A flag for the row above saves nothing beside the mean.
And speed: the context of a gap is known when the gap before it is decoded, so each look-up waits for the last one, where `gap_huffman` decodes several symbols a look-up. An arithmetic code also divides, and counts, for each symbol. Neither was written or timed: the one that could be fast saves too little, and the one that saves enough on some accumulators is not fast.
Not tried: what earlier steps sent (for tables of counts: [accumulated.md](accumulated.md)), for which both sides would have to keep a state; the magnitudes of what earlier steps sent; the place in the row; tables for each layer. And `gap_huffman` is not the shortest code everywhere: on the momentum accumulators of both text models `golomb(adaptive=1)` is 0.2 to 0.3 bits shorter ([accumulated.md](accumulated.md)), so beside the best code less is saved there.
"""


if __name__ == "__main__":
    (here / "index_contexts.md").write_text(remade(), "utf-8")
    sys.exit(0)
