"""Chains of patches with a history: exact, shorter, and refused where the history is another."""

import hashlib

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

from patch_weights import bits, copied, stepped, weights  # noqa: E402

import deepreduce  # noqa: E402
from deepreduce import patch  # noqa: E402


class Training:
    """AdamW on f32, of which bf16 words are sent: gradients with a mean of their own for each weight."""

    def __init__(self, shapes, rate=2e-5, seed=1):
        self.random = numpy.random.default_rng(seed)
        self.master = {name: self.random.normal(0, 0.02, shape).astype(numpy.float32) for name, shape in shapes.items()}
        self.slope = {name: self.random.normal(0, 1, shape).astype(numpy.float32) for name, shape in shapes.items()}
        self.m = {name: numpy.zeros(shape, numpy.float32) for name, shape in shapes.items()}
        self.v = {name: numpy.ones(shape, numpy.float32) for name, shape in shapes.items()}
        self.rate = rate

    def step(self):
        for name, w in self.master.items():
            g = self.slope[name] + self.random.normal(0, 2, w.shape).astype(numpy.float32)
            self.m[name] += numpy.float32(0.1) * (g - self.m[name])
            self.v[name] += numpy.float32(0.01) * (g * g - self.v[name])
            w -= numpy.float32(self.rate) * self.m[name] / numpy.sqrt(self.v[name])

    def words(self):
        return {name: (w.view(numpy.uint32) + 0x8000 >> 16).astype(numpy.uint16) for name, w in self.master.items()}


def digest(tensors):
    return hashlib.sha256(b"".join(tensors[name].tobytes() for name in sorted(tensors))).hexdigest()


def test_a_chain_of_100_patches_by_a_history_with_late_joiners():
    """Weights are sent whole every 25 steps, and all forget their history then: who joins begins there, or replays the patches since."""
    training = Training({"w": (120, 400), "b": (7,), "none": (0,)})
    here = training.words()
    sent = patch.History(here)
    engines, anchor, since = {}, (0, copied(here)), []
    with_it = without = 0
    for step in range(1, 101):
        training.step()
        now = training.words()
        without += len(patch.encode(here, now))
        data = patch.encode(here, now, history=sent)
        with_it += len(data)
        here = now
        since.append(data)
        for held, history in engines.values():
            patch.apply(held, data, history=history)
        if step in (3, 24, 26, 60, 99):  # joins, by the last whole weights and the patches since
            held = copied(anchor[1])
            history = patch.History(held)
            for earlier in since:
                patch.apply(held, earlier, history=history)
            engines[step] = (held, history)
        if step % 25 == 0:
            anchor, since = (step, copied(here)), []
            sent.clear()
            for _, history in engines.values():
                history.clear()
        assert {digest(held) for held, _ in engines.values()} <= {digest(here)}
    assert len(engines) == 5
    for held, history in engines.values():
        assert digest(held) == digest(here) and history.check() == sent.check()
    assert with_it < 0.92 * without


def test_a_patch_by_another_history_is_refused_and_names_the_tensor():
    old = weights()
    sent = patch.History(old)
    new = stepped(old)
    first = patch.encode(old, new, history=sent)
    newer = stepped(new, seed=9)
    second = patch.encode(new, newer, history=sent)
    held, history = copied(old), patch.History(old)
    patch.apply(held, first)  # of a history of zeros, as before the first patch
    for wrong in (None, history):
        check = history.check()
        with pytest.raises(deepreduce.WrongBase, match="the history of these weights is another than their sender's"):
            patch.apply(held, second, history=wrong)
        with pytest.raises(deepreduce.WrongBase, match="another") as caught:
            patch.changes(second, held, history=wrong)
        assert str(caught.value).endswith("; none was passed (history=), which stands for one of zeros") == (wrong is None)
        assert bits(held) == bits(new) and history.check() == check
    held = copied(old)
    patch.apply(held, first, history=history)
    pairs = patch.changes(second, held, history=history)
    patch.apply(held, second, history=history)
    assert bits(held) == bits(newer) and history.check() == sent.check()
    for name, (indices, values) in pairs.items():
        assert bits({name: values}) == bits({name: held[name].reshape(-1)[indices]})
    with pytest.raises(deepreduce.ArgumentError, match="history: it is of other weights"):
        patch.apply(held, second, history=patch.History({"other": numpy.zeros(3)}))


