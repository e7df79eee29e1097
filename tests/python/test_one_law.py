"""One law for named tensors: every framework's adapter returns the means of one_law_cases.py.

Each adapter runs the same cases, in this process or, of torch and MPI, on two ranks. Adapters whose framework is missing are skipped:
.venv has torch, .venv-frameworks the others. What an adapter is known to do otherwise is in DIFFERENT, with the reason.
"""

import dataclasses
import functools
import importlib.util
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile

import pytest

np = pytest.importorskip("numpy", reason="numpy is missing: pip install numpy")

RANKS = 4  # but of torch and MPI
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={RANKS}")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import deepreduce  # noqa: E402
from deepreduce.exchange import Exchange, Loopback  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import one_law_cases as cases  # noqa: E402
from one_law_cases import CASES, NAN, STEP  # noqa: E402

DIFFERENT = {
    ("exchange", "random numbers go by name"): "its tensors have no names",
    ("exchange", "wherever the tensor stands"): "its tensors have no names",
    ("exchange", "halves are rounded once"): "it adds in the type of its outputs: of other types than float32 each sum is rounded",
    ("grace", "small tensors have the weight of the gradient"): "its tensors come one by one: none is small beside others",
    ("grace", "below dense_below tensors travel exactly"): "its tensors come one by one: none is small beside others",
    ("grace", "tensors of a plan that sparsifies are one"): "its tensors come one by one",
    ("grace", "a clip is of the norm of all frames"): "its tensors come one by one: it knows no other norm",
    ("flower", "votes are counted, and a tie is one"): "votes are no difference of models",
    **{(name, "factors of a gradient of rank 1 are its mean"): "it gathers frames" for name in ("grace", "jax", "keras", "flower")},
    ("flower", "halves are rounded once"): "its models are float32 and float16, and differences float32",
}


def needs(*modules):
    for module in modules:
        if not importlib.util.find_spec(module):
            pytest.skip(f"{module} is missing")


def array_of(x, dtype):
    """An array of one of the three types."""
    if dtype != "bfloat16":
        return np.asarray(x, dtype)
    return np.asarray(x, pytest.importorskip("ml_dtypes", reason="ml_dtypes is missing: numpy has no bfloat16").bfloat16)


def arrays_of(case, step, rank):
    return {name: array_of(array, case.tensors[name][1]) for name, array in case.gradients(step, rank).items()}


# Each: means(case) → [step]{name: float32}, the same on all ranks; nan() and step() → words of all ranks' errors; RANKS.


def added(slots, numbers):
    """The sum of the slots, as an all-reduce computes it."""
    return sum(slot.view(numbers) for slot in slots).view(np.uint8)


class Sender:
    def __init__(self):
        self.numbers = range(RANKS)

    def _begin(self, case):
        tensors = {name: (shape, array_of([], dtype).dtype) for name, (shape, dtype) in case.tensors.items()}
        options = {"ranks": RANKS, "dense_below": case.below, "flat": case.flat, "halves": True}
        return [deepreduce.Sender(tensors, case.plan, rank=rank, **options) for rank in range(RANKS)]

    def _step(self, case, senders, step, numbers=None):
        outs, words = [], []
        for rank, sender in enumerate(senders):
            sender.place(arrays_of(case, step, rank))
            if sender.info.clips:
                sender.clip()
        slots = [[np.empty(unit.bound, np.uint8) for unit in sender.units] for sender in senders]
        for rank, sender in enumerate(senders):
            for unit in range(len(sender.units)):
                sender.encode(unit, step if numbers is None else numbers[rank], slots[rank][unit])
        reduced = {}  # where an all-reduce carries numbers
        for i, unit in enumerate(senders[0].units):
            if unit.numbers:
                reduced[i] = added([slots_of_rank[i] for slots_of_rank in slots], unit.numbers)
                if unit.sum_bound:
                    sums = [np.empty(unit.sum_bound, np.uint8) for _ in senders]
                    for rank, sender in enumerate(senders):
                        sender.sum(i, step if numbers is None else numbers[rank], [reduced[i]], sums[rank])
                    reduced[i] = added(sums, unit.numbers)
        for sender in senders:
            outs.append({name: array_of(np.zeros(shape), dtype) for name, (shape, dtype) in case.tensors.items()})
            sender.place(out=outs[-1])
            try:
                for unit in range(len(sender.units)):
                    sender.merge(unit, step, [reduced[unit]] if unit in reduced else [slots_of_rank[unit] for slots_of_rank in slots])
            except deepreduce.Error as error:
                words.append(f"{error.rank} {type(error).__name__}: {error}")
                sender.take_back(step)
        return outs, words

    def means(self, case):
        senders = self._begin(case)
        return [self._step(case, senders, step)[0] for step in range(case.steps)]

    def nan(self):
        senders = self._begin(NAN)
        assert self._step(NAN, senders, 0)[1] == []
        return self._step(NAN, senders, 1)[1]

    def step(self):
        return self._step(STEP, self._begin(STEP), 1, [1, 0, 1, 1])[1]


