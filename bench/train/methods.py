"""How gradients travel: torch's own ways, and plans.

A name here is the name in results and on the command line. `install` brings a method to a DDP module.
"""

from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from bench.train.grace_methods import KNOWN

TOP = "sparsify=topr(ratio={ratio}) "
ONE_BUCKET = 500  # MiB: torch's PowerSGD hook aborts or hangs on gloo if there are two
BLOOM = "index=bloom(policy={},fpr=0.001) "
WAIT = 60.0  # seconds that a rank waits for another


@dataclass(frozen=True)
class Method:
    """kind: local (no exchange: what a step takes without one), torch (its own), ours, paper (the codecs that
    DeepReduce's paper measured, in this library), grace (GRACE's list: grace_methods.py, which describes what scale and
    own_momentum are). plan: of all but torch's. rank: of torch's PowerSGD. frame_mb: MiB of a unit of ours. missing: why it cannot run. control: options of a controller, of which
    `ladder` are the plans."""

    title: str
    kind: str
    plan: Optional[str] = None
    missing: Optional[str] = None
    bucket_cap_mb: Optional[int] = None
    control: Optional[str] = None
    ladder: Sequence[Optional[str]] = ()
    scale: float = 1.0
    own_momentum: bool = False
    rank: int = 0
    frame_mb: Optional[float] = None


def planned(title: str, kind: str, codecs: str, ratio: str = "0.01", feedback: str = "feedback=residual ") -> Method:
    return Method(title, kind, TOP.format(ratio=ratio) + feedback + codecs)


def blocks(title: str, ratio: str) -> Method:
    """At 8 % the bytes of Top-1 % with log_quant."""
    sparsify = f"sparsify=blocks(ratio={ratio},block=16) feedback=residual "
    return Method(title, "ours", sparsify + "index=golomb(adaptive=1) value=lloyd(price=0.35)")


