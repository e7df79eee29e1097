"""bench/train/outer_loops.py and its page: SparseLoCo's published code, the criterion of the training to the end, and the tables."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "bench" / "results")]
pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")
pytest.importorskip("torch", reason="torch is missing: pip install torch")

import outer  # noqa: E402
import torch  # noqa: E402
from bench.train import outer_loops, train_results  # noqa: E402
from bench.train.outer_methods import METHODS, PublishedValues  # noqa: E402

RESULTS = ROOT / "bench" / "results"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix, self.vector = torch.nn.Parameter(torch.zeros(128, 192)), torch.nn.Parameter(torch.zeros(96))


def published(seed=0):
    """(exchange whose residual is random, its residual as a matrix and a vector)"""
    exchange = PublishedValues(Model(), every=1)
    flat = torch.randn(128 * 192 + 96, generator=torch.Generator().manual_seed(seed))
    exchange.residual = flat[exchange.order].clone()
    return exchange, flat[: 128 * 192].view(128, 192), flat[128 * 192 :]


def decoded(exchange):
    places, values = exchange.decode(exchange.encode())
    flat = torch.zeros(len(exchange.order))
    flat[exchange.order[places]] = values
    return flat[: 128 * 192].view(128, 192), flat[128 * 192 :]


def test_the_published_code_sends_the_64_largest_of_each_chunk_of_64_by_64_in_14_bits():
    exchange, matrix, _ = published()
    found, vector = decoded(exchange)
    for row in range(0, 128, 64):
        for column in range(0, 192, 64):
            there, chunk = (m[row : row + 64, column : column + 64].flatten() for m in (found, matrix))
            assert set(there.nonzero().flatten().tolist()) == set(chunk.abs().topk(64).indices.tolist())
            assert (there[there != 0].sign() == chunk[there != 0].sign()).all()
    assert (vector != 0).sum() == 96  # of a vector all
    sent = 6 * 64 + 96
    assert len(exchange.base) == sent and len(exchange.encode()) == 14 * sent // 8 + 2 * 16


def test_the_published_values_are_the_means_of_4_bins_over_6_deviations():
    exchange, matrix, _ = published(1)
    found = decoded(exchange)[0]
    values, given = found[found != 0], matrix[found != 0]
    assert len(values.unique()) <= 4
    low, high = given.mean() - 3 * given.std(), given.mean() + 3 * given.std()
    edges = torch.linspace(float(low), float(high), 5) - float(high - low) / 8  # (rounded to the nearest: half a bin below)
    for level in values.unique():
        mine = given[values == level]
        assert torch.allclose(level, mine.mean(), rtol=1e-5)
        assert sum(bool((edge < mine.max()) and (edge > mine.min())) for edge in edges[1:4]) == 0  # no edge within a bin


def test_a_training_ends_when_300_steps_have_passed_without_a_new_least_loss():
    falling = [[30 * i, 5 - 0.1 * i] for i in range(1, 11)]
    assert outer_loops.ended(falling) == 0
    above = [[300 + 30 * i, 4.001] for i in range(1, 11)]
    assert outer_loops.ended([*falling, *above[:9]]) == 0
    assert outer_loops.ended([*falling, *above, [630, 1.0]]) == 20  # at step 600; what is behind it does not count


def curve_row(method, points, **more):
    place = {"task": "text", "ranks": 4, "every": 1 if method.startswith("ddp") else 30, "seed": 0, "steps": points[-1][0]}
    return {"kind": "curve", "method": method, **place, "curve": points, "sent": 3000, "frame": 1000, "kept": 900, "identical": True, "commit": "abc", "date": "2026-01-01", "machine": "it", **more}


def time_row(method, link, exchange):
    return {"kind": "times", "task": "text", "method": method, "ranks": 4, "link": link, "rate": 9e6, "exchange": exchange, "own": 40.0, "commit": "abc", "date": "2026-01-01", "machine": "it"}


def test_wall_clock_is_inner_steps_and_whole_rounds_to_the_loss_that_all_reach():
    slow, fast = [[60, 4.0], [120, 3.0], [180, 2.52]], [[60, 3.05], [120, 2.05]]
    rows = [curve_row("ddp_bf16", fast), *(curve_row(method, slow) for method in outer.MAIN if method != "ddp_bf16")]
    rows += [time_row("ddp_bf16", "10mbit", 2000.0), time_row("ours", "10mbit", 100.0), {"kind": "own", "task": "text", "step": 10.0, "commit": "abc", "date": "2026-01-01", "machine": "it"}]
    measured = outer.Measured(rows)
    assert measured.target("text", (4, 30)) == 2.55
    assert measured.steps_to("text", (4, 30), "ddp_bf16") == pytest.approx(90)  # half way from 3.05 to 2.05
    assert measured.seconds_to("text", (4, 30), "ddp_bf16", "10mbit") == pytest.approx(90 * 2.01)
    steps = 120 + 60 * 0.45 / 0.48
    assert measured.seconds_to("text", (4, 30), "ours", "10mbit") == pytest.approx(steps * 0.01 + 6 * 0.1)
    assert measured.seconds_to("text", (4, 30), "ours", "10mbit", shared=True) == pytest.approx(steps * 0.04 + 6 * 0.1)
    assert measured.seconds_to("text", (4, 30), "ours", "100mbit") is None  # not measured, so not reported


def test_rows_of_other_weights_are_named_on_the_page():
    row = curve_row("ours", [[30, 3.0]], identical=False)
    assert "**In 1 rows workers end with different weights.**" in outer.page([row])
    assert "all workers end with the same weights" in outer.page([curve_row("ours", [[30, 3.0]])])


def test_the_plan_has_all_methods_and_equal_tokens_in_all_cells():
    runs = list(outer_loops.curves(3))
    assert {run.method for run in runs} <= set(METHODS) and len(set(runs)) == len(runs)
    assert {run.ranks * run.steps for run in runs} == {outer_loops.WORKER_STEPS}
    assert all(run.judge % run.every == 0 for run in runs)
    assert {(run.ranks, run.every) for run in runs if run.every > 1} == set(outer_loops.CELLS)
    assert [run.seed for run in runs[:-1]] == sorted(run.seed for run in runs[:-1])


def test_a_rehearsal_trains_by_every_method_and_workers_agree(tmp_path):
    """Two processes, 20 steps of each."""
    out = tmp_path / "rows.jsonl"
    words = [sys.executable, "-m", "bench.train.outer_loops", "--quick", "--out", out]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = {row["method"]: row for row in train_results.read(out)}
    assert set(rows) == {*outer_loops.DDP, *outer_loops.OUTER} and all(row["identical"] for row in rows.values())
    assert all(row["curve"][-1][1] < 5.6 for row in rows.values())  # of 256 bytes at random: 5.55
    assert rows["diloco_f32"]["curve"][-1][1] < 4 and rows["diloco_f32"]["frame"] == 2 * 4 * 1_000_704
    assert rows["ours"]["frame"] < rows["diloco_f32"]["frame"] / 100
