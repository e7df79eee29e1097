"""deepreduce.torch: what DDPHook and AllReduce share: units, residuals, steps."""

from __future__ import annotations

import functools
import logging
import math
import time
from typing import Any, Callable, Container, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union, cast

import numpy
import torch
import torch.distributed as dist

from .._adapters._control_terms import digest
from .._adapters._losses import warn_of_losses
from .._native._call import real, timeout_of, unsigned
from .._native._types import Array, Options, SavedPart, SavedState
from ..control import Controller
from ..errors import ArgumentError, Error, OutOfStep, Unsupported
from ..plan import Plan
from ..sender import Sender, SentTensor, TensorSpec
from ..tensor import State
from ._device_factors import products_on
from ._device_numbers import DeviceNumberUnit
from ._device_sender import AnySender, DeviceSender, device_sender
from ._on_device import DeviceUnit, home_of, place_name, place_of, warn_of_copies
from ._engine import Engine, ExchangeError, Stats, Step, all_reduce, is_finite
from ._factors import by_name, carry_residuals, checked_warm_starts
from ._figures import metrics_of, words_of
from ._ladder import Ladder, Rung, keeper_of, plans_of
from ._rules import Plans, Rules, warn_of_plans
from ._saved import Saved, check_orders, check_residuals, check_sums
from ._terms import gathered, require_same
from ._unit import Item, NumberUnit, RowsUnit, Unit, bytes_of

_log = logging.getLogger("deepreduce.torch")

ALWAYS = 2**62  # `start` where all steps are dense all-reduces
UNIT_BYTES = 4 << 20  # of tensors that are sent together, by default: as the sender's (lib/sender/units.cpp)


