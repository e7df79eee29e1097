"""deepreduce.codec: Python codecs are judged as the library's are, and measured in the same columns."""

import json
import os
import pathlib
import re
import subprocess
import sys
import warnings

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce import codec  # noqa: E402
from deepreduce import comparing  # noqa: E402
from deepreduce.comparing import _codec_command, _codec_run, _codecs  # noqa: E402
from tool_runs import needs_tool  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = pathlib.Path(deepreduce.__file__).resolve().parents[1]
GUIDE = "\n\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs/PYTHON_CODEC.md").read_text("utf-8"), re.DOTALL))
TOPR = "sparsify=topr(ratio=0.05) "


@pytest.fixture(autouse=True)
def fresh():
    """The codecs of the guide, and no others."""
    _codecs._registered.clear()
    exec(GUIDE, {})
    yield
    _codecs._registered.clear()


@pytest.fixture
def x():
    return numpy.random.default_rng(3).standard_normal(4000).astype("f4")


def register(role, encode=None, decode=None, **promises):
    """A raw codec under the name `mine`, of which a test replaces one side."""
    if role == "index":
        encode = encode or (lambda self, indices, universe: indices.tobytes())
        decode = decode or (lambda self, data, count, universe: numpy.frombuffer(data, "i8"))
    else:
        encode = encode or (lambda self, values: values.tobytes())
        decode = decode or (lambda self, data, count, dtype: numpy.frombuffer(data, dtype))
    getattr(codec, role)("mine", **promises)(type("Mine", (), {"encode": encode, "decode": decode}))


def test_the_guides_codecs_keep_what_they_promise():
    codec.check("index", "py_gaps")
    codec.check("value", "py_zigzag")


@pytest.mark.parametrize("python, native, plugin", [
    ("index=py_gaps value=raw", "index=byte_gaps value=raw", "byte_gaps"),
    ("index=raw value=py_zigzag", "index=raw value=zigzag", "zigzag"),
])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_a_codec_in_python_and_as_a_plugin_give_the_same_bytes(x, python, native, plugin, dtype):
    found = list(pathlib.Path(os.environ.get("DEEPREDUCE_PLUGINS", "/nowhere")).glob(f"*{plugin}.so"))
    if not found:
        pytest.skip("DEEPREDUCE_PLUGINS does not name the folder of tests/plugin in a build")
    deepreduce.load_plugin(found[0])
    x = x.astype(dtype)
    frame = deepreduce.encode(x, TOPR + native)
    selected = deepreduce.decode(frame, sparse=True)
    (gaps, zigzag) = (codec.registered("index", "py_gaps").make(), codec.registered("value", "py_zigzag").make())
    info = deepreduce.inspect(frame).tensors[0]
    if "gaps" in plugin:
        data, size = gaps.encode(selected.indices.astype("i8"), x.size), info.index_size
    else:
        data, size = zigzag.encode(selected.values), info.value_size
    assert len(data) == size > 100 and frame.count(data) == 1


def test_varints_are_leb128():
    numbers = [0, 1, 127, 128, 300, 2**32 - 1, 2**63 - 1]
    data = codec.varints(numbers)
    assert data.hex() == "00017f8001ac02ffffffff0f" + "ff" * 8 + "7f"
    assert codec.from_varints(data).tolist() == numbers
    assert codec.varints([]) == b"" and codec.from_varints(b"").size == 0
    for bad in (b"\x80", b"\x01\xff", b"\xff" * 9 + b"\x01"):
        with pytest.raises(deepreduce.ArgumentError, match="varints"):
            codec.from_varints(bad)
    with pytest.raises(deepreduce.ArgumentError, match="negative"):
        codec.varints([-1])
    for odd in (5, [[1, 2]], [1.5], [2**64], numpy.array([1, 2**63], "u8")):
        with pytest.raises(deepreduce.ArgumentError, match=r"varints: .*2\^63 - 1"):
            codec.varints(odd)


# ---- What is not kept is found ------------------------------------------------------------------


