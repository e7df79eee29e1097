"""What deepreduce.jax promises, on four devices that one CPU plays, and on two processes."""

import os
import pathlib
import socket
import subprocess
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
import pytest  # noqa: E402
from jax.sharding import PartitionSpec  # noqa: E402

import deepreduce.jax  # noqa: E402

LOSSLESS = "index=all value=raw"
TOP = "sparsify=topr(count=40) feedback=residual index=golomb value=raw"
LOSSY = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=log_quant"
WHEN_IT_RUNS = (jax.errors.JaxRuntimeError, ValueError)  # under jit, and without
OWN, SHARED = PartitionSpec("ranks"), PartitionSpec()


def mesh(ranks=4):
    return jax.make_mesh((ranks,), ("ranks",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:ranks])


def params():
    return {"w": jnp.zeros((40, 50)), "b": jnp.zeros(50), "v": jnp.zeros((40, 30)), "one": jnp.zeros(())}


def gradients(step, rank):
    rng = np.random.default_rng([step, rank])
    return {name: rng.laplace(size=param.shape).astype(np.float32) for name, param in params().items()}


def stacked(step, ranks=4):
    return jax.tree.map(lambda *parts: np.stack(parts), *(gradients(step, rank) for rank in range(ranks)))


def updater(transformation, ranks=4):
    """(state, function of state and stacked gradients: means of each rank, state)"""
    state = transformation.init(params())
    specs = deepreduce.jax.specs(state, "ranks")

    def update(state, all_gradients):
        mine, state = transformation.update(jax.tree.map(lambda part: part[0], all_gradients), state)
        return jax.tree.map(lambda part: part[None], mine), state

    return state, jax.jit(
        jax.shard_map(update, mesh=mesh(ranks), in_specs=(specs, OWN), out_specs=(OWN, specs))
    )


def same(a, b):
    return jax.tree.all(jax.tree.map(lambda x, y: np.asarray(x).tobytes() == np.asarray(y).tobytes(), a, b))


def test_an_exact_plan_gives_the_mean_in_rank_order_on_all_ranks():
    state, update = updater(deepreduce.jax.compress(LOSSLESS, "ranks"))
    for step in range(2):
        means, state = update(state, stacked(step))
        for name in params():
            total = np.zeros(params()[name].shape, np.float32)
            for rank in range(4):
                total += np.float32(0.25) * gradients(step, rank)[name]
            for rank in range(4):
                assert np.asarray(means[name][rank]).tobytes() == total.tobytes()
    assert int(state.step) == 2 and state.memory.shape == (0,)


def top(x, count):
    selected = np.zeros_like(x)
    where = np.argsort(-np.abs(x), kind="stable")[:count]
    selected[where] = x[where]
    return selected


def test_top_r_with_feedback_is_that_of_numpy():
    """b and one travel exactly; v and w, in the tree's order, are one tensor."""
    state, update = updater(deepreduce.jax.compress(TOP, "ranks", dense_below=1000))
    residuals = [np.zeros(3200, np.float32) for _ in range(4)]
    for step in range(4):
        means, state = update(state, stacked(step))
        expected = np.zeros(3200, np.float32)
        for rank in range(4):
            mine = gradients(step, rank)
            whole = np.concatenate([mine["v"].ravel(), mine["w"].ravel()]) + residuals[rank]
            sent = top(whole, 40)
            residuals[rank] = whole - sent
            expected += np.float32(0.25) * sent
        for rank in range(4):
            got = np.concatenate([np.asarray(means[name][rank]).ravel() for name in ("v", "w")])
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", ["signsgd", "dgc", "onebit"])
def test_the_name_of_a_preset_is_its_plan(name):
    one, update_one = updater(deepreduce.jax.compress(name, "ranks"))
    two, update_two = updater(deepreduce.jax.compress(deepreduce.presets()[name], "ranks"))
    for step in range(2):
        means, one = update_one(one, stacked(step))
        others, two = update_two(two, stacked(step))
        assert same((means, one), (others, two))
        if name == "signsgd":  # of small tensors, too
            for key, array in stacked(step).items():
                votes = np.where(array >= 0, 1, -1).sum(axis=0)
                np.testing.assert_array_equal(means[key][0], np.where(votes >= 0, 1, -1))


