"""compare: size, error and time of plans. The native tool measures plans; plans with Python codecs are measured here."""

from __future__ import annotations

import json
import os
import pathlib
import struct
import tempfile
import warnings
from typing import Any, Dict, Iterable, List, Literal, Mapping, Optional, Sequence, Tuple, Union

import numpy

from .._files._npz import made_of, write_npz
from .._files._torch_arrays import Arrays, add_tensor, array_of, can_name, convert_file, is_pickle
from .._native import _memory, _tool
from .._native._types import Array, Json, Tensor
from ..errors import ArgumentError, Error, PlanError
from ..plan import Plan
from ..tensor import Sparse
from . import _codec_run, _codecs
from ._rows import Row
from ._rows import Rows as Rows

Document = Json
Path = Union[str, "os.PathLike[str]"]
Texts = Union[str, Sequence[str]]

# The tool's options that select tensors (`deepreduce convert` has them, too).
_TENSOR_OPTIONS = {"tensor", "flat", "cast"}
# The tool's options that select or show rows: they apply after the rows of Python codecs are added.
_ROW_OPTIONS = {"where", "sort", "pareto", "best", "best_by", "against", "fail_if_worse", "report"}
NOT_OF_PYTHON = ("steps", "each_step", "batch", "book", "resume", "from")  # not available for plans with Python codecs
_CHEAPEST = "index=raw value=raw"  # for a run that only lists the tensors


def compare(
    inputs: object,
    plans: Union[str, Plan, Sequence[Union[str, Plan]]] = (),
    *,
    preset: Optional[Texts] = None,
    book: Optional[Path] = None,
    tensor: Optional[Texts] = None,
    per_tensor: bool = False,
    flat: bool = False,
    batch: bool = False,
    cast: Optional[Literal["f32", "f16", "bf16"]] = None,
    steps: Optional[int] = None,
    each_step: bool = False,
    repeat: Optional[int] = None,
    time: Optional[float] = None,
    ranks: Optional[int] = None,
    link: Optional[str] = None,
    threads: Optional[int] = None,
    seed: Optional[int] = None,
    segment_rows: Optional[int] = None,
    plugin: Union[None, Path, Sequence[Path]] = None,
    where: Optional[str] = None,
    sort: Optional[str] = None,
    pareto: Union[bool, str] = False,
    best: Optional[str] = None,
    best_by: Optional[str] = None,
    limit: Optional[int] = None,
    resume: Optional[Path] = None,
    against: Optional[Path] = None,
    fail_if_worse: bool = False,
    report: Optional[Path] = None,
) -> Rows:
    """Compresses gradients with plans and returns a row for each plan and tensor: bytes, errors and times.

    The rows are those of `deepreduce compare --format json`. Rows, a list of dicts, has frame, best, plot and report.

    inputs          a path or a `synth:` text, or a list of these; or an array, a dict name -> array, or a list of arrays, which
                    are named 0, 1, … Arrays are numpy or torch arrays or Sparse. Their type is float32, float16, bfloat16 or
                    float64; float64 is converted to float32. None is skipped
    plans, preset   a plan, its text or the name of a preset, or a list of these. A text may be a sweep, "index=rice|golomb". Without
                    plans the tool chooses a set that fits the input. Texts may name codecs of deepreduce.codec
    book            a file that assigns plans to tensors, instead of plans
    tensor          names of tensors, "conv*": a row for each. per_tensor: all of at least 1000 elements. flat: joined, the
                    default. batch: in one frame, as encode writes a list
    cast            converts the inputs first
    steps           the inputs are the steps of one training, this many in all; each_step: rows of all of them
    repeat, time    timed rounds, or seconds of them, of each plan
    ranks, link     ranks of the modelled exchange; the speed and latency of its link, "10Gb/s,50us", which adds `verdict`
    threads, seed, segment_rows  as for encode
    plugin          shared objects with more codecs
    where, sort, pareto  select and order the rows: where="total_error < 0.1", sort="bytes", pareto=True
    best, best_by   a condition and a column; the answers are in `rows.document["best"]`: of each input and kind of layer the plan
                    that has the least of the column, bytes, over its tensors. All rows are returned; `rows.best` chooses among them
    limit           maximum number of plans of a sweep
    resume          a .json that saves rows from run to run; only those that it lacks are measured
    against         a .json of earlier rows; fail_if_worse: a row that is worse than there is a failure
    report          a page to write, too

    The first row of each tensor is that of `memcpy`. `deepreduce compare --help` describes options, `deepreduce help columns` columns. Times are in
    nanoseconds. A plan that fails causes a warning and has no row; each note of the tool, such as one of a tensor that it skips, is
    a warning, too. Raises PlanError for a plan that is not one, ArgumentError if the tool refuses another argument, Error if the
    tool fails, LibraryError if the tool is not installed.

    >>> rows = deepreduce.compare(numpy.ones(2000, numpy.float32), "index=golomb value=raw", repeat=1)
    >>> [row["plan"] for row in rows], rows[1]["relative_l2_error"]
    (['memcpy', 'index=golomb value=raw'], 0.0)
    """
    given = {name: value for name, value in locals().items() if name not in ("inputs", "plans")}
    settings = {name: value for name, value in given.items() if value is not None and value is not False}
    if not isinstance(plans, Iterable) and not isinstance(plans, Plan):
        raise ArgumentError(f"plans is {plans!r}, not a plan or plans")
    if link is not None and not isinstance(link, str):
        raise ArgumentError(f"link is {link!r}, not a text with a unit, such as '10Gb/s' or '10Gb/s,50us'")
    texts = [str(plan) for plan in ([plans] if isinstance(plans, (str, Plan)) else plans)]
    with tempfile.TemporaryDirectory(prefix="deepreduce-") as folder:
        paths = _paths_of(inputs, pathlib.Path(folder))
        document, notes = measured(paths, texts, settings, pathlib.Path(folder))
    for line in [*notes, *map(failure_line, document.get("failures", []))]:
        warnings.warn(line, stacklevel=2)
    return Rows(document["rows"], document)


