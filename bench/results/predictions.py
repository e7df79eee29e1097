"""Predicted step times against measured ones: writes predictions.json, predictions.md and predictions.svg beside it.

    bench/results/predictions.py                   all rows, on a quiet machine, as root: --list prints how long
    bench/results/predictions.py --link unshaped --ranks 2 --model resnet20 --kind steps      these only
    bench/results/predictions.py --quick --folder X …   few rounds: whether it works; writes into the folder only
    bench/results/predictions.py --table           predicts the measured conditions again and writes the table
    bench/results/predictions.py --stored          adds the ranks' skew to stored predictions without it, and writes the table
    bench/results/predictions.py --table --profiles     the same as --table, and measures profiles that were removed from the folder

Profiles, models and times are kept in --folder (.cache/predictions); what is there is not measured again. Exit 1 if
something failed, 2 for a wrong argument, 77 where links cannot be shaped.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import List

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bindings" / "python")]

from bench.predict_proof import book_page, proof_grid, proof_table  # noqa: E402
from bench.predict_proof.proof_grid import Condition  # noqa: E402
from bench.predict_proof.proof_run import Proof  # noqa: E402
from bench.train import train_results  # noqa: E402
from bench.train.rank_pool import RankError  # noqa: E402
from bench.train.shaped_links import Unsupported, WrongRate  # noqa: E402
from deepreduce.figure import adapt_to_dark  # noqa: E402

COMMAND = "bench/results/predictions.py"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=COMMAND, description="Predicted step times against measured ones.")
    parser.add_argument("--model", nargs="+", choices=[*proof_grid.MODELS, "lstm", "neumf", "cnn"])
    parser.add_argument("--ranks", nargs="+", type=int, choices=proof_grid.RANKS)
    parser.add_argument("--link", nargs="+", choices=proof_grid.LINKS)
    parser.add_argument("--kind", nargs="+", choices=("steps", "exchanges"), default=["steps", "exchanges"])
    parser.add_argument("--quick", action="store_true", help="few rounds: whether it works")
    parser.add_argument("--table", action="store_true", help="only predict and write, of what was measured")
    parser.add_argument("--stored", action="store_true", help="of the rows of predictions.json: adds the ranks' skew where none is counted")
    parser.add_argument("--profiles", action="store_true", help="calibrate again: profiles of exchanges that are not in the folder")
    parser.add_argument("--list", action="store_true", help="what there is, what is measured, how long the rest takes")
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache" / "predictions")
    given = parser.parse_args()
    if given.quick and given.folder == parser.get_default("folder"):
        parser.error("--quick measures little: give it a --folder of its own")
    return given


def tool() -> str:
    return os.environ.get("DEEPREDUCE_TOOL") or str(ROOT / "build" / "tool" / "deepreduce")


def is_there(folder: Path, c: Condition) -> bool:
    return (folder / f"{c.kind}-{c.what}-{c.ranks}-{c.link}.json").exists()


def out_of_sample() -> List[str]:
    """Predictions of what was measured after the model was settled, by what is kept of other pages."""
    books = book_page.latest(train_results.read(HERE / "predictions_book.jsonl"))
    uniform = {(row["model"], row["link"], row["uniform_plan"]): row["candidates"]["uniform"] for row in books}
    rounds = json.loads((HERE / "outer_rounds.json").read_text("utf-8"))["predicted"]
    groups = {
        "steps by plan books, [predictions_book.md](predictions_book.md)": [book_page.error_of(row["candidates"]["book"]) for row in books],
        "steps by the uniform plans beside them": [book_page.error_of(candidate) for candidate in uniform.values()],
        "rounds of an outer loop, [outer_rounds.md](outer_rounds.md)": [row["error"] for rows in rounds.values() for row in rows],
    }
    lines = [
        "**All of these rows are in sample.** The model and what `calibrate` measures for it were changed until these rows were predicted well ([below](#what-predictions-of-exchanges-were-missing)), and the skew",
        "was added to their predictions afterwards. So expect more error than this of a run of yours. Out of sample are rows that were measured when the model was settled:",
        "",
        "| out of sample | number | median error | within 20 % | worst |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, errors in groups.items():
        sizes = [abs(error) for error in errors]
        lines.append(f"| {name} | {len(errors)} | {100 * statistics.median(sizes):.1f} % | {sum(size <= 0.2 for size in sizes)} of {len(sizes)} | {100 * max(errors, key=abs):+.0f} % |")
    return [*lines, ""]


def of_rows(rows: List[proof_table.Row], unpredicted: List[proof_table.Row]) -> str:
    return proof_table.markdown(rows, "predictions.svg", COMMAND, unpredicted, out_of_sample())


def remade() -> str:
    """predictions.md, of what is kept."""
    stored = json.loads((HERE / "predictions.json").read_text("utf-8"))
    return of_rows(stored["rows"], stored["unpredicted"])


def write(rows: List[proof_table.Row], unpredicted: List[proof_table.Row], folder: Path) -> None:
    document = {"command": COMMAND, "summary": proof_table.summary(rows), "rows": rows, "unpredicted": unpredicted}
    (folder / "predictions.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    proof_table.picture(rows, folder / "predictions.svg")
    adapt_to_dark(folder / "predictions.svg")
    (folder / "predictions.md").write_text(of_rows(rows, unpredicted), "utf-8")
    print(proof_table.unpredicted_line(rows, unpredicted))
    print(json.dumps(document["summary"]))


def rewrite_stored() -> int:
    stored = json.loads((HERE / "predictions.json").read_text("utf-8"))
    write([proof_table.with_skew(row) for row in stored["rows"]], stored["unpredicted"], HERE)
    return 0


def main() -> int:
    given = arguments()
    if given.stored:
        return rewrite_stored()
    requested = proof_grid.conditions(given.model, given.ranks, given.link, given.kind)
    left = [c for c in requested if not is_there(given.folder, c)]
    seconds = sum(proof_grid.seconds_of(c, given.quick) for c in left)
    seconds += sum(proof_grid.calibrating_seconds(link, given.quick) for _, _, link in {(c.kind, c.ranks, c.link) for c in left})
    there = f"{len(requested)} conditions, {len(requested) - len(left)} of them are in {given.folder}"
    print(f"{there}; the others take about {seconds / 60:.0f} minutes", flush=True)
    if given.list:
        for c in requested:
            state = "measured" if is_there(given.folder, c) else f"{proof_grid.seconds_of(c, given.quick):.0f} s"
            print(f"{c.kind:10} {c.what:12} {c.ranks} ranks  {c.link:9} {state}")
        return 0
    os.environ.setdefault("DEEPREDUCE_TOOL", tool())
    os.environ.setdefault("DEEPREDUCE_LIBRARY", str(ROOT / "build" / "capi" / "libdeepreduce.so"))
    if left and not (given.quick or given.table):
        train_results.refuse_unrepeatable(HERE / "predictions.json")
    proof, failed = Proof(given.folder, given.quick), 0
    for number, c in enumerate([] if given.table else left):
        try:
            proof.measured(c)
            print(f"[{number + 1}/{len(left)}] {c.kind}, {c.what}, {c.ranks} ranks, {c.link}", flush=True)
        except Unsupported as error:
            print(f"unsupported here: {error}", file=sys.stderr)
            return 77
        except (RankError, WrongRate, RuntimeError, OSError, subprocess.SubprocessError) as error:
            failed += 1
            print(f"[{number + 1}/{len(left)}] {c}: {error}", file=sys.stderr, flush=True)
    done = [c for c in requested if is_there(given.folder, c)]
    for c in done if given.profiles else []:
        proof.calibrate_again(c)
    try:
        rows = proof_table.rows_of(tool(), proof, done)
    except proof_table.PredictError as error:
        print(error, file=sys.stderr)
        return 1
    if not rows:
        print("nothing was measured", file=sys.stderr)
        return 1
    write(rows, proof_table.unpredicted_of(rows, proof, done), given.folder if given.quick else HERE)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
