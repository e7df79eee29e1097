#!/usr/bin/env python3
"""The controller against fixed plans on links whose rate changes, in virtual time: control.json, control.md, control.svg.

    control_traces.py [--out FOLDER] [--seconds S] [--trace NAME…]
    control_traces.py --page        rewrites control.md from control.json and control_live.jsonl, and runs nothing

Two ranks exchange in one thread over the loopback. Frames, residuals and messages are real. A message takes as long as on a
link that follows a trace (link_traces.py), a step computes for 100 ms, and codecs cost nothing. Runs for about three minutes.
Exit 1 if the reach is missed.
"""
import argparse
import json
import os
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bindings" / "python"), str(Path(__file__).parent), str(ROOT)]

import control_live_page  # noqa: E402
import numpy  # noqa: E402
from bench.train import train_results  # noqa: E402
from bench.train.control_ladder import LADDER  # noqa: E402
from deepreduce.control import AdaptiveExchange, Controller  # noqa: E402
from deepreduce.exchange import Exchange, Loopback  # noqa: E402
from deepreduce.figure import adapt_to_dark  # noqa: E402
from link_traces import END, LATENCY, TRACES, Link  # noqa: E402

RANKS, ELEMENTS, COMPUTE = 2, 100_000, 0.1
TARGET, BAND = 0.02, 0.2  # seconds; of the controller, and of what counts as met
MEETS = 0.9  # of the steps
OTHER_TARGETS = (0.01, 0.04)  # reported, not judged
LAWS = ("aimd", "fit")
SETTLED, STEP_WITHIN, SHARE_WITHIN = 20, 1.15, 0.85  # the reach
LIVE = Path(__file__).with_name("control_live.jsonl")
RETRY = 50  # decisions, the controller's default

DEFINITION = f"""How it is judged, fixed before the runs. The user's wish is that the transfers of a step take at most D = {1e3 * TARGET:g} ms, and that as little as
possible is lost. A plan *meets* D on a trace if at least {100 * MEETS:g} % of its steps take at most {1 + BAND:g} · D in transfer. The *best fixed plan in hindsight* is the
densest of the ladder that meets D; if none does, the one with the shortest mean step. (Without D the smallest plan always wins.) The *worst* is the one with
the longest mean step. A run lasts {END:g} virtual seconds; a step is {1e3 * COMPUTE:g} ms of compute, its transfers, and of the controller also the words by which ranks agree.
*Delivered* is the share of the energy of gradient plus residual that a step sends, ‖g + e‖² − ‖e′‖² over ‖g + e‖², mean over steps.
Reach: on every trace the mean step is at most {STEP_WITHIN:g} times, and what is delivered at least {SHARE_WITHIN:g} times, that of the best fixed plan; on constant links
the rung does not change from decision {SETTLED} on, but for trials of a denser rung, which `retry` bounds (there and back, at most one in 50 decisions)."""


def gradient(rank, step):
    """[ELEMENTS] f32 with heavy tails; a part is the same at all steps."""
    whole = numpy.random.default_rng(7).standard_t(4, ELEMENTS)
    return (0.3 * whole + numpy.random.default_rng([rank, step]).standard_t(3, ELEMENTS)).astype(numpy.float32)


