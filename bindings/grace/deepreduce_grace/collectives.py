"""Communicators over torch.distributed. A payload is sent as one tensor of bytes, by one collective after that of the
sizes. Its own tensors may have any type and any number of dimensions.

Payloads may come from any compressor, so a deepreduce.Sender cannot send them (compressors.py explains why it does not send
frames by plan, either). AllToAll corresponds to a sender's `exchange=owner`, for one tensor at a time, and with the error in a
memory of the caller.
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
    """[n] uint8: a copy of the tensors, one after the other."""
    # (One element is contiguous by any strides; with its own, views of bytes are refused.)
    flat = [tensor.detach().contiguous().as_strided((tensor.numel(),), (1,)) for tensor in tensors]
    return torch.cat([x.view(torch.uint8) for x in flat] or [torch.empty(0, dtype=torch.uint8)])


def from_bytes(blob: Tensor, like: Sequence[Tensor], sizes: Sequence[int]) -> List[Tensor]:
    """Tensors of `sizes` elements, with the types and devices of `like`; if it has as many elements, with its shape, too."""
    found, at = [], 0
    for template, elements in zip(like, sizes):
        size = elements * template.element_size()
        part = blob[at : at + size].clone().to(template.device).view(template.dtype)  # a clone is aligned
        found.append(part.view(template.shape) if elements == template.numel() else part)
        at += size
    return found


def types_of(tensors: Sequence[Tensor]) -> str:
    return ", ".join(str(tensor.dtype) for tensor in tensors) or "empty"


class Arriving(NamedTuple):
    """Payloads in transfer, a buffer of bytes per rank.

    error   of this rank, which sends no payload; None: it sends one
    failed  some rank sends no payload, and all ranks know it already
    sized   a buffer begins with the numbers of elements of its tensors. Otherwise all ranks send tensors of the sizes of this
            rank's, and a byte after them is 1 if the rank has refused
    alive   an object that must exist as long as the works
    """

    works: List[dist.Work]
    buffers: List[Tensor]
    like: List[Tensor]
    name: str
    error: Optional[Exception]
    failed: bool
    sized: bool
    alive: object

    def payloads(self, wire: Wire) -> List[List[Tensor]]:
        """Waits for the payloads of all ranks. Raises on all ranks if one has refused."""
        begin = time.perf_counter()
        wire.wait(self.works)
        refused = self.failed or (not self.sized and any(int(buffer[-1]) for buffer in self.buffers))
        timer["comm"] += time.perf_counter() - begin
        if refused:
            wire.raise_failure(self.error)
        if self.sized:
            return [self._split(rank, buffer) for rank, buffer in enumerate(self.buffers)]
        own = [tensor.numel() for tensor in self.like]
        return [from_bytes(buffer, self.like, own) for buffer in self.buffers]

    def _split(self, rank: int, buffer: Tensor) -> List[Tensor]:
        """The tensors of a buffer that begins with their sizes. CorruptFrame if it is not such a buffer."""
        begin = _NUMBER * len(self.like)
        sizes: List[int] = buffer[:begin].cpu().clone().view(torch.int64).tolist() if len(buffer) >= begin else []
        need = sum(n * tensor.element_size() for n, tensor in zip(sizes, self.like))
        if len(sizes) != len(self.like) or any(n < 0 for n in sizes) or begin + need > len(buffer):
            raise CorruptFrame(f"{len(buffer)} bytes are not a payload of {len(self.like)} tensors", frame=rank)
        return from_bytes(buffer[begin:], self.like, sizes)


class Gathering(Communicator):
    """Base of Allgather and Broadcast: every rank receives the payloads of all ranks, and aggregates them."""

    _collective = "an all-gather"

    def refuses(self, compressor: Compressor) -> Optional[str]:
        if getattr(compressor, "reduces", False):
            return "it reduces its factors while it compresses: use communicator allreduce"
        return None

    def async_send(self, tensors: Sequence[Tensor], name: str) -> Arriving:
        like = listed(tensors)
        if not self.compressor.tensors_size_are_same and any(tensor.dim() != 1 for tensor in like):
            words = f"{name}: tensors whose sizes differ must have one dimension; these have {[tensor.dim() for tensor in like]}"
            return self.async_refuse(name, ArgumentError(words))
        return self._send(like, name, None)

    def async_refuse(self, name: str, error: Exception) -> Arriving:
        return self._send([], name, error)

    def _send(self, like: List[Tensor], name: str, error: Optional[Exception]) -> Arriving:
        self.ranks()
        begin, wire, sized = time.perf_counter(), Wire(self.group, name), not self.compressor.tensors_size_are_same
        place = like[0].device if like else wire.device
        if sized:
            numbers = torch.tensor([tensor.numel() for tensor in like], dtype=torch.int64, device=place)
            blob = as_bytes([numbers, *like]).to(wire.device)
            lengths = wire.gather_sizes(len(blob), error, self._form(like))
            if REFUSED in lengths:
                return Arriving([], [], like, name, error, True, sized, None)
            bound = self._bounds.get(name)
            wire.require_sizes(lengths, [None if bound is None else max(len(blob), _NUMBER * len(like) + bound)] * wire.size)
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
            buffers, works, alive = self._exchange(wire, blob, lengths)
        timer["comm"] += time.perf_counter() - begin
        return Arriving(works, buffers, like, name, error, False, sized, alive)

    def _form(self, like: Sequence[Tensor]) -> str:
        """A description of what this rank sends, the same on all ranks (`Wire.gather_sizes`)."""
        sizes = "of one size" if self.compressor.tensors_size_are_same else "of sizes that differ"
        return f"payloads {sizes}, {types_of(like)}, by {self._collective}"

    def _exchange(self, wire: Wire, blob: Tensor, lengths: List[int]) -> Tuple[List[Tensor], List[dist.Work], object]:
        """Starts the exchange. Returns (a buffer per rank, works, an object that must exist as long as the works)."""
        raise NotImplementedError

    def wait_receive(self, handles: Arriving, ctx: Ctx) -> Tensor:
        payloads = handles.payloads(Wire(self.group, handles.name))
        begin = time.perf_counter()
        merge: Callable[..., Tensor] = getattr(self.compressor, "merge", None) or self._merge
        total = self.averaged(merge(payloads, ctx), ctx)
        timer["en/decoding"] += time.perf_counter() - begin
        return total

    def _merge(self, payloads: Sequence[Sequence[Tensor]], ctx: Ctx) -> Tensor:
        return self.compressor.aggregate([self.compressor.decompress(payload, ctx) for payload in payloads])


class Allgather(Gathering):
    """One all-gather of bytes, padded to the longest payload. If sizes may differ, an all-gather of the sizes comes first. For every
    compressor except powersgd. It is asynchronous by send_step and receive_step."""

    def _exchange(self, wire: Wire, blob: Tensor, lengths: List[int]) -> Tuple[List[Tensor], List[dist.Work], object]:
        longest = max(lengths)
        buffers = [torch.empty(longest, dtype=torch.uint8, device=wire.device) for _ in lengths]
        if longest == 0:  # all ranks know the lengths: no rank sends or waits
            return buffers, [], None
        if len(blob) < longest:
            blob = torch.cat([blob, blob.new_zeros(longest - len(blob))])
        return buffers, [dist.all_gather(buffers, blob, group=wire.group, async_op=True)], blob


class Broadcast(Gathering):
    """A broadcast from every rank in turn, of its own number of bytes. Compared with Allgather it sends less if sizes differ
    widely, and has more rounds.

    rank  this rank, an argument of GRACE; None: that of the process group
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
    """An all-reduce of the payload's numbers. The sum is decompressed, once. For compressors whose payloads can be added up: none, fp16,
    bf16, randomk, powersgd."""

    def refuses(self, compressor: Compressor) -> Optional[str]:
        if getattr(compressor, "linear", None) is False:
            return "its payloads cannot be added up: use communicator allgather; those of none, fp16, bf16, randomk and powersgd can"
        return None

    def _divides(self, tensor: Tensor) -> bool:
        """Whether it divides by the ranks before the sum: 16 bits overflow soon."""
        return tensor.is_floating_point() and tensor.element_size() < 4 and self.compressor.average

    def received(self, payload: Sequence[Tensor]) -> Sequence[Tensor]:
        """Dividing in 16 bits rounds once more. In float32, since a multiple of what was sent may have no 16 bits."""
        ranks = self.ranks()
        return [(tensor.detach() / ranks).float() * ranks if self._divides(tensor) else tensor for tensor in listed(payload)]

    def async_send(self, tensors: Sequence[Tensor], name: str) -> Handles:
        like = listed(tensors)
        wrong = next((tensor.dtype for tensor in like if not tensor.is_floating_point()), None)
        if wrong is not None:
            return self.async_refuse(name, ArgumentError(f"{name}: the payload is {wrong}, which an all-reduce cannot average: use allgather"))
        return self._send(like, name, None)

    def async_refuse(self, name: str, error: Exception) -> Handles:
        return self._send([], name, error)

    def _send(self, like: List[Tensor], name: str, error: Optional[Exception]) -> Handles:
        ranks, begin, wire = self.ranks(), time.perf_counter(), Wire(self.group, name)
        if not like and error is None:  # the compressor has reduced already
            return [], [], [], name, None
        kinds, size = [(tensor.numel(), tensor.dtype) for tensor in like], sum(tensor.numel() * tensor.element_size() for tensor in like)
        agreed = self._sizes.get(name)
        if agreed is None:
            wire.agree_on(size, error, f"payloads of one size, {types_of(like)}, by an all-reduce")
            agreed = self._sizes[name] = kinds
        if error is None and kinds != agreed:
            error = other_size(name, size, sum(n * dtype.itemsize for n, dtype in agreed))
        # One element per rank is appended to the last tensor: 1 if the rank has refused.
        marks, summed = torch.zeros(ranks), []
        if error is None:
            summed = [(tensor.detach() / ranks if self._divides(tensor) else tensor.detach()).reshape(-1) for tensor in like]
        else:
            marks[wire.rank] = 1
            summed = [torch.zeros(n, dtype=dtype) for n, dtype in agreed]
        moved = [flat.to(wire.device, copy=True) for flat in summed[:-1]]
        moved.append(torch.cat([summed[-1].to(wire.device), marks.to(wire.device, summed[-1].dtype)]))
        with wire.explained():
            works = [dist.all_reduce(flat, group=self.group, async_op=True) for flat in moved]
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
            moved = [flat if flat.element_size() < 4 else flat.div_(ranks) for flat in moved]
        return self.compressor.decompress([a.view(b.shape).to(b.device) for a, b in zip(moved, like)], ctx)


