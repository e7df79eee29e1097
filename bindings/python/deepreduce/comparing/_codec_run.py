"""Runs and measures plans that have a Python codec. The columns are those of the native tool.

The library sparsifies, and codes the stream that has a native codec. Times are measured in Python, which the rows report
(timed: "python").
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy

from .._native._types import Array, Json, Options
from ..decoding import decode
from ..encoding import encode
from ..errors import ArgumentError, PlanError
from ..header import inspect
from ..plan import Plan, read_stages
from ..tensor import Sparse
from . import _codecs as codecs

Row = Json


@dataclasses.dataclass(frozen=True)
class Stages:
    """A plan in parts; index and value are (the registered codec, an instance), or (None, the text of the stage).

    text  the canonical text, as Plan has it
    """

    text: str
    sparsify: str
    index: Tuple[Optional[codecs.Registered], codecs.CodecObject]
    value: Tuple[Optional[codecs.Registered], codecs.CodecObject]


def read_plan(text: str) -> Stages:
    """Raises PlanError for stages that are none, or cannot be combined with a Python codec, ArgumentError as `of_stage` does."""
    stages = {**read_stages("sparsify=none index=raw value=raw"), **read_stages(text)}
    for role, stage in stages.items():
        if role not in ("sparsify", "index", "value"):
            raise PlanError(f"plan '{text}': '{stage}' cannot be combined with a Python codec; sparsify, index and value can")
    found = {role: codecs.of_stage(stages[role]) for role in ("index", "value")}
    # The library judges the other stages, beside its raw codec.
    native = [stages["sparsify"].text, *(f"{role}=raw" if codec else stages[role].text for role, (codec, _) in found.items())]
    try:
        plan = Plan(" ".join(native))
    except PlanError as error:
        raise PlanError(f"plan '{text}': {str(error).removeprefix('plan: ')}") from None
    texts = {role: codecs.text_of(stages[role], codec) if codec else plan.stages[role].text for role, (codec, _) in found.items()}
    index, value = ((codec, made if codec else texts[role]) for role, (codec, made) in found.items())
    canonical = " ".join(filter(None, (plan.text_of("sparsify"), *texts.values())))
    return Stages(canonical, plan.stages["sparsify"].text, index, value)


class Timer:
    """The time of encode or of decode in a round, summed over the index and the value codec."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self, function: Callable[[], object]) -> Any:
        begin = time.perf_counter_ns()
        result = function()
        self.ns += time.perf_counter_ns() - begin
        return result


class Once(NamedTuple):
    """One run of a plan; sizes in bytes."""

    support: Array  # int64, that decode returns
    sent: Array  # the gradient's values there
    decoded: Array
    index_size: int
    value_size: int
    order_size: int
    header_size: int
    encode_ns: int
    decode_ns: int


def selected_by(sparsify: str, g: Array, numbers: Options) -> Array:
    """The indices that the stage selects: int64 [r], ascending."""
    marked = numpy.where(g == 0, numpy.array(-0.0, g.dtype), g)  # a selected zero decodes to -0, the others to +0
    decoded = decode(encode(marked, f"{sparsify} index=raw value=raw", **numbers))
    return numpy.flatnonzero(decoded.view(f"u{g.itemsize}")).astype(numpy.int64)


def _native(stages: str, indices: Array, values: Array, d: int, numbers: Options, times: Tuple[Timer, Timer]) -> Any:
    """Runs the library's codecs: (info, header bytes, decoded Sparse)."""
    x = Sparse(indices, values, (d,))
    frame = times[0](lambda: encode(x, stages, **numbers))
    found = times[1](lambda: decode(frame, sparse=True))
    info = inspect(frame).tensors[0]
    if info.fallback != "none":
        raise ArgumentError(
            f"'{stages}' falls back to {info.fallback}: {indices.size} of {d} elements would take more bytes;"
            " plans with a Python codec have no fallback"
        )
    return info, len(frame) - info.index_size - info.value_size - info.order_size, found


def run_once(plan: Stages, g: Array, selected: Array, numbers: Options) -> Once:
    """Encodes and decodes once. Raises codec.Broken if a codec breaks its contract."""
    encoding, decoding = Timer(), Timer()
    times, d = (encoding, decoding), g.size
    header, order_size = 0, 0
    index, made = plan.index
    if index is not None:
        what = f"index={index.name}: the tensor's indices ({selected.size} of {d})"
        data = codecs.as_bytes(encoding(lambda: codecs.call(made.encode, what, selected, d)), what)
        support = decoding(lambda: codecs.decode_indices(made, data, selected.size, d, what))
        if index.exact:
            codecs.require_same_indices(selected, support, what)
        index_size = len(data)
    else:
        info, header, found = _native(f"{made} value=raw", selected, g[selected], d, numbers, times)
        support, index_size = found.indices.astype(numpy.int64), info.index_size
    sent = g[support]
    value, made = plan.value
    if value is not None:
        what = f"value={value.name}: the tensor's values ({sent.size} {sent.dtype.name})"
        data = codecs.as_bytes(encoding(lambda: codecs.call(made.encode, what, sent)), what)
        decoded = decoding(lambda: codecs.decode_values(made, data, sent, what))
        value_size = len(data)
        if value.exact:
            codecs.require_same_values(sent, decoded, what)
        if not header:
            header = _native("index=raw value=raw", support, sent, d, numbers, (Timer(), Timer()))[1]
    else:
        info, header, found = _native(f"index=raw {made}", support, sent, d, numbers, times)
        decoded, value_size, order_size = found.values, info.value_size, info.order_size
    return Once(support, sent, decoded, index_size, value_size, order_size, header, encoding.ns, decoding.ns)


