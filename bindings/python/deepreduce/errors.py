"""Exceptions, one for each dr_status, whose number is its `code`. The names say who must act."""

from __future__ import annotations

from typing import Dict, Optional, Tuple, Type, Union


class Error(Exception):
    """Base of all exceptions of this package.

    code    the dr_status, as a number
    tensor  position of the tensor in the list (0 without a list), or its name in a Sender; None if no tensor is at fault
    where   the element, or byte of a frame, of the message; 0 if there is none
    what    the value at fault: of a gradient that is not finite nan, inf or -inf, else an unsigned number; 0 if there is none
    frame   position among the frames of a merge; None if no frame is at fault
    needed  CapacityError: bytes, rows or elements that suffice; None if unknown
    stream  "index", "value" or "order", of a tensor; None if no stream is at fault
    rank    the rank at fault in an exchange; None if no rank is

    >>> try:
    ...     deepreduce.decode(b"not a frame")
    ... except deepreduce.Error as error:
    ...     print(type(error).__name__, error.code, error.tensor)
    CorruptFrame 3 None
    """

    code: int = 7  # DR_E_INTERNAL
    rank: Optional[int] = None

    def __init__(
        self,
        message: str,
        *,
        code: Optional[int] = None,
        tensor: Union[None, int, str] = None,
        where: int = 0,
        what: Union[int, float] = 0,
        frame: Optional[int] = None,
        needed: Optional[int] = None,
        stream: Optional[str] = None,
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.tensor, self.where, self.what = tensor, where, what
        self.frame, self.needed, self.stream = frame, needed, stream


class ArgumentError(Error, ValueError):
    """An argument, a plan or an input value is wrong."""

    code = 1  # DR_E_ARGUMENT


class PlanError(ArgumentError):
    """The text is not a plan: an unknown stage, codec or parameter, a value out of range, or stages that exclude one another."""


class WrongBase(ArgumentError):
    """The base of the patch differs from these weights (deepreduce.patch). Nothing has changed."""


class OutOfStep(ArgumentError):
    """Ranks are at different steps, or some did not complete a step that others did. All ranks raise it, and the step is not
    applied.

    rank    the first of `ranks`
    ranks   the ranks that are behind
    source  a rank that is not behind: the others copy parameters and the optimizer's state from it
    step    the step that they did not complete; None if they are at other steps
    """

    ranks: Tuple[int, ...] = ()
    source: Optional[int] = None
    step: Optional[int] = None


class CapacityError(Error):
    """`out` is too small, or a limit (`max_elements`, `max_workspace`) is too low for the frame: see `needed`."""

    code = 2  # DR_E_CAPACITY


class CorruptFrame(Error):
    """The bytes are not a frame, or are damaged."""

    code = 3  # DR_E_CORRUPT


class Unsupported(Error):
    """The frame or the plan needs what this build does not have: a codec that is not loaded, a newer format."""

    code = 4  # DR_E_UNSUPPORTED


class OutOfMemory(Error, MemoryError):
    """Memory for a result or a workspace could not be allocated."""

    code = 5  # DR_E_MEMORY


class DeviceError(Error):
    """An operation of the accelerator failed."""

    code = 6  # DR_E_DEVICE


class InternalError(Error):
    """A fault of the library: please report it."""

    code = 7  # DR_E_INTERNAL


class PeerError(Error):
    """A rank is gone, or reports that it could not encode. `rank` or the message names it."""

    code = 8  # DR_E_PEER


class MissingRank(Error, TimeoutError):
    """A rank did not answer in time. The message names it."""

    code = 9  # DR_E_TIMEOUT


class ConcurrentUse(Error, RuntimeError):
    """A State, Batch, Bound, Exchange, Sender, Transform or Controller is in another call, on another thread; or another process
    writes to a patch.Store. Nothing has changed: call again later, or use one object per thread."""

    code = 1  # DR_E_ARGUMENT


class LibraryError(Error, ImportError):
    """The shared library was not found or does not fit; the message lists the paths tried."""

    code = 4  # DR_E_UNSUPPORTED


BY_CODE: Dict[int, Type[Error]] = {
    kind.code: kind
    for kind in (
        ArgumentError,
        CapacityError,
        CorruptFrame,
        Unsupported,
        OutOfMemory,
        DeviceError,
        InternalError,
        PeerError,
        MissingRank,
    )
}
