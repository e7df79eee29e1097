"""Writes weights.md from weights.json, which bench/peers/weights_peers.py measures, once at each level.

    python3 bench/results/weights_page.py
"""

import json
from pathlib import Path
from typing import Any, Dict, List

here = Path(__file__).resolve().parent
Row = Dict[str, Any]
LEVEL = {"scalar": "no vectors", "avx2": "AVX2", "avx512": "AVX-512"}
OURS, RIVAL = "deepreduce", "zipnn"
ASKED = {"encode": 3, "decode": 1}  # times as fast as ZipNN

INTRO = """# Weights without loss: ours beside others

Made by `weights_page.py` from `weights.json`. Repeat: `pip install zipnn openzl zstandard`, `DEEPREDUCE_LIBRARY=build/capi/libdeepreduce.so python bench/peers/weights_peers.py --json bench/results/weights.json`, again with `--level avx2`, then `python3 bench/results/weights_page.py`.

- Ours is `sparsify=none index=all value=planes`, whole frames with their checks by the Python call; [planes](../../codecs/value/planes/SPEC.md) says what it does. Every result was compared with the weights before it was timed.
- GB of weights a second of CPU time (user and system) of one thread, median [first, third quartile] of {rounds} rounds in which all took turns. *User*: without the kernel's time. The packages have new memory for each result, whose pages the kernel clears; ours
  writes to memory that the caller keeps. (openzl has no type for the caller's memory, zipnn overwrites its input: it gets a copy before the clock starts.)
- *Normal* weights have a standard deviation of 0.02; 64 MiB of them. *Recorded*: the GPT of [datasets](../../datasets/README.md#weights), 2.5 MiB.
- {cpu}; {dates}
"""


def cell(row: Row, way: str) -> str:
    if way not in row:
        return ""
    return f"{row[way]['median']:.2f} [{row[way]['low']:.2f}, {row[way]['high']:.2f}]"


def ratio(ours: Row, theirs: Row, way: str) -> float:
    return float(ours[way]["median"] / theirs[way]["median"])


def part(run: Row) -> List[str]:
    lines = [f"## {LEVEL[run['level']]}", ""]
    for name in dict.fromkeys(row["weights"] for row in run["rows"]):
        rows = [row for row in run["rows"] if row["weights"] == name]
        lines += [f"### {name[0].upper()}{name[1:]}", "", "| | share of the bytes | make | make, user | read | read, user |", "|---|---|---|---|---|---|"]
        for row in rows:
            if "missing" in row:
                lines.append(f"| {row['what']} | not installed | | | | |")
                continue
            speeds = [cell(row, way) for way in ("encode", "encode_user", "decode", "decode_user")]
            lines.append("| " + " | ".join([row["what"], f"{100 * row['share']:.2f} %" if row["share"] != 1 else "", *speeds]) + " |")
        by_name = {row["what"]: row for row in rows if "share" in row}
        if RIVAL in by_name:
            ours, theirs = by_name[OURS], by_name[RIVAL]
            sentences = []
            for way, verb in (("encode", "made"), ("decode", "read")):
                times, user = ratio(ours, theirs, way), ratio(ours, theirs, f"{way}_user")
                sentences.append(f"{verb} {times:.1f} times as fast as by {RIVAL} (asked: {ASKED[way]}; {'met' if times >= ASKED[way] else '**missed**'}), {user:.1f} times by the user's time")
            fewest = min((row for row in rows if "share" in row and row["what"] not in (OURS, "memcpy")), key=lambda row: row["share"])
            verdict = "fewest bytes" if ours["share"] <= fewest["share"] else f"**more bytes than {fewest['what']}**"
            lines += ["", f"Ours: {'; '.join(sentences)}; {verdict}."]
        lines.append("")
    return lines


def remade() -> str:
    """weights.md, of what is kept."""
    runs = json.loads((here / "weights.json").read_text())
    ordered = [runs[level] for level in reversed(LEVEL) if level in runs]
    dates = "; ".join(f"{LEVEL[run['level']]}: {run['date']}, commit {run['commit']}, load before {run['load']}" for run in ordered)
    text = INTRO.format(rounds=ordered[0]["rounds"], cpu=ordered[0]["cpu"], dates=dates) + "\n"
    return text + "\n".join(line for run in ordered for line in part(run)).rstrip() + "\n"


if __name__ == "__main__":
    (here / "weights.md").write_text(remade(), "utf-8")
