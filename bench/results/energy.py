"""Makes energy.md: the energy that blocks send of the bundled accumulators, at the bytes of single elements. Computed, not timed: the same on any machine.

    DEEPREDUCE_LIBRARY=build/capi/libdeepreduce.so PYTHONPATH=bindings/python python3 bench/results/energy.py      # a quarter of a minute

Energy sent: 1 - ‖a - â‖² / ‖a‖², a the accumulator (gradient + residual, all tensors joined), â what its frame decodes to. Whole frames count, headers and all.
"""

from pathlib import Path

import numpy

import deepreduce

here = Path(__file__).resolve().parent
DATA = here.parents[1] / "datasets" / "accumulators"
SINGLE = "sparsify=topr(ratio={}) index=golomb value=log_quant"
BETTER = "sparsify=topr(ratio={}) index=golomb(adaptive=1) value=log_quant"
BLOCKS = "sparsify=blocks(ratio={{}},block={}) index=golomb(adaptive=1) value=lloyd(price=0.35)"
SIZES = ("8", "16", "32")
ASKED = 1.4

HEAD = f"""# Energy at equal bytes

Made by `energy.py` of `datasets/accumulators`; nothing is timed. Each cell: the energy that a plan sends × that of `{SINGLE.format("ρ")}` (ρ = 0.01, or 0.1 where the file says Top-10 %) in a frame of as many bytes, and the bytes
it needs for the same energy ×. Blocks: `{BLOCKS.format("s").format("…")}`, the ratio as large as the bytes or the energy allow. Asked: {ASKED} × at equal bytes.

| accumulator | bytes | share of energy | single, `golomb(adaptive=1)` | blocks of 8 | 16 | 32 | {ASKED} × by 16 |
|---|---|---|---|---|---|---|---|
"""


class Accumulator:
    def __init__(self, path):
        arrays = numpy.load(path)
        self.a = numpy.concatenate([arrays[name].ravel() for name in arrays.files]).astype(numpy.float32)
        self.energy = float((self.a.astype(numpy.float64) ** 2).sum())

    def of(self, plan):
        """(bytes, share of the energy)"""
        frame = deepreduce.encode(self.a, plan)
        rest = self.a.astype(numpy.float64) - deepreduce.decode(frame)
        return len(frame), 1 - float((rest**2).sum()) / self.energy

    def search(self, plan, fits):
        """The result of the largest ratio that fits, and of the one after it."""
        low, high = 1e-5, 1.0
        for _ in range(18):
            middle = (low * high) ** 0.5
            if fits(*self.of(plan.format(f"{middle:.6f}"))):
                low = middle
            else:
                high = middle
        return self.of(plan.format(f"{low:.6f}")), self.of(plan.format(f"{high:.6f}"))


def main():
    lines, met = [], 0
    for path in sorted(DATA.glob("*.npz")):
        x = Accumulator(path)
        size, share = x.of(SINGLE.format(0.1 if "top10_" in path.name else 0.01))
        cells, sixteen = [], 0.0
        for plan in (BETTER, *(BLOCKS.format(s) for s in SIZES)):
            energy = x.search(plan, lambda n, _, limit=size: n <= limit)[0][1] / share
            fewer = x.search(plan, lambda _, e, minimum=share: e < minimum)[1][0] / size
            cells.append(f"{energy:.2f} / {fewer:.2f}")
            sixteen = energy if plan == BLOCKS.format(16) else sixteen
        met += sixteen >= ASKED
        lines.append(f"| {path.stem.replace('_', ' ')} | {size:,} | {share:.3f} | {' | '.join(cells)} | {'met' if sixteen >= ASKED else '**missed**'} |")
        print(lines[-1], flush=True)
    tail = f"\n\nMet on {met} of {len(lines)}. Where not: one step of the LSTM whose energy is a spike of a few dozen elements, NeuMF's step 20, of which single elements send nearly all, and Top-10 %, where an index costs 4.6 bits and not 8.\n"
    (here / "energy.md").write_text(HEAD + "\n".join(lines) + tail, encoding="utf-8")


main()
