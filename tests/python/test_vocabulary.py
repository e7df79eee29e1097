"""One word for one thing in Python: the rules, over the source of both packages, and the old spellings, each with its new one.

An old spelling works in this version as the new one does, and warns once at each line that uses it.
"""

import ast
import copy
import functools
import pathlib
import sys
import types
import warnings

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce.control import AdaptiveExchange, Controller  # noqa: E402
from deepreduce.exchange import Exchange, Loopback  # noqa: E402
from deepreduce.transform import Transform  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2] / "bindings"
SOURCES = sorted(path for package in ("python/deepreduce", "grace/deepreduce_grace") for path in (ROOT / package).rglob("*.py"))
PLAN, TOP = "index=all value=raw", "sparsify=topr(count=2) feedback=residual index=golomb value=raw"
DRAWS = "sparsify=random(count=2) index=raw value=raw"
LOW = "transform=lowrank(rank=1) feedback=residual"
X = numpy.arange(1, 9, dtype=numpy.float32)


# ---- Old spellings ------------------------------------------------------------------------------


def one_rank(plan=TOP, **options):
    """An exchange of one rank, its loopback alive with it."""
    return Exchange(X.copy(), plan, Loopback(1).transport(0), **options)


def adaptive(**options):
    return AdaptiveExchange(X.copy(), [None, TOP], "fit(target_ms=1)", Loopback(1).transport(0), **options)


def sent(exchange, *arguments, **named):
    exchange.start(*arguments, **named)
    while not exchange.advance():
        pass
    return exchange.out


def used_state():
    state = deepreduce.State(X, TOP)
    deepreduce.encode(X, TOP, state=state)
    return state


def loaded(made, state):
    made.load_state_dict(state)
    return made


def round_of(transform):
    transform.all_reduce([numpy.outer(X, X)], lambda factor: None)
    return transform


def controller():
    control = Controller("fit(target_ms=1)", 3)
    control.observe(1000, 1.0)
    control.decide(1, [control.report()])
    return control


def restarted(call):
    control = controller()
    call(control)
    return control.info


def replayed(call):
    control = Controller("fit(target_ms=1)", 3)
    call(control)
    return control.info


def needed(module, how):
    """Skips where the module is missing. (importorskip sets filters of warnings at each call.)"""
    if module not in sys.modules:
        pytest.importorskip(module, reason=f"{module} is missing: {how}")


def called(function):
    """In a group of one rank of torch."""
    needed("torch", "./dev setup")
    import torch
    import torch.distributed as dist

    import deepreduce.torch

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return function(torch, deepreduce.torch)


def means(torch, make):
    x = [torch.arange(1.0, 9.0), torch.arange(1.0, 2001.0)]
    reduce = make(x)
    if reduce is not None:
        reduce(x)
    return [array.numpy() for array in x]


def of_mpi(function):
    needed("mpi4py", "pip install mpi4py mpich")
    import deepreduce.mpi

    return function(deepreduce.mpi)


def of_jax(function):
    needed("jax", "./dev test frameworks")
    import deepreduce.jax

    return function(deepreduce.jax)


def of_flower(function):
    needed("flwr", "./dev test frameworks")
    import deepreduce.flower
    from flwr.serverapp.strategy import FedAvg

    return function(deepreduce.flower, FedAvg())


def of_lightning(function):
    needed("lightning", "./dev test frameworks")
    import deepreduce.lightning

    return function(deepreduce.lightning)


def of_keras(function):
    needed("tensorflow", "./dev test frameworks")
    import keras

    import deepreduce.keras

    return function(deepreduce.keras, keras.optimizers.SGD(0.1))


def of_accelerate(function):
    needed("torch", "./dev setup")
    import deepreduce.accelerate

    return function(deepreduce.accelerate)


ALONE = types.SimpleNamespace(num_processes=1)  # an Accelerator of one process: nothing to compress
BELOW = ("{}(bypass=…)", "{}(dense_below=…)")
LIGHT, HOOK = "sparsify=topr(count=1) index=golomb value=raw", "sparsify=topr(ratio=0.5) index=golomb value=raw"


def trainer():
    return types.SimpleNamespace(add_callback=lambda callback: None, train=lambda *_: None)


