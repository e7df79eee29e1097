"""deepreduce.outer.Folder: workers that come and go. All workers are in this process, on a clock of their own; a few are processes."""

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")
if not importlib.util.find_spec("torch"):
    pytest.skip("torch is missing: pip install torch", allow_module_level=True)

import torch  # noqa: E402

import deepreduce  # noqa: E402
from deepreduce.outer import Folder, Outer  # noqa: E402
from deepreduce.outer import _contribution, _folder, _folder_exchange, _fragment_coder  # noqa: E402
from deepreduce.patch import Store  # noqa: E402

HERE = pathlib.Path(__file__).parent
TOP = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=raw"
SPARSE = "sparsify=topr(ratio=0.03) feedback=residual(beta=0.95) index=golomb value=lloyd(levels=4)"
DEADLINE = 10.0
UNIT = 2.0**-6  # of all weights of the test of many rounds, so that sums are exact
COARSE = 512  # of weights of so many UNITs some moves are below what bf16 shows


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("deepreduce.outer").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("deepreduce.outer").setLevel(logging.NOTSET)


class Killed(BaseException):
    """What ends a worker in the middle of what it does."""


class World:
    """Workers as threads, of which one runs at a time, in an order that is the same each time. Their clock moves when all wait."""

    def __init__(self):
        self.now, self.paused = 0.0, threading.Semaphore(0)
        self.wakes, self.turns, self.errors, self.doomed = {}, {}, {}, set()

    def start(self, name, work):
        def run():
            self.wait_for_turn(name)
            try:
                work()
            except Killed:
                pass
            except BaseException as error:  # noqa: B036
                self.errors[name] = error
            del self.wakes[name]
            self.paused.release()

        self.wakes[name], self.turns[name] = self.now, threading.Semaphore(0)
        threading.Thread(target=run, daemon=True).start()

    def wait_for_turn(self, name):
        self.turns[name].acquire()
        if name in self.doomed:
            self.doomed.discard(name)
            raise Killed

    def sleep(self, name, seconds):
        self.wakes[name] = self.now + seconds
        self.paused.release()
        self.wait_for_turn(name)

    def run(self, limit=1e6):
        """Until all workers have ended."""
        while self.wakes:
            name = min(sorted(self.wakes), key=lambda worker: self.wakes[worker])
            self.now = max(self.now, self.wakes[name])
            assert self.now < limit, f"{name} hangs: {self.wakes}"
            self.turns[name].release()
            assert self.paused.acquire(timeout=240), f"{name} does not end"
        if self.errors:
            name, error = next(iter(self.errors.items()))
            raise AssertionError(f"worker {name}: {type(error).__name__}: {error}") from error

    def folder(self, path, name, **options):
        made = Folder(path, name, DEADLINE, **options)
        made._clock, made._sleep = lambda: self.now, lambda seconds: self.sleep(name, 20 * seconds)
        return made


class Rounded(torch.optim.Optimizer):
    """SGD whose weights are multiples of UNIT, so that the test of many rounds adds without rounding."""

    def __init__(self, weights):
        super().__init__(weights, {"lr": 1.0})

    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(torch.round(parameter.grad / UNIT) * UNIT)


def model_of(seed=0, size=2000, scale=1):
    """Weights that are small multiples of UNIT, and a counter."""
    made = torch.nn.Module()
    generator = torch.Generator().manual_seed(seed)
    made.weight = torch.nn.Parameter(torch.randint(-50, 50, (size,), generator=generator) * UNIT * scale)
    made.bias = torch.nn.Parameter(torch.zeros(30))
    made.register_buffer("seen", torch.zeros(1, dtype=torch.int64))
    return made


def move(model, generator, scale=40):
    """An inner step: exact multiples of UNIT."""
    for parameter in model.parameters():
        parameter.data += torch.round(scale * torch.randn(parameter.shape, generator=generator).clamp(-3, 3) ** 3 / 9) * UNIT
    model.seen += 1


def weights_of(outer):
    return {name: weight.clone() for name, weight in outer._agreed.weights.items()}


def residual_of(outer):
    """[elements], f64"""
    sender, found = outer._exchange._coders[0].sender, []
    for name, weight in outer._agreed.weights.items():
        memory = sender.read_state(name)
        state = deepreduce.State(weight, sender.plan_of(name))
        state.load_state_dict({"state": memory})
        found.append(state.residual.astype(numpy.float64) if memory[:8].any() else numpy.zeros(weight.numel()))
    return numpy.concatenate(found)


def decoded(outer, listed, number):
    """What the file of a contribution adds, [elements] f64; by a sender of the test's."""
    data = outer._exchange._folder.read_part(number, listed.name, 1 << 30)
    assert hashlib.sha256(data).hexdigest() == listed.sha256
    found = _contribution.unpack(data, listed.name, number, outer._exchange._terms, outer._exchange._copies)
    coder = outer._exchange._coders[0]
    arrays = coder.merge([found.slots], number)
    return numpy.concatenate([array.reshape(-1).astype(numpy.float64) for array in arrays.values()])


def same_bits(a, b):
    return all(torch.equal(a[name].view(torch.int32), b[name].view(torch.int32)) for name in a)


# ---- 200 rounds of eight workers -----------------------------------------------------------------


