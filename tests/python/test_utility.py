"""bench/results/utility.py: the grid of set-ups, its counts, and the costs that it takes from a GPU's rows."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "bench" / "results")]
pytest.importorskip("torch", reason="torch is missing: pip install torch")

import utility  # noqa: E402
from bench.predict_proof import published_models  # noqa: E402
from tool_runs import needs_tool  # noqa: E402


def test_published_models_have_their_published_sizes():
    counts = {"resnet50": (161, 25_557_032), "vgg19": (38, 143_667_240), "bert_base": (206, 110_106_428), "neumf": (12, 31_832_577)}
    for name, (tensors, elements) in counts.items():
        model = published_models.model_file(name, getattr(published_models, name)(), 3e8, 32)
        assert len(model["tensors"]) == tensors and sum(tensor["elements"] for tensor in model["tensors"]) == elements
        ready = [tensor["ready_ns"] for tensor in model["tensors"]]
        assert ready == sorted(ready, reverse=True) and ready[0] == model["backward_ns"] == 200_000_000


def test_a_layer_is_ready_when_its_part_of_backward_is_over():
    # 3 ns: forward 1, backward 2, of which the last layer's quarter of the multiplications takes 0.5 and the first one's 1.5.
    model = published_models.model_file("two", [("a", [(3, 1)], 3.0), ("b", [(2,), (1,)], 1.0)], 3e9, None)
    assert [(t["elements"], t["ready_ns"]) for t in model["tensors"]] == [(3, 2_000_000_000), (2, 500_000_000), (1, 500_000_000)]
    assert utility.computing(utility.scaled(model, 0.5)) == 1_500_000_000


def grid_row(dense, compute, **methods):
    return {"device": "cpu", "model": "m", "link": "1 Gbit/s", "ranks": 2, "compute": compute, "dense": dense, "methods": methods}


def test_a_win_is_five_percent_and_a_loss_has_its_reason(monkeypatch):
    monkeypatch.setattr(utility, "book_error", lambda: 0.2)
    steps = {"far": [70, 140, 60], "near": [94, None, 60], "coded": [120, 120, 95], "large": [96, 200, 96]}
    ones = {one["method"]: one for one in utility.setups([grid_row([150, 100], 50, **steps)])}
    assert {m: (one["won"], one["f32"], one["whole"], one["sure"], one["reason"]) for m, one in ones.items()} == {
        "far": (True, True, False, True, "won"),  # 70 / 0.8 is 87.5
        "near": (True, True, False, False, "won"),  # 94 / 0.8 is 117.5
        "coded": (False, True, False, False, "coding"),
        "large": (False, True, False, False, "bytes"),
    }
    hidden = next(utility.setups([grid_row([150, 100], 96, any=[101, None, 97])]))
    assert hidden["reason"] == "hidden" and not hidden["free"] and hidden["gain"] == 100 / 101


def test_the_costs_of_a_gpu_are_those_of_its_rows():
    rows = json.loads((ROOT / "bench" / "results" / "gpu_h100.json").read_text("utf-8"))["rows"]
    profile = utility.gpu_profile(rows, [])
    found = {(cost["plan"], cost["operation"]): cost for cost in profile["costs"]}
    at = lambda m, operation, n: found[utility.gpu_plan(m), operation]["base_ns"] + n * found[utility.gpu_plan(m), operation]["per_element_ns"]
    # 102.752 µs at 25.6 M elements and 229.888 at 100 M; a residual takes 229.632 − 102.752 more at 25.6 M.
    assert at("top1", "encode", 25_600_000) == pytest.approx(229_632)
    assert at("top1", "encode", 100_000_000) == pytest.approx(229_888 + 100 / 25.6 * 126_880)
    assert at("top01", "encode", 25_600_000) == pytest.approx(113_920 + 126_880)
    assert at("top1", "merge", 25_600_000) == pytest.approx((157_632 - 61_216) / 7)
    assert at("top10", "merge", 25_600_000) == 10 * at("top01", "merge", 25_600_000)
    assert at("top1", "decode", 25_600_000) == pytest.approx(85_440, rel=1e-3)
    assert [round(25_600_000 * frame["per_element_bytes"]) for frame in profile["frames"]] == [517_804, 62_480, 4_096_328]


@needs_tool
def test_a_step_is_what_arithmetic_says(tmp_path):
    pytest.importorskip("deepreduce", reason="DEEPREDUCE_LIBRARY does not name the library")
    model = published_models.model_file("one", [("a", [(1_000_000,)], 1.0)], 3e6, None)
    path = tmp_path / "model.json"
    path.write_text(json.dumps(model))
    plan = utility.gpu_plan("top1")
    cost = {"floor_ns": 0, "per_element_ns": 0, "r2": 1, "from": 1, "to": 10**9, "samples": [], "plan": plan}
    costs = [{**cost, "operation": operation, "base_ns": ns} for operation, ns in (("encode", 1000), ("decode", 200), ("merge", 50))]
    frames = [{"plan": plan, "base_bytes": 0, "per_element_bytes": 0.02, "r2": 1, "from": 1, "to": 10**9, "samples": [], "sum_growth": []}]
    rows = json.loads((ROOT / "bench" / "results" / "gpu_h100.json").read_text("utf-8"))["rows"]
    profile = {**utility.gpu_profile(rows, []), "costs": costs, "frames": frames}
    predictor = utility.Predictor(tmp_path, profile, {"top1": plan}, "exchange")
    steps = {free: predictor.steps(path, "1Gb/s,50us", 4, free) for free in (False, True)}
    # Behind 3 ms of computing: a ring of 6 parts of 1 MB (8 ms) and 6 latencies; frames: 3 of 20 kB (160 µs), a latency.
    assert steps[False]["f32"]["step_ns"] == 3_000_000 + 6 * (50_000 + 8_000_000)
    assert steps[True]["top1"]["step_ns"] == pytest.approx(3_000_000 + 50_000 + 3 * 160_000, rel=0.02)
    assert steps[False]["top1"]["step_ns"] - steps[True]["top1"]["step_ns"] == pytest.approx(1000 + 200 + 3 * 50, abs=200)


def test_the_stored_page_is_of_the_stored_grid():
    stored = json.loads((ROOT / "bench" / "results" / "utility.json").read_text("utf-8"))
    assert utility.page(stored) == (ROOT / "bench" / "results" / "utility.md").read_text("utf-8")
    rows = list(utility.setups(stored["grid"]))
    assert len(rows) >= 200 and {row["ranks"] for row in rows} == set(utility.RANKS) and {row["link"] for row in rows} == set(utility.LINKS)
    assert all(row["won"] <= row["f32"] and row["sure"] <= row["won"] for row in rows)
