"""The statistics of a round, and of all rounds."""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional, Tuple


class Round(NamedTuple):
    """An outer round.

    number    the first is 0
    workers   whose contributions were applied, in this order: ranks of the default group, or names in a Folder
    refused   {worker: reason} of contributions that no worker applied
    absent    workers of the round before that did not answer in time
    sent, received  bytes of this worker's contribution, and of the others', as transferred
    waited    seconds that this worker waited
    """

    number: int
    workers: Tuple[str, ...]
    refused: Dict[str, str]
    absent: Tuple[str, ...]
    sent: int
    received: int
    waited: float


class OuterInfo(NamedTuple):
    """The statistics of an Outer.

    steps, rounds  inner steps, and rounds that are in its agreed weights
    last           the last round of this worker; None before
    sent, received, waited  of all rounds since it was created
    dense          bytes of the float32 weights that a round exchanges
    """

    steps: int
    rounds: int
    last: Optional[Round]
    sent: int
    received: int
    waited: float
    dense: int
