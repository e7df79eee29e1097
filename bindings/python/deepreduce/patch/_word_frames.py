"""Frames of patches, one tensor each: the library's calls on words. Internal."""

from __future__ import annotations

import collections
import ctypes
from typing import TYPE_CHECKING, Callable, Deque, Iterable, Iterator, NamedTuple, Optional, Tuple, TypeVar, Union

import numpy

from .._native import _abi, _library, _memory
from .._native._call import check, context_of_thread, fail, new, thread_count
from .._native._types import Array, Pointer, Structs
from .._tensors import OUT_STRIDE, TENSOR_STRIDE, Inputs, make_call, make_options
from ..encoding import _SCRATCH_MAX, _bound, _encode
from ..errors import CorruptFrame, Error, WrongBase
from ..header import read_header
from ..plan import Plan
from ._device_words import DevicePart, encode_device_words

if TYPE_CHECKING:
    from concurrent.futures import Future

Item = TypeVar("Item")
Result = TypeVar("Result")

_OTHER_HISTORY = "the history of these weights is another"  # in errors of the codecs `history`
CHUNK = 4096  # bytes of a base per sum; and a piece of a tensor is a multiple of so many rows
_UINT64, _BYTES = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_ubyte)


def chunks_of(size: int) -> int:
    return -(-size // CHUNK)


def new_sums(words: Array) -> Array:
    """[chunks] uint64: the sums of a base."""
    sums = numpy.empty(chunks_of(words.nbytes), numpy.uint64)
    error = new(_abi.dr_error)
    check(_library.load().dr_base_sums(words.ctypes.data, words.nbytes, _pointer(sums), sums.size, error), error)
    return sums


def check_of(sums: Array) -> int:
    found: int = _library.load().dr_base_check(_pointer(sums), sums.size)
    return found


def _pointer(sums: Optional[Array]) -> Pointer:
    return None if sums is None else ctypes.cast(sums.ctypes.data, _UINT64)


class Known(NamedTuple):
    """The sums and the history of some words. When a patch changes the words, both are updated. None: there are none."""

    sums: Optional[Array] = None  # [chunks] uint64
    history: Optional[Array] = None  # [words] uint8

    def copy(self) -> Known:
        return Known(*(None if array is None else array.copy() for array in self))

    def put(self, tensor: Union[_abi.dr_tensor, _abi.dr_tensor_out]) -> None:
        """Sets the fields of a dr_tensor or a dr_tensor_out."""
        tensor.sums = _pointer(self.sums)
        tensor.history = None if self.history is None else ctypes.cast(self.history.ctypes.data, _BYTES)


def encode_words(old: Array, new_words: Array, plan: Plan, code: int, known: Known) -> bytes:
    """The frame that changes words `old` to `new_words`, of the type DR_* `code`. known: of `old`"""
    if isinstance(old, DevicePart) or isinstance(new_words, DevicePart):
        return encode_device_words(old, new_words, plan, code)
    context = context_of_thread(None)
    tensors = (_abi.dr_tensor * 1)()
    tensor = tensors[0]
    tensor.struct_size, tensor.dtype, tensor.width = TENSOR_STRIDE, code, 1
    tensor.universe, tensor.values, tensor.base = old.size, new_words.ctypes.data, old.ctypes.data
    known.put(tensor)
    inputs = Inputs(None, False, tensors, plan.handle, [old, new_words, known], [])
    call, result = make_call(0, 0, 0, None, False, False, False), new(_abi.dr_result)
    bound = _bound(context, inputs, call, None)
    room, context.scratch = context.scratch, None
    if room is None or room.size < bound:
        room = _memory.empty((bound,), numpy.uint8)
    status = _encode(context, inputs, call, None, _memory.borrow_bytes(room), result)
    if status:
        fail(status, context)
    frame: bytes = room[: result.size].tobytes()
    context.scratch = room if room.size <= _SCRATCH_MAX else None
    return frame


class Change(NamedTuple):
    """Facts from the header of a patch's frame."""

    code: int  # DR_* of the words
    length: int  # words
    changed: int
    base: int  # check of the words that it is for
    result: int  # check of what they become


def change_of(frame: memoryview) -> Change:
    """Raises CorruptFrame if the bytes are not exactly one frame of a patch of one tensor; Unsupported."""
    data = _memory.borrow_bytes(frame)
    header = read_header(frame, data, None, verify=False)
    info = header.infos[0] if len(header.infos) == 1 and header.info.flags & _abi.DR_FRAME_PATCH else None
    if info is None or info.width != 1:
        raise CorruptFrame("a frame that is not a patch of one tensor")
    if header.info.frame_size != len(frame):
        raise CorruptFrame(f"a frame of {header.info.frame_size} bytes, in {len(frame)}")
    begin = header.info.header_size
    base, result = (int.from_bytes(frame[at : at + 8], "little") for at in (begin, begin + 8))
    return Change(info.dtype, info.universe, info.support, base, result)


def assign(frame: memoryview, code: int, words: Array, known: Known) -> None:
    """Applies a frame to its base, in place; on an error nothing is written."""
    out = (_abi.dr_tensor_out * 1)()
    out[0].values = words.ctypes.data
    _apply(frame, code, out, words, known)


def pairs(frame: memoryview, changed: int, code: int, words: Array, known: Known) -> Tuple[Array, Array]:
    """The changes of a frame: indices [r] uint32, ascending, and words [r]. `known` is not updated. changed: r, as `change_of`
    returns it"""
    indices, values = _memory.empty((changed,), numpy.uint32), _memory.empty((changed,), words.dtype)
    out = (_abi.dr_tensor_out * 1)()
    out[0].base, out[0].values = words.ctypes.data, values.ctypes.data
    out[0].indices, out[0].index_dtype, out[0].capacity = indices.ctypes.data, _abi.DR_U32, changed
    _apply(frame, code, out, words, known.copy())
    return indices[: out[0].count], values[: out[0].count]


def _apply(frame: memoryview, code: int, out: Structs, words: Array, known: Known) -> None:
    context = context_of_thread(None)
    out[0].struct_size, out[0].dtype, out[0].width = OUT_STRIDE, code, 1
    out[0].universe = words.size
    known.put(out[0])
    data = _memory.borrow_bytes(frame)
    # (The library's default limit depends on the bytes written only; here a base is read, too.)
    options = make_options(max_workspace=256 * (data.size + words.nbytes) + 2**20)
    options.flags |= _abi.DR_DECODE_APPLY
    status = _library.load().dr_decode(context.handle, None, data.address, data.size, options, out, OUT_STRIDE, 1)
    if status:
        try:
            fail(status, context)
        except Error as error:
            raise _of_tensor(error, known.history is not None) from None


def _of_tensor(error: Error, has_history: bool = True) -> Error:
    """The error of a call on one tensor, without "tensor 0: "; callers put the tensor's name in front."""
    text = str(error)
    text = text[len("tensor 0: ") :] if text.startswith("tensor 0: ") else text
    kind = type(error)
    if _OTHER_HISTORY in text:
        kind, text = WrongBase, text if has_history else f"{text}; none was passed (history=), which stands for one of zeros"
    return kind(text, code=error.code, where=error.where, what=error.what, needed=error.needed)


def named(error: Error, what: str) -> Error:
    """The same error, with a message that begins with `what`."""
    return type(error)(f"{what}: {error}" if what else str(error), code=error.code, where=error.where, what=error.what, needed=error.needed)


def in_order(work: Callable[[Item], Result], items: Iterable[Item], threads: Optional[int]) -> Iterator[Result]:
    """Yields work(item) for the items, in order, computed by `threads` threads (None: this one). At most two results per thread are
    computed ahead."""
    count = thread_count(threads)
    if count < 2:
        yield from map(work, items)
        return
    from concurrent.futures import ThreadPoolExecutor  # imported here because it takes 10 ms and few calls need it

    pool = ThreadPoolExecutor(count)
    try:
        ahead: Deque[Future[Result]] = collections.deque()
        for item in items:
            ahead.append(pool.submit(work, item))
            if len(ahead) >= 2 * count:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
