"""Outer loops: loss against tokens, bytes and wall clock, of DistributedDataParallel, DiLoCo, SparseLoCo as published and this library's plans.

    python -m bench.train.outer_loops [--curves] [--end] [--times] [--tuning] [--seeds N] [--out FILE] [--table]
    python -m bench.train.outer_loops --quick --out FILE     a rehearsal of a minute, to FILE only

--curves: trainings of two tasks (outer_tasks.py), of a plan of cells: workers and inner steps a round. All workers together see the same
number of tokens in each cell. Held-out loss is judged after rounds. The workers are processes on this machine, over gloo: what links cost
is no part of it.
--end: the text model is trained to the end, by DDP bf16 and by ours. The criterion, stated before the first run: the inner rate stays
what it is after its warm-up; held-out loss is judged every 30 inner steps; a training ends when 300 inner steps (10 rounds) have
passed without a loss below the least so far. Its result is that least loss, and the inner steps to it.
--times: of one exchange, between network namespaces whose links tbf shapes, of 10 and 100 Mbit/s; and of an inner step of one worker
that has a core of its own. As root, on a quiet machine. Workers are made before the links are shaped.
--tuning: seed 3, which no other table has, of the text and twice the steps: outer rates and momenta.

Without a word, all of these. A row is added to FILE (bench/results/outer.jsonl) as soon as it is there; what is there is not run again.
Then the page beside FILE is written again. --table: only that. Exit 1 if workers end with other weights than one another.
"""

import argparse
import itertools
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence

from bench.train import train_results
from bench.train.outer_methods import METHODS
from bench.train.rank_pool import RankError, RankPool
from bench.train.shaped_links import ShapedLinks, Unsupported, WrongRate
from bench.train.task import ROOT

OUT = ROOT / "bench" / "results" / "outer.jsonl"
WORKER_STEPS = 1200  # inner steps of all workers together
OUTER = ["diloco_f32", "diloco_int8", "published", "ours"]
DDP = ["ddp_bf16", "ddp_ours"]
CELLS = [(4, 30), (4, 10), (4, 100), (2, 30), (8, 30)]  # (workers, inner steps of a round)
MORE = ["ours_128", "ours_512", "outer_lowrank1", "outer_lowrank4"]  # in the first cell: at which ratio the loss is that of DiLoCo; of seeds but 0 one
TUNED = ["diloco_f32", "diloco_f32_nesterov", "ours", "ours_nesterov"]
TIMED = ["ddp_f32", "ddp_bf16", "ddp_ours", *OUTER]
LINKS = ("unshaped", "100mbit", "10mbit")
TUNING_SEED, TUNING_STEPS = 3, 600
END_JUDGE, END_PATIENCE, END_LIMIT, END_SLICE = 30, 300, 3000, 150  # inner steps
TIMEOUT = 900.0


