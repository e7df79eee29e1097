"""The header of .safetensors files: names, types, shapes and places of tensors, in JSON."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, NoReturn, Sequence, Tuple

from .._native._types import Json
from ..errors import ArgumentError
from ._element_types import ELEMENT_TYPES, size_of, word_type

METADATA = "__metadata__"  # the one key that names no tensor, but strings
HEADER_MOST = 100_000_000  # bytes: the limit of the format's own reader
_DIMENSIONS_MOST = 64
_NUMBER_END = 2**63


Fail = Callable[[str], NoReturn]  # raises what is wrong with a file


class Entry(NamedTuple):
    """A tensor, and the bytes [begin, end) behind the header that are its."""

    name: str
    dtype: str  # of ELEMENT_TYPES
    shape: Tuple[int, ...]
    begin: int = 0
    end: int = 0

    @property
    def size(self) -> int:
        """Bytes of its elements."""
        return size_of(self.dtype, self.shape) or 0

    @property
    def length(self) -> int:
        """Its words."""
        return self.size // word_type(self.dtype).itemsize


def write_entries(metadata: Mapping[str, str], entries: Sequence[Entry]) -> bytes:
    document: Json = {METADATA: dict(metadata)} if metadata else {}
    for each in entries:
        document[each.name] = {"dtype": each.dtype, "shape": each.shape, "data_offsets": (each.begin, each.end)}
    return json.dumps(document, separators=(",", ":")).encode()


def read_entries(text: bytes, data: int, where: str) -> Tuple[Dict[str, str], List[Entry]]:
    """Metadata and entries, in the order of their bytes, which are all of the `data` bytes behind the header. Raises
    ArgumentError, which `where` begins."""

    def fail(why: str) -> NoReturn:
        raise ArgumentError(f"{where}: {why}; the header is damaged")

    def object_of(pairs: List[Tuple[str, object]]) -> Json:
        made = dict(pairs)
        if len(made) != len(pairs):
            fail(f"a key stands twice among {sorted(key for key, _ in pairs)[:3]}")
        return made

    if text[:1] != b"{":
        fail("no JSON object")
    try:
        document = json.loads(text.decode("utf-8"), object_pairs_hook=object_of, parse_constant=fail)
    except (ValueError, RecursionError) as error:
        fail(f"no JSON ({str(error)[:100]})")
    metadata = document.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(each, str) for each in metadata.values()):
        fail(f"{METADATA} is no object of strings")
    entries = [_entry(name, fields, fail) for name, fields in document.items()]
    entries.sort(key=lambda each: (each.begin, each.end))
    at = 0
    for each in entries:
        if each.begin != at or not at <= each.end <= data:
            fail(f"{each.name}: data_offsets [{each.begin}, {each.end}) should begin at {at} and end by {data}")
        if each.end - each.begin != each.size:
            fail(f"{each.name}: {each.end - each.begin} bytes for {each.dtype} of shape {list(each.shape)}")
        at = each.end
    if at != data:
        fail(f"{data - at} bytes behind the last tensor")
    return metadata, entries


def _entry(name: str, fields: Any, fail: Fail) -> Entry:
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        fail(f"{name}: needs dtype, shape and data_offsets")
    offsets = fields["data_offsets"]
    _require_numbers(name, "data_offsets", offsets, fail)
    if len(offsets) != 2:
        fail(f"{name}: {len(offsets)} data_offsets")
    return entry_of(name, fields["dtype"], fields["shape"], fail)._replace(begin=offsets[0], end=offsets[1])


def entry_of(name: str, dtype: Any, shape: Any, fail: Fail) -> Entry:
    """A tensor of a file that may be hostile. fail(why) raises what is wrong with it."""
    if not isinstance(dtype, str) or dtype not in ELEMENT_TYPES:
        fail(f"{name}: dtype is {str(dtype)[:20]!r}, not one of {', '.join(ELEMENT_TYPES)}")
    _require_numbers(name, "shape", shape, fail)
    if len(shape) > _DIMENSIONS_MOST:
        fail(f"{name}: {len(shape)} dimensions, at most {_DIMENSIONS_MOST}")
    if any("\ud800" <= c <= "\udfff" for c in name):
        fail(f"{name!r}: the name is no text")
    size = size_of(dtype, shape)
    if size is None or size >= _NUMBER_END:
        fail(f"{name}: {dtype} of shape {shape} does not end at a byte, or has too many")
    return Entry(name, dtype, tuple(shape))


def _require_numbers(name: str, what: str, numbers: object, fail: Fail) -> None:
    if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < _NUMBER_END for n in numbers):
        fail(f"{name}: {what} is no list of sizes")
