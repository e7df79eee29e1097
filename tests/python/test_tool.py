"""The tool `deepreduce`: content and form of its reports, and how it fails."""

import json
import math
import os
import subprocess

import pytest

from tool_runs import (COLUMNS, DATASETS, EXACT, LOSSY, NO_SPARSIFIER, SYNTH, TIMED, TOOL, TOPR, compare, needs_tool, refusal, rows_of,
                       run, write_npy, write_npz)

pytestmark = needs_tool


@pytest.fixture
def bundled():
    return sorted((DATASETS / "gradients").glob("resnet20*.npz"))[0]


def test_json_is_one_object_with_all_stable_names():
    report = compare(SYNTH, "--seed", 5, plans=(EXACT, LOSSY))
    assert {"machine", "commit", "build", "seed", "rows"} <= report.keys()
    assert report["seed"] == 5 and report["commit"]
    assert {"cpu", "cores", "flags", "os"} <= report["machine"].keys()
    assert {"compiler", "version", "buildtype"} <= report["build"].keys()
    for row in report["rows"]:
        assert set(COLUMNS) <= row.keys()
    assert [row["plan"] for row in report["rows"]] == ["memcpy", EXACT, LOSSY]


def test_csv_has_the_same_columns_and_the_formats_agree_on_bytes():
    plans = (EXACT, LOSSY, TOPR + "index=bloom(policy=p0,fpr=0.001) value=fit_poly")
    report = compare(SYNTH, plans=plans)
    lines = compare(SYNTH, plans=plans, form="csv")
    assert list(lines[0]) == [name for name in report["rows"][0] if name != "samples"] + ["machine", "commit"]
    assert len(lines) == len(report["rows"])
    for line, row in zip(lines, report["rows"]):
        assert (line["machine"], line["commit"]) == (report["machine"]["cpu"] or "", report["commit"])
        for name in set(COLUMNS) - TIMED:
            assert line[name] == ("" if row[name] is None else str(row[name])), name
    table = compare(SYNTH, plans=plans, form="wide")
    for row in report["rows"]:
        assert f"{row['bytes']:,}" in table


def test_exact_plan_has_no_error():
    row, = rows_of(compare(SYNTH))
    assert (row["d"], row["r"], row["support"], row["fallback"]) == (20000, 200, 200, "none")
    assert row["index_recall"] == 1
    assert row["relative_l2_error"] == row["max_relative_error"] == 0
    assert 0 < row["contraction"] < 1 and 0 < row["cosine_similarity"] < 1
    assert row["contraction"] == pytest.approx(1 - row["cosine_similarity"] ** 2)  # true of any projection


def test_dense_exact_plan_changes_nothing(tmp_path):
    row, = rows_of(compare(write_npy(tmp_path / "g.npy", [1.0, -2.5, 3.25] * 50), plans=(NO_SPARSIFIER,)))
    assert row["cosine_similarity"] == 1 and row["contraction"] == 0


def test_sizes_add_up_and_bits_follow_from_them():
    plans = (EXACT, TOPR + "index=golomb value=fit_poly", TOPR + "index=bloom(policy=p0,fpr=0.001) value=raw")
    for row in rows_of(compare(SYNTH, plans=plans)):
        sections = row["index_bytes"] + row["value_bytes"] + row["order_bytes"]
        assert row["bytes"] == sections + row["header_bytes"]
        assert 0 < row["header_bytes"] <= 64
        assert row["relative_volume"] == pytest.approx(row["bytes"] / (4 * row["d"]))
        assert row["index_bits_per_nonzero"] == pytest.approx(8 * row["index_bytes"] / row["r"])
        assert row["value_bits_per_nonzero"] == pytest.approx(8 * row["value_bytes"] / row["r"])
        bound = math.log2(math.comb(row["d"], row["r"])) / row["r"]
        assert row["index_bound_bits_per_nonzero"] == pytest.approx(bound, rel=1e-9)
        assert row["support"] >= row["r"]