class Story:
    """What the test knows of all workers: an account of what was moved, and where it went."""

    FAULTS = (
        ["none"] * 60
        + ["slow"] * 8
        + ["late", "late", "killed before it posts", "killed after it posted", "killed while it waits", "killed while it stores"]
        + ["nan", "absurd", "garbage", "damaged", "another round", "another model", "another name", "long"]
    )

    def __init__(self, path, seed, rounds):
        self.path, self.random, self.rounds = path, random.Random(seed), rounds
        self.world = World()
        self.agreed = {}  # {round: weights after it}
        self.seen = {}  # {round: (accepted, refused)}, as the first to apply it had it
        self.moved = self.applied = self.lost = self.dropped = 0.0
        self.counts = dict.fromkeys([*self.FAULTS, "restart from a checkpoint", "restart anew", "caught up by stored weights"], 0)
        self.live, self.fault_of, self.checkpoints = {}, {}, {}
        self.in_hand, self.gone = {}, {}  # of the living, and of the killed: what is sent and neither applied nor kept

    def worker(self, name, fresh=True):
        """Lives until the rounds are over, or it is killed; then another life begins, later."""

        def live():
            model, generator = model_of(hash_of(name)), torch.Generator().manual_seed(hash_of(name) + self.random.randrange(1 << 20))
            folder = self.world.folder(self.path, name, store_every=4)
            outer = Outer(model, TOP, every=2, optimizer=Rounded, group=folder)
            self.watch(outer, name)
            saved = self.checkpoints.get(name)
            if saved is not None and self.random.random() < 0.5:
                self.counts["restart from a checkpoint"] += 1
                model.load_state_dict(saved[0])
                outer.load_state_dict(saved[1])
                self.lost = self.lost - residual_of(outer)
            elif not fresh:
                self.counts["restart anew"] += 1
            self.live[name] = outer
            while outer._round < self.rounds:
                self.world.sleep(name, 1.0 + self.random.random())  # at work
                self.steps(name, model, outer, generator)
                if self.random.random() < 0.2:
                    self.checkpoints[name] = (
                        {key: value.clone() for key, value in model.state_dict().items()},
                        outer.state_dict(),
                    )

        def guarded():
            try:
                live()
            except Killed:
                outer = self.live.pop(name, None)
                if outer is not None:
                    self.lost = self.lost + residual_of(outer)
                    if name in self.in_hand:  # (applied all the same, if it was posted and the round has it)
                        self.gone.setdefault(name, []).append(self.in_hand.pop(name))
                        self.lost = self.lost + self.gone[name][-1]
                if len(self.world.wakes) > 1:
                    again = self.world.now + self.random.choice([3.0, 30.0, 300.0])

                    def later():
                        self.world.sleep(name, again - self.world.now)
                        self.worker(name, fresh=False)()

                    later()

        return guarded

    def steps(self, name, model, outer, generator):
        fault = self.random.choice(self.FAULTS) if outer._round > 2 and outer._round < self.rounds - 20 else "none"
        self.counts[fault] += 1
        self.fault_of[name] = fault
        if fault == "late":
            self.world.sleep(name, self.random.choice([1.5, 8.0]) * DEADLINE)
        if fault == "slow":
            self.world.sleep(name, 0.8 * DEADLINE)
        for _ in range(2):
            move(model, generator)
            if _ == 1 and fault == "nan":
                model.weight.data[7] = float("nan")
            if _ == 1 and fault == "absurd":
                model.weight.data += 2.0**13
            outer.step()
        self.fault_of[name] = "none"
        here = weights_of(outer)
        assert same_bits(here, {key: parameter.data for key, parameter in model.named_parameters()}), name

    def watch(self, outer, name):
        """Reads along what the worker's exchange does, and makes its faults."""
        exchange, folder = outer._exchange, outer._exchange._folder
        start, merge, post, put = exchange.start, exchange._merge, folder.post, exchange._put
        give_back, was_refused, load = exchange._return, exchange._was_refused, exchange._load_stored

        def started(number, steps, moves, means, copies, weight):
            fault = self.fault_of[name]
            total = numpy.concatenate([move_.numpy().reshape(-1).astype(numpy.float64) for move_ in moves.values()])
            if fault != "nan":
                self.moved = self.moved + total
            before = residual_of(outer) if fault != "nan" else 0.0
            try:
                start(number, steps, moves, means, copies, weight)
            finally:
                if fault != "nan":
                    self.in_hand[name] = before + total - residual_of(outer)

        def posted(number, data):
            fault = self.fault_of[name]
            if fault == "killed before it posts":
                raise Killed
            if fault in ("garbage", "damaged", "another round", "another model", "another name", "long"):
                data = self.spoilt(fault, number, data, outer)
            done = post(number, data)
            if fault == "killed after it posted":
                raise Killed
            if fault == "killed while it waits":
                self.world.doomed.add(name)
            return done

        def merged(number, accepted):
            names = tuple(contribution.name for contribution in accepted)
            if number not in self.seen:
                self.seen[number] = names
                closed = folder.closed(number)
                parts = {contribution.name: contribution for contribution in closed.listed}
                for worker in names:
                    sent = decoded(outer, parts[worker], number)
                    self.applied = self.applied + sent
                    if numpy.array_equal(sent, self.in_hand.get(worker)):
                        del self.in_hand[worker]
                    else:
                        assert any(numpy.array_equal(sent, other) for other in self.gone.get(worker, [])), (worker, number, name)
                        self.lost = self.lost - sent
            assert self.seen[number] == names, (name, number)
            merge(number, accepted)
            here = weights_of(outer)
            there = self.agreed.setdefault(number, here)
            assert same_bits(here, there), f"{name} has other weights after round {number}"

        def returned(sent, why):
            give_back(sent, why)
            self.in_hand.pop(name, None)

        def refused(sent, why):
            before = residual_of(outer) + self.in_hand.pop(name, 0.0) if not sent.dropped else None
            was_refused(sent, why)
            if before is not None:
                self.dropped = self.dropped + before - residual_of(outer)

        def stored():
            if self.fault_of[name] == "killed while it stores":
                (folder.path / "weights").mkdir(exist_ok=True)
                (folder.path / "weights" / ".0000000099-00000000.drpatch.1").write_bytes(b"half")
                raise Killed
            put()

        def loaded():
            load()
            self.counts["caught up by stored weights"] += exchange.round > 0
            before = self.agreed.get(exchange.round - 1)
            assert before is None or same_bits(weights_of(outer), before), f"{name}: the stored weights of round {exchange.round}"

        exchange.start, exchange._merge, folder.post, exchange._put = started, merged, posted, stored
        exchange._return, exchange._was_refused, exchange._load_stored = returned, refused, loaded

    def spoilt(self, fault, number, data, outer):
        exchange = outer._exchange
        if fault == "garbage":
            return self.random.randbytes(self.random.choice([0, 1, 40, 3000]))
        if fault == "damaged":
            at = self.random.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1 << self.random.randrange(8)]) + data[at + 1 :]
        if fault == "long":
            return data + bytes(1 << 20)
        found = _contribution.unpack(data, exchange._folder.name, number, exchange._terms, exchange._copies)
        name, terms = exchange._folder.name, exchange._terms
        if fault == "another round":
            number -= 1
        if fault == "another model":
            terms = "0123456789abcdef"
        if fault == "another name":
            name = "stranger"
        return _contribution.pack(name, number, terms, found.base, 1.0, "", found.slots, bytes(found.copies))


def hash_of(name):
    return int(hashlib.sha256(name.encode()).hexdigest()[:6], 16)


def test_200_rounds_of_eight_workers_with_faults(tmp_path):
    """Survivors agree bit for bit, nothing hangs, and residuals add up: what was applied, plus what all workers keep, plus what
    went with the killed, is what all have moved, exactly."""
    story = Story(tmp_path / "run", seed=20261126, rounds=200)
    for i in range(8):
        story.world.start(f"w{i}", story.worker(f"w{i}"))
    begin = time.monotonic()
    story.world.run()
    print(f"{time.monotonic() - begin:.1f} s", story.counts)
    finals = [weights_of(outer) for outer in story.live.values()]
    assert len(finals) >= 6 and all(same_bits(finals[0], final) for final in finals)
    assert {outer._round for outer in story.live.values()} == {story.rounds}
    assert all(story.counts.values()), story.counts
    left = sum(residual_of(outer) for outer in story.live.values())
    total = story.applied + left + story.lost + story.dropped
    assert numpy.array_equal(total, story.moved), numpy.abs(total - story.moved).max()


# ---- One promise at a time -----------------------------------------------------------------------


def together(world, path, works, plan=TOP, **options):
    """{name: (model, outer)} after each worker has run its function of (model, outer)."""
    found = {}

    def worker(name, work):
        def live():
            model = model_of(hash_of(name))
            outer = Outer(model, plan, every=2, optimizer=Rounded, group=world.folder(path, name, **options))
            found[name] = model, outer
            work(model, outer)

        world.start(name, live)

    for name, work in works.items():
        worker(name, work)
    world.run()
    return found


def rounds(count, seed=0, before=None, pause=1.0):
    """Work of so many rounds."""

    def work(model, outer):
        world_sleep, generator = outer._exchange._folder._sleep, torch.Generator().manual_seed(seed)
        for number in range(count):
            world_sleep(pause / 20)
            if before:
                before(number, model, outer)
            for _ in range(2):
                move(model, generator)
                outer.step()

    return work


def test_a_round_has_the_weights_and_counters_of_all_and_each_ends_with_the_same_bits(tmp_path):
    found = together(World(), tmp_path, {f"w{i}": rounds(4, i) for i in range(3)})
    (first, outer), *others = found.values()
    assert outer.info.last.workers == ("w0", "w1", "w2") and outer.info.rounds == 4 and not outer.info.last.refused
    for model, other in others:
        assert same_bits(weights_of(outer), weights_of(other)) and torch.equal(model.weight, first.weight)
    assert first.seen.tolist() == [8]


