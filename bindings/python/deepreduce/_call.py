"""Calls into the library: contexts, errors, structs. Nothing here is public."""

from __future__ import annotations

import ctypes
import operator
import os
import threading
from typing import Any, Dict, NoReturn, Optional, TypeVar

from . import _abi, _library
from .errors import BY_CODE, ArgumentError, InternalError

Struct = TypeVar("Struct", bound=ctypes.Structure)

_THREADS_MAX = 256  # deepreduce.h


class Context:
    """A dr_context. It serves the one thread that made it; a forked child leaves it alone, since the threads of
    its pool are not there."""

    def __init__(self, threads: int) -> None:
        library = _library.load()
        self.handle = ctypes.POINTER(_abi.dr_context)()
        self.process = os.getpid()
        self._destroy = library.dr_context_destroy
        options = new(_abi.dr_context_options)
        options.threads = threads
        status = library.dr_context_create(ctypes.byref(options), ctypes.byref(self.handle))
        if status:
            fail_without_words(status, f"no context of {threads} threads")

    def __del__(self) -> None:
        if getattr(self, "handle", None) and self.process == os.getpid():
            self._destroy(self.handle)


_of_thread = threading.local()


def context_of_thread(threads: Optional[int]) -> Context:
    """This thread's context that works with so many threads."""
    count = 1 if threads is None else unsigned(threads, "threads", _THREADS_MAX + 1)
    contexts: Dict[int, Context] = _of_thread.__dict__.setdefault("contexts", {})
    context = contexts.get(count)
    if context is None or context.process != os.getpid():
        context = contexts[count] = Context(count)
    return context


def fail(status: int, context: Context) -> NoReturn:
    """Raises what the context says of its last call."""
    _raise(status, read(_library.load().dr_last_error(context.handle), _abi.dr_error))


def check(status: int, error: _abi.dr_error) -> None:
    """Raises what `error` says, if the call that was given it failed."""
    if status:
        _raise(status, error)


def fail_without_words(status: int, message: str) -> NoReturn:
    """Raises for the calls that only give a status."""
    raise BY_CODE.get(status, InternalError)(message, code=status)


def _raise(status: int, error: _abi.dr_error) -> NoReturn:
    raise BY_CODE.get(status, InternalError)(
        text(error.message) or _library.load().dr_status_name(status).decode(),
        code=status,
        tensor=None if error.tensor == _abi.DR_NO_TENSOR else error.tensor,
        where=error.where,
    )


# ---- Small things -------------------------------------------------------------------------------


def new(kind: type[Struct]) -> Struct:
    """A zeroed struct that knows its size."""
    struct = kind()
    struct.struct_size = ctypes.sizeof(kind)
    return struct


def read(pointer: Any, kind: type[Struct]) -> Struct:
    """A copy of a struct that may be of an older or newer version; what it lacks is zero."""
    struct = kind()
    size = min(pointer.contents.struct_size, ctypes.sizeof(kind))
    ctypes.memmove(ctypes.addressof(struct), pointer, size)
    return struct


def text(message: Optional[bytes]) -> str:
    return (message or b"").decode("utf-8", "replace")


def c_string(text: str, what: str) -> bytes:
    encoded = os.fsencode(text)
    if b"\0" in encoded:
        raise ArgumentError(f"{what} has a zero byte")
    return encoded


def unsigned(value: Any, what: str, end: int = 2**64) -> int:
    """value as an integer below `end`: ctypes would wrap it silently."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{what} is {value!r}, not an integer") from None
    if not 0 <= number < end:
        raise ArgumentError(f"{what} = {number} is not in 0 … {end - 1}")
    return number
