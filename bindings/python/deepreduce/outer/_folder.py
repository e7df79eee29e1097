"""Folder: a folder that workers share, and its files."""

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
from .._files._whole_file import beside, sync, whole_file
from .._native._call import real, timeout_of, unsigned
from ..errors import ArgumentError, CorruptFrame

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_FORMAT = "deepreduce-outer-1"
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV}
_PAUSE = 0.05  # seconds between two polls of a round
_JSON_MAX = 1 << 24  # bytes of a document: closed.json has 200 for each worker, terms.json about as many for each tensor
_SHA256 = re.compile(r"[0-9a-f]{64}|")


class Listed(NamedTuple):
    """A contribution in the list of a round. name: its worker. sha256: of its bytes; "" if it is too long, so no worker reads it."""

    name: str
    sha256: str
    size: int


class Closed(NamedTuple):
    """The contributions of a round, the same for all workers. by: the worker that closed it."""

    by: str
    listed: List[Listed]


class Folder:
    """A folder that workers share, by a network file system or a mounted object store. They need nothing else to train together.
    Workers may join and leave: a round has those that answered in time.

    path      the folder; the first worker creates it
    name      of this worker, unique: a letter or digit, then letters, digits, `_`, `-` and `.`
    deadline  seconds that a worker waits for the active ones. A worker that has waited so long closes the round. The contribution
              of a later worker returns to its residual, or is lost if its plan has none, and the worker catches up
    norm_bound   a contribution is refused if its L2 norm is more than this factor times the median of its round; math.inf: never
    store_every  the agreed weights are stored after this number of rounds, for workers that join later

    Files: `rounds/NUMBER/NAME.part`, a contribution, written atomically by a rename. `rounds/NUMBER/closed.json`, the list of
    the round's contributions, created exclusively by the first worker (by a hard link; by O_EXCL if the file system has none).
    `weights`, a patch.Store. `terms.json`, the options that must be the same for all workers.
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
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ArgumentError(f"the name of a worker is {name!r}: a letter or digit, then letters, digits, _, - and ., 64 at most")
        if not real(norm_bound, "norm_bound") > 1:
            raise ArgumentError(f"norm_bound = {norm_bound} is not above 1")
        self.path, self.name, self.deadline = pathlib.Path(path), name, timeout_of(deadline, "deadline")
        self.norm_bound, self.store_every = norm_bound, unsigned(store_every, "store_every", minimum=1)
        self._clock, self._sleep = time.monotonic, time.sleep  # (tests have their own)

    def __repr__(self) -> str:
        return f"<Folder {self.path}, worker {self.name}>"

    # ---- Terms ----

    def require_terms(self, terms: Dict[str, Any]) -> str:
        """Checks that this worker has the terms of the first, and returns their digest. ArgumentError names the difference."""
        path, own = self.path / "terms.json", json.loads(json.dumps(terms))
        self.path.mkdir(parents=True, exist_ok=True)
        _create(path, json.dumps({"format": _FORMAT, "by": self.name, "terms": own}, indent=1).encode())
        found = self._read_json(path, self.deadline)
        theirs, by = found.get("terms"), found.get("by")
        if not isinstance(theirs, dict) or not _is_name(by):
            raise CorruptFrame(f"{path} is damaged: {str(found)[:100]}")
        for key, value in theirs.items():
            if own.get(key) == value:
                continue
            its = own.get(key)
            if isinstance(value, dict) and isinstance(its, dict):
                key, its, value = next((f"{key} {name}", its.get(name), value.get(name)) for name in {**value, **its} if its.get(name) != value.get(name))
            raise ArgumentError(f"worker {self.name} has {key} {its}, and {self.path} is of {value} (by worker {by})")
        return hashlib.sha256(json.dumps(theirs, sort_keys=True).encode()).hexdigest()[:16]

    # ---- A round ----

    def _round(self, number: int) -> pathlib.Path:
        return self.path / "rounds" / f"{number:010d}"

    def announce(self, number: int) -> None:
        """Makes the others wait for this worker in that round, until the deadline."""
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
        names = (file[: -len(end)] for file in found if file.endswith(end))
        return sorted(name for name in names if _NAME.fullmatch(name))

    def post(self, number: int, data: bytes) -> bool:
        """Writes this worker's contribution. False: there is another one of this name, by this worker before a restart or by another
        process, and that one counts."""
        path = self._round(number) / f"{self.name}.part"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            return self.read_part(number, self.name, len(data)) == data
        with whole_file(path, durable=True) as partial:
            partial.write_bytes(data)
        return True

    def read_part(self, number: int, name: str, max_bytes: int) -> Union[None, int, bytes]:
        """A contribution; its size if that is above `max_bytes`; None if it does not exist."""
        path = self._round(number) / f"{name}.part"
        try:
            data = _read(path, max_bytes)
            return max(len(data), path.stat().st_size) if len(data) > max_bytes else data
        except FileNotFoundError:
            return None

    def close(self, number: int, listed: Iterable[Listed]) -> None:
        """Writes the list of the round's contributions. If another worker has written one, that list counts."""
        document = {"format": _FORMAT, "by": self.name, "contributions": [entry._asdict() for entry in listed]}
        _create(self._round(number) / "closed.json", json.dumps(document, indent=1).encode())

    def closed(self, number: int) -> Optional[Closed]:
        """The contributions of a round; None: it is open. Raises CorruptFrame: names become paths, so they are those of workers."""
        path = self._round(number) / "closed.json"
        try:
            document = self._read_json(path, self.deadline)
        except FileNotFoundError:  # not there yet; or another worker has removed an old round
            return None
        try:
            entries = [(entry["name"], entry["sha256"], entry["size"]) for entry in document["contributions"]]
            names = [name for name, _, _ in entries]
            strange = next((name for name in [document["by"], *names] if not _is_name(name)), None)
            if strange is not None:
                raise ValueError(f"the name of a worker is {str(strange)[:80]!r}")
            if len(set(names)) != len(names):
                raise ValueError("a worker is listed twice")
            for name, sha256, size in entries:
                if type(size) is not int or size < 0 or not (isinstance(sha256, str) and _SHA256.fullmatch(sha256)):
                    raise ValueError(f"of worker {name} it lists size {str(size)[:40]}, SHA-256 {str(sha256)[:80]!r}")
            return Closed(document["by"], [Listed(*entry) for entry in entries])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFrame(f"{path} is damaged: {error}; {str(document)[:100]}") from None

    def _read_json(self, path: pathlib.Path, wait: float) -> Any:
        """Reads a document, and waits while it is incomplete: on a file system without links its writer may not have finished."""
        end = self._clock() + wait
        while True:
            try:
                data = _read(path, _JSON_MAX)
                if len(data) > _JSON_MAX:
                    raise CorruptFrame(f"{path} has more than {_JSON_MAX} bytes")
                document = json.loads(data)
                if isinstance(document, dict) and document.get("format") == _FORMAT:
                    return document
                raise ValueError(f"its format is {str(document)[:60]}")
            except (ValueError, RecursionError) as error:
                if self._clock() >= end:
                    raise CorruptFrame(f"{path} is damaged: {error}") from None
            self._sleep(_PAUSE)

    def pause(self) -> None:
        self._sleep(_PAUSE)

    # ---- Weights ----

    def store(self) -> patch.Store:
        return patch.Store(self.path / "weights")

    def sweep(self, first: int) -> None:
        """Removes the rounds before `first`."""
        rounds = self.path / "rounds"
        for name in os.listdir(rounds):
            if name.isascii() and name.isdigit() and int(name) < first:
                shutil.rmtree(rounds / name, ignore_errors=True)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _read(path: pathlib.Path, max_bytes: int) -> bytes:
    """The bytes of a file; one more than `max_bytes` of a longer one."""
    with open(path, "rb") as file:
        return file.read(min(max_bytes, os.fstat(file.fileno()).st_size) + 1)  # (read() allocates what it is asked for)


def _create(path: pathlib.Path, data: bytes) -> None:
    """Creates a file atomically, unless it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return
    partial = beside(path)
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
    """Readers wait until the file is complete. (Object stores show only complete files, and only one of several writers succeeds.)"""
    try:
        with open(path, "xb") as file:
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                path.unlink()  # so that it can be written again
                raise
    except FileExistsError:
        pass
