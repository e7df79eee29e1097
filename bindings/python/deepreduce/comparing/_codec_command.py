"""`deepreduce compare --python-codec FILE …`: rows of plans with Python codecs in the tool's table and report."""

from __future__ import annotations

import json
import os
import pathlib
import runpy
import sys
from typing import Dict, List, Sequence, Tuple

from .._native import _tool
from .._native._types import Options
from ..errors import ArgumentError, Error
from . import NOT_OF_PYTHON, _codecs, failure_line, measured

# Options with a value that Python reads.
_OURS = ("--python-codec", "--plan", "--format", "--output", "--repeat", "--seed", "--tensor", "--cast")
_FLAGS = ("--flat", "--per-tensor")
# Options that the tool accepts when it measures, but not when it shows saved rows.
_MEASURING = ("--preset", "--time", "--threads", "--segment-rows", "--ranks", "--link", "--plugin", "--limit")
_NOT_YET = tuple("--" + name.replace("_", "-") for name in NOT_OF_PYTHON)


def run(words: Sequence[str], folder: pathlib.Path) -> int:
    """Runs the command and returns its exit status. words: "compare" and its arguments"""
    values, inputs, others = _split(list(words[1:]))
    for word in others:
        if word.partition("=")[0] in _NOT_YET:
            raise ArgumentError(f"--python-codec: {word.partition('=')[0]} does not go with it")
    for file in values["--python-codec"]:
        load(file)
    python = [plan for plan in values["--plan"] if _codecs.is_of_python(plan)]
    if not python:
        registered = ", ".join(_codecs.names()) or "none"
        raise ArgumentError(f"--python-codec: no --plan names a codec that the file registers (it registers {registered})")
    settings: Options = {"tensor": values["--tensor"]}
    settings.update({name[2:]: values[name][-1] for name in ("--repeat", "--seed", "--cast") if values[name]})
    settings.update({flag[2:].replace("-", "_"): True for flag in _FLAGS if flag in others})
    document, notes = measured(inputs, values["--plan"], {**settings, **_measuring(others)}, folder)
    rows = folder / "rows.json"
    rows.write_text(json.dumps(document), "utf-8")
    # (The tool that prints the rows reports which plans have no total.)
    lines = [f"note: {note}" for note in notes if not note.startswith("no total of ")]
    for line in [*lines, *map(failure_line, document.get("failures", []))]:
        print(f"deepreduce: {line}", file=sys.stderr)
    failed = 1 if document.get("failures") else 0
    printed = [word for name in ("--format", "--output") if values[name] for word in (name, values[name][-1])]
    shown = _without([word for word in others if word not in _FLAGS], *_MEASURING)
    return _tool.run(["compare", "--from", str(rows), *printed, *shown]) or failed


def load(file: str) -> None:
    """Runs a file that registers codecs. ArgumentError if it cannot be run."""
    if not os.path.isfile(file):
        raise ArgumentError(f"--python-codec {file}: no such file")
    try:
        runpy.run_path(file)
    except Error:
        raise
    except Exception as error:
        raise ArgumentError(f"--python-codec {file}: {error!r}") from error


def _split(words: List[str]) -> Tuple[Dict[str, List[str]], List[str], List[str]]:
    """(values of the options in _OURS, inputs, all other words in their order)"""
    values: Dict[str, List[str]] = {name: [] for name in _OURS}
    inputs: List[str] = []
    others: List[str] = []
    valued = _tool.options_with_values("compare")
    at = 0
    while at < len(words):
        word = words[at]
        name, equals, value = word.partition("=")
        if word.startswith("--") and name in values:
            if not equals:
                at += 1
                if at == len(words):
                    raise ArgumentError(f"{name}: a value is missing")
                value = words[at]
            values[name].append(value)
        elif word in valued:
            others += words[at : at + 2]
            at += 1
        else:
            (others if word.startswith("-") else inputs).append(word)
        at += 1
    return values, inputs, others


def _measuring(words: List[str]) -> Options:
    """The options among the words that a measurement by the tool needs."""
    settings: Options = {}
    for name in _MEASURING:
        values = [words[i + 1] for i, word in enumerate(words[:-1]) if word == name]
        values += [word.partition("=")[2] for word in words if word.startswith(name + "=")]
        if values:
            settings[name[2:].replace("-", "_")] = values
    return settings


def _without(words: List[str], *options: str) -> List[str]:
    """The words without some options and without those options' values."""
    return [
        word
        for i, word in enumerate(words)
        if word.partition("=")[0] not in options and not (i > 0 and words[i - 1] in options)
    ]
