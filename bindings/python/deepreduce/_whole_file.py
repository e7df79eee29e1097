"""Writes a file whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
from typing import Iterator, Union


@contextlib.contextmanager
def whole_file(path: Union[str, os.PathLike[str]]) -> Iterator[pathlib.Path]:
    """The path of a new file beside `path`, which takes its place when the block ends. If the block raises, or the new file
    cannot take the place, `path` is as it was. Raises OSError.
    """
    target = pathlib.Path(path)
    if not target.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(target)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
