"""Presets: the names are the tool's, each is a plan, and stands for one wherever a plan is taken."""

import re

import numpy as np
import pytest

import deepreduce
from deepreduce._native import _tool

X = np.random.default_rng(1).laplace(size=4000).astype(np.float32)
TOP = "sparsify=topr(ratio=0.01)"


def test_names_and_plans_are_those_of_the_tool():
    try:
        _tool.find()
    except deepreduce.LibraryError as error:
        pytest.skip(str(error).partition("\n")[0])
    printed = _tool.run_quietly(["presets"]).stdout.decode()
    presets = dict(re.findall(r"^  (\S+) +(\S*=.*)$", printed, flags=re.M))
    assert len(presets) > 30 and deepreduce.presets() == presets


@pytest.mark.parametrize("name", deepreduce.presets())
def test_a_name_stands_for_its_plan(name):
    plan = deepreduce.Plan(deepreduce.presets()[name])
    assert deepreduce.Plan(name) == plan and deepreduce.Plan(f" {name} ") == plan
    if plan.info.transforms:
        return
    if plan.info.patch:
        assert deepreduce.patch.encode(X, -X, name) == deepreduce.patch.encode(X, -X, plan)
        return
    state, other = (deepreduce.State(X, text) if plan.info.feedback else None for text in (name, plan))
    weights = np.ones_like(X) if "sparsify=visible" in str(plan) else None
    frame = deepreduce.encode(X, name, step=1, seed=2, private_seed=3, state=state, weights=weights)
    assert bytes(frame) == bytes(deepreduce.encode(X, plan, step=1, seed=2, private_seed=3, state=other, weights=weights))


# Every method that GRACE and its neighbours have, by its preset's name.
METHODS = (
    "none fp16 bf16 8bit onebit terngrad qsgd signsgd signum efsignsgd natural natural_deterministic inceptionn randomk topk"
    " threshold dgc adaq SketchML 3LC tbq graddrop powersgd"
)


@pytest.mark.parametrize("name", METHODS.split())
def test_every_method_is_a_preset(name):
    assert name in deepreduce.presets()


def test_names_differ_by_case_and_the_dense_ones_send_all():
    plans = deepreduce.presets()
    assert "index=all" in plans["qsgd"] and "topr" not in plans["qsgd"]
    assert plans["QSGD"].startswith(TOP)  # the paper's combination with Top-1 %
    assert np.array_equal(deepreduce.decode(deepreduce.encode(X, "none")), X)
    assert np.array_equal(deepreduce.decode(deepreduce.encode(X, "fp16")), X.astype("f2").astype("f4"))
    assert "feedback=residual" in plans["3LC"]  # the error accumulation of its paper


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
