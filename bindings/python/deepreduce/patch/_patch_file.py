"""Patches of named tensors (docs/PATCH.md, "Layout"), in memory and in files: which tensors share a frame; writing; reading."""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import zlib
from typing import BinaryIO, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy

from .._native._types import Array, Tensor
from ..errors import ArgumentError, CorruptFrame, Error, Unsupported, WrongBase
from ..plan import Plan
from ._device_words import on_device
from ._element_types import ELEMENT_TYPES, word_type
from ._patch_index import (
    Index,
    Locator,
    UnitRow,
    combined,
    list_check_of,
    located,
    locator_of,
    misfit,
    order_of,
    read_index,
    write_index,
)
from ._tensor_header import Entry
from ._word_frames import CHUNK, Known, assign, change_of, check_of, encode_words, in_order, named, new_sums, pairs

MAGIC = b"DRPATCH\x01"
_END = struct.Struct("<II")  # bytes of the index, and its CRC-32
PIECE = 1 << 25  # maximum bytes of a tensor in one frame; a call needs a few times as much memory
JOIN = 1 << 22  # maximum bytes of tensors that share a frame, its header and tables; 4 MiB is best for the bundled models
APART = 1 << 18  # the same if many words change: then tensors of different statistics need fewer bytes with tables of their own
_READ_MAX = 4 << 20  # bytes of a patch that is read, not mapped: a chain may have more patches than a process may have files
_DENSE = 16  # APART is tried if a frame has more than 1/16 of the words' bytes

