"""Frames in the memory of a GPU."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, NoReturn, Tuple

from ._native import _abi, _device, _library, _memory
from ._native._call import STREAMS
from ._native._types import Pointer, Tensor
from .errors import BY_CODE, ArgumentError, InternalError

RESULT_SIZE = ctypes.sizeof(_abi.dr_result)


class DeviceFrame:
    """A frame in the memory of a GPU, and what came of its encode: encode and Batch.encode give it for arrays there.

    buffer  [multiple of 16] uint8, an array of the framework that the tensor came from. The frame is at its
            beginning and tells its own end, so the whole buffer may be sent, received and decoded

    Nobody has waited for it: its bytes are there for what follows on the encode's stream. The methods wait for the
    stream that is current when they are called, and raise what the encode met (ArgumentError for a NaN where the
    codec is lossy, …). decode, merge and inspect take a frame, and do the same. Batch.decode and Batch.merge do not
    wait: a failed encode leaves its buffer as it was, or with a status frame if that was asked for.
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
        told = read_result(self._result)
        if told.status and not (self._status_frame and told.size):
            raise_result(told)
        if not told.size:
            raise ArgumentError("the frame is empty: no encode has written it")
        return int(told.size)

    def to_host(self) -> bytes:
        """A copy on the CPU: the bytes that encode gives for the same tensors there."""
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
    """The memory of a frame that is about to be written, and a dr_result * there."""
    frame._status_frame = status_frame
    return place.borrow_bytes(frame.buffer, "out"), result_at(frame._result, place)


def array_of(frame: object) -> Tensor:
    """What holds the bytes of a frame."""
    return frame.buffer if isinstance(frame, DeviceFrame) else frame


# ---- Results ------------------------------------------------------------------------------------

_WORDS = {
    _abi.DR_E_CORRUPT: "not a frame of such tensors, or damaged",
    _abi.DR_E_UNSUPPORTED: "of a version that is not known here",
    _abi.DR_E_PEER: "the rank that sent it could not encode",
    _abi.DR_E_CAPACITY: "more than there is room for",
}


def start_result(memory: object) -> Tensor:
    """Makes memory on a GPU a dr_result that says nothing yet but its size; does not wait. Returns it."""
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


def raise_result(told: _abi.dr_result, frames: int = 0) -> NoReturn:
    """Raises what kernels found, in the words that the library has for it on the CPU. frames: of a decode or merge."""
    status, stream = told.status, STREAMS.get(told.stream)
    tensor = None if told.tensor == _abi.DR_NO_TENSOR else told.tensor
    frame = None if told.frame == _abi.DR_NO_FRAME or not frames else told.frame
    where = f"tensor {tensor}{f', {stream} stream' if stream else ''}" if tensor is not None else ""
    if frame is not None and (frames > 1 or tensor is None):
        where = f"frame {frame}{': ' if where else ''}{where}"
    if status == _abi.DR_E_ARGUMENT and told.stream == _abi.DR_STREAM_VALUE:
        words = "a value is NaN or infinite; the codec takes finite values"
    elif status == _abi.DR_E_ARGUMENT:
        words = "indices do not ascend or are not below the universe, or the state is of something else"
    elif status == _abi.DR_E_CAPACITY and tensor is None:
        words = "the frame does not fit its buffer"
    else:
        words = _WORDS.get(status) or _library.load().dr_status_name(status).decode()
    raise BY_CODE.get(status, InternalError)(
        f"{where or 'frame'}: {words} (at {told.where}, value {told.what})",
        code=status,
        tensor=tensor,
        where=told.where,
        what=told.what,
        frame=frame,
        needed=told.needed or None,
        stream=stream,
    )
