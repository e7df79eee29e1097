"""The file of results: a line of json a run, added as soon as the run is over. What is there is not run again."""

import argparse
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

ROOT = Path(__file__).resolve().parents[2]


def read(path: Path) -> List[Dict[str, Any]]:
    """All rows. The last line may be cut off, by a machine that went down: it is left out."""
    rows: List[Dict[str, Any]] = []
    if not path.exists():
        return rows
    lines = path.read_text("utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(f"{path}, line {number}: {error}") from None
    return rows


def add(path: Path, row: Dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_bytes() if path.exists() else b""
    with open(path, "ab") as file:
        if text and not text.endswith(b"\n"):  # of a line that was cut off, read() knows
            file.truncate(text.rfind(b"\n") + 1)
        file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")


def arguments(parser: argparse.ArgumentParser, results: Path) -> argparse.Namespace:
    """The arguments of a script that adds to the file `results`, with --list, --rehearsal and --out. Ends the program if a rehearsal would be added there."""
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--rehearsal", action="store_true")
    parser.add_argument("--out", type=Path, default=results)
    given = parser.parse_args()
    if given.rehearsal and given.out.resolve() == results:
        parser.error("--rehearsal needs --out FILE: its rows are not results")
    return given


def context() -> Dict[str, Any]:
    """Where and when a row was measured. load: of the machine before it, in processes."""
    return {"date": datetime.date.today().isoformat(), "commit": commit(), "load": round(os.getloadavg()[0], 2)}


def refuse_unrepeatable(out: Path) -> None:
    """Ends the program if it is to keep results in bench/results, of a tree with changes or of a commit that main does not have."""
    results = ROOT / "bench" / "results"
    if out.resolve().parent != results:
        return
    sys.path.insert(0, str(results))
    import runs

    runs.refuse_changes()
    runs.refuse_unrepeatable(context())


def commit() -> str:
    """DR_COMMIT, or the commit of the tree that ran; -dirty if the code that ran has changed since. Results do not count."""
    if given := os.environ.get("DR_COMMIT"):
        return given
    ask = lambda *words: subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    changed = ask("status", "--porcelain", "--", "bench/train", "bench/paper", "datasets", "bindings", "capi", "lib", "codecs")
    return (ask("rev-parse", "--short", "HEAD") or "unversioned") + ("-dirty" if changed else "")
