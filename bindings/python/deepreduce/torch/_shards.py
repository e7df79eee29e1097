"""deepreduce.torch: FSDP2's reduce-scatter."""

from __future__ import annotations

import ctypes
import itertools
import logging
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from .._adapters._losses import warn_of_losses
from .._native._call import timeout_of
from .._native._renamed import argument
from .._native._types import SavedPart, SavedState
from ..errors import ArgumentError, Error, OutOfStep, Unsupported
from ..plan import as_plan
from ..sender import Sender, TensorSpec
from ..tensor import State
from ._engine import HOST, Engine, Stats, Step
from ._figures import metrics_of
from ._on_device import DeviceShards, home_of, place_name, place_of, warn_of_copies
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
    owners, who merge them in rank order. The gradient is averaged or summed, as FSDP requests; other operations are
    Unsupported. Raises the errors of DDPHook, in backward.

    Where the gradient is on a GPU, the group has NCCL and the plan has a GPU path, all of it is enqueued on the current stream,
    and no call waits. An error of a call is then raised by the next one, before it encodes anything, or by `check`; until then
    the shard is 0 on all ranks. Elsewhere the call waits for the other ranks, so it does not overlap with backward; gradients
    on a GPU are copied to the CPU and back, and rank 0 warns once, with the reason.
    """

    _state_key = "states"
    _emulated: Optional[int] = None  # for tests: frames are made on an emulated device, with this seed

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
        self._plan = as_plan(exact_plan if plan is None else plan)
        self._dense_below, self._timeout, self._seed = dense_below, timeout_of(timeout), seed
        if self._plan.info.transforms:
            raise Unsupported(f"`{self._plan}`: ReduceScatter sends frames; shards have no matrices for transform=")
        if self._plan.stages["feedback"].parameters.get("clip"):
            raise Unsupported(
                f"`{self._plan}`: clip= needs the whole gradient, and a ReduceScatter sees one module's. Leave it out, and clip with"
                " torch.nn.utils.clip_grad_norm_ between backward and the optimizer's step"
            )
        if not dist.is_initialized() or dist.get_rank() == 0:
            warn_of_losses([self._plan])
        self._name = f"reduce-scatter {next(_numbers)}"
        self._sender: Sender = None  # type: ignore[assignment]
        self._sums = False  # rather than means
        self._shape: Tuple[int, torch.dtype] = (0, None)  # elements of a shard, type
        self._device = torch.device("cpu")  # of the gradient
        self._home: Optional[torch.device] = None  # the device on which frames are made; None: the CPU
        self._unsettled: Optional[int] = None  # there: the last step, whose errors are not known yet
        self._unit: Any = None  # DeviceShards or _HostShards
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
        step = Step()
        self._settle(step)
        begin, done = time.perf_counter(), False
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

    def check(self) -> None:
        """Where frames are made on a GPU, raises the error of the last call now, and waits for the GPU; else the next call
        raises it. Elsewhere it does nothing. Call it after the last step."""
        self._settle(self._total)

    def _settle(self, step: Step) -> None:
        """Raises the error of the last call, if the GPU made its frames. The call that finds it has not begun."""
        if self._unsettled is None:
            return
        number, self._unsettled = self._unsettled, None
        try:
            step.frame += self._sender._check_step(number).frames
        except Error:
            self._adopt_failures()
            raise

    def _adopt_failures(self) -> None:
        info = self._sender.info
        self._engine.failures, self._engine.failed = info.failures, info.failed  # type: ignore[union-attr]

    def _prepare(self, output: torch.Tensor, whole: torch.Tensor, group: Optional[dist.ProcessGroup], sums: bool) -> None:
        shape = (output.numel(), output.dtype)
        if self._engine is None:
            if output.device.type not in ("cpu", "cuda"):
                raise Unsupported(f"the gradient is on {output.device}; ReduceScatter supports the CPU and CUDA devices")
            engine = Engine(group, self._timeout)
            self._device, self._shape, self._sums = output.device, shape, sums
            self._make_unit(engine)
            counts = self._require_same(engine)
            self._engine = engine
            self._take_loaded()
            self._join(counts)
        if shape != self._shape or whole.numel() != output.numel() * self._engine.size:
            raise ArgumentError(
                f"a ReduceScatter serves one module: its shards have {self._shape[0]} elements of {self._shape[1]}, "
                f"not {shape[0]} of {shape[1]}; parameters of the module had no gradient in some step, or were frozen or"
                " unfrozen: shard them as modules of their own, or set a new ReduceScatter"
            )
        if {output.device, whole.device} != {self._device}:
            raise ArgumentError(
                f"a ReduceScatter serves one module: its gradient was on {self._device}, and now it is on {whole.device},"
                f" its shard on {output.device}; set a new ReduceScatter"
            )
        if sums != self._sums:
            raise Unsupported("a ReduceScatter has the operation of its first call; this one has another")

    def _make_unit(self, engine: Engine) -> None:
        """The sender, where the gradient is if nothing speaks against it."""
        self._home, why = home_of({self._device}, engine, self._emulated)
        if self._home is not None:
            try:
                self._sender = self._new_sender(engine)
            except Unsupported as error:
                self._home, why = None, str(error)
        if self._home is not None:
            self._unit = DeviceShards(self._sender, engine, self._home)
            return
        self._sender = self._new_sender(engine)
        self._unit = _HostShards(self._sender, engine, self._device)
        if why:
            warn_of_copies(engine, why)

    def _new_sender(self, engine: Engine) -> Sender:
        elements, dtype = self._shape
        return Sender(
            {_NAME: TensorSpec((elements * engine.size,), dtype)},
            self._plan,
            ranks=engine.size,
            rank=engine.rank,
            numbers=[engine.global_rank(rank) for rank in range(engine.size)],
            seed=self._seed,
            dense_below=self._dense_below,
            flat=False,
            scatter=True,
            sum=self._sums,
            _place=None if self._home is None else place_of(self._home, self._emulated),
        )

    def _require_same(self, engine: Engine) -> List[List[int]]:
        plan = self._sender.plan_of(_NAME)
        shards = {"shards": f"of {self._shape[0]} elements of {self._shape[1]}, by {plan}"}
        options = {"dense_below": self._dense_below, "seed": self._seed}
        effective = f"{plan} {self._seed}"
        if self._home is not None:
            effective += f", frames made on {self._place_name}"
        return require_same(None, [[str(self._plan)]], options, effective, shards, engine, self._timeout, self._counts(engine))

    def _exchange(self, output: torch.Tensor, whole: torch.Tensor, step: Step) -> None:
        deadline = time.monotonic() + self._timeout
        try:
            self._unit.exchange(f"{self._name}, step {self._number}", self._number, output, whole, deadline, step)
        except OutOfStep:
            self._adopt_failures()
            raise
        self._unsettled = None if self._home is None else self._number

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
        memory = 0 if self._sender is None else self._sender.info.states
        return Stats(self._ended, self._last, total, memory, self._place_name)

    def metrics(self) -> Dict[str, float]:
        """As DDPHook.metrics, of this module's gradient."""
        return metrics_of(self.stats(), [State._from_bytes(self._sender.read_state(_NAME))] if self._keeps else [])

    @property
    def _place_name(self) -> str:
        return place_name(self._home, self._emulated)

    @property
    def _keeps(self) -> bool:
        return self._sender is not None and self._sender.tensor(_NAME).state > 0

    def __repr__(self) -> str:
        words = "no tensors yet"
        if self._engine is not None:
            words = f"shards of {self._shape[0]} x {self._shape[1]} for {self._engine.size} ranks, frames of at most {self._unit.max_bytes} bytes"
        return f"<ReduceScatter {self._plan}; {words}>"

    def _residuals(self) -> SavedState:
        """The states of all shards as one; version 0.2 had a list with one for each."""
        return {"states": [torch.from_numpy(self._sender.read_state(_NAME))] if self._keeps else []}

    def _set_residuals(self, loaded: SavedPart, more: Sequence[SavedPart], scale: float, ranks: int) -> None:
        states = [state for state in loaded["states"] if state is not None]
        # (FSDP2 cuts each parameter into one part a rank: among other ranks a place has another element, whatever the size.)
        assert self._engine is not None
        if states and ranks != self._engine.size:
            raise ArgumentError(
                f"the residuals are of shards for {ranks} ranks, and {self._engine.size} ranks are here: shards have other elements."
                " Load state_for_new_rank(state) on all ranks: its residuals are zero"
            )
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


