"""A batch bound to its arrays, for the calls of a training loop."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Callable, List, NoReturn, Optional, Sequence, Tuple, Union

import numpy

from ._native import _abi, _device, _library, _memory
from ._native._call import ENDED, Call, Context, OneCall, Turns, Uncopied, fail, new, thread_count, unsigned
from ._native._renamed import seed_of
from ._native._sizes import bytes_text, count_text
from ._native._types import Array, CType, Structs, Tensor
from ._tensors import (
    MAX_FRAMES,
    OUT_STRIDE,
    TENSOR_STRIDE,
    Inputs,
    Keys,
    call_flags,
    dense_outputs,
    frames_of,
    name_outputs,
    read_inputs,
    require_in_place,
    weights_of,
)
from .errors import ArgumentError
from .frame import RESULT_SIZE, DeviceFrame, array_of, borrow_target, raise_result, read_result, start_result
from .tensor import State, States

if TYPE_CHECKING:
    from .batch import Batch


class Bound(Uncopied):
    """Encode, decode and merge of a Batch, bound to arrays that are read and written in place (Batch.bind).

    The arrays are examined once, so a call takes a few microseconds of Python for any number of tensors. A second call from
    another thread raises ConcurrentUse.
    """

    def __init__(self, batch: Batch, x: object, out: object, state: States, key: Keys, frames: int) -> None:
        """Not for callers: Batch.bind makes them."""
        library = _library.load()
        self.lock = OneCall()
        self._batch, self._x, self._out, self._is_list = batch, x, out, batch._is_list
        self._seed = batch._seed
        if x is None and (state is not None or key is not None):
            raise ArgumentError("state and key require x: there are no tensors to encode")
        if (x if x is not None else out) is None:
            raise ArgumentError("there is neither x to encode nor out to decode to")
        limit = max(1, unsigned(frames, "frames", MAX_FRAMES + 1))
        self._state, self._key = state, key
        self._inputs, self._outs, self._arrays, self._place = self._borrow(x, out)
        self._context = Context(thread_count(batch._threads))
        self._handle = ctypes.POINTER(_abi.dr_binding)()
        self._states: List[State] = []
        states = [] if self._inputs is None else self._inputs.states
        with Turns(states):
            for state, _ in states:
                if state.bound is not None and state.bound() is not None:
                    raise ArgumentError("a state is bound to another Bound that is still in use")
            status = library.dr_binding_create(
                self._context.handle,
                batch.handle,
                batch._where(self._place),
                None if self._inputs is None else self._inputs.tensors,
                TENSOR_STRIDE,
                self._outs,
                OUT_STRIDE,
                len(batch._shapes),
                limit,
                ctypes.byref(self._handle),
            )
            if status:
                fail(status, self._context)
            self._context.own(self._handle, library.dr_binding_destroy)
            self._prepare(library, limit)
            # From now on a call with any of them takes the lock of all.
            for state, _ in states:
                state.bind(self)
                self._states.append(state)

    def __repr__(self) -> str:
        ways = " and ".join(way for way, arrays in (("x", self._x), ("out", self._out)) if arrays is not None)
        batch = self._batch
        return f"<Bound {count_text(len(batch._shapes), 'tensor')}, {ways}, bound {bytes_text(batch.bound)}{'' if self._place is None else f' on {self._place}'}>"

    def _borrow(self, x: object, out: object) -> Tuple[Optional[Inputs], Optional[Structs], Optional[List[Tensor]], Optional[_device.Place]]:
        """x and out for the library: dr_tensors, dr_tensor_outs, the arrays of these, and their place."""
        batch = self._batch
        beside = [("the batch", batch._memory), *name_outputs(out)]
        inputs = None if x is None else read_inputs(x, None, self._state, self._key, batch._sum_duplicates, beside)
        place = _device.find(beside) if inputs is None else inputs.place
        if inputs is not None:
            if inputs.is_list != self._is_list:
                raise ArgumentError(f"the batch is for {'a list of tensors' if self._is_list else 'one tensor'}")
            if inputs.n != len(batch._shapes):
                raise ArgumentError(f"there are {inputs.n} tensors, the batch has {len(batch._shapes)}")
            if place is None:
                require_in_place(x)
        outs, arrays = (None, None) if out is None else dense_outputs(batch._shapes, out, self._is_list, None, place)
        return inputs, outs, arrays, place

    def _prepare(self, library: ctypes.CDLL, limit: int) -> None:
        """Makes once what all calls use. limit: maximum number of frames"""
        calls = Calls(library)
        self._encode, self._decode, self._merge = calls.encode, calls.decode, calls.merge
        self._binding: Optional[int] = ctypes.addressof(self._handle.contents)
        self._call, self._result, self._options = new(_abi.dr_call), new(_abi.dr_result), new(_abi.dr_decode_options)
        self._call_at, self._options_at = ctypes.addressof(self._call), ctypes.addressof(self._options)
        self._result_at = ctypes.addressof(self._result)
        self._slots = (Slot * limit)()
        self._slot_structs = list(self._slots)
        self._bytes_structs = list((_abi.dr_bytes * limit).from_buffer(self._slots))
        self._weights = (ctypes.c_float * limit)()
        self._slots_at, self._weights_at = ctypes.addressof(self._slots), ctypes.addressof(self._weights)
        self._limit, self._last = limit, 0
        # The last `out`: itself, its flat bytes, address and size.
        self._room: Tuple[object, Tensor, int, int] = (None, None, 0, 0)
        self._own: Optional[Tuple[Array, int, int]] = None
        self._device_result: Tensor = None
        self._device_result_at: Optional[int] = None
        if self._place is not None:
            self._device_result = start_result(self._place.empty((RESULT_SIZE,)))
            self._device_result_at = self._place.borrow_bytes(self._device_result, "the result").address

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._context.end(self._handle)
            self._binding = None
        for state in getattr(self, "_states", ()):
            state.unbind()

    def close(self) -> None:
        """Releases its states, which may then be bound again even while this object exists (in a traceback, for example). Later
        calls raise ArgumentError."""
        with self._turn():
            self._binding = None
        for state in self._states:
            state.unbind()
        self._states = []

    def rebind(self, x: object = None, out: object = None) -> None:
        """Binds other arrays of the same shapes and types, for gradients or weights that have moved; None: no change. States and
        keys do not change. A Sparse may have any number of rows up to the batch's. If it raises, nothing has changed."""
        with self._turn():
            inputs, outs, arrays, _ = self._borrow(x, out)
            status = _library.load().dr_binding_rebind(
                None if self._binding is None else self._handle,
                None if inputs is None else inputs.tensors,
                TENSOR_STRIDE,
                outs,
                OUT_STRIDE,
                len(self._batch._shapes),
            )
            if status:
                self._fail(status)
            if inputs is not None:
                self._x, self._inputs = x, inputs
            if outs is not None:
                self._out, self._outs, self._arrays = out, outs, arrays

    def _turn(self) -> Turns:
        return Turns([(self, "the bound batch")])

    # ---- Calls ----

    def encode(
        self,
        out: object = None,
        *,
        step: int = 0,
        private_seed: int = 0,
        tag: Optional[int] = None,
        status_frame: bool = False,
        fit: bool = False,
        **old: NoReturn,
    ) -> Tensor:
        """As Batch.encode, with the bound tensors, states and keys."""
        seed = self._seed if not old else seed_of(0, "Bound.encode", (), old)
        turn: Call = {}
        try:
            self.lock.begin(turn, "the bound batch")  # (Turns takes longer)
            call = self._call
            try:
                if not (0 <= step < _END and 0 <= seed < _END and 0 <= private_seed < _END):
                    raise TypeError
                call.step, call.seed, call.private_seed = step, seed, private_seed
            except (TypeError, ValueError, OverflowError, RuntimeError):  # a number that ctypes would wrap, or one of another kind
                call.step, call.seed = unsigned(step, "step"), unsigned(seed, "seed")
                call.private_seed = unsigned(private_seed, "private_seed")
            call.flags = call_flags(self._is_list, tag, status_frame, fit)
            call.tag = 0 if tag is None else unsigned(tag, "tag")
            if self._place is not None:
                return self._encode_on_gpu(out, status_frame, self._place)
            if out is None:
                if fit:
                    raise ArgumentError("fit requires `out`")
                flat, address, size = self._own or self._make_own()
            else:
                room = self._room
                if out is not room[0] or not is_at(out, room[2], room[3]):
                    room = self._borrow_room(out)
                _, flat, address, size = room
            status = self._encode(self._binding, self._call_at, address, size, self._result_at)
            if status and not (status_frame and self._result.size):
                self._fail(status)
            part = flat[: self._result.size]
            return part.tobytes() if out is None else part
        finally:
            turn["end"] = ENDED

    def decode(self, frame: object, *, add: bool = False, tag: Optional[int] = None) -> Tensor:
        """As Batch.decode, to the bound arrays, which it returns."""
        turn: Call = {}
        try:
            self.lock.begin(turn, "the bound batch")
            data: Union[int, bytes]
            if self._place is not None:
                self._require_stream(self._place)
                data, size = self._place.borrow_bytes(array_of(frame), "frame")[:2]
            elif type(frame) is bytes:
                data, size = frame, len(frame)  # ctypes takes bytes for an address
            else:
                data, size, _owner = _memory.borrow_bytes(frame)
            self._last = 1
            options = self._options_of(tag, add) if add or tag is not None else None
            status = self._decode(self._binding, data, size, options, self._device_result_at)
            if status:
                self._fail(status)
            return self._out
        finally:
            turn["end"] = ENDED

    def merge(
        self,
        frames: Sequence[object],
        weights: Optional[Sequence[float]] = None,
        *,
        add: Optional[bool] = None,
        tag: Optional[int] = None,
    ) -> Tensor:
        """As Batch.merge, to the bound arrays, which it returns."""
        turn: Call = {}
        try:
            self.lock.begin(turn, "the bound batch")
            return self._merge_all(frames_of(frames), weights, self._batch._adds(add), tag)
        finally:
            turn["end"] = ENDED

    def _merge_all(self, frames: Sequence[object], weights: Optional[Sequence[float]], add: bool, tag: Optional[int]) -> Tensor:
        k = len(frames)
        if not 0 < k <= self._limit:
            raise ArgumentError(f"{k} frames, not 1 to {self._limit} as were bound")
        owners = []
        place = self._place
        if place is not None:
            self._require_stream(place)
        for frame, slot, plain in zip(frames, self._slot_structs, self._bytes_structs):
            if type(frame) is bytes and place is None:
                slot.data, slot.size = frame, len(frame)
                continue
            borrowed = (
                _memory.borrow_bytes(frame, "a frame")
                if place is None
                else place.borrow_bytes(array_of(frame), "a frame")
            )
            plain.data, plain.size = borrowed.address, borrowed.size
            owners.append(borrowed.owner)
        if weights is None:
            factors = None
        else:
            factors = self._weights_at
            try:
                self._weights[:k] = weights  # type: ignore[call-overload]
            except (TypeError, ValueError, OverflowError):
                self._weights[:k] = list(weights_of(weights, k))
        self._last = k
        status = self._merge(self._binding, self._slots_at, factors, k, self._options_of(tag, add), self._device_result_at)
        if status:
            self._fail(status)
        return self._out

    @property
    def kept(self) -> int:
        """Number of rows in the frame of the last encode, over all tensors (the sparsifier's r). On the CPU."""
        return int(self._result.kept)

    @property
    def failed(self) -> bool:
        """Whether the last encode wrote a status frame. On the CPU."""
        return bool(self._result.status)

    def check(self) -> None:
        """Waits for the current stream, and raises the error of the last decode or merge, as Batch.check does."""
        if self._device_result is not None:
            result = read_result(self._device_result)
            if result.status:
                raise_result(result, self._last)

    def _fail(self, status: int) -> NoReturn:
        """Raises the error of the last call."""
        if self._binding is None:
            raise ArgumentError("the bound batch is closed")
        fail(status, self._context)

    def _options_of(self, tag: Optional[int], add: bool) -> int:
        options = self._options
        options.flags = (_abi.DR_DECODE_ADD if add else 0) | (0 if tag is None else _abi.DR_DECODE_TAG)
        options.tag = 0 if tag is None else unsigned(tag, "tag")
        return self._options_at

    def _make_own(self) -> Tuple[Array, int, int]:
        """Allocates memory for the frames of encode without `out`."""
        room = _memory.empty((self._batch.bound,), numpy.uint8)
        self._own = room, address_of(room), room.size
        return self._own

    def _borrow_room(self, out: object) -> Tuple[object, Tensor, int, int]:
        borrowed = _memory.borrow_room(out)
        flat = _memory.part_of_room(out, borrowed.size)
        room = (out, flat, borrowed.address, borrowed.size)
        # (A bytearray cannot grow while a view of it exists.)
        self._room = room if not isinstance(flat, memoryview) else (None, None, 0, 0)
        return room

    # ---- On a GPU ----

    def _encode_on_gpu(self, out: object, status_frame: bool, place: _device.Place) -> DeviceFrame:
        self._require_stream(place)
        made = self._batch.frame() if out is None else out
        if not isinstance(made, DeviceFrame):
            raise ArgumentError("out is not a DeviceFrame: Batch.frame(out) makes one from an array")
        buffer, result = borrow_target(made, place, status_frame)
        status = self._encode(
            self._binding, self._call_at, buffer.address, buffer.size, ctypes.addressof(result.contents)
        )
        if status:
            self._fail(status)
        return made

    def _require_stream(self, place: _device.Place) -> None:
        current = place.framework.stream(place.number)
        if current != place.stream and not isinstance(place.framework, _device.Bare):
            raise ArgumentError(f"bound on stream {place.stream:#x}, but the current one is {current:#x}")


