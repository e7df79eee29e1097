"""bench/paper: the federation against plain averaging and bytes counted by hand; bench/train's sets leave out what is missing."""

import json
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is missing")

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "bindings" / "python"), str(ROOT / "bench" / "results")]
import deepreduce  # noqa: E402
from bench.paper import __main__ as paper_main, client_text, fedavg, volumes  # noqa: E402
from bench.paper.fedavg import Federation, Sender, Server, Setup, Wire  # noqa: E402
from bench.train import __main__ as train_main, train_plan  # noqa: E402
from bench.train.grace_methods import KNOWN, codec_plan  # noqa: E402
from bench.train.task import settings  # noqa: E402
import paper_ncf  # noqa: E402
from tool_runs import needs_tool  # noqa: E402

WORDS, WIDTH = 7, 4
TOP = "sparsify=topr(ratio=0.25) index=raw value=raw"
ONE_STEP = Setup(rounds=1, clients=3, epochs=1, rate=0.5, batch=100)


def tiny():
    return torch.nn.Sequential(torch.nn.Embedding(WORDS, WIDTH), torch.nn.Linear(WIDTH, WORDS))


def federation():
    """Three clients of 2, 3 and 5 rows."""
    draw = torch.Generator().manual_seed(5)
    rows = [torch.randint(WORDS, (n, 6), generator=draw) for n in (2, 3, 5)]
    return Federation(rows, torch.cat(rows), tiny)


def first_values(seed):
    torch.manual_seed(seed)
    return [p.detach().clone() for p in tiny().parameters()]


def last_model(monkeypatch, *arguments):
    """The server's model after a run."""
    servers = []

    class Recorded(Server):
        def __init__(self, *given):
            super().__init__(*given)
            servers.append(self)

    monkeypatch.setattr(fedavg, "Server", Recorded)
    row = fedavg.run(*arguments)
    return servers[0].x, row


