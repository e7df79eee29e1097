"""Control at run time: before the first step the ranks compare their ladders, which must be the same."""

from __future__ import annotations

import collections
import hashlib
from typing import Callable, List, Optional, Sequence, Tuple

from ..errors import ArgumentError


def terms_of(options: Optional[str], ladder: Sequence[object]) -> List[int]:
    """Three words that must be the same on all ranks: for the options, the number of rungs, and the text of the rungs.

    options  None: no control, all words are 0
    ladder   for each rung an object with a text: a plan, or plans by name
    """
    if options is None:
        return [0, 0, 0]
    return [digest(str(options)), len(ladder), digest("\n".join(map(str, ladder)))]


def digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=7).digest(), "little")


def first_other(received: Sequence[Sequence[int]]) -> Tuple[Optional[int], Sequence[int], Sequence[int]]:
    """(the first rank whose words differ from the most frequent ones, None if none differs; its words; the most frequent ones)"""
    terms = [tuple(words) for words in received]
    usual = collections.Counter(terms).most_common(1)[0][0]  # in a tie those of the first rank
    rank = next((i for i, words in enumerate(terms) if words != usual), None)
    return rank, usual if rank is None else terms[rank], usual


def check_terms(received: Sequence[Sequence[int]], named: Callable[[int], int] = int) -> None:
    """ArgumentError, the same on all ranks, if a rank's `terms_of` differ from the most frequent ones. Its `rank` is the first such.

    received  the terms of all ranks, in rank order
    named     returns a rank's number in the message
    """
    rank, other, usual = first_other(received)
    if rank is None:
        return
    if 0 in (other[1], usual[1]):
        words = "no control, and others have" if usual[1] else "control, and others have none"
    elif other[1] != usual[1]:
        words = f"a ladder of {other[1]} rungs, others one of {usual[1]}"
    else:
        words = "other options" if other[0] != usual[0] else "other plans in its ladder"
    error = ArgumentError(f"control: rank {named(rank)} has {words}; ranks have the same control and the same ladder")
    error.rank = named(rank)
    raise error
