"""All-reduce of encoded tensors: ranks exchange frames, and every rank ends with the same sum or mean (exchange.h).

The last stage of a plan names the schedule: `exchange=gather`, `owner`, `ring` or `hierarchy(inner=G)`. A transport carries the
bytes: deepreduce.mpi has one over MPI; Loopback runs many ranks in one thread. Import it by itself: `import deepreduce.exchange`.
"""

from __future__ import annotations

import ctypes
import math
import os
from typing import Callable, Dict, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Tuple, TypedDict, Union

import numpy

from ._native import _abi, _device, _memory
from ._native._abi_exchange import (
    DR_EXCHANGE_SUM,
    DR_EXCHANGE_TRACE,
    DR_RESIDUAL_MOMENTUM,
    DR_RESIDUAL_OWN,
    DR_RESIDUAL_SUM,
    DR_RESIDUAL_WARM_START,
    dr_exchange,
    dr_exchange_info,
    dr_exchange_options,
    dr_loopback,
    dr_loopback_options,
    dr_transport,
)
from ._native._call import Context, OneCall, Turns, Uncopied, check, destroy, fail, new, real, require_kind, thread_count, timeout_of, unsigned
from ._native._renamed import seed_of, warn
from ._native._sizes import count_text
from ._native._transport import Callbacks, Transport, load_exchanges
from ._native._types import Array, Pointer, Structs, Tensor
from ._tensors import (
    OUT_STRIDE,
    TENSOR_STRIDE,
    Inputs,
    Shape,
    arrays_like,
    dense_outputs,
    name_outputs,
    read_inputs,
    require_in_place,
    shape_of,
)
from .errors import ArgumentError, Error
from .plan import Plan, as_plan
from .tensor import Sparse, saved_part

__all__ = ["Exchange", "ExchangeInfo", "Loopback", "Transport"]

_WHICH = {
    "own": DR_RESIDUAL_OWN,
    "sum": DR_RESIDUAL_SUM,
    "momentum": DR_RESIDUAL_MOMENTUM,
    "warm_start": DR_RESIDUAL_WARM_START,
}


class ExchangeInfo(NamedTuple):
    """Numbers of an Exchange and of its last run. Times are the transport's, in ns; sizes are in bytes.

    ranks, rank      number of ranks, and this rank
    ranges, steps    number of ranges that the elements are cut into; number of steps of the program
    memory, sent_max memory in use; maximum size of what it sends
    calls, failures  number of runs that ended, and of those that failed
    sent, received, messages, kept, total_ns, encode_ns, wait_ns, merge_ns   of the last run; kept: selected rows
    waits            of a run in progress. 1: it waits for messages; 0: the `budget` of `advance` is used up, or its GPU is at work
    """

    ranks: int
    rank: int
    ranges: int
    steps: int
    memory: int
    sent_max: int
    calls: int
    failures: int
    sent: int
    received: int
    messages: int
    kept: int
    total_ns: int
    encode_ns: int
    wait_ns: int
    merge_ns: int
    waits: int


    def __call__(self) -> ExchangeInfo:
        """The old spelling: `info` was a method."""
        warn("info()", "the property info")
        return self


class ExchangeState(TypedDict, total=False):
    """The saved state of an Exchange.

    step  number of the next step
    own, sum, momentum, warm_start  for each tensor a float32 array [elements], as `Exchange.residual` returns it; a kind that is
          zero in all tensors is omitted
    """

    step: int
    own: List[Array]
    sum: List[Array]
    momentum: List[Array]
    warm_start: List[Array]