@pytest.mark.parametrize("plan", [TOP, None])
def test_a_worker_that_is_refused_is_named_by_all_with_the_reason(tmp_path, plan):
    def spoil(number, model, outer):
        if number == 1:
            model.weight.data[3] = float("inf")
        if number == 2:
            model.weight.data *= 2.0**14

    seen = {}

    def work(name, before=None):
        def run(model, outer):
            def remember(number, *_):
                seen.setdefault(number - 1, []).append(outer.info.last and outer.info.last.refused)
                if before:
                    before(number, model, outer)

            rounds(4, hash_of(name), remember)(model, outer)

        return run

    found = together(World(), tmp_path, {"w0": work("w0"), "w1": work("w1", spoil), "w2": work("w2")}, plan)
    assert seen[0] == [{}] * 3
    assert seen[1] == [{"w1": "weight: what it moved is not finite"}] * 3
    assert [list(names) for names in seen[2]] == [["w1"]] * 3 and seen[2][0] == seen[2][1] == seen[2][2]
    assert "times the median of the round" in seen[2][0]["w1"]
    assert all(same_bits(weights_of(found["w0"][1]), weights_of(outer)) for _, outer in found.values())
    assert found["w0"][1].info.last.workers == ("w0", "w1", "w2")  # it is back


def test_a_worker_that_is_refused_goes_on_from_the_agreed_weights_also_with_overlap(tmp_path):
    def worker(name):
        model, generator = model_of(), torch.Generator().manual_seed(hash_of(name))
        outer = Outer(model, TOP, every=4, overlap=2, optimizer=Rounded, group=world.folder(tmp_path, name))
        refused = []
        for step in range(18):
            world.sleep(name, 1.0)
            move(model, generator)
            if step == 5 and name == "w1":
                model.weight.data[7] = float("nan")
            if outer.step():
                refused.append(list(outer.info.last.refused))
        assert refused == [[], ["w1"], [], []] and bool(model.weight.isfinite().all())

    world = World()
    for name in ("w0", "w1"):
        world.start(name, lambda name=name: worker(name))
    world.run()


@pytest.mark.parametrize("plan, more", [(None, 0), ("index=all value=uniform_quant(bits=8)", 0), (TOP, 1)])
def test_a_round_decodes_a_contribution_once_and_hashes_the_agreed_weights_once(tmp_path, plan, more):
    """(Of a sparse plan decoding again at the mean is cheaper than keeping what was decoded.)"""
    counts = {}

    def work(model, outer):
        coder, agreed = outer._exchange._coders[0], outer._agreed
        count = counts[outer._exchange._folder.name] = {"decoded": [], "hashes": 0}
        merge, check = coder.merge, agreed._compute_check

        def merged(slots, number):
            count["decoded"].append(len(slots))
            return merge(slots, number)

        def checked():
            count["hashes"] += 1
            return check()

        coder.merge, agreed._compute_check = merged, checked
        rounds(5, hash_of(outer._exchange._folder.name))(model, outer)

    found = together(World(), tmp_path, {f"w{i}": work for i in range(3)}, plan)
    outers = [outer for _, outer in found.values()]
    assert outers[0].info.last.workers == ("w0", "w1", "w2") and all(same_bits(weights_of(outers[0]), weights_of(outer)) for outer in outers)
    for count in counts.values():
        assert count == {"decoded": [1, 1, 1, *[3] * more] * 5, "hashes": 5}


def test_a_mean_of_dense_contributions_is_theirs_also_where_one_is_refused_for_its_norm(tmp_path):
    def work(model, outer):
        for number in range(2):
            outer._exchange._folder._sleep(0.05)
            at = int(outer._exchange._folder.name[1])
            model.weight.data += [1.0, 2.0, 6.0, 2.0**20 if number else 3.0][at]
            outer.step()
            outer.step()

    found = together(World(), tmp_path, {f"w{i}": work for i in range(4)}, None)
    model, outer = found["w0"]
    assert outer.info.last.workers == ("w0", "w1", "w2") and torch.equal(model.weight - model_of(hash_of("w0")).weight, torch.full((2000,), 6.0))


def test_what_a_late_worker_sends_is_not_lost(tmp_path):
    """It is left out of the round, its contribution goes to its residual, and it catches up."""
    late = {}

    def sleep(number, model, outer):
        if number == 1:
            outer._exchange._folder._sleep(4 * DEADLINE / 20)
        if number == 2:
            late["round"], late["residual"] = outer.info.last, numpy.abs(residual_of(outer)).sum()

    found = together(World(), tmp_path, {"w0": rounds(3, 0, pause=6), "w1": rounds(3, 1, sleep)})
    (_, first), (_, second) = found.values()
    assert late["round"].sent == 0 and late["round"].workers == ("w0",) and late["residual"] > 0
    assert second.info.last.workers == ("w1",) and second.info.rounds == 4  # all three of the other's are in it
    first._exchange._catch_up()
    assert same_bits(weights_of(first), weights_of(second))


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("call", ["post", "closed", "close", "read_part", "announce"])
def test_a_round_that_the_file_system_refuses_is_tried_again_by_the_next_step_and_nothing_is_lost(tmp_path, monkeypatch, call, overlap):
    whole, calls = getattr(Folder, call), []

    def fails(self, *arguments):
        calls.append(1)
        if len(calls) in (3, 7, 8):
            raise OSError(28, "No space left on device")
        return whole(self, *arguments)

    def work():
        model, generator = model_of(), torch.Generator().manual_seed(1)
        outer = Outer(model, TOP, every=3, overlap=overlap, optimizer=Rounded, group=world.folder(tmp_path, "w0"))
        begin, after, failed = model.weight.detach().clone(), model.weight.detach().clone(), 0
        monkeypatch.setattr(Folder, call, fails)
        for _ in range(40):
            before = model.weight.detach().clone()
            move(model, generator)
            after += model.weight.detach() - before
            try:
                outer.step()
            except OSError:
                failed += 1
        monkeypatch.setattr(Folder, call, whole)
        outer._agree()
        under_way = outer._sent["weight"] if outer._sent else outer._agreed.weights["weight"]
        since = model.weight.detach() - under_way  # trained since the last round
        account = (
            outer._agreed.weights["weight"]
            - begin
            - torch.from_numpy(residual_of(outer)[: begin.numel()]).float()
            + since
        )
        assert failed == 3 and outer.info.rounds > 8 and torch.equal(account, after - begin)

    world = World()
    world.start("w0", work)
    world.run()


