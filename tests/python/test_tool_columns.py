"""The tool `deepreduce`: its headline columns: total error, times, presets, the model of a link."""

import json
import math
import random
import re
import statistics

import pytest

from tool_runs import EXACT, LOSSY, NO_SPARSIFIER, SYNTH, TOPR, compare, needs_tool, plan_column, rows_of, run, words_of, write_npy, write_npz

pytestmark = needs_tool


def test_the_total_error_is_against_dense_and_the_coding_error_against_what_was_kept(tmp_path):
    # A polynomial of degree 0 sends 3 and 4 as their mean, twice; the 1 is not kept.
    file = write_npy(tmp_path / "g.npy", [0.0] * 16 + [1.0, 3.0, 4.0])
    row, = rows_of(compare(file, plans=("sparsify=topr(count=2) index=golomb value=fit_poly(degree=0)",)))
    assert row["total_error"] == pytest.approx(math.sqrt(1.5 / 26))
    assert row["relative_l2_error"] == pytest.approx(math.sqrt(0.5) / 5)
    assert row["energy_recall"] == pytest.approx(25 / 26)


def test_random_k_means_the_same_as_a_sparsifier_and_as_an_index_codec():
    """With exact values the energy that arrives and the squared error add up to 1, whichever stage dropped the rest."""
    plans = ("sparsify=random(ratio=0.01) index=golomb value=raw", "index=seeded(ratio=0.01) value=raw")
    sparsifier, codec = rows_of(compare("synth:d=200000,values=laplace,seed=7", plans=plans))
    assert sparsifier["relative_l2_error"] == 0 and codec["relative_l2_error"] > 0.99  # the coding error hides the former
    for row in (sparsifier, codec):
        assert row["support"] == 2000
        assert row["total_error"] ** 2 + row["energy_recall"] == pytest.approx(1, rel=1e-9)
        assert row["energy_recall"] == pytest.approx(0.01, rel=0.2)
    table = compare("synth:d=200000,values=laplace,seed=7", plans=plans, form="wide")
    assert table.count("0.995") >= 3  # the total error of both, the coding error of one


def test_rounds_go_by_time_within_bounds():
    def rounds(*arguments):
        done = run("compare", SYNTH, "--plan", EXACT, "--format", "json", *arguments)
        report = json.loads(done.stdout)
        (rounds,) = {row["rounds"] for row in report["rows"]}
        return rounds, report["repeat"], report["seconds"]

    assert rounds("--time", 0) == (5, None, 0)
    assert rounds("--time", 1000) == (200, None, 1000)
    assert rounds("--repeat", 3) == (3, 3, None)
    assert 5 <= rounds()[0] <= 200


def test_samples_of_each_round_are_in_json_and_medians_and_spreads_are_theirs():
    for row in compare(SYNTH, plans=(EXACT, LOSSY), repeat=9)["rows"]:
        for name in ("encode_ns", "decode_ns", "merge_ns"):
            samples = row["samples"][name]
            if name == "merge_ns" and row["plan"] == "memcpy":
                assert samples == [] and row["merge_ns"] is None
                continue
            assert len(samples) == row["rounds"] == 9
            assert row[name] == pytest.approx(statistics.median(samples), abs=1)
            low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
            assert row[f"{name}_spread"] == pytest.approx((high - low) / row[name], abs=1e-2)


def test_the_time_of_an_encode_is_split_into_its_stages():
    choosing = TOPR + "index=auto value=auto(error=0.05)"
    plans = (EXACT, choosing, TOPR + "index=bloom(policy=p0,fpr=0.01) value=fit_poly")
    exact, auto, bloom = rows_of(compare("synth:d=400000,values=laplace,seed=7", plans=plans, repeat=7))
    for row in (exact, auto, bloom):
        parts = [row[name] for name in ("choose_ns", "index_ns", "regather_ns", "value_ns", "order_ns")]
        assert 0 < sum(parts) < 1.5 * row["encode_ns"] and row["index_ns"] > 0
        assert row["encode_cpu_ns"] > 0 and row["decode_cpu_ns"] > 0
    assert exact["choose_ns"] == exact["order_ns"] == exact["regather_ns"] == 0
    assert auto["choose_ns"] > 0 and bloom["order_ns"] > 0 and bloom["regather_ns"] > 0


