"""Prepared calls: what depends on shapes alone is worked out once, and memory is taken once."""

from __future__ import annotations

import ctypes
from typing import Any, List, Optional, Sequence

import numpy

from . import _abi, _device, _library, _memory
from ._call import context_of_thread, fail, fail_without_words, new, unsigned
from ._tensors import (
    OUT_STRIDE,
    TENSOR_STRIDE,
    Named,
    Shape,
    dense_outputs,
    make_call,
    name_outputs,
    read_inputs,
    weights_of,
)
from .errors import ArgumentError
from .frame import (
    RESULT_SIZE,
    DeviceFrame,
    array_of,
    borrow_target,
    raise_result,
    read_result,
    result_at,
    start_result,
)
from .tensor import Plans, Sparse, States, as_list

_ALIGNMENT = 64  # of a workspace


class Batch:
    """Encode, decode and merge for tensors of one set of shapes and types, in one place, with one plan.

    x               a tensor or a list of them, as for encode: their values are not read. A Sparse may later have
                    fewer rows, never more
    plan            as for encode
    frames          as many frames merge takes without taking memory
    segment_rows, sum_duplicates, allow_host, threads  as for encode

    What the calls need is taken here: afterwards encode(x, out=…), decode(frame, out=…) and merge(frames, out=…)
    allocate nothing, on a GPU launch at most `launches` kernels on the caller's current stream whatever the number
    of tensors, and wait for nothing. So they may be captured (torch.cuda.graph, after one call of each outside): a graph
    repeats the addresses, the step and the seeds of its capture, so batch, frames and arrays must live as long as it
    does. `check` waits, and raises what the last decode or merge met.

    A Batch serves one call at a time; on a GPU one stream at a time, as the arrays of its framework do.
    Raises what encode raises for such tensors.

    >>> x = [numpy.ones(4, dtype=numpy.float32), numpy.arange(9, dtype=numpy.float32)]
    >>> batch = deepreduce.Batch(x, "sparsify=topr(count=2) index=golomb")
    >>> frame = batch.encode(x, step=1)
    >>> [each.tolist() for each in batch.decode(frame)]
    [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0, 8.0]]
    >>> batch.merge([frame, frame], weights=[0.5, 0.5])[0].tolist()
    [1.0, 1.0, 0.0, 0.0]
    >>> len(frame) <= batch.bound
    True
    """

    def __init__(
        self,
        x: Any,
        plan: Plans,
        *,
        frames: int = 1,
        segment_rows: int = 0,
        sum_duplicates: bool = False,
        allow_host: bool = False,
        threads: Optional[int] = None,
    ) -> None:
        library, context = _library.load(), context_of_thread(threads)
        self._threads, self._sum_duplicates, self._allow_host = threads, sum_duplicates, allow_host
        inputs = read_inputs(x, plan, None, sum_duplicates, [])
        self._place, self._is_list = inputs.place, inputs.is_list
        self._shapes = [_shape(each, item) for each, item in zip(inputs.tensors, as_list(x)[0])]
        self.handle = ctypes.POINTER(_abi.dr_batch)()
        self._destroy = library.dr_batch_destroy
        status = library.dr_batch_create(
            context.handle,
            inputs.plan,
            self._where(self._place),
            inputs.tensors,
            TENSOR_STRIDE,
            inputs.n,
            unsigned(segment_rows, "segment_rows"),
            ctypes.byref(self.handle),
        )
        if status:
            fail(status, context)
        self._info = new(_abi.dr_batch_info)
        status = library.dr_batch_describe(self.handle, ctypes.byref(self._info))
        if status:
            fail_without_words(status, "the batch does not describe itself")
        # Prepared decode is for GPUs; what goes by way of the CPU has none.
        self._decodes = self._place is not None and not library.dr_batch_merge_workspace(
            self.handle, 1, ctypes.byref(ctypes.c_size_t())
        )
        self._memory: Any = None
        self._room = 0
        self._reserve(max(1, unsigned(frames, "frames", 2**32)))
        self._result: Any = None if self._place is None else start_result(self._place.empty((RESULT_SIZE,)))
        self._last = 0

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._destroy(self.handle)

    @property
    def bound(self) -> int:
        """Bytes that suffice for any frame; on a GPU a multiple of 16, so that frames may follow one another."""
        bound = int(self._info.bound)
        return bound if self._place is None else (bound + 15) // 16 * 16

    @property
    def workspace(self) -> int:
        """Bytes of memory that the batch keeps, beside tensors and frames."""
        return self._room

    @property
    def launches(self) -> int:
        """Kernels that an encode launches at most, with what a sort launches and clears; 0 on the CPU."""
        return int(self._info.launches)

    def frame(self, buffer: Any = None) -> DeviceFrame:
        """A frame for `encode(x, out=frame)`, with nothing in it yet. On a GPU only.

        buffer  contiguous bytes on the batch's GPU, aligned to 16, of at least `bound` (a part of what a collective
                sends, say); None: memory of its own
        """
        if self._place is None:
            raise ArgumentError("a batch on the CPU has no DeviceFrame: pass a bytearray of `bound` bytes as out")
        return DeviceFrame(self._place, self.bound, buffer)

    def encode(
        self,
        x: Any,
        out: Any = None,
        *,
        step: int = 0,
        seed: int = 0,
        private_seed: int = 0,
        state: States = None,
        tag: Optional[int] = None,
        status_frame: bool = False,
    ) -> Any:
        """As the function encode does it, into `out`.

        out  on a GPU a DeviceFrame of this batch (`frame`); on the CPU writable bytes (a bytearray, a numpy array).
             None: new memory

        Returns on a GPU `out`; on the CPU bytes, or the part of `out` that the frame takes, as a memoryview.
        Nobody looks whether a captured encode succeeded but by `out.size()`: status_frame=True lets the receivers
        know. Raises as encode does, and ArgumentError for other shapes, types or places than the batch's.
        """
        library, context = _library.load(), context_of_thread(self._threads)
        beside: Named = [("the batch", self._memory)]
        if isinstance(out, DeviceFrame):
            beside.append(("out", out.buffer))
        inputs = read_inputs(x, None, state, self._sum_duplicates, beside)
        if inputs.is_list != self._is_list:
            raise ArgumentError(f"the batch is for {'a list of tensors' if self._is_list else 'one tensor'}")
        call = make_call(step, seed, private_seed, tag, inputs.is_list, status_frame)
        workspace = self._borrow_workspace(inputs.place)
        result = new(_abi.dr_result)
        made: Any
        if inputs.place is not None:
            made = self.frame() if out is None else out
            if not isinstance(made, DeviceFrame):
                raise ArgumentError("out is no DeviceFrame: Batch.frame(out) makes one of an array")
            buffer, told = borrow_target(made, inputs.place, status_frame)
        else:
            made = bytearray(self.bound) if out is None else out
            buffer, told = _writable(made), ctypes.pointer(result)
        status = library.dr_batch_encode(
            context.handle,
            self.handle,
            ctypes.byref(call),
            self._where(inputs.place),
            inputs.tensors,
            TENSOR_STRIDE,
            inputs.n,
            workspace.address,
            workspace.size,
            buffer.address,
            buffer.size,
            told,
        )
        if status and not (inputs.place is None and status_frame and result.size):
            fail(status, context)
        if inputs.place is not None:
            return made
        part = memoryview(made).cast("B")[: result.size]
        return bytes(part) if out is None else part

    def decode(self, frame: Any, out: Any = None) -> Any:
        """Decodes a frame of such tensors into `out`, or into new arrays of their shapes, and returns them.

        frame  a DeviceFrame, or an array of bytes on the batch's GPU, aligned to 16 and perhaps longer than the
               frame is; on the CPU bytes
        out    as for the function decode

        On a GPU it does not wait: if the frame was not sound, the arrays of `out` are as they were, and `check` says
        so. On the CPU it raises as decode does.
        """
        return self._run([frame], ["frame"], None, out, False, False)

    def merge(
        self, frames: Sequence[Any], out: Any = None, weights: Optional[Sequence[float]] = None, *, add: bool = True
    ) -> Any:
        """Adds weights[i] * frame i to `out`, or to new float32 arrays of zero, and returns them.

        frames   frames as for decode; on a GPU an array [k, bytes] is a list of its rows
        weights  one for each frame; None: all 1
        add      False: `out` is overwritten

        On a GPU it does not wait: if a frame was not sound, the arrays of `out` are as they were, and `check` says
        so. On the CPU it raises as merge does.
        """
        if isinstance(frames, (str, bytes, bytearray, memoryview, DeviceFrame)):
            raise ArgumentError(f"merge takes a list of frames, not a {type(frames).__name__}")
        listed = list(frames)
        names = [f"frames[{i}]" for i in range(len(listed))]
        return self._run(listed, names, weights, out, True, add and out is not None)

    def check(self) -> None:
        """Waits for the current stream, and raises what the last decode or merge met: CorruptFrame, PeerError, …"""
        if self._result is None:
            return
        told = read_result(self._result)
        if told.status:
            raise_result(told, self._last)

    def _run(
        self,
        frames: List[Any],
        names: List[str],
        weights: Optional[Sequence[float]],
        out: Any,
        merges: bool,
        adds: bool,
    ) -> Any:
        if not frames:
            raise ArgumentError("merge needs at least one frame")
        library, context = _library.load(), context_of_thread(self._threads)
        arrays = [array_of(each) for each in frames]
        place = _device.find([("the batch", self._memory), *zip(names, arrays), *name_outputs(out)])
        borrowed = [
            _memory.borrow_bytes(each, name) if place is None else place.borrow_bytes(each, name)
            for each, name in zip(arrays, names)
        ]
        outs, results = dense_outputs(self._shapes, out, self._is_list, _abi.DR_F32 if merges else None, place)
        room = (outs, OUT_STRIDE, len(outs))
        where, first = self._where(place), borrowed[0]
        options = new(_abi.dr_merge_options)
        options.flags = _abi.DR_MERGE_ADD if adds else 0
        listed = (
            (_abi.dr_bytes * len(borrowed))(*(_abi.dr_bytes(each.address, each.size) for each in borrowed)),
            weights_of(weights, len(borrowed)),
            len(borrowed),
            ctypes.byref(options),
        )
        if place is None or not self._decodes:
            if merges:
                status = library.dr_merge(context.handle, where, *listed, *room)
            else:
                status = library.dr_decode(context.handle, where, first.address, first.size, None, *room)
        else:
            self._reserve(len(borrowed))
            workspace, told = self._borrow_workspace(place), result_at(self._result, place)
            work = (workspace.address, workspace.size, told)
            self._last = len(borrowed)
            if merges:
                status = library.dr_batch_merge(context.handle, self.handle, where, *listed, *room, *work)
            else:
                status = library.dr_batch_decode(
                    context.handle, self.handle, where, first.address, first.size, *room, *work
                )
        if status:
            fail(status, context)
        if out is not None:
            return out
        return results if self._is_list else results[0]

    def _where(self, place: Optional[_device.Place]) -> Optional[_abi.dr_place]:
        return None if place is None else place.struct(self._allow_host)

    def _reserve(self, frames: int) -> None:
        """A workspace for so many frames at a time. It only grows."""
        size = ctypes.c_size_t(0)
        if self._decodes:
            status = _library.load().dr_batch_merge_workspace(self.handle, frames, ctypes.byref(size))
            if status:
                fail_without_words(status, f"no workspace for {frames} frames")
        wanted = max(self._info.workspace, size.value)
        if self._memory is not None and wanted <= self._room:
            return
        self._room = wanted
        if self._place is None:
            self._memory = _memory.empty((wanted + _ALIGNMENT,), numpy.uint8)
        else:
            self._memory = self._place.empty((wanted,))

    def _borrow_workspace(self, place: Optional[_device.Place]) -> _memory.Bytes:
        if place is not None:
            return place.borrow_bytes(self._memory, "the workspace")
        start = self._memory.ctypes.data
        return _memory.Bytes(start + -start % _ALIGNMENT, self._room, self._memory)


def _shape(tensor: _abi.dr_tensor, x: Any) -> Shape:
    shape = x.shape if isinstance(x, Sparse) else tuple(getattr(x, "shape", (tensor.universe,)))
    return Shape(tensor.universe, tensor.width, tensor.dtype, shape)


def _writable(out: Any) -> _memory.Bytes:
    try:
        view = memoryview(out).cast("B")
    except (TypeError, ValueError):
        raise ArgumentError("out is not contiguous bytes") from None
    if view.readonly:
        raise ArgumentError("out is read-only")
    array = numpy.frombuffer(view, numpy.uint8)
    return _memory.Bytes(array.ctypes.data, array.size, array)
