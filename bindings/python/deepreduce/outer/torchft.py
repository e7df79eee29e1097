"""deepreduce.outer.torchft: torchft's DiLoCo, whose replicas exchange frames. Imported on request.

    diloco = deepreduce.outer.torchft.DiLoCo(manager, [model], inner, [outer], sync_every=30, plan="sparseloco")
    with diloco:
        for batch in data:
            loss(model, batch).backward()
            inner.step()
            inner.zero_grad()

torchft's DiLoCo calls its manager to average pseudo-gradients. It has a Channel in place of the manager, which passes on every
other call.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
import torchft
from torch.distributed.distributed_c10d import AllgatherOptions
from torchft.local_sgd import DiLoCo as TorchftDiLoCo
from torchft.process_group import ManagedProcessGroup

from .._native._types import SavedPart, SavedState
from ..errors import ArgumentError, CorruptFrame, Error, OutOfStep, Unsupported
from ..torch import Plans
from ..torch._engine import is_finite
from ..torch._rules import Rules
from ..torch._terms import signed
from ._contribution import Contribution, Refused, overhead, pack, unpack
from ._fragment_coder import FragmentCoder, require_frames
from ._round import Round

__all__ = ["DiLoCo"]

_log = logging.getLogger("deepreduce.outer")
_APPLIED_MAX = 1000  # replicas whose last contribution is remembered


class DiLoCo(TorchftDiLoCo):  # type: ignore[misc]
    """torchft.local_sgd.DiLoCo with compressed pseudo-gradients.

    manager … sync_every  as of torchft's. Plans that sparsify go best with outer optimizers of rate 1 and no momentum
    plan     as of deepreduce.torch.DDPHook; it must produce frames
    dense_below, flat, seed  as of DDPHook
    options  the other arguments of torchft's DiLoCo, but should_quantize and the bucketization

    last            the last round that this replica received, a deepreduce.outer.Round; None before. Its workers are positions in
                    the quorum
    sent, received  bytes of this replica's contributions, and of the others'

    A round that does not commit has not happened, as in torchft: its steps are dropped, and the residual is as before. If the
    others did commit it, this replica recovers from them, and its residual counts its contribution as sent. A pseudo-gradient
    that is not finite, or that the plan cannot encode, is refused by all, and named in `last.refused`; the others apply the mean
    of theirs, and its replica recovers from them.

    The residual belongs to the replica: recovery does not transfer it, and a new replica starts without. Save `residuals()`.

    Frames are made on the CPU and need the manager's process group to be of gloo. Raises ArgumentError, and Unsupported for other
    process groups.
    """

    def __init__(
        self,
        manager: torchft.Manager,
        model_fragments: List[torch.nn.Module],
        inner_optimizer: torch.optim.Optimizer,
        outer_optimizer: Any,
        sync_every: int,
        plan: Plans,
        *,
        dense_below: Optional[int] = None,
        flat: Optional[bool] = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        refused = sorted({"should_quantize", "use_bucketization", "bucket_cap_mb"} & set(options))
        if refused:
            raise ArgumentError(f"{refused[0]} has no use here: the plan says how pseudo-gradients are sent")
        if os.getenv("TORCHFT_USE_BUCKETIZATION") == "True":
            raise ArgumentError("the environment has TORCHFT_USE_BUCKETIZATION=True; frames need the parameters one by one: unset it")
        terms = {"dense_below": dense_below, "flat": flat, "seed": seed}
        self._channel = Channel(manager, [_shapes(fragment) for fragment in model_fragments], plan, terms, sync_every)
        super().__init__(self._channel, model_fragments, inner_optimizer, outer_optimizer, sync_every, **options)

    @property
    def last(self) -> Optional[Round]:
        return self._channel.last

    @property
    def sent(self) -> int:
        return self._channel.sent

    @property
    def received(self) -> int:
        return self._channel.received

    def residuals(self) -> SavedState:
        """The residuals of this replica, for a checkpoint. After a round that did not commit here they hold both, with its
        contribution and without: which of them is right is known when this replica has recovered from the others. Raises
        ArgumentError while a round is under way."""
        return self._channel.residuals()

    def load_residuals(self, saved: SavedPart) -> None:
        """Restores what residuals() returned. Raises ArgumentError for those of another model or plan."""
        self._channel.load_residuals(saved)


def _shapes(fragment: torch.nn.Module) -> Dict[str, Tuple[int, ...]]:
    """{name: shape} of what this rank has of the parameters, as torchft's DiLoCo reads them."""
    found = {}
    for name, parameter in fragment.named_parameters():
        here = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        if here.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise Unsupported(f"{name} is of {here.dtype}; float32, float16 and bfloat16 are exchanged")
        found[name] = tuple(here.shape)
    return found


class _Pending(NamedTuple):
    """A contribution of which it is not yet known whether it was applied: the replica's id and the number that it carries.
    before: the states before it was encoded."""

    replica: str
    serial: int
    before: SavedState


class _Merged(NamedTuple):
    """A round: the statistics, why this replica's contribution was refused ("" if it was not), {replica: serial} of what was
    applied, and {name: mean}."""

    round: Round
    refused: str
    applied: Dict[str, int]
    means: Dict[str, Any]


