#!/usr/bin/env python3
"""The checks of a tree that need no build. Run by `./dev check`, which installs the tools.

    check.py BUILD [--all] [NAME…]     BUILD: a configured folder; --all: clang-tidy over everything

Prints a line for each step, with its findings if there are any. Exit 1 if there are, 2 for an unknown name.
"""
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("*.c", "*.h", "*.cpp", "*.hpp", "*.cu", "*.cuh", ":!tests/abi/kept")  # a client as it was


def tracked(*patterns):
    done = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:  # a source archive
        sys.exit(f"check looks at the files that git tracks, and git says: {done.stderr.strip()}")
    return done.stdout.splitlines()


def steps(build, everything):
    """name: commands as (folder, words)."""
    scripts = ["dev", ".ci/run", *tracked("*.sh")]
    python = sys.executable
    layering = [python, "tests/lint/layering.py"]
    return {
        "format": [(".", ["clang-format-14", "--dry-run", "--Werror", *tracked(*SOURCES)])],
        "shell": [*((".", ["bash", "-n", script]) for script in scripts), (".", ["shellcheck", *scripts])],
        "ruff": [(".", [python, "-m", "ruff", "check", "--quiet", "--output-format", "concise", *tracked("*.py")])],
        "mypy": [(".", [python, "-m", "mypy", "--no-error-summary"]),
                 ("bindings/python", [python, "-m", "mypy", "--no-error-summary", "--cache-dir", str(build / "mypy")])],
        "layering": [(".", [*layering, "."]), (".", [*layering, "--self-test", "."])],
        "sizes": [(".", [python, "tests/lint/long_files.py", "."])],  # warnings, at the end
        "promises": [(".", [python, "tests/lint/promises.py", "."])],
        "plans": [(".", [python, "tests/lint/plan_text.py", "."])],
        "words": [(".", [python, "tests/lint/words.py", "."])],
        "symbols": [(".", [python, "tests/lint/symbols.py", "."])],
        "tidy": [(".", [python, "tests/lint/tidy.py", str(build), *(["--all"] if everything else [])])],
    }


def quick_steps(changed):
    """name: commands, of what takes seconds: the changed files' layout and lint, and the rules of the tree."""
    python = sys.executable
    kinds = tuple(pattern[1:] for pattern in SOURCES if pattern[0] == "*")
    of = {"format": [name for name in changed if name.endswith(kinds) and not name.startswith("tests/abi/kept")],
          "shell": [name for name in changed if name in ("dev", ".ci/run") or name.endswith(".sh")],
          "ruff": [name for name in changed if name.endswith(".py")]}
    layering = [python, "tests/lint/layering.py"]
    commands = {
        "format": [(".", ["clang-format-14", "--dry-run", "--Werror", *of["format"]])],
        "shell": [*((".", ["bash", "-n", script]) for script in of["shell"]), (".", ["shellcheck", *of["shell"]])],
        "ruff": [(".", [python, "-m", "ruff", "check", "--quiet", "--output-format", "concise", *of["ruff"]])],
        "layering": [(".", [*layering, "."]), *([(".", [*layering, "--self-test", "."])] if "tests/lint/layering.py" in changed else [])],
        **{name: [(".", [python, f"tests/lint/{script}.py", "."])] for name, script in (("promises", "promises"), ("words", "words"), ("symbols", "symbols"))},
    }
    return {name: words for name, words in commands.items() if of.get(name, True)}


def warnings(changed=None):
    """Warnings of long files: all, or those among the changed ones."""
    lines = subprocess.run([sys.executable, "tests/lint/long_files.py", "."], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    if changed is None:
        return f"{len(lines)} files have more than 400 lines (tests/lint/long_files.py lists them)"
    return "\n".join(line for line in lines if line.split(": ")[1] in changed)


def run(folder, words):
    """The output of the command if it failed, else nothing."""
    try:
        done = subprocess.run(words, cwd=ROOT / folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except FileNotFoundError:
        return f"{words[0]} is missing: ./dev setup check\n"
    return "" if done.returncode == 0 else done.stdout or f"{words[0]}: status {done.returncode}\n"


def main():
    build = Path(sys.argv[1]).resolve()
    names = [name for name in sys.argv[2:] if name != "--all"]
    all_steps = steps(build, "--all" in sys.argv[2:])
    unknown = [name for name in names if name not in all_steps]
    if unknown:
        print(f"no step {unknown[0]}; there are {', '.join(all_steps)}", file=sys.stderr)
        sys.exit(2)
    failed = 0
    for name in names or all_steps:
        begin = time.monotonic()
        findings = "".join(run(*command) for command in all_steps[name])
        failed += bool(findings)
        print(f"{'FAILED' if findings else 'ok'} {name} {time.monotonic() - begin:.1f} s\n{findings}", end="", flush=True)
    if not names or "sizes" in names:
        print(warnings())
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
