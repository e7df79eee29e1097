"""Calls into the library: contexts, errors, structs. Nothing here is public."""

from __future__ import annotations

import ctypes
import operator
import os
import re
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, NoReturn, Optional, Sequence, Tuple, Type, TypedDict, TypeVar, Union

from ..errors import BY_CODE, ArgumentError, ConcurrentUse, Error, InternalError, OutOfStep, PlanError, WrongBase
from . import _abi, _library
from ._types import Locked, Pointer, Tensor

Struct = TypeVar("Struct", bound=ctypes.Structure)

_THREADS_MAX = 256  # deepreduce.h

STREAMS = {_abi.DR_STREAM_INDEX: "index", _abi.DR_STREAM_VALUE: "value", _abi.DR_STREAM_ORDER: "order"}


class Uncopied:
    """Base of owners of memory, of a handle of the library or of a channel. copy, deepcopy and pickle raise TypeError: a copy
    would release it a second time."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} is neither copied nor pickled: a copy would release what it owns, too")


class Context(Uncopied):
    """A dr_context, for the thread that made it, and the handles that were made in it and end before it: the collector of cycles
    may end a context before its users. A forked child ends neither, since the threads of the pool do not exist there."""

    def __init__(self, threads: int) -> None:
        library = _library.load()
        self.handle = ctypes.POINTER(_abi.dr_context)()
        self.process = os.getpid()
        self.scratch: Tensor = None  # uint8[], the buffer of an encode
        self._destroy = library.dr_context_destroy
        self._owned: Dict[int, Tuple[Pointer, Callable[[Pointer], None], bool]] = {}
        options, error = new(_abi.dr_context_options), new(_abi.dr_error)
        options.threads = threads
        check(library.dr_context_create(options, ctypes.byref(self.handle), error), error)

    def own(self, handle: Pointer, destroy: Callable[[Pointer], None], at_exit: bool = True) -> None:
        """From now on the context ends the handle, unless `end` has. at_exit: also while the interpreter ends."""
        self._owned[id(handle)] = handle, destroy, at_exit

    def end(self, handle: Pointer) -> None:
        """Ends a handle that the context owns; once."""
        owned = self._owned.pop(id(handle), None)
        if owned and self.process == os.getpid() and (owned[2] or not sys.is_finalizing()):
            destroy(handle, owned[1])

    def __del__(self) -> None:
        if getattr(self, "handle", None) and self.process == os.getpid():
            for handle, _, _ in reversed(list(self._owned.values())):
                self.end(handle)
            destroy(self.handle, self._destroy)


def destroy(handle: Pointer, function: Callable[[Pointer], None], memset: Callable[[Any, int, int], object] = ctypes.memset) -> None:
    """Ends a handle, which is NULL from then on. The finalizers of a cycle of garbage run in any order, so that of a generator may
    still call a method of the handle's owner: an ArgumentError."""
    function(handle)
    memset(ctypes.byref(handle), 0, ctypes.sizeof(handle))


_of_thread = threading.local()


def thread_count(threads: Optional[int]) -> int:
    return 1 if threads is None else unsigned(threads, "threads", _THREADS_MAX + 1)


def context_of_thread(threads: Optional[int]) -> Context:
    """This thread's context with a pool of `threads` threads (None: 1)."""
    count = thread_count(threads)
    contexts: Dict[int, Context] = _of_thread.__dict__.setdefault("contexts", {})
    context = contexts.get(count)
    if context is None or context.process != os.getpid():
        context = contexts[count] = Context(count)
    return context


def trim() -> None:
    """Releases the memory that calls on this thread keep for later calls: workspaces, prepared batches, memory on GPUs.
    Later calls allocate it again.

    >>> deepreduce.trim()
    """
    for context in list(_of_thread.__dict__.get("contexts", {}).values()):
        context.scratch = None
        if context.process == os.getpid():
            status = _library.load().dr_context_trim(context.handle)
            if status:
                fail(status, context)


def last_error(context: Context) -> _abi.dr_error:
    """A copy of the context's error. It has all fields, though its struct_size is that of the ABI's first header."""
    return _abi.dr_error.from_buffer_copy(_library.load().dr_last_error(context.handle).contents)


def fail(status: int, context: Context) -> NoReturn:
    """Raises the error of the context's last call."""
    _raise(status, last_error(context))


