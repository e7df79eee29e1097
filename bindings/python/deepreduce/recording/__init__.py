"""Records the gradients of a live PyTorch run without changing the run.

    deepreduce capture --every 100 --output gradients -- python train.py --epochs 3

A hook (torch.optim's register_optimizer_step_pre_hook) runs before each optimizer step and copies the gradients, after
accumulation, unscaling and clipping. It writes one file per step: parameter's name -> array. `deepreduce compare
gradients/*.npz` reads these files. Types do not change, and sparse gradients stay sparse. With --model FILE rank 0 also writes
the times at which gradients become ready (deepreduce.torch.record), for `deepreduce predict` and `plan`.
"""

from __future__ import annotations

import argparse
import atexit
import dataclasses
import gc
import itertools
import json
import os
import pathlib
import shutil
import sys
from typing import TYPE_CHECKING, Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

from .._files._npz import write_npz
from .._files._torch_arrays import Arrays, add_tensor, named_parameters_of
from .._files._whole_file import whole_file
from .._native import _tool
from .._native._types import Options
from ..errors import Error

if TYPE_CHECKING:
    import types

    import torch

__all__ = ["Recorder", "Settings", "gradients", "main", "start", "write_npz"]

ENVIRONMENT = "DEEPREDUCE_CAPTURE"
_Call = Tuple[Tuple[Any, ...], Options]  # the arguments of a call, by position and by name
_SUFFIXES = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is recorded, and where.

    output  the folder of the files
    steps   numbers of the steps to record; the first is 1. None: every `every`-th step
    every   interval of the steps, if `steps` is None
    limit   maximum bytes of all files of a rank; the recording ends before a step that would exceed it
    model   a file for the times at which gradients become ready; None: not written
    """

    output: str
    steps: Optional[FrozenSet[int]] = None
    every: int = 100
    limit: int = 10**9
    model: Optional[str] = None

    def wants(self, step: int) -> bool:
        """Whether the step of that number is recorded; the first is 1."""
        return step in self.steps if self.steps is not None else step % self.every == 0

    def to_json(self) -> str:
        """The settings as text, for `from_json`."""
        steps = None if self.steps is None else _ranges(self.steps)
        return json.dumps({**dataclasses.asdict(self), "steps": steps})

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Parses a text of `to_json`. Raises ValueError, KeyError or TypeError for any other text."""
        fields = json.loads(text)
        if fields["steps"] is not None:
            fields["steps"] = frozenset(step for first, last in fields["steps"] for step in range(first, last + 1))
        return cls(**fields)


def _ranges(steps: FrozenSet[int]) -> List[List[int]]:
    """[[first, last], …] of steps that follow one another: a variable of the environment has no room for a million numbers."""
    found: List[List[int]] = []
    for step in sorted(steps):
        if found and step == found[-1][1] + 1:
            found[-1][1] = step
        else:
            found.append([step, step])
    return found


def gradients(named_parameters: Sequence[Tuple[str, torch.nn.Parameter]]) -> Arrays:
    """name -> gradient, for the parameters that have one. The arrays may share memory with the gradients."""
    return _unscaled(named_parameters, None)


def _unscaled(named_parameters: Sequence[Tuple[str, torch.nn.Parameter]], scale: Optional[float]) -> Arrays:
    """As gradients, divided by a loss scale; None: as they are."""
    arrays: Arrays = {}
    for name, parameter in named_parameters:
        if parameter.grad is not None:
            add_tensor(arrays, name, parameter.grad if scale is None else parameter.grad / scale)
    return arrays


@dataclasses.dataclass
class _Optimizer:
    """An optimizer of the program. The reference to it keeps its id from being used for another object.

    number      in the order of the first steps
    parameters  (name, parameter) of all groups; None: not read yet
    """

    number: int
    optimizer: torch.optim.Optimizer
    steps: int = 0
    parameters: Optional[List[Tuple[str, torch.nn.Parameter]]] = None


