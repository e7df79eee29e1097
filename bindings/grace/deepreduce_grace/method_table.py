"""GRACE's methods by name, and further ones. A method is a plan, or sends numbers that an all-reduce can add up."""

from __future__ import annotations

import dataclasses
import math
from typing import Callable, Dict, Tuple, Type

import torch

from deepreduce.errors import ArgumentError
from .addable import HalfCompressor, NoneCompressor, RandomKCompressor
from .compressors import EFSignCompressor, PlanCompressor, Sparsifier, VoteCompressor, count_of, require_ratio
from .contracts import Compressor, Options, Params
from .low_rank import PowerSGDCompressor


# The values of missing parameters: first GRACE's keys with its values, then ours.
DEFAULTS: Options = {
    "compressor": "none",
    "memory": "none",
    "communicator": "allreduce",
    "world_size": None,
    "compress_ratio": 0.3,
    "threshold": 0.01,
    "quantum_num": 127,
    "bucket_size": 128,
    "momentum": 0.9,
    "gradient_clipping": False,
    "lr": 0.1,
    "compress_rank": 1,
    "momentum_factor": 0.9,
    "quantiles": 64,
    "error_bound": 2e-10,
    "kernel": "torch",
    "beta": 1.0,
    "gamma": 1.0,
    "clip": 2.5,
    "sparsity": 1.0,
    "rounding": "stochastic",
    "plan": None,
    "seed": 0,
    "group": None,
    "rank": None,
    "sparsifier": "topk",
    "num_quantiles": 128,
}


@dataclasses.dataclass(frozen=True)
class Method:
    """source: paper and year; plan: the text of the plan, with keys of DEFAULTS in braces; kind, arguments: the class of the
    compressor and the arguments of its constructor."""

    source: str
    plan: str
    kind: Type[Compressor]
    arguments: Callable[[Params], Options]

    def make(self, params: Params) -> Compressor:
        return self.kind(**self.arguments(params))


def top_k(ratio: float) -> Callable[[int], str]:
    require_ratio(ratio)
    return lambda elements: f"topr(count={max(1, count_of(ratio, elements))})"


@dataclasses.dataclass(frozen=True)
class Threshold:
    """Selects magnitudes of at least `value`, never zeros. Their number depends on the tensor."""

    value: float

    def __call__(self, elements: int) -> str:
        return f"threshold(value={float(self.value)!r})"

    def count(self, flat: torch.Tensor) -> int:
        magnitudes = flat.abs()
        return int(((magnitudes >= self.value) & (magnitudes > 0)).sum())


def dgc(ratio: float) -> Callable[[int], str]:
    require_ratio(ratio)
    return lambda elements: f"dgc(ratio={float(ratio)!r})"


def gradient_dropping(ratio: float) -> Callable[[int], str]:
    require_ratio(ratio)
    return lambda elements: f"dgc(ratio={float(ratio)!r},sample=0.001,corrections=0)"


# name of a sparsifier -> a function of the parameters that returns a function for the stage `sparsify=`.
SPARSIFIERS: Dict[str, Callable[[Params], Callable[[int], str]]] = {
    "topk": lambda params: top_k(params["compress_ratio"]),
    "threshold": lambda params: Threshold(params["threshold"]),
    "dgc": lambda params: dgc(params["compress_ratio"]),
    "graddrop": lambda params: gradient_dropping(params["compress_ratio"]),
}


def _random(params: Params) -> Options:
    return {"seed": params["seed"], "group": params["group"]}


def _plan(source: str, plan: str, kind: Type[Compressor] = PlanCompressor, *more: str) -> Method:
    """A method whose plan depends on the parameters only. more: keys that are further arguments of `kind`"""
    return Method(
        source,
        plan,
        kind,
        lambda params: {"plan": plan.format(**params), **{key: params[key] for key in more}, **_random(params)},
    )


def _sparse(source: str, name: str, plan: str) -> Method:
    return Method(source, plan, Sparsifier, lambda params: {"sparsify": SPARSIFIERS[name](params), **_random(params)})


def _inceptionn(params: Params) -> Options:
    """GRACE uses int(log10(error_bound / 2)) as the bound's exponent of two: its 2e-10 is the paper's 2^-10."""
    bound = params["error_bound"]
    exponent = int(math.log10(bound / 2)) if 0 < bound < math.inf else 0
    if not -127 <= exponent <= -1:
        raise ArgumentError(
            f"error_bound is {bound!r}: GRACE reads it as 2^int(log10(error_bound / 2)), which must be from 2^-127 to 2^-1"
        )
    return {"plan": f"{_DENSE}inceptionn(error={2.0**exponent!r},classes=exponent)", **_random(params)}


