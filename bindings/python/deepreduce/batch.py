"""Prepared calls: what depends on shapes alone is worked out once, and memory is taken once."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, List, NoReturn, Optional, Sequence

import numpy

from ._native import _abi, _device, _library, _memory
from ._native._call import Turns, Uncopied, check, context_of_thread, fail, new, unsigned
from ._native._renamed import seed_of
from ._native._types import Tensor
from ._tensors import (
    FRAMES_MOST,
    OUT_STRIDE,
    TENSOR_STRIDE,
    Keys,
    Named,
    TraceFunction,
    dense_outputs,
    frames_of,
    make_call,
    make_options,
    name_outputs,
    read_inputs,
    shape_of,
    tracer_of,
    weights_of,
)
from .bound import Bound
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
from .plan import as_plan
from .tensor import Plans, States, as_list

_ALIGNMENT = 64  # of a workspace


class Batch(Uncopied):
    """Encode, decode and merge for tensors of one set of shapes and types, in one place, with one plan.

    x               a tensor or a list of them, as for encode: their values are not read. A Sparse may later have
                    fewer rows, never more
    plan            as for encode
    frames          as many frames merge takes without taking memory
    segment_rows, sum_duplicates, allow_host, threads, seed  as for encode

    What the calls need is taken here: afterwards encode(x, out=…), decode(frame, out=…) and merge(frames, out=…)
    allocate nothing, on a GPU launch at most `launches` kernels on the caller's current stream whatever the number
    of tensors, and wait for nothing. So they may be captured (torch.cuda.graph, after one call of each outside): a
    graph repeats the addresses, the step and the seeds of its capture, so batch, frames and arrays must live as long
    as it does. `check` waits, and raises what the last decode or merge met.

    `bind` binds it to arrays: then a call takes no longer in Python for many tensors than for one.

    A Batch serves one call at a time (another thread's is ConcurrentUse); on a GPU one stream at a time, as the arrays
    of its framework do.
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
        x: object,
        plan: Plans,
        *,
        frames: int = 1,
        segment_rows: int = 0,
        sum_duplicates: bool = False,
        allow_host: bool = False,
        threads: Optional[int] = None,
        seed: int = 0,
    ) -> None:
        library, context = _library.load(), context_of_thread(threads)
        self._seed = unsigned(seed, "seed")
        self._threads, self._sum_duplicates, self._allow_host = threads, sum_duplicates, allow_host
        self.lock = threading.Lock()
        inputs = read_inputs(x, plan, None, None, sum_duplicates, [])
        self._place, self._is_list = inputs.place, inputs.is_list
        plans: Any = plan if isinstance(plan, (list, tuple)) else [plan]
        self._votes = any(as_plan(each).info.votes for each in plans)
        self._shapes = [shape_of(each, item) for each, item in zip(inputs.tensors, as_list(x)[0])]
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
        self._info, error = new(_abi.dr_batch_info), new(_abi.dr_error)
        check(library.dr_batch_describe(self.handle, self._info, error), error)
        # Of what goes from a GPU by way of the CPU there is no prepared decode.
        self._decodes = not library.dr_batch_merge_workspace(self.handle, 1, ctypes.c_size_t(), None)
        self._memory: Tensor = None
        self._frame: Tensor = None  # of an encode on the CPU that is given none
        self._room = 0
        self._reserve(max(1, unsigned(frames, "frames", FRAMES_MOST + 1)))
        self._result: Tensor = None if self._place is None else start_result(self._place.empty((RESULT_SIZE,)))
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
        """Bytes of memory that the batch has, beside tensors and frames."""
        return self._room

    @property
    def launches(self) -> int:
        """Kernels that an encode launches at most, with what a sort launches and clears; 0 on the CPU."""
        return int(self._info.launches)

    def frame(self, buffer: object = None) -> DeviceFrame:
        """A frame for `encode(x, out=frame)`, with nothing in it yet. On a GPU only.

        buffer  contiguous bytes on the batch's GPU, aligned to 16, of at least `bound` (a part of what a collective
                sends, say); None: memory of its own
        """
        if self._place is None:
            raise ArgumentError("a batch on the CPU has no DeviceFrame: pass a bytearray of `bound` bytes as out")
        return DeviceFrame(self._place, self.bound, buffer)

    def bind(self, x: object = None, out: object = None, *, state: States = None, key: Keys = None, frames: int = 1) -> Bound:
        """This batch bound to arrays, which it reads and writes where they lie, for the calls of a training loop.

        x       the tensors that its encode reads, contiguous; None: it does not encode
        out     the arrays that its decode and merge write, as for the function decode; None: it does neither
        state, key  as for encode; a state that is bound serves whoever holds it in turn with the calls here
        frames  as many frames a merge takes at most

        The arrays are kept alive, and must stay where they are: a gradient is cleared by zero_grad(set_to_none=False).
        On a GPU its calls are for the stream that is current now. Raises as encode and decode do.

        >>> x = [numpy.ones(4, dtype=numpy.float32), numpy.arange(9, dtype=numpy.float32)]
        >>> sums = [numpy.zeros_like(each) for each in x]
        >>> batch = deepreduce.Batch(x, "sparsify=topr(count=2) index=golomb")
        >>> bound = batch.bind(x, sums, frames=2)
        >>> frame = bound.encode(step=1)
        >>> bound.merge([frame, frame], [0.5, 0.5], add=False) is sums, sums[0].tolist()
        (True, [1.0, 1.0, 0.0, 0.0])
        """
        return Bound(self, x, out, state, key, frames)

    def encode(
        self,
        x: object,
        out: object = None,
        *,
        step: int = 0,
        private_seed: int = 0,
        state: States = None,
        key: Keys = None,
        tag: Optional[int] = None,
        status_frame: bool = False,
        fit: bool = False,
        trace: Optional[TraceFunction] = None,
        **old: NoReturn,
    ) -> Tensor:
        """As the function encode does it, into `out`.

        out  on a GPU a DeviceFrame of this batch (`frame`); on the CPU writable bytes (a bytearray, an array or tensor
             of bytes). None: new memory

        Returns on a GPU `out`; on the CPU bytes, or of `out` the part that the frame takes, as encode does.
        Nobody looks whether a captured encode succeeded but by `out.size()`: status_frame=True lets the receivers
        know. Raises as encode does, and ArgumentError for other shapes, types or places than the batch's.
        """
        library, context = _library.load(), context_of_thread(self._threads)
        beside: Named = [("the batch", self._memory)]
        if isinstance(out, DeviceFrame):
            beside.append(("out", out.buffer))
        inputs = read_inputs(x, None, state, key, self._sum_duplicates, beside)
        if inputs.is_list != self._is_list:
            raise ArgumentError(f"the batch is for {'a list of tensors' if self._is_list else 'one tensor'}")
        seed = seed_of(self._seed, "Batch.encode", (), old)
        call = make_call(step, seed, private_seed, tag, inputs.is_list, status_frame, fit)
        tracer = tracer_of(trace, call)
        result = new(_abi.dr_result)
        with Turns([(self, "the batch"), *inputs.states]):
            workspace = self._borrow_workspace(inputs.place)
            made: Tensor
            if inputs.place is not None:
                made = self.frame() if out is None else out
                if not isinstance(made, DeviceFrame):
                    raise ArgumentError("out is no DeviceFrame: Batch.frame(out) makes one of an array")
                buffer, told = borrow_target(made, inputs.place, status_frame)
            else:
                if out is None and self._frame is None:
                    self._frame = _memory.empty((self.bound,), numpy.uint8)
                buffer, told = _memory.borrow_room(self._frame if out is None else out), result
            status = library.dr_batch_encode(
                context.handle,
                self.handle,
                call,
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
            if inputs.place is None:
                made = self._frame[: result.size].tobytes() if out is None else _memory.part_of_room(out, result.size)
        if tracer is not None:
            tracer.done()
        return made

    def decode(
        self,
        frame: object,
        out: object = None,
        *,
        add: bool = False,
        max_elements: Optional[int] = None,
        max_workspace: Optional[int] = None,
        tag: Optional[int] = None,
        trace: Optional[TraceFunction] = None,
    ) -> Tensor:
        """Decodes a frame of such tensors into `out`, or into new arrays of their shapes, and returns them.

        The frame is one that a batch of the same plan made. One that another plan made of such tensors may take more
        memory than the batch has, which is a CapacityError: the function decode takes any.

        frame  a DeviceFrame, or an array of bytes on the batch's GPU, aligned to 16 and perhaps longer than the
               frame is; on the CPU bytes
        out, add  as for the function decode
        max_elements, max_workspace, tag, trace  as for the function decode; on the CPU

        On a GPU it does not wait: if the frame was not sound, the arrays of `out` are as they were, and `check` says
        so. On the CPU it raises as decode does.
        """
        if add and out is None:
            raise ArgumentError("add is for out: there is nothing to add to")
        options = make_options(max_elements, max_workspace, tag, add=add)
        return self._run([frame], ["frame"], None, out, False, options, trace)

    def merge(
        self,
        frames: Sequence[object],
        out: object = None,
        weights: Optional[Sequence[float]] = None,
        *,
        add: Optional[bool] = None,
        max_elements: Optional[int] = None,
        max_workspace: Optional[int] = None,
        tag: Optional[int] = None,
        trace: Optional[TraceFunction] = None,
    ) -> Tensor:
        """Adds weights[i] * frame i to `out`, or to new float32 arrays of zero, and returns them.

        frames   frames as for decode; on a GPU an array [k, bytes] is a list of its rows
        weights  one for each frame; None: all 1
        add      False: `out` is overwritten; None: it is not, unless a plan has merge=vote: then the signs of its sums
                 (of all plans, if one of them has it) are written
        max_elements, max_workspace, tag, trace  as for the function decode; on the CPU

        On a GPU it does not wait: if a frame was not sound, the arrays of `out` are as they were, and `check` says
        so. On the CPU it raises as merge does.
        """
        listed = list(frames_of(frames))
        names = [f"frames[{i}]" for i in range(len(listed))]
        options = make_options(max_elements, max_workspace, tag, add=self._adds(add) and out is not None)
        return self._run(listed, names, weights, out, True, options, trace)

    def _adds(self, add: Optional[bool]) -> bool:
        return not self._votes if add is None else add

    def check(self) -> None:
        """Waits for the current stream, and raises what the last decode or merge met: CorruptFrame, PeerError, …"""
        if self._result is None:
            return
        told = read_result(self._result)
        if told.status:
            raise_result(told, self._last)

    def _run(
        self,
        frames: List[object],
        names: List[str],
        weights: Optional[Sequence[float]],
        out: object,
        merges: bool,
        options: _abi.dr_decode_options,
        trace: Optional[TraceFunction],
    ) -> Tensor:
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
        tracer = tracer_of(trace, options)
        listed = (
            (_abi.dr_bytes * len(borrowed))(*(_abi.dr_bytes(each.address, each.size) for each in borrowed)),
            weights_of(weights, len(borrowed)),
            len(borrowed),
            options,
        )
        with Turns([(self, "the batch")]):
            if not self._decodes:
                if merges:
                    if self._votes and not options.flags & _abi.DR_DECODE_ADD:
                        raise ArgumentError("merge=vote on the CPU, of a batch on a GPU: use merge(…, vote=True)")
                    status = library.dr_merge(context.handle, where, *listed, *room)
                else:
                    status = library.dr_decode(context.handle, where, first.address, first.size, options, *room)
            else:
                self._reserve(len(borrowed))
                workspace = self._borrow_workspace(place)
                told = None if place is None else result_at(self._result, place)
                work = (workspace.address, workspace.size, told)
                self._last = len(borrowed)
                if merges:
                    status = library.dr_batch_merge(context.handle, self.handle, where, *listed, *room, *work)
                else:
                    status = library.dr_batch_decode(
                        context.handle, self.handle, where, first.address, first.size, options, *room, *work
                    )
            if status:
                fail(status, context)
        if tracer is not None:
            tracer.done()
        if out is not None:
            return out
        return results if self._is_list else results[0]

    def _where(self, place: Optional[_device.Place]) -> Optional[_abi.dr_place]:
        return None if place is None else place.struct(self._allow_host)

    def _reserve(self, frames: int) -> None:
        """A workspace for so many frames at a time. It only grows."""
        size, error = ctypes.c_size_t(0), new(_abi.dr_error)
        if self._decodes:
            check(_library.load().dr_batch_merge_workspace(self.handle, frames, size, error), error)
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
