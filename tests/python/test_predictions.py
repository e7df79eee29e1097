"""bench/predict_proof: what the table of predictions against measurements says of rows."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")
pytest.importorskip("torch", reason="torch is missing: pip install torch")

from bench.predict_proof import proof_grid, proof_run, proof_table  # noqa: E402
from test_predict import model, profile  # noqa: E402, F401
from tool_runs import TOOL, needs_tool  # noqa: E402


def row(plan, measured, predicted, **where):
    place = {"kind": "steps", "what": "lstm", "ranks": 2, "link": "1gbit", "commit": "abc", **where}
    return {**place, "plan": plan, "measured_ns": measured, "predicted_ns": predicted, "error": predicted / measured - 1}


ROWS = [
    row("dense", 100, 110), row("bf16", 120, 100), row("top1", 80, 90), row("top1_log", 95, 130),
    row("dense", 50, 50, ranks=4), row("top1", 100, 45, ranks=4),
    row("top1 exchange=ring", 10, 5, kind="exchanges", what="1000"),
]  # fmt: skip


def test_errors_are_of_what_was_measured():
    told = proof_table.summary(ROWS)
    assert told["rows"] == 7 and told["median_error"] == pytest.approx(0.1667, abs=1e-4)
    assert told["within_20"] == pytest.approx(4 / 7, abs=1e-4)  # 10 %, 17 %, 12.5 % and 0 %


def test_an_order_counts_where_times_are_apart():
    # Of 2 ranks: dense and bf16 (wrong), dense and top1, bf16 and top1, bf16 and top1_log (wrong), top1 and top1_log. Of 4: wrong.
    assert proof_table.orders(ROWS) == (3, 6)


def test_a_verdict_is_against_the_faster_dense_step():
    # top1 pays and was told to; top1_log is within 10 % and does not count; of 4 ranks top1 does not pay, but was told to.
    assert proof_table.verdicts(ROWS) == (1, 2)


def test_the_table_and_the_picture_have_all_rows(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is missing: pip install matplotlib")
    text = proof_table.markdown(ROWS, "x.svg", "x.py")
    assert text.count("| lstm |") == 6 and "| 1,000 elements | 2 | 1 Gbit/s |" in text
    assert "| **all** | 7 | 16.7 % | 57 % | 3 of 6 | 1 of 2 |" in text
    proof_table.picture(ROWS, tmp_path / "x.svg")
    assert "7 rows" in (tmp_path / "x.svg").read_text("utf-8")


def test_the_skew_of_ranks_is_counted_once_and_told():
    rows = [{**ROWS[0], "local_ns": 50, "compute_ns": 60}, {**ROWS[4], "local_ns": 50, "compute_ns": 45}, ROWS[6]]
    told = [proof_table.with_skew(row) for row in rows]
    assert [row["predicted_ns"] for row in told] == [110, 55, 5] and told[2] == ROWS[6]
    assert [row["error"] for row in told[:2]] == [0.1, 0.1] and [proof_table.with_skew(row) for row in told] == told
    text = proof_table.markdown(told, "x.svg", "x.py")
    assert "median 5.0 % of the step, at most 10.0 %" in text and "Recomputed" in text
    recorded = proof_table.markdown([{**row, "skew_added": False} for row in told], "x.svg", "x.py")
    assert "at most 10.0 %" in recorded and "Recomputed" not in recorded
    assert "skew" not in proof_table.markdown(ROWS[6:], "x.svg", "x.py").split("## What")[0]


def test_the_stored_page_counts_the_skew_of_every_step():
    stored = json.loads((ROOT / "bench" / "results" / "predictions.json").read_text("utf-8"))
    steps = [row for row in stored["rows"] if row["kind"] == "steps"]
    assert steps and all(row["skew_ns"] == max(0, row["local_ns"] - row["compute_ns"]) for row in steps)
    assert stored["summary"] == proof_table.summary(stored["rows"])
    assert all(row["error"] == pytest.approx(row["predicted_ns"] / row["measured_ns"] - 1, abs=1e-4) for row in stored["rows"])


def test_what_was_measured_and_is_not_predicted_is_counted():
    class Measured:
        def measured(self, c):
            return {"rows": [{"plan": plan, "measured_ns": 9} for plan in ("local", "dense", "top1", "p0_qsgd")]}

    conditions = [proof_grid.Condition("steps", "lstm", ranks, "1gbit") for ranks in (2, 4)]
    unpredicted = proof_table.unpredicted_of(ROWS, Measured(), conditions)
    assert [(row["plan"], row["ranks"]) for row in unpredicted] == [("p0_qsgd", 2), ("p0_qsgd", 4)]
    text = proof_table.markdown(ROWS, "x.svg", "x.py", unpredicted)
    assert "Of 9 rows that were measured 2 are not predicted" in text and "`p0_qsgd` 2." in text
    assert "All 7 rows that were measured are predicted." in proof_table.markdown(ROWS, "x.svg", "x.py")


@needs_tool
def test_a_plan_book_of_a_condition_is_made_and_predicted(profile, model, tmp_path, monkeypatch):  # noqa: F811
    import deepreduce

    class Kept:
        profile_path, model_path = (lambda self, c: profile), (lambda self, c: model)
        book_path = lambda self, c: tmp_path / "a book.txt"

    monkeypatch.setattr(proof_grid, "HOOKED", ("local", "dense", "book"))  # the profile has no others
    c, proof = proof_grid.Condition("steps", "toy", 2, "unshaped"), Kept()
    path = proof_run.write_book(TOOL, profile, model, c.ranks, proof.book_path(c))
    assert len(deepreduce.book.read(path)) >= 1
    steps = proof_table.predicted(TOOL, proof, c)
    assert 0 < steps["book"] <= steps["dense"]
    with pytest.raises(RuntimeError, match="deepreduce plan ended with 2: .*nowhere"):
        proof_run.write_book(TOOL, tmp_path / "nowhere", model, c.ranks, path)


def test_there_are_rows_enough_for_the_proof():
    conditions = proof_grid.conditions(None, None, None, ("steps", "exchanges"))
    rows = sum(len(proof_grid.HOOKED) - 1 if c.kind == "steps" else len(proof_grid.exchange_plans()) for c in conditions)
    assert rows >= 40 and {(c.ranks, c.link) for c in conditions} == {(n, link) for n in (2, 4) for link in proof_grid.LINKS}
    assert all("feedback=residual" in plan or plan == "index=all value=raw" for plan in proof_grid.calibrated_plans())
