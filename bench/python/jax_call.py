"""What a call from JAX costs: an encode as deepreduce.jax does it (jax.ffi with a handler in Python), beside jax.pure_callback,
a handler in C++ over jax.ffi (jax_ffi.cpp), and numpy, alternating.

    jax_call.py [--rounds N] [--log2 N …]      needs jax, g++, and DEEPREDUCE_LIBRARY

The handler in C++ does not ship: it would have to be compiled against the headers of a jax.
"""

import argparse
import ctypes
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

import deepreduce
import deepreduce.jax

HERE = pathlib.Path(__file__).resolve().parent
PLAN = "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=log_quant"


def compiled(folder):
    """The handler's library."""
    library, made = pathlib.Path(os.environ["DEEPREDUCE_LIBRARY"]).resolve(), pathlib.Path(folder, "jax_ffi.so")
    include = [f"-I{HERE.parents[1] / 'include'}", f"-I{jax.ffi.include_dir()}"]
    words = ["g++", "-std=c++17", "-O2", "-w", "-fPIC", "-shared", *include, HERE / "jax_ffi.cpp", library, "-o", made]
    subprocess.run([*words, f"-Wl,-rpath,{library.parent}"], check=True)
    return ctypes.CDLL(str(made))


def by_handler(shim, elements, codec):
    shim.bench_codec.restype, shim.bench_codec.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_uint64]
    handle = shim.bench_codec(PLAN.encode(), elements)
    if not handle:
        raise SystemExit("the codec could not be made")
    shapes = [((codec.row_size,), jnp.uint8), ((codec.state_size,), jnp.uint8), ((), jnp.int32)]
    call = jax.ffi.ffi_call("bench_encode", [jax.ShapeDtypeStruct(*shape) for shape in shapes], input_output_aliases={1: 1})
    return lambda x, state, step: call(step, state, x, handle=np.int64(handle))


def by_callback(codec):
    pool = codec._pool

    def encode(x, state, step):
        row, states = np.empty(codec.row_size, np.uint8), np.array(state)
        return row, states, np.int32(sum(pool.encode([np.asarray(x)], row, states, int(step), 0)))

    shapes = [((codec.row_size,), jnp.uint8), ((codec.state_size,), jnp.uint8), ((), jnp.int32)]
    results = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    return lambda x, state, step: jax.pure_callback(encode, results, x, state, step, vmap_method="sequential")


def in_numpy(codec):
    pool, row, states = codec._pool, np.empty(codec.row_size, np.uint8), np.zeros(codec.state_size, np.uint8)

    def encode(x, state, step):
        pool.encode([x], row, states, step, 0)
        return row, states, None

    return encode


def measure(elements, rounds, shim):
    x = np.random.default_rng(0).laplace(size=elements).astype(np.float32)
    codec = deepreduce.jax.Codec(jnp.zeros(elements), PLAN, dense_below=0, flat=False)
    ways = {
        "numpy": in_numpy(codec),
        "deepreduce.jax": jax.jit(codec.encode, donate_argnums=1),
        "pure_callback": jax.jit(by_callback(codec), donate_argnums=1),
        "C++": jax.jit(by_handler(shim, elements, codec), donate_argnums=1),
    }
    inputs = {name: x if name == "numpy" else jnp.asarray(x) for name in ways}
    states, rows, times = {name: codec.init() for name in ways}, {}, {name: [] for name in ways}
    for number in range(rounds + 2):
        step = np.uint32(number)
        for name, way in ways.items():
            begin = time.perf_counter()
            row, states[name], _ = way(inputs[name], states[name], step if name != "numpy" else number)
            if name != "numpy":
                jax.block_until_ready((row, states[name]))
            times[name].append(time.perf_counter() - begin)
            rows[name] = np.array(row)
        decoded = [np.ravel(deepreduce.decode(rows[name]) if name == "C++" else codec.mean(rows[name][None], step)) for name in ways]
        assert all(np.array_equal(decoded[0], array) for array in decoded), "the frames differ"
    medians = {name: 1e6 * statistics.median(samples[2:]) for name, samples in times.items()}
    print(f"| {elements} | " + " | ".join(f"{medians[name]:.0f}" for name in ways) + " |", flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=30)
    arguments.add_argument("--log2", type=int, nargs="+", default=[10, 14, 17, 20, 23])
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shim = compiled(folder)
        jax.ffi.register_ffi_target("bench_encode", jax.ffi.pycapsule(shim.bench_encode), platform="cpu")
        print("| elements | numpy, µs | deepreduce.jax | pure_callback | C++ |\n|---:|---:|---:|---:|---:|")
        for power in chosen.log2:
            measure(2**power, chosen.rounds, shim)


if __name__ == "__main__":
    main()
