"""Communicators over torch.distributed. What travels is one tensor of bytes a payload, whatever tensors that has: any
type, of no dimension too, in one collective beside that of the sizes.

They carry what any compressor makes, so they stand on no deepreduce.Sender (compressors.py says why frames by plan do not, either). AllToAll
has a sender's `exchange=owner` for tensors that come one by one, and whose loss is in a memory of the caller, not in the plan.
"""

from __future__ import annotations

import time
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from deepreduce.errors import ArgumentError, CorruptFrame, Error, Unsupported
from .compressors import Context, PlanCompressor
from .contracts import Communicator, Compressor, Ctx, Handles, Memory, SavedState, global_rank, listed
from .memories import without_infinities
from .meters import timer
from .rank_wire import REFUSED, Wire, other_size

_NUMBER = 8  # bytes


def as_bytes(tensors: Sequence[Tensor]) -> Tensor:
    """[n] uint8, a copy: one tensor behind the other."""
    return torch.cat([each.detach().contiguous().reshape(-1).view(torch.uint8) for each in tensors] or [torch.empty(0, dtype=torch.uint8)])


def from_bytes(blob: Tensor, like: Sequence[Tensor], sizes: Sequence[int]) -> List[Tensor]:
    """Tensors of so many elements and of the types, and if they are as many, of the shapes of `like`, on its device."""
    found, at = [], 0
    for each, elements in zip(like, sizes):
        size = elements * each.element_size()
        part = blob[at : at + size].clone().to(each.device).view(each.dtype)  # a clone is aligned
        found.append(part.view(each.shape) if elements == each.numel() else part)
        at += size
    return found


def types_of(tensors: Sequence[Tensor]) -> str:
    return ", ".join(str(each.dtype) for each in tensors) or "empty"


class Arriving(NamedTuple):
    """Payloads on their way: of each rank a buffer of bytes.

    error   of this rank, which sends nothing
    failed  some rank sends nothing, as all know already
    told    the sizes are not known: each buffer begins with how many elements its tensors have. Otherwise all are of this
            rank's, and a byte behind them says that this rank has refused
    """

    works: List[dist.Work]
    buffers: List[Tensor]
    like: List[Tensor]
    name: str
    error: Optional[Exception]
    failed: bool
    told: bool
    kept: object  # what must live as long as the works

    def payloads(self, wire: Wire) -> List[List[Tensor]]:
        """Waits for them. Raises on all ranks if one has refused."""
        begin = time.perf_counter()
        wire.wait(self.works)
        refused = self.failed or (not self.told and any(int(each[-1]) for each in self.buffers))
        timer["comm"] += time.perf_counter() - begin
        if refused:
            wire.raise_failure(self.error)
        own = [each.numel() for each in self.like]
        return [from_bytes(each, self.like, own) if not self.told else self._told(rank, each) for rank, each in enumerate(self.buffers)]

    def _told(self, rank: int, buffer: Tensor) -> List[Tensor]:
        begin = _NUMBER * len(self.like)
        sizes: List[int] = buffer[:begin].cpu().clone().view(torch.int64).tolist() if len(buffer) >= begin else []
        need = sum(n * each.element_size() for n, each in zip(sizes, self.like))
        if len(sizes) != len(self.like) or any(n < 0 for n in sizes) or begin + need > len(buffer):
            raise CorruptFrame(f"{len(buffer)} bytes are no payload of {len(self.like)} tensors", frame=rank)
        return from_bytes(buffer[begin:], self.like, sizes)


