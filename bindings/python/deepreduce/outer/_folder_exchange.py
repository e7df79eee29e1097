"""Rounds of workers that share a Folder. No worker leads.

A worker writes its contribution, and waits until all active workers have written theirs, or until the deadline. The first that
sees this writes the list of the round's contributions (Folder.close). All read the list, judge the contributions by the same
rules, and apply the valid ones in the order of the names, by the outer optimizer's options that most of them have. A worker that
is not in the list adds its contribution back to its residual, if its plan has one, and catches up: by the contributions of the
rounds or, if these were removed, by the stored weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from .._native._types import SavedPart, SavedState
from ..errors import ArgumentError, ConcurrentUse, CorruptFrame, Error, OutOfStep
from ..torch import Plans
from ..torch._engine import is_finite
from ..torch._rules import Rules
from ._agreed import Agreed, Local, Tensors, bytes_of, tensors_from
from ._contribution import Contribution, Refused, beyond, norm_of, overhead, pack, unpack, usual
from ._fragment_coder import FragmentCoder, require_frames
from ._folder import Closed, Folder, Listed
from ._round import Round
from ._round_options import OPTIONS_MAX, Options, applied, difference, options_of, packed, unpacked

_log = logging.getLogger("deepreduce.outer")


class _Sent(NamedTuple):
    """This worker's contribution to a round. sha256: "" if it was not posted. dropped: nothing of it can return to the residual."""

    number: int
    sha256: str
    size: int
    dropped: bool


