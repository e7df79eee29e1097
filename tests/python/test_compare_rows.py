"""What deepreduce.compare returns: a list of rows that makes tables, choices, pictures and pages."""

import importlib.util
import inspect
import json
import re
import subprocess
import sys
import types

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce import Rows  # noqa: E402
from deepreduce._native import _tool  # noqa: E402
from tool_runs import TOOL, needs_tool  # noqa: E402

needs_matplotlib = pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="no matplotlib")

TOPR = "sparsify=topr(ratio=0.01) "
RAW, LOG, HALF = TOPR + "index=golomb value=raw", TOPR + "index=golomb value=log_quant", "index=all value=half"


def row(plan, size, error, total, time, below=9e9, **more):
    return {"input": "g.npz", "tensor": "*", "step": 1, "dtype": "f32", "d": 10_000, "plan": plan, "bytes": size, "relative_l2_error": error,
            "total_error": total, "encode_ns": time, "decode_ns": 500, "pays_below_bf16": below, "samples": {"encode_ns": [time]}, **more}  # fmt: skip


MEMCPY = {"input": "g.npz", "tensor": "*", "step": 1, "d": 10_000, "plan": "memcpy", "bytes": 40_000, "encode_ns": 1, "decode_ns": 1}
ROWS = Rows([MEMCPY, row(RAW, 500, 0.0, 0.95, 9_000), row(LOG, 100, 0.05, 0.951, 12_500, sparsify_ns=1_000), row(HALF, 20_000, 2e-4, 2e-4, 400, 0)], {"machine": {"cores": 2}})


@needs_tool
def test_compare_returns_a_list_of_rows_with_its_document():
    x = numpy.random.default_rng(0).standard_normal(3000).astype("f4")
    rows = deepreduce.compare(x, [RAW, LOG], repeat=1, seed=3)
    assert isinstance(rows, Rows) and isinstance(rows, list) and [row["plan"] for row in rows] == ["memcpy", RAW, LOG]
    assert rows.document["seed"] == 3 and "rows" not in rows.document
    assert repr(rows) == "<Rows 2 plans>" and rows.best(error=0.2)["plan"] == LOG and rows.best(error=0)["plan"] == RAW


@needs_tool
def test_parameters_are_options_of_the_tool():
    """And every option of the tool is a parameter, but those of the command line alone."""
    parameters = [name for name, one in inspect.signature(deepreduce.compare).parameters.items() if one.kind is one.KEYWORD_ONLY]
    text = subprocess.run([TOOL, "compare", "--help"], capture_output=True, text=True, check=True).stdout
    options = set(re.findall(r"^  (?:-\w,)?--([a-z-]+)", text, flags=re.M))
    assert len(parameters) > 20 and {name.replace("_", "-") for name in parameters} <= options
    of_the_command_line = {"help", "help-all", "plan", "format", "output", "from", "wide", "all", "quiet", "columns"}
    assert options - {name.replace("_", "-") for name in parameters} <= of_the_command_line
    with pytest.raises(TypeError, match="output"):
        deepreduce.compare(numpy.ones(3, "f4"), RAW, output="rows.json")


def test_best_is_the_smallest_within_the_limits():
    assert ROWS.best()["plan"] == LOG and ROWS.best(error=0.01)["plan"] == RAW and ROWS.best(total_error=0.5)["plan"] == HALF
    assert ROWS.best(by="encode_ns+decode_ns")["plan"] == HALF and ROWS.best(error=0.05, by="encode_ns")["plan"] == HALF
    with pytest.raises(deepreduce.ArgumentError, match="no plan has a total error of at most 1e-05: the smallest is 0.0002"):
        ROWS.best(total_error=1e-5)
    with pytest.raises(deepreduce.ArgumentError, match="no row with a number in 'verdict'"):
        Rows([row(RAW, 500, 0.0, 0.95, 9_000, verdict=None)]).best(by="verdict")