class Gathering(Communicator):
    """What Allgather and Broadcast share: all ranks get the payloads of all ranks, and each aggregates them."""

    _collective = "an all-gather"

    def refuses(self, compressor: Compressor) -> Optional[str]:
        if getattr(compressor, "reduces", False):
            return "it reduces its factors while it compresses: take communicator allreduce"
        return None

    def async_send(self, tensors: Sequence[Tensor], name: str) -> Arriving:
        like = listed(tensors)
        if not self.compressor.tensors_size_are_same and any(each.dim() != 1 for each in like):
            words = f"{name}: tensors of sizes that differ have one dimension; there is one of {[each.dim() for each in like]}"
            return self.async_refuse(name, ArgumentError(words))
        return self._send(like, name, None)

    def async_refuse(self, name: str, error: Exception) -> Arriving:
        return self._send([], name, error)

    def _send(self, like: List[Tensor], name: str, error: Optional[Exception]) -> Arriving:
        self.ranks()
        begin, wire, told = time.perf_counter(), Wire(self.group, name), not self.compressor.tensors_size_are_same
        place = like[0].device if like else wire.device
        if told:
            numbers = torch.tensor([each.numel() for each in like], dtype=torch.int64, device=place)
            blob = as_bytes([numbers, *like]).to(wire.device)
            lengths = wire.gather_sizes(len(blob), error, self._form(like))
            if REFUSED in lengths:
                return Arriving([], [], like, name, error, True, told, None)
            most = self._most.get(name)
            wire.require_sizes(lengths, [None if most is None else max(len(blob), _NUMBER * len(like) + most)] * wire.size)
        else:
            blob = as_bytes([*like, torch.zeros(1, dtype=torch.uint8, device=place)]).to(wire.device)
            agreed = self._sizes.get(name)
            if agreed is None:
                wire.agree_on(len(blob) - 1, error, self._form(like))
                agreed = self._sizes[name] = len(blob) - 1
            if error is None and len(blob) - 1 != agreed:
                error = other_size(name, len(blob) - 1, agreed)
            if error is not None:
                blob = blob.new_ones(agreed + 1)
            lengths = [agreed + 1] * wire.size
        with wire.explained():
            buffers, works, kept = self._exchange(wire, blob, lengths)
        timer["comm"] += time.perf_counter() - begin
        return Arriving(works, buffers, like, name, error, False, told, kept)

    def _form(self, like: Sequence[Tensor]) -> str:
        """What is sent, in words: of other words, one rank would wait for what another does not send."""
        sizes = "of one size" if self.compressor.tensors_size_are_same else "of sizes that differ"
        return f"payloads {sizes}, {types_of(like)}, by {self._collective}"

    def _exchange(self, wire: Wire, blob: Tensor, lengths: List[int]) -> Tuple[List[Tensor], List[dist.Work], object]:
        """(a buffer for each rank, works, what they need), started."""
        raise NotImplementedError

    def wait_receive(self, handles: Arriving, ctx: Ctx) -> Tensor:
        payloads = handles.payloads(Wire(self.group, handles.name))
        begin = time.perf_counter()
        merge: Callable[..., Tensor] = getattr(self.compressor, "merge", None) or self._merge
        total = self.averaged(merge(payloads, ctx), ctx)
        timer["en/decoding"] += time.perf_counter() - begin
        return total

    def _merge(self, payloads: Sequence[Sequence[Tensor]], ctx: Ctx) -> Tensor:
        return self.compressor.aggregate([self.compressor.decompress(each, ctx) for each in payloads])


class Allgather(Gathering):
    """One all-gather of bytes, padded to the longest, behind one of sizes if these may differ. For every compressor but
    powersgd; async: send_step and receive_step."""

    def _exchange(self, wire: Wire, blob: Tensor, lengths: List[int]) -> Tuple[List[Tensor], List[dist.Work], object]:
        longest = max(lengths)
        buffers = [torch.empty(longest, dtype=torch.uint8, device=wire.device) for _ in lengths]
        if longest == 0:  # all ranks know: nobody sends, nobody waits
            return buffers, [], None
        if len(blob) < longest:
            blob = torch.cat([blob, blob.new_zeros(longest - len(blob))])
        return buffers, [dist.all_gather(buffers, blob, group=wire.group, async_op=True)], blob


class Broadcast(Gathering):
    """A broadcast from each rank in turn, of as many bytes as it has: less to send than Allgather where sizes differ
    widely, more to wait for.

    rank  this rank, which GRACE asks for; None: as it is
    """

    _collective = "broadcasts"

    def __init__(
        self, compressor: Compressor, memory: Memory, world_size: Optional[int] = None, rank: Optional[int] = None, *, group: Optional[dist.ProcessGroup] = None
    ) -> None:
        super().__init__(compressor, memory, world_size, group=group)
        self.rank = rank

    def _exchange(self, wire: Wire, blob: Tensor, lengths: List[int]) -> Tuple[List[Tensor], List[dist.Work], object]:
        if self.rank not in (None, wire.rank):
            raise ArgumentError(f"rank is {self.rank}, this is rank {wire.rank} of the process group")
        works, buffers = [], []
        for root, length in enumerate(lengths):
            buffers.append(blob if root == wire.rank else torch.empty(length, dtype=torch.uint8, device=wire.device))
            if length:
                works.append(dist.broadcast(buffers[-1], global_rank(wire.group, root), group=wire.group, async_op=True))
        return buffers, works, None


