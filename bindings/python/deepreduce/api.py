"""encode, inspect, decode, merge. They borrow the caller's arrays for the call and keep none."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any, List, Literal, Optional, Sequence, Tuple, TypeVar, Union, overload

import numpy

from . import _abi, _library, _memory
from ._call import check, context_of_thread, fail, new, text, unsigned
from .errors import ArgumentError, CapacityError, Error
from .plan import as_plan
from .tensor import Array, Plans, Sparse, State, States, as_list, borrow_tensor, one_each

Out = TypeVar("Out")

# A status frame is 24 bytes and a message of at most 255 (FORMAT.md).
_STATUS_FRAME_CAPACITY = 1024
# Infos that the first dr_inspect has room for. Longer frames take a second one.
_INSPECT_CAPACITY = 16


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
    threads: Optional[int] = None,
) -> bytes:
    """Encodes a tensor, or a list of tensors, into one frame.

    x               an array of float32, float16 or bfloat16, of any shape, taken row-major as [d]; or a Sparse;
                    or a list of these. numpy, torch, and what speaks DLPack or buffers, in the memory of the CPU.
                    Contiguous arrays are not copied; of others a contiguous copy is made
    plan            a Plan or its text; for a list also a list with one for each tensor
    step, seed      the same on every rank; they and private_seed decide all random numbers
    private_seed    different on every rank: the rank will do
    state           the State of the tensor, for a list a list of them (None where there is none)
    tag             a number that `inspect` gives back: step and name hash, say
    sum_duplicates  Sparse: add up the values of equal indices; otherwise a duplicate is an error
    status_frame    if the library cannot encode, return a frame that says why instead of raising: it decodes to
                    PeerError on every rank, so that nobody waits. What is no tensor at all is still raised
    threads         to work with; None: one. The frame does not depend on it

    Raises ArgumentError (what is no tensor, a NaN where the codec is lossy, an index twice or out of range),
    Unsupported, OutOfMemory. States are then as they were.

    >>> x = numpy.array([0, 3, 0, -1, 0.5], dtype=numpy.float32)
    >>> frame = deepreduce.encode(x, "sparsify=topr(count=2) index=golomb")
    >>> deepreduce.decode(frame).tolist()
    [0.0, 3.0, 0.0, -1.0, 0.0]
    """
    library, context = _library.load(), context_of_thread(threads)
    items, is_list = as_list(x)
    batch = _batch(items, is_list, sum_duplicates)
    _give_plans(batch, plan, is_list)
    _give_states(batch, state, is_list)

    call = new(_abi.dr_call)
    call.step = unsigned(step, "step")
    call.seed = unsigned(seed, "seed")
    call.private_seed = unsigned(private_seed, "private_seed")
    call.tag = 0 if tag is None else unsigned(tag, "tag")
    call.flags = (
        (_abi.DR_CALL_LIST if is_list else 0)
        | (_abi.DR_CALL_STATUS_FRAME if status_frame else 0)
        | (0 if tag is None else _abi.DR_CALL_TAG)
    )

    stride, n = ctypes.sizeof(_abi.dr_tensor), len(items)
    bound = ctypes.c_size_t()
    status = library.dr_bound(context.handle, batch.plan, batch.tensors, stride, n, ctypes.byref(bound))
    if status and not status_frame:
        fail(status, context)
    # Where dr_bound fails so does dr_encode, for the same reason; it is called for its status frame.
    frame = _memory.empty((_STATUS_FRAME_CAPACITY if status else bound.value,), numpy.uint8)
    result = new(_abi.dr_result)
    status = library.dr_encode(
        context.handle,
        batch.plan,
        ctypes.byref(call),
        None,
        batch.tensors,
        stride,
        n,
        frame.ctypes.data,
        frame.size,
        ctypes.byref(result),
    )
    if status and not (status_frame and result.size):
        fail(status, context)
    return frame[: result.size].tobytes()


@dataclasses.dataclass
class _Batch:
    tensors: Any  # dr_tensor[n]
    plan: Any  # dr_plan *, or None if each tensor has its own
    alive: List[object]  # owners of what tensors and plan point to


def _batch(items: Sequence[Any], is_list: bool, sum_duplicates: bool) -> _Batch:
    batch = _Batch((_abi.dr_tensor * len(items))(), None, [])
    for i, item in enumerate(items):
        try:
            batch.tensors[i], owner = borrow_tensor(item, f"x[{i}]" if is_list else "x", sum_duplicates)
        except ArgumentError as error:
            error.tensor = i
            raise
        batch.alive.append(owner)
    return batch


def _give_plans(batch: _Batch, plan: Plans, is_list: bool) -> None:
    if isinstance(plan, (list, tuple)):
        for tensor, each in zip(batch.tensors, one_each(plan, len(batch.tensors), is_list, "plan")):
            parsed = as_plan(each)
            tensor.plan = parsed.handle
            batch.alive.append(parsed)
    else:
        parsed = as_plan(plan)  # type: ignore[arg-type]
        batch.plan = parsed.handle
        batch.alive.append(parsed)


def _give_states(batch: _Batch, state: States, is_list: bool) -> None:
    if state is None:
        return
    for i, each in enumerate(one_each(state, len(batch.tensors), is_list, "state")):
        if each is None:
            continue
        if not isinstance(each, State):
            raise ArgumentError(f"a state is a State, not a {type(each).__name__}", tensor=i)
        if each.memory.size:
            batch.tensors[i].state, batch.tensors[i].state_size = each.memory.ctypes.data, each.memory.size
            batch.alive.append(each)


# ---- Inspect -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class FrameTensor:
    """One tensor of a frame, as its header tells.

    count is what went in (r, in rows), support what decode gives; sizes are in bytes. fallback is "none",
    "raw_index" or "dense", the furthest of its segments. plan tells the codecs and their wire fields.
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

    frame  bytes, or what has a buffer of bytes. It may be longer than the frame is

    Raises CorruptFrame, Unsupported (a codec that is not loaded).

    >>> frame = deepreduce.encode(numpy.ones(8, dtype=numpy.float32), "index=raw value=raw", tag=7)
    >>> info = deepreduce.inspect(frame)
    >>> info.tag, len(info.tensors), info.tensors[0].universe, info.tensors[0].dtype
    (7, 1, 8, 'float32')
    """
    info, tensors = _inspect(_memory.borrow_bytes(frame))
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
            )
            for tensor in tensors
        ],
    )


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
    frame: Any, *, out: Out, sparse: bool = False, max_elements: Optional[int] = None, threads: Optional[int] = None
) -> Out: ...


@overload
def decode(
    frame: Any,
    *,
    out: None = None,
    sparse: Literal[True],
    max_elements: Optional[int] = None,
    threads: Optional[int] = None,
) -> Union[Sparse, List[Sparse]]: ...


@overload
def decode(
    frame: Any,
    *,
    out: None = None,
    sparse: bool = False,
    max_elements: Optional[int] = None,
    threads: Optional[int] = None,
) -> Any: ...


def decode(
    frame: Any,
    *,
    out: Any = None,
    sparse: bool = False,
    max_elements: Optional[int] = None,
    threads: Optional[int] = None,
) -> Any:
    """Decodes a frame to what was encoded: a tensor, or the list of them.

    frame         bytes, or what has a buffer of bytes. It may be longer than the frame is
    out           arrays to overwrite and return, one or a list as was encoded: numpy or torch, contiguous, of any
                  shape with the right number of elements, of the frame's type or float32
    sparse        give Sparse instead of dense arrays; not with `out`
    max_elements  raise CapacityError for a frame of more elements, before memory is taken. A few bytes can claim
                  any number: set it for frames from strangers
    threads       to work with; None: one

    Frames carry no shapes: an array is [universe], or [universe, width] if width > 1. bfloat16 comes as that if
    ml_dtypes is installed, else as float32. If it fails, what `out` holds is unspecified.
    Raises CorruptFrame, PeerError (a status frame), ArgumentError (`out` does not fit), CapacityError,
    Unsupported (a codec that is not loaded), OutOfMemory.

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
    data = _memory.borrow_bytes(frame)
    info, infos = _inspect(data)
    is_list = _is_list(info)
    limits = _limits(infos, max_elements)
    outs = (_abi.dr_tensor_out * len(infos))()
    if info.flags & _abi.DR_FRAME_STATUS:
        results: List[Any] = []
    elif sparse:
        results = [_sparse_output(room, each) for room, each in zip(outs, infos)]
    else:
        results = _dense_outputs(outs, infos, out, is_list, None)
    status = _library.load().dr_decode(
        context.handle,
        None,
        data.address,
        data.size,
        ctypes.byref(limits),
        outs,
        ctypes.sizeof(_abi.dr_tensor_out),
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
    threads: Optional[int] = None,
) -> Any:
    """The sum of the dense tensors of several frames, in the structure of the frames.

    frames   of tensors of the same sizes; added in this order, in float32
    weights  one for each frame; None: all 1
    out      arrays to add the sum to and to return, as for decode. A half type is rounded after each frame
    max_elements, threads  as for decode

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
    datas = [_memory.borrow_bytes(each, f"frames[{i}]") for i, each in enumerate(frames)]
    if weights is not None and len(weights) != len(datas):
        raise ArgumentError(f"there are {len(weights)} weights for {len(datas)} frames")
    factors = None if weights is None else (ctypes.c_float * len(datas))(*(float(w) for w in weights))

    info, infos = _inspect_first_sound(datas)
    is_list = _is_list(info)
    outs = (_abi.dr_tensor_out * len(infos))()
    options = new(_abi.dr_merge_options)
    options.limits = _limits(infos, max_elements)
    options.flags = 0 if out is None else _abi.DR_MERGE_ADD
    results: List[Any] = []
    if not info.flags & _abi.DR_FRAME_STATUS:
        results = _dense_outputs(outs, infos, out, is_list, _abi.DR_F32)
    status = _library.load().dr_merge(
        context.handle,
        None,
        (_abi.dr_bytes * len(datas))(*(_abi.dr_bytes(data.address, data.size) for data in datas)),
        factors,
        len(datas),
        ctypes.byref(options),
        outs,
        ctypes.sizeof(_abi.dr_tensor_out),
        len(infos),
    )
    if status:
        fail(status, context)
    if out is not None:
        return out
    return results if is_list else results[0]


def _inspect_first_sound(datas: Sequence[_memory.Bytes]) -> Tuple[_abi.dr_frame_info, List[_abi.dr_tensor_info]]:
    """Header of the first frame that is no status frame: it tells the sizes. If all are, of the first."""
    first = None
    for i, data in enumerate(datas):
        try:
            found = _inspect(data)
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


def _limits(infos: Sequence[_abi.dr_tensor_info], max_elements: Optional[int]) -> _abi.dr_limits:
    limits = new(_abi.dr_limits)
    if max_elements is not None:
        most = unsigned(max_elements, "max_elements")
        elements = sum(info.universe * info.width for info in infos)
        if elements > most:
            raise CapacityError(f"the frame has {elements} elements, max_elements is {most}")
        limits.max_elements = most
    return limits


def _dense_outputs(
    outs: Any, infos: Sequence[_abi.dr_tensor_info], out: Any, is_list: bool, dtype: Optional[int]
) -> List[Any]:
    """Points `outs` at the arrays in `out`, or if that is None at new ones of `dtype` (None: the frame's). These."""
    if out is None:
        arrays = [_new_dense(info, dtype) for info in infos]
    else:
        if isinstance(out, (list, tuple)) != is_list:
            raise ArgumentError(f"the frame holds a {'list' if is_list else 'single tensor'}, out does not")
        arrays = list(out) if is_list else [out]
        if len(arrays) != len(infos):
            raise ArgumentError(f"out has {len(arrays)} arrays, the frame {len(infos)} tensors")
    for i, (room, info, array) in enumerate(zip(outs, infos, arrays)):
        what = f"out[{i}]" if is_list else "out"
        memory = _memory.borrow_output(array, what)
        if memory.elements != info.universe * info.width:
            raise ArgumentError(
                f"{what} has {memory.elements} elements, the tensor {info.universe * info.width}", tensor=i
            )
        room.struct_size = ctypes.sizeof(room)
        room.dtype, room.values = memory.dtype, memory.address
        room.universe, room.width = info.universe, info.width
    return arrays


def _new_dense(info: _abi.dr_tensor_info, dtype: Optional[int]) -> Array:
    numpy_dtype, _code = _memory.result_dtype(info.dtype if dtype is None else dtype)
    return _memory.empty(_shape(info), numpy_dtype)


def _sparse_output(room: _abi.dr_tensor_out, info: _abi.dr_tensor_info) -> Sparse:
    numpy_dtype, code = _memory.result_dtype(info.dtype)
    shape = _shape(info)
    indices = _memory.empty((info.support,), numpy.int64)
    values = _memory.empty((info.support,) + shape[1:], numpy_dtype)
    room.struct_size = ctypes.sizeof(room)
    room.dtype, room.values = code, values.ctypes.data
    room.index_dtype, room.indices = _abi.DR_I64, indices.ctypes.data
    room.universe, room.width = info.universe, info.width
    room.capacity = info.support
    return Sparse(indices, values, shape)


def _first(x: Sparse, count: int) -> Sparse:
    return Sparse(x.indices[:count], x.values[:count], x.shape)


def _shape(info: _abi.dr_tensor_info) -> Tuple[int, ...]:
    return (info.universe, info.width) if info.width > 1 else (info.universe,)
