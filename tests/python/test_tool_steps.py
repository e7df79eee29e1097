"""The tool `deepreduce`: feedback through the steps of a training, against plain arithmetic."""

import math
from pathlib import Path
from random import Random

import pytest

from tool_runs import COLUMNS, TIMED, compare, needs_tool, refusal, rows_of, write_npy, write_npz

pytestmark = needs_tool


def top(values, r):
    """Positions of the r largest magnitudes, none of zeros, as `topr` has it."""
    ranked = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))[:r]
    return [i for i in ranked if values[i]]


def write_steps(folder, gradients):
    return [write_npy(folder / f"step{i}.npy", values) for i, values in enumerate(gradients, 1)]


@pytest.fixture
def gradients():
    """Three steps; of multiples of 1/8 below 64, so that sums are exact in f32."""
    random = Random(3)
    return [[random.randrange(-512, 512) / 8 for _ in range(2000)] for _ in range(3)]


def test_feedback_runs_through_the_steps_and_is_judged_by_gradient_and_residual(gradients, tmp_path):
    beta = 0.5
    plans = ("sparsify=topr(count=20) feedback=residual(beta=0.5) index=golomb value=raw",
             "sparsify=topr(count=20) feedback=residual(beta=0.5) index=golomb value=half(type=bf16)",
             "sparsify=topr(count=20) index=golomb value=raw")
    report = compare(*write_steps(tmp_path, gradients), "--steps", 5, "--each-step", plans=plans)
    exact, rough, without = ([row for row in rows_of(report) if row["plan"] == plan] for plan in plans)
    assert [row["step"] for row in exact] == [row["step"] for row in without] == [1, 2, 3, 4, 5]
    assert [Path(row["input"]).stem for row in rough] == ["step1", "step2", "step3", "step1", "step2"]
    rest = [0.0] * 2000
    for row, plain, gradient in zip(exact, without, [*gradients, *gradients[:2]]):
        seen = [beta * m + g for m, g in zip(rest, gradient)]
        selected = top(seen, 20)
        energy = math.fsum(x * x for x in seen)
        rest = [0.0 if i in selected else x for i, x in enumerate(seen)]
        assert row["r"] == len(selected) and row["relative_l2_error"] == 0
        assert row["contraction"] == pytest.approx(math.fsum(x * x for x in rest) / energy, rel=1e-12)
        alone = top(gradient, 20)
        share = math.fsum(gradient[i] ** 2 for i in alone) / math.fsum(x * x for x in gradient)
        assert plain["contraction"] == pytest.approx(1 - share, rel=1e-12)
    # What a residual holds back is sent later; without feedback it is lost for good.
    assert without[0]["total_error"] == pytest.approx(math.sqrt(without[0]["contraction"]), rel=1e-12)
    assert rough[0]["contraction"] == pytest.approx(exact[0]["contraction"], rel=1e-3)
    assert all(0 < row["relative_l2_error"] < 2**-8 for row in rough)


def test_the_total_error_is_that_of_the_sums_over_the_steps(gradients, tmp_path):
    plans = ("sparsify=topr(count=200) feedback=residual index=golomb value=raw", "sparsify=topr(count=200) index=golomb value=raw",
             "sparsify=topr(count=200) feedback=residual(gamma=0.5) index=golomb value=raw")
    rows = rows_of(compare(*write_steps(tmp_path, gradients), "--steps", 6, "--each-step", plans=plans))
    with_residual, without, halved = ([row for row in rows if row["plan"] == plan] for plan in plans)
    total, rest, lost = [0.0] * 2000, [0.0] * 2000, [0.0] * 2000
    for step, gradient in enumerate(gradients * 2):
        total = [a + b for a, b in zip(total, gradient)]
        seen = [a + b for a, b in zip(rest, gradient)]
        selected, alone = set(top(seen, 200)), set(top(gradient, 200))
        rest = [0.0 if i in selected else x for i, x in enumerate(seen)]  # exactly what has not arrived so far
        lost = [a if i in alone else a + b for i, (a, b) in enumerate(zip(lost, gradient))]
        for row, left in ((with_residual[step], rest), (without[step], lost), (halved[step], rest)):
            assert row["total_error"] == pytest.approx(math.dist(left, [0.0] * 2000) / math.dist(total, [0.0] * 2000), rel=1e-9)
    assert with_residual[5]["total_error"] < 0.9 * without[5]["total_error"]


