"""The command `deepreduce`, also as `python -m deepreduce`.

Commands that need Python (.pt files, Python codecs, capture, figures) run here; the native tool runs all others.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import sys
import tempfile
from typing import Iterator, List, Optional, Sequence, TextIO, cast

from ._files._torch_arrays import convert_file, is_pickle
from ._files._whole_file import require_no_input
from ._native import _tool
from .errors import ArgumentError, Error

_READS_INPUTS = ("compare", "encode", "convert")
_OUTPUTS = ("-o", "--output", "--report", "--resume")
_HELP = """
Of the Python package:
  capture                     Records gradients of a PyTorch program: deepreduce capture -- python train.py
  calibrate --link            Measures the link between ranks, too: mpiexec -n 2 deepreduce calibrate --link -o profile.json
  patch                       Writes what changed between two model files, exactly, and applies it: deepreduce patch OLD NEW -o FILE
  codec                       Makes a plug-in of a codec in twenty lines, and tests it: deepreduce codec new mine.drc
  figure                      Draws saved rows (matplotlib): deepreduce figure rows.json --output x.svg
  compare, encode, convert    also read .pt files; compare --python-codec FILE uses codecs written in Python
"""


class _Stdout:
    """Standard output whose failures are Errors, in the tool's words: print passes over one that is closed, argparse over all."""

    def __init__(self, stream: Optional[TextIO]) -> None:
        self._stream = stream  # None: closed

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if self._stream is None:
            raise Error(f"cannot write standard output: {os.strerror(errno.EBADF)}")
        with _reporting(self._stream):
            return self._stream.write(text)

    def flush(self) -> None:
        if self._stream is not None:
            with _reporting(self._stream):
                self._stream.flush()


@contextlib.contextmanager
def _reporting(stream: TextIO) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:  # what is left is written again at the exit
            os.dup2(nowhere.fileno(), stream.fileno())
        raise Error(f"cannot write standard output: {error.strerror}") from None


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs a command line. Returns the exit status: 0 success, 1 a codec or a check failed, 2 usage, input or output."""
    with contextlib.redirect_stdout(cast(TextIO, _Stdout(sys.stdout))):
        try:
            try:
                return _run(list(sys.argv[1:] if arguments is None else arguments))
            finally:
                sys.stdout.flush()
        except Error as error:
            print(f"deepreduce: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            return 130


def _run(words: List[str]) -> int:
    if words[:1] == ["help"] and words[1:] in (["capture"], ["figure"], ["patch"], ["codec"]):
        words = [words[1], "--help"]
    if words in (["--help"], ["-h"], ["help"]):
        status = _tool.run(words)
        if status == 0:
            print(_HELP, end="")
        return status
    if words[:1] == ["capture"]:
        from . import recording

        return recording.main(words[1:])
    if words[:1] == ["patch"]:
        from .patch import _patch_command

        return _patch_command.main(words[1:])
    if words[:1] == ["codec"]:
        from .language import _command

        return _command.main(words[1:])
    if words[:1] == ["figure"]:
        from . import figure

        return figure.main(words[1:])
    if words[:1] == ["calibrate"]:
        from . import calibrating

        if calibrating.needs_ranks(words):
            return calibrating.main(words[1:])
    if words[:1] and words[0] in _READS_INPUTS:
        return _run_on_inputs(words)
    sys.stdout.flush()
    _tool.replace_process(words)
    return 0


def _run_on_inputs(words: List[str]) -> int:
    coded = any(word.split("=")[0] == "--python-codec" for word in words)
    if coded and words[0] != "compare":
        raise ArgumentError(f"{words[0]}: --python-codec requires compare: frames cannot hold Python codecs")
    if not coded and not any(is_pickle(word) for word in words):
        _tool.replace_process(words)
    _require_no_input(words)
    with tempfile.TemporaryDirectory(prefix="deepreduce-") as folder:
        words = _converted(words, pathlib.Path(folder))
        if coded:
            from .comparing import _codec_command

            return _codec_command.run(words, pathlib.Path(folder))
        return _tool.run(words)


def _require_no_input(words: List[str]) -> None:
    """The tool refuses an output that is its input; here that is a copy."""
    values = _tool.options_with_values(words[0]) | {"--python-codec"}
    named = [(before, word) for before, word in zip(words, words[1:]) if before in values]
    named += [(name, value) for name, equals, value in (word.partition("=") for word in words) if equals and name in values]
    inputs = [word for before, word in zip(words, words[1:]) if before not in values and not word.startswith("-")]
    inputs += [value for name, value in named if name == "--python-codec"]
    for name, value in named:
        if name in _OUTPUTS:
            require_no_input(value, inputs)


def _converted(words: List[str], folder: pathlib.Path) -> List[str]:
    """The words, in which an .npz in `folder` replaces each .pt file that is an input."""
    valued = _tool.options_with_values(words[0]) | {"--python-codec"}
    made = []
    for i, word in enumerate(words):
        try:
            made.append(convert_file(word, folder / f"{i}.npz") if is_pickle(word) and words[i - 1] not in valued else word)
        except OSError as error:
            raise ArgumentError(f"{word}: its copy in {folder.parent} cannot be written: {error.strerror}; set TMPDIR to another folder") from None
    return made


if __name__ == "__main__":
    sys.exit(main())
