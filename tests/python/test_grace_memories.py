"""What memories and compressors of deepreduce.grace keep, in one process: of what was sent, how much, and of which state."""

import importlib.util

import pytest

pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")
if not importlib.util.find_spec("torch"):
    pytest.skip("torch is missing: pip install torch", allow_module_level=True)

import torch  # noqa: E402
from test_grace_methods import make, normal, there_and_back  # noqa: E402

import deepreduce  # noqa: E402
from deepreduce import grace  # noqa: E402
from deepreduce_grace import pairs  # noqa: E402


def gathered(**params):
    return grace.grace_from_params({"communicator": "allgather", "plan": "sparsify=topr(ratio=0.1) feedback=residual", **params})


def remember_step(grc, x, name="w"):
    """A step of one rank, less the exchange: (payload, ctx)."""
    compensated = grc.memory.compensate(x, name)
    payload, ctx = grc.compressor.compress(compensated, name)
    grc.memory.update(compensated, name, grc.compressor, payload, ctx)
    return payload, ctx


# ---- Of what was transmitted --------------------------------------------------------------------


def test_the_residual_is_of_what_was_transmitted():
    """Lossy values and false positives, too."""
    for wrapper in ({"index": "bloom", "policy": "p1", "fpr": 0.05, "value": "qsgd"}, {"index": "rle", "value": "polyfit"}):
        compressor = grace.DeepReduce(make("topk", compress_ratio=0.1), wrapper)
        memory, x = grace.ResidualMemory(), normal(5000)
        payload, ctx = compressor.compress(memory.compensate(x, "w"), "w")
        memory.update(x, "w", compressor, payload, ctx)
        assert torch.allclose(memory.residuals["w"], x - compressor.decompress(payload, ctx), atol=1e-6)
        assert not torch.allclose(memory.residuals["w"], x - there_and_back(make("topk", compress_ratio=0.1), x))


class Interrupted(grace.Communicator):
    """Ctrl-C while it sends, or while it waits for the others."""

    def __init__(self, half, *parts):
        super().__init__(*parts)
        self.half = half

    def async_send(self, tensors, name):
        if self.half == "send":
            raise KeyboardInterrupt
        return tensors, name

    def wait_receive(self, handles, ctx):
        raise KeyboardInterrupt


@pytest.mark.parametrize("half", ["send", "wait"])
def test_an_interrupted_step_leaves_what_was_not_received_in_the_memory(half):
    grc = Interrupted(half, make("topk", compress_ratio=0.1), grace.ResidualMemory())
    x = normal(5000)
    with pytest.raises(KeyboardInterrupt):
        grc.step(x, "w")
    assert torch.allclose(grc.memory.residuals["w"], x)


LOSSY = {
    "qsgd": lambda: grace.DeepReduce(make("topk", compress_ratio=0.1), {"index": "rle", "value": "qsgd"}),
    "polyfit": lambda: grace.DeepReduce(make("topk", compress_ratio=0.1), {"index": "bloom", "fpr": 0.05, "value": "polyfit"}),
    "tbq": lambda: make("tbq", threshold=0.5), "adaq": lambda: make("adaq"), "skcompress": lambda: make("skcompress"),
    "topk": lambda: make("topk", compress_ratio=0.1), "dgc": lambda: make("dgc", compress_ratio=0.1),
    "a pair": lambda: pairs.DgcCompressor(0.1),
}  # fmt: skip


@pytest.mark.parametrize("kind", LOSSY)
def test_dgc_keeps_what_lossy_values_leave(kind):
    """Without momentum what was sent and what is kept are what was given; where something was sent the momentum is 0."""
    compressor, memory, x = LOSSY[kind](), grace.DgcMemory(0.0), normal(5000)
    total = torch.zeros(5000)
    for _ in range(20):
        velocity = memory.compensate(x, "w")
        payload, ctx = compressor.compress(velocity, "w")
        memory.update(velocity, "w", compressor, payload, ctx)
        sent = compressor.decompress(payload, ctx)
        total += sent
        assert not memory.residuals["w"][sent != 0].any() and memory.residuals["w"][sent == 0].any()
    assert torch.allclose(total + memory.gradients["w"], 20 * x, atol=1e-3)
    if kind in ("topk", "dgc", "a pair"):  # exact values leave nothing
        assert not memory.gradients["w"][sent != 0].any()
    else:
        assert memory.gradients["w"][sent != 0].any()


