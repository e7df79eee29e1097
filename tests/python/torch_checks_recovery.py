"""What a training gets back after an exception, an overflow or a checkpoint from elsewhere."""

import copy

import torch
from torch_ranks import check, make_model, parameters_of, raises, same_on_all_ranks, steps_of, wrapped

import deepreduce
from deepreduce.torch import DDPHook

EXACT_TOP = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=raw"


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def residuals_of(hook):
    return {name: torch.from_numpy(state.residual.copy()) for name, state in hook._states.items()}


@check("two")
def a_step_that_an_exception_of_the_users_ended_goes_back_to_the_residuals():
    for plan in (EXACT_TOP, "transform=lowrank(rank=2) feedback=residual"):
        hook = DDPHook(plan, bypass=0)
        ddp = wrapped(make_model(), hook)
        steps_of(ddp, sgd(ddp), 0, 2)
        alone, before, refusals = copy.deepcopy(ddp.module), residuals_of(hook), []

        def fails(gradient, hook=hook, refusals=refusals):
            try:
                hook.state_dict()
            except deepreduce.ArgumentError as error:
                refusals.append(str(error))
            raise ValueError("a check of the user's")

        ddp.module[0].weight.register_hook(fails)
        with raises(ValueError, "of the user's"):
            steps_of(ddp, sgd(ddp), 2, 3)
        assert hook._pending and refusals == ["a step is under way: its last bucket has not come yet"]
        state = hook.state_dict()
        assert state["step"] == 3 and hook.stats().steps == 3
        steps_of(alone, sgd(alone), 2, 3)
        if before:  # frames, not factors
            given = dict(alone.named_parameters())["6.weight"].grad.view(-1)
            assert torch.allclose(residuals_of(hook)["6.weight"], before["6.weight"] + given, atol=1e-6)
        hook.load_state_dict(state)
        hook.reset()
        again = DDPHook(plan, bypass=0)
        again.load_state_dict(state)
        ddp = wrapped(make_model(), again)
        steps_of(ddp, sgd(ddp), 3, 5)
        assert again.state_dict()["step"] == 5 and same_on_all_ranks(parameters_of(ddp))
