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

SUITES = {"outer": (2, 200), "outer3": (3, 100), "outer4": (4, 100)}  # ranks, seconds
test_torch.SUITES.update(SUITES)


@pytest.mark.parametrize("suite, check", [(suite, check) for suite in SUITES for check in test_torch.CHECKS[suite]])
def test_on_every_rank(suite, check):
    test_torch.test_on_every_rank(suite, check)


@pytest.mark.parametrize("suite", SUITES)
def test_every_rank_ends(suite):
    test_torch.test_every_rank_ends(suite)
