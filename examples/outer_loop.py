"""Training over slow links: each worker trains 20 steps alone, then the workers exchange what their weights moved. A small network
on made data, on the CPU; the workers are ranks of torch.distributed:

    torchrun --nproc_per_node 2 outer_loop.py

or processes that share a folder, which come and go as they like; start two or more, each with a name of its own:

    python outer_loop.py /shared/run alice &
    python outer_loop.py /shared/run bob
"""

import sys
import zlib

import torch
import torch.distributed as dist
from torch import nn

import deepreduce.outer

PLAN = "sparseloco"  # the 64 largest of every 4,096 elements in 2 bits, and a residual


def samples(count: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """Points of 10 clusters, and the numbers of their clusters."""
    centres = torch.randn(10, 64, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(10, (count,))
    return centres[labels] + 0.8 * torch.randn(count, 64), labels


def main() -> None:
    if len(sys.argv) > 2:
        group, name = deepreduce.outer.Folder(sys.argv[1], sys.argv[2], deadline=10), sys.argv[2]
    else:
        dist.init_process_group("gloo")
        group, name = None, str(dist.get_rank())
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    inner = torch.optim.AdamW(model.parameters(), lr=0.002)
    outer = deepreduce.outer.Outer(model, PLAN, every=20, group=group)  # the model gets the weights of the others

    torch.manual_seed(zlib.crc32(name.encode()))  # other samples on every worker
    while outer.info.rounds < 10:
        x, y = samples(32)
        inner.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        inner.step()
        if outer.step():  # the one line
            print(f"round {outer.info.last.number}: loss {loss.item():.3f}, workers {' '.join(outer.info.last.workers)}")

    x, y = samples(1000)
    accuracy = (model(x).argmax(1) == y).float().mean().item()
    info = outer.info
    weights = sum(each.detach().double().sum().item() for each in model.parameters())
    print(f"accuracy {accuracy:.3f}, weights {weights:.12f}; sent {info.sent // 10} bytes a round instead of {info.dense}")
    if group is None:
        dist.destroy_process_group()
    if accuracy < 0.9:
        raise SystemExit("the model did not learn")


main()
