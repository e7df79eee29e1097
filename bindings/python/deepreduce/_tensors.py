"""The arguments of calls as structs of the library: tensors with plans and states, outputs, numbers."""

from __future__ import annotations

import ctypes
import dataclasses
import operator
import sys
from typing import Callable, Dict, Iterable, List, NamedTuple, NoReturn, Optional, Sequence, Tuple, Union

import numpy

from ._native import _abi, _device, _memory
from ._native._call import Trace, Tracer, new, unsigned
from ._native._types import DTypeLike, Pointer, Structs, Tensor
from .errors import ArgumentError
from .frame import DeviceFrame
from .plan import as_plan
from .tensor import Plans, Sparse, State, States, arrays_of, as_list, borrow_state, borrow_tensor, one_each

TENSOR_STRIDE = ctypes.sizeof(_abi.dr_tensor)
OUT_STRIDE = ctypes.sizeof(_abi.dr_tensor_out)

Named = List[Tuple[str, object]]  # arrays with their names in errors
Keys = Union[None, int, Sequence[int]]
TraceFunction = Callable[[Trace], object]


@dataclasses.dataclass
class Inputs:
    place: Optional[_device.Place]
    is_list: bool
    tensors: Structs  # dr_tensor[n]
    plan: Optional[Pointer]  # dr_plan *, or None if each tensor has its own
    alive: List[object]  # owners of the memory of tensors and plan
    states: List[Tuple[State, str]]  # states that only this call may use (Turns)

    @property
    def n(self) -> int:
        return len(self.tensors)


def read_inputs(
    x: object, plan: Optional[Plans], state: States, key: Keys, sum_duplicates: bool, beside: Named
) -> Inputs:
    """Reads x. Its arrays, the states and the arrays `beside` must be in one place. plan: None for a batch"""
    items, is_list = as_list(x)
    names = [f"x[{i}]" for i in range(len(items))] if is_list else ["x"]
    named = list(beside)
    for name, item in zip(names, items):
        named += arrays_of(item, name)
    states = _states(state, names, is_list)
    named += [(f"the state of {names[i]}", held.memory) for i, held in states.items()]
    inputs = Inputs(
        _device.find(named),
        is_list,
        (_abi.dr_tensor * len(items))(),
        None,
        [],
        [(s, "a state") for s in states.values()],
    )
    for i, item in enumerate(items):
        try:
            inputs.alive.append(borrow_tensor(inputs.tensors[i], item, names[i], sum_duplicates, inputs.place))
        except ArgumentError as error:
            error.tensor = i
            raise
    if plan is not None:
        _set_plans(inputs, plan)
    for i, held in states.items():
        memory = borrow_state(held)
        inputs.tensors[i].state, inputs.tensors[i].state_size = memory.address, memory.size
        inputs.alive.append(memory.owner)
    if key is not None:
        for i, number in enumerate(one_each(key, len(items), is_list, "key")):
            inputs.tensors[i].key = unsigned(number, f"key[{i}]" if is_list else "key")
    return inputs


def set_weights(inputs: Inputs, weights: object) -> None:
    """Sets the base of every tensor: weights of its type and number of elements, with which the plan compares it."""
    for i, base in enumerate(one_each(weights, inputs.n, inputs.is_list, "weights")):
        if base is None:
            continue
        name, struct, tensor = f"weights[{i}]" if inputs.is_list else "weights", _abi.dr_tensor(), inputs.tensors[i]
        inputs.alive.append(borrow_tensor(struct, base, name, False, inputs.place))
        if (struct.dtype, struct.universe, struct.index_dtype) != (tensor.dtype, tensor.universe, 0):
            raise ArgumentError(
                f"{name} has {struct.universe} elements of dtype {struct.dtype}; its tensor {tensor.universe} of dtype"
                f" {tensor.dtype}",
                tensor=i,
            )
        tensor.base = struct.values


def _states(state: States, names: Sequence[str], is_list: bool) -> Dict[int, State]:
    """{position: state}, of the states that have bytes."""
    if state is None:
        return {}
    found: Dict[int, State] = {}
    used: Dict[int, int] = {}  # id of a state: position
    for i, given in enumerate(one_each(state, len(names), is_list, "state")):
        if given is not None and not isinstance(given, State):
            raise ArgumentError(f"state must be a State, not a {type(given).__name__}", tensor=i)
        if given is not None and given.size:
            if (first := used.setdefault(id(given), i)) < i:
                raise ArgumentError(f"state[{i}] is that of x[{first}], too: each tensor needs its own", tensor=i)
            found[i] = given
    return found


