"""Compressors whose payloads are numbers, which an all-reduce can add up."""

from __future__ import annotations

from typing import List, NamedTuple, Sequence, Tuple

import torch
from torch import Tensor

from deepreduce.decoding import decode
from deepreduce.encoding import encode
from deepreduce.errors import ArgumentError, CorruptFrame
from .compressors import Context, Steps, count_of, flat_on_host, require_keys, require_ratio
from .contracts import Compressor, SavedState
from .meters import count


class NoneCompressor(Compressor):
    """Does not compress. The payload is the tensor's values, [d], not a copy."""

    linear, sparse = True, False

    def compress(self, tensor: Tensor, name: str) -> Tuple[List[Tensor], Context]:
        payload = [tensor.detach().reshape(-1)]
        count(payload, tensor)
        return payload, Context(tensor.shape, tensor.dtype, None)

    def decompress(self, tensors: Sequence[Tensor], ctx: Context) -> Tensor:
        return tensors[0].to(ctx.dtype, copy=True).view(ctx.shape)


class HalfCompressor(NoneCompressor):
    """The payload is the values in 16 bits, [d]. Magnitudes above the type's maximum become the maximum.

    dtype  torch.float16 or torch.bfloat16
    """

    def __init__(self, dtype: torch.dtype = torch.float16) -> None:
        super().__init__()
        if dtype not in (torch.float16, torch.bfloat16):
            raise ArgumentError(f"{dtype} is neither torch.float16 nor torch.bfloat16")
        self.dtype = dtype

    def compress(self, tensor: Tensor, name: str) -> Tuple[List[Tensor], Context]:
        if not tensor.is_floating_point():
            raise ArgumentError(f"{name} is {tensor.dtype}: only floating-point numbers can be sent in 16 bits")
        flat, limit = tensor.detach().reshape(-1), torch.finfo(self.dtype).max
        if torch.finfo(flat.dtype).max > limit:
            flat = flat.clamp(-limit, limit)
        payload = [flat.to(self.dtype)]
        count(payload, tensor)
        return payload, Context(tensor.shape, tensor.dtype, None)


class RandomContext(NamedTuple):
    """indices [k] int64: the same on every rank, since they depend on name, step and seed only."""

    shape: torch.Size
    dtype: torch.dtype
    indices: Tensor


class RandomKCompressor(Compressor):
    """Random-k (Stich et al. 2018): the values at random positions, drawn without replacement, the same on all ranks.

    compress_ratio  k / d, above 0 and at most 1; k is int(d * ratio), at least 1
    seed            the same on every rank; the random generators of torch are not used

    The payload is only the values, [k] of the tensor's type, so an all-reduce can add them up.
    """

    linear, sparse = True, True

    def __init__(self, compress_ratio: float = 0.3, *, seed: int = 0) -> None:
        super().__init__()
        self.compress_ratio, self._seed, self._steps = require_ratio(compress_ratio), seed, Steps()

    def sparsify(self, elements: int) -> str:
        return f"random(count={max(1, count_of(self.compress_ratio, elements))})"

    def compress(self, tensor: Tensor, name: str) -> Tuple[List[Tensor], RandomContext]:
        step, key = self._steps.next(name)
        flat = flat_on_host(tensor, name)
        plan = f"sparsify={self.sparsify(flat.numel())} index=raw value=raw"
        chosen = decode(encode(flat, plan, step=step, seed=self._seed, key=key), sparse=True, like=flat, tensors=0)
        payload = [chosen.values.to(tensor.device)]
        count(payload, tensor)
        return payload, RandomContext(tensor.shape, tensor.dtype, chosen.indices.to(tensor.device))

    def skip(self, name: str) -> None:
        self._steps.next(name)

    def decompress(self, tensors: Sequence[Tensor], ctx: RandomContext) -> Tensor:
        out = torch.zeros(ctx.shape, dtype=ctx.dtype, device=tensors[0].device)
        self.decompress_add(tensors, ctx, out)
        return out

    def decompress_add(self, tensors: Sequence[Tensor], ctx: RandomContext, out: Tensor, scale: float = 1.0) -> None:
        if tensors[0].shape != ctx.indices.shape:
            raise CorruptFrame(f"{tensors[0].numel()} values for the {len(ctx.indices)} positions that this rank has drawn")
        out.view(-1).index_add_(0, ctx.indices.to(out.device), tensors[0].to(out.dtype), alpha=scale)

    def merge(self, payloads: Sequence[Sequence[Tensor]], ctx: RandomContext) -> Tensor:
        if type(self).aggregate is not Compressor.aggregate:
            return super().merge(payloads, ctx)
        return self.decompress([Compressor.aggregate(self, [payload[0] for payload in payloads])], ctx)

    def state_dict(self) -> SavedState:
        return {"steps": dict(self._steps.steps)}

    def load_state_dict(self, state: SavedState) -> None:
        require_keys(self, state, "steps")
        self._steps.steps = dict(state["steps"])
