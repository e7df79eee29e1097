"""The commands `predict` and `plan`, and `compare --book`: what they print, write and refuse."""

import csv
import io
import json
import pathlib
import re
import xml.etree.ElementTree

import pytest

from predict_runs import LOSSY, model_in, predict, profile_in, step_of, write
from tool_runs import EXACT, TOPR, needs_tool, refusal, run, write_npy, write_npz

pytestmark = needs_tool

@pytest.fixture
def profile(tmp_path):
    return profile_in(tmp_path)


@pytest.fixture
def model(tmp_path):
    return model_in(tmp_path)


def test_the_model_of_the_hook_has_the_numbers_of_the_hook():
    """They are written twice: the tool links neither torch's hook nor the sender."""
    root = pathlib.Path(__file__).resolve().parents[2]

    def value(path, pattern):
        return eval(re.search(pattern, (root / path).read_text("utf-8"))[1].replace("uint64_t{4}", "4"))

    assert value("tool/predict/hook_model.cpp", r"piece_bytes = (.*);") == value("bindings/python/deepreduce/torch/_slots.py", r"\nPIECE = ([^#\n]*)")
    assert value("tool/predict/hook_model.cpp", r"small_elements = (.*);") == value("lib/sender/units.cpp", r"small_elements = (.*);")
    assert value("tool/predict/hook_model.cpp", r"head = (\d+);") == value("lib/sender/slot_kernel.hpp", r"sizeof\(slot_head\) == (\d+)")
    units = [value(path, pattern) for path, pattern in (
        ("tool/predict/outer_model.cpp", r"unit_bytes = ([^;]*);"), ("lib/sender/units.cpp", r"unit_bytes = ([^;]*);"), ("bindings/python/deepreduce/torch/_exchange.py", r"\nUNIT_BYTES = ([^#\n]*)"))]
    assert units == [4 << 20] * 3


def test_a_prediction_has_all_baselines_and_the_profiles_plans(profile, model):
    report = predict(profile, "--model", model, "--link", "1Gb/s,50us", "--ranks", 8)
    assert report["schema"] == "deepreduce-prediction-1"
    assert [row["candidate"] for row in report["rows"]] == ["dense f32", "dense bf16", "PowerSGD rank 4", EXACT, LOSSY]
    assert [row["by"] for row in report["rows"]] == ["events", "events", "formula", "events", "events"]
    computing = 50e6 + 122e6 + 5e6
    for row in report["rows"]:
        assert row["step_ns"] >= computing and row["perfect_ns"] <= row["step_ns"]
        assert row["exposed_ns"] == pytest.approx(row["step_ns"] - computing - row["encode_ns"] - row["merge_ns"], abs=2)
    dense = report["rows"][0]
    assert dense["link_ns"] == pytest.approx(sum(2 * 7 * (50e3 + 8 * 4 * n / 8) for n in (2_000_000, 2_000_100 + 9408)), rel=1e-6)
    exact = report["rows"][3]
    assert exact["verdict"] == "pays" and exact["pays_below"] > 1e9 and report["verdict"].startswith(EXACT)
    # The computing time of PowerSGD is not known, so it cannot win.
    assert report["rows"][2]["verdict"] == "incomplete" and any("products are not counted" in note for note in report["notes"])


def test_forms_agree_and_the_table_says_what_pays(profile, model):
    arguments = (profile, "--model", model, "--link", "1Gb/s,50us", "--ranks", 8)
    report = predict(*arguments)
    lines = list(csv.DictReader(io.StringIO(run("predict", *arguments, "--format", "csv").stdout.decode())))
    assert [int(line["step_ns"]) for line in lines] == [row["step_ns"] for row in report["rows"]]
    table = run("predict", *arguments).stdout.decode()
    assert "pays below" in table and report["verdict"] in table and "(by formula)" in table


