"""The steps of a Sender over point-to-point messages of a Transport, such as that of deepreduce.mpi.

A message has a length, so only the used bytes of a slot are sent, and there is never a rest to send.
"""

from __future__ import annotations

import time
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy

from .._native._transport import Transport
from .._native._types import Array
from ..errors import ArgumentError, Error, MissingRank, PeerError
from ..sender import Sender

_PHASES = 2  # of a unit: its slots; the slots of sums

# Kept alive: memory that a transport may still use, for an unknown time.
_LEFT: List[Array] = []


class _Message(NamedTuple):
    peer: int
    request: int


class _Slots:
    """The slots that this rank sends, and one slot received from each rank.

    own       [1 or ranks, bound] bytes: the slot for all, or one for each rank
    received  [ranks, bound]; the row of this rank is not used
    """

    def __init__(self, transport: Transport, tag: int, slots: int, bound: int) -> None:
        self._transport, self._tag, self._bound = transport, tag, bound
        # (Zeros: the bytes after a slot are not read, but they must not be those of another program.)
        self.own = numpy.zeros((slots, bound), numpy.uint8)
        self.received = numpy.zeros((transport.ranks, bound), numpy.uint8)
        self.under_way: List[_Message] = []

    def send(self, size: int) -> None:
        """Starts to send `size` bytes of each slot, and to receive."""
        me, ranks = self._transport.rank, self._transport.ranks
        for distance in range(1, ranks):  # each rank begins with another one
            to, source = (me + distance) % ranks, (me - distance) % ranks
            for peer, start, row, n in (
                (source, self._transport.recv, self.received[source], self._bound),
                (to, self._transport.send, self.own[to if len(self.own) > 1 else 0], size),
            ):
                try:
                    self.under_way.append(_Message(peer, start(peer, self._tag, row.ctypes.data, n)))
                except Error as error:
                    raise _lost(peer, error) from error

    def places(self) -> List[Tuple[int, int]]:
        """Address and capacity of each rank's slot."""
        me = self._transport.rank
        rows = [self.own[me if len(self.own) > 1 else 0] if rank == me else row for rank, row in enumerate(self.received)]
        return [(row.ctypes.data, self._bound) for row in rows]

    def arrived(self, deadline: float, timeout: float) -> Iterator[None]:
        """Yields until all messages have arrived. Raises MissingRank if a rank does not answer, PeerError if it is lost."""
        while True:
            for message in tuple(self.under_way):
                if self._is_over(message):
                    self.under_way.remove(message)
            if not self.under_way:
                return
            if time.monotonic() > deadline:
                late = sorted({message.peer for message in self.under_way})
                names = ", ".join(map(str, late))
                error = MissingRank(f"rank {names} did not answer within {timeout:g} s")
                error.rank = late[0]
                raise error
            yield

    def _is_over(self, message: _Message) -> bool:
        try:
            return self._transport.test(message.request) is not None
        except Error as error:  # the transport has forgotten it
            self.under_way.remove(message)
            raise _lost(message.peer, error) from error

    def give_up(self) -> bool:
        """Cancels the current messages. False: the transport still uses their memory."""
        left = [message for message in self.under_way if not self._transport.cancel(message.request)]
        self.under_way = left
        return not left


def _lost(rank: int, error: Error) -> PeerError:
    lost = PeerError(f"rank {rank}: {error}")
    lost.rank = rank
    return lost


class SenderSteps:
    """Steps of all units of a sender whose kind is "frames" or "owner". One step runs at a time.

    timeout  seconds within which a rank must answer. If one does not, no later step is possible, since its messages may
             still arrive
    """

    def __init__(self, sender: Sender, transport: Transport, timeout: float) -> None:
        self._sender, self._timeout = sender, timeout
        self._slots: Dict[int, _Slots] = {}
        self._sums: Dict[int, _Slots] = {}
        for i, unit in enumerate(sender.units):
            if unit.kind not in ("frames", "owner"):
                continue
            self._slots[i] = _Slots(transport, _PHASES * i, unit.slots, unit.bound)
            if unit.kind == "owner":
                self._sums[i] = _Slots(transport, _PHASES * i + 1, 1, unit.sum_bound)
        self._rank = transport.rank
        self._lost: Optional[Error] = None

    def run(self, step: int) -> Iterator[None]:
        """Runs a step of the placed tensors. It yields while it waits, and ends when the outputs are written.

        An error is raised when all units have ended and what was sent is back in the residuals; the next step can begin. After
        MissingRank, and PeerError for a lost rank, later steps raise the same error.
        """
        sender, failed = self._sender, None
        if self._lost is not None:
            raise self._lost
        broken: Optional[BaseException] = None
        with sender._turn():
            try:
                for i, slots in self._slots.items():
                    slots.send(sender._encode_at(i, step, slots.own.ctypes.data, slots.own.size, self._rank).size)
            except BaseException as error:
                broken = error
        if broken is not None:
            self._end(step, broken)
            raise broken
        deadline = time.monotonic() + self._timeout
        try:
            for i, sums in self._sums.items():
                yield from self._slots[i].arrived(deadline, self._timeout)
                with sender._turn():
                    made = sender._sum_at(i, step, self._slots[i].places(), sums.own.ctypes.data, sums.own.size)
                sums.send(made.size)
            for i in self._slots:
                travelled = self._sums.get(i, self._slots[i])
                yield from travelled.arrived(deadline, self._timeout)
                try:
                    with sender._turn():
                        sender._merge_at(i, step, travelled.places())
                except Error as error:
                    failed = failed or error
        except BaseException as error:
            self._end(step, error)
            raise
        if failed is not None:
            sender.take_back(step)
            raise failed

    def _end(self, step: int, error: BaseException) -> None:
        """Ends a step with messages left: other ranks wait for some, or some arrive later. No step can follow."""
        for slots in (*self._slots.values(), *self._sums.values()):
            if not slots.give_up():
                _LEFT.extend([slots.own, slots.received])
        self._lost = error if isinstance(error, Error) else ArgumentError(f"step {step} was given up: {type(error).__name__}")
        if not isinstance(error, GeneratorExit):  # of garbage, as its sender may be
            self._sender.take_back(step)

    @property
    def is_sound(self) -> bool:
        """Whether no rank was lost."""
        return self._lost is None
