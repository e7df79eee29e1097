"""deepreduce.transform: PowerSGD against plain numpy, and what it refuses."""

import weakref

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce._native._call import Turns  # noqa: E402
from deepreduce.exchange import Exchange, Loopback  # noqa: E402
from deepreduce.transform import Transform  # noqa: E402

PLAN = "transform=lowrank(rank=3) feedback=residual"
SHAPES = [(24, 6, 3, 3), (40,), (17, 33), (2, 3)]


def gradients(rank, step, shapes=SHAPES):
    random = numpy.random.default_rng([rank, step])
    return [random.standard_normal(shape).astype(numpy.float32) for shape in shapes]


def run(ranks, x, outs=None):
    """A round of all ranks: the sum of the factors, in rank order, is given to each."""
    outs = [rank.begin(given, out) for rank, given, out in zip(ranks, x, outs or [None] * len(ranks))]
    done = False
    while not done:
        total = sum(rank.factor().copy() for rank in ranks)
        for rank in ranks:
            rank.factor()[:] = total
            done = rank.next(1 / len(ranks))
    return outs


def first_q(transform, columns, r):
    """[columns, r] of the last matrix, from the end of a state (float32 [r, columns])."""
    return transform.state_dict()["state"][-4 * columns * r :].view(numpy.float32).reshape(r, columns).T.astype(numpy.float64)


class Paper:
    """Algorithm 1 of Vogels et al. (2019), with feedback, of one matrix, in float64."""

    def __init__(self, q, ranks, shape):
        self.q, self.e = q, [numpy.zeros(shape) for _ in range(ranks)]

    def step(self, x):
        m = [given + e for given, e in zip(x, self.e)]
        p, _ = numpy.linalg.qr(sum(matrix @ self.q for matrix in m) / len(m))
        self.q = sum(matrix.T @ p for matrix in m) / len(m)
        out = p @ self.q.T
        self.e = [matrix - out for matrix in m]
        return out


def test_rounds_are_the_papers():
    ranks = [Transform(SHAPES, PLAN) for _ in range(3)]
    paper = Paper(first_q(ranks[0], 33, 3), 3, (17, 33))
    for step in range(8):
        x = [gradients(rank, step) for rank in range(3)]
        outs = run(ranks, x)
        expected = paper.step([given[2].astype(numpy.float64) for given in x])
        assert numpy.abs(outs[0][2] - expected).max() < 1e-5 * numpy.abs(expected).max()
        for rank, rank_ in enumerate(ranks):
            assert [out.tobytes() for out in outs[rank]] == [out.tobytes() for out in outs[0]]
            assert numpy.abs(rank_.residual(2) - paper.e[rank]).max() < 1e-5 * numpy.abs(paper.e[rank]).max()
            assert not rank_.residual(1).any()
        numpy.testing.assert_allclose(outs[0][1], sum(given[1] for given in x) / 3, atol=1e-6)


def test_a_convolution_is_a_matrix_of_its_first_dimension():
    a, b = Transform([(24, 6, 3, 3)], PLAN), Transform([(24, 54)], PLAN)
    x = gradients(0, 0, [(24, 6, 3, 3)])
    (left,), (right,) = run([a], [x]), run([b], [[x[0].reshape(24, 54)]])
    assert left[0].tobytes() == right[0].tobytes()
    assert a.info.matrices == 1 and a.info.first == 24 * 3 and a.info.second == 54 * 3


def test_outputs_may_be_the_inputs():
    x, same = gradients(0, 0), gradients(0, 0)
    a, b = Transform(SHAPES, PLAN), Transform(SHAPES, PLAN)
    (outs,) = run([a], [x])
    run([b], [same], [same])
    assert [out.tobytes() for out in outs] == [out.tobytes() for out in same]


