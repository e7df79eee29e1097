"""A script for GRACE with DeepReduce's published keys, unchanged but for the two lines above its imports of grace_dl.

    torchrun --nproc_per_node 2 train_deepreduce_keys.py         python -m deepreduce.grace.shim SCRIPT … needs no such lines
"""

import deepreduce.grace.shim

deepreduce.grace.shim.install()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from grace_dl.dist.compressor.deepreduce import deepreduce_from_params  # noqa: E402
from grace_dl.dist.helper import volume  # noqa: E402

dist.init_process_group("gloo")
rank = dist.get_rank()
params = {
    "compressor": "topk", "compress_ratio": 0.05, "memory": "residual", "communicator": "allgather", "world_size": dist.get_world_size(),
    "deepreduce": "both", "index": "bloom", "policy": "p0", "fpr": 0.001, "value": "qsgd", "quantum_num": 127, "bucket_size": 512,
}  # fmt: skip
grc = deepreduce_from_params(params)
torch.manual_seed(0)  # the same model and the same truth on every rank
model, truth = torch.nn.Linear(64, 256), torch.nn.Linear(64, 256)
torch.manual_seed(rank + 1)  # other samples on every rank
for step in range(150):
    x = torch.randn(64, 64)
    model.zero_grad()
    loss = (model(x) - truth(x)).square().mean()
    loss.backward()
    for name, parameter in model.named_parameters():
        parameter.data -= 10 * grc.step(parameter.grad.data, name)
    if step in (0, 149):
        print(f"rank {rank}, step {step}: loss {loss:.1e}, weights {model.weight.sum().item()!r}; {volume['compress'] / volume['nocompress']:.4f} of dense")
dist.destroy_process_group()
