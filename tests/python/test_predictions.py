"""bench/predict_proof: the table of predictions against measurements."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")
pytest.importorskip("torch", reason="torch is missing: pip install torch")

from bench.predict_proof import book_page, proof_book, proof_grid, proof_run, proof_table  # noqa: E402
from test_predict import EXACT, LOSSY, model, profile  # noqa: E402, F401
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
    summary = proof_table.summary(ROWS)
    assert summary["rows"] == 7 and summary["median_error"] == pytest.approx(0.1667, abs=1e-4)
    assert summary["within_20"] == pytest.approx(4 / 7, abs=1e-4)  # 10 %, 17 %, 12.5 % and 0 %


def test_an_order_counts_where_times_are_apart():
    # Of 2 ranks: dense and bf16 (wrong), dense and top1, bf16 and top1, bf16 and top1_log (wrong), top1 and top1_log. Of 4: wrong.
    assert proof_table.orders(ROWS) == (3, 6)


def test_a_verdict_is_against_the_faster_dense_step():
    # top1 pays, as predicted; top1_log is within 10 % and does not count; with 4 ranks top1 does not pay, against the prediction.
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
    shifted = [proof_table.with_skew(row) for row in rows]
    assert [row["predicted_ns"] for row in shifted] == [110, 55, 5] and shifted[2] == ROWS[6]
    assert [row["error"] for row in shifted[:2]] == [0.1, 0.1] and [proof_table.with_skew(row) for row in shifted] == shifted
    text = proof_table.markdown(shifted, "x.svg", "x.py")
    assert "median 5.0 % of the step, at most 10.0 %" in text and "Recomputed" in text
    recorded = proof_table.markdown([{**row, "skew_added": False} for row in shifted], "x.svg", "x.py")
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

    class Paths:
        profile_path, model_path = (lambda self, c: profile), (lambda self, c: model)
        book_path = lambda self, c: tmp_path / "a book.txt"

    monkeypatch.setattr(proof_grid, "HOOKED", ("local", "dense", "book"))  # the profile has no others
    c, proof = proof_grid.Condition("steps", "toy", 2, "unshaped"), Paths()
    errors = ["--error", f"{EXACT}: 0", "--error", f"{LOSSY}: 0.01"]
    path = proof_run.write_book(TOOL, profile, model, c.ranks, proof.book_path(c), errors)
    assert len(deepreduce.book.read(path)) >= 1
    steps = proof_table.predicted(TOOL, proof, c)
    assert 0 < steps["book"] <= steps["dense"]
    fast = proof_run.write_book(TOOL, profile, model, c.ranks, tmp_path / "fast.txt", [*errors, "--link", "100Tb/s,1ns"])
    assert list(deepreduce.book.read(fast)) == [("*", None)]  # no book helps there
    with pytest.raises(RuntimeError, match="deepreduce plan ended with 2: .*nowhere"):
        proof_run.write_book(TOOL, tmp_path / "nowhere", model, c.ranks, path)


def test_there_are_rows_enough_for_the_proof():
    conditions = proof_grid.conditions(None, None, None, ("steps", "exchanges"))
    rows = sum(len(proof_grid.HOOKED) - 1 if c.kind == "steps" else len(proof_grid.exchange_plans()) for c in conditions)
    assert rows >= 40 and {(c.ranks, c.link) for c in conditions} == {(n, link) for n in (2, 4) for link in proof_grid.LINKS}
    assert all("feedback=residual" in plan or plan == "index=all value=raw" for plan in proof_grid.calibrated_plans())


@needs_tool
def test_rounds_of_an_outer_loop_are_predicted_as_they_were_measured():
    sys.path.insert(0, str(ROOT / "bench" / "results"))
    import outer_rounds

    stored = json.loads(outer_rounds.STORED.read_text("utf-8"))
    by_link = {link: outer_rounds.predicted(stored, link, TOOL) for link in outer_rounds.ROUNDS}
    rows = [row for of_link in by_link.values() for row in of_link]
    assert len(rows) == 2 * len(outer_rounds.PLANS) * len(outer_rounds.EVERY)
    errors = sorted(abs(row["error"]) for row in rows)
    assert errors[len(errors) // 2] < 0.2 and errors[-1] < 0.3
    # By bytes, too, and so is the order of plans at every link and H.
    dense = [row for row in rows if row["plan"] != outer_rounds.SPARSE]
    assert all(row["sent_bytes"] == pytest.approx(row["sent"], rel=1e-3) for row in dense)
    for of_link in by_link.values():
        for every in outer_rounds.EVERY:
            of_every = [row for row in of_link if row["every"] == every]
            assert sorted(of_every, key=lambda row: row["measured"]) == sorted(of_every, key=lambda row: row["round_ns"])
    page = (ROOT / "bench" / "results" / "outer_rounds.md").read_text("utf-8")
    assert all(f"| {row['measured']:.3f} s |" in page for row in rows)


def candidate(measured, low, high, predicted, sent=1000, identical=True):
    ms = {"measured_ns": measured, "q1_ns": low, "q3_ns": high, "predicted_ns": predicted}
    return {**{key: round(1e6 * value) for key, value in ms.items()}, "rounds_ns": [], "sent": sent, "identical": identical}


def book_row(**more):
    times = {"dense": (90, 88, 95, 80), "bf16": (50, 48, 55, 45), "uniform": (30, 28, 33, 26), "book": (24, 22, 27, 20)}
    row = {
        "model": "lstm", "link": "100mbit", "rate": 95e6, "budget": 0.05, "error": 0.04, "commit": "abc", "same": False,
        "uniform_plan": "value=u", "book": [{"pattern": "a", "plan": "dense"}, {"pattern": "*", "plan": "value=b"}],
        "recorded_ns": 11, "local": {"measured_ns": 10}, "candidates": {name: candidate(*times_) for name, times_ in times.items()},
    }  # fmt: skip
    return {**row, **more}


def test_a_book_is_faster_where_quartiles_do_not_overlap():
    row = book_row()
    assert book_page.verdicts(row) == {"uniform": "faster", "dense": "faster"}  # 27 < 28, and 27 < 48 of bf16
    row["candidates"]["uniform"] = candidate(26, 25, 28, 26)
    assert book_page.verdicts(row)["uniform"] == "same"
    row["candidates"]["bf16"] = candidate(20, 19, 21, 20)
    assert book_page.verdicts(row)["dense"] == "slower"
    assert book_page.verdicts({**row, "same": True})["uniform"] == "same plan"


def test_the_page_of_books_has_the_last_row_of_each():
    rows = [book_row(error=0.01), book_row(), book_row(budget=0.1, same=True)]
    text = book_page.page(rows, "x.jsonl")
    assert text.count("| lstm | 95 Mbit/s |") == 2 and "| 0.05 | 0.040 |" in text and "0.010" not in text
    assert "| 30.0 [28.0, 33.0] (26.0) | 24.0 [22.0, 27.0] (20.0) | faster, 0.80 x | faster |" in text
    assert "of 2 rows, faster in 1, same in 0, slower in 0; in 1 the best uniform plan is the book" in text
    assert "uniform `value=u`; the book\n\n```\na: dense\n*: value=b\n```\n" in text and "+10 to +10 %" in text


def test_equal_plans_are_measured_once(tmp_path):
    import deepreduce

    def report(uniform, *book):
        return {"uniform": {"plan": uniform, "step_ns": 3e9}, "step_ns": 2e9, "dense_step_ns": 9e9, "bf16_step_ns": 5e9,
                "book": [{"pattern": p, "plan": plan} for p, plan in book]}  # fmt: skip

    half, eight = proof_book.PLANS[:2]
    plans = {
        0.02: report(half, ("a", "dense"), ("*", half)), 0.05: report(eight, ("a", half), ("*", eight)), 0.1: report(eight, ("*", eight)),
        0: report("dense", ("a", "dense"), ("*", "dense")),
    }  # fmt: skip
    methods, measured = proof_book.methods_of(plans, tmp_path / "book")
    assert methods[0] == {"uniform": "dense", "book": "dense"} and methods[0.02] == {"uniform": "uniform 0.02", "book": "book 0.02"}
    assert methods[0.05] == {"uniform": "uniform 0.05", "book": "book 0.05"}
    assert methods[0.1] == {"uniform": "uniform 0.05", "book": "uniform 0.05"}
    assert set(measured) == {"uniform 0.02", "book 0.02", "uniform 0.05", "book 0.05"} and measured["uniform 0.05"] == eight
    book = deepreduce.book.as_book(measured["book 0.05"])
    assert [str(plan) for plan in map(book.plan_of, "ab")] == [str(deepreduce.Plan(plan)) for plan in (half, eight)]
    # local, dense, bf16, two uniform plans, of which one was measured before as a book, two books: 2 + 9 + 5 + 3 + 2 + 2 + 2 seconds
    assert proof_book.seconds_of_all({b: plans[b] for b in (0.02, 0.05, 0.1)}, methods) == pytest.approx(25)
    assert proof_book.Turns(36, 5, 60).steps_of(0.1) == 36
    assert proof_book.Turns(36, 5, 60).steps_of(2) == 5 and proof_book.Turns(36, 5, 60).steps_of(26) == 2


def test_a_row_has_what_was_predicted_and_what_was_measured():
    ranks = [{"seconds": [[1e-3, 3e-3], [2e-3, 2e-3]], "sent": 4, "hash": "x"}, {"seconds": [[2e-3, 1e-3], [5e-3, 1e-3]], "sent": 6, "hash": "x"}]
    timed = proof_book.timed(ranks)  # the slower rank's: 2, 3 and 5, 2 ms
    assert timed == {"measured_ns": 2_500_000, "q1_ns": 2_000_000, "q3_ns": 3_500_000, "rounds_ns": [2_500_000, 3_500_000], "sent": 5, "identical": True}
    assert not proof_book.timed([ranks[0], {**ranks[1], "hash": "y"}])["identical"]
    report = {"dense_step_ns": 9, "bf16_step_ns": 8, "step_ns": 6, "uniform": {"plan": "u", "step_ns": 7}, "error": 0.1, "book": [], "exhaustive": True}
    times = {name: {"measured_ns": i} for i, name in enumerate(("dense", "bf16", "uniform 0.1", "book 0.1"))}
    row = proof_book.row_of({"model": "m"}, 0.1, report, {"uniform": "uniform 0.1", "book": "book 0.1"}, times)
    assert [(c["predicted_ns"], c["measured_ns"]) for c in row["candidates"].values()] == [(9, 0), (8, 1), (7, 2), (6, 3)]
    assert not row["same"] and row["uniform_plan"] == "u"


@needs_tool
def test_a_book_under_a_budget_has_mixed_layers_and_is_never_predicted_slower(profile, model, tmp_path):  # noqa: F811
    """The profile is made up, and so are the errors: the budget leaves a small error, of one tensor, not of all."""
    import json

    plans = [cost["plan"] for cost in json.loads(profile.read_text("utf-8"))["costs"]]
    words = [word for plan in dict.fromkeys(plans) if plan != "index=all value=raw" for word in ("--error", f"{plan}: 0.5")]
    path = proof_run.write_book(TOOL, profile, model, 2, tmp_path / "p.json", ["--error-budget", "0.4", *words, "--format", "json"])
    saved = json.loads(path.read_text("utf-8"))
    assert saved["error"] <= 0.4 and saved["step_ns"] <= saved["uniform"]["step_ns"] and saved["uniform"]["plan"] == "dense"
