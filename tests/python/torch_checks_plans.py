"""What hooks promise of the plans that they are given: which are refused, which are warned about, and mixes of kinds."""

import logging
import pathlib
import tempfile

import torch
import torch.distributed as dist
from torch_ranks import check, make_model, parameters_of, raises, same, same_on_all_ranks, steps_of, wrapped

from deepreduce import ArgumentError, Plan
from deepreduce.torch import AllReduce, DDPHook

LOWRANK = "transform=lowrank(rank=2) feedback=residual"
EIGHT_BITS = "feedback=residual index=all value=uniform_quant(bits=8)"
BOOK = f"[06].weight: {EIGHT_BITS}\n*.weight: {LOWRANK}\n*: dense\n"


def warnings_of(register):
    """Lines that the logger has at level WARNING meanwhile."""
    log, lines = logging.getLogger("deepreduce.torch"), []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    log.addHandler(handler)
    try:
        register()
    finally:
        log.removeHandler(handler)
    return lines


@check("two")
def a_plan_that_drops_values_for_good_is_told_once():
    def warnings_about(plan):
        def trained():
            ddp = wrapped(make_model(), DDPHook(plan, dense_below=0))
            steps_of(ddp, torch.optim.SGD(ddp.parameters(), lr=0.01), 0, 3)

        return [line for line in warnings_of(trained) if "no feedback" in line]

    for plan in ("topk", {"0.*": "topk", "*": "topk feedback=residual"}):
        lines = warnings_about(plan)
        assert len(lines) == (1 if dist.get_rank() == 0 else 0), lines
        assert all("topr(ratio=0.01)" in line and "feedback=residual" in line for line in lines)
    for plan in ("topk feedback=residual", "recommended", "index=all value=uniform_quant(bits=8)", None):
        assert warnings_about(plan) == []


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
