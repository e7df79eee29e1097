"""deepreduce.Sender: the engine's senders from Python. What a unit, a slot and a mean are: tests/sender."""

import gc
import math
import threading
import weakref
from array import array as PlainArray

import pytest

np = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

import deepreduce  # noqa: E402
from deepreduce import Sender  # noqa: E402
from deepreduce._adapters._sender_messages import SenderSteps, _Slots  # noqa: E402
from deepreduce._native._call import Turns  # noqa: E402
from deepreduce.exchange import Transport  # noqa: E402
from deepreduce.sender import TensorSpec  # noqa: E402

TOP = "sparsify=topr(count=40) feedback=residual index=golomb value=raw"
BITS = "index=all value=uniform_quant(bits=4) feedback=residual"
SHAPES = {"layer.weight": ((40, 50), "float32"), "layer.bias": ((50,), "float32")}


def gradients(step, rank, shapes=SHAPES):
    random = np.random.default_rng([step, rank])
    return {name: random.laplace(size=shape).astype(dtype) for name, (shape, dtype) in shapes.items()}


class Ranks:
    """All ranks' senders in one process; a step is what a framework's collectives would do with their slots."""

    def __init__(self, ranks, tensors=SHAPES, plan=TOP, out="float32", **options):
        self.senders = [Sender(tensors, plan, ranks=ranks, rank=rank, **options) for rank in range(ranks)]
        self.outs = [{name: np.zeros(shape, out) for name, (shape, _) in tensors.items()} for _ in self.senders]
        for sender, out in zip(self.senders, self.outs):
            sender.place(out=out)

    def encode(self, step, gradients, unit=0):
        rooms = []
        for sender, gradient in zip(self.senders, gradients):
            sender.place(gradient)
            if sender.info.clips:
                sender.clip()
            info = sender.unit(unit)
            rooms.append(np.zeros((info.slots, info.bound), np.uint8))
            sender.encode(unit, step, rooms[-1])
        return rooms

    def step(self, step, gradients):
        for unit, info in enumerate(self.senders[0].units):
            rooms = self.encode(step, gradients, unit)
            if info.kind == "owner":
                sums = [np.zeros(info.sum_bound, np.uint8) for _ in self.senders]
                for rank, sender in enumerate(self.senders):
                    sender.sum(unit, step, [room[rank] for room in rooms], sums[rank])
                slots = sums
            else:
                slots = [room[0] for room in rooms]
            for sender in self.senders:
                sender.merge(unit, step, slots)
        return self.outs


def test_the_mean_is_that_of_numpy_with_a_residual():
    ranks, residuals = Ranks(3), [np.zeros(2050, np.float32) for _ in range(3)]
    for step in range(4):
        given = [gradients(step, rank) for rank in range(3)]
        expected = np.zeros(2050, np.float32)
        for rank, array in enumerate(given):
            whole = np.concatenate([array[name].ravel() for name in SHAPES]) + residuals[rank]
            sent, where = np.zeros_like(whole), np.argsort(-np.abs(whole), kind="stable")[:40]
            sent[where] = whole[where]
            residuals[rank] = whole - sent
            expected += np.float32(1 / 3) * sent
        for out in ranks.step(step, given):
            np.testing.assert_array_equal(np.concatenate([out[name].ravel() for name in SHAPES]), expected)


def test_a_plan_is_that_of_the_first_pattern_that_matches_the_name():
    book = deepreduce.book.parse(f"*.bias: dense\nlayer.*: {BITS}")
    for plan in ({"*.bias": None, "layer.*": BITS}, book):
        sender = Sender({**SHAPES, "head": ((5,), "float32")}, plan)
        assert sender.plan_of("layer.weight").name_of("value") == "uniform_quant"
        assert sender.plan_of("layer.bias") == sender.plan_of("head") == deepreduce.Plan("bucket=flat index=all value=raw")
    assert str(Sender(SHAPES, TOP).plan_of("layer.bias")) == f"{deepreduce.Plan(TOP)} bucket=flat"
    with pytest.raises(deepreduce.ArgumentError, match="there is no tensor 'tail'"):
        sender.plan_of("tail")


