"""Control at run time: selects one of several plans for a step by the times of transfers (control.h, docs/CONTROL.md).

    hook = deepreduce.torch.DDPHook([None, TEN_PERCENT, ONE_PERCENT], control="fit(target_ms=20)")

A ladder is a list of plans from the densest to the smallest; None is dense and exact. The idea is DC2's (Abdelmoniem and
Canini, INFOCOM 2021), whose law we could not read: both laws here are ours. Import it by itself: `import deepreduce.control`.

Experimental: the laws, their options and their decisions may change in any release. docs/CONTROL.md says how often they miss the goal.
"""

from __future__ import annotations

import array
import ctypes
import json
import numbers
import os
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, NoReturn, Optional, Sequence, TypedDict, Union, cast

import numpy

from ._native import _abi
from ._native._abi_control import DR_CONTROL_WORDS, dr_control, dr_control_info
from ._native._call import OneCall, Turns, Uncopied, c_string, check, new, unsigned
from ._native._renamed import seed_of, warn
from ._native._transport import load_exchanges
from ._native._types import Array, Tensor
from .errors import ArgumentError
from .exchange import Exchange, ExchangeInfo, ExchangeState
from .plan import Plan, as_plan
from .tensor import saved_part

__all__ = ["AdaptiveExchange", "ControlInfo", "Controller", "ladder_of"]

Rung = Union[None, str, Plan]
_EXACT = "index=all value=raw"
_SECONDS_MAX = 1e10  # in ns it fits into 64 bits


class ControlInfo(NamedTuple):
    """The last decision of a controller.

    rungs, rung, before  number of rungs; the rung of the next steps; the rung before the decision
    reason               a sentence
    step, next_step      step of the decision; first step before which the next decision may be due
    decisions, changes   number of decisions, and of those that changed the rung
    transfer_ns, bytes, empty_ns  what the ranks agreed on: time and bytes of a step's transfers; time of an empty transfer (0:
                         not measured)
    median_ns            median of the last transfer_ns, the input of the law
    budget               bytes per step (aimd)
    base_ns, per_byte_ns A and B of t = A + B · bytes (fit)
    """

    rungs: int
    rung: int
    before: int
    reason: str
    step: int
    next_step: int
    decisions: int
    changes: int
    transfer_ns: int
    bytes: int
    empty_ns: int
    median_ns: int
    budget: float
    base_ns: float
    per_byte_ns: float


    def __call__(self) -> ControlInfo:
        """The old spelling: `info` was a method."""
        warn("info()", "the property info")
        return self


class ControlState(TypedDict):
    """The saved state of a Controller: step, transfer_ns, bytes and empty_ns of each decision."""

    trace: List[int]


