"""JAX with compressed gradients, on two devices that one CPU plays.

XLA_FLAGS=--xla_force_host_platform_device_count=2 python train_jax.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

import deepreduce.jax

PLAN = "sparsify=topr(ratio=0.05) feedback=residual index=golomb value=log_quant"
optimizer = optax.chain(deepreduce.jax.compress(PLAN, "ranks"), optax.adam(0.01))  # the one line
weights = jax.random.normal(jax.random.key(0), (64, 64)) / 8
truth = jax.random.normal(jax.random.key(1), (64, 64)) / 8


def step(weights, state, x):  # of a rank: x is its own
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - x @ truth) ** 2))(weights)
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(weights, updates), state, loss[None]


state, all_ranks = optimizer.init(weights), PartitionSpec("ranks")
specs = PartitionSpec(), deepreduce.jax.specs(state, "ranks")
mesh = jax.make_mesh((jax.device_count(),), ("ranks",), axis_types=(jax.sharding.AxisType.Auto,))
run = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(*specs, all_ranks), out_specs=(*specs, all_ranks)))
for number in range(200):
    weights, state, losses = run(weights, state, jax.random.normal(jax.random.key(number + 2), (64, 64)))
    if number % 40 == 0 or number == 199:
        print(f"step {number}: loss {losses.mean():.4f}")
assert all((np.asarray(each.data) == np.asarray(weights)).all() for each in weights.addressable_shards)  # replicas are equal
