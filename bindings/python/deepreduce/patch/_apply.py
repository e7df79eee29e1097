"""Applies patches to arrays in memory: all of the tensors, or none."""

from __future__ import annotations

import sys
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy

from .._native._types import Array, Tensor, Weights
from ..errors import ArgumentError, WrongBase
from ._element_types import Words, words_of
from ._patch_file import Patch, Tensors, Unit, checks_of, gather, places_of
from ._word_frames import Known, check_of, in_order, new_sums


def tensors_of(weights: object, what: str, written: bool = False) -> Tensors:
    """name -> Words, or DeviceWords. A single array has the name "". Raises ArgumentError, which calls the weights `what`."""
    if not isinstance(weights, Mapping):
        return {"": words_of(weights, what, written)}
    for name in weights:
        if not isinstance(name, str):
            raise ArgumentError(f"{what} has the name {name!r}, which is not a string")
    return {name: words_of(array, f"{what}[{name!r}]", written) for name, array in weights.items()}


def written_of(weights: object) -> Tuple[Tensors, Weights]:
    """(the memory to write, a function that converts it to the result)"""
    jax = sys.modules.get("jax")
    arrays = list(weights.values()) if isinstance(weights, Mapping) else [weights]
    if jax is None or not any(isinstance(array, jax.Array) for array in arrays):
        return tensors_of(weights, "weights", written=True), lambda _: weights

    def copied(x: object) -> Tensor:
        return numpy.array(x) if isinstance(x, jax.Array) else x

    def returned(x: Tensor) -> Tensor:
        return jax.numpy.asarray(x.owner) if isinstance(x.owner, numpy.ndarray) else x.owner

    copies = {name: copied(x) for name, x in weights.items()} if isinstance(weights, Mapping) else copied(weights)
    made = tensors_of(copies, "weights", written=True)
    if not isinstance(weights, Mapping):
        return made, lambda held: returned(held[""])
    return made, lambda held: {name: returned(words) if isinstance(weights[name], jax.Array) else weights[name] for name, words in held.items()}


def memory_of(tensors: Tensors) -> Dict[Tuple[int, int], List[str]]:
    """(address, bytes) -> names of the tensors in this memory, more than one if weights are tied. Raises ArgumentError if tensors
    share only a part of their memory."""
    found: Dict[Tuple[int, int], List[str]] = {}
    for name, tensor in tensors.items():
        words: Words = tensor
        if words.length:
            found.setdefault((words.words.ctypes.data, words.words.nbytes), []).append(name)
    require_apart(found)
    return found


def require_apart(memory: Mapping[Tuple[int, int], List[str]]) -> None:
    """ArgumentError if (address, bytes) of tensors with these names overlap, and are not the same."""
    end, last = 0, ""
    for (address, size), names in sorted(memory.items()):
        if address < end:
            raise ArgumentError(f"{names[0]!r} and {last!r} share a part of their memory: they cannot be patched in place")
        end, last = address + size, names[0]


class Looked(NamedTuple):
    """The changes of a unit, before they are applied.

    words   the base of the unit; if the unit has one part, the weights' own memory
    places  indices into the words, ascending, which `values` replace
    sums    of the words, if the unit has one part
    """

    unit: Unit
    words: Array
    places: Array
    values: Array
    sums: Optional[Array]

    def result(self) -> Array:
        made = self.words.copy()
        made[self.places] = self.values
        return made


def look(
    weights: Tensors,
    patch: Patch,
    units: Sequence[Unit],
    sums: Optional[Dict[str, Array]],
    threads: Optional[int],
    history: Optional[Dict[str, Array]] = None,
) -> Iterator[Looked]:
    """Decodes units and checks that they are for these weights. Nothing is written. Units without a frame are checked after all
    others. Raises WrongBase if the patch is for other weights."""
    checks: Dict[int, Sequence[int]] = {}
    if history is not None and any(len(unit.parts) > 1 or not unit.frame for unit in units):
        raise ArgumentError("history: the patch was made without one")

    def one(unit: Unit) -> Looked:
        words = gather(weights, unit.parts, "")
        found = None
        if len(unit.parts) == 1:
            found = new_sums(words) if sums is None else unit.parts[0].sums_in(sums).copy()
        elif sums is not None:
            _require_sums(unit, words, sums)
        if unit.frame:
            known = Known(found, unit.parts[0].known(None, history).history)
            return Looked(unit, words, *unit.pairs(words, known), found)
        checks[unit.number] = unit.checks(words, found)
        return Looked(unit, words, numpy.empty(0, numpy.uint32), words[:0], found)

    yield from in_order(one, units, threads)
    patch.require_unchanged(units, checks)


