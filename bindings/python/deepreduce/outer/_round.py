"""What a round was, and what all of them were."""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional, Tuple


class Round(NamedTuple):
    """An outer round.

    number    the first is 0
    workers   whose contributions were applied, in this order: ranks of the default group, or names in a Folder
    refused   {worker: why} of contributions that no worker applied
    absent    workers of the round before that did not answer in time
    sent, received  bytes of this worker's contribution, and of the others', as they travelled
    waited    seconds, of this worker
    """

    number: int
    workers: Tuple[str, ...]
    refused: Dict[str, str]
    absent: Tuple[str, ...]
    sent: int
    received: int
    waited: float


class OuterInfo(NamedTuple):
    """What an Outer has done.

    steps, rounds  inner steps, and rounds that its agreed weights have seen
    last           the last round that it took part in; None before
    sent, received, waited  of all rounds since it was made
    dense          bytes of the float32 weights that a round is about
    """

    steps: int
    rounds: int
    last: Optional[Round]
    sent: int
    received: int
    waited: float
    dense: int
