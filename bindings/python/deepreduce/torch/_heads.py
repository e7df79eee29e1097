"""deepreduce.torch: what a slot begins with. By these words ranks know, from the collective that they need anyway, where the
others are: at which step, and how many steps each of them did not complete (as the verdicts of exchange.h say)."""

from __future__ import annotations

import struct
import zlib
from typing import Any, List, NamedTuple, Sequence

from ..errors import ArgumentError, CorruptFrame, Error
from ._engine import Engine, out_of_step

HEAD = 24  # bytes; sizes of frames follow
NOT_FINITE = 1  # of a rank that asks all to skip the step, and sends no frame
_WORDS, _CHECK = struct.Struct("=QIII"), struct.Struct("=I")


class Head(NamedTuple):
    """Of a rank's slot.

    tag       of its frames: a digest of its tensors, times 2^32, plus the step
    failures  steps that the rank did not complete, as far as it knows: others may have
    failed    the last of them
    flags     NOT_FINITE
    """

    tag: int
    failures: int
    failed: int
    flags: int = 0


def write_head(prefix: Any, engine: Engine, tag: int, flags: int = 0) -> None:
    """Into the first bytes of a prefix [HEAD + sizes] uint8, in which the sizes are already."""
    _WORDS.pack_into(prefix, 0, tag, engine.failures & 0xFFFFFFFF, engine.failed & 0xFFFFFFFF, flags)
    _CHECK.pack_into(prefix, _WORDS.size, _check_of(prefix))


def _check_of(prefix: Any) -> int:
    return zlib.crc32(prefix[HEAD:], zlib.crc32(prefix[: _WORDS.size]))


def read_heads(prefixes: Any, engine: Engine) -> bool:
    """Whether a rank asks all to skip the step. Raises what `compare` raises, and CorruptFrame.

    prefixes  [ranks, HEAD + sizes] uint8, contiguous, of all ranks
    """
    first = prefixes[0, : _WORDS.size]
    if not first[-4:].any() and (prefixes[:, : _WORDS.size] == first).all():
        return False
    for rank, prefix in enumerate(prefixes):
        if _CHECK.unpack_from(prefix, _WORDS.size)[0] != _check_of(prefix):
            raise engine.named(CorruptFrame("the first bytes of its slot are damaged", frame=rank))
    heads = [Head(*_WORDS.unpack_from(each)) for each in prefixes]
    compare(heads, engine)
    return engine.skips and any(each.flags & NOT_FINITE for each in heads)


def compare(heads: Sequence[Head], engine: Engine) -> None:
    """OutOfStep, the same on all ranks, unless all are at one step, and completed the same steps before. A rank that learns
    here that it is behind counts from now on as the others do: it is said once."""
    steps = [each.tag & 0xFFFFFFFF for each in heads]
    failures = [each.failures for each in heads]
    other = next((rank for rank, each in enumerate(heads) if each.tag >> 32 != heads[0].tag >> 32), None)
    if other is not None:
        words = (
            f"it sends other tensors, or by another plan, than rank {engine.global_rank(0)} at this point: exchanges were made"
            " otherwise there, or are called in another order"
        )
        raise engine.named(ArgumentError(words, frame=other))
    if min(steps) != max(steps):
        late = [rank for rank, step in enumerate(steps) if step < max(steps)]
        source = steps.index(max(steps))
        ranks = [engine.global_rank(rank) for rank in late]
        told = ", ".join(f"rank {rank} is at step {steps[i]}" for rank, i in zip(ranks, late))
        words = f"{told}, rank {engine.global_rank(source)} at step {steps[source]}: load states of one step on all ranks"
        raise out_of_step(words, ranks, engine.global_rank(source))
    if min(failures) == max(failures):
        return
    late = [rank for rank, count in enumerate(failures) if count > min(failures)]
    source = failures.index(min(failures))
    if engine.rank in late:
        engine.failures, engine.failed = heads[source].failures, heads[source].failed
    raise _behind([engine.global_rank(rank) for rank in late], engine.global_rank(source), heads[late[0]].failed)


def _behind(ranks: List[int], source: int, step: int) -> Error:
    many = len(ranks) > 1
    names = f"ranks {', '.join(map(str, ranks))} are" if many else f"rank {ranks[0]} is"
    it, them = ("they", "them") if many else ("it", "it")
    words = (
        f"{names} behind: {it} did not complete step {step}, which rank {source} completed; copy parameters and the optimizer's"
        f" state from rank {source} to {them} before you go on"
    )
    return out_of_step(words, ranks, source, step)
