"""The section of control.md about trainings over links that tbf shapes: control_live.jsonl, which bench/train/control_live.py adds to."""

import itertools
import json
from pathlib import Path

from bench.train.control_ladder import LADDER
from bench.train.control_rows import LAWS, MEETS, WITHIN, best_fixed, by_name, compute_ms, mean, runs

SETTLED = 20  # steps


def read(path):
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


def older(rows):
    """What became of the plans of old rows since."""
    if not any(row["commit"] in ("375b1c6", "f4f1e5e") for row in rows):
        return []
    return ["Rows of 375b1c6 and f4f1e5e are older than levels for each tensor: since then 4 bits score 0.203 on the small LSTM (6e9bf68b, two seeds), not 0.171, and Top-1 % sends half of the bytes."]


def verdict(rows):
    """What the live runs say, for the head of the page."""
    return ["Over real links ([live](#live-over-links-that-tbf-shapes)):", "", reach(rows), "", quality(rows)]


def lines(rows):
    """The section, without an empty line at its end."""
    text = [
        "## Live, over links that tbf shapes",
        "",
        "`python -m bench.train.control_live` trains by each plan and law over two namespaces; each rank shapes what it sends, between 1000 and",
        "100 Mbit/s, at the same steps. [control_live.jsonl](control_live.jsonl) has the rows. *Met*: steps whose wait is at most 1.2 times the",
        f"target. The best fixed plan is the densest of which {100 * MEETS:g} % of the steps meet it; if none does, the fastest. Ratios are of mean steps.",
        "*delay 100*: 100 Mbit/s, and a delay of each way that is drawn again every 20 ms, log-normal, 2 ms in the middle, 7 ms in one of ten, at",
        "most 30 (`bench/train/delayed_links.py`: the kernel here has no netem).",
        f"*Changes*: of the rung; on a constant link those after step {SETTLED}, too, of which trials of a denser rung are two each.",
        "The models are two LSTMs. There is no CNN, on which DC2 reports its gains, and a score is that after the last step: no curve of quality against time.",
        *older(rows),
        *noise(rows),
    ]
    for run in runs(rows):
        text += ["", *section(run, compute_of(run, rows))]
    return text


def ratios(run):
    """{(trace, law): step against the best fixed plan}"""
    found = {}
    for trace in dict.fromkeys(row["trace"] for row in run):
        of = by_name(run, trace)
        best = best_fixed(of)
        found.update({(trace, law): mean(of, law, "step_ms") / mean(of, best, "step_ms") for law in LAWS if best and law in of})
    return found


def reach(rows):
    """In a sentence."""
    every = [ratio for run in runs(rows) for ratio in ratios(run).values()]
    missed = sum(ratio > WITHIN for ratio in every)
    word = "missed live" if missed else "met live"
    return (
        f"**The reach, at most {WITHIN:g} times the best fixed plan's step on every trace, is {word}**: in {missed} of {len(every)} runs of a law the"
        f" step is longer, {max(every):.2f} times at most."
    )


def beaten(of, law):
    """Whether some fixed plan has a higher score than the law, in a shorter mean step and with fewer bytes."""
    better = lambda name: mean(of, name, "score") > mean(of, law, "score") and all(mean(of, name, key) < mean(of, law, key) for key in ("step_ms", "bytes"))
    return any(better(name) for name in of if name not in LAWS)


def quality(rows):
    """In a sentence: scores beside those of fixed plans."""
    pairs = [(of, law) for run in runs(rows) for trace in dict.fromkeys(row["trace"] for row in run) for of in [by_name(run, trace)] for law in LAWS if law in of]
    seeds = max((len(some) for of, _ in pairs for some in of.values()), default=1)
    more = f", of a trace of {seeds}" if seeds > 1 else ""
    worse = [(of, best, law) for of, law in pairs for best in [best_fixed(of)] if best and mean(of, law, "score") < mean(of, best, "score")]
    return (
        f"**Quality: in {sum(beaten(*pair) for pair in pairs)} of {len(pairs)} runs of a law a fixed plan has a higher score, in a shorter mean step and with fewer bytes.** Beside the best fixed plan, as defined below, the law's score is lower in"
        f" {len(worse)} of {len(pairs)}. Scores are of one seed{more}. A law sees time, not loss: it sends more where there is time, and that did not make these trainings better."
    )


