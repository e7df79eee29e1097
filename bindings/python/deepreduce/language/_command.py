"""`deepreduce codec`: builds, tests and begins codecs that are written in the language."""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import sys
import tempfile
import time
from typing import Sequence

from .._native import _tool
from ..errors import ArgumentError
from . import _build, _levels
from ._syntax import LanguageError
from ._tiles import NoKernels

_BEGINNING = """codec NAME "levels of the largest magnitude, rounded by chance"

wire levels: int 1..127 = 7 "levels of a magnitude"

payload
  top: f32 0..                              # one number; 0.. is its range
  code: u(1 + bit_width(levels)) [n]        # one for each of the n values

encode v
  top   = largest(abs(v))                   # one number of all values
  level = if top > 0 then min(levels, floor(levels * abs(v) / top + random())) else 0
  code  = 2 * level + (v < 0)

decode
  require code >> 1 <= levels, "a level is above the highest"
  value = f64(top) * (code >> 1) / levels
  return if code & 1 then -value else value
"""
_DESCRIPTION = """A codec of values in twenty lines, from a text to a plug-in: docs/LANGUAGE.md teaches the language."""
_EPILOG = """examples:
  deepreduce codec new mine.drc         a codec that works, to change
  deepreduce codec test mine.drc        builds it, and checks all that is promised of codecs
  deepreduce compare grad.npz --plugin mine.so --plan 'sparsify=topr(ratio=0.01) index=golomb value=mine'
The package lark is needed (pip install lark), and a compiler of C++20. Exit status: 0 good, 1 a broken promise, 2 an error of
the text, of usage, input or output."""


def main(words: Sequence[str]) -> int:
    """Runs `deepreduce codec …` and returns the exit status. Raises Error."""
    options = _parser().parse_args(list(words))
    if options.command == "new":
        return _new(pathlib.Path(options.file))
    if options.command == "build":
        begin = time.perf_counter()
        made = _build.build(options.file, options.output, options.source)
        print(f"{made}: built in {time.perf_counter() - begin:.1f} s")
        return 0
    with tempfile.TemporaryDirectory(prefix="deepreduce-") as folder:
        why = ""
        try:
            made = _build.build(options.file, pathlib.Path(folder, "codec.so"), kernels=True)
        except NoKernels as e:
            why, made = str(e), _build.build(options.file, pathlib.Path(folder, "codec.so"))
        status = _tool.run(["test-plugin", str(made), "--seed", str(options.seed), "--seconds", str(options.seconds)])
        name = _build.program_of(_build.read(options.file)).name
        folders = [str(pathlib.Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        alike = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}  # the package that this one is
        if status == 0:
            status = _levels.compare(str(made), name, alike)
        if why:
            print(f"  {'kernels':<13} none: {why}")
        elif status == 0:
            status = _tool.run_program([sys.executable, "-m", f"{__package__}._lanes", str(made), name], alike)
    return status if status in (0, 1, 130) else 2


def _new(path: pathlib.Path) -> int:
    name = re.sub(r"\W", "_", path.stem.lower())
    if path.suffix != ".drc" or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ArgumentError(f"codec new: {path}: a file of a codec is NAME.drc, with a name of small letters, digits and _")
    text = _BEGINNING.replace("NAME", name)
    try:
        _build.program_of(text, "")
    except LanguageError:
        raise ArgumentError(f"codec new: {path}: `{name}` cannot be the name of a codec: choose another one") from None
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as e:
        raise ArgumentError(f"codec new: {path}: {e.strerror}") from None
    print(f"{path}: a codec to change. deepreduce codec test {path}")
    return 0


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("deepreduce codec", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=formatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    new = commands.add_parser("new", help="writes a small codec that works")
    new.add_argument("file", help="NAME.drc, which must not exist")
    build = commands.add_parser("build", help="makes a plug-in of a text")
    build.add_argument("file", help="NAME.drc")
    build.add_argument("-o", "--output", help="the plug-in; default: NAME.so beside it")
    build.add_argument("--source", metavar="FILE", help="also writes the C++ that is compiled")
    test = commands.add_parser("test", help="builds it, and runs the checks of `deepreduce test-plugin`")
    test.add_argument("file", help="NAME.drc")
    test.add_argument("--seed", type=int, default=1, help="of the inputs; default: 1")
    test.add_argument("--seconds", type=float, default=0, help="goes on with more seeds for so long; default: one round")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
