"""deepreduce.torch: its errors, its statistics, and how it finds ranks that do not answer."""

from __future__ import annotations

import atexit
import dataclasses
import datetime
import math
import os
import re
import threading
import time
import weakref
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions, AllreduceOptions, AllToAllOptions

from .. import errors
from .._native import _abi
from ..errors import ArgumentError, Error, OutOfStep, Unsupported

# torch.distributed.nn is imported early, so that destroy_process_group can end its group. The defaults of its functions are
# the process group that exists when it is imported, and the first step of an optimizer imports it. That group and its
# threads would live until the interpreter ends. There a thread that still frees a tensor aborts the process ("terminate
# called without an active exception"; torch 2.13).
if dist.is_available() and not dist.is_initialized():
    import torch.distributed.nn  # noqa: F401

# What collectives of gloo were lent, until they let go of it.
_lent: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()


def lend(tensor: torch.Tensor) -> torch.Tensor:
    """An alias of the tensor, for a collective.

    A thread of gloo lets go of its tensors a moment after it has reported that the collective is done, and needs the
    interpreter's lock for that. A module that holds the group (DDP, a hook) keeps that thread when the group is destroyed; a
    thread that was late for the end of the interpreter aborts the process, as above. So the end waits for the aliases.
    """
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return tensor
    alias = tensor.detach()
    _lent.add(alias)
    return alias


@atexit.register
def _take_back() -> None:
    end = time.monotonic() + 1  # a collective that hangs has an error of its own
    while _lent and time.monotonic() < end:
        time.sleep(0.001)


# Seconds within which a surviving rank answers a roll call, besides the time of a step; and extra seconds for the store.
_ROLL, _STORE = 1.5, 1.5


class ExchangeError(Error, RuntimeError):
    """The engine (gloo, NCCL) could not deliver frames in time, though all ranks answer. The group is unusable
    afterwards.

    ranks  of the default group that caused it: empty here
    """

    code = _abi.DR_E_INTERNAL

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class MissingRank(ExchangeError, errors.MissingRank):
    """Ranks did not answer within the timeout: `ranks` of the default group. The group is unusable afterwards."""

    code = _abi.DR_E_TIMEOUT


def out_of_step(message: str, ranks: Sequence[int], source: int, step: Optional[int] = None) -> OutOfStep:
    """The error with its fields."""
    error = OutOfStep(message)
    error.rank, error.ranks, error.source, error.step = ranks[0], tuple(ranks), source, step
    return error