class Controller(Uncopied):
    """Selects a rung of a ladder. It reads no clock: all ranks decide from the same words, so their decisions are equal.
    Except `info`, a second call from another thread raises ConcurrentUse.

    options  "aimd(target_ms=20)", "fit(target_ms=20)" or "steps(each=100)", with the options of docs/CONTROL.md
    rungs    number of rungs; or for each rung the bytes that a step sends, 0: not known
    log      a function that is called with each decision, as a line of JSON

    >>> from deepreduce.control import Controller
    >>> control = Controller("aimd(target_ms=20)", 3)
    >>> control.observe(4_000_000, 0.320)
    >>> control.decide(1, [control.report()])
    1
    >>> control.info.reason
    'too slow: one rung smaller'
    """

    def __init__(self, options: str, rungs: Union[int, Sequence[int]], log: Optional[Callable[[str], None]] = None) -> None:
        if not isinstance(options, str):
            raise ArgumentError(f"control is {options!r}, not a text such as 'fit(target_ms=20)'")
        self.options, self.log, self.lock = options, log, OneCall()
        if isinstance(rungs, Iterable):
            self._rungs = list(rungs)
        else:
            self._rungs = [0] * unsigned(rungs, "rungs", 2**16)
        self._handle = ctypes.POINTER(dr_control)()
        self._destroy, self._process = load_exchanges().dr_control_destroy, os.getpid()
        self.reset()

    def __repr__(self) -> str:
        return f"<Controller {self.options}, rung {self.rung} of {len(self._rungs)}, decides at step {self.next_step}>"

    def restart(self) -> None:
        """The old spelling of `reset`."""
        warn("Controller.restart()", "Controller.reset()")
        self.reset()

    def reset(self) -> None:
        """Forgets all decisions and observations."""
        sizes, error = (ctypes.c_uint64 * len(self._rungs))(), new(_abi.dr_error)
        for i, size in enumerate(self._rungs):
            sizes[i] = unsigned(size, f"bytes of rung {i}")
        made = ctypes.POINTER(dr_control)()
        text = c_string(self.options, "control")
        with Turns([(self, "the controller")]):
            check(load_exchanges().dr_control_create(text, sizes, len(sizes), ctypes.byref(made), error), error)
            self._destroy(self._handle)
            self._handle = made
            self._trace = array.array("Q")
            self._read()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) and self._process == os.getpid():
            self._destroy(self._handle)

    def observe(self, size: int, seconds: float) -> None:
        """Records a step of this rank.

        size     bytes sent; 0: an empty transfer, which measures the latency
        seconds  time that the step waited for transfers, without encode, decode and merge

        Raises ArgumentError if `size` or `seconds` is not such a number.
        """
        if not isinstance(seconds, numbers.Real) or not abs(seconds) < _SECONDS_MAX:
            raise ArgumentError(f"seconds = {seconds!r} is not a time below {_SECONDS_MAX:g} s")
        ns = max(0, round(float(seconds) * 1e9))
        with Turns([(self, "the controller")]):
            load_exchanges().dr_control_observe(self._handle, unsigned(size, "size"), ns)

    def due(self, step: int) -> bool:
        """Whether a decision is due before this step."""
        return step >= self.next_step

    def report(self) -> List[int]:
        """The report of this rank, DR_CONTROL_WORDS words, for `decide` on all ranks."""
        words = (ctypes.c_uint64 * DR_CONTROL_WORDS)()
        with Turns([(self, "the controller")]):
            load_exchanges().dr_control_report(self._handle, words)
        return list(words)

    def decide(self, step: int, words: Sequence[Sequence[int]]) -> int:
        """Selects the rung of `step` and the following steps from the reports of all ranks, in rank order.

        Raises ArgumentError if a rank is at another decision (`frame` is the rank), or no decision is due.
        """
        flat, error = (ctypes.c_uint64 * (DR_CONTROL_WORDS * len(words)))(), new(_abi.dr_error)
        for i, report in enumerate(words):
            if len(report) != DR_CONTROL_WORDS:
                raise ArgumentError(f"rank {i} reported {len(report)} words, not {DR_CONTROL_WORDS}")
            flat[i * DR_CONTROL_WORDS : (i + 1) * DR_CONTROL_WORDS] = [unsigned(word, "word") for word in report]
        step = unsigned(step, "step")
        with Turns([(self, "the controller")]):
            check(load_exchanges().dr_control_decide(self._handle, step, flat, len(words), error), error)
            info = self._read()
            self._trace.extend((step, info.transfer_ns, info.bytes, info.empty_ns))
        if self.log is not None:
            self.log(self.line())
        return self.rung

    def _read(self) -> ControlInfo:
        """Reads `info` again: only a decision changes it."""
        info, error = new(dr_control_info), new(_abi.dr_error)
        check(load_exchanges().dr_control_describe(self._handle, info, error), error)
        values = {name: getattr(info, name) for name, *_ in dr_control_info._fields_ if name != "struct_size"}
        values["before"] = values.pop("from")
        values["reason"] = load_exchanges().dr_control_reason(values["reason"]).decode()
        self._decided = decided = ControlInfo(**values)
        self.rung, self.next_step = decided.rung, decided.next_step
        return decided

    @property
    def info(self) -> ControlInfo:
        """The last decision and its reason. Any thread may read it at any time."""
        return self._decided

    def line(self) -> str:
        """The last decision as a line of JSON, with the numbers that `replay` needs."""
        room, size = ctypes.create_string_buffer(1024), ctypes.c_size_t()
        with Turns([(self, "the controller")]):
            load_exchanges().dr_control_log(self._handle, room, len(room), size)
        return room.raw[: size.value].decode()

    def state_dict(self) -> ControlState:
        """The decisions: {"trace": 4 numbers per decision}. A decision takes 32 bytes of memory."""
        return {"trace": list(self._trace)}

    def load_state_dict(self, state: ControlState) -> None:
        """Repeats, from the beginning, the decisions of the controller that was saved, which had the same options.

        Raises ArgumentError if it is not such a state; then nothing has changed, unless its decisions differ.
        """
        trace = saved_part(state, "trace")
        if isinstance(trace, str) or not isinstance(trace, Iterable):
            raise ArgumentError(f"trace of the state is of type {type(trace).__name__}, not a list of numbers")
        words = [unsigned(word, f"number {number} of a trace") for number, word in enumerate(trace, 1)]
        log, self.log = self.log, None  # it has these lines
        try:
            self._replay(words)
        finally:
            self.log = log

    def replay(self, log: Sequence[str]) -> int:
        """Repeats, from the beginning, the decisions of a log of lines (`line`); returns the rung.

        Raises ArgumentError if it is not a log; then nothing has changed, unless its decisions differ.
        """
        if not isinstance(log, Iterable):
            raise ArgumentError(f"log is {log!r}, not lines of a log")
        listed: List[Union[str, int]] = list(log)
        if not any(isinstance(line, str) for line in listed):
            if listed:
                warn("Controller.replay(trace)", 'Controller.load_state_dict({"trace": trace})')
            self.load_state_dict({"trace": listed})  # type: ignore[typeddict-item]
            return self.rung
        words: List[int] = []
        for number, line in enumerate(listed, 1):
            words += _logged(line, number)
        self._replay(words)
        return self.rung

    @property
    def trace(self) -> List[int]:
        """The old spelling of `state_dict`."""
        warn("Controller.trace", 'Controller.state_dict()["trace"]')
        return list(self._trace)

    def _replay(self, words: Sequence[int]) -> None:
        if len(words) % 4:
            raise ArgumentError(f"a trace of {len(words)} numbers: 4 per decision are expected")
        self.reset()
        for i in range(0, len(words), 4):
            step, *measured = words[i : i + 4]
            self.decide(step, [[*measured, self.report()[3]]])


