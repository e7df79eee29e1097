"""Presets: the names are the tool's, each is a plan, and stands for one wherever a plan is taken."""

import re

import numpy as np
import pytest

import deepreduce
from deepreduce import _tool

X = np.random.default_rng(1).laplace(size=4000).astype(np.float32)
TOP = "sparsify=topr(ratio=0.01)"


def test_names_and_plans_are_those_of_the_tool():
    try:
        _tool.find()
    except deepreduce.LibraryError as error:
        pytest.skip(str(error).partition("\n")[0])
    printed = _tool.run_quietly(["presets"]).stdout.decode()
    told = dict(re.findall(r"^  (\S+) +(\S*=.*)$", printed, flags=re.M))
    whole = {name: text if re.match("sparsify=|transform=", text) else f"{TOP} {text}" for name, text in told.items()}
    assert len(told) > 30 and deepreduce.presets() == {name: str(deepreduce.Plan(text)) for name, text in whole.items()}


@pytest.mark.parametrize("name", deepreduce.presets())
def test_a_name_stands_for_its_plan(name):
    plan = deepreduce.Plan(deepreduce.presets()[name])
    assert deepreduce.Plan(name) == plan and deepreduce.Plan(f" {name} ") == plan
    if plan.info.transforms:
        return
    state, other = (deepreduce.State(each, X) if plan.info.feedback else None for each in (name, plan))
    frame = deepreduce.encode(X, name, step=1, seed=2, private_seed=3, state=state)
    assert bytes(frame) == bytes(deepreduce.encode(X, plan, step=1, seed=2, private_seed=3, state=other))


def test_compare_takes_names():
    try:
        _tool.find()
    except deepreduce.LibraryError as error:
        pytest.skip(str(error).partition("\n")[0])
    rows = deepreduce.compare(X, ["terngrad", "dgc"], repeat=1)
    assert [deepreduce.Plan(row["plan"]) for row in rows[1:]] == [deepreduce.Plan("terngrad"), deepreduce.Plan("dgc")]


def test_what_is_neither_is_an_error_that_says_so():
    with pytest.raises(deepreduce.ArgumentError, match="'terngard' is neither .* is it 'terngrad'?"):
        deepreduce.Plan("terngard")
    with pytest.raises(deepreduce.ArgumentError, match="'zzz' is neither .* presets .topk, signsgd, BF-P0"):
        deepreduce.encode(X, "zzz")
    with pytest.raises(deepreduce.ArgumentError, match="column"):
        deepreduce.Plan("terngrad(clip=2)")
    assert deepreduce.Plan("") == deepreduce.Plan("index=raw value=raw")