@pytest.mark.parametrize("what, error", [
    ("put", deepreduce.CorruptFrame("damaged")), ("put", deepreduce.Unsupported("of no type")), ("put", TypeError("not JSON")),
    ("put", KeyboardInterrupt()), ("sweep", OSError(28, "No space left on device")),
])  # fmt: skip
def test_a_round_that_is_applied_is_not_applied_again_if_its_weights_cannot_be_stored(tmp_path, monkeypatch, caplog, what, error):
    model, generator = model_of(), torch.Generator().manual_seed(1)
    outer = Outer(model, TOP, every=1, optimizer=Rounded, group=Folder(tmp_path, "w0", store_every=1))
    kind, calls = (Store, []) if what == "put" else (Folder, [])
    whole = getattr(kind, what)

    def fails(self, *arguments):
        calls.append(1)
        if len(calls) == 2:
            raise error
        return whole(self, *arguments)

    monkeypatch.setattr(kind, what, fails)
    logging.getLogger("deepreduce.outer").setLevel(logging.WARNING)
    for step in range(4):
        move(model, generator)
        if step == 1 and isinstance(error, KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                outer.step()
            continue
        assert outer.step() and outer.info.last.workers == ("w0",) and not outer.info.last.refused
    assert outer.info.rounds == 4 and ("round 2 were not stored" in caplog.text) != isinstance(error, KeyboardInterrupt)
    weights = weights_of(outer)
    assert same_bits(weights_of(Outer(model_of(), TOP, every=1, optimizer=Rounded, group=Folder(tmp_path, "w1"))), weights)


def test_what_a_plan_cannot_encode_is_refused_by_all_with_the_reason_and_the_history_goes_on(tmp_path):
    seen = []

    def spoil(number, model, outer):
        seen.append(dict(outer.info.last.refused) if number else {})
        if number in (1, 2):
            model.weight.data[3] = -3e38  # the second time with what the first left in the residual

    found = together(
        World(),
        tmp_path,
        {"w0": rounds(5, 0), "w1": rounds(5, 1, spoil)},
        TOP.replace("raw", "half"),
        norm_bound=float("inf"),
    )
    (_, first), (_, second) = found.values()
    assert any(re.search("value=half.* weight: .* infinite", refused.get("w1", "")) for refused in seen), seen
    assert first.info.rounds == second.info.rounds == 5 and same_bits(weights_of(first), weights_of(second))


def test_a_worker_that_comes_later_catches_up_by_stored_weights_and_rounds(tmp_path):
    world, first = World(), {}

    def long(model, outer):
        rounds(11, 1)(model, outer)

    def newcomer(model, outer):
        first["round"] = outer.info.rounds
        rounds(1, 2)(model, outer)

    old = together(world, tmp_path, {"w0": long, "w1": long}, store_every=4)
    names = sorted(path.name for path in (tmp_path / "rounds").iterdir())
    assert int(names[0]) >= 4  # those before are gone
    new = together(world, tmp_path, {"w2": newcomer}, store_every=4)
    assert first["round"] == 11 and new["w2"][1].info.rounds == 12
    before = old["w0"][1]
    before._exchange._catch_up()
    assert same_bits(weights_of(before), weights_of(new["w2"][1]))


@pytest.mark.parametrize(
    "plan, words",
    [
        (TOP, "its contribution returns to its residual: it arrived after the round was closed"),
        (None, "its contribution is lost, since its plan has no residual: it arrived after"),
        ([("bias", None), ("*", TOP)], "its contribution returns to its residual; that of bias and all others whose plan has no residual is lost: it"),
    ],
)
def test_the_log_says_what_becomes_of_a_late_contribution(tmp_path, caplog, plan, words):
    def late(number, model, outer):
        if number == 1:
            outer._exchange._folder._sleep(4 * DEADLINE / 20)

    with caplog.at_level(logging.WARNING, "deepreduce.outer"):
        together(World(), tmp_path, {"w0": rounds(3, 0, pause=6), "w1": rounds(3, 1, late)}, plan)
    assert f"worker w1, round 1: {words}" in caplog.text


def test_two_workers_of_one_name_are_told_so(tmp_path, caplog):
    world, found = World(), []

    def live():
        model = model_of()
        outer = Outer(model, TOP, every=2, optimizer=Rounded, group=world.folder(tmp_path, "w0"))
        found.append(outer)
        rounds(2, len(found))(model, outer)

    with caplog.at_level(logging.WARNING, "deepreduce.outer"):
        world.start("w0", live)
        world.start("w0 again", live)
        threads, made = iter(("w0", "w0 again")), world.folder
        world.folder = lambda path, name: named(made(path, name), world, next(threads))
        world.run()
    assert "round 0: its contribution returns to its residual: another process has this name, or this worker was restarted" in caplog.text
    assert all(same_bits(weights_of(found[0]), weights_of(outer)) for outer in found)


def named(folder, world, thread):
    """It sleeps by the name of its thread."""
    folder._sleep = lambda seconds: world.sleep(thread, 20 * seconds)
    return folder


def test_a_buffer_that_is_gone_or_another_is_named_before_anything_is_sent(tmp_path):
    model = model_of()
    model.register_buffer("mean", torch.zeros(3))
    outer = Outer(model, TOP, every=2, group=Folder(tmp_path, "w0"))
    outer.step()
    for other, words in (
        (torch.zeros(4), r"was \[3\] torch.float32 when Outer was made, and is \[4\] torch.float32"),
        (torch.zeros(3).half(), r"was \[3\] torch.float32 when Outer was made, and is \[3\] torch.float16"),
        (None, "was removed after Outer was made"),
    ):
        model.mean = other
        with pytest.raises(deepreduce.ArgumentError, match="^mean: this buffer " + words):
            outer.step()
    assert outer.info.steps == 1 and not outer._exchange._folder.posted(0)
    model.mean = model.seen_twice = torch.ones(3)
    assert outer.step() and model.mean.tolist() == [1.0] * 3


def test_an_infinite_value_of_a_buffer_stays_where_a_late_worker_catches_up(tmp_path):
    def worker(name, pause):
        model, generator = model_of(), torch.Generator().manual_seed(0)
        model.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
        outer = Outer(model, TOP, every=4, fragments=2, optimizer=Rounded, group=world.folder(tmp_path, name))
        for _ in range(4):
            world.sleep(name, pause)
            for _ in range(2):
                move(model, generator)
                outer.step()
            assert model.mask.tolist() == [0.0, float("-inf")] and not outer.info.last.refused

    world = World()
    world.start("w0", lambda: worker("w0", 1.0))
    world.start("w1", lambda: worker("w1", 5 * DEADLINE))
    world.run()


@pytest.mark.parametrize("weight", [torch.tensor(3.0), numpy.float32(3), 3])
def test_a_weight_of_a_step_is_a_number_of_any_kind(tmp_path, weight):
    model = model_of()
    outer = Outer(model, TOP, every=2, group=Folder(tmp_path, "w0"))
    for wrong in ("3", None, torch.ones(2), 0, float("nan"), -1, float("inf"), 2.0**-61, 2.0**61):
        with pytest.raises(deepreduce.ArgumentError, match="^weight is "):
            outer.step(weight=wrong)
    outer.step(weight=weight)
    assert type(outer._weights[0][0]) is float and outer._weights == [(3, 1)] and outer.step(weight=weight)


WEIGHED = ["sparseloco", "demo", "distro", "pulseloco", TOP.replace("raw", "half"), "index=all value=half", "index=all value=sign merge=vote", None]


@pytest.mark.parametrize("plan", WEIGHED)
def test_only_the_proportions_of_weights_count_also_in_residuals(tmp_path, plan):
    """Two workers move alike, so the mean is what they move, whatever their weights are. A worker resumes in between; once from a
    state of an earlier version, whose residual was multiplied by the weight."""
    cases = {"one": lambda *_: 1.0, "equal": lambda *_: 2.0**22, "alike": lambda i, at: 2.0 ** (at % 5), "unlike": lambda i, at: [2.0 ** (at % 5), 3.0][i]}
    finals = {}
    for case, weight in cases.items():
        world = World()

        def worker(i, case=case, world=world, weight=weight):
            def made():
                model = model_of(0, 5000, COARSE)
                return model, Outer(model, plan, every=1, dense_below=0, optimizer=sgd, group=world.folder(tmp_path / case, f"w{i}"))

            def live():
                (model, outer), generator = made(), torch.Generator().manual_seed(0)
                for at in range(8):
                    world.sleep(f"w{i}", 1.0)
                    if at in (3, 6) and i == 0:
                        state, weights = outer.state_dict(), model.state_dict()
                        if at == 6:
                            outer._exchange._coders[0].sender.scale(weight(i, at))
                            state = outer.state_dict()
                            del state["exchange"]["weighted"]
                        model, outer = made()
                        model.load_state_dict(weights)
                        outer.load_state_dict(state)
                    model.weight.data += 0.01 * torch.randn(5000, generator=generator) * (model.weight.data.abs() if plan == "pulseloco" else 1)
                    outer.step(weight(i, at))
                assert outer.info.last.workers == ("w0", "w1")
                finals[case] = weights_of(outer)

            world.start(f"w{i}", live)

        worker(0)
        worker(1)
        world.run()
    moved = torch.dist(finals["one"]["weight"], model_of(0, 5000, COARSE).weight)
    assert same_bits(finals["equal"], finals["one"]) and same_bits(finals["alike"], finals["one"]) and moved > 1e-3
    assert torch.dist(finals["unlike"]["weight"], finals["one"]["weight"]) < 1e-5 * moved + 1e-4


def sgd(weights):
    return torch.optim.SGD(weights, lr=1.0)


@pytest.mark.parametrize("plan", [TOP, TOP.replace("0.05", "1"), None])
def test_a_mean_of_unequal_weights_is_theirs_also_where_one_is_refused_or_by_an_earlier_version(tmp_path, plan, monkeypatch):
    pack = _contribution.pack

    def packed(name, number, terms, base, weight, fault, slots, *rest):
        data = pack(name, number, terms, base, weight, fault, slots, *rest)
        body = b"DROUTER1" + data[8:-16]
        return body + hashlib.blake2b(body, digest_size=16).digest() if name == "w3" else data

    monkeypatch.setattr(_folder_exchange, "pack", packed)

    def work(model, outer):
        at = int(outer._exchange._folder.name[1])
        for number in range(2):
            outer._exchange._folder._sleep(0.05)
            model.weight.data[:100] += [1.0, 2.0, 3.0, 5.0 * 4, 2.0**30 if number else 0.0][at]  # (what w3 moves is multiplied by its weight)
            for _ in range(2):
                outer.step(weight=[1.0, 2.0, 2.0**-50, 4.0, 2.0**50 if number else 2.0][at])

    found = together(World(), tmp_path, {f"w{i}": work for i in range(5)}, plan)
    model, outer = found["w0"]
    assert outer.info.last.workers == ("w0", "w1", "w2", "w3") and list(outer.info.last.refused) == ["w4"]
    first, second = (round((1.0 + 2 * 2.0 + 4 * 5.0) / total / UNIT) * UNIT for total in (9.0, 7.0))
    assert torch.equal((model.weight - model_of(hash_of("w0")).weight)[:100], torch.full((100,), first + second))


def test_a_model_with_empty_tensors_is_exchanged(tmp_path):
    model = model_of()
    model.empty = torch.nn.Parameter(torch.zeros(0, 7))
    model.register_buffer("none", torch.zeros(0, dtype=torch.int64))
    for name in ("w0", "w1"):  # the second begins with what the first has stored
        outer = Outer(model, TOP, every=1, optimizer=lambda weights: torch.optim.SGD(weights, lr=1.0, momentum=0.9), group=Folder(tmp_path, name, 0.5, store_every=1))
        model.weight.data += 1.0
        assert outer.step() and not outer.info.last.refused


def test_a_parameter_that_was_replaced_is_named_before_anything_is_sent(tmp_path):
    model = model_of()
    outer = Outer(model, TOP, every=2, group=Folder(tmp_path, "w0"))
    outer.step()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(state)
    old = model.weight
    model.load_state_dict(state, assign=True)
    for _ in range(2):
        with pytest.raises(deepreduce.ArgumentError, match="^weight: this parameter was replaced .*assign=True"):
            outer.step()
    assert outer.info.steps == 1 and not outer._exchange._folder.posted(0)
    bias, model.weight = model.bias, old
    del model.bias
    with pytest.raises(deepreduce.ArgumentError, match="^bias: this parameter was "):
        outer.step()
    model.bias = bias
    with pytest.raises(deepreduce.ArgumentError, match="^bias: this parameter was replaced"):
        outer.step()


def test_pulseloco_in_a_folder_all_agree_and_what_was_moved_adds_up(tmp_path):
    world, found, shares = World(), {}, []

    def worker(name):
        def live():
            model, generator = model_of(5, scale=COARSE), torch.Generator().manual_seed(hash_of(name))
            outer = Outer(model, "pulseloco", every=2, group=world.folder(tmp_path, name))
            moved, start = 0.0, outer._exchange.start

            def started(number, steps, moves, means, copies, weight):
                nonlocal moved
                moved = moved + torch.cat([move_.double() for move_ in moves.values()]).numpy()
                start(number, steps, moves, means, copies, weight)
                shares.append(numpy.count_nonzero(residual_of(outer)[:2000]) / 2000)

            outer._exchange.start = started
            first = weights_of(outer)
            for _ in range(6):
                world.sleep(name, 1.0)
                for _ in range(2):
                    move(model, generator)
                    outer.step()
            found[name] = outer, moved - residual_of(outer), first

        world.start(name, live)

    worker("w0")
    worker("w1")
    world.run()
    (outer, sent, first), (other, sent_there, _) = found.values()
    assert same_bits(weights_of(outer), weights_of(other)) and outer.info.rounds == 6 and all(0.1 < share < 0.9 for share in shares), shares
    went = [2 * (first[name].double() - now.double()).numpy() for name, now in weights_of(outer).items()]
    assert numpy.array_equal(numpy.concatenate(went), sent + sent_there)


@pytest.mark.parametrize("make", [torch.optim.Adam, lambda weights: torch.optim.SGD(weights, lr=0.7, momentum=0.9, nesterov=True)])
def test_a_newcomer_has_the_outer_optimizer_of_the_others(tmp_path, make):
    world, found = World(), {}

    def worker(name, count):
        def live():
            model = torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.BatchNorm1d(50)).to(torch.bfloat16)
            outer = Outer(model, SPARSE, every=1, optimizer=make, group=world.folder(tmp_path, name, store_every=2))
            for _ in range(count):
                world.sleep(name, 1.0)
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(hash_of(name)))
                model[1].running_mean += 1
                outer.step()
            found[name] = outer

        world.start(name, live)

    worker("w0", 5)
    world.run()
    worker("w1", 3)
    world.run()
    found["w0"]._exchange._catch_up()
    assert same_bits(weights_of(found["w0"]), weights_of(found["w1"])) and found["w1"].info.rounds == 8
    assert str(found["w0"].optimizer.state_dict()) == str(found["w1"].optimizer.state_dict())


