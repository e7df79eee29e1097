"""Patches of weights, ours beside what others send: bytes, and times to make and to apply; every result is verified.

    DEEPREDUCE_LIBRARY=build/capi/libdeepreduce.so python -m bench.patch.rivals [--rounds N] [--only TEXT] [--quick] [--sizes]

Data: the recordings of record.py, or those that are bundled; views of them in fp8 and int8; and, for times, a synthetic
tensor of 32 M words, which no cache holds. CPU time of one thread, of programs theirs; all candidates take their turn in
each round of one run, after one that is not counted; one round of the recordings, whose sizes count. Ours is run again at the level of AVX2. Keeps
bench/results/patch.json; bench/results/patch_page.py makes patch.md of it.
"""

import argparse
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "bench" / "results")]

from bench.patch import entropy  # noqa: E402
from bench.patch.candidates import Candidate, Program, others  # noqa: E402
from bench.patch.recordings import Recording, bf16_of, load_all, quantised  # noqa: E402
from bench.patch.zstd_calls import Zstd  # noqa: E402
from runs import text_of  # noqa: E402

LEVELS = ("unknown", "scalar", "avx2", "avx512")
SYNTHETIC = 32 * 1024 * 1024
# Steps of the synthetic tensor, as shares of the weights' deviation: about 0.01, 0.1, 1, 5, 25 and 70 % change.
STEPS = (7e-8, 6e-7, 9.5e-6, 6.5e-5, 6e-4, 5.5e-3)
SLOW = 0.2  # seconds: what takes longer is timed once
NOT_LARGE = ("xor + zstd -19", "xdelta3", "xdelta3 -9")  # of the synthetic tensor: minutes
VIEWED = ("rl_1e-06_1", "rl_1e-05_1", "rl_1e-05_8", "sft_1e-05_1")  # in fp8 and int8, too


class Pair(NamedTuple):
    """data: model and snapshot; kind: bf16, f32, fp8, int8; flat words; tensors: of the model, or none."""

    data: str
    kind: str
    old: np.ndarray
    new: np.ndarray
    tensors: entropy.Shapes = ()


def recorded(recording: Recording) -> Iterator[Pair]:
    base, of = recording.words["base"], recording.tensors
    for name in recording.snapshots:
        steps = recording.snapshots[name]["steps"]
        if steps not in (1, 8):  # a chain: entropy.py reads it
            continue
        yield Pair(f"{recording.model} {name}", "bf16", base, recording.words[name], of)
        if name in recording.wide:
            yield Pair(f"{recording.model} {name}", "f32", recording.wide["base"], recording.wide[name], of)
        for kind in ("fp8", "int8") if name in VIEWED else ():
            views = [quantised(words, of, kind) for words in (base, recording.words[name])]
            yield Pair(f"{recording.model} {name}", kind, views[0], views[1], of)


def synthetic(step: float, words: int) -> Pair:
    """Normal weights, and Laplace steps (Adam's are about the rate, few are much larger) of f32 masters."""
    random, size = np.random.Generator(np.random.SFC64(1)), np.float32(0.02)
    old, new = np.empty(words, np.uint16), np.empty(words, np.uint16)
    for at in range(0, words, 1 << 22):
        end = min(words, at + (1 << 22))
        master = random.standard_normal(end - at, np.float32) * size
        moved = random.standard_exponential(end - at, np.float32) * np.float32(step) * size
        old[at:end] = bf16_of(master)
        new[at:end] = bf16_of(master + np.copysign(moved, random.random(end - at, np.float32) - np.float32(0.5)))
    return Pair(f"synthetic, steps of {step:g}", "bf16", old, new)


# ---- time ----------------------------------------------------------------------------------------------------------


def seconds(run: Callable[[], Any], of_children: bool) -> Tuple[float, Any]:
    def now() -> float:
        if not of_children:
            return time.thread_time()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    begin = now()
    made = run()
    return now() - begin, made


def spread(times: List[float]) -> Dict[str, float]:
    low, median, high = np.percentile(times, [25, 50, 75])
    return {"low": float(f"{low:.4g}"), "median": float(f"{median:.4g}"), "high": float(f"{high:.4g}"), "runs": len(times)}


def measure(pair: Pair, candidates: Dict[str, Candidate], rounds: int) -> List[Dict[str, Any]]:
    """Verifies each, then times them in turn."""
    old, new, weights = pair.old, pair.new, np.empty_like(pair.old)
    rows: List[Dict[str, Any]] = []
    running: Dict[str, Tuple[Dict[str, Any], bytes, List[float], List[float]]] = {}
    for name, candidate in candidates.items():
        if candidate.missing:
            rows.append({"what": name, "missing": candidate.missing})
            continue
        candidate.prepare(old)
        patch = candidate.make(old, new)
        np.copyto(weights, old)
        candidate.apply(weights, patch)
        if not np.array_equal(weights, new):
            raise AssertionError(f"{pair.data}, {pair.kind}: {name} does not give the result back")
        rows.append({"what": name, "bytes": len(patch)})
        running[name] = rows[-1], patch, [], []
    for number in range(rounds):
        for name, (_, patch, makes, applies) in running.items():
            candidate = candidates[name]
            programs = isinstance(candidate, Program)
            if number and makes[0] + applies[0] > SLOW:
                continue
            made, same = seconds(partial(candidate.make, old, new), programs)
            np.copyto(weights, old)
            applied, _ = seconds(partial(candidate.apply, weights, patch), programs)
            makes.append(made)
            applies.append(applied)
            assert len(same) == len(patch), f"{name} made {len(patch)} bytes, then {len(same)}"
    for row, _, makes, applies in running.values():
        row["make_s"], row["apply_s"] = spread(makes), spread(applies)
    return rows


