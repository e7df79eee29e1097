"""How old is what is kept here: the commits that each file names, and how many commits of the library are newer. `./dev results --age`

No page has these numbers: they change with every commit, and a page is what its script makes of what is kept.
"""

import json
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence

import runs

here = Path(__file__).resolve().parent
FOLDERS = ("lib", "codecs", "capi")
OF_PYTHON = "bindings/python"  # counts, too, for what was measured through the package
LISTED = 3  # commits of a file
# What README.md and docs/RESULTS.md quote without a commit beside it is to be measured again when it is so old, in commits of FOLDERS.
LIMIT = 100
QUOTED = ("resnet20_accumulator.json", "resnet20_flat.json", "sizes.json", "accumulated.json", "energy.json", "methods.json", "tuned.jsonl", "momentum_correction.json", "which_plan.jsonl")
# Kept without a commit that main has: these were rebased, or had changes that no commit has. A test lets nothing be added.
UNREPEATABLE = {
    "gpu_torch_topk.json": ["no commit"],  # torch alone, on the H100 of 2026-11-22
    "train_methods.jsonl": ["699ed96"],
    "train_paper.jsonl": ["83ca62b", "7187924-dirty", "386f159", "4656789", "699ed96"],
    "train.jsonl": ["26c78a9-dirty"],
    "fuzz.jsonl": ["uncommitted", "05ea76592a2c", "5cb3df89db34", "73398e8cabab", "842ad7cd46a5"],
}
COMMIT = re.compile(r"(?:v[\w.]+-\d+-g)?([0-9a-f]{7,40})(?:-dirty)?")  # as git describes them


def commits_in(value: Any) -> Iterator[str]:
    """All commits that a document names, under whatever `commit` of it."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key == "commit" and isinstance(part, str):
                yield part
            else:
                yield from commits_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from commits_in(part)


def named_by(path: Path) -> List[str]:
    text = path.read_text("utf-8")
    documents = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]
    return list(dict.fromkeys(commits_in(documents)))


def newer(commit: str, tree: Path = runs.root, folders: Sequence[str] = FOLDERS) -> int:
    """Commits of these folders since then; -1: main's history does not have it."""
    name = COMMIT.fullmatch(commit)
    if not name or not runs.is_in_main(name[1], tree):
        return -1
    return int(runs.git(tree, "rev-list", "--count", f"{name[1]}..HEAD", "--", *folders)[1])


def unrepeatable(path: Path) -> List[str]:
    """Commits of a file that main does not have, or of which the tree had changes; "no commit" where it names none."""
    commits = named_by(path)
    return [commit for commit in commits if commit.endswith("-dirty") or newer(commit) < 0] or ([] if commits else ["no commit"])


def line(path: Path) -> str:
    folders = (*FOLDERS, OF_PYTHON) if path.name.startswith("python_") else FOLDERS
    ages: Dict[str, int] = {commit: newer(commit, folders=folders) for commit in named_by(path)}
    known = sorted((commit for commit, age in ages.items() if age >= 0), key=ages.__getitem__)
    shown = known if len(known) <= LISTED else [known[0], known[-1]]
    words = [f"{commit}: {ages[commit]} newer" for commit in shown]
    if len(shown) < len(known):
        words.insert(1, f"{len(known) - len(shown)} between")
    if gone := [commit for commit, age in ages.items() if age < 0]:
        words.append(f"not in main's history: {', '.join(gone)}")
    return f"{path.name}: {'; '.join(words) or 'names no commit'}"


def old(names: Sequence[str] = QUOTED, folder: Path = here, tree: Path = runs.root) -> List[str]:
    """Of these files, those with a row that is older than LIMIT."""
    return [name for name in names if any(newer(commit, tree) > LIMIT for commit in named_by(folder / name))]


def lines() -> List[str]:
    """A line for each file that is kept, and one for those that the first pages quote and that are too old."""
    late = [f"README.md and docs/RESULTS.md quote what is older than {LIMIT} commits: {', '.join(names)}" for names in [old()] if names]
    return [f"Commits of {', '.join(FOLDERS)} since what was measured; of python_*.json those of {OF_PYTHON}, too.", *(line(path) for path in sorted(here.glob("*.json*"))), *late]
