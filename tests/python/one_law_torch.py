"""What test_one_law.py runs on each of two ranks over gloo: RANK RANKS PORT OUT are the arguments. OUT gets an npz of what this rank
found: of each case and each sender the means of all steps, and the words of errors."""

import os
import sys

import numpy as np
import torch
import torch.distributed as dist
from one_law_cases import CASES, NAN, ROWS_SHAPE, ROWS_STEPS, STEP, rows
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from deepreduce import grace
from deepreduce.torch import AllReduce, DDPHook


def tensors_of(case, step, rank):
    return {
        name: torch.tensor(array, dtype=getattr(torch, case.tensors[name][1])) for name, array in case.gradients(step, rank).items()
    }


def options_of(case):
    return {"dense_below": case.below, "flat": case.flat}


class Loop:
    """AllReduce."""

    def __init__(self, case):
        self.case, self.sender = case, AllReduce(case.plan, **options_of(case))

    def __call__(self, step, rank):
        tensors = tensors_of(self.case, step, rank)
        self.sender(tensors)
        return tensors


class Hook:
    """A DDPHook, of a model whose gradients are those of the case."""

    def __init__(self, case):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                for name, tensor in tensors_of(case, 0, 0).items():
                    self.register_parameter(name, nn.Parameter(torch.zeros_like(tensor)))

            def forward(self, gradients):
                return sum((parameter * gradients[name]).sum().float() for name, parameter in self.named_parameters())

        self.case, self.sender = case, DDPHook(case.plan, **options_of(case))
        self.model = DDP(Model())
        self.sender.register(self.model)

    def __call__(self, step, rank):
        self.model.zero_grad()
        self.model(tensors_of(self.case, step, rank)).backward()
        return {name: parameter.grad for name, parameter in self.model.module.named_parameters()}


class Grace:
    """GRACE's all-gather of the frames of a PlanCompressor, tensor by tensor."""

    def __init__(self, case):
        self.case, self.sender = case, grace.Allgather(grace.PlanCompressor(case.plan), grace.NoneMemory())

    def __call__(self, step, rank):
        return {name: self.sender.step(tensor, name) for name, tensor in tensors_of(self.case, step, rank).items()}


def words_of(call, *arguments):
    try:
        call(*arguments)
    except Exception as error:
        return f"rank {error.rank}, {type(error).__name__}: {error}"
    return "no error"


def main():
    rank, ranks, port, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    found = {}
    for kind in (Loop, Hook, Grace):
        for label, case in CASES.items():
            if kind is Grace and "transform=" in case.plan:
                continue  # it has its own PowerSGD
            run = kind(case)
            for step in range(case.steps):
                for name, tensor in run(step, rank).items():
                    found[f"{kind.__name__}/{label}/{step}/{name}"] = tensor.detach().float().numpy()
        run = kind(NAN)
        run(0, rank)
        found[f"{kind.__name__}/nan"] = words_of(run, 1, rank)
        run = kind(STEP)
        run(0, rank)
        before = run.sender.state_dict()
        run(1, rank)
        if rank == 1:
            run.sender.load_state_dict(before)
        found[f"{kind.__name__}/step"] = words_of(run, 2, rank)
    reduce = AllReduce("index=golomb value=raw", dense_below=0)
    for step in range(ROWS_STEPS):
        at, values = rows(step, rank)
        table = torch.sparse_coo_tensor(torch.from_numpy(at)[None], torch.from_numpy(values), ROWS_SHAPE, check_invariants=True)
        reduce({"table": table})
        found[f"rows/{step}/at"], found[f"rows/{step}/table"] = table.indices()[0].numpy(), table.to_dense().numpy()
    np.savez(out, **found)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
