"""The examples in the docstrings, in README.md, docs/PYTHON.md and docs/PATCH.md run and print what is written there."""

import doctest
import importlib
import inspect
import os
import pathlib
import re

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Named in the docstrings of the functions that return them, which show them; DeviceFrame needs a GPU (test_device.py).
SHOWN_ELSEWHERE = {"Bound", "Codec", "DeviceFrame", "Frame", "FrameTensor", "Parameter", "PlanInfo", "Trace"}


def examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    names = """_native._call _native._codec_list _native._stages batch book bound comparing comparing._codecs comparing._rows decoding encoding errors exchange header merging patch patch._store
        plan sender stats tensor""".split()
    modules = [deepreduce] + [importlib.import_module(f"deepreduce.{name}") for name in names]
    found = {test.name: test for module in modules for test in finder.find(module, globs={}) if test.examples}
    return [found[name] for name in sorted(found)]


@pytest.mark.parametrize("test", examples(), ids=lambda test: test.name)
def test_docstring(test):
    if test.name.endswith("comparing.compare") and not os.environ.get("DEEPREDUCE_TOOL"):
        pytest.skip("DEEPREDUCE_TOOL does not name the tool")
    outputs = []
    test.globs.update(numpy=numpy, deepreduce=deepreduce)
    results = doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=outputs.append)
    assert results.failed == 0, "".join(outputs)


def test_everything_public_has_an_example():
    names = {test.name.rpartition(".")[2] for test in examples()}
    for name in deepreduce.__all__:
        thing = getattr(deepreduce, name)
        is_error = inspect.isclass(thing) and issubclass(thing, deepreduce.Error)
        if callable(thing) and not is_error and name not in SHOWN_ELSEWHERE:
            assert name in names, f"deepreduce.{name} has no example"


# tests/python/test_device.py runs docs/GPU.md, tests/mpi docs/MPI.md, tests/python/test_torch.py docs/PYTORCH.md.
@pytest.mark.parametrize("page", ["README.md", "docs/PYTHON.md", "docs/PATCH.md"])
def test_page(page, capsys, tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), flags=re.S | re.M)
    assert blocks, f"{page} has no Python example"
    monkeypatch.chdir(tmp_path)  # some write files
    for block in blocks:
        if os.environ.get("DEEPREDUCE_TOOL") or "compare(" not in block:
            exec(compile(block, page, "exec"), {})
