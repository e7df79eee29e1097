"""GRACE's interface in a plain loop, without DistributedDataParallel: Top-1 % with a residual, on the CPU over gloo.

    torchrun --nproc_per_node 2 train_grace.py
"""

import torch
import torch.distributed as dist

import deepreduce.grace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
params = {"compressor": "topk", "compress_ratio": 0.01, "memory": "residual", "communicator": "allgather", "world_size": world}
grc = deepreduce.grace.grace_from_params(params)  # a compressor, a memory and a communicator
torch.manual_seed(0)  # the same model and the same truth on every rank
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
truth, optimizer = torch.nn.Linear(64, 10), torch.optim.SGD(model.parameters(), lr=0.2)
torch.manual_seed(rank + 1)  # other samples on every rank
for _ in range(200):
    x = torch.randn(64, 64)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), truth(x).argmax(1))
    loss.backward()
    for name, parameter in model.named_parameters():
        parameter.grad.copy_(grc.step(parameter.grad, name))  # the one line
    optimizer.step()
sent, dense = (deepreduce.grace.volume[key] / 8 / 200 for key in ("compress", "nocompress"))  # bits of all steps
print(f"rank {rank}: loss {loss:.3f}, weights {model[0].weight.sum().item()!r}; sends {sent:.0f} bytes a step instead of {dense:.0f}")
dist.destroy_process_group()
