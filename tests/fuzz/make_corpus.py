#!/usr/bin/env python3
"""Makes the seeds of the fuzz targets: corpus/fuzz_decode from the golden frames, corpus/fuzz_plan from plans. Files named crash-* stay.

    make_corpus.py            writes
    make_corpus.py --check    compares with what is there (a test does)
"""
import struct
import sys
from pathlib import Path

here = Path(__file__).parent
golden = here.parent / "golden"
seed_max = 160  # bytes: short seeds mutate better, and the golden frames are replayed anyway

PLANS = """
sparsify=topr(ratio=0.01) index=golomb value=qsgd(levels=127)
sparsify=topr(count=3) feedback=residual(beta=0.9,gamma=-1e-3) index=rice(block=9) value=fit_poly(degree=2) order=bitpack+deflate
sparsify=threshold(value=1e-3,max_ratio=0.5) index=bloom(policy=p0,fpr=1e-3,seed=4294967295,max_ratio=0.9) value=raw
sparsify=none index=bloom(policy=leftmost,fpr=0.3)+deflate(level=9) value=raw+deflate+deflate+deflate+deflate
index=bloom(policy=naive,fpr=0.1) value=qsgd(levels=1,bucket=1)
index=golomb value=fit_poly regather=off bucket=flat
index=raw value=fit_poly feedback=none regather=on bucket=none order=bitpack
value=raw
index=auto value=auto(error=0.01)
sparsify=dgc(ratio=0.01) index=golomb(adaptive=1) value=uniform_quant(error=0.02)
sparsify=random(ratio=0.01) index=bloom(policy=p2,bits=12,layout=split_block) value=lloyd(levels=4)
index=delta_varint+huffman value=sketch(buckets=64)+huffman
index=seeded(count=5) value=fit_dexp(sign=order) order=bitpack+zstd(level=19)
sparsify=blocks(ratio=0.5,block=4) index=golomb+zstd value=fit_poly
sparsify=blocks(count=3) feedback=residual index=auto value=auto(error=0.1) bucket=flat

sparsify=topr
index=raw index=raw
index = raw
index=raw(x=1,x=2)
value=qsgd(levels=+1.27e2)
value=qsgd(levels=0x7f)
sparsify=threshold(value=1e999)
sparsify=topr(ratio=-0)
""".split("\n")[1:-1]

VALUES = struct.pack("<9f", 1.0, -2.5, 0.0, -0.0, 1e-42, 3e38, 0.125, 0.125, -1e-3)


def decode_seeds():
    """One short frame of each kind: of the same codecs, form and outcome the shortest."""
    kinds = {}
    for table in ("manifest.tsv",):
        for line in (golden / table).read_text().splitlines():
            name, status, noticed, *_ = line.split("\t") if not line.startswith("#") else ("", "", "")
            if not name or name.startswith("encode_"):
                continue
            data = (golden / "frames" / f"{name}.frame").read_bytes()
            if len(data) > seed_max or (noticed == "inspect" and not name.startswith(("plan_", "status_", "width_", "bloom_bomb", "bloom_64_", "bloom_none", "block_"))):
                continue  # the checks are put right anyway, and most header faults are a mutation away
            kinds.setdefault((data[3], data[16:32] if data[3] & 1 else data[12:48]), []).append((len(data), name, data))
    return {name: data for _, name, data in (min(kind) for kind in kinds.values())}


def plan_seeds():
    return {f"plan_{i:02}": text.encode() + (b"\0" + VALUES if i % 2 == 0 else b"") for i, text in enumerate(PLANS)}


def main():
    found = {f"fuzz_decode/{name}": data for name, data in decode_seeds().items()} | {f"fuzz_plan/{name}": data for name, data in plan_seeds().items()}
    corpus = here / "corpus"
    there = {str(p.relative_to(corpus)): p for p in corpus.rglob("*") if p.is_file() and not p.name.startswith("crash-")}
    if "--check" in sys.argv[1:]:
        wrong = sorted(name for name in found.keys() | there.keys() if name not in there or found.get(name) != there[name].read_bytes())
        if wrong:
            sys.exit(f"not what make_corpus.py makes: {', '.join(wrong)}")
    else:
        for path in there.values():
            path.unlink()
        for name, data in found.items():
            (corpus / name).parent.mkdir(parents=True, exist_ok=True)
            (corpus / name).write_bytes(data)
    print(f"{len(found)} seeds, {sum(map(len, found.values()))} bytes")


if __name__ == "__main__":
    main()
