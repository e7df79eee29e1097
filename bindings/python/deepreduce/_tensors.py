"""What a call is given, as the library sees it: tensors with plans and states, outputs, numbers."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy

from . import _abi, _device, _memory
from ._call import new, unsigned
from .errors import ArgumentError
from .plan import as_plan
from .tensor import Plans, Sparse, State, States, arrays_of, as_list, borrow_state, borrow_tensor, one_each

TENSOR_STRIDE = ctypes.sizeof(_abi.dr_tensor)
OUT_STRIDE = ctypes.sizeof(_abi.dr_tensor_out)

Named = List[Tuple[str, Any]]  # arrays with the names that errors give them


@dataclasses.dataclass
class Inputs:
    place: Optional[_device.Place]
    is_list: bool
    tensors: Any  # dr_tensor[n]
    plan: Any  # dr_plan *, or None if each tensor has its own
    alive: List[object]  # owners of what tensors and plan point to

    @property
    def n(self) -> int:
        return len(self.tensors)


def read_inputs(x: Any, plan: Optional[Plans], state: States, sum_duplicates: bool, beside: Named) -> Inputs:
    """x, of which all arrays must be in one place with the states and those `beside`. plan None: of a batch."""
    items, is_list = as_list(x)
    names = [f"x[{i}]" if is_list else "x" for i in range(len(items))]
    states = [None] * len(items) if state is None else one_each(state, len(items), is_list, "state")
    named = list(beside)
    for name, item in zip(names, items):
        named += arrays_of(item, name)
    taken: Dict[int, int] = {}  # id of a state: position
    for i, each in enumerate(states):
        if each is not None and not isinstance(each, State):
            raise ArgumentError(f"a state is a State, not a {type(each).__name__}", tensor=i)
        if each is not None and each.size:
            if (first := taken.setdefault(id(each), i)) < i:
                raise ArgumentError(f"state[{i}] is that of x[{first}], too: each tensor has its own", tensor=i)
            named.append((f"the state of {names[i]}", each.memory))
    inputs = Inputs(_device.find(named), is_list, (_abi.dr_tensor * len(items))(), None, [])
    for i, item in enumerate(items):
        try:
            inputs.tensors[i], owner = borrow_tensor(item, names[i], sum_duplicates, inputs.place)
        except ArgumentError as error:
            error.tensor = i
            raise
        inputs.alive.append(owner)
    if plan is not None:
        _give_plans(inputs, plan)
    for tensor, each in zip(inputs.tensors, states):
        if each is not None and each.size:
            memory = borrow_state(each)
            tensor.state, tensor.state_size = memory.address, memory.size
            inputs.alive.append(memory.owner)
    return inputs


def _give_plans(inputs: Inputs, plan: Plans) -> None:
    if isinstance(plan, (list, tuple)):
        for tensor, each in zip(inputs.tensors, one_each(plan, inputs.n, inputs.is_list, "plan")):
            parsed = as_plan(each)
            tensor.plan = parsed.handle
            inputs.alive.append(parsed)
    else:
        parsed = as_plan(plan)  # type: ignore[arg-type]
        inputs.plan = parsed.handle
        inputs.alive.append(parsed)


def make_call(
    step: int, seed: int, private_seed: int, tag: Optional[int], is_list: bool, status_frame: bool, segment_rows: int = 0
) -> _abi.dr_call:
    call = new(_abi.dr_call)
    call.step = unsigned(step, "step")
    call.seed = unsigned(seed, "seed")
    call.private_seed = unsigned(private_seed, "private_seed")
    call.tag = 0 if tag is None else unsigned(tag, "tag")
    call.segment_rows = unsigned(segment_rows, "segment_rows")
    call.flags = (
        (_abi.DR_CALL_LIST if is_list else 0)
        | (_abi.DR_CALL_STATUS_FRAME if status_frame else 0)
        | (0 if tag is None else _abi.DR_CALL_TAG)
    )
    return call


def weights_of(weights: Optional[Sequence[float]], frames: int) -> Any:
    """float[frames], or None."""
    if weights is None:
        return None
    if len(weights) != frames:
        raise ArgumentError(f"there are {len(weights)} weights for {frames} frames")
    listed = (ctypes.c_float * frames)()
    for i, weight in enumerate(weights):
        try:
            listed[i] = float(weight)
        except (TypeError, ValueError):
            raise ArgumentError(f"weights[{i}] is {weight!r}, not a number") from None
    return listed


# ---- Outputs ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Shape:
    """A tensor that comes out; dtype is a DR_*. `shape` is what a new array gets."""

    universe: int
    width: int
    dtype: int
    shape: Tuple[int, ...]


def shape_of(info: _abi.dr_tensor_info) -> Shape:
    shape = (info.universe, info.width) if info.width > 1 else (info.universe,)
    return Shape(info.universe, info.width, info.dtype, shape)


def name_outputs(out: Any) -> Named:
    if out is None:
        return []
    return [(f"out[{i}]", each) for i, each in enumerate(out)] if isinstance(out, (list, tuple)) else [("out", out)]


def dense_outputs(
    shapes: Sequence[Shape], out: Any, is_list: bool, dtype: Optional[int], place: Optional[_device.Place]
) -> Tuple[Any, List[Any]]:
    """dr_tensor_out[n] at the arrays in `out`, or if that is None at new ones of `dtype` (None: the tensors')."""
    if out is None:
        arrays = [_new_array(each.shape, each.dtype if dtype is None else dtype, place) for each in shapes]
    else:
        if isinstance(out, (list, tuple)) != is_list:
            raise ArgumentError(f"the frame holds a {'list' if is_list else 'single tensor'}, out does not")
        arrays = list(out) if is_list else [out]
        if len(arrays) != len(shapes):
            raise ArgumentError(f"out has {len(arrays)} arrays, the frame {len(shapes)} tensors")
    outs = (_abi.dr_tensor_out * len(shapes))()
    taken: Dict[int, int] = {}  # address: position
    for i, (room, shape, array) in enumerate(zip(outs, shapes, arrays)):
        what = f"out[{i}]" if is_list else "out"
        memory = _memory.borrow_output(array, what, place)
        if memory.elements != shape.universe * shape.width:
            raise ArgumentError(
                f"{what} has {memory.elements} elements, the tensor {shape.universe * shape.width}", tensor=i
            )
        if memory.elements and (first := taken.setdefault(memory.address, i)) < i:
            raise ArgumentError(f"out[{i}] is the memory of out[{first}], too", tensor=i)
        room.struct_size = OUT_STRIDE
        room.dtype, room.values = memory.dtype, memory.address
        room.universe, room.width = shape.universe, shape.width
    return outs, arrays


def sparse_outputs(infos: Sequence[_abi.dr_tensor_info], place: Optional[_device.Place]) -> Tuple[Any, List[Sparse]]:
    """dr_tensor_out[n] at new arrays with room for the support."""
    outs, results = (_abi.dr_tensor_out * len(infos))(), []
    for room, info in zip(outs, infos):
        shape = shape_of(info)
        if place is None:
            indices: Any = _memory.empty((info.support,), numpy.int64)
        else:
            indices = place.empty((info.support,), "int64")
        values = _new_array((info.support,) + shape.shape[1:], shape.dtype, place)
        memory = _memory.borrow_output(values, "values", place)
        room.struct_size = OUT_STRIDE
        room.dtype, room.values = memory.dtype, memory.address
        room.index_dtype = _abi.DR_I64
        room.indices = _memory.borrow(indices, "indices", (_abi.DR_I64,), place).address
        room.universe, room.width = info.universe, info.width
        room.capacity = info.support
        results.append(Sparse(indices, values, shape.shape))
    return outs, results


def _new_array(shape: Tuple[int, ...], dtype: int, place: Optional[_device.Place]) -> Any:
    if place is not None:
        return place.empty(shape, place.framework.result(dtype))
    return _memory.empty(shape, _memory.result_dtype(dtype)[0])
