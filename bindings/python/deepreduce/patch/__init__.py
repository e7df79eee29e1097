"""Patches: the weights that changed, exactly, in few bytes.

A patch takes the weights that a receiver has, the base, to those of the sender, bit for bit. Weights are one array, or a dict
of them; a patch is bytes (docs/PATCH.md).

>>> old = {"w": numpy.linspace(-1, 1, 10_000, dtype=numpy.float32)}
>>> new = {"w": numpy.where(numpy.arange(10_000) % 100 == 0, old["w"] * 1.001, old["w"]).astype(numpy.float32)}
>>> data = deepreduce.patch.encode(old, new)
>>> len(data) < 1000, deepreduce.patch.apply(old, data)["w"].tobytes() == new["w"].tobytes()
(True, True)

encode, apply   makes a patch; assigns it to its base, in place
changes         the indices and values of a patch, for engines that take them
Sums            8 bytes for each 4 KiB of weights, with which a chain of patches reads no base for its check
History         a byte for each weight, with which the patches of a chain are shorter
Store           a directory of anchors and patches, from which anyone has the weights of any step
"""

from __future__ import annotations

import io
import zlib
from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy

from .._native._memory import as_array, borrow_bytes
from .._native._types import Array, Tensor, Weights
from ..errors import ArgumentError
from ..plan import Plan, as_plan
from ._apply import apply_to, look, tensors_of, written_of
from ._element_types import Words, like
from ._patch_file import Patch, Tensors, places_of, require_same, write_patch
from ._store import Store
from ._word_frames import check_of, chunks_of, new_sums

__all__ = ["History", "Store", "Sums", "apply", "changes", "encode"]


class Sums:
    """What the checks of weights follow from. With the Sums of its base, `encode` reads the base no more than comparing
    needs, and `apply` with most plans not at all; they become those of the result. Sender and receiver have each their own.

    weights  an array or a dict of arrays, read once

    >>> w = numpy.ones(4096, dtype=numpy.float32)
    >>> sums, at = deepreduce.patch.Sums(w), deepreduce.patch.Sums(w)
    >>> data = deepreduce.patch.encode(w, 2 * w, sums=sums)
    >>> _ = deepreduce.patch.apply(w, data, sums=at)
    >>> sums.check() == at.check() == deepreduce.patch.Sums(w).check()
    True
    """

    def __init__(self, weights: object) -> None:
        self._sums = {name: new_sums(each.words) for name, each in tensors_of(weights, "weights").items()}

    def check(self, name: str = "") -> int:
        """The number of 64 bits by which a patch knows the tensor."""
        return check_of(self._sums[name])

    def of(self, tensors: Tensors) -> Dict[str, Array]:
        """Not for callers: the sums of these tensors. ArgumentError if they are of others."""
        for name, each in tensors.items():
            if name not in self._sums or self._sums[name].size != chunks_of(each.words.nbytes):
                raise ArgumentError(f"sums: of other weights: {name!r} is not among them, or has another size")
        return self._sums

    def keep(self, sums: Mapping[str, Array]) -> None:
        """Not for callers: what the sums have become."""
        for name, each in sums.items():
            self._sums[name][:] = each


class History:
    """What the patches of a chain tell of its weights, a byte each: when and which way they changed last. With a History the
    patches of recorded trainings take 4 to 19 % fewer bytes (docs/PATCH.md). Sender and receiver have each their own, made of the
    same weights, and use them for every patch from there on; a receiver that joins later begins, as all others then, at weights
    that were sent whole.

    weights  an array or a dict of arrays, of which names and sizes count

    >>> w, at = numpy.ones(4096, dtype=numpy.float32), numpy.ones(4096, dtype=numpy.float32)
    >>> sent, received = deepreduce.patch.History(w), deepreduce.patch.History(at)
    >>> for step in range(3):
    ...     data = deepreduce.patch.encode(w, w + 1, history=sent)
    ...     w = w + 1
    ...     _ = deepreduce.patch.apply(at, data, history=received)
    >>> at[0], sent.check() == received.check()
    (np.float32(4.0), True)
    """

    def __init__(self, weights: object) -> None:
        self._bytes = {name: numpy.zeros(each.length, numpy.uint8) for name, each in tensors_of(weights, "weights").items()}

    def clear(self) -> None:
        """Forgets all patches, as where weights are sent whole."""
        for each in self._bytes.values():
            each.fill(0)

    def copy(self) -> History:
        made = History({})
        made._bytes = {name: each.copy() for name, each in self._bytes.items()}
        return made

    def check(self) -> int:
        """A number of 32 bits: that of another history is another, but by chance."""
        found = 0
        for name, each in sorted(self._bytes.items()):
            found = zlib.crc32(each.data, zlib.crc32(name.encode(), found))
        return found

    def of(self, tensors: Tensors) -> Dict[str, Array]:
        """Not for callers: the histories of these tensors. ArgumentError if they are of others."""
        for name, each in tensors.items():
            if name not in self._bytes or self._bytes[name].size != each.length:
                raise ArgumentError(f"history: of other weights: {name!r} is not among them, or has another size")
        return self._bytes