def test_a_fast_link_gets_a_plain_no(profile, model):
    report = predict(profile, "--model", model, "--link", "1Tb/s,1us", "--ranks", 8)
    assert report["verdict"].startswith("None of these helps")
    assert all(row["verdict"] in (None, "even", "slower", "incomplete") for row in report["rows"])


def test_break_even_is_where_the_verdict_turns(profile, model):
    report = predict(profile, "--model", model, "--link", "1Gb/s,50us", "--ranks", 8, "--plan", EXACT)
    rate = report["rows"][3]["pays_below"]
    for factor, faster in ((0.8, True), (1.25, False)):
        there = predict(profile, "--model", model, "--link", f"{factor * rate}b/s,50us", "--ranks", 8, "--plan", EXACT)
        assert (step_of(there, EXACT) < min(step_of(there, "dense f32"), step_of(there, "dense bf16"))) == faster


def test_schedules_run_their_programs(profile, model):
    report = predict(profile, "--model", model, "--link", "1Gb/s,50us", "--ranks", 8, "--hook", "exchange", "--plan", LOSSY,
                     "--exchange", "gather|owner(parts=1|4)|ring|hierarchy(inner=4)")
    rows = report["rows"][3:]
    assert {row["by"] for row in rows} == {"program"} and len(rows) == 5
    gather, owner, parts, ring, _ = (row["step_ns"] for row in rows)
    assert parts < owner < gather and ring < gather
    many = predict(profile, "--model", model, "--link", "1Gb/s", "--ranks", 1024, "--hook", "exchange", "--plan", f"{LOSSY} exchange=hierarchy(inner=8)", status=77)
    assert "1024 ranks" in many["rows"][3]["error"] and many["rows"][3]["step_ns"] is None


def test_the_hook_with_owners_sends_as_much_by_any_number_of_ranks(profile, model):
    def rows(ranks):
        report = predict(profile, "--model", model, "--link", "100Mb/s,50us", "--ranks", ranks, "--plan", LOSSY, "--plan", f"{LOSSY} exchange=owner")
        return report["rows"][3:]

    (gather_4, owner_4), (gather_16, owner_16) = rows(4), rows(16)
    assert gather_16["bytes"] == pytest.approx(5 * gather_4["bytes"], rel=0.02)
    assert owner_16["bytes"] == pytest.approx(owner_4["bytes"] * (15 / 16) / (3 / 4), rel=0.1)
    assert owner_16["bytes"] < gather_16["bytes"] / 5 and owner_16["step_ns"] < gather_16["step_ns"]
    refused = run("predict", profile, "--model", model, "--link", "100Mb/s", "--ranks", 4, "--plan", f"{LOSSY} exchange=ring", status=2)
    assert "takes exchange=gather and exchange=owner" in refused.stderr.decode()


def test_what_is_unknown_is_told(profile, tmp_path):
    report = predict(profile, "--sizes", "100000000,512x2048", "--link", "1Gb/s")
    assert report["model"]["elements"] == 100000000 + 512 * 2048
    notes = " ".join(report["notes"])
    assert "without overlap" in notes and "extrapolation: plans" in notes
    timed = predict(profile, "--sizes", "1000000", "--backward", "100ms", "--link", "1Gb/s")
    assert timed["model"]["backward_ns"] == 100e6 and any("ready times are unknown" in note for note in timed["notes"])
    file = write_npz(tmp_path / "g.npz", a=write_npy(tmp_path / "a.npy", [1.0] * 5000), b=write_npy(tmp_path / "b.npy", [1.0] * 10))
    assert predict(profile, "--input", file, "--link", "1Gb/s")["model"]["tensors"] == 2
    guessed = [
        any("shapes are unknown" in note for note in predict(profile, "--input", source, "--powersgd", 1, "--link", "1Gb/s")["notes"])
        for source in (file, tmp_path / "a.npy")  # a vector of a model, and an array alone, which may be a flattened matrix
    ]
    assert guessed == [False, True]


