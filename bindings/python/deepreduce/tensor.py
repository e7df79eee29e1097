"""Sparse tensors, and the states of feedback."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import math
import operator
import weakref
from typing import Any, List, Mapping, Optional, Sequence, Tuple, TypedDict, Union

import numpy

from ._native import _abi, _device, _library, _memory
from ._native._call import OneCall, Turns, check, new, real, unsigned
from ._native._renamed import plan_first, warn
from ._native._sizes import dtype_text
from ._native._types import Array, Locked, Tensor
from .errors import ArgumentError, ConcurrentUse
from .plan import Plan, as_plan


@dataclasses.dataclass(frozen=True, eq=False)
class Sparse:
    """Some rows of a tensor; the others are zero.

    indices  [r] uint32, int32, uint64 or int64; for encode in any order
    values   [r], or [r, width]; float32, float16 or bfloat16
    shape    (universe,), or (universe, width); an int is (universe,)

    decode returns numpy arrays (of a frame on a GPU: arrays there), ascending int64 indices, and 1-D values if width is 1.
    encode accepts the same kinds of arrays as for dense tensors; on a GPU the indices must ascend.

    >>> x = deepreduce.Sparse(numpy.array([1, 4]), numpy.array([2, -3], dtype=numpy.float32), (6,))
    >>> x.to_dense().tolist()
    [0.0, 2.0, 0.0, 0.0, -3.0, 0.0]
    """

    indices: Tensor
    values: Tensor
    shape: Tuple[int, ...]

    def __post_init__(self) -> None:
        try:
            shape = tuple(operator.index(n) for n in self.shape)
        except TypeError:
            shape = (unsigned(self.shape, "shape"),)
        if len(shape) not in (1, 2) or min(shape) < 0 or (len(shape) == 2 and not 1 <= shape[1] < 2**32):
            raise ArgumentError(f"shape {shape} is neither (universe,) nor (universe, width)")
        object.__setattr__(self, "shape", shape)

    def __repr__(self) -> str:
        held = getattr(self.indices, "shape", None)
        rows = f"{len(self.indices) if held is None else math.prod(held):,}"
        of = f" rows of {self.shape[1]:,}" if len(self.shape) == 2 else ""
        return f"<Sparse {rows} of {self.shape[0]:,}{of} {dtype_text(str(getattr(self.values, 'dtype', '')))}>".replace(" >", ">")

    def to_dense(self) -> Array:
        """A new array of `shape`. If an index occurs twice, its last value counts.

        Raises ArgumentError for an index out of range, or values of another shape; OutOfMemory.
        """
        indices, values = _memory.as_array(self.indices, "indices"), _memory.as_array(self.values, "values")
        _rows(self, indices.shape, values.shape, "")
        if indices.dtype.kind not in "iu":
            raise ArgumentError(f"indices are {indices.dtype}, not integers")
        if indices.size and not (0 <= int(indices.min()) and int(indices.max()) < self.shape[0]):
            raise ArgumentError(f"indices are not all below universe = {self.shape[0]}")
        dense = _memory.zeros(self.shape, values.dtype)
        dense[indices] = values.reshape(indices.shape + self.shape[1:])
        return dense


def _rows(x: Sparse, indices: Tuple[int, ...], values: Tuple[int, ...], what: str) -> int:
    """The number of rows of x (r), whose arrays have these shapes. ArgumentError if the shapes do not match."""
    width = x.shape[1] if len(x.shape) == 2 else 1
    if len(indices) != 1:
        raise ArgumentError(f"{what}indices have shape {indices}, not (r,)")
    if values != (indices[0], width) and (width != 1 or values != indices):
        raise ArgumentError(
            f"{what}values have shape {values}, which does not match {indices[0]} indices and shape {x.shape}"
        )
    return indices[0]


def arrays_of(x: object, what: str) -> List[Tuple[str, Tensor]]:
    """The arrays of a tensor, with their names."""
    return [(f"{what}.indices", x.indices), (f"{what}.values", x.values)] if isinstance(x, Sparse) else [(what, x)]


def borrow_tensor(
    tensor: _abi.dr_tensor, x: object, what: str, sum_duplicates: bool = False, place: Optional[_device.Place] = None
) -> object:
    """Fills `tensor`, a zeroed struct, from x; returns the owner of the memory, which must outlive the struct."""
    tensor.struct_size, tensor.width = _TENSOR_SIZE, 1
    if not isinstance(x, Sparse):
        dense = _memory.borrow(x, what, place=place)
        tensor.dtype, tensor.values, tensor.universe = dense.dtype, dense.address, dense.elements
        shape: Tuple[int, ...] = tuple(getattr(x, "shape", ()))
        tensor.rows = shape[0] if len(shape) > 1 else 0
        return dense.owner
    indices = _memory.borrow(x.indices, f"{what}.indices", _memory.INTEGERS, place)
    values = _memory.borrow(x.values, f"{what}.values", place=place)
    tensor.count = _rows(x, indices.shape, values.shape, f"{what}.")
    tensor.index_dtype, tensor.indices = indices.dtype, indices.address
    tensor.dtype, tensor.values = values.dtype, values.address
    tensor.universe = unsigned(x.shape[0], f"{what}.shape[0]")
    tensor.width = x.shape[1] if len(x.shape) == 2 else 1
    tensor.flags = _abi.DR_TENSOR_SUM_DUPLICATES if sum_duplicates else 0
    return indices.owner, values.owner


_TENSOR_SIZE = ctypes.sizeof(_abi.dr_tensor)


# ---- State --------------------------------------------------------------------------------------


# A fresh state begins with this many zero bytes; others begin with a mark.
_FRESH = 8


class StateDict(TypedDict):
    """The saved state of a State or a Transform: its bytes, [size] uint8."""

    state: Array


def require_dict(state: object) -> None:
    """ArgumentError for a state_dict that is none."""
    if not isinstance(state, Mapping):
        raise ArgumentError(f"the state is a dict, as state_dict returns it, not {type(state).__name__}")


def saved_part(state: Mapping[str, object], name: str) -> object:
    """A part of a state_dict. ArgumentError if it is missing."""
    if not isinstance(state, Mapping):
        raise ArgumentError(f"the state is a dict with {name!r}, as state_dict returns it, not {type(state).__name__}")
    if name not in state:
        raise ArgumentError(f"the state has no {name!r}, as state_dict returns it: its keys are {sorted(map(str, state))}")
    return state[name]


def _is_plan(given: object) -> bool:
    return isinstance(given, (str, Plan))


class State:
    """The memory of feedback for one tensor, from step to step. Opaque; encode changes it in place.

    x     the tensor, or any of its shape and type: the values are not read
    plan  a plan. For a plan without feedback the state has no bytes

    Each tensor needs its own state. A second call with it from another thread raises ConcurrentUse. A failed encode does not
    change it. The bytes may be loaded on any machine, and used with another plan that has the same feedback. The state of a
    tensor on a GPU is in that GPU's memory; state_dict, load_state_dict and pickle copy it, and pickle restores it on the CPU.
    Raises ArgumentError for tensors and plans that encode rejects, too.

    >>> x = numpy.array([4, 3, 2, 1], dtype=numpy.float32)
    >>> plan = deepreduce.Plan("sparsify=topr(count=1) feedback=residual")
    >>> state = deepreduce.State(x, plan)
    >>> lost = deepreduce.encode(x, plan, state=state)
    >>> state.residual.tolist()                     # what was not sent
    [0.0, 3.0, 2.0, 1.0]
    >>> deepreduce.merge([lost], out=state.residual).tolist()    # the frame never arrived: take it back
    [4.0, 3.0, 2.0, 1.0]
    >>> saved = state.state_dict()
    >>> again = deepreduce.State(x, plan)
    >>> again.load_state_dict(saved)
    """

    __slots__ = ("memory", "_place", "size", "lock", "bound", "__weakref__")

    @plan_first(_is_plan)
    def __init__(self, x: object, plan: Union[str, Plan]) -> None:
        if isinstance(x, (list, tuple)):
            raise ArgumentError(
                f"x is a list of {len(x)} tensors; a State is for one: State.of(x, plan) returns a list of states"
            )
        plan = as_plan(plan)
        place = _device.find(arrays_of(x, "x"))
        tensor = _abi.dr_tensor()
        _alive = borrow_tensor(tensor, x, "x", place=place)
        self._allocate(_size_of(plan, tensor), place)

    def _allocate(self, size: int, place: Optional[_device.Place]) -> None:
        """[size] bytes of zero, aligned to 8."""
        self.size, self._place = size, place
        self.lock = OneCall()  # held during a call; a bound state has the lock of its Bound
        self.bound: Optional[weakref.ref[Locked]] = None
        if place is None:
            self.memory: Tensor = _memory.zeros(((size + 7) // 8,), numpy.uint64).view(numpy.uint8)[:size]
        else:
            self.memory = place.zeros(size)

    @classmethod
    def of(cls, x: object, plan: Plans) -> Any:
        """Fresh states: a State, or for a list of tensors a list of States.

        plan  a plan; for a list of tensors also a list of plans

        Raises the errors of State.

        >>> x = [numpy.ones(4, dtype=numpy.float32), numpy.ones(9, dtype=numpy.float32)]
        >>> len(deepreduce.State.of(x, "sparsify=topr(count=1) feedback=residual"))
        2
        """
        items, is_list = as_list(x)
        plans = one_each(plan, len(items), is_list, "plan")
        states = [cls(item, one) for item, one in zip(items, plans)]
        return states if is_list else states[0]

    @classmethod
    def for_(cls, plan: Plans, x: object) -> Any:
        """The old spelling of `of`."""
        warn("State.for_(plan, tensors)", "State.of(tensors, plan)")
        return cls.of(x, plan)

    @classmethod
    @plan_first(_is_plan)
    def from_residual(cls, x: object, plan: Union[str, Plan], residual: object = None) -> State:
        """A state with this residual, for tensors that are cut in another way, or another number of ranks.

        x, plan   as for State
        residual  [universe * width] float32, of any shape; None: zeros, which copy_from may overwrite

        >>> x = numpy.array([4, 3, 2, 1], dtype=numpy.float32)
        >>> whole = deepreduce.State.from_residual(x, "sparsify=topr(count=1) feedback=residual", x / 2)
        >>> half = deepreduce.State.from_residual(x[:2], "sparsify=topr(count=1) feedback=residual")
        >>> half.copy_from(whole, first=2)
        >>> half.residual.tolist(), round(whole.norm() ** 2, 3)
        ([1.0, 0.5], 7.5)
        """
        plan = as_plan(plan)
        place = _device.find(arrays_of(x, "x"))
        tensor = _abi.dr_tensor()
        _alive = borrow_tensor(tensor, x, "x", place=place)
        state = cls.__new__(cls)
        state._allocate(_size_of(plan, tensor), None)
        values = None
        if residual is not None:
            there = _device.find([("residual", residual)])
            if there is not None:
                there.borrow(residual, "residual", (_abi.DR_F32,))  # checks it; its bytes alone are copied from there
                residual = numpy.frombuffer(_device.framework_of(residual).to_host(residual), numpy.float32)
            values = _memory.borrow(residual, "residual", (_abi.DR_F32,))
            if values.elements != tensor.universe * tensor.width:
                raise ArgumentError(
                    f"residual has {values.elements} elements, the tensor {tensor.universe * tensor.width}"
                )
        error = new(_abi.dr_error)
        status = _library.load().dr_state_fill(
            plan.handle,
            tensor,
            None if values is None else ctypes.cast(values.address, ctypes.POINTER(ctypes.c_float)),
            state.memory.ctypes.data,
            state.size,
            error,
        )
        check(status, error)
        return state if place is None else cls._from_host(state, place)

    @classmethod
    def from_bytes(cls, data: object, like: object = None) -> State:
        """The old spelling of `load_state_dict`: a state of these bytes, on the GPU of the array `like`, if that is on one,
        else on the CPU. The next encode rejects bytes that are not a state."""
        warn("State.from_bytes(data)", 'State(tensors, plan).load_state_dict({"state": data})')
        return cls._from_bytes(data, like)

    @classmethod
    def _from_bytes(cls, data: object, like: object = None) -> State:
        source = _memory.borrow_bytes(data, "data")
        state = cls.__new__(cls)
        state._allocate(source.size, _device.find(arrays_of(like, "like")))
        state._put(source)
        return state

    @classmethod
    def _from_host(cls, host: State, place: _device.Place) -> State:
        state = cls.__new__(cls)
        state._allocate(host.size, place)
        state._put(_memory.borrow_bytes(host.memory, "the state"))
        return state

    def _put(self, source: _memory.Bytes) -> None:
        if self._place is None:
            ctypes.memmove(self.memory.ctypes.data, source.address, source.size)
        elif source.size:
            _device.framework_of(self.memory).put(self.memory, source)

    def state_dict(self) -> StateDict:
        """{"state": [size] uint8 of numpy}: a copy, the same bytes on every machine. On a GPU it waits for the current stream."""
        with Turns([(self, "the state")]):
            return {"state": numpy.frombuffer(bytearray(self._bytes()), numpy.uint8)}

    def load_state_dict(self, state: StateDict) -> None:
        """Restores what `state_dict` returned for a tensor of this shape and type, in any place.

        Raises ArgumentError for another number of bytes, and for bytes that are not a state; then nothing has changed. For a
        state of another feedback, or of another shape with as many elements, the next encode raises it; `check` does so before.
        """
        saved = State._from_bytes(saved_part(state, "state"))
        if saved.size != self.size:
            raise ArgumentError(f"the saved state has {saved.size} bytes, this one {self.size}: it is for another tensor or plan")
        if saved.size:  # none without feedback
            saved.norm()  # raises if the bytes are not a state
        with Turns([(self, "the state")]):
            self._put(_memory.borrow_bytes(saved.memory, "the saved state"))

    def to_bytes(self) -> bytes:
        """The old spelling of `state_dict`."""
        warn("State.to_bytes()", 'State.state_dict()["state"].tobytes()')
        with Turns([(self, "the state")]):
            return self._bytes()

    def _bytes(self) -> bytes:
        if self._place is None:
            return self.memory.tobytes()  # type: ignore[no-any-return]
        return _device.framework_of(self.memory).to_host(self.memory)

    def _on_host(self) -> State:
        """This state, or a copy of it on the CPU."""
        return self if self._place is None else State._from_bytes(self._bytes())

    @plan_first(_is_plan)
    def check(self, x: object, plan: Union[str, Plan]) -> None:
        """For saved states: raises ArgumentError unless the state is fresh, or is for this plan's feedback and such a tensor."""
        tensor, error = _abi.dr_tensor(), new(_abi.dr_error)
        _alive = borrow_tensor(tensor, x, "x", place=_device.find(arrays_of(x, "x")))
        with Turns([(self, "the state")]):
            host = self._on_host()
            address = host.memory.ctypes.data
            check(_library.load().dr_state_check(as_plan(plan).handle, tensor, address, host.size, error), error)

    def scale(self, factor: float) -> None:
        """Multiplies the residual by `factor` in f64, and rounds it to f32. On a GPU it waits.

        For a change of the learning rate the factor is the old rate divided by the new one. A fresh state stays fresh.
        Raises ArgumentError if the bytes are not a state, or the state has no residual (feedback=momentum).
        """
        with Turns([(self, "the state")]):
            host, error = self._on_host(), new(_abi.dr_error)
            check(_library.load().dr_state_scale(host.memory.ctypes.data, host.size, real(factor, "factor"), error), error)
            if host is not self:
                self._put(_memory.borrow_bytes(host.memory, "the state"))

    def norm(self) -> float:
        """The L2 norm of the residual, in float64; 0 of a fresh state, and of feedback=momentum. On a GPU it waits.

        Raises ArgumentError if the bytes are not a state.
        """
        with Turns([(self, "the state")]):
            host, norm, error = self._on_host(), ctypes.c_double(), new(_abi.dr_error)
            address = host.memory.ctypes.data
            check(_library.load().dr_state_norm(address, host.size, norm, error), error)
        return norm.value

    def copy_from(self, source: State, first: int = 0, at: int = 0, elements: Optional[int] = None) -> None:
        """Copies elements of another state, residual and momentum, into this one, which must not be fresh (from_residual).

        first, at  the first element in the source, and in this state
        elements   number of elements; None: as many as both have

        A fresh source counts as zeros. A state on a GPU is copied to the CPU and back, which waits.
        Raises ArgumentError for elements out of range and states that differ.
        """
        if not isinstance(source, State):
            raise ArgumentError(f"the source is a {type(source).__name__}, not a State")
        with Turns([(source, "the source"), (self, "the state")]):
            to = self._on_host()
            from_ = to if source is self else source._on_host()
            if elements is None:
                here = to._elements()
                elements = here - unsigned(at, "at", here + 1)
                if from_.memory[:_FRESH].any():
                    there = from_._elements()
                    elements = min(elements, there - unsigned(first, "first", there + 1))
            source_part = from_.memory.ctypes.data, from_.size, unsigned(first, "first")
            part = to.memory.ctypes.data, to.size, unsigned(at, "at")
            error = new(_abi.dr_error)
            check(_library.load().dr_state_copy(*source_part, *part, unsigned(elements, "elements"), error), error)
            if to is not self:
                self._put(_memory.borrow_bytes(to.memory, "the state"))

    @property
    def residual(self) -> Tensor:
        """The residual, [universe * width] float32: a view into the state, so writing to it changes the state.

        A numpy array, or an array on the state's GPU, for which the state is copied to the CPU and examined first.
        Raises ArgumentError if no encode has used the state yet, or it has no residual (feedback=momentum).
        """
        return self._view("dr_state_residual")

    @property
    def momentum(self) -> Tensor:
        """The momentum, as `residual`: u of feedback=dgc, m of feedback=momentum. Raises ArgumentError for other feedback."""
        return self._view("dr_state_momentum")

    def _view(self, function: str) -> Tensor:
        with Turns([(self, "the state")]):
            begin, elements = self._on_host()._part(function)
        end = begin + 4 * elements
        if self._place is None:
            return self.memory[begin:end].view(numpy.float32)
        return _device.framework_of(self.memory).part(self.memory, begin, end, "float32")

    def _part(self, function: str) -> Tuple[int, int]:
        """The first byte and the elements of an array of a state on the CPU."""
        start, elements, error = ctypes.POINTER(ctypes.c_float)(), ctypes.c_uint64(), new(_abi.dr_error)
        base = self.memory.ctypes.data
        check(getattr(_library.load(), function)(base, self.size, start, elements, error), error)
        return (ctypes.addressof(start.contents) - base if elements.value else 0), elements.value

    def _elements(self) -> int:
        try:
            return self._part("dr_state_residual")[1]
        except ArgumentError as error:
            with contextlib.suppress(ArgumentError):
                return self._part("dr_state_momentum")[1]
            raise error from None

    def bind(self, to: Locked) -> None:
        """Not for callers: Batch.bind calls it with the lock held."""
        self.lock, self.bound = to.lock, weakref.ref(to)

    def unbind(self) -> None:
        """Not for callers: a Bound calls it at its end, and its states no longer share a lock."""
        with contextlib.suppress(ConcurrentUse), Turns([(self, "the state")]):
            self.lock, self.bound = OneCall(), None

    def __reduce__(self) -> Tuple[object, ...]:
        with Turns([(self, "the state")]):
            return State._from_bytes, (self._bytes(),)

    def __repr__(self) -> str:
        return f"<State of {self.size} bytes{'' if self._place is None else f' on {self._place}'}>"