METHODS = {
    "local": Method("no exchange", "local"),
    "dense": Method("dense f32", "torch"),
    "fp16": Method("fp16", "torch"),
    "bf16": Method("bf16", "torch"),
    "powersgd1": Method("PowerSGD rank 1", "torch", bucket_cap_mb=ONE_BUCKET, rank=1),
    "top1": planned("Top-1 %, raw", "ours", "index=golomb value=raw"),
    "top1_log": planned("Top-1 %, log_quant", "ours", "index=golomb value=log_quant"),
    "top1_auto": planned("Top-1 %, auto(error=0.07)", "ours", "index=auto value=auto(error=0.07)"),
    "top5_log": planned("Top-5 %, log_quant", "ours", "index=golomb value=log_quant", "0.05"),
    "top10_log": planned("Top-10 %, log_quant", "ours", "index=golomb value=log_quant", "0.1"),
    "top01_log": planned("Top-0.1 %, log_quant", "ours", "index=golomb value=log_quant", "0.001"),
    "top1_lean": planned("Top-1 %, two magnitudes", "ours", "index=golomb(adaptive=1) value=lloyd(levels=2)"),
    "blocks": blocks("Blocks of 16, 8 %", "0.08"),
    "blocks_half": blocks("Blocks of 16, 4 %", "0.04"),
    "blocks_wide": blocks("Blocks of 16, 32 %", "0.32"),
    "p0": planned("Top-1 %, BF-P0", "paper", BLOOM.format("p0") + "value=raw"),
    "p2": planned("Top-1 %, BF-P2", "paper", BLOOM.format("p2") + "value=raw"),
    "fit_poly": planned("Top-1 %, Fit-Poly", "paper", "index=raw value=fit_poly"),
    "p0_qsgd": planned("Top-1 %, BF-P0 + QSGD", "paper", BLOOM.format("p0") + "value=qsgd"),
    "top1_momentum": Method(
        "Top-1 %, momentum-corrected", "ours", missing="it is the method dgc of --set methods"
    ),
}
METHODS.update(
    {
        f"{name}_none": Method(f"{m.title}, no residual", m.kind, m.plan.replace("feedback=residual ", ""))
        for name, m in list(METHODS.items())
        if m.plan and "ratio=0.01" in m.plan
    }
)
# What others are called by their names here has the same name there: top1 is GRACE's Top-k, no compression is `dense`.
METHODS.update(
    {
        name: Method(k.title, "grace", k.plan, scale=k.scale, own_momentum=k.own_momentum)
        for name, k in KNOWN.items()
        if name not in ("none", "half", "half_bf16", "topk")
    }
)
# Table 6 of the paper: nothing is selected, only the zeros of a recommender's gradient are left out. QSGD of 63 levels takes 7 bits a value.
METHODS.update(
    {
        f"zeros_{name}": Method(f"zeros left out, {title}", kind, f"sparsify=none {codecs}")
        for name, title, kind, codecs in (
            ("skcompress", "SKCompress of 2 buckets, no MinMaxSketch", "paper", "index=gap_huffman value=sketch(buckets=2)+huffman"),
            ("skcompress_256", "SKCompress of 256 buckets, no MinMaxSketch", "paper", "index=gap_huffman value=sketch(buckets=256)+huffman"),
            ("p0_qsgd", "BF-P0 + QSGD of 7 bits", "paper", "index=bloom(policy=p0,fpr=0.6) value=qsgd(levels=63)"),
            ("raw", "exact", "ours", "index=auto value=raw"),
            ("qsgd", "QSGD of 7 bits", "ours", "index=auto value=qsgd(levels=63)"),
            ("uniform", "uniform_quant(error=0.07)", "ours", "index=auto value=uniform_quant(error=0.07)"),
        )
    }
)
# Fig. 15 and 17 of the paper: policies of Bloom filters, by rates of false positives.
METHODS.update(
    {
        f"{picked}_{policy}_{rate}": Method(
            f"{title}, BF-{policy.upper()}, {rate}",
            "paper",
            f"sparsify={sparsify}(ratio=0.01) feedback=residual index=bloom(policy={policy},fpr={rate}) value=raw",
        )
        for picked, title, sparsify in (("top1", "Top-1 %", "topr"), ("random1", "Random-1 %", "random"))
        for policy in ("p0", "p1", "p2")
        for rate in ("0.02", "0.004", "0.001")
        if picked == "top1" or rate == "0.001"
    }
)
METHODS["random1"] = Method("Random-1 %, raw", "paper", "sparsify=random(ratio=0.01) feedback=residual index=golomb value=raw")
# Of bench/train/hook_steps.py and owner_steps.py.
DENSE_BITS = "index=all value=uniform_quant(bits={}) feedback=residual"
METHODS.update(
    {
        "dense_parts": Method("dense f32, buckets of 4 MiB", "torch", bucket_cap_mb=4),
        "powersgd2": Method("PowerSGD rank 2", "torch", bucket_cap_mb=ONE_BUCKET, rank=2),
        "powersgd4": Method("PowerSGD rank 4", "torch", bucket_cap_mb=ONE_BUCKET, rank=4),
        **{
            f"lowrank{rank}": Method(f"lowrank, rank {rank}", "ours", f"transform=lowrank(rank={rank}) feedback=residual")
            for rank in (1, 2, 4)
        },
        "bits8": Method("8 bits", "ours", DENSE_BITS.format(8)),
        "bits4": Method("4 bits", "ours", DENSE_BITS.format(4)),
        **{f"bits{bits}_owner": Method(f"{bits} bits, owner", "ours", DENSE_BITS.format(bits) + " exchange=owner") for bits in (8, 4)},
        "signs": Method("signs, two means (onebit)", "ours", "onebit"),
        "halves_plain": Method("bf16, ours", "ours", "index=all value=half(type=bf16)"),
        "halves": Method("bf16, ours, with a residual", "ours", "index=all value=half(type=bf16) feedback=residual"),
        **{
            f"{name}_{size}mb": Method(f"{title}, units and buckets of {size} MiB", "ours", plan, bucket_cap_mb=size, frame_mb=size)
            for name, title, plan in (
                ("top10", "Top-10 %", TOP.format(ratio="0.1") + "feedback=residual index=golomb value=log_quant"),
                ("bits8", "8 bits", DENSE_BITS.format(8)),
            )
            for size in (25, 8, 4, 2, 1)
        },
    }
)


def install(method: Method, module: DistributedDataParallel, seed: int, warm_up: int) -> Any:
    """Registers the method. warm_up: dense steps of PowerSGD, which its authors ask for, at least 2.

    Returns ours' DDPHook, else None.
    """
    if method.missing:
        raise RuntimeError(f"unsupported: {method.missing}")
    if method.plan or method.control:
        import deepreduce.torch

        if method.control:
            ladder = list(method.ladder)
            return deepreduce.torch.DDPHook(ladder, control=method.control, timeout=WAIT, seed=seed).register(module)

        unit = None if method.frame_mb is None else int(method.frame_mb * (1 << 20))
        return deepreduce.torch.DDPHook(method.plan, timeout=WAIT, seed=seed, frame_bytes=unit).register(module)
    if method.rank:
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=method.rank, start_powerSGD_iter=max(2, warm_up))
        module.register_comm_hook(state, one_bucket(powerSGD_hook.powerSGD_hook))
    elif method is METHODS["fp16"]:
        module.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif method is METHODS["bf16"]:
        module.register_comm_hook(None, bf16)
    elif method is METHODS["local"]:
        module.register_comm_hook(None, local)
    return None


# torch compares annotations as they are: none of them in quotes.
Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]


def bf16(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """torch's hook under another name: by its own it is refused on gloo, which can sum bf16 nevertheless."""
    return default_hooks.bf16_compress_hook(state, bucket)


def local(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def one_bucket(hook: Hook) -> Hook:
    def checked(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if not (bucket.index() == 0 and bucket.is_last()):
            raise RuntimeError(
                f"bucket {bucket.index()}: PowerSGD over gloo wants one bucket, bucket_cap_mb={ONE_BUCKET} gave more"
            )
        return hook(state, bucket)

    return checked