def test_best_and_plot_say_which_names_there_are():
    for by, words in (("bites", "column 'bites': in none of the rows; is it 'bytes'?"), ("bytes+x", "column 'x': in none of the rows; `deepreduce help columns`")):
        with pytest.raises(deepreduce.ArgumentError, match=re.escape(words)):
            ROWS.best(by=by)
    two = Rows([row(LOG, 50, 0.5, 0.99, 1, tensor="conv.weight"), row(LOG, 50, 0.5, 0.99, 1, tensor="fc")])
    for choose in (Rows.best, Rows.plot):
        for rows, asked, words in (
            (ROWS, {"tensor": "emb.weight"}, "no row has tensor='emb.weight'; the rows have '*' (all tensors of an input, joined: per_tensor=True"),
            (ROWS, {"input": "x"}, "no row has input='x'; the rows have 'g.npz'"),
            (two, {"tensor": "conv.weigth"}, "no row has tensor='conv.weigth'; is it 'conv.weight'?"),
            (two, {"tensor": "a"}, "no row has tensor='a'; the rows have 'conv.weight', 'fc'"),
        ):  # fmt: skip
            with pytest.raises(deepreduce.ArgumentError, match=re.escape(words)):
                choose(rows, **asked)


def test_slices_and_sums_are_rows_with_the_document():
    assert ROWS[1]["plan"] == RAW and type(ROWS[1]) is dict
    for some in (ROWS[:2], ROWS[::2], ROWS + ROWS[1:], ROWS + list(ROWS), sum([ROWS[:2], ROWS[2:]], Rows())):
        assert isinstance(some, Rows) and some.best()["plan"] in (RAW, LOG)
    assert ROWS[:2].document == (ROWS + ROWS).document == ROWS.document and len(ROWS + ROWS) == 8 and list(ROWS[1:3]) == list(ROWS)[1:3]


def test_best_chooses_within_one_tensor():
    two = Rows([*ROWS, row(LOG, 50, 0.5, 0.99, 1, tensor="fc")])
    with pytest.raises(deepreduce.ArgumentError, match=r"2 values of tensor \('\*', 'fc'\): best chooses among the plans of one; select it with tensor="):
        two.best()
    assert two.best(tensor="fc")["bytes"] == 50 and two.best(tensor="*")["bytes"] == 100
    assert [row["bytes"] for row in two.select(tensor="fc")] == [50] and repr(two) == "<Rows 3 plans of 2 tensors>"


def test_a_table_has_five_columns_and_no_memcpy():
    lines = str(ROWS).splitlines()
    assert lines[0] == "g.npz: 10,000 f32" and len(lines) == 5 and "memcpy" not in str(ROWS)
    columns = [re.split(r"\s{2,}", line) for line in lines[1:]]
    assert columns[0] == ["plan", "smaller", "coding error", "encode + decode", "pays below"]
    assert columns[1] == [RAW, "×80", "0", "9.5 µs", "9 Gb/s"] and columns[2] == [LOG, "×400", "5 %", "14 µs", "9 Gb/s"]
    assert columns[3] == [HALF, "×2", "0.02 %", "900 ns", "never"]


