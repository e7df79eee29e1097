"""`deepreduce compare --python-codec FILE …`: plans with Python codecs in the tool's own table and report."""

from __future__ import annotations

import json
import os
import pathlib
import runpy
import sys
from typing import Any, Dict, List, Sequence, Tuple

from . import _tool, codec, comparing
from .errors import ArgumentError, Error

# Options that Python has to know, with what follows them; and those that take a file, which is no input.
_OURS = ("--python-codec", "--plan", "--format", "--output", "--repeat", "--seed", "--tensor", "--cast")
_FLAGS = ("--flat", "--per-tensor")
_TAKE_FILES = ("--report", "--against", "--from", "--plugin")
# What a measurement by the tool takes; the first are nothing for saved rows, which are shown in the end.
_MEASURING = ("--preset", "--time", "--threads", "--segment-rows", "--ranks", "--link", "--plugin")
_NOT_YET = ("--steps", "--each-step", "--batch", "--resume", "--from")


def run(words: Sequence[str], folder: pathlib.Path) -> int:
    """words: "compare" and what follows it. The exit status."""
    told, inputs, others = _split(list(words[1:]))
    for word in others:
        if word.partition("=")[0] in _NOT_YET:
            raise ArgumentError(f"--python-codec: {word.partition('=')[0]} does not go with it")
    for file in told["--python-codec"]:
        load(file)
    python = [plan for plan in told["--plan"] if codec.is_of_python(plan)]
    if not python:
        raise ArgumentError("--python-codec: no --plan names a codec that the file registers")
    form = (told["--format"] or ["table"])[-1]
    if form != "json" and "--from" not in _help():
        raise ArgumentError("--python-codec: this tool has no --from, which tables need; give --format json")
    settings: Dict[str, Any] = {"tensor": told["--tensor"]}
    settings.update({name[2:]: told[name][-1] for name in ("--repeat", "--seed", "--cast") if told[name]})
    settings.update({flag[2:].replace("-", "_"): True for flag in _FLAGS if flag in others})
    document = comparing.measured(inputs, told["--plan"], {**settings, **_measuring(others)}, folder)
    rows = folder / "rows.json"
    rows.write_text(json.dumps(document), "utf-8")
    for failure in document.get("failures", []):
        print("deepreduce: {input}: {plan}: {error}".format(**failure), file=sys.stderr)
    failed = 1 if document.get("failures") else 0
    output = ["--output", told["--output"][-1]] if told["--output"] else []
    if form == "json" and "--from" not in _help():
        _write(output[-1] if output else "", rows)
        return failed
    shows = _without([word for word in others if word not in _FLAGS], "--preset")
    return _tool.run(["compare", "--from", str(rows), "--format", form, *output, *shows]) or failed


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
    """Values of our options, inputs, and all other words in their order."""
    told: Dict[str, List[str]] = {name: [] for name in _OURS}
    inputs: List[str] = []
    others: List[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        name, equals, value = word.partition("=")
        if word.startswith("--") and name in told:
            if not equals:
                at += 1
                if at == len(words):
                    raise ArgumentError(f"{name}: a value is missing")
                value = words[at]
            told[name].append(value)
        elif word in _TAKE_FILES:
            others += words[at : at + 2]
            at += 1
        elif not word.startswith("-") and (word.startswith("synth:") or os.path.exists(word)):
            inputs.append(word)
        else:
            others.append(word)
        at += 1
    return told, inputs, others


def _measuring(words: List[str]) -> Dict[str, Any]:
    """Of the other words those that a measurement by the tool needs."""
    settings: Dict[str, Any] = {}
    for name in _MEASURING:
        values = [words[i + 1] for i, word in enumerate(words[:-1]) if word == name]
        values += [word.partition("=")[2] for word in words if word.startswith(name + "=")]
        if values:
            settings[name[2:].replace("-", "_")] = values
    return settings


def _without(words: List[str], option: str) -> List[str]:
    """The words but for an option, and its value where that is a word of its own."""
    return [
        word
        for i, word in enumerate(words)
        if word.partition("=")[0] != option and not (i > 0 and words[i - 1] == option)
    ]


def _help() -> str:
    return _tool.run_quietly(["compare", "--help"]).stdout.decode("utf-8", "replace")


def _write(path: str, file: pathlib.Path) -> None:
    if not path:
        print(file.read_text("utf-8"))
        return
    partial = pathlib.Path(path + ".part")
    try:
        partial.write_bytes(file.read_bytes())
        partial.replace(path)
    except OSError as error:
        raise ArgumentError(f"--output {path}: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)
