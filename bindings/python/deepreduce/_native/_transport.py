"""What carries bytes between ranks, and the part of the library that exchanges them. Public as deepreduce.exchange.Transport."""

from __future__ import annotations

import ctypes
import functools
from typing import Callable, Optional

from ..errors import Error, LibraryError
from . import _abi, _abi_control, _abi_exchange, _abi_transform, _library
from ._abi_exchange import dr_transport
from ._call import new, unsigned
from ._types import Pointer


@functools.cache
def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    try:
        for header in (_abi_exchange, _abi_transform, _abi_control):
            _abi.declare(library, header.FUNCTIONS)
    except AttributeError as error:
        raise LibraryError(f"the library that was loaded has no exchanges ({error})") from None
    return library


def load_exchanges() -> ctypes.CDLL:
    return _declare(_library.load())


class Transport:
    """What carries bytes between ranks: derive from it. No method waits.

    ranks, rank  how many there are, and which this is

    An exception that a method raises is taken for the loss of the peer (TimeoutError: for its delay), and is the `__cause__` of
    the PeerError (MissingRank) that the exchange raises.
    Messages from a rank to another with equal tags arrive in the order in which they were sent.
    """

    ranks: int
    rank: int

    def send(self, peer: int, tag: int, address: int, size: int) -> int:
        """Starts to send the `size` bytes at `address`, which stay until the request is over; returns its number."""
        raise NotImplementedError

    def recv(self, peer: int, tag: int, address: int, capacity: int) -> int:
        """Starts to receive at most `capacity` bytes; returns the request's number."""
        raise NotImplementedError

    def test(self, request: int) -> Optional[int]:
        """None: not yet. Otherwise it is over, and of a receive so many bytes came."""
        raise NotImplementedError

    def cancel(self, request: int) -> bool:
        """Ends a request. False: the transport holds on to its memory."""
        raise NotImplementedError


class Callbacks:
    """A Transport as the library sees it."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.error: Optional[BaseException] = None  # the first that a method raised
        kinds = {field[0]: field[1] for field in dr_transport._fields_}
        self.struct = new(dr_transport)
        self.struct.ranks = unsigned(transport.ranks, "ranks", 2**32)
        self.struct.rank = unsigned(transport.rank, "rank", 2**32)
        self.struct.send = kinds["send"](functools.partial(self._start, transport.send))
        self.struct.recv = kinds["recv"](functools.partial(self._start, transport.recv))
        self.struct.test = kinds["test"](self._test)
        self.struct.cancel = kinds["cancel"](self._cancel)

    def _start(self, method: Callable[[int, int, int, int], int], _user: object, peer: int, tag: int, address: int, size: int, request: Pointer) -> int:
        try:
            request[0] = method(peer, tag, address or 0, size)
            return _abi.DR_OK
        except BaseException as error:
            return self._lost(error)

    def _test(self, _user: object, request: int, size: Pointer) -> int:
        try:
            came = self.transport.test(request)
            if came is None:
                return _abi.DR_PENDING
            if size:
                size[0] = came
            return _abi.DR_OK
        except BaseException as error:
            return self._lost(error)

    def _cancel(self, _user: object, request: int) -> int:
        try:
            return _abi.DR_OK if self.transport.cancel(request) else _abi.DR_PENDING
        except BaseException as error:
            self._lost(error)
            return _abi.DR_PENDING

    def _lost(self, error: BaseException) -> int:
        self.error = self.error or error
        if isinstance(error, Error):
            return error.code
        return _abi.DR_E_TIMEOUT if isinstance(error, TimeoutError) else _abi.DR_E_PEER