def test_a_state_goes_on_with_the_same_bits():
    a, b = Transform(SHAPES, PLAN), Transform(SHAPES, PLAN)
    run([a], [gradients(0, 0)])
    b.load_state_dict(a.state_dict())
    left, right = run([a], [gradients(0, 1)]), run([b], [gradients(0, 1)])
    assert [out.tobytes() for out in left[0]] == [out.tobytes() for out in right[0]]
    assert a.info.rounds == b.info.rounds == 2
    with pytest.raises(deepreduce.ArgumentError, match="of other shapes|bytes"):
        Transform(SHAPES[1:], PLAN).load_state_dict(a.state_dict())
    for wrong in (None, "abc", a.state_dict()["state"].astype("f8")):
        with pytest.raises(deepreduce.ArgumentError, match="the state is"):
            a.load_state_dict({"state": wrong})
    a.reset()
    assert a.state_dict()["state"].tobytes() == Transform(SHAPES, PLAN).state_dict()["state"].tobytes()


def test_a_round_that_fails_loses_nothing():
    transform = Transform(SHAPES, PLAN)
    run([transform], [gradients(0, 0)])
    before = transform.state_dict()["state"].tobytes()

    def broken(factor):
        raise OSError("the link is down")

    with pytest.raises(OSError):
        transform.all_reduce(gradients(0, 1), broken)
    assert transform.state_dict()["state"].tobytes() == before and not transform.info.busy
    x = gradients(0, 1)
    e = transform.residual(2)
    transform.begin(x)
    transform.cancel(keep=True)
    numpy.testing.assert_array_equal(transform.residual(2), x[2] + e)


@pytest.mark.parametrize("bad", [numpy.nan, numpy.inf])
def test_what_is_not_finite_is_named(bad):
    transform = Transform(SHAPES, PLAN)
    before, x = transform.state_dict()["state"].tobytes(), gradients(0, 0)
    x[2].reshape(-1)[100] = bad
    with pytest.raises(deepreduce.ArgumentError, match="tensor 2: element 100 of the gradient") as caught:
        transform.begin(x)
    assert caught.value.tensor == 2 and caught.value.where == 100
    assert transform.state_dict()["state"].tobytes() == before


def test_bad_input_is_refused_in_words():
    with pytest.raises(deepreduce.ArgumentError, match="has no transform="):
        Transform(SHAPES, "index=golomb")
    with pytest.raises(deepreduce.ArgumentError, match="needs rank="):
        Transform(SHAPES, "transform=lowrank")
    with pytest.raises(deepreduce.Unsupported, match="leave out index="):
        Transform(SHAPES, "transform=lowrank(rank=2) index=golomb")
    with pytest.raises(deepreduce.Unsupported, match="makes factors, not frames"):
        deepreduce.encode(numpy.ones(40, numpy.float32), PLAN)
    transform = Transform(SHAPES, PLAN)
    with pytest.raises(deepreduce.ArgumentError, match="no round"):
        transform.factor()
    with pytest.raises(deepreduce.ArgumentError, match=r"x\[1\] has the shape"):
        transform.begin([gradients(0, 0)[i] for i in (0, 2, 1, 3)])
    with pytest.raises(deepreduce.ArgumentError, match="3 arrays"):
        transform.begin(gradients(0, 0)[:3])
    half = gradients(0, 0)
    half[0] = half[0].astype(numpy.float16)
    with pytest.raises(deepreduce.ArgumentError):
        transform.begin(half)
    turned = gradients(0, 0)
    turned[2] = numpy.asfortranarray(turned[2])
    with pytest.raises(deepreduce.ArgumentError, match="not contiguous"):
        transform.begin(turned)
    assert not transform.info.busy
    transform.begin(gradients(0, 0))
    for mean in ("1", None, 10**400):
        with pytest.raises(deepreduce.ArgumentError, match="^mean is .*, not a number$"):
            transform.next(mean)
    assert transform.info.busy
    for shapes in ([40, 30], 40):
        with pytest.raises(deepreduce.ArgumentError, match="^shapes is .*, not a list of shapes$"):
            Transform(shapes, PLAN)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_output_is_float32(dtype):
    torch = pytest.importorskip("torch", reason="torch is missing: pip install torch")
    transform, x, narrow = Transform([(40,)], PLAN), numpy.ones(40, numpy.float32), torch.zeros(40, dtype=getattr(torch, dtype))
    for call in (lambda: transform.begin(x, narrow), lambda: transform.all_reduce(x, lambda factor: None, out=[narrow])):
        with pytest.raises(deepreduce.ArgumentError, match=rf"out\[0\] is {dtype}, not float32") as caught:
            call()
        assert caught.value.tensor == 0 and not transform.info.busy and not narrow.any()


