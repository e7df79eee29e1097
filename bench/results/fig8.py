"""Runs the tool on Fig. 8's tensor, a bundled accumulator and the bundled gradients, keeps the json, and makes fig8.md from it.

    python3 bench/results/fig8.py build/tool/deepreduce [RUNS [NAME…]]   # measure (5 runs, their median; NAME: only these json files), then write
    python3 bench/results/fig8.py                                                 # write from the json that is kept

The paper's times are read off Fig. 8 of Xu et al. 2021 (V100 or CPU as marked there; sparsify not counted in either).
"""

import datetime
import json
import pathlib
import subprocess
import sys

from runs import merged, refuse_changes, refuse_unrepeatable, text_of

here = pathlib.Path(__file__).parent
topr = "sparsify=topr(ratio=0.01) "
# A method of the paper: name, device; encode and decode in ms, as its figure reads; the same method here.
BLOOM = ("BF-P2 (indices, GPU)", 3.97, 2.38, "index=bloom(policy=p2,fpr=0.001) value=raw")
BLOOM_QSGD = ("BF-P2 + QSGD (GPU)", 4.98, 2.87, "index=bloom(policy=p2,fpr=0.001) value=qsgd")
BLOOM_DEXP = ("BF-P2 + Fit-DExp (GPU)", 15.43, 5.24, "index=bloom(policy=p2,fpr=0.001) value=fit_dexp")
DEFLATE = ("Deflate (values, CPU)", 1.09, 3.24, "index=raw value=raw+deflate")
QSGD = ("QSGD (values, GPU)", 0.89, 0.70, "index=raw value=qsgd")
FIT_POLY = ("Fit-Poly (values, GPU)", 2.32, 1.71, "index=raw value=fit_poly")
SKCOMPRESS = ("SKCompress (CPU)", 709, 2277, "index=gap_huffman value=sketch(buckets=2)+huffman")
# plan: the paper's method for the same job
plans = {
    "index=raw value=raw": None,
    "index=golomb value=raw": BLOOM,
    "index=rice value=raw": BLOOM,
    "index=bloom(fpr=0.001) value=raw": BLOOM,
    "index=bloom(policy=p0,fpr=0.001) value=raw": BLOOM,
    "index=raw value=raw+deflate": DEFLATE,
    "index=raw value=qsgd": QSGD,
    "index=raw value=fit_poly": FIT_POLY,
    "index=bloom(policy=p2,fpr=0.001) value=raw": BLOOM,
    "index=golomb(adaptive=1) value=raw": None,
    "index=gap_huffman value=raw": None,
    SKCOMPRESS[3]: SKCOMPRESS,
    "index=golomb value=lloyd(levels=2)": SKCOMPRESS,
    "index=golomb value=uniform_quant(error=0.1095)": SKCOMPRESS,
    "index=golomb value=log_quant": None,
    "index=golomb value=uniform_quant": None,
    "index=auto value=auto(error=0.07)": BLOOM_QSGD,
    "index=bloom(policy=p2,fpr=0.001) value=qsgd": BLOOM_QSGD,
    "index=bloom(policy=p2,fpr=0.001) value=fit_dexp": BLOOM_DEXP,
    "index=golomb value=qsgd": BLOOM_QSGD,
    "index=bloom(policy=p0,fpr=0.001) value=qsgd": BLOOM_QSGD,
    "index=golomb value=fit_poly": BLOOM_DEXP,
    "index=bloom(policy=p0,fpr=0.001) value=fit_poly": BLOOM_DEXP,
}


def measure(tool, runs, names):
    """A json file each: the generated tensor, the captured layers of that size, the whole gradients, and the accumulator of README's table."""
    refuse_changes()
    arguments = [a for p in plans for a in ("--plan", topr + p)] + ["--repeat", "201", "--ranks", "2", "--format", "json"]
    datasets = sorted(str(p) for p in (here.parents[1] / "datasets" / "gradients").glob("resnet20*.npz"))
    for name, inputs in {
        "fig8_laplace": ["synth:d=36864,values=laplace,density=1,seed=1"],
        "fig8_captured": [*datasets, "--tensor", "layer3.2.conv1.weight"],
        "resnet20_flat": datasets,
        "resnet20_accumulator": [str(here.parents[1] / "datasets" / "accumulators" / "resnet20_digits_residual_top1_step0225.npz")],
    }.items():
        if names and name not in names:
            continue
        output = [subprocess.run([tool, "compare", *inputs, *arguments], check=True, capture_output=True, text=True).stdout for _ in range(runs)]
        made = {**merged([refuse_unrepeatable(json.loads(text)) for text in output]), "runs": runs}
        made["date"] = datetime.date.today().isoformat()
        # Paths of the machine that measured are dropped; medians and their spreads stand for the rounds.
        for row in made["rows"]:
            row["input"] = row["input"].rsplit("/", 1)[-1]
            del row["samples"]
        (here / f"{name}.json").write_text(text_of(made))