def test_one_full_batch_without_compression_is_a_step_on_all_data(monkeypatch):
    """Then the mean of the clients' models is SGD's on the pooled loss: no averaging in the oracle."""
    made, _ = last_model(monkeypatch, federation(), ONE_STEP, Wire("plain"), 3)
    torch.manual_seed(3)
    model = tiny()
    rows = torch.cat(federation().clients)
    loss = torch.nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    for value, parameter, gradient in zip(made, model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
        torch.testing.assert_close(value, parameter.detach() - 0.5 * gradient)


def test_without_compression_it_is_plain_averaging(monkeypatch):
    setup = Setup(rounds=2, clients=3, epochs=2, rate=0.3, batch=2)
    made, row = last_model(monkeypatch, federation(), setup, Wire("plain"), 1)
    x, clients = first_values(1), federation().clients
    for number in (1, 2):
        models = []
        for client, rows in enumerate(clients):
            model, own = tiny(), torch.Generator().manual_seed(hash((1, number, client)) & 0x7FFFFFFF)
            with torch.no_grad():
                for p, value in zip(model.parameters(), x):
                    p.copy_(value)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
            for _ in range(2):
                for chosen in torch.randperm(len(rows), generator=own).split(2):
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(model(rows[chosen, :-1]).flatten(0, 1), rows[chosen, 1:].flatten()).backward()
                    optimizer.step()
            models.append([p.detach() for p in model.parameters()])
        x = [sum(n / 10 * m[i] for n, m in zip((2, 3, 5), models)) for i in range(len(x))]
    for value, plain in zip(made, x):
        torch.testing.assert_close(value, plain, rtol=1e-5, atol=1e-6)
    d = 2 * WORDS * WIDTH + WORDS
    assert row["curve"][-1]["up"] == row["curve"][-1]["down"] == 2 * 3 * 4 * d
    raw, _ = last_model(monkeypatch, federation(), setup, Wire("raw", fedavg.VECTOR, fedavg.VECTOR), 1)
    for value, plain in zip(raw, x):
        torch.testing.assert_close(value, plain, rtol=1e-5, atol=1e-6)


def test_bytes_of_a_round_are_those_counted_by_hand():
    """Two matrices of 28 elements, of each a quarter as 4 + 4 bytes; a vector of 7 as it is."""
    tensors = [torch.randn(WORDS, WIDTH), torch.randn(WORDS, WIDTH), torch.randn(WORDS)]
    parcel = Sender(TOP, rank=1).pack(tensors, 1)
    packed = deepreduce.inspect(parcel.frame).tensors
    assert [t.index_size + t.value_size for t in packed] == [7 * 8, 7 * 8, 7 * 4]
    assert parcel.size == len(parcel.frame) < 7 * 8 * 2 + 7 * 4 + 100
    row = fedavg.run(federation(), ONE_STEP, Wire("top", TOP, TOP), 1)
    assert row["curve"][-1]["up"] == 3 * parcel.size
    assert row["volume_up"] == pytest.approx(parcel.size / (4 * 63))


def test_a_client_keeps_what_it_did_not_send():
    sender, zero = Sender("feedback=residual " + TOP, rank=1), torch.zeros(WORDS, WIDTH)
    changed = torch.randn(WORDS, WIDTH)
    parts = [fedavg.mean_of([sender.pack([changed if i == 0 else zero], i)], [1.0], [zero])[0] for i in range(4)]
    torch.testing.assert_close(sum(parts), changed)
    assert int((parts[0] != 0).sum()) == 7


@pytest.mark.parametrize("way, arrives", [("update", True), ("difference", False)])
def test_what_one_update_loses_is_in_the_next(way, arrives):
    """The model does not change; the paper's difference sends the same part every time."""
    server = Server(Wire("", TOP, TOP, way), [torch.zeros(WORDS, WIDTH)])
    server.x = [torch.randn(WORDS, WIDTH)]
    for step in range(1, 5):
        server.show(step, [0])
    assert torch.equal(server.shown[0], server.x[0]) == arrives


def test_a_client_that_was_left_out_fetches_what_it_missed_or_the_model():
    assert fedavg.catch_up([10, 20, 30], 1, 1000) == 50
    assert fedavg.catch_up([10, 20, 30], 0, 45) == 45
    server = Server(Wire("", TOP, TOP, "update"), [torch.zeros(100, 10)])
    server.x = [torch.randn(100, 10)]
    sent = [server.show(1, [0, 1]), server.show(2, [0]), server.show(3, [1, 2])]
    a, b, c = server.frames
    assert sent == [2 * a, b, min(b + c, 4000) + min(a + b + c, 4000)]


def test_an_unknown_way_is_refused():
    with pytest.raises(ValueError, match="way='sideways': neither 'difference' nor 'update'"):
        Server(Wire("", way="sideways"), [])


def test_a_seed_decides_the_whole_run():
    setup = Setup(rounds=3, clients=2, epochs=1, rate=0.5, batch=2, evaluate=1)
    wire = Wire("random", "feedback=residual index=all value=qsgd", "index=all value=qsgd")
    curves = [fedavg.run(federation(), setup, wire, seed)["curve"] for seed in (1, 1, 2)]
    assert curves[0] == curves[1] != curves[2]


def test_perplexity_is_that_of_the_words():
    """A model that knows nothing is as perplexed as there are words; one that diverged is not a crash."""
    model, rows = tiny(), federation().held_out
    quality = fedavg.judge(model, [torch.zeros(WORDS, WIDTH), torch.zeros(WORDS, WIDTH), torch.zeros(WORDS)], rows)
    assert quality["perplexity"] == pytest.approx(WORDS)
    assert fedavg.judge(model, [torch.full((WORDS, WIDTH), 1e20), torch.randn(WORDS, WIDTH) * 1e15, torch.zeros(WORDS)], rows)["perplexity"] == float("inf")


def test_clients_differ_and_what_is_judged_is_not_learned():
    texts = client_text.client_texts()
    shuffled = torch.cat(texts)[torch.randperm(sum(map(len, texts)), generator=torch.Generator().manual_seed(1))]
    alike = list(shuffled.split([len(text) for text in texts]))
    assert len(texts) > 100 and client_text.distance(texts) > 1.8 * client_text.distance(alike)
    rows, held_out = client_text.split([torch.arange(1000), torch.arange(1000, 2000)])
    learned = torch.cat([r.flatten() for r in rows])
    assert held_out.numel() and not set(learned.tolist()) & set(held_out.flatten().tolist())


def test_volumes_of_raw_streams_are_by_definition():
    x = volumes.laplace(1)
    count = 368  # 1 % of 36,864, rounded down
    volume = volumes.volume(x, volumes.TOP + "index=raw value=raw")
    assert volume["index"] == volume["value"] == 4 * count / x.nbytes
    assert volume["total"] < volume["frame"] < volume["total"] + 100 / x.nbytes


def test_a_quick_run_keeps_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bench.paper", "--quick", "--seeds", "1", "--plan", "fedavg", "p0_qsgd", "--out", str(tmp_path)])
    assert paper_main.main() == 0
    made = json.loads((tmp_path / "paper.json").read_text())
    plain, packed = made["rows"]
    assert set(packed["ms"]) == {"encode_up", "decode_up", "encode_down", "decode_down"} and min(packed["ms"].values()) > 0
    assert plain["volume_up"] == 1.0 and 0.05 < packed["volume_up"] < 0.08
    assert plain["curve"][-1]["perplexity"] < client_text.VOCABULARY / 4
    assert {row["figure"] for row in made["volumes"]} == {8, 15}


@pytest.mark.parametrize(
    "module, arguments, message",
    [
        (paper_main, ["--quick"], "--quick wants --out: a few rounds are no result to keep"),
        (paper_main, ["--seeds", "0"], "--seeds 0: at least 1"),
        (train_main, ["--set", "methods", "--times"], "--set methods measures quality on 2 ranks"),
        (train_main, ["--set", "all"], "invalid choice: 'all'"),
    ],
)
def test_wrong_arguments_are_told(monkeypatch, capsys, module, arguments, message):
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    with pytest.raises(SystemExit) as stop:
        module.arguments()
    assert stop.value.code == 2 and message in capsys.readouterr().err


def test_a_set_leaves_out_what_the_library_lacks_and_says_so(monkeypatch, capsys):
    lacking = lambda plan: "plan: no value codec is called 'ternary'" if "ternary" in plan else None
    monkeypatch.setattr(train_plan, "missing_in_library", lacking)
    ran = {run.method for run in train_plan.set_runs("methods", settings(), [1], 1.0, False)}
    assert set(train_plan.SETS["methods"][1]) - ran == {"terngrad"}
    assert "terngrad: left out, unsupported by this library: plan: no value codec is called 'ternary'" in capsys.readouterr().out


def test_a_codec_plan_has_no_memory():
    for known in KNOWN.values():
        assert not {"feedback", "merge"} & {stage.split("=")[0] for stage in codec_plan(known.plan).split()}
    assert codec_plan(KNOWN["signsgd"].plan) == "index=all value=sign"


def ncf():
    return json.loads((ROOT / "bench" / "results" / "paper_ncf.json").read_text("utf-8"))


@pytest.mark.parametrize("link, rate", [("100 Mbit/s", 1e8), ("1 Gbit/s", 1e9), ("10 Gbit/s", 1e10)])
@pytest.mark.parametrize("kind, size", [("f32", 4), ("f16", 2)])
def test_ncf_steps_are_those_counted_by_hand(link, rate, kind, size):
    """A ring sends 2 (N − 1) / N of the tensor; of frames each rank gets N − 1, in slots of up to 2.4 % more. Little of it is hidden: the embeddings are ready last."""
    made = ncf()
    steps = {row["method"]: row for row in made["rows"] if (row["type"], row["link"]) == (kind, link)}
    assert made["elements"] == 31_832_577 and list(steps) == ["dense", *paper_ncf.PLANS]
    ring = 1e9 + 2 * 3 / 4 * size * made["elements"] * 8 / rate * 1e9
    assert steps["dense"]["step"] == pytest.approx(ring, rel=0.01)
    for frame in made["frames"]:
        if frame["type"] == kind:
            sent = 3 * paper_ncf.embedding_bytes(frame) * 8 / rate * 1e9
            assert 0.97 * sent < steps[frame["method"]]["free"] - 1e9 < 1.03 * sent + 20e6
            assert (steps[frame["method"]]["step"] is not None) == (kind == "f32" and frame["method"] == "Golomb + QSGD (ours)")


@needs_tool
def test_ncf_is_predicted_again_from_what_is_stored():
    """bench/results/paper_ncf.py writes it again, where utility.json has other costs."""
    made, stored = ncf(), json.loads((ROOT / "bench" / "results" / "utility.json").read_text("utf-8"))
    frames = {kind: {frame["method"]: frame["samples"] for frame in made["frames"] if frame["type"] == kind} for kind in paper_ncf.TYPES}
    assert paper_ncf.predicted(stored["profile"], frames) == made["rows"]
