"""Runs an example and writes the parameters of each of its replicas: EXAMPLE FOLDER are the arguments."""

import os
import pathlib
import runpy
import sys

import numpy as np

example, folder = map(pathlib.Path, sys.argv[1:])
sys.argv = [str(example)]
names = runpy.run_path(str(example), run_name="__main__")
if "jax" in example.stem:
    replicas = [np.asarray(shard.data) for shard in names["weights"].addressable_shards]
elif "keras" in example.stem:
    variables = [variable.value.values for variable in names["model"].trainable_variables]  # [variable][replica]
    replicas = [np.concatenate([copies[i].numpy().ravel() for copies in variables]) for i in range(2)]
else:
    model = names["trainer"].lightning_module if "trainer" in names else names["model"]
    replicas = [np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])]
for i, parameters in enumerate(replicas):
    np.save(folder / f"{os.environ.get('RANK', i)}.npy", parameters)
