"""datasets/: the bundled gradients agree with the manifest, and capture.py records what it promises."""

import hashlib
import json
import math
import os
import re
import sys
from pathlib import Path

import pytest

DATASETS = Path(__file__).resolve().parents[2] / "datasets"
RESNET20_PARAMETERS = 269_722  # 0.27M in table 6 of He et al. 2016; summed by hand below
PARAMETERS = {"resnet20_digits": RESNET20_PARAMETERS, "neumf_names": 376_561, "lstm_docs": 485_328, "transformer_docs": 610_176}
FILES = json.loads((DATASETS / "manifest.json").read_text("utf-8"))["captures"]
CAPTURES = [entry for entry in FILES if entry["file"].startswith("gradients/")]
ACCUMULATORS = [entry for entry in FILES if entry["file"].startswith("accumulators/")]

RESNET20 = [entry for entry in CAPTURES if entry["model"] == "resnet20_digits"]

for_every_file = pytest.mark.parametrize("entry", FILES, ids=lambda entry: entry["file"])
for_every_capture = pytest.mark.parametrize("entry", CAPTURES, ids=lambda entry: entry["file"])
for_every_accumulator = pytest.mark.parametrize("entry", ACCUMULATORS, ids=lambda entry: entry["file"])


@pytest.fixture
def np():
    return pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")


@pytest.fixture
def torch(np):
    return pytest.importorskip("torch", reason="torch is missing: pip install torch")


@pytest.fixture
def capture(torch, monkeypatch):
    """The module datasets/capture.py."""
    monkeypatch.syspath_prepend(str(DATASETS))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    import capture

    return capture


@pytest.fixture
def model(torch):
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.PReLU(), torch.nn.Linear(4, 2))


def backward(torch, model):
    model.zero_grad()
    model(torch.randn(5, 3)).square().mean().backward()


# ---- the bundled files


def test_manifest_lists_every_bundled_file_once():
    listed = [entry["file"] for entry in FILES]
    folders = ("gradients", "accumulators")  # weights/ has a manifest of its own
    assert listed == sorted(path.relative_to(DATASETS).as_posix() for folder in folders for path in DATASETS.glob(f"{folder}/*.npz"))
    steps = {model: [entry["step"] for entry in CAPTURES if entry["model"] == model] for model in PARAMETERS}
    assert steps == {"resnet20_digits": [10, 150, 300], "neumf_names": [20, 600], "lstm_docs": [20, 1500], "transformer_docs": []}
    assert len(CAPTURES) == 7 and len(CAPTURES) + len(ACCUMULATORS) == len(FILES)


@pytest.mark.parametrize("entries", [CAPTURES, ACCUMULATORS], ids=["gradients", "accumulators"])
def test_bundled_files_stay_small(entries):
    assert sum((DATASETS / entry["file"]).stat().st_size for entry in entries) < 12_000_000


@for_every_file
def test_checksum_matches(entry):
    assert hashlib.sha256((DATASETS / entry["file"]).read_bytes()).hexdigest() == entry["sha256"]


@for_every_file
def test_arrays_match_the_manifest(entry, np):
    with np.load(DATASETS / entry["file"], allow_pickle=False) as arrays:
        assert [{"name": name, "shape": list(arrays[name].shape)} for name in arrays.files] == entry["tensors"]
        for name in arrays.files:
            assert arrays[name].dtype == np.dtype("<f4"), name
            assert np.isfinite(arrays[name]).all() and arrays[name].any(), name
        assert sum(arrays[name].size for name in arrays.files) == PARAMETERS[entry["model"]] == entry["parameters"]


@pytest.mark.parametrize("entry", RESNET20, ids=lambda entry: entry["file"])
def test_holds_the_convolution_of_36864_elements(entry):
    assert 36_864 in [math.prod(tensor["shape"]) for tensor in entry["tensors"]]


@for_every_capture
def test_embeddings_have_rows_that_no_batch_touched(entry, np):
    with np.load(DATASETS / entry["file"], allow_pickle=False) as arrays:
        tables = [arrays[n] for n in arrays.files if n.startswith(("embedding", "user_", "item_"))]
        assert len(tables) == {"resnet20_digits": 0, "neumf_names": 4, "lstm_docs": 1}[entry["model"]]
        for table in tables:
            assert (table == 0).all(axis=1).any()
        if entry["model"] == "neumf_names":
            zeros = 1 - sum(np.count_nonzero(arrays[n]) for n in arrays.files) / entry["parameters"]
            assert round(zeros, 4) == entry["metrics"]["zeros"] and 0.35 < zeros < 0.45  # "NCF: 40 % zeros"


