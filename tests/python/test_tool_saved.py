"""Saved rows of `deepreduce compare`: shown again, gone on with, compared with; and frames decoded into files."""

import csv
import json
import os
import signal
import subprocess

import numpy
import pytest

from tool_runs import EXACT, LOSSY, SYNTH, TOOL, TOPR, compare, needs_tool, refusal, rows_of, run, write_npy

pytestmark = needs_tool
RAW = TOPR + "index=raw value=raw"


def save(path, *arguments, plans=(EXACT, LOSSY), **options):
    path.write_text(json.dumps(compare(*arguments, plans=plans, **options)))
    return path


def test_saved_rows_are_shown_again_in_any_format(tmp_path):
    saved = save(tmp_path / "a.json", SYNTH)
    before = json.loads(saved.read_text())
    again = json.loads(run("compare", "--from", saved, "--format", "json").stdout)
    assert again["rows"] == before["rows"] and again["commit"] == before["commit"]
    table = run("compare", "--from", saved, "--wide").stdout.decode()
    assert all(f"{row['bytes']:,}" in table for row in before["rows"])
    sorted_rows = json.loads(run("compare", "--from", saved, "--sort", "bytes", "--where", "plan != 'memcpy'", "--format", "json").stdout)["rows"]
    assert [row["plan"] for row in sorted_rows] == [LOSSY, EXACT]


def test_rows_of_several_files_and_of_this_run_come_together(tmp_path):
    a, b = save(tmp_path / "a.json", SYNTH), save(tmp_path / "b.json", "synth:d=500", plans=(EXACT,))
    report = json.loads(run("compare", "--from", a, "--from", b, "synth:d=700", "--plan", RAW, "--repeat", 1, "--format", "json").stdout)
    assert [(row["d"], row["plan"]) for row in rows_of(report)] == [(20000, EXACT), (20000, LOSSY), (500, EXACT), (700, RAW)]


def test_a_column_of_any_name_is_one_column_of_csv(tmp_path):
    saved = save(tmp_path / "a.json", SYNTH)
    document = json.loads(saved.read_text())
    for row in document["rows"]:
        row['my,"own"\nnumber'] = 7
    saved.write_text(json.dumps(document))
    made = run("compare", "--from", saved, "--format", "csv").stdout.decode()
    assert [row['my,"own"\nnumber'] for row in csv.DictReader(made.splitlines(keepends=True))] == ["7"] * len(document["rows"])


def test_rows_with_columns_of_their_own_keep_them(tmp_path):
    report = compare(SYNTH)
    report["rows"][1] |= {"timed": "python", "wonder": 7}
    (tmp_path / "a.json").write_text(json.dumps(report))
    done = run("compare", "--from", tmp_path / "a.json", "--where", "wonder == 7", "--format", "csv")
    [line] = csv.DictReader(done.stdout.decode().splitlines())
    assert list(line)[-3:] == ["wonder", "machine", "commit"] and line["wonder"] == "7" and line["commit"] == report["commit"]
    assert "in Python" in run("compare", "--from", tmp_path / "a.json").stdout.decode()


def test_saved_rows_alone_take_no_option_of_a_measurement(tmp_path):
    saved = save(tmp_path / "a.json", SYNTH)
    for option in (["--plan", RAW], ["--link", "1Gb/s"], ["--steps", "2"], ["--cast", "f32"], ["--seed", "1"], ["--flat"]):
        assert f"measures nothing: {option[0]} requires an INPUT" in refusal("compare", "--from", saved, *option)
    assert "--where 'tensor ~" in refusal("compare", "--from", saved, "--tensor", "x*")


def test_rows_and_totals_of_several_files_say_which_run_they_are_of(tmp_path):
    for name in ("w", "b"):
        write_npy(tmp_path / f"{name}.npy", numpy.arange(1, 1001, dtype="f4"))
    numpy.savez(tmp_path / "g.npz", w=numpy.arange(1, 1001, dtype="f4"), b=numpy.arange(1, 2001, dtype="f4"))
    a, b = (save(tmp_path / name, tmp_path / "g.npz", "--per-tensor", plans=(EXACT,)) for name in ("a.json", "b.json"))
    joined = json.loads(run("compare", "--from", a, "--from", b, "--format", "json").stdout)
    assert [row["from"] for row in joined["totals"] if row["plan"] == EXACT] == [str(a), str(b)]
    table = run("compare", "--from", a, "--from", b).stdout.decode()
    assert ", d = 3,000, of a.json" in table and ", d = 3,000, of b.json" in table and "worst tensor of 1 plan:" in table
    assert "from" not in json.loads(run("compare", "--from", a, "--format", "json").stdout)["rows"][0]