def run(link, ladder, control, seconds, gradients):
    """One training without a model. Returns what each step took, sent and delivered, and the log."""
    cost = lambda rank, step, elements, size: COMPUTE if step == "encode" and elements == ELEMENTS else 0.0
    loopback = Loopback(RANKS, latency=LATENCY, takes=lambda rank, now, size: link.takes(now, size), cost=cost)
    x = [numpy.empty(ELEMENTS, numpy.float32) for _ in range(RANKS)]
    log, steps = [], []
    ranks = [AdaptiveExchange(x[r], ladder, Controller(control, len(ladder)), loopback.transport(r)) for r in range(RANKS)]
    ranks[0].control.log = log.append
    # The ranks exchange their reports by this one: it takes as long as on the link.
    tiny = [Exchange(numpy.zeros(8, numpy.float32), "index=all value=raw", loopback.transport(r)) for r in range(RANKS)]
    clock = lambda: max(loopback.now(r) for r in range(RANKS))
    while clock() < seconds:
        begin, rung = clock(), ranks[0].rung
        for rank in range(RANKS):
            x[rank][:] = gradients[rank][len(steps) % len(gradients[rank])]
        residual = ranks[0].residual()
        whole = float(numpy.square(x[0] + residual, dtype=numpy.float64).sum())
        for rank in ranks:
            rank.start(len(steps))
        finish(loopback, [rank.exchange for rank in ranks])
        for rank in ranks:
            rank.finish()
        left = float(numpy.square(ranks[0].residual(), dtype=numpy.float64).sum())
        info = ranks[0].info
        if len(ladder) > 1 and ranks[0].due:
            for exchange in tiny:
                exchange.start()
            finish(loopback, tiny)
            for rank, exchange in zip(ranks, tiny):
                rank.control.observe(0, exchange.info.wait_ns / 1e9)
            words = [rank.report() for rank in ranks]
            if len({rank.decide(words) for rank in ranks}) != 1:
                raise SystemExit("ranks decided differently")
        steps.append((begin, rung, clock() - begin, info.wait_ns / 1e9, info.sent, 1 - left / whole))
    return steps, log


def finish(loopback, exchanges):
    for error in loopback.run(exchanges):
        if error is not None:
            raise error


def options_of(law, target):
    return f"{law}(target_ms={1e3 * target:g},band={BAND})"


def row_of(name, steps, target):
    return {
        "name": name, "steps": len(steps), "step_ms": round(1e3 * statistics.fmean(s[2] for s in steps), 2),
        "transfer_ms": round(1e3 * statistics.fmean(s[3] for s in steps), 2), "bytes": round(statistics.fmean(s[4] for s in steps)),
        "met": round(statistics.fmean(s[3] <= (1 + BAND) * target for s in steps), 4),
        "delivered": round(statistics.fmean(s[5] for s in steps), 4),
    }  # fmt: skip


def best_of(fixed):
    """Fixed plans from dense to small; the definition above."""
    return next((row for row in fixed if row["met"] >= MEETS), min(fixed, key=lambda row: row["step_ms"]))


def settled_at(rungs, retry):
    """The decision from which the rung stays but for trials that fail; changes after decision SETTLED that are not trials."""
    last = max(set(rungs[SETTLED:]), key=rungs[SETTLED:].count)
    at = next((i for i in range(len(rungs)) if rungs[i] == last and rungs[i : i + 5] == [last] * 5), len(rungs))
    visits = [i for i in range(max(at, SETTLED), len(rungs)) if rungs[i] == last - 1 and rungs[i - 1] == last]
    other = sum(rung not in (last, last - 1) for rung in rungs[max(at, SETTLED) :])
    gaps = [b - a for a, b in zip([at, *visits], visits)]
    return {"settled": at, "trials": len(visits), "oscillates": bool(other or any(gap < retry for gap in gaps))}


def run_fixed(link, seconds, gradients):
    """{plan: its steps}; the law has one rung to choose from."""
    plans = {name: plan or "feedback=residual index=all value=raw" for name, plan in LADDER.items()}
    return {name: run(link, [plan], options_of("fit", TARGET), seconds, gradients)[0] for name, plan in plans.items()}


def compare(link, fixed, target, seconds, gradients):
    """Rows of the fixed plans, the best and the worst of them, and of each law: (row, steps, log)."""
    rows = [row_of(name, steps, target) for name, steps in fixed.items()]
    best, worst = best_of(rows), max(rows, key=lambda row: row["step_ms"])
    laws = {}
    for law in LAWS:
        steps, log = run(link, list(LADDER.values()), options_of(law, target), seconds, gradients)
        row = row_of(law, steps, target)
        against = lambda other, *keys, row=row: {key.removesuffix("_ms"): round(row[key] / other[key], 3) for key in keys}
        row["against_best"] = against(best, "step_ms", "bytes", "delivered")
        row["against_worst"] = against(worst, "step_ms", "bytes")
        row["changes"] = sum(a[1] != b[1] for a, b in zip(steps, steps[1:]))
        laws[law] = (row, steps, log)
    return rows, best, worst, laws


