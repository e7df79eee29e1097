"""What deepreduce.grace promises on three ranks: test_grace.py runs the suite "grace" on them.

Oracles are GRACE's formulas in plain torch, of all ranks: each rank knows the others' gradients.
"""

import os
import pathlib
import re
import tempfile

import torch
import torch.distributed as dist
from torch_ranks import check, gradients, raises, same, same_on_all_ranks

import deepreduce
from deepreduce import grace
from deepreduce_grace import collectives

STEPS = 4
NAMES = ("conv", "bias", "fc")


def lacks(method):
    """Why the loaded library cannot do a method; None if it can."""
    try:
        chosen = grace.factory.checked({"compressor": method})
        grace.factory.compressor_from(chosen)
    except (deepreduce.ArgumentError, deepreduce.Unsupported) as error:
        return str(error).partition(";")[0]
    return None


def run(grc, step, scale=1.0):
    """The outputs of a step over tensors of three names, of which the first has two dimensions."""
    given = gradients(step, dist.get_rank())
    return [grc.step((scale * tensor).view(-1, 10), name) for name, tensor in zip(NAMES, given)]


def oracle(select, steps=STEPS, beta=1.0, gamma=1.0):
    """[step][name]: GRACE's sum of the decompressed over ranks, divided by W, with residual memory. select: x to what is
    sent of it, dense."""
    ranks, residuals, found = dist.get_world_size(), {}, []
    for step in range(steps):
        found.append([])
        for i, name in enumerate(NAMES):
            total = 0
            for rank in range(ranks):
                x = gradients(step, rank)[i]
                if (rank, name) in residuals:
                    x = beta * residuals[rank, name] + gamma * x
                sent = select(x)
                residuals[rank, name] = x - sent
                total = total + sent
            found[-1].append((total / ranks).view(-1, 10))
    return found


def plain_top(x, ratio=0.05):
    k = max(1, int(x.numel() * ratio))
    _, indices = torch.topk(x.abs(), k, sorted=False)
    return torch.zeros_like(x).scatter_(0, indices, x[indices])


def plain_threshold(x, value=2.0):
    return torch.where(x.abs() >= min(value, x.abs().max()), x, torch.zeros_like(x))


METHODS = {
    "topk": ({"compressor": "topk", "compress_ratio": 0.05}, plain_top),
    "threshold": ({"compressor": "threshold", "threshold": 2.0}, plain_threshold),
}


@check("grace")
def topk_and_threshold_with_residual_are_graces_formulas_bit_for_bit():
    for params, select in METHODS.values():
        expected = oracle(select)
        for communicator in ("allgather", "broadcast"):
            params = {**params, "memory": "residual", "communicator": communicator, "world_size": dist.get_world_size()}
            grc = grace.grace_from_params(params)
            for step in range(STEPS):
                assert all(map(same, run(grc, step), expected[step])), (params, step)


@check("grace")
def the_shims_pairs_are_graces_formulas_bit_for_bit():
    from deepreduce.grace import shim

    shim.install()
    from grace_dl.dist.helper import grace_from_params

    for params, select in METHODS.values():
        grc = grace_from_params({**params, "memory": "residual", "communicator": "allgather", "world_size": dist.get_world_size()})
        expected = oracle(select)
        for step in range(STEPS):
            assert all(map(same, run(grc, step), expected[step])), (params, step)
        payload, ctx = grc.compressor.compress(gradients(0, 0)[0], "x")
        assert [array.dtype for array in payload] == [torch.float32, torch.int32] and ctx == gradients(0, 0)[0].size()


@check("grace")
def deepreduce_with_lossless_codecs_is_topk_bit_for_bit():
    expected = oracle(plain_top)
    for keys in (
        {"deepreduce": None},
        {"deepreduce": "index", "index": "rle"},
        {"deepreduce": "index", "index": "huffman"},
        {"deepreduce": "value", "value": "gzip"},
        {"deepreduce": "both", "index": "golomb(adaptive=1)", "value": "gzip"},
    ):
        params = {"compressor": "topk", "memory": "residual", "communicator": "allgather", "compress_ratio": 0.05}
        grc = grace.deepreduce_from_params({**params, **keys})
        for step in range(STEPS):
            assert all(map(same, run(grc, step), expected[step])), (keys, step)