def apply_to(
    weights: Tensors,
    patch: Patch,
    sums: Optional[Dict[str, Array]],
    threads: Optional[int],
    history: Optional[Dict[str, Array]] = None,
) -> None:
    """Applies all of the patch or, on any error, nothing. sums, history: of the weights; they are updated to those of the result"""
    units = patch.units(weights)
    owners = {name: names[0] for names in memory_of(weights).values() for name in names}
    tied = {name for names in memory_of(weights).values() if len(names) > 1 for name in names}
    for name in tied:
        if history is not None and history[name].size != history[owners[name]].size:
            raise ArgumentError(f"{owners[name]!r} and {name!r} are the same memory in words of two sizes: they cannot have one history")
    known = {unit.number: unit.parts[0].known(sums, history) for unit in units}
    one = len(units) == 1 and units[0].frame and (sums is None and history is None or len(units[0].parts) == 1) and not tied
    if not one:  # (the library itself writes all or nothing of a single frame)
        results: Dict[Tuple[str, int], Tuple[str, int]] = {}
        for seen in look(weights, patch, units, sums, threads, history):
            if sums is None:
                known[seen.unit.number] = known[seen.unit.number]._replace(sums=seen.sums)
            if any(part.name in tied for part in seen.unit.parts):
                _require_ties(seen, owners, results)
    # Tied weights in shared frames are copied before their memory is written under another name.
    copies = {part: weights[part.name].words.copy() for unit in units if len(unit.parts) > 1 for part in unit.parts if part.name in tied}

    def write(unit: Unit) -> None:
        if len(unit.parts) == 1:
            (part,) = unit.parts
            if owners.get(part.name, part.name) == part.name:
                unit.assign(gather(weights, unit.parts, ""), known[unit.number])
            return
        old = [copies[part] if part in copies else weights[part.name].words for part in unit.parts]
        words = numpy.concatenate(old)
        unit.assign(words, Known())
        for part, place, before in zip(unit.parts, places_of(unit.parts), old):
            if owners.get(part.name, part.name) == part.name and (before != words[place]).any():
                weights[part.name].words[:] = words[place]
                if sums is not None:
                    part.sums_in(sums)[:] = new_sums(words[place])

    for _ in in_order(write, [unit for unit in units if unit.frame], threads):
        pass
    for found in filter(None, (sums, history)):
        for name in tied:
            found[name][:] = found[owners[name]]


def _require_sums(unit: Unit, words: Array, sums: Dict[str, Array]) -> None:
    """Raises WrongBase if the sums are of other weights. Tensors that share a frame are read for its check in any case."""
    for part, place in zip(unit.parts, places_of(unit.parts)):
        here, there = new_sums(words[place]), part.sums_in(sums)
        if (here != there).any():
            raise WrongBase(f"{part.name}: its check is {check_of(here):016x}; the sums are of weights of check {check_of(there):016x}")


def _require_ties(seen: Looked, owners: Mapping[str, str], results: Dict[Tuple[str, int], Tuple[str, int]]) -> None:
    """Raises ArgumentError if a patch assigns different values to names of the same memory.

    results: (owner, first byte) -> (a name, the check of its result)
    """
    result = seen.result()
    for part, check in zip(seen.unit.parts, checks_of(seen.unit.parts, result)):
        key = owners.get(part.name, part.name), part.first * result.itemsize
        name, other = results.setdefault(key, (part.name, check))
        if other != check:
            raise ArgumentError(f"{name!r} and {part.name!r} are the same memory, and the patch makes them differ")
