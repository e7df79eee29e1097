"""inspect and frame_size: what the header of a frame says, on the CPU or on a GPU."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import List, NamedTuple, Optional

from ._native import _abi, _device, _library, _memory
from ._native._call import check, new, text, unsigned
from ._native._types import Structs
from ._tensors import Shape
from .errors import CapacityError, CorruptFrame
from .frame import DeviceFrame, array_of

_INFO_STRIDE = ctypes.sizeof(_abi.dr_tensor_info)
# Infos that the first reading of a header has room for. Longer frames take a second one.
_INFO_CAPACITY = 16
# Bytes that are copied from a GPU at first to read a frame that does not tell its size.
_HEADER_USUALLY = 65536


@dataclasses.dataclass(frozen=True)
class FrameTensor:
    """One tensor of a frame, as its header tells.

    count is what went in (r, in rows), support what decode gives; sizes are in bytes. fallback is "none",
    "raw_index" or "dense", the furthest of its segments. plan tells the codecs and their wire fields; host_only
    whether one of them has no CUDA operations, so that a GPU needs allow_host.
    """

    universe: int
    width: int
    dtype: str
    count: int
    support: int
    segments: int
    fallback: str
    index_size: int
    value_size: int
    order_size: int
    plan: str
    host_only: bool


@dataclasses.dataclass(frozen=True)
class Frame:
    """The header of a frame. Sizes are in bytes; tag is None if the frame has none.

    plans counts the entries of the plan table, segments those of all tensors. patch: its tensors are patches of weights, which
    deepreduce.patch applies.
    In a status frame, status is the reason ("ARGUMENT", …) and message the sentence; otherwise status is None.
    """

    size: int
    header_size: int
    version: int
    short: bool
    is_list: bool
    patch: bool
    tag: Optional[int]
    status: Optional[str]
    message: str
    plans: int
    segments: int
    tensors: List[FrameTensor]


_FALLBACKS = {
    _abi.DR_FALLBACK_NONE: "none",
    _abi.DR_FALLBACK_RAW_INDEX: "raw_index",
    _abi.DR_FALLBACK_DENSE: "dense",
}


def inspect(frame: object) -> Frame:
    """Reads the header of a frame and verifies its checks; decodes nothing. A status frame is no error here.

    frame  bytes, or what has a buffer of bytes; a DeviceFrame or an array of bytes on a GPU, which is copied to
           the CPU for it. It may be longer than the frame is

    Raises CorruptFrame, Unsupported (a codec that is not loaded).

    >>> frame = deepreduce.encode(numpy.ones(8, dtype=numpy.float32), "index=raw value=raw", tag=7)
    >>> info = deepreduce.inspect(frame)
    >>> info.tag, len(info.tensors), info.tensors[0].universe, info.tensors[0].dtype
    (7, 1, 8, 'float32')
    """
    place = _device.find([("frame", array_of(frame))])
    header = read_header(frame, borrow_frame(frame, "frame", place), place, verify=True)
    info = header.info
    return Frame(
        size=info.frame_size,
        header_size=info.header_size,
        version=info.version,
        short=bool(info.flags & _abi.DR_FRAME_SHORT),
        is_list=bool(info.flags & _abi.DR_FRAME_LIST),
        patch=bool(info.flags & _abi.DR_FRAME_PATCH),
        tag=info.tag if info.flags & _abi.DR_FRAME_TAG else None,
        status=_library.load().dr_status_name(info.status).decode() if header.is_status else None,
        message=text(info.message),
        plans=info.plans,
        segments=info.segments,
        tensors=[
            FrameTensor(
                universe=tensor.universe,
                width=tensor.width,
                dtype=_memory.NAMES.get(tensor.dtype, "?"),
                count=tensor.count,
                support=tensor.support,
                segments=tensor.segments,
                fallback=_FALLBACKS.get(tensor.fallback, "?"),
                index_size=tensor.index_size,
                value_size=tensor.value_size,
                order_size=tensor.order_size,
                plan=text(tensor.plan),
                host_only=bool(tensor.host_only),
            )
            for tensor in header.infos
        ],
    )


def frame_size(frame: object) -> int:
    """Bytes of the frame at the beginning of `frame`, which may be longer: for frames that lie one behind the other, or
    in slots. It reads the header only and verifies no check.

    frame  bytes, or what has a buffer of bytes; a DeviceFrame or an array of bytes on a GPU, which is copied to the CPU

    Raises CorruptFrame (no frame, or cut off), Unsupported.

    >>> frame = deepreduce.encode(numpy.ones(8, dtype=numpy.float32), "index=raw value=raw")
    >>> deepreduce.frame_size(frame + b"what follows") == len(frame)
    True
    """
    place = _device.find([("frame", array_of(frame))])
    data = borrow_frame(frame, "frame", place)
    if place is not None:
        data = _memory.borrow_bytes(_device.framework_of(array_of(frame)).to_host(array_of(frame)))
    size, error = ctypes.c_size_t(), new(_abi.dr_error)
    check(_library.load().dr_frame_size(data.address, data.size, size, error), error)
    return size.value


def borrow_frame(frame: object, what: str, place: Optional[_device.Place]) -> _memory.Bytes:
    """The memory of a frame, where it is."""
    if place is None:
        return _memory.borrow_bytes(frame, what)
    data = place.borrow_bytes(array_of(frame), what)
    return data._replace(size=frame.size()) if isinstance(frame, DeviceFrame) else data


class Header(NamedTuple):
    """What the header of a frame tells."""

    info: _abi.dr_frame_info
    infos: Structs  # dr_tensor_info[tensors]

    @property
    def is_status(self) -> bool:
        return bool(self.info.flags & _abi.DR_FRAME_STATUS)

    @property
    def is_list(self) -> bool:
        """Whether the frame gives a list. One of many tensors does, though its writer did not say so."""
        return bool(self.info.flags & _abi.DR_FRAME_LIST) or self.info.tensors != 1

    def shapes(self, asked: Optional[range]) -> List[Shape]:
        return [_shape_of(told) for told in (self.infos if asked is None else self.infos[asked.start : asked.stop])]

    def limit(self, max_elements: Optional[int]) -> None:
        if max_elements is not None:
            most = unsigned(max_elements, "max_elements")
            elements = sum(each.universe * each.width for each in self.infos)
            if elements > most:
                raise CapacityError(f"the frame has {elements} elements, max_elements is {most}", needed=elements)


def _shape_of(told: _abi.dr_tensor_info) -> Shape:
    universe, width = told.universe, told.width
    return Shape(universe, width, told.dtype, (universe, width) if width > 1 else (universe,))


def read_header(frame: object, data: _memory.Bytes, place: Optional[_device.Place], verify: bool) -> Header:
    """What the header of a frame tells. From a GPU it is copied for that.

    verify  the checks, too, which a decode does itself
    """
    if place is None:
        return _read(data, data.size, verify)
    array = array_of(frame)
    framework = _device.framework_of(array)
    for part in sorted({min(data.size, _HEADER_USUALLY), data.size}):
        try:
            return _read(_memory.borrow_bytes(framework.to_host(framework.part(array, 0, part))), data.size, verify)
        except CorruptFrame:
            if part == data.size:  # otherwise it may only be longer
                raise
    raise AssertionError("not reached")


def _read(frame: _memory.Bytes, size: int, verify: bool) -> Header:
    """The header of a frame of at most `size` bytes, of which these are the first."""
    library, info, error = _library.load(), new(_abi.dr_frame_info), new(_abi.dr_error)
    capacity = _INFO_CAPACITY
    while True:
        infos = (_abi.dr_tensor_info * capacity)()
        for each in infos:
            each.struct_size = _INFO_STRIDE
        told = (info, infos, _INFO_STRIDE, capacity, error)
        if verify:
            check(library.dr_inspect(frame.address, frame.size, *told), error)
        else:
            check(library.dr_frame_header(frame.address, frame.size, size, *told), error)
        if info.tensors <= capacity:
            return Header(info, (_abi.dr_tensor_info * info.tensors).from_buffer(infos))
        capacity = info.tensors