def check(status: int, error: _abi.dr_error) -> None:
    """Raises `error` if the call that filled it failed."""
    if status:
        _raise(status, error)


def check_plan(status: int, error: _abi.dr_error) -> None:
    """Raises `error` if the call that filled it failed: PlanError if the text that it read is not a plan."""
    if status == _abi.DR_E_ARGUMENT:
        raise error_of(status, error, PlanError)
    check(status, error)


def error_of(status: int, error: _abi.dr_error, kind: Optional[Type[Error]] = None) -> Error:
    """The exception for an error of the engine, with its message. kind: None: by the error"""
    kind = kind or _BY_REASON.get(error.reason, BY_CODE.get(status, InternalError))
    message = text(error.message)
    unfinite = _UNFINITE.search(message) if error.stream == _abi.DR_STREAM_VALUE else None
    return kind(
        message or _library.load().dr_status_name(status).decode(),
        code=status,
        tensor=None if error.tensor == _abi.DR_NO_TENSOR else error.tensor,
        where=error.where,
        what=error.what if unfinite is None else float(unfinite[1]),
        frame=None if error.frame == _abi.DR_NO_FRAME else error.frame,
        needed=error.needed or None,
        stream=STREAMS.get(error.stream),
    )


_UNFINITE = re.compile(r", value (nan|-?inf)\)$")  # (`what` of the struct has the bits)
_BY_REASON: Dict[int, Type[Error]] = {_abi.DR_REASON_WRONG_BASE: WrongBase, _abi.DR_REASON_OUT_OF_STEP: OutOfStep}


def _raise(status: int, error: _abi.dr_error) -> NoReturn:
    made = error_of(status, error)
    message = str(made).replace("decode it with DR_DECODE_APPLY, into its base", "apply it by deepreduce.patch.apply, in a patch")
    message = message.replace("DR_PLACE_ALLOW_HOST", "allow_host=True")
    made.args = (
        re.sub(r"state: NULL; (.*) \(dr_state_size\)", r"state: None; \1: pass state=State(x, plan), or for a list State.of(x, plan)", message),
    )
    try:
        raise made
    finally:
        del made  # its traceback refers to this frame, which would refer to it: the memory of the call until a garbage collection


# ---- Objects that allow one call at a time ------------------------------------------------------


class Call(TypedDict, total=False):
    """A call of an object. A new dict is one that runs."""

    end: weakref.ref[threading.Lock]  # the call has ended once this lock is free, or gone
    next: Call  # the call after this one


ENDED = weakref.ref(threading.Lock())  # gone


