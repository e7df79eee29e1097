"""`predict` and `plan`: what plans lose beside what they take, budgets, and plans that are transforms."""

import json
import math
import re

import pytest
from predict_runs import LOSSY, cost, model_in, predict, profile_in, step_of, write
from tool_runs import EXACT, SYNTH, compare, needs_tool, refusal, run, write_npy, write_npz

pytestmark = needs_tool
LOWRANK = "transform=lowrank(rank=4) feedback=residual"


@pytest.fixture
def profile(tmp_path):
    return profile_in(tmp_path)


@pytest.fixture
def model(tmp_path):
    return model_in(tmp_path)


def test_an_error_budget_is_kept(profile, model):
    arguments = ("plan", profile, "--model", model, "--link", "1Gb/s,50us", "--ranks", 8, "--format", "json")
    errors = ("--error", f"{EXACT}: 0.9", "--error", f"{LOSSY}: 0.3")
    reports = [json.loads(run(*arguments, "--error-budget", e, *errors).stdout) for e in (0.01, 0.5, 1)]
    assert [report["error"] <= limit for report, limit in zip(reports, (0.01, 0.5, 1))] == [True] * 3
    assert reports[0]["step_ns"] >= reports[1]["step_ns"] >= reports[2]["step_ns"] and reports[0]["step_ns"] == reports[0]["dense_step_ns"]
    assert "is not known" in refusal(*arguments, "--error-budget", 0.5)
    report = json.loads(run(*arguments, "--error-budget", 0.5, "--error", f"{LOSSY}: 0.3").stdout)
    assert any(note.startswith(f"'{EXACT}' is not a candidate") for note in report["notes"])
    assert {line["plan"] for line in report["book"]} <= {"dense", LOSSY}


def test_a_budget_holds_for_each_tensor_whatever_its_share_of_the_norm(profile, tmp_path):
    """In a transformer one layer has 98 % of the gradient's square: that layer alone would meet a budget of the sum."""
    sizes = {"head.weight": 65_000, "body.weight": 2_000_000, "body.bias": 1024}
    model = write(tmp_path / "m.json", {"schema": "deepreduce-model-1", "tensors": [{"name": name, "elements": n} for name, n in sizes.items()]})

    def row(plan, tensor, error, energy):
        return {"plan": plan, "tensor": tensor, "total_error": error, "d": sizes[tensor], "gradient_energy": energy}

    rows = [row(plan, tensor, error * (0.04 if tensor == "head.weight" and plan == LOSSY else 1), 98.3 if tensor == "head.weight" else 0.85)
            for plan, error in ((EXACT, 0.9), (LOSSY, 0.5)) for tensor in sizes]
    file = write(tmp_path / "rows.json", {"rows": rows})

    def planned(*more):
        return run("plan", profile, "--model", model, "--link", "1Mb/s", "--ranks", 2, "--errors", file, *more).stdout.decode()

    tight = json.loads(planned("--error-budget", 0.1, "--format", "json"))
    assert {error["tensor"]: error["error"] for error in tight["errors"]} == {"head.weight": pytest.approx(0.02), "body.weight": 0, "body.bias": 0}
    assert tight["book"] == [{"pattern": "head.weight", "plan": LOSSY}, {"pattern": "*", "plan": "dense"}]
    wide = json.loads(planned("--error-budget", 0.6, "--format", "json"))
    assert all(error["error"] <= 0.6 for error in wide["errors"]) and {line["plan"] for line in wide["book"]} == {LOSSY}
    # The head of a book has each tensor's error, and which is the worst.
    head = planned("--error-budget", 0.6)
    assert "#   0.02  head.weight\n" in head and "#   0.5  body.weight\n" in head
    assert "0.5, of 'body.weight', is the largest, of at most 0.6" in head
    # The whole is weighed by elements, not by energies.
    squares = sum(n * (0.02 if name == "head.weight" else 0.5) ** 2 for name, n in sizes.items())
    assert wide["error"] == pytest.approx((squares / sum(sizes.values())) ** 0.5)
    # Rows of other tensors: the plan's, by elements.
    file.write_text(json.dumps({"rows": [{"plan": LOSSY, "tensor": "x", "total_error": 0.4, "d": 990_000}, {"plan": LOSSY, "tensor": "y", "total_error": 2.0, "d": 1000}]}))
    overall = json.loads(planned("--error-budget", 0.5, "--plan", LOSSY, "--format", "json"))
    assert overall["error"] == pytest.approx(((0.16 * 990 + 4 * 1) / 991) ** 0.5)