def test_units_are_of_one_type_and_of_unit_bytes():
    shapes = {f"{i}": ((1000,), "float32") for i in range(4)} | {"half": ((10,), "float16")}
    assert [unit.tensors for unit in Sender(shapes, TOP, unit_bytes=8000).units] == [("0", "1"), ("2", "3"), ("half",)]
    assert [unit.tensors for unit in Sender(shapes, TOP, unit_bytes=math.inf).units] == [("0", "1", "2", "3"), ("half",)]
    unit = Sender(shapes, "index=all value=raw", unit_bytes=math.inf).units[0]
    assert (unit.kind, unit.frames, unit.bytes, unit.slots) == ("frames", 1, 16000, 1) and unit.slot == unit.bound >= 16000


def test_a_list_of_arrays_has_names_by_position_and_kinds_are_the_callers():
    sender = Sender([np.zeros((3, 4), np.float32), TensorSpec((10, 2), "float32", sparse=True), ((8, 8), "float16")], "powersgd")
    assert sender.names == ["tensor 0", "tensor 1", "tensor 2"] and sender.tensor("tensor 1").unit == 1
    assert [unit.kind for unit in sender.units] == ["factors", "rows", "factors"]


@pytest.mark.parametrize("position", [0, 3])
def test_random_numbers_go_by_name(position):
    """The same name, seed, step and rank: the same bytes, wherever the tensor stands."""
    plan, x = "index=all value=qsgd(levels=3)", np.linspace(-1, 1, 5000, dtype=np.float32)

    def sent(name, position):
        names = [f"other{i}" for i in range(position)] + [name]
        sender = Sender(dict.fromkeys(names, x), {name: plan}, dense_below=0)
        out = np.zeros(5000, np.float32)
        sender.place(dict.fromkeys(names, x), {**{other: np.zeros(5000, np.float32) for other in names}, name: out})
        slot = np.zeros(sender.unit(0).bound, np.uint8)
        sender.encode(0, 7, slot)
        sender.merge(0, 7, [slot])
        return out.tobytes()

    assert sent("w", position) == sent("w", 1) != sent("v", position)


def test_a_norm_over_several_frames_clips_all_of_them():
    shapes = {"a": ((2000,), "float32"), "b": ((2000,), "float32")}
    ranks = Ranks(1, shapes, "feedback=dgc(clip=1,momentum=0) index=all value=raw", unit_bytes=8000, flat=False)
    assert len(ranks.senders[0].units) == 2 and ranks.senders[0].info.clips
    given = gradients(0, 0, shapes)
    out = ranks.step(0, [given])[0]
    norm = math.sqrt(sum(float((array.astype(np.float64) ** 2).sum()) for array in given.values()))
    for name, array in given.items():
        np.testing.assert_allclose(out[name], array / norm, rtol=1e-5)


def test_owners_send_sums_and_bytes_do_not_grow_with_the_ranks():
    plan, shapes, sent = f"{BITS} exchange=owner", {"w": ((200, 100), "float32"), "v": ((5000,), "float32")}, {}
    for count in (2, 4):
        ranks = Ranks(count, shapes, plan)
        (unit,) = ranks.senders[0].units
        assert (unit.kind, unit.slots) == ("owner", count)
        given = [gradients(0, rank, shapes) for rank in range(count)]
        total = {name: np.zeros(shape) for name, (shape, _) in shapes.items()}
        for step in range(30):
            outs = ranks.step(step, given)
            for name in shapes:
                assert all(out[name].tobytes() == outs[0][name].tobytes() for out in outs)
                total[name] += outs[0][name]
        for name in shapes:  # nothing is lost: what is missing is in the residuals
            mean = np.mean([gradient[name] for gradient in given], axis=0)
            assert abs(total[name] - 30 * mean).max() < 3 < 30 * abs(mean).max()
        states = ranks.senders[0].state_dict()
        assert set(states["states"]) == set(states["sums"]) == set(shapes)
        unit = ranks.senders[0].unit(0)
        sent[count] = (count - 1) * (unit.slot + unit.sum_slot)  # to the others: all-to-all, all-gather
    assert sent[2] < sent[4] < 1.8 * sent[2]  # 2 - 2 / ranks of the bytes of all, and headers; an all-gather has 3 times