@pytest.mark.parametrize("role, broken, sentence", [
    ("index", {"decode": lambda self, data, n, d: numpy.frombuffer(data, "i8")[::-1]}, "does not ascend"),
    ("index", {"decode": lambda self, data, n, d: numpy.frombuffer(data, "i8") + 1}, "not below"),
    ("index", {"decode": lambda self, data, n, d: numpy.frombuffer(data, "i8")[1:]}, "the codec is exact"),
    ("index", {"decode": lambda self, data, n, d: numpy.frombuffer(data, "f8")}, "not integers"),
    ("index", {"encode": lambda self, x, d: [1]}, "not bytes"),
    ("value", {"encode": lambda self, v: numpy.abs(v).tobytes()}, "decoded bits 0x0, sent 0x80000000"),
    ("value", {"encode": lambda self, v: v.tobytes() + b"12345678"}, "decode returns float32"),
    ("value", {"encode": lambda self, v: v.tobytes() + os.urandom(8), "decode": lambda self, data, n, t:
               numpy.frombuffer(data[:-8], t)}, "different bytes the second time"),
    ("value", {"decode": lambda self, data, n, t: numpy.frombuffer(data, t) * 2, "exact": False, "error": 0.5},
     "promised 0.5"),
    ("value", {"encode": lambda self, v: numpy.zeros(3, "M8[s]")}, "encode returns ndarray, not bytes"),
    ("value", {"decode": lambda self, data, n, t: numpy.frombuffer(data, t) * t.type(numpy.inf), "exact": False}, "finite"),
])
def test_a_broken_codec_is_found(role, broken, sentence):
    register(role, **broken)
    with pytest.raises(codec.Broken, match=f"{role}=mine: .*{sentence}"), numpy.errstate(all="ignore"):
        codec.check(role, "mine")


def test_a_codec_may_not_change_its_input():
    register("value", encode=lambda self, values: values.__imul__(1).tobytes())
    with pytest.raises(codec.Broken, match="read-only") as raised:
        codec.check("value", "mine")
    assert isinstance(raised.value.__cause__, ValueError)


def fails(*_):
    raise RuntimeError("my bug")


@needs_tool
@pytest.mark.parametrize("role, broken, input", [
    ("index", {"encode": fails}, "none of 1"),
    ("index", {"decode": lambda self, data, n, d: numpy.frombuffer(data, "i8") if n < 999 else fails()}, "all of 1000"),
    ("value", {"encode": lambda self, v: v.tobytes() if v.size < 1000 else fails()}, "a Gaussian's (1000 float32)"),
    ("value", {"decode": fails}, "none (0 float32)"),
    ("value", {"encode": lambda self, v: fails() if v.size == 200 else v.tobytes()}, "the tensor's values (200 float32)"),
    ("index", {"encode": lambda self, i, d: fails() if d == 4000 else i.tobytes()}, "the tensor's indices (200 of 4000)"),
])
def test_an_exception_of_a_codec_is_told_with_stage_input_and_line(x, role, broken, input):
    register(role, **broken)
    sentence = re.escape(f"{role}=mine: {input}: RuntimeError('my bug') at {__file__}:")
    with pytest.warns(UserWarning, match=sentence + f"{fails.__code__.co_firstlineno + 1}$"):
        deepreduce.compare(x, TOPR + f"{role}=mine", repeat=1)


def test_the_line_of_an_exception_is_in_the_codecs_file(tmp_path):
    (tmp_path / "mine.py").write_text("import deepreduce.codec\ndef decode(self, data, n, d):\n    return deepreduce.codec.from_varints(b'\\xff')\n")
    made = {}
    exec(compile((tmp_path / "mine.py").read_text(), tmp_path / "mine.py", "exec"), made)
    register("index", decode=made["decode"])
    with pytest.raises(codec.Broken, match=re.escape(f"cut off, or a number has more than 63 bits') at {tmp_path / 'mine.py'}:3")):
        codec.check("index", "mine")
    register("index", decode=lambda self, data, n, d: [[1], [2, 3]])
    with pytest.raises(codec.Broken, match="index=mine: none of 1: decode returns list, which is not an array"):
        codec.check("index", "mine")


