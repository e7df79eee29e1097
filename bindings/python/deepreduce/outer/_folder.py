"""Folder: workers that meet in a folder that they share, and its files."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pathlib
import re
import shutil
import time
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Union

from .. import patch
from .._files._whole_file import sync, whole_file
from ..errors import ArgumentError, CorruptFrame

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_FORMAT = "deepreduce-outer-1"
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV}
_PAUSE = 0.05  # seconds between two looks at a round


class Listed(NamedTuple):
    """A contribution that a round has: whose, and which bytes. sha256: "" if it is longer than any, so nobody reads it."""

    name: str
    sha256: str
    size: int


class Closed(NamedTuple):
    """What a round has: the same for all workers. by: who closed it."""

    by: str
    listed: List[Listed]


class Folder:
    """A folder that workers share, by a network file system or a mounted object store: all that they need to train together.
    Workers come and go: a round has those that answered in time.

    path      the folder; the first worker makes it
    name      of this worker, another for each: letters, digits, `_`, `-` and `.`
    deadline  seconds that a worker waits for those that are at work. Whoever has waited so long closes the round; a worker that
              is later keeps its contribution in its residual, and catches up
    norm_bound   a contribution whose L2 norm is more than so many times the median of its round's is refused; math.inf: none is
    store_every  rounds after which the agreed weights are stored, for workers that come later

    Files: `rounds/NUMBER/NAME.part`, a contribution, written whole by a rename; `rounds/NUMBER/closed.json`, which contributions
    the round has, made exclusively (a hard link, or where the file system has none by O_EXCL) by whoever comes first;
    `weights`, a patch.Store; `terms.json`, what all workers must have alike.
    """

    def __init__(
        self,
        path: Union[str, os.PathLike[str]],
        name: str,
        deadline: float = 60.0,
        *,
        norm_bound: float = 10.0,
        store_every: int = 8,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ArgumentError(f"the name of a worker is {name!r}: letters, digits, _, - and ., 64 at most")
        if not deadline > 0 or not norm_bound > 1 or store_every < 1:
            raise ArgumentError(
                f"deadline {deadline}, norm_bound {norm_bound}, store_every {store_every}: above 0, above 1, at least 1"
            )
        self.path, self.name, self.deadline = pathlib.Path(path), name, deadline
        self.norm_bound, self.store_every = norm_bound, store_every
        self._clock, self._sleep = time.monotonic, time.sleep  # (tests have their own)

    # ---- Terms ----

    def require_terms(self, terms: Dict[str, Any]) -> str:
        """All workers have the terms of the first: a digest of them. ArgumentError names what differs."""
        path, own = self.path / "terms.json", json.loads(json.dumps(terms))
        self.path.mkdir(parents=True, exist_ok=True)
        _create(path, json.dumps({"format": _FORMAT, "by": self.name, "terms": own}, indent=1).encode(), self.name)
        found = self._read_json(path, self.deadline)
        theirs = found["terms"]
        for key, value in theirs.items():
            if own.get(key) == value:
                continue
            its = own.get(key)
            if isinstance(value, dict) and isinstance(its, dict):
                key, its, value = next((f"{key} {each}", its.get(each), value.get(each)) for each in {**value, **its} if its.get(each) != value.get(each))
            raise ArgumentError(f"worker {self.name} has {key} {its}, and {self.path} is of {value} (by worker {found['by']})")
        return hashlib.sha256(json.dumps(theirs, sort_keys=True).encode()).hexdigest()[:16]

    # ---- A round ----

    def _round(self, number: int) -> pathlib.Path:
        return self.path / "rounds" / f"{number:010d}"

    def announce(self, number: int) -> None:
        """The others wait for this worker in that round, until the deadline."""
        folder = self._round(number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.here").touch()

    def announced(self, number: int) -> List[str]:
        return self._names(number, ".here")

    def posted(self, number: int) -> List[str]:
        return self._names(number, ".part")

    def _names(self, number: int, end: str) -> List[str]:
        try:
            found = os.listdir(self._round(number))
        except FileNotFoundError:
            return []
        names = (each[: -len(end)] for each in found if each.endswith(end))
        return sorted(each for each in names if _NAME.fullmatch(each))

    def post(self, number: int, data: bytes) -> bool:
        """This worker's contribution. False: another of it is there, by a former life of this worker, and stays."""
        path = self._round(number) / f"{self.name}.part"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            return path.read_bytes() == data
        with whole_file(path, durable=True) as partial:
            partial.write_bytes(data)
        return True

    def read_part(self, number: int, name: str, most: int) -> Union[None, int, bytes]:
        """A contribution; its size if that is above `most`; None if it is not there."""
        path = self._round(number) / f"{name}.part"
        try:
            size = path.stat().st_size
            return size if size > most else path.read_bytes()
        except FileNotFoundError:
            return None

    def close(self, number: int, listed: Iterable[Listed]) -> None:
        """Says which contributions the round has, unless another has said it: then that counts."""
        document = {"format": _FORMAT, "by": self.name, "contributions": [each._asdict() for each in listed]}
        _create(self._round(number) / "closed.json", json.dumps(document, indent=1).encode(), self.name)

    def closed(self, number: int) -> Optional[Closed]:
        """What a round has; None: it is open. Raises CorruptFrame."""
        path = self._round(number) / "closed.json"
        if not path.exists():
            return None
        document = self._read_json(path, self.deadline)
        try:
            listed = [Listed(str(each["name"]), str(each["sha256"]), int(each["size"])) for each in document["contributions"]]
            return Closed(str(document["by"]), listed)
        except (KeyError, TypeError, ValueError):
            raise CorruptFrame(f"{path} is damaged: {str(document)[:100]}") from None

    def _read_json(self, path: pathlib.Path, wait: float) -> Any:
        """Where the file system has no links, its writer may not have ended."""
        end = self._clock() + wait
        while True:
            try:
                document = json.loads(path.read_bytes())
                if isinstance(document, dict) and document.get("format") == _FORMAT:
                    return document
                raise ValueError(f"its format is {str(document)[:60]}")
            except ValueError as error:
                if self._clock() >= end:
                    raise CorruptFrame(f"{path} is damaged: {error}") from None
            self._sleep(_PAUSE)

    def pause(self) -> None:
        self._sleep(_PAUSE)

    # ---- Weights ----

    def store(self) -> patch.Store:
        return patch.Store(self.path / "weights")

    def sweep(self, first: int) -> None:
        """Removes the rounds before one."""
        rounds = self.path / "rounds"
        for name in os.listdir(rounds):
            if name.isdigit() and int(name) < first:
                shutil.rmtree(rounds / name, ignore_errors=True)


def _create(path: pathlib.Path, data: bytes, name: str) -> None:
    """Makes a file, whole, unless there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return
    partial = path.with_name(f".{path.name}.{name}.{os.getpid()}")
    partial.write_bytes(data)
    sync(partial)
    try:
        os.link(partial, path)
        sync(path.parent)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _create_without_links(path, data)
    finally:
        partial.unlink(missing_ok=True)


def _create_without_links(path: pathlib.Path, data: bytes) -> None:
    """Readers wait until it is whole. (Object stores show a file when it is, and let one writer of several have it.)"""
    try:
        with open(path, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        pass
