"""deepreduce.grace from dicts of parameters, what it refuses, the shim's modules, and the checklist of docs/GRACE.md."""

import doctest
import importlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import types

import pytest

pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")
if not importlib.util.find_spec("torch"):
    pytest.skip("torch is missing: pip install torch", allow_module_level=True)

import torch  # noqa: E402
from grace_checks import lacks  # noqa: E402

import deepreduce  # noqa: E402
from deepreduce import grace  # noqa: E402
from deepreduce.grace import shim  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = os.pathsep.join([str(ROOT / "bindings/python"), str(ROOT / "bindings/grace")])


# ---- Parameters ---------------------------------------------------------------------------------


def test_defaults_are_graces():
    grc = grace.grace_from_params({})
    assert [type(part) for part in (grc.compressor, grc.memory, grc)] == [grace.NoneCompressor, grace.NoneMemory, grace.Allreduce]
    grc = grace.grace_from_params({"compressor": "topk", "communicator": "allgather"})
    assert str(grc.compressor.plan_for(1000)) == "sparsify=topr(count=300) index=golomb value=raw"
    grc = grace.grace_from_params({"compressor": "threshold", "communicator": "allgather"})
    assert "threshold(value=0.01)" in str(grc.compressor.plan_for(1000))
    grc = grace.grace_from_params({"compressor": "qsgd", "communicator": "allgather"})
    assert str(grc.compressor.plan_for(1000)) == str(deepreduce.Plan("index=all value=qsgd(levels=127,bucket=128)"))
    memory = grace.grace_from_params({"compressor": "dgc", "memory": "dgc", "communicator": "allgather"}).memory
    assert (memory.momentum, memory.gradient_clipping) == (0.9, False)
    memory = grace.grace_from_params({"memory": "residual", "beta": 0.5, "gamma": 2}).memory
    assert (memory.beta, memory.gamma) == (0.5, 2)


def test_a_state_that_was_loaded_is_saved_again_before_a_step():
    params = {"compressor": "signum", "communicator": "allgather"}
    first, second, third = (grace.grace_from_params(params).compressor for _ in range(3))
    for name in ("a", "b"):
        first.compress(torch.ones(50), name)
    second.load_state_dict(first.state_dict())
    second.compress(torch.ones(50), "a")  # and "b" has no step yet
    first.compress(torch.ones(50), "a")
    third.load_state_dict(second.state_dict())
    before, after = (communicator.state_dict()["states"] for communicator in (first, third))
    assert before.keys() == after.keys() == {"a", "b"} and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("bound, exponent", [(2e-10, -10), (0.02, -2), (0, None), (2, None), (1e-200, None)])
def test_the_error_bound_of_inceptionn_is_read_as_grace_reads_it(bound, exponent):
    params = {"compressor": "inceptionn", "communicator": "allgather", "error_bound": bound}
    if exponent is None:
        with pytest.raises(deepreduce.ArgumentError, match="error_bound is"):
            grace.grace_from_params(params).compressor
    else:
        plan = deepreduce.Plan(f"index=all value=inceptionn(error={2.0**exponent!r},classes=exponent)")
        assert str(grace.grace_from_params(params).compressor.plan_for(1000)) == str(plan)


@pytest.mark.parametrize(
    "params, words",
    [
        ({"compressor": "topl"}, "no compressor is called 'topl'; there are: none, fp16"),
        ({"memory": "all"}, "no memory is called 'all'; there are: none, residual"),
        ({"communicator": "ring"}, "no communicator is called 'ring'; there are: allreduce, allgather"),
        ({"compressor": "topk", "kernel": "fpga", "communicator": "allgather"}, "no kernel of topk is called 'fpga'"),
        ({"compressor": "topk", "deepreduce": "all", "communicator": "allgather"}, "deepreduce is 'all'; there are: None, value"),
        ({"compressor": "topk", "deepreduce": "index", "index": "bloo", "communicator": "allgather"}, "no index codec is called 'bloo'"),
        ({"compressor": "topk", "deepreduce": "index", "policy": "p9", "communicator": "allgather"}, "no policy is called 'p9'"),
        ({"compressor": "topk", "deepreduce": "index", "policy": ["p0"], "communicator": "allgather"}, "no policy is called ['p0']"),
        ({"compressor": "topk", "deepreduce": ["index"], "communicator": "allgather"}, "deepreduce is ['index']; there are: None"),
    ],
)
def test_an_unknown_name_is_an_error_that_lists_them(params, words):
    with pytest.raises(NotImplementedError) as caught:
        grace.deepreduce_from_params(params)
    assert words in str(caught.value) and isinstance(caught.value, deepreduce.ArgumentError)


