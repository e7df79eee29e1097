"""The tool's output if a question has no answer, or if an answer would mislead."""

import json
import os
import re

import numpy
import pytest

from tool_runs import EXACT, LOSSY, SYNTH, TOPR, compare, needs_tool, refusal, rows_of, run, write_npy

pytestmark = needs_tool

RAW = TOPR + "index=raw value=raw"


@pytest.fixture
def saved(tmp_path):
    """Writes a document of rows with these bytes, times and rounds; returns its path."""
    document = compare(SYNTH, plans=(EXACT, LOSSY, RAW))

    def write(name, changes):
        rows = []
        for row in document["rows"]:
            if row["plan"] in changes:
                rows.append({**row, "rounds": 20, "total_error": 0.5, **changes[row["plan"]]})
        (tmp_path / name).write_text(json.dumps({**document, "rows": rows}))
        return tmp_path / name

    return write


def times(encode, spread, **further):
    return {"encode_ns": encode, "encode_ns_spread": spread, "decode_ns": 0, "decode_ns_spread": 0.0, **further}


def test_a_time_within_the_spread_keeps_nobody_on_the_front(saved):
    near = saved("near.json", {EXACT: times(1000, 0.2, bytes=10), LOSSY: times(990, 0.1, bytes=20)})
    far = saved("far.json", {EXACT: times(1000, 0.2, bytes=20), LOSSY: times(700, 0.1, bytes=30)})
    fronts = [json.loads(run("compare", "--from", path, "--pareto", "--format", "json").stdout) for path in (near, far)]
    assert [[row["plan"] for row in rows_of(front)] for front in fronts] == [[EXACT], [EXACT, LOSSY]]


def test_the_front_stands_in_the_order_of_its_first_column(saved):
    path = saved("front.json", {EXACT: times(900, 0.01, bytes=30), LOSSY: times(1000, 0.01, bytes=20), RAW: times(2000, 0.01, bytes=10)})
    front = json.loads(run("compare", "--from", path, "--pareto", "--format", "json").stdout)
    assert [row["bytes"] for row in rows_of(front)] == [10, 20, 30]


def test_tables_of_rows_warn_of_spreads(saved):
    path = saved("wide.json", {EXACT: times(1000, 0.9), LOSSY: times(5000, 0.01)})
    text = run("compare", "--from", path, "--wide").stdout.decode()
    assert "spread above 25 %" in text and "encode 90 %" in text
    assert re.search("spread above 25 % in times of [12] of 2 rows", run("compare", "--from", path).stdout.decode())


def test_nothing_compared_is_no_success(saved):
    old = saved("old.json", {EXACT: times(1000, 0.01)})
    new = saved("new.json", {RAW: times(1000, 0.01)})
    message = run("compare", "--from", new, "--against", old, "--fail-if-worse", status=2).stderr.decode()
    assert "nothing was compared" in message and "old.json" in message


def test_few_rounds_call_nothing_worse_below_a_fifth(saved):
    old = saved("old.json", {EXACT: times(1000, 0.01, rounds=5)})
    for encode, rounds, verdict in ((1150, 5, "same"), (1250, 5, "worse"), (1150, 20, "same"), (1250, 20, "worse")):
        new = saved("new.json", {EXACT: times(encode, 0.01, rounds=rounds)})
        result = json.loads(run("compare", "--from", new, "--against", old, "--format", "json").stdout)
        assert result["against"]["rows"][0]["columns"]["encode_ns"]["verdict"] == verdict, (encode, rounds)
    many = saved("many.json", {EXACT: times(1000, 0.01)}), saved("now.json", {EXACT: times(1150, 0.01)})
    result = json.loads(run("compare", "--from", many[1], "--against", many[0], "--format", "json").stdout)
    assert result["against"]["rows"][0]["columns"]["encode_ns"]["verdict"] == "worse"


def test_against_in_markdown_is_a_table_and_paragraphs(saved):
    old = saved("old.json", {EXACT: times(1000, 0.01), RAW: times(10, 0.01)})
    new = saved("new.json", {EXACT: times(2000, 0.01), LOSSY: times(10, 0.01)})
    text = run("compare", "--from", new, "--against", old, "--format", "md").stdout.decode()
    table, *paragraphs = text.rstrip("\n").split("\n\n")
    head, rule, *rows = table.split("\n")
    assert head.startswith("| plan | of | bytes |") and head.endswith("| verdict |")
    assert set(rule) == set("|-:") and len(rows) == 2 and rows[0].startswith(f"| {EXACT} |") and rows[1].startswith("| all | 1 row |")
    assert {line.count("|") for line in (head, rule, *rows)} == {head.count("|")}
    assert paragraphs[0].startswith(f"Against {old} (commit ") and "1 worse" in paragraphs[0]
    assert [paragraph.split(":")[0] for paragraph in paragraphs[2:]] == [f"only in {old}", "only now"]
    assert not any("\n" in paragraph for paragraph in paragraphs)


