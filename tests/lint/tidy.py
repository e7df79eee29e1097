#!/usr/bin/env python3
"""clang-tidy over the library, by the commands of a build folder.

    tidy.py BUILD [--all]     --all: twins of instruction sets (scalar's code again, a third of the time), benchmarks and tests, too

The sources of a folder of lib are read as one, since headers take most of the time: names are unique there. Not those of an
instruction set or a device, which have the same names.
ninja runs it and keeps what passed in BUILD/tidy: a file is read again when it, a header of it or .clang-tidy changed.
Needs BUILD configured, not built. Prints each finding once; exit 1 if there is one.
"""
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ("lib/", "codecs/", "capi/")
TWINS = ("_avx2.cpp", "_avx512.cpp", "_neon.cpp")
ALONE = (*TWINS, "_scalar.cpp", "_device.cpp")
RULE = """rule tidy
  command = clang-tidy-14 --quiet --config-file=$config --checks=$more $source -- $flags 2>$out.log && $compiler $flags -MM -MT $out -MF $out.d $source && touch $out
  depfile = $out.d
  deps = gcc
"""


def commands(build):
    """{source: (compiler, flags)} of each C++ source of the tree, by the first command that compiles it."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        path = (build / entry["file"]).resolve()
        source = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else ""
        if not source.endswith(".cpp") or source in found:
            continue
        words = iter(shlex.split(entry["command"]))
        compiler, flags = [], []
        for word in words:
            if word in {"-o", "-c", "-MQ", "-MF"}:
                next(words)
            elif word.startswith("-") and word != "-MD":
                flags.append(word)
            elif not flags:
                compiler.append(word)
        found[source] = (shlex.join(compiler), shlex.join([*flags, "-Wno-unknown-warning-option"]))
    return found


def read_as_one(everything, build):
    """(sources, compiler, flags) of what clang-tidy reads at a time."""
    found = {}
    for source, (compiler, flags) in commands(build).items():
        if not (everything or (source.startswith(LIBRARY) and not source.endswith(TWINS))):
            continue
        joined = source.startswith("lib/") and not source.endswith(ALONE)
        found.setdefault(str(Path(source).parent) if joined else source, ([], compiler, flags))[0].append(source)
    return found.values()


def write(path, text):
    """Leaves a file alone that has this text."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def escaped(text):
    return re.sub(r"([$ :])", r"$\1", text)


def main():
    build = Path(sys.argv[1]).resolve()
    everything = "--all" in sys.argv[2:]
    config = ROOT / ".clang-tidy"
    lines = [RULE, f"config = {config}"]
    (build / "tidy").mkdir(exist_ok=True)
    for sources, compiler, flags in read_as_one(everything, build):
        source, more = ROOT / sources[0], ""
        if len(sources) > 1:
            source, more = build / "tidy" / (Path(sources[0]).parent.name + ".cpp"), "-bugprone-suspicious-include"
            write(source, "".join(f'#include "{ROOT / one}"\n' for one in sources))
        lines.append(f"build tidy/{escaped(sources[0].replace('/', '_'))}: tidy {escaped(str(source))} | {escaped(str(config))}")
        lines.append(f"  source = {source}\n  more = {more}\n  compiler = {compiler.replace('$', '$$')}\n  flags = {flags.replace('$', '$$')}")
    (build / "tidy/build.ninja").write_text("\n".join(lines) + "\n", encoding="utf-8")

    targets = subprocess.run(["ninja", "-C", build, "-t", "targets", "all"], capture_output=True, text=True).stdout
    headers = re.findall(r"^(\S+\.(?:h|hpp)): CUSTOM_COMMAND", targets, re.M)
    subprocess.run(["ninja", "-C", build, "--quiet", *headers], check=True)

    ninja = ["ninja", "-C", build, "-f", "tidy/build.ninja", "-k", "0", "--quiet"]
    done = subprocess.run(ninja, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        seen = set()
        for block in re.split(r"^(?=\S+:\d+:\d+: (?:warning|error): )", done.stdout, flags=re.M)[1:]:
            block = re.split(r"^(?:FAILED: |ninja: )", block, flags=re.M)[0]
            if block not in seen:
                seen.add(block)
                print(block.replace(f"{ROOT}/", ""), end="")
        if not seen:
            print(done.stdout)
    sys.exit(done.returncode != 0)


if __name__ == "__main__":
    main()
