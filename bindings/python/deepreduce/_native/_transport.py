"""Transports of bytes between ranks (public as deepreduce.exchange.Transport), and the exchanges of the library."""

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
        raise LibraryError(f"the loaded library has no exchanges ({error})") from None
    return library


def load_exchanges() -> ctypes.CDLL:
    return _declare(_library.load())


class Transport:
    """Base class of transports of bytes between ranks. No method waits.

    ranks, rank  number of ranks, and this rank's number

    If a method raises an exception, the exchange regards the peer as lost and raises PeerError; for a TimeoutError it regards
    the peer as late and raises MissingRank. The exception is the `__cause__`.
    Messages from a rank to another with equal tags arrive in the order in which they were sent.
    """

    ranks: int
    rank: int

    def send(self, peer: int, tag: int, address: int, size: int) -> int:
        """Starts to send the `size` bytes at `address`, which are valid until the request ends. Returns the request's number."""
        raise NotImplementedError

    def recv(self, peer: int, tag: int, address: int, capacity: int) -> int:
        """Starts to receive at most `capacity` bytes to `address`. Returns the request's number."""
        raise NotImplementedError

    def test(self, request: int) -> Optional[int]:
        """None if the request is pending. At its end, the number of bytes that a receive got."""
        raise NotImplementedError

    def cancel(self, request: int) -> bool:
        """Ends a request. False if the transport still uses its memory."""
        raise NotImplementedError


class Callbacks:
    """A Transport as callbacks of the library."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.error: Optional[BaseException] = None  # the first exception of a method
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
            received = self.transport.test(request)
            if received is None:
                return _abi.DR_PENDING
            if size:
                size[0] = received
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
