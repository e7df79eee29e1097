"""The list of codecs, and plug-ins that add to it."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import os
import warnings
from typing import List, Optional, Tuple, Union

from . import _abi, _library
from ._call import c_string, check, new, read, text
from ._memory import NAMES


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
    check(_library.load().dr_plugin_load(c_string(path, "path"), ctypes.byref(error)), error)
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