class OneCall:
    """Lets an object be in one call at a time. It refers to the last call, the only one that may run.

    Python may raise an interrupt (Ctrl-C) when any function returns, so a call both begins and ends by one function of C or one
    store, which has happened or not, and its end has an effect only if it had begun."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: Call = {"end": ENDED}

    def begin(self, call: Call, what: str) -> None:
        """Begins `call`, a new dict, in a `try` whose `finally` stores ENDED as its end. ConcurrentUse if another call runs."""
        last = self._last
        while last is not call:
            end = last.get("end")
            if end is None or ((lock := end()) is not None and lock.locked()):
                raise busy(what)
            last = last.setdefault("next", call)  # (of several threads, all find the same one)
        self._last = call

    def is_in(self, end: weakref.ref[threading.Lock]) -> bool:
        """Whether the last call is one with this end."""
        return self._last.get("end") is end


class Turns:
    """A call of all owners for the time of a `with`; ConcurrentUse if one is in another call. Owners may share a OneCall (states
    that are bound together)."""

    __slots__ = ("_end", "_owners")

    def __init__(self, owners: Sequence[Tuple[Locked, str]]) -> None:
        self._owners = owners
        self._end = threading.Lock()  # held until the end

    def __enter__(self) -> None:
        self._end.acquire()
        try:
            self._begin(weakref.ref(self._end))
        except BaseException:
            self._end.release()
            raise

    if TYPE_CHECKING:

        def __exit__(self, *_: object) -> None: ...

    else:
        # In C, since Python may raise an interrupt at the beginning of a function of its own. In the `with` only this refers to
        # the lock, which is gone if Python leaves it without the call (3.9: after the last statement; 3.12: in a loop).
        __exit__ = property(operator.attrgetter("_end.__exit__"))

    def _begin(self, end: weakref.ref[threading.Lock]) -> None:
        for owner, what in self._owners:
            lock = owner.lock
            if not lock.is_in(end):
                lock.begin({"end": end}, what)
            if owner.lock is not lock:  # it was bound meanwhile
                raise busy(what)


def busy(what: str) -> ConcurrentUse:
    return ConcurrentUse(f"{what} is in another call; it allows one at a time")


# ---- Traces -------------------------------------------------------------------------------------


class Trace(NamedTuple):
    """A stage of a call. `trace=` is called with it at the end of the stage.

    stage   encode: "sparsify", "choose", "index", "regather", "value", "order", "container", "feedback";
            decode: "header", "decode", "deliver"; merge: "header", "decode", "merge"
    begin_ns, end_ns  of a monotonic clock
    bytes   bytes that the stage wrote
    """

    stage: str
    begin_ns: int
    end_ns: int
    bytes: int


class Tracer:
    """Passes traces of the library to a function of the caller. An exception of the function is raised after the call."""

    def __init__(self, function: Callable[[Trace], object]) -> None:
        if not callable(function):
            raise ArgumentError(f"trace is {function!r}, not a function of a Trace")
        self._function = function
        self._error: Optional[BaseException] = None

    def set_in(self, struct: Union[_abi.dr_call, _abi.dr_decode_options]) -> None:
        """Sets the callback in a dr_call or dr_decode_options, which keeps it alive."""
        struct.trace = _TRACE(self._on_trace)

    def _on_trace(self, _user: object, trace: Pointer) -> None:
        # Calls of the function must not use the context of the call in progress.
        contexts = _of_thread.__dict__.pop("contexts", None)
        try:
            stage = read(trace, _abi.dr_trace)
            self._function(Trace(text(stage.stage), stage.begin_ns, stage.end_ns, stage.bytes))
        except BaseException as error:
            self._error = self._error or error
        finally:
            if contexts is not None:
                _of_thread.contexts = contexts

    def done(self) -> None:
        if self._error is not None:
            raise self._error


_TRACE = next(field[1] for field in _abi.dr_call._fields_ if field[0] == "trace")


# ---- Structs, texts and numbers -----------------------------------------------------------------


def new(kind: type[Struct]) -> Struct:
    """A zeroed struct with its size in struct_size."""
    struct = kind()
    struct.struct_size = ctypes.sizeof(kind)
    return struct


def read(pointer: Pointer, kind: type[Struct]) -> Struct:
    """A copy of a struct of an older or newer version; missing fields are zero."""
    struct = kind()
    size = min(pointer.contents.struct_size, ctypes.sizeof(kind))
    ctypes.memmove(ctypes.addressof(struct), pointer, size)
    return struct


def text(message: Optional[bytes]) -> str:
    return (message or b"").decode("utf-8", "replace")


def c_string(text: Union[str, os.PathLike[str]], what: str, kind: Type[ArgumentError] = ArgumentError) -> bytes:
    """text, or a path, for C. kind: of the error for what C has no string for"""
    try:
        encoded = os.fsencode(text)
    except TypeError:
        raise kind(f"{what} is {text!r}, not a text") from None
    except UnicodeEncodeError as error:
        raise kind(f"{what} has {error.object[error.start : error.end]!r}: {error.reason}") from None
    if b"\0" in encoded:
        raise kind(f"{what} has a zero byte")
    return encoded


def unsigned(value: Any, what: str, end: int = 2**64, minimum: int = 0) -> int:
    """value as an integer from `minimum` to below `end`: ctypes would wrap it silently."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{what} is {value!r}, not an integer") from None
    if not minimum <= number < end:
        raise ArgumentError(f"{what} = {number} is not in {minimum} … {end - 1}")
    return number


def real(value: Any, what: str) -> float:
    """value as a float. ArgumentError for a text and for other values that are not numbers."""
    try:
        return ctypes.c_double(value).value
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a torch tensor of many elements
        raise ArgumentError(f"{what} is {value!r}, not a number") from None


def timeout_of(value: Any, what: str = "timeout") -> float:
    """value as the seconds that a call waits, which end in nanoseconds of 63 bits."""
    seconds = real(value, what)
    if not 0 < seconds <= 2**63 / 1e9:
        raise ArgumentError(f"{what} = {seconds} s is not above 0 and at most 2^63 ns")
    return seconds


def require_kind(value: object, what: str, kind: type) -> None:
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise ArgumentError(f"{what} is {value!r}, not {article} {kind.__name__}")
