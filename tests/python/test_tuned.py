"""bench/train/tuned_rates.py and its page: which runs are left, paired intervals, the lag, verdicts, with numbers that are made up."""

import math
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "bench" / "results")]
pytest.importorskip("torch", reason="torch is missing")

import tuned  # noqa: E402
from bench.train import tuned_rates  # noqa: E402
from bench.train.tuned_rates import REHEARSAL, RATES, SEEDS, TUNING_SEED, Run  # noqa: E402

EPOCH = 100
DENSE = [(0, 2.3), (50, 0.6), (100, 0.5), (150, 0.4), (200, 0.45), (250, 0.3)]


def row(kind, method, rate, seed, curve, sent=1000, **more):
    of = {"kind": kind, "method": method, "rate": rate, "seed": seed, "steps": int(curve[-1][0]), "epoch": EPOCH, "sent": [sent, sent]}
    where = {"identical": True, "step_ms": 10.0, "seconds": 5.0, "commit": "abc", "date": "2026-11-27", "machine": "one", "load": 0.1}
    return {**of, "curve": [[step, loss, 1 - loss / 4] for step, loss in curve], **where, **more}


def trial(method, rate, loss, **more):
    return row("tuning", method, rate, TUNING_SEED, [(0, 2.3), (REHEARSAL.tuning_epoch, loss)], **more)


def trained(method, *losses, sent=1000, curve=DENSE, **more):
    """The seeds of a method: their last losses are above dense's by these."""
    return [row("final", method, 1.0, seed, [*curve[:-1], (250, 0.3 + 0.01 * seed + more_loss)], sent, **more) for seed, more_loss in zip(SEEDS, losses)]


def test_an_interval_is_students_of_the_differences_by_seed():
    base = {1: 1.0, 2: 2.0, 3: 3.0}
    found = tuned.paired({1: 1.1, 2: 2.2, 3: 3.3, 4: 9.0}, base)
    assert found.mean == pytest.approx(0.2) and found.error == pytest.approx(0.1 / math.sqrt(3))
    assert found.half == pytest.approx(4.303 * 0.1 / math.sqrt(3)) and found.low < 0 < found.high  # not paired, its half would be ten times as large
    same = tuned.paired(base, base)
    assert same == (0.0, 0.0, 0.0)


def test_a_loss_is_reached_between_two_points():
    assert tuned.reached(DENSE, 0.45) == pytest.approx(125)
    assert tuned.reached(DENSE, 0.5) == 100 and tuned.reached(DENSE, 3.0) == 0
    assert tuned.reached(DENSE, 0.299) is None


def test_the_lag_is_of_the_new_minima_of_dense():
    assert tuned.lags(DENSE, DENSE, EPOCH) == [(100, 0.0, True), (150, 0.0, True), (250, 0.0, True)]
    slow = [(1.2 * step, loss) for step, loss in DENSE if 1.2 * step <= 250]  # ends at 240, with 0.45
    found = tuned.lags([*slow, (250, 0.41)], DENSE, EPOCH)
    assert [lag[:2] for lag in found] == [(100, pytest.approx(0.2)), (150, pytest.approx(0.2)), (250, 0.0)]
    # 0.3 is not reached: of the last point that says nothing, of an earlier one it is a lower limit.
    assert [lag[2] for lag in found] == [True, True, False]
    never = tuned.lags([(0, 2.3), (250, 0.45)], DENSE, EPOCH)[1]
    assert never == (150, pytest.approx(250 / 150 - 1), False) and tuned.percent(never) == "> 67 %"


def test_how_far_behind_it_ends():
    assert tuned.behind([(0, 2.3), (250, 0.4)], DENSE) == 100
    assert tuned.behind([(0, 2.3), (250, 0.29)], DENSE) is None


def test_a_rate_at_an_end_of_the_grid_makes_it_longer_by_one():
    assert tuned_rates.untried({}) == RATES
    assert tuned_rates.untried({0.5: 3, 1.0: 1, 2.0: 2}) == []
    assert tuned_rates.untried({0.5: 3, 1.0: 2, 2.0: 1}) == [4.0]
    assert tuned_rates.untried({0.5: 1, 1.0: 2, 2.0: math.inf}) == [0.25]
    assert tuned_rates.untried({0.5: 3, 1.0: 2, 2.0: 1, 4.0: 0.5}) == []


def test_runs_go_on_where_they_stopped_at_the_best_rate():
    rows = [trial(method, rate, abs(rate - 1)) for method in tuned_rates.METHODS for rate in RATES]
    rows[-1]["diverged"] = 3  # of the last method, 2 ×
    rows[-3]["curve"][-1][1] = -1.0  # so that 0.5 is its best
    left = tuned_rates.runs_left(rows, REHEARSAL)
    last = tuned_rates.METHODS[-1]
    assert [run for run in left if run.kind == "tuning"] == [Run("tuning", last, 0.25, TUNING_SEED, REHEARSAL.tuning_epoch)]
    rows.append(trial(last, 0.25, 0.5))
    left = tuned_rates.runs_left(rows, REHEARSAL)
    assert len(left) == len(SEEDS) * len(tuned_rates.METHODS) and {(run.rate, run.kind) for run in left if run.method != last} == {(1.0, "final")}
    assert {run.rate for run in left if run.method == last} == {0.5}
    done = {**trial(last, 0.5, 1), **left[-1]._asdict()}
    assert tuned_rates.runs_left([*rows, done], REHEARSAL) == left[:-1]


def test_the_page_gives_a_verdict_on_each_claim():
    rows = [
        *trained("dense", 0, 0, 0), *trained("bf16", 0.001, -0.001, 0, sent=500),
        *trained("top1_log", 0.02, 0.021, 0.019, sent=4), *trained("top1_warm", 0.0005, 0.001, -0.001, sent=6), *trained("blocks", 0.03, 0.0, 0.0, sent=4),
        *trained("dgc", 0.01, 0.011, 0.009, sent=12, residual=7.0), trial("dense", 1.0, 0.5),
    ]  # fmt: skip
    text = tuned.page(rows)
    assert "   - Top-1 %, residual: **did not hold** (+0.0200, +6.3 %, +34.6 standard errors)" in text
    assert "   - Top-1 %, residual, warm-up of the ratio: **held**" in text and "   - bf16" not in text
    assert "3. Warm-up: **held** (-0.0198 [" in text and "4. Momentum correction: **held**" in text
    assert "5. Blocks: **did not hold**" in text and "6. The check: **held**" in text
    assert "| Top-1 %, residual | 1 × | 0.40 % | 4 |" in text and "PowerSGD rank 1 |" not in text and "| 7.0 |" in text


def test_a_method_that_diverged_is_named_and_left_out():
    rows = [*trained("dense", 0, 0, 0), *trained("bf16", 0, 0, 0), *trained("dgc", 0, 0, 0, diverged=5)]
    text = tuned.page(rows)
    assert "because a run of theirs diverged: DGC" in text and "4. Momentum correction: not measured." in text
    assert "Nothing has been measured yet." in tuned.page([])
