"""deepreduce.keras: compressed gradients for Keras 3 over TensorFlow. Imported on request.

    with tf.distribute.MirroredStrategy().scope():
        model.compile(deepreduce.keras.compress(keras.optimizers.SGD(0.1), plan), loss, jit_compile=False)

compress     an optimizer whose replicas exchange frames instead of dense gradients
Compression  its residuals and statistics

The replicas of a tf.distribute strategy gather rows of the same number of bytes at every step: frames and padding. The
codecs run on the CPU, called by tf.numpy_function, so XLA cannot compile the step.
"""

from __future__ import annotations

import io
import itertools
import threading
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Type, Union

import keras
import numpy
import tensorflow as tf

from ._adapters._sender_pool import SenderPool, method_of
from ._files._npz import read_npz
from ._native._call import unsigned
from ._native._renamed import argument
from ._native._types import Array, Options, SavedPart, SavedState
from .book import Book
from .errors import ArgumentError, Unsupported
from .plan import Plan
from .tensor import require_dict

__all__ = ["Compression", "Stats", "compress"]

_WORD = 4  # bytes: collectives of TensorFlow take int32, not uint8


class Stats(NamedTuple):
    """Statistics of a replica.

    steps  the number of steps
    dense  bytes of the gradients in the last step
    frame  bytes of frames and headers in it
    row    bytes of the row that was sent
    """

    steps: int
    dense: int
    frame: int
    row: int


