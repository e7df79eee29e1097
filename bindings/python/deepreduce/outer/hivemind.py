"""deepreduce.outer.hivemind: hivemind's gradient averager, whose peers exchange frames. Imported on request.

    factory = functools.partial(deepreduce.outer.hivemind.GradientAverager, plan="sparseloco")
    optimizer = hivemind.Optimizer(…, grad_averager_factory=factory)

hivemind averages parts of tensors at different peers, and a part that comes back is added to what the peer has (docs/OUTER.md).
Here each peer of a group sends its frame to each other one, as hivemind's own messages without compression, and all apply the
mean. Matchmaking, weights and timeouts stay hivemind's.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import multiprocessing
from typing import Any, AsyncIterator, Callable, Coroutine, Dict, Iterable, Mapping, Optional, Sequence, Tuple, TypeVar

import torch
from hivemind.averaging.allreduce import AllreduceException
from hivemind.averaging.matchmaking import MatchmakingException
from hivemind.compression import CompressionBase, NoCompression
from hivemind.optim.grad_averager import GradientAverager as HivemindGradientAverager
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils.asyncio import enter_asynchronously
from hivemind.utils.streaming import split_for_streaming

from ..errors import ArgumentError, Error, Unsupported
from ..torch import Plans
from ..torch._engine import is_finite
from ..torch._rules import Rules
from ._contribution import WEIGHTS, Contribution, Refused, overhead, pack, unpack
from ._fragment_coder import FragmentCoder, require_frames

__all__ = ["GradientAverager"]

_OF_SHARES = ("bandwidth", "min_vector_size", "part_size_bytes", "reducer_timeout", "tensor_infos")
_VERSION = 2  # of messages: peers of another one do not meet
_T = TypeVar("_T")
_log = logging.getLogger("deepreduce.outer")


class GradientAverager(HivemindGradientAverager):  # type: ignore[misc]
    """hivemind's GradientAverager with compressed gradients, for grad_averager_factory of hivemind.Optimizer; or on its own, for
    gradients and for pseudo-gradients.

    parameters  as of hivemind's
    plan        as of deepreduce.torch.DDPHook; it must produce frames
    dense_below, flat, seed  as of DDPHook
    options     the other arguments of hivemind's GradientAverager, but for those of its shares: bandwidth, min_vector_size,
                part_size_bytes, reducer_timeout, tensor_infos

    sent, received  bytes of frames that this peer sent to the others, and received

    Peers find one another only if they have the same plan and options. The residual belongs to the peer, in the averager's
    process; a new peer starts without. A step that fails leaves it as it was. A peer that does not answer within `sender_timeout`
    (without one: never), or whose gradient is not finite, is left out by those that lack its frame.

    Raises ArgumentError for another compression or an option of shares, an error of the library for a plan that the tensors
    cannot have (`pulseloco` compares with weights, and an averager has none), and Unsupported for auxiliary and client-mode
    peers: each peer must be reachable (hivemind's relays suffice).
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        plan: Plans,
        *,
        dense_below: Optional[int] = None,
        flat: Optional[bool] = None,
        seed: int = 0,
        compression: Optional[CompressionBase] = None,
        auxiliary: bool = False,
        client_mode: Optional[bool] = None,
        start: bool = False,
        **options: Any,
    ) -> None:
        self._parent_pid = 0  # hivemind's __del__ reads it, after an error here, too
        if compression is not None and type(compression) is not NoCompression:
            raise ArgumentError(f"the compression is {compression}; the plan says how gradients are sent: leave it out")
        unused = [name for name in _OF_SHARES if options.get(name) is not None]
        if unused:
            raise ArgumentError(f"{', '.join(unused)}: of the shares that hivemind's averager divides tensors into; leave it out: here are none")
        if client_mode is None:
            client_mode = options["dht"].client_mode
        if auxiliary or client_mode:
            what = "an auxiliary peer" if auxiliary else "a peer in client mode"
            raise Unsupported(f"this is {what}; each peer sends its frame to each other one of its group")
        rules = Rules(plan, flat)
        require_frames(rules)
        self._book, self._terms = rules.book, {"dense_below": dense_below, "flat": rules.flat, "seed": seed}
        self._traffic = multiprocessing.Array("Q", 2)  # (the averager is a process of its own)
        self._coder: Optional[FragmentCoder] = None
        parameters = tuple(parameters)
        self._new_coder(parameters)  # raises what the averager's process would raise in every step
        super().__init__(parameters, client_mode=False, start=False, **options)
        schema: bytes = getattr(self, "schema_hash")  # noqa: B009 (mypy does not see hivemind's types)
        terms = repr((rules.lines, sorted(self._terms.items()), _VERSION))
        self.schema_hash = hashlib.sha256(schema + terms.encode()).digest()
        if start:
            self.run_in_background(await_ready=True)

    @property
    def sent(self) -> int:
        return int(self._traffic[0])

    @property
    def received(self) -> int:
        return int(self._traffic[1])

    # ---- In the averager's process ----

    async def _aggregate_with_group(self, group_info: Any, min_vector_size: int, **kwargs: Any) -> Any:
        """As hivemind's, without the shares of peers."""
        try:
            _, _, user_gathered_bytes = zip(*map(self.serializer.loads, group_info.gathered))
            async with enter_asynchronously(self.get_tensors()) as tensors:
                await self._run_allreduce_inplace_(tensors, group_info, **kwargs)
            return dict(zip(group_info.peer_ids, map(self.serializer.loads, user_gathered_bytes)))
        except (Exception, asyncio.CancelledError) as error:  # (allreduce_timeout cancels; hivemind's catches it, too)
            raise MatchmakingException(f"Unable to run All-Reduce: {error!r}") from error

    async def _run_allreduce_inplace_(
        self, tensors: Sequence[torch.Tensor], group_info: Any, group_id: Optional[bytes] = None, *, weight: float = 1.0,
        sender_timeout: Optional[float] = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Sends this peer's frame to the group, receives theirs, and writes the mean into the tensors."""
        group_id = group_info.group_id if group_id is None else group_id
        if self._coder is None:
            self._coder = await _on_a_thread(self._new_coder, tensors)
        coder = self._coder
        before = coder.sender.state_dict()
        try:
            others = [peer for peer in group_info.peer_ids if peer != self.peer_id]
            group = _Group(others, coder.max_bytes + overhead(coder.units, 0), sender_timeout)
            self._running_groups[group_id].set_result(group)
            message = await _on_a_thread(self._encode, coder, tensors, group_id, weight)
            received, reached = await group.exchange({peer: self._send(peer, group_id, message, group) for peer in others})
            if others and not (received and reached):
                raise AllreduceException("no other peer of the group answered")
            messages = {**received, self.peer_id: message}
            ordered = {peer: messages[peer] for peer in group_info.peer_ids if peer in messages}
            means = await _on_a_thread(self._merge, coder, ordered, group_id)
            for tensor, mean in zip(tensors, means.values()):
                update = torch.from_numpy(mean).view(tensor.shape)
                tensor.add_(update - tensor, alpha=self._averaging_alpha) if self._averaging_alpha != 1 else tensor.copy_(update)
            self._traffic[0] += len(message) * len(others)
            self._traffic[1] += sum(map(len, received.values()))
            self._state_updated.set()
            if not weight:  # what it sent does not count
                coder.sender.load_state_dict(before)
        except BaseException:
            coder.sender.load_state_dict(before)
            raise

    def _new_coder(self, tensors: Sequence[torch.Tensor]) -> FragmentCoder:
        return FragmentCoder({str(i): tuple(tensor.shape) for i, tensor in enumerate(tensors)}, self._book, self._terms)

    def _encode(self, coder: FragmentCoder, tensors: Sequence[torch.Tensor], group_id: bytes, weight: float) -> bytes:
        moved = {name: tensor.float() for name, tensor in zip(coder.outputs, tensors)}
        bad = next((name for name, tensor in moved.items() if not is_finite(tensor)), None)
        fault = "" if bad is None else f"tensor {bad} is not finite"
        private = int.from_bytes(self.peer_id.to_bytes()[-8:], "little")
        slots = list(coder.encode(moved, _number(group_id), private)) if bad is None else []
        # (The weight of a peer without samples is the smallest that a message can have.)
        return pack("", _number(group_id), "", "", weight or WEIGHTS[0], fault, slots, b"")

    def _merge(self, coder: FragmentCoder, messages: Mapping[Any, bytes], group_id: bytes) -> Mapping[str, Any]:
        """The weighted mean of what is sound."""
        sound: Dict[Any, Contribution] = {}
        for peer, data in messages.items():
            try:
                found = unpack(data, "", _number(group_id), "", 0)
                if len(found.slots) != coder.units:
                    raise Refused(f"it has {len(found.slots)} slots")
                coder.merge([found.slots], _number(group_id))
                sound[peer] = found
            except Error as error:
                _log.warning("the contribution of peer %s is refused: %s", peer, error)
        weights = [found.weight for found in sound.values()]
        if sum(weights) < 1e-9:
            raise AllreduceException("no gradient of the group can be applied")
        return coder.mean([found.slots for found in sound.values()], _number(group_id), [found.factor for found in sound.values()], sum(weights))

    async def _send(self, peer: Any, group_id: bytes, message: bytes, group: _Group) -> None:
        tensor = runtime_pb2.Tensor(compression=runtime_pb2.NONE, buffer=message, size=[len(message)], dtype="uint8")

        async def parts() -> AsyncIterator[Any]:
            for i, part in enumerate(split_for_streaming(tensor)):
                group.has_sent(peer)
                first = {"code": averaging_pb2.PART_FOR_AVERAGING, "group_id": group_id} if i == 0 else {}
                yield averaging_pb2.AveragingData(tensor_part=part, **first)

        stub = type(self).get_stub(self._p2p, peer, namespace=self.prefix)
        async for answer in await stub.rpc_aggregate_part(parts()):
            if answer.code != averaging_pb2.AVERAGED_PART:
                raise AllreduceException(f"{peer} answered {averaging_pb2.MessageCode.Name(answer.code)}")


class _Group:
    """The exchange of messages with the other peers of a group. It has the calls of hivemind's AllReduceRunner that the averager
    uses.

    timeout  seconds after which it gives up on a message of which no byte arrives, or leaves
    """

    def __init__(self, peers: Sequence[Any], max_bytes: int, timeout: Optional[float]) -> None:
        loop = asyncio.get_running_loop()
        self._max_bytes, self._timeout, self._now = max_bytes, timeout, loop.time
        self._incoming: Dict[Any, asyncio.Future[bytes]] = {peer: loop.create_future() for peer in peers}
        self._received_at, self._sent_at = dict.fromkeys(peers, 0.0), dict.fromkeys(peers, 0.0)

    def has_sent(self, peer: Any) -> None:
        self._sent_at[peer] = self._now()

    async def exchange(self, sends: Mapping[Any, Coroutine[Any, Any, None]]) -> Tuple[Dict[Any, bytes], int]:
        """{peer: its message}, and how many peers confirmed this one's."""
        outgoing: Mapping[Any, asyncio.Future[Any]] = {peer: asyncio.create_task(send) for peer, send in sends.items()}
        incoming: Mapping[Any, asyncio.Future[Any]] = self._incoming
        pairs = [(outgoing, self._sent_at), (incoming, self._received_at)]
        for _, moved_at in pairs:
            moved_at.update(dict.fromkeys(moved_at, self._now()))
        try:
            await asyncio.gather(*(self._end_of(future, moved_at, peer) for futures, moved_at in pairs for peer, future in futures.items()))
        finally:
            for future in (*outgoing.values(), *incoming.values()):
                future.cancel()
        for futures, failed in (outgoing, "did not confirm the frame"), (incoming, "sent no frame"):
            for peer, future in futures.items():
                if not _is_done(future):
                    _log.warning("peer %s %s", peer, failed)
        received = {peer: future.result() for peer, future in incoming.items() if _is_done(future)}
        return received, sum(map(_is_done, outgoing.values()))

    async def _end_of(self, future: asyncio.Future[Any], moved_at: Mapping[Any, float], peer: Any) -> None:
        """Returns when the future is done, or cancels it when nothing has moved for the timeout."""
        rest = None
        while not future.done():
            if self._timeout is not None:
                rest = moved_at[peer] + self._timeout - self._now()
                if rest <= 0:
                    future.cancel()
                    return
            await asyncio.wait({future}, timeout=rest)

    async def rpc_aggregate_part(self, stream: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """A peer sends its message."""
        peer = context.remote_id
        future = self._incoming.get(peer)
        if future is None or future.done():
            yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        data = bytearray()
        async for part in stream:
            if future.done():
                break
            data += part.tensor_part.buffer
            if not part.tensor_part.buffer or len(data) > self._max_bytes:  # (a sound peer has no empty part)
                future.cancel()
                break
            self._received_at[peer] = self._now()
        if future.done():
            yield averaging_pb2.AveragingData(code=averaging_pb2.CANCELLED)
            return
        future.set_result(bytes(data))
        yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART)

    def finalize(self, cancel: bool = False, exception: Optional[BaseException] = None) -> Sequence[Any]:
        for future in self._incoming.values():
            future.cancel()
        return ()


def _is_done(future: asyncio.Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


async def _on_a_thread(call: Callable[..., _T], *arguments: Any) -> _T:
    """The call's result. A cancellation waits for the call's end, because it uses the sender and the tensors until then."""
    work = asyncio.get_running_loop().run_in_executor(None, call, *arguments)
    cancelled = None
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return work.result()


def _number(group_id: bytes) -> int:
    """The number of an exchange: the same on all peers of the group."""
    return int.from_bytes(hashlib.blake2b(group_id, digest_size=7).digest(), "little")
