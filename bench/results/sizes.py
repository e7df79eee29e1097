"""Sizes and errors that a table compares with a paper's: computed, not timed, so they are the same on any machine under any load.

    python3 bench/results/sizes.py build/tool/deepreduce     # compute, then write sizes.json and sizes.md
    python3 bench/results/sizes.py                                    # write from the saved results

Fig. 8's tensor is drawn 20 times: one seed of 368 values is chance.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from runs import refuse_changes, refuse_unrepeatable, text_of

here = pathlib.Path(__file__).resolve().parent
SEEDS = range(1, 21)
TOPR = "sparsify=topr(ratio=0.01) "
SKCOMPRESS = "index=gap_huffman value=sketch(buckets=2)+huffman"
# Of Fig. 8: plan, what the paper calls it, its volume.
FIG8 = [("index=golomb value=raw", "", None), ("index=bloom(policy=p2,fpr=0.001) value=qsgd", "BF-P2 + QSGD", 0.0070), (SKCOMPRESS, "SKCompress", 0.0034),
        ("index=golomb value=qsgd", "", None), ("index=golomb value=lloyd(levels=2)", "", None), ("index=golomb value=uniform_quant(error=0.1095)", "", None),
        ("index=auto value=auto(error=0.07)", "", None), ("index=auto value=auto(error=0.06)", "", None), ("index=auto value=auto(error=0.17)", "", None)]
# Of Fig. 16, whose ResNet-50 no package carries: the stand-in is the whole gradient of ResNet-20.
STAND_IN = "resnet20_digits_step0150"
FIG16 = [("index=all value=sketch(buckets=64)+huffman", "SketchML, 64 buckets", 0.1004), ("index=all value=three_lc", "3LC", 0.0016)]
OURS = [f"sparsify=topr(ratio={r}) index=auto value=auto(error={e})" for r in (0.0001, 0.0003, 0.001, 0.01, 0.3, 0.4, 0.5) for e in (0.07, 0.15, 0.3)]
SMALL = TOPR + "index=auto value=auto(error=0.07)"
UNIFORM = {"0.1": "synth:d=400000,support=uniform,values=laplace,density=0.1,seed=1", "0.6": "synth:d=400000,support=uniform,values=laplace,density=0.6,seed=1"}


def compute(tool):
    refuse_changes()
    facts = {}

    def rows(inputs, plans):
        arguments = [a for plan in plans for a in ("--plan", plan)]
        made = json.loads(subprocess.run([tool, "compare", *inputs, *arguments, "--repeat", "1", "--format", "json"], check=True, capture_output=True, text=True).stdout)
        facts.update(commit=refuse_unrepeatable(made)["commit"])
        names = ("plan", "bytes", "index_bytes", "value_bytes", "relative_volume", "relative_l2_error", "contraction", "index_bits_per_nonzero", "value_bits_per_nonzero")
        return [{name: row[name] for name in names} for row in made["rows"] if row["plan"] != "memcpy"]

    whole = str(here.parents[1] / "datasets" / "gradients" / f"{STAND_IN}.npz")
    with tempfile.TemporaryDirectory() as folder:  # encode takes the tensors of a file as they are, compare joins them
        frame = pathlib.Path(folder, "frame")
        subprocess.run([tool, "encode", whole, "--plan", SMALL, "--output", frame], check=True)
        by_tensor = frame.stat().st_size
    made = {
        "fig8": rows([f"synth:d=36864,values=laplace,density=1,seed={seed}" for seed in SEEDS], [TOPR + plan for plan, _, _ in FIG8]),
        "fig16": rows([whole], [plan for plan, _, _ in FIG16] + OURS),
        "joined": {**rows([whole], [SMALL])[0], "bytes_by_tensor": by_tensor},
        "uniform": {density: rows([data], ["index=auto value=uniform_quant(error=0.07)"])[0] for density, data in UNIFORM.items()},
    }
    (here / "sizes.json").write_text(text_of({**facts, **made}))


def saved():
    return json.loads((here / "sizes.json").read_text())


def of_fig8(made, plan):
    return [row for row in made["fig8"] if row["plan"] == TOPR + plan]


def streams(row, d):
    return (row["index_bytes"] + row["value_bytes"]) / (4 * d)


def middle(values, form):
    """Median (least – most)."""
    return f"{form(statistics.median(values))} ({form(min(values))} – {form(max(values))})"


def percent(x):
    return f"{100 * x:.3f} %"


def fig8_table(made):
    lines = ["| plan | the paper | streams | frame | bits an index | bits a value | rel. L2 error |", "|---|---|---|---|---|---|---|"]
    for plan, name, volume in FIG8:
        rows = of_fig8(made, plan)
        cells = [f"`{plan}`", f"{name}, {percent(volume)}" if name else "", middle([streams(r, 36864) for r in rows], percent), middle([r["relative_volume"] for r in rows], percent)]
        cells += [f"{statistics.median(r[key] for r in rows):.2f}" for key in ("index_bits_per_nonzero", "value_bits_per_nonzero")]
        lines.append("| " + " | ".join([*cells, middle([r["relative_l2_error"] for r in rows], lambda x: f"{x:.3f}")]) + " |")
    return "\n".join(lines)


def fig16_table(made):
    rows = {row["plan"]: row for row in made["fig16"]}
    lines = ["| method | plan | the paper, ResNet-50 | here | gradient that is lost | ours that loses no more | of dense | loses |", "|---|---|---|---|---|---|---|---|"]
    for plan, name, volume in FIG16:
        row = rows[plan]
        ours = min((r for r in made["fig16"] if r["plan"] in OURS and r["contraction"] <= row["contraction"]), key=lambda r: r["bytes"])
        lines.append(f"| {name} | `{plan}` | {volume} | {row['relative_volume']:.4f} | {row['contraction']:.3f} | `{ours['plan']}` | {ours['relative_volume']:.5f} | {ours['contraction']:.3f} |")
    return "\n".join(lines)


def remade():
    """sizes.md, of what is kept."""
    made = saved()
    return f"""# Sizes beside the papers'

