"""What test_torchft.py runs as a replica: REPLICA REPLICAS FOLDER {scenario: address of its lighthouse, …} as JSON. Writes
SCENARIO.REPLICA.json to the folder after each scenario."""

import json
import logging
import os
import pathlib
import signal
import sys
import time
import uuid
from datetime import timedelta
from typing import Any, Dict, Tuple

import torch
import torchft.local_sgd
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo

import deepreduce.outer.torchft
from deepreduce.outer._contribution import overhead

REPLICA, REPLICAS, FOLDER = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
EXACT = "index=all value=raw"
SPARSE = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=lloyd(levels=4)"
EVERY, DATA = 6, 20
logging.getLogger("torchft").setLevel(logging.CRITICAL)


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(DATA, 80), torch.nn.Tanh(), torch.nn.Linear(80, DATA))


def wait_for_all(name):
    (FOLDER / f"{name}.{REPLICA}.ready").touch()
    while len(list(FOLDER.glob(f"{name}.*.ready"))) < REPLICAS:
        time.sleep(0.05)


class Record:
    """What a replica's channel did in committed rounds: pseudo-gradients, and what its own contributions decode to."""

    def __init__(self, channel):
        self.channel, self.moved, self.applied = channel, {}, {}
        self.encode, self.commit, self.report = channel._encode, channel.should_commit, channel._manager.report_error
        channel._encode, channel.should_commit, channel._manager.report_error = self._encode, self._should_commit, self._report
        self.waiting, self.commits, self.errors = {}, [], []

    def _encode(self, fragment, number, tensors):
        message = self.encode(fragment, number, tensors)
        self.waiting = {}
        try:
            slots = deepreduce.outer.torchft.unpack(message, "", number, "", 0).slots
        except deepreduce.Error:  # (it says that it is not finite)
            return message
        coder = self.channel._coders[fragment]
        decoded = {name: torch.from_numpy(array.copy()) for name, array in coder.merge([slots], number).items()}
        self.waiting = {number: ({name: tensor.clone() for name, tensor in tensors.items()}, decoded)}
        return message

    def _report(self, error):
        self.errors.append(f"{type(error).__name__}: {error}")
        self.report(error)

    def _should_commit(self, timeout=None):
        committed = self.commit(timeout)
        self.commits.append(committed)
        if committed:
            self.settle()
        return committed

    def settle(self):
        for moved, decoded in self.waiting.values():
            for sums, tensors in ((self.moved, moved), (self.applied, decoded)):
                for name, tensor in tensors.items():
                    sums[name] = sums.get(name, 0) + tensor.double()
        self.waiting = {}

    def missing(self, residuals):
        """The largest difference between all pseudo-gradients, and what was applied of them plus the residual."""
        states = {name: state for saved in residuals.values() for name, state in saved["states"].items()}
        differences = []
        for name, moved in self.moved.items():
            # (The residual is behind a header of 16 bytes.)
            left = states[name][16:].view(torch.float32).reshape(moved.shape) if name in states else 0
            differences.append((moved - self.applied[name] - left).abs().max().item())
        return max(differences)


def train(name, address, plan, rounds, *, fragments=1, ours=True, before=lambda diloco, record: None, at_step=lambda at, m, diloco: None, max_retries=5, **options):
    net, store = model(), TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    inner = torch.optim.SGD(net.parameters(), lr=0.2)
    parts = [net] if fragments == 1 else [net[0], net[2]]
    outer = [torch.optim.SGD(part.parameters(), lr=1.0) for part in parts]

    def load(state):
        net.load_state_dict(state["model"])
        inner.load_state_dict(state["inner"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)), load_state_dict=load, min_replica_size=1, use_async_quorum=False,
        state_dict=lambda: {"model": net.state_dict(), "inner": inner.state_dict()}, timeout=timedelta(seconds=10),
        quorum_timeout=timedelta(seconds=30), rank=0, world_size=1, store_addr="127.0.0.1", store_port=store.port,
        lighthouse_addr=address, replica_id=f"replica_{REPLICA}", hostname="127.0.0.1", max_retries=max_retries,
        init_sync=False,  # (all begin with the same weights; which replica would give its own to the others is a matter of timing)
    )  # fmt: skip
    wait_for_all(name)
    kind, words = (deepreduce.outer.torchft.DiLoCo, {"plan": plan}) if ours else (torchft.local_sgd.DiLoCo, {})
    diloco = kind(manager, parts, inner, outer, EVERY, **words, **options)
    record = Record(diloco._channel) if ours else None
    before(diloco, record)
    losses, steps, raised = [], 0, ""
    try:
        with diloco:
            while manager.current_step() < rounds:
                at_step(manager.current_step(), net, diloco)
                x = torch.randn(8, DATA, generator=torch.Generator().manual_seed(1000 * REPLICA + steps))
                inner.zero_grad()
                loss = (net(x) - x).square().mean()
                loss.backward()
                inner.step()
                losses.append(loss.item())
                steps += 1
    except RuntimeError as error:
        raised = str(error)
    found = {"weights": torch.cat([tensor.reshape(-1) for tensor in net.parameters()]).tolist(), "losses": losses, "raised": raised}
    if ours:
        found.update(sent=diloco.sent, received=diloco.received, last=diloco.last and diloco.last._asdict(), commits=record.commits, errors=record.errors)
        saved = diloco.residuals()
        found["missing"] = record.missing(saved) if record.moved else None
        torch.save(saved, FOLDER / f"{name}.{REPLICA}.pt")
        diloco.load_residuals(torch.load(FOLDER / f"{name}.{REPLICA}.pt"))
        again = diloco.residuals()
        found["same"] = all(
            torch.equal(state, saved[i]["states"][key]) for i in again for key, state in again[i]["states"].items()
        )
    (FOLDER / f"{name}.{REPLICA}.json").write_text(json.dumps(found))
    manager.shutdown(wait=False)
    return found