def bounds(pair: Pair) -> Dict[str, float]:
    """Entropies, bits a changed word."""
    if pair.old.size > 1 << 22:
        return {}
    found = entropy.bounds(pair.old, pair.new)
    return {f"{name} {part}": round(bits, 3) for name, of in found.items() for part, bits in of.items()}


# ---- all -----------------------------------------------------------------------------------------------------------


def pairs(arguments: argparse.Namespace) -> Iterator[Pair]:
    for recording in load_all():
        yield from recorded(recording)
    for step in STEPS:
        yield synthetic(step, SYNTHETIC >> (7 if arguments.quick else 0))


def run_all(arguments: argparse.Namespace) -> List[Dict[str, Any]]:
    rows, theirs = [], {} if arguments.ours else others()
    try:
        from bench.patch.own_patches import ours
    except (ImportError, AttributeError) as error:
        sys.exit(f"the package has no patches: {error}")
    for pair in pairs(arguments):
        if arguments.only not in f"{pair.data} {pair.kind}":
            continue
        large = pair.old.size > 1 << 22
        chosen = {**ours(pair.kind, pair.tensors), **{n: c for n, c in theirs.items() if not (large and n in NOT_LARGE)}}
        made = measure(pair, chosen, arguments.rounds if large else 1)  # (of the recordings sizes count)
        changed = int(np.count_nonzero(pair.old != pair.new))
        rows.append({"data": pair.data, "kind": pair.kind, "words": pair.old.size, "changed": changed, **bounds(pair), "rows": made})
        bits = {row["what"]: round(8 * row["bytes"] / max(1, changed), 2) for row in made if "bytes" in row}
        print(f"{pair.data} {pair.kind}: {100 * changed / pair.old.size:.3f} % changed; {bits}", file=sys.stderr, flush=True)
    return rows


def machine() -> Dict[str, Any]:
    import deepreduce
    from deepreduce._native import _abi, _library

    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    level = _library.load().dr_feature(_abi.DR_FEATURE_CPU)
    return {
        "date": datetime.date.today().isoformat(),
        "commit": os.environ.get("DR_COMMIT") or subprocess.run(git, capture_output=True, text=True).stdout.strip(),
        "cpu": next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine()),
        "level": LEVELS[level] if level < len(LEVELS) else str(level),
        "deepreduce": deepreduce.__version__,
        "zstd": Zstd().version,
        "load": round(os.getloadavg()[0], 2),
    }


def of_avx2(arguments: argparse.Namespace) -> Optional[List[Dict[str, Any]]]:
    """Ours by a process at that level."""
    words = [sys.executable, "-m", "bench.patch.rivals", "--ours", "--rounds", str(arguments.rounds), "--only", "synthetic"]
    words += ["--quick"] if arguments.quick else []
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "DEEPREDUCE_CPU": "avx2"}, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)["pairs"]


def measure_sizes(saved: Dict[str, Any], arguments: argparse.Namespace) -> None:
    """Measures our bytes again, which are the same on every machine, and leaves times and others' bytes as saved."""
    from bench.patch.own_patches import ours

    rows = {(pair["data"], pair["kind"]): pair for pair in saved["pairs"]}
    for pair in pairs(arguments):
        row = rows[pair.data, pair.kind]
        if int(np.count_nonzero(pair.old != pair.new)) != row["changed"]:
            sys.exit(f"{pair.data} {pair.kind}: not the words that were measured")
        found = {rival["what"]: rival for rival in row["rows"]}
        for name, candidate in ours(pair.kind, pair.tensors).items():
            candidate.prepare(pair.old)
            weights, patch = pair.old.copy(), candidate.make(pair.old, pair.new)
            candidate.apply(weights, patch)
            if not np.array_equal(weights, pair.new):
                raise AssertionError(f"{pair.data}, {pair.kind}: {name} does not give the result back")
            found[name]["bytes"] = len(patch)
    saved["sizes_commit"] = machine()["commit"]
    entropy.RESULTS.write_text(text_of(saved))


def main() -> None:
    parser = argparse.ArgumentParser(description="Patches of weights, ours beside what others send.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="data whose name has this; to standard output")
    parser.add_argument("--quick", action="store_true", help="a small synthetic tensor, to see that it works; keeps nothing")
    parser.add_argument("--ours", action="store_true", help="ours alone, to standard output")
    parser.add_argument("--sizes", action="store_true", help="bytes of ours anew; times and others' bytes stay as they are kept")
    arguments = parser.parse_args()
    if arguments.sizes:
        measure_sizes(json.loads(entropy.RESULTS.read_text()), arguments)
        return
    made: Dict[str, Any] = {**machine(), "rounds": arguments.rounds, "pairs": run_all(arguments)}
    if arguments.ours or arguments.quick or arguments.only:
        print(json.dumps(made))
        return
    if made["level"] == "avx512":
        made["avx2"] = of_avx2(arguments)
    made["load_after"] = round(os.getloadavg()[0], 2)
    saved = json.loads(entropy.RESULTS.read_text()) if entropy.RESULTS.exists() else {}
    entropy.RESULTS.write_text(text_of({**saved, **made}))


if __name__ == "__main__":
    main()
