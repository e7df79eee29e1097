#!/usr/bin/env python3
"""The loop of a minute: what of check and of the tests a change can break, and no more. `./dev quick` runs it.

    quick.py BUILD [--list] [--base COMMIT] [FILE…]

    FILE…          the changed files; without any: those that differ from the merge base with main (or from COMMIT), and new ones
    --list         prints the tests, and builds and runs nothing

A test is asked for
  - by its sources: its program compiles or includes a changed file (ninja's log of the last build knows). Of a program whose other files
    are not reached, only the cases in those that are run;
  - by the folder of a changed file: TESTS below;
  - by what a Python test imports, through other modules too, or names: a changed module, or a changed file's name in its text.
The properties and pairs of codecs run for the codecs that changed (DEEPREDUCE_CASES). What this leaves out, `./dev test` runs.

Exit 1 if something fails, 2 for an unknown file.
"""
import argparse
import ast
import functools
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent / "lint")]
import check  # noqa: E402
import suite  # noqa: E402

ROOT = check.ROOT
PACKAGE = "bindings/python/deepreduce/"

# folder: tests that look at it through the library, the tool or the package. The longest folder that fits counts.
TESTS = {
    "codecs/": ["golden", "properties", "coupling"],
    "codecs/sparsify/": ["golden", "sparsifiers", "statistics"],
    "lib/": ["golden", "coupling"],
    "lib/container/": ["golden", "coupling", "fuzz_decode replay"],
    "lib/control/": ["control", "fuzz_control replay"],
    "lib/cuda/": ["barriers", "device pipeline"],
    "lib/exchange/": ["exchange", "exchange faults"],
    "lib/feedback/": ["golden", "client", "exchange"],
    "lib/patch/": ["golden", "unit", "kernels_avx512", "python patch"],
    "lib/plan/": ["golden", "unit", "fuzz_plan replay", "python book"],
    "lib/sparsify/": ["golden", "sparsifiers", "unit"],
    "lib/transform/": ["transform", "transform kernels"],
    "capi/": ["golden", "abi", "python api"],
    "include/": ["golden", "layout", "symbols", "python abi"],
    "tool/": ["tool", "tool answers", "tool columns"],
    "tool/read/": ["tool", "tool inputs", "client"],
    "tool/calibrate/": ["calibrate"],
    "tool/plugin_test/": ["tool plugin"],
    "tool/predict/": ["predict", "tool predict"],
    "tests/cases/": ["properties", "coupling"],
    "tests/fuzz/": ["fuzz*"],
    "tests/golden/": ["golden*"],
    "tests/ratio/": ["ratio"],
    "tests/reference/": ["reference", "golden frames are those of make.py"],
    "tests/lint/": [],
    "docs/": ["docs site"],
}
CODED = {"properties", "coupling"}  # these take DEEPREDUCE_CASES


# ---- the change ------------------------------------------------------------------------------------------

def git(*words):
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else None


def changed_files(base):
    if not base:
        for main in ("main", "origin/main"):
            base = base or (git("merge-base", "HEAD", main) or [None])[0]
    differ = git("diff", "--name-only", base or "HEAD")
    if differ is None:
        sys.exit(f"quick: git has no commit {base}")
    new = git("ls-files", "--others", "--exclude-standard") or []
    return list(dict.fromkeys(differ + new))


# ---- C++: what ninja knows -------------------------------------------------------------------------------

@functools.cache
def objects_of(build):
    """object: the files that it was compiled of, as ninja's log has it, by their place in the tree."""
    text = subprocess.run(["ninja", "-C", str(build), "-t", "deps"], capture_output=True, text=True, check=True).stdout
    places = {}  # a header stands in the log a thousand times

    def place(name):
        if name not in places:
            full = os.path.normpath(os.path.join(build, name))
            places[name] = os.path.relpath(full, ROOT) if full.startswith(f"{ROOT}/") else None
        return places[name]

    objects, files = {}, []
    for line in text.splitlines():
        if line.startswith("    "):
            files.append(place(line[4:]))
        elif line:
            files = objects.setdefault(line.partition(":")[0], [])
    return {name: [file for file in files if file] for name, files in objects.items()}


