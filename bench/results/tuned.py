"""Makes tuned.md and its picture of tuned.jsonl, which bench/train/tuned_rates.py fills: `python3 bench/results/tuned.py [FILE]`."""

import math
import statistics
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

here = Path(__file__).resolve().parent
sys.path[:0] = [str(here.parents[1]), str(here)]
from bench.train import train_results  # noqa: E402
from bench.train.tuned_rates import FULL, METHODS, RATES, SEEDS, best_rate, tuned  # noqa: E402
from curves import Curve, reached, table  # noqa: E402
from paired import Interval, paired  # noqa: E402

TITLES = {
    "dense": "dense f32", "bf16": "bf16", "top1_log": "Top-1 %, residual", "top1_warm": "Top-1 %, residual, warm-up of the ratio",
    "blocks": "Blocks of 16, 8 %, residual", "dgc": "DGC (momentum correction), 1 %", "powersgd1": "PowerSGD rank 1",
}  # fmt: skip
COLOURS = dict(zip(METHODS, ("#000000", "#999999", "#0072b2", "#56b4e9", "#009e73", "#d55e00", "#cc79a7")))
BYTES, LOSS, LAG = 0.02, 0.01, 0.10  # of the claims
Row = Dict[str, Any]

# Written before the first run, and not changed since: the history of this file has it.
CLAIMS = """1. **Loss.** A method that sends at most 2 % of dense's bytes ends with a held-out loss that is above dense's by no more than two standard errors of the difference, paired by seed, and by no more than 1 % of dense's loss.
2. **Lag.** Its curve of held-out loss against steps, the mean of the seeds, stays within 10 % of steps of dense's: from the first epoch on, each loss that is a new minimum of dense it reaches after at most 1.1 times as many steps. A loss that it does not reach before the end counts where the end is more than 1.1 times as far.
3. **Warm-up.** Top-1 % with a warm-up of the ratio ends with less loss than without it: the 95 % interval of the paired difference is below 0.
4. **Momentum correction.** DGC ends with less loss than Top-1 % with a residual, by the same measure.
5. **Blocks.** Blocks end with less loss than Top-1 % with a residual, in the same bytes, by the same measure.
6. **A check.** bf16 and dense do not differ: the interval of their difference has 0 in it."""


def lags(curve: Curve, dense: Curve, first: float) -> List[Tuple[float, float, bool]]:
    """(dense's step, how much later the curve has its loss as a share of that step, whether it gets there before the end), at each new minimum
    of dense from step `first` on. Where it does not get there the share is that of the end: a lower limit."""
    found, lowest, end = [], math.inf, curve[-1][0]
    for step, loss in dense:
        if loss < lowest and step >= first:
            there = reached(curve, loss)
            found.append((step, (end if there is None else there) / step - 1, there is not None))
        lowest = min(lowest, loss)
    return found


def behind(curve: Curve, dense: Curve) -> Optional[float]:
    """How many steps before the end dense had the last loss of the curve; None: it never has it."""
    there = reached(dense, curve[-1][1])
    return None if there is None else curve[-1][0] - there


class Measured:
    """The final runs, by method; of methods that have all seeds, in none of which they diverged."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        final = {method: {row["seed"]: row for row in rows if row["kind"] == "final" and row["method"] == method} for method in METHODS}
        self.diverged = [method for method, runs in final.items() if any("diverged" in row for row in runs.values())]
        self.runs = {m: runs for m, runs in final.items() if set(SEEDS) <= set(runs) and m not in self.diverged}

    def last(self, method: str, part: int = 1) -> Dict[int, float]:
        """{seed: loss, or with part=2 accuracy, at the end}"""
        return {seed: row["curve"][-1][part] for seed, row in self.runs[method].items()}

    def curve(self, method: str) -> Curve:
        return [(points[0][0], statistics.fmean(point[1] for point in points)) for points in zip(*(row["curve"] for row in self.runs[method].values()))]

    def share(self, method: str) -> float:
        """Of dense's bytes, of both ranks in the whole training."""
        sent = lambda name: sum(sum(row["sent"]) for row in self.runs[name].values())
        return sent(method) / sent("dense")

    def lags(self, method: str) -> List[Tuple[float, float, bool]]:
        return lags(self.curve(method), self.curve("dense"), self.runs["dense"][SEEDS[0]]["epoch"])

    @property
    def small(self) -> List[str]:
        return [method for method in self.runs if self.share(method) <= BYTES]


def spread(values: Sequence[float], digits: int) -> str:
    return f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def between(interval: Interval, digits: int) -> str:
    return f"{interval.mean:+.{digits}f} [{interval.low:+.{digits}f}, {interval.high:+.{digits}f}]"


def percent(lag: Tuple[float, float, bool]) -> str:
    return f"{'' if lag[2] else '> '}{100 * lag[1]:+.0f} %".replace("> +", "> ")


