"""The examples in the docstrings, those in the README, and the scripts of examples/ run and say what they say."""

import doctest
import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Named in the docstrings of the functions that give them, which show them; DeviceFrame needs a GPU (test_device.py).
SHOWN_ELSEWHERE = {"Bound", "Codec", "DeviceFrame", "Frame", "FrameTensor", "Parameter", "PlanInfo", "Trace"}


def examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    names = ("_call", "batch", "bound", "decoding", "encoding", "errors", "exchange", "header", "merging", "plan", "tensor")
    modules = [deepreduce] + [importlib.import_module(f"deepreduce.{name}") for name in names]
    found = {test.name: test for module in modules for test in finder.find(module, globs={}) if test.examples}
    return [found[name] for name in sorted(found)]


@pytest.mark.parametrize("test", examples(), ids=lambda test: test.name)
def test_docstring(test):
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


def run_example(*words):
    """What a script of examples/ prints."""
    path = os.pathsep.join(filter(None, (str(ROOT / "bindings/python"), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-B", *map(str, words)], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_compare_plans(tmp_path):
    gradient = numpy.zeros(1000, dtype=numpy.float32)
    gradient[::200] = 1
    numpy.save(tmp_path / "gradient.npy", gradient)
    lines = run_example(ROOT / "examples/compare_plans.py", tmp_path / "gradient.npy").splitlines()
    assert lines[0] == "4000 bytes, dense"
    assert len(lines) > 4 and all("error 0.0" in line for line in lines[1:])  # 5 ones: no plan loses them
    assert "error 0.000" not in run_example(ROOT / "examples/compare_plans.py")  # Student's t: each does


def test_train_ddp():
    pytest.importorskip("torch", reason="torch is missing: ./dev setup")
    said = run_example("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2, ROOT / "examples/train_ddp.py")
    assert re.search(r"accuracy 0\.9\d+; a rank sends \d+ bytes", said) or "accuracy 1.000" in said


def test_every_example_is_run_by_a_test():
    """Python here, C and C++ by tests/install, MPI by tests/mpi."""
    tests = "".join(
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("tests/python/test_examples.py", "tests/install/check.sh", "tests/mpi/meson.build")
    )
    names = [path.name for path in (ROOT / "examples").iterdir() if path.suffix in {".py", ".c", ".cpp"}]
    assert len(names) >= 6
    for name in names:
        assert name in tests, f"no test runs examples/{name}"
        assert name in (ROOT / "examples/README.md").read_text(encoding="utf-8")
