"""grace_from_params: a communicator from a dict of parameters, with GRACE's keys, values and defaults."""

from __future__ import annotations

import difflib
import warnings
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Type

from deepreduce.errors import ArgumentError
from .collectives import Allgather, Allreduce, AllToAll, Broadcast
from .contracts import Communicator, Compressor, Params
from .low_rank import PowerSGDMemory
from .memories import DgcMemory, EFSignSGDMemory, NoneMemory, ResidualMemory
from .method_table import DEFAULTS, METHODS, SYNONYMS, TOP_K_KERNELS

# Keys that deepreduce_from_params reads, or that scripts pass to it and that have no effect here.
DEEPREDUCE_KEYS = (
    "deepreduce", "value", "index", "fpr", "policy", "poly_degree", "sort", "micro-benchmark", "hash_table", "dense_tensor",
)  # fmt: skip

Makers = Mapping[str, Callable[[Dict[str, Any]], Any]]


class UnknownName(ArgumentError, NotImplementedError):
    """The name of a compressor, memory or communicator is not known. GRACE raises NotImplementedError."""


MEMORIES: Makers = {
    "none": lambda params: NoneMemory(),
    "residual": lambda params: ResidualMemory(params["beta"], params["gamma"]),
    "efsignsgd": lambda params: EFSignSGDMemory(params["lr"]),
    "dgc": lambda params: DgcMemory(
        params["momentum"], params["gradient_clipping"], params["world_size"], group=params["group"]
    ),
    "powersgd": lambda params: PowerSGDMemory(compress_rank=params["compress_rank"]),
}

COMMUNICATORS: Mapping[str, Type[Communicator]] = {
    "allreduce": Allreduce, "allgather": Allgather, "broadcast": Broadcast, "alltoall": AllToAll,
}  # fmt: skip


def named(what: str, name: object, names: Iterable[str]) -> str:
    """Returns `name` if it is one of `names`; otherwise raises UnknownName."""
    known = list(names)
    if name not in known:
        raise UnknownName(f"no {what} is called {name!r}; there are: {', '.join(known)}")
    return str(name)


def compressor_from(params: Params) -> Compressor:
    """The compressor of checked parameters."""
    name = named("compressor", params["compressor"], [*METHODS, *SYNONYMS])
    if name == "topk":
        named("kernel of topk", params["kernel"], TOP_K_KERNELS)
    return METHODS[SYNONYMS.get(name, name)].make(params)


def require_params(params: object) -> None:
    if not isinstance(params, Mapping):
        raise ArgumentError(f"params is {params!r}, not a dict of parameters")


def checked(params: Params, lenient: bool = False) -> Dict[str, Any]:
    """The parameters, with defaults for missing ones, and with numbers converted to int or float.

    Raises ArgumentError for what is not a dict, for an unknown key (lenient: a UserWarning), and for a value that must be a number and
    is not.
    """
    require_params(params)
    found = dict(DEFAULTS)
    for key, value in params.items():
        if key not in DEFAULTS and key not in DEEPREDUCE_KEYS:
            close = difflib.get_close_matches(str(key), [*DEFAULTS, *DEEPREDUCE_KEYS], 1)
            words = f"parameter {key!r} is not known" + (f"; is it {close[0]!r}?" if close else "")
            if not lenient:
                raise ArgumentError(words)
            warnings.warn(words, UserWarning, stacklevel=4)
        found[key] = value
    for key, default in DEFAULTS.items():
        if isinstance(default, (int, float)) and not isinstance(default, bool):
            try:
                found[key] = type(default)(found[key])
                if found[key] != float(params.get(key, default)):
                    raise ValueError
            except (TypeError, ValueError, OverflowError):
                kind = "an integer" if isinstance(default, int) else "a number"
                raise ArgumentError(f"{key} is {params[key]!r}, not {kind}") from None
    return found


def grace_from_params(
    params: Params,
    *,
    lenient: bool = False,
    make_compressor: Callable[[Params], Compressor] = compressor_from,
) -> Communicator:
    """A communicator, with compressor and memory.

    params   GRACE's keys: compressor, memory, communicator, world_size, compress_ratio, threshold, quantum_num, bucket_size,
             momentum, gradient_clipping, lr, compress_rank, quantiles, error_bound, kernel; and beta, gamma (memory
             residual), clip (terngrad), rounding (natural), sparsity (3lc), plan (compressor plan), seed, group, rank.
             All are optional
    lenient  an unknown key is a UserWarning. GRACE ignores it silently

    Raises UnknownName, ArgumentError (an unknown key, an invalid value, a compressor that cannot be combined with the memory
    or the communicator), Unsupported and ArgumentError for a codec that the loaded library does not have.

    >>> import deepreduce.grace
    >>> grc = deepreduce.grace.grace_from_params({"compressor": "topk", "memory": "residual", "communicator": "allgather"})
    >>> deepreduce.grace.grace_from_params({"compressor": "topk", "memory": "residual"})
    Traceback (most recent call last):
    deepreduce.errors.ArgumentError: Allreduce cannot be combined with Sparsifier: its payloads cannot be added up: ...
    """
    chosen = checked(params, lenient)
    if chosen.get("deepreduce") and not lenient:
        raise ArgumentError(f"deepreduce = {chosen['deepreduce']!r} is a key of deepreduce_from_params")
    compressor = make_compressor(chosen)
    memory = MEMORIES[named("memory", chosen["memory"], MEMORIES)](chosen)
    kind = COMMUNICATORS[named("communicator", chosen["communicator"], COMMUNICATORS)]
    more: Dict[str, Optional[int]] = {"rank": chosen["rank"]} if kind is Broadcast else {}
    communicator: Communicator = kind(compressor, memory, chosen["world_size"], group=chosen["group"], **more)
    return communicator