def test_a_scatter_writes_this_ranks_shard():
    shapes = {"w": ((8, 50), "float32")}
    senders = [Sender(shapes, None, ranks=2, rank=rank, scatter=True) for rank in range(2)]
    rooms, given = [], [gradients(0, rank, shapes)["w"] for rank in range(2)]
    for sender, gradient in zip(senders, given):
        sender.place({"w": gradient})
        rooms.append(np.zeros((2, sender.unit(0).bound), np.uint8))
        sender.encode(0, 1, rooms[-1])
    for rank, sender in enumerate(senders):
        shard = np.zeros((4, 50), np.float32)
        sender.place(out={"w": shard})
        sender.merge(0, 1, [room[rank] for room in rooms])
        expected = (np.float32(0.5) * given[0] + np.float32(0.5) * given[1])[4 * rank : 4 * rank + 4]
        np.testing.assert_array_equal(shard, expected)
    with pytest.raises(deepreduce.ArgumentError, match="^w: 51 elements are not shards for 2 ranks") as raised:
        Sender({"w": ((51,), "float32")}, None, ranks=2, scatter=True)
    assert raised.value.tensor == "w"


def test_half_types_are_rounded_once_behind_the_sum():
    random = np.random.default_rng(5)
    given = [{"w": random.standard_normal(3000).astype(np.float16)} for _ in range(3)]
    ranks = Ranks(3, {"w": ((3000,), "float16")}, None, "float16")
    total = np.zeros(3000, np.float32)
    for gradient in given:
        total += np.float32(1 / 3) * gradient["w"].astype(np.float32)
    np.testing.assert_array_equal(ranks.step(0, given)[0]["w"], total.astype(np.float16))
    wide = Ranks(3, {"w": ((3000,), "float16")}, None, float32=True)
    np.testing.assert_array_equal(wide.step(0, given)[0]["w"], total)
    sums = Ranks(3, {"w": ((3000,), "float16")}, None, float32=True, sum=True)
    np.testing.assert_allclose(sums.step(0, given)[0]["w"], 3 * total, rtol=1e-5, atol=1e-6)


def test_states_are_where_the_caller_has_them():
    own, lent = Ranks(1), Sender(SHAPES, TOP, caller_states=True)
    states = {name: np.zeros(lent.tensor(name).state, np.uint8) for name in SHAPES}
    assert lent.info.states == own.senders[0].info.states == sum(state.size for state in states.values()) > 4 * 2050
    slot = np.zeros(lent.unit(0).bound, np.uint8)
    for step in range(3):
        (room,) = own.encode(step, [gradients(step, 0)])
        lent.place(gradients(step, 0), states=states)
        sent = lent.encode(0, step, slot)
        assert slot[: sent.size].tobytes() == room[0][: sent.size].tobytes()
    saved = own.senders[0].state_dict()["states"]
    assert all(states[name].tobytes() == saved[name].tobytes() for name in SHAPES)
    with pytest.raises(deepreduce.ArgumentError, match="layer.weight: its state has .* bytes, not 3") as raised:
        lent.place(states={"layer.weight": np.zeros(3, np.uint8)})
    assert raised.value.tensor == "layer.weight"


# ---- Checkpoints --------------------------------------------------------------------------------


def test_a_training_goes_on_bit_for_bit_from_a_saved_state():
    ranks = Ranks(2)
    for step in range(3):
        ranks.step(step, [gradients(step, rank) for rank in range(2)])
    again = Ranks(2)
    for old, fresh in zip(ranks.senders, again.senders):
        fresh.load_state_dict(old.state_dict())
    given = [gradients(3, rank) for rank in range(2)]
    for one, other in zip(ranks.step(3, given), again.step(3, given)):
        assert all(one[name].tobytes() == other[name].tobytes() for name in SHAPES)


def test_states_go_to_other_units_and_numbers_of_ranks():
    shapes = {f"{i}": ((1000,), "float32") for i in range(4)}
    ranks = Ranks(2, shapes)
    ranks.step(0, [gradients(0, rank, shapes) for rank in range(2)])
    saved = ranks.senders[0].state_dict()
    other = Sender(shapes, TOP, ranks=3, unit_bytes=4000)
    other.load_state_dict(saved)
    assert len(other.units) == 4
    assert all(other.state_dict()["states"][name].tobytes() == saved["states"][name].tobytes() for name in shapes)
    doubled = np.concatenate([state.view(np.float32)[-1000:] for state in saved["states"].values()]) * 2
    other.scale(2)
    found = np.concatenate([state.view(np.float32)[-1000:] for state in other.state_dict()["states"].values()])
    np.testing.assert_array_equal(found, doubled)


