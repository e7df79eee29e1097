"""deepreduce.grace: GRACE's interface (Xu et al., ICDCS 2021) over this library. It is a package of its own, deepreduce-grace.

    grc = deepreduce.grace.grace_from_params({"compressor": "topk", "memory": "residual", "communicator": "allgather"})
    for name, parameter in model.named_parameters():
        parameter.grad.copy_(grc.step(parameter.grad, name))

This module hands on what deepreduce_grace has, modules too; deepreduce.grace.shim has modules named grace_dl (docs/GRACE.md).
"""

import importlib
import sys

try:
    import deepreduce_grace
except ModuleNotFoundError as _error:
    if _error.name != "deepreduce_grace":
        raise  # torch, say
    raise ModuleNotFoundError(
        "deepreduce.grace is a package of its own: pip install deepreduce-grace (in a checkout: pip install ./bindings/grace)",
        name="deepreduce_grace",
    ) from None

from deepreduce_grace import *  # noqa: F403

__all__ = deepreduce_grace.__all__

# One and the same, by both names: pickles and programs of before have these.
for _name in ("addable", "collectives", "compressors", "contracts", "factory", "low_rank", "memories", "meters", "method_table", "pairs", "rank_wire", "wrappers"):
    sys.modules[f"{__name__}.{_name}"] = globals()[_name] = importlib.import_module(f"deepreduce_grace.{_name}")
