"""deepreduce.torch: numbers that an all-reduce adds up (halves, factors), made where the tensors are, on a GPU. No call of a step
waits for it: the heads of the ranks are read a step later, and until then the outputs of a unit that failed are 0, on all ranks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Sequence, Tuple, cast

import numpy
import torch
import torch.distributed as dist

from .._adapters._control_terms import digest
from .._native._types import Array
from ..errors import ArgumentError, CorruptFrame, Error, InternalError, PeerError
from ..plan import Plan
from ..tensor import State
from ._engine import Engine, Step, all_reduce
from ._ladder import keeper_of
from ._number_heads import HEAD, Counts, Fault, checks_of, compared, of_rank
from ._unit import Unit

if TYPE_CHECKING:
    from ._device_sender import DeviceSender

_NOT_FINITE = "a value of the gradient{} is not finite (infinite or NaN)"


class NumberItem(NamedTuple):
    """A tensor of a unit: its name, shape, type and plan."""

    name: str
    shape: Tuple[int, ...]
    dtype: torch.dtype
    plan: Plan

    @property
    def elements(self) -> int:
        return int(numpy.prod(self.shape, dtype=numpy.int64))


class Numbers:
    """The tensors of a unit, their residuals, and the numbers of a step.

    items  in the order in which they lie in the unit's numbers and in its residual
    kind   the type of the numbers
    first, second  numbers that the ranks add up in the first all-reduce, without the heads; in the second, or 0
    """

    def __init__(self, items: Sequence[NumberItem], kind: torch.dtype, first: int, second: int, engine: Engine, home: torch.device) -> None:
        self.items, self._kind, self._engine, self._home = list(items), kind, engine, home
        self._keeps = items[0].plan.info.feedback
        self._at = {item.name: i for i, item in enumerate(self.items)}
        sizes = [item.elements for item in self.items]
        self._parts = [slice(end - size, end) for size, end in zip(sizes, numpy.cumsum(sizes).tolist())]
        self._elements = sum(sizes)
        self._digits = HEAD.itemsize * 2 // kind.itemsize
        self._count, self._first = len(items), first
        self.sums = torch.empty(first + engine.size * self._digits, dtype=kind, device=home)  # of the first all-reduce
        self.second = torch.empty(second, dtype=kind, device=home)
        self._residual = torch.zeros(self._elements if self._keeps else 0, device=home)
        self._filled = [False] * len(items)  # whether a state has been in use
        # What the host reads a step later: the heads, then what `_note` writes.
        self._report = torch.zeros(engine.size * self._digits + 4, dtype=torch.float64, device=home)
        self._seen = torch.zeros(self._report.numel(), dtype=torch.float64, pin_memory=home.type == "cuda")
        self._seen_array = self._seen.numpy()
        texts = [f"{item.name} {item.elements} {item.dtype} {item.plan}" for item in items]
        self._digest = digest(f"{type(self).__name__} {home.type} {texts}") % 2**32
        self._tensors: List[torch.Tensor] = [None] * len(items)
        self._begun = False
        self._pending: Optional[int] = None  # the step whose heads were not read
        self._stream = torch.cuda.current_stream(home) if home.type == "cuda" else None  # that has the memory, zeroed above
        self._done = torch.cuda.Event() if home.type == "cuda" else None  # the end of what was enqueued; subclasses record the first
        self.waits = 0  # for the device

    def renew(self) -> None:
        """Moves the numbers to other memory."""
        self.sums, self.second = torch.empty_like(self.sums), torch.empty_like(self.second)

    # ---- A step. Subclasses: `_encode` writes the first numbers, `_merge` the outputs ----

    def place(self, position: int, tensor: torch.Tensor) -> None:
        self._tensors[position] = tensor

    def _encode(self) -> None:
        """Writes the first numbers, and with _find_fault the first of them that is not finite."""
        raise NotImplementedError

    def _advance(self, sound: torch.Tensor) -> None:
        """Reads the sum of the first numbers, and writes the second."""

    def _merge(self, sound: torch.Tensor) -> None:
        """Reads the last sum, and writes residuals and tensors."""
        raise NotImplementedError

    def begin(self, step: int, counts: Counts) -> None:
        """Writes the first numbers, and behind them the heads."""
        with torch.no_grad():
            self._enter()
            self._encode()
            self.sums[: self._first].masked_fill_(self._bad, 0)
            self._write_heads(self._tag(step), counts)
            self._leave()
        self._begun, self._filled = True, [True] * self._count

    def next(self) -> None:
        """Between the two all-reduces."""
        with torch.no_grad():
            self._enter()
            self._advance(self._judge())
            self._leave()

    def finish(self, step: int) -> None:
        with torch.no_grad():
            self._enter()
            self._merge(self._sound if self.second.numel() else self._judge())
            self._seen.copy_(self._report, non_blocking=True)
            self._leave()
        self._begun, self._pending = False, step

    def take_back(self) -> None:
        """After a step that ended early: adds what was sent to the residuals. The tensors are still those of `begin`."""
        begun, self._begun, self._pending = self._begun, False, None
        if begun and self._keeps:
            with torch.no_grad():
                self._enter()
                self._keep(self._gathered())
                self._leave()

    def _enter(self) -> None:
        """A stream that did not run the call before waits for that call. torch's allocator does not give the memory of numbers and
        states to others before its work has ended."""
        if self._done is None:
            return
        stream = torch.cuda.current_stream(self._home)
        if stream == self._stream:
            return
        stream.wait_event(self._done)
        for memory in self._memory():
            memory.record_stream(stream)
        self._stream = stream

    def _memory(self) -> List[torch.Tensor]:
        """What a call leaves on the device."""
        return [value for value in vars(self).values() if isinstance(value, torch.Tensor) and value.device == self._home]

    def _leave(self) -> None:
        if self._done is not None:
            self._done.record(self._stream)

    # ---- Parts of a step ----

    def _gathered(self) -> torch.Tensor:
        """[elements] f32, new: what this rank has to send, gradients with their residuals."""
        found = torch.empty(self._elements, device=self._home)
        torch._foreach_copy_([found[part] for part in self._parts], self._tensors)
        return found.add_(self._residual) if self._keeps else found

    def _find_fault(self, values: torch.Tensor, ends: torch.Tensor) -> None:
        """Finds the first tensor with a value that is not finite. ends: of the tensors among the values"""
        at = first_of(values.sub(values).ne_(0))
        self._fault = torch.bucketize(at, ends, right=True)  # [1]; the number of tensors: none
        self._bad = self._fault < self._count

    def _keep(self, gathered: torch.Tensor) -> None:
        """The residual becomes what was gathered, unless this rank sent nothing."""
        torch.where(self._bad, self._residual, gathered, out=self._residual)

    def _deliver(self, outputs: torch.Tensor) -> None:
        torch._foreach_copy_(self._tensors, [outputs[part] for part in self._parts])

    def _note(self, place: int, at: torch.Tensor, values: torch.Tensor) -> None:
        """For the host: the position of a number that is too large, and the number. place: 0 or 1"""
        report = self._report[self._engine.size * self._digits + 2 * place :]
        report[:1].copy_(at)
        if values.numel():
            report[1:2].copy_(values.index_select(0, at.clamp(max=values.numel() - 1)))

    def _noted(self, place: int) -> Tuple[int, float]:
        at = self._engine.size * self._digits + 2 * place
        return int(self._seen_array[at]), float(self._seen_array[at + 1])

    # ---- Heads ----

    def _tag(self, step: int) -> int:
        return self._digest << 32 | step % 2**32

    def _write_heads(self, tag: int, counts: Counts) -> None:
        """This rank's head, and zeros for the others. The device chooses the one that names the tensor at fault."""
        rows = numpy.zeros(self._count + 1, HEAD)
        rows["tag"], rows["failures"], rows["failed"] = tag, counts.failures % 2**32, counts.failed % 2**32
        rows["tensor"][:-1] = numpy.arange(1, self._count + 1)
        rows["check"] = checks_of(rows)
        table = torch.from_numpy(rows.view(f"<u{self._kind.itemsize // 2}").reshape(-1, self._digits).astype(numpy.int32))
        if self._home.type == "cuda":
            table = table.pin_memory()  # (a copy from other memory would wait)
        self._table = table.to(self._home, non_blocking=True)
        heads = self.sums[self._first :].zero_().view(-1, self._digits)
        heads[self._engine.rank : self._engine.rank + 1].copy_(self._table.index_select(0, self._fault))

    def _judge(self) -> torch.Tensor:
        """[1] bool: whether all ranks sent numbers of this step. Their heads are equal, then."""
        heads = self.sums[self._first :]
        self._report[: heads.numel()].copy_(heads)
        self._sound = (heads.view(-1, self._digits) == self._table[-1:]).all().view(1)
        return self._sound

    def settle(self, step: int) -> Optional[Fault]:
        """What became of a step. Waits for the device if it is still at that step."""
        if self._pending != step:
            return None
        self._pending = None
        if self._done is not None and not self._done.query():
            self.waits += 1
            self._done.synchronize()
        names = [self._engine.global_rank(rank) for rank in range(self._engine.size)]
        given = self._seen_array[: len(names) * self._digits].reshape(len(names), -1)
        limit = 2 ** (4 * self._kind.itemsize)
        is_digit = (given >= 0) & (given < limit) & (given == numpy.floor(given))
        heads = numpy.where(is_digit, given, 0).astype(f"<u{self._kind.itemsize // 2}").view(HEAD).reshape(-1)
        for rank, sound in enumerate(is_digit.all(axis=1) & (heads["check"] == checks_of(heads))):
            if not sound:
                return Fault(of_rank(CorruptFrame(f"rank {names[rank]}: its head among the sums is damaged"), names[rank]))
        fault = compared(heads, names, self._engine.rank)
        if fault is not None:
            return fault
        for rank, tensor in enumerate(heads["tensor"].tolist()):
            if tensor:
                return Fault(self._could_not_encode(rank, names[rank], tensor))
        if any(head != heads[0] for head in heads):
            return Fault(InternalError(f"step {step}: the device refused the sums, and gives no reason"))
        error = self._refusal()
        return None if error is None else Fault(error)

    def _could_not_encode(self, rank: int, number: int, tensor: int) -> Error:
        name = self.items[tensor - 1].name if tensor <= self._count else None
        why = _NOT_FINITE.format(", with its residual," if self._keeps else "")
        own = "" if rank == self._engine.rank else "could not encode: "
        return of_rank(PeerError(f"rank {number}: {'?' if name is None else name}: {own}{why}", tensor=name), number)

    def _refusal(self) -> Optional[Error]:
        """Why the sums cannot be used, on all ranks."""
        return None

    # ---- States, in the form of the CPU's ----

    def _position(self, name: str) -> int:
        return self._at[name]

    def size(self, name: str, field: str) -> int:
        """Bytes of a state."""
        item = self.items[self._at[name]]
        if field != "states" or not self._keeps:
            return 0
        return State(torch.empty(item.elements, dtype=item.dtype), keeper_of([item.plan])).size

    def read(self, name: str, field: str) -> Array:
        """The bytes of a state. It waits for the device."""
        position = self._at[name]
        if not self.size(name, field):
            return numpy.empty(0, numpy.uint8)
        values = self._host(self._residual[self._parts[position]])
        return self._state(position, values) if self._filled[position] else numpy.zeros(self.size(name, field), numpy.uint8)

    def _state(self, position: int, values: Array) -> Array:
        item = self.items[position]
        like = torch.empty(item.elements, dtype=item.dtype)
        memory: Array = State.from_residual(like, keeper_of([item.plan]), values).memory
        return memory

    def write(self, name: str, field: str, memory: Array) -> None:
        """ArgumentError for a state of another tensor or feedback."""
        position, size = self._at[name], self.size(name, field)
        if memory.size != size:
            raise ArgumentError(f"{name}: its state has {size} bytes, not {memory.size}")
        if not size:
            return
        item, state = self.items[position], State._from_bytes(memory)
        try:
            state.check(torch.empty(item.elements, dtype=item.dtype), keeper_of([item.plan]))
        except ArgumentError as error:
            raise ArgumentError(f"{name}: {error}") from None
        self._filled[position] = bool(memory[:8].any())
        values = state.residual if self._filled[position] else numpy.zeros(item.elements, numpy.float32)
        self._put(self._residual[self._parts[position]], values)

    def _host(self, values: torch.Tensor) -> Array:
        self._enter()
        self.waits += 1
        found: Array = values.reshape(-1).cpu().numpy().copy()
        return found

    def _put(self, to: torch.Tensor, values: Array) -> None:
        self._enter()
        to.copy_(torch.from_numpy(numpy.ascontiguousarray(values)).view(to.shape))
        self._leave()