def encode(
    old: object,
    new: object,
    plan: Union[str, Plan, None] = None,
    *,
    base: str = "",
    result: str = "",
    sums: Optional[Sums] = None,
    history: Optional[History] = None,
    threads: Optional[int] = None,
) -> bytes:
    """The patch that takes `old` to `new`. Names, types and shapes are not in it, for the receiver has the same; small tensors
    share a frame, so hundreds of them take few bytes more than one of their size.

    old, new      arrays of one shape and type, or dicts of them with the same names: numpy, torch, JAX and what speaks DLPack,
                  on the CPU; of bfloat16, float16, float32, float64, or of 8, 16, 32 or 64 bits a value, which are bits then
    plan          a Plan with sparsify=changed, or its text; None: "patch" or, with a history, "patch_chain"
    base, result  names, of two steps say, that the patch bears
    sums          the Sums of `old`, which become those of `new`
    history       the History of `old`, likewise; `apply` then needs one. No tensors share a frame, so many small ones take more
                  bytes than without
    threads       to work with; None: one. The patch does not depend on it

    Raises ArgumentError (shapes, types or names differ, no such plan), OutOfMemory.

    >>> deepreduce.patch.encode(numpy.zeros(3, numpy.int8), numpy.ones(3, numpy.int8))[:7]
    b'DRPATCH'
    """
    before, after = tensors_of(old, "old"), tensors_of(new, "new")
    require_same(before, after, "old", "new")  # before the sums, whose error would tell less
    moved = None if sums is None else {name: each.copy() for name, each in sums.of(before).items()}
    later = None if history is None else {name: each.copy() for name, each in history.of(before).items()}
    chosen = as_plan(plan if plan is not None else "patch" if history is None else "patch_chain")
    file = io.BytesIO()
    write_patch(file, before, after, chosen, (base, result), moved, threads, history=later)
    if sums is not None and moved is not None:
        sums.keep(moved)
    if history is not None and later is not None:
        history.of(before).update(later)
    return file.getvalue()


def apply(
    weights: object,
    patch: object,
    *,
    sums: Optional[Sums] = None,
    history: Optional[History] = None,
    threads: Optional[int] = None,
) -> Weights:
    """Assigns what changed to its base, in place, and returns it.

    weights  the base: an array, or a dict of arrays, writable and contiguous. JAX's arrays are immutable: of these new ones are
             returned, and none is changed
    patch    bytes of `encode`
    sums     the Sums of `weights`, which become those of the result
    history  the History of `weights`, likewise
    threads  to work with; None: one

    All tensors are patched or none: of more than one each is decoded twice, first to see that all are sound. Beside the
    weights it takes memory for a piece of a tensor, and for the sums, 0.2 % of the weights.

    Raises WrongBase (the weights are not those that the patch was made for, or their history is another), ArgumentError (other
    names, shapes or types; a history, and the patch was made without one), CorruptFrame, Unsupported, OutOfMemory; the weights,
    sums and history are then as they were.

    >>> w = numpy.zeros(3, dtype=numpy.float16)
    >>> data = deepreduce.patch.encode(w, numpy.array([0, 1, 2], dtype=numpy.float16))
    >>> deepreduce.patch.apply(w, data).tolist()
    [0.0, 1.0, 2.0]
    >>> deepreduce.patch.apply(w, data)
    Traceback (most recent call last):
    deepreduce.errors.WrongBase: its check is ...; the patch is for a base of check ...
    """
    held, made = written_of(weights)
    opened = Patch(_bytes(patch))
    opened.require(held, "weights")
    known = None if sums is None else sums.of(held)
    apply_to(held, opened, known, threads, None if history is None else history.of(held))
    return made(held)


def changes(patch: object, base: object, *, history: Optional[History] = None) -> Weights:
    """What the patch assigns, for engines that take sparse updates; nothing is written.

    patch    bytes of `encode`
    base     the weights that it is for
    history  their History, which stays

    Returns of an array (indices, values): [r] int64, ascending, into the flattened array, and [r] of its kind and type; of a
    dict a dict of these. Raises as `apply` does.

    >>> w = numpy.zeros(3, dtype=numpy.float16)
    >>> data = deepreduce.patch.encode(w, numpy.array([0, 1, 2], dtype=numpy.float16))
    >>> deepreduce.patch.changes(data, w)
    (array([1, 2]), array([1., 2.], dtype=float16))
    """
    held = tensors_of(base, "base")
    opened = Patch(_bytes(patch))
    opened.require(held, "base")
    found: Dict[str, List[Tuple[Array, Array]]] = {name: [] for name in held}
    for seen in look(held, opened, opened.units(held), None, None, None if history is None else history.of(held)):
        for part, place in zip(seen.unit.parts, places_of(seen.unit.parts)):
            begin, end = numpy.searchsorted(seen.places, (place.start, place.stop))
            places = seen.places[begin:end].astype(numpy.int64) + (part.first - place.start)
            found[part.name].append((places, seen.values[begin:end]))
    made = {name: _joined(rows, held[name]) for name, rows in found.items()}
    return made if isinstance(base, Mapping) else made[""]


def _joined(rows: Sequence[Tuple[Array, Array]], of: Words) -> Tuple[Array, Tensor]:
    places, values = zip(*rows)
    return numpy.concatenate(places), like(numpy.concatenate(values), of.owner)


def _bytes(patch: object) -> memoryview:
    return as_array(borrow_bytes(patch, "patch").owner, "patch").data.cast("B")
