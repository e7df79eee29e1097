"""Sign and ternary methods against plain numpy, written from their papers: what is decoded, bits, bias, contraction."""

import numpy
import pytest
from deepreduce import ArgumentError, State, codecs, decode, encode, inspect

F32 = numpy.float32
SIGN = "index=all value=sign"
PLANS = {
    "signsgd": SIGN,
    "efsignsgd": SIGN + "(scale=mean)",
    "onebit": SIGN + "(scale=means)",
    "tbq": "sparsify=threshold(value=0.5) index=golomb value=sign(scale=level,level=0.5)",
    "terngrad": "index=all value=ternary",
    "adaq": "sparsify=adaq(ratio=0.01) index=golomb value=sign(scale=means)",
    "graddrop": "sparsify=dgc(ratio=0.01,sample=0.001,corrections=0) index=golomb value=raw",
}


@pytest.fixture
def rng():
    return numpy.random.Generator(numpy.random.Philox(16))


def signs(x):
    return numpy.where(x < 0, F32(-1), F32(1))  # zeros of both signs count as positive


def one_bit(x):
    """Seide et al. 2014: the mean of the values below zero, and of the others; of no value, 0."""
    x = x.astype("f8")
    means = [x[side].mean() if side.any() else 0.0 for side in (x < 0, x >= 0)]
    return numpy.where(x < 0, *means).astype(F32)


def contraction(x, got):
    return float(((x.astype("f8") - got) ** 2).sum() / (x.astype("f8") ** 2).sum())


def payload_bits(frame, x):
    row = inspect(frame).tensors[0]
    return 8 * (row.index_size + row.value_size) / x.size


def shapes(rng):
    yield "laplace", rng.laplace(size=30_001).astype(F32)
    yield "with zeros of both signs", numpy.tile(numpy.array([0, -0.0, 1, -2, 0.5], F32), 201)
    yield "all negative", -rng.random(999, dtype=F32) - F32(1e-3)
    yield "all positive", rng.random(999, dtype=F32) + F32(1e-3)
    yield "one far value", numpy.concatenate([numpy.full(500, 1e-4, F32), [F32(-100)]])


# ---- One bit ----------------------------------------------------------------------------------------------


def test_signsgd_is_the_sign_and_zeros_of_both_signs_are_positive(rng):
    for name, x in shapes(rng):
        assert numpy.array_equal(decode(encode(x, PLANS["signsgd"])), signs(x)), name


