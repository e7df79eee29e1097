"""What deepreduce.grace promises on three ranks, continued: all-to-all, states, aggregates, plug-ins, PowerSGD."""

import os
import pathlib
import re
import tempfile

import torch
import torch.distributed as dist
from grace_checks import STEPS, lacks, plain_top, run
from torch_ranks import check, gradients, raises, same, same_on_all_ranks

import deepreduce
from deepreduce import grace


@check("grace")
def all_to_all_is_a_compressed_reduce_scatter_and_all_gather():
    ranks = dist.get_world_size()
    for size in (3001, 2, 1, 0):
        x = [torch.randn(size, generator=torch.Generator().manual_seed(rank)) for rank in range(ranks)]
        expected = sum(x, torch.zeros(size)) / ranks
        lossless = grace.grace_from_params({"compressor": "plan", "plan": "index=golomb value=raw", "communicator": "alltoall"})
        assert same(lossless.step(x[dist.get_rank()], "w"), expected), size
    params = {"compressor": "qsgd", "quantum_num": 1023, "memory": "residual", "communicator": "alltoall"}
    grc, sent, given = grace.grace_from_params(params), 0, 0
    for step in range(STEPS):
        x = [gradients(step, rank)[0] for rank in range(ranks)]
        found = grc.step(x[dist.get_rank()], "w")
        assert same_on_all_ranks(found) and (found - sum(x) / ranks).norm() < 0.02 * found.norm()
        sent, given = sent + found, given + sum(x) / ranks
    assert (sent - given).norm() < 0.02 * given.norm()


@check("grace")
def dgc_memory_has_momentum_accumulation_masking_and_clipping():
    ranks, me = dist.get_world_size(), dist.get_rank()
    for clipping in (False, True, 30.0):
        grc = grace.grace_from_params(
            {"compressor": "topk", "compress_ratio": 0.1, "memory": "dgc", "momentum": 0.7, "gradient_clipping": clipping, "communicator": "allgather"}
        )
        u, v = [0] * ranks, [0] * ranks
        for step in range(STEPS):
            x = [gradients(step, rank)[0] * (1 + 9 * (rank == 2)) for rank in range(ranks)]
            total = 0
            squares = [each.square().sum() for each in x]
            for rank in range(ranks):
                g = x[rank]
                if clipping is True:
                    bound = (sum(squares) / ranks).sqrt()
                    g = g.clamp(-bound, bound)
                elif clipping:
                    g = g * min(1.0, float(clipping / (ranks**0.5 * squares[rank].sqrt())))
                u[rank] = 0.7 * u[rank] + g
                v[rank] = v[rank] + u[rank]
                sent = plain_top(v[rank], 0.1)
                total = total + sent
                u[rank], v[rank] = u[rank] * (sent == 0), v[rank] * (sent == 0)
            mine = x[me].clone()
            found = grc.step(mine, "w")
            assert same(mine, x[me]) and torch.allclose(found, total / ranks, rtol=1e-4, atol=1e-5), (clipping, step)
            assert torch.allclose(grc.memory.residuals["w"], u[me], rtol=1e-4, atol=1e-5)
            assert torch.allclose(grc.memory.gradients["w"], v[me], rtol=1e-4, atol=1e-5)


@check("grace")
def a_restored_state_goes_on_bit_for_bit():
    for compressor, memory, communicator in (
        ("qsgd", "residual", "allgather"), ("topk", "dgc", "broadcast"), ("randomk", "residual", "allreduce"),
        ("dgc", "dgc", "allgather"), ("plan", "none", "allgather"),
    ):  # fmt: skip
        params = {"compressor": compressor, "memory": memory, "communicator": communicator, "compress_ratio": 0.1}
        params["plan"] = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=qsgd"
        grc, other = grace.grace_from_params(params), grace.grace_from_params(params)
        run(grc, 0)
        run(grc, 1)
        with tempfile.TemporaryFile() as file:
            torch.save(grc.state_dict(), file)
            file.seek(0)
            other.load_state_dict(torch.load(file))
        for step in (2, 3):
            assert all(map(same, run(grc, step), run(other, step))), params


@check("grace")
def votes_of_the_majority_are_signs():
    told = lacks("signsgd")
    if told:
        return told
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for communicator in ("allgather", "broadcast", "alltoall"):
        for params in ({"compressor": "signsgd"}, {"compressor": "plan", "plan": "signsgd"}):  # the method, and the preset
            grc = grace.grace_from_params({**params, "communicator": communicator})
            x = [gradients(0, other)[0] for other in range(ranks)]
            votes = sum(torch.where(each >= 0, 1.0, -1.0) for each in x)
            assert same(grc.step(x[rank], "w"), torch.where(votes >= 0, 1.0, -1.0)), (communicator, params)
    told = lacks("signum")
    if told:
        return told
    grc, m = grace.grace_from_params({"compressor": "signum", "momentum": 0.8, "communicator": "allgather"}), [0] * ranks
    for step in range(STEPS):
        x = [gradients(step, other)[0] for other in range(ranks)]
        m = [0.2 * g + 0.8 * before for g, before in zip(x, m)]
        votes = sum(torch.where(each >= 0, 1.0, -1.0) for each in m)
        found = grc.step(x[rank], "w")
        sure = torch.stack([each.abs() for each in m]).amin(0) > 1e-6  # rounding may turn what is nearly 0
        assert same(found[sure], torch.where(votes >= 0, 1.0, -1.0)[sure])