def test_a_mesh_of_explicit_axes_takes_a_state_that_is_placed():
    there = jax.make_mesh((4,), ("ranks",), axis_types=(jax.sharding.AxisType.Explicit,))
    like = {"w": jnp.zeros((40, 50), jnp.bfloat16), "v": jnp.zeros(3000), "one": jnp.zeros((), jnp.float16)}
    optimizer = optax.chain(deepreduce.jax.compress(TOP, "ranks", dense_below=1000), optax.sgd(1.0))
    state = optimizer.init(like)
    specs = deepreduce.jax.specs(state, "ranks")
    state = jax.device_put(state, jax.tree.map(lambda spec: jax.sharding.NamedSharding(there, spec), specs))

    def step(state, ranks):
        updates, state = optimizer.update(jax.tree.map(lambda array: jnp.full_like(array, ranks[0]), like), state)
        return updates, state

    run = jax.jit(jax.shard_map(step, mesh=there, in_specs=(specs, OWN), out_specs=(SHARED, specs), check_vma=False))
    ranks = jax.device_put(jnp.arange(4.0), jax.sharding.NamedSharding(there, OWN))
    updates, state = run(state, ranks)
    assert jax.tree.map(lambda leaf: leaf.dtype, updates) == jax.tree.map(lambda leaf: leaf.dtype, like)
    assert float(updates["one"]) == -1.5 and np.count_nonzero(updates["w"]) == np.count_nonzero(updates["v"]) == 40
    assert set(np.unique(np.asarray(updates["w"], np.float32))) == {-1.5, 0}


def test_a_plan_that_saves_nothing_is_a_warning():
    with pytest.warns(UserWarning, match="a row is .* frames may be of any size, saves nothing here"):
        deepreduce.jax.Codec(params(), "threshold")
    with pytest.warns(UserWarning, match="each of 4 tensors has fewer elements than `dense_below`"):
        deepreduce.jax.Codec(params(), TOP, dense_below=10000)


def test_training_goes_on_bit_for_bit_from_a_saved_state():
    transformation = optax.chain(deepreduce.jax.compress(LOSSY, "ranks"), optax.adam(0.01))
    state, update = updater(transformation)
    for step in range(6):
        means, state = update(state, stacked(step))
        if step == 2:
            saved = jax.tree.map(np.asarray, state)
    for step in range(3, 6):
        again, saved = update(saved, stacked(step))
    assert same(again, means) and same(saved, state)


def test_optax_trains_as_with_a_dense_mean():
    def run(first):
        state, update = updater(optax.chain(first, optax.adam(0.1)))
        for step in range(3):
            means, state = update(state, stacked(step))
        return means

    dense = optax.GradientTransformation(
        lambda params: deepreduce.jax.CompressState(jnp.zeros(()), jnp.zeros(4, jnp.uint8)),
        lambda updates, state, params=None: (jax.lax.pmean(updates, "ranks"), state),
    )
    coded, plain = run(deepreduce.jax.compress(LOSSLESS, "ranks")), run(dense)
    for name in coded:
        np.testing.assert_allclose(coded[name], plain[name], rtol=1e-4, atol=1e-6)


def test_random_plans_draw_anew_at_each_step_and_on_each_rank():
    codec = deepreduce.jax.Codec({"w": jnp.zeros(5000)}, "index=all value=qsgd(levels=3)")
    x, state = {"w": jnp.linspace(-1, 1, 5000)}, codec.init()
    encode = jax.jit(codec.encode)
    rows = [np.asarray(encode(x, state, step, rank)[0]).tobytes() for step, rank in ((0, 0), (0, 0), (1, 0), (0, 1))]
    assert rows[0] == rows[1] and len(set(rows)) == 3


def test_the_codec_is_pure_and_says_how_much_of_the_row_is_used():
    codec = deepreduce.jax.Codec(params(), TOP, dense_below=1000)
    state = codec.init()
    row, after, size = jax.jit(codec.encode)(gradients(0, 0), state, 5)
    assert row.shape == (codec.row_size,) and after.shape == (codec.state_size,) and state.sum() == 0
    assert 0 < int(size) <= codec.row_size < 1000 and codec.state_size >= 4 * 3200
    again = jax.jit(codec.encode)(gradients(0, 0), state, 5)
    assert same((row, after, size), again)
    back = codec.mean(row[None], 5)
    np.testing.assert_array_equal(back["b"], gradients(0, 0)["b"])
    assert np.count_nonzero(back["w"]) + np.count_nonzero(back["v"]) == 40


