"""Weights in files: .safetensors (one file or shards), .npz and .pt. A piece of a tensor is read and written at a time."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
import threading
from typing import BinaryIO, Dict, Iterator, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Tuple

import numpy

from .._files._npz import read_npz
from .._files._torch_arrays import PICKLES, read_weights
from .._files._whole_file import beside, require_folder, sync, whole_file
from .._native._types import Array, DType
from ..errors import ArgumentError
from ._element_types import Words, word_type, words_of
from ._patch_file import Part, Parts, Patch, Tensors, Unit, Watch, gather, parts_of, places_of
from ._patch_index import order_of
from ._tensor_header import MAX_HEADER, Entry, read_entries, write_entries
from ._word_frames import Known, in_order, new_sums

_INDEX = ".safetensors.index.json"
_rooms = threading.local()


def room_of(name: str, dtype: DType, count: int) -> Array:
    """[count] of a type: a buffer of this thread. The thread's next call with the same name returns the same memory."""
    rooms: Dict[str, Array] = _rooms.__dict__
    size = count * dtype.itemsize
    if name not in rooms or rooms[name].size < size:
        rooms[name] = numpy.empty(size, numpy.uint8)
    return rooms[name][:size].view(dtype)


class FileTensor(NamedTuple):
    """A tensor in an open file. It is read, not mapped: if the file is cut meanwhile, that is an error and not a signal, and the
    pages that were read do not count as this process's memory."""

    file: int
    path: str
    at: int
    dtype: str
    shape: Tuple[int, ...]

    @property
    def length(self) -> int:
        return Entry("", self.dtype, self.shape).length

    def part(self, first: int, count: int, room: str) -> Array:
        words = room_of(room, word_type(self.dtype), count)
        rest, at = words.view(numpy.uint8).data, self.at + first * words.itemsize
        while len(rest):
            done = os.preadv(self.file, [rest], at)
            if not done:
                raise ArgumentError(f"{self.path}: cut off: byte {at} is missing")
            rest, at = rest[done:], at + done
        return words


class Zeros(NamedTuple):
    """A tensor of zeros, without memory: the base of a patch that has all weights."""

    dtype: str
    shape: Tuple[int, ...]

    @property
    def length(self) -> int:
        return Entry("", self.dtype, self.shape).length

    def part(self, _first: int, length: int, _room: str) -> Array:
        return numpy.zeros(length, word_type(self.dtype))


class Shard(NamedTuple):
    """A .safetensors file: the bytes of its header, and its tensors in the order of their bytes."""

    name: str
    header: bytes
    entries: Sequence[Entry]


class Model(NamedTuple):
    """Open weights.

    tensors  name -> Words, FileTensor or Zeros
    shards   the files; for weights that are not in .safetensors files, one without a name
    listing  the bytes of the file that lists the shards; b"": there is only one file
    """

    path: pathlib.Path
    tensors: Tensors
    shards: Sequence[Shard]
    metadata: Mapping[str, str]
    listing: bytes = b""

    @property
    def size(self) -> int:
        return sum(entry.size for shard in self.shards for entry in shard.entries)

    @property
    def files(self) -> List[pathlib.Path]:
        return [self.path, *(self.path.parent / shard.name for shard in self.shards if shard.name)]

    @property
    def is_read_only(self) -> bool:
        return not self.shards[0].name


@contextlib.contextmanager
def open_model(path: str) -> Iterator[Model]:
    """path  .safetensors, the .index.json of shards, a folder that holds one of these, .npz or .pt

    Raises ArgumentError.
    """
    with contextlib.ExitStack() as stack:
        try:
            model = _open(pathlib.Path(path), stack)
        except OSError as error:
            raise ArgumentError(f"{error.filename or path}: cannot be read: {error.strerror}") from None
        yield model


def _open(path: pathlib.Path, stack: contextlib.ExitStack) -> Model:
    if path.is_dir():
        path = _of_folder(path)
    if path.name.endswith(_INDEX):
        return _open_shards(path, stack)
    if path.name.endswith(".safetensors"):
        tensors, shard, metadata = _open_one(path, stack)
        return Model(path, tensors, [shard], metadata)
    if path.name.endswith(".npz"):
        return _of_arrays(path, _arrays_of_npz(path))
    if path.name.endswith(PICKLES):
        tensors, notes = read_weights(path)
        for note in notes:
            print(f"deepreduce: note: {note}", file=sys.stderr)
        return _of_arrays(path, tensors)
    path.stat()
    raise ArgumentError(f"{path}: not a .safetensors, {_INDEX[1:]}, .npz or .pt file, nor a folder with one of the first two")


def _of_folder(path: pathlib.Path) -> pathlib.Path:
    names = sorted(file.name for file in path.iterdir())
    for end in (_INDEX, ".safetensors"):
        found = [name for name in names if name.endswith(end) and not name.startswith(".")]
        if len(found) == 1:
            return path / found[0]
        if found:
            raise ArgumentError(f"{path}: has {len(found)} {end} files: {found[0]}, {found[1]}, …; pass one of them")
    raise ArgumentError(f"{path}: a folder without a .safetensors file")


