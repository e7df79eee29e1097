"""The methods of outer loops against plain numpy: SparseLoCo's chunks and 2 bits, DeMo's coefficients, DisTrO's signs, PULSELoCo's visible elements."""

import json
import os
import subprocess

import deepreduce
import numpy as np
import pytest

TOOL = os.environ.get("DEEPREDUCE_TOOL")


def gradient(n, seed):
    return np.random.Generator(np.random.Philox(seed)).standard_normal(n).astype("f4")


def bf16(x):
    """f32 to the bits of bf16, nearest, ties to even."""
    b = x.astype("f4").view("u4").astype("u8")
    return ((b + 0x7FFF + (b >> 16 & 1)) >> 16).astype("u2")


def test_sparseloco_sends_the_64_largest_of_each_4096_in_at_most_9_6_bits():
    x = gradient(4096 * 500, 1)
    frame = deepreduce.encode(x, "sparseloco", state=deepreduce.State(x, "sparseloco"))
    y = deepreduce.decode(frame)
    selected = np.sort(np.argsort(-np.abs(x.reshape(-1, 4096)), axis=1)[:, :64], axis=1)
    assert np.array_equal(np.flatnonzero(y), (selected + 4096 * np.arange(500)[:, None]).ravel())
    assert len(np.unique(y[y != 0])) == 4  # two magnitudes of either sign
    assert 8 * len(frame) / (64 * 500) <= 9.6


def cosines(n):
    k, i = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")
    return np.sqrt(np.where(k == 0, 1, 2) / n) * np.cos(np.pi * k * (2 * i + 1) / (2 * n))


