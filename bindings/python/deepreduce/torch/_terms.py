"""deepreduce.torch: what ranks tell one another before the first step, so that all go by the same options, plans and
tensors: with others, collectives of other sizes would meet, and gloo may end the process then."""

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
) -> None:
    """ArgumentError, the same on all ranks, if one has another control, other options, plans or tensors: it names the rank,
    the first that differs, and both values. Collective.

    plans      of each rung, or of the one plan by names
    options    as the user gave them, to name them: those that make no difference may differ
    effective  a text of what steps go by
    tensors    {name: a text of it, with its plans}
    """
    own = terms_of(control, ["\n".join(each) for each in plans])
    texts = [digest(effective), digest(json.dumps(list(tensors.items()))), len(tensors)]
    told = gathered("control", [*own, *texts], engine, timeout)
    check_terms([[bool(words[1]), words[1], 0] for words in told], engine.global_rank)
    rank, its, usual = first_other(told)
    if rank is None:
        return
    kept = {"control": control, "plan": [line for each in plans for line in each], **options}
    all_told = [json.loads(each) for each in gathered_texts("control", json.dumps([kept, tensors]), engine, timeout)]
    words = _difference(*all_told[rank], *all_told[[tuple(each) for each in told].index(tuple(usual))])
    number = engine.global_rank(rank)
    error = ArgumentError(f"rank {number} has {words}; options, tensors, their order and their plans are the same on all ranks")
    error.rank = number
    raise error


def _difference(options: Json, tensors: Json, other_options: Json, other_tensors: Json) -> str:
    """The first, of what a rank has and what others have, in words."""
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
    """Each rank's words, as many of each."""
    place, n = "cpu" if engine.has_backend("cpu") else "cuda", len(own)
    sent = torch.tensor([signed(each) for each in own], device=place)
    received = torch.empty(engine.size * n, dtype=torch.int64, device=place)
    engine.wait(what, engine.issue(what, all_gather, received, sent), time.monotonic() + timeout)
    words = [each % 2**64 for each in received.tolist()]
    return [words[i : i + n] for i in range(0, len(words), n)]


def gathered_texts(what: str, own: str, engine: Engine, timeout: float) -> List[str]:
    """Each rank's text."""
    data = own.encode("utf-8", "replace")
    sizes = [words[0] for words in gathered(what, [len(data)], engine, timeout)]
    padded = data.ljust((max(sizes) + 8) // 8 * 8, b"\0")
    told = gathered(what, numpy.frombuffer(padded, numpy.uint64).tolist(), engine, timeout)
    return [numpy.array(words, numpy.uint64).tobytes()[:size].decode() for words, size in zip(told, sizes)]


def signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
