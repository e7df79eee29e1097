"""Patches: the weights that changed, exactly, in few bytes.

A patch changes the weights that a receiver has, the base, to those of the sender, bit for bit. Weights are one array or a dict
of arrays. A patch is bytes (docs/PATCH.md).

>>> old = {"w": numpy.linspace(-1, 1, 10_000, dtype=numpy.float32)}
>>> new = {"w": numpy.where(numpy.arange(10_000) % 100 == 0, old["w"] * 1.001, old["w"]).astype(numpy.float32)}
>>> data = deepreduce.patch.encode(old, new)
>>> len(data) < 1000, deepreduce.patch.apply(old, data)["w"].tobytes() == new["w"].tobytes()
(True, True)

encode, apply   makes a patch; applies it to its base, in place
changes         the indices and values of a patch, for engines that accept sparse updates
Sums            8 bytes per 4 KiB of weights; with them a chain of patches need not read the base to check it
History         one byte per weight; with it the patches of a chain are shorter
Store           a directory of anchors and patches, from which the weights of any step can be read
"""

from __future__ import annotations

import io
import zlib
from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy

from .._native._call import require_kind
from .._native._memory import as_array, borrow_bytes
from .._native._types import Array, Tensor, Weights
from ..errors import ArgumentError
from ..plan import Plan, as_plan
from ._apply import apply_to, look, tensors_of, written_of
from ._device_patch import apply_on_device, changes_on_device
from ._device_words import DEVICE_PLAN, on_device, refuse
from ._element_types import Words, like
from ._patch_file import Patch, Tensors, places_of, require_same, write_patch
from ._store import Store
from ._word_frames import check_of, chunks_of, new_sums

__all__ = ["History", "Store", "Sums", "apply", "changes", "encode"]


class Sums:
    """The sums from which the checks of weights are computed.

    With the Sums of the base, `encode` reads the base only to compare it, and with most plans `apply` does not read it at all.
    Both update the Sums to those of the result. Sender and receiver each have their own Sums.

    weights  an array or a dict of arrays, which is read once

    >>> w = numpy.ones(4096, dtype=numpy.float32)
    >>> sums, at = deepreduce.patch.Sums(w), deepreduce.patch.Sums(w)
    >>> data = deepreduce.patch.encode(w, 2 * w, sums=sums)
    >>> _ = deepreduce.patch.apply(w, data, sums=at)
    >>> sums.check() == at.check() == deepreduce.patch.Sums(w).check()
    True
    """

    def __init__(self, weights: object) -> None:
        tensors = tensors_of(weights, "weights")
        refuse("Sums", tensors)
        self._sums = {name: new_sums(tensor.words) for name, tensor in tensors.items()}

    def check(self, name: str = "") -> int:
        """The 64-bit check by which a patch identifies the tensor. Raises ArgumentError for a name that has no sums."""
        if name not in self._sums:
            raise ArgumentError(f"sums: there is no tensor {name!r}")
        return check_of(self._sums[name])

    def of(self, tensors: Tensors) -> Dict[str, Array]:
        """Internal: the sums of these tensors. Raises ArgumentError if the sums are of other tensors."""
        for name, tensor in tensors.items():
            if name not in self._sums or self._sums[name].size != chunks_of(tensor.words.nbytes):
                raise ArgumentError(f"sums: they are of other weights: {name!r} is missing or has another size")
        return self._sums

    def keep(self, sums: Mapping[str, Array]) -> None:
        """Internal: replaces the sums of these tensors."""
        for name, new in sums.items():
            self._sums[name][:] = new


