"""deepreduce.flower: compressed models for Flower's Message API, in both directions. Imported on request.

    app = ClientApp(mods=[deepreduce.flower.mod])
    strategy = deepreduce.flower.Compressed(FedAvg(), up="sparsify=topr(ratio=0.01) feedback=residual …", down="…")

mod         the mod that a client adds to its app
Compressed  wraps the server's strategy; any strategy that averages models
Traffic     the bytes sent and received
LocalGrid   clients in this process, for tests and experiments

Both sides store the model that the clients have. The server sends the difference of the new model to it, so what a frame
omits is in the next difference. A client sends the difference that its training made; its residual is in its Context. A
client that missed rounds receives the frames of these rounds, or the model if that is shorter. A client without the mod
receives and sends whole models.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple, Union

import numpy
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from .._adapters._sender_pool import SenderPool, plan_of_frames
from .._native._renamed import argument
from .._native._types import Options
from ..errors import ArgumentError, CorruptFrame, PeerError
from ..plan import Plan
from ._models import Model, copy, difference, finite, fits, holds, moved, of_type, read, same_kind, write

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid

__all__ = ["Compressed", "LocalGrid", "Traffic", "mod"]

_RECORD = "deepreduce"  # ConfigRecord of this module, in messages and in a client's state
_FRAMES = "deepreduce.frames"  # stype of an Array: frames, one after the other
_STATES = "deepreduce.states"  # stype of an Array: the states of feedback
_DENSE_BELOW = "bypass"  # in messages, also to and from version 0.2
_MODEL = "deepreduce.model"  # ArrayRecord in a client's state: the model that it has
_CODED = ("float32", "float16")  # other arrays are sent unchanged


class Traffic(NamedTuple):
    """Bytes of arrays sent to clients (down) and received from them (up), and the bytes of dense models in their place."""

    down: int = 0
    up: int = 0
    dense_down: int = 0
    dense_up: int = 0


def _size(record: ArrayRecord) -> int:
    return sum(len(array.data) for array in record.values())


def _blob(data: bytes, stype: str) -> Array:
    return Array("uint8", (len(data),), stype, data)


@functools.lru_cache(maxsize=4)  # clients of one process share them
def _pool(
    names: Tuple[str, ...], shapes: Tuple[Tuple[int, ...], ...], plan: str, dense_below: Optional[int], flat: Optional[bool], seed: int
) -> SenderPool:
    tensors = {name: (shape, "float32") for name, shape in zip(names, shapes)}
    return SenderPool(tensors, plan_of_frames(plan), dense_below=dense_below, flat=flat, seed=seed)


def _pool_of(model: Model, plan: str, meta: ConfigRecord) -> Tuple[List[str], Optional[SenderPool]]:
    """The names of the arrays that are coded, and their pool. Differences are float32."""
    names = [name for name, array in model.items() if array.dtype.name in _CODED]
    shapes = tuple(model[name].shape for name in names)
    options = meta.get(_DENSE_BELOW), meta.get("flat"), meta["seed"]
    return names, _pool(tuple(names), shapes, plan, *options) if names else None


# ---- Client -------------------------------------------------------------------------------------


def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """A client mod, for ClientApp(mods=[…]): the app receives models, and differences are sent. The server's Compressed
    chooses the plans; messages of a server without it pass unchanged.

    The client's model and residuals are in context.state, beside the app's own records. Raises ArgumentError if the model
    that the server expects is not there. Flower reports this to the server, which then sends the whole model.
    """
    meta = message.content.config_records.get(_RECORD) if message.has_content() else None
    if meta is None:
        return call_next(message, context)
    model = _receive(message.content, meta, context)
    reply = call_next(message, context)
    if reply.has_content():
        _answer(reply.content, meta, model, context)
    return reply


def _receive(content: RecordDict, meta: ConfigRecord, context: Context) -> Model:
    """Decodes the model to the record that the app reads, and stores it in the context."""
    key, base, version = meta["key"], meta["base"], meta["version"]
    record = content[key]
    if base >= 0:
        here = context.state.config_records.get(_RECORD)
        if here is None or here["version"] != base or _MODEL not in context.state:
            raise ArgumentError(
                f"the server sent the difference to model {base}, which is not here: it must send the whole model"
            )
        model = read(context.state[_MODEL])
        names, pool = _pool_of(model, meta["down"], meta)
        for step in range(base + 1, version + 1):
            if pool is not None:
                model = moved(model, names, pool.unpack(record[f"{_FRAMES}/{step}"].data, step))
        model.update({name: array.numpy() for name, array in record.items() if array.stype != _FRAMES})
        record = write(model)
        content[key] = record
    else:
        model = read(record)
    context.state[_RECORD] = ConfigRecord({"version": version})
    context.state[_MODEL] = copy(record)
    del content[_RECORD]
    return model


def _answer(content: RecordDict, meta: ConfigRecord, model: Model, context: Context) -> None:
    """Replaces the trained model by the difference that the training made."""
    answer, key = ConfigRecord({"version": meta["version"], "key": ""}), meta["key"]
    record = content.array_records.get(key)
    names, pool = _pool_of(model, meta["up"], meta)
    if record is not None and pool is not None and same_kind(trained := read(record), model):
        saved = context.state.array_records.get(_STATES, {}).get(meta["up"])
        states = numpy.zeros(pool.state_size, numpy.uint8)
        if saved is not None and len(saved.data) == states.size:  # otherwise the plan or the model has changed
            states[:] = numpy.frombuffer(saved.data, numpy.uint8)
        frames = pool.pack(difference(trained, model, names), states, meta["version"], context.node_id % 2**64)
        plain = {name: array for name, array in record.items() if name not in names}
        content[key] = ArrayRecord({_FRAMES: _blob(frames, _FRAMES), **plain})
        if states.size:
            context.state[_STATES] = ArrayRecord({meta["up"]: _blob(states.tobytes(), _STATES)})
        answer["key"] = key
    content[_RECORD] = answer


# ---- Server -------------------------------------------------------------------------------------


class Compressed(Strategy):  # type: ignore[misc]
    """A strategy whose models are compressed in both directions.

    strategy  averages models: FedAvg, FedAdam, …. It receives and returns whole models
    up        plan for the change by a client's training. It needs feedback=residual if it drops values
    down      plan for the change by the server, without feedback: what it drops is in the next difference
    dense_below  arrays of fewer elements are sent exactly. None: 1000, and for plans that are flat 0
    flat      the arrays of a plan are one tensor (bucket=flat). None: flat if the plan sparsifies or codes each value
              independently (raw, half). A plan that quantises all elements (8bit, onebit) has levels for each array
    seed      of random numbers

    A reply that cannot be decoded counts as that client's failure, with the reason in its Error; the others are averaged.
    Such replies have hostile bytes, bytes of another round, values that are not finite in the model's types, or array
    records with other names than those sent. float32 and float16 are coded; other arrays are sent unchanged. Clients
    receive arrays of the first model's types, also if an average has other types. If `down` cannot encode a change (a value
    or its change is not finite), clients receive the whole model.

    Raises ArgumentError for plans that cannot be used here.
    """

    @argument("bypass", "dense_below")
    def __init__(
        self,
        strategy: Strategy,
        up: Union[str, Plan],
        down: Union[str, Plan] = "index=all value=raw",
        *,
        dense_below: Optional[int] = None,
        flat: Optional[bool] = None,
        seed: int = 0,
    ) -> None:
        up, down = map(plan_of_frames, (up, down))
        for side, plan in (("up", up), ("down", down)):
            if plan.info.votes:
                raise ArgumentError(f"{side}: `{plan}` sends votes, which are not a difference of models: use value=sign(scale=mean)")
        if down.info.feedback:
            raise ArgumentError("down: the plan has feedback, but the next difference already includes what a frame omits")
        self._strategy = strategy
        # (A record has no None: an option that is not set is omitted.)
        options = {name: value for name, value in ((_DENSE_BELOW, dense_below), ("flat", flat)) if value is not None}
        self._meta: Options = {"up": str(up), "down": str(down), **options, "seed": seed}
        self._version = -1  # of the model that the clients have, or are about to receive
        self._model: Model = {}
        self._own: Model = {}  # the server's, which includes what `down` omitted
        self._names: List[str] = []
        self._down: Optional[SenderPool] = None
        self._up: Optional[SenderPool] = None
        self._given: Optional[ArrayRecord] = None  # the strategy's arrays from which that model was made
        self._history: Dict[int, Array] = {}  # version: frames that lead to it
        self._known: Dict[int, int] = {}  # node: the version that it has
        self._sent: Dict[int, Message] = {}  # node: this round's message
        self._asked: Dict[int, Tuple[str, Set[str]]] = {}  # node: the key of the model in that message, and the keys of all its records
        self.traffic = Traffic()

    def summary(self) -> None:
        self._strategy.summary()

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """The strategy's messages, with frames."""
        return self._pack(self._strategy.configure_train(server_round, arrays, config, grid), arrays)

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """The strategy's messages, with frames. The evaluated model is the one from which training continues."""
        return self._pack(self._strategy.configure_evaluate(server_round, arrays, config, grid), arrays)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> Tuple[Optional[ArrayRecord], Optional[MetricRecord]]:
        """Passes the decoded models to the strategy."""
        made: Tuple[Optional[ArrayRecord], Optional[MetricRecord]] = self._strategy.aggregate_train(
            server_round, self._unpack(replies, trained=True)
        )
        return made

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> Optional[MetricRecord]:
        """Passes the replies to the strategy."""
        made: Optional[MetricRecord] = self._strategy.aggregate_evaluate(server_round, self._unpack(replies))
        return made

    def _advance(self, arrays: ArrayRecord) -> None:
        """Encodes the frames that move the clients' model toward these arrays."""
        if arrays is self._given:
            return
        new = {name: of_type(array, self._model.get(name, array).dtype) for name, array in read(arrays).items()}
        self._version += 1
        nearer = self._nearer(new) if same_kind(new, self._model) else None
        if nearer is None:
            self._model, self._history = new, {}
            self._names, self._down = _pool_of(new, self._meta["down"], self._meta)
            self._up = _pool_of(new, self._meta["up"], self._meta)[1]
            self._known.clear()
        else:
            self._model, frames = nearer
            if self._down is not None:
                self._history[self._version] = _blob(frames, _FRAMES)
        self._given, self._own = arrays, new
        while self._history and sum(len(frame.data) for frame in self._history.values()) >= self._dense:
            del self._history[next(iter(self._history))]

    def _nearer(self, new: Model) -> Optional[Tuple[Model, bytes]]:
        """The clients' model, moved toward a new one by frames, and the frames; None if a value cannot be encoded."""
        model = {name: self._model[name] if name in self._names else array for name, array in new.items()}
        if self._down is None:
            return model, b""
        with numpy.errstate(over="ignore", invalid="ignore"):
            by = difference(new, model, self._names)
            frames = self._down.pack(by, numpy.zeros(0, numpy.uint8), self._version, 0)
            try:
                model = moved(model, self._names, self._down.unpack(frames, self._version))
            except PeerError:
                return None
        return (model, frames) if finite(model, self._names) else None

    @property
    def _dense(self) -> int:
        """Bytes of the arrays that are coded."""
        return sum(self._model[name].nbytes for name in self._names)

    def _pack(self, messages: Iterable[Message], arrays: ArrayRecord) -> List[Message]:
        listed = list(messages)
        self._sent, self._asked = {message.metadata.dst_node_id: message for message in listed}, {}
        if not listed:
            return listed
        self._advance(arrays)
        records: Dict[int, ArrayRecord] = {}  # by base
        for message in listed:
            key = next((key for key, record in message.content.array_records.items() if record is arrays), None)
            if key is None:
                continue  # the strategy sends something else
            self._asked[message.metadata.dst_node_id] = key, set(message.content.array_records)
            base = self._known.get(message.metadata.dst_node_id, -1)
            if not all(step in self._history for step in range(base + 1, self._version + 1)):
                base = -1
            if base not in records:
                records[base] = self._record(base)
            meta = ConfigRecord({**self._meta, "key": key, "base": base, "version": self._version})
            message.content = RecordDict({**message.content, key: copy(records[base]), _RECORD: meta})
            self._count(down=_size(records[base]), dense_down=_size(arrays))
        return listed

    def _record(self, base: int) -> ArrayRecord:
        """What leads from a version to this one; -1: the model."""
        if base < 0:
            return write(self._model)
        frames = {f"{_FRAMES}/{step}": self._history[step] for step in range(base + 1, self._version + 1)}
        plain = write({name: array for name, array in self._model.items() if name not in self._names})
        return ArrayRecord({**frames, **plain})

    def _unpack(self, replies: Iterable[Message], trained: bool = False) -> List[Message]:
        found = []
        for reply in replies:
            node = reply.metadata.src_node_id
            self._known.pop(node, None)  # unless it answers that it has the model
            if node in self._sent and reply.has_content():
                asked = self._asked.get(node)
                try:
                    if _RECORD not in reply.content or not self._decode(reply.content, node):
                        self._move(reply.content, asked)
                    self._require_models(reply.content, asked if trained else None)
                except Exception as error:  # whatever a stranger's bytes may cause
                    reason = f"node {node}: its reply cannot be decoded: {type(error).__name__}: {error}"
                    reply = Message(Error(0, reason), reply_to=self._sent[node])
            found.append(reply)
        return found

    def _move(self, content: RecordDict, asked: Optional[Tuple[str, Set[str]]]) -> None:
        """For a whole model, as of a client without the mod, which trained from the clients' model: moves it to start from the
        server's own. asked: the model's key, and all keys sent; None: the node did not receive the clients' model"""
        record = content.array_records.get(asked[0]) if asked else None
        if asked is None or record is None:
            return
        self._count(up=_size(record), dense_up=_size(record))
        trained = read(record)
        if fits(trained, self._model):
            by = difference(self._own, self._model, self._names)
            content[asked[0]] = write(moved(trained, self._names, by))

    def _require_models(self, content: RecordDict, asked: Optional[Tuple[str, Set[str]]]) -> None:
        """Checks dense arrays, which may be as hostile as frames. A NaN, or a number beyond the model's type, would enter the
        average; another shape or record would stop the server. asked: for a training, the model's key and all keys sent."""
        models = {key: read(record) for key, record in content.array_records.items()}
        for key, model in models.items():
            for name, array in model.items():
                dtype = self._model[name].dtype if asked and name in self._model else array.dtype
                if array.dtype.kind in "fciu" and not (holds(array.dtype, array) and holds(dtype, array)):
                    raise CorruptFrame(f"{key}: {name}: a value is NaN or infinite, or too large for {dtype}")
        if asked is None:
            return
        key, names = asked
        if models.keys() != names:
            raise CorruptFrame(f"its array records are {sorted(models)}; {sorted(names)} were sent")
        if not fits(models[key], self._model):
            raise CorruptFrame(f"{key}: other arrays than the model's, or of other shapes or types")

    def _decode(self, content: RecordDict, node: int) -> bool:
        """Replaces the frames by a trained model: the server's own model plus the change by the training. So what `down`
        omitted is not lost in the average, and is in the next difference. False: there are no frames."""
        answer = content.config_records[_RECORD]
        if answer["version"] != self._version:
            raise ArgumentError(f"it is about model {answer['version']}, but {self._version} was sent")
        key = answer["key"]
        if key:
            record = content.array_records[key]
            if self._up is None or _FRAMES not in record:
                raise CorruptFrame(f"{key} has no frames")
            size = _size(record)
            by = self._up.unpack(record[_FRAMES].data, self._version)
            if not all(numpy.isfinite(array).all() for array in by):
                raise CorruptFrame("a value is NaN or infinite")
            model = moved(self._own, self._names, by)
            model.update({name: array.numpy() for name, array in record.items() if name != _FRAMES})
            if not same_kind(model, self._model):
                raise CorruptFrame(f"{key} has other arrays than the model, or of other shapes or types")
            model = {name: model[name] for name in self._model}
            content[key] = write(model)
            self._count(up=size, dense_up=_size(content[key]))
        del content[_RECORD]
        self._known[node] = self._version
        return bool(key)

    def _count(self, **more: int) -> None:
        self.traffic = self.traffic._replace(**{name: getattr(self.traffic, name) + n for name, n in more.items()})


class LocalGrid:
    """A Grid whose clients run in this process, one after another: Flower without a network, for tests and experiments.
    A client's exception becomes the Error of its reply, as on other grids.

    app    a ClientApp
    nodes  the number of clients, which are numbered from 1
    """

    def __init__(self, app: ClientApp, nodes: int) -> None:
        self._app = app
        self.contexts = {node: Context(0, node, {}, RecordDict(), {}) for node in range(1, nodes + 1)}
        with contextlib.suppress(ImportError):  # from Flower 1.41 on, messages read their sender from here
            from flwr.supercore.task_identity import TaskIdentity

            TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 0, 0, 0

    def get_node_ids(self) -> List[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: Optional[float] = None) -> List[Message]:
        """The replies, in the order of the messages."""
        return [self._answer(message) for message in messages]

    def _answer(self, message: Message) -> Message:
        try:
            return self._app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            return Message(Error(0, f"{type(error).__name__}: {error}"), reply_to=message)
