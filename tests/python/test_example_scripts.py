"""The scripts of examples/ run and say what they say; each example is run by some test."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

ROOT = pathlib.Path(__file__).resolve().parents[2]


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
        for name in ("tests/python/test_example_scripts.py", "tests/install/check.sh", "tests/mpi/meson.build")
    )
    names = [path.name for path in (ROOT / "examples").iterdir() if path.suffix in {".py", ".c", ".cpp"}]
    assert len(names) >= 6
    for name in names:
        assert name in tests, f"no test runs examples/{name}"
        assert name in (ROOT / "examples/README.md").read_text(encoding="utf-8")