def test_errors_are_those_of_plain_arithmetic(tmp_path):
    # A polynomial of degree 0 sends 3 and 4 as their mean, twice; the 1 is not kept.
    file = write_npy(tmp_path / "g.npy", [0.0] * 16 + [1.0, 3.0, 4.0])
    row, = rows_of(compare(file, plans=("sparsify=topr(count=2) index=golomb value=fit_poly(degree=0)",)))
    assert row["r"] == row["support"] == 2 and row["fallback"] == "none" and row["index_recall"] == 1
    assert row["relative_l2_error"] == pytest.approx(math.sqrt(0.5) / 5)
    assert row["max_relative_error"] == 0.5 / 4
    assert row["cosine_similarity"] == pytest.approx(7 * 3.5 / math.sqrt(26 * 2 * 3.5**2))
    assert row["contraction"] == pytest.approx((1 + 0.5) / 26)


def test_recall_of_a_replaced_support():
    plans = [TOPR + f"index=bloom(policy={policy},fpr=0.01) value=raw" for policy in ("leftmost", "p0", "naive")]
    leftmost, p0, naive = rows_of(compare(SYNTH, plans=plans))
    assert 0 < leftmost["index_recall"] < 1 and leftmost["support"] == leftmost["r"] == 200
    assert leftmost["missed"] == leftmost["false_positives"] == round(200 * (1 - leftmost["index_recall"]))
    assert p0["index_recall"] == 1 and p0["support"] > 200
    assert p0["missed"] == 0 and p0["false_positives"] == p0["support"] - 200
    assert naive["index_recall"] == leftmost["index_recall"]  # the same filter, with other values
    assert naive["relative_l2_error"] > leftmost["relative_l2_error"] > 0
    # false positives bring values of g along, so they are errors against s but bring us nearer to g
    assert p0["relative_l2_error"] > 0 and p0["contraction"] < rows_of(compare(SYNTH))[0]["contraction"]


def test_memcpy_row_says_only_what_is_defined():
    copy = compare(SYNTH)["rows"][0]
    assert copy["plan"] == "memcpy" and copy["bytes"] == 80000 and copy["relative_volume"] == 1
    assert copy["sparsify_ns"] == 0 and copy["encode_ns"] == copy["decode_ns"] > 0
    assert copy["r"] is copy["support"] is copy["index_bytes"] is copy["relative_l2_error"] is None


def test_all_zero_and_single_element(tmp_path):
    zero, = rows_of(compare(write_npy(tmp_path / "zero.npy", [0.0] * 100)))
    assert zero["r"] == zero["support"] == zero["relative_l2_error"] == zero["index_bound_bits_per_nonzero"] == 0
    assert zero["index_recall"] == zero["energy_recall"] == 1 and zero["total_error"] == 0
    one, = rows_of(compare(write_npy(tmp_path / "one.npy", [2.0])))
    assert one["r"] == 1 and one["fallback"] == "dense" and one["index_recall"] == 1


def test_nan_is_carried_by_an_exact_plan_and_fails_a_lossy_one_alone(tmp_path):
    file = write_npy(tmp_path / "nan.npy", [math.nan, math.inf, -0.0, 1.0] * 100)
    plans = (NO_SPARSIFIER, "index=golomb value=qsgd", "sparsify=threshold(value=1) index=golomb value=raw")
    done = run("compare", file, "--repeat", 1, "--format", "json", *[w for p in plans for w in ("--plan", p)], status=1)
    rows = rows_of(json.loads(done.stdout))
    assert [row["plan"] for row in rows] == [plans[0], plans[2]]
    failed, = json.loads(done.stdout)["failures"]
    assert (failed["input"], failed["plan"]) == (str(file), plans[1]) and "NaN" in failed["error"]
    table = run("compare", file, "--repeat", 1, *[w for p in plans for w in ("--plan", p)], status=1).stdout.decode()
    assert f"failed: {file}: index=golomb value=qsgd: " in table and "NaN" in table.split("failed: ")[1]
    assert rows[0]["relative_l2_error"] is None  # 0 / NaN
    assert rows[1]["r"] == 300  # NaN ranks above infinity
    message = done.stderr.decode()
    assert str(file) in message and "qsgd" in message and "NaN" in message