Made by `sizes.py` from `sizes.json` (commit {made["commit"]}). Nothing here is timed. Volumes are of dense f32. *Streams* are indices and values, as the papers count; a *frame* has our header and check, too.
Presets of the tool (`deepreduce presets`) have these plans, and tests/unit/compare_presets.cpp pins their sizes.

## Fig. 8's tensor (Xu et al. 2021): d = 36,864, Top-1 %, Laplace, 20 seeds; median (least – most)

{fig8_table(made)}

- **SKCompress** (Jiang et al. 2020) as DeepReduce describes it: gaps in Huffman codes, values as means of two quantile buckets in Huffman codes. In the paper 9.6 bits an index and 1.3 a value: 9.6 is a gap in whole bytes and a
  Huffman-coded number of bytes. Ours take fewer bits an index, and more a value, for the bytes of the two means are in the Huffman code, too. There is no MinMaxSketch here.
  `auto(error=0.17)` is a smaller frame with less error.
- The paper has its volume on NCF, too, 0.2175 with 60 % nonzeros: 11.6 bits each. With how many buckets it does not say, so this is not reproduced.
- `auto(error=0.17)` is the smallest, then `lloyd(levels=2)`; both are far off. Beside BF-P2 + QSGD the fair rows are `auto(error=0.07)`, which is about as far off, and `auto(error=0.06)`, which is less.

## Fig. 16's methods, dense, on the whole gradient of ResNet-20 (a stand-in: no package carries ResNet-50's)

{fig16_table(made)}

- **SketchML** (Jiang et al. 2018): not reproduced, **no MinMaxSketch**. 64 buckets by themselves are 6 bits, 0.1875. The published code's default, two rows of d / 5 one-byte cells, is 0.1, and so is the paper's 0.1004, as we read
  it. What elements lose that share a cell is not counted here.
- **3LC** (Lim et al. 2019): dense, zero runs included. Fig. 16's 0.0016 cannot be 3LC as its paper defines it: a byte stands for 14 groups of five zeros at most, so nothing is below 1 / 280 = 0.00357.
  (Fig. 16's 0.0114 of BF-P2 is below its own filter and values, too: 0.0145.)
- The gradient that is lost is ‖g − c‖² / ‖g‖² of one step; feedback sends it later.
"""


if __name__ == "__main__":
    if len(sys.argv) > 1:
        compute(sys.argv[1])
    (here / "sizes.md").write_text(remade(), "utf-8")
