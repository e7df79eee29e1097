"""Long sweeps: a part of the combinations, in which each single value still comes; all with DEEPREDUCE_SWEEP=whole, which `./dev test --all` sets."""
import os

WHOLE = os.environ.get("DEEPREDUCE_SWEEP") == "whole"


def part(pairs, plain, every):
    """Of pairs of codecs, which know nothing of one another: those with a plain codec, and one in `every` of the others."""
    pairs = list(pairs)
    return [pair for k, pair in enumerate(pairs) if WHOLE or k % every == 0 or not plain.isdisjoint(pair)]