class Allreduce(Communicator):
    """An all-reduce of the payload's numbers, which are decompressed once. For payloads that may be added up: none, fp16,
    bf16, randomk, powersgd."""

    def refuses(self, compressor: Compressor) -> Optional[str]:
        if getattr(compressor, "linear", None) is False:
            return "its payloads cannot be added up: take communicator allgather; those of none, fp16, bf16, randomk and powersgd can"
        return None

    def async_send(self, tensors: Sequence[Tensor], name: str) -> Handles:
        like = listed(tensors)
        wrong = next((each.dtype for each in like if not each.is_floating_point()), None)
        if wrong is not None:
            return self.async_refuse(name, ArgumentError(f"{name}: the payload is {wrong}, which an all-reduce cannot average: take allgather"))
        return self._send(like, name, None)

    def async_refuse(self, name: str, error: Exception) -> Handles:
        return self._send([], name, error)

    def _send(self, like: List[Tensor], name: str, error: Optional[Exception]) -> Handles:
        ranks, begin, wire = self.ranks(), time.perf_counter(), Wire(self.group, name)
        if not like and error is None:  # the compressor has reduced already
            return [], [], [], name, None
        kinds, size = [(each.numel(), each.dtype) for each in like], sum(each.numel() * each.element_size() for each in like)
        agreed = self._sizes.get(name)
        if agreed is None:
            wire.agree_on(size, error, f"payloads of one size, {types_of(like)}, by an all-reduce")
            agreed = self._sizes[name] = kinds
        if error is None and kinds != agreed:
            error = other_size(name, size, sum(n * dtype.itemsize for n, dtype in agreed))
        # An element for each rank is reduced behind the last tensor: 1 where the rank has refused.
        marks, summed = torch.zeros(ranks), []
        if error is None:
            # 16 bits overflow soon: the mean is formed before the sum.
            halves = [each.element_size() < 4 and self.compressor.average for each in like]
            summed = [(each.detach() / ranks if half else each.detach()).reshape(-1) for each, half in zip(like, halves)]
        else:
            marks[wire.rank] = 1
            summed = [torch.zeros(n, dtype=dtype) for n, dtype in agreed]
        moved = [each.to(wire.device, copy=True) for each in summed[:-1]]
        moved.append(torch.cat([summed[-1].to(wire.device), marks.to(wire.device, summed[-1].dtype)]))
        with wire.explained():
            works = [dist.all_reduce(each, group=self.group, async_op=True) for each in moved]
        timer["comm"] += time.perf_counter() - begin
        return moved, works, like, name, error

    def wait_receive(self, handles: Handles, ctx: Ctx) -> Tensor:
        moved, works, like, name, error = handles
        begin, wire = time.perf_counter(), Wire(self.group, name)
        wire.wait(works)
        timer["comm"] += time.perf_counter() - begin
        ranks = self.ranks()
        if moved:
            if bool(moved[-1][-ranks:].any()):
                wire.raise_failure(error)
            moved[-1] = moved[-1][:-ranks]
        if self.compressor.average:
            moved = [each if each.element_size() < 4 else each.div_(ranks) for each in moved]
        return self.compressor.decompress([a.view(b.shape).to(b.device) for a, b in zip(moved, like)], ctx)


# ---- All to all ---------------------------------------------------------------------------------


class Parts(NamedTuple):
    """ctx of a tensor in as many parts as there are ranks."""

    shape: torch.Size
    dtype: torch.dtype
    parts: List[Context]


class InParts(Compressor):
    """A compressor of a tensor's parts, one for each rank: a frame for each."""

    def __init__(self, inner: PlanCompressor, ranks: int) -> None:
        super().__init__(inner.average, False)
        self.inner, self.ranks, self.linear, self.sparse = inner, ranks, False, inner.sparse

    def compress(self, tensor: Tensor, name: str) -> Tuple[List[Tensor], Parts]:
        flat, payload, ctx, error = tensor.detach().reshape(-1), [], [], None
        for i, part in enumerate(flat.tensor_split(self.ranks)):
            try:
                (frame,), told = self.inner.compress(part, f"{name}[part {i}]")
            except Exception as caught:  # the other parts have made a step, too, on the other ranks
                error = caught
                continue
            payload.append(frame)
            ctx.append(told)
        if error is not None:
            raise error
        return payload, Parts(tensor.shape, tensor.dtype, ctx)

    def skip(self, name: str) -> None:
        for i in range(self.ranks):
            self.inner.skip(f"{name}[part {i}]")

    def bound(self, elements: int) -> Optional[int]:
        return self.inner.bound(elements)

    def decompress(self, tensors: Sequence[Tensor], ctx: Parts) -> Tensor:
        return torch.cat([self.inner.decompress([a], b) for a, b in zip(tensors, ctx.parts)]).view(ctx.shape)


