"""merge: the sum of frames. It uses the caller's arrays during the call, and holds no reference afterwards."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, List, Literal, Optional, Sequence, Union, overload

from ._native import _abi, _device, _library, _memory
from ._native._call import context_of_thread, fail
from ._native._types import Tensor
from ._tensors import OUT_STRIDE, TraceFunction, dtype_code, make_options, name_outputs, tracer_of, weights_of
from .decoding import Options, Out, Tensors, make_room
from .errors import ArgumentError, Error
from .frame import array_of
from .header import Header, borrow_frame, read_header
from .tensor import Sparse

if TYPE_CHECKING:
    from typing_extensions import Unpack


@overload
def merge(
    frames: Sequence[object],
    *,
    weights: Optional[Sequence[float]] = None,
    out: Out,
    like: None = None,
    sparse: Literal[False] = False,
    dtype: None = None,
    tensors: Optional[Tensors] = None,
    vote: bool = False,
    **options: Unpack[Options],
) -> Out: ...


@overload
def merge(
    frames: Sequence[object],
    *,
    weights: Optional[Sequence[float]] = None,
    out: None = None,
    like: object = None,
    sparse: Literal[True],
    dtype: object = None,
    tensors: Optional[Tensors] = None,
    vote: bool = False,
    **options: Unpack[Options],
) -> Union[Sparse, List[Sparse]]: ...


@overload
def merge(
    frames: Sequence[object],
    *,
    weights: Optional[Sequence[float]] = None,
    out: object = None,
    like: object = None,
    sparse: bool = False,
    dtype: object = None,
    tensors: Optional[Tensors] = None,
    vote: bool = False,
    **options: Unpack[Options],
) -> Tensor: ...


def merge(
    frames: Sequence[object],
    *,
    weights: Optional[Sequence[float]] = None,
    out: object = None,
    like: object = None,
    sparse: bool = False,
    dtype: object = None,
    tensors: Optional[Tensors] = None,
    vote: bool = False,
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    tag: Optional[int] = None,
    coefficients: bool = False,
    trace: Optional[TraceFunction] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Tensor:
    """The sum of the tensors of several frames: a tensor, or a list as was encoded.

    frames   frames of tensors of equal sizes; added in this order, in float32
    weights  one for each frame; None: all 1
    out      arrays to add the sum to and to return, as for decode. A half type is rounded after each frame
    like     arrays: the sum has their kind, shape and type, as for decode
    sparse   return Sparse: the union of the supports, rounded once. On a GPU only with allow_host, by the CPU
    dtype    type of the sum; None: float32, for frames of any type
    vote     return the sign of the sum, +1 where the sum is 0 (majority vote); then `out` is overwritten. On the CPU
    tensors, max_elements, max_workspace, tag, coefficients, trace, allow_host, threads  as for decode

    `out` is untouched if a frame is damaged. Raises the errors of decode; their `frame` is the position of the frame.

    >>> a = deepreduce.encode(numpy.array([1, 0, 2], dtype=numpy.float32), "index=raw")
    >>> b = deepreduce.encode(numpy.array([0, 0, 4], dtype=numpy.float32), "index=golomb")
    >>> deepreduce.merge([a, b], weights=[1, 0.5]).tolist()
    [1.0, 0.0, 4.0]
    """
    if not isinstance(frames, Sequence) or isinstance(frames, (str, bytes, bytearray, memoryview)):
        raise ArgumentError(f"merge requires a list of frames, not a {type(frames).__name__}")
    if not frames:
        raise ArgumentError("merge needs at least one frame")
    if out is not None and (sparse or like is not None or dtype is not None):
        raise ArgumentError("sparse=, like= and dtype= cannot be combined with out=")
    code = dtype_code(dtype)
    context = context_of_thread(threads)
    names = [f"frames[{i}]" for i in range(len(frames))]
    place = _device.find([*zip(names, map(array_of, frames)), *name_outputs(out), *name_outputs(like, "like")])
    factors = weights_of(weights, len(frames))
    datas = [borrow_frame(frame, name, place) for frame, name in zip(frames, names)]
    headers = _sound_headers(frames, datas, place, all_of_them=sparse)
    if code is None and (like is None or sparse):
        code = _abi.DR_F32
    try:
        rows = functools.partial(_rows_of_union, headers)
        room = make_room(headers[0], out, like, sparse, code, tensors, max_elements, place, rows)
    except Error:
        _sound_headers(frames, datas, place, all_of_them=True, verify=True)
        raise
    options = make_options(
        max_elements,
        max_workspace,
        tag,
        room.selected,
        add=out is not None and not vote,
        vote=vote,
        coefficients=coefficients,
    )
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
    frames: Sequence[object],
    datas: Sequence[_memory.Bytes],
    place: Optional[_device.Place],
    all_of_them: bool,
    verify: bool = False,
) -> List[Header]:
    """The header of the first frame that is not a status frame, for the sizes. If all are status frames: of the first.

    all_of_them  also the headers of the frames behind it
    """
    found: List[Header] = []
    for i, (frame, data) in enumerate(zip(frames, datas)):
        try:
            header = read_header(frame, data, place, verify)
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
    """Maximum number of rows of the union of the supports. The library rejects frames of different sizes."""
    supports: int = sum(header.infos[tensor].support for header in headers if tensor < len(header.infos))
    universe: int = headers[0].infos[tensor].universe
    return min(universe, supports)