class DeviceNumberUnit(Unit):
    """Encode, an all-reduce of numbers, merge, all enqueued; for factors a second all-reduce between. The collective must return
    the same bits on all ranks."""

    def _prepare(self, info: Any) -> None:
        self.holds_states = self.adds_up = True  # (all ranks' numbers are here before a residual changes)
        self._maker = cast("DeviceSender", self.sender)
        self._numbers: Numbers = self._maker.numbers_of(self._number)
        self._order = [self._numbers._position(item.name) for item in self.items]
        self._work: Optional[dist.Work] = None

    def place(self, position: int, tensor: torch.Tensor) -> None:
        self._numbers.place(self._order[position], tensor)

    def fetch(self) -> None:
        """Nothing is copied."""

    def start(self, number: int, step: Step) -> None:
        begin, self._step = time.perf_counter(), number
        if self._work is not None:  # of an abandoned step: it may still write to the numbers
            self._numbers.renew()
        self._numbers.begin(number, self._maker.counts)
        step.encode += time.perf_counter() - begin
        step.dense += self._bytes
        self._issue(self._numbers.sums, step)

    def _issue(self, numbers: torch.Tensor, step: Step) -> None:
        begin, size, n = time.perf_counter(), numbers.nbytes, self._engine.size
        # (NCCL waits for the current stream, and the current stream for NCCL in `_wait`.)
        self._work = self._engine.issue(f"step {self._step}, {self._name}", all_reduce, numbers)
        step.frame += size
        step.sent += 2 * (n - 1) * size // n
        step.received += 2 * (n - 1) * size // n
        step.wait += time.perf_counter() - begin

    def _wait(self, deadline: float, step: Step) -> None:
        begin = time.perf_counter()
        assert self._work is not None
        if self._numbers.sums.is_cuda:
            self._work.wait()  # of the stream: with a timeout, the host would wait
        else:
            self._engine.wait(f"step {self._step}, {self._name}", self._work, deadline)
        self._work = None
        step.wait += time.perf_counter() - begin

    def add_up(self, deadline: float, step: Step) -> None:
        self._wait(deadline, step)
        if self._numbers.second.numel():
            begin = time.perf_counter()
            self._numbers.next()
            step.merge += time.perf_counter() - begin
            self._issue(self._numbers.second, step)

    def finish(self, deadline: float, step: Step) -> bool:
        if self._numbers.second.numel():
            self._wait(deadline, step)
        begin = time.perf_counter()
        self._numbers.finish(self._step)
        step.merge += time.perf_counter() - begin
        return False

    def drop(self, deadline: float, step: Step) -> bool:
        if self._numbers.second.numel():
            self._wait(deadline, step)
        return False

    def skip(self) -> None:
        """No rank asks for it."""


def first_of(marks: torch.Tensor) -> torch.Tensor:
    """[1] the position of the first number that is not 0 (a NaN is not); the number of marks: none."""
    found = torch.ones(marks.numel() + 1, dtype=torch.bool, device=marks.device)
    torch.ne(marks, 0, out=found[:-1])
    return found.view(torch.uint8).argmax().view(1)
