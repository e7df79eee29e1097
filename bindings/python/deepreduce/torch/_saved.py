"""deepreduce.torch: what is saved of an exchange, and taken back."""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence

import torch

from .._native._types import SavedPart, SavedState
from ..errors import ArgumentError
from ..tensor import State
from ._engine import Engine
from ._ladder import keeper_of

if TYPE_CHECKING:
    from ._unit import Item

# Of state_dict: {"version", "step", "ranks", "rank3": the part of rank 3}. Keys by rank, so that the ranks' states go
# together into one checkpoint of torch.distributed.checkpoint. A part for "any" rank has no residuals. Version 1 was of
# one rank, its part beside the other keys.
_VERSION = 2
_PART = re.compile(r"rank(0|[1-9]\d{0,5})|any")
_RANKS_MOST = 65536  # of an exchange
_NUMBERS = {"step": 2**63 - 1, "ranks": _RANKS_MOST, "failures": 2**63 - 1, "failed": 2**63 - 1}  # the most of each
_log = logging.getLogger("deepreduce.torch")


def state_for_new_rank(state: SavedPart) -> SavedState:
    """What a rank without a state loads where a training goes on with more ranks, of the state of any DDPHook or AllReduce
    that was saved at the same step: step, PowerSGD's factors, decisions of `control`. Its residuals begin at zero.
    """
    now = _as_now(state)
    parts = [part for key, part in now.items() if _PART.fullmatch(key)]
    # (Of factors the residuals are beside them.)
    new = {"any": {**parts[0], "residuals": {}, "scale": 0.0}} if parts else {}
    new.get("any", {}).pop("holds", None)
    return {"version": _VERSION, "step": now["step"], "ranks": now["ranks"], **new}


def state_of_rank(states: Mapping[int, SavedPart], rank: int, size: int) -> SavedState:
    """What one of `size` ranks loads of the states that ranks saved, {rank: state}: its own, with those of ranks that are
    gone and whose residuals it takes; or that of a new rank."""
    if rank not in states:
        return state_for_new_rank(states[min(states)])
    now = {each: _as_now(states[each]) for each in sorted(states, reverse=True) if each % size == rank}
    merged = {key: value for state in now.values() for key, value in state.items()}
    return {**merged, "ranks": merged["ranks"] or max(states) + 1}


def _as_now(state: SavedPart) -> SavedState:
    """The state in this version; how many ranks one of version 1 was saved by is not known: 0."""
    if state.get("version") != 1:
        return dict(state)
    part = {key: value for key, value in state.items() if key not in ("version", "step", "rank")}
    rank = state.get("rank")
    step = {"step": state["step"]} if "step" in state else {}
    return {"version": _VERSION, **step, "ranks": 0, "any" if rank is None else f"rank{rank}": part}


def _holds(part: SavedPart) -> str:
    """What a part has, in words: a checkpoint may give less than was saved."""
    return ", ".join(f"{key} {len(part[key])}" for key in sorted(part) if hasattr(part[key], "__len__") and key != "holds")


def require_numbers(where: str, given: SavedPart) -> None:
    """ArgumentError for numbers in a state that no state_dict gives: files come from other people."""
    for key, most in _NUMBERS.items():
        number = given.get(key, 0)
        if not isinstance(number, int) or not 0 <= number <= most:
            raise ArgumentError(f"{key} of {where} is {_short(number)}, no number from 0 to {most}")
    scale = given.get("scale", 1.0)
    if not isinstance(scale, (int, float)) or not abs(scale) <= sys.float_info.max:
        raise ArgumentError(f"scale of {where} is {_short(scale)}, no finite number")


def _short(value: object) -> str:
    return "beyond 128 bits" if isinstance(value, int) and value.bit_length() > 128 else str(value)[:40]


def require_bytes(name: str, saved: object) -> None:
    """ArgumentError for what is no state of a tensor, as `state_dict` gives it."""
    if not isinstance(saved, torch.Tensor) or saved.dtype != torch.uint8 or saved.dim() != 1:
        raise ArgumentError(f"the state of {name} is no tensor of bytes")


