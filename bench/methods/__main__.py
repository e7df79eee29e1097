"""Whole calls of this library beside plain torch code of the same methods, and a table of methods. `./dev bench methods`

    DEEPREDUCE_LIBRARY=build/capi/libdeepreduce.so python -m bench.methods [--rounds N] [--size D…] [--method NAME…] [--out FILE]

CPU time of one thread; all that is timed takes its turn in each round of one run. What is timed is verified first. A
method that the library lacks has a row with the reason. Writes bench/results/methods.json, and methods.md from it.
"""

import argparse
import datetime
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
sys.path[:0] = [str(ROOT / "bindings" / "python"), str(RESULTS)]

import deepreduce  # noqa: E402
from deepreduce._native import _library  # noqa: E402

from bench.methods import ours, torch_codes  # noqa: E402
from bench.peers.python_peers import alternate  # noqa: E402
from bench.train import train_results  # noqa: E402
from bench.train.grace_methods import KNOWN, LEVEL, codec_plan, missing_in_library  # noqa: E402

SIZES = (1_000_000, 25_000_000)
GRADIENTS = ("resnet20_digits_step0150", "lstm_docs_step1500")
ROUNDS = 10  # of a transform on the same gradient, before its result is judged: it starts warm
DRAWS = 32  # of a plan with random numbers, for its bias
ROUNDING = 1e-9  # of contractions
LIKE = 0.1  # how far contractions of random methods may be apart: DGC keeps 0.7 to 1.3 of what it should
LEVELS = ("unknown", "scalar", "avx2", "avx512")
# Beside the literature's, by name: what of ours stands for their jobs.
OURS = {
    "top1_log": ("Top-1 %, log_quant", "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=log_quant"),
    "top1_auto": ("Top-1 %, auto(error=0.07)", "sparsify=topr(ratio=0.01) feedback=residual index=auto value=auto(error=0.07)"),
    "blocks": (
        "Blocks of 16, 8 %",
        "sparsify=blocks(ratio=0.08,block=16) feedback=residual index=golomb(adaptive=1) value=lloyd(price=0.35)",
    ),
}


def plans() -> Dict[str, "tuple[str, str, str]"]:
    """name: (title, paper, whole plan)"""
    made = {name: (known.title, known.paper, known.plan) for name, known in KNOWN.items()}
    return {**made, **{name: (title, "", plan) for name, (title, plan) in OURS.items()}}


def laplace(d: int) -> np.ndarray:
    """Laplace values, scaled so that the methods with a threshold select 1 %."""
    random = np.random.Generator(np.random.PCG64(d))
    return (LEVEL / np.log(100) * random.exponential(size=d) * random.choice([-1.0, 1.0], d)).astype(np.float32)


def gradient(name: str) -> List[np.ndarray]:
    """The tensors of a bundled one."""
    with np.load(ROOT / "datasets" / "gradients" / f"{name}.npz") as tensors:
        return [tensors[key] for key in tensors.files if tensors[key].dtype == np.float32]


def contraction(x: np.ndarray, made: np.ndarray) -> float:
    off = made.astype(np.float64) - x
    return float(off @ off) / float(np.square(x, dtype=np.float64).sum())


def verify(name: str, x: np.ndarray, ours_made: np.ndarray, theirs: np.ndarray, exact: bool) -> None:
    """Raises AssertionError unless both decode to the same, or are as far from x."""
    if exact:
        close = np.abs(ours_made - theirs) <= 1e-5 * np.abs(x).max()
        assert close.mean() >= 1 - 1e-6, f"{name}: {np.count_nonzero(~close)} elements differ"
    a, b = contraction(x, ours_made), contraction(x, theirs)
    assert abs(a - b) <= max(LIKE * max(a, b), ROUNDING), f"{name}: contraction {a:.4g} here, {b:.4g} in torch"


def row_of(name: str, what: str, **facts: Any) -> Dict[str, Any]:
    return {"method": name, "what": what, **facts}


def prepare_round(name: str, x: np.ndarray, plan: str, runs: Dict[Any, Any]) -> List[Dict[str, Any]]:
    """Prepares the whole rounds of a transform on both sides, from a cold start. Verifies them on a matrix of low rank, too,
    which both must reproduce."""
    tensor, shape, code = torch.from_numpy(x), torch_codes.matrix_shape(len(x)), torch_codes.CODES[name]
    parts = code.encode(tensor)
    rows = [row_of(name, "torch", d=len(x), bytes=torch_codes.size_of(parts), whole=True)]
    runs[name, "torch", "encode_ms"] = lambda: code.decode(code.encode(tensor), len(x))
    missing = missing_in_library(plan)
    if missing:
        return [*rows, row_of(name, "ours", d=len(x), plan=plan, missing=missing)]
    random = np.random.Generator(np.random.PCG64(1))
    low = (random.standard_normal((shape[0], 3)) @ random.standard_normal((3, shape[1]))).astype(np.float32)
    verify(name, low.ravel(), ours.PreparedRound([low], plan).run()[0].ravel(), low.ravel(), exact=False)
    mine = ours.PreparedRound([x.reshape(shape)], plan)
    verify(name, x, mine.run()[0].ravel(), code.decode(parts, len(x)).numpy(), exact=False)
    runs[name, "bound", "encode_ms"] = mine.run
    return [*rows, row_of(name, "bound", d=len(x), plan=plan, bytes=mine.size, whole=True)]


