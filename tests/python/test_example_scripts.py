"""The scripts of examples/ run and print what they promise; every example is run by a test."""

import collections
import os
import pathlib
import re
import socket
import subprocess
import sys
import types

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

ROOT = pathlib.Path(__file__).resolve().parents[2]


def start(name, *arguments, **environment):
    path = os.pathsep.join(filter(None, (str(ROOT / "bindings/python"), str(ROOT / "bindings/grace"), os.environ.get("PYTHONPATH"))))
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


def on_two_ranks(name):
    pytest.importorskip("torch", reason="torch is missing: ./dev setup")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # The environment that torchrun sets, without a third process that loads torch.
    environment = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    ranks = [start(name, RANK=str(rank), **environment) for rank in range(2)]
    return [printed_by(rank) for rank in ranks]


def test_patch_rl():
    pytest.importorskip("torch", reason="torch is missing: ./dev setup")
    output = printed_by(start("patch_rl.py", OMP_NUM_THREADS="1"))
    rewards = [float(number) for number in re.findall(r"reward (\S+);", output)]
    assert rewards[0] < 0.2 and rewards[-1] > 0.6  # who knows nothing has 0.1
    sent, dense = map(int, re.search(r"equal weights; (\d+) bytes instead of (\d+)", output).groups())
    assert sent < 0.5 * dense


def test_patch_engines(monkeypatch):
    """Against the published shapes of the packages' classes, not the packages."""
    torch = pytest.importorskip("torch", reason="torch is missing: ./dev setup")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    fields = {
        "vllm.model_executor.model_loader.checkpoint_weight_patch": ("CheckpointWeightPatch", "name shape dtype values indices"),
        "verl.checkpoint_engine.delta_sync.encode": ("DeltaParam", "name dtype shape pos_start pos_end pos_width val_start val_end"),
    }
    for module, (kind, names) in fields.items():
        for i in range(module.count(".") + 1):
            monkeypatch.setitem(sys.modules, module.rsplit(".", i)[0], types.ModuleType(module))
        setattr(sys.modules[module], kind, collections.namedtuple(kind, names))
    import patch_engines

    from deepreduce import patch

    old = {"a": torch.randn(30, 40, dtype=torch.bfloat16), "same": torch.zeros(3, dtype=torch.bfloat16), "b": torch.randn(50).bfloat16()}
    new = {name: x.clone() for name, x in old.items()}
    new["a"].view(-1)[::7] *= 2
    new["b"][4] += 1
    data, held = patch.encode(old, new), {name: x.clone() for name, x in old.items()}
    engine = {name: x.clone() for name, x in old.items()}
    sent = list(patch_engines.for_vllm(data, held))
    assert [(tensor.name, tensor.shape, tensor.indices.dtype) for tensor in sent] == [("a", (30, 40), torch.int32), ("b", (50,), torch.int32)]
    for tensor in sent:
        engine[tensor.name].view(-1).index_copy_(0, tensor.indices.long(), tensor.values)
    assert all(torch.equal(engine[name], new[name]) and torch.equal(held[name], new[name]) for name in new)
    held, engine = ({name: x.clone() for name, x in old.items()} for _ in range(2))
    positions, values, manifest = patch_engines.for_verl(data, held)
    for entry in manifest:
        indices = positions[entry.pos_start : entry.pos_end].view(torch.int32)
        engine[entry.name].view(-1)[indices.long()] = values[entry.val_start : entry.val_end]
    assert all(torch.equal(engine[name], new[name]) and torch.equal(held[name], new[name]) for name in new)
    assert len(lines_of("patch_engines.py")) <= 60


