"""Rounds of an outer loop, predicted and measured: writes outer_rounds.json and outer_rounds.md beside it.

    bench/results/outer_rounds.py --costs                 what plans cost two ranks; first, on a quiet machine
    bench/results/outer_rounds.py --link 10mbit           measures, as root, about 50 seconds; likewise 100mbit
    bench/results/outer_rounds.py                         predicts what was measured, and writes the table

Exit 77 where links cannot be shaped.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bindings" / "python")]

from bench.train import train_results  # noqa: E402
from bench.train.rank_pool import RankPool  # noqa: E402
from bench.train.shaped_links import RATES, ShapedLinks, Unsupported  # noqa: E402

STORED = HERE / "outer_rounds.json"
RANKS = 2
WIDTHS, BATCH = (784, 736, 736, 10), 64  # 1,127,562 weights
EVERY = (10, 30)
ROUNDS = {"10mbit": 2, "100mbit": 8}
LATENCY = "100us"
HALF, SPARSE = "index=all value=half(type=bf16)", "sparseloco"
PLANS = {None: "dense f32", HALF: HALF, SPARSE: None}  # their names in a prediction; None: the plan's text
TITLES = {None: "None", HALF: "bf16", SPARSE: "`sparseloco`"}
TIMEOUT = 300.0


def sizes() -> str:
    return ",".join(f"{outputs}x{inputs},{outputs}" for inputs, outputs in zip(WIDTHS, WIDTHS[1:]))


def costs() -> Dict[str, Any]:
    job = {"kind": "calibrate", "plans": ["index=all value=raw", HALF, SPARSE], "sizes": [1 << 16, 1 << 18, 1 << 20, 1 << 21], "time": 0.15}
    with RankPool(RANKS) as pool:
        return dict(pool.run(job, TIMEOUT)[0]["profile"])


def measured(link: str) -> Dict[str, Any]:
    job = {"kind": "rounds", "plans": list(PLANS), "every": EVERY, "rounds": ROUNDS[link], "widths": WIDTHS, "batch": BATCH, "seed": 1, "local": 24}
    with ShapedLinks(RANKS, link) as links, links.pool() as pool:
        answers = pool.run(job, TIMEOUT)
        rows: List[Dict[str, Any]] = []
        local: List[float] = []
        for ours in zip(*(answer["rows"] for answer in answers)):
            row = dict(ours[0])
            local += [second for one in ours for second in one["local"]]
            del row["local"]
            # A round is over when its slowest worker is.
            row["seconds"] = [max(seconds) for seconds in zip(*(one["seconds"] for one in ours))]
            rows.append(row)
        return {"rows": rows, "local": statistics.median(local), "rate": round(links.measured), **train_results.context()}


def predicted(stored: Dict[str, Any], link: str, tool: str) -> List[Dict[str, Any]]:
    """The rows of a link, with what is predicted of them: from the stored costs, the rate that a socket got, and the time of a step."""
    found = stored["links"][link]
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder, "profile.json")
        profile.write_text(json.dumps(stored["profile"]), "utf-8")
        words = [tool, "predict", str(profile), "--sizes", sizes(), "--backward", f"{1e3 * found['local']}ms", "--ranks", str(RANKS)]
        words += ["--link", f"{found['rate']}b/s,{LATENCY}", "--every", ",".join(map(str, EVERY)), "--plan", HALF, "--preset", SPARSE, "--format", "json"]
        rows = json.loads(subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout)["rows"]
    known = {(row["candidate"], row["every"]): row for row in rows}
    sparse = next(row["candidate"] for row in rows if row["candidate"] not in ("dense f32", "dense bf16", HALF))
    result = []
    for row in found["rows"]:
        predicted = known[PLANS[row["plan"]] or sparse, row["every"]]
        seconds = statistics.median(row["seconds"])
        figures = {key: predicted[key] for key in ("round_ns", "exchange_ns", "waiting", "sent_bytes")}
        result.append({**row, **figures, "measured": seconds, "error": predicted["round_ns"] / 1e9 / seconds - 1})
    return result


def markdown(stored: Dict[str, Any], by_link: Dict[str, List[Dict[str, Any]]]) -> str:
    lines = ["| link | plan | H | round, measured | predicted | off by | waits, measured | predicted | bytes sent | predicted |", "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for link, rows in by_link.items():
        local = stored["links"][link]["local"]
        for row in rows:
            waits = 1 - row["every"] * local / row["measured"]
            lines.append(
                f"| {RATES[link] / 1e6:.0f} Mbit/s | {TITLES[row['plan']]} | {row['every']} | {row['measured']:.3f} s | {row['round_ns'] / 1e9:.3f} s | "
                f"{100 * row['error']:+.1f} % | {100 * waits:.1f} % | {100 * row['waiting']:.1f} % | {row['sent']:,} | {row['sent_bytes']:,} |"
            )
    return "\n".join(lines)


def page(stored: Dict[str, Any], by_link: Dict[str, List[Dict[str, Any]]]) -> str:
    rows = [row for of_link in by_link.values() for row in of_link]
    errors = [abs(row["error"]) for row in rows]
    steps = ", ".join(f"{1e3 * stored['links'][link]['local']:.1f} ms at {RATES[link] / 1e6:.0f} Mbit/s" for link in by_link)
    sockets = ", ".join(f"{stored['links'][link]['rate'] / 1e6:.1f} of {RATES[link] / 1e6:.0f} Mbit/s" for link in by_link)
    # (The words on what is left are of the stored rows.)
    return f"""# Rounds of an outer loop: predicted and measured