def test_outputs_live_until_the_round_ends():
    transform = Transform([(40,)], PLAN)
    outs = transform.begin(numpy.ones(40, numpy.float32))
    reference = weakref.ref(outs[0])
    outs.clear()
    assert reference() is not None
    while not transform.next():
        pass
    assert reference() is None


def test_a_residual_is_finite_float32_of_the_shape():
    transform = Transform([(2, 3)], PLAN)
    bad = numpy.zeros((2, 3), numpy.float32)
    bad[1, 1] = -numpy.inf
    for wrong, words in (
        (numpy.zeros((2, 3)), "residual is float64, not float32"),
        (numpy.zeros((3, 2), numpy.float32), r"residual has the shape \(3, 2\), not \(2, 3\)"),
        (bad, "residual: element 4 is -inf, not finite"),
        ([0.0], "residual is a list, not an array"),
    ):
        with pytest.raises(deepreduce.ArgumentError, match=words) as caught:
            transform.set_residual(wrong)
        assert caught.value.tensor == 0
    transform.set_residual(numpy.arange(6, dtype=numpy.float32).reshape(2, 3))
    assert transform.residual().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_an_error_of_begin_has_its_tensor():
    x, fixed = numpy.ones((4, 4), numpy.float32), numpy.ones((4, 4), numpy.float32)
    fixed.flags.writeable = False
    transform = Transform([(4, 4), (4, 4)], PLAN)
    for given, out in (([x, x.astype("f8")], None), ([x, x], [x.copy(), fixed]), ([x, x], [x.copy(), x.astype("f2")])):
        with pytest.raises(deepreduce.ArgumentError) as caught:
            transform.begin(given, out)
        assert caught.value.tensor == 1


def test_a_transform_in_use_says_so():
    transform, x = Transform([(4, 4)], PLAN), numpy.ones((4, 4), numpy.float32)
    state = transform.state_dict()["state"]
    with Turns([(transform, "")]):  # as a call of another thread holds it
        for call in (
            lambda: transform.begin(x),
            transform.factor,
            transform.next,
            lambda: transform.all_reduce(x, lambda factor: None),
            transform.cancel,
            transform.residual,
            lambda: transform.set_residual(x),
            transform.state_dict,
            lambda: transform.load_state_dict({"state": state}),
            transform.reset,
        ):
            with pytest.raises(deepreduce.ConcurrentUse, match="the transform is in another call"):
                call()
        assert transform.info.rounds == 0
    transform.all_reduce(x, lambda factor: None)
    assert transform.info.rounds == 1


def test_a_plan_says_that_it_transforms():
    info = deepreduce.Plan(PLAN).info
    assert info.transforms and info.feedback and info.dtypes == ("float32",)
    assert not deepreduce.Plan("index=golomb").info.transforms


def test_tiny_and_empty_tensors_are_exact():
    shapes = [(1, 50), (50, 1), (0, 4), (3, 0), (), (2, 2)]
    x = gradients(0, 0, shapes)
    transform = Transform(shapes, "transform=lowrank(rank=4)")
    for out, given in zip(run([transform], [x])[0], x):
        numpy.testing.assert_array_equal(out, given)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_an_exchange_does_what_the_transform_does(n):
    loopback, x = Loopback(n), [gradients(rank, 0) for rank in range(n)]
    ranks = [Exchange(x[rank], PLAN, loopback.transport(rank)) for rank in range(n)]
    by_hand = [Transform(SHAPES, PLAN) for _ in range(n)]
    for step in range(3):
        for rank in range(n):
            for array, drawn in zip(x[rank], gradients(rank, step)):
                array[...] = drawn
            ranks[rank].start()
        assert loopback.run(ranks) == [None] * n
        outs = run(by_hand, x)
        for rank in range(n):
            assert [out.tobytes() for out in ranks[rank].out] == [out.tobytes() for out in outs[0]]
            assert ranks[rank].residual(2).tobytes() == by_hand[rank].residual(2).tobytes()
    assert (ranks[0].info.sent_max > 0) == (n > 1)
