"""Energy that blocks send of the bundled accumulators, at the bytes of single elements. Computed, not timed: the same on any machine.

    DEEPREDUCE_LIBRARY=build/capi/libdeepreduce.so PYTHONPATH=bindings/python python3 bench/results/energy.py      # ten seconds; keeps energy.json, writes energy.md
    python3 bench/results/energy.py --table                                                                        # writes energy.md of what is kept

Energy sent: 1 - ‖a - â‖² / ‖a‖², a the accumulator (gradient + residual, all tensors joined), â what its frame decodes to. Whole frames count, headers and all.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import numpy
from runs import refuse_changes, refuse_unrepeatable, text_of

here = Path(__file__).resolve().parent
DATA = here.parents[1] / "datasets" / "accumulators"
SINGLE = "sparsify=topr(ratio={}) index=golomb value=log_quant"
BETTER = "sparsify=topr(ratio={}) index=golomb(adaptive=1) value=log_quant"
BLOCKS = "sparsify=blocks(ratio={{}},block={}) index=golomb(adaptive=1) value=lloyd(price=0.35)"
SIZES = ("8", "16", "32")
ASKED = 1.4
# Coarse values of single elements: of each as many elements as the bytes allow. The best of them is what blocks have to beat.
COARSE = ("auto(error=0.2)", "lloyd(levels=2)", "lloyd(price=0.35)", "sign(scale=mean)")
RIVALS = ("log_quant", *COARSE)
RIVAL = "sparsify=topr(ratio={{}}) index=auto value={}"


class Accumulator:
    def __init__(self, path):
        arrays = numpy.load(path)
        self.a = numpy.concatenate([arrays[name].ravel() for name in arrays.files]).astype(numpy.float32)
        self.energy = float((self.a.astype(numpy.float64) ** 2).sum())

    def of(self, plan):
        """(bytes, share of the energy)"""
        import deepreduce

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


def measured(path):
    """A row: of each plan the energy that it sends at the bytes of SINGLE, and the bytes that it needs for the same energy."""
    x = Accumulator(path)
    size, share = x.of(SINGLE.format(0.1 if "top10_" in path.name else 0.01))
    energy, fewer, rivals = {}, {}, {}
    for name, plan in (("single", BETTER), *((s, BLOCKS.format(s)) for s in SIZES)):
        energy[name] = round(x.search(plan, lambda n, _: n <= size)[0][1] / share, 5)
        fewer[name] = round(x.search(plan, lambda _, e: e < share)[1][0] / size, 5)
    for value in RIVALS:
        rivals[value] = round(x.search(RIVAL.format(value), lambda n, _: n <= size)[0][1] / share, 5)
    return {"data": path.stem, "bytes": size, "share": round(share, 5), "energy": energy, "fewer": fewer, "rivals": rivals}


def commit_of_library():
    """DR_COMMIT, if the library was built of another one than the tree's."""
    git = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    return os.environ.get("DR_COMMIT") or subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()


def remade():
    """energy.md, of what is kept."""
    made = json.loads((here / "energy.json").read_text("utf-8"))
    rows = made["rows"]
    lines = []
    for row in rows:
        best = max(row["rivals"], key=row["rivals"].__getitem__)
        over = row["energy"]["16"] / row["rivals"][best]
        cells = [f"{row['energy'][name]:.2f} / {row['fewer'][name]:.2f}" for name in ("single", *SIZES)]
        lines.append(f"| {row['data'].replace('_', ' ')} | {row['bytes']:,} | {row['share']:.3f} | {' | '.join(cells)} | {row['rivals'][best]:.2f}, `{best}` | {over:.2f}, {'met' if over >= ASKED else '**missed**'} |")
    over_log = [row["energy"]["16"] for row in rows]
    over_best = [row["energy"]["16"] / max(row["rivals"].values()) for row in rows]
    met = sum(over >= ASKED for over in over_best)
    return f"""# Energy at equal bytes

Made by `energy.py` of `datasets/accumulators`; nothing is timed. Each cell: the energy that a plan sends × that of `{SINGLE.format("ρ")}` (ρ = 0.01, or 0.1 where the file says Top-10 %) in a frame of as many bytes, and the bytes
it needs for the same energy ×. Blocks: `{BLOCKS.format("s").format("…")}`, the ratio as large as the bytes or the energy allow. Asked: {ASKED} × at equal bytes.

`log_quant` with plain `golomb` is not the best that single elements do in these bytes: coarser values leave bytes for more elements. **Best single**: the most energy of {", ".join(f"`{RIVAL.format(value).format('…')}`" for value in RIVALS[:1])} and
the same with {", ".join(f"`{value}`" for value in COARSE)}, the ratio as large as the bytes allow. The last column has blocks of 16 over that, and so does what follows.

**Blocks of 16 send {min(over_best):.2f} to {max(over_best):.2f} × the energy of the best single plan in the same bytes, median {statistics.median(over_best):.2f}; at least {ASKED} × on {met} of {len(rows)} accumulators.** Over `golomb` with `log_quant` it is {min(over_log):.2f} to {max(over_log):.2f} ×, and {sum(over >= ASKED for over in over_log)} of {len(rows)}:
a part of that comes from the coarse values and from the better index code, not from blocks.

| accumulator | bytes | share of energy | single, `golomb(adaptive=1)`, `log_quant` | blocks of 8 | 16 | 32 | best single: energy, its values | 16 over it: asked {ASKED} |
|---|---|---|---|---|---|---|---|---|
""" + "\n".join(lines) + f"""

Where blocks gain least, the energy is in few elements (a step of the LSTM, NeuMF's step 20, of which single elements send nearly all), or an index is cheap (Top-10 %: 4.6 bits and not 8). Commit {made["commit"]}.
"""


def main():
    if "--table" not in sys.argv[1:]:
        refuse_changes()
        commit = refuse_unrepeatable({"commit": commit_of_library()})["commit"]
        rows = []
        for path in sorted(DATA.glob("*.npz")):
            rows.append(measured(path))
            print(json.dumps(rows[-1]), flush=True)
        (here / "energy.json").write_text(text_of({"commit": commit, "rows": rows}), "utf-8")
    (here / "energy.md").write_text(remade(), encoding="utf-8")


if __name__ == "__main__":
    main()
