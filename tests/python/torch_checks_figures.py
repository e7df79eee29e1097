"""How an exchange describes itself: repr, a line of the log, a dict of metrics."""

import logging
import types

import numpy
import torch
import torch.distributed as dist
from torch_ranks import check, gradients, make_model, steps_of, wrapped

from deepreduce import stats
from deepreduce.torch import AllReduce, DDPHook, ReduceScatter

TOP = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=log_quant"


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@check("two")
def a_hook_says_its_plan_tensors_and_bytes():
    log, lines = logging.getLogger("deepreduce.torch"), Lines()
    level = log.level
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    try:
        hook = DDPHook({"*.bias": None, "*": TOP}, start=2)
        assert "no tensors yet" in repr(hook)
        ddp = wrapped(make_model(), hook, bucket_cap_mb=25)
    finally:
        log.removeHandler(lines)
        log.setLevel(level)
    lines.lines = [line for line in lines.lines if line.startswith("DDPHook")]
    words = ("DDPHook", "'*.bias': ", "topr(ratio=0.05)", "10 tensors of 26.7 kB in 1 unit, 5 compressed and 5 dense", "after 2 dense steps")
    assert (len(lines.lines) == 1) == (dist.get_rank() == 0), lines.lines
    assert all(word in line for word in words for line in [repr(hook), *lines.lines]), repr(hook)
    steps_of(ddp, torch.optim.SGD(ddp.parameters(), lr=0.01), 0, 3)
    assert f"{hook.stats().last.frame / 1e3:.4g} kB in the last step>" in repr(hook), repr(hook)
    reduce, comm = AllReduce("transform=lowrank(rank=1)"), ReduceScatter(TOP)
    assert "lowrank" in repr(reduce) and "no tensors yet" in repr(comm)
    reduce([torch.ones(30, 40)])
    comm(torch.ones(2000), torch.ones(4000), dist.group.WORLD, dist.ReduceOp.AVG)
    assert "1 tensor of 4.8 kB" in repr(reduce) and "shards of 2000 x torch.float32 for 2 ranks" in repr(comm)


@check("two")
def metrics_are_the_figures_of_the_last_step():
    rank = dist.get_rank()
    for plan in (TOP, "transform=lowrank(rank=1) feedback=residual", "value=half(type=bf16) index=all", None):
        reduce = AllReduce(plan, dense_below=0)
        for step in range(3):
            reduce([gradient.view(-1, 10) for gradient in gradients(step, rank)])
        found, last = reduce.metrics(), reduce.stats().last
        assert all(type(value) is float for value in found.values())
        assert found["steps"] == 3 and found["skipped"] == 0 and found["bytes_sent"] == last.sent
        written = {}
        writer = types.SimpleNamespace(add_scalar=lambda name, value, at: written.update({name: (value, at)}))
        stats.log(writer, reduce, 3)
        assert written == {f"deepreduce/{name}": (value, 3) for name, value in found.items()}
        assert found["ratio"] == last.dense / last.frame and found["encode_ms"] == 1e3 * last.encode
        if plan == TOP:
            residual = numpy.concatenate([state.residual for state in reduce._states.values()])
            assert abs(found["residual_norm"] / numpy.linalg.norm(residual) - 1) < 1e-6
        assert (found["residual_norm"] > 0) == (plan is not None and "residual" in plan), plan
    comm = ReduceScatter(TOP, dense_below=0)
    comm(torch.ones(2000), torch.cat(gradients(0, rank, (4000,))), dist.group.WORLD, dist.ReduceOp.AVG)
    assert comm.metrics()["residual_norm"] > 0 and comm.metrics()["ratio"] > 10
