"""The examples in the docstrings, and those in the README, run and say what they say."""

import doctest
import importlib
import inspect
import os
import pathlib
import re

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Named in the docstrings of the functions that give them, which show them; DeviceFrame needs a GPU (test_device.py).
SHOWN_ELSEWHERE = {"Bound", "Codec", "DeviceFrame", "Frame", "FrameTensor", "Parameter", "PlanInfo", "Trace"}


def examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    names = "_call batch bound codec comparing decoding encoding errors exchange header merging plan tensor".split()
    modules = [deepreduce] + [importlib.import_module(f"deepreduce.{name}") for name in names]
    found = {test.name: test for module in modules for test in finder.find(module, globs={}) if test.examples}
    return [found[name] for name in sorted(found)]


@pytest.mark.parametrize("test", examples(), ids=lambda test: test.name)
def test_docstring(test):
    if test.name.endswith("comparing.compare") and not os.environ.get("DEEPREDUCE_TOOL"):
        pytest.skip("DEEPREDUCE_TOOL does not name the tool")
    said = []
    test.globs.update(numpy=numpy, deepreduce=deepreduce)
    results = doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=said.append)
    assert results.failed == 0, "".join(said)


def test_everything_public_has_an_example():
    names = {test.name.rpartition(".")[2] for test in examples()}
    for name in deepreduce.__all__:
        thing = getattr(deepreduce, name)
        is_error = inspect.isclass(thing) and issubclass(thing, deepreduce.Error)
        if callable(thing) and not is_error and name not in SHOWN_ELSEWHERE:
            assert name in names, f"deepreduce.{name} has no example"


def test_readme(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), flags=re.S | re.M)
    # tests/python/test_device.py and tests/mpi have the others
    blocks = [each for each in blocks if "deepreduce" in each and "cuda" not in each and "deepreduce.mpi" not in each]
    if not blocks:
        pytest.skip("README.md has no Python example")
    for block in blocks:
        exec(compile(block, str(README), "exec"), {})
