"""Mutated texts of codecs: each is refused with a place, or becomes a source; of those some are compiled and judged as plug-ins are.

    python tests/python/language_fuzz.py --count 100000 --build 20
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Iterator, List

from deepreduce.language import LanguageError, source_of
from deepreduce.language import _build
from deepreduce.language._tiles import NoKernels

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/codecs"
TOKEN = re.compile(r'"[^"\n]*"|#[^\n]*|[a-z][a-z0-9_]*|[0-9.]+|\n[ ]*|<<|>>|<=|>=|==|!=|\.\.|\S')
EXPRESSIONS = """v abs(v) -v v^2 v^3 f64(v)^2 random() random_bits(8) random_bits(23) n type_max sum(v) sum(abs(v)) largest(v) smallest(v)
largest(abs(v)) count(v<0) floor(v) round(v) floor(v*1000) bits(v) bits(abs(v)) f32(f64(v)) to_type(v) power2(3) power2(floor(v)) sqrt(abs(v)) sqrt(v)
min(v,0.5) max(v,0) 1/v v/largest(abs(v)) 0/v n-1 n*n n*n*n 2^40 2^63 2^64 0 1 255 256 65536 0.1 1e30 1e300 -1 (v<0) (v==0) bit_width(n) 7 div 2 n div 3 n mod 7
if v < 0 then 1 else 2|v xor 1|floor(v) & 3|1 << 31|1 << 63|3 << (n mod 4)|kth_largest(abs(v), 3)|sum(v by bucket)|largest(v by bucket)|not v > 0|v*v*v*v"""
PIECES = [p for line in EXPRESSIONS.splitlines() for p in (line.split("|") if "|" in line else line.split(" "))]
WORDS = """codec wire param payload encode decode int real base pad by if then else or and not xor div mod require return f32 u1 u2 u4 u7 u8 u16 u31 u32
u(3) count position n v + - * / ^ & | << >> <= >= == != < > ( ) [ ] , : = .. 0 1 2 3 8 31 32 33 64""".split()  # fmt: skip


def texts() -> List[str]:
    return [path.read_text() for path in sorted(EXAMPLES.glob("*.drc"))]


def mutated(r: random.Random, seeds: List[str]) -> str:
    tokens = TOKEN.findall(r.choice(seeds))
    for _ in range(r.choice([1, 1, 1, 2, 2, 3, 5, 8])):
        at = r.randrange(len(tokens)) if tokens else 0
        kind = r.randrange(9)
        if not tokens:
            break
        if kind == 0:
            del tokens[at]
        elif kind == 1:
            tokens.insert(at, r.choice(WORDS))
        elif kind == 2:
            tokens[at] = r.choice(WORDS)
        elif kind == 3:
            tokens[at] = r.choice(tokens)
        elif kind == 4:  # an expression in place of a name or a number
            places = [i for i, t in enumerate(tokens) if re.fullmatch(r"[a-z0-9_.]+", t)]
            if places:
                tokens[r.choice(places)] = "(" + r.choice(PIECES) + ")"
        elif kind == 5:  # a number in place of a number
            places = [i for i, t in enumerate(tokens) if re.fullmatch(r"[0-9.]+", t) and t != ".."]
            if places:
                tokens[r.choice(places)] = str(r.choice([0, 1, 2, 3, 7, 16, 32, 63, 64, 255, 1000, 2**31, 2**32, 2**53, 2**63, 0.5, 1e-9]))
        elif kind == 6:  # a line twice, or another one
            lines = " ".join(tokens).split("\n")
            lines.insert(r.randrange(len(lines) + 1), r.choice(lines))
            tokens = TOKEN.findall("\n".join(lines))
        elif kind == 7:
            other = TOKEN.findall(r.choice(seeds))
            begin = r.randrange(len(other))
            tokens[at:at] = other[begin : begin + r.randrange(1, 12)]
        else:  # an operator in place of an operator
            places = [i for i, t in enumerate(tokens) if t in ("+", "-", "*", "/", "<", ">", "&", "|", "<<", ">>", "and", "or")]
            if places:
                tokens[r.choice(places)] = r.choice(["+", "-", "*", "/", "<", ">", "&", "|", "<<", ">>", "and", "or", "div", "mod", "xor", "=="])
    text = " ".join(tokens)
    if r.random() < 0.05:  # raw bytes, too
        at = r.randrange(len(text) + 1)
        text = text[:at] + r.choice("\0\t\r\"'%{}~$äЖ;\\@`!?A") + text[at + r.randrange(3) :]
    return text


def programs(count: int, seed: int) -> Iterator[str]:
    """Sources of the mutants that are codecs. An AssertionError, with the text, where the compiler does anything else than refuse."""
    r, seeds = random.Random(seed), texts()
    for _ in range(count):
        text = mutated(r, seeds)
        try:
            try:
                source = source_of(text, "mutant.drc", "fuzz", kernels=True)
            except NoKernels:
                source = source_of(text, "mutant.drc", "fuzz")
        except LanguageError as e:
            if not re.match(r"mutant\.drc:\d+:\d+: .", str(e)):
                raise AssertionError(f"an error without a place: {e}\n{text}") from e
            yield ""
        except Exception as e:
            raise AssertionError(f"{type(e).__name__}: {e}\n{text}") from e
        else:
            yield source


SANITIZED = ["-std=c++20", "-O1", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-Werror=return-type",
             "-fsanitize=undefined,float-cast-overflow", "-fsanitize-undefined-trap-on-error"]  # fmt: skip


def parts(folder: pathlib.Path) -> List[str]:
    """The library's own loops, compiled once."""
    root, made = _build.sources(), []
    for source in _build._SOURCES:
        made.append(str(folder / (pathlib.Path(source).stem + ".o")))
        subprocess.run([*_build.compiler(), "-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", f"-I{root}/include", f"-I{root}/lib", f"-I{root}",
                        "-c", str(root / source), "-o", made[-1]], check=True)  # fmt: skip
    return made


