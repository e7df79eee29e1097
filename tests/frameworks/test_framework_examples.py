"""The examples of the frameworks run on two ranks or devices, end with equal replicas, and print that the loss fell."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import two_ranks

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
# Example: what it needs, whether it has processes of its own, what it prints.
CASES = {
    "train_jax.py": (["jax", "optax"], False, r"step 0: loss (?P<first>\S+)[^$]*step 199: loss (?P<last>\S+)"),
    "train_keras.py": (["tensorflow", "keras"], False, r"accuracy (?P<accuracy>\S+); a replica sends (?P<few>\d+) \D* (?P<many>\d+)"),
    "train_lightning.py": (["lightning"], True, r"loss (?P<last>\S+); a rank sends (?P<few>\d+) bytes a step instead of (?P<many>\d+)"),
    "train_accelerate.py": (
        ["accelerate"], True, r"step 0: loss (?P<first>\S+)[^$]*step 99: loss (?P<last>\S+)\na rank sends (?P<few>\d+) \D* (?P<many>\d+)"
    ),
}  # fmt: skip


def printed_by(words, **environment):
    done = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lines_of(name):
    return [line for line in (EXAMPLES / name).read_text(encoding="utf-8").splitlines() if line.strip()]


@pytest.mark.parametrize("name", CASES)
def test_example(name, tmp_path):
    modules, ranks, pattern = CASES[name]
    for module in modules:
        pytest.importorskip(module, reason=f"{module} is missing")
    if ranks:
        output = two_ranks.run(HERE / "run_example.py", EXAMPLES / name, tmp_path)[0]
    else:
        words = [sys.executable, "-B", str(HERE / "run_example.py"), str(EXAMPLES / name), str(tmp_path)]
        output = printed_by(words, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    match = re.search(pattern, output)
    assert match, output
    figures = {key: float(value) for key, value in match.groupdict().items()}
    assert figures.get("last", 0) < figures.get("first", 2) / 2 and figures.get("accuracy", 1) > 0.95
    assert figures.get("few", 0) < figures.get("many", 20) / 5
    one, two = (np.load(tmp_path / f"{i}.npy") for i in range(2))
    assert one.tobytes() == two.tobytes() and np.any(one)
    assert len(lines_of(name)) < 30


def test_train_flower():
    pytest.importorskip("flwr", reason="flwr is missing")
    output = printed_by([sys.executable, "-B", str(EXAMPLES / "train_flower.py")])
    match = re.search(r"loss (\S+) to (\S+); (\d+) bytes down instead of (\d+), (\d+) up instead of (\d+)", output)
    first, last, down, dense_down, up, dense_up = map(float, match.groups())
    assert last < first / 100 and down < dense_down / 10 and up < dense_up / 10
