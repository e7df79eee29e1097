"""The memories of GRACE and of the papers, over several steps, against plain numpy: dgc, momentum, efsignsgd, votes."""

import pickle

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce.exchange import Exchange, Loopback  # noqa: E402

TOP = "sparsify=topr(ratio=0.05) index=golomb value=raw"
D = 2000
f32 = numpy.float32


def gradient(step, rank=0, d=D):
    return numpy.random.default_rng([rank, step]).standard_normal(d).astype(f32)


def largest(x, k):
    """Positions of the k largest magnitudes; of equal ones the first."""
    return numpy.sort(numpy.argsort(-numpy.abs(x), kind="stable")[:k])


class Dgc:
    """Lin et al. 2017, Algorithm 1: momentum correction, local accumulation, factor masking; Top-r, sent as it is."""

    def __init__(self, momentum, ratio, d=D, masks=True):
        self.u, self.v = numpy.zeros(d, f32), numpy.zeros(d, f32)
        self.momentum, self.k, self.masks = f32(momentum), int(ratio * d), masks

    def step(self, g):
        self.u = g + self.momentum * self.u
        self.v = self.v + self.u
        at = largest(self.v, self.k)
        sent = numpy.zeros_like(g)
        sent[at] = self.v[at]
        self.v[at] = 0
        if self.masks:
            self.u[at] = 0
        return sent


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("momentum", [0.9, 0.5, 0.0])
def test_dgc_is_the_papers(momentum, masks):
    plan = f"{TOP} feedback=dgc(momentum={momentum},masking={'on' if masks else 'off'})"
    oracle = Dgc(momentum, 0.05, masks=masks)
    state = deepreduce.State(gradient(0), plan)
    for step in range(8):
        g = gradient(step)
        sent = deepreduce.decode(deepreduce.encode(g, plan, state=state, step=step))
        assert numpy.array_equal(sent, oracle.step(g)), step
        assert numpy.array_equal(state.residual, oracle.v) and numpy.array_equal(state.momentum, oracle.u), step


def test_dgc_clips_by_the_norm_of_all_tensors():
    plan = f"{TOP} feedback=dgc(momentum=0.9,clip=1.5)"
    x = [gradient(1), gradient(2, d=300)]
    states = deepreduce.State.of(x, plan)
    deepreduce.encode(x, plan, state=states)
    factor = 1.5 / numpy.sqrt(sum(float((array.astype(float) ** 2).sum()) for array in x))
    assert factor < 1
    for array, state in zip(x, states):
        selected = state.momentum != 0
        assert selected.sum() == array.size - int(0.05 * array.size)
        assert numpy.allclose(state.momentum[selected], factor * array[selected], rtol=1e-6)
    # A rank's own bound is thr / sqrt(N) in the paper; below it the gradient is as it was.
    states = deepreduce.State.of(x, plan)
    small = [array / 1000 for array in x]
    deepreduce.encode(small, plan, state=states)
    selected = states[0].momentum != 0
    assert numpy.array_equal(states[0].momentum[selected], small[0][selected])


def test_momentum_is_signums():
    plan = "index=all value=raw feedback=momentum(beta=0.9)"
    state, m = deepreduce.State(gradient(0), plan), numpy.zeros(D, f32)
    for step in range(6):
        g = gradient(step)
        m = f32(1 - 0.9) * g + f32(0.9) * m
        sent = deepreduce.decode(deepreduce.encode(g, plan, state=state, step=step))
        assert numpy.array_equal(sent, m) and numpy.array_equal(state.momentum, m)
    with pytest.raises(deepreduce.ArgumentError, match="keeps no residual"):
        state.residual
    assert state.norm() == 0


