"""Recorded weights: the words of snapshots of a training, in bf16 and in views of it, and the files that keep them.

A file is a deflated numpy archive. A word of bf16 is turned left by one bit and cut in two: `NAME.high` is its exponent,
`NAME.low` its mantissa and sign. `base` is whole; of the other snapshots the file has the exclusive or with `base`.
weights.json beside it has tensors, snapshots and their SHA-256.
"""

import hashlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
BUNDLED = ROOT / "datasets" / "weights"
RECORDED = ROOT / ".cache" / "patch"  # what record.py makes: more snapshots than are bundled
LISTED = "weights.json"

sys.path[:0] = [str(ROOT / "bindings" / "python")]
from deepreduce.recording import write_npz  # noqa: E402

Words = np.ndarray  # u16, u32 or u8, flat: the bits of the elements


@dataclass
class Recording:
    """snapshots[name]: regime, rate, steps, … of words[name], u16 of bf16; wide[name]: u32 of f32, of few."""

    model: str
    tensors: List[Tuple[str, Tuple[int, ...]]]
    snapshots: Dict[str, Dict[str, Any]] = field(default_factory=dict)
    words: Dict[str, Words] = field(default_factory=dict)
    wide: Dict[str, Words] = field(default_factory=dict)
    facts: Dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, weights: np.ndarray, wide: bool = False, **facts: Any) -> None:
        """weights: f32, flat; the f32 itself is kept with `wide`."""
        self.words[name] = bf16_of(weights)
        if wide:
            self.wide[name] = weights.view(np.uint32).copy()
        if name != "base":
            changed = float(np.mean(self.words[name] != self.words["base"]))
            self.snapshots[name] = {**facts, "changed": round(changed, 7)}


# ---- views -----------------------------------------------------------------------------------------------------------


