"""What deepreduce.flower promises, with Flower's own strategies, apps and messages, all in one process."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg

import deepreduce
from deepreduce.flower import Compressed, LocalGrid, mod

LOSSLESS = "index=all value=raw"
TOP = "sparsify=topr(count=40) feedback=residual index=raw value=raw"
DOWN = "sparsify=topr(count=60) index=golomb value=raw"
SHAPES = {"w": (40, 50), "b": (50,), "v": (40, 30)}


def model_of(seed=0):
    rng = np.random.default_rng(seed)
    model = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    return {**model, "count": np.array([7, 2**40]), "half": rng.standard_normal(2000).astype(np.float16)}


def record_of(model):
    return ArrayRecord({name: Array(array) for name, array in model.items()})


def arrays_of(record):
    return {name: array.numpy() for name, array in record.items()}


def same(a, b):
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


def training(step, node, model):
    """What a client's training makes of a model."""
    rng = np.random.default_rng([step, node])
    return {
        name: (array + rng.laplace(scale=0.1, size=array.shape)).astype(array.dtype) if name != "count" else array
        for name, array in model.items()
    }


class Federation:
    """Clients that train by `training`. `seen` has the messages that they received, in order; replies can be changed on their way."""

    def __init__(self, strategy, nodes=3, mods=(mod,), train=training, on_the_way=lambda reply: reply):
        self.seen, self.strategy, self.on_the_way = {node + 1: [] for node in range(nodes)}, strategy, on_the_way
        app = ClientApp(mods=list(mods))

        def answer(message, context, evaluate):
            model, node = arrays_of(message.content["arrays"]), context.node_id
            assert set(message.content) == {"arrays", "config"}
            self.seen[node].append(model)
            metrics = MetricRecord({"num-examples": node, "loss": 1.0})
            if evaluate:
                return Message(RecordDict({"metrics": metrics}), reply_to=message)
            made = train(len(self.seen[node]), node, model)
            return Message(RecordDict({"arrays": record_of(made), "metrics": metrics}), reply_to=message)

        app.train()(lambda message, context: answer(message, context, False))
        app.evaluate()(lambda message, context: answer(message, context, True))
        self.grid = LocalGrid(app, nodes)
        send = self.grid.send_and_receive
        self.replies = []

        def send_and_receive(messages, *, timeout=None):
            messages = sorted(messages, key=lambda message: message.metadata.dst_node_id)  # Flower shuffles
            self.replies.append([self.on_the_way(reply) for reply in send(messages)])
            return self.replies[-1]

        self.grid.send_and_receive = send_and_receive

    def start(self, rounds, model=None):
        result = self.strategy.start(self.grid, record_of(model or model_of()), num_rounds=rounds)
        return arrays_of(result.arrays)


def test_exact_plans_train_as_without():
    plain = Federation(FedAvg(), mods=()).start(3)
    federation = Federation(Compressed(FedAvg(), LOSSLESS, LOSSLESS))
    coded = federation.start(3)
    assert coded.keys() == plain.keys()
    for name in plain:  # a difference that is added again is rounded
        atol = {"half": 2e-3, "count": 1}.get(name, 2e-6)
        np.testing.assert_allclose(coded[name].astype("d"), plain[name].astype("d"), rtol=0, atol=atol)
    assert len(federation.seen[1]) == 6  # an evaluation after each training
    for message in federation.seen[1]:
        assert same({"count": message["count"]}, {"count": model_of()["count"]}) and message["half"].dtype == np.float16


def top(x, count):
    """[d] with the largest magnitudes kept."""
    selected = np.zeros_like(x)
    where = np.argsort(-np.abs(x), kind="stable")[:count]
    selected[where] = x[where]
    return selected


