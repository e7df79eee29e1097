#!/usr/bin/env python3
"""Warns of files of more than 400 lines: it may be time to part ideas that have become two. A file that is one idea may be as long as that takes;
a second file that only holds what did not fit into the first is worse.

    long_files.py TREE    prints them, the longest first. The exit status is 0
"""
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
    root = Path(sys.argv[-1]).resolve()
    long = {str(name): count for name in sources(root) if (count := len((root / name).read_text(encoding="utf-8").splitlines())) > LIMIT}
    for name, count in sorted(long.items(), key=lambda item: -item[1]):
        print(f"warning: {name}: {count} lines, more than {LIMIT}")


if __name__ == "__main__":
    main()