class Loop:
    """deepreduce.exchange over its loopback."""

    def _begin(self, case):
        loopback = Loopback(RANKS)
        exchanges = []
        is_one = deepreduce.Plan(case.plan).info.sparsifies and case.below is None  # for tensors the caller passes it
        plan = case.plan + (" bucket=flat" if is_one else "")
        for rank in range(RANKS):
            x = list(arrays_of(case, 0, rank).values())
            outs = [np.zeros_like(array) for array in x]
            exchanges.append(Exchange(x, plan, loopback.transport(rank), outs, dense_below=case.below or 0))
        return loopback, exchanges

    def _step(self, case, loopback, exchanges, step, numbers=None):
        alive = []
        for rank, exchange in enumerate(exchanges):
            alive.append(list(arrays_of(case, step, rank).values()))
            exchange.rebind(alive[-1], exchange.out)
            exchange.start(step if numbers is None else numbers[rank])
        return loopback.run(exchanges)

    def means(self, case):
        loopback, exchanges = self._begin(case)
        found = []
        for step in range(case.steps):
            assert self._step(case, loopback, exchanges, step) == [None] * RANKS
            found.append([dict(zip(case.tensors, map(np.copy, exchange.out))) for exchange in exchanges])
        return found

    def _words(self, errors):
        return [f"{error.rank} {type(error).__name__}: {error}" for error in errors if error is not None]

    def nan(self):
        loopback, exchanges = self._begin(NAN)
        self._step(NAN, loopback, exchanges, 0)
        return self._words(self._step(NAN, loopback, exchanges, 1))

    def step(self):
        loopback, exchanges = self._begin(STEP)
        return self._words(self._step(STEP, loopback, exchanges, 1, [1, 0, 1, 1]))


class Ranks:
    """The means of a program that runs the cases on two ranks, for one kind of senders."""

    def __init__(self, kind):
        self.kind, self.ranks = kind, 2

    @staticmethod
    def environment():
        packages = [pathlib.Path(deepreduce.__file__).parents[1], HERE.parents[1] / "bindings" / "grace"]
        path = os.pathsep.join(map(str, packages))
        return {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path}

    def means(self, case):
        (label,) = (label for label, known in CASES.items() if known is case)
        at = lambda step, name: f"{self.kind}/{label}/{step}/{name}"
        found = self._found()
        if at(0, next(iter(case.tensors))) not in found[0]:
            pytest.skip("torch is missing: numpy has no bfloat16")
        return [[{name: arrays[at(step, name)] for name in case.tensors} for arrays in found] for step in range(case.steps)]

    def nan(self):
        return [str(arrays[f"{self.kind}/nan"]) for arrays in self._found()]

    def step(self):
        return [str(arrays[f"{self.kind}/step"]) for arrays in self._found()]


class Torch(Ranks):
    """One of one_law_torch.py's."""

    def __init__(self, kind):
        needs("torch")
        super().__init__(kind)

    @staticmethod
    @functools.cache
    def _found():
        with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
            free.close()
            outs = [pathlib.Path(folder, f"{rank}.npz") for rank in range(2)]
            ranks = [
                subprocess.Popen(
                    [sys.executable, "-B", HERE / "one_law_torch.py", str(rank), "2", port, outs[rank]],
                    env=Ranks.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )
                for rank in range(2)
            ]  # fmt: skip
            try:
                printed = [rank.communicate(timeout=200)[0] for rank in ranks]
            finally:
                for rank in ranks:
                    rank.kill()
            assert all(rank.returncode == 0 for rank in ranks), "\n".join(printed)
            return [dict(np.load(out)) for out in outs]