def test_a_plan_with_feedback_has_the_error_of_its_first_step(profile, model):
    arguments = ("plan", profile, "--model", model, "--link", "1Gb/s,50us", "--format", "json", "--error-budget", 0.5)
    with_feedback = LOSSY.replace(" index", " feedback=residual index")
    report = json.loads(run(*arguments, "--plan", LOSSY, "--plan", with_feedback, "--error", f"{LOSSY}: 0.3").stdout)
    assert any(note.startswith(f"the error of '{with_feedback}' is that of '{LOSSY}'") for note in report["notes"])


def test_a_budget_of_0_leaves_what_is_exact(profile, model):
    arguments = ("plan", profile, "--model", model, "--link", "1Gb/s,50us", "--ranks", 8, "--format", "json")
    errors = ("--error", f"{EXACT}: 0.9", "--error", f"{LOSSY}: 0")
    report = json.loads(run(*arguments, "--error-budget", 0, *errors).stdout)
    assert report["error"] == 0 and {line["plan"] for line in report["book"]} <= {"dense", LOSSY} and report["step_ns"] < report["dense_step_ns"]
    assert "'nan' is not a number" in refusal(*arguments, "--error-budget", "nan", *errors)


def test_errors_come_from_saved_rows(profile, tmp_path):
    file = write_npz(tmp_path / "g.npz", a=write_npy(tmp_path / "a.npy", [i % 7 - 3.0 for i in range(9000)]),
                     b=write_npy(tmp_path / "b.npy", [1e-3 * (i % 5 - 2) for i in range(9000)]))
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps(compare(file, "--per-tensor", plans=(EXACT, LOSSY))))
    saved = {(row["plan"], row["tensor"]): row["total_error"] for row in json.loads(rows.read_text())["rows"] if row["plan"] != "memcpy"}
    arguments = ("plan", profile, "--input", file, "--link", "10Mb/s,1us", "--ranks", 2, "--errors", rows, "--format", "json", "--error-budget")
    # Nearly all energy is in a; the budget of b counts all the same.
    report = json.loads(run(*arguments, 0.1).stdout)
    assert min(saved.values()) > 0.1 and report["book"] == [{"pattern": "*", "plan": "dense"}]
    report = json.loads(run(*arguments, 1).stdout)
    plans = {error["tensor"]: next((line["plan"] for line in report["book"] if line["pattern"] in (error["tensor"], "*")), None) for error in report["errors"]}
    assert [error["error"] for error in report["errors"]] == [saved[plans[name], name] for name in "ab"] and report["step_ns"] < report["dense_step_ns"]


