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
    replicas = [np.asarray(each.data) for each in names["weights"].addressable_shards]
elif "keras" in example.stem:
    variables = [each.value.values for each in names["model"].trainable_variables]  # of each the replicas'
    replicas = [np.concatenate([each[i].numpy().ravel() for each in variables]) for i in range(2)]
else:
    model = names["trainer"].lightning_module if "trainer" in names else names["model"]
    replicas = [np.concatenate([each.detach().numpy().ravel() for each in model.parameters()])]
for i, parameters in enumerate(replicas):
    np.save(folder / f"{os.environ.get('RANK', i)}.npy", parameters)
