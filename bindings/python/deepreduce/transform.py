"""PowerSGD (Vogels et al. 2019): matrices are sent as two thin factors, which ranks all-reduce (transform.h).

`transform=lowrank(rank=4) feedback=residual` makes no frames, so encode does not accept it. A Transform computes the
factors; any all-reduce of float32 adds them up. Import it by itself: `import deepreduce.transform`. deepreduce.torch's
DDPHook accepts such a plan.
"""

from __future__ import annotations

import ctypes
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy

from ._native import _abi, _memory
from ._native._abi_transform import (
    DR_TRANSFORM_KEEP,
    DR_TRANSFORM_MARKS,
    dr_transform,
    dr_transform_info,
    dr_transform_options,
)
from ._native._call import Context, OneCall, Turns, Uncopied, check, fail, new, real, thread_count, unsigned
from ._native._renamed import warn
from ._native._sizes import count_text
from ._native._transport import load_exchanges
from ._native._types import Array, Pointer, Structs, Tensor
from ._tensors import OUT_STRIDE, TENSOR_STRIDE
from .errors import ArgumentError
from .plan import Plan, as_plan
from .tensor import StateDict, saved_part

__all__ = ["Transform", "TransformInfo"]


class TransformInfo(NamedTuple):
    """Numbers of a Transform.

    rank                rank of the factors
    busy                whether a round is in progress
    tensors, matrices   number of tensors, and of those that are sent as factors
    elements            elements of all tensors
    first, second       elements of the two factors; second is 0 without matrices: then there is one factor
    rounds              number of rounds that ended with a result
    memory, state_size  bytes in use; bytes of a state
    """

    rank: int
    busy: bool
    tensors: int
    matrices: int
    elements: int
    first: int
    second: int
    rounds: int
    memory: int
    state_size: int


    def __call__(self) -> TransformInfo:
        """The old spelling: `info` was a method."""
        warn("info()", "the property info")
        return self