def test_a_lone_tensor_of_its_type_is_part_of_the_models_total(tmp_path):
    numpy.savez(tmp_path / "mix.npz", a=numpy.ones(4000, "f4"), b=numpy.ones(4000, "f4"), h=numpy.ones(2000, "f2"))
    done = compare(tmp_path / "mix.npz", "--best", "bytes < 1e6")
    sizes = {row["tensor"]: row["bytes"] for row in rows_of(done)}
    assert list(sizes) == ["* (f32)", "* (f16)"]
    assert done["best"][0]["total"]["bytes"] == sum(sizes.values()) == rows_of({"rows": done["totals"]})[0]["bytes"]


def test_answers_that_csv_has_no_place_for_are_told_beside_it(tmp_path):
    saved = save(tmp_path / "a.json", SYNTH, plans=(EXACT,))
    words = ("compare", SYNTH, "--plan", EXACT, "--repeat", 2, "--best", "bytes < 1e6", "--against", saved, "--format", "csv")
    done = run(*words)
    assert b"the plan of least bytes" in done.stderr and b"the same" in done.stderr and b"least" not in done.stdout
    done = run(*words, "--output", tmp_path / "a.csv")
    assert b"the plan of least bytes" in done.stdout and b"the same" in done.stdout


def test_files_of_one_name_in_two_folders_are_told_apart(tmp_path):
    paths = [tmp_path / name for name in ("one/g.npy", "two/g.npy", "two/h.npy")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        write_npy(path, numpy.arange(1000, dtype="f4"))
    lines = run("compare", "--from", save(tmp_path / "a.json", *paths), "--wide").stdout.decode().splitlines()
    assert [line for line in lines if line.endswith(", d = 1,000")] == [f"{paths[0]}, d = 1,000", f"{paths[1]}, d = 1,000", "h.npy, d = 1,000"]


@pytest.mark.parametrize("text,part", [("", "not JSON"), ("[1]", "no list 'rows'"), ('{"rows": [1]}', "row 0"), ('{"rows": [{"input": 1, "plan": "x"}]}', "'input'"),
                                       ('{"rows": [{"input": "a", "plan": "x", "bytes": -1}]}', "'bytes'"), ('{"schema": "other-9", "rows": []}', '"other-9"'),
                                       pytest.param('{"rows": [], "x": ' + "[" * 200000 + "]" * 200000 + "}", "32 deep", id="deep"), ('{"rows": [{"x": 1e999}]}', "overflow")])
def test_what_is_no_saved_document_is_refused(tmp_path, text, part):
    (tmp_path / "a.json").write_text(text)
    for option in ("--from", "--against", "--resume"):
        message = refusal("compare", option, tmp_path / "a.json", *([] if option == "--from" else [SYNTH]))
        assert part in message and "a.json" in message
    assert "cannot be opened" in refusal("compare", "--from", tmp_path / "none.json")
    assert "directory" in refusal("compare", "--from", tmp_path)


def test_names_in_a_saved_file_do_not_reach_the_terminal_as_controls(tmp_path):
    report = compare(SYNTH, plans=(EXACT, LOSSY))
    for row in report["rows"]:
        row["input"], row["tensor"] = "a\x1b[31m", "b\x07\r"
    (tmp_path / "a.json").write_text(json.dumps(report))
    for more in ((), ("--sort", "bytes"), ("--best", "bytes > 0"), ("--against", tmp_path / "a.json"), ("--format", "md")):
        text = run("compare", "--from", tmp_path / "a.json", *more).stdout
        assert b"golomb" in text and not any(c < 32 and c != 10 for c in text)


def test_a_plan_that_failed_is_named_under_every_table(tmp_path):
    file = write_npy(tmp_path / "nan.npy", [float("nan"), 1.0] * 100)
    done = run("compare", file, "--plan", "index=golomb value=raw|qsgd", "--repeat", 1, "--output", tmp_path / "a.json", status=1)
    assert "NaN" in done.stderr.decode()
    text = run("compare", "--from", tmp_path / "a.json", "--sort", "bytes").stdout.decode()
    assert f"failed: {file}: index=golomb value=qsgd: " in text and "NaN" in text


def test_saved_rows_alone_take_no_plans(tmp_path):
    assert "INPUT" in refusal("compare", "--from", save(tmp_path / "a.json", SYNTH), "--plan", EXACT)


def test_resume_measures_only_what_is_not_there(tmp_path):
    store = tmp_path / "run.json"
    run("compare", SYNTH, "--plan", EXACT, "--repeat", 1, "--resume", store)
    first = json.loads(store.read_text())["rows"]
    done = run("compare", SYNTH, "synth:d=500", "--plan", EXACT, "--plan", RAW, "--repeat", 1, "--resume", store, "--format", "json")
    rows = json.loads(store.read_text())["rows"]
    assert rows[:2] == first  # the times, too: they were not measured again
    assert sorted((row["d"], row["plan"]) for row in rows) == sorted([(d, p) for d in (20000, 500) for p in ("memcpy", EXACT, RAW)])
    assert json.loads(done.stdout)["rows"] == rows and f"2 plans × 2 inputs, 3 to measure (1 already in {store})" in done.stderr.decode()
    again = run("compare", SYNTH, "synth:d=500", "--plan", EXACT, "--plan", RAW, "--repeat", 1, "--resume", store, "--format", "json")
    assert json.loads(again.stdout)["rows"] == rows == json.loads(store.read_text())["rows"]
    assert f"2 plans × 2 inputs, 0 to measure (4 already in {store})" in again.stderr.decode()
    less = run("compare", SYNTH, "--plan", RAW, "--repeat", 1, "--resume", store)
    assert f"1 plan × 1 input, 0 to measure (1 already in {store})" in less.stderr.decode()


def test_resume_names_the_setting_that_differs(tmp_path):
    store = tmp_path / "saved.json"
    run("compare", SYNTH, "--plan", RAW, "--repeat", 1, "--resume", store)
    for words, named in ((("--repeat", 2), "repeat = 1, now it is 2"), (("--repeat", 1, "--flat"), "selection.flat = false, now it is true")):
        assert named in refusal("compare", SYNTH, "--plan", RAW, *words, "--resume", store)


def test_resume_measures_anew_what_was_overwritten(tmp_path):
    store, file = tmp_path / "run.json", tmp_path / "a.npz"
    command = ("compare", file, "--plan", EXACT, "--repeat", 1, "--resume", store)
    numpy.savez(file, w=numpy.arange(2000, dtype="f4"))
    run(*command)
    old = json.loads(store.read_text())["rows"]
    numpy.savez(file, w=numpy.ones(2000, "f4"))
    done = run(*command)
    rows = json.loads(store.read_text())["rows"]
    assert "2 rows were measured on other values" in done.stderr.decode()
    assert [row["plan"] for row in rows] == ["memcpy", EXACT] and rows[1]["data"] != old[1]["data"]
    run(*command)
    assert json.loads(store.read_text())["rows"] == rows  # as they were


@pytest.mark.parametrize("arrays", [{"w": numpy.ones(3000, "f4")}, {"w": numpy.ones(2000, "f2")}, {"v": numpy.arange(2000, dtype="f4")}],
                         ids=["another shape", "another type", "another name"])
def test_resume_forgets_what_an_overwritten_file_held(tmp_path, arrays):
    store, file = tmp_path / "run.json", tmp_path / "a.npz"
    command = ("compare", file, "--tensor", "*", "--plan", RAW, "--repeat", 1, "--resume", store)
    numpy.savez(file, w=numpy.arange(2000, dtype="f4"))
    run(*command, SYNTH)
    numpy.savez(file, **arrays)
    assert "2 rows were measured on other values" in run(*command).stderr.decode()
    saved = json.loads(store.read_text())
    (name, now), = arrays.items()
    for entries, times in ((saved["rows"], 2), (saved["subjects"], 1)):
        of_file = [(entry["tensor"], entry["d"], entry["dtype"]) for entry in entries if entry["input"] == str(file)]
        assert of_file == times * [(name, now.size, "f16" if now.dtype == "f2" else "f32")]
        assert len(entries) == 2 * times  # those of the other input stay


def test_resume_keeps_steps_of_files_that_are_as_they_were(tmp_path):
    store, files = tmp_path / "run.json", [tmp_path / "1.npz", tmp_path / "2.npz"]
    for i, file in enumerate(files):
        numpy.savez(file, w=numpy.arange(2000, dtype="f4") + i)
    command = ("compare", *files, "--steps", 3, "--each-step", "--tensor", "w", "--plan", RAW, "--repeat", 1, "--resume", store)
    run(*command)
    saved = json.loads(store.read_text())
    assert [row["step"] for row in saved["rows"]] == [1, 1, 2, 2, 3, 3]
    assert "gone" not in run(*command).stderr.decode() and json.loads(store.read_text())["rows"] == saved["rows"]


def test_resume_keeps_rows_of_a_file_given_twice_apart(tmp_path):
    store, file = tmp_path / "run.json", tmp_path / "a.npz"
    numpy.savez(file, w=numpy.ones(3, "f4"))
    command = ("compare", file, file, "--tensor", "w", "--plan", RAW, "--repeat", 1)
    plain = json.loads(run(*command, "--format", "json").stdout)
    for _ in range(2):
        run(*command, "--resume", store)
        saved = json.loads(store.read_text())
        assert len(saved["rows"]) == len(plain["rows"]) == 4 and len(saved["subjects"]) == 2
        assert len({row["data"] for row in saved["rows"]}) == 2


def test_resume_refuses_rows_of_other_settings(tmp_path):
    store = tmp_path / "run.json"
    run("compare", SYNTH, "--plan", EXACT, "--repeat", 1, "--resume", store)
    message = refusal("compare", SYNTH, "--plan", EXACT, "--repeat", 1, "--seed", 5, "--resume", store)
    assert "seed = 0" in message and "5" in message and "run.json" in message
    for option in (("--tensor", "*"), ("--flat",), ("--cast", "f16")):
        assert "selection" in refusal("compare", SYNTH, "--plan", EXACT, "--repeat", 1, *option, "--resume", store)


def test_a_terminal_shows_progress_and_the_time_left():
    ours, theirs = os.openpty()
    command = [TOOL, "compare", "synth:d=3000", "synth:d=4000", "--plan", EXACT, "--repeat", "5"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # Linux returns EIO if the other side is closed
                break
            if not part:
                break
            seen += part
    os.close(ours)
    text = seen.decode(errors="replace")
    assert process.returncode == 0 and "1 plan × 2 inputs" in text
    assert "input 1/2, plan 1/1" in text and "input 2/2, round 5 of 5" in text
    assert text.endswith("\r\x1b[K")  # the line is cleared


def test_an_interrupted_run_writes_what_is_finished(tmp_path):
    store, output = tmp_path / "run.json", tmp_path / "out.json"
    command = [TOOL, "compare", "synth:d=1000", "synth:d=3000000", "--plan", EXACT, "--repeat", "3000", "--resume", store, "--output", output]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        while not store.exists() and process.poll() is None:  # written after the first subject; the second takes a minute
            os.sched_yield()
        process.send_signal(signal.SIGINT)
        stderr = process.communicate(timeout=240)[1].decode()
    assert process.returncode == 130 and "interrupted: 1 rows were finished" in stderr
    for file in (store, output):
        assert [(row["d"], row["plan"]) for row in json.loads(file.read_text())["rows"]] == [(1000, "memcpy"), (1000, EXACT)]


def test_against_says_what_got_better_and_worse(tmp_path):
    old = json.loads(save(tmp_path / "now.json", SYNTH, plans=(EXACT, LOSSY, RAW)).read_text())
    for row in rows_of(old):
        row["bytes"] += {EXACT: 10, LOSSY: -10, RAW: 0}[row["plan"]]
        row["encode_ns"], row["encode_ns_spread"] = 10**12, 0.01  # everything is faster than that
    old["rows"] = [row for row in old["rows"] if row["plan"] != RAW]
    (tmp_path / "old.json").write_text(json.dumps(old))
    command = ("compare", "--from", tmp_path / "now.json", "--against", tmp_path / "old.json")
    result = json.loads(run(*command, "--format", "json").stdout)["against"]
    assert {row["plan"]: row["verdict"] for row in result["rows"]} == {EXACT: "better", LOSSY: "mixed"}
    assert result["rows"][1]["columns"]["bytes"]["verdict"] == "worse"
    assert [row["plan"] for row in result["only_new"]] == [RAW] and result["only_old"] == []
    text = run(*command).stdout.decode()
    assert "1 better, 0 worse, 0 the same, 1 mixed" in text and f"only now: {SYNTH}: {RAW}" in text
    run(*command, "--fail-if-worse", status=1)
    run("compare", "--from", tmp_path / "now.json", "--against", tmp_path / "now.json", "--fail-if-worse")
    assert "--against" in refusal("compare", SYNTH, "--fail-if-worse")


def test_against_notes_another_machine(tmp_path):
    old = json.loads(save(tmp_path / "now.json", SYNTH).read_text())
    old["machine"]["cpu"] = "another"
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert "times do not compare" in run("compare", "--from", tmp_path / "now.json", "--against", tmp_path / "old.json").stdout.decode()


def test_decode_gives_the_array_back(tmp_path):
    values = numpy.zeros(3000, "<f4")
    values[7], values[2999] = 1.5, -2
    write_npy(tmp_path / "g.npy", values.tolist())
    run("encode", tmp_path / "g.npy", "--plan", "index=golomb value=raw", "--output", tmp_path / "frame")
    run("decode", tmp_path / "frame", "--output", tmp_path / "x.npy")
    assert (numpy.load(tmp_path / "x.npy") == values).all()
    run("decode", tmp_path / "frame", "--output", tmp_path / "x.f32")
    assert (tmp_path / "x.f32").read_bytes() == values.tobytes()
    frame = (tmp_path / "frame").read_bytes()
    (tmp_path / "two").write_bytes(2 * frame)
    done = run("decode", tmp_path / "two", "--output", tmp_path / "y.f32")
    assert done.stderr.decode() == f"deepreduce: note: {tmp_path / 'two'}: {len(frame)} bytes after the frame are not decoded\n"
    assert (tmp_path / "y.f32").read_bytes() == values.tobytes()
    run("decode", tmp_path / "frame", "--output", tmp_path / "x.npz")
    with numpy.load(tmp_path / "x.npz") as arrays:
        assert arrays.files == ["tensor_0"] and (arrays["tensor_0"] == values).all()


def test_decode_of_several_tensors_and_of_halves(tmp_path):
    arrays = {"a": numpy.arange(100, dtype="<f4"), "b": numpy.arange(50, dtype="<f2")}
    numpy.savez(tmp_path / "g.npz", **arrays)
    run("encode", tmp_path / "g.npz", "--plan", "index=all value=raw", "--output", tmp_path / "frame")
    run("decode", tmp_path / "frame", "--output", tmp_path / "x.npz")
    with numpy.load(tmp_path / "x.npz") as decoded:
        assert len(decoded.files) == len(arrays)
        for name, values in zip(decoded.files, arrays.values()):
            assert decoded[name].dtype == values.dtype and (decoded[name] == values).all()
    assert "2 tensors" in refusal("decode", tmp_path / "frame", "--output", tmp_path / "x.npy")


def test_decode_refuses_what_it_cannot_write(tmp_path):
    frame = tmp_path / "frame"
    run("encode", "synth:d=2000", "--plan", EXACT, "--output", frame)
    assert ".npz" in refusal("decode", frame, "--output", tmp_path / "x.txt")
    assert "1999 dense elements" in refusal("decode", frame, "--output", tmp_path / "x.npy", "--max-elements", 1999)
    frame.write_bytes(frame.read_bytes()[:-1])
    assert "CORRUPT" in refusal("decode", frame, "--output", tmp_path / "x.npy", status=1)
    assert os.listdir(tmp_path) == ["frame"]