def test_states_of_others_change_nothing():
    ranks = Ranks(1)
    ranks.step(0, [gradients(0, 0)])
    (sender,) = ranks.senders
    before = sender.state_dict()
    with pytest.raises(deepreduce.ArgumentError, match=r"other tensors or plans: without \['layer.bias'\], and with \['x'\]"):
        sender.load_state_dict({**before, "states": {"layer.weight": b"", "x": b""}})
    damaged = {**before["states"], "layer.bias": np.ones_like(before["states"]["layer.bias"])}
    with pytest.raises(deepreduce.ArgumentError, match="^layer.bias: "):
        sender.load_state_dict({**before, "states": damaged})
    with_nan = before["states"]["layer.bias"].copy()
    with_nan.view(np.float32)[-1] = np.nan
    with pytest.raises(deepreduce.ArgumentError, match="^layer.bias: value [0-9]+ of its state is not finite"):
        sender.load_state_dict({**before, "states": {**before["states"], "layer.bias": with_nan}})
    zeros = {name: np.zeros_like(state) for name, state in before["states"].items()}
    with pytest.raises(deepreduce.ArgumentError, match="^failures is None"):
        sender.load_state_dict({"states": zeros, "failed": 0})
    after = sender.state_dict()
    assert all(after["states"][name].tobytes() == before["states"][name].tobytes() for name in SHAPES)


# ---- Faults -------------------------------------------------------------------------------------


def test_a_rank_that_cannot_encode_is_named_with_its_tensor():
    ranks = Ranks(3, plan=BITS, numbers=[4, 7, 9], dense_below=0)
    bad = [gradients(0, rank) for rank in range(3)]
    bad[1]["layer.bias"][3] = np.nan
    slots = [room[0] for room in ranks.encode(0, bad)]
    for sender, out in zip(ranks.senders, ranks.outs):
        with pytest.raises(deepreduce.PeerError, match="^rank 7: .*layer.bias: .* is NaN.*at 3") as raised:
            sender.merge(0, 0, slots)
        assert (raised.value.rank, raised.value.tensor) == (7, "layer.bias")
        assert not out["layer.weight"].any()
        sender.take_back(0)
        assert (sender.info.failures, sender.info.failed) == (1, 0)
    given = [gradients(1, rank) for rank in range(3)]
    ranks.step(1, given)
    assert ranks.outs[0]["layer.bias"].any()


def test_an_all_reduced_slot_is_one():
    sender = Sender({"w": np.zeros(1000, np.float32)}, "index=all value=half", ranks=2, halves=True)
    assert sender.units[0].kind == "halves"
    for call in (sender.merge, lambda *arguments: sender.sum(*arguments, bytearray(8))):
        with pytest.raises(deepreduce.ArgumentError, match="^there are 2 slots; unit 0 requires the all-reduced one alone$"):
            call(0, 0, [bytes(8), bytes(8)])


def test_slots_that_the_caller_lets_go_are_there_for_take_back():
    (sender,) = Ranks(1).senders
    sender.place(gradients(0, 0))
    before, room = sender.state_dict()["states"], np.zeros(sender.unit(0).bound, np.uint8)
    at = weakref.ref(room)
    sender.encode(0, 0, room)
    del room
    gc.collect()
    assert at() is not None
    sender.take_back(0)
    after = sender.state_dict()["states"]
    whole = {name: after[name].view(np.float32)[-gradient.size :] for name, gradient in gradients(0, 0).items()}
    assert not any(state.view(np.float32)[-5:].any() for state in before.values())
    assert all(np.array_equal(whole[name], gradient.ravel()) for name, gradient in gradients(0, 0).items())


