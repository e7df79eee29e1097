"""Bytes of the paper's plans on Fig. 8's tensor and on a whole gradient of ResNet-20. Nothing is timed."""

from typing import Any, Dict, List

import numpy as np

from bench.train.task import ROOT

TOP = "sparsify=topr(ratio=0.01) "
BLOOM = "index=bloom(policy={},fpr=0.001) "
FIG_8 = {
    "Top-r": "index=raw value=raw",
    "Huffman (indices)": "index=raw+huffman value=raw",
    "RLE (indices)": "index=rle value=raw",
    "BF-P2 (indices)": BLOOM.format("p2") + "value=raw",
    "Deflate (values)": "index=raw value=raw+deflate",
    "QSGD (values)": "index=raw value=qsgd",
    "Fit-Poly (values)": "index=raw value=fit_poly",
    "Fit-DExp (values)": "index=raw value=fit_dexp",
    "BF-P2 + Fit-DExp": BLOOM.format("p2") + "value=fit_dexp",
    "BF-P2 + QSGD": BLOOM.format("p2") + "value=qsgd",
    "SKCompress": "index=gap_huffman value=sketch(buckets=2)+huffman",
    "Golomb (ours)": "index=golomb value=raw",
    "Golomb + log_quant (ours)": "index=golomb value=log_quant",
    "auto(error=0.07) (ours)": "index=auto value=auto(error=0.07)",
}
GRADIENT = "resnet20_digits_step0150"
FIG_15 = {
    "Top-r": "index=raw value=raw",
    "BF-P0": BLOOM.format("p0") + "value=raw",
    "BF-P1": BLOOM.format("p1") + "value=raw",
    "BF-P2": BLOOM.format("p2") + "value=raw",
    "Fit-Poly": "index=raw value=fit_poly",
    "BF-P0 + QSGD": BLOOM.format("p0") + "value=qsgd",
    "Golomb (ours)": "index=golomb(adaptive=1) value=raw",
    "auto(error=0.07) (ours)": "index=auto value=auto(error=0.07)",
}


def volume(x: np.ndarray, plan: str) -> Dict[str, float]:
    """Streams over the bytes of x in float32, as the paper counts; a frame has a header and a check, too."""
    import deepreduce

    frame = deepreduce.encode(x, plan, step=1)
    (tensor,) = deepreduce.inspect(frame).tensors
    parts = {part: getattr(tensor, f"{part}_size") / x.nbytes for part in ("index", "value", "order")}
    return {**parts, "total": sum(parts.values()), "frame": len(frame) / x.nbytes}


def median_of(rows: List[Dict[str, float]]) -> Dict[str, float]:
    return {key: float(np.median([row[key] for row in rows])) for key in rows[0]}


def laplace(seed: int) -> np.ndarray:
    """[36864], as large as the layer of Fig. 8."""
    return np.random.Generator(np.random.PCG64(seed)).laplace(size=36864).astype(np.float32)


def measure(seeds: int = 5) -> List[Dict[str, Any]]:
    """Rows of all figures; for Fig. 8 the median of the seeds."""
    tensors = [laplace(seed) for seed in range(1, seeds + 1)]
    rows: List[Dict[str, Any]] = []
    for name, plan in FIG_8.items():
        rows.append({"figure": 8, "name": name, "plan": plan, **median_of([volume(x, TOP + plan) for x in tensors])})
    with np.load(ROOT / "datasets" / "gradients" / f"{GRADIENT}.npz") as npz:
        whole = np.concatenate([npz[key].ravel() for key in npz.files if npz[key].dtype == np.float32])
    for name, plan in FIG_15.items():
        rows.append({"figure": 15, "name": name, "plan": plan, **volume(whole, TOP + plan)})
    return rows
