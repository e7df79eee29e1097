"""Outer: the outer loop of a worker."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Sequence, Union

import torch

from .._native._call import real, timeout_of, unsigned
from .._native._types import SavedPart, SavedState
from ..errors import ArgumentError, Error
from ..torch import Plans
from ..torch._rules import Rules
from ._agreed import Agreed, Local, MakeOptimizer, Model, Tensors, contiguous, less, require_same_tensors, sgd
from ._contribution import WEIGHTS
from ._folder import Folder
from ._folder_exchange import FolderExchange
from ._group import GroupExchange
from ._round import OuterInfo, Round

_VERSION = 1


class Outer:
    """The outer loop of a worker. It trains `every` steps alone. Then all workers exchange how far their weights moved, and
    continue from the same weights, bit for bit.

    model      an nn.Module; or its parameters, as {name: tensor} or in order
    plan       for the pseudo-gradient (how far the weights moved): as of deepreduce.torch.DDPHook. None: all of it, as float32
    every      inner steps of a round
    optimizer  a torch.optim class, or a function, that returns the outer optimizer for a list of tensors. None: SGD. With plans
               that sparsify or transform it has rate 1 and no momentum; with all others rate 0.7 and Nesterov momentum 0.9
               (DiLoCo)
    group      a process group; None: the default one. Or a Folder
    overlap    inner steps that run while a round is exchanged; the result is applied after them
    fragments  the number of parts of the weights, exchanged one after the other: each part once in `every` steps
    dense_below, flat, seed  as of DDPHook
    timeout    seconds that a rank of a group waits for the others

    At the beginning all workers receive the weights and buffers of the group's first rank, or those stored in the Folder. Each
    worker has its own inner optimizer. Buffers of floating point are averaged over the workers in each round (with fragments:
    in the last round of each cycle), and sent exactly. All others, such as counters, become those of the first worker. Buffers
    that are not saved (persistent=False) do not change. Gradient scaling and clipping belong to the inner steps.

    optimizer  the outer optimizer, for a schedule of its rate
    info       an OuterInfo

    Raises ArgumentError, the same on all ranks, if ranks have another model, plan or option: it names the rank and the difference. Ranks
    that loaded states of different rounds raise OutOfStep in the next round, and go on after `catch_up`.

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
        if unsigned(every, "every", minimum=1) % fragments:
            raise ArgumentError(f"every is {every}, not a multiple of fragments, {fragments}")
        self._period, self._overlap = every // fragments, overlap
        if unsigned(overlap, "overlap") >= self._period:
            raise ArgumentError(f"overlap is {overlap}, not from 0 to below {self._period}, the inner steps from a round to the next")
        infos = [one_plan.info for _, one_plan in Rules(plan, flat).pairs]
        sparse = any(info.sparsifies or info.transforms for info in infos)
        if optimizer is None:
            optimizer = sgd(1.0, 0.0) if sparse else sgd(0.7, 0.9)
        self._agreed = Agreed(self._local, optimizer)
        terms = {"every": every, "overlap": overlap, "fragments": fragments, "optimizer": self._agreed.describe()}
        options: Dict[str, Any] = {"dense_below": dense_below, "flat": flat, "seed": seed}
        self._exchange: Union[FolderExchange, GroupExchange]
        self._round = 0  # the next to send
        if isinstance(group, Folder):
            self._exchange = FolderExchange(self._local, self._agreed, self._fragments, plan, terms, folder=group, **options)
            self._round = self._exchange.round
        else:
            where = {"group": group, "timeout": timeout_of(timeout)}
            self._exchange = GroupExchange(self._local, self._agreed, self._fragments, plan, terms, **where, **options)
        self._steps, self._since = 0, 0
        self._weights = [(0.0, 0) for _ in self._fragments]  # of the steps since each was sent: the sum of their weights, their number
        self._sent: Optional[Tensors] = None  # weights and buffers at the time of a round that was sent and is not yet applied
        self._others: Tensors = {}  # the agreed weights that change although they are not part of that round, as they were before it
        self._shift: Tensors = {}  # how far other workers moved the weights that were not part of that round
        self._moves: List[Tensors] = [{} for _ in self._fragments]
        self._last: Optional[Round] = None
        self._totals = [0, 0, 0.0]
        self._copy_all()

    # ---- Steps ----

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The outer optimizer. Its learning rate must be the same on all workers in every round. In a Folder a contribution has the
        numbers of its parameter groups, as they are when it is sent; any worker may apply a round, at any time, with those that
        most contributions have. Set a rate by `info.rounds`, not by counting: a worker may miss rounds."""
        return self._agreed.optimizer

    @property
    def info(self) -> OuterInfo:
        """The number of steps and rounds, the last round, and the bytes and times so far."""
        dense = 4 * sum(self._local.weights[name].numel() for name in self._fragments[0])
        sent, received, waited = self._totals
        return OuterInfo(self._steps, self._round, self._last, int(sent), int(received), waited, dense)

    def __repr__(self) -> str:
        return f"<Outer round {self._round}, inner step {self._since} of {self._period}>"

    def step(self, weight: float = 1.0) -> bool:
        """Call it after each step of the inner optimizer. In the last step of a round it exchanges, changes the weights, and
        returns True; in all others it returns False.

        weight  of this step in the mean over workers, if weights differ: for example the tokens of its batch. From 2^-60 to 2^60.
                With fragments each has the mean of all steps since it was sent

        If a round of a group fails, all ranks raise: PeerError if a rank's weights are not finite, MissingRank, or OutOfStep.
        Then the weights are the agreed ones, the round has moved nothing, and the residuals of plans with feedback are not
        lost. If a round of a Folder fails here (OSError: the disk is full, say; CorruptFrame, OutOfStep), it is still under way, and
        the next step tries again.

        Raises ArgumentError, before anything is sent or counted, if the model has other parameters than when this Outer was made,
        or a buffer has another shape or type. A buffer that was replaced by a like one is exchanged in its place.
        """
        weight = real(weight, "weight")
        if not WEIGHTS[0] <= weight <= WEIGHTS[1]:
            raise ArgumentError(f"weight is {weight}, not from 2^-60 to 2^60")
        lands = self._sent is not None and self._since + 1 >= self._overlap
        if lands or self._since + 1 >= self._period:
            self._local.require_same()
        self._steps += 1
        self._since += 1
        self._weights = [(total + weight, count + 1) for total, count in self._weights]
        landed = False
        if lands:
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
        """Sends how far the model has moved from the agreed weights, from which these steps started."""
        local, agreed, number = self._local, self._agreed, self._round
        at = number % len(self._fragments)
        moves, means, copies = self._moves[at], {}, {}
        with torch.no_grad():
            for name in self._part(number):
                moves[name] = _moved(agreed.weights[name], local.weights[name], moves.get(name))
            if self._with_buffers(number):
                means = {name: _moved(agreed.means[name], buffer, None) for name, buffer in local.means.items()}
                copies = {name: contiguous(buffer) for name, buffer in local.copies.items()}
            self._sent = self._now(number) if self._overlap else {}
            (total, count), self._weights[at] = self._weights[at], (0.0, 0)
            weight = total / count
        self._since, self._is_agreed = 0, False
        try:
            self._exchange.start(number, self._steps, moves, means, copies, weight)
        except BaseException as error:
            self._stop(number, error)
            raise

    def _now(self, number: int) -> Tensors:
        """A copy of the weights and buffers of a round, as they are: what is trained from here on is added to its result."""
        named = {name: self._local.weights[name] for name in self._part(number)}
        named.update(self._local.means if self._with_buffers(number) else {})
        return {name: tensor.detach().clone() for name, tensor in named.items()}

    def _stop(self, number: int, error: BaseException) -> None:
        """The exchange raised. A folder's round is still under way; that of a group moves nothing, on all ranks."""
        if isinstance(self._exchange, FolderExchange):
            self._sent = self._sent or self._now(number)
            return
        self._is_agreed = True
        if isinstance(error, Error):
            self._round += 1
            self._copy_back(number)

    _is_agreed = True  # whether the round that was sent is in the agreed weights; it may not be in the model's yet

    def _agree(self) -> None:
        """Waits for the round that was sent, and applies it to the agreed weights."""
        if self._is_agreed or self._sent is None:
            return
        number, others = self._round, self._others
        part = set(self._part(number)) | (set(self._local.means) if self._with_buffers(number) else set())

        def before(names: Sequence[str]) -> None:
            """With a folder: these will change, too, since this worker is behind. Copies them."""
            for name in names:
                if name not in part and name not in others:
                    others[name] = {**self._agreed.weights, **self._agreed.means}[name].clone()

        try:
            done = self._exchange.finish(before)
        except BaseException as error:
            self._stop(number, error)
            raise
        self._is_agreed = True
        now = {**self._agreed.weights, **self._agreed.means}
        self._shift, self._others = {name: less(now[name], earlier) for name, earlier in others.items()}, {}
        self._last = done
        self._totals = [total + new for total, new in zip(self._totals, done[-3:])]
        self._round = self._exchange.round if isinstance(self._exchange, FolderExchange) else number + 1
        self._landing = number

    _landing = 0

    def _land(self) -> bool:
        """Sets the model's weights to the agreed ones, plus how far they moved since the round was sent."""
        self._agree()
        self._copy_back(self._landing)
        return True

    def _copy_back(self, number: int) -> None:
        local, agreed, sent = self._local, self._agreed, self._sent or {}
        with torch.no_grad():
            targets = [(local.weights[name], agreed.weights[name], sent.get(name)) for name in self._part(number)]
            if self._with_buffers(number):
                targets += [(buffer, agreed.means[name], sent.get(name)) for name, buffer in local.means.items()]
                for name, buffer in local.copies.items():
                    buffer.copy_(agreed.copies[name])
            for target, new, then in targets:
                if then is None:
                    target.copy_(new)
                else:  # in float32, so that nothing is rounded twice
                    target.copy_(new + _trained(target.float(), then.float()))
            both = {**local.weights, **local.means}
            for name, moved in self._shift.items():
                both[name].copy_(both[name].float() + moved)
        self._sent, self._shift = None, {}

    def _copy_all(self) -> None:
        agreed, local = self._agreed, self._local
        with torch.no_grad():
            for here, there in ((local.weights, agreed.weights), (local.means, agreed.means), (local.copies, agreed.copies)):
                for name, tensor in here.items():
                    tensor.copy_(there[name])

    def catch_up(self) -> bool:
        """For ranks of a group that loaded states of different rounds, or of none, and for those whose step raised OutOfStep: the
        ranks that are behind get the agreed weights, buffers and outer optimizer of the newest rank. They keep their residuals
        and their inner optimizers; what they trained since their last round is dropped. All ranks call it, between two steps.

        Returns whether this rank was behind. Workers of a Folder catch up in each round; there it does nothing.
        """
        if isinstance(self._exchange, FolderExchange):
            return False
        if not self._is_agreed:
            raise ArgumentError("a round is under way: catch up before the first step, or after one that returned True or raised")
        self._local.require_same()
        place, is_behind = self._exchange.catch_up([self._round, self._steps, self._since])
        self._round, self._steps, self._since = place
        if is_behind:
            self._sent, self._shift = None, {}
            self._weights = [(0.0, 0) for _ in self._fragments]
            self._copy_all()
        return is_behind

    # ---- Checkpoints ----

    def state_dict(self) -> SavedState:
        """The state of this worker: the agreed weights, the outer optimizer, residuals, inner steps. Save the model and the inner
        optimizer besides; it does not contain them. Each worker saves its own, at the same step. A training that resumes from
        it is the same, bit for bit. With overlap it first waits for the current round."""
        self._agree()
        flight = None if self._sent is None else {"number": self._landing, "sent": dict(self._sent), "shift": dict(self._shift)}
        return {
            "version": _VERSION,
            "steps": self._steps,
            "since": self._since,
            "weights": list(self._weights),
            "round": self._round,
            "agreed": self._agreed.state_dict(),
            "exchange": self._exchange.state_dict(),
            "flight": flight,
        }

    def load_state_dict(self, state: SavedPart) -> None:
        """Resumes from what state_dict returned on this worker. The caller loads the model and the inner optimizer. If one rank of
        a group loads while the group is at work, all ranks load or call `catch_up` before the next step. Raises ArgumentError for
        a state of another model, plan or transport."""
        if state.get("version") != _VERSION:
            raise ArgumentError(f"version {state.get('version')} of the state is unknown; this version reads {_VERSION}")
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
        self._steps, self._since = int(state["steps"]), int(state["since"])
        # (Earlier versions had one sum, since a round was sent. A state of theirs goes on as it did there.)
        weights = state["weights"] if "weights" in state else [(state["weight"], self._since)] * len(self._fragments)
        self._weights = [(float(total), int(count)) for total, count in weights]
        self._round = int(state["round"])
        self._is_agreed = True
        if flight is not None:
            self._landing = int(flight["number"])
            self._sent = {name: tensor.clone() for name, tensor in flight["sent"].items()}
            self._shift = {name: tensor.clone() for name, tensor in flight["shift"].items()}


def _trained(now: torch.Tensor, then: torch.Tensor) -> torch.Tensor:
    """Now less then; 0 where then was not finite, which was refused."""
    found = less(now, then)
    return found if math.isfinite(found.sum().item()) else found.masked_fill_(~then.isfinite(), 0)


def _moved(agreed: torch.Tensor, now: torch.Tensor, out: Optional[torch.Tensor]) -> torch.Tensor:
    """Agreed less now, in float32. (A model of 16 bits begins at the agreed weights as rounded to its type.)"""
    then = agreed if now.dtype == torch.float32 else agreed.to(now.dtype).float()
    return less(then, now.detach().float(), torch.empty_like(agreed) if out is None else out)