def _set_plans(inputs: Inputs, plan: Plans) -> None:
    if isinstance(plan, (list, tuple)):
        for tensor, own in zip(inputs.tensors, one_each(plan, inputs.n, inputs.is_list, "plan")):
            parsed = as_plan(own)
            tensor.plan = parsed.handle
            inputs.alive.append(parsed)
    else:
        parsed = as_plan(plan)  # type: ignore[arg-type]
        inputs.plan = parsed.handle
        inputs.alive.append(parsed)


def require_in_place(x: object) -> None:
    """ArgumentError for arrays that encode would copy first: the copy would not follow their changes."""
    for i, item in enumerate(x if isinstance(x, (list, tuple)) else [x]):
        for array in (item.indices, item.values) if isinstance(item, Sparse) else (item,):
            if not _memory.is_in_place(array):
                what = f"x[{i}]" if isinstance(x, (list, tuple)) else "x"
                raise ArgumentError(
                    f"{what} is not contiguous and aligned; a bound tensor is read in place", tensor=i
                )


def call_flags(is_list: bool, tag: Optional[int], status_frame: bool, fit: bool) -> int:
    return (
        (_abi.DR_CALL_LIST if is_list else 0)
        | (_abi.DR_CALL_STATUS_FRAME if status_frame else 0)
        | (_abi.DR_CALL_FIT if fit else 0)
        | (0 if tag is None else _abi.DR_CALL_TAG)
    )


def make_call(
    step: int,
    seed: int,
    private_seed: int,
    tag: Optional[int],
    is_list: bool,
    status_frame: bool,
    fit: bool,
    segment_rows: int = 0,
) -> _abi.dr_call:
    call = new(_abi.dr_call)
    call.step = unsigned(step, "step")
    call.seed = unsigned(seed, "seed")
    call.private_seed = unsigned(private_seed, "private_seed")
    call.tag = 0 if tag is None else unsigned(tag, "tag")
    call.segment_rows = unsigned(segment_rows, "segment_rows")
    call.flags = call_flags(is_list, tag, status_frame, fit)
    return call


def make_options(
    max_elements: Optional[int] = None,
    max_workspace: Optional[int] = None,
    tag: Optional[int] = None,
    tensors: Optional[range] = None,
    add: bool = False,
    vote: bool = False,
    coefficients: bool = False,
) -> _abi.dr_decode_options:
    options = new(_abi.dr_decode_options)
    options.flags = (_abi.DR_DECODE_ADD if add else 0) | (0 if tag is None else _abi.DR_DECODE_TAG)
    options.flags |= (_abi.DR_DECODE_VOTE if vote else 0) | (_abi.DR_DECODE_COEFFICIENTS if coefficients else 0)
    # 0 means "no limit" there; here it admits nothing, as a limit of 1 does.
    options.max_elements = 0 if max_elements is None else max(1, unsigned(max_elements, "max_elements"))
    options.max_workspace = 0 if max_workspace is None else max(1, unsigned(max_workspace, "max_workspace"))
    options.tag = 0 if tag is None else unsigned(tag, "tag")
    if tensors is not None:
        options.first_tensor, options.tensors = tensors.start, len(tensors)
    return options


def tracer_of(trace: Optional[TraceFunction], struct: Union[_abi.dr_call, _abi.dr_decode_options]) -> Optional[Tracer]:
    """Sets a caller's function in a dr_call or dr_decode_options."""
    if trace is None:
        return None
    tracer = Tracer(trace)
    tracer.set_in(struct)
    return tracer