def test_merging_more_frames_takes_longer():
    source = "synth:d=400000,values=laplace,seed=7"
    few, many, counted = (rows_of(compare(source, "--ranks", n, repeat=5))[0]["merge_ns"] for n in (2, 32, 640))
    assert few < many < counted


def test_presets_are_named_and_what_auto_chose_is_told():
    auto = "index=auto value=auto(error=0.05)"
    arguments = [SYNTH, "--preset", "fastpfor", "--preset", "Top-r", "--plan", EXACT, "--plan", TOPR + auto, "--repeat", 1]
    rows = rows_of(json.loads(run("compare", *arguments, "--format", "json").stdout))
    assert [row["preset"] for row in rows] == [None, None, "VByte", "BP128", "PFor", "Top-r"]
    assert [row["choice"] is None for row in rows] == [True, False, True, True, True, True]
    index, value = rows[1]["choice"].split()
    assert index.startswith("index=") and value.startswith("value=") and "auto" not in rows[1]["choice"]
    table = run("compare", *arguments, "--wide").stdout.decode()
    assert "VByte: index=delta_varint value=raw" in table
    assert any(line.lstrip().startswith("VByte ") for line in table.splitlines())
    own = run("compare", SYNTH, "--preset", "topk", "--preset", "randomk", "--repeat", 1).stdout.decode()
    assert "topk: sparsify=topr(ratio=0.01) index=raw value=raw\nrandomk: sparsify=random(ratio=0.01) index=raw value=raw\n" in own
    assert f"{auto} → {index} {value}".replace(" ", "") in plan_column(table)


def test_no_parameter_of_a_plan_is_cut_off():
    plans = [TOPR + f"index=bloom(policy=p0,fpr=0.00123456789,seed=4000000000) value=fit_poly(degree={n})+deflate(level=9)" for n in (3, 5)]
    for form, width in (("table", 80), ("wide", 180)):
        table = compare(SYNTH, plans=plans, form=form)
        for row in rows_of(compare(SYNTH, plans=plans)):
            shared = row["plan"].rpartition(" ")[0]
            assert words_of(table).count("all plans: " + shared) == 1
            own = [stage for stage in row["plan"].split() if stage.startswith("value=")]  # the others are shared
            assert "".join(own) in plan_column(table)
        assert max(map(len, table.splitlines())) <= width


def test_tables_show_spreads_above_a_tenth_and_warn_of_few_rounds(tmp_path):
    document = compare(SYNTH, repeat=9)
    for row in document["rows"]:
        row |= {f"{time}_ns_spread": spread for time, spread in (("sparsify", 0.05), ("encode", 0.4), ("decode", 0.1), ("merge", 13.0))}
    (tmp_path / "a.json").write_text(json.dumps(document))
    table = run("compare", "--from", tmp_path / "a.json", "--wide").stdout.decode()
    line = next(line for line in table.splitlines() if line.startswith("  " + TOPR.strip()))
    assert line.count("±") == 2 and "±40%" in line and "±>100%" in line
    assert "too few" not in table and "2 timed rounds: too few" in compare(SYNTH, form="table")