@pytest.mark.parametrize("plan, extra", [("signsgd", 0), ("efsignsgd", 32), ("onebit", 64)])
def test_sign_methods_take_one_bit_a_value_and_their_means(plan, extra, rng):
    x = rng.laplace(size=1_000_003).astype(F32)
    frame = encode(x, PLANS[plan])
    assert 8 * inspect(frame).tensors[0].value_size == 8 * -(-x.size // 8) + extra
    assert 1 <= 8 * len(frame) / x.size < 1.001  # GRACE sends eight


def test_efsignsgd_is_the_mean_magnitude_and_its_contraction_is_the_papers(rng):
    for name, x in shapes(rng):
        got = decode(encode(x, PLANS["efsignsgd"]))
        assert numpy.allclose(got, signs(x) * numpy.abs(x.astype("f8")).mean(), rtol=1e-7, atol=0), name
        norm_1, norm_2 = numpy.abs(x.astype("f8")).sum(), (x.astype("f8") ** 2).sum()
        assert contraction(x, got) == pytest.approx(1 - norm_1**2 / (x.size * norm_2), abs=1e-6), name


def test_one_bit_is_two_means_and_no_worse_than_one(rng):
    for name, x in shapes(rng):
        got = decode(encode(x, PLANS["onebit"]))
        assert numpy.allclose(got, one_bit(x), rtol=1e-7, atol=0), name  # GRACE's dist version is off by 285 times x
        assert contraction(x, got) <= contraction(x, decode(encode(x, PLANS["efsignsgd"]))) + 1e-7, name


def test_half_types_have_the_sums_of_their_values(rng):
    x = rng.laplace(size=3001).astype("f2")
    mean = F32(numpy.abs(x.astype("f8")).mean()).astype("f2")
    assert numpy.array_equal(decode(encode(x, PLANS["efsignsgd"])), numpy.where(x < 0, -mean, mean))


def test_one_bit_with_a_residual_loses_nothing_over_steps(rng):
    x, plan = rng.laplace(size=2000).astype(F32), "feedback=residual " + PLANS["onebit"]
    state, sent = State.from_residual(numpy.zeros_like(x), plan), numpy.zeros(x.size)
    for _ in range(50):
        sent += decode(encode(x, plan, state=state)).astype("f8")
    assert numpy.allclose(sent + state.residual, 50 * x.astype("f8"), atol=1e-3)
    assert contraction(x, sent / 50) < 0.05 < contraction(x, decode(encode(x, PLANS["onebit"])))


def test_tbq_sends_tau_and_keeps_the_rest(rng):
    """Strom 2015: what reaches τ is sent as ± τ; the residual keeps the difference for the next step."""
    x, residual, plan = rng.laplace(size=5000).astype(F32), numpy.zeros(5000, F32), "feedback=residual " + PLANS["tbq"]
    state = State.from_residual(residual, plan)
    for _ in range(5):
        residual = residual + x
        quantised = numpy.where(numpy.abs(residual) >= F32(0.5), F32(0.5) * signs(residual), F32(0))
        assert numpy.array_equal(decode(encode(x, plan, state=state)), quantised)
        residual = residual - quantised
        assert numpy.allclose(state.residual, residual, atol=1e-6)


def test_sign_refuses_a_level_that_no_scale_takes():
    with pytest.raises(ArgumentError, match="level.*scale=level"):
        encode(numpy.ones(9, F32), SIGN + "(level=2)")
    assert numpy.array_equal(decode(encode(numpy.ones(9, F32), SIGN + "(scale=level,level=2)")), numpy.full(9, F32(2)))


# ---- Ternary ----------------------------------------------------------------------------------------------


def test_terngrad_takes_1_6_bits_a_value(rng):
    x = rng.laplace(size=1_000_003).astype(F32)
    frame = encode(x, PLANS["terngrad"])
    assert inspect(frame).tensors[0].value_size == 4 + -(-x.size // 5)
    assert 8 * len(frame) / x.size < 1.602


@pytest.mark.parametrize("clip", [0, 1, 2.5])
def test_terngrad_is_zero_or_the_scale_and_tends_to_the_clipped_value(clip, rng):
    """Wen et al. 2017: clipped to c standard deviations; sign(v) with probability |v| / s, s the largest that is left."""
    x, keys = rng.laplace(size=4000).astype(F32), 500
    largest = numpy.abs(x).max()
    scale = min(largest, F32(clip * x.astype("f8").std())) if clip else largest
    clipped = numpy.clip(x, -scale, scale).astype("f8")
    total = numpy.zeros(x.size)
    for key in range(keys):
        got = decode(encode(x, f"index=all value=ternary(clip={clip})", private_seed=key, step=0))
        assert numpy.allclose(numpy.unique(numpy.abs(got)), [0, scale], rtol=1e-7)
        assert (numpy.sign(got) * numpy.sign(x) >= 0).all() and (got[numpy.abs(x) >= scale] != 0).all()
        total += got
    # Of 4000 means of 500 Bernoulli draws none is six deviations off.
    deviation = numpy.sqrt(numpy.abs(clipped) * (scale - numpy.abs(clipped)) / keys)
    assert (numpy.abs(total / keys - clipped) <= 6 * deviation + 0.01 * scale).all()
    assert contraction(x, total / keys) - contraction(x, clipped) < 0.05


def test_terngrad_of_equal_values_and_of_one_is_not_clipped_to_nothing():
    for x in (numpy.full(1000, -0.1, F32), numpy.array([3e-5], F32)):
        assert numpy.array_equal(decode(encode(x, PLANS["terngrad"], step=0)), x)


# ---- Sparse methods ---------------------------------------------------------------------------------------


def adaq(x, ratio):
    """Dryden et al. 2016: a share of the positives and of the negatives, each by magnitude; sent as their means."""
    out = numpy.zeros_like(x)
    for side in (x > 0, x < 0):
        at = numpy.flatnonzero(side)
        if not at.size:
            continue
        count = max(1, int(ratio * at.size + 1e-9))
        selected = at[numpy.argsort(-numpy.abs(x[at]), kind="stable")[:count]]
        out[selected] = F32(x[selected].astype("f8").mean())
    return out


@pytest.mark.parametrize("ratio", [0.01, 0.2])
def test_adaq_keeps_a_share_of_each_sign_and_sends_their_means(ratio, rng):
    for name, x in [*shapes(rng), ("few positive", numpy.where(rng.random(5000) < 0.002, 3, -1).astype(F32))]:
        got = decode(encode(x, f"sparsify=adaq(ratio={ratio}) index=golomb value=sign(scale=means)"))
        assert numpy.allclose(got, adaq(x, ratio), rtol=1e-7, atol=0), name


def test_adaq_takes_an_index_and_one_bit_a_value(rng):
    x = rng.laplace(size=100_000).astype(F32)
    row = inspect(encode(x, PLANS["adaq"])).tensors[0]
    assert row.count in (999, 1000) and row.value_size == 8 + 125


def test_graddrop_keeps_all_that_reach_a_threshold_of_a_sample(rng):
    x = rng.laplace(size=200_000).astype(F32)
    got = decode(encode(x, PLANS["graddrop"], seed=4))
    selected = got != 0
    assert numpy.array_equal(got[selected], x[selected]) and numpy.abs(x[selected]).min() > numpy.abs(x[~selected]).max()
    assert 0.003 * x.size < selected.sum() < 0.03 * x.size


# ---- What every method promises ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", PLANS)
def test_a_nan_is_refused_or_sent_and_zeros_nothing_and_one_value_go_through(method):
    plan = PLANS[method]
    for x in (numpy.zeros(300, F32), numpy.zeros(0, F32), numpy.array([-2], F32)):
        got = decode(encode(x, plan, step=0))
        assert got.shape == x.shape and numpy.isfinite(got).all()
        assert (numpy.abs(got) <= (1 if method == "signsgd" else numpy.abs(x).max(initial=0))).all()
    bad = numpy.array([1, numpy.nan, numpy.inf], F32)
    if method == "graddrop":  # copies what it keeps, and NaN ranks first
        assert numpy.array_equal(decode(encode(bad, plan, step=1)), [0, numpy.nan, 0], equal_nan=True)
        return
    with pytest.raises(ArgumentError, match="NaN"):
        encode(bad, plan, step=0)


def test_codecs_list_what_these_methods_are_of():
    found = {(c.role, c.name): c for c in codecs()}
    assert {"fixed_size", "needs_finite"} <= set(found["value", "sign"].traits)
    assert "private_random" in found["value", "ternary"].traits
    assert ("sparsify", "adaq") in found
