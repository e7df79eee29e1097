"""`deepreduce calibrate --link`: measures the costs of plans and the link between ranks, and writes one profile.

    mpiexec -n 4 deepreduce calibrate --link --overlap -o profile.json
    torchrun --nproc-per-node 4 -m deepreduce calibrate --link -o profile.json

Ranks may also be started by hand, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (gloo). Rank 0 writes the profile
(docs/profile.schema.json). The native tool measures costs on all ranks at the same time, because ranks that share cores
slow one another down in a training step, too. The profile has the medians over the ranks.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import pathlib
import statistics
import sys
import tempfile
from typing import Any, List, Optional, Sequence

from .._files._whole_file import whole_file
from .._native import _tool
from .._native._types import Json
from ..errors import ArgumentError, Error
from ._cost_fit import fit_affine
from ._link_costs import measure_link, measure_overlap
from ._rank_links import Ranks, of_environment

SCHEMA = "deepreduce-profile-1"
SIZES = tuple(1 << power for power in range(10, 25, 2))  # bytes: 1 KiB to 16 MiB


def needs_ranks(words: Sequence[str]) -> bool:
    """Whether the arguments need several ranks. Otherwise the native tool runs the command alone."""
    return any(word in ("--link", "--overlap") for word in words)


def main(arguments: Sequence[str]) -> int:
    """Runs `deepreduce calibrate --link …` and returns the exit status. Unknown options go to the native tool."""
    options, native = _parser().parse_known_args(list(arguments))
    if options.costs and native:
        raise ArgumentError(f"calibrate: {native[0]} has no effect: with --costs, costs are not measured")
    saved = read_profile(options.costs) if options.costs else None
    ranks = of_environment(os.environ)()
    done = False
    try:
        _measure(ranks, options, native, saved)
        done = True
    finally:  # after an error, too: a gloo thread that outlives the interpreter aborts the process
        ranks.close(done)
    return 0


def _measure(ranks: Ranks, options: argparse.Namespace, native: Sequence[str], saved: Optional[Json]) -> None:
    if ranks.ranks < 2:
        raise ArgumentError("calibrate: --link and --overlap need at least 2 ranks, and there is 1")
    refused = ranks.gather(_refusal(options.output) if ranks.rank == 0 else "")[0]
    if refused:
        raise ArgumentError(refused)
    profile = saved if saved is not None else measure_costs(ranks, native, options.alone)
    if options.link:
        add_link(profile, ranks, options.bytes, options.link_time)
    if options.overlap:
        profile["overlap"] = measure_overlap(ranks, 10 * options.link_time)
    if ranks.rank == 0:
        measured = {"costs": [] if options.costs else profile["costs"], "links": profile["links"][-1:] if options.link else []}
        note = disturbance(measured)
        if note:
            print(f"note: {note}", file=sys.stderr)
        write(profile, options.output)


def add_link(profile: Json, ranks: Ranks, sizes: Sequence[int] = SIZES, seconds: float = 0.5) -> None:
    """Measures the link and adds it to the profile. It replaces a link of the same transport and ranks."""
    link = measure_link(ranks, sizes, seconds)
    same = ("transport", "ranks", "ranks_per_host")
    others = [other for other in profile.get("links", []) if any(other.get(key) != link[key] for key in same)]
    profile["links"] = [*others, link]


def read_profile(path: str) -> Json:
    """Reads a profile. Raises ArgumentError if the file cannot be read or is not a profile."""
    try:
        profile = json.loads(pathlib.Path(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ArgumentError(f"{path}: not a profile: {error}") from None
    if not isinstance(profile, dict) or profile.get("schema") != SCHEMA:
        raise ArgumentError(f"{path}: not a profile: its schema is not {SCHEMA}")
    links = profile.get("links", [])
    if not isinstance(links, list) or not all(isinstance(link, dict) for link in links):
        raise ArgumentError(f"{path}: not a profile: its links are not a list of objects")
    return profile


def write(profile: Json, output: str) -> None:
    """Writes a profile, whole or not at all. output: a path, or "" for stdout. Raises ArgumentError if it cannot be written."""
    text = json.dumps(profile, indent=1) + "\n"
    if not output:
        sys.stdout.write(text)
        return
    try:
        with whole_file(output) as partial:
            partial.write_text(text, "utf-8")
    except OSError as error:
        raise ArgumentError(f"{output}: cannot be written: {error.strerror}") from None


def _refusal(output: str) -> str:
    """Why the output cannot be written, for a check before measuring; "": it probably can."""
    folder = os.path.dirname(output) or "."
    if os.path.exists(output) and not os.path.isfile(output) and not os.path.isdir(output):  # a device or a pipe
        return "" if os.access(output, os.W_OK) else f"{output}: cannot be written: {os.strerror(errno.EACCES)}"
    if not output or (os.access(folder, os.W_OK | os.X_OK) and not os.path.isdir(output)):
        return ""
    code = errno.EISDIR if os.path.isdir(output) else errno.EACCES if os.path.isdir(folder) else errno.ENOENT
    return f"{output}: cannot be written: {os.strerror(code)}"


def measure_costs(ranks: Ranks, native: Sequence[str], alone: bool = False) -> Json:
    """Measures a profile without links. All ranks measure at the same time, or rank 0 alone.

    native  options of the native tool

    Raises Error if the native tool fails on a rank.
    """
    result: Any = None  # a profile, or an error message
    ranks.barrier()
    if ranks.rank == 0 or not alone:
        try:
            result = _measured_by_the_tool(native, 1 if alone else ranks.ranks)
        except (Error, OSError) as error:  # as where there is no tool; the other ranks wait for the result
            result = str(error)
    results = [profile for profile in ranks.gather(result) if profile is not None]
    failures = [(rank, message) for rank, message in enumerate(results) if isinstance(message, str)]
    if failures:
        raise Error(f"calibrate: rank {failures[0][0]}: {failures[0][1].removeprefix('deepreduce: ')}")
    return pooled(results)


def _measured_by_the_tool(native: Sequence[str], ranks: int) -> Json:
    """A profile of this rank. Raises Error if the tool fails, LibraryError if there is none, OSError."""
    with tempfile.TemporaryDirectory(prefix="deepreduce-") as folder:
        output = os.path.join(folder, "profile.json")
        done = _tool.run_quietly(["calibrate", *native, "--ranks", str(ranks), "--output", output])
        if done.returncode:
            raise Error(done.stderr.decode(errors="replace").strip() or f"the tool exited with {done.returncode}")
        profile: Json = json.loads(pathlib.Path(output).read_text("utf-8"))
        return profile


def pooled(profiles: Sequence[Json]) -> Json:
    """The first profile, with each sample replaced by the median over all profiles, and with lines fitted to the medians."""
    profile = profiles[0]
    if len(profiles) == 1:
        return profile
    for i, entry in enumerate(profile["costs"]):
        samples = _medians([other["costs"][i]["samples"] for other in profiles])
        fit = fit_affine([(sample[0], sample[1]) for sample in samples])
        entry.update(samples=samples, floor_ns=fit.floor, base_ns=fit.base, per_element_ns=fit.per_unit, r2=fit.r2)
    return profile


def disturbance(profile: Json) -> str:
    """Signs in the measurements that other work disturbed them, in the words of the native tool; "": none."""
    fits = [(f"{cost['operation']} of '{cost['plan']}'", cost) for cost in profile["costs"]]
    for link in profile["links"]:
        fits += [(f"{name} of the link", fit) for name, fit in link.items() if isinstance(fit, dict) and "r2" in fit]
    samples = [(s[2] / s[1], f"{name}, {s[0]:.0f}") for name, fit in fits for s in fit["samples"] if s[1] > 0]
    poor = [(fit["r2"], name) for name, fit in fits if fit["r2"] < 0.9]
    wide = [sample for sample in samples if sample[0] > 0.3]
    words = []
    if poor:
        lowest = min(poor)
        words.append(f"r2 is below 0.9 of {len(poor)} of {len(fits)} fits (least {lowest[0]:.2f}: {lowest[1]})")
    if wide:
        widest = max(wide)
        words.append(
            f"quartiles are more than 30 % of the median apart in {len(wide)} of {len(samples)} samples"
            f" (most {100 * widest[0]:.0f} %: {widest[1]})"
        )
    return "; ".join(words) + ". A machine that does nothing else gives better costs" if words else ""


def _medians(lists: Sequence[List[List[float]]]) -> List[List[float]]:
    return [
        [same[0][0], *(statistics.median(sample[k] for sample in same) for k in range(1, len(same[0])))] for same in zip(*lists)
    ]


def _byte_sizes(text: str) -> List[int]:
    words = text.split(",")
    if not all(word.isdigit() and 4 <= int(word) <= 1 << 30 for word in words):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of bytes from 4 to {1 << 30}, such as 1024,65536")
    return sorted({(int(word) + 3) // 4 * 4 for word in words})


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time above 0 s and at most 3600 s")
    return seconds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deepreduce calibrate",
        usage="mpiexec -n N deepreduce calibrate --link [--overlap] [OPTIONS] [-o FILE]",
        description="Measures plans on all ranks at the same time, and the link between them. Under mpiexec (mpi4py), torchrun"
        " or with RANK and WORLD_SIZE (torch, gloo).",
        epilog="Other options are those of the native tool: `deepreduce help calibrate`.",
        allow_abbrev=False,
    )
    parser.add_argument("--link", action="store_true", help="latency, bandwidth, all-reduce and all-gather")
    parser.add_argument("--overlap", action="store_true", help="how much a backward pass slows while ranks communicate")
    parser.add_argument("--alone", action="store_true", help="costs of rank 0 while the others wait; default: all at once")
    parser.add_argument("--costs", metavar="FILE", help="take costs and other links from this profile, measure none")
    parser.add_argument(
        "--bytes", type=_byte_sizes, default=list(SIZES), metavar="N,N,…",
        help="of messages; default: 2^10, 2^12, … 2^24; sizes that take over 3 s end the list",
    )  # fmt: skip
    parser.add_argument(
        "--link-time", type=_seconds, default=0.5, metavar="SECONDS",
        help="of rounds for each operation and size, and a tenth of --overlap's; default: 0.5",
    )  # fmt: skip
    parser.add_argument("-o", "--output", default="", metavar="FILE", help="the profile; default: stdout")
    return parser
