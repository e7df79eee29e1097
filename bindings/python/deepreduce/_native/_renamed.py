"""Old spellings of public names. They work as before in this version, and warn with the new name.

tests/python/test_vocabulary.py has a table of all, and tests the rules of the new names.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from typing import Callable, Mapping, Sequence, TypeVar, cast

Call = TypeVar("Call", bound=Callable[..., object])
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def caller_level() -> int:
    """The `stacklevel` for warnings.warn in the calling function: the first line outside of this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    return level


def warn(old: str, new: str) -> None:
    """A DeprecationWarning at the caller's line."""
    words = f"{old} is deprecated, use {new}: the old spelling works until version 0.4"
    warnings.warn(words, DeprecationWarning, stacklevel=caller_level())


def argument(old: str, new: str) -> Callable[[Call], Call]:
    """Decorates a function whose keyword argument `old` is now `new`."""

    def decorate(function: Call) -> Call:
        name = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def call(*given: object, **named: object) -> object:
            if old in named:
                if new in named:
                    raise TypeError(f"{name}() accepts {new}= or its old spelling {old}=, not both")
                warn(f"{name}({old}=…)", f"{name}({new}=…)")
                named[new] = named.pop(old)
            return function(*given, **named)

        return cast(Call, call)

    return decorate


def plan_first(is_plan: Callable[[object], bool]) -> Callable[[Call], Call]:
    """Decorates a method (tensors, plan, …) that was (plan, tensors, …). is_plan: whether an argument can only be a plan"""

    def decorate(function: Call) -> Call:
        name = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def call(self: object, *given: object, **named: object) -> object:
            if given and is_plan(given[0]):
                warn(f"{name}(plan, tensors)", f"{name}(tensors, plan)")
                plan, *rest = given
                if not rest:
                    return function(self, plan=plan, **named)
                given = (rest[0], plan, *rest[1:])
            return function(self, *given, **named)

        return cast(Call, call)

    return decorate


def seed_of(seed: int, name: str, given: Sequence[object], named: Mapping[str, object]) -> int:
    """The seed of a call: the constructor's, or, in the old spelling, the argument of the call of `name`."""
    if not given and not named:
        return seed
    if len(given) + len(named) > 1 or not (given or "seed" in named):
        wrong = next((other for other in named if other != "seed"), "more")
        raise TypeError(f"{name}() got an unexpected argument: {wrong}")
    warn(f"the seed of {name}", "seed= of the constructor")
    return cast(int, given[0] if given else named["seed"])
