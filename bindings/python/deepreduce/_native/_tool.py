"""Finds and runs the native tool `deepreduce`."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import re
import signal
import subprocess
import threading
from typing import Callable, Dict, FrozenSet, Iterator, List, Mapping, Sequence

from ..errors import LibraryError

ENVIRONMENT, DATA = "DEEPREDUCE_TOOL", "DEEPREDUCE_DATASETS"
_PACKAGE = pathlib.Path(__file__).resolve().parents[1]


def candidates() -> List[pathlib.Path]:
    """Paths to try, in order. If the environment names a tool, only that one."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        return [pathlib.Path(named)]
    found = [_PACKAGE / "deepreduce"]  # in a wheel
    if (_PACKAGE.parents[2] / "meson.build").is_file():  # in a checkout with a build
        found += [_PACKAGE.parents[2] / build / "tool/deepreduce" for build in ("build-tool", "build")]
    return found


def find() -> str:
    """The path of the tool. LibraryError, with every path tried, if there is none."""
    tried = candidates()
    for path in tried:
        if os.access(path, os.X_OK) and path.is_file():
            return str(path)
    hint = "" if os.environ.get(ENVIRONMENT) else (
        f"\nSet {ENVIRONMENT} to its path. A package has it if CLI11, nlohmann-json and fmt are there when it is built"
        " (Debian: libcli11-dev nlohmann-json3-dev libfmt-dev)."
    )  # fmt: skip
    raise LibraryError("no native tool `deepreduce`; tried:" + "".join(f"\n  {path}" for path in tried) + hint)


def environment() -> Dict[str, str]:
    """The environment of a run: a wheel's data sets are beside the package."""
    variables = dict(os.environ)
    if not variables.get(DATA) and (_PACKAGE / "datasets").is_dir():
        variables[DATA] = str(_PACKAGE / "datasets")
    return variables


@functools.cache
def options_with_values(command: str) -> FrozenSet[str]:
    """The options of a command that require a value as the next word, from its help: "--plan", …"""
    text = run_quietly([command, "--help"]).stdout.decode("utf-8", "replace")
    found = re.findall(r"^  (-[\w-]+(?:,-[\w-]+)*) (?! |\.\.\.|[A-Z][a-z]+:|REQUIRED)", text, re.MULTILINE)
    return frozenset(name for names in found for name in names.split(","))


@contextlib.contextmanager
def _starting() -> Iterator[str]:
    """The tool. Raises LibraryError if there is none, or if the block cannot start it, such as one for other processors."""
    tool = find()
    try:
        yield tool
    except OSError as error:
        raise LibraryError(f"the native tool {tool} cannot be started: {error.strerror}") from None


def replace_process(arguments: Sequence[str]) -> None:
    """Runs the tool in place of this process."""
    with _starting() as tool:
        os.execve(tool, [tool, *arguments], environment())


def run(arguments: Sequence[str]) -> int:
    """Runs the tool with this process's stdin, stdout and stderr. Returns its exit status."""
    with _starting() as tool:
        return run_program([tool, *arguments], environment())


def run_program(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Runs a program to its end, with this process's stdin, stdout and stderr. Returns its exit status; 128 + the signal that ended
    it. Ctrl-C reaches the program, too, which says what becomes of the run; SIGTERM is passed on. Raises OSError."""
    with contextlib.ExitStack() as before:
        _handle(signal.SIGINT, lambda *_: None, before)
        process = subprocess.Popen(command, env=variables)
        _handle(signal.SIGTERM, lambda number, _: process.send_signal(number), before)
        status = process.wait()
    return status if status >= 0 else 128 - status


def _handle(number: signal.Signals, handler: Callable[[int, object], None], before: contextlib.ExitStack) -> None:
    """Sets the handler of a signal until `before` ends, unless the signal is ignored, which programs inherit. Only the main thread
    has signals."""
    current = signal.getsignal(number)
    if current not in (signal.SIG_IGN, None) and threading.current_thread() is threading.main_thread():
        before.callback(signal.signal, number, current)
        signal.signal(number, handler)


def run_quietly(arguments: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    """Runs the tool. The result has its stdout and stderr."""
    with _starting() as tool:
        return subprocess.run([tool, *arguments], env=environment(), capture_output=True, check=False)
