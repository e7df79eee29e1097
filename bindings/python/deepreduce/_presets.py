"""Plans by the names that the literature has for them: those of the tool's `deepreduce presets`."""

from __future__ import annotations

import difflib
from typing import Dict

from .errors import ArgumentError

# DeepReduce's own combinations are for a sparsifier of the caller's choice: as in the tool, Top-1 % unless one is given.
_TOP = "sparsify=topr(ratio=0.01) "

PRESETS: Dict[str, str] = {
    "Top-r": _TOP + "index=raw value=raw",
    "BF-naive": _TOP + "index=bloom(policy=naive,fpr=0.001) value=raw",
    "BF-P0": _TOP + "index=bloom(policy=p0,fpr=0.001) value=raw",
    "BF-P1": _TOP + "index=bloom(policy=p1,fpr=0.001) value=raw",
    "BF-P2": _TOP + "index=bloom(policy=p2,fpr=0.001) value=raw",
    "RLE": _TOP + "index=rle value=raw",
    "Huffman": _TOP + "index=raw+huffman value=raw",
    "Fit-Poly": _TOP + "index=raw value=fit_poly",
    "Fit-DExp": _TOP + "index=raw value=fit_dexp",
    "Deflate": _TOP + "index=raw value=raw+deflate",
    "QSGD": _TOP + "index=raw value=qsgd",
    "BF-P0+Fit-Poly": _TOP + "index=bloom(policy=p0,fpr=0.001) value=fit_poly",
    "BF-P1+Fit-Poly": _TOP + "index=bloom(policy=p1,fpr=0.001) value=fit_poly",
    "BF-P2+Fit-Poly": _TOP + "index=bloom(policy=p2,fpr=0.001) value=fit_poly",
    "BF-P2+Fit-DExp": _TOP + "index=bloom(policy=p2,fpr=0.001) value=fit_dexp",
    "BF-P0+QSGD": _TOP + "index=bloom(policy=p0,fpr=0.001) value=qsgd",
    "BF-P2+QSGD": _TOP + "index=bloom(policy=p2,fpr=0.001) value=qsgd",
    "SKCompress": _TOP + "index=gap_huffman value=sketch(buckets=2)+huffman",
    "SketchML": "sparsify=none index=all value=sketch(buckets=64)+huffman",
    "3LC": "sparsify=none index=all value=three_lc",
    "VByte": _TOP + "index=delta_varint value=raw",
    "BP128": _TOP + "index=delta_bitpack value=raw",
    "PFor": _TOP + "index=delta_pfor value=raw",
    "topk": "sparsify=topr(ratio=0.01) index=raw value=raw",
    "randomk": "sparsify=random(ratio=0.01) index=raw value=raw",
    "threshold": "sparsify=threshold(value=0.01) index=raw value=raw",
    "natural": "sparsify=none index=all value=natural",
    "8bit": "sparsify=none index=all value=dynamic_tree",
    "inceptionn": "sparsify=none index=all value=inceptionn",
    "adaq": "sparsify=adaq(ratio=0.01) feedback=residual index=golomb value=sign(scale=means)",
    "graddrop": "sparsify=dgc(ratio=0.01,sample=0.001,corrections=0) feedback=residual index=golomb value=raw",
    "tbq": "sparsify=threshold(value=0.01) feedback=residual index=golomb value=sign(scale=level,level=0.01)",
    "signsgd": "sparsify=none index=all value=sign merge=vote",
    "signum": "sparsify=none feedback=momentum(beta=0.9) index=all value=sign merge=vote",
    "efsignsgd": "sparsify=none feedback=efsignsgd(lr=0.1) index=all value=sign(scale=mean)",
    "onebit": "sparsify=none feedback=residual index=all value=sign(scale=means)",
    "terngrad": "sparsify=none index=all value=ternary",
    "dgc": "sparsify=dgc(ratio=0.001) feedback=dgc(momentum=0.9) index=golomb value=raw",
    "powersgd": "transform=lowrank(rank=4) feedback=residual",
}


def spelled_out(text: str) -> str:
    """The text of a plan, of which a preset's name is one. Raises ArgumentError for a word that is neither."""
    name = text.strip()
    if name in PRESETS:
        return PRESETS[name]
    if name and name.replace("-", "").replace("+", "").replace("_", "").isalnum():
        close = difflib.get_close_matches(name, PRESETS, 1, cutoff=0.5)
        meant = f"; is it {close[0]!r}?" if close else f": {', '.join(PRESETS)}"
        raise ArgumentError(f"plan: {name!r} is neither stages, role=codec each, nor one of the presets{meant}")
    return text
