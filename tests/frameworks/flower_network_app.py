"""The app that test_flower_network.py runs, over Flower's network and in one process."""

import io
import socket

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import deepreduce.flower

PLAN, ROUNDS = "sparsify=topr(ratio=0.1) index=golomb value=log_quant", 3
truth = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
client = ClientApp(mods=[deepreduce.flower.mod])
server = ServerApp()


@client.train()
def train(message, context):
    w = message.content["arrays"].to_numpy_ndarrays()[0]
    x = np.random.default_rng(int(context.node_config["part"])).standard_normal((256, 64)).astype(np.float32)
    w = w - np.float32(0.2) * x.T @ (x @ (w - truth)) / 256
    metrics = MetricRecord({"num-examples": 256})
    return Message(RecordDict({"arrays": ArrayRecord([w]), "metrics": metrics}), reply_to=message)


def federated(grid):
    """(the model after some rounds, the bytes that went through)"""
    strategy = deepreduce.flower.Compressed(FedAvg(fraction_evaluate=0), up=PLAN + " feedback=residual", down=PLAN)
    result = strategy.start(grid, ArrayRecord([np.zeros_like(truth)]), num_rounds=ROUNDS)
    return result.arrays.to_numpy_ndarrays()[0], strategy.traffic


@server.main()
def main(grid, context):
    model, traffic = federated(grid)
    file = io.BytesIO()
    np.savez(file, model=model, traffic=traffic)
    with socket.create_connection(("127.0.0.1", context.run_config["port"])) as to_the_test:
        to_the_test.sendall(file.getvalue())
