"""deepreduce.torch: compressed gradients for torch.distributed. Imported on request, so that the package needs no torch.

    hook = deepreduce.torch.DDPHook("sparsify=topr(ratio=0.01) feedback=residual index=golomb value=log_quant")
    hook.register(ddp_model)                      # then train as ever

DDPHook        gradients of DistributedDataParallel
ReduceScatter  gradients of FSDP2 (fully_shard)
AllReduce      tensors of a loop without either; all_reduce does it once
load_checkpoint  residuals from a checkpoint of torch.distributed.checkpoint, by any number of ranks
state_for_new_rank  what a rank without a state loads, where a training goes on with more ranks
record         writes when a model's gradients become ready, for `deepreduce predict` and `plan`; Recording says more
MissingRank, ExchangeError  what a broken exchange raises on all ranks that are left; PeerError and CorruptFrame name
               the rank, too
OutOfStep      what all ranks raise where one is at another step, or did not complete a step that others did

Everything is on the caller's thread: encode, one asynchronous collective, and at the end of backward a wait with a
deadline and a merge in rank order. It is tested over gloo, on the CPU. Tensors on a CUDA device are copied to the CPU,
where frames are made, and back; over NCCL the frames travel between the devices (tested with one rank).
"""

from ..recording._model_times import Recording, record
from ._all_reduce import AllReduce, all_reduce
from ._checkpoint import load_checkpoint
from ._ddp import DDPHook, _hook
from ..errors import OutOfStep
from ._engine import ExchangeError, MissingRank, Stats, Step
from ._rules import OnePlan, Plans
from ._saved import state_for_new_rank
from ._shards import ReduceScatter

__all__ = [
    "AllReduce",
    "DDPHook",
    "ExchangeError",
    "MissingRank",
    "OnePlan",
    "OutOfStep",
    "Plans",
    "Recording",
    "ReduceScatter",
    "Stats",
    "Step",
    "all_reduce",
    "load_checkpoint",
    "record",
    "state_for_new_rank",
]

# Pickles (of a model with its hook, say) and tracebacks name where programs find them, not the file.
for _each in (AllReduce, DDPHook, _hook, ExchangeError, MissingRank, ReduceScatter, Stats, Step):
    _each.__module__ = __name__
del _each
