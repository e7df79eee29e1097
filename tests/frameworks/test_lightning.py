"""What deepreduce.lightning promises, on two ranks over gloo."""

import pathlib

from two_ranks import trainings

trained = trainings(pathlib.Path(__file__).resolve().with_name("lightning_ranks.py"))


def test_replicas_are_the_same(trained):
    assert len(trained) == 10
    assert all(one.tobytes() == two.tobytes() for one, two in trained.values())


def test_an_exact_plan_trains_as_without(trained):
    assert trained["exact"][0].tobytes() == trained["plain"][0].tobytes()


def test_a_resumed_training_is_that_of_one_go(trained):
    assert trained["resumed"][0].tobytes() == trained["whole"][0].tobytes()
    assert trained["half"][0].tobytes() != trained["whole"][0].tobytes() != trained["plain"][0].tobytes()


def test_the_name_of_a_preset_is_its_plan(trained):
    assert trained["preset"][0].tobytes() == trained["preset_plan"][0].tobytes() != trained["plain"][0].tobytes()


def test_logging_metrics_changes_nothing(trained):
    assert trained["logged"][0].tobytes() == trained["whole"][0].tobytes()