def test_half_precision_is_compared_in_its_own_type(tmp_path):
    file = write_npy(tmp_path / "h.npy", [math.sin(i) * 2.0**-20 for i in range(2000)], "<f2", "e")  # subnormals too
    row, = rows_of(compare(file))
    assert row["dtype"] == "f16" and row["r"] == 20 and row["value_bits_per_nonzero"] == 16
    assert row["relative_l2_error"] == 0


@pytest.mark.parametrize("dtype,code", [("<f4", "f"), ("<f2", "e")])
def test_zeros_that_a_sparsifier_keeps_are_known_also_in_merge_values(tmp_path, dtype, code):
    file = write_npy(tmp_path / "g.npy", [0.0, -0.0, 1.5, 0.0, -2.0] * 200, dtype, code)
    random = "sparsify=random(ratio=0.9) "
    plans = [random + f"index={streams}" for streams in ("raw value=raw", "bitmap value=qsgd", "bloom(policy=p0,fpr=0.01)")]
    rows = rows_of(compare(file, plans=plans))
    assert [row["r"] for row in rows] == [900] * 3 and [row["index_recall"] for row in rows] == [1] * 3
    assert rows[0]["fallback"] == "dense" and rows[1]["fallback"] == "none"
    assert rows[0]["relative_l2_error"] == 0 and rows[1]["false_positives"] == 0


def test_same_seed_same_bytes_and_values_other_seed_other_values():
    def errors(seed):
        return [(r["bytes"], r["relative_l2_error"]) for r in rows_of(compare(SYNTH, "--seed", seed, plans=(LOSSY,)))]

    assert errors(1) == errors(1) != errors(2)


def test_threads_do_not_change_a_frame():
    def frame(threads):
        return run("encode", SYNTH, "--plan", LOSSY, "--seed", 3, "--threads", threads).stdout

    assert frame(0) == frame(4)


def test_encode_says_that_a_tensor_goes_dense():
    notes = [run("encode", SYNTH, "--plan", plan).stderr.decode() for plan in ("value=log_quant", "index=all value=log_quant", LOSSY)]
    assert "note: 1 of 1 tensors goes dense" in notes[0] and "index=all" in notes[0] and "dense" not in notes[1] + notes[2]


def test_segments_are_coded_each_for_itself(tmp_path):
    plan = TOPR + "index=bloom(policy=p0,fpr=0.01) value=raw"
    naive = TOPR + "index=bloom(policy=naive,fpr=0.01) value=raw"
    plans = (EXACT, LOSSY, plan, naive, "index=bitmap value=raw")  # the last falls back to dense where it is shorter
    whole, parts = (rows_of(compare(SYNTH, "--segment-rows", n, plans=plans)) for n in (0, 1000))
    for one, cut in zip(whole, parts):
        assert cut["r"] == one["r"] and cut["plan"] == one["plan"]
        assert cut["header_bytes"] >= one["header_bytes"] + 19 * 8  # 20 segments, each with its check
    assert parts[0]["relative_l2_error"] == 0 and parts[2]["missed"] == 0
    file = tmp_path / "frame"
    run("encode", SYNTH, "--plan", plan, "--segment-rows", 1000, "--output", file)
    text = run("inspect", file).stdout.decode()
    assert "1 tensor in 20 segments" in text


def test_a_bundled_accumulator_of_each_model_is_the_default(tmp_path):
    """Those that the Python package has, too; of a folder without them all files."""
    rows = rows_of(compare(env={**os.environ, "DEEPREDUCE_DATASETS": str(DATASETS)}))
    captures = {str(DATASETS / e["file"]): e for e in json.loads((DATASETS / "manifest.json").read_text("utf-8"))["captures"]}
    assert [row["d"] for row in rows] == [captures[row["input"]]["parameters"] for row in rows]
    assert len(rows) == 4 == len({captures[row["input"]]["model"] for row in rows}) and {row["tensor"] for row in rows} == {"*"}
    for folder in ("accumulators", "gradients"):
        (tmp_path / folder).mkdir()
        write_npy(tmp_path / "x.npy", [1.0, 2.0] * 50)
        write_npz(tmp_path / folder / "g.npz", x=tmp_path / "x.npy")
    rows = rows_of(compare(env={**os.environ, "DEEPREDUCE_DATASETS": str(tmp_path)}))
    assert [row["input"] for row in rows] == [str(tmp_path / folder / "g.npz") for folder in ("accumulators", "gradients")]