`deepreduce predict --every` against `deepreduce.outer.Outer`: {RANKS} workers over torch.distributed (gloo, each in a network namespace, one thread each, on two cores), a network of
1,127,562 weights in six tensors, AdamW, {BATCH} samples a step. A round is from the end of one to the end of the next on the slower worker; the median of {ROUNDS["100mbit"]} rounds at
100 Mbit/s and {ROUNDS["10mbit"]} at 10 Mbit/s, behind a first one. `waits` is the share of a round beside its H steps.

{markdown(stored, by_link)}

Of {len(rows)} rows the median error is {100 * statistics.median(errors):.1f} %, the largest {100 * max(errors):.1f} %. Out of sample: what plans cost (`deepreduce calibrate`, both workers at once, bundled gradients) and the latency, 100 µs. In sample, from the same run: the rate that one
socket gets ({sockets}; a round sends both ways at once, which is slower), and the time of a step without an exchange ({steps}). No constant is fitted to the rows.
All rounds are predicted too short. At 10 Mbit/s the two directions of a dense round, with their acknowledgements, pass at 6.7 to 9 Mbit/s, by chance of TCP; and in a loop a step takes up to a fifth longer
than alone, on a virtual machine whose steps vary from 8 to 17 ms between runs. The order of the plans is right in all four conditions. The bundled gradients have chunks of zeros, so frames of `sparseloco` are predicted too small; `calibrate --data` with a difference of your weights has your bytes.

{stored["profile"]["machine"]["cpu"]}, {stored["links"][next(iter(by_link))]["date"]}, commit {", ".join(dict.fromkeys(link["commit"] for link in stored["links"].values()))}. Made by `bench/results/outer_rounds.py`.
"""


def remade() -> str:
    """outer_rounds.md, of what is kept."""
    stored = json.loads(STORED.read_text("utf-8"))
    return page(stored, stored["predicted"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/results/outer_rounds.py", description="Rounds of an outer loop, predicted and measured.")
    parser.add_argument("--costs", action="store_true", help="measures what plans cost")
    parser.add_argument("--link", choices=list(ROUNDS), help="measures rounds over that link")
    given = parser.parse_args()
    stored = json.loads(STORED.read_text("utf-8")) if STORED.exists() else {"profile": None, "links": {}}
    if given.costs or given.link:
        train_results.refuse_unrepeatable(STORED)
    try:
        if given.costs:
            stored["profile"] = costs()
        if given.link:
            stored["links"][given.link] = measured(given.link)
    except Unsupported as error:
        print(f"unsupported here: {error}", file=sys.stderr)
        return 77
    if stored["profile"] and stored["links"]:
        tool = os.environ.get("DEEPREDUCE_TOOL") or str(ROOT / "build" / "tool" / "deepreduce")
        stored["predicted"] = {link: predicted(stored, link, tool) for link in ROUNDS if link in stored["links"]}
        print(markdown(stored, stored["predicted"]))
    STORED.write_text(json.dumps(stored, indent=1) + "\n", "utf-8")
    if "predicted" in stored:
        (HERE / "outer_rounds.md").write_text(remade(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
