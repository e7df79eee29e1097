"""deepreduce.torch: tensors of a loop, without DistributedDataParallel."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, Set, Tuple, Union

import torch
import torch.distributed as dist

from .._native._renamed import argument
from .._native._types import SavedState
from ..errors import ArgumentError
from ._engine import require_place
from ._exchange import Exchange
from ._rules import Plans

Tensors = Union[Sequence[torch.Tensor], Mapping[str, torch.Tensor]]


class AllReduce(Exchange):
    """The mean over ranks of a list of tensors, compressed, for loops without DistributedDataParallel. It keeps the
    residuals, so there is one for each list.

    plan, dense_below, start, flat, frame_bytes, timeout, seed, group, control, nonfinite  as of DDPHook

    Errors are DDPHook's; the tensors are undefined then, and what was sent goes back to the residuals.
    A call that is refused for its tensors (another type, shape or number than the first call's, memory given twice) sends
    nothing, and is no step: the other ranks wait for this rank's next call, `timeout` at most.
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
        self._frame_bytes = self._arguments["frame_bytes"] = frame_bytes
        self._shapes: Dict[str, Tuple[torch.Size, torch.dtype]] = {}
        self._at: Dict[str, int] = {}
        self._sparse: Set[str] = set()

    def _begin_anew(self, **arguments: Any) -> None:
        AllReduce.__init__(self, **arguments)

    def __getstate__(self) -> SavedState:
        if self._group is not None:
            raise ArgumentError("an AllReduce with a group is not copied: make one for the copy's group, which loads state_dict()")
        return super().__getstate__()

    def __call__(self, tensors: Tensors) -> None:
        """Makes each tensor the mean over the ranks, in place. All ranks call it, with the same shapes, each time.

        tensors  a list of them, or {name: tensor}: f32, f16 or bf16, contiguous, no two of the same memory. One of
                 torch.sparse_coo with one sparse dimension becomes the mean's rows, coalesced: those of all ranks
        """
        self.start(tensors)
        self.finish()

    def start(self, tensors: Tensors) -> None:
        """The first half of a call: encodes the tensors and sends them. Compute goes on meanwhile; until `finish` the tensors
        are to stay as they are. All ranks call both, in the same order among their collectives."""
        named = tensors if isinstance(tensors, Mapping) else {str(i): each for i, each in enumerate(tensors)}
        self._require_idle()
        self._check(named)
        with self._timed():
            if self._plain:
                with torch.no_grad():
                    for each in named.values():
                        self._all_reduce(each.detach() if each.layout == torch.strided else each)
                return
            for name, each in named.items():
                if each.layout != torch.strided:
                    unit, position = self._where[name]
                    unit.place(position, each)
                elif each.data_ptr() != self._at.get(name):
                    unit, position = self._where[name]
                    unit.place(position, each.detach().view(-1))
                    self._at[name] = each.data_ptr()
            for unit in self._units:
                self._ready(unit)
            self._issue_held()

    def finish(self) -> None:
        """The second half: waits for what `start` sent, and makes the tensors the mean."""
        with self._timed():
            if self._plain:
                self._finish_dense()
            else:
                self._finish()
            self._decide()
        self._end_step(True)

    def cancel(self) -> None:
        """Gives up what `start` sent: it goes back to the residuals. All ranks do, or the next call is OutOfStep on all."""
        try:
            self._finish_dense()  # (the engine writes to these)
        finally:
            self._abort()
        self._end_step(False)

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """Half of a step, which an error ends."""
        begin, step, before, done = time.perf_counter(), self._now, self._now.spent, False
        try:
            yield
            done = True
        finally:
            if not done:
                self._abort()
            step.own += time.perf_counter() - begin - (step.spent - before)
            if not done:
                self._end_step(False)

    def _forget_places(self) -> None:
        self._at.clear()

    def _check(self, named: Mapping[str, torch.Tensor]) -> None:
        """ArgumentError for what is no tensor, for memory that is given twice, and for other tensors than the first call's."""
        for name, each in named.items():
            require_place(each, f"tensor {name}", rows=True)
            if each.layout == torch.strided and not each.is_contiguous():
                raise ArgumentError(f"tensor {name} is not contiguous: its mean cannot be written where it lies")
        sparse = {name for name, each in named.items() if each.layout != torch.strided}
        memory = [(str(name), each._values() if name in sparse else each) for name, each in named.items()]
        spans = sorted((each.data_ptr(), each.nbytes, name) for name, each in memory if each.numel())
        for (at, size, name), (then, _, other) in zip(spans, spans[1:]):
            if at + size > then:
                raise ArgumentError(f"tensors {name} and {other} have memory in common: give it once (tied weights have one gradient)")
        # (Only a transform sees more of a shape than its size.)
        transforms = any(rules.transforms for rules in self._rules)
        shapes = {
            name: (each.shape if transforms or name in sparse else torch.Size([each.numel()]), each.dtype)
            for name, each in named.items()
        }
        if self._engine is None:
            self._set_tensors([(name, *shape) for name, shape in shapes.items()], self._frame_bytes, sparse)
            self._shapes, self._sparse = shapes, sparse
        elif sparse != self._sparse:
            names = sorted(map(str, sparse ^ self._sparse))
            raise ArgumentError(f"{', '.join(names)}: sparse in one call and dense in another; give one kind in all calls, on all ranks")
        elif shapes != self._shapes:
            names = sorted({name for name, _ in shapes.items() ^ self._shapes.items()})
            raise ArgumentError(f"{', '.join(names)}: not the tensors of the first call, in number, size or type")


@argument("bypass", "dense_below")
def all_reduce(tensors: Tensors, plan: Plans, group: Optional[dist.ProcessGroup] = None, **options: Any) -> None:
    """The mean over ranks of tensors, in place, once. What is kept from call to call is AllReduce's: a plan with
    feedback is refused here.

    tensors, plan, group  as of AllReduce
    options  those of AllReduce but `start`
    """
    once = AllReduce(plan, group=group, **options)
    if once.keeps:
        raise ArgumentError("the plan has feedback, which AllReduce keeps from call to call; all_reduce does not")
    once(tensors)
