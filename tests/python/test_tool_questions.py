"""Questions that `deepreduce compare` answers in one command: sweeps, selection, best plans, totals, layer kinds."""

import csv
import io
import json
import math

import numpy
import pytest

from tool_runs import DATASETS, EXACT, LOSSY, SYNTH, TOPR, compare, needs_tool, refusal, rows_of, run

pytestmark = needs_tool


@pytest.fixture
def model():
    return sorted((DATASETS / "gradients").glob("resnet20*.npz"))[0]


def plans_in(report):
    return [row["plan"] for row in rows_of(report)]


def test_a_sweep_expands_and_each_plan_is_measured_once():
    done = run("compare", SYNTH, "--plan", "sparsify=topr(ratio=0.01|0.02) index=golomb|raw value=log_quant(bits=3..5)", "--plan",
               "sparsify=topr(ratio=1e-2) index=raw value=log_quant(bits=3|3)", "--repeat", 1, "--format", "json")
    plans = plans_in(json.loads(done.stdout))
    assert len(plans) == len(set(plans)) == 12
    assert plans[0] == TOPR + "index=golomb value=log_quant(bits=3)"
    assert "12 plans × 1 input" in done.stderr.decode()


def test_ranges_give_the_documented_values():
    plans = plans_in(compare(SYNTH, plans=("sparsify=topr(ratio=0.001..0.01) index=raw value=raw",)))
    assert [plan.split(")")[0] for plan in plans] == [f"sparsify=topr(ratio={r}" for r in ("0.001", "0.002", "0.005", "0.01")]


def test_inputs_sweep_too():
    report = compare("synth:d=1000|3000,values=laplace|gauss")
    assert [(row["input"].split("values=")[1], row["d"]) for row in rows_of(report)] == [
        ("laplace", 1000), ("gauss", 1000), ("laplace", 3000), ("gauss", 3000)]


def test_an_expanded_plan_that_is_none_is_shown():
    message = refusal("compare", SYNTH, "--plan", "index=golomb|nothing value=raw")
    assert "'index=nothing value=raw'" in message and "expanded from 'index=golomb|nothing value=raw'" in message
    assert "position" in refusal("compare", SYNTH, "--plan", "index=golomb(")


def test_too_many_plans_are_refused_at_once():
    message = refusal("compare", SYNTH, "--plan", "sparsify=topr(count=1..9999999) index=golomb")
    assert "10000" in message and "topr(count=1..9999999)" in message
    assert "--limit" in refusal("compare", SYNTH, "--limit", 3, "--plan", "index=golomb|raw value=raw|qsgd")


def test_where_and_sort_choose_rows():
    plans = (EXACT, LOSSY, TOPR + "index=raw value=raw")
    report = compare(SYNTH, "--where", "relative_l2_error == 0 and plan ~ '*value=raw'", "--sort", "-bytes", plans=plans)
    assert [row["plan"] for row in report["rows"]] == [plans[2], EXACT]
    ascending = compare(SYNTH, "--where", "relative_l2_error == 0", "--sort", "-bytes + 2 * bytes", plans=plans)  # a sum, whose first term is negative
    assert [row["plan"] for row in ascending["rows"]] == [EXACT, plans[2]]
    for form in ("table", "wide"):
        table = compare(SYNTH, "--where", "bytes < 1e5", "--sort", "bytes", plans=plans, form=form)
        assert table.index("golomb value=qsgd") < table.index("golomb value=raw") < table.index("index=raw value=raw")


@pytest.mark.parametrize("option", ["--where", "--best"])
def test_a_condition_is_checked_before_anything_is_measured(option):
    message = refusal("compare", "none.npy", option, "total_eror < 1")
    assert option in message and "no column 'total_eror'" in message and "total_error" in message
    assert "--sort" in refusal("compare", "none.npy", "--sort", "bytes < 1")
    assert "--best-by 'nothing'" in refusal("compare", "none.npy", "--best", "bytes > 1", "--best-by", "nothing")
    assert "--pareto 'byts'" in refusal("compare", "none.npy", "--pareto=byts")


def test_pareto_leaves_what_nothing_beats():
    plans = ("sparsify=topr(ratio=0.01..0.1) index=golomb|raw value=raw",)
    front = rows_of(compare(SYNTH, "--pareto=bytes,total_error", plans=plans))
    everything = rows_of(compare(SYNTH, plans=plans))
    expected = [a["plan"] for a in everything if not any(
        b["bytes"] <= a["bytes"] and b["total_error"] <= a["total_error"] and (b["bytes"], b["total_error"]) != (a["bytes"], a["total_error"])
        for b in everything)]
    assert [row["plan"] for row in front] == expected and 0 < len(expected) < len(everything)
    assert len(rows_of(compare(SYNTH, "--pareto", plans=plans))) >= len(expected)