@pytest.mark.parametrize("method", ["topk", "threshold", "none", "randomk"])
@pytest.mark.parametrize("kind", [grace.ResidualMemory, grace.DgcMemory])
def test_an_infinity_is_not_kept_whether_it_was_sent_or_not(method, kind):
    compressor, memory = make(method, compress_ratio=0.1), kind()
    for bad in (float("inf"), float("nan"), 1.0):
        x = normal(100)
        x[::3] *= bad  # more than topk sends
        compensated = memory.compensate(x, "w")
        payload, ctx = compressor.compress(compensated, "w")
        for keep in (lambda given: memory.update(given, "w", compressor, payload, ctx),
                     lambda _: memory.take_back("w", compressor, payload, ctx)):  # fmt: skip
            keep(compensated)
            assert all(getattr(memory, slot)["w"].isfinite().all() for slot in memory._slots)
    assert compensated.isfinite().all()  # the step behind an overflow


def test_a_residual_that_16_bits_cannot_hold_is_not_kept():
    memory, compressor = grace.ResidualMemory(dtype=torch.float16), make("topk", compress_ratio=0.1)
    x = torch.cat([torch.full((10,), 2e6), torch.full((90,), 1e6)])
    memory.update(x, "w", compressor, *compressor.compress(x, "w"))
    assert memory.residuals["w"].isfinite().all()


def test_what_a_plan_takes_back_is_in_the_order_of_its_residual():
    """A plan of transform=dct keeps coefficients."""
    plan = "transform=dct sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw"
    compressor, x = make("plan", plan=plan), normal(4096).reshape(64, 64)
    payload, ctx = compressor.compress(x, "w")
    compressor.take_back("w", payload, ctx)
    total = torch.zeros_like(x)
    for _ in range(12):
        total += compressor.decompress(*compressor.compress(torch.zeros_like(x), "w"))
    assert torch.allclose(total, x, atol=1e-4)


# ---- Learning rates -----------------------------------------------------------------------------


def test_efsignsgd_follows_a_schedule():
    """Memory and compressor multiply and divide by the same rate, and the residual, of parameters, stays (the paper's)."""
    grc, residual, x = gathered(compressor="efsignsgd", memory="efsignsgd", lr=0.1), torch.zeros(200), normal(200)
    for step in range(6):
        lr = (0.1, 0.1, 0.1, 0.01, 0.01, 0.003)[step]
        if step == 3:
            grc.memory.lr = grc.compressor.lr = lr  # as a script of GRACE's may do
        if step == 5:
            grc.set_lr(lr)
        assert grc.memory.lr == grc.memory.gamma == grc.compressor.lr == lr
        payload, ctx = remember_step(grc, x)
        p = lr * x + residual
        sent = p.abs().mean() * torch.where(p >= 0, 1.0, -1.0)
        residual = p - sent
        assert torch.allclose(grc.memory.residuals["w"], residual, atol=1e-6), step
        assert torch.allclose(grc.compressor.merge([payload], ctx), sent / lr, rtol=1e-4), step


def test_a_state_has_the_learning_rate():
    grc, other = (gathered(compressor="efsignsgd", memory="efsignsgd", lr=0.1) for _ in range(2))
    remember_step(grc, normal(200))
    grc.set_lr(0.01)
    other.load_state_dict(grc.state_dict())
    assert other.memory.lr == other.compressor.lr == 0.01
    (one,), (two,) = (remember_step(communicator, normal(200))[0] for communicator in (grc, other))
    assert torch.equal(one, two) and torch.equal(grc.memory.residuals["w"], other.memory.residuals["w"])
    older = {key: value for key, value in grc.state_dict().items() if key != "lr"}  # of before there was one in it
    gathered(compressor="efsignsgd", memory="efsignsgd", lr=0.1).load_state_dict(older)


def test_rates_that_differ_are_refused():
    grc = gathered(compressor="efsignsgd", memory="efsignsgd", lr=0.1)
    grc.memory.lr = 0.01
    with pytest.raises(deepreduce.ArgumentError, match="w: .*lr = 0.01.*set_lr of the communicator"):
        remember_step(grc, normal(20))
    for part in (grc.memory, grc.compressor):
        with pytest.raises(deepreduce.ArgumentError, match="lr is 0, not above 0"):
            part.lr = 0
    with pytest.raises(deepreduce.ArgumentError, match="neither ResidualMemory nor Sparsifier uses a learning rate"):
        gathered(compressor="topk", memory="residual").set_lr(0.1)