def test_a_link_gives_a_modelled_step_and_a_verdict():
    source = "synth:d=4000000,values=laplace,seed=7"
    plans = (EXACT, EXACT + " exchange=owner", NO_SPARSIFIER)
    report = compare(source, "--ranks", 8, "--link", "100Mbit/s,50us", plans=plans, repeat=5)
    assert report["ranks"] == 8 and report["link"] == {"text": "100Mbit/s,50us", "bits_per_second": 1e8, "latency_ns": 50000}
    ring = 2 * 7 * (50e3 + 1e9 * 8 * 16e6 / 8 / 1e8)
    gather, owner, dense = rows_of(report)
    for row in (gather, owner, dense):
        assert row["dense_step_ns"] == pytest.approx(ring, abs=1)
        assert row["bf16_step_ns"] == pytest.approx(7 * 50e3 + ring / 2, rel=1e-6)
    on_link = 7 * 1e9 * 8 * (gather["bytes"] + 256) / 1e8 + 2 * 50e3
    computed = sum(gather[name] for name in ("sparsify_ns", "encode_ns", "merge_ns"))
    assert gather["step_ns"] == gather["gather_step_ns"] == pytest.approx(on_link + computed, abs=4)
    assert owner["step_ns"] < owner["gather_step_ns"]
    assert [row["verdict"] for row in (gather, owner, dense)] == ["pays", "pays", "slower"]
    fast, = rows_of(compare(source, "--ranks", 8, "--link", "100Tb/s", repeat=5))
    assert fast["verdict"] == "slower"
    endless, = rows_of(compare(source, "--link", "1e-6b/s"))  # longer than 64 bits of nanoseconds
    assert endless["dense_step_ns"] is endless["bf16_step_ns"] is endless["step_ns"] is None and endless["verdict"] == "unknown"
    table = compare(source, "--link", "100Mbit/s", plans=plans, form="table")
    assert " pays\n" in table and " slower\n" in table and "a model" in table and max(map(len, table.splitlines())) <= 80
    assert "2 of 3 plans, on 100Mbit/s among 8 ranks; the shortest step" in words_of(table)
    none, = rows_of(compare(source))
    assert none["step_ns"] is none["verdict"] is None and none["pays_below"] > none["pays_below_bf16"] > 0


def three_tensors(folder):
    return write_npz(folder / "g.npz", **{name: write_npy(folder / f"{name}.npy", [math.sin(i * i) ** 3 for i in range(d)])
                                          for name, d in (("a", 300000), ("b", 20000), ("c", 2000))})


def verdict_of(rows):
    """The verdict for tensors that are exchanged one after the other, from their rows."""
    def total(column):
        return sum(row[column] for row in rows)

    spread = sum(math.sqrt(sum((row[f"{time}_spread"] * row[time]) ** 2 for row in rows)) / 2 for time in ("sparsify_ns", "encode_ns", "merge_ns"))
    best = min(total("dense_step_ns"), total("bf16_step_ns"))
    return "pays" if total("step_ns") + spread < best else "slower" if total("step_ns") - spread > best else "even"


def test_a_total_has_the_verdict_of_its_sums(tmp_path):
    file = three_tensors(tmp_path)
    plans = (EXACT, EXACT + " exchange=owner", NO_SPARSIFIER)
    found = set()
    for rate in ("20Mb/s", "1Gb/s", "5Gb/s", "100Tb/s"):
        report = compare(file, "--per-tensor", "--link", rate, plans=plans, repeat=5)
        totals = {total["plan"]: total for total in report["totals"] if total["plan"] != "memcpy"}
        assert len(totals) == 3
        for plan, total in totals.items():
            rows = [row for row in report["rows"] if row["plan"] == plan]
            assert total["tensors"] == len(rows) == 3 and total["verdict"] == verdict_of(rows)
            found.add(total["verdict"])
    assert found >= {"pays", "slower"}
    table = compare(file, "--per-tensor", "--link", "1Gb/s", plans=plans, form="table")
    totals = table.partition("Tensor by tensor")[0]
    # 2 (n - 1) / n of 322,000 f32 at 1 Gbit/s
    assert totals.count("dense steps of all tensors: 18 ms, in 16 bits 9.02 ms\n") == 1


def test_the_total_of_a_book_has_a_verdict_too(tmp_path):
    file = three_tensors(tmp_path)
    book = tmp_path / "x.book"
    book.write_text(f"a: {EXACT}\n*: dense\n", "utf-8")
    report = json.loads(run("compare", file, "--book", book, "--link", "100Mb/s", "--format", "json", "--repeat", 5).stdout)
    total, = [total for total in report["totals"] if total["plan"].startswith("book ")]
    rows = rows_of(report)
    assert len(rows) == 3 and total["verdict"] == verdict_of(rows) == "pays"