class Transform(Uncopied):
    """Low-rank means of tensors over ranks, round after round. It stores the residuals and the warm start.

    shapes       shapes of the tensors. The matrix of a shape [n, a, b] is [n, a b], as in the paper. Tensors of one dimension,
                 and those whose factors would not be smaller, are sent exactly
    plan         transform=lowrank(rank=r), with or without feedback=residual
    seed         seed of the first factors; the same on every rank
    dense_below  tensors of fewer elements are sent exactly
    marks        the last tensor is the caller's own, for example one element per rank: sent exactly, without a residual, and
                 not part of `state_dict`, which then fits any number of ranks
    threads      number of threads

    All ranks construct it with equal arguments and make the same calls. If the all-reduce returns the same bits on every rank,
    the results have the same bits. Except `info`, a second call from another thread raises ConcurrentUse. Raises ArgumentError,
    Unsupported, OutOfMemory.

    >>> from deepreduce.transform import Transform
    >>> ranks = [Transform([(40, 30), (30,)], "transform=lowrank(rank=2) feedback=residual") for _ in range(2)]
    >>> ranks[0].info.first, ranks[0].info.second  # 40 * 2 and the vector; 30 * 2
    (110, 60)
    >>> gradients = [[numpy.full((40, 30), rank, numpy.float32), numpy.ones(30, numpy.float32)] for rank in (1, 3)]
    >>> outs = [transform.begin(gradient) for transform, gradient in zip(ranks, gradients)]
    >>> done = False
    >>> while not done:  # here one process has all ranks; a training calls its all-reduce
    ...     mean = (ranks[0].factor() + ranks[1].factor()) / 2
    ...     for transform in ranks:
    ...         transform.factor()[:] = mean
    ...         done = transform.next()
    >>> numpy.allclose(outs[1][0], 2), numpy.array_equal(outs[0][0], outs[1][0])
    (True, True)
    """

    def __init__(
        self,
        shapes: Sequence[Sequence[int]],
        plan: Union[str, Plan],
        *,
        seed: int = 0,
        dense_below: int = 0,
        marks: bool = False,
        threads: Optional[int] = None,
    ) -> None:
        library = load_exchanges()
        self.lock = OneCall()
        self._handle = ctypes.POINTER(dr_transform)()
        self._context, self._plan = Context(thread_count(threads)), as_plan(plan)
        self.keeps: bool = self._plan.info.feedback  # residuals
        try:
            self.shapes: List[Tuple[int, ...]] = [tuple(shape) for shape in shapes]
        except TypeError:
            raise ArgumentError(f"shapes is {shapes!r}, not a list of shapes") from None
        n = len(self.shapes)
        self._tensors, self._outs = (_abi.dr_tensor * n)(), (_abi.dr_tensor_out * n)()
        for i, shape in enumerate(self.shapes):
            rows, width = _matrix(shape, i)
            for struct, size in ((self._tensors[i], TENSOR_STRIDE), (self._outs[i], OUT_STRIDE)):
                struct.struct_size, struct.dtype, struct.universe, struct.width = size, _abi.DR_F32, rows, width
        self._borrowed: object = None  # kept alive during a round
        options = new(dr_transform_options)
        options.seed, options.dense_below = unsigned(seed, "seed"), unsigned(dense_below, "dense_below")
        options.flags = DR_TRANSFORM_MARKS if marks else 0
        self._check(
            library.dr_transform_create(
                self._context.handle, self._plan.handle, options, self._tensors, TENSOR_STRIDE, n, self._handle
            )
        )
        self._context.own(self._handle, library.dr_transform_destroy)

    def __repr__(self) -> str:
        return f"<Transform {count_text(len(self.shapes), 'tensor')}: {self._plan}>"

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._context.end(self._handle)

    def _check(self, status: int) -> None:
        if status:
            fail(status, self._context)

    def begin(self, x: object, out: object = None) -> List[Tensor]:
        """Begins a round, and cancels a round in progress. Returns the arrays of the result.

        x    float32 arrays of the shapes, contiguous, of numpy or of torch on the CPU; they must not change until the end
        out  arrays of the shapes, perhaps x itself; None: new ones of numpy

        Raises ArgumentError, with `tensor`, for other arrays, and with `where` for a value that is not finite; then nothing
        has changed.
        """
        items = _arrays(x, self.shapes, "x")
        outs = [_memory.empty(shape, numpy.float32) for shape in self.shapes] if out is None else _arrays(out, self.shapes, "out")
        begin, n = load_exchanges().dr_transform_begin, len(items)
        with Turns([(self, "the transform")]):
            for i, item in enumerate(items):
                self._tensors[i].values, self._outs[i].values = _addresses(item, outs[i], i)
            self._borrowed = None
            self._check(begin(self._handle, self._tensors, TENSOR_STRIDE, self._outs, OUT_STRIDE, n))
            self._borrowed = items, list(outs)
        return outs

    def factor(self) -> Array:
        """The factor to all-reduce now: float32 [elements], in the library's memory, valid until the next call of another
        method. Raises ArgumentError if no round is in progress."""
        address, count = ctypes.POINTER(ctypes.c_float)(), ctypes.c_uint64()
        with Turns([(self, "the transform")]):
            self._check(load_exchanges().dr_transform_factor(self._handle, address, count))
            return self._view(address, count.value)

    def _view(self, address: Pointer, count: int) -> Array:
        """The library's memory as an array that keeps it alive: an unfinished collective may still write to it."""
        if not count:
            return numpy.empty(0, numpy.float32)
        memory: Structs = (ctypes.c_float * count).from_address(ctypes.addressof(address.contents))
        memory.owner = self
        array: Array = numpy.frombuffer(memory, numpy.float32)
        return array

    def next(self, mean: float = 1.0) -> bool:
        """Continues the round with the all-reduced factor. True: the result is ready; False: all-reduce the next factor.

        mean  what makes the factor the mean over ranks, by multiplication

        Raises ArgumentError on all ranks if a value is not finite; the round is still in progress then: cancel it.
        """
        with Turns([(self, "the transform")]):
            status = load_exchanges().dr_transform_next(self._handle, real(mean, "mean"))
            if status == _abi.DR_PENDING:
                return False
            self._check(status)
            self._borrowed = None
            return True

    def all_reduce(self, x: object, reduce: Callable[[object], object], mean: float = 1.0, out: object = None) -> List[Tensor]:
        """Runs a whole round.

        x, out  as for begin
        reduce  adds up a factor over the ranks, in place, for example `lambda factor: comm.Allreduce(MPI.IN_PLACE, factor)`
        mean    1 / ranks, by which the sum is multiplied; 1 if `reduce` computes the mean itself

        An exception cancels the round, and the residuals are as before.
        """
        outs, done = self.begin(x, out), False
        try:
            while not done:
                reduce(self.factor())
                done = self.next(mean)
        finally:
            if not done:
                self.cancel()
        return outs

    def cancel(self, keep: bool = False) -> None:
        """Ends a round without a result. keep: its gradients are added to the residuals, so do not pass them again; otherwise
        the residuals are as before the round."""
        with Turns([(self, "the transform")]):
            self._check(load_exchanges().dr_transform_cancel(self._handle, DR_TRANSFORM_KEEP if keep else 0))
            self._borrowed = None

    def residual(self, tensor: int = 0) -> Array:
        """A copy of the residual of a tensor, float32 of its shape."""
        with Turns([(self, "the transform")]):
            return self._residual(tensor).copy()

    def set_residual(self, residual: object, tensor: int = 0) -> None:
        """Replaces what `residual` returns: finite float32 of the tensor's shape, of numpy or of torch on the CPU. Between
        rounds. ArgumentError, with `tensor`, for anything else."""
        with Turns([(self, "the transform")]):
            own, given = self._residual(tensor), _memory.borrow_finite(residual, "residual", tensor)
            if given.shape != own.shape:
                raise ArgumentError(f"residual has the shape {given.shape}, not {own.shape}", tensor=tensor)
            own[...] = given

    def _residual(self, tensor: int) -> Array:
        position = unsigned(tensor, "tensor", len(self.shapes))
        address, count = ctypes.POINTER(ctypes.c_float)(), ctypes.c_uint64()
        self._check(load_exchanges().dr_transform_residual(self._handle, position, address, count))
        return self._view(address, count.value).reshape(self.shapes[position])

    def state_dict(self) -> StateDict:
        """Residuals and warm start, for a checkpoint of this rank: {"state": uint8 [state_size]}."""
        return {"state": self._state()}

    def load_state_dict(self, state: StateDict) -> None:
        """Restores what `state_dict` returned for the same shapes and rank; later rounds then have the same bits. With marks it
        also loads a state that includes them, from a Transform without this option. Raises ArgumentError; then nothing has
        changed."""
        self._load(saved_part(state, "state"))

    def state(self) -> Array:
        """The old spelling of `state_dict`."""
        warn("Transform.state()", 'Transform.state_dict()["state"]')
        return self._state()

    def load_state(self, state: object) -> None:
        """The old spelling of `load_state_dict`."""
        warn("Transform.load_state(state)", 'Transform.load_state_dict({"state": state})')
        self._load(state)

    def _state(self) -> Array:
        state = numpy.empty(self.info.state_size, numpy.uint8)
        with Turns([(self, "the transform")]):
            self._check(load_exchanges().dr_transform_save(self._handle, state.ctypes.data, state.size))
        return state

    def _load(self, state: object) -> None:
        address, size, _owner = _memory.borrow_bytes(state, "the state")
        with Turns([(self, "the transform")]):
            self._check(load_exchanges().dr_transform_load(self._handle, address, size))

    def reset(self) -> None:
        """Sets the residuals and the warm start as in a new Transform."""
        with Turns([(self, "the transform")]):
            self._check(load_exchanges().dr_transform_reset(self._handle))
            self._borrowed = None

    @property
    def info(self) -> TransformInfo:
        """Numbers of the transform. Any thread may read it at any time."""
        info, error = new(dr_transform_info), new(_abi.dr_error)
        check(load_exchanges().dr_transform_describe(self._handle, info, error), error)
        found = [getattr(info, name) for name in TransformInfo._fields]
        return TransformInfo(*found)._replace(busy=bool(info.busy))


