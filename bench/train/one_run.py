"""The two things that a rank does: train to the end (quality), and take turns between methods (times)."""

import gc
import hashlib
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.train.methods import METHODS, Method, install
from bench.train.task import Task, rate_factor, settings
from bench.train.wire_tap import Tap, device_bytes

CURVE = 30  # points of a loss curve
PROBES = 6  # frames of a run that are inspected
WARM_UP = 10  # dense steps before PowerSGD begins
PARTS = ("encode", "wait", "merge", "own")  # seconds, of the hook's stats


class Trainee:
    """One model in training by one method, on this rank. task: in the place of the model's own; rate: times the task's."""

    def __init__(
        self, name: str, method: str, seed: int, steps: int, warm_up: int = WARM_UP, task: Optional[Task] = None, rate: float = 1.0
    ) -> None:
        torch.manual_seed(seed)
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.task = task or settings()[name].build(seed)
        self.module = DistributedDataParallel(self.task.model(), bucket_cap_mb=METHODS[method].bucket_cap_mb)
        self.hook = install(METHODS[method], self.module, seed, warm_up)
        self.scale = METHODS[method].scale
        self.optimizer = self.task.optimizer(self.module)
        for group in self.optimizer.param_groups:
            group["lr"] *= rate
            group.update({"momentum": 0.0} if METHODS[method].own_momentum and "momentum" in group else {})
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: rate_factor(step, steps))
        torch.manual_seed(1000 * seed + self.rank)
        self.batches = self.task.batches(torch.Generator().manual_seed(1000 * seed + self.rank))
        self.tap = Tap(self.ranks)
        # Bytes a step of what torch sends without a hook: it does not pass the tap.
        self.unseen = 2 * (self.ranks - 1) / self.ranks * 4 * self.parameters if method in ("dense", "dense_parts") else 0.0

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.module.parameters())

    def train(self) -> "tuple[float, float]":
        """(loss of this rank's batch, seconds of the step)"""
        begin = time.perf_counter()
        loss = self.task.loss(self.module, next(self.batches))
        self.optimizer.zero_grad()
        with self.tap.open():
            loss.backward()
        if self.scale != 1:
            torch._foreach_mul_([p.grad for p in self.module.parameters() if p.grad is not None], self.scale)
        self.optimizer.step()
        self.schedule.step()
        self.tap.sent += self.unseen
        return loss.item(), time.perf_counter() - begin

    def error(self, steps: int) -> float:
        """The relative L2 error of the hook's means of some batches, added up, against the dense means of the ranks. The model stays as it is.
        What a residual keeps of one step comes with the next, so more steps have less of it."""
        batches = [next(self.batches) for _ in range(steps)]
        with self.module.no_sync():
            dense = self._added_gradients(batches)
        dist.all_reduce(dense)
        dense /= self.ranks
        return float((self._added_gradients(batches) - dense).norm() / dense.norm())

    def _added_gradients(self, batches: List[Any]) -> torch.Tensor:
        added = torch.zeros(self.parameters)
        for batch in batches:
            self.optimizer.zero_grad()
            self.task.loss(self.module, batch).backward()
            added += torch.cat([p.grad.flatten() for p in self.module.parameters() if p.grad is not None])
        return added

    @property
    def sent(self) -> float:
        """Bytes so far. (All-reduces of a hook of ours pass the tap by: it counts them itself.)"""
        return self.tap.sent if self.hook is None else float(self.hook.stats().total.sent)

    def hash(self) -> str:
        """The hash of the bits of all parameters."""
        whole = hashlib.sha256()
        for name, parameter in self.module.module.named_parameters():
            whole.update(name.encode() + parameter.detach().numpy().tobytes())
        return whole.hexdigest()

    @torch.no_grad()
    def score(self) -> "tuple[float, int]":
        for buffer in self.module.module.buffers():
            dist.broadcast(buffer, 0)  # running statistics are rank 0's, as DDP has it at each forward
        self.module.module.eval()
        return self.task.score(self.module.module, self.rank, self.ranks)


