"""Rows, which carry the tensors of deepreduce.jax, .keras and .flower. What becomes of the tensors: test_one_law.py."""

import threading
import warnings

import pytest

np = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce._adapters._sender_pool import SenderPool, method_of, plan_of_frames  # noqa: E402

SHAPES = {"w": ((40, 50), "float32"), "b": ((7,), "float32")}
TOP = "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw"
RANKS = 3


def pool_of(plan, shapes=SHAPES, **options):
    return SenderPool(shapes, method_of(plan), **options)


def gradients(step, rank, shapes=SHAPES):
    random = np.random.default_rng([step, rank])
    return [random.standard_normal(shape).astype(dtype) for shape, dtype in shapes.values()]


def test_other_tensors_than_the_first_ones_are_refused():
    pool = pool_of(TOP)
    tensors, row, states = gradients(0, 0), np.zeros(pool.size, np.uint8), np.zeros(pool.state_size, np.uint8)
    pool.encode(tensors, row, states, 0, 0)
    with pytest.raises(deepreduce.ArgumentError, match="1 tensors; there were 2"):
        pool.encode(tensors[:1], row, states, 1, 0)


def test_what_is_behind_the_slots_is_zero_and_the_same_arguments_make_the_same_row():
    pool = pool_of(TOP, {**SHAPES, "half": ((3000,), "float16")})
    assert pool.size % 64 == pool.state_size % 8 == 0 and pool.dense == 4 * 2007 + 2 * 3000
    tensors = gradients(0, 0, {**SHAPES, "half": ((3000,), "float16")})
    rows = []
    for fill in (0, 255):
        row, states = np.full(pool.size, fill, np.uint8), np.zeros(pool.state_size, np.uint8)
        sizes = pool.encode(tensors, row, states, 3, 1)
        pool.encode(tensors, np.empty(pool.size, np.uint8), states, 4, 1)  # (and what is called between them does not count)
        rows.append(row.tobytes())
    assert rows[0] == rows[1] and len(sizes) == 2 and 0 < sum(sizes) < pool.size
    at = 0
    for size, (begin, bound) in zip(sizes, pool._slots):
        assert begin == at and not any(rows[0][begin + size : begin + bound])
        at += bound


def test_any_number_of_threads_and_of_ranks():
    """Calls as XLA does: encodes and merges at the same time, with rows of several numbers of ranks."""
    pool, failed = pool_of(TOP), []
    plain = pool_of(TOP)

    def row_of(pool, rank):
        row, states = np.empty(pool.size, np.uint8), np.zeros(pool.state_size, np.uint8)
        pool.encode(gradients(0, rank), row, states, 0, rank)
        return row

    expected = [row_of(plain, rank) for rank in range(8)]
    means = {ranks: [array.copy() for array in plain.merge(expected[:ranks], 0)] for ranks in range(1, 9)}

    def work(rank):
        for _ in range(50):
            mine = row_of(pool, rank)
            found = pool.merge(expected[: rank + 1], 0)
            if mine.tobytes() != expected[rank].tobytes() or any(map(np.any, map(np.subtract, found, means[rank + 1]))):
                failed.append(rank)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_the_mean_is_added_in_the_order_of_the_ranks():
    pool, sums = pool_of("index=all value=raw"), pool_of("index=all value=raw", sum=True)
    rows = np.empty((RANKS, pool.size), np.uint8)
    given = [gradients(0, rank) for rank in range(RANKS)]
    for rank, row in enumerate(rows):
        pool.encode(given[rank], row, np.zeros(0, np.uint8), 0, rank)
    for i, array in enumerate(pool.merge(list(rows), 0)):
        mean = np.zeros_like(array)
        for rank in range(RANKS):
            mean += np.float32(1 / RANKS) * given[rank][i]
        np.testing.assert_array_equal(array, mean)
    total = given[0][1] + given[1][1] + given[2][1]
    np.testing.assert_array_equal(sums.merge(list(rows), 0)[1], total)


def test_a_pack_has_no_room_behind_its_slots():
    pool = pool_of(TOP, {**SHAPES, "half": ((3000,), "float16")})
    tensors = gradients(0, 0, {**SHAPES, "half": ((3000,), "float16")})
    states = np.zeros(pool.state_size, np.uint8)
    data = pool.pack(tensors, states, 7, 0)
    row, others = np.empty(pool.size, np.uint8), np.zeros(pool.state_size, np.uint8)
    assert len(data) == sum(pool.encode(tensors, row, others, 7, 0)) and states.tobytes() == others.tobytes()
    for one, other in zip(pool.unpack(data, 7), pool.merge([row], 7)):
        np.testing.assert_array_equal(one, other)
    for spoilt, kind in (
        (data + b"more", deepreduce.CorruptFrame),
        (data[:-7], deepreduce.CapacityError),
        (b"", deepreduce.ArgumentError),
        (bytes(len(data)), deepreduce.CorruptFrame),
    ):
        with pytest.raises(kind):
            pool.unpack(spoilt, 7)
    with pytest.raises(deepreduce.ArgumentError, match="of step 7, and the call is of step 8"):
        pool.unpack(data, 8)


def test_books_give_arrays_their_plans():
    pool = pool_of(deepreduce.book.parse(f"b: dense\n*: {TOP}"))
    assert {str(plan) for plan in pool._used} == {str(deepreduce.Plan(f"{text} bucket=flat")) for text in ("index=all value=raw", TOP)}


def test_what_has_no_rows_is_refused_by_name():
    with pytest.raises(deepreduce.Unsupported, match="use deepreduce.torch or deepreduce.transform"):
        plan_of_frames("powersgd")
    with pytest.raises(deepreduce.Unsupported, match="b: the plan .* produces factors"):
        pool_of(deepreduce.book.parse(f"b: powersgd\n*: {TOP}"))
    with pytest.raises(deepreduce.Unsupported, match="has exchange=owner, but here all ranks get all frames"):
        plan_of_frames(f"{TOP} exchange=owner")
    with pytest.raises(deepreduce.ArgumentError, match="no tensors to send"):
        pool_of(TOP, {})
    pool = pool_of(TOP)
    with pytest.raises(deepreduce.ArgumentError, match=r"^b: float32\[8\] is not 7 contiguous float32"):
        pool.encode([np.zeros((40, 50), "f4"), np.zeros(8, "f4")], np.empty(pool.size, "u1"), np.zeros(pool.state_size, "u1"), 0, 0)


def test_a_plan_that_drops_values_for_good_is_a_warning():
    with pytest.warns(UserWarning, match=r"the plan 'sparsify=topr.*' drops what it does not send: add feedback=residual"):
        pool_of("topk").warn()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool_of("topk feedback=residual").warn()


def test_a_plan_that_saves_nothing_is_a_warning():
    with pytest.warns(UserWarning, match="a row is .* frames may be of any size, saves nothing here"):
        pool_of("threshold feedback=residual").warn()
    with pytest.warns(UserWarning, match="each of 2 tensors has fewer elements than `dense_below`"):
        pool_of(TOP, dense_below=10000).warn()
