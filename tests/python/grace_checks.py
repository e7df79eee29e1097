"""What deepreduce.grace promises on three ranks: test_grace.py runs the suite "grace" on them.

Oracles are GRACE's formulas in plain torch, of all ranks: each rank knows the others' gradients.
"""

import torch
import torch.distributed as dist
from torch_ranks import check, gradients, raises, same, same_on_all_ranks

import deepreduce
from deepreduce import grace
from deepreduce.grace import collectives

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
    return [grc.step((scale * each).view(-1, 10), name) for name, each in zip(NAMES, given)]


def oracle(select, steps=STEPS, beta=1.0, gamma=1.0):
    """[step][name]: GRACE's sum of the decompressed over ranks, divided by W, with residual memory. select: x to what is
    sent of it, dense."""
    ranks, kept, found = dist.get_world_size(), {}, []
    for step in range(steps):
        found.append([])
        for i, name in enumerate(NAMES):
            total = 0
            for rank in range(ranks):
                x = gradients(step, rank)[i]
                if (rank, name) in kept:
                    x = beta * kept[rank, name] + gamma * x
                sent = select(x)
                kept[rank, name] = x - sent
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
        assert [each.dtype for each in payload] == [torch.float32, torch.int32] and ctx == gradients(0, 0)[0].size()


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
    ranks, kept = dist.get_world_size(), {}
    for step in range(STEPS):
        for i, (name, found) in enumerate(zip(NAMES, run(grc, step))):
            total = 0
            for rank in range(ranks):
                x = 0.5 * kept.get((rank, name), 0) + 2.0 * gradients(step, rank)[i]
                kept[rank, name] = x - plain_top(x)
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
def randomk_sends_the_same_positions_on_all_ranks():
    ranks, rank = dist.get_world_size(), dist.get_rank()
    params = {"compressor": "randomk", "compress_ratio": 0.1, "memory": "residual"}
    reduce, gather = (grace.grace_from_params({**params, "communicator": each}) for each in ("allreduce", "allgather"))
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
            under_way = [both[0].send_step(each, name) for name, each in zip(NAMES, x)]
            found = [both[0].receive_step(*each) for each in under_way]
            assert all(same(a, both[1].step(b, name)) for a, b, name in zip(found, x, NAMES)), communicator


@check("grace")
def a_rank_that_selects_nothing_does_not_hang():
    rank = dist.get_rank()
    for communicator in ("allgather", "broadcast"):
        for kind in (grace.Sparsifier(lambda d: "threshold(value=0.5)"), grace.pairs.ThresholdCompressor(0.5)):
            grc = {"allgather": grace.Allgather, "broadcast": grace.Broadcast}[communicator](kind, grace.ResidualMemory())
            x = torch.full((50,), 0.9 if rank == 1 else 0.1)
            assert torch.allclose(grc.step(x, "some"), torch.full((50,), 0.9 / dist.get_world_size()))
            assert not grc.step(torch.full((50,), 0.1), "none").any()  # nobody has anything
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
    with raises(deepreduce.ArgumentError, "tag"):
        grc.step(torch.ones(10), "a" if dist.get_rank() == 0 else "b")


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
