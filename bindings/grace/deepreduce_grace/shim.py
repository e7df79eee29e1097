"""Modules named grace_dl for code that imports GRACE, if GRACE is not installed. Only on request:

    import deepreduce.grace.shim
    deepreduce.grace.shim.install()

    python -m deepreduce.grace.shim script.py …      runs an unchanged script with them

grace_dl.dist and grace_dl.torch have helper, communicator.*, compressor.* and memory.*, with GRACE's names and constructor arguments,
over torch.distributed. grace_dl.tensorflow is refused: it needs Horovod.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import pathlib
import runpy
import sys
import types
from typing import Dict, List, Optional, Sequence, Type

from deepreduce import __version__
from deepreduce.errors import ArgumentError
from . import collectives, contracts, low_rank, memories, meters, pairs, wrappers
from .contracts import Communicator, Compressor, Options, Params
from .factory import compressor_from, grace_from_params
from .method_table import DEFAULTS, METHODS, SYNONYMS

_NAME = "grace_dl"


Contents = Dict[str, Options]  # name of a module -> its attributes


def _compressor(params: Params) -> Compressor:
    """compressor_from, but sparsifiers of GRACE have its public payloads."""
    name = SYNONYMS.get(params["compressor"], params["compressor"])
    if name == "topk":
        return pairs.TopKCompressor(params["compress_ratio"], params["kernel"])
    if name == "threshold":
        return pairs.ThresholdCompressor(params["threshold"])
    if name == "dgc":
        return pairs.DgcCompressor(params["compress_ratio"])
    return compressor_from(params)


def shim_grace_from_params(params: Params) -> Communicator:
    """grace_from_params as in GRACE's helper: an unknown key is a UserWarning."""
    return grace_from_params(params, lenient=True, make_compressor=_compressor)


def shim_deepreduce_from_params(params: Params) -> Communicator:
    """deepreduce_from_params as DeepReduce's scripts call it: an unknown key is a UserWarning."""
    return wrappers.deepreduce_from_params(params, lenient=True, make_compressor=_compressor)


def _class(name: str, compressor: str, *keys: str) -> Type[Compressor]:
    """A class of GRACE: a compressor with its name and its arguments, `keys`."""
    method = METHODS[compressor]

    def init(self: Compressor, *args: object, **named: object) -> None:
        if len(args) > len(keys) or set(named) - set(keys[len(args) :]):
            raise TypeError(f"{name} accepts {', '.join(keys) or 'no arguments'}")
        params = {**DEFAULTS, **dict(zip(keys, args)), **named}
        method.kind.__init__(self, **method.arguments(params))

    contents = {"__init__": init, "__doc__": f"{compressor!r} of deepreduce.grace. Arguments: {', '.join(keys) or 'none'}."}
    return type(name, (method.kind,), contents)


_COMPRESSORS: Contents = {
    "none": {"NoneCompressor": _class("NoneCompressor", "none")},
    "fp16": {"FP16Compressor": _class("FP16Compressor", "fp16")},
    "topk": {"TopKCompressor": pairs.TopKCompressor},
    "threshold": {"ThresholdCompressor": pairs.ThresholdCompressor},
    "dgc": {"DgcCompressor": pairs.DgcCompressor},
    "randomk": {"RandomKCompressor": _class("RandomKCompressor", "randomk", "compress_ratio")},
    "qsgd": {
        name: _class(name, "qsgd", "quantum_num", "bucket_size") for name in ("QSGDCompressor", "QSGDCompressor_CUDA")
    },
    "terngrad": {"TernGradCompressor": _class("TernGradCompressor", "terngrad")},
    "onebit": {"OneBitCompressor": _class("OneBitCompressor", "onebit")},
    "signsgd": {"SignSGDCompressor": _class("SignSGDCompressor", "signsgd")},
    "signum": {"SignumCompressor": _class("SignumCompressor", "signum", "momentum")},
    "efsignsgd": {"EFSignSGDCompressor": _class("EFSignSGDCompressor", "efsignsgd", "lr")},
    "natural": {name: _class(name, "natural") for name in ("NaturalCompressor", "NaturalCompressor_CUDA")},
    "powersgd": {"PowerSGDCompressor": low_rank.PowerSGDCompressor},
    "deepreduce": {
        "deepreduce_from_params": shim_deepreduce_from_params,
        **{kind.__name__: kind for kind in (wrappers.ValueCompressor, wrappers.IndexCompressor, wrappers.DeepReduce)},
    },
}
_MEMORIES: Contents = {
    "none": {"NoneMemory": memories.NoneMemory},
    "residual": {"ResidualMemory": memories.ResidualMemory},
    "efsignsgd": {"EFSignSGDMemory": memories.EFSignSGDMemory},
    "dgc": {"DgcMemory": memories.DgcMemory},
    "powersgd": {"PowerSGDMemory": low_rank.PowerSGDMemory},
}
_COMMUNICATORS: Contents = {
    "allreduce": {"Allreduce": collectives.Allreduce},
    "allgather": {"Allgather": collectives.Allgather},
    "broadcast": {"Broadcast": collectives.Broadcast},
}
_HELPER: Options = {
    "grace_from_params": shim_grace_from_params,
    "deepreduce_from_params": shim_deepreduce_from_params,
    "tensor_bits": meters.tensor_bits,
    "timer": meters.timer,
    "volume": meters.volume,
}


