"""deepreduce.torch: saves and loads the state of an exchange."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy
import torch
import torch.distributed as dist

from .._native._types import Array, SavedPart, SavedState
from ..errors import ArgumentError
from ..tensor import State
from ._engine import Engine
from ._ladder import keeper_of

if TYPE_CHECKING:
    from ._device_sender import AnySender
    from ._unit import Item

# A state_dict is {"version", "step", "ranks", "rank3": the part of rank 3}. Keys name the rank of the default group, so that
# one checkpoint of torch.distributed.checkpoint holds the states of all ranks. A part from a group that is not the whole
# default group has "group", its ranks; without it keys name the rank in the group. A part for "any" rank has no residuals.
# Residuals, sums and factors have the order of the tensor's memory. A part has "orders" of the tensors that are not row by row.
# Version 2 had no orders, version 1 also one rank, whose part was beside the other keys.
_VERSION = 3
_PART = re.compile(r"rank(0|[1-9]\d{0,5})|any")
_RANKS_MAX = 65536  # of an exchange
_NUMBERS = {"step": 2**63 - 1, "ranks": _RANKS_MAX, "failures": 2**63 - 1, "failed": 2**63 - 1}  # maxima
# Keys of a part whose values no other rank has, and the types of the values.
OF_ITS_RANK: Mapping[str, Callable[[], object]] = {"residuals": dict, "states": list, "sums": dict}
_log = logging.getLogger("deepreduce.torch")


def state_for_new_rank(state: SavedPart) -> SavedState:
    """The state for a rank that has none, when a training resumes with more ranks: step, PowerSGD's factors, decisions of
    `control`. Its residuals begin at zero.

    state  of any rank's DDPHook, AllReduce or ReduceScatter, saved at the same step
    """
    now = _as_now(state)
    if "step" not in now or "ranks" not in now:
        raise ArgumentError("the state has no step or ranks: it is not of a DDPHook, AllReduce or ReduceScatter")
    parts = [part for key, part in now.items() if _PART.fullmatch(key)]
    if not parts:
        return {"version": _VERSION, "step": now["step"], "ranks": now["ranks"]}
    part = {key: OF_ITS_RANK[key]() if key in OF_ITS_RANK else value for key, value in parts[0].items() if key not in ("group", "holds")}
    new = {**part, "scale": 0.0}  # (earlier versions stored the residuals of factors beside them)
    return {"version": now.get("version", _VERSION), "step": now["step"], "ranks": len(parts[0].get("group", ())) or now["ranks"], "any": new}


def state_of_rank(states: Mapping[int, SavedPart], rank: int, size: int) -> SavedState:
    """The state that one of `size` ranks loads, from the states that ranks saved, {rank: state}. It is the rank's own state,
    merged with those of removed ranks whose residuals it receives; or the state of a new rank."""
    if rank not in states:
        return state_for_new_rank(states[min(states)])
    now = {number: _as_now(states[number]) for number in sorted(states, reverse=True) if number % size == rank}
    merged = {key: value for state in now.values() for key, value in state.items()}
    return {**merged, "ranks": merged["ranks"] or max(states) + 1}


def _as_now(state: SavedPart) -> SavedState:
    """The state by the keys of this version. Version 1 did not save the number of ranks: 0."""
    if not isinstance(state, Mapping):
        raise ArgumentError(f"the state is {state!r}, not what state_dict() returns")
    if state.get("version") != 1:
        return dict(state)
    part = {key: value for key, value in state.items() if key not in ("version", "step", "rank")}
    rank = state.get("rank")
    step = {"step": state["step"]} if "step" in state else {}
    return {"version": 2, **step, "ranks": 0, "any" if rank is None else f"rank{rank}": part}


def _holds(part: SavedPart) -> str:
    """Lists what a part has: a checkpoint may load less than was saved."""
    return ", ".join(f"{key} {len(part[key])}" for key in sorted(part) if hasattr(part[key], "__len__") and key != "holds")


def require_numbers(where: str, given: SavedPart) -> None:
    """ArgumentError for numbers that no state_dict returns: files come from other people."""
    for key, limit in _NUMBERS.items():
        number = given.get(key, 0)
        if not isinstance(number, int) or not 0 <= number <= limit:
            raise ArgumentError(f"{key} of {where} is {_short(number)}, not a number from 0 to {limit}")
    scale = given.get("scale", 1.0)
    if not isinstance(scale, (int, float)) or not abs(scale) <= sys.float_info.max:
        raise ArgumentError(f"scale of {where} is {_short(scale)}, not a finite number")


def require_group(key: str, group: object) -> None:
    """ArgumentError for what is not the ranks of a group that saved this part."""
    ranks = group if isinstance(group, list) else []
    are_ranks = all(isinstance(rank, int) and 0 <= rank < _RANKS_MAX for rank in ranks)
    if not are_ranks or len(set(ranks)) < len(ranks) or key not in [f"rank{rank}" for rank in ranks]:
        raise ArgumentError(f"group of {key} is {_short(group)}, not the ranks of a group with {key}")


def numbers_of(there: Sequence[int], saved: Optional[List[int]], members: List[int], several: bool = False) -> Dict[int, int]:
    """{rank in the group: number of its part}, of the parts of a state that a group loads. Raises ArgumentError.

    there    numbers of all parts
    saved    the group that saved this rank's part; None: numbers are ranks in the group
    members  of the group that loads
    several  whether the checkpoint has parts of other groups, too

    What one group saved suits any group, rank by rank. What several saved suits the same ones alone: how the means of groups add
    up is not known here.
    """
    if saved is None:
        return {number: number for number in there}
    several, ranks = several or not set(there) <= set(saved), dist.get_world_size()
    if several and (saved != members or max(there) >= ranks):
        raise ArgumentError(
            f"the state is of several groups, {_short(saved)} and others, and this group is {_short(members)} of {ranks} ranks:"
            " all groups must be as they were"
        )
    return {saved.index(number): number for number in there if number in saved}


def group_of(engine: Engine) -> Dict[str, List[int]]:
    """What the parts of a group's ranks have besides, if it is not the whole default group."""
    return {} if engine.members == list(range(dist.get_world_size())) else {"group": engine.members}


