"""Outer: the outer loop of a worker."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

import torch

from ..errors import ArgumentError, Error
from ..torch import Plans
from ..torch._rules import Rules
from ._agreed import Agreed, Local, MakeOptimizer, Model, Tensors, require_same_tensors, sgd
from ._folder import Folder
from ._folder_exchange import FolderExchange
from ._group import GroupExchange
from ._round import OuterInfo, Round

_VERSION = 1


class Outer:
    """The outer loop of a worker: it trains `every` steps alone, then all workers exchange what their weights moved, and go on
    from the same weights, bit for bit.

    model      an nn.Module; or its parameters, as {name: tensor} or in order
    plan       of what weights moved (the pseudo-gradient): as of deepreduce.torch.DDPHook. None: all of it, as float32
    every      inner steps of a round
    optimizer  makes the outer optimizer of a list of tensors: a torch.optim class, or a function. None: of plans that sparsify or
               transform SGD with rate 1 and no momentum, of all others with 0.7 and Nesterov momentum 0.9 (DiLoCo)
    group      a process group; None: the default one. Or a Folder
    overlap    inner steps that go on while a round travels; what it agreed is applied after them
    fragments  in how many parts the weights travel, one after the other: each part once in `every` steps
    dense_below, flat, seed  as of DDPHook
    timeout    seconds that a rank of a group waits for the others

    At the beginning all workers get the weights and buffers of the group's first rank, or those that the Folder has. Inner
    optimizers stay each worker's own. Buffers of floating point become the workers' mean in each round (with fragments: in the
    last of each turn), sent exactly; all others, such as counters, become those of the first worker. Buffers that are not
    saved (persistent=False) are left alone. A gradient scaler or clipping belongs to the inner steps.

    optimizer  the outer optimizer, for a schedule of its rate
    info       an OuterInfo

    Raises ArgumentError, the same on all ranks, if ranks have another model, plan or option: it names the rank and what differs.

    >>> outer = deepreduce.outer.Outer(model, plan, every=30)    # doctest: +SKIP
    >>> for batch in data:                                       # doctest: +SKIP
    ...     loss(model, batch).backward()
    ...     inner.step()
    ...     inner.zero_grad()
    ...     outer.step()
    """

    def __init__(
        self,
        model: Model,
        plan: Plans,
        *,
        every: int,
        optimizer: Optional[MakeOptimizer] = None,
        group: Union[Folder, Any] = None,
        overlap: int = 0,
        fragments: int = 1,
        dense_below: Optional[int] = None,
        flat: Optional[bool] = None,
        seed: int = 0,
        timeout: float = 600.0,
    ) -> None:
        self._local = Local(model)
        self._fragments = self._local.fragments(fragments)
        if every < 1 or every % fragments:
            raise ArgumentError(f"every is {every}: a multiple of fragments, {fragments}, at least 1")
        self._period, self._overlap = every // fragments, overlap
        if not 0 <= overlap < self._period:
            raise ArgumentError(f"overlap is {overlap}, not from 0 to below {self._period}, the inner steps from a round to the next")
        infos = [each.info for _, each in Rules(plan, flat).pairs]
        sparse = any(info.sparsifies or info.transforms for info in infos)
        self._agreed = Agreed(self._local, optimizer or (sgd(1.0, 0.0) if sparse else sgd(0.7, 0.9)))
        terms = {"every": every, "overlap": overlap, "fragments": fragments, "optimizer": self._agreed.describe()}
        options: Dict[str, Any] = {"dense_below": dense_below, "flat": flat, "seed": seed}
        self._exchange: Union[FolderExchange, GroupExchange]
        self._round = 0  # the next to send
        if isinstance(group, Folder):
            self._exchange = FolderExchange(self._local, self._agreed, self._fragments, plan, terms, folder=group, **options)
            self._round = self._exchange.round
        else:
            where = {"group": group, "timeout": timeout}
            self._exchange = GroupExchange(self._local, self._agreed, self._fragments, plan, terms, **where, **options)
        self._steps, self._since, self._weight = 0, 0, 0.0
        self._sent: Optional[Tensors] = None  # weights and buffers as they were when a round was sent that has not been applied
        self._shift: Tensors = {}  # what others have moved since, of weights that it was not about
        self._moves: List[Tensors] = [{} for _ in self._fragments]
        self._last: Optional[Round] = None
        self._totals = [0, 0, 0.0]
        self._copy_all()

    # ---- Steps ----

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The outer optimizer. Its rate must be the same on all workers in every round."""
        return self._agreed.optimizer

    @property
    def info(self) -> OuterInfo:
        """What has been done."""
        dense = 4 * sum(self._local.weights[name].numel() for name in self._fragments[0])
        sent, received, waited = self._totals
        return OuterInfo(self._steps, self._round, self._last, int(sent), int(received), waited, dense)

    def __repr__(self) -> str:
        return f"<Outer round {self._round}, inner step {self._since} of {self._period}>"

    def step(self, weight: float = 1.0) -> bool:
        """Call it after each step of the inner optimizer. It does something in the last of a round: then it returns True, and the
        weights have changed.

        weight  of this step in the mean over workers, if they differ: the tokens of its batch, say

        If a round of a group fails, all ranks raise: PeerError where a rank's weights are not finite, MissingRank, OutOfStep. Then
        the weights are the agreed ones, the round is as if it had moved nothing, and what plans with feedback keep is not lost.
        """
        if not (math.isfinite(weight) and weight > 0):
            raise ArgumentError(f"weight is {weight}, no positive number")
        self._steps += 1
        self._since += 1
        self._weight += weight
        landed = False
        if self._sent is not None and self._since >= self._overlap:
            landed = self._land()
        if self._since >= self._period:
            self._send()
            landed = self._land() if not self._overlap else landed
        return landed

    def _part(self, number: int) -> List[str]:
        return self._fragments[number % len(self._fragments)]

    def _with_buffers(self, number: int) -> bool:
        return number % len(self._fragments) == len(self._fragments) - 1

    def _send(self) -> None:
        """What has been moved since the agreed weights, which are those of the model before these steps."""
        local, agreed, number = self._local, self._agreed, self._round
        moves, means, copies = self._moves[number % len(self._fragments)], {}, {}
        with torch.no_grad():
            for name in self._part(number):
                moves[name] = _moved(agreed.weights[name], local.weights[name], moves.get(name))
            if self._with_buffers(number):
                means = {name: _moved(agreed.means[name], each, None) for name, each in local.means.items()}
                copies = {name: each.detach().clone() for name, each in local.copies.items()}
            self._sent = {}
            if self._overlap:
                self._sent = {name: local.weights[name].detach().clone() for name in self._part(number)}
                self._sent.update({name: local.means[name].detach().clone() for name in means})
            weight, self._weight = self._weight / self._since, 0.0
            if weight != 1:
                for each in moves.values():
                    each.mul_(weight)
        self._since = 0
        try:
            self._exchange.start(number, self._steps, moves, means, copies, weight)
        except Error:
            self._round += 1
            self._copy_back(number)
            raise
        self._is_agreed = False

    _is_agreed = True  # the round that was sent is in the agreed weights, though not yet in the model's

    def _agree(self) -> None:
        """The round that was sent becomes part of the agreed weights."""
        if self._is_agreed or self._sent is None:
            return
        number, others = self._round, {}
        part = set(self._part(number)) | (set(self._local.means) if self._with_buffers(number) else set())

        def before(names: Sequence[str]) -> None:
            """Of a folder: these are about to change, too, since this worker is behind."""
            for name in names:
                if name not in part and name not in others:
                    others[name] = {**self._agreed.weights, **self._agreed.means}[name].clone()

        self._is_agreed = True
        try:
            done = self._exchange.finish(before)
        except Error:
            self._round += 1
            self._copy_back(number)
            raise
        now = {**self._agreed.weights, **self._agreed.means}
        self._shift = {name: now[name] - each for name, each in others.items()}
        self._last = done
        self._totals = [total + new for total, new in zip(self._totals, done[-3:])]
        self._round = self._exchange.round if isinstance(self._exchange, FolderExchange) else number + 1
        self._landing = number

    _landing = 0

    def _land(self) -> bool:
        """The model's weights become the agreed ones, plus what it has moved since the round was sent."""
        self._agree()
        self._copy_back(self._landing)
        return True

    def _copy_back(self, number: int) -> None:
        local, agreed, sent = self._local, self._agreed, self._sent or {}
        with torch.no_grad():
            targets = [(local.weights[name], agreed.weights[name], sent.get(name)) for name in self._part(number)]
            if self._with_buffers(number):
                targets += [(each, agreed.means[name], sent.get(name)) for name, each in local.means.items()]
                for name, each in local.copies.items():
                    each.copy_(agreed.copies[name])
            for each, new, then in targets:
                if then is None:
                    each.copy_(new)
                else:  # in float32, so that nothing is rounded twice
                    each.copy_(new + (each.float() - then.float()))
            both = {**local.weights, **local.means}
            for name, moved in self._shift.items():
                both[name].copy_(both[name].float() + moved)
        self._sent, self._shift = None, {}

    def _copy_all(self) -> None:
        agreed, local = self._agreed, self._local
        with torch.no_grad():
            for here, there in ((local.weights, agreed.weights), (local.means, agreed.means), (local.copies, agreed.copies)):
                for name, each in here.items():
                    each.copy_(there[name])

    # ---- Checkpoints ----

    def state_dict(self) -> Dict[str, Any]:
        """What this worker saves beside the model and the inner optimizer, whose states it does not have: the agreed weights, the
        outer optimizer, residuals, inner steps. Each worker saves its own, of the same step. A training that goes on from it is
        the same, bit for bit. With overlap it waits for the round that travels."""
        self._agree()
        flight = None if self._sent is None else {"number": self._landing, "sent": dict(self._sent), "shift": dict(self._shift)}
        return {
            "version": _VERSION,
            "steps": self._steps,
            "since": self._since,
            "weight": self._weight,
            "round": self._round,
            "agreed": self._agreed.state_dict(),
            "exchange": self._exchange.state_dict(),
            "flight": flight,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what state_dict gave on this worker. The model and the inner optimizer are the caller's to load. Raises
        ArgumentError for a state of another model, plan or transport."""
        if state.get("version") != _VERSION:
            raise ArgumentError(f"version {state.get('version')} of the state is not known here, {_VERSION} is")
        if self._sent is not None:
            raise ArgumentError("a round is under way: load before the first step")
        flight = state["flight"]
        if flight is not None:
            part = {name: self._local.weights[name] for name in self._part(flight["number"])}
            if self._with_buffers(flight["number"]):
                part.update(self._local.means)
            require_same_tensors(flight["sent"], part, "the tensors under way")
        self._agreed.load_state_dict(state["agreed"])
        self._exchange.load_state_dict(state["exchange"], int(state["round"]))
        self._steps, self._since, self._weight = int(state["steps"]), int(state["since"]), float(state["weight"])
        self._round = int(state["round"])
        self._is_agreed = True
        if flight is not None:
            self._landing = int(flight["number"])
            self._sent = {name: each.clone() for name, each in flight["sent"].items()}
            self._shift = {name: each.clone() for name, each in flight["shift"].items()}


def _moved(agreed: torch.Tensor, now: torch.Tensor, out: Optional[torch.Tensor]) -> torch.Tensor:
    """Agreed less now, in float32. (A model of 16 bits begins at the agreed weights as rounded to its type.)"""
    then = agreed if now.dtype == torch.float32 else agreed.to(now.dtype).float()
    return torch.sub(then, now.detach().float(), out=out)
