"""The language of codecs: what is refused, and how; and that the codecs of examples/codecs are those that the library has."""

import pathlib
import re
import struct
import sys
import warnings

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")
pytest.importorskip("lark", reason="lark is missing: pip install lark")

import deepreduce  # noqa: E402
from codec_operations import BF16, F16, F32, Codec, Failed, compare  # noqa: E402
from deepreduce.__main__ import main  # noqa: E402
from deepreduce.errors import LibraryError  # noqa: E402
from deepreduce.language import LanguageError, _build, build, program_of, source_of  # noqa: E402
from deepreduce.language._ranges import Int  # noqa: E402
from deepreduce.language._words import same  # noqa: E402
from language_fuzz import programs  # noqa: E402
from tool_runs import needs_tool  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples/codecs"
PAGE = (ROOT / "docs/LANGUAGE.md").read_text("utf-8")
NATIVE = {
    "terngrad": ("ternary", [{}, {"clip": 0}, {"clip": 1}], {}),
    "qsgd": ("qsgd", [{}, {"levels": 1, "bucket": 1}, {"levels": 5, "bucket": 7}, {"levels": 32767, "bucket": 3000}], {}),
    "natural": ("natural", [{}, {"rounding": "nearest"}], {}),
    "onebit": ("sign", [{}], {"scale": "means"}),
}


def text(name):
    return (EXAMPLES / f"{name}.drc").read_text()


# ---- What is refused ----------------------------------------------------------------------------

QSGD = text("qsgd")
REFUSED = [  # what is replaced in qsgd.drc, by what; the line and column, and words of reason and advice
    ("= f32(min(sqrt", "= (min(sqrt", 11, 3, "`norm` is an f32, this is an f64", "norm = f32("),
    ("min(levels, floor(levels * abs(v) / norm + random()))", "levels * abs(v)", 13, 3, "`code` holds whole numbers", "floor("),
    ("level > 0 and", "level > and", 13, 32, "`and`, but expected a number", ""),
    ("[n by bucket]", "", 11, 3, "is one number, but this is one for each bucket values", "sum("),
    ("by bucket)", "by buckets)", 11, 24, "`by buckets`", "did you mean `by bucket`?"),
    ("level = if", "levle = if", 13, 15, "nothing is called `level`", "did you mean"),
    ("1 + bit_width(levels)", "40", 8, 11, "a width of 40 to 40 bits", ""),
    ("1 + bit_width(levels)", "bit_width(floor(type_max))", 8, 27, "`type_max` depends on the tensor's type", ""),
    ("code >> 1 <= levels", "code >> 70 <= levels", 16, 16, "a shift by up to 70 bits", "min("),
    ("return if code & 1 then -value else value", "return v", 18, 10, "decode does not know `v`", "a field of the payload"),
    ("return if code & 1 then -value else value", "", 15, 1, "decode returns nothing", "return"),
    ("wire levels", "param levels", 8, 25, "decode does not know `levels`, a param", "wire levels"),
    ("2 * level + (level > 0 and v < 0)", "n * n * n", 13, 13, "more than 64 bits", "min("),
    ("random()", "rand()", 12, 71, "no function `rand`", "did you mean `random`"),
    ("abs(v)", "abs(v", 12, 81, "", ""),
    ("  require code", "  for code", 16, 7, "", ""),
    ("= 127", "= 99999", 3, 6, "the default of `levels` is not in its range", ""),
    ("decode\n", "decode\n  norm = 1\n", 16, 3, "a second `norm`", ""),
    ("  code: u(", "  extra: u8\n  code: u(", 11, 1, "encode does not give the field `extra`", "extra = "),
    ("-value", "%value", 18, 27, "the character '%' has no meaning", "mod"),
    ("floor(levels", "floor(levels mod v", 12, 57, "", ""),
    ("[n by bucket]", "[n by 512]", 7, 23, "`512`, but expected a name", "wire block"),
    ("  norm  =", "  base  = n\n  norm  =", 11, 3, "`base`, but expected", "a word of the language"),
    ("  norm  =", "  norm  = f32(level)\n  extra =", 11, 15, "`level` is given below", "a line above"),
    (" and v < 0", " && v < 0", 13, 35, "`&`, but expected", "`a and b`"),
    ("int 1..32767 = 127", "int = 127", 3, 18, "`=`, but expected", "a range comes before"),
    ("= 127 ", "", 3, 27, "a text, but expected", "a default comes after"),
    ("wire bucket", 'wire spare: int 1..2 = 1 ""\nwire bucket', 4, 6, "`spare` is not used", "leave the line out"),
    ("return if", "return v ? 1 : 0 #", 18, 12, "the character '?'", "if condition then"),
    ("f32(min(", "f64(0.5) * (min(", 11, 3, "`norm` is an f32, this is an f64", "norm = f32("),
    ("u(1 + bit_width(levels)) ", "u" + "1" * 5000, 8, 9, "a whole number of more than 20 digits", ""),
    ("u(1 + bit_width(levels)) ", "base 3 pad " + "1" * 5000, 8, 20, "a whole number of more than 20 digits", ""),
    ("2 * level", "(((0.9999^63)^63)^63)^63", 13, 12, "a power that has more than 2^20 bits", ""),
    ("2 * level", "2 * levl # \x0c\u2028", 13, 15, "nothing is called `levl`", "did you mean `level`?"),
]