@needs_tool
def test_an_exception_of_a_codecs_init_names_the_stage(x, tmp_path):
    text = "import deepreduce.codec\n@deepreduce.codec.value('kw')\nclass Kw:\n    def __init__(self, a):\n        1 / a\n    encode = decode = len\n"
    (tmp_path / "kw.py").write_text(text)
    numpy.save(tmp_path / "g.npy", x)
    exec(compile(text, "kw.py", "exec"), {})
    sentence = "value=kw(a=0): ZeroDivisionError('division by zero') at kw.py:5"
    with pytest.raises(deepreduce.ArgumentError, match=re.escape(sentence)):
        deepreduce.compare(x, TOPR + "value=kw(a=0)", repeat=1)
    with pytest.raises(deepreduce.ArgumentError, match="value=kw: ZeroDivisionError"):
        codec.check("value", "kw", a=0)
    printed = command("compare", "g.npy", "--python-codec", "kw.py", "--plan", TOPR + "value=kw(a=0)", status=2, folder=tmp_path)
    assert printed == f"deepreduce: {sentence}\n"


@pytest.mark.parametrize("plan, sentence", [
    ("sparsify=topr(ratio=2) index=py_gaps", "topr(ratio=2): not in 0 … 1"),
    (TOPR + "index=golom value=py_zigzag", "no index codec is called 'golom'; is it 'golomb'?"),
    (TOPR + "index=py_gaps value=raw+huff", "no bytes codec is called 'huff'"),
    (TOPR + "index=py_gaps(width=3)", "width"),
    (TOPR + "index=py_gaps|golomb", "cannot be a sweep"),
    (TOPR + "feedback=residual index=py_gaps", "'feedback=residual' cannot be combined"),
])
def test_a_wrong_plan_is_a_plan_error_before_anything_is_measured(x, plan, sentence, monkeypatch):
    monkeypatch.setattr(comparing, "_document_of", lambda *_: pytest.fail("the tool was started"))
    with pytest.raises(deepreduce.PlanError, match=re.escape(sentence)) as raised:
        deepreduce.compare(x, [TOPR + "index=raw", plan], repeat=1)
    assert "plan: " not in str(raised.value)


@pytest.mark.parametrize("text, canonical", [
    ("value=mine", "index=raw value=mine"),
    ("sparsify=none value=mine(b=2.0,a=1)", "index=raw value=mine"),
    (" value=mine( b=0.250, a=3 )  index=golomb(block=12)  sparsify=topr(ratio=0.050)", TOPR + "index=golomb value=mine(a=3,b=0.25)"),
    ("index=py_gaps value=raw+deflate", "index=py_gaps value=raw+deflate"),
    ("value=mine(b=2,a=1.0)", "index=raw value=mine(a=1.0,b=2)"),
    ("value=mine(b=1e20,z=x,more=-1)", "index=raw value=mine(b=1e+20,more=-1,z=x)"),
])  # fmt: skip
def test_plans_have_one_text(text, canonical):
    kind = type("Mine", (), {"encode": len, "decode": len, "__init__": lambda self, a=1, b=2.0, **more: None})
    codec.value("mine")(kind)
    assert _codec_run.read_plan(text).text == _codec_run.read_plan(canonical).text == canonical


@needs_tool
def test_a_plan_in_three_spellings_is_measured_once_and_finds_its_partner(x, tmp_path):
    plan = TOPR + "index=py_gaps value=raw"
    spellings = [plan, f"index=py_gaps {TOPR}", "value=raw index=py_gaps sparsify=topr(ratio=0.0500)"]
    rows = deepreduce.compare(x, spellings, repeat=1)
    assert [row["plan"] for row in rows] == ["memcpy", plan]
    (tmp_path / "old.json").write_text(json.dumps({**rows.document, "rows": list(rows)}))
    against = deepreduce.compare(x, spellings[2], repeat=1, against=tmp_path / "old.json").document["against"]
    assert [row["plan"] for row in against["rows"]] == [plan] and against["only_old"] == against["only_new"] == []