@pytest.mark.parametrize("wrong", [{"step": -1}, {"slots": np.zeros(3, np.uint8)}, {"private_seed": "a"}])
def test_an_encode_that_is_refused_leaves_the_slots_before_to_take_back(wrong):
    (sender,) = Ranks(1).senders
    sender.place(gradients(0, 0))
    room = np.zeros(sender.unit(0).bound, np.uint8)
    at = weakref.ref(room)
    sender.encode(0, 0, room)
    del room
    with pytest.raises(deepreduce.Error):
        sender.encode(**{"unit": 0, "step": 1, "slots": np.zeros(sender.unit(0).bound, np.uint8), **wrong})
    gc.collect()
    assert at() is not None
    sender.take_back(0)
    sender.encode(0, 1, np.zeros(sender.unit(0).bound, np.uint8))
    gc.collect()
    assert at() is None


def test_a_merge_lets_go_of_the_slots():
    sender, other = (Ranks(1).senders[0] for _ in range(2))
    sender.place(gradients(0, 0))
    for step in range(3):
        room = np.zeros(sender.unit(0).bound, np.uint8)
        at = weakref.ref(room)
        sender.encode(0, step, room)
        other.merge(0, step, [room])
        sender.merge(0, step, [room])
        sender.encode(0, step, np.zeros_like(room))
        del room
        gc.collect()
        assert at() is None


@pytest.mark.parametrize("unit", [-1, 1, "a", None, 2**64])
def test_a_unit_that_is_not_there_is_refused(unit):
    (sender,) = Ranks(1).senders
    sender.place(gradients(0, 0))
    room = np.zeros(sender.unit(0).bound, np.uint8)
    for call in (lambda: sender.unit(unit), lambda: sender.encode(unit, 0, room), lambda: sender.merge(unit, 0, [room])):
        with pytest.raises(deepreduce.ArgumentError, match="^unit (is|=) "):
            call()


def test_owners_name_the_rank_that_cannot_encode_and_its_tensor():
    ranks = Ranks(3, plan=f"{BITS} exchange=owner", dense_below=0)
    bad = [gradients(0, rank) for rank in range(3)]
    bad[2]["layer.weight"][7, 1] = np.nan
    rooms, unit = ranks.encode(0, bad), ranks.senders[0].unit(0)
    sums = [np.zeros(unit.sum_bound, np.uint8) for _ in range(3)]
    faults = [sender.sum(0, 0, [room[i] for room in rooms], sums[i]).fault for i, sender in enumerate(ranks.senders)]
    assert any(faults)  # (of so few elements an owner may have none)
    for sender in ranks.senders:
        with pytest.raises(deepreduce.PeerError, match="rank 2: could not encode .*layer.weight.* is NaN") as raised:
            sender.merge(0, 0, sums)
        assert (raised.value.rank, raised.value.tensor) == (2, "layer.weight")


def test_a_rank_at_another_step_is_out_of_step():
    ranks = Ranks(3, numbers=[4, 7, 9])
    slots = [ranks.encode(5, [gradients(0, rank) for rank in range(3)])[i][0] for i in range(3)]
    slots[2] = ranks.encode(3, [gradients(0, rank) for rank in range(3)])[2][0]
    with pytest.raises(deepreduce.OutOfStep, match="^rank 9 is at step 3, rank 4 at step 5") as raised:
        ranks.senders[0].merge(0, 5, slots)
    error = raised.value
    assert (error.rank, error.ranks, error.source, error.step) == (9, (9,), 4, None)


def test_a_rank_that_did_not_complete_a_step_is_out_of_step():
    ranks = Ranks(2)
    given = [gradients(0, rank) for rank in range(2)]
    slots = [room[0] for room in ranks.encode(0, given)]
    ranks.senders[0].merge(0, 0, slots)
    ranks.senders[1].take_back(0)
    for sender in ranks.senders:
        slots = [room[0] for room in ranks.encode(1, given)]
        with pytest.raises(deepreduce.OutOfStep, match="^rank 1 is behind: it did not complete step 0") as raised:
            sender.merge(0, 1, slots)
        error = raised.value
        assert (error.rank, error.ranks, error.source, error.step) == (1, (1,), 0, 0)


def test_slots_that_are_too_short_say_how_long_they_are():
    ranks = Ranks(2)
    given = [gradients(0, rank) for rank in range(2)]
    slots = [room[0] for room in ranks.encode(0, given)]
    short = ranks.senders[0].unit(0).slot
    with pytest.raises(deepreduce.CapacityError) as raised:
        ranks.senders[0].merge(0, 0, [slot[:short] for slot in slots])
    needed = raised.value.needed
    assert short < needed < len(slots[0])
    ranks.senders[0].merge(0, 0, [slot[:needed] for slot in slots])
    assert ranks.outs[0]["layer.weight"].any() and ranks.senders[0].unit(0).slot >= needed


