"""bench/train/device_gpt.py, which waits for a GPU: on the CPU, a small model for a few steps."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
torch = pytest.importorskip("torch", reason="torch is missing")

from bench.train import device_gpt  # noqa: E402
from bench.train.device_gpt import METHODS, SEEDS, TUNING_SEED, Run, Sizes  # noqa: E402

SMALL = Sizes(16, 1, 2, 8, 2, 6, 4)


def trained(method):
    torch.set_num_threads(1)
    return device_gpt.train(Run("final", method, 1.0, 1, SMALL.steps), SMALL, torch.device("cpu"))


def test_a_training_has_the_bytes_and_the_curve_of_its_method():
    rows = {method: trained(method) for method in METHODS}
    dense = rows["dense"]
    assert dense["sent"] == 4 * dense["parameters"] and rows["bf16"]["sent"] == dense["sent"] // 2
    assert [step for step, _ in dense["curve"]] == list(range(SMALL.steps + 1))
    assert all(row["curve"][0] == dense["curve"][0] and row["curve"][-1][1] < row["curve"][0][1] for row in rows.values())
    assert rows["top01"]["sent"] < rows["top1"]["sent"] < rows["bits4"]["sent"] < rows["bf16"]["sent"]
    assert trained("top1")["curve"] == rows["top1"]["curve"]


def test_the_warm_up_goes_through_its_ratios():
    wire = device_gpt.Wire("top1_warm", [torch.Size([1000])], torch.device("cpu"), 60)
    sizes = []
    for step in range(60):
        for flat in wire.gradients:
            flat.copy_(torch.randn(1000, generator=torch.Generator().manual_seed(step)))
        wire.reduce(step)
        sizes.append(wire.bytes)
    assert min(sizes[:2]) > max(sizes[2:4]) > min(sizes[2:4]) > max(sizes[4:6]) and sizes[5] > sizes[6]


def row(run, loss, sent=1000):
    return {**run._asdict(), "curve": [[0, 5.0], [run.steps, loss]], "sent": sent}


def test_rates_are_chosen_before_seeds_run_and_claims_are_judged_by_seed():
    rows = []
    left = device_gpt.runs_left(rows, SMALL)
    assert {run.kind for run in left} == {"tuning"} and {run.seed for run in left} == {TUNING_SEED}
    rows += [row(run, 3.0 + abs(run.rate - 0.5)) for run in left]
    left = device_gpt.runs_left(rows, SMALL)
    assert [(run.seed, run.rate) for run in left] == [(seed, 0.5) for seed in SEEDS for _ in METHODS]
    assert device_gpt.verdicts(rows)[0].startswith("not all seeds of dense")
    above = {"top1": 0.5, "top1_warm": 0.01}
    sent = {"dense": 100_000, "bf16": 50_000}
    rows += [row(run, 2.0 + above.get(run.method, 0) + 0.001 * (run.seed - 2) * (run.method != "dense"), sent.get(run.method, 1000)) for run in left]
    lines = {line.split(":")[0]: line for line in device_gpt.verdicts(rows)}
    assert lines["top1"].endswith("did not hold") and lines["top1_warm"].endswith("]: did not hold") and lines["blocks"].endswith("]: held")
    assert not lines["bf16"].endswith("held") and lines["warm-up"].endswith(": held")