class Exchange(Uncopied):
    """The mean of tensors over all ranks. Each run reads the tensors in place.

    x          a tensor or a list of them: contiguous arrays of numpy or of torch; on a GPU also CuPy's, and any with DLPack or
               __cuda_array_interface__. On the CPU also a Sparse, with gather and owner
    plan       the plan, whose `exchange=…` is the schedule; or transform=lowrank(rank=r), of the first dimension by all others.
               The exchange stores the residuals
    transport  a Transport, or the result of Loopback.transport
    out        arrays of the shapes of x and where they are, perhaps x itself; None: new float32 ones
    sum        the sum, not the mean
    timeout    seconds; no call waits longer
    dense_below  tensors of fewer elements are sent exactly
    trace      record the begin and the end of each step (`trace_json`)
    threads    number of the encoder's threads
    seed       seed of random numbers; the same on all ranks
    rows       maximum number of rows of each Sparse, the same on all ranks; None: the rows that x has
    budget     seconds after which `advance` returns when it has done its current step, for event loops; 0: no limit. A step
               encodes or merges one range: parts= of the plan makes steps smaller
    nccl       on a GPU with exchange=hierarchy(inner=G): the address of an ncclComm_t of the G ranks of this host, in their
               order, which outlives the exchange (exchange.h, "Several GPUs a host"). CuPy: NcclCommunicator.comm

    On a GPU frames are made and merged there; only frames go to the host. All is enqueued on the stream that is current when
    the exchange is made, and `start` and `rebind` must find it current. No call waits for the GPU: `advance` returns True when
    the GPU is done.

    All ranks construct it with equal arguments and make the same calls. Except `info`, a second call from another thread raises
    ConcurrentUse. Raises ArgumentError, Unsupported, OutOfMemory.

    >>> from deepreduce.exchange import Exchange, Loopback
    >>> loopback = Loopback(2)
    >>> x = [numpy.full(4, rank, dtype=numpy.float32) for rank in range(2)]
    >>> ranks = [Exchange(x[rank], "index=all value=raw", loopback.transport(rank)) for rank in range(2)]
    >>> for exchange in ranks:
    ...     exchange.start()
    >>> loopback.run(ranks)
    [None, None]
    >>> ranks[0].out.tolist()
    [0.5, 0.5, 0.5, 0.5]
    """

    def __init__(
        self,
        x: object,
        plan: Union[str, Plan],
        transport: object,
        out: object = None,
        *,
        sum: bool = False,
        timeout: float = 60.0,
        dense_below: int = 0,
        trace: bool = False,
        threads: Optional[int] = None,
        rows: Optional[int] = None,
        budget: float = 0.0,
        seed: int = 0,
        nccl: Optional[int] = None,
    ) -> None:
        library = load_exchanges()
        self.lock = OneCall()
        self._handle = ctypes.POINTER(dr_exchange)()
        if isinstance(transport, Loopback):
            raise ArgumentError("transport is a Loopback; pass its transport(rank)")
        if not isinstance(transport, (Transport, dr_transport)):
            raise ArgumentError(f"transport is a {type(transport).__name__}, not a Transport")
        self._callbacks = Callbacks(transport) if isinstance(transport, Transport) else None
        self._transport = transport  # alive
        self._context = Context(thread_count(threads))
        self._seed, self._first = unsigned(seed, "seed"), 0  # the step of the first call
        self._plan, self._rows = plan, None if rows is None else unsigned(rows, "rows")
        self._inputs, self._outs, self.out = _borrow(x, plan, out, self._rows)
        timeout, budget = timeout_of(timeout), real(budget, "budget")
        options = new(dr_exchange_options)
        options.flags = (DR_EXCHANGE_SUM if sum else 0) | (DR_EXCHANGE_TRACE if trace else 0)
        options.timeout_ns = int(timeout * 1e9) or 1
        options.dense_below = unsigned(dense_below, "dense_below")
        if not 0 <= budget <= 2**63 / 1e9:
            raise ArgumentError(f"budget = {budget} s is not in 0 … 2^63 ns")
        options.advance_ns = math.ceil(budget * 1e9)
        options.nccl = None if nccl is None else unsigned(nccl, "nccl")
        place = self._inputs.place
        where = None if place is None else place.struct()  # alive: read by dr_exchange_create
        if where is not None:
            options.place = ctypes.pointer(where)
        struct = transport if self._callbacks is None else self._callbacks.struct
        tensors, *others = self._arrays()
        first = tensors if self._rows is None else _of_rows(tensors, self._rows)
        status = library.dr_exchange_create(
            self._context.handle, self._inputs.plan, struct, options, first, *others, ctypes.byref(self._handle)
        )
        self._check(status)
        # (At the interpreter's end a transport may be no more: MPI is finalized before a garbage cycle is collected.)
        self._context.own(self._handle, library.dr_exchange_destroy, at_exit=False)
        self._loopback: Optional[Loopback] = getattr(transport, "owner", None)
        if self._loopback is not None:
            self._loopback._users[id(self._handle)] = self._context, self._handle
        if self._rows is not None:
            self._check(library.dr_exchange_rebind(self._handle, tensors, *others))
        self._sizes = [tensor.universe * max(1, tensor.width) for tensor in self._inputs.tensors]

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._context.end(self._handle)
        if (loopback := getattr(self, "_loopback", None)) is not None:
            loopback._users.pop(id(self._handle), None)

    def __repr__(self) -> str:
        return f"<Exchange {count_text(self._inputs.n, 'tensor')}, {count_text(self.info.calls, 'call')}: {self._plan}>"

    def _arrays(self) -> Sequence[Union[Structs, int]]:
        return self._inputs.tensors, TENSOR_STRIDE, self._outs, OUT_STRIDE, self._inputs.n

    def _check(self, status: int) -> None:
        """Raises the library's error; its `rank` is the rank at fault."""
        if not status:
            return
        try:
            fail(status, self._context)
        except Error as error:
            error.rank, error.frame = error.frame, None
            cause = self._callbacks.error if self._callbacks is not None else None
            if cause is not None and not isinstance(cause, Exception):
                raise cause from None  # Ctrl-C
            raise error from cause

    def rebind(self, x: object, out: object = None) -> None:
        """Binds other arrays of the same shapes; a Sparse may have fewer rows, or up to `rows`. Not during a run.
        Raises ArgumentError."""
        inputs, outs, made = _borrow(x, self._plan, out, self._rows)
        self._require_place(inputs.place, "x")
        arrays = inputs.tensors, TENSOR_STRIDE, outs, OUT_STRIDE, inputs.n
        with Turns([(self, "the exchange")]):
            self._check(load_exchanges().dr_exchange_rebind(self._handle, *arrays))
            self._inputs, self._outs, self.out = inputs, outs, made

    def _require_place(self, found: Optional[_device.Place], what: str) -> None:
        """ArgumentError for another place, or another stream there, than those that the exchange was made for."""
        names = ["on the CPU" if p is None else f"on {p}, stream {p.stream:#x}" for p in (found, self._inputs.place)]
        if names[0] != names[1]:
            raise ArgumentError(f"{what} is {names[0]}; the exchange was made {names[1]}")

    def start(self, step: Optional[int] = None, *old: NoReturn, **older: NoReturn) -> None:
        """Begins a run with the current values of x, which must not change until the end. It sends the first frames.

        step  number of the step, the same on all ranks; None: the number of the call

        `advance` raises later errors.
        """
        self._start(step, seed_of(self._seed, "Exchange.start", old, older))

    def _start(self, step: Optional[int], seed: int) -> None:
        call = new(_abi.dr_call)
        call.step = self._first + self.info.calls if step is None else unsigned(step, "step")
        call.seed = unsigned(seed, "seed")
        if (place := self._inputs.place) is not None:
            self._require_place(_device.Place(place.number, place.framework.stream(place.number), place.framework), "the call")
        with Turns([(self, "the exchange")]):
            if self._callbacks is not None:
                self._callbacks.error = None
            self._check(load_exchanges().dr_exchange_start(self._handle, call))

    def advance(self) -> bool:
        """Goes on as far as it can without waiting, or for `budget` seconds. True: done, and `out` has the result.

        An error ends the run, and `out` is untouched. `rank` of the error is the rank at fault, or None. Raises PeerError (the
        transport reports that the rank is gone, or the rank could not encode), MissingRank (the rank is late, or gone without a
        report), CorruptFrame, ArgumentError (this rank's data, or ranks that are out of step).
        """
        with Turns([(self, "the exchange")]):
            status = load_exchanges().dr_exchange_advance(self._handle)
            if status == _abi.DR_PENDING:
                return False
            self._check(status)
            return True

    def cancel(self) -> None:
        """Stops a run in progress: the other ranks see this rank fail. The next `advance` raises how it ended."""
        with Turns([(self, "the exchange")]):
            self._check(load_exchanges().dr_exchange_cancel(self._handle))

    def residual(self, tensor: int = 0, which: str = "own") -> Array:
        """A copy of what feedback stores, float32 [elements of the tensor].

        which  "own", "sum" of an owner, "momentum" (u of feedback=dgc, m of feedback=momentum), or "warm_start" (Q of
               transform=lowrank, then zeros)

        For a checkpoint use `state_dict`.
        """
        residual = numpy.empty(self._size(tensor), numpy.float32)
        with Turns([(self, "the exchange")]):
            self._check(load_exchanges().dr_exchange_read_residual(self._handle, *_residual(which, tensor, residual)))
        return residual

    def set_residual(self, residual: object, tensor: int = 0, which: str = "own") -> None:
        """Replaces what `residual` returns: finite float32 [elements of the tensor], of any shape, of numpy or of torch
        on the CPU. ArgumentError, with `tensor`, for anything else. From a checkpoint: `load_state_dict`."""
        self._set_residual(_memory.borrow_finite(residual, "residual", tensor).reshape(-1), tensor, which)

    def _set_residual(self, flat: Array, tensor: int, which: str) -> None:
        self._require_size(flat, tensor)
        with Turns([(self, "the exchange")]):
            self._check(load_exchanges().dr_exchange_write_residual(self._handle, *_residual(which, tensor, flat)))

    def state_dict(self) -> ExchangeState:
        """Copies of the step and of this rank's residuals: every rank saves its own. Not during a run."""
        state: ExchangeState = {"step": self._first + self.info.calls}
        for which in _WHICH:
            arrays = [self.residual(tensor, which) for tensor in range(len(self._sizes))]
            if any(array.any() for array in arrays):
                state[which] = arrays  # type: ignore[literal-required]
        return state

    def load_state_dict(self, state: ExchangeState) -> None:
        """Restores what `state_dict` returned on this rank, for the same tensors and plan. Later runs then have the same bits.

        Raises ArgumentError, with `tensor`, for another state; then nothing has changed.
        """
        step, arrays = unsigned(saved_part(state, "step"), "step of the state"), self._arrays_of(state)
        before = self._arrays_of(self.state_dict())
        with Turns([(self, "the exchange")]):
            try:
                self._write(arrays)
            except BaseException:
                self._write(before)
                raise
            self._first = step - self.info.calls

    def _arrays_of(self, state: ExchangeState) -> Dict[str, List[Array]]:
        """{kind: [array of each tensor]}"""
        found: Dict[str, List[Array]] = {}
        for which in _WHICH:
            arrays = state.get(which)
            if arrays is None:
                found[which] = [numpy.zeros(size, numpy.float32) for size in self._sizes]
                continue
            if not isinstance(arrays, (list, tuple)) or len(arrays) != len(self._sizes):
                raise ArgumentError(f"{which} of the state is not a list of {len(self._sizes)} arrays, one for each tensor")
            found[which] = [_memory.borrow_finite(array, which, i).reshape(-1) for i, array in enumerate(arrays)]
            for tensor, flat in enumerate(found[which]):
                self._require_size(flat, tensor)
        return found

    def _write(self, arrays: Mapping[str, Sequence[Array]]) -> None:
        for which, of_tensors in arrays.items():
            for tensor, flat in enumerate(of_tensors):
                self._check(load_exchanges().dr_exchange_write_residual(self._handle, *_residual(which, tensor, flat)))

    def _size(self, tensor: int) -> int:
        return int(self._sizes[unsigned(tensor, "tensor", len(self._sizes))])

    def _require_size(self, flat: Array, tensor: int) -> None:
        if flat.size != self._size(tensor):
            raise ArgumentError(f"the residual has {flat.size} elements, the tensor {self._size(tensor)}", tensor=tensor)

    @property
    def info(self) -> ExchangeInfo:
        """Numbers of the exchange and of its last run. Any thread may read it at any time."""
        info, error = new(dr_exchange_info), new(_abi.dr_error)
        check(load_exchanges().dr_exchange_describe(self._handle, info, error), error)
        return ExchangeInfo(*(getattr(info, name) for name in ExchangeInfo._fields))

    def trace_json(self) -> str:
        """The last run as Chrome's trace event JSON. ArgumentError without trace=True."""
        size = ctypes.c_size_t(0)
        with Turns([(self, "the exchange")]):
            status = load_exchanges().dr_exchange_trace(self._handle, None, 0, size)
            if status != _abi.DR_E_CAPACITY:
                self._check(status)
            room = ctypes.create_string_buffer(size.value)
            self._check(load_exchanges().dr_exchange_trace(self._handle, room, size.value, size))
        return room.raw[: size.value].decode()