@pytest.mark.parametrize("model, metric, minimum", [("resnet20_digits", "test_accuracy", 0.95), ("neumf_names", "hit_rate", 0.85),
                                                  ("lstm_docs", "test_accuracy", 0.25)])
def test_the_model_had_learned(model, metric, minimum):
    entries = [entry for entry in CAPTURES if entry["model"] == model]
    assert entries[-1]["metrics"][metric] > minimum
    losses = [entry["metrics"]["loss"] for entry in entries]
    assert losses == sorted(losses, reverse=True)


# ---- accumulators


@pytest.fixture
def accumulate(capture, monkeypatch):
    """The module datasets/accumulate.py."""
    monkeypatch.syspath_prepend(str(DATASETS.parent))
    monkeypatch.setattr(sys, "path", list(sys.path))  # it adds to it
    threads, deterministic = capture.torch.get_num_threads(), capture.torch.are_deterministic_algorithms_enabled()
    import accumulate

    yield accumulate
    capture.torch.set_num_threads(threads)
    capture.torch.use_deterministic_algorithms(deterministic)


@pytest.fixture
def dr(np):
    """The package with its library."""
    import deepreduce

    try:
        deepreduce.codecs()
    except deepreduce.LibraryError as error:
        if os.environ.get("DEEPREDUCE_LIBRARY"):
            raise
        pytest.skip(str(error))
    return deepreduce


@for_every_accumulator
def test_accumulators_are_named_for_what_they_are(entry):
    name = f"{entry['model']}_{entry['memory']}_top{100 * entry['ratio']:g}_step{entry['step']:04d}.npz"
    assert entry["file"] == "accumulators/" + name


@for_every_accumulator
def test_accumulators_have_8_significant_bits(entry, np):
    with np.load(DATASETS / entry["file"], allow_pickle=False) as arrays:
        for name in arrays.files:
            assert not (arrays[name].view(np.uint32) & 0xFFFF).any(), name


def test_bundled_accumulators_are_those_of_the_recipes(accumulate):
    made = {(m, run.memory, run.ratio, step) for m, runs in accumulate.RECIPES.items() for run in runs for step in run.bundled}
    assert {(e["model"], e["memory"], e["ratio"], e["step"]) for e in ACCUMULATORS} == made


def test_accumulators_come_again(accumulate, np, torch):
    """ResNet-20's early one, of scikit-learn's digits. A CPU with other instructions sums in another order: after 20 steps elements differ, their magnitudes do not."""
    pytest.importorskip("sklearn", reason="scikit-learn is missing: pip install scikit-learn")
    run = accumulate.Run("resnet20", "residual", 0.01, (20,), (), 450)
    step = next(step for step in accumulate.train(run, 1) if step.number == 20)
    with np.load(DATASETS / "accumulators/resnet20_digits_residual_top1_step0020.npz") as arrays:
        bundled = np.concatenate([arrays[name].ravel() for name in arrays.files])
    found, expected = (np.quantile(np.abs(x), (0.5, 0.9, 0.99)) for x in (step.seen, bundled))
    assert found == pytest.approx(expected, rel=0.08)  # five steps fewer: 13 % of the first; another ratio: 15 % and more. (The largest thousandth differs by 11 % between CPUs.)


def test_residual_is_what_the_library_keeps(accumulate, np, dr):
    """Bit for bit, and so is what is sent."""
    run = accumulate.Run("lstm", "residual", 0.01, (4,), ())
    plan = dr.Plan("sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw")
    state = None
    for step in accumulate.train(run, 2):
        state = state or dr.State(step.gradient, plan)
        rest = state.residual.copy() if step.number > 1 else np.zeros_like(step.gradient)
        assert (rest + step.gradient).tobytes() == step.seen.tobytes()
        sent = dr.decode(dr.encode(step.gradient, plan, state=state))
        assert np.array_equal(np.flatnonzero(sent), step.sent)
        assert np.array_equal(sent[step.sent], step.seen[step.sent])
        if step.number == 4:
            break


def test_momentum_corrected_memory_is_the_papers(accumulate, np):
    """Lin et al. 2018, algorithm 1 with its momentum factor masking, in f64 on numbers that f32 holds."""
    random = np.random.default_rng(5)
    memory = accumulate.Momentum(40)
    u, v = np.zeros(40), np.zeros(40)
    for _ in range(6):
        g = random.integers(-50, 50, 40).astype(np.float32)
        seen = memory.see(g)
        u = 0.9 * u + g
        v = v + u
        assert np.allclose(seen, v, rtol=1e-5, atol=1e-4)
        sent = accumulate.top_r(seen, 0.1)
        memory.clear(sent)
        u[sent] = v[sent] = 0


