"""Plans; the codecs that they name."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import numbers
import operator
from typing import Dict, Mapping, Optional, Sequence, Tuple, Union

from ._native import _abi, _library
from ._native._call import c_string, check, check_plan, destroy, new, read, real, text
from ._native._codec_list import Codec as Codec
from ._native._codec_list import Parameter as Parameter
from ._native._codec_list import codecs as codecs
from ._native._codec_list import load_plugin as load_plugin
from ._native._memory import NAMES
from ._native._stages import Stage as Stage
from ._native._stages import Stages as Stages
from ._native._stages import read_stages as read_stages
from ._native._stages import stages_of
from .errors import PlanError


@dataclasses.dataclass(frozen=True)
class PlanInfo:
    """Properties of a plan (Plan.info). Its repr lists those that the plan has.

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

    def __repr__(self) -> str:
        found = [name for name in _PLAN_FLAGS if getattr(self, name)]
        return f"<PlanInfo {', '.join(found) or 'without properties'}; of {', '.join(self.dtypes)}>"


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
    Raises PlanError, an ArgumentError, for a text that is not a plan.

    >>> plan = deepreduce.Plan("index=golomb(block=12)   sparsify=topr(ratio=0.010)")
    >>> str(plan)
    'sparsify=topr(ratio=0.01) index=golomb value=raw'
    >>> plan == deepreduce.Plan("index=golomb sparsify=topr(ratio=0.01)")
    True
    """

    __slots__ = ("handle", "_text", "_destroy", "_draws", "_stages", "warned")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise PlanError(f"the text of a plan is a str, not a {type(text).__name__}")
        library = _library.load()
        self.handle = ctypes.POINTER(_abi.dr_plan)()
        self._destroy = library.dr_plan_destroy
        error = new(_abi.dr_error)
        status = library.dr_plan_parse(c_string(text, "the plan", PlanError), ctypes.byref(self.handle), ctypes.byref(error))
        check_plan(status, error)
        self._text: str = library.dr_plan_text(self.handle).decode()
        self._draws: Optional[bool] = None
        self._stages: Optional[Stages] = None
        self.warned = False  # about drawing the same numbers twice (encode)

    @property
    def draws(self) -> bool:
        """Whether what encode sends depends on random numbers. Computed once.

        Of Bloom filters only policy p1 draws, and `natural` only with rounding=stochastic; `info` says that they may.
        """
        if self._draws is None:
            index, value = self.stages.get("index"), self.stages.get("value")
            without_draws = []
            if index is not None and index.name == "bloom" and index.parameters["policy"] != "p1":
                without_draws.append("index=golomb")
            if value is not None and value.name == "natural" and value.parameters["rounding"] == "nearest":
                without_draws.append("value=raw")
            info = self.with_stages(" ".join(without_draws)).info if without_draws else self.info
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
        return _beside("dr_plan_with", self, c_string(stages, "stages", PlanError))

    def with_(self, **changes: Union[int, float, str, None]) -> Plan:
        """This plan with other parameters, or other stages. Raises PlanError, Unsupported.

        changes  a parameter of one of its stages and the value, ratio=0.1; None is the default. Or the role of a stage and what
                 follows it in a plan's text, value="qsgd(levels=7)"

        >>> plan = deepreduce.Plan("sparsify=topr(ratio=0.01) feedback=residual index=golomb value=log_quant")
        >>> plan.with_(ratio=0.1, bits=3)
        Plan('sparsify=topr(ratio=0.1) feedback=residual index=golomb value=log_quant(bits=3)')
        >>> plan.with_(ratio=None, count=100, value="half")
        Plan('sparsify=topr(count=100) feedback=residual index=golomb value=half')
        """
        roles = {role: f"{role}={value}" for role, value in changes.items() if role in self.stages and isinstance(value, str)}
        parameters = {name: value for name, value in changes.items() if name not in roles}
        changed: Dict[str, Dict[str, Union[int, float, str, None]]] = {}
        for name, value in parameters.items():
            changed.setdefault(self._role_with(name, sorted(roles)), {})[name] = value
        texts = [*roles.values(), *(_changed(self.stages[role], new) for role, new in changed.items())]
        return self.with_stages(" ".join(texts)) if texts else self

    def _role_with(self, name: str, replaced: Sequence[str]) -> str:
        """The role of the stage that has a parameter, other than those that are replaced."""
        stages = [stage for role, stage in self.stages.items() if role not in replaced]
        found = [stage for stage in stages if any(name in codec.parameters for codec in (stage, *stage.behind))]
        if not found and name in self.stages:
            raise PlanError(f"'{name}' is the role of a stage: pass what follows it in a plan's text, {name}=\"{self.stages[name].name}\"")
        if not found:
            names = sorted({parameter for stage in stages for codec in (stage, *stage.behind) for parameter in codec.parameters})
            raise PlanError(f"'{name}' is neither a parameter of '{self}' nor the role of a stage; it has: {', '.join(names)}")
        if len(found) > 1:
            ways = " or ".join(f'{stage.role}="{stage.name}({name}=…)"' for stage in found)
            raise PlanError(f"'{name}' is a parameter of {len(found)} stages of '{self}': pass {ways}")
        return found[0].role

    @property
    def exact(self) -> Plan:
        """The plan for tensors that are too small for this plan, beside others that have it (`dense_below`).

        It sends all elements exactly, with the same weight of the gradient and the same momentum. With merge=vote or
        transform=lowrank it is this plan. A transform=dct stays, and rounds.

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
            destroy(self.handle, self._destroy)


def _changed(stage: Stage, changes: Mapping[str, Union[int, float, str, None]]) -> str:
    """The text of a stage with other parameters; None is a parameter's default."""
    codecs = []
    for codec in (stage, *stage.behind):
        parameters = {name: codec.parameters[name] for name in codec.given}
        for name, value in changes.items():
            if name in codec.parameters:
                parameters.pop(name, None)
                if value is not None:
                    parameters[name] = value
        words = ",".join(f"{name}={_word(name, value)}" for name, value in parameters.items())
        codecs.append(f"{codec.name}({words})" if words else codec.name)
    return f"{stage.role}={'+'.join(codecs)}"


def _word(name: str, value: Union[int, float, str]) -> str:
    """A parameter's value as plans write it."""
    if isinstance(value, str):
        return value
    try:
        return str(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        number = real(value, name)
        return str(value) if isinstance(value, numbers.Real) else repr(number)


@functools.lru_cache(maxsize=256)
def _beside(derive: str, plan: Plan, *more: bytes) -> Plan:
    """A plan that a function of the library derives from this one; for equal texts the same object."""
    library, made, error = _library.load(), ctypes.POINTER(_abi.dr_plan)(), new(_abi.dr_error)
    check_plan(getattr(library, derive)(plan.handle, *more, ctypes.byref(made), ctypes.byref(error)), error)
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
