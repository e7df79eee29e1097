"""Training for real over torch.distributed (gloo): quality, bytes and time of every method. `./dev train`

    python -m bench.train [--quick] [--model NAME…] [--method NAME…] [--ranks N…] [--seeds N] [--steps SHARE] [--out FILE]
    python -m bench.train --quality          quality and bytes only
    python -m bench.train --times [--again]  step times over the loopback only; without a word, quality and these
    python -m bench.train --links [--again]  step times over shaped links
    python -m bench.train --set methods      GRACE's methods on two models, 3 seeds (45 minutes): train_methods.jsonl
    python -m bench.train --set paper        what DeepReduce's paper trains (10 minutes beside train.jsonl): train_paper.jsonl
    python -m bench.train --set policies     its policies of Bloom filters and their rates (20 minutes): train_policies.jsonl
    python -m bench.train --set zeros        a recommender, of whose gradients only zeros are left out (10 minutes): train_zeros.jsonl
    python -m bench.train --list             models and methods

Rows are added to FILE (bench/results/train.jsonl) run by run; a run that is there is skipped. Exit 1 if ranks differ
or a run fails, 2 for a wrong argument, 77 where links cannot be shaped.
"""

import argparse
import collections
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

from bench.train import step_times, train_plan, train_results
from bench.train.methods import METHODS
from bench.train.rank_pool import RankError, RankPool
from bench.train.task import CACHE, ROOT, settings
from bench.train.train_plan import Run

RESULTS = ROOT / "bench" / "results" / "train.jsonl"
GIVE_UP = 3  # runs
MIN_TIMEOUT = 180.0  # seconds a run: the first one reads its data


def run_quality(runs: List[Run], out: Path, known: Sequence[Path] = ()) -> int:
    """Returns how many runs failed. known: files whose runs are not run again, beside out."""
    rows = [row for path in (out, *known) for row in train_results.read(path) if row["kind"] == "quality"]
    done = {Run(**{k: row[k] for k in ("model", "method", "ranks", "seed", "steps")}) for row in rows}
    took: Dict[Any, List[float]] = collections.defaultdict(list)
    for row in rows:
        took[row["model"], row["ranks"]].append(row["seconds"] / row["steps"])
    left = [run for run in runs if run not in done]
    estimate = lambda some: sum(train_plan.seconds_of(run, settings(), took) for run in some) / 60
    there = " and ".join(str(path) for path in (out, *known))
    print(
        f"{len(runs)} runs, {len(runs) - len(left)} of them are in {there}; the others take about {estimate(left):.0f} minutes",
        flush=True,
    )
    failed = in_a_row = 0
    pool = RankPool(2)
    try:
        for number, run in enumerate(left):
            if run.ranks != pool.ranks:
                pool.close()
                pool = RankPool(run.ranks)
            begin, where = time.monotonic(), train_results.context()
            job = {"kind": "quality", **run.__dict__}
            name = f"[{number + 1}/{len(left)}] {run.model}, {run.method}, {run.ranks} ranks, seed {run.seed}"
            try:
                row = quality_row(run, pool.run(job, MIN_TIMEOUT + 10 * train_plan.seconds_of(run, settings(), took)))
            except RankError as error:
                failed, in_a_row = failed + 1, in_a_row + 1
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                if in_a_row == GIVE_UP:
                    print(f"{GIVE_UP} runs in a row failed: the others are left out", file=sys.stderr)
                    break
                continue
            in_a_row = 0
            row.update(seconds=round(time.monotonic() - begin, 1), **where)
            took[run.model, run.ranks].append(row["seconds"] / run.steps)
            train_results.add(out, row)
            failed += not row["identical"]
            print(
                f"{name}: {settings()[run.model].metric} {row['score']:.4f}, loss {row['loss'][-1][1]:.3f}, {row['sent']:,} bytes a step, "
                f"{row['seconds']} s{'' if row['identical'] else ', RANKS DIFFER'}; {estimate(left[number + 1 :]):.0f} minutes to go",
                flush=True,
            )
    finally:
        pool.close()
    return failed


def quality_row(run: Run, answers: List[Dict[str, Any]]) -> Dict[str, Any]:
    first = answers[0]
    row = {
        "kind": "quality",
        **run.__dict__,
        "score": sum(a["right"] for a in answers) / sum(a["of"] for a in answers),
        "identical": len({a["hash"] for a in answers}) == 1 or run.method == "local",
        "hash": first["hash"][:16],
        "loss": [
            [step, round(statistics.fmean(a["loss"][i][1] for a in answers), 4)]
            for i, (step, _) in enumerate(first["loss"])
        ],
        "sent": round(statistics.fmean(a["sent"] for a in answers)),
        "sent_in_all": round(statistics.fmean(a["sent_in_all"] for a in answers)),
        "bits": first["bits"],
        "step_ms": first["step_ms"],
    }
    if "hook" in first:
        row["hook"] = {k: statistics.fmean(a["hook"][k] for a in answers) for k in first["hook"]}
    return row


