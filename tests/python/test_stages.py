"""Plan.stages: role, name and typed parameters of each stage; plans made of others; texts of unknown names."""

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

from deepreduce import ArgumentError, Plan, PlanError, State, Unsupported, encode, presets  # noqa: E402
from deepreduce.plan import read_stages  # noqa: E402

TOP = "sparsify=topr(ratio=0.01) feedback=residual(gamma=0.5) index=raw+huffman value=half(type=bf16)"


def test_stages_have_roles_names_and_typed_parameters():
    stages = Plan(f"{TOP} exchange=hierarchy(inner=8)").stages
    assert list(stages) == "sparsify feedback index value regather bucket merge exchange transform".split()
    assert stages["sparsify"].parameters["ratio"] == 0.01 and stages["sparsify"].given == ("ratio",)
    assert dict(stages["feedback"].parameters) == {"beta": 1.0, "gamma": 0.5} and stages["feedback"].given == ("gamma",)
    assert stages["value"].parameters["type"] == "bf16" and str(stages["value"]) == "value=half(type=bf16)"
    assert stages["index"].name == "raw" and [stage.name for stage in stages["index"].behind] == ["huffman"]
    assert stages["index"].behind[0].role == "bytes" and stages["index"].text == "index=raw+huffman"
    inner = stages["exchange"].parameters["inner"]
    assert inner == 8 and isinstance(inner, int) and stages["exchange"].parameters["parts"] == 1
    assert stages["bucket"].name == "none" and stages["bucket"].is_default and not stages["exchange"].is_default


def test_the_text_is_that_of_the_stages_which_are_not_the_default():
    for text in (*presets().values(), TOP, "index=auto value=auto(error=0.1)"):
        plan = Plan(text)
        assert str(plan) == " ".join(stage.text for stage in plan.stages.values() if not stage.is_default)
        assert Plan(" ".join(stage.text for stage in plan.stages.values())) == plan


def test_a_transform_has_its_factors_and_the_feedback():
    stages = Plan("recommended").stages
    assert list(stages) == ["transform", "feedback"] and stages["transform"].parameters["rank"] == 4


def test_stages_take_the_place_of_a_plans_own():
    plan = Plan(TOP)
    assert plan.with_stages("feedback=none index=golomb") == Plan("sparsify=topr(ratio=0.01) index=golomb value=half(type=bf16)")
    assert plan.with_stages("") == plan and plan.with_stages("bucket=flat").info.flat
    assert Plan("recommended").with_stages("exchange=gather bucket=none") == Plan("recommended")
    with pytest.raises(ArgumentError, match=r"owner\(parts=0\): not in 1 … 64"):
        plan.with_stages("exchange=owner(parts=0)")
    with pytest.raises(Unsupported, match="leave out index="):
        Plan("recommended").with_stages("index=all")


def test_texts_of_names_that_the_library_does_not_know_have_stages():
    stages = read_stages("index=mine(K=3,mode=fast) value=theirs+zstd")
    assert dict(stages["index"].parameters) == {"K": "3", "mode": "fast"} and stages["index"].given == ("K", "mode")
    assert stages["value"].name == "theirs" and stages["value"].behind[0].name == "zstd" and "feedback" not in stages
    with pytest.raises(ArgumentError, match="column 12"):
        read_stages("index=mine(3)")


def test_equal_stages_are_equal_and_hash_alike():
    a, b = Plan("index=golomb(block=12)").stages["index"], Plan("index=golomb").stages["index"]
    assert a == b and hash(a) == hash(b) and a != Plan("index=golomb(adaptive=1)").stages["index"]


def test_with_changes_parameters_and_stages_by_name():
    plan = Plan("sparsify=topr(ratio=0.01) feedback=residual index=golomb value=qsgd+deflate(level=3)")
    for changes, text in (
        ({"ratio": 0.1}, "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=qsgd+deflate(level=3)"),
        ({"ratio": numpy.float32(0.1), "level": 9}, "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=qsgd+deflate(level=9)"),
        ({"ratio": None, "count": 5, "level": None}, "sparsify=topr(count=5) feedback=residual index=golomb value=qsgd+deflate"),
        ({"value": "half", "gamma": 0.5}, "sparsify=topr(ratio=0.01) feedback=residual(gamma=0.5) index=golomb value=half"),
        ({"bucket": 64}, "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=qsgd(bucket=64)+deflate(level=3)"),
        ({"bucket": "flat"}, f"{plan} bucket=flat"),
        ({"ratio": 1e-5}, "sparsify=topr(ratio=1e-05) feedback=residual index=golomb value=qsgd+deflate(level=3)"),
        ({}, str(plan)),
    ):
        assert plan.with_(**changes) == Plan(text), changes
    assert Plan("powersgd").with_(rank=8).stages["transform"].parameters["rank"] == 8


@pytest.mark.parametrize("changes, words", [
    ({"nope": 1}, "'nope' is neither a parameter of 'sparsify=.*' nor the role of a stage; it has: .*ratio"),
    ({"block": 12}, r"'block' is a parameter of 2 stages of '.*': pass sparsify=\"blocks\(block=…\)\" or index=\"golomb"),
    ({"ratio": 2}, "not in 0 … 1"),
    ({"count": 5}, "either ratio or count|ratio= or count="),
    ({"value": "nope"}, "no value codec is called 'nope'"),
    ({"value": None}, "^'value' is the role of a stage: pass what follows it in a plan's text, value=\"raw\"$"),
])  # fmt: skip
def test_with_refuses_by_name_what_the_plan_cannot_have(changes, words):
    with_blocks = "sparsify=blocks(ratio=0.01,block=32) index=golomb value=raw"
    plan = Plan(with_blocks if "block" in changes else "sparsify=topr(ratio=0.01) index=golomb value=raw")
    with pytest.raises(PlanError, match=words):
        plan.with_(**changes)


def test_what_is_no_text_is_an_argument_error():
    for text, words in ((3, "stages is 3, not a text"), ("\ud800", "stages has '.ud800': surrogates not allowed"), ("\0", "a zero byte")):
        with pytest.raises(ArgumentError, match=words):
            Plan("index=raw").with_stages(text)


def test_a_wrong_plan_is_a_plan_error_wherever_it_is_given():
    x = numpy.ones(8, numpy.float32)
    for call in (Plan, lambda text: encode(x, text), lambda text: State(x, text), Plan("index=raw").with_stages):
        with pytest.raises(PlanError, match="nope") as raised:
            call("index=nope")
        assert isinstance(raised.value, ArgumentError) and raised.value.code == 1
    with pytest.raises(ArgumentError) as raised:
        encode(numpy.ones(8, numpy.int32), "index=raw")
    assert not isinstance(raised.value, PlanError)
