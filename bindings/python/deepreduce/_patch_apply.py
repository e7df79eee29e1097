"""Applies patches to arrays in memory: all of the tensors, or none."""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy

from ._element_types import Array, Words, words_of
from ._patch_call import Piece, assign, in_order, new_sums, pairs
from ._patch_file import Part, Patch, Tensors
from .errors import ArgumentError


def tensors_of(weights: Any, what: str, written: bool = False) -> Dict[str, Words]:
    """Of one array the name is ""."""
    if not isinstance(weights, Mapping):
        return {"": words_of(weights, what, written)}
    for name in weights:
        if not isinstance(name, str):
            raise ArgumentError(f"{what} has the name {name!r}, which is no text")
    return {name: words_of(each, f"{what}[{name!r}]", written) for name, each in weights.items()}


def written_of(weights: Any) -> Tuple[Dict[str, Words], Any]:
    """The memory that is written, and what makes the result of it."""
    jax = sys.modules.get("jax")
    arrays = list(weights.values()) if isinstance(weights, Mapping) else [weights]
    if jax is None or not any(isinstance(each, jax.Array) for each in arrays):
        return tensors_of(weights, "weights", written=True), lambda _: weights

    def copied(x: Any) -> Any:
        return numpy.array(x) if isinstance(x, jax.Array) else x

    def returned(x: Any) -> Any:
        return jax.numpy.asarray(x.owner) if isinstance(x.owner, numpy.ndarray) else x.owner

    copies = {name: copied(x) for name, x in weights.items()} if isinstance(weights, Mapping) else copied(weights)
    made = tensors_of(copies, "weights", written=True)
    if not isinstance(weights, Mapping):
        return made, lambda held: returned(held[""])
    return made, lambda held: {name: returned(each) if isinstance(weights[name], jax.Array) else weights[name] for name, each in held.items()}


def memory_of(tensors: Tensors) -> Dict[Tuple[int, int], List[str]]:
    """(address, bytes): names of tensors that are there, more than one if weights are tied. ArgumentError if they overlap
    otherwise."""
    found: Dict[Tuple[int, int], List[str]] = {}
    for name, each in tensors.items():
        words: Words = each
        if words.length:
            found.setdefault((words.words.ctypes.data, words.words.nbytes), []).append(name)
    end, last = 0, ""
    for (address, size), names in sorted(found.items()):
        if address < end:
            raise ArgumentError(f"{names[0]!r} and {last!r} share a part of their memory: they cannot be patched in place")
        end, last = address + size, names[0]
    return found


def apply_to(weights: Tensors, patch: Patch, sums: Optional[Dict[str, Array]], threads: Optional[int]) -> None:
    """All of the patch or, on any error, nothing. sums: of the weights; they become those of the result."""
    names = []  # of tied weights one
    for tied in memory_of(weights).values():
        names.append(tied[0])
        for other in tied[1:]:
            if [each.frame for each in patch.pieces(patch.entries[other])] != [
                each.frame for each in patch.pieces(patch.entries[tied[0]])
            ]:
                raise ArgumentError(f"{tied[0]!r} and {other!r} are the same memory, and the patch makes them differ")
    jobs = list(patch.parts(names))
    before = None if sums is None else {part: part.of_sums(sums) for part, _ in jobs}

    def words(part: Part) -> Array:
        found: Array = weights[part.name].words[part.first : part.first + part.length]
        return found

    def look(job: Tuple[Part, Piece]) -> Array:
        part, piece = job
        found = new_sums(words(part)) if before is None else before[part]
        assert found is not None
        pairs(piece, part.code, words(part), found.copy())
        return found

    def write(job: Tuple[Tuple[Part, Piece], Optional[Array]]) -> None:
        (part, piece), known = job
        assign(piece, part.code, words(part), known)

    one = len(jobs) < 2  # of which the library writes all or nothing
    looked: List[Optional[Array]] = [None if before is None else before[part] for part, _ in jobs]
    if not one:
        looked = list(in_order(look, jobs, threads))
    for _ in in_order(write, zip(jobs, looked), threads):
        pass
    if sums is not None:
        for tied in memory_of(weights).values():
            for other in tied[1:]:
                sums[other][:] = sums[tied[0]]
