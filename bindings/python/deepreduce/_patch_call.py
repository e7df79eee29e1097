"""Frames of patches, one tensor each: the library's calls on words. Nothing here is public."""

from __future__ import annotations

import collections
import ctypes
from typing import TYPE_CHECKING, Any, Callable, Deque, Iterable, Iterator, NamedTuple, Optional, TypeVar

import numpy

from . import _abi, _library, _memory
from ._call import check, context_of_thread, fail, new, thread_count
from ._element_types import Array
from ._tensors import OUT_STRIDE, TENSOR_STRIDE, Inputs, make_call, make_options
from .encoding import _SCRATCH_MOST, _bound, _encode
from .errors import ArgumentError, CorruptFrame, Error, WrongBase
from .header import read_header
from .plan import Plan

if TYPE_CHECKING:
    from concurrent.futures import Future

Item = TypeVar("Item")
Result = TypeVar("Result")

CHUNK = 4096  # bytes of a base that have a sum; and rows, of which a piece of a tensor is a multiple
_UINT64 = ctypes.POINTER(ctypes.c_uint64)


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


def _pointer(sums: Optional[Array]) -> Any:
    return None if sums is None else ctypes.cast(sums.ctypes.data, _UINT64)


def encode_words(plan: Plan, code: int, old: Array, new_words: Array, sums: Optional[Array]) -> bytes:
    """The frame that takes words `old` to `new_words`, of the type DR_* `code`. sums: of `old`, which become those of the
    others."""
    context = context_of_thread(None)
    tensors = (_abi.dr_tensor * 1)()
    tensor = tensors[0]
    tensor.struct_size, tensor.dtype, tensor.width = TENSOR_STRIDE, code, 1
    tensor.universe, tensor.values, tensor.base = old.size, new_words.ctypes.data, old.ctypes.data
    tensor.sums = _pointer(sums)
    inputs = Inputs(None, False, tensors, plan.handle, [old, new_words, sums], [])
    call, result = make_call(0, 0, 0, None, False, False, False), new(_abi.dr_result)
    bound = _bound(context, inputs, call, None)
    room, context.scratch = context.scratch, None
    if room is None or room.size < bound:
        room = _memory.empty((bound,), numpy.uint8)
    status = _encode(context, inputs, call, None, _memory.borrow_bytes(room), result)
    if status:
        fail(status, context)
    frame: bytes = room[: result.size].tobytes()
    context.scratch = room if room.size <= _SCRATCH_MOST else None
    return frame


class Piece(NamedTuple):
    """A frame of a tensor, and the words that it is of."""

    first: int
    length: int
    changed: int
    frame: memoryview
    what: str  # for messages: where it is from


def pieces_of(data: memoryview, code: int, words: int, what: str) -> Iterator[Piece]:
    """The frames that lie one behind the other in `data`, of a tensor of so many words."""
    first = at = 0
    while at < len(data):
        try:
            header = read_header(data[at:], _memory.borrow_bytes(data[at:]), None, verify=False)
        except Error as error:
            raise named(error, what or "patch", first) from None
        size = header.info.frame_size
        info = header.infos[0] if len(header.infos) == 1 and header.info.flags & _abi.DR_FRAME_PATCH else None
        last = at + size == len(data)
        if info is None or (info.dtype, info.width) != (code, 1) or info.universe > words - first:
            raise CorruptFrame(f"{what or 'patch'}, word {first}: no patch of one tensor, or of another type or shape")
        if not last and (info.universe % CHUNK or not info.universe):
            raise CorruptFrame(f"{what or 'patch'}, word {first}: a frame of {info.universe} words, and others behind it")
        yield Piece(first, info.universe, info.support, data[at : at + size], what)
        first, at = first + info.universe, at + size
    if first != words:
        raise CorruptFrame(f"{what or 'patch'}: frames of {first} words, of {words}")


def assign(piece: Piece, code: int, words: Array, sums: Optional[Array]) -> None:
    """Applies a frame to its base, in place; on an error nothing is written."""
    out = (_abi.dr_tensor_out * 1)()
    out[0].values = words.ctypes.data
    _apply(piece, code, out, sums, words.nbytes)


def pairs(piece: Piece, code: int, words: Array, sums: Optional[Array]) -> Any:
    """What the frame assigns to its base: indices [r] uint32, ascending from the piece's first, and words [r]."""
    indices, values = _memory.empty((piece.changed,), numpy.uint32), _memory.empty((piece.changed,), words.dtype)
    out = (_abi.dr_tensor_out * 1)()
    out[0].base, out[0].values = words.ctypes.data, values.ctypes.data
    out[0].indices, out[0].index_dtype, out[0].capacity = indices.ctypes.data, _abi.DR_U32, piece.changed
    _apply(piece, code, out, sums, words.nbytes)
    return indices[: out[0].count], values[: out[0].count]


def _apply(piece: Piece, code: int, out: Any, sums: Optional[Array], size: int) -> None:
    context = context_of_thread(None)
    out[0].struct_size, out[0].dtype, out[0].width = OUT_STRIDE, code, 1
    out[0].universe, out[0].sums = piece.length, _pointer(sums)
    data = _memory.borrow_bytes(piece.frame)
    # (The library's own limit goes by what it writes, and a base is read, too.)
    options = make_options(max_workspace=256 * (data.size + size) + 2**20)
    options.flags |= _abi.DR_DECODE_APPLY
    status = _library.load().dr_decode(context.handle, None, data.address, data.size, options, out, OUT_STRIDE, 1)
    if status:
        try:
            fail(status, context)
        except Error as error:
            raise named(error, piece.what, piece.first) from None


def named(error: Error, what: str, first: int) -> Error:
    """The error of a call on one tensor, which it names."""
    text = str(error)
    text = text[len("tensor 0: ") :] if text.startswith("tensor 0: ") else text
    where = f"{what}, words from {first}" if first else what
    kind = WrongBase if isinstance(error, ArgumentError) and "for a base of check" in text else type(error)
    return kind(f"{where}: {text}" if where else text, code=error.code, where=error.where, what=error.what, needed=error.needed)


def in_order(work: Callable[[Item], Result], items: Iterable[Item], threads: Optional[int]) -> Iterator[Result]:
    """work(item) of each, in order, by so many threads (None: this one), which are at most as many again ahead."""
    count = thread_count(threads)
    if count < 2:
        yield from map(work, items)
        return
    from concurrent.futures import ThreadPoolExecutor  # 10 ms, which few need

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