class Saved:
    """Step and residuals of one rank. What is loaded before the tensors are known waits for them."""

    _engine: Optional[Engine] = None
    _loaded: Optional[SavedPart] = None  # a state that waits for the tensors
    _number = 0  # of the step
    _kept_as = "residuals"  # what `_residuals` has in any case

    def _residuals(self) -> SavedState:
        raise NotImplementedError

    def _set_residuals(self, loaded: SavedPart, more: Sequence[SavedPart], scale: float) -> None:
        """Those of this rank's part, plus those of ranks that are gone, all times `scale`; or an ArgumentError and none."""
        raise NotImplementedError

    def _resume(self) -> None:
        """The sender has the failures that the engine has."""
        raise NotImplementedError

    def _require_idle(self) -> None:
        """ArgumentError while a step is under way."""

    def state_dict(self) -> SavedState:
        """Step and residuals of this rank: numbers, and tensors of bytes, which torch.save takes: copies. Each rank saves
        its own, to a file of its own or to one checkpoint of torch.distributed.checkpoint. A training that goes on from it
        is the same, bit for bit, as one that was not interrupted. With control it goes on at the same rung, with all that
        the ranks knew; what they measure then is the machine's.
        """
        self._require_idle()
        if self._loaded is not None:
            return dict(self._loaded)
        state: SavedState = {"version": _VERSION, "step": self._number, "ranks": 0}
        if self._engine is not None:
            part = {**self._residuals(), "failures": self._engine.failures, "failed": self._engine.failed}
            state.update({"ranks": self._engine.size, f"rank{self._engine.rank}": {**part, "holds": _holds(part)}})
        return state

    def load_state_dict(self, state: SavedPart) -> None:
        """Takes what `state_dict` gave on this rank; before the tensors are known it waits for them.

        With another number of ranks residuals are multiplied by ranks now / ranks then, so that they add as much to the
        mean as they would have. Those of ranks that are gone are lost, with a warning of the logger "deepreduce.torch",
        unless the state has them, too: rank r of m takes those of ranks r + m, r + 2 m, … of a state {**first, **second}.

        Raises ArgumentError, now or then, for what is no such state, for another rank's, and for residuals of tensors that
        are not here or have another size. Nothing has changed then.
        """
        self._require_idle()
        if state.get("version") not in (1, _VERSION):
            raise ArgumentError(f"version {state.get('version')} of the state is not known here, {_VERSION} is")
        given, kind = state, type(self).__name__
        state = _as_now(state)
        parts = {key: part for key, part in state.items() if _PART.fullmatch(key)}
        wrong = next((key for key, part in parts.items() if not isinstance(part, Mapping)), None)
        if wrong is not None:
            raise ArgumentError(f"{wrong} of the state is of type {type(parts[wrong]).__name__}: it is no state of {kind}")
        if "step" not in state or "ranks" not in state or any(self._kept_as not in part for part in parts.values()):
            names = ", ".join([*given, *(f"{key}.{name}" for key, part in parts.items() if key in given for name in part)])
            raise ArgumentError(f"the state has no step, ranks or {self._kept_as}, but {names}: it is no state of {kind}")
        if not parts and state["ranks"]:
            raise ArgumentError(
                f"the state of {state['ranks']} ranks has no rank's part: torch.distributed.checkpoint fills only what is"
                f" known here, and this {kind} does not know its tensors yet; deepreduce.torch.load_checkpoint loads all"
            )
        require_numbers("the state", state)
        for key, part in parts.items():
            require_numbers(key, part)
            if "holds" in part and part["holds"] != _holds({**part}):
                raise ArgumentError(
                    f"{key} of the state holds `{_holds(part)}`, and `{part['holds']}` was saved: other tensors or another"
                    f" plan are here, or a choice was made since; deepreduce.torch.load_checkpoint loads all"
                )
        if self._engine is None:
            self._loaded, self._number = state, int(state["step"])
        else:
            self._accept(state, self._engine)

    def _take_loaded(self) -> None:
        """Once the engine and the tensors are there."""
        assert self._engine is not None
        try:
            if self._loaded is not None:
                self._accept(self._loaded, self._engine)
        except ArgumentError:
            self._engine = None
            raise

    def _accept(self, loaded: SavedPart, engine: Engine) -> None:
        """A residual e of n ranks adds e / n to a later mean; so that it adds as much to one of m, it becomes m / n e."""
        rank, size, ranks = engine.rank, engine.size, int(loaded["ranks"]) or engine.size
        there = {int(key[4:]) for key in loaded if _PART.fullmatch(key) and key != "any"}
        own: Any = loaded.get(f"rank{rank}", loaded.get("any"))
        if own is None and there:
            raise ArgumentError(f"the state is of rank {min(there)}, this is rank {rank}: each has its own")
        gone = range(rank + size, ranks, size)
        lost = [each for each in gone if each not in there]
        if lost and own is not None:
            named = ", ".join(map(str, lost[:16])) + (f" and {len(lost) - 16} more" if len(lost) > 16 else "")
            _log.warning("residuals of rank %s of %d are lost: the state has none", named, ranks)
        if own is None:  # saved before the first step
            own = {self._kept_as: {}}
        scale = loaded.get("scale", 1.0) * own.get("scale", 1.0) * size / ranks
        require_numbers("the state", {"scale": scale})
        self._set_residuals(own, [loaded[f"rank{each}"] for each in gone if each in there], scale)
        engine.failures, engine.failed = int(own.get("failures", 0)), int(own.get("failed", 0))
        self._loaded, self._number = None, int(loaded["step"])
        self._resume()


def check_residuals(residuals: SavedPart, states: Mapping[str, State], items: Mapping[str, Item]) -> None:
    """ArgumentError for residuals of tensors that are not here, or of another size or feedback.

    residuals  {name: what a state_dict has of a tensor}
    items      {name: the tensor that is here}
    """
    for name, residual in residuals.items():
        require_bytes(name, residual.get("state") if isinstance(residual, Mapping) else None)
        elements, here = residual.get("elements"), items[name].elements if name in items else None
        if here != elements:
            told = "no such tensor is here" if here is None else f"it has {here} elements here"
            raise ArgumentError(f"the residual of {name} is of {elements} elements, but {told}")
        size = states[name].size if name in states else 0
        if residual["state"].numel() != size:
            raise ArgumentError(f"the state of {name} has {residual['state'].numel()} bytes, its plan wants {size}")
        if size:
            saved = State._from_bytes(residual["state"].cpu().numpy())
            try:
                saved.check(torch.empty(items[name].elements, dtype=items[name].dtype), keeper_of([items[name].plan]))
            except ArgumentError as error:
                raise ArgumentError(f"{name}: {error}") from None