def test_missing_bundled_data_name_the_place(tmp_path):
    done = subprocess.run([TOOL, "compare"], capture_output=True, env={**os.environ, "DEEPREDUCE_DATASETS": str(tmp_path)})
    assert done.returncode == 2
    assert all(str(tmp_path / folder) in done.stderr.decode() for folder in ("accumulators", "gradients"))


def test_default_plans_on_dense_and_on_sparse_input(tmp_path):
    dense = {row["plan"] for row in rows_of(compare(SYNTH, plans=()))}
    for ratio in ("0.001", "0.01", "0.1"):
        assert sum(plan.startswith(f"sparsify=topr(ratio={ratio}) feedback=residual ") for plan in dense) >= 3
    assert {"index=all value=half(type=bf16)", "feedback=residual index=all value=uniform_quant(bits=8) exchange=owner"} < dense
    sparse = {row["plan"] for row in rows_of(compare("synth:d=20000,density=0.01", plans=()))}
    assert len(sparse) >= 8 and not any("sparsify" in plan or "feedback" in plan for plan in sparse)
    assert not any("transform" in plan for plan in dense)  # there is no matrix
    numpy = pytest.importorskip("numpy")
    for kind, transforms in (("f4", 1), ("f2", 0)):
        numpy.savez(tmp_path / "m.npz", w=numpy.random.default_rng(1).standard_normal((60, 50)).astype(kind))
        assert sum("transform=lowrank" in row["plan"] for row in rows_of(compare(tmp_path / "m.npz", plans=()))) == transforms


def test_per_tensor_rows_leave_out_small_tensors_and_say_so(bundled):
    done = run("compare", bundled, "--per-tensor", "--plan", EXACT, "--repeat", 1, "--format", "json")
    rows = rows_of(json.loads(done.stdout))
    assert len(rows) > 1 and all(row["d"] >= 1000 for row in rows)
    assert "left out" in done.stderr.decode()
    assert "layer3.0.conv2.weight" in {row["tensor"] for row in rows}


def test_tensors_are_picked_by_glob_and_joined_if_asked(bundled):
    rows = rows_of(compare(bundled, "--tensor", "linear.*"))
    assert {row["tensor"]: row["d"] for row in rows} == {"linear.weight": 640, "linear.bias": 10}
    joined, = rows_of(compare(bundled, "--tensor", "linear.*", "--flat"))
    assert (joined["tensor"], joined["d"]) == ("*", 650)
    message = refusal("compare", bundled, "--tensor", "nothing.*", "--tensor", "linear.*")
    assert "'nothing.*'" in message and "conv1.weight" in message and "(59 in all)" in message


def test_names_beyond_ascii_are_picked_by_their_own_letters(tmp_path):
    file = tmp_path / "g.npz"
    write_npz(file, schicht_ü=write_npy(tmp_path / "g.npy", [1.0] * 2000))
    for glob in ("schicht_ü", "*ü", "schicht_?", "schicht_[äü]", r"schicht_\\u00fc"):  # the last as it is printed, with a glob's own escape
        for locale in ("C", "C.UTF-8"):
            row, = rows_of(compare(file, "--tensor", glob, env={**os.environ, "LC_ALL": locale}))
            assert row["tensor"] == "schicht_\\u00fc"
    write_npz(file, **{'b"q': tmp_path / "g.npy"})
    assert rows_of(compare(file, "--tensor", "b?q"))[0]["tensor"] == 'b\\"q'