def test_the_break_even_of_a_total_is_that_of_gathers_one_after_the_other(tmp_path):
    """At that rate the bytes that are saved take as long as the computing."""
    file = three_tensors(tmp_path)
    report = compare(file, "--per-tensor", plans=(EXACT, EXACT + " exchange=owner"), repeat=5)
    total, = [total for total in report["totals"] if total["plan"] == EXACT]
    rows = [row for row in report["rows"] if row["plan"] == EXACT]
    saved = sum(2 * 7 / 8 * 4 * row["d"] - 7 * (row["bytes"] + 256) for row in rows)
    computing = sum(row[time] for row in rows for time in ("sparsify_ns", "encode_ns", "merge_ns"))
    assert all(row["pays_below"] > 0 for row in rows)
    assert total["pays_below"] == pytest.approx(1e9 * 8 * saved / computing, rel=1e-3)
    assert 0 < total["pays_below_bf16"] < total["pays_below"]
    owner, = [total for total in report["totals"] if total["plan"].endswith("exchange=owner")]
    assert owner["pays_below"] == min(row["pays_below"] for row in report["rows"] if row["plan"].endswith("exchange=owner")) > 0


def test_what_pays_is_named_though_a_tensor_never_pays_and_is_unknown_only_where_no_model_is(tmp_path):
    """It was "none, on no link" for the first two, and with a link for the third."""
    draw = random.Random(3)
    tensors = {"dense": [draw.gauss(0, 1) for _ in range(4000)], "sparse": [draw.gauss(0, 1) * (i % 100 == 0) for i in range(400000)]}
    file = write_npz(tmp_path / "g.npz", **{name: write_npy(tmp_path / f"{name}.npy", x) for name, x in tensors.items()})

    def answer(*more, plans):
        return re.search(r"\npays: +(.*(\n +.*)*)", compare(file, "--per-tensor", *more, plans=plans, form="table"))[1]

    assert answer(plans=(NO_SPARSIFIER, "index=golomb value=half")).startswith("below ")
    assert answer(plans=[f"index=all value=uniform_quant(bits={bits}) exchange=owner" for bits in (4, 8)]).startswith("below ")
    assert answer(plans=("index=all value=raw", "index=all value=half(type=bf16)")).startswith("none, on no link among 8 ranks")
    unmodelled = [f"{EXACT} exchange=hierarchy(inner={inner})" for inner in (2, 4)]
    assert answer("--ranks", 1000, plans=unmodelled).startswith("unknown among 1000 ranks, against")
    assert answer("--ranks", 1000, "--link", "1Mb/s", plans=unmodelled) == "unknown, on 1Mb/s among 1000 ranks: not modelled"
    assert words_of(answer("--ranks", 1000, "--link", "1Mb/s", plans=(unmodelled[0], EXACT))).startswith("none of 1 plans, on 1Mb/s among 1000 ranks, 1 unknown")
    # A saved file's ranks are those of its rows; of files with others, none are known.
    for ranks in (4, 8):
        run("compare", file, "--per-tensor", "--ranks", ranks, "--plan", NO_SPARSIFIER, "--repeat", 3, "--output", tmp_path / f"{ranks}.json")
    saved = [json.loads(run("compare", *(w for n in names for w in ("--from", tmp_path / f"{n}.json")), "--format", "json").stdout) for names in ((8,), (4, 8))]
    rates = [[total["pays_below"] for total in document["totals"] if total["plan"] != "memcpy"] for document in saved]
    assert rates[0][0] > 0 and rates[1] == [None, None]


def test_half_floats_are_compared_with_a_dense_tensor_of_16_bits(tmp_path):
    file = write_npy(tmp_path / "h.npy", [math.sin(i) for i in range(20000)], "<f2", "e")
    row, = rows_of(compare(file, "--link", "1Gb/s", repeat=5))
    assert row["dense_step_ns"] == row["bf16_step_ns"] == pytest.approx(2 * 7 / 8 * 16 * 20000, abs=1)
    assert row["pays_below"] == row["pays_below_bf16"]
    assert "the dense tensor in its own type" in words_of(compare(file, form="table"))


def test_the_naive_policy_is_listed():
    bloom, = [codec for codec in json.loads(run("codecs", "--format", "json").stdout) if codec["name"] == "bloom"]
    policy, = [p for p in bloom["parameters"] if p["name"] == "policy"]
    assert "naive" in policy["summary"]


def test_a_limit_on_instructions_is_in_the_facts(monkeypatch):
    monkeypatch.setenv("DEEPREDUCE_CPU", "scalar")
    assert compare(SYNTH)["machine"]["level"] == "scalar"
