"""encode: tensors to a frame. It reads the caller's arrays during the call, and holds no reference afterwards."""

from __future__ import annotations

import ctypes
import warnings
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Set, TypedDict, Union, overload

import numpy

from ._native import _abi, _device, _library, _memory
from ._native._call import Context, Turns, context_of_thread, fail, new
from ._native._types import Array, Pointer, Tensor
from ._tensors import (
    TENSOR_STRIDE,
    Inputs,
    Keys,
    TraceFunction,
    make_call,
    name_outputs,
    read_inputs,
    set_weights,
    tracer_of,
)
from .errors import ArgumentError, Error
from .frame import DeviceFrame, array_of, borrow_target
from .plan import Plan, as_plan
from .tensor import Plans, Sparse, States

if TYPE_CHECKING:
    from typing_extensions import Unpack

HostTensor = Union[Array, Sparse]

# Buffer that a thread keeps for its frames, in bytes: initial and maximum size.
_SCRATCH, _SCRATCH_MAX = 65536, 1 << 26


class Options(TypedDict, total=False):
    """The options of encode other than `out`."""

    step: Optional[int]
    seed: int
    private_seed: Optional[int]
    state: States
    weights: object
    key: Keys
    tag: Optional[int]
    sum_duplicates: bool
    status_frame: bool
    fit: bool
    segment_rows: int
    trace: Optional[TraceFunction]
    allow_host: bool
    threads: Optional[int]


@overload
def encode(
    x: Union[HostTensor, Sequence[HostTensor]], plan: Plans, *, out: None = None, **options: Unpack[Options]
) -> bytes: ...


@overload
def encode(x: Tensor, plan: Plans, *, out: Tensor = None, **options: Unpack[Options]) -> Tensor: ...


