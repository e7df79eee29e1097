"""bench/train/hook_steps.py and owner_steps.py: rows of step times, and the tables that they make."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")
pytest.importorskip("torch", reason="torch is missing: pip install torch")

from bench.train import hook_steps, owner_steps  # noqa: E402
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
    found = [(row["ranks"], row["link"], row["method"], row["median"]) for row in hook_steps.read(out)]
    assert found == [(2, "1gbit", "dense", 100.0), (2, "1gbit", "halves", 20.0), (2, "100mbit", "halves", 60.0), (4, "1gbit", "dense", 99.0)]


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


def owner_row(method, wire, median=100.0, ranks=4, link="1gbit", **more):
    more = {"wire": wire, "error": 0.0, "identical": True, "cores": 2, **more}
    return row(method, median, ranks, link, **more)


@pytest.mark.parametrize("ranks", [4, 8])
def test_how_frames_travelled_is_what_the_device_sent_not_what_the_plan_says(ranks):
    gathered = (ranks - 1) * 1000
    by_owner = 2 * (ranks - 1) / ranks * 1000
    rows = [owner_row("dense", 9000), owner_row("bits8", gathered, ranks=ranks), owner_row("bits4", gathered, ranks=ranks)]
    ways = owner_steps.ways([*rows, owner_row("bits8_owner", 1.1 * by_owner, ranks=ranks), owner_row("bits4_owner", 0.95 * gathered, ranks=ranks)])
    assert ways == {"bits8": "gather", "bits4": "gather", "bits8_owner": "owner", "bits4_owner": "gather"}


def test_rows_of_other_replicas_or_another_mean_are_no_results():
    assert owner_steps.faults([owner_row("dense", 9000), owner_row("bits4", 900, error=0.13), owner_row("powersgd4", 90, error=0.9)]) == []
    # A sum in place of a mean is off by 3 times the mean; NaN is off, too.
    wrong = [owner_row("bf16", 900, error=3.0), owner_row("bits8", 900, error=float("nan")), owner_row("dense", 900, identical=False)]
    faults = owner_steps.faults(wrong)
    assert [fault.split(":")[0] for fault in faults] == ["dense", "bf16", "bits8"] and "parameters differ" in faults[0]
    assert set(owner_steps.METHOD_NAMES) <= set(METHODS)


def test_the_page_says_where_owner_was_ignored():
    rows = [
        owner_row("dense", 20_000), owner_row("bits4", 3_500, 60.0, travelled="gather", error=0.125),
        owner_row("bits4_owner", 1_700, 50.0, travelled="owner"), owner_row("bits4_owner", 3_500, 70.0, link="100mbit", travelled="owner"),
    ]  # fmt: skip
    page = owner_steps.page(rows)
    assert "| 4 bits | gather | 90 | 4 | 0.12 | 60 [59, 62] | – |" in page
    assert "| 4 bits, owner | owner | 90 | 2 | 0 | **50 [49, 52]** | **70 [69, 72]** |" in page
    assert "was ignored" not in page and "one machine of 2 cores" in page
    page = owner_steps.page([*rows, owner_row("bits8", 7_000, travelled="gather"), owner_row("bits8_owner", 7_000, travelled="gather")])
    assert "`exchange=owner` was ignored: the frames of 8 bits, owner were gathered." in page