def test_a_step_that_is_not_finite_is_skipped_on_request():
    ranks = Ranks(2, skip_nonfinite=True)
    ranks.step(0, [gradients(0, rank) for rank in range(2)])
    before = [sender.state_dict()["states"]["layer.weight"].tobytes() for sender in ranks.senders]
    bad = [gradients(1, rank) for rank in range(2)]
    bad[0]["layer.weight"][0, 0] = np.inf
    slots = [room[0] for room in ranks.encode(1, bad)]
    for sender, out, state in zip(ranks.senders, ranks.outs, before):
        assert sender.merge(0, 1, slots).skips
        sender.skip(1)
        assert np.isnan(out["layer.weight"]).all()
        assert sender.state_dict()["states"]["layer.weight"].tobytes() == state


def test_what_cannot_be_read_where_it_lies_is_refused_by_name():
    sender, fine = Sender(SHAPES, TOP), gradients(0, 0)
    for bad, why in (
        (np.zeros((50, 40), np.float32).T, "is not contiguous"),
        (np.zeros((40, 50), np.float16), "is float16, not float32"),
        (np.zeros((40, 51), np.float32), "has 2040 elements, not 2000"),
    ):
        with pytest.raises(deepreduce.ArgumentError, match=f"^layer.weight: {why}") as raised:
            sender.place({**fine, "layer.weight": bad})
        assert raised.value.tensor == "layer.weight"
    with pytest.raises(deepreduce.ArgumentError, match="layer.weight is read-only"):
        sender.place(out={"layer.weight": _frozen((40, 50))})
    with pytest.raises(deepreduce.ArgumentError, match="1 arrays for 2 tensors"):
        sender.place([fine["layer.bias"]])
    with pytest.raises(deepreduce.ArgumentError, match="was not placed") as raised:
        sender.encode(0, 0, np.zeros(sender.unit(0).bound, np.uint8))
    assert raised.value.tensor == "layer.weight"
    sender.place(fine)
    with pytest.raises(deepreduce.CapacityError) as raised:
        sender.encode(0, 0, bytearray(40))
    assert raised.value.needed == sender.unit(0).bound
    with pytest.raises(deepreduce.ArgumentError, match="there are 1 slots; the sender is one of 2 ranks"):
        Sender(SHAPES, TOP, ranks=2).merge(0, 0, [b"x"])


def test_a_place_that_is_refused_changes_nothing():
    fine, other = gradients(0, 0), gradients(1, 0)
    sender, lent = Sender(SHAPES, TOP), Sender(SHAPES, TOP, caller_states=True)
    sizes = {name: lent.tensor(name).state for name in SHAPES}
    states = {name: np.zeros(size, np.uint8) for name, size in sizes.items()}
    crooked = {**states, "layer.bias": np.zeros(sizes["layer.bias"] + 9, np.uint8)[1:-8]}
    assert crooked["layer.bias"].ctypes.data % 8
    slot = np.zeros(lent.unit(0).bound, np.uint8)
    lent.place(fine, states=states)
    before = slot[: lent.encode(0, 0, slot).size].tobytes()
    for bad, why in ((crooked, "its state is not aligned to 8"), ({"layer.bias": 3}, "its state is not contiguous bytes")):
        for state in states.values():
            state[:] = 0
        with pytest.raises(deepreduce.ArgumentError, match=f"^layer.bias: {why}") as raised:
            lent.place(other, states=bad)
        assert raised.value.tensor == "layer.bias"
        assert slot[: lent.encode(0, 0, slot).size].tobytes() == before
    sender.place(fine)
    assert slot[: sender.encode(0, 0, slot).size].tobytes() == before
    for bad in (states["layer.bias"], None):
        with pytest.raises(deepreduce.ArgumentError, match="^layer.bias: the sender has its state"):
            sender.place(other, states={"layer.bias": bad})
    sender.load_state_dict(Sender(SHAPES, TOP).state_dict())
    assert slot[: sender.encode(0, 0, slot).size].tobytes() == before