def _residual(which: str, tensor: int, flat: Array) -> Sequence[Union[int, Pointer]]:
    if which not in _WHICH:
        raise ArgumentError(f"which is {which!r}, not 'own', 'sum', 'momentum' or 'warm_start'")
    return _WHICH[which], tensor, flat.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), flat.size


class Loopback(Uncopied):
    """All ranks in one thread, with a virtual clock: for tests of an integration, and for models of a network.

    ranks             number of ranks
    seed              seed of the order in which ranks with equal clocks run
    latency           seconds from the end of sending to the arrival of a message
    bytes_per_second  rate of a rank's port; 0: no limit
    takes             replaces bytes_per_second, for links whose rate changes: takes(rank, seconds now, bytes) returns for how
                      many seconds a message that begins now occupies the port
    cost              cost(rank, step name, elements, bytes) returns the seconds of a step that computes; dr_step_name has the
                      names
    """

    def __init__(
        self,
        ranks: int,
        seed: int = 0,
        latency: float = 0.0,
        bytes_per_second: float = 0.0,
        takes: Optional[Callable[[int, float, int], float]] = None,
        cost: Optional[Callable[[int, str, int, int], float]] = None,
    ) -> None:
        library, error = load_exchanges(), new(_abi.dr_error)
        self._handle = ctypes.POINTER(dr_loopback)()
        self._destroy, self._process = library.dr_loopback_destroy, os.getpid()
        # Its exchanges end before it, also where the collector of cycles ends it first.
        self._users: Dict[int, Tuple[Context, Pointer]] = {}
        options = new(dr_loopback_options)
        self._ranks = options.ranks = unsigned(ranks, "ranks", 2**32)
        options.seed = unsigned(seed, "seed")
        if not 0 <= real(latency, "latency") <= 2**60 / 1e9:
            raise ArgumentError(f"latency = {latency} s is not in 0 … 2^60 ns")
        options.latency_ns, options.bytes_per_second = int(latency * 1e9), real(bytes_per_second, "bytes_per_second")
        self._error: Optional[BaseException] = None  # raised by a function of the caller
        if takes is not None:
            options.takes = type(options.takes)(
                lambda _, rank, now, size: self._ns(lambda: takes(rank, now / 1e9, size))
            )
        if cost is not None:
            options.cost = type(options.cost)(
                lambda _, rank, step, elements, size: self._ns(
                    lambda: cost(rank, library.dr_step_name(step).decode(), elements, size)
                )
            )
        self._options = options  # alive
        check(library.dr_loopback_create(options, ctypes.byref(self._handle), error), error)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) and self._process == os.getpid():
            for context, handle in list(self._users.values()):
                context.end(handle)
            destroy(self._handle, self._destroy)

    def _ns(self, seconds: Callable[[], float]) -> int:
        """The result of the caller's function in ns; `run` raises its exception."""
        try:
            return max(0, min(round(seconds() * 1e9), 2**60))
        except BaseException as error:
            self._error = self._error or error
            return 0

    def transport(self, rank: int) -> dr_transport:
        """A rank's transport, for Exchange."""
        struct = new(dr_transport)
        if load_exchanges().dr_loopback_transport(self._handle, unsigned(rank, "rank", 2**32), struct):
            raise ArgumentError(f"the loopback has no rank {rank}")
        struct.owner = self  # alive as long as the transport
        return struct

    def run(self, exchanges: Sequence[Optional[Exchange]]) -> List[Optional[Error]]:
        """Runs started exchanges, in rank order, to their end. None in the list: this rank is missing.

        Returns for each rank its error, or None. Raises ArgumentError if there is not one entry for each rank.
        """
        if not isinstance(exchanges, (list, tuple)):
            raise ArgumentError(f"exchanges is {exchanges!r}, not a list of exchanges")
        n = len(exchanges)
        if n != self._ranks:
            raise ArgumentError(f"there are {n} exchanges, the loopback has {self._ranks} ranks")
        handles = (ctypes.POINTER(dr_exchange) * n)()
        for i, exchange in enumerate(exchanges):
            if exchange is not None:
                require_kind(exchange, f"exchanges[{i}]", Exchange)
                handles[i] = exchange._handle
        statuses = (_abi.dr_status * n)()
        errors: List[Optional[Error]] = []
        with Turns([(exchange, "an exchange") for exchange in exchanges if exchange is not None]):
            status = load_exchanges().dr_loopback_run(self._handle, handles, statuses)
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if status == _abi.DR_E_ARGUMENT and not any(statuses):
                raise ArgumentError("an exchange is not of this loopback, or not of the rank at its place")
            for exchange, status in zip(exchanges, statuses):
                try:
                    errors.append(None)
                    if exchange is not None:
                        exchange._check(status)
                except Error as error:
                    errors[-1] = error
        return errors

    def now(self, rank: int) -> float:
        """A rank's clock, in seconds since the loopback was made."""
        return int(load_exchanges().dr_loopback_now(self._handle, unsigned(rank, "rank", 2**32))) / 1e9