def _contents() -> Contents:
    """The contents of all modules."""
    found: Contents = {_NAME: {"__version__": "1.0", "__deepreduce__": __version__}}
    for flavour in ("dist", "torch"):
        base = f"{_NAME}.{flavour}"
        found[base] = {"Memory": contracts.Memory, "Compressor": contracts.Compressor, "Communicator": contracts.Communicator}
        found[f"{base}.helper"] = _HELPER
        communicators = dict(_COMMUNICATORS)
        if flavour == "dist":
            communicators["all_to_all"] = {"AllToAll": collectives.AllToAll}
        for kind, modules in (("communicator", communicators), ("compressor", _COMPRESSORS), ("memory", _MEMORIES)):
            found[f"{base}.{kind}"] = {}
            found.update({f"{base}.{kind}.{name}": contents for name, contents in modules.items()})
    return found


class _Refusal(importlib.abc.MetaPathFinder):
    """Raises an explanation for modules of grace_dl that are not supported."""

    def find_spec(self, fullname: str, path: Optional[Sequence[str]] = None, target: object = None) -> None:
        if fullname.startswith(f"{_NAME}.tensorflow"):
            raise ImportError(
                f"{fullname}: GRACE's TensorFlow part needs a patched Horovod, which deepreduce does not support;"
                " deepreduce.grace.shim has grace_dl.dist and grace_dl.torch",
                name=fullname,
            )


_refusal = _Refusal()


def installed() -> bool:
    """Whether the imported grace_dl is the shim."""
    return hasattr(sys.modules.get(_NAME), "__deepreduce__")


def install(force: bool = False) -> None:
    """Adds the modules named grace_dl to sys.modules. If they are there already, it does nothing.

    force  replaces an installed or imported grace_dl in this process; without it that is an ArgumentError
    """
    if installed():
        return
    if not force:
        other = sys.modules.get(_NAME) or importlib.util.find_spec(_NAME)
        if other is not None:
            where = getattr(other, "__file__", None) or getattr(other, "origin", None) or "this process"
            raise ArgumentError(f"grace_dl exists already ({where}); install(force=True) replaces it in this process")
    uninstall()
    _remove_modules()
    for name, contents in _contents().items():
        module = types.ModuleType(name, __doc__)
        module.__path__ = []  # a package, so that its submodules can be imported
        module.__dict__.update(contents)
        sys.modules[name] = module
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, module)
    sys.meta_path.insert(0, _refusal)


def uninstall() -> None:
    """Removes the shim's modules. Objects that were imported from them do not change."""
    if _refusal in sys.meta_path:
        sys.meta_path.remove(_refusal)
    if installed():
        _remove_modules()


def _remove_modules() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == _NAME]:
        del sys.modules[name]


def main(arguments: List[str]) -> None:
    """python -m deepreduce.grace.shim [--force] script.py …"""
    force = arguments[:1] == ["--force"]
    script = arguments[force:]
    if not script:
        raise SystemExit("usage: python -m deepreduce.grace.shim [--force] SCRIPT [ARGUMENTS]")
    # Under -m this module is __main__; install by the module that others import.
    from deepreduce_grace import shim

    # First, so that a grace_dl beside the script is found.
    sys.path[0] = str(pathlib.Path(script[0]).resolve().parent)
    try:
        shim.install(force)
    except ArgumentError as error:
        raise SystemExit(f"deepreduce.grace.shim: {error}") from None
    sys.argv[:] = script
    runpy.run_path(script[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