def test_efsignsgd_is_the_papers_from_the_first_step():
    """GRACE's first step is not scaled, and its sum / lr is W times the mean (grace.md 4.2, defect 7). Here W ranks agree
    on mean(C(p)), p = g + e · lr before / lr, and the parameters move by lr times that."""
    ranks, e = 2, [numpy.zeros(D) for _ in range(2)]
    loopback, x = Loopback(ranks), [gradient(0, rank) for rank in range(ranks)]
    rates = [0.1, 0.1, 0.02, 0.3]
    states = [deepreduce.State(x[0], f"{TOP} feedback=efsignsgd") for _ in range(ranks)]
    for step, lr in enumerate(rates):
        plan, frames, update = f"{TOP} feedback=efsignsgd(lr={lr})", [], numpy.zeros(D)
        for rank in range(ranks):
            g = gradient(step, rank)
            frames.append(deepreduce.encode(g, plan, state=states[rank], step=step))
            p = lr * g.astype(float) + e[rank]
            at = largest(p, D // 20)
            update[at] += p[at] / ranks
            e[rank] = p.copy()
            e[rank][at] = 0
        applied = lr * deepreduce.merge(frames, weights=[1 / ranks] * ranks)
        assert numpy.allclose(applied, update, rtol=1e-4, atol=1e-7), step
    # The first step of an exchange is C(g), neither scaled by lr nor by the number of ranks.
    exchanges = [Exchange(x[rank], f"{TOP} feedback=efsignsgd", loopback.transport(rank)) for rank in range(ranks)]
    for exchange in exchanges:
        exchange.start(0)
    assert loopback.run(exchanges) == [None] * ranks
    mean = numpy.zeros(D, f32)
    for array in x:
        at = largest(array, D // 20)
        mean[at] += array[at] / 2
    assert numpy.allclose(exchanges[0].out, mean)


def test_a_residual_scaled_by_hand_is_efsignsgd():
    states = [deepreduce.State(gradient(0), f"{TOP} feedback={feedback}") for feedback in ("efsignsgd", "residual")]
    before = None
    for step, lr in enumerate([0.5, 0.25, 0.25, 1.0]):
        if before:
            states[1].scale(before / lr)
        before = lr
        a = deepreduce.encode(gradient(step), f"{TOP} feedback=efsignsgd(lr={lr})", state=states[0])
        b = deepreduce.encode(gradient(step), f"{TOP} feedback=residual", state=states[1])
        assert a == b


FEEDBACKS = ["residual", "efsignsgd(lr=0.2)", "dgc(momentum=0.8)", "momentum"]


@pytest.mark.parametrize("feedback", FEEDBACKS)
@pytest.mark.parametrize("how", ["bytes", "pickle", "batch"])
def test_a_state_that_was_saved_goes_on_bit_for_bit(feedback, how):
    plan = f"{TOP} feedback={feedback}"
    one = deepreduce.State(gradient(0), plan)
    for step in range(3):
        deepreduce.encode(gradient(step), plan, state=one, step=step)
    two = pickle.loads(pickle.dumps(one)) if how == "pickle" else deepreduce.State(gradient(0), plan)
    if how != "pickle":
        two.load_state_dict(one.state_dict())
    two.check(gradient(0), plan)
    batch = deepreduce.Batch(gradient(0), plan)
    for step in range(3, 6):
        a = deepreduce.encode(gradient(step), plan, state=one, step=step)
        if how == "batch":
            b = batch.encode(gradient(step), state=two, step=step)
        else:
            b = deepreduce.encode(gradient(step), plan, state=two, step=step)
        assert bytes(a) == bytes(b) and numpy.array_equal(one.memory, two.memory)
    one.memory[:] = 0  # a reset state is a fresh one
    fresh = deepreduce.State(gradient(0), plan)
    a, b = (deepreduce.encode(gradient(9), plan, state=state) for state in (one, fresh))
    assert a == b and numpy.array_equal(one.memory, fresh.memory)


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_memory_use_is_told(feedback):
    size = deepreduce.State(gradient(0), f"{TOP} feedback={feedback}").size
    arrays = 2 if feedback.startswith("dgc") else 1
    assert size == 16 + 4 * D * arrays + (8 if feedback.startswith("ef") else 0)


@pytest.mark.parametrize("made", FEEDBACKS)
@pytest.mark.parametrize("given", FEEDBACKS)
def test_another_feedback_or_shape_is_refused(made, given):
    state = deepreduce.State(gradient(0), f"{TOP} feedback={made}")
    deepreduce.encode(gradient(0), f"{TOP} feedback={made}", state=state)
    plan = f"{TOP} feedback={given}"
    if made != given:
        with pytest.raises(deepreduce.ArgumentError, match=f"feedback={made.split('(')[0]}"):
            deepreduce.encode(gradient(0), plan, state=state)
        with pytest.raises(deepreduce.ArgumentError, match="feedback="):
            state.check(gradient(0), plan)
    else:
        with pytest.raises(deepreduce.ArgumentError, match="belongs to a tensor of 2000 elements"):
            deepreduce.encode(gradient(0, d=D - 1), plan, state=state)


def test_a_lost_frame_goes_back_to_v():
    plan = f"{TOP} feedback=dgc"
    state, g = deepreduce.State(gradient(0), plan), gradient(0)
    frame = deepreduce.encode(g, plan, state=state)
    assert numpy.array_equal(deepreduce.merge([frame], out=state.residual), g)
    masked = state.momentum != g
    assert masked.sum() == D // 20 and not state.momentum[masked].any()


def sign(x):
    return numpy.where(x < 0, f32(-1), f32(1))


def test_merge_votes():
    x = [numpy.round(gradient(0, rank)) for rank in range(4)]  # so that there are ties
    total = sum(x)
    assert (total == 0).any()
    frames = [deepreduce.encode(array, "index=all value=raw") for array in x]
    assert numpy.array_equal(deepreduce.merge(frames, vote=True), sign(total))
    out = numpy.full(D, 5, f32)
    assert deepreduce.merge(frames, vote=True, out=out) is out and numpy.array_equal(out, sign(total))
    plan = deepreduce.Plan("index=all value=raw merge=vote")
    assert plan.info.votes and not deepreduce.Plan("index=all").info.votes
    batch = deepreduce.Batch(x[0], plan, frames=4)
    assert numpy.array_equal(batch.merge(frames), sign(total))
    out[:] = 5
    assert numpy.array_equal(batch.merge(frames, out), sign(total))
    out[:] = 0
    assert numpy.array_equal(batch.merge(frames, out, add=True), total)
    bound = batch.bind(out=out, frames=4)
    assert numpy.array_equal(bound.merge(frames), sign(total))
    out[:] = 0
    assert numpy.array_equal(bound.merge(frames, add=True), total)


def test_an_exchange_votes():
    loopback = Loopback(3)
    x = [numpy.round(gradient(0, rank)) for rank in range(3)]
    ranks = [Exchange(x[r], "index=all value=raw merge=vote", loopback.transport(r)) for r in range(3)]
    for rank in ranks:
        rank.start(0)
    assert loopback.run(ranks) == [None] * 3
    assert all(numpy.array_equal(rank.out, sign(sum(x))) for rank in ranks)


def test_an_exchange_tells_its_momentum():
    loopback = Loopback(1)
    x, oracle = gradient(0), Dgc(0.9, 0.05)
    exchange = Exchange(x, f"{TOP} feedback=dgc", loopback.transport(0))
    for step in range(3):
        x[:] = gradient(step)
        exchange.start(step)
        assert loopback.run([exchange]) == [None]
        assert numpy.array_equal(exchange.out, oracle.step(x))
    assert numpy.array_equal(exchange.residual(which="momentum"), oracle.u)
    assert numpy.array_equal(exchange.residual(), oracle.v)
    exchange.set_residual(oracle.u * 2, which="momentum")
    assert numpy.array_equal(exchange.residual(which="momentum"), oracle.u * 2)
    assert numpy.array_equal(exchange.residual(), oracle.v)