def test_histories_of_pieces_and_threads_are_the_same(monkeypatch):
    from deepreduce.patch import _patch_file

    monkeypatch.setattr(_patch_file, "PIECE", 1 << 13)
    training = Training({"w": (41, 500), "v": (3000,)}, rate=1e-4)
    here = training.words()
    held = copied(here)
    one, three, received = patch.History(here), patch.History(here), patch.History(here)
    sums = patch.Sums(held)
    for _ in range(6):
        training.step()
        now = training.words()
        data = patch.encode(here, now, history=one)
        assert patch.encode(here, now, history=three, threads=3) == data
        patch.apply(held, data, history=received, sums=sums, threads=3)
        here = now
        assert digest(held) == digest(here)
        assert one.check() == three.check() == received.check()
    copy = received.copy()
    copy.clear()
    assert copy.check() == patch.History(here).check() != received.check()


def test_a_failed_encode_leaves_the_history():
    old = weights()
    history = patch.History(old)
    patch.encode(old, stepped(old), history=history)
    check = history.check()
    with pytest.raises(deepreduce.ArgumentError, match="no such plan|cannot make patches|plan"):
        patch.encode(old, stepped(old), "index=golomb", history=history)
    assert history.check() == check


@pytest.mark.parametrize("threads", [None, 3])
def test_all_of_a_history_grows_older_whether_its_tensor_changes_or_not(threads):
    """Tied weights, small tensors side by side, one that changes once only, one of no weights."""
    training = Training({"w": (60, 100), "bias": (7,), "still": (300,), "none": (0,)}, rate=1e-3)
    here = training.words()
    still = here["still"].copy()
    one = here["w"].copy()
    held = {**copied(here), "w": one, "tied": one}
    here["tied"] = here["w"].copy()
    sent, received, sums = patch.History(here), patch.History(held), patch.Sums(held)
    for step in range(5):
        training.step()
        now = training.words()
        now["still"] = still if step == 0 else still + numpy.uint16(1)
        now["tied"] = now["w"].copy()
        data = patch.encode(here, now, history=sent, threads=threads)
        patch.apply(held, data, history=received, sums=sums, threads=threads)
        here = now
        assert bits(held) == bits(here)
        assert received.check() == sent.check()
    zeros = patch.History(here)
    assert sums.check("tied") == sums.check("w") == patch.Sums(here).check("w")
    patch.encode(here, here, history=zeros)
    assert zeros.check() == patch.History(here).check()  # of zeros nothing is older
    before = sent.check()
    patch.apply(held, patch.encode(here, here, history=sent), history=received)
    assert sent.check() == received.check() != before


def test_an_error_in_one_tensor_leaves_all_histories():
    old = weights()
    sent, received = patch.History(old), patch.History(old)
    new = stepped(old)
    data = patch.encode(old, new, history=sent)
    for name in old:
        held = copied(old)
        held[name].reshape(-1)[0] += 1
        before, check = bits(held), received.check()
        with pytest.raises(deepreduce.WrongBase, match=f"^{name}: its check is"):
            patch.apply(held, data, history=received)
        assert bits(held) == before and received.check() == check
    held = copied(old)
    patch.apply(held, data, history=received)
    assert bits(held) == bits(new) and received.check() == sent.check()


@pytest.mark.parametrize("still", [[], ["embed", "layer.0"]])
def test_a_history_for_a_patch_that_was_made_without_one_is_refused(still):
    """A history could not follow tensors that share a frame or have none."""
    old = weights()
    new = {**stepped(old), **{name: old[name] for name in still}}
    names = list(old) if not still else ["embed", "bias"]
    old, new = ({name: model[name] for name in names} for model in (old, new))
    for held, data in ((old, patch.encode(old, new)), (old["bias"], patch.encode(old["bias"], old["bias"]))):
        history, before = patch.History(held), bits(old)
        for call in (lambda: patch.apply(held, data, history=history), lambda: patch.changes(data, held, history=history)):
            with pytest.raises(deepreduce.ArgumentError, match="^history: the patch was made without one$"):
                call()
        assert bits(old) == before
