"""Writes the numbers of README.md, between its comments `numbers` and `end of numbers`, from the json and the table of ratios that are kept.

    python3 bench/results/readme.py            # write
    python3 bench/results/readme.py --check    # say what differs, and fail (a test)
"""

import csv
import json
import pathlib
import sys

here = pathlib.Path(__file__).resolve().parent
root = here.parents[1]
begin, end = "<!-- numbers: made by bench/results/readme.py -->\n", "<!-- end of numbers -->\n"
topr = "sparsify=topr(ratio=0.01) "
plans = ["index=raw value=raw", "index=golomb value=raw", "index=golomb(adaptive=1) value=raw", "index=gap_huffman value=raw", "index=golomb value=uniform_quant",
         "index=golomb value=log_quant", "index=auto value=auto(error=0.07)", "index=golomb value=qsgd", "index=golomb value=fit_poly",
         "index=bloom(policy=p2,fpr=0.001) value=raw", "index=bloom(policy=p0,fpr=0.001) value=raw"]


def rows_of(name, tensor=""):
    made = json.loads((here / f"{name}.json").read_text())
    return made, {row["plan"].removeprefix(topr): row for row in made["rows"] if tensor in row["input"]}


def us(nanoseconds):
    return f"{nanoseconds / 1e3:.0f} µs"


def table(rows):
    lines = ["| plan | relative volume | bits per index | relative L2 error | encode | decode |", "|---|---|---|---|---|---|"]
    for plan in plans:
        row = rows[plan]
        error = f"{row['relative_l2_error']:.3f}" if row["relative_l2_error"] else "0"
        lines.append(f"| `{plan}` | {100 * row['relative_volume']:.3f} % | {row['index_bits_per_nonzero']:.2f} | {error} | {us(row['encode_ns'])} | {us(row['decode_ns'])} |")
    copy = us(rows["memcpy"]["encode_ns"])
    return "\n".join([*lines, f"| copying the dense tensor | 100 % | | | {copy} | {copy} |"])


def lstm_bits(index):
    """Of an index codec at 1 %, over the bundled steps: the least and the most."""
    with open(root / "tests" / "ratio" / "expected.csv", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["data"].startswith("lstm_docs_step") and r["plan"] == f"{topr}index={index} value=raw"]
    bits = [8 * int(r["index_bytes"]) / (int(r["value_bytes"]) / 4) for r in rows]
    return f"{min(bits):.1f} to {max(bits):.1f}"


def text():
    made, rows = rows_of("resnet20_flat", "step0150")
    _, fig8 = rows_of("fig8_laplace")
    sparsify = sorted(row["sparsify_ns"] for plan, row in rows.items() if plan != "memcpy")
    first, lloyd = rows[plans[0]], fig8["index=golomb value=lloyd(levels=2)"]
    level = "AVX-512" if "avx512vbmi2" in " ".join(made["machine"]["flags"]).replace("_", "") else "AVX2"
    return f"""
A ResNet-20 gradient ({first['d']:,} values, a middle step of training), `sparsify=topr(ratio=0.01)`; one thread of an {made['machine']['cpu']} with {level}, medians; sparsify takes another {us(sparsify[len(sparsify) // 2])}. The bound
for a uniform support is {first['index_bound_bits_per_nonzero']:.2f} bits; this support is clustered, so a code may go below it.

{table(rows)}

A word LSTM's gradient is more so: `golomb(adaptive=1)` takes {lstm_bits("golomb(adaptive=1)")} bits an index at 1 %, `gap_huffman` {lstm_bits("gap_huffman")}. What we set out to reach, beside the best elsewhere: [bench/results/reach.md](bench/results/reach.md); other libraries in the same run:
[peers.md](bench/results/peers.md); Fig. 8's tensor, where the paper's BF-P2 + QSGD took 4,980 and 2,870 µs on its GPU at 0.70 % of dense and `golomb` + `lloyd(levels=2)` takes {us(lloyd['encode_ns']).split()[0]} and {us(lloyd['decode_ns'])} at {100 * lloyd['relative_volume']:.2f} %: [fig8.md](bench/results/fig8.md).

"""


def main():
    readme = root / "README.md"
    old = readme.read_text(encoding="utf-8")
    before, rest = old.split(begin)
    was, after = rest.split(end)
    now = text()
    if "--check" not in sys.argv[1:]:
        readme.write_text(before + begin + now + end + after, encoding="utf-8")
        return 0
    for a, b in zip(was.splitlines(), now.splitlines()):
        if a != b:
            print(f"README.md has: {a}\nthe json says: {b}")
    if was != now:
        print("README.md's numbers are not those of bench/results: python3 bench/results/readme.py")
    return int(was != now)


sys.exit(main())
