"""Federated averaging (McMahan et al. 2017) with both directions compressed: Algorithm 2 of Xu et al. 2021.

In a round the server sends its model to a few clients, each of which trains on its own data and sends back what has
changed; the server adds the mean, weighted by the clients' samples. All of it runs in one process, one client after
another, and only bytes pass between server and clients.

Two ways down. `difference`, the paper's: x_t - x_0, of which a client needs nothing but x_0, a seed. `update`: x_t less
what all clients have got, so that what one frame loses is in the next; a client that was left out catches up.
"""

import functools
import math
import statistics
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, TypeVar

import torch
from torch import nn
from torch.nn import functional as F

Tensors = List[torch.Tensor]
VECTOR = "index=all value=raw"  # tensors of one dimension are not compressed, as in the paper (6.2)


@dataclass(frozen=True)
class Wire:
    """up, down: plans, of up with its memory; None: float32 as it is. way: down, difference or update."""

    title: str
    up: Optional[str] = None
    down: Optional[str] = None
    way: str = "difference"


@dataclass(frozen=True)
class Setup:
    """rate: of the clients' SGD, batch: sequences, server_rate: eta, evaluate: rounds between two evaluations."""

    rounds: int
    clients: int
    epochs: int
    rate: float
    batch: int
    server_rate: float = 1.0
    evaluate: int = 5


T = TypeVar("T")


def timed(seconds: List[float], work: Callable[..., T], *arguments: Any) -> T:
    """What work returns; how long it took is appended."""
    begin = time.perf_counter()
    made = work(*arguments)
    seconds.append(time.perf_counter() - begin)
    return made


@dataclass
class Parcel:
    """What one side sends: a frame, or float32 tensors where there is no plan. size: bytes."""

    size: int
    frame: Optional[bytes] = None
    tensors: Optional[Tensors] = None


@dataclass
class Sender:
    """Packs one side's tensors, and keeps what a plan's memory has of them. rank: decides private random numbers.

    seconds: what each message took to encode.
    """

    plan: Optional[str]
    rank: int
    states: Any = field(default=None)
    seconds: List[float] = field(default_factory=list)

    def pack(self, tensors: Tensors, step: int) -> Parcel:
        return timed(self.seconds, self.encoded, tensors, step)

    def encoded(self, tensors: Tensors, step: int) -> Parcel:
        if self.plan is None:
            return Parcel(sum(4 * t.numel() for t in tensors), tensors=[t.clone() for t in tensors])
        import deepreduce

        plans = [self.plan if t.dim() > 1 else VECTOR for t in tensors]
        if self.states is None:
            self.states = deepreduce.State.of(tensors, plans)
        frame = deepreduce.encode(tensors, plans, state=self.states, step=step, private_seed=self.rank)
        return Parcel(len(frame), frame=frame)


def mean_of(parcels: Sequence[Parcel], weights: Sequence[float], like: Tensors) -> Tensors:
    """The weighted sum, in the order of the parcels."""
    if parcels[0].frame is not None:
        import deepreduce

        return list(deepreduce.merge([p.frame for p in parcels], weights=list(weights), like=like))
    sums = [torch.zeros_like(t) for t in like]
    for parcel, weight in zip(parcels, weights):
        for total, tensor in zip(sums, parcel.tensors or ()):
            total += weight * tensor
    return sums


def train_locally(
    model: nn.Module, start: Tensors, rows: torch.Tensor, setup: Setup, generator: torch.Generator
) -> Tuple[Tensors, float]:
    """(start less the model after `epochs` over rows [n, length + 1], mean loss)."""
    parameters = list(model.parameters())
    with torch.no_grad():
        for parameter, value in zip(parameters, start):
            parameter.copy_(value)
    total, steps = 0.0, 0
    for _ in range(setup.epochs):
        for chosen in torch.randperm(len(rows), generator=generator).split(setup.batch):
            loss = F.cross_entropy(model(rows[chosen, :-1]).flatten(0, 1), rows[chosen, 1:].flatten())
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                torch._foreach_sub_(parameters, gradients, alpha=setup.rate)
            total, steps = total + loss.item(), steps + 1
    return [s - p.detach() for s, p in zip(start, parameters)], total / steps


@torch.no_grad()
def judge(model: nn.Module, values: Tensors, rows: torch.Tensor) -> Dict[str, float]:
    """For the next word in rows [n, length + 1]: perplexity, exp of the mean cross entropy (inf: it diverged), and accuracy."""
    for parameter, value in zip(model.parameters(), values):
        parameter.copy_(value)
    entropy, right = 0.0, 0
    for part in rows.split(128):
        logits, words = model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten()
        entropy += F.cross_entropy(logits, words, reduction="sum").item()
        right += int((logits.argmax(-1) == words).sum())
    words_in_all = rows[:, 1:].numel()
    bits = entropy / words_in_all / math.log(2)
    return {"perplexity": 2.0**bits if bits < 1000 else math.inf, "accuracy": right / words_in_all}