def reached_by_sources(build, tests, targets, changed):
    """test: the source files of its program that are a changed file, or include one; [] for all of them."""
    reached, sources = {}, {}
    for name, files in objects_of(build).items():
        if files:
            folder = os.path.dirname(name)  # of a target: tests/unit/unit.p
            sources.setdefault(folder, set()).add(files[0])
            if changed.intersection(files):
                reached.setdefault(folder, set()).add(files[0])
    picked = {}
    for test in tests:
        for target in targets:
            if target["id"] in test["depends"] and target["type"] == "executable" and test["cmd"][0] in target["filename"]:
                folder = os.path.relpath(target["filename"][0], os.path.realpath(build)) + ".p"
                new = {place for group in target["target_sources"] for file in group.get("sources", ()) if (place := os.path.relpath(file, ROOT)) in changed}
                found = reached.get(folder, set()) | new
                if found:  # (a file without a case of its own serves the others)
                    whole = found >= sources.get(folder, set()) or not all("TEST_CASE" in (ROOT / file).read_text(encoding="utf-8") for file in found)
                    picked[test["name"]] = [] if whole else sorted(found)
    return picked


def codecs_of(build, changed):
    """The codecs, as "index/golomb", that a change in codecs/ reaches: their own files, and those that include a family's."""
    inside = {name for name in changed if name.startswith("codecs/")}
    touched = set(inside)
    for files in objects_of(build).values():
        if inside.intersection(files):
            touched.add(files[0])
    parts = [Path(name).parts for name in touched]
    found = {f"{p[1]}/{p[2]}" for p in parts if p[0] == "codecs" and len(p) > 3 and p[1] not in {"family", "sparsify"}}
    cases = {Path(name).stem.partition("_") for name in changed if name.startswith("tests/cases/") and "_" in name}
    return found | {f"{role}/{name}" for role, _, name in cases if role in {"index", "value", "order", "bytes"}}


# ---- Python, by its imports -----------------------------------------------------------------------------

@functools.cache
def modules():
    """dotted name: file, of the package, in which a folder is its __init__.py; stem, or folder: file, of the rest (file names are unique in the tree)."""
    files = [name for name in check.tracked("*.py") + (git("ls-files", "--others", "--exclude-standard", "*.py") or []) if (ROOT / name).is_file()]
    package = {name[len(PACKAGE):-3].replace("/", ".").removesuffix(".__init__"): name for name in files if name.startswith(PACKAGE)}
    called = lambda path: path.parent.name if path.stem == "__init__" else path.stem  # noqa: E731
    return package, {called(Path(name)): name for name in files if not name.startswith(PACKAGE)}


@functools.cache
def nodes(name):
    """The parts of a file that name other modules: imports and attributes."""
    tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom, ast.Attribute))]


@functools.cache
def exports():
    """name: the module of the package that it comes from."""
    return {alias.asname or alias.name: alias.name if node.module is None else node.module
            for node in nodes(PACKAGE + "__init__.py") if isinstance(node, ast.ImportFrom) and node.level for alias in node.names}


@functools.cache
def imports(name):
    """The files of the tree that a module imports. `import deepreduce` stands for the names of it that are used, not for all of it."""
    package, rest = modules()
    own = name[len(PACKAGE):-3].split("/")[:-1] if name.startswith(PACKAGE) else None  # what a leading dot means
    found, called = set(), set()

    def of_package(words):
        while words and ".".join(words) not in package:
            words = words[:-1]
        if words:
            found.add(package[".".join(words)])

    def used(attribute):
        of_package([attribute] if attribute in package else exports().get(attribute, "").split("."))

    for node in nodes(name):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first, *more = alias.name.split(".")
                if first == "deepreduce":
                    called.add(alias.asname or first) if not more or not alias.asname else None
                    of_package(more)
                elif (last := alias.name.split(".")[-1]) in rest:
                    found.add(rest[last])
        elif isinstance(node, ast.ImportFrom):
            words = (node.module or "").split(".") if node.module else []
            if node.level and own is not None:
                base = [*own[:len(own) - node.level + 1], *words]
                of_package(base)
                for alias in node.names:
                    of_package([*base, alias.name])
            elif words[:1] == ["deepreduce"]:
                of_package(words[1:])
                for alias in node.names:
                    of_package([*words[1:], alias.name]) if words[1:] else used(alias.name)
            else:
                found.update(rest[word] for word in [*words[-1:], *(alias.name for alias in node.names)] if word in rest)
    for node in nodes(name):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in called:
            used(node.attr)
    found.discard(name)
    return frozenset(found)


@functools.cache
def closure(name):
    seen, left = set(), [name]
    while left:
        file = left.pop()
        if file not in seen:
            seen.add(file)
            left += imports(file)
    return frozenset(seen)