def test_no_row_says_how_near_the_nearest_is(saved):
    path = saved("rows.json", {EXACT: times(1000, 0.01, total_error=0.25)})
    done = run("compare", "--from", path, "--where", "error < 0.02")
    assert "none of 1 rows; the least error is 0.25" in done.stderr.decode()
    done = run("compare", "--from", path, "--where", "(error < 0.02)")
    assert "none of 1 rows; the least error is 0.25" in done.stderr.decode()
    done = run("compare", SYNTH, "--plan", EXACT, "--plan", LOSSY, "--repeat", 1, "--where", "bytes < 1")  # memcpy is not a plan
    assert "none of 2 rows" in done.stderr.decode()
    done = run("compare", "--from", path, "--where", "verdict == 'pays'")
    assert "no row has 'verdict', which requires --link" in done.stderr.decode()


def test_an_infinity_makes_errors_undefined_and_is_told(tmp_path):
    x = numpy.ones(4000, numpy.float32)
    x[7] = numpy.inf
    numpy.save(tmp_path / "inf.npy", x)
    done = run("compare", tmp_path / "inf.npy", "--plan", "index=all value=raw", "--plan", EXACT, "--repeat", 1, "--format", "json")
    lossless, lossy = [row for row in json.loads(done.stdout)["rows"] if row["plan"] != "memcpy"]
    for row in (lossless, lossy):
        assert row["total_error"] is None and row["contraction"] is None and row["relative_l2_error"] is None
    assert f"note: {tmp_path / 'inf.npy'}: a value is NaN or infinite, the first at position 7: errors are undefined\n" in done.stderr.decode()


def test_the_note_of_a_nan_says_of_which_tensor_where_and_how_many(tmp_path):
    a, b = numpy.ones(4000, numpy.float32), numpy.ones(2000, numpy.float16)
    b[[5, 17]] = numpy.nan, -numpy.inf
    file = tmp_path / "x.npz"
    numpy.savez(file, a=a, b=b)

    def notes(*arguments):
        done = run("compare", file, "--plan", EXACT, "--repeat", 1, *arguments)
        return [line for line in done.stderr.decode().splitlines() if "NaN" in line]

    message = "2 values are NaN or infinite, the first at position 5"
    assert notes("--per-tensor") == [f"deepreduce: note: {file} b: {message}: errors are undefined"]
    assert notes("--batch") == [f"deepreduce: note: {file} [2 tensors]: {message} of b: errors are undefined"]
    numpy.savez(file, a=a, b=b.astype(numpy.float32))
    joined = f"deepreduce: note: {file} *: 2 values are NaN or infinite, the first at position 4005 of all tensors joined; --tensor '*' names the tensor"
    assert notes() == [joined + ": errors are undefined"]
    # Where no plan takes them: behind the error, which has the position alone.
    done = run("compare", file, "--plan", "index=golomb value=qsgd", "--repeat", 1, status=1)
    error, note = done.stderr.decode().splitlines()
    assert "(at 4005, value nan)" in error and note == joined


def test_the_answer_of_best_is_told_where_rows_go_to_a_file(tmp_path):
    text = run("compare", SYNTH, "--plan", EXACT, "--repeat", 1, "--best", "error<=1", "--output", tmp_path / "b.json").stdout
    assert b"the plan of least bytes with error<=1" in text.replace(b" <= ", b"<=")


def test_a_link_names_the_model_in_every_table():
    for more in ((), ("--sort", "bytes")):
        text = run("compare", SYNTH, "--plan", LOSSY, "--repeat", 1, "--ranks", 4, "--link", "1Gb/s", *more).stdout.decode()
        assert "model" in text and "1Gb/s" in text, more


def test_a_rate_in_bytes_is_shown_in_bits_too(tmp_path):
    words = ("compare", SYNTH, "--plan", LOSSY, "--plan", EXACT, "--repeat", 1, "--link")
    for link, shown in (("10GB/s", "10GB/s = 80 Gb/s"), ("10Gb/s", "10Gb/s")):
        text = " ".join(run(*words, link).stdout.decode().split())
        assert f"over links of {shown} among 8 ranks" in text and f"plans, on {shown} among 8 ranks" in text
    run(*words, "10GB/s", "-o", tmp_path / "a.json")
    assert "10GB/s = 80 Gb/s" in " ".join(run("compare", "--from", tmp_path / "a.json").stdout.decode().split())