def test_totals_are_sums_and_errors_by_energy(model):
    report = compare(model, "--per-tensor", plans=(EXACT, LOSSY))
    assert [total["plan"] for total in report["totals"]] == ["memcpy", EXACT, LOSSY]
    for total in report["totals"][1:]:
        rows = [row for row in report["rows"] if row["plan"] == total["plan"]]
        assert total["tensors"] == len(rows) > 10
        for column in ("bytes", "d", "r", "encode_ns", "decode_ns", "missed"):
            assert total[column] == sum(row[column] for row in rows), column
        energy = sum(row["gradient_energy"] for row in rows)
        error = math.sqrt(sum(row["total_error"] ** 2 * row["gradient_energy"] for row in rows) / energy)
        assert total["total_error"] == pytest.approx(error, rel=1e-12)
        worst = max(rows, key=lambda row: row["total_error"])
        assert (total["worst_tensor"], total["worst_error"]) == (worst["tensor"], worst["total_error"])


def test_a_model_joined_and_tensor_by_tensor_have_the_same_energy(model):
    joined, = rows_of(compare(model, "--tensor", "*", "--flat"))
    apart = compare(model, "--tensor", "*")["totals"][1]
    assert joined["gradient_energy"] == pytest.approx(apart["gradient_energy"], rel=1e-9)


def test_many_tensors_are_one_table_with_totals_above(model):
    table = compare(model, "--per-tensor", plans=(EXACT, LOSSY), form="wide")
    assert table.count(" energy ") == 2  # headings: of the totals, of the rows
    assert table.index("Totals") < table.index("worst tensor") < table.index("layer3.0.conv2.weight, conv")


def test_headings_of_a_table_are_whole_and_plans_lack_what_all_have(tmp_path):
    names = [f"encoder.layers.{i}.a_very_long_name_of_a_module.that_goes_on_and_on.weight" for i in range(3)]
    numpy.savez(tmp_path / "m.npz", **{name: numpy.ones((2, 600), "f4") for name in names})
    table = compare(tmp_path / "m.npz", "--per-tensor", plans=(EXACT, LOSSY), form="wide")
    assert all(f"\n{name}, linear, d = 1,200\n" in table for name in names)
    assert "all plans: sparsify=topr(ratio=0.01) index=golomb\n" in table and "\n  value=qsgd " in table
    assert max(map(len, table.splitlines())) <= 180


def test_kinds_of_layers_are_a_column(model):
    rows = rows_of(compare(model, "--tensor", "*"))
    kinds = {row["tensor"]: row["kind"] for row in rows}
    assert kinds["conv1.weight"] == "conv" and kinds["bn1.weight"] == "norm_bias" and kinds["linear.weight"] == "linear"
    assert rows_of(compare(SYNTH))[0]["kind"] is None


def test_best_names_a_plan_for_the_model_and_for_each_kind(model):
    plans = ("sparsify=topr(ratio=0.01|0.1|0.5) index=golomb value=raw|qsgd",)
    report = compare(model, "--tensor", "*", "--best", "total_error <= 0.4", plans=plans)
    answers = {(a["scope"], a["kind"]): a for a in report["best"]}
    assert ("model", None) in answers and ("kind", "conv") in answers and ("kind", "linear") in answers
    rows = rows_of(report)
    for (scope, kind), answer in answers.items():
        chosen = [row for row in rows if scope == "model" or row["kind"] == kind]
        totals = {}
        for row in chosen:
            bytes_, lost, energy = totals.get(row["plan"], (0, 0, 0))
            totals[row["plan"]] = (bytes_ + row["bytes"], lost + row["total_error"] ** 2 * row["gradient_energy"], energy + row["gradient_energy"])
        meeting = {plan: t[0] for plan, t in totals.items() if t[1] <= 0.4**2 * t[2]}
        assert answer["total"]["bytes"] == min(meeting.values()) and meeting[answer["plan"]] == min(meeting.values())
    text = compare(model, "--tensor", "*", "--best", "total_error <= 0.4", plans=plans, form="table")
    assert f"{model.name} (" in text and "the plan of least bytes with total_error <= 0.4 is 'sparsify=topr(ratio=0." in text