def test_top_r_is_the_librarys(accumulate, np, dr):
    random = np.random.default_rng(6)
    for x in (random.standard_normal(5000), random.integers(-3, 4, 5000), np.r_[np.zeros(4990), np.ones(10)], np.zeros(50)):
        x = x.astype(np.float32)
        for ratio in (0.001, 0.01, 0.3):
            selected = dr.decode(dr.encode(x, f"sparsify=topr(ratio={ratio}) index=golomb value=raw"))
            assert np.array_equal(np.flatnonzero(selected), accumulate.top_r(x, ratio))


@pytest.mark.parametrize("value", [1.0, 1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-9), 2.0**-130, 3.3e38 / 2, 0.0])
def test_rounding_is_that_of_bf16(accumulate, np, torch, value):
    x = np.array([value], np.float32)
    assert accumulate.rounded(x) == torch.tensor(x).to(torch.bfloat16).float().numpy()


# ---- Capture


def test_records_grad_at_the_chosen_steps_and_no_others(np, torch, capture, model, tmp_path):
    recorder = capture.Capture(model, steps=[2, 4], directory=tmp_path / "out", name="tiny", seed=1)
    expected = {}
    for step in range(1, 6):
        backward(torch, model)
        expected[step] = {name: p.grad.clone().numpy() for name, p in model.named_parameters()}
        assert (recorder.record(step, loss=step / 10) is not None) == (step in (2, 4))

    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "manifest.json",
        "tiny_step0002.npz",
        "tiny_step0004.npz",
    ]
    entries = json.loads((tmp_path / "out/manifest.json").read_text("utf-8"))["captures"]
    assert [entry["step"] for entry in entries] == [2, 4]
    for entry in entries:
        path = tmp_path / "out" / entry["file"]
        assert entry["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert (entry["parameters"], entry["metrics"]) == (27, {"loss": entry["step"] / 10})
        with np.load(path) as arrays:
            assert arrays.files == ["0.weight", "0.bias", "1.weight", "2.weight", "2.bias"]
            for name, grad in expected[entry["step"]].items():
                assert arrays[name].shape == grad.shape and arrays[name].tobytes() == grad.tobytes(), name


def test_records_unused_sparse_scalar_and_half_parameters(np, torch, capture):
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = torch.nn.Parameter(torch.ones(3))
            self.table = torch.nn.Embedding(5, 2, sparse=True)
            self.scale = torch.nn.Parameter(torch.tensor(2.0))
            self.low = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))

    odd = Odd()
    (odd.table(torch.tensor([1, 1, 4])).sum() * odd.scale.detach() + 3 * odd.scale + odd.low.sum()).backward()
    arrays = capture.gradients(odd)
    assert list(arrays) == ["scale", "low", "table.weight"]  # a module's own parameters come before its children's
    assert arrays["table.weight"].tolist() == [[0, 0], [4, 4], [0, 0], [0, 0], [2, 2]]
    assert arrays["scale"].shape == () and arrays["scale"] == 3
    assert arrays["low"].dtype == np.float32


def test_refuses_a_model_without_gradients(capture, model, tmp_path):
    with pytest.raises(RuntimeError, match="step 7: no parameter has a gradient"):
        capture.Capture(model, steps=[7], directory=tmp_path).record(7)


def test_recording_again_gives_the_same_bytes_and_replaces_the_entry(torch, capture, model, tmp_path):
    backward(torch, model)
    recorder = capture.Capture(model, steps=[1, 2], directory=tmp_path)
    recorder.record(2)
    first, manifest = recorder.record(1).read_bytes(), recorder.manifest.read_bytes()
    assert recorder.record(1).read_bytes() == first
    assert recorder.manifest.read_bytes() == manifest


def test_transposed_gradient_is_written_in_c_order(np, torch, capture, tmp_path):
    model = torch.nn.Linear(2, 3, bias=False)
    model.weight.grad = torch.arange(6.0).reshape(2, 3).t()
    capture.write_npz(tmp_path / "a.npz", capture.gradients(model))
    assert b"'fortran_order': False" in (tmp_path / "a.npz").read_bytes()
    with np.load(tmp_path / "a.npz") as arrays:
        assert arrays["weight"].tolist() == [[0, 3], [1, 4], [2, 5]]


def readme_examples():
    return re.findall(r"```python\n(.*?)```", (DATASETS / "README.md").read_text("utf-8"), re.DOTALL)