@dataclasses.dataclass
class Step:
    """Times and bytes of a step on this rank.

    encode, wait, merge  seconds: in the library's encode; in collectives, to issue them and to wait; in merge
    own                  seconds of the hook besides these
    frame                bytes of the frames that this rank encoded
    sent, received       bytes that the collectives moved: slots, to and from all other ranks
    dense                bytes of the gradient
    kept                 elements that were encoded into the frames
    repeats              collectives for the rest of frames that were longer than their slots
    skipped              steps with a gradient that was not finite, with nonfinite="skip"
    """

    encode: float = 0.0
    wait: float = 0.0
    merge: float = 0.0
    own: float = 0.0
    frame: int = 0
    sent: int = 0
    received: int = 0
    dense: int = 0
    kept: int = 0
    repeats: int = 0
    skipped: int = 0

    @property
    def spent(self) -> float:
        """Seconds of the library and the collectives."""
        return self.encode + self.wait + self.merge

    def add(self, other: Step) -> None:
        """Adds the figures of another step."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@dataclasses.dataclass
class Stats:
    """Statistics of the steps of this rank.

    steps   the number of steps that have ended
    last    the last of them
    total   the sum of all
    memory  bytes that feedback stores for all tensors (of PowerSGD the factors, too)
    place   where frames and numbers are made: "cpu", or "cuda". There the numbers of a step are the host's: `frame` of frames
            comes a step later, `kept` is 0, and the times are those in which it enqueues
    """

    steps: int
    last: Step
    total: Step
    memory: int = 0
    place: str = "cpu"


class Engine:
    """The collectives of a process group, each with a deadline. Their errors become errors that name ranks."""

    def __init__(self, group: Optional[dist.ProcessGroup], timeout: float) -> None:
        self.group = dist.group.WORLD if group is None else group
        self.timeout = timeout
        self.size, self.rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        if self.rank < 0:
            raise ArgumentError(f"rank {dist.get_rank()} is not in the group: only its ranks call this")
        self._beat, self._pace = time.monotonic(), 0.0
        self.skips = False  # steps with a gradient that is not finite
        self.failures, self.failed = 0, 0  # steps that this rank did not complete, and the last of them

    def end_step(self, number: int, done: bool) -> None:
        """Records how long the step took, and whether this rank completed it."""
        if not done:
            self.failures, self.failed = self.failures + 1, number
        now = time.monotonic()
        self._beat, self._pace = now, now - self._beat

    def global_rank(self, rank: int) -> int:
        return dist.get_global_rank(self.group, rank)  # type: ignore[no-any-return]

    @property
    def members(self) -> List[int]:
        """The ranks of the default group that are in the group, in its order."""
        return [self.global_rank(rank) for rank in range(self.size)]

    def named(self, error: Error) -> Error:
        """The error of a merge of the ranks' frames, with the rank in the message and as `rank`."""
        words = str(error)
        if error.frame is not None:
            error.rank = rank = self.global_rank(error.frame)
            words = f"rank {rank}: " + re.sub(r"^frame \d+: ", "", words)
        # (The headers of slots are compared before, so here the header of the slot differs from that of its frame.)
        words = re.sub(r"\btag \d+; expected \d+", "it is of another step, or of other tensors", words)
        error.args = (words,)
        return error

    def slot_device(self, device: torch.device) -> Optional[torch.device]:
        """Where the slots of tensors on `device` must be for a collective; None: on the CPU."""
        if device.type in HOST or (HOST and self.has_backend("cpu")):
            return None
        return device

    def gathers_on(self, device: torch.device) -> bool:
        """Whether collectives of tensors there are enqueued, so that the caller does not wait: by NCCL."""
        try:
            return "nccl" in self.group._get_backend(device).name().lower()
        except RuntimeError:
            return False

    def has_backend(self, kind: str) -> bool:
        try:
            self.group._get_backend(torch.device(kind))
        except RuntimeError:  # a group with NCCL only
            return False
        return True

    def issue(self, what: str, collective: Callable[..., dist.Work], *tensors: torch.Tensor) -> dist.Work:
        """Starts one of the collectives below and returns its Work. what: its name in errors.

        gloo cannot cancel a collective, and the process does not end before the collective does. So the collective has a
        timeout of its own, long enough for the backward that runs meanwhile.
        """
        try:
            return collective(self.group, datetime.timedelta(seconds=2 * (self.timeout + self._pace)), *map(lend, tensors))
        except RuntimeError as error:
            raise self.explained(what, error) from error

    def wait(self, what: str, work: dist.Work, deadline: float) -> None:
        """Waits until `deadline` of time.monotonic. Raises MissingRank or ExchangeError."""
        left = max(deadline - time.monotonic(), 0.001)
        try:
            work.wait(datetime.timedelta(seconds=left))
        except RuntimeError as error:
            raise self.explained(what, error) from error

    def explained(self, what: str, error: RuntimeError) -> ExchangeError:
        """An error of a collective, with the ranks that do not answer."""
        # Messages of gloo begin with a path and end with advice: "Connection closed by peer [127.0.0.1]:39562".
        reason = re.sub(r"^\[.*?\] ", "", (str(error) or type(error).__name__).splitlines()[0]).partition(". ")[0]
        missing, silent = self._roll_call()
        if silent:
            host = _host_of(self.group)
            if host is None:
                return ExchangeError(
                    f"{what}: {reason}; the store does not answer, so the missing rank is unknown"
                )
            return MissingRank(f"{what}: rank {host}, which serves the store, does not answer ({reason})", [host])
        ranks = [self.global_rank(rank) for rank in missing]
        if not ranks:
            return ExchangeError(f"{what}: {reason} (timeout {self.timeout:g} s); all ranks answer a roll call")
        names = ", ".join(map(str, ranks))
        return MissingRank(f"{what}: rank {names} does not answer ({reason}; timeout {self.timeout:g} s)", ranks)

    def _roll_call(self) -> Tuple[List[int], bool]:
        """Ranks of the group that do not answer, and whether the store is silent.

        A rank that completed the step in which another failed answers one step later, so the time of a step is added. The
        store's calls have no deadline, so another thread makes them. This happens only after the exchange has failed.
        """
        found: List[List[int]] = []
        seconds = _ROLL + min(self._pace, self.timeout)
        thread = threading.Thread(target=self._answer, args=(seconds, found), daemon=True)
        thread.start()
        thread.join(seconds + _STORE)
        return (found[0], False) if found else ([], True)

    def _answer(self, seconds: float, found: List[List[int]]) -> None:
        try:
            store, key = self.group.get_group_store(), "deepreduce roll call"
            store.set(f"{key}/{self.rank}", b"here")
            missing, end = list(range(self.size)), time.monotonic() + seconds
            while missing and time.monotonic() < end:
                missing = [rank for rank in missing if not store.check([f"{key}/{rank}"])]
                if missing:
                    time.sleep(0.02)
            found.append(missing)
        except RuntimeError:  # the store is gone: `found` stays empty
            return