@pytest.mark.parametrize("bad", [3.0, None, [1.0], "text"])
@pytest.mark.parametrize("where", ["tensors", "out"])
def test_what_is_no_array_is_refused_by_its_tensors_name(bad, where):
    with pytest.raises(deepreduce.ArgumentError, match="^layer.bias is .*, not an array") as raised:
        Sender(SHAPES, TOP).place(**{where: {"layer.bias": bad}})
    assert raised.value.tensor == "layer.bias"


def test_a_sparse_tensor_of_torch_is_refused_by_name():
    torch = pytest.importorskip("torch", reason="torch is missing: pip install torch")
    with pytest.raises(deepreduce.ArgumentError, match="^layer.bias has layout torch.sparse_coo"):
        Sender(SHAPES, TOP).place({"layer.bias": torch.ones(50).to_sparse()})


def _frozen(shape):
    array = np.zeros(shape, np.float32)
    array.flags.writeable = False
    return array


def test_weights_that_a_tensor_is_to_move_are_read_where_they_are():
    weights = np.ones((40, 50), np.float32)
    sender = Sender({"w": TensorSpec((40, 50), "float32", weights=weights)}, "pulseloco", flat=False)
    slot, out = np.empty(sender.units[0].bound, np.uint8), np.empty((40, 50), np.float32)
    sender.place({"w": np.full((40, 50), 1e-3, np.float32)}, {"w": out})  # half a last place of bf16 below 1 is 2^-9
    for step, (weight, expected) in enumerate([(1.0, 0.0), (0.25, 2e-3)]):
        weights[:] = weight
        sender.encode(0, step, slot)
        sender.merge(0, step, [slot])
        assert np.array_equal(out, np.full((40, 50), expected, np.float32))
    for given, why in ((weights[:, :20], "its weights: is not contiguous"), (weights[:20], "its weights: has 1000 elements, not 2000"),
                       (weights.astype(np.float16), "its weights: is float16, not float32")):  # fmt: skip
        with pytest.raises(deepreduce.ArgumentError, match=f"^w: {why}") as raised:
            Sender({"w": TensorSpec((40, 50), "float32", weights=given)}, "pulseloco")
        assert raised.value.tensor == "w"
    with pytest.raises(deepreduce.Unsupported, match="^w: .*compares with the weights that the tensor is to move, and the sender has none"):
        Sender({"w": ((40, 50), "float32")}, "pulseloco")


def test_plans_that_do_not_fit_are_refused_by_name():
    with pytest.raises(deepreduce.ArgumentError, match="^w is float64|^w: .*float64"):
        Sender({"w": np.zeros(5)}, TOP)
    clips = {"v": "feedback=dgc(clip=1)", "w": "feedback=dgc(clip=2)"}
    with pytest.raises(deepreduce.ArgumentError, match="^v has clip=1, w clip=2: the norm is of the whole") as raised:
        Sender(dict.fromkeys("vw", ((5000,), "float32")), clips)
    assert raised.value.tensor == "w"
    with pytest.raises(deepreduce.Unsupported, match="dr_exchange has the others"):
        Sender(SHAPES, f"{TOP} exchange=ring")
    with pytest.raises(deepreduce.ArgumentError, match="rank 2 is not below 2 ranks"):
        Sender(SHAPES, TOP, ranks=2, rank=2)
    with pytest.raises(deepreduce.ArgumentError, match="3 numbers for 2 ranks"):
        Sender(SHAPES, TOP, ranks=2, numbers=[1, 2, 3])


class Gone(Transport):
    """A transport whose peer is gone at the first message."""

    ranks, rank = 2, 0

    def __init__(self, error):
        self.error = error

    def send(self, peer, tag, address, size):
        raise self.error

    def recv(self, peer, tag, address, capacity):
        return 1

    def cancel(self, request):
        return True


@pytest.mark.parametrize("error", [deepreduce.PeerError("the cable is gone"), KeyboardInterrupt("stop")], ids=lambda x: type(x).__name__)
def test_a_step_whose_first_message_fails_goes_back_to_the_residuals(error):
    sender, given = Sender(SHAPES, TOP, ranks=2), gradients(0, 0)
    sender.place(given)
    steps = SenderSteps(sender, Gone(error), 5)
    with pytest.raises(type(error), match="the cable is gone|stop"):
        next(steps.run(0))
    for name, gradient in given.items():
        assert np.array_equal(sender.read_state(name).view(np.float32)[-gradient.size :], gradient.ravel())
    assert sender.info.failures == 1 and not steps.is_sound
    with pytest.raises(deepreduce.Error, match="the cable is gone|step 0 was given up: KeyboardInterrupt"):
        next(steps.run(1))


