"""deepreduce.torch: gradients that arrive sparse, some rows of a matrix (Embedding(sparse=True))."""

from __future__ import annotations

import math
import time
import zlib
from typing import Any, List, Optional, Sequence, Set, Tuple

import numpy
import torch

from ..encoding import encode
from ..errors import CorruptFrame, Error, Unsupported
from ..merging import merge
from ..tensor import Sparse
from ._engine import Engine, Step, is_finite
from ._heads import HEAD, NOT_FINITE, read_heads, write_head
from ._slots import Room, Slots
from ._unit import Item

_PREFIX = HEAD + 8  # bytes of a slot before its frame: a head, and the size of the frame
_HEADER = 4096  # bytes of a frame beside the rows, at most


def sparse_parameters(module: Any) -> Set[int]:
    """Ids of the parameters whose gradients DistributedDataParallel expects to be sparse."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    found = [each for each in module.modules() if isinstance(each, kinds) and each.sparse]
    return {id(parameter) for each in found for parameter in each.parameters(recurse=False)}


class RowsUnit:
    """A tensor of torch.sparse_coo that travels by itself: its rows in a frame, by one all-gather of slots of one size. The
    result is the union of all ranks' rows, in the tensor itself.

    How many rows there are differs between ranks and steps: of a frame that outgrows its slot all ranks send the rest.
    """

    parts: Sequence[Any] = ()  # of dense frames

    def __init__(self, items: Sequence[Item], engine: Engine, seed: int) -> None:
        (self._item,) = self.items = list(items)
        assert self._item.shape is not None
        self.arrived = 0
        self._engine, self._seed = engine, seed
        self._shape: Tuple[int, ...] = tuple(self._item.shape)
        width = self._item.elements // max(1, self._shape[0])
        self._rows = (self._shape[0], width) if len(self._shape) > 1 else (self._shape[0],)
        self._most = _HEADER + self._shape[0] * 8 + self._item.elements * 4
        self.most = self._most
        self._digest = zlib.crc32(f"rows {self._item.name} {self._shape} {self._item.dtype} {self._item.plan}".encode())
        self._tensor: Any = None
        self._failed: Optional[Error] = None  # why this rank could not encode
        self._slots = Slots(engine, Room(_PREFIX + self._most, _PREFIX))
        self._device: Optional[torch.device] = None  # of the slots that travel, if it is not the CPU
        self._tag = 0
        try:
            encode(self._sparse(torch.zeros(1, dtype=torch.int64), torch.zeros(1, width, dtype=self._item.dtype)), self._item.plan, step=0)
        except Error as error:
            raise Unsupported(
                f"{self._item.name}: rows of its sparse gradient do not go with `{self._item.plan}`: {error}; give it a plan"
                f" of its own: {{{self._item.name!r}: None, '*': …}} sends them exactly"
            ) from None

    def _sparse(self, indices: torch.Tensor, values: torch.Tensor) -> Sparse:
        return Sparse(indices, values.reshape(-1, *self._rows[1:]), self._rows)

    def place(self, position: int, tensor: torch.Tensor) -> None:
        """The tensor of this step, of which the result takes the place."""
        self._tensor = tensor
        self._device = self._engine.slot_device(tensor.device)

    def start(self, number: int, step: Step) -> None:
        """Encodes the rows and issues the collective. number: of the step."""
        begin = time.perf_counter()
        self._tag, self._failed = self._digest << 32 | number & 0xFFFFFFFF, None
        given = self._tensor.detach().coalesce()
        rows = self._sparse(given.indices()[0].cpu(), given.values().cpu().contiguous())
        options: Any = {
            "step": number, "seed": self._seed, "private_seed": self._engine.rank, "tag": self._tag,
            "key": zlib.crc32(self._item.name.encode()) + 1,
        }  # fmt: skip
        skips = self._engine.skips and not is_finite(given.values())
        try:
            made = b"" if skips else encode(rows, self._item.plan, **options)
        except Error as error:
            self._failed, skips = self._named(error), self._engine.skips
            made = encode(rows, self._item.plan, status_frame=True, **options)
        frame = numpy.frombuffer(made, numpy.uint8)
        slot = numpy.empty(_PREFIX + frame.size, numpy.uint8)
        slot[HEAD:_PREFIX].view(numpy.uint64)[:] = frame.size
        write_head(slot[:_PREFIX], self._engine, self._tag, NOT_FINITE if skips else 0)
        slot[_PREFIX:] = frame
        step.encode += time.perf_counter() - begin
        step.frame += frame.size
        step.dense += bytes_of(given)
        step.kept += given.values().numel()
        self._slots.issue(f"step {number}, rows {self._digest:08x}", torch.from_numpy(slot), self._device, step)

    def _sizes(self, slots: Any) -> List[int]:
        """Of the frame of each rank."""
        sizes: List[int] = slots[:, HEAD:_PREFIX].copy().view(numpy.uint64).ravel().tolist()
        for rank, size in enumerate(sizes):
            if size > self._most:
                raise self._named(CorruptFrame(f"a frame of {size} bytes, more than the {self._most} of any", frame=rank))
        return sizes

    def finish(self, deadline: float, step: Step) -> bool:
        """Waits, and makes the tensor the mean of all ranks. It is untouched if something is raised. True: a rank asks to
        skip the step, and it is untouched."""
        slots = self._slots.wait(deadline, step)
        if read_heads(slots[:, :_PREFIX].copy(), self._engine):
            return True
        sizes = self._sizes(slots)
        longest = _PREFIX + max(sizes)
        if longest > slots.shape[1]:
            slots = self._slots.rest(longest, deadline, step)
        self._slots.took(longest)
        frames = [slot[_PREFIX : _PREFIX + size] for slot, size in zip(slots, sizes)]
        if self._failed is not None:
            raise self._failed
        begin, n = time.perf_counter(), self._engine.size
        try:
            options: Any = {"tag": self._tag, "max_elements": max(1, self._item.elements)}
            mean = merge(frames, weights=[1 / n] * n, sparse=True, **options)
        except Error as error:
            raise self._named(error) from None
        values = torch.from_numpy(mean.values).reshape(-1, *self._shape[1:]).to(self._item.dtype)
        self._put(numpy.ascontiguousarray(mean.indices, numpy.int64), values)
        step.merge += time.perf_counter() - begin
        return False

    def skip(self) -> None:
        """The step is skipped: the tensor has a row of NaN."""
        self._put(numpy.zeros(1, numpy.int64), torch.full((1, *self._shape[1:]), math.nan, dtype=self._item.dtype))

    def _put(self, rows: Any, values: torch.Tensor) -> None:
        indices = torch.from_numpy(rows)[None]
        made = torch.sparse_coo_tensor(indices, values, self._shape, is_coalesced=True, check_invariants=False)
        with torch.no_grad():
            self._tensor.copy_(made.to(self._tensor.device))

    def take_back(self) -> None:
        """The step has failed. All rows are sent in each step, and nothing is kept of them."""
        self._tensor = None

    def withdraw(self) -> None:
        """Nothing was taken back."""

    def _named(self, error: Error) -> Error:
        self._engine.named(error)
        error.args = (f"{self._item.name}: {error}",)
        return error


def bytes_of(tensor: torch.Tensor) -> int:
    """Of a sparse tensor's indices and values."""
    indices, values = tensor._indices(), tensor._values()
    return int(indices.numel() * indices.element_size() + values.numel() * values.element_size())