def results(m: Measured) -> str:
    lines = []
    for method, runs in m.runs.items():
        losses, accuracies, rows = m.last(method), {s: 100 * v for s, v in m.last(method, 2).items()}, list(runs.values())
        is_base = method == "dense"
        late = "" if is_base else behind(m.curve(method), m.curve("dense"))
        residuals = [row["residual"] for row in rows if "residual" in row]
        lines.append([
            TITLES[method], f"{rows[0]['rate']:g} ×", f"{100 * m.share(method):.2f} %", f"{statistics.fmean(row['sent'][0] for row in rows):,.0f}",
            spread(list(losses.values()), 4), spread(list(accuracies.values()), 2),
            "" if is_base else between(paired(losses, m.last("dense")), 4),
            "" if is_base else between(paired(accuracies, {s: 100 * v for s, v in m.last("dense", 2).items()}), 2),
            "" if is_base else percent(max(m.lags(method), key=lambda lag: lag[1])),
            "ahead" if late is None else late if late == "" else f"{late:.0f}",
            f"{statistics.fmean(residuals):.1f}" if residuals else "", f"{statistics.fmean(row['step_ms'] for row in rows):.1f}",
        ])  # fmt: skip
    head = ["method", "rate", "of dense's bytes", "bytes a step", "loss", "accuracy, %", "loss − dense's [95 %]", "accuracy − dense's [95 %]", "largest lag", "steps behind at the end", "residual ÷ gradient", "ms a step"]
    return table(head, lines)


def tuning(m: Measured) -> str:
    found = {method: tuned(m.rows, method) for method in METHODS}
    rates = sorted({rate for losses in found.values() for rate in losses} | set(RATES))
    cell = lambda losses, rate: "" if rate not in losses else "diverged" if math.isinf(losses[rate]) else f"**{losses[rate]:.4f}**" if rate == best_rate(losses) else f"{losses[rate]:.4f}"
    return table(["method", *(f"{rate:g} ×" for rate in rates)], [[TITLES[method], *(cell(losses, rate) for rate in rates)] for method, losses in found.items() if losses])


def edges(m: Measured) -> str:
    """Which grids were made longer, and where the best rate is still at an end."""
    found = {method: losses for method in METHODS if len(losses := tuned(m.rows, method)) >= len(RATES)}
    longer = [TITLES[method] for method, losses in found.items() if len(losses) > len(RATES)]
    still = [TITLES[method] for method, losses in found.items() if len(losses) > len(RATES) and best_rate(losses) in (min(losses), max(losses))]
    lines = [f"The best of the three rates was at an end of the grid, and one more beyond it was tried, of {'; '.join(longer)}." if longer else "No best rate is at an end of the grid."]
    if still:
        lines.append(f"It is still at the end of the longer grid of {'; '.join(still)}: a rate further out may be better.")
    return " ".join(lines)


def verdict(holds: bool, words: str) -> str:
    return f"**{'held' if holds else 'did not hold'}** ({words})"


def less(m: Measured, method: str, base: str) -> str:
    if method not in m.runs or base not in m.runs:
        return "not measured"
    interval = paired(m.last(method), m.last(base))
    return verdict(interval.high < 0, between(interval, 4))


def verdicts(m: Measured) -> str:
    dense, loss_lines, lag_lines = statistics.fmean(m.last("dense").values()), [], []
    for method in m.small:
        interval = paired(m.last(method), m.last("dense"))
        holds = interval.mean <= 2 * interval.error and interval.mean <= LOSS * dense
        loss_lines.append(f"   - {TITLES[method]}: {verdict(holds, f'{interval.mean:+.4f}, {100 * interval.mean / dense:+.1f} %, {interval.mean / interval.error:+.1f} standard errors' if interval.error else 'equal')}")
        late = max(m.lags(method), key=lambda lag: lag[1])
        lag_lines.append(f"   - {TITLES[method]}: {verdict(late[1] <= LAG, f'{percent(late)} at step {late[0]:.0f}')}")
    check = paired(m.last("bf16"), m.last("dense")) if "bf16" in m.runs else None
    return "\n".join([
        "1. Loss, of each method that sends at most 2 %:", *loss_lines, "2. Lag, of the same:", *lag_lines,
        f"3. Warm-up: {less(m, 'top1_warm', 'top1_log')}.", f"4. Momentum correction: {less(m, 'dgc', 'top1_log')}.", f"5. Blocks: {less(m, 'blocks', 'top1_log')}.",
        f"6. The check: {verdict(check.low <= 0 <= check.high, between(check, 4)) if check else 'not measured'}.",
    ])  # fmt: skip