def failure_line(failure: Json) -> str:
    """g.npz conv.weight: PLAN: the error, as the tool writes it."""
    subject = " ".join(filter(None, (failure["input"], failure["tensor"])))
    return f"{subject}: {failure['plan']}: {failure['error']}"


def measured(
    paths: Sequence[str], plans: Sequence[str], settings: Mapping[str, Any], folder: pathlib.Path
) -> Tuple[Document, List[str]]:
    """(the document of a run, the tool's notes). The rows of plans with Python codecs follow the other rows of their tensor."""
    python = [plan for plan in plans if _codecs.is_of_python(plan)]
    if not python:
        return _measured_by_the_tool(paths, plans, settings, folder)
    for name in NOT_OF_PYTHON:
        if settings.get(name):
            raise ArgumentError(f"{name}={settings[name]!r} does not go with plans that have Python codecs")
    texts = [plan for plan in plans if plan not in python]
    python = list(dict.fromkeys(_codec_run.read_plan(plan).text for plan in python))  # (errors come before anything is measured)
    native = bool(texts or settings.get("preset"))
    options = {name: value for name, value in settings.items() if name not in _ROW_OPTIONS}
    if not native:
        options.update(repeat=1, time=None)
    repeat, seed = _number(settings, "repeat", 15, 1, 10**6), _number(settings, "seed", 0, 0, 2**64 - 1)
    document, notes = _measured_by_the_tool(paths, texts if native else [_CHEAPEST], options, folder)
    add_python_rows(document, python, _Arrays(paths, settings, folder), repeat, seed, native)
    shown = {name: value for name, value in settings.items() if name in _ROW_OPTIONS}
    if not shown:
        return document, notes
    (folder / "all.json").write_text(json.dumps(document), "utf-8")
    document, more = _document_of(["--from", str(folder / "all.json"), *_options(shown)], folder)
    return document, list(dict.fromkeys([*notes, *more]))


def _number(settings: Mapping[str, object], name: str, default: int, lower: int, upper: int) -> int:
    """A setting that the tool refuses, too, where it measures itself. The command has texts."""
    given = settings.get(name)
    try:
        number = default if given is None else int(str(given), 0)
    except ValueError:
        number = -1
    if not lower <= number <= upper:
        raise ArgumentError(f"{name}: {given} is not a whole number from {lower} to {upper}")
    return number


