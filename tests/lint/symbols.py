#!/usr/bin/env python3
"""The list of exported functions, tests/abi/symbols.txt, against what the public headers declare and the version script lets out.

    symbols.py TREE     exit 1 if they differ; tests/abi/symbols.sh compares the list with a library that was built
"""
import fnmatch
import re
import sys
from pathlib import Path


def declared(root):
    """Functions that the public headers mark DR_API."""
    names = set()
    for header in sorted((root / "include").rglob("*.h")):
        text = re.sub(r"/\*.*?\*/|//[^\n]*|^\s*#[^\n]*(?:\\\n[^\n]*)*", " ", header.read_text(encoding="utf-8"), flags=re.S | re.M)
        names.update(re.findall(r"\bDR_API\b[^;({]*?\b(\w+)\s*\(", text))
    return names


def exported(root):
    """Patterns of the version script's global part."""
    text = (root / "capi/deepreduce.map").read_text(encoding="utf-8")
    return [pattern for part in re.findall(r"global:(.*?)(?:local:|\})", text, re.S) for pattern in re.findall(r"[\w*?]+", part)]


def main():
    root = Path(sys.argv[1])
    listed = (root / "tests/abi/symbols.txt").read_text(encoding="utf-8").split()
    headers, patterns = declared(root), exported(root)
    faults = [f"{name}: declared DR_API, not in symbols.txt" for name in sorted(headers - set(listed))]
    faults += [f"{name}: in symbols.txt, not declared DR_API in include/" for name in sorted(set(listed) - headers)]
    faults += [f"{name}: capi/deepreduce.map does not export it" for name in listed if not any(fnmatch.fnmatchcase(name, p) for p in patterns)]
    if listed != sorted(set(listed)):
        faults.append("symbols.txt is not sorted, or a name comes twice")
    print("\n".join(faults), end="\n" if faults else "")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