def parts_for(state: SavedPart, engine: Engine) -> Tuple[Dict[int, str], Optional[List[int]]]:
    """{rank in the group: key of its part}, and the group that saved these parts, if it is not the whole default group."""
    there = sorted(int(key[4:]) for key in state if _PART.fullmatch(key) and key != "any")
    own = engine.global_rank(engine.rank)
    saved = state[f"rank{own if own in there else there[0]}"].get("group") if there else None
    return {rank: f"rank{number}" for rank, number in numbers_of(there, saved, engine.members, "several" in state).items()}, saved


def _short(value: object) -> str:
    return "beyond 128 bits" if isinstance(value, int) and value.bit_length() > 128 else str(value)[:40]


def require_bytes(name: str, saved: object) -> None:
    """ArgumentError for what is not a tensor's state, as in a `state_dict`."""
    if not isinstance(saved, torch.Tensor) or saved.dtype != torch.uint8 or saved.dim() != 1:
        raise ArgumentError(f"the state of {name} is not a tensor of bytes")


class Saved:
    """Step and residuals of one rank. A state that is loaded before the tensors are known waits for them."""

    _engine: Optional[Engine] = None
    _loaded: Optional[SavedPart] = None  # a state that waits for the tensors
    _number = 0  # of the step
    _state_key = "residuals"  # the key that `_residuals` always has
    _orders: Mapping[str, str] = {}  # the dimensions of tensors that are not row by row, from the largest stride to the smallest

    def _residuals(self) -> SavedState:
        raise NotImplementedError

    def _set_residuals(self, loaded: SavedPart, more: Sequence[SavedPart], scale: float, ranks: int) -> None:
        """Sets the residuals: of this rank's part plus those of removed ranks, times `scale`. On an ArgumentError none changes.
        ranks: how many there were."""
        raise NotImplementedError

    def _resume(self) -> None:
        """Passes the failures that the engine has counted to the sender."""
        raise NotImplementedError

    def _require_idle(self) -> None:
        """ArgumentError while a step is under way."""

    def state_dict(self) -> SavedState:
        """Step and residuals of this rank, copied: numbers and tensors of bytes, for torch.save. Each rank saves its own, to a
        file of its own or to one checkpoint of torch.distributed.checkpoint. A training that resumes from it is the same, bit
        for bit, as one that was not interrupted. With control it resumes at the same rung, with the past decisions; later
        decisions depend on new measurements.
        """
        self._require_idle()
        if self._loaded is not None:
            return dict(self._loaded)
        state: SavedState = {"version": _VERSION, "step": self._number, "ranks": 0}
        if self._engine is not None:
            engine = self._engine
            part = {**self._residuals(), "failures": engine.failures, "failed": engine.failed, **group_of(engine)}
            state.update({"ranks": engine.size, f"rank{engine.global_rank(engine.rank)}": {**part, "holds": _holds(part)}})
        return state

    def load_state_dict(self, state: SavedPart) -> None:
        """Loads what `state_dict` returned on this rank. If the tensors are not known yet, it is applied when they are.

        With another number of ranks, residuals are multiplied by ranks now / ranks then: they contribute to the mean what
        they would have contributed. The residuals of removed ranks are lost, with a warning of the logger
        "deepreduce.torch", unless the state has them, too: of a state {**first, **second}, rank r of m receives those of
        ranks r + m, r + 2 m, … Ranks are those in the group. A checkpoint of several groups is loaded by the same groups.

        A ReduceScatter's residuals are of one number of ranks, and are refused with another one.

        Raises ArgumentError for what is not such a state, for the state of another rank, and for residuals of tensors that
        do not exist here or have another size or memory layout; now, or when the tensors are known. After an error nothing has changed.
        """
        self._require_idle()
        given, kind = state, type(self).__name__
        state = _as_now(given)
        if given.get("version") not in (1, 2, _VERSION):
            raise ArgumentError(f"version {given.get('version')} of the state is unknown; this version reads 1 to {_VERSION}")
        parts = {key: part for key, part in state.items() if _PART.fullmatch(key)}
        wrong = next((key for key, part in parts.items() if not isinstance(part, Mapping)), None)
        if wrong is not None:
            raise ArgumentError(f"{wrong} of the state is of type {type(parts[wrong]).__name__}: it is not a state of {kind}")
        if "step" not in state or "ranks" not in state or any(self._state_key not in part for part in parts.values()):
            names = ", ".join([*given, *(f"{key}.{name}" for key, part in parts.items() if key in given for name in part)])
            raise ArgumentError(f"the state has no step, ranks or {self._state_key}, but {names}: it is not a state of {kind}")
        if not parts and state["ranks"]:
            raise ArgumentError(
                f"the state of {state['ranks']} ranks has no rank's part: torch.distributed.checkpoint loads only keys"
                f" that exist here, and this {kind} does not know its tensors yet; deepreduce.torch.load_checkpoint loads all"
            )
        require_numbers("the state", state)
        for key, part in parts.items():
            require_numbers(key, part)
            if "group" in part:
                require_group(key, part["group"])
            if "holds" in part and part["holds"] != _holds({**part}):
                raise ArgumentError(
                    f"{key} of the state holds `{_holds(part)}`, and `{part['holds']}` was saved: tensors or plan"
                    f" differ here, or a choice was made since; deepreduce.torch.load_checkpoint loads all"
                )
        if self._engine is None:
            self._loaded, self._number = state, int(state["step"])
        else:
            self._accept(state, self._engine)

    def _take_loaded(self) -> None:
        """Applies a loaded state when the engine and the tensors are ready."""
        assert self._engine is not None
        try:
            if self._loaded is not None:
                self._accept(self._loaded, self._engine)
        except Exception:
            self._forget_tensors()
            raise

    def _counts(self, engine: Engine) -> List[int]:
        """Steps, those that this rank did not complete, and the last of these; of a state that waits for the tensors, too."""
        if self._loaded is None:
            known = self._engine or engine
            return [self._number, known.failures, known.failed]
        own: SavedPart = {}
        with contextlib.suppress(ArgumentError):  # (of a state that will be refused)
            own = self._loaded.get(parts_for(self._loaded, engine)[0].get(engine.rank, "any"), {})
        return [self._number, int(own.get("failures", 0)), int(own.get("failed", 0))]

    def _join(self, counts: Sequence[List[int]]) -> None:
        """An exception before a rank began a step leaves it a step behind the others, which failed in it. Where all ranks have
        completed as many steps, it counts that step as failed, too.

        counts  `_counts` of all ranks
        """
        assert self._engine is not None
        steps, failures, failed = max(counts)
        if self._number < steps and len({ran - lost for ran, lost, _ in counts}) == 1:
            self._number, self._engine.failures, self._engine.failed = steps, failures, failed
            self._resume()

    def _forget_tensors(self) -> None:
        """They do not fit the state that waited for them: others may come."""
        self._engine = None

    def _accept(self, loaded: SavedPart, engine: Engine) -> None:
        """A residual e of n ranks adds e / n to a later mean. For the same contribution with m ranks it becomes m / n e."""
        rank, size = engine.rank, engine.size
        there, saved = parts_for(loaded, engine)
        ranks = len(saved or ()) or int(loaded["ranks"]) or size
        own: Any = loaded.get(there.get(rank, "any"))
        if own is None and there:
            this = rank if saved is None else engine.global_rank(rank)
            raise ArgumentError(f"the state is of rank {there[min(there)][4:]}, this is rank {this}: each rank has its own")
        gone = range(rank + size, ranks, size)
        lost = [number if saved is None else saved[number] for number in gone if number not in there]
        if lost and own is not None:
            named = ", ".join(map(str, lost[:16])) + (f" and {len(lost) - 16} more" if len(lost) > 16 else "")
            _log.warning("residuals of rank %s of %d are lost: the state has none", named, ranks)
        if own is None:  # saved before the first step
            own = {self._state_key: {}}
        scale = loaded.get("scale", 1.0) * own.get("scale", 1.0) * size / ranks
        require_numbers("the state", {"scale": scale})
        more = [loaded[there[number]] for number in gone if number in there]
        if loaded["version"] < _VERSION:  # it does not have the orders: they are those of here
            own, *more = ({**part, "orders": self._orders} for part in (own, *more))
        self._set_residuals(own, more, scale, ranks)
        engine.failures, engine.failed = int(own.get("failures", 0)), int(own.get("failed", 0))
        self._loaded, self._number = None, int(loaded["step"])
        self._resume()


