"""bench/train/hook_steps.py: rows of step times, and the table that they make."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")
pytest.importorskip("torch", reason="torch is missing: pip install torch")

from bench.train import hook_steps  # noqa: E402
from bench.train.methods import METHODS  # noqa: E402


def row(method, median, ranks=2, link="1gbit", **more):
    place = {"ranks": ranks, "link": link, "method": method, "steps": 16, "sent": 90_000, "rate": 949e6, "commit": "abc"}
    return {**place, "date": "2026-01-01", "median": median, "p10": median - 1, "p90": median + 2, **more}


def test_all_methods_are_known_and_are_what_their_names_say():
    names = [*hook_steps.TORCH, *hook_steps.OURS, *hook_steps.UNITS]
    assert set(names) <= set(METHODS) and set(hook_steps.QUICK) <= set(names) and len(set(names)) == len(names)
    assert [METHODS[f"powersgd{rank}"].rank for rank in (1, 2, 4)] == [1, 2, 4]
    assert all((METHODS[name].frame_mb, METHODS[name].plan is not None) == (METHODS[name].bucket_cap_mb, True) for name in hook_steps.UNITS)


def test_a_new_row_takes_the_place_of_its_own_alone(tmp_path):
    out = tmp_path / "rows.json"
    hook_steps.write(out, hook_steps.added([], [row("halves", 30.0), row("dense", 100.0), row("dense", 99.0, ranks=4)]))
    hook_steps.write(out, hook_steps.added(hook_steps.read(out), [row("halves", 20.0), row("halves", 60.0, link="100mbit")]))
    told = [(each["ranks"], each["link"], each["method"], each["median"]) for each in hook_steps.read(out)]
    assert told == [(2, "1gbit", "dense", 100.0), (2, "1gbit", "halves", 20.0), (2, "100mbit", "halves", 60.0), (4, "1gbit", "dense", 99.0)]


def test_the_table_has_bytes_of_slots_beside_those_of_frames_and_marks_the_fastest():
    rows = [
        row("dense", 100.0), row("top10_log", 50.0, frame=16 * 75_000, repeats=1), row("halves", 51.0, frame=16 * 90_000, repeats=0),
        row("dense", 400.0, link="100mbit"), row("top10_1mb", 70.0, frame=16 * 80_000, repeats=0),
    ]  # fmt: skip
    lines = hook_steps.page(rows).splitlines()
    assert "| dense f32 | 90 | – | 100 [99, 102] | **400 [399, 402]** |" in lines
    assert "| Top-10 %, log_quant | 90 | 1.20 | **50 [49, 52]** | – |" in lines
    assert "| bf16, ours, with a residual | 90 | – | **51 [50, 53]** | – |" in lines  # within 3 %, and no slots
    assert "| Top-10 %, units and buckets of 1 MiB | 90 | 1.12 | **70 [69, 72]** |" in lines
    assert any("1 Gbit/s: a socket gets 949 Mbit/s" in line for line in lines)