# (old words, new words, a call of the old spelling, the same by the new one)
RENAMED = [
    ("State(plan, tensors)", "State(tensors, plan)", lambda: deepreduce.State(TOP, X), lambda: deepreduce.State(X, TOP)),
    ("State.for_(plan, tensors)", "State.of(tensors, plan)", lambda: deepreduce.State.for_(TOP, [X, X]), lambda: deepreduce.State.of([X, X], TOP)),
    ("State.from_residual(plan, tensors)", "State.from_residual(tensors, plan)", lambda: deepreduce.State.from_residual(TOP, X, X), lambda: deepreduce.State.from_residual(X, TOP, X)),
    ("State.check(plan, tensors)", "State.check(tensors, plan)", lambda: used_state().check(TOP, X), lambda: used_state().check(X, TOP)),
    ("State.to_bytes()", "State.state_dict()", lambda: used_state().to_bytes(), lambda: used_state().state_dict()["state"].tobytes()),
    ("State.from_bytes(data)", "State(tensors, plan).load_state_dict", lambda: deepreduce.State.from_bytes(used_state().memory.tobytes()),
     lambda: loaded(deepreduce.State(X, TOP), used_state().state_dict())),
    ("the seed of Batch.encode", "seed= of the constructor", lambda: deepreduce.Batch(X, DRAWS).encode(X, seed=3), lambda: deepreduce.Batch(X, DRAWS, seed=3).encode(X)),  # type: ignore[arg-type]
    ("the seed of Bound.encode", "seed= of the constructor", lambda: deepreduce.Batch(X, DRAWS).bind(X).encode(seed=3), lambda: deepreduce.Batch(X, DRAWS, seed=3).bind(X).encode()),  # type: ignore[arg-type]
    ("the seed of Exchange.start", "seed= of the constructor", lambda: sent(one_rank(DRAWS), 1, 3), lambda: sent(one_rank(DRAWS, seed=3), 1)),
    ("the seed of AdaptiveExchange.start", "seed= of the constructor", lambda: sent(adaptive(), seed=3), lambda: sent(adaptive(seed=3))),
    ("info()", "the property info", lambda: one_rank().info()._replace(memory=0), lambda: one_rank().info._replace(memory=0)),
    ("Transform.state()", "Transform.state_dict()", lambda: round_of(Transform([(8, 8)], LOW)).state(), lambda: round_of(Transform([(8, 8)], LOW)).state_dict()["state"]),
    ("Transform.load_state(state)", "Transform.load_state_dict", lambda: load_old(), lambda: loaded(Transform([(8, 8)], LOW), round_of(Transform([(8, 8)], LOW)).state_dict()).state_dict()),
    ("Controller.restart()", "Controller.reset()", lambda: restarted(lambda control: control.restart()), lambda: restarted(lambda control: control.reset())),
    ("Controller.trace", "Controller.state_dict()", lambda: controller().trace, lambda: controller().state_dict()["trace"]),
    ("Controller.replay(trace)", "Controller.load_state_dict", lambda: replayed(lambda control: control.replay(controller().state_dict()["trace"])),
     lambda: replayed(lambda control: control.load_state_dict(controller().state_dict()))),
    ("the seed of AllReduce.start", "seed= of the constructor", lambda: of_mpi(lambda mpi: started(mpi.AllReduce(X, DRAWS), 1, 3)), lambda: of_mpi(lambda mpi: started(mpi.AllReduce(X, DRAWS, seed=3), 1))),
    ("the seed of AllReduce.__call__", "seed= of the constructor", lambda: of_mpi(lambda mpi: mpi.AllReduce(X, DRAWS)(1, seed=3)), lambda: of_mpi(lambda mpi: mpi.AllReduce(X, DRAWS, seed=3)(1))),
    (*(words.format("AllReduce") for words in BELOW), lambda: called(lambda torch, dr: means(torch, lambda x: dr.AllReduce(HOOK, bypass=100, flat=False))),
     lambda: called(lambda torch, dr: means(torch, lambda x: dr.AllReduce(HOOK, dense_below=100, flat=False)))),
    (*(words.format("all_reduce") for words in BELOW), lambda: called(lambda torch, dr: means(torch, lambda x: dr.all_reduce(x, HOOK, bypass=100, flat=False))),
     lambda: called(lambda torch, dr: means(torch, lambda x: dr.all_reduce(x, HOOK, dense_below=100, flat=False)))),
    (*(words.format("DDPHook") for words in BELOW), lambda: called(lambda torch, dr: dr.DDPHook(HOOK, bypass=100)._dense_below), lambda: called(lambda torch, dr: dr.DDPHook(HOOK, dense_below=100)._dense_below)),
    (*(words.format("ReduceScatter") for words in BELOW), lambda: called(lambda torch, dr: dr.ReduceScatter(HOOK, bypass=100)._dense_below), lambda: called(lambda torch, dr: dr.ReduceScatter(HOOK, dense_below=100)._dense_below)),
    (*(words.format("Codec") for words in BELOW), lambda: of_jax(lambda jax: jax.Codec([X], LIGHT, bypass=100).row_size), lambda: of_jax(lambda jax: jax.Codec([X], LIGHT, dense_below=100).row_size)),
    ("Codec(like=…)", "Codec(tensors=…)", lambda: of_jax(lambda jax: jax.Codec(plan=LIGHT, like=[X]).row_size), lambda: of_jax(lambda jax: jax.Codec(plan=LIGHT, tensors=[X]).row_size)),
    ("Codec(plan, tensors)", "Codec(tensors, plan)", lambda: of_jax(lambda jax: jax.Codec(LIGHT, [X]).row_size), lambda: of_jax(lambda jax: jax.Codec([X], LIGHT).row_size)),
    (*(words.format("compress") for words in BELOW), lambda: of_jax(lambda jax: jax.compress(LIGHT, bypass=100).init([X]).memory), lambda: of_jax(lambda jax: jax.compress(LIGHT, dense_below=100).init([X]).memory)),
    (*(words.format("compress") for words in BELOW), lambda: of_keras(lambda keras, sgd: keras.compress(sgd, LIGHT, bypass=100).compression._options), lambda: of_keras(lambda keras, sgd: keras.compress(sgd, LIGHT, dense_below=100).compression._options)),
    (*(words.format("compress") for words in BELOW), lambda: of_accelerate(lambda accelerate: accelerate.compress(ALONE, None, LIGHT, bypass=100)), lambda: of_accelerate(lambda accelerate: accelerate.compress(ALONE, None, LIGHT, dense_below=100))),
    (*(words.format("compress_trainer") for words in BELOW), lambda: of_transformers(bypass=100), lambda: of_transformers(dense_below=100)),
    (*(words.format("Compressed") for words in BELOW), lambda: of_flower(lambda flower, strategy: flower.Compressed(strategy, LIGHT, bypass=100)._meta), lambda: of_flower(lambda flower, strategy: flower.Compressed(strategy, LIGHT, dense_below=100)._meta)),
    (*(words.format("Compress") for words in BELOW), lambda: of_lightning(lambda lightning: lightning.Compress(LIGHT, bypass=100)._options), lambda: of_lightning(lambda lightning: lightning.Compress(LIGHT, dense_below=100)._options)),
]  # fmt: skip


