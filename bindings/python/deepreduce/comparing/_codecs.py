"""deepreduce.codec: codecs written in Python, and whether they keep what they promise."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple, TypeVar, Union

import numpy

from .. import plan as _plan
from .._native._types import Array
from ..errors import ArgumentError, Error
from ..plan import Stage, read_stages

CodecObject = Any  # an instance of a codec: it has encode and decode, whose arguments depend on its role
Kind = TypeVar("Kind", bound=Callable[..., Any])


class Broken(Error):
    """A codec does not keep what it promises; the message says which, on what input."""


@dataclasses.dataclass(frozen=True)
class Registered:
    """A codec: `make` is the class that was registered; its arguments are the parameters that a plan may give.

    error  of a lossy value codec: the relative L2 error that it never passes; None: any
    """

    role: str
    name: str
    make: Callable[..., Any]
    exact: bool
    error: Optional[float]


_registered: Dict[Tuple[str, str], Registered] = {}
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def index(name: str, *, exact: bool = True) -> Callable[[Kind], Kind]:
    """Registers a class as an index codec; again under the same name: in its place.

    name   as plans name it: small letters, digits and underscores; none of the library's
    exact  decode gives the indices that encode was given. Else it may give others, and the gradient's values at those
           are sent, as the library does it

    encode(self, indices, universe) -> bytes      indices: int64 [r], ascending, below universe
    decode(self, data, count, universe)           bytes, and r -> integers [any], ascending, below universe

    Raises ArgumentError for a name that cannot be or is taken, and for a class without the two.
    """
    return _register("index", name, exact, None)


def value(name: str, *, exact: bool = True, error: Optional[float] = None) -> Callable[[Kind], Kind]:
    """Registers a class as a value codec; again under the same name: in its place.

    name   as plans name it
    exact  decode gives the bits that encode was given
    error  not exact: the relative L2 error, |x - y| / |x|, that it never passes; None: any

    encode(self, values) -> bytes                 values: float32 or float16 [n], in the order of their indices
    decode(self, data, count, dtype)              bytes, n and numpy's type -> values [n]

    Raises as `index` does.
    """
    if exact and error is not None:
        raise ArgumentError(f"value codec '{name}': an exact codec has no error")
    return _register("value", name, exact, error)


def _register(role: str, name: str, exact: bool, error: Optional[float]) -> Callable[[Kind], Kind]:
    if not _NAME.fullmatch(name):
        raise ArgumentError(f"{role} codec {name!r}: a name has small letters, digits and underscores")

    def register(kind: Kind) -> Kind:
        for method in ("encode", "decode"):
            if not callable(getattr(kind, method, None)):
                raise ArgumentError(f"{role} codec '{name}': {kind!r} has no method {method}")
        _registered[role, name] = Registered(role, name, kind, exact, error)
        return kind

    return register


def registered(role: str, name: str) -> Optional[Registered]:
    """The codec that was registered so; None if there is none. ArgumentError if the library has one of that name, too."""
    found = _registered.get((role, name))
    if found and any((codec.role, codec.name) == (role, name) for codec in _plan.codecs()):
        raise ArgumentError(f"{role} codec '{name}': the library has one of that name; choose another")
    return found


def of_stage(stage: Stage) -> Tuple[Optional[Registered], CodecObject]:
    """The codec and an instance of a stage; None, None if the library has to know it."""
    codec = registered(stage.role, stage.name)
    if codec is None:
        return None, None
    if stage.behind:
        raise ArgumentError(f"{stage}: behind a Python codec there is no further stage ('+{stage.behind[0].name}')")
    parameters = {name: _number(str(value)) for name, value in stage.parameters.items()}
    try:
        inspect.signature(codec.make).bind(**parameters)
    except TypeError as error:
        raise ArgumentError(f"{stage}: {error}") from None
    return codec, codec.make(**parameters)


def _number(text: str) -> Union[int, float, str]:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


# ---- Calls of a codec, judged -------------------------------------------------------------------


def as_bytes(data: Any, what: str) -> bytes:
    try:
        return bytes(memoryview(data))
    except TypeError:
        raise Broken(f"{what}: encode returns {type(data).__name__}, not bytes") from None


def decode_indices(codec: CodecObject, data: bytes, count: int, universe: int, what: str) -> Array:
    """int64, ascending, below universe."""
    found = numpy.asarray(codec.decode(data, count, universe))
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise Broken(f"{what}: decode gives {found.dtype} of shape {found.shape}, not integers [r]")
    indices = found.astype(numpy.int64)
    wrong = numpy.flatnonzero((indices < 0) | (indices >= universe) | (numpy.diff(indices, prepend=-1) <= 0))
    if wrong.size:
        at = int(wrong[0])
        raise Broken(f"{what}: decoded index {indices[at]} at {at} is not below {universe}, or does not ascend")
    return indices


def decode_values(codec: CodecObject, data: bytes, values: Array, what: str) -> Array:
    """As many as `values`, of their type."""
    found = numpy.asarray(codec.decode(data, values.size, values.dtype))
    if found.shape != values.shape or found.dtype != values.dtype:
        raise Broken(f"{what}: decode gives {found.dtype} {found.shape}, not {values.dtype} {values.shape}")
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
    for each in arguments:
        if isinstance(each, numpy.ndarray):
            each.flags.writeable = False  # it is the caller's
    first, second = (as_bytes(codec.encode(*arguments), what) for _ in range(2))
    if first != second:
        raise Broken(f"{what}: encode gives other bytes the second time")
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
    """Runs a registered codec over supports or values of every kind: none, one, all, runs, the widest universe; zeros of
    both signs, subnormals, infinity.

    Encode gives the same bytes twice and leaves its input alone; decode gives as much as was sent, ascending and in range;
    an exact codec gives the same indices or bits, a lossy one finite values, and no larger error than promised. A lossy
    value codec gets finite values only. Raises Broken, ArgumentError for an unknown name; what the codec raises passes.
    """
    codec = registered(role, name)
    if codec is None:
        raise ArgumentError(f"no {role} codec is registered as '{name}'")
    check_instance(codec, codec.make(**parameters))


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
        raise Broken(f"{what}: decode gives {found[~numpy.isfinite(found)][0]} of finite values")
    if codec.error is not None:
        x, y = sent.astype(numpy.float64), found.astype(numpy.float64)
        error, norm = float(numpy.linalg.norm(x - y)), float(numpy.linalg.norm(x))
        if error > codec.error * norm:
            raise Broken(f"{what}: relative error {error / norm if norm else numpy.inf:.3g}, promised {codec.error}")


# ---- LEB128 -------------------------------------------------------------------------------------


def varints(numbers: object) -> bytes:
    """LEB128 of whole numbers [n] from 0 to 2^63 - 1: 7 bits a byte, low first; the top bit says that another follows.

    >>> deepreduce.codec.varints([1, 300]).hex()
    '01ac02'
    """
    x = numpy.asarray(numbers, numpy.int64)
    if x.size and x.min() < 0:
        raise ArgumentError(f"varints: {x.min()} is negative")
    groups = x[:, None] >> numpy.arange(0, 63, 7)
    there = groups > 0
    there[:, 0] = True
    more = numpy.zeros_like(there)
    more[:, :-1] = there[:, 1:]
    return ((groups & 127) | more << 7).astype(numpy.uint8)[there].tobytes()


def from_varints(data: bytes) -> Array:
    """int64 [n], of what varints gives; ArgumentError for bytes that break off or hold more than 63 bits a number.

    >>> deepreduce.codec.from_varints(bytes.fromhex("01ac02")).tolist()
    [1, 300]
    """
    b = numpy.frombuffer(data, numpy.uint8).astype(numpy.int64)
    last = numpy.flatnonzero(b < 128)
    first = numpy.concatenate([[0], last[:-1] + 1]) if last.size else last
    lengths = last - first + 1
    if (b.size and (not last.size or last[-1] != b.size - 1)) or (lengths > 9).any():
        raise ArgumentError("varints: the bytes break off, or a number is beyond 63 bits")
    if not last.size:
        return numpy.zeros(0, numpy.int64)
    shifts = 7 * (numpy.arange(b.size) - numpy.repeat(first, lengths))
    found: Array = numpy.add.reduceat((b & 127) << shifts, first)
    return found


def is_of_python(plan: str) -> bool:
    """Whether a plan names a registered codec. ArgumentError for a sweep, which only the tool spreads out, that names one."""
    if re.search(r"\||\.\.", plan):  # (plan text: a sweep is the tool's, which makes plans of it)
        for role, name in _registered:
            if re.search(rf"(?:^|\s){role}=(?:\S*[|(+])?{name}(?![\w=])", plan):  # (plan text: a sweep)
                raise ArgumentError(
                    f"plan '{plan}': a plan with a Python codec ({role}={name}) is no sweep ('|', '..'); give each plan by itself"
                )
        return False
    try:
        stages = read_stages(plan)
    except ArgumentError:
        if any(re.search(rf"\b{name}\b", plan) for _, name in _registered):  # (plan text: it is wrong, whose it may be)
            raise
        return False  # the tool says what is wrong with it
    return any(of_stage(stage)[0] is not None for stage in stages.values())