@check("grace")
def efsignsgd_makes_the_step_of_its_paper():
    told = lacks("efsignsgd")
    if told:
        return told
    ranks, rank, lr, kept = dist.get_world_size(), dist.get_rank(), 0.05, {}
    grc = grace.grace_from_params({"compressor": "efsignsgd", "memory": "efsignsgd", "lr": lr, "communicator": "allgather"})
    for step in range(STEPS):
        total = 0
        for other in range(ranks):
            p = lr * gradients(step, other)[0] + kept.get(other, 0)
            sent = p.abs().mean() * torch.where(p >= 0, 1.0, -1.0)
            kept[other] = p - sent
            total = total + sent
        found = grc.step(gradients(step, rank)[0], "w")
        assert torch.allclose(lr * found, total / ranks, rtol=1e-4, atol=1e-6), step
        if step == 0:  # as large as the mean gradient: neither 1 / lr nor W times it
            mean = sum(gradients(0, other)[0] for other in range(ranks)) / ranks
            assert 0.3 < found.abs().mean() / mean.abs().mean() < 3


# ---- Plug-ins of a user's -----------------------------------------------------------------------


class Everything(grace.Compressor):
    """Several tensors of several types, one without a dimension; sizes that differ."""

    def __init__(self, same):
        super().__init__(tensors_size_are_same=same)

    def compress(self, tensor, name):
        positive = tensor.view(-1) > 0
        if self.tensors_size_are_same:
            return [positive, tensor.view(-1).abs().to(torch.float64), torch.tensor(7, dtype=torch.int16)], tensor.shape
        return [positive.nonzero().view(-1), tensor.view(-1)[positive]], tensor.shape

    def decompress(self, tensors, ctx):
        if self.tensors_size_are_same:
            positive, values, seven = tensors
            assert seven.dim() == 0 and int(seven) == 7
            return torch.where(positive, values, -values).float().view(ctx)
        return torch.zeros(ctx.numel()).index_copy_(0, *tensors).view(ctx)


class Slow(grace.Communicator):
    """Only send_receive, as grace_dl.dist has it; and a memory and an aggregate of its own."""

    def send_receive(self, tensors, name, ctx):
        told = [None] * self.ranks()
        dist.all_gather_object(told, (tensors, name))
        assert {each for _, each in told} == {name}
        return self.compressor.aggregate([self.compressor.decompress(each, ctx) for each, _ in told]) / self.ranks()


class Doubling(grace.Memory):
    def compensate(self, tensor, name):
        return 2 * tensor


@check("grace")
def plug_ins_of_a_users_work():
    ranks, rank = dist.get_world_size(), dist.get_rank()
    x = [gradients(0, other)[0].view(30, 100) for other in range(ranks)]
    for same_sizes in (True, False):
        expected = sum(2 * (each if same_sizes else each.clamp(min=0)) for each in x) / ranks
        for kind in (Slow, grace.Allgather, grace.Broadcast):
            grc = kind(Everything(same_sizes), Doubling())
            assert torch.allclose(grc.step(x[rank], "w"), expected), kind
            assert torch.allclose(grc.receive_step(*grc.send_step(x[rank], "w")), expected), kind
    residual = grace.Allgather(Everything(False), grace.ResidualMemory())
    residual.step(x[rank], "w")
    assert torch.equal(residual.memory.residuals["w"], x[rank].clamp(max=0))


@check("grace")
def a_users_sparsifier_is_wrapped():
    from deepreduce.grace.wrappers import DeepReduce

    class Positive(grace.Compressor):
        def compress(self, tensor, name):
            flat = tensor.reshape(-1)
            chosen = (flat > 1).nonzero().view(-1).flip(0)
            return (flat[chosen], chosen), tensor.size()

        def decompress(self, tensors, ctx):
            values, indices = tensors
            return torch.zeros(ctx.numel()).index_copy_(0, indices, values).view(ctx)

    ranks, rank = dist.get_world_size(), dist.get_rank()
    x = [gradients(0, other)[0].view(30, 100) for other in range(ranks)]
    expected = sum(torch.where(each > 1, each, torch.zeros(())) for each in x) / ranks
    for keys in ({"index": "golomb", "value": "raw"}, {"index": "bloom", "policy": "p0", "value": "raw"}):
        grc = grace.Allgather(Positive(), grace.ResidualMemory())
        grc.compressor = DeepReduce(grc.compressor, keys)
        assert torch.allclose(grc.step(x[rank], "w"), expected), keys


