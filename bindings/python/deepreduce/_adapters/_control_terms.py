"""Control at run time: what ranks tell one another before the first step, so that all go by the same ladder."""

from __future__ import annotations

import collections
import hashlib
from typing import Callable, List, Optional, Sequence, Tuple

from ..errors import ArgumentError


def terms_of(options: Optional[str], ladder: Sequence[object]) -> List[int]:
    """Three words that ranks which go together have the same: of the options, the rungs, what the rungs are.

    options  None: no control, all words are 0
    ladder   of each rung what has a text: a plan, or plans by name
    """
    if options is None:
        return [0, 0, 0]
    return [digest(str(options)), len(ladder), digest("\n".join(map(str, ladder)))]


def digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=7).digest(), "little")


def first_other(told: Sequence[Sequence[int]]) -> Tuple[Optional[int], Sequence[int], Sequence[int]]:
    """(the first rank whose words are not those of most, None if all have them; its words; those of most)"""
    terms = [tuple(each) for each in told]
    usual = collections.Counter(terms).most_common(1)[0][0]  # of as many the first rank's
    rank = next((i for i, each in enumerate(terms) if each != usual), None)
    return rank, usual if rank is None else terms[rank], usual


def check_terms(told: Sequence[Sequence[int]], named: Callable[[int], int] = int) -> None:
    """ArgumentError, the same on all ranks, if a rank's `terms_of` are not those of most: its `rank` is the first such.

    told   of all ranks, in rank order
    named  a rank's number in the message
    """
    rank, each, usual = first_other(told)
    if rank is None:
        return
    if 0 in (each[1], usual[1]):
        words = "no control, and others have" if usual[1] else "control, and others have none"
    elif each[1] != usual[1]:
        words = f"a ladder of {each[1]} rungs, others one of {usual[1]}"
    else:
        words = "other options" if each[0] != usual[0] else "other plans in its ladder"
    error = ArgumentError(f"control: rank {named(rank)} has {words}; ranks have the same control and the same ladder")
    error.rank = named(rank)
    raise error