class Recorder:
    """Counts the steps of each optimizer, and writes a file for each step that the settings select. With several ranks (of
    torch.distributed, or by WORLD_SIZE and RANK of the environment) the names of the files begin with the rank.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.files, self.bytes = 0, 0
        self._stopped = False
        self._optimizers: Dict[int, _Optimizer] = {}  # by id

    def before_step(self, optimizer: torch.optim.Optimizer, args: Tuple[Any, ...] = (), kwargs: Optional[Options] = None) -> Optional[_Call]:
        """The hook. An error is reported once and ends the recording; the run continues. The gradient of a step with a closure
        is what the closure's first call leaves: the hook returns the step's arguments with one that records it."""
        kwargs = kwargs or {}
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # (args[0] is the optimizer)
        if closure is None:
            self._try_count(optimizer)
            return None
        calls = itertools.count()

        def recorded() -> object:
            loss = closure()
            if next(calls) == 0:
                self._try_count(optimizer)
            return loss

        return (args, {**kwargs, "closure": recorded}) if "closure" in kwargs else ((args[0], recorded, *args[2:]), kwargs)

    def _try_count(self, optimizer: torch.optim.Optimizer) -> None:
        try:
            self._count(optimizer)
        except Exception as error:
            self._stop(f"stopped: {error!r}")

    def _count(self, optimizer: torch.optim.Optimizer) -> None:
        counted = self._optimizers.setdefault(id(optimizer), _Optimizer(len(self._optimizers), optimizer))
        counted.steps += 1
        if self.settings.model and (counted.number, counted.steps) == (0, 1):
            self._record_model(optimizer)
        if self._stopped or not self.settings.wants(counted.steps):
            return
        # A GradScaler leaves the unscaling, and the decision to skip the step, to a fused optimizer, in these attributes.
        overflow, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
        if overflow is not None and float(overflow):
            self._print(f"step {counted.steps}: GradScaler skips it, for a gradient has overflowed; nothing recorded")
            return
        named = counted.parameters
        if named is None or [id(parameter) for _, parameter in named] != [id(parameter) for parameter in _parameters_of(optimizer)]:
            named = counted.parameters = names_of(optimizer)  # at the first step, and if add_param_group has added some
        arrays = _unscaled(named, None if scale is None else float(scale))
        if not arrays:
            self._print(f"step {counted.steps}: no parameter has a gradient; nothing recorded")
            return
        size = sum(array.nbytes + 256 for array in arrays.values())
        if self.bytes + size > self.settings.limit:
            self._stop(
                f"ends before step {counted.steps}: {_text(self.bytes)} recorded, {_text(size)} more would exceed the limit of"
                f" {_text(self.settings.limit)} (--limit)"
            )
            return
        if self.files == 0:
            fit = self.settings.limit // size
            self._print(f"{_text(size)} per step; {fit} steps fit into the limit of {_text(self.settings.limit)}")
        self._write(counted.number, counted.steps, arrays)

    def _record_model(self, optimizer: torch.optim.Optimizer) -> None:
        from ._model_times import record

        path = self.settings.model
        try:
            model = _model_of(optimizer)
            if model is None:
                self._print(f"{path}: not written: no module has parameters of the first optimizer")
            elif path is not None:
                record(model, path)
        except Error as error:
            self._print(f"{path}: not written: {error}")

    def _write(self, optimizer: int, step: int, arrays: Arrays) -> None:
        folder = pathlib.Path(self.settings.output)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"step{step:06d}" + (f"_optimizer{optimizer}" if optimizer else "")
        rank = rank_of_process()
        if rank is not None:
            name = f"rank{rank}_{name}"
        with whole_file(folder / f"{name}.npz") as partial:
            write_npz(partial, arrays)
        self.files += 1
        self.bytes += (folder / f"{name}.npz").stat().st_size

    def _stop(self, reason: str) -> None:
        if not self._stopped:
            self._print(reason)
        self._stopped = True

    def _print(self, message: str) -> None:
        rank = rank_of_process()
        prefix = "" if rank is None else f" rank {rank}:"
        print(f"deepreduce: capture:{prefix} {message}", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Reports the number of steps and files."""
        steps = max((counted.steps for counted in self._optimizers.values()), default=0)
        if steps:
            files = f"{self.files} file{'' if self.files == 1 else 's'}, {_text(self.bytes)}, in {self.settings.output}"
            self._print(f"{steps} steps; {files}")


