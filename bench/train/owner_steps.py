"""Dense gradients of 8 and 4 bits by `exchange=owner` and by gather, beside torch's hooks: DDP steps of 4 and 8 ranks on a GPT of 13 MB.

    python -m bench.train.owner_steps [--ranks N…] [--link NAME…] [--method NAME…] [--rounds N] [--out FILE] [--table]

As root, on a quiet machine, ten minutes. All methods take turns in one process a rank; the first one changes from round to round. Before
the timing, the means of two steps are compared with dense ones. If a method is beyond its bound in ERROR_LIMITS, or if the parameters of
ranks differ in a bit, the run ends with status 1. Whether frames went by owners or by gather is derived from the bytes that the rank's
network device sent, not from the plan.
A row replaces the one of its ranks, link and method in FILE; then the table beside FILE is rewritten. --table: only that.
"""

import argparse
import math
import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from bench.train import hook_steps, step_times, train_plan, train_results
from bench.train.methods import METHODS
from bench.train.rank_pool import RankError
from bench.train.shaped_links import Unsupported, WrongRate
from bench.train.task import ROOT, settings

# Relative L2 of two steps' means against dense ones: rounding; bf16's 8 bits; twice what gathers of 8 and of 4 bits have, of owners, who
# round the mean once more, three times; of PowerSGD only that it is nearer than nothing, which has 1.
ERROR_LIMITS = {"dense": 1e-5, "bf16": 0.01, "powersgd4": 1.0, "bits8": 0.034, "bits8_owner": 0.05, "bits4": 0.25, "bits4_owner": 0.375}
METHOD_NAMES = list(ERROR_LIMITS)
OUT = ROOT / "bench" / "results" / "owner_steps.json"
ROUNDS, STEPS, CHECKED = 6, 2, 2


def travelled(wire: float, gathered: float, ranks: int) -> str:
    """Whether `wire` bytes are nearer to a gather, which sends `gathered` bytes (n - 1 times the frame), or to owners (2 (n - 1) / n times)."""
    return "owner" if math.log(wire / gathered) < math.log(2 / ranks) / 2 else "gather"


def ways(rows: Sequence[Dict[str, Any]]) -> Dict[str, str]:
    """method: how its frames travelled; of rows of one run. Without the row of the same plan that gathers there is nothing to compare with."""
    by_method = {row["method"]: row for row in rows}
    found = {}
    for name, row in by_method.items():
        gathering = by_method.get(name.removesuffix("_owner"))
        if METHODS[name].kind == "ours" and gathering:
            found[name] = travelled(row["wire"], gathering["wire"], row["ranks"])
    return found


def faults(rows: Sequence[Dict[str, Any]]) -> List[str]:
    """What makes rows of one run no results."""
    faults_ = [f"{row['method']}: the ranks' parameters differ" for row in rows if not row["identical"]]
    for row in rows:
        limit = ERROR_LIMITS.get(row["method"], 1.0)
        if not row["error"] <= limit:
            faults_.append(f"{row['method']}: the mean is off by {row['error']:.3g} of the dense one, more than {limit}")
    return faults_


def table(rows: Sequence[Dict[str, Any]], ranks: int) -> str:
    mine = [row for row in rows if row["ranks"] == ranks]
    links = [link for link in hook_steps.LINKS if any(row["link"] == link for row in mine)]
    best = {link: min(row["median"] for row in mine if row["link"] == link) for link in links}
    text = f"\n## {ranks} ranks\n\n| | travelled | sent, kB | on the wire, kB | error | {' | '.join(hook_steps.TITLES[link] for link in links)} |\n"
    text += f"|---|---|---:|---:|---:|{'---:|' * len(links)}\n"
    for method in sorted({row["method"] for row in mine}, key=METHOD_NAMES.index):
        by_link = {row["link"]: row for row in mine if row["method"] == method}
        row = next(iter(by_link.values()))
        cells = " | ".join(hook_steps.cell(by_link.get(link), best[link]) for link in links)
        wire = f"{row['wire'] / 1e3:,.0f}"
        text += f"| {METHODS[method].title} | {row.get('travelled', 'all-reduce')} | {row['sent'] / 1e3:,.0f} | {wire} | {row['error']:.2g} | {cells} |\n"
    return text


