"""Flower with models that travel compressed, down and up: three clients and the server in one process, without a network."""

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import deepreduce.flower

PLAN = "sparsify=topr(ratio=0.1) index=golomb value=log_quant"
app = ClientApp(mods=[deepreduce.flower.mod])  # the client's line
strategy = deepreduce.flower.Compressed(FedAvg(fraction_evaluate=0), up=PLAN + " feedback=residual", down=PLAN)  # the server's
truth = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)


@app.train()
def train(message, context):  # one step on the client's own data
    w = message.content["arrays"].to_numpy_ndarrays()[0]
    x = np.random.default_rng(context.node_id).standard_normal((256, 64)).astype(np.float32)
    w -= 0.2 * x.T @ (x @ (w - truth)) / len(x)
    metrics = MetricRecord({"num-examples": len(x), "loss": float(np.mean((w - truth) ** 2))})
    return Message(RecordDict({"arrays": ArrayRecord([w]), "metrics": metrics}), reply_to=message)


grid = deepreduce.flower.LocalGrid(app, 3)
result = strategy.start(grid, ArrayRecord([np.zeros_like(truth)]), num_rounds=80)
losses = [metrics["loss"] for metrics in result.train_metrics_clientapp.values()]
down, up, dense_down, dense_up = strategy.traffic
print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}; {down} bytes down instead of {dense_down}, {up} up instead of {dense_up}")