def quality(job: Dict[str, Any]) -> Dict[str, Any]:
    """Trains job["steps"] steps and judges the model."""
    steps = job["steps"]
    trainee = Trainee(job["model"], job["method"], job["seed"], steps)
    losses, seconds, sent, bits = [], [], [], []
    every = max(1, steps // PROBES)
    for step in range(steps):
        trainee.tap.keep = trainee.rank == 0 and (step + 1) % every == 0
        before = trainee.tap.sent
        loss, took = trainee.train()
        losses.append(loss)
        seconds.append(took)
        sent.append(trainee.tap.sent - before)
        found = trainee.tap.bits() if trainee.tap.keep else None
        if found:
            bits.append({"step": step + 1, **found})
    right, of = trainee.score()
    answer = {
        "hash": trainee.hash(),
        "right": right,
        "of": of,
        "loss": curve(losses),
        "bits": bits,
        "sent": round(statistics.fmean(sent[steps // 2 :])),
        "sent_in_all": round(sum(sent)),
        "step_ms": milliseconds(seconds),
    }
    if trainee.hook is not None:
        answer["hook"] = total_of(trainee.hook)
        if not answer["sent_in_all"]:  # factors of a transform pass the tap by: what the hook counts, of all steps
            answer.update(sent_in_all=round(answer["hook"]["sent"]), sent=round(answer["hook"]["sent"] / steps))
    return answer


def times(job: Dict[str, Any]) -> Dict[str, Any]:
    """Lets the methods take turns: rounds of steps, each method's after another's, in each round another one first.

    job["plans"]: {method: plan} of methods that have no name elsewhere.
    job["record"]: of this method's model when gradients become ready, too, on rank 0: docs/model.schema.json.
    job["check"]: steps of which the means are compared with dense ones, before any is timed.

    Returns {method: seconds, of each step of each round; sent: bytes a step; wire: those that the rank's network device counts, if it
    has one; parts: seconds of a step, its median; hash; error, if there was a check; of ours frame: bytes of frames, and repeats, of all
    these steps}
    """
    warm_up, rounds, steps = job["warm_up"], job["rounds"], job["steps"]
    METHODS.update({name: Method(name, "ours", plan) for name, plan in job.get("plans", {}).items()})
    trainees = {m: Trainee(job["model"], m, job["seed"], warm_up + rounds * steps, warm_up=2) for m in job["methods"]}
    listening = listen(trainees[job["record"]].module, job) if job.get("record") else None
    for trainee in trainees.values():
        for _ in range(warm_up):
            trainee.train()
    errors = {method: trainee.error(job["check"]) for method, trainee in trainees.items()} if job.get("check") else {}
    wire = dict.fromkeys(trainees, 0)
    sent = {method: trainee.sent for method, trainee in trainees.items()}
    before = {method: total_of(trainee.hook) for method, trainee in trainees.items() if trainee.hook is not None}
    seconds: Dict[str, List[List[float]]] = {method: [] for method in trainees}
    parts: Dict[str, List[Dict[str, float]]] = {method: [] for method in trainees}
    names = list(trainees)
    for number in range(rounds):
        first = number % len(names)
        for method in names[first:] + names[:first]:
            dist.barrier()
            begin = device_bytes()
            seconds[method].append([])
            for _ in range(steps):
                took = trainees[method].train()[1]
                seconds[method][-1].append(took)
                parts[method].append(parts_of_last(trainees[method].hook, took))
            dist.barrier()  # what other ranks still receive has left this one
            wire[method] += (device_bytes() or 0) - (begin or 0)
    answer = {
        method: {
            "seconds": seconds[method],
            "sent": round((trainee.sent - sent[method]) / (rounds * steps)),
            "parts": {k: statistics.median(part[k] for part in parts[method]) for k in parts[method][0]},
            "hash": trainee.hash(),
            **({"wire": round(wire[method] / (rounds * steps))} if wire[method] else {}),
            **({"error": errors[method]} if errors else {}),
        }
        for method, trainee in trainees.items()
    }
    for method, then in before.items():
        now = total_of(trainees[method].hook)
        answer[method].update({name: now[name] - then[name] for name in ("frame", "repeats")})
    if listening is not None:
        answer[job["record"]]["model"] = listening()
    return answer


def listen(module: DistributedDataParallel, job: Dict[str, Any]) -> Callable[[], Any]:
    """Begins to record. Returns a function that ends that and returns the model on rank 0."""
    import deepreduce.torch

    path = Path(tempfile.mkdtemp()) / "model.json"
    settings = deepreduce.torch.Recording(path, name=job["model"], steps=10**9, skip=job["warm_up"])
    recorder = deepreduce.torch.record(module, settings)

    def end() -> Any:
        recorder.finish()
        model = json.loads(path.read_text("utf-8")) if path.exists() else None
        shutil.rmtree(path.parent)
        return model

    return end


def total_of(hook: Any) -> Dict[str, float]:
    """Totals of all steps: bytes, elements, exchanges that were repeated, seconds."""
    return {name: getattr(hook.stats().total, name) for name in ("sent", "frame", "kept", "repeats", *PARTS)}


def parts_of_last(hook: Optional[Any], took: float) -> Dict[str, float]:
    """Seconds of the last step, by part; what they leave of the step is compute."""
    if hook is None:
        return {}
    last = hook.stats().last
    parts = {part: getattr(last, part) for part in PARTS}
    return {**parts, "compute": took - sum(parts.values())}


def curve(losses: List[float]) -> List[List[float]]:
    """[step, mean loss of the steps since the last point]"""
    size = max(1, len(losses) // CURVE)
    return [
        [i + len(losses[i : i + size]), round(statistics.fmean(losses[i : i + size]), 4)]
        for i in range(0, len(losses), size)
    ]


def milliseconds(seconds: List[float]) -> Dict[str, float]:
    """Median, 10th and 90th percentile; the first steps set memory up and are left out."""
    rest = sorted(seconds[min(3, len(seconds) - 1) :])
    at = lambda share: round(1e3 * rest[min(len(rest) - 1, int(share * len(rest)))], 3)
    return {"median": at(0.5), "p10": at(0.1), "p90": at(0.9)}


def forget() -> None:
    """Frees the models of a job: DDP is part of circles of references."""
    gc.collect()
