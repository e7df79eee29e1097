"""The index at the end of a patch (docs/PATCH.md, "Layout"): the tensors of each frame, and the checks of tensors without a frame."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from typing import Iterable, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Tuple

import numpy

from .._native._types import Tensor
from ..errors import ArgumentError, CorruptFrame
from ._tensor_header import MAX_HEADER, Entry, entry_of
from ._word_frames import CHUNK, check_of

Locator = Tuple[int, int]

_PRIME = 65521  # the largest below 2^16
_UNCHANGED, _LISTED, _LOG_MASK = 64, 128, 31
_CHECKS = struct.Struct("<QHH")  # check and locator of the tensors that have not changed
_LOCATOR = struct.Struct("<HH")
# The list of tensors: the maximum bytes per packed byte, and bytes that are always accepted; the maximum of tensors. Lists of models
# of 289 to 600,000 tensors have 20 to 30 bytes a packed byte, 42 with long names that differ by a number alone.
_BYTES_PER_BYTE, _BYTES_FREE, _TENSORS_MAX = 64, 1 << 20, 1_000_000
_ROW_MIN = len('["","F32",[]]')


class UnitRow(NamedTuple):
    """Tensors that share a frame, or a piece of one tensor.

    parts    how many tensors
    size     bytes of the frame; 0: nothing changed, and there is no frame
    locator  of the checks of the parts, if there is more than one part
    """

    parts: int
    size: int
    locator: Locator = (0, 0)


class Index(NamedTuple):
    """base, result  names that the sender chose
    list_check     of the tensors' names, types and shapes
    piece          bytes: longer tensors are cut into pieces
    units          in the order of tensors (`in_order_of_units`)
    unchanged      check and locator of the parts of units without a frame; None: there are no such units
    tensors        the list of tensors, in the sender's order; None: it is not in the patch
    """

    base: str
    result: str
    list_check: Locator
    piece: int
    units: Sequence[UnitRow]
    unchanged: Optional[Tuple[int, Locator]]
    tensors: Optional[Sequence[Entry]]


# ---- Tensors -------------------------------------------------------------------------------------


def order_of(tensors: Mapping[str, Tensor]) -> List[str]:
    """Names in the order of a patch: sorted by type, then by size, then by name."""
    return sorted(tensors, key=lambda name: (tensors[name].dtype, Entry("", tensors[name].dtype, tuple(tensors[name].shape)).size, name))


def _hash(text: str) -> int:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"the name {text.partition(chr(0))[0]!r} is not valid text") from None
    return 1 + int.from_bytes(hashlib.sha256(data).digest()[:4], "little") % (_PRIME - 1)


def _hashes(name: str, tensor: Tensor) -> Tuple[int, int]:
    """(hash of the name, hash of name, type and shape)"""
    return _hash(name), _hash(f"{name}\0{tensor.dtype}\0{','.join(map(str, tensor.shape))}")


def list_check_of(tensors: Mapping[str, object]) -> Locator:
    """The check of names, types and shapes: two sums, which do not depend on the order of the tensors."""
    found = [_hashes(name, tensor) for name, tensor in tensors.items()]
    return sum(whole for _, whole in found) % _PRIME, sum(name * whole for name, whole in found) % _PRIME


def misfit(tensors: Mapping[str, object], check: Locator) -> Tuple[Optional[str], bool]:
    """Finds the one tensor that differs from the list with this check: (its name, whether the list lacks that name); (None, False)
    if more than one differs."""
    plain, weighted = list_check_of(tensors)
    difference = (plain - check[0]) % _PRIME
    name_hash = (weighted - check[1]) * pow(difference, _PRIME - 2, _PRIME) % _PRIME
    for name, tensor in tensors.items():
        of_name, whole = _hashes(name, tensor)
        if difference and of_name == name_hash:
            return name, whole == difference
    return None, False


# ---- Checks --------------------------------------------------------------------------------------


def combined(checks: Sequence[int]) -> int:
    """One check of many."""
    return check_of(numpy.array(checks, numpy.uint64))


def locator_of(checks: Iterable[int]) -> Locator:
    """Two sums of checks. If one check differs later, `located` computes its place from them."""
    plain = weighted = 0
    for i, check in enumerate(checks):
        plain += check % _PRIME
        weighted += (i + 1) * (check % _PRIME)
    return plain % _PRIME, weighted % _PRIME


def located(checks: Sequence[int], locator: Locator) -> Optional[int]:
    """The place of the one check that differs from the locator's checks; None: none or more than one differs."""
    plain, weighted = locator_of(checks)
    difference = (plain - locator[0]) % _PRIME
    if not difference:
        return None
    place = (weighted - locator[1]) * pow(difference, _PRIME - 2, _PRIME) % _PRIME - 1
    return place if 0 <= place < len(checks) else None


