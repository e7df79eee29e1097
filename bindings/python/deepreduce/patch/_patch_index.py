"""The index at the end of a patch (docs/PATCH.md, "Layout"): which frames are of which tensors, and the checks that no frame has."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from typing import Iterable, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Tuple

import numpy

from .._native._types import Tensor
from ..errors import ArgumentError, CorruptFrame
from ._tensor_header import HEADER_MOST, Entry, entry_of
from ._word_frames import CHUNK, check_of

Locator = Tuple[int, int]

_PRIME = 65521  # the largest below 2^16
_UNCHANGED, _LISTED, _LOG_MASK = 64, 128, 31
_CHECKS = struct.Struct("<QHH")  # of what has not changed: check and locator
_LOCATOR = struct.Struct("<HH")


class UnitRow(NamedTuple):
    """Tensors that share a frame, or a piece of one.

    parts    how many tensors
    size     bytes of the frame; 0: nothing changed, and there is none
    locator  of the checks of the parts, if there are more than one
    """

    parts: int
    size: int
    locator: Locator = (0, 0)


class Index(NamedTuple):
    """base, result  names that the sender chose
    list_check     of the tensors' names, types and shapes
    piece          bytes: longer tensors are cut
    units          in the order of tensors (`in_order_of_units`)
    unchanged      check and locator of the parts of units without a frame; None: there are none
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
    """Names in the order of a patch: tensors of a type side by side, small ones first."""
    return sorted(tensors, key=lambda name: (tensors[name].dtype, Entry("", tensors[name].dtype, tuple(tensors[name].shape)).size, name))


def _hash(text: str) -> int:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"the name {text.partition(chr(0))[0]!r} is no text") from None
    return 1 + int.from_bytes(hashlib.sha256(data).digest()[:4], "little") % (_PRIME - 1)


def _hashes(name: str, tensor: Tensor) -> Tuple[int, int]:
    """Of the name, and of name, type and shape."""
    return _hash(name), _hash(f"{name}\0{tensor.dtype}\0{','.join(map(str, tensor.shape))}")


def list_check_of(tensors: Mapping[str, object]) -> Locator:
    """Of names, types and shapes, in any order: two sums."""
    found = [_hashes(name, each) for name, each in tensors.items()]
    return sum(whole for _, whole in found) % _PRIME, sum(name * whole for name, whole in found) % _PRIME


def misfit(tensors: Mapping[str, object], check: Locator) -> Tuple[Optional[str], bool]:
    """If one of the tensors differs from the list of that check: its name, and whether the list has none of that name."""
    plain, weighted = list_check_of(tensors)
    much = (plain - check[0]) % _PRIME
    wanted = (weighted - check[1]) * pow(much, _PRIME - 2, _PRIME) % _PRIME
    for name, each in tensors.items():
        of_name, whole = _hashes(name, each)
        if much and of_name == wanted:
            return name, whole == much
    return None, False


# ---- Checks --------------------------------------------------------------------------------------


def combined(checks: Sequence[int]) -> int:
    """One check of many."""
    return check_of(numpy.array(checks, numpy.uint64))


def locator_of(checks: Iterable[int]) -> Locator:
    """Two sums, from which follows which one of the checks is another later."""
    plain = weighted = 0
    for i, check in enumerate(checks):
        plain += check % _PRIME
        weighted += (i + 1) * (check % _PRIME)
    return plain % _PRIME, weighted % _PRIME


def located(checks: Sequence[int], locator: Locator) -> Optional[int]:
    """Which of the checks differs from those that the locator is of; None: more than one, or that is not known."""
    plain, weighted = locator_of(checks)
    much = (plain - locator[0]) % _PRIME
    if not much:
        return None
    place = (weighted - locator[1]) * pow(much, _PRIME - 2, _PRIME) % _PRIME - 1
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
    """Raises ArgumentError: a name is no text, or there are too many tensors."""
    made = bytearray()
    for what, name in (("base", index.base), ("result", index.result)):
        try:
            text = name.encode()
        except UnicodeEncodeError:
            raise ArgumentError(f"{what} {name!r} is no text") from None
        made += _varint(len(text)) + text
    flags = index.piece.bit_length() - 1 | (0 if index.unchanged is None else _UNCHANGED) | (0 if index.tensors is None else _LISTED)
    made += struct.pack("<HHB", *index.list_check, flags)
    if index.unchanged is not None:
        made += _CHECKS.pack(index.unchanged[0], *index.unchanged[1])
    if index.tensors is not None:
        rows = [[each.name, each.dtype, list(each.shape)] for each in index.tensors]
        text = zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 9)
        made += _varint(len(text)) + text
    for unit in index.units:
        made += _varint(unit.parts) + _varint(unit.size)
        if unit.parts > 1 and unit.size:
            made += _LOCATOR.pack(*unit.locator)
    if len(made) > HEADER_MOST:
        raise ArgumentError(f"{sum(unit.parts for unit in index.units)} tensors: their index takes {len(made)} bytes, at most {HEADER_MOST}")
    return bytes(made)


class _Reader:
    def __init__(self, text: bytes, where: str) -> None:
        self.text, self.at, self.where = text, 0, where

    def fail(self, why: str) -> NoReturn:
        raise CorruptFrame(f"{self.where}: {why}; the index is damaged")

    def take(self, size: int, what: str) -> bytes:
        if size > len(self.text) - self.at:
            self.fail(f"{what} at byte {self.at} has {size} bytes, of {len(self.text) - self.at} that are left")
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
        self.fail(f"{what} before byte {self.at} is no number")

    def name(self, what: str) -> str:
        try:
            return self.take(self.varint(what), what).decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is no text")


def read_index(text: bytes, data: int, where: str) -> Index:
    """data: bytes of all frames. Raises CorruptFrame, which `where` begins."""
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
        if list_check_of({each.name: each for each in tensors}) != (list_check[0], list_check[1]):
            reader.fail("the list of tensors has another check")
    units: List[UnitRow] = []
    at = 0
    while reader.at < len(text):
        parts, size = reader.varint("a unit's tensors"), reader.varint("a frame's size")
        sums: Sequence[int] = _LOCATOR.unpack(reader.take(4, "a locator")) if parts > 1 and size else (0, 0)
        if not parts or size > data - at:
            reader.fail(f"unit {len(units)} has {parts} tensors and a frame of {size} bytes, of {data - at} that are left")
        if not size and unchanged is None:
            reader.fail(f"unit {len(units)} has no frame, and no check")
        units.append(UnitRow(parts, size, (sums[0], sums[1])))
        at += size
    if at != data:
        reader.fail(f"{data - at} bytes behind the last frame")
    return Index(base, result, (list_check[0], list_check[1]), piece, units, unchanged, tensors)


def _list(packed: bytes, reader: _Reader) -> List[Entry]:
    opened = zlib.decompressobj()
    try:
        text = opened.decompress(packed, HEADER_MOST)
        rows = json.loads(text.decode())
    except (zlib.error, ValueError, RecursionError) as error:
        reader.fail(f"the list of tensors cannot be read ({str(error)[:100]})")
    if not opened.eof or opened.unused_data:
        reader.fail("the list of tensors is cut off, or too long")
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == 3 and isinstance(row[0], str) for row in rows):
        reader.fail("the list of tensors has other rows than name, type and shape")
    entries = [entry_of(row[0], row[1], row[2], reader.fail) for row in rows]
    if len({each.name for each in entries}) != len(entries):
        reader.fail("the list of tensors has a name twice")
    return entries