def measure(names, seconds, others=()):
    gradients = [[gradient(rank, step) for step in range(64)] for rank in range(RANKS)]
    found = {}
    for name in names:
        pieces = TRACES[name]()
        link, curves, other_rows = Link(pieces), {}, []
        fixed = run_fixed(link, seconds, gradients)
        rows, best, worst, laws = compare(link, fixed, TARGET, seconds, gradients)
        for law, (row, steps, log) in laws.items():
            if name.startswith("constant"):
                row.update(settled_at([json.loads(line)["rung"] for line in log], RETRY))
            row["good"] = row["against_best"]["step"] <= STEP_WITHIN and row["against_best"]["delivered"] >= SHARE_WITHIN
            row["good"] &= not row.get("oscillates") and row.get("settled", 0) <= SETTLED
            rows.append(row)
            curves[law] = [[round(s[0], 2), s[1]] for i, s in enumerate(steps) if i == 0 or s[1] != steps[i - 1][1]]
            print(f"{name}: best {best['name']} {best['step_ms']} ms; {law} {row['step_ms']} ms, {row['against_best']}, {'good' if row['good'] else 'MISSED'}", flush=True)
        for target in others:
            _, its_best, _, its_laws = compare(link, fixed, target, seconds, gradients)
            other_rows += [{**row, "target_ms": 1e3 * target, "best": its_best["name"]} for row, _, _ in its_laws.values()]
        found[name] = {"best": best["name"], "worst": worst["name"], "rows": rows, "other_targets": other_rows, "rungs": curves, "pieces": [[round(t, 3), round(r)] for t, r in pieces if t < seconds]}
    return found