def median_ms(seconds: Sequence[float]) -> float:
    return round(1e3 * statistics.median(seconds), 4)


def catch_up(frames: Sequence[int], seen: int, dense: int) -> int:
    """Bytes that bring a client up to date that has got the first `seen` frames of these sizes: the others, or the model."""
    return min(sum(frames[seen:]), dense)


class Server:
    """x: the model. shown: what clients start from."""

    def __init__(self, wire: Wire, first: Tensors) -> None:
        if wire.way not in ("difference", "update"):
            raise ValueError(f"way={wire.way!r}: neither 'difference' nor 'update'")
        self.wire, self.first = wire, first
        self.x = [t.clone() for t in first]
        self.shown = [t.clone() for t in first]
        self.sender = Sender(wire.down, rank=0)
        self.frames: List[int] = []  # sizes of what was sent down
        self.seen: Dict[int, int] = {}  # client: frames of these that it has
        self.dense = sum(4 * t.numel() for t in first)
        self.decode_seconds: List[float] = []  # of each message down, at a client

    def show(self, step: int, clients: Sequence[int]) -> int:
        """Sends the model to these clients. Returns bytes, of all of them."""
        base = self.first if self.wire.way == "difference" else self.shown
        parcel = self.sender.pack([x - b for x, b in zip(self.x, base)], step)
        mean = timed(self.decode_seconds, mean_of, [parcel], [1.0], self.x)
        self.shown = [b + t for b, t in zip(base, mean)]
        self.frames.append(parcel.size)
        if self.wire.way == "difference":
            return parcel.size * len(clients)
        sent = sum(catch_up(self.frames, self.seen.get(client, 0), self.dense) for client in clients)
        self.seen.update(dict.fromkeys(clients, len(self.frames)))
        return sent


@dataclass(frozen=True)
class Federation:
    """clients: of each its rows [n, length + 1]; held_out: rows of all clients; model() makes one."""

    clients: List[torch.Tensor]
    held_out: torch.Tensor
    model: Callable[[], nn.Module]


def run(federation: Federation, setup: Setup, wire: Wire, seed: int, tell: Callable[[str], None] = lambda _: None) -> Dict[str, Any]:
    """Trains setup.rounds rounds.

    Returns {curve: [{round, up, down, loss, perplexity, accuracy, at_clients, accuracy_at_clients}], …}: up and down are
    bytes since the beginning; at_clients is the perplexity of the model that clients got. volume_up and volume_down are those of a message
    over those of the model in float32, volume_caught_up has what clients had missed. ms: medians of a message; decode up is
    the server's, of one message of the sum.
    """
    torch.manual_seed(seed)
    model = federation.model()
    server = Server(wire, [p.detach().clone() for p in model.parameters()])
    sender = functools.cache(lambda client: Sender(wire.up, rank=1 + client))
    draw = torch.Generator().manual_seed(seed)
    up = down = messages = 0
    curve: List[Dict[str, Any]] = []
    merges: List[float] = []
    for number in range(1, setup.rounds + 1):
        chosen = torch.randperm(len(federation.clients), generator=draw)[: setup.clients].sort().values.tolist()
        down += server.show(number, chosen)
        parcels, losses = [], []
        for client in chosen:
            own = torch.Generator().manual_seed(hash((seed, number, client)) & 0x7FFFFFFF)
            changed, loss = train_locally(model, server.shown, federation.clients[client], setup, own)
            parcels.append(sender(client).pack(changed, number))
            losses.append(loss)
        sizes = [len(federation.clients[client]) for client in chosen]
        mean = timed(merges, mean_of, parcels, [n / sum(sizes) for n in sizes], server.x)
        server.x = [x - setup.server_rate * m for x, m in zip(server.x, mean)]
        up += sum(p.size for p in parcels)
        messages += len(parcels)
        if number % setup.evaluate == 0 or number == setup.rounds:
            seen = judge(model, server.shown, federation.held_out)
            at = {"round": number, "up": up, "down": down, "loss": sum(losses) / len(losses), **judge(model, server.x, federation.held_out)}
            curve.append({**at, "at_clients": seen["perplexity"], "accuracy_at_clients": seen["accuracy"]})
            tell(f"{wire.title}, seed {seed}, round {number}: perplexity {at['perplexity']:.1f}, {up:,} bytes up, {down:,} down")
    dense = server.dense
    return {
        "title": wire.title,
        "way": wire.way,
        "up_plan": wire.up,
        "down_plan": wire.down,
        "seed": seed,
        "parameters": dense // 4,
        "volume_up": up / messages / dense,
        "volume_down": sum(server.frames) / len(server.frames) / dense,
        "volume_caught_up": down / messages / dense,
        "ms": {
            "encode_up": median_ms([s for client in range(len(federation.clients)) for s in sender(client).seconds]),
            "decode_up": median_ms([seconds / setup.clients for seconds in merges]),
            "encode_down": median_ms(server.sender.seconds),
            "decode_down": median_ms(server.decode_seconds),
        },
        "curve": curve,
    }