# ---- Measured, freed, of one shape and type -----------------------------------------------------


def test_memories_are_measured_reset_saved_and_refuse_other_shapes():
    compressor = make("topk", compress_ratio=0.1)
    for memory, element_bytes in ((grace.ResidualMemory(), 4), (grace.ResidualMemory(dtype=torch.float16), 2), (grace.DgcMemory(0.9), 8)):
        for name, size in (("a", 100), ("b", 50)):
            x = memory.compensate(normal(size), name)
            memory.update(x, name, compressor, *compressor.compress(x, name))
        assert memory.nbytes == 150 * element_bytes and set(memory.residuals) == {"a", "b"}
        with pytest.raises(deepreduce.ArgumentError, match=r"b has shape \(60,\), its residual \(50,\).*reset\('b'\) forgets it"):
            memory.compensate(normal(60), "b")
        with pytest.raises(deepreduce.ArgumentError, match="b is torch.bfloat16, its residual torch.float32: the type of a name must not change"):
            memory.compensate(normal(50).bfloat16(), "b")
        saved = memory.state_dict()
        memory.reset("b")
        assert memory.nbytes == 100 * element_bytes
        memory.compensate(normal(60), "b")
        memory.load_state_dict(saved)
        assert memory.nbytes == 150 * element_bytes
        memory.reset()
        assert memory.nbytes == 0
        with pytest.raises(deepreduce.ArgumentError, match="the state has momenta; "):
            memory.load_state_dict({"momenta": {}})


KEEPERS = {  # bytes of a tensor of 100 elements, at least
    "residual": ({"compressor": "topk", "memory": "residual"}, 400),
    "signum": ({"compressor": "signum"}, 400),
    "plan": ({"compressor": "plan", "memory": "none"}, 400),
    "signum behind a memory of none": ({"compressor": "signum", "memory": "none", "momentum": 0.5}, 400),
    "nothing": ({"compressor": "qsgd"}, 0),
}


@pytest.mark.parametrize("kind", KEEPERS)
def test_communicators_are_measured_and_reset_with_all_that_they_keep(kind):
    params, state_bytes = KEEPERS[kind]
    grc = gathered(**params)
    for name in ("a", "b"):
        remember_step(grc, normal(100), name)
    both = grc.nbytes
    assert 2 * state_bytes <= both <= 2 * state_bytes + 100
    loaded = gathered(**params)
    loaded.load_state_dict(grc.state_dict())
    assert loaded.nbytes == both  # before a step, too
    if state_bytes:
        for other in (normal(120), normal(100).bfloat16()):
            for communicator in (grc, loaded):
                with pytest.raises(deepreduce.ArgumentError, match=r"^a"):
                    remember_step(communicator, other, "a")
        with pytest.raises(deepreduce.ArgumentError, match=r"communicator's reset\('a'\) forgets it"):
            remember_step(grc, normal(120), "a")
    for communicator in (grc, loaded):
        communicator.reset("a")
        assert communicator.nbytes == both / 2
        remember_step(communicator, normal(120), "a")  # as the error advises
        remember_step(communicator, normal(100), "b")
        communicator.reset()
        assert communicator.nbytes == 0
        remember_step(communicator, normal(7), "b")


def test_wrappers_measure_and_reset_what_they_wrap():
    class First(grace.Compressor):
        nbytes = 7

        def compress(self, tensor, name):
            return (tensor.view(-1)[:1], torch.zeros(1, dtype=torch.int32)), tensor.size()

        def decompress(self, tensors, ctx):
            return torch.zeros(ctx)

        def reset(self, name=None):
            self.forgot = name

    wrapper = grace.DeepReduce(First(), {"index": "rle", "value": "raw"})
    assert wrapper.nbytes == 7
    wrapper.reset("w")
    assert wrapper.sparsifier.forgot == "w"