def test_a_file_without_float_arrays_says_what_it_has_instead(tmp_path):
    file = write_npz(tmp_path / "g.npz", ids=write_npy(tmp_path / "i.npy", [1, 2], "<i8", "q"), more=tmp_path / "i.npy")
    message = refusal("compare", file, "--plan", EXACT)
    assert "no float array" in message and "ids" in message and "'<i8'" in message and "1 more" in message
    assert "byte 0" not in refusal("compare", tmp_path / "none.npy", "--plan", EXACT)


def test_a_plugin_in_this_folder_needs_no_slash(tmp_path):
    (tmp_path / "mine.so").write_bytes(b"no library")
    assert "./mine.so: " in refusal("codecs", "--plugin", "mine.so", cwd=tmp_path)


def test_an_unknown_level_of_instructions_is_refused():
    message = refusal("compare", SYNTH, "--plan", EXACT, env={**os.environ, "DEEPREDUCE_CPU": "avx1024"})
    assert "DEEPREDUCE_CPU='avx1024'" in message and "avx512" in message


def test_output_is_a_whole_file_or_none(tmp_path):
    target = tmp_path / "rows.csv"
    assert run("compare", SYNTH, "--plan", EXACT, "--repeat", 1, "--format", "csv", "--output", target).stdout == b""
    assert target.read_text().startswith("input,tensor,") and list(tmp_path.iterdir()) == [target]
    target.write_text("kept")
    assert refusal("compare", SYNTH, "--plan", "index=nope", "--output", target)
    assert target.read_text() == "kept" and list(tmp_path.iterdir()) == [target]
    message = refusal("compare", SYNTH, "--plan", EXACT, "--repeat", 1, "--output", tmp_path / "no" / "rows.csv")
    assert str(tmp_path / "no" / "rows.csv") in message
    longest = tmp_path / ("x" * 251 + ".csv")
    run("compare", SYNTH, "--plan", EXACT, "--repeat", 1, "--output", longest)
    assert longest.read_text().startswith("input,tensor,") and sorted(tmp_path.iterdir()) == [target, longest]
    run("compare", SYNTH, "--plan", EXACT, "--repeat", 1, "--output", longest)
    done = run("compare", SYNTH, "--plan", EXACT, "--output", tmp_path / ("x" * 252 + ".csv"), status=2)
    assert "File name too long" in done.stderr.decode()


def test_tables_fit_their_width():
    plans = (EXACT, TOPR + "index=bloom(policy=p0,fpr=0.00123456789,seed=4000000000) value=fit_poly(degree=4)+deflate(level=9)",
             NO_SPARSIFIER, "sparsify=threshold(value=1e30) index=golomb value=fit_poly")
    assert max(map(len, compare(SYNTH, plans=plans, form="table").splitlines())) <= 80
    table = compare(SYNTH, plans=plans, form="wide")
    assert max(map(len, table.splitlines())) <= 180
    assert "pays below" in table and "memcpy" in table and "dense" in table


