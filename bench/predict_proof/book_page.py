"""The measured rows of plan books: verdicts, and the page (proof_book.py)."""

import statistics
from typing import Any, Dict, List, Sequence

from bench.train.shaped_links import RATES

Row = Dict[str, Any]
NAMES = {"dense": "dense f32", "bf16": "dense bf16", "uniform": "best uniform plan", "book": "plan book"}


def verdict(mine: Row, other: Row) -> str:
    """Beyond the spread: the quartiles of the two do not overlap."""
    if mine["q3_ns"] < other["q1_ns"]:
        return "faster"
    return "slower" if mine["q1_ns"] > other["q3_ns"] else "same"


def verdicts(row: Row) -> Dict[str, str]:
    """The verdicts on the book, by what it is compared with: {"uniform": …, "dense": …}, the latter the faster of f32 and bf16."""
    of = row["candidates"]
    dense = min((of["dense"], of["bf16"]), key=lambda candidate: candidate["measured_ns"])
    return {"uniform": "same plan" if row["same"] else verdict(of["book"], of["uniform"]), "dense": verdict(of["book"], dense)}


def latest(rows: Sequence[Row]) -> List[Row]:
    """The last of each model, link and budget; models first, slow links after fast ones."""
    last = {(row["model"], row["link"], row["budget"]): row for row in rows}
    return sorted(last.values(), key=lambda row: (row["model"], -RATES[row["link"]], row["budget"]))


def sentence_of(row: Row) -> str:
    """A line for the terminal."""
    times = ", ".join(
        f"{NAMES[name]} {1e-6 * candidate['measured_ns']:.1f} ms (predicted {1e-6 * candidate['predicted_ns']:.1f})"
        for name, candidate in row["candidates"].items()
    )
    judged = verdicts(row)
    return f"{row['model']}, {row['link']}, budget {row['budget']:g}: {times}; book: {judged['uniform']} against uniform, {judged['dense']} against dense"


def summary(rows: Sequence[Row]) -> str:
    """In a sentence: how often the book is faster, the same or slower."""
    some = latest(rows)
    found = [verdicts(row) for row in some]
    count = lambda key, word: sum(verdict[key] == word for verdict in found)
    kinds = [f"{word} in {count('uniform', word)}" for word in ("faster", "same", "slower")]
    alike = count("uniform", "same plan")
    beside = f"; in {alike} the best uniform plan is the book" if alike else ""
    return (
        f"Against the best uniform plan within the same budget the book is, of {len(some)} rows, {', '.join(kinds)}{beside}. Against the"
        f" faster of dense f32 and bf16 it is faster in {count('dense', 'faster')} and slower in {count('dense', 'slower')}."
    )


def error_of(candidate: Row) -> float:
    """Of the prediction: above 0 it is too long."""
    return float(candidate["predicted_ns"] / candidate["measured_ns"] - 1)


def predictions_of(rows: Sequence[Row]) -> str:
    """In a sentence: how far the predicted steps of books are off."""
    books = [row["candidates"]["book"] for row in latest(rows)]
    errors = [abs(error_of(book)) for book in books]
    worst = max(books, key=lambda book: abs(error_of(book)))
    return (
        f"**What the books are chosen by is off**: their predicted steps have a median error of {100 * statistics.median(errors):.0f} %, {sum(error <= 0.2 for error in errors)} of {len(errors)} are within 20 %;"
        f" the worst is predicted at {1e-6 * worst['predicted_ns']:.0f} ms and takes {1e-6 * worst['measured_ns']:.0f} ({100 * error_of(worst):+.0f} %). No row here was there when the model was made."
    )


def cell(candidate: Row) -> str:
    ms = lambda key: f"{1e-6 * candidate[key]:.1f}"
    return f"{ms('measured_ns')} [{ms('q1_ns')}, {ms('q3_ns')}] ({ms('predicted_ns')})"


def page(rows: Sequence[Row], name: str) -> str:
    """name: of the file that has the rows."""
    some = latest(rows)
    commits = ", ".join(sorted({row["commit"] for row in some}))
    text = [
        "# Plan books under an error budget, measured",
        "",
        f"Made by `python -m bench.predict_proof.proof_book`; [{name}]({name}) has the rows. Commits of the measurements: {commits}.",
        "",
        "`deepreduce plan --error-budget` chooses a plan for each tensor, so that the predicted step is short and the relative error of the",
        "whole gradient within the budget. Beside it stands the best *uniform* plan within the same budget, by the same model, and what",
        "torch has. Two ranks, links that tbf shapes; steps in turn, in rounds. Times are of the slowest rank, in ms: measured median [quartiles]",
        "(predicted). Errors are of one rank's gradient after some steps, without a residual. *Faster* and *slower*: the quartiles of",
        "the two do not overlap; else *same*.",
        "",
        summary(some),
        "",
        predictions_of(some),
        "",
        "| model | link | budget | error | dense f32 | dense bf16 | best uniform plan | plan book | book against uniform | against dense |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for row in some:
        of, words = row["candidates"], verdicts(row)
        cells = " | ".join(cell(of[key]) for key in NAMES)
        share = of["book"]["measured_ns"] / of["uniform"]["measured_ns"]
        beside = words["uniform"] if row["same"] else f"{words['uniform']}, {share:.2f} x"
        text.append(
            f"| {row['model']} | {row['rate'] / 1e6:.0f} Mbit/s | {row['budget']:g} | {row['error']:.3f} | {cells} | {beside} | {words['dense']} |"
        )
    drift = [row["recorded_ns"] / row["local"]["measured_ns"] - 1 for row in some]
    text += [
        "",
        f"A step without an exchange, as recorded before against as measured in turn with the others: {100 * min(drift):+.0f} to"
        f" {100 * max(drift):+.0f} %. Predictions rest on the former.",
        "",
        "## What was chosen",
        "",
    ]
    for row in some:
        text += [f"{row['model']}, {row['link']}, budget {row['budget']:g}: uniform `{row['uniform_plan']}`; the book", "", "```"]
        text += [*(f"{line['pattern']}: {line['plan']}" for line in row["book"]), "```", ""]
    return "\n".join(text[:-1]) + "\n"