class AllToAll(Communicator):
    """A compressed reduce-scatter and an all-gather: each rank owns a part of the tensor, merges what the others send of it,
    compresses the sum, and sends that to all. With a memory that keeps what was not sent, the owner adds to the next sum what
    the second compression lost (as DoubleSqueeze does: Tang et al. 2019); `sums` has that by name.

    For compressors by plan without a feedback of their own. Frames go from rank to rank: gloo has no all-to-all in old
    versions of torch.
    """

    def __init__(
        self, compressor: Compressor, memory: Memory, world_size: Optional[int] = None, *, group: Optional[dist.ProcessGroup] = None
    ) -> None:
        super().__init__(compressor, memory, world_size, group=group)
        self.sums: Dict[str, Tensor] = {}  # of this rank's part, in the units of the memory

    @property
    def nbytes(self) -> int:
        own: int = sum(each.numel() * each.element_size() for each in self.sums.values())
        return super().nbytes + own

    def reset(self, name: Optional[str] = None) -> None:
        super().reset(name)
        self.sums = {} if name is None else {key: each for key, each in self.sums.items() if key != name}

    def state_dict(self) -> SavedState:
        return {**super().state_dict(), "sums": {name: each.clone() for name, each in self.sums.items()}}

    def load_state_dict(self, state: SavedState) -> None:
        super().load_state_dict(state)
        self.sums = {name: each.clone() for name, each in state.get("sums", {}).items()}

    def refuses(self, compressor: Compressor) -> Optional[str]:
        if not isinstance(compressor, PlanCompressor):
            return "each part is a frame: take a compressor by plan, or communicator allgather"
        if compressor.keeps:
            return f"the sum of a part is compressed again, with which the plan's feedback must not mix: {compressor.plan_for(1024)}"
        return None

    def _codec(self) -> Compressor:
        inner = self.compressor
        if not isinstance(inner, PlanCompressor):
            raise Unsupported(f"AllToAll takes compressors by plan, not {type(inner).__name__}")
        return InParts(inner, self.ranks())

    def async_refuse(self, name: str, error: Exception) -> Handles:
        return error, name

    def send_receive(self, tensors: Sequence[Tensor], name: str, ctx: Parts) -> Tensor:
        begin, wire = time.perf_counter(), Wire(self.group, name)
        refused = tensors if isinstance(tensors, Exception) else None
        own = [] if refused else listed(tensors)
        sizes = wire.gather_numbers([REFUSED] * wire.size if refused else [each.numel() for each in own])
        if any(REFUSED in row for row in sizes):
            wire.raise_failure(refused)
        inner, device = self.compressor, own[0].device
        assert isinstance(inner, PlanCompressor)
        mosts = [inner.bound(each.shape.numel()) for each in ctx.parts]
        for to, most in enumerate(mosts):
            wire.require_sizes([row[to] for row in sizes], [most] * wire.size)
        frames = [torch.empty(row[wire.rank], dtype=torch.uint8, device=wire.device) for row in sizes]
        frames[wire.rank] = own[wire.rank].to(wire.device)
        sent = [each.to(wire.device) for each in own]
        works = []
        with wire.explained():
            for distance in range(1, wire.size):  # each rank begins with another one
                to, source = (wire.rank + distance) % wire.size, (wire.rank - distance) % wire.size
                works.append(dist.isend(sent[to], global_rank(self.group, to), group=self.group))
                works.append(dist.irecv(frames[source], global_rank(self.group, source), group=self.group))
        wire.wait(works)
        timer["comm"] += time.perf_counter() - begin
        part, told = torch.empty(0, dtype=torch.uint8), ctx.parts[wire.rank]
        error: Optional[Exception] = None
        try:
            total, left = self.averaged(inner.merge([[each] for each in frames], told), told), None
            keeps, lr = getattr(self.memory, "keeps_what_was_not_sent", False), getattr(inner, "lr", 1.0)
            if keeps and name in self.sums:
                total += self.sums[name].to(total) / lr
            (part,), about = inner.compress(total.to(device), f"{name}[sum]")
            if keeps:
                left = total.to("cpu", copy=True)
                inner.decompress_add([part.to("cpu")], about, left, -1)
        except Exception as caught:
            self._name(caught)
            error = caught  # the others get no bytes, which is no frame
        begin = time.perf_counter()
        lengths = [row[0] for row in wire.gather_numbers([part.numel()])]
        wire.require_sizes(lengths, mosts)
        gather = Allgather(inner, self.memory, group=self.group)
        with wire.explained():
            buffers, works, _kept = gather._exchange(wire, part.to(wire.device), lengths)
        wire.wait(works)
        timer["comm"] += time.perf_counter() - begin
        if error is not None:
            raise error
        found = []
        for root, (buffer, length, told) in enumerate(zip(buffers, lengths, ctx.parts)):
            try:
                found.append(inner.decompress([buffer[:length].to(device)], Context(told.shape, told.dtype, None)))
            except Error as caught:
                caught.frame = root
                raise
        if left is not None:
            self.sums[name] = without_infinities(left) * lr
        return torch.cat(found).view(ctx.shape)
