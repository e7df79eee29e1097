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
from .torch import DDPHook, Plans
from .torch._saved import state_of_rank

__all__ = ["Compress"]

_KEY = "deepreduce"  # in a checkpoint


class Compress(lightning.Callback):  # type: ignore[misc]
    """Registers a DDPHook with the model of each fit. A trainer of one process is left as it is.

    plan     as of deepreduce.torch.DDPHook
    options  its other arguments
    hook     the DDPHook of the last fit: stats() and the rest; None before the first

    The trainer's loggers get the hook's metrics() as "deepreduce/bytes_sent" and so on, of rank 0, each `log_every_n_steps`.

    Checkpoints hold the residuals of all ranks (4 bytes an element and rank), so that a resumed training is the same,
    bit for bit. Raises Unsupported for a strategy without DistributedDataParallel, and what DDPHook raises.
    """

    @argument("bypass", "dense_below")
    def __init__(self, plan: Plans, **options: Any) -> None:
        self.hook: Optional[DDPHook] = None
        self._plan, self._options = plan, options
        self._logged = 0  # the step whose metrics were logged last
        self._loaded: Optional[SavedState] = None

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Lightning calls it once the model is in DistributedDataParallel."""
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
        if self.hook is None or not trainer.loggers or steps == self._logged or steps % max(1, trainer.log_every_n_steps):
            return
        self._logged = steps
        metrics = {f"deepreduce/{name}": value for name, value in self.hook.metrics().items()}
        for logger in trainer.loggers:
            logger.log_metrics(metrics, steps)

    def on_save_checkpoint(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: SavedState) -> None:
        """Lightning calls it on all ranks, and writes what rank 0 has."""
        if self.hook is None:
            return
        states: List[Optional[SavedState]] = [None] * trainer.world_size
        dist.gather_object(self.hook.state_dict(), states if trainer.global_rank == 0 else None)
        checkpoint[_KEY] = states

    def on_load_checkpoint(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: SavedState) -> None:
        """Takes this rank's state, and with fewer ranks than before those of ranks that are gone. Of a checkpoint without
        any, the residuals begin at zero, and so do those of a rank that is new."""
        states = checkpoint.get(_KEY)
        if states is None:
            return
        self._loaded = state_of_rank(dict(enumerate(states)), trainer.global_rank, trainer.world_size)
