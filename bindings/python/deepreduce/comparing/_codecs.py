"""deepreduce.codec: codecs written in Python, and checks of their contracts."""

from __future__ import annotations

import dataclasses
import inspect
import re
import traceback
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, TypeVar, Union

import numpy

from .. import plan as _plan
from .._native._types import Array
from ..errors import ArgumentError, Error, PlanError
from ..plan import Stage, read_stages

CodecObject = Any  # an instance of a codec: it has encode and decode, whose arguments depend on its role
Kind = TypeVar("Kind", bound=Callable[..., Any])


class Broken(Error):
    """A codec breaks its contract. The message names the codec, the input and the rule, or the exception of the codec."""


@dataclasses.dataclass(frozen=True)
class Registered:
    """A registered codec. `make` is its class, whose arguments are the parameters that a plan may have.

    error  of a lossy value codec: the largest relative L2 error; None: no limit
    """

    role: str
    name: str
    make: Callable[..., Any]
    exact: bool
    error: Optional[float]


_registered: Dict[Tuple[str, str], Registered] = {}
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def index(name: str, *, exact: bool = True) -> Callable[[Kind], Kind]:
    """Registers a class as an index codec. A second registration under the same name replaces the first.

    name   the name in plans: lower-case letters, digits and underscores; not a name of the library's codecs
    exact  True: decode returns the indices that encode received. False: decode may return other indices; then the gradient's
           values at those indices are sent, as for the library's lossy index codecs

    encode(self, indices, universe) -> bytes      indices: int64 [r], ascending, below universe
    decode(self, data, count, universe)           bytes and count = r -> integers [any], ascending, below universe

    Raises ArgumentError if the name is invalid, or if the class has no encode or no decode.
    """
    return _register("index", name, exact, None)


def value(name: str, *, exact: bool = True, error: Optional[float] = None) -> Callable[[Kind], Kind]:
    """Registers a class as a value codec. A second registration under the same name replaces the first.

    name   the name in plans
    exact  True: decode returns the bits that encode received
    error  if not exact: the largest relative L2 error, |x - y| / |x|; None: no limit

    encode(self, values) -> bytes                 values: float32 or float16 [n], in the order of their indices
    decode(self, data, count, dtype)              bytes, count = n and a numpy dtype -> values [n]

    Raises as `index` does, and ArgumentError for an exact codec with an error.
    """
    if exact and error is not None:
        raise ArgumentError(f"value codec '{name}': an exact codec has no error")
    return _register("value", name, exact, error)


def _register(role: str, name: str, exact: bool, error: Optional[float]) -> Callable[[Kind], Kind]:
    if not isinstance(name, str):
        raise ArgumentError(f'{role} codec: {name!r} is not the text of a name: write @deepreduce.codec.{role}("name") before the class')
    if not _NAME.fullmatch(name):
        raise ArgumentError(f"{role} codec {name!r}: a name has lower-case letters, digits and underscores, and begins with a letter")

    def register(kind: Kind) -> Kind:
        for method in ("encode", "decode"):
            if not callable(getattr(kind, method, None)):
                raise ArgumentError(f"{role} codec '{name}': {kind!r} has no method {method}")
        _registered[role, name] = Registered(role, name, kind, exact, error)
        return kind

    return register


def registered(role: str, name: str) -> Optional[Registered]:
    """The registered codec of this name, or None. Raises ArgumentError if the library has a codec of that name, too."""
    found = _registered.get((role, name))
    if found and any((codec.role, codec.name) == (role, name) for codec in _plan.codecs()):
        raise ArgumentError(f"{role} codec '{name}': the library has a codec of that name; choose another name")
    return found


def names() -> List[str]:
    return [f"{role}={name}" for role, name in _registered]


def of_stage(stage: Stage) -> Tuple[Optional[Registered], CodecObject]:
    """(codec, instance) of a stage; (None, None) if no Python codec has this name.

    Raises PlanError for parameters that the class does not have, ArgumentError if it raises an exception.
    """
    codec = registered(stage.role, stage.name)
    if codec is None:
        return None, None
    if stage.behind:
        raise PlanError(f"{stage}: no further stage ('+{stage.behind[0].name}') can follow a Python codec")
    parameters = _parameters(stage)
    try:
        inspect.signature(codec.make).bind(**parameters)
    except TypeError as error:
        raise PlanError(f"{stage}: {error}") from None
    return codec, _made(codec, str(stage), parameters)