def test_dgc_gives_bf16_for_bf16():
    memory, compressor = grace.DgcMemory(0.9), make("topk", compress_ratio=0.1)
    for _ in range(3):
        velocity = memory.compensate(normal(100).bfloat16(), "w")
        payload, ctx = compressor.compress(velocity, "w")
        memory.update(velocity, "w", compressor, payload, ctx)
        tensors = (velocity, compressor.decompress(payload, ctx), memory.residuals["w"], memory.gradients["w"])
        assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}


def test_residuals_of_16_bits_know_the_type_of_their_tensors():
    grc = grace.Allgather(make("topk"), grace.ResidualMemory(dtype=torch.float16))
    remember_step(grc, normal(100))
    remember_step(grc, normal(100))
    with pytest.raises(deepreduce.ArgumentError, match="w is torch.bfloat16, its residual torch.float32"):
        remember_step(grc, normal(100).bfloat16())
    grc.reset("w")
    remember_step(grc, normal(100).bfloat16())


# ---- States that are of something else ----------------------------------------------------------


def state_of(steps=2, **params):
    grc = gathered(**params)
    for _ in range(steps):
        remember_step(grc, normal(50))
    return grc.state_dict()


@pytest.mark.parametrize("state, words", [
    ({}, "must have memory and compressor, this one has nothing"),
    (None, "this one has NoneType"),
    ({"memory": {}}, "this one has memory"),
    ({"memory": {}, "compressor": {}}, "the state has nothing; ResidualMemory requires residuals"),
    ({"memory": {"residuals": {}}, "compressor": {}}, "the state has nothing; Sparsifier requires steps, states"),
])  # fmt: skip
def test_what_is_no_state_is_refused(state, words):
    with pytest.raises(deepreduce.ArgumentError, match=words):
        gathered(compressor="topk", memory="residual").load_state_dict(state)


@pytest.mark.parametrize("memory", ["residual", "dgc"])
@pytest.mark.parametrize("changes, words", [
    ({"memory": None}, "the part 'memory' of a communicator's state is of type NoneType, not a dict"),
    ({"of": 3}, "the part 'of' of a communicator's state is of type int"),
    ({"memory": {"residuals": {}, "gradients": {"w": 3}}}, "it is not a state of memory DgcMemory|ResidualMemory requires residuals"),
    ({"compressor": {"steps": 3, "states": {}}}, "it is not a state of memory"),
])  # fmt: skip
def test_a_state_that_is_refused_changes_nothing(memory, changes, words):
    grc = gathered(compressor="topk", memory=memory)
    grc.load_state_dict(state_of(compressor="topk", memory=memory))
    before, other = repr(grc.state_dict()), state_of(1, compressor="topk", memory=memory)
    with pytest.raises(deepreduce.ArgumentError, match=words):
        grc.load_state_dict({**other, **changes})
    assert repr(grc.state_dict()) == before


@pytest.mark.parametrize("saved, here, words", [
    ({"compressor": "signum"}, {"compressor": "qsgd"}, "by compressor feedback=momentum .*sign and cannot be loaded into .*value=qsgd"),
    ({"compressor": "topk"}, {"compressor": "randomk"}, "by compressor sparsify=topr .* and cannot be loaded into RandomKCompressor"),
    ({"compressor": "topk", "memory": "dgc"}, {"compressor": "topk", "memory": "residual"},
     "by memory DgcMemory and cannot be loaded into ResidualMemory"),
    ({"compressor": "plan"}, {"compressor": "plan", "plan": "sparsify=topr(ratio=0.1) feedback=dgc"},
     "feedback=residual .*feedback=dgc"),
])  # fmt: skip
def test_a_state_of_another_is_refused_by_name(saved, here, words):
    grc = gathered(**here)
    before = grc.state_dict()
    with pytest.raises(deepreduce.ArgumentError, match=words):
        grc.load_state_dict(state_of(**saved))
    assert repr(grc.state_dict()) == repr(before)


def test_a_state_of_another_ratio_goes_on():
    grc = gathered(compressor="topk", memory="residual", compress_ratio=0.5)
    grc.load_state_dict(state_of(compressor="topk", memory="residual", compress_ratio=0.1))
    assert grc.memory.residuals["w"].any()


def test_a_state_of_feedback_is_refused_by_a_plan_without():
    with pytest.raises(deepreduce.ArgumentError, match="feedback of w, but the plan has none"):
        make("qsgd").load_state_dict(state_of(compressor="signum")["compressor"])
