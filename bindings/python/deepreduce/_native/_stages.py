"""The stages of a plan as objects, so that no code parses its text."""

from __future__ import annotations

import ctypes
import dataclasses
import types
from typing import Callable, Dict, Iterator, List, Mapping, Tuple, Union

from ..errors import PlanError
from . import _abi, _abi_plan, _library
from ._call import c_string, check, check_plan, new, read, text


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage of a plan, `role=name(parameter=value,…)`.

    role        "sparsify", "feedback", "index", "value", "order", "regather", "bucket", "merge", "exchange", "transform"
    name        "golomb", "auto", "owner"; "none", "gather" and so on if the plan has the default
    parameters  {name: value} of all parameters: an int, a float, or the word of a choice
    given       the names of parameters that are not the default
    behind      bytes codecs behind it: huffman in `index=raw+huffman`
    text        text of the whole stage, "index=raw+huffman"
    is_default  whether the plan's text omits the stage

    >>> stage = deepreduce.Plan("index=raw+huffman exchange=owner(parts=4)").stages["exchange"]
    >>> stage.name, dict(stage.parameters), stage.given, stage.is_default
    ('owner', {'parts': 4}, ('parts',), False)
    """

    role: str
    name: str
    parameters: Mapping[str, Union[int, float, str]]
    given: Tuple[str, ...]
    behind: Tuple[Stage, ...]
    text: str
    is_default: bool

    def __str__(self) -> str:
        return self.text

    def __hash__(self) -> int:
        return hash(self.text)


Stages = Mapping[str, Stage]  # {role: stage}


def stages_of(plan: object) -> Stages:
    """The stages of a plan's handle."""
    library = _library.load()
    return _stages(library.dr_plan_stage_count(plan), lambda i, stage, error: library.dr_plan_stage(plan, i, stage, error))


def read_stages(plan: str) -> Stages:
    """The stages of a text as written, whose names the library need not know. Parameters are texts; there are no defaults.

    Raises PlanError if it is not the text of a plan.

    >>> stages = deepreduce.plan.read_stages("index=mine(k=3) value=raw+zstd")
    >>> stages["index"].name, stages["index"].parameters["k"], stages["value"].behind[0].name
    ('mine', '3', 'zstd')
    """
    library, handle, error = _library.load(), ctypes.POINTER(_abi_plan.dr_stages)(), new(_abi.dr_error)
    check_plan(library.dr_stages_parse(c_string(plan, "the plan", PlanError), ctypes.byref(handle), error), error)
    try:
        return _stages(library.dr_stages_count(handle), lambda i, stage, error: library.dr_stages_at(handle, i, stage, error))
    finally:
        library.dr_stages_destroy(handle)


def _stages(count: int, stage_at: Callable[[int, object, object], int]) -> Stages:
    names: Dict[str, List[_abi_plan.dr_stage]] = {}
    for i in range(count):
        stage, error = new(_abi_plan.dr_stage), new(_abi.dr_error)
        check(stage_at(i, stage, error), error)
        names.setdefault(text(stage.role), []).append(stage)
    return types.MappingProxyType({role: _stage(first, rest) for role, (first, *rest) in names.items()})


def _stage(stage: _abi_plan.dr_stage, behind: List[_abi_plan.dr_stage]) -> Stage:
    params = list(_params(stage))
    return Stage(
        role=text(stage.role) if stage.position == 0 else "bytes",
        name=text(stage.name),
        parameters=types.MappingProxyType({text(p.name): _value(p) for p in params}),
        given=tuple(text(p.name) for p in params if not p.is_default),
        behind=tuple(_stage(codec, []) for codec in behind),
        text=text(stage.text),
        is_default=bool(stage.is_default),
    )


def _params(stage: _abi_plan.dr_stage) -> Iterator[_abi_plan.dr_stage_param]:
    if not stage.param_count:
        return
    address, stride = ctypes.addressof(stage.params.contents), stage.params[0].struct_size
    for i in range(stage.param_count):
        at = ctypes.cast(address + i * stride, ctypes.POINTER(_abi_plan.dr_stage_param))
        yield read(at, _abi_plan.dr_stage_param)


def _value(param: _abi_plan.dr_stage_param) -> Union[int, float, str]:
    if param.type == _abi.DR_PARAM_INT:
        return int(param.number)
    return param.number if param.type == _abi.DR_PARAM_REAL else text(param.text)
