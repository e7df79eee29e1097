"""How workers of an outer loop exchange: torch's DistributedDataParallel in each step, DiLoCo, SparseLoCo's published code of values, and
this library's plans."""

from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import nn

WAIT = 600.0  # seconds that a worker waits for another


@dataclass(frozen=True)
class OuterMethod:
    """kind: ddp (each step), outer (deepreduce.outer), published (PublishedValues). plan: of ours; of DDP without one, torch's. rate and
    momentum: of the outer optimizer, Nesterov's where there is momentum."""

    kind: str
    plan: Optional[str] = None
    rate: float = 1.0
    momentum: float = 0.0


BITS8 = "index=all value=uniform_quant(bits=8) exchange=owner"
CHUNKS = "sparsify=chunks(count={}) feedback=residual(beta=0.95) index=gap_huffman value=lloyd(levels=2)"  # sparseloco has 64
METHODS = {
    "ddp_f32": OuterMethod("ddp"),
    "ddp_bf16": OuterMethod("ddp", "bf16"),
    "ddp_ours": OuterMethod("ddp", "transform=lowrank(rank=4) feedback=residual"),
    "diloco_f32": OuterMethod("outer"),
    "diloco_int8": OuterMethod("outer", BITS8),
    "diloco_f32_nesterov": OuterMethod("outer", None, 0.7, 0.9),
    "published": OuterMethod("published"),
    "ours": OuterMethod("outer", "sparseloco"),
    "ours_nesterov": OuterMethod("outer", "sparseloco", 0.7, 0.9),
    **{f"ours_{count}": OuterMethod("outer", CHUNKS.format(count)) for count in (128, 512)},
    **{f"outer_lowrank{rank}": OuterMethod("outer", f"transform=lowrank(rank={rank}) feedback=residual") for rank in (1, 4)},
    "distro": OuterMethod("outer", "distro"),
}


def divisor(size: int) -> int:
    """The largest of at most 64."""
    return next(part for part in range(min(64, size), 0, -1) if size % part == 0)


class PublishedValues:
    """SparseLoCo with its published code of indices and values, from the paper (arXiv 2508.15706) and its open code (templar): of each
    chunk of 64 x 64 of a matrix the 64 largest of momentum and pseudo-gradient, 12 bits an index; of each tensor 4 bins over 6 standard
    deviations, 2 bits a value, and the mean of each bin. A chunk of a vector has 64 elements: all are sent. Outer rate 1.

    step() as of deepreduce.outer.Outer. sent, frame, elements: bytes and elements so far.
    """

    COUNT, BETA, BINS, RANGE = 64, 0.95, 4, 6.0

    def __init__(self, model: nn.Module, every: int) -> None:
        self.parameters, self.every, self.steps = list(model.parameters()), every, 0
        self.sent = self.frame = self.elements = 0
        order: List[torch.Tensor] = []  # of the elements of all parameters, one after the other: chunk by chunk
        self.parts: List[Tuple[int, int, int, int]] = []  # (begin, chunks, elements of a chunk, those sent)
        begin = 0
        for p in self.parameters:
            place = torch.arange(p.numel()).view(p.shape if p.dim() == 2 else (1, -1)) + begin
            rows, columns = place.shape
            height, width = divisor(rows), divisor(columns)
            chunks = place.view(rows // height, height, columns // width, width).transpose(1, 2).reshape(-1, height * width)
            order.append(chunks.flatten())
            self.parts.append((begin, len(chunks), chunks.shape[1], min(self.COUNT, chunks.shape[1])))
            begin += p.numel()
        self.order = torch.cat(order)
        self.base = torch.cat([(at + size * torch.arange(n)).repeat_interleave(k) for at, n, size, k in self.parts])
        self.tensor = torch.cat([torch.full((n * k,), i) for i, (_, n, _, k) in enumerate(self.parts)])
        self.agreed, self.residual = self._flat().clone(), torch.zeros(begin)

    def _flat(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in self.parameters])[self.order]

    def step(self) -> bool:
        self.steps += 1
        if self.steps % self.every:
            return False
        with torch.no_grad():
            self.residual.mul_(self.BETA).add_(self.agreed - self._flat())
            packed = self.encode()
            self.residual.index_add_(0, *self.decode(packed), alpha=-1)
            received = [torch.empty_like(packed) for _ in range(dist.get_world_size())]
            dist.all_gather(received, packed)
            for other in received:
                self.agreed.index_add_(0, *self.decode(other), alpha=-1 / len(received))
            flat = torch.empty_like(self.agreed)
            flat[self.order] = self.agreed
            for p, part in zip(self.parameters, flat.split([p.numel() for p in self.parameters])):
                p.copy_(part.view_as(p))
        self.frame += len(packed)
        self.sent += len(packed) * (len(received) - 1)
        self.elements += len(self.base)
        return True

    def encode(self) -> torch.Tensor:
        """Bytes: the means of bins, f32; indices, 12 bits; bins, 2 bits."""
        indices, bins, means = [], [], []
        for begin, chunks, size, count in self.parts:
            part = self.residual[begin : begin + chunks * size].view(chunks, size)
            chosen = part.abs().topk(count).indices
            values = part.gather(1, chosen).flatten()
            mean = values.mean()
            values = values - mean
            scale = self.RANGE * values.norm() / max(1, len(values) - 1) ** 0.5 / self.BINS
            bin_of = (values / scale + self.BINS // 2).round().nan_to_num(0).clamp(0, self.BINS - 1).long()
            number = torch.zeros(self.BINS).index_add_(0, bin_of, torch.ones_like(values)).clamp(min=1)
            means.append(torch.zeros(self.BINS).index_add_(0, bin_of, values) / number + mean)
            indices.append(chosen.flatten())
            bins.append(bin_of)
        index = padded(torch.cat(indices), 2)
        low, high = index[:, 0], index[:, 1]
        codes = (padded(torch.cat(bins), 4) << torch.tensor([0, 2, 4, 6])).sum(1)
        twelve = torch.stack([low & 255, low >> 8 | (high & 15) << 4, high >> 4], 1).flatten()
        return torch.cat([torch.cat(means).view(torch.uint8), twelve.to(torch.uint8), codes.to(torch.uint8)])

    def decode(self, packed: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """(places in the order of chunks, values)"""
        means, pairs = 16 * len(self.parts), -(-len(self.base) // 2)
        low, middle, high = packed[means : means + 3 * pairs].view(-1, 3).long().unbind(1)
        index = torch.stack([low | (middle & 15) << 8, middle >> 4 | high << 4], 1).flatten()[: len(self.base)]
        bins = (packed[means + 3 * pairs :, None].long() >> torch.tensor([0, 2, 4, 6]) & 3).flatten()[: len(self.base)]
        table = packed[:means].clone().view(torch.float32)
        return self.base + index, table[self.BINS * self.tensor + bins]


def padded(x: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, -len(x) % width)).view(-1, width)


def outer_of(method: OuterMethod, model: nn.Module, every: int, seed: int) -> Any:
    """What has the step() of an outer loop."""
    if method.kind == "published":
        return PublishedValues(model, every)
    import deepreduce.outer

    optimizer = lambda weights: torch.optim.SGD(weights, lr=method.rate, momentum=method.momentum, nesterov=method.momentum > 0)
    return deepreduce.outer.Outer(model, method.plan, every=every, optimizer=optimizer, seed=seed, timeout=WAIT)
