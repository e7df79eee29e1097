"""Patches of weights on a GPU are applied there. Internal.

Frames come to the CPU, and go from there to the GPU; the weights do not. Every tensor has frames of its own.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, NoReturn, Optional, Sequence, Tuple

from .._native import _abi, _library, _memory
from .._native._call import context_of_thread, fail
from .._native._types import Structs, Tensor
from .._tensors import OUT_STRIDE, make_options
from ..errors import ArgumentError, Error, Unsupported
from ..plan import as_plan
from ._apply import require_apart
from ._device_words import DevicePart, encode_device_words
from ._patch_file import Patch, Tensors, Unit, names_of
from ._word_frames import _of_tensor, change_of, named


def check_device_words(words: DevicePart, code: int) -> int:
    """The check of words: a patch that changes none of them has it."""
    return change_of(memoryview(encode_device_words(words, words, as_plan("sparsify=changed index=raw value=raw"), code))).base


def _decode(frame: memoryview, code: int, words: DevicePart, outs: Structs, alive: Sequence[object]) -> None:
    place, context = words.place, context_of_thread(None)
    data = place.empty((len(frame),))
    place.framework.put(data, _memory.borrow_bytes(frame))
    there = place.borrow_bytes(data, "the frame")
    options = make_options(max_workspace=256 * (len(frame) + words.nbytes) + 2**20)
    options.flags |= _abi.DR_DECODE_APPLY
    outs[0].struct_size, outs[0].dtype, outs[0].width, outs[0].universe = OUT_STRIDE, code, 1, words.size
    status = _library.load().dr_decode(
        context.handle, place.struct(), there.address, there.size, options, outs, OUT_STRIDE, 1
    )
    del alive
    if status:
        fail(status, context)


def _assign(unit: Unit, words: DevicePart) -> None:
    outs = (_abi.dr_tensor_out * 1)()
    outs[0].values = words.address
    _decode(unit.frame, unit.code, words, outs, [words.owner])


def _pairs(unit: Unit, words: DevicePart, dtype: str) -> Tuple[Tensor, Tensor]:
    """The changes of a unit: indices int64 and values, on the GPU. Nothing is written to the words."""
    place = words.place
    indices, values = place.empty((unit.changed,), "int64"), place.empty((unit.changed,), dtype)
    outs = (_abi.dr_tensor_out * 1)()
    outs[0].base, outs[0].index_dtype, outs[0].capacity = words.address, _abi.DR_I64, unit.changed
    outs[0].indices = place.borrow(indices, "the indices", (_abi.DR_I64,)).address
    outs[0].values = place.borrow(values, "the values").address
    _decode(unit.frame, unit.code, words, outs, [words.owner, indices, values])
    return indices, values


def _named(error: Error, unit: Unit) -> NoReturn:
    raise named(_of_tensor(error), unit.where + names_of(unit.parts)) from None


class _Seen(NamedTuple):
    unit: Unit
    words: DevicePart
    pairs: Optional[Tuple[Tensor, Tensor]]  # None: no word changes
    result: int  # the check of what the words become


def _look(weights: Tensors, patch: Patch, units: Sequence[Unit]) -> List[_Seen]:
    """Decodes units, and checks that they are for these weights. Nothing is written."""
    checks: Dict[int, Sequence[int]] = {}
    seen: List[_Seen] = []
    for unit in units:
        if len(unit.parts) > 1:
            names = ", ".join(repr(part.name) for part in unit.parts[:3])
            raise Unsupported(
                f"{patch.where}: {names}{', …' if len(unit.parts) > 3 else ''} share a frame, as in patches that were made on"
                " the CPU; on a GPU every tensor needs its own: make the patch of weights on a GPU"
            )
        (part,) = unit.parts
        words = weights[part.name].part(part.first, part.length, "")
        if not isinstance(words, DevicePart):
            raise ArgumentError(f"{part.name!r} is on the CPU, others are on a GPU: all weights must be in one place")
        pairs = None
        try:
            if unit.frame:
                pairs, result = _pairs(unit, words, _memory.NAMES[unit.code]), change_of(unit.frame).result
            else:
                result = check_device_words(words, unit.code)
                checks[unit.number] = [result]
        except Error as error:
            _named(error, unit)
        seen.append(_Seen(unit, words, pairs, result))
    patch.require_unchanged(units, checks)
    return seen


def apply_on_device(weights: Tensors, patch: Patch) -> None:
    """As apply_to: all of the patch or, on any error, nothing."""
    units = patch.units(weights)
    results: Dict[Tuple[int, int], Tuple[str, int]] = {}
    seen = _look(weights, patch, units)
    memory: Dict[Tuple[int, int], List[str]] = {}
    for name, tensor in weights.items():
        if tensor.length:
            memory.setdefault((tensor.words.address, tensor.words.nbytes), []).append(name)
    require_apart(memory)
    for one in seen:  # weights that are tied become the same by each of their names
        name, other = results.setdefault((one.words.address, one.words.nbytes), (one.unit.parts[0].name, one.result))
        if other != one.result and one.words.size:
            raise ArgumentError(f"{name!r} and {one.unit.parts[0].name!r} are the same memory, and the patch makes them differ")
    written = set()
    for one in seen:
        if one.unit.frame and one.words.size and (one.words.address, one.words.nbytes) not in written:
            written.add((one.words.address, one.words.nbytes))
            try:
                _assign(one.unit, one.words)
            except Error as error:
                _named(error, one.unit)


def changes_on_device(base: Tensors, patch: Patch) -> Dict[str, Tuple[Tensor, Tensor]]:
    """name -> (indices, values) on the GPU"""
    found: Dict[str, List[Tuple[Tensor, Tensor]]] = {name: [] for name in base}
    for one in _look(base, patch, patch.units(base)):
        (part,) = one.unit.parts
        indices, values = one.pairs or (one.words.place.empty((0,), "int64"), one.words.place.empty((0,), _memory.NAMES[part.code]))
        if part.first and not _memory.torch_tensor(indices):
            raise Unsupported(f"{part.name!r}: changes of several pieces of a tensor on a GPU are joined by torch only: pass torch's tensors")
        found[part.name].append((indices + part.first if part.first else indices, values))
    return {name: rows[0] if len(rows) == 1 else _joined(rows) for name, rows in found.items()}


def _joined(rows: Sequence[Tuple[Tensor, Tensor]]) -> Tuple[Tensor, Tensor]:
    import torch

    indices, values = zip(*rows)
    return torch.cat(indices), torch.cat(values)
