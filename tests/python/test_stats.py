"""deepreduce.stats hands the numbers of a hook to loggers, by the method that they have. With a hook on ranks: torch_checks_figures.py."""

import pytest

pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce import stats  # noqa: E402


class Hook:
    def metrics(self):
        return {"steps": 40.0, "bytes_sent": 2068.0, "ratio": 193.4}


NUMBERS = {"deepreduce/steps": 40.0, "deepreduce/bytes_sent": 2068.0, "deepreduce/ratio": 193.4}


class TensorBoard:
    def __init__(self):
        self.lines = []

    def add_scalar(self, tag, scalar_value, global_step=None):
        self.lines.append((tag, scalar_value, global_step))

    def log_metrics(self, *arguments):
        raise AssertionError("add_scalar goes first")


class Recorder:
    """mlflow, whose module has the function log_metrics; and wandb, whose run has the method log."""

    def __init__(self, method):
        self.calls = []
        setattr(self, method, lambda metrics, step=None: self.calls.append((metrics, step)))


def test_scalars_are_flat_and_floats():
    assert stats.scalars(Hook()) == NUMBERS and all(type(value) is float for value in stats.scalars(Hook()).values())
    assert stats.scalars(Hook(), prefix="") == Hook().metrics() and stats.scalars({"x": 3}, "a/") == {"a/x": 3.0}


def test_a_writer_with_add_scalar_has_a_call_for_each_number():
    writer = TensorBoard()
    stats.log(writer, Hook(), 7)
    assert writer.lines == [(name, value, 7) for name, value in NUMBERS.items()]


@pytest.mark.parametrize("method", ["log_metrics", "log"])
def test_a_writer_of_dicts_has_one_call(method):
    writer = Recorder(method)
    stats.log(writer, Hook(), 7, prefix="ddp.")
    stats.log(writer, Hook())
    assert writer.calls == [({"ddp." + name: value for name, value in Hook().metrics().items()}, 7), (NUMBERS, 40)]


def test_what_is_neither_a_hook_nor_a_writer_is_refused():
    with pytest.raises(deepreduce.ArgumentError, match=r"the hook is a list, which has no metrics\(\)"):
        stats.scalars([1.0])
    with pytest.raises(deepreduce.ArgumentError, match="the writer is a list, which has none of add_scalar, log_metrics and log"):
        stats.log([], Hook(), 1)
