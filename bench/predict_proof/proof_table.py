"""Predictions beside what was measured: errors, orders, verdicts; the table and the picture."""

import collections
import itertools
import json
import statistics
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Sequence

from bench.predict_proof import proof_grid
from bench.predict_proof.proof_grid import Condition
from bench.predict_proof.proof_run import Proof

IDEAS = Path(__file__).with_name("ideas.txt")  # tried and abandoned; from a run by hand
FARTHEST = 20  # rows that the page has
APART, EVEN = 1.15, 0.10  # orders count beyond a factor, verdicts beyond a share of break-even
WORDS = {"unshaped": "unshaped", "1gbit": "1 Gbit/s", "100mbit": "100 Mbit/s"}
Row = Dict[str, Any]


class PredictError(RuntimeError):
    """`deepreduce predict` failed."""


def predicted(tool: str, proof: Proof, c: Condition, skew: int = 0) -> Dict[str, float]:
    """ns, by the names that the rows of a condition have. skew: ns; 0: the model's, if it has one"""
    words = [tool, "predict", str(proof.profile_path(c)), "--ranks", str(c.ranks), "--format", "json", "--no-break-even"]
    if c.kind == "steps":
        plans = {m: proof_grid.local_plan(m) for m in proof_grid.HOOKED if m not in ("local", proof_grid.BOOK, *proof_grid.DENSE)}
        words += ["--model", str(proof.model_path(c)), "--book", str(proof.book_path(c))]
        words += ["--skew", f"{skew}ns"] if skew else []
    else:
        plans = {plan: plan for plan in proof_grid.exchange_plans()}
        words += ["--sizes", c.what, "--hook", "exchange"]
    words += [word for plan in plans.values() for word in ("--plan", plan)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise PredictError(f"{' '.join(words[:3])} …: {done.stderr.strip() or done.returncode}")
    steps = {row["candidate"]: row["step_ns"] for row in json.loads(done.stdout)["rows"]}
    import deepreduce

    names = {method: str(deepreduce.Plan(plan)) for method, plan in plans.items()}
    names.update(proof_grid.DENSE if c.kind == "steps" else {"dense": proof_grid.DENSE["dense"]})
    if c.kind == "steps":
        names[proof_grid.BOOK] = f"book {proof.book_path(c)}"
    return {name: steps[candidate] for name, candidate in names.items() if steps.get(candidate)}


def rows_of(tool: str, proof: Proof, conditions: Sequence[Condition]) -> List[Row]:
    rows: List[Row] = []
    for c in conditions:
        measured = proof.measured(c)
        alone = compute_of(proof, c, measured) if c.kind == "steps" else {}
        steps = predicted(tool, proof, c, int(alone.get("skew_ns", 0)))
        for row in measured["rows"]:
            if row["plan"] in steps:
                of = {"kind": c.kind, "what": c.what, "ranks": c.ranks, "link": c.link, **row}
                error = steps[row["plan"]] / row["measured_ns"] - 1
                rows.append({**of, "predicted_ns": steps[row["plan"]], "error": round(error, 4), "commit": measured["commit"], **alone})
    return rows


def unpredicted_of(rows: Sequence[Row], proof: Proof, conditions: Sequence[Condition]) -> List[Row]:
    """What was measured and is not among the predicted `rows`: plans that predict has no model of."""
    key = lambda of: (of["kind"], of["what"], of["ranks"], of["link"], of["plan"])
    predicted_ones = {key(row) for row in rows}
    measured = [{**row, **c.__dict__} for c in conditions for row in proof.measured(c)["rows"]]
    return [row for row in measured if row["plan"] != "local" and key(row) not in predicted_ones]


def unpredicted_line(rows: Sequence[Row], unpredicted: Sequence[Row]) -> str:
    """How many, and which; they are in no figure of the summary."""
    if not unpredicted:
        return f"All {len(rows)} rows that were measured are predicted."
    counts = collections.Counter(row["plan"] for row in unpredicted)
    plans = ", ".join(f"`{plan}` {count}" for plan, count in counts.items())
    return (
        f"Of {len(rows) + len(unpredicted)} rows that were measured {len(unpredicted)} are not predicted, and in no figure"
        f" here, since `deepreduce predict` has no model of them: {plans}."
    )


def compute_of(proof: Proof, c: Condition, measured: Dict[str, Any]) -> Dict[str, float]:
    """Steps without an exchange: the slowest rank's, as measured, rank 0's, as recorded, and the skew of the ranks.

    They are the same steps, so where a model was recorded without skew_ns their difference is that.
    """
    model = json.loads(proof.model_path(c).read_text("utf-8"))
    local = next(row["measured_ns"] for row in measured["rows"] if row["plan"] == "local")
    compute = sum(model[key] for key in ("forward_ns", "backward_ns", "rest_ns"))
    return {"local_ns": local, "compute_ns": compute, "skew_ns": model.get("skew_ns", max(0, local - compute))}


def with_skew(row: Row) -> Row:
    """A row that was predicted before models had skew_ns, as `predict --skew` has it.

    The models' gradients are one unit of the hook, whose all-gather nothing overlaps: all of the skew adds to the step.
    Of dense steps it does, too, but that the wait of the first bucket, in which backward is slowed down, is not counted.
    """
    if row["kind"] != "steps" or "skew_ns" in row or "local_ns" not in row:
        return row
    skew = max(0, row["local_ns"] - row["compute_ns"])
    predicted = row["predicted_ns"] + skew
    error = round(predicted / row["measured_ns"] - 1, 4)
    return {**row, "predicted_ns": predicted, "error": error, "skew_ns": skew, "skew_added": True}


# ---- The table ----


def of_condition(rows: Sequence[Row]) -> List[List[Row]]:
    key = lambda row: (row["kind"], row["what"], row["ranks"], row["link"])
    return [list(group) for _, group in itertools.groupby(sorted(rows, key=key), key)]


def orders(rows: Sequence[Row]) -> "tuple[int, int]":
    """(right, of): pairs of one condition whose measured times are apart."""
    right = of = 0
    for group in of_condition(rows):
        for a, b in itertools.combinations(group, 2):
            if max(a["measured_ns"], b["measured_ns"]) > APART * min(a["measured_ns"], b["measured_ns"]):
                of += 1
                right += (a["measured_ns"] < b["measured_ns"]) == (a["predicted_ns"] < b["predicted_ns"])
    return right, of


def verdicts(rows: Sequence[Row]) -> "tuple[int, int]":
    """(right, of): plans whose measured step differs from the faster dense one by more than EVEN."""
    right = of = 0
    for group in of_condition([row for row in rows if row["kind"] == "steps"]):
        dense = [row for row in group if row["plan"] in proof_grid.DENSE]
        if not dense:
            continue
        measured, predicted = (min(row[key] for row in dense) for key in ("measured_ns", "predicted_ns"))
        for row in group:
            if row["plan"] not in proof_grid.DENSE and abs(row["measured_ns"] / measured - 1) > EVEN:
                of += 1
                right += (row["measured_ns"] < measured) == (row["predicted_ns"] < predicted)
    return right, of


def summary(rows: Sequence[Row]) -> Dict[str, Any]:
    errors = [abs(row["error"]) for row in rows]
    (right, of), (signs, judged) = orders(rows), verdicts(rows)
    return {
        "rows": len(rows),
        "median_error": round(statistics.median(errors), 4) if errors else None,
        "within_20": round(sum(error <= 0.2 for error in errors) / len(errors), 4) if errors else None,
        "order": [right, of],
        "verdict": [signs, judged],
    }


def markdown(rows: Sequence[Row], picture: str, command: str, unpredicted: Sequence[Row] = (), others: Sequence[str] = ()) -> str:
    """others: lines on rows that were measured after the model was settled."""

    def line(name: str, some: Sequence[Row]) -> str:
        s = summary(some)
        share = lambda pair: f"{pair[0]} of {pair[1]}" if pair[1] else "none"
        return f"| {name} | {s['rows']} | {100 * s['median_error']:.1f} % | {100 * s['within_20']:.0f} % | {share(s['order'])} | {share(s['verdict'])} |"

    parts = [(name, [row for row in rows if row["kind"] == kind]) for name, kind in
             (("steps of DDP", "steps"), ("exchanges over MPI", "exchanges"))]  # fmt: skip
    parts += [(f"{WORDS[link]}", [row for row in rows if row["link"] == link]) for link in proof_grid.LINKS]
    parts += [(f"{n} ranks", [row for row in rows if row["ranks"] == n]) for n in proof_grid.RANKS]
    text = [
        "# Predicted step times against measured ones",
        "",
        f"Made by `{command}`: `deepreduce calibrate` of the machine and each link, models recorded, `deepreduce predict`, and real steps",
        f"in the same conditions. Commits of the measurements: {', '.join(sorted({row['commit'] for row in rows}))}.",
        "",
        "| rows | number | median error | within 20 % | order, beyond 15 % | verdict, beyond ± 10 % |",
        "|---|---:|---:|---:|---:|---:|",
        line("**all**", rows),
        *(line(name, some) for name, some in parts if some),
        "",
        *others,
        f"![predicted against measured]({picture})",
        "",
        "Order: pairs of one condition whose measured times differ by more than 15 %, of which the prediction has the same first. Verdict:",
        "plans whose step differs from the faster of dense f32 and bf16 by more than 10 %, of which the prediction says the same sign.",
        "Steps are the slowest rank's, medians; ranks share the machine's cores.",
        "",
        unpredicted_line(rows, unpredicted),
        *skew_lines(rows),
        "",
        *IDEAS.read_text("utf-8").splitlines(),
        "",
        "## The rows that are farthest off",
        "",
        f"{min(FARTHEST, len(rows))} of {len(rows)}; all are in [predictions.json](predictions.json).",
        "",
        "| what | ranks | link | plan | measured, ms | predicted, ms | error |",
        "|---|---:|---|---|---:|---:|---:|",
    ]
    for row in sorted(rows, key=lambda row: -abs(row["error"]))[:FARTHEST]:
        what = row["what"] if row["kind"] == "steps" else f"{int(row['what']):,} elements"
        text.append(
            f"| {what} | {row['ranks']} | {WORDS[row['link']]} | `{row['plan']}` | {1e-6 * row['measured_ns']:.2f} | "
            f"{1e-6 * row['predicted_ns']:.2f} | {100 * row['error']:+.0f} % |"
        )
    return "\n".join(text) + "\n"


def skew_lines(rows: Sequence[Row]) -> List[str]:
    """How far the slowest rank is behind rank 0, and how the predictions count it."""
    of = {(row["what"], row["ranks"], row["link"]): row["skew_ns"] / row["local_ns"] for row in rows if "skew_ns" in row}
    if not of:
        return []
    lines = [
        "",
        f"A step without an exchange takes the slowest rank longer than rank 0, whose times the model has: median {100 * statistics.median(of.values()):.1f} %"
        f" of the step, at most {100 * max(of.values()):.1f} %.",
        "Predictions count that difference as the skew of the ranks (`skew_ns`). It comes from steps without an exchange, which are no rows here.",
    ]
    if any(row.get("skew_added") for row in rows):
        lines += [
            "**Recomputed:** the measurements are the same as before; the predictions of DDP's steps now count the skew, which the recorded",
            "models did not have. It was added to each stored step: for plans that is what `predict --skew` gives, since a model's gradients are",
            "one unit, and nothing overlaps its all-gather; for `dense` and `bf16` it is at most (1 − 1 / slowdown) of the skew too short.",
        ]
    return lines


def picture(rows: Sequence[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "deepreduce", "font.size": 8})
    figure, axis = pyplot.subplots(figsize=(4.6, 4.4), constrained_layout=True)
    both = [1e-6 * row[key] for row in rows for key in ("measured_ns", "predicted_ns")]
    ends = [0.8 * min(both), 1.25 * max(both)]
    axis.plot(ends, ends, color="#888888", linewidth=0.8)
    axis.fill_between(ends, [0.8 * e for e in ends], [1.2 * e for e in ends], color="#e8e8e8", linewidth=0)
    marks = {"steps": "o", "exchanges": "^"}
    colours = {"unshaped": "#0072b2", "1gbit": "#009e73", "100mbit": "#d55e00"}
    for kind, mark in marks.items():
        for link, colour in colours.items():
            some = [row for row in rows if row["kind"] == kind and row["link"] == link]
            if some:
                x, y = ([1e-6 * row[key] for row in some] for key in ("measured_ns", "predicted_ns"))
                words = "steps of DDP" if kind == "steps" else "exchanges over MPI"
                axis.plot(x, y, mark, color=colour, markersize=3.5, alpha=0.8, label=f"{words}, {WORDS[link]}")
    axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured, ms", ylabel="predicted, ms")
    axis.set_title(f"{len(rows)} rows; the band is ± 20 %", fontsize=8)
    axis.legend(fontsize=6.5, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