OPTIMIZERS = {"sgd": lambda weights: torch.optim.SGD(weights, lr=1.0, momentum=0.5), "adam": lambda weights: torch.optim.Adam(weights, lr=0.5, betas=(0.5, 0.75)), "groups": lambda weights: torch.optim.SGD([{"params": weights[:1]}, {"params": weights[1:], "lr": 0.25}], lr=1)}  # fmt: skip


def rate_of(outer, number):
    """A schedule: the rate of a round, and momenta; by the number of the round."""
    for i, group in enumerate(outer.optimizer.param_groups):
        group["lr"] = 2.0**-number + i
        if "betas" in group:
            group["betas"] = (0.5, 1 - group["lr"] / 4)


@pytest.mark.parametrize("make", list(OPTIMIZERS))
@pytest.mark.parametrize("overlap", [0, 1])
def test_a_schedule_of_the_outer_rate_is_replayed_by_new_and_late_workers(tmp_path, make, overlap):
    world, found, seen = World(), {}, {}

    def worker(name, count, late=-1):
        def live():
            model, generator = model_of(hash_of(name)), torch.Generator().manual_seed(hash_of(name))
            outer = Outer(model, TOP, every=2, overlap=overlap, optimizer=OPTIMIZERS[make], group=world.folder(tmp_path, name, store_every=4))
            while outer.info.rounds < count:
                world.sleep(name, 4 * DEADLINE if outer.info.rounds == late else 1.0)
                rate_of(outer, outer.info.rounds)
                move(model, generator)
                outer.step()
                if outer.info.last:
                    seen.setdefault(outer.info.last.number, []).append(outer.info.last.refused)
            outer._agree()
            found[name] = outer

        world.start(name, live)

    worker("w0", 7)
    worker("w1", 7, late=2)
    world.run()
    worker("w2", 9)  # 6 and 7 are replayed, after the stored weights of round 4
    world.run()
    found["w0"]._exchange._catch_up()
    found["w1"]._exchange._catch_up()
    assert found["w2"].info.rounds >= 9
    assert same_bits(weights_of(found["w0"]), weights_of(found["w1"])) and same_bits(weights_of(found["w0"]), weights_of(found["w2"]))
    assert not any(refused for rounds_ in seen.values() for refused in rounds_)
    late = str([(group["lr"], group.get("betas")) for group in found["w0"].optimizer.param_groups])
    assert late == str([(group["lr"], group.get("betas")) for group in found["w2"].optimizer.param_groups])  # those of the last round