class Training(NamedTuple):
    """every: inner steps of a round; of DDP 1. steps: inner steps of a worker."""

    task: str
    method: str
    ranks: int
    every: int
    seed: int
    steps: int

    @property
    def judge(self) -> int:
        """Held-out loss each so many steps: about 20 points, all after a round."""
        return max(1, -(-self.steps // 20) // self.every) * self.every


def curves(seeds: int) -> Iterator[Training]:
    """Seeds outermost, so that one is whole before another begins."""
    for seed, task, (ranks, every) in itertools.product(range(seeds), ("text", "vision"), CELLS):
        first = (ranks, every) == next(cell for cell in CELLS if cell[0] == ranks)
        for method in (DDP if first else []) + OUTER + (MORE[: 1 if seed else 4] if (ranks, every) == CELLS[0] else []):
            yield Training(task, method, ranks, 1 if method in DDP else every, seed, WORKER_STEPS // ranks)
    yield Training("text", "distro", 4, 30, 0, WORKER_STEPS // 4)


def tuning() -> Iterator[Training]:
    for method in TUNED:
        yield Training("text", method, *CELLS[0], TUNING_SEED, TUNING_STEPS)


def library_commit() -> str:
    """The last one that changed the library; -dirty if it is changed since. What only this script and the page changed is no part of it."""
    parts = ["include", "lib", "codecs", "capi", "bindings"]
    ask = lambda *words: subprocess.run(["git", *words, "--", *parts], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return (ask("log", "-1", "--format=%h") or "unversioned") + ("-dirty" if ask("status", "--porcelain") else "")


def context() -> Dict[str, Any]:
    model = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    return {**train_results.context(), "commit": library_commit(), "machine": model}


# alone(function, *arguments): how a slice of some seconds is run, where others wait for the same cores.
Alone = Callable[..., Any]


def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def mean_curve(answers: Sequence[Dict[str, Any]]) -> List[List[float]]:
    return [[points[0][0], round(statistics.fmean(loss for _, loss in points), 5)] for points in zip(*(a["curve"] for a in answers))]


def trained(pool: RankPool, run: Training, alone: Alone = at_once) -> Dict[str, Any]:
    """The row of a training. sent and frame: of worker 0, whose bytes are those of all, in the whole training."""
    where, done, seconds = context(), 0, 0.0
    curve: List[List[float]] = []
    alone(pool.run, {"kind": "outer", "do": "make", "name": "it", **run._asdict()}, TIMEOUT)
    while done < run.steps:
        steps = min(run.steps - done, max(run.judge, run.steps // 4 // run.judge * run.judge))
        answers = alone(pool.run, {"kind": "outer", "do": "train", "name": "it", "steps": steps, "judge": run.judge}, TIMEOUT)
        done, seconds, curve = done + steps, seconds + answers[0]["seconds"], curve + mean_curve(answers)
    pool.run({"kind": "outer", "do": "drop", "name": "it"}, TIMEOUT)
    return {"kind": "curve", **run._asdict(), **summary(answers), "seconds": round(seconds, 2), "curve": curve, **where}


def summary(answers: Sequence[Dict[str, Any]]) -> Dict[str, Any]:
    first = answers[0]
    counts = {**{key: round(first[key]) for key in ("sent", "frame", "kept")}, "seconds": round(first["seconds"], 2)}
    return {**counts, "identical": len({answer["hash"] for answer in answers}) == 1}


def trained_to_the_end(pool: RankPool, method: str, ranks: int, every: int, seed: int, alone: Alone = at_once) -> Dict[str, Any]:
    """The row of a training to the criterion above."""
    where, done = context(), 0
    curve: List[List[float]] = []
    run = Training("end", method, ranks, 1 if method in DDP else every, seed, 0)
    pool.run({"kind": "outer", "do": "make", "name": "end", **run._asdict(), "steps": None}, TIMEOUT)
    while True:
        answers = alone(pool.run, {"kind": "outer", "do": "train", "name": "end", "steps": END_SLICE, "judge": END_JUDGE}, TIMEOUT)
        done += END_SLICE
        curve += mean_curve(answers)
        stop = ended(curve)
        if stop or done >= END_LIMIT:
            break
    pool.run({"kind": "outer", "do": "drop", "name": "end"}, TIMEOUT)
    row = {"kind": "end", **run._asdict(), **summary(answers), "curve": curve[: stop or None], "ended": bool(stop), **where}
    return {**row, "steps": done}


def ended(curve: Sequence[Sequence[float]]) -> int:
    """The number of points after which a training is over, by the criterion; 0: it goes on."""
    best, at = float("inf"), 0.0
    for number, (step, loss) in enumerate(curve, start=1):
        if loss < best:
            best, at = loss, step
        elif step - at >= END_PATIENCE:
            return number
    return 0


def made_for_times(pool: RankPool, task: str, methods: Sequence[str]) -> None:
    for method in methods:
        job = {"kind": "outer", "name": method, "method": method, "task": task, "every": 1, "seed": 0, "steps": 1000}
        pool.run({**job, "do": "make"}, TIMEOUT)
        pool.run({**job, "do": "time", "rounds": 3}, TIMEOUT)


def times_of(pool: RankPool, method: str, rounds: int) -> Dict[str, Any]:
    """Milliseconds, medians, of the slowest rank: exchange, of an outer loop from the end of the last inner step to the next one's begin, of DDP
    of a step beyond one without exchange; own: an inner step of all workers at once on the cores that are there."""
    answers = pool.run({"kind": "outer", "do": "time", "name": method, "rounds": rounds}, TIMEOUT)
    slowest = lambda key: [max(ranks) for ranks in zip(*(answer[key] for answer in answers))]
    own = statistics.median(slowest("own"))
    seconds = [took - (own if METHODS[method].kind == "ddp" else 0) for took in slowest("seconds")]
    parts = {key: round(value, 6) for key, value in answers[0]["counts"].items()}
    ordered = sorted(round(1e3 * s, 3) for s in seconds)
    return {"rounds": rounds, "exchange": round(statistics.median(ordered), 3), "least": ordered[0], "most": ordered[-1], "own": round(1e3 * own, 3), **parts}


def rounds_of(method: str, link: str) -> int:
    """Fewer where one takes seconds."""
    return 2 if link == "10mbit" and method in ("ddp_f32", "ddp_bf16", "diloco_f32", "diloco_int8") else 5


def timed(ranks: int, methods: Sequence[str] = TIMED, links: Sequence[str] = LINKS, alone: Alone = at_once) -> List[Dict[str, Any]]:
    """Rows of exchange times of the text model. alone(function, …): a measurement, when the machine is quiet."""
    with ShapedLinks(ranks, "unshaped") as net, net.pool() as pool:
        made_for_times(pool, "text", methods)
        return [row for link in links for row in alone(times_on, net, pool, link, methods)]


def times_on(net: ShapedLinks, pool: RankPool, link: str, methods: Sequence[str]) -> List[Dict[str, Any]]:
    where, rate, rows = context(), net.shape(link), []
    for method in methods:
        found = times_of(pool, method, rounds_of(method, link))
        row = {"kind": "times", "task": "text", "ranks": net.ranks, "link": link, "rate": round(rate), "method": method, **found, **where}
        print(f"{net.ranks}, {link} ({rate / 1e6:.1f} Mbit/s), {method}: {row['exchange']:.1f} ms [{row['least']}, {row['most']}]", flush=True)
        rows.append(row)
    return rows


def own_core(task: str, alone: Alone = at_once) -> Dict[str, Any]:
    """An inner step of one worker alone."""
    where = context()
    with RankPool(1) as pool:
        job = {"kind": "outer", "name": "own", "method": "ours", "task": task, "every": 1000, "seed": 0, "steps": 1000}
        pool.run({**job, "do": "make"}, TIMEOUT)
        pool.run({**job, "do": "train", "steps": 20, "judge": 1000}, TIMEOUT)
        seconds = alone(pool.run, {**job, "do": "train", "steps": 200, "judge": 1000}, TIMEOUT)[0]["seconds"]
    return {"kind": "own", "task": task, "step": round(1e3 * seconds / 200, 4), **where}


def key(row: Dict[str, Any]) -> Any:
    return (row["kind"], *(row.get(name) for name in ("task", "method", "ranks", "every", "seed", "link")), row.get("steps") if row["kind"] == "curve" else None)


def train_all(runs: Sequence[Training], out: Path, alone: Alone = at_once) -> int:
    """Returns how many failed."""
    done = {key(row) for row in train_results.read(out)}
    left = [run for run in runs if key({"kind": "curve", **run._asdict()}) not in done]
    failed, pools = 0, {ranks: RankPool(ranks) for ranks in {run.ranks for run in left}}
    try:
        for number, run in enumerate(left, start=1):
            begin = time.monotonic()
            try:
                row = trained(pools[run.ranks], run, alone)
            except RankError as error:
                failed += 1
                print(f"{run}: {error}", file=sys.stderr, flush=True)
                continue
            train_results.add(out, row)
            failed += not row["identical"]
            print(f"[{number}/{len(left)}] {' '.join(map(str, run))}: {row['curve'][-1]}, {row['sent']:,} bytes, {time.monotonic() - begin:.0f} s", flush=True)
    finally:
        for pool in pools.values():
            pool.close()
    return failed


def end_all(seeds: Sequence[int], out: Path, alone: Alone = at_once) -> int:
    failed = 0
    with RankPool(4) as pool:
        for seed, method in itertools.product(seeds, ("ddp_bf16", "ours")):
            run = {"kind": "end", "task": "end", "method": method, "ranks": 4, "every": 1 if method in DDP else 30, "seed": seed}
            if key(run) in {key(row) for row in train_results.read(out)}:
                continue
            row = trained_to_the_end(pool, method, 4, 30, seed, alone)
            train_results.add(out, row)
            failed += not row["identical"]
            step, loss = min(row["curve"], key=lambda point: point[1])
            print(f"to the end, {method}, seed {seed}: {loss} after {step} steps, of {row['steps']}", flush=True)
    return failed


def time_all(out: Path) -> int:
    rows = train_results.read(out)
    for task in ("text", "vision"):
        if not any(row["kind"] == "own" and row["task"] == task for row in rows):
            train_results.add(out, own_core(task))
    for ranks in (2, 4, 8):
        if not any(row["kind"] == "times" and row["ranks"] == ranks for row in rows):
            for row in timed(ranks):
                train_results.add(out, row)
    return 0


def write_page(out: Path) -> None:
    sys.path.insert(0, str(ROOT / "bench" / "results"))
    import outer

    out.with_suffix(".md").write_text(outer.page(train_results.read(out)), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for word in ("quick", "curves", "end", "times", "tuning", "table"):
        parser.add_argument(f"--{word}", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.quick and not given.out:
        print("--quick wants --out FILE: its rows are no results", file=sys.stderr)
        return 2
    out, failed = given.out or OUT, 0
    if not given.table:
        train_results.refuse_unrepeatable(out)
    whole = not (given.curves or given.end or given.times or given.tuning or given.table)
    if given.quick:
        return train_all([Training("text", method, 2, 1 if method in DDP else 10, 0, 20) for method in (*DDP, *OUTER)], out)
    try:
        if given.tuning or whole:
            failed += train_all(list(tuning()), out)
        if given.curves or whole:
            failed += train_all(list(curves(given.seeds)), out)
        if given.end or whole:
            failed += end_all(range(given.seeds), out)
        if given.times or whole:
            failed += time_all(out)
    except Unsupported as error:
        print(f"unsupported here: {error}", file=sys.stderr)
        return 77
    except (RankError, WrongRate) as error:
        print(error, file=sys.stderr)
        failed += 1
    write_page(out)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
