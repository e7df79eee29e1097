"""bench/results: what becomes of several runs of a benchmark, and of a limit that was missed."""

import json
import pathlib
import subprocess
import sys

import pytest

RESULTS = pathlib.Path(__file__).resolve().parents[2] / "bench" / "results"
sys.path.insert(0, str(RESULTS))
import runs  # noqa: E402


def run(rate, peer):
    """The file of a benchmark: one row is ours, one a peer's."""
    rows = [{"codec": "ours", "bits": 8.1, "decode": {"median": rate, "low": rate / 2}}, {"codec": "peer", "bits": 9, "decode": {"median": peer, "low": peer}}]
    return {"commit": "0123456789ab", "rows": rows}


def test_the_median_of_runs_counts_and_a_ratio_is_taken_run_by_run():
    made = runs.merged([run(3.0, 2.0), run(1.0, 4.0), run(2.0, 8.0)])
    ours, peer = made["rows"]
    assert made["commit"] == "0123456789ab" and ours["bits"] == 8.1
    assert ours["decode"] == {"median": 2.0, "median_runs": [3.0, 1.0, 2.0], "low": 1.0}
    assert runs.runs_of(ours["decode"], "median") == [3.0, 1.0, 2.0] and runs.runs_of(run(5.0, 1.0)["rows"][0]["decode"], "median") == [5.0]
    assert runs.median_ratio(ours["decode"], peer["decode"]) == 0.25  # of 1.5, 0.25 and 0.25, not 2.0 / 4.0


def test_runs_of_other_rows_are_no_runs_of_one_benchmark():
    other = run(1.0, 1.0)
    other["rows"].pop()
    with pytest.raises(AssertionError):
        runs.merged([run(1.0, 1.0), other])


def test_what_is_kept_reads_back(tmp_path):
    runs.keep(tmp_path / "kept.json", [run(1.0, 1.0), run(2.0, 1.0), run(4.0, 1.0)])
    saved = json.loads((tmp_path / "kept.json").read_text())
    assert saved["runs"] == 3 and saved["rows"][0]["decode"]["median"] == 2.0 and len(saved["rows"]) == 2


@pytest.mark.parametrize("rate, verdict", [(1.0, "met, all 2"), (0.5, "**missed**, 1 of 2: `golomb` encode 0.5 of 1")])
def test_reach_marks_what_was_missed(tmp_path, rate, verdict):
    """Runs a copy of the scripts with one row; nothing else is measured."""
    folder = tmp_path / "bench" / "results"
    folder.mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "ratio").symlink_to(RESULTS.parents[1] / "tests" / "ratio")
    for name in ("reach.py", "runs.py", "accumulated.json"):
        (folder / name).write_text((RESULTS / name).read_text())
    speeds = {"encode": {"median": rate}, "decode": {"median": 2.5}}
    row = {"group": "indices", "set": "uniform, d = 2.5e+09, r = 250000", "codec": "golomb", "of": "deepreduce", "bits": 14.8, "bits_over": 0.05, **speeds}
    (folder / "peers.json").write_text(json.dumps({"commit": "0", "date": "today", "machine": {}, "rows": [row]}))
    subprocess.run([sys.executable, folder / "reach.py"], check=True)
    lines = (folder / "reach.md").read_text().splitlines()
    assert f"| {verdict} |" in next(line for line in lines if line.startswith("| d / r = 10⁴"))
    assert "| not measured yet | not measured yet |" in next(line for line in lines if line.startswith("| Index sets, uniform"))


def test_the_page_of_reports_has_what_training_measured():
    pytest.importorskip("torch")
    import train_report

    rows = train_report.read(RESULTS / "train.jsonl")
    made = train_report.page_facts(rows)
    assert json.loads(train_report.OUT.read_text("utf-8")) == made, "python3 bench/results/train_report.py writes it anew"
    dense = [row["score"] for row in rows if row["kind"] == "quality" and (row["model"], row["method"], row["ranks"]) == ("lstm", "dense", 2) and row["steps"] == 500]
    model, = [m for m in made["models"] if (m["model"], m["ranks"]) == ("lstm", 2)]
    assert model["dense"]["mean"] == pytest.approx(sum(dense) / len(dense), rel=1e-3) and model["dense"]["low"] == pytest.approx(min(dense), rel=1e-3)


def test_pages_have_some_rows_and_say_where_all_are():
    import avx2
    import peers

    some, whole = peers.remade(), peers.remade(None)
    sets = len(peers.sets_of(json.loads((RESULTS / "peers.json").read_text("utf-8"))))
    assert whole.count("\n### ") == sets and some.count("\n### ") == 4 and f"3 of the {sets} sets" in some
    # A row that misses its target is on the page whatever its set.
    rows = avx2.rows_of("peers_avx2.json")[1]
    missed = [key for key in rows if key[0] == "values" and key[2].split("(")[0] in avx2.QUANTISERS and "missed" in avx2.verdict(rows, key)]
    page = (RESULTS / "avx2.md").read_text("utf-8")
    assert missed and all(f"| {key[1]} | `{key[2]}` |" in page for key in missed)
    assert max(len(path.read_text("utf-8").splitlines()) for path in (RESULTS / "peers.md", RESULTS / "avx2.md", RESULTS / "predictions.md")) <= 200
