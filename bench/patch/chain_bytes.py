"""Bytes of the patches of a chain, with and without a history of earlier ones.

    python -m bench.patch.chain_bytes      # of the chains that record.py makes; into bench/results/patch.json

Whole files of deepreduce.patch.encode, each applied by a receiver that has its own history. All weights are one tensor.
"""

import json
from typing import Any, Dict, List, Sequence

import numpy as np

from bench.patch.entropy import RESULTS, chains
from bench.patch.recordings import load_all

import deepreduce  # (recordings puts it on the path)
from runs import text_of  # noqa: E402 (entropy puts it there)

LAST = 8  # of the patches: the history has settled


def sizes(words: Sequence[np.ndarray], goes_on: bool) -> List[int]:
    """The sizes of the patches between neighbours, which a receiver applies."""
    here = words[0].copy()
    sent, received = (deepreduce.patch.History(here) if goes_on else None for _ in range(2))
    made = []
    for old, new in zip(words, words[1:]):
        data = deepreduce.patch.encode(old, new, history=sent)
        deepreduce.patch.apply(here, data, history=received)
        if not np.array_equal(here, new):
            raise AssertionError("a patch makes other weights than were sent")
        made.append(len(data))
    return made


def row_of(data: str, words: Sequence[np.ndarray]) -> Dict[str, Any]:
    changed = [int(np.count_nonzero(old != new)) for old, new in zip(words, words[1:])]
    row: Dict[str, Any] = {"data": data, "patches": len(changed), "changed": round(sum(changed) / len(changed) / words[0].size, 5)}
    for name, goes_on in (("patch", False), ("patch_chain", True)):
        found = sizes(words, goes_on)
        row[name] = {"bytes": sum(found), "last": sum(found[-LAST:])}
        row[name]["bits"] = round(8 * sum(found) / sum(changed), 3)
        row[name]["last_bits"] = round(8 * sum(found[-LAST:]) / sum(changed[-LAST:]), 3)
    return row


def main() -> None:
    rows = []
    for recording in load_all():
        for (regime, rate), names in chains(recording).items():
            rows.append(row_of(f"{recording.model}, {regime}, {rate:g}", [recording.words[name] for name in names]))
            plain, chain = rows[-1]["patch"], rows[-1]["patch_chain"]
            print(rows[-1]["data"], plain, chain, f"{100 * (1 - chain['bytes'] / plain['bytes']):.1f} % fewer")
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(text_of({**saved, "chains": rows}))


if __name__ == "__main__":
    main()
