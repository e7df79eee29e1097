#!/usr/bin/env python3
"""A file has at most 400 lines, or long_files.csv beside this has the reason why it may have more.

    long_files.py TREE           prints what breaks that; a reason that no file needs is said, too
    long_files.py --list TREE    prints the long files with their lines and reasons
"""
import csv
import subprocess
import sys
from pathlib import Path

LIMIT = 400
KINDS = {".h", ".hpp", ".c", ".cpp", ".cu", ".cuh", ".py", ".sh", ""}


def sources(root):
    try:
        tracked = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"], check=True, capture_output=True, text=True).stdout.split("\n")
        names = [Path(name) for name in tracked if name]
    except (OSError, subprocess.CalledProcessError):
        names = [p.relative_to(root) for p in root.rglob("*") if not any(part.startswith((".", "build")) for part in p.relative_to(root).parts)]
    return [name for name in names if name.suffix in KINDS and (root / name).is_file() and (name.suffix or name.name == "dev")]


def main():
    listing = sys.argv[1] == "--list"
    root = Path(sys.argv[-1]).resolve()
    with open(Path(__file__).parent / "long_files.csv", encoding="utf-8", newline="") as file:
        reasons = {row["file"]: row["reason"] for row in csv.DictReader(file)}
    long = {str(name): count for name in sources(root) if (count := len((root / name).read_text(encoding="utf-8").splitlines())) > LIMIT}
    if listing:
        for name, count in sorted(long.items(), key=lambda item: -item[1]):
            print(f"{count:5} {name}: {reasons.get(name, 'no reason given')}")
        return
    found = [f"{name}: {count} lines, at most {LIMIT} (or a reason in tests/lint/long_files.csv)" for name, count in long.items() if not reasons.get(name)]
    found += [f"tests/lint/long_files.csv: {name} has no more than {LIMIT} lines, or is not there" for name in reasons if name not in long]
    print("\n".join(found) or "every long file has its reason")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