def test_up_is_top_r_with_the_residual_of_each_client():
    """Against numpy, for three rounds; the error of `down` is far below the model's change."""
    rounds, names, small = 3, ["w", "v", "half"], ["b"]
    federation = Federation(Compressed(FedAvg(fraction_evaluate=0), TOP, LOSSLESS, dense_below=1000))
    federation.start(rounds)
    server = federation.strategy
    residuals = {node: np.zeros(5200, np.float32) for node in (1, 2, 3)}
    for step in range(1, rounds):
        expected = {name: np.zeros(model_of()[name].shape) for name in names + small}
        for node in (1, 2, 3):
            model = federation.seen[node][step - 1]
            made = training(step, node, model)
            delta = {name: made[name].astype("f") - model[name].astype("f") for name in names + small}
            whole = np.concatenate([delta[name].ravel() for name in names]) + residuals[node]
            sent = top(whole, 40)
            residuals[node] = whole - sent
            for name, part in zip(names, np.split(sent, [2000, 3200])):
                delta[name] = part.reshape(expected[name].shape)
            for name in expected:
                expected[name] += node / 6 * (model[name].astype("f") + delta[name])  # FedAvg's weights are 1/6, 2/6, 3/6
        for name in expected:
            after = federation.seen[1][step][name].astype("d")
            np.testing.assert_allclose(after, expected[name], rtol=0, atol=4e-3 if name == "half" else 2e-6)
    assert server.traffic.up < server.traffic.dense_up / 5


def test_all_clients_have_the_same_model_though_they_miss_rounds():
    strategy = Compressed(FedAvg(fraction_train=0.4, min_train_nodes=2), TOP, DOWN)
    federation = Federation(strategy, nodes=5)
    federation.start(6)
    last = [federation.seen[node][-1] for node in federation.seen]  # of the evaluation
    assert all(same(model, last[0]) for model in last)
    assert same(last[0], strategy._model)
    assert strategy.traffic.down < strategy.traffic.dense_down / 2 and len({len(messages_) for messages_ in federation.seen.values()}) > 1


def test_what_down_leaves_out_comes_later():
    """With clients that change nothing, the clients' model comes to the server's."""
    target = model_of(1)

    class Server(FedAvg):
        def aggregate_train(self, server_round, replies):
            super().aggregate_train(server_round, replies)
            return record_of({**target, "count": model_of()["count"]}), None

    strategy = Compressed(Server(fraction_evaluate=0), LOSSLESS, "sparsify=topr(ratio=0.3) index=golomb value=raw")
    federation = Federation(strategy, train=lambda step, node, model: model)
    federation.start(8)
    distances = [np.abs(model["w"] - target["w"]).max() for model in federation.seen[1]]
    assert distances[1] == np.abs(model_of()["w"] - target["w"]).max() or distances[1] < distances[0]
    assert distances[-1] < 1e-6


@pytest.mark.parametrize("mods, dtype", [((mod,), None), ((mod,), np.float64), ((), None)])
def test_down_loses_nothing_of_what_clients_sent(mods, dtype):
    """Changes that do not depend on the model add up to the same, however little of them goes down at once. (A model that was
    trained in another type travels whole.)"""
    plans = (LOSSLESS, "sparsify=topr(ratio=0.02) index=golomb value=raw")
    strategy = Compressed(FedAvg(fraction_evaluate=0), *plans)
    train = lambda *given: {name: a if name == "count" else a.astype(dtype or a.dtype) for name, a in training(*given).items()}
    federation = Federation(strategy, mods=mods, train=train)
    if not mods:
        app = federation.grid._app

        def without(message, context):
            del message.content["deepreduce"]
            return app(message, context)

        federation.grid._app = without
    end, rounds = federation.start(4), range(1, 5)
    for name in ("w", "v", "b"):
        zeros = {name: np.zeros_like(array) for name, array in model_of().items()}
        changes = [node / 6 * training(step, node, zeros)[name] for step in rounds for node in (1, 2, 3)]
        np.testing.assert_allclose(end[name], model_of()[name] + sum(changes), rtol=0, atol=1e-5)
    assert np.abs(federation.seen[1][-1]["w"] - end["w"]).max() > 0.1  # the clients' model is behind
    assert strategy.traffic.up > 0.9 * strategy.traffic.dense_up > 0


