"""Step times of DistributedDataParallel with torch's hooks and this library's, on a GPT of 13 MB, over links that tbf shapes.

    python -m bench.train.hook_steps [--quick] [--ranks N…] [--link NAME…] [--method NAME…] [--out FILE] [--table]

As root, on a quiet machine, half an hour (--quick: two ranks, unshaped, five methods, a minute; to FILE only). All methods take turns in one
process a rank, in each round another one first; a number is the median of at least 12 steps, of the slowest rank each. A row
is added for each number of ranks, link and method, and replaces the one that FILE has; then the table beside FILE is
rewritten. --table: only that.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence

from bench.train import step_times, train_plan, train_results
from bench.train.methods import METHODS
from bench.train.rank_pool import RankError
from bench.train.shaped_links import Unsupported, WrongRate
from bench.train.task import ROOT, settings

MODEL = "byte_gpt"
TORCH = ["dense", "dense_parts", "bf16", "powersgd1", "powersgd2", "powersgd4"]
OURS = ["lowrank1", "lowrank2", "lowrank4", "halves_plain", "halves", "bits8", "bits4", "signs", "top10_log", "top1_log", "blocks"]
UNITS = [f"{name}_{size}mb" for name in ("top10", "bits8") for size in (25, 8, 4, 2, 1)]
QUICK = ["dense", "bf16", "halves_plain", "lowrank4", "top10_log"]
OUT = ROOT / "bench" / "results" / "hook_steps.json"
LINKS = ("unshaped", "1gbit", "100mbit")
TITLES = {"unshaped": "unshaped", "1gbit": "1 Gbit/s", "100mbit": "100 Mbit/s"}
ROUNDS, STEPS = 8, 2


def read(path: Path) -> List[Dict[str, Any]]:
    return list(json.loads(path.read_text("utf-8"))) if path.exists() else []


def write(path: Path, rows: Sequence[Dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    path.write_text(f"[\n{lines}\n]\n", "utf-8")


def place(row: Dict[str, Any]) -> "tuple[int, str, str]":
    return row["ranks"], row["link"], row["method"]


def added(
    rows: Sequence[Dict[str, Any]], more: Sequence[Dict[str, Any]], methods: Sequence[str] = (*TORCH, *OURS, *UNITS)
) -> List[Dict[str, Any]]:
    """Rows in the order of the table; those of `more` in place of older ones."""
    found = {place(row): row for row in (*rows, *more)}
    order = {name: i for i, name in enumerate(methods)}
    return sorted(found.values(), key=lambda row: (row["ranks"], LINKS.index(row["link"]), order.get(row["method"], 99)))


def cell(row: Any, best: float) -> str:
    if row is None:
        return "–"
    text = f"{row['median']:.0f} [{row['p10']:.0f}, {row['p90']:.0f}]"
    return f"**{text}**" if row["median"] <= 1.03 * best else text


def table(rows: Sequence[Dict[str, Any]], methods: Sequence[str]) -> str:
    """For each number of ranks: bytes, and times by link; those within 3 % of the link's fastest are bold."""
    by_place = {place(row): row for row in rows if row["method"] in methods}
    text = ""
    for ranks in sorted({key[0] for key in by_place}):
        links = [link for link in LINKS if any(key[:2] == (ranks, link) for key in by_place)]
        best = {link: min(row["median"] for key, row in by_place.items() if key[:2] == (ranks, link)) for link in links}
        text += f"\n### {ranks} ranks\n\n| | sent, kB | sent / frames | {' | '.join(TITLES[link] for link in links)} |\n|---|---:|---:|{'---:|' * len(links)}\n"
        for method in methods:
            found = [by_place.get((ranks, link, method)) for link in links]
            row = next((candidate for candidate in found if candidate), None)
            if row is None:
                continue
            frame = row.get("frame", 0) / row["steps"] * (ranks - 1)
            # (What travels by all-reduce has no slots.)
            slots = "–" if not frame or method in ("halves_plain", "halves", "lowrank1", "lowrank2", "lowrank4") else f"{row['sent'] / frame:.2f}"
            cells = " | ".join(cell(candidate, best[link]) for candidate, link in zip(found, links))
            text += f"| {METHODS[method].title} | {row['sent'] / 1e3:,.0f} | {slots} | {cells} |\n"
    return text


def page(rows: Sequence[Dict[str, Any]]) -> str:
    setting = settings()[MODEL]
    where = ", ".join(sorted({f"{row['commit']} ({row['date']})" for row in rows}))
    rates = {row["link"]: row["rate"] for row in rows if row["rate"]}
    measured = "; ".join(f"{TITLES[link]}: a socket gets {rates[link] / 1e6:.0f} Mbit/s" for link in LINKS if link in rates)
    return f"""# Step times of hooks

`python -m bench.train.hook_steps` writes this page and `hook_steps.json`. {setting.title} ({setting.parameters:,} parameters, {setting.batch} a rank, {setting.optimizer}), gloo, ranks of one
thread each on one machine, each in a network namespace. {measured}. Commit: {where}.

Milliseconds a step: median [10 %, 90 %] of at least 12 steps of the slowest rank; all methods take turns in one process. Sent: what a rank sends in a step, after the first ones;
beside it, of methods that gather frames, the bytes of slots over those of the frames in them. Bold: within 3 % of the fastest of its column.

## Hooks
{table(rows, [*TORCH, *OURS])}
## Units

Of the same plan with units and DDP's buckets of one size (`frame_bytes`, `bucket_cap_mb`): small ones begin to travel during backward.
{table(rows, UNITS)}"""


def remade() -> str:
    """hook_steps.md, of what is kept."""
    return page(read(OUT))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ranks", type=int, nargs="+", default=[])
    parser.add_argument("--link", nargs="+", choices=LINKS, default=[])
    parser.add_argument("--method", nargs="+", default=[])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    wrong = train_plan.check_methods(given.method or None)
    if wrong or (given.quick and not given.out):
        print(wrong or "--quick wants --out FILE: its rows are no results", file=sys.stderr)
        return 2
    out = given.out or OUT
    methods = given.method or (QUICK if given.quick else [*TORCH, *OURS, *UNITS])
    if not given.table:
        train_results.refuse_unrepeatable(out)
    failed = 0
    print(step_times.HEADER, flush=True)
    for ranks in [] if given.table else given.ranks or ([2] if given.quick else [2, 4]):
        for link in given.link or (["unshaped"] if given.quick else LINKS):
            try:
                rounds = 2 if given.quick else ROUNDS
                rows = step_times.measure_one(MODEL, ranks, link, methods, rounds, STEPS)
            except Unsupported as error:
                print(f"unsupported here: {error}", file=sys.stderr)
                return 77
            except (RankError, WrongRate) as error:
                failed += 1
                print(f"{ranks} ranks, {link}: {error}", file=sys.stderr, flush=True)
                continue
            failed += sum(not row["identical"] for row in rows)
            write(out, added(read(out), rows))
    rows = read(out)
    if rows:
        out.with_suffix(".md").write_text(page(rows), "utf-8")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
