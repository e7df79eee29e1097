"""What deepreduce.outer promises to the ranks of a process group: each check of torch_checks_outer.py, on every rank."""

import importlib.util
import sys

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")
if not importlib.util.find_spec("torch"):
    pytest.skip("torch is missing: pip install torch", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip("torch.distributed with gloo is tested on Linux", allow_module_level=True)

import test_torch  # noqa: E402

test_torch.SUITES["outer"] = (2, 200)


@pytest.mark.parametrize("check", test_torch.CHECKS["outer"])
def test_on_every_rank(check):
    test_torch.test_on_every_rank("outer", check)


def test_every_rank_ends():
    test_torch.test_every_rank_ends("outer")