# ---- All to all ---------------------------------------------------------------------------------


class Parts(NamedTuple):
    """The ctx of a tensor that is cut into one part per rank."""

    shape: torch.Size
    dtype: torch.dtype
    parts: List[Context]


class InParts(Compressor):
    """Compresses one part of a tensor per rank, as a frame of its own."""

    def __init__(self, inner: PlanCompressor, ranks: int) -> None:
        super().__init__(inner.average, False)
        self.inner, self.ranks, self.linear, self.sparse = inner, ranks, False, inner.sparse

    def compress(self, tensor: Tensor, name: str) -> Tuple[List[Tensor], Parts]:
        flat, payload, ctx, error = tensor.detach().reshape(-1), [], [], None
        for i, part in enumerate(flat.tensor_split(self.ranks)):
            try:
                (frame,), part_ctx = self.inner.compress(part, f"{name}[part {i}]")
            except Exception as caught:  # compress the other parts, too: their steps continue on the other ranks
                error = caught
                continue
            payload.append(frame)
            ctx.append(part_ctx)
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
    """A compressed reduce-scatter and an all-gather. Every rank owns a part of the tensor. It merges the frames of this part from
    all ranks, compresses the sum, and sends it to all ranks. With a memory that stores what was not sent, the owner adds the error
    of the second compression to the next sum (as DoubleSqueeze does: Tang et al. 2019); `sums` has these errors, by name.

    For compressors by plan without a feedback of their own. Frames are sent from rank to rank, because gloo has no all-to-all in
    old versions of torch.
    """

    def __init__(
        self, compressor: Compressor, memory: Memory, world_size: Optional[int] = None, *, group: Optional[dist.ProcessGroup] = None
    ) -> None:
        super().__init__(compressor, memory, world_size, group=group)
        self.sums: Dict[str, Tensor] = {}  # errors of this rank's part, in the units of the memory

    @property
    def nbytes(self) -> int:
        own: int = sum(left.numel() * left.element_size() for left in self.sums.values())
        return super().nbytes + own

    def reset(self, name: Optional[str] = None) -> None:
        super().reset(name)
        self.sums = {} if name is None else {key: left for key, left in self.sums.items() if key != name}

    def state_dict(self) -> SavedState:
        return {**super().state_dict(), "sums": {name: left.clone() for name, left in self.sums.items()}}

    def load_state_dict(self, state: SavedState) -> None:
        super().load_state_dict(state)
        self.sums = {name: left.clone() for name, left in state.get("sums", {}).items()}

    def refuses(self, compressor: Compressor) -> Optional[str]:
        if not isinstance(compressor, PlanCompressor):
            return "each part is a frame: use a compressor by plan, or communicator allgather"
        if compressor.keeps:
            return f"the sum of a part is compressed again, and must not be mixed with the plan's feedback: {compressor.plan_for(1024)}"
        return None

    def _codec(self) -> Compressor:
        inner = self.compressor
        if not isinstance(inner, PlanCompressor):
            raise Unsupported(f"AllToAll requires a compressor by plan, not {type(inner).__name__}")
        return InParts(inner, self.ranks())

    def async_refuse(self, name: str, error: Exception) -> Handles:
        return error, name

    def send_receive(self, tensors: Sequence[Tensor], name: str, ctx: Parts) -> Tensor:
        begin, wire = time.perf_counter(), Wire(self.group, name)
        refused = tensors if isinstance(tensors, Exception) else None
        own = [] if refused else listed(tensors)
        sizes = wire.gather_numbers([REFUSED] * wire.size if refused else [frame.numel() for frame in own])
        if any(REFUSED in row for row in sizes):
            wire.raise_failure(refused)
        inner, device = self.compressor, own[0].device
        assert isinstance(inner, PlanCompressor)
        limits = [inner.bound(part_ctx.shape.numel()) for part_ctx in ctx.parts]
        for to, limit in enumerate(limits):
            wire.require_sizes([row[to] for row in sizes], [limit] * wire.size)
        frames = [torch.empty(row[wire.rank], dtype=torch.uint8, device=wire.device) for row in sizes]
        frames[wire.rank] = own[wire.rank].to(wire.device)
        sent = [frame.to(wire.device) for frame in own]
        works = []
        with wire.explained():
            for distance in range(1, wire.size):  # every rank begins with a different one
                to, source = (wire.rank + distance) % wire.size, (wire.rank - distance) % wire.size
                works.append(dist.isend(sent[to], global_rank(self.group, to), group=self.group))
                works.append(dist.irecv(frames[source], global_rank(self.group, source), group=self.group))
        wire.wait(works)
        timer["comm"] += time.perf_counter() - begin
        part, own_ctx = torch.empty(0, dtype=torch.uint8), ctx.parts[wire.rank]
        error: Optional[Exception] = None
        try:
            total, left = self.averaged(inner.merge([[frame] for frame in frames], own_ctx), own_ctx), None
            has_residual, lr = getattr(self.memory, "keeps_what_was_not_sent", False), getattr(inner, "lr", 1.0)
            if has_residual and name in self.sums:
                total += self.sums[name].to(total) / lr
            (part,), sum_ctx = inner.compress(total.to(device), f"{name}[sum]")
            if has_residual:
                left = total.to("cpu", copy=True)
                inner.decompress_add([part.to("cpu")], sum_ctx, left, -1)
        except Exception as caught:
            self._name(caught)
            error = caught  # the others receive 0 bytes, which are not a frame
        begin = time.perf_counter()
        lengths = [row[0] for row in wire.gather_numbers([part.numel()])]
        wire.require_sizes(lengths, limits)
        gather = Allgather(inner, self.memory, group=self.group)
        with wire.explained():
            buffers, works, _alive = gather._exchange(wire, part.to(wire.device), lengths)
        wire.wait(works)
        timer["comm"] += time.perf_counter() - begin
        if error is not None:
            raise error
        found = []
        for root, (buffer, length, part_ctx) in enumerate(zip(buffers, lengths, ctx.parts)):
            try:
                found.append(inner.decompress([buffer[:length].to(device)], Context(part_ctx.shape, part_ctx.dtype, None)))
            except Error as caught:
                caught.frame = root
                raise
        if left is not None:
            self.sums[name] = without_infinities(left) * lr
        return torch.cat(found).view(ctx.shape)