class Mpi(Ranks):
    """one_law_mpi.py's."""

    def __init__(self):
        needs("mpi4py")
        super().__init__("Named")

    @staticmethod
    @functools.cache
    def _found():
        mpiexec = shutil.which("mpiexec", path=os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]))
        if mpiexec is None:
            pytest.skip("mpiexec is missing: pip install mpich")
        with tempfile.TemporaryDirectory() as folder:
            words = [mpiexec, "-n", "2", sys.executable, "-B", str(HERE / "one_law_mpi.py"), f"{folder}/{{rank}}.npz"]
            ran = subprocess.run(words, env=Ranks.environment(), capture_output=True, text=True, timeout=200)
            assert ran.returncode == 0, ran.stdout + ran.stderr
            outs = [pathlib.Path(folder, f"{rank}.npz") for rank in range(2)]
            if not outs[1].exists():
                pytest.skip("mpiexec and mpi4py are of different MPIs")
            return [dict(np.load(out)) for out in outs]


class Jax:
    def __init__(self):
        needs("jax")
        import jax

        importlib.import_module("deepreduce.jax")

        if jax.device_count() < RANKS:
            pytest.skip(f"jax has {jax.device_count()} devices, not {RANKS}: another module has begun it")
        self.jax = jax

    def _given(self, case, step):
        per_rank = [arrays_of(case, step, rank) for rank in range(RANKS)]
        return {name: np.stack([one[name] for one in per_rank]) for name in case.tensors}

    def _begin(self, case):
        jax, axis = self.jax, self.jax.sharding.PartitionSpec("ranks")
        transformation = deepreduce.jax.compress(case.plan, "ranks", dense_below=case.below, flat=case.flat)
        like = {name: jax.numpy.zeros(array.shape[1:], array.dtype) for name, array in self._given(case, 0).items()}
        state = transformation.init(like)
        specs = deepreduce.jax.specs(state, "ranks")
        types_ = (jax.sharding.AxisType.Auto,)
        mesh = jax.make_mesh((RANKS,), ("ranks",), axis_types=types_, devices=jax.devices()[:RANKS])

        def update(state, given):
            mine, state = transformation.update(jax.tree.map(lambda part: part[0], given), state)
            return jax.tree.map(lambda part: part[None], mine), state

        return state, jax.jit(jax.shard_map(update, mesh=mesh, in_specs=(specs, axis), out_specs=(axis, specs)))

    def means(self, case):
        state, update = self._begin(case)
        found = []
        for step in range(case.steps):
            made, state = update(state, self._given(case, step))
            found.append([{name: np.asarray(array[rank]) for name, array in made.items()} for rank in range(RANKS)])
        return found

    def nan(self):
        state, update = self._begin(NAN)
        _, state = update(state, self._given(NAN, 0))
        with pytest.raises(self.jax.errors.JaxRuntimeError) as raised:
            self.jax.block_until_ready(update(state, self._given(NAN, 1)))
        return [str(raised.value)]

    def step(self):
        codec = deepreduce.jax.Codec(arrays_of(STEP, 0, 0), STEP.plan)
        rows = [codec.encode(arrays_of(STEP, 1, rank), codec.init(), 0 if rank == 1 else 1, rank)[0] for rank in range(RANKS)]
        with pytest.raises((self.jax.errors.JaxRuntimeError, ValueError)) as raised:
            self.jax.block_until_ready(codec.mean(self.jax.numpy.stack(rows), 1))
        return [str(raised.value)]