Tensors = Dict[str, Tensor]  # name -> Words, or another object with dtype, shape, length and part(first, count, room)
Watch = Optional[Callable[[str, int], None]]  # called with a tensor's name and a number of bytes that are done


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

    def known(self, sums: Optional[Mapping[str, Array]], history: Optional[Mapping[str, Array]]) -> Known:
        """The sums and the history of these words, from those of all tensors."""
        past = None if history is None else history[self.name][self.first : self.first + self.length]
        return Known(None if sums is None else self.sums_in(sums), past)

    def sums_in(self, sums: Mapping[str, Array]) -> Array:
        """The sums of these words, from those of all tensors."""
        begin = self.first * word_type(self.dtype).itemsize // CHUNK
        return sums[self.name][begin : begin + -(-self.size // CHUNK)]


Parts = Tuple[Part, ...]  # neighbours of one type: one part, or whole tensors


def parts_of(name: str, tensor: Tensor, piece: int = 0) -> Iterator[Part]:
    """One after the other: a tensor that only a hostile list names may have 2^50 of them."""
    step = _step_of(tensor, piece)
    return (Part(name, tensor.dtype, first, min(step, tensor.length - first)) for first in range(0, max(tensor.length, 1), step))


def _step_of(tensor: Tensor, piece: int) -> int:
    return max(CHUNK, (piece or PIECE) // word_type(tensor.dtype).itemsize)


def _apart(tensors: Tensors) -> Iterator[Parts]:
    """All parts, in the order of a patch."""
    return ((part,) for name in order_of(tensors) for part in parts_of(name, tensors[name]))


def joined(tensors: Tensors) -> Iterator[Parts]:
    """The parts that share a frame, in the order of a patch."""
    return _join((part for (part,) in _apart(tensors)), min(JOIN, PIECE))


def _join(parts: Iterable[Part], limit: int) -> Iterator[Parts]:
    """Groups of neighbours that are whole tensors of one type, of at most `limit` bytes; a piece of a tensor is alone."""
    group: List[Part] = []
    total = 0
    for part in parts:
        size = part.size
        if group and (part.dtype != group[0].dtype or part.first or group[0].first or total + size > limit):
            yield tuple(group)
            group, total = [], 0
        group.append(part)
        total += size
    if group:
        yield tuple(group)


def gather(tensors: Tensors, parts: Parts, room: str) -> Array:
    """The words of parts, one after the other. The words of one part in memory are not copied."""
    if len(parts) == 1:
        return part_of(tensors, parts[0], room)
    made = numpy.empty(sum(part.length for part in parts), word_type(parts[0].dtype))
    for part, place in zip(parts, places_of(parts)):
        made[place] = part_of(tensors, part, room)
    return made


def part_of(tensors: Tensors, part: Part, room: str) -> Array:
    words: Array = tensors[part.name].part(part.first, part.length, room)
    return words


def places_of(parts: Sequence[Part]) -> List[slice]:
    """The place of every part in the words of all."""
    ends = numpy.cumsum([0, *(part.length for part in parts)]).tolist()
    return [slice(begin, end) for begin, end in zip(ends, ends[1:])]


def checks_of(parts: Parts, words: Array) -> List[int]:
    return [check_of(new_sums(words[place])) for place in places_of(parts)]


def require_same(here: Tensors, there: Tensors, what: str, other: str) -> None:
    """ArgumentError, with the first difference, unless both have the same names, types and shapes."""
    for name in here:
        if name not in there:
            raise ArgumentError(f"{what} has {name!r}, {other} does not")
    for name, theirs in there.items():
        if name not in here:
            raise ArgumentError(f"{other} has {name!r}, {what} does not")
        ours = here[name]
        if (ours.dtype, tuple(ours.shape)) != (theirs.dtype, tuple(theirs.shape)):
            prefix = f"{name!r}: " if name else ""  # (a single array has no name)
            raise ArgumentError(
                f"{prefix}{what} has {ours.dtype} of shape {list(ours.shape)},"
                f" {other} {theirs.dtype} of shape {list(theirs.shape)}"
            )


# ---- Writing -------------------------------------------------------------------------------------


class Made(NamedTuple):
    """An encoded unit. frame: b"" if nothing changed. checks: those of its parts, if it has no frame or several parts; else ()"""

    parts: Parts
    frame: bytes
    checks: Sequence[int]


def write_patch(
    file: BinaryIO,
    old: Tensors,
    new: Tensors,
    plan: Plan,
    names: Tuple[str, str],
    sums: Optional[Dict[str, Array]],
    threads: Optional[int],
    watch: Watch = None,
    listed: bool = False,
    history: Optional[Dict[str, Array]] = None,
    advance: bool = False,
) -> None:
    """Writes the patch from `old` to `new`, a piece of a tensor at a time.

    names    of base and result
    sums     of `old`; they are updated to those of `new`
    listed   the patch contains names, types and shapes, too
    history  of `old`; it is updated, too. A patch changes the history of all words, so every part has a frame, even if no word changes
    advance  the words of `old`, in memory, become those that the patch has; also if `new` changes meanwhile. After an error they may be
             either
    """
    if not plan.info.patch:
        raise ArgumentError(f"plan '{plan}' cannot make patches: it needs sparsify=changed")
    require_same(old, new, "old", "new")

    def encode(parts: Parts) -> List[Made]:
        before, after = gather(old, parts, "old"), gather(new, parts, "new")
        if advance and len(parts) == 1:
            after = after.copy()
        try:
            if len(parts) == 1:
                made = [_encode(plan, parts, before, after, parts[0].known(sums, history))]
            else:
                made = _encode_joined(plan, parts, before, after)
        except Error as error:
            raise named(error, names_of(parts)) from None
        for part, place in zip(parts, places_of(parts)):
            if len(parts) > 1 and sums is not None and (before[place] != after[place]).any():
                part.sums_in(sums)[:] = new_sums(after[place])
            if advance:
                part_of(old, part, "old")[:] = after[place]
        return made

    file.write(MAGIC)
    rows: List[UnitRow] = []
    unchanged: List[int] = []
    of_gpu = on_device(old)  # whose work is on this thread's current stream: others have another one
    for units in in_order(encode, joined(old) if history is None and not of_gpu else _apart(old), None if of_gpu else threads):
        for unit in units:
            file.write(unit.frame)
            rows.append(UnitRow(len(unit.parts), len(unit.frame), locator_of(unit.checks) if unit.frame else (0, 0)))
            if not unit.frame:
                unchanged += unit.checks
            if watch is not None:
                watch(unit.parts[0].name, sum(part.size for part in unit.parts))
    still = (combined(unchanged), locator_of(unchanged)) if unchanged else None
    entries = [Entry(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in old.items()] if listed else None
    text = write_index(Index(*names, list_check_of(old), PIECE, rows, still, entries))
    file.write(text + _END.pack(len(text), zlib.crc32(text)))


def _encode_joined(plan: Plan, parts: Parts, before: Array, after: Array) -> List[Made]:
    """Encodes tensors in one frame, or in several if they have fewer bytes together."""
    one = _encode(plan, parts, before, after, Known())
    if _DENSE * len(one.frame) < before.nbytes:
        return [one]
    places = dict(zip(parts, places_of(parts)))
    apart = []
    for few in _join(parts, APART):
        place = slice(places[few[0]].start, places[few[-1]].stop)
        apart.append(_encode(plan, few, before[place], after[place], Known()))
    return apart if sum(len(unit.frame) + 8 for unit in apart) < len(one.frame) else [one]


def _encode(plan: Plan, parts: Parts, before: Array, after: Array, known: Known) -> Made:
    frame = encode_words(before, after, plan, parts[0].code, known)
    change = change_of(memoryview(frame))
    if change.changed or known.history is not None:
        return Made(parts, frame, checks_of(parts, before) if len(parts) > 1 else ())
    return Made(parts, b"", checks_of(parts, before) if len(parts) > 1 else (change.base,))


def names_of(parts: Parts) -> str:
    if len(parts) > 3:
        return f"{parts[0].name} … {parts[-1].name} ({len(parts)} tensors)"
    what = ", ".join(part.name for part in parts)
    return f"{what}, words from {parts[0].first}" if parts[0].first else what


# ---- Reading -------------------------------------------------------------------------------------


class Unit(NamedTuple):
    """Words that a patch changes together, with the names of their tensors.

    number   number of the unit in its patch
    frame    empty: no word changes
    changed  number of words that change
    """

    number: int
    parts: Parts
    frame: memoryview
    changed: int
    locator: Locator
    where: str  # begins errors: the name of the patch

    @property
    def code(self) -> int:
        return self.parts[0].code

    @property
    def length(self) -> int:
        return sum(part.length for part in self.parts)

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def assign(self, words: Array, known: Known) -> None:
        """Changes the unit's words, in place, and updates their sums and history. On an error nothing is written."""
        try:
            assign(self.frame, self.code, words, known)
        except Error as error:
            raise self._named(error, words) from None

    def pairs(self, words: Array, known: Known) -> Tuple[Array, Array]:
        """The changes: indices [r] uint32 into the unit's words, ascending, and words [r]."""
        try:
            return pairs(self.frame, self.changed, self.code, words, known)
        except Error as error:
            raise self._named(error, words) from None

    def checks(self, words: Array, sums: Optional[Array]) -> List[int]:
        """The checks of its parts. sums: of the words, if there is one part; else None"""
        return checks_of(self.parts, words) if sums is None else [check_of(sums)]

    def _named(self, error: Error, words: Array) -> Error:
        what = names_of(self.parts)
        if isinstance(error, WrongBase) and len(self.parts) > 1:
            checks = checks_of(self.parts, words)
            return WrongBase(self.where + _wrong(self.parts, checks, self.locator, str(error)))
        return named(error, self.where + what)


def _prefix_of(names: Iterable[str]) -> str:
    """What all names begin with, up to a dot: "module." of DistributedDataParallel, "_orig_mod." of torch.compile."""
    common = os.path.commonprefix(list(names))
    return common[: common.rfind(".") + 1]


def _wrong(parts: Parts, checks: Sequence[int], locator: Locator, text: str) -> str:
    """The error if the base is wrong, with the part that differs. text: the error if more than one part differs"""
    place = located(checks, locator)
    if place is None:
        return f"more than one of {names_of(parts)}: {text}"
    rest = (locator[0] - locator_of(checks)[0] + checks[place]) % 65521
    return (
        f"{names_of((parts[place],))}: its check is {checks[place]:016x}, {checks[place] % 65521} modulo 65521;"
        f" the patch is for a base of check {rest} modulo 65521"
    )


class Patch:
    """A parsed patch. Raises CorruptFrame and Unsupported, with messages that begin with `where`.

    entries  its tensors by name; None: their list is not in the patch
    """

    def __init__(self, data: memoryview, where: str = "patch") -> None:
        if len(data) < len(MAGIC) + _END.size or data[:7] != MAGIC[:7]:
            raise CorruptFrame(f"{where}: not a patch: it does not begin with {MAGIC[:7].decode()}, or is cut off")
        if data[:8] != MAGIC:
            raise Unsupported(f"{where}: version {data[7]} of patches; this library reads version {MAGIC[7]}")
        size, crc = _END.unpack(data[-_END.size :])
        end = len(data) - _END.size - size
        if end < len(MAGIC):
            raise CorruptFrame(f"{where}: cut off or damaged: an index of {size} bytes in {len(data)}")
        text = bytes(data[end : end + size])
        if zlib.crc32(text) != crc:
            raise CorruptFrame(f"{where}: cut off or damaged: the check of its index differs")
        self.where = where
        self._frames = data[len(MAGIC) : end]
        self.index = read_index(text, len(self._frames), where)
        self.base, self.result = self.index.base, self.index.result
        self.entries = None if self.index.tensors is None else {entry.name: entry for entry in self.index.tensors}
        self.size = len(data)

    def frames(self) -> Iterator[Tuple[UnitRow, memoryview]]:
        at = 0
        for row in self.index.units:
            yield row, self._frames[at : at + row.size]
            at += row.size

    def require(self, weights: Tensors, what: str) -> None:
        """ArgumentError unless the weights have the tensors of the patch."""
        if self.entries is not None:
            require_same(weights, self.entries, what, self.where)
        if list_check_of(weights) == self.index.list_check:
            return
        name, more = misfit(weights, self.index.list_check)
        if name is not None and more:
            raise ArgumentError(f"{what} has {name!r}, {self.where} does not")
        if name is not None:
            shape = f"{weights[name].dtype} of shape {list(weights[name].shape)}"
            prefix = f"{name!r}: " if name else ""
            raise ArgumentError(f"{prefix}{what} has {shape}, {self.where} another type or shape")
        prefix = _prefix_of(weights)
        hint = f"; all names begin with {prefix!r}, which those of {self.where} may not" if prefix else ""
        raise ArgumentError(f"{what}: its {len(weights)} tensors are not those of {self.where}: one is missing, or more than one differs{hint}")

    def units(self, tensors: Tensors) -> List[Unit]:
        """The units of the patch, with the names of these tensors."""

        def fail(what: str, why: str) -> CorruptFrame:
            return CorruptFrame(f"{self.where}: {what}: {why}" if what else f"{self.where}: {why}")

        found: List[Unit] = []
        left = (part for name in order_of(tensors) for part in parts_of(name, tensors[name], self.index.piece))
        at = 0
        prefix = "" if self.where == "patch" else f"{self.where}: "
        for number, (row, frame) in enumerate(self.frames()):
            parts = tuple(itertools.islice(left, min(row.parts, len(tensors))))  # (several are whole tensors)
            if len(parts) < row.parts:
                raise fail("", f"unit {number} has {row.parts} tensors, but only {len(parts)} are left")
            if len(parts) > 1 and (
                sum(part.size for part in parts) > self.index.piece
                or any(part.dtype != parts[0].dtype or part.length != tensors[part.name].length for part in parts)
            ):
                raise fail(names_of(parts), "a unit of tensors that cannot share a frame")
            at += row.parts
            changed = 0
            if row.size:
                try:
                    change = change_of(frame)
                except Error as error:
                    raise named(error, prefix + names_of(parts) or self.where) from None
                length = sum(part.length for part in parts)
                if (change.code, change.length) != (parts[0].code, length):
                    raise fail(names_of(parts), f"a frame of {change.length} words for {length}, or of another type")
                changed = change.changed
            found.append(Unit(number, parts, frame, changed, row.locator, prefix))
        without = next(left, None)
        if without is not None:
            count = sum(-(-max(tensor.length, 1) // _step_of(tensor, self.index.piece)) for tensor in tensors.values())
            raise fail(without.name, f"no unit has it; {count - at} tensors have no unit")
        return found

    def require_unchanged(self, units: Sequence[Unit], checks: Mapping[int, Sequence[int]]) -> None:
        """WrongBase unless the units without a frame are those of the base. checks: number of a unit -> checks of its parts"""
        if self.index.unchanged is None:
            return
        still = [unit for unit in units if not unit.frame]
        found = [check for unit in still for check in checks[unit.number]]
        check, locator = self.index.unchanged
        if combined(found) != check:
            parts = tuple(part for unit in still for part in unit.parts)
            why = f"their check is {combined(found):016x}; the patch is for a base of check {check:016x}"
            prefix = "" if self.where == "patch" else f"{self.where}: "
            raise WrongBase(prefix + _wrong(parts, found, locator, why))


def open_patch(path: Union[str, os.PathLike[str]]) -> Patch:
    """A patch in a file. A large one is mapped, and holds a file descriptor, as long as the patch is used: it must not be cut
    meanwhile. Raises OSError."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            raise CorruptFrame(f"{os.fspath(path)}: not a patch: the file is empty")
        if size <= _READ_MAX:
            return Patch(memoryview(file.read()), os.fspath(path))
        return Patch(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), os.fspath(path))