def add_python_rows(document: Document, plans: Sequence[str], arrays: _Arrays, repeat: int, seed: int, native: bool) -> None:
    """Measures plans with Python codecs on the tensors of a document, and adds rows and failures to it.

    native  whether to keep all rows of the document; False: keep only the rows of memcpy
    """
    rows: List[Row] = []
    failures = document.setdefault("failures", [])
    for subject in _codec_run.subjects_of(document["rows"]):
        own = [row for row in document["rows"] if all(row[k] == subject[k] for k in ("input", "tensor", "step"))]
        rows += own if native else [row for row in own if row["plan"] == "memcpy"]
        for plan in plans:
            try:
                rows.append(_codec_run.measure(plan, arrays.of(subject), subject, repeat, seed))
            except Exception as error:  # a codec may raise anything
                what = str(error) if isinstance(error, Error) else repr(error)
                failures.append({"input": subject["input"], "tensor": subject["tensor"], "plan": plan, "error": what})
    document["rows"] = rows


def _measured_by_the_tool(
    paths: Sequence[str], plans: Sequence[str], settings: Mapping[str, Any], folder: pathlib.Path
) -> Tuple[Document, List[str]]:
    chosen = [word for plan in plans for word in ("--plan", plan)]
    return _document_of([*paths, *chosen, *_options(settings)], folder)


def _document_of(words: Sequence[str], folder: pathlib.Path) -> Tuple[Document, List[str]]:
    """(the JSON document that `deepreduce compare` writes, its notes). Raises ArgumentError and Error, as compare does."""
    target = folder / "document.json"
    target.unlink(missing_ok=True)
    done = _tool.run_quietly(["compare", *words, "--format", "json", "--output", str(target)])
    messages = done.stderr.decode("utf-8", "replace").strip().replace("deepreduce: ", "")
    if done.returncode not in (0, 1) or not target.exists():
        sentence = messages or f"the tool exited with {done.returncode}"
        sentence = sentence.replace("give a .npy,", "give a .pt, .npy,")  # (which the package reads)
        is_of_a_plan = sentence.startswith(("--plan ", "--preset "))
        raise (Error if done.returncode != 2 else PlanError if is_of_a_plan else ArgumentError)(sentence)
    document: Document = json.loads(target.read_text("utf-8"))
    if "--fail-if-worse" in words:
        document.setdefault("failures", []).extend(_worse(document["against"]))
    return document, [line[len("note: ") :] for line in messages.split("\n") if line.startswith("note: ")]


def _worse(against: Json) -> List[Json]:
    """A failure for each row that is worse in a column than the row of the same plan in the other file."""
    failures = []
    for row in against["rows"]:
        if row["verdict"] in ("worse", "mixed"):
            columns = ", ".join(name for name, column in row["columns"].items() if column["verdict"] == "worse")
            names = {name: row[name] for name in ("input", "tensor", "step", "plan")}
            failures.append({**names, "error": f"worse than in {against['old']['file']}: {columns}"})
    return failures


def _options(settings: Mapping[str, Any]) -> List[str]:
    words = []
    for name, value in settings.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            for item in value if isinstance(value, (list, tuple)) else [value]:
                # (The tool reads a separate word after --pareto as an input.)
                words += [f"{option}={item}"] if name == "pareto" else [option, str(item)]
    return words


# ---- Inputs -------------------------------------------------------------------------------------


def _paths_of(inputs: object, folder: pathlib.Path) -> List[str]:
    if isinstance(inputs, (str, os.PathLike)):
        return _paths_of([inputs], folder)
    named: Any = inputs.items() if isinstance(inputs, Mapping) else [("", inputs)]
    if isinstance(inputs, (list, tuple)):
        paths = [os.fspath(item) for item in inputs if isinstance(item, (str, os.PathLike))]
        if paths and len(paths) == len(inputs):
            return [
                convert_file(path, folder / f"{i}.npz") if is_pickle(path) else path for i, path in enumerate(paths)
            ]
        if paths:
            raise ArgumentError(f"the inputs mix paths ('{paths[0]}') and arrays: pass either paths or arrays")
        named = enumerate(inputs)
    arrays: Arrays = {}
    for name, tensor in named:
        if tensor is None:  # a parameter without a gradient
            continue
        made: Arrays = {}
        _add_array(made, str(name), tensor)
        for member in made:
            if member in arrays or not can_name(member):
                raise ArgumentError(f"{member[:200]!r}: two tensors have this name, or it cannot be that of a member")
        arrays.update(made)
    if not arrays:
        raise ArgumentError("the inputs have no tensor to compare")
    write_npz(folder / "arrays.npz", arrays, made_of="array")
    return [str(folder / "arrays.npz")]


