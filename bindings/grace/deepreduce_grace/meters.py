"""Volumes that were sent and times, under the names that scripts written for GRACE read."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Union

from torch import Tensor

# Seconds, added up. A script may set them to 0.
timer: Dict[str, float] = {"en/decoding": 0.0, "comm": 0.0, "batch_time": 0.0, "computation": 0.0}

# Bits that this rank has sent, bits of the tensors before compression, and a list for the script's use.
volume: Dict[str, Any] = {"compress": 0, "nocompress": 0, "ratio_acc": []}


def tensor_bits(tensors: Union[Tensor, Iterable[Tensor]]) -> int:
    """Bits of the elements of one tensor, or of a list of tensors."""
    given: Iterable[Tensor] = [tensors] if hasattr(tensors, "element_size") else tensors
    return sum(8 * tensor.element_size() * tensor.numel() for tensor in given)


def count(payload: Iterable[Tensor], tensor: Tensor) -> None:
    """Adds the bits of a tensor and of its payload to `volume`."""
    volume["compress"] += tensor_bits(payload)
    volume["nocompress"] += tensor_bits(tensor)
