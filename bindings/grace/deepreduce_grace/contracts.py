"""GRACE's three contracts: Compressor, Memory and Communicator (Xu et al., ICDCS 2021).

    step = compensate, compress, update, communicate, decompress, aggregate, divide by the ranks

You can subclass each contract. Only tensors are sent. The ctx that `compress` returns stays on its rank and decodes the tensors
of every rank, so it may only hold what is the same on all ranks.
"""

from __future__ import annotations

import abc
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist
from torch import Tensor

from deepreduce.errors import ArgumentError, Error, PeerError
from deepreduce.torch import ExchangeError
from .meters import timer

Ctx = Any  # the second result of `compress`, for `decompress`: shape, type and further facts that the compressor needs
Handles = Any  # what `async_send` returns for `wait_receive`: works and buffers of a communicator
Params = Mapping[str, Any]  # GRACE's parameters, by name
Options = Dict[str, Any]  # keyword arguments of a call, by name
SavedState = Dict[str, Any]  # of state_dict: numbers, texts, tensors, and dicts and lists of these
SavedPart = Mapping[str, Any]  # the same, to be read


class Stateful:
    """The state that compressors and memories store from step to step: none, unless a subclass overrides the methods."""

    @property
    def nbytes(self) -> int:
        """Bytes that it stores from step to step, for all names."""
        return 0

    def reset(self, name: Optional[str] = None) -> None:
        """Drops the state of a name, or of all names, and frees its memory. Random numbers continue."""

    def state_dict(self) -> SavedState:
        """The state that it stores from step to step, for torch.save."""
        return {}

    def load_state_dict(self, state: SavedState) -> None:
        """Loads a state of `state_dict`."""
        if state:
            raise ArgumentError(f"{type(self).__name__} has no state, but the saved state has {', '.join(map(str, state))}")


class Compressor(Stateful, abc.ABC):
    """Converts a tensor to tensors to send, and back.

    average                the aggregate is divided by the number of ranks
    tensors_size_are_same  all ranks send tensors of equal sizes, so ranks need not exchange the sizes
    linear                 whether tensors of several ranks may be added up before they are decompressed; None: not known
    sparse                 whether it sends some elements exactly enough for a memory to forget them; None: not known
    """

    average = True
    tensors_size_are_same = True
    linear: Optional[bool] = None
    sparse: Optional[bool] = None

    def __init__(self, average: bool = True, tensors_size_are_same: bool = True) -> None:
        self.average, self.tensors_size_are_same = average, tensors_size_are_same

    @abc.abstractmethod
    def compress(self, tensor: Tensor, name: str) -> Tuple[Sequence[Tensor], Ctx]:
        """Returns the tensors to send, and the ctx that decompresses those of any rank. `tensor` is not changed."""

    @abc.abstractmethod
    def decompress(self, tensors: Sequence[Tensor], ctx: Ctx) -> Tensor:
        """A new tensor, of the shape and the type that were compressed."""

    def aggregate(self, tensors: Sequence[Tensor]) -> Tensor:
        """The sum of the decompressed tensors of all ranks, in rank order."""
        total = tensors[0].clone()
        for tensor in tensors[1:]:
            total += tensor
        return total

    def merge(self, payloads: Sequence[Sequence[Tensor]], ctx: Ctx) -> Tensor:
        """`aggregate` of the payloads of all ranks, or the same in float32. Compressors by plan need no dense tensor per rank."""
        return self.aggregate([self.decompress(payload, ctx) for payload in payloads])

    def decompress_add(self, tensors: Sequence[Tensor], ctx: Ctx, out: Tensor, scale: float = 1.0) -> None:
        """Adds `scale` times the decompressed tensor to `out`, which is contiguous."""
        out.add_(self.decompress(tensors, ctx), alpha=scale)

    def bound(self, elements: int) -> Optional[int]:
        """The maximum bytes of the payload of a tensor of `elements` elements. None: not known; then memory is allocated for the size
        that another rank reports."""
        return None

    def skip(self, name: str) -> None:  # noqa: B027
        """Called in place of `compress` if a step of this name fails on this rank before it: the other ranks have made the step."""

    def take_back(self, name: str, tensors: Sequence[Tensor], ctx: Ctx) -> None:  # noqa: B027
        """Called if the exchange failed and the payload of `compress` was not received; for compressors with feedback of their own."""

    def refuses(self, memory: Memory) -> Optional[str]:
        """Why it cannot be combined with a memory; None if it can."""
        return None

    @property
    def kind(self) -> str:
        """The kind of a saved state: a state of another kind is refused."""
        return type(self).__name__


