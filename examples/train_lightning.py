"""Lightning with compressed gradients, on the CPU over gloo.

torchrun --nproc_per_node 2 train_lightning.py
"""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import deepreduce.lightning

PLAN = "recommended"  # or None, "auto", a plan: docs/PYTORCH.md, "Which plan"


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))

    def training_step(self, batch, index):
        loss = torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.2)


lightning.seed_everything(0)
x = torch.randn(4096, 64)
labels = torch.nn.Linear(64, 10)(x).argmax(1)
compress = deepreduce.lightning.Compress(PLAN)  # the one line, and callbacks=[compress]
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=4, callbacks=[compress], **quiet)
trainer.fit(Model(), DataLoader(TensorDataset(x, labels), batch_size=32))
if trainer.is_global_zero:
    last = compress.hook.stats().last
    print(f"loss {trainer.callback_metrics['loss']:.3f}; a rank sends {last.frame} bytes a step instead of {last.dense}")
