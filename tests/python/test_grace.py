"""What deepreduce.grace promises on ranks: grace_checks*.py by three processes over gloo, each check a test; and scripts
written for GRACE and DeepReduce, which run unchanged."""

import functools
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")
if not importlib.util.find_spec("torch"):
    pytest.skip("torch is missing: pip install torch", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip("torch.distributed with gloo is tested on Linux", allow_module_level=True)

import grace_checks  # noqa: E402, F401
import grace_checks_refused  # noqa: E402, F401
import torch_ranks  # noqa: E402
from test_torch import free_port  # noqa: E402

HERE = pathlib.Path(__file__).parent
PACKAGES = os.pathsep.join(str(HERE.parents[1] / "bindings" / name) for name in ("python", "grace"))
RANKS, SECONDS = 3, 200
CHECKS = torch_ranks.SUITES["grace"]


def on_ranks(commands):
    """Runs the commands beside one another; (what they printed, whether all ended well)."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": PACKAGES}
    processes = [
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=HERE)
        for words in commands
    ]
    try:
        outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    return outputs, all(process.returncode == 0 for process in processes)


@functools.cache
def ran(folder):
    """(reports of the ranks: {check: why it was skipped}, what they printed)"""
    store = f"file://{folder}/store"
    code = "import grace_checks, grace_checks_refused, torch_ranks; torch_ranks.main()"
    reports = [pathlib.Path(folder, f"report{rank}") for rank in range(RANKS)]
    words = [[sys.executable, "-c", code, str(rank), str(RANKS), store, str(reports[rank]), "grace"] for rank in range(RANKS)]
    outputs, _ = on_ranks(words)
    lines = [report.read_text().splitlines() if report.exists() else [] for report in reports]
    return [{result["check"]: result for result in map(json.loads, rank)} for rank in lines], "\n----\n".join(outputs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("grace"))


@pytest.mark.parametrize("check", CHECKS)
def test_on_every_rank(check, folder):
    reports, printed = ran(folder)
    for rank, report in enumerate(reports):
        assert check in report, f"rank {rank} did not come to it\n{printed}"
        assert "failed" not in report[check], f"rank {rank}\n{report[check]['failed']}\n{printed}"
    if reports[0][check]["skipped"]:
        pytest.skip(reports[0][check]["skipped"])


# Each pair has a group of its own, in which rank 1 is gone from the second step on.
GONE = '''
import datetime, json, os, sys, time
import torch
import torch.distributed as dist
import deepreduce
from deepreduce import grace
from deepreduce.torch import MissingRank

PLAN = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw"
PAIRS = [("topk", "residual", "allgather"), ("topk", "residual", "broadcast"), ("topk", "residual", "alltoall"),
         ("randomk", "residual", "allreduce"), ("powersgd", "powersgd", "allreduce"), ("plan", "none", "allgather")]
rank = int(sys.argv[1])
dist.init_process_group("gloo", sys.argv[2], rank=rank, world_size=3, timeout=datetime.timedelta(seconds=20))
groups = [dist.new_group(timeout=datetime.timedelta(seconds=20)) for _ in PAIRS]


def kept(grc):
    """What feedback has of the tensor; it has all of a tensor that nobody received."""
    state = getattr(grc.compressor, "_states", {}).get("w")
    return (grc.memory.residuals["w"] if state is None else torch.tensor(state.residual)).clone().view(40, 50)


torch.manual_seed(rank)
first, second = torch.randn(40, 50), torch.randn(40, 50)
made = []
for (compressor, memory, communicator), group in zip(PAIRS, groups):
    params = {"compressor": compressor, "memory": memory, "communicator": communicator, "compress_ratio": 0.1, "plan": PLAN, "group": group}
    made.append(grace.grace_from_params(params))
    made[-1].step(first, "w")
dist.barrier()
if rank == 1:
    os._exit(0)
for pair, grc in zip(PAIRS, made):
    before, begin = kept(grc), time.monotonic()
    try:
        grc.step(second, "w")
    except MissingRank as error:
        off = float((kept(grc) - before - second).abs().max())
        print(json.dumps([pair, list(error.ranks), "w: rank 1 does not answer" in str(error), time.monotonic() - begin < 15, off]), flush=True)
time.sleep(3 if rank == 0 else 0)  # it serves the store
os._exit(0)
'''


def test_ranks_that_are_gone_are_named_and_residuals_keep_what_was_not_received(tmp_path):
    script = tmp_path / "gone.py"
    script.write_text(GONE)
    store = f"tcp://127.0.0.1:{free_port()}"
    outputs, well = on_ranks([[sys.executable, str(script), str(rank), store] for rank in range(3)])
    assert well, outputs
    for rank in (0, 2):
        found = [json.loads(line) for line in outputs[rank].splitlines() if line.startswith("[[")]
        assert len(found) == 6, outputs[rank]
        for pair, ranks, named, soon, off in found:
            assert ranks == [1] and named and soon and off < 1e-5, (rank, pair, ranks, named, soon, off)


# Written from the interfaces that GRACE and DeepReduce document: what a script of theirs imports and calls. It trains once
# for each --grace_config, to start torch once.
SCRIPT = '''
import argparse, json, sys
import torch
import torch.distributed as dist
from grace_dl.dist.compressor.deepreduce import deepreduce_from_params
from grace_dl.dist.helper import tensor_bits, timer, volume

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int)
parser.add_argument("--world_size", type=int)
parser.add_argument("--store")
parser.add_argument("--grace_config", action="append")
args = parser.parse_args()
dist.init_process_group("gloo", args.store, rank=args.rank, world_size=args.world_size)
for config in args.grace_config:
    params = json.loads(config.replace("'", '"').replace("True", "true"))
    params["world_size"] = args.world_size
    grc = deepreduce_from_params(params)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(50, 100), torch.nn.ReLU(), torch.nn.Linear(100, 1))
    torch.manual_seed(args.rank + 1)
    x = torch.randn(64, 50)
    y = x[:, :5].sum(1, keepdim=True)
    for step in range(30):
        model.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        if step == 0:
            print("config", config)
            print("first", loss.item())
        for name, parameter in model.named_parameters():
            parameter.grad.copy_(grc.step(parameter.grad.data, name))
            parameter.data -= 0.05 * parameter.grad
    print("last", loss.item())
    print("weights", sum(each.double().sum().item() for each in model.parameters()))
    print("ratio", volume["compress"] / volume["nocompress"], timer["comm"] > 0, tensor_bits([torch.zeros(3)]), flush=True)
    volume["compress"] = volume["nocompress"] = 0
dist.barrier()
dist.destroy_process_group()
'''

CONFIGS = (
    "{'compressor': 'topk', 'memory': 'residual', 'communicator': 'allgather', 'compress_ratio': 0.05}",
    "{'compressor': 'topk', 'memory': 'residual', 'communicator': 'allgather', 'compress_ratio': 0.05, 'deepreduce':'index', 'index':'bloom', 'micro-benchmark':True}",
    "{'compressor': 'topk', 'memory': 'residual', 'communicator': 'allgather', 'compress_ratio': 0.05, 'deepreduce':'both'}",
    "{'compressor': 'threshold', 'memory': 'none', 'communicator': 'allgather', 'threshold': 0.0, 'deepreduce':'value', 'value':'polyfit'}",
    "{'compressor': 'threshold', 'memory': 'none', 'communicator': 'allgather', 'threshold': 0.0, 'deepreduce':'value', 'value':'qsgd', 'buckets_num':128, 'quantum_num': 32}",
    "{'compressor': 'threshold', 'memory': 'residual', 'communicator': 'allgather', 'threshold': 0.01, 'deepreduce':'both', 'index':'bloom', 'policy':'p0', 'fpr':0.01, 'value':'qsgd'}",
    "{'compressor': 'threshold', 'memory': 'none', 'communicator': 'allgather', 'threshold': 0.0, 'deepreduce':'both', 'index':'bloom', 'policy':'random', 'fpr':0.01, 'value':'qsgd'}",
    "{'compressor': 'SKCompressCPU','num_quantiles':128, 'sparsifier': 'threshold', 'threshold': 0.0, 'memory': 'none', 'communicator': 'allgather'}",
)


@functools.cache
def trained(folder):
    """What the ranks printed."""
    script = pathlib.Path(folder, "train.py")
    script.write_text(SCRIPT)
    words = [sys.executable, "-m", "deepreduce.grace.shim", str(script), "--world_size", "2", "--store", f"file://{folder}/trained"]
    words += [word for config in CONFIGS for word in ("--grace_config", config)]
    return on_ranks([[*words, "--rank", str(rank)] for rank in range(2)])


@pytest.mark.parametrize("config", CONFIGS)
def test_published_usage_runs_unchanged_under_the_shim(config, folder):
    outputs, well = trained(folder)
    assert well, "\n----\n".join(outputs)
    parts = [output.partition(f"config {config}\n")[2].partition("config ")[0] for output in outputs]
    found = [{line.split()[0]: line.split()[1:] for line in part.splitlines()} for part in parts]
    assert found[0]["weights"] == found[1]["weights"]
    for figures in found:
        assert float(figures["last"][0]) < 0.5 * float(figures["first"][0]), parts
        assert 0 < float(figures["ratio"][0]) < 1.1 and figures["ratio"][1:] == ["True", "96"]
    assert ("micro-benchmark" in config) == bool(re.search(r"relative volume: indices 0\.\d+, values 0\.\d+", parts[0]))


def test_a_script_that_does_not_train_is_named(tmp_path):
    (output,), well = on_ranks([[sys.executable, "-m", "deepreduce.grace.shim"]])
    assert not well and "usage" in output
