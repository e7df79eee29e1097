"""What a rank hands to collectives: bytes, and now and then a look at the frame among them."""

import contextlib
from typing import Any, Dict, Iterator, Optional
from unittest import mock

import torch
import torch.distributed as dist

SLOT_HEAD = 8  # bytes before the frame in a slot of deepreduce.torch


class Tap:
    """sent: bytes that this rank sends by the schedules of gloo, a ring each: an all-reduce of b bytes sends
    2 (n - 1) / n b, an all-gather of slots of b bytes (n - 1) b. frame: the last one, if `keep` says so."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.sent = 0.0
        self.keep = False
        self.frame: Optional[bytes] = None

    @contextlib.contextmanager
    def open(self) -> Iterator["Tap"]:
        all_reduce, all_gather = dist.all_reduce, dist.all_gather_into_tensor

        def reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.sent += 2 * (self.ranks - 1) / self.ranks * tensor.nbytes
            return all_reduce(tensor, *args, **kwargs)

        def gather(output: torch.Tensor, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.sent += (self.ranks - 1) * tensor.nbytes
            if self.keep and tensor.dtype == torch.uint8 and tensor.numel() > SLOT_HEAD:
                self.frame = tensor.numpy()[SLOT_HEAD:].tobytes()
            return all_gather(output, tensor, *args, **kwargs)

        with mock.patch.object(dist, "all_reduce", reduce), mock.patch.object(dist, "all_gather_into_tensor", gather):
            yield self

    def bits(self) -> Optional[Dict[str, float]]:
        """Of the frame that was kept: bits of index, value and order a nonzero, of what was sparsified; None if there was none."""
        import deepreduce

        if self.frame is None:
            return None
        frame, self.frame = self.frame, None
        sparse = [t for t in deepreduce.inspect(frame).tensors if t.support < t.universe and t.support]
        kept = sum(t.support for t in sparse)
        if not kept:
            return None
        return {
            "index": round(8 * sum(t.index_size for t in sparse) / kept, 3),
            "value": round(8 * sum(t.value_size for t in sparse) / kept, 3),
            "order": round(8 * sum(t.order_size for t in sparse) / kept, 3),
        }