@pytest.mark.parametrize("arguments, sentence", [
    (["compare", SYNTH, "--plan", EXACT, "--ranks", "1"], "ranks"),
    (["compare", SYNTH, "--plan", "index=nope"], "no index codec is called 'nope'"),
    (["compare", SYNTH, "--plan", "sparsify=topr(ratio=2)"], "topr(ratio=2)"),
    (["compare", "/no/such/file.npy", "--plan", EXACT], "/no/such/file.npy"),
    (["compare", "", "--plan", EXACT], "empty"),
    (["compare", "synth:d=nonsense"], "synth:d=nonsense"),
    (["compare", SYNTH, "--format", "xml"], "xml"),
    (["compare", SYNTH, "--repeat", "0"], "repeat"),
    (["compare", SYNTH, "--repeat", "3", "--time", "1"], "--time"),
    (["compare", SYNTH, "--time", "-1"], "time"),
    (["compare", SYNTH, "--link", "fast"], "'fast': 'fast' does not begin with a number"),
    (["compare", SYNTH, "--link", "10Gx/s"], "'Gx/s' is not a unit of a rate"),
    (["compare", SYNTH, "--link", "10Gb/s,5"], "5 of what? 5us, say; units of a latency: ns, us, ms, s"),
    (["compare", SYNTH, "--link", "10Gbit"], "'Gbit' is not a unit of a rate; is it 10Gbit/s?"),
    (["capture"], "the Python package has it: `python -m deepreduce capture`"),
    (["calibrate", "--sizes", "1"], "--sizes"),
    (["predict", "--sizes", "1e6", "--link", "10Gb/s"], "PROFILE"),
    (["compare", SYNTH, "--batch", "--flat"], "--batch"),
    (["compare", SYNTH, "--seed", "-1"], "negative"),
    (["compare", SYNTH, "--segment-rows", "-1"], "negative"),
    (["compare", SYNTH, "--per-tensor", "--flat"], "--flat"),
    (["compare", SYNTH, "--each-step"], "--steps"),
    (["compare", SYNTH, "--steps", "0"], "steps"),
    (["compare", SYNTH, SYNTH, SYNTH, "--steps", "2"], "--steps 2: there are 3 inputs"),
    (["compare", SYNTH, "synth:d=1000", "--steps", "2"], "'', f32, 1000 elements; but in " + SYNTH),
    (["compare", SYNTH, "--output", ""], "empty"),
    (["compare", SYNTH, "--plugin", "/no/such/plugin.so"], "/no/such/plugin.so"),
    (["codecs", "--format", "csv"], "csv"),
    (["inspect", "/no/such/frame"], "/no/such/frame"),
    (["inspect", "/"], "directory"),
    (["encode", SYNTH], "--plan"),
    (["nonsense"], "'nonsense'"),
    ([], "no command"),
])
def test_misuse_exits_2_and_says_what_and_where(arguments, sentence):
    assert sentence in refusal(*arguments)


