"""What DDPHook("auto") promises."""

import copy
import logging
import math
import pickle
import re
import warnings
from unittest import mock

import torch
import torch.distributed as dist
from torch_ranks import check, make_model, parameters_of, raises, same, same_on_all_ranks, steps_of, wrapped

from deepreduce import ArgumentError, PlanError
from deepreduce.torch import _auto
from deepreduce.torch import AllReduce, DDPHook

# Seconds of an exchange of a transformer of 3.3 M parameters on two ranks, measured on shaped links.
MEASURED = {
    "unshaped": ({"dense": 0.000, "bf16": 0.010, "8 bits": 0.008, "4 bits": 0.008, "lowrank": 0.000}, "dense"),
    "1 Gbit/s": ({"dense": 0.107, "bf16": 0.050, "8 bits": 0.017, "4 bits": 0.015, "lowrank": 0.008}, "8 bits"),
    "100 Mbit/s": ({"dense": 1.128, "bf16": 0.521, "8 bits": 0.118, "4 bits": 0.110, "lowrank": 0.027}, "lowrank"),
}


class Only:
    """Leaves one candidate, whatever the machine's times are."""

    def __init__(self, name):
        self._name = name

    def __enter__(self):
        self._all = _auto.CANDIDATES
        _auto.CANDIDATES = [candidate for candidate in self._all if candidate[0] == self._name]

    def __exit__(self, *_):
        _auto.CANDIDATES = self._all


def trained(hook, last, first=0, ddp=None, optimizer=None):
    if ddp is None:
        ddp = wrapped(make_model(), hook)
        optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    steps_of(ddp, optimizer, first, last)
    return ddp, optimizer


@check("two")
def auto_takes_the_most_accurate_plan_within_a_tenth_of_the_fastest_step():
    for link, (costs, expected) in MEASURED.items():
        assert _auto.choose(0.125, costs) == expected, link


@check("two")
def auto_shows_that_it_has_not_chosen_yet():
    with Only("8 bits"):
        hook = DDPHook("auto")
        assert repr(hook) == "<DDPHook auto: exact, and after 10 steps the plan that it measures as the best; no tensors yet>"
        ddp, optimizer = trained(hook, 3)
        assert re.match("<DDPHook auto: exact, and after 10 steps the plan that it measures as the best; [0-9]+ tensors of ", repr(hook))
        trained(hook, 14, 3, ddp, optimizer)
    assert "auto" not in repr(hook) and "value=uniform_quant(bits=8); " in repr(hook)


@check("two")
def auto_trains_as_the_plan_that_it_chose_does_after_dense_steps():
    for name, plan in _auto.CANDIDATES:
        with Only(name):
            hook = DDPHook("auto")
            ddp, _ = trained(hook, 14)
        assert hook.choice.name == name and hook.choice.plan == plan
        assert list(hook.choice.costs) == [name] and hook.choice.costs[name] > 0
        expected, _ = trained(DDPHook(plan, start=10 if plan else 100), 14)
        assert same(parameters_of(ddp), parameters_of(expected)), name
        assert same_on_all_ranks(parameters_of(ddp)), name


@check("two")
def auto_says_what_it_measured_and_chose():
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    _auto.log.addHandler(handler)
    _auto.log.setLevel(logging.INFO)
    hook = DDPHook("auto")
    ddp, _ = trained(hook, 9)
    assert hook.choice is None and all("DDPHook" in line for line in lines)  # that it was registered
    lines.clear()
    trained(hook, 10, 9, ddp, torch.optim.SGD(ddp.parameters(), lr=0.01))
    _auto.log.removeHandler(handler)
    _auto.log.setLevel(logging.NOTSET)
    assert len(lines) == (1 if dist.get_rank() == 0 else 0)
    assert list(hook.choice.costs) == [name for name, _ in _auto.CANDIDATES]
    assert all(word in str(hook.choice) for word in ("auto: ", hook.choice.name, "ms of compute", "lowrank", "kB"))


@check("two")
def auto_takes_a_device_for_the_frames_of_its_choice_alone():
    for name in ("dense", "8 bits"):
        with Only(name), warnings.catch_warnings():
            warnings.simplefilter("error")
            hook, plan = DDPHook("auto"), dict(_auto.CANDIDATES)[name]
            hook._emulated = 3
            ddp, optimizer = trained(hook, 5)
            assert hook.stats().place == "cpu"  # dense steps
            trained(hook, 14, 5, ddp, optimizer)
        assert hook.stats().place == ("emulated" if plan else "cpu")
        expected, _ = trained(DDPHook(plan, start=10 if plan else 100), 14)
        assert same(parameters_of(ddp), parameters_of(expected)), name


@check("two")
def auto_resumes_with_the_plan_that_it_chose():
    with Only("8 bits"):
        hook = DDPHook("auto")
        ddp, optimizer = trained(hook, 12)
        saved = copy.deepcopy((ddp.module.state_dict(), optimizer.state_dict(), hook.state_dict()))
        trained(hook, 16, 12, ddp, optimizer)
    for before in (True, False):  # loaded before the model is known, and after
        again, model = DDPHook("auto"), make_model()
        model.load_state_dict(saved[0])
        if before:
            again.load_state_dict(saved[2])
        other = wrapped(model, again)
        if not before:
            again.load_state_dict(saved[2])
        second = torch.optim.Adam(other.parameters(), lr=0.01)
        second.load_state_dict(copy.deepcopy(saved[1]))
        assert again.choice.name == "8 bits"
        trained(again, 16, 12, other, second)
        assert same(parameters_of(ddp), parameters_of(other)), before


