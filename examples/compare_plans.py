"""Bytes of a frame, and its relative L2 error against the dense gradient, for a few plans.

    python compare_plans.py [gradient.npy]
"""

import sys

import numpy as np

import deepreduce as dr

PLANS = (
    "sparsify=topr(ratio=0.01)",
    "sparsify=topr(ratio=0.01) index=golomb value=raw",
    "sparsify=topr(ratio=0.01) index=golomb value=log_quant",
    "sparsify=topr(ratio=0.05) index=golomb value=log_quant(bits=4)",
    "sparsify=blocks(ratio=0.08,block=16) index=golomb(adaptive=1) value=lloyd(price=0.35)",
)


def main() -> None:
    if len(sys.argv) > 1:
        gradient = np.load(sys.argv[1]).astype(np.float32).ravel()
    else:
        gradient = np.random.default_rng(1).standard_t(3, 250_000).astype(np.float32)
    norm = np.linalg.norm(gradient)
    print(f"{gradient.nbytes} bytes, dense")
    for plan in PLANS:
        frame = dr.encode(gradient, plan)
        error = np.linalg.norm(gradient - dr.decode(frame)) / norm
        print(f"{len(frame):>8} bytes  error {error:.3f}  {plan}")


main()
