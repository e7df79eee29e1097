"""What DDPHook and AllReduce promise of transform=lowrank."""

import copy

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch_ranks import (
    check,
    factor_residual,
    make_model,
    parameters_of,
    raises,
    same,
    same_on_all_ranks,
    steps_of,
    train,
    wrapped,
)

import deepreduce
from deepreduce.torch import AllReduce, DDPHook, ReduceScatter

LOWRANK = "transform=lowrank(rank=2) feedback=residual"
SHAPES = [(30, 20), (30,), (8, 3, 5, 5), (2, 2)]


def drawn(step, rank):
    random = np.random.default_rng([step, rank])
    return [torch.from_numpy(random.standard_normal(shape).astype(np.float32)) for shape in SHAPES]


@check("two")
def lowrank_means_are_the_papers():
    n, rank, reduce = dist.get_world_size(), dist.get_rank(), AllReduce(LOWRANK, dense_below=0)
    reduce([torch.zeros(shape) for shape in SHAPES])  # (makes it)
    reduce.reset()
    q = reduce._sender.read_state("2", "warm").view(np.float32).reshape(2, 75).T.astype(np.float64)
    residuals = [np.zeros((8, 75)) for _ in range(n)]
    for step in range(5):
        x = drawn(step, rank)
        reduce(x)
        assert same_on_all_ranks(torch.cat([tensor.reshape(-1) for tensor in x]))
        m = [drawn(step, other)[2].numpy().reshape(8, 75) + e for other, e in enumerate(residuals)]
        p, _ = np.linalg.qr(sum(matrix @ q for matrix in m) / n)
        q = sum(matrix.T @ p for matrix in m) / n
        expected = p @ q.T
        residuals = [matrix - expected for matrix in m]
        assert np.abs(x[2].numpy().reshape(8, 75) - expected).max() < 1e-5 * np.abs(expected).max()
        assert np.abs(factor_residual(reduce, "2").reshape(8, 75) - residuals[rank]).max() < 1e-5 * np.abs(residuals[rank]).max()
        for i in (1, 3):  # a vector, and a matrix that is smaller than its factors
            assert torch.allclose(x[i], sum(drawn(step, other)[i] for other in range(n)) / n, atol=1e-6)


@check("two")
def means_of_half_types_are_those_of_f32_rounded_once():
    for dtype in (torch.float16, torch.bfloat16):
        halves, whole = AllReduce(LOWRANK, dense_below=0), AllReduce(LOWRANK, dense_below=0)
        for step in range(3):
            x = [tensor.to(dtype) for tensor in drawn(step, dist.get_rank())]
            expected = [tensor.float() for tensor in x]
            halves(x), whole(expected)
            assert all(tensor.dtype == dtype for tensor in x)
            assert all(torch.equal(tensor, mean.to(dtype)) for tensor, mean in zip(x, expected))


@check("two")
def ddp_trains_by_lowrank_and_all_ranks_have_the_same_bits():
    for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 25}):
        hook = DDPHook(LOWRANK, start=2)
        assert same_on_all_ranks(train(hook, kind="SGD", **options))
        stats = hook.stats()
        assert stats.steps == 8 and 0 < stats.last.frame < stats.last.dense


@check("two")
def a_rank_of_factors_that_gains_nothing_trains_as_plain_ddp_does():
    expected = train(None, kind="SGD")
    got = train(DDPHook("transform=lowrank(rank=64) feedback=residual"), kind="SGD")
    assert torch.allclose(got, expected, rtol=1e-5, atol=1e-7)


@check("two")
def a_matrix_is_that_of_a_parameter_in_any_memory_layout():
    """A gradient of rank 1 comes out as it is."""
    u, v, kernel = torch.randn(30, 1, generator=torch.Generator().manual_seed(1)), torch.arange(1.0, 61), torch.arange(1.0, 10).view(3, 3)
    product = u @ v[None]
    for parameter, gradient in (
        (torch.zeros(30, 60), product), (torch.zeros(60, 30).t(), product), (torch.zeros(30, 120)[:, ::2], product),
        (torch.zeros(1, 60, 30).permute(2, 0, 1), product[:, None]),
        (torch.zeros(30, 60, 3, 3).to(memory_format=torch.channels_last), product[:, :, None, None] * kernel),
    ):  # fmt: skip
        model = nn.Module()
        model.w, model.forward = nn.Parameter(parameter), lambda x, model=model, gradient=gradient: (model.w * gradient).sum() * x
        ddp = wrapped(model, DDPHook("transform=lowrank(rank=1)", dense_below=0))
        for _ in range(2):
            ddp.zero_grad()
            ddp(torch.ones(())).backward()
        assert torch.allclose(model.w.grad, gradient, rtol=1e-3, atol=1e-4), (parameter.shape, parameter.stride())