def weights_of(weights: Optional[Sequence[float]], frames: int) -> Structs:
    """float[frames], or None."""
    if weights is None:
        return None
    try:
        count = len(weights)
    except TypeError:
        raise ArgumentError(f"weights is {weights!r}, not a list of {frames} numbers") from None
    if count != frames:
        raise ArgumentError(f"there are {count} weights for {frames} frames")
    try:
        return (ctypes.c_float * frames)(*weights)
    except (TypeError, ValueError, OverflowError):
        listed = (ctypes.c_float * frames)()
        for i, weight in enumerate(weights):
            try:
                listed[i] = float(weight)
            except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a torch tensor of many elements
                raise ArgumentError(f"weights[{i}] is {weight!r}, not a number") from None
        return listed


MAX_FRAMES = 2**20  # of a merge: deepreduce.h


def frames_of(frames: Iterable[Tensor]) -> Sequence[Tensor]:
    """Frames as a list: an array [k, bytes] is a list of its rows, but bytes are one frame."""
    if type(frames) is list or type(frames) is tuple:
        return frames
    try:
        if isinstance(frames, (str, bytes, bytearray, memoryview, DeviceFrame)):
            raise TypeError
        return list(frames)
    except TypeError:
        raise ArgumentError(f"merge requires a list of frames, not a {type(frames).__name__}") from None


# ---- Outputs ------------------------------------------------------------------------------------


class Shape(NamedTuple):
    """An output tensor. dtype is a DR_*; `shape` is that of a new array."""

    universe: int
    width: int
    dtype: int
    shape: Tuple[int, ...]


def shape_of(tensor: _abi.dr_tensor, x: object) -> Shape:
    """The Shape of x, from which `tensor` was borrowed."""
    shape = x.shape if isinstance(x, Sparse) else tuple(getattr(x, "shape", (tensor.universe,)))
    return Shape(tensor.universe, tensor.width, tensor.dtype, shape)


# Makes an array of a shape and a DR_*, in the place of the call's other arrays.
Maker = Callable[[Tuple[int, ...], int], Tensor]


def name_outputs(out: object, what: str = "out") -> Named:
    if out is None:
        return []
    return [(f"{what}[{i}]", x) for i, x in enumerate(out)] if isinstance(out, (list, tuple)) else [(what, out)]


def dtype_code(dtype: DTypeLike, what: str = "dtype") -> Optional[int]:
    """The DR_* of a type: "float16", numpy's or torch's. what: its name in errors"""
    if dtype is None:
        return None
    name = dtype if isinstance(dtype, str) else str(dtype)
    if name.startswith("torch."):
        name = name[len("torch.") :]
    elif name not in _memory.CODES:
        try:
            name = numpy.dtype(dtype).name
        except (TypeError, ValueError, SyntaxError):
            raise ArgumentError(f"{what} is {dtype!r}, which is not a type of values") from None
    return _memory.code_of(name, what, _memory.FLOATS)


def maker_of(place: Optional[_device.Place], like: object, dtype: Optional[int]) -> Maker:
    """A function that makes arrays of the kind of `like`; None: numpy's. dtype: that of the caller, or None"""
    if place is not None:
        here = place
        return lambda shape, code: here.empty(shape, here.framework.result(code))
    if _memory.torch_tensor(like):
        torch = sys.modules["torch"]
        return lambda shape, code: torch.empty(shape, dtype=getattr(torch, _memory.NAMES[code]))
    if dtype == _abi.DR_BF16 and _memory.bfloat16() is None:
        raise ArgumentError("dtype is bfloat16, for which numpy needs ml_dtypes: pip install ml_dtypes")
    return lambda shape, code: _memory.empty(shape, _memory.result_dtype(code)[0])


def arrays_like(like: object, dtype: Optional[int], place: Optional[_device.Place]) -> Tensor:
    """New arrays of the kind, the shape and, if dtype is None, the type of `like`: one, or a list as `like` is."""
    made = []
    for what, x in name_outputs(like, "like"):
        layout = _memory.describe(x, what, place)
        made.append(maker_of(place, x, dtype)(layout.shape, layout.dtype if dtype is None else dtype))
    return made if isinstance(like, (list, tuple)) else made[0]