@check("grace")
def what_is_sent_is_counted():
    for counter in (grace.timer, grace.volume):
        counter.update({key: 0 for key in counter if key != "ratio_acc"})
    grc = grace.grace_from_params({"compressor": "topk", "compress_ratio": 0.01, "communicator": "allgather"})
    run(grc, 0)
    assert grace.volume["nocompress"] == 32 * (3000 + 40 + 500)
    assert 0.005 < grace.volume["compress"] / grace.volume["nocompress"] < 0.05
    assert grace.timer["comm"] > 0 and grace.timer["en/decoding"] > 0


# ---- PowerSGD -----------------------------------------------------------------------------------


@check("grace")
def powersgd_gives_the_mean_of_low_rank_with_a_warm_start():
    told = lacks("powersgd")
    if told:
        return told
    ranks, rank = dist.get_world_size(), dist.get_rank()
    generator = torch.Generator().manual_seed(7)
    u, v = torch.randn(40, 1, generator=generator), torch.randn(1, 30, generator=generator)
    for memory in ("none", "powersgd"):
        grc = grace.grace_from_params({"compressor": "powersgd", "memory": memory})
        for step in range(3):  # of rank 1, so exact: the mean, not the sum, and no residual that grows
            found = grc.step((rank + 1) * u @ v, "w")
            assert torch.allclose(found, 2 * u @ v, atol=1e-4), (memory, step)
            bias = grc.step(torch.full((30,), float(rank)), "b")
            assert torch.allclose(bias, torch.ones(30)) and grc.step(torch.tensor(float(rank)), "s").item() == 1
    x = [torch.randn(3, 40, 3, 10, generator=generator) for _ in range(ranks)]
    mean = sum(x) / ranks
    singular = torch.linalg.svdvals(mean.view(3, -1))
    best = singular[2:].norm()
    grc = grace.grace_from_params({"compressor": "powersgd", "compress_rank": 2})
    errors = [float((grc.step(x[rank], "w") - mean).norm()) for _ in range(12)]
    assert errors[-1] < 1.05 * best and errors[-1] < errors[0] and same_on_all_ranks(grc.step(x[rank], "w"))
    grc = grace.grace_from_params({"compressor": "powersgd", "memory": "powersgd"})
    found = grc.step(x[rank], "w")
    assert torch.allclose(grc.memory.residuals["w"], x[rank] - found, atol=1e-6)
    other = grace.grace_from_params({"compressor": "powersgd", "memory": "powersgd"})
    other.load_state_dict(grc.state_dict())
    third = grace.grace_from_params({"compressor": "powersgd", "memory": "powersgd"})
    third.load_state_dict(other.state_dict())  # saved again before a step
    found = grc.step(x[rank], "w")
    assert same(found, other.step(x[rank], "w")) and same(found, third.step(x[rank], "w"))
    if rank == 1:
        with raises(deepreduce.ArgumentError, "w: "):
            grc.step(x[rank] * float("nan"), "w")
    else:
        with raises(deepreduce.PeerError, "rank 1", "w"):
            grc.step(x[rank], "w")
    assert same_on_all_ranks(grc.step(x[rank], "w"))


@check("grace")
def no_dense_tensor_is_made_for_each_rank():
    """Nor is `decompress` called: frames are merged into one."""
    d, grc = 1 << 20, grace.grace_from_params({"compressor": "topk", "compress_ratio": 0.001, "communicator": "allgather"})
    x = torch.randn(d)
    payload, ctx = grc.compressor.compress(x, "w")
    grc.compressor.decompress = None
    with torch.profiler.profile(profile_memory=True) as profile:
        total = grc.compressor.merge([payload] * 8, ctx)
    largest = [event.self_cpu_memory_usage for event in profile.events() if event.self_cpu_memory_usage >= 4 * d]
    assert len(largest) == 1, largest
    del grc.compressor.decompress
    assert torch.allclose(total, 8 * grc.compressor.decompress(payload, ctx))


@check("grace")
def the_page_does_what_it_says():
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs/GRACE.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.S | re.M)
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Linear(100, 20)
    model(torch.randn(8, 100)).square().mean().backward()
    with tempfile.TemporaryDirectory() as folder:
        before = os.getcwd()
        os.chdir(folder)
        try:
            exec(block, {"torch": torch, "model": model, "rank": dist.get_rank()})
            assert torch.load(f"grace{dist.get_rank()}.pt")["memory"]["residuals"]["weight"].shape == (20, 100)
        finally:
            os.chdir(before)
    assert same_on_all_ranks(model.weight.grad) and model.weight.grad.count_nonzero() <= 20 * 3