class History:
    """One byte per weight: when the weight last changed in a chain of patches, and in which direction.

    With a History the patches of recorded trainings have 4 to 19 % fewer bytes (docs/PATCH.md). Sender and receiver each have
    their own History, made from the same weights, and use it for every later patch. If a receiver joins later, whole weights
    must be sent, and all sides start with a new or cleared History.

    weights  an array or a dict of arrays; only names and sizes matter

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
        tensors = tensors_of(weights, "weights")
        refuse("History", tensors)
        self._bytes = {name: numpy.zeros(tensor.length, numpy.uint8) for name, tensor in tensors.items()}

    def clear(self) -> None:
        """Forgets all patches. Call it when weights are sent whole."""
        for ages in self._bytes.values():
            ages.fill(0)

    def copy(self) -> History:
        made = History({})
        made._bytes = {name: ages.copy() for name, ages in self._bytes.items()}
        return made

    def check(self) -> int:
        """A 32-bit checksum; it differs between different histories, except by chance."""
        found = 0
        for name, ages in sorted(self._bytes.items()):
            found = zlib.crc32(ages.data, zlib.crc32(name.encode(), found))
        return found

    def of(self, tensors: Tensors) -> Dict[str, Array]:
        """Internal: the histories of these tensors. Raises ArgumentError if the history is of other tensors."""
        for name, tensor in tensors.items():
            if name not in self._bytes or self._bytes[name].size != tensor.length:
                raise ArgumentError(f"history: it is of other weights: {name!r} is missing or has another size")
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
    """Returns the patch that changes `old` to `new`.

    The patch does not contain names, types and shapes, because the receiver has the same. Small tensors share a frame, so
    hundreds of small tensors need few bytes more than one tensor of their total size.

    old, new      arrays of the same shape and type, or dicts of arrays with the same names: numpy, torch, JAX or any array with
                  DLPack, on the CPU, or all on a GPU ("On a GPU" in docs/PATCH.md). Types are bfloat16, float16, float32 and float64; values of any other type of 8, 16, 32 or
                  64 bits are compared and sent as bits
    plan          a Plan with sparsify=changed, or its text; None: "patch", or "patch_chain" with a history; on a GPU
                  "sparsify=changed index=golomb value=ulp"
    base, result  names that the patch stores, for example those of two steps
    sums          the Sums of `old`; they are updated to those of `new`
    history       the History of `old`; it is updated, and `apply` then needs one, too (but for the first patch, whose history is of
                  zeros: so is none). With a history tensors do not share frames, so many small tensors need more bytes
    threads       number of threads; None: one; on a GPU always one. The patch does not depend on it

    Raises ArgumentError (shapes, types or names differ, or the plan is unknown or makes no patches), OutOfMemory.

    >>> deepreduce.patch.encode(numpy.zeros(3, numpy.int8), numpy.ones(3, numpy.int8))[:7]
    b'DRPATCH'
    """
    require_kind(base, "base", str)
    require_kind(result, "result", str)
    _require_kinds(sums, history)
    before, after = tensors_of(old, "old"), tensors_of(new, "new")
    require_same(before, after, "old", "new")  # before the sums, whose error would be less specific
    moved = None if sums is None else {name: old_sums.copy() for name, old_sums in sums.of(before).items()}
    later = None if history is None else {name: ages.copy() for name, ages in history.of(before).items()}
    placed = on_device(before)
    if sums is not None or history is not None:
        refuse("sums and histories", before)
    chosen = as_plan(plan if plan is not None else DEVICE_PLAN if placed else "patch" if history is None else "patch_chain")
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
    """Applies a patch to its base, in place, and returns the weights.

    weights  the base: an array or a dict of arrays, writable and contiguous. JAX arrays are immutable: for these, new arrays are
             returned, and no array is changed
    patch    bytes of `encode`
    sums     the Sums of `weights`; they are updated to those of the result
    history  the History of `weights`; it is updated
    threads  number of threads; None: one

    Either all tensors are patched or none. If there is more than one tensor, each is decoded twice: first to check that all are
    valid. The call needs additional memory for a piece of a tensor and for the sums, 0.2 % of the weights.

    Raises WrongBase (the patch was made for other weights, or with another history), ArgumentError (names, shapes or types
    differ; or a history is passed and the patch was made without one, which shows if tensors share a frame or do not change),
    CorruptFrame, Unsupported, OutOfMemory. After an error the weights, sums and history are unchanged.

    >>> w = numpy.zeros(3, dtype=numpy.float16)
    >>> data = deepreduce.patch.encode(w, numpy.array([0, 1, 2], dtype=numpy.float16))
    >>> deepreduce.patch.apply(w, data).tolist()
    [0.0, 1.0, 2.0]
    >>> deepreduce.patch.apply(w, data)
    Traceback (most recent call last):
    deepreduce.errors.WrongBase: its check is ...; the patch is for a base of check ...
    """
    _require_kinds(sums, history)
    held, made = written_of(weights)
    opened = Patch(_bytes(patch))
    opened.require(held, "weights")
    if on_device(held):
        if sums is not None or history is not None:
            refuse("sums and histories", held)
        apply_on_device(held, opened)
        return made(held)
    known = None if sums is None else sums.of(held)
    apply_to(held, opened, known, threads, None if history is None else history.of(held))
    return made(held)


def changes(patch: object, base: object, *, history: Optional[History] = None) -> Weights:
    """Returns the changes of a patch, for engines that accept sparse updates. Nothing is written.

    patch    bytes of `encode`
    base     the weights that the patch is for
    history  the History of the weights; it is not updated

    Returns (indices, values) for an array, and a dict of such pairs for a dict. indices: [r] int64, ascending, into the flattened
    array. values: [r], of the array's kind and type. Raises as `apply` does.

    >>> w = numpy.zeros(3, dtype=numpy.float16)
    >>> data = deepreduce.patch.encode(w, numpy.array([0, 1, 2], dtype=numpy.float16))
    >>> deepreduce.patch.changes(data, w)
    (array([1, 2]), array([1., 2.], dtype=float16))
    """
    _require_kinds(None, history)
    held = tensors_of(base, "base")
    opened = Patch(_bytes(patch))
    opened.require(held, "base")
    if on_device(held):
        if history is not None:
            refuse("histories", held)
        pairs = changes_on_device(held, opened)
        return pairs if isinstance(base, Mapping) else pairs[""]
    found: Dict[str, List[Tuple[Array, Array]]] = {name: [] for name in held}
    for seen in look(held, opened, opened.units(held), None, None, None if history is None else history.of(held)):
        for part, place in zip(seen.unit.parts, places_of(seen.unit.parts)):
            begin, end = numpy.searchsorted(seen.places, (place.start, place.stop))
            places = seen.places[begin:end].astype(numpy.int64) + (part.first - place.start)
            found[part.name].append((places, seen.values[begin:end]))
    made = {name: _joined(rows, held[name]) for name, rows in found.items()}
    return made if isinstance(base, Mapping) else made[""]


def _require_kinds(sums: object, history: object) -> None:
    if sums is not None:
        require_kind(sums, "sums", Sums)
    if history is not None:
        require_kind(history, "history", History)


def _joined(rows: Sequence[Tuple[Array, Array]], of: Words) -> Tuple[Array, Tensor]:
    places, values = zip(*rows)
    return numpy.concatenate(places), like(numpy.concatenate(values), of.owner)


def _bytes(patch: object) -> memoryview:
    return as_array(borrow_bytes(patch, "patch").owner, "patch").data.cast("B")
