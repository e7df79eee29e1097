"""Contributions to a round in a Folder: their bytes, and the rules by which all workers judge them.

    "DROUTER2", the size of the header (u32, little-endian), the header (JSON: name, round, terms, base, weight, fault, options),
    slots of a Sender, each after its size (u64), the buffers that are copied, blake2b of all before (16 bytes)

The slots are of the moves as they are. Those of "DROUTER1" are multiplied by the weight, as earlier versions wrote them; with weight
1 it is the same, and is written so that they read it.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from typing import Any, List, NamedTuple, Optional, Sequence

import numpy

from .._native._types import Array
from ..errors import Error
from ._round_options import Options, packed

_MAGIC, _TIMES_WEIGHT = b"DROUTER2", b"DROUTER1"
_SIZE, _SLOT, _CHECK = struct.Struct("<I"), struct.Struct("<Q"), 16
HEADER_MAX = 1 << 16
WEIGHTS = (2.0**-60, 2.0**60)  # of a contribution: the sums of others, and their quotients, would overflow, or be no numbers
_LANES = 1 << 16


class Refused(Error):
    """A contribution that no worker applies, and why."""


class Contribution(NamedTuple):
    """base: the check of the agreed weights that it starts from. fault: why there are no slots; or "". options: of its outer
    optimizer, unchecked; None: it is by an earlier version. factor: of its slots in the weighted sum, which is `weight` unless they
    were multiplied by it."""

    name: str
    base: str
    weight: float
    fault: str
    slots: List[memoryview]
    copies: memoryview
    options: object
    factor: float


def pack(
    name: str, number: int, terms: str, base: str, weight: float, fault: str, slots: Sequence[Any], copies: bytes, options: Optional[Options] = None
) -> bytes:
    header = {"name": name, "round": number, "terms": terms, "base": base, "weight": weight, "fault": fault[:1000]}
    if options is not None:
        header["options"] = packed(options)
    text = json.dumps(header).encode()
    data = bytearray((_TIMES_WEIGHT if weight == 1 else _MAGIC) + _SIZE.pack(len(text)) + text + _SIZE.pack(len(slots)))
    for slot in slots:
        data += _SLOT.pack(len(slot))
        data += bytes(slot)
    data += copies
    return bytes(data + hashlib.blake2b(data, digest_size=_CHECK).digest())


def overhead(slots: int, copies: int) -> int:
    """The maximum bytes of a contribution without its slots."""
    return len(_MAGIC) + 2 * _SIZE.size + HEADER_MAX + slots * _SLOT.size + copies + _CHECK


def unpack(data: bytes, name: str, number: int, terms: str, copies: int) -> Contribution:
    """Reads a worker's file. Raises Refused. All workers read the same bytes, so all refuse the same contributions.

    copies  bytes of the buffers that are copied
    """
    view = memoryview(data)
    magic = bytes(view[: len(_MAGIC)])
    if len(data) < overhead(0, 0) - HEADER_MAX or magic not in (_MAGIC, _TIMES_WEIGHT):
        raise Refused(f"its {len(data)} bytes are not a contribution")
    if hashlib.blake2b(view[:-_CHECK], digest_size=_CHECK).digest() != bytes(view[-_CHECK:]):
        raise Refused(f"its {len(data)} bytes are damaged: their check differs")
    at, end = len(_MAGIC), len(data) - _CHECK
    try:
        (size,) = _SIZE.unpack_from(view, at)
        at += _SIZE.size
        header = json.loads(bytes(view[at : at + size]))
        at += size
        its_name, its_number, its_terms = str(header["name"]), int(header["round"]), str(header["terms"])
        base, weight, fault = str(header["base"]), float(header["weight"]), str(header["fault"])
        (count,) = _SIZE.unpack_from(view, at)
        at += _SIZE.size
        slots = []
        for _ in range(count):
            (size,) = _SLOT.unpack_from(view, at)
            at += _SLOT.size
            if size > end - at:
                raise ValueError(f"a slot of {size} bytes of {end - at}")
            slots.append(view[at : at + size])
            at += size
    except (ValueError, KeyError, TypeError, OverflowError, struct.error, RecursionError) as error:
        raise Refused(f"its bytes are not a contribution: {str(error)[:100]}") from None
    if its_name != name:
        raise Refused(f"it is by worker {its_name[:64]!r}")
    if its_terms != terms:
        raise Refused("it is of another model, plan or option")
    if its_number != number:
        raise Refused(f"it is of round {its_number}")
    if fault:
        raise Refused(fault)
    if not WEIGHTS[0] <= weight <= WEIGHTS[1]:
        raise Refused(f"its weight is {weight}, not from 2^-60 to 2^60")
    if end - at != copies:
        raise Refused(f"its copied buffers have {end - at} bytes, not {copies}")
    return Contribution(name, base, weight, fault, slots, view[at:end], header.get("options"), weight if magic == _MAGIC else 1.0)


def norm_of(arrays: Sequence[Array]) -> float:
    """The L2 norm, bit for bit the same on every machine: lanes are summed, then added in halves, then summed exactly."""
    lanes = numpy.zeros(_LANES)
    for array in arrays:
        flat = array.reshape(-1)
        for at in range(0, flat.size, _LANES):
            wide = flat[at : at + _LANES].astype(numpy.float64)
            lanes[: wide.size] += wide * wide
    while lanes.size > 256:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    return math.sqrt(math.fsum(lanes)) if numpy.isfinite(lanes).all() else math.inf


def beyond(norms: Sequence[float], bound: float) -> List[bool]:
    """Whether each norm is more than `bound` times the median, which of two in the middle is the smaller one."""
    middle = sorted(norms)[(len(norms) - 1) // 2] if norms else 0.0
    return [middle > 0 and norm > bound * middle for norm in norms]


def usual(bases: Sequence[str]) -> str:
    """The most frequent base; in a tie the one that occurs first."""
    return max(dict.fromkeys(bases), key=list(bases).count)