def rank_of_process() -> Optional[int]:
    """The rank of this process; None if there is only one rank."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()) if distributed.get_world_size() > 1 else None
    return _number_of("RANK", 0) if _number_of("WORLD_SIZE", 1) > 1 else None


def _number_of(variable: str, default: int) -> int:
    """A number of the environment; the default if the variable is not set, or is not a number."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else default


def names_of(optimizer: torch.optim.Optimizer) -> List[Tuple[str, torch.nn.Parameter]]:
    """(name, parameter) of all groups of an optimizer. A name is that of the group or of the parameter's module, else a number.

    Wrappers of torch.nn.parallel and torch.compile are not part of a name.
    """
    named: Dict[int, str] = {}
    bare: Dict[Tuple[int, str], str] = {}  # (id, name with wrappers) -> name without
    for module in _outermost():
        for (whole, _), (name, parameter) in zip(module.named_parameters(), named_parameters_of(module)):
            named.setdefault(id(parameter), name)
            bare[id(parameter), whole] = name
    for group in optimizer.param_groups:
        for whole, parameter in zip(group.get("param_names") or (), group["params"]):
            named[id(parameter)] = bare.get((id(parameter), str(whole)), str(whole))
    result, used = [], set()
    for i, group in enumerate(optimizer.param_groups):
        for k, parameter in enumerate(group["params"]):
            name = named.get(id(parameter), f"group{i}.{k}")
            if name in used:  # in two models
                name = f"group{i}.{k}.{name}"
            used.add(name)
            result.append((name, parameter))
    return result


