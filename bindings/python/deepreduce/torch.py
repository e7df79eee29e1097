"""deepreduce.torch: compressed gradients for torch.distributed. Imported on request, so that the package needs no torch.

    hook = deepreduce.torch.DDPHook("sparsify=topr(ratio=0.01) feedback=residual index=golomb value=log_quant")
    hook.register(ddp_model)                      # then train as ever

DDPHook        gradients of DistributedDataParallel
MissingRank, ExchangeError  what a broken exchange raises on all ranks that are left; PeerError and CorruptFrame name
               the rank, too

Everything is on the caller's thread: encode, one asynchronous collective, and at the end of backward a wait with a
deadline and a merge in rank order. gloo, CPU. Tensors on a GPU are refused.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Sequence, Tuple

import torch
import torch.distributed as dist

from ._torch_call import ExchangeError, MissingRank, Stats, Step, require_cpu
from ._torch_exchange import Exchange, OnePlan, Plans
from ._torch_unit import Unit
from .errors import ArgumentError, Unsupported

__all__ = ["DDPHook", "ExchangeError", "MissingRank", "OnePlan", "Plans", "Stats", "Step"]


class DDPHook(Exchange):
    """The communication hook of a DistributedDataParallel: the mean of the ranks' gradients, compressed.

    plan     a plan or its text; or {pattern of parameter names: plan}, or a list of such pairs, of which the first that
             matches counts (fnmatch). None, or no match: dense, exactly
    bypass   parameters of fewer elements travel dense, exactly, in the same frame
    start    so many first steps are dense, by all-reduce
    flat     the parameters of one plan are one tensor (bucket=flat), of up to DDP's bucket size: of ResNet-20 that
             takes half the bytes. Residuals still belong to parameters
    timeout  seconds that the end of a step waits for the other ranks
    seed     of random numbers; the same on every rank. Step and rank are told to the library anyhow
    group    a process group; None: the model's

    Parameters are cut into frames by their order and DDP's bucket_cap_mb, not by DDP's buckets, which change after the
    first step. So `state_dict` and `load_state_dict` give the very same training.

    All ranks get the same gradients, bit for bit, or all raise, in backward: PeerError (a rank could not encode: a NaN,
    say), CorruptFrame, with the rank in words and as `rank`; MissingRank (`ranks`) or ExchangeError. Unsupported:
    gradients on a GPU or sparse ones, and compiled autograd.
    A parameter that no rank used keeps its gradient as it was (find_unused_parameters), and what its residual sent in that
    step is lost.
    """

    def __init__(
        self,
        plan: Plans,
        *,
        bypass: int = 1000,
        start: int = 0,
        flat: bool = True,
        timeout: float = 60.0,
        seed: int = 0,
        group: Any = None,
    ) -> None:
        super().__init__(plan, bypass, start, flat, timeout, seed, group)
        self._names: Dict[int, str] = {}
        # Of each bucket what identified it last, and how many tensors of which units it has.
        self._buckets: Dict[int, Tuple[Tuple[int, ...], List[Tuple[Unit, int]]]] = {}
        self._futures: List[Tuple[Any, torch.Tensor]] = []
        self._dense: List[Any] = []

    def register(self, model: Any) -> DDPHook:
        """Registers the hook with a DistributedDataParallel, and returns it. Once, and for one model."""
        if self._engine is not None:
            raise ArgumentError("this hook is registered with a model already; each model takes its own")
        if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
            raise ArgumentError(f"register takes a DistributedDataParallel, not a {type(model).__name__}")
        self._group = model.process_group if self._group is None else self._group
        ignored = set(model.parameters_to_ignore)
        parameters = [
            (name.replace("_orig_mod.", ""), each)  # torch.compile's
            for name, each in model.module.named_parameters()
            if each.requires_grad and name not in ignored
        ]
        # DDP keeps them alive.
        self._names = {id(each): name for name, each in parameters}
        self._set_tensors(
            [(name, each.numel(), each.dtype) for name, each in reversed(parameters)], model.bucket_bytes_cap
        )
        model.register_comm_hook(self, _hook)
        return self

    def _take(self, bucket: Any) -> Any:
        begin, step = time.perf_counter(), self._now
        if not isinstance(bucket, dist.GradBucket):
            raise Unsupported(
                "the hook got no GradBucket: compiled autograd has none (optimize_ddp='python_reducer'); 'ddp_optimizer' has"
            )
        spent, last, done = step.spent, bucket.is_last(), False
        try:
            buffer, future = bucket.buffer(), torch.futures.Future()
            self._futures.append((future, buffer))
            if self._number < self._start:
                self._issue_dense(buffer)
            else:
                self._arrive(bucket, buffer)
            if last:
                self._finish_all()
                for each, result in self._futures:
                    each.set_result(result)
            done = True
            return future
        finally:
            if last or not done:
                self._futures.clear()
                self._dense.clear()
            if not done:
                self._abort()
            step.own += time.perf_counter() - begin - (step.spent - spent)
            if last or not done:
                self._end_step()

    def _arrive(self, bucket: Any, buffer: torch.Tensor) -> None:
        """Issues the units of which this bucket has the last tensors."""
        index, parameters = bucket.index(), bucket.parameters()
        mark = (buffer.data_ptr(), *map(id, parameters))
        known, units = self._buckets.get(index, ((), []))
        if mark != known:
            units = self._place(bucket, buffer, parameters)
            self._buckets[index] = (mark, units)
        for unit, tensors in units:
            unit.arrived += tensors
            if unit.arrived == len(unit.items):
                self._issue(unit)

    def _place(self, bucket: Any, buffer: torch.Tensor, parameters: Sequence[Any]) -> List[Tuple[Unit, int]]:
        """Tells the units where the bucket's tensors are now; how many of which it has."""
        require_cpu(buffer, "the gradient")
        counts: Dict[int, int] = {}
        for parameter, gradient in zip(parameters, bucket.gradients()):
            unit, position = self._where[self._names[id(parameter)]]
            begin = gradient.storage_offset() - buffer.storage_offset()
            unit.place(position, buffer[begin : begin + gradient.numel()])
            number = self._units.index(unit)
            counts[number] = counts.get(number, 0) + 1
        return [(self._units[number], counts[number]) for number in sorted(counts)]

    def _issue_dense(self, buffer: torch.Tensor) -> None:
        """As DDP does without a hook."""
        assert self._engine is not None
        engine, step, begin = self._engine, self._now, time.perf_counter()
        what = f"step {self._number}, bucket {len(self._dense)}"
        self._dense.append((what, engine.issue(what, dist.all_reduce, buffer.div_(engine.size))))
        size = buffer.numel() * buffer.element_size()
        step.dense += size
        step.sent += 2 * (engine.size - 1) * size // engine.size
        step.received += 2 * (engine.size - 1) * size // engine.size
        step.wait += time.perf_counter() - begin

    def _finish_all(self) -> None:
        if self._dense:
            assert self._engine is not None
            begin, deadline = time.perf_counter(), time.monotonic() + self._timeout
            for what, work in self._dense:
                self._engine.wait(what, work, deadline)
            self._now.wait += time.perf_counter() - begin
            return
        missing = [unit for unit in self._units if unit.arrived or unit not in self._pending]
        if missing:
            raise ArgumentError(f"DDP gave no gradient of some of {', '.join(item.name for item in missing[0].items)}")
        self._finish()


def _hook(state: DDPHook, bucket):  # type: ignore[no-untyped-def]  # DDP looks at the names and the annotations
    return state._take(bucket)