def test_a_name_that_is_not_ascii_is_that_of_files_and_books(profile, tmp_path):
    """Rows show it with JSON's escapes; files, models and books have it as it is."""
    parts = {'a"b': [i % 7 - 3.0 for i in range(9000)], "café": [float(i % 9000 == 0) for i in range(9000)]}
    file = write_npz(tmp_path / "g.npz", **{name: write_npy(tmp_path / f"{i}.npy", values) for i, (name, values) in enumerate(parts.items())})
    rows = write(tmp_path / "rows.json", compare(file, "--per-tensor", plans=(EXACT, LOSSY)))
    saved = {row["tensor"]: row["total_error"] for row in json.loads(rows.read_text())["rows"] if row["plan"] == LOSSY}
    assert saved.keys() == {"caf\\u00e9", 'a\\"b'} and saved['a\\"b'] > 0.5 and saved["caf\\u00e9"] < 0.1
    tensors = [{"name": name, "elements": 9000, "dtype": "f32", "ready_ns": 0} for name in parts]
    model = write(tmp_path / "model.json", {"schema": "deepreduce-model-1", "name": "toy", "backward_ns": 1e6, "tensors": tensors})
    for source in (("--input", file), ("--model", model)):
        report = json.loads(run("plan", profile, *source, "--link", "10Mb/s,1us", "--ranks", 2, "--errors", rows, "--error-budget", 0.2, "--format", "json").stdout)
        chosen = {line["pattern"]: line["plan"] for line in report["book"]}
        assert chosen in ({"café": EXACT, "*": "dense"}, {"café": LOSSY, "*": "dense"}), source
    book = write(tmp_path / "book.txt", f"café: {LOSSY}\n*: dense\n")
    done = run("compare", file, "--book", book, "--repeat", 1, "--format", "json")
    plans = {row["tensor"]: row["plan"] for row in json.loads(done.stdout)["rows"] if row["plan"] != "memcpy"}
    assert plans["caf\\u00e9"] == LOSSY and plans['a\\"b'] == "index=all value=raw" and b"matches no tensor" not in done.stderr


def test_rows_of_joined_tensors_have_a_note_for_a_model_of_several(profile, model, tmp_path):
    """Their error is by energy, which one layer may have alone."""
    saved = compare(SYNTH, plans=(EXACT, LOSSY))
    for row in saved["rows"]:
        row["tensor"] = "*"
    rows = write(tmp_path / "joined.json", saved)
    report = predict(profile, "--model", model, "--link", "1Gb/s", "--ranks", 2, "--errors", rows)
    assert any(note.startswith(f"{rows} has rows of joined tensors, whose error is by energy") for note in report["notes"])


def test_an_error_of_one_plan_leaves_the_profiles_errors_of_the_others(profile, model):
    profile = with_errors(profile, {EXACT: 0.95, LOSSY: 0.5})
    report = predict(profile, "--model", model, "--link", "100Mb/s,50us", "--ranks", 2, "--error", f"{LOSSY}: 0.4")
    errors = {row["candidate"]: row["relative_error"] for row in report["rows"]}
    assert errors[EXACT] == pytest.approx(0.95, rel=1e-3) and errors[LOSSY] == pytest.approx(0.4, rel=1e-3)
    assert f"the error of '{EXACT}' is that of the profile's data, in one step" in report["notes"]
    assert not any(LOSSY in note for note in report["notes"])


def test_a_note_says_that_a_hook_selects_from_all_tensors(profile, model):
    report = predict(profile, "--model", model, "--link", "100Mb/s,50us", "--ranks", 2, "--error", f"{EXACT}: 0.4")
    assert any("DDPHook selects from all tensors of a unit together" in note for note in report["notes"])


def test_an_error_names_its_option_and_a_candidate(profile, model):
    arguments = ("plan", profile, "--model", model, "--link", "1Gb/s", "--plan", LOSSY, "--error-budget", 0.5)
    assert "--error 'foo: 0.9': " in refusal(*arguments, "--error", "foo: 0.9")
    assert "the plan is not a candidate" in refusal(*arguments, "--error", f"{LOSSY}: 0.1", "--error", f"{EXACT}: 0.9")


def with_errors(profile, errors):
    return write(profile.parent / "with_errors.json", {**json.loads(profile.read_text()), "errors": [{"plan": plan, "error": e} for plan, e in errors.items()]})


