"""What deepreduce.keras promises, over TensorFlow, on two devices that one CPU plays."""

import io
import os
import struct
import subprocess
import sys
import zipfile

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402

import deepreduce.keras  # noqa: E402
from deepreduce.keras import compress  # noqa: E402

LOSSLESS = "index=all value=raw"
TOP = "sparsify=topr(count=40) feedback=residual index=golomb value=raw"
LOSSY = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=log_quant"

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
STRATEGY = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
SHAPES = [(40, 50), (50,), (40, 30)]


def gradients(step, replica):
    rng = np.random.default_rng([step, replica])
    return [rng.laplace(size=shape).astype(np.float32) for shape in SHAPES]


class Steps:
    """An optimizer's steps with given gradients of two replicas, compiled or not."""

    def __init__(self, make, compiled=True):
        with STRATEGY.scope():
            self.optimizer = make()
            self.variables = [keras.Variable(np.zeros(shape, np.float32), name=f"v{i}") for i, shape in enumerate(SHAPES)]
            self.optimizer.build(self.variables)
        self.run = tf.function(self._run) if compiled else self._run

    def _run(self, both):
        def step():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            self.optimizer.apply([tf.gather(array, replica) for array in both], self.variables)

        STRATEGY.run(step)

    def __call__(self, step, spoilt=None):
        both = [np.stack(pair) for pair in zip(gradients(step, 0), gradients(step, 1))]
        if spoilt is not None:
            both[0][spoilt][0, 0] = np.nan
        self.run([tf.constant(array) for array in both])

    def replicas(self):
        """The values of the variables, replica by replica."""
        return [[copy_.numpy() for copy_ in STRATEGY.experimental_local_results(v.value)] for v in self.variables]


def sgd(plan, **options):
    return lambda: compress(keras.optimizers.SGD(1.0), plan, **options)


@pytest.mark.parametrize("compiled", [True, False])
def test_top_r_with_feedback_is_that_of_numpy_on_both_replicas(compiled):
    steps, residuals = Steps(sgd(TOP, dense_below=1000), compiled), [np.zeros(3200, np.float32) for _ in range(2)]
    expected = np.zeros(3250, np.float32)
    for step in range(3):
        steps(step)
        total = np.zeros(3250, np.float32)
        for replica in range(2):
            w, b, v = (gradient.ravel() for gradient in gradients(step, replica))
            whole = np.concatenate([w, v]) + residuals[replica]
            selected = np.zeros_like(whole)
            where = np.argsort(-np.abs(whole), kind="stable")[:40]
            selected[where] = whole[where]
            residuals[replica] = whole - selected
            total += np.concatenate([selected, b])
        expected -= total
        for replica in range(2):
            w, b, v = (gradient[replica].ravel() for gradient in steps.replicas())
            np.testing.assert_array_equal(np.concatenate([w, v, b]), expected)
    stats = steps.optimizer.compression.stats()
    assert stats.steps == 3 and stats.dense == 4 * 3250 and 0 < stats.frame <= stats.row < 1000


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.Adam(0.01, global_clipnorm=1.0),
        lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), momentum=0.9),
        lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    ],
)
def test_an_exact_plan_trains_as_keras_does(make):
    plain, coded = Steps(make), Steps(lambda: compress(make(), LOSSLESS))
    for step in range(4):
        plain(step)
        coded(step)
    for a, b in zip(plain.replicas(), coded.replicas()):
        np.testing.assert_allclose(a[0], b[0], rtol=1e-5, atol=1e-7)
        assert b[0].tobytes() == b[1].tobytes() and np.any(b[0])


def test_training_goes_on_bit_for_bit_from_a_saved_state():
    whole = Steps(sgd(LOSSY))
    for step in range(6):
        if step == 3:
            saved, values = whole.optimizer.compression.state_dict(), whole.replicas()
        whole(step)
    again = Steps(sgd(LOSSY))
    again.optimizer.compression.load_state_dict(saved)
    for variable, value in zip(again.variables, values):
        variable.assign(value[0])
    for step in range(3, 6):
        again(step)
    for a, b in zip(whole.replicas(), again.replicas()):
        assert a[0].tobytes() == b[0].tobytes()
    with pytest.raises(deepreduce.ArgumentError, match="other gradients"):
        again.optimizer.compression.load_state_dict({"0": np.zeros(5, np.uint8), "step0": 1})


