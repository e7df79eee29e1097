"""The federated experiment of the paper's page: which plans, how many rounds, what is kept."""

import time
from typing import Any, Dict, List

import torch

from bench.paper import client_text
from bench.paper.fedavg import Federation, Setup, Wire, run

TOP = "sparsify=topr(ratio=0.1) "
MEMORY = "feedback=residual "
FULL = Setup(rounds=50, clients=6, epochs=2, rate=1.0, batch=16)
QUICK = Setup(rounds=4, clients=4, epochs=1, rate=1.0, batch=16, evaluate=2)


def both(title: str, codecs: str, way: str = "difference") -> Wire:
    """Top-10 % up, with a residual at each client, and down."""
    return Wire(title, TOP + MEMORY + codecs, TOP + codecs, way)


# The first five are Table 2's; fpr: a tenth of the share that is kept, as the paper's code has it.
WIRES = {
    "fedavg": Wire("FedAvg"),
    "topr": both("Top-10 %", "index=raw value=raw"),
    "p0": both("BF-P0", "index=bloom(policy=p0,fpr=0.01) value=raw"),
    "fit_poly": both("Fit-Poly", "index=raw value=fit_poly"),
    "p0_qsgd": both("BF-P0 + QSGD", "index=bloom(policy=p0,fpr=0.01) value=qsgd"),
    "golomb_qsgd": both("Golomb + QSGD", "index=golomb(adaptive=1) value=qsgd"),
    "log": both("Golomb + log_quant", "index=golomb(adaptive=1) value=log_quant"),
    "topr_up": Wire("Top-10 %, dense down", TOP + MEMORY + "index=raw value=raw"),
    "log_up": Wire("Golomb + log_quant, half down", TOP + MEMORY + "index=golomb(adaptive=1) value=log_quant", "index=all value=half"),
    "topr_update": both("Top-10 %, updates", "index=raw value=raw", "update"),
    "log_update": both("Golomb + log_quant, updates", "index=golomb(adaptive=1) value=log_quant", "update"),
}


def facts(federation: Federation, setup: Setup) -> Dict[str, Any]:
    texts = client_text.client_texts()
    return {
        **setup.__dict__,
        "clients_in_all": len(federation.clients),
        "words": sum(map(len, texts)),
        "distance": round(client_text.distance(texts), 3),
        "vocabulary": client_text.VOCABULARY,
    }


def measure(names: List[str], seeds: int, quick: bool) -> Dict[str, Any]:
    """{setup, rows}: every wire by every seed, the same clients and batches for all wires of a seed."""
    torch.set_num_threads(1)
    federation, setup = client_text.federation(), QUICK if quick else FULL
    rows = []
    for seed in range(1, seeds + 1):
        for name in names:
            begin = time.process_time()
            row = run(federation, setup, WIRES[name], seed)
            seconds = round(time.process_time() - begin, 1)
            last = row["curve"][-1]
            print(
                f"{name}, seed {seed}: perplexity {last['perplexity']:.1f}, volume {row['volume_up']:.4f} up, "
                f"{row['volume_down']:.4f} down, {seconds} s of CPU",
                flush=True,
            )
            rows.append({"wire": name, **row, "seconds": seconds})
    return {"setup": facts(federation, setup), "rows": rows}
