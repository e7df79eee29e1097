"""The methods of GRACE (Xu et al. 2021, ICDCS) and their neighbours as plans, for bench/train and bench/methods.

A method's plan is whole: memory, sparsifier, codecs, merge. `codec_plan` is what is left of it for one call.
"""

from dataclasses import dataclass
from typing import Dict, Optional

MEMORY = ("feedback=", "merge=")  # stages that live between steps or ranks
RATIO = "ratio=0.01"  # of all sparsifiers, as in GRACE's headline figures
LEVEL = 0.002  # of TBQ: between the 99th and the 99.9th percentile of the bundled ResNet-20 gradients
SIGN_SCALE = 1e-3  # a sign has length 1: times the rate 0.1 of the vision tasks, over momentum 0.9, a step of 1e-3


@dataclass(frozen=True)
class Known:
    """title and paper; plan; scale: that gradients are multiplied by after the exchange, before the optimizer (Adam does
    not care); own_momentum: the plan's memory has the momentum, so that the optimizer's is turned off."""

    title: str
    paper: str
    plan: str
    scale: float = 1.0
    own_momentum: bool = False


KNOWN: Dict[str, Known] = {
    "none": Known("no compression", "", "index=all value=raw"),
    "half": Known("f16", "", "index=all value=half"),
    "half_bf16": Known("bf16", "", "index=all value=half(type=bf16)"),
    "8bit": Known("8-bit dynamic tree", "Dettmers 2015", "index=all value=dynamic_tree"),
    "onebit": Known("1-bit SGD", "Seide et al. 2014", "feedback=residual index=all value=sign(scale=means)"),
    "terngrad": Known("TernGrad", "Wen et al. 2017", "index=all value=ternary"),
    "qsgd": Known("QSGD, 127 levels", "Alistarh et al. 2017", "index=all value=qsgd"),
    "signsgd": Known("SignSGD, majority vote", "Bernstein et al. 2018", "index=all value=sign merge=vote", SIGN_SCALE),
    "signum": Known(
        "Signum, majority vote",
        "Bernstein et al. 2018",
        "feedback=momentum(beta=0.9) index=all value=sign merge=vote",
        10 * SIGN_SCALE,
        own_momentum=True,
    ),
    "efsignsgd": Known("EF-SignSGD", "Karimireddy et al. 2019", "feedback=efsignsgd index=all value=sign(scale=mean)"),
    "natural": Known("natural compression", "Horvath et al. 2019", "index=all value=natural"),
    "natural_nearest": Known("the same, to the nearest", "Horvath et al. 2019", "index=all value=natural(rounding=nearest)"),
    "inceptionn": Known("INCEPTIONN", "Li et al. 2018", "index=all value=inceptionn(classes=exponent)"),
    "inceptionn_bound": Known("the same, in a finer code", "Li et al. 2018", "index=all value=inceptionn"),
    "randomk": Known("Random-1 %", "Stich et al. 2018", f"index=seeded({RATIO}) feedback=residual value=raw"),
    "topk": Known("Top-1 %", "Aji and Heafield 2017", f"sparsify=topr({RATIO}) feedback=residual index=golomb value=raw"),
    "threshold": Known(
        "threshold", "Dutta et al. 2020", f"sparsify=threshold(value={LEVEL}) feedback=residual index=golomb value=raw"
    ),
    "dgc": Known(
        "DGC", "Lin et al. 2017", f"sparsify=dgc({RATIO}) feedback=dgc index=golomb value=raw", own_momentum=True
    ),
    "adaq": Known(
        "AdaQ", "Dryden et al. 2016", f"sparsify=adaq({RATIO}) feedback=residual index=golomb value=sign(scale=means)"
    ),
    "sketchml": Known("SketchML, 64 buckets", "Jiang et al. 2018", "index=all value=sketch(buckets=64)+huffman"),
    "three_lc": Known("3LC", "Lim et al. 2019", "feedback=residual index=all value=three_lc"),
    "tbq": Known(
        "TBQ",
        "Strom 2015",
        f"sparsify=threshold(value={LEVEL}) feedback=residual index=golomb value=sign(scale=level,level={LEVEL})",
    ),
    "graddrop": Known(
        "GradDrop",
        "Aji and Heafield 2017",
        f"sparsify=dgc({RATIO},sample=0.001,corrections=0) feedback=residual index=golomb value=raw",
    ),
    "powersgd4": Known("PowerSGD rank 4", "Vogels et al. 2019", "transform=lowrank(rank=4) feedback=residual"),
    "skcompress": Known(
        "SKCompress, no MinMaxSketch",
        "Jiang et al. 2020",
        f"sparsify=topr({RATIO}) feedback=residual index=gap_huffman value=sketch(buckets=2)+huffman",
    ),
}


def codec_plan(plan: str) -> str:
    """The plan without what lives between steps or ranks: what one encode does to one gradient."""
    return " ".join(stage for stage in plan.split() if not stage.startswith(MEMORY))


def missing_in_library(plan: str) -> Optional[str]:
    """Why this library cannot run a plan; None: it can."""
    import deepreduce

    try:
        deepreduce.Plan(plan)
    except deepreduce.ArgumentError as error:
        return str(error)
    return None
