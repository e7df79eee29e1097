"""Rounds of the ranks of a process group of torch.distributed: a fixed number of workers, over AllReduce."""

from __future__ import annotations

import copy
import json
import math
import struct
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy
import torch
import torch.distributed as dist

from .._native._memory import tensor_bytes
from .._native._types import SavedPart, SavedState
from ..errors import ArgumentError, Error, PeerError
from ..torch import AllReduce, Plans
from ..torch._engine import Engine, all_gather, is_finite, lend, out_of_step
from ..torch._exchange import ALWAYS
from ..torch._rules import Rules
from ..torch._saved import group_of, parts_for
from ..torch._terms import gathered, gathered_texts, require_same, signed
from ._agreed import Agreed, Local, Tensors
from ._round import Round

_SAME = 4  # words that are the same on all ranks; after them, which tensor is not finite, the weight and the usual weight


class GroupExchange:
    """Rounds of a group. All ranks begin with the weights and buffers of its first."""

    def __init__(
        self, local: Local, agreed: Agreed, fragments: Sequence[List[str]], plan: Plans, terms: Mapping[str, Any], *, group: Any,
        timeout: float, dense_below: Optional[int], flat: Optional[bool], seed: int,
    ) -> None:  # fmt: skip
        if not dist.is_available() or not dist.is_initialized():
            raise ArgumentError("torch.distributed has no process group: call init_process_group first, or pass group=Folder(…)")
        self._engine, self._timeout, self._agreed, self._fragments = Engine(group, timeout), timeout, agreed, fragments
        rules = Rules(plan, flat)
        options = {**terms, "dense_below": dense_below, "flat": flat, "seed": seed}
        require_same(None, [rules.lines], options, f"{rules.lines} {options}", local.descriptions(), self._engine, timeout)
        for tensor in (*agreed.weights.values(), *agreed.means.values(), *agreed.copies.values()):
            dist.broadcast(lend(_bytes(tensor)), self._engine.global_rank(0), group)
        self._group = group
        self._reduces = [
            AllReduce(None, start=ALWAYS, timeout=timeout, group=group)
            if rules.all_dense
            else AllReduce(rules.pairs, dense_below=dense_below, flat=flat, timeout=timeout, seed=seed, group=group)
            for _ in fragments
        ]
        self._weighs = rules.weighs
        factors = [plan.name_of("transform") == "lowrank" for _, plan in rules.pairs]
        residuals = [plan.info.residual for _, plan in rules.pairs]
        self._has_factors, self._keeps = any(factors), any(residuals)
        self._scales = any(residual and not its for residual, its in zip(residuals, factors))
        if rules.weighs:
            for reduce, part in zip(self._reduces, fragments):
                reduce._weights_of = agreed.on_cpu(part)
        self._buffers = AllReduce(None, start=ALWAYS, timeout=timeout, group=group)
        for reduce in self._reduces[1:]:
            reduce._warns = False  # of copies to the CPU: the first fragment's exchange does
        self._is_fresh = True  # the next round compares weights, too
        self._words: Any = None  # while a round is exchanged: (received, the Work)
        self._moves: Tensors = {}
        self._means: Tensors = {}
        # What a rank sends is multiplied by its weight over the usual one: the mean of all ranks in the round before, the same on
        # all: they do not wait for this round's before they encode. A residual is multiplied by what its moves were, and that of an
        # owner's sum by the mean of these factors. Low-rank factors leave a residual of the mean, so for them ranks wait.
        self._usual = 0.0  # unknown: the first round's
        self._factors: List[Optional[List[float]]] = [[1.0, 1.0] for _ in fragments]  # of both; None: the weight, by an earlier version

    def start(self, number: int, steps: int, moves: Tensors, means: Tensors, copies: Tensors, weight: float) -> None:
        """Sends how far this worker's weights and buffers moved. It changes the moves."""
        self._moves, self._means, self._copies, self._number = moves, means, copies, number
        check = int(self._agreed.check(), 16) if self._is_fresh else 0
        bad = _first_bad(list({**moves, **means}.values()))
        words = [number, steps, check, int(self._is_fresh), bad, *struct.unpack("<2q", struct.pack("<2d", weight, self._usual))]
        engine, place = self._engine, "cpu" if self._engine.has_backend("cpu") else "cuda"
        sent = torch.tensor([signed(word) for word in words], device=place)
        received = torch.empty(engine.size * len(words), dtype=torch.int64, device=place)
        self._words = received, engine.issue(f"round {number}", all_gather, received, sent)
        if self._is_fresh or self._has_factors:  # (ranks at other rounds may be at other fragments: their collectives would not match)
            self._require_in_step(self._received())
            usual = 0.0 if self._has_factors else self._weights()[0][1]
            self._usual = usual or self._mean_weight()
        self._weigh(weight)
        if self._weighs:
            self._agreed.on_cpu(moves)
        begun: List[AllReduce] = []
        try:
            for reduce, tensors in self._in_use():
                reduce.start(tensors)
                begun.append(reduce)
        except BaseException:
            for reduce in begun:
                reduce.cancel()
            raise

    def _weigh(self, weight: float) -> None:
        """Multiplies the moves, and the residual that is added to them."""
        at, factor = self._number % len(self._fragments), weight / self._usual
        known = self._factors[at]
        own, summed = known or [weight, weight]
        if factor != own and (self._scales if known else self._keeps):
            self._reduces[at].scale_residuals(factor / own)
        self._factors[at] = [factor, summed * factor / own]
        if factor != 1:
            for move in self._moves.values():
                move.mul_(factor)

    def _weigh_sums(self, factor: float) -> None:
        """Now that all weights are known. The sums are made in the second half of a round."""
        at = self._number % len(self._fragments)
        own, summed = self._factors[at] or [factor, factor]
        if factor != summed and self._scales:
            self._reduces[at]._scale_fields(factor / summed, ("sums",))
        self._factors[at] = [own, factor]

    def _in_use(self) -> List[Any]:
        found = [(self._reduces[self._number % len(self._fragments)], self._moves)]
        return found + ([(self._buffers, self._means)] if self._means else [])

    def finish(self, before: Callable[[Sequence[str]], None]) -> Round:
        """Updates the agreed weights to the next round."""
        begin, engine, pending = time.perf_counter(), self._engine, [reduce for reduce, _ in self._in_use()]
        try:
            self._compare(self._received())
            mean = self._mean_weight()
            self._weigh_sums(mean / self._usual)
            while pending:
                reduce = pending.pop(0)
                reduce.finish()
                self._check(reduce)
        except BaseException:
            for reduce in pending:
                reduce.cancel()
            raise
        self._is_fresh = False
        if self._usual != mean:
            for move in self._moves.values():
                move.mul_(self._usual / mean)
        self._usual = mean
        for tensor in self._copies.values():  # (of the first rank)
            dist.broadcast(lend(_bytes(tensor)), engine.global_rank(0), self._group)
        self._agreed.apply(self._moves, self._means, self._copies)
        last = [reduce.stats().last for reduce, _ in self._in_use()]
        names = tuple(str(engine.global_rank(rank)) for rank in range(engine.size))
        sent, received_bytes = (sum(getattr(step, field) for step in last) for field in ("sent", "received"))
        return Round(self._number, names, {}, (), sent, received_bytes, time.perf_counter() - begin)

    def _check(self, reduce: AllReduce) -> None:
        """Where frames are made on a GPU, waits for the verdict: a round that a unit spoils moves nothing. What the other units sent
        and received goes back to the residuals."""
        try:
            reduce.check()
        except Error:
            if reduce is not self._buffers:
                reduce._give_back(self._moves)
            raise

    def _received(self) -> List[List[int]]:
        """The words of all ranks."""
        received, work = self._words
        if work is not None:
            self._engine.wait(f"round {self._number}", work, time.monotonic() + self._timeout)
        self._words = received, None
        return received.view(self._engine.size, -1).tolist()  # type: ignore[no-any-return]

    def _weights(self) -> List[Tuple[float, float]]:
        """Of all ranks, their weight and the usual one."""
        return [struct.unpack("<2d", struct.pack("<2q", *report[-2:])) for report in self._received()]

    def _mean_weight(self) -> float:
        return math.fsum(weight for weight, _ in self._weights()) / int(self._engine.size)

    def _require_in_step(self, words: List[List[int]]) -> None:
        """Raises OutOfStep, the same on all ranks, if one is at another step, or has other agreed weights."""
        if any(report[:_SAME] != words[0][:_SAME] for report in words):
            rounds = [report[0] for report in words]
            ahead = max(words)
            source = words.index(ahead)
            late = [rank for rank, report in enumerate(words) if report[:_SAME] != ahead[:_SAME]]
            ranks, first = [self._engine.global_rank(rank) for rank in late], words[late[0]]
            if min(rounds) != max(rounds) or first[1] != ahead[1]:
                its, usual = (f"inner step {report[1]}, round {report[0]}" for report in (first, ahead))
                why = f"is at {its}; rank {self._engine.global_rank(source)} at {usual}"
            else:
                why = f"has other agreed weights than rank {self._engine.global_rank(source)}"
            raise out_of_step(
                f"rank {ranks[0]} {why}: load the states of one step on all ranks, or call catch_up() on all ranks", ranks, self._engine.global_rank(source)
            )

    def _compare(self, words: List[List[int]]) -> None:
        """Raises, the same on all ranks, OutOfStep; PeerError if a value of one is not finite."""
        self._require_in_step(words)
        for rank, (*_, bad, _, _) in enumerate(words):
            if bad:
                number, name = self._engine.global_rank(rank), [*self._moves, *self._means][bad - 1]
                error = PeerError(f"rank {number}: {name}: what it moved is not finite", tensor=name)
                error.rank = number
                raise error

    # ---- Catching up ----

    def catch_up(self, place: Sequence[int]) -> Tuple[List[int], bool]:
        """Collective. Ranks that have other agreed weights than the newest rank get its weights, buffers and outer optimizer, and
        keep their residuals. (No rank has the weights of another's round, so they travel whole, not as a patch.)

        place  [round, inner steps, inner steps since the round before] of this rank
        Returns that of the newest rank, and whether this rank had other weights.
        """
        engine = self._engine
        words = gathered("catch up", [*place, int(self._agreed.check(), 16)], engine, self._timeout)
        newest = max(words)
        source, own = words.index(newest), words[engine.rank]
        self._is_fresh = True  # on all ranks alike, for one may have loaded a state
        if all(word == newest for word in words):
            return list(place), False
        arrays = self._agreed.arrays() if any(word[-1] != newest[-1] for word in words) else {}
        reduces = [*self._reduces, self._buffers]
        states = [reduce.state_dict() for reduce in reduces]
        numbers = [self._numbers_of(state) for state in states]
        warm = [self._part_of(state).get("warm", {}) for state in states]
        sizes = {name: [str(array.dtype), array.size] for name, array in arrays.items()}
        text = json.dumps([sizes, numbers, [{name: saved.numel() for name, saved in found.items()} for found in warm]])
        sizes, numbers, lengths = json.loads(gathered_texts("catch up", text if engine.rank == source else "", engine, self._timeout)[source])
        if engine.rank != source:
            arrays = {name: numpy.empty(size, dtype) for name, (dtype, size) in sizes.items()}
            warm = [{name: torch.empty(size, dtype=torch.uint8) for name, size in found.items()} for found in lengths]
        given = (array if array.flags.writeable else array.copy() for array in arrays.values())
        for sent in (*map(torch.from_numpy, given), *(saved for found in warm for saved in found.values())):
            self._broadcast(sent, source)
        if engine.rank != source:
            for reduce, state, found, starts in zip(reduces, states, numbers, warm):
                reduce.load_state_dict(self._adopted(state, found, starts))
        has_others = own[-1] != newest[-1]
        if has_others:
            self._agreed.load_arrays(arrays)
        return newest[:-1], has_others

    def _part_of(self, state: SavedPart) -> SavedState:
        """This rank's part of an AllReduce's state."""
        return dict(state.get(self._key_of(state), {}))

    def _key_of(self, state: SavedPart) -> str:
        new = "any" if "any" in state else f"rank{self._engine.global_rank(self._engine.rank)}"
        return parts_for(state, self._engine)[0].get(self._engine.rank, new)

    def _numbers_of(self, state: SavedPart) -> Dict[str, int]:
        part = self._part_of(state)
        return {"step": state["step"], "ranks": state["ranks"], **{key: part.get(key, 0) for key in ("failures", "failed")}}

    def _adopted(self, state: SavedPart, newest: Mapping[str, int], warm: Mapping[str, torch.Tensor]) -> SavedState:
        """The state of an AllReduce at the newest rank's step, with this rank's residuals."""
        own = self._part_of(state) or group_of(self._engine)
        part = {"residuals": {}, **own, "failures": newest["failures"], "failed": newest["failed"]}
        part.pop("holds", None)
        if warm:
            part["warm"] = dict(warm)
        adopted = {**state, "step": newest["step"], "ranks": state["ranks"] or newest["ranks"]}
        return {**adopted, self._key_of(state): part} if newest["ranks"] or state["ranks"] else adopted

    def _broadcast(self, tensor: torch.Tensor, source: int) -> None:
        far = tensor if self._engine.has_backend("cpu") else tensor.cuda()
        dist.broadcast(lend(far), self._engine.global_rank(source), self._group)
        if far is not tensor:
            tensor.copy_(far)

    # ---- Checkpoints ----

    def state_dict(self) -> SavedState:
        reduces = {str(i): reduce.state_dict() for i, reduce in enumerate(self._reduces)}
        return {"reduces": reduces, "buffers": self._buffers.state_dict(), "usual": self._usual, "factors": copy.deepcopy(self._factors)}

    def load_state_dict(self, state: SavedPart, number: int) -> None:
        if "reduces" not in state:
            raise ArgumentError("the state is of a worker of a Folder, and this one has a process group")
        if len(state["reduces"]) != len(self._reduces):
            raise ArgumentError(f"the state is of {len(state['reduces'])} fragments; this exchange has {len(self._reduces)}")
        for i, reduce in enumerate(self._reduces):
            reduce.load_state_dict(state["reduces"][str(i)])
        self._buffers.load_state_dict(state["buffers"])
        self._usual, self._factors = float(state.get("usual", 0)), copy.deepcopy(state.get("factors", [None] * len(self._reduces)))
        self._is_fresh = True


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor: gloo and NCCL have no collectives of some types (int16, uint16, float8)."""
    return tensor_bytes(tensor)


def _first_bad(tensors: Sequence[torch.Tensor]) -> int:
    """1 and the position of the first tensor with a value that is not finite; 0: none. It waits once for a GPU that has them all."""
    if tensors and all(tensor.is_cuda and tensor.device == tensors[0].device for tensor in tensors):
        largest = [torch.linalg.vector_norm(tensor, torch.inf) if tensor.numel() else tensor.new_zeros(()) for tensor in tensors]
        finite = [math.isfinite(norm) for norm in torch.stack(largest).tolist()]
    else:
        finite = [is_finite(tensor) for tensor in tensors]
    return next((i for i, is_sound in enumerate(finite, 1) if not is_sound), 0)
