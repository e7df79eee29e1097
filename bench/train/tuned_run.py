"""What a rank does for bench/train/tuned_rates.py: one training of the CNN on Fashion-MNIST at one rate, judged on the way."""

import math
import time
import warnings
from typing import Any, Dict, Iterator, List, Tuple

import deepreduce
import torch
import torch.distributed as dist
from torch.nn import functional as F

from bench.train import vision_tasks
from bench.train.methods import METHODS, TOP, Method
from bench.train.one_run import Trainee
from bench.train.task import Task, settings

BATCH = 128  # images, of all ranks
HELD_OUT = 5000  # of the images to learn from: they judge a rate, and are not learned from when one is chosen
RATIOS = (0.25, 0.0625, 0.015625, 0.01)
WARM = "top1_warm"
PROBES = 8  # batches whose gradients a residual is compared with

Images = Tuple[torch.Tensor, torch.Tensor]


def warm(steps: int) -> Method:
    """DGC's warm-up of the ratio (Lin et al. 2017): each ratio but the last one lasts so many steps."""
    ladder = [f"{TOP.format(ratio=ratio)}feedback=residual index=golomb value=log_quant" for ratio in RATIOS]
    return Method("Top-1 %, log_quant, warm-up of the ratio", "ours", control=f"steps(each={steps})", ladder=ladder)


def data(tuning: bool) -> Tuple[Images, Images]:
    """(to learn from, held out)"""
    images, labels, test_images, test_labels = vision_tasks.fashion()
    if not tuning:
        return (images, labels), (test_images, test_labels)
    return (images[:-HELD_OUT], labels[:-HELD_OUT]), (images[-HELD_OUT:], labels[-HELD_OUT:])


def epochs(images: torch.Tensor, labels: torch.Tensor, seed: int) -> Iterator[Images]:
    """This rank's half of each batch: every epoch has each image once, in an order that all ranks and methods share."""
    rank, ranks, generator = dist.get_rank(), dist.get_world_size(), torch.Generator().manual_seed(seed)
    while True:
        for chosen in torch.randperm(len(labels), generator=generator).split(BATCH):
            mine = chosen[rank::ranks]
            yield faster(images[mine]), labels[mine]


def faster(images: torch.Tensor) -> torch.Tensor:
    """The same images in the layout in which convolutions take two thirds of the time; weights and gradients stay as they are."""
    return images.to(memory_format=torch.channels_last)


@torch.no_grad()
def judged(trainee: Trainee, held_out: Images, count: int) -> List[float]:
    """[mean loss, share that is right] of the first `count` held-out images, all ranks together."""
    module, sums = trainee.module.module, torch.zeros(3, dtype=torch.float64)
    for buffer in module.buffers():
        dist.broadcast(buffer, 0)  # running statistics are rank 0's, as DDP has it at each forward
    module.eval()
    for x, y in zip(*(part[:count][trainee.rank :: trainee.ranks].split(256) for part in held_out)):
        out = module(faster(x))
        sums += torch.tensor([float(F.cross_entropy(out, y, reduction="sum")), float((out.argmax(-1) == y).sum()), len(y)])
    module.train()
    dist.all_reduce(sums)
    return [float(sums[0] / sums[2]), float(sums[1] / sums[2])]


def gradient_norm(trainee: Trainee) -> float:
    """Mean norm of this rank's own gradients of the next batches."""
    norms = []
    with trainee.module.no_sync():
        for _ in range(PROBES):
            trainee.optimizer.zero_grad()
            trainee.task.loss(trainee.module, next(trainee.batches)).backward()
            norms.append(math.hypot(*(float(p.grad.norm()) for p in trainee.module.parameters() if p.grad is not None)))
    return sum(norms) / len(norms)


def train(job: Dict[str, Any]) -> Dict[str, Any]:
    """job: method, rate (times the task's), seed, steps, epoch (its steps), tuning, judge (held-out images).

    Returns curve: [step, held-out loss, accuracy] at the start and each half epoch; sent: bytes of this rank in all; seconds and cpu, of the
    training alone; residual: its norm over that of a gradient, at the end; diverged: where, or nothing.
    """
    steps, epoch, name = job["steps"], job["epoch"], job["method"]
    METHODS[WARM] = warm(max(1, epoch // 4))
    learned, held_out = data(job["tuning"])
    setting = settings()["cnn"].build(job["seed"])
    task = Task(setting.model, setting.optimizer, lambda _: epochs(*learned, job["seed"]), setting.loss, setting.score)
    warnings.filterwarnings("ignore", message="Grad strides do not match")  # the first weight's, of one channel: they are the same numbers
    trainee = Trainee("cnn", name, job["seed"], steps, task=task, rate=job["rate"])
    points = {round(half * epoch / 2) for half in range(1, 2 * steps // epoch + 1)} | {steps}
    curve: List[List[float]] = [[0, *judged(trainee, held_out, job["judge"])]]
    answer: Dict[str, Any] = {"curve": curve}
    seconds = cpu = 0.0
    for step in range(1, steps + 1):
        begin, worked = time.perf_counter(), time.process_time()
        try:
            trainee.train()
        except deepreduce.PeerError:  # on all ranks: a gradient is not finite
            answer["diverged"] = step
            break
        seconds, cpu = seconds + time.perf_counter() - begin, cpu + time.process_time() - worked
        if step in points:
            loss, right = judged(trainee, held_out, job["judge"])
            if not math.isfinite(loss):
                answer["diverged"] = step
                break
            curve.append([step, round(loss, 6), right])
    answer.update(sent=round(trainee.sent), seconds=round(seconds, 3), cpu=round(cpu, 3), hash=trainee.hash())
    if trainee.hook is not None and "diverged" not in answer:
        answer["residual"] = round(float(trainee.hook.metrics()["residual_norm"]) / gradient_norm(trainee), 4)
    return answer
