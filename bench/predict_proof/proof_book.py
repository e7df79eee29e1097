"""Plan books of mixed layers under an error budget, measured: beside the best uniform plan within it, dense f32 and dense bf16.

    python -m bench.predict_proof.proof_book                     all, as root on a quiet machine, at most 8 minutes
    python -m bench.predict_proof.proof_book --models lstm --rates 1000 --budgets 0.05 --steps 4 --rounds 1 --folder X --out X/rows.jsonl
    python -m bench.predict_proof.proof_book --page              rewrites the page

Of each model: gradients of a rank, their errors by each plan and tensor (`compare --per-tensor`), costs of the plans on them. Of each
link, which tbf shapes: its profile, a recorded model, `deepreduce plan --error-budget`. Then DDP steps of all these plans in turn. Adds
a row a model, link and budget to bench/results/predictions_book.jsonl, and writes predictions_book.md beside it. Calibration and
gradients are kept in --folder and used again. Exit 1 if something failed, 2 for a wrong argument, 77 where links cannot be shaped.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from bench.predict_proof import book_page, proof_grid, proof_run
from bench.predict_proof.proof_grid import Condition
from bench.predict_proof.proof_run import TIMEOUT, Proof
from bench.train import train_plan, train_results
from bench.train.rank_pool import RankError, RankPool
from bench.train.shaped_links import ShapedLinks, Unsupported, WrongRate
from bench.train.task import ROOT, settings

OUT = ROOT / "bench" / "results" / "predictions_book.jsonl"
RANKS = 2
LINKS = {1000: "1gbit", 100: "100mbit"}  # by --rates, in Mbit/s
TOP = "sparsify=topr(ratio={}) feedback=residual index=golomb value={}"
# Of all sizes and errors: the budget decides which of them a layer may have.
PLANS = [
    "feedback=residual index=all value=half",
    *(f"feedback=residual index=all value=uniform_quant(bits={bits})" for bits in (8, 4)),
    *(TOP.format(*parameters) for parameters in ((0.5, "uniform_quant(bits=8)"), (0.25, "uniform_quant(bits=8)"), (0.25, "half"), (0.1, "half"))),
    *(TOP.format(*parameters) for parameters in ((0.1, "log_quant"), (0.01, "log_quant"), (0.01, "raw"))),
]
TRAINED = 60  # steps before the gradients whose errors are taken
MIN_STEPS = 2  # steps of a plan and round
COSTS, LINK = 0.05, 0.2  # seconds: of a plan and size, of a message's size
SECONDS = 75.0  # of the steps of a model on a link, with those of the warm-up


class BookProof(Proof):
    """The proof of one model: its gradients, errors and costs are in the folder, too."""

    def __init__(self, folder: Path, model: str) -> None:
        super().__init__(folder)
        self.model = model

    def prepare(self, pool: RankPool) -> None:
        """Gradients, errors, costs."""
        gradients = self.folder / f"gradients-{self.model}.npz"
        if not gradients.exists():
            job = {"kind": "gradients", "model": self.model, "seed": 1, "steps": TRAINED, "path": str(gradients.absolute())}
            pool.run(job, TIMEOUT)
        if not self.errors().exists():
            words = ["compare", str(gradients), "--per-tensor", "--repeat", "1", "--output", str(self.errors())]
            _tool([*words, *(word for plan in PLANS for word in ("--plan", plan))])
        self.cached(f"costs-{self.model}", lambda: self.costs(RANKS, [str(gradients.absolute())], PLANS))

    def errors(self) -> Path:
        return self.folder / f"errors-{self.model}.json"

    def profile_path(self, c: Condition) -> Path:
        return self.folder / f"profile-{c.what}-{c.link}.json"

    def profiled(self, c: Condition, pool: RankPool) -> None:
        """The link is measured once for all models."""
        costs = self.cached(f"costs-{c.what}", dict)
        job = {**self.link_job(c, costs), "link_time": LINK}
        link = self.cached(f"link-{c.link}", lambda: pool.run(job, TIMEOUT)[0]["profile"])
        self.cached(self.profile_path(c).stem, lambda: {**costs, "links": link["links"], "overlap": link["overlap"]})

    def planned(self, c: Condition, model: Path, budget: float) -> Dict[str, Any]:
        """The report of `deepreduce plan` for a budget."""
        options = ["--error-budget", str(budget), "--errors", str(self.errors()), "--format", "json"]
        path = self.folder / f"plan-{c.what}-{c.link}-{budget:g}.json"
        proof_run.write_book(os.environ["DEEPREDUCE_TOOL"], self.profile_path(c), model, RANKS, path, options)
        return dict(json.loads(path.read_text("utf-8")))

    def measure(self, c: Condition, links: ShapedLinks, pool: RankPool, budgets: Sequence[float], turns: "Turns") -> List[Dict[str, Any]]:
        """A row a budget."""
        self.profiled(c, pool)
        model = self.recorded(c, pool, rounds=8)
        planned = {budget: self.planned(c, model, budget) for budget in budgets}
        methods, plans = methods_of(planned, self.folder / f"book-{c.what}-{c.link}")
        steps = turns.steps_of(seconds_of_all(planned, methods))
        timed_ones = ["local", "dense", "bf16", *plans]
        job = {"kind": "times", "model": c.what, "methods": timed_ones, "plans": plans, "seed": 1}
        job.update(warm_up=proof_grid.WARM_UP, rounds=turns.rounds, steps=steps)
        where, answers = train_results.context(), pool.run(job, TIMEOUT)
        times = {method: timed([answer[method] for answer in answers]) for method in timed_ones}
        common = {
            "kind": "book", "model": c.what, "ranks": RANKS, "link": c.link, "rate": round(links.measured), "steps": steps,
            "recorded_ns": recorded_ns(model), "local": times["local"], **where,
        }  # fmt: skip
        return [row_of(common, budget, planned[budget], methods[budget], times) for budget in budgets]


class Turns:
    """steps: of a plan in a round, at most; fewer where all of them would take more than `seconds`."""

    def __init__(self, steps: int, rounds: int, seconds: float) -> None:
        self.steps, self.rounds, self.seconds = steps, rounds, seconds

    def steps_of(self, seconds_of_all: float) -> int:
        """seconds_of_all: one step of each plan."""
        return min(self.steps, max(MIN_STEPS, int((self.seconds / seconds_of_all - proof_grid.WARM_UP) / self.rounds)))


def methods_of(reports: Dict[float, Dict[str, Any]], book: Path) -> Tuple[Dict[float, Dict[str, str]], Dict[str, str]]:
    """({budget: {"uniform": its method, "book": its method}}, {method: plan}): equal plans are one method, measured once.
    Books are written to files whose names begin with `book`."""
    import deepreduce

    methods: Dict[float, Dict[str, str]] = {}
    plans: Dict[str, str] = {}
    named: Dict[str, str] = {}
    for budget, plan in reports.items():
        lines = [(line["pattern"], line["plan"]) for line in plan["book"]]
        uniform = plan["uniform"]["plan"]
        names = {"uniform": "dense" if uniform == "dense" else named.setdefault(f"*: {uniform}\n", f"uniform {budget:g}")}
        if len({line_plan for _, line_plan in lines}) == 1:
            lines = [("*", lines[0][1])]
        whole = deepreduce.book.Book(lines)
        names["book"] = "dense" if lines == [("*", "dense")] else named.setdefault(str(whole), f"book {budget:g}")
        if uniform != "dense":
            plans.setdefault(names["uniform"], uniform)
        if names["book"] == f"book {budget:g}":
            path = Path(f"{book}-{budget:g}.txt").absolute()
            whole.write(path)
            plans[names["book"]] = f"book:{path}"
        methods[budget] = names
    return methods, plans


def seconds_of_all(reports: Dict[float, Dict[str, Any]], methods: Dict[float, Dict[str, str]]) -> float:
    """One step of each method, as predicted; `local` is at most as long as the shortest."""
    ns = {}
    for budget, plan in reports.items():
        ns.update({methods[budget]["uniform"]: plan["uniform"]["step_ns"], methods[budget]["book"]: plan["step_ns"]})
        ns.update(dense=plan["dense_step_ns"], bf16=plan["bf16_step_ns"])
    return 1e-9 * (sum(ns.values()) + min(ns.values()))


def timed(reports: List[Dict[str, Any]]) -> Dict[str, Any]:
    """ns of a step of the slowest rank: median and quartiles of all, medians of the rounds."""
    rounds = [[1e9 * step for step in round_] for round_ in proof_run.rounds_of(reports)]
    every = [step for round_ in rounds for step in round_]
    low, median, high = statistics.quantiles(every, n=4, method="inclusive")
    return {
        "measured_ns": round(median), "q1_ns": round(low), "q3_ns": round(high), "rounds_ns": [round(statistics.median(r)) for r in rounds],
        "sent": round(statistics.fmean(t["sent"] for t in reports)), "identical": len({t["hash"] for t in reports}) == 1,
    }  # fmt: skip


def row_of(
    common: Dict[str, Any], budget: float, report: Dict[str, Any], methods: Dict[str, str], times: Dict[str, Dict[str, Any]]
) -> Dict[str, Any]:
    predicted = {
        "dense": report["dense_step_ns"], "bf16": report["bf16_step_ns"], "uniform": report["uniform"]["step_ns"], "book": report["step_ns"],
    }  # fmt: skip
    measured = {name: times[methods.get(name, name)] for name in predicted}
    return {
        **common, "budget": budget, "error": report["error"], "uniform_plan": report["uniform"]["plan"], "book": report["book"],
        "same": methods["uniform"] == methods["book"], "exhaustive": report["exhaustive"],
        "candidates": {name: {"predicted_ns": predicted[name], **measured[name]} for name in predicted},
    }  # fmt: skip


def recorded_ns(model: Path) -> int:
    """A step without an exchange, as predictions rest on it."""
    description = json.loads(model.read_text("utf-8"))
    return int(sum(description[key] for key in ("forward_ns", "backward_ns", "rest_ns")))


def _tool(words: List[str]) -> None:
    done = subprocess.run([os.environ["DEEPREDUCE_TOOL"], *words], capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode:
        raise RuntimeError(f"deepreduce {words[0]} ended with {done.returncode}: {done.stderr.strip()}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="proof_book", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["lstm", "lstm_large"], metavar="NAME")
    parser.add_argument("--rates", nargs="+", type=int, choices=list(LINKS), default=list(LINKS), metavar="MBIT", help="1000, 100")
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.02, 0.05, 0.1], metavar="E", help="relative errors")
    parser.add_argument("--steps", type=int, default=36, help="of a plan and round; fewer on slow links")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the steps of a model on a link, about")
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache" / "predictions_book")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page")
    given = parser.parse_args()
    wrong: Optional[str] = train_plan.unknown(given.models, settings(), "model")
    if given.steps < MIN_STEPS or given.rounds < 1 or not given.seconds > 0:
        wrong = f"--steps is at least {MIN_STEPS}, --rounds at least 1, --seconds above 0"
    if min(given.budgets) < 0:
        wrong = f"--budgets {min(given.budgets):g}: at least 0"
    if wrong:
        parser.error(wrong)
    return given


def remade() -> str:
    """predictions_book.md, of what is kept."""
    return book_page.page(train_results.read(OUT), OUT.name)


def measure(given: argparse.Namespace) -> int:
    """The number of what failed."""
    turns, began, failed = Turns(given.steps, given.rounds, given.seconds), time.monotonic(), 0
    proofs = {model: BookProof(given.folder, model) for model in given.models}
    with RankPool(RANKS) as pool:
        for model, proof in proofs.items():
            proof.prepare(pool)
            print(f"[{time.monotonic() - began:.0f} s] {model}: gradients, errors and costs", flush=True)
    for rate in given.rates:
        with ShapedLinks(RANKS, LINKS[rate]) as links, links.pool() as pool:
            for model, proof in proofs.items():
                try:
                    rows = proof.measure(Condition("steps", model, RANKS, LINKS[rate]), links, pool, given.budgets, turns)
                except (RankError, RuntimeError, subprocess.SubprocessError) as error:
                    failed += 1
                    print(f"{model}, {rate} Mbit/s: {error}", file=sys.stderr, flush=True)
                    continue
                for row in rows:
                    train_results.add(given.out, row)
                    failed += not all(candidate["identical"] for candidate in row["candidates"].values())
                    print(f"[{time.monotonic() - began:.0f} s] {book_page.sentence_of(row)}", flush=True)
    return failed


def main() -> int:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are removed
    os.environ.setdefault("DEEPREDUCE_TOOL", str(ROOT / "build" / "tool" / "deepreduce"))
    os.environ.setdefault("DEEPREDUCE_LIBRARY", str(ROOT / "build" / "capi" / "libdeepreduce.so"))
    if not given.page:
        train_results.refuse_unrepeatable(given.out)
    failed = 0
    try:
        failed = 0 if given.page else measure(given)
    except Unsupported as error:
        print(f"unsupported here: {error}", file=sys.stderr)
        return 77
    except (RankError, WrongRate, RuntimeError, OSError, subprocess.SubprocessError) as error:
        failed += 1
        print(error, file=sys.stderr)
    rows = train_results.read(given.out)
    if not rows:
        print(f"{given.out}: no rows", file=sys.stderr)
        return 1
    given.out.with_suffix(".md").write_text(book_page.page(rows, given.out.name), "utf-8")
    print(book_page.summary(rows))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
