"""Natural compression, the 8-bit dynamic tree and INCEPTIONN against their papers' definitions in plain numpy."""

import subprocess

import deepreduce
import numpy
import pytest
from tool_runs import TOOL, needs_tool


def laplace(count, seed, scale=1e-3):
    return numpy.random.Generator(numpy.random.Philox(seed)).laplace(scale=scale, size=count).astype("f4")


def octaves(count, seed):
    """Values of all sizes: the magnitudes of 60 octaves."""
    random = numpy.random.Generator(numpy.random.Philox(seed))
    return (random.choice([-1, 1], count) * numpy.exp2(random.uniform(-50, 10, count))).astype("f4")


INPUTS = {
    "laplace": laplace(20000, 1), "octaves": octaves(20000, 2), "powers": numpy.ldexp(numpy.float32(1), numpy.arange(-60, 60)),
    "thirds": numpy.full(1000, 4 / 3, "f4"), "zeros": numpy.zeros(100, "f4"), "alike": numpy.full(50, -0.7, "f4"),
    "smallest": numpy.array([2**-149, -3 * 2**-149, 2**-130, 0, 2**-126], "f4"),
    "largest": numpy.array([3.4e38, -3e38, 1.7e38, 1, 1e-38], "f4"),
    "halves": laplace(3000, 3, 0.1).astype("f2"),
}
all_inputs = pytest.mark.parametrize("x", INPUTS.values(), ids=INPUTS)


def sent(value, x, **call):
    """(x as it is decoded, in f64; bits an element, with the header)"""
    frame = deepreduce.encode(x, f"index=all value={value}", step=0, **call)
    return deepreduce.decode(frame).astype("f8"), 8 * len(frame) / x.size


def relative(x, got):
    """||C(x) - x||² / ||x||²"""
    x = x.astype("f8")
    return float(((got - x) ** 2).sum() / (x**2).sum())


# ---- natural: Horváth et al. 2019, Definition 1 and Theorem 1 ----

def around(x):
    """The powers of two that each |x| lies between, and how far towards the upper one it is."""
    a = numpy.abs(x.astype("f8"))
    low = numpy.exp2(numpy.floor(numpy.log2(numpy.where(a > 0, a, 1))))
    low[a == 0] = 0
    largest = float(numpy.finfo(x.dtype).max)
    return low, numpy.minimum(2 * low, largest), numpy.where(a > 0, a / numpy.where(low > 0, low, 1) - 1, 0)


@all_inputs
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_natural_rounds_to_a_power_of_two_beside_each_value(x, rounding):
    got, _ = sent(f"natural(rounding={rounding})", x, private_seed=4)
    low, high, p = around(x)
    inside = low >= numpy.abs(x.astype("f8")).max() * 2.0**-125 if x.any() else low == 0
    if rounding == "nearest":
        assert numpy.array_equal(numpy.abs(got)[inside], numpy.where(p < 0.5, low, high)[inside])
    assert numpy.all((numpy.abs(got) == low) | (numpy.abs(got) == high) & (p > 0) | ~inside)
    assert numpy.array_equal(numpy.signbit(got), numpy.signbit(x))


def test_natural_below_127_powers_of_two_rounds_between_zero_and_the_smallest():
    """Beside 1e30 the smallest power is 2^-26: of all 2^-29, an eighth is rounded up."""
    x = numpy.full(100000, 2.0**-29, "f4")
    x[0] = 1e30
    got, _ = sent("natural", x, private_seed=6)
    assert set(got[1:]) == {0, 2.0**-26}
    share = (got[1:] > 0).mean()
    assert abs(share - 1 / 8) < 4 * numpy.sqrt(1 / 8 * 7 / 8 / x.size)
    assert not sent("natural(rounding=nearest)", x)[0][1:].any()


@pytest.mark.parametrize("name", ["laplace", "octaves", "thirds"])
def test_natural_is_unbiased_and_its_variance_is_the_definitions(name):
    """E C(x) = x; E |C(x) - x|² = 4^e p (1 - p), which is at most x² / 8: in the mean over seeds, within 4.5 standard errors each."""
    x, seeds = INPUTS[name][:2000], 400
    low, _, p = around(x)
    variance = low**2 * p * (1 - p)
    errors = numpy.array([sent("natural", x, private_seed=seed)[0] - x for seed in range(seeds)])
    for weights in (numpy.ones(x.size), numpy.sign(x), 1 / numpy.sqrt(variance + (variance == 0))):
        deviation = numpy.sqrt((weights**2 * variance).sum() / seeds)
        assert abs((errors.mean(0) * weights).sum()) < 4.5 * deviation
    squares = (errors**2).sum(1)
    assert abs(squares.mean() - variance.sum()) < 4.5 * squares.std() / numpy.sqrt(seeds) + 1e-12
    assert variance.sum() <= (x.astype("f8") ** 2).sum() / 8 * (1 + 1e-6)
    if name == "thirds":
        assert variance.sum() == pytest.approx((x.astype("f8") ** 2).sum() / 8, rel=1e-5)  # where the bound is reached