def load_old():
    made = Transform([(8, 8)], LOW)
    made.load_state(round_of(Transform([(8, 8)], LOW)).state_dict()["state"])
    return made.state_dict()


def started(mean, *arguments):
    mean.start(*arguments)
    return copy.deepcopy(mean.wait())


def of_transformers(**options):
    needed("transformers", "./dev test frameworks")
    return of_accelerate(lambda accelerate: accelerate.compress_trainer(trainer(), LIGHT, **options)._options)


def plain(value):
    """A result in a form that can be compared."""
    if isinstance(value, deepreduce.State):
        return value.memory.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return numpy.asarray(value).tolist() if hasattr(value, "__array__") else value


@pytest.mark.parametrize("old, new, by_old, by_new", RENAMED, ids=[f"{i} {old}" for i, (old, *_) in enumerate(RENAMED)])
def test_an_old_spelling_works_and_warns_once_a_line(old, new, by_old, by_new):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*until version 0.4")
        expected = plain(by_new())  # (and what this imports has been imported: an import that sets filters forgets what was shown)
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("default", DeprecationWarning)
        found = by_old()
        by_old()
    met = [warning for warning in met if "until version 0.4" in str(warning.message)]
    assert len(met) == 1 and met[0].filename == __file__, [(str(warning.message), warning.filename) for warning in met]
    assert str(met[0].message).startswith(f"{old} is deprecated, use {new}"), str(met[0].message)
    assert plain(found) == expected


def test_old_and_new_together_are_refused():
    with pytest.raises(TypeError, match="not both"):
        called(lambda torch, dr: dr.AllReduce(HOOK, bypass=1, dense_below=1))
    with pytest.raises(TypeError, match="unexpected argument: nonsense"):
        deepreduce.Batch(X, PLAN).encode(X, nonsense=1)
    with pytest.raises(TypeError, match="unexpected argument: more"):
        one_rank().start(1, 2, 3)