def write(made, folder):
    (folder / "control.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    (folder / "control.md").write_text(page(made, control_live_page.read(LIVE)), encoding="utf-8")


def page(made, live):
    """made: control.json. live: rows of control_live.jsonl"""
    found = made["traces"]
    lines = ["# The controller on links whose rate changes", "", *control_live_page.verdict(live), "", "`bench/results/control_traces.py` writes this page; [control.json](control.json) has the numbers, of commit " + made["commit"] + " (" + made["date"] + "). Virtual time, up to the section [Live](#live-over-links-that-tbf-shapes): a model, not a measurement of a network.", "", DEFINITION, "",
             "Ladder: " + ", ".join(f"{name} (`{plan or 'dense'}`)" for name, plan in LADDER.items()) + ". Laws: " + ", ".join(f"`{options_of(law, TARGET)}`" for law in LAWS) + ".", "",
             "![rungs over time](control.svg)", "", "| trace | plan | mean step, ms | transfer, ms | bytes a step | steps that meet D | delivered | step against best, worst | delivered against best | settled at | |", "|---|---|---|---|---|---|---|---|---|---|---|"]
    for name, result in found.items():
        for row in result["rows"]:
            mark = "best fixed" if row["name"] == result["best"] else "worst fixed" if row["name"] == result["worst"] else ""
            mark = ("good" if row["good"] else "**missed**") if "good" in row else mark
            ratio = f"{row['against_best']['step']:.2f}, {row['against_worst']['step']:.2f}" if "good" in row else ""
            share = f"{row['against_best']['delivered']:.2f}" if "good" in row else ""
            settled = f"decision {row['settled']}, {row['trials']} trials" if "settled" in row else ""
            lines.append(f"| {name} | {row['name']} | {row['step_ms']:.1f} | {row['transfer_ms']:.1f} | {row['bytes']:,} | {100 * row['met']:.0f} % | {row['delivered']:.3f} | {ratio} | {share} | {settled} | {mark} |")
    others = [(name, row) for name, result in found.items() if not name.startswith("constant") for row in result["other_targets"]]
    late = [f"{row['name']} on *{name}* ({row['against_best']['step']:.2f})" for name, row in others if row["against_best"]["step"] > STEP_WITHIN]
    lines += ["", "## Other targets, and what the controller does not win", "",
              "The controller uses the time that the target gives it: its step may take compute + D. Where the best fixed plan must be small because of the slow times, it is the faster one in the others, and delivers less: "
              f"so with a larger D the step is longer than {STEP_WITHIN:g} times the best fixed plan's. Here that is: {', '.join(late) or 'nowhere'}. And where only the mean step counts, a fixed plan in the middle, such as "
              "8 bit on *step*, does as well as the controller; to know which one takes hindsight. On constant links nothing but trials happens, each of two or three steps.", "",
              "| trace | D, ms | law | best fixed | step against best | delivered against best | steps that meet D |", "|---|---|---|---|---|---|---|"]
    for name, row in others:
        lines.append(f"| {name} | {row['target_ms']:g} | {row['name']} | {row['best']} | {row['against_best']['step']:.2f} | {row['against_best']['delivered']:.2f} | {100 * row['met']:.0f} % |")
    return "\n".join([*lines, "", *control_live_page.lines(live)]) + "\n"


def remade():
    """control.md, of what is kept."""
    return page(json.loads(Path(__file__).with_name("control.json").read_text("utf-8")), control_live_page.read(LIVE))


def draw(found, folder, seconds):
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "deepreduce", "font.size": 8, "axes.spines.top": False, "axes.grid": True, "grid.color": "#e4e4e4", "legend.frameon": False})
    names = list(found)
    figure, axes = pyplot.subplots(len(names), 1, figsize=(8, 1.6 * len(names)), sharex=True, squeeze=False, constrained_layout=True)
    for axis, name in zip(axes.flat, names):
        result, rate = found[name], axis.twinx()
        times, rates = zip(*result["pieces"])
        rate.step([*times, seconds], [8e-6 * r for r in (*rates, rates[-1])], where="post", color="#bbbbbb", linewidth=1)
        rate.set(ylabel="Mbit/s", ylim=(0, None))
        rate.grid(False)
        for law, colour in (("aimd", "#d55e00"), ("fit", "#0072b2")):
            at, rungs = zip(*result["rungs"][law])
            axis.step([*at, seconds], [*rungs, rungs[-1]], where="post", color=colour, linewidth=1.3, label=law)
        axis.axhline(list(LADDER).index(result["best"]), color="#009e73", linestyle=":", linewidth=1, label="best fixed")
        axis.set(title=name, yticks=range(len(LADDER)), yticklabels=list(LADDER), ylim=(len(LADDER) - 0.7, -0.3))
        axis.set_zorder(rate.get_zorder() + 1)
        axis.patch.set_visible(False)
    axes.flat[0].legend(loc="lower right", ncols=3)
    axes.flat[-1].set(xlabel="virtual seconds; grey: the rate of the link", xlim=(0, seconds))
    figure.savefig(folder / "control.svg", metadata={"Date": None})
    adapt_to_dark(folder / "control.svg")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seconds", type=float, default=END)
    parser.add_argument("--trace", nargs="+", choices=list(TRACES), default=list(TRACES), metavar="NAME")
    parser.add_argument("--page", action="store_true", help="run nothing")
    given = parser.parse_args()
    if given.page:
        (given.out / "control.md").write_text(remade(), "utf-8")
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    train_results.refuse_unrepeatable(given.out / "control.json")
    where = train_results.context()
    found = measure(given.trace, given.seconds, OTHER_TARGETS)
    given.out.mkdir(parents=True, exist_ok=True)
    write({**where, "target_ms": 1e3 * TARGET, "ladder": list(LADDER), "plans": LADDER, "laws": [options_of(law, TARGET) for law in LAWS], "compute_ms": 1e3 * COMPUTE, "elements": ELEMENTS, "ranks": RANKS, "traces": found}, given.out)
    draw(found, given.out, given.seconds)
    missed = [f"{name}, {row['name']}" for name, result in found.items() for row in result["rows"] if not row.get("good", True)]
    print(f"missed: {'; '.join(missed)}" if missed else "the reach is met on every trace")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
