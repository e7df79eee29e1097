"""Replaces a file as a whole, or leaves it unchanged."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import secrets
import shutil
import tempfile
from typing import Iterable, Iterator, Union

from ..errors import ArgumentError

PathLike = Union[str, "os.PathLike[str]"]


@contextlib.contextmanager
def whole_file(path: PathLike, durable: bool = False) -> Iterator[pathlib.Path]:
    """The path of a new file beside `path`, which replaces `path` at the end of the block. If the block raises, or the
    replacement fails, `path` is unchanged. Raises OSError. A device or a pipe is not replaced: the bytes go into it.

    durable  also safe if the machine stops: the bytes are on the disk before the replacement, and the new name at the return
    """
    target = pathlib.Path(path)
    if not target.name or target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    require_folder(target)
    if target.exists() and not target.is_file():
        with tempfile.TemporaryDirectory(prefix="deepreduce-") as folder:
            made = pathlib.Path(folder, "file")
            yield made
            with made.open("rb") as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
        return
    partial = beside(target)
    try:
        yield partial
        if durable:
            sync(partial)
        os.replace(partial, target)
        if durable:
            sync(target.parent)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(partial)


def require_no_input(output: PathLike, inputs: Iterable[PathLike]) -> None:
    """ArgumentError if the output is one of the files that are read, also by another name: what is made of it would replace it."""
    if os.path.isfile(output) and os.path.realpath(output) in map(os.path.realpath, inputs):
        raise ArgumentError(f"{os.fspath(output)}: it is an input, which the output would replace")


def require_folder(target: pathlib.Path) -> None:
    """FileNotFoundError, of the folder, if that of a new file does not exist: else it would be of the name beside it."""
    if not target.parent.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target.parent))


def beside(target: pathlib.Path) -> pathlib.Path:
    """A name beside `target` that no other thread, process or machine uses: .NAME.PID-8 hexadecimal digits; of a long NAME the
    beginning, since names of files have at most 255 bytes."""
    name = os.fsdecode(os.fsencode(target.name)[:220])
    return target.with_name(f".{name}.{os.getpid()}-{secrets.token_hex(4)}")


def sync(path: pathlib.Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk. Some file systems do not sync folders: then it does not wait."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