def prepare(name: str, x: np.ndarray, runs: Dict[Any, Any]) -> List[Dict[str, Any]]:
    """The rows of one method, verified, whose calls are put into runs."""
    plan = codec_plan(plans()[name][2])
    if plan.startswith("transform="):
        return prepare_round(name, x, plan, runs)
    tensor, d = torch.from_numpy(x), len(x)
    code, rows = torch_codes.CODES.get(name), []
    if code is not None:
        parts = code.encode(tensor)
        rows.append(row_of(name, "torch", d=d, bytes=torch_codes.size_of(parts)))
        runs[name, "torch", "encode_ms"] = lambda: code.encode(tensor)
        runs[name, "torch", "decode_ms"] = lambda: code.decode(parts, d)
    missing = missing_in_library(plan)
    if missing:
        return [*rows, row_of(name, "ours", d=d, plan=plan, missing=missing)]
    mine = ours.Prepared(x, plan)
    if code is not None:
        verify(name, x, mine.decode(), code.decode(parts, d).numpy(), code.exact)
    assert np.array_equal(mine.decode(), mine.decode_bound()), name
    rows += [row_of(name, what, d=d, plan=plan, bytes=len(mine.frame)) for what in ("ours", "bound")]
    runs.update({(name, *key): run for key, run in mine.runs().items()})
    return rows


def timed(names: List[str], d: int, rounds: int) -> List[Dict[str, Any]]:
    """One method after another, so that only its candidates are in memory; they take turns in each round."""
    x, rows = laplace(d), []
    copy = np.empty_like(x)
    for name in names:
        torch.manual_seed(1)
        runs: Dict[Any, Any] = {(name, "memcpy", "encode_ms"): lambda: np.copyto(copy, x)}
        made = [*prepare(name, x, runs), row_of(name, "memcpy", d=d, bytes=x.nbytes)]
        times = alternate(runs, rounds)
        for row in made:
            row.update({way: times[name, row["what"], way] for way in ("encode_ms", "decode_ms") if (name, row["what"], way) in times})
        rows += made
        print("\n".join(map(line, made)), flush=True)
    return rows


def line(row: Dict[str, Any]) -> str:
    times = ", ".join(f"{way[:-3]} {row[way]['median']:.4g} ms" for way in ("encode_ms", "decode_ms") if way in row)
    return f"{row['method']:16} {row['what']:7} d = {row['d']:,} " + (f"missing: {row['missing']}" if "missing" in row else f"{row['bytes']:,} bytes, {times}")


def judged(names: List[str], count: int) -> List[Dict[str, Any]]:
    """What each plan does to the bundled gradients, without memory."""
    rows: List[Dict[str, Any]] = []
    for data in GRADIENTS:
        tensors = gradient(data)
        x = np.concatenate([tensor.ravel() for tensor in tensors])
        for name in names:
            plan = codec_plan(plans()[name][2])
            missing = missing_in_library(plan)
            if missing:
                rows.append({"method": name, "data": data, "plan": plan, "missing": missing})
                continue
            if plan.startswith("transform="):
                size, last = ours.rounds_of(tensors, plan, ROUNDS)
                made = [last]
            else:
                made = ours.draws(x, plan, count if deepreduce.Plan(plan).draws else 1)
                size = len(deepreduce.encode(x, plan, step=1))
            rows.append({"method": name, "data": data, "plan": plan, "d": len(x), "bytes": size, **ours.quality_of(x, made)})
    return rows


def head(rounds: int) -> Dict[str, Any]:
    model = next((words.split(":")[1].strip() for words in open("/proc/cpuinfo") if words.startswith("model name")), "unknown")
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    commit = os.environ.get("DR_COMMIT") or subprocess.run(words, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "machine": {"cpu": model, "cores": os.cpu_count(), "level": LEVELS[_library.load().dr_feature(4)]},
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 2),
        "rounds": rounds,
        "clock": "CPU time of the thread",
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench methods", description="This library beside plain torch code, method by method.")
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--size", nargs="+", type=int, default=list(SIZES), metavar="D", help="elements (1,000,000 25,000,000)")
    parser.add_argument("--method", nargs="+", metavar="NAME", choices=plans())
    parser.add_argument("--draws", type=int, default=DRAWS, metavar="N", help="of a random plan, for its bias (32)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="bench/results/methods.json, of which methods.md is made")
    given = parser.parse_args()
    train_results.refuse_unrepeatable(given.out or RESULTS / "methods.json")
    torch.set_num_threads(1)
    names = given.method or list(plans())
    facts = head(given.rounds)  # its load is that of others
    rows = [row for d in given.size for row in timed(names, d, given.rounds)]
    from runs import text_of

    out: Optional[Path] = given.out
    document = {**facts, "rows": rows, "quality": judged(names, given.draws)}
    (out or RESULTS / "methods.json").write_text(text_of(document), "utf-8")
    if out is None:
        subprocess.run([sys.executable, str(RESULTS / "methods_page.py")], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
