"""From a text to a plug-in."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
from typing import Iterator, List, Optional, Tuple, Union

from .._files._whole_file import require_no_input, whole_file
from ..errors import ArgumentError, LibraryError
from . import _check, _source, _syntax
from ._program import Program

_HERE = pathlib.Path(__file__).resolve().parent
# The same bytes everywhere: no product and sum become one operation. What else is named here changes no result.
FLAGS = ["-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
# What a plug-in needs of the library's own loops.
_SOURCES = [
    "lib/primitive/packing_avx2.cpp", "lib/primitive/packing_avx512.cpp", "lib/primitive/packing_neon.cpp",
    "codecs/family/ternary/ternary_digits_avx2.cpp", "codecs/family/ternary/ternary_digits_avx512.cpp",
]  # fmt: skip

PathLike = Union[str, "os.PathLike[str]"]


def sources() -> pathlib.Path:
    """The folder with the headers: beside the package, or the checkout."""
    for folder in (_HERE.parent / "headers", _HERE.parents[3]):
        if (folder / "include/deepreduce/codec.hpp").is_file() and (folder / "lib/primitive").is_dir():
            return folder
    raise LibraryError(f"the headers of codecs are neither in {_HERE.parent / 'headers'} nor in {_HERE.parents[3]}")


def compiler() -> List[str]:
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError as e:
        raise LibraryError(f"CXX is not a command: {os.environ['CXX']}: {e}") from None
    found = named or [next(filter(shutil.which, ("c++", "g++", "clang++")), "")]
    if not found[0] or not shutil.which(found[0]):
        raise LibraryError(f"no compiler of C++{' ' + found[0] if found[0] else ''}: install one (Debian: g++), or name it in CXX")
    return found


def read(path: PathLike) -> str:
    try:
        return pathlib.Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ArgumentError(f"{path}: cannot be read: {e}") from None


def program_of(text: str, name: str = "codec") -> Program:
    """The program of a text. LanguageError, with the place in `name`."""
    try:
        return _check.check(_syntax.parse(text))
    except _syntax.LanguageError as e:
        raise e.located(name, text) from None


def source_of(text: str, name: str = "codec", identity: Optional[str] = None, kernels: bool = False) -> str:
    """The C++ of a text. `kernels`: with those of a GPU. LanguageError; NoKernels if it can have none."""
    program = program_of(text, name)
    try:
        return _source.write(program, pathlib.Path(name).name, identity or f"deepreduce.language.{program.name}", kernels)
    except _syntax.LanguageError as e:
        raise e.located(name, text) from None


def build(path: PathLike, output: Optional[PathLike] = None, keep: Optional[PathLike] = None, kernels: bool = False) -> pathlib.Path:
    """Compiles the codec of a text to a plug-in, and returns its path: by default NAME.so beside it. `kernels`: with those of a
    GPU, for an emulated one."""
    text = read(path)
    source = source_of(text, str(path), kernels=kernels)
    to = pathlib.Path(output) if output else pathlib.Path(path).with_suffix(".so")
    require_no_input(to, [path])
    if keep:
        require_no_input(keep, [path])
        with _written(keep):
            pathlib.Path(keep).write_text(source)
    root = sources()
    with _compiling(path), tempfile.TemporaryDirectory(prefix="deepreduce-") as folder:
        main = pathlib.Path(folder, "codec.cpp")
        main.write_text(source)
        made = pathlib.Path(folder, "codec.so")
        needed = [root / s for s in _SOURCES if "ternary" not in s or "_digits<3>" in source]
        include = [f"-I{root / 'include'}", f"-I{root / 'lib'}", f"-I{root}"]
        objects: List[str] = []
        runs: List[Run] = []
        for part in (main, *needed):
            objects.append(str(pathlib.Path(folder, part.stem + ".o")))
            command = [*compiler(), *FLAGS, *include, "-c", str(part), "-o", objects[-1]]
            runs.append(Run(command))
        _end(path, runs)
        _end(path, [Run([*compiler(), "-shared", *objects, "-o", str(made)])])
        if not made.is_file():
            raise LibraryError(f"{path}: the compiler {compiler()[0]} writes no file")
        with _written(to), whole_file(to) as partial:  # a process may have the old one loaded
            shutil.copy(made, partial)
    return to


class Run:
    """A compiler that runs."""

    def __init__(self, command: List[str]) -> None:
        self.command = command
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")

    def end(self) -> Tuple[int, str]:
        """Waits for its end. Returns its exit status, and its messages."""
        text = self._process.communicate()[1]
        return self._process.returncode, text


def _end(path: PathLike, runs: List[Run]) -> None:
    """Waits for all; LibraryError of the first that fails."""
    for run, (status, text) in [(run, run.end()) for run in runs]:
        if status:
            how = f"exit status {status}" if status > 0 else f"signal {-status}"
            ours = ", which is a fault of ours" if status > 0 and "terminated program" not in text and _compiles() else ""
            raise LibraryError(f"{path}: the compiler fails{ours}: {shlex.join(run.command)}: {how}\n{text[-4000:]}".rstrip())


def _compiles() -> bool:
    """Whether the compiler compiles an empty file."""
    with tempfile.TemporaryDirectory(prefix="deepreduce-") as folder:
        empty = pathlib.Path(folder, "empty.cpp")
        empty.touch()
        return Run([*compiler(), *FLAGS, "-c", str(empty), "-o", str(empty.with_suffix(".o"))]).end()[0] == 0


@contextlib.contextmanager
def _compiling(path: PathLike) -> Iterator[None]:
    """Reports an OSError of the block as a LibraryError."""
    try:
        yield
    except OSError as error:
        raise LibraryError(f"{path}: cannot be compiled: {error}") from None


@contextlib.contextmanager
def _written(path: PathLike) -> Iterator[None]:
    """Reports an OSError of the block as an ArgumentError that names the file."""
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be written: {error.strerror}") from None
