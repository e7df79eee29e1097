"""deepreduce.outer.TopKCompressor: the calls of SparseLoCo's published code. Expected values are plain torch."""

import importlib.util

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")
if not importlib.util.find_spec("torch"):
    pytest.skip("torch is missing: pip install torch", allow_module_level=True)

import torch  # noqa: E402

import deepreduce  # noqa: E402
from deepreduce.outer import TopKCompressor  # noqa: E402


def chunks_of(seed, shape=(3, 2, 64, 64)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def largest(x, count):
    """Chunks with all but the `count` largest 0."""
    flat = x.reshape(-1, x[0, 0].numel() if x.dim() == 4 else x.shape[1])
    mask = torch.zeros_like(flat).scatter_(1, flat.abs().topk(count, dim=1).indices, 1.0)
    return (flat * mask).reshape(x.shape)


@pytest.mark.parametrize("shape", [(3, 2, 64, 64), (1, 1, 32, 32), (5, 128), (2, 3, 16, 4)])
def test_the_largest_of_each_chunk_come_back(shape):
    compressor, x = TopKCompressor(), chunks_of(0, shape)
    for topk in (2, 9, 10**6):
        idx, val, xshape, totalk = compressor.compress(x, topk)
        assert xshape == shape and totalk == (shape[2] * shape[3] if len(shape) == 4 else shape[1])
        expected = largest(x, min(topk, totalk) // 2 * 2)
        assert torch.equal(compressor.decompress(x.bfloat16(), idx, val, xshape, totalk), expected.bfloat16())
        assert abs(float(val) - float(expected.norm())) < 1e-3


def test_two_bits_take_fewer_bytes_than_twelve_bits_an_index():
    x = chunks_of(1, (8, 8, 64, 64))
    compressor = TopKCompressor(use_quantization=True, quantization_bins=4)
    idx, val, xshape, totalk, params = compressor.compress(x, 64)
    assert 8 * (idx.numel() + 4) / (64 * 64) < 9.6  # 14 with 12-bit indices
    found, selected = compressor.decompress(x, idx, val, xshape, totalk, params), largest(x, 64)
    assert torch.equal(found != 0, selected != 0) and float((found - selected).norm() / selected.norm()) < 0.15


def test_a_batch_is_the_mean_of_those_that_sent_an_element():
    compressor = TopKCompressor()
    xs = [chunks_of(seed) * scale for seed, scale in ((2, 1.0), (3, 1.0), (4, 9.0))]
    idx, val, (xshape, *_), (totalk, *_) = zip(*(compressor.compress(x, 64) for x in xs))
    selected = [largest(x, 64) for x in xs]
    norms = torch.stack([array.norm() for array in selected])
    clipped = [array * min(1.0, float(norms.median() / norm)) for array, norm in zip(selected, norms)]
    unit = [array / (array.reshape(-1, totalk).norm(dim=1).reshape(3, 2, 1, 1) + 1e-8) for array in selected]
    for options, parts in (({}, clipped), ({"clip_norm": False}, selected), ({"normalise": True}, unit)):
        count = sum((part != 0).float() for part in parts).clamp(min=1)
        found = compressor.batch_decompress(xs[0], list(idx), list(val), xshape, totalk, **options)
        assert torch.allclose(found, sum(parts) / count, atol=1e-5), options


def test_what_is_no_frame_or_of_another_shape_is_refused():
    compressor, x = TopKCompressor(), chunks_of(5)
    idx, val, xshape, totalk = compressor.compress(x, 64)
    with pytest.raises(deepreduce.Error):
        compressor.decompress(x, idx, val, (2, 2, 64, 64), totalk)
    with pytest.raises(deepreduce.CorruptFrame):
        compressor.batch_decompress(x, [idx, idx[:-9]], [val, val], xshape, totalk)
    with pytest.raises(deepreduce.ArgumentError, match=r"shape \[3\]: chunks are"):
        compressor.compress(torch.zeros(3), 2)