@pytest.mark.parametrize("old, new, line, column, reason, instead", REFUSED)
def test_an_error_has_a_place_a_reason_and_what_to_write(old, new, line, column, reason, instead):
    changed = QSGD.replace(old, new, 1)
    assert changed != QSGD
    with pytest.raises(LanguageError) as e:
        program_of(changed, "mine.drc")
    assert str(e.value).startswith(f"mine.drc:{line}:{column}: "), e.value
    assert reason in e.value.reason and instead in e.value.instead, e.value
    shown = changed.split("\n")[e.value.place.line - 1]
    assert f"\n  {shown}\n" in str(e.value)


@pytest.mark.parametrize("operator", ["+", "-", "*", "/", "=="])
def test_a_line_goes_on_after_and_before_an_operator(operator):
    for broken in (f"level\n    {operator} 1", f"level {operator}\n    1"):
        source_of(QSGD.replace("code  = 2 * level", f"odd = {broken}\n  code = 2 * min(levels, max(0, floor(odd)))", 1))


def test_how_many_are_kept_is_for_decode():
    changed = text("graddrop").replace("kept      = keep(v, chosen)", "kept      = keep(v / m, chosen)")
    with pytest.raises(LanguageError, match="encode does not know `m`, which the compiler counts") as e:
        program_of(changed, "mine.drc")
    assert e.value.instead == "write: count(chosen)"


@pytest.mark.parametrize("call, instead", [("positions(chosen)", "positions(chosen)"), ("keep(v, chosen)", "keep(…, chosen)")])
def test_what_is_kept_has_a_name(call, instead):
    changed = text("graddrop").replace(f"= {call}", f"= {call.replace('chosen', 'v > 0.5')}", 1)
    with pytest.raises(LanguageError, match="takes the name of a condition") as e:
        program_of(changed, "mine.drc")
    assert e.value.instead == f"write: chosen = abs(v) > …, then {instead}"


def test_numbers_of_runs_and_of_all_values_are_not_the_same():
    wire = "codec c\nwire bucket: int 1..9 = 2\npayload\n  a: f32[n]\n  b: f32[n]\nencode v\n"
    made = program_of(wire + "  a = v * largest(v by bucket)\n  b = v * largest(v)\ndecode\n  return a + b * bucket\n")
    a, b = (local.expr for local in made.encode)
    assert same(a, a) and not same(a, b)


def test_the_range_of_an_f32_as_a_whole_number_ends_below_2_to_the_31():
    made = program_of("codec c\npayload\n  a: u32[n]\nencode v\n  a = floor(abs(v) + f32(3e9))\ndecode\n  return a\n")
    assert made.encode[0].expr.type == Int(2**31 - 128, 2**31 - 128)


def test_a_subnormal_of_f16_may_be_twice_what_it_is_rounded_from():
    made = program_of("codec c\npayload\n  a: f32[n]\nencode v\n  a = to_type(min(max(v, -4e-8), 4e-8))\ndecode\n  return a\n")
    rounded = float(numpy.float16(4e-8))
    assert made.encode[0].expr.type.low <= -rounded and rounded <= made.encode[0].expr.type.high


def test_values_of_two_kinds_have_64_bits():
    made = source_of("codec c\npayload\n  a: u1[n]\nencode v\n  a = v > 0\ndecode\n  return a << 63\n")
    assert "returned<T, lang::any>(static_cast<double>((static_cast<uint64_t>(a_) << 63)))" in made


