"""deepreduce.torch: the time by which the slowest rank of a training step is behind rank 0, if all ranks record.

Ranks send their times through the process group's store, and rank 0 waits for them with a timeout. A collective would hang
if only one rank records, or if one ends early.
"""

from __future__ import annotations

import collections
import datetime
import json
import statistics
from typing import Counter, List, NamedTuple, Optional, Sequence

import torch.distributed as dist

_WAIT = datetime.timedelta(seconds=10)
_recordings: Counter[str] = collections.Counter()


class Skew(NamedTuple):
    ranks: int
    seconds: float


def skew_of(steps: Sequence[Sequence[float]]) -> Optional[float]:
    """The median of the slowest rank's step times less the median of rank 0's; at least 0. steps: for each rank, seconds per step"""
    together = list(zip(*steps))
    if not together:
        return None
    behind: float = statistics.median(max(times) for times in together) - statistics.median(times[0] for times in together)
    return max(0.0, behind)


class Peers:
    """The ranks that record the same model. name: the name of the recording, the same on all ranks"""

    def __init__(self, name: str, group: object = None) -> None:
        self._store: dist.Store = None
        if not dist.is_initialized():
            return
        self._ranks = dist.get_process_group_ranks(group) if group is not None else list(range(dist.get_world_size()))
        _recordings[name] += 1
        self._key = f"deepreduce/record/{name}/{_recordings[name]}"
        try:
            self._store = dist.distributed_c10d._get_default_store()
            self._set("there", "")
        except (RuntimeError, ValueError):  # the backend has no store, or the store is closed
            self._store = None

    def skew(self, steps: List[float]) -> Optional[Skew]:
        """Sends this rank's step times. Returns the skew on rank 0 if all ranks send theirs in time; otherwise, and elsewhere, None."""
        if self._store is None or not dist.is_initialized() or len(self._ranks) < 2:
            return None
        try:
            rank = dist.get_rank()
            if rank != 0:
                self._set("steps", json.dumps(steps))
                return None
            others = [other for other in self._ranks if other != 0]
            if not self._store.check([self._key_of("there", other) for other in others]):
                return None
            keys = [self._key_of("steps", other) for other in others]
            self._store.wait(keys, _WAIT)
            seconds = skew_of([steps, *(json.loads(self._store.get(key)) for key in keys)])
        except (RuntimeError, ValueError):  # a timeout, or the store is closed
            return None
        return None if seconds is None else Skew(len(self._ranks), seconds)

    def _key_of(self, what: str, rank: int) -> str:
        return f"{self._key}/{what}/{rank}"

    def _set(self, what: str, text: str) -> None:
        self._store.set(self._key_of(what, dist.get_rank()), text)
