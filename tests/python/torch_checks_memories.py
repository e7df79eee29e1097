"""What DDPHook and AllReduce promise of memories with momentum, and of votes."""

import copy

import torch
import torch.distributed as dist
from torch_ranks import check, make_model, parameters_of, raises, same, same_on_all_ranks, steps_of, wrapped

import deepreduce
from deepreduce.torch import AllReduce, DDPHook

TOP = "sparsify=topr(ratio=0.05) index=golomb value=raw "


def trained(hook, momentum, steps=6):
    ddp = wrapped(make_model(), hook)
    steps_of(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=momentum), 0, steps)
    return parameters_of(ddp)


@check("two")
def momentum_in_the_memory_is_momentum_in_the_optimizer():
    """Of small parameters, too, which travel dense beside the others."""
    expected, plain = trained(None, 0.9), trained(None, 0.0)
    for plan in ("index=all value=raw feedback=dgc(momentum=0.9,masking=off)",):
        for options in ({}, {"flat": False}, {"bypass": 0}, {"bypass": 10**6}):
            found = trained(DDPHook(plan, **options), 0.0)
            assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6), options
            assert not torch.allclose(found, plain, rtol=1e-2)
    # Signum's momentum has the weight 1 - beta.
    found = trained(DDPHook("index=all value=raw feedback=momentum(beta=0.9)"), 0.0)
    ddp = wrapped(make_model(), None)
    steps_of(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9, dampening=0.9), 0, 1)
    assert not torch.allclose(found, plain) and found.isfinite().all()


@check("two")
def a_training_with_any_memory_resumes_bit_for_bit():
    for feedback in ("dgc(momentum=0.9)", "momentum", "efsignsgd(lr=0.05)"):
        hook, whole = DDPHook(TOP + f"feedback={feedback}"), wrapped(make_model(), None)
        hook.register(whole)
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
    for each in (hook, other):
        trained(each, 0.0, 2)
    with raises(deepreduce.ArgumentError, "feedback=residual", "feedback=momentum", "weight"):
        other.load_state_dict(hook.state_dict())
    hook.scale_residuals(0.5)
    with raises(deepreduce.ArgumentError, "keeps no residual"):
        other.scale_residuals(0.5)
    with raises(deepreduce.ArgumentError, "momentum"):
        wrapped(make_model(), DDPHook([None, TOP + "feedback=dgc"], control="aimd(target_ms=20)"))


@check("two", "four")
def votes_are_the_sign_of_the_sum():
    n, rank = dist.get_world_size(), dist.get_rank()
    each = [torch.randint(-1, 2, (3000,), generator=torch.Generator().manual_seed(r)).float() for r in range(n)]
    total = sum(each)
    assert (total == 0).any()
    x, small = each[rank].clone(), each[rank][:10].clone()  # a voting plan is not bypassed
    AllReduce("index=all value=raw merge=vote")([x, small])
    expected = torch.where(total < 0, -1.0, 1.0)
    assert torch.equal(x, expected) and torch.equal(small, expected[:10])