def test_mutated_texts_are_refused_with_a_place_or_are_codecs():
    made = [source for source in programs(400, seed=11) if source]
    assert len(made) > 5


def test_deep_and_long_texts_end():
    for bad in ("(" * 5000 + "v" + ")" * 5000, "-" * 5000 + "v", "+".join(["v"] * 5000), "if v<0 then 1 else " * 3000 + "0", "9" * 5000, "1e999", "not " * 3000 + "v"):
        with pytest.raises(LanguageError, match=r"mine\.drc:\d+:\d+: "):
            source_of(QSGD.replace("2 * level", bad, 1), "mine.drc")
    with pytest.raises(LanguageError):
        source_of("#" * 200_000, "mine.drc")


@pytest.mark.parametrize("make", [lambda d: "(" + "if v > 3 then v else " * d + "0)", lambda d: "not " * d + "(v < 1)"], ids=["if", "not"])
def test_what_is_not_too_deep_to_read_is_not_too_deep_to_write(make):
    source_of(QSGD.replace("2 * level", f"2 * level + 0 * ({make(150)} > 0)", 1), kernels=True)
    for depth in (170, 200, 230):
        try:
            source_of(QSGD.replace("2 * level", f"2 * level + 0 * ({make(depth)} > 0)", 1))
        except LanguageError as error:
            assert error.reason == "an expression is too deep"


def test_names_that_are_made_of_one_another_end():
    squares = "".join(f"  a{i} = a{i - 1} * a{i - 1}\n" for i in range(1, 40))  # 2^39 ways from the last to the first
    source_of(QSGD.replace("  value = f64(norm) *", f"  a0 = f64(norm)\n{squares}  value = a39 *", 1))
    sums = "".join(f"  a{i} = a{i - 1} + 1\n" for i in range(1, 600))
    source_of(QSGD.replace("encode v\n", f"encode v\n  a0 = abs(v)\n{sums}  most = largest(f32(a599))\n", 1).replace("2 * level", "2 * level + 0 * (most > 0)"))


@pytest.mark.parametrize("given,words", [
    ("false", "the compiler fails: false -std.*: exit status 1"),
    ("c++ --no-such-flag", "the compiler fails: c.. --no-such-flag"),
    ("sh -c 'kill -9 $$'", r"the compiler fails: sh -c .*: signal 9"),
    ("true", "the compiler true writes no file"),
])  # fmt: skip
def test_a_compiler_that_fails_is_no_fault_of_ours(tmp_path, monkeypatch, given, words):
    monkeypatch.setenv("CXX", given)
    (tmp_path / "mine.drc").write_text(QSGD)
    with pytest.raises(LibraryError, match=words) as caught:
        _build.build(tmp_path / "mine.drc")
    assert "ours" not in str(caught.value)


def test_the_page_has_the_examples_as_they_are():
    shown = re.findall(r"```\n(codec .*?)```", PAGE, re.DOTALL)
    assert shown == [QSGD]
    for name, lines in re.findall(r"\| \[(\w+)\]\(\.\./examples/codecs/\w+\.drc\) \| (\d+) \|", PAGE):
        assert sum(1 for line in text(name).splitlines() if line.strip() and not line.lstrip().startswith("#")) == int(lines), name
    assert all(len(path.read_text().splitlines()) <= 40 for path in EXAMPLES.glob("*.drc"))


# ---- What is made -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Loads the plug-in of an example, built once."""
    folder, done = tmp_path_factory.mktemp("codecs"), {}

    def load(name):
        if name not in done:
            done[name] = build(EXAMPLES / f"{name}.drc", folder / f"{name}.so")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                deepreduce.load_plugin(done[name])

    return load


def inputs():
    random = numpy.random.default_rng(3)
    for n in (1, 2, 5, 8, 31, 64, 511, 513, 1023, 1025, 2049, 5121, 20011):
        yield (random.standard_normal(n) * 10.0 ** random.integers(-6, 4)).astype("f4")
    yield numpy.array([0, 1, -0.0, 1e-45, -3e-39, 3.4e38, -3.4e38], "f4")
    yield numpy.zeros(100, "f4")
    yield numpy.full(3000, 2.5, "f4")
    anything = random.integers(0, 2**32, 5000, dtype="u8").astype("u4").view("f4")
    yield numpy.where(numpy.isfinite(anything), anything, numpy.float32(1))


