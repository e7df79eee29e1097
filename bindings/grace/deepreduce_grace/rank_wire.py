"""Collectives of bytes and numbers over torch.distributed, and the agreement of ranks that one of them has failed.

A deepreduce.Sender has this agreement in the headers of its slots. GRACE's payloads have no header: they are tensors of any user's
compressor, which may raise any exception before it returns them.
"""

from __future__ import annotations

import contextlib
import zlib
from typing import Iterator, List, Optional, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from deepreduce.errors import ArgumentError, CorruptFrame, Error, OutOfStep, PeerError
from deepreduce.torch._engine import Engine
from .contracts import global_rank, rank_of

REFUSED = -1  # in place of a size: this rank sends no payload
_TEXT_SIZE = 512  # bytes of a reason or a form


class Wire:
    """Collectives of a group for the bytes of a tensor, in the memory that the backend requires: a GPU's for NCCL, else the CPU's.

    name  of the tensor, in errors
    """

    def __init__(self, group: Optional[dist.ProcessGroup], name: str) -> None:
        self.group, self.name, self.size, self.rank = group, name, dist.get_world_size(group), rank_of(group)
        backend = str(dist.get_backend(group))
        self.device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """For a `with` around collectives: converts errors of torch to deepreduce.torch's MissingRank, which names the ranks that do
        not answer, or to its ExchangeError if all ranks answer."""
        try:
            yield
        except RuntimeError as error:
            raise Engine(self.group, _timeout_of(self.group, self.device)).explained(self.name, error) from error

    def wait(self, works: Sequence[dist.Work]) -> None:
        with self.explained():
            for work in works:
                work.wait()

    def all_reduce(self, tensor: Tensor) -> None:
        """The sum over ranks, in place."""
        with self.explained():
            dist.all_reduce(tensor, group=self.group)

    def require_sizes(self, sizes: Sequence[int], limits: Sequence[Optional[int]]) -> None:
        """CorruptFrame, with the rank, for a size that a payload cannot have. All ranks receive the same sizes, so all raise it, and none
        allocates the memory. limits: maximum bytes of the ranks' payloads; None: not known"""
        for rank, (size, limit) in enumerate(zip(sizes, limits)):
            if size < 0 or (limit is not None and size > limit):
                expected = "" if limit is None else f", not 0 to {limit}"
                raise CorruptFrame(f"{self.name}: it reports a payload of {size} bytes{expected}", frame=rank)

    def gather_numbers(self, numbers: Sequence[int]) -> List[List[int]]:
        """The numbers of all ranks."""
        own = torch.tensor(list(numbers), dtype=torch.int64, device=self.device)
        return [row.tolist() for row in self._gather(own)]

    def raise_failure(self, error: Optional[Exception]) -> None:
        """Exchanges the reasons, and raises on all ranks. All ranks call it, when they know that one of them refused the tensor.

        error  this rank's own, which it raises; None: it raises PeerError, which names the rank that has one
        """
        reasons = self._gather_texts("" if error is None else reason(self.name, error))
        failed = [rank for rank, text in enumerate(reasons) if text]
        if isinstance(error, Error):
            error.rank = global_rank(self.group, self.rank)
        if error is not None:
            raise error
        if not failed:
            raise PeerError(f"a rank refused {self.name} and reported no reason")
        others = ", ".join(str(global_rank(self.group, rank)) for rank in failed[1:])
        first = global_rank(self.group, failed[0])
        raised = PeerError(f"rank {first}: {reasons[failed[0]]}" + (f" (ranks {others} failed, too)" if others else ""))
        raised.rank = first
        raise raised

    def agree_on(self, size: int, error: Optional[Exception], form: str, unit: str = "bytes") -> None:
        """At the first step of a tensor whose payloads have one size: raises, on all ranks, if the sizes differ.

        form  as for `gather_sizes`
        """
        sizes = self.gather_sizes(size, error, form)
        if REFUSED in sizes:
            self.raise_failure(error)
        if len(set(sizes)) > 1:
            found = ", ".join(f"rank {global_rank(self.group, rank)} {number}" for rank, number in enumerate(sizes))
            raise ArgumentError(f"{self.name}: the ranks' payloads must have one size, but have {unit}: {found}")

    def gather_sizes(self, size: int, error: Optional[Exception], form: str) -> List[int]:
        """The sizes of all ranks' payloads, or REFUSED.

        form  a description of what this rank sends, the same on all ranks: otherwise one would wait for a message that another does
              not send. If they differ, all ranks raise ArgumentError with the forms
        """
        rows = self.gather_numbers([REFUSED if error else size, zlib.crc32(form.encode())])
        if len({form for size, form in rows if size != REFUSED}) > 1 and all(size != REFUSED for size, _ in rows):
            forms = self._gather_texts(form)
            other = next(rank for rank, text in enumerate(forms) if text != forms[0])
            found = ", ".join(f"rank {global_rank(self.group, rank)} sends {forms[rank]}" for rank in (0, other))
            raise ArgumentError(f"{self.name}: {found}: compressor and communicator must be the same on all ranks")
        return [size for size, _ in rows]

    def _gather_texts(self, text: str) -> List[str]:
        """The texts of all ranks, cut to _TEXT_SIZE bytes."""
        data = text.encode()[:_TEXT_SIZE].ljust(_TEXT_SIZE, b"\0")
        own = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)
        return [bytes(row.tolist()).rstrip(b"\0").decode(errors="ignore") for row in self._gather(own)]

    def _gather(self, own: Tensor) -> List[Tensor]:
        gathered = [torch.empty_like(own) for _ in range(self.size)]
        with self.explained():
            dist.all_gather(gathered, own, group=self.group)
        return gathered


def compare_tags(tags: Sequence[int], group: Optional[dist.ProcessGroup]) -> None:
    """Raises a sender's error, the same on all ranks, if the tags of the ranks' frames differ."""
    ranks = [global_rank(group, rank) for rank in range(len(tags))]
    names, steps = [tag >> 32 for tag in tags], [tag % 2**32 for tag in tags]
    other = next((rank for rank, name in enumerate(names) if name != names[0]), None)
    if other is not None:
        words = f"rank {ranks[other]} sends other tensors than rank {ranks[0]} at this point: steps are called in another order there"
        error = ArgumentError(words)
        error.rank = ranks[other]
        raise error
    late = [rank for rank, step in enumerate(steps) if step < max(steps)]
    if not late:
        return
    source = steps.index(max(steps))
    found = ", ".join(f"rank {ranks[rank]} is at step {steps[rank]}" for rank in late)
    behind = OutOfStep(f"{found}, rank {ranks[source]} at step {steps[source]}: load states of one step on all ranks")
    behind.rank, behind.ranks, behind.source = ranks[late[0]], tuple(ranks[rank] for rank in late), ranks[source]
    raise behind


def _timeout_of(group: Optional[dist.ProcessGroup], device: torch.device) -> float:
    """The timeout of the group's collectives, in seconds; torch's default if its backend has none."""
    backend = (dist.group.WORLD if group is None else group)._get_backend(device)
    limit = getattr(getattr(backend, "options", None), "_timeout", dist.default_pg_timeout)
    return float(limit.total_seconds())


def reason(name: str, error: Exception) -> str:
    words = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
    return words if name and words.startswith(name) else f"{name}: {words}"


def other_size(name: str, found: int, agreed: int, unit: str = "bytes") -> ArgumentError:
    return ArgumentError(
        f"{name}: the payload has {found} {unit}, before it had {agreed}: the size of a name's payload must not change;"
        f" the communicator's reset({name!r}) forgets it"
    )