def test_a_worker_with_another_outer_rate_is_named_by_all_and_stays_in_step(tmp_path):
    seen, rate = {}, {"w0": 0.5, "w1": 0.5, "w2": 0.75}

    def work(name):
        def before(number, model, outer):
            seen.setdefault(name, []).append(outer.info.last and outer.info.last.refused)
            outer.optimizer.param_groups[0]["lr"] = rate[name] if number else 1.0

        return lambda model, outer: rounds(4, hash_of(name), before)(model, outer)

    found = together(World(), tmp_path, {name: work(name) for name in rate})
    named = {"w2": "its outer optimizer has lr 0.75, most have 0.5"}
    assert all(refused == [None, {}, named, named] for refused in seen.values()), seen
    assert [outer.optimizer.param_groups[0]["lr"] for _, outer in found.values()] == [0.5, 0.5, 0.75]
    assert all(same_bits(weights_of(found["w0"][1]), weights_of(outer)) for _, outer in found.values())
    assert numpy.abs(residual_of(found["w2"][1])).sum() > 0  # what it sent is there again


HOSTILE = [[], [1.0, 2.0], [True], ["1"], [None], [[1.0]], 1.0, None, [float("nan")], [float("inf")], [10**400]]
LIKE_LR = [{"lr": values, "differentiable": [None]} for values in HOSTILE]


@pytest.mark.parametrize("options", [3, {}, {"lr": [1.0]}, *LIKE_LR,
                                     {"lr": [1.0], "differentiable": [0]}, {"lr": [1.0], "differentiable": [None], "step": [2.0]}])  # fmt: skip
def test_options_of_a_contribution_that_are_no_numbers_of_the_optimizer_are_refused(tmp_path, monkeypatch, options):
    pack = _contribution.pack

    def hostile(name, *arguments):
        if name == "w1":
            monkeypatch.setattr(_contribution, "packed", lambda _: options)
        try:
            return pack(name, *arguments)
        finally:
            monkeypatch.setattr(_contribution, "packed", packed)

    packed = _contribution.packed
    monkeypatch.setattr(_folder_exchange, "pack", hostile)
    found = together(World(), tmp_path, {"w0": rounds(2, 0), "w1": rounds(2, 1)})
    for _, outer in found.values():
        assert outer.info.rounds == 2 and outer.info.last.workers == ("w0",)
        which = "option differentiable of" if options == {"lr": [1.0], "differentiable": [0]} else "option lr of" if options in LIKE_LR else "options of"
        words = f"the {which} its outer optimizer (is|are) "
        assert re.match(words, outer.info.last.refused["w1"])
        assert outer.optimizer.param_groups[0]["lr"] == 1.0
    assert same_bits(weights_of(found["w0"][1]), weights_of(found["w1"][1]))


def test_options_of_a_round_that_applies_nothing_change_no_outer_optimizer(tmp_path):
    folder = Folder(tmp_path, "w0", deadline=0.2)
    outer = Outer(model_of(), TOP, every=2, optimizer=Rounded, group=folder)
    data = _contribution.pack("w1", 0, outer._exchange._terms, outer._agreed.check(), 1.0, "", [], bytes(8), {"lr": [1e30], "differentiable": [None]})
    (folder._round(0) / "w1.part").write_bytes(data)
    folder.close(0, [_folder.Listed("w1", hashlib.sha256(data).hexdigest(), len(data))])
    outer._exchange._catch_up()
    assert outer._exchange.round == 1 and outer.optimizer.param_groups[0]["lr"] == 1.0


def test_contributions_of_earlier_versions_are_applied_by_the_options_of_each_worker(tmp_path, monkeypatch):
    pack = _contribution.pack
    monkeypatch.setattr(_folder_exchange, "pack", lambda *arguments: pack(*arguments[:-1]))
    found = together(World(), tmp_path, {"w0": rounds(3, 0), "w1": rounds(3, 1)})
    (_, first), (_, second) = found.values()
    assert first.info.last.workers == ("w0", "w1") and same_bits(weights_of(first), weights_of(second))


class Counting(torch.optim.SGD):
    """Counts its steps in a parameter group, as some optimizers do."""

    def __init__(self, weights):
        super().__init__(weights, lr=1.0)
        self.defaults["k"] = 0
        for group in self.param_groups:
            group["k"] = 0

    def step(self):
        super().step()
        for group in self.param_groups:
            group["k"] += 1


def test_what_an_outer_optimizer_counts_in_its_groups_goes_on(tmp_path):
    world, found = World(), {}

    def worker(name, count):
        def live():
            model, generator = model_of(hash_of(name)), torch.Generator().manual_seed(hash_of(name))
            outer = found[name] = Outer(model, TOP, every=1, optimizer=Counting, group=world.folder(tmp_path, name, store_every=2))
            while outer.info.rounds < count:
                world.sleep(name, 1.0)
                move(model, generator)
                outer.step()

        world.start(name, live)

    worker("w0", 5)
    world.run()
    worker("w1", 7)
    world.run()
    found["w0"]._exchange._catch_up()
    assert [outer.optimizer.param_groups[0]["k"] for outer in found.values()] == [7, 7]
    assert same_bits(weights_of(found["w0"]), weights_of(found["w1"]))


def test_workers_of_another_h_plan_or_model_are_told_what_differs(tmp_path):
    Outer(model_of(), TOP, every=2, group=Folder(tmp_path, "w0"))
    for model, plan, every, words in (
        (model_of(), TOP, 3, "worker w1 has every 3, and .* is of 2 .by worker w0"),
        (model_of(), TOP.replace("0.05", "0.5"), 2, "worker w1 has plan .*ratio=0.5"),
        (model_of(size=2001), TOP, 2, r"worker w1 has tensor weight \[2001\] torch.float32, and .* \[2000\]"),
    ):
        with pytest.raises(deepreduce.ArgumentError, match=words):
            Outer(model, plan, every=every, group=Folder(tmp_path, "w1"))
    with pytest.raises(deepreduce.ArgumentError, match="the name of a worker is '../w'"):
        Folder(tmp_path, "../w")
    with pytest.raises(deepreduce.ArgumentError, match="the name of a worker is '-x': a letter or digit, then letters, digits, _, - and ., 64 at most"):
        Folder(tmp_path, "-x")
    with pytest.raises(deepreduce.Unsupported, match="exchange=owner"):
        Outer(model_of(), TOP + " exchange=owner", every=2, group=Folder(tmp_path / "b", "w0"))