class _Work:
    """A tensor of a round, as torchft's DiLoCo waits for it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def wait(self, timeout: Optional[Any] = None) -> bool:
        return self._channel.finish()


class Channel:
    """What stands between torchft's DiLoCo and its manager."""

    def __init__(
        self, manager: Any, fragments: Sequence[Mapping[str, Tuple[int, ...]]], plan: Plans, terms: Mapping[str, Any], sync_every: int
    ) -> None:
        self._manager, self._group = manager, ManagedProcessGroup(manager)
        backend = self._group.getBackendName()
        if "gloo" not in backend:
            raise Unsupported(f"the manager's process group is {backend}; frames need torchft.ProcessGroupGloo")
        rules = Rules(plan, terms["flat"])
        require_frames(rules)
        named = [{f"{i}.{name}": shape for name, shape in shapes.items()} for i, shapes in enumerate(fragments)]
        self._coders = [FragmentCoder(shapes, rules.book, {**terms, "flat": rules.flat}) for shapes in named]
        self._plan = ", ".join(rules.lines)
        everything = repr((rules.lines, sorted(terms.items()), named, sync_every))
        self._terms = int.from_bytes(hashlib.blake2b(everything.encode(), digest_size=8).digest(), "little")
        self._id, self._serial = uuid.uuid4().hex, 0
        self._applied: List[Dict[str, int]] = [{} for _ in fragments]  # {replica: serial of its last contribution that was applied}
        self._pending: List[Optional[_Pending]] = [None for _ in fragments]
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="deepreduce")
        self._tensors: List[torch.Tensor] = []  # of the round that is under way
        self._number, self._fragment = 0, 0
        self._job: Optional[Future[_Merged]] = None
        self._merged: Optional[_Merged] = None
        self.last: Optional[Round] = None
        self.sent, self.received = 0, 0
        manager.register_state_dict_fn("deepreduce", self._load_applied, lambda: {"applied": [dict(serials) for serials in self._applied]})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    # ---- The calls of torchft's DiLoCo ----

    def allreduce(self, tensor: torch.Tensor, should_quantize: bool = False) -> _Work:
        """Sends a pseudo-gradient with the others of its fragment, when it is the last of these."""
        if not self._tensors:
            self._number = self._manager.current_step()
            self._fragment = self._number % len(self._coders)
        self._tensors.append(tensor)
        shapes = self._coders[self._fragment].outputs
        if len(self._tensors) == len(shapes) and not self._manager.errored():
            named = {name: given.detach().to("cpu", torch.float32).contiguous() for name, given in zip(shapes, self._tensors)}
            participates, size = self._manager.is_participating(), self._group.parent.size()
            self._job = self._thread.submit(self._exchange, self._fragment, self._number, named, participates, size)
        return _Work(self)

    def finish(self) -> bool:
        """Waits for the round, and writes the means into the tensors. The manager learns of errors."""
        job, self._job = self._job, None
        if job is None:
            return True
        try:
            merged = job.result()
            self.last = merged.round
            for name, why in self.last.refused.items():
                _log.warning("round %d: the contribution of replica %s is refused: %s", self._number, name, why)
            if merged.refused:  # (its own weights may be unsound, and stay so: torchft's commit mixes them in)
                raise Error(f"this replica recovers from the others, which refuse what it sent: {merged.refused}")
            for tensor, mean in zip(self._tensors, merged.means.values()):
                tensor.copy_(torch.from_numpy(mean).view(tensor.shape))
        except Exception as error:
            _log.warning("round %d: %s", self._number, error)
            self._manager.report_error(error)
            return False
        self._merged = merged
        return True

    def should_commit(self, timeout: Optional[Any] = None) -> bool:
        merged, self._merged, self._tensors = self._merged, None, []
        committed = bool(self._manager.should_commit(timeout=timeout))
        if committed and merged is not None:
            applied = self._applied[self._fragment]
            for replica, serial in merged.applied.items():
                applied.pop(replica, None)  # (so that the last are the newest)
                applied[replica] = serial
            for replica in list(applied)[:-_APPLIED_MAX]:
                del applied[replica]
        return committed

    # ---- A round, in a thread of its own ----

    def _exchange(self, fragment: int, number: int, tensors: Mapping[str, torch.Tensor], participates: bool, size: int) -> _Merged:
        begin = time.perf_counter()
        message = self._encode(fragment, number, tensors) if participates else b""
        words = torch.tensor([len(message), number, signed(self._terms)])
        reports = [report.tolist() for report in self._gather(words, size)]
        for rank, (_, its_number, terms) in enumerate(reports):
            if terms != signed(self._terms):
                raise ArgumentError(f"replica {rank} of the quorum has another model, plan or option; here the plan is {self._plan}")
            if its_number != number:
                raise OutOfStep(f"replica {rank} of the quorum is at step {its_number}, this one at {number}")
        sizes, coder = [report[0] for report in reports], self._coders[fragment]
        max_bytes = coder.max_bytes + overhead(coder.units, 0)
        for rank, its_size in enumerate(sizes):
            if not 0 <= its_size <= max_bytes:
                raise CorruptFrame(f"replica {rank} of the quorum announces {its_size} bytes; at most {max_bytes} are allowed")
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8) if message else 0
        received = [data.numpy()[:its_size].tobytes() for data, its_size in zip(self._gather(padded, size), sizes)]
        self.sent += len(message)
        self.received += sum(sizes) - len(message)
        accepted, refused, means = self._merge(fragment, number, received)
        workers = tuple(str(rank) for rank in accepted)
        done = Round(number, workers, refused, (), len(message), sum(sizes) - len(message), time.perf_counter() - begin)
        pairs = (contribution.base.split() for contribution in accepted.values())
        applied = {replica: int(serial) for replica, serial in pairs}
        here = refused.get(str(received.index(message)), "") if message and self._id not in applied else ""
        return _Merged(done, here, applied, means)

    def _gather(self, tensor: torch.Tensor, size: int) -> List[torch.Tensor]:
        received = [torch.empty_like(tensor) for _ in range(size)]
        if tensor.numel():
            self._group.allgather([received], [tensor], AllgatherOptions()).wait()
        return received

    def _encode(self, fragment: int, number: int, tensors: Mapping[str, torch.Tensor]) -> bytes:
        coder = self._coders[fragment]
        self._settle(fragment)
        bad = next((name for name, tensor in tensors.items() if not is_finite(tensor)), None)
        fault, slots = "" if bad is None else f"{bad}: what it moved is not finite", []
        if not fault:
            self._serial += 1
            self._pending[fragment] = _Pending(self._id, self._serial, coder.sender.state_dict())
            try:
                slots = coder.encode(tensors, number, int(self._id[:16], 16))
            except Error as error:  # (the others wait for this replica's message, so it says why)
                fault = str(error)
                self._settle(fragment)
        return pack("", number, "", f"{self._id} {self._serial}", 1.0, fault, slots, b"")

    def _merge(self, fragment: int, number: int, received: Sequence[bytes]) -> Tuple[Dict[int, Contribution], Dict[str, str], Dict[str, Any]]:
        """The mean of what is sound. It depends on the bytes alone, so it is the same on all replicas."""
        coder, accepted, refused = self._coders[fragment], {}, {}
        for rank, data in enumerate(received):
            if data:  # (a spare of torchft's FIXED_WITH_SPARES sends nothing)
                try:
                    accepted[rank] = unpack(data, "", number, "", 0)
                    if len(accepted[rank].slots) != coder.units:
                        raise Refused(f"it has {len(accepted.pop(rank).slots)} slots")
                except Refused as error:
                    refused[str(rank)] = str(error)
        while accepted:
            try:
                return accepted, refused, coder.merge([contribution.slots for contribution in accepted.values()], number)
            except Error as error:
                if error.rank is None:
                    raise
                rank = list(accepted)[error.rank]
                del accepted[rank]
                refused[str(rank)] = str(error)
        raise Error(f"no replica's pseudo-gradient can be applied: {refused}")

    def _settle(self, fragment: int) -> None:
        """The last contribution was applied, here or by the replica from which this one recovered; or its states are undone."""
        pending, self._pending[fragment] = self._pending[fragment], None
        if pending is not None and not self._is_applied(fragment, pending):
            self._coders[fragment].sender.load_state_dict(pending.before)

    def _is_applied(self, fragment: int, pending: _Pending) -> bool:
        return self._applied[fragment].get(pending.replica) == pending.serial

    # ---- States ----

    def _load_applied(self, state: SavedPart) -> None:
        """Another replica's, from which this one recovers."""
        self._applied = [dict(serials) for serials in state["applied"]]

    def residuals(self) -> SavedState:
        if self._tensors:
            raise ArgumentError("a round is under way: save the residuals after it")
        return {str(i): self._saved(i) for i in range(len(self._coders))}

    def _saved(self, fragment: int) -> SavedState:
        """The residual of a fragment. If it is undecided whether the last contribution was applied: the one before it, and the
        one after it."""
        coder, pending = self._coders[fragment], self._pending[fragment]
        if pending is None or self._is_applied(fragment, pending):
            return coder.saved()
        undecided = {"replica": pending.replica, "serial": pending.serial, "after": coder.saved()}
        return {**coder.saved(pending.before), "undecided": undecided}

    def load_residuals(self, saved: SavedPart) -> None:
        if self._tensors:
            raise ArgumentError("a round is under way: load before the first step")
        if len(saved) != len(self._coders):
            raise ArgumentError(f"the residuals are of {len(saved)} fragments; this model has {len(self._coders)}")
        self._pending = [None for _ in self._coders]
        for i, coder in enumerate(self._coders):
            coder.sender.load_state_dict(saved[str(i)])
            undecided = saved[str(i)].get("undecided")
            if undecided is not None:  # the quorum of the next round decides it
                before = coder.sender.state_dict()
                coder.sender.load_state_dict(undecided["after"])
                self._pending[i] = _Pending(undecided["replica"], undecided["serial"], before)
