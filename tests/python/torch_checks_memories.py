"""What DDPHook and AllReduce promise of memories with momentum, and of votes."""

import copy

import torch
import torch.distributed as dist
from torch_ranks import check, make_model, parameters_of, raises, same, same_on_all_ranks, steps_of, wrapped

import deepreduce
from deepreduce.torch import AllReduce, DDPHook, ReduceScatter

TOP = "sparsify=topr(ratio=0.05) index=golomb value=raw "


def trained(hook, momentum, steps=6):
    ddp = wrapped(make_model(), hook)
    steps_of(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=momentum), 0, steps)
    return parameters_of(ddp)


@check("two")
def momentum_in_the_memory_is_momentum_in_the_optimizer():
    """For small parameters, too, which are sent dense beside the others."""
    expected, plain = trained(None, 0.9), trained(None, 0.0)
    for plan in ("index=all value=raw feedback=dgc(momentum=0.9,masking=off)",):
        for options in ({}, {"flat": False}, {"dense_below": 0}, {"dense_below": 10**6}):
            found = trained(DDPHook(plan, **options), 0.0)
            assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6), options
            assert not torch.allclose(found, plain, rtol=1e-2)
    # Signum's momentum has the weight 1 - beta.
    found = trained(DDPHook("index=all value=raw feedback=momentum(beta=0.9)"), 0.0)
    ddp = wrapped(make_model(), None)
    steps_of(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9, dampening=0.9), 0, 1)
    assert not torch.allclose(found, plain) and found.isfinite().all()


@check("two")
def beside_others_small_tensors_have_the_weight_of_the_gradient():
    """In each sender, as in deepreduce.exchange; and in later steps nothing else is added to it."""
    plan = "sparsify=topr(ratio=0.1) feedback=residual(beta=0.5,gamma=0.5)"
    reduce, scatter, half = AllReduce(plan, dense_below=1000), ReduceScatter(plan, dense_below=1000), torch.full((10,), 0.5)
    for flat in (None, False):
        ddp = wrapped(torch.nn.Linear(10, 1, bias=False), DDPHook(plan, dense_below=1000, flat=flat))
        for _ in range(3):
            x, out = torch.ones(10), torch.empty(10)
            reduce([x])
            scatter(out, torch.ones(10 * dist.get_world_size()), dist.group.WORLD, dist.ReduceOp.AVG)
            ddp.zero_grad()
            ddp(torch.ones(1, 10)).sum().backward()
            for found in (x, out, ddp.module.weight.grad.view(-1)):
                assert torch.equal(found, half), (flat, found)


@check("two")
def a_training_with_any_memory_resumes_bit_for_bit():
    for feedback in ("dgc(momentum=0.9)", "momentum", "efsignsgd(lr=0.05)"):
        hook = DDPHook(TOP + f"feedback={feedback}")
        whole = wrapped(make_model(), hook)
        optimizer = torch.optim.SGD(whole.parameters(), lr=0.05)
        steps_of(whole, optimizer, 0, 3)
        saved = copy.deepcopy((whole.module.state_dict(), hook.state_dict()))
        steps_of(whole, optimizer, 3, 6)
        model, again = make_model(), DDPHook(TOP + f"feedback={feedback}")
        ddp = wrapped(model, again)
        again.load_state_dict(saved[1])
        model.load_state_dict(saved[0])
        steps_of(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05), 3, 6)
        assert same(parameters_of(ddp), parameters_of(whole)) and same_on_all_ranks(parameters_of(ddp)), feedback


@check("two")
def a_state_of_another_feedback_is_refused_when_it_is_loaded():
    hook, other = DDPHook(TOP + "feedback=residual"), DDPHook(TOP + "feedback=momentum")
    for hook_ in (hook, other):
        trained(hook_, 0.0, 2)
    with raises(deepreduce.ArgumentError, "feedback=residual", "feedback=momentum", "6.bias"):
        other.load_state_dict(hook.state_dict())
    hook.scale_residuals(0.5)
    with raises(deepreduce.ArgumentError, "keeps no residual"):
        other.scale_residuals(0.5)
    with raises(deepreduce.ArgumentError, "momentum"):
        wrapped(make_model(), DDPHook([None, TOP + "feedback=dgc"], control="aimd(target_ms=20)"))