def _given_plan(params: Params) -> Options:
    if params["plan"] is None:
        raise ArgumentError("compressor 'plan' reads the text of a plan from the key 'plan', which is missing")
    return {"plan": params["plan"], **_random(params)}


def _sk_compress(params: Params) -> Options:
    if params["sparsifier"] not in SPARSIFIERS:
        raise ArgumentError(f"no sparsifier is called {params['sparsifier']!r}; there are: {', '.join(SPARSIFIERS)}")
    return {
        "sparsify": SPARSIFIERS[params["sparsifier"]](params),
        "index": "gap_huffman",
        "value": f"sketch(buckets={params['num_quantiles']})+huffman",
        **_random(params),
    }


_DENSE = "index=all value="

METHODS: Dict[str, Method] = {
    "none": Method("", "index=all value=raw", NoneCompressor, lambda params: {}),
    "fp16": Method("", "index=all value=half", HalfCompressor, lambda params: {}),
    "bf16": Method(
        "", "index=all value=half(type=bf16)", HalfCompressor, lambda params: {"dtype": torch.bfloat16}
    ),
    "topk": _sparse(
        "Aji and Heafield 2017", "topk", "sparsify=topr(count=k) index=golomb value=raw, k = max(1, int(d * compress_ratio))"
    ),
    "threshold": _sparse("Aji and Heafield 2017; Strom 2015", "threshold", "sparsify=threshold(value={threshold}) index=golomb value=raw"),
    "randomk": Method(
        "Stich et al. 2018",
        "sparsify=random(count=k), values only",
        RandomKCompressor,
        lambda params: {"compress_ratio": params["compress_ratio"], "seed": params["seed"]},
    ),
    "dgc": _sparse("Lin et al. 2018", "dgc", "sparsify=dgc(ratio={compress_ratio}) index=golomb value=raw"),
    "graddrop": _sparse(
        "Aji and Heafield 2017", "graddrop", "sparsify=dgc(ratio={compress_ratio},sample=0.001,corrections=0) index=golomb value=raw"
    ),
    "adaq": _plan("Dryden et al. 2016", "sparsify=adaq(ratio={compress_ratio}) index=golomb value=sign(scale=means)"),
    "qsgd": _plan("Alistarh et al. 2017", _DENSE + "qsgd(levels={quantum_num},bucket={bucket_size})"),
    "terngrad": _plan("Wen et al. 2017", _DENSE + "ternary(clip={clip})"),
    "onebit": _plan("Seide et al. 2014", _DENSE + "sign(scale=means)"),
    "signsgd": _plan("Bernstein et al. 2018", _DENSE + "sign(scale=one)", VoteCompressor),
    "signum": _plan("Bernstein et al. 2018", "feedback=momentum(beta={momentum}) " + _DENSE + "sign(scale=one)", VoteCompressor),
    "efsignsgd": _plan("Karimireddy et al. 2019", _DENSE + "sign(scale=mean)", EFSignCompressor, "lr"),
    "natural": _plan("Horvath et al. 2019", _DENSE + "natural(rounding={rounding})"),
    "u8bit": _plan("Dettmers 2015", _DENSE + "dynamic_tree"),
    "sketch": _plan("Jiang et al. 2018 (SketchML)", _DENSE + "sketch(buckets={quantiles})+huffman"),
    "inceptionn": Method(
        "Li et al. 2018", _DENSE + "inceptionn(error=2^e,classes=exponent), e = int(log10(error_bound / 2))", PlanCompressor, _inceptionn
    ),
    "powersgd": Method("Vogels et al. 2019", "transform=lowrank(rank={compress_rank})", PowerSGDCompressor, lambda params: {"rank": params["compress_rank"], **_random(params)}),
    "3lc": _plan("Lim et al. 2019", _DENSE + "three_lc(sparsity={sparsity})"),
    "tbq": _plan("Strom 2015", "sparsify=threshold(value={threshold}) index=golomb value=sign(scale=level,level={threshold})"),
    "skcompress": Method("Jiang et al. 2020", "sparsify={sparsifier} index=gap_huffman value=sketch(buckets={num_quantiles})+huffman", Sparsifier, _sk_compress),
    "plan": Method("docs/PLANS.md", "{plan}", PlanCompressor, _given_plan),
}

# Other names of the same methods, mostly for kernels of GRACE: the library selects its kernels itself.
SYNONYMS: Dict[str, str] = {
    "natural_cuda": "natural",
    "qsgd_cuda": "qsgd",
    "8bit": "u8bit",
    "1bit": "onebit",
    "SKCompressCPU": "skcompress",
    "SKCompressGPU": "skcompress",
}

# GRACE's kernels of Top-k. All select exactly here; of equal magnitudes the lower index wins.
TOP_K_KERNELS: Tuple[str, ...] = ("torch", "cupy", "rdxtopk_cuda")