def _parameters_of(optimizer: torch.optim.Optimizer) -> List[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _outermost() -> List[torch.nn.Module]:
    """The modules that are not part of another module."""
    from torch import nn

    # By type(): isinstance reads __class__, with which an object can run code of its own.
    modules = [found for found in gc.get_objects() if issubclass(type(found), nn.Module) and _is_made(found)]
    inner = {id(child) for module in modules for child in module.children()}
    return [module for module in modules if id(module) not in inner]


def _is_made(module: torch.nn.Module) -> bool:
    """Whether nn.Module.__init__ has run: a constructor that fails before leaves an object that has no parts."""
    try:
        return all(True for _ in module.children())
    except AttributeError:
        return False


def _model_of(optimizer: torch.optim.Optimizer) -> Optional[torch.nn.Module]:
    """The module that has the largest number of an optimizer's elements; None if no module has any."""
    sizes = {id(parameter): parameter.numel() for parameter in _parameters_of(optimizer)}
    counts = [(sum(sizes.get(id(parameter), 0) for parameter in module.parameters()), module) for module in _outermost()]
    count, model = max(counts, key=lambda pair: pair[0], default=(0, None))
    return model if count else None


def start(optimizer_module: types.ModuleType) -> Optional[Recorder]:
    """Starts to record in this process, with the settings of the environment; None if there are none. Called by sitecustomize."""
    text = os.environ.get(ENVIRONMENT)
    if not text:
        return None
    recorder = Recorder(Settings.from_json(text))
    optimizer_module.register_optimizer_step_pre_hook(recorder.before_step)
    atexit.register(recorder.finish)
    return recorder


# ---- The command --------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Runs `deepreduce capture` and returns the exit status: the program's, 2 for errors of usage, 1 if nothing was recorded."""
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    options, command = _parser().parse_args(words[:at]), words[at + 1 :]
    if not command:
        print("deepreduce: capture: no program; deepreduce capture [OPTIONS] -- python train.py …", file=sys.stderr)
        return 2
    if command[0].endswith(".py"):
        command.insert(0, sys.executable)
    if shutil.which(command[0]) is None:
        print(f"deepreduce: capture: '{command[0]}': there is no such program", file=sys.stderr)
        return 2
    output = pathlib.Path(options.output).absolute()
    model = os.path.abspath(options.model) if options.model else None
    if model and not os.path.isdir(os.path.dirname(model)):
        print(f"deepreduce: capture: --model {options.model}: there is no folder {os.path.dirname(model)}", file=sys.stderr)
        return 2
    before, model_before = _files(output), _time_of(model)
    settings = Settings(str(output), options.steps, options.every, options.limit, model)
    try:
        status = _tool.run_program(command, _environment(settings))
    except OSError as error:
        print(f"deepreduce: capture: '{command[0]}': cannot be started: {error.strerror}", file=sys.stderr)
        return 2
    if status:
        print(f"deepreduce: capture: the program exited with {status}", file=sys.stderr)
    elif _files(output) == before and _time_of(model) == model_before:
        print(
            "deepreduce: capture: nothing recorded; if no line above says why, no optimizer of torch.optim made a step that"
            " --steps or --every names, or the program is not Python, or ignores PYTHONPATH (python -E, -I or -S)",
            file=sys.stderr,
        )
        return 1
    return status


def _files(folder: pathlib.Path) -> Dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.npz")}


def _time_of(file: Optional[str]) -> Optional[int]:
    return os.stat(file).st_mtime_ns if file and os.path.exists(file) else None


def _environment(settings: Settings) -> Dict[str, str]:
    """The environment with sitecustomize first on the path, and this package last, so that it hides no module of the program."""
    room = pathlib.Path(__file__).resolve().parent
    known = os.environ.get("PYTHONPATH")
    paths = [str(room / "_capture_site")] + ([known] if known else []) + [str(room.parents[1])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), ENVIRONMENT: settings.to_json()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deepreduce capture",
        usage="deepreduce capture [OPTIONS] -- PROGRAM …",
        description="Runs a PyTorch program and records gradients at optimizer steps, one .npz file per step; the run itself is"
        " not changed. With several ranks (RANK and WORLD_SIZE, as torchrun sets them) every rank writes files of its own.",
        epilog="Then: deepreduce compare gradients/*.npz --plan …",
    )
    parser.add_argument("--steps", type=_steps, metavar="LIST", help="steps to record: 1,10,500-505; the first is 1")
    parser.add_argument("--every", type=_positive, default=100, metavar="N", help="without --steps: every N-th step; default: 100")
    parser.add_argument("--output", default="gradients", metavar="DIR", help="folder of the files; default: gradients")
    parser.add_argument(
        "--model", metavar="FILE", help="write when gradients become ready, too, for deepreduce predict and plan"
    )
    parser.add_argument(
        "--limit", type=_size, default=10**9, metavar="SIZE", help="maximum bytes that a rank writes (200M, 5G); default: 1G"
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return int(text)


def _steps(text: str) -> FrozenSet[int]:
    steps: List[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        begin, end = _positive(first), _positive(last if dash else first)
        if not begin <= end < begin + 10**6:
            raise argparse.ArgumentTypeError(f"'{part}' is not a range of steps, such as 500-505")
        steps += range(begin, end + 1)
    return frozenset(steps)


def _size(text: str) -> int:
    factor = _SUFFIXES.get(text[-1:].upper(), 1)
    return _positive(text[:-1] if factor > 1 else text) * factor


def _text(size: int) -> str:
    for suffix, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.3g} {suffix}"
    return f"{size} bytes"
