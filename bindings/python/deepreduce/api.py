"""encode, inspect, decode, merge. They borrow the caller's arrays for the call and keep none."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any, List, Literal, Optional, Sequence, Tuple, TypeVar, Union, overload

import numpy

from . import _abi, _device, _library, _memory
from ._call import check, context_of_thread, fail, new, text, unsigned
from ._tensors import (
    OUT_STRIDE,
    TENSOR_STRIDE,
    Inputs,
    dense_outputs,
    make_call,
    name_outputs,
    read_inputs,
    shape_of,
    sparse_outputs,
    weights_of,
)
from .errors import ArgumentError, CapacityError, CorruptFrame, Error
from .frame import DeviceFrame, array_of, borrow_target
from .tensor import Plans, Sparse, States

Out = TypeVar("Out")

# A status frame is 24 bytes and a message of at most 255 (FORMAT.md).
_STATUS_FRAME_CAPACITY = 1024
# Infos that the first dr_inspect has room for. Longer frames take a second one.
_INSPECT_CAPACITY = 16
# Bytes that are copied from a GPU at first to read a frame that does not tell its size.
_HEADER_USUALLY = 65536


# ---- Encode --------------------------------------------------------------------------------------


def encode(
    x: Any,
    plan: Plans,
    *,
    step: int = 0,
    seed: int = 0,
    private_seed: int = 0,
    state: States = None,
    tag: Optional[int] = None,
    sum_duplicates: bool = False,
    status_frame: bool = False,
    segment_rows: int = 0,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Any:
    """Encodes a tensor, or a list of tensors, into one frame.

    x               an array of float32, float16 or bfloat16, of any shape, taken row-major as [d]; or a Sparse;
                    or a list of these. On the CPU: numpy, torch, and what speaks DLPack or buffers; contiguous
                    arrays are not copied, of others a contiguous copy is made. On a GPU: torch, CuPy, and what
                    speaks DLPack or has a __cuda_array_interface__; contiguous, never copied
    plan            a Plan or its text; for a list also a list with one for each tensor
    step, seed      the same on every rank; they and private_seed decide all random numbers
    private_seed    different on every rank: the rank will do
    state           the State of the tensor, for a list a list of them (None where there is none)
    tag             a number that `inspect` gives back: step and name hash, say
    sum_duplicates  Sparse: add up the values of equal indices; otherwise a duplicate is an error
    status_frame    if the library cannot encode, return a frame that says why instead of raising: it decodes to
                    PeerError on every rank, so that nobody waits. What is no tensor at all is still raised, and
                    so is, on a GPU, what does not depend on the values
    segment_rows    cut tensors into segments of so many rows, each coded for itself: a Bloom filter of its own, say,
                    sized by its own count. 0: one segment up to 2^32 - 1 rows. On the CPU
    allow_host      on a GPU: encode what has no CUDA operations (deflate, …) on the CPU, with copies and a wait.
                    Otherwise it is Unsupported
    threads         to work with, on the CPU; None: one. The frame does not depend on it

    On the CPU it returns bytes. On a GPU it works on the caller's current stream (torch's or CuPy's; else the one
    that a __cuda_array_interface__ names, or the legacy default stream) and returns a DeviceFrame of the same
    bytes, without waiting: what the values get wrong is raised when one asks the frame for anything.

    Raises ArgumentError (what is no tensor, a NaN where the codec is lossy, an index twice or out of range, arrays
    in different places), Unsupported, OutOfMemory, DeviceError. States are then as they were.

    >>> x = numpy.array([0, 3, 0, -1, 0.5], dtype=numpy.float32)
    >>> frame = deepreduce.encode(x, "sparsify=topr(count=2) index=golomb")
    >>> deepreduce.decode(frame).tolist()
    [0.0, 3.0, 0.0, -1.0, 0.0]
    """
    library, context = _library.load(), context_of_thread(threads)
    inputs = read_inputs(x, plan, state, sum_duplicates, [])
    call = make_call(step, seed, private_seed, tag, inputs.is_list, status_frame, segment_rows)
    status, bound = _bound(context, inputs, call.segment_rows)
    if status and not (status_frame and inputs.place is None):
        fail(status, context)

    place = inputs.place
    if place is not None:
        made = DeviceFrame(place, bound)
        buffer, told = borrow_target(made, place, status_frame)
        address, capacity, where = buffer.address, buffer.size, place.struct(allow_host)
    else:
        # Where dr_bound fails so does dr_encode, for the same reason; it is called for its status frame.
        frame = _memory.empty((_STATUS_FRAME_CAPACITY if status else bound,), numpy.uint8)
        result = new(_abi.dr_result)
        address, capacity, where, told = frame.ctypes.data, frame.size, None, ctypes.pointer(result)
    status = library.dr_encode(
        context.handle,
        inputs.plan,
        ctypes.byref(call),
        where,
        inputs.tensors,
        TENSOR_STRIDE,
        inputs.n,
        address,
        capacity,
        told,
    )
    if place is not None:
        if status:
            fail(status, context)
        return made
    if status and not (status_frame and result.size):
        fail(status, context)
    return frame[: result.size].tobytes()


def _bound(context: Any, inputs: Inputs, segment_rows: int) -> Tuple[int, int]:
    """A status, and bytes that suffice for a frame. dr_bound knows no segments, a batch does."""
    library, bytes_ = _library.load(), ctypes.c_size_t()
    shapes = (inputs.tensors, TENSOR_STRIDE, inputs.n)
    if not segment_rows:
        return library.dr_bound(context.handle, inputs.plan, *shapes, ctypes.byref(bytes_)), bytes_.value
    batch, info = ctypes.POINTER(_abi.dr_batch)(), new(_abi.dr_batch_info)
    status = library.dr_batch_create(context.handle, inputs.plan, None, *shapes, segment_rows, ctypes.byref(batch))
    if not status:
        library.dr_batch_describe(batch, ctypes.byref(info))
        library.dr_batch_destroy(batch)
    return status, info.bound


# ---- Inspect -------------------------------------------------------------------------------------


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

    In a status frame, status is the reason ("ARGUMENT", …) and message the sentence; otherwise status is None.
    """

    size: int
    header_size: int
    version: int
    short: bool
    is_list: bool
    tag: Optional[int]
    status: Optional[str]
    message: str
    plans: int
    rows: int
    tensors: List[FrameTensor]


