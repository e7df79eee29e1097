"""Sparsifiers with GRACE's public payloads, (values, indices), for code that reads them. The shim uses these."""

from __future__ import annotations

from typing import Callable, Sequence, Tuple

import torch
from torch import Tensor

from deepreduce.encoding import encode
from deepreduce.errors import CorruptFrame
from .compressors import Steps, count_of, flat_on_host, require_keys, require_ratio, sparse_of
from .contracts import Compressor, Ctx, SavedState
from .factory import named
from .method_table import TOP_K_KERNELS, Threshold, dgc, top_k
from .meters import count


_VALUE, _INDEX = 4, 4  # maximum bytes


class PairCompressor(Compressor):
    """`compress` returns ((values [k] of the tensor's type, indices [k] int32), the tensor's size). The library selects.

    sparsify  as for Sparsifier: wrappers of deepreduce_from_params use this stage
    """

    linear, sparse = False, True

    def __init__(self, sparsify: Callable[[int], str], tensors_size_are_same: bool) -> None:
        super().__init__(True, tensors_size_are_same)
        self.sparsify, self._steps = sparsify, Steps()

    def compress(self, tensor: Tensor, name: str) -> Tuple[Sequence[Tensor], Ctx]:
        payload = self._select(tensor, name)
        count(payload, tensor)
        return payload, tensor.size()

    def _select(self, tensor: Tensor, name: str) -> Tuple[Tensor, Tensor]:
        step, key = self._steps.next(name)
        flat = flat_on_host(tensor, name)
        plan = f"sparsify={self.sparsify(flat.numel())} index=raw value=raw"
        found = sparse_of(encode(flat, plan, step=step, key=key), flat)
        return found.values.to(tensor.device), found.indices.to(tensor.device, torch.int32)

    def bound(self, elements: int) -> int:
        return (_VALUE + _INDEX) * elements

    def skip(self, name: str) -> None:
        self._steps.next(name)

    def decompress(self, tensors: Sequence[Tensor], ctx: Ctx) -> Tensor:
        values, _ = tensors
        dense = torch.zeros(self._shape(ctx), dtype=values.dtype, device=values.device)
        self.decompress_add(tensors, ctx, dense)
        return dense

    def decompress_add(self, tensors: Sequence[Tensor], ctx: Ctx, out: Tensor, scale: float = 1.0) -> None:
        values, indices = tensors
        if values.shape != indices.shape or (len(indices) and not 0 <= indices.min() <= indices.max() < out.numel()):
            raise CorruptFrame(f"{len(values)} values at {len(indices)} indices, which differ in number or are not all below {out.numel()}")
        out.view(-1).index_add_(0, indices.to(out.device, torch.int64), values.to(out.dtype), alpha=scale)

    def merge(self, payloads: Sequence[Sequence[Tensor]], ctx: Ctx) -> Tensor:
        if type(self).aggregate is not Compressor.aggregate:
            return super().merge(payloads, ctx)
        total = torch.zeros(self._shape(ctx), dtype=payloads[0][0].dtype, device=payloads[0][0].device)
        for rank, payload in enumerate(payloads):
            try:
                self.decompress_add(payload, ctx, total)
            except CorruptFrame as error:
                error.frame = rank
                raise
        return total

    def _shape(self, ctx: Ctx) -> torch.Size:
        return ctx

    def state_dict(self) -> SavedState:
        return {"steps": dict(self._steps.steps)}

    def load_state_dict(self, state: SavedState) -> None:
        require_keys(self, state, "steps")
        self._steps.steps = dict(state["steps"])


class TopKCompressor(PairCompressor):
    """The int(d * compress_ratio) largest magnitudes, at least one; of equal magnitudes the lower index wins. kernel: GRACE's names;
    with all of them the library selects exactly."""

    def __init__(self, compress_ratio: float = 0.3, kernel: str = "torch") -> None:
        named("kernel of topk", kernel, TOP_K_KERNELS)
        super().__init__(top_k(compress_ratio), tensors_size_are_same=True)
        self.compress_ratio = compress_ratio

    def _select(self, tensor: Tensor, name: str) -> Tuple[Tensor, Tensor]:
        values, indices = super()._select(tensor, name)
        k = count_of(self.compress_ratio, tensor.numel())
        if len(values) < k:  # zeros are not selected, but all ranks must send the same number
            zeros = (tensor.detach().reshape(-1) == 0).nonzero().view(-1)[: k - len(values)]
            values = torch.cat([values, values.new_zeros(len(zeros))])
            indices = torch.cat([indices, zeros.to(torch.int32)])
        return values, indices


class ThresholdCompressor(PairCompressor):
    """All magnitudes of at least `threshold`, never zeros. There may be none."""

    def __init__(self, threshold: float = 0.01) -> None:
        super().__init__(Threshold(threshold), tensors_size_are_same=False)
        self.threshold = threshold


class DgcCompressor(PairCompressor):
    """Deep Gradient Compression's sampled threshold; the ctx is (size, mask [d] bool, d), as DgcMemory requires it."""

    def __init__(self, compress_ratio: float = 0.3) -> None:
        super().__init__(dgc(compress_ratio), tensors_size_are_same=False)
        self.compress_ratio = require_ratio(compress_ratio)

    def compress(self, tensor: Tensor, name: str) -> Tuple[Sequence[Tensor], Ctx]:
        payload, shape = super().compress(tensor, name)
        mask = torch.zeros(tensor.numel(), dtype=torch.bool, device=tensor.device)
        mask[payload[1].long()] = True
        return payload, (shape, mask, tensor.numel())

    def _shape(self, ctx: Ctx) -> torch.Size:
        return ctx[0]


