#!/usr/bin/env python3
"""Each promise of SECURITY.md names the tests that hold it, and each of these exists.

    promises.py TREE

A promise is an item of the list below "## Promises": it ends with `FILE`: "case", "case"; `FILE`. A case is looked for in its file, the
file in a meson.build. Prints what is missing. Exit 1 if anything is, or if a planted fault goes unnoticed.
"""
import re
import sys
from pathlib import Path

PATH = re.compile(r"`(tests/[^`]+)`((?:(?:: |, )\"[^\"]+\")*)")


def promises(text):
    """The items of the lists, as (line, text)."""
    begin = text.index("\n## Promises")
    first = text.count("\n", 0, begin) + 1
    for number, line in enumerate(text[begin:].split("\n"), first):
        if line.startswith("- "):
            yield number, line


def check(root, text):
    built = "\n".join(path.read_text(encoding="utf-8") for path in (root / "tests").rglob("meson.build"))
    count = 0
    for number, line in promises(text):
        count += 1
        named = PATH.findall(line)
        if not named:
            yield f"SECURITY.md:{number}: names no test"
        for name, cases in named:
            if not (root / name).is_file():
                yield f"SECURITY.md:{number}: there is no {name}"
                continue
            if f"'{Path(name).name}'" not in built and f"'{Path(name).stem}'" not in built:
                yield f"SECURITY.md:{number}: no meson.build names {name}"
            source = (root / name).read_text(encoding="utf-8")
            for case in re.findall(r'"([^"]+)"', cases):
                if f'"{case}"' not in source:
                    yield f'SECURITY.md:{number}: {name} has no case "{case}"'
        if line.count("tests/") != len(named) or line.count('"') != 2 * sum(len(re.findall('"[^"]+"', cases)) for _, cases in named):
            yield f"SECURITY.md:{number}: a test or case that is not written `FILE`: \"case\", \"case\"; `FILE`"
    if count < 10:
        yield f"SECURITY.md: {count} promises found: is the list below ## Promises?"


# (the text to replace, its replacement, the expected complaint)
PLANTS = [
    ("tests/golden/golden.cpp", "tests/golden/nowhere.cpp", "there is no tests/golden/nowhere.cpp"),
    ('"every golden frame that is cut off', '"every golden frame that is whole', "has no case"),
    ("`tests/golden/golden.cpp`: ", "", "names no test"),
    ("`tests/fuzz/replay.cpp`", "tests/fuzz/replay.cpp", "is not written"),
    ("tests/fuzz/replay.cpp", "tests/fuzz/fix_check.hpp", "no meson.build names"),
]


def unnoticed(root, text):
    for old, new, complaint in PLANTS:
        if old not in text:
            yield f"promises.py: nothing to plant: {old}"
        elif not any(complaint in found for found in check(root, text.replace(old, new))):
            yield f"promises.py: planted {new or 'nothing'} in place of {old}: unnoticed"


def main():
    root = Path(sys.argv[1]).resolve()
    text = (root / "SECURITY.md").read_text(encoding="utf-8")
    found = [*check(root, text), *unnoticed(root, text)]
    print("\n".join(found) or "every promise has its test")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
