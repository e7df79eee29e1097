"""What test_lightning.py runs on two ranks: FOLDER is the argument. Writes the parameters after each training there."""

import pathlib
import sys
import types

import lightning
import numpy as np
import torch
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from torch.utils.data import DataLoader, TensorDataset

import deepreduce
from deepreduce.lightning import Compress

LOSSLESS = "index=all value=raw"
LOSSY = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=log_quant"
FOLDER = pathlib.Path(sys.argv[1])


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(20, 80), torch.nn.Tanh(), torch.nn.Linear(80, 20))

    def training_step(self, batch, index):
        return (self.model(batch[0]) - batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Log(lightning.pytorch.loggers.Logger):
    name, version = "log", 0

    def __init__(self):
        super().__init__()
        self.seen = {}

    def log_hyperparams(self, *arguments, **named):
        pass

    def log_metrics(self, metrics, step=None):
        self.seen.setdefault(step, {}).update(metrics)


def fit(name, callbacks, epochs=4, checkpoint=None, save=False, logger=False):
    x = torch.randn(64, 20, generator=torch.Generator().manual_seed(3))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=epochs, callbacks=callbacks, logger=logger, log_every_n_steps=5,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        plugins=[TorchElasticEnvironment()],
    )  # fmt: skip
    model = Model()
    trainer.fit(model, DataLoader(TensorDataset(x), batch_size=8), ckpt_path=checkpoint, weights_only=False)
    if save:
        trainer.save_checkpoint(FOLDER / "saved.ckpt")
    parameters = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    np.save(FOLDER / f"{name}{trainer.global_rank}.npy", parameters.numpy())


compress = Compress(LOSSY, dense_below=0)
fit("plain", [])
fit("exact", [Compress(LOSSLESS)])
fit("whole", [compress])
first = compress.hook
assert first and first.stats().steps == 16, first
fit("half", [Compress(LOSSY, dense_below=0)], epochs=2, save=True)
fit("resumed", [Compress(LOSSY, dense_below=0)], checkpoint=FOLDER / "saved.ckpt")

# Loggers get the hook's metrics.
log = Log()
fit("logged", [Compress(LOSSY, dense_below=0)], logger=log)
seen = {step: metrics for step, metrics in log.seen.items() if "deepreduce/ratio" in metrics}
assert list(seen) == [5, 10, 15], log.seen
assert all(metrics["deepreduce/steps"] == step and metrics["deepreduce/residual_norm"] > 0 for step, metrics in seen.items()), seen

# A second fit logs at the step at which the first one logged last.
twice = Compress(LOSSY, dense_below=0)
for _ in range(2):
    log = Log()
    fit("logged_twice", [twice], epochs=2, logger=log)
    assert [step for step, metrics in log.seen.items() if "deepreduce/ratio" in metrics] == [5], log.seen

# In a fit of one process that follows, the callback neither waits for the other rank nor logs its old hook.
log, checkpoint = Log(), dict[str, object]()
alone = types.SimpleNamespace(world_size=1, global_rank=0, global_step=5, log_every_n_steps=5, loggers=[log])
if torch.distributed.get_rank() == 0:
    twice.on_train_start(alone, None)
    twice.on_train_batch_end(alone, None, None, None, 0)
    twice.on_save_checkpoint(alone, None, checkpoint)
assert not checkpoint and not log.seen

# The name of a preset is its plan.
fit("preset", [Compress("terngrad", dense_below=0)], epochs=1)
fit("preset_plan", [Compress(deepreduce.presets()["terngrad"], dense_below=0)], epochs=1)

# A second fit has another DistributedDataParallel, and goes on with the residuals.
fit("again", [compress], epochs=1)
again = compress.hook
assert again and again is not first and again.state_dict()["step"] == 20, again

fsdp = types.SimpleNamespace(world_size=2, strategy=types.SimpleNamespace(model=torch.nn.Linear(2, 2)))
try:
    Compress(LOSSY).on_train_start(fsdp, None)
except deepreduce.Unsupported as error:
    assert "has no DistributedDataParallel" in str(error)
else:
    raise AssertionError("nothing was raised")