def measure(text: str, g: Array, template: Row, repeat: int, seed: int) -> Row:
    """A row of a plan with a Python codec.

    g         [d] float32 or float16
    template  a row of the native tool for the same tensor, which has the columns
    repeat    timed rounds, after one that is not counted

    Raises codec.Broken and ArgumentError.
    """
    plan, numbers = read_plan(text), {"seed": seed, "private_seed": seed, "step": 0}
    for codec, made in (plan.index, plan.value):
        if codec is not None:
            codecs.check_instance(codec, made)
    begin = time.perf_counter_ns()
    selected = selected_by(plan.sparsify, g, numbers)
    sparsify_ns = time.perf_counter_ns() - begin
    selected.flags.writeable = g.flags.writeable = False
    first = run_once(plan, g, selected, numbers)
    rounds = [run_once(plan, g, selected, numbers) for _ in range(repeat)]
    row: Row = dict.fromkeys(template)
    row.update({name: template.get(name) for name in ("input", "tensor", "kind", "step", "dtype", "d")})
    row.update(plan=plan.text, timed="python", fallback="none", r=selected.size, support=first.support.size, rounds=repeat)
    row.update(_sizes(first, g.size, selected.size))
    row.update(_distortion(g, selected, first))
    row["sparsify_ns"] = sparsify_ns
    for side in ("encode_ns", "decode_ns"):
        samples = [getattr(once, side) for once in rounds]
        row[side] = int(numpy.median(samples))
        low, high = numpy.percentile(samples, [25, 75])
        row[side + "_spread"] = float((high - low) / row[side]) if row[side] else None
    if "samples" in template:
        row["samples"] = {side: [getattr(once, side) for once in rounds] for side in ("encode_ns", "decode_ns")}
        row["samples"]["merge_ns"] = []
    return row


def _sizes(once: Once, d: int, r: int) -> Row:
    total = once.index_size + once.value_size + once.order_size + once.header_size
    bound = (math.lgamma(d + 1) - math.lgamma(r + 1) - math.lgamma(d - r + 1)) / math.log(2) / r if 0 < r < d else 0.0
    return {
        "bytes": total,
        "index_bytes": once.index_size,
        "value_bytes": once.value_size,
        "order_bytes": once.order_size,
        "header_bytes": once.header_size,
        "relative_volume": total / (4 * d),
        "index_bits_per_nonzero": _quotient(8.0 * once.index_size, r),
        "value_bits_per_nonzero": _quotient(8.0 * once.value_size, r),
        "index_bound_bits_per_nonzero": bound,
    }


def _quotient(a: float, b: float) -> Optional[float]:
    """0/0 is 0; None is undefined, as a share of infinity is."""
    if b == 0:
        return 0.0 if a == 0 else None
    return a / b if math.isfinite(b) and math.isfinite(a / b) else None


def _finite(x: float) -> Optional[float]:
    return x if math.isfinite(x) else None


def _distortion(g: Array, selected: Array, once: Once) -> Row:
    """The formulas of tool/compare/metrics.cpp: s has the selected values, h the decoded ones. Equal bits do not differ."""
    common = numpy.intersect1d(selected, once.support, assume_unique=True).size
    union = numpy.union1d(selected, once.support)
    s, h = numpy.zeros(union.size, g.dtype), numpy.zeros(union.size, g.dtype)
    s[numpy.searchsorted(union, selected)] = g[selected]
    h[numpy.searchsorted(union, once.support)] = once.decoded
    bits = f"u{g.itemsize}"

    def difference(a: Array, b: Array) -> Array:
        with numpy.errstate(invalid="ignore"):
            delta: Array = a.astype(numpy.float64) - b.astype(numpy.float64)
        delta[a.view(bits) == b.view(bits)] = 0
        return delta

    dense, at = g.astype(numpy.float64), g[union]
    x, y, z = at.astype(numpy.float64), h.astype(numpy.float64), s.astype(numpy.float64)
    gg, hh, gh, ss = float(dense @ dense), float(y @ y), float(x @ y), float(z @ z)
    coding = difference(s, h)
    outside = gg - float(x @ x)  # elements that are neither selected nor sent are lost
    lost = max(0.0, outside if union.size < g.size else 0.0) + float(numpy.sum(difference(at, h) ** 2))
    contraction = _quotient(lost, gg)
    largest, error = (float(numpy.fmax.reduce(numpy.abs(part), initial=0)) for part in (z, coding))  # (fmax ignores NaN)
    coding_error = float(coding @ coding)
    return {
        "missed": selected.size - common,
        "false_positives": once.support.size - common,
        "index_recall": _quotient(float(common), selected.size) if selected.size else 1.0,
        "energy_recall": _quotient(float(numpy.sum(once.sent.astype(numpy.float64) ** 2)), gg) if gg else 1.0,
        "relative_l2_error": _quotient(math.sqrt(coding_error), math.sqrt(ss)),
        "max_relative_error": _quotient(error, largest) if math.isfinite(coding_error) else None,
        "cosine_similarity": _quotient(gh, math.sqrt(gg * hh)),
        "contraction": contraction,
        "gradient_energy": _finite(gg),
        "kept_energy": _finite(ss),
        "total_error": None if contraction is None else math.sqrt(contraction),
    }


def subjects_of(rows: List[Row]) -> List[Row]:
    """The first row of each tensor (memcpy's)."""
    first: Dict[Tuple[str, str, int], Row] = {}
    for row in rows:
        first.setdefault((row["input"], row["tensor"], row["step"]), row)
    return list(first.values())
