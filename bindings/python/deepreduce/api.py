"""encode, inspect, decode, merge. They borrow the caller's arrays for the call and keep none."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from typing import Any, Callable, List, Literal, NamedTuple, Optional, Sequence, TypeVar, Union, overload

import numpy

from . import _abi, _device, _library, _memory
from ._call import Context, Turns, check, context_of_thread, fail, new, text, unsigned
from ._tensors import (
    OUT_STRIDE,
    TENSOR_STRIDE,
    Inputs,
    Keys,
    Shape,
    TraceFunction,
    arrays_like,
    cut,
    dense_outputs,
    dtype_code,
    make_call,
    make_options,
    maker_of,
    name_outputs,
    range_of,
    read_inputs,
    sparse_outputs,
    tracer_of,
    weights_of,
)
from .errors import ArgumentError, CapacityError, CorruptFrame, Error
from .frame import DeviceFrame, array_of, borrow_target
from .tensor import Plans, Sparse, States

Out = TypeVar("Out")
Array = numpy.ndarray[Any, Any]
HostTensor = Union[Array, Sparse]
Tensors = Union[int, slice, range]

# Room that a thread keeps for its frames: the first, and the most.
_SCRATCH, _SCRATCH_MOST = 65536, 1 << 26
# Infos that the first reading of a header has room for. Longer frames take a second one.
_INFO_CAPACITY = 16
# Bytes that are copied from a GPU at first to read a frame that does not tell its size.
_HEADER_USUALLY = 65536


# ---- Encode --------------------------------------------------------------------------------------


@overload
def encode(
    x: Union[HostTensor, Sequence[HostTensor]],
    plan: Plans,
    *,
    out: None = None,
    step: int = 0,
    seed: int = 0,
    private_seed: int = 0,
    state: States = None,
    key: Keys = None,
    tag: Optional[int] = None,
    sum_duplicates: bool = False,
    status_frame: bool = False,
    fit: bool = False,
    segment_rows: int = 0,
    trace: Optional[TraceFunction] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> bytes: ...


@overload
def encode(
    x: Any,
    plan: Plans,
    *,
    out: Any = None,
    step: int = 0,
    seed: int = 0,
    private_seed: int = 0,
    state: States = None,
    key: Keys = None,
    tag: Optional[int] = None,
    sum_duplicates: bool = False,
    status_frame: bool = False,
    fit: bool = False,
    segment_rows: int = 0,
    trace: Optional[TraceFunction] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Any: ...


def encode(
    x: Any,
    plan: Plans,
    *,
    out: Any = None,
    step: int = 0,
    seed: int = 0,
    private_seed: int = 0,
    state: States = None,
    key: Keys = None,
    tag: Optional[int] = None,
    sum_duplicates: bool = False,
    status_frame: bool = False,
    fit: bool = False,
    segment_rows: int = 0,
    trace: Optional[TraceFunction] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Any:
    """Encodes a tensor, or a list of tensors, into one frame.

    x               an array of float32, float16 or bfloat16, of any shape, taken row-major as [d]; or a Sparse;
                    or a list of these. On the CPU: numpy, torch, and what speaks DLPack or buffers; contiguous
                    arrays are not copied, of others a contiguous copy is made. On a GPU: torch, CuPy, and what
                    speaks DLPack or has a __cuda_array_interface__; contiguous, never copied
    plan            a Plan or its text; for a list also a list with one for each tensor
    out             where to write the frame: on the CPU a bytearray, or an array or tensor of bytes; on a GPU an array
                    of bytes, aligned to 16, or a DeviceFrame, which has room for any frame (Batch.bound). None: new
                    memory
    step, seed      the same on every rank; they and private_seed decide all random numbers
    private_seed    different on every rank: the rank will do
    state           the State of the tensor, for a list a list of them (None where there is none)
    key             a number that names the tensor in random numbers, for a list a list of them; 0 or None: its position
                    in the list. Tensors that are encoded one a call want keys that differ, or Random-k keeps the same
                    positions of each
    tag             a number that `inspect` gives back and `decode` compares: step and name hash, say
    sum_duplicates  Sparse: add up the values of equal indices; otherwise a duplicate is an error
    status_frame    if the library cannot encode, return a frame that says why instead of raising: it decodes to
                    PeerError on every rank, so that nobody waits. What is no tensor at all is still raised, and
                    so is, on a GPU, what does not depend on the values
    fit             if the frame does not fit `out`, send some tensors (or segments) empty, the smallest that will do,
                    and leave them to feedback, which all plans must have. On the CPU
    segment_rows    cut tensors into segments of so many rows, each coded for itself: a Bloom filter of its own, say,
                    sized by its own count. 0: one segment up to 2^32 - 1 rows. On the CPU
    trace           a function that is called with a Trace when a stage has ended
    allow_host      on a GPU: encode what has no CUDA operations (deflate, …) on the CPU, with copies and a wait.
                    Otherwise it is Unsupported
    threads         to work with, on the CPU; None: one. The frame does not depend on it

    On the CPU it returns bytes, or of `out` the part that the frame takes: of a tensor a tensor, of an array an array,
    else a memoryview. On a GPU it works on the caller's current stream (torch's or CuPy's; else the one that a
    __cuda_array_interface__ names, or the legacy default stream) and returns a DeviceFrame of the same bytes, without
    waiting: what the values get wrong is raised when one asks the frame for anything.

    Raises ArgumentError (what is no tensor, a NaN where the codec is lossy, an index twice or out of range, arrays
    in different places), CapacityError (`out` is too small; `needed` says what would do), ConcurrentUse (a state is in
    another call), Unsupported, OutOfMemory, DeviceError. States are then as they were.

    >>> x = numpy.array([0, 3, 0, -1, 0.5], dtype=numpy.float32)
    >>> frame = deepreduce.encode(x, "sparsify=topr(count=2) index=golomb")
    >>> deepreduce.decode(frame).tolist()
    [0.0, 3.0, 0.0, -1.0, 0.0]
    >>> slot = bytearray(100)
    >>> deepreduce.encode(x, "sparsify=topr(count=2) index=golomb", out=slot) == frame == slot[:len(frame)]
    True
    """
    context = context_of_thread(threads)
    beside = name_outputs(array_of(out))
    inputs = read_inputs(x, plan, state, key, sum_duplicates, beside)
    call = make_call(step, seed, private_seed, tag, inputs.is_list, status_frame, fit, segment_rows)
    if fit and out is None:
        raise ArgumentError("fit is for a frame that goes into `out`")
    tracer = tracer_of(trace, call)
    with Turns(inputs.states):
        if inputs.place is None:
            made = _encode_on_cpu(context, inputs, call, out, status_frame)
        else:
            made = _encode_on_gpu(context, inputs, call, out, status_frame, allow_host, inputs.place)
    if tracer is not None:
        tracer.done()
    return made


def _encode_on_gpu(
    context: Context,
    inputs: Inputs,
    call: _abi.dr_call,
    out: Any,
    status_frame: bool,
    allow_host: bool,
    place: _device.Place,
) -> DeviceFrame:
    where = place.struct(allow_host)
    if isinstance(out, DeviceFrame):
        made = out
    else:
        made = DeviceFrame(place, _bound(context, inputs, call, where) if out is None else 0, out)
    buffer, told = borrow_target(made, place, status_frame)
    status = _encode(context, inputs, call, where, buffer, told)
    if status:
        fail(status, context)
    return made


def _encode_on_cpu(context: Context, inputs: Inputs, call: _abi.dr_call, out: Any, status_frame: bool) -> Any:
    result = new(_abi.dr_result)
    if out is not None:
        status = _encode(context, inputs, call, None, _memory.borrow_room(out), result)
    else:
        # Mostly what the last frames took is enough: then nobody works out a bound.
        room, context.scratch = context.scratch, None  # a signal's handler may encode, too
        if room is None:
            room = _memory.empty((_SCRATCH,), numpy.uint8)
        status = _encode(context, inputs, call, None, _memory.borrow_bytes(room), result)
        if status == _abi.DR_E_CAPACITY:
            room = _memory.empty((_bound(context, inputs, call, None),), numpy.uint8)
            status = _encode(context, inputs, call, None, _memory.borrow_bytes(room), result)
    if status and not (status_frame and result.size):
        fail(status, context)
    if out is not None:
        return _memory.part_of_room(out, result.size)
    frame = room[: result.size].tobytes()
    context.scratch = room if room.size <= _SCRATCH_MOST else None
    return frame


def _encode(context: Context, inputs: Inputs, call: _abi.dr_call, where: Any, buffer: _memory.Bytes, told: Any) -> int:
    status: int = _library.load().dr_encode(
        context.handle,
        inputs.plan,
        call,
        where,
        inputs.tensors,
        TENSOR_STRIDE,
        inputs.n,
        buffer.address,
        buffer.size,
        told,
    )
    return status


def _bound(context: Context, inputs: Inputs, call: _abi.dr_call, where: Any) -> int:
    """Bytes that suffice for a frame."""
    size = ctypes.c_size_t()
    status = _library.load().dr_bound(
        context.handle, inputs.plan, call, where, inputs.tensors, TENSOR_STRIDE, inputs.n, size
    )
    if status:
        fail(status, context)
    return size.value


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
    header = _header(frame, _borrow_frame(frame, "frame", place), place, verify=True)
    info = header.info
    return Frame(
        size=info.frame_size,
        header_size=info.header_size,
        version=info.version,
        short=bool(info.flags & _abi.DR_FRAME_SHORT),
        is_list=bool(info.flags & _abi.DR_FRAME_LIST),
        tag=info.tag if info.flags & _abi.DR_FRAME_TAG else None,
        status=_library.load().dr_status_name(info.status).decode() if header.is_status else None,
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
            for tensor in header.infos
        ],
    )


def frame_size(frame: Any) -> int:
    """Bytes of the frame at the beginning of `frame`, which may be longer: for frames that lie one behind the other, or
    in slots. It reads the header only and verifies no check.

    frame  bytes, or what has a buffer of bytes; a DeviceFrame or an array of bytes on a GPU, which is copied to the CPU

    Raises CorruptFrame (no frame, or cut off), Unsupported.

    >>> frame = deepreduce.encode(numpy.ones(8, dtype=numpy.float32), "index=raw value=raw")
    >>> deepreduce.frame_size(frame + b"what follows") == len(frame)
    True
    """
    place = _device.find([("frame", array_of(frame))])
    data = _borrow_frame(frame, "frame", place)
    if place is not None:
        data = _memory.borrow_bytes(_device.framework_of(array_of(frame)).to_host(array_of(frame)))
    size, error = ctypes.c_size_t(), new(_abi.dr_error)
    check(_library.load().dr_frame_size(data.address, data.size, size, error), error)
    return size.value


def _borrow_frame(frame: Any, what: str, place: Optional[_device.Place]) -> _memory.Bytes:
    """The memory of a frame, where it is."""
    if place is None:
        return _memory.borrow_bytes(frame, what)
    data = place.borrow_bytes(array_of(frame), what)
    return data._replace(size=frame.size()) if isinstance(frame, DeviceFrame) else data


class Header(NamedTuple):
    """What the header of a frame tells."""

    info: _abi.dr_frame_info
    infos: Any  # dr_tensor_info[tensors]

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


def _header(frame: Any, data: _memory.Bytes, place: Optional[_device.Place], verify: bool) -> Header:
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


_INFO_STRIDE = ctypes.sizeof(_abi.dr_tensor_info)


# ---- Decode --------------------------------------------------------------------------------------


@overload
def decode(
    frame: Any,
    *,
    out: Out,
    like: None = None,
    sparse: Literal[False] = False,
    dtype: None = None,
    tensors: Optional[Tensors] = None,
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    tag: Optional[int] = None,
    trace: Optional[TraceFunction] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Out: ...


@overload
def decode(
    frame: Any,
    *,
    out: None = None,
    like: Out,
    sparse: Literal[False] = False,
    dtype: Any = None,
    tensors: Optional[Tensors] = None,
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    tag: Optional[int] = None,
    trace: Optional[TraceFunction] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Out: ...


@overload
def decode(
    frame: Any,
    *,
    out: None = None,
    like: Any = None,
    sparse: Literal[True],
    dtype: Any = None,
    tensors: int,
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    tag: Optional[int] = None,
    trace: Optional[TraceFunction] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Sparse: ...


@overload
def decode(
    frame: Any,
    *,
    out: None = None,
    like: Any = None,
    sparse: Literal[True],
    dtype: Any = None,
    tensors: Union[slice, range],
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    tag: Optional[int] = None,
    trace: Optional[TraceFunction] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> List[Sparse]: ...


@overload
def decode(
    frame: Any,
    *,
    out: None = None,
    like: Any = None,
    sparse: Literal[True],
    dtype: Any = None,
    tensors: None = None,
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    tag: Optional[int] = None,
    trace: Optional[TraceFunction] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Union[Sparse, List[Sparse]]: ...


@overload
def decode(
    frame: Any,
    *,
    out: Any = None,
    like: Any = None,
    sparse: bool = False,
    dtype: Any = None,
    tensors: Optional[Tensors] = None,
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    tag: Optional[int] = None,
    trace: Optional[TraceFunction] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Any: ...


def decode(
    frame: Any,
    *,
    out: Any = None,
    like: Any = None,
    sparse: bool = False,
    dtype: Any = None,
    tensors: Optional[Tensors] = None,
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    tag: Optional[int] = None,
    trace: Optional[TraceFunction] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Any:
    """Decodes a frame to what was encoded: a tensor, or the list of them.

    frame          bytes, or what has a buffer of bytes. It may be longer than the frame is. Of a DeviceFrame, or an
                   array of bytes on a GPU (aligned to 16), what comes out is on that GPU too
    out            arrays to overwrite and return, one or a list as was encoded: numpy or torch, contiguous, of any
                   shape with the right number of elements, of float32, float16 or bfloat16; where the frame is
    like           arrays, one or a list as was encoded, of whose kind (torch, numpy), shape and type new ones are
                   returned; their values are not read
    sparse         give Sparse instead of dense arrays (of `like` only the kind counts); not with `out`
    dtype          of what comes out: "float16", numpy's or torch's; None: the frame's. Rounded to nearest
    tensors        decode some of the frame's tensors: a number gives that one, a range or a slice the list of them. On
                   the CPU
    max_elements   raise CapacityError for a frame of more elements, before memory is taken. A few bytes can claim
                   any number: set it for frames from strangers. None: any number, but for sparse=True a codec that
                   goes through all elements to find some (bloom, seeded) may go through 4096 for each byte of frame
                   and output, and 2^20
    max_workspace  raise CapacityError if decoding takes more bytes beside the frame and the outputs. None: 256 for
                   each byte of these and 1 MiB, for each thread
    tag            the tag that the frame must have; otherwise it is an ArgumentError: ranks are out of step
    trace          a function that is called with a Trace when a stage has ended
    allow_host     on a GPU: decode what has no CUDA operations on the CPU; otherwise it is Unsupported
    threads        to work with, on the CPU; None: one

    Frames carry no shapes: an array is [universe], or [universe, width] if width > 1. bfloat16 comes as that from
    a GPU to torch, and to numpy if ml_dtypes is installed; else as float32. If it fails, what `out` holds is
    unspecified. On a GPU it works on the caller's current stream and waits for it: Batch.decode does not.
    Raises CorruptFrame, PeerError (a status frame), ArgumentError (`out` does not fit), CapacityError,
    Unsupported (a codec that is not loaded), OutOfMemory, DeviceError.

    >>> frame = deepreduce.encode(numpy.array([[0, 2], [0, 0]], dtype=numpy.float32), "index=rice")
    >>> deepreduce.decode(frame).tolist()
    [0.0, 2.0, 0.0, 0.0]
    >>> deepreduce.decode(frame, like=numpy.empty((2, 2), dtype=numpy.float32)).tolist()
    [[0.0, 2.0], [0.0, 0.0]]
    >>> deepreduce.decode(frame, sparse=True).indices.tolist()
    [1]
    """
    if out is not None and (sparse or like is not None or dtype is not None):
        raise ArgumentError("sparse, like and dtype say what is made; out is there already")
    code = dtype_code(dtype)
    context = context_of_thread(threads)
    place = _device.find([("frame", array_of(frame)), *name_outputs(out), *name_outputs(like, "like")])
    data = _borrow_frame(frame, "frame", place)
    header = _header(frame, data, place, verify=False)
    try:
        room = _room(
            header, out, like, sparse, code, tensors, max_elements, place, lambda i: int(header.infos[i].support)
        )
    except Error:
        _header(frame, data, place, verify=True)  # if it is damaged, that is what is wrong
        raise
    options = make_options(max_elements, max_workspace, tag, room.asked)
    tracer = tracer_of(trace, options)
    status = _library.load().dr_decode(
        context.handle,
        None if place is None else place.struct(allow_host),
        data.address,
        data.size,
        options,
        room.outs,
        OUT_STRIDE,
        len(room.results),
    )
    if status:
        fail(status, context)
    if tracer is not None:
        tracer.done()
    return out if out is not None else room.result(sparse)


class _Room(NamedTuple):
    """What a decode or merge writes to."""

    outs: Any  # dr_tensor_out[n]
    results: List[Any]
    asked: Optional[range]  # of the frame's tensors; None: all
    one: bool

    def result(self, sparse: bool) -> Any:
        results = cut(self.results, self.outs) if sparse else self.results
        return results[0] if self.one else results


def _room(
    header: Header,
    out: Any,
    like: Any,
    sparse: bool,
    dtype: Optional[int],
    tensors: Optional[Tensors],
    max_elements: Optional[int],
    place: Optional[_device.Place],
    rows: Callable[[int], int],
) -> _Room:
    """Outputs for the tensors that are asked for. rows: those of a tensor, where it comes out sparse."""
    if header.is_status:
        return _Room(None, [], None, not header.is_list)
    header.limit(max_elements)
    asked, alone = range_of(tensors, len(header.infos))
    one = alone or (not header.is_list and asked is None)
    shapes = header.shapes(asked)
    if sparse:
        kind = like[0] if isinstance(like, (list, tuple)) and like else like
        rooms = map(rows, range(len(shapes)) if asked is None else asked)
        outs, results = sparse_outputs(shapes, rooms, dtype, place, maker_of(place, kind, dtype))
        return _Room(outs, results, asked, one)
    given = out if like is None else arrays_like(like, dtype, place)
    return _Room(*dense_outputs(shapes, given, not one, dtype if given is None else None, place), asked, one)


@overload
def merge(
    frames: Sequence[Any],
    *,
    weights: Optional[Sequence[float]] = None,
    out: Out,
    like: None = None,
    sparse: Literal[False] = False,
    dtype: None = None,
    tensors: Optional[Tensors] = None,
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    tag: Optional[int] = None,
    trace: Optional[TraceFunction] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Out: ...


@overload
def merge(
    frames: Sequence[Any],
    *,
    weights: Optional[Sequence[float]] = None,
    out: None = None,
    like: Any = None,
    sparse: Literal[True],
    dtype: Any = None,
    tensors: Optional[Tensors] = None,
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    tag: Optional[int] = None,
    trace: Optional[TraceFunction] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Union[Sparse, List[Sparse]]: ...


@overload
def merge(
    frames: Sequence[Any],
    *,
    weights: Optional[Sequence[float]] = None,
    out: Any = None,
    like: Any = None,
    sparse: bool = False,
    dtype: Any = None,
    tensors: Optional[Tensors] = None,
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    tag: Optional[int] = None,
    trace: Optional[TraceFunction] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Any: ...


def merge(
    frames: Sequence[Any],
    *,
    weights: Optional[Sequence[float]] = None,
    out: Any = None,
    like: Any = None,
    sparse: bool = False,
    dtype: Any = None,
    tensors: Optional[Tensors] = None,
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    tag: Optional[int] = None,
    trace: Optional[TraceFunction] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Any:
    """The sum of the tensors of several frames, in the structure of the frames.

    frames   of tensors of the same sizes; added in this order, in float32
    weights  one for each frame; None: all 1
    out      arrays to add the sum to and to return, as for decode. A half type is rounded after each frame
    like     arrays of whose kind, shape and type the sum is returned, as for decode
    sparse   give Sparse: the union of the supports, rounded once. On the CPU
    dtype    of the sum; None: float32, whatever the frames hold
    tensors, max_elements, max_workspace, tag, trace, allow_host, threads  as for decode

    `out` is untouched if any frame is unsound. Raises as decode does; the error's `frame` tells which.

    >>> a = deepreduce.encode(numpy.array([1, 0, 2], dtype=numpy.float32), "index=raw")
    >>> b = deepreduce.encode(numpy.array([0, 0, 4], dtype=numpy.float32), "index=golomb")
    >>> deepreduce.merge([a, b], weights=[1, 0.5]).tolist()
    [1.0, 0.0, 4.0]
    """
    if not isinstance(frames, Sequence) or isinstance(frames, (str, bytes, bytearray, memoryview)):
        raise ArgumentError(f"merge takes a list of frames, not a {type(frames).__name__}")
    if not frames:
        raise ArgumentError("merge needs at least one frame: it tells the sizes")
    if out is not None and (sparse or like is not None or dtype is not None):
        raise ArgumentError("sparse, like and dtype say what is made; out is there already")
    code = dtype_code(dtype)
    context = context_of_thread(threads)
    names = [f"frames[{i}]" for i in range(len(frames))]
    place = _device.find([*zip(names, map(array_of, frames)), *name_outputs(out), *name_outputs(like, "like")])
    factors = weights_of(weights, len(frames))
    datas = [_borrow_frame(frame, name, place) for frame, name in zip(frames, names)]
    headers = _sound_headers(frames, datas, place, all_of_them=sparse)
    if code is None and (like is None or sparse):
        code = _abi.DR_F32
    try:
        rows = functools.partial(_rows_of_union, headers)
        room = _room(headers[0], out, like, sparse, code, tensors, max_elements, place, rows)
    except Error:
        _sound_headers(frames, datas, place, all_of_them=True, verify=True)
        raise
    options = make_options(max_elements, max_workspace, tag, room.asked, add=out is not None)
    tracer = tracer_of(trace, options)
    status = _library.load().dr_merge(
        context.handle,
        None if place is None else place.struct(allow_host),
        (_abi.dr_bytes * len(datas))(*(_abi.dr_bytes(data.address, data.size) for data in datas)),
        factors,
        len(datas),
        options,
        room.outs,
        OUT_STRIDE,
        len(room.results),
    )
    if status:
        fail(status, context)
    if tracer is not None:
        tracer.done()
    return out if out is not None else room.result(sparse)


def _sound_headers(
    frames: Sequence[Any],
    datas: Sequence[_memory.Bytes],
    place: Optional[_device.Place],
    all_of_them: bool,
    verify: bool = False,
) -> List[Header]:
    """Header of the first frame that is no status frame: it tells the sizes. If all are, of the first.

    all_of_them  those of the frames behind it, too
    """
    found: List[Header] = []
    for i, (frame, data) in enumerate(zip(frames, datas)):
        try:
            header = _header(frame, data, place, verify)
        except Error as error:
            error.args = (f"frame {i}: {error}",)
            error.frame = i
            raise
        if found and found[0].is_status and not header.is_status:
            found.clear()
        found.append(header)
        if not header.is_status and not all_of_them:
            break
    return found


def _rows_of_union(headers: Sequence[Header], tensor: int) -> int:
    """Rows that the union of the supports takes at most. Frames that do not go together are the library's to refuse."""
    supports: int = sum(header.infos[tensor].support for header in headers if tensor < len(header.infos))
    universe: int = headers[0].infos[tensor].universe
    return min(universe, supports)