_FALLBACKS = {
    _abi.DR_FALLBACK_NONE: "none",
    _abi.DR_FALLBACK_RAW_INDEX: "raw_index",
    _abi.DR_FALLBACK_DENSE: "dense",
}


def inspect(frame: Any) -> Frame:
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
    info, tensors = _header(frame, _borrow_frame(frame, "frame", place), place)
    return Frame(
        size=info.frame_size,
        header_size=info.header_size,
        version=info.version,
        short=bool(info.flags & _abi.DR_FRAME_SHORT),
        is_list=bool(info.flags & _abi.DR_FRAME_LIST),
        tag=info.tag if info.flags & _abi.DR_FRAME_TAG else None,
        status=_library.load().dr_status_name(info.status).decode() if info.flags & _abi.DR_FRAME_STATUS else None,
        message=text(info.message),
        plans=info.plans,
        rows=info.rows,
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
            for tensor in tensors
        ],
    )


def _borrow_frame(frame: Any, what: str, place: Optional[_device.Place]) -> _memory.Bytes:
    """The memory of a frame, where it is."""
    if place is None:
        return _memory.borrow_bytes(frame, what)
    data = place.borrow_bytes(array_of(frame), what)
    return data._replace(size=frame.size()) if isinstance(frame, DeviceFrame) else data


def _header(
    frame: Any, data: _memory.Bytes, place: Optional[_device.Place]
) -> Tuple[_abi.dr_frame_info, List[_abi.dr_tensor_info]]:
    """What the header of a frame tells. From a GPU it is copied for that."""
    if place is None:
        return _inspect(data)
    array = array_of(frame)
    framework = _device.framework_of(array)
    for part in sorted({min(data.size, _HEADER_USUALLY), data.size}):
        try:
            return _inspect(_memory.borrow_bytes(framework.to_host(framework.part(array, 0, part))))
        except CorruptFrame:
            if part == data.size:  # otherwise it may only be longer
                raise
    raise AssertionError("not reached")


