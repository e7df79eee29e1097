"""deepreduce.lightning: compressed gradients for Lightning's strategy "ddp". Imported on request.

    trainer = lightning.Trainer(strategy="ddp", callbacks=[deepreduce.lightning.Compress(plan)], …)

A callback, since DDPStrategy(ddp_comm_hook=…) is ignored without a GPU, and would not save the residuals.
"""

from __future__ import annotations

from typing import Any, List, Optional

import lightning
import torch
import torch.distributed as dist

from ._native._renamed import argument
from ._native._types import SavedState
from .errors import Unsupported
from .stats import scalars
from .torch import DDPHook, Plans
from .torch._saved import state_of_rank

__all__ = ["Compress"]

_KEY = "deepreduce"  # in a checkpoint


class Compress(lightning.Callback):  # type: ignore[misc]
    """Registers a DDPHook with the model of each fit. With one process it does nothing.

    plan     as of deepreduce.torch.DDPHook
    options  its other arguments
    hook     the DDPHook of the last fit, for stats() and the like; None before the first

    The trainer's loggers receive the hook's metrics() of rank 0 every `log_every_n_steps`, as "deepreduce/bytes_sent" and so on.

    Checkpoints hold the residuals of all ranks (4 bytes an element and rank), so that a resumed training is the same,
    bit for bit. Raises Unsupported for a strategy without DistributedDataParallel, and the errors of DDPHook.
    """

    @argument("bypass", "dense_below")
    def __init__(self, plan: Plans, **options: Any) -> None:
        self.hook: Optional[DDPHook] = None
        self._plan, self._options = plan, options
        self._logged = 0  # the step whose metrics were logged last
        self._loaded: Optional[SavedState] = None

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Registers the hook. Lightning calls it when the model is in DistributedDataParallel."""
        self._logged = 0
        if trainer.world_size == 1:
            return
        ddp = trainer.strategy.model
        if not isinstance(ddp, torch.nn.parallel.DistributedDataParallel):
            raise Unsupported(
                f"{type(trainer.strategy).__name__} has no DistributedDataParallel to hook into: Trainer(strategy='ddp') has"
            )
        hook = DDPHook(self._plan, **self._options)
        state = self._loaded or (None if self.hook is None else self.hook.state_dict())
        if state is not None:
            hook.load_state_dict(state)
        self.hook, self._loaded = hook.register(ddp), None

    def on_train_batch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: object, batch: object, batch_idx: int) -> None:
        """Logs the hook's metrics, as deepreduce/NAME, as often as the trainer logs."""
        steps = trainer.global_step
        if self.hook is None or trainer.world_size == 1 or not trainer.loggers or steps == self._logged or steps % max(1, trainer.log_every_n_steps):
            return
        self._logged = steps
        metrics = scalars(self.hook)
        for logger in trainer.loggers:
            logger.log_metrics(metrics, steps)

    def on_save_checkpoint(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: SavedState) -> None:
        """Gathers the states of all ranks on rank 0. Lightning calls it on all ranks, and writes the checkpoint of rank 0."""
        if self.hook is None or trainer.world_size == 1:  # (a hook of an earlier fit, on several ranks)
            return
        states: List[Optional[SavedState]] = [None] * trainer.world_size
        dist.gather_object(self.hook.state_dict(), states if trainer.global_rank == 0 else None)
        checkpoint[_KEY] = states

    def on_load_checkpoint(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: SavedState) -> None:
        """Loads this rank's state, and with fewer ranks than before those of removed ranks. The residuals of a new rank, and
        those of all ranks if the checkpoint has no states, begin at zero."""
        states = checkpoint.get(_KEY)
        if states is None:
            return
        self._loaded = state_of_rank(dict(enumerate(states)), trainer.global_rank, trainer.world_size)
