"""Makes and applies a patch of two large safetensors by the tool, beside reading both files and writing one.

    python -m bench.patch.large --folder DIR [--gigabytes 4.3] [--tool 'python -m deepreduce']

Writes two bf16 files of normal weights of which about 1 % differ, into a folder that it makes in DIR and removes. Pages of
the files are dropped before the tool makes, and before the reading that it is compared with; `apply` finds what
`make` left in memory, as the writing does. Memory is RssAnon, sampled: mapped files are not in it. Adds `large` to
bench/results/patch.json.
"""

import argparse
import hashlib
import json
import os
import resource
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from bench.patch.recordings import bf16_of  # noqa: E402
from bench.patch.entropy import RESULTS, text_of  # noqa: E402

ROWS, WIDTH = 8192, 4096  # of a tensor: 64 MiB
STEP = 9.5e-6  # of the weights' deviation: about 1 % change
DISTINCT = 8  # tensors that differ; they repeat, which a code of one tensor cannot notice
SPARE = 4e9  # bytes of the disk that are left alone
PIECE = 16 << 20


def write_pair(old: Path, new: Path, tensors: int) -> float:
    """Share of words that differ."""
    tensor_bytes, header, at = 2 * ROWS * WIDTH, {}, 0
    for i in range(tensors):
        header[f"layers.{i}.weight"] = {"dtype": "BF16", "shape": [ROWS, WIDTH], "data_offsets": [at, at + tensor_bytes]}
        at += tensor_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random, size, changed = np.random.Generator(np.random.SFC64(1)), np.float32(0.02), 0
    with open(old, "wb") as a, open(new, "wb") as b:
        for file in (a, b):
            file.write(struct.pack("<Q", len(text)) + text)
        pieces = []
        for _ in range(min(tensors, DISTINCT) * 8):
            n = ROWS * WIDTH // 8
            master = random.standard_normal(n, np.float32) * size
            moved = random.standard_exponential(n, np.float32) * np.float32(STEP) * size
            before, after = bf16_of(master), bf16_of(master + np.copysign(moved, master[::-1]))
            changed += int(np.count_nonzero(before != after))
            pieces.append((before, after))
        for i in range(tensors * 8):
            a.write(pieces[i % len(pieces)][0].data)
            b.write(pieces[i % len(pieces)][1].data)
    return changed / (len(pieces) * n)


def drop(*paths: Path) -> None:
    """Their pages leave the page cache."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(path: Path) -> None:
    piece = bytearray(PIECE)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(piece):
            pass


def copy(source: Path, target: Path) -> None:
    """Copies by plain reads and writes to the disk: copy_file_range might share blocks."""
    piece = bytearray(PIECE)
    with open(source, "rb", buffering=0) as a, open(target, "wb", buffering=0) as b:
        while n := a.readinto(piece):
            b.write(memoryview(piece)[:n])
        os.fsync(b.fileno())


def run(words: List[str]) -> Tuple[float, float, int]:
    """Seconds, CPU seconds, and the largest RssAnon in bytes."""
    begin, peak, before = time.monotonic(), 0, resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = max([peak, *(int(row.split()[1]) << 10 for row in status.splitlines() if row.startswith("RssAnon"))])
        except (FileNotFoundError, ProcessLookupError):
            break
        time.sleep(0.02)
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{shlex.join(words)}: {errors}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - begin, cpu, peak


def digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def measure(folder: Path, tool: List[str], tensors: int) -> Dict[str, Any]:
    old, new, patch, out = (folder / name for name in ("old.safetensors", "new.safetensors", "patch", "out.safetensors"))
    changed = write_pair(old, new, tensors)
    drop(old, new)
    begin = time.monotonic()
    read(old)
    read(new)
    reading = time.monotonic() - begin
    begin = time.monotonic()
    copy(old, out)
    writing = time.monotonic() - begin
    out.unlink()
    drop(old, new)
    make_s, make_cpu_s, make_rss = run([*tool, "patch", str(old), str(new), "-o", str(patch)])
    apply_s, apply_cpu_s, apply_rss = run([*tool, "patch", "apply", str(old), str(patch), "-o", str(out)])
    if digest(out) != digest(new):
        raise AssertionError("the tool's result is not the new file")
    return {
        "file_bytes": old.stat().st_size,
        "changed": round(changed, 5),
        "patch_bytes": patch.stat().st_size,
        "reading_s": round(reading, 2),
        "writing_s": round(writing, 2),
        "reading_and_writing_s": round(reading + writing, 2),
        "make_s": round(make_s, 2),
        "make_cpu_s": round(make_cpu_s, 2),
        "make_rss": make_rss,
        "apply_s": round(apply_s, 2),
        "apply_cpu_s": round(apply_cpu_s, 2),
        "apply_rss": apply_rss,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="A patch of two large files by the tool.")
    parser.add_argument("--folder", type=Path, required=True, help="a folder on the disk that is measured")
    parser.add_argument("--gigabytes", type=float, default=4.3, help="of a file, at most what the disk takes")
    parser.add_argument("--tool", default=f"{sys.executable} -m deepreduce", help="the tool and its first words")
    parser.add_argument("--print", action="store_true", help="only prints; keeps nothing")
    arguments = parser.parse_args()
    max_bytes = (shutil.disk_usage(arguments.folder).free - SPARE) / 3.2  # two files, the result, the patch
    tensors = max(1, int(min(1e9 * arguments.gigabytes, max_bytes) / (2 * ROWS * WIDTH)))
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        made = {"commit": commit, "load": round(os.getloadavg()[0], 2), **measure(Path(folder), shlex.split(arguments.tool), tensors)}
    print(json.dumps(made, indent=1))
    if arguments.print:
        return
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(text_of({**saved, "large": made}))


if __name__ == "__main__":
    main()
