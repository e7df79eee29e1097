"""What deepreduce.torch promises, on real ranks: each suite of torch_ranks.py is run once, by processes over gloo, and
each of its checks is a test here, on every rank."""

import functools
import importlib.util
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")
if not importlib.util.find_spec("torch"):
    pytest.skip("torch is missing: pip install torch", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip("torch.distributed with gloo is tested on Linux", allow_module_level=True)

import torch_ranks  # noqa: E402

HERE = pathlib.Path(__file__).parent
CHECKS = torch_ranks.load_checks()  # {suite: {check: function}}
# Ranks of a suite, and seconds that it may take where other tests run beside it.
SUITES = {"two": (2, 200), "numbers": (2, 150), "control": (2, 100), "four": (4, 120)}
# Ranks that are gone from some check on, when they are stopped or killed.
LOST = {"four": {rank: check for check, rank in torch_ranks.GONE.items()}}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@functools.cache
def ran(suite):
    """(reports of the ranks: {check: why it was skipped}, what they printed, ranks that did not end)"""
    (ranks, seconds), gone = SUITES[suite], LOST.get(suite, {})
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        store = f"tcp://127.0.0.1:{port}"
        reports = [pathlib.Path(folder, f"report{rank}") for rank in range(ranks)]
        logs = [open(pathlib.Path(folder, f"log{rank}"), "w+b") for rank in range(ranks)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONFAULTHANDLER": "1"}
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", "import torch_ranks; torch_ranks.main()", str(rank), str(ranks), store, reports[rank], suite],
                stdout=logs[rank], stderr=subprocess.STDOUT, env=environment, cwd=HERE,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        try:
            end = time.monotonic() + seconds
            for rank, process in enumerate(processes):
                if rank not in gone:
                    process.wait(max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            pass
        finally:
            late = [rank for rank, process in enumerate(processes) if process.poll() is None and rank not in gone]
            for process in processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                process.wait()
        outputs = []
        for process, log in zip(processes, logs):
            log.seek(0)
            outputs.append(f"{log.read().decode(errors='replace')[-4000:]}\n(exit code {process.returncode})")
            log.close()
        lines = [report.read_text().splitlines() if report.exists() else [] for report in reports]
        return [{result["check"]: result for result in map(json.loads, rank)} for rank in lines], "\n----\n".join(outputs), late


@pytest.mark.parametrize("suite, check", [(suite, check) for suite in SUITES for check in CHECKS[suite]])
def test_on_every_rank(suite, check):
    reports, printed, _ = ran(suite)
    order = list(CHECKS[suite])
    for rank, report in enumerate(reports):
        lost = LOST.get(suite, {}).get(rank)
        if lost and order.index(check) >= order.index(lost):
            assert check not in report
            continue
        assert check in report, f"rank {rank} did not come to it\n{printed}"
        assert "failed" not in report[check], f"rank {rank}\n{report[check]['failed']}\n{printed}"
    reason = reports[-1][check]["skipped"]
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize("suite", SUITES)
def test_every_rank_ends(suite):
    """Ranks that are left end, too, when others are gone: gloo does not hold them."""
    _, printed, late = ran(suite)
    assert not late, f"ranks {late} did not end within {SUITES[suite][1]} s\n{printed}"


def run_alone(code):
    """In an interpreter of its own. Returns what it printed."""
    path = os.pathsep.join(str(HERE.parents[1] / "bindings" / name) for name in ("python", "grace"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_does_not_need_torch():
    run_alone("import deepreduce, sys; assert 'torch' not in sys.modules; assert not hasattr(deepreduce, 'torch')")


@pytest.mark.parametrize("module", ["deepreduce.torch", "deepreduce.grace"])
def test_a_destroyed_group_ends_its_threads(module):
    """Torch alone keeps them, once an optimizer has stepped: at the end of the interpreter they may abort the process."""
    code = f"""
import weakref, torch, torch.distributed as dist, {module}
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group = weakref.ref(dist.group.WORLD)
torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1).step()
dist.destroy_process_group()
assert group() is None
"""
    run_alone(code)


@pytest.mark.parametrize("plan", ["recommended", "index=all value=uniform_quant(bits=4) feedback=residual exchange=owner"])
def test_a_group_of_one_rank_trains_by_plans_of_many(plan):
    code = f"""
import torch, torch.distributed as dist, deepreduce.torch
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Linear(100, 50)
ddp = torch.nn.parallel.DistributedDataParallel(model)
deepreduce.torch.DDPHook({plan!r}).register(ddp)
x, optimizer = torch.randn(64, 100), torch.optim.SGD(model.parameters(), lr=0.1)
y = x @ torch.randn(100, 50) / 10
losses = []
for _ in range(60):
    optimizer.zero_grad()
    loss = (ddp(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
dist.destroy_process_group()
assert losses[-1] < 0.9 * losses[0], losses
"""
    run_alone(code)


def test_the_end_waits_for_a_thread_that_still_has_a_tensor_of_a_collective():
    """As gloo has for a moment. A hook keeps its group, so its threads live until the interpreter ends."""
    code = """
import atexit, threading, time, torch, torch.distributed as dist
held = []
atexit.register(lambda: print(len(held)))  # (after those of modules that are imported below)
from deepreduce.torch import _engine
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
engine, tensor = _engine.Engine(None, 1), torch.ones(3)
engine.issue("a collective", lambda group, timeout, *given: held.extend(given), tensor)
assert held[0].data_ptr() == tensor.data_ptr()
threading.Thread(target=lambda: (time.sleep(0.3), held.clear()), daemon=True).start()
dist.destroy_process_group()
"""
    assert run_alone(code) == "0\n"
