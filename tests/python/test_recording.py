"""`deepreduce capture`: gradients of a live run, which goes on as without it."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")
torch = pytest.importorskip("torch", reason="torch is missing: pip install torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import deepreduce  # noqa: E402
from deepreduce import recording  # noqa: E402
from deepreduce._adapters import _autograd  # noqa: E402
from deepreduce.recording import Recorder, Settings  # noqa: E402
from deepreduce.torch import Recording, record  # noqa: E402

PACKAGE = pathlib.Path(deepreduce.__file__).resolve().parents[1]

# Writes what it trained to train.npz, with the gradients of step 3 as it saw them.
TRAINING = """
import numpy, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
table = nn.Embedding(10, 6, sparse=True)
half = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
first = torch.optim.SGD(model.parameters(), lr=0.1)
second = torch.optim.SGD([*table.parameters(), half], lr=0.1)
seen = {}
for step in range(1, 6):
    loss = (model(table(torch.randint(0, 10, (5,)))) * half.float()).pow(2).sum()
    first.zero_grad(), second.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    if step == 3:
        seen = {"grad." + name: p.grad.numpy().copy() for name, p in model.named_parameters()}
    first.step(), second.step()
numpy.savez("train.npz", **seen, **{name: p.detach().numpy() for name, p in model.named_parameters()})
"""


def train(folder, *words, status=0, **variables):
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(TRAINING)
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": str(PACKAGE), **variables})  # fmt: skip


def test_a_run_is_recorded_and_not_changed(tmp_path):
    assert train(tmp_path / "plain", "train.py").returncode == 0
    done = train(tmp_path / "recorded", "-m", "deepreduce", "capture", "--steps", "1,3-4", "--", sys.executable, "train.py",
                 RANK="1", WORLD_SIZE="2")  # fmt: skip
    assert done.returncode == 0, done.stderr
    with numpy.load(tmp_path / "plain/train.npz") as plain, numpy.load(tmp_path / "recorded/train.npz") as recorded:
        assert all(numpy.array_equal(plain[name], recorded[name]) for name in plain.files)
        seen = {name[len("grad."):]: recorded[name] for name in recorded.files if name.startswith("grad.")}
    files = sorted(path.name for path in (tmp_path / "recorded/gradients").iterdir())
    assert files == sorted(f"rank1_step00000{step}{which}.npz" for step in (1, 3, 4) for which in ("", "_optimizer1"))
    with numpy.load(tmp_path / "recorded/gradients/rank1_step000003.npz") as arrays:  # clipped, as the step saw it
        assert arrays.files == ["0.weight", "0.bias", "2.weight", "2.bias"]
        assert all(numpy.array_equal(arrays[name], seen[name]) for name in arrays.files)
    with numpy.load(tmp_path / "recorded/gradients/rank1_step000003_optimizer1.npz") as arrays:
        assert {"weight.indices", "weight.values", "weight.shape"} <= set(arrays.files)
        assert arrays["weight.values"].shape[1] == 6 and arrays["group0.1"].dtype == "V2"  # the bfloat16 has no module
    assert "fit into the limit of 1 GB" in done.stderr and "5 steps; 6 files" in done.stderr


# Ends by Ctrl-C, as a training that saves a checkpoint first.
SAVING = f"""#!{sys.executable}
import os, sys, time
try:
    print(os.getpid(), flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.5)
    open("checkpoint", "w").close()
    sys.exit(130)
