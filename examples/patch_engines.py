"""Patches as the sparse updates that inference engines take: a worker keeps the weights on its CPU, gets a patch, and hands
on what changed.

Run against the real decoders of vLLM 0.33.0 and verl 0.9.1 (`pip download --no-deps`), on a CPU and a model of two tensors;
never inside a running engine. Both mark what is unchanged by NaN, so a weight that becomes NaN is refused there or lost.
"""

from typing import Any, Dict, Iterator, List, Tuple

import torch

from deepreduce import patch


def changes_of(data: bytes, weights: Dict[str, torch.Tensor]) -> Iterator[Tuple[str, torch.Tensor, torch.Tensor]]:
    """(name, int32 flat indices, values) of each tensor of which something changed; the weights have the changes then."""
    found = patch.changes(data, weights)
    for name, (indices, values) in found.items():
        if weights[name].numel() >= 2**31:
            raise ValueError(f"{name} has {weights[name].numel()} elements, too many for int32 indices")
        if len(indices):
            yield name, torch.from_numpy(indices).to(torch.int32), values
    patch.apply(weights, data)


def for_vllm(data: bytes, weights: Dict[str, torch.Tensor]) -> Iterator[Any]:
    """vllm-project/vllm, vllm/model_executor/model_loader/checkpoint_weight_patch.py, in a worker:
    load_checkpoint_weight_patches(model, for_vllm(data, weights)). Names and shapes are the checkpoint's."""
    from vllm.model_executor.model_loader.checkpoint_weight_patch import CheckpointWeightPatch

    for name, indices, values in changes_of(data, weights):
        yield CheckpointWeightPatch(name, tuple(weights[name].shape), values.dtype, values, indices)


def for_verl(data: bytes, weights: Dict[str, torch.Tensor]) -> Tuple[torch.Tensor, torch.Tensor, List[Any]]:
    """verl-project/verl, verl/checkpoint_engine/delta_sync/encode.py, encoding "indices": positions as bytes, values, and a
    manifest entry for each parameter. The weights are of one type."""
    from verl.checkpoint_engine.delta_sync.encode import DeltaParam

    positions, assigned, manifest = [torch.empty(0, dtype=torch.int32)], [], []
    at = 0
    for name, indices, values in changes_of(data, weights):
        end = at + len(indices)
        manifest.append(
            DeltaParam(
                name=name, dtype=str(values.dtype).replace("torch.", ""), shape=list(weights[name].shape),
                pos_start=4 * at, pos_end=4 * end, pos_width=4, val_start=at, val_end=end,
            )
        )  # fmt: skip
        positions.append(indices)
        assigned.append(values)
        at = end
    return torch.cat(positions).view(torch.uint8), torch.cat(assigned) if assigned else torch.empty(0), manifest