def test_a_limit_of_sweeps_is_none_of_the_profiles_own_plans(profile, model):
    """It was refused as if they were those of a --plan."""
    own = predict(profile, "--model", model, "--link", "1Gb/s", "--limit", 1)
    assert {EXACT, LOSSY} <= {row["candidate"] for row in own["rows"]}
    assert "more than 1 plans" in refusal("predict", profile, "--model", model, "--link", "1Gb/s", "--limit", 1, "--plan", EXACT, "--plan", LOSSY)


def test_the_profiles_own_link_is_taken_without_link(profile, model):
    report = predict(profile, "--model", model, "--plan", EXACT)
    assert report["ranks"] == 2 and report["link"]["source"] == "measured, gloo, 2 ranks"
    assert report["rows"][0]["link_ns"] == pytest.approx(2 * 2e5 + 0.5 * 4 * (4_000_100 + 9408), rel=1e-6)


def test_a_measured_link_gives_one_answer(profile, model):
    report = predict(profile, "--model", model, "--what-if", "bandwidth", "--what-if", "ranks")
    bandwidth, ranks = report["what_if"]
    for row, by_rate, by_ranks in zip(report["rows"], bandwidth["series"], ranks["series"]):
        assert by_rate["step_ns"][bandwidth["x"].index(2e10)] == row["step_ns"] == by_ranks["step_ns"][ranks["x"].index(2)]
        if row["verdict"] == "pays":
            assert row["pays_below"] == "always" or row["pays_below"] > 2e10
            assert row["pays_above"] is None
    assert report["ranks_per_host"] == 2 and any("--what-if ranks" in note for note in report["notes"])
    assert predict(profile, "--model", model, "--link", "1Gb/s,1us")["ranks_per_host"] == 1
    # For another number of ranks the base of the profile counts, with a note.
    notes = " ".join(predict(profile, "--model", model, "--link", "1Gb/s")["notes"])
    assert "beside its bytes was measured among 2 ranks, not 8" in notes


def test_schedules_that_are_not_modelled_as_they_run_say_so(profile, model):
    arguments = (profile, "--model", model, "--link", "1Gb/s,50us", "--hook", "exchange", "--plan", LOSSY, "--exchange")
    assert any("hierarchy: inside a host" in note for note in predict(*arguments, "hierarchy(inner=4)")["notes"])
    assert not any("hierarchy" in note for note in predict(*arguments, "ring")["notes"])
    many = predict(*arguments, "gather", "--ranks", 5000, status=77)["rows"]
    assert many[3]["error"] == "unsupported: an exchange among 5000 ranks; at most 4096" and many[0]["step_ns"] > 0


def test_what_ifs_are_curves(profile, model, tmp_path):
    report = predict(profile, "--model", model, "--link", "1Gb/s,50us", "--ranks", 8, "--curves", tmp_path / "x.svg",
                     *(word for kind in ("bandwidth", "compute", "ranks", "ratio") for word in ("--what-if", kind)))
    bandwidth, compute, ranks, ratio = report["what_if"]
    assert bandwidth["x"][0] == 1e9 and bandwidth["x"][-1] == 1e11 and ranks["x"][-1] == 1024 and compute["x"][-1] == 8
    for curve in (bandwidth, compute):
        for series in curve["series"]:
            assert series["step_ns"] == sorted(series["step_ns"], reverse=True), (curve["kind"], series["candidate"])
    exact = ratio["series"][3]["step_ns"]
    assert exact[ratio["x"].index(1)] == step_of(report, EXACT) == bandwidth["series"][3]["step_ns"][0]
    for kind in ("bandwidth", "compute", "ranks", "ratio"):
        root = xml.etree.ElementTree.parse(tmp_path / f"x-{kind}.svg").getroot()
        assert sum(1 for element in root.iter() if element.tag.endswith("path")) == 5