# ---- Bytes ---------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    made = bytearray()
    while number >= 128:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def write_index(index: Index) -> bytes:
    """Raises ArgumentError if a name is not valid text, or if there are too many tensors."""
    made = bytearray()
    for what, name in (("base", index.base), ("result", index.result)):
        try:
            text = name.encode()
        except UnicodeEncodeError:
            raise ArgumentError(f"{what} {name!r} is not valid text") from None
        made += _varint(len(text)) + text
    flags = index.piece.bit_length() - 1 | (0 if index.unchanged is None else _UNCHANGED) | (0 if index.tensors is None else _LISTED)
    made += struct.pack("<HHB", *index.list_check, flags)
    if index.unchanged is not None:
        made += _CHECKS.pack(index.unchanged[0], *index.unchanged[1])
    if index.tensors is not None:
        rows = [[entry.name, entry.dtype, list(entry.shape)] for entry in index.tensors]
        if len(rows) > _TENSORS_MAX:
            raise ArgumentError(f"{len(rows)} tensors: a patch that lists them has at most {_TENSORS_MAX}")
        plain = json.dumps(rows, separators=(",", ":")).encode()
        text = zlib.compress(plain, 9)
        if len(plain) > _most_of(text):  # (names of thousands of equal characters)
            text = zlib.compress(plain, 0)
        made += _varint(len(text)) + text
    for unit in index.units:
        made += _varint(unit.parts) + _varint(unit.size)
        if unit.parts > 1 and unit.size:
            made += _LOCATOR.pack(*unit.locator)
    if len(made) > MAX_HEADER:
        raise ArgumentError(f"{sum(unit.parts for unit in index.units)} tensors: their index takes {len(made)} bytes, at most {MAX_HEADER}")
    return bytes(made)


class _Reader:
    def __init__(self, text: bytes, where: str) -> None:
        self.text, self.at, self.where = text, 0, where

    def fail(self, why: str) -> NoReturn:
        raise CorruptFrame(f"{self.where}: {why}; the index is damaged")

    def take(self, size: int, what: str) -> bytes:
        if size > len(self.text) - self.at:
            self.fail(f"{what} at byte {self.at} has {size} bytes, but only {len(self.text) - self.at} are left")
        self.at += size
        return self.text[self.at - size : self.at]

    def varint(self, what: str) -> int:
        number = 0
        for i in range(9):
            (byte,) = self.take(1, what)
            number |= (byte & 127) << 7 * i
            if byte < 128:
                if i and not byte:
                    break
                return number
        self.fail(f"{what} before byte {self.at} is not a number")

    def name(self, what: str) -> str:
        try:
            return self.take(self.varint(what), what).decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not valid text")


def read_index(text: bytes, data: int, where: str) -> Index:
    """Parses an index. data: bytes of all frames. Raises CorruptFrame, whose message begins with `where`."""
    reader = _Reader(text, where)
    base, result = reader.name("the base's name"), reader.name("the result's name")
    *list_check, flags = struct.unpack("<HHB", reader.take(5, "the check of the list"))
    piece = 1 << (flags & _LOG_MASK)
    if piece < CHUNK or flags & 32:
        reader.fail(f"flags are {flags:#x}")
    unchanged: Optional[Tuple[int, Locator]] = None
    if flags & _UNCHANGED:
        check, *locator = _CHECKS.unpack(reader.take(_CHECKS.size, "the check of what has not changed"))
        unchanged = check, (locator[0], locator[1])
    tensors = None
    if flags & _LISTED:
        tensors = _list(reader.take(reader.varint("the list of tensors"), "the list of tensors"), reader)
        if list_check_of({entry.name: entry for entry in tensors}) != (list_check[0], list_check[1]):
            reader.fail("the list of tensors has another check")
    units: List[UnitRow] = []
    at = 0
    while reader.at < len(text):
        parts, size = reader.varint("a unit's tensors"), reader.varint("a frame's size")
        sums: Sequence[int] = _LOCATOR.unpack(reader.take(4, "a locator")) if parts > 1 and size else (0, 0)
        if not parts or size > data - at:
            reader.fail(f"unit {len(units)} has {parts} tensors and a frame of {size} bytes, but only {data - at} bytes are left")
        if not size and unchanged is None:
            reader.fail(f"unit {len(units)} has neither a frame nor a check")
        units.append(UnitRow(parts, size, (sums[0], sums[1])))
        at += size
    if at != data:
        reader.fail(f"{data - at} bytes after the last frame")
    return Index(base, result, (list_check[0], list_check[1]), piece, units, unchanged, tensors)


def _most_of(packed: bytes) -> int:
    """The maximum bytes of a list of tensors that was packed to these."""
    return min(max(_BYTES_FREE, _BYTES_PER_BYTE * len(packed)), MAX_HEADER)


def _lists_in(text: bytes) -> int:
    """The number of lists and dicts in JSON: of brackets outside strings."""
    data = numpy.frombuffer(text.replace(b"\\\\", b"").replace(b'\\"', b""), numpy.uint8)
    is_outside = numpy.cumsum(data == ord('"'), dtype=numpy.uint8) % 2 == 0
    return int(numpy.count_nonzero(is_outside & ((data == ord("[")) | (data == ord("{")))))


def _list(packed: bytes, reader: _Reader) -> List[Entry]:
    opened = zlib.decompressobj()
    try:
        text = opened.decompress(packed, _most_of(packed))
        if not opened.eof or opened.unused_data:
            reader.fail(f"the list of tensors is cut off, or has more than {_most_of(packed)} bytes")
        lists, limit = _lists_in(text), 1 + 2 * min(_TENSORS_MAX, -(-len(text) // _ROW_MIN))
        if lists > limit:  # json would make objects of many times these bytes
            reader.fail(f"the list of tensors has {lists} lists in {len(text)} bytes, at most {limit}")
        rows = json.loads(text.decode())
    except (zlib.error, ValueError, RecursionError) as error:
        reader.fail(f"the list of tensors cannot be read ({str(error)[:100]})")
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == 3 and isinstance(row[0], str) for row in rows):
        reader.fail("the list of tensors has a row that is not [name, type, shape]")
    entries = [entry_of(row[0], row[1], row[2], reader.fail) for row in rows]
    if len({entry.name for entry in entries}) != len(entries):
        reader.fail("the list of tensors has a name twice")
    return entries
