#!/usr/bin/env python3
"""Two builds of kernel_bench, pipeline_bench or call_bench, old and new in turn: how many times the old one's time the new one takes.

    alternate.py OLD NEW [--times N] [--rounds N] [--json FILE] [--most N] [FILTER…]

OLD, NEW: programs. Each FILTER is measured N times (5) by both, one after the other, the first changing; none: all that there is. A row's time is the median over its
runs, its spread (largest - smallest) / median of the old one's. Machines have phases of minutes in which everything is slower: FILTERs that take seconds fall into one.
"""
import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

TIMES = ("seconds", "median_ns", "ns", "median")


def measure(program, rounds, filters, path):
    subprocess.run([program, "--json", path, "--rounds", str(rounds), *filters], check=True, stdout=subprocess.DEVNULL)
    for row in json.loads(Path(path).read_text(encoding="utf-8"))["rows"]:
        name = " | ".join(str(value) for value in row.values() if isinstance(value, str))
        time = next((row[key] for key in TIMES if row.get(key)), None)
        if time is not None and "memcpy" not in name:
            yield name, time


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("filters", nargs="*")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--most", type=int, default=20)
    parser.add_argument("--json")
    a = parser.parse_args()
    times = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in a.filters or [None]:
            for turn in range(a.times):
                for side in (0, 1) if turn % 2 == 0 else (1, 0):
                    for name, time in measure((a.old, a.new)[side], a.rounds, [part] if part else [], f"{folder}/rows.json"):
                        times.setdefault(name, ([], []))[side].append(time)
    rows = []
    for name, (old, new) in times.items():
        if old and new:
            middle = statistics.median(old)
            rows.append({"row": name, "old": middle, "new": statistics.median(new), "ratio": statistics.median(new) / middle, "spread": (max(old) - min(old)) / middle})
    rows.sort(key=lambda row: -row["ratio"])
    print(f"{len(rows)} rows, median of new / old {statistics.median(row['ratio'] for row in rows):.3f}")
    for row in rows[:a.most]:
        print(f"{row['ratio']:6.3f}  {row['row']}  {row['old']:.4g} -> {row['new']:.4g}, spread {100 * row['spread']:.0f} %")
    if a.json:
        Path(a.json).write_text(json.dumps({"times": a.times, "rounds": a.rounds, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
