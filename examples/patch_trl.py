"""Patches as the weight sync of TRL's asynchronous GRPO: a trainer sends what changed, and engines assign it.

    transfer = PatchTransfer(send)
    AsyncGRPOTrainer(…, weight_transfer=transfer)         # trl.experimental.async_grpo

Run against trl 1.16.0 (`pip install --no-deps`): its trainer's own `_sync_weight` with a model of transformers on a CPU; never
with a running engine. TRL has no sparse update itself: pull requests 5417, 5932 and 5937 were closed. Its trainer takes another
sync, of the interface WeightTransferProtocol, and that is what this is.
"""

from typing import Callable, Dict, Iterator, Optional, Tuple

import torch

from deepreduce import patch

Call = Callable[[], None]


class PatchTransfer:
    """send(data) brings a patch to all engines and returns when they have it: a worker that keeps the weights on its CPU calls
    for_vllm(data, weights) of patch_engines.py. TRL samples from them afterwards.

    Engines begin with the checkpoint that the trainer begins with, so the first sync sends nothing; an engine with other
    weights gets WrongBase from the first patch. `pause` and `resume` of the server, if it has to wait meanwhile, are the
    caller's: trl.experimental.async_grpo.vllm_client.VLLMClient has both.
    """

    def __init__(self, send: Callable[[bytes], None], pause: Optional[Call] = None, resume: Optional[Call] = None) -> None:
        self.send = send
        self.pause, self.resume = pause or (lambda: None), resume or (lambda: None)
        self.init_weight_transfer()

    def init_weight_transfer(self) -> None:
        self.step, self.sent = 0, {}

    def send_weights(self, iterator: Iterator[Tuple[str, torch.Tensor]]) -> None:
        weights = {name: x.to("cpu", copy=True) for name, x in iterator}
        if self.sent:
            self.send(patch.encode(self.sent, weights, base=str(self.step), result=str(self.step + 1)))
            self.step += 1
        self.sent: Dict[str, torch.Tensor] = weights  # if `send` fails, the next patch is for the same base

    def destroy(self) -> None:
        self.sent = {}
