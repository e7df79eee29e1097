"""Rounds of the ranks of a process group of torch.distributed: a fixed number of workers, over AllReduce."""

from __future__ import annotations

import struct
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import torch
import torch.distributed as dist

from ..errors import ArgumentError, PeerError
from ..torch import AllReduce, Plans
from ..torch._engine import Engine, all_gather, is_finite, out_of_step
from ..torch._rules import Rules
from ..torch._terms import require_same, signed
from ._agreed import Agreed, Local, Tensors
from ._round import Round

_ALWAYS = 2**62  # steps of a dense all-reduce
_SAME = 4  # words that are the same on all ranks; after them, which tensor is not finite, and the weight


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
            dist.broadcast(tensor, self._engine.global_rank(0), group)
        self._group = group
        self._reduces = [
            AllReduce(None, start=_ALWAYS, timeout=timeout, group=group)
            if rules.all_dense
            else AllReduce(rules.pairs, dense_below=dense_below, flat=flat, timeout=timeout, seed=seed, group=group)
            for _ in fragments
        ]
        self._weighs = rules.weighs
        if rules.weighs:
            for reduce, part in zip(self._reduces, fragments):
                reduce._weights_of = agreed.on_cpu(part)
        self._buffers = AllReduce(None, start=_ALWAYS, timeout=timeout, group=group)
        self._is_fresh = True  # the next round compares weights, too
        self._words: Any = None  # while a round is exchanged: (received, the Work)
        self._moves: Tensors = {}
        self._means: Tensors = {}
        self._weight = 1.0

    def start(self, number: int, steps: int, moves: Tensors, means: Tensors, copies: Tensors, weight: float) -> None:
        """Sends how far this worker's weights and buffers moved."""
        self._moves, self._means, self._copies, self._weight, self._number = moves, means, copies, weight, number
        check = int(self._agreed.check(), 16) if self._is_fresh else 0
        bad = next((i for i, tensor in enumerate({**moves, **means}.values(), 1) if not is_finite(tensor)), 0)
        words = [number, steps, check, int(self._is_fresh), bad, *struct.unpack("<q", struct.pack("<d", weight))]
        engine, place = self._engine, "cpu" if self._engine.has_backend("cpu") else "cuda"
        sent = torch.tensor([signed(word) for word in words], device=place)
        received = torch.empty(engine.size * len(words), dtype=torch.int64, device=place)
        self._words = received, engine.issue(f"round {number}", all_gather, received, sent)
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

    def _in_use(self) -> List[Any]:
        found = [(self._reduces[self._number % len(self._fragments)], self._moves)]
        return found + ([(self._buffers, self._means)] if self._means else [])

    def finish(self, before: Callable[[Sequence[str]], None]) -> Round:
        """Updates the agreed weights to the next round."""
        begin, engine, pending = time.perf_counter(), self._engine, [reduce for reduce, _ in self._in_use()]
        try:
            received, work = self._words
            engine.wait(f"round {self._number}", work, time.monotonic() + self._timeout)
            weights = self._compare(received.view(engine.size, -1).tolist())
            while pending:
                pending.pop(0).finish()
        except BaseException:
            for reduce in pending:
                reduce.cancel()
            raise
        self._is_fresh = False
        scale = engine.size / sum(weights)
        if scale != 1:
            for move in self._moves.values():
                move.mul_(scale)
        for tensor in self._copies.values():  # (of the first rank)
            dist.broadcast(tensor, engine.global_rank(0), self._group)
        self._agreed.apply(self._moves, self._means, self._copies)
        last = [reduce.stats().last for reduce, _ in self._in_use()]
        names = tuple(str(engine.global_rank(rank)) for rank in range(engine.size))
        sent, received_bytes = (sum(getattr(step, field) for step in last) for field in ("sent", "received"))
        return Round(self._number, names, {}, (), sent, received_bytes, time.perf_counter() - begin)

    def _compare(self, words: List[List[int]]) -> List[float]:
        """The weights of the ranks. Raises, the same on all ranks, OutOfStep if one is at another step, or has other agreed
        weights; PeerError if a value of one is not finite."""
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
                f"rank {ranks[0]} {why}: load the states of one step on all ranks", ranks, self._engine.global_rank(source)
            )
        for rank, (*_, bad, _) in enumerate(words):
            if bad:
                number, name = self._engine.global_rank(rank), [*self._moves, *self._means][bad - 1]
                error = PeerError(f"rank {number}: {name}: what it moved is not finite", tensor=name)
                error.rank = number
                raise error
        return [struct.unpack("<d", struct.pack("<q", report[-1]))[0] for report in words]

    def state_dict(self) -> Dict[str, Any]:
        reduces = {str(i): reduce.state_dict() for i, reduce in enumerate(self._reduces)}
        return {"reduces": reduces, "buffers": self._buffers.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], number: int) -> None:
        if "reduces" not in state:
            raise ArgumentError("the state is of a worker of a Folder, and this one has a process group")
        if len(state["reduces"]) != len(self._reduces):
            raise ArgumentError(f"the state is of {len(state['reduces'])} fragments; this exchange has {len(self._reduces)}")
        for i, reduce in enumerate(self._reduces):
            reduce.load_state_dict(state["reduces"][str(i)])
        self._buffers.load_state_dict(state["buffers"])
        self._is_fresh = True