def _size_of(plan: Plan, tensor: _abi.dr_tensor) -> int:
    size, error = ctypes.c_size_t(), new(_abi.dr_error)
    check(_library.load().dr_state_size(plan.handle, tensor, size, error), error)
    return size.value


def borrow_state(state: State) -> _memory.Bytes:
    """The memory of a state, in its place."""
    if state._place is None:
        return _memory.Bytes(state.memory.ctypes.data, state.size, state.memory)
    return state._place.borrow_bytes(state.memory, "the state")


Plans = Union[str, Plan, Sequence[Union[str, Plan]]]
States = Union[None, State, Sequence[Optional[State]]]


def as_list(x: object) -> Tuple[List[Tensor], bool]:
    return (list(x), True) if isinstance(x, (list, tuple)) else ([x], False)


def one_each(given: object, n: int, is_list: bool, what: str) -> List[Any]:
    """`given` for each of n tensors: one value for all, or a list of n; a single tensor accepts no list."""
    if not isinstance(given, (list, tuple)):
        if is_list and what == "state":
            raise ArgumentError("a list of tensors requires a list of states, one for each")
        return [given] * n
    if not is_list:
        raise ArgumentError(f"one tensor requires one {what}, not a list")
    if len(given) != n:
        raise ArgumentError(f"there are {len(given)} {what}s for {n} tensors")
    return list(given)
