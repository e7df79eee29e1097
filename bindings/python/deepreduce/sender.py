"""Senders: one rank's side of the exchange of many named tensors, over any channel that carries bytes.

A sender groups the tensors into units, selects the plan of each tensor, and writes and reads the bytes of a unit, its slot.
The rules are the same for all frameworks; include/deepreduce/sender.h states them. The adapters deepreduce.torch, jax, keras and
flower use senders.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Tuple, TypeVar, Union

import numpy

from ._native import _abi, _abi_sender, _library, _memory
from ._native._call import Context, OneCall, Turns, Uncopied, c_string, check, error_of, last_error, new, real, text, thread_count, unsigned
from ._native._sizes import count_text
from ._native._types import Array, CType, DTypeLike, SavedPart, SavedState, Tensor
from ._tensors import dtype_code, frames_of
from .book import Book, as_book
from .errors import ArgumentError, Error, OutOfStep
from .plan import Plan, as_plan
from .tensor import require_dict

__all__ = ["Sender", "SenderInfo", "Sent", "SentTensor", "TensorSpec", "Unit"]

Plans = Union[None, str, Plan, Book, Mapping[str, Union[None, str, Plan]]]
Found = TypeVar("Found")
Arrays = Union[Mapping[str, Tensor], Sequence[Tensor]]  # by name, or of all tensors in order


class TensorSpec(NamedTuple):
    """A tensor of a sender. A plain (shape, dtype) or an array may replace it.

    dtype   "float32", "float16" or "bfloat16"; numpy's or torch's
    sparse  whether its gradient is sparse rows; the tensor is then a unit of its own, of kind "rows"
    plan    the plan of this tensor; None: the sender's
    weights with sparsify=visible: the weights that the tensor is to move, of its type and number of elements, contiguous, on
            the CPU. encode reads them where they are
    """

    shape: Tuple[int, ...]
    dtype: DTypeLike
    sparse: bool = False
    plan: Union[None, str, Plan] = None
    weights: Optional[Tensor] = None


class Unit(NamedTuple):
    """Tensors that travel in one slot.

    kind     "frames": encode, all-gather, merge. "owner": encode, all-to-all, sum, all-gather, merge. "scatter": encode,
             all-to-all, merge. "rows": place_rows, encode, all-gather, merge, rows. "halves": encode, all-reduce, merge.
             "factors": encode, all-reduce, and if there is a `sum_slot` sum, all-reduce; merge
    tensors  their names, in the order of the slot
    frames   number of frames in a slot
    bytes    size of the tensors
    bound    bytes of one slot. encode writes `slots` slots, one behind the other
    slot     bytes of one slot that are sent in the next step, the same on every rank
    slots    1, or the number of ranks
    sum_bound, sum_slot  "owner", "factors": `bound` and `slot` of the slots of sums
    numbers  "halves", "factors": the type of a slot's numbers, for the all-reduce: "float16", "bfloat16", "float32"; else ""
    """

    kind: str
    tensors: Tuple[str, ...]
    frames: int
    bytes: int
    bound: int
    slot: int
    slots: int
    sum_bound: int
    sum_slot: int
    numbers: str = ""


class Sent(NamedTuple):
    """The result of a call.

    size    encode, sum: bytes of the longest slot that was written; the bytes behind them are unchanged. merge: bytes of the
            longest slot of any rank
    frames  encode, sum: bytes of all frames
    kept    encode: number of selected rows
    needed  merge, sum with CapacityError: bytes of the longest slot of any rank
    fault   encode, sum: the `code` of the Error that prevented encoding, which the slot reports to all ranks; 0: none
    skips   merge: some rank's gradient is not finite. Nothing was written: call `skip`
    """

    size: int
    frames: int
    kept: int
    needed: int
    fault: int
    skips: bool


class SentTensor(NamedTuple):
    """How a tensor is sent.

    unit, position  the unit, and the tensor's position in it
    plan            its plan
    key             the key of its random numbers
    state, sum_state, warm_state  bytes of its states, and of the warm start of its factors
    """

    unit: int
    position: int
    plan: Plan
    key: int
    state: int
    sum_state: int
    warm_state: int = 0


class SenderInfo(NamedTuple):
    """Numbers of a sender.

    ranks, rank, tensors, units  number of ranks, this rank, number of tensors, number of units
    clips   whether `clip` must be called when all tensors of a step are placed, before its first encode
    states  bytes that feedback stores
    memory  bytes that the sender uses
    failures, failed  number of steps that this rank did not complete, and the last of them
    waits   on a device: number of calls that waited for it
    """

    ranks: int
    rank: int
    tensors: int
    units: int
    clips: bool
    states: int
    memory: int
    failures: int
    failed: int
    waits: int = 0


_KINDS = {
    _abi_sender.DR_UNIT_FRAMES: "frames",
    _abi_sender.DR_UNIT_OWNER: "owner",
    _abi_sender.DR_UNIT_SCATTER: "scatter",
    _abi_sender.DR_UNIT_FACTORS: "factors",
    _abi_sender.DR_UNIT_ROWS: "rows",
    _abi_sender.DR_UNIT_HALVES: "halves",
}
_INDEX_TYPES = (_abi.DR_U32, _abi.DR_I32, _abi.DR_U64, _abi.DR_I64)
_NUMBERS = {_abi.DR_F32: "float32", _abi.DR_F16: "float16", _abi.DR_BF16: "bfloat16"}
_STATES = {
    "states": (_abi_sender.DR_STATE_OWN, "state"),
    "sums": (_abi_sender.DR_STATE_SUM, "sum_state"),
    "warm": (_abi_sender.DR_STATE_WARM, "warm_state"),
}


class Sender(Uncopied):
    """One rank's side of the exchange of named tensors. A second call from another thread raises ConcurrentUse.

    tensors      {name: (shape, dtype), TensorSpec or array}; or a list of these, whose names are "tensor 0", "tensor 1", …
    plan         one plan for all tensors; or a Book, "book:PATH" or {pattern: plan}: a tensor has the plan of the first pattern
                 that matches its name. None, or no match: dense
    ranks, rank  number of ranks, and this rank
    seed         seed of random numbers; the same on every rank
    dense_below  tensors of fewer elements are sent exactly (Plan.exact). None: 0 for a flat plan, else 1000
    flat         whether the tensors of a plan are one tensor (bucket=flat). None: true for a plan that sparsifies, or that
                 sends each value by itself (raw, half)
    unit_bytes   maximum bytes of the tensors of one unit. None: 4 MiB, 25 MiB with a transform; math.inf: tensors of one type
                 are one unit
    sum          merge returns the sum over ranks, not the mean
    float32      outputs are float32, for tensors of any type
    caller_states  feedback stores its states in the arrays that `place` names. Not with exchange=owner, and not with
                 scatter
    skip_nonfinite  a step in which some rank's gradient is not finite is skipped on all ranks (Sent.skips)
    scatter      a reduce-scatter: each tensor is cut into one shard per rank, of equal sizes; outputs are this rank's shards
    halves       tensors of a plan that sends all values as halves (index=all value=half) are all-reduced, in units of kind
                 "halves". Otherwise their frames are gathered
    numbers      numbers of the ranks in errors, [ranks]; None: their positions
    threads      number of threads; None: 1

    In errors `tensor` is the name of the tensor at fault and `rank` the number of the rank; the message is the engine's.
    Raises ArgumentError (for a type that a plan does not accept, for example) and Unsupported (exchange=ring, sparsify=changed,
    sparsify=visible without TensorSpec.weights).

    >>> tensors = {"weight": ((40, 50), "float32"), "bias": ((50,), "float32")}
    >>> plan = "sparsify=topr(ratio=0.01) feedback=residual index=golomb"
    >>> senders = [deepreduce.Sender(tensors, plan, ranks=2, rank=rank) for rank in range(2)]
    >>> slots = []
    >>> for rank, sender in enumerate(senders):  # one sender on each rank
    ...     sender.place({name: numpy.full(shape, rank + 1, dtype) for name, (shape, dtype) in tensors.items()})
    ...     slots.append(numpy.empty(sender.units[0].bound, numpy.uint8))
    ...     sent = sender.encode(0, step=1, slots=slots[rank])
    >>> means = {name: numpy.empty(shape, dtype) for name, (shape, dtype) in tensors.items()}
    >>> senders[0].place(out=means)
    >>> sent = senders[0].merge(0, 1, slots)  # of all ranks, as an all-gather has them
    >>> float(means["weight"].max()), sum(int(numpy.count_nonzero(mean)) for mean in means.values())
    (1.5, 20)
    """

    def __init__(
        self,
        tensors: Union[Mapping[str, Tensor], Sequence[Tensor]],
        plan: Plans = None,
        *,
        ranks: int = 1,
        rank: int = 0,
        seed: int = 0,
        dense_below: Optional[int] = None,
        flat: Optional[bool] = None,
        unit_bytes: Optional[float] = None,
        sum: bool = False,
        float32: bool = False,
        caller_states: bool = False,
        skip_nonfinite: bool = False,
        scatter: bool = False,
        halves: bool = False,
        numbers: Optional[Sequence[int]] = None,
        threads: Optional[int] = None,
        _place: Optional[_abi.dr_place] = None,
        _dry: bool = False,
    ) -> None:
        # For the adapters. _place: a device, whose memory their addresses are in. _dry: it only has units and plans.
        library = _library.load()
        _abi.declare(library, _abi_sender.FUNCTIONS)
        self.lock = OneCall()
        self._library, self._handle = library, ctypes.POINTER(_abi_sender.dr_sender)()
        specs = _specs_of(tensors)
        self._at = {name: i for i, name in enumerate(specs)}
        self._names, self._specs = list(specs), list(specs.values())
        self._ranks, self._seed = max(1, unsigned(ranks, "ranks", 2**32)), unsigned(seed, "seed")
        self._numbers = list(range(self._ranks)) if numbers is None else [unsigned(number, "numbers", 2**32) for number in numbers]
        if len(self._numbers) != self._ranks:
            raise ArgumentError(f"there are {len(self._numbers)} numbers for {self._ranks} ranks")
        flags = {
            _abi_sender.DR_SENDER_SUM: sum,
            _abi_sender.DR_SENDER_F32: float32,
            _abi_sender.DR_SENDER_CALLER_STATES: caller_states,
            _abi_sender.DR_SENDER_SKIP: skip_nonfinite,
            _abi_sender.DR_SENDER_SCATTER: scatter,
            _abi_sender.DR_SENDER_HALVES: halves,
            _abi_sender.DR_SENDER_ZEROS: _place is not None,
            _abi_sender.DR_SENDER_DRY: _dry,
        }
        options = new(_abi_sender.dr_sender_options)
        options.seed = self._seed
        options.ranks, options.rank = self._ranks, unsigned(rank, "rank", 2**32)
        for bit, given in flags.items():
            options.flags |= bit if given else 0
        by_flat = {None: _abi_sender.DR_FLAT_BY_PLAN, True: _abi_sender.DR_FLAT, False: _abi_sender.DR_NOT_FLAT}
        options.flat = _one_of(by_flat, flat, "flat")
        by_plan = _abi_sender.DR_DENSE_BELOW_BY_PLAN
        options.dense_below = by_plan if dense_below is None else unsigned(dense_below, "dense_below", by_plan)
        everything = unit_bytes == math.inf
        options.unit_bytes = 0 if unit_bytes is None else 2**64 - 1 if everything else unsigned(unit_bytes, "unit_bytes")
        options.numbers = (ctypes.c_uint32 * self._ranks)(*self._numbers)
        self._rank, self._float32, self._scatter, self._caller_states = options.rank, float32, scatter, caller_states
        self._context = Context(thread_count(threads))
        self._stream = None if _place is None else _place.stream or 0
        self._create(plan, options, _place)
        self._prepare()

    def _create(self, plan: Plans, options: _abi_sender.dr_sender_options, place: Optional[_abi.dr_place]) -> None:
        book = Book(plan.items()) if isinstance(plan, Mapping) else as_book(plan)
        method = None if book is not None or plan is None else as_plan(plan)  # type: ignore[arg-type]
        listed = (_abi_sender.dr_named_tensor * len(self._specs))()
        self._plans_alive: List[Plan] = []
        self._bases_alive: List[object] = []  # owners of TensorSpec.weights
        for tensor, name, spec in zip(listed, self._names, self._specs):
            tensor.struct_size = ctypes.sizeof(_abi_sender.dr_named_tensor)
            tensor.name, tensor.dtype = c_string(name, "a name"), spec.dtype
            tensor.flags = _abi_sender.DR_NAMED_ROWS if spec.sparse else 0
            tensor.elements = unsigned(math.prod(spec.shape), f"{name}: its elements")
            tensor.rows = spec.shape[0] if spec.shape else 1
            if spec.weights is not None:
                tensor.base, owner = self._borrow_input(self._at[name], spec.weights, "its weights: ")
                self._bases_alive.append(owner)
            own = method if spec.plan is None else as_plan(spec.plan)
            if own is not None:
                tensor.plan = own.handle
                self._plans_alive.append(own)
        size = ctypes.sizeof(_abi_sender.dr_named_tensor)
        named = None if book is None else book._handle
        where = self._context.handle, place, named, listed, size, len(listed), options
        self._check(self._library.dr_sender_create(*where, ctypes.byref(self._handle)))
        self._context.own(self._handle, self._library.dr_sender_destroy)

    def _prepare(self) -> None:
        n, library = len(self._names), self._library
        self._plans: Dict[int, Plan] = {}
        self._sent_tensors = [self._read_tensor(i) for i in range(n)]
        self._alive: List[List[object]] = [[None] * n for _ in range(3)]  # owners of inputs, outputs and states
        self._slots_alive: Dict[int, List[object]] = {}  # owners of a unit's slots of this step, which take_back reads
        self._call, self._result = new(_abi.dr_call), new(_abi_sender.dr_sent)
        self._call.seed = self._seed
        self._slots = (_abi.dr_bytes * self._ranks)()
        self._slot_structs = list(self._slots)
        self._at_call, self._at_result = ctypes.addressof(self._call), ctypes.addressof(self._result)
        self._at_slots = ctypes.addressof(self._slots)
        self._sender: Optional[int] = ctypes.addressof(self._handle.contents)
        # Addresses are passed as numbers: ctypes converts them fastest.
        address, size = ctypes.c_void_p, ctypes.c_size_t
        self._c_place = _function(library, "place", size, size, address, address, address)
        self._c_encode = _function(library, "encode", size, address, address, size, address)
        self._c_sum = _function(library, "sum", size, address, address, size, address, size, address)
        self._c_merge = _function(library, "merge", size, address, address, size, address)
        self._unit_infos = []
        for i in range(self.info.units):
            self._unit_infos.append(new(_abi_sender.dr_unit_info))
            self._refresh(i)
        self._unit_names = [tuple(self._names[u.tensors[i]] for i in range(u.count)) for u in self._unit_infos]

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._context.end(self._handle)
            self._sender = None

    # ---- Properties ----

    def __repr__(self) -> str:
        plans = dict.fromkeys(str(self.plan_of(name)) for name in self._names)
        parts = [count_text(len(self._names), "tensor"), count_text(len(self._unit_infos), "unit"), f"rank {self._rank} of {self._ranks}"]
        return f"<Sender {', '.join(parts)}: {'; '.join(plans)}>"

    @property
    def info(self) -> SenderInfo:
        """Numbers of the whole sender."""
        info, error = new(_abi_sender.dr_sender_info), new(_abi.dr_error)
        check(self._library.dr_sender_describe(self._handle, info, error), error)
        return SenderInfo._make(getattr(info, name) for name in SenderInfo._fields)._replace(clips=bool(info.clips))

    @property
    def names(self) -> List[str]:
        """The names of the tensors, in order."""
        return list(self._names)

    @property
    def units(self) -> List[Unit]:
        """The units, as they are now: `slot` changes from step to step."""
        return [self.unit(i) for i in range(len(self._unit_infos))]

    def unit(self, unit: int) -> Unit:
        """One of `units`."""
        info = self._refresh(unit)
        counts = [int(getattr(info, name)) for name in Unit._fields[2:-1]]
        return Unit._make([_KINDS.get(info.kind, "?"), self._unit_names[unit], *counts, _NUMBERS.get(info.numbers, "")])

    def tensor(self, name: str) -> SentTensor:
        """How the tensor of that name is sent."""
        return self._sent_tensors[self._position(name)]

    def plan_of(self, name: str) -> Plan:
        """The plan that sends the tensor of that name."""
        return self.tensor(name).plan

    def _refresh(self, unit: int) -> Any:
        info, error = self._unit_infos[unsigned(unit, "unit", len(self._unit_infos))], new(_abi.dr_error)
        check(self._library.dr_sender_unit(self._handle, unit, info, error), error)
        return info

    def _read_tensor(self, i: int) -> SentTensor:
        sent, error = new(_abi_sender.dr_sent_tensor), new(_abi.dr_error)
        check(self._library.dr_sender_tensor(self._handle, i, sent, error), error)
        plan = as_plan(text(self._library.dr_plan_text(sent.plan)))
        return SentTensor(sent.unit, sent.position, plan, sent.key, sent.state, sent.sum_state, sent.warm_state)

    def _position(self, name: str) -> int:
        if name not in self._at:
            raise ArgumentError(f"there is no tensor {name!r}")
        return self._at[name]

    # ---- Steps ----

    def place(self, tensors: Optional[Arrays] = None, out: Optional[Arrays] = None, states: Optional[Arrays] = None) -> None:
        """Sets where tensors are from now on: {name: array}, or the arrays of all tensors in order. Other arrays stay in place.

        tensors  read by encode: contiguous arrays on the CPU, of the sender's types and numbers of elements
        out      written by merge: of the tensors' type, or float32 with `float32`; with `scatter` of a shard's elements. May be
                 the tensors
        states   with `caller_states`: `tensor(name).state` bytes for each tensor, aligned to 8, zeros at first; encode changes
                 them

        The sender holds references to the arrays. Raises ArgumentError; then nothing has changed.
        """
        kinds = ((tensors, self._borrow_input), (out, self._borrow_output), (states, self._borrow_state))
        found = [None if given is None else [(i, *borrow(i, x)) for i, x in self._listed(given)] for given, borrow in kinds]
        with self._turn():
            for kind, placed in enumerate(found):
                for i, address, owner in placed or ():
                    where = (ctypes.c_void_p * 1)(address)
                    self._check(self._c_place(self._sender, i, 1, *(where if kind == j else None for j in range(3))))
                    self._alive[kind][i] = owner

    def _listed(self, arrays: Arrays) -> List[Tuple[int, object]]:
        if isinstance(arrays, Mapping):
            return [(self._position(name), array) for name, array in arrays.items()]
        if not hasattr(arrays, "__len__"):
            raise ArgumentError(f"arrays are {arrays!r}, not a list or a dict of arrays")
        if len(arrays) != len(self._names):
            raise ArgumentError(f"there are {len(arrays)} arrays for {len(self._names)} tensors")
        return list(enumerate(arrays))

    def _borrow_input(self, i: int, x: Tensor, what: str = "") -> Tuple[int, object]:
        name = self._names[i]
        with _of_tensor(name):
            found = _memory.borrow(x, name)
        if not _memory.is_in_place(x):
            raise _at_tensor(name, f"{what}is not contiguous and aligned; it is read in place")
        return self._fits(name, found, self._specs[i].dtype, math.prod(self._specs[i].shape), what)

    def _borrow_output(self, i: int, x: Tensor) -> Tuple[int, object]:
        name, spec = self._names[i], self._specs[i]
        with _of_tensor(name):
            found = _memory.borrow_output(x, name)
        shards = self._ranks if self._scatter else 1
        return self._fits(name, found, _abi.DR_F32 if self._float32 else spec.dtype, math.prod(spec.shape) // shards)

    def _borrow_state(self, i: int, x: Tensor) -> Tuple[int, object]:
        name, size = self._names[i], self._sent_tensors[i].state
        if not self._caller_states:
            raise _at_tensor(name, "the sender has its state; it was made without caller_states")
        if x is None and not size:
            return 0, None
        with _of_tensor(name):
            found = _memory.borrow_room(x, f"{name}: its state")
        if found.size != size:
            raise _at_tensor(name, f"its state has {size} bytes, not {found.size}")
        if size and found.address % 8:
            raise _at_tensor(name, "its state is not aligned to 8")
        return found.address if size else 0, found.owner

    @staticmethod
    def _fits(name: str, found: _memory.Memory, dtype: int, elements: int, what: str = "") -> Tuple[int, object]:
        if found.dtype != dtype:
            raise _at_tensor(name, f"{what}is {_memory.NAMES[found.dtype]}, not {_memory.NAMES[dtype]}")
        if found.elements != elements:
            raise _at_tensor(name, f"{what}has {found.elements} elements, not {elements}")
        return found.address, found.owner

    def place_rows(self, name: str, indices: Any, values: Any) -> None:
        """Sets the rows of a sparse tensor in this step.

        indices  [rows] ascending, of 32 or 64 bits
        values   [rows, width] of the tensor's type

        Both are contiguous and on the CPU; the sender holds references to them. Raises ArgumentError.
        """
        i = self._position(name)
        where, what = _memory.borrow(indices, f"{name}: indices", _INDEX_TYPES), _memory.borrow(values, name)
        self._fits(name, what, self._specs[i].dtype, where.elements * math.prod(self._specs[i].shape[1:]))
        with self._turn():
            self._place_rows_at(i, where.elements, where.address, what.address, where.dtype)
            self._alive[0][i] = where.owner, what.owner

    def rows(self, name: str) -> Tuple[Array, Array]:
        """The mean of a sparse tensor, after merge: the union of the ranks' rows. After `skip`: a row of NaN.

        Returns indices, int64 [rows], and values [rows, width] of the tensor's type (bfloat16: its bits as uint16), or float32
        with `float32`. Raises ArgumentError.
        """
        i = self._position(name)
        dtype = _abi.DR_F32 if self._float32 else self._specs[i].dtype
        kind = {_abi.DR_F32: numpy.float32, _abi.DR_F16: numpy.float16}.get(dtype, numpy.uint16)
        width = math.prod(self._specs[i].shape[1:])
        with self._turn():
            found = self._rows_at(i)
            return _copy_at(found.indices, found.count, numpy.int64), _copy_at(found.values, found.count * width, kind).reshape(-1, width)

    def clip(self) -> None:
        """Reads the norm of the tensors whose plan has a clip; required where `info.clips`.

        If the norm is above the bound, encode sends these tensors scaled, until `place` or the end of the step. The tensors are
        not changed.
        """
        with self._turn():
            self._check(self._library.dr_sender_clip(self._handle))

    def encode(self, unit: int, step: int, slots: Tensor, *, private_seed: Optional[int] = None) -> Sent:
        """Encodes a unit.

        step   number of the step: the same on every rank, different at each encode of the unit
        slots  `slots * bound` writable bytes, as the unit has them; they must not change until the step ends
        private_seed  different on every rank; None: the rank

        Data that cannot be encoded (a NaN, for example) raise no error here: the slot and `Sent.fault` report them. Raises
        ArgumentError, CapacityError.
        """
        room = _memory.borrow_room(slots, "slots")
        with self._turn():
            self._refresh(unit)
            alive = self._slots_alive.setdefault(unit, [])
            alive.append(room)
            sent = self._encode_at(unit, unsigned(step, "step"), room.address, room.size, self._private(private_seed))
            alive[:] = [room]  # (take_back may read the slots before, if it raised)
            return sent

    def sum(self, unit: int, step: int, slots: Sequence[Tensor], slot: Tensor) -> Sent:
        """Adds up the slots that the ranks sent to this one, and encodes the sum. For units of kind "owner" and "factors".

        slots  "owner": the slots of all ranks, in order. "factors": the all-reduced slot alone
        slot   `sum_bound` writable bytes: for the encoded sum, or for the second factor

        Raises CapacityError as merge does. "owner": `slot` reports all other faults of the slots. "factors": merge reports them.
        """
        room = _memory.borrow_room(slot, "slot")
        with self._turn():
            found = self._read_slots(unit, slots)
            self._slots_alive.setdefault(unit, []).extend([*found, room])
            self._start(step, self._rank)
            return self._sent(
                self._c_sum(self._sender, unit, self._at_call, self._at_slots, len(found), room.address, room.size, self._at_result)
            )

    def merge(self, unit: int, step: int, slots: Sequence[Tensor]) -> Sent:
        """Decodes the slots of all ranks, and writes the outputs.

        slots  of all ranks, in order: a list of bytes or an array [ranks, bytes]. "halves", "factors": the all-reduced slot alone

        Raises CapacityError: receive `needed` bytes of each slot, and call it again with these. Raises CorruptFrame, PeerError (a
        rank could not encode), OutOfStep, ArgumentError (a rank sends other tensors). The outputs are untouched then.
        """
        with self._turn():
            found = self._read_slots(unit, slots)
            self._start(step, self._rank)
            return self._sent(self._c_merge(self._sender, unit, self._at_call, self._at_slots, len(found), self._at_result))

    def take_back(self, step: int) -> None:
        """Ends a step that failed: adds what was encoded since the end of the last step back to the residuals.

        Raises an Error for tensors that it cannot take back; those are lost, and the others are taken back.
        """
        with self._turn():
            self._check(self._library.dr_sender_take_back(self._handle, unsigned(step, "step")))

    def skip(self, step: int) -> None:
        """Ends a step that some rank requested to skip: states are as before the step, outputs are NaN."""
        with self._turn():
            self._check(self._library.dr_sender_skip(self._handle, unsigned(step, "step")))

    def _private(self, private_seed: Optional[int]) -> int:
        return self._rank if private_seed is None else unsigned(private_seed, "private_seed")

    def _start(self, step: int, private_seed: int) -> None:
        self._call.step, self._call.private_seed = unsigned(step, "step"), private_seed

    def _read_slots(self, unit: int, slots: Sequence[Tensor]) -> List[_memory.Bytes]:
        listed = frames_of(slots)
        if self._refresh(unit).numbers:
            if len(listed) != 1:
                raise ArgumentError(f"there are {len(listed)} slots; unit {unit} requires the all-reduced one alone")
        elif len(listed) != self._ranks:
            raise ArgumentError(f"there are {len(listed)} slots; the sender is one of {self._ranks} ranks")
        found = [_memory.borrow_bytes(slot, "a slot") for slot in listed]
        for struct, borrowed in zip(self._slot_structs, found):
            struct.data, struct.size = borrowed.address, borrowed.size
        return found

    def _sent(self, status: int) -> Sent:
        self._check(status)
        sent = self._result
        return Sent(sent.size, sent.frames, sent.kept, sent.needed, sent.fault, bool(sent.skips))

    # ---- For the adapters: the calls of a step. Addresses are on the CPU, and the caller holds the lock. ----

    def _place_at(self, first: int, n: int, tensors: Any, out: Any, states: Any = None) -> None:
        """tensors, out, states: (c_void_p * n), or None"""
        self._check(self._c_place(self._sender, first, n, tensors, out, states))

    def _encode_at(self, unit: int, step: int, address: int, size: int, private_seed: int) -> Sent:
        self._call.step, self._call.private_seed = step, private_seed
        return self._sent(self._c_encode(self._sender, unit, self._at_call, address, size, self._at_result))

    def _sum_at(self, unit: int, step: int, places: Sequence[Tuple[int, int]], address: int, size: int) -> Sent:
        self._at_places(step, places)
        return self._sent(
            self._c_sum(self._sender, unit, self._at_call, self._at_slots, len(places), address, size, self._at_result)
        )

    def _merge_at(self, unit: int, step: int, places: Sequence[Tuple[int, int]]) -> Sent:
        """places: (address, bytes) of the slot of each rank"""
        self._at_places(step, places)
        return self._sent(self._c_merge(self._sender, unit, self._at_call, self._at_slots, len(places), self._at_result))

    def _at_places(self, step: int, places: Sequence[Tuple[int, int]]) -> None:
        for slot, place in zip(self._slot_structs, places):
            slot.data, slot.size = place
        self._call.step, self._call.private_seed = step, self._rank

    def _check_step(self, step: int) -> Sent:
        """On a device: what became of the merges of a step, before the first encode of the next."""
        return self._sent(self._library.dr_sender_check(self._handle, step, self._result))

    def _use_stream(self, stream: int) -> None:
        """On a device: later calls enqueue there (cudaStream_t)."""
        if stream != self._stream:
            self._check(self._library.dr_sender_use_stream(self._handle, stream))
            self._stream = stream

    def _place_rows_at(self, tensor: int, count: int, indices: int, values: int, index_dtype: int) -> None:
        given = new(_abi_sender.dr_sent_rows)
        given.count, given.indices, given.values, given.index_dtype = count, indices, values, index_dtype
        self._check(self._library.dr_sender_place_rows(self._handle, tensor, given))

    def _rows_at(self, tensor: int) -> Any:
        """dr_sent_rows: in the sender's memory, until the next merge."""
        found = new(_abi_sender.dr_sent_rows)
        self._check(self._library.dr_sender_rows(self._handle, tensor, found))
        return found

    # ---- States ----

    def state_dict(self) -> SavedState:
        """The state for a checkpoint: {"states": {name: bytes}, "sums": …, "warm": …, "failures": …, "failed": …}.

        The bytes are uint8 arrays. A state covers the whole tensor, in the order of its elements, so a training may go on with
        another number of ranks or other units. `sums` (exchange=owner) cover the elements that this rank owns. `warm` holds the
        warm starts of factors.
        """
        found: SavedState = {"failures": self.info.failures, "failed": self.info.failed}
        with self._turn():
            for key, (which, size) in _STATES.items():
                found[key] = {
                    name: self._read_state(i, which, getattr(sent, size))
                    for i, (name, sent) in enumerate(zip(self._names, self._sent_tensors))
                    if getattr(sent, size)
                }
        return found

    def load_state_dict(self, state: SavedPart) -> None:
        """Restores what state_dict returned. Raises ArgumentError for states of other tensors or plans, and for a value that is
        not finite; then nothing has changed."""
        require_dict(state)
        for key, (_, size) in _STATES.items():
            if not isinstance(state.get(key, {}), Mapping):
                raise ArgumentError(f"{key} of the state is not a dict of bytes by name")
            there = set(state.get(key, {}))
            here = {name for name, sent in zip(self._names, self._sent_tensors) if getattr(sent, size)}
            if there != here:
                lacks, extra = sorted(here - there), sorted(there - here, key=str)
                raise ArgumentError(f"the {key} are of other tensors or plans: without {lacks}, and with {extra}")
        failures, failed = (unsigned(state.get(key), key) for key in ("failures", "failed"))
        before = self.state_dict()
        with self._turn():
            try:
                self._write_states(state)
            except BaseException:
                self._write_states(before)
                raise
            self._check(self._library.dr_sender_resume(self._handle, failures, failed))

    def read_state(self, name: str, field: str = "states") -> Array:
        """The bytes that feedback stores for a tensor, in the order of its elements. field: "states", "sums"
        (exchange=owner) or "warm" (transform=lowrank)"""
        which, size = _one_of(_STATES, field, "field")
        with self._turn():
            return self._read_state(self._position(name), which, getattr(self.tensor(name), size))

    def write_state(self, name: str, field: str, state: Tensor) -> None:
        """Restores what read_state returned. Raises ArgumentError for a state of another tensor or feedback, or with a value that is not finite."""
        found, (which, _) = _memory.borrow_bytes(state, f"{name}: its state"), _one_of(_STATES, field, "field")
        with self._turn():
            where = self._handle, self._position(name), which, found.address, found.size
            self._check(self._library.dr_sender_write_state(*where))

    def resume(self, failures: int, failed: int) -> None:
        """Goes on from a checkpoint: `failures` and `failed` of info."""
        with self._turn():
            self._check(self._library.dr_sender_resume(self._handle, unsigned(failures, "failures"), unsigned(failed, "failed")))

    def scale(self, factor: float) -> None:
        """Multiplies all residuals: after a change of the learning rate, or of the loss's scale."""
        with self._turn():
            self._check(self._library.dr_sender_scale(self._handle, real(factor, "factor")))

    def _read_state(self, i: int, which: int, size: int) -> Array:
        made: Array = numpy.empty(size, numpy.uint8)
        self._check(self._library.dr_sender_read_state(self._handle, i, which, made.ctypes.data, size))
        return made

    def _write_states(self, state: SavedPart) -> None:
        for key, (which, _) in _STATES.items():
            for name, saved in state.get(key, {}).items():
                found = _memory.borrow_bytes(saved, f"{name}: its state")
                where = self._handle, self._at[name], which, found.address, found.size
                self._check(self._library.dr_sender_write_state(*where))

    # ---- Errors ----

    def _turn(self) -> Turns:
        return Turns([(self, "the sender")])

    def _check(self, status: int) -> None:
        if status:
            self._fail(status)

    def _fail(self, status: int) -> NoReturn:
        last = last_error(self._context)
        error = error_of(status, last)
        if error.tensor is not None:
            error.tensor = self._names[last.tensor] if last.tensor < len(self._names) else None
        if last.frame < self._ranks:
            error.rank = self._numbers[last.frame]
        if isinstance(error, OutOfStep):
            behind = (ctypes.c_uint32 * self._ranks)()
            count = self._library.dr_sender_behind(self._handle, behind, self._ranks)
            error.ranks = tuple(self._numbers[position] for position in behind[:count])
            error.source = self._numbers[last.what]
            error.step = None if last.where == 2**64 - 1 else last.where
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