def _logged(line: Union[str, int], number: int) -> List[int]:
    """The numbers that `replay` needs from a line of a log."""
    where = f"line {number} of a log"
    if not isinstance(line, str):
        raise ArgumentError(f"{where} is {line!r}, not a line of JSON")
    try:
        read = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{where} is not JSON: {error}") from None
    keys = ("step", "transfer_ns", "bytes", "empty_ns")
    if not isinstance(read, dict) or not all(key in read for key in keys):
        raise ArgumentError(f"{where} is not an object with {', '.join(keys)}: {line[:80]}")
    return [unsigned(read[key], f"{key} in {where}") for key in keys]


def check_order(dense: Sequence[bool]) -> None:
    """Raises ArgumentError if a rung after the first is dense."""
    for rung, is_dense in enumerate(dense):
        if is_dense and rung:
            raise ArgumentError(f"control: rung {rung} is dense: a ladder goes from dense to small, so that is rung 0")


def ladder_of(plans: Sequence[Rung]) -> List[Plan]:
    """The plans of a ladder, which share one residual. None becomes a dense and exact plan that sends the residual, too.

    Raises ArgumentError if there is no plan, a None is not the first, or plans differ in feedback or exchange.
    """
    if not isinstance(plans, (list, tuple)) or not plans:
        raise ArgumentError("control requires a ladder: a list of plans from the densest to the smallest; None is dense")
    check_order([plan is None for plan in plans])
    named = [None if plan is None else as_plan(plan) for plan in plans]
    stages: Dict[str, str] = {}
    for role in ("feedback", "exchange"):
        texts = [plan.text_of(role) for plan in named if plan is not None]
        stages[role] = texts[0] if texts else ""
        for rung, plan in enumerate(named):
            if plan is not None and plan.text_of(role) != stages[role]:
                raise ArgumentError(
                    f"rung {rung}: `{plan}` has {plan.text_of(role) or f'no {role}'}, another rung has "
                    f"{stages[role] or f'no {role}'}; rungs share one residual, so they have the same {role}"
                )
    dense = as_plan(f"{_EXACT} {' '.join(stages.values())}")
    return [dense if plan is None else plan for plan in named]


