"""What tables for contexts would save of an index stream: computed of the bundled accumulators, so it is the same on any machine.

    python3 bench/results/index_contexts.py        # writes index_contexts.md

A gap between indices is a symbol (its length in bits, and its next two bits) and raw bits. A table of Huffman codes for the symbols of a
context costs TABLE bits a symbol that occurs; codes are taken as ideal ones. Contexts are what a decoder knows before a gap.
"""

import collections
import json
import pathlib
import sys
from typing import Any, Dict, Hashable, Iterator, List, Tuple

import numpy as np

here = pathlib.Path(__file__).resolve().parent
data = here.parents[1] / "datasets"
RATIO = 0.01
TABLE = 5  # bits of a code's length
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


def rows() -> Iterator["tuple[str, int, Dict[str, Any]]"]:
    for capture in json.loads((data / "manifest.json").read_text("utf-8"))["captures"]:
        name = capture["file"].removesuffix(".npz")
        if not name.startswith("accumulators/") or capture["ratio"] != RATIO:
            continue
        with np.load(data / capture["file"]) as loaded:
            made = contexts([loaded[key] for key in loaded.files])
        gaps = len(made["one table"])
        yield name.removeprefix("accumulators/"), gaps, {way: [bits(coded, table) / gaps for table in (TABLE, 0)] for way, coded in made.items()}


def remade() -> str:
    lines = [f"| {name} | {gaps:,} | " + " | ".join(f"{way[0]:.2f}" for way in of.values()) + " | " + " | ".join(f"{way[1]:.2f}" for way in of.values()) + " |" for name, gaps, of in rows()]
    return f"""# Contexts for gaps between indices

Made by `index_contexts.py` of the bundled accumulators, Top-1 % with all that tie with the last one: bits an index. The question: does a codec pay that looks at what the decoder knows of this step, as boosted trees do ([RESULTS](../../docs/RESULTS.md#a-residual-flattens-the-index-stream))? Codes are ideal ones; tables take {TABLE} bits
a symbol. *One table* is `gap_huffman`. *By the mean gap*: sixteen tables, by the mean of the gaps before (each new one an eighth). *Gaps by their mean*: one table, of gaps in units of that mean. *The row above*: a flag says that the next index stands under one of the row above; else as by the mean gap.

| accumulator | indices | {" | ".join(WAYS)} | {" | ".join("free tables: " + way if i == 0 else way for i, way in enumerate(WAYS))} |
|---|---|{"---|" * 2 * len(WAYS)}
""" + "\n".join(lines) + """

**No codec came of it.** With their tables, sixteen contexts save 2 to 4 % of the index on the LSTM and the transformer, and cost 1 to 4 % on ResNet-20 and two of three recommender steps: a table pays back after some thousand indices. If tables were free, as of tensors with a hundred times as many indices,
they would save 1 to 10 %. One table of gaps in units of their mean does not hold it, for the shapes differ. A flag for the row above saves nothing beside the mean.
And speed: the context of a gap is known when the gap before it is decoded, so each look-up waits for the last one, where `gap_huffman` decodes several symbols a look-up.
"""


if __name__ == "__main__":
    (here / "index_contexts.md").write_text(remade(), "utf-8")
    sys.exit(0)