class Keras:
    def __init__(self):
        needs("keras", "tensorflow")
        import keras
        import tensorflow as tf

        self.keras, self.tf, self.strategy = keras, tf, self._strategy()
        importlib.import_module("deepreduce.keras")

    @staticmethod
    @functools.cache
    def _strategy():
        import tensorflow as tf

        devices = [tf.config.LogicalDeviceConfiguration()] * RANKS
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
        return tf.distribute.MirroredStrategy([f"CPU:{rank}" for rank in range(RANKS)])

    def _begin(self, case):
        with self.strategy.scope():
            optimizer = deepreduce.keras.compress(self.keras.optimizers.SGD(1.0), case.plan, dense_below=case.below, flat=case.flat)
            variables = [
                self.keras.Variable(np.zeros(shape, np.float32), dtype=dtype, name=name) for name, (shape, dtype) in case.tensors.items()
            ]
            optimizer.build(variables)
        return optimizer, variables

    def _step(self, case, optimizer, variables, step):
        """The sum over replicas: from zero the variables go to what is opposite to it."""
        tf = self.tf
        per_rank = [arrays_of(case, step, rank) for rank in range(RANKS)]
        given = [tf.constant(np.stack([one[name] for one in per_rank])) for name in case.tensors]
        for variable in variables:
            variable.assign(np.zeros(variable.shape))

        @tf.function
        def run():
            def replica():
                rank = tf.distribute.get_replica_context().replica_id_in_sync_group
                optimizer.apply([tf.gather(one, rank) for one in given], variables)

            self.strategy.run(replica)

        run()

    def means(self, case):
        optimizer, variables = self._begin(case)
        # Votes are signs of sums, whatever is made of sums.
        scale = 1 if deepreduce.Plan(case.plan).info.votes else RANKS
        found = []
        for step in range(case.steps):
            self._step(case, optimizer, variables, step)
            there = [self.strategy.experimental_local_results(variable.value) for variable in variables]
            found.append(
                [{n: -np.asarray(copies[rank].numpy(), "f") / scale for n, copies in zip(case.tensors, there)} for rank in range(RANKS)]
            )
        return found

    def _error(self, case, optimizer, variables, step):
        with pytest.raises(self.tf.errors.OpError) as raised:
            self._step(case, optimizer, variables, step)
        return [str(raised.value)]

    def nan(self):
        optimizer, variables = self._begin(NAN)
        self._step(NAN, optimizer, variables, 0)
        return self._error(NAN, optimizer, variables, 1)

    def step(self):
        optimizer, variables = self._begin(STEP)
        self._step(STEP, optimizer, variables, 0)
        state = optimizer.compression.state_dict()
        optimizer.compression.load_state_dict({**state, "step1": 0})
        return self._error(STEP, optimizer, variables, 1)


class Flower:
    """Clients whose training adds the gradients to the model."""

    atol = 1e-5  # what is added to a model is rounded

    def __init__(self):
        needs("flwr")
        importlib.import_module("deepreduce.flower")

        self.numbers = range(1, RANKS + 1)

    def _run(self, case, rounds, spoil=lambda reply: reply):
        from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp
        from flwr.serverapp.strategy import FedAvg

        record = lambda model: ArrayRecord({name: Array(array) for name, array in model.items()})
        app, models, words = ClientApp(mods=[deepreduce.flower.mod]), [], []
        steps = dict.fromkeys(self.numbers, 0)

        @app.train()
        def train(message, context):
            node, model = context.node_id, {name: array.numpy() for name, array in message.content["arrays"].items()}
            given = arrays_of(case, steps[node], node - 1)
            steps[node] += 1
            made = {name: np.asarray(array + given[name], array.dtype) for name, array in model.items()}
            content = {"arrays": record(made), "metrics": MetricRecord({"num-examples": 1})}
            return Message(RecordDict(content), reply_to=message)

        class Server(FedAvg):
            def aggregate_train(self, server_round, replies):
                replies = list(replies)
                words.append([reply.error.reason for reply in replies if reply.has_error()])
                made = super().aggregate_train(server_round, replies)
                models.append({name: array.numpy() for name, array in made[0].items()})
                return made

        options = {name: value for name, value in (("dense_below", case.below), ("flat", case.flat)) if value is not None}
        strategy = deepreduce.flower.Compressed(Server(fraction_evaluate=0), case.plan, "index=all value=raw", **options)
        grid = deepreduce.flower.LocalGrid(app, RANKS)
        send = grid.send_and_receive
        grid.send_and_receive = lambda messages, *, timeout=None: [spoil(message) for message in send(messages)]
        begin = {name: np.zeros(shape, dtype) for name, (shape, dtype) in case.tensors.items()}
        strategy.start(grid, record(begin), num_rounds=rounds)
        return [begin, *models], words

    def means(self, case):
        models, words = self._run(case, case.steps)
        assert not any(words)
        return [[{name: after[name] - before[name] for name in before}] for before, after in zip(models, models[1:])]

    def nan(self):
        return [word.replace("node 2", "rank 1") for word in self._run(NAN, 2)[1][1]]

    def step(self):
        def spoil(reply):
            if reply.metadata.src_node_id == 2 and reply.content["deepreduce"]["version"] == 1:
                record = reply.content["arrays"]
                record["deepreduce.frames"] = late[0]
            elif reply.metadata.src_node_id == 2:
                late.append(reply.content["arrays"]["deepreduce.frames"])
            return reply

        late = []
        return [word.replace("node 2", "rank 1") for word in self._run(STEP, 2, spoil)[1][1]]


