"""The package and what it promises to type checkers, by mypy. Needs no library."""

import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("mypy", reason="mypy is missing: pip install mypy")

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "bindings" / "python"

CALLS = """
from typing import Any, List, Union
import numpy
from typing_extensions import assert_type
import deepreduce
from deepreduce import Batch, Bound, Sparse, State

x = numpy.ones(3, dtype=numpy.float32)
frame = deepreduce.encode(x, "index=raw")
assert_type(frame, bytes)
assert_type(deepreduce.encode([x, x], "index=raw", key=[1, 2]), bytes)
assert_type(deepreduce.decode(frame, out=bytearray()), bytearray)
assert_type(deepreduce.decode(frame, sparse=True), Union[Sparse, List[Sparse]])
assert_type(deepreduce.decode(frame, sparse=True, tensors=0), Sparse)
assert_type(deepreduce.decode(frame, sparse=True, tensors=range(1)), List[Sparse])
assert_type(deepreduce.decode(frame), Any)
assert_type(deepreduce.decode(frame, tensors=0), "numpy.ndarray[Any, Any]")
assert_type(deepreduce.decode(frame, tensors=range(1)), "List[numpy.ndarray[Any, Any]]")
assert_type(deepreduce.merge([frame], sparse=True), Union[Sparse, List[Sparse]])
assert_type(Batch(x, "index=raw").bind(x), Bound)
assert_type(deepreduce.Plan("index=raw").info.sparsifies, bool)
assert_type(State(x, "index=raw").norm(), float)
assert_type(deepreduce.frame_size(frame), int)
assert_type(deepreduce.encode(x, "index=raw", step=3, tag=None, threads=2), bytes)
assert_type(deepreduce.decode(frame, sparse=True, tensors=0, max_elements=9, threads=2), Sparse)
assert_type(deepreduce.compare(x, "index=raw", repeat=3, tensor=["conv*"], where="bytes < 9", pareto=True), deepreduce.Rows)
assert_type(deepreduce.compare(x).best(error=0.1, by="encode_ns")["bytes"], Any)
assert_type(deepreduce.Plan("index=raw").with_(ratio=0.1, value="half", count=None), deepreduce.Plan)
deepreduce.encode(x, "index=raw", trace=lambda trace: print(trace.stage, trace.end_ns - trace.begin_ns))
"""

WRONG = """
import numpy
import deepreduce
x = numpy.ones(3, dtype=numpy.float32)
deepreduce.encode(x, 5)
deepreduce.encode(x, "index=raw", step="a")
deepreduce.decode(b"", out=x, sparse=True).nonsense
deepreduce.Plan("index=raw").nonsense
deepreduce.decode(b"", max_element=9)
deepreduce.merge([b""], sparse=True, threads="2")
deepreduce.encode(x, "index=raw", nonsense=1)
deepreduce.compare(x, repeat="3")
deepreduce.compare(x, repeats=3)
"""


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    cache = tmp_path_factory.mktemp("mypy")  # what numpy is, is found out once

    def run(*arguments):
        command = [sys.executable, "-m", "mypy", "--cache-dir", cache, *arguments]
        return subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True)

    return run


def test_the_package_is_clean(mypy):
    ran = mypy("--config-file", "pyproject.toml")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_any_stays_rare():
    """There were 914 in the two packages. Use an alias of _native/_types.py, a type of the framework, a Protocol or a TypedDict."""
    sources = [path for package in ("python/deepreduce", "grace/deepreduce_grace") for path in (PACKAGE.parent / package).rglob("*.py")]
    assert len(sources) > 100
    uses = {str(path.relative_to(PACKAGE.parent)): len(re.findall(r"\bAny\b", path.read_text(encoding="utf-8"))) for path in sources}
    top = sorted(((number, path) for path, number in uses.items()), reverse=True)[:5]
    assert sum(uses.values()) <= 300, f"{sum(uses.values())} times Any, most in {top}"


def test_calls_have_the_types_that_they_promise(mypy, tmp_path):
    program = tmp_path / "calls.py"
    program.write_text(CALLS)
    ran = mypy("--strict", str(program))
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_wrong_calls_are_noticed(mypy, tmp_path):
    program = tmp_path / "wrong.py"
    program.write_text(WRONG)
    ran = mypy(str(program))
    noticed = {int(line.split(":")[1]) for line in ran.stdout.splitlines() if ": error:" in line}
    assert {5, 6, 8, 9, 10, 11, 12, 13} <= noticed, ran.stdout
