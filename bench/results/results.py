"""Measures all tables of bench/results anew, several runs each, from one clean commit: `./dev results`

    ./dev results                  all that needs no root: about 45 minutes
    ./dev results peers fig8       these only
    ./dev results --list           what there is, and how long a run of each takes
    ./dev results --runs 3         runs of each (5)
    ./dev results --dirty --busy   although the tree has changes, although the machine is at work

A number in a table is the median of the runs; the spread beside it goes from the smallest run to the largest. What a run says must be equal in all of them,
but for its times. Exit 1 if a step fails or the runs differ in what they say, 2 for a wrong argument, 77 for a dirty tree or a busy machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

here = Path(__file__).resolve().parent
root = here.parents[1]
python = sys.executable
tool, kernels = "build/bench/compare/deepreduce", "build/bench/kernels"
IDLE = 0.5  # load of the last minute, from which the machine is busy
SPREAD = {"low", "median", "high"}


@dataclass(frozen=True)
class Step:
    """A command that measures, and the json that it writes here; what makes the table of it."""

    command: "tuple[str, ...]"
    files: "tuple[str, ...]"
    table: str
    minutes: float
    level: str = ""  # of DEEPREDUCE_CPU
    root: bool = False


def bench(name, *more):
    return (f"{kernels}/{name}", "--json", f"bench/results/{more[-1]}.json", *more[:-1])


STEPS = {
    "pipeline": Step(bench("pipeline_bench", "--rounds", "7", "pipeline"), ("pipeline",), "reach.py", 1),
    "pipeline_avx2": Step(bench("pipeline_bench", "--rounds", "7", "pipeline_avx2"), ("pipeline_avx2",), "reach.py", 1, "avx2"),
    "peers": Step((python, "bench/results/peers.py", "build/bench/peers/peers", "--rounds", "5"), ("peers", "peers_avx2"), "peers.py", 4),
    "python_peers": Step((python, "bench/peers/python_peers.py", "--rounds", "5", "--json", "bench/results/python_peers.json"), ("python_peers",), "peers.py", 1),
    "calls": Step(bench("call_bench", "calls"), ("calls",), "", 1),
    "python_calls": Step((python, "bench/python/call_overhead.py", "--json", "bench/results/python_calls.json"), ("python_calls",), "", 1),
    "fig8": Step((python, "bench/results/fig8.py", tool), ("fig8_laplace", "fig8_captured", "resnet20_flat"), "fig8.py", 1),
}


def differ(values, where):
    raise SystemExit(f"results: {where}: the runs say {' and '.join(sorted({json.dumps(v)[:80] for v in values}))}")


def combine(runs, where=""):
    """One json of several: where numbers differ their median; low and high of a spread become the least and the largest median."""
    first = runs[0]
    if all(run == first for run in runs):
        return first
    if isinstance(first, dict) and all(isinstance(run, dict) and run.keys() == first.keys() for run in runs):
        if SPREAD <= first.keys():
            medians = [run["median"] for run in runs]
            rest = {k: combine([run[k] for run in runs], f"{where}.{k}") for k in first.keys() - SPREAD}
            return {"median": statistics.median(medians), "low": min(medians), "high": max(medians), **rest}
        return {k: combine([run[k] for run in runs], f"{where}.{k}") for k in first}
    if isinstance(first, list) and all(isinstance(run, list) and len(run) == len(first) for run in runs):
        return [combine(list(each), f"{where}[{i}]") for i, each in enumerate(zip(*runs))]
    if all(isinstance(run, float) for run in runs) or where.endswith(("_ns", ".date", ".load")):
        return statistics.median(runs) if isinstance(first, (int, float)) else max(runs)
    return differ(runs, where)


def measure(step, runs):
    environment = {k: v for k, v in os.environ.items() if k != "DEEPREDUCE_CPU"}
    environment["DEEPREDUCE_LIBRARY"] = str(root / "build/capi/libdeepreduce.so")
    if step.level:
        environment["DEEPREDUCE_CPU"] = step.level
    paths = [here / f"{name}.json" for name in step.files]
    made = []
    for _ in range(runs):
        subprocess.run(step.command, cwd=root, env=environment, check=True, stdout=subprocess.DEVNULL)
        made.append([json.loads(path.read_text()) for path in paths])
    for path, each in zip(paths, zip(*made)):
        path.write_text(json.dumps({**combine(list(each), path.stem), "runs": runs}, indent=1) + "\n")


def ready(dirty, busy):
    """Why nothing can be measured now; None: it can."""
    changed = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], cwd=root, capture_output=True, text=True).stdout
    if changed and not dirty:
        return f"the tree has changes ({changed.split()[1]}, …): commit them, or --dirty"
    load = os.getloadavg()[0]
    if load > IDLE and not busy:
        return f"the machine is busy (load {load:.1f}, at most {IDLE}): wait, or --busy"
    return None


def main():
    parser = argparse.ArgumentParser(prog="./dev results", description="Measures the tables of bench/results anew.")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--runs", type=int, default=5, help="of each step (5)")
    parser.add_argument("--list", action="store_true", help="the steps")
    parser.add_argument("--dirty", action="store_true", help="although the tree has changes")
    parser.add_argument("--busy", action="store_true", help="although the machine is at work")
    a = parser.parse_args()
    if unknown := [name for name in a.steps if name not in STEPS]:
        parser.error(f"no step {unknown[0]}; there are {', '.join(STEPS)}")
    if a.runs < 1:
        parser.error(f"--runs {a.runs}: at least 1")
    names = a.steps or list(STEPS)
    if a.list:
        for name in names:
            print(f"{name:14} {STEPS[name].minutes:4g} minutes a run: {', '.join(f'{f}.json' for f in STEPS[name].files)}")
        return 0
    if reason := ready(a.dirty, a.busy):
        print(f"results: {reason}", file=sys.stderr)
        return 77
    print(f"{len(names)} steps of {a.runs} runs: about {a.runs * sum(STEPS[n].minutes for n in names):.0f} minutes", flush=True)
    for name in names:
        begin = time.monotonic()
        measure(STEPS[name], a.runs)
        print(f"{name}: {(time.monotonic() - begin) / 60:.1f} minutes", flush=True)
    for table in dict.fromkeys([*(STEPS[n].table for n in names), "reach.py", "readme.py"]):
        if table:
            subprocess.run([python, here / table], cwd=root, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
