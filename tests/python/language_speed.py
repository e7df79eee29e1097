"""GB of f32 values a second of the codecs of examples/codecs, beside the built-in ones: one thread, in turns, the best of rounds.

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
    print(f"{'':10} {'built in':>8}        {'encode':>14} {'decode':>14}   GB/s, ours and built in")
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
            (e, d), (f, g) = found["ours"], found["theirs"]
            print(f"{name:10} {native.split('(')[0][-18:]:>18} {e:6.2f} {f:6.2f} {e / f:5.2f} {d:6.2f} {g:6.2f} {d / g:5.2f}   built in {took:.1f} s", flush=True)


def calls(plans, x):
    frames = {name: deepreduce.encode(x, plan, threads=1, step=1) for name, plan in plans.items()}
    best = {name: [0.0, 0.0] for name in plans}
    for step in range(25):
        for name, plan in plans.items():
            begin = time.perf_counter()
            deepreduce.encode(x, plan, threads=1, step=step)
            best[name][0] = max(best[name][0], x.nbytes / (time.perf_counter() - begin) / 1e9)
            begin = time.perf_counter()
            deepreduce.decode(frames[name], threads=1)
            best[name][1] = max(best[name][1], x.nbytes / (time.perf_counter() - begin) / 1e9)
    return best


if __name__ == "__main__":
    main()
