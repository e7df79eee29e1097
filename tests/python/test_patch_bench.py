"""bench/patch: the bundled weights are what is recorded of them, views and entropies are their definitions, and every code of
a patch that is measured restores the result."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "bindings" / "python"), str(ROOT / "bench" / "results")]

from bench.patch import candidates, entropy, recordings  # noqa: E402

ENTRIES = recordings.entries(recordings.BUNDLED)
for_every_model = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["model"])
RANDOM = np.random.Generator(np.random.PCG64(1))


# ---- recordings ----------------------------------------------------------------------------------------------------


@for_every_model
def test_bundled_weights_are_what_the_list_says(entry):
    found = recordings.load(entry, recordings.BUNDLED)  # (it compares SHA-256)
    assert sum(math.prod(shape) for _, shape in found.tensors) == found.words["base"].size == entry["weights"]
    for name, facts in found.snapshots.items():
        assert np.mean(found.words[name] != found.words["base"]) == pytest.approx(facts["changed"], abs=1e-6), name


def test_bundled_weights_reach_from_a_hundredth_of_a_percent_to_two_fifths_and_stay_small():
    changed = [snapshot["changed"] for entry in ENTRIES for snapshot in entry["snapshots"]]
    assert min(changed) < 3e-4 and max(changed) > 0.4
    assert sum((recordings.BUNDLED / entry["file"]).stat().st_size for entry in ENTRIES) < 3.2e6


def test_a_file_of_other_words_is_refused(tmp_path):
    made = recordings.Recording("m", [("w", (5,))])
    made.add("base", np.arange(5, dtype=np.float32))
    made.add("rl_1_1", np.arange(1, 6, dtype=np.float32), regime="rl", rate=1.0, steps=1)
    recordings.save(made, tmp_path)
    entry = recordings.entries(tmp_path)[0]
    assert np.array_equal(recordings.load(entry, tmp_path).words["rl_1_1"], made.words["rl_1_1"])
    entry["snapshots"][0]["sha256"] = "0" * 64
    with pytest.raises(ValueError, match="rl_1_1"):
        recordings.load(entry, tmp_path)


def test_views_are_those_of_torch():
    torch = pytest.importorskip("torch", reason="torch is missing")
    x = np.concatenate([RANDOM.standard_normal(20_000).astype(np.float32) * s for s in (1e-3, 0.02, 1, 100)])
    x = np.clip(x, -448, 448)
    assert np.array_equal(recordings.bf16_of(x), torch.from_numpy(x).bfloat16().view(torch.int16).numpy().view(np.uint16))
    assert np.array_equal(recordings.e4m3_of(x), torch.from_numpy(x).to(torch.float8_e4m3fn).view(torch.uint8).numpy())


def test_quantised_rows_reach_their_largest_number():
    words = recordings.bf16_of(RANDOM.standard_normal(60).astype(np.float32))
    tensors = [("a", (4, 10)), ("b", (20,))]
    fp8, int8 = (recordings.quantised(words, tensors, kind) for kind in ("fp8", "int8"))
    for rows in ([fp8[i : i + 10] & 0x7F for i in range(0, 40, 10)], [fp8[40:] & 0x7F]):
        assert all(row.max() == 0x7E for row in rows)  # 448
    assert (np.abs(int8.view(np.int8)[:40].reshape(4, 10)).max(1) == 127).all()


# ---- training ------------------------------------------------------------------------------------------------------


def test_warming_leaves_the_weights_and_each_rate_starts_from_them():
    torch = pytest.importorskip("torch", reason="torch is missing")
    record = pytest.importorskip("bench.patch.record", reason="a package of the recipes is missing")
    torch.manual_seed(1)
    module = torch.nn.Linear(30, 20)
    start = record.flat(module).clone()

    def gradient(module, generator):
        loss = module(torch.randn(8, 30, generator=generator)).square().mean()
        loss.backward()
        return loss.item()

    made = recordings.Recording("m", [])
    made.add("base", start.numpy())
    record.record_regime(made, module, record.Regime("sft", gradient, record.adamw, {1e-9: (1,), 1e-2: (1, 3)}))
    assert torch.equal(record.flat(module), start)
    changed = {name: facts["changed"] for name, facts in made.snapshots.items()}
    assert changed["sft_1e-09_1"] == 0 and changed["sft_0.01_1"] > 0.9
    moved = recordings.f32_of(made.words["sft_0.01_1"]) - start.numpy()
    assert 0.002 < np.abs(moved).mean() < 0.012  # an Adam step is about the rate, at most


def test_an_answer_is_rewarded_for_whole_known_words():
    record = pytest.importorskip("bench.patch.record", reason="a package of the recipes is missing")
    known = {b"the", b"return"}
    assert record.bytes_in_words(b"xx the retur the", known) == 3 / 16  # the last may go on, the first may have begun
    assert record.bytes_in_words(b". Return (the) .", known) == 9 / 16
    assert record.bytes_in_words(b"thethetherthe the"[:16], known) == 0


# ---- entropies -----------------------------------------------------------------------------------------------------


def test_distances_are_in_places_of_the_order_of_numbers():
    ordered = np.array([0xFF80, 0xBF80, 0x8001, 0x8000, 0x0000, 0x0001, 0x3F80, 0x7F80], np.uint16)  # −inf … inf
    assert (np.diff(entropy.order(ordered)) > 0).all()
    assert entropy.distances(np.array([0x8000], np.uint16), np.array([0x0001], np.uint16)).tolist() == [2]


def test_an_index_of_one_class_costs_the_number_of_its_sets():
    changed = np.zeros(100_000, bool)
    changed[RANDOM.choice(changed.size, 1000, replace=False)] = True
    exact = (math.lgamma(100_001) - math.lgamma(1001) - math.lgamma(99_001)) / math.log(2)
    assert entropy.index_bits(np.zeros(changed.size, np.int64), changed) == pytest.approx(exact, rel=2e-3)


def test_a_context_that_knows_costs_nothing_and_one_that_does_not_costs_more():
    changed = RANDOM.random(50_000) < 0.1
    none = entropy.index_bits(np.zeros(changed.size, np.int64), changed)
    assert entropy.index_bits(changed.astype(np.int64), changed) < 0.01 * none
    assert entropy.index_bits(RANDOM.integers(0, 1000, changed.size), changed) > none


def test_history_has_the_age_and_the_direction_of_the_last_change():
    history = entropy.History(3)
    a, b = np.array([0x3F80, 0x3F80, 0x3F80], np.uint16), np.array([0x3F81, 0x3F80, 0x3F7F], np.uint16)
    history.see(a, b)
    history.see(b, np.array([0x3F81, 0x3F90, 0x3F7F], np.uint16))
    assert history.age.tolist() == [2, 1, 2] and history.sign.tolist() == [1, 1, -1]


# ---- codes ---------------------------------------------------------------------------------------------------------


def cases():
    old = RANDOM.integers(0, 1 << 16, 300_000).astype(np.uint16)
    for name, at in {"none": [], "first and last": [0, 299_999], "gaps past 65535": [65_536, 299_000], "one gap of 65535": [65_535],
                     "many": RANDOM.choice(old.size, 9000, replace=False), "all": slice(None)}.items():  # fmt: skip
        new = old.copy()
        new[at] ^= 5
        yield pytest.param(old, new, id=name)


@pytest.mark.parametrize("name", list(candidates.others()))
@pytest.mark.parametrize("old, new", list(cases()))
def test_every_code_gives_the_result_back(name, old, new):
    candidate = candidates.others()[name]
    if candidate.missing:
        pytest.skip(candidate.missing)
    weights = old.copy()
    candidate.apply(weights, candidate.make(old, new))
    assert np.array_equal(weights, new)


@for_every_model
def test_ours_gives_bundled_weights_back_in_fewer_bytes_than_what_engines_send(entry):
    from bench.patch.own_patches import PLANS, Public, ours

    found, theirs = recordings.load(entry, recordings.BUNDLED), candidates.others()
    base = found.words["base"]
    for name, new in found.words.items():
        if name == "base":
            continue
        sizes = {}
        mine = [*ours("bf16").values(), Public("bf16", found.tensors)]
        mine[-1].name = "ours: deepreduce.patch, as a dict"
        for candidate in mine:
            candidate.prepare(base)
            weights = base.copy()
            data = candidate.make(base, new)
            candidate.apply(weights, data)
            assert np.array_equal(weights, new), (name, candidate.name)
            sizes[candidate.name] = len(data)
        others = {n: len(theirs[n].make(base, new)) for n in ("int32 + value", "u16 gaps + xor + zstd -1", "xor + zstd -1", "xor + zstd -3")}
        for what in (next(iter(PLANS)), "ours: deepreduce.patch, as a dict"):
            assert sizes[what] < min(others.values()), (name, sizes, others)
        one, of_dict = sizes["ours: deepreduce.patch"], sizes["ours: deepreduce.patch, as a dict"]
        assert of_dict < 1.02 * one + 64, (name, one, of_dict)  # (the tensors' order is another)

