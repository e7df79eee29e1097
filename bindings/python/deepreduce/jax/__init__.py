"""deepreduce.jax: compressed gradients for JAX. Imported on request, so that the package needs no jax.

    plan = "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=log_quant"
    optimizer = optax.chain(deepreduce.jax.compress(plan, "ranks"), optax.sgd(0.1))

compress  an optax transformation: the mean over an axis of shard_map, compressed
specs     PartitionSpecs of an optimizer's state, for shard_map
Codec     encode and mean as pure functions of arrays, for collectives of one's own

Every shape is static: a rank sends a row of the same number of bytes at every step, frames and padding. For Top-r the
padding is small; a plan whose frames may be of any size (threshold) has rows of about the dense size. The state of feedback is
an array, passed in and returned. The codecs run on the CPU, on XLA's own memory; gradients on another device are copied there
and back, by jax.pure_callback.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import jax
import jax.numpy as jnp

from .._adapters._sender_pool import SenderPool, method_of
from .._native._renamed import argument, plan_first
from ..book import Book
from ..errors import ArgumentError
from ..plan import Plan
from ._callback import Arrays, call, number_of

Tree = Any  # a pytree: arrays in dicts, lists, tuples and registered classes
ArrayLike = Union[int, jax.Array]

__all__ = ["Codec", "CompressState", "Transformation", "compress", "specs"]


def _is_plan(given: object) -> bool:
    return isinstance(given, (str, Plan, Book))


class Codec:
    """Encodes tensors of fixed shapes to rows of bytes, and decodes rows to their mean. Its functions are pure, and work
    under jit, shard_map and vmap (sequentially).

    tensors  a pytree of arrays, or of objects with a shape and a dtype: float32, float16 or bfloat16
    plan    a plan or its text; or a book of plans by the arrays' names
    dense_below  arrays of fewer elements are sent exactly, in the same row. None: 1000, and for plans that are flat 0
    flat    the arrays of the plan are one tensor (bucket=flat). None: flat if the plan sparsifies or codes each value
            independently (raw, half). A plan that quantises all elements (8bit, onebit) has levels for each array
    seed    of random numbers; the same on every rank. The library receives step and rank besides, and the numbers of an array
            depend on its name

    row_size, state_size  bytes of a row, and of a rank's state
    names                 of the arrays: their paths in the tree, such as "layer.weight". Errors and books use them

    Raises ArgumentError for a plan that does not support such arrays.
    """

    @argument("bypass", "dense_below")
    @argument("like", "tensors")
    @plan_first(_is_plan)
    def __init__(
        self,
        tensors: Tree,
        plan: Union[str, Plan, Book],
        *,
        dense_below: Optional[int] = None,
        flat: Optional[bool] = None,
        seed: int = 0,
    ) -> None:
        self._tree = jax.tree.structure(tensors)
        self.names = _names_of(tensors)
        self._like = _like_of(tensors)
        self._pool, self._numbers = _pool_of(self.names, self._like, method_of(plan), dense_below, flat, seed)
        self.row_size, self.state_size = self._pool.size, self._pool.state_size
        self._pool.warn()

    def init(self, ranks: int = 1) -> jax.Array:
        """The state before the first step: [ranks * state_size] uint8, which shard_map splits by rank."""
        return jnp.zeros(ranks * self.state_size, jnp.uint8)

    def encode(self, tree: Tree, state: jax.Array, step: ArrayLike, rank: ArrayLike = 0) -> Tuple[jax.Array, jax.Array, jax.Array]:
        """Encodes a rank's arrays. Returns the row, the new state, and the number of bytes used in the row (headers and frames).

        tree   a pytree as `tensors`
        state  [state_size] uint8: the last call's, or `init`'s
        step   the same on every rank, different in each call; below 2^32
        rank   unique for each rank: jax.lax.axis_index

        If a value cannot be encoded (for example a NaN), the row reports it, and `mean` raises PeerError on every rank.
        Returns ([row_size] uint8, [state_size] uint8, int32).
        """
        leaves, there = jax.tree.flatten(tree)
        found = _like_of(tree)
        if there != self._tree or found != self._like:
            raise ArgumentError(f"the codec is for {self._tree} of {self._like}, not for {there} of {found}")
        if state.shape != (self.state_size,) or state.dtype != jnp.uint8:
            raise ArgumentError(
                f"the state is {state.dtype}{list(state.shape)}, a rank's is uint8[{self.state_size}]: pass compress"
                " the axis's number of ranks as ranks=, and shard_map the specs of deepreduce.jax.specs(state, axis_name)"
            )
        shapes = [((self.state_size,), jnp.uint8), ((self.row_size,), jnp.uint8), ((), jnp.int32)]
        results = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
        after, row, size = call(self._numbers[0], results, [state, jnp.uint32(step), jnp.uint32(rank), *leaves], {0: 0})
        return row, after, size

    def mean(self, rows: jax.Array, step: ArrayLike) -> Tree:
        """The mean of the ranks' rows, added up in their order in float32: the same bits on every rank.

        rows  [ranks, row_size] uint8: jax.lax.all_gather of the ranks' rows
        step  as of `encode`

        Returns a pytree as `tensors`. Raises, when it runs, JaxRuntimeError (without jit ValueError) with the message of
        PeerError (a rank could not encode), CorruptFrame, OutOfStep or ArgumentError (a row of another step or of other
        arrays). The message names the rank.
        """
        if rows.ndim != 2 or rows.shape[1] != self.row_size or rows.dtype != jnp.uint8:
            raise ArgumentError(f"rows are {rows.dtype}{list(rows.shape)}, not uint8[ranks, {self.row_size}]")
        shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape, _ in self._like]
        sums = call(self._numbers[1], shapes, [jnp.uint32(step), rows], {})
        return jax.tree.unflatten(self._tree, [array.astype(dtype) for array, (_, dtype) in zip(sums, self._like)])


Shape = Tuple[Tuple[int, ...], jnp.dtype]  # and dtype
Called = Tuple[SenderPool, Tuple[int, int]]  # senders, and the function numbers of their encode and merge
_known: Dict[Tuple[object, ...], Called] = {}  # functions that XLA's programs may call


def _names_of(tree: Tree) -> List[str]:
    """The names of the leaves, in order."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    names = [jax.tree_util.keystr(path, simple=True, separator=".") or "array" for path in paths]  # (of a tree that is an array: "")
    if len(set(names)) < len(names):  # {"a": {"b": …}, "a.b": …}
        names = [jax.tree_util.keystr(path) for path in paths]
    return names