def test_full_disk_is_an_error():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    for words in (["codecs"], ["--help"], ["--version"], ["help", "compare"], ["compare", "--help"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([TOOL, *words], stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 2 and b"cannot write standard output" in done.stderr, words


def test_inspect_tells_what_is_in_a_frame(bundled, tmp_path):
    file = tmp_path / "frame"
    run("encode", bundled, "--plan", EXACT, "--output", file)
    text = run("inspect", file).stdout.decode()
    assert "59 tensors" in text and "decodes to a list of tensors" in text and f"{file.stat().st_size:,} bytes" in text
    assert text.count("golomb") == 59
    run("encode", SYNTH, "--plan", EXACT, "--output", file)
    text = run("inspect", file).stdout.decode()
    assert "short form" in text and "1 tensor in 1 segment," in text and "20,000" in text and "bytes of the payload" in text


def test_inspect_names_the_types_of_patches():
    frames = DATASETS.parent / "tests" / "golden" / "frames"
    for name, dtype in (("xor_f64", "f64"), ("xor_f32", "f32"), ("planes_bf16", "bf16"), ("planes_f16", "f16"),
                        ("ulp_u8", "u8"), ("xor_u16", "u16"), ("rows_u32", "u32")):
        report = json.loads(run("inspect", frames / f"patch_{name}.frame", "--format", "json").stdout)
        assert {tensor["dtype"] for tensor in report["tensors"]} == {dtype}, name


def test_inspect_refuses_every_truncation_and_a_flipped_bit(tmp_path):
    frame = run("encode", "synth:d=2000", "--plan", EXACT).stdout
    file = tmp_path / "frame"
    for size in range(0, len(frame), 7):
        file.write_bytes(frame[:size])
        assert str(file) in refusal("inspect", file, status=1)
    file.write_bytes(frame[:-1] + bytes([frame[-1] ^ 1]))
    assert "CORRUPT" in refusal("inspect", file, status=1)
    file.write_bytes(frame + b"more")
    assert "4 bytes after the frame" in run("inspect", file).stdout.decode()


def test_codecs_are_listed_with_what_they_take():
    text = run("codecs").stdout.decode()
    listing = json.loads(run("codecs", "--format", "json").stdout)
    assert {"role", "name", "id", "summary", "traits", "dtypes", "parameters"} <= listing[0].keys()
    for codec in listing:
        assert f"{codec['role']}={codec['name']}" in text
    by_name = {(codec["role"], codec["name"]): codec for codec in listing}
    assert "exact" in by_name["index", "golomb"]["traits"]
    levels, = [p for p in by_name["value", "qsgd"]["parameters"] if p["name"] == "levels"]
    assert (levels["type"], levels["minimum"], levels["maximum"], levels["default"]) == ("integer", 1, 32767, 127)


def test_codecs_lists_all_that_a_plan_may_name():
    text = run("codecs").stdout.decode()
    for words in ("index=auto value=auto(error=0.05)", "regather=on bucket=none merge=mean exchange=gather", "index=bloom(fpr=0.01) regather=off",
                  "bucket=flat", "index=all value=sign merge=vote", "exchange=owner(parts=64)", "exchange=ring", "exchange=hierarchy(inner=65536,parts=2)"):
        for stage in words.split():
            assert f"\n{stage.partition('(')[0]}" in text, stage
        run("compare", "synth:d=100", "--plan", words, "--repeat", 1)  # the parser takes it
    assert "\ntransform=lowrank\n" in text
    for name, first in (("auto", "index=auto"), ("exchange", "exchange=gather"), ("owner", "exchange=owner"), ("merge=vote", "merge=vote"), ("transform", "transform=none"),
                        ("bucket", "bucket=none"), ("regather", "regather=on")):
        assert run("codecs", name).stdout.decode().startswith(first + "\n"), name
    assert "index=auto" in run("codecs", "index").stdout.decode()
    assert "sparsify=blocks adds it, a plan cannot name it" in run("codecs", "block").stdout.decode()
    assert "codecs only" in refusal("codecs", "exchange", "--format", "json")


def test_codecs_says_which_sparsifiers_and_feedback_run_on_a_gpu():
    """docs/GPU.md has the same table."""
    found = {"sparsify": set(), "feedback": set()}
    for codec in json.loads(run("codecs", "--format", "json").stdout):
        if codec["role"] in found and codec["cuda"]:
            found[codec["role"]].add(codec["name"])
    assert found == {"sparsify": {"none", "topr", "threshold", "random", "chunks", "blocks", "changed"}, "feedback": {"residual"}}


def test_help_is_printed_for_every_command():
    assert b"compare" in run("--help").stdout
    for command in ("compare", "codecs", "inspect", "encode"):
        assert b"Usage" in run(command, "--help").stdout
    described = run("help", "columns").stdout.decode()
    assert all(f"\n  {name} " in described for name in COLUMNS)
    assert "deepreduce help columns" in run("compare", "--help").stdout.decode() and "deepreduce help columns" in run("help").stdout.decode()


def test_presets_are_plans_by_name():
    listed = run("presets").stdout.decode()
    assert "paper" in listed and "BF-P2+QSGD" in listed and "value=fit_poly" in listed
    rows = rows_of(json.loads(run("compare", SYNTH, "--preset", "fastpfor", "--repeat", 1, "--format", "json").stdout))
    assert [row["plan"] for row in rows] == [f"{TOPR}index={name} value=raw" for name in ("delta_varint", "delta_bitpack", "delta_pfor")]
    rows = rows_of(json.loads(run("compare", SYNTH, "--preset", "Top-r", "--preset", "BF-P0+QSGD", "--plan", EXACT, "--repeat", 1, "--format", "json").stdout))
    assert [row["plan"] for row in rows] == [EXACT, TOPR + "index=raw value=raw", TOPR + "index=bloom(policy=p0,fpr=0.001) value=qsgd"]
    sparse = rows_of(json.loads(run("compare", SYNTH + ",density=0.01", "--preset", "QSGD", "--repeat", 1, "--format", "json").stdout))
    assert [row["plan"] for row in sparse] == ["index=raw value=qsgd"]
    assert "deepreduce presets" in refusal("compare", SYNTH, "--preset", "BF-P3")


def test_convert_writes_no_file_that_is_called_like_another_format(tmp_path):
    file = write_npy(tmp_path / "x.npy", [1.0, 2.0])
    assert "the name must end in .safetensors" in refusal("convert", file, "--output", tmp_path / "y.npz")
    assert not (tmp_path / "y.npz").exists()
