"""Compressors and memories of deepreduce.grace in one process: each method against its paper's definition, in plain torch."""

import importlib.util

import pytest

pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")
if not importlib.util.find_spec("torch"):
    pytest.skip("torch is missing: pip install torch", allow_module_level=True)

import torch  # noqa: E402
from grace_checks import lacks  # noqa: E402

import deepreduce  # noqa: E402
from deepreduce import grace  # noqa: E402
from deepreduce_grace import factory, pairs  # noqa: E402

D = 20000
METHODS = [*grace.METHODS]
# PowerSGD takes ranks: grace_checks.py.
BY_ITSELF = [name for name in METHODS if name != "powersgd"]
SPARSE = ("topk", "threshold", "randomk", "dgc", "graddrop", "adaq", "tbq", "skcompress")


def make(method, **params):
    reason = lacks(method) if method != "plan" else None
    if reason:
        pytest.skip(reason)
    return factory.compressor_from(factory.checked({"compressor": method, "plan": "sparsify=topr(ratio=0.1)", **params}))


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def there_and_back(compressor, x, name="w"):
    return compressor.decompress(*compressor.compress(x, name))


# ---- Each method is its definition --------------------------------------------------------------


def is_none(x, y):
    assert torch.equal(x, y)


def is_half(x, y):
    assert torch.equal(x.half().float(), y)


def is_bf16(x, y):
    assert torch.equal(x.bfloat16().float(), y)


def is_top_k(x, y, ratio=0.3):
    k = int(D * ratio)
    indices = torch.topk(x.abs(), k).indices
    assert torch.equal(torch.zeros(D).scatter_(0, indices, x[indices]), y)


def is_threshold(x, y):
    assert torch.equal(torch.where(x.abs() >= 0.01, x, torch.zeros(D)), y)


def is_random_k(x, y):
    sent = y != 0
    assert int(sent.sum()) == int(D * 0.3) and torch.equal(x[sent], y[sent])


def is_dgc(x, y):
    sent = y != 0
    assert 0.7 <= int(sent.sum()) / (D * 0.3) <= 1.3 and torch.equal(x[sent], y[sent])
    assert x[sent].abs().min() >= x[~sent].abs().max()


def is_gradient_dropping(x, y):
    is_dgc(x, y)  # Of 1024 draws the 307th largest: a share of 0.3 ± 0.014, not Top-k's number.
    assert 1 < abs(float((y != 0).sum()) - D * 0.3) < 5 * 0.0144 * D


def is_adaq(x, y, ratio=0.3):
    # The given share of each sign by magnitude, and the mean of each.
    for sign in (1, -1):
        half = (sign * x).clamp(min=0)
        chosen = torch.topk(half, round(float((half > 0).sum()) * ratio)).indices
        sent = (sign * y > 0).nonzero().view(-1)
        assert abs(len(sent) - len(chosen)) <= 2
        assert torch.allclose(y[sent], x[sent].mean(), rtol=1e-3)
        assert half[sent].min() >= half[half > 0].quantile(1 - ratio) * 0.99


def is_qsgd(x, y):
    # Levels of a bucket's L2 norm, of which a value is rounded to one of the two beside it.
    for a, b in zip(x.split(128), y.split(128)):
        level = a.norm() / 127
        assert ((a - b).abs() <= level * 1.001).all()
        assert torch.allclose(b / level, (b / level).round(), atol=1e-2)


def is_tern_grad(x, y):
    # Clipped at 2.5 standard deviations; 0 or the largest magnitude, by chance.
    scale = x.clamp(-2.5 * x.std(), 2.5 * x.std()).abs().max()
    selected = y != 0
    assert torch.allclose(y[selected].abs(), scale, rtol=1e-3) and torch.equal(y[selected].sign(), x[selected].sign())
    expected = float((x.clamp(-scale, scale).abs() / scale).mean())
    assert abs(float(selected.float().mean()) - expected) < 0.02


def is_one_bit(x, y):
    expected = torch.where(x < 0, x[x < 0].mean(), x[x >= 0].mean())
    assert torch.allclose(y, expected, rtol=1e-4)


def is_sign(x, y):
    assert torch.equal(y, torch.where(x >= 0, 1.0, -1.0))


def is_scaled_sign(x, y):
    assert torch.allclose(y, torch.where(x >= 0, 1.0, -1.0) * x.abs().mean(), rtol=1e-4)