HEAD = f"""# Tuned rates, trained to the end

Made by `tuned.py` of `tuned.jsonl`; `python -m bench.train.tuned_rates` measures. The CNN of 207,018 parameters on Fashion-MNIST, 2 ranks over gloo, 128 images a step, SGD with momentum 0.9, a rate that falls to zero over the run.
**The rate is each method's own**: {', '.join(f'{rate:g}' for rate in RATES)} times the task's 0.05, judged after one epoch by 5,000 images that it did not learn from, with a seed that no other table has. Then three seeds at the best one. Runs of one seed begin with the same weights and have the same batches, so differences are paired by seed.

- **Top-1 %** and **blocks** have a residual; single elements `index=golomb value=log_quant`, blocks `index=golomb(adaptive=1) value=lloyd(price=0.35)`. **Warm-up of the ratio**: 25, 6.25 and 1.56 %, each for a quarter of the first epoch, then 1 % (`control="steps(each=N)"`, a ladder of plans); DGC's paper has an epoch of each, of 90 and more.
- **DGC** has its sampled selection, momentum correction, masking and exact values; no warm-up. **PowerSGD** is torch's hook, with 10 dense steps first, which count.
- **Loss and accuracy** are of the 10,000 test images, judged each half epoch, at the end in the table; mean ± standard deviation of the seeds. **Intervals** are of the paired differences by Student's t.
- **Bytes** are those that a rank hands to collectives in the whole training, by gloo's rings, slots with their room included.
- **Largest lag**: claim 2's measure; `>` where that loss is not reached. **Steps behind at the end**: how long before the end dense had the last loss of the method. **Residual ÷ gradient**: norms after the last step, the gradient's of a rank's own batch.

## Claims, before the runs

{CLAIMS}
"""

LIMITS = """## What this does not show

- One small model, one data set, 2 ranks: nothing on larger models, on text, on Adam, or on more ranks, where less of what is selected is shared. A GPT of 14 million parameters, trained on a GPU, is to be the second model (`bench/train/device_gpt.py`): no device has run it.
- Three seeds: an interval is 4.3 standard errors to each side, so only large differences are shown, and an interval with 0 in it does not show that there is none.
- A rate that is best after one epoch need not be best after all of them; the grid has factors of two. The schedule, the momentum and the weight decay are one for all.
- The lag is of points half an epoch apart, on lines between them, and of losses that vary from point to point.
- Times are those of processes that share two cores and a loopback: they do not say what a method gains over a link.
"""


def page(rows: Sequence[Row]) -> str:
    m = Measured(rows)
    if "dense" not in m.runs:
        return f"{HEAD}\n## Results\n\nNothing has been measured yet.\n\n{LIMITS}"
    final = [row for row in rows if row["kind"] == "final"]
    names = lambda key: ", ".join(sorted({str(row[key]) for row in rows}))
    differing = sum(not row["identical"] for row in rows if "diverged" not in row)
    same = "the ranks end with the same weights, bit for bit" if not differing else f"**in {differing} the ranks end with different weights**"
    diverged = f"\nLeft out, because a run of theirs diverged: {', '.join(TITLES[method] for method in m.diverged)}.\n" if m.diverged else ""
    first = final[0]
    epochs = first["steps"] / first["epoch"]
    cut = f" (cut from {FULL.epochs}, the same for all methods, for want of time)" if epochs < FULL.epochs else ""
    return f"""{HEAD}
## Verdicts

{verdicts(m)}

## Results

{first['steps']:,} steps, {epochs:g} epochs{cut}; {len(rows)} runs, in {'all of' if not differing else 'the others of'} which {same}. Commit {names('commit')} ({names('date')}); {names('machine')}, 2 cores, a thread a rank; load before a run {min(row['load'] for row in rows):.1f} to {max(row['load'] for row in rows):.1f}.
{diverged}
{results(m)}

![held-out loss against steps](tuned.svg)

## The rates

Held-out loss after one epoch; the best in bold.

{tuning(m)}

{edges(m)}

{LIMITS}"""


def draw(m: Measured, path: Path) -> None:
    """Held-out loss against steps, the mean of the seeds, from the first half epoch on."""
    from train_pictures import grid, save

    figure, (axis,) = grid(1, across=1)
    figure.set_size_inches(6.4, 3.6)
    for method in m.runs:
        axis.plot(*zip(*m.curve(method)[1:]), color=COLOURS[method], linewidth=1.2, label=TITLES[method])
    axis.set(xlabel="step", ylabel="held-out loss")
    figure.legend(loc="outside lower center", ncols=2)
    save(figure, path)


def remade() -> str:
    """tuned.md, of what is kept."""
    return page(train_results.read(here / "tuned.jsonl"))


if __name__ == "__main__":
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else here / "tuned.jsonl"
    found = train_results.read(source)
    source.with_suffix(".md").write_text(page(found), "utf-8")
    if "dense" in (measured := Measured(found)).runs:
        draw(measured, source.with_suffix(".svg"))