def test_patch_trl(monkeypatch):
    """Calls it as the trainer of trl 1.16.0 calls a WeightTransferProtocol: init, then pause, send_weights, resume; destroy."""
    torch = pytest.importorskip("torch", reason="torch is missing: ./dev setup")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import patch_trl

    from deepreduce import WrongBase, patch

    torch.manual_seed(0)
    model, called, sizes = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.LayerNorm(200)).bfloat16(), [], []
    engine = {name: x.detach().clone() for name, x in model.named_parameters()}

    def send(data):
        called.append("send")
        sizes.append(len(data))
        patch.apply(engine, data)

    transfer = patch_trl.PatchTransfer(send, lambda: called.append("pause"), lambda: called.append("resume"))

    def sync():
        transfer.pause()
        transfer.send_weights((name, x.detach()) for name, x in model.named_parameters())
        transfer.resume()

    transfer.init_weight_transfer()
    sync()
    assert called == ["pause", "resume"]  # an engine has the checkpoint
    for _ in range(2):
        with torch.no_grad():
            model[0].weight.view(-1)[::50].mul_(1.01)
        sync()
        assert all(torch.equal(engine[name], x) for name, x in model.named_parameters())
    assert called[2:] == ["pause", "send", "resume"] * 2 and max(sizes) < 0.03 * 2 * 60_600
    engine["0.weight"].view(-1)[7] += 1
    with pytest.raises(WrongBase, match="0.weight"):
        model[1].bias.data += 1
        sync()
    transfer.destroy()
    assert len(lines_of("patch_trl.py")) <= 60


def lines_of(name):
    return [line for line in (ROOT / "examples" / name).read_text(encoding="utf-8").splitlines() if line.strip()]


def test_train_ddp():
    output = on_two_ranks("train_ddp.py")
    assert re.search(r"accuracy (0\.9\d+|1\.000); a rank sends \d+ bytes", output[0]) and output[1] == ""


def test_outer_loop(tmp_path):
    """Over torch.distributed, and beside it over a folder, whose workers sleep between steps: equal weights at the end."""
    workers = [start("outer_loop.py", tmp_path / "run", name, OMP_NUM_THREADS="1") for name in ("alice", "bob")]
    ranks = on_two_ranks("outer_loop.py")
    for outputs in (ranks, [printed_by(worker) for worker in workers]):
        found = [re.search(r"accuracy (\S+), weights (\S+); sent (\d+) bytes a round instead of (\d+)", output) for output in outputs]
        assert all(float(match[1]) > 0.9 and int(match[3]) < 0.01 * int(match[4]) for match in found) and found[0][2] == found[1][2]
    assert [output.count("\nround ") + output.startswith("round ") for output in ranks] == [20, 0]  # only one rank prints rounds
    late = printed_by(start("outer_loop.py", tmp_path / "run", "late", OMP_NUM_THREADS="1"))
    assert "late begins at round 20 of 20: the run is over" in late and found[0][2] in late
    alone = start("outer_loop.py", tmp_path / "run")
    assert "torchrun --nproc_per_node 2 outer_loop.py" in alone.communicate(timeout=100)[1] and alone.returncode == 1


def test_train_grace():
    """Ten classes: who knows nothing has a loss of 2.3. Equal weights on both ranks."""
    found = [re.search(r"loss (\S+), weights (\S+); sends (\d+) bytes a step instead of (\d+)", output) for output in on_two_ranks("train_grace.py")]
    assert all(float(match[1]) < 0.8 and int(match[3]) < 0.02 * int(match[4]) for match in found) and found[0][2] == found[1][2]
    assert len(lines_of("train_grace.py")) < 30


def test_train_deepreduce_keys():
    found = [re.findall(r"loss (\S+), weights (\S+); (\S+) of dense", output) for output in on_two_ranks("train_deepreduce_keys.py")]
    for first, last in found:
        assert float(last[0]) < 0.01 * float(first[0]) and 0.01 < float(last[2]) < 0.05
    assert [figures[1] for figures in found[0]] == [figures[1] for figures in found[1]]
    assert len(lines_of("train_deepreduce_keys.py")) < 30


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