def test_the_error_stands_beside_the_time_and_both_decide(profile, model):
    """The fastest plan is not what is recommended, if a slower one sends a whole gradient sooner."""
    profile = with_errors(profile, {EXACT: 0.95, LOSSY: 0.5})
    arguments = (profile, "--model", model, "--link", "100Mb/s,50us", "--ranks", 2)
    report = predict(*arguments)
    rows = {row["candidate"]: row for row in report["rows"]}
    assert rows["dense f32"]["relative_error"] == 0 and rows[EXACT]["relative_error"] == pytest.approx(0.95, rel=1e-3)
    for plan in (EXACT, LOSSY):
        row = rows[plan]
        assert row["whole_ns"] == pytest.approx(row["step_ns"] / (1 - row["relative_error"] ** 2), rel=1e-6)
        assert row["worst_error"] in (0.95, 0.5) and row["worst_tensor"]
    assert rows[EXACT]["step_ns"] < rows[LOSSY]["step_ns"] and rows[EXACT]["whole_ns"] > rows[LOSSY]["whole_ns"]
    assert report["verdict"].startswith(f"Recommended: {LOSSY}: ") and f"The fastest is {EXACT}: " in report["verdict"]
    assert rows[EXACT]["verdict"] == "slower" and rows[LOSSY]["verdict"] == "pays"
    assert any(note.startswith("errors are those of the profile's data") for note in report["notes"])
    table = run("predict", *arguments).stdout.decode()
    assert "whole gradient" in table and " 0.95 " in table
    # Errors of one's own count in their place.
    own = predict(*arguments, "--error", f"{EXACT}: 0.1", "--error", f"{LOSSY}: 0.1")
    assert own["verdict"].startswith(f"Recommended: {EXACT}: ") and "It is the fastest, too." in own["verdict"]
    assert not any("profile's data" in note for note in own["notes"])


def test_where_no_error_is_known_none_is_recommended(profile, model):
    arguments = (profile, "--model", model, "--link", "1Gb/s,50us", "--ranks", 2)
    report = predict(*arguments)
    assert report["verdict"].startswith(f"{EXACT} is the fastest: ") and "No error is known, so none is recommended" in report["verdict"]
    assert all(row["whole_ns"] is None for row in report["rows"][1:])
    book = json.loads(run("plan", *arguments, "--format", "json").stdout)
    assert book["error"] is None and book["errors"] == [] and any("by time alone the smallest plan always wins" in note for note in book["notes"])


def test_where_nothing_of_a_gradient_arrives_no_share_is_printed(profile, model):
    verdict = predict(profile, "--model", model, "--link", "1Gb/s,1us", "--ranks", 2, "--plan", EXACT, "--error", f"{EXACT}: 1")["verdict"]
    assert verdict.startswith("None of these helps: dense") and "no time for a whole gradient" in verdict and "inf" not in verdict


def test_no_book_is_written_by_time_alone_and_none_that_slows_down(profile, model, tmp_path):
    book = tmp_path / "book.txt"
    arguments = ("--model", model, "--link", "1Gb/s,50us", "--ranks", 2, "-o", book)
    assert "by time alone the smallest plan always wins, and it may not train; give --errors" in refusal("plan", profile, *arguments)
    hopeless = with_errors(profile, {EXACT: 0.999, LOSSY: 0.99})
    assert "plan: no book is written. None of these helps: the best choice takes " in refusal("plan", hopeless, *arguments, status=1)
    sentence = refusal("plan", hopeless, *arguments, "--error-budget", 0.5, status=1)
    assert "plan: no book is written. None of these helps: " in sentence and "No plan is both within --error-budget 0.5 and shorter" in sentence
    assert not book.exists()
    # As JSON the choice is reported, whatever it is.
    assert json.loads(run("plan", hopeless, *arguments[:-2], "--format", "json").stdout)["verdict"] != "pays"
    # An array without a name is all that there is.
    array = write_npy(tmp_path / "g.npy", [1.0] * 200_000)
    trained = with_errors(profile, {EXACT: 0.1, LOSSY: 0.1})
    words = run("plan", trained, "--input", array, "--link", "1Mb/s", "--ranks", 2).stdout.decode().splitlines()
    assert words[-1].startswith("*: ") and "0.1, of '*', is the largest" in "\n".join(words)


