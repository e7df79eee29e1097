"""Communication between ranks for calibration, over MPI (mpi4py, under mpiexec) or gloo (torch, under torchrun)."""

from __future__ import annotations

import os
import socket
import time
from typing import Any, Callable, List, Mapping

from .._native._types import Array
from ..errors import ArgumentError, Unsupported

_MPI_RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MPI_LOCALRANKID")
_TIMEOUT = 300.0  # seconds that a rank waits for another


Request = Any  # a transfer that is under way, in the transport's own type


class Ranks:
    """Ranks that exchange messages, which are arrays of bytes. Methods that start a transfer do not wait. All ranks make the same
    calls.

    name  the name of the transport in a profile
    """

    name: str
    rank: int
    ranks: int

    def send(self, peer: int, data: Array) -> Request:
        raise NotImplementedError

    def recv(self, peer: int, data: Array) -> Request:
        raise NotImplementedError

    def all_reduce(self, data: Array) -> Request:
        """Starts to sum data [n] f32 over the ranks, in place."""
        raise NotImplementedError

    def all_gather(self, received: Array, sent: Array) -> Request:
        """Starts an all-gather: received [ranks * n], sent [n]."""
        raise NotImplementedError

    def test(self, request: Request) -> bool:
        raise NotImplementedError

    def wait(self, request: Request) -> None:
        raise NotImplementedError

    def gather(self, value: object) -> List[Any]:
        """Returns the values of all ranks, on all ranks. A value may be any object."""
        raise NotImplementedError

    def barrier(self) -> None:
        self.gather(None)

    def close(self, sound: bool = True) -> None:
        """Closes the transport. sound: no transfer is under way on any rank; False: this rank leaves alone, after an error"""

    def per_machine(self) -> int:
        """The largest number of ranks on one machine."""
        names = self.gather(socket.gethostname())
        return max(names.count(name) for name in names)

    def per_host(self) -> int:
        """The largest number of ranks in one host and network namespace."""
        places = self.gather(_place())
        return max(places.count(place) for place in places)


def _place() -> str:
    try:
        namespace = os.readlink("/proc/self/ns/net")
    except OSError:
        namespace = ""
    return f"{socket.gethostname()} {namespace}"


class GlooRanks(Ranks):
    name = "gloo"

    def __init__(self) -> None:
        try:
            import torch
            import torch.distributed as dist

            if not dist.is_initialized():
                import torch.distributed.nn  # noqa: F401  so that close ends the threads (torch/_engine.py)
        except ImportError as error:
            raise Unsupported(f"calibrate --link: RANK and WORLD_SIZE are set, but there is no torch: {error}") from None
        import datetime

        self._torch, self._dist = torch, dist
        self._own = not dist.is_initialized()
        if self._own:
            dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=_TIMEOUT))
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def send(self, peer: int, data: Array) -> Request:
        return self._dist.isend(self._torch.from_numpy(data), peer)

    def recv(self, peer: int, data: Array) -> Request:
        return self._dist.irecv(self._torch.from_numpy(data), peer)

    def all_reduce(self, data: Array) -> Request:
        return self._dist.all_reduce(self._torch.from_numpy(data), async_op=True)

    def all_gather(self, received: Array, sent: Array) -> Request:
        tensors = self._torch.from_numpy(received), self._torch.from_numpy(sent)
        gather = getattr(self._dist, "all_gather_single", None) or self._dist.all_gather_into_tensor  # before torch 2.13
        return gather(*tensors, async_op=True)

    def test(self, request: Request) -> bool:
        return bool(request.is_completed())

    def wait(self, request: Request) -> None:
        request.wait()

    def gather(self, value: object) -> List[Any]:
        values: List[Any] = [None] * self.ranks
        self._dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        self._dist.barrier()

    def close(self, sound: bool = True) -> None:
        if self._own:
            self._dist.destroy_process_group()


class MpiRanks(Ranks):
    name = "mpi"

    def __init__(self) -> None:
        from ..mpi import MpiTransport, _Pause  # its error without mpi4py names what to install

        from mpi4py import MPI  # isort: skip

        self._transport = MpiTransport(None, _TIMEOUT)  # for its waiting
        self._comm, self._mpi, self._pause = self._transport.comm, MPI, _Pause
        self.rank, self.ranks = self._transport.rank, self._transport.ranks

    def send(self, peer: int, data: Array) -> Request:
        return self._comm.Isend([data, self._mpi.BYTE], peer, 1)

    def recv(self, peer: int, data: Array) -> Request:
        return self._comm.Irecv([data, self._mpi.BYTE], peer, 1)

    def all_reduce(self, data: Array) -> Request:
        return self._comm.Iallreduce(self._mpi.IN_PLACE, [data, self._mpi.FLOAT])

    def all_gather(self, received: Array, sent: Array) -> Request:
        return self._comm.Iallgather([sent, self._mpi.BYTE], [received, sent.size, self._mpi.BYTE])

    def test(self, request: Request) -> bool:
        return bool(request.Test())

    def wait(self, request: Request) -> None:
        pause = self._pause(self._transport)
        while not request.Test():
            pause.rest()

    def gather(self, value: object) -> List[Any]:
        self.barrier()  # waits with pauses: a blocking allgather would occupy a core that other ranks need
        return list(self._comm.allgather(value))

    def barrier(self) -> None:
        self.wait(self._comm.Ibarrier())

    def close(self, sound: bool = True) -> None:
        self._transport.close(sound)


def of_environment(variables: Mapping[str, str]) -> Callable[[], Ranks]:
    """The class of the ranks that this process was started with. Raises ArgumentError if it was started alone."""
    if any(name in variables for name in _MPI_RANK):
        return MpiRanks
    if "RANK" in variables and "WORLD_SIZE" in variables:
        return GlooRanks
    raise ArgumentError(
        "calibrate: --link and --overlap measure between ranks: mpiexec -n 2 deepreduce calibrate --link …, or torchrun"
        " --nproc-per-node 2 -m deepreduce calibrate --link …"
    )


def clock() -> float:
    """The time in ns, from an arbitrary origin."""
    return 1e9 * time.perf_counter()