class AdaptiveState(TypedDict):
    """The saved state of an AdaptiveExchange."""

    step: int
    control: ControlState
    exchange: ExchangeState


class AdaptiveExchange(Uncopied):
    """An Exchange that sends each step with a plan of a ladder. A change of the rung moves the residuals to the new rung.

    x, out, options  as for Exchange. There is one exchange per rung, with its own memory
    ladder     plans from the densest to the smallest; None is dense and exact. All have the same feedback and exchange
    control    a Controller, or its options
    transport  one for all rungs, or a list with one per rung

    After a step call `report` on all ranks, and `decide` with all reports; mpi.AllReduce does so itself. After an error construct
    a new one.

    >>> from deepreduce.control import AdaptiveExchange
    >>> from deepreduce.exchange import Loopback
    >>> loopback = Loopback(2, latency=1e-4, bytes_per_second=1e6)
    >>> x = [numpy.ones(10000, dtype=numpy.float32) for rank in range(2)]
    >>> ladder = [None, "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw"]
    >>> ranks = [AdaptiveExchange(x[r], ladder, "fit(target_ms=10)", loopback.transport(r)) for r in range(2)]
    >>> for adaptive in ranks:
    ...     adaptive.start()
    >>> loopback.run([adaptive.exchange for adaptive in ranks])
    [None, None]
    >>> for adaptive in ranks:
    ...     adaptive.finish()
    >>> words = [adaptive.report() for adaptive in ranks]
    >>> [adaptive.decide(words) for adaptive in ranks]
    [1, 1]
    """

    def __init__(
        self, x: object, ladder: Sequence[Rung], control: Union[str, Controller], transport: object, out: object = None, **options: Any
    ) -> None:
        self.plans = ladder_of(ladder)
        self.control = control if isinstance(control, Controller) else Controller(control, len(self.plans))
        if self.control.info.rungs != len(self.plans):
            raise ArgumentError(f"the controller has {self.control.info.rungs} rungs, the ladder {len(self.plans)}")
        transports = transport if isinstance(transport, (list, tuple)) else [transport] * len(self.plans)
        if len(transports) != len(self.plans):
            raise ArgumentError(f"there are {len(transports)} transports for {len(self.plans)} rungs")
        self.exchanges: List[Exchange] = []
        for plan, link in zip(self.plans, transports):
            self.exchanges.append(Exchange(x, plan, link, out, **options))
            out = self.exchanges[0].out
        self.steps, self._sums, self._seed = 0, bool(options.get("sum")), self.exchanges[0]._seed
        self._rung = self.control.rung

    def __repr__(self) -> str:
        return f"<AdaptiveExchange {self.control!r}: {self.exchange!r}>"

    @property
    def exchange(self) -> Exchange:
        """The exchange of the rung in use."""
        return self.exchanges[self._rung]

    @property
    def rung(self) -> int:
        """The rung of the next step."""
        return self._rung

    @property
    def out(self) -> Tensor:
        """The arrays of the result, the same for all rungs."""
        return self.exchange.out

    def start(self, step: Optional[int] = None, *old: NoReturn, **older: NoReturn) -> None:
        """Begins a step. step: its number, the same on all ranks; None: the number of the call"""
        self._start(step, seed_of(self._seed, "AdaptiveExchange.start", old, older))

    def _start(self, step: Optional[int], seed: int) -> None:
        self.exchange._start(self.steps if step is None else step, seed)

    def advance(self) -> bool:
        """Goes on as far as it can without waiting. True: done, and observed by the controller."""
        done = self.exchange.advance()
        if done:
            self.finish()
        return done

    def finish(self) -> None:
        """Ends a step that Loopback.run has run, and passes its times to the controller. `advance` does so itself."""
        self.steps += 1
        info = self.exchange.info
        self.control.observe(info.sent, info.wait_ns / 1e9)

    @property
    def due(self) -> bool:
        """Whether a decision is due before the next step."""
        return self.control.due(self.steps)

    def report(self) -> List[int]:
        """The report of this rank, DR_CONTROL_WORDS words, for `decide` on all ranks."""
        return self.control.report()

    def decide(self, words: Sequence[Sequence[int]]) -> int:
        """Selects the rung of the next steps from the reports of all ranks, in rank order, and returns it."""
        rung = self.control.decide(self.steps, words)
        if rung != self._rung:
            self._move(rung)
        return rung

    def _move(self, rung: int) -> None:
        before, self._rung = self.exchange, rung
        if not self.plans[rung].info.feedback:
            return
        for tensor in range(len(before._sizes)):
            own, total = before.residual(tensor), before.residual(tensor, "sum")
            try:
                self.exchange._set_residual(total, tensor, "sum")
            except ArgumentError:
                # This rung has other owners: add what the result lacks to what this rank has not sent.
                self.exchange._set_residual(numpy.zeros_like(total), tensor, "sum")
                own += total * numpy.float32(1 if self._sums else before.info.ranks)
            self.exchange._set_residual(own, tensor, "own")
            self.exchange._set_residual(before.residual(tensor, "momentum"), tensor, "momentum")

    def residual(self, tensor: int = 0, which: str = "own") -> Array:
        """As Exchange.residual. A new rung begins with the residual of the rung before it."""
        return self.exchange.residual(tensor, which)

    def set_residual(self, residual: object, tensor: int = 0, which: str = "own") -> None:
        """As Exchange.set_residual, for the rung in use. Raises ArgumentError."""
        self.exchange.set_residual(residual, tensor, which)

    def state_dict(self) -> AdaptiveState:
        """Steps, decisions, and the state of the exchange of the rung in use. Every rank saves its own, between steps."""
        return {"step": self.steps, "control": self.control.state_dict(), "exchange": self.exchange.state_dict()}

    def load_state_dict(self, state: AdaptiveState) -> None:
        """Restores what `state_dict` returned for the same ladder: the rung and the residuals.

        Raises ArgumentError for another state; then nothing has changed, unless the decisions are of another ladder.
        """
        step = unsigned(saved_part(state, "step"), "step of the state")
        exchange, before = saved_part(state, "exchange"), self.control.state_dict()
        self.control.load_state_dict(cast(ControlState, saved_part(state, "control")))
        try:
            self.exchanges[self.control.rung].load_state_dict(cast(ExchangeState, exchange))
        except ArgumentError:
            self.control.load_state_dict(before)
            raise
        self._rung, self.steps = self.control.rung, step

    def rebind(self, x: object, out: object = None) -> None:
        """Binds other arrays of the same shapes for all rungs, as Exchange.rebind. Raises ArgumentError."""
        for exchange in self.exchanges:
            exchange.rebind(x, out)
            out = self.exchanges[0].out

    def cancel(self) -> None:
        """Stops the step in progress, as Exchange.cancel."""
        self.exchange.cancel()

    @property
    def info(self) -> ExchangeInfo:
        """Exchange.info of the rung in use."""
        return self.exchange.info