def test_every_old_spelling_is_in_the_table():
    """The names that the source passes to _renamed's functions, beside the rows above."""
    found = set()
    for path in SOURCES:
        for outer, function in functions(ast.parse(path.read_text(encoding="utf-8"))):
            name = outer if function.name == "__init__" else f"{outer}.{function.name}" if outer else function.name
            for call in [node for node in ast.walk(function) if isinstance(node, ast.Call)]:
                kind, texts = getattr(call.func, "id", ""), [node.value for node in call.args if isinstance(node, ast.Constant)]
                if kind == "argument":
                    found.add(f"{name}({texts[0]}=…)")
                elif kind == "plan_first":
                    found.add(f"{name}(plan, tensors)")
                elif kind == "warn" and texts and "." in texts[0]:
                    found.add(texts[0])
                elif kind == "seed_of":
                    found.add(f"the seed of {next(text for text in texts if isinstance(text, str))}")
    found.discard("the seed of seed= of the constructor")
    assert found | {"info()"} == {old for old, *_ in RENAMED}


# ---- What was saved goes on ---------------------------------------------------------------------


@pytest.mark.parametrize("plan", [TOP, TOP.replace("residual", "dgc"), f"{TOP} exchange=owner", LOW])
def test_an_exchange_goes_on_from_its_state_dict_with_the_same_bits(plan):
    gradient = lambda step, rank: numpy.random.default_rng([step, rank]).standard_normal((8, 6)).astype(numpy.float32)

    def run(loopback, ranks, steps):
        found = []
        for step in steps:
            for rank, exchange in enumerate(ranks):
                exchange.rebind(gradient(step, rank))
                exchange.start()
            assert loopback.run(ranks) == [None, None]
            found.append([rank.out.tobytes() for rank in ranks])
        return found

    def made():
        loopback = Loopback(2)
        return loopback, [Exchange(gradient(0, rank), plan, loopback.transport(rank), seed=5) for rank in range(2)]

    loopback, ranks = made()
    run(loopback, ranks, range(3))
    saved = [rank.state_dict() for rank in ranks]
    assert saved[0]["step"] == 3 and set(saved[0]) > {"step"}
    again, fresh = made()
    for exchange, state in zip(fresh, saved):
        exchange.load_state_dict(state)
    assert run(again, fresh, range(3, 6)) == run(loopback, ranks, range(3, 6))
    assert plain(fresh[0].state_dict()) == plain(ranks[0].state_dict())


def test_a_state_dict_of_another_exchange_is_refused_and_changes_nothing():
    exchange, other = one_rank(), Exchange(numpy.ones(5, numpy.float32), TOP, Loopback(1).transport(0))
    sent(exchange)
    before = plain(exchange.state_dict())
    wrong = numpy.full(8, numpy.nan, numpy.float32)
    sent(other)
    for state, words in (
        (other.state_dict(), "has 5 elements, the tensor 8"),
        ({"step": 1, "own": []}, "not a list of 1 arrays"),
        ({"step": 1, "own": [wrong]}, "not finite"),
        ({"step": -1}, "step of the state"),
        ({"step": 1, "own": [X], "momentum": [X]}, "must be 0 where the plan keeps none"),
        ({"own": [X]}, "'step'"),
        ([X], "dict"),
    ):
        with pytest.raises(deepreduce.ArgumentError, match=words):
            exchange.load_state_dict(state)
        assert plain(exchange.state_dict()) == before


def test_an_adaptive_exchange_goes_on_at_its_rung_with_its_residual():
    def step(exchange):
        exchange.start()
        while not exchange.advance():
            pass
        exchange.decide([exchange.report()]) if exchange.due else None
        return exchange.out.tobytes()

    first, second = (AdaptiveExchange(X.copy(), [None, TOP], "fit(target_ms=1)", Loopback(1, latency=0.1).transport(0)) for _ in range(2))
    first.control.observe(10**6, 1.0)
    first.control.decide(1, [first.control.report()])
    first._move(first.control.rung)
    [step(first) for _ in range(2)]
    second.load_state_dict(first.state_dict())
    assert second.rung == first.rung == 1 and second.steps == 2
    assert second.residual().any() and plain(second.state_dict()) == plain(first.state_dict())
    before = plain(second.state_dict())
    with pytest.raises(deepreduce.ArgumentError):
        second.load_state_dict({**first.state_dict(), "exchange": {"step": 0, "own": [X[:3]]}})
    assert plain(second.state_dict()) == before


# ---- The rules, over all functions of the source ------------------------------------------------

TENSORS = {"x", "tensors", "tensor", "like", "shapes", "inputs", "gradients", "model", "trainer", "optimizer", "old", "new"}
PLANS = {"plan", "plans", "ladder", "book"}
SAVERS = {"state", "load_state", "get_state", "set_state", "to_bytes", "from_bytes", "save", "load", "dump", "restore", "trace", "restart", "checkpoint"}