def _matrix(shape: Tuple[int, ...], i: int) -> Tuple[int, int]:
    """Rows and columns of the matrix of a shape."""
    rows, width = (unsigned(shape[0], f"shapes[{i}]") if shape else 1), 1
    for size in shape[1:]:
        width *= unsigned(size, f"shapes[{i}]")
    if width >= 2**32:
        raise ArgumentError(f"shapes[{i}] is {shape}: a row of {width} elements is longer than 2^32 - 1", tensor=i)
    return (rows, width) if width else (0, 1)


def _addresses(x: Tensor, out: Tensor, i: int) -> Tuple[int, int]:
    """Of x and out, float32. ArgumentError, with `tensor`."""
    try:
        if not _memory.is_in_place(x):
            raise ArgumentError(f"x[{i}] is not contiguous and aligned; it is read in place")
        given = _memory.borrow(x, f"x[{i}]", (_abi.DR_F32,))
        room = _memory.borrow_output(out, f"out[{i}]")
        if room.dtype != _abi.DR_F32:
            raise ArgumentError(f"out[{i}] is {_memory.NAMES[room.dtype]}, not float32")
    except ArgumentError as error:
        error.tensor = i
        raise
    return given.address, room.address


def _arrays(given: object, shapes: Sequence[Tuple[int, ...]], what: str) -> List[Tensor]:
    items = list(given) if isinstance(given, (list, tuple)) else [given]
    if len(items) != len(shapes):
        raise ArgumentError(f"{what} has {len(items)} arrays, the transform {len(shapes)}")
    for i, (item, shape) in enumerate(zip(items, shapes)):
        if tuple(getattr(item, "shape", ())) != shape:
            raise ArgumentError(f"{what}[{i}] has the shape {tuple(getattr(item, 'shape', ()))}, not {shape}", tensor=i)
    return items
