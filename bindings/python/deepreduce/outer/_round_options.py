"""The numbers of the outer optimizer by which a round is applied, its rate above all. They travel with each contribution, so that a
worker that applies the round later does so by the same ones, whatever a schedule has made of them since."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Dict, Iterator, List

import torch

OPTIONS_MAX = 1 << 15  # bytes of a contribution's options, as JSON

Options = Dict[str, List[Any]]  # name -> its value in each parameter group: a bool, a float, a list of floats; None: it is none of these


def options_of(optimizer: torch.optim.Optimizer) -> Options:
    names = [name for name, value in optimizer.defaults.items() if isinstance(value, (bool, int, float, tuple))]
    return {name: [_plain(group.get(name)) for group in optimizer.param_groups] for name in names}


def _plain(value: object) -> Any:
    if isinstance(value, (tuple, list)):
        return [float(x) for x in value] if all(isinstance(x, (int, float)) for x in value) else None
    return value if isinstance(value, bool) else float(value) if isinstance(value, (int, float)) else None


def packed(options: Options) -> Options:
    """With one value where all groups have the same."""
    return {name: values[:1] if all(value == values[0] for value in values) else values for name, values in options.items()}


def unpacked(given: object, optimizer: torch.optim.Optimizer) -> Options:
    """The options in a contribution. Raises ValueError unless they are numbers of this optimizer, and finite."""
    own = options_of(optimizer)
    if not isinstance(given, dict) or set(given) != set(own):
        raise ValueError(f"the options of its outer optimizer are {str(given)[:100]}")
    return {name: _unpacked(name, given[name], values) for name, values in own.items()}


def _unpacked(name: str, given: object, own: List[Any]) -> List[Any]:
    values = given * len(own) if isinstance(given, list) and len(given) == 1 else given
    if not isinstance(values, list) or len(values) != len(own) or not all(map(_is_like, values, own)):
        raise ValueError(f"the option {name} of its outer optimizer is {str(given)[:100]}")
    return [_plain(value) for value in values]


def _is_like(value: object, own: object) -> bool:
    if isinstance(own, list):
        return isinstance(value, list) and len(value) == len(own) and all(map(_is_finite, value))
    return _is_finite(value) if isinstance(own, float) else type(value) is type(own)


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def difference(its: Options, other: Options) -> str:
    name = next(name for name in other if its[name] != other[name])
    group = next(i for i, value in enumerate(other[name]) if its[name][i] != value)
    where = f" in parameter group {group}" if len(other[name]) > 1 else ""
    return f"its outer optimizer has {name} {its[name][group]}{where}, most have {other[name][group]}"


@contextlib.contextmanager
def applied(optimizer: torch.optim.Optimizer, options: Options, keep: bool) -> Iterator[None]:
    """The optimizer with these options for the time of the block. keep: also from then on, unless the block raises. Numbers that
    are the same before are left alone: some optimizers count their steps there."""
    before = []
    for name, values in options.items():
        for group, value in zip(optimizer.param_groups, values):
            now = _plain(group.get(name))
            if value is not None and now != value:
                before.append((group, name, group[name]))
                _set(group, name, value)
    try:
        yield
    except BaseException:
        keep = False
        raise
    finally:
        if not keep:
            for group, name, value in before:
                _set(group, name, value)


def _set(group: Dict[str, Any], name: str, value: Any) -> None:
    now = group[name]
    if isinstance(now, (tuple, list)):
        group[name] = type(now)(value)
    else:
        group[name] = int(value) if type(now) is int and value == int(value) else value