class _HostShards:
    """The unit of a ReduceScatter: encode, an all-to-all of slots, merge, on the CPU. A gradient elsewhere is copied to it."""

    def __init__(self, sender: Sender, engine: Engine, device: torch.device) -> None:
        info = sender.unit(0)
        self._sender, self._engine, self.max_bytes = sender, engine, info.bound
        self._is_here = device.type in HOST
        self._device = engine.slot_device(device)  # of what travels
        self._slots = torch.empty(info.slots, info.bound, dtype=torch.uint8)
        self._travel = Slots(engine, SenderRoom(sender, 0, "slot"))

    def exchange(self, what: str, number: int, output: torch.Tensor, whole: torch.Tensor, deadline: float, step: Step) -> None:
        begin, sender, place = time.perf_counter(), self._sender, ctypes.c_void_p * 1
        given = whole if self._is_here else whole.to("cpu", copy=True)
        made = output if self._is_here else torch.empty(output.shape, dtype=output.dtype)
        sender._place_at(0, 1, place(given.data_ptr()), place(made.data_ptr()))
        sent = sender._encode_at(0, number, self._slots.data_ptr(), self._slots.numel(), self._engine.rank)
        step.encode += time.perf_counter() - begin
        step.frame += sent.frames
        step.kept += sent.kept
        step.dense += whole.numel() * whole.element_size()
        self._travel.issue(what, self._slots, self._device, step)
        until_whole(self._travel, lambda slots: sender._merge_at(0, number, places(slots)), deadline, step)
        if made is not output:
            output.copy_(made)