def all_gather(group: dist.ProcessGroup, timeout: datetime.timedelta, received: torch.Tensor, sent: torch.Tensor) -> dist.Work:
    gather = getattr(group, "all_gather_single", None) or group._allgather_base  # its name before torch 2.13
    return gather(received, sent, _options(AllgatherOptions(), timeout))


def all_to_all(group: dist.ProcessGroup, timeout: datetime.timedelta, received: torch.Tensor, sent: torch.Tensor) -> dist.Work:
    swap = getattr(group, "all_to_all_single", None) or group.alltoall_base
    return swap(received, sent, [], [], _options(AllToAllOptions(), timeout))


def all_reduce(group: dist.ProcessGroup, timeout: datetime.timedelta, tensor: torch.Tensor) -> dist.Work:
    return group.allreduce([tensor], _options(AllreduceOptions(), timeout))


def _options(options: Any, timeout: datetime.timedelta) -> Any:
    options.timeout = timeout
    if hasattr(options, "asyncOp"):
        options.asyncOp = True
    return options


def _host_of(group: dist.ProcessGroup) -> Optional[int]:
    """The rank that serves the group's store: rank 0. None: an agent (torchrun) serves it, or it is a file."""
    store = group.get_group_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() in ("true", "1") or not isinstance(
        store, dist.TCPStore
    ):
        return None
    return 0


# Kinds of devices whose memory the library reads and gloo sends. Tensors elsewhere are copied to the CPU and back, and
# slots go to the device that the group's backend requires (NCCL): tests/python/torch_gpu.py; without a GPU, tested with this set empty.
HOST = {"cpu"}


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether all values of a dense tensor are finite. (aminmax propagates a NaN, and reads once.)"""
    return tensor.numel() == 0 or all(map(math.isfinite, torch.stack(torch.aminmax(tensor)).tolist()))


def require_place(tensor: torch.Tensor, what: str, rows: bool = False) -> None:
    """ArgumentError for what is not a tensor, Unsupported for one that cannot be exchanged. rows: sparse ones can."""
    if tensor is None:
        raise ArgumentError(
            f"{what} is None: a parameter without a gradient; leave it out, or pass zeros, on all ranks alike"
        )
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"{what} is of type {type(tensor).__name__}, not a torch.Tensor")
    if hasattr(tensor, "to_local"):
        raise Unsupported(
            f"{what} is a {type(tensor).__name__}, of which this rank holds a part: pass what its .to_local() returns; for the"
            " gradients of FSDP2 use ReduceScatter"
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise Unsupported(f"{what} is on {tensor.device}; tensors on the CPU and on CUDA devices are exchanged")
    if tensor.layout == torch.strided or (rows and tensor.layout == torch.sparse_coo and tensor.sparse_dim() == 1):
        return
    raise Unsupported(
        f"{what} is a sparse tensor ({tensor.layout}); dense ones are exchanged, and those of torch.sparse_coo with one sparse"
        " dimension, as of Embedding(sparse=True): pass its .to_dense()"
    )