class FolderExchange:
    """Rounds of a Folder. round: the first that is not yet in the agreed weights."""

    def __init__(
        self, local: Local, agreed: Agreed, fragments: Sequence[List[str]], plan: Plans, terms: Mapping[str, Any], *, folder: Folder,
        dense_below: Optional[int], flat: Optional[bool], seed: int,
    ) -> None:  # fmt: skip
        self._folder, self._agreed, self._fragments = folder, agreed, fragments
        rules = Rules(plan, flat)
        require_frames(rules)
        options = {"dense_below": dense_below, "flat": rules.flat, "seed": seed}
        shapes = {name: tuple(tensor.shape) for name, tensor in local.weights.items()}
        self._weighs = rules.weighs
        self._coders = [
            FragmentCoder({name: shapes[name] for name in part}, rules.book, options, agreed.on_cpu(part) if rules.weighs else {})
            for part in fragments
        ]
        means = {name: tuple(tensor.shape) for name, tensor in local.means.items()}
        self._buffers = FragmentCoder(means, None, {"seed": seed}) if means else None
        self._copies = sum(tensor.numel() * tensor.element_size() for tensor in local.copies.values())
        bound = "inf" if math.isinf(folder.norm_bound) else folder.norm_bound
        everything = {**terms, "plan": rules.lines, **options, "norm_bound": bound, "tensor": local.descriptions()}
        self._terms = folder.require_terms(everything)
        self._private_seed = int.from_bytes(hashlib.blake2b(folder.name.encode(), digest_size=8).digest(), "little")
        self._members: Set[str] = set()
        self._sent: Optional[_Sent] = None  # until its round is in the agreed weights
        self._unposted: Optional[bytes] = None  # its bytes, until they are written
        self._done: Optional[Round] = None  # from then on, until finish returns it
        self._are_weighted: Set[int] = set()  # fragments whose residual an earlier version has multiplied by a weight
        self._until = 0.0
        self._apart: Callable[[Sequence[str]], None] = lambda names: None
        self.round = 0
        self._begin()

    # ---- Beginning ----

    def _begin(self) -> None:
        """Loads the agreed weights from the folder. If it has none, first stores this worker's."""
        folder = self._folder
        with folder.store() as store:
            end = folder._clock() + folder.deadline
            while store.latest() is None:
                try:
                    store.put(0, self._agreed.arrays())
                except (ConcurrentUse, ArgumentError):  # another is about to
                    if folder._clock() >= end:
                        raise
                    folder.pause()
        self._load_stored()
        self._catch_up()
        folder.announce(self.round)

    def _load_stored(self) -> None:
        store = self._folder.store()
        latest = store.latest()
        if latest is None:
            raise CorruptFrame(f"{store.path}: there are no weights")
        self._agreed.load_arrays(store.read(latest))
        self.round = latest
        before = self._folder.closed(latest - 1) if latest else None
        self._members = {entry.name for entry in before.listed} if before else set()

    # ---- Sending ----

    def _coders_of(self, number: int) -> Tuple[FragmentCoder, Optional[FragmentCoder], int]:
        """The coder of the weights, that of the buffers, and the bytes of the buffers that are copied."""
        last = number % len(self._fragments) == len(self._fragments) - 1
        return self._coders[number % len(self._fragments)], self._buffers if last else None, self._copies if last else 0

    def _max_bytes(self, number: int) -> int:
        """The maximum bytes of a contribution."""
        coder, buffers, copies = self._coders_of(number)
        slots = coder.units + (buffers.units if buffers else 0)
        return coder.max_bytes + (buffers.max_bytes if buffers else 0) + overhead(slots, copies)

    def start(self, number: int, steps: int, moves: Tensors, means: Tensors, copies: Tensors, weight: float) -> None:
        """Writes how far this worker's weights and buffers moved, unless the round is closed. Where it raises, `finish` goes on with
        it."""
        folder, (coder, buffers, _) = self._folder, self._coders_of(number)
        self._sent = _Sent(number, "", 0, dropped=True)
        self._until = folder._clock() + folder.deadline
        moves, means = ({name: tensor.cpu() for name, tensor in given.items()} for given in (moves, means))
        bad = next((name for name, tensor in {**moves, **means}.items() if not is_finite(tensor)), None)
        fault = "" if bad is None else f"{bad}: what it moved is not finite"
        options = options_of(self._agreed.optimizer)
        if len(json.dumps(packed(options))) > OPTIONS_MAX:
            options, fault = {}, fault or f"the options of its outer optimizer have more than {OPTIONS_MAX} bytes"
        slots: List[Any] = []
        if not fault:
            if self._weighs:
                self._agreed.on_cpu(moves)
            at = number % len(self._coders)
            if at in self._are_weighted:  # (by which one it does not say)
                coder.sender.scale(1 / weight)
                self._are_weighted.discard(at)
            try:
                slots = [slot.copy() for slot in coder.encode(moves, number, self._private_seed)]
                slots += buffers.encode(means, number, self._private_seed) if buffers else []
                self._sent = self._sent._replace(dropped=False)
            except Error as error:  # the others wait for this worker's contribution, so it says why
                fault, slots = str(error), []
                coder.take_back(number)
        copied = b"" if fault else bytes_of(list(copies.values()))
        self._unposted = pack(folder.name, number, self._terms, self._agreed.check(), weight, fault, slots, copied, options)
        self._until = folder._clock() + folder.deadline
        self._post()

    def _post(self) -> None:
        folder, data, sent = self._folder, self._unposted, self._sent
        if data is not None and sent is not None:
            if folder.closed(sent.number) is None and not self._is_gone(sent.number) and folder.post(sent.number, data):
                self._sent = sent._replace(sha256=hashlib.sha256(data).hexdigest(), size=len(data))
            self._unposted = None

    # ---- A round ----

    def finish(self, before: Callable[[Sequence[str]], None]) -> Round:
        """Updates the agreed weights to the newest round. before: called with the names of weights and buffers that will change
        although they are not part of the round that was sent. If it raises, the round is still under way: call it again."""
        begin = time.perf_counter()
        self._apart = before
        try:
            self._post()
            if self._sent is not None:
                self._done = self._closed_round(self._sent)
                self._sent = None
            self._catch_up()
            self._folder.announce(self.round)
        finally:
            self._apart = lambda names: None
        assert self._done is not None
        done, self._done = self._done, None
        return done._replace(waited=time.perf_counter() - begin)

    def _closed_round(self, sent: _Sent) -> Round:
        folder, number = self._folder, sent.number
        while True:
            closed = folder.closed(number)
            if closed is not None:
                break
            if self._is_gone(number):
                return self._left_behind(sent)
            posted = folder.posted(number)
            expected = self._members | set(folder.announced(number))
            if expected <= set(posted) or folder._clock() >= self._until:
                self._close(number, posted)
            else:
                folder.pause()
        own = next((entry for entry in closed.listed if entry.name == folder.name and entry.sha256 == sent.sha256), None)
        done = self._apply(number, closed) or self._from_stored(sent)
        if own is None:
            other = any(entry.name == folder.name for entry in closed.listed)
            why = "another process has this name, or this worker was restarted" if other else "it arrived after the round was closed"
            self._return(sent, why)
        elif folder.name in done.refused:
            self._was_refused(sent, done.refused[folder.name])
        return done._replace(sent=sent.size)

    def _is_gone(self, number: int) -> bool:
        """Whether the round's files were removed, because stored weights are newer."""
        latest = self._folder.store().latest()
        return latest is not None and latest > number and self._folder.closed(number) is None

    def _left_behind(self, sent: _Sent) -> Round:
        """For a round whose contributions were removed: this worker's counts as applied if it was written in time."""
        done = self._from_stored(sent)
        if not sent.sha256:
            self._return(sent, "its round is long over")
        return done

    def _from_stored(self, sent: _Sent) -> Round:
        self._apart([*self._agreed.weights, *self._agreed.means])
        self._load_stored()
        return Round(sent.number, (), {}, (), sent.size, 0, 0.0)

    def _close(self, number: int, posted: Sequence[str]) -> None:
        listed, max_bytes = [], self._max_bytes(number)
        for name in posted:
            data = self._folder.read_part(number, name, max_bytes)
            if isinstance(data, int):
                listed.append(Listed(name, "", data))
            elif data is not None:
                listed.append(Listed(name, hashlib.sha256(data).hexdigest(), len(data)))
        self._folder.close(number, listed)

    def _return(self, sent: _Sent, why: str) -> None:
        coder = self._coders_of(sent.number)[0]
        if not sent.dropped:
            coder.take_back(sent.number)
        names = self._fragments[sent.number % len(self._fragments)]
        without = [name for name in names if not coder.sender.plan_of(name).info.feedback]
        if sent.dropped:
            what = "could not be made"
        elif not without:
            what = "returns to its residual"
        elif len(without) == len(names):
            what = "is lost, since its plan has no residual"
        else:
            what = f"returns to its residual; that of {without[0]} and all others whose plan has no residual is lost"
        _log.warning("worker %s, round %d: its contribution %s: %s", self._folder.name, sent.number, what, why)

    def _was_refused(self, sent: _Sent, why: str) -> None:
        """Adds a valid contribution back to the residual. An absurd one would be sent again, so it and the residual are dropped."""
        coder = self._coders_of(sent.number)[0]
        if sent.dropped:
            return
        coder.take_back(sent.number)
        if why.startswith(_ABSURD):
            coder.sender.scale(0.0)

    # ---- Applying ----

    def _catch_up(self) -> None:
        """Applies the rounds that are closed."""
        while True:
            closed = self._folder.closed(self.round)
            if closed is None:
                if not self._is_gone(self.round):
                    return
            elif self._apply(self.round, closed, foreign=True) is not None:
                continue
            self._apart([*self._agreed.weights, *self._agreed.means])
            self._load_stored()

    def _apply(self, number: int, closed: Closed, foreign: bool = False) -> Optional[Round]:
        """Applies a round. None: its files were removed, and stored weights are newer. Raises CorruptFrame, OutOfStep."""
        coder, buffers, copies = self._coders_of(number)
        found: List[Contribution] = []
        refused: Dict[str, str] = {}
        received, max_bytes = 0, self._max_bytes(number)
        for entry in closed.listed:
            if not entry.sha256 or entry.size > max_bytes:
                refused[entry.name] = f"it has {entry.size} bytes; at most {max_bytes} are allowed"
                continue
            data = self._fetch(number, entry)
            if data is None:
                return None
            received += len(data) if entry.name != self._folder.name else 0
            try:
                found.append(unpack(data, entry.name, number, self._terms, copies))
            except Refused as error:
                refused[entry.name] = str(error)
        accepted, base, options = self._judge(number, found, refused)
        for name, why in refused.items():
            _log.warning("round %d: the contribution of worker %s is refused: %s", number, name, why)
        if accepted and base != self._agreed.check():
            names = ", ".join(contribution.name for contribution in accepted)
            raise OutOfStep(
                f"worker {self._folder.name} has other agreed weights in round {number} than {names}: create a new Outer, which loads"
                " those of the folder"
            )
        if foreign:
            self._apart([*coder.outputs, *(buffers.outputs if buffers else ())])
        here = {entry.name for entry in closed.listed}
        with applied(self._agreed.optimizer, options, keep=foreign):  # (after its own round a worker's schedule goes on)
            if accepted:
                self._merge(number, accepted)
            absent, self._members = self._members - here, here
            self.round = number + 1
            workers = tuple(contribution.name for contribution in accepted)
            done = Round(number, workers, refused, tuple(sorted(absent)), 0, received, 0.0)
            if not foreign:  # whatever raises from here on, it must not be applied again
                self._sent, self._done = None, done
            if closed.by == self._folder.name and self.round % self._folder.store_every == 0:
                self._put()
        return done

    def _judge(
        self, number: int, found: Sequence[Contribution], refused: Dict[str, str]
    ) -> Tuple[List[Contribution], str, Options]:
        """The contributions to apply, their base, and the options of the outer optimizer to apply them by ({}: they have none). It
        depends on the bytes alone, so it is the same on all workers."""
        coder, buffers, _ = self._coders_of(number)
        coder.begin_sum([contribution.factor for contribution in found])
        if buffers:
            buffers.begin_sum([1.0])
        base = usual([contribution.base for contribution in found]) if found else ""
        options = self._usual_options([contribution for contribution in found if contribution.base == base])
        sound, norms = [], []
        for contribution in found:
            try:
                if contribution.base != base:
                    raise Refused("it starts from other agreed weights")
                its = self._options_of(contribution)
                if its and its != options:  # (of contributions with the usual base the usual options are among them)
                    raise Refused(difference(its, options))
                if len(contribution.slots) != coder.units + (buffers.units if buffers else 0):
                    raise Refused(f"it has {len(contribution.slots)} slots")
                moved = list(coder.merge([contribution.slots[: coder.units]], number).values())
                norm = norm_of(moved) * contribution.factor / contribution.weight
                if buffers:
                    moved = list(buffers.merge([contribution.slots[coder.units :]], number).values())
                    norm += 0.0 if math.isfinite(norm_of(moved)) else math.inf
                if not math.isfinite(norm):
                    raise Refused(_ABSURD + "a value is not finite")
            except Error as error:
                refused[contribution.name] = str(error)
                continue
            sound.append(contribution)
            norms.append(norm)
            coder.add(contribution.factor)
            if buffers:
                buffers.add(1.0)
        accepted = []
        for contribution, norm, absurd in zip(sound, norms, beyond(norms, self._folder.norm_bound)):
            if absurd:
                refused[contribution.name] = f"{_ABSURD}its norm is {norm:.3g}, above {self._folder.norm_bound:g} times the median of the round"
            else:
                accepted.append(contribution)
        has_options = any(contribution.options is not None for contribution in accepted)
        return accepted, base, options if has_options else {}

    def _options_of(self, contribution: Contribution) -> Options:
        """{}: it has none. Raises Refused for options that are not those of the outer optimizer."""
        try:
            return {} if contribution.options is None else unpacked(contribution.options, self._agreed.optimizer)
        except ValueError as error:
            raise Refused(str(error)) from None

    def _usual_options(self, found: Sequence[Contribution]) -> Options:
        them: List[Options] = []
        for contribution in found:
            with contextlib.suppress(Refused):
                them.append(self._options_of(contribution))
        them = [options for options in them if options]
        return max(them, key=them.count, default={})

    def _merge(self, number: int, accepted: Sequence[Contribution]) -> None:
        coder, buffers, copies = self._coders_of(number)
        factors, total = [contribution.factor for contribution in accepted], math.fsum(contribution.weight for contribution in accepted)
        merged = coder.mean([contribution.slots[: coder.units] for contribution in accepted], number, factors, total)
        moves = {name: torch.from_numpy(array) for name, array in merged.items()}
        means: Tensors = {}
        if buffers:
            ones = [1.0] * len(accepted)
            made = buffers.mean([contribution.slots[coder.units :] for contribution in accepted], number, ones, len(ones))
            means = {name: torch.from_numpy(array) for name, array in made.items()}
        copied = tensors_from(bytes(accepted[0].copies), self._agreed.copies) if copies else {}
        self._agreed.apply(moves, means, copied)

    def _fetch(self, number: int, listed: Listed) -> Optional[bytes]:
        """The bytes of a worker's contribution. None: they were removed, and stored weights are newer. Raises CorruptFrame after
        the deadline."""
        folder = self._folder
        end = folder._clock() + folder.deadline
        while True:
            data = folder.read_part(number, listed.name, listed.size)
            if isinstance(data, bytes) and hashlib.sha256(data).hexdigest() == listed.sha256:
                return data
            latest = folder.store().latest()
            if latest is not None and latest > number:
                return None
            if folder._clock() >= end:
                what = "is not there" if data is None else "has other bytes"
                raise CorruptFrame(f"round {number}: the contribution of worker {listed.name} {what} than when the round was closed")
            folder.pause()

    def _put(self) -> None:
        """Stores the agreed weights, for workers that join later. A failure is logged; a later round stores them again."""
        try:
            with self._folder.store() as store:
                before = store.latest() or 0
                if before < self.round:
                    store.put(self.round, self._agreed.arrays())
                    store.prune(2)
                    self._folder.sweep(before)
        except (Error, OSError, TypeError) as error:  # (TypeError: of what an outer optimizer has, and JSON has not)
            _log.warning("worker %s: the weights of round %d were not stored: %s", self._folder.name, self.round, error)

    # ---- Checkpoints ----

    def state_dict(self) -> SavedState:
        coders = {str(i): coder.saved() for i, coder in enumerate(self._coders)}
        return {"coders": coders, "weighted": sorted(self._are_weighted), "members": sorted(self._members)}

    def load_state_dict(self, state: SavedPart, number: int) -> None:
        if "coders" not in state:
            raise ArgumentError("the state is of a rank of a process group, and this worker has a Folder")
        if len(state["coders"]) != len(self._coders):
            raise ArgumentError(f"the state is of {len(state['coders'])} fragments; this exchange has {len(self._coders)}")
        for i, coder in enumerate(self._coders):
            coder.sender.load_state_dict(state["coders"][str(i)])
        self._members, self.round = set(state["members"]), number
        self._are_weighted = set(state.get("weighted", range(len(self._coders))))
        folder, stored = self._folder, self._folder.store().latest() or 0
        if stored < number and folder.closed(number - 1) is None:  # a new folder: other workers load these
            self._put()
        folder.announce(number)


_ABSURD = "absurd: "
