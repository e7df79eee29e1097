"""What nonfinite="skip" promises: a gradient that overflowed on one rank is a step that all ranks skip."""

import copy

import torch
import torch.distributed as dist
from torch_ranks import check, gradients, make_model, parameters_of, raises, same, same_on_all_ranks, wrapped

import deepreduce
from deepreduce.torch import AllReduce, DDPHook, ReduceScatter

PLANS = (
    "index=all value=uniform_quant(bits=8) feedback=residual",
    "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=log_quant",
    "sparsify=topr(ratio=0.05) feedback=dgc index=golomb value=raw",
    "transform=lowrank(rank=2) feedback=residual",
    {"0.*": "transform=lowrank(rank=2) feedback=residual", "3.*": None, "*": "index=all value=uniform_quant(bits=4) feedback=residual"},
    "index=all value=raw",
    None,
)


def bits_of(state):
    """All that a state has of this rank but its step."""
    found = []

    def walk(item, name=""):
        if isinstance(item, torch.Tensor):
            found.append((name, item.numpy().tobytes()))
        elif isinstance(item, dict):
            for key in sorted(item):
                walk(item[key], f"{name}.{key}")

    walk(copy.deepcopy(state))
    return found


def scaled_steps(ddp, optimizer, scaler, first, last, overflow=()):
    """overflow: {step: (rank, name of the parameter whose gradient gets an infinity there)}"""
    named = dict(ddp.module.named_parameters())
    for step in range(first, last):
        torch.manual_seed(1000 * step + dist.get_rank())
        optimizer.zero_grad()
        rank, name = dict(overflow).get(step, (None, None))
        handle = None
        if rank == dist.get_rank():

            def ruin(gradient):
                gradient = gradient.clone()
                gradient.view(-1)[-1] = float("inf")
                return gradient

            handle = named[name].register_hook(ruin)
        scaler.scale(ddp(torch.randn(8, 20)).square().mean()).backward()
        if handle:
            handle.remove()
        scaler.step(optimizer)
        scaler.update()


@check("two")
def an_overflow_of_one_rank_is_a_step_that_grad_scaler_skips_on_all():
    for plan in PLANS:
        for name in ("0.weight", "6.bias"):  # the last gradient, after which others were sent; and the first
            hook = DDPHook(plan, dense_below=0, nonfinite="skip")
            ddp = wrapped(make_model(), hook)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
            scaled_steps(ddp, optimizer, scaler, 0, 3)
            before, saved = parameters_of(ddp), bits_of(hook.state_dict())
            scaled_steps(ddp, optimizer, scaler, 3, 4, {3: (1, name)})
            assert scaler.get_scale() == 512, (plan, scaler.get_scale())
            assert same(parameters_of(ddp), before) and bits_of(hook.state_dict()) == saved, plan
            stats = hook.stats()
            assert (stats.steps, stats.last.skipped, stats.total.skipped) == (4, 1, 1), plan
            assert all(parameter.grad.isnan().all() for parameter in ddp.parameters()), plan
            scaled_steps(ddp, optimizer, scaler, 4, 7)
            assert same_on_all_ranks(parameters_of(ddp)) and not same(parameters_of(ddp), before), plan
            assert hook.stats().total.skipped == 1 and hook.state_dict()["step"] == 7


@check("two")
def a_training_that_skips_a_step_is_one_without_it():
    """With a scaler whose scale stays, and plans that draw nothing by the step."""
    for plan in (*PLANS[:2], PLANS[3]):
        found = []
        for overflow in ({}, {2: (0, "3.weight"), 3: (1, "0.bias")}):
            hook = DDPHook(plan, dense_below=0, nonfinite="skip")
            ddp = wrapped(make_model(), hook)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0, backoff_factor=0.9999999)
            for step in (0, 1, 4, 5) if not overflow else range(6):
                scaled_steps(ddp, optimizer, scaler, step, step + 1, overflow)
                scaler.update(8.0)
            found.append(parameters_of(ddp))
        assert same(*found), plan


@check("two")
def a_loop_skips_an_overflow_too():
    rank = dist.get_rank()
    for plan, start in (*((plan, 0) for plan in PLANS[:4]), ("index=all value=raw", 0), (PLANS[0], 9)):
        for dtype in (torch.float32, torch.float16):
            reduce = AllReduce(plan, dense_below=0, frame_bytes=4000, nonfinite="skip", start=start)
            for step in range(5):
                x = [gradient.view(-1, 10).to(dtype) for gradient in gradients(step, rank)]
                saved = bits_of(reduce.state_dict())
                if step in (2, 3):
                    x[1 if step == 2 else 2][3, 3] = float("nan") if rank == 0 else 1.0
                reduce(x)
                finite = [bool(tensor.isfinite().all()) for tensor in x]
                assert finite == [step not in (2, 3)] * 3, (plan, step, finite)
                if step in (2, 3):
                    assert bits_of(reduce.state_dict()) == saved, (plan, step)
                else:
                    assert same_on_all_ranks(torch.cat([tensor.view(-1).float() for tensor in x]))
            assert reduce.stats().total.skipped == 2


@check("two")
def rows_skip_an_overflow_too():
    rank = dist.get_rank()
    for start in (0, 9):
        reduce = AllReduce(PLANS[0], dense_below=0, nonfinite="skip", start=start)
        for step in range(4):
            rows = torch.sparse_coo_tensor(torch.tensor([[rank, 5]]), torch.ones(2, 40), (9, 40), check_invariants=True)
            dense = torch.ones(300)
            if step == 2 and rank == 1:
                rows._values()[1, 7] = float("-inf")
            saved = bits_of(reduce.state_dict())
            reduce([rows, dense])
            skipped = bool(rows.coalesce().values().isnan().any())
            assert skipped == (step == 2) == bool(dense.isnan().all())
            assert not skipped or bits_of(reduce.state_dict()) == saved
        assert reduce.stats().total.skipped == 1


@check("two")
def skipping_is_of_all_ranks_or_refused():
    x = gradients(0, dist.get_rank())
    with raises(deepreduce.ArgumentError, "nonfinite is 'ignore', not 'error' or 'skip'"):
        AllReduce(PLANS[0], nonfinite="ignore")
    with raises(deepreduce.Unsupported, "nonfinite='skip'", "sees one module's gradients"):
        ReduceScatter(PLANS[0], nonfinite="skip")
    with raises(deepreduce.ArgumentError, "rank 1 has"):
        AllReduce(PLANS[0], nonfinite="skip" if dist.get_rank() else "error")(x)
    reduce = AllReduce(PLANS[0], dense_below=0)
    x[0][3] = float("nan")
    with raises(deepreduce.PeerError, "rank 0", "NaN"):
        reduce(x)