def test_example_of_weights_in_the_readme_runs(monkeypatch):
    pytest.importorskip("torch", reason="torch is missing: pip install torch")
    monkeypatch.syspath_prepend(str(DATASETS.parent))
    (example,) = [example_ for example_ in readme_examples() if "bench.patch" in example_]
    names = {}
    exec(example, names)
    assert names["old"].size == names["new"].size == names["fp8"].size > 0


def test_example_in_the_readme_runs(torch, capture, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = [example_ for example_ in readme_examples() if "Capture(" in example_]
    names = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "loss_function": torch.nn.functional.mse_loss,
        "batches": [(torch.randn(5, 3), torch.randn(5, 2)) for _ in range(500)],
    }
    exec(example, names)
    written = sorted(path.name for path in Path("my_gradients").iterdir())
    assert written == ["manifest.json", "mymodel_step0010.npz", "mymodel_step0500.npz"]


# ---- ResNet-20


def test_resnet20_is_the_network_of_the_paper(torch, capture):
    model = capture.ResNet20()
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) == 19 and all(m.bias is None for m in convolutions)
    # 19 kernels of 3x3 (so a 1x1 projection in a shortcut would show), 19 normalisations, one linear layer
    kernels = 9 * (3 * 16 + 6 * 16 * 16 + 16 * 32 + 5 * 32 * 32 + 32 * 64 + 5 * 64 * 64)
    assert all(m.kernel_size == (3, 3) for m in convolutions)
    assert RESNET20_PARAMETERS == kernels + 2 * (7 * 16 + 6 * 32 + 6 * 64) + 64 * 10 + 10
    assert sum(p.numel() for p in model.parameters()) == RESNET20_PARAMETERS
    assert [list(p.shape) for p in model.parameters()] == [tensor["shape"] for tensor in RESNET20[0]["tensors"]]
    assert [name for name, _ in model.named_parameters()] == [tensor["name"] for tensor in RESNET20[0]["tensors"]]


# ---- the recommender and the language model


def same_parameters(model, entries):
    shapes = [{"name": name, "shape": list(p.shape)} for name, p in model.named_parameters()]
    return all(entry["tensors"] == shapes for entry in entries)


def test_neumf_and_lstm_are_those_of_the_manifest(capture):
    import recipe_lstm
    import recipe_ncf

    assert same_parameters(recipe_ncf.NeuMF(4711, 3079), [e for e in CAPTURES if e["model"] == "neumf_names"])
    assert same_parameters(recipe_lstm.WordLSTM(), [e for e in CAPTURES if e["model"] == "lstm_docs"])
    assert PARAMETERS["neumf_names"] == (4711 + 3079) * (16 + 32) + (64 * 32 + 32) + (32 * 16 + 16) + (32 + 1)
    lstm = 4 * 128 * (48 + 128 + 2)  # four gates, inputs, units and two biases (as cuDNN has them)
    assert PARAMETERS["lstm_docs"] == 4000 * 48 + lstm + 128 * 48 + 48 + 48 * 4000 + 4000


@pytest.mark.parametrize("recipe, first, second", [("neumf-names", "neumf_names_step0020.npz", "neumf_names_step0021.npz"),
                                                   ("lstm-docs", "lstm_docs_step0020.npz", "lstm_docs_step0021.npz")])
def test_recipes_repeat_the_early_capture(np, torch, capture, tmp_path, recipe, first, second):
    if not str(torch.__version__).startswith("2.13.0"):
        pytest.skip("the text and the table of the recipes are those of torch 2.13.0")
    train, _ = capture.RECIPES[recipe]
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    try:
        train(tmp_path / "gradients", 21, 1)
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
    assert (tmp_path / "gradients" / second).exists()
    with np.load(tmp_path / "gradients" / first) as made, np.load(DATASETS / "gradients" / first) as bundled:
        assert made.files == bundled.files
        for name in made.files:
            scale = np.abs(bundled[name]).max()
            assert np.abs(made[name] - bundled[name]).max() < 1e-3 * scale, name  # another CPU sums in another order


@pytest.mark.parametrize("stride, channels", [(1, 4), (2, 8)])
def test_shortcut_strides_and_pads_with_zero_channels(torch, capture, stride, channels):
    block = capture.Block(4, channels, stride).eval()
    torch.nn.init.zeros_(block.bn2.weight)  # leaves the shortcut alone
    x = torch.rand(2, 4, 6, 6)
    y = block(x)
    assert torch.equal(y[:, :4], x[:, :, ::stride, ::stride])
    assert not y[:, 4:].any()
