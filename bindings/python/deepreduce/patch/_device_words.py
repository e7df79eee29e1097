"""Weights on a GPU, as words, and their frames, which are made there. Internal."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Tuple

from .._native import _abi, _device
from .._native._call import context_of_thread
from .._tensors import TENSOR_STRIDE, Inputs, make_call
from ..encoding import _encode_on_gpu
from ..errors import ArgumentError, Unsupported
from ..plan import Plan

# What None stands for: without `auto`, which runs on the CPU only.
DEVICE_PLAN = "sparsify=changed index=golomb value=ulp"


class DevicePart(NamedTuple):
    """Some words of a tensor on a GPU."""

    address: int
    size: int
    itemsize: int
    place: _device.Place
    owner: object  # the array whose memory it is

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize


class DeviceWords(NamedTuple):
    """A tensor on a GPU, as words."""

    dtype: str  # of ELEMENT_TYPES
    shape: Tuple[int, ...]
    words: DevicePart
    owner: object

    @property
    def length(self) -> int:
        return self.words.size

    def part(self, first: int, count: int, _room: str) -> DevicePart:
        return self.words._replace(address=self.words.address + first * self.words.itemsize, size=count)


def on_device(tensors: Mapping[str, object]) -> bool:
    """Whether some of these are on a GPU."""
    return any(isinstance(tensor, DeviceWords) for tensor in tensors.values())


def refuse(what: str, tensors: Mapping[str, object]) -> None:
    """Unsupported if some of these are on a GPU, where there is no `what`."""
    for name, tensor in tensors.items():
        if isinstance(tensor, DeviceWords):
            raise Unsupported(f"{what}: {name or 'the tensor'!r} is on {tensor.words.place}, where patches have none")


def encode_device_words(old: object, new_words: object, plan: Plan, code: int) -> bytes:
    """As encode_words. Waits."""
    if not isinstance(old, DevicePart) or not isinstance(new_words, DevicePart) or old.place.number != new_words.place.number:
        raise ArgumentError("old and new weights are in different places: both must be on the CPU, or on one GPU")
    tensors = (_abi.dr_tensor * 1)()
    tensor = tensors[0]
    tensor.struct_size, tensor.dtype, tensor.width, tensor.universe = TENSOR_STRIDE, code, 1, old.size
    tensor.values, tensor.base = new_words.address, old.address
    inputs = Inputs(old.place, False, tensors, plan.handle, [old.owner, new_words.owner], [])
    call = make_call(0, 0, 0, None, False, False, False)
    return bytes(_encode_on_gpu(context_of_thread(None), inputs, call, None, False, False, old.place))
