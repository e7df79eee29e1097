"""The header of .safetensors files: names, types, shapes and places of tensors, in JSON."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, NoReturn, Sequence, Tuple

from .._native._types import Json
from ..errors import ArgumentError
from ._element_types import ELEMENT_TYPES, size_of, word_type

METADATA = "__metadata__"  # the only key that is not the name of a tensor; its value is an object of strings
MAX_HEADER = 100_000_000  # bytes: the limit of the format's own reader
_MAX_DIMENSIONS = 64
_NUMBER_END = 2**63


Fail = Callable[[str], NoReturn]  # raises the error, given what is wrong with the file


class Entry(NamedTuple):
    """A tensor, and the range [begin, end) of its bytes after the header."""

    name: str
    dtype: str  # of ELEMENT_TYPES
    shape: Tuple[int, ...]
    begin: int = 0
    end: int = 0

    @property
    def size(self) -> int:
        """Bytes of the elements."""
        return size_of(self.dtype, self.shape) or 0

    @property
    def length(self) -> int:
        """Number of words."""
        return self.size // word_type(self.dtype).itemsize


def write_entries(metadata: Mapping[str, str], entries: Sequence[Entry]) -> bytes:
    document: Json = {METADATA: dict(metadata)} if metadata else {}
    for entry in entries:
        if entry.name == METADATA:
            raise ArgumentError(f"a tensor has the name {METADATA}, which .safetensors has for something else")
        if len(entry.shape) > _MAX_DIMENSIONS:
            raise ArgumentError(f"{entry.name}: {_dimensions_of(entry.shape)}")
        document[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": (entry.begin, entry.end)}
    return json.dumps(document, separators=(",", ":")).encode()


def read_entries(text: bytes, data: int, where: str) -> Tuple[Dict[str, str], List[Entry]]:
    """(metadata, entries in the order of their bytes). The entries cover all of the `data` bytes after the header. Raises
    ArgumentError, whose message begins with `where`."""

    def fail(why: str) -> NoReturn:
        raise ArgumentError(f"{where}: {why}; the header is damaged")

    def object_of(pairs: List[Tuple[str, object]]) -> Json:
        made = dict(pairs)
        if len(made) != len(pairs):
            fail(f"a key occurs twice among {sorted(key for key, _ in pairs)[:3]}")
        return made

    if text[:1] != b"{":
        fail("not a JSON object")
    try:
        document = json.loads(text.decode("utf-8"), object_pairs_hook=object_of, parse_constant=fail)
    except ArgumentError:
        raise
    except (ValueError, RecursionError) as error:
        fail(f"not valid JSON ({str(error)[:100]})")
    metadata = document.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        fail(f"{METADATA} is not an object of strings")
    entries = [_entry(name, fields, fail) for name, fields in document.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    at = 0
    for entry in entries:
        if entry.begin != at or entry.end < at:
            fail(f"{entry.name}: data_offsets [{entry.begin}, {entry.end}) should begin at {at}")
        if entry.end > data:
            raise ArgumentError(f"{where}: cut off: {entry.name} ends at byte {entry.end} of the data, of which there are {data}")
        if entry.end - entry.begin != entry.size:
            fail(f"{entry.name}: {entry.end - entry.begin} bytes for {entry.dtype} of shape {list(entry.shape)}")
        at = entry.end
    if at != data:
        fail(f"{data - at} bytes after the last tensor")
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
    """A checked tensor of a file that may be hostile. fail(why) raises the error."""
    if not isinstance(dtype, str) or dtype not in ELEMENT_TYPES:
        fail(f"{name}: dtype is {str(dtype)[:20]!r}, not one of {', '.join(ELEMENT_TYPES)}")
    _require_numbers(name, "shape", shape, fail)
    if len(shape) > _MAX_DIMENSIONS:
        fail(f"{name}: {_dimensions_of(shape)}")
    if any("\ud800" <= c <= "\udfff" for c in name):
        fail(f"{name!r}: the name is not valid text")
    size = size_of(dtype, shape)
    if size is None or size >= _NUMBER_END:
        fail(f"{name}: {dtype} of shape {shape} does not end at a byte, or has too many")
    return Entry(name, dtype, tuple(shape))


def _dimensions_of(shape: Sequence[int]) -> str:
    return f"{len(shape)} dimensions, at most {_MAX_DIMENSIONS}"


def _require_numbers(name: str, what: str, numbers: object, fail: Fail) -> None:
    if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < _NUMBER_END for n in numbers):
        fail(f"{name}: {what} is not a list of sizes")
