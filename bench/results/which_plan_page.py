"""Makes which_plan.md of which_plan.jsonl, which bench/train/which_plan.py fills, and of the step times of hook_steps.json; and the tables that readme.py writes into other pages.

    python3 bench/results/which_plan_page.py            # writes which_plan.md
"""

import functools
import json
import statistics
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from curves import reached, table
from paired import paired

here = Path(__file__).resolve().parent

TARGET = 2.3  # the loss that a method is timed to: all reach it, and dense is past the steps in which the rate grows
LINKS = ("unshaped", "1gbit", "100mbit")
TITLES = {
    "dense": "dense f32", "bits8": "8 bits, residual", "bits4": "4 bits, residual", "lowrank4": "`lowrank(rank=4)`, residual: `recommended`", "lowrank1": "`lowrank(rank=1)`, residual",
    "powersgd4": "PowerSGD of rank 4, torch's hook", "top10_log": "Top-10 %, residual", "top1_log": "Top-1 %, residual", "blocks": "Blocks of 16, 8 %, residual", "signs": "`onebit`",
}  # fmt: skip
# For docs/PAYS.md: the relative error E of one encode of the model's gradients at step 20, at 71c28984.
ERRORS = {"bits8": 0.01, "bits4": 0.19, "lowrank4": 0.49, "top10_log": 0.54, "lowrank1": 0.69, "signs": 0.78, "blocks": 0.81, "top1_log": 0.86}
Row = Dict[str, Any]


class Result(NamedTuple):
    """Of a method, all seeds together. sent: bytes a step and rank. losses: by seed, after the last step. steps: to TARGET, by the mean curve; None: not reached. by_seed: the same
    of each seed. ms: of a step, by link."""

    plan: str
    sent: float
    losses: Dict[int, float]
    steps: Optional[float]
    by_seed: List[Optional[float]]
    ms: Dict[str, float]

    @property
    def loss(self) -> float:
        return statistics.fmean(self.losses.values())

    def seconds(self, link: str) -> str:
        return "not reached" if self.steps is None else f"{self.steps * self.ms[link] / 1e3:.0f}"


def saved() -> List[Row]:
    return [json.loads(line) for line in (here / "which_plan.jsonl").read_text("utf-8").splitlines()]


def step_times() -> List[Row]:
    """Of two ranks, by these methods."""
    return [row for row in json.loads((here / "hook_steps.json").read_text("utf-8")) if row["ranks"] == 2 and row["method"] in TITLES]


@functools.cache
def results() -> Dict[str, Result]:
    found: Dict[str, Result] = {}
    for method in TITLES:
        rows = [row for row in saved() if row["method"] == method]
        curve = [(points[0][0], statistics.fmean(point[1] for point in points)) for points in zip(*(row["curve"] for row in rows))]
        found[method] = Result(
            f"`{rows[0]['plan']}`" if rows[0]["plan"] else "", statistics.fmean(row["sent"] for row in rows), {row["seed"]: row["curve"][-1][1] for row in rows},
            reached(curve, TARGET), [reached(row["curve"], TARGET) for row in rows], {row["link"]: row["median"] for row in step_times() if row["method"] == method},
        )  # fmt: skip
    return found


def commits(rows: Sequence[Row]) -> str:
    return ", ".join(dict.fromkeys(f"{row['commit']} ({row['date']})" for row in rows))