def listing() -> str:
    lines = [
        f"{name:14} {s.title}: {s.parameters:,} parameters, {s.steps} steps of {s.batch} a rank"
        for name, s in settings().items()
    ]
    lines += [
        "",
        *(
            f"{name:14} {m.plan or m.title}{f'  (unsupported: {m.missing})' if m.missing else ''}"
            for name, m in METHODS.items()
        ),
    ]
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev train",
        description="Training for real over torch.distributed: quality, bytes and time of every method.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--quick", action="store_true", help="two models, a few steps: under two minutes")
    what.add_argument("--quality", action="store_true", help="quality and bytes only")
    what.add_argument("--times", action="store_true", help="step times over the loopback only, methods in turn")
    what.add_argument(
        "--links", action="store_true", help="step times over shaped links (network namespaces; needs root)"
    )
    what.add_argument("--list", action="store_true", help="models and methods")
    parser.add_argument(
        "--again", action="store_true", help="take step times again that are there: the last ones count"
    )
    parser.add_argument("--set", choices=train_plan.SETS, help="the runs of a page; with --quick a few steps of each method")
    parser.add_argument("--model", nargs="+", metavar="NAME")
    parser.add_argument("--method", nargs="+", metavar="NAME")
    parser.add_argument("--ranks", nargs="+", type=int, metavar="N")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 1 to N (3)")
    parser.add_argument("--steps", type=float, default=1.0, metavar="SHARE", help="of a model's steps (1.0)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="bench/results/train.jsonl; of --quick a new file in .cache"
    )
    given = parser.parse_args()
    wrong = train_plan.unknown(given.model, settings(), "model") or train_plan.check_methods(given.method)
    if given.set and (given.ranks or given.quality or given.times or given.links or given.again):
        wrong = wrong or f"--set {given.set} measures quality on 2 ranks: --ranks, --quality, --times, --links and --again do not go with it"
    wrong = wrong or next((f"--ranks {n}: from 2 to 16" for n in given.ranks or () if not 2 <= n <= 16), None)
    wrong = wrong or (f"--seeds {given.seeds}: at least 1" if given.seeds < 1 else None)
    wrong = wrong or (f"--steps {given.steps}: above 0, at most 10" if not 0 < given.steps <= 10 else None)
    if wrong:
        parser.error(wrong)
    return given


def measure(given: argparse.Namespace, out: Path) -> int:
    """What was asked for. Returns an exit status."""
    if given.set:
        runs = train_plan.set_runs(given.set, settings(), range(1, given.seeds + 1), given.steps, given.quick)
        is_requested = lambda name, names: not names or name in names
        runs = [run for run in runs if is_requested(run.model, given.model) and is_requested(run.method, given.method)]
        return int(run_quality(runs, out, () if given.quick else (RESULTS,)) > 0)
    filters = (given.model, given.method, given.ranks)
    if given.quick:
        return int(run_quality(train_plan.quick_runs(given.model, given.method), out) > 0)
    if given.links or given.times:
        return step_times.measure(out, given.links, given.again, *filters)
    runs = train_plan.quality_runs(settings(), range(1, given.seeds + 1), *filters, given.steps)
    if run_quality(runs, out):
        return 1
    return 0 if given.quality else step_times.measure(out, False, given.again, *filters)


def main() -> int:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are removed and ranks end
    if given.list:
        print(listing())
        return 0
    import deepreduce

    try:
        deepreduce.codecs()
    except deepreduce.LibraryError as error:
        print(f"./dev train: {error}", file=sys.stderr)
        return 1
    out = given.out or (CACHE / "quick.jsonl" if given.quick else RESULTS.with_name(f"train_{given.set}.jsonl") if given.set else RESULTS)
    if given.quick and given.out is None:
        out.unlink(missing_ok=True)
    train_results.refuse_unrepeatable(out)
    try:
        status = measure(given, out)
    except KeyboardInterrupt:
        status = 130  # what is done is in the file
    if out == RESULTS and out.exists():
        subprocess.run([sys.executable, str(RESULTS.with_name("train.py"))], check=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