def tiles(x, side=64):
    """[tiles, side, side] of a matrix, row by row."""
    rows, columns = x.shape
    return x.reshape(rows // side, side, columns // side, side).transpose(0, 2, 1, 3).reshape(-1, side, side)


def test_demo_sends_the_32_largest_coefficients_of_each_64_x_64_tile_in_at_most_25_bits():
    x = gradient(192 * 320, 6).reshape(192, 320)
    state = deepreduce.State(x, "demo")
    frame = deepreduce.encode(x, "demo", state=state)
    c = cosines(64)
    there = np.einsum("ui,tij,vj->tvu", c, tiles(x.astype("f8")), c).reshape(-1, 4096)  # (v, u): column by column
    selected = np.sort(np.argsort(-np.abs(there), axis=1)[:, :32], axis=1)
    sent = deepreduce.decode(frame, coefficients=True).reshape(-1, 4096)
    assert np.array_equal(np.flatnonzero(sent), (selected + 4096 * np.arange(15)[:, None]).ravel())
    assert np.allclose(np.take_along_axis(sent, selected, 1), np.take_along_axis(there, selected, 1), rtol=2**-8)
    assert np.allclose(state.residual, (there - sent).ravel(), atol=1e-5)
    y = deepreduce.decode(frame, like=x)
    assert np.allclose(tiles(y), np.einsum("ui,tvu,vj->tij", c, sent.reshape(-1, 64, 64).astype("f8"), c), atol=1e-5)
    assert 8 * len(frame) / (32 * 15) <= 25  # of which 16 are a value


def test_a_sender_takes_coefficients_back_to_the_residual():
    x = gradient(130 * 70, 7).reshape(130, 70)
    plan = "sparsify=chunks(count=64) feedback=residual index=chunks value=raw transform=dct"
    sender = deepreduce.Sender({"w": (x.shape, "float32"), "small": ((5, 5), "float32")}, plan)
    outs = {"w": np.empty(x.shape, "f4"), "small": np.empty((5, 5), "f4")}
    assert [str(sender.plan_of(name)) for name in outs] == [plan, "feedback=residual index=all value=raw bucket=flat"]

    slots = [np.empty(unit.bound, "u1") for unit in sender.units]  # (take_back reads them)

    def round_of(number, gradient):
        sender.place({"w": gradient, "small": gradient[:5, :5].copy()}, out=outs)
        for i, slot in enumerate(slots):
            made = sender.encode(i, number, slot)
            assert not made.fault
            sender.merge(i, number, [slot[: made.size].tobytes()])
        return {name: out.copy() for name, out in outs.items()}

    first = round_of(0, x)
    assert np.array_equal(first["small"], x[:5, :5]) and 0 < np.linalg.norm(first["w"] - x) < np.linalg.norm(x)
    sender.take_back(0)
    sender.resume(0, 0)
    again = round_of(1, np.zeros_like(x))
    assert np.allclose(again["w"], first["w"], atol=1e-5) and np.allclose(again["small"], first["small"], atol=1e-6)


def test_a_ladder_does_not_mix_coefficients_with_elements():
    torch = pytest.importorskip("torch")
    from deepreduce.torch._ladder import plans_of

    assert torch
    rungs = [deepreduce.Plan(f"sparsify=topr(ratio=0.1) feedback=residual index=golomb {more}") for more in ("", "transform=dct")]
    with pytest.raises(deepreduce.ArgumentError, match="transform=dct"):
        plans_of("w", rungs, deepreduce.Plan("index=all value=raw"))


def test_distro_sends_signs_of_4_of_each_4096_in_at_most_12_bits():
    x = gradient(4096 * 3000, 2)
    frame = deepreduce.encode(x, "distro", state=deepreduce.State(x, "distro"))
    y = deepreduce.decode(frame)
    assert (np.count_nonzero(y.reshape(-1, 4096), axis=1) == 4).all()
    assert len(np.unique(np.abs(y[y != 0]))) == 1 and np.array_equal(np.sign(y[y != 0]), np.sign(x[y != 0]))
    assert 8 * len(frame) / (4 * 3000) <= 12


def test_the_residual_of_chunks_has_what_was_not_sent():
    x = gradient(10000, 3)
    plan = "sparsify=chunks(count=64) feedback=residual index=chunks value=lloyd(levels=2)"
    state = deepreduce.State(x, plan)
    sent = sum(deepreduce.decode(deepreduce.encode(x, plan, state=state)) for _ in range(5))
    left = np.abs(5 * x - sent).max()
    assert left < np.abs(5 * x).max()
    assert np.allclose(state.residual, 5 * x - sent, atol=1e-4)


def test_visible_sends_what_moves_weights_of_bf16():
    w, x = gradient(20000, 4), gradient(20000, 5) * np.float32(1e-3)
    y = deepreduce.decode(deepreduce.encode(x, "sparsify=visible index=golomb value=raw", weights=w))
    moves = bf16(w) != bf16(w - x)
    assert 0 < moves.sum() < len(x) and np.array_equal(y, np.where(moves, x, 0))
    y = deepreduce.decode(deepreduce.encode(x, "sparsify=visible(rate=0.5) value=raw", weights=w))
    assert np.array_equal(y != 0, bf16(w) != bf16(w - np.float32(0.5) * x))


def test_small_elements_wait_in_the_residual_until_they_are_seen():
    w, x = np.ones(100, "f4"), np.full(100, 1e-3, "f4")  # half a last place of bf16 below 1 is 2^-9
    state = deepreduce.State(x, "pulseloco")
    counts = [
        np.count_nonzero(deepreduce.decode(deepreduce.encode(x, "pulseloco", state=state, weights=w))) for _ in range(3)
    ]
    assert counts == [0, 100, 0]


@pytest.mark.skipif(not TOOL, reason="DEEPREDUCE_TOOL does not name the tool")
@pytest.mark.parametrize("plan, words", [("pulseloco", "encode(weights=) and deepreduce.outer"), ("sparsify=changed value=planes", "`deepreduce patch`")])
def test_compare_names_what_has_the_weights_that_a_plan_compares_with(plan, words):
    run = subprocess.run([TOOL, "compare", "synth:d=1000", "--plan", plan], capture_output=True, text=True)
    assert run.returncode and "base is NULL: sparsify=" in run.stderr and run.stderr.strip().endswith(words), run.stderr


@pytest.mark.skipif(not TOOL, reason="DEEPREDUCE_TOOL does not name the tool")
def test_compare_measures_a_cosine_transform_by_its_coefficients(tmp_path):
    """A smooth matrix: the error is that of the largest coefficients, which numpy finds."""
    matrix = np.cumsum(gradient(128 * 192, 3).reshape(128, 192), axis=0, dtype=np.float32)
    np.save(tmp_path / "matrix.npy", matrix)
    plans = [f"transform=dct sparsify=topr(ratio=0.01) {feedback}index=golomb value=raw" for feedback in ("", "feedback=residual ")]
    plans.append("sparsify=topr(ratio=0.01) index=golomb value=raw")
    words = [word for plan in plans for word in ("--plan", plan)]
    done = subprocess.run(
        [TOOL, "compare", str(tmp_path / "matrix.npy"), *words, "--time", "0", "--format", "json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    errors = [row["total_error"] for row in json.loads(done.stdout)["rows"][1:]]  # behind a plain copy
    c = cosines(64)
    energies = np.sort(np.square(np.einsum("ui,tij,vj->tvu", c, tiles(matrix.astype("f8")), c)).ravel())
    expected = np.sqrt(energies[:-245].sum() / energies.sum())  # 1 % of 24,576 are sent
    assert errors[:2] == pytest.approx([expected, expected], rel=1e-2)
    assert expected < 0.6 * errors[2]


def test_weights_are_asked_for_and_compared():
    x = gradient(100, 6)
    with pytest.raises(deepreduce.ArgumentError, match=r"base is NULL: .*weights that the tensor is to move: .*encode\(weights=\)"):
        deepreduce.encode(x, "sparsify=visible")
    with pytest.raises(deepreduce.ArgumentError, match="weights has 99 elements"):
        deepreduce.encode(x, "sparsify=visible", weights=x[:99])
    with pytest.raises(deepreduce.ArgumentError, match="has a base"):
        deepreduce.encode(x, "sparsify=topr(count=3)", weights=x)
    for rest in ("bucket=flat", "exchange=owner"):
        with pytest.raises(deepreduce.Unsupported, match="its own base"):
            deepreduce.Plan(f"sparsify=visible {rest}")
    with pytest.raises(deepreduce.ArgumentError, match="above size"):
        deepreduce.Plan("sparsify=chunks(count=65,size=64)")