def test_html_is_escaped_and_ends_somewhere():
    text = ROWS._repr_html_()
    assert text.count("<tr>") == 4 and text.count("<th>") == 5 and "memcpy" not in text and "9.5 µs" in text
    hostile = Rows([row("<script>x</script>", 1, 0.0, 0.0, 1, input="<b>", tensor='"&')])
    assert "<script" not in hostile._repr_html_() and "<b>" not in hostile._repr_html_() and "&lt;script&gt;" in hostile._repr_html_()
    many = Rows([row(RAW, i, 0.0, 0.9, 1, tensor=str(i // 50)) for i in range(1, 120)])
    assert many._repr_html_().count("<td style") == 60 and "… and 59 rows more" in many._repr_html_() and "… and 59 rows more" in str(many)
    assert Rows()._repr_html_() == "&lt;Rows 0 plans&gt;"


def test_frame_is_made_by_pandas(monkeypatch):
    given = []
    pandas = types.SimpleNamespace(DataFrame=lambda rows: given.append(rows) or "frame")
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    assert ROWS.frame() == "frame"
    assert [one["plan"] for one in given[0]] == ["memcpy", RAW, LOG, HALF] and not any("samples" in one for one in given[0])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(deepreduce.LibraryError, match="pip install pandas"):
        ROWS.frame()


def test_frame_of_pandas_itself():
    pytest.importorskip("pandas", reason="pandas is missing: pip install pandas")
    frame = ROWS.frame()
    assert list(frame.index) == [0, 1, 2, 3] and frame.bytes.tolist() == [40_000, 500, 100, 20_000] and frame.total_error.isna().sum() == 1


@needs_matplotlib
def test_plot_is_the_picture_of_the_command(tmp_path):
    figure = ROWS.plot(tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text("utf-8")
    assert "g.npz" in text and "total error" in text and figure._repr_png_().startswith(b"\x89PNG")
    assert sorted(re.findall(r"<text[^>]*>([^<]* · [^<]*)</text>", text)) == [
        "dense · half", "topr(1 %) · golomb · log_quant", "topr(1 %) · golomb · raw"]  # fmt: skip
    # Of one sparsifier the total errors are about equal.
    axes = Rows(ROWS[:3]).plot().axes[0]
    assert axes.get_ylabel() == "coding error" and ROWS.plot(y="encode_ns+decode_ns").axes[0].get_ylabel() == "encode_ns+decode_ns"
    for arguments, words in ((("x.gif",), "not one of .svg"), ((tmp_path / "no/x.svg",), "cannot be written")):
        with pytest.raises(deepreduce.ArgumentError, match=words):
            ROWS.plot(*arguments)
    with pytest.raises(deepreduce.ArgumentError, match="a picture shows one; select it with tensor="):
        Rows([*ROWS, row(LOG, 50, 0.5, 0.99, 1, tensor="fc")]).plot()


def test_plot_without_matplotlib_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(deepreduce.LibraryError, match="pip install matplotlib"):
        ROWS.plot()


@needs_tool
def test_report_writes_the_page_of_the_tool(tmp_path):
    x = numpy.random.default_rng(0).standard_normal(3000).astype("f4")
    rows = deepreduce.compare({"a.weight": x}, [RAW, LOG], repeat=1)
    page = tmp_path / "report.html"
    rows.report(page)
    text = page.read_text("utf-8")
    assert text.startswith("<!doctype html>") and LOG in text and str(rows[2]["bytes"]) in text
    with pytest.raises(deepreduce.ArgumentError, match="report: .*cannot write"):
        rows.report(tmp_path / "no" / "report.html")


def test_rows_of_a_saved_document_have_the_same_methods(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps({"schema": "deepreduce-compare-1", "rows": list(ROWS)}))
    document = json.loads((tmp_path / "rows.json").read_text())
    for rows in (Rows(document["rows"]), Rows(document)):
        assert list(rows) == list(ROWS) and rows.best(error=0.01) == ROWS.best(error=0.01)
    assert Rows(document).document == {"schema": "deepreduce-compare-1"}
    for wrong, words in (({"schema": "x"}, "rows is a dict without 'rows'"), ("rows.json", "rows is 'rows.json', not dicts or a document"),
                         (3, "rows is 3, not dicts"), (["plan"], "rows[0] is 'plan', not a dict")):  # fmt: skip
        with pytest.raises(deepreduce.ArgumentError, match=re.escape(words)):
            Rows(wrong)


@needs_tool
def test_notes_are_warnings_and_failures_name_the_tensor():
    inputs = {"a": numpy.ones(2000, "f4"), "b": numpy.full(2000, numpy.nan, "f4"), "i": numpy.arange(9), "s": numpy.ones(9, "f4"), "d": numpy.full(1000, 1e300)}
    with pytest.warns(UserWarning) as caught:
        deepreduce.compare(inputs, "index=all value=half", repeat=1, per_tensor=True)
    lines = [str(one.message) for one in caught]
    for words in ("skipped: array: i.npy: byte 10: dtype '<i8' is not a float", "array: d: float64, converted to float32: 1000 values too large: became infinite",
                  "array: left out 1 tensor of less than 1000 elements", "array b: index=all value=half: ARGUMENT: "):  # fmt: skip
        assert sum(line.startswith(words) for line in lines) == 1, lines
    assert not any("note: " in line or "deepreduce: " in line for line in lines)
    with pytest.warns(UserWarning, match=r"^array: index=raw value=qsgd: ARGUMENT"):
        deepreduce.compare(inputs["b"], "index=raw value=qsgd", repeat=1)


@needs_tool
def test_a_row_that_is_worse_is_a_failure_with_its_columns(tmp_path):
    x = numpy.random.default_rng(0).standard_normal(3000).astype("f4")
    rows = deepreduce.compare(x, [RAW, LOG], repeat=1)
    better = [{**one, "bytes": one["bytes"] // 2 if one["plan"] == LOG else one["bytes"]} for one in rows]
    untimed = [{name: value for name, value in one.items() if "_ns" not in name and name != "samples"} for one in better]
    (tmp_path / "old.json").write_text(json.dumps({**rows.document, "rows": untimed}))
    with pytest.warns(UserWarning) as caught:
        rows = deepreduce.compare(x, [RAW, LOG], repeat=1, against=tmp_path / "old.json", fail_if_worse=True)
    assert [str(one.message) for one in caught] == [f"array: {LOG}: worse than in {tmp_path / 'old.json'}: bytes"]
    assert [failure["plan"] for failure in rows.document["failures"]] == [LOG]


@needs_tool
def test_answers_of_best_are_in_the_document_beside_all_rows():
    x = numpy.random.default_rng(0).standard_normal(3000).astype("f4")
    rows = deepreduce.compare(x, [RAW, LOG], repeat=1, best="total_error < 1", best_by="value_bytes")
    assert [row["plan"] for row in rows] == ["memcpy", RAW, LOG] and [one["plan"] for one in rows.document["best"]] == [LOG]


@needs_tool
def test_a_number_as_the_link_and_a_strange_file_are_refused(tmp_path):
    with pytest.raises(deepreduce.ArgumentError, match=r"link is 10000000000.0, not a text with a unit, such as '10Gb/s'"):
        deepreduce.compare(numpy.ones(2000, "f4"), RAW, link=10e9)
    (tmp_path / "g.xyz").write_bytes(b"")
    with pytest.raises(deepreduce.ArgumentError, match=r"give a \.pt, \.npy, \.npz"):
        deepreduce.compare(tmp_path / "g.xyz", RAW)


@needs_tool
def test_a_wrong_plan_is_a_plan_error_and_another_argument_is_not():
    x = numpy.ones(2000, "f4")
    for wrong in ({"plans": "index=nope"}, {"preset": "nope"}, {"plans": "index=rice|nope"}):
        with pytest.raises(deepreduce.PlanError, match="nope"):
            deepreduce.compare(x, **wrong)
    with pytest.raises(deepreduce.ArgumentError, match="--where") as raised:
        deepreduce.compare(x, RAW, where="plan")
    assert not isinstance(raised.value, deepreduce.PlanError)
    assert _tool.find()


def test_a_tool_that_cannot_be_started_is_named(tmp_path, monkeypatch):
    tool = tmp_path / "tool"
    tool.write_bytes(b"\x7fELF of another processor")
    tool.chmod(0o755)
    monkeypatch.setenv(_tool.ENVIRONMENT, str(tool))
    for start in (_tool.run, _tool.run_quietly, _tool.replace_process):
        with pytest.raises(deepreduce.LibraryError, match=f"{tool} cannot be started: Exec format error"):
            start(["presets"])