ADAPTERS = {
    "sender": Sender, "exchange": Loop, "torch loop": lambda: Torch("Loop"), "torch hook": lambda: Torch("Hook"),
    "grace": lambda: Torch("Grace"), "mpi": Mpi, "jax": Jax, "keras": Keras, "flower": Flower,
}  # fmt: skip


@functools.cache
def adapter_of(name):
    return ADAPTERS[name]()


@pytest.mark.parametrize("label", CASES)
@pytest.mark.parametrize("name", ADAPTERS)
def test_means(name, label):
    if (name, label) in DIFFERENT:
        pytest.skip(DIFFERENT[name, label])
    adapter, case = adapter_of(name), CASES[label]
    expected = case.means(getattr(adapter, "ranks", RANKS), getattr(adapter, "numbers", None))
    atol = max(case.atol, getattr(adapter, "atol", 0))
    for step, means_of_ranks in enumerate(adapter.means(case)):
        for rank, found in enumerate(means_of_ranks):
            assert found.keys() == case.tensors.keys()
            for key, array in expected[step].items():
                what = np.asarray(found[key], np.float32)
                assert what.shape == array.shape
                assert np.array_equal(what, array) or abs(what - array).max() <= atol, f"step {step}, rank {rank}, {key}: {abs(what - array).max()}"


def test_sparse_rows_are_the_union_and_the_mean_of_the_ranks_rows():
    """Through the sender, and through torch."""
    senders = [
        deepreduce.Sender({"table": deepreduce.sender.TensorSpec(cases.ROWS_SHAPE, "float32", True)}, "index=golomb value=raw", ranks=RANKS, rank=rank)
        for rank in range(RANKS)
    ]
    for step in range(cases.ROWS_STEPS):
        slots = [np.empty(sender.units[0].bound, np.uint8) for sender in senders]
        for rank, sender in enumerate(senders):
            sender.place_rows("table", *cases.rows(step, rank))
            sender.encode(0, step, slots[rank])
        union, table = cases.mean_of_rows(step, RANKS)
        for sender in senders:
            sender.merge(0, step, slots)
            at, values = sender.rows("table")
            assert at.tolist() == union and np.array_equal(values, table[at])
    needs("torch")
    for step in range(cases.ROWS_STEPS):
        union, table = cases.mean_of_rows(step, 2)
        for found in Torch._found():
            assert found[f"rows/{step}/at"].tolist() == union and np.array_equal(found[f"rows/{step}/table"], table)


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_rank_that_has_a_nan_is_named(name):
    words = adapter_of(name).nan()
    assert words and all("rank 1" in word and "NaN" in word for word in words), words


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_rank_at_another_step_is_named(name):
    words = adapter_of(name).step()
    assert words and all("rank 1" in word and "step" in word for word in words), words


def test_other_laws_would_have_other_means():
    """The cases whose means are close to those of earlier, different laws of adapters can fail."""

    def is_other(label, expected, ranks=RANKS):
        case = CASES[label]
        pairs = zip(case.means(ranks), dataclasses.replace(case, expected=expected).means(ranks))
        return all(any(abs(one[name] - other[name]).max() > 10 * case.atol for name in one) for one, other in pairs)

    def rounded_at_every_rank(case, ranks, numbers):
        add = lambda total, x: cases.rounded(total + x / np.float32(ranks), "bfloat16")
        gradients_of = lambda step: [case.gradients(step, rank)["w"] for rank in range(ranks)]
        return [{"w": functools.reduce(add, gradients_of(step), np.zeros(3000, "f"))} for step in range(case.steps)]

    def clipped_by_frame(case, ranks, numbers):
        norm = lambda x: np.sqrt((x.astype(np.float64) ** 2).sum())
        clip = lambda name, step: [case.gradients(step, rank)[name] for rank in range(ranks)]
        return [
            {name: cases.mean([(x / norm(x)).astype("f") for x in clip(name, step)]) for name in case.tensors}
            for step in range(case.steps)
        ]

    assert is_other("halves are rounded once", rounded_at_every_rank)
    assert is_other("a clip is of the norm of all frames", clipped_by_frame, 2)
    assert is_other("small tensors have the weight of the gradient", cases.selected([["w"]], ["small"], beta=0.5), 2)
    assert is_other("tensors of a plan that sparsifies are one", cases.selected([["v"], ["w"]]), 2)
    assert all(set(np.unique(means[name])) == {-1, 1} for means in CASES["votes are counted, and a tie is one"].means(2) for name in means)