@check("two")
def plans_by_name_send_frames_beside_factors():
    hook = DDPHook([("0.*", LOWRANK), ("*", "index=golomb value=raw")], dense_below=0)
    assert same_on_all_ranks(train(hook, kind="SGD"))
    assert {unit.kind for unit in hook._units} == {"factors", "frames"}


@check("two")
def a_checkpoint_of_lowrank_goes_on_with_the_same_bits():
    def run(stop):
        hook = DDPHook(LOWRANK)
        ddp = wrapped(make_model(), hook)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
        steps_of(ddp, optimizer, 0, stop or 8)
        if stop:
            saved = copy.deepcopy((ddp.module.state_dict(), optimizer.state_dict(), hook.state_dict()))
            hook = DDPHook(LOWRANK)
            hook.load_state_dict(saved[2])
            ddp = wrapped(make_model(), hook)
            ddp.module.load_state_dict(saved[0])
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
            optimizer.load_state_dict(saved[1])
            steps_of(ddp, optimizer, stop, 8)
        return parameters_of(ddp), hook

    (expected, hook), (got, _) = run(None), run(5)
    assert same(got, expected)
    other = DDPHook("transform=lowrank(rank=3) feedback=residual")
    wrapped(make_model(), other)
    with raises(deepreduce.ArgumentError, "the factors of"):
        other.load_state_dict(hook.state_dict())


@check("two")
def a_nan_of_one_rank_is_named_by_all_and_nothing_is_lost():
    n, rank, reduce = dist.get_world_size(), dist.get_rank(), AllReduce(LOWRANK, dense_below=0)
    reduce(drawn(0, rank))
    residuals, x = [factor_residual(reduce, str(i)) for i in range(4)], drawn(1, rank)
    before = [tensor.clone() for tensor in x]
    if rank == 1:
        x[2][3, 1, 0, 0] = float("nan")
    with raises(deepreduce.PeerError, "rank 1: 2: ", "element 250 " if rank == 1 else "not finite") as caught:
        reduce(x)
    assert caught[0].tensor == "2" and caught[0].rank == 1
    for i in range(4):  # of rank 1 the gradient of the step is lost
        gradient = before[i].numpy().reshape(-1) * (rank == 0)
        assert np.array_equal(factor_residual(reduce, str(i)), residuals[i] + gradient)
    # And the next step works, and brings what the failed one had.
    zeros = [torch.zeros(shape) for shape in SHAPES]
    reduce(zeros)
    assert torch.allclose(zeros[1], drawn(1, 0)[1] / n, atol=1e-6)


@check("two")
def the_error_is_that_of_torchs_powersgd():
    """The same gradient in each step: what of it comes out at once, and in all after some steps."""
    rank = dist.get_rank()
    random = np.random.default_rng(5 + rank)
    # Singular values that fall as those of gradients do.
    left, right = np.linalg.qr(random.standard_normal((60, 60)))[0], np.linalg.qr(random.standard_normal((80, 60)))[0]
    gradient = torch.from_numpy((left * 0.8 ** np.arange(60) @ right.T).astype(np.float32))
    mean = gradient.clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()

    def errors(register):
        model = nn.Linear(80, 60, bias=False)
        ddp = nn.parallel.DistributedDataParallel(model)
        register(ddp)
        first, total = 0.0, torch.zeros_like(mean)
        for step in range(14):
            model.zero_grad()
            (ddp.module.weight * gradient).sum()  # (DDP's forward is what its hook counts)
            x = ddp(torch.eye(80))
            (x.t() * gradient).sum().backward()
            if step >= 4:  # torch's first steps are dense, and it rebuilds its buckets
                first = first or ((model.weight.grad - mean).norm() / mean.norm()).item()
                total += model.weight.grad
        return first, ((total / 10 - mean).norm() / mean.norm()).item()

    def torchs(ddp):
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=2, start_powerSGD_iter=4, min_compression_rate=1
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    theirs, ours = errors(torchs), errors(lambda ddp: DDPHook(LOWRANK, start=4).register(ddp))
    for a, b in zip(ours, theirs):
        assert abs(a / b - 1) < 0.1, (ours, theirs)


@check("two")
def what_takes_no_transform_says_so():
    with raises(deepreduce.Unsupported, "shards have no matrices"):
        ReduceScatter(LOWRANK)
    with raises(deepreduce.ArgumentError, "0 is int32, not float32, float16 or bfloat16"):
        AllReduce(LOWRANK)([torch.zeros(30, 20, dtype=torch.int32)])