def _inspect(frame: _memory.Bytes) -> Tuple[_abi.dr_frame_info, List[_abi.dr_tensor_info]]:
    library, info, error = _library.load(), new(_abi.dr_frame_info), new(_abi.dr_error)
    capacity = _INSPECT_CAPACITY
    while True:
        infos = (_abi.dr_tensor_info * capacity)()
        for each in infos:
            each.struct_size = ctypes.sizeof(each)
        status = library.dr_inspect(
            frame.address,
            frame.size,
            ctypes.byref(info),
            infos,
            ctypes.sizeof(_abi.dr_tensor_info),
            capacity,
            ctypes.byref(error),
        )
        check(status, error)
        if info.tensors <= capacity:
            return info, infos[: info.tensors]
        capacity = info.tensors


# ---- Decode --------------------------------------------------------------------------------------


@overload
def decode(
    frame: Any,
    *,
    out: Out,
    sparse: bool = False,
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Out: ...


@overload
def decode(
    frame: Any,
    *,
    out: None = None,
    sparse: Literal[True],
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Union[Sparse, List[Sparse]]: ...


@overload
def decode(
    frame: Any,
    *,
    out: None = None,
    sparse: bool = False,
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Any: ...


def decode(
    frame: Any,
    *,
    out: Any = None,
    sparse: bool = False,
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Any:
    """Decodes a frame to what was encoded: a tensor, or the list of them.

    frame         bytes, or what has a buffer of bytes. It may be longer than the frame is. Of a DeviceFrame, or an
                  array of bytes on a GPU (aligned to 16), what comes out is on that GPU too
    out           arrays to overwrite and return, one or a list as was encoded: numpy or torch, contiguous, of any
                  shape with the right number of elements, of the frame's type or float32; where the frame is
    sparse        give Sparse instead of dense arrays; not with `out`
    max_elements  raise CapacityError for a frame of more elements, before memory is taken. A few bytes can claim
                  any number: set it for frames from strangers. None: any number, but for sparse=True a codec that
                  goes through all elements to find some (bloom, seeded) may go through 4096 for each byte of frame
                  and output, and 2^20
    max_workspace raise CapacityError if decoding takes more bytes beside the frame and the outputs. None: 256 for
                  each byte of these and 1 MiB, for each thread
    allow_host    on a GPU: decode what has no CUDA operations on the CPU; otherwise it is Unsupported
    threads       to work with, on the CPU; None: one

    Frames carry no shapes: an array is [universe], or [universe, width] if width > 1. bfloat16 comes as that from
    a GPU to torch, and to numpy if ml_dtypes is installed; else as float32. If it fails, what `out` holds is
    unspecified. On a GPU it works on the caller's current stream and waits for it: Batch.decode does not.
    Raises CorruptFrame, PeerError (a status frame), ArgumentError (`out` does not fit), CapacityError,
    Unsupported (a codec that is not loaded), OutOfMemory, DeviceError.

    >>> frame = deepreduce.encode(numpy.array([[0, 2], [0, 0]], dtype=numpy.float32), "index=rice")
    >>> deepreduce.decode(frame).tolist()
    [0.0, 2.0, 0.0, 0.0]
    >>> deepreduce.decode(frame, out=numpy.empty((2, 2), dtype=numpy.float32)).tolist()
    [[0.0, 2.0], [0.0, 0.0]]
    >>> deepreduce.decode(frame, sparse=True).indices.tolist()
    [1]
    """
    if sparse and out is not None:
        raise ArgumentError("sparse=True takes no out")
    context = context_of_thread(threads)
    place = _device.find([("frame", array_of(frame)), *name_outputs(out)])
    data = _borrow_frame(frame, "frame", place)
    info, infos = _header(frame, data, place)
    is_list = _is_list(info)
    limits = _limits(infos, max_elements, max_workspace)
    results: List[Any] = []
    outs: Any = (_abi.dr_tensor_out * len(infos))()
    if info.flags & _abi.DR_FRAME_STATUS:
        pass
    elif sparse:
        outs, results = sparse_outputs(infos, place)
    else:
        outs, results = dense_outputs([shape_of(each) for each in infos], out, is_list, None, place)
    where = None if place is None else place.struct(allow_host)
    status = _library.load().dr_decode(
        context.handle,
        where,
        data.address,
        data.size,
        ctypes.byref(limits),
        outs,
        OUT_STRIDE,
        len(infos),
    )
    if status:
        fail(status, context)
    if sparse:
        results = [
            each if len(each.indices) == room.count else _first(each, room.count) for room, each in zip(outs, results)
        ]
    if out is not None:
        return out
    return results if is_list else results[0]


def merge(
    frames: Sequence[Any],
    *,
    weights: Optional[Sequence[float]] = None,
    out: Any = None,
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Any:
    """The sum of the dense tensors of several frames, in the structure of the frames.

    frames   of tensors of the same sizes; added in this order, in float32
    weights  one for each frame; None: all 1
    out      arrays to add the sum to and to return, as for decode. A half type is rounded after each frame
    max_elements, max_workspace, allow_host, threads  as for decode

    Without `out` the result is float32, whatever the frames hold. `out` is untouched if any frame is unsound.
    Raises as decode does; the message names the frame.

    >>> a = deepreduce.encode(numpy.array([1, 0, 2], dtype=numpy.float32), "index=raw")
    >>> b = deepreduce.encode(numpy.array([0, 0, 4], dtype=numpy.float32), "index=golomb")
    >>> deepreduce.merge([a, b], weights=[1, 0.5]).tolist()
    [1.0, 0.0, 4.0]
    """
    if not isinstance(frames, Sequence) or isinstance(frames, (str, bytes, bytearray, memoryview)):
        raise ArgumentError(f"merge takes a list of frames, not a {type(frames).__name__}")
    if not frames:
        raise ArgumentError("merge needs at least one frame: it tells the sizes")
    context = context_of_thread(threads)
    names = [f"frames[{i}]" for i in range(len(frames))]
    place = _device.find([*zip(names, map(array_of, frames)), *name_outputs(out)])
    factors = weights_of(weights, len(frames))
    datas = [_borrow_frame(frame, name, place) for frame, name in zip(frames, names)]
    info, infos = _first_sound_header(frames, datas, place)
    is_list = _is_list(info)
    outs: Any = (_abi.dr_tensor_out * len(infos))()
    options = new(_abi.dr_merge_options)
    options.limits = _limits(infos, max_elements, max_workspace)
    options.flags = 0 if out is None else _abi.DR_MERGE_ADD
    results: List[Any] = []
    if not info.flags & _abi.DR_FRAME_STATUS:
        outs, results = dense_outputs([shape_of(each) for each in infos], out, is_list, _abi.DR_F32, place)
    where = None if place is None else place.struct(allow_host)
    status = _library.load().dr_merge(
        context.handle,
        where,
        (_abi.dr_bytes * len(datas))(*(_abi.dr_bytes(data.address, data.size) for data in datas)),
        factors,
        len(datas),
        ctypes.byref(options),
        outs,
        OUT_STRIDE,
        len(infos),
    )
    if status:
        fail(status, context)
    if out is not None:
        return out
    return results if is_list else results[0]


def _first_sound_header(
    frames: Sequence[Any], datas: Sequence[_memory.Bytes], place: Optional[_device.Place]
) -> Tuple[_abi.dr_frame_info, List[_abi.dr_tensor_info]]:
    """Header of the first frame that is no status frame: it tells the sizes. If all are, of the first."""
    first = None
    for i, (frame, data) in enumerate(zip(frames, datas)):
        try:
            found = _header(frame, data, place)
        except Error as error:
            error.args = (f"frame {i}: {error}",)
            raise
        if not found[0].flags & _abi.DR_FRAME_STATUS:
            return found
        first = first or found
    assert first is not None
    return first


def _is_list(info: _abi.dr_frame_info) -> bool:
    """Whether the frame gives a list. One of many tensors does, though its writer did not say so."""
    return bool(info.flags & _abi.DR_FRAME_LIST) or info.tensors != 1


def _limits(
    infos: Sequence[_abi.dr_tensor_info], max_elements: Optional[int], max_workspace: Optional[int]
) -> _abi.dr_limits:
    limits = new(_abi.dr_limits)
    if max_workspace is not None:
        # 0 would be no limit of the caller's: what nothing fits in is the same as a byte.
        limits.max_workspace = max(1, unsigned(max_workspace, "max_workspace"))
    if max_elements is not None:
        most = unsigned(max_elements, "max_elements")
        elements = sum(info.universe * info.width for info in infos)
        if elements > most:
            raise CapacityError(f"the frame has {elements} elements, max_elements is {most}")
        limits.max_elements = most
    return limits


def _first(x: Sparse, count: int) -> Sparse:
    return Sparse(x.indices[:count], x.values[:count], x.shape)