def test_what_runs_where_xla_is_not_on_the_cpu_gives_the_same(monkeypatch):
    """The way of accelerators, by pure_callback, on the CPU."""
    codec = deepreduce.jax.Codec(params(), TOP)

    def there_and_back(state, tree):
        row, state, size = codec.encode(tree, state, 3, 1)
        return row, state, size, codec.mean(jnp.stack([row, row]), 3)

    expected = jax.jit(there_and_back)(codec.init(), gradients(0, 1))
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *arguments, cpu, default: default(*arguments))
    assert same(jax.jit(lambda *arguments: there_and_back(*arguments))(codec.init(), gradients(0, 1)), expected)


def test_arrays_have_the_names_of_their_paths():
    names = lambda tree: deepreduce.jax.Codec(tree, LOSSLESS).names
    x = jnp.zeros(3)
    assert names({"layer": {"weight": x, "bias": x}, "head": [x, x]}) == ["head.0", "head.1", "layer.bias", "layer.weight"]
    assert names(x) == ["array"] and len(set(names({"a": {"b": x}, "a.b": x}))) == 2


def test_an_empty_name_is_not_another_arrays():
    tree = {"": jnp.ones(3), "array": jnp.ones(2)}
    codec = deepreduce.jax.Codec(tree, LOSSLESS)
    assert len(set(codec.names)) == 2
    row, _, _ = codec.encode(tree, codec.init(), 0)
    assert same(codec.mean(row[None], 0), tree)


def test_a_leaf_that_is_no_array_is_named():
    with pytest.raises(deepreduce.ArgumentError, match="layer.scale is a float, not an array"):
        deepreduce.jax.compress(LOSSLESS).init({"layer": {"scale": 1.0}})
    codec = deepreduce.jax.Codec({"scale": jnp.ones(())}, LOSSLESS)
    with pytest.raises(deepreduce.ArgumentError, match="scale is a float, not an array"):
        codec.encode({"scale": 1.0}, codec.init(), 0)


def test_random_numbers_go_by_name_and_a_book_gives_plans_by_it():
    x = jnp.linspace(-1, 1, 5000)
    book = deepreduce.book.parse("v: dense\n*: index=all value=qsgd(levels=3)")
    codec = deepreduce.jax.Codec({"u": x, "v": x, "w": x}, book)
    row, _, _ = codec.encode({"u": x, "v": x, "w": x}, codec.init(), 3)
    found = codec.mean(row[None], 3)
    assert same(found["v"], x) and not same(found["u"], found["w"])
    alone = deepreduce.jax.Codec({"w": x}, book)
    row, _, _ = alone.encode({"w": x}, alone.init(), 3)
    assert same(alone.mean(row[None], 3)["w"], found["w"])


def test_vmap_takes_ranks_one_after_another():
    codec = deepreduce.jax.Codec(params(), TOP)
    tree = stacked(0)
    rows, states, _ = jax.vmap(codec.encode, in_axes=(0, 0, None, 0))(
        tree, codec.init(4).reshape(4, -1), 0, jnp.arange(4)
    )
    for rank in range(4):
        row, state, _ = codec.encode(gradients(0, rank), codec.init(), 0, rank)
        assert same(rows[rank], row) and same(states[rank], state)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_types(dtype):
    like = {"w": jnp.zeros((50, 40), dtype), "x": jnp.zeros(3000)}
    codec = deepreduce.jax.Codec(like, "index=all value=raw")
    tree = {"w": jnp.linspace(-3, 3, 2000).reshape(50, 40).astype(dtype), "x": jnp.linspace(0, 1, 3000)}
    row, _, _ = codec.encode(tree, codec.init(), 0)
    assert same(codec.mean(row[None], 0), tree)


def test_one_rank_without_an_axis():
    transformation = deepreduce.jax.compress(TOP)
    state = transformation.init(params())
    mine, state = jax.jit(transformation.update)(gradients(0, 0), state)
    assert int(state.step) == 1 and np.count_nonzero(mine["w"]) + np.count_nonzero(mine["v"]) == 40