def check_residuals(residuals: SavedPart, states: Mapping[str, State], items: Mapping[str, Item]) -> None:
    """ArgumentError for residuals of tensors that are not here, or of another size or feedback, or that are not finite.

    residuals  {name: what a state_dict has of a tensor}
    items      {name: the tensor that is here}
    """
    for name, residual in residuals.items():
        require_bytes(name, residual.get("state") if isinstance(residual, Mapping) else None)
        elements, here = residual.get("elements"), items[name].elements if name in items else None
        if here != elements:
            reason = "no such tensor is here" if here is None else f"it has {here} elements here"
            raise ArgumentError(f"the residual of {name} is of {elements} elements, but {reason}")
        size = states[name].size if name in states else 0
        if residual["state"].numel() != size:
            raise ArgumentError(f"the state of {name} has {residual['state'].numel()} bytes, its plan requires {size}")
        if size:
            saved = State._from_bytes(residual["state"].cpu().numpy())
            try:
                saved.check(torch.empty(items[name].elements, dtype=items[name].dtype), keeper_of([items[name].plan]))
            except ArgumentError as error:
                raise ArgumentError(f"{name}: {error}") from None
            if not all(numpy.isfinite(values).all() for values in _values_of(saved)):
                raise ArgumentError(f"the state of {name} has a value that is not finite")


