"""Measures the conditions of the proof: costs, links, models, steps and exchanges. What is in its folder is not measured again."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

import numpy

from bench.predict_proof import proof_grid
from bench.predict_proof.proof_grid import Condition
from bench.train import train_results
from bench.train.rank_pool import RankPool
from bench.train.shaped_links import ShapedLinks
from bench.train.task import ROOT

TIMEOUT = 1500.0  # seconds of a job
MBIT = {"unshaped": 0, "1gbit": 1000, "100mbit": 100}


def together(c: Condition) -> int:
    """Ranks that measure costs: where a condition's outnumber the cores, predict shares these."""
    return min(c.ranks, os.cpu_count() or 1)


class Proof:
    """folder: of what was measured. quick: fewer rounds, for a look whether all works; its numbers mean little."""

    def __init__(self, folder: Path, quick: bool = False) -> None:
        self.folder, self.quick = folder, quick
        folder.mkdir(parents=True, exist_ok=True)

    # ---- Results on disk ----

    def cached(self, name: str, make: Callable[[], Any]) -> Any:
        path = self.folder / f"{name}.json"
        if not path.exists():
            made = make()
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
            partial.replace(path)
        return json.loads(path.read_text("utf-8"))

    def profile_path(self, c: Condition) -> Path:
        transport = "gloo" if c.kind == "steps" else "mpi"
        return self.folder / f"profile-{transport}-{c.ranks}-{c.link}.json"

    def model_path(self, c: Condition) -> Path:
        return self.folder / f"model-{c.what}-{c.ranks}-{c.link}.json"

    def book_path(self, c: Condition) -> Path:
        return self.folder / f"book-{c.what}-{c.ranks}-{c.link}.txt"

    def measured(self, c: Condition) -> Dict[str, Any]:
        """The rows of a condition: profile, model, then what is predicted of them."""
        if c.kind == "steps":
            ranks = together(c)
            costs = self.cached(f"costs-cold-{ranks}", lambda: self.costs(ranks))
            measure = self._steps
        else:
            costs, measure = self._costs_of_exchanges(c), self._exchanges
        return dict(self.cached(f"{c.kind}-{c.what}-{c.ranks}-{c.link}", lambda: measure(c, costs)))

    # ---- Over gloo ----

    def _costs_of_exchanges(self, c: Condition) -> Any:
        ranks = together(c)
        return self.cached(f"costs-exchanged-{ranks}", lambda: self._exchanged_costs(ranks))

    def _exchanged_costs(self, ranks: int) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            paths = [str(Path(folder, f"rank{rank}.npy")) for rank in range(max(proof_grid.RANKS))]
            for rank, path in enumerate(paths):
                numpy.save(path, proof_grid.exchanged_gradient(1 << 20, rank))
            costs = self.costs(ranks, paths)
        costs["conditions"]["data"] = "as bench/comm's"
        return costs

    def costs(self, ranks: int, data: Sequence[str] = (), plans: Sequence[str] = ()) -> Any:
        """A profile without links. data: of the bundled gradients, where it is empty; plans: of all rows."""
        job = {
            "data": list(data),
            "evict": proof_grid.EVICTED,
            "kind": "calibrate",
            "plans": list(plans) or proof_grid.calibrated_plans(),
            "sizes": proof_grid.SIZES,
            "time": 0.02 if self.quick else 0.3,
        }
        with RankPool(ranks) as pool:
            return pool.run(job, TIMEOUT)[0]["profile"]

    def _steps(self, c: Condition, costs: Any) -> Any:
        job = {"kind": "times", "model": c.what, "methods": list(proof_grid.HOOKED), "seed": 1, "record": "local"}
        job.update(
            warm_up=proof_grid.WARM_UP, rounds=proof_grid.rounds_of(c, self.quick), steps=proof_grid.STEPS
        )
        with ShapedLinks(c.ranks, c.link) as links, links.pool() as pool:
            self.cached(self.profile_path(c).stem, lambda: pool.run(self.link_job(c, costs), TIMEOUT)[0]["profile"])
            job["plans"] = {proof_grid.BOOK: f"book:{self._book(c, pool)}"}
            where, answers = train_results.context(), pool.run(job, TIMEOUT)
        self.model_path(c).unlink(missing_ok=True)
        self.cached(self.model_path(c).stem, lambda: answers[0]["local"]["model"])
        rows = [_row(method, [a[method] for a in answers]) for method in proof_grid.HOOKED]
        return {**c.__dict__, "rows": rows, "rate": round(links.measured), **where}

    def _book(self, c: Condition, pool: RankPool) -> Path:
        """Made of a recording of its own: the one that predictions rest on comes with the steps."""
        first = self.recorded(c, pool)
        return write_book(os.environ["DEEPREDUCE_TOOL"], self.profile_path(c), first, c.ranks, self.book_path(c))

    def recorded(self, c: Condition, pool: RankPool, rounds: int = 2) -> Path:
        """A model, recorded in steps without an exchange."""
        job = {"kind": "times", "model": c.what, "methods": ["local"], "seed": 1, "record": "local"}
        job.update(warm_up=proof_grid.WARM_UP, rounds=rounds, steps=proof_grid.STEPS)
        path = self.folder / f"first-{self.model_path(c).name}"
        path.write_text(json.dumps(pool.run(job, TIMEOUT)[0]["local"]["model"], indent=1) + "\n", "utf-8")
        return path

    def link_job(self, c: Condition, costs: Any) -> Dict[str, Any]:
        bytes_ = proof_grid.BYTES[c.link][:: 2 if self.quick else 1]
        return {"kind": "calibrate", "profile": costs, "bytes": bytes_, "link_time": 0.05 if self.quick else 0.5}

    # ---- Over MPI ----

    def calibrate_again(self, c: Condition) -> None:
        """Measures the profile of exchanges that were measured, if it is not there."""
        if c.kind == "exchanges" and not self.profile_path(c).exists():
            self._exchanges(c, self._costs_of_exchanges(c), profile_only=True)

    def _exchanges(self, c: Condition, costs: Any, profile_only: bool = False) -> Any:
        sys.path.insert(0, str(ROOT / "bench" / "comm"))
        import links as mpi_links

        mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        if not mpiexec:
            raise FileNotFoundError("no mpiexec: pip install mpich mpi4py")
        bench = Path(os.environ.get("DEEPREDUCE_MPI_BENCH") or ROOT / "build" / "bench" / "comm" / "mpi_bench")
        if not bench.exists():
            raise FileNotFoundError(f"no {bench}: ninja -C build bench/comm/mpi_bench")
        mpi_links.take_down()
        try:
            mpi_links.set_up(c.ranks, MBIT[c.link])
            ranks = [mpiexec, "-launcher", "fork", "-disable-auto-cleanup", "-n", str(c.ranks)]
            ranks += ["sh", "-c", mpi_links.IN_NAMESPACE, "sh"]
            job = self.link_job(c, costs)
            made = lambda: with_hops(_calibrated(ranks, job, mpi_links.ENVIRONMENT), [*ranks, str(bench)], mpi_links.ENVIRONMENT)
            self.cached(self.profile_path(c).stem, made)
            if profile_only:
                return None
            where = train_results.context()
            rounds = proof_grid.rounds_of(c, self.quick)
            reports = _exchanged([*ranks, str(bench)], int(c.what), rounds, mpi_links.ENVIRONMENT)
            return {**c.__dict__, "rows": reports, **where}
        finally:
            mpi_links.take_down()


