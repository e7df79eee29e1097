"""deepreduce.torch: tensors of a loop, without DistributedDataParallel."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Dict, Iterable, Iterator, Mapping, Optional, Sequence, Set, Tuple, Union

import torch
import torch.distributed as dist

from .._native._call import unsigned
from .._native._renamed import argument
from .._native._types import SavedState
from ..errors import ArgumentError, CorruptFrame, PeerError
from ._engine import require_place
from ._exchange import Exchange
from ._rules import Plans

Tensors = Union[Sequence[torch.Tensor], Mapping[str, torch.Tensor]]


class AllReduce(Exchange):
    """The mean over ranks of a list of tensors, compressed, for loops without DistributedDataParallel. It stores the
    residuals of one list: create one AllReduce for each list of tensors.

    plan, dense_below, start, flat, frame_bytes, timeout, seed, group, control, nonfinite  as of DDPHook

    Raises the errors of DDPHook. After an error the tensors are undefined, and the values sent are added back to the
    residuals. A call whose tensors are refused (they differ from the first call's in type, shape or number, or share
    memory) sends nothing and is not a step: the other ranks wait for this rank's next call, for at most `timeout`.
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
    ) -> None:
        super().__init__(plan, dense_below, start, flat, timeout, seed, group, control, nonfinite)
        self._frame_bytes = self._arguments["frame_bytes"] = None if frame_bytes is None else unsigned(frame_bytes, "frame_bytes")
        self._shapes: Dict[str, Tuple[torch.Size, torch.dtype]] = {}
        self._at: Dict[str, int] = {}
        self._sparse: Set[str] = set()
        self._started = False  # and not finished or canceled

    def _begin_anew(self, **arguments: Any) -> None:
        AllReduce.__init__(self, **arguments)

    def __getstate__(self) -> SavedState:
        if self._group is not None:
            raise ArgumentError("an AllReduce with a group cannot be copied: create one for the copy's group and load state_dict() there")
        return super().__getstate__()

    def __call__(self, tensors: Tensors) -> None:
        """Replaces each tensor by its mean over the ranks, in place. All ranks call it, with the same shapes in every call.

        tensors  a list, or {name: tensor}: f32, f16 or bf16, contiguous, no two in the same memory. A tensor of
                 torch.sparse_coo with one sparse dimension becomes the rows of the mean, coalesced: the rows of all ranks
        """
        self.start(tensors)
        self.finish()

    def start(self, tensors: Tensors) -> None:
        """The first half of a call: encodes the tensors and starts to send them. Computation may overlap; do not change the
        tensors before `finish`. All ranks call both, in the same order relative to their other collectives."""
        if isinstance(tensors, torch.Tensor):
            raise ArgumentError(f"tensors is one tensor of shape {tuple(tensors.shape)}, not a list of tensors")
        if not isinstance(tensors, Iterable):
            raise ArgumentError(f"tensors is {tensors!r}, not a list of tensors")
        named = tensors if isinstance(tensors, Mapping) else {str(i): tensor for i, tensor in enumerate(tensors)}
        self._require_idle()
        self._check(named)
        self._started = True
        with self._timed():
            if self._plain:
                with torch.no_grad():
                    for tensor in map(named.__getitem__, self._shapes):  # (in the order of the first call, which all ranks have)
                        self._all_reduce(tensor.detach() if tensor.layout == torch.strided else tensor)
                return
            for name, tensor in named.items():
                if tensor.layout != torch.strided:
                    unit, position = self._where[name]
                    unit.place(position, tensor)
                elif tensor.data_ptr() != self._at.get(name):
                    unit, position = self._where[name]
                    unit.place(position, tensor.detach().view(-1))
                    self._at[name] = tensor.data_ptr()
            for unit in self._units:
                self._ready(unit)
            self._issue_held()

    def finish(self) -> None:
        """The second half: waits for what `start` sent, and writes the means to the tensors."""
        self._end("finish")
        with self._timed():
            if self._plain:
                self._finish_dense()
            else:
                self._finish()
            self._decide()
        self._end_step(True)

    def cancel(self) -> None:
        """Abandons what `start` sent: it is added back to the residuals, and the tensors are undefined. It waits for the other
        ranks, as `finish` does, and raises MissingRank, ExchangeError and OutOfStep. All ranks must cancel; otherwise the next
        call raises OutOfStep on all."""
        self._end("cancel")
        try:
            if self._plain:
                self._finish_dense()
            else:
                with contextlib.suppress(PeerError, CorruptFrame):
                    self._finish(drop=True)
        finally:
            self._abort()
            self._end_step(False)

    def _require_idle(self) -> None:
        if self._started:
            raise ArgumentError("a step is under way: finish or cancel it first")

    def _end(self, half: str) -> None:
        if not self._started:
            raise ArgumentError(f"{half} without start")
        self._started = False

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """Measures half of a step. An error aborts the step."""
        begin, step, before, done = time.perf_counter(), self._now, self._now.spent, False
        try:
            yield
            done = True
        finally:
            if not done:
                self._started = False
                self._abort()
            step.own += time.perf_counter() - begin - (step.spent - before)
            if not done:
                self._end_step(False)

    def _forget_places(self) -> None:
        self._at.clear()

    def _check(self, named: Mapping[str, torch.Tensor]) -> None:
        """ArgumentError for what is not a tensor, for tensors that share memory, and for other tensors than the first call's."""
        for name, tensor in named.items():
            require_place(tensor, f"tensor {name}", rows=True)
            if tensor.layout == torch.strided and not tensor.is_contiguous():
                raise ArgumentError(f"tensor {name} is not contiguous: its mean cannot be written in place")
        sparse = {name for name, tensor in named.items() if tensor.layout != torch.strided}
        memory = [(str(name), tensor._values() if name in sparse else tensor) for name, tensor in named.items()]
        spans = sorted((part.data_ptr(), part.nbytes, name) for name, part in memory if part.numel())
        for (at, size, name), (then, _, other) in zip(spans, spans[1:]):
            if at + size > then:
                raise ArgumentError(f"tensors {name} and {other} have memory in common: pass it once (tied weights have one gradient)")
        # (Only a transform uses the shape; for other plans the size is enough.)
        of_matrices = any(rules.of_matrices for rules in self._rules)
        shapes = {
            name: (tensor.shape if of_matrices or name in sparse else torch.Size([tensor.numel()]), tensor.dtype)
            for name, tensor in named.items()
        }
        if self._engine is None:
            self._devices = {tensor.device for tensor in named.values()}
            self._set_tensors([(name, *shape) for name, shape in shapes.items()], self._frame_bytes, sparse)
            self._shapes, self._sparse = shapes, sparse
            self._warn_of_losses()
        elif sparse != self._sparse:
            names = sorted(map(str, sparse ^ self._sparse))
            raise ArgumentError(f"{', '.join(names)}: sparse in one call and dense in another; pass one kind in all calls, on all ranks")
        elif shapes != self._shapes:
            names = sorted({name for name, _ in shapes.items() ^ self._shapes.items()})
            raise ArgumentError(f"{', '.join(names)}: not the tensors of the first call, in number, size or type")
        elif self._home is not None:
            moved = next((name for name, tensor in named.items() if tensor.device not in self._devices), None)
            if moved is not None:
                (first,) = self._devices
                raise ArgumentError(f"tensor {moved} is on {named[moved].device}; frames are made on {first}, where all were in the first call")


class _OneCall(AllReduce):
    """An AllReduce without later steps, in which a feedback could send what this one drops."""

    def _warn_of_losses(self) -> None:
        pass


_calls = 0  # of all_reduce


@argument("bypass", "dense_below")
def all_reduce(tensors: Tensors, plan: Plans, group: Optional[dist.ProcessGroup] = None, **options: Any) -> None:
    """The mean over ranks of tensors, in place, once. It stores nothing between calls, so a plan with feedback is
    refused; use AllReduce. Each call draws other random numbers.

    tensors, plan, group  as of AllReduce
    options  those of AllReduce but `start`
    """
    global _calls
    once = _OneCall(plan, group=group, **options)
    if once.keeps:
        raise ArgumentError("the plan has feedback, which AllReduce stores from call to call; all_reduce does not")
    once._before = _calls  # (ranks may differ: a call may be refused on one of them, or be of other ranks)
    try:
        once(tensors)
        once.check()
    finally:
        _calls = max(_calls, once._number)
