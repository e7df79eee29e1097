"""Runs the tool on Fig. 8's tensor and the bundled gradients, keeps the json, and makes fig8.md from it.

    python3 bench/results/fig8.py build/bench/compare/deepreduce          # measure, then write
    python3 bench/results/fig8.py                                         # write from what is kept

The paper's times are read off Fig. 8 of Xu et al. 2021 (V100 or CPU as marked there; sparsify not counted in either).
"""

import datetime
import json
import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).parent
topr = "sparsify=topr(ratio=0.01) "
# plan: the paper's method for the same job, its encode and decode in ms
plans = {
    "index=raw value=raw": None,
    "index=golomb value=raw": ("BF-P2 (indices, GPU)", 3.97, 2.38),
    "index=rice value=raw": ("BF-P2 (indices, GPU)", 3.97, 2.38),
    "index=bloom(fpr=0.001) value=raw": ("BF-P2 (indices, GPU)", 3.97, 2.38),
    "index=bloom(policy=p0,fpr=0.001) value=raw": ("BF-P2 (indices, GPU)", 3.97, 2.38),
    "index=raw value=raw+deflate": ("Deflate (values, CPU)", 1.09, 3.24),
    "index=raw value=qsgd": ("QSGD (values, GPU)", 0.89, 0.70),
    "index=raw value=fit_poly": ("Fit-Poly (values, GPU)", 2.32, 1.71),
    "index=bloom(policy=p2,fpr=0.001) value=raw": ("BF-P2 (indices, GPU)", 3.97, 2.38),
    "index=golomb(adaptive=1) value=raw": None,
    "index=gap_huffman value=raw": None,
    "index=golomb value=lloyd(levels=2)": ("SKCompress (CPU), 2,985 ms in all", 1492.5, 1492.5),
    "index=golomb value=uniform_quant(error=0.1095)": ("SKCompress (CPU), 2,985 ms in all", 1492.5, 1492.5),
    "index=golomb value=log_quant": None,
    "index=golomb value=uniform_quant": None,
    "index=auto value=auto(error=0.07)": None,
    "index=bloom(policy=p2,fpr=0.001) value=qsgd": ("BF-P2 + QSGD (GPU)", 4.98, 2.87),
    "index=bloom(policy=p2,fpr=0.001) value=fit_dexp": ("BF-P2 + Fit-DExp (GPU)", 15.43, 5.24),
    "index=golomb value=qsgd": ("BF-P2 + QSGD (GPU)", 4.98, 2.87),
    "index=bloom(policy=p0,fpr=0.001) value=qsgd": ("BF-P2 + QSGD (GPU)", 4.98, 2.87),
    "index=golomb value=fit_poly": ("BF-P2 + Fit-DExp (GPU)", 15.43, 5.24),
    "index=bloom(policy=p0,fpr=0.001) value=fit_poly": ("BF-P2 + Fit-DExp (GPU)", 15.43, 5.24),
}


def measure(tool):
    """Two json files: the generated tensor, and the captured layers of that size with the whole gradient."""
    arguments = [a for p in plans for a in ("--plan", topr + p)] + ["--repeat", "201", "--format", "json"]
    datasets = sorted(str(p) for p in (here.parents[1] / "datasets" / "gradients").glob("resnet20*.npz"))
    for name, inputs in {
        "fig8_laplace": ["synth:d=36864,values=laplace,density=1,seed=1"],
        "fig8_captured": [*datasets, "--tensor", "layer3.2.conv1.weight"],
        "resnet20_flat": datasets,
    }.items():
        made = json.loads(subprocess.run([tool, "compare", *inputs, *arguments], check=True, capture_output=True, text=True).stdout)
        made["date"] = datetime.date.today().isoformat()
        # Paths of the machine that measured say nothing.
        for row in made["rows"]:
            row["input"] = row["input"].rsplit("/", 1)[-1]
        (here / f"{name}.json").write_text(json.dumps(made, indent=1) + "\n")


def table(made):
    lines = ["| tensor | plan | bytes | volume | bits an index | bits a value | rel. L2 error | encode µs | decode µs | the paper's method | its encode ÷ ours | its decode ÷ ours |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in made["rows"]:
        if row["plan"] == "memcpy":
            continue
        peer = next(v for k, v in plans.items() if topr + k == row["plan"])
        encode, decode = row["encode_ns"] / 1e3, row["decode_ns"] / 1e3
        ratios = (peer[0], f"{1e3 * peer[1] / encode:,.0f}", f"{1e3 * peer[2] / decode:,.0f}") if peer else ("", "", "")
        cells = [row["input"].removeprefix("resnet20_digits_").removesuffix(".npz").split(":")[0] + (" " + row["tensor"] if row["tensor"] not in ("", "*") else ""),
                 f"`{row['plan'].removeprefix(topr)}`", f"{row['bytes']:,}", f"{row['relative_volume']:.5f}", f"{row['index_bits_per_nonzero']:.2f}",
                 f"{row['value_bits_per_nonzero']:.2f}", f"{row['relative_l2_error']:.2g}", f"{encode:.1f}", f"{decode:.1f}", *ratios]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write():
    parts = ["# Fig. 8's tensor and the ResNet-20 gradient\n\nMade by `fig8.py` from the json beside it; sparsify is `topr(ratio=0.01)` and not in the times. One thread, medians.\n"
             "The paper's times are of 2021's hardware (V100 or CPU): the ratios say how far a plain CPU gets, not which machine is faster."]
    for name, title in (("fig8_laplace", "Fig. 8's tensor, generated Laplace (d = 36,864, r = 368)"),
                        ("fig8_captured", "Captured ResNet-20 layers of that size"),
                        ("resnet20_flat", "The whole ResNet-20 gradient (d = 269,722) as one tensor; the paper's times are of the smaller tensor")):
        made = json.loads((here / f"{name}.json").read_text())
        machine = made["machine"]
        parts.append(f"## {title}\n\nCommit {made['commit']}, {made['date']}, {machine.get('cpu', machine)}, {made['build'].get('compiler', '')}.\n\n{table(made)}")
    (here / "fig8.md").write_text("\n\n".join(parts) + "\n")


if len(sys.argv) > 1:
    measure(sys.argv[1])
write()
