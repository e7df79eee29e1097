"""deepreduce.torch: what is saved of an exchange, and taken back."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from ._torch_call import Engine
from .errors import ArgumentError

_VERSION = 1  # of state_dict


def state_for_new_rank(state: Mapping[str, Any]) -> Dict[str, Any]:
    """What a rank without a state loads where a training goes on with more ranks, of the state of any DDPHook or AllReduce
    that was saved at the same step: step, PowerSGD's factors, decisions of `control`. Its residuals begin at zero.
    """
    return {**state, "rank": None, "residuals": {}, "scale": 0.0}  # (of factors, whose residuals are beside them)


class Saved:
    """Step and residuals of one rank. What is loaded before the tensors are known waits for them."""

    _engine: Optional[Engine] = None
    _loaded: Optional[Mapping[str, Any]] = None  # a state that waits for the tensors
    _number = 0  # of the step
    _kept_as = "residuals"  # what `_residuals` has in any case

    def _residuals(self) -> Dict[str, Any]:
        raise NotImplementedError

    def _set_residuals(self, loaded: Mapping[str, Any]) -> None:
        """All of them, or an ArgumentError and none."""
        raise NotImplementedError

    def _require_idle(self) -> None:
        """ArgumentError while a step is under way."""

    def state_dict(self) -> Dict[str, Any]:
        """Step and residuals of this rank: numbers, and tensors of bytes, which torch.save takes. Each rank saves its
        own. A training that goes on from it is the same, bit for bit, as one that was not interrupted. With control it
        goes on at the same rung, with all that the ranks knew; what they measure then is the machine's.
        """
        self._require_idle()
        if self._loaded is not None:
            return dict(self._loaded)
        rank = None if self._engine is None else self._engine.rank
        return {"version": _VERSION, "step": self._number, "rank": rank, **self._residuals()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave on this rank; before the tensors are known it waits for them.

        Raises ArgumentError, now or then, for what is no such state, for another rank's, and for residuals of tensors that
        are not here or have another size. Nothing has changed then.
        """
        self._require_idle()
        if state.get("version") != _VERSION:
            raise ArgumentError(f"version {state.get('version')} of the state is not known here, {_VERSION} is")
        missing = [name for name in ("step", "rank", self._kept_as) if name not in state]
        if missing:
            kind, names = type(self).__name__, ", ".join(map(str, state))
            raise ArgumentError(f"the state has no {' and no '.join(missing)}, but {names}: it is no state of {kind}")
        if self._engine is None:
            self._loaded, self._number = state, int(state["step"])
        else:
            self._accept(state, self._engine.rank)

    def _take_loaded(self) -> None:
        """Once the engine and the tensors are there."""
        assert self._engine is not None
        try:
            if self._loaded is not None:
                self._accept(self._loaded, self._engine.rank)
        except ArgumentError:
            self._engine = None
            raise

    def _accept(self, loaded: Mapping[str, Any], rank: int) -> None:
        if loaded["rank"] not in (None, rank):
            raise ArgumentError(f"the state is of rank {loaded['rank']}, this is rank {rank}: each has its own")
        self._set_residuals(loaded)
        self._loaded, self._number = None, int(loaded["step"])