_END = 2**64


# ---- The functions of a Bound, and the memory that it passes ------------------------------------


class Slot(ctypes.Structure):
    """dr_bytes, whose `data` accepts a bytes object."""

    _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_size_t)]


class Calls:
    """The functions that a Bound calls. Addresses are passed as numbers: ctypes converts them fastest."""

    def __init__(self, library: ctypes.CDLL) -> None:
        address, size = ctypes.c_void_p, ctypes.c_size_t
        self.encode = self._function(library, "encode", address, address, size, address)
        self.decode = self._function(library, "decode", address, size, address, address)
        self.merge = self._function(library, "merge", address, address, size, address, address)

    @staticmethod
    def _function(library: ctypes.CDLL, name: str, *arguments: CType) -> Callable[..., int]:
        return ctypes.CFUNCTYPE(_abi.dr_status, ctypes.c_void_p, *arguments)((f"dr_binding_{name}", library))


def address_of(flat: Tensor) -> int:
    """The current address of a flat array or tensor: a framework may have moved it."""
    if isinstance(flat, numpy.ndarray):
        return _memory.array_address(flat)
    return flat.data_ptr()  # type: ignore[no-any-return]


def is_at(out: Tensor, address: int, size: int) -> bool:
    """Whether an array or tensor of bytes is still contiguous and writable there: its owner may have moved it."""
    if address_of(out) != address:
        return False
    if isinstance(out, numpy.ndarray):
        return out.nbytes == size and out.flags.c_contiguous and out.flags.writeable
    return bool(out.numel() == size and out.is_contiguous())
