"""Training over slow links: each worker trains 20 steps alone, then the workers exchange what their weights moved. A small network
on made data, on the CPU; the workers are ranks of torch.distributed:

    torchrun --nproc_per_node 2 outer_loop.py

or processes that share a folder, in two terminals or more, each with a name of its own; start, stop and restart them at any time:

    python outer_loop.py /shared/run alice
    python outer_loop.py /shared/run bob
"""

import os
import sys
import time
import zlib

import torch
import torch.distributed as dist
from torch import nn

import deepreduce.outer

PLAN = "sparseloco"  # the 64 largest of every 4,096 elements in 2 bits, and a residual
ROUNDS = 20  # of the whole run


def samples(count: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """Points of 10 clusters, and the numbers of their clusters."""
    centres = torch.randn(10, 64, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(10, (count,))
    return centres[labels] + 2 * torch.randn(count, 64), labels


def main() -> None:
    if len(sys.argv) == 3:
        group, name = deepreduce.outer.Folder(sys.argv[1], sys.argv[2], deadline=10), sys.argv[2]
    elif len(sys.argv) == 1 and "RANK" in os.environ:
        dist.init_process_group("gloo")
        group, name = None, str(dist.get_rank())
    else:
        raise SystemExit(__doc__)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    inner = torch.optim.AdamW(model.parameters(), lr=0.002)
    outer = deepreduce.outer.Outer(model, PLAN, every=20, group=group)  # the model gets the weights of the others
    first = outer.info.rounds  # with a folder: those before this worker came
    if group is not None:
        print(f"{name} begins at round {first} of {ROUNDS}" + (": the run is over, take another folder" if first >= ROUNDS else ""), flush=True)

    torch.manual_seed(zlib.crc32(name.encode()))  # other samples on every worker
    while outer.info.rounds < ROUNDS:
        x, y = samples(32)
        inner.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        inner.step()
        if group is not None:
            time.sleep(0.05)  # a large model takes longer; here there is time to start and stop workers
        if outer.step() and (group is not None or name == "0"):  # the one line
            last = outer.info.last
            print(f"round {last.number}: loss {loss.item():.3f}, workers {' '.join(last.workers)}", flush=True)

    x, y = samples(1000)
    accuracy = (model(x).argmax(1) == y).float().mean().item()
    info = outer.info
    weights = sum(each.detach().double().sum().item() for each in model.parameters())
    sent = info.sent // max(1, info.rounds - first)
    print(f"{name}: accuracy {accuracy:.3f}, weights {weights:.12f}; sent {sent} bytes a round instead of {info.dense}")
    if group is None:
        dist.destroy_process_group()
    if accuracy < 0.9:
        raise SystemExit("the model did not learn")


main()