def test_best_says_the_nearest_where_no_plan_meets_the_condition():
    plans = ("sparsify=topr(ratio=0.01|0.1) index=golomb value=raw",)
    answer, = compare(SYNTH, "--best", "total_error <= 0.001", plans=plans)["best"]
    assert answer["plan"] is None and answer["nearest"].startswith("sparsify=topr(ratio=0.1)")
    fastest, = compare(SYNTH, "--best", "total_error < 1", "--best-by", "-bytes", plans=plans)["best"]
    assert fastest["plan"].startswith("sparsify=topr(ratio=0.1)")


def test_best_says_what_is_not_known_instead_of_no_plan():
    plans = ("sparsify=topr(ratio=0.01|0.1) index=golomb value=raw",)
    for question in (("--best", "step_ns < 1e9"), ("--best", "bytes < 1e9", "--best-by", "step_ns")):
        answer, = compare(SYNTH, *question, plans=plans)["best"]
        assert answer["plan"] is None and answer["nearest"] is None and answer["unknown"] == ["step_ns"]
    text = compare(SYNTH, "--best", "step_ns < 1e9", plans=plans, form="table")
    assert "the plan of least bytes with step_ns < 1e9 is unknown, because step_ns is unknown" in text
    # Known facts are reported for any criterion; a missing preset is not an unknown one.
    nearest, = compare(SYNTH, "--best", "total_error <= 0.001", "--best-by", "step_ns", plans=plans)["best"]
    assert nearest["nearest"] and "unknown" not in nearest
    assert "unknown" not in compare(SYNTH, "--best", "preset = 'x'", plans=plans)["best"][0]


def test_several_inputs_have_an_answer_each_and_one_together():
    answers = compare("synth:d=2000|4000", "--best", "relative_l2_error == 0")["best"]
    assert [a["scope"] for a in answers] == ["model", "model", "all"]
    assert answers[2]["total"]["bytes"] == sum(a["total"]["bytes"] for a in answers[:2])


def test_the_name_of_the_output_chooses_the_format(tmp_path):
    for name, begin in (("a.json", "{"), ("a.csv", "input,"), ("a.md", "| plan |"), ("a.txt", "synth:")):
        run("compare", SYNTH, "--plan", EXACT, "--repeat", 1, "--output", tmp_path / name)
        assert (tmp_path / name).read_text().startswith(begin), name
    run("compare", SYNTH, "--plan", EXACT, "--repeat", 1, "--format", "csv", "-o", tmp_path / "b.txt")
    assert next(csv.reader(io.StringIO((tmp_path / "b.txt").read_text())))[0] == "input"
    assert "--output x.json: the name says json, --format says csv" in refusal("compare", SYNTH, "--format", "csv", "--output", "x.json")
    for page in (("--format", "html"), ("--output", "x.html")):
        assert "a page is `--report FILE.html`" in refusal("compare", SYNTH, *page)
    for figure in ("png", "svg"):
        assert "python -m deepreduce figure" in refusal("compare", SYNTH, "--format", figure)
        assert "python -m deepreduce figure" in refusal("compare", SYNTH, "--output", f"x.{figure}")


def test_markdown_is_a_table(model):
    lines = [line for line in compare(model, "--tensor", "conv1.*", "--tensor", "linear.weight", form="md").splitlines() if line.startswith("|")]
    assert lines[0].startswith("| plan |") or lines[0].startswith("| tensor |")
    assert len({line.count("|") for line in lines[-3:]}) == 1
    text = compare(model, "--per-tensor", form="md")
    assert "\n\nworst tensor of 1 plan: " in text  # else the line were a row of the table above


def test_nothing_but_errors_on_stderr_where_it_is_no_terminal():
    assert run("compare", SYNTH, "--plan", EXACT, "--repeat", 1).stderr == b""


def test_help_codecs_and_presets_take_a_name():
    assert run("help").stdout == run("--help").stdout
    assert run("help", "encode").stdout == run("encode", "--help").stdout
    assert "deepreduce help" in refusal("help", "nothing")
    text = run("codecs", "bloom").stdout.decode()
    assert text.startswith("index=bloom") and "golomb" not in text.split("\n")[0] and "fpr" in text
    assert {c["role"] for c in json.loads(run("codecs", "value", "--format", "json").stdout)} == {"value"}
    assert len(json.loads(run("codecs", "index=golomb", "--format", "json").stdout)) == 1
    assert "'nothing'" in refusal("codecs", "nothing") or "nothing" in refusal("codecs", "nothing")
    assert "BP128" in run("presets", "fastpfor").stdout.decode() and "SKCompress" not in run("presets", "fastpfor").stdout.decode()
    assert "index=rle" in run("presets", "RLE").stdout.decode()
    assert "deepreduce presets" in refusal("presets", "nothing")
