"""deepreduce.torch: the heads of ranks among numbers that an all-reduce adds up, as lib/sender/slot.cpp writes and compares them."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

import numpy

from .._native._types import Array
from ..errors import ArgumentError, Error
from ._engine import out_of_step

# A head among numbers, as the CPU sends it: digits of half a number's bytes, which its type holds exactly.
# The other ranks add zeros to them.
HEAD = numpy.dtype([("tag", "<u8"), ("failures", "<u4"), ("failed", "<u4"), ("tensor", "<u4"), ("check", "<u4")])


class Counts(NamedTuple):
    """Steps that a rank did not complete, and the last of them."""

    failures: int = 0
    failed: int = 0


class Fault(NamedTuple):
    """Why a step failed on this rank, and the counts of a rank that is not behind, if this one is."""

    error: Error
    adopted: Optional[Counts] = None


def checks_of(heads: Array) -> Array:
    """As check_of in lib/sender/slot.cpp."""
    counts = heads["failures"].astype(numpy.uint64) << numpy.uint64(32) | heads["failed"].astype(numpy.uint64)
    found: Array = combine(combine(heads["tag"], counts), heads["tensor"].astype(numpy.uint64)) >> numpy.uint64(32)
    return found.astype(numpy.uint32)


_GOLDEN = numpy.uint64(0x9E3779B97F4A7C15)


def mix64(x: Array) -> Array:
    """As in lib/primitive/rng.hpp. x: u64, an array, whose sums wrap"""
    x = (x ^ x >> numpy.uint64(30)) * numpy.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> numpy.uint64(27)) * numpy.uint64(0x94D049BB133111EB)
    mixed: Array = x ^ x >> numpy.uint64(31)
    return mixed


def combine(key: Array, part: Array) -> Array:
    return mix64((key ^ part) + _GOLDEN)


def draw(key: Array, position: Array) -> Array:
    return mix64(key + (position + numpy.uint64(1)) * _GOLDEN)


def of_rank(error: Error, number: int) -> Error:
    error.rank = number
    return error


def compared(heads: Array, names: Sequence[int], rank: int) -> Optional[Fault]:
    """As compare_heads in lib/sender/slot.cpp: a fault unless all ranks are at one step of the same tensors, and completed the same
    steps before."""
    digests, steps = (heads["tag"] >> numpy.uint64(32)).tolist(), (heads["tag"] % numpy.uint64(2**32)).tolist()
    failures, failed = heads["failures"].tolist(), heads["failed"].tolist()
    other = next((i for i, its in enumerate(digests) if its != digests[0]), None)
    if other is not None:
        words = (
            f"rank {names[other]} sends other tensors, or by another plan, than rank {names[0]} at this point: the ranks created"
            " different exchanges, or call them in another order"
        )
        return Fault(of_rank(ArgumentError(words), names[other]))
    if min(steps) != max(steps):
        behind, source = [i for i, its in enumerate(steps) if its < max(steps)], steps.index(max(steps))
        others = f" (and others: {', '.join(str(names[i]) for i in behind)})" if len(behind) > 1 else ""
        words = (
            f"rank {names[behind[0]]} is at step {steps[behind[0]]}{others}, rank {names[source]} at step {max(steps)}: load states of"
            " one step on all ranks"
        )
        return Fault(out_of_step(words, [names[i] for i in behind], names[source]))
    if min(failures) == max(failures):
        return None
    behind, source = [i for i, its in enumerate(failures) if its > min(failures)], failures.index(min(failures))
    listed, many = ", ".join(str(names[i]) for i in behind), len(behind) > 1
    ranks, be, they, them = ("ranks", "are", "they", "them") if many else ("rank", "is", "it", "it")
    words = (
        f"{ranks} {listed} {be} behind: {they} did not complete step {failed[behind[0]]}, which rank {names[source]} completed; copy"
        f" parameters and the optimizer's state from rank {names[source]} to {them} before you go on"
    )
    error = out_of_step(words, [names[i] for i in behind], names[source], failed[behind[0]])
    return Fault(error, Counts(failures[source], failed[source]) if rank in behind else None)