def bf16_of(weights: np.ndarray) -> Words:
    """f32 to bf16, to the nearest, ties to even; finite."""
    bits = np.ascontiguousarray(weights, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def f32_of(words: Words) -> np.ndarray:
    return (words.astype(np.uint32) << 16).view(np.float32)


def e4m3_of(x: np.ndarray) -> Words:
    """|x| up to 448 to the 8 bits of e4m3fn (OCP 8-bit floating point), to the nearest, ties to even."""
    size = np.abs(x)
    exponent = np.maximum(np.frexp(size)[1] - 1, -6)
    steps = np.rint(np.ldexp(size, 3 - exponent)).astype(np.int32)  # 8 to 16 of a normal number, below 8 of others
    return ((exponent + 6) * 8 + steps | np.signbit(x).astype(np.int32) << 7).astype(np.uint8)


def quantised(words: Words, tensors: Sequence[Tuple[str, Tuple[int, ...]]], kind: str) -> Words:
    """How a receiver converts bf16 to fp8 or int8: each row (of a vector: all) divided by its largest magnitude,
    which becomes 448 or 127; scales are not part of the words."""
    top, made, at = {"fp8": 448.0, "int8": 127.0}[kind], [], 0
    for _, shape in tensors:
        n = int(np.prod(shape))
        rows = f32_of(words[at : at + n]).reshape(shape[0] if len(shape) > 1 else 1, -1)
        scale = np.abs(rows).max(1, keepdims=True) / np.float32(top)
        x = rows / np.where(scale > 0, scale, np.float32(1))
        made.append((e4m3_of(x) if kind == "fp8" else np.rint(x).astype(np.int8).view(np.uint8)).ravel())
        at += n
    return np.concatenate(made)


# ---- files -----------------------------------------------------------------------------------------------------------


def planes(words: Words) -> Tuple[np.ndarray, np.ndarray]:
    turned = words << 1 | words >> 15
    return (turned >> 8).astype(np.uint8), (turned & 0xFF).astype(np.uint8)


def joined(high: np.ndarray, low: np.ndarray) -> Words:
    turned = high.astype(np.uint16) << 8 | low
    return turned >> 1 | turned << 15


def sha256(words: Words) -> str:
    return hashlib.sha256(words.tobytes()).hexdigest()


def save(recording: Recording, folder: Path, names: Sequence[str] = (), wide: bool = True) -> Path:
    """Writes base and the snapshots `names` (none: all) of a recording, and its entry in weights.json."""
    folder.mkdir(parents=True, exist_ok=True)
    path, base = folder / f"{recording.model}.npz", recording.words["base"]
    chosen = {name: recording.snapshots[name] for name in names or recording.snapshots}
    arrays = dict(zip(("base.high", "base.low"), planes(base)))
    for name in chosen:
        arrays.update(zip((f"{name}.high", f"{name}.low"), planes(recording.words[name] ^ base)))
    if wide:
        arrays.update({f"{name}.f32": words for name, words in recording.wide.items()})
    write_npz(path, arrays, deflate=True)
    entry = {
        "file": path.name,
        "model": recording.model,
        "weights": base.size,
        "base_sha256": sha256(base),
        **recording.facts,
        "snapshots": [{"name": name, **facts, "sha256": sha256(recording.words[name])} for name, facts in chosen.items()],
        "tensors": [{"name": name, "shape": list(shape)} for name, shape in recording.tensors],
    }
    listed = [old for old in entries(folder) if old["file"] != path.name] + [entry]
    (folder / LISTED).write_text(text_of(sorted(listed, key=lambda e: str(e["file"]))), "utf-8")
    return path


def entries(folder: Path) -> List[Dict[str, Any]]:
    listed = folder / LISTED
    return json.loads(listed.read_text("utf-8"))["recordings"] if listed.exists() else []


def text_of(listed: List[Dict[str, Any]]) -> str:
    """Json with a line a snapshot and a line a tensor, so that a diff can be read."""
    made = []
    for entry in listed:
        lines = []
        for key, value in entry.items():
            rows = ",\n".join(f"        {json.dumps(row)}" for row in value) if isinstance(value, list) else None
            lines.append(f"      {json.dumps(key)}: " + (f"[\n{rows}\n      ]" if rows else json.dumps(value)))
        made.append("    {\n" + ",\n".join(lines) + "\n    }")
    return '{\n  "recordings": [\n' + ",\n".join(made) + "\n  ]\n}\n"


def load(entry: Dict[str, Any], folder: Path) -> Recording:
    """Loads an entry of weights.json. ValueError: the words of the file are not those of the entry."""
    with np.load(folder / entry["file"]) as arrays:
        base = joined(arrays["base.high"], arrays["base.low"])
        words = {"base": base}
        for snapshot in entry["snapshots"]:
            name = snapshot["name"]
            words[name] = joined(arrays[f"{name}.high"], arrays[f"{name}.low"]) ^ base
        wide = {name[: -len(".f32")]: arrays[name] for name in arrays.files if name.endswith(".f32")}
    for name, digest in [("base", entry["base_sha256"]), *((s["name"], s["sha256"]) for s in entry["snapshots"])]:
        if sha256(words[name]) != digest:
            raise ValueError(f"{entry['file']}: snapshot {name} has SHA-256 {sha256(words[name])}, not {digest}")
    tensors = [(t["name"], tuple(t["shape"])) for t in entry["tensors"]]
    snapshots = {s["name"]: {k: v for k, v in s.items() if k not in ("name", "sha256")} for s in entry["snapshots"]}
    facts: Dict[str, Any] = {key: entry[key] for key in ("loss", "seed", "torch", "regenerate") if key in entry}
    return Recording(entry["model"], tensors, snapshots, words, wide, facts)


def load_all() -> List[Recording]:
    """The recordings of this machine, and the bundled ones of other models."""
    found = {}
    for folder in (BUNDLED, RECORDED):
        for entry in entries(folder):
            found[entry["model"]] = load(entry, folder)
    return [found[model] for model in sorted(found)]