@check("grace")
def residual_memory_has_beta_and_gamma():
    grc = grace.Allgather(grace.Sparsifier(lambda d: f"topr(count={max(1, int(d * 0.05))})"), grace.ResidualMemory(0.5, 2.0))
    # The first step, too: gamma times the gradient, which is where GRACE has the gradient alone.
    ranks, residuals = dist.get_world_size(), {}
    for step in range(STEPS):
        for i, (name, found) in enumerate(zip(NAMES, run(grc, step))):
            total = 0
            for rank in range(ranks):
                x = 0.5 * residuals.get((rank, name), 0) + 2.0 * gradients(step, rank)[i]
                residuals[rank, name] = x - plain_top(x)
                total = total + plain_top(x)
            assert torch.allclose(found.view(-1), total / ranks, rtol=1e-6, atol=0), (name, step)


@check("grace")
def allreduce_gives_the_mean_and_leaves_the_input():
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for name, tolerance in (("none", 1e-6), ("fp16", 2e-3), ("bf16", 2e-2)):
        grc = grace.grace_from_params({"compressor": name, "communicator": "allreduce"})
        x = gradients(0, rank)[0].view(-1, 10)
        before = x.clone()
        mean = sum(gradients(0, other)[0] for other in range(ranks)) / ranks
        found = grc.step(x, "w")
        assert torch.allclose(found.view(-1), mean, atol=tolerance * 10) and same(x, before) and found.dtype == x.dtype
        assert same_on_all_ranks(found), name
    # 16 bits: means are formed before the sum, which would be infinite.
    big = torch.full((5,), 60000.0)
    assert torch.allclose(grace.grace_from_params({"compressor": "fp16"}).step(big, "b"), big)


@check("grace")
def what_dividing_16_bits_by_the_ranks_rounds_away_is_in_the_residual():
    for params, dtype in (({"compressor": "fp16"}, torch.float32), ({"compressor": "none"}, torch.float16)):
        grc = grace.grace_from_params({**params, "memory": "residual", "communicator": "allreduce"})
        x = torch.tensor([1, 2, 5, 1000]).mul(2.0**-24).to(dtype)  # multiples of the smallest number of f16
        total = torch.zeros(4, dtype=torch.float64)
        for _ in range(30):
            total += grc.step(x, "w").double()
        assert torch.equal(total + grc.memory.residuals["w"].double(), 30 * x.double()), (params, total, grc.memory.residuals)
        assert bool((total > 0).all())


@check("grace")
def randomk_sends_the_same_positions_on_all_ranks():
    ranks, rank = dist.get_world_size(), dist.get_rank()
    params = {"compressor": "randomk", "compress_ratio": 0.1, "memory": "residual"}
    reduce, gather = (grace.grace_from_params({**params, "communicator": communicator}) for communicator in ("allreduce", "allgather"))
    seen = []
    for step in range(STEPS):
        x = gradients(step, rank)[0]
        found = reduce.step(x, "w")
        assert torch.allclose(found, gather.step(x, "w"), atol=1e-6)
        support = found.nonzero().view(-1)
        assert len(support) == 300 and same_on_all_ranks(found)
        seen.append(set(support.tolist()))
        if step == 0:
            mean = sum(gradients(0, other)[0] for other in range(ranks)) / ranks
            assert torch.allclose(found[support], mean[support], atol=1e-6)
    assert len(set.union(*seen)) > 900  # other positions at every step


