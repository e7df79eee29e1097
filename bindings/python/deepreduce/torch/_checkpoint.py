"""deepreduce.torch: loads an exchange from a checkpoint of torch.distributed.checkpoint, on any number of ranks."""

from __future__ import annotations

import os
import re
import warnings
from typing import Any, Dict, List, Optional, Tuple, Union

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from .._native._types import SavedState
from ..errors import ArgumentError
from ._engine import Engine
from ._saved import OF_ITS_RANK, Saved, numbers_of, require_group, state_for_new_rank


def load_checkpoint(
    exchange: Saved,
    checkpoint: Union[str, os.PathLike[str], dcp.StorageReader],
    key: str = "hook",
    group: Optional[dist.ProcessGroup] = None,
) -> None:
    """Loads a DDPHook, an AllReduce or a ReduceScatter from what dcp.save({key: exchange, …}) wrote, on any number of
    ranks, before or after it knows its tensors. Each rank calls it; it is not a collective.

    checkpoint  its folder, or a StorageReader of it
    group       the group that the exchange will have, if it does not know it yet. None: the group that saved this rank's part

    Residuals are distributed as load_state_dict says: with fewer ranks than before, rank r of m receives those of ranks r,
    r + m, …; with more, the residuals of new ranks begin at zero. Those of a ReduceScatter are of one number of ranks, and are
    refused with another one. A checkpoint of several groups is loaded by the same groups. Raises what load_state_dict raises,
    and ArgumentError for a checkpoint without that key.

        dcp.save({"model": model, "hook": hook}, checkpoint_id="step100")
        …
        dcp.load({"model": model}, checkpoint_id="step100")
        deepreduce.torch.load_checkpoint(hook, "step100")
    """
    reader = checkpoint if isinstance(checkpoint, dcp.StorageReader) else dcp.FileSystemReader(checkpoint)
    metadata = reader.read_metadata()
    paths: Dict[str, Tuple[Any, ...]] = {
        name: path[1:] for name, path in (metadata.planner_data or {}).items() if path[0] == key and len(path) > 1
    }
    if not paths:
        keys = sorted({str(path[0]) for path in (metadata.planner_data or {}).values()})
        raise ArgumentError(f"the checkpoint has no {key}, but {', '.join(keys)}")
    there = sorted(int(found[1]) for found in (re.fullmatch(r"rank(\d+)", str(first)) for first in {path[0] for path in paths.values()}) if found)
    known = exchange._engine.group if exchange._engine else group or getattr(exchange, "_group", None)
    members, this = Engine(known, 0).members, dist.get_rank()
    first = f"rank{this if this in there else min(there, default=0)}"
    saved = next((_filled({name: None}, reader)[name] for name, path in paths.items() if path == (first, "group")), None)
    if saved is not None:
        require_group(first, saved)
        if known is None and this in there:
            members = saved
    rank, size = members.index(this), len(members)
    numbers = numbers_of(there, saved, members)
    new = bool(there) and rank not in numbers
    of_parts = {f"rank{number}" for at, number in numbers.items() if (at == min(numbers) if new else at % size == rank)}
    asked: SavedState = {}
    for name, path in paths.items():
        if len(path) > 1 and (path[0] not in of_parts or (new and path[1] in OF_ITS_RANK)):
            continue
        entry = metadata.state_dict_metadata[name]
        is_tensor = isinstance(entry, TensorStorageMetadata)
        asked[name] = torch.empty(entry.size, dtype=entry.properties.dtype) if is_tensor else None
    state = _nested([(paths[name], value) for name, value in _filled(asked, reader).items()])
    if len(numbers) < len(there):
        state["several"] = True  # groups, if this rank's is not known yet
    for part in of_parts:
        state.setdefault(part, {}).setdefault(exchange._state_key, {})
    exchange.load_state_dict(state_for_new_rank(state) if new else state)


def _filled(asked: SavedState, reader: dcp.StorageReader) -> SavedState:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that it runs without the other ranks, which is intended
        dcp.load(asked, storage_reader=reader, no_dist=True)
    return asked


def _nested(leaves: List[Tuple[Tuple[Any, ...], Any]]) -> Any:
    """Nested dicts; a dict whose keys are numbers becomes a list."""
    groups: Dict[Any, List[Tuple[Tuple[Any, ...], Any]]] = {}
    for path, value in leaves:
        if not path:
            return value
        groups.setdefault(path[0], []).append((path[1:], value))
    made = {first: _nested(rest) for first, rest in groups.items()}
    return [made[i] for i in sorted(made)] if made and all(isinstance(index, int) for index in made) else made