def as_type(x, dtype):
    if dtype == F32:
        return x
    if dtype == F16:
        return numpy.clip(x, -65504, 65504).astype("f2").view("u2")
    return (x.view("u4") >> 16).astype("u2")  # bf16, rounded towards zero


@pytest.mark.parametrize("name", sorted(NATIVE))
def test_payloads_are_those_of_the_built_in_codec(name, made):
    made(name)
    native, calls, beside = NATIVE[name]
    for call in calls:
        ours, theirs = Codec(f"plugin.{name}", **call), Codec(native, **call, **beside)
        for x in inputs():
            for dtype in (F32, F16, BF16):
                assert compare(ours, theirs, as_type(x, dtype), dtype) is None, (call, len(x), dtype)


def test_quotients_in_f32_are_those_in_f64(made):
    """Of codes of 8 bits qsgd decodes levels in f32, where they are a prime or a power of two: every level of many norms."""
    made("qsgd")
    random = numpy.random.default_rng(7)
    for levels in (64, 67, 100, 113, 127):
        ours, theirs = (Codec(name, levels=levels, bucket=2 * levels + 2) for name in ("plugin.qsgd", "qsgd"))
        norms = random.integers(0, 0x7F800000, 500, dtype="u4")
        norms[::4] = (random.integers(0, 2**24 // levels, 125) * levels).astype("f4").view("u4")  # ties are among their levels
        norms[:3] = 0, 1, 0x7F7FFFFF
        codes = numpy.tile(numpy.arange(2 * levels + 2, dtype="u1"), len(norms))
        payload = numpy.concatenate([norms.view("u1"), codes])
        for codec in (ours, theirs):  # (encode makes what is sent of parameters)
            codec.encode(numpy.zeros(1, "f4"))
        assert (ours.decode(payload, len(codes)) == theirs.decode(payload, len(codes))).all(), levels
        payload[-100] = 255
        if levels < 127:
            with pytest.raises(Failed, match="^3 qsgd: a level is above the highest"):
                ours.decode(payload, len(codes))


def test_a_number_that_may_be_infinite_makes_no_quotients_in_f32():
    doubled = QSGD.replace("f64(norm)", "f64(norm * 2)")
    assert "lang::step<" in source_of(QSGD) and doubled != QSGD and "lang::step<" not in source_of(doubled)


ONES = """codec ones
wire bucket: int 1..9 = 2
payload
  top: f32 [n by bucket]
  code: u8 [n]
encode v
  top = largest(v)
  code = 7
decode
  return top * code
"""


def test_kernels_write_one_number_into_a_field_of_many():
    made = source_of(ONES, kernels=True)
    assert "lang::put<float>(to + l.top_at + 4 * bucket_run, k.top_);" in made
    assert "lang::put<uint8_t>(to + l.code_at + 1 * i, static_cast<uint8_t>(k.code_));" in made


ODD = """codec odd
payload
  share: u3[n]
  signed: u4[n]
  shifted: u8[n]
  inverse: u4[n]
  tenth: u32[n]
  share_of_n: u32[n]
  whole: u32[n]
  sign: base 3 pad 1 [n]
  size: base 5 pad 0 [n]
encode v
  top = largest(abs(v))
  share = floor(min(7, 7 * abs(v) / top))
  signed = 3 + floor(min(5, max(-3, 5 * v / top)))
  shifted = 255 >> min(63, bits(abs(v)) >> 23)
  inverse = min(12, 14 - floor(min(1 / max(0, v), 14.0)))
  tenth = bits(f32(f64(0.1) * v))
  share_of_n = bits(f32(f64(v) / n))
  whole = round(min(f64(abs(v)), 2147483648.1) - 0.25)
  sign = (v > 0) + (v >= 0)
  size = min(4, floor(abs(v)))
decode
  require share + signed + shifted + inverse <= 300 and tenth + share_of_n + whole >= 0, "a number is too large"
  return (sign - 1) * size
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    path = tmp_path_factory.mktemp("odd") / "odd.drc"
    path.write_text(ODD)
    deepreduce.load_plugin(build(path))
    return Codec("plugin.odd")


def test_digits_of_two_bases_are_whole_bytes_of_every_block(odd):
    x = numpy.random.default_rng(2).standard_normal(20011).astype("f4") * 3
    assert (odd.decode(odd.encode(x), len(x)).view("f4") == numpy.sign(x) * numpy.minimum(4, numpy.floor(abs(x)))).all()


def test_numbers_that_are_none_and_long_shifts_stay_in_their_field(odd):
    numbers = [-0.0, *(2.0 ** (k - 127) for k in (1, 3, 8, 31, 32, 33, 63, 64, 127, 158)), 0.3, 0.7]
    for x in (numpy.zeros(8, "f4"), numpy.array(numbers, "f4")):
        n, top, payload, bits = len(x), numpy.abs(x).max(), odd.encode(x), {}
        for name, width in (("share", 3), ("signed", 4), ("shifted", 8), ("inverse", 4), ("tenth", 32), ("share_of_n", 32), ("whole", 32)):
            size = (n * width + 7) // 8
            packed, payload = numpy.unpackbits(payload[:size], bitorder="little"), payload[size:]
            assert not packed[n * width :].any()  # (nothing is written beside the numbers)
            bits[name] = [int("".join(map(str, row[::-1])), 2) for row in packed[: n * width].reshape(n, width)]
        assert bits["share"] == [7 if top == 0 else int(7 * abs(float(y)) / top) for y in x]
        assert bits["signed"] == [0 if top == 0 else 3 + int(5 * y / top) for y in x]
        assert bits["shifted"] == [255 >> min(63, int(y) >> 23) for y in numpy.abs(x).view("u4")]
        assert bits["inverse"] == [min(12, 14 - int(min(14, 1 / y))) if y > 0 else 12 * int(numpy.signbit(y)) for y in x]
        assert bits["tenth"] == (0.1 * x.astype("f8")).astype("f4").view("u4").tolist()
        assert bits["share_of_n"] == (x.astype("f8") / n).astype("f4").view("u4").tolist()  # (-0 / n is -0)
        assert bits["whole"] == numpy.minimum(numpy.rint(abs(x).astype("f8") - 0.25), 2**31 - 1).tolist()
        odd.decode(odd.encode(x), n)


def kept_of(payload):
    count = struct.unpack("<I", payload[:4].tobytes())[0]
    return payload[4 : 4 + 4 * count].view("u4"), payload[4 + 4 * count :]


def test_values_that_are_kept(made):
    made("graddrop")
    made("tbq")
    for x in inputs():
        magnitude = numpy.abs(x)
        k = max(1, int(0.25 * len(x) + 1e-9))
        expected = numpy.flatnonzero((magnitude >= numpy.sort(magnitude)[-k]) & (x != 0))
        codec = Codec("plugin.graddrop", ratio=0.25)
        payload = codec.encode(x)
        at, values = kept_of(payload)
        assert (at == expected).all() and values.tobytes() == x[expected].tobytes()
        dense = numpy.where(numpy.isin(numpy.arange(len(x)), expected), x, numpy.float32(0))
        assert codec.decode(payload, len(x)).tobytes() == dense.tobytes()
        expected = numpy.flatnonzero(magnitude >= numpy.float32(0.001))
        payload = Codec("plugin.tbq").encode(x)
        at, signs = kept_of(payload)
        assert (at == expected).all() and signs.tobytes() == numpy.packbits(x[expected] < 0, bitorder="little").tobytes()


KEEPS = """codec keeps
wire bucket: int 1..1000 = 100
payload
  most: f32 0.. [n by bucket]
  m: count
  twice: f32[m]
  at: position[m]
  level: u5[m]
encode v
  most   = largest(abs(v) by bucket)
  high   = kth_largest(abs(v), max(1, n div 4))
  low    = kth_largest(if abs(v) < most then abs(v) else 0, max(1, n div 2))
  chosen = abs(v) < high and abs(v) > low
  at     = positions(chosen)
  own    = keep(v, chosen)
  twice  = min(max(own * 2, -1e38), 1e38)
  level  = keep(if most > 0 then floor(31 * abs(v) / most) else 0, chosen)
  require own != 0, "a zero is kept"
decode
  require most >= 0 and n > 0, "a scale is below zero"
  require level <= 31, "a level is above the highest"
  return spread(twice, at)
"""


def test_names_runs_and_requirements_of_what_is_kept(tmp_path):
    path = tmp_path / "keeps.drc"
    path.write_text(KEEPS)
    deepreduce.load_plugin(build(path))
    codec = Codec("plugin.keeps")
    more = numpy.random.default_rng(5).standard_normal(100_000).astype("f4")
    for x in (*inputs(), more, numpy.where(more < 0.5, 0, more)):
        magnitude, starts = numpy.abs(x), numpy.arange(0, len(x), 100)
        largest = numpy.maximum.reduceat(magnitude, starts)
        every = numpy.repeat(largest, 100)[: len(x)]
        high = numpy.sort(magnitude)[-max(1, len(x) // 4)]
        low = numpy.sort(numpy.where(magnitude < every, magnitude, 0))[-max(1, len(x) // 2)]
        at = numpy.flatnonzero((magnitude < high) & (magnitude > low))
        payload = codec.encode(x)
        m = len(at)
        assert payload[: 4 * len(largest)].tobytes() == largest.tobytes()
        assert payload[4 * len(largest) :][:4].view("u4")[0] == m
        twice, positions = payload[4 * len(largest) + 4 :][: 8 * m].view("u4").reshape(2, m)
        expected = numpy.clip(x[at] * numpy.float32(2), numpy.float32(-1e38), numpy.float32(1e38))
        assert (positions == at).all() and twice.tobytes() == expected.tobytes()
        levels = numpy.floor(numpy.float32(31) * magnitude[at] / every[at]).astype("u1")
        bits = numpy.unpackbits(payload[4 * len(largest) + 4 + 8 * m :], bitorder="little")
        assert (numpy.packbits(bits[: 5 * m].reshape(m, 5), axis=1, bitorder="little")[:, 0] == levels).all() and not bits[5 * m :].any()


def test_positions_that_do_not_ascend_are_refused(made):
    made("graddrop")
    codec = Codec("plugin.graddrop", ratio=1)
    x = numpy.arange(1, 9, dtype="f4")
    payload = codec.encode(x)
    for place, word in ((4, 5), (8, 0), (32, 8), (32, 2**32 - 1), (0, 9), (0, 2**32 - 1), (0, 7)):
        bad = payload.copy()
        bad[place : place + 4] = numpy.frombuffer(struct.pack("<I", word), "u1")
        with pytest.raises(Failed, match="^3 "):
            codec.decode(bad, len(x))


def test_an_encoder_that_leaves_a_range_fails_and_names_the_field(tmp_path):
    path = tmp_path / "narrow.drc"
    path.write_text("codec narrow\npayload\n  code: u4[n]\nencode v\n  code = max(0, round(v))\ndecode\n  return code\n")
    deepreduce.load_plugin(build(path))
    codec = Codec("plugin.narrow")
    assert codec.decode(codec.encode(numpy.arange(16, dtype="f4")), 16).view("f4").tolist() == list(range(16))
    with pytest.raises(Failed, match="^1 narrow: `code` is not in its range, 0 to 15"):
        codec.encode(numpy.arange(17, dtype="f4"))


@needs_tool
def test_the_command(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["codec", "new", "mine.drc"]) == 0
    assert main(["codec", "new", "mine.drc"]) == 2  # it exists
    assert main(["codec", "new", "base.drc"]) == 2 and not pathlib.Path("base.drc").exists()
    assert "base.drc: `base` cannot be the name of a codec" in capfd.readouterr().err
    assert main(["codec", "test", "mine.drc"]) == 0
    printed = capfd.readouterr().out
    assert "all promises hold" in printed and "refused" not in printed
    assert re.search(r"instructions +ok +\d+ .*\n +kernels +ok", printed)
    scale = (tmp_path / "mine.drc").read_text().replace("code: u(1 + bit_width(levels))", "code: u3")
    scale = scale.replace("top: f32 0..", "top: f32 0.. [n]")  # (kernels know it as a number of the job)
    (tmp_path / "mine.drc").write_text(scale)
    assert main(["codec", "test", "mine.drc"]) == 1  # frames of all inputs are not made
    assert re.search(r"refused +\d+ of \d+ inputs .*`code` is not in its range, 0 to 7", capfd.readouterr().out)
    assert main(["codec", "build", "mine.drc", "--source", "none/mine.cpp"]) == 2
    assert "none/mine.cpp: cannot be written" in capfd.readouterr().err
    for option in ("--output", "--source"):
        assert main(["codec", "build", "mine.drc", option, "./mine.drc"]) == 2
        assert "mine.drc: it is an input" in capfd.readouterr().err and (tmp_path / "mine.drc").read_text() == scale
    (tmp_path / "mine.drc").write_text("codec mine\npayload\n")
    assert main(["codec", "build", "mine.drc"]) == 2
    assert "mine.drc:3:1" in capfd.readouterr().err.replace("mine.drc:2:1", "mine.drc:3:1")


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
