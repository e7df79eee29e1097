"""inspect and frame_size: the header of a frame, on the CPU or on a GPU."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import List, NamedTuple, Optional

from ._native import _abi, _device, _library, _memory
from ._native._call import check, new, text, unsigned
from ._native._sizes import dtype_text
from ._native._stages import read_stages
from ._native._types import Structs
from ._tensors import Shape
from .errors import CapacityError, CorruptFrame
from .frame import DeviceFrame, array_of

_INFO_STRIDE = ctypes.sizeof(_abi.dr_tensor_info)
_EMPTY_INFO = bytes(new(_abi.dr_tensor_info))
# Capacity for infos in the first read of a header. Frames of more tensors are read a second time.
_INFO_CAPACITY = 16
# Bytes that are copied from a GPU first, to read the header of a frame of unknown size.
_FIRST_COPY = 65536


@dataclasses.dataclass(frozen=True)
class FrameTensor:
    """One tensor of a frame, from its header. Sizes are in bytes.

    universe, width  number of rows of the dense tensor; values per row
    count            number of rows that were encoded (r)
    support          number of rows that decode returns
    fallback         "none", "raw_index" or "dense": the strongest fallback of its segments
    plan             the codecs and their wire fields
    host_only        whether a codec of some segment has no CUDA operations, or no GPU applies such a patch: a GPU needs allow_host
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
    """The header of a frame. Sizes are in bytes.

    patch            whether its tensors are patches of weights, which deepreduce.patch applies
    tag              None if the frame has none
    status, message  of a status frame: the reason ("ARGUMENT", …) and a sentence; else status is None
    plans, segments  number of entries of the plan table; number of segments of all tensors

    The repr is a line: size, shapes, rows, codecs, tag. `tensors` has the rest.
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

    def __repr__(self) -> str:
        words = [] if self.status is None else [f"status {self.status}: {self.message}"]
        if self.tensors:
            words += [_tensors_text(self.tensors), f"{sum(tensor.count for tensor in self.tensors):,} selected"]
            codecs = list(dict.fromkeys(_codecs_text(tensor.plan) for tensor in self.tensors))
            words.append(codecs[0] if len(codecs) == 1 else f"{len(codecs)} pairs of codecs")
        words += ["patch"] * self.patch + ([] if self.tag is None else [f"tag {self.tag}"])
        return f"<Frame {self.size:,} B: {', '.join(words) or 'no tensors'}>"


def _tensors_text(tensors: List[FrameTensor]) -> str:
    """1 tensor f32[100,000]; 7 tensors of 330,260 f32."""
    if len(tensors) == 1:
        shape = f"{tensors[0].universe:,}" + (f" x {tensors[0].width:,}" if tensors[0].width > 1 else "")
        return f"1 tensor {dtype_text(tensors[0].dtype)}[{shape}]"
    dtypes = " and ".join(dict.fromkeys(dtype_text(tensor.dtype) for tensor in tensors))
    return f"{len(tensors):,} tensors of {sum(tensor.universe * tensor.width for tensor in tensors):,} {dtypes}"


def _codecs_text(plan: str) -> str:
    """golomb+qsgd: the index codecs and the value codecs."""
    stages = read_stages(plan)
    found = [stages[role] for role in ("index", "value") if role in stages]
    return "+".join(codec.name for stage in found for codec in (stage, *stage.behind))


_FALLBACKS = {
    _abi.DR_FALLBACK_NONE: "none",
    _abi.DR_FALLBACK_RAW_INDEX: "raw_index",
    _abi.DR_FALLBACK_DENSE: "dense",
}


def inspect(frame: object) -> Frame:
    """Reads the header of a frame and verifies its checks; decodes nothing. A status frame is not an error here.

    frame  bytes, or an object with a buffer of bytes; or a DeviceFrame or an array of bytes on a GPU, which is copied to the
           CPU. It may be longer than the frame

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
    """Size in bytes of the frame at the beginning of `frame`, which may be longer: for frames one behind the other, or in
    slots. It reads the header only and verifies no check.

    frame  bytes, or an object with a buffer of bytes; or a DeviceFrame or an array of bytes on a GPU, which is copied to the
           CPU

    Raises CorruptFrame (not a frame, or truncated), Unsupported.

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
    """The header of a frame."""

    info: _abi.dr_frame_info
    infos: Structs  # dr_tensor_info[tensors]

    @property
    def is_status(self) -> bool:
        return bool(self.info.flags & _abi.DR_FRAME_STATUS)

    @property
    def is_list(self) -> bool:
        """Whether the frame decodes to a list. A frame of several tensors does, even without the flag."""
        return bool(self.info.flags & _abi.DR_FRAME_LIST) or self.info.tensors != 1

    def shapes(self, selected: Optional[range]) -> List[Shape]:
        """Of the selected tensors; None: all."""
        return [_shape_of(info) for info in (self.infos if selected is None else self.infos[selected.start : selected.stop])]

    def limit(self, max_elements: Optional[int]) -> None:
        if max_elements is not None:
            limit = unsigned(max_elements, "max_elements")
            elements = sum(info.universe * info.width for info in self.infos)
            if elements > limit:
                raise CapacityError(f"the frame has {elements} elements, max_elements is {limit}", needed=elements)


def _shape_of(info: _abi.dr_tensor_info) -> Shape:
    universe, width = info.universe, info.width
    return Shape(universe, width, info.dtype, (universe, width) if width > 1 else (universe,))


def read_header(frame: object, data: _memory.Bytes, place: Optional[_device.Place], verify: bool) -> Header:
    """Reads the header of a frame, which is copied from a GPU.

    verify  also verify the checks, as a decode does itself
    """
    if place is None:
        return _read(data, data.size, verify)
    array = array_of(frame)
    framework = _device.framework_of(array)
    for part in sorted({min(data.size, _FIRST_COPY), data.size}):
        try:
            return _read(_memory.borrow_bytes(framework.to_host(framework.part(array, 0, part))), data.size, verify)
        except CorruptFrame:
            if part == data.size:  # else the header may be longer than the part
                raise
    raise AssertionError("not reached")


def _read(frame: _memory.Bytes, size: int, verify: bool) -> Header:
    """The header of a frame of at most `size` bytes; `frame` has the first of them."""
    library, info, error = _library.load(), new(_abi.dr_frame_info), new(_abi.dr_error)
    capacity = _INFO_CAPACITY
    while True:
        infos = (_abi.dr_tensor_info * capacity).from_buffer_copy(_EMPTY_INFO * capacity)
        outputs = (info, infos, _INFO_STRIDE, capacity, error)
        if verify:
            check(library.dr_inspect(frame.address, frame.size, *outputs), error)
        else:
            check(library.dr_frame_header(frame.address, frame.size, size, *outputs), error)
        if info.tensors <= capacity:
            return Header(info, (_abi.dr_tensor_info * info.tensors).from_buffer(infos))
        capacity = info.tensors
