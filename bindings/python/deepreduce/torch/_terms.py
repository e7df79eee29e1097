"""deepreduce.torch: before the first step the ranks compare their options, plans and tensors. If they differed, collectives
of different sizes would meet, and gloo may then end the process."""

from __future__ import annotations

import json
import time
from typing import List, Mapping, Optional, Sequence

import numpy
import torch

from .._adapters._control_terms import check_terms, digest, first_other, terms_of
from .._native._types import Json
from ..errors import ArgumentError
from ._engine import Engine, all_gather


def require_same(
    control: Optional[str],
    plans: Sequence[Sequence[str]],
    options: Mapping[str, object],
    effective: str,
    tensors: Mapping[str, str],
    engine: Engine,
    timeout: float,
    numbers: Sequence[int] = (),
) -> List[List[int]]:
    """ArgumentError, the same on all ranks, if a rank has another control, other options, plans or tensors. It names the rank,
    the first difference, and both values. Collective.

    plans      of each rung, or of the one plan by names
    options    as the user passed them, for the message; options without an effect may differ
    effective  a text of what determines the steps
    tensors    {name: its description, with its plans}
    numbers    may differ

    Returns the numbers of all ranks.
    """
    own = terms_of(control, ["\n".join(lines) for lines in plans])
    texts = [digest(effective), digest(json.dumps(list(tensors.items()))), len(tensors)]
    words_of_all, compared = gathered("control", [*own, *texts, *numbers], engine, timeout), len(own) + len(texts)
    received, found = ([words[part] for words in words_of_all] for part in (slice(compared), slice(compared, None)))
    check_terms([[bool(words[1]), words[1], 0] for words in received], engine.global_rank)
    rank, its, usual = first_other(received)
    if rank is None:
        return found
    settings = {"control": control, "plan": [line for lines in plans for line in lines], **options}
    descriptions = [json.loads(text) for text in gathered_texts("control", json.dumps([settings, tensors]), engine, timeout)]
    words = _difference(*descriptions[rank], *descriptions[[tuple(words) for words in received].index(tuple(usual))])
    number = engine.global_rank(rank)
    error = ArgumentError(f"rank {number} has {words}; options, tensors, their order and their plans must be the same on all ranks")
    error.rank = number
    raise error


def _difference(options: Json, tensors: Json, other_options: Json, other_tensors: Json) -> str:
    """Describes the first difference between what a rank has and what others have."""
    for name, usual in other_options.items():
        value = options.get(name)
        if value == usual:
            continue
        if isinstance(usual, list) and isinstance(value, list):  # lines of which one differs
            at = next((i for i, (a, b) in enumerate(zip(value, usual)) if a != b), min(len(value), len(usual)))
            value, usual = (lines[at] if at < len(lines) else "nothing more" for lines in (value, usual))
        return f"{name} {value}, others {usual}"
    names, usual_names = list(tensors), list(other_tensors)
    if set(names) != set(usual_names):
        missing, more = sorted(set(usual_names) - set(names)), sorted(set(names) - set(usual_names))
        words = [f"no tensor {missing[0]}, which others have"] if missing else []
        words += [f"a tensor {more[0]}, which others have not"] if more else []
        return f"{' and '.join(words)} ({len(names)} tensors, others {len(usual_names)})"
    for i, (name, usual) in enumerate(zip(names, usual_names)):
        if name != usual:
            return f"tensor {name} at place {i}, others {usual}"
    for name, text in tensors.items():
        if text != other_tensors[name]:
            return f"the tensor {name} {text}, others {other_tensors[name]}"
    return "units of other tensors than others"


def gathered(what: str, own: Sequence[int], engine: Engine, timeout: float) -> List[List[int]]:
    """The words of every rank, by one all-gather; all ranks pass the same number of words."""
    place, n = "cpu" if engine.has_backend("cpu") else "cuda", len(own)
    sent = torch.tensor([signed(word) for word in own], device=place)
    received = torch.empty(engine.size * n, dtype=torch.int64, device=place)
    engine.wait(what, engine.issue(what, all_gather, received, sent), time.monotonic() + timeout)
    words = [word % 2**64 for word in received.tolist()]
    return [words[i : i + n] for i in range(0, len(words), n)]


def gathered_texts(what: str, own: str, engine: Engine, timeout: float) -> List[str]:
    """The texts of all ranks."""
    data = own.encode("utf-8", "replace")
    sizes = [words[0] for words in gathered(what, [len(data)], engine, timeout)]
    padded = data.ljust((max(sizes) + 8) // 8 * 8, b"\0")
    received = gathered(what, numpy.frombuffer(padded, numpy.uint64).tolist(), engine, timeout)
    return [numpy.array(words, numpy.uint64).tobytes()[:size].decode() for words, size in zip(received, sizes)]


def signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