def test_init_within_the_axis_makes_the_state_of_a_rank():
    transformation = deepreduce.jax.compress(TOP, "ranks")
    outside = transformation.init(params())
    specs = deepreduce.jax.specs(outside, "ranks")
    inside = jax.shard_map(transformation.init, mesh=mesh(), in_specs=SHARED, out_specs=specs, check_vma=False)(params())
    assert same(inside, outside) and outside.memory.size == 4 * deepreduce.jax.Codec(params(), TOP).state_size


# ---- Faults -------------------------------------------------------------------------------------


def test_a_rank_that_cannot_encode_is_named_and_nobody_waits():
    state, update = updater(deepreduce.jax.compress(LOSSY, "ranks"))
    bad = stacked(0)
    bad["w"][2, 3, 4] = np.nan
    with pytest.raises(jax.errors.JaxRuntimeError, match="rank 2.*NaN"):
        jax.block_until_ready(update(state, bad))
    means, _ = update(state, stacked(0))  # the state of before is as it was
    assert np.isfinite(np.asarray(means["w"])).all()


def test_damaged_rows_are_an_error():
    codec = deepreduce.jax.Codec(params(), TOP)
    row, _, _ = codec.encode(gradients(0, 0), codec.init(), 0)
    for position in (0, 3, 20, 200):
        rows = jnp.stack([row, row.at[position].set(row[position] ^ 0xFF)])
        with pytest.raises(WHEN_IT_RUNS, match="rank 1"):
            jax.block_until_ready(codec.mean(rows, 0))
    with pytest.raises(WHEN_IT_RUNS, match="of step 0, and the call is of step 1"):
        jax.block_until_ready(codec.mean(row[None], 1))  # another step's


def test_what_does_not_fit_is_refused_while_tracing():
    codec = deepreduce.jax.Codec(params(), TOP)
    with pytest.raises(deepreduce.ArgumentError, match="the codec is for"):
        codec.encode({"w": jnp.zeros(3)}, codec.init(), 0)
    with pytest.raises(deepreduce.ArgumentError, match=r"specs\(state, axis_name\)"):
        codec.encode(gradients(0, 0), codec.init(4), 0)
    with pytest.raises(deepreduce.ArgumentError, match=f"not uint8.ranks, {codec.row_size}"):
        codec.mean(jnp.zeros((2, 9), jnp.uint8), 0)
    with pytest.raises(deepreduce.ArgumentError, match="float64|int32"):
        deepreduce.jax.Codec({"w": jnp.zeros(5000, jnp.int32)}, TOP)
    with pytest.raises(deepreduce.ArgumentError, match="no tensors"):
        deepreduce.jax.Codec({}, TOP)


# ---- Processes ----------------------------------------------------------------------------------

RANK = """
import sys, jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import jax.numpy as jnp
import deepreduce.jax
rank = int(sys.argv[1])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize("127.0.0.1:" + sys.argv[2], 2, rank)
mesh = jax.make_mesh((2,), ("ranks",), axis_types=(jax.sharding.AxisType.Auto,))
transformation = deepreduce.jax.compress(sys.argv[3], "ranks")
state = transformation.init(jnp.zeros(5000))
specs = deepreduce.jax.specs(state, "ranks")
state = jax.tree.map(lambda each, spec: jax.make_array_from_callback(each.shape, NamedSharding(mesh, spec), lambda at: np.asarray(each)[at]), state, specs)
update = jax.jit(jax.shard_map(lambda s, g: transformation.update(g[0], s), mesh=mesh, in_specs=(specs, P("ranks")), out_specs=(P(), specs), check_vma=False))
for step in range(3):
    own = np.random.default_rng([step, rank]).laplace(size=(1, 5000)).astype(np.float32)
    gradients = jax.make_array_from_process_local_data(NamedSharding(mesh, P("ranks")), own)
    mean, state = update(state, gradients)
np.save(sys.argv[4], np.asarray(mean.addressable_data(0)))
"""


def test_two_processes_get_the_same_mean(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (tmp_path / "rank.py").write_text(RANK)
    environment = {**os.environ, "XLA_FLAGS": ""}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-B", tmp_path / "rank.py", str(rank), port, TOP, tmp_path / f"{rank}.npy"],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        printed = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(printed)
    means = [np.load(pathlib.Path(tmp_path, f"{rank}.npy")) for rank in range(2)]
    assert means[0].tobytes() == means[1].tobytes() and 40 <= np.count_nonzero(means[0]) <= 80
