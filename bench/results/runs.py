"""Several runs of a benchmark become one json: the median of the runs, so that neither the best nor a disturbed one counts.

    python3 bench/results/runs.py RUNS OUT.json COMMAND…     # COMMAND writes the json of a run to the file that is its last argument

A number that differs between runs becomes their median; a measured one (MERGED) has all runs beside it, in order, as `NAME_runs`.
Nothing is measured in a tree with uncommitted changes, and no result is kept of a build whose commit the history of main does not have: a commit that was rebased
after it was measured is gone, and what was measured cannot be repeated.
"""

import datetime
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parents[2]
MERGED = ("median", "seconds", "ratio", "encode_ns", "decode_ns", "sparsify_ns")


def is_number(x):
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def merged(parts):
    """One document of documents of the same shape."""
    first = parts[0]
    if isinstance(first, dict):
        made = {}
        for key in first:
            values = [part[key] for part in parts]
            made[key] = merged(values)
            if key in MERGED and len(parts) > 1 and all(map(is_number, values)):
                made[f"{key}_runs"] = values
        return made
    if isinstance(first, list):
        assert len({len(part) for part in parts}) == 1, "the runs have not the same rows"
        return [merged(items) for items in zip(*parts)]
    if all(map(is_number, parts)) and len(set(parts)) > 1:
        return statistics.median(parts)
    return first


def runs_of(row, key):
    """A figure in each run; in the one run that there was."""
    return row.get(f"{key}_runs", [row[key]])


def median_ratio(a, b, key="median"):
    """The ratio of two figures of the same runs: run by run, then the median. For some runs of 2026-11-21 only the ratios were saved."""
    ratios = a.get("over_streamvbyte_runs") or [x / y for x, y in zip(runs_of(a, key), runs_of(b, key))]
    return statistics.median(ratios)


def git(tree, *words):
    """(exit status, output)"""
    done = subprocess.run(["git", "-C", str(tree), *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.strip()


def uncommitted(tree=root):
    """The first file with changes that are not committed; "": none. What measuring writes here counts as none."""
    _, changed = git(tree, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!README.md", *(f":!docs/{page}.md" for page in ("RESULTS", "PYTORCH", "PAYS")), *(f":!bench/results/*.{kind}" for kind in ("json", "jsonl", "md", "svg")))
    return changed.splitlines()[0].split()[-1] if changed else ""


def is_in_main(commit, tree=root):
    """Whether the history of main has the commit: of the branch here, or, where there is none, of the one that was cloned."""
    main = next((name for name in ("main", "origin/main") if git(tree, "rev-parse", "--verify", "--quiet", name)[0] == 0), "")
    return bool(main) and git(tree, "merge-base", "--is-ancestor", commit, main)[0] == 0


def refuse_changes(tree=root):
    if changed := uncommitted(tree):
        sys.exit(f"{changed} has changes that are not committed: commit them, build, measure")


def refuse_unrepeatable(document, tree=root):
    """The document, if its commit can be built again; else the program ends."""
    commit = document["commit"]
    if commit.endswith("-dirty"):
        sys.exit(f"the build is of {commit}, with changes that are not committed: commit them, build, measure")
    if not is_in_main(commit, tree):
        sys.exit(f"the build is of {commit}, which main's history does not have: merge it, build, measure")
    return document


def one_run(command, environment=None):
    """What a command writes to the file that is its last argument."""
    refuse_changes()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "run.json")
        subprocess.run([*command, path], check=True, stdout=sys.stderr, env=environment)
        return refuse_unrepeatable(json.loads(path.read_text()))


def text_of(document):
    """JSON, of which each row of a list has a line."""
    cells = (f' {json.dumps(key)}: ' + ("[\n" + ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in value) + "\n ]" if isinstance(value, list) else json.dumps(value, ensure_ascii=False))
             for key, value in document.items())
    return "{\n" + ",\n".join(cells) + "\n}\n"


def keep(path, documents):
    """Writes what several runs measured as one json."""
    pathlib.Path(path).write_text(text_of({"date": datetime.date.today().isoformat(), **merged(documents), "runs": len(documents)}))


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    keep(sys.argv[2], [one_run(sys.argv[3:]) for _ in range(int(sys.argv[1]))])