def page(rows: Sequence[Dict[str, Any]]) -> str:
    setting = settings()[hook_steps.MODEL]
    where = ", ".join(sorted({f"{row['commit']} ({row['date']})" for row in rows}))
    cores = "; ".join(sorted({f"{row['cores']} cores" for row in rows}))
    rates: Dict[str, List[float]] = {}
    for row in rows:
        if row["rate"]:
            rates.setdefault(row["link"], []).append(row["rate"] / 1e6)
    measured = "; ".join(f"{hook_steps.TITLES[link]}: {min(rates[link]):.0f} to {max(rates[link]):.0f} Mbit/s" for link in hook_steps.LINKS if link in rates)
    ignored = sorted({row["method"] for row in rows if row["method"].endswith("_owner") and row["travelled"] == "gather"})
    note = f"\n`exchange=owner` was ignored: the frames of {' and '.join(METHODS[m].title for m in ignored)} were gathered.\n" if ignored else ""
    return f"""# By owners and by gather

`python -m bench.train.owner_steps` writes this page and `owner_steps.json`. {setting.title} ({setting.parameters:,} parameters, {setting.batch} a rank, {setting.optimizer}), gloo.
**All ranks share one machine of {cores}**, a process of one thread and a network namespace each: what a step computes, encodes and merges queues for these cores, so times of 8 ranks are not times of 8 hosts, and
what links cost is seen on the slow ones. What a socket between two ranks gets: {measured}. Commit: {where}.

The plan is `index=all value=uniform_quant(bits=8) feedback=residual`, 4 bits alike, with `exchange=owner` and without. Milliseconds a step: median [10 %, 90 %] of at least {min(row["steps"] for row in rows)} steps
of the slowest rank; all methods take turns in one run. Sent: what the schedule has a rank send in a step. On the wire: what its network device counted, with headers and acknowledgements; *travelled* is read off it.
Error: of two steps' means against dense ones, relative L2. The ranks' parameters are bit-identical in every row. Bold: within 3 % of the fastest of its column.
{note}{"".join(table(rows, ranks) for ranks in sorted({row["ranks"] for row in rows}))}"""


def measured(ranks: int, link: str, methods: Sequence[str], rounds: Optional[int]) -> List[Dict[str, Any]]:
    rounds = rounds or (ROUNDS * 2 // 3 if link == "100mbit" else ROUNDS)
    rows = step_times.measure_one(hook_steps.MODEL, ranks, link, methods, rounds, STEPS, CHECKED)
    found = ways(rows)
    for row in rows:
        row["cores"] = os.cpu_count()
        if row["method"] in found:
            row["travelled"] = found[row["method"]]
        print(f"  {row['method']}: {row['wire']:,} bytes on the wire, {row.get('travelled', 'all-reduce')}, error {row['error']:.3g}", flush=True)
    return rows


def remade() -> str:
    """owner_steps.md, of what is kept."""
    return page(hook_steps.read(OUT))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--link", nargs="+", choices=hook_steps.LINKS, default=hook_steps.LINKS)
    parser.add_argument("--method", nargs="+", default=METHOD_NAMES)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    wrong = train_plan.unknown(given.method, METHOD_NAMES, "method")
    if wrong:
        print(wrong, file=sys.stderr)
        return 2
    if not given.table:
        train_results.refuse_unrepeatable(given.out)
    failed = 0
    print(step_times.HEADER, flush=True)
    for ranks in [] if given.table else given.ranks:
        for link in given.link:
            try:
                rows = measured(ranks, link, given.method, given.rounds)
            except Unsupported as error:
                print(f"unsupported here: {error}", file=sys.stderr)
                return 77
            except (RankError, WrongRate) as error:
                failed += 1
                print(f"{ranks} ranks, {link}: {error}", file=sys.stderr, flush=True)
                continue
            wrong_rows = faults(rows)
            for fault in wrong_rows:
                failed += 1
                print(f"{ranks} ranks, {link}: {fault}", file=sys.stderr, flush=True)
            if not wrong_rows:
                hook_steps.write(given.out, hook_steps.added(hook_steps.read(given.out), rows, METHOD_NAMES))
    rows = hook_steps.read(given.out)
    if rows:
        given.out.with_suffix(".md").write_text(page(rows), "utf-8")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
