"""What deepreduce.accelerate promises, with Accelerate and the Trainer of transformers, on two ranks over gloo."""

import pathlib

import pytest
from two_ranks import trainings

trained = trainings(pathlib.Path(__file__).resolve().with_name("accelerate_ranks.py"))


def test_replicas_are_the_same(trained):
    assert len(trained) == 17
    assert all(one.tobytes() == two.tobytes() for one, two in trained.values())


@pytest.mark.parametrize("kind", ["loop", "trainer"])
def test_an_exact_plan_trains_as_without(trained, kind):
    assert trained[f"{kind}_exact"][0].tobytes() == trained[f"{kind}_plain"][0].tobytes()


@pytest.mark.parametrize("kind", ["loop", "trainer"])
def test_a_resumed_training_is_that_of_one_go(trained, kind):
    resumed, whole, plain = (trained[f"{kind}_{run}"][0].tobytes() for run in ("resumed", "whole", "plain"))
    assert resumed == whole != plain


def test_a_checkpoint_of_the_model_only_changes_nothing(trained):
    assert trained["trainer_only"][0].tobytes() == trained["trainer_whole"][0].tobytes()


@pytest.mark.parametrize("kind", ["loop", "trainer"])
def test_the_name_of_a_preset_is_its_plan(trained, kind):
    preset, plan, plain = (trained[f"{kind}_{run}"][0].tobytes() for run in ("preset", "preset_plan", "plain"))
    assert preset == plan != plain


@pytest.mark.parametrize("model", [0, 1])
def test_two_models_have_residuals_of_their_own(trained, model):
    assert trained[f"two_resumed_{model}"][0].tobytes() == trained[f"two_whole_{model}"][0].tobytes()
    assert trained["two_whole_0"][0].tobytes() != trained["two_whole_1"][0].tobytes()