def test_lines_of_curves_differ_as_their_legend_does_and_ticks_are_round(profile, model, tmp_path):
    costs = json.loads(profile.read_text())
    plans = [f"{EXACT.replace('0.01', str(ratio))}" for ratio in (0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.011, 0.012, 0.013)]
    for name in ("costs", "frames"):
        costs[name] += [entry | {"plan": plan} for entry in costs[name] if entry["plan"] == EXACT for plan in plans]
    many = write(tmp_path / "many.json", costs)
    report = predict(many, "--model", model, "--link", "1Gb/s,50us", "--ranks", 8, "--curves", tmp_path / "c.svg", "--timeline", tmp_path / "t.svg", "--what-if", "bandwidth", "--what-if", "compute")
    for kind in ("bandwidth", "compute"):
        root = xml.etree.ElementTree.parse(tmp_path / f"c-{kind}.svg").getroot()
        styles = [[(element.get("stroke"), element.get("stroke-dasharray")) for element in root.iter() if element.tag.endswith(tag) and element.get("stroke-width") == "2"] for tag in ("path", "line")]
        assert styles[0] == styles[1] and len(set(styles[0])) == len(report["rows"]) == len(plans) + 5, styles
    for picture in ("c-bandwidth", "c-compute", "t"):
        root = xml.etree.ElementTree.parse(tmp_path / f"{picture}.svg").getroot()
        ticks = [element.text for element in root.iter() if element.tag.endswith("text") and element.get("font-size") == "11"]
        assert len(ticks) >= 3 and all(re.fullmatch(r"0|(\d{1,3}|\d\.\d) (ns|µs|ms|s)", tick) for tick in ticks), ticks


@pytest.mark.parametrize("hook", ["ddp", "exchange"])
def test_a_step_is_drawn_and_traced(profile, model, tmp_path, hook):
    report = predict(profile, "--model", model, "--link", "1Gb/s,50us", "--ranks", 4, "--hook", hook, "--show", EXACT, "--trace", tmp_path / "t.json",
                     "--timeline", tmp_path / "t.svg")
    events = [event for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in events) == pytest.approx(step_of(report, EXACT) / 1e3, rel=1e-6)
    computing = sorted((event for event in events if event["tid"] == 0), key=lambda event: event["ts"])
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in zip(computing, computing[1:]))
    assert {"forward", "backward", "encode", "merge", "rest"} <= {event["cat"] for event in computing}
    root = xml.etree.ElementTree.parse(tmp_path / "t.svg").getroot()
    assert sum(1 for element in root.iter() if element.tag.endswith("rect")) > len(events)


def test_a_plan_book_is_written_and_no_worse_than_a_uniform_plan(profile, model, tmp_path):
    book = tmp_path / "book.txt"
    arguments = (profile, "--model", model, "--link", "20Gb/s,50us", "--ranks", 4, "--error", f"{EXACT}: 0", "--error", f"{LOSSY}: 0")
    planned = json.loads(run("plan", *arguments, "--format", "json").stdout)
    assert planned["exhaustive"] and planned["step_ns"] <= planned["uniform"]["step_ns"] and planned["evaluations"] >= 3**4
    run("plan", *arguments, "-o", book)
    lines = [line for line in book.read_text().splitlines() if not line.startswith("#")]
    assert [f"{line['pattern']}: {line['plan']}" for line in planned["book"]] == lines and lines[-1].startswith("*: ")
    report = predict(*arguments, "--book", book)
    assert report["rows"][-1]["step_ns"] == planned["step_ns"]
    assert report["rows"][-1]["step_ns"] <= min(row["step_ns"] for row in report["rows"] if row["candidate"] not in ("dense bf16", "PowerSGD rank 4"))


def test_a_plan_is_weighed_against_both_dense_rings(profile, model, tmp_path):
    def planned(link):
        return json.loads(run("plan", profile, "--model", model, "--link", link, "--ranks", 8, "--format", "json").stdout)

    slow, fast = planned("1Gb/s,50us"), planned("1Tb/s,1us")
    assert slow["verdict"] == "pays" and slow["dense_step_ns"] > slow["bf16_step_ns"] > slow["step_ns"]
    assert fast["verdict"] == "even"
    errors = ("--error", f"{EXACT}: 0.01", "--error", f"{LOSSY}: 0.01")
    head = run("plan", profile, "--model", model, "--link", "1Gb/s,50us", "--ranks", 8, *errors).stdout.decode()
    assert "dense bf16: " in head and "# It pays: " in head


