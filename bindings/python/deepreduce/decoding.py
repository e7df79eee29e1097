"""decode: a frame to tensors. It uses the caller's arrays during the call, and holds no reference afterwards."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Callable,
    List,
    Literal,
    NamedTuple,
    Optional,
    TypedDict,
    TypeVar,
    Union,
    overload,
)

from ._native import _device, _library
from ._native._call import context_of_thread, fail
from ._native._types import Array, Structs, Tensor
from ._tensors import (
    OUT_STRIDE,
    TraceFunction,
    arrays_like,
    cut,
    dense_outputs,
    dtype_code,
    make_options,
    maker_of,
    name_outputs,
    range_of,
    sparse_outputs,
    tracer_of,
)
from .errors import ArgumentError, Error
from .frame import array_of
from .header import Header, borrow_frame, read_header
from .tensor import Sparse

if TYPE_CHECKING:
    from typing_extensions import Unpack

Out = TypeVar("Out")
Tensors = Union[int, slice, range]


class Options(TypedDict, total=False):
    """The options that decode and merge share."""

    max_elements: Optional[int]
    max_workspace: Optional[int]
    tag: Optional[int]
    coefficients: bool
    trace: Optional[TraceFunction]
    allow_host: bool
    threads: Optional[int]


@overload
def decode(
    frame: object,
    *,
    out: Out,
    add: bool = False,
    like: None = None,
    sparse: Literal[False] = False,
    dtype: None = None,
    tensors: Optional[Tensors] = None,
    **options: Unpack[Options],
) -> Out: ...


@overload
def decode(
    frame: object,
    *,
    out: None = None,
    like: Out,
    sparse: Literal[False] = False,
    dtype: object = None,
    tensors: Optional[Tensors] = None,
    **options: Unpack[Options],
) -> Out: ...


@overload
def decode(
    frame: object,
    *,
    out: None = None,
    like: object = None,
    sparse: Literal[True],
    dtype: object = None,
    tensors: int,
    **options: Unpack[Options],
) -> Sparse: ...


@overload
def decode(
    frame: object,
    *,
    out: None = None,
    like: object = None,
    sparse: Literal[True],
    dtype: object = None,
    tensors: Union[slice, range],
    **options: Unpack[Options],
) -> List[Sparse]: ...


@overload
def decode(
    frame: object,
    *,
    out: None = None,
    like: object = None,
    sparse: Literal[True],
    dtype: object = None,
    tensors: None = None,
    **options: Unpack[Options],
) -> Union[Sparse, List[Sparse]]: ...


@overload
def decode(
    frame: Union[bytes, bytearray, memoryview],
    *,
    out: None = None,
    like: None = None,
    sparse: Literal[False] = False,
    dtype: object = None,
    tensors: int,
    **options: Unpack[Options],
) -> Array: ...


@overload
def decode(
    frame: Union[bytes, bytearray, memoryview],
    *,
    out: None = None,
    like: None = None,
    sparse: Literal[False] = False,
    dtype: object = None,
    tensors: Union[slice, range],
    **options: Unpack[Options],
) -> List[Array]: ...


@overload
def decode(
    frame: object,
    *,
    out: object = None,
    add: bool = False,
    like: object = None,
    sparse: bool = False,
    dtype: object = None,
    tensors: Optional[Tensors] = None,
    **options: Unpack[Options],
) -> Tensor: ...


def decode(
    frame: object,
    *,
    out: object = None,
    add: bool = False,
    like: object = None,
    sparse: bool = False,
    dtype: object = None,
    tensors: Optional[Tensors] = None,
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    tag: Optional[int] = None,
    coefficients: bool = False,
    trace: Optional[TraceFunction] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Tensor:
    """Decodes a frame to the tensor, or the list of tensors, that was encoded.

    `decode(frame)` makes flat arrays, `decode(frame, like=x)` arrays of the type and shape of x, `decode(frame, out=x)` overwrites x.

    frame          bytes, or an object with a buffer of bytes; it may be longer than the frame. For a DeviceFrame, or an
                   array of bytes on a GPU (aligned to 16), the result is on that GPU, too
    out            arrays to overwrite and return, one or a list as was encoded: numpy or torch, contiguous, of any
                   shape with the right number of elements, of float32, float16 or bfloat16; in the frame's place
    add            add to the values of `out` instead of overwriting them, as a merge of one frame does; then `out` is
                   untouched if the frame is damaged
    like           arrays, one or a list as was encoded: new ones of the same kind (torch, numpy), shape and type are
                   returned; their values are not read
    sparse         return Sparse instead of dense arrays (of `like` only the kind counts); not with `out`
    dtype          type of the result: "float16", numpy's or torch's; None: the frame's. Rounded to nearest
    tensors        decode some of the frame's tensors: a number returns that tensor, a range or a slice a list. On the CPU
    max_elements   raise CapacityError for a frame of more elements, before memory is allocated. A few bytes can claim
                   any number: set it for frames from untrusted sources. None: no limit; but with sparse=True a codec that
                   searches all elements (bloom, seeded) may search 4096 for each byte of frame and output, and 2^20
    max_workspace  raise CapacityError if decoding needs more bytes beside the frame and the outputs, in either place. None: 256 for
                   each byte of these and 1 MiB, for each thread
    tag            the tag that the frame must have; another is an ArgumentError: ranks are out of step
    coefficients   of a frame of transform=dct: return the coefficients that were sent, in their order, not the tensor. With
                   `out=state.residual, add=True` it takes a frame back that never arrived. Other frames: no effect
    trace          a function that is called with a Trace at the end of each stage
    allow_host     on a GPU: decode codecs without CUDA operations on the CPU; otherwise these are Unsupported
    threads        number of threads, on the CPU; None: one

    Frames carry no shapes: an array is [universe], or [universe, width] if width > 1. bfloat16 is returned as bfloat16 from
    a GPU to torch, and to numpy if ml_dtypes is installed; otherwise as float32. If decoding fails without `add`, the values
    of `out` are unspecified. On a GPU it works on the caller's current stream and waits for it: Batch.decode does not.
    Raises CorruptFrame, PeerError (a status frame), ArgumentError (`out` does not fit), CapacityError,
    Unsupported (a codec that is not loaded), OutOfMemory, DeviceError.

    >>> frame = deepreduce.encode(numpy.array([[0, 2], [0, 0]], dtype=numpy.float32), "index=rice")
    >>> deepreduce.decode(frame).tolist()
    [0.0, 2.0, 0.0, 0.0]
    >>> deepreduce.decode(frame, like=numpy.empty((2, 2), dtype=numpy.float32)).tolist()
    [[0.0, 2.0], [0.0, 0.0]]
    >>> deepreduce.decode(frame, sparse=True).indices.tolist()
    [1]
    >>> weights = numpy.ones(4, dtype=numpy.float32)
    >>> deepreduce.decode(frame, out=weights, add=True).tolist()
    [1.0, 3.0, 1.0, 1.0]
    """
    if out is not None and (sparse or like is not None or dtype is not None):
        raise ArgumentError("sparse=, like= and dtype= cannot be combined with out=")
    if add and out is None:
        raise ArgumentError("add=True requires out=")
    code = dtype_code(dtype)
    context = context_of_thread(threads)
    place = _device.find([("frame", array_of(frame)), *name_outputs(out), *name_outputs(like, "like")])
    data = borrow_frame(frame, "frame", place)
    header = read_header(frame, data, place, verify=False)
    try:
        room = make_room(
            header, out, like, sparse, code, tensors, max_elements, place, lambda i: int(header.infos[i].support)
        )
    except Error:
        read_header(frame, data, place, verify=True)  # a damaged frame is the better reason
        raise
    options = make_options(max_elements, max_workspace, tag, room.selected, add=add, coefficients=coefficients)
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


class Room(NamedTuple):
    """The outputs of a decode or merge."""

    outs: Structs  # dr_tensor_out[n]
    results: List[Tensor]
    selected: Optional[range]  # of the frame's tensors; None: all
    one: bool

    def result(self, sparse: bool) -> Tensor:
        results = cut(self.results, self.outs) if sparse else self.results
        return results[0] if self.one else results


def make_room(
    header: Header,
    out: object,
    like: object,
    sparse: bool,
    dtype: Optional[int],
    tensors: Optional[Tensors],
    max_elements: Optional[int],
    place: Optional[_device.Place],
    rows: Callable[[int], int],
) -> Room:
    """Outputs for the selected tensors. rows: returns the number of rows of a tensor that is decoded as Sparse"""
    if header.is_status:
        return Room(None, [], None, not header.is_list)
    header.limit(max_elements)
    selected, alone = range_of(tensors, len(header.infos))
    one = alone or (not header.is_list and selected is None)
    shapes = header.shapes(selected)
    if sparse:
        kind = like[0] if isinstance(like, (list, tuple)) and like else like
        rooms = map(rows, range(len(shapes)) if selected is None else selected)
        outs, results = sparse_outputs(shapes, rooms, dtype, place, maker_of(place, kind, dtype))
        return Room(outs, results, selected, one)
    given, name = (out, "out") if like is None else (arrays_like(like, dtype, place), "like")
    made = dense_outputs(shapes, given, not one, dtype if given is None else None, place, name=name)
    return Room(*made, selected, one)
