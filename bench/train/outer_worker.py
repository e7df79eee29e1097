"""What a rank does for bench/train/outer_loops.py: it makes workers of an outer loop, trains them some steps, times their exchanges."""

import hashlib
import time
from typing import Any, Dict, List

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.train import methods as ddp_methods
from bench.train.outer_methods import METHODS, WAIT, outer_of
from bench.train.outer_tasks import TASKS
from bench.train.task import WARM_UP, rate_factor


class Worker:
    """A model in training on this rank. steps: of the whole training, over which the inner rate falls to zero; None: it stays."""

    def __init__(self, job: Dict[str, Any]) -> None:
        torch.manual_seed(job["seed"])
        self.task, self.method = TASKS[job["task"]](), METHODS[job["method"]]
        self.rank, self.ranks, steps = dist.get_rank(), dist.get_world_size(), job["steps"]
        self.model = self.task.model()
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.module: torch.nn.Module = self.model
        self.outer: Any = None
        self.hook: Any = None
        if self.method.kind == "ddp":
            self.module = DistributedDataParallel(self.model)
            if self.method.plan == "bf16":
                self.module.register_comm_hook(None, ddp_methods.bf16)
            elif self.method.plan:
                import deepreduce.torch

                self.hook = deepreduce.torch.DDPHook(self.method.plan, timeout=WAIT, seed=job["seed"]).register(self.module)
        else:
            self.outer = outer_of(self.method, self.model, job["every"], job["seed"])
        self.inner = self.task.optimizer(self.model)
        factor = (lambda step: rate_factor(step, steps)) if steps else (lambda step: min(1.0, (step + 1) / WARM_UP))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.inner, factor)
        self.batches = self.task.batches(torch.Generator().manual_seed(1000 * job["seed"] + self.rank))
        self.steps = self.alone = 0

    def inner_step(self) -> None:
        self.inner.zero_grad()
        self.task.loss(self.module, next(self.batches)).backward()
        self.inner.step()
        self.schedule.step()
        self.steps += 1

    def train(self, steps: int, judge: int) -> List[List[float]]:
        """[step, loss of this rank's share of the held-out data], each `judge` steps"""
        curve = []
        for _ in range(steps):
            self.inner_step()
            if self.outer:
                self.outer.step()
            if self.steps % judge == 0:
                curve.append([self.steps, self.held_out()])
        return curve

    @torch.no_grad()
    def held_out(self) -> float:
        mine = slice(self.rank, None, self.ranks)
        return float(self.task.loss(self.model, (self.task.held_out[0][mine], self.task.held_out[1][mine])))

    def exchange(self) -> float:
        """Seconds of one exchange, with what encodes and merges. Of DDP: of a step, less those of one without exchange (of `own_step`)."""
        if self.outer:
            self.inner_step()
        dist.barrier()
        begin = time.perf_counter()
        if self.outer:
            self.outer.step()
        else:
            self.inner_step()
        return time.perf_counter() - begin

    def own_step(self) -> float:
        """Seconds of an inner step of all workers at once, without an exchange."""
        dist.barrier()
        begin = time.perf_counter()
        if self.outer:
            self.inner_step()
        else:
            with self.module.no_sync():
                self.inner_step()
            self.alone += 1
        return time.perf_counter() - begin

    def counts(self) -> Dict[str, float]:
        """So far. sent: bytes that the schedule has this rank send; frame: those of its contributions, uncompressed ones too; kept: elements
        in them."""
        if self.method.kind == "published":
            return {"sent": self.outer.sent, "frame": self.outer.frame, "kept": self.outer.elements}
        if self.method.kind == "ddp" and not self.hook:
            size = (2 if self.method.plan else 4) * self.parameters * (self.steps - self.alone)
            return {"sent": 2 * (self.ranks - 1) / self.ranks * size, "frame": size, "kept": self.parameters * (self.steps - self.alone)}
        total = (self.hook or self.outer._exchange._reduces[0]).stats().total
        found = {name: getattr(total, name) for name in ("sent", "frame", "kept", "encode", "merge")}
        if self.outer and not self.method.plan:  # all-reduced as it is: no frame
            rounds = self.outer.info.rounds
            found.update(frame=4 * self.parameters * rounds, kept=self.parameters * rounds)
        return found

    def hash(self) -> str:
        whole = hashlib.sha256()
        for parameter in self.model.parameters():
            whole.update(parameter.detach().numpy().tobytes())
        return whole.hexdigest()


_workers: Dict[str, Worker] = {}


def work(job: Dict[str, Any]) -> Dict[str, Any]:
    """job["do"]: make a worker named job["name"], train it job["steps"] steps, time its exchanges, drop it."""
    name = job["name"]
    if job["do"] == "make":
        _workers[name] = Worker(job)
        return {}
    worker = _workers[name]
    if job["do"] == "drop":
        del _workers[name]
        return {}
    if job["do"] == "train":
        begin = time.perf_counter()
        curve = worker.train(job["steps"], job["judge"])
        return {"curve": curve, "seconds": time.perf_counter() - begin, "hash": worker.hash(), **worker.counts()}
    before = worker.counts()
    own = [worker.own_step() for _ in range(job["rounds"])]
    seconds = [worker.exchange() for _ in range(job["rounds"])]
    now = worker.counts()
    return {"own": own, "seconds": seconds, "counts": {key: (now[key] - before[key]) / job["rounds"] for key in now}}
