"""What a rank hands to collectives: bytes, and now and then a look at the frame among them."""

import contextlib
import os
import struct
from pathlib import Path
from typing import Any, Dict, Iterator, Optional
from unittest import mock

import deepreduce
import torch
import torch.distributed as dist

SENDER_HEAD = 40  # bytes, of a sender's slot (lib/sender/slot.hpp); rows that are sparse have another
SIZE = 8  # bytes: a slot of deepreduce.torch begins with a head, and the sizes of its frames


class Tap:
    """sent: bytes that this rank sends by the schedules of gloo, a ring each: an all-reduce of b bytes sends
    2 (n - 1) / n b, an all-gather of slots of b bytes (n - 1) b. slot: the last one, if `keep` is true."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.sent = 0.0
        self.keep = False
        self.slot: Optional[bytes] = None

    @contextlib.contextmanager
    def open(self) -> Iterator["Tap"]:
        from deepreduce.torch import _slots  # which goes to the group itself

        all_reduce, all_gather = dist.all_reduce, _slots.all_gather

        def reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.sent += 2 * (self.ranks - 1) / self.ranks * tensor.nbytes
            return all_reduce(tensor, *args, **kwargs)

        def gather(group: Any, timeout: Any, received: torch.Tensor, slot: torch.Tensor) -> Any:
            self.sent += (self.ranks - 1) * slot.nbytes
            if self.keep:
                self.slot = slot.numpy().tobytes()
            return all_gather(group, timeout, received, slot)

        with mock.patch.object(dist, "all_reduce", reduce), mock.patch.object(_slots, "all_gather", gather):
            yield self

    def bits(self) -> Optional[Dict[str, float]]:
        """Bits of index, value and order per nonzero of the sparsified tensors in the saved slot; None if there are none."""
        slot, self.slot = self.slot, None
        tensors = [t for frame in frames_of(slot or b"") for t in deepreduce.inspect(frame).tensors]
        sparse = [t for t in tensors if 0 < t.support < t.universe]
        if not sparse:
            return None
        selected = sum(t.support for t in sparse)
        size = lambda part: round(8 * sum(getattr(t, f"{part}_size") for t in sparse) / selected, 3)
        return {part: size(part) for part in ("index", "value", "order")}


def frames_of(slot: bytes) -> Iterator[bytes]:
    """The frames of a slot: as many as the sizes in front of the first. Of a piece of one, or one without room for all, those
    that are whole."""
    head = SENDER_HEAD
    count = next((n for n in range(1, (len(slot) - head) // SIZE) if is_frame(slot[head + n * SIZE :])), 0)
    begin = head + count * SIZE
    for size in struct.unpack_from(f"<{count}Q", slot, head) if count else ():
        if begin + size <= len(slot):
            yield slot[begin : begin + size]
        begin += size


def is_frame(data: bytes) -> bool:
    try:
        return deepreduce.frame_size(data) <= len(data)
    except deepreduce.Error:
        return False


def device_bytes() -> Optional[int]:
    """All bytes that this rank's network device has sent, with headers and acknowledgements. None over the loopback,
    which all ranks share."""
    device = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    return None if device == "lo" else int(Path(f"/sys/class/net/{device}/statistics/tx_bytes").read_text("ascii"))