def reached_by_imports(tests, changed):
    """Tests that are Python scripts of the tree, and that import a changed module or name a changed file."""
    names = {Path(name).name for name in changed if not name.startswith(PACKAGE) and Path(name).suffix not in {".cpp", ".hpp"}}
    names -= {"__init__.py", "README.md", "meson.build"}
    picked = []
    for test in tests:
        scripts = {os.path.relpath(os.path.realpath(word), ROOT) for word in test["cmd"][1:] if word.endswith(".py")}
        for script in scripts - {"tests/python/run.py"}:
            files = closure(script) if (ROOT / script).is_file() and not script.startswith("..") else frozenset()
            tested = [file for file in files if not file.startswith(PACKAGE)]
            if files & changed or any(name in (ROOT / file).read_text(encoding="utf-8") for file in tested for name in names):
                picked.append(test["name"])
    return picked


# ---- both ------------------------------------------------------------------------------------------------

def asked_for(build, changed):
    """{test: source files whose cases run, or [] for all}, and the codecs whose properties are asked for, or none for all."""
    tests, targets = suite.introspect(str(build), "--tests"), suite.introspect(str(build), "--targets")
    default = [test for test in tests if not {"frameworks", "valgrind"} & {name.split(":")[-1] for name in test["suite"]}]
    picked = reached_by_sources(build, default, targets, changed)
    for name in changed:
        folder = max((folder for folder in TESTS if name.startswith(folder)), key=len, default=None)
        for test in suite.matching(default, *TESTS[folder]) if folder and not name.endswith(".md") or folder == "docs/" else ():
            picked[test] = []
    for test in reached_by_imports(default, changed):
        picked[test] = []
    return picked, codecs_of(build, changed)


def run_tests(build, picked, codecs):
    """Builds what they need, and runs them: together those with the same arguments. Returns whether all is well."""
    files = suite.files_for(str(build), picked)
    if files and subprocess.run(["ninja", "-C", str(build), "--quiet", *files]).returncode:
        return False
    good = True
    for sources in {tuple(sources) for sources in picked.values()}:
        names = [name for name in picked if tuple(picked[name]) == sources]
        words = ["meson", "test", "-C", str(build), "--no-rebuild", "--print-errorlogs", "--logbase", "testlog-quick"]
        if sources:
            words += ["--test-args=--source-file=" + ",".join(f"*{Path(source).name}" for source in sources)]
        environment = {**os.environ, "DEEPREDUCE_CASES": ",".join(sorted(codecs))} if codecs and CODED & set(names) else None
        done = subprocess.run([*words, *names], env=environment, capture_output=True, text=True)
        shown = [line for line in done.stdout.splitlines() if " / " in line] if done.returncode == 0 else [done.stdout + done.stderr]
        print("\n".join(shown), flush=True)
        good &= done.returncode == 0
    return good


def run_checks(changed):
    there = [name for name in sorted(changed) if (ROOT / name).is_file()]
    good = True
    for name, commands in check.quick_steps(there).items():
        begin = time.monotonic()
        findings = "".join(check.run(*command) for command in commands)
        good &= not findings
        print(f"{'FAILED' if findings else 'ok'} {name} {time.monotonic() - begin:.1f} s\n{findings}", end="", flush=True)
    if text := check.warnings(set(there)):
        print(text)
    return good


def main():
    parser = argparse.ArgumentParser(prog="./dev quick", description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("build", help=argparse.SUPPRESS)
    parser.add_argument("--base", metavar="COMMIT", help="what changed since this commit (the merge base with main)")
    parser.add_argument("--list", action="store_true", help="print the tests, and run nothing")
    parser.add_argument("files", nargs="*", metavar="FILE", help="what changed, instead of asking git")
    arguments = parser.parse_intermixed_args()
    build, begin = Path(arguments.build).resolve(), time.monotonic()
    unknown = [name for name in arguments.files if not (ROOT / name).exists()]
    if unknown:
        parser.error(f"there is no file {unknown[0]}")
    changed = set(arguments.files or changed_files(arguments.base))
    if not changed:
        print("quick: nothing changed")
        return 0
    if not arguments.list and not run_checks(changed):
        print("quick: check failed")
        return 1
    picked, codecs = asked_for(build, changed)
    print(f"quick: {len(changed)} changed files, {len(picked)} tests" + (f", codecs: {' '.join(sorted(codecs))}" if codecs else ""), flush=True)
    if arguments.list:
        for name in sorted(picked):
            print(f"{name}: {' '.join(picked[name])}" if picked[name] else name)
        return 0
    good = run_tests(build, picked, codecs) if picked else True
    print(f"quick: {'good' if good else 'FAILED'} after {time.monotonic() - begin:.0f} s; the rest is ./dev check and ./dev test")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
