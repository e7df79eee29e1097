"""Ours by whole calls through the Python package: what is timed and verified."""

from typing import Any, Callable, Dict, List, Tuple

import numpy as np

import deepreduce

Run = Callable[[], Any]


class Prepared:
    """A plan's calls on one gradient [d] float32, in the two forms of the package: `encode` and `decode`, which allocate
    in every call, as torch's code does, and those of a Bound, which has its memory."""

    def __init__(self, x: np.ndarray, plan: str) -> None:
        self.x, self.plan = x, plan
        self.step = 0
        self.frame = self.encode()
        self.out = np.empty_like(x)
        batch = deepreduce.Batch(x, plan)
        self.bound = batch.bind(x, self.out)
        self.slot = np.empty(batch.bound, np.uint8)
        self.encode_bound()

    def next_step(self) -> int:
        """Random numbers are those of a step: each call has its own, as in training."""
        self.step += 1
        return self.step

    def encode(self) -> bytes:
        return deepreduce.encode(self.x, self.plan, step=self.next_step())

    def decode(self) -> np.ndarray:
        return deepreduce.decode(self.frame)

    def encode_bound(self) -> Any:
        return self.bound.encode(self.slot, step=self.next_step())

    def decode_bound(self) -> np.ndarray:
        return self.bound.decode(self.frame)

    def runs(self) -> Dict[Tuple[str, str], Run]:
        return {
            ("ours", "encode_ms"): self.encode,
            ("ours", "decode_ms"): self.decode,
            ("bound", "encode_ms"): self.encode_bound,
            ("bound", "decode_ms"): self.decode_bound,
        }


class PreparedRound:
    """A transform's whole round of one rank: begin, its factors, the result. It makes no frame, so it is not cut in two."""

    def __init__(self, tensors: List[np.ndarray], plan: str) -> None:
        from deepreduce.transform import Transform

        self.tensors, self.outs = tensors, [np.empty_like(tensor) for tensor in tensors]
        self.transform = Transform([tensor.shape for tensor in tensors], plan, seed=1)

    @property
    def size(self) -> int:
        """Bytes of its factors."""
        info = self.transform.info
        return 4 * (info.first + info.second)

    def run(self) -> List[np.ndarray]:
        self.transform.all_reduce(self.tensors, lambda factor: None, out=self.outs)
        return self.outs


def rounds_of(tensors: List[np.ndarray], plan: str, count: int) -> Tuple[int, np.ndarray]:
    """(bytes of a round, what a receiver has after `count` rounds of the same gradient, joined): a warm start needs some."""
    prepared = PreparedRound(tensors, plan)
    for _ in range(count):
        made = prepared.run()
    return prepared.size, np.concatenate([array.ravel() for array in made])


def draws(x: np.ndarray, plan: str, count: int) -> List[np.ndarray]:
    """What a receiver has of x, of each of `count` steps."""
    return [deepreduce.decode(deepreduce.encode(x, plan, step=step, private_seed=1)) for step in range(1, count + 1)]


def quality_of(x: np.ndarray, made: List[np.ndarray]) -> Dict[str, float]:
    """contraction: |x - C(x)|^2 / |x|^2, the mean. bias: |E C(x) - x|^2 / |x|^2, where the mean of n draws stands for E
    and the share that their variance has in it is taken off; not below 0. cosine: of x and C(x), the mean."""
    wide = x.astype(np.float64)
    energy = float(wide @ wide)
    n = len(made)
    off = [m - wide for m in made]
    mean = sum(made[1:], made[0].astype(np.float64)) / n
    away = float((mean - wide) @ (mean - wide))
    spread = sum(float((m - mean) @ (m - mean)) for m in made)
    norms = [float(np.sqrt(np.square(m, dtype=np.float64).sum())) for m in made]
    cosines = [float(m @ wide) / (norm * energy**0.5) if norm else 0.0 for m, norm in zip(made, norms)]
    return {
        "contraction": float(np.mean([float(o @ o) for o in off])) / energy,
        "bias": max(0.0, away - spread / (n * (n - 1)) if n > 1 else away) / energy,
        "cosine": float(np.mean(cosines)),
    }