def noise(rows):
    """The spread of several runs of one plan on one trace, for any target."""
    key = lambda row: (row["model"], row["trace"], row["name"])
    fixed = sorted((row for row in rows if row["name"] in LADDER and row["name"] != "dense"), key=key)
    groups = [(where, [row["step_ms"] for row in some]) for where, some in itertools.groupby(fixed, key)]
    groups = [(where, times) for where, times in groups if len(times) > 1]
    if not groups:
        return []
    (model, trace, name), times = max(groups, key=lambda group: max(group[1]) / min(group[1]))
    apart = sum(max(times) > WITHIN * min(times) for _, times in groups)
    return [
        "",
        f"A fixed plan does not depend on the target, so two runs of it tell the noise: {name} on *{trace}* ({model}) takes {min(times):.1f} ms in one and"
        f" {max(times):.1f} ms in another, a factor of {max(times) / min(times):.2f}; {apart} of {len(groups)} such pairs differ by more than {WITHIN:g}. "
        f"{'The noise is larger than the reach.' if apart else ''}".rstrip(),
    ]


def compute_of(run, rows):
    """ms. Not measured warm, it rests on all runs of the model, since one may be slow."""
    return compute_ms(run if run[0].get("warm") else [row for row in rows if row["model"] == run[0]["model"] and not row.get("warm")])


def section(run, compute):
    """The section of one model and target."""
    target, found = run[0]["target_ms"], ratios(run)
    traces = list(dict.fromkeys(row["trace"] for row in run))
    meet = [trace for trace in traces if any(mean(of, n, "met") >= MEETS for of in [by_name(run, trace)] for n in of if n not in LAWS)]
    ranges = [(law, [ratio for (_, best), ratio in found.items() if best == law]) for law in LAWS]
    words = ", ".join(f"`{law}` {min(some):.2f} to {max(some):.2f}" for law, some in ranges if some)
    text = [
        f"### {run[0]['model']}, target {target:g} ms, {100 * target / compute:.0f} % of the compute",
        "",
        f"Commit {run[0]['commit']}, {run[0]['date']}, {run[0]['steps']} steps. {computed(run, compute)} Against the best fixed plan: {words}."
        f" A fixed plan meets the target on {len(meet)} of {len(traces)} traces{': ' + ', '.join(meet) if meet else ''}.",
        "",
        "| trace | plan | step, median, ms | mean, ms | wait, ms | bytes a step | met | score | step against best | changes |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for trace in traces:
        of = by_name(run, trace)
        best = best_fixed(of)
        for name, some in of.items():
            mean_of = lambda key, of=of, name=name: mean(of, name, key)
            ratio = "best fixed" if name == best else f"{mean_of('step_ms') / mean(of, best, 'step_ms'):.2f}" if best else ""
            text.append(
                f"| {trace} | {name} | {mean_of('median_ms'):.1f} | {mean_of('step_ms'):.1f} | {mean_of('wait_ms'):.1f} | {mean_of('bytes'):,.0f} | "
                f"{100 * mean_of('met'):.1f} % | {mean_of('score'):.4f} | {ratio} | {changes(some) if name in LAWS else ''} |"
            )
    return text


def changes(some):
    """The changes of the first seed."""
    steps = [step for step, _ in some[0]["changes"][1:]]
    late = f", {sum(step > SETTLED for step in steps)} after step {SETTLED}" if some[0]["trace"].startswith("constant") else ""
    return f"{len(steps)}{late}"


def computed(run, compute):
    """What is known of the time of compute."""
    if any(row.get("warm") for row in run):
        return f"A step without exchange takes {compute:.1f} ms, measured warm, before each trace."
    smallest = list(LADDER)[-1]
    return (
        f"Compute is about {compute:.0f} ms: a step by {smallest} less its wait, median of its runs, with half a millisecond of encode and merge in it. "
        f"(`compute_ms` of these rows, {run[0]['compute_ms']:.1f}, is too long: it was the first run of fresh processes.)"
    )