"""
RUN_TOOL = "import sys; from deepreduce._native import _tool; sys.exit(_tool.run([]))"


def _start(folder, *words):
    """`words`, which run SAVING, and the process id of that."""
    program = folder / "saving"
    program.write_text(SAVING)
    program.chmod(0o755)
    started = subprocess.Popen(
        [sys.executable, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # (a shell's job in the background ignores it)
        env={**os.environ, "PYTHONPATH": str(PACKAGE), "DEEPREDUCE_TOOL": str(program)})  # fmt: skip
    return started, int(started.stdout.readline())


@pytest.mark.parametrize("words", [("-m", "deepreduce", "capture", "--", "./saving"), ("-c", RUN_TOOL)], ids=["capture", "tool"])
def test_at_ctrl_c_the_program_ends_as_it_wants_and_sigterm_reaches_it(tmp_path, words):
    started, _ = _start(tmp_path, *words)
    os.killpg(started.pid, signal.SIGINT)  # as a terminal
    assert started.wait(timeout=240) == 130 and (tmp_path / "checkpoint").exists()
    started.stdout.close()

    started, program = _start(tmp_path, *words)
    started.terminate()
    assert started.wait(timeout=240) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(program, 0)
    started.stdout.close()


def test_with_a_model_file_the_ready_times_are_recorded_too(tmp_path):
    done = train(tmp_path, "-m", "deepreduce", "capture", "--model", "model.json", "--steps", "3", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    model = json.loads((tmp_path / "model.json").read_text("utf-8"))
    assert (model["schema"], model["name"], model["ranks"], model["batch"]) == ("deepreduce-model-1", "Sequential", 1, None)
    ready = {tensor["name"]: tensor["ready_ns"] for tensor in model["tensors"]}
    assert list(ready) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert 0 < ready["2.weight"] < ready["0.weight"] <= model["backward_ns"] and model["forward_ns"] > 0 and model["rest_ns"] > 0


def optimizer_of(model):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_the_disk_is_bounded_and_the_run_goes_on(tmp_path, capsys):
    optimizer = optimizer_of(torch.nn.Linear(100, 10))
    recorder = Recorder(Settings(str(tmp_path), every=1, limit=10_000))
    for _ in range(5):
        recorder.before_step(optimizer, (), {})
    files = list(tmp_path.iterdir())
    assert [path.name for path in sorted(files)] == ["step000001.npz", "step000002.npz"]
    assert sum(path.stat().st_size for path in files) == recorder.bytes <= 10_000
    assert capsys.readouterr().err.count("would exceed the limit of 10 kB (--limit)") == 1
    (tmp_path / "file").write_text("")
    recorder = Recorder(Settings(str(tmp_path / "file"), every=1))
    recorder.before_step(optimizer), recorder.before_step(optimizer)
    assert capsys.readouterr().err.count("stopped: ") == 1


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
def test_a_step_with_a_closure_has_the_gradient_that_the_closure_computes(tmp_path, kind, by_name):
    recorder = Recorder(Settings(str(tmp_path / "g"), None, 1, 10**6))
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = kind([weight], lr=0.1)
    optimizer.register_step_pre_hook(recorder.before_step)
    first = []

    def closure():
        optimizer.zero_grad()
        loss = (weight * weight).sum()
        loss.backward()
        first.append(weight.grad.clone().numpy())
        return loss

    for _ in range(2):
        before = len(first)
        optimizer.step(closure=closure) if by_name else optimizer.step(closure)
        recorder_step = len(list((tmp_path / "g").iterdir()))
        with numpy.load(tmp_path / f"g/step{recorder_step:06d}.npz") as file:
            assert numpy.array_equal(file["group0.0"], first[before])
    assert recorder.files == 2


def test_a_gradient_that_a_fused_optimizer_unscales_is_recorded_without_the_scale(tmp_path, capsys):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    hook = optimizer.register_step_pre_hook(Recorder(Settings(str(tmp_path), steps=frozenset({1, 2, 3}))).before_step)
    expected = {}
    for step, factor in ((1, 1.0), (2, float("inf")), (3, 1.0)):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(4, 3)).square().mean() * factor).backward()
        expected[step] = model.weight.grad.numpy() / scaler.get_scale()
        if step == 3:
            scaler.unscale_(optimizer)  # a program that clips: the step finds them unscaled
        scaler.step(optimizer)
        scaler.update()
    hook.remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step000001.npz", "step000003.npz"]
    for step in (1, 3):
        with numpy.load(tmp_path / f"step00000{step}.npz") as arrays:
            assert numpy.array_equal(arrays["weight"], expected[step])
    assert "step 2: GradScaler skips it" in capsys.readouterr().err


def test_a_torch_without_the_functions_that_follow_a_backward_is_named(monkeypatch):
    assert _autograd.graph_task() == -1
    monkeypatch.delattr(torch._C, "_current_graph_task_id")
    with pytest.raises(deepreduce.Unsupported, match=r"torch \S+ has no torch\._C\._current_graph_task_id.*use torch 2\.13"):
        _autograd.graph_task()
    monkeypatch.setattr(torch.autograd.Variable, "_execution_engine", None)
    with pytest.raises(deepreduce.Unsupported, match="has no torch.autograd.Variable._execution_engine.queue_callback"):
        _autograd.after_backward(print)


def test_names_are_those_of_modules_or_groups(tmp_path):
    inner, bare = torch.nn.Linear(2, 2), torch.nn.Parameter(torch.ones(3))
    outer = torch.nn.DataParallel(torch.nn.Sequential(torch.nn.ReLU(), inner))
    optimizer = torch.optim.SGD([{"params": [bare]}, {"params": list(inner.parameters())}], lr=0.1)
    assert [name for name, _ in recording.names_of(optimizer)] == ["group0.0", "1.weight", "1.bias"]
    named = torch.optim.SGD([("mine", bare)], lr=0.1)
    assert [name for name, _ in recording.names_of(named)] == ["mine"]
    assert outer is not None


def test_a_module_whose_constructor_failed_does_not_stop_the_recording(tmp_path, capsys):
    class Failed(torch.nn.Module):
        def __init__(self):
            left.append(self)
            raise OSError("no weights")

    left, model = [], torch.nn.Linear(3, 2)
    with pytest.raises(OSError):
        Failed()
    Recorder(Settings(str(tmp_path), every=1)).before_step(optimizer_of(model))
    assert [path.name for path in tmp_path.iterdir()] == ["step000001.npz"] and "stopped" not in capsys.readouterr().err


def test_parameters_that_are_added_later_are_recorded(tmp_path):
    body, head = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
    optimizer, recorder = optimizer_of(body), Recorder(Settings(str(tmp_path), every=1))
    recorder.before_step(optimizer)
    optimizer_of(head)
    optimizer.add_param_group({"params": [head.weight]})
    recorder.before_step(optimizer)
    optimizer.param_groups[1]["params"].append(head.bias)
    recorder.before_step(optimizer)
    shapes = [[array.shape for array in numpy.load(tmp_path / f"step00000{step}.npz").values()] for step in (1, 2, 3)]
    assert shapes == [[(2, 3), (2,)], [(2, 3), (2,), (1, 2)], [(2, 3), (2,), (1, 2), (1,)]]


@pytest.mark.parametrize("wrap", ["DataParallel", "compile", "compile of DataParallel", "a compiled part"])
def test_names_are_those_of_the_model_without_wrappers(tmp_path, wrap):
    """In the gradients' files, and in the file of when they become ready, which plan joins by these names."""
    model = plain = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    expected = [name for name, _ in plain.named_parameters()]
    if "DataParallel" in wrap:
        model = torch.nn.DataParallel(model)
    if wrap.startswith("compile"):
        model = torch.compile(model, backend="eager")
    if "part" in wrap:
        model[0] = torch.compile(model[0], backend="eager")
    assert [name for name, _ in model.named_parameters()] != expected
    for parameters in (model.parameters(), model.named_parameters()):
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        assert [name for name, _ in recording.names_of(optimizer)] == expected
    recorder = record(model, Recording(tmp_path / "model.json", steps=1, skip=0))
    for _ in range(2):
        model(torch.ones(4, 3)).sum().backward()
    recorder.finish()
    found = json.loads((tmp_path / "model.json").read_text("utf-8"))
    assert [tensor["name"] for tensor in found["tensors"]] == expected and found["name"] == "Sequential"


