"""bench/methods: the torch codes follow the papers' definitions, quality is measured as described, a wrong code is not timed."""

import json
import pathlib
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is missing")

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "bindings" / "python"), str(ROOT / "bench" / "results")]
import methods_page  # noqa: E402
import train_rows  # noqa: E402
from bench.methods import __main__ as methods_main, ours, torch_codes  # noqa: E402
from bench.methods.torch_codes import CODES  # noqa: E402

D = 5000
X = methods_main.laplace(D)


def decoded(name, seed=1):
    torch.manual_seed(seed)
    code = CODES[name]
    return code.decode(code.encode(torch.from_numpy(X)), D).numpy()


def test_top_keeps_the_largest_and_dgc_about_as_many():
    top, selected = np.argsort(-np.abs(X), kind="stable")[:50], np.flatnonzero(decoded("topk"))
    assert set(top) == set(selected) and np.array_equal(decoded("topk")[top], X[top])
    dgc = decoded("dgc")
    assert 35 <= np.count_nonzero(dgc) <= 65 and np.array_equal(dgc[dgc != 0], X[dgc != 0])
    assert np.abs(X[dgc == 0]).max() <= np.abs(X[dgc != 0]).min()


def test_signs_and_their_scales_are_the_papers():
    negative, sign = X < 0, np.where(X < 0, -1, 1)
    assert np.array_equal(decoded("signsgd"), sign)
    assert np.allclose(decoded("efsignsgd"), np.abs(X).mean() * sign, rtol=1e-5)
    assert np.allclose(decoded("onebit"), np.where(negative, X[negative].mean(), X[~negative].mean()), rtol=1e-5)


def test_ternaries_are_unbiased_up_to_the_clip():
    limit = 2.5 * X.std()
    made = np.stack([decoded("terngrad", seed) for seed in range(200)])
    assert set(np.unique(made / np.abs(made).max())) == {-1, 0, 1}
    clipped = np.clip(X, -limit, limit)
    assert np.abs(made.mean(0) - clipped).max() < 6 * np.abs(made).max() / np.sqrt(200)
    assert abs((made.mean(0) - clipped).mean()) < 6 * np.abs(made).max() / np.sqrt(200 * D)


def test_qsgd_is_within_a_level_and_unbiased():
    norms = np.concatenate([np.full(min(512, D - i), np.linalg.norm(X[i : i + 512])) for i in range(0, D, 512)])
    made = np.stack([decoded("qsgd", seed) for seed in range(100)])
    assert (np.abs(made - X) <= 1.0001 * norms / 127).all()
    assert (np.abs(made.mean(0) - X) <= 6 * norms / 127 / np.sqrt(100)).all()
    zero = torch.zeros(600)
    assert not CODES["qsgd"].decode(CODES["qsgd"].encode(zero), 600).any()


def test_natural_gives_powers_of_two_beside_the_value():
    exponents = np.floor(np.log2(np.abs(X)))
    near = decoded("natural_nearest")
    low = np.sign(X) * 2.0**exponents
    assert np.array_equal(near, np.where(np.abs(X / low) >= 1.5, 2 * low, low))
    made = np.stack([decoded("natural", seed) for seed in range(200)])
    assert np.isin(made / low, (1, 2)).all()
    assert np.abs((made.mean(0) - X) / low).max() < 6 * 0.5 / np.sqrt(200)


def test_the_dynamic_tree_has_128_values_and_the_nearest_is_taken():
    table = torch_codes.dynamic_tree().numpy().astype(np.float64)
    assert len(table) == 128 and (np.diff(table) > 0).all() and table[0] == 0 and 0.99 < table[-1] < 1
    scale = np.abs(X).max()
    best = np.abs(table[None] - np.abs(X[:, None]) / scale).min(1)
    assert np.allclose(np.abs(decoded("8bit") - X) / scale, best, atol=1e-6)


