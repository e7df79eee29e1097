"""Collectives of bytes and numbers over torch.distributed, and how ranks agree that one of them has failed."""

from __future__ import annotations

import zlib
from typing import Any, List, Optional, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ArgumentError, Error, PeerError
from .contracts import global_rank, rank_of

REFUSED = -1  # in the place of a size: this rank sends nothing
_WORDS = 512  # bytes of a reason


class Wire:
    """Collectives of bytes in a group, where its backend wants them: gloo and MPI on the CPU, NCCL on a GPU."""

    def __init__(self, group: Any) -> None:
        self.group, self.size, self.rank = group, dist.get_world_size(group), rank_of(group)
        backend = str(dist.get_backend(group))
        self.device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")

    def gather_numbers(self, numbers: Sequence[int]) -> List[List[int]]:
        """Those of all ranks."""
        own = torch.tensor(list(numbers), dtype=torch.int64, device=self.device)
        return [each.tolist() for each in self._gather(own)]

    def raise_failure(self, name: str, error: Optional[Exception]) -> None:
        """Once all ranks know that one of them refused the tensor of this name: they say why, and all raise.

        error  this rank's own, which it raises; None: it raises PeerError, which names the rank that has one
        """
        words = b"" if error is None else reason(name, error).encode()[:_WORDS]
        own = torch.frombuffer(bytearray(words.ljust(_WORDS, b"\0")), dtype=torch.uint8).to(self.device)
        told = [bytes(each.tolist()).rstrip(b"\0").decode(errors="ignore") for each in self._gather(own)]
        failed = [rank for rank, each in enumerate(told) if each]
        if isinstance(error, Error):
            error.rank = global_rank(self.group, self.rank)
        if error is not None:
            raise error
        if not failed:
            raise PeerError(f"a rank refused {name}, and does not say why")
        others = ", ".join(str(global_rank(self.group, rank)) for rank in failed[1:])
        first = global_rank(self.group, failed[0])
        raised = PeerError(f"rank {first}: {told[failed[0]]}" + (f" (and so did ranks {others})" if others else ""))
        raised.rank = first
        raise raised

    def agree_on(self, name: str, size: int, error: Optional[Exception], form: str, unit: str = "bytes") -> None:
        """The first step of a name whose payloads have one size: raises, on all ranks, unless that is so.

        form  what this rank sends, in words, as `gather_sizes` has it
        """
        sizes = self.gather_sizes(name, size, error, form)
        if REFUSED in sizes:
            self.raise_failure(name, error)
        if len(set(sizes)) > 1:
            told = ", ".join(f"rank {global_rank(self.group, rank)} {each}" for rank, each in enumerate(sizes))
            raise ArgumentError(f"{name}: the ranks' payloads should be of one size, but have {unit}: {told}")

    def gather_sizes(self, name: str, size: int, error: Optional[Exception], form: str) -> List[int]:
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
            raise ArgumentError(f"{name}: {told}: compressor and communicator are the same on all ranks")
        return [size for size, _ in rows]

    def _gather(self, own: Tensor) -> List[Tensor]:
        all_of_them = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(all_of_them, own, group=self.group)
        return all_of_them


def reason(name: str, error: Exception) -> str:
    words = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
    return words if name and words.startswith(name) else f"{name}: {words}"


def other_size(name: str, found: int, agreed: int, unit: str = "bytes") -> ArgumentError:
    return ArgumentError(
        f"{name}: the payload has {found} {unit}, before it had {agreed}: payloads of a name are of one size;"
        f" the communicator's reset({name!r}) forgets it"
    )
