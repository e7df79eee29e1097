"""Half precision, QSGD, SketchML, 3LC and GradDrop against plain numpy, written from their papers: what is decoded, bits,
bias, contraction."""

import numpy
import pytest
from deepreduce import ArgumentError, State, decode, encode, inspect

F32 = numpy.float32
PLANS = {
    "fp16": "index=all value=half",
    "bf16": "index=all value=half(type=bf16)",
    "qsgd": "index=all value=qsgd",
    "sketchml": "index=all value=sketch(buckets=64)",
    "3lc": "index=all value=three_lc",
}
GRADDROP = "sparsify=dgc(ratio=0.01,sample=0.001,corrections=0) feedback=residual index=golomb value=raw"


def random(seed):
    return numpy.random.Generator(numpy.random.Philox(seed))


def laplace(count, seed, scale=1.0):
    return random(seed).laplace(scale=scale, size=count).astype(F32)


def octaves(count, seed):
    """Values of all sizes: the magnitudes of 60 octaves."""
    return (random(seed).choice([-1, 1], count) * numpy.exp2(random(seed + 1).uniform(-50, 10, count))).astype(F32)


INPUTS = {
    "laplace": laplace(20_001, 1), "small": laplace(5000, 2, 1e-4), "octaves": octaves(20_000, 3),
    "with zeros of both signs": numpy.tile(numpy.array([0, -0.0, 1, -2, 0.5], F32), 201),
    "all negative": -random(4).random(999, dtype=F32) - F32(1e-3), "alike": numpy.full(700, -0.7, F32),
    "one far value": numpy.concatenate([numpy.full(500, 1e-4, F32), [F32(-100)]]), "zeros": numpy.zeros(600, F32),
}  # fmt: skip
all_inputs = pytest.mark.parametrize("x", INPUTS.values(), ids=INPUTS)


def contraction(x, got):
    """||C(x) - x||² / ||x||²"""
    return float(((x.astype("f8") - got) ** 2).sum() / (x.astype("f8") ** 2).sum())


def value_bits(frame, x):
    return 8 * inspect(frame).tensors[0].value_size / x.size


# ---- Half precision: IEEE 754 binary16, and the upper half of a binary32 ----------------------------------

HALVES = {
    **INPUTS,
    "subnormals of f16": octaves(20_000, 5) * F32(2**-10),
    "halfway": numpy.array([1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 3 * 2**-25, 2**-25, -(2**-24)], F32),
    "too large for f16": numpy.array([65504, 65519.996, 65520, -1e6, 3.4e38, 3.3895314e38], F32),
    "smallest": numpy.array([2**-149, -3 * 2**-149, 2**-133, 3 * 2**-134, 2**-126, -0.0], F32),
    "f16 tensor": laplace(3000, 6).astype("f2"),
    "largest f16": numpy.array([65504, -65504, 65472, 6e-8], "f2"),
}
all_halves = pytest.mark.parametrize("x", HALVES.values(), ids=HALVES)


def through_f16(x):
    return numpy.clip(x, -65504, 65504).astype("f2").astype(x.dtype)


def through_bf16(x):
    """Nearest, ties to even, in the bits of an f32: half a unit is added, less one where the result is even."""
    bits = x.astype(F32).view("u4").astype("u8")
    magnitude = bits & 0x7FFFFFFF
    upper = numpy.minimum((magnitude + 0x7FFF + (magnitude >> 16 & 1)) >> 16, 0x7F7F)
    wide = ((upper | (bits >> 31 << 15)) << 16).astype("u4").view(F32)
    largest = numpy.finfo(x.dtype).max
    return numpy.clip(wide, -largest, largest).astype(x.dtype)


@all_halves
@pytest.mark.parametrize("method, definition", [("fp16", through_f16), ("bf16", through_bf16)])
def test_half_is_the_nearest_number_of_16_bits(method, definition, x):
    frame = encode(x, PLANS[method])
    got = decode(frame)
    assert got.dtype == x.dtype and got.tobytes() == definition(x).tobytes()  # zeros keep their signs
    assert value_bits(frame, x) == (16 if x.any() else 0)  # zeros alone take nothing