def test_what_training_showed_stands_beside_a_recommendation(profile, model):
    residual = LOSSY.replace(" index", " feedback=residual index")
    arguments = ("--model", model, "--link", "100Mb/s,50us", "--ranks", 2, "--plan", EXACT, "--plan", residual)
    report = predict(with_errors(profile, {EXACT: 0.95, LOSSY: 0.5}), *arguments)
    assert [line["plan"] for line in report["training"]] == [residual, EXACT]
    assert "Top-10 % with a residual was as good as dense on 3 of 6 models" in report["training"][0]["evidence"]
    assert "what is not sent is lost without feedback=residual" in report["training"][1]["evidence"]
    table = run("predict", with_errors(profile, {EXACT: 0.95, LOSSY: 0.5}), *arguments).stdout.decode()
    assert f"\nIn trainings, {residual}: Top-10 % with a residual was" in table
    head = run("plan", with_errors(profile, {EXACT: 0.95, LOSSY: 0.5}), *arguments).stdout.decode()
    assert f"\n# in trainings, {residual}: Top-10 %" in head and "# no error budget: this book minimises the time to transfer a whole gradient" in head
    assert "3 of 4 tensors compressed\n" in head  # (the fourth is dense)
    few = run("plan", with_errors(profile, {EXACT: 0.95, LOSSY: 0.5}), *arguments, "--dense-below", 10_000).stdout.decode()
    assert "2 of 4 tensors compressed" in few


def test_the_table_is_ordered_by_step_and_has_no_empty_units(profile, model):
    table = run("predict", with_errors(profile, {EXACT: 0.95, LOSSY: 0.5}), "--model", model, "--link", "100Mb/s,50us", "--ranks", 2).stdout.decode()
    rows = [line.strip() for line in table.splitlines() if re.match(r"\s+\[\d+\]", line)]
    assert [row[:3] for row in rows] == ["[4]", "[5]", "[2]", "[1]", "[3]"] and rows[-1].endswith("incomplete")  # (PowerSGD, by formula)
    assert "note: PowerSGD: its products are not counted" in table and "0.00 " not in table
    one = run("predict", profile, "--sizes", "1e6", "--link", "1Gb/s", "--plan", EXACT).stdout.decode()
    assert one.startswith("sizes: 1 tensor, 1,000,000 elements; forward 0, backward 0, rest 0\n")
    by_flops = run("predict", profile, "--model", model, "--link", "1Gb/s", "--flops", "1e10").stdout.decode()
    assert "incomplete" not in by_flops


def test_a_plan_without_a_budget_is_the_book_by_which_a_whole_gradient_arrives_soonest(profile, model):
    arguments = ("--model", model, "--link", "100Mb/s,50us", "--ranks", 2, "--format", "json")
    fastest = json.loads(run("plan", profile, *arguments).stdout)
    report = json.loads(run("plan", with_errors(profile, {EXACT: 0.95, LOSSY: 0.5}), *arguments).stdout)
    assert {line["plan"] for line in fastest["book"]} <= {EXACT, "dense"}
    assert {line["plan"] for line in report["book"]} <= {LOSSY, "dense"} and report["step_ns"] > fastest["step_ns"]
    assert report["whole_ns"] == pytest.approx(report["step_ns"] / (1 - report["error"] ** 2), rel=1e-6)
    hopeless = json.loads(run("plan", with_errors(profile, {EXACT: 0.999, LOSSY: 0.99}), *arguments).stdout)
    assert hopeless["book"] == [{"pattern": "*", "plan": "dense"}] and hopeless["verdict"] != "pays"
    words = run("plan", with_errors(profile, {EXACT: 0.95, LOSSY: 0.5}), *arguments[:-2]).stdout.decode()
    assert "# It pays: the book takes " in words and " for a whole gradient, " in words


def with_lowrank(profile):
    saved = json.loads(profile.read_text())
    saved["costs"] += [cost(LOWRANK, "encode", 0, 0.5), cost(LOWRANK, "decode", 0, 1.0), cost(LOWRANK, "merge", 0, 1.0)]
    saved["errors"] = [{"plan": plan, "error": e} for plan, e in ((EXACT, 0.9), (LOSSY, 0.6), (LOWRANK, 0.5))]
    return write(profile.parent / "lowrank.json", saved)


