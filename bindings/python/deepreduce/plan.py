"""Plans and codecs."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
import os
import warnings
from typing import Dict, List, Optional, Tuple, Union

from ._native import _abi, _library
from ._native._call import c_string, check, new, read, text
from ._native._memory import NAMES
from ._native._stages import Stage as Stage
from ._native._stages import Stages as Stages
from ._native._stages import read_stages as read_stages
from ._native._stages import stages_of
from .errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class PlanInfo:
    """Properties of a plan (Plan.info).

    sparsifies      it drops values other than zeros
    feedback        it needs a State
    residual        its State has a residual, to which a lost frame can be added back
    votes           merge=vote: a merge returns the sign of the sum
    lossy_values    selected values are not decoded bit for bit
    lossy_support   decode returns another support than the sparsifier selected
    fixed_size      frames of equal shapes and counts have equal sizes
    linear          payloads may be added up (all-reduce)
    shared_random   it draws random numbers that are the same on every rank
    private_random  it draws random numbers by private_seed, which must differ between ranks
    chooses         auto: the codecs depend on the data
    host_only       a stage has no CUDA path
    flat            bucket=flat: the batch is one tensor in the frame
    transforms      transform=lowrank: computes factors for an all-reduce, not frames (deepreduce.transform)
    coefficients    transform=dct: frames and residuals hold coefficients, and the inverse is computed once, after a merge
    patch           sparsify=changed: it encodes weights against their base (deepreduce.patch)
    dtypes          types of the tensors that it accepts
    """

    sparsifies: bool
    feedback: bool
    residual: bool
    votes: bool
    lossy_values: bool
    lossy_support: bool
    fixed_size: bool
    linear: bool
    shared_random: bool
    private_random: bool
    chooses: bool
    host_only: bool
    flat: bool
    transforms: bool
    coefficients: bool
    patch: bool
    dtypes: Tuple[str, ...]


_PLAN_FLAGS = {
    "sparsifies": _abi.DR_PLAN_SPARSIFIES,
    "feedback": _abi.DR_PLAN_FEEDBACK,
    "residual": _abi.DR_PLAN_RESIDUAL,
    "votes": _abi.DR_PLAN_VOTE,
    "lossy_values": _abi.DR_PLAN_LOSSY_VALUES,
    "lossy_support": _abi.DR_PLAN_LOSSY_SUPPORT,
    "fixed_size": _abi.DR_PLAN_FIXED_SIZE,
    "linear": _abi.DR_PLAN_LINEAR,
    "shared_random": _abi.DR_PLAN_SHARED_RANDOM,
    "private_random": _abi.DR_PLAN_PRIVATE_RANDOM,
    "chooses": _abi.DR_PLAN_CHOOSES,
    "host_only": _abi.DR_PLAN_HOST_ONLY,
    "flat": _abi.DR_PLAN_FLAT,
    "transforms": _abi.DR_PLAN_TRANSFORMS,
    "coefficients": _abi.DR_PLAN_COEFFICIENTS,
    "patch": _abi.DR_PLAN_PATCH,
}


class Plan:
    """A parsed and checked plan: the methods that encode a tensor. Immutable; any number of threads may use it.

    text  stages `role=codec(parameter=value,…)`, separated by spaces; or the name of a preset: "terngrad"

    `str(plan)` is the canonical text: two plans are equal if and only if their methods are the same.
    Raises ArgumentError for a text that is not a plan.

    >>> plan = deepreduce.Plan("index=golomb(block=12)   sparsify=topr(ratio=0.010)")
    >>> str(plan)
    'sparsify=topr(ratio=0.01) index=golomb value=raw'
    >>> plan == deepreduce.Plan("index=golomb sparsify=topr(ratio=0.01)")
    True
    """

    __slots__ = ("handle", "_text", "_destroy", "_draws", "_stages", "warned")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ArgumentError(f"the text of a plan is a str, not a {type(text).__name__}")
        library = _library.load()
        self.handle = ctypes.POINTER(_abi.dr_plan)()
        self._destroy = library.dr_plan_destroy
        error = new(_abi.dr_error)
        status = library.dr_plan_parse(c_string(text, "the plan"), ctypes.byref(self.handle), ctypes.byref(error))
        check(status, error)
        self._text: str = library.dr_plan_text(self.handle).decode()
        self._draws: Optional[bool] = None
        self._stages: Optional[Stages] = None
        self.warned = False  # about drawing the same numbers twice (encode)

    @property
    def draws(self) -> bool:
        """Whether encode draws random numbers. Computed once."""
        if self._draws is None:
            info = self.info
            self._draws = info.shared_random or info.private_random
        return self._draws

    @property
    def info(self) -> PlanInfo:
        """Properties of the plan, without parsing its text.

        >>> info = deepreduce.Plan("sparsify=topr(ratio=0.01) feedback=residual index=golomb value=qsgd").info
        >>> info.sparsifies, info.feedback, info.lossy_values, info.lossy_support, info.private_random
        (True, True, True, False, True)
        """
        info, error = new(_abi.dr_plan_info), new(_abi.dr_error)
        check(_library.load().dr_plan_describe(self.handle, info, error), error)
        return PlanInfo(
            **{name: bool(info.flags & bit) for name, bit in _PLAN_FLAGS.items()},
            dtypes=tuple(name for code, name in NAMES.items() if info.dtypes >> code & 1),
        )

    @property
    def stages(self) -> Stages:
        """{role: Stage}, including defaults that the text omits. With transform=lowrank: transform and feedback only.

        >>> stages = deepreduce.Plan("sparsify=topr(ratio=0.01) exchange=owner(parts=4) index=golomb").stages
        >>> stages["sparsify"].parameters["ratio"], stages["exchange"].name, stages["feedback"].name
        (0.01, 'owner', 'none')
        """
        if self._stages is None:
            self._stages = stages_of(self.handle)
        return self._stages

    def name_of(self, role: str) -> str:
        """The name of a stage, without its bytes codecs: "golomb"; "" if the plan has no such stage."""
        stage = self.stages.get(role)
        return "" if stage is None else stage.name

    def text_of(self, role: str) -> str:
        """A stage as in the plan's text, "feedback=residual"; "" if the text omits it."""
        stage = self.stages.get(role)
        return "" if stage is None or stage.is_default else stage.text

    def with_stages(self, stages: str) -> Plan:
        """This plan with its stages of the same roles replaced. Raises ArgumentError, Unsupported.

        >>> deepreduce.Plan("sparsify=topr(ratio=0.01) feedback=residual index=golomb").with_stages("feedback=none bucket=flat")
        Plan('sparsify=topr(ratio=0.01) index=golomb value=raw bucket=flat')
        """
        return _beside("dr_plan_with", self, c_string(stages, "stages"))

    @property
    def exact(self) -> Plan:
        """The plan for tensors that are too small for this plan, beside others that have it (`dense_below`).

        It sends all elements exactly, with the same weight of the gradient and the same momentum. With merge=vote or
        transform= it is this plan.

        >>> deepreduce.Plan("sparsify=topr(ratio=0.01) feedback=residual(gamma=0.5) index=golomb value=qsgd").exact
        Plan('feedback=residual(gamma=0.5) index=all value=raw')
        """
        return _beside("dr_plan_exact", self)

    @property
    def rows(self) -> Plan:
        """The plan for a sparse tensor whose rows are selected already: the index, value and order codecs, without feedback.

        An index codec that sends other rows than its input becomes golomb. Raises Unsupported for merge=vote and momentum.

        >>> deepreduce.Plan("sparsify=topr(ratio=0.01) feedback=residual index=all value=half").rows
        Plan('index=golomb value=half')
        """
        return _beside("dr_plan_rows", self)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Plan({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> Tuple[object, ...]:
        return Plan, (self._text,)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._destroy(self.handle)


@functools.lru_cache(maxsize=256)
def _beside(derive: str, plan: Plan, *more: bytes) -> Plan:
    """A plan that a function of the library derives from this one; for equal texts the same object."""
    library, made, error = _library.load(), ctypes.POINTER(_abi.dr_plan)(), new(_abi.dr_error)
    check(getattr(library, derive)(plan.handle, *more, ctypes.byref(made), ctypes.byref(error)), error)
    try:
        return _parsed(library.dr_plan_text(made).decode())
    finally:
        library.dr_plan_destroy(made)


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> Plan:
    return Plan(text)


def as_plan(plan: Union[str, Plan]) -> Plan:
    return plan if isinstance(plan, Plan) else _parsed(plan) if isinstance(plan, str) else Plan(plan)


def presets() -> Dict[str, str]:
    """{name: text of the plan}: methods of the literature. Plan, and every argument `plan`, accepts the name.

    Stages after a name replace stages of the preset. Combinations without a sparsifier, such as "BF-P0", have topr(ratio=0.01)
    unless a sparsifier follows.

    >>> deepreduce.presets()["terngrad"]
    'index=all value=ternary'
    >>> deepreduce.Plan("BF-P0 sparsify=topr(ratio=0.1)")
    Plan('sparsify=topr(ratio=0.1) index=bloom(policy=p0,fpr=0.001) value=raw')
    """
    library = _library.load()
    names = [text(read(library.dr_preset_at(i), _abi.dr_preset).name) for i in range(library.dr_preset_count())]
    return {name: str(Plan(name)) for name in names}


# ---- Codecs -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a codec, as plans name it.

    type     "int", "real" or "choice"
    range    minimum and maximum of a number, inclusive
    default  None if the parameter is required, or if the codec computes it
    choices  the words of a choice
    """

    name: str
    type: str
    range: Optional[Tuple[float, float]]
    default: Union[None, int, float, str]
    choices: Tuple[str, ...]
    required: bool
    summary: str


@dataclasses.dataclass(frozen=True)
class Codec:
    """A codec; or a sparsifier or feedback, which are listed like codecs but have no payload.

    name    its name in plans; "plugin.rice" for a plug-in's codec if a built-in is rice
    role    "index", "value", "order", "bytes", "sparsify" or "feedback"
    traits  the names of DR_EXACT and so on in codec.h, in lower case
    dtypes  types of values that it accepts, where that has a meaning
    """

    name: str
    role: str
    id: int
    summary: str
    traits: Tuple[str, ...]
    dtypes: Tuple[str, ...]
    parameters: List[Parameter]


_ROLES = {
    _abi.DR_ROLE_INDEX: "index",
    _abi.DR_ROLE_VALUE: "value",
    _abi.DR_ROLE_ORDER: "order",
    _abi.DR_ROLE_BYTES: "bytes",
    _abi.DR_ROLE_PAIR: "pair",
    _abi.DR_ROLE_SPARSIFY: "sparsify",
    _abi.DR_ROLE_FEEDBACK: "feedback",
}
_TRAITS = {
    _abi.DR_EXACT: "exact",
    _abi.DR_REPLACES_SUPPORT: "replaces_support",
    _abi.DR_REORDERS: "reorders",
    _abi.DR_CARRIES_ORDER: "carries_order",
    _abi.DR_LINEAR: "linear",
    _abi.DR_FIXED_SIZE: "fixed_size",
    _abi.DR_NEEDS_FINITE: "needs_finite",
    _abi.DR_SHARED_RANDOM: "shared_random",
    _abi.DR_PRIVATE_RANDOM: "private_random",
    _abi.DR_HOST_ONLY: "host_only",
    _abi.DR_TOTAL: "total",
    _abi.DR_PREFIX: "prefix",
    _abi.DR_NEEDS_BASE: "needs_base",
    _abi.DR_NEEDS_HISTORY: "needs_history",
}
_PARAM_TYPES = {_abi.DR_PARAM_INT: "int", _abi.DR_PARAM_REAL: "real", _abi.DR_PARAM_CHOICE: "choice"}


def codecs() -> List[Codec]:
    """All codecs, in the order of registration: first the library's own, then those of plug-ins.

    >>> rice = next(codec for codec in deepreduce.codecs() if codec.name == "rice")
    >>> rice.role, [(p.name, p.type, p.range, p.default) for p in rice.parameters]
    ('index', [('block', 'int', (9, 13), 12)])
    """
    library = _library.load()
    found = []
    taken = set()
    for position in range(library.dr_codec_count()):
        codec = read(library.dr_codec_at(position), _abi.dr_codec)
        role, name = _ROLES.get(codec.role, "?"), text(codec.name)
        found.append(
            Codec(
                name=f"plugin.{name}" if (role, name) in taken else name,
                role=role,
                id=codec.id,
                summary=text(codec.summary),
                traits=tuple(name for bit, name in _TRAITS.items() if codec.traits & bit),
                dtypes=tuple(name for code, name in NAMES.items() if codec.dtypes >> code & 1),
                parameters=_parameters(codec),
            )
        )
        taken.add((role, name))
    return found


def load_plugin(path: Union[str, os.PathLike[str]]) -> None:
    """Loads a shared object with codecs and registers them for the rest of the process. Loading it again has no effect.

    Raises Unsupported if it cannot be loaded or has another version; ArgumentError if an id is in use, or a name by another
    plug-in. Warns if a built-in codec has the name: then "plugin.NAME" is the plug-in's. Plans may always write "plugin.NAME",
    which has the same meaning in later releases, whatever codecs they build in.

    >>> deepreduce.load_plugin("/nonexistent/libcodec.so")
    Traceback (most recent call last):
    deepreduce.errors.Unsupported: ...
    """
    error = new(_abi.dr_error)
    check(_library.load().dr_plugin_load(c_string(os.fspath(path), "path"), ctypes.byref(error)), error)
    if note := text(error.message):
        warnings.warn(f"{os.fspath(path)!r}: {note}", stacklevel=2)


def _parameters(codec: _abi.dr_codec) -> List[Parameter]:
    if not codec.param_count:
        return []
    # The stride is the size of the struct in the plug-in's version of the header.
    address = ctypes.addressof(codec.params.contents)
    stride = codec.params[0].struct_size
    found = []
    for i in range(codec.param_count):
        param = read(ctypes.cast(address + i * stride, ctypes.POINTER(_abi.dr_param)), _abi.dr_param)
        kind = _PARAM_TYPES.get(param.type, "?")
        choices = tuple(text(param.choices).split("|")) if kind == "choice" else ()
        default: Union[None, int, float, str] = None
        if not param.required and math.isfinite(param.fallback):
            default = choices[int(param.fallback)] if choices else _number(param.fallback, kind)
        found.append(
            Parameter(
                name=text(param.name),
                type=kind,
                range=None if choices else (_number(param.minimum, kind), _number(param.maximum, kind)),
                default=default,
                choices=choices,
                required=bool(param.required),
                summary=text(param.summary),
            )
        )
    return found


def _number(value: float, kind: str) -> float:
    return int(value) if kind == "int" and math.isfinite(value) else value