class Memory(Stateful, abc.ABC):
    """Stores what was not sent, by the name of the tensor, for the next step."""

    @abc.abstractmethod
    def compensate(self, tensor: Tensor, name: str) -> Tensor:
        """Returns the tensor to compress in place of `tensor`, which is not changed."""

    def update(self, tensor: Tensor, name: str, compressor: Compressor, tensor_compressed: Sequence[Tensor], ctx: Ctx) -> None:  # noqa: B027
        """`tensor` is the compensated one, of which `tensor_compressed` is sent."""

    def skip(self, name: str) -> None:  # noqa: B027
        """Called in place of `compensate` if a step of this name fails on this rank before it: the other ranks make the step."""

    def keep(self, tensor: Tensor, name: str) -> None:  # noqa: B027
        """Nothing of the compensated `tensor` was sent: another rank refused its own."""

    def take_back(self, name: str, compressor: Compressor, tensor_compressed: Sequence[Tensor], ctx: Ctx) -> None:  # noqa: B027
        """Called if the exchange failed and the payload passed to `update` was not received."""

    def refuses(self, compressor: Compressor) -> Optional[str]:
        """Why it cannot be combined with a compressor; None if it can."""
        return None


class Sent(NamedTuple):
    """A tensor in transfer, between send_step and receive_step."""

    handles: Handles
    name: str
    payload: Sequence[Tensor]
    error: Optional[Exception]  # of this rank, which reports it to the others


