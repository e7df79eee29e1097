"""Measures tables of bench/results again, timed ones five times each, from one clean commit: `./dev results`

    ./dev results                  all steps
    ./dev results peers fig8       these only
    ./dev results --list           the steps, and how long they take; what is kept here and no step
    ./dev results --busy           although the machine is at work
    ./dev results --check          whether each page is what its script makes of what is kept (pages.py); measures nothing
    ./dev results --age            of what is kept: how many commits of lib, codecs and capi are newer; measures nothing

Exit 1 if a step fails, 2 for a wrong argument, 77 for a tree with uncommitted changes, a commit that main does not have, or a busy machine.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, Tuple

import ages
import pages
import runs

here = Path(__file__).resolve().parent
root = here.parents[1]
python, tool = sys.executable, "build/tool/deepreduce"
IDLE = 0.5  # load of the last minute, from which the machine is busy


def several(name: str, *command: str) -> Tuple[str, ...]:
    """A benchmark that writes the json of one run."""
    return (python, "bench/results/runs.py", "5", f"bench/results/{name}.json", *command, "--json")


# What a step runs; minutes; the table that is made of it; DEEPREDUCE_CPU.
STEPS: Dict[str, Tuple[Tuple[str, ...], int, str, str]] = {
    "pipeline": (several("pipeline", "build/bench/kernels/pipeline_bench", "--rounds", "7"), 4, "", ""),
    "pipeline_avx2": (several("pipeline_avx2", "build/bench/kernels/pipeline_bench", "--rounds", "7"), 4, "", "avx2"),
    "peers": ((python, "bench/results/peers.py", "build/bench/peers/peers", "--rounds", "5"), 25, "", ""),
    "python_peers": (several("python_peers", python, "bench/peers/python_peers.py", "--rounds", "5"), 4, "peers.py", ""),
    "fig8": ((python, "bench/results/fig8.py", tool), 4, "", ""),
    "sizes": ((python, "bench/results/sizes.py", tool), 2, "", ""),
    "bloom_policies": ((python, "bench/results/bloom_policies.py", tool), 2, "", ""),
    "energy": ((python, "bench/results/energy.py"), 1, "", ""),
    "accumulated": ((python, "bench/results/accumulated.py"), 10, "", ""),
    "methods": ((python, "-m", "bench.methods"), 6, "", ""),
    "control": ((python, "bench/results/control_traces.py"), 3, "", ""),
    "momentum_correction": ((python, "-m", "bench.train.momentum_correction"), 10, "", ""),
}
# What else is kept here, and why it is not a step. README.md has the commands.
ELSEWHERE = {
    "takes hours; what is there is not run again": "train, train_methods, paper, tuned, which_plan, fuzz",
    "shapes links, as root": "comm, methods_links, hook_steps, owner_steps, outer, control_live, predictions, predictions_book, outer_rounds, utility, paper_ncf",
    "has peers that pip installs": "patch, weights",
    "needs a GPU": "gpu",
    "has a page that is written by hand": "calls, exchange",
}


def measure(name: str, commit: str) -> int:
    """The status of the step's program."""
    command, _, _, level = STEPS[name]
    environment = {k: v for k, v in os.environ.items() if k != "DEEPREDUCE_CPU"}
    environment.update(DEEPREDUCE_LIBRARY=str(root / "build/capi/libdeepreduce.so"), PYTHONPATH=str(root / "bindings/python"), DR_COMMIT=commit)
    if level:
        environment["DEEPREDUCE_CPU"] = level
    return subprocess.run(command, cwd=root, env=environment, check=False, stdout=subprocess.DEVNULL).returncode


def hindrance(busy: bool) -> str:
    """Why nothing can be measured now; empty: it can."""
    if changed := runs.uncommitted():
        return f"the tree has changes ({changed}, …): commit them"
    if not runs.is_in_main("HEAD"):
        return "main's history does not have this commit: merge it first, for a commit that is rebased later cannot be measured again"
    load = os.getloadavg()[0]
    if load > IDLE and not busy:
        return f"the machine is busy (load {load:.1f}, at most {IDLE}): wait, or --busy"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev results", description="Measures the tables of bench/results anew.")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--list", action="store_true", help="the steps")
    parser.add_argument("--busy", action="store_true", help="although the machine is at work")
    parser.add_argument("--check", action="store_true", help="only whether pages are what their scripts make")
    parser.add_argument("--age", action="store_true", help="only how old is what is kept")
    a = parser.parse_args()
    if a.check:
        return pages.check()
    if a.age:
        print("\n".join(ages.lines()))
        return 0
    if unknown := [name for name in a.steps if name not in STEPS]:
        parser.error(f"no step {unknown[0]}; there are {', '.join(STEPS)}")
    names = a.steps or list(STEPS)
    if a.list:
        for name in names:
            print(f"{name:20} {STEPS[name][1]:3} minutes: {' '.join(STEPS[name][0][1:])}")
        for why, others in {} if a.steps else ELSEWHERE.items():
            print(f"not a step, {why}: {others}")
        return 0
    if reason := hindrance(a.busy):
        print(f"results: {reason}", file=sys.stderr)
        return 77
    print(f"{', '.join(names)}: about {sum(STEPS[name][1] for name in names)} minutes", flush=True)
    describe = ["git", "describe", "--always", "--abbrev=12"]  # (hindrance has looked for changes)
    commit = subprocess.run(describe, cwd=root, capture_output=True, text=True, check=False).stdout.strip() or "unversioned"
    failed = 0
    for name in names:
        begin = time.monotonic()
        status = measure(name, commit)
        failed += status > 0
        print(f"{name}: {(time.monotonic() - begin) / 60:.1f} minutes{f', FAILED (status {status})' if status else ''}", flush=True)
    for script in dict.fromkeys([*(STEPS[name][2] for name in names), "reach.py", "readme.py"]):
        if script:
            subprocess.run([python, here / script], cwd=root, check=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
