"""deepreduce.torch: the times at which the gradients of a model become ready, for `deepreduce predict` and `plan`.

The format of the file is docs/model.schema.json. This code runs only if a recording was requested, and only until its last step.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import math
import os
import pathlib
import platform
import statistics
import sys
import time
from typing import Dict, Iterator, List, Optional, Tuple, Union

import torch
import torch.distributed as dist

from .._adapters._autograd import after_backward, graph_task
from .._files._torch_arrays import named_parameters_of, unwrapped
from .._files._whole_file import whole_file
from .._native._call import unsigned
from .._native._types import Json
from ..errors import ArgumentError, Unsupported
from ._skew import Peers, Skew

_TYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


@dataclasses.dataclass(frozen=True)
class Recording:
    """What to record, and where.

    path   path of the file, .json; rank 0 writes it after `steps`, or at the end of the program
    name   name of the model; None: its class
    batch  samples per rank and step; None: not known
    steps  number of steps; times are medians over them
    skip   number of first steps that do not count, at most half of all: in these DDP rebuilds its buckets and memory is allocated
    """

    path: Union[str, os.PathLike[str]]
    name: Optional[str] = None
    batch: Optional[int] = None
    steps: int = 20
    skip: int = 4

    def __post_init__(self) -> None:
        unsigned(self.steps, "steps", minimum=1)
        unsigned(self.skip, "skip")
        if self.batch is not None:
            unsigned(self.batch, "batch", minimum=1)
        if _writes() and not pathlib.Path(self.path).absolute().parent.is_dir():
            raise ArgumentError(f"record = {os.fspath(self.path)}: its folder does not exist")
        if _writes() and pathlib.Path(self.path).is_dir():
            raise ArgumentError(f"record = {os.fspath(self.path)}: it is a folder; pass the path of a file")


class _Step:
    """The times of one step, of time.perf_counter: seconds."""

    def __init__(self, begin: float) -> None:
        self.begin, self.backward, self.end = begin, 0.0, 0.0
        self.ready: Dict[str, float] = {}  # name -> seconds since the beginning of backward
        self.hooks = 0.0  # seconds that communication hooks took on backward's thread

    @property
    def computed(self) -> float:
        """Seconds of forward and backward."""
        return self.backward - self.begin + max(self.ready.values())


class ModelRecorder:
    """Measures a model's forward and backward passes with hooks. A DDPHook reports its own time with `took`."""

    def __init__(self, model: torch.nn.Module, settings: Recording) -> None:
        self._settings = settings
        wrapped = isinstance(model, torch.nn.parallel.DistributedDataParallel)
        self._module = unwrapped(model)
        self._ranks = dist.get_world_size(model.process_group) if wrapped else 1
        self._writes = _writes()  # read now: at the end of the program there is no group
        self._shapes: Dict[str, Tuple[List[int], str]] = {}
        self._steps: List[_Step] = []
        self._rests: List[float] = []
        self._now: Optional[_Step] = None
        self._handles: List[torch.utils.hooks.RemovableHandle] = []
        trained = [(name, parameter) for name, parameter in named_parameters_of(model) if parameter.requires_grad]
        if not trained:
            raise ArgumentError(f"record: {type(self._module).__name__} has no parameter that requires a gradient")
        for name, parameter in trained:
            _check(name, parameter)
        for name, parameter in trained:
            self._add(name, parameter)
        self._handles += [model.register_forward_pre_hook(self._forward), model.register_forward_hook(self._computed)]
        named = f"{type(self._module).__name__}/{len(trained)}/{settings.steps}+{settings.skip}"
        self._peers: Optional[Peers] = Peers(named, model.process_group if wrapped else None)
        atexit.register(self._exit)

    def _add(self, name: str, parameter: torch.Tensor) -> None:
        self._shapes[name] = (list(parameter.shape), _TYPES[parameter.dtype])
        self._handles.append(parameter.register_post_accumulate_grad_hook(lambda _: self._ready(name)))

    # ---- Hooks ----

    def _forward(self, *_: object) -> None:
        now, last = time.perf_counter(), self._now
        # A backward pass that is over and had no end has failed. (Checkpoints of activations run a forward pass within one.)
        if last is not None and last.backward and not last.end and graph_task() == -1:
            last = self._now = None
        if last is not None and last.end:
            self._steps.append(last)
            self._rests.append(now - last.end)
            self._now = None
            if len(self._steps) >= self._settings.steps + self._settings.skip:
                self.finish()
                return
        if (last is None or last.end) and torch.is_grad_enabled():
            self._now = _Step(now)

    def _computed(self, _module: object, _inputs: object, output: object) -> None:
        if self._now is not None and torch.is_grad_enabled():
            for tensor in _tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(self._begin_backward)

    def _begin_backward(self, _gradient: torch.Tensor) -> None:
        step = self._now
        if step is not None and not step.backward:
            step.backward = time.perf_counter()
            after_backward(self._queue_end)

    def _ready(self, name: str) -> None:
        step = self._now
        if step is not None and step.backward:
            step.ready[name] = time.perf_counter() - step.backward - step.hooks

    def took(self, seconds: float) -> None:
        """Reports that a communication hook occupied backward's thread for `seconds`, which is subtracted from later ready times."""
        if self._now is not None and self._now.backward:
            self._now.hooks += seconds

    def _queue_end(self) -> None:
        # DDP's reducer waits in a callback of its own, which is in the queue by now: this one comes after it.
        after_backward(self._end_step)

    def _end_step(self) -> None:
        if self._now is not None:
            self._now.end = time.perf_counter()

    # ---- The file ----

    def _exit(self) -> None:
        self._peers = None  # ranks end at different times, and their store ends with rank 0
        self.finish()

    def finish(self) -> None:
        """Removes the hooks and writes the file, once. If the file cannot be written, it prints a line, and training continues."""
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        atexit.unregister(self._exit)
        if self._now is not None and self._now.end:  # the program's last step
            self._steps.append(self._now)
        skip = min(self._settings.skip, len(self._steps) // 2)
        steps = [step for step in self._steps[skip:] if step.ready]
        # (The program's last step has no rest.)
        whole = [step.computed + rest for step, rest in zip(self._steps[skip:], self._rests[skip:]) if step.ready]
        skew = self._peers.skew(whole) if self._peers else None
        self._peers = None
        if not self._writes:
            return
        if not steps:
            self._print("no step had a forward and a backward pass")
            return
        try:
            with whole_file(self._settings.path) as partial:
                partial.write_text(json.dumps(self._document(steps, self._rests[skip:], skew), indent=1) + "\n", "utf-8")
        except OSError as error:
            self._print(error.strerror or str(error))

    def _print(self, reason: str) -> None:
        print(f"deepreduce: record: {os.fspath(self._settings.path)}: not written: {reason}", file=sys.stderr)

    def _document(self, steps: List[_Step], rests: List[float], skew: Optional[Skew]) -> Json:
        times: Dict[str, List[float]] = {}
        for step in steps:
            for name, seconds in step.ready.items():
                times.setdefault(name, []).append(seconds)
        ready = {name: _ns(seconds) for name, seconds in times.items()}
        return {
            "schema": "deepreduce-model-1",
            "name": self._settings.name or type(self._module).__name__,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": machine_facts(),
            "ranks": skew.ranks if skew else self._ranks,
            "batch": self._settings.batch,
            "steps": len(steps),
            "forward_ns": _ns([step.backward - step.begin for step in steps]),
            "backward_ns": _ns([max(step.ready.values()) for step in steps]),
            "rest_ns": _ns(rests),
            **({"skew_ns": round(1e9 * skew.seconds)} if skew else {}),
            "tensors": [
                {"name": name, "elements": math.prod(shape), "shape": shape, "dtype": dtype, "ready_ns": ready[name]}
                for name, (shape, dtype) in self._shapes.items()
                if name in ready  # the others had no gradient
            ],
        }


def record(model: object, path: Union[str, os.PathLike[str], Recording]) -> ModelRecorder:
    """Records when the gradients of a model become ready, for `deepreduce predict` and `plan`.

    model  a DistributedDataParallel, without a hook of deepreduce (DDPHook has record=), or any module on the CPU
    path   path of the file (docs/model.schema.json), or a Recording with further settings

    The hooks are removed after the last step. Times are those of rank 0. If all ranks record, the file also has the time by which
    the slowest rank is behind rank 0 (skew_ns). A step that accumulates gradients counts as a step of its own.

    Raises ArgumentError if the path's folder does not exist; Unsupported for parameters that are not f32, f16 or bf16, or that
    are on a GPU.
    """
    return ModelRecorder(model, path if isinstance(path, Recording) else Recording(path))


def _check(name: str, parameter: torch.Tensor) -> None:
    if parameter.dtype not in _TYPES:
        raise Unsupported(f"record: {name} is {parameter.dtype}; f32, f16 and bf16 are recorded")
    if parameter.device.type != "cpu":
        raise Unsupported(f"record: {name} is on {parameter.device}; only a CPU's gradients are ready when autograd is")


def _writes() -> bool:
    """Whether this is the rank that writes."""
    return not dist.is_initialized() or dist.get_rank() == 0


def machine_facts() -> Json:
    cpu = None
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                cpu = line.partition(": ")[2]
                break
    except OSError:
        pass
    return {"cpu": cpu, "cores": os.cpu_count() or 1, "os": " ".join(platform.uname()[i] for i in (0, 2, 4))}


def _tensors(output: object) -> Iterator[torch.Tensor]:
    """All tensors in a tensor, a list, tuple or dict, or a dataclass, at any depth."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, (list, tuple)):
        for item in output:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for field in dataclasses.fields(output):
            yield from _tensors(getattr(output, field.name))


def _ns(seconds: List[float]) -> int:
    return round(1e9 * statistics.median(seconds)) if seconds else 0