def _like_of(tree: Tree) -> List[Shape]:
    """Shapes and types. Raises ArgumentError for leaves without, such as Python's numbers."""
    leaves = jax.tree.leaves(tree)
    for i, leaf in enumerate(leaves):
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise ArgumentError(f"{_names_of(tree)[i]} is a {type(leaf).__name__}, not an array: pass jax.numpy.asarray of it")
    return [(tuple(leaf.shape), leaf.dtype) for leaf in leaves]


def _pool_of(
    names: Sequence[str], like: Sequence[Shape], plan: Union[Plan, Book], dense_below: Optional[int], flat: Optional[bool], seed: int
) -> Called:
    """Equal codecs share one pool."""
    key = tuple(names), tuple(like), plan, dense_below, flat, seed
    if key not in _known:
        pool = SenderPool(dict(zip(names, like)), plan, dense_below=dense_below, flat=flat, seed=seed)

        def encode(arguments: Arrays, results: Arrays) -> None:
            before, step, rank, *tensors = arguments
            states, row, size = results
            if states.size and states.ctypes.data != before.ctypes.data:
                states[:] = before
            size[...] = sum(pool.encode(tensors, row, states, int(step), int(rank)))

        def mean(arguments: Arrays, results: Arrays) -> None:
            step, gathered = arguments
            pool.merge(list(gathered), int(step), results)

        _known[key] = pool, (number_of(encode), number_of(mean))
    return _known[key]


class CompressState(NamedTuple):
    """The state of `compress`: the number of the step, and the states of feedback ([state_size] uint8 within shard_map,
    [ranks * state_size] outside)."""

    step: jax.Array
    memory: jax.Array


class Transformation(NamedTuple):
    """As optax.GradientTransformation, without a dependency on optax."""

    init: Callable[[Tree], CompressState]
    update: Callable[..., Tuple[Tree, CompressState]]


@argument("bypass", "dense_below")
def compress(
    plan: Union[str, Plan, Book],
    axis_name: Optional[str] = None,
    *,
    ranks: Optional[int] = None,
    dense_below: Optional[int] = None,
    flat: Optional[bool] = None,
    seed: int = 0,
) -> Transformation:
    """An optax transformation that replaces each rank's gradients by their mean over the ranks, compressed. Put it first in
    optax.chain.

    axis_name  of the shard_map (or pmap, or vmap) in which `update` is called; None: one rank, whose gradients are encoded
               and decoded, to test how the plan affects a training
    ranks      the size of the axis, for an `init` outside of it; None: all devices. Not needed within the axis
    plan, dense_below, flat, seed  as of Codec

    `init` outside of shard_map returns the states of all ranks; `specs` returns how shard_map splits them. All ranks receive
    the same bits, or the step fails on all of them, as Codec.mean says; then the state before the step is unchanged.
    """
    known: List[Tuple[object, Codec]] = []

    def codec_of(tree: Tree) -> Codec:
        key = jax.tree.structure(tree), _like_of(tree)
        for other, found in known:
            if other == key:
                return found
        known.append((key, Codec(tree, plan, dense_below=dense_below, flat=flat, seed=seed)))
        return known[-1][1]

    def init(params: Tree) -> CompressState:
        there = 1 if axis_name is None or _bound(axis_name) else jax.device_count() if ranks is None else ranks
        return CompressState(jnp.zeros((), jnp.uint32), codec_of(params).init(there))

    def update(updates: Tree, state: CompressState, params: Tree = None, **_: object) -> Tuple[Tree, CompressState]:
        codec = codec_of(updates)
        if axis_name is None:
            row, memory, _size = codec.encode(updates, state.memory, state.step)
            rows = row[None]
        else:
            row, memory, _size = codec.encode(updates, state.memory, state.step, jax.lax.axis_index(axis_name))
            rows = jax.lax.all_gather(row, axis_name)
        return codec.mean(rows, state.step), CompressState(state.step + 1, memory)

    return Transformation(init, update)


def specs(state: Tree, axis_name: str) -> Tree:
    """PartitionSpecs of an optimizer's state, for shard_map and jax.device_put: each rank has its own memory of
    feedback; all else is the same on every rank.

    state  of an optimizer that includes `compress(plan, axis_name)`
    """
    own, shared = jax.sharding.PartitionSpec(axis_name), jax.sharding.PartitionSpec()
    return jax.tree.map(
        lambda part: CompressState(shared, own) if isinstance(part, CompressState) else shared,
        state,
        is_leaf=lambda part: isinstance(part, CompressState),
    )


def _bound(axis_name: str) -> bool:
    """Whether the code runs within that axis."""
    try:
        jax.lax.axis_index(axis_name)
    except NameError:
        return False
    return True