def is_natural(x, y):
    # One of the two powers of two beside the value.
    below = torch.exp2(torch.log2(x.abs()).floor())
    assert torch.equal(x.sign(), y.sign())
    assert (torch.isclose(y.abs(), below) | torch.isclose(y.abs(), 2 * below)).all()


def is_dynamic_tree(x, y):
    scale = x.abs().max()
    large = x.abs() > 0.1 * scale
    assert ((x - y).abs()[large] <= 0.02 * scale).all() and ((x - y).abs() <= 0.07 * scale).all()


def is_sketch(x, y):
    assert len(y.unique()) <= 64 and (x - y).norm() < 0.2 * x.norm()
    order = x.argsort()
    assert (y[order].diff() >= -1e-6).all()  # quantile buckets: a monotone step function


def is_inceptionn(x, y):
    # GRACE's default, 2e-10, is the paper's bound of 2^-10. Values from 1 on are exact; below 2^-5 seven bits of the
    # fraction are sent, from there on fifteen.
    a = x.double().abs()
    bits = torch.where(a >= 2.0**-5, 15.0, 7.0)
    want = torch.where(a >= 1, a, torch.where(a < 2.0**-10, 0.0, (a * 2**bits).floor() / 2**bits))
    assert torch.equal(y.double(), want * x.double().sign())


def is_three_lc(x, y):
    scale = x.abs().max()
    assert torch.allclose(y.abs()[y != 0], scale) and (x - y).abs().max() <= 0.501 * scale


def is_tbq(x, y):
    assert torch.allclose(y, torch.where(x.abs() >= 0.01, 0.01 * x.sign(), torch.zeros(D)))


def is_sk_compress(x, y):
    sent = y != 0
    assert int(sent.sum()) == int(D * 0.3) and (x - y)[sent].norm() < 0.1 * x[sent].norm()


DEFINITIONS = {
    "none": is_none, "fp16": is_half, "bf16": is_bf16, "topk": is_top_k, "threshold": is_threshold, "randomk": is_random_k,
    "dgc": is_dgc, "graddrop": is_gradient_dropping, "adaq": is_adaq, "qsgd": is_qsgd, "terngrad": is_tern_grad, "onebit": is_one_bit, "signsgd": is_sign,
    "signum": is_sign, "efsignsgd": is_scaled_sign, "natural": is_natural, "u8bit": is_dynamic_tree, "sketch": is_sketch,
    "inceptionn": is_inceptionn, "3lc": is_three_lc, "tbq": is_tbq, "skcompress": is_sk_compress,
    "plan": lambda x, y: is_top_k(x, y, 0.1),
}  # fmt: skip


@pytest.mark.parametrize("method", BY_ITSELF)
def test_a_method_is_its_definition(method):
    x = normal(D)
    DEFINITIONS[method](x, there_and_back(make(method), x))


@pytest.mark.parametrize("method", ["qsgd", "terngrad", "natural"])
def test_stochastic_methods_are_unbiased(method):
    # TernGrad without its clipping, which is a bias of its own.
    compressor, x = make(method, clip=100), normal(500).clamp(-2, 2)
    mean = sum(there_and_back(compressor, x) for _ in range(400)) / 400
    spread = (there_and_back(compressor, x) - x).norm()
    assert (mean - x).norm() < 3 * spread / 20


def test_natural_has_a_deterministic_variant():
    compressor, x = make("natural", rounding="nearest"), normal(D)
    y = there_and_back(compressor, x)
    assert torch.equal(y, there_and_back(compressor, x)) and ((x - y).abs() <= x.abs() / 3 + 1e-6).all()


# Bits an element that GRACE sends, and the most that we may, for what it ships bytes for.
BITS = {"onebit": 1.05, "signsgd": 1.05, "signum": 1.05, "efsignsgd": 1.05, "terngrad": 1.65, "qsgd": 8.3, "natural": 8.05,
        "u8bit": 8.05, "topk": 0.01 * 42, "randomk": 0.01 * 32.1, "adaq": 0.01 * 12}  # fmt: skip


@pytest.mark.parametrize("method", BITS)
def test_payloads_are_packed(method):
    payload, _ = make(method, compress_ratio=0.01).compress(normal(100000), "w")
    assert grace.tensor_bits(payload) / 100000 <= BITS[method]


# ---- Every method, every tensor -----------------------------------------------------------------

