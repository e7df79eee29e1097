"""The layout of a patch of named tensors (docs/PATCH.md, "Layout"): bytes in memory and files alike."""

from __future__ import annotations

import io
import mmap
import os
import struct
import zlib
from typing import Any, BinaryIO, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from ._element_types import ELEMENT_TYPES, Array, word_type
from ._patch_call import CHUNK, Piece, encode_words, in_order, pieces_of
from ._tensor_header import HEADER_MOST, Entry, read_entries, write_entries
from .errors import ArgumentError, CorruptFrame, Error, InternalError, Unsupported
from .plan import Plan

MAGIC = b"DRPATCH\x01"
_FIXED = struct.Struct("<8sII")  # magic, bytes of the JSON, its CRC-32
PIECE = 1 << 25  # bytes of a tensor that are a frame: what a call works on is a few times as much

Tensors = Dict[str, Any]  # Words, or what has dtype, shape, count and part(first, count, room)
Watch = Optional[Callable[[str, int], None]]  # called with a tensor's name and its bytes, as they are done


class Part(NamedTuple):
    """Some words of a tensor, in the order of the patch."""

    name: str
    dtype: str
    first: int
    length: int

    @property
    def code(self) -> int:
        """DR_*"""
        return ELEMENT_TYPES[self.dtype].code

    @property
    def size(self) -> int:
        return self.length * word_type(self.dtype).itemsize

    def of_sums(self, sums: Optional[Dict[str, Array]]) -> Optional[Array]:
        return None if sums is None else self.sums_in(sums)

    def sums_in(self, sums: Dict[str, Array]) -> Array:
        """The sums of these words, among those of all tensors."""
        begin = self.first * word_type(self.dtype).itemsize // CHUNK
        return sums[self.name][begin : begin + -(-self.size // CHUNK)]


def parts_of(tensors: Tensors) -> Iterator[Part]:
    for name, each in tensors.items():
        step = max(CHUNK, PIECE // word_type(each.dtype).itemsize)
        for first in range(0, max(each.length, 1), step):
            yield Part(name, each.dtype, first, min(step, each.length - first))


def require_same(here: Tensors, there: Tensors, what: str, other: str) -> None:
    """ArgumentError unless both have the same names, types and shapes; it says the first that differs."""
    for name in here:
        if name not in there:
            raise ArgumentError(f"{what} has {name!r}, {other} does not")
    for name, theirs in there.items():
        if name not in here:
            raise ArgumentError(f"{other} has {name!r}, {what} does not")
        ours = here[name]
        if (ours.dtype, tuple(ours.shape)) != (theirs.dtype, tuple(theirs.shape)):
            raise ArgumentError(
                f"{name!r}: {what} has {ours.dtype} of shape {list(ours.shape)},"
                f" {other} {theirs.dtype} of shape {list(theirs.shape)}"
            )


def write_patch(
    file: BinaryIO,
    old: Tensors,
    new: Tensors,
    plan: Plan,
    names: Tuple[str, str],
    sums: Optional[Dict[str, Array]],
    threads: Optional[int],
    watch: Watch = None,
) -> None:
    """Writes the patch from `old` to `new`, a piece of a tensor at a time, into a file that can be rewound.

    names  of base and result; sums: of `old`, which become those of `new`
    """
    if not plan.info.patch:
        raise ArgumentError(f"plan '{plan}' makes no patches: they have sparsify=changed")
    require_same(old, new, "old", "new")

    def encode(part: Part) -> Tuple[Part, bytes]:
        before = old[part.name].part(part.first, part.length, "old")
        after = new[part.name].part(part.first, part.length, "new")
        try:
            return part, encode_words(plan, part.code, before, after, part.of_sums(sums))
        except Error as error:
            raise type(error)(f"{part.name}: {error}" if part.name else str(error), code=error.code) from None

    # The header's place is kept for the longest that it can be: no frame is longer than its words, and codecs' names.
    most = sum(part.size + 4096 for part in parts_of(old))
    entries = [Entry(name, each.dtype, tuple(each.shape), most, most) for name, each in old.items()]
    room = len(_header(names, entries, 0))
    start = file.tell()
    file.write(bytes(room))
    ends: Dict[str, int] = {}
    at = 0
    for part, frame in in_order(encode, parts_of(old), threads):
        file.write(frame)
        at += len(frame)
        ends[part.name] = at
        if watch is not None:
            watch(part.name, part.size)
    begin = 0
    for i, each in enumerate(entries):
        entries[i] = each._replace(begin=begin, end=ends[each.name])
        begin = ends[each.name]
    header = _header(names, entries, room)
    if len(header) != room:
        raise InternalError(f"the header of a patch has {len(header)} bytes, not the {room} that were kept for it")
    file.seek(start)
    file.write(header)
    file.seek(0, io.SEEK_END)


def _header(names: Tuple[str, str], entries: Sequence[Entry], size: int) -> bytes:
    """At least `size` bytes, a multiple of 8: spaces fill it up."""
    text = write_entries(dict(zip(("base", "result"), names)), entries)
    padding = max(size - len(text) - _FIXED.size, -(len(text) + _FIXED.size) % 8)
    text += b" " * padding
    if len(text) > HEADER_MOST:
        raise ArgumentError(f"{len(entries)} tensors: their names and shapes take {len(text)} bytes, at most {HEADER_MOST}")
    return _FIXED.pack(MAGIC, len(text), zlib.crc32(text)) + text


class Patch:
    """A patch that was read. Errors are CorruptFrame, or Unsupported; `where` begins them."""

    def __init__(self, data: memoryview, where: str = "patch") -> None:
        if len(data) < _FIXED.size or data[:7] != MAGIC[:7]:
            raise CorruptFrame(f"{where}: no patch: it begins with other bytes than {MAGIC[:7].decode()}")
        if data[:8] != MAGIC:
            raise Unsupported(f"{where}: version {data[7]} of patches; this library reads version {MAGIC[7]}")
        _, size, crc = _FIXED.unpack(data[: _FIXED.size])
        if size > min(HEADER_MOST, len(data) - _FIXED.size):
            raise CorruptFrame(f"{where}: cut off: a header of {size} bytes, and {len(data) - _FIXED.size} are left")
        text = bytes(data[_FIXED.size : _FIXED.size + size])
        if zlib.crc32(text) != crc:
            raise CorruptFrame(f"{where}: the header's check does not match: it is damaged")
        self.where = where
        self._data = data[_FIXED.size + size :]
        metadata, entries = read_entries(text, len(self._data), where, CorruptFrame, whole=False)
        if set(metadata) != {"base", "result"}:
            raise CorruptFrame(f"{where}: the header names no base and result")
        self.base, self.result = metadata["base"], metadata["result"]
        self.entries = {each.name: each for each in entries}
        self.size = len(data)

    def pieces(self, entry: Entry) -> List[Piece]:
        """The frames of a tensor."""
        words = entry.size // word_type(entry.dtype).itemsize
        data = self._data[entry.begin : entry.end]
        what = entry.name if self.where == "patch" else f"{self.where}: {entry.name}"
        return list(pieces_of(data, ELEMENT_TYPES[entry.dtype].code, words, what))

    def require(self, weights: Tensors, what: str) -> None:
        """ArgumentError unless the weights have the tensors that it is of."""
        require_same(weights, self.entries, what, self.where)

    def parts(self, weights: Iterable[str]) -> Iterator[Tuple[Part, Piece]]:
        for name in weights:
            entry = self.entries[name]
            for piece in self.pieces(entry):
                yield Part(name, entry.dtype, piece.first, piece.length), piece


def open_patch(path: Union[str, os.PathLike[str]]) -> Patch:
    """A patch in a file, which is mapped as long as it is used. Raises OSError."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise CorruptFrame(f"{os.fspath(path)}: no patch: the file is empty")
        return Patch(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), os.fspath(path))
