"""deepreduce.accelerate: compressed gradients for Hugging Face Accelerate and the Trainer of transformers. Imported on
request.

    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    hook = deepreduce.accelerate.compress(accelerator, model, plan)

    trainer = transformers.Trainer(…)
    deepreduce.accelerate.compress_trainer(trainer, plan)

compress          registers a DDPHook with a prepared model; save_state and load_state include its residuals
compress_trainer  the same for a Trainer, whose checkpoints include the residuals

DistributedDataParallelKwargs(comm_hook=…) supports only the hooks of PyTorch.
"""

from __future__ import annotations

import functools
import os
import pathlib
import sys
import weakref
from typing import TYPE_CHECKING, Any, MutableMapping, Optional, Type, Union

import torch

from ._native._renamed import argument
from ._native._types import Options, SavedState
from .errors import Unsupported
from .torch import DDPHook, Plans
from .torch._saved import state_of_rank

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

__all__ = ["compress", "compress_trainer"]

Folder = Union[str, os.PathLike[str]]


@argument("bypass", "dense_below")
def compress(accelerator: Accelerator, model: torch.nn.Module, plan: Plans, **options: Any) -> Optional[DDPHook]:
    """Registers a DDPHook with a model that accelerator.prepare returned. Returns the hook; None if there is one process.

    plan, options  as of deepreduce.torch.DDPHook

    accelerator.save_state writes the residuals of each rank to a file of its own, and load_state reads them: the
    training resumes bit for bit. With more ranks than before the new ones begin without residuals (a save removes
    the files of ranks that are no more); with fewer, the remaining
    ranks receive the residuals of the removed ones. Several models are identified by the order in which they are compressed.
    Raises Unsupported for a model without DistributedDataParallel, and the errors of DDPHook.
    """
    if accelerator.num_processes == 1:
        return None
    hook = DDPHook(plan, **options).register(_ddp_of(model))
    rank, number = accelerator.process_index, _compressed.get(accelerator, 0)  # of models compressed so far
    _compressed[accelerator] = number + 1
    accelerator.register_save_state_pre_hook(lambda models, weights, folder: _save(hook, folder, rank, number))
    accelerator.register_load_state_pre_hook(lambda models, folder: _load(hook, folder, rank, number))
    return hook


_compressed: MutableMapping[Accelerator, int] = weakref.WeakKeyDictionary()  # models of an accelerator


@argument("bypass", "dense_below")
def compress_trainer(trainer: Trainer, plan: Plans, **options: Any) -> TrainerCallback:
    """Adds a callback to a transformers.Trainer, and returns it. Its `hook` is the DDPHook of the last train().

    plan, options  as of deepreduce.torch.DDPHook

    Checkpoints include the residuals of each rank, in a file of its own, and a training that resumes loads them.
    """
    callback = _callback_class()(trainer, plan, options)
    trainer.add_callback(callback)
    train = trainer.train

    @functools.wraps(train)
    def train_and_record_the_checkpoint(resume_from_checkpoint: object = None, *more: object, **named: object) -> object:
        # A callback does not receive it, and it may be in another folder than output_dir.
        callback.resumed = resume_from_checkpoint if isinstance(resume_from_checkpoint, (str, os.PathLike)) else None
        return train(resume_from_checkpoint, *more, **named)

    trainer.train = train_and_record_the_checkpoint
    return callback


def _callback_class() -> Type[TrainerCallback]:
    """The class, defined on demand: only it needs transformers."""
    import transformers

    class Callback(transformers.TrainerCallback):  # type: ignore[misc]
        """Its `hook` is the DDPHook of the last train(); None before, and with one process."""

        def __init__(self, trainer: Trainer, plan: Plans, options: Options) -> None:
            self.hook: Optional[DDPHook] = None
            self.resumed: Optional[Folder] = None  # the folder of the checkpoint that was passed to train()
            self._trainer, self._plan, self._options = trainer, plan, options

        def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
            """The model is in DistributedDataParallel by now."""
            if args.world_size == 1:
                return
            ddp, old = _ddp_of(self._trainer.model_wrapped), self.hook
            self.hook = DDPHook(self._plan, **self._options).register(ddp)
            if state.global_step:  # resumed
                _load(self.hook, self.resumed or _folder(args, state), args.process_index)
            elif old is not None:
                self.hook.load_state_dict(old.state_dict())

        def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
            if self.hook is not None:
                _save(self.hook, _folder(args, state), args.process_index)

    return Callback


def _folder(args: TrainingArguments, state: TrainerState) -> pathlib.Path:
    return pathlib.Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _ddp_of(model: torch.nn.Module) -> torch.nn.parallel.DistributedDataParallel:
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise Unsupported(
            f"{type(model).__name__} is not a DistributedDataParallel, which the hook requires: prepare the model first;"
            " under FSDP use deepreduce.torch.ReduceScatter"
        )
    return model


def _path(folder: Folder, rank: Union[int, str], number: int) -> pathlib.Path:
    return pathlib.Path(folder) / (f"deepreduce_{rank}.pt" if number == 0 else f"deepreduce_{rank}_model{number}.pt")


def _read(folder: Folder, rank: int, number: int) -> SavedState:
    return torch.load(_path(folder, rank, number), weights_only=True)  # type: ignore[no-any-return]


def _save(hook: DDPHook, folder: Folder, rank: int, number: int = 0) -> None:
    os.makedirs(folder, exist_ok=True)  # with save_only_model rank 0 alone makes it, perhaps later, and on its own machine
    torch.save(hook.state_dict(), _path(folder, rank, number))
    if rank == 0:  # a folder that more ranks wrote before: theirs are of another step
        for path in pathlib.Path(folder).glob(_path("", "*", number).name):
            its = path.name.split("_")[1].partition(".")[0]
            if its.isdecimal() and path == _path(folder, int(its), number) and int(its) >= torch.distributed.get_world_size():
                path.unlink(missing_ok=True)


def _load(hook: DDPHook, folder: Folder, rank: int, number: int = 0) -> None:
    first = _read(folder, 0, number) if _path(folder, 0, number).exists() else {}
    is_new = rank >= (first.get("ranks") or sys.maxsize) or not _path(folder, rank, number).exists()
    own = 0 if is_new else rank
    if first or not is_new:
        size, states = torch.distributed.get_world_size(), {own: _read(folder, own, number) if own else first}
        for gone in range(rank + size, states[own].get("ranks", 0), size):
            states[gone] = _read(folder, gone, number)
        hook.load_state_dict(state_of_rank(states, rank, size))
    # (A checkpoint without compression has no file: residuals and steps begin at zero, on all ranks.)