def nan_in_round_two(at, net, diloco):
    if at == 2 and REPLICA == 1:
        with torch.no_grad():
            net[0].weight[0, 0] = float("nan")


def fail_to_merge_round_two(diloco, record):
    """On replica 1: the others commit the round, and it recovers from them."""
    channel, merge = diloco._channel, diloco._channel._merge

    def failing(fragment, number, received):
        if number == 2 and REPLICA == 1 and not record.channel.__dict__.get("failed"):
            channel.failed = True
            record.settle()  # the others apply it
            raise deepreduce.Error("a fault for the test")
        return merge(fragment, number, received)

    channel._merge = failing


def when_undecided(do):
    """As fail_to_merge_round_two. Replica 1 does something before it recovers."""

    def before(diloco, record):
        fail_to_merge_round_two(diloco, record)
        channel, commit = diloco._channel, diloco._channel.should_commit

        def committing(timeout=None):
            committed = commit(timeout)
            if not committed and REPLICA == 1:
                do(diloco)
            return committed

        channel.should_commit = committing

    return before


def restart(diloco):
    """What a replica does that was started again with its residuals."""
    torch.save(diloco.residuals(), FOLDER / "restart.pt")
    channel = diloco._channel
    for coder in channel._coders:
        coder.sender.scale(0.0)
    channel._id, channel._serial = uuid.uuid4().hex, 0
    channel._pending = [None for _ in channel._coders]
    diloco.load_residuals(torch.load(FOLDER / "restart.pt"))


def announce_other_sizes(diloco, record):
    """On replica 1: more bytes than the plan allows, then fewer than none."""
    channel, gather = diloco._channel, diloco._channel._gather
    bound = channel._coders[0].max_bytes + overhead(channel._coders[0].units, 0)
    forged = iter((bound + 1, -1))

    def forging(tensor, size):
        if tensor.dtype == torch.int64 and REPLICA == 1:
            tensor[0] = next(forged, tensor[0])
        return gather(tensor, size)

    channel._gather = forging


def overflow_in_round_two(diloco, record):
    """On replica 1: the sum of the residual and what was moved."""
    coder = diloco._channel._coders[0]
    encode, done = coder.encode, []

    def overflowing(tensors, number, private_seed):
        if number == 2 and REPLICA == 1 and not done:
            done.append(number)
            state = coder.sender.state_dict()
            state["states"]["0.0.weight"][16:].view("float32")[7] = float("inf")
            coder.sender.load_state_dict(state)
        return encode(tensors, number, private_seed)

    coder.encode = overflowing


def wait_for_the_killed_one(at, net, diloco):
    if "again" in sys.argv:
        (FOLDER / "again").touch()
    while at == 4 and not (FOLDER / "again").exists():
        time.sleep(0.05)


def die_in_round_two(diloco, record):
    """The last replica, after its first gather: the others have heard of its contribution, and wait for it."""
    channel, gather = diloco._channel, diloco._channel._gather

    def dying(tensor, size):
        if tensor.dtype == torch.uint8 and channel._number == 2 and REPLICA == REPLICAS - 1 and "again" not in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        return gather(tensor, size)

    channel._gather = dying


SCENARIOS: Dict[str, Tuple[Any, int, Dict[str, Any]]] = {  # plan, rounds, options of train
    "torchft": (None, 6, {"fragments": 2, "ours": False, "fragment_sync_delay": 1}),
    "exact": (EXACT, 6, {"fragments": 2, "fragment_sync_delay": 1}),
    "dense": (None, 6, {"fragments": 2, "fragment_sync_delay": 1}),
    "sparse": (SPARSE, 8, {}),
    "nan": (SPARSE, 4, {"at_step": nan_in_round_two}),
    "unmerged": (SPARSE, 5, {"before": fail_to_merge_round_two}),
    "saved": (SPARSE, 5, {"before": when_undecided(deepreduce.outer.torchft.DiLoCo.residuals)}),
    "restarted": (SPARSE, 5, {"before": when_undecided(restart)}),
    "sizes": (SPARSE, 2, {"before": announce_other_sizes}),
    "overflow": (SPARSE, 5, {"before": overflow_in_round_two}),
    "plans": (SPARSE if REPLICA else EXACT, 1, {"max_retries": 1}),
    "killed": (SPARSE, 8, {"before": die_in_round_two, "at_step": wait_for_the_killed_one}),
}

if __name__ == "__main__":
    for scenario, address in json.loads(sys.argv[4]).items():
        plan, rounds, options = SCENARIOS[scenario]
        train(scenario, address, plan, rounds, **options)
    os._exit(0)  # (torchft's threads do not end by themselves)