def test_power_iteration_projects_on_its_subspace():
    """Four columns hold all of a matrix of rank 3."""
    random = np.random.default_rng(1)
    matrix = (random.standard_normal((50, 3)) @ random.standard_normal((3, 60))).astype(np.float32)
    code = CODES["powersgd4"]
    parts = code.encode(torch.from_numpy(matrix.ravel()))
    assert torch_codes.matrix_shape(3000) == (50, 60)
    assert np.allclose(code.decode(parts, 3000).numpy(), matrix.ravel(), atol=1e-3)
    assert torch_codes.size_of(parts) == 4 * 4 * (50 + 60)


def test_quality_is_what_it_says():
    """Half of x is all bias; noise of a tenth is none, however few the draws."""
    half = ours.quality_of(X, [X / 2])
    assert [half[k] for k in ("contraction", "bias", "cosine")] == pytest.approx([0.25, 0.25, 1], rel=1e-6)
    random = np.random.default_rng(2)
    noise = ours.quality_of(X, [(X * (1 + 0.1 * random.choice([-1, 1], D))).astype(np.float32) for _ in range(8)])
    assert noise["contraction"] == pytest.approx(0.01, rel=0.01) and noise["bias"] < 2e-4
    assert ours.quality_of(X, [np.zeros_like(X)])["contraction"] == 1


def test_a_lead_within_the_spread_of_the_seeds_is_none():
    made = lambda name, scores, sent: train_rows.Quality([{"method": name, "score": s, "sent": sent, "loss": [[0, 0]]} for s in scores])
    ours_now = made("top5_log", (0.90, 0.92, 0.94), 100)
    near, far, beats, large = (made("top1", scores, sent) for scores, sent in
                               (((0.88, 0.91, 0.95), 90), ((0.50, 0.51, 0.52), 90), ((0.93, 0.94, 0.95), 100), ((0.99, 0.99, 0.99), 101)))
    assert methods_page.standing(ours_now, [far, large]) == (True, far)
    assert methods_page.standing(ours_now, [far, near]) == (False, near)
    assert methods_page.standing(ours_now, [far, beats]) is None
    assert methods_page.standing(ours_now, [large]) == (True, None)
    assert methods_page.standing(ours_now, [made("top1", (0.5,), 90)])[0] is False  # one seed has no spread


def test_what_decodes_to_something_else_is_not_timed():
    wrong = X.copy()
    wrong[7] += 1
    with pytest.raises(AssertionError, match="topk: 1 elements differ"):
        methods_main.verify("topk", X, X, wrong, exact=True)
    with pytest.raises(AssertionError, match="dgc: contraction 0.25 here, 0 in torch"):
        methods_main.verify("dgc", X, X / 2, X, exact=False)


def test_rows_say_bytes_times_and_what_is_missing(tmp_path, monkeypatch):
    lacking = lambda plan: "plan: no value codec is called 'qsgd'; there are: raw" if "qsgd" in plan else None
    monkeypatch.setattr(methods_main, "missing_in_library", lacking)
    words = ["--size", "3000", "--rounds", "1", "--draws", "2", "--method", "topk", "qsgd", "powersgd4", "--out", str(tmp_path / "m.json")]
    monkeypatch.setattr(sys, "argv", ["bench.methods", *words])
    assert methods_main.main() == 0
    made = json.loads((tmp_path / "m.json").read_text())
    rows = {(row["method"], row["what"]): row for row in made["rows"]}
    assert rows["topk", "torch"]["bytes"] == 8 * 30 > rows["topk", "ours"]["bytes"] == rows["topk", "bound"]["bytes"] > 4 * 30
    assert all(rows["topk", what][way]["median"] > 0 for what in ("torch", "ours", "bound") for way in ("encode_ms", "decode_ms"))
    assert "no value codec is called 'qsgd'" in rows["qsgd", "ours"]["missing"] and ("qsgd", "bound") not in rows
    assert rows["powersgd4", "bound"]["bytes"] == rows["powersgd4", "torch"]["bytes"] == 4 * 4 * (50 + 60)  # verified, whole rounds
    assert all(rows["powersgd4", what]["encode_ms"]["median"] > 0 for what in ("torch", "bound"))
    quality = {row["method"]: row for row in made["quality"]}
    assert quality["topk"]["contraction"] == quality["topk"]["bias"] < 1 and "missing" in quality["qsgd"]
    assert made["machine"]["level"] in ("scalar", "avx2", "avx512", "neon")
