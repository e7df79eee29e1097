"""`compare` of plans that are transforms: a round of one rank, so that they have errors beside those of frames."""

import json

import pytest
from tool_runs import needs_tool, refusal, run

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

pytestmark = needs_tool
LOWRANK = "transform=lowrank(rank=2) feedback=residual"
EIGHT = "feedback=residual index=all value=uniform_quant(bits=8)"


@pytest.fixture
def gradients(tmp_path):
    random = numpy.random.default_rng(5)

    def drawn(step):
        low = (random.standard_normal((80, 2)) @ random.standard_normal((2, 60))).astype("f4")
        numpy.savez(tmp_path / f"g{step}.npz", low=low, noise=random.standard_normal((40, 50)).astype("f4"), bias=random.standard_normal(1500).astype("f4"))
        return tmp_path / f"g{step}.npz"

    return [drawn(step) for step in range(4)]


def rows_of(*arguments):
    report = json.loads(run("compare", *arguments, "--format", "json", "--repeat", 2).stdout)
    assert report["failures"] == []
    return {(row["tensor"], row["plan"]): row for row in report["rows"] if row["plan"] != "memcpy"}


def test_a_transform_has_rows_by_tensor(gradients):
    rows = rows_of(gradients[0], "--per-tensor", "--plan", LOWRANK, "--plan", EIGHT)
    assert len(rows) == 6
    low, noise, bias = (rows[name, LOWRANK] for name in ("low", "noise", "bias"))
    assert low["bytes"] == 4 * 2 * (80 + 60) and noise["bytes"] == 4 * 2 * (40 + 50) and bias["bytes"] == 4 * 1500
    assert low["total_error"] < 1e-5 and bias["total_error"] == 0 and bias["relative_volume"] == 1
    g = numpy.load(gradients[0])["noise"].astype("f8")
    singular = numpy.linalg.svd(g, compute_uv=False) ** 2
    assert (1 - singular[:2].sum() / singular.sum()) ** 0.5 <= noise["total_error"] < 1
    for row in (low, noise, bias):
        assert row["gradient_energy"] > 0 and row["encode_ns"] > 0 and row["decode_ns"] > 0 and row["merge_ns"] == row["decode_ns"]
        assert row["contraction"] == pytest.approx(row["total_error"] ** 2) and row["verdict"] in ("", None)


def test_its_residual_and_its_factors_go_from_step_to_step(gradients):
    """A matrix of rank 2 in each step arrives late, but it arrives: what is lost of the sum is less than of a step."""
    more = [*gradients, "--per-tensor", "--plan", LOWRANK, "--steps", 4]
    after = rows_of(*more)["noise", LOWRANK]
    bare = rows_of(*gradients, "--per-tensor", "--plan", LOWRANK.split()[0], "--steps", 4)["noise", LOWRANK.split()[0]]
    assert after["step"] == 4 and 0 < after["total_error"] < bare["total_error"]


def test_a_batch_is_one_transform(gradients):
    [row] = rows_of(gradients[0], "--batch", "--plan", LOWRANK).values()
    assert row["bytes"] == 4 * (2 * (80 + 60) + 2 * (40 + 50) + 1500)


def test_joined_tensors_are_still_matrices(gradients):
    """A transform takes each by itself: the rows of both ways are one, but for times."""
    joined, batch = (rows_of(gradients[0], *more, "--plan", LOWRANK, "--plan", EIGHT) for more in ((), ("--batch",)))
    for name in ("bytes", "d", "total_error", "gradient_energy"):
        assert joined["*", LOWRANK][name] == pytest.approx(batch["[3 tensors]", LOWRANK][name], rel=1e-6), name
    assert joined["*", LOWRANK]["bytes"] == 4 * (2 * (80 + 60) + 2 * (40 + 50) + 1500)


def test_its_factors_go_through_a_ring(gradients):
    row = rows_of(gradients[0], "--plan", LOWRANK)["*", LOWRANK]
    computing = row["encode_ns"] + row["merge_ns"]
    for column, size in (("pays_below", 4), ("pays_below_bf16", 2)):
        assert row[column] == pytest.approx(16e9 * 7 / 8 * max(0, size * row["d"] - row["bytes"]) / computing, rel=1e-3)
    for tensors, rings in (("*", 2), ("bias", 1)):  # the latency of each; without a matrix there is one
        row, = (row for (_, plan), row in rows_of(gradients[0], "--tensor", tensors, "--flat", "--link", "10Mb/s,1ms", "--plan", LOWRANK).items())
        ring = rings * 14 * 1e6 + 14 / 8 * row["bytes"] * 8e9 / 1e7
        assert row["step_ns"] == pytest.approx(row["encode_ns"] + row["merge_ns"] + ring, rel=1e-6)
        assert row["verdict"] == ("pays" if row["step_ns"] < row["bf16_step_ns"] else "slower") and row["gather_step_ns"] is None
    table = run("compare", gradients[0], "--link", "10Mb/s", "--plan", LOWRANK, "--plan", EIGHT, "--repeat", 2).stdout.decode()
    assert "below" not in table and " of 2 plans, on 10Mb/s" in table


def test_its_rows_take_part_in_budgets(gradients, tmp_path):
    rows = tmp_path / "rows.json"
    run("compare", gradients[0], "--per-tensor", "--repeat", 1, "--plan", LOWRANK, "--plan", EIGHT, "--output", rows)
    costs = [{"plan": plan, "operation": operation, "base_ns": 1000, "per_element_ns": 0.1} for plan in (LOWRANK, EIGHT) for operation in ("encode", "decode", "merge")]
    profile = tmp_path / "p.json"
    profile.write_text(json.dumps({"schema": "deepreduce-profile-1", "costs": costs, "frames": [{"plan": EIGHT, "base_bytes": 60, "per_element_bytes": 1}]}))
    report = json.loads(run("plan", profile, "--input", gradients[0], "--link", "10Mb/s,1us", "--ranks", 4, "--errors", rows, "--error-budget", 0.1, "--format", "json").stdout)
    plans = {error["tensor"]: next(line["plan"] for line in report["book"] if line["pattern"] in (error["tensor"], "*")) for error in report["errors"]}
    assert plans["low"] == LOWRANK and plans["noise"] != LOWRANK and max(error["error"] for error in report["errors"]) <= 0.1
    assert "no cost of encode" in refusal("plan", profile, "--input", gradients[0], "--link", "10Mb/s", "--plan", LOWRANK.replace("2", "3"))