@check("two")
def a_copy_of_an_auto_hook_has_its_choice_or_will_choose():
    for name in ("8 bits", "dense"):
        with Only(name):
            hook = DDPHook("auto")
            ddp, optimizer = trained(hook, 4)
            early = copy.deepcopy(hook)
            trained(hook, 12, 4, ddp, optimizer)
            late, model = pickle.loads(pickle.dumps(hook)), make_model()
        assert early.choice is None and late.choice == hook.choice is not None, name
        model.load_state_dict(ddp.module.state_dict())
        other = wrapped(model, late)
        second = torch.optim.Adam(other.parameters(), lr=0.01)
        second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        with mock.patch.object(_auto.Auto, "decide", lambda *_: None):  # (neither chooses again)
            trained(hook, 16, 12, ddp, optimizer)
            trained(late, 16, 12, other, second)
        assert same(parameters_of(ddp), parameters_of(other)) and late.stats().last.frame == hook.stats().last.frame, name
        with Only(name):
            trained(early, 20, 4)
        assert early.choice.name == name


@check("two")
def auto_measures_a_step_later_where_a_gradient_is_not_finite():
    hook = DDPHook("auto", start=11)
    with Only("8 bits"):
        ddp, optimizer = trained(hook, 10)
        ddp.module[0].weight.register_hook(lambda gradient: gradient * math.nan)  # of step 10 alone
        handle = list(ddp.module[0].weight._backward_hooks)[-1]
        ddp(torch.ones(2, 20)).sum().backward()
        assert hook.choice is None
        del ddp.module[0].weight._backward_hooks[handle]
        optimizer.zero_grad()
        trained(hook, 12, 11, ddp, optimizer)
    assert hook.choice.name == "8 bits"


@check("two")
def auto_chooses_after_ten_more_dense_steps_where_a_state_is_loaded_before_the_choice():
    """Also of a step beyond `start`: the step that should have measured had a gradient that is not finite."""
    for stop in (11, 4):
        with Only("8 bits"):
            hook = DDPHook("auto")
            ddp, optimizer = trained(hook, min(stop, 9))
            if stop > 9:
                with mock.patch.object(_auto.Auto, "decide", lambda *_: None):
                    trained(hook, stop, 9, ddp, optimizer)
            assert hook.choice is None and hook.stats().last.frame == 0
            again, model = DDPHook("auto"), make_model()
            again.load_state_dict(hook.state_dict())
            model.load_state_dict(ddp.module.state_dict())
            other = wrapped(model, again)
            second = torch.optim.Adam(other.parameters(), lr=0.01)
            trained(again, stop + 9, stop, other, second)
            assert again.choice is None and again.stats().last.frame == 0, stop
            trained(again, stop + 10, stop + 9, other, second)
            assert again.choice.name == "8 bits" and len(again._auto._compute) == 9, stop
            trained(again, stop + 11, stop + 10, other, second)
            assert again.stats().last.frame > 0, stop
        fresh = DDPHook("auto")
        fresh.load_state_dict(hook.state_dict())
        fresh.reset()
        assert fresh._start == 10 and fresh.choice is None


@check("two")
def a_state_that_auto_refuses_changes_nothing():
    own, states = f"rank{dist.get_rank()}", {}
    for name in ("8 bits", "bf16"):
        with Only(name):
            hook = DDPHook("auto")
            trained(hook, 12)
        states[name] = hook.state_dict()
    good, choice = states["8 bits"], states["8 bits"][own]["auto"]
    some = next(iter(good[own]["residuals"]))

    def changed(**part):
        return {**good, own: {**{key: value for key, value in good[own].items() if key != "holds"}, **part}}

    refused = [
        ("version 9", {**good, "version": 9}), ("no such tensor", changed(residuals={"x": good[own]["residuals"][some]})),
        *[("auto of the state is not a choice", changed(auto=value)) for value in (1, {}, {**choice, "more": 1}, {**choice, "plan": 5})],
        ("plan", changed(auto={**choice, "plan": "nonsense"})),
    ]  # fmt: skip
    for name, first in (("4 bits", 4), ("bf16", 12), ("8 bits", 12)):  # without a choice, with another one, and with that one
        with Only(name):
            hook, expected = DDPHook("auto"), DDPHook("auto")
            (ddp, optimizer), (other, second) = trained(hook, first), trained(expected, first)
            for words, state in refused:
                with raises((ArgumentError, PlanError)[words == "plan"], words):
                    hook.load_state_dict(state)
                assert (hook.choice and hook.choice.name) == (expected.choice and expected.choice.name), words
                assert hook.state_dict()["step"] == first, words
            trained(hook, 14, first, ddp, optimizer)
            trained(expected, 14, first, other, second)
        assert same(parameters_of(ddp), parameters_of(other)) and hook.choice.name == name
        hook.load_state_dict(states["bf16"])  # and what it takes leaves nothing of the plan before
        again = DDPHook("auto")
        again.load_state_dict(hook.state_dict())
        wrapped(make_model(), again)
        assert again.choice.name == "bf16" and not hook.state_dict()[own]["residuals"]
    waiting = DDPHook("auto")
    for words, state in refused[:1] + refused[2:]:
        with raises((ArgumentError, PlanError)[words == "plan"], words):
            waiting.load_state_dict(state)
        assert waiting.choice is None and waiting.state_dict()["step"] == 0 and waiting._start == 10, words


@check("two")
def auto_is_of_the_hook_alone_and_without_control():
    with raises(ArgumentError, '"auto"', "control"):
        DDPHook("auto", control="fit(target_ms=20)")
    with raises(ArgumentError, "'auto'", "DDPHook"):
        AllReduce("auto")