def quotient(above, below):
    return " / ".join(f"{a / b:,.0f}" if a >= 100 * b else f"{a / b:.3g}" for a, b in zip(above, below))


def table(made):
    lines = ["| tensor | plan | bytes | volume | bits an index | bits a value | rel. L2 error | encode µs | decode µs | the paper's method | the paper's ÷ ours of that method | ours of that method ÷ this plan |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    times = {(row["input"], row["tensor"], row["plan"]): (row["encode_ns"] / 1e3, row["decode_ns"] / 1e3) for row in made["rows"]}
    for row in made["rows"]:
        plan = row["plan"].removeprefix(topr)
        if plan == "memcpy":
            continue
        encode, decode = mine = times[row["input"], row["tensor"], row["plan"]]
        ratios = ("", "", "")
        if peer := plans[plan]:
            name, *milliseconds, same = peer
            there, here_too = [1e3 * ms for ms in milliseconds], times.get((row["input"], row["tensor"], topr + same))
            name += f", {milliseconds[0]:,g} / {milliseconds[1]:,g} ms"
            ratios = (name, quotient(there, here_too) if here_too else "not measured yet", quotient(here_too, mine) if here_too and same != plan else "")
        cells = [row["input"].removeprefix("resnet20_digits_").removesuffix(".npz").split(":")[0] + (" " + row["tensor"] if row["tensor"] not in ("", "*") else ""),
                 f"`{plan}`", f"{row['bytes']:,}", f"{row['relative_volume']:.5f}", f"{row['index_bits_per_nonzero']:.2f}",
                 f"{row['value_bits_per_nonzero']:.2f}", f"{row['relative_l2_error']:.2g}", f"{encode:.1f}", f"{decode:.1f}", *ratios]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def remade():
    """fig8.md, of what is kept."""
    parts = ["# Fig. 8's tensor, the ResNet-20 accumulator and gradient\n\nMade by `fig8.py` from the json beside it; sparsify is `topr(ratio=0.01)`, over the whole tensor of a row, and not in the times. One thread, medians.\n"
             "The last two columns are encode / decode. *The paper's ÷ ours of that method* is PyTorch of 2021 on a V100 or a CPU against this library on this machine: implementations and machines, not methods. Of SKCompress it is not even the same method: the paper times Python code with a MinMaxSketch, ours has none. BF-P2 is our rule, not the paper's ([SPEC](../../codecs/index/bloom/SPEC.md)). *Ours of that method ÷ this plan* compares two methods in one library, run and machine: like for like.\n"
             "The error is of what is decoded against what was kept. Where a policy keeps more or other values than Top-r (p0, p1, p2), those are true values and yet count as error: the energy that is lost, in "
             "[RESULTS.md](../../docs/RESULTS.md), is the measure that treats them alike. One seed of 368 values is chance; [sizes.md](sizes.md) has volumes and errors over 20."]
    for name, title in (("fig8_laplace", "Fig. 8's tensor, generated Laplace (d = 36,864, r = 368)"),
                        ("fig8_captured", "Captured ResNet-20 layers of that size"),
                        ("resnet20_accumulator", "The ResNet-20 accumulator (gradient + residual, d = 269,722) as one tensor; the paper's times are of the smaller tensor"),
                        ("resnet20_flat", "The whole ResNet-20 gradient (d = 269,722) as one tensor; the paper's times are of the smaller tensor")):
        made = json.loads((here / f"{name}.json").read_text())
        machine, runs = made["machine"], made.get("runs", 1)
        dirty = " (with changes that were not committed: to be measured again)" if made["commit"].endswith("-dirty") else ""
        parts.append(f"## {title}\n\nCommit {made['commit']}{dirty}, {made['date']}, {machine.get('cpu', machine)}, {made['build'].get('compiler', '')}, "
                     f"{'one run' if runs == 1 else f'the median of {runs} runs'}.\n\n{table(made)}")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5, sys.argv[3:])
    (here / "fig8.md").write_text(remade(), "utf-8")