def test_natural_ranks_draw_by_themselves_and_a_rank_repeats_itself():
    x = laplace(5000, 7)
    one, same, other = (deepreduce.encode(x, "index=all value=natural", private_seed=s, step=0) for s in (1, 1, 2))
    assert bytes(one) == bytes(same) != bytes(other)
    nearest = [bytes(deepreduce.encode(x, "index=all value=natural(rounding=nearest)", private_seed=s, step=0)) for s in (1, 2)]
    assert nearest[0] == nearest[1]


def test_natural_contracts_as_measured():
    """Laplace and normal values; with `nearest` a value is off by at most a third."""
    x = laplace(100000, 8)
    got, bits = sent("natural", x)
    assert 0.05 < relative(x, got) < 1 / 8 and 8 <= bits < 8.01
    got, bits = sent("natural(rounding=nearest)", x)
    assert relative(x, got) < 0.04 and 8 <= bits < 8.01
    assert numpy.all(numpy.abs(got - x) <= numpy.abs(x) / 3 * (1 + 1e-6))


# ---- dynamic tree: Dettmers 2015, section 2.1 ----

def tree():
    """The numbers of the seven bits behind the sign, in the order of their codes: zeros, a one, a fraction."""
    table = [0.0]
    for code in range(1, 128):
        text = format(code, "07b")
        zeros, fraction = text.index("1"), text[text.index("1") + 1:]
        parts = 2 ** len(fraction)
        edges = numpy.linspace(0.1, 1, parts + 1)
        j = int(fraction, 2) if fraction else 0
        table.append(10.0**-zeros * (edges[j] + edges[j + 1]) / 2)
    return numpy.array(table)


def test_the_trees_numbers_ascend_over_seven_decades():
    table = tree()
    assert table.size == 128 and numpy.all(numpy.diff(table) > 0)
    assert table[1] == pytest.approx(5.5e-7) and table[127] == pytest.approx(0.99296875)


@all_inputs
def test_dynamic_tree_sends_the_nearest_number_of_the_tree(x):
    got, _ = sent("dynamic_tree", x)
    v, scale = x.astype("f8"), float(numpy.abs(x).max())
    table = tree()
    quotient = numpy.abs(v) / scale if scale else numpy.zeros(v.shape)
    upper = numpy.clip(numpy.searchsorted(table, quotient), 1, 127)
    nearest = numpy.where(quotient - table[upper - 1] < table[upper] - quotient, upper - 1, upper)
    want = (table[nearest] * scale).astype(x.dtype).astype("f8")
    # Near the middle of two, f32's quotient may be on the other side: both are as near.
    near = numpy.abs(numpy.abs(quotient - table[upper - 1]) - numpy.abs(table[upper] - quotient)) < 1e-7 * quotient
    step = numpy.spacing(numpy.abs(want).astype(x.dtype)).astype("f8")
    assert numpy.all((numpy.abs(numpy.abs(got) - want) <= step) | near)
    assert numpy.all(numpy.abs(numpy.abs(got) - numpy.abs(v)) <= numpy.abs(quotient - table[nearest]) * scale * (1 + 1e-5) + 1e-6 * numpy.abs(v) + step)
    assert numpy.array_equal(numpy.signbit(got), numpy.signbit(x))


def test_dynamic_tree_contracts_as_measured():
    x = laplace(100000, 9)
    got, bits = sent("dynamic_tree", x)
    assert relative(x, got) < 1e-3 and 8 <= bits < 8.01
    assert numpy.abs(got - x).max() <= 0.45 / 64 * numpy.abs(x).max() * (1 + 1e-6)


# ---- INCEPTIONN: Li et al. 2018 ----