def test_saved_rows_in_csv_are_refused_with_the_form_that_is_read(tmp_path):
    run("compare", SYNTH, "--plan", EXACT, "--repeat", 1, "-o", tmp_path / "a.csv")
    message = refusal("compare", "--from", tmp_path / "a.csv")
    assert "a.csv: CSV" in message and "saved rows are JSON, as --output X.json writes them" in message


def test_an_input_without_anything_to_compare_is_named(tmp_path):
    numpy.save(tmp_path / "empty.npy", numpy.zeros(0, "f4"))
    numpy.savez(tmp_path / "small.npz", a=numpy.ones(5, "f4"), b=numpy.ones(7, "f4"))
    for more in ((), ("--batch",)):
        assert refusal("compare", tmp_path / "empty.npy", *more) == f"deepreduce: {tmp_path / 'empty.npy'} holds no elements; nothing to compare\n"
    assert "small.npz holds no tensor of at least 1000 elements (--tensor '*' takes smaller ones); nothing to compare" in refusal("compare", tmp_path / "small.npz", "--per-tensor")
    done = run("compare", tmp_path / "empty.npy", SYNTH, "--plan", EXACT, "--repeat", 1)
    assert done.stderr.decode() == f"deepreduce: note: {tmp_path / 'empty.npy'} holds no elements\n"


def test_what_is_in_a_frame_and_the_presets_are_there_as_json(tmp_path):
    run("encode", SYNTH, "--plan", LOSSY, "-o", tmp_path / "frame")
    document = json.loads(run("inspect", tmp_path / "frame", "--format", "json").stdout)
    tensor, = document["tensors"]
    assert document["bytes"] == (tmp_path / "frame").stat().st_size == document["header_bytes"] + sum(tensor[f"{part}_bytes"] for part in ("index", "value", "order"))
    assert (tensor["universe"], tensor["support"], tensor["dtype"]) == (20000, 200, "f32") and document["tag"] is document["status"] is None
    listed = json.loads(run("presets", "--format", "json").stdout)
    assert {"name": "PFor", "set": "fastpfor", "plan": "sparsify=topr(ratio=0.01) index=delta_pfor value=raw"}.items() <= next(p for p in listed if p["name"] == "PFor").items()
    assert [p["name"] for p in json.loads(run("presets", "fastpfor", "--format", "json").stdout)] == ["VByte", "BP128", "PFor"]


def test_whole_numbers_of_64_bits_are_taken_and_others_refused(tmp_path):
    plan = ("--plan", "sparsify=random(count=50) index=raw value=raw", "--output", tmp_path / "frame")
    for option, largest in (("--seed", "18446744073709551615"), ("--segment-rows", "0xffffffffffffffff")):
        run("encode", SYNTH, *plan, option, largest)
        for wrong, sentence in (("18446744073709551616", "is above 18446744073709551615"), ("9" * 40, "is above"), ("", "is not a whole number"),
                                ("-1", "is negative"), (" -1", "is not a whole number"), ("1e3", "Could not convert")):  # fmt: skip
            message = refusal("encode", SYNTH, *plan, option, wrong)
            assert sentence in message and wrong in message and option in message
    for command in (("compare", SYNTH, "--seed"), ("calibrate", "--seed"), ("decode", tmp_path / "frame", "--output", tmp_path / "x.npy", "--max-elements")):
        assert "'18446744073709551616' is above 18446744073709551615" in refusal(*command, "18446744073709551616")


def test_what_is_not_known_names_what_is_near(tmp_path):
    assert "no command 'comapre'; is it 'compare'?" in refusal("comapre")
    for command in ("capture", "figure", "patch"):
        here = f"; the Python package has it: `python -m deepreduce {command}`"
        assert f"no command '{command}'{here}" in refusal(command) and f"no such command{here}" in refusal("help", command)
    assert "compare: no option '--paln'; is it '--plan'?" in refusal("compare", SYNTH, "--paln", EXACT)
    assert "'stray' is one argument too many" in refusal("presets", "grace", "stray")
    for option in ("--where", "--best"):
        assert f"{option}: must not be empty" in refusal("compare", SYNTH, option, "")
    assert "a report is HTML" in refusal("compare", SYNTH, "--report", tmp_path / "r.pdf")


