"""What has been sent and how long it took, under the names that scripts written for GRACE read."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Union

from torch import Tensor

# Seconds, added up. A script may set them to 0.
timer: Dict[str, float] = {"en/decoding": 0.0, "comm": 0.0, "batch_time": 0.0, "computation": 0.0}

# Bits that this rank has sent, those of the tensors that they stand for, and a list that is the script's own.
volume: Dict[str, Any] = {"compress": 0, "nocompress": 0, "ratio_acc": []}


def tensor_bits(tensors: Union[Tensor, Iterable[Tensor]]) -> int:
    """Bits that the elements of tensors take: of one tensor, or of a list of them."""
    given: Iterable[Tensor] = [tensors] if hasattr(tensors, "element_size") else tensors
    return sum(8 * each.element_size() * each.numel() for each in given)


def count(payload: Iterable[Tensor], tensor: Tensor) -> None:
    """Adds a tensor and what is sent of it to `volume`."""
    volume["compress"] += tensor_bits(payload)
    volume["nocompress"] += tensor_bits(tensor)