def inceptionn(x, error):
    """(decoded, bits) by its classes, in units of the largest power of two that is at most twice the error."""
    v, unit = x.astype("f8"), 2.0 ** numpy.floor(numpy.log2(2 * error))
    q = numpy.rint(numpy.abs(v) / unit)
    wide = 32 if x.dtype == numpy.float32 else 16
    raw = (numpy.abs(v) >= 1) | (q > (32767 if wide == 32 else 127))
    bits = numpy.where(raw, wide, numpy.where(q == 0, 0, numpy.where(q <= 127, 8, 16)))
    return numpy.where(raw, v, numpy.copysign(q * unit, v) * (q > 0)), bits.sum() + 8 * ((v.size + 3) // 4)


@all_inputs
@pytest.mark.parametrize("error", [2.0**-10, 2.0**-8, 2.0**-6, 0.01, 1e-5, 2e-10, 0.5])
def test_inceptionn_sends_the_classes_of_the_definition_within_the_error(x, error):
    got, bits = sent(f"inceptionn(error={error!r})", x)
    want, total = inceptionn(x, error)
    if total >= 8 * x.nbytes:  # a tensor that would be longer goes as it is
        want = x
    assert numpy.array_equal(got, want)
    assert numpy.all(numpy.abs(got - x) <= error)
    if total < 8 * x.nbytes and x.size > 500:
        assert total <= round(bits * x.size) <= total + 8 * 48  # the header


def test_inceptionn_keeps_the_bound_where_eight_bits_of_a_fixed_fraction_do_not():
    """The paper's 8 bits are multiples of 2^-7; between 2^-10, its bound, and there all would become 0."""
    x = numpy.linspace(2.0**-10, 2.0**-7, 1000, endpoint=False, dtype="f4")[1:]
    cut = numpy.floor(x * 2.0**7) / 2.0**7
    assert not cut.any() and numpy.abs(cut - x).max() > 7 * 2.0**-10
    got, bits = sent("inceptionn", x)
    assert numpy.abs(got - x).max() <= 2.0**-10 and bits < 10.3
    assert not sent("inceptionn(classes=exponent)", x)[0].any()


@all_inputs
@pytest.mark.parametrize("exponent", [-10, -7, -2, -1, -40])
def test_inceptionn_by_exponent_has_the_classes_of_the_paper(x, exponent):
    v, top = x.astype("f8"), numpy.abs(x.astype("f8"))
    wide = 32 if x.dtype == numpy.float32 else 16
    half = 2.0 ** -(-exponent // 2)  # the middle of the exponents from the bound to 1, rounded up
    bits = numpy.where(top >= (1 if wide == 32 else half), wide, numpy.where(top >= half, 16, numpy.where(top >= 2.0**exponent, 8, 0)))
    cut = numpy.copysign(numpy.floor(top * 2.0 ** (bits - 1.0)) / 2.0 ** (bits - 1.0), v)
    want = numpy.where(bits == 0, 0, numpy.where((bits == wide) & (top >= (1 if wide == 32 else half)), v, cut))
    got, bits_sent = sent(f"inceptionn(error={2.0**exponent!r},classes=exponent)", x)
    total = bits.sum() + 8 * ((v.size + 3) // 4)
    if total >= 8 * x.nbytes:
        want = x
    assert numpy.array_equal(got, want)
    if total < 8 * x.nbytes and x.size > 500:
        assert total <= round(bits_sent * x.size) <= total + 8 * 48  # the header


# ---- all three ----

@pytest.mark.parametrize("value", ["natural", "natural(rounding=nearest)", "dynamic_tree", "inceptionn"])
@pytest.mark.parametrize("bad", [numpy.nan, numpy.inf, -numpy.inf])
def test_numbers_that_are_not_finite_are_refused_by_place(value, bad):
    x = laplace(100, 10)
    x[17] = bad
    with pytest.raises(deepreduce.ArgumentError, match="17"):
        deepreduce.encode(x, f"index=all value={value}", step=0)


@pytest.mark.parametrize("parameters", ["natural(rounding=up)", "natural(bits=7)", "dynamic_tree(bits=8)", "inceptionn(error=0)", "inceptionn(error=0.6)"])
def test_wrong_parameters_are_refused_by_name(parameters):
    with pytest.raises(deepreduce.ArgumentError, match="rounding|bits|error"):
        deepreduce.encode(laplace(10, 11), f"index=all value={parameters}")


@needs_tool
def test_presets_name_the_plans():
    text = subprocess.run([TOOL, "presets"], capture_output=True, text=True, check=True).stdout
    for name, value in (("natural", "natural"), ("8bit", "dynamic_tree"), ("inceptionn", "inceptionn(classes=exponent)")):
        line = next(line.split() for line in text.splitlines() if line.split()[:1] == [name])
        assert line[1:] == ["index=all", f"value={value}"]