def test_a_plan_may_be_a_name():
    rows = rows_of(compare(SYNTH, plans=("terngrad", "BF-P0 sparsify=topr(ratio=0.05)")))
    assert [row["preset"] for row in rows] == ["terngrad", "BF-P0"]
    assert rows[1]["plan"].startswith("sparsify=topr(ratio=0.05) index=bloom(")
    twice = ("--plan", "BF-P0 sparsify=topr(ratio=0.05)", "--plan", "BF-P0 sparsify=topr(ratio=0.1)")
    text = run("compare", SYNTH, *twice, "--repeat", 1).stdout.decode()
    names = re.findall(r"^ +(BF-P0.*?)  ", text, re.M)
    assert names == ["BF-P0 sparsify=topr(ratio=0.05)", "BF-P0 sparsify=topr(ratio=0.1)"]
    assert text.count("BF-P0: ") == 1  # what the name means


def test_files_that_cannot_be_written_are_refused_before_anything_is_measured(tmp_path):
    """And two results never go to one file: a selection would take the place of the rows that --resume keeps."""
    for option, end in (("--output", "csv"), ("--report", "html"), ("--resume", "json")):
        refused = refusal("compare", "synth:d=1k", "--plan", EXACT, option, tmp_path / "nowhere" / f"x.{end}")
        assert "cannot write" in refused and "round" not in refused
    both = ("--resume", tmp_path / "L.json", "--output", tmp_path / "." / "L.json", "--where", "bytes < 1")
    assert "--resume writes the same file" in refusal("compare", "synth:d=1k", "--plan", EXACT, *both)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_names_an_input_is_refused(tmp_path):
    """It would replace it. Also by another name; a hard link is a file of its own, since a result takes the place of a name."""
    npy, saved = write_npy(tmp_path / "g.npy", [1.0, 2.0]), tmp_path / "rows.json"
    run("compare", npy, "--plan", EXACT, "--repeat", 1, "-o", saved)
    run("encode", npy, "--plan", EXACT, "-o", tmp_path / "frame.npy")
    (tmp_path / "book").write_text(f"* = {EXACT}\n")
    (tmp_path / "link.npy").symlink_to(npy)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for *words, option, named in (
        ("compare", npy, "--plan", EXACT, "--output", npy),
        ("compare", npy, "--plan", EXACT, "--output", tmp_path / "link.npy"),
        ("compare", tmp_path / "link.npy", "--plan", EXACT, "--output", tmp_path / "." / "g.npy"),
        ("compare", npy, "--book", tmp_path / "book", "--report", tmp_path / "book"),
        ("compare", "--from", saved, "--where", "bytes < 1", "--output", saved),
        ("compare", npy, "--plan", EXACT, "--against", saved, "--output", saved),
        ("encode", npy, "--plan", EXACT, "--output", npy),
        ("decode", tmp_path / "frame.npy", "--output", tmp_path / "frame.npy"),
        ("decode", tmp_path / "frame.npy", "--like", npy, "--output", npy),
        ("calibrate", "--data", npy, "--output", npy),
    ):
        assert f"{option} {named}: it is an input" in refusal(*words, option, named)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    os.link(npy, tmp_path / "same.npy")
    run("encode", npy, "--plan", EXACT, "-o", tmp_path / "same.npy")
    assert npy.read_bytes() == before["g.npy"]


def test_an_empty_plan_or_order_is_refused_and_an_ending_may_be_in_capitals(tmp_path):
    for option in ("--plan", "--sort"):
        assert f"{option}: must not be empty" in refusal("compare", "synth:d=1k", option, "")
    run("compare", "synth:d=1k", "--plan", EXACT, "--repeat", "1", "--output", tmp_path / "x.CSV")
    assert (tmp_path / "x.CSV").read_text().startswith("input,")


def test_a_total_alone_is_not_worse(saved):
    """Its spread is that of a sum; the rows are within theirs."""
    old = saved("old.json", {EXACT: times(1000, 0.15, bytes=10), LOSSY: times(1000, 0.15, bytes=20)})
    new = saved("new.json", {EXACT: times(1120, 0.15, bytes=10), LOSSY: times(1120, 0.15, bytes=20)})
    done = run("compare", "--from", new, "--against", old, "--fail-if-worse")
    assert b"0 worse" in done.stdout and b"0 mixed" in done.stdout


def test_bits_of_an_order_stand_in_every_table(tmp_path):
    words = ("compare", "synth:d=20k", "--plan", TOPR + "index=golomb value=fit_poly", "--seed", "1", "--repeat", "1")
    shown = [run(*words, *more).stdout.decode() for more in (("--wide",), ("--wide", "--sort", "bytes"))]
    cells = [next(word for line in text.splitlines() for word in line.split() if word.count("+") == 2) for text in shown]
    assert cells[0] == cells[1]