@pytest.mark.parametrize("mods", [(mod,), ()])
@pytest.mark.parametrize("first", ["arrays", "control"])
def test_a_record_beside_the_model_travels_as_it_is(mods, first):
    """Such as a control variate: an array of the model's kind, in any order."""
    control, received = model_of(1), []

    class WithControl(FedAvg):
        def configure_train(self, *given):
            messages = list(super().configure_train(*given))
            for message in messages:
                message.content["control"] = record_of(control)
            return messages

        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            for reply in replies:
                received.append(arrays_of(reply.content["control"]))
                del reply.content["control"]
            return super().aggregate_train(server_round, replies)

    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        made = training(1, context.node_id, arrays_of(message.content["arrays"]))
        records = {"arrays": record_of(made), "control": message.content["control"]}
        ordered = {name: records[name] for name in sorted(records, key=lambda name: name != first)}
        return Message(RecordDict({**ordered, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    def without(message, context):
        del message.content["deepreduce"]
        return app(message, context)

    strategy = Compressed(WithControl(fraction_evaluate=0), TOP, "sparsify=topr(ratio=0.02) index=golomb value=raw")
    strategy.start(LocalGrid(app if mods else without, 2), record_of(model_of()), num_rounds=3)
    assert len(received) == 6 and all(same(record, control) for record in received)


def test_any_strategy_that_averages_models():
    strategy = Compressed(FedAdam(fraction_evaluate=0), "index=all value=half", LOSSLESS)
    model = {name: array for name, array in model_of().items() if name in SHAPES}
    end = Federation(strategy).start(2, model)
    assert all(np.isfinite(array).all() and not np.array_equal(array, model[name]) for name, array in end.items())


def test_a_client_that_lost_its_state_fails_once_and_gets_the_whole_model():
    federation = Federation(Compressed(FedAvg(fraction_evaluate=0), TOP, DOWN))
    record = record_of(model_of())
    federation.strategy.start(federation.grid, record, num_rounds=2)
    federation.grid.contexts[2].state = RecordDict()
    federation.strategy.start(federation.grid, record, num_rounds=2)
    errors = [[reply.has_error() for reply in replies] for replies in federation.replies if replies]
    assert [sum(round_errors) for round_errors in errors] == [0, 0, 1, 0]
    (failed,) = (reply for replies in federation.replies for reply in replies if reply.has_error())
    assert failed.metadata.src_node_id == 2 and "is not here" in failed.error.reason


def spoil(kind):
    """What node 2 sends from the second round on."""

    def change(reply):
        if reply.metadata.src_node_id != 2 or reply.content["deepreduce"]["version"] < 1:
            return reply
        record, frames = reply.content["arrays"], "deepreduce.frames"
        data = bytearray(record[frames].data)
        if kind == "flipped":
            data[len(data) // 2] ^= 0xFF
        elif kind == "cut":
            data = data[:-7]
        elif kind == "longer":
            data += b"more"
        elif kind == "noise":
            data = np.random.default_rng(1).bytes(500)
        elif kind == "empty":
            data = b""
        elif kind == "other elements":
            data = deepreduce.encode(np.zeros(9, np.float32), LOSSLESS)
        elif kind == "version":
            reply.content["deepreduce"]["version"] = 0
        elif kind == "no number":
            reply.content["deepreduce"]["version"] = "one"
        elif kind == "no key":
            reply.content["deepreduce"]["key"] = "nowhere"
        elif kind == "no arrays":
            reply.content["arrays"] = ArrayRecord({})
            return reply
        elif kind == "other shape":
            record["count"] = Array(np.zeros((3, 3), np.int64))
        elif kind == "plain bytes":
            record["count"] = Array("int64", (2,), "numpy.ndarray", b"\x80\x04no npy")
        record[frames] = Array("uint8", (len(data),), frames, bytes(data))
        return reply

    return change


@pytest.mark.parametrize(
    "kind",
    "flipped cut longer noise empty version".split()
    + ["other elements", "no number", "no key", "no arrays", "other shape", "plain bytes"],
)
def test_hostile_replies_are_that_clients_failure(kind):
    received = []

    class Server(FedAvg):
        def aggregate_train(self, server_round, replies):
            received.append(replies)
            return super().aggregate_train(server_round, replies)

    federation = Federation(Compressed(Server(fraction_evaluate=0), TOP, DOWN), on_the_way=spoil(kind))
    end = federation.start(2)
    assert [[reply.has_error() for reply in replies] for replies in received] == [[False] * 3, [False, True, False]]
    failed = received[1][1]
    assert failed.metadata.src_node_id == 2 and "node 2: its reply cannot be decoded" in failed.error.reason
    honest = Federation(Compressed(FedAvg(fraction_evaluate=0), TOP, DOWN))
    honest.on_the_way = lambda reply: reply
    assert all(np.isfinite(array).all() for array in end.values())
    one, three = (received[1][i].content["arrays"] for i in (0, 2))
    for name in SHAPES:
        np.testing.assert_allclose(end[name], (one[name].numpy() + 3 * three[name].numpy()) / 4, rtol=0, atol=1e-6)


def test_values_that_are_not_finite_are_that_clients_failure():
    def train(step, node, model):
        made = training(step, node, model)
        if node == 3:
            made["b"][5] = np.inf  # bypassed: a codec that takes anything
        if node == 2:
            made["w"][0, 0] = np.nan
        return made

    plan = "sparsify=topr(count=40) feedback=residual index=golomb value=log_quant"
    received = []

    class Server(FedAvg):
        def aggregate_train(self, server_round, replies):
            received.append(replies)
            return super().aggregate_train(server_round, replies)

    Federation(Compressed(Server(fraction_evaluate=0), plan, LOSSLESS), train=train).start(1)
    reasons = {reply.metadata.src_node_id: reply.error.reason for reply in received[0] if reply.has_error()}
    assert reasons.keys() == {2, 3} and "NaN" in reasons[2] and "infinite" in reasons[3]


def test_a_client_without_the_mod_goes_along():
    federation = Federation(Compressed(FedAvg(fraction_evaluate=0), TOP, DOWN))
    with_mod = federation.grid._app
    without = Federation(FedAvg(), mods=())
    federation.seen[2] = without.seen[2]

    def app(message, context):
        if context.node_id != 2:
            return with_mod(message, context)
        del message.content["deepreduce"]  # what an app of old does not look at
        return without.grid._app(message, context)

    federation.grid._app = app
    federation.start(3)
    assert len(federation.seen[2]) == 3 and not any(reply.has_error() for replies in federation.replies for reply in replies)
    assert same(federation.seen[2][2], federation.seen[1][2])


W = np.zeros(SHAPES["w"], np.float32)
BAD_MODELS = {  # what takes the place of arrays
    "nan": {"w": W + np.nan}, "shape": {"w": W[:5, :5]}, "missing": {"v": None}, "words": {"w": W.astype(str)},
    # Not finite in the model's type, for any type of the received array.
    "1e300": {"w": np.full(W.shape, 1e300)}, "2^62": {"half": np.full(2000, 2**62)}, "1e30": {"count": np.array([7, 1e30])},
}  # fmt: skip
BAD_RECORDS = ("second", "empty", "renamed", "none")


def dense(kind, marked):
    """What node 2 sends in place of frames, from the second round on; not marked: as a client without the mod."""

    def change(reply):
        content = reply.content
        if reply.metadata.src_node_id != 2 or content["deepreduce"]["version"] < 1:
            return reply
        model = {**model_of(), **BAD_MODELS.get(kind, {})}
        content["arrays"] = record_of({name: array for name, array in model.items() if array is not None})
        if kind in ("second", "empty"):
            content["more"] = record_of(model if kind == "second" else {})
        elif kind in ("renamed", "none"):
            record = content.pop("arrays")
            content.update({"more": record} if kind == "renamed" else {})
        if marked:
            content["deepreduce"]["key"] = ""  # "nothing is coded"
        else:
            del content["deepreduce"]
        return reply

    return change


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("kind", [*BAD_MODELS, *BAD_RECORDS])
def test_hostile_dense_replies_are_that_clients_failure(kind, marked):
    received = []

    class Server(FedAvg):
        def aggregate_train(self, server_round, replies):
            received.append(replies)
            return super().aggregate_train(server_round, replies)

    end = Federation(Compressed(Server(fraction_evaluate=0), TOP, DOWN), on_the_way=dense(kind, marked)).start(2)
    assert [[reply.has_error() for reply in replies] for replies in received] == [[False] * 3, [False, True, False]]
    assert "node 2: its reply cannot be decoded" in received[1][1].error.reason
    assert all(np.isfinite(array).all() for array in end.values())


@pytest.mark.parametrize("down", ["index=all value=dynamic_tree", LOSSLESS])
def test_a_change_that_is_not_finite_is_sent_as_the_model(down):
    """The step from -3e38 to 3e38 is infinite in float32; and a strategy may return a model with NaN."""
    given = [-3e38, 3e38, np.nan, 1.0]

    class Server(FedAvg):
        def aggregate_train(self, server_round, replies):
            return record_of({name: np.full(shape, given[server_round - 1], "f4") for name, shape in SHAPES.items()}), None

    federation = Federation(Compressed(Server(fraction_evaluate=0), LOSSLESS, down))
    federation.start(4, {name: array for name, array in model_of().items() if name in SHAPES})
    for seen in federation.seen.values():
        assert [model["w"][0, 0] for model in seen[1:]] == pytest.approx(given[:3], rel=0.01, nan_ok=True)


def test_arrays_without_a_dimension_go_along():
    """A logit scale, or the number of batches that a BatchNorm counts, which an average makes a float."""
    model = {**model_of(), "scale": np.array(2.5, np.float32), "batches": np.array(3)}

    def train(step, node, model):
        return {**model, "w": model["w"] + 1, "scale": model["scale"] + np.ones((), "f4"), "batches": np.array(step)}

    as_arrays = lambda *given: {name: np.asarray(array) for name, array in train(*given).items()}  # noqa: E731
    federation = Federation(Compressed(FedAvg(fraction_evaluate=0), TOP, LOSSLESS, dense_below=1000), train=as_arrays)
    end = federation.start(3, model)
    assert not any(reply.has_error() for replies in federation.replies for reply in replies)
    assert end["scale"] == 5.5 and end["scale"].shape == () and round(float(end["batches"])) == 3
    seen = federation.seen[1][2]
    assert seen["batches"].dtype == np.int64 and seen["batches"] == 2 and seen["scale"].dtype == np.float32


def test_the_name_of_a_preset_is_its_plan():
    plans = deepreduce.presets()
    one = Federation(Compressed(FedAvg(), up="onebit", down="8bit")).start(2)
    two = Federation(Compressed(FedAvg(), up=plans["onebit"], down=plans["8bit"])).start(2)
    assert same(one, two) and not same(one, model_of())


def test_plans_that_do_not_fit_are_refused():
    for up, down in (("signum", LOSSLESS), (LOSSLESS, "signsgd")):
        with pytest.raises(deepreduce.ArgumentError, match="sends votes, which are not a difference of models"):
            Compressed(FedAvg(), up=up, down=down)
    for plans in (("transform=lowrank(rank=1)", LOSSLESS), (LOSSLESS, "transform=lowrank(rank=1)")):
        with pytest.raises(deepreduce.Unsupported, match="produces factors for an all-reduce, not frames"):
            Compressed(FedAvg(), *plans)
    with pytest.raises(deepreduce.ArgumentError, match="down: the plan has feedback"):
        Compressed(FedAvg(), TOP, TOP)
    with pytest.raises(deepreduce.ArgumentError, match="nonsense"):
        Compressed(FedAvg(), "sparsify=nonsense")