def check_orders(part: SavedPart, orders: Mapping[str, str], names: Iterable[str]) -> None:
    """ArgumentError for residuals, sums or factors whose elements have another order than the tensor has here: each value would
    go to another element.

    part    of a state_dict, whose tensors are checked already
    orders  of the tensors that are here
    """
    saved = part.get("orders", {})
    if not isinstance(saved, Mapping):
        raise ArgumentError(f"orders of the state is {_short(saved)}, not the order of each tensor")
    for name in names:
        found = (part["residuals"].get(name, {}).get("state"), part.get("sums", {}).get(name), part.get("warm", {}).get(name))
        if saved.get(name) != orders.get(name) and any(memory is not None and memory.numel() for memory in found):
            was, now = (f"by dimensions {_short(order[name])}" if name in order else "row by row" for order in (saved, orders))
            raise ArgumentError(
                f"the state of {name} is {was} in memory, and the tensor here is {now}: load it into a model of the memory_format of"
                " the one that was saved"
            )


def _values_of(state: State) -> Iterator[Array]:
    for field in ("residual", "momentum"):
        with contextlib.suppress(ArgumentError):  # (it has none, or nothing was encoded)
            yield getattr(state, field)


def check_sums(sums: SavedPart, states: Mapping[str, State], items: Mapping[str, Item], sender: AnySender) -> None:
    """ArgumentError for what an owner kept of sums of tensors that are not here, or of another size or feedback.

    sums  {name: what a state_dict has of a tensor}
    """
    for name, saved in sums.items():
        require_bytes(name, saved)
        if name not in states or name not in items:
            raise ArgumentError(f"the sums of {name}: no such tensor with a residual is here")
        size, elements = sender.tensor(name).sum_state, items[name].elements
        state = State._from_bytes(saved.cpu().numpy())
        try:
            found = state.residual if state.memory.any() else numpy.zeros(elements, numpy.float32)
        except ArgumentError as error:
            raise ArgumentError(f"the sums of {name}: {error}") from None
        if found.size != elements or size not in (0, state.size):
            raise ArgumentError(f"the sums of {name} are of {found.size} elements in {state.size} bytes, and it has {elements} here in {size}")
        if not numpy.isfinite(found).all():
            raise ArgumentError(f"the sums of {name} have a value that is not finite")
