"""What test_accelerate.py runs on two ranks: FOLDER is the argument. Writes the parameters after each training there."""

import pathlib
import sys
import time

import accelerate
import numpy as np
import torch
import transformers

import deepreduce.accelerate

LOSSLESS = "index=all value=raw"
LOSSY = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=log_quant"
FOLDER = pathlib.Path(sys.argv[1])


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(20, 80), torch.nn.Tanh(), torch.nn.Linear(80, 20))

    def forward(self, x, labels=None):
        made = self.model(x)
        return {"loss": (made - x).square().mean(), "logits": made}


def write(name, model, rank):
    np.save(FOLDER / f"{name}{rank}.npy", torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy())


def loop(name, plan, first=0, last=6, save_at=None, load=False):
    """A loop of one's own."""
    accelerator, model = accelerate.Accelerator(cpu=True), Model()
    ddp, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
    hook = None if plan is None else deepreduce.accelerate.compress(accelerator, ddp, plan, dense_below=0)
    if load:
        accelerator.load_state(FOLDER / "state")
    for step in range(first, last):
        torch.manual_seed(100 * step + accelerator.process_index)
        optimizer.zero_grad()
        accelerator.backward(ddp(torch.randn(8, 20))["loss"])
        optimizer.step()
        if step + 1 == save_at:
            accelerator.save_state(FOLDER / "state")
    assert hook is None or hook.state_dict()["step"] == last
    write(name, model, accelerator.process_index)


def two_models(name, first=0, last=6, save_at=None, load=False):
    """A loop over two models of one accelerator, each with residuals of its own."""
    accelerator = accelerate.Accelerator(cpu=True)
    pairs = [(model, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1 + i))) for i, model in enumerate((Model(), Model()))]
    hooks = [deepreduce.accelerate.compress(accelerator, ddp, LOSSY, dense_below=0) for _, ddp, _ in pairs]
    if load:
        accelerator.load_state(FOLDER / "two_states")
    for step in range(first, last):
        for i, (_, ddp, optimizer) in enumerate(pairs):
            torch.manual_seed(100 * step + 10 * i + accelerator.process_index)
            optimizer.zero_grad()
            accelerator.backward(ddp(torch.randn(8, 20))["loss"])
            optimizer.step()
        if step + 1 == save_at:
            accelerator.save_state(FOLDER / "two_states")
    assert [hook.state_dict()["step"] for hook in hooks] == [last, last]
    for i, (model, _, _) in enumerate(pairs):
        write(f"{name}_{i}", model, accelerator.process_index)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, i):
        return {"x": torch.randn(20, generator=torch.Generator().manual_seed(i))}


class Late(transformers.Trainer):
    """Its rank 0 makes the folder of a checkpoint a second after rank 1 would write into it."""

    def save_model(self, *given, **named):
        if self.args.process_index == 0:
            time.sleep(1)
        super().save_model(*given, **named)


def train(name, plan, steps=6, resume=None, kind=transformers.Trainer, **more):
    """transformers.Trainer."""
    arguments = transformers.TrainingArguments(
        output_dir=str(FOLDER / name), max_steps=steps, save_steps=3, per_device_train_batch_size=8, use_cpu=True,
        report_to="none", disable_tqdm=True, learning_rate=0.01, lr_scheduler_type="constant", ddp_backend="gloo", seed=5, **more,
    )  # fmt: skip
    trainer = kind(Model(), arguments, train_dataset=Data())
    callback = None if plan is None else deepreduce.accelerate.compress_trainer(trainer, plan, dense_below=0)
    trainer.train(resume_from_checkpoint=str(FOLDER / resume / "checkpoint-3") if resume else None)
    assert callback is None or callback.hook.state_dict()["step"] == steps
    write(name, trainer.model, arguments.process_index)


loop("loop_plain", None)
loop("loop_exact", LOSSLESS)
loop("loop_whole", LOSSY, save_at=3)
loop("loop_resumed", LOSSY, first=3, load=True)
two_models("two_whole", save_at=3)
two_models("two_resumed", first=3, load=True)
loop("loop_preset", "terngrad")
loop("loop_preset_plan", deepreduce.presets()["terngrad"])
train("trainer_plain", None)
train("trainer_exact", LOSSLESS)
train("trainer_whole", LOSSY)
train("trainer_resumed", LOSSY, resume="trainer_whole")
train("trainer_only", LOSSY, kind=Late, save_only_model=True)
train("trainer_preset", "terngrad")
train("trainer_preset_plan", deepreduce.presets()["terngrad"])
try:
    deepreduce.accelerate.compress(accelerate.Accelerator(cpu=True), Model(), LOSSY)
except deepreduce.Unsupported as error:
    assert "prepare the model first" in str(error)
else:
    raise AssertionError("nothing was raised")
torch.distributed.destroy_process_group()