class Communicator:
    """Sends tensors to the other ranks and returns the aggregate. A subclass implements either `send_receive`, or `async_send`
    and `wait_receive`.

    compressor, memory  may be replaced at any time; a pair that would compute wrong results is an ArgumentError
    world_size          ranks of the group, which are checked; None: not checked
    group               a process group; None: torch.distributed's own
    """

    def __init__(
        self, compressor: Compressor, memory: Memory, world_size: Optional[int] = None, *, group: Optional[dist.ProcessGroup] = None
    ) -> None:
        kind = type(self)
        if kind.send_receive is Communicator.send_receive and kind.async_send is Communicator.async_send:
            raise TypeError(f"{kind.__name__} has neither send_receive nor async_send and wait_receive")
        self._compressor, self._memory, self.world_size, self.group = compressor, memory, world_size, group
        self._sizes: Dict[str, Any] = {}  # of payloads whose size all ranks know, by name
        self._bounds: Dict[str, Optional[int]] = {}  # maximum bytes of a payload, by name
        self._require_fit(compressor, memory)

    @property
    def compressor(self) -> Compressor:
        """Compresses the tensors. To set another one drops the sizes on which the ranks have agreed, so all ranks set it at the same
        step. If it cannot be combined with the memory or the communicator, ArgumentError, and the old one remains."""
        return self._compressor

    @compressor.setter
    def compressor(self, compressor: Compressor) -> None:
        self._require_fit(compressor, self._memory)
        self._compressor = compressor
        self._sizes.clear()

    @property
    def memory(self) -> Memory:
        """Stores what was not sent. Another one begins with its own state. If it cannot be combined with the compressor, ArgumentError,
        and the old one remains."""
        return self._memory

    @memory.setter
    def memory(self, memory: Memory) -> None:
        self._require_fit(self._compressor, memory)
        self._memory = memory

    def refuses(self, compressor: Compressor) -> Optional[str]:
        """Why it cannot be combined with a compressor; None if it can."""
        return None

    def _require_fit(self, compressor: Compressor, memory: Memory) -> None:
        for one, other in ((self, compressor), (memory, compressor), (compressor, memory)):
            reason = getattr(one, "refuses", lambda _: None)(other)
            if reason:
                raise ArgumentError(f"{type(one).__name__} cannot be combined with {type(other).__name__}: {reason}")

    # ---- A step ----

    def step(self, tensor: Tensor, name: str) -> Tensor:
        """Returns the aggregate of the ranks' tensors of this name, a new tensor: their mean, or as the compressor defines it.

        All ranks must call it with the same names in the same order. If it fails on one rank, it fails on all: PeerError and
        CorruptFrame name the rank, and the values that were sent return to the memory. The rank that failed raises its own
        error. If ranks do not answer, it raises deepreduce.torch's MissingRank; the group cannot be used afterwards.
        """
        return self.receive_step(*self.send_step(tensor, name))

    def send_step(self, tensor: Tensor, name: str) -> Tuple[Handles, Ctx]:
        """The first half of `step`, up to the sending: (handles, ctx) for `receive_step`."""
        begin, codec = time.perf_counter(), self._codec()
        payload: Sequence[Tensor] = []
        ctx, error, reduces = None, None, getattr(codec, "reduces", False)
        is_valid = False
        try:
            name, is_valid = _checked(tensor, name), True
            compensated = self.memory.compensate(tensor, name)
        except Exception as caught:  # any kind, from a user's memory; the other ranks wait for this one
            error, name = caught, str(name)
            if not is_valid:
                getattr(self.memory, "skip", lambda _: None)(name)
            getattr(codec, "skip", lambda _: None)(name)
        try:
            if error is None:
                self._bounds[name] = getattr(codec, "bound", lambda _: None)(compensated.numel())
                payload, ctx = codec.compress(compensated, name)
                self.memory.update(compensated, name, codec, self.received(payload), ctx)
            elif reduces:
                codec.refuse(name, error)  # type: ignore[attr-defined]
        except Exception as caught:
            if reduces:  # the compressor has reported it to the others
                if error is None and isinstance(caught, (PeerError, ExchangeError)):
                    getattr(self.memory, "keep", lambda *_: None)(compensated, name)
                raise
            error = caught
        timer["en/decoding"] += time.perf_counter() - begin
        try:
            handles = self.async_send(payload, name) if error is None else self.async_refuse(name, error)
        except BaseException as caught:  # KeyboardInterrupt, too
            if error is None:
                self._take_back(name, payload, ctx)
            self._name(caught)
            raise
        return Sent(handles, name, payload, error), ctx

    def receive_step(self, handles: Handles, ctx: Ctx) -> Tensor:
        """The second half of `step`. Steps are received in the order in which they were sent."""
        try:
            return self.wait_receive(handles.handles, ctx)
        except BaseException as error:  # from this package, torch, a user's compressor, or KeyboardInterrupt: nothing was received
            if handles.error is None:
                self._take_back(handles.name, handles.payload, ctx)
            elif isinstance(error, Exception):
                raise handles.error from None
            self._name(error)
            raise

    def _take_back(self, name: str, payload: Sequence[Tensor], ctx: Ctx) -> None:
        codec = self._codec()
        getattr(self.memory, "take_back", lambda *_: None)(name, codec, self.received(payload), ctx)
        getattr(codec, "take_back", lambda *_: None)(name, payload, ctx)

    def received(self, payload: Sequence[Tensor]) -> Sequence[Tensor]:
        """What the aggregate has of a payload, if the communicator rounds it: the memory stores the rest."""
        return payload

    def async_send(self, tensors: Sequence[Tensor], name: str) -> Handles:
        """Begins to send the tensors of a `compress`. The result is passed to `wait_receive`."""
        return tensors, name

    def async_refuse(self, name: str, error: Exception) -> Handles:
        """Called in place of `async_send` if this rank has nothing to send: makes the step fail on all ranks. The result is passed to
        `wait_receive`. A subclass that cannot report to the other ranks raises at once."""
        raise error

    def wait_receive(self, handles: Handles, ctx: Ctx) -> Tensor:
        """Waits for the tensors of all ranks, and aggregates them."""
        tensors, name = handles
        return self.send_receive(tensors, name, ctx)

    def send_receive(self, tensors: Sequence[Tensor], name: str, ctx: Ctx) -> Tensor:
        """`async_send`, then `wait_receive`."""
        return self.wait_receive(self.async_send(tensors, name), ctx)

    # ---- Between steps ----

    def _codec(self) -> Compressor:
        """The compressor that `send_step` uses."""
        return self._compressor

    def ranks(self) -> int:
        """The number of ranks. ArgumentError if it is not world_size."""
        if not (dist.is_available() and dist.is_initialized()):
            raise ArgumentError("torch.distributed has no process group: call torch.distributed.init_process_group first")
        size: int = dist.get_world_size(self.group)
        if self.world_size not in (None, size):
            raise ArgumentError(f"world_size is {self.world_size}, the process group has {size} ranks")
        return size

    def averaged(self, total: Tensor, ctx: Ctx) -> Tensor:
        """An aggregate, divided by the number of ranks if the compressor averages, in the type that was compressed."""
        if self.compressor.average:
            total = total.div_(self.ranks())
        return total.to(getattr(ctx, "dtype", total.dtype))

    def _name(self, error: BaseException) -> None:
        """Adds the rank to an error of a frame, in the message and as `rank`."""
        if isinstance(error, Error) and error.frame is not None and error.rank is None:
            error.rank = global_rank(self.group, error.frame)
            error.args = (f"rank {error.rank}: {str(error).removeprefix(f'frame {error.frame}: ')}",)

    @property
    def nbytes(self) -> int:
        """Bytes that memory and compressor store from step to step, for all names."""
        return sum(getattr(part, "nbytes", 0) for part in (self.memory, self.compressor))

    def reset(self, name: Optional[str] = None) -> None:
        """Drops the state of a name, or of all names, in memory and compressor, frees its memory, and drops the sizes on which the
        ranks have agreed. The next tensor may have another shape and type. All ranks must call it."""
        for part in (self.memory, self.compressor):
            getattr(part, "reset", lambda _: None)(name)
        for by_name in (self._sizes, self._bounds):
            if name is None:
                by_name.clear()
            else:
                by_name.pop(name, None)

    def set_lr(self, lr: float) -> None:
        """Sets the learning rate of the next step, which memory and compressor efsignsgd use. All ranks must call it."""
        users = self._users_of_lr()
        if not users:
            names = " nor ".join(type(part).__name__ for part in (self.memory, self.compressor))
            raise ArgumentError(f"neither {names} uses a learning rate: efsignsgd does")
        for part in users:
            part.lr = lr

    def _users_of_lr(self) -> List[Any]:
        """Memory and compressor, if they use a learning rate."""
        return [part for part in (self.memory, self.compressor) if hasattr(part, "lr")]

    def state_dict(self) -> SavedState:
        """The states of memory and compressor on this rank, their kinds, and their learning rate. Every rank saves its own."""
        users = self._users_of_lr()
        rate = {"lr": users[0].lr} if users else {}
        return {"of": self._kinds(), **rate, "memory": self.memory.state_dict(), "compressor": self.compressor.state_dict()}

    def load_state_dict(self, state: SavedState) -> None:
        """Loads a state that `state_dict` returned on this rank. The steps that follow are the same, bit for bit.

        Raises ArgumentError if it is not such a state, and for the state of another compressor or memory; then nothing has changed.
        """
        found = sorted(map(str, state)) if isinstance(state, Mapping) else [type(state).__name__]
        if not {"memory", "compressor"} <= set(found):
            raise ArgumentError(f"a communicator's state must have memory and compressor, this one has {', '.join(found) or 'nothing'}")
        for part in ("of", "memory", "compressor"):
            if not isinstance(state.get(part, {}), Mapping):
                raise ArgumentError(f"the part {part!r} of a communicator's state is of type {type(state[part]).__name__}, not a dict")
        for role, here in self._kinds().items():
            saved = state.get("of", {}).get(role, here)
            if saved != here:
                raise ArgumentError(f"the state was saved by {role} {saved} and cannot be loaded into {here}")
        before = self.state_dict()
        try:
            self._load(state)
        except Exception as error:
            self._load(before)
            if isinstance(error, Error) or not isinstance(error, (AttributeError, KeyError, TypeError, ValueError)):
                raise
            raise ArgumentError(f"it is not a state of memory {self._kinds()['memory']} and its compressor: {error}") from error

    def _load(self, state: SavedState) -> None:
        self.memory.load_state_dict(state["memory"])
        self.compressor.load_state_dict(state["compressor"])
        if "lr" in state:
            self.set_lr(state["lr"])

    def _kinds(self) -> Dict[str, str]:
        return {
            "memory": type(self.memory).__name__,
            "compressor": getattr(self.compressor, "kind", type(self.compressor).__name__),
        }


def _checked(tensor: object, name: object) -> str:
    """The name. ArgumentError if `tensor` is not a tensor or `name` is not a str."""
    if not isinstance(name, str):
        raise ArgumentError(f"the name of a tensor must be a str, not {name!r}")
    if not torch.is_tensor(tensor):
        found = "None: omit parameters without a gradient, on all ranks" if tensor is None else type(tensor).__name__
        raise ArgumentError(f"{name} is not a tensor but {found}")
    return name


def global_rank(group: Optional[dist.ProcessGroup], rank: int) -> int:
    """The number of a group's rank in torch.distributed's default group."""
    return rank if group is None else dist.get_global_rank(group, rank)


def rank_of(group: Optional[dist.ProcessGroup] = None) -> int:
    """The rank of this process; 0 without a process group."""
    return dist.get_rank(group) if dist.is_available() and dist.is_initialized() else 0


def listed(tensors: Union[Tensor, Sequence[Tensor]]) -> List[Tensor]:
    return [tensors] if torch.is_tensor(tensors) else list(tensors)
