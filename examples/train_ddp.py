"""DistributedDataParallel with compressed gradients: a small network on made data, on the CPU over gloo.

    torchrun --nproc_per_node 2 train_ddp.py
"""

import torch
import torch.distributed as dist
from torch import nn

import deepreduce.torch

PLAN = "recommended"  # or None, "auto", a plan: docs/PYTORCH.md, "Which plan"


def samples(count: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """Points of 10 clusters, and the numbers of their clusters."""
    centres = torch.randn(10, 64, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(10, (count,))
    return centres[labels] + 0.8 * torch.randn(count, 64), labels


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # the same model on every rank
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    ddp = nn.parallel.DistributedDataParallel(model)
    hook = deepreduce.torch.DDPHook(PLAN).register(ddp)  # the one line
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2)

    torch.manual_seed(dist.get_rank() + 1)  # other samples on every rank
    for step in range(60):
        x, y = samples(32)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}")

    torch.manual_seed(99)
    x, y = samples(1000)
    accuracy = (model(x).argmax(1) == y).float().mean().item()
    if dist.get_rank() == 0:
        last = hook.stats().last
        print(f"accuracy {accuracy:.3f}; a rank sends {last.frame} bytes a step instead of {last.dense}")
    dist.destroy_process_group()
    if accuracy < 0.9:
        raise SystemExit("the model did not learn")


main()