def _open_one(path: pathlib.Path, stack: contextlib.ExitStack) -> Tuple[Tensors, Shard, Mapping[str, str]]:
    file = stack.enter_context(open(path, "rb"))
    size = os.fstat(file.fileno()).st_size
    head = file.read(8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > min(MAX_HEADER, size - 8):
        raise ArgumentError(f"{path}: not a .safetensors file: a header of {length} bytes in a file of {size}")
    text = file.read(length)
    metadata, entries = read_entries(text, size - 8 - length, str(path))
    at = 8 + length
    tensors = {e.name: FileTensor(file.fileno(), str(path), at + e.begin, e.dtype, e.shape) for e in entries}
    return tensors, Shard(path.name, head + text, entries), metadata


def _open_shards(path: pathlib.Path, stack: contextlib.ExitStack) -> Model:
    def fail(why: str) -> NoReturn:
        raise ArgumentError(f"{path}: {why}")

    index = path.read_bytes()
    try:
        places = json.loads(index)["weight_map"]
        names = sorted(set(places.values()))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        fail("has no weight_map")
    tensors: Tensors = {}
    shards = []
    for name in names:
        if not isinstance(name, str) or os.path.basename(name) != name or not name.endswith(".safetensors"):
            fail(f"weight_map names {str(name)[:100]!r}, which is not a .safetensors file beside it")
        found, shard, _ = _open_one(path.parent / name, stack)
        for tensor in found:
            if places.get(tensor) != name:
                fail(f"{name} has {tensor!r}, which weight_map has in another file or not at all")
        tensors.update(found)
        shards.append(shard)
    for tensor in places:
        if tensor not in tensors:
            fail(f"{places[tensor]} does not have {tensor!r}")
    return Model(path, tensors, shards, {}, index)


def _arrays_of_npz(path: pathlib.Path) -> Dict[str, Array]:
    with open(path, "rb") as file:
        try:
            return read_npz(file)
        except ValueError as error:
            raise ArgumentError(f"{path}: cannot be read: {error}") from None


def _of_arrays(path: pathlib.Path, arrays: Mapping[str, object]) -> Model:
    tensors = {name: words_of(array, f"{path}: {name}") for name, array in arrays.items()}
    return Model(path, tensors, [shard_of(tensors, {})], {})


def zeros_like(path: pathlib.Path, tensors: Tensors) -> Model:
    """A model of zeros with the names, types and shapes of these tensors. path: its name in errors"""
    zeros = {name: Zeros(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    return Model(path, zeros, [shard_of(zeros, {})], {})


def shard_of(tensors: Tensors, metadata: Mapping[str, str]) -> Shard:
    """The header and entries of a new .safetensors file with these tensors."""
    at, entries = 0, []
    for name, tensor in tensors.items():
        entry = Entry(name, tensor.dtype, tuple(tensor.shape))
        entries.append(entry._replace(begin=at, end=at + entry.size))
        at += entry.size
    text = write_entries(metadata, entries)
    text += b" " * (-len(text) % 8)
    return Shard("", len(text).to_bytes(8, "little") + text, entries)


# ---- Changing ------------------------------------------------------------------------------------


class Job(NamedTuple):
    """Words that are read, changed and written together: one part, or whole tensors. units: per patch, the units that change them"""

    parts: Parts
    units: Sequence[Sequence[Unit]]


def cut(tensors: Tensors, units: Sequence[Sequence[Unit]]) -> Iterator[Job]:
    """All words of the tensors, in jobs that begin where a unit of every patch begins. units: of every patch, in the order of its parts"""
    order = order_of(tensors)
    if not units:
        yield from (Job((part,), ()) for name in order for part in parts_of(name, tensors[name]))
        return
    at = {name: i for i, name in enumerate(order)}
    begins = [[(at[unit.parts[0].name], unit.parts[0].first) for unit in of_patch] for of_patch in units]
    common = sorted(set.intersection(*map(set, begins)))
    where = [0] * len(units)
    for _, end in zip(common, [*common[1:], (len(order), 0)]):
        inside = []
        for i, of_patch in enumerate(units):
            first = where[i]
            while where[i] < len(of_patch) and begins[i][where[i]] < end:
                where[i] += 1
            inside.append(of_patch[first : where[i]])
        yield Job(_covered([part for unit in inside[0] for part in unit.parts]), inside)


def _covered(parts: Sequence[Part]) -> Parts:
    """The same words in the minimum number of parts."""
    made: List[Part] = []
    for part in parts:
        if made and made[-1].name == part.name:
            made[-1] = made[-1]._replace(length=made[-1].length + part.length)
        else:
            made.append(part)
    return tuple(made)


class Checks:
    """Applies patches one after the other, and checks the words that they do not change."""

    def __init__(self, patches: Sequence[Patch], tensors: Tensors) -> None:
        self._patches = patches
        self.units = [patch.units(tensors) for patch in patches]
        self._found: List[Dict[int, Sequence[int]]] = [{} for _ in patches]

    def change(self, job: Job, words: Array, sums: Optional[Array]) -> None:
        """Changes the words of a job to those of the result. sums: of a job of one part; they are updated, too"""
        for found, units in zip(self._found, job.units):
            at = 0
            for unit in units:
                place, at = slice(at, at + unit.length), at + unit.length
                begin = place.start * words.itemsize // 4096
                of_unit = None if sums is None else sums[begin : begin + -(-unit.size // 4096)]
                if unit.frame:
                    unit.assign(words[place], Known(of_unit))
                else:
                    found[unit.number] = unit.checks(words[place], of_unit)

    def require(self) -> None:
        """Call it after all jobs. WrongBase if words that a patch does not change are not those of its base."""
        for patch, units, found in zip(self._patches, self.units, self._found):
            patch.require_unchanged(units, found)


# ---- Writing -------------------------------------------------------------------------------------


def write_tensors(
    file: BinaryIO, tensors: Tensors, metadata: Mapping[str, str], threads: Optional[int], watch: Watch = None
) -> None:
    """Writes a .safetensors file."""
    write_shards([(file, shard_of(tensors, metadata))], tensors, [], threads, watch)


def write_shards(
    files: Sequence[Tuple[BinaryIO, Shard]], tensors: Tensors, patches: Sequence[Patch], threads: Optional[int], watch: Watch = None
) -> None:
    """Writes the tensors, changed by the patches one after the other, to empty files."""
    places = {}  # name -> file, where its words begin
    for file, shard in files:
        _write(file.fileno(), numpy.frombuffer(shard.header, numpy.uint8), 0)
        places.update({entry.name: (file.fileno(), len(shard.header) + entry.begin) for entry in shard.entries})
    checks = Checks(patches, tensors)

    def write(job: Job) -> Job:
        words = gather(tensors, job.parts, "base")
        if job.units:
            if len(job.parts) == 1 and isinstance(tensors[job.parts[0].name], Words):  # the memory of the caller
                room_of("base", words.dtype, words.size)[:] = words
                words = room_of("base", words.dtype, words.size)
            checks.change(job, words, new_sums(words) if len(job.parts) == 1 else None)
        for part, place in zip(job.parts, places_of(job.parts)):
            handle, begin = places[part.name]
            _write(handle, words[place].view(numpy.uint8), begin + part.first * words.itemsize)
        return job

    for job in in_order(write, cut(tensors, checks.units), threads):
        if watch is not None:
            watch(job.parts[0].name, sum(part.size for part in job.parts))
    checks.require()


def _write(handle: int, data: Array, at: int) -> None:
    rest = data.data
    while len(rest):
        done = os.pwrite(handle, rest, at)
        rest, at = rest[done:], at + done


def write_patched(base: Model, patches: Sequence[Patch], output: str, threads: Optional[int], watch: Watch = None) -> None:
    """Writes a model, changed by patches: one file, or a folder of shards with the names of the base's. A file is
    replaced as a whole or not at all. output: "": replaces the base. Raises ArgumentError, OSError."""
    for patch in patches[:1]:
        patch.require(base.tensors, str(base.path))
    if not base.listing:
        if base.is_read_only and not output:
            raise ArgumentError(f"{base.path}: files of this type are read, but not written: pass a .safetensors file by --output")
        if output and not output.endswith(".safetensors"):
            raise ArgumentError(f"{output}: the name must end in .safetensors, the type that is written")
        _write_shards(base, patches, [pathlib.Path(output) if output else base.path], threads, watch)
        return
    if not output:
        _write_shards(base, patches, [base.path.parent / shard.name for shard in base.shards], threads, watch)
        return
    target = pathlib.Path(output)
    if target.exists():
        raise ArgumentError(f"{output}: exists already, and the result for {base.path.name} is a new folder")
    require_folder(target)
    partial = beside(target)
    try:
        partial.mkdir()
        _write_shards(base, patches, [partial / shard.name for shard in base.shards], threads, watch)
        with whole_file(partial / base.path.name, durable=True) as path:
            path.write_bytes(base.listing)
        os.rename(partial, target)
        sync(target.parent)
    finally:
        if partial.is_dir():
            for file in partial.iterdir():
                file.unlink()
            partial.rmdir()


def _write_shards(
    base: Model, patches: Sequence[Patch], targets: List[pathlib.Path], threads: Optional[int], watch: Watch
) -> None:
    """Writes files of one folder. All are on the disk before the first is renamed, since a full disk may show in the sync of
    any of them, and some shards of the result beside others of the base are not a model."""
    with contextlib.ExitStack() as stack:
        files, partials = [], []
        for shard, target in zip(base.shards, targets):
            partial = stack.enter_context(whole_file(target))
            file = stack.enter_context(open(partial, "wb"))
            if target.exists():
                os.fchmod(file.fileno(), target.stat().st_mode & 0o7777)
            files.append((file, shard))
            partials.append(partial)
        write_shards(files, base.tensors, patches, threads, watch)
        for (file, _), partial in zip(files, partials):
            file.close()
            sync(partial)
    for folder in {target.parent for target in targets}:
        sync(folder)