def remade() -> str:
    """which_plan.md, of what is kept."""
    found = results()
    dense = found["dense"]
    lines = []
    for method, result in found.items():
        apart = paired(result.losses, dense.losses)
        lines.append([
            TITLES[method], result.plan, f"{result.sent / 1e3:,.0f}", f"{result.loss:.3f} ± {statistics.stdev(result.losses.values()):.3f}",
            "" if result is dense else f"{apart.mean:+.3f} [{apart.low:+.3f}, {apart.high:+.3f}]",
            steps_of(result), *(result.seconds(link) for link in LINKS),
        ])  # fmt: skip
    head = ["method", "plan", "kB a step and rank", "loss after 300 steps", "loss − dense's [95 %]", f"steps to {TARGET:g} (seeds)", "s to it: no limit", "1 Gbit/s", "100 Mbit/s"]
    return f"""# Which plan: loss, bytes and time

Made by `which_plan_page.py` of `which_plan.jsonl`; `python -m bench.train.which_plan` trains. A GPT of 3.3 M parameters over bytes (`bench/train/byte_gpt.py`), 2 ranks over gloo, 4 × 64 bytes a rank and step, 300 steps of AdamW, **one rate for all, 1e-3**, which rises for 20 steps and falls to zero at the end; {len(dense.losses)} seeds,
in each of which all methods have the same first weights and batches. Loss: of held-out text, mean ± standard deviation over the seeds; differences are paired by seed, with Student's interval. Commit {commits(saved())}.

{table(head, lines)}

- **Bytes**: what a rank hands to collectives in a step of the second half, slots with their room included. PowerSGD of torch has ten dense steps first.
- **Seconds are computed**: steps to the loss, by the mean curve of the seeds, times the median step of [hook_steps.md](hook_steps.md) (commit {commits(step_times())}), whose methods took turns over one link; frames of 4 and 8 bits were 13 and 8 % smaller in those steps. A training of this length was not run over each link.
- **One model, one rate, one schedule.** What a method reaches at a rate of its own, on another model, is [tuned.md](tuned.md). The schedule ends at 300 steps, so losses in the middle are of a rate that is still high.
"""


def steps_of(result: Result) -> str:
    """To TARGET, with the range of the seeds."""
    if result.steps is None:
        return "not reached"
    seeds = [steps for steps in result.by_seed if steps is not None]
    return f"{result.steps:.0f} ({min(seeds):.0f} – {max(seeds):.0f})"


def readme_table() -> str:
    """README.md's four rows."""
    found = results()
    words = {"dense": "dense f32", "bits4": f"4 bits: {found['bits4'].plan}", "lowrank4": f"`recommended`: {found['lowrank4'].plan}, PowerSGD", "top1_log": f"Top-1 %: {found['top1_log'].plan}"}
    share = lambda result: f"{100 * result.sent / found['dense'].sent:.2g} %"
    lines = [[words[m], share(found[m]) if m != "dense" else "100 %", f"{found[m].loss:.2f}", f"{found[m].seconds('1gbit')}, {found[m].seconds('100mbit')}"] for m in words]
    return f"""
{table(["plan", "of dense bytes", "held-out loss, 300 steps", f"seconds to a loss of {TARGET:g}: 1 Gbit/s, 100 Mbit/s"], lines)}

One model: a GPT of 3.3 M parameters, AdamW, 2 ranks, {len(found['dense'].losses)} seeds, commit {commits([row for row in saved() if row["method"] in words])} ([which plan](docs/PYTORCH.md#which-plan)).

"""


def pytorch_table() -> str:
    """docs/PYTORCH.md's rows."""
    found = results()
    lines = [[TITLES[m], f"{r.sent / 1e3:,.0f}", f"{r.loss:.3f}", ", ".join(r.seconds(link) for link in LINKS) if r.steps is not None else "not reached"] for m, r in found.items()]
    return f"\n{table(['plan', 'kB a step and rank', 'held-out loss after 300 steps', f's to a loss of {TARGET:g}: no limit, 1 Gbit/s, 100 Mbit/s'], lines)}\n\n"


def pays_table() -> str:
    """docs/PAYS.md's rows: steps beside what the rule says."""
    found = results()
    dense = found["dense"]

    def steps(m: str) -> str:
        mine, base = found[m].steps, dense.steps
        if mine is None or base is None:
            return "not reached"
        ratios = [a / b for a, b in zip(found[m].by_seed, dense.by_seed) if a and b]
        return f"{mine / base:.2f} ({min(ratios):.2f} – {max(ratios):.2f})"

    lines = [[TITLES[m].split(",")[0], f"{e:.2f}", f"{1 / (1 - e * e):.2f}", steps(m)] for m, e in ERRORS.items()]
    return f"\n{table(['plan', 'E', '1 / (1 − E²)', f'steps to a loss of {TARGET:g}, over dense (by seed)'], lines)}\n\n"


if __name__ == "__main__":
    (here / "which_plan.md").write_text(remade(), "utf-8")