def test_a_rate_that_is_no_number_is_named():
    with pytest.raises(deepreduce.ArgumentError, match="fpr is 'few', not a number"):
        grace.deepreduce_from_params({"compressor": "topk", "deepreduce": "index", "fpr": "few", "communicator": "allgather"})


@pytest.mark.parametrize("name", ["terngrad", "dgc", "signum", "BF-P0"])
def test_the_name_of_a_preset_is_its_plan(name):
    x, payloads = torch.randn(3000, generator=torch.Generator().manual_seed(1)), []
    for plan in (name, deepreduce.presets()[name], deepreduce.Plan(name)):
        grc = grace.grace_from_params({"compressor": "plan", "plan": plan, "communicator": "allgather"})
        payloads.append(grc.compressor.compress(x, "w")[0][0])
    assert all(torch.equal(payloads[0], payload) for payload in payloads)
    with pytest.raises(deepreduce.ArgumentError, match="is it 'terngrad'"):
        grace.grace_from_params({"compressor": "plan", "plan": "terngard", "communicator": "allgather"})


@pytest.mark.parametrize("sizes", [[4], [-1], [2**62], []])
def test_a_payload_that_lies_about_its_sizes_is_corrupt(sizes):
    blob = torch.cat([torch.tensor(sizes, dtype=torch.int64).view(torch.uint8), torch.zeros(3, dtype=torch.uint8)])
    like = [torch.zeros(5, dtype=torch.uint8)]
    arriving = grace.collectives.Arriving([], [blob, blob], like, "w", None, False, True, None)
    with pytest.raises(deepreduce.CorruptFrame, match="are not a payload of 1 tensors") as caught:
        arriving._split(1, blob)
    assert caught.value.frame == 1
    whole = torch.cat([torch.tensor([3]).view(torch.uint8), torch.arange(3, dtype=torch.uint8)])
    assert arriving._split(0, whole)[0].tolist() == [0, 1, 2]


def test_an_unknown_key_is_an_error_or_a_warning():
    params = {"compressor": "topk", "communicator": "allgather", "compres_ratio": 0.01}
    with pytest.raises(ValueError, match="'compres_ratio' is not known; is it 'compress_ratio'?"):
        grace.grace_from_params(params)
    with pytest.warns(UserWarning, match="'compres_ratio' is not known"):
        assert grace.grace_from_params(params, lenient=True).compressor.plan_for(10)