def encode(
    x: Tensor,
    plan: Plans,
    *,
    out: Tensor = None,
    step: Optional[int] = None,
    seed: int = 0,
    private_seed: Optional[int] = None,
    state: States = None,
    weights: object = None,
    key: Keys = None,
    tag: Optional[int] = None,
    sum_duplicates: bool = False,
    status_frame: bool = False,
    fit: bool = False,
    segment_rows: int = 0,
    trace: Optional[TraceFunction] = None,
    allow_host: bool = False,
    threads: Optional[int] = None,
) -> Tensor:
    """Encodes a tensor, or a list of tensors, into one frame.

    Most programs need one of these calls, and no other parameter:

        encode(x, plan)                                             # or a list of tensors
        encode(x, plan, step=step, private_seed=rank)               # random numbers
        encode(x, plan, step=step, private_seed=rank, state=state)  # feedback

    Plans such as qsgd and Random-k draw random numbers. `state = State(x, plan)` is made once, before the first step.

    x               an array of float32, float16 or bfloat16, of any shape, taken row-major as [d]; or a Sparse;
                    or a list of these. On the CPU: numpy, torch, and objects with DLPack or the buffer protocol;
                    contiguous arrays are read in place, others are copied first. On a GPU: torch, CuPy, and objects with
                    DLPack or a __cuda_array_interface__; contiguous, never copied
    plan            a Plan or its text; for a list of tensors also a list with one plan per tensor
    out             memory for the frame: on the CPU a bytearray, or an array or tensor of bytes; on a GPU an array of
                    bytes, aligned to 16, or a DeviceFrame. Batch.bound bytes suffice for any frame. None: new memory
    step, seed      the same on every rank; they and private_seed determine all random numbers. None is step 0. The second
                    call without a step is a RuntimeWarning if the plan draws random numbers: Random-k would select the
                    same positions at every step
    private_seed    different on every rank, for example the rank. None is 0
    state           the State of the tensor; for a list a list of them (None where there is none)
    tag             a number that `inspect` returns and `decode` compares, for example a hash of step and name

    Seldom needed:

    key             a number that identifies the tensor in random draws; for a list a list of them. 0 or None: its position
                    in the list. Tensors that are encoded by separate calls need different keys, otherwise Random-k
                    selects the same positions in all of them
    weights         for a plan with sparsify=visible: the weights that the tensor updates, of its type and shape; with
                    sparsify=changed the base of the patch, likewise; for a list a list of them
    sum_duplicates  Sparse: add up the values of equal indices; otherwise a duplicate is an error
    status_frame    if the library cannot encode, return a status frame with the reason instead of raising. It decodes to
                    PeerError on every rank, so no rank waits. Arguments that are not tensors still raise; on a GPU so do
                    all errors that do not depend on the values
    fit             if the frame does not fit `out`, send some tensors (or segments) empty, the smallest that suffice,
                    and leave them to feedback, which all plans must have. On the CPU
    segment_rows    cut tensors into segments of this many rows, each coded on its own: a Bloom filter, for example, is
                    sized by the segment's count. 0: one segment up to 2^32 - 1 rows. On a GPU not
                    with bucket=flat
    trace           a function that is called with a Trace at the end of each stage
    allow_host      on a GPU: encode codecs without CUDA operations (deflate, …) on the CPU, with copies and a wait;
                    otherwise these are Unsupported
    threads         number of threads, on the CPU; None: one. The frame does not depend on it

    On the CPU it returns bytes; with `out` the part of it that holds the frame: a tensor of a tensor, an array of an array,
    else a memoryview. On a GPU it works on the caller's current stream: torch's or CuPy's, else the one that a
    __cuda_array_interface__ names, else the legacy default stream. There it returns a DeviceFrame of the same bytes and does
    not wait; errors in the values are raised when the frame is first read.

    Raises ArgumentError (not a tensor, a NaN where the codec is lossy, an index twice or out of range, arrays in different
    places), CapacityError (`out` is too small; `needed` is the size that suffices), ConcurrentUse (a state is in another
    call), Unsupported, OutOfMemory, DeviceError. States are then unchanged.

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
    if weights is not None:
        set_weights(inputs, weights)
    if step is None:
        warn_of_repeated_draws(plan)
    call = make_call(
        0 if step is None else step,
        seed,
        0 if private_seed is None else private_seed,
        tag,
        inputs.is_list,
        status_frame,
        fit,
        segment_rows,
    )
    if fit and out is None:
        raise ArgumentError("fit requires `out`")
    tracer = tracer_of(trace, call)
    try:
        with Turns(inputs.states):
            if inputs.place is None:
                made = _encode_on_cpu(context, inputs, call, out, status_frame)
            else:
                made = _encode_on_gpu(context, inputs, call, out, status_frame, allow_host, inputs.place)
    except ArgumentError as error:
        explain_missing_state(error, inputs, plan, state)
        raise
    if tracer is not None:
        tracer.done()
    return made


def _plans_of(plan: Plans) -> List[Plan]:
    given: Any = plan if isinstance(plan, (list, tuple)) else [plan]
    return [as_plan(one) for one in given]


_drawn: Set[str] = set()  # plans that draw random numbers, and were encoded without a step


def warn_of_repeated_draws(plan: Plans) -> None:
    """Warns once per plan that draws random numbers, at its second encode without a step."""
    for parsed in _plans_of(plan):
        if not parsed.draws or parsed.warned:
            continue
        if str(parsed) not in _drawn:
            _drawn.add(str(parsed))
            continue
        parsed.warned = True
        warnings.warn(
            f"plan '{parsed}' draws random numbers, and encode was called again without step=: it draws the same as"
            " before. Pass step=, the same on every rank, and private_seed=rank",
            RuntimeWarning,
            stacklevel=3,
        )


def explain_missing_state(error: ArgumentError, inputs: Inputs, plan: Plans, state: States) -> None:
    """Where the library reports a missing state, raises an error that says how to make one."""
    at = error.tensor
    if not isinstance(at, int) or not 0 <= at < inputs.n or inputs.tensors[at].state:
        return
    plans = _plans_of(plan)
    if plans[at if len(plans) > 1 else 0].info.feedback:
        name, how = (f"x[{at}]", "State.of(x, plan)") if inputs.is_list else ("x", "State(x, plan)")
        raise ArgumentError(
            f"{name}: the plan has feedback, so it needs a state: state=deepreduce.{how}, the same one at every step",
            tensor=at,
        ) from None


def _encode_on_gpu(
    context: Context,
    inputs: Inputs,
    call: _abi.dr_call,
    out: Tensor,
    status_frame: bool,
    allow_host: bool,
    place: _device.Place,
) -> DeviceFrame:
    where = place.struct(allow_host)
    if isinstance(out, DeviceFrame):
        made = out
    else:
        made = DeviceFrame(place, _bound(context, inputs, call, where) if out is None else 0, out)
    buffer, result = borrow_target(made, place, status_frame)
    status = _encode(context, inputs, call, where, buffer, result)
    if status:
        fail(status, context)
    return made


def _encode_on_cpu(context: Context, inputs: Inputs, call: _abi.dr_call, out: Tensor, status_frame: bool) -> Tensor:
    result = new(_abi.dr_result)
    if out is not None:
        status = _encode(context, inputs, call, None, _memory.borrow_room(out), result)
    else:
        # The buffer of the last frames usually suffices; then no bound is computed. (A trace would have all stages twice.)
        room, context.scratch = context.scratch, None  # a signal's handler may encode, too
        if room is None or call.trace:
            try:
                bound = _bound(context, inputs, call, None)
            except Error:  # encode says why, perhaps in a status frame
                bound = 0
            if room is None or room.size < bound:
                room = _memory.empty((max(bound, _SCRATCH),), numpy.uint8)
        status = _encode(context, inputs, call, None, _memory.borrow_bytes(room), result)
        if status == _abi.DR_E_CAPACITY:
            room = _memory.empty((_bound(context, inputs, call, None),), numpy.uint8)
            status = _encode(context, inputs, call, None, _memory.borrow_bytes(room), result)
    if status and not (status_frame and result.size):
        fail(status, context)
    if out is not None:
        return _memory.part_of_room(out, result.size)
    frame = room[: result.size].tobytes()
    context.scratch = room if room.size <= _SCRATCH_MAX else None
    return frame


def _encode(context: Context, inputs: Inputs, call: _abi.dr_call, where: Optional[_abi.dr_place], buffer: _memory.Bytes, result: Pointer) -> int:
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
        result,
    )
    return status


def _bound(context: Context, inputs: Inputs, call: _abi.dr_call, where: Optional[_abi.dr_place]) -> int:
    """Bytes that suffice for a frame."""
    size = ctypes.c_size_t()
    status = _library.load().dr_bound(
        context.handle, inputs.plan, call, where, inputs.tensors, TENSOR_STRIDE, inputs.n, size
    )
    if status:
        fail(status, context)
    return size.value