def dense_outputs(
    shapes: Sequence[Shape],
    out: Tensor,
    is_list: bool,
    dtype: Optional[int],
    place: Optional[_device.Place],
    make: Optional[Maker] = None,
    name: str = "out",
) -> Tuple[Structs, List[Tensor]]:
    """dr_tensor_out[n] for the arrays in `out`, whose memory lives as long as these structs; None: for new ones of `dtype` (None:
    the tensors'). name: of `out` in errors"""
    outs: Structs = (_abi.dr_tensor_out * len(shapes))()
    if out is None:
        make = make or maker_of(place, None, dtype)
        arrays = []
        for room, shape in zip(outs, shapes):
            array = make(shape.shape, shape.dtype if dtype is None else dtype)
            room.struct_size = OUT_STRIDE
            room.values, room.dtype = _memory.of_new(array, place)
            room.universe, room.width = shape.universe, shape.width
            arrays.append(array)
        return outs, arrays
    if isinstance(out, (list, tuple)) != is_list:
        raise ArgumentError(f"the frame holds a {'list' if is_list else 'single tensor'}, and {name} does not")
    arrays = list(out) if is_list else [out]
    if len(arrays) != len(shapes):
        raise ArgumentError(f"{name} has {len(arrays)} arrays, the frame {len(shapes)} tensors")
    used: Dict[int, int] = {}  # address: position
    outs.owners = owners = []
    for i, (room, shape, array) in enumerate(zip(outs, shapes, arrays)):
        what = f"{name}[{i}]" if is_list else name
        memory = _memory.borrow_output(array, what, place)
        elements = memory.elements
        if elements != shape.universe * shape.width:
            raise ArgumentError(f"{what} has {elements} elements, the tensor {shape.universe * shape.width}", tensor=i)
        if elements and (first := used.setdefault(memory.address, i)) < i:
            raise ArgumentError(f"{name}[{i}] is the memory of {name}[{first}], too", tensor=i)
        owners.append(memory.owner)
        room.struct_size, room.dtype, room.values = OUT_STRIDE, memory.dtype, memory.address
        room.universe, room.width = shape.universe, shape.width
    return outs, arrays


def sparse_outputs(
    shapes: Sequence[Shape],
    rooms: Iterable[int],
    dtype: Optional[int],
    place: Optional[_device.Place],
    make: Optional[Maker] = None,
) -> Tuple[Structs, List[Sparse]]:
    """dr_tensor_out[n] for new arrays. rooms: the capacity of each, in rows"""
    outs, results = (_abi.dr_tensor_out * len(shapes))(), []
    make = make or maker_of(place, None, dtype)
    for room, shape, rows in zip(outs, shapes, rooms):
        indices = make((rows,), _abi.DR_I64)
        values = make((rows,) + shape.shape[1:], shape.dtype if dtype is None else dtype)
        room.struct_size = OUT_STRIDE
        room.values, room.dtype = _memory.of_new(values, place)
        room.indices, room.index_dtype = _memory.of_new(indices, place)
        room.universe, room.width = shape.universe, shape.width
        room.capacity = rows
        results.append(Sparse(indices, values, shape.shape))
    return outs, results


def cut(results: List[Sparse], outs: Structs) -> List[Sparse]:
    """The results, cut to the rows that were written."""
    return [
        (
            result
            if len(result.indices) == room.count
            else Sparse(result.indices[: room.count], result.values[: room.count], result.shape)
        )
        for room, result in zip(outs, results)
    ]


# ---- Which tensors of a frame -------------------------------------------------------------------


def range_of(tensors: Union[None, int, slice, range], n: int) -> Tuple[Optional[range], bool]:
    """The selected ones of a frame's n tensors (None: all), and whether one was selected by its number."""
    if tensors is None:
        return None, False
    if isinstance(tensors, (slice, range)):
        try:
            selected = range(n)[tensors] if isinstance(tensors, slice) else tensors
        except (TypeError, ValueError):  # ends that are not integers; a step of 0
            _no_such(tensors, n)
        if selected.step != 1 or not selected or selected.start < 0 or selected.stop > n:
            _no_such(tensors, n)
        return selected, False
    try:
        position = operator.index(tensors)
    except TypeError:
        raise ArgumentError(f"tensors is {tensors!r}, not a number, a range or a slice") from None
    if not -n <= position < n:
        _no_such(tensors, n)
    return range(position % n, position % n + 1), True


def _no_such(tensors: object, n: int) -> NoReturn:
    raise ArgumentError(f"tensors is {tensors!r}: the frame has {n}, of which one or a contiguous range can be selected")