@needs_tool
def test_notes_of_the_tool_are_passed_on_once(x, tmp_path):
    (tmp_path / "mine.py").write_text(GUIDE)
    numpy.savez(tmp_path / "g.npz", a=x, b=numpy.full(2000, numpy.nan, "f4"), i=numpy.arange(9))
    plans = [TOPR + "index=py_gaps", TOPR + "index=raw value=qsgd"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        deepreduce.compare(tmp_path / "g.npz", plans, repeat=1, per_tensor=True, sort="bytes")
    words = ["compare", "g.npz", "--per-tensor", "--python-codec", "mine.py", "--repeat", "1", "--plan", plans[0], "--plan", plans[1], "--sort", "bytes"]
    done = subprocess.run([sys.executable, "-m", "deepreduce", *words], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False,
                          env={**os.environ, "PYTHONPATH": str(PACKAGE)})  # fmt: skip
    assert done.returncode == 1
    printed = [line.replace("deepreduce: ", "").replace("g.npz", str(tmp_path / "g.npz")) for line in done.stderr.splitlines()]
    assert [str(one.message) for one in caught] == [line.replace("note: ", "") for line in sorted(printed, key=lambda line: "ARGUMENT" in line)]
    assert len(printed) == len(set(printed)) and sum("i.npy: byte 10: dtype '<i8' is not a float" in line for line in printed) == 1
    assert sum(line.startswith(f"{tmp_path}/g.npz b: {TOPR}index=raw value=qsgd: ARGUMENT") for line in printed) == 1


def test_names_and_classes_are_judged(x):
    for role in ("index", "value"):
        with pytest.raises(deepreduce.ArgumentError, match=f"{role} codec: <class .* is not the text of a name: write @deepreduce.codec.{role}..name"):
            getattr(codec, role)(type("Mine", (), {"encode": len, "decode": len}))
    for name in ("", "A", "a b", "a(1)"):
        with pytest.raises(deepreduce.ArgumentError, match="lower-case letters"):
            codec.value(name)
    with pytest.raises(deepreduce.ArgumentError, match="no method decode"):
        codec.value("half_done")(type("Half", (), {"encode": len}))
    codec.index("golomb")(codec.registered("index", "py_gaps").make)
    with pytest.raises(deepreduce.ArgumentError, match="the library has a codec of that name"):
        deepreduce.compare(x, "index=golomb value=py_zigzag")
    with pytest.raises(deepreduce.ArgumentError, match="no value codec is registered as 'none'"):
        codec.check("value", "none")


# ---- Rows ---------------------------------------------------------------------------------------


@needs_tool
def test_rows_say_what_the_library_says_of_the_same_codec(x):
    plans = [TOPR + "index=raw value=raw", TOPR + "index=raw value=mine", TOPR + "index=mine value=raw", TOPR + "index=mine value=mine"]
    register("index", lambda self, i, d: i.astype("u4").tobytes(), lambda self, data, n, d: numpy.frombuffer(data, "u4"))
    register("value")
    memcpy, native, *rows = deepreduce.compare(x, plans, repeat=2)
    assert [row["plan"] for row in rows] == plans[1:] and all(row["timed"] == "python" for row in rows)
    measured = {name for name in native if "_ns" in name}
    for row in rows:
        assert row.keys() >= native.keys()
        for name in ("input", "tensor", "kind", "step", "dtype", "d", "r", "support", "fallback", "value_bytes", "missed", "false_positives"):
            assert row[name] == native[name], name
        for name in ("contraction", "cosine_similarity", "relative_l2_error", "index_recall", "index_bound_bits_per_nonzero",
                     "gradient_energy", "kept_energy"):
            assert row[name] == pytest.approx(native[name], rel=1e-9), name
        assert row["bytes"] == sum(row[f"{part}_bytes"] for part in ("index", "value", "order", "header"))
        assert row["encode_ns"] > 0 and row["decode_ns"] > 0
    assert measured and rows[0]["index_bytes"] == native["index_bytes"] and rows[1]["index_bytes"] == 4 * 200


@needs_tool
@pytest.mark.parametrize("value", [numpy.inf, numpy.nan])
@pytest.mark.parametrize("sparsify", ["topr(ratio=0.1)", "random(ratio=0.1)"])
def test_errors_of_a_gradient_that_is_not_finite_are_the_librarys(x, value, sparsify):
    """A share of an infinite energy was 0, as of an exact plan."""
    register("value")
    x = x.copy()
    x[7:9] = value
    _, native, row = deepreduce.compare(x, [f"sparsify={sparsify} index=raw value={name}" for name in ("raw", "mine")], repeat=1)
    for name in ("total_error", "contraction", "relative_l2_error", "max_relative_error", "cosine_similarity", "energy_recall"):
        assert row[name] == (None if native[name] is None else pytest.approx(native[name], rel=1e-9)), name
    assert row["total_error"] is None


@needs_tool
def test_a_lossy_value_codec_has_the_error_of_plain_arithmetic(x):
    halves = lambda self, data, n, t: numpy.frombuffer(data, "f2").astype(t)  # noqa: E731
    register("value", lambda self, v: v.astype("f2").tobytes(), halves, exact=False)
    selected = x[numpy.argsort(-numpy.abs(x))[:200]].astype("f8")
    with numpy.errstate(over="ignore"), pytest.warns(UserWarning, match="least and largest"):  # half floats cannot hold it
        assert len(deepreduce.compare(x, TOPR + "index=golomb value=mine", repeat=1)) == 1
    wide = lambda self, v: numpy.clip(v, -60000, 60000).astype("f2").tobytes()  # noqa: E731
    register("value", wide, halves, exact=False)
    row = deepreduce.compare(x, TOPR + "index=golomb value=mine", repeat=1)[1]
    rounded = selected.astype("f2").astype("f8")
    assert row["relative_l2_error"] == pytest.approx(numpy.linalg.norm(selected - rounded) / numpy.linalg.norm(selected), rel=1e-6)
    assert row["value_bytes"] == 400


@needs_tool
def test_an_index_codec_with_another_support_sends_the_values_there(x):
    """It sends blocks of 8 in which something was kept."""
    blocks = lambda self, data, n, d: _below((codec.from_varints(data)[:, None] * 8 + numpy.arange(8)).ravel(), d)  # noqa: E731
    register("index", lambda self, i, d: codec.varints(numpy.unique(i // 8)), blocks, exact=False)
    row = deepreduce.compare(x, TOPR + "index=mine value=raw", repeat=1)[1]
    selected = numpy.sort(numpy.argsort(-numpy.abs(x), kind="stable")[:200])
    sent = (numpy.unique(selected // 8)[:, None] * 8 + numpy.arange(8)).ravel()
    lost = numpy.delete(x, sent).astype("f8")
    assert (row["r"], row["support"], row["missed"], row["false_positives"]) == (200, sent.size, 0, sent.size - 200)
    assert row["contraction"] == pytest.approx(numpy.sum(lost**2) / numpy.sum(x.astype("f8") ** 2), rel=1e-6)


def _below(indices, universe):
    return indices[indices < universe]


@needs_tool
@pytest.mark.parametrize("plan, sentence", [
    ("index=py_gaps value=py_zigzag+deflate", "no further stage ('+deflate')"),
    ("sparsify=topr(ratio=0.1) feedback=residual index=py_gaps", "'feedback=residual' cannot be combined"),
    ("index=py_gaps(width=3)", "width"),
    ("index=py_gaps(3)", "'3' at column 15 has no name; arguments are key=value"),
])
def test_what_python_does_not_do_is_said(x, plan, sentence):
    with pytest.raises(deepreduce.ArgumentError, match=re.escape(sentence)):
        deepreduce.compare(x, plan, repeat=1)


@needs_tool
@pytest.mark.parametrize("plan", [
    "index=py_gaps|golomb value=raw", "index=golomb|py_gaps", "sparsify=topr(ratio=0.01|0.1) index=py_gaps",
    "index=rice value=log_quant(bits=3..5)|py_zigzag", "index=raw value=(raw|py_zigzag)",
])  # fmt: skip
def test_a_sweep_that_names_a_python_codec_is_refused(x, plan):
    with pytest.raises(deepreduce.ArgumentError, match="cannot be a sweep .*pass the plans one by one"):
        deepreduce.compare(x, plan, repeat=1)


@needs_tool
def test_a_sweep_that_names_none_is_the_tools(x):
    register("value")
    plans = [TOPR + "index=rice|golomb value=log_quant(bits=3..4)", TOPR + "index=raw value=mine"]
    assert len(deepreduce.compare(x, plans, repeat=1)) == 6


@needs_tool
def test_each_file_has_the_rows_of_its_own_data(x, tmp_path):
    """Though all call the tensor alike, and it has as many elements in each."""
    torch = pytest.importorskip("torch", reason="torch is missing: pip install torch")
    paths = []
    for i, data in enumerate((x, x * numpy.float32(3), x[::-1].copy())):
        paths.append(str(tmp_path / f"{i}.pt"))
        torch.save({"w": torch.from_numpy(data)}, paths[-1])
    plans = [TOPR + "index=golomb value=raw", TOPR + "index=py_gaps value=raw"]
    (tmp_path / "mine.py").write_text(GUIDE)
    words = ["compare", *paths, "--python-codec", tmp_path / "mine.py", "--plan", plans[0], "--plan", plans[1], "--repeat", 1, "--format", "json"]
    for rows in (deepreduce.compare(paths, plans, repeat=1), json.loads(command(*words))["rows"]):
        energies = {(row["input"], row["plan"]): row["kept_energy"] for row in rows if row["plan"] != "memcpy"}
        assert len(energies) == 6 and len(set(energies.values())) > 1
        for path in paths:
            assert energies[path, plans[1]] == pytest.approx(energies[path, plans[0]], rel=1e-9)


@needs_tool
@pytest.mark.parametrize("folder", [True, False])
def test_what_is_called_array_beside_it_is_not_read(x, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "array").mkdir() if folder else numpy.ones_like(x).tofile(tmp_path / "array")
    _, native, python = deepreduce.compare(x, [TOPR + "index=raw", TOPR + "index=py_gaps"], repeat=1)
    assert python["contraction"] == pytest.approx(native["contraction"], rel=1e-9)


@needs_tool
def test_selections_see_the_rows_of_python_codecs(x):
    plans = [TOPR + "index=raw value=raw", TOPR + "index=py_gaps value=raw", TOPR + "index=py_gaps value=py_zigzag"]
    sizes = {row["plan"]: row["bytes"] for row in deepreduce.compare(x, plans, repeat=1)}
    assert sizes[plans[1]] < sizes[plans[0]]

    def chosen(**settings):
        return [row["plan"] for row in deepreduce.compare(x, plans, repeat=1, **settings)]

    assert chosen(where=f"bytes < {sizes[plans[0]]}") == [plan for plan in plans if sizes[plan] < sizes[plans[0]]] != []
    assert chosen(sort="-bytes") == sorted(sizes, key=sizes.__getitem__, reverse=True)
    assert chosen(pareto="bytes") == [min(sizes, key=sizes.__getitem__)]


@needs_tool
def test_errors_of_python_codecs_are_totalled_and_the_best_may_be_one(x, tmp_path):
    (tmp_path / "mine.py").write_text(GUIDE)
    numpy.savez(tmp_path / "g.npz", **{"conv.weight": x.reshape(10, 4, 10, 10), "fc.weight": x[:2000].reshape(40, 50)})
    plan = TOPR + "index=py_gaps value=raw"
    document = json.loads(command(
        "compare", tmp_path / "g.npz", "--per-tensor", "--python-codec", tmp_path / "mine.py", "--repeat", 1, "--format", "json",
        "--plan", TOPR + "index=raw value=raw", "--plan", plan, "--best", "total_error <= 1"))  # fmt: skip
    errors = {total["plan"]: total["total_error"] for total in document["totals"]}
    assert errors[plan] == pytest.approx(errors[TOPR + "index=raw value=raw"], rel=1e-9)
    assert {row["plan"] for row in document["best"]} == {plan}
    assert {(row["tensor"], row["kind"]) for row in document["rows"]} == {("conv.weight", "conv"), ("fc.weight", "linear")}


@needs_tool
def test_presets_beside_python_codecs_have_rows(x):
    rows = deepreduce.compare(x, TOPR + "index=py_gaps", preset="dgc", repeat=1)
    assert [row["timed"] if "timed" in row else row["preset"] for row in rows] == [None, "dgc", "python"]


@needs_tool
def test_the_guides_call_gives_a_row_for_a_dense_gradient(x):
    text = (ROOT / "docs/PYTHON_CODEC.md").read_text("utf-8")
    plan = re.search(r'deepreduce\.compare\("grad\.npz", \["([^"]*)"', text)[1]
    assert _codecs.is_of_python(plan) and [row["plan"] for row in deepreduce.compare(x, plan, repeat=1)] == ["memcpy", plan]


def command(*words, status=0, folder=None):
    """The output of `python -m deepreduce`; its errors if it fails."""
    done = subprocess.run([sys.executable, "-m", "deepreduce", *map(str, words)], capture_output=True, text=True, timeout=120,
                          cwd=folder, env={**os.environ, "PYTHONPATH": str(PACKAGE)})  # fmt: skip
    assert done.returncode == status, done.stderr
    return done.stdout or done.stderr


@needs_tool
def test_tensors_of_any_name_are_read_again(x):
    names = ["café", 'a"b\\c', "x\x7fy", "caf\\u00e9", "\U0001f600"]
    rows = deepreduce.compare({name: (i + 1) * x for i, name in enumerate(names)}, TOPR + "index=py_gaps", tensor="*", repeat=1)
    energies = [row["gradient_energy"] for row in rows if row["plan"] != "memcpy"]
    assert energies == [pytest.approx((i + 1) ** 2 * energies[0]) for i in range(len(names))]


@needs_tool
def test_numbers_are_those_that_the_tool_accepts(x, tmp_path):
    (tmp_path / "mine.py").write_text(GUIDE)
    numpy.save(tmp_path / "g.npy", x)
    words = ["compare", "g.npy", "--python-codec", "mine.py", "--plan", TOPR + "index=py_gaps", "--format", "json"]
    for option in (["--repeat", "abc"], ["--repeat", "0"], ["--seed", "-1"], ["--seed", "x"]):
        printed = command(*words, *option, status=2, folder=tmp_path)
        assert option[1] in printed and "Traceback" not in printed, option
    assert len(json.loads(command(*words, "--repeat", "1", "--seed", "0x10", folder=tmp_path))["rows"]) == 2
    with pytest.raises(deepreduce.ArgumentError, match="repeat"):
        deepreduce.compare(x, TOPR + "index=py_gaps", repeat=0)


@needs_tool
def test_values_of_options_are_no_inputs(x, tmp_path):
    (tmp_path / "mine.py").write_text(GUIDE)
    numpy.save(tmp_path / "g.npy", x)
    (tmp_path / "bytes").write_text("")
    (tmp_path / "b.book").write_text("*: dense\n")
    words = ["compare", "g.npy", "--python-codec", "mine.py", "--plan", TOPR + "index=py_gaps", "--repeat", 1, "--format", "json"]
    rows = json.loads(command(*words, "--sort", "bytes", folder=tmp_path))["rows"]
    assert [row["input"] for row in rows] == ["g.npy", "g.npy"]
    assert "--book does not go with it" in command(*words, "--book", "b.book", status=2, folder=tmp_path)
    assert "no.npy" in command(*words, "no.npy", status=2, folder=tmp_path)
    for name in ("encode", "convert"):
        printed = command(name, "g.npy", "--python-codec", "mine.py", "--output", "out", status=2, folder=tmp_path)
        assert "--python-codec requires compare" in printed and not (tmp_path / "out").exists()
    command(*words[:-2], "--output", "rows.csv", folder=tmp_path)
    assert (tmp_path / "rows.csv").read_text("utf-8").startswith("input,")


SHOWN = "wide report where sort pareto best best-by all against fail-if-worse help"  # options of saved rows: they go to the tool as they are


@needs_tool
def test_the_command_knows_each_option_of_compare():
    listed = set(re.findall(r"^ +(?:-\w, *)?(--[a-z-]+)", command("compare", "--help"), re.MULTILINE))
    of_python = {*_codec_command._OURS, *_codec_command._FLAGS, *_codec_command._MEASURING, *_codec_command._NOT_YET} - {"--python-codec"}
    assert listed == of_python | {f"--{name}" for name in SHOWN.split()}


@needs_tool
def test_the_command_measures_plans_of_a_file(x, tmp_path):
    (tmp_path / "mine.py").write_text(GUIDE)
    numpy.savez(tmp_path / "g.npz", a=x, b=x[:2000], c=x[:10])
    words = ["compare", tmp_path / "g.npz", "--per-tensor", "--python-codec", tmp_path / "mine.py", "--repeat", 1, "--plan",
             TOPR + "index=py_gaps", "--plan", TOPR + "index=golomb value=raw"]  # fmt: skip

    assert "--steps does not go with it" in command(*words, "--steps", "2", status=2)
    for option in (["--threads", 2], ["--ranks", 4], ["--segment-rows=500"], ["--link", "1Gb/s"], ["--limit", 9]):
        assert "py_gaps" in command(*words, *option, "--format", "csv"), option
    table = command(*words, "--sort", "bytes", "--format", "table")
    assert "py_gaps" in table and "in Python" in table
    rows = json.loads(command(*words, "--format", "json"))["rows"]
    assert [(row["tensor"], row["plan"].split()[-2:]) for row in rows] == [
        (tensor, plan.split()) for tensor in "ab" for plan in ("memcpy", "index=golomb value=raw", "index=py_gaps value=raw")]
    assert [row["r"] for row in rows if row["plan"] != "memcpy"] == [200, 200, 100, 100]