# ---- The tensors of an exchange, and its outputs ------------------------------------------------


def _borrow(x: Tensor, plan: Union[str, Plan], out: Tensor, rows: Optional[int]) -> Tuple[Inputs, Structs, Tensor]:
    """dr_tensors of x, dr_tensor_outs, and the arrays of these. rows: maximum number of rows of a Sparse."""
    if isinstance(plan, (list, tuple)):
        raise ArgumentError("an exchange has one plan for all tensors")
    inputs = read_inputs(x, plan, None, None, False, name_outputs(out))
    if inputs.place is None:  # (arrays on a GPU are never copied)
        require_in_place(x)
    if rows is not None:
        _require_rows(inputs, rows)
    items = x if inputs.is_list else [x]
    shapes = [shape_of(tensor, item) for tensor, item in zip(inputs.tensors, items)]
    if out is None and not any(isinstance(item, Sparse) for item in items):
        out = arrays_like(x, _abi.DR_F32, inputs.place)
    outs, made = dense_outputs(shapes, out, inputs.is_list, _abi.DR_F32, inputs.place)
    inputs.alive += made  # the arrays, not the list: the caller may change the list
    if as_plan(plan).info.transforms:
        _as_matrices(inputs.tensors, outs, shapes)
    return inputs, outs, out if out is not None else made if inputs.is_list else made[0]


