"""GB of f32 values a second of the codecs of examples/codecs, beside the built-in ones: one thread, in turns, medians of rounds, and
the quartiles of ours divided by theirs of the same round.

    python tests/python/language_speed.py
"""

import pathlib
import tempfile
import time
import warnings

import numpy

import deepreduce
from codec_operations import Codec, speeds
from deepreduce.language import build

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/codecs"
OPERATIONS = {"onebit": ("sign", {"scale": "means"}), "terngrad": ("ternary", {}), "qsgd": ("qsgd", {}), "natural": ("natural", {})}
CALLS = {  # whole calls: a built-in sparsifier has no operations of its own
    "tbq": ("(micro=2600)", "sparsify=threshold(value=0.0026) index=raw value=sign(scale=level,level=0.0026)"),
    "graddrop": ("(ratio=0.01)", "sparsify=topr(ratio=0.01) index=raw value=raw"),
    "dgc": ("(ratio=0.01)", "sparsify=dgc(ratio=0.01) index=raw value=raw"),
}


def main() -> None:
    warnings.simplefilter("ignore")
    x = numpy.random.default_rng(3).standard_normal(1 << 20).astype("f4") * numpy.float32(0.001)
    print(f"{'':10} {'built in':>8}        {'encode':>14} {'decode':>14}   GB/s, ours and built in; medians, quotients of a round with quartiles")
    with tempfile.TemporaryDirectory() as folder:
        for name in (*OPERATIONS, *CALLS):
            begin = time.perf_counter()
            deepreduce.load_plugin(build(EXAMPLES / f"{name}.drc", pathlib.Path(folder, f"{name}.so")))
            took = time.perf_counter() - begin
            if name in OPERATIONS:
                native, values = OPERATIONS[name]
                found = speeds({"ours": Codec(f"plugin.{name}"), "theirs": Codec(native, **values)}, x, 25)
            else:
                call, native = CALLS[name]
                found = calls({"ours": f"index=all value=plugin.{name}{call}", "theirs": native}, x)
            line = f"{name:10} {native.split('(')[0][-18:]:>18}"
            for ours, theirs in zip(found["ours"], found["theirs"]):
                low, middle, high = numpy.quantile(numpy.divide(ours, theirs), [0.25, 0.5, 0.75])
                line += f" {numpy.median(ours):6.2f} {numpy.median(theirs):6.2f} {middle:5.2f} ({low:.2f} to {high:.2f})"
            print(f"{line}   built in {took:.1f} s", flush=True)


def calls(plans, x):
    frames = {name: deepreduce.encode(x, plan, threads=1, step=1) for name, plan in plans.items()}
    found = {name: [[], []] for name in plans}
    for step in range(25):
        for name, plan in plans.items():
            begin = time.perf_counter()
            deepreduce.encode(x, plan, threads=1, step=step)
            found[name][0].append(x.nbytes / (time.perf_counter() - begin) / 1e9)
            begin = time.perf_counter()
            deepreduce.decode(frames[name], threads=1)
            found[name][1].append(x.nbytes / (time.perf_counter() - begin) / 1e9)
    return found


if __name__ == "__main__":
    main()