@check("two", "four")
def votes_are_the_sign_of_the_sum():
    n, rank = dist.get_world_size(), dist.get_rank()
    per_rank = [torch.randint(-1, 2, (3000,), generator=torch.Generator().manual_seed(r)).float() for r in range(n)]
    total = sum(per_rank)
    assert (total == 0).any()
    x, small = per_rank[rank].clone(), per_rank[rank][:10].clone()  # a voting plan is not bypassed
    AllReduce("index=all value=raw merge=vote")([x, small])
    expected = torch.where(total < 0, -1.0, 1.0)
    assert torch.equal(x, expected) and torch.equal(small, expected[:10])


def gradient_after(hook, data=1e3, **options):
    """(the mean gradient by a hook, from equal gradients on all ranks, flat; the hook)"""
    ddp = wrapped(make_model(), hook, **options)
    torch.manual_seed(3)
    (data * ddp(torch.randn(8, 20))).square().mean().backward()
    return torch.cat([parameter.grad.reshape(-1) for parameter in ddp.parameters()]), hook


@check("two")
def clipping_is_by_the_norm_of_the_whole_gradient_however_it_is_cut():
    plan = "sparsify=none feedback=dgc(momentum=0.5,clip=0.25) index=golomb value=raw"
    whole, _ = gradient_after(None)
    assert whole.norm() > 100
    for options in ({}, {"dense_below": 0}, {"flat": False}, {"dense_below": 10**6}):
        for cap in (25, 0.008, 0.0005):
            found, hook = gradient_after(DDPHook(plan, **options), bucket_cap_mb=cap)
            assert torch.allclose(found, whole * (0.25 / whole.norm()), rtol=1e-4, atol=1e-8), (options, cap)
        small, _ = gradient_after(DDPHook(plan, **options), data=1e-3)
        assert torch.allclose(small, gradient_after(None, data=1e-3)[0], rtol=1e-5)  # below the bound: as it is
    for frame_bytes in (25 << 20, 64):
        x = [torch.full((50,), float(i)) for i in range(4)]
        AllReduce(plan, frame_bytes=frame_bytes, dense_below=0)(x)
        assert abs(float(torch.cat(x).norm()) - 0.25) < 1e-5, frame_bytes
    with raises(deepreduce.ArgumentError, "a has clip=0.25", "b clip=2", "whole gradient"):
        AllReduce({"a": plan, "b": plan.replace("0.25", "2")})({"a": torch.ones(9), "b": torch.ones(9)})
    with raises(deepreduce.Unsupported, "clip= needs the whole gradient", "clip_grad_norm_"):
        ReduceScatter(plan)


@check("two")
def a_gradient_that_cannot_be_clipped_is_named_and_the_next_step_goes_on():
    bad, plan = 1, "sparsify=topr(ratio=0.5) feedback=dgc(momentum=0.5,clip=0.25) index=golomb value=half"
    reduce, x = AllReduce(plan, frame_bytes=400, dense_below=0), [torch.randn(50, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    reduce([tensor.clone() for tensor in x])
    nan = [tensor * (float("nan") if i == 2 and dist.get_rank() == bad else 1) for i, tensor in enumerate(x)]
    with raises(deepreduce.PeerError, f"rank {bad}", "NaN"):
        reduce(nan)
    found = [tensor.clone() for tensor in x]
    reduce(found)
    assert same_on_all_ranks(torch.cat(found)) and all(tensor.isfinite().all() and tensor.any() for tensor in found)


@check("two")
def what_states_take_is_told():
    parameters = sum(parameter.numel() for parameter in make_model().parameters())
    for feedback, arrays in (("residual", 1), ("dgc(momentum=0.9)", 2)):
        hook = DDPHook(TOP + f"feedback={feedback}", dense_below=0)
        ddp = wrapped(make_model(), hook)
        steps_of(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05), 0, 1)
        assert 0 <= hook.stats().memory - 4 * arrays * parameters < 64 * 10, feedback
    for plan, bytes_ in (("index=all value=half", 0), ("transform=lowrank(rank=2) feedback=residual", 4 * parameters)):
        hook = DDPHook(plan, dense_below=0)
        trained(hook, 0.0, 1)
        assert bytes_ <= hook.stats().memory <= 2 * bytes_, plan