class Compression(tf.train.experimental.PythonState):  # type: ignore[misc]
    """The state of `compress` besides the optimizer: the residuals of the replicas of this process, by replica number.
    tf.train.Checkpoint(optimizer=…) saves and restores them with the optimizer."""

    def __init__(self, plan: Union[str, Plan, Book], dense_below: Optional[int], flat: Optional[bool], seed: int) -> None:
        """Not for callers: compress creates it."""
        self._plan = method_of(plan)
        self._options: Options = {"dense_below": dense_below, "flat": flat, "seed": seed}
        self._lock = threading.Lock()
        self._pool: Optional[SenderPool] = None
        self._states: Dict[int, Array] = {}
        self._steps: Dict[int, int] = {}
        self._used: Dict[int, int] = {}
        self._made: Dict[int, _Made] = {}  # by a step that has not ended

    def stats(self, replica: int = 0) -> Stats:
        """The statistics of a replica of this process."""
        pool = self._pool
        if pool is None or replica not in self._steps:
            return Stats(0, 0, 0, 0)
        return Stats(self._steps[replica], pool.dense, self._used.get(replica, 0), pool.size)

    def state_dict(self) -> SavedState:
        """Steps and residuals of the replicas of this process: numbers and arrays of bytes, for numpy.savez. A
        training that resumes from them, and from the optimizer and the model, is the same, bit for bit."""
        return {f"{i}": numpy.array(state) for i, state in self._states.items()} | {
            f"step{i}": step for i, step in self._steps.items()
        }

    def load_state_dict(self, state: SavedPart) -> None:
        """Loads what state_dict returned. Raises ArgumentError for another dict, and for residuals of other gradients, now or in
        the next step; then nothing has changed."""
        states: Dict[int, Array] = {}
        steps: Dict[int, int] = {}
        require_dict(state)
        for name, part in state.items():
            replica = str(name).removeprefix("step")
            if not replica.isdecimal():
                raise ArgumentError(f"the state has {name!r}; state_dict names replicas: '0', 'step0', …")
            if str(name) != replica:
                steps[int(replica)] = unsigned(part, f"{name} of the state", 1 << 32)
                continue
            states[int(replica)] = memory = numpy.array(part)
            if memory.dtype != numpy.uint8 or memory.ndim != 1:
                raise ArgumentError(f"the residuals of replica {replica} are {memory.dtype} of shape {memory.shape}, not uint8 [n]")
        if self._pool is not None and any(memory.size != self._pool.state_size for memory in states.values()):
            raise ArgumentError(f"the residuals are not of {self._pool.state_size} bytes: they are of other gradients")
        self._states, self._steps = states, steps

    def serialize(self) -> bytes:
        """state_dict, for tf.train.Checkpoint."""
        file = io.BytesIO()
        numpy.savez(file, **self.state_dict())
        return file.getvalue()

    def deserialize(self, string_value: bytes) -> None:
        """load_state_dict, for tf.train.Checkpoint."""
        try:
            state = read_npz(io.BytesIO(string_value))
        except ValueError as error:
            raise ArgumentError(f"the checkpoint has no residuals that can be read: {error}") from None
        self.load_state_dict(state)

    def sum(self, gradients: Sequence[tf.Tensor], names: Optional[Sequence[str]] = None) -> List[tf.Tensor]:
        """The sum over replicas, the same bits on each. Call it in a replica context.

        names  of the gradients, for errors, books and random numbers; None: "tensor 0", "tensor 1", …

        Raises ArgumentError for other names than in the first step: their residuals are those of its gradients.
        """
        if names is None or len(set(names)) < len(gradients):
            names = [f"tensor {i}" for i in range(len(gradients))]
        with self._lock:  # replicas of an eager step are threads
            if self._pool is None:
                shapes = [(tuple(gradient.shape), gradient.dtype.as_numpy_dtype) for gradient in gradients]
                if any(None in shape for shape, _ in shapes):
                    raise Unsupported("a gradient has no static shape, so its row has no size")
                self._pool = SenderPool(dict(zip(names, shapes)), self._plan, sum=True, **self._options)
                self._pool.warn()
            if list(names) != self._pool.names:
                other, first = next(pair for pair in itertools.zip_longest(names, self._pool.names) if pair[0] != pair[1])
                raise ArgumentError(f"a Compression is of one list of gradients: there is {other!r}, and in the first step there was {first!r}")
        context = tf.distribute.get_replica_context()
        replicas = context.num_replicas_in_sync
        replica = context.replica_id_in_sync_group
        row, step = tf.numpy_function(
            self._encode, [replica, *gradients], [tf.int32, tf.int64], name="deepreduce_encode"
        )
        row.set_shape([self._pool.size // _WORD])
        row = row[None]
        rows = context.all_gather(row, axis=0) if replicas > 1 else row
        sums = tf.numpy_function(self._sum, [replica, step, rows], [tf.float32] * len(gradients), name="deepreduce_sum")
        sums = [sums] if tf.is_tensor(sums) else sums  # of one gradient TensorFlow returns no list
        for total, gradient in zip(sums, gradients):
            total.set_shape(gradient.shape)
        return [tf.cast(total, gradient.dtype) for total, gradient in zip(sums, gradients)]

    def _encode(self, replica: Array, *gradients: Array) -> Tuple[Array, numpy.int64]:
        pool, i = self._pool, int(replica)
        assert pool is not None
        with self._lock:
            before, step = self._states.get(i), self._steps.get(i, 0)
        states = numpy.zeros(pool.state_size, numpy.uint8) if before is None else numpy.array(before)
        if states.size != pool.state_size:
            raise ArgumentError(
                f"the residuals of replica {i} have {states.size} bytes, these gradients require {pool.state_size}"
            )
        row = numpy.empty(pool.size, numpy.uint8)
        # (Of a tensor without a dimension TensorFlow passes a number.)
        used = sum(pool.encode([numpy.asarray(gradient) for gradient in gradients], row, states, step, i))
        with self._lock:
            self._made[i] = _Made(states, used)
        return row.view(numpy.int32), numpy.int64(step)

    def _sum(self, replica: Array, step: Array, gathered: Array) -> List[Array]:
        """The sums. The residuals of the step replace those before it: if a replica could not encode, nothing has been sent."""
        assert self._pool is not None
        sums, i = list(self._pool.merge(list(gathered.view(numpy.uint8)), int(step))), int(replica)
        with self._lock:
            self._states[i], self._used[i] = self._made.pop(i)
            self._steps[i] = int(step) + 1
        return sums


class _Made(NamedTuple):
    """What a replica's encode made: its residuals, and the bytes of frames and headers."""

    states: Array
    used: int


GradientAndVariable = Tuple[Optional[tf.Tensor], keras.Variable]


class _Compressed:
    """A base class before an optimizer's own. It overrides the method in which Keras over TensorFlow sums the replicas' gradients."""

    compression: Compression

    def _all_reduce_sum_gradients(self, grads_and_vars: Iterable[GradientAndVariable]) -> List[GradientAndVariable]:
        pairs = list(grads_and_vars)
        gradients = [tf.convert_to_tensor(gradient) for gradient, _ in pairs if gradient is not None]
        if not gradients or tf.distribute.get_replica_context() is None:
            return super()._all_reduce_sum_gradients(pairs)  # type: ignore[misc,no-any-return]
        names = [_name_of(variable) for gradient, variable in pairs if gradient is not None]
        sums = iter(self.compression.sum(gradients, names))
        return [(gradient if gradient is None else next(sums), variable) for gradient, variable in pairs]


def _name_of(variable: keras.Variable) -> str:
    """The path of a Keras variable, "sequential/dense/kernel". (A TensorFlow variable has it as its name, with ":0".)"""
    return str(getattr(variable, "path", None) or variable.name).removesuffix(":0")


@argument("bypass", "dense_below")
def compress(
    optimizer: keras.optimizers.Optimizer,
    plan: Union[str, Plan, Book],
    *,
    dense_below: Optional[int] = None,
    flat: Optional[bool] = None,
    seed: int = 0,
) -> keras.optimizers.Optimizer:
    """Returns a new optimizer of the same class and configuration, whose replicas exchange frames. Clipping, weight decay and
    schedules work as before. It is saved as an optimizer of the original class.

    optimizer  a Keras optimizer that has not been used yet
    plan       a plan or its text; or a book of plans by the variables' paths
    dense_below  gradients of fewer elements are sent exactly, in the same row. None: 1000, and for plans that are flat 0
    flat       the gradients of the plan are one tensor (bucket=flat). None: flat if the plan sparsifies or codes each value
               independently (raw, half). A plan that quantises all elements (8bit, onebit) has levels for each gradient
    seed       of random numbers. Those of a gradient depend on the path of its variable, which Keras numbers within a process:
               the second model of a process draws different numbers, unless keras.utils.clear_session() precedes it

    Its `compression` holds the residuals. tf.train.Checkpoint saves them; if you save with Keras's own files, save them
    separately. With one replica, its own gradients are encoded and decoded. If a replica cannot encode (for example a NaN),
    TensorFlow raises an error on all replicas, with the message of PeerError, which names the replica; then residuals are as
    before the step.

    Raises Unsupported for a backend other than TensorFlow, and ArgumentError for what is not a new optimizer.
    """
    if keras.backend.backend() != "tensorflow":
        raise Unsupported(
            f"Keras over {keras.backend.backend()} has no gradients of replicas to exchange: over jax use deepreduce.jax in"
            " a loop of your own, over torch deepreduce.torch.DDPHook"
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ArgumentError(f"compress requires a Keras optimizer, not a {type(optimizer).__name__}")
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ArgumentError("compress the inner optimizer: LossScaleOptimizer(compress(optimizer, plan))")
    kind = type(optimizer)
    if not hasattr(kind, "_all_reduce_sum_gradients"):
        raise Unsupported(f"Keras {keras.__version__} does not sum the gradients of replicas where 3.15 does")
    if optimizer.built:
        raise ArgumentError("the optimizer has been used already: compress a new one")
    compressed: Type[keras.optimizers.Optimizer] = type(kind.__name__, (_Compressed, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    made = compressed.from_config(optimizer.get_config())
    made.compression = Compression(plan, dense_below, flat, seed)
    return made
