"""The layout of a store of patches (docs/PATCH.md, "Store"): a folder of files that never change, and a manifest that lists the
valid ones. Files that it does not list are ignored, so a crash leaves the store unchanged."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import re
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Tuple

from .._files._whole_file import whole_file
from .._native._stages import read_stages
from ..errors import ArgumentError, ConcurrentUse, CorruptFrame, Unsupported

MANIFEST, LOCK = "manifest.json", "writer.lock"
# The formats of an anchor: a .safetensors file, or a patch, by a plan, that changes zeros to its weights.
PLAIN = "safetensors"
ANCHOR_PLAN = "sparsify=changed index=all value=planes"
_FORMAT = "deepreduce-store-1"
_OURS = re.compile(r"\d{10,20}-[0-9a-f]{8}\.(safetensors|drpatch)|\.(\d{10,20}-[0-9a-f]{8}\.\w+|manifest\.json)\.\d+(-[0-9a-f]{8})?")
_NUMBER_END = 2**63
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)  # of NFS without its daemon, of Lustre without -o flock, …


Fail = Callable[[str], NoReturn]  # raises the error of a file


class AnchorFile(NamedTuple):
    """All weights of a step."""

    step: int
    file: str
    size: int
    plan: str


class PatchFile(NamedTuple):
    """A patch that changes the weights of `base` to those of `step`."""

    base: int
    step: int
    file: str
    size: int


class Manifest(NamedTuple):
    anchors: Sequence[AnchorFile]  # ascending, as are the patches
    patches: Sequence[PatchFile]

    @property
    def steps(self) -> List[int]:
        return sorted({anchor.step for anchor in self.anchors} | {patch.step for patch in self.patches})

    @property
    def files(self) -> List[str]:
        return [anchor.file for anchor in self.anchors] + [patch.file for patch in self.patches]

    def chain(self, begin: int, end: int) -> Optional[List[PatchFile]]:
        """The patches that change the weights of a step to those of another; None if one is missing."""
        by_step = {patch.step: patch for patch in self.patches}
        found: List[PatchFile] = []
        while end > begin and end in by_step:
            found.append(by_step[end])
            end = by_step[end].base
        return found[::-1] if end == begin else None

    def path_to(self, step: int) -> Tuple[AnchorFile, List[PatchFile]]:
        """The files of a step: the last anchor with a chain of patches to it, and this chain. ArgumentError if there are none."""
        for anchor in reversed(self.anchors):
            patches = self.chain(anchor.step, step) if anchor.step <= step else None
            if patches is not None:
                return anchor, patches
        raise ArgumentError(f"step {step}: the store has no such step; it has {_spans(self.steps)}")


def _spans(steps: Sequence[int]) -> str:
    return f"{len(steps)} from {steps[0]} to {steps[-1]}" if steps else "none"


def file_name(step: int, end: str) -> str:
    """A new file name, with random digits."""
    return f"{step:010d}-{os.urandom(4).hex()}.{end}"


def read_manifest(folder: pathlib.Path) -> Manifest:
    """The manifest; an empty one if there is no file. Raises CorruptFrame, Unsupported, OSError; ArgumentError if there is no folder."""
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        if not folder.is_dir():
            raise ArgumentError(f"{folder}: no such folder") from None
        return Manifest([], [])
    return _parsed(text, str(path))


def _parsed(text: bytes, where: str) -> Manifest:
    def fail(why: str) -> NoReturn:
        raise CorruptFrame(f"{where}: {why}; the manifest is damaged")

    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        fail(f"it is not JSON ({str(error)[:100]})")
    if not isinstance(document, dict) or not isinstance(document.get("format"), str):
        fail("it has no format")
    if document["format"] != _FORMAT:
        raise Unsupported(f"{where}: format {document['format'][:40]!r}; this library reads {_FORMAT!r}")
    kinds: Dict[str, type] = {"anchors": AnchorFile, "patches": PatchFile}
    found: Dict[str, List[Any]] = {}
    for name, kind in kinds.items():
        rows = document.get(name)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            fail(f"{name} is not a list of objects")
        found[name] = [_row(row, kind, name, fail) for row in rows]
        steps = [row.step for row in found[name]]
        if any(a >= b for a, b in zip(steps, steps[1:])):
            fail(f"the steps of {name} do not ascend")
    for patch in found["patches"]:
        if patch.base >= patch.step:
            fail(f"a patch from step {patch.base} to {patch.step}")
    for anchor in found["anchors"]:
        if anchor.plan != PLAIN and not _makes_patches(anchor.plan):
            raise Unsupported(f"{where}: the anchor of step {anchor.step} has plan {anchor.plan[:40]!r}")
    return Manifest(found["anchors"], found["patches"])


def _makes_patches(plan: str) -> bool:
    try:
        stages = read_stages(plan)
    except ArgumentError:
        return False
    return "sparsify" in stages and stages["sparsify"].name == "changed"


def _row(row: Dict[str, object], kind: Any, name: str, fail: Fail) -> Any:
    if set(row) != set(kind._fields):
        fail(f"an entry of {name} has {sorted(row)[:6]}, not {list(kind._fields)}")
    for field, value in row.items():
        if field in ("file", "plan"):
            if not isinstance(value, str) or not value or os.path.basename(value) != value or value.startswith("."):
                fail(f"{field} is {str(value)[:60]!r}, which is not the name of a file beside it")
        elif type(value) is not int or not 0 <= value < _NUMBER_END:
            fail(f"{field} is {str(value)[:60]!r}, not a number")
    return kind(**row)


def _text(manifest: Manifest) -> bytes:
    document = {"format": _FORMAT, **{name: [row._asdict() for row in rows] for name, rows in manifest._asdict().items()}}
    return (json.dumps(document, separators=(",", ":")).replace('{"', '\n{"') + "\n").encode()


class Writer:
    """The lock for writing: one object of one process has it at a time. ConcurrentUse if another has it."""

    def __init__(self, folder: pathlib.Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        path = folder / LOCK
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._release = weakref.finalize(self, _unlocked, self._lock, os.getpid())
        own = f"process {os.getpid()} on {os.uname().nodename}"
        try:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _NO_LOCKS:  # (there require_turn finds another writer)
                    raise
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{own}\n".encode(), 0)
            self._text = self._bytes()  # of the manifest
            self.manifest = read_manifest(folder)
        except BlockingIOError:
            who = os.pread(self._lock, 200, 0).decode("utf-8", "replace").strip()
            self.close()
            more = ": another Store of this process; close() it" if who == own else ""
            raise ConcurrentUse(f"{folder}: {who or 'another process'} writes to it{more}") from None
        except BaseException:
            self.close()
            raise

    def _bytes(self) -> bytes:
        try:
            return (self._folder / MANIFEST).read_bytes()
        except FileNotFoundError:
            return b""

    def require_turn(self) -> None:
        """ConcurrentUse if another writer has changed the manifest, on a file system without locks."""
        if self._bytes() != self._text:
            raise ConcurrentUse(f"{self._folder}: another writer has changed it")

    def commit(self, manifest: Manifest) -> None:
        """Replaces the manifest. From its return on these files are valid."""
        self.require_turn()
        text = _text(manifest)
        with whole_file(self._folder / MANIFEST, durable=True) as partial:
            partial.write_bytes(text)
        self._text, self.manifest = text, manifest

    def sweep(self) -> None:
        """Removes files of the store that the manifest does not list."""
        listed = set(self.manifest.files)
        for file in self._folder.iterdir():
            if _OURS.fullmatch(file.name) and file.name not in listed:
                file.unlink(missing_ok=True)

    def close(self) -> None:
        self._release()


def _unlocked(lock: int, process: int) -> None:
    if process == os.getpid():  # a child that was forked holds the lock, too, until it ends
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)