SHAPES = {
    "of no dimension": normal(()),
    "empty": normal(0),
    "of one element": normal(1),
    "all negative": -normal(300).abs() - 1,
    "all zero": torch.zeros(300),
    "constant": torch.ones(300),
    "with four dimensions": normal(8, 4, 3, 3),
    "not contiguous": normal(40, 30).t(),
    "that requires a gradient": normal(50).requires_grad_(),
    "f16": normal(300).half(),
    "bf16": normal(300).bfloat16(),
    "denormal": normal(300) * 1e-42,
}


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("method", BY_ITSELF)
def test_shape_and_type_come_back(method, kind):
    compressor, x = make(method), SHAPES[kind]
    before = x.detach().clone()
    payload, ctx = compressor.compress(x, "w")
    if isinstance(compressor, grace.PlanCompressor):
        (frame,) = payload
        assert frame.dtype == torch.uint8 and frame.dim() == 1 and frame.numel() > 0 and frame.is_contiguous()
    y = compressor.decompress(payload, ctx)
    assert y.shape == x.shape and y.dtype == x.dtype and not y.requires_grad
    assert torch.equal(x.detach(), before)  # the input is the caller's
    assert torch.isfinite(y).all()
    if kind == "all zero" and method not in ("signsgd", "signum", "efsignsgd", "tbq"):
        assert not y.any()
    y.add_(1)  # what comes out is fresh, and decodes again
    again = compressor.decompress(payload, ctx)
    assert torch.equal(again + 1, y)
    out = torch.ones(x.shape)
    compressor.decompress_add(payload, ctx, out, -0.5)
    assert torch.allclose(out, 1 - 0.5 * again.float(), atol=1e-6)


@pytest.mark.parametrize("method", BY_ITSELF)
def test_nan_and_infinity_are_sent_or_refused(method):
    for bad in (float("nan"), float("inf")):
        x = normal(2000)
        x[7] = bad
        try:
            y = there_and_back(make(method), x)
        except deepreduce.ArgumentError as error:
            assert "w: " in str(error) and ("NaN" in str(error) or "inf" in str(error))
        else:
            assert method in ("none", "fp16", "bf16", *SPARSE, "plan", "signsgd", "signum")
            if method in ("none", "topk", "threshold", "plan"):
                assert torch.equal(y[7].nan_to_num(5, 6), x[7].nan_to_num(5, 6))


@pytest.mark.parametrize("params", [
    {"compressor": "randomk", "deepreduce": "value", "value": "gzip"},
    {"compressor": "topk", "deepreduce": "value", "value": "qsgd", "quantum_num": 2},
])  # fmt: skip
def test_a_wrapper_draws_by_the_seed(params):
    x = normal(5000)
    one, same, other = (
        there_and_back(grace.deepreduce_from_params({"communicator": "allgather", "seed": seed, **params}).compressor, x) for seed in (0, 0, 7)
    )
    assert torch.equal(one, same) and not torch.equal(one, other)


@pytest.mark.parametrize("method", BY_ITSELF)
def test_no_random_generator_of_torch_is_touched(method):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    there_and_back(make(method), normal(100))
    assert torch.equal(before, torch.get_rng_state())


def test_what_is_no_gradient_is_refused():
    compressor = make("topk")
    for bad in (torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.int32), torch.eye(3).to_sparse()):
        with pytest.raises(deepreduce.ArgumentError, match="w is torch"):
            compressor.compress(bad, "w")
    payload, ctx = compressor.compress(normal(100), "w")
    for bad in ([payload[0][:-1]], [payload[0][:0]], [payload[0] ^ 1], [torch.zeros(50, dtype=torch.uint8)]):
        with pytest.raises(deepreduce.CorruptFrame):
            compressor.decompress(bad, ctx)
    with pytest.raises(deepreduce.ArgumentError, match="one tensor of bytes"):
        compressor.decompress([torch.zeros(9)], ctx)
    with pytest.raises(deepreduce.ArgumentError):
        compressor.decompress(payload, ctx._replace(shape=torch.Size([99])))


def test_names_and_steps_draw_other_numbers():
    """Names of the same letters, too."""
    compressor, x = make("randomk", compress_ratio=0.1), normal(1000)
    chosen = {name: [compressor.compress(x, name)[1].indices for _ in range(2)] for name in ("w.ab", "w.ba")}
    sets = [frozenset(indices.tolist()) for pair in chosen.values() for indices in pair]
    assert len(set(sets)) == 4 and all(len(indices) == 100 for indices in sets)
    other = make("randomk", compress_ratio=0.1)
    assert torch.equal(other.compress(x, "w.ba")[1].indices, chosen["w.ba"][0])  # whatever was before