def judge(source: str, folder: pathlib.Path, objects: List[str], tool: str) -> str:
    """What is wrong with the plug-in of a source: compiled so that undefined behaviour ends it. "" if nothing is."""
    root = _build.sources()
    (folder / "mutant.cpp").write_text(source)
    command = [*_build.compiler(), *SANITIZED, f"-I{root}/include", f"-I{root}/lib", f"-I{root}"]
    command += [str(folder / "mutant.cpp"), *objects, "-o", str(folder / "mutant.so")]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        return "not C++:\n" + made.stderr[:2000]
    done = subprocess.run([tool, "test-plugin", str(folder / "mutant.so"), "--seconds", "0"], capture_output=True, text=True, check=False)
    # An encoder that refuses values, by a range or a requirement of its text, is an honest one.
    failures = re.findall(r"FAILED (?:.*\n){2}", done.stdout)
    honest = failures and all("ARGUMENT: " in f or "encode rejects all inputs" in f for f in failures)
    if done.returncode != 0 and not (done.returncode == 1 and honest):
        return done.stdout[-3000:] + done.stderr[-300:]
    if "device_operations" not in source:
        return ""
    name = re.findall(r'make_codec\("(\w+)"', source)[0]
    lanes = [sys.executable, "-m", "deepreduce.language._lanes", str(folder / "mutant.so"), name]
    done = subprocess.run(lanes, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout[-3000:] + done.stderr[-1000:] + f" (exit {done.returncode})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--build", type=int, default=0, help="how many of the codecs are compiled and judged")
    options = parser.parse_args()
    sources, refused = set(), 0
    for source in programs(options.count, options.seed):
        refused += not source
        if source:
            sources.add(source)
    print(f"{options.count} texts: {refused} refused, {len(sources)} different codecs", flush=True)
    chosen = random.Random(options.seed).sample(sorted(sources), min(options.build, len(sources)))
    bad = 0
    tool = os.environ["DEEPREDUCE_TOOL"] if chosen else ""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="deepreduce-"))
    objects = parts(folder) if chosen else []
    for k, source in enumerate(chosen):
        wrong = judge(source, folder, objects, tool)
        if wrong:
            bad += 1
            saved = pathlib.Path(tempfile.gettempdir(), f"mutant-{options.seed}-{k}.cpp")
            saved.write_text(source)
            print(f"{saved}: {wrong}", flush=True)
    shutil.rmtree(folder)
    print(f"{len(chosen)} built, {bad} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