def _as_matrices(tensors: Structs, outs: Structs, shapes: Sequence[Shape]) -> None:
    """For a transform: the first dimension are the rows, all others the columns."""
    for tensor, out, shape in zip(tensors, outs, shapes):
        rows = shape.shape[0] if len(shape.shape) > 1 and shape.shape[0] else 1
        width = shape.universe * shape.width // rows
        if len(shape.shape) > 1 and 0 < width < 2**32:
            tensor.universe = out.universe = rows
            tensor.width = out.width = width


def _require_rows(inputs: Inputs, rows: int) -> None:
    """ArgumentError for a Sparse of more rows."""
    if not any(tensor.index_dtype for tensor in inputs.tensors):
        raise ArgumentError(f"rows = {rows} requires a Sparse, and x has none")
    for i, tensor in enumerate(inputs.tensors):
        if tensor.index_dtype and tensor.count > rows:
            name = f"x[{i}]" if inputs.is_list else "x"
            raise ArgumentError(f"{name} has {tensor.count} rows, more than rows = {rows}", tensor=i)


_NO_ROW = (ctypes.c_uint64 * 1)()  # address of rows that are not read


def _of_rows(tensors: Structs, rows: int) -> Structs:
    """Copies of dr_tensors in which every Sparse has `rows` rows: sizes to allocate for."""
    largest = type(tensors).from_buffer_copy(tensors)
    for tensor in largest:
        if tensor.index_dtype:
            tensor.count, tensor.indices, tensor.values = rows, ctypes.addressof(_NO_ROW), ctypes.addressof(_NO_ROW)
    return largest