def test_k_is_int_of_the_product_and_at_least_one():
    for elements, ratio in ((1000, 0.29), (10, 0.01), (7, 0.999), (5, 1.0), (100, 0.07)):
        k = max(1, int(elements * ratio))
        for compressor in (make("topk", compress_ratio=ratio), pairs.TopKCompressor(ratio), make("randomk", compress_ratio=ratio)):
            assert int((there_and_back(compressor, normal(elements)) != 0).sum()) == k, (elements, ratio)


def test_ties_go_to_the_lower_index():
    for compressor in (make("topk", compress_ratio=0.3), pairs.TopKCompressor(0.3), pairs.TopKCompressor(0.3, "rdxtopk_cuda")):
        assert there_and_back(compressor, torch.tensor([1.0, -2, 2, 1, -1, 2, 1, 1, 1, 1])).tolist() == [0, -2, 2, 0, 0, 2, 0, 0, 0, 0]
    with pytest.raises(NotImplementedError, match="kernel of topk is called 'bogus'.*torch, cupy, rdxtopk_cuda"):
        pairs.TopKCompressor(0.3, "bogus")


def test_a_pair_of_topk_is_as_long_on_all_ranks():
    (values, indices), size = pairs.TopKCompressor(0.5).compress(torch.tensor([0.0, 0, 3, 0, 0, 0, 0, 1]), "w")
    assert size == torch.Size([8]) and len(values) == len(indices) == len(set(indices.tolist())) == 4
    (values, indices), (shape, mask, numel) = pairs.DgcCompressor(0.5).compress(normal(10, 10), "w")
    assert shape == (10, 10) and numel == 100 and mask.nonzero().view(-1).tolist() == sorted(indices.tolist())


# ---- Memories -----------------------------------------------------------------------------------


def test_memory_and_gradient_are_not_one():
    """GRACE's DGC keeps the gradient itself at the first step; then zero_grad clears the memory."""
    compressor = make("topk", compress_ratio=0.1)
    for memory in (grace.DgcMemory(0.9), grace.ResidualMemory()):
        x = normal(100)
        compensated = memory.compensate(x, "w")
        memory.update(compensated, "w", compressor, *compressor.compress(compensated, "w"))
        residual = memory.residuals["w"].clone()
        x.zero_()
        compensated.zero_()
        assert torch.equal(memory.residuals["w"], residual) and residual.any()


def test_the_first_step_of_efsignsgd_is_scaled():
    memory, x = grace.EFSignSGDMemory(0.1), normal(10)
    assert torch.allclose(memory.compensate(x, "w"), 0.1 * x)


def test_an_all_negative_tensor_is_not_sent_whole():
    """GRACE takes the largest value for the largest magnitude."""
    x = -normal(1000).abs() - 0.001
    for compressor in (make("threshold", threshold=1.5), pairs.ThresholdCompressor(1.5)):
        assert torch.equal(there_and_back(compressor, x), torch.where(x <= -1.5, x, torch.zeros(1000)))


def test_a_plan_that_keeps_something_refuses_other_shapes():
    compressor = grace.PlanCompressor("sparsify=topr(ratio=0.1) feedback=residual index=golomb")
    compressor.compress(normal(100), "w")
    with pytest.raises(deepreduce.ArgumentError, match="w: "):
        compressor.compress(normal(120), "w")
    compressor.compress(normal(120), "another")


def test_pairs_off_the_wire_are_looked_at():
    compressor = pairs.TopKCompressor(0.5)
    (values, indices), size = compressor.compress(normal(8), "w")
    for bad in ((values, indices + 8), (values, indices - 8), (values[1:], indices), (values, indices[1:])):
        with pytest.raises(deepreduce.CorruptFrame, match="not all below 8"):
            compressor.merge([(values, indices), bad], size)
    random = make("randomk")
    payload, ctx = random.compress(normal(100), "w")
    with pytest.raises(deepreduce.CorruptFrame, match="29 values for the 30 positions"):
        random.decompress([payload[0][1:]], ctx)


def test_a_nan_that_is_refused_leaves_no_trace():
    for memory in (grace.ResidualMemory(), grace.DgcMemory(0.9)):
        compressor = grace.Sparsifier(lambda d: "topr(ratio=0.1)", value="half")
        for x in (normal(100), normal(100) * float("nan"), normal(100)):
            compensated = memory.compensate(x, "w")
            try:
                memory.update(compensated, "w", compressor, *compressor.compress(compensated, "w"))
            except deepreduce.ArgumentError:
                assert not torch.isfinite(x).all()
        assert torch.isfinite(memory.residuals["w"]).all() and memory.residuals["w"].any()
