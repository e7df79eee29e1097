"""Training whose tensors are on a GPU, for a machine that has one: `python torch_gpu.py`. bench/gpu/gpu_run.py runs it.

One rank over NCCL, where frames are in the GPU's memory for the collective; one with both backends; and two over gloo that share the GPU. Prints
a line for each check; exit code 1 if one failed, 77 where there is no GPU.
"""

import datetime
import os
import pathlib
import sys
import tempfile
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "bindings" / "python"), str(HERE)]
sys.dont_write_bytecode = True

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch_ranks import LOSSLESS, LOSSY, make_model, parameters_of, wrapped  # noqa: E402

from deepreduce.torch import AllReduce, DDPHook  # noqa: E402


def train(hook, steps=8):
    model = make_model().cuda()
    ddp = wrapped(model, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    losses = []
    for step in range(steps):
        torch.manual_seed(1000 * step + dist.get_rank())
        optimizer.zero_grad()
        x = torch.randn(8, 20).cuda()
        loss = (ddp(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return parameters_of(ddp).cpu(), losses


def same_everywhere(x):
    parts = [torch.empty_like(x.cuda()) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.cuda())
    return all(torch.equal(part, parts[0]) for part in parts)


def a_lossless_plan_trains_as_plain_ddp_does():
    assert torch.equal(train(DDPHook(LOSSLESS))[0], train(None)[0])


def a_lossy_plan_trains_alike_on_all_ranks_and_each_time():
    first, losses = train(DDPHook(LOSSY), 60)
    assert same_everywhere(first)
    assert losses[-1] < 0.5 * losses[0], losses
    assert torch.equal(train(DDPHook(LOSSY), 60)[0], first)


def a_tensor_on_the_gpu_gives_what_one_on_the_cpu_does():
    torch.manual_seed(dist.get_rank())
    x = torch.randn(50_000)
    for plan in (LOSSLESS, LOSSY, "sparsify=topr(ratio=0.02) feedback=residual index=rice value=qsgd"):
        here, there = AllReduce(plan, seed=3), AllReduce(plan, seed=3)
        for _ in range(3):
            on_cpu, on_gpu = x.clone(), x.cuda()
            here([on_cpu])
            there([on_gpu])
            assert on_gpu.is_cuda and torch.equal(on_gpu.cpu(), on_cpu), plan


def steps_are_ordered_with_the_streams_of_the_caller():
    stream = torch.cuda.Stream()
    reduce = AllReduce(LOSSLESS)
    x = torch.ones(1 << 20, device="cuda")
    for _ in range(5):
        with torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.default_stream())
            x.mul_(3)  # late, on another stream
            reduce([x])
        torch.cuda.default_stream().wait_stream(stream)
    assert torch.equal(x.cpu(), torch.full((1 << 20,), 243.0))


CHECKS = [
    a_lossless_plan_trains_as_plain_ddp_does,
    a_lossy_plan_trains_alike_on_all_ranks_and_each_time,
    a_tensor_on_the_gpu_gives_what_one_on_the_cpu_does,
    steps_are_ordered_with_the_streams_of_the_caller,
]


def rank_main(rank, ranks, backend, store):
    torch.cuda.set_device(0)
    dist.init_process_group(backend, f"file://{store}", rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=60))
    failed = 0
    for check in CHECKS:
        if backend == "nccl" and check is a_tensor_on_the_gpu_gives_what_one_on_the_cpu_does:
            continue  # it has no collective for the CPU
        try:
            check()
            outcome = "passed"
        except Exception:
            failed, outcome = 1, "FAILED\n" + traceback.format_exc()
        print(f"{backend}, rank {rank} of {ranks}: {check.__name__}: {outcome}", flush=True)
        if failed:
            break  # the others would wait
    dist.destroy_process_group()
    if failed:
        sys.exit(1)


def main():
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return 77
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    failed = 0
    for ranks, backend in ((1, "nccl"), (1, "cpu:gloo,cuda:nccl"), (2, "gloo")):
        with tempfile.TemporaryDirectory() as folder:
            try:
                torch.multiprocessing.spawn(rank_main, (ranks, backend, os.path.join(folder, "store")), ranks)
            except Exception as error:
                print(f"{backend}, {ranks} ranks: {error}")
                failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
