"""Store: the weights of many steps in a directory, as anchors and patches."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import time
from typing import Any, Callable, Dict, Iterable, Iterator, Mapping, Optional, Sequence, Tuple, TypeVar, Union

import numpy

from .._files._whole_file import whole_file
from .._native._call import OneCall, Turns, timeout_of, unsigned
from .._native._types import Array, Json, Weights
from ..errors import ArgumentError, CorruptFrame, Unsupported, WrongBase
from ..plan import as_plan
from . import _store_files
from ._apply import apply_to, memory_of, tensors_of, written_of
from ._device_words import refuse
from ._element_types import Words, array_of, word_type
from ._model_files import Checks, Job, Model, Zeros, cut, open_model, shard_of, write_patched, write_tensors, zeros_like
from ._patch_file import Patch, Tensors, gather, open_patch, places_of, require_same, write_patch
from ._store_files import PLAIN, AnchorFile, Manifest, PatchFile, Writer, file_name, read_manifest
from ._word_frames import check_of, chunks_of, in_order, new_sums

Result = TypeVar("Result")

_log = logging.getLogger("deepreduce.patch")

_PLAN = "patch"
_CHECKS, _STEP = "deepreduce.checks", "deepreduce.step"  # metadata of an anchor: checks of its tensors, its step
_TRIES = 5  # attempts to read while another process prunes


class Store:
    """A directory with the weights of many steps. Some steps are stored whole (anchors, with coded exponents: two thirds of the bytes
    for bf16), the others as patches. One process writes and any number read, on a file system that they share.

    path          the directory; the first `put` creates it
    anchor_every  number of steps after which another anchor is written; sooner if the patches after the last anchor have its bytes

    The writer stores a copy of the last weights in memory. Files are complete or absent, also if the machine stops. If a `put`
    fails (OSError for a full disk), the store is unchanged. The first `put` locks the store for writing until `close`, the end
    of the `with` or that of the Store; a `put` of another writer raises ConcurrentUse meanwhile. So does a `put`, `prune` or
    `close` while another thread is in one of them. Readers raise CorruptFrame for damaged files.

    >>> import tempfile
    >>> w = {"w": numpy.zeros(1000, dtype=numpy.float32)}
    >>> with tempfile.TemporaryDirectory() as folder, deepreduce.patch.Store(folder) as store:
    ...     for step in range(3):
    ...         store.put(step, {"w": w["w"] + step})
    ...     store.latest(), store.read(2)["w"][0]
    (2, np.float32(2.0))
    """

    def __init__(self, path: Union[str, os.PathLike[str]], anchor_every: int = 64) -> None:
        self.path = pathlib.Path(path)
        self._every = unsigned(anchor_every, "anchor_every")
        self.lock = OneCall()  # of put, prune and close
        self._writer: Optional[Writer] = None
        self._last: Optional[Dict[str, Words]] = None  # a copy of the last step's weights; None: it is to be loaded
        self._sums: Dict[str, Array] = {}

    def __repr__(self) -> str:
        return f"<Store {self.path}{'' if self._writer is None else ', locked for writing'}>"

    def __reduce__(self) -> Any:
        return type(self), (self.path, self._every)  # a copy has no lock of the store

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the lock for writing and the copy of the weights. The next `put` acquires them again."""
        with Turns([(self, "the store")]):
            self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        self._forget()

    def _forget(self) -> None:
        self._last, self._sums = None, {}

    # ---- Writing ---------------------------------------------------------------------------------

    def put(self, step: int, weights: object, *, threads: Optional[int] = None) -> None:
        """Adds the weights of a step, which must be above the last one.

        weights  as for `encode`. If names, types or shapes differ from the last step, an anchor is written, and readers start
                 from it. So is it, with a warning in the log `deepreduce.patch`, if the last step's files are damaged or missing.
                 If another thread changes the weights meanwhile, the step is a mix of both; later steps are not affected

        Raises ConcurrentUse, ArgumentError, OSError.
        """
        tensors = tensors_of(weights, "weights")
        refuse("a store", tensors)
        step = unsigned(step, "step", 2**63)
        with Turns([(self, "the store")]):
            self._put(step, tensors, threads)

    def _put(self, step: int, tensors: Tensors, threads: Optional[int]) -> None:
        writer = self._take_turn()
        manifest = writer.manifest
        last = max(manifest.steps, default=-1)
        if step <= last:
            raise ArgumentError(f"step {step} is not above the last one, {last}: a training that goes on from an older step needs a new folder")
        made: Dict[str, Any] = {}
        anchor_end = "safetensors" if _store_files.ANCHOR_PLAN == PLAIN else "drpatch"
        names = {"patch": file_name(step, "drpatch"), "anchor": file_name(step, anchor_end)}
        try:
            self._write(manifest, last, step, tensors, threads, names, made)
        except BaseException:
            self._forget()  # the copy may be of the new step in part: the next put loads it
            self._remove(names.values())
            raise
        try:
            anchors = [*manifest.anchors, *filter(None, [made.get("anchor")])]
            writer.commit(Manifest(anchors, [*manifest.patches, *filter(None, [made.get("patch")])]))
        except BaseException:
            self._close()  # the manifest may have been written or not: the next put reads it
            with contextlib.suppress(Exception):
                self._remove(set(names.values()) - set(read_manifest(self.path).files))
            raise

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def _write(
        self,
        manifest: Manifest,
        last: int,
        step: int,
        tensors: Tensors,
        threads: Optional[int],
        names: Mapping[str, str],
        made: Dict[str, object],
    ) -> None:
        """Writes the files of a step and adds them to `made`. The copy of the weights becomes that of the step. The caller's
        weights are read once: they may change meanwhile."""
        if self._last and _shapes(self._last) == _shapes(tensors):
            name = names["patch"]
            with whole_file(self.path / name, durable=True) as partial, open(partial, "wb") as file:
                write_patch(file, self._last, tensors, as_plan(_PLAN), (str(last), str(step)), self._sums, threads, advance=True)
                size = file.tell()
            made["patch"] = PatchFile(last, step, name, size)
            anchor, patches = manifest.path_to(last)
            due = len(patches) + 1 >= self._every or _bytes(patches) + size > anchor.size
        else:
            self._forget()
            self._last = {name: tensor._replace(words=tensor.words.copy(), owner=None) for name, tensor in tensors.items()}
            self._sums, due = {name: new_sums(copy.words) for name, copy in self._last.items()}, True
        if due:
            tensors, sums = self._last, self._sums
            name, plan = names["anchor"], _store_files.ANCHOR_PLAN
            with whole_file(self.path / name, durable=True) as partial, open(partial, "wb") as file:
                if plan == PLAIN:
                    metadata = {_CHECKS: " ".join(f"{check_of(sums[tensor]):016x}" for tensor in tensors), _STEP: str(step)}
                    write_tensors(file, tensors, metadata, threads)
                else:
                    zeros = zeros_like(self.path, tensors).tensors
                    write_patch(file, zeros, tensors, as_plan(plan), ("", str(step)), None, threads, listed=True)
                file.flush()
                size = os.fstat(file.fileno()).st_size
            made["anchor"] = AnchorFile(step, name, size, plan)

    def _take_turn(self) -> Writer:
        """The writer. The weights of the last step and their sums are loaded, or there are none: then an anchor is due."""
        if self._writer is None:
            writer = self._writer = Writer(self.path)
        else:
            writer = self._writer
            writer.require_turn()
        if self._last is not None:
            return writer
        steps = writer.manifest.steps
        try:
            self._last, self._sums = self._load(*writer.manifest.path_to(steps[-1]), None) if steps else ({}, {})
        except (ArgumentError, CorruptFrame, Unsupported, OSError) as error:
            _log.warning("%s: step %d cannot be read, so the next one is stored whole: %s", self.path, steps[-1], error)
            self._last = {}
        except BaseException:
            self._close()
            raise
        return writer

    def prune(self, keep: int) -> None:
        """Removes files that the last `keep` steps do not need, and files of a crash. Raises the errors of `put`."""
        keep = unsigned(keep, "keep")
        if not self.path.is_dir():
            raise ArgumentError(f"{self.path}: no such folder")
        with Turns([(self, "the store")]):
            self._prune(keep)

    def _prune(self, keep: int) -> None:
        had = self._writer is not None
        writer = self._writer or Writer(self.path)
        try:
            manifest = writer.manifest
            steps = manifest.steps[-max(keep, 1) :]
            if steps:
                first = manifest.path_to(steps[0])[0].step
                anchors = [anchor for anchor in manifest.anchors if anchor.step >= first]
                patches = [patch for patch in manifest.patches if patch.base >= first]
                writer.commit(Manifest(anchors, patches))
            writer.sweep()
        finally:
            if not had:
                writer.close()

    # ---- Reading ---------------------------------------------------------------------------------

    def latest(self) -> Optional[int]:
        """The last step; None if the store is empty."""
        return max(self.steps(), default=None)

    def steps(self) -> Sequence[int]:
        """The steps that can be read, ascending."""
        return read_manifest(self.path).steps if self.path.is_dir() else []

    def read(self, step: int, out: object = None, *, threads: Optional[int] = None) -> Weights:
        """The weights of a step, bit for bit those of `put`.

        out  an array or a dict of arrays with the names, shapes and types of the step, to overwrite and return, as for `apply`. If a
             file is damaged, their values are unspecified. None: new numpy arrays (bfloat16 and narrower floats need ml_dtypes)

        Raises ArgumentError (no such step), CorruptFrame, Unsupported, OSError.
        """
        held, made = (None, None) if out is None else written_of(out)
        refuse("a store", held or {})

        def read() -> Dict[str, Words]:
            return self._load(*read_manifest(self.path).path_to(unsigned(step, "step")), threads, held)[0]

        found = self._retried(read)
        if made is not None:
            return made(held)
        arrays = {name: array_of(tensor.words, tensor.dtype, tensor.shape, name) for name, tensor in found.items()}
        return arrays[""] if list(arrays) == [""] else arrays

    def checkout(self, step: int, path: Union[str, os.PathLike[str]], *, threads: Optional[int] = None) -> None:
        """Writes the weights of a step to a .safetensors file, a piece of a tensor at a time. Raises the errors of `read`."""

        def write() -> None:
            anchor, patches = read_manifest(self.path).path_to(unsigned(step, "step"))
            with self._opened(anchor, patches) as (model, opened):
                self._check_anchor(anchor, model)
                write_patched(model, opened, os.fspath(path), threads)

        self._retried(write)

    def follow(
        self, weights: object, step: Optional[int] = None, *, wait: float = 1.0, threads: Optional[int] = None
    ) -> Iterator[int]:
        """Updates weights to the latest step, in place, and yields its number; then waits for the next step, for ever.

        weights  as for `apply`, writable
        step     the step of these weights; None: they are of no step, and the latest step is read
        wait     seconds between two reads of the manifest

        Each patch is checked against all of the weights. If something else has changed them since the last step, WrongBase is raised
        and nothing is written; a new `follow` without `step` reads them whole.

        >>> for step in store.follow(model.state_dict()):    # doctest: +SKIP
        ...     engine.reload()
        """
        if wait != 0:
            wait = timeout_of(wait, "wait")
        held, made = written_of(weights)
        refuse("a store", held)
        if made(held) is not weights:
            raise ArgumentError("weights: arrays of JAX are immutable; use read and apply, which return new ones")
        at = None if step is None else unsigned(step, "step")

        def advance() -> None:
            nonlocal at
            manifest = read_manifest(self.path) if self.path.is_dir() else Manifest([], [])
            latest = max(manifest.steps, default=None)
            if latest is None or latest == at:
                return
            anchor, after = manifest.path_to(latest)
            chain = None if at is None else manifest.chain(at, latest)
            if chain is None or _bytes(chain) > anchor.size + _bytes(after):
                self._load(anchor, after, threads, held)
                at = latest
                return
            opened = [self._open(file) for file in chain]  # from here on a prune may remove the files
            for patch in opened:
                patch.require(held, "weights")
                try:
                    apply_to(held, patch, None, threads)
                except WrongBase as error:
                    raise WrongBase(f"weights: they are not those of step {at}, something else has changed them: {error}") from None
                at = int(patch.result)

        def steps() -> Iterator[int]:
            while True:
                before = at
                self._retried(advance)
                if at is None or at == before:
                    time.sleep(wait)
                else:
                    yield at

        return steps()

    def _load(
        self, anchor: AnchorFile, patches: Sequence[PatchFile], threads: Optional[int], out: Optional[Tensors] = None
    ) -> Tuple[Dict[str, Words], Dict[str, Array]]:
        """The weights and their sums, from an anchor and the patches after it."""
        with self._opened(anchor, patches) as (model, opened):
            held = {name: _empty(tensor) for name, tensor in model.tensors.items()} if out is None else out
            require_same(held, model.tensors, "out", f"the store's step {anchor.step}")
            ties = [names for names in memory_of(held).values() if len(names) > 1]
            before, sums = ({name: _empty_sums(tensor) for name, tensor in model.tensors.items()} for _ in range(2))

            checks = Checks(opened, model.tensors)

            def load(job: Job) -> None:
                words = gather(model.tensors, job.parts, "anchor")
                if len(job.parts) == 1:
                    (part,) = job.parts
                    here = held[part.name].words[part.first : part.first + part.length]
                    here[:] = words
                    found = new_sums(here)
                    part.sums_in(before)[:] = found
                    checks.change(job, here, found)
                    part.sums_in(sums)[:] = found
                    return
                for part, place in zip(job.parts, places_of(job.parts)):
                    part.sums_in(before)[:] = new_sums(words[place])
                checks.change(job, words, None)
                for part, place in zip(job.parts, places_of(job.parts)):
                    held[part.name].words[:] = words[place]
                    part.sums_in(sums)[:] = new_sums(words[place])

            try:
                for _ in in_order(load, cut(model.tensors, checks.units), None if ties else threads):
                    pass
                checks.require()
            except WrongBase as error:
                raise CorruptFrame(f"{model.path} or a patch after it is damaged: {error}") from None
            if anchor.plan == PLAIN:
                _compare(model, before)
        for names in ties:
            if len({check_of(sums[name]) for name in names}) > 1:
                raise ArgumentError(f"{names[0]!r} and {names[1]!r} are the same memory, but differ in this step")
        return held, sums

    @contextlib.contextmanager
    def _opened(self, anchor: AnchorFile, patches: Sequence[PatchFile]) -> Iterator[Tuple[Model, Sequence[Patch]]]:
        """The model that is the base of the first patch, and the opened patches. A patch of an anchor comes first."""
        path = self.path / anchor.file
        path.stat()
        opened = [self._open(file) for file in patches]
        if anchor.plan != PLAIN:
            first = self._open(PatchFile(-1, anchor.step, anchor.file, anchor.size))
            opened.insert(0, first)
            if first.entries is None:
                raise CorruptFrame(f"{path}: an anchor without a list of tensors")
            model = zeros_like(path, {entry.name: Zeros(entry.dtype, entry.shape) for entry in first.entries.values()})
            yield self._required(model, opened)
            return
        try:
            with open_model(str(path)) as model:
                if model.metadata.get(_STEP) != str(anchor.step):
                    raise CorruptFrame(f"{path}: has the weights of step {model.metadata.get(_STEP)}, not of {anchor.step}")
                yield self._required(model._replace(shards=[shard_of(model.tensors, {})]), opened)
        except ArgumentError as error:
            raise CorruptFrame(str(error)) if str(error).startswith(str(path)) else error from None

    def _required(self, model: Model, opened: Sequence[Patch]) -> Tuple[Model, Sequence[Patch]]:
        for patch in opened:
            patch.require(model.tensors, str(model.path))
        return model, opened

    def _check_anchor(self, anchor: AnchorFile, model: Model) -> None:
        """CorruptFrame if the weights of a .safetensors anchor have changed. (The frames of a patch have checks of their own.)"""
        if anchor.plan == PLAIN:
            found = {name: _empty_sums(tensor) for name, tensor in model.tensors.items()}
            for job in cut(model.tensors, []):
                job.parts[0].sums_in(found)[:] = new_sums(gather(model.tensors, job.parts, "anchor"))
            _compare(model, found)

    def _open(self, file: PatchFile) -> Patch:
        patch = open_patch(self.path / file.file)
        names = "" if file.base < 0 else str(file.base), str(file.step)
        if (patch.base, patch.result) != names:
            raise CorruptFrame(f"{patch.where}: a patch from {patch.base!r} to {patch.result!r}, not from {names[0]!r} to {names[1]!r}")
        return patch

    def _retried(self, read: Callable[[], Result]) -> Result:
        """Calls `read` again if a prune has removed a file after the manifest was read."""
        for _ in range(_TRIES - 1):
            before = read_manifest(self.path) if self.path.is_dir() else None
            try:
                return read()
            except (FileNotFoundError, ArgumentError):
                if before is None or read_manifest(self.path) == before:
                    raise
        return read()


def _shapes(tensors: Mapping[str, Words]) -> Json:
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def _empty(like: Words) -> Words:
    return Words(like.dtype, like.shape, numpy.empty(like.length, word_type(like.dtype)), None)


def _empty_sums(like: Words) -> Array:
    return numpy.empty(chunks_of(like.length * word_type(like.dtype).itemsize), numpy.uint64)


def _compare(model: Model, sums: Mapping[str, Array]) -> None:
    """CorruptFrame unless these sums of an anchor's weights have the checks in its metadata."""
    if model.metadata.get(_CHECKS, "").split() != [f"{check_of(sums[name]):016x}" for name in model.tensors]:
        raise CorruptFrame(f"{model.path}: the checks of its weights are not those in its metadata: it is damaged")


def _bytes(files: Sequence[PatchFile]) -> int:
    return sum(file.size for file in files)
