"""Plan.stages: role, name and typed parameters of each stage; plans made of others; texts of unknown names."""

import pytest

pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

from deepreduce import ArgumentError, Plan, Unsupported, presets  # noqa: E402
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
    with pytest.raises(ArgumentError, match="column 13"):
        read_stages("index=mine(3)")


def test_equal_stages_are_equal_and_hash_alike():
    a, b = Plan("index=golomb(block=12)").stages["index"], Plan("index=golomb").stages["index"]
    assert a == b and hash(a) == hash(b) and a != Plan("index=golomb(adaptive=1)").stages["index"]
