"""Collectives of bytes and numbers over torch.distributed, and how ranks agree that one of them has failed.

A deepreduce.Sender has this in its slots. GRACE's payloads have no such header: they are any tensors, of any user's compressor, and what
makes them may raise anything before there is one.
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

REFUSED = -1  # in the place of a size: this rank sends nothing
_WORDS = 512  # bytes of a reason


class Wire:
    """Collectives of a tensor's bytes in a group, where its backend wants them: gloo and MPI on the CPU, NCCL on a GPU.

    name  of the tensor, in errors
    """

    def __init__(self, group: Optional[dist.ProcessGroup], name: str) -> None:
        self.group, self.name, self.size, self.rank = group, name, dist.get_world_size(group), rank_of(group)
        backend = str(dist.get_backend(group))
        self.device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Around collectives: what torch raises becomes deepreduce.torch's MissingRank, which names the ranks that do not
        answer, or its ExchangeError, if all do."""
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

    def require_sizes(self, sizes: Sequence[int], mosts: Sequence[Optional[int]]) -> None:
        """CorruptFrame, of the rank, for bytes that no payload has: all ranks are told the same, so all raise it, and none
        makes room for them. mosts: a payload of each rank; None: not known."""
        for rank, (size, most) in enumerate(zip(sizes, mosts)):
            if size < 0 or (most is not None and size > most):
                words = f"{size} bytes" if most is None else f"{size} bytes, where any has 0 to {most}"
                raise CorruptFrame(f"{self.name}: it says that its payload has {words}", frame=rank)

    def gather_numbers(self, numbers: Sequence[int]) -> List[List[int]]:
        """Those of all ranks."""
        own = torch.tensor(list(numbers), dtype=torch.int64, device=self.device)
        return [each.tolist() for each in self._gather(own)]

    def raise_failure(self, error: Optional[Exception]) -> None:
        """Once all ranks know that one of them refused the tensor: they say why, and all raise.

        error  this rank's own, which it raises; None: it raises PeerError, which names the rank that has one
        """
        words = b"" if error is None else reason(self.name, error).encode()[:_WORDS]
        own = torch.frombuffer(bytearray(words.ljust(_WORDS, b"\0")), dtype=torch.uint8).to(self.device)
        told = [bytes(each.tolist()).rstrip(b"\0").decode(errors="ignore") for each in self._gather(own)]
        failed = [rank for rank, each in enumerate(told) if each]
        if isinstance(error, Error):
            error.rank = global_rank(self.group, self.rank)
        if error is not None:
            raise error
        if not failed:
            raise PeerError(f"a rank refused {self.name}, and does not say why")
        others = ", ".join(str(global_rank(self.group, rank)) for rank in failed[1:])
        first = global_rank(self.group, failed[0])
        raised = PeerError(f"rank {first}: {told[failed[0]]}" + (f" (and so did ranks {others})" if others else ""))
        raised.rank = first
        raise raised

    def agree_on(self, size: int, error: Optional[Exception], form: str, unit: str = "bytes") -> None:
        """The first step of a tensor whose payloads have one size: raises, on all ranks, unless that is so.

        form  what this rank sends, in words, as `gather_sizes` has it
        """
        sizes = self.gather_sizes(size, error, form)
        if REFUSED in sizes:
            self.raise_failure(error)
        if len(set(sizes)) > 1:
            told = ", ".join(f"rank {global_rank(self.group, rank)} {each}" for rank, each in enumerate(sizes))
            raise ArgumentError(f"{self.name}: the ranks' payloads should be of one size, but have {unit}: {told}")

    def gather_sizes(self, size: int, error: Optional[Exception], form: str) -> List[int]:
        """The sizes of all ranks' payloads, or REFUSED.

        form  what this rank sends, in words, the same on all ranks: otherwise one would wait for what another does not send.
              ArgumentError, on all ranks, that tells them
        """
        rows = self.gather_numbers([REFUSED if error else size, zlib.crc32(form.encode())])
        if len({form for size, form in rows if size != REFUSED}) > 1 and all(size != REFUSED for size, _ in rows):
            own = torch.frombuffer(bytearray(form.encode()[:_WORDS].ljust(_WORDS, b"\0")), dtype=torch.uint8).to(self.device)
            forms = [bytes(each.tolist()).rstrip(b"\0").decode(errors="ignore") for each in self._gather(own)]
            other = next(rank for rank, each in enumerate(forms) if each != forms[0])
            told = ", ".join(f"rank {global_rank(self.group, rank)} sends {forms[rank]}" for rank in (0, other))
            raise ArgumentError(f"{self.name}: {told}: compressor and communicator are the same on all ranks")
        return [size for size, _ in rows]

    def _gather(self, own: Tensor) -> List[Tensor]:
        all_of_them = [torch.empty_like(own) for _ in range(self.size)]
        with self.explained():
            dist.all_gather(all_of_them, own, group=self.group)
        return all_of_them


def compare_tags(tags: Sequence[int], group: Optional[dist.ProcessGroup]) -> None:
    """Of frames of all ranks, which are not of one tag: raises what a sender does, the same on all ranks."""
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
    told = ", ".join(f"rank {ranks[rank]} is at step {steps[rank]}" for rank in late)
    behind = OutOfStep(f"{told}, rank {ranks[source]} at step {steps[source]}: load states of one step on all ranks")
    behind.rank, behind.ranks, behind.source = ranks[late[0]], tuple(ranks[rank] for rank in late), ranks[source]
    raise behind


def _timeout_of(group: Optional[dist.ProcessGroup], device: torch.device) -> float:
    """Seconds that a collective of the group may take; torch's default where its backend does not say."""
    backend = (dist.group.WORLD if group is None else group)._get_backend(device)
    limit = getattr(getattr(backend, "options", None), "_timeout", dist.default_pg_timeout)
    return float(limit.total_seconds())


def reason(name: str, error: Exception) -> str:
    words = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
    return words if name and words.startswith(name) else f"{name}: {words}"


def other_size(name: str, found: int, agreed: int, unit: str = "bytes") -> ArgumentError:
    return ArgumentError(
        f"{name}: the payload has {found} {unit}, before it had {agreed}: payloads of a name are of one size;"
        f" the communicator's reset({name!r}) forgets it"
    )