@check("grace")
def sent_and_received_steps_are_those_of_step():
    params = {"compressor": "topk", "compress_ratio": 0.05, "memory": "residual", "communicator": "allgather"}
    for communicator, compressor in (("allgather", "topk"), ("broadcast", "topk"), ("allreduce", "randomk"), ("alltoall", "topk")):
        both = [grace.grace_from_params({**params, "communicator": communicator, "compressor": compressor}) for _ in range(2)]
        for step in range(2):
            x = gradients(step, dist.get_rank())
            under_way = [both[0].send_step(tensor, name) for name, tensor in zip(NAMES, x)]
            found = [both[0].receive_step(*sent_step) for sent_step in under_way]
            assert all(same(a, both[1].step(b, name)) for a, b, name in zip(found, x, NAMES)), communicator


@check("grace")
def a_rank_that_selects_nothing_does_not_hang():
    rank = dist.get_rank()
    for communicator in ("allgather", "broadcast"):
        for kind in (grace.Sparsifier(lambda d: "threshold(value=0.5)"), grace.pairs.ThresholdCompressor(0.5)):
            grc = {"allgather": grace.Allgather, "broadcast": grace.Broadcast}[communicator](kind, grace.ResidualMemory())
            x = torch.full((50,), 0.9 if rank == 1 else 0.1)
            assert torch.allclose(grc.step(x, "some"), torch.full((50,), 0.9 / dist.get_world_size()))
            assert not grc.step(torch.full((50,), 0.1), "none").any()  # no rank has a value
            assert torch.allclose(grc.memory.residuals["none"], torch.full((50,), 0.1))
            assert grc.step(torch.empty(0), "empty").shape == (0,)


@check("grace")
def a_rank_that_fails_is_named_by_all_and_nothing_is_lost():
    rank, nan = dist.get_rank(), 1
    for communicator in ("allgather", "broadcast", "alltoall"):
        for value in ("half", "qsgd"):
            plan = "index=all value=qsgd" if value == "qsgd" else "sparsify=topr(ratio=0.1) index=golomb value=half"
            grc = grace.grace_from_params({"compressor": "plan", "plan": plan, "memory": "residual", "communicator": communicator})
            run(grc, 0)
            before = grc.memory.residuals["fc"].clone()
            x = gradients(1, rank)[2].view(-1, 10)
            if rank == nan:
                with raises(deepreduce.ArgumentError, "fc", "NaN"):
                    grc.step(x * float("nan"), "fc")
                assert same(grc.memory.residuals["fc"], before)
            else:
                with raises(deepreduce.PeerError, "rank 1") as caught:
                    grc.step(x, "fc")
                assert caught[0].rank == 1
                assert torch.allclose(grc.memory.residuals["fc"], before + x, atol=1e-5)
            assert same_on_all_ranks(grc.step(x, "fc"))  # and it goes on


@check("grace")
def ranks_that_are_out_of_step_are_told_so():
    grc = grace.grace_from_params({"compressor": "topk", "communicator": "allgather"})
    with raises(deepreduce.ArgumentError, "rank 1 sends other tensors than rank 0") as caught:
        grc.step(torch.ones(10), "b" if dist.get_rank() == 1 else "a")
    assert caught[0].rank == 1
    grc = grace.grace_from_params({"compressor": "topk", "communicator": "allgather"})
    before = grc.state_dict()
    for _ in range(2):
        grc.step(torch.ones(10), "a")
    if dist.get_rank() == 1:
        grc.load_state_dict(before)
    with raises(deepreduce.errors.OutOfStep, "rank 1 is at step 0, rank 0 at step 2") as caught:
        grc.step(torch.ones(10), "a")
    assert (caught[0].rank, caught[0].ranks, caught[0].source) == (1, (1,), 0)


@check("grace")
def another_world_size_is_refused():
    grc = grace.grace_from_params({"compressor": "topk", "communicator": "allgather", "world_size": 7})
    with raises(deepreduce.ArgumentError, "world_size is 7", "3 ranks"):
        grc.step(torch.ones(10), "a")


