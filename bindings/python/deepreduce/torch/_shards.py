"""deepreduce.torch: FSDP2's reduce-scatter."""

from __future__ import annotations

import itertools
import logging
import time
import zlib
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy
import torch
import torch.distributed as dist

from .._adapters._plan_beside import exact_beside
from ..batch import Batch
from ..errors import ArgumentError, CorruptFrame, Error, Unsupported
from ..merging import merge
from ..plan import as_plan
from ..tensor import State
from ._clip import clip_of
from ._engine import Engine, OutOfStep, Stats, Step, all_to_all
from ._figures import metrics_of
from ._heads import HEAD, read_heads, write_head
from ._rules import OnePlan, exact_plan
from ._saved import Saved, require_bytes
from ._slots import Room, of_one_size, rounded
from ._terms import require_same
from ._unit import decay_of

# Bytes of a slot before its frame: a head, the size of the largest frame that its sender sends, and that of this one.
_PREFIX = HEAD + 16
_numbers = itertools.count()
_log = logging.getLogger("deepreduce.torch")


class ReduceScatter(Saved):
    """The reduce-scatter of one module of FSDP2, compressed: `module.set_custom_reduce_scatter(ReduceScatter(plan))`
    after `fully_shard(module)`. Each module takes its own, made in the same order on all ranks.

    plan     a plan or its text; None: exact
    bypass   shards of fewer elements travel exactly
    timeout  seconds that it waits for the other ranks
    seed     of random numbers; the same on every rank
    nonfinite  "error"; the "skip" of DDPHook is of a whole gradient, and Unsupported here

    With feedback, all parameters of the module must get a gradient in each step. FSDP2 leaves out those that have none, and
    tells nobody: the others move up, and one gets the residual of another. Shard such parameters as modules of their own.

    Each rank encodes a frame for each shard and keeps its residual; one all-to-all of slots brings them to the shards'
    owners, who merge them in rank order. It waits where it is called, so nothing of it overlaps with backward.
    Raises what DDPHook raises, in backward. gloo, CPU. The gradient is averaged or summed, as FSDP asks; other
    operations are Unsupported.
    """

    _kept_as = "states"

    def __init__(
        self, plan: OnePlan, *, bypass: int = 1000, timeout: float = 60.0, seed: int = 0, nonfinite: str = "error"
    ) -> None:
        if nonfinite != "error":
            raise Unsupported(
                f"nonfinite={nonfinite!r}: a ReduceScatter sees one module's gradients; those of others have been exchanged, and"
                " their residuals changed, when one of them overflows. Train in bf16, or with a plan that sends what is not"
                " finite (value=raw)"
            )
        self._plan, self._bypass, self._timeout, self._seed = as_plan(plan or exact_plan), bypass, timeout, seed
        if self._plan.info.transforms:
            raise Unsupported(f"`{self._plan}`: ReduceScatter sends frames; shards have no matrices for transform=")
        if clip_of(self._plan):
            raise Unsupported(
                f"`{self._plan}`: clip= is of the whole gradient, and a ReduceScatter sees one module's. Leave it out, and clip with"
                " torch.nn.utils.clip_grad_norm_ between backward and the optimizer's step"
            )
        self._name = f"reduce-scatter {next(_numbers)}"
        self._digest = 0  # of what it sends
        self._returned: Optional[List[bytes]] = None  # frames that went back, of a step that others may have completed
        self._batch: Any = None
        self._states: List[Optional[State]] = []  # of the shards
        self._made: List[bytearray] = []
        self._sum: Any = None
        self._shape: Any = None  # elements of a shard, type
        self._room: Any = None  # of the slots to come
        self._ended = 0
        self._last, self._total = Step(), Step()

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """What FSDP asks for its buffers."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """output_tensor [d] becomes the sum or mean over ranks of their input_tensor[rank * d : (rank + 1) * d]."""
        if async_op:
            raise Unsupported("ReduceScatter waits where it is called; async_op=True is not supported")
        weight = {dist.ReduceOp.SUM: 1.0, dist.ReduceOp.AVG: 1 / dist.get_world_size(group)}.get(op)
        if weight is None:
            raise Unsupported(f"ReduceScatter takes the operations SUM and AVG, not {op}")
        self._prepare(output_tensor, input_tensor, group)
        begin, step, done = time.perf_counter(), Step(), False
        try:
            self._exchange(output_tensor.view(-1), input_tensor.view(-1), weight, step)
            done = True
        finally:
            step.own = time.perf_counter() - begin - step.spent
            self._last = step
            self._total.add(step)
            self._number += 1
            self._ended += 1
            self._engine.end_step(self._number - 1, done)  # type: ignore[union-attr]

    def _prepare(self, output: torch.Tensor, whole: torch.Tensor, group: Any) -> None:
        shape = (output.numel(), output.dtype)
        if self._engine is None:
            if output.device.type != "cpu":
                raise Unsupported(f"the gradient is on {output.device}; ReduceScatter takes gradients on the CPU")
            self._engine, self._shape = Engine(group, self._timeout), shape
            plan = exact_beside(self._plan) if output.numel() < self._bypass else self._plan
            self._takes_back, self._votes = plan.info.residual, plan.info.votes
            like = torch.empty(output.numel(), dtype=output.dtype)
            self._chosen, self._batch = plan, Batch(like, plan, frames=self._engine.size)
            self._states = [State(plan, like) if plan.info.feedback else None for _ in range(self._engine.size)]
            # Of each rank a frame; and the sum, which is rounded once.
            self._room = Room(_PREFIX + self._batch.bound, None if of_one_size(plan) else _PREFIX)
            self._made = [bytearray(self._batch.bound) for _ in range(self._engine.size)]
            self._sum = torch.empty(0 if output.dtype == torch.float32 else output.numel())
            self._digest = zlib.crc32(f"{self._shape} {plan}".encode())
            self._require_same()
            self._take_loaded()
        if shape != self._shape or whole.numel() != output.numel() * self._engine.size:
            raise ArgumentError(
                f"a ReduceScatter serves one module: its shards have {self._shape[0]} elements of {self._shape[1]}, "
                f"not {shape[0]} of {shape[1]}; parameters of the module had no gradient in some step, or were frozen or"
                " unfrozen: shard them as modules of their own, or set a new ReduceScatter"
            )

    def _require_same(self) -> None:
        engine, self._engine = self._engine, None  # (The next call asks again, if this raises.)
        assert engine is not None
        options, plan = {"bypass": self._bypass, "seed": self._seed}, self._chosen
        shards = {"shards": f"of {self._shape[0]} elements of {self._shape[1]}, by {plan}"}
        require_same(None, [[str(self._plan)]], options, f"{plan} {self._seed}", shards, engine, self._timeout)
        self._engine = engine

    def _exchange(self, output: torch.Tensor, whole: torch.Tensor, weight: float, step: Step) -> None:
        engine, begin = self._engine, time.perf_counter()
        assert engine is not None
        frames, sound = self._encode(whole.view(engine.size, -1))
        step.encode += time.perf_counter() - begin
        step.frame += sum(map(len, frames))
        step.dense += whole.numel() * whole.element_size()
        try:
            received = self._swap(engine, frames, step)
            self._returned = None  # ranks agree on all steps before
            begin = time.perf_counter()
            halves = self._sum.numel() > 0
            try:
                out = self._sum if halves else output
                self._batch.merge(received, out, [weight if not self._votes else 1.0] * engine.size, add=False, tag=self._number)
            except Error as error:
                raise engine.named(error) from None
            if halves:
                output.copy_(self._sum)
            step.merge += time.perf_counter() - begin
        except BaseException as error:
            if sound:
                self._give_back(frames)
            if isinstance(error, OutOfStep) and error.step is not None and dist.get_rank() in error.ranks:
                self._withdraw()
            elif sound and self._returned is None:
                self._returned = [bytes(each) for each in frames]
            raise

    def _withdraw(self) -> None:
        """Others have completed the step whose frames went back: the residuals are as if this rank had, too."""
        for frame, state in zip(self._returned or [], self._states):
            if state is not None and self._takes_back:
                merge([frame], weights=[-decay_of(self._chosen)], out=state.residual)
        self._returned = None

    def _give_back(self, frames: Sequence[Any]) -> None:
        """What the shards' frames hold goes back to the residuals, as far as it can: the error of the step is on its way."""
        for i, (frame, state) in enumerate(zip(frames, self._states)):
            if state is not None and self._takes_back:
                try:
                    merge([frame], out=state.residual)
                except Error as error:
                    told = "%s, step %d: what was sent of shard %d is lost, it cannot go back to the residual: %s"
                    _log.warning(told, self._name, self._number, i, error)

    def _encode(self, shards: torch.Tensor) -> Tuple[List[Any], bool]:
        """A frame for each rank; if one of them cannot be encoded, for all the one that says so, and False."""
        assert self._engine is not None
        rank, frames = self._engine.rank, []
        for i, shard in enumerate(shards):
            step = self._number
            options = {"step": step, "seed": self._seed, "private_seed": rank, "tag": step, "key": i + 1}
            try:
                frames.append(self._batch.encode(shard, self._made[i], state=self._states[i], **options))
            except Error:
                told = self._batch.encode(shard, self._made[i], state=self._states[i], status_frame=True, **options)
                self._give_back(frames)
                return [told] * len(shards), False
        return frames, True

    def _swap(self, engine: Engine, frames: List[Any], step: Step) -> List[Any]:
        """The frames of all ranks for this one. The largest that any rank sends is known to all, as in Unit."""
        what, n, least = f"{self._name}, step {self._number}", engine.size, rounded(_PREFIX)
        most, begin, deadline = max(map(len, frames)), time.perf_counter(), time.monotonic() + self._timeout
        slot = self._room.size
        while True:
            send, receive = (torch.zeros(n * slot, dtype=torch.uint8) for _ in range(2))
            for row, frame in zip(send.numpy().reshape(n, slot), frames):
                row[HEAD:_PREFIX].view(numpy.uint64)[:] = most, len(frame)
                write_head(row[:_PREFIX], engine, self._digest << 32 | self._number & 0xFFFFFFFF)
                part = numpy.frombuffer(frame, numpy.uint8)[: slot - _PREFIX]
                row[_PREFIX : _PREFIX + part.size] = part
            work = engine.issue(what, all_to_all, receive, send)
            engine.wait(what, work, deadline)
            step.sent += (n - 1) * slot
            step.received += (n - 1) * slot
            rows = receive.numpy().reshape(n, slot)
            read_heads(rows[:, :_PREFIX].copy(), engine)
            told = rows[:, HEAD:_PREFIX].copy().view(numpy.uint64).tolist()
            for rank, (largest, size) in enumerate(told):
                if not size <= largest <= self._batch.bound:
                    words = f"a frame of {size} bytes, more than the {self._batch.bound} of any"
                    raise engine.named(CorruptFrame(words, frame=rank))
            most_of_all = max(largest for largest, _ in told)
            if _PREFIX + most_of_all <= slot:
                break
            step.repeats += slot > least  # the first exchange is of sizes, on purpose
            slot = rounded(_PREFIX + most_of_all)
        self._room.took(_PREFIX + most_of_all)
        step.wait += time.perf_counter() - begin
        return [row[_PREFIX : _PREFIX + size] for row, (_, size) in zip(rows, told)]

    def stats(self) -> Stats:
        """What the calls took: the last, and all together. `kept` is not counted."""
        total = Step()
        total.add(self._total)
        return Stats(self._ended, self._last, total, sum(each.size for each in self._states if each is not None))

    def metrics(self) -> Dict[str, float]:
        """As DDPHook.metrics, of this module's gradient."""
        return metrics_of(self.stats(), [each for each in self._states if each is not None])

    def __repr__(self) -> str:
        words = "no tensors yet"
        if self._engine is not None:
            words = f"shards of {self._shape[0]} x {self._shape[1]} for {self._engine.size} ranks, frames of at most {self._batch.bound} bytes"
        return f"<ReduceScatter {self._plan}; {words}>"

    def _residuals(self) -> Dict[str, Any]:
        """By shard."""
        return {"states": [None if each is None else torch.from_numpy(each.memory.copy()) for each in self._states]}

    def _set_residuals(self, loaded: Mapping[str, Any], more: Sequence[Mapping[str, Any]], scale: float) -> None:
        # (Of another number of ranks the shards have other sizes: they are refused.)
        states = loaded["states"] or [None] * len(self._states)
        for i, each in enumerate(states):
            if each is not None:
                require_bytes(f"shard {i}", each)
        sizes = [None if each is None else each.numel() for each in states]
        wanted = [None if each is None else each.size for each in self._states]
        if loaded["states"] and sizes != wanted:
            raise ArgumentError(f"the residuals have {sizes} bytes, {wanted} are wanted here")
        for saved in states:
            if saved is not None:
                State.from_bytes(saved.cpu().numpy()).check(self._chosen, torch.empty(self._shape[0], dtype=self._shape[1]))
        for state, saved in zip(self._states, states):
            if state is not None:
                state.memory[:] = 0 if saved is None else saved.cpu().numpy()