def test_half_contracts_as_its_fraction_has_it():
    x = laplace(100_003, 7)
    for method, unit in (("fp16", 2.0**-11), ("bf16", 2.0**-8)):
        frame = encode(x, PLANS[method])
        got, normal = decode(frame), numpy.abs(x) >= 2**-14
        assert numpy.all(numpy.abs(got - x)[normal] <= unit * numpy.abs(x)[normal])
        assert unit**2 / 20 < contraction(x, got) < unit**2
        assert 16 <= 8 * len(frame) / x.size < 16.01


# ---- QSGD: Alistarh et al. 2017, section 3.1 --------------------------------------------------------------


def levels_of(x, levels, bucket):
    """(norm of each value's bucket, levels |v| / norm), in f64"""
    v = numpy.abs(x.astype("f8"))
    norms = numpy.sqrt(numpy.add.reduceat(v**2, numpy.arange(0, x.size, bucket)))
    norm = numpy.repeat(norms, bucket)[: x.size]
    return norm, levels * v / numpy.where(norm > 0, norm, 1)


@all_inputs
@pytest.mark.parametrize("levels, bucket", [(127, 512), (127, 128), (4, 512), (1, 64), (1023, 512), (255, 4096)])
def test_qsgd_is_a_level_beside_each_value_with_its_sign(x, levels, bucket):
    frame = encode(x, f"index=all value=qsgd(levels={levels},bucket={bucket})", private_seed=5, step=0)
    got = decode(frame).astype("f8")
    norm, exact = levels_of(x, levels, bucket)
    sent = numpy.abs(got) * levels / numpy.where(norm > 0, norm, 1)
    level = numpy.rint(sent)
    assert numpy.allclose(sent, level, rtol=1e-6, atol=0)  # the norm travels in f32
    assert numpy.all(level >= numpy.floor(exact * (1 - 1e-7))) and numpy.all(level <= numpy.ceil(exact * (1 + 1e-7)))
    assert numpy.all((got == 0) | (numpy.sign(got) == numpy.sign(x)))
    norms, code = -(-x.size // bucket), 1 + int(numpy.ceil(numpy.log2(levels + 1)))
    assert inspect(frame).tensors[0].value_size == (4 * norms + -(-code * x.size // 8) if x.any() else 0)


def test_qsgd_takes_8_bits_of_127_levels_and_a_norm_of_512():
    x = laplace(1_000_003, 8)
    frame = encode(x, PLANS["qsgd"], step=0)
    assert value_bits(frame, x) == pytest.approx(8 + 32 / 512, abs=1e-4)
    assert value_bits(encode(x, "index=all value=qsgd(levels=7)", step=0), x) == pytest.approx(4 + 32 / 512, abs=1e-4)


@pytest.mark.parametrize("levels, bucket", [(127, 512), (4, 128), (1, 64)])
def test_qsgd_is_unbiased_and_its_variance_is_that_of_its_draws(levels, bucket):
    """Sums over 400 seeds within 5 standard errors, which are known: a Bernoulli draw of one step, each."""
    x, seeds = laplace(3000, 9), 400
    norm, exact = levels_of(x, levels, bucket)
    p = exact - numpy.floor(exact)
    variance = (norm / levels) ** 2 * p * (1 - p)
    plan = f"index=all value=qsgd(levels={levels},bucket={bucket})"
    errors = numpy.array([decode(encode(x, plan, private_seed=seed, step=0)).astype("f8") - x for seed in range(seeds)])
    for weights in (numpy.ones(x.size), numpy.sign(x), 1 / numpy.sqrt(variance + (variance == 0))):
        deviation = numpy.sqrt((weights**2 * variance).sum() / seeds)
        assert abs((errors.mean(0) * weights).sum()) < 5 * deviation
    often = seeds * p * (1 - p) >= 20  # of so many draws a mean is near normal
    assert often.sum() > 500 and numpy.all(numpy.abs(errors.mean(0)) < 5 * numpy.sqrt(variance / seeds), where=often)
    squares = (errors**2).sum(1)
    assert abs(squares.mean() - variance.sum()) < 5 * squares.std() / numpy.sqrt(seeds)
    # Lemma 3.1: at most min(n / s², √n / s) of the squared norm.
    bound = min(bucket / levels**2, numpy.sqrt(bucket) / levels)
    assert contraction(x, x + errors[0]) < bound and variance.sum() < bound * (x.astype("f8") ** 2).sum()


def test_qsgd_of_a_bucket_of_zeros_is_zero():
    x = laplace(1536, 10)
    x[512:1024] = 0
    got = decode(encode(x, PLANS["qsgd"], step=0))
    assert not got[512:1024].any() and got[:512].any() and got[1024:].any()


# ---- SketchML: Jiang et al. 2018, section 3.2, of exact quantiles -----------------------------------------


def sketch(x, buckets):
    """Quantile buckets of the negative values and of the others; each value becomes its bucket's mean."""
    negative = numpy.signbit(x)
    total, minus = x.size, int(negative.sum())
    share = (buckets * minus + total // 2) // total
    if 0 < minus < total:
        share = min(max(share, 1), buckets - 1)
    out = numpy.zeros(total)
    for side, count in ((negative, share), (~negative, buckets - share)):
        values = numpy.sort(x[side].astype("f8"))
        if not values.size:
            continue
        count = min(count, values.size)
        begins = numpy.unique(values[[values.size * b // count for b in range(count)]])
        bucket = numpy.searchsorted(begins, x[side], side="right") - 1
        out[side] = (numpy.bincount(bucket, x[side].astype("f8")) / numpy.bincount(bucket))[bucket]
    return out


@all_inputs
@pytest.mark.parametrize("buckets", [2, 7, 64, 256])
def test_sketch_is_the_mean_of_each_quantile_bucket(x, buckets):
    got = decode(encode(x, f"index=all value=sketch(buckets={buckets})")).astype("f8")
    assert numpy.allclose(got, sketch(x, buckets), rtol=1e-7, atol=0)  # a mean is rounded to f32
    assert numpy.all(numpy.signbit(got) == numpy.signbit(x))
    assert numpy.unique(got).size <= buckets
    for side in (numpy.signbit(x), ~numpy.signbit(x)):
        assert numpy.isclose(got[side].sum(), x[side].astype("f8").sum(), rtol=1e-6, atol=0)  # means keep sums


def test_sketch_takes_a_byte_a_value_and_an_entropy_coder_six_bits_of_64_buckets():
    x = laplace(100_003, 11)
    assert inspect(encode(x, PLANS["sketchml"])).tensors[0].value_size == 1 + 4 * 64 + x.size
    assert 6 <= value_bits(encode(x, PLANS["sketchml"] + "+huffman"), x) < 6.15


def test_sketch_contracts_better_with_more_buckets_and_better_than_one_magnitude():
    x = laplace(20_000, 12)
    errors = [contraction(x, decode(encode(x, f"index=all value=sketch(buckets={k})"))) for k in (2, 8, 64, 256)]
    one_magnitude = contraction(x, decode(encode(x, "index=all value=sign(scale=mean)")))
    assert errors[0] <= one_magnitude
    assert all(3 * more < fewer for fewer, more in zip(errors, errors[1:])) and errors[3] < 0.005


# ---- 3LC: Lim et al. 2019, section 3 ----------------------------------------------------------------------


def three_values(x, sparsity=1.0):
    """(M, round(x / M)): M = s max |x|, halves away from zero"""
    scale = F32(min(float(numpy.abs(x).max(initial=0)) * sparsity, float(numpy.finfo(F32).max)))
    quotient = numpy.abs(x.astype("f8")) / (float(scale) or 1.0)
    return scale, numpy.where(quotient >= 0.5, numpy.sign(x), 0).astype(F32)


def packed_size(q):
    """Quartic encoding, five of {-1, 0, 1} a byte, and zero runs: up to 14 bytes of zeros are one."""
    groups = numpy.append(q, numpy.zeros(-q.size % 5)).reshape(-1, 5).any(1)
    size, run = 0, 0
    for group in groups:
        size += 1 if group or run % 14 == 0 else 0
        run = 0 if group else run + 1
    return 4 + size


@all_inputs
@pytest.mark.parametrize("sparsity", [1, 1.5, 1.99])
def test_3lc_is_one_of_three_values_and_takes_the_papers_bytes(x, sparsity):
    frame = encode(x, f"index=all value=three_lc(sparsity={sparsity})")
    got = decode(frame)
    scale, q = three_values(x, sparsity)
    assert numpy.array_equal(got, scale * q)
    assert numpy.abs(got - x).max() <= scale / 2 * (1 + 1e-6)
    assert inspect(frame).tensors[0].value_size == (packed_size(q) if x.any() else 0) <= 4 + -(-x.size // 5)


@pytest.mark.parametrize("sparsity", [1, 1.75])
def test_3lc_accumulates_its_error_over_steps(sparsity):
    plan = f"feedback=residual index=all value=three_lc(sparsity={sparsity})"
    residual = numpy.zeros(5000, F32)
    state = State.from_residual(residual, plan)
    for step in range(3):
        x = laplace(5000, 20 + step)
        accumulated = residual + x
        scale, q = three_values(accumulated, sparsity)
        assert numpy.array_equal(decode(encode(x, plan, state=state)), scale * q)
        residual = accumulated - scale * q
        assert numpy.array_equal(state.residual, residual)


def test_3lc_takes_at_most_1_6_bits_and_a_280th_of_a_byte():
    x = random(13).choice(numpy.array([-1, 0, 1], F32), 1_000_003)
    assert value_bits(encode(x, PLANS["3lc"]), x) == pytest.approx(1.6, rel=0.01)
    x = numpy.zeros(280_000, F32)
    x[0] = 1
    assert inspect(encode(x, PLANS["3lc"])).tensors[0].value_size == packed_size(x) == 4 + 4001


def test_3lc_contracts_and_fewer_with_more_zeros():
    x = laplace(100_000, 14)
    errors, bits = [], []
    for sparsity in (1, 1.5, 1.9):
        frame = encode(x, f"index=all value=three_lc(sparsity={sparsity})")
        errors.append(contraction(x, decode(frame)))
        bits.append(value_bits(frame, x))
    assert 0.8 < errors[0] < errors[1] < errors[2] < 1 and 0.2 > bits[0] > bits[1] > bits[2] > 8 / 70


# ---- GradDrop: Aji and Heafield 2017, Algorithm 1 ---------------------------------------------------------


def test_graddrop_sends_what_reaches_a_threshold_and_keeps_the_rest_exactly():
    """The threshold is the 10th largest of 1,024 sampled magnitudes: which share reaches it is distributed as Beta(10, 1015)."""
    count, ratio, sample = 200_000, 0.01, 1024
    rank = int(ratio * sample)
    residual = numpy.zeros(count, F32)
    state, shares = State.from_residual(residual, GRADDROP), []
    for step in range(30):
        x = laplace(count, 30 + step)
        residual = residual + x
        frame = encode(x, GRADDROP, state=state, seed=step, step=step)
        got = decode(frame)
        selected = got != 0
        assert inspect(frame).tensors[0].count == selected.sum()
        assert numpy.array_equal(got[selected], residual[selected])
        assert numpy.abs(residual[selected]).min() > numpy.abs(residual[~selected]).max()
        residual[selected] = 0
        assert numpy.array_equal(state.residual, residual)
        shares.append(selected.mean())
    mean = rank / (sample + 1)
    deviation = numpy.sqrt(mean * (1 - mean) / (sample + 2))
    assert abs(numpy.mean(shares) - mean) < 5 * deviation / numpy.sqrt(len(shares))
    assert mean - 3 * deviation < min(shares) and max(shares) < mean + 6 * deviation and numpy.std(shares) > deviation / 2


def test_graddrop_contracts_by_what_it_keeps_and_takes_the_bits_of_those():
    x = laplace(200_000, 61)
    plan = GRADDROP.replace("feedback=residual ", "")
    frame = encode(x, plan, step=0)
    got, row = decode(frame), inspect(frame).tensors[0]
    squares = numpy.sort(x.astype("f8") ** 2)[::-1]
    assert contraction(x, got) == pytest.approx(1 - squares[: row.count].sum() / squares.sum(), abs=1e-9)
    assert contraction(x, got) <= 1 - row.count / x.size  # Stich et al. 2018: Top-k's contraction
    assert row.value_size == 4 * row.count and 8 * row.index_size < 9 * row.count


# ---- What every method promises ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", PLANS)
def test_what_is_not_finite_is_refused_and_zeros_nothing_and_one_value_go_through(method):
    for x in (numpy.zeros(300, F32), numpy.zeros(0, F32), numpy.array([-2], F32)):
        assert numpy.array_equal(decode(encode(x, PLANS[method], step=0)), x)
    for bad in (numpy.nan, numpy.inf, -numpy.inf):
        x = laplace(100, 15)
        x[17] = bad
        with pytest.raises(ArgumentError, match="17"):
            encode(x, PLANS[method], step=0)
