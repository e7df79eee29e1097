"""A toy profile and a toy model for the tests of `predict` and `plan`, and their runs."""

import json

from tool_runs import EXACT, run

LOSSY = "sparsify=topr(ratio=0.1) index=golomb value=log_quant"


def cost(plan, operation, base, slope):
    return {"plan": plan, "operation": operation, "floor_ns": 5000, "base_ns": base, "per_element_ns": slope,
            "r2": 1.0, "from": 1000, "to": 10_000_000, "samples": []}


def profile_in(folder):
    frames = [{"plan": plan, "base_bytes": 60, "per_element_bytes": size, "r2": 1.0, "from": 1000, "to": 10_000_000, "samples": [], "sum_growth": []}
              for plan, size in ((EXACT, 0.04), (LOSSY, 0.2))]
    costs = [cost(EXACT, "encode", 8000, 0.5), cost(EXACT, "merge", 3000, 0.05), cost(LOSSY, "encode", 8000, 1.0), cost(LOSSY, "merge", 3000, 0.2),
             cost("index=all value=raw", "encode", 0, 0.25), cost("index=all value=raw", "merge", 0, 0.25)]
    link = {"transport": "gloo", "ranks": 2, "ranks_per_host": 2, "latency_ns": 30000, "bits_per_second": 2e10,
            "allreduce": {"base_ns": 2e5, "per_byte_ns": 0.5}, "allgather": {"base_ns": 1.5e5, "per_byte_ns": 0.6}}
    return write(folder / "profile.json", {"schema": "deepreduce-profile-1", "date": "2026-11-22T00:00:00Z", "commit": "none", "machine": {"cpu": "toy", "cores": 2},
                                             "conditions": {"ranks": 2, "threads": 0, "data": "bundled"}, "costs": costs, "frames": frames, "links": [link],
                                             "overlap": {"slowdown": 1.1, "spread": 0.02}})


def model_in(folder):
    tensors = [{"name": name, "elements": n, "dtype": "f32", "ready_ns": ready} for name, n, ready in
               (("conv.weight", 9408, 120e6), ("body.weight", 2_000_000, 90e6), ("body.bias", 100, 60e6), ("head.weight", 2_000_000, 30e6))]
    return write(folder / "model.json", {"schema": "deepreduce-model-1", "name": "toy", "date": "…", "ranks": 2, "batch": 64, "forward_ns": 50e6,
                                           "backward_ns": 122e6, "rest_ns": 5e6, "tensors": tensors})


def write(path, document):
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def predict(*arguments, **options):
    return json.loads(run("predict", *arguments, "--format", "json", **options).stdout)


def step_of(report, candidate):
    return next(row["step_ns"] for row in report["rows"] if row["candidate"] == candidate)
