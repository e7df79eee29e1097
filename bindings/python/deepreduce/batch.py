"""Prepared calls: everything that depends on shapes alone is computed once, and memory is allocated once."""

from __future__ import annotations

import ctypes
from typing import Any, List, NoReturn, Optional, Sequence, Set, Union

import numpy

from ._native import _abi, _device, _library, _memory
from ._native._call import OneCall, Turns, Uncopied, check, context_of_thread, destroy, fail, new, unsigned
from ._native._renamed import seed_of
from ._native._sizes import bytes_text, count_text
from ._native._types import Tensor
from ._tensors import (
    MAX_FRAMES,
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
    set_weights,
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
    frames          maximum number of frames that merge accepts without allocating memory
    segment_rows, sum_duplicates, allow_host, threads, seed  as for encode

    The constructor allocates the memory of the calls. Afterwards encode(x, out=…), decode(frame, out=…) and
    merge(frames, out=…) allocate nothing. On a GPU they launch at most `launches` kernels on the caller's current stream, for
    any number of tensors, and do not wait. They may be captured (torch.cuda.graph, after one call of each outside). A graph
    repeats the addresses, the step (unless it is an array) and the seeds of its capture, so batch, frames and arrays must live
    as long as the graph.
    `check` waits, and raises the error of the last decode or merge.

    `bind` binds a batch to arrays: then the time of a call in Python does not depend on the number of tensors.

    A second call from another thread raises ConcurrentUse. On a GPU use a Batch on one stream at a time, like the arrays of
    its framework. Raises the errors of encode for such tensors.

    >>> x = [numpy.ones(4, dtype=numpy.float32), numpy.arange(9, dtype=numpy.float32)]
    >>> batch = deepreduce.Batch(x, "sparsify=topr(count=2) index=golomb")
    >>> frame = batch.encode(x, step=1)
    >>> [array.tolist() for array in batch.decode(frame)]
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
        self.lock = OneCall()
        inputs = read_inputs(x, plan, None, None, sum_duplicates, [])
        self._place, self._is_list = inputs.place, inputs.is_list
        plans: Any = plan if isinstance(plan, (list, tuple)) else [plan]
        self._votes = any(as_plan(one).info.votes for one in plans)
        self._shapes = [shape_of(tensor, item) for tensor, item in zip(inputs.tensors, as_list(x)[0])]
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
        # With codecs that run on the CPU for a GPU there is no prepared decode.
        self._decodes = not library.dr_batch_merge_workspace(self.handle, 1, ctypes.c_size_t(), None)
        self._memory: Tensor = None
        self._frame: Tensor = None  # for encode on the CPU without `out`
        self._room = self._start = 0  # size and, on the CPU, address of the workspace
        self._suffices: Set[int] = set()  # for merges of so many frames
        self._reserve(max(1, unsigned(frames, "frames", MAX_FRAMES + 1)))
        self._result: Tensor = None if self._place is None else start_result(self._place.empty((RESULT_SIZE,)))
        self._last = 0

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            destroy(self.handle, self._destroy)

    def __repr__(self) -> str:
        return f"<Batch {count_text(len(self._shapes), 'tensor')}, bound {bytes_text(self.bound)}{'' if self._place is None else f' on {self._place}'}>"

    @property
    def bound(self) -> int:
        """Bytes that suffice for any frame; on a GPU a multiple of 16, so that frames may follow one another."""
        bound = int(self._info.bound)
        return bound if self._place is None else (bound + 15) // 16 * 16

    @property
    def workspace(self) -> int:
        """Bytes of the batch's workspace, beside tensors and frames."""
        return self._room

    @property
    def launches(self) -> int:
        """Maximum number of kernels that an encode launches, including those of a sort; 0 on the CPU."""
        return int(self._info.launches)

    def frame(self, buffer: object = None) -> DeviceFrame:
        """An empty frame for `encode(x, out=frame)`. On a GPU only.

        buffer  at least `bound` contiguous bytes on the batch's GPU, aligned to 16, for example a part of a collective's
                buffer; None: new memory
        """
        if self._place is None:
            raise ArgumentError("a batch on the CPU has no DeviceFrame: pass a bytearray of `bound` bytes as out")
        return DeviceFrame(self._place, self.bound, buffer)

    def bind(self, x: object = None, out: object = None, *, state: States = None, key: Keys = None, frames: int = 1) -> Bound:
        """Binds this batch to arrays, which the calls of a training loop read and write in place.

        x       the tensors for encode, contiguous; None: no encode
        out     the arrays for decode and merge, as for the function decode; None: neither
        state, key  as for encode; other calls may use a bound state between the calls of the Bound
        frames  maximum number of frames of a merge

        The Bound holds references to the arrays, which must stay in place: clear gradients by zero_grad(set_to_none=False).
        On a GPU its calls use the stream that is current now. Raises the errors of encode and decode.

        >>> x = [numpy.ones(4, dtype=numpy.float32), numpy.arange(9, dtype=numpy.float32)]
        >>> sums = [numpy.zeros_like(tensor) for tensor in x]
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
        step: Union[int, Tensor] = 0,
        private_seed: int = 0,
        state: States = None,
        weights: object = None,
        key: Keys = None,
        tag: Optional[int] = None,
        status_frame: bool = False,
        fit: bool = False,
        trace: Optional[TraceFunction] = None,
        **old: NoReturn,
    ) -> Tensor:
        """Encodes tensors as the function encode does, into `out`.

        step a number; or an array of one int64 or uint64, where the tensors are, which is read when the encode runs: add to
             it between replays of a graph, and they draw new numbers. A tag is then `tag` plus that step
        tag  any number of 64 bits, for `inspect` and `decode`. On a GPU `decode` and `merge` of a batch take no frame of one
             tensor, or of one bucket, that has a tag: the function `decode` does
        out  on a GPU a DeviceFrame of this batch (`frame`); on the CPU writable bytes (a bytearray, an array or tensor
             of bytes). None: new memory
        weights  as for the function encode: of a patch the base, which the receiver has

        Returns `out` on a GPU; on the CPU bytes, or the part of `out` that holds the frame, as encode does. Whether a captured
        encode succeeded only `out.size()` shows; status_frame=True informs the receivers. Raises the errors of encode, and
        ArgumentError for other shapes, types or places than the batch's.
        """
        library, context = _library.load(), context_of_thread(self._threads)
        beside: Named = [("the batch", self._memory)]
        if isinstance(out, DeviceFrame):
            beside.append(("out", out.buffer))
        inputs = read_inputs(x, None, state, key, self._sum_duplicates, beside)
        if inputs.is_list != self._is_list:
            raise ArgumentError(f"the batch is for {'a list of tensors' if self._is_list else 'one tensor'}")
        if weights is not None:
            set_weights(inputs, weights)
        seed = seed_of(self._seed, "Batch.encode", (), old)
        counts = not isinstance(step, (int, numpy.integer))
        call = make_call(0 if counts else step, seed, private_seed, tag, inputs.is_list, status_frame, fit)
        if counts:
            word = _memory.borrow(step, "step", (_abi.DR_I64, _abi.DR_U64), inputs.place)
            if word.elements != 1:
                raise ArgumentError(f"step has {word.elements} elements, not one")
            call.step, call.flags = word.address, call.flags | _abi.DR_CALL_STEP_AT
        tracer = tracer_of(trace, call)
        result = new(_abi.dr_result)
        with Turns([(self, "the batch"), *inputs.states]):
            workspace = self._borrow_workspace(inputs.place)
            made: Tensor
            if inputs.place is not None:
                made = self.frame() if out is None else out
                if not isinstance(made, DeviceFrame):
                    raise ArgumentError("out is not a DeviceFrame: Batch.frame(out) makes one from an array")
                buffer, target = borrow_target(made, inputs.place, status_frame)
            else:
                if out is None and self._frame is None:
                    self._frame = _memory.empty((self.bound,), numpy.uint8)
                buffer, target = _memory.borrow_room(self._frame if out is None else out), result
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
                target,
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

        The frame must be one of a batch with the same plan. A frame of another plan may need more memory than the batch has,
        which is a CapacityError: the function decode accepts any frame.

        frame  on a GPU a DeviceFrame, or an array of bytes there, aligned to 16, which may be longer than the frame; on the
               CPU bytes
        out, add  as for the function decode
        max_elements, max_workspace, tag, trace  as for the function decode; on the CPU

        On a GPU it does not wait: if the frame is damaged, the arrays of `out` are unchanged, and `check` raises the error.
        On the CPU it raises the errors of decode.
        """
        if add and out is None:
            raise ArgumentError("add=True requires out=")
        options = make_options(max_elements, max_workspace, tag, add=add)
        return self._run([frame], ["frame"], None, out, False, options, trace)

    def apply(self, frame: object, weights: object) -> Tensor:
        """Applies a frame of a patch (sparsify=changed) to its base, in place, and returns the weights.

        frame    as for `decode`
        weights  the base: arrays of the batch's shapes and types, of which those weights change that the patch names

        All tensors change, or on any error none. On a GPU it does not wait: `check` raises WrongBase, CorruptFrame, …
        """
        options = make_options()
        options.flags |= _abi.DR_DECODE_APPLY
        return self._run([frame], ["frame"], None, weights, False, options, None)

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
        add      True: add to `out`; False: overwrite it. None: True, but False if a plan has merge=vote: then the signs of the
                 sums (of all tensors, if one plan has it) are written
        max_elements, max_workspace, tag, trace  as for the function decode; on the CPU

        On a GPU it does not wait: if a frame is damaged, the arrays of `out` are unchanged, and `check` raises the error.
        On the CPU it raises the errors of merge.
        """
        listed = list(frames_of(frames))
        names = [f"frames[{i}]" for i in range(len(listed))]
        options = make_options(max_elements, max_workspace, tag, add=self._adds(add) and out is not None)
        return self._run(listed, names, weights, out, True, options, trace)

    def _adds(self, add: Optional[bool]) -> bool:
        return not self._votes if add is None else add

    def check(self) -> None:
        """Waits for the current stream, and raises the error of the last decode or merge: CorruptFrame, PeerError, …"""
        if self._result is None:
            return
        result = read_result(self._result)
        if result.status:
            raise_result(result, self._last)

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
        arrays = [array_of(frame) for frame in frames]
        place = _device.find([("the batch", self._memory), *zip(names, arrays), *name_outputs(out)])
        borrowed = [
            _memory.borrow_bytes(array, name) if place is None else place.borrow_bytes(array, name)
            for array, name in zip(arrays, names)
        ]
        outs, results = dense_outputs(self._shapes, out, self._is_list, _abi.DR_F32 if merges else None, place)
        room = (outs, OUT_STRIDE, len(outs))
        where, first = self._where(place), borrowed[0]
        tracer = tracer_of(trace, options)
        listed = (
            (_abi.dr_bytes * len(borrowed))(*(_abi.dr_bytes(frame.address, frame.size) for frame in borrowed)),
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
                result = None if place is None else result_at(self._result, place)
                work = (workspace.address, workspace.size, result)
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
        """Allocates the workspace for merges of `frames` frames. It only grows."""
        if frames in self._suffices:
            return
        size, error = ctypes.c_size_t(0), new(_abi.dr_error)
        if self._decodes:
            check(_library.load().dr_batch_merge_workspace(self.handle, frames, size, error), error)
        needed = max(self._info.workspace, size.value)
        if self._memory is None or needed > self._room:
            if self._place is None:
                self._memory = _memory.empty((needed + _ALIGNMENT,), numpy.uint8)
                start = self._memory.ctypes.data
                self._start = start + -start % _ALIGNMENT
            else:
                self._memory = self._place.empty((needed,))
            self._room = needed
        self._suffices.add(frames)

    def _borrow_workspace(self, place: Optional[_device.Place]) -> _memory.Bytes:
        if place is not None:
            return place.borrow_bytes(self._memory, "the workspace")
        return _memory.Bytes(self._start, self._room, self._memory)