def _made(codec: Registered, what: str, parameters: Dict[str, Any]) -> CodecObject:
    try:
        return codec.make(**parameters)
    except Exception as error:
        raise ArgumentError(f"{what}: {_raised(error)}") from error


def text_of(stage: Stage, codec: Registered) -> str:
    """The stage in one form, as Plan has it: parameters in the order of the class's arguments, without those that have the default."""
    given, arguments = _parameters(stage), inspect.signature(codec.make).parameters
    words = []
    for name in [*arguments, *sorted(given.keys() - arguments.keys())]:
        default = arguments[name].default if name in arguments else None
        if name in given and not (type(given[name]) is type(default) and given[name] == default):
            words.append(f"{name}={given[name]}")
    return f"{stage.role}={stage.name}" + (f"({','.join(words)})" if words else "")


def _parameters(stage: Stage) -> Dict[str, Union[int, float, str]]:
    return {name: _number(str(value)) for name, value in stage.parameters.items()}


def _number(text: str) -> Union[int, float, str]:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


# ---- Checked calls of a codec -------------------------------------------------------------------


def call(method: Callable[..., Any], what: str, *arguments: object) -> Any:
    """What a codec's method returns. what: the stage and the input. Raises Broken if it raises an exception."""
    try:
        return method(*arguments)
    except Exception as error:
        raise Broken(f"{what}: {_raised(error)}") from error