def test_only_the_last_step_is_shown_unless_asked_and_one_input_comes_again(gradients, tmp_path):
    file, = write_steps(tmp_path, gradients[:1])
    plan = "sparsify=topr(count=20) feedback=residual index=golomb value=raw"
    rows = rows_of(compare(file, "--steps", 4, "--each-step", plans=(plan,)))
    last, = rows_of(compare(file, "--steps", 4, plans=(plan,)))
    assert [row["step"] for row in rows] == [1, 2, 3, 4] and last["step"] == 4
    stable = set(COLUMNS) - TIMED
    assert {k: last[k] for k in stable} == {k: rows[3][k] for k in stable}
    assert last["contraction"] != rows[0]["contraction"]
    again = rows_of(compare(file, file, file, file, "--steps", 4, plans=(plan,)))
    assert again[0]["contraction"] == last["contraction"]
    assert rows_of(compare(file, plans=(plan,)))[0]["contraction"] == rows[0]["contraction"]
    table = compare(file, "--steps", 4, plans=(plan,), form="table")
    assert "step 4" in table and "step 3" not in table and max(map(len, table.splitlines())) <= 80


def test_tensors_of_several_inputs_have_steps_each(gradients, tmp_path):
    files = []
    for name, (a, b) in {"one": (0, 1), "two": (2, 0)}.items():
        parts = {"a": write_npy(tmp_path / "a.npy", gradients[a]), "b": write_npy(tmp_path / "b.npy", gradients[b][:1500])}
        files.append(write_npz(tmp_path / f"{name}.npz", **parts))
    plan = "sparsify=topr(count=20) feedback=residual index=golomb value=raw"
    rows = rows_of(compare(*files, "--per-tensor", "--steps", 2, plans=(plan,)))
    assert [(Path(row["input"]).stem, row["tensor"], row["d"], row["step"]) for row in rows] == [
        ("two", "a", 2000, 2), ("two", "b", 1500, 2)]
    seen = [x + y if i not in top(gradients[0], 20) else y for i, (x, y) in enumerate(zip(gradients[0], gradients[2]))]
    share = math.fsum(seen[i] ** 2 for i in top(seen, 20)) / math.fsum(x * x for x in seen)
    assert rows[0]["contraction"] == pytest.approx(1 - share, rel=1e-12)
    assert "'a', f32, 2000 elements" in refusal("compare", *files, tmp_path / "a.npy", "--per-tensor", "--steps", 3, "--plan", plan)


@pytest.mark.parametrize("dtype,code", [("<f2", "e"), ("<f4", "f")])
@pytest.mark.parametrize("sparsify", ["topr(ratio=0.02)", "random(ratio=0.02)", "dgc(ratio=0.02)", "threshold(value=60)", "none"])
def test_every_sparsifier_goes_through_steps_in_every_type(gradients, tmp_path, sparsify, dtype, code):
    files = [write_npy(tmp_path / f"{i}.npy", values, dtype, code) for i, values in enumerate(gradients)]
    plans = [f"sparsify={sparsify} feedback=residual index=golomb value={value}" for value in ("raw", "qsgd")]
    exact, rough = rows_of(compare(*files, "--steps", 7, "--seed", 5, plans=plans))
    assert exact["step"] == 7 and exact["relative_l2_error"] == 0 and exact["index_recall"] == 1
    assert rough["relative_l2_error"] > 0