def test_compare_takes_each_tensors_plan_from_a_book(tmp_path):
    file = write_npz(tmp_path / "g.npz", **{"a.weight": write_npy(tmp_path / "a.npy", [float(i % 13) for i in range(5000)]),
                                            "a.bias": write_npy(tmp_path / "b.npy", [1.0] * 10)})
    book = write(tmp_path / "book.txt", f"# mine\n*.bias: dense\n*: {TOPR}index=golomb value=raw\n")
    report = json.loads(run("compare", file, "--book", book, "--repeat", 1, "--format", "json").stdout)
    plans = {row["tensor"]: row["plan"] for row in report["rows"] if row["plan"] != "memcpy"}
    assert plans["a.weight"] == EXACT and "index=all value=raw" in plans["a.bias"]
    total = report["totals"][-1]
    assert total["plan"] == f"book {book}" and total["tensors"] == 2
    table = run("compare", file, "--book", book, "--repeat", 3).stdout.decode()
    assert "Totals over all tensors" in table and "  book " in table and "Tensor by tensor" in table
    # Rows of another book, or of another run, are in no total of this one.
    write(tmp_path / "saved.json", json.dumps(report))
    more = json.loads(run("compare", file, "--from", tmp_path / "saved.json", "--book", book, "--repeat", 1, "--format", "json").stdout)
    assert [total_["bytes"] for total_ in more["totals"] if total_["plan"] == f"book {book}"] == [total["bytes"]]
    assert "--book" in refusal("compare", file, "--book", book, "--best", "bytes < 1")
    assert total["bytes"] == sum(row["bytes"] for row in report["rows"] if row["plan"] != "memcpy")
    assert "line 1: 'x' is not `pattern: plan`" in refusal("compare", file, "--book", write(tmp_path / "bad.txt", "x"))
    assert "excludes" in run("compare", file, "--book", book, "--plan", EXACT, status=2).stderr.decode()
    assert "--book" in refusal("compare", file, "--book", book, "--batch")


def test_the_skew_comes_from_the_option_the_model_or_the_profile(profile, model, tmp_path):
    def skew(of_profile=None, of_model=None, *more):
        saved, trained = json.loads(profile.read_text()), json.loads(model.read_text())
        saved["overlap"]["skew_ns"], trained["skew_ns"] = of_profile or 0, of_model
        report = predict(write(tmp_path / "p.json", saved), "--model", write(tmp_path / "m.json", trained), "--plan", EXACT, "--no-break-even", "--slowdown", 1, *more)
        return report["skew_ns"], step_of(report, EXACT), " ".join(report["notes"])

    assert [skew(*of)[0] for of in ((None, None), (3e6, None), (3e6, 4e6), (3e6, 0), (3e6, 4e6, "--skew", "5ms"))] == [0, 3e6, 4e6, 0, 5e6]
    # (Backward hides a little of it, where a unit is sent before its end.)
    assert 3.9e6 < skew(None, 4e6)[1] - skew()[1] < 4e6 + 2
    assert "recorded among 2 ranks, not 4" in skew(None, 4e6, "--ranks", 4)[2] and "skew" not in skew(None, 4e6)[2]
    assert "skew" not in skew(None, 4e6, "--ranks", 4, "--skew", "1ms")[2]
    assert "'skew_ns' is -1" in refusal("predict", profile, "--model", write(tmp_path / "m.json", json.loads(model.read_text()) | {"skew_ns": -1}))


