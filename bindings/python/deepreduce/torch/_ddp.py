"""deepreduce.torch: gradients of DistributedDataParallel."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

import torch
import torch.distributed as dist

from .._files._torch_arrays import named_parameters_of
from .._native._renamed import argument
from .._native._types import SavedPart, SavedState
from ..errors import ArgumentError, Unsupported
from ..recording._model_times import ModelRecorder, Recording, record
from ._auto import STEPS, Auto, Choice
from ._engine import require_place
from ._exchange import UNIT_BYTES, Exchange
from ._rules import Plans, Rules
from ._unit import Unit, sparse_parameters

_log = logging.getLogger("deepreduce.torch")


class DDPHook(Exchange):
    """The communication hook of a DistributedDataParallel: the mean of the ranks' gradients, compressed.

    plan     a plan or its text; or {pattern of parameter names: plan}, or a list of such pairs, of which the first that
             matches counts (fnmatch); or a Book of deepreduce.book, or "book:PATH". None, or no match: dense, exactly.
             Frames are gathered, or with `exchange=owner` each rank adds up a range of the elements: what a rank sends does not
             grow with the ranks then. `index=all value=half(…)` is an all-reduce of halves.
             "auto": ten dense steps, after which dense, bf16, 8 bits, 4 bits and lowrank are measured on the gradients
             and the link, and one is chosen: the most accurate whose step is within 10 % of the fastest (`choice`, and a
             line of the logger "deepreduce.torch"). That step takes some 20 exchanges, and memory for two copies of the
             gradients
    dense_below  parameters of fewer elements travel dense, exactly, in the same unit (Plan.exact). None: of plans that are
             flat none, of others those below 1000
    start    so many first steps are dense, by all-reduce
    flat     the parameters of one plan are one tensor (bucket=flat). Residuals still belong to parameters. None: those
             of a plan that sparsifies, which chooses among all of them then, or that keeps each value by itself (raw,
             half). A plan that quantises all elements (8bit, onebit, qsgd) has levels for each parameter: a large one
             would spoil those of the others
    frame_bytes  of parameters that travel together, at most, as one unit, from their last to their first; one that is
             larger travels alone. None: 4 MiB, so that backward hides the transfers of most; of transform=, whose factors
             are small, 25 MiB
    timeout  seconds that the end of a step waits for the other ranks. A process that is left without one of them may
             take twice the timeout to end, since gloo holds on to a collective for so long
    seed     of random numbers; the same on every rank. Step and rank are told to the library anyhow
    group    a process group; None: the model's
    control  "fit(target_ms=20)", say: chooses among plans by how long the ranks wait for transfers (experimental: docs/CONTROL.md).
             Then `plan` is a ladder, a list of such plans from the densest to the smallest
    nonfinite  what becomes of a step in which some rank's gradient is infinite or NaN. "error": PeerError on all ranks, if
             the plan's codecs cannot send it. "skip": the gradients of all ranks become NaN, residuals are what they were
             before the step, and nothing is raised: a GradScaler skips its step on all ranks, and lowers its scale;
             `stats().total.skipped` counts. It takes a look at each gradient, and a copy of the residuals in each step
    record   a path or a Recording: writes when the gradients become ready (docs/model.schema.json), less the hook's
             own time

    feedback=dgc(clip=…) bounds the norm of the whole gradient, as in the paper. Of several frames nothing is sent before the
    last bucket has come, then: encode and transfer overlap with no backward.

    Parameters are cut into units by their order and `frame_bytes`, not by DDP's buckets, which change after the first step
    and differ from run to run. So `state_dict` and `load_state_dict` give the very same training.

    All ranks get the same gradients, bit for bit, or all raise, in backward: PeerError (a rank could not encode: a NaN,
    say), CorruptFrame, with the rank in words and as `rank`; MissingRank (`ranks`) or ExchangeError. A rank that alone
    received damage raises CorruptFrame alone: the next step raises OutOfStep on all. Unsupported: compiled autograd.
    A sparse gradient (Embedding(sparse=True)) is sent as the rows that it has, by its plan's index and value codecs,
    whatever their number: its rows are selected already, and nothing of them is kept for later. The result is sparse, too.
    A parameter that no rank used keeps its gradient as it was (find_unused_parameters), and what its residual sent in that
    step is lost.
    """

    @argument("bypass", "dense_below")
    def __init__(
        self,
        plan: Union[Plans, Sequence[Plans]],
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
        self._frame_bytes = self._arguments["frame_bytes"] = frame_bytes
        self._auto = Auto() if auto else None
        self._start = max(start, STEPS) if auto else start
        self._named: List[Tuple[str, torch.Size, torch.dtype]] = []
        self._sparse: Set[str] = set()  # those of them whose gradients are sparse
        self._gradients: Dict[str, torch.Tensor] = {}  # of the step after which "auto" chooses
        self._record = Recording(record) if isinstance(record, (str, os.PathLike)) else record
        self._recorder: Optional[ModelRecorder] = None
        self._names: Dict[int, str] = {}
        # Of each bucket what identified it last, and how many tensors of which units it has.
        self._buckets: Dict[int, Tuple[Tuple[int, ...], List[Tuple[Unit, int]]]] = {}
        self._futures: List[Tuple[torch.futures.Future, torch.Tensor]] = []
        self._came = 0  # parameters of this step's buckets
        self._thread = threading.get_ident()  # that runs backward, or waits for it
        self._task, self._ended_well = -1, True  # the backward that came last

    def _begin_anew(self, **arguments: Any) -> None:
        DDPHook.__init__(self, **arguments)

    def register(self, model: torch.nn.Module) -> DDPHook:
        """Registers the hook with a DistributedDataParallel, and returns it. Once, and for one model."""
        if self._engine is not None:
            raise ArgumentError("this hook is registered with a model already; each model takes its own")
        if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
            raise ArgumentError(
                f"register takes a DistributedDataParallel, not a {type(model).__name__};"
                " of FSDP, ReduceScatter takes FSDP2 (fully_shard)"
            )
        self._group = model.process_group if self._group is None else self._group
        ignored = {id(each) for name, each in model.module.named_parameters() if name in model.parameters_to_ignore}
        parameters = [
            (name, each) for name, each in named_parameters_of(model) if each.requires_grad and id(each) not in ignored
        ]
        # DDP keeps them alive.
        self._names = {id(each): name for name, each in parameters}
        sparse = sparse_parameters(model.module)
        self._sparse = {name for name, each in parameters if id(each) in sparse}
        self._named = [(name, _laid_out(each), each.dtype) for name, each in reversed(parameters)]
        self._set_tensors(self._named, self._frame_bytes, self._sparse)
        self._tell_losses()
        self._advise(model.bucket_bytes_cap, sum(each.nbytes for _, each in parameters))
        model.register_comm_hook(self, _hook)
        if self._record is not None:
            self._recorder = record(model, self._record)
        if dist.get_rank(self._group) == 0:
            _log.info("%s", repr(self)[1:-1])
        return self

    def _tell_losses(self) -> None:
        """A line of rank 0's log, once, if a plan drops values for good."""
        lost = [plan for rules in self._rules for plan in rules.loses]
        if lost and self._engine is not None and self._engine.rank == 0:
            _log.warning(
                "`%s` drops what it does not send, for it has no feedback: most trainings want feedback=residual, which sends"
                " it later",
                lost[0],
            )

    def _advise(self, bucket_bytes: int, size: int) -> None:
        """A line of the log where DDP hands all gradients over at once, at the end of backward."""
        if self._engine is not None and self._engine.rank == 0 and UNIT_BYTES < size <= bucket_bytes:
            words = "one bucket of DDP (bucket_cap_mb=%g) has the whole gradient of %.1f MiB, so that backward hides no transfer; %s"
            advice = f"DistributedDataParallel(…, bucket_cap_mb={UNIT_BYTES >> 20}) hands it over in parts"
            _log.info(words, bucket_bytes / (1 << 20), size / (1 << 20), advice)

    def _take(self, bucket: dist.GradBucket) -> torch.futures.Future:
        begin, step = time.perf_counter(), self._now
        if not isinstance(bucket, dist.GradBucket):
            raise Unsupported(
                "the hook got no GradBucket: compiled autograd has none (optimize_ddp='python_reducer'); 'ddp_optimizer' has"
            )
        # (In the first step of a static graph with sparse gradients, torch numbers all buckets 0: none is the last.)
        self._came += len(bucket.parameters())
        spent, last, done = step.spent, bucket.is_last() or self._came == len(self._named), False
        try:
            buffer = bucket.buffer()
            self._watch(buffer.device.type == "cpu")
            future = torch.futures.Future(devices=[] if buffer.device.type == "cpu" else [buffer.device])
            self._futures.append((future, buffer))
            if self._plain:
                self._all_reduce(buffer)
            else:
                self._arrive(bucket, buffer)
            if self._auto is not None and self._number + 1 == self._start:
                self._gradients.update(zip((self._names[id(each)] for each in bucket.parameters()), bucket.gradients()))
            if last:
                self._complete()
                self._decide()
                self._choose()
                for each, result in self._futures:
                    each.set_result(result)
            done = True
            return future
        finally:
            if last or not done:
                self._futures.clear()
                self._came = 0
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
        """With "auto", at the end of a dense step: notes its times, and after the last one measures and chooses."""
        assert self._engine is not None
        if self._auto is None or self._auto.choice is not None:
            return
        self._auto.saw(self._now)
        if self._number + 1 == self._start:
            options = {name: self._arguments[name] for name in ("dense_below", "flat", "timeout", "seed")}
            options["frame_bytes"] = self._frame_bytes
            choice = self._auto.decide(self._gradients, self._engine, options)
            self._gradients.clear()
            if choice is None:
                self._start += 1
            else:
                self._adopt(choice)

    def _adopt(self, choice: Choice) -> None:
        """Goes on with the plan chosen."""
        assert self._auto is not None
        self._auto.choice = choice
        self._start = sys.maxsize if choice.plan is None else 0
        self._rules = [Rules(choice.plan, self._arguments["flat"])]
        if self._engine is not None:
            self._set_tensors(self._named, self._frame_bytes, self._sparse)

    def _residuals(self) -> SavedState:
        chosen = {"auto": self.choice._asdict()} if self.choice else {}
        return {**super()._residuals(), **chosen}

    def load_state_dict(self, state: SavedPart) -> None:
        chosen = next((part["auto"] for part in (state, *state.values()) if isinstance(part, Mapping) and "auto" in part), None)
        if self._auto is not None and chosen:
            self._adopt(Choice(**chosen))
        super().load_state_dict(state)

    def _watch(self, on_cpu: bool) -> None:
        """Learns of each backward in which thread it runs, and whether it ends well."""
        if on_cpu:  # (on a GPU the hook is called in a thread of autograd, and the caller waits)
            self._thread = threading.get_ident()
        task = torch._C._current_graph_task_id()
        if task in (-1, self._task):
            return
        self._task, self._ended_well = task, False

        def ended() -> None:
            self._ended_well = True

        torch.autograd.Variable._execution_engine.queue_callback(ended)

    def _arrive(self, bucket: dist.GradBucket, buffer: torch.Tensor) -> None:
        """Issues the units of which this bucket has the last tensors."""
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
        """Tells the units where the bucket's tensors are now; how many of which it has."""
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
            unit, position = self._where[name]
            begin = gradient.storage_offset() - buffer.storage_offset()
            unit.place(position, buffer[begin : begin + gradient.numel()])
            number = self._units.index(unit)
            counts[number] = counts.get(number, 0) + 1
        return [(self._units[number], counts[number]) for number in sorted(counts)]

    def _forget_places(self) -> None:
        self._buckets.clear()

    def _require_idle(self) -> None:
        """ArgumentError within a step, of which a backward may be only a part, and in another thread than its backward's. A
        step whose backward an exception has ended is given up: it goes back to the residuals."""
        if not self._futures:
            return
        if self._ended_well or torch._C._current_graph_task_id() != -1 or threading.get_ident() != self._thread:
            raise ArgumentError("a step is under way: its last bucket has not come yet")
        self._futures.clear()
        self._came = 0
        self._abort()
        self._end_step(False)

    def _complete(self) -> None:
        """The last bucket has come."""
        if self._plain:
            self._finish_dense()
            return
        came = [*self._pending, *self._held]
        absent = next((unit for unit in self._units if unit.arrived or unit not in came), None)
        if absent is not None:
            names = f"{absent.items[0].name} … {absent.items[-1].name}"
            raise ArgumentError(f"DDP gave no gradient of some of the {len(absent.items)} parameters {names}")
        self._issue_held()
        self._finish()


def _laid_out(parameter: torch.Tensor) -> torch.Size:
    """Its shape in the order of its memory, in which a bucket has its gradient: of a transposed matrix that of the other.
    DDP gives the gradient of a parameter with gaps in its memory row by row."""
    by_stride = sorted((each for each in zip(parameter.stride(), parameter.shape) if each[1] > 1), reverse=True)
    sizes = [size for _, size in by_stride]
    dense = [stride for stride, _ in by_stride] == [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    return torch.Size(sizes) if dense and not parameter.is_contiguous() else parameter.shape


def _hook(state: DDPHook, bucket):  # type: ignore[no-untyped-def]  # DDP looks at the names and the annotations
    return state._take(bucket)