def test_what_a_plan_cannot_encode_is_an_error_with_tensor_and_reason():
    coder = _fragment_coder.FragmentCoder({"first": (40, 50), "second": (60, 50)}, TOP.replace("raw", "half"), {})
    moves = {"first": torch.ones(40, 50), "second": torch.full((60, 50), 3e38)}
    coder.encode(moves, 0, 7)
    with pytest.raises(deepreduce.ArgumentError, match="value=half.* second: .* infinite") as caught:  # as its residual overflows
        coder.encode(moves, 1, 7)
    assert caught.value.tensor == "second" and "rank" not in str(caught.value)


@pytest.mark.parametrize("plan, overlap, fragments", [(SPARSE, 0, 1), (SPARSE, 1, 1), (SPARSE, 1, 2), ("pulseloco", 0, 1), ("pulseloco", 1, 2)])
def test_a_worker_that_resumes_goes_on_bit_for_bit(tmp_path, plan, overlap, fragments):
    finals, scale = [], COARSE if plan == "pulseloco" else 1
    for cut in (None, 3, 4, 6, 7):
        world, found, path = World(), {}, tmp_path / str(cut)

        def worker(name, cut=cut, world=world, found=found, path=path):
            def live():
                model, generator = model_of(hash_of(name), scale=scale), torch.Generator().manual_seed(hash_of(name))
                outer = new(model)
                for step in range(16):
                    world.sleep(name, 1.0)
                    if step == cut:
                        saved = {key: value.clone() for key, value in model.state_dict().items()}, outer.state_dict()
                        model = model_of(99)
                        outer = new(model)
                        model.load_state_dict(saved[0])
                        outer.load_state_dict(saved[1])
                    move(model, generator)
                    outer.step()
                found[name] = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}

            def new(model):
                group = world.folder(path, name)
                return Outer(model, plan, every=4, overlap=overlap, fragments=fragments, group=group)

            world.start(name, live)

        worker("w0")
        worker("w1")
        world.run()
        finals.append(found)
    for final in finals[1:]:
        assert all(same_bits(final[name], finals[0][name]) for name in ("w0", "w1"))


def test_the_set_of_a_round_is_made_once_also_without_hard_links(tmp_path, monkeypatch):
    for links in (True, False):
        if not links:
            monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(95, "no links here")))
        folders = [Folder(tmp_path / str(links), f"w{i}") for i in range(2)]
        for i, folder in enumerate(folders):
            folder.close(3, [_folder.Listed(f"w{i}", "00" * 32, 1)])
        assert [folder.closed(3).by for folder in folders] == ["w0", "w0"]
        assert sorted(path.name for path in folders[0]._round(3).iterdir()) == ["closed.json"]


def test_a_set_that_the_disk_has_no_room_for_can_be_made_later_also_without_hard_links(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(95, "no links here")))
    folder, sync, full = Folder(tmp_path, "w0"), os.fsync, [False, True]  # the partial file, then the other
    monkeypatch.setattr(
        os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "full")) if full and full.pop(0) else sync(handle)
    )
    with pytest.raises(OSError, match="full"):
        folder.close(3, [])
    folder.close(3, [_folder.Listed("w0", "00" * 32, 1)])
    assert folder.closed(3).by == "w0" and len(folder.closed(3).listed) == 1


def test_a_set_that_is_damaged_is_an_error_not_a_hang(tmp_path):
    folder = Folder(tmp_path, "w0", deadline=0.2)
    folder._round(0).mkdir(parents=True)
    for text in (b"", b"{", b"[]", b'{"format": "deepreduce-outer-1", "by": "w", "contributions": [{"name": 3}]}'):
        (folder._round(0) / "closed.json").write_bytes(text)
        with pytest.raises(deepreduce.CorruptFrame, match="closed.json is damaged"):
            folder.closed(0)


def listed(**other):
    return {"name": "w1", "sha256": "0" * 64, "size": 3, **other}


@pytest.mark.parametrize(
    "document, words",
    [
        ({"contributions": [listed(name="../../secret")]}, "the name of a worker is '../../secret'"),
        ({"contributions": [listed(name="/etc/passwd")]}, "the name of a worker is '/etc/passwd'"),
        ({"contributions": [listed(name=".hidden")]}, "the name of a worker is '.hidden'"),
        ({"contributions": [listed(name="w" * 65)]}, "the name of a worker is 'www"),
        ({"contributions": [listed(name=7)]}, "the name of a worker is '7'"),
        ({"contributions": [listed(name="w1\n")]}, "the name of a worker is"),
        ({"contributions": [], "by": "../w"}, "the name of a worker is '../w'"),
        ({"contributions": [listed(), listed(name="w2"), listed(size=4)]}, "a worker is listed twice"),
        ({"contributions": [listed(size=-1)]}, "of worker w1 it lists size -1"),
        ({"contributions": [listed(size=float("inf"))]}, "of worker w1 it lists size inf"),
        ({"contributions": [listed(size=True)]}, "of worker w1 it lists size True"),
        ({"contributions": [listed(sha256="../x")]}, "SHA-256 '../x'"),
        ({"contributions": [listed(sha256=None)]}, "SHA-256 'None'"),
        ({"contributions": [[1, 2]]}, "is damaged"),
        ({"contributions": "w1"}, "is damaged"),
        ({"contributions": None}, "is damaged"),
    ],
)
def test_a_hostile_set_is_an_error_and_no_path_outside_the_folder_is_opened(tmp_path, monkeypatch, document, words):
    folder = Folder(tmp_path / "run", "w0", deadline=0.2)
    outer = Outer(model_of(), TOP, every=2, optimizer=Rounded, group=folder)
    before = weights_of(outer)
    (folder._round(0) / "closed.json").write_text(json.dumps({"format": "deepreduce-outer-1", "by": "w1", **document}))
    opened, read = [], _folder._read
    monkeypatch.setattr(_folder, "_read", lambda path, *more: opened.append(path.name) or read(path, *more))
    with pytest.raises(deepreduce.CorruptFrame, match=re.escape(words)):
        outer._exchange._catch_up()
    assert set(opened) == {"closed.json"} and outer.info.rounds == 0 and same_bits(weights_of(outer), before)


def test_no_file_of_the_folder_is_read_without_a_bound(tmp_path, monkeypatch):
    folder = Folder(tmp_path, "w0", deadline=0.2)
    outer = Outer(model_of(), TOP, every=2, optimizer=Rounded, group=folder)
    limit, read = outer._exchange._max_bytes(0), _folder._read

    def watched(path, max_bytes):
        found = read(path, max_bytes)
        assert len(found) <= max(limit, _folder._JSON_MAX) + 1
        return found

    monkeypatch.setattr(_folder, "_read", watched)
    part = folder._round(0) / "w1.part"
    part.touch()
    os.truncate(part, 1 << 40)  # (holes)
    # A size beyond any contribution's is refused by its name, unread; and a file that has grown is not what was listed.
    folder.close(0, [_folder.Listed("w1", "0" * 64, 1 << 40)])
    outer._exchange._catch_up()
    assert outer._exchange.round == 1
    folder.close(1, [_folder.Listed("w2", "0" * 64, 10)])
    (folder._round(1) / "w2.part").write_bytes(bytes(11))
    with pytest.raises(deepreduce.CorruptFrame, match="worker w2 has other bytes"):
        outer._exchange._catch_up()
    # A worker whose own file is another's, or has grown, is left out of the round.
    own = folder._round(2) / "w0.part"
    own.parent.mkdir()
    own.touch()
    os.truncate(own, 1 << 40)
    assert folder.post(2, b"mine") is False
    document = folder._round(3) / "closed.json"
    document.parent.mkdir()
    document.touch()
    os.truncate(document, 1 << 40)
    with pytest.raises(deepreduce.CorruptFrame, match="closed.json has more than 16777216 bytes"):
        folder.closed(3)
    (tmp_path / "rounds" / "²").mkdir()
    folder.sweep(9)  # (a folder of another's is left alone)
    assert [path.name for path in (tmp_path / "rounds").iterdir()] == ["²"]