def _function(library: ctypes.CDLL, name: str, *arguments: CType) -> Callable[..., int]:
    return ctypes.CFUNCTYPE(_abi.dr_status, ctypes.c_void_p, *arguments)((f"dr_sender_{name}", library))


def _copy_at(address: Any, n: int, kind: Any) -> Array:
    size = n * numpy.dtype(kind).itemsize
    return numpy.frombuffer(ctypes.string_at(address, size) if size else b"", kind).copy()


def _specs_of(tensors: Union[Mapping[str, Tensor], Sequence[Tensor]]) -> Dict[str, TensorSpec]:
    """{name: spec}, whose dtype is a DR_*."""
    if not isinstance(tensors, (Mapping, Iterable)):
        raise ArgumentError(f"tensors is {tensors!r}, not arrays or a dict of arrays")
    listed = tensors if isinstance(tensors, Mapping) else {f"tensor {i}": x for i, x in enumerate(tensors)}
    return {name: _spec_of(name, x) for name, x in listed.items()}


def _spec_of(name: object, given: Tensor) -> TensorSpec:
    if not isinstance(name, str):
        raise ArgumentError(f"the name of a tensor is a str, not {name!r}")
    if isinstance(given, tuple) and 2 <= len(given) <= len(TensorSpec._fields):
        spec = TensorSpec(*given)
        code = dtype_code(spec.dtype, name)
        if code is None:
            raise _at_tensor(name, "has no dtype")
        shape = spec.shape if isinstance(spec.shape, Iterable) else (spec.shape,)
        return spec._replace(shape=tuple(unsigned(n, f"{name}: its shape") for n in shape), dtype=code)
    found = _memory.describe(given, name)
    return TensorSpec(found.shape, found.dtype)


@contextlib.contextmanager
def _of_tensor(name: str) -> Iterator[None]:
    """Errors in its `with` have the tensor's name."""
    try:
        yield
    except ArgumentError as error:
        error.tensor = name
        raise


def _one_of(choices: Mapping[Any, Found], given: object, what: str) -> Found:
    """choices[given]. ArgumentError, with all choices, if there is none."""
    try:
        return choices[given]
    except (KeyError, TypeError):
        raise ArgumentError(f"{what} is {given!r}, not one of {', '.join(map(repr, choices))}") from None


def _at_tensor(name: str, why: str) -> Error:
    error = ArgumentError(f"{name}: {why}")
    error.tensor = name
    return error

