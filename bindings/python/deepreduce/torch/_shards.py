"""deepreduce.torch: FSDP2's reduce-scatter."""

from __future__ import annotations

import ctypes
import itertools
import logging
import time
from typing import Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from .._native._renamed import argument
from .._native._types import Options, SavedPart, SavedState
from ..errors import ArgumentError, OutOfStep, Unsupported
from ..plan import as_plan
from ..sender import Sender, TensorSpec
from ..tensor import State
from ._engine import Engine, Stats, Step
from ._figures import metrics_of
from ._rules import OnePlan, exact_plan
from ._saved import Saved, require_bytes
from ._slots import Slots
from ._terms import require_same
from ._unit import SenderRoom, places, until_whole

_NAME = "the gradient"
_numbers = itertools.count()
_log = logging.getLogger("deepreduce.torch")


class ReduceScatter(Saved):
    """The reduce-scatter of one module of FSDP2, compressed: `module.set_custom_reduce_scatter(ReduceScatter(plan))`
    after `fully_shard(module)`. Create one for each module, in the same order on all ranks.

    plan     a plan or its text; None: exact
    dense_below  shards of fewer elements are sent exactly
    timeout  seconds that it waits for the other ranks
    seed     of random numbers; the same on every rank
    nonfinite  "error". The "skip" of DDPHook needs the whole gradient, and is Unsupported here

    With feedback, all parameters of the module must receive a gradient in each step. FSDP2 omits parameters without one and
    does not report it. The others then shift, and one receives the residual of another. Shard such parameters as modules of
    their own.

    Each rank encodes a frame for each shard and stores its residual. One all-to-all of slots sends the frames to the shards'
    owners, who merge them in rank order. The call is synchronous, so it does not overlap with backward. Raises the errors of
    DDPHook, in backward. For gloo, on the CPU. The gradient is averaged or summed, as FSDP requests; other operations are
    Unsupported.
    """

    _state_key = "states"

    @argument("bypass", "dense_below")
    def __init__(
        self, plan: OnePlan, *, dense_below: int = 1000, timeout: float = 60.0, seed: int = 0, nonfinite: str = "error"
    ) -> None:
        if nonfinite != "error":
            raise Unsupported(
                f"nonfinite={nonfinite!r}: a ReduceScatter sees one module's gradients; those of others have been exchanged, and"
                " their residuals changed, when one of them overflows. Train in bf16, or with a plan that sends what is not"
                " finite (value=raw)"
            )
        self._plan, self._dense_below, self._timeout, self._seed = as_plan(plan or exact_plan), dense_below, timeout, seed
        if self._plan.info.transforms:
            raise Unsupported(f"`{self._plan}`: ReduceScatter sends frames; shards have no matrices for transform=")
        if self._plan.stages["feedback"].parameters.get("clip"):
            raise Unsupported(
                f"`{self._plan}`: clip= needs the whole gradient, and a ReduceScatter sees one module's. Leave it out, and clip with"
                " torch.nn.utils.clip_grad_norm_ between backward and the optimizer's step"
            )
        self._name = f"reduce-scatter {next(_numbers)}"
        self._sender: Sender = None  # type: ignore[assignment]
        self._sums = False  # rather than means
        self._shape: Tuple[int, torch.dtype] = (0, None)  # elements of a shard, type
        self._slots: torch.Tensor = None  # [ranks, bound] uint8
        self._travel: Slots = None  # type: ignore[assignment]
        self._ended = 0
        self._last, self._total = Step(), Step()

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocates the buffers of FSDP."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Optional[dist.ProcessGroup], op: dist.ReduceOp, async_op: bool = False
    ) -> None:
        """Writes to output_tensor [d] the sum or mean over ranks of input_tensor[rank * d : (rank + 1) * d]."""
        if async_op:
            raise Unsupported("ReduceScatter waits where it is called; async_op=True is not supported")
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise Unsupported(f"ReduceScatter supports the operations SUM and AVG, not {op}")
        self._prepare(output_tensor, input_tensor, group, op == dist.ReduceOp.SUM)
        begin, step, done = time.perf_counter(), Step(), False
        try:
            self._exchange(output_tensor.view(-1), input_tensor.view(-1), step)
            done = True
        finally:
            if not done:
                self._take_back()
            step.own = time.perf_counter() - begin - step.spent
            self._last = step
            self._total.add(step)
            self._number += 1
            self._ended += 1
            assert self._engine is not None
            self._engine.end_step(self._number - 1, done)
            if not done:
                self._resume()

    def _prepare(self, output: torch.Tensor, whole: torch.Tensor, group: Optional[dist.ProcessGroup], sums: bool) -> None:
        shape = (output.numel(), output.dtype)
        if self._engine is None:
            if output.device.type != "cpu":
                raise Unsupported(f"the gradient is on {output.device}; ReduceScatter supports gradients on the CPU")
            engine = Engine(group, self._timeout)
            numbers = [engine.global_rank(rank) for rank in range(engine.size)]
            specs = {_NAME: TensorSpec((output.numel() * engine.size,), output.dtype)}
            ranks: Options = {"ranks": engine.size, "rank": engine.rank, "numbers": numbers}
            options: Options = {"seed": self._seed, "dense_below": self._dense_below, "flat": False}
            self._sender = Sender(specs, self._plan, **ranks, **options, scatter=True, sum=sums)
            self._shape, self._sums = shape, sums
            unit = self._sender.unit(0)
            self._slots = torch.empty(unit.slots, unit.bound, dtype=torch.uint8)
            self._travel = Slots(engine, SenderRoom(self._sender, 0, "slot"))
            self._require_same(engine)
            self._engine = engine
            self._take_loaded()
        if shape != self._shape or whole.numel() != output.numel() * self._engine.size:
            raise ArgumentError(
                f"a ReduceScatter serves one module: its shards have {self._shape[0]} elements of {self._shape[1]}, "
                f"not {shape[0]} of {shape[1]}; parameters of the module had no gradient in some step, or were frozen or"
                " unfrozen: shard them as modules of their own, or set a new ReduceScatter"
            )
        if sums != self._sums:
            raise Unsupported("a ReduceScatter has the operation of its first call; this one has another")

    def _require_same(self, engine: Engine) -> None:
        plan = self._sender.plan_of(_NAME)
        shards = {"shards": f"of {self._shape[0]} elements of {self._shape[1]}, by {plan}"}
        options = {"dense_below": self._dense_below, "seed": self._seed}
        require_same(None, [[str(self._plan)]], options, f"{plan} {self._seed}", shards, engine, self._timeout)

    def _exchange(self, output: torch.Tensor, whole: torch.Tensor, step: Step) -> None:
        engine, sender, number, deadline = self._engine, self._sender, self._number, time.monotonic() + self._timeout
        assert engine is not None
        begin = time.perf_counter()
        place = ctypes.c_void_p * 1
        sender._place_at(0, 1, place(whole.data_ptr()), place(output.data_ptr()))
        sent = sender._encode_at(0, number, self._slots.data_ptr(), self._slots.numel(), engine.rank)
        step.encode += time.perf_counter() - begin
        step.frame += sent.frames
        step.kept += sent.kept
        step.dense += whole.numel() * whole.element_size()
        self._travel.issue(f"{self._name}, step {number}", self._slots, None, step)
        try:
            until_whole(self._travel, lambda slots: sender._merge_at(0, number, places(slots)), deadline, step)
        except OutOfStep:
            engine.failures, engine.failed = sender.info.failures, sender.info.failed
            raise

    def _resume(self) -> None:
        if self._engine is not None:
            self._sender.resume(self._engine.failures, self._engine.failed)

    def _take_back(self) -> None:
        """Adds what was sent back to the residuals, as far as possible. Raises nothing: the error of the step is being raised."""
        try:
            self._sender.take_back(self._number)
        except Exception as error:
            _log.warning("%s: %s", self._name, error)

    def stats(self) -> Stats:
        """Times and bytes of the calls: of the last, and the sum of all."""
        total = Step()
        total.add(self._total)
        return Stats(self._ended, self._last, total, 0 if self._sender is None else self._sender.info.states)

    def metrics(self) -> Dict[str, float]:
        """As DDPHook.metrics, of this module's gradient."""
        return metrics_of(self.stats(), [State._from_bytes(self._sender.read_state(_NAME))] if self._keeps else [])

    @property
    def _keeps(self) -> bool:
        return self._sender is not None and self._sender.tensor(_NAME).state > 0

    def __repr__(self) -> str:
        words = "no tensors yet"
        if self._engine is not None:
            words = f"shards of {self._shape[0]} x {self._shape[1]} for {self._engine.size} ranks, frames of at most {self._slots.shape[1]} bytes"
        return f"<ReduceScatter {self._plan}; {words}>"

    def _residuals(self) -> SavedState:
        """The states of all shards as one; version 0.2 had a list with one for each."""
        return {"states": [torch.from_numpy(self._sender.read_state(_NAME))] if self._keeps else []}

    def _set_residuals(self, loaded: SavedPart, more: Sequence[SavedPart], scale: float) -> None:
        # (With another number of ranks shards have other sizes: such states are refused.)
        states = [state for state in loaded["states"] if state is not None]
        for i, state in enumerate(states):
            require_bytes(f"shard {i}", state)
        size = self._sender.tensor(_NAME).state
        plan = self._sender.plan_of(_NAME)
        whole = torch.zeros(size, dtype=torch.uint8).numpy()
        if len(states) == 1:
            whole = states[0].cpu().numpy()
        elif states and plan.info.feedback:
            whole = self._joined([State._from_bytes(state.cpu().numpy()) for state in states]).memory
        if whole.size != size:
            sizes = [state.numel() for state in states]
            raise ArgumentError(f"the residuals have {sizes} bytes, {size} are needed here")
        if size:
            self._sender.write_state(_NAME, "states", whole)
            if scale != 1:
                self._sender.scale(scale)

    def _joined(self, shards: List[State]) -> State:
        """One state of all shards, from states that were saved one for each shard."""
        elements, dtype = self._shape
        assert self._engine is not None
        if len(shards) != self._engine.size:
            raise ArgumentError(f"the state has {len(shards)} shards, and {self._engine.size} are needed here")
        plan = self._sender.plan_of(_NAME)
        like = torch.empty(elements, dtype=dtype)
        joined = State.from_residual(torch.empty(elements * len(shards), dtype=dtype), plan)
        for i, shard in enumerate(shards):
            shard.check(like, plan)
            joined.copy_from(shard, at=i * elements, elements=elements)
        return joined