def test_a_short_file_is_read_without_memory_for_a_long_one(tmp_path):
    (tmp_path / "short").write_bytes(b"abc")
    tracemalloc.start()
    assert _folder._read(tmp_path / "short", 1 << 30) == b"abc"
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_terms_that_are_damaged_are_an_error(tmp_path):
    for text in ("[]", "[" * 100000, '{"format": "deepreduce-outer-1"}', '{"format": "deepreduce-outer-1", "by": "../w", "terms": {}}'):
        (tmp_path / "terms.json").write_text(text)
        with pytest.raises(deepreduce.CorruptFrame, match="terms.json is damaged"):
            Outer(model_of(), TOP, every=2, group=Folder(tmp_path, "w0", deadline=0.2))


def test_a_contribution_that_changed_after_the_round_was_closed_is_an_error_not_a_hang(tmp_path):
    folder = Folder(tmp_path, "w0", deadline=0.2)
    outer = Outer(model_of(), TOP, every=2, optimizer=Rounded, group=folder)
    before = weights_of(outer)
    folder.close(0, [_folder.Listed("w1", hashlib.sha256(b"x").hexdigest(), 1)])
    for words, data in (("is not there", None), ("has other bytes", b"y")):
        if data:
            (folder._round(0) / "w1.part").write_bytes(data)
        with pytest.raises(deepreduce.CorruptFrame, match=f"round 0: the contribution of worker w1 {words}"):
            outer._exchange._catch_up()
    assert same_bits(weights_of(outer), before)


def test_no_bytes_of_a_contribution_do_more_than_be_refused():
    good = _contribution.pack("w0", 3, "terms", "base", 1.0, "", [b"slot"], b"copies")
    assert bytes(_contribution.unpack(good, "w0", 3, "terms", 6).slots[0]) == b"slot" and good[:8] == b"DROUTER1"
    assert _contribution.pack("w0", 3, "terms", "base", 2.0, "", [], b"")[:8] == b"DROUTER2"  # an earlier version refuses it
    random_bytes = random.Random(5)

    def signed(body):
        return bytes(body) + hashlib.blake2b(body, digest_size=16).digest()

    weights = [b'"weight": ' + number for number in (b"1" + 400 * b"0", b"1e308", b"1e-310", b"NaN", b"-1")]
    for old, new in (*((b'"weight": 1.0', weight) for weight in weights), (b'"round": 3', b'"round": Infinity')):
        header = good[good.index(b"{") : good.index(b"}") + 1]
        assert old in header
        hostile = header.replace(old, new)
        at = good.index(header)
        body = good[: at - 4] + struct.pack("<I", len(hostile)) + hostile + good[at + len(header) : -16]
        with pytest.raises(_contribution.Refused):
            _contribution.unpack(signed(body), "w0", 3, "terms", 6)
    for _ in range(2000):
        body = bytearray(good[:-16])
        for _ in range(random_bytes.randrange(1, 4)):
            body[random_bytes.randrange(len(body))] = random_bytes.randrange(256)
        body = body[: random_bytes.choice([len(body), random_bytes.randrange(len(body))])]
        for data in (bytes(body) + good[-16:], signed(body)):
            with contextlib.suppress(_contribution.Refused):
                _contribution.unpack(data, "w0", 3, "terms", 6)


def test_norms_are_compared_with_the_median():
    assert _contribution.beyond([1.0, 2.0, 3.0, 100.0], 10) == [False, False, False, True]
    assert _contribution.beyond([1.0, 100.0], 10) == [False, True] and _contribution.beyond([5.0], 10) == [False]
    assert _contribution.beyond([0.0, 0.0, 1.0], 10) == [False] * 3 and _contribution.beyond([], 10) == []
    values = numpy.random.default_rng(0).standard_normal(200_001).astype(numpy.float32)
    assert abs(_contribution.norm_of([values[:70_000], values[70_000:]]) - numpy.linalg.norm(values.astype(float))) < 1e-9


# ---- Processes -----------------------------------------------------------------------------------

WORKER = """
import pathlib, sys, time, torch
import deepreduce.outer
path, name, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(hash(name) % 1000)
model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))
outer = deepreduce.outer.Outer(model, sys.argv[4], every=3, group=deepreduce.outer.Folder(path, name, deadline=2.0, store_every=3))
inner = torch.optim.SGD(model.parameters(), lr=0.01)
while outer.info.rounds < rounds:
    inner.zero_grad()
    (model(torch.randn(16, 30)) - 1).square().mean().backward()
    inner.step()
    if outer.step():
        print(outer.info.rounds, flush=True)
torch.save(dict(model.named_parameters()), pathlib.Path(path) / f"{name}.final")
"""


def test_processes_that_are_killed_and_restarted(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "bindings/python"), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    last, dice = 18, random.Random(7)

    def start(name):
        arguments = [sys.executable, "-B", "-c", textwrap.dedent(WORKER), str(tmp_path), name, str(last), "sparseloco"]
        return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    running = {f"w{i}": start(f"w{i}") for i in range(3)}
    try:
        for number in (3, 6, 9):  # the worker that reaches it is killed, at once or a little later, and begins again
            name = dice.choice(sorted(running))
            for line in running[name].stdout:
                if int(line) >= number:
                    break
            time.sleep(dice.random() / 10)
            if running[name].poll() is None:
                running[name].send_signal(signal.SIGKILL)
                running[name].communicate()
                running[name] = start(name)
        for name, process in running.items():
            _, error = process.communicate(timeout=200)
            assert process.returncode == 0, (name, error)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    finals = [torch.load(tmp_path / f"w{i}.final") for i in range(3)]
    assert all(same_bits(finals[0], final) for final in finals)
    rounds_left = sorted((tmp_path / "rounds").iterdir())
    closed = [json.loads((path / "closed.json").read_text()) for path in rounds_left if (path / "closed.json").exists()]
    assert closed and all(len(round_["contributions"]) >= 1 for round_ in closed)


def test_a_damaged_state_of_the_outer_optimizer_changes_nothing(tmp_path):
    agreed = Outer(model_of(), TOP, every=2, group=Folder(tmp_path, "alice"))._agreed
    arrays, weights = agreed.arrays(), {name: weight.clone() for name, weight in agreed.weights.items()}
    others = {name: array + 1 if name.startswith("weight/") else array for name, array in arrays.items()}
    for damaged in (b"", b"{}", b"nothing", b'{"groups": [], "state": {}, "shapes": {}}', b'{"groups": [], "state": {}, "shapes": {"0/x": [[1], "torch.nothing"]}}'):
        with pytest.raises(deepreduce.CorruptFrame, match="the state of the outer optimizer is damaged: "):
            agreed.load_arrays({**others, "meta": numpy.frombuffer(damaged, numpy.uint8)})
    assert all(torch.equal(weight, agreed.weights[name]) for name, weight in weights.items())
