"""Hugging Face Accelerate with compressed gradients, on the CPU over gloo.

torchrun --nproc_per_node 2 train_accelerate.py
"""

import accelerate
import torch

import deepreduce.accelerate

PLAN = "recommended"  # or None, "auto", a plan: docs/PYTORCH.md, "Which plan"
accelerator = accelerate.Accelerator(cpu=True)
torch.manual_seed(0)  # the same model and the same truth on every rank
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
truth = torch.nn.Linear(64, 10)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.2))
hook = deepreduce.accelerate.compress(accelerator, model, PLAN)  # the one line

torch.manual_seed(accelerator.process_index + 1)  # other samples on every rank
for step in range(100):
    x = torch.randn(64, 64)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), truth(x).argmax(1))
    accelerator.backward(loss)
    optimizer.step()
    if step % 33 == 0:
        accelerator.print(f"step {step}: loss {loss.item():.3f}")
if hook:
    accelerator.print(f"a rank sends {hook.stats().last.frame} bytes a step instead of {hook.stats().last.dense}")
accelerator.end_training()