def _add_array(arrays: Arrays, name: str, tensor: Tensor) -> None:
    if _memory.torch_tensor(tensor):
        if not add_tensor(arrays, name, tensor):
            raise ArgumentError(f"'{name}': {tensor.dtype} is not read")
    elif isinstance(tensor, Sparse):
        stem = name + "." if name else ""
        arrays[stem + "indices"] = _plain(tensor.indices, f"indices of '{name}'").astype(numpy.int64)
        arrays[stem + "values"] = _plain(tensor.values, f"values of '{name}'")
        arrays[stem + "shape"] = numpy.array(tensor.shape, numpy.int64)
    else:
        arrays[name] = _plain(tensor, f"'{name}'" if name else "the input")


def _plain(array: object, what: str) -> Array:
    if _memory.torch_tensor(array):
        return array_of(array)
    plain = numpy.asarray(_memory.as_array(array, what), order="C")
    if plain.dtype.hasobject:
        raise ArgumentError(f"{what} is of {plain.dtype}, which is not a type of numbers")
    return plain.view("V2") if plain.dtype.name == "bfloat16" else plain


class _Arrays:
    """The tensors of a run as the tool reads them. The tool converts each input to a .safetensors file."""

    def __init__(self, paths: Sequence[str], settings: Mapping[str, Any], folder: pathlib.Path) -> None:
        # Rows name an .npz that was made for this run by its origin, with escapes; other files by their paths, as text.
        self._paths = {_shown(made_of(path)) or os.fsencode(path).decode("utf-8", "replace"): path for path in paths}
        self._target = folder / "tensors.safetensors"
        self._options = {name: value for name, value in settings.items() if name in _TENSOR_OPTIONS}
        if not self._options.get("tensor") and not settings.get("per_tensor"):
            self._options["flat"] = True
        self._loaded: Tuple[str, Dict[str, Array]] = ("", {})

    def of(self, row: Row) -> Array:
        """The tensor of a row: [d]."""
        if row["dtype"] == "bf16":
            raise ArgumentError("Python codecs accept float32 and float16, not bfloat16; --cast f32 converts it")
        if self._loaded[0] != row["input"]:
            # (An input that a folder or a sweep of synth: expands to has its own name in the row.)
            name: str = row["input"]
            self._loaded = (name, self._read(self._paths.get(name, name)))
        found = self._loaded[1].get(row["tensor"])
        if found is None or found.size != row["d"]:
            raise ArgumentError(f"{row['input']}: tensor '{row['tensor']}' is missing when the input is read again, or has another size")
        return found.copy()

    def _read(self, path: str) -> Dict[str, Array]:
        done = _tool.run_quietly(["convert", path, *_options(self._options), "--output", str(self._target)])
        if done.returncode:
            raise Error(done.stderr.decode("utf-8", "replace").strip().replace("deepreduce: ", ""))
        found = read_safetensors(self._target)
        return {**found, **{_shown(name): array for name, array in found.items()}}


def _shown(name: str) -> str:
    """A tensor's name as rows have it (printable() of tool/read/inputs.hpp)."""
    return json.dumps(name)[1:-1].replace("\x7f", "\\u007f")


def read_safetensors(path: pathlib.Path) -> Dict[str, Array]:
    """name -> [d] of the float32 and float16 tensors of a file that the tool wrote."""
    data = numpy.fromfile(path, numpy.uint8)
    (size,) = struct.unpack("<Q", data[:8].tobytes())
    found = {}
    for name, entry in json.loads(data[8 : 8 + size].tobytes()).items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        if entry["dtype"] in ("F32", "F16"):
            found[name] = data[begin:end].view("<f4" if entry["dtype"] == "F32" else "<f2")
    return found
