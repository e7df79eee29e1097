"""`deepreduce predict --every`: rounds of an outer loop."""

import csv
import io
import json

import pytest

from predict_runs import LOSSY, model_in, predict, profile_in, write
from tool_runs import EXACT, needs_tool, refusal, run

pytestmark = needs_tool


@pytest.fixture
def profile(tmp_path):
    return profile_in(tmp_path)


def rounds(profile, *more, link="100Mb/s,1ms", every="30", ranks=4, **options):
    return predict(profile, "--sizes", "3000000,1000000", "--backward", "60ms", "--link", link, "--ranks", ranks, "--every", every, *more, **options)


def rows_of(report, candidate):
    return [row for row in report["rows"] if row["candidate"] == candidate]


def test_a_round_is_its_steps_and_one_exchange(profile):
    report = rounds(profile, every="10,30,10")
    assert report["schema"] == "deepreduce-rounds-1" and report["step_ns"] == 60_000_000 and report["transport"] == "group"
    assert [(row["every"], row["candidate"]) for row in report["rows"]] == [(h, name) for h in (10, 30) for name in ("dense f32", "dense bf16", EXACT, LOSSY)]
    for row in report["rows"]:
        assert row["round_ns"] == pytest.approx(row["every"] * 60e6 + row["exchange_ns"], abs=2)
        assert row["waiting"] == pytest.approx(row["exchange_ns"] / row["round_ns"], abs=1e-5)
        assert row["exchange_ns"] == pytest.approx(row["encode_ns"] + row["merge_ns"] + row["exposed_ns"] + row["apply_ns"], abs=4)
    # Plan None is an all-reduce of each tensor; the second waits for its latencies beside the first one's bytes. Their sum takes
    # 76 bytes a weight, of 12 that an addition takes 0.25 ns for.
    dense, half = (rows_of(report, name)[0] for name in ("dense f32", "dense bf16"))
    assert dense["exposed_ns"] == pytest.approx(6 * 1e6 + 8e9 * 6 * 4 * 4e6 / 4 / 1e8, rel=1e-6)
    assert dense["apply_ns"] == pytest.approx(76 / 12 * 0.25 * 4e6, rel=1e-6)
    assert half["sent_bytes"] == dense["sent_bytes"] / 2 == 2 * 3 / 4 * 2 * 4e6


def test_each_worker_receives_the_others_frames_and_merges_all(profile):
    two, eight = (rows_of(rounds(profile, ranks=n), EXACT)[0] for n in (2, 8))
    assert eight["received_bytes"] == 7 * two["received_bytes"] and eight["encode_ns"] == two["encode_ns"]
    assert eight["merge_ns"] == pytest.approx(4 * two["merge_ns"], abs=4)
    folder = rows_of(rounds(profile, "--folder", ranks=8), EXACT)[0]
    assert folder["received_bytes"] == 7 * folder["sent_bytes"] and folder["by"] == "formula"
    assert folder["link_ns"] == pytest.approx(8e9 * 8 * folder["sent_bytes"] / 1e8, rel=1e-6)


def test_the_limits_are_where_the_verdict_turns(profile):
    row = rows_of(rounds(profile), EXACT)[0]
    ten, to, rate = row["waits_10_percent_from"], row["pays_to_every"], row["pays_below"]
    assert row["verdict"] == "pays" and ten > 1 and to > 30 and rate > 1e8
    before, at, last, beyond = (rows_of(rounds(profile, every=h), EXACT)[0] for h in (ten - 1, ten, to, to + 1))
    assert before["waiting"] > 0.1 >= at["waiting"]
    assert (last["verdict"], beyond["verdict"]) == ("pays", "even")
    for factor, verdict in ((0.98, "pays"), (1.02, "even")):
        assert rows_of(rounds(profile, link=f"{factor * rate}b/s,1ms"), EXACT)[0]["verdict"] == verdict