@check("grace")
def payloads_of_one_size_need_no_exchange_of_sizes():
    counted, gather = [], collectives.Wire.gather_numbers
    collectives.Wire.gather_numbers = lambda self, numbers: counted.append(numbers) or gather(self, numbers)
    try:
        for compressor, exchanges in (("qsgd", 0), ("none", 0), ("randomk", 0), ("topk", 1), ("threshold", 1)):
            counted.clear()
            grc = grace.grace_from_params({"compressor": compressor, "communicator": "allgather"})
            assert grc.compressor.tensors_size_are_same == (exchanges == 0), compressor
            grc.step(torch.ones(3000), "w")
            assert len(counted) == 1, compressor  # the first step of a name
            for x in (gradients(0, dist.get_rank())[0], torch.zeros(3000) if dist.get_rank() else torch.ones(3000)):
                grc.step(x, "w")
            assert len(counted) == 1 + 2 * exchanges, compressor
    finally:
        collectives.Wire.gather_numbers = gather



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
            squares = [tensor.square().sum() for tensor in x]
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
    refusal = lacks("signsgd")
    if refusal:
        return refusal
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for communicator in ("allgather", "broadcast", "alltoall"):
        for params in ({"compressor": "signsgd"}, {"compressor": "plan", "plan": "signsgd"}):  # the method, and the preset
            grc = grace.grace_from_params({**params, "communicator": communicator})
            x = [gradients(0, other)[0] for other in range(ranks)]
            votes = sum(torch.where(tensor >= 0, 1.0, -1.0) for tensor in x)
            assert same(grc.step(x[rank], "w"), torch.where(votes >= 0, 1.0, -1.0)), (communicator, params)
    refusal = lacks("signum")
    if refusal:
        return refusal
    grc, m = grace.grace_from_params({"compressor": "signum", "momentum": 0.8, "communicator": "allgather"}), [0] * ranks
    for step in range(STEPS):
        x = [gradients(step, other)[0] for other in range(ranks)]
        m = [0.2 * g + 0.8 * before for g, before in zip(x, m)]
        votes = sum(torch.where(momentum >= 0, 1.0, -1.0) for momentum in m)
        found = grc.step(x[rank], "w")
        sure = torch.stack([momentum.abs() for momentum in m]).amin(0) > 1e-6  # rounding may turn what is nearly 0
        assert same(found[sure], torch.where(votes >= 0, 1.0, -1.0)[sure])


@check("grace")
def efsignsgd_makes_the_step_of_its_paper():
    refusal = lacks("efsignsgd")
    if refusal:
        return refusal
    ranks, rank, lr, residuals = dist.get_world_size(), dist.get_rank(), 0.05, {}
    grc = grace.grace_from_params({"compressor": "efsignsgd", "memory": "efsignsgd", "lr": lr, "communicator": "allgather"})
    for step in range(STEPS):
        total = 0
        for other in range(ranks):
            p = lr * gradients(step, other)[0] + residuals.get(other, 0)
            sent = p.abs().mean() * torch.where(p >= 0, 1.0, -1.0)
            residuals[other] = p - sent
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
        answers = [None] * self.ranks()
        dist.all_gather_object(answers, (tensors, name))
        assert {other for _, other in answers} == {name}
        return self.compressor.aggregate([self.compressor.decompress(payload, ctx) for payload, _ in answers]) / self.ranks()


class Doubling(grace.Memory):
    def compensate(self, tensor, name):
        return 2 * tensor


@check("grace")
def plug_ins_of_a_users_work():
    ranks, rank = dist.get_world_size(), dist.get_rank()
    x = [gradients(0, other)[0].view(30, 100) for other in range(ranks)]
    for same_sizes in (True, False):
        expected = sum(2 * (tensor if same_sizes else tensor.clamp(min=0)) for tensor in x) / ranks
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
    expected = sum(torch.where(tensor > 1, tensor, torch.zeros(())) for tensor in x) / ranks
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
    refusal = lacks("powersgd")
    if refusal:
        return refusal
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
