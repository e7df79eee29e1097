"""What test_torch.py runs on several ranks: RANK RANKS STORE REPORT SUITE are the arguments of main().

Each rank runs the checks of a suite in turn (torch_checks_*.py) and appends to REPORT a line of json for each: its name
and, if it failed, the traceback. It ends with the first that fails, so that the others do not wait for it.
"""

import contextlib
import datetime
import json
import os
import pathlib
import sys
import time
import traceback

import numpy as np

BINDINGS = pathlib.Path(__file__).resolve().parents[2] / "bindings"
sys.path[:0] = [str(BINDINGS / "python"), str(BINDINGS / "grace")]
sys.dont_write_bytecode = True

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

from deepreduce.tensor import State  # noqa: E402

LOSSLESS = "index=golomb value=raw"
LOSSY = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=log_quant"
SUITES: dict = {}  # {name: {check: function}}
# The rank that is gone from this check of the suite "four" on.
GONE = {
    "a_rank_that_stops_is_named_by_all": 2,
    "a_rank_that_is_killed_is_named_by_all": 1,
    "the_rank_that_serves_the_store_is_named": 0,
}


def check(*suites):
    """Adds a function to these suites."""

    def add(function):
        for suite in suites:
            SUITES.setdefault(suite, {})[function.__name__] = function
        return function

    return add


# ---- Models and training ------------------------------------------------------------------------


def make_model(dtype=None):
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(20, 60),
        nn.ReLU(),
        nn.LayerNorm(60),
        nn.Linear(60, 50),
        nn.Tanh(),
        nn.Linear(50, 40),
        nn.Linear(40, 5),
    )
    return model if dtype is None else model.to(dtype)


def wrapped(model, hook, **options):
    """(DDP, hook). Units are about as large as DDP's buckets: several of each."""
    options.setdefault("bucket_cap_mb", 0.008)
    ddp = DDP(model, **options)
    if hook is not None:
        hook._frame_bytes = hook._frame_bytes or int(options["bucket_cap_mb"] * 2**20)
        assert hook.register(ddp) is hook
    return ddp


def steps_of(model, optimizer, first, last, dtype=None, fail_at=None):
    for step in range(first, last):
        torch.manual_seed(1000 * step + dist.get_rank())
        optimizer.zero_grad()
        x = torch.randn(8, 20).to(dtype or torch.float32)
        model(x).float().square().mean().backward()
        optimizer.step()


def train(hook, steps=8, kind="Adam", dtype=None, **options):
    ddp = wrapped(make_model(dtype), hook, **options)
    steps_of(ddp, getattr(torch.optim, kind)(ddp.parameters(), lr=0.01), 0, steps, dtype)
    return parameters_of(ddp)


def parameters_of(model):
    return torch.cat([parameter.detach().reshape(-1).float() for parameter in model.parameters()])


def same(a, b):
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def same_on_all_ranks(x):
    gathered = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, x)
    return all(same(x, other) for other in gathered)


@contextlib.contextmanager
def raises(kind, *words):
    """The error must be of exactly this kind, and have these words."""
    caught = []
    try:
        yield caught
    except Exception as error:
        assert type(error) is kind, f"{type(error).__name__}, not {kind.__name__}: {error}"
        assert all(word in str(error) for word in words), f"{words} in: {error}"
        caught.append(error)
        return
    raise AssertionError(f"no {kind.__name__} was raised")


def part_of(state):
    """The part of a state_dict that belongs to this rank."""
    return state[f"rank{dist.get_rank()}"]


def gradients(step, rank, sizes=(3000, 40, 500)):
    rng = np.random.default_rng([step, rank])
    return [torch.from_numpy(rng.laplace(size=size).astype(np.float32)) for size in sizes]


def factor_residual(reduce, name):
    """[d] the residual of a tensor that is sent as factors."""
    state = State._from_bytes(reduce._sender.read_state(name))
    return state.residual.copy() if state.memory.any() else np.zeros(reduce._elements(name), np.float32)


def residual_sum(reduce):
    """[d] over ranks, f64."""
    own = torch.cat([torch.from_numpy(state.residual.copy()) for state in reduce._states.values()]).double()
    dist.all_reduce(own)
    return own


# ---- Running them -------------------------------------------------------------------------------


def load_checks():
    """The order of a suite's checks is that of the files, and in them; those after which a rank is gone come last."""
    import torch_checks_auto  # noqa: F401
    import torch_checks_checkpoint  # noqa: F401
    import torch_checks_control  # noqa: F401
    import torch_checks_cuts  # noqa: F401
    import torch_checks_ddp  # noqa: F401
    import torch_checks_device  # noqa: F401
    import torch_checks_faults  # noqa: F401
    import torch_checks_figures  # noqa: F401
    import torch_checks_loops  # noqa: F401
    import torch_checks_memories  # noqa: F401
    import torch_checks_numbers  # noqa: F401
    import torch_checks_nonfinite  # noqa: F401
    import torch_checks_others  # noqa: F401
    import torch_checks_outer  # noqa: F401
    import torch_checks_owner  # noqa: F401
    import torch_checks_plans  # noqa: F401
    import torch_checks_record  # noqa: F401
    import torch_checks_recovery  # noqa: F401
    import torch_checks_sparse  # noqa: F401
    import torch_checks_transform  # noqa: F401

    for name in GONE:
        SUITES["four"][name] = SUITES["four"].pop(name)
    return SUITES


def main():
    rank, ranks = map(int, sys.argv[1:3])
    store, report, suite = sys.argv[3:]
    load_checks()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store, rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=60))
    with open(report, "a", buffering=1) as out:
        for name, function in SUITES[suite].items():
            begin = time.monotonic()
            try:
                value = function()
            except Exception:
                out.write(json.dumps({"check": name, "failed": traceback.format_exc()}) + "\n")
                os._exit(1)  # at once, so that the others see it
            out.write(json.dumps({"check": name, "skipped": value, "seconds": time.monotonic() - begin}) + "\n")