class Exchange(Saved):
    """Means over ranks of tensors that have names, step after step."""

    _warns = True  # of copies to the CPU
    _emulated: Optional[int] = None  # for tests: frames are made on an emulated device, with this seed
    _before = 0  # of all_reduce: the calls before this one. Its step has their number, of the rank with most

    def __init__(
        self,
        plan: Union[Plans, Sequence[Plans]],
        dense_below: Optional[int],
        start: int,
        flat: Optional[bool],
        timeout: float,
        seed: int,
        group: Optional[dist.ProcessGroup],
        control: Optional[str] = None,
        nonfinite: str = "error",
    ) -> None:
        self._arguments: Options = {  # of a copy
            "dense_below": dense_below, "start": start, "flat": flat, "timeout": timeout, "seed": seed, "control": control,
            "nonfinite": nonfinite,
        }  # fmt: skip
        if nonfinite not in ("error", "skip"):
            raise ArgumentError(f"nonfinite is {nonfinite!r}, not 'error' or 'skip'")
        unsigned(start, "start")
        self._start, self._dense_below, self._timeout, self._seed, self._group = start, dense_below, timeout_of(timeout), seed, group
        if control is not None and (not isinstance(plan, (list, tuple)) or not plan):
            raise ArgumentError("with control the plan is a ladder: a list of plans from the densest to the smallest")
        ladder = cast("Sequence[Plans]", [plan] if control is None else plan)
        if control is not None and any(isinstance(rung, tuple) for rung in ladder):
            raise ArgumentError("with control the plan is a ladder, not pairs of a pattern and a plan: each rung has its own")
        self._rules = [Rules(rung, flat) for rung in ladder]
        self._ladder = None if control is None else Ladder(control, [rules.all_dense for rules in self._rules])
        self._sender: Optional[AnySender] = None  # of the rung that is in use
        self._rung_senders: List[Callable[[], AnySender]] = []
        self._shapes_of: Dict[str, Tuple[torch.Size, torch.dtype]] = {}
        self._weights_of: Mapping[str, torch.Tensor] = {}  # for sparsify=visible: of the tensors, on the CPU, at fixed places
        self._units: List[Unit] = []
        self._where: Dict[str, Tuple[Unit, int]] = {}
        self._states: Dict[str, State] = {}
        self._pending: List[Unit] = []
        self._held: List[Unit] = []  # their tensors are ready, but the norm to clip by is not
        self._clips = False
        # Collectives that are under way: their names, what they write to, and the tensors of the step.
        self._dense: List[Tuple[str, dist.Work, torch.Tensor, torch.Tensor]] = []
        self._now, self._last, self._total, self._ended = Step(), Step(), Step(), 0
        self._devices: Set[torch.device] = set()  # of the tensors
        self._home: Optional[torch.device] = None  # the device on which frames are made; None: the CPU
        self._unsettled: Optional[int] = None  # there: the last step, whose errors are not known yet
        self._late = False  # the error that is raised is of that step; the current one has not begun
        self._exchanged = False  # the collectives of the current step are over: other ranks may complete it

    def __getstate__(self) -> SavedState:
        """A copy, or an unpickled object, has the arguments (without group and record) and the state of `state_dict`, which
        waits for a model or tensors."""
        plans = [rules.pairs for rules in self._rules]  # (the file of a book may have changed)
        own = {name: value for name, value in vars(self).items() if not name.startswith("_")}  # of a subclass
        return {"arguments": {**self._arguments, "plan": plans if self._ladder else plans[0]}, "state": self.state_dict(), "own": own}

    def __setstate__(self, state: SavedState) -> None:
        arguments = dict(state["arguments"])
        if "bypass" in arguments:  # of a pickle of version 0.2
            arguments["dense_below"] = arguments.pop("bypass")
        self._begin_anew(**arguments)
        vars(self).update(state["own"])
        self.load_state_dict(state["state"])

    def _begin_anew(self, **arguments: Any) -> None:
        """Calls the constructor again; a subclass may have other arguments."""
        raise NotImplementedError

    def _set_tensors(
        self, tensors: Sequence[Tuple[str, torch.Size, torch.dtype]], max_bytes: Optional[int], sparse: Container[str] = ()
    ) -> None:
        """The tensors, cut into units of at most `max_bytes` bytes, of one type, as frames or of one transform. Each tensor
        named in `sparse` is a unit of its own."""
        engine = Engine(self._group, self._timeout)
        engine.skips = self._arguments["nonfinite"] == "skip"
        self._shapes_of = {name: (shape, dtype) for name, shape, dtype in tensors}
        self._choose_home(engine)
        senders = [self._sender_of(rules, max_bytes, sparse, engine) for rules in self._rules]
        names = [name for name, _, _ in tensors]
        plans = {name: [sender.plan_of(name) for sender in senders] for name in names}
        self._rung_senders = [lambda: senders[0]]
        if self._ladder:
            exact = self._rules[0].dense
            plans = {name: found if name in sparse else plans_of(name, found, exact) for name, found in plans.items()}
            self._rung_senders = [
                functools.partial(self._sender_of, rules, max_bytes, sparse, engine, {name: found[i] for name, found in plans.items()})
                for i, rules in enumerate(self._rules)
            ]
        warn_of_plans(self._rules, plans, sparse, self._dense_below)
        units = [len(unit.tensors) for unit in senders[0].units]
        beside = f"start={self._start}, seed={self._seed}, skips={engine.skips}, units of {units}"
        if any(rules.transforms for rules in self._rules):
            beside += f", dense_below={self._dense_below}"  # it decides which tensors have factors
        options = {name: value for name, value in self._arguments.items() if name not in ("timeout", "control")}
        options.update(start=self._start, frame_bytes=UNIT_BYTES if max_bytes is None else max_bytes)
        if self._home is not None:
            beside += f", frames made on {self._place_name}"
        descriptions = {name: self._words(name, found, name in sparse) for name, found in plans.items()}
        lines = [rules.lines for rules in self._rules]
        numbers = [self._before, *self._counts(engine)]
        received = require_same(self._arguments["control"], lines, options, beside, descriptions, engine, self._timeout, numbers)
        before, counts = max(row[0] for row in received), [row[1:] for row in received]
        self._number, self._start = self._number + before, self._start + before
        if not self._has_same_products(senders, engine):
            senders[:] = [self._sender_of(rules, max_bytes, sparse, engine) for rules in self._rules]
        if self._engine is not None:
            engine.failures, engine.failed = self._engine.failures, self._engine.failed
        self._engine = engine
        if self._ladder:
            for name, found in plans.items():
                if name not in sparse and any(plan.info.feedback for plan in found):
                    self._states[name] = State(self._like(name), keeper_of(found))
        self._enter()
        self._take_loaded()
        self._join(counts)

    def _sender_of(
        self, rules: Rules, max_bytes: Optional[int], sparse: Container[str], engine: Engine, plans: Optional[Mapping[str, Plan]] = None
    ) -> AnySender:
        specs = {
            name: TensorSpec(
                tuple(shape), dtype, name in sparse, None if plans is None or name in sparse else plans[name], self._weights_of.get(name)
            )
            for name, (shape, dtype) in self._shapes_of.items()
        }
        try:
            if self._home is not None:
                try:
                    return self._new_sender(specs, rules, max_bytes, engine)
                except Unsupported as error:
                    self._home, why = None, error
                made = self._new_sender(specs, rules, max_bytes, engine)
                self._warn_of_copies(engine, str(why))
                return made
            return self._new_sender(specs, rules, max_bytes, engine)
        except Unsupported as error:
            if error.tensor is not None and error.tensor in sparse:
                out = f"assign it a plan without: {{{error.tensor!r}: None, '*': …}} sends its rows exactly"
                error.args = (f"{error}; {out}",)
            raise

    def _new_sender(self, specs: Mapping[str, TensorSpec], rules: Rules, max_bytes: Optional[int], engine: Engine) -> AnySender:
        options: Options = {
            "ranks": engine.size, "rank": engine.rank, "seed": self._seed, "dense_below": self._dense_below, "flat": rules.flat,
            "unit_bytes": max_bytes, "caller_states": self._home is None, "skip_nonfinite": engine.skips, "halves": self._ladder is None,
            "numbers": [engine.global_rank(rank) for rank in range(engine.size)],
        }  # fmt: skip
        if self._home is None:
            return Sender(specs, rules.book, **options)
        place = functools.partial(place_of, self._home, self._emulated)
        return device_sender(specs, rules.book, place, self._home, engine, options)

    # ---- Frames on a GPU ----

    def _choose_home(self, engine: Engine) -> None:
        """Where frames are made: where the tensors are, if nothing speaks against it. If none are, a device needs no room for any."""
        self._home, why = self._new_home(engine) if self._makes_frames else (None, "")
        if self._home is not None and self._ladder is not None:
            self._home, why = None, "with control= the times of encode and merge decide, and a GPU does not tell them"
        if why:
            self._warn_of_copies(engine, why)

    @property
    def _makes_frames(self) -> bool:
        return self._start < ALWAYS

    def _new_home(self, engine: Engine) -> Tuple[Optional[torch.device], str]:
        return home_of(self._devices, engine, self._emulated)

    def _has_same_products(self, senders: Sequence[AnySender], engine: Engine) -> bool:
        """False if factors would be computed on GPUs whose products differ in their bits. Collective; then the CPU is the home."""
        if self._home is None or not any(isinstance(sender, DeviceSender) and sender.has_factors for sender in senders):
            return True
        words = [row[0] for row in gathered("factors", [digest(products_on(self._home))], engine, self._timeout)]
        other = next((rank for rank, word in enumerate(words) if word != words[0]), None)
        if other is not None:
            self._home = None
            names = [engine.global_rank(rank) for rank in (other, 0)]
            self._warn_of_copies(
                engine, f"rank {names[0]} has another GPU, torch or float32_matmul_precision than rank {names[1]}, so their factors would differ"
            )
        return other is None

    def _warn_of_copies(self, engine: Engine, why: str) -> None:
        if self._warns:
            warn_of_copies(engine, why)

    @property
    def _place_name(self) -> str:
        return place_name(self._home, self._emulated)

    def check(self) -> None:
        """Where frames are made on a GPU, a step's errors are known later: the next step raises them, before it encodes
        anything. This raises them now, for the last step, and waits for the GPU; elsewhere it does nothing. Call it after the
        last step."""
        self._require_idle()
        try:
            self._settle()
        finally:
            self._late = False

    def _settle(self) -> None:
        """Raises the error of the last step, if the GPU made its frames."""
        if self._unsettled is None or self._sender is None:
            return
        number, self._unsettled = self._unsettled, None
        try:
            self._now.frame += self._sender._check_step(number).frames
        except Error:
            info = self._sender.info
            self._engine.failures, self._engine.failed = info.failures, info.failed  # type: ignore[union-attr]
            self._late = True
            raise

    def _resume(self) -> None:
        if self._sender is not None and self._engine is not None:
            self._sender.resume(self._engine.failures, self._engine.failed)

    def _like(self, name: str) -> torch.Tensor:
        shape, dtype = self._shapes_of[name]
        return torch.empty(shape.numel(), dtype=dtype)

    def _words(self, name: str, plans: Sequence[Plan], is_sparse: bool) -> str:
        """Describes a tensor, to compare the ranks by."""
        shape, dtype = self._shapes_of[name]
        texts = ", ".join(map(str, plans))
        rows = shape[0] if len(shape) > 1 else 1
        return f"rows of {tuple(shape)} {dtype}, {texts}" if is_sparse else f"{rows} x {shape.numel() // max(1, rows)} {dtype}, {texts}"

    def _rung(self, number: int) -> Rung:
        sender = self._rung_senders[number]()
        return Rung.of(sender, [self._unit(sender, i) for i in range(len(sender.units))])

    def _enter(self, carry: bool = True) -> None:
        """Switches to the units of the current rung. carry: moves the residuals of the rung before to it."""
        assert self._engine is not None
        number = self._ladder.control.rung if self._ladder else 0
        rung = (self._ladder.rungs[number] if self._ladder else None) or self._rung(number)
        if self._ladder:
            if carry:
                self._return_sums()
            self._ladder.rungs[number] = rung
            carry_residuals(self._units if carry else [], rung.units if carry else [], self._states)
        self._sender, self._units, self._where = rung
        self._resume()
        self._clips = self._sender.info.clips
        self._forget_places()

    def _unit(self, sender: AnySender, number: int) -> Any:
        assert self._engine is not None
        unit, items = sender.unit(number), []
        for name in unit.tensors:
            shape, dtype = self._shapes_of[name]
            items.append(Item(name, shape.numel(), dtype, sender.plan_of(name), shape if unit.kind == "rows" else None))
        for item in items:
            of_sender = unit.kind in ("owner", "factors") or self._home is not None
            if item.plan.info.feedback and item.name not in self._states and not of_sender:
                self._states[item.name] = State(self._like(item.name), item.plan)
        if self._home is None:
            kind = RowsUnit if unit.kind == "rows" else NumberUnit if unit.numbers else Unit
        else:
            kind = DeviceNumberUnit if unit.numbers else DeviceUnit
            if isinstance(sender, DeviceSender):
                sender, number = sender.part(number)
        # (A DeviceSender is that of its numbers' units.)
        return kind(cast(Sender, sender), number, items, self._engine, self._states, self._home)

    def _forget_tensors(self) -> None:
        super()._forget_tensors()
        self._sender, self._units, self._where, self._states = None, [], {}, {}
        if self._ladder:
            self._ladder.rungs = [None] * len(self._ladder.rungs)

    def _forget_places(self) -> None:
        """Units have changed: the addresses of tensors must be placed again."""

    @property
    def control(self) -> Optional[Controller]:
        """The controller of `control=`, with its rung, its last decision and its log; None without control."""
        return self._ladder.control if self._ladder else None

    @property
    def _plain(self) -> bool:
        """Whether the current step is a dense all-reduce."""
        return self._number < self._start or (self._ladder is not None and self._ladder.is_plain)

    def _decide(self) -> None:
        """After the collectives of a step: lets the controller choose the next rung."""
        assert self._engine is not None
        self._exchanged = False
        if self._ladder and self._number >= self._start:
            if self._ladder.end_step(self._number - self._start, self._now, self._engine, self._timeout):
                self._enter()

    # ---- A step ----

    def _ready(self, unit: Unit) -> None:
        """Called when all tensors of the unit are ready."""
        if not self._clips:
            self._issue(unit)
        else:
            unit.arrived = 0
            self._held.append(unit)

    def _issue_held(self) -> None:
        """Called when all tensors of all units are ready: clips, and issues the units that waited for it."""
        if self._held:
            begin = time.perf_counter()
            for unit in self._held:
                unit.fetch()
            self._sender.clip()  # type: ignore[union-attr]
            self._now.encode += time.perf_counter() - begin
            for unit in self._held:
                self._issue(unit)
            self._held.clear()

    def _issue(self, unit: Unit) -> None:
        if not self._pending:
            self._settle()
        self._pending.append(unit)
        unit.arrived = 0
        unit.start(self._number, self._now)

    def _finish(self, drop: bool = False) -> None:
        """Waits for the pending units, in order, and merges them. drop: this rank abandons the step, and ends its collectives,
        which ranks that do not abandon it need."""
        deadline = time.monotonic() + self._timeout
        failed: Optional[Error] = None
        for unit in self._pending:
            if unit.adds_up:
                unit.add_up(deadline, self._now)
        for unit in self._pending:
            try:
                self._now.skipped |= (unit.drop if drop else unit.finish)(deadline, self._now)
            except ExchangeError:
                raise
            except Error as error:
                failed = failed or error
                if isinstance(error, OutOfStep):  # this rank adopts the others' count
                    info = unit.sender.info
                    self._engine.failures, self._engine.failed = info.failures, info.failed  # type: ignore[union-attr]
        self._exchanged = not isinstance(failed, OutOfStep)
        if failed is not None:
            raise failed
        if self._now.skipped:
            self._sender.skip(self._number)  # type: ignore[union-attr]
            for unit in self._pending:
                unit.skip()
        self._unsettled = None if self._home is None or drop else self._number
        self._pending.clear()

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        """Issues the all-reduce that DDP runs without a hook."""
        assert self._engine is not None
        engine, step, begin = self._engine, self._now, time.perf_counter()
        what = f"step {self._number}, dense tensor {len(self._dense)}"
        # (The values of a sparse gradient may be the memory of the gradient of the embedding's output, which backward still reads.)
        mean = tensor.div_(engine.size) if tensor.layout == torch.strided else tensor / engine.size
        self._dense.append((what, engine.issue(what, all_reduce, mean), mean, tensor))
        size = tensor.numel() * tensor.element_size() if tensor.layout == torch.strided else bytes_of(tensor)
        step.dense += size
        step.sent += 2 * (engine.size - 1) * size // engine.size
        step.received += 2 * (engine.size - 1) * size // engine.size
        step.wait += time.perf_counter() - begin

    def _finish_dense(self) -> None:
        assert self._engine is not None
        begin, deadline = time.perf_counter(), time.monotonic() + self._timeout
        for what, work, mean, _ in self._dense:
            self._engine.wait(what, work, deadline)
            if self._engine.skips and not is_finite(mean if mean.layout == torch.strided else mean.coalesce().values()):
                self._now.skipped = 1  # (it is so on all ranks)
        with torch.no_grad():
            for _, _, mean, tensor in self._dense:
                if self._now.skipped:
                    (mean if mean.layout == torch.strided else mean._values()).fill_(math.nan)
                if mean is not tensor:
                    tensor.copy_(mean)
        self._dense.clear()
        self._exchanged = True
        self._now.wait += time.perf_counter() - begin

    def _abort(self) -> None:
        """After a failed step: adds what was sent back to the residuals of each unit, as far as possible. Raises nothing, since
        the error of the step is being raised and the step must still be counted."""
        try:
            if self._sender is not None and not self._plain and not self._late:
                self._sender.take_back(self._number)
        except Exception as error:
            _log.warning("%s", error)
        for unit in self._units:
            unit.arrived = 0
        self._pending.clear()
        self._held.clear()
        self._dense.clear()
        if self._exchanged:  # (a rank that fails alone decides with the others, which completed the step)
            try:
                self._decide()
            except Error as error:
                _log.warning("%s", error)

    def _end_step(self, done: bool) -> None:
        """Counts the step. Call it when all its times are known."""
        if self._late:
            self._late, self._now = False, Step()
            return
        self._number += 1
        self._ended += 1
        self._total.add(self._now)
        self._last, self._now = self._now, Step()
        if self._engine is not None:
            self._engine.end_step(self._number - 1, done)
            if not done:
                self._resume()

    def _warn_of_losses(self) -> None:
        """Rank 0 warns, where the tensors are set first, of a plan that drops values permanently."""
        if self._engine is not None and self._engine.rank == 0:
            warn_of_losses(plan for rules in self._rules for _, plan in rules.pairs)

    # ---- Beside the steps ----

    @property
    def keeps(self) -> bool:
        """Whether some plan has feedback, so that there are residuals."""
        return any(rules.keep for rules in self._rules)

    def stats(self) -> Stats:
        """Times and bytes of the steps: of the last, and the sum since the beginning or `reset`; and the memory of the states."""
        total = Step()
        total.add(self._total)
        memory = sum(state.size for state in self._states.values())
        memory += sum(sent.state + sent.sum_state + sent.warm_state for sent in map(self._sent_tensor, self._owned))
        return Stats(self._ended, self._last, total, memory, self._place_name)

    def metrics(self) -> Dict[str, float]:
        """A flat dict for a logger.

        Of the last step: `bytes_sent`, `encode_ms` and other fields of Step; `bytes_dense` of the gradient; `ratio`, dense bytes
        over frame bytes. At this moment: `residual_norm`, over all residuals of this rank, which it reads; `residual_bytes`.
        Totals: `steps` and `skipped`. Raises ArgumentError within a step.
        """
        self._require_idle()
        return metrics_of(self.stats(), [*self._all_states().values(), *self._owned_states("sums").values()])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {words_of(self._rules, self._units, self.stats(), self._start if self._makes_frames else 0)}>"

    def reset(self) -> None:
        """Clears residuals, steps and statistics, as in a new object."""
        self._require_idle()
        for state in self._states.values():
            state.memory[:] = 0
        for field in ("states", "sums", "warm"):
            self._put_owned(field, {name: numpy.zeros_like(memory) for name, memory in self._owned_bytes(field).items()})
        if self._ladder:
            self._ladder.restart(clean=True)
            if self._engine is not None:
                self._enter(carry=False)
        self._loaded = None
        self._number, self._ended = 0, 0
        if self._engine is not None and self._sender is not None:
            self._engine.failures = self._engine.failed = 0
            self._sender.resume(0, 0)
        self._now, self._last, self._total = Step(), Step(), Step()

    def scale_residuals(self, factor: float) -> None:
        """Multiplies all residuals by `factor`. Where a schedule changes the learning rate, pass the old rate over the rate of
        the next step (efsignsgd, Zheng et al. 2019). Raises ArgumentError for plans without a residual (feedback=momentum).
        """
        self._require_idle()
        factor = real(factor, "factor")
        if not math.isfinite(factor):
            raise ArgumentError(f"factor is {factor}, not finite")
        if not any(rules.keep_residuals for rules in self._rules):
            raise ArgumentError(f"the plan keeps no residual to scale: {self._rules[0]}")
        if self._loaded is not None:  # the tensors are not known yet
            self._loaded = {**self._loaded, "scale": factor * self._loaded.get("scale", 1.0)}
        self._scale(factor)

    def _scale(self, factor: float) -> None:
        if self._sender is not None and self._home is None:  # (it also has what a rank that is behind withdraws)
            for unit in self._units:
                unit.place_states()
            cast(Sender, self._sender).scale(factor)
            return
        self._scale_fields(factor, ("states", "sums"))

    def _scale_fields(self, factor: float, fields: Sequence[str]) -> None:
        """fields: "sums" alone also within a step, before `finish`"""
        for field in fields:
            states = {**self._states, **self._owned_states(field)} if field == "states" else self._owned_states(field)
            for name, state in states.items():
                unit, position = self._where[name]
                if unit.items[position].plan.info.residual:
                    state.scale(factor)
            self._put_owned(field, {name: states[name].memory for name in self._owned if name in states})

    # The sender holds the states of ranges (exchange=owner) and of factors. These methods copy them, as whole tensors.

    @property
    def _owned(self) -> List[str]:
        """Names of the tensors whose states the sender holds."""
        return [item.name for unit in self._units if unit.holds_states for item in unit.items]

    def _sent_tensor(self, name: str) -> SentTensor:
        assert self._sender is not None
        return self._sender.tensor(name)

    def _owned_bytes(self, field: str) -> Dict[str, Any]:
        """{name: bytes} of tensors that have the field: "states"; "sums", of the elements that this rank owns; "warm", of factors."""
        found = {name: self._sender.read_state(name, field) for name in self._owned if self._sender is not None}
        return {name: memory for name, memory in found.items() if memory.size}

    def _owned_states(self, field: str) -> Dict[str, State]:
        return {name: State._from_bytes(memory) for name, memory in self._owned_bytes(field).items()}

    def _put_owned(self, field: str, states: Mapping[str, Array]) -> None:
        for name, memory in states.items():
            assert self._sender is not None
            self._sender.write_state(name, field, memory)

    def _all_states(self) -> Dict[str, State]:
        return {**self._states, **self._owned_states("states")}

    def _residuals(self) -> SavedState:
        """By name; with control, also its decisions."""
        control = {"control": self._ladder.trace()} if self._ladder else {}
        owned = {field: {name: torch.from_numpy(memory) for name, memory in self._owned_bytes(field).items()} for field in ("sums", "warm")}
        return {
            **control,
            **{field: found for field, found in {**owned, "orders": dict(self._orders)}.items() if found},
            "residuals": {
                name: {"elements": self._elements(name), "state": torch.from_numpy(state.memory.copy())}
                for name, state in self._all_states().items()
            },
        }

    def _set_residuals(self, loaded: SavedPart, more: Sequence[SavedPart], scale: float, ranks: int) -> None:
        control = self._ladder.replayed(loaded.get("control")) if self._ladder else None
        rung = None if control is None else self._rung(control.rung)
        sender, units = (self._sender, self._units) if rung is None else (rung.sender, rung.units)
        assert sender is not None
        loaded, *more = (by_name(part, units, sender) for part in (loaded, *more))
        warm = checked_warm_starts(loaded, sender)
        states = self._all_states()
        items = {name: unit.items[i] for name, (unit, i) in self._where.items()}
        for part in (loaded, *more):
            check_residuals(part["residuals"], states, items)
            check_sums(part.get("sums", {}), states, items, sender)
            check_orders(part, self._orders, items)
        if self._ladder and control is not None:
            self._ladder.restart(False, control)
            self._ladder.rungs[control.rung] = rung
            self._enter(carry=False)
            states = self._all_states()
        self._put_owned("warm", warm)
        for name, state in states.items():
            saved = loaded["residuals"].get(name)
            state.memory[:] = 0 if saved is None else saved["state"].cpu().numpy()
            for part in more:
                if name in part["residuals"]:
                    self._add_residual(name, state, State._from_bytes(part["residuals"][name]["state"].cpu().numpy()))
        here = {name: numpy.zeros_like(memory) for name, memory in self._owned_bytes("sums").items()}
        self._put_owned("sums", here)
        for part in (loaded, *more):
            for name, saved in part.get("sums", {}).items():
                sums = State._from_bytes(saved.cpu().numpy())
                if part is loaded and name in here and self._engine is not None and ranks == self._engine.size:
                    self._put_owned("sums", {name: sums.memory})
                    owned = self._owned_states("sums")[name]
                    if owned.memory.any():  # what is left is of elements that others own now
                        sums.residual[:] -= owned.residual
                self._add_sums(name, states[name], sums, ranks)
        self._put_owned("states", {name: states[name].memory for name in self._owned if name in states})
        for name in self._owned:
            if name in self._states:  # (of another rung: a residual is stored once)
                self._states[name].memory[:] = 0
        if scale != 1:
            self._scale(scale)

    def _add_residual(self, name: str, state: State, other: State) -> None:
        unit, position = self._where[name]
        item = unit.items[position]
        if not item.plan.info.residual or not other.memory.any():  # (a fresh one has none)
            return
        if state.memory.any():
            state.residual[:] += other.residual
        else:
            state.memory[:] = State.from_residual(self._like(name), keeper_of([item.plan]), other.residual).memory

    def _add_sums(self, name: str, state: State, sums: State, ranks: int) -> None:
        """Adds what an owner kept of the mean of `ranks` ranks to a residual, of which that mean has one part in `ranks`."""
        if sums.memory.any() and sums.residual.any():
            sums.scale(ranks)
            self._add_residual(name, state, sums)

    def _return_sums(self) -> None:
        """Before another rung, in which ranks own other elements, or none: adds the owner's residuals to this rank's."""
        assert self._engine is not None
        for name, sums in self._owned_states("sums").items():
            own, zeros = State._from_bytes(self._owned_bytes("states")[name]), numpy.zeros_like(sums.memory)
            self._add_sums(name, own, sums, self._engine.size)
            self._put_owned("states", {name: own.memory})
            self._put_owned("sums", {name: zeros})

    def _give_back(self, means: Mapping[str, torch.Tensor]) -> None:
        """After `check` raised, for a caller that drops the whole step: adds what the units without a fault have written (the others
        wrote 0) to the residuals. Over all ranks it is the sum of what they sent."""
        for name, state in self._owned_states("states").items():
            mean = means[name].detach().reshape(-1).float().cpu()
            if mean.any():
                unit, position = self._where[name]
                plan = keeper_of([unit.items[position].plan])
                self._add_residual(name, state, State.from_residual(self._like(name), plan, mean.numpy()))
                self._put_owned("states", {name: state.memory})

    def _elements(self, name: str) -> Optional[int]:
        if name not in self._where:
            return None
        unit, position = self._where[name]
        return unit.items[position].elements
