"""TopKCompressor: the interface of SparseLoCo's published code, over frames."""

from __future__ import annotations

import math
from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy
import torch

from .._native._call import require_kind, unsigned
from ..decoding import decode
from ..encoding import encode
from ..errors import ArgumentError

Compressed = Tuple[torch.Tensor, torch.Tensor, Tuple[int, ...], int]
Tensors = Union[torch.Tensor, Sequence[torch.Tensor]]


class TopKCompressor:
    """For programs that call the TopKCompressor of SparseLoCo's published code (tplr-ai/templar, src/tplr/compress.py): the same calls
    with the same meaning, in fewer bytes. `idx` is a frame of indices and values; `val` is only their norm. Remove code that
    reads inside either, such as templar's own check of received indices: decompressing a frame checks it.

    use_quantization   values of 2 bits: two fitted magnitudes and a sign; otherwise float32
    quantization_bins, quantization_range  are accepted and ignored

    >>> compressor = deepreduce.outer.TopKCompressor(use_quantization=True)    # doctest: +SKIP
    >>> idx, val, xshape, totalk, quant_params = compressor.compress(chunks, 64)    # doctest: +SKIP
    >>> mean = compressor.batch_decompress(p, [idx, …], [val, …], xshape, totalk, [quant_params, …])    # doctest: +SKIP
    """

    def __init__(self, *, use_quantization: bool = False, quantization_bins: int = 4, quantization_range: int = 6) -> None:
        self.use_quantization, self.n_bins, self.range_in_sigmas = use_quantization, quantization_bins, quantization_range

    def compress(self, x: torch.Tensor, topk: int) -> Tuple[Any, ...]:
        """Encodes the `topk` largest elements of each chunk (rounded to an even number, at least 2). x: chunks, [y, x, h, w] of a
        matrix or [x, w]. Returns (idx, val, shape, elements of a chunk), with use_quantization followed by None."""
        if hasattr(x, "to_local"):
            x = x.to_local()
        require_kind(x, "x", torch.Tensor)
        if x.dim() not in (2, 4):
            raise ArgumentError(f"x has the shape {list(x.shape)}: chunks are [y, x, h, w] or [x, w]")
        size = math.prod(x.shape[2:]) if x.dim() == 4 else int(x.shape[1])
        count = max(min(unsigned(topk, "topk"), size), 2) // 2 * 2
        value = "lloyd(levels=2)" if self.use_quantization else "raw"
        # (A chunk of one element is sent whole.)
        chosen = f"sparsify=chunks(size={size},count={count})" if count < size else "sparsify=none"
        flat = x.detach().to("cpu", torch.float32).contiguous().reshape(-1)
        frame = encode(flat, f"{chosen} index={'gap_huffman' if count < size else 'all'} value={value}")
        values = decode(frame)
        idx = torch.from_numpy(numpy.frombuffer(frame, numpy.uint8).copy()).to(x.device)
        val = torch.tensor([float(numpy.linalg.norm(values))], device=x.device)
        found = idx, val, tuple(x.shape), size
        return (*found, None) if self.use_quantization else found

    def decompress(
        self, p: torch.Tensor, idx: torch.Tensor, val: torch.Tensor, xshape: Sequence[int], totalk: int, quantize_params: Any = None
    ) -> torch.Tensor:
        """Returns the chunks, in p's type and on its device. Raises CorruptFrame, and ArgumentError for a frame of another shape."""
        return self._decoded(idx, xshape).reshape(tuple(xshape)).to(p.device, p.dtype)

    def batch_decompress(
        self, p: torch.Tensor, idx: Tensors, val: Tensors, xshape: Sequence[int], totalk: int, quantize_params: Any = None, *,
        block_norms: Optional[torch.Tensor] = None, normalise: bool = False, clip_norm: bool = True,
    ) -> torch.Tensor:  # fmt: skip
        """The mean of each element over the contributions that sent it. clip_norm: contributions whose norm is above the median
        are scaled down to it; normalise: each chunk of a contribution is scaled to norm 1, and nothing is clipped."""
        dense = [self._decoded(indices, xshape) for indices in ([idx] if isinstance(idx, torch.Tensor) else idx)]
        if normalise:
            chunks = [tensor.reshape(-1, totalk) for tensor in dense]
            dense = [(tensor / (tensor.norm(dim=1, keepdim=True) + 1e-8)).reshape(-1) for tensor in chunks]
        elif clip_norm:
            norms = torch.stack([tensor.norm() for tensor in dense]) if block_norms is None else block_norms.cpu()
            dense = [tensor * torch.clamp(norms.median() / (norm + 1e-8), max=1) for tensor, norm in zip(dense, norms)]
        total, count = torch.zeros_like(dense[0]), torch.zeros_like(dense[0])
        for tensor in dense:
            total += tensor
            count += tensor != 0
        return (total / count.clamp(min=1)).reshape(tuple(xshape)).to(p.device, p.dtype)

    def maybe_dequantize_values(self, vals: Tensors, qparams: Any, device: torch.device) -> List[torch.Tensor]:
        """The norms of contributions, as `compress` returned them; callers compute norms of these."""
        return [values.to(device) for values in ([vals] if isinstance(vals, torch.Tensor) else vals)]

    @staticmethod
    def _decoded(idx: torch.Tensor, xshape: Sequence[int]) -> torch.Tensor:
        elements = math.prod(xshape)
        found = torch.from_numpy(decode(idx.cpu().numpy().tobytes(), max_elements=elements))
        if found.numel() != elements:
            raise ArgumentError(f"the frame has {found.numel()} elements; the shape is {list(xshape)}")
        return found
