"""Frames in the memory of a GPU."""

from __future__ import annotations

import ctypes
import math
from typing import Any, Dict, NoReturn, Tuple

from ._native import _abi, _device, _library, _memory
from ._native._call import STREAMS
from ._native._types import Pointer, Tensor
from .errors import BY_CODE, ArgumentError, InternalError, WrongBase

RESULT_SIZE = ctypes.sizeof(_abi.dr_result)


class DeviceFrame:
    """A frame in the memory of a GPU, with the result of its encode. encode and Batch.encode return it for arrays there.

    buffer  [multiple of 16] uint8, an array of the tensor's framework. The frame is at its beginning and contains its own
            size, so the whole buffer may be sent, received and decoded

    The encode may still be in progress: the bytes are valid for later work on the encode's stream. The methods wait for the
    stream that is current when they are called, and raise the error of the encode (ArgumentError for a NaN where the codec
    is lossy, …); so do decode, merge and inspect. Batch.decode and Batch.merge do not wait. A failed encode leaves its buffer
    unchanged, or with a status frame if that was requested.
    """

    __slots__ = ("buffer", "_result", "_place", "_status_frame")

    def __init__(self, place: _device.Place, capacity: int, buffer: object = None) -> None:
        """Not for callers: encode, Batch.encode and Batch.frame make frames."""
        room = (capacity + 15) // 16 * 16 if buffer is None else 0
        whole = place.empty((room + RESULT_SIZE,))
        part = place.framework.part
        self.buffer: Tensor = part(whole, 0, room) if buffer is None else buffer
        self._result = start_result(part(whole, room, room + RESULT_SIZE))
        self._place = place
        self._status_frame = False

    def size(self) -> int:
        """Bytes of the frame."""
        result = read_result(self._result)
        if result.status and not (self._status_frame and result.size):
            raise_result(result)
        if not result.size:
            raise ArgumentError("the frame is empty: no encode has written it")
        return int(result.size)

    def to_host(self) -> bytes:
        """A copy on the CPU: the bytes that encode returns for the same tensors there."""
        framework = _device.framework_of(self.buffer)
        return framework.to_host(framework.part(self.buffer, 0, self.size()))

    def __bytes__(self) -> bytes:
        return self.to_host()

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        return self.buffer.__cuda_array_interface__  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<DeviceFrame on {self._place}>"


def borrow_target(frame: DeviceFrame, place: _device.Place, status_frame: bool) -> Tuple[_memory.Bytes, Pointer]:
    """The memory of a frame to be written, and its dr_result *."""
    frame._status_frame = status_frame
    return place.borrow_bytes(frame.buffer, "out"), result_at(frame._result, place)


def array_of(frame: object) -> Tensor:
    """The array, or other object, that holds the bytes of a frame."""
    return frame.buffer if isinstance(frame, DeviceFrame) else frame


# ---- Results ------------------------------------------------------------------------------------

_WORDS = {
    _abi.DR_E_CORRUPT: "not a frame of such tensors, or damaged",
    _abi.DR_E_UNSUPPORTED: "of a version that is not known here",
    _abi.DR_E_PEER: "the rank that sent it could not encode",
    _abi.DR_E_CAPACITY: "more than fits the memory",
}


def start_result(memory: object) -> Tensor:
    """Initialises memory on a GPU as an empty dr_result; does not wait. Returns it."""
    framework = _device.framework_of(memory)
    framework.fill(memory, 0)
    framework.fill(framework.part(memory, 0, 1), RESULT_SIZE)  # struct_size, whose other bytes are 0
    return memory


def result_at(memory: object, place: _device.Place) -> Pointer:
    """dr_result * of memory on a GPU."""
    return ctypes.cast(place.borrow_bytes(memory, "the result").address, ctypes.POINTER(_abi.dr_result))


def read_result(memory: object) -> _abi.dr_result:
    """A dr_result from a GPU; waits."""
    return _abi.dr_result.from_buffer_copy(_device.framework_of(memory).to_host(memory))


def unfinite(bits: int) -> float:
    """nan, inf or -inf: the value of float32, float16 or bfloat16 that is not finite and has these bits. 0x7f80 is bfloat16's
    infinity, though float16 has a NaN there."""
    sign, infinities = (31, (0x7F800000,)) if bits > 0xFFFF else (15, (0x7C00, 0x7F80))
    return math.copysign(math.inf, -(bits >> sign) or 1) if bits & ((1 << sign) - 1) in infinities else math.nan


def raise_result(result: _abi.dr_result, frames: int = 0) -> NoReturn:
    """Raises the error that kernels found, in the words of the CPU's. frames: their number in a decode or merge"""
    status, stream, what = result.status, STREAMS.get(result.stream), result.what
    tensor = None if result.tensor == _abi.DR_NO_TENSOR else result.tensor
    frame = None if result.frame == _abi.DR_NO_FRAME or not frames else result.frame
    where = f"tensor {tensor}{f', {stream} stream' if stream else ''}" if tensor is not None else ""
    if frame is not None and (frames > 1 or tensor is None):
        where = f"frame {frame}{': ' if where else ''}{where}"
    if status == _abi.DR_E_ARGUMENT and result.stream == _abi.DR_STREAM_VALUE:
        words, what = "a value is NaN or infinite; the codec requires finite values", unfinite(result.what)
    elif status == _abi.DR_E_ARGUMENT and frames:  # of a decode: a patch, whose kernel tells both checks
        raise WrongBase(
            f"{where}: its check is {result.what:016x}; the patch is for a base of check {result.where:016x}",
            code=status,
            tensor=tensor,
            what=result.what,
        )
    elif status == _abi.DR_E_ARGUMENT:
        words = "indices do not ascend or are not below the universe, or the state is of something else"
    elif status == _abi.DR_E_CAPACITY and tensor is None:
        words = "the frame does not fit its buffer"
    else:
        words = _WORDS.get(status) or _library.load().dr_status_name(status).decode()
    raise BY_CODE.get(status, InternalError)(
        f"{where or 'frame'}: {words} (at {result.where}, value {what})",
        code=status,
        tensor=tensor,
        where=result.where,
        what=what,
        frame=frame,
        needed=result.needed or None,
        stream=stream,
    )