def test_overlap_hides_the_link_not_the_computing(profile):
    row = rows_of(rounds(profile), EXACT)[0]
    # The toy profile's computing is slower by 1.1 beside the link.
    assert row["overlap"] == -(-row["exposed_ns"] // (1.1 * 60e6)) >= 1
    assert row["overlapped_ns"] == pytest.approx(row["round_ns"] - row["exposed_ns"] / 1.1, abs=2)
    assert rows_of(rounds(profile, every=1), EXACT)[0]["overlap"] == 0
    folder = rows_of(rounds(profile, "--folder"), EXACT)[0]
    assert folder["overlapped_ns"] == folder["round_ns"]


def test_steps_of_ddp_are_beside_it(profile, tmp_path):
    model = model_in(tmp_path)
    report = predict(profile, "--model", model, "--link", "100Mb/s,1ms", "--ranks", 4, "--every", 25)
    steps = {row["candidate"]: row["step_ns"] for row in predict(profile, "--model", model, "--link", "100Mb/s,1ms", "--ranks", 4)["rows"]}
    assert report["step_ns"] == 177e6
    for row in report["rows"]:
        assert row["ddp_ns"] == pytest.approx(25 * steps[row["candidate"]], abs=25)


@pytest.mark.parametrize("elements", [1_000_000, 9_000_000, 40_000_000, 401_000_000])
@pytest.mark.parametrize("base", [2e5, 2e7])
def test_units_of_a_dense_exchange_alternate_between_two_threads(profile, elements, base):
    document = json.loads(profile.read_text())
    document["links"][0]["allreduce"] = {"base_ns": base, "per_byte_ns": 0.5}
    row = rows_of(json.loads(run("predict", write(profile, document), "--sizes", elements, "--every", 30, "--backward", "1s", "--format", "json").stdout), "dense bf16")[0]
    units = -(-4 * elements // (4 << 20))
    threads, wire = [0.0, 0.0], 0.0
    for _ in range(units):
        first = threads.index(min(threads))
        wire = max(wire, threads[first]) + 0.5 * 2 * elements / units
        threads[first] = wire + base
    assert row["link_ns"] == pytest.approx(max(threads), rel=1e-9, abs=1)


def test_a_round_of_a_model_of_any_size_is_predicted_at_once(profile):
    """A billion units, of which a list was made (8 GB) for each rate."""
    words = ("predict", profile, "--sizes", "1e15", "--every", "1,30", "--backward", "1s", "--link", "1Gb/s", "--format", "json")
    assert rows_of(json.loads(run(*words).stdout), "dense f32")[0]["link_ns"] > 1e16


def test_limits_beyond_any_count_are_left_out(profile):
    """A step of 1 ns, on a link of a bit in 40 minutes."""
    words = ("predict", profile, "--sizes", "10000", "--every", "1", "--backward", "1ns", "--link", "0.0003b/s,1ms", "--ranks", 2, "--plan", LOSSY)
    assert "has the shortest round" in run(*words).stdout.decode().replace("\n  ", " ")


def test_the_table_fits_a_terminal_and_ends_with_the_conclusion(profile):
    arguments = (profile, "--sizes", "3000000,1000000", "--backward", "60ms", "--ranks", 4)
    for link, every, more in (("100Mb/s,1ms", "10,30,300", ()), ("10Gb/s", "500", ()), ("10kb/s,1s", "1,1000000", ("--folder",)), ("1Tb/s,1us", "30", ())):
        words = (*arguments, "--link", link, "--every", every, *more)
        text = run("predict", *words).stdout.decode()
        assert max(map(len, text.splitlines())) <= 80, text
        flat = " ".join(text.split())
        verdict = json.loads(run("predict", *words, "--format", "json").stdout)["verdict"]
        assert flat.endswith(" ".join(verdict)) and "only training shows" in verdict[-1]
    assert verdict[0].startswith("Every 30 steps: no plan helps. ")
    text = " ".join(run("predict", *arguments, "--link", "100Mb/s,1ms", "--every", "30").stdout.decode().split())
    assert "[1] dense f32: plan None" in text and "Every 30 steps: [3] has the shortest round: 1.8" in text and "[2], dense, does as well as [3], within 3 %, from" in text
    lines = list(csv.DictReader(io.StringIO(run("predict", *arguments, "--link", "1Mb/s", "--every", "30", "--format", "csv").stdout.decode())))
    assert [line["every"] for line in lines] == ["30"] * 4 and float(lines[0]["waiting"]) > 0.9


def test_a_frame_that_a_folder_does_not_take_is_named(profile):
    report = rounds(profile, "--folder", "--plan", f"{LOSSY} exchange=owner", status=77)
    assert "a Folder takes frames" in report["rows"][2]["error"] and report["rows"][2]["round_ns"] is None
    assert rows_of(rounds(profile, "--plan", f"{LOSSY} exchange=owner"), f"{LOSSY} exchange=owner")[0]["exchange_ns"] > 0


def test_what_a_round_needs_and_does_not_take(profile, tmp_path):
    sized = (profile, "--sizes", "1000000", "--link", "1Gb/s")
    assert "the time that a step computes is unknown" in refusal("predict", *sized, "--every", 30)
    timed = (*sized, "--backward", "60ms")
    for option in (("--hook", "exchange"), ("--powersgd", 4), ("--what-if", "ranks"), ("--timeline", tmp_path / "x.svg"), ("--trace", tmp_path / "x.json")):
        assert "is of a step, and --every of a round" in refusal("predict", *timed, "--every", 30, *option)
    for every in ("0", "x", "-3", "2000000"):
        assert "--every" in refusal("predict", *timed, f"--every={every}")
    assert "--every" in refusal("predict", *timed, "--folder")
    no_raw = json.loads(profile.read_text())
    no_raw["costs"] = [cost for cost in no_raw["costs"] if cost["plan"] != "index=all value=raw"]
    report = predict(write(tmp_path / "other.json", no_raw), *timed[1:], "--every", 30)
    assert any("the outer optimizer costs no time" in note for note in report["notes"]) and report["rows"][0]["apply_ns"] == 0