def test_the_times_go_on_behind_a_backward_pass_that_failed(tmp_path):
    def fail(_gradient):
        raise MemoryError

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    record(model, Recording(tmp_path / "model.json", steps=5, skip=0))
    for step in range(8):
        made = model(torch.ones(4, 3))
        if step == 1:
            made.register_hook(fail)
            with pytest.raises(MemoryError):
                made.sum().backward()
        else:
            made.sum().backward()
    found = json.loads((tmp_path / "model.json").read_text("utf-8"))
    assert found["steps"] == 5 and [tensor["name"] for tensor in found["tensors"]] == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_a_forward_pass_within_a_backward_pass_ends_no_step(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    record(model, Recording(tmp_path / "model.json", steps=5, skip=0))
    for _ in range(6):
        checkpoint(model, torch.ones(4, 3), use_reentrant=False).sum().backward()
    found = json.loads((tmp_path / "model.json").read_text("utf-8"))
    assert found["steps"] == 5 and len(found["tensors"]) == 4


@pytest.mark.parametrize("words, sentence", [
    ([], "no program"),
    (["--", "/no/such/program"], "'/no/such/program': there is no such program"),
    (["--", sys.executable, "-c", "pass"], "nothing recorded"),
    (["--model", "none/model.json", "--", sys.executable, "-c", "pass"], "--model none/model.json: there is no folder"),
])
def test_misuse_says_what_to_do(words, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recording.main(words) == (1 if "nothing" in sentence else 2)
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--steps", "5-3"], ["--steps", "a"], ["--steps", "5-"], ["--every", "0"], ["--limit", "1Q"]])
def test_wrong_numbers_are_named(words, capsys):
    with pytest.raises(SystemExit) as caught:
        recording.main([*words, "--", "true"])
    assert caught.value.code == 2 and words[0] in capsys.readouterr().err


def test_a_model_alone_is_something_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    writes = "open('model.json', 'w').close()"  # as `record` does, where --every is more than the program's steps
    assert recording.main(["--model", "model.json", "--", sys.executable, "-c", writes]) == 0
    assert capsys.readouterr().err == ""


def test_a_long_list_of_steps_fits_into_the_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = f"import os; raise SystemExit(2 * (len(os.environ['{recording.ENVIRONMENT}']) > 1000))"
    assert recording.main(["--steps", "1-1000000", "--", sys.executable, "-c", f"open('x', 'w'); {program}"]) == 1
    assert (tmp_path / "x").exists()
    settings = Settings("gradients", steps=frozenset({1, 3, 4, 5, 9}))
    assert Settings.from_json(settings.to_json()) == settings


def test_a_program_that_cannot_be_started_is_named(tmp_path, capsys):
    script = tmp_path / "script"
    script.write_text("echo without a line that names its interpreter\n")
    script.chmod(0o755)
    assert recording.main(["--output", str(tmp_path), "--", str(script)]) == 2
    assert f"'{script}': cannot be started: Exec format error" in capsys.readouterr().err


@pytest.mark.parametrize("name, value", [("WORLD_SIZE", ""), ("RANK", "first")])
def test_a_rank_that_is_no_number_does_not_stop_the_run(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(name, value)
    model = torch.nn.Linear(3, 2)
    model(torch.ones(4, 3)).sum().backward()
    Recorder(Settings(str(tmp_path), every=1)).before_step(optimizer_of(model))
    expected = "step000001.npz" if name == "WORLD_SIZE" else "rank0_step000001.npz"
    assert [path.name for path in tmp_path.iterdir()] == [expected]


def test_the_status_is_the_programs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recording.main(["--", sys.executable, "-c", "raise SystemExit(7)"]) == 7
