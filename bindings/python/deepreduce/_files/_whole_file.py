"""Writes a file whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
from typing import Iterator, Union


@contextlib.contextmanager
def whole_file(path: Union[str, os.PathLike[str]], durable: bool = False) -> Iterator[pathlib.Path]:
    """The path of a new file beside `path`, which takes its place when the block ends. If the block raises, or the new file
    cannot take the place, `path` is as it was. Raises OSError.

    durable  also if the machine stops: its bytes are on the disk before it takes the place, and the place when this returns
    """
    target = pathlib.Path(path)
    if not target.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    partial = target.with_name(f".{target.name}.{os.getpid()}")
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


def sync(path: pathlib.Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk. Some file systems take no folder: then they do not wait."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