def test_lines_of_a_book_that_no_tensor_takes_are_told(profile, model, tmp_path):
    book = write(tmp_path / "book.txt", f"# mine\nhaed.*: {EXACT}\nbody.*: dense\nbody.bias: dense\n*: dense\n")
    report = predict(profile, "--model", model, "--book", book)
    notes = [f"{book} line 2: pattern 'haed.*' matches no tensor", f"{book} line 4: pattern 'body.bias' is never reached: lines before it match its tensors"]
    assert [note for note in report["notes"] if "pattern" in note] == notes
    empty = write(tmp_path / "empty.txt", "# none\n")
    assert f"{empty}: no line; all tensors are dense" in predict(profile, "--model", model, "--book", empty)["notes"]
    file = write_npz(tmp_path / "g.npz", **{"body.weight": write_npy(tmp_path / "a.npy", [float(i % 13) for i in range(5000)])})
    printed = run("compare", file, "--book", book, "--repeat", 1, "--format", "json").stderr.decode()
    assert f"note: {notes[0]}" in printed and "line 4: pattern 'body.bias' matches no tensor" in printed and "line 3" not in printed
    assert "pattern" not in run("compare", file, "--book", book, "--repeat", 1, "--format", "json", "--tensor", "body.*").stderr.decode()


def test_counts_that_fit_nothing_are_refused(profile, model, tmp_path):
    arguments = ("predict", profile, "--model", model, "--link", "1Gb/s")
    assert "--batch" in refusal(*arguments, "--batch", 0)
    for ranks, of_host in ((8, 16), (8, 3)):
        assert f"{ranks} ranks do not fill hosts" in refusal(*arguments, "--ranks", ranks, "--ranks-per-host", of_host)
    shapes = write(tmp_path / "m.json", {"schema": "deepreduce-model-1", "tensors": [{"name": "a", "shape": [30, 20, 10]}, {"name": "b", "shape": []}]})
    assert predict(profile, "--model", shapes, "--link", "1Gb/s")["model"]["elements"] == 6001


def test_calibrate_compare_and_plan_go_together_with_their_defaults(tmp_path):
    archive = write_npz(tmp_path / "g.npz", **{name: write_npy(tmp_path / f"{name}.npy", [(i * 7919 % 1000 - 500) ** 3 * 1e-9 for i in range(n)])
                                               for name, n in (("a", 40000), ("b", 9000))})
    profile, rows = tmp_path / "p.json", tmp_path / "rows.json"
    run("calibrate", "--data", archive, "--time", 0, "--sizes", "1024,16384", "--output", profile)
    run("compare", archive, "--per-tensor", "--repeat", 1, "--output", rows)
    sizes = {"schema": "deepreduce-model-1", "name": "g", "date": "…", "ranks": 2, "forward_ns": 1e6, "backward_ns": 1e6, "rest_ns": 0,
             "tensors": [{"name": name, "elements": n, "dtype": "f32", "ready_ns": 1e6} for name, n in (("a", 40000), ("b", 9000))]}
    book = json.loads(run("plan", profile, "--model", write(tmp_path / "m.json", sizes), "--link", "10Mb/s", "--ranks", 8, "--error-budget", 1, "--errors", rows,
                          "--format", "json").stdout)
    assert 0 < book["error"] < 1 and all("feedback=residual" in line["plan"] for line in book["book"])
    # One set of plans; but no tensor here is a matrix, so compare has no rows of a transform.
    others = [note for note in book["notes"] if "which has no feedback" in note or "is not a candidate" in note]
    assert all("'transform=lowrank(rank=4) feedback=residual' is not a candidate" in note for note in others), others


