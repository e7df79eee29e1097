"""The scripts of examples/ run and say what they say; each example is run by some test."""

import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

ROOT = pathlib.Path(__file__).resolve().parents[2]


def start(name, *arguments, **environment):
    path = os.pathsep.join(filter(None, (str(ROOT / "bindings/python"), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-B", ROOT / "examples" / name, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def printed_by(program):
    try:
        out, error = program.communicate(timeout=200)
    finally:
        program.kill()
    assert program.returncode == 0, error
    return out


def test_compare_plans(tmp_path):
    gradient = numpy.zeros(1000, dtype=numpy.float32)
    gradient[::200] = 1
    numpy.save(tmp_path / "gradient.npy", gradient)
    lines = printed_by(start("compare_plans.py", tmp_path / "gradient.npy")).splitlines()
    assert lines[0] == "4000 bytes, dense"
    assert len(lines) > 4 and all("error 0.0" in line for line in lines[1:])  # 5 ones: no plan loses them
    assert "error 0.000" not in printed_by(start("compare_plans.py"))  # Student's t: each does


def test_train_ddp():
    pytest.importorskip("torch", reason="torch is missing: ./dev setup")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # What torchrun says to its ranks, without a third process that loads torch.
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    ranks = [start("train_ddp.py", RANK=str(rank), **told) for rank in range(2)]
    said = [printed_by(each) for each in ranks]
    assert re.search(r"accuracy (0\.9\d+|1\.000); a rank sends \d+ bytes", said[0]) and said[1] == ""


def test_every_example_is_run_by_a_test():
    """Python here and by tests/frameworks, C and C++ by tests/install, MPI by tests/mpi."""
    tests = "".join(
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("tests/python/test_example_scripts.py", "tests/install/check.sh", "tests/mpi/meson.build",
                     "tests/frameworks/test_framework_examples.py")
    )
    names = [path.name for path in (ROOT / "examples").iterdir() if path.suffix in {".py", ".c", ".cpp"}]
    assert len(names) >= 6
    for name in names:
        assert name in tests, f"no test runs examples/{name}"
        assert name in (ROOT / "examples/README.md").read_text(encoding="utf-8")
