"""What hooks promise of the plans that they are given: which are refused, which are warned about, and mixes of kinds."""

import pathlib
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch_ranks import check, make_model, parameters_of, raises, same, same_on_all_ranks, steps_of, wrapped

from deepreduce import ArgumentError, Plan
from deepreduce.torch import AllReduce, DDPHook, ReduceScatter, all_reduce

LOWRANK = "transform=lowrank(rank=2) feedback=residual"
EIGHT_BITS = "feedback=residual index=all value=uniform_quant(bits=8)"
BOOK = f"[06].weight: {EIGHT_BITS}\n*.weight: {LOWRANK}\n*: dense\n"


@check("two")
def a_plan_that_drops_values_for_good_is_told_once():
    def warnings_about(plan):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ddp = wrapped(make_model(), DDPHook(plan, dense_below=0))
            steps_of(ddp, torch.optim.SGD(ddp.parameters(), lr=0.01), 0, 3)
        return [warning for warning in caught if "drops what it does not send" in str(warning.message)]

    for plan in ("topk", {"0.*": "topk", "*": "topk feedback=residual"}):
        lines = warnings_about(plan)
        assert len(lines) == (1 if dist.get_rank() == 0 else 0), lines
        assert all("topr(ratio=0.01)" in str(line.message) and "add feedback=residual" in str(line.message) for line in lines)
        assert all(line.category is UserWarning and line.filename.endswith("torch_ranks.py") for line in lines)  # (calls register)
    for plan in ("topk feedback=residual", "recommended", "index=all value=uniform_quant(bits=8)", None):
        assert warnings_about(plan) == []


@check("two")
def what_is_no_hook_warns_of_a_plan_that_drops_values_too():
    """But all_reduce, which has no later steps in which to send the rest."""

    def warnings_about(call, *arguments):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call(*arguments)
        return [warning.filename for warning in caught if "drops what it does not send" in str(warning.message)]

    def calls(plan):
        reduce = AllReduce(plan)
        for _ in range(2):
            reduce({"w": torch.ones(2000)})

    once = [__file__] if dist.get_rank() == 0 else []
    assert warnings_about(calls, "topk") == once
    assert warnings_about(ReduceScatter, "topk") == once
    assert warnings_about(all_reduce, {"w": torch.ones(2000)}, "topk") == []
    assert warnings_about(calls, "topk feedback=residual") == warnings_about(ReduceScatter, "topk feedback=residual") == []


@check("two")
def an_empty_plan_is_refused():
    for plan in ("", "  ", {"*.bias": None, "*": ""}):
        for kind in (DDPHook, AllReduce):
            with raises(ArgumentError, "the plan is an empty text", "recommended", "None is dense"):
                kind(plan)
    DDPHook(None)


@check("two")
def recommended_is_a_plan_with_feedback():
    assert Plan("recommended").info.feedback and DDPHook("recommended").keeps
    hook, named = DDPHook(), DDPHook("recommended")
    for one in (hook, named):
        wrapped(make_model(), one)
    assert repr(hook) == repr(named) and str(Plan("recommended")) in repr(hook)


@check("two")
def a_book_may_have_transforms_beside_frames_and_dense_tensors():
    """A tensor has the same result as by its own plan alone."""
    from deepreduce.book import parse

    def drawn(step):
        torch.manual_seed(100 * step + dist.get_rank())
        return {name: torch.randn(parameter.shape) for name, parameter in make_model().named_parameters()}

    mixed = AllReduce(parse(BOOK), dense_below=0)
    frames, factors = AllReduce(EIGHT_BITS, dense_below=0), AllReduce(LOWRANK, dense_below=0)
    for step in range(4):
        x = drawn(step)
        mixed(x)
        alone = drawn(step)
        coded, factored = ("0.weight", "6.weight"), ("2.weight", "3.weight", "5.weight")  # (2 is a vector)
        frames({name: alone[name] for name in coded})
        factors({name: alone[name] for name in factored})
        for name in (*coded, *factored):
            assert same(x[name], alone[name]), (step, name)
        for name in (key for key in x if key.endswith(".bias")):
            dist.all_reduce(alone[name])
            assert same(x[name], alone[name] / 2), (step, name)


@check("two")
def a_book_with_transforms_trains_and_resumes():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "book.txt")
        path.write_text(BOOK, encoding="utf-8")
        plan = f"book:{path}"
        hook = DDPHook(plan, dense_below=0)
        ddp = wrapped(make_model(), hook)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        steps_of(ddp, optimizer, 0, 4)
        parameters, state = [parameter.detach().clone() for parameter in ddp.parameters()], hook.state_dict()
        steps_of(ddp, optimizer, 4, 8)
        assert same_on_all_ranks(parameters_of(ddp))
        kinds = {unit.kind for unit in hook._units}
        assert kinds == {"frames", "factors"}, kinds
        again = DDPHook(plan, dense_below=0)
        again.load_state_dict(state)
        other = wrapped(make_model(), again)
        with torch.no_grad():
            for parameter, value in zip(other.parameters(), parameters):
                parameter.copy_(value)
        steps_of(other, torch.optim.SGD(other.parameters(), lr=0.05), 4, 8)
        assert same(parameters_of(ddp), parameters_of(other))