class Slow(Gone):
    """A transport whose messages do not end."""

    def send(self, peer, tag, address, size):
        return 1

    def test(self, request):
        return None

    def cancel(self, request):
        return False


def test_the_memory_of_messages_outlives_a_step_that_is_garbage():
    sender = Sender(SHAPES, TOP, ranks=2)
    sender.place(gradients(0, 0))
    steps = SenderSteps(sender, Slow(None), 5)
    sender.step = steps.run(0)  # a cycle, whose collector may end the sender before the step
    next(sender.step)
    memory = [weakref.ref(array) for slots in steps._slots.values() for array in (slots.own, slots.received)]
    gone = weakref.ref(sender)
    del sender, steps
    gc.collect()
    assert gone() is None and all(array() is not None for array in memory)


def test_wrong_arguments_are_refused_in_words():
    sender = Sender(SHAPES, TOP)
    state = sender.state_dict()
    for call, words in (
        (lambda: Sender(SHAPES, TOP, flat="yes"), "flat is 'yes', not one of None, True, False"),
        (lambda: Sender({"w": ((2**40, 2**40), "float32")}), "w: its elements = "),
        (lambda: sender.read_state("layer.bias", "state"), "field is 'state', not one of 'states', 'sums', 'warm'"),
        (lambda: sender.write_state("layer.bias", [], b""), r"field is \[\], not one of 'states'"),
        (lambda: sender.load_state_dict([state]), "the state is a dict, as state_dict returns it, not list"),
        (lambda: sender.load_state_dict({**state, "states": list(state["states"])}), "states of the state is not a dict"),
        (lambda: sender.load_state_dict({**state, "states": {1: b"", "w": b""}}), "the states are of other tensors"),
    ):
        with pytest.raises(deepreduce.ArgumentError, match=f"^{words}"):
            call()
    assert Sender({"w": (50, "float32")}).units == Sender({"w": ((50,), "float32")}).units


def test_weights_of_a_tensor_have_their_memory_as_long_as_the_sender():
    weights = PlainArray("f", [1.0] * 50)
    sender = Sender({"w": TensorSpec((50,), "float32", weights=weights)}, "pulseloco", flat=False)
    with pytest.raises(BufferError):
        weights.extend(weights)
    del sender
    gc.collect()
    weights.extend(weights)


def test_a_sender_serves_one_call_at_a_time_and_senders_any_number_of_threads():
    sender = Sender(SHAPES, TOP)
    with Turns([(sender, "")]), pytest.raises(deepreduce.ConcurrentUse, match="the sender is in another call"):
        sender.place(gradients(0, 0))
    expected = [means["layer.weight"].tobytes() for means in Ranks(2).step(0, [gradients(0, rank) for rank in range(2)])]
    found = [None] * 8

    def work(i):
        for _ in range(20):
            found[i] = [means["layer.weight"].tobytes() for means in Ranks(2).step(0, [gradients(0, r) for r in range(2)])]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 8


class Failing(Transport):
    """Of three ranks; the request of the last message fails. As over MPI, a request that has ended is unknown."""

    ranks, rank = 3, 0

    def __init__(self):
        self.open = []

    def recv(self, peer, tag, address, capacity):
        self.open.append(len(self.open))
        return self.open[-1]

    send = recv

    def test(self, request):
        if request == 0:
            self.open.remove(request)
            return 0
        if request == 3:
            self.open.remove(request)
            raise deepreduce.Error("it is gone")
        return None

    def cancel(self, request):
        self.open.remove(request)
        return True


def test_a_message_that_the_transport_lost_is_not_cancelled_again():
    slots = _Slots(Failing(), 0, 1, 64)
    slots.send(64)
    with pytest.raises(deepreduce.PeerError, match="rank 2: it is gone"):
        next(slots.arrived(math.inf, 1))
    assert len(slots.under_way) == 2 and slots.give_up()
