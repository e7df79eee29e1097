"""Training by the controller and by each fixed plan, over two links whose rate changes on the way (tbf). Needs root.

    python -m bench.train.control_live [--trace NAME…] [--fixed NAME…] [--model NAME] [--steps N] [--seeds N] [--target MS] [--out FILE]

The target is 15 % of the time of a step without exchange, which is measured warm, first and again before each trace, unless
--target is given. Traces are the four that change, and by their names `constant 1000`, `constant 100`, and `delay 100`, alone: 100 Mbit/s
with a delay that varies (delayed_links.py).
Adds a row a run to FILE (bench/results/control_live.jsonl) and prints the table. All four traces with 300 steps take about
10 minutes on a quiet machine, one of them 2.5. A model as large as lstm_large sends for seconds where a dense step meets 100 Mbit/s:
--fixed '8 bit' '4 bit' 'top 10 %' 'top 1 %' leaves that out. Exit 1 if ranks differ or a run fails, 77 where links cannot be shaped.
"""

import argparse
import signal
import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple

from bench.train import changing_links, train_plan, train_results
from bench.train.control_ladder import LADDER
from bench.train.control_rows import verdicts
from bench.train.delayed_links import DelayedLinks
from bench.train.rank_pool import RankError, RankPool
from bench.train.shaped_links import ShapedLinks, Unsupported, WrongRate
from bench.train.task import ROOT, settings

SHORT = 40  # steps without an exchange, for the time of compute
TARGET = 0.15  # of that
LONGEST = 120.0  # seconds of a run, and two more a step


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="control_live", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", nargs="+", choices=list(changing_links.TRACES), default=list(changing_links.CHANGING), metavar="NAME")
    parser.add_argument("--fixed", nargs="+", choices=list(LADDER), default=list(LADDER), metavar="NAME", help="plans beside the laws")
    parser.add_argument("--model", default="lstm")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--target", type=float, metavar="MS", help="that transfers of a step may take")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "control_live.jsonl")
    given = parser.parse_args()
    wrong = train_plan.unknown([given.model], settings(), "model")
    wrong = wrong or (f"--steps {given.steps}: at least 40" if given.steps < 40 else None)
    wrong = wrong or (f"--trace {changing_links.VARYING}: it goes with no other" if changing_links.VARYING in given.trace and len(given.trace) > 1 else None)
    wrong = wrong or (f"--target {given.target}: above 0" if given.target is not None and not given.target > 0 else None)
    if wrong:
        parser.error(wrong)
    return given


def local_run(given: argparse.Namespace) -> Dict[str, Any]:
    """A training without exchange."""
    return {"kind": "control", "model": given.model, "trace": "none", "name": "local", "control": None, "seed": 1, "steps": SHORT, "phases": []}


def compute_ms(given: argparse.Namespace, pool: RankPool) -> float:
    """Median of the steps of a training without exchange. The first of fresh processes takes half as long again: run one before."""
    local = local_run(given)
    return float(changing_links.row_of(local, pool.run(local, LONGEST + 2.0 * SHORT), 1.0)["median_ms"])


def runs_of(given: argparse.Namespace, target: float) -> List[Dict[str, Any]]:
    """The runs, trace by trace."""
    options = f"(target_ms={target:g})"
    names = {**{name: None for name in LADDER if name in given.fixed}, "aimd": f"aimd{options}", "fit": f"fit{options}"}
    return [
        {
            "kind": "control", "model": given.model, "trace": trace, "name": name, "control": control, "seed": seed,
            "steps": given.steps, "phases": changing_links.TRACES[trace](given.steps),
        }
        for trace in given.trace for seed in range(1, given.seeds + 1) for name, control in names.items()
    ]  # fmt: skip


def main() -> int:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are removed
    train_results.refuse_unrepeatable(given.out)
    where, rows, failed = train_results.context(), [], 0
    try:
        varies = given.trace == [changing_links.VARYING]
        with DelayedLinks(2, "100mbit") if varies else ShapedLinks(2, "1gbit") as links, links.pool() as pool:
            compute_ms(given, pool)  # not counted
            compute = compute_ms(given, pool)
            target = given.target or round(TARGET * compute, 1)
            print(f"{given.model}: a step without exchange takes {compute:.1f} ms; target {target:g} ms", flush=True)
            of_trace: Tuple[str, float] = ("", compute)
            for job in runs_of(given, target):
                try:
                    if of_trace[0] != job["trace"]:
                        of_trace = (job["trace"], compute_ms(given, pool))
                    row = changing_links.row_of(job, pool.run(job, LONGEST + 2.0 * job["steps"]), target)
                except RankError as error:
                    failed += 1
                    print(f"{job['trace']}, {job['name']}: {error}", file=sys.stderr, flush=True)
                    continue
                row.update(rate=round(links.measured), compute_ms=of_trace[1], warm=True, **where)
                train_results.add(given.out, row)
                rows.append(row)
                failed += not row["identical"]
                print(
                    f"{row['trace']}, {row['name']}: step {row['step_ms']:.1f} ms (median {row['median_ms']:.1f}), wait {row['wait_ms']:.1f} ms, "
                    f"{100 * row['met']:.0f} % meet {target:g} ms, {row['bytes']:,} bytes, {settings()[given.model].metric} {row['score']:.4f}, "
                    f"{len(row['changes']) - 1} changes{'' if row['identical'] else ', RANKS DIFFER'}",
                    flush=True,
                )
    except RankError as error:
        print(f"without exchange: {error}", file=sys.stderr)
        return 1
    except (Unsupported, WrongRate) as error:
        print(f"unsupported here: {error}", file=sys.stderr)
        return 77
    print("\n".join(verdicts(rows, given.fixed)))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
