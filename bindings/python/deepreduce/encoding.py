"""encode: tensors to a frame. It borrows the caller's arrays for the call and keeps none."""

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
    give_weights,
    make_call,
    name_outputs,
    read_inputs,
    tracer_of,
)
from .errors import ArgumentError
from .frame import DeviceFrame, array_of, borrow_target
from .plan import Plan, as_plan
from .tensor import Plans, Sparse, States

if TYPE_CHECKING:
    from typing_extensions import Unpack

HostTensor = Union[Array, Sparse]

# Room that a thread keeps for its frames: the first, and the most.
_SCRATCH, _SCRATCH_MOST = 65536, 1 << 26


class Options(TypedDict, total=False):
    """What encode takes in any case."""

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

    x               an array of float32, float16 or bfloat16, of any shape, taken row-major as [d]; or a Sparse;
                    or a list of these. On the CPU: numpy, torch, and what speaks DLPack or buffers; contiguous
                    arrays are not copied, of others a contiguous copy is made. On a GPU: torch, CuPy, and what
                    speaks DLPack or has a __cuda_array_interface__; contiguous, never copied
    plan            a Plan or its text; for a list also a list with one for each tensor
    out             where to write the frame: on the CPU a bytearray, or an array or tensor of bytes; on a GPU an array
                    of bytes, aligned to 16, or a DeviceFrame, which has room for any frame (Batch.bound). None: new
                    memory
    step, seed      the same on every rank; they and private_seed decide all random numbers. None is step 0; the second
                    call that leaves it out is a RuntimeWarning if the plan draws: Random-k would keep the same positions at
                    every step
    private_seed    different on every rank: the rank will do. None is 0
    state           the State of the tensor, for a list a list of them (None where there is none)
    weights         of a plan with sparsify=visible: the weights that the tensor is to move, of its type and shape, for a
                    list a list of them
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
    if weights is not None:
        give_weights(inputs, weights)
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
        raise ArgumentError("fit is for a frame that goes into `out`")
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
    return [as_plan(each) for each in given]


_drawn: Set[str] = set()  # plans that draw, and were encoded without a step


def warn_of_repeated_draws(plan: Plans) -> None:
    """Once a plan: at its second encode without a step, if it draws random numbers."""
    for parsed in _plans_of(plan):
        if not parsed.draws or parsed.warned:
            continue
        if str(parsed) not in _drawn:
            _drawn.add(str(parsed))
            continue
        parsed.warned = True
        warnings.warn(
            f"plan '{parsed}' draws random numbers, and encode was called again without step=: it draws the same as"
            " before. Give step=, the same on every rank, and private_seed=rank",
            RuntimeWarning,
            stacklevel=3,
        )


def explain_missing_state(error: ArgumentError, inputs: Inputs, plan: Plans, state: States) -> None:
    """Raises what a caller can do, where the library says that a tensor has no state."""
    at = error.tensor
    if not isinstance(at, int) or not 0 <= at < inputs.n or inputs.tensors[at].state:
        return
    plans = _plans_of(plan)
    if plans[at if len(plans) > 1 else 0].info.feedback:
        name, how = (f"x[{at}]", "State.of(x, plan)") if inputs.is_list else ("x", "State(x, plan)")
        raise ArgumentError(
            f"{name}: the plan keeps feedback, so it needs a state: state=deepreduce.{how}, the same one at every step",
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
    buffer, told = borrow_target(made, place, status_frame)
    status = _encode(context, inputs, call, where, buffer, told)
    if status:
        fail(status, context)
    return made


def _encode_on_cpu(context: Context, inputs: Inputs, call: _abi.dr_call, out: Tensor, status_frame: bool) -> Tensor:
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


def _encode(context: Context, inputs: Inputs, call: _abi.dr_call, where: Optional[_abi.dr_place], buffer: _memory.Bytes, told: Pointer) -> int:
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


def _bound(context: Context, inputs: Inputs, call: _abi.dr_call, where: Optional[_abi.dr_place]) -> int:
    """Bytes that suffice for a frame."""
    size = ctypes.c_size_t()
    status = _library.load().dr_bound(
        context.handle, inputs.plan, call, where, inputs.tensors, TENSOR_STRIDE, inputs.n, size
    )
    if status:
        fail(status, context)
    return size.value