def test_a_checkpoint_of_tensorflow_takes_the_residuals_along(tmp_path):
    make = lambda: compress(keras.optimizers.Adam(0.01), "sparsify=topr(ratio=0.05) feedback=dgc(momentum=0.9) index=golomb value=qsgd")
    whole, again = Steps(make), Steps(make)
    for step in range(6):
        if step == 3:
            path = tf.train.Checkpoint(optimizer=whole.optimizer, variables=[v.value for v in whole.variables]).save(tmp_path / "it")
        whole(step)
    again(9)  # what is there before does not count
    tf.train.Checkpoint(optimizer=again.optimizer, variables=[v.value for v in again.variables]).restore(path).assert_consumed()
    assert again.optimizer.compression.stats().steps == 3
    for step in range(3, 6):
        again(step)
    for a, b in zip(whole.replicas(), again.replicas()):
        assert a[0].tobytes() == b[0].tobytes() == b[1].tobytes()


@pytest.mark.parametrize("name", ["signsgd", "dgc", "terngrad"])
def test_the_name_of_a_preset_is_its_plan(name):
    """signsgd: the steps are votes, of small gradients, too."""
    one, two = Steps(sgd(name)), Steps(sgd(deepreduce.presets()[name]))
    for step in range(2):
        one(step)
        two(step)
    for a, b in zip(one.replicas(), two.replicas()):
        assert a[0].tobytes() == a[1].tobytes() == b[0].tobytes()
    assert any(np.any(a[0]) for a in one.replicas())
    if name == "signsgd":
        votes = [[np.where(a + b >= 0, 1, -1) for a, b in zip(*([np.where(g >= 0, 1, -1) for g in gradients(step, i)] for i in range(2)))] for step in range(2)]
        for gradient, first, second in zip(one.replicas(), *votes):
            np.testing.assert_array_equal(gradient[0], -(first + second).astype(np.float32))


def test_a_plan_that_saves_nothing_is_a_warning():
    with pytest.warns(UserWarning, match="a row is .*saves nothing here"):
        Steps(sgd("threshold"))(0)


def test_a_replica_that_cannot_encode_is_named():
    steps = Steps(sgd(LOSSY))
    steps(0)
    with pytest.raises(tf.errors.OpError, match="rank 1.*NaN"):
        steps(1, spoilt=1)


def model_and_data():
    keras.utils.set_random_seed(1)
    labels = np.random.randint(4, size=512)
    x = (np.random.randn(4, 20)[labels] + 0.5 * np.random.randn(512, 20)).astype(np.float32)
    with STRATEGY.scope():
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(4)])
    return model, x, labels


def loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def test_fit_learns_and_the_model_is_saved_as_any(tmp_path):
    model, x, labels = model_and_data()
    with STRATEGY.scope():
        optimizer = compress(keras.optimizers.Adam(0.01), LOSSY)
        model.compile(optimizer, loss(), jit_compile=False)
    history = model.fit(x, labels, batch_size=64, epochs=4, verbose=0).history["loss"]
    assert history[-1] < history[0] / 2 and optimizer.compression.stats().steps == 32
    for variable in model.trainable_variables:
        one, two = (copy_.numpy() for copy_ in STRATEGY.experimental_local_results(variable.value))
        assert one.tobytes() == two.tobytes()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.Adam
    np.testing.assert_allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5, atol=1e-5)


def test_errors_and_books_have_the_paths_of_variables():
    variables = [keras.Variable(np.zeros(5000, np.float32), name=name) for name in ("kernel", "bias")]
    optimizer = compress(keras.optimizers.SGD(1.0), deepreduce.book.parse(f"bias: dense\n*: {LOSSY}"))
    given = [np.random.default_rng(i).laplace(size=5000).astype(np.float32) for i in range(2)]
    optimizer.apply([tf.constant(gradient) for gradient in given], variables)
    np.testing.assert_array_equal(variables[1].numpy(), -given[1])
    assert np.count_nonzero(variables[0].numpy()) == 250
    given[0][3] = np.nan
    with pytest.raises(deepreduce.PeerError, match="rank 0: .* kernel: .*NaN"):
        optimizer.apply([tf.constant(gradient) for gradient in given], variables)


def test_one_replica_encodes_and_decodes_its_own():
    variable = keras.Variable(np.zeros(5000, np.float32))
    optimizer = compress(keras.optimizers.SGD(1.0), TOP)
    optimizer.apply([tf.constant(np.random.default_rng(0).laplace(size=5000).astype(np.float32))], [variable])
    assert np.count_nonzero(variable.numpy()) == 40