@pytest.mark.parametrize(
    "params, words",
    [
        ({"compressor": "topk", "compress_ratio": "much"}, "compress_ratio is 'much', not a number"),
        ({"compressor": "topk", "compress_ratio": 0}, "compress_ratio is 0.0, not above 0 and at most 1"),
        ({"compressor": "topk", "compress_ratio": 2}, "compress_ratio is 2.0"),
        ({"compressor": "qsgd", "quantum_num": 1.5}, "quantum_num is 1.5, not an integer"),
        ({"compressor": "qsgd", "quantum_num": float("inf")}, "quantum_num is inf, not an integer"),
        ({"compressor": "qsgd", "quantum_num": 40000}, "levels"),
        ({"compressor": "plan"}, "the key 'plan'"),
        ({"compressor": "plan", "plan": "value=nothing"}, "no value codec is called 'nothing'"),
        ({"compressor": "topk", "memory": "dgc", "gradient_clipping": -1}, "gradient_clipping is -1"),
        ({"compressor": "skcompress", "sparsifier": "all"}, "no sparsifier is called 'all'"),
        ({"compressor": "topk", "deepreduce": "index"}, "a key of deepreduce_from_params"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_it(params, words):
    with pytest.raises(deepreduce.ArgumentError) as caught:
        grace.grace_from_params({"communicator": "allgather", **params})
    assert words in str(caught.value)


@pytest.mark.parametrize("params", [None, "topk", 3])
@pytest.mark.parametrize("function", ["grace_from_params", "deepreduce_from_params"])
def test_parameters_that_are_no_dict_are_named(function, params):
    with pytest.raises(deepreduce.ArgumentError, match=f"params is {params!r}, not a dict of parameters"):
        getattr(grace, function)(params)


# ---- Pairs with wrong results --------------------------------------------------------------------

REFUSED = [
    *[({"compressor": name, "communicator": "allreduce"}, "cannot be added up: use communicator allgather")
      for name in ("topk", "threshold", "qsgd", "terngrad", "onebit", "signsgd", "signum", "dgc", "natural", "sketch")],
    ({"compressor": "none", "communicator": "alltoall"}, "each part is a frame"),
    ({"compressor": "randomk", "communicator": "alltoall"}, "each part is a frame"),
    ({"compressor": "signum", "communicator": "alltoall"}, "the plan's feedback"),
    ({"compressor": "powersgd", "communicator": "allgather"}, "allreduce"),
    ({"compressor": "none", "memory": "dgc"}, "sends all of them"),
    ({"compressor": "qsgd", "memory": "dgc", "communicator": "allgather"}, "sends all of them"),
    *[({"compressor": name, "memory": "residual", "communicator": "allgather"}, "only grows")
      for name in ("signsgd", "signum")],
    ({"compressor": "plan", "plan": "signsgd", "memory": "residual", "communicator": "allgather"}, "only grows"),
    ({"compressor": "topk", "memory": "efsignsgd", "communicator": "allgather"}, "only compressor efsignsgd"),
    ({"compressor": "efsignsgd", "memory": "residual", "communicator": "allgather"}, "memory efsignsgd of the same lr"),
    ({"compressor": "efsignsgd", "communicator": "allgather"}, "memory efsignsgd of the same lr"),
    ({"compressor": "topk", "memory": "powersgd", "communicator": "allgather"}, "compressor powersgd"),
    ({"compressor": "plan", "plan": "sparsify=topr(ratio=0.1) feedback=residual", "memory": "residual", "communicator": "allgather"},
     "the plan has a feedback of its own"),
]  # fmt: skip


@pytest.mark.parametrize("params, words", REFUSED)
def test_a_pair_that_gives_wrong_results_is_refused(params, words):
    if lacks(params["compressor"]) and params["compressor"] != "plan":
        pytest.skip(lacks(params["compressor"]))
    with pytest.raises(deepreduce.ArgumentError) as caught:
        grace.grace_from_params(params)
    assert "cannot be combined with" in str(caught.value) and words in str(caught.value)


def test_a_pair_is_looked_at_when_one_is_replaced():
    grc = grace.grace_from_params({"compressor": "none"})
    with pytest.raises(deepreduce.ArgumentError, match="cannot be added up"):
        grc.compressor = grace.Sparsifier(lambda d: "topr(ratio=0.1)")
    with pytest.raises(deepreduce.ArgumentError, match="sends all of them"):
        grc.memory = grace.DgcMemory(0.9)
    assert isinstance(grc.compressor, grace.NoneCompressor) and isinstance(grc.memory, grace.NoneMemory)
    with pytest.raises(deepreduce.ArgumentError, match="sends all elements"):
        grace.DeepReduce(grc.compressor, {})


def test_a_communicator_that_cannot_send_is_refused():
    class Mute(grace.Communicator):
        pass

    with pytest.raises(TypeError, match="Mute has neither send_receive nor async_send"):
        Mute(grace.NoneCompressor(), grace.NoneMemory())
    with pytest.raises(deepreduce.ArgumentError, match="init_process_group"):
        grace.grace_from_params({}).step(torch.ones(3), "w")


def test_powersgd_is_there_or_says_why_not():
    reason = lacks("powersgd")
    assert reason is None or "transform=lowrank" in reason


# ---- Wrappers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["leftmost", "random", "p0", "p2", "naive", "middle", "rightmost"])
def test_a_bloom_filter_has_the_policies_of_deepreduce(policy):
    x = torch.randn(20000, generator=torch.Generator().manual_seed(3))
    sparsifier = grace.Sparsifier(lambda d: f"topr(count={d // 100})")
    compressor = grace.IndexCompressor(sparsifier, {"policy": policy, "fpr": 0.01})
    y = compressor.decompress(*compressor.compress(x, "w"))
    sent = y != 0
    top = torch.zeros(20000, dtype=torch.bool)
    top[torch.topk(x.abs(), 200).indices] = True
    if policy == "p0":  # every positive, with its own value
        assert torch.equal(y[top], x[top]) and torch.equal(y[sent], x[sent]) and int(sent.sum()) > 200
    else:
        assert int(sent.sum()) == 200 and 0.3 < float((sent & top).sum()) / 200 < 1
    assert policy == "naive" or torch.equal(y[sent], x[sent])


def test_wrappers_nest_and_small_tensors_stay_as_they_are():
    sparsifier = grace.Sparsifier(lambda d: f"topr(count={max(1, d // 10)})")
    nested = grace.ValueCompressor(grace.IndexCompressor(sparsifier, {"index": "rle"}), {"value": "qsgd"})
    both = grace.DeepReduce(sparsifier, {"index": "rle", "value": "qsgd"})
    x = torch.randn(5000)
    assert (nested.index, nested.value) == (both.index, both.value) == ("rle", "qsgd(levels=127,bucket=512)")
    assert torch.equal(nested.compress(x, "w")[0][0], both.compress(x, "w")[0][0])
    small = x[:1000]
    y = both.decompress(*both.compress(small, "s"))
    assert int((y != 0).sum()) == 100 and torch.equal(y[y != 0], small[y != 0])


def test_an_inherently_sparse_gradient_gets_the_papers_false_positive_rate():
    x = torch.zeros(50000)
    x[::100] = torch.randn(500)
    grc = grace.deepreduce_from_params(
        {"compressor": "threshold", "threshold": 0.0, "communicator": "allgather", "deepreduce": "index", "index": "bloom", "policy": "p0"}
    )
    payload, ctx = grc.compressor.compress(x, "w")
    assert torch.equal(grc.compressor.decompress(payload, ctx), x)
    tensor = deepreduce.inspect(payload[0].numpy()).tensors[0]
    # log2(1 / fpr) / ln 2 bits an index, fpr = 0.1 * 500 / 50000
    assert abs(8 * tensor.index_size / 500 - 14.4) < 0.7 and 500 <= tensor.support < 600


# ---- The shim -----------------------------------------------------------------------------------


@pytest.fixture
def installed():
    shim.uninstall()
    shim.install()
    yield
    shim.uninstall()


EXPORTS = {
    "dist.communicator": {"allreduce": "Allreduce", "allgather": "Allgather", "broadcast": "Broadcast", "all_to_all": "AllToAll"},
    "torch.communicator": {"allreduce": "Allreduce", "allgather": "Allgather", "broadcast": "Broadcast"},
    "{}.memory": {"none": "NoneMemory()", "residual": "ResidualMemory(0.9, gamma=1.0)", "efsignsgd": "EFSignSGDMemory(0.1)",
                  "dgc": "DgcMemory(0.9, False, 2)", "powersgd": "PowerSGDMemory({}, 1)"},
    "{}.compressor": {
        "topk": "TopKCompressor(0.3)", "randomk": "RandomKCompressor(compress_ratio=0.3)", "threshold": "ThresholdCompressor(0.01)",
        "dgc": "DgcCompressor(0.3)", "qsgd": "QSGDCompressor(127, bucket_size=128)", "terngrad": "TernGradCompressor()",
        "signsgd": "SignSGDCompressor()", "signum": "SignumCompressor(momentum=0.9)", "efsignsgd": "EFSignSGDCompressor(0.1)",
        "onebit": "OneBitCompressor()", "natural": "NaturalCompressor()", "fp16": "FP16Compressor()", "none": "NoneCompressor()",
        "powersgd": "PowerSGDCompressor(rank=1, use_memory=False, world_size=1)",
    },
    "{}": {"helper": "grace_from_params tensor_bits timer volume"},
}  # fmt: skip


def test_the_shim_has_graces_modules_and_constructors(installed):
    import grace_dl

    assert grace_dl.__version__ == "1.0" and shim.installed()
    for place, modules in EXPORTS.items():
        for flavour in ("dist", "torch") if "{}" in place else ("",):
            for name, names in modules.items():
                module = importlib.import_module(f"grace_dl.{place.format(flavour)}.{name}")
                for signature in names.split(" ") if name == "helper" else [names]:
                    found = getattr(module, signature.partition("(")[0])
                    if place.endswith(("compressor", "memory")):
                        assert isinstance(found, type)
                        try:
                            made = eval(signature, vars(module))
                        except (deepreduce.ArgumentError, deepreduce.Unsupported) as error:
                            assert "codec is called" in str(error) or "transform" in str(error)
                            continue
                        base = "Compressor" if place.endswith("compressor") else "Memory"
                        assert isinstance(made, getattr(importlib.import_module(f"grace_dl.{flavour}"), base))
    from grace_dl.dist.communicator.allgather import Allgather
    from grace_dl.dist.communicator.broadcast import Broadcast
    from grace_dl.dist.compressor.topk import TopKCompressor
    from grace_dl.dist.memory.residual import ResidualMemory

    grc = Allgather(TopKCompressor(0.3, kernel="cupy"), ResidualMemory(), 2)
    assert grc.world_size == 2 and grc.memory.residuals == {}
    assert Broadcast(TopKCompressor(0.3), ResidualMemory(), 2, 1).rank == 1
    with pytest.raises(TypeError, match="RandomKCompressor accepts compress_ratio"):
        importlib.import_module("grace_dl.dist.compressor.randomk").RandomKCompressor(0.1, 0.2)


def test_the_shim_takes_no_installed_grace_away(monkeypatch):
    shim.uninstall()
    other = types.ModuleType("grace_dl")
    other.__file__ = "/site/grace_dl/__init__.py"
    monkeypatch.setitem(sys.modules, "grace_dl", other)
    with pytest.raises(deepreduce.ArgumentError, match=r"grace_dl exists already \(/site/grace_dl.*force=True"):
        shim.install()
    assert sys.modules["grace_dl"] is other
    shim.install(force=True)
    assert sys.modules["grace_dl"] is not other
    shim.install()  # twice is fine
    shim.uninstall()
    assert not [name for name in sys.modules if name.partition(".")[0] == "grace_dl"]


def test_horovod_is_refused_by_name(installed):
    with pytest.raises(ImportError, match="patched Horovod"):
        importlib.import_module("grace_dl.tensorflow")
    with pytest.raises(ImportError, match="patched Horovod"):
        importlib.import_module("grace_dl.tensorflow.helper")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("grace_dl.dist.compressor.no_such_thing")


def test_a_users_subclass_of_graces_classes_works(installed):
    from grace_dl.dist import Compressor
    from grace_dl.dist.communicator.allgather import Allgather
    from grace_dl.dist.memory.none import NoneMemory

    class Mine(Compressor):
        def __init__(self):
            super().__init__(average=False, tensors_size_are_same=False)

        def compress(self, tensor, name):
            return [tensor], None

        def decompress(self, tensors, ctx):
            return tensors[0]

    assert Allgather(Mine(), NoneMemory(), 2).compressor.average is False


def test_a_grace_beside_the_script_is_not_hidden(tmp_path):
    (tmp_path / "grace_dl").mkdir()
    (tmp_path / "grace_dl/__init__.py").touch()
    (tmp_path / "train.py").write_text("import grace_dl; print(grace_dl.__version__)")
    found = [
        subprocess.run(
            [sys.executable, "-m", "deepreduce.grace.shim", *force, str(tmp_path / "train.py")],
            env={**os.environ, "PYTHONPATH": PACKAGES}, capture_output=True, text=True,
        )
        for force in ([], ["--force"])
    ]  # fmt: skip
    assert found[0].returncode == 1 and "grace_dl exists already" in found[0].stderr
    assert (found[1].returncode, found[1].stdout) == (0, "1.0\n"), found[1].stderr


def test_without_deepreduce_grace_the_error_names_what_to_install():
    done = subprocess.run([sys.executable, "-c", "import deepreduce.grace"], env={**os.environ, "PYTHONPATH": str(ROOT / "bindings/python")}, capture_output=True, text=True)
    assert done.returncode == 1 and "ModuleNotFoundError: deepreduce.grace is a package of its own: pip install deepreduce-grace" in done.stderr


def test_both_names_are_one_package():
    import deepreduce_grace.shim

    assert deepreduce.grace.grace_from_params is deepreduce_grace.grace_from_params
    for name in ("collectives", "pairs", "method_table"):
        module = importlib.import_module(f"deepreduce.grace.{name}")
        assert module is sys.modules[f"deepreduce_grace.{name}"] is getattr(deepreduce.grace, name)
    assert importlib.import_module("deepreduce.grace.shim").install is deepreduce_grace.shim.install
    files = {path.stem for path in pathlib.Path(deepreduce_grace.__file__).parent.glob("*.py")} - {"__init__", "shim"}
    assert files == {name.rpartition(".")[2] for name in sys.modules if name.startswith("deepreduce.grace.")} - {"shim"}


def test_neither_the_package_nor_torch_is_needed_where_grace_is_not():
    code = "import deepreduce, sys; assert 'torch' not in sys.modules and 'deepreduce.grace' not in sys.modules and 'grace_dl' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": PACKAGES, "PATH": "/usr/bin"})


# ---- The page -----------------------------------------------------------------------------------

LINES = (
    [f"A{i}" for i in range(1, 14)] + [f"C{i}" for i in range(1, 23)] + [f"M{i}" for i in range(1, 10)]
    + [f"N{i}" for i in range(1, 14)] + [f"F{i}" for i in range(1, 16)] + [f"D{i}" for i in range(1, 19)]
)  # fmt: skip


def test_every_line_of_the_checklist_has_a_test_or_a_reason():
    page = (ROOT / "docs/GRACE.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| ([ACDFMN]\d+) \| [^|]* \| ([^|]*) \|$", page, flags=re.M)
    assert [line for line, _ in found] == LINES
    rows = dict(found)
    names = set()
    for path in (path for folder in ("python", "frameworks", "reference") for path in (ROOT / "tests" / folder).glob("*.py")):
        names |= set(re.findall(r"^def (\w+)\(", path.read_text(encoding="utf-8"), flags=re.M))
    if not (ROOT / "tests/frameworks").is_dir():
        del rows["F6"], rows["F7"]
    for line, cell in rows.items():
        named = {name for name in re.findall(r"`(\w+)`", cell) if "_" in name} - {"send_step", "receive_step"}
        assert named or cell.startswith(("refused: ", "not done: ")), line
        assert named <= names, (line, named - names)


def test_the_page_has_every_method_with_its_plan():
    page = (ROOT / "docs/GRACE.md").read_text(encoding="utf-8")
    for name, method in grace.METHODS.items():
        assert f"| `{name}` |" in page and f"`{method.plan}`" in page, name


@pytest.mark.parametrize("module", ["factory", "wrappers"])
def test_examples_in_docstrings_do_what_they_say(module):
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testmod(importlib.import_module(f"deepreduce.grace.{module}"), optionflags=options)
    assert tried and not failed
