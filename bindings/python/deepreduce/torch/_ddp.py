"""deepreduce.torch: gradients of DistributedDataParallel."""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

import torch
import torch.distributed as dist

from .._adapters._autograd import after_backward, graph_task
from .._files._torch_arrays import named_parameters_of
from .._native._call import unsigned
from .._native._renamed import argument
from .._native._types import SavedPart, SavedState
from ..errors import ArgumentError, Unsupported
from ..recording._model_times import ModelRecorder, Recording, record
from ._auto import STEPS, Auto, Choice, choice_of
from ._engine import require_place
from ._exchange import ALWAYS, UNIT_BYTES, Exchange
from ._figures import words_of
from ._rules import Plans, Rules
from ._unit import Unit, sparse_parameters

_log = logging.getLogger("deepreduce.torch")


class DDPHook(Exchange):
    """The communication hook of a DistributedDataParallel: the mean of the ranks' gradients, compressed.

    plan     a plan or its text; or {pattern of parameter names: plan}, or a list of such pairs: the first pattern that
             matches counts (fnmatch); or a Book of deepreduce.book, or "book:PATH". None, or no match: dense, exactly.
             Default: the preset "recommended" (deepreduce.presets() has the evidence).
             By default frames are gathered. With `exchange=owner` each rank adds up a range of the elements: the bytes that a
             rank sends do not grow with the number of ranks. `index=all value=half(…)` is an all-reduce of halves.
             "auto": ten steps are dense. Then dense, bf16, 8 bits, 4 bits and lowrank are measured on the gradients and the
             link. The hook chooses the most accurate one whose step is at most 10 % longer than the fastest (see `choice`,
             and a line of the logger "deepreduce.torch"). The step that measures runs about 20 exchanges and needs memory
             for two copies of the gradients
    dense_below  parameters of fewer elements are sent dense, exactly, in the same unit (Plan.exact). None: 1000, and for plans
             that are flat 0
    start    the number of first steps that are dense, by all-reduce
    flat     the parameters of one plan are one tensor (bucket=flat). Residuals still belong to parameters. None: flat if the
             plan sparsifies (it then selects among all of them) or codes each value independently (raw, half). A plan that
             quantises all elements (8bit, onebit, qsgd) has levels for each parameter, because one with large values
             would make the levels of the others coarse
    frame_bytes  the maximum bytes of a unit: parameters that are sent together, from last to first. A larger parameter
             is sent alone. None: 4 MiB, so that backward hides most transfers; with transform=lowrank, whose factors are
             small, 25 MiB
    timeout  seconds that the end of a step waits for the other ranks. If a rank is missing, a process may need twice the
             timeout to end, because gloo holds its collective for that long
    seed     of random numbers; the same on every rank. The library receives step and rank besides
    group    a process group; None: the model's
    control  for example "fit(target_ms=20)": chooses among plans by how long the ranks wait for transfers (experimental:
             docs/CONTROL.md). Then `plan` is a ladder: a list of such plans from the densest to the smallest
    nonfinite  what happens if a rank's gradient is infinite or NaN. "error": PeerError on all ranks, if the plan's codecs
             cannot send it. "skip": the gradients of all ranks become NaN, the residuals return to their values before the
             step, and nothing is raised: a GradScaler skips its step on all ranks and lowers its scale.
             `stats().total.skipped` counts such steps. "skip" reads each gradient once more, and copies the residuals in
             each step
    record   a path or a Recording: writes when the gradients become ready (docs/model.schema.json), less the hook's
             own time

    feedback=dgc(clip=…) bounds the norm of the whole gradient, as in the paper. So no frame is sent before the last bucket is
    ready: encode and transfer do not overlap with backward.

    Parameters are cut into units by their order and `frame_bytes`, not by DDP's buckets, which change after the first step
    and differ from run to run. So a training that resumes from `state_dict` is the same, bit for bit.

    All ranks receive the same gradients, bit for bit, or all raise in backward: PeerError (a rank could not encode, for
    example a NaN) or CorruptFrame, with the rank in the message and as `rank`; MissingRank (`ranks`) or ExchangeError. A rank
    that alone received damaged bytes raises CorruptFrame alone; the next step raises OutOfStep on all. (With exchange=owner
    damage on the way to an owner raises at once on all.) With DDP end the process group on all ranks first, as after each
    error (docs/PYTORCH.md). Unsupported: compiled autograd.
    A sparse gradient (Embedding(sparse=True)) is sent as its rows, by its plan's index and value codecs. All its rows are
    sent, so it has no residual. The result is sparse, too.
    With find_unused_parameters, the gradient of a parameter that no rank used does not change. What its residual sent in
    that step is lost.
    """

    @argument("bypass", "dense_below")
    def __init__(
        self,
        plan: Union[Plans, Sequence[Plans]] = "recommended",
        *,
        dense_below: Optional[int] = None,
        start: int = 0,
        flat: Optional[bool] = None,
        timeout: float = 60.0,
        seed: int = 0,
        group: Optional[dist.ProcessGroup] = None,
        frame_bytes: Optional[int] = None,
        control: Optional[str] = None,
        nonfinite: str = "error",
        record: Union[None, str, os.PathLike[str], Recording] = None,
    ) -> None:
        auto = isinstance(plan, str) and plan == "auto"
        if auto and control is not None:
            raise ArgumentError('"auto" chooses one plan; with control the plan is a ladder')
        super().__init__(None if auto else plan, dense_below, start, flat, timeout, seed, group, control, nonfinite)
        self._frame_bytes = self._arguments["frame_bytes"] = None if frame_bytes is None else unsigned(frame_bytes, "frame_bytes")
        self._auto = Auto() if auto else None
        self._measure_from_here()
        self._named: List[Tuple[str, torch.Size, torch.dtype]] = []
        self._sparse: Set[str] = set()  # those of them whose gradients are sparse
        self._gradients: Dict[str, torch.Tensor] = {}  # of the step after which "auto" chooses
        self._record = Recording(record) if isinstance(record, (str, os.PathLike)) else record
        self._recorder: Optional[ModelRecorder] = None
        self._names: Dict[int, str] = {}
        # For each bucket: what identified it in the last step, and how many tensors of which units are in it.
        self._buckets: Dict[int, Tuple[Tuple[int, ...], List[Tuple[Unit, int]]]] = {}
        self._futures: List[Tuple[torch.futures.Future, torch.Tensor]] = []
        self._arrived = 0  # parameters of this step's buckets so far
        self._thread = threading.get_ident()  # that runs backward, or waits for it
        self._task, self._ended_well = -1, True  # of the last backward

    def _begin_anew(self, **arguments: Any) -> None:
        DDPHook.__init__(self, **arguments)

    def __getstate__(self) -> SavedState:
        state = super().__getstate__()
        if self._auto is not None:  # (the state has the choice, if there is one)
            state["arguments"]["plan"] = "auto"
        return state

    def register(self, model: torch.nn.Module) -> DDPHook:
        """Registers the hook with a DistributedDataParallel, and returns it. Once, and for one model."""
        if self._engine is not None:
            raise ArgumentError("this hook is registered with a model already; create one for each model")
        if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
            raise ArgumentError(
                f"register requires a DistributedDataParallel, not a {type(model).__name__};"
                " for FSDP2 (fully_shard) use ReduceScatter"
            )
        given = self._group
        ignored = {id(parameter) for name, parameter in model.module.named_parameters() if name in model.parameters_to_ignore}
        parameters = [
            (name, parameter) for name, parameter in named_parameters_of(model) if parameter.requires_grad and id(parameter) not in ignored
        ]
        # DDP keeps them alive.
        self._names = {id(parameter): name for name, parameter in parameters}
        sparse = sparse_parameters(model.module)
        self._sparse = {name for name, parameter in parameters if id(parameter) in sparse}
        self._named = [(name, _laid_out(parameter), parameter.dtype) for name, parameter in reversed(parameters)]
        orders = {name: _order_words(parameter) for name, parameter in parameters}
        self._orders = {name: order for name, order in orders.items() if order}
        self._devices = {parameter.device for _, parameter in parameters}
        self._group = model.process_group if given is None else given
        loaded, number = self._loaded, self._number
        try:
            self._set_tensors(self._named, self._frame_bytes, self._sparse)
            self._warn_of_losses()
            self._advise(model, [parameter.nbytes for _, parameter in reversed(parameters)])
            model.register_comm_hook(self, _hook)
        except BaseException:
            self._forget_tensors()
            self._loaded, self._number, self._group = loaded, number, given
            raise
        if self._record is not None:
            self._recorder = record(model, self._record)
        if dist.get_rank(self._group) == 0:
            _log.info("%s", repr(self)[1:-1])
        return self

    def _advise(self, model: torch.nn.parallel.DistributedDataParallel, sizes: Sequence[int]) -> None:
        """Logs a line if DDP passes all gradients but those of its first bucket in one bucket, at the end of backward.

        sizes  bytes of the parameters, from the last to the first, as DDP fills its buckets
        """
        early = 0
        if getattr(model, "bucket_bytes_cap_default", False):  # (else the first bucket is as the others)
            early = next((total for total in itertools.accumulate(sizes) if total >= dist._DEFAULT_FIRST_BUCKET_BYTES), 0)
        size, late, cap = sum(sizes), sum(sizes) - early, model.bucket_bytes_cap
        if self._engine is not None and self._engine.rank == 0 and UNIT_BYTES < late <= cap:
            words = "one bucket of DDP (bucket_cap_mb=%g) has %.1f MiB of a gradient of %.1f MiB, so that backward hides no transfer of these; %s"
            advice = f"DistributedDataParallel(…, bucket_cap_mb={UNIT_BYTES >> 20}) passes it in parts"
            _log.info(words, *(bytes_ / (1 << 20) for bytes_ in (cap, late, size)), advice)

    def _take(self, bucket: dist.GradBucket) -> torch.futures.Future:
        begin, step = time.perf_counter(), self._now
        if not isinstance(bucket, dist.GradBucket):
            raise Unsupported(
                "the hook got no GradBucket: compiled autograd has none (optimize_ddp='python_reducer'); 'ddp_optimizer' has"
            )
        # (In the first step of a static graph with sparse gradients, torch numbers all buckets 0: none is the last.)
        self._arrived += len(bucket.parameters())
        spent, last, done = step.spent, bucket.is_last() or self._arrived == len(self._named), False
        try:
            buffer = bucket.buffer()
            self._watch(buffer.device.type == "cpu")
            future = torch.futures.Future(devices=[] if buffer.device.type == "cpu" else [buffer.device])
            self._futures.append((future, buffer))
            if self._plain:
                self._all_reduce(buffer)
            else:
                self._arrive(bucket, buffer)
            if self._choice_is_due:
                self._gradients.update(zip((self._names[id(parameter)] for parameter in bucket.parameters()), bucket.gradients()))
            if last:
                self._complete()
                self._decide()
                self._choose()
                for waiting, result in self._futures:
                    waiting.set_result(result)
            done = True
            return future
        finally:
            if last or not done:
                self._futures.clear()
                self._arrived = 0
            if not done:
                self._abort()
            took = time.perf_counter() - begin
            step.own += took - (step.spent - spent)
            if self._recorder is not None:
                self._recorder.took(took)
            if last or not done:
                self._end_step(done)

    @property
    def choice(self) -> Optional[Choice]:
        """What DDPHook("auto") has measured and chosen; None before that, and with another plan."""
        return self._auto.choice if self._auto else None

    def _choose(self) -> None:
        """With "auto", at the end of a dense step: records its times; after the last one it measures and chooses."""
        assert self._engine is not None
        if self._auto is None or self._auto.choice is not None:
            return
        self._auto.observe(self._now)
        if self._choice_is_due:
            options = {name: self._arguments[name] for name in ("dense_below", "flat", "timeout", "seed")}
            options["frame_bytes"] = self._frame_bytes
            choice = self._auto.decide(self._gradients, self._engine, options)
            self._gradients.clear()
            if choice is not None:
                self._adopt(choice)

    @property
    def _will_choose(self) -> bool:
        return self._auto is not None and self._auto.choice is None

    @property
    def _choice_is_due(self) -> bool:
        """Whether it chooses at the end of this step: the last of the dense ones, or a later one if that could not be measured."""
        return self._will_choose and self._number + 1 >= self._start

    def _measure_from_here(self) -> None:
        """Before a choice: it is after `start` steps, and after ten that this hook has seen."""
        if self._will_choose:
            self._start = max(self._arguments["start"], self._number + STEPS)

    @property
    def _plain(self) -> bool:
        return super()._plain or self._will_choose

    def __repr__(self) -> str:
        if not self._will_choose:
            return super().__repr__()
        return f"<DDPHook {words_of([f'auto: exact, and after {self._start} steps the plan that it measures as the best'], self._units, self.stats(), 0)}>"

    @property
    def _makes_frames(self) -> bool:  # ("auto" measures dense steps first)
        return super()._makes_frames and not self._will_choose

    def _adopt(self, choice: Choice) -> None:
        """Continues with the chosen plan."""
        assert self._auto is not None
        self._auto.choice = choice
        self._start = ALWAYS if choice.plan is None else 0
        self._rules, self._states = [Rules(choice.plan, self._arguments["flat"])], {}
        if self._engine is not None:
            self._set_tensors(self._named, self._frame_bytes, self._sparse)

    def _residuals(self) -> SavedState:
        chosen = {"auto": self.choice._asdict()} if self.choice else {}
        return {**super()._residuals(), **chosen}

    def load_state_dict(self, state: SavedPart) -> None:
        self._require_idle()
        before, choice = dict(vars(self)), self.choice
        try:
            if self._auto is not None:
                chosen = next((part["auto"] for part in (state, *state.values()) if isinstance(part, Mapping) and "auto" in part), None)
                if chosen is not None:
                    self._adopt(choice_of(chosen))
            super().load_state_dict(state)
        except BaseException:  # (to adopt a choice makes new units)
            vars(self).update(before)
            if self._auto is not None:
                self._auto.choice = choice
            raise
        self._measure_from_here()

    def reset(self) -> None:
        super().reset()
        self._measure_from_here()

    def _watch(self, on_cpu: bool) -> None:
        """Records the thread of each backward, and whether it ends without an exception."""
        if on_cpu:  # (on a GPU the hook is called in a thread of autograd, and the caller waits)
            self._thread = threading.get_ident()
        task = graph_task()
        if task in (-1, self._task):
            return
        self._task, self._ended_well = task, False

        def ended() -> None:
            self._ended_well = True

        after_backward(ended)

    def _arrive(self, bucket: dist.GradBucket, buffer: torch.Tensor) -> None:
        """Issues the units that this bucket completes."""
        index, parameters = bucket.index(), bucket.parameters()
        # (A sparse gradient is another tensor in each step.)
        is_sparse = buffer.layout != torch.strided
        mark = (0, *map(id, parameters)) if is_sparse else (buffer.data_ptr(), *map(id, parameters))
        known, units = self._buckets.get(index, ((), []))
        if is_sparse or mark != known:
            units = self._place(bucket, buffer, parameters)
            self._buckets[index] = (mark, units)
        for unit, tensors in units:
            unit.arrived += tensors
            if unit.arrived == len(unit.items):
                self._ready(unit)

    def _place(self, bucket: dist.GradBucket, buffer: torch.Tensor, parameters: Sequence[torch.nn.Parameter]) -> List[Tuple[Unit, int]]:
        """Passes the addresses of the bucket's tensors to the units. Returns each unit with its number of tensors in the bucket."""
        if buffer.layout != torch.strided:
            unit, position = self._where[self._names[id(parameters[0])]]
            unit.place(position, buffer)
            return [(unit, 1)]
        require_place(buffer, "the gradient")
        counts: Dict[int, int] = {}
        for parameter, gradient in zip(parameters, bucket.gradients()):
            name = self._names.get(id(parameter))
            if name is None:
                raise ArgumentError(
                    f"a parameter of shape {tuple(parameter.shape)} was not the model's, or had no gradient, at register"
                )
            if _order_words(parameter) != self._orders.get(name, ""):
                raise ArgumentError(
                    f"the memory format of {name} has changed since register, and its residual has the order of before: convert"
                    " the model before DistributedDataParallel wraps it"
                )
            unit, position = self._where[name]
            begin = gradient.storage_offset() - buffer.storage_offset()
            unit.place(position, buffer[begin : begin + gradient.numel()])
            number = self._units.index(unit)
            counts[number] = counts.get(number, 0) + 1
        return [(self._units[number], counts[number]) for number in sorted(counts)]

    def _forget_places(self) -> None:
        self._buckets.clear()

    def _require_idle(self) -> None:
        """ArgumentError within a step (a backward may be only a part of one), and in another thread than its backward's. A step
        whose backward ended by an exception is abandoned: what it sent is added back to the residuals."""
        if not self._futures:
            return
        if self._ended_well or threading.get_ident() != self._thread:
            raise ArgumentError(
                "a step is under way: its last bucket has not arrived yet; if an exception ended its backward, cancel() abandons it"
            )
        self.cancel()

    def cancel(self) -> None:
        """Abandons a step whose backward raised an exception: what it sent is added back to the residuals. `state_dict` and other
        calls do so by themselves, but not where a step has several backwards, or one within another (a reentrant
        checkpoint). DDP cannot go on after that: create it again. Without a step under way it does nothing."""
        if graph_task() != -1:
            raise ArgumentError("a step is under way: this is its backward")
        if self._futures:
            self._futures.clear()
            self._arrived = 0
            self._abort()
            self._end_step(False)

    def _complete(self) -> None:
        """Ends the step: the last bucket has arrived."""
        if self._plain:
            self._finish_dense()
            return
        started = [*self._pending, *self._held]
        absent = next((unit for unit in self._units if unit.arrived or unit not in started), None)
        if absent is not None:
            names = f"{absent.items[0].name} … {absent.items[-1].name}"
            raise ArgumentError(f"DDP passed no gradient for some of the {len(absent.items)} parameters {names}")
        self._issue_held()
        self._finish()


def _order(parameter: torch.Tensor) -> List[int]:
    """The dimensions of more than one element in the order of its memory; []: it is row by row, or has gaps."""
    several = [i for i, size in enumerate(parameter.shape) if size > 1]
    order = sorted(several, key=lambda i: (parameter.stride(i), parameter.shape[i]), reverse=True)
    sizes = [parameter.shape[i] for i in order]
    dense = [parameter.stride(i) for i in order] == [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    return order if dense and not parameter.is_contiguous() else []


def _order_words(parameter: torch.Tensor) -> str:
    """The order as a state has it."""
    return " ".join(map(str, _order(parameter)))


def _laid_out(parameter: torch.Tensor) -> torch.Size:
    """The shape in the order of its memory, which is the order of its gradient in a bucket: of a transposed matrix, the shape
    of the matrix before. For a parameter with gaps in its memory DDP passes the gradient row by row."""
    order = _order(parameter)
    return torch.Size([parameter.shape[i] for i in order]) if order else parameter.shape


def _hook(state: DDPHook, bucket):  # type: ignore[no-untyped-def]  # DDP looks at the names and the annotations
    return state._take(bucket)