def write_book(tool: str, profile: Path, model: Path, ranks: int, path: Path, options: Sequence[str] = ()) -> Path:
    """RuntimeError if the tool fails. Where it writes no book, since none helps on that link: one of dense tensors. options: more of `deepreduce plan`'s."""
    words = [tool, "plan", str(profile), "--model", str(model), "--ranks", str(ranks), "-o", str(path.absolute()), *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode == 1 and "no book is written" in done.stderr:
        path.write_text("*: dense\n", "utf-8")
    elif done.returncode:
        raise RuntimeError(f"deepreduce plan ended with {done.returncode}: {done.stderr.strip()}")
    return path.absolute()


def _calibrated(ranks: List[str], job: Dict[str, Any], variables: Dict[str, str]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job")
        path.write_text(json.dumps(job), "utf-8")
        _run([*ranks, sys.executable, str(Path(__file__).with_name("mpi_job.py")), str(path)], variables)
        return json.loads(Path(f"{path}.out").read_text("utf-8"))


def with_hops(profile: Dict[str, Any], bench: List[str], variables: Dict[str, str]) -> Dict[str, Any]:
    """Messages of mpi.h in place of those of mpi4py: the exchanges are made in C, which polls four times as often."""
    profile["links"][-1].update(json.loads(_run([*bench, "--hops", "--no-finalize"], variables)))
    return profile


def _exchanged(bench: List[str], elements: int, rounds: int, variables: Dict[str, str]) -> List[Dict[str, Any]]:
    """The rows of bench/comm's program, which verifies what it times; MPI's own all-reduce is `dense`."""
    import deepreduce

    names = {str(deepreduce.Plan(plan)): plan for plan in proof_grid.exchange_plans()}
    plans = [word for plan in names.values() for word in ("--plan", plan)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.json")
        _run([*bench, "--elements", str(elements), "-n", str(rounds), *plans, "--no-finalize", "--json", str(path)], variables)
        rows = json.loads(path.read_text("utf-8"))["rows"]
    return [
        {
            "plan": "dense" if row["plan"] == "MPI_Iallreduce" else names[row["plan"]],
            "measured_ns": round(1e9 * row["time_s"]),
            "p10_ns": round(1e9 * row["p10_s"]),
            "p90_ns": round(1e9 * row["p90_s"]),
            "rounds": rounds,
            "sent": row["sent"],
        }
        for row in rows
    ]


def _run(words: List[str], variables: Dict[str, str]) -> str:
    environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, timeout=TIMEOUT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"mpiexec ended with {done.returncode}: {(done.stderr + done.stdout).strip()[-2000:]}")
    return done.stdout


# ---- Rows ----


def rounds_of(reports: List[Dict[str, Any]]) -> List[List[float]]:
    """Seconds of the steps of each round, of the slowest rank. reports: of one method, one for each rank."""
    return [[max(step) for step in zip(*seconds)] for seconds in zip(*(t["seconds"] for t in reports))]


def _row(method: str, reports: List[Dict[str, Any]]) -> Dict[str, Any]:
    """A step is over when its slowest rank is done. parts: ns of the hook's encode, wait, merge and own, and of compute, means of the ranks."""
    slowest = [step for round_ in rounds_of(reports) for step in round_]
    parts = {key: round(1e9 * statistics.fmean(t["parts"][key] for t in reports)) for key in reports[0]["parts"]}
    row = {"plan": method, "seconds": slowest, "sent": round(statistics.fmean(t["sent"] for t in reports))}
    return {**_timed(row), "parts": parts}


def _timed(row: Dict[str, Any]) -> Dict[str, Any]:
    times = sorted(1e9 * second for second in row["seconds"])
    at = lambda share: times[min(len(times) - 1, int(share * len(times)))]
    return {
        "plan": row["plan"],
        "measured_ns": round(statistics.median(times)),
        "p10_ns": round(at(0.1)),
        "p90_ns": round(at(0.9)),
        "rounds": len(times),
        "sent": row["sent"],
    }