def functions(tree):
    """(name of the class around it, function) of all but those within functions."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield "", node
        elif isinstance(node, ast.ClassDef):
            yield from ((node.name, method) for method in node.body if isinstance(method, ast.FunctionDef))


def exported(path):
    """The names of `__all__` in the modules of a file's folder: what a private module there has for users. And bases of theirs."""
    found = {"Exchange", "Saved"} if path.parent.name == "torch" else set()
    for beside in path.parent.glob("*.py"):
        for node in ast.parse(beside.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                found |= {element.value for element in node.value.elts}
    return found


@functools.cache
def public_functions():
    """[(where, its class, function)]: of no private class, and of no private name but special ones. Whatever framework is here."""
    found = []
    for path in SOURCES:
        inside = [word for word in path.relative_to(ROOT).parts if word.startswith("_") and word != "__init__.py"]
        of_all = exported(path) if inside else None
        for outer, function in functions(ast.parse(path.read_text(encoding="utf-8"))):
            special = function.name.startswith("__") and function.name.endswith("__")
            if outer.startswith("_") or (function.name.startswith("_") and not special):
                continue
            if of_all is None or (outer or function.name) in of_all:
                found.append((f"{path.relative_to(ROOT)}:{function.lineno} {outer}.{function.name}", outer, function))
    return found


def names_of(function):
    return [argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def decorators(function):
    return {getattr(getattr(decorator, "func", decorator), "id", "") for decorator in function.decorator_list}


def is_alias(function):
    return any(isinstance(node, ast.Call) and getattr(node.func, "id", "") == "warn" for node in ast.walk(function))


def test_there_is_source_to_look_at():
    assert len(public_functions()) > 500


def test_small_tensors_are_below_dense_below():
    for path in SOURCES:
        if path.name in ("_renamed.py",):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = getattr(node, "arg", None) or getattr(node, "attr", None) or getattr(node, "id", None) or ""
            assert "bypass" not in str(named), f"{path.relative_to(ROOT)}:{node.lineno}: {named}: the word is dense_below"


def test_tensors_come_before_the_plan():
    wrong = []
    for where, _, function in public_functions():
        names = names_of(function)
        plans = [names.index(name) for name in names if name in PLANS]
        tensors = [names.index(name) for name in names if name in TENSORS]
        if plans and tensors and min(plans) < min(tensors) and not is_alias(function):
            wrong.append(where)
    assert not wrong, f"(tensors, plan) is the order: {wrong}"


def test_what_is_saved_is_a_state_dict():
    wrong, pairs = [], {}
    for where, outer, function in public_functions():
        if outer and function.name in SAVERS and not is_alias(function):
            wrong.append(where)
        if function.name in ("state_dict", "load_state_dict"):
            pairs.setdefault((where.split(":")[0], outer), set()).add(function.name)
    assert not wrong, f"state_dict and load_state_dict save and load: {wrong}"
    # (Those two add to the load_state_dict of their base.)
    alone = [key for key, names in pairs.items() if len(names) < 2 and key[1] not in ("DDPHook", "ResidualMemory")]
    assert len(pairs) > 10 and not alone, alone


def test_info_is_a_property():
    wrong = [where for where, outer, function in public_functions() if function.name == "info" and "property" not in decorators(function)]
    assert not wrong, f"info is a property: {wrong}"


def test_a_seed_is_the_constructors():
    """But of functions that have no object: encode, all_reduce."""
    wrong = []
    for where, outer, function in public_functions():
        if outer and "seed" in names_of(function) and function.name not in ("__init__", "__new__"):
            wrong.append(where)
    assert not wrong, f"seed belongs to the constructor: {wrong}"


def test_the_tree_has_no_old_spelling():
    """The sources that run in other processes, where a warning would not be seen: examples, documents, ranks of tests, benchmarks."""
    root = ROOT.parent
    wrong = []
    for path in (*root.glob("examples/*.py"), *root.glob("tests/**/*.py"), *root.glob("bench/**/*.py"), *root.glob("docs/*.md"), root / "README.md"):
        if path.name == pathlib.Path(__file__).name:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if any(old in line for old in ("bypass=", "`bypass`", "State.for_(", "State.from_bytes(", ".info()", ".load_state(tr", "transform.state()", "State(plan", "State(TOP", "State(KEEP", "control.trace")):
                wrong.append(f"{path.relative_to(root)}:{number}: {line.strip()}")
    assert not wrong, wrong