def shaped(tmp_path):
    tensors = [{"name": name, "shape": shape, "ready_ns": ready} for name, shape, ready in
               (("tok.weight", [256, 256], 120e6), ("body.weight", [1000, 2000], 90e6), ("body.bias", [1024], 60e6), ("head.weight", [2000, 1000], 30e6))]
    return write(tmp_path / "shaped.json", {"schema": "deepreduce-model-1", "name": "shaped", "ranks": 2, "batch": 64, "forward_ns": 50e6,
                                            "backward_ns": 122e6, "rest_ns": 5e6, "tensors": [{"elements": math.prod(tensor["shape"]), "dtype": "f32", **tensor} for tensor in tensors]})


def test_a_transform_is_a_candidate_with_a_verdict(profile, tmp_path):
    model = shaped(tmp_path)
    report = predict(with_lowrank(profile), "--model", model, "--link", "100Mb/s,50us", "--ranks", 4)
    rows = {row["candidate"]: row for row in report["rows"]}
    assert list(rows) == ["dense f32", "dense bf16", EXACT, LOSSY, LOWRANK]  # (and no PowerSGD by formula)
    row = rows[LOWRANK]
    factors = 4 * (256 + 256) + 2 * 4 * (1000 + 2000) + 1024 + 3 * 4
    assert row["bytes"] == pytest.approx(2 * 3 / 4 * 4 * factors, abs=2) and row["verdict"] == "pays" and row["by"] == "events"
    # The vector is sent as it is: the largest error is a matrix's, the mean has the vector's 0.
    matrices = 65536 + 2 * 2_000_000
    assert row["relative_error"] == pytest.approx(0.5 * (matrices / (matrices + 1024)) ** 0.5) and row["worst_error"] == 0.5
    assert report["verdict"].startswith(f"Recommended: {LOWRANK}: ")
    behind = predict(with_lowrank(profile), "--model", model, "--link", "100Mb/s,50us", "--ranks", 4, "--hook", "exchange", "--exchange", "gather|owner")
    assert [row["candidate"] for row in behind["rows"]].count(LOWRANK) == 1
    assert step_of(behind, LOWRANK) == pytest.approx(step_of(report, LOWRANK) - 2 * 3 / 4 * 48 * 8e9 / 1e8, abs=2)  # (without the marks of the hook)


def test_a_book_may_have_transforms(profile, tmp_path):
    model, costs = shaped(tmp_path), with_lowrank(profile)
    arguments = ("plan", costs, "--model", model, "--link", "100Mb/s,50us", "--ranks", 4, "--format", "json")
    report = json.loads(run(*arguments).stdout)
    assert LOWRANK in {line["plan"] for line in report["book"]}
    within = json.loads(run(*arguments, "--error-budget", 0.55).stdout)
    assert {line["plan"] for line in within["book"]} <= {LOWRANK, "dense"} and within["errors"][2] == {"tensor": "body.bias", "error": 0}
    book = write(tmp_path / "book.txt", f"tok.*: {EXACT}\n*.weight: {LOWRANK}\n*: dense\n")
    mixed = predict(costs, "--model", model, "--link", "100Mb/s,50us", "--ranks", 4, "--book", book)["rows"][-1]
    assert mixed["verdict"] == "pays" and mixed["relative_error"] == pytest.approx(((65536 * 0.81 + 4e6 * 0.25) / (4e6 + 65536 + 1024)) ** 0.5)


def test_a_transform_without_costs_says_what_is_missing(profile, model):
    arguments = (profile, "--model", model, "--link", "1Gb/s", "--plan", LOWRANK)
    for command in ("predict", "plan"):
        assert "no cost of encode of plan 'transform=lowrank(rank=4) feedback=residual'; `deepreduce calibrate`" in refusal(command, *arguments)
    report = predict(*arguments, "--flops", "1e10")
    assert report["rows"][2]["candidate"] == LOWRANK and any("--flops" in note for note in report["notes"]) and any("shapes are unknown" in note for note in report["notes"])
