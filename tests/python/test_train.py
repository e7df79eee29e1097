"""bench/train: ranks end bit-identical, losses fall, bytes are those that the hook reports; links have the requested rate."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch", reason="torch is missing")

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from bench.train import __main__, shaped_links, step_times, train_plan, train_results  # noqa: E402
from bench.train.rank_pool import RankError, RankPool  # noqa: E402


def train(*arguments):
    words = [sys.executable, "-m", "bench.train", *map(str, arguments)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=280)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """(the rows of --quick, its file)"""
    out = tmp_path_factory.mktemp("train") / "quick.jsonl"
    done = train("--quick", "--out", out)
    assert done.returncode == 0, done.stderr
    return train_results.read(out), out


def test_all_that_was_planned_ran(quick):
    ran = {(row["model"], row["method"]) for row in quick[0]}
    assert ran == {(model, m) for model, methods in train_plan.QUICK.items() for m in methods}


def test_ranks_are_bit_identical_at_the_end(quick):
    assert all(row["identical"] for row in quick[0])
    # A hash that is always the same would be, too.
    assert len({row["hash"] for row in quick[0]}) == len(quick[0])


def test_loss_falls(quick):
    for row in quick[0]:
        assert row["loss"][-1][1] < 0.95 * row["loss"][0][1], row["method"]


def test_bytes_are_as_the_hook_says(quick):
    with_hook = [row for row in quick[0] if "hook" in row]
    assert with_hook
    for row in with_hook:
        assert row["sent_in_all"] == row["hook"]["sent"] > row["hook"]["frame"]
        dense = next(r for r in quick[0] if r["model"] == row["model"] and r["method"] == "dense")
        assert row["sent"] < 0.05 * dense["sent"]


def test_frames_are_inspected_over_the_steps(quick):
    bits = {row["method"]: row["bits"] for row in quick[0]}
    assert all(at["value"] == 32 and 1 < at["index"] < 10 for at in bits["top1"]) and len(bits["top1"]) >= 6
    assert all(at["value"] < 6 for at in bits["top1_auto"])
    assert bits["dense"] == []


def test_what_is_there_is_not_run_again(quick):
    before = quick[1].read_bytes()
    with open(quick[1], "ab") as file:
        file.write(b'{"kind":"quality","mod')  # as of a machine that went down
    done = train("--quick", "--out", quick[1], "--model", "neumf")
    assert done.returncode == 0 and f"{len(train_plan.QUICK['neumf'])} of them are in" in done.stdout
    assert quick[1].read_bytes().startswith(before)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--model", "resnet"], "no model 'resnet'; there are resnet20, cnn,"),
        (["--method", "top2"], "no method 'top2'"),
        (["--method", "top1_momentum"], "unsupported: it is the method dgc of --set methods"),
        (["--ranks", "1"], "--ranks 1: from 2 to 16"),
        (["--steps", "0"], "--steps 0.0: above 0"),
    ],
)
def test_wrong_arguments_are_told(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["./dev train", *arguments])
    with pytest.raises(SystemExit) as left:
        __main__.main()
    assert left.value.code == 2 and message in capsys.readouterr().err


@pytest.fixture(scope="module")
def two():
    """Two ranks: importing torch takes longer than what they do."""
    with RankPool(2) as pool:
        yield pool


def test_a_rank_gives_the_gradients_of_its_own_batch(two, tmp_path):
    import numpy

    job = {"kind": "gradients", "model": "neumf", "seed": 1, "steps": 3}
    with RankPool(1) as one:
        results = [pool.run({**job, "path": str(tmp_path / f"{i}.npz")}, timeout=120) for i, pool in enumerate((two, one))]
        first = [pool.run({**job, "steps": 1, "path": str(tmp_path / f"first{i}.npz")}, timeout=120) for i, pool in enumerate((two, one))]
    assert [len(answers) for answers in results + first] == [2, 1, 2, 1]
    arrays = [dict(numpy.load(tmp_path / f"{name}.npz")) for name in ("0", "first0", "first1")]
    assert len(arrays[0]) == results[0][0]["tensors"] > 3 and all(name.endswith((".weight", ".bias")) for name in arrays[0])
    # Rank 0's in the first step, in which all begin alike, whatever the number of ranks: not the mean.
    assert all(numpy.array_equal(arrays[1][name], arrays[2][name]) for name in arrays[1])
    assert any(not numpy.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])


def test_the_error_of_a_method_is_that_of_its_means(two):
    job = {"kind": "times", "model": "byte_gpt", "seed": 1, "warm_up": 1, "rounds": 1, "steps": 1, "check": 2}
    for answer in two.run({**job, "methods": ["dense", "bits8", "signs"]}, timeout=120):
        assert answer["dense"]["error"] < 1e-6 < answer["bits8"]["error"] < 0.1 < answer["signs"]["error"]
        assert "wire" not in answer["dense"]  # over the loopback, whose bytes are all ranks'


def test_a_rank_that_is_killed_is_an_error_and_the_next_run_has_new_ranks():
    job = {"kind": "quality", "model": "neumf", "method": "dense", "seed": 1, "steps": 3}
    with RankPool(2) as pool:
        with pytest.raises(RankError, match="KeyError: 'no such'"):
            pool.run({"kind": "no such"}, timeout=60)
        assert pool.processes == []
        assert len(pool.run(job, timeout=120)) == 2
        pool.processes[1].send_signal(signal.SIGKILL)
        with pytest.raises(RankError, match="rank"):
            pool.run(job, timeout=120)
        pool.run(job, timeout=120)
        pool.processes[0].send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(RankError, match="no answer in time from rank"):
            pool.run(job, timeout=2)
        assert time.monotonic() - begin < 10


def spaces():
    return [name for name in os.listdir("/run/netns") if name.startswith(f"drt{os.getpid()}n")]


def shaped(ranks, rate):
    try:
        return shaped_links.ShapedLinks(ranks, rate).__enter__()
    except shaped_links.Unsupported as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name, rate", [("10mbit", 10e6), ("100mbit", 100e6)])
def test_links_have_their_rate_and_are_gone_afterwards(name, rate):
    links = shaped(3, name)
    try:
        assert len(spaces()) == 4 and 0.7 * rate < links.measured < 1.02 * rate
        sent = links.sent(0)
        assert sent > max(2e6, 0.12 * rate)  # what was sent to measure it passed the shaped device
    finally:
        links.__exit__()
    assert spaces() == []


def test_a_link_of_another_rate_is_refused(monkeypatch):
    shaped(2, "100mbit").__exit__()
    monkeypatch.setitem(shaped_links.RATES, "100mbit", 200e6)
    with pytest.raises(shaped_links.WrongRate, match=r"carries \d+\.\d Mbit/s"):
        shaped_links.ShapedLinks(2, "100mbit").__enter__()
    assert spaces() == []


def test_an_interrupted_run_removes_its_links(tmp_path):
    shaped(2, "unshaped").__exit__()
    words = [
        sys.executable,
        "-m",
        "bench.train",
        "--links",
        "--model",
        "lstm",
        "--method",
        "dense",
        "top1",
        "--out",
        str(tmp_path / "links.jsonl"),
    ]
    running = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    mine = lambda: [name for name in os.listdir("/run/netns") if name.startswith(f"drt{running.pid}n")]
    end = time.monotonic() + 240
    while len(mine()) < 3 and time.monotonic() < end:
        time.sleep(0.1)
    assert len(mine()) == 3
    running.send_signal(signal.SIGINT)
    running.wait(timeout=240)
    assert mine() == []


def row(*rounds):
    return {"rounds": rounds, "median": sorted(rounds)[len(rounds) // 2]}


def test_a_verdict_wants_every_round():
    base = row(100, 200, 110)  # a slow phase in the second round, of both
    assert step_times.verdict(row(50, 190, 60), base) == "faster, 0.55 x [0.50, 0.95]"
    assert step_times.verdict(row(50, 60, 111), base) == "within the spread, 0.55 x [0.30, 1.01]"
    assert step_times.verdict(row(110, 210, 120), base) == "does not pay, 1.09 x [1.05, 1.10]"


def test_rows_are_json_lines(quick):
    lines = quick[1].read_text("utf-8").splitlines()
    assert all(json.loads(line)["kind"] == "quality" for line in lines[: len(quick[0])])
