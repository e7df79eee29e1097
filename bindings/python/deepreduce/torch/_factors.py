"""deepreduce.torch: residuals that move from rung to rung of a ladder, and factors in states that earlier versions saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping, Sequence

import numpy
import torch

from ..errors import ArgumentError
from ..tensor import State
from ._ladder import keeper_of

if TYPE_CHECKING:
    from ._device_sender import AnySender

_HEAD = 32  # bytes of a saved transform before its residuals
_MARKS_MAX = 3 * 65536  # numbers that ranks had among the residuals, once


def carry_residuals(before: Sequence[Any], after: Sequence[Any], states: Mapping[str, State]) -> None:
    """Moves residuals from one rung of a ladder to the next: from the sender of the rung before to `states`, which frames use,
    and from there to the sender of the rung after. A residual is stored once."""
    for unit, name in _held_by_sender(before):
        states[name].memory[:] = unit.sender.read_state(name)
        unit.sender.write_state(name, "states", numpy.zeros(states[name].size, numpy.uint8))
    for unit, name in _held_by_sender(after):
        if states[name].memory.any():  # (a fresh one has no residual)
            unit.sender.write_state(name, "states", states[name].memory)
            states[name].memory[:] = 0


def _held_by_sender(units: Sequence[Any]) -> Any:
    return [(unit, item.name) for unit in units if unit.holds_states for item in unit.items if item.plan.info.feedback]


def by_name(part: Mapping[str, Any], units: Sequence[Any], sender: AnySender) -> Mapping[str, Any]:
    """A rank's part of a state, with the factors by tensor. Versions before 0.3.0 saved them by unit: a header, the residuals of
    its tensors, marks of ranks, the warm starts. Raises ArgumentError."""
    if "transforms" not in part:
        return part
    here = {f"{unit.items[0].name} … {unit.items[-1].name}": unit for unit in units if unit.kind == "factors"}
    if set(part["transforms"]) != set(here):
        names = ", ".join(sorted(set(part["transforms"]) ^ set(here)))
        raise ArgumentError(f"the factors of {names}: the state has other tensors than this exchange")
    residuals, warm = dict(part["residuals"]), {}
    for key, unit in here.items():
        saved = part["transforms"][key]
        sizes = [sender.tensor(item.name).warm_state for item in unit.items]
        residual_sizes = [4 * item.elements if item.plan.info.feedback else 0 for item in unit.items]
        if not isinstance(saved, torch.Tensor) or saved.dtype != torch.uint8 or saved.dim() != 1:
            raise ArgumentError(f"the factors of {key}: not a tensor of bytes")
        marks = saved.numel() - _HEAD - sum(sizes) - sum(residual_sizes)
        if not 0 <= marks <= 4 * _MARKS_MAX or marks % 4:
            raise ArgumentError(f"the factors of {key}: {saved.numel()} bytes, of other shapes or another rank of the factors")
        data = saved.cpu().numpy()
        at, end = _HEAD, data.size - sum(sizes)
        for item, size, residual_size in zip(unit.items, sizes, residual_sizes):
            if residual_size:
                values = numpy.frombuffer(data[at : at + residual_size].tobytes(), numpy.float32)
                state = State.from_residual(torch.empty(item.elements), keeper_of([item.plan]), values).memory
                residuals[item.name] = {"elements": item.elements, "state": torch.from_numpy(state)}
            warm[item.name] = torch.from_numpy(data[end : end + size].copy())
            at, end = at + residual_size, end + size
    return {**part, "residuals": residuals, "warm": {name: start for name, start in warm.items() if start.numel()}}


def checked_warm_starts(part: Mapping[str, Any], sender: AnySender) -> Dict[str, Any]:
    """{name: bytes} for `write_state`, of all tensors that have a warm start; zeros, a new start, where the state has none.
    Raises ArgumentError."""
    found = {}
    for name in sender.names:
        size = sender.tensor(name).warm_state
        saved = part.get("warm", {}).get(name)
        if saved is not None and (not isinstance(saved, torch.Tensor) or saved.dtype != torch.uint8 or saved.numel() != size):
            raise ArgumentError(f"the factors of {name}: the state has others than the {size} bytes here")
        if size:
            found[name] = numpy.zeros(size, numpy.uint8) if saved is None else saved.cpu().numpy()
            if not numpy.isfinite(found[name].view(numpy.float32)).all():
                raise ArgumentError(f"the factors of {name}: the state has a value that is not finite")
    return found