def test_variables_that_alternate_do_not_share_residuals():
    heads = [keras.Variable(np.zeros(5000, np.float32), name=name) for name in ("left", "right")]
    optimizer = compress(keras.optimizers.SGD(1.0), TOP)
    optimizer.build(heads)
    gradient = tf.constant(np.random.default_rng(0).laplace(size=5000).astype(np.float32))
    optimizer.apply([gradient], heads[:1])
    with pytest.raises(deepreduce.ArgumentError, match="there is 'right', and in the first step there was 'left'"):
        optimizer.apply([gradient], heads[1:])


@pytest.mark.parametrize("compiled", [True, False])
def test_a_variable_without_a_dimension_is_sent(compiled):
    scale, optimizer = keras.Variable(np.float32(3.0)), compress(keras.optimizers.SGD(1.0), TOP)
    optimizer.build([scale])
    step = lambda gradient: optimizer.apply([gradient], [scale])
    (tf.function(step) if compiled else step)(tf.constant(2.0))
    assert scale.numpy() == 1.0


def test_a_step_that_failed_changes_no_residual_and_no_number():
    steps = Steps(sgd(LOSSY))
    steps(0)
    compression = steps.optimizer.compression
    before, stats = compression.state_dict(), compression.stats(1)
    with pytest.raises(tf.errors.OpError, match="rank 1.*NaN"):
        steps(1, spoilt=1)
    after = compression.state_dict()
    assert before.keys() == after.keys() and compression.stats(1) == stats
    assert all(np.array_equal(before[name], after[name]) for name in before)
    steps(2)
    assert compression.stats(0).steps == compression.stats(1).steps == 2


@pytest.mark.parametrize("wrong, words", [
    (None, "is a dict"),
    ({"residual": 1}, "'residual'"),
    ({"0": np.zeros(8, np.uint8), "stepx": 1}, "'stepx'"),
    ({"0": np.zeros(8, np.uint8), "step0": "one"}, "step0"),
    ({"0": np.zeros(8, np.uint8), "step0": -1}, "step0"),
    ({"0": np.zeros(8, np.float32)}, "float32"),
    ({"0": np.zeros(8, "V0")}, "not uint8"),
    ({"0": np.zeros((2, 4), np.uint8)}, "not uint8"),
])  # fmt: skip
def test_a_state_that_is_none_changes_nothing(wrong, words):
    compression = compress(keras.optimizers.SGD(1.0), TOP).compression
    compression.load_state_dict({"0": np.ones(8, np.uint8), "step0": 3})
    with pytest.raises(deepreduce.ArgumentError, match=words):
        compression.load_state_dict(wrong)
    assert compression.state_dict()["0"].tolist() == [1] * 8 and compression.state_dict()["step0"] == 3


def residuals_of_shape(text):
    file = io.BytesIO()
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {text}}}\n".encode()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("0.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header)
    return file.getvalue()


@pytest.mark.parametrize("data", [b"", b"residuals", b"PK\x05\x06", *map(residuals_of_shape, ["(", f"({2**40},)", f"({2**80},)"])])
def test_bytes_of_a_checkpoint_that_are_no_residuals_are_refused(data):
    with pytest.raises(deepreduce.ArgumentError, match="no residuals"):
        compress(keras.optimizers.SGD(1.0), TOP).compression.deserialize(data)


def test_statistics_of_a_replica_that_has_loaded_and_not_encoded():
    compression = compress(keras.optimizers.SGD(1.0), TOP).compression
    compression.sum([tf.constant(np.ones(5000, np.float32))])
    state = compression.state_dict()
    compression.load_state_dict({**state, "1": state["0"], "step1": 7})
    assert compression.stats(1).steps == 7 and compression.stats(1).frame == 0


def test_what_it_cannot_do_is_refused():
    with pytest.raises(deepreduce.ArgumentError, match="not a str"):
        compress("sgd", TOP)
    with pytest.raises(deepreduce.ArgumentError, match="inner optimizer"):
        compress(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), TOP)
    used = keras.optimizers.SGD(0.1)
    used.build([keras.Variable(np.zeros(3, np.float32))])
    with pytest.raises(deepreduce.ArgumentError, match="used already"):
        compress(used, TOP)
    with pytest.raises(deepreduce.ArgumentError, match="nonsense"):
        compress(keras.optimizers.SGD(0.1), "sparsify=nonsense")


def test_another_backend_is_refused_by_name():
    code = (
        "import deepreduce.keras, keras\n"
        "try: deepreduce.keras.compress(keras.optimizers.SGD(0.1), 'index=raw')\n"
        "except deepreduce.Unsupported as error: print(error)"
    )
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100)
    assert "Keras over jax has no gradients of replicas" in done.stdout, done.stderr