def test_bad_input_says_what_and_where(profile, model, tmp_path):
    link = ("--link", "1Gb/s")
    wrong = json.loads(model.read_text())
    wrong["tensors"][1]["elements"] = -5
    assert "tensors[1]: 'elements' is -5" in refusal("predict", profile, "--model", write(tmp_path / "m.json", wrong), *link)
    wrong["tensors"] = []
    assert "'tensors'" in refusal("predict", profile, "--model", write(tmp_path / "m.json", wrong), *link)
    assert "cannot be opened" in refusal("predict", tmp_path / "none.json", "--model", model)
    assert "not a profile (`deepreduce calibrate -o profile.json` writes one): byte 2 is not JSON" in refusal("predict", write(tmp_path / "p.json", "{"), "--model", model)
    assert "not a model (DDPHook(record=" in refusal("predict", profile, "--model", write(tmp_path / "p.json", "[1]"), *link)
    assert "schema ''" in refusal("predict", write(tmp_path / "p.json", "{}"), "--model", model)
    assert "no tensors: give" in refusal("predict", profile, *link)
    assert "--sizes 'x' is neither" in refusal("predict", profile, "--sizes", "1,x", *link)
    assert "no cost of encode of plan" in refusal("predict", profile, "--model", model, *link, "--plan", "index=raw value=raw")
    assert "--exchange" in refusal("predict", profile, "--model", model, *link, "--exchange", "ring")
    assert "--show" in refusal("predict", profile, "--model", model, *link, "--trace", tmp_path / "t.json", "--show", "none")
    assert "--show requires --timeline or --trace" in refusal("predict", profile, "--model", model, *link, "--show", "3")
    for command in ("predict", "plan"):
        for option, value in (("--bucket-mb", 25), ("--dense-below", 0), ("--slowdown", 2), ("--hook-time", "1ms")):
            message = refusal(command, profile, "--model", model, *link, "--hook", "exchange", option, value)
            assert f"{option} is of the DDP hook, and not of --hook exchange" in message
    assert "--curves" in refusal("predict", profile, "--model", model, *link, "--curves", tmp_path / "t.svg")
    for option in ("--curves", "--timeline"):
        assert "a drawing is SVG, X.svg" in refusal("predict", profile, "--model", model, *link, "--what-if", "bandwidth", option, tmp_path / "t.png")
    same = refusal("predict", profile, "--model", model, *link, "--trace", tmp_path / "t.json", "-o", tmp_path / "t.json")
    assert "t.json: --output writes the same file" in same and not (tmp_path / "t.json").exists()
    assert not (tmp_path / "t.png").exists()
    before = profile.read_bytes(), model.read_bytes()
    for command, *more in (("predict",), ("predict", "--every", 10), ("plan",)):
        for file in (profile, model):
            assert f"--output {file}: it is an input" in refusal(command, profile, "--model", model, *link, *more, "-o", file)
    assert (profile.read_bytes(), model.read_bytes()) == before
    assert "unsupported" in refusal("predict", profile, "--model", write(tmp_path / "h.json", json.loads(model.read_text()) | {
        "tensors": [{"name": "a", "elements": 5, "dtype": "f16"}]}), *link)
    for word, words in (("10", "10 of what? 10Gb/s, say"), ("1Gb/s,50", "50 of what? 50us, say"), ("10GB", "is it 10GB/s?"), ("10G", "is it 10Gb/s?"), ("1e308Gb/s", "above 1e18 bit/s"), ("1Gb/s,1e308s", "above 1e18 ns")):
        assert words in refusal("predict", profile, "--model", model, "--link", word)
    assert "above 1e18 ns" in refusal("predict", profile, "--model", model, *link, "--backward", "1e305s")
    assert "122 of what? 122us, say" in refusal("predict", profile, "--model", model, *link, "--backward", "122")
    for option in ("--bucket-mb", "--batch", "--slowdown", "--flops"):
        assert f"{option}: 'nan' is not a number" in refusal("predict", profile, "--model", model, *link, option, "nan")
    assert "31 years" in predict(profile, "--model", model, "--link", "1b/s,900000000s", status=77)["rows"][3]["error"]
    assert "two tensors have the name" in refusal("plan", profile, "--model", write(tmp_path / "h.json", json.loads(model.read_text()) | {
        "tensors": [{"name": "a", "elements": 5}] * 2}), *link)