def _raised(error: Exception) -> str:
    """ValueError('negative') at mine.py:12, the innermost line of the codec's file."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # without that of the call
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    return f"{error!r} at {own[-1].filename}:{own[-1].lineno}" if own else repr(error)


def as_bytes(data: Any, what: str) -> bytes:
    try:
        return bytes(memoryview(data))
    except (TypeError, ValueError, BufferError):
        raise Broken(f"{what}: encode returns {type(data).__name__}, not bytes") from None


def _as_array(found: object, what: str) -> Array:
    try:
        return numpy.asarray(found)
    except Exception as error:
        raise Broken(f"{what}: decode returns {type(found).__name__}, which is not an array: {error}") from None


def decode_indices(codec: CodecObject, data: bytes, count: int, universe: int, what: str) -> Array:
    """int64, ascending, below universe. Raises Broken if the codec returns anything else."""
    found = _as_array(call(codec.decode, what, data, count, universe), what)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise Broken(f"{what}: decode returns {found.dtype} of shape {found.shape}, not integers [r]")
    indices = found.astype(numpy.int64)
    wrong = numpy.flatnonzero((indices < 0) | (indices >= universe) | (numpy.diff(indices, prepend=-1) <= 0))
    if wrong.size:
        at = int(wrong[0])
        raise Broken(f"{what}: decoded index {indices[at]} at {at} is not below {universe}, or does not ascend")
    return indices


def decode_values(codec: CodecObject, data: bytes, values: Array, what: str) -> Array:
    """As many values as `values`, of the same type. Raises Broken if the codec returns anything else."""
    found = _as_array(call(codec.decode, what, data, values.size, values.dtype), what)
    if found.shape != values.shape or found.dtype != values.dtype:
        raise Broken(f"{what}: decode returns {found.dtype} {found.shape}, not {values.dtype} {values.shape}")
    return found


def require_same_indices(sent: Array, found: Array, what: str) -> None:
    if not numpy.array_equal(sent, found):
        n = min(sent.size, found.size)
        at = int(numpy.argmax(sent[:n] != found[:n])) if (sent[:n] != found[:n]).any() else n
        raise Broken(f"{what}: {sent.size} indices sent, {found.size} decoded, different at {at}; the codec is exact")


def require_same_values(sent: Array, found: Array, what: str) -> None:
    bits = f"u{sent.itemsize}"
    differ = numpy.flatnonzero(sent.view(bits) != found.view(bits))
    if differ.size:
        at = int(differ[0])
        raise Broken(
            f"{what}: element {at}: decoded bits {int(found.view(bits)[at]):#x}, sent {int(sent.view(bits)[at]):#x};"
            " the codec is exact"
        )


def encode_twice(codec: CodecObject, what: str, *arguments: object) -> bytes:
    for argument in arguments:
        if isinstance(argument, numpy.ndarray):
            argument.flags.writeable = False  # the memory is the caller's
    first, second = (as_bytes(call(codec.encode, what, *arguments), what) for _ in range(2))
    if first != second:
        raise Broken(f"{what}: encode returns different bytes the second time")
    return first


# ---- Properties ---------------------------------------------------------------------------------


class _Support(NamedTuple):
    name: str
    indices: Array
    universe: int


def _supports() -> Iterator[_Support]:
    random = numpy.random.default_rng(1)
    last = 2**32 - 2
    for universe in (1, 1000):
        yield _Support("none", numpy.zeros(0, int), universe)
        yield _Support("all", numpy.arange(universe), universe)
    yield _Support("the first", numpy.array([0]), 1000)
    yield _Support("the last", numpy.array([999]), 1000)
    yield _Support("a run", numpy.arange(300, 700), 1000)
    yield _Support("every second", numpy.arange(0, 1000, 2), 1000)
    yield _Support("both ends of the widest universe", numpy.array([0, last]), last + 1)
    yield _Support("gaps of every width", numpy.cumsum(2 ** numpy.arange(31)), last + 1)
    yield _Support("1 % at random", numpy.sort(random.choice(100000, 1000, replace=False)), 100000)
    starts = numpy.sort(random.choice(1000, 30, replace=False)) * 100
    yield _Support("clusters", (starts[:, None] + numpy.arange(40)).ravel(), 100000)


def _values(dtype: type) -> Iterator[Tuple[str, Array, bool]]:
    """(name, values, whether all are finite)"""
    random, info = numpy.random.default_rng(2), numpy.finfo(dtype)
    yield "none", numpy.zeros(0, dtype), True
    yield "one", numpy.array([0.5], dtype), True
    yield "zeros of both signs", numpy.array([0.0, -0.0] * 50, dtype), True
    yield "all equal", numpy.full(100, -0.25, dtype), True
    yield "least and largest", numpy.array([info.smallest_subnormal, info.max, -info.max, info.tiny], dtype), True
    yield "a Gaussian's", (random.standard_normal(1000) * 1e-2).astype(dtype), True
    yield "of very different size", (2.0 ** random.integers(-14, 15, 500)).astype(dtype), True
    yield "infinite and NaN", numpy.array([numpy.inf, -numpy.inf, numpy.nan, 1], dtype), False
    bits = random.integers(0, 2 ** (8 * numpy.dtype(dtype).itemsize), 1000, numpy.uint64)
    yield "random bits", bits.astype(f"u{numpy.dtype(dtype).itemsize}").view(dtype), False


def check(role: str, name: str, **parameters: object) -> None:
    """Tests a registered codec with many kinds of input.

    Index codecs are tested with no indices, one index, all indices, runs and the widest universe. Value codecs are tested with
    zeros of both signs, subnormals and infinities; lossy value codecs with finite values only.

    encode must return the same bytes twice and must not change its input. decode must return as many values as were sent, or
    ascending indices in range. An exact codec must return the same indices or bits. A lossy value codec must return finite
    values, with at most the promised error.

    Raises Broken if the codec fails a test or raises an exception, ArgumentError for an unknown name, and for parameters with which
    the class raises an exception.
    """
    codec = registered(role, name)
    if codec is None:
        raise ArgumentError(f"no {role} codec is registered as '{name}'")
    check_instance(codec, _made(codec, f"{role}={name}", parameters))


def check_instance(codec: Registered, made: object) -> None:
    if codec.role == "index":
        for support in _supports():
            what = f"index={codec.name}: {support.name} of {support.universe}"
            data = encode_twice(made, what, support.indices.astype(numpy.int64), support.universe)
            found = decode_indices(made, data, support.indices.size, support.universe, what)
            if codec.exact:
                require_same_indices(support.indices, found, what)
        return
    for dtype in (numpy.float32, numpy.float16):
        for name, values, finite in _values(dtype):
            if not codec.exact and not finite:
                continue
            what = f"value={codec.name}: {name} ({values.size} {numpy.dtype(dtype).name})"
            data = encode_twice(made, what, values)
            judge_values(codec, values, decode_values(made, data, values, what), what)


def judge_values(codec: Registered, sent: Array, found: Array, what: str) -> None:
    if codec.exact:
        require_same_values(sent, found, what)
        return
    if not numpy.isfinite(found).all():
        raise Broken(f"{what}: decode returns {found[~numpy.isfinite(found)][0]} for finite values")
    if codec.error is not None:
        x, y = sent.astype(numpy.float64), found.astype(numpy.float64)
        error, norm = float(numpy.linalg.norm(x - y)), float(numpy.linalg.norm(x))
        if error > codec.error * norm:
            raise Broken(f"{what}: relative error {error / norm if norm else numpy.inf:.3g}, promised {codec.error}")


# ---- LEB128 -------------------------------------------------------------------------------------


def varints(numbers: object) -> bytes:
    """LEB128 of integers [n] from 0 to 2^63 - 1: 7 bits a byte, low bits first; the top bit means that another byte follows.

    >>> deepreduce.codec.varints([1, 300]).hex()
    '01ac02'
    """
    given = numpy.asarray(numbers)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "biu"):
        raise ArgumentError(f"varints: integers [n] from 0 to 2^63 - 1 are expected, not {given.dtype} of shape {given.shape}")
    x = given.astype(numpy.int64)
    if x.size and x.min() < 0:
        raise ArgumentError(f"varints: {given[x.argmin()]} is {'negative' if given[x.argmin()] < 0 else 'above 2^63 - 1'}")
    groups = x[:, None] >> numpy.arange(0, 63, 7)
    used = groups > 0
    used[:, 0] = True
    more = numpy.zeros_like(used)
    more[:, :-1] = used[:, 1:]
    return ((groups & 127) | more << 7).astype(numpy.uint8)[used].tobytes()


def from_varints(data: bytes) -> Array:
    """Decodes the bytes of `varints`: int64 [n]. Raises ArgumentError if the bytes are cut off or a number has more than 63 bits.

    >>> deepreduce.codec.from_varints(bytes.fromhex("01ac02")).tolist()
    [1, 300]
    """
    b = numpy.frombuffer(data, numpy.uint8).astype(numpy.int64)
    last = numpy.flatnonzero(b < 128)
    first = numpy.concatenate([[0], last[:-1] + 1]) if last.size else last
    lengths = last - first + 1
    if (b.size and (not last.size or last[-1] != b.size - 1)) or (lengths > 9).any():
        raise ArgumentError("varints: the bytes are cut off, or a number has more than 63 bits")
    if not last.size:
        return numpy.zeros(0, numpy.int64)
    shifts = 7 * (numpy.arange(b.size) - numpy.repeat(first, lengths))
    found: Array = numpy.add.reduceat((b & 127) << shifts, first)
    return found


def is_of_python(plan: str) -> bool:
    """Whether a plan names a registered codec. Raises PlanError for a sweep that names one: only the tool expands sweeps."""
    if re.search(r"\||\.\.", plan):  # (plan text: only the tool expands a sweep to plans)
        for role, name in _registered:
            if re.search(rf"(?:^|\s){role}=(?:\S*[|(+])?{name}(?![\w=])", plan):  # (plan text: a sweep)
                raise PlanError(
                    f"plan '{plan}': a plan with a Python codec ({role}={name}) cannot be a sweep ('|', '..'); pass the plans one by one"
                )
        return False
    try:
        stages = read_stages(plan)
    except ArgumentError:
        if any(re.search(rf"\b{name}\b", plan) for _, name in _registered):  # (plan text: it cannot be parsed, but names a Python codec)
            raise
        return False  # the tool reports the error
    return any(of_stage(stage)[0] is not None for stage in stages.values())
